"""Jobs as files: the words KEY=VALUE of a shell script, or the keys of a YAML file, with their places."""

import re
from dataclasses import dataclass

from parts.foundation.messages import UserError
from programs.migrate.edits import Change, Edit, Report, edited

SECTIONS = (
    "data actor_rollout_ref critic reward_model reward algorithm trainer sandbox_fusion custom_reward_function "
    "ray_init ray_kwargs global_profiler transfer_queue distillation"
).split()
PART = r"""\\.|\$\(\([^\n]*?\)\)|\$\([^)\n]*\)|\$\{[^}\n]*\}|"(?:\\.|[^"\\])*"|'[^']*'|[^\s"'\\;|&()]"""
WORD = re.compile(
    rf"(?<![^\s(\"'=])(?P<sign>\+\+|\+|~)?(?P<key>(?:{'|'.join(SECTIONS)})(?:\.[\w@/-]+)+)(?:=(?P<value>(?:{PART})*))?"
)
OTHER = re.compile(rf"(?<=\s)(?P<sign>\+*)(?P<key>[a-z_]+(?:\.\w+)*)=(?P<value>(?:{PART})*)")
MAIN = re.compile(r"-m\s+([\w.]+)|(\S*/?\w*main_\w+\.py)\b")


@dataclass(frozen=True)
class Word:
    """A setting of a job as it stands in its file."""

    key: str
    value: str | None
    start: int
    end: int
    sign: str = ""

    @property
    def plain(self) -> str:
        """The value without the quotes of the shell or of YAML."""
        return (self.value or "").strip().strip("'\"")

    @property
    def is_fixed(self) -> bool:
        """Whether nothing of the value is known at run time only."""
        return "$" not in (self.value or "") and "`" not in (self.value or "")


class JobFile:
    """A text with settings at places."""

    text: str

    def place(self, offset: int) -> str:
        return f"line {self.text.count(chr(10), 0, offset) + 1}"

    def edited(self, edits: list[Edit]) -> str:
        return edited(self.text, edits)

    def apply(self, plan: dict[str, Change], report: Report) -> None:
        """Rename, replace or cut the settings that a plan names, and add its others."""
        for word in [word for word in self.words if word.key in plan]:  # one may stand twice
            change = plan[word.key]
            if change.text is None:
                self.remove(word, change, report)
            else:
                self.replace(word, change, report)
        given = {word.key for word in self.words}
        self.add([c for key, c in plan.items() if key not in given and c.text is not None], report)


class ShellJob(JobFile):
    """A shell script; only its words KEY=VALUE are edited."""

    def __init__(self, name: str, text: str):
        self.name, self.text = name, text
        matches = [match for match in WORD.finditer(text) if not self.in_comment(match.start())]
        self.words = [self.word(match) for match in matches if match["value"] is not None or match["sign"] == "~"]
        mains = [match for match in MAIN.finditer(text) if not self.in_comment(match.start())]
        self.mains = [(m[1] or m[2], m.start(), m.end()) for m in mains if re.search("main|sft", m[1] or m[2])]
        for _, _, end in self.mains:  # settings of other sections: words up to the end of the command
            command = re.compile(r"(?:[^\n\\|;&>]|\\.|\\\n|\d>)*").match(text, end)
            found = [m for m in OTHER.finditer(text, end, command.end()) if m["key"].split(".")[0] not in SECTIONS]
            self.words += [self.word(match) for match in found if match["key"].split(".")[0] != "hydra"]

    def word(self, match: re.Match) -> Word:
        value, end = match["value"], match.end()
        before = self.text[match.start() - 1 : match.start()]
        if before in ("'", '"') and value is not None:  # the quotes are around the whole word
            end = self.text.find(before, match.start("value"))
            value = self.text[match.start("value") : end]
        return Word(match["key"], value, match.start(), end, match["sign"] or "")

    def in_comment(self, place: int) -> bool:
        line = self.text[self.text.rfind("\n", 0, place) + 1 : place]
        before = [line[: mark.start()] for mark in re.finditer(r"(?:^|(?<=\s))#", line)]
        return any(text.count('"') % 2 == 0 and text.count("'") % 2 == 0 for text in before)

    def replace(self, word: Word, change: Change, report: Report) -> None:
        report.edit(word.start, word.end, change.setting, change)

    def remove(self, word: Word, change: Change, report: Report) -> None:
        text, start, end = self.text, word.start, word.end
        quote = text[start - 1 : start]
        if quote in ("'", '"') and text[end : end + 1] == quote:
            start, end = start - 1, end + 1
        line = text.rfind("\n", 0, start) + 1
        rest = re.compile(r"[ \t]*(\\)?[ \t]*(\n|$)").match(text, end)
        before = re.search(r"[ \t]*\\[ \t]*\n$", text[:line])
        if text[line:start].strip() or not rest:
            report.edit(start, re.compile(r"[ \t]*").match(text, end).end(), "", change)
        elif rest[1] or not before:
            report.edit(line, rest.end(), "", change)
        else:  # the last line of a command: the one before no longer goes on
            report.edit(before.start(), end, "", change)

    def add(self, settings: list[Change], report: Report) -> None:
        """Put words behind the main module of each command, so that all that the job says wins over them."""
        places = [end for _, _, end in self.mains]
        for place in places or [max((word.end for word in self.words), default=len(self.text))]:
            statement = self.text[self.text.rfind("\n", 0, place) + 1 : place]
            break_ = " " if statement.count("'") % 2 else " \\\n    " if places else "\n"
            for change in settings:
                is_first = place == (places or [place])[0]
                report.edit(place, place, break_ + change.setting, change if is_first else None)


