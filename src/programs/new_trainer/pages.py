"""The pages of templates/ as source: settings, changes, and the user's functions inserted."""

import argparse
import ast
import json
import math
import re
import sys
from pathlib import Path
from types import SimpleNamespace

from parts.foundation.bundle import BUNDLE
from parts.foundation.messages import UserError, need, suggest
from parts.foundation.user_scripts import defaults_of
from parts.rewards.extracts import IMPORTS, bound_names

PAGES = ("ppo", "grpo", "distillation", "multi_turn")
# Settings that ask for check and run, not for the page alone.
OF_A_RUN = ("model", "teacher", "data", "eval_data", "reward", "environment", "out")
OF_A_CHECK = ("model", "teacher", "data", "reward", "environment")
OWN = {  # functions of the user's: the page's function that calls them, and what they may take
    "advantage": ("group_advantages", ("scores", "groups")),
    "loss": ("policy_loss", ("logprobs", "old_logprobs", "advantages", "config")),
}
OWN_ADVANTAGE = """{signature}
    \"\"\"Those of {name}, [B]; a group's completions are neighbours.\"\"\"
    groups = torch.arange(len(scores), device=scores.device) // group_size  # [B], equal = same prompt
    return {call}"""
OWN_LOSS = """{signature}
    \"\"\"(loss, ratio, clipped), all [B, T]: the loss of {name}, and 1 where it says that a bound changed it.\"\"\"
    config = SimpleNamespace({settings})
    found = {call}
    loss, clipped = found if isinstance(found, tuple) else (found, torch.zeros_like(found))
    return loss, (logprobs - old_logprobs).clamp(-20, 20).exp(), clipped.detach().float()"""
TYPES = {"int": int, "float": float, "str": str}


def page_text(kind: str) -> str:
    """The source of a page of templates/."""
    path = BUNDLE / "templates" / f"{kind}.py"
    need(path.is_file(), f"got no {path}; expected the bundle around this script; try the one in its scripts/")
    return path.read_text(encoding="utf-8")


