#!/usr/bin/env python3
# /// script
# requires-python = ">=3.11"
# dependencies = [
#     "torch>=2.6", "transformers>=5.23,<6", "numpy>=1.26", "tqdm", "matplotlib", "nbformat", "nbclient", "ipykernel",
# ]
# ///
"""Write a copy of assets/notebook_template.ipynb with your idea, rewards, model and data filled in, and run it.

The notebook compares an idea with GRPO over several seeds and says whether the difference exceeds the noise. An idea is
a reward beside the others, an advantage, a loss, or a setting of ppo_train.py; the text of its file becomes a cell.
Other files are written into it relative to its own folder, where Jupyter runs it. --run leaves it without outputs and
writes the run, with figures and samples, beside it; what it found goes to stdout as JSON. The embedded task's own
rewards pay for answer tags as well: an idea about length is compared on right answers alone, with
`--reward examples/reward_functions_library.py:numeric_correctness`.

Deliberately left out: further settings, which stand in one cell of the notebook.

    python scripts/new_notebook.py --output idea.ipynb                         # the embedded task, CPU
    python scripts/new_notebook.py --idea reward=my_idea.py:short_and_right --run --output idea.ipynb
    python scripts/new_notebook.py --idea advantage=my_idea.py:median --idea clip_eps_high=0.28 --output idea.ipynb
    python scripts/new_notebook.py --reward my_rewards.py:correct --data train.jsonl --output idea.ipynb
    python scripts/new_notebook.py --model Qwen/Qwen2.5-0.5B-Instruct --precision bf16 --data train.jsonl \\
        --eval_data test.jsonl --reward my_rewards.py:correct --output idea.ipynb                          # GPU

Exit codes: 0 written, and run; 1 a cell of it raised an error; 2 bad input.
"""

import argparse
import ast
import json
import os
import re
import sys
import time
from pathlib import Path

from parts.foundation.bundle import BUNDLE
from parts.foundation.messages import UserError, need, say, suggest, tell
from parts.foundation.settings import parse_flags
from parts.rewards.reward_forms import full_spec

TEMPLATE = BUNDLE / "assets" / "notebook_template.ipynb"
TEXTS = ("reward", "advantage", "loss", "advantage_std", "aggregation", "kl_estimator")  # settings that are no numbers


class CellError(UserError):
    """A cell of the notebook raised an error."""

    code = 1


def names_of(file: str, flag: str) -> list[str]:
    """The public names that a Python file binds at its top, but for imports; it is read, not run."""
    text = Path(file).read_text(encoding="utf-8")
    try:
        body = ast.parse(text).body
    except (SyntaxError, ValueError) as error:
        raise UserError(f"got {flag} ({error}); expected Python") from None
    defined = [node.name for node in body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)]
    bound = [node.id for top in body for node in ast.walk(top) if isinstance(node, ast.Name)]
    bound = [name for name in bound if re.search(rf"^{name}\s*(:.*)?=", text, re.M)]
    return [n for n in dict.fromkeys(defined + bound) if not n.startswith("_")]


def check_function(flag: str, target: str, *more: str) -> str:
    """Raise UserError unless FILE.py:name names a file that binds the name, and `more`; returns the file."""
    file, colon, name = target.rpartition(":")
    need(colon and Path(file).is_file(), f"got {flag}: no file {file!r}; expected FILE.py:function")
    known = names_of(file, flag)
    for word in (name, *more):
        problem = f"{file} has no {word!r}; expected one of its names{suggest(word, known)}"
        need(word in known, f"got {flag}: {problem}")
    return file


def check_reward(spec: str) -> None:
    """Raise UserError unless FILE.py:name[*weight] is one that there is."""
    target, _, weight = spec.partition("*")
    try:
        if not weight.isidentifier():  # else the file's list of weights
            float(weight or 1)
    except ValueError as error:
        raise UserError(f"got --reward {spec!r} ({error}); expected a weight that is a number") from None
    check_function(f"--reward {spec!r}", target, *([weight] if weight.isidentifier() else []))


def seen_from(path: str, folder: Path) -> str:
    """A path as seen from the notebook's folder; one that does not exist, such as a hub id, as it is."""
    return os.path.relpath(path, folder) if os.path.exists(path) else path


def reward_seen_from(spec: str, folder: Path) -> str:
    """FILE.py:name*weight as seen from the notebook's folder."""
    file, _, rest = spec.rpartition(":")
    return f"{seen_from(file, folder)}:{rest}"


def set_values(notebook: dict, values: dict) -> None:
    """Replace the value in the line `NAME = value  # comment` of each name, in place.

    Raises:
        KeyError: if a name does not stand in exactly one line, as then the template is not the one that this fits.
    """
    for name, value in values.items():
        pattern, count = re.compile(rf"^{name} = .*?(?=  # |$)", re.MULTILINE), 0
        for cell in notebook["cells"]:
            source = "".join(cell["source"])
            if cell["cell_type"] == "code" and pattern.search(source):
                source = pattern.sub(lambda _, line=f"{name} = {value!r}": line, source)
                cell["source"] = source.splitlines(keepends=True)
                count += len(pattern.findall(source))
        if count != 1:
            raise KeyError(f"{name} stands in {count} lines")


