"""Reward functions for RL post-training; copy this one file, or point a trainer at it.

Each function has TRL's signature `(prompts, completions, **columns) -> list[float | None]` and takes completions as
strings or as chat messages, `[{"role": "assistant", "content": text}]`. None means *not applicable to this row*.

    python scripts/ppo_train.py --reward examples/reward_functions_library.py:correctness_reward \\
                                --reward "examples/reward_functions_library.py:format_reward*0.2"
"""

import re

_TAGGED = re.compile(r"<answer>\s*(.*?)\s*</answer>", re.DOTALL)


def completion_text(completion) -> str:
    """Return the text of a completion: a string, a list of chat messages (their contents joined), or None (empty)."""
    if completion is None or isinstance(completion, str):
        return completion or ""
    return "".join(message.get("content") or "" for message in completion)


def correctness_reward(prompts, completions, answer, **kwargs) -> list[float | None]:
    """1 where the text of the only `<answer>…</answer>` equals the `answer` column, else 0.

    Range: {0, 1}; weight it 1 and everything else less. Two answer tags pay nothing, so listing guesses does not help.
    A row whose answer is None is not applicable.

    Args:
        prompts: unused.
        completions: n completions, strings or chat messages.
        answer: n expected answers; compared as stripped strings.

    >>> correctness_reward(None, ["<answer>46</answer>", "46", "<answer>4</answer><answer>46</answer>"], ["46"] * 3)
    [1.0, 0.0, 0.0]
    """
    rewards = []
    for completion, expected in zip(completions, answer, strict=True):
        found = _TAGGED.findall(completion_text(completion))
        right = len(found) == 1 and found[0] == str(expected).strip()
        rewards.append(None if expected is None else float(right))
    return rewards


def format_reward(prompts, completions, **kwargs) -> list[float | None]:
    """1 where the completion is exactly one non-empty `<answer>…</answer>` and nothing else, else 0.

    Range: {0, 1}; a weight of 0.1 to 0.3 keeps it from outbidding correctness.

    >>> format_reward(None, ["<answer>46</answer>", "It is <answer>46</answer>", "<answer></answer>"])
    [1.0, 0.0, 0.0]
    """
    texts = [completion_text(completion).strip() for completion in completions]
    return [float(bool(re.fullmatch(r"<answer>\s*[^<>\s][^<>]*</answer>", text))) for text in texts]
