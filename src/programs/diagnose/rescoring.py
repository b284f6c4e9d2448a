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
from parts.reading.run_folder import data_rows
from parts.reading.sample_texts import MARK_FORMS

TRIAL = file_text("files/reward_trial.py")
TRIED = 12  # samples of a trial; the sandbox shows some 200 characters of what is printed
NOT_COLUMNS = (
    *("step", "kind", "prompt", "completion", "score", "rewards", "finished", "advantage", "columns", "messages"),
    *("token_lengths", "logprobs", "advantages", "ended_by", "turn_rewards", "pieces"),
)
NONSENSE = "zxqv nothing of this kind"


def reward_file(spec: str, run: LoggedRun, folder: Path) -> tuple[Path, str]:
    """File and function of the reward: as given, or the first one of the run's settings."""
    named = run.settings.get("reward") or []
    spec = spec or next(iter([named] if isinstance(named, str) else named), "")
    file, _, name = spec.partition("*")[0].rpartition(":")
    path = next((path for path in (Path(file), folder / Path(file).name) if file and path.is_file()), None)
    got = f"got --rescore with the reward {spec!r}"
    need(path and name, f"{got}; expected its file; try --reward FILE.py:function")
    names = [node.name for node in ast.parse(path.read_text(encoding="utf-8")).body if hasattr(node, "name")]
    need(name in names, f"{got}; expected a function of {path}: {', '.join(sorted(names)) or 'none'}")
    return path, name


def trial_rows(run: LoggedRun, columns: dict[str, dict]) -> list[dict]:
    """Logged samples of distinct prompts and texts, with their columns, as the trial wants them."""
    rows, samples = {}, [s for s in run.samples if isinstance(s.get("completion"), (str, list))]
    for text, sample in zip(run.texts, samples, strict=True):
        own = {k: v for k, v in sample.items() if k not in NOT_COLUMNS} | (sample.get("columns") or {})
        row = {"prompt": sample.get("prompt"), "gold": text.gold, "columns": columns.get(text.prompt, {}) | own}
        rows.setdefault((text.prompt, text.completion), with_text(row, text.completion))
    return list(rows.values())[:TRIED]


def with_text(row: dict, text: str) -> dict:
    """A row whose completion is a text, as a message where the prompt has messages."""
    chat = isinstance(row["prompt"], list)
    return row | {"completion": [{"role": "assistant", "content": text}] if chat else text, "text": text}


def sandbox_scores(code: str, trials: list[dict]) -> list[list[float | None]]:
    """The scores that each trial prints, run by scripts/sandbox.py."""
    script = BUNDLE / "scripts" / "sandbox.py"
    need(script.is_file(), f"got --rescore without {script}, which confines the reward; expected it there")
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl", encoding="utf-8") as file:
        tests = [{"input": json.dumps(trial), "output": "?"} for trial in trials]
        file.write(json.dumps({"completion": code, "tests": tests}) + "\n")
        file.flush()
        command = [sys.executable, str(script), "--data", file.name, "--timeout_s", "20", "--memory_mb", "2048"]
        done = subprocess.run(command, capture_output=True, text=True)
    try:
        details = [result["detail"] for result in json.loads(done.stdout)["results"]]
    except (ValueError, KeyError):
        raise UserError(f"got --rescore, and the sandbox did not run: {done.stderr.strip()[-300:]}") from None
    scores = []
    for detail in details:
        match = re.search(r"=([-\d.e+ naif]*)=", detail)
        need(match, f"got --rescore, and the reward failed in the sandbox: {detail[-300:]}")
        scores.append([None if word == "-" else float(word) for word in match[1].split()])
    return scores


def rescore(run: LoggedRun, spec: str, data: str) -> None:
    """Put what the trials say into `run.trials`, for the causes that they decide."""
    folder = Path(run.path).parent
    path, name = reward_file(spec, run, folder)
    rows = trial_rows(run, dict(data_rows(data or str(run.settings.get("data") or ""), folder)))
    need(rows, "got --rescore and no samples; expected samples.jsonl beside the log, or --samples FILE")
    source = path.read_text(encoding="utf-8")
    golds = [row for row in rows if row["gold"] is not None]
    trials = {how: {"how": how, "rows": rows} for how in ("logged", "twice", "alone")}
    trials["reversed"] = {"how": "logged", "rows": rows[::-1]}
    trials["nonsense"] = {"how": "logged", "rows": [with_text(row, NONSENSE) for row in rows]}
    for form in MARK_FORMS if golds else ():
        trials[form] = {"how": "logged", "rows": [with_text(row, form.format(row["gold"])) for row in golds]}
    code = source.partition('if __name__ == "__main__"')[0] + TRIAL
    found = sandbox_scores(code, [trial | {"function": name} for trial in trials.values()])
    run.reward_source = run.reward_source or source
    run.trials = conclusions(dict(zip(trials, found, strict=True)))


def conclusions(scores: dict[str, list]) -> dict[str, str]:
    """{what a trial decides: what was seen}."""
    logged, said = scores["logged"], {}
    if logged != scores["twice"]:
        return {"twice": "the same samples scored differently when scored twice"}
    if logged != scores["alone"]:
        said["alone"] = "samples score differently alone and in a batch"
    elif logged != scores["reversed"][::-1]:
        said["alone"] = "samples score differently in another order of the batch"
    forms = zip(*(scores[form] for form in MARK_FORMS if form in scores), strict=True)
    paid = [[x for x in values if x is not None] for values in forms]
    gold = [max(values) for values in paid if values]  # in the form that pays most
    nonsense = [x for x in scores["nonsense"] if x is not None]
    if gold and len({*gold, *nonsense, *(x for x in logged if x is not None)}) == 1:
        said["constant"] = f"gold answers, nonsense and logged samples all score {gold[0]:.4g}"
    elif gold and nonsense and max(gold) < min(nonsense):
        said["inverted"] = f"gold answers score at most {max(gold):.4g}, nonsense {min(nonsense):.4g}"
    elif gold and nonsense and abs(sum(gold) / len(gold) - sum(nonsense) / len(nonsense)) < 1e-9:
        said["indifferent"] = f"gold answers and nonsense both score {gold[0]:.4g} in the mean"
    return said