def cell_of(notebook: dict, name: str) -> dict:
    """The cell with this id."""
    return next(cell for cell in notebook["cells"] if cell["id"] == name)


def bound_by(cell: dict) -> set[str]:
    """What a code cell binds at its top: functions, variables, imports."""
    body = ast.parse("".join(cell["source"])).body
    names = {node.name for node in body if isinstance(node, ast.FunctionDef)}
    rest = [node for top in body if not isinstance(top, ast.FunctionDef) for node in ast.walk(top)]
    names |= {node.id for node in rest if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    return names | {alias.asname or alias.name.split(".")[0] for node in imports(rest) for alias in node.names}


def imports(nodes) -> list:
    """The import statements among nodes."""
    return [node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom)]


def text_for_cell(file: str, flag: str, taken: set[str]) -> str:
    """The text of an idea's file, but for what runs only as a program.

    Raises:
        UserError: it imports a file beside it, or names something as the notebook does.
    """
    text = Path(file).read_text(encoding="utf-8")
    body, lines = ast.parse(text).body, text.splitlines()
    for node in imports(ast.walk(ast.parse(text))):
        modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
        beside = [name for name in modules if (Path(file).parent / f"{name.split('.')[0]}.py").is_file()]
        need(not beside, f"got {flag}: {file} imports {beside}, a file beside it; expected an idea in one file")
    double = sorted(taken & set(names_of(file, flag)))
    need(not double, f"got {flag}: {file} names {', '.join(double)}, as the notebook does; expected other names")
    for node in body:
        only_program = isinstance(node, ast.If) and "__name__" in ast.unparse(node.test)
        if only_program or (isinstance(node, ast.ImportFrom) and node.module == "__future__"):
            lines[node.lineno - 1 : node.end_lineno] = [""] * (node.end_lineno - node.lineno + 1)
    return "\n".join(lines).strip()


def setting_of(name: str, value: str, notebook: dict):
    """The value of a setting that the notebook's loop reads."""
    loop = ast.parse("".join(cell_of(notebook, "loop")["source"])).body
    (table,) = [node for node in loop if isinstance(node, ast.Assign) and node.targets[0].id == "ACTS_ON"]
    known = sorted(node.value for node in ast.walk(table) if isinstance(node, ast.Constant))
    flag = f"--idea {name}={value}"
    need(name in known, f"got {flag}; expected one of {', '.join(known)}{suggest(name, known)}")
    if name in TEXTS:
        return value
    try:
        number = ast.literal_eval(value)
    except (ValueError, SyntaxError):
        number = None
    need(type(number) in (int, float), f"got {flag}; expected a number, such as 0.28 for 28%; try --help")
    return number


def set_idea(notebook: dict, ideas: list[str]) -> None:
    """Put ideas KIND=FILE.py:function and SETTING=value into the notebook's idea cell, in place."""
    others = [c for c in notebook["cells"] if c["cell_type"] == "code" and c["id"] != "idea"]
    taken, texts, rewards, chosen = set().union(*map(bound_by, others)), {}, ["*REWARDS"], {}
    for idea in ideas:
        (kind, equals, value), flag = idea.partition("="), f"--idea {idea}"
        need(equals and value, f"got {flag}; expected reward=, advantage= or loss=FILE.py:function, or SETTING=value")
        need(kind not in chosen or kind == "reward", f"got two --idea {kind}=; expected one")
        if kind not in ("reward", "advantage", "loss") or ":" not in value:
            chosen[kind] = repr(setting_of(kind, value, notebook))
            continue
        file = check_function(flag, value)
        if file not in texts:
            texts[file] = text_for_cell(file, flag, taken)
            taken |= {*names_of(file, flag)}
        name = value.rpartition(":")[2]
        if kind == "reward":
            rewards.append(name)
        chosen[kind] = f"[{', '.join(rewards)}]" if kind == "reward" else name
    shown = ", ".join(f'"{key}": {value}' for key, value in chosen.items())
    source = "\n\n\n".join([*texts.values(), f"BASELINE = {{}}\nIDEA = {{{shown}}}"])
    cell_of(notebook, "idea")["source"] = source.splitlines(keepends=True)


