"""--rescore: run the reward in the sandbox on gold, nonsense and logged samples, these also alone and reversed."""

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from parts.foundation.bundle import BUNDLE
from parts.foundation.file_text import file_text
from parts.foundation.messages import UserError, need
from parts.reading.logged_run import LoggedRun
from parts.reading.run_folder import file_near, named_rewards

TRIAL = file_text("files/reward_trial.py")
SANDBOX = BUNDLE / "scripts" / "sandbox.py"
TRIED = 12  # samples of a trial, as the sandbox shows only about 200 printed characters
NONSENSE = "zxqv nothing of this kind"
GOLD_FORMS = ("{}", "#### {}", "\\boxed{{{}}}", "<answer>{}</answer>", "The answer is {}.")


def with_text(row: dict, text: str) -> dict:
    """The row with another completion."""
    chat = isinstance(row["prompt"], list)
    return row | {"text": text, "completion": [{"role": "assistant", "content": text}] if chat else text}


def trial_rows(run: LoggedRun) -> list[dict]:
    """Up to TRIED distinct logged samples, with their columns and those of their prompt in the data."""
    samples, rows = [sample for sample in run.samples if isinstance(sample.get("completion"), (str, list))], {}
    for text, sample in zip(run.texts, samples, strict=True):
        of_data = run.rows.get(text.prompt, {})
        known = of_data | sample | (sample.get("columns") or {})
        row = {"prompt": of_data.get("prompt", sample.get("prompt")), "gold": text.gold, "columns": known}
        row["own"] = run.guessed.get("completion", "completion")  # the name of the reward's argument
        rows.setdefault((text.prompt, text.completion), with_text(row, text.completion))
    return list(rows.values())[:TRIED]


def sandbox_scores(code: str, trials: list[dict]) -> list[list[float | None]]:
    """The scores that each trial prints when scripts/sandbox.py runs the code on it."""
    need(SANDBOX.is_file(), f"got --rescore without {SANDBOX}, which confines the reward; expected it there")
    with tempfile.TemporaryDirectory() as folder:
        program, tests = Path(folder, "program.py"), Path(folder, "tests.json")
        program.write_text(code, encoding="utf-8")
        cases = [{"input": json.dumps(trial, default=str), "output": "?"} for trial in trials]
        tests.write_text(json.dumps(cases), encoding="utf-8")
        command = [sys.executable, SANDBOX, "--code", program, "--tests", tests, "--timeout_s", "20"]
        done = subprocess.run([*map(str, command), "--memory_mb", "2048"], capture_output=True, text=True)
    try:
        details = [result["detail"] for result in json.loads(done.stdout)["results"]]
    except (ValueError, KeyError):
        raise UserError(f"got --rescore, but the sandbox did not run: {done.stderr.strip()[-300:]}") from None
    matches = [re.search(r"=([-\d.e+ naif]*)=", detail) for detail in details]
    for match, detail in zip(matches, details, strict=True):
        need(match, f"got --rescore, but the reward failed in the sandbox: {detail[-300:]}")
    return [[None if word in ("-", "nan") else float(word) for word in match[1].split()] for match in matches]


def reward_code(run: LoggedRun, spec: str) -> tuple[str, str]:
    """(code, function) of the reward `spec` (FILE.py:function), or of the one that the settings or a script name."""
    file, name = next(iter(named_rewards(spec, run)), ("", ""))
    path = file_near(file, Path(run.path).parent)
    if not path and not spec and run.reward_source:
        return run.reward_source, run.reward_name
    need(path, f"got --rescore with {file or 'no reward'}; expected the reward's file; try --reward FILE.py:function")
    text = path.read_text(encoding="utf-8")
    known = re.findall(r"(?m)^(?:def|class) (\w+)", text)
    need(name in known, f"got --reward {file}:{name}; expected a function of {path}: {', '.join(known) or 'none'}")
    return re.split(r"(?m)^if __name__ *== *['\"]__main__", text)[0], name


def rescore(run: LoggedRun, spec: str) -> None:
    """Score trials by the reward `spec` (FILE.py:function; "" takes the run's), and put conclusions into `run.trials`.

    Raises UserError if there is no reward or no sample, or if the reward fails.
    """
    code, name = reward_code(run, spec)
    rows = trial_rows(run)
    need(rows, "got --rescore without samples; expected samples.jsonl beside the log, or --samples FILE")
    golds = [row for row in rows if row["gold"] is not None]
    trials = {"logged": [rows], "twice": [rows, rows], "alone": [[row] for row in rows], "reversed": [rows[::-1]]}
    trials["nonsense"] = [[with_text(row, NONSENSE) for row in rows]]
    trials |= {form: [[with_text(row, form.format(row["gold"])) for row in golds]] for form in GOLD_FORMS if golds}
    scores = sandbox_scores(f"{code}\n\n{TRIAL}", [{"function": name, "calls": calls} for calls in trials.values()])
    run.trials = conclusions(dict(zip(trials, scores, strict=True)))


def conclusions(scores: dict[str, list]) -> dict[str, str]:
    """{cause: evidence} from the scores of each trial; {} if nothing is wrong."""
    logged = scores["logged"]
    if logged * 2 != scores["twice"]:
        return {"noisy_reward": "the same samples scored differently when scored twice"}
    if logged != scores["alone"] or logged != scores["reversed"][::-1]:
        return {"gold_mismatch": "samples score differently alone, in a batch or in another order of it"}
    forms = zip(*(scores[form] for form in GOLD_FORMS if form in scores), strict=True)
    paid = [[x for x in values if x is not None] for values in forms]
    gold, least = ([end(values) for values in paid if values] for end in (max, min))  # best and worst form of each
    nonsense = [x for x in scores["nonsense"] if x is not None]
    if not gold or not nonsense:
        return {}
    if len({*gold, *nonsense, *logged} - {None}) == 1:
        return {"constant_reward": f"gold answers, nonsense and logged samples all score {gold[0]:.4g}"}
    if max(gold) <= min(nonsense) and max(least) < min(nonsense):  # an unread form scores like nonsense
        return {"inverted_reward": f"gold answers score as low as {min(least):.4g}, nonsense {min(nonsense):.4g}"}
    if abs(sum(gold) / len(gold) - sum(nonsense) / len(nonsense)) < 1e-9:
        return {"reward_ignores_answer": f"gold answers and nonsense both score {gold[0]:.4g} in the mean"}
    return {}
