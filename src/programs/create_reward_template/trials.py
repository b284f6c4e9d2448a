"""Trials of a written file: its self-test, its rows, the original of a port."""

import json
import math
import subprocess
import sys
import tempfile
from pathlib import Path

from parts.data.rows import placed_rows
from parts.foundation.messages import need, say
from parts.rewards.reward_forms import as_reward, find_reward, import_file, is_per_sample, spec_parts
from parts.rewards.rewards import CallFailed, CallLimits, answers, scored_batch
from parts.rewards.user_code import TRL_EXTRAS, reward_arguments, trial_texts
from programs.create_reward_template.ports import OTHERWISE, source_text, trains

SCRIPTS = Path(__file__).resolve().parent  # where math_grader.py, sandbox.py and reward_preflight.py are
DOUBLE = "```python\ndef double(x):\n    return 2 * x\n```"
TESTS_OF_DOUBLE = ["assert double(4) == 8", "assert double(0) == 0"]
ONCE, IDS = CallLimits(retries=0), [5, 6, 7]  # tokens, which the reward manager of verl_train.py gives


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
    script = SCRIPTS / "reward_preflight.py"
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


# ------------------------------------------------------------------------------------------------ a port


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
        score = outcome(lambda function=function: scored_batch(as_reward(function), given, ONCE))
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
        said = f"{got}, which {raised[0]}, on every completion tried; try --data FILE with rows that it takes"
        need(not args.inline, said)
        say(f"warning: {said}, as its port was compared with nothing")
    for a, b in scores:
        same = a == b or (isinstance(a, str) and isinstance(b, str))
        remedy = OTHERWISE if args.inline else "report it"
        need(same, f"{got}: it scores {a}, the port {b}; expected the same; {remedy}")
    if args.target == "verl" and not all(is_per_sample(function) for function, _ in args.pairs):
        first = [x for x, (a, _) in zip(cases, scores, strict=True) if not isinstance(a, str)][:10]
        refuse_batch(args, got, [*first[:4], *first[4:][-3:]])
    seen = sorted({b for _, b in scores}, key=str)
    return {"completions": len(scores), "same_score": len(scores) - len(raised), "scores": seen}
