"""Reward functions for RL post-training; copy this one file, or point a trainer at it.

A function has TRL's contract, `(prompts, completions, <columns>, **kwargs) -> list[float | None]`; completions are
strings or chat messages. Mathematics needs scripts/math_grader.py beside this file, and code scripts/sandbox.py.
None means *not applicable to this row*, for example without a usable gold answer; text that cannot be read scores the
minimum and never raises. `f.configure(name=None, option=value, ...)` returns a picklable variant and refuses invalid
values; an option may also replace a column. In braces or brackets: the range, which every accepted text, column and
option value keeps; w: the advised weight. Presets have weights:
`GRPOTrainer(reward_funcs=P, args=GRPOConfig(reward_weights=P.weights), ...)`.

    python scripts/ppo_train.py --reward "examples/reward_functions_library.py:exact_match*0.5"
"""

ROOMS = ("contract", "text_parts", "correctness", "format", "reward_models", "combined")
