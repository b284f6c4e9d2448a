"""Ports between TRL and verl, which import the reward or with --inline hold it, and how they compare with it."""

import ast
import inspect
import json
import math
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from parts.data.rows import placed_rows
from parts.foundation.file_text import file_text
from parts.foundation.messages import UserError, need, say
from parts.rewards.extracts import extract, imports_trainer, read_names
from parts.rewards.reward_forms import (
    find_reward,
    import_file,
    load_rewards,
    spec_parts,
)
from parts.rewards.rewards import CallFailed, CallLimits, answers, scored_batch
from parts.rewards.user_code import TRL_EXTRAS, is_per_sample, reward_arguments, trial_texts
from programs.create_reward_template.assembly import (
    CONTRACT,
    LOADING,
    VERL_NOTE,
    assembled,
    contracts_of,
    head_of,
    named,
)

PORT_TO_VERL = file_text("files/port_to_verl.py")
PORT_TO_TRL = file_text("files/port_to_trl.py")
COMPUTE_SCORE = "def compute_score(data_source, solution_str, ground_truth, extra_info=None, **kwargs) -> float:"
OWN = {"prompt", "prompts", "completion", "completions"}
EXTRAS = {"completion_ids", "environments", *TRL_EXTRAS}
GOLDS = ("answer", "tests", "test_cases", "solution", "ground_truth", "label")
OTHERWISE = "try it without --inline"
DOUBLE = "```python\ndef double(x):\n    return 2 * x\n```"
TESTS_OF_DOUBLE = ["assert double(4) == 8", "assert double(0) == 0"]
ONCE, IDS = CallLimits(retries=0), [5, 6, 7]  # tokens, which the reward manager of verl_train.py gives


def source_text(args) -> str:
    file, got = spec_parts(args.source)[0], f"got --from {args.source!r}"
    need(file and Path(file).is_file(), f"{got}: no file {file!r}; expected FILE.py:function[*weight]")
    need(Path(file).resolve() != args.output.resolve(), f"{got}, the file of --output; expected another")
    text = Path(file).read_text(encoding="utf-8")
    try:
        ast.parse(text)
    except (SyntaxError, ValueError) as error:
        raise UserError(f"{got}: {error}; expected Python") from None
    return text


def trains(text: str) -> bool:
    """Whether a port must not import a file: it imports a trainer's library, or calls `x.train()` at its top level."""
    body = ast.parse(text).body
    calls = [line.value.func for line in body if isinstance(line, ast.Expr) and isinstance(line.value, ast.Call)]
    return bool(imports_trainer(text)) or any(isinstance(c, ast.Attribute) and c.attr == "train" for c in calls)


def without_trainer(args) -> str:
    """The file of --from; of one that trains, a file beside --output with what the reward needs of it."""
    text, (file, name, weight) = source_text(args), spec_parts(args.source)
    if not trains(text):
        return file
    extracted = args.output.with_name(f"{Path(file).stem}_rewards.py")
    rewards = extract(text, [name, weight])
    same = extracted.is_file() and extracted.read_text(encoding="utf-8") == rewards
    got = f"got {extracted}, which exists and would hold the rewards of {file}"
    need(args.force or same or not extracted.exists(), f"{got}; expected a new name; try --force")
    extracted.write_text(rewards, encoding="utf-8")
    say(f"note: {file} imports a trainer, so {extracted} has its rewards alone; keep it beside {args.output}")
    return str(extracted)


