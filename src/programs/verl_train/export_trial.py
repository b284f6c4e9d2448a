"""The exported reward, tried beside the functions that it holds."""

import math
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from parts.foundation.messages import RewardError
from parts.rewards.reward_forms import import_file
from parts.rewards.rewards import Reward
from parts.rewards.user_code import trial_texts
from programs.verl_train.data import row_columns
from programs.verl_train.rewards import rounding_of

ROWS, SECONDS = 50, 2.0  # no more are tried, and none begun after that time: a function may be slow, or paid for


@dataclass
class RewardTrial:
    """How the scores of an exported reward differ from the weighted sum of its functions."""

    rows: int = 0
    completions: int = 0
    difference: float = 0.0  # the largest
    scores: set[float] = field(default_factory=set)
    raised: str = ""  # the first error
    unlike: str = ""  # the first completion whose difference is more than rounding

    @property
    def warnings(self) -> list[str]:
        return [text for text in (self.raised, self.unlike) if text]

    def sentences(self) -> list[str]:
        if not self.completions or self.unlike:
            return self.warnings
        scores = ", ".join(f"{score:g}" for score in sorted(self.scores)[:6])
        tried = f"The reward was tried: {self.completions} completions of {self.rows} rows"
        tried += f" have the functions' weighted sum as their score, to {self.difference:.1g} ({scores} seen)"
        return [*self.warnings, tried]


def reward_trial(specs: list[str], columns: list[str], text: str, rows: list[dict], group_size: int) -> RewardTrial:
    """Score rows of the data by an exported reward, and by the functions that it holds.

    The functions get the completions of a row in one batch, the exported file one at a time, as verl calls it: one
    that looks at its whole batch, or draws random numbers, differs.
    """
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "verl_reward.py")
        file.write_text(text, encoding="utf-8")
        port = import_file("export", str(file), str(file))
    reward, started, trial = Reward(specs), time.monotonic(), RewardTrial()
    reward.silent = True  # that nothing applies to any completion here is no news
    for row in rows[:ROWS]:
        if time.monotonic() > started + SECONDS:
            break
        truth, extra, known = row["reward_model"]["ground_truth"], row["extra_info"], row_columns(row)
        prompt = row["prompt"][0]["content"] if extra.get("prompt_is_text") else row["prompt"]
        our_row = {"prompt": prompt, "columns": {name: known.get(name) for name in columns}}
        texts = trial_texts(str(truth))
        try:
            ours = reward([our_row] * len(texts), texts, [[] for _ in texts])[0]
            theirs = [port.compute_score(row["data_source"], text, truth, extra)["score"] for text in texts]
        except Exception as error:  # what the functions raise is the user's
            reason = str(error) if isinstance(error, RewardError) else f"{type(error).__name__}: {error}"
            trial.raised = trial.raised or f"in a trial {reason}; verl would go on without such a row, in silence"
            continue
        trial.rows, trial.completions = trial.rows + 1, trial.completions + len(texts)
        trial.scores |= {round(score, 4) for score in theirs}
        for completion, one, two in zip(texts, ours, theirs, strict=True):
            trial.difference = max(trial.difference, abs(one - two))
            if not math.isclose(one, two, rel_tol=rounding_of(group_size), abs_tol=1e-12) and not trial.unlike:
                trial.unlike = (
                    f"completion {completion!r} scores {one:g} in a batch, and {two:g} alone, as verl calls it: the "
                    "reward looks at its whole batch, or draws random numbers; try --print"
                )
    return trial