def changes_of(kind: str) -> dict[str, dict]:
    """{name: {"what": sentence, "edits": [(old lines, new lines), ...]}} of templates/changes/NAME.diff for a page.

    A file's first line names its pages, its second says what it changes; each `@@` begins an edit, `@@ grpo` one of
    that page alone.
    """
    changes = {}
    for path in sorted((BUNDLE / "templates" / "changes").glob("*.diff")):
        head, *hunks = re.split(r"^@@ ?(.*)\n", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
        pages, summary = head.splitlines()
        if kind in pages.removeprefix("Pages: ").split(", "):
            edits = [
                tuple("".join(f"{line[1:]}\n" for line in hunk.splitlines() if line[0] == sign) for sign in "-+")
                for names, hunk in zip(hunks[::2], hunks[1::2], strict=True)
                if not names or kind in names.split(", ")
            ]
            changes[path.stem] = {"what": summary, "edits": edits}
    return changes


def settings_of(source: str) -> dict[str, dict]:
    """{name: {"type": ..., "default": text or None, "what": comment}} of the page's Config."""
    config = next(x for x in ast.parse(source).body if isinstance(x, ast.ClassDef) and x.name == "Config")
    lines, settings = source.splitlines(), {}
    for node in config.body:
        default = None if node.value is None else ast.unparse(node.value)
        comment = lines[node.lineno - 1].partition("  # ")[2]
        settings[node.target.id] = {"type": ast.unparse(node.annotation), "default": default, "what": comment}
    return settings


def check_settings(source: str, given: dict) -> None:
    """Raise UserError for settings that the page refuses; its own `check_settings` says which."""
    names = {"math": math, "sys": sys}
    body = [node for node in ast.parse(source).body if ast.unparse(node).startswith(("RANGES ", "def check_settings("))]
    exec(compile(ast.Module(body, []), "page", "exec"), names)
    defaults = {name: eval(setting["default"] or "None", names) for name, setting in settings_of(source).items()}
    try:
        names["check_settings"](SimpleNamespace(**defaults | given))
    except SystemExit as error:
        raise UserError(str(error).removeprefix("error: ")) from None


def settings_of_changes(kind: str) -> dict[str, str]:
    """{setting: the change of the page that makes it}, as `kl_coef` of grpo."""
    made = re.compile(r"^    (\w+): \w+ = ", re.MULTILINE)
    texts = [(name, new) for name, change in changes_of(kind).items() for _, new in change["edits"]]
    return {setting: name for name, new in texts for setting in made.findall(new)}


def as_own(source: str, kind: str, file: str, changes: list[str]) -> str:
    """The page with a head that speaks of the user's file: its name, what it lacks, and nothing of the bundle."""

    def lacks(match):
        return f"Left out: {', '.join(x for x in match[1].split(', ') if x.lower() not in changes)}."

    source = source.replace(" on one page: copy it, read it from top to bottom, make it yours.", " in one file.", 1)
    source = source.replace(f"    python {kind}.py ", f"    python {Path(file).name} ", 1)
    if all(setting["default"] for setting in settings_of(source).values()):
        source = re.sub(r"^(    python \S+) --model .*", r"\1", source, count=1, flags=re.MULTILINE)
    return re.sub(r"^Left out, and in scripts/\w+\.py: (.*)\.$", lacks, source, count=1, flags=re.MULTILINE)


def with_default(source: str, name: str, value: object) -> str:
    """The page with another default of a setting; its comment stays where the line has room for it."""
    text = "math.inf" if value == math.inf else json.dumps(value, ensure_ascii=False)
    text = str(value) if isinstance(value, bool) else text  # false in JSON

    def line(match):
        code = f"{match[1]} = {text}"
        return code + match[2] * (len(code + match[2]) <= 120)

    return re.sub(rf"^(    {name}: \w+)(?: = .*?)?(  # .*|)$", line, source, count=1, flags=re.MULTILINE)


def with_change(source: str, kind: str, name: str) -> str:
    known = changes_of(kind)
    try_one = suggest(name, [*known]) or "; try --list"
    need(name in known, f"got --change {name}; expected one of {', '.join(known)} for {kind}{try_one}")
    for old, new in known[name]["edits"]:
        alone = f"got --change {name} beside another that touches the same line; expected one of them"
        need(source.count(old) == 1, f"{alone}; try the second by hand, as templates/changes/{name}.diff has it")
        source = source.replace(old, new)
    return source


def imported(node: ast.stmt) -> set[tuple]:
    """(module, name, alias) of each name that a statement imports."""
    return {(getattr(node, "module", ""), x.name, x.asname) for x in node.names} if isinstance(node, IMPORTS) else set()


def origins(nodes: list[ast.stmt]) -> dict[str, tuple]:
    """{name that statements bind: (module, name) that it imports, () for none}; `import a.b` imports a."""
    origin_of = {}
    for node in nodes:
        origin_of |= {} if isinstance(node, IMPORTS) else dict.fromkeys(bound_names(node), ())
        for module, name, alias in imported(node):
            name = name if module or alias else name.partition(".")[0]
            origin_of[alias or name] = module, name
    return origin_of


def with_text(source: str, flag: str, spec: str) -> str:
    """The page with the code of FILE.py:name before its Config, once.

    What only a program runs, the docstring, and imports that the page has are left out.
    """
    file, _, name = spec.rpartition(":")
    need(Path(file).is_file(), f"got --{flag} {spec!r}; expected FILE.py:name with a file that exists")
    text, page = Path(file).read_text(encoding="utf-8"), ast.parse(source).body
    try:
        body = ast.parse(text).body
    except SyntaxError as error:
        raise UserError(f"got {file}:{error.lineno}: {error.msg}; expected Python; try python {file}") from None
    theirs = [node.name for node in body if hasattr(node, "name")]
    known = f"which {file} does not define; expected one of {', '.join(theirs)}"
    need(name in theirs, f"got --{flag} {spec!r}, {known}")
    statements = {*map(ast.unparse, page)}
    if all(ast.unparse(x) in statements for x in body if hasattr(x, "name") or isinstance(x, ast.Assign)):
        return source  # another flag has inserted it
    of_page, others, lines = origins(page), origins(body), text.splitlines()
    page_imports = set().union(*map(imported, page))
    both = sorted(x for x in of_page.keys() & others if not of_page[x] or of_page[x] != others[x])
    need(not both, f"got {', '.join(both)} in {file} and in the page; expected other names; try renaming")
    for node in body:
        is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        is_main = isinstance(node, ast.If) and "__name__" in ast.unparse(node.test)
        shares_line = ";" in lines[node.lineno - 1]
        is_known = isinstance(node, IMPORTS) and imported(node) <= page_imports and not shares_line
        if is_text or is_main or is_known or getattr(node, "module", "") == "__future__":
            lines[node.lineno - 1 : node.end_lineno] = [""] * (node.end_lineno - node.lineno + 1)
    text = re.sub(r"\n{4,}", "\n\n\n", "\n".join(lines).strip())
    return source.replace("\n\n\n@dataclass\nclass Config:", f"\n\n\n{text}\n\n\n@dataclass\nclass Config:", 1)


def with_file(source: str, setting: str, spec: str) -> str:
    """The page with the code of FILE.py:name before its Config, and its own FILE.py:name as the setting's default."""
    source, name = with_text(source, setting, spec), spec.rpartition(":")[2]
    source = re.sub(rf" --{setting} my\.py:\w+", "", source, count=1)  # of the command at the page's top
    line = re.compile(rf"^(    {setting}: str).*$", re.MULTILINE)
    default = '= f"{__file__}:NAME"  # the one in this file; another: FILE.py:name'.replace("NAME", name)
    return line.sub(lambda match: f"{match[1]} {default}", source, count=1)


def defined(source: str, name: str):
    """The definition of a function at a file's top, or None."""
    functions = [node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef) and node.name == name]
    return functions[0] if functions else None


