#!/usr/bin/env python3
# /// script
# requires-python = ">=3.11"
# ///
"""Build the standalone scripts from src/: each program with the parts that it uses, in one file, in reading order.

A program is `src/programs/NAME.py`, or a folder with a room per section, whose `__init__.py` has the script's head (PEP
723 block and docstring) and `ROOMS`, their order of reading. The parts that programs share lie in the folders of
`src/parts/`, the floors; FLOORS is their order, and `ROOMS` in a floor's `__init__.py` is the order inside it. Imports
go one way: a room imports floors and earlier rooms of its own folder, a floor imports earlier floors.

`NAME = file_text("page.html")` at the top of a room means a file in the room's folder, whose text becomes a literal in
the script. Lines of such files have at most 120 columns, as in scripts; the first one some fewer.

A script begins with its head and a table of contents. Then come the names of the parts that the program uses, directly
or not, and last the program's own rooms.

    python tools/build.py                 # write what has changed
    python tools/build.py --check         # exit 1 if a built file is not what src/ gives
"""

import argparse
import ast
import builtins
import json
import re
import symtable
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# Folders of src/parts/ in reading order: a floor imports only those before it.
FLOORS = (
    "foundation",
    "data",
    "rewards",
    "environments",
    "networks",
    "sampling",
    "learning",
    "running",
    "evaluating",
    "reading",
    "reading.causes",  # a folder inside another one
)
ELSEWHERE = {"reward_functions_library": "examples"}  # programs that are not written to scripts/
KNOWN = {*dir(builtins), "__file__", "__name__", "__doc__"}
FILE_TEXT = "file_text"  # parts.foundation.file_text: a room's text that is a file of its own
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
HEAD = """\
# Built from {source} by tools/build.py: a change belongs there, then `make build`.
# A copy is yours to edit: this file needs no other of this bundle's scripts.
"""


class BuildError(Exception):
    """src/ cannot be built; the message names the place."""


@dataclass
class Item:
    """One top-level statement with the comments above it."""

    names: tuple[str, ...]
    text: str
    line: int
    gap: int  # blank lines above
    node: ast.stmt

    @cached_property
    def uses(self) -> set[str]:
        """Global names that the statement reads, function bodies included."""
        return set(global_names(symtable.symtable(self.text, "item", "exec")))

    @cached_property
    def early(self) -> tuple[set[str], set[str]]:
        """Names that are read, and names that are called, while the statement itself is executed."""
        read, called = set(), set()
        for node in executed(self.node):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
                read.add(node.id)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                called.add(node.func.id)
            if isinstance(node, DEFINITIONS):
                called |= {d.id for d in node.decorator_list if isinstance(d, ast.Name)}
        return read, called


@dataclass
class Room:
    """A module of src/: its path, its statements and its imports."""

    name: str  # dotted, such as parts.learning.losses
    path: Path
    head: str = ""  # comments and docstring at the top
    items: list[Item] = field(default_factory=list)
    inside: dict[str, str] = field(default_factory=dict)  # imported name -> room that it comes from
    outside: dict[str, set[tuple]] = field(default_factory=dict)  # bound name -> {(module, member or None)}

    def fail(self, line: int, message: str):
        """Raise BuildError for a line of this room."""
        raise BuildError(f"{self.path}:{line}: {message}")

    @property
    def title(self) -> str:
        """The room's name in words."""
        return self.name.rpartition(".")[2].replace("_", " ")

    @property
    def purpose(self) -> str:
        """First line of the room's docstring, without the point."""
        return (ast.get_docstring(ast.parse(self.head)) or "").partition("\n")[0].rstrip(".")

    @property
    def defined(self) -> dict[str, Item]:
        """Statement by each name that the room defines."""
        return {name: item for item in self.items for name in item.names}


def global_names(table: symtable.SymbolTable) -> Iterator[str]:
    """Names that a scope and those inside it look up in the module."""
    outermost = table.get_type() == "module"
    for symbol in table.get_symbols():
        if symbol.is_referenced() and (outermost or symbol.is_global()):
            yield symbol.get_name()
    for child in table.get_children():
        yield from global_names(child)


