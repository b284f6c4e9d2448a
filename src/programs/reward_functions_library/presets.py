"""Presets, and the names that older code knows."""

from programs.reward_functions_library.correctness import exact_match, fuzzy_match, math_equivalence
from programs.reward_functions_library.format import incremental_format
from programs.reward_functions_library.length import ideal_length, max_length_penalty
from programs.reward_functions_library.programs import code_block_format, code_execution, no_syntax_error
from programs.reward_functions_library.style import no_repetition, reasoning_quality


# ---- presets, and the names that older code knows
class Preset(list):
    """Reward functions with their `weights`."""

    def __init__(self, *weighted):
        super().__init__(function for function, _ in weighted)
        self.weights = [weight for _, weight in weighted]


MATH_REASONING_REWARDS = Preset((math_equivalence, 1.0), (incremental_format, 0.1), (reasoning_quality, 0.05))
CODE_GENERATION_REWARDS = Preset((code_execution, 1.0), (code_block_format, 0.1), (no_syntax_error, 0.1))
SUMMARIZATION_REWARDS = Preset((fuzzy_match, 1.0), (ideal_length, 0.1), (no_repetition, 0.1))
QA_REWARDS = Preset((exact_match, 1.0), (fuzzy_match, 0.3), (max_length_penalty, 0.1))


def __getattr__(name: str):
    """The names that older code knows: `exact_match_reward` is `exact_match`."""
    known = globals().get({"no_repetition_penalty": "repetition_penalty"}.get(name, name.removesuffix("_reward")))
    if not callable(known):
        raise AttributeError(f"got no reward {name!r}; try one of those that `reward_preflight.py --list` shows")
    return known
