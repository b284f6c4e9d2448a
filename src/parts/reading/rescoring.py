"""--rescore: the reward on logged samples, on gold, on nonsense, twice, alone and in another order, in the sandbox."""

import ast
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
from parts.reading.run_folder import data_rows, file_near
from parts.reading.sample_texts import MARK_FORMS

TRIAL = file_text("files/reward_trial.py")
SANDBOX = BUNDLE / "scripts" / "sandbox.py"
TRIED = 12  # samples of a trial; the sandbox shows some 200 characters of what is printed
NONSENSE = "zxqv nothing of this kind"
NOT_COLUMNS = (
    *("step", "kind", "prompt", "completion", "score", "rewards", "finished", "advantage", "columns", "messages"),
    *("token_lengths", "logprobs", "advantages", "ended_by", "turn_rewards", "pieces"),
)


def reward_file(spec: str, run: LoggedRun, folder: Path) -> tuple[Path, str]:
    """File and function of the reward: as given, or the first one of the run's settings."""
    named = run.settings.get("reward") or []
    spec = spec or next(iter([named] if isinstance(named, str) else named), "")
    file, _, name = spec.partition("*")[0].rpartition(":")
    path = file_near(file, folder)
    need(path and name, f"got --rescore with the reward {spec!r}; expected its file; try --reward FILE.py:function")
    names = {node.name for node in ast.parse(path.read_text(encoding="utf-8")).body if hasattr(node, "name")}
    known = ", ".join(sorted(names)) or "none"
    need(name in names, f"got --reward {spec}; expected a function of {path}: {known}")
    return path, name


def with_text(row: dict, text: str) -> dict:
    """A row whose completion is another text."""
    chat = isinstance(row["prompt"], list)
    return row | {"text": text, "completion": [{"role": "assistant", "content": text}] if chat else text}


def trial_rows(run: LoggedRun, columns: dict[str, dict]) -> list[dict]:
    """Logged samples of distinct prompts and texts, with their columns, as the trial wants them."""
    samples = [sample for sample in run.samples if isinstance(sample.get("completion"), (str, list))]
    rows = {}
    for text, sample in zip(run.texts, samples, strict=True):
        logged = {k: v for k, v in sample.items() if k not in NOT_COLUMNS} | (sample.get("columns") or {})
        row = {"prompt": sample.get("prompt"), "gold": text.gold, "columns": columns.get(text.prompt, {}) | logged}
        rows.setdefault((text.prompt, text.completion), with_text(row, text.completion))
    return list(rows.values())[:TRIED]


def sandbox_scores(code: str, trials: list[dict]) -> list[list[float | None]]:
    """The scores that each trial prints, run by scripts/sandbox.py."""
    need(SANDBOX.is_file(), f"got --rescore without {SANDBOX}, which confines the reward; expected it there")
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl", encoding="utf-8") as file:
        tests = [{"input": json.dumps(trial), "output": "?"} for trial in trials]
        file.write(json.dumps({"completion": code, "tests": tests}) + "\n")
        file.flush()
        command = [sys.executable, str(SANDBOX), "--data", file.name, "--timeout_s", "20", "--memory_mb", "2048"]
        done = subprocess.run(command, capture_output=True, text=True)
    try:
        results = json.loads(done.stdout)["results"]
    except (ValueError, KeyError):
        raise UserError(f"got --rescore, and the sandbox did not run: {done.stderr.strip()[-300:]}") from None
    scores = []
    for result in results:
        match = re.search(r"=([-\d.e+ naif]*)=", result["detail"])
        need(match, f"got --rescore, and the reward failed in the sandbox: {result['detail'][-300:]}")
        scores.append([None if word == "-" else float(word) for word in match[1].split()])
    return scores


def rescore(run: LoggedRun, spec: str, data: str) -> None:
    """Put what the trials say into `run.trials`; `spec` is FILE.py:function, or "" for that of the run's settings.

    Raises UserError without a reward or samples, or where the reward fails.
    """
    folder = Path(run.path).parent
    path, name = reward_file(spec, run, folder)
    rows = trial_rows(run, dict(data_rows(data or str(run.settings.get("data") or ""), folder)))
    need(rows, "got --rescore and no samples; expected samples.jsonl beside the log, or --samples FILE")
    code = path.read_text(encoding="utf-8").partition('if __name__ == "__main__"')[0] + TRIAL
    golds = [row for row in rows if row["gold"] is not None]
    trials = {how: {"how": how, "rows": rows} for how in ("logged", "twice", "alone")}
    trials["reversed"] = {"how": "logged", "rows": rows[::-1]}
    trials["nonsense"] = {"how": "logged", "rows": [with_text(row, NONSENSE) for row in rows]}
    for i, form in enumerate(MARK_FORMS if golds else ()):
        trials[f"gold {i}"] = {"how": "logged", "rows": [with_text(row, form.format(row["gold"])) for row in golds]}
    scores = sandbox_scores(code, [trial | {"function": name} for trial in trials.values()])
    run.reward_source = run.reward_source or path.read_text(encoding="utf-8")
    run.trials = conclusions(dict(zip(trials, scores, strict=True)))


def conclusions(scores: dict[str, list]) -> dict[str, str]:
    """{cause: what was seen}."""
    logged = scores["logged"]
    if logged != scores["twice"]:
        return {"noisy_reward": "the same samples scored differently when scored twice"}
    if logged != scores["alone"]:
        return {"gold_mismatch": "samples score differently alone and in a batch"}
    if logged != scores["reversed"][::-1]:
        return {"gold_mismatch": "samples score differently in another order of the batch"}
    forms = [values for how, values in scores.items() if how.startswith("gold")]
    paid = [[x for x in values if x is not None] for values in zip(*forms, strict=True)]
    gold = [max(values) for values in paid if values]  # in the form that pays most
    nonsense = [x for x in scores["nonsense"] if x is not None]
    everything = {*gold, *nonsense, *(x for x in logged if x is not None)}
    if not gold or not nonsense:
        return {}
    if len(everything) == 1:
        return {"constant_reward": f"gold answers, nonsense and logged samples all score {gold[0]:.4g}"}
    if max(gold) < min(nonsense):
        return {"inverted_reward": f"gold answers score at most {max(gold):.4g}, nonsense {min(nonsense):.4g}"}
    if abs(sum(gold) / len(gold) - sum(nonsense) / len(nonsense)) < 1e-9:
        return {"reward_ignores_answer": f"gold answers and nonsense both score {gold[0]:.4g} in the mean"}
    return {}
