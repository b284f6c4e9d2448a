"""Combined rewards and presets."""

import asyncio
import inspect
import math

from programs.reward_functions_library.contract import _number_between, _signature
from programs.reward_functions_library.correctness import (
    code_block_format,
    code_execution,
    exact_match,
    fuzzy_match,
    math_equivalence,
    no_syntax_error,
)
from programs.reward_functions_library.format import (
    ideal_length,
    incremental_format,
    max_length_penalty,
    no_repetition,
)

# ---- combined


class Combined:
    """One reward from parts r_i with weights w_i; parts that are None are left out. None if all are; async if one is.
    sum: Σ w_i·r_i · product: Π max(r_i, 0)^w_i · gated: w_0·r_0, plus Σ_{i>0} w_i·r_i only where r_0 ≥ 1. A part
    that is None adds nothing to a sum: combine parts that apply to the same rows.
    >>> both = combine([exact_match, max_length_penalty.configure(maximum=1)], [1, 0.5], mode="sum")
    >>> both(None, ["a", "a b"], answer=["a", "a"])
    [1.0, -0.5]"""

    def __init__(self, functions, weights=None, mode="sum", name="combined"):
        self.functions, self.weights, self.mode = list(functions), list(weights or [1.0] * len(functions)), mode
        unfit = not self.functions or len(self.weights) != len(self.functions)
        if mode not in ("sum", "product", "gated") or unfit or (mode == "product" and min(self.weights) < 0):
            raise ValueError(
                f"{name}: got {mode=}, {weights=}; expected sum, gated or product (no weight < 0), a weight each"
            )
        if not all(map(_number_between(), self.weights)):
            raise ValueError(f"{name}: got {weights=}; expected finite numbers, one for each function")
        parameters = [p for f in self.functions for p in inspect.signature(f).parameters.values()]
        columns = {p.name: p.default is p.empty for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD}
        self.__name__, self.__signature__ = name, _signature(columns)
        self.needs_group = any(getattr(f, "needs_group", False) for f in self.functions)
        if any(map(inspect.iscoroutinefunction, [c for f in self.functions for c in (f, f.__call__)])):
            self.__call__ = self._awaited  # tells trainers that it is async; calls still go to the class's __call__

    def __call__(self, prompts, completions, **columns) -> list[float | None]:
        if "__call__" in vars(self):
            return self._awaited(prompts, completions, **columns)
        return self._total([f(prompts=prompts, completions=completions, **columns) for f in self.functions])

    async def _awaited(self, prompts, completions, **columns) -> list[float | None]:
        parts = [f(prompts=prompts, completions=completions, **columns) for f in self.functions]
        waiting = iter(await asyncio.gather(*filter(inspect.isawaitable, parts)))
        return self._total([next(waiting) if inspect.isawaitable(part) else part for part in parts])

    def _total(self, parts: list) -> list[float | None]:
        rows, totals = list(zip(*parts, strict=True)), []
        rows = [[None if r is None or not math.isfinite(r) else float(r) for r in row] for row in rows]
        weights = self.current_weights(rows)
        for row in rows:
            given = [(w, r) for w, r in zip(weights, row, strict=True) if r is not None]
            if not given or (self.mode == "gated" and row[0] is None):
                totals.append(None)
            elif self.mode == "product":
                totals.append(math.prod(max(r, 0.0) ** w for w, r in given))
            else:
                totals.append(sum(w * r for w, r in (given[:1] if self.mode == "gated" and row[0] < 1 else given)))
        return totals

    def current_weights(self, rows: list) -> list[float]:
        """Weights for a call, given its rows of parts; AdaptiveReward overrides it."""
        return self.weights


class AdaptiveReward(Combined):
    """combine() with weights that follow success, w_i = a_i + (b_i − a_i)·s from start a to end b: s is a running mean
    of the share of rows where the first function has full marks. state_dict keeps s for a resumed run.
    >>> fading = AdaptiveReward([exact_match, format_reward], [1.0, 0.5], [1.0, 0.0], decay=0.5)
    >>> [fading(None, ["<answer>a</answer>"], answer=["a"])[0] for _ in range(3)]
    [1.5, 1.25, 1.125]"""

    def __init__(self, functions, start, end, decay=0.9, mode="sum", name="adaptive_reward"):
        super().__init__(functions, start, mode, name)
        self.end = Combined(functions, end, mode, name).weights  # with the same checks
        if not _number_between(0, 1, below=True)(decay):
            raise ValueError(f"{name}: got {decay=}; expected a number from 0 to below 1; try decay=0.9")
        self.decay, self.success = decay, 0.0

    def current_weights(self, rows: list) -> list[float]:
        weights = [a + (b - a) * self.success for a, b in zip(self.weights, self.end, strict=True)]
        known = [row[0] >= 1 for row in rows if row[0] is not None]
        self.success += (1 - self.decay) * (sum(known) / len(known) - self.success) if known else 0
        return weights

    def state_dict(self) -> dict:
        return {"success": self.success}

    def load_state_dict(self, state: dict) -> None:
        self.success = float(state["success"])


combine = Combined


# ---- presets
class Preset(list):
    """Reward functions with their `weights`."""

    def __init__(self, *weighted):
        super().__init__(function for function, _ in weighted)
        self.weights = [weight for _, weight in weighted]


MATH_REASONING_REWARDS = Preset((math_equivalence, 1.0), (incremental_format, 0.1), (no_repetition, 0.05))
CODE_GENERATION_REWARDS = Preset((code_execution, 1.0), (code_block_format, 0.1), (no_syntax_error, 0.1))
SUMMARIZATION_REWARDS = Preset((fuzzy_match, 1.0), (ideal_length, 0.1), (no_repetition, 0.1))
QA_REWARDS = Preset((exact_match, 1.0), (fuzzy_match, 0.3), (max_length_penalty, 0.1))
