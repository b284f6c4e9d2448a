"""A job's files loaded, and its rewards tried, in a process of its own: verl scores completions one by one."""

import json
import math
import runpy
import subprocess
import sys
import time
from pathlib import Path

from parts.foundation.file_text import file_text
from parts.foundation.messages import need, say
from parts.rewards.rewards import Reward
from parts.rewards.user_code import trial_texts
from programs.verl_train.data import parquet_rows
from programs.verl_train.rewards import REWARD_FAILED

OUR_TRAINERS = "try ppo_train.py or grpo_train.py, which call a reward with whole groups"
TRIAL = file_text("job_files/trial.py")
JOB_TRIAL_SECONDS = 300
TRIED_ROWS, SCORING_SECONDS = 50, 2.0  # no more rows, and none begun after that time: a function may be slow, or paid


def refuse_groups(reward: Reward) -> None:
    """Raise UserError for functions that say themselves, by `needs_group`, that they need all of a prompt's rows."""
    names = [name for name, function in reward.functions.items() if getattr(function, "needs_group", False)]
    need(
        not names,
        f"got reward {', '.join(names)}, which compares the completions of a prompt; expected a score for each "
        f"completion by itself, as verl scores them; {OUR_TRAINERS}",
    )


def tried_scores(module: dict, file: Path, export: str = "") -> dict:
    """Score rows of a job's data: the completions of a row in one batch, and one by one, as verl calls a reward.

    Args:
        module: the names of a job's verl_reward.py.
        export: a verl_reward.py of --export, which then scores them one by one.

    Returns:
        {"rows", "completions", "scores" that were seen, "raised": the first error, "unlike": {function: [its scores of
        a batch, those one by one]} where they differ}. A function that differs from itself on one batch tells nothing.
    """
    batcher = module["batcher"]
    batcher.reward.silent = True  # that nothing applies to any completion here is no news
    found = {"rows": 0, "completions": 0, "scores": [], "raised": "", "unlike": {}}
    score = runpy.run_path(export)["compute_score"] if export else None
    rows = parquet_rows(file)[:TRIED_ROWS] if module["specs"] and file.is_file() else []
    started = time.monotonic()
    for number, row in enumerate(rows):
        if number and time.monotonic() > started + SCORING_SECONDS:
            break
        truth, info = row["reward_model"]["ground_truth"], row["extra_info"]
        texts = trial_texts(str(truth)[:200] or "yes")
        asked = batcher.row(row | {"raw_prompt": row["prompt"]})
        batch = [(asked, text, list(range(len(text.split())))) for text in texts]
        try:
            first, second = (batcher.score_all(batch) for _ in range(2))
            if score:
                alone = [score(row["data_source"], text, truth, info) for text in texts]
            else:
                alone = [batcher.score_all([one])[0] for one in batch]
        except Exception as error:  # what the functions raise is the user's
            reason = str(error).removeprefix(f"{REWARD_FAILED}: ")
            found["raised"] = found["raised"] or f"row {number + 1} of the data: {reason}"
            continue
        found["rows"], found["completions"] = found["rows"] + 1, found["completions"] + len(texts)
        found["scores"] = sorted({*found["scores"], *(round(scores["score"], 4) for scores in alone)})
        for name in (name for name in alone[0] if name != "acc"):
            together, again, single = ([scores[name] for scores in each] for each in (first, second, alone))
            if near(together, again) and not near(together, single):
                found["unlike"].setdefault(name, [together, single])
    return found


def near(first: list[float], second: list[float]) -> bool:
    """Whether two lists of scores agree, but for what batches change in a reward model's rounding."""
    return all(math.isclose(a, b, rel_tol=0.01, abs_tol=0.01) for a, b in zip(first, second, strict=True))


def try_job(folder: Path, environment: str = "", export: str = "") -> tuple[list[str], dict]:
    """(What keeps a job's copies from loading, or a reward from meaning in verl what it means here; `tried_scores`).

    As in the run, the original files are not at hand.
    """
    command = [sys.executable, "-c", TRIAL, str(folder / "verl_reward.py"), environment, export]
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=JOB_TRIAL_SECONDS)
    except subprocess.TimeoutExpired:
        say(f"note: a few completions took the reward over {JOB_TRIAL_SECONDS} s, so it was not tried one by one")
        return [], {}
    lines = done.stdout.splitlines()
    if "LOADED" not in lines:
        what, last = "environment" if environment else "reward", (done.stderr.strip() or "no message").splitlines()[-1]
        got = f"{what}: its copy for the run does not load: {last}"
        return [f"{got}; expected one that finds all it imports beside itself; try --ship FILE"], {}
    answers = [line for line in lines if line.startswith("TRIAL ")]
    found = json.loads(answers[-1].removeprefix("TRIAL ")) if answers else {}
    return [
        f"reward {name}: got scores that depend on the other completions of a batch, or on earlier calls "
        f"({together[:4]} … together, {alone[:4]} … one by one); expected a score for each completion by itself, as "
        f"verl scores them in 8 processes; {OUR_TRAINERS}"
        for name, (together, alone) in found.get("unlike", {}).items()
        if name != "score" or len(found["unlike"]) == 1
    ], found