def with_own(source: str, flag: str, spec: str) -> str:
    """The page whose advantages or loss are those of FILE.py:function, called with the arguments that it names."""
    place, takes = OWN[flag]
    page = defined(source, place)
    kinds = "grpo or multi_turn" if flag == "advantage" else "ppo, grpo or multi_turn"
    need(page, f"got --{flag} {spec}, for a page without {place}; expected {kinds}")
    source, name = with_text(source, flag, spec), spec.rpartition(":")[2]
    page, function = defined(source, place), defined(source, name)
    need(function, f"got --{flag} {spec}; expected a function, defined by def")
    unnamed = ", ".join(x.arg for x in function.args.posonlyargs)
    need(not unnamed, f"got --{flag} {spec}, which takes {unnamed} by position; try it without the /")
    named = defaults_of(function.args)
    lacking = [x for x, value in named.items() if value is None and x not in takes]
    among = f"expected parameters among {', '.join(takes)}"
    need(not lacking, f"got --{flag} {spec}, which needs {', '.join(lacking)}; {among}")
    call = f"{name}({', '.join(f'{x}={x}' for x in takes if x in named or function.args.kwarg)})"
    lines = source.splitlines()
    settings = ", ".join(f"{x.arg}={x.arg}" for x in page.args.args[3:])
    form = OWN_ADVANTAGE if flag == "advantage" else OWN_LOSS
    text = form.format(signature=lines[page.lineno - 1], name=name, call=call, settings=settings)
    if "config=config" not in call:
        text = re.sub(r"\n    config = .*", "", text)
    return "\n".join([*lines[: page.lineno - 1], text, *lines[page.end_lineno :]]) + "\n"


def page_parser(kind: str, source: str) -> argparse.ArgumentParser:
    """A parser of the page's settings; what is not given is None."""
    parser = argparse.ArgumentParser(
        prog=f"new_trainer.py {kind} FILE", usage="%(prog)s [settings of the page]", allow_abbrev=False, add_help=False
    )
    for name, setting in settings_of(source).items():
        if setting["type"] == "bool":
            parser.add_argument(f"--{name}", action="store_true", default=None)
            parser.add_argument(f"--no_{name}", dest=name, action="store_false", default=None)
        else:
            parser.add_argument(f"--{name}", type=TYPES[setting["type"]])
    return parser


def outline(source: str) -> dict[str, str]:
    """{class or function: "first-last line: what it is"} of the page."""
    lines = {}
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            usual = "all settings; each is a flag" if node.name == "Config" else "yours"
            docstring = ast.get_docstring(node) or usual
            lines[node.name] = f"{node.lineno}-{node.end_lineno}: {docstring.partition(chr(10))[0]}"
    return lines


def as_flags(given: dict, names) -> list[str]:
    return [word for name in names if given.get(name) is not None for word in (f"--{name}", str(given[name]))]
