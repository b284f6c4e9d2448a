"""Job files: the KEY=VALUE words of a shell script, or the keys of a YAML file, with their offsets."""

import re
import textwrap
from copy import copy
from dataclasses import dataclass, replace

from parts.foundation.messages import UserError
from programs.migrate.edits import Change, Edit, Report, edited, removal

SECTIONS = (
    "data actor_rollout_ref critic reward_model reward algorithm trainer sandbox_fusion custom_reward_function "
    "ray_init ray_kwargs global_profiler transfer_queue distillation"
).split()
PART = r"""\\.|\$\(\([^\n]*?\)\)|\$\([^)\n]*\)|\$\{[^}\n]*\}|"(?:\\.|[^"\\])*"|'[^']*'|[^\s"'\\;|&()]"""
WORD = re.compile(
    rf"(?<![^\s(\"'=])(?P<sign>\+\+|\+|~)?(?P<key>(?:{'|'.join(SECTIONS)})(?:\.[\w@/-]+)+)(?:=(?P<value>(?:{PART})*))?"
)
OTHER = re.compile(rf"(?<=\s)(?P<sign>\+*)(?P<key>[a-z_]+(?:\.\w+)*)=(?P<value>(?:{PART})*)")
COMMAND = re.compile(r"""(?:'[^']*'|"(?:\\.|[^"\\])*"|\\.|\d?>&?\d|[^\n\\|;&>'"])*""", re.S)
STRING = re.compile(  # a quoted string, or what may hold an unpaired quote: an escape, a comment, a here-document
    r"""\\.|(?<!\S)\#[^\n]*|(?<!<)<<-?[ ]*['"]?(\w+)['"]?[^\n]*\n(?s:.*?)\n[ \t]*\1\b|'[^']*'|"(?:\\(?s:.)|[^"\\])*\""""
)
OPENED = re.compile(r"^[ \t]*(?:if\b(?!.*:[ \t]*$)|case\b.*\bin\b)", re.M)  # but no `if …:` of Python code in a job
CLOSED = re.compile(r"(?:^|;)[ \t]*(?:fi|esac)\b", re.M)
FUNCTION = re.compile(r"^[ \t]*(?:function[ \t]+)?([\w-]+)[ \t]*\(\)", re.M)
VARIABLE = re.compile(r"^[ \t]*(?:(?:export|local|declare)[ \t]+)?(\w+)\+?=", re.M)
IN_BRANCH = "$(set in a branch)"  # stands for the value of a setting that is set in a branch or set twice
MAIN = re.compile(r"-m\s+([\w.]+)|(\S*/?\w*main_\w+\.py)\b")


@dataclass(frozen=True)
class Word:
    """A setting of a job as it stands in its file."""

    key: str
    value: str | None
    start: int
    end: int
    sign: str = ""
    in_branch: bool = False  # inside a branch of the shell, which may not run
    literal: str | None = None  # what the value stands for, if it is a variable of one plain line

    @property
    def known(self) -> str:
        return (self.value if self.literal is None else self.literal) or ""

    @property
    def plain(self) -> str:
        """The value without the quotes of the shell or of YAML."""
        return self.known.strip().strip("'\"")

    @property
    def is_fixed(self) -> bool:
        """Whether the value contains no shell variable or command."""
        return "$" not in self.known and "`" not in self.known


class JobFile:
    """A text with settings at known offsets."""

    text: str

    def place(self, offset: int) -> str:
        return f"line {self.text.count(chr(10), 0, offset) + 1}"

    def edited(self, edits: list[Edit]) -> str:
        return edited(self.text, edits)

    def commands(self) -> list["JobFile"]:
        """One job for each run that the file starts."""
        return [self]

    def apply(self, edits: list[tuple[Word, Change]], added: list[Change], report: Report) -> None:
        """Rename, replace or remove settings, and add others."""
        for word, change in edits:
            edit = self.remove if change.text is None else self.replace
            edit(word, change, report)
        self.add([change for change in added if change.text is not None], report)