def ported(args) -> str:
    """The text of a port of --from; fixes args.target, args.gold_column and args.source."""
    if args.inline:
        return inlined(args)
    args.source = f"{without_trainer(args)}:{args.source.rpartition(':')[2]}"
    file, name, _ = spec_parts(args.source)
    rewards, _ = find_reward(args.source)
    verl_form = callable(rewards) and {"solution_str", "ground_truth"} <= {*inspect.signature(rewards).parameters}
    args.target = args.target or ("trl" if verl_form else "verl")
    kind = "a reward of TRL's contract" if callable(rewards) else f"a list of {len(rewards)} rewards"
    got = f"got --for {args.target} with --from {args.source!r}"
    as_it_is = "expected --for verl; TRL takes it as it is, with reward_funcs=[...] and reward_weights=[...]"
    need(not verl_form or args.target == "trl", f"{got}, a compute_score; expected --for trl")
    for_trl = verl_form or (callable(rewards) and is_per_sample(rewards))
    need(for_trl or args.target == "verl", f"{got}, {kind}; {as_it_is}")
    need(args.target != "both", f"{got}; expected trl or verl; try one command for each")
    args.pairs = [(rewards, 1.0)] if verl_form else load_rewards(args.source)
    weight = args.pairs[0][1]
    need(weight == 1.0 or args.target == "verl", f"{got}; expected no weight; try reward_weights=[{weight:g}] in TRL")
    required, names = columns_of_port(args, verl_form)
    usual = [name for name in GOLDS if name in names]
    golds = [*(n for n in usual if n in required), *required, *usual, "answer"]
    unsaid = not (args.gold_column or verl_form or usual) and len(required) > 1
    need(not unsaid, f"{got}, which reads {' and '.join(required)}; expected --gold_column, one of them, for verl")
    args.gold_column = args.gold_column or golds[0]
    required = [args.gold_column] if verl_form else required
    path = os.path.relpath(Path(file).resolve(), args.output.resolve().parent)
    constants = {"SOURCE": f"load_file(HERE / {json.dumps(path)})  # keep it there"}
    constants |= {"PARTS": parts_constant(args, rewards), "CHAT": f"{args.completions == 'messages'}  # or text"}
    text = PORT_TO_TRL if args.target == "trl" else PORT_TO_VERL
    if not verl_form:  # of one sample
        text = text.replace("given_by_verl(text, row)", 'row | {"completion": text}')
    calls = [call for f, _ in args.pairs for call in (f, getattr(f, "__call__", None))]  # noqa: B004
    if any(map(inspect.iscoroutinefunction, calls)):
        text = re.sub("def (compute_score|reward_name)", r"async def \1", text)
        text = text.replace("number(function(**arguments))", "number(await waited(function(**arguments)))")
        text = "import asyncio\n" + text.replace("result in results]", "result in await asyncio.gather(*results)]")
    words = {"gold_column": args.gold_column, "reward_name": args.name, "source_name": name}
    texts = [named(part, required, **words) for part in (CONTRACT, LOADING, text)]
    about = f"{name} of {Path(file).name}, by {'TRL' if args.target == 'trl' else 'verl'}'s contract."
    others = ", ".join(column for column in [*required, "prompt"] if column != args.gold_column)
    return assembled(head_of(args, about, args.gold_column, others), texts, contracts_of(args)[0], constants)