def executed(node: ast.AST) -> Iterator[ast.AST]:
    """Nodes that run when a statement is executed: all but the bodies of functions and lambdas."""
    yield node
    if isinstance(node, ast.Lambda):
        return
    skipped = node.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) else []
    for child in ast.iter_child_nodes(node):
        if child not in skipped:
            yield from executed(child)


def bound_names(node: ast.stmt) -> tuple[str, ...]:
    """Names that a definition or assignment binds."""
    if isinstance(node, DEFINITIONS):
        return (node.name,)
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    return tuple(leaf.id for target in targets for leaf in ast.walk(target) if isinstance(leaf, ast.Name))


def is_entry(node: ast.stmt) -> bool:
    """Whether a statement is `if __name__ == "__main__":`."""
    return isinstance(node, ast.If) and ast.unparse(node.test) == "__name__ == '__main__'"


def read_room(name: str, path: Path, root: Path) -> Room:
    """Read a module.

    Raises:
        BuildError: a relative or star import, an alias, or a statement that runs at import.
    """
    source = path.read_text(encoding="utf-8")
    lines, room = source.split("\n"), Room(name, path.relative_to(root))
    body = ast.parse(source, str(path)).body
    documented = bool(body) and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant)
    end = body[0].end_lineno if documented else 0  # the last line that is dealt with
    room.head = "\n".join(lines[:end])
    for node in body[documented:]:
        line, last = first_line(node), node.end_lineno
        if isinstance(node, ast.Import | ast.ImportFrom):
            read_import(room, node)
        elif isinstance(node, (*DEFINITIONS, ast.Assign, ast.AnnAssign)) or is_entry(node):
            between = lines[end : line - 1]
            gap = next((i for i, line in enumerate(between) if line.strip()), len(between))
            text = "\n".join([*between[gap:], *lines[line - 1 : last]])
            names = () if is_entry(node) else bound_names(node)
            if is_file_text(node):
                text = "\n".join([*between[gap:], with_file(room, node, path.parent)])
                node = ast.parse(text).body[0]
            room.items.append(Item(names, text, line, gap, node))
            if FILE_TEXT in room.items[-1].uses and FILE_TEXT not in names:
                room.fail(line, f'got {FILE_TEXT} inside a statement; expected NAME = {FILE_TEXT}("page.html")')
        else:
            room.fail(node.lineno, "got a statement that runs at import; expected definitions, constants and imports")
        end = last
    forbid_inner_imports(room, body)
    names = [name for item in room.items for name in item.names]
    for name in {name for name in names if names.count(name) > 1}:
        room.fail(room.defined[name].line, f"got a second {name}; expected one thing of a name")
    return room


def first_line(node: ast.stmt) -> int:
    """Line of a statement's first decorator, or its own."""
    return min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))])


def is_file_text(node: ast.stmt) -> bool:
    """Whether a statement is `NAME = file_text("page.html")`."""
    call = getattr(node, "value", None)
    return isinstance(node, ast.Assign) and isinstance(call, ast.Call) and ast.unparse(call.func) == FILE_TEXT


def with_file(room: Room, node: ast.Assign, folder: Path) -> str:
    """`NAME = literal` for `NAME = file_text("page.html")`."""
    name, arguments = ast.unparse(node.targets[0]), [getattr(a, "value", None) for a in node.value.args]
    if len(arguments) != 1 or not isinstance(arguments[0], str):
        room.fail(node.lineno, f'got {ast.unparse(node)}; expected NAME = {FILE_TEXT}("page.html")')
    path = folder / arguments[0]
    if not path.is_file():
        room.fail(node.lineno, f"got {FILE_TEXT} of {path.name}; expected such a file in {folder.name}/")
    return f"{name} = {literal(path.read_text(encoding='utf-8'))}"