class ShellJob(JobFile):
    """A shell script; only its words KEY=VALUE are edited."""

    def __init__(self, name: str, text: str):
        self.name, self.text = name, text
        marks = [(match[0][0], match.start() + 1, match.end() - 1) for match in STRING.finditer(text)]
        self.strings = [(start, end) for mark, start, end in marks if mark in "'\""]
        self.comments = [(start, end) for mark, start, end in marks if mark == "#"]
        self.words = [*self.find_words(WORD, 0, len(text))]
        mains = [match for match in MAIN.finditer(text) if not self.in_comment(match.start())]
        self.mains = [(m[1] or m[2], m.start(), m.end()) for m in mains if re.search("main|sft", m[1] or m[2])]
        self.spans = [(start, self.command_end(end)) for _, start, end in self.mains]
        for start, end in self.spans:  # within a command, words of other sections are settings too
            words = self.find_words(OTHER, start, end)
            self.words += [word for word in words if word.key.split(".")[0] not in (*SECTIONS, "hydra")]

    def command_end(self, start: int) -> int:
        """The offset where a command ends: the closing quote around it, or the shell's separator."""
        return COMMAND.match(self.text, start, (self.around(start) or (0, len(self.text)))[1]).end()

    def commands(self) -> list["ShellJob"]:
        """One job for each main module, with the words of its command and variables, and words that no command uses."""
        jobs = []
        for main, span in zip(self.mains, self.spans, strict=True):
            job = copy(self)
            job.mains, job.spans, job.words = [main], [span], []
            for word in self.words:
                users = [place for place in self.spans if place[0] <= word.start < place[1]]
                is_inside = bool(users)
                if not users and (names := VARIABLE.findall(self.text, 0, word.start)):
                    users = [(a, b) for a, b in self.spans if re.search(rf"\$\{{?{names[-1]}\b", self.text[a:b])]
                if span in users or not users:
                    job.words.append(replace(word, in_branch=not is_inside and self.in_branch(word.start)))
            jobs.append(job)
        return jobs or [self]

    def in_branch(self, place: int) -> bool:
        """Whether the shell may skip an offset: inside `if` or `case`, after && or ||, or in one call of a function."""
        text = self.text[:place]
        is_inside = len(OPENED.findall(text)) > len(CLOSED.findall(text))
        statement = re.split(r"(?<!\\)\n", text)[-1]
        is_call = any(re.match(rf"\s*{name}\s", statement) for name in FUNCTION.findall(self.text))
        return is_inside or is_call or bool(re.search(r"&&|\|\|", statement))

    def find_words(self, pattern: re.Pattern, start: int, end: int):
        """Yield the words between two offsets that match, in order, except those in comments."""
        while match := pattern.search(self.text, start, end):
            word = self.word(match)
            start = max(word.end, match.start() + 1)
            if not self.in_comment(word.start) and (word.value is not None or word.sign == "~"):
                yield word

    def word(self, match: re.Match) -> Word:
        value, start, end = match["value"], match.start(), match.end()
        around = self.around(start)
        if around and value is not None:  # in quotes it ends with them, or where another setting follows
            is_alone = around[0] == start and not WORD.search(self.text, start + 1, around[1])
            end = around[1] if is_alone else match.re.match(self.text, start, around[1]).end()
            value = self.text[match.start("value") : end]
        return Word(match["key"], value, start, end, match["sign"] or "", literal=self.literal(value, start))

    def literal(self, value: str | None, place: int) -> str | None:
        """What a variable stands for, if one line of its own, outside branches, gives it a plain value."""
        text, name = self.text[:place], re.fullmatch(r'"?\$\{?(\w+)\}?"?', value or "")
        lines = [*re.finditer(rf"(?<![\w.${{/-]){name[1]}\b.*", self.text)] if name else []
        lines = [line for line in lines if not self.in_comment(line.start())]
        if len(lines) != 1 or self.in_branch(lines[0].start()) or self.around(lines[0].start()):
            return None
        line = re.compile(rf"^(?:export )?{name[1]}=((?:{PART})*)[ \t]*(?:#.*)?$(?!(?s:.*)^[ \t]*(?:source|\.) )", re.M)
        match = line.search(text)
        return match[1] if match and "$" not in match[1] and "`" not in match[1] else None

    def around(self, place: int) -> tuple[int, int] | None:
        """The span of the quoted text around an offset, or None."""
        return next((span for span in self.strings if span[0] <= place < span[1]), None)

    def in_comment(self, place: int) -> bool:
        return any(start <= place <= end for start, end in self.comments)

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
        else:  # the last line of a command: the line before loses its backslash
            report.edit(before.start(), end, "", change)

    def add(self, settings: list[Change], report: Report) -> None:
        """Insert words right after each main module, so that the job's own words, which follow, win."""
        places = [end for _, _, end in self.mains]
        for place in places or [max((word.end for word in self.words), default=len(self.text))]:
            statement = self.text[self.text.rfind("\n", 0, place) + 1 : place]
            break_ = " " if statement.count("'") % 2 else " \\\n    " if places else "\n"
            for change in settings:
                is_first = place == (places or [place])[0]
                report.edit(place, place, break_ + change.setting, change if is_first else None)