def new_notebook(args) -> dict:
    """The filled-in notebook of a command line."""
    folder = Path(args.output).resolve().parent
    need(TEMPLATE.is_file(), f"got no {TEMPLATE}; expected the bundle around this script; try the one in its scripts/")
    need(Path(args.output).suffix == ".ipynb", f"got --output {args.output}; expected a name in .ipynb")
    need(folder.is_dir(), f"got --output {args.output}; expected a folder that exists; try mkdir -p {folder}")
    fresh = args.force or not os.path.exists(args.output)
    need(fresh, f"got --output {args.output}, which exists; expected a new name; try --force")
    for name in ("data", "eval_data"):
        path = getattr(args, name)
        loadable = not path or os.path.isfile(path) or (not path.startswith((".", "/", "~")) and not Path(path).suffix)
        need(loadable, f"got --{name} {path}, which is not a file; expected one, or a hub id")
    args.reward = [*map(full_spec, args.reward)]
    for spec in args.reward:
        check_reward(spec)
    need(args.reward or not args.data, "got --data without --reward; expected a reward for it; try FILE.py:function")
    near = os.path.relpath(BUNDLE, folder)  # papermill runs a notebook in the folder that it is called from
    values = {"BUNDLE": str(BUNDLE) if near.startswith("..") else near}
    for name in ("model", "data", "eval_data", "precision"):
        if getattr(args, name):
            values[name.upper()] = seen_from(getattr(args, name), folder)
    if args.reward:
        values["REWARDS"] = [reward_seen_from(spec, folder) for spec in args.reward]
    need(args.steps >= 0, f"got --steps {args.steps}; expected 1 or more")
    values |= {"SEEDS": args.seeds} if args.seeds else {}
    values |= {"STEPS": args.steps} if args.steps else {}
    notebook = json.loads(TEMPLATE.read_text(encoding="utf-8"))
    set_values(notebook, values)
    if args.idea:
        set_idea(notebook, args.idea)
    return notebook


def printed(notebook, name: str) -> list[str]:
    """The lines that a cell has printed."""
    (cell,) = [cell for cell in notebook.cells if cell.id == name]
    return "".join(out.text for out in cell.outputs if out.get("name") == "stdout").splitlines()


def run_notebook(path: Path) -> dict:
    """Run a notebook in its folder; what it found. NAME.run.ipynb gets its outputs, those before an error too.

    Raises:
        CellError: a cell raised an error.
        UserError: the packages to run it are not installed.
    """
    try:
        import nbformat
        from nbclient import NotebookClient
        from nbclient.exceptions import CellExecutionError
    except ImportError as error:
        raise UserError(f"got --run, but {error}; expected nbclient and ipykernel; try requirements.txt") from None
    notebook, ran = nbformat.read(path, as_version=4), path.with_suffix(".run.ipynb")
    where = {"metadata": {"path": str(path.resolve().parent)}}
    say(f"running {path}: one to two minutes on a CPU with the embedded model and three seeds")
    begin = time.perf_counter()
    try:
        NotebookClient(notebook, timeout=None, kernel_name="python3", resources=where).execute()
    except CellExecutionError as error:
        raise CellError(f"a cell raised {error.ename}: {error.evalue}; all outputs are in {ran}") from None
    finally:
        nbformat.write(notebook, ran)
    outcome = {"ran": str(ran), "seconds": round(time.perf_counter() - begin), "runs": printed(notebook, "run")}
    return outcome | {"verdict": printed(notebook, "verdict"), "next": printed(notebook, "next")}


def notebook_parser() -> argparse.ArgumentParser:
    """The command line's flags, spelled with `_` or `-`."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    default = "(default: the embedded one)"
    parser.add_argument("--output", required=True, metavar="FILE", help="notebook to write, NAME.ipynb")
    parser.add_argument(
        "--reward", action="append", default=[], metavar="SPEC", help="FILE.py:function[*weight], repeatable"
    )
    parser.add_argument("--model", default="", help=f"folder or hub id {default}")
    parser.add_argument("--data", default="", help=f"prompts: JSONL, JSON, CSV or parquet file, or hub id {default}")
    held_out = "held-out prompts (default: the embedded ones, or the last tenth of --data)"
    parser.add_argument("--eval_data", "--eval-data", default="", metavar="DATA", help=held_out)
    precisions = {"choices": ["auto", "fp32", "bf16"], "default": "auto"}
    parser.add_argument("--precision", **precisions, help="auto: bf16 where the CUDA GPU can (default: %(default)s)")
    kinds = "reward=, advantage= or loss=FILE.py:function, or a setting, clip_eps_high=0.28; repeatable"
    parser.add_argument("--idea", action="append", default=[], metavar="KIND=VALUE", help=kinds)
    parser.add_argument("--seeds", type=int, nargs="+", default=[], metavar="N", help="both arms run once with each")
    parser.add_argument("--steps", type=int, default=0, help="steps of each run (default: the template's)")
    parser.add_argument("--run", action="store_true", help="run it, and write it with outputs to NAME.run.ipynb")
    parser.add_argument("--force", action="store_true", help="write over an existing file")
    return parser


def main(argv: list[str] | None = None) -> int:
    """Command line entry; returns the exit code."""
    args = parse_flags(notebook_parser(), argv)
    try:
        notebook = new_notebook(args)
        Path(args.output).write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        outcome = {"wrote": args.output} | (run_notebook(Path(args.output)) if args.run else {})
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.code
    except OSError as error:
        print(f"error: got {error}; expected a folder to write to", file=sys.stderr)
        return 2
    tell(json.dumps(outcome if args.run else outcome | {"run": f"jupyter execute {args.output}"}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