class YamlJob(JobFile):
    """A YAML file of settings; lines are edited where they stand."""

    mains = ()

    def __init__(self, name: str, text: str):
        import yaml

        self.name, self.text = name, text
        try:
            root = yaml.compose(text)
        except yaml.YAMLError as error:
            mark = getattr(error, "problem_mark", None)
            where = f"{name}, line {mark.line + 1}" if mark else name
            problem = getattr(error, "problem", error)
            raise UserError(f"{where}: got {problem}; expected YAML; try a YAML checker") from None
        if not isinstance(root, yaml.MappingNode):
            raise UserError(f"got {name} without 'key: value' lines; expected settings; try the file of a run")
        self.sections = {"": root}
        self.starts: dict[str, int] = {}  # of the key of a section
        self.moved: list[Change] = []  # settings of another section, written by add
        self.removed: set[str] = set()
        self.words = [*self.below(root, "")]

    def below(self, node, prefix: str):
        for key, value in node.value:
            name, start = f"{prefix}{key.value}", key.start_mark.index
            if name in ("defaults", "hydra"):  # Hydra's own
                continue
            if isinstance(value.value, list) and value.value and isinstance(value.value[0], tuple):
                self.sections[name], self.starts[name] = value, start
                yield from self.below(value, f"{name}.")
                continue
            end = value.end_mark.index
            end = len(self.text[:end].rstrip()) if "\n" in self.text[start:end] else end
            yield Word(name, self.text[value.start_mark.index : end], start, end)

    def replace(self, word: Word, change: Change, report: Report) -> None:
        section, _, name = change.name.lstrip("+").rpartition(".")
        if section == word.key.rpartition(".")[0]:
            report.edit(word.start, word.end, f"{name}: {change.text}", change)
        else:
            self.remove(word, change, report)
            self.moved.append(change)

    def remove(self, word: Word, change: Change, report: Report) -> None:
        self.removed.add(word.key)
        if self.sections[word.key.rpartition(".")[0]].flow_style:
            report.refuse(self.place(word.start), word.key, "stands inside { }", "the form of one key a line")
        else:
            self.cut(word.start, word.end, change, report)

    def cut(self, start: int, end: int, change: Change | None, report: Report) -> None:
        """Cut whole lines."""
        after = self.text.find("\n", end)
        report.edit(self.text.rfind("\n", 0, start) + 1, len(self.text) if after < 0 else after + 1, "", change)

    def add(self, settings: list[Change], report: Report) -> None:
        """Put settings at the end of the deepest section that is there."""
        for name, start in self.starts.items():
            if all(word.key in self.removed for word in self.words if word.key.startswith(f"{name}.")):
                self.cut(start, start, None, report)
                del self.sections[name]
        trees: dict[str, dict] = {}
        for change in [*self.moved, *settings]:
            parts = change.name.lstrip("+").split(".")
            depth = max(i for i in range(len(parts)) if ".".join(parts[:i]) in self.sections)
            node = trees.setdefault(".".join(parts[:depth]), {})
            for part in parts[depth:-1]:
                node = node.setdefault(part, {})
            node[parts[-1]] = (change.text, None if change in self.moved else change)
        for name, tree in trees.items():
            section = self.sections[name]
            end = len(self.text[: section.value[-1][1].end_mark.index].rstrip())
            line_end = self.text.find("\n", end)
            place = len(self.text) if line_end < 0 else line_end
            for text, row in lines_of(tree, " " * section.value[0][0].start_mark.column):
                report.edit(place, place, f"\n{text}", row)


def lines_of(tree: dict, indent: str):
    """(Line, row) of nested settings."""
    for key, value in tree.items():
        if isinstance(value, dict):
            yield f"{indent}{key}:", None
            yield from lines_of(value, f"{indent}  ")
        else:
            yield f"{indent}{key}: {value[0]}", value[1]