class YamlJob(JobFile):
    """A YAML file of settings; lines are edited where they stand."""

    def __init__(self, name: str, text: str):
        import yaml

        self.name, self.text = name, text
        try:
            root = yaml.compose(text)
        except yaml.YAMLError as error:
            mark = getattr(error, "problem_mark", None)
            where = f"{name}, line {mark.line + 1}" if mark else name
            problem = getattr(error, "problem", error)
            advice = "try the value in place of an alias (*name), or a YAML checker"
            raise UserError(f"{where}: got {problem}; expected YAML; {advice}") from None
        if not isinstance(root, yaml.MappingNode):
            raise UserError(f"got {name} without 'key: value' lines; expected settings; try the file of a run")
        self.sections = {"": root}
        self.starts: dict[str, int] = {}  # {section: offset of its key}
        self.moved: list[Change] = []  # settings that change their section; `add` writes them
        self.removed: set[str] = set()
        words = [*self.below(root, "")]
        self.words = [w for w in words if "." in w.key or f"${{{w.key}}}" not in text]  # no names that ${…} reads
        fork_words = [w for w in words if w.key.startswith("worker.")][:1]
        self.mains = [("verl.trainer.main", w.start, w.end) for w in fork_words]

    def below(self, node, prefix: str):
        """Yield the words of a mapping; note its sections."""
        for key, value in node.value:
            name, start = f"{prefix}{key.value}", key.start_mark.index
            if name in ("defaults", "hydra"):  # Hydra's own
                continue
            if isinstance(value.value, list) and value.value and isinstance(value.value[0], tuple):
                if key.value == "<<":  # merged here
                    yield from self.below(value, prefix)
                    continue
                self.sections[name], self.starts[name] = value, start
                yield from self.below(value, f"{name}.")
                continue
            alias = re.compile(r"\s*:\s*\*[^\s,}\]]+").match(self.text, key.end_mark.index)
            end = alias.end() if alias else value.end_mark.index
            end = len(self.text[:end].rstrip()) if "\n" in self.text[start:end] else end
            text = self.text[value.start_mark.index : value.end_mark.index if alias else end]
            literal = re.sub(r"^&\S+\s*", "", text)
            yield Word(name, literal if alias else text, start, end, literal=literal)

    def edited(self, edits: list[Edit]) -> str:
        text = super().edited(edits)
        YamlJob(f"the new text of {self.name}", text)  # which an alias of a line that went would make invalid
        return text

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
            report.edit(*removal(self.text, word), "", change)
        else:
            self.cut(word.start, word.end, change, report)

    def cut(self, start: int, end: int, change: Change | None, report: Report) -> None:
        after = self.text.find("\n", end)
        report.edit(self.text.rfind("\n", 0, start) + 1, len(self.text) if after < 0 else after + 1, "", change)

    def add(self, settings: list[Change], report: Report) -> None:
        """Delete sections that are now empty; put each setting at the end of the deepest section that exists."""
        import yaml

        for name, start in self.starts.items():
            if all(word.key in self.removed for word in self.words if word.key.startswith(f"{name}.")):
                section = self.sections.pop(name)
                end = section.end_mark.index if section.flow_style else start
                line = self.text.rfind("\n", 0, start) + 1  # where the rows of the edits that the cut drops go
                inside = {"start": line, "end": line, "text": ""}
                report.edits = [replace(e, **inside) if start < e.start and e.end <= end else e for e in report.edits]
                self.cut(start, end, None, report)
        trees, rows = {}, {}
        for change in [*self.moved, *settings]:
            parts = change.name.lstrip("+").split(".")
            depth = max(i for i in range(len(parts)) if ".".join(parts[:i]) in self.sections)
            home = ".".join(parts[:depth])
            node = trees.setdefault(home, {})
            rows.setdefault(home, []).extend([change] if change in settings else [])
            for part in parts[depth:-1]:
                if not isinstance(node.get(part), dict):
                    node[part] = {}
                node = node[part]
            if not isinstance(node.get(parts[-1]), dict):  # else the section that a ${…} stands for moves here itself
                node[parts[-1]] = yaml.safe_load(change.text)
        for name, tree in sorted(trees.items(), key=lambda tree: tree[0].count(".") if tree[0] else -1, reverse=True):
            section = self.sections[name]
            last = max(node.end_mark.index for node in section.value[-1])  # an alias ends where its anchor does
            line_end = self.text.find("\n", len(self.text[:last].rstrip()))
            place = len(self.text) if line_end < 0 else line_end + 1  # on a new line, as the last one may be deleted
            text = textwrap.indent(yaml.safe_dump(tree, sort_keys=False), " " * section.value[0][0].start_mark.column)
            text = f"\n{text[:-1]}" if line_end < 0 else text
            if section.flow_style:
                place = section.end_mark.index - 1
                text = ", " + yaml.safe_dump(tree, sort_keys=False, default_flow_style=True, width=1e9).strip()[1:-1]
            report.edit(place, place, text)
            for change in rows[name]:
                report.edit(place, place, "", change)
