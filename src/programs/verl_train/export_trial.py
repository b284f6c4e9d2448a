"""The exported reward, tried beside the functions that it holds."""

import math
import tempfile
import time
from pathlib import Path

from parts.foundation.messages import RewardError
from parts.rewards.reward_forms import import_file
from parts.rewards.reward_texts import trial_texts
from parts.rewards.rewards import Reward
from programs.verl_train.data import row_columns
from programs.verl_train.rewards import rounding_of

ROWS, SECONDS = 50, 2.0  # no more are tried, and none begun after that time: a function may be slow, or paid for


def tried(specs: list[str], columns: list[str], text: str, rows: list[dict], group_size: int) -> dict:
    """How the scores of an exported reward differ from the weighted sum of its functions, on rows of the data.

    The functions get the completions of a row in one batch, the exported file one at a time, as verl calls it: one
    that looks at its whole batch, or draws random numbers, differs.

    Returns:
        rows, completions, scores (up to six that were seen), difference (the largest), raised (the first error, or
        ""), and unlike ((completion, score, exported score) where it is more than rounding, or None).
    """
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "verl_reward.py")
        file.write_text(text, encoding="utf-8")
        port = import_file("export", str(file), str(file))
    reward, started = Reward(specs), time.monotonic()
    reward.silent = True  # that nothing applies to any completion here is no news
    found = {"rows": 0, "completions": 0, "scores": set(), "difference": 0.0, "raised": "", "unlike": None}
    for row in rows[:ROWS]:
        if time.monotonic() > started + SECONDS:
            break
        truth, extra, known = row["reward_model"]["ground_truth"], row["extra_info"], row_columns(row)
        prompt = row["prompt"][0]["content"] if extra.get("prompt_is_text") else row["prompt"]
        ours, texts = (
            {"prompt": prompt, "columns": {name: known.get(name) for name in columns}},
            trial_texts(str(truth)),
        )
        try:
            scores = reward([ours] * len(texts), texts, [[] for _ in texts])[0]
            theirs = [port.compute_score(row["data_source"], said, truth, extra)["score"] for said in texts]
        except RewardError as error:
            found["raised"] = found["raised"] or str(error)
            continue
        except Exception as error:  # what the functions raise is the user's
            found["raised"] = found["raised"] or f"{type(error).__name__}: {error}"
            continue
        found["rows"], found["completions"] = found["rows"] + 1, found["completions"] + len(texts)
        for said, one, two in zip(texts, scores, theirs, strict=True):
            found["difference"] = max(found["difference"], abs(one - two))
            if not math.isclose(one, two, rel_tol=rounding_of(group_size), abs_tol=1e-12):
                found["unlike"] = found["unlike"] or (said, one, two)
        found["scores"] |= {round(score, 4) for score in theirs}
    return found | {"scores": sorted(found["scores"])[:6]}


def told(found: dict) -> tuple[str, list[str]]:
    """(What a trial says where all is well, or "", warnings)."""
    warnings = []
    if found["raised"]:
        warnings.append(f"in a trial {found['raised']}; verl would go on without such a row, in silence")
    if found["unlike"]:
        said, one, two = found["unlike"]
        what = f"completion {said!r} scores {one:g} in a batch, and {two:g} alone, as verl calls it"
        warnings.append(f"{what}: the reward looks at its whole batch, or draws random numbers; try --print")
    if not found["completions"] or found["unlike"]:
        return "", warnings
    scores = ", ".join(f"{score:g}" for score in found["scores"])
    what = f"{found['completions']} completions of {found['rows']} rows have the functions' weighted sum as their score"
    return f"{what}, to {found['difference']:.1g} ({scores} seen)", warnings
