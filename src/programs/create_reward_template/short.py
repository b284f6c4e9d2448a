"""The shortest files: a final number, and a port with the reward inside."""

import ast
import inspect
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from parts.data.rows import read_rows
from parts.foundation.file_text import file_text
from parts.foundation.messages import UserError, need
from parts.rewards.extracts import bound_names, extract, imports_trainer, joined, statements_of
from parts.rewards.reward_forms import find_reward, import_file, is_per_sample, weight_of
from parts.rewards.user_code import trial_texts
from programs.create_reward_template.assembly import assembled, named
from programs.create_reward_template.recipes import FINAL_NUMBER, HELPERS
from programs.create_reward_template.weights import check_import

INLINE_BATCH = file_text("files/inline_batch.py")
INLINE_ONE = file_text("files/inline_one.py")
ARGUMENTS = {"prompt", "prompts", "completion", "completions"}
EXTRAS = {"completion_ids", "trainer_state", "log_extra", "log_metric", "environments"}  # what TRL hands over besides
NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
VERL_NOTE = "verl: reward.custom_reward_function.path={file} reward.custom_reward_function.name=compute_score"
OTHERWISE = "try it without --inline"


def final_number_reward(args) -> str:
    """The text of the task final_number."""
    gold, file = args.gold_column or "answer", Path(args.output or "my_reward.py").name
    notes, roots = [], []
    if args.target != "verl":
        notes.append(f"TRL, and trainers with its contract: {file}:{args.name}, column {gold}")
        roots.append(args.name)
    if args.target != "trl":
        notes.append(VERL_NOTE.format(file=file))
        roots.append("compute_score")
    head = '"""' + ast.get_docstring(ast.parse(FINAL_NUMBER)) + "\n\n" + "\n".join(notes) + '\n"""\n\n'
    return assembled(head, [named(FINAL_NUMBER, [gold], gold_column=gold, reward_name=args.name)], roots)


# ------------------------------------------------------------------------------------------------ a port


def definition(args, source: str, name: str) -> ast.FunctionDef:
    """The function of --from as its file defines it; UserError for what needs more than a few lines."""
    got = f"got --inline with --from {args.source!r}"
    try:
        body = ast.parse(source).body
    except (SyntaxError, ValueError) as error:
        raise UserError(f"{got}: {error}; expected Python") from None
    found = next((line for line in body if isinstance(line, ast.FunctionDef) and line.name == name), None)
    need(found, f"{got}; expected a plain function of that file, neither async nor a list; {OTHERWISE}")
    need(weight_of(args.source) == 1 and not args.weights, f"{got}; expected no weight; {OTHERWISE}")
    read = {node.id for part in found.body for node in ast.walk(part) if isinstance(node, ast.Name)}
    arguments = found.args
    hidden = [a.arg for a in (arguments.vararg, arguments.kwarg) if a]
    used = sorted(read & {"prompt", "prompts", *EXTRAS, *hidden})
    need(not used, f"{got}, which reads {', '.join(used)}; expected the completion and one column; {OTHERWISE}")
    return found


def inlined(args) -> str:
    """The text of a port of --from to verl that holds the function; fixes args.target."""
    file, _, name = args.source.partition("*")[0].rpartition(":")
    got = f"got --from {args.source!r}"
    need(file and Path(file).is_file(), f"{got}: no file {file!r}; expected FILE.py:function")
    need(args.target in (None, "verl"), f"got --for {args.target} with --inline; expected verl; {OTHERWISE}")
    need(Path(file).resolve() != Path(args.output or "").resolve(), f"{got}, the file of --output; expected another")
    args.target, source = "verl", Path(file).read_text(encoding="utf-8")
    given = definition(args, source, name).args
    own = ARGUMENTS | EXTRAS
    named_arguments = [a.arg for a in (*given.args, *given.kwonlyargs)]
    need(not given.posonlyargs, f"{got}, whose arguments have no names; {OTHERWISE}")
    columns = [n for n in named_arguments if n not in own]
    need(len(columns) == 1, f"{got} with the columns {', '.join(columns) or 'none'}; expected one; {OTHERWISE}")
    need(not args.gold_column or args.gold_column == columns[0], f"got --gold_column; expected {columns[0]}")
    batch = "completions" in named_arguments
    need(
        batch or "completion" in named_arguments,
        f"{got}; expected a parameter completions, or completion for one sample",
    )
    kept = extract(source, [name])
    body = ast.parse(kept)
    taken = [line for line in body.body if getattr(line, "name", "") == "compute_score"]
    need(not taken, f"{got}, which uses a compute_score of its own; expected another name for it; {OTHERWISE}")
    if ast.get_docstring(body, clean=False) is not None:  # that of the whole file
        kept = "\n".join(kept.splitlines()[body.body[0].end_lineno :]) + "\n"
    end = named(INLINE_BATCH if batch else INLINE_ONE, [], reward_name=name, gold_column=columns[0])
    end = joined([(node, lines) for node, lines in statements_of(end) if bound_names(node) == {"compute_score"}])
    for argument in {"prompts", "prompt"} - {*named_arguments}:
        end = re.sub(rf"\b{argument}=(None|\[None\]), ", "", end)
    if args.completions == "text":
        end = end.replace('[{"role": "assistant", "content": solution_str}]', "solution_str")
    output = Path(args.output or "my_reward.py").name
    head = f'"""{name} of {Path(file).name}, copied here, for verl.\n\n{VERL_NOTE.format(file=output)}\n'
    head += f'    ground_truth is {columns[0]}\n"""\n\n'
    kept = kept.strip("\n") + "\n"
    return head + "\n" * kept.startswith(("def ", "@", "class ")) + kept + "\n\n" + end