def literal(text: str) -> str:
    """A text as a string literal that the formatter does not change, with unescaped lines if some quotes allow it."""
    forms = ('r"""{}"""', "r'''{}'''") if "\\" in text else ('"""\\\n{}"""', "'''\\\n{}'''")
    for form in forms:
        try:
            if ast.literal_eval(candidate := form.format(text)) == text:
                return candidate
        except (SyntaxError, ValueError):
            continue
    lines = "".join(f"        {quoted(line)},\n" for line in text.splitlines(keepends=True))
    return f'"".join(\n    [\n{lines}    ]\n)'


def quoted(line: str) -> str:
    """A line as a literal, in the quotes that need fewer escapes."""
    parts = [json.dumps(part, ensure_ascii=False)[1:-1] for part in line.split('"')]
    if line.count('"') > line.count("'"):
        return "'" + '"'.join(parts).replace("'", "\\'") + "'"
    return '"' + '\\"'.join(parts) + '"'


def is_inside(module: str | None) -> bool:
    """Whether an imported module is one of src/."""
    return (module or "").partition(".")[0] in ("parts", "programs")


def read_import(room: Room, node: ast.Import | ast.ImportFrom) -> None:
    """Note what an import at the top of a room binds."""
    for alias in node.names:
        if alias.asname or alias.name == "*" or getattr(node, "level", 0):
            room.fail(node.lineno, f"got {ast.unparse(node)!r}; expected no alias, no star and no relative import")
        if isinstance(node, ast.Import):
            if is_inside(alias.name):
                room.fail(node.lineno, f"got {ast.unparse(node)!r}; try from {alias.name} import the names")
            room.outside.setdefault(alias.name.partition(".")[0], set()).add((alias.name, None))
        elif is_inside(node.module):
            room.inside[alias.name] = node.module
        else:
            room.outside.setdefault(alias.name, set()).add((node.module, alias.name))


def forbid_inner_imports(room: Room, body: list[ast.stmt]) -> None:
    """Refuse imports of src/ inside functions: the script would not find them."""
    for statement in body:
        for node in ast.walk(statement):
            inner = node is not statement and isinstance(node, ast.Import | ast.ImportFrom)
            modules = [getattr(node, "module", None), *(a.name for a in node.names)] if inner else []
            if any(map(is_inside, modules)):
                room.fail(node.lineno, f"got {ast.unparse(node)!r} inside a function; expected it at the top")


def folder_rooms(folder: Path, name: str, root: Path) -> tuple[Room, list[Room]]:
    """The `__init__` of a folder, and its rooms in reading order."""
    start = read_room(name, folder / "__init__.py", root)
    listed = start.defined.get("ROOMS")
    if not listed or len(start.items) > 1:
        start.fail(1, "expected a docstring and ROOMS = (…), the names of this folder's modules in reading order")
    names = ast.literal_eval(listed.node.value)
    files = {path.stem for path in folder.glob("*.py")} - {"__init__"}
    if sorted(names) != sorted(files):
        start.fail(
            listed.line, f"got ROOMS without or beyond {', '.join(sorted(files ^ {*names}))}; expected each file"
        )
    return start, [read_room(f"{name}.{room}", folder / f"{room}.py", root) for room in names]


def program_rooms(name: str, root: Path) -> tuple[str, list[Room]]:
    """Head of a program's script, and the program's rooms in reading order."""
    folder = root / "src" / "programs" / name
    if folder.is_dir():
        start, rooms = folder_rooms(folder, f"programs.{name}", root)
        return start.head, rooms
    room = read_room(f"programs.{name}", folder.with_suffix(".py"), root)
    return room.head, [room]


def check_directions(rooms: list[Room]) -> None:
    """Raise BuildError unless every room imports only from earlier rooms, and only names that they define."""
    earlier: dict[str, Room] = {}
    for room in rooms:
        for name, source in room.inside.items():
            if source not in earlier:
                room.fail(1, f"got an import of {name} from {source}; expected one of the floors below")
            if name not in earlier[source].defined:
                room.fail(1, f"got an import of {name} from {source}, which does not define it")
        earlier[room.name] = room


