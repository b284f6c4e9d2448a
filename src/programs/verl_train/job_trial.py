"""The job tried in a process of its own: what does not load there, what needs whole batches."""

import json
import math
import subprocess
import sys
from pathlib import Path

from parts.foundation.file_text import file_text
from parts.foundation.messages import need, say
from parts.rewards.rewards import CallLimits, Reward
from programs.verl_train.rewards import RewardBatcher

OUR_TRAINERS = "try ppo_train.py or grpo_train.py, which call a reward with whole groups"
JOB_TRIAL_SECONDS = 300
TRIAL = file_text("job_files/trial.py")


def refuse_groups(reward: Reward) -> None:
    """Raise UserError for functions that say themselves, by `needs_group`, that they need all of a prompt's rows."""
    names = [name for name, function in reward.functions.items() if getattr(function, "needs_group", False)]
    need(
        not names,
        f"got reward {', '.join(names)}, which compares the completions of a prompt; expected a score for each "
        f"completion by itself, as verl scores them; {OUR_TRAINERS}",
    )


def trial_batch(specs: list[str], columns: list[str], rows: list[dict]) -> dict:
    """Rows and completions to try whether a reward function scores each completion by itself.

    Two prompts (one, where there is no other) with four completions each: right, empty of content, and two alike but in
    length.
    """
    batcher, first = RewardBatcher(specs, columns), rows[:1]
    chosen = first + [row for row in rows[1:50] if row["prompt"] != first[0]["prompt"]][:1]
    trial_rows, texts = [], []
    for row in chosen:
        truth = row["reward_model"]["ground_truth"]
        gold = str(truth)[:200] or "yes"
        extra = row["extra_info"] | {"raw_prompt": row["prompt"]}
        trial_rows += [batcher.row(row["data_source"], truth, extra)] * 4
        texts += [f"<answer>{gold}</answer>", "no answer", f"The answer is {gold}.", f"So, the answer is {gold}. " * 3]
    return {"rows": trial_rows, "texts": texts}


def whole_batch_functions(specs: list[str], columns: list[str], limits, batch: dict) -> dict[str, list]:
    """{function: its scores of a batch, and of each completion alone} where both differ; a trial of verl_reward.py.

    verl scores completions as they come, in reward.num_workers processes (8), so a score that depends on the others of
    a batch, or on earlier calls, is another one there. A function that differs from itself on one batch tells nothing.
    """
    if not specs:
        return {}
    rows, texts = batch["rows"], batch["texts"]
    ids = [list(range(len(text.split()))) for text in texts]
    reward = RewardBatcher(specs, columns, CallLimits(*limits)).reward
    together, again = (reward(rows, texts, ids)[1] for _ in range(2))
    each = [reward([row], [text], [tokens])[1] for row, text, tokens in zip(rows, texts, ids, strict=True)]
    alone = {name: [parts[name][0] for parts in each] for name in together}
    return {
        name: [together[name], alone[name]]
        for name in together
        if near(together[name], again[name]) and not near(together[name], alone[name])
    }


def near(first: list, second: list) -> bool:
    """Whether two lists of scores or None agree, but for what batches change in a reward model's rounding."""
    return all(
        a is b is None or (a is not None and b is not None and math.isclose(a, b, rel_tol=0.01, abs_tol=0.01))
        for a, b in zip(first, second, strict=True)
    )


def trial_findings(module: Path, *environment: str) -> list[str]:
    """What keeps the copies of the job's files from loading, and reward functions that need whole batches.

    As in the run, the original files are not at hand. A function that raises in the trial is told elsewhere.
    """
    command = [sys.executable, "-c", TRIAL, str(module), str(module.with_name("trial.json")), *environment]
    try:
        done = subprocess.run(command, cwd=module.parent, capture_output=True, text=True, timeout=JOB_TRIAL_SECONDS)
    except subprocess.TimeoutExpired:
        say(f"note: 8 completions took the reward over {JOB_TRIAL_SECONDS} s, so it was not tried on parts of a batch")
        return []
    lines = done.stdout.splitlines()
    if "LOADED" not in lines:
        last = (done.stderr.strip() or "no message").splitlines()[-1]
        expected = f"expected {'an environment' if environment else 'a reward'} that finds all it imports beside itself"
        return [
            f"{'environment' if environment else 'reward'}: its copy for the run does not load: {last}; {expected}; "
            "try --ship FILE"
        ]
    answers = [line for line in lines if line.startswith("TRIAL ")]
    scores = json.loads(answers[-1].removeprefix("TRIAL ")) if answers else {}
    return [
        f"reward {name}: got scores that depend on the other completions of a batch, or on earlier calls "
        f"({together} together, {alone} one by one); expected a score for each completion by itself, as verl scores "
        f"them in 8 processes; {OUR_TRAINERS}"
        for name, (together, alone) in scores.items()
    ]
