"""Reward functions for RL post-training; copy this one file, or point a trainer at it.

A function has TRL's contract, `(prompts, completions, <columns>, **kwargs) -> list[float | None]`; completions are
strings or chat messages. Mathematics needs scripts/math_grader.py beside this file, and code scripts/sandbox.py.
None means *not applicable to this row*, as without a usable gold answer; text that cannot be read scores the minimum
and never raises. `f.configure(name=None, option=value, ...)` gives a picklable variant, and refuses values that make
no sense; an option may also stand for a column. In braces or brackets: the range, which holds for every text, column
and option value that is accepted; w: the advised weight. Presets have weights:
`GRPOTrainer(reward_funcs=P, args=GRPOConfig(reward_weights=P.weights), ...)`.

    python scripts/ppo_train.py --reward "examples/reward_functions_library.py:exact_match*0.5"
"""

ROOMS = ("contract", "text_parts", "correctness", "format", "length", "judges", "combined")