def columns_of_port(args, verl_form: bool) -> tuple[list[str], set[str]]:
    """(columns that the functions require, all that they name); UserError for what the other contract cannot give."""
    parameters = [p for function, _ in args.pairs for p in inspect.signature(function).parameters.values()]
    fixed = [p for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    demanded = dict.fromkeys(p.name for p in fixed if p.default is p.empty)
    names, got = {p.name for p in parameters}, f"got --from {args.source!r}"
    if verl_form:
        unknown = demanded.keys() - {"data_source", "solution_str", "ground_truth", "extra_info"}
        need(not unknown, f"{got}, which requires {', '.join(unknown)}; verl gives none by itself; try a default")
        return [], set()
    form = "expected (prompts, completions, **columns), (prompt, completion, **columns) or verl's compute_score"
    need({"completion", "completions"} & names, f"{got} with the arguments {', '.join(names)}; {form}")
    if args.target == "verl":
        whole = any(getattr(function, "needs_group", False) for function, _ in args.pairs)
        need(
            not whole,
            f"{got}, which compares the completions of a prompt; verl scores each by itself; try ppo_train.py",
        )
        for name in {"completion_ids", "environments"} & names:
            need(name not in demanded, f"{got}, which requires {name}; verl gives none; try a length in words")
            say(f"note: {name} is not given in verl: {args.name} uses its default")
    return [name for name in demanded if name not in OWN | EXTRAS], names


def parts_constant(args, rewards) -> str:
    """The constant PARTS: each function by its place in the file, and its weight."""
    lines, name = {}, spec_parts(args.source)[1]
    for place, (function, weight) in enumerate(args.pairs):
        key = getattr(function, "__name__", type(function).__name__)
        while key in lines:
            key += "_2"
        where = f"SOURCE.{name}[{place}]" if isinstance(rewards, list) else f"SOURCE.{name}"
        lines[key] = f'    "{key}": ({where}, {float(weight)}),'
    return "{  # name: (function, weight)\n" + "\n".join(lines.values()) + "\n}"


# ------------------------------------------------------------------------------------------------ inline


def inlined(args) -> str:
    """The text of a port of --from to verl that holds the function; fixes args.target and args.gold_column."""
    text, (file, name, weight) = source_text(args), spec_parts(args.source)
    got = f"got --inline with --from {args.source!r}"
    wanted = f"{got}; expected for verl a plain function of the completions and one column, no weight; {OTHERWISE}"
    functions = [line for line in ast.parse(text).body if isinstance(line, ast.FunctionDef) and line.name == name]
    need(functions and not weight and args.target in (None, "verl"), wanted)
    given, read = functions[0].args, read_names(*functions[0].body)
    names = [a.arg for a in (*given.args, *given.kwonlyargs)]
    hidden = {a.arg for a in (given.vararg, given.kwarg) if a} | {"prompt", "prompts"} | EXTRAS
    columns = [n for n in names if n not in OWN | EXTRAS]
    need(len(columns) == 1 and {"completion", "completions"} & {*names} and not read & hidden, wanted)
    args.target, args.gold_column, kept = "verl", columns[0], extract(text, [name])
    body = ast.parse(kept)
    if ast.get_docstring(body, clean=False) is not None:  # that of the whole file
        kept = "\n".join(kept.splitlines()[body.body[0].end_lineno :]) + "\n"
    kept = kept.strip("\n") + "\n"
    head = f'"""{name} of {Path(file).name}, copied here, for verl.\n\n{VERL_NOTE.format(file=args.output.name)}\n'
    head += f'    ground_truth is {columns[0]}\n"""\n\n'
    batch = "completions" in names
    message = '{"role": "assistant", "content": solution_str}'
    completions = f"[[{message}]]" if args.completions == "messages" else "[solution_str]"
    values = {"prompts": "[None]", "completions": "completions", columns[0]: "[ground_truth]"}
    if not batch:
        values = {"prompt": "None", "completion": "solution_str", columns[0]: "ground_truth"}
    call = ", ".join(f"{n}={value}" for n, value in values.items() if n in names)
    end = f'    """{name} for one completion; 0 for None, which verl has not."""\n'
    end += f"    completions = {completions}\n" * batch
    end += f"    return float({name}({call}){'[0]' * batch} or 0.0)\n"
    gap = "\n" * kept.startswith(("def ", "@", "class "))
    return f"{head}{gap}{kept}\n\n{COMPUTE_SCORE}\n{end}"


# ------------------------------------------------------------------------------------------------ comparison


def trial_cases(args) -> list[tuple[str, dict]]:
    """(completion, row) pairs, made from the gold answers of --data, or from one."""
    gold = args.gold_column
    if not args.data and gold in ("tests", "test_cases", "test", "test_list"):
        return [(text, {gold: TESTS_OF_DOUBLE}) for text in (DOUBLE, DOUBLE.replace("2 * x", "x + 4"), "")]
    cases = {}
    for place, row in placed_rows(args.data)[:200] if args.data else [("", {gold: "42"})]:
        got, fits = f"{place}: got {gold} {row.get(gold)!r}", isinstance(row.get(gold), str)
        need(fits or not args.inline, f"{got}; expected a text, as verl gives it; {OTHERWISE}")
        row |= {gold: row.get(gold)}
        truth = row[gold]["ground_truth"] if gold == "reward_model" else row[gold]
        right = truth[0] if isinstance(truth, list) and truth else truth
        if isinstance(row.get("prompt"), str) and args.completions == "messages":
            row |= {"prompt": [{"role": "user", "content": row["prompt"]}]}
        cases |= {json.dumps([row[gold], said], default=str): (said, row) for said in trial_texts(str(right))}
    return [*cases.values()]


def outcome(call) -> float | str:
    """The score of one completion, 0 for None; `raised …` or `returned …` where there is none."""
    try:
        (value,) = answers([call], ONCE)
    except CallFailed as failed:
        error = failed.__cause__
        error = error.__cause__ if isinstance(error, CallFailed) else error
        return f"raised {type(error).__name__}: {error}"
    if isinstance(value, dict):
        value = "raised" if value.get("raised") else value["score"]
    value = value.tolist() if hasattr(value, "tolist") else value
    value = value[-1] if isinstance(value, list | tuple) and value else value
    value = value.item() if hasattr(value, "item") else value  # of a list of NumPy's
    is_score = value is None or (isinstance(value, int | float) and math.isfinite(value))
    return float(value or 0.0) if is_score else value if isinstance(value, str) else f"returned {value!r}"


def original_score(args, text: str, row: dict, beside: list | tuple = ()) -> float | str:
    """What the original says of a completion, called as the trainers call it, after `beside` in its batch."""
    unsaid, rows = "" if args.completions == "text" else None, [*(other for _, other in beside), row]
    columns = [{name: value for name, value in x.items() if name != "prompt"} for x in rows]
    rows = [{"prompt": x.get("prompt", unsaid), "columns": y} for x, y in zip(rows, columns, strict=True)]
    given = reward_arguments(rows, [*(other for other, _ in beside), text], [IDS for _ in rows]) | TRL_EXTRAS
    scores = []
    for function, weight in args.pairs:
        score = outcome(lambda function=function: scored_batch(function, given, ONCE))
        scores.append(score if isinstance(score, str) else weight * score)
    return next((score for score in scores if isinstance(score, str)), None) or sum(scores)


def port_score(args, module, text: str, row: dict) -> float | str:
    columns = {name: value for name, value in row.items() if name != args.gold_column}
    gold, extra = row[args.gold_column], {}
    if args.target == "trl":
        given = {name: [value] for name, value in row.items() if name != "prompt"}
        return outcome(lambda: getattr(module, args.name)([row.get("prompt")], [text], **given))
    if not args.inline:
        extra = columns | {"completion_ids": IDS, "ground_truth_field": f"{args.gold_column}:json"}
        gold = json.dumps(gold)
    return outcome(lambda: module.compute_score("data", text, gold, extra))


def refuse_batch(args, got: str, cases: list[tuple[str, dict]]) -> None:
    """Raise UserError if a score depends on its batch; 1e-3 is noise, and one that changes anyway says nothing."""
    for case in cases:
        alone, beside, again = (original_score(args, *case, others) for others in ((), cases, ()))
        known = isinstance(beside, float) and alone == again
        same = not known or math.isclose(alone, beside, rel_tol=1e-3, abs_tol=1e-5)
        need(same, f"{got}: it scores {alone} alone, {beside} beside others; verl scores each alone; try ppo_train.py")


def compared(args) -> dict:
    """How many scores of original and port are the same, and which were seen; to TRL the port alone is tried.

    Raises:
        UserError: a score differs, or an inlined port does not import alone or cannot be compared.
    """
    got = f"got --from {args.source!r}"
    if args.inline:
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, "-I", str(args.output.resolve())]
            done = subprocess.run(command, capture_output=True, text=True, cwd=folder)
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        need(done.returncode == 0, f"{got} and --inline, which does not import alone: {last}; {OTHERWISE}")
    module = import_file("port", str(args.output), str(args.output))
    if args.inline:  # a file that trains cannot be imported
        alone = trains(source_text(args))
        args.pairs = [(getattr(module, spec_parts(args.source)[1]) if alone else find_reward(args.source)[0], 1.0)]
    scores, cases = [], trial_cases(args)
    for text, row in cases:
        ported = port_score(args, module, text, row)
        scores.append((original_score(args, text, row) if args.target == "verl" else ported, ported))
    raised = [a for a, _ in scores if isinstance(a, str)]
    if len(raised) == len(scores):
        problem = f"{got}, which {raised[0]}, on every completion tried; try --data FILE with rows that it takes"
        need(not args.inline, problem)
        say(f"warning: {problem}, as its port was compared with nothing")
    for a, b in scores:
        same = a == b or (isinstance(a, str) and isinstance(b, str))
        remedy = OTHERWISE if args.inline else "report it"
        need(same, f"{got}: it scores {a}, the port {b}; expected the same; {remedy}")
    if args.target == "verl" and not all(is_per_sample(function) for function, _ in args.pairs):
        first = [x for x, (a, _) in zip(cases, scores, strict=True) if not isinstance(a, str)][:10]
        refuse_batch(args, got, [*first[:4], *first[4:][-3:]])
    seen = sorted({b for _, b in scores}, key=str)
    return {"completions": len(scores), "same_score": len(scores) - len(raised), "scores": seen}