def outcome(function, *args, **kwargs) -> float | str:
    """The score of one completion, 0 for None, or what is raised."""
    try:
        value = function(*args, **kwargs)
        return float((value[0] if isinstance(value, list | tuple) else value) or 0.0)
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def imported_alone(args, text: str):
    """The text of a port as a module; UserError where it needs a file that lies beside the original."""
    with tempfile.TemporaryDirectory() as folder:
        alone = Path(folder, "alone.py")
        alone.write_text(text, encoding="utf-8")
        done = subprocess.run([sys.executable, "-I", str(alone)], capture_output=True, text=True, cwd=folder)
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        got = f"got --inline with --from {args.source!r}, which does not import alone"
        need(done.returncode == 0, f"{got}: {last}; {OTHERWISE}")
        return import_file("port", str(alone), str(alone))


def golds_of(args, column: str) -> list[str]:
    """The gold answers to compare with: those of the first 200 rows of --data, else one."""
    rows = read_rows(args.data)[:200] if args.data else [{column: "42"}]
    for number, row in enumerate(rows, start=1):
        got = f"got row {number} of {args.data} with {column} {row.get(column)!r}"
        need(isinstance(row.get(column), str), f"{got}; expected a text, as verl gives it; {OTHERWISE}")
    return list(dict.fromkeys(row[column] for row in rows))


def compared(args, text: str) -> dict:
    """How many scores of original and port are the same, and which scores were seen.

    Raises:
        UserError: one differs, or the port does not import alone.
    """
    file, _, name = args.source.partition("*")[0].rpartition(":")
    port = imported_alone(args, text)
    original = getattr(port, name)
    if not imports_trainer(Path(file).read_text(encoding="utf-8")):
        check_import(args.source, file)
        original, _ = find_reward(f"{file}:{name}")
    own, parameters = ARGUMENTS | EXTRAS, inspect.signature(original).parameters
    (column,) = [n for n, p in parameters.items() if n not in own and p.kind in NAMED]
    scores = []
    for gold in golds_of(args, column):
        for said in trial_texts(gold):
            given = {column: gold, "completion": said, "prompt": None}
            if not is_per_sample(original):
                whole = [{"role": "assistant", "content": said}] if args.completions == "messages" else said
                given = {column: [gold], "completions": [whole], "prompts": [None]}
            taken = {n: value for n, value in given.items() if n in parameters}
            scores.append((outcome(original, **taken), outcome(port.compute_score, *("data", said, gold, {}))))
    wrong = [f"{a}, inline {b}" for a, b in scores if a != b]
    need(not wrong, f"got --inline with --from {args.source!r}: it scores {' '.join(wrong[:1])}; {OTHERWISE}")
    seen = sorted({b for _, b in scores}, key=str)
    return {"completions": len(scores), "same_score": len(scores) - len(wrong), "scores": seen}


# ------------------------------------------------------------------------------------------------ tried


def tested(path: Path) -> str:
    """What the self-test of a written file says; UserError where a score is wrong."""
    done = subprocess.run([sys.executable, str(path), "--test"], capture_output=True, text=True)
    need(done.returncode == 0, f"got a self-test that fails: {(done.stdout + done.stderr).strip()[-600:]}")
    return done.stdout.strip()


def checks_of(args) -> list[str]:
    """The flags of reward_preflight.py that fit a task: its profile, and what has full marks."""
    if args.task == "llm_judge":
        return ["--profile", "judge"]
    if args.task == "format":
        return ["--profile", "format", "--gold_template", "\n".join(f"<{tag}>text</{tag}>" for tag in args.tags)]
    if args.task == "json_schema":
        return ["--profile", "answer" if args.exact else "format", "--gold_template", args.gold_template]
    return []


def preflighted(args) -> dict:
    """What reward_preflight.py says of the written reward on the rows of --data, in short."""
    script = HELPERS / "reward_preflight.py"
    need(script.is_file(), f"got --data, and no {script}; expected it beside this script; try without --data")
    command = [sys.executable, str(script), "--reward", f"{args.output}:{args.name}", "--data", args.data, "--json"]
    command += ["--prompt_column", args.prompt_column or "prompt", *checks_of(args)]
    command += ["--answer_column", args.gold_column] if args.gold_column and args.task != "code" else []
    done = subprocess.run(command, capture_output=True, text=True)
    wrong = done.stderr.strip().removeprefix("error: ").replace("--answer_column", "--gold_column")
    need(done.returncode in (0, 1) and done.stdout, f"{wrong}; nothing is written")
    found = json.loads(done.stdout)
    paid_nothing = [probe["name"] for probe in found["probes"] if probe["status"] == "pass"]
    said = {"ready": found["ready"], "rows": found["rows"], "gold_with_full_marks": found["gold"]["full_marks"]}
    said |= {"completions": sum(f["completions"] for f in found["functions"]), "not_paid": paid_nothing}
    return said | {"findings": found["findings"]}