def closure(parts: list[Room], program: list[Room]) -> set[tuple[str, str]]:
    """(Room, name) of all names in a program's own rooms, and of all that these use, directly or not."""
    rooms = {room.name: room for room in [*parts, *program]}
    open_items = [(room, item) for room in program for item in room.items]
    chosen = {(room.name, name) for room in program for name in room.defined}
    while open_items:
        room, item = open_items.pop()
        for name in item.uses - set(item.names):
            if name in room.inside:
                source = rooms[room.inside[name]]
            elif name in room.defined:
                source = room
            elif name in room.outside or name in KNOWN:
                continue
            else:
                room.fail(item.line, f"got {name}, which is neither defined nor imported there")
            if (source.name, name) not in chosen:
                chosen |= {(source.name, other) for other in source.defined[name].names}
                open_items.append((source, source.defined[name]))
    return chosen


def check_names(chosen: list[tuple[Room, list[Item]]]) -> None:
    """Raise BuildError if two things in a script have the same name, or one is used at import before its definition."""
    origin: dict[str, object] = {}
    bodies = {name: item for _, items in chosen for item in items for name in item.names}
    defined: set[str] = set()
    for room, items in chosen:
        for item in items:
            for name in item.names:
                if origin.setdefault(name, room.name) != room.name:
                    room.fail(item.line, f"got {name}, which {origin[name]} also defines; expected one thing of a name")
            missing = (early_names(item, bodies) & bodies.keys()) - defined - set(item.names)
            if missing:
                room.fail(item.line, f"got {', '.join(sorted(missing))} used at import; expected it further up")
            defined |= set(item.names)
    for room, items in chosen:
        used = set().union(*(item.uses for item in items)) if items else set()
        for name in used & room.outside.keys():
            if origin.setdefault(name, room.outside[name]) != room.outside[name] and isinstance(origin[name], str):
                room.fail(1, f"got an import of {name}, which {origin[name]} defines; expected one thing of a name")


def early_names(item: Item, bodies: dict[str, Item]) -> set[str]:
    """Names that executing a statement looks up, directly or in the functions that it calls."""
    found, waiting = set(), [item.early]
    while waiting:
        read, called = waiting.pop()
        new = {name for name in called if name in bodies} - found
        found |= read
        waiting += [(bodies[name].uses, set()) for name in new]
    return found


def import_lines(chosen: list[tuple[Room, list[Item]]]) -> list[str]:
    """The imports that the statements need, in the formatter's order: standard library, a blank line, the rest."""
    plain, members = set(), {}
    for room, items in chosen:
        used = set().union(*(item.uses for item in items)) if items else set()
        for module, member in {entry for name in used & room.outside.keys() for entry in room.outside[name]}:
            if member:
                members.setdefault(module, set()).add(member)
            else:
                plain.add(module)
    lines: dict[bool, list[str]] = {True: [], False: []}
    for module in sorted(plain):
        lines[module.partition(".")[0] in sys.stdlib_module_names].append(f"import {module}")
    for module in sorted(members):
        lines[module.partition(".")[0] in sys.stdlib_module_names].append(from_line(module, members[module]))
    return [*lines[True], *([""] if lines[True] and lines[False] else []), *lines[False]]


def from_line(module: str, members: Iterable[str]) -> str:
    """`from module import members`: constants, then classes, then the rest; wrapped if it is long."""
    ordered = sorted(members, key=lambda m: (not (m.isupper() and len(m) > 1), not m[:1].isupper(), m))
    line = f"from {module} import {', '.join(ordered)}"
    return line if len(line) <= 120 else f"from {module} import (\n" + "".join(f"    {m},\n" for m in ordered) + ")"


