#!/usr/bin/env python3
# /// script
# requires-python = ">=3.11"
# ///
"""Keep one name, one body: a function or class that stands in several standalone scripts is the same text in all.

The text runs from the comment lines directly above, over the decorators, to the last line of the body.

Deliberately left out: constants, imports and methods; ruff finds a name that a copied body misses in its new file.

    python tools/sync.py --check                               # list names whose copies differ; exit 1 if any
    python tools/sync.py gae --from scripts/ppo_train.py       # write that file's `gae` over every other copy
"""

import argparse
import ast
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("scripts", "examples", "templates")
MAY_DIFFER = {"Config", "main", "train", "evaluate"}


def standalone_scripts(root: Path) -> list[Path]:
    """The scripts that people copy one at a time."""
    return sorted(path for folder in FOLDERS for path in (root / folder).rglob("*.py"))


def definitions(source: str) -> dict[str, tuple[int, int]]:
    """Line range [start, end) of every top-level function and class, with decorators and the comment block above."""
    lines, found = source.split("\n"), {}  # not splitlines: it also cuts at form feeds and U+2028
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            start = min([node.lineno, *(d.lineno for d in node.decorator_list)]) - 1
            while start and lines[start - 1].startswith("#"):
                start -= 1
            found[node.name] = (start, node.end_lineno)
    return found


def bodies(source: str) -> dict[str, str]:
    """Text of every top-level function and class."""
    lines = source.split("\n")
    return {name: "\n".join(lines[start:end]) for name, (start, end) in definitions(source).items()}


def differing(root: Path) -> dict[str, list[str]]:
    """Names with more than one body, and the files that hold each of them, relative to root."""
    copies: dict[str, dict[str, str]] = {}
    for path in standalone_scripts(root):
        for name, text in bodies(path.read_text(encoding="utf-8")).items():
            copies.setdefault(name, {})[str(path.relative_to(root))] = text
    return {
        name: list(texts) for name, texts in copies.items() if name not in MAY_DIFFER and len(set(texts.values())) > 1
    }


def copy_to_others(root: Path, name: str, origin: Path) -> list[Path]:
    """Write origin's body of `name` over every other script's, and return the files that changed.

    Raises:
        KeyError: origin defines no such function or class.
    """
    text, changed = bodies(origin.read_text(encoding="utf-8"))[name], []
    for path in standalone_scripts(root):
        source = path.read_text(encoding="utf-8")
        if path.resolve() == origin.resolve() or bodies(source).get(name, text) == text:
            continue
        lines = source.split("\n")
        start, end = definitions(source)[name]
        path.write_text("\n".join([*lines[:start], text, *lines[end:]]), encoding="utf-8")
        changed.append(path)
    return changed


def main() -> int:
    """Command line entry; returns the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("name", nargs="?", help="top-level function or class to copy")
    parser.add_argument("--from", dest="origin", type=Path, metavar="FILE", help="script whose body is the right one")
    parser.add_argument("--check", action="store_true", help="list differing copies and exit 1 if there are any")
    args = parser.parse_args()
    if args.check == bool(args.name) or bool(args.name) != bool(args.origin):
        parser.error("expected either --check, or NAME --from FILE")
    if args.check:
        wrong = differing(ROOT)
        for name, files in wrong.items():
            print(f"{name} differs between {', '.join(files)}; try python tools/sync.py {name} --from FILE")
        print(f"{len(wrong)} names differ over {len(standalone_scripts(ROOT))} scripts")
        return int(bool(wrong))
    try:
        changed = copy_to_others(ROOT, args.name, args.origin)
    except KeyError:
        parser.error(f"got {args.name!r}, which {args.origin} does not define; expected a top-level name of it")
    except OSError as error:
        parser.error(f"got --from {args.origin}: {error}")
    print("\n".join(f"wrote {path.relative_to(ROOT)}" for path in changed) or "nothing to change")
    return 0


if __name__ == "__main__":
    sys.exit(main())