def assemble(program: str, head: str, chosen: list[tuple[Room, list[Item]]], root: Path) -> str:
    """Text of a script: head, table of contents, imports, sections."""
    source = Path("src") / "programs" / program
    source = f"{source}/" if (root / source).is_dir() else f"{source}.py"
    shebang, rest = re.match(r"(#!.*\n)?((?s:.*))", head).groups(default="")
    start = [*(shebang + HEAD.format(source=source) + rest).split("\n"), ""]
    imports = ["", *import_lines(chosen)]
    sections = [(room, section_lines(room, items)) for room, items in chosen if items]
    contents = [""] * (len(sections) + 1)
    sections[0][1].pop(0)  # one blank line after the imports, two above each later heading
    line, width = len(start) + len(contents) + len(imports), max(len(room.title) for room, _ in sections)
    contents[0] = "# Contents"
    for i, (room, lines) in enumerate(sections, 1):
        place = f"{line + 2 + (i > 1)}-{line + len(lines)}"
        entry = f"#   {place:>11}  {room.title:<{width}}  {room.purpose}"
        contents[i] = entry if len(entry) <= 120 else entry[:118].rpartition(" ")[0] + " …"
        line += len(lines)
    return "\n".join([*start, *contents, *imports, *(text for _, lines in sections for text in lines)]) + "\n"


def section_lines(room: Room, items: list[Item]) -> list[str]:
    """Lines of a section: two blank ones, a heading, the statements."""
    title = f"{room.title} ({room.path})"
    lines = ["", "", "# " + "-" * (116 - len(title)) + " " + title]
    previous = None
    for item in items:
        lines += [""] * blank_lines(previous, item) + item.text.split("\n")
        previous = item
    return lines


def blank_lines(previous: Item | None, item: Item) -> int:
    """Blank lines above a statement, as the formatter wants them."""
    defines = isinstance(item.node, DEFINITIONS) or is_entry(item.node)
    if previous is None:
        return 2 if defines else 1
    return 2 if defines or isinstance(previous.node, DEFINITIONS) else min(item.gap, 1)


def build(program: str, parts: list[Room], root: Path = ROOT) -> str:
    """Text of a program's script."""
    head, own = program_rooms(program, root)
    check_directions([*parts, *own])
    found = closure(parts, own)
    chosen = [
        (room, [item for item in room.items if not item.names or any((room.name, n) in found for n in item.names)])
        for room in [*parts, *own]
    ]
    check_names(chosen)
    return assemble(program, head, chosen, root)


def read_parts(root: Path) -> list[Room]:
    """All rooms of the floors, in reading order."""
    folder = root / "src" / "parts"
    starts = [path.parent.relative_to(folder) for path in folder.rglob("__init__.py")]
    found = {".".join(start.parts) for start in starts}
    if found != {*FLOORS}:
        raise BuildError(f"tools/build.py: got FLOORS without or beyond {', '.join(sorted(found ^ {*FLOORS}))}")
    folders = {floor: folder.joinpath(*floor.split(".")) for floor in FLOORS}
    return [room for floor, path in folders.items() for room in folder_rooms(path, f"parts.{floor}", root)[1]]


def targets(root: Path) -> dict[str, Path]:
    """Program names and the files that they are written to."""
    paths = sorted((root / "src" / "programs").iterdir())
    names = [path.stem for path in paths if path.suffix == ".py" or (path / "__init__.py").is_file()]
    return {name: root / ELSEWHERE.get(name, "scripts") / f"{name}.py" for name in names if name != "__init__"}


def differences(root: Path) -> Iterator[tuple[Path, str | None]]:
    """{built file that differs from src/: its right text, or None if no program makes it}."""
    parts, wanted = read_parts(root), targets(root)
    for program, path in wanted.items():
        text = build(program, parts, root)
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            yield path, text
    for path in sorted((root / "scripts").glob("*.py")):
        if path not in wanted.values():
            yield path, None


def main() -> int:
    """Command line entry; returns the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 where a file differs")
    args = parser.parse_args()
    try:
        changed = list(differences(ROOT))
    except (BuildError, SyntaxError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    for path, text in changed:
        name = path.relative_to(ROOT)
        if text is None:
            print(f"{name}: got a script that no program of src/programs gives; expected one there, or no such file")
        elif args.check:
            what = "another text" if path.is_file() else "no such file"
            print(f"{name}: got {what}; expected what src/ gives; a change belongs there; try make build")
        else:
            path.write_text(text, encoding="utf-8")
            print(f"wrote {name}")
    left = [path for path, text in changed if args.check or text is None]
    if not left:
        print(f"{len(targets(ROOT))} files are what src/ gives")
    return int(bool(left))


if __name__ == "__main__":
    sys.exit(main())
