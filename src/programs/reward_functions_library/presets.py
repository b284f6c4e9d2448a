"""Presets, and other names."""

from programs.reward_functions_library.combined import code_generation, math_problem
from programs.reward_functions_library.correctness import (
    exact_match,
    fuzzy_match,
    gsm8k,
    math_equivalence,
    multiple_choice,
    numeric_correctness,
)
from programs.reward_functions_library.format import (
    incremental_format,
    json_format,
    json_schema,
    soft_xml_format,
    strict_xml_format,
    tag_count,
    think_format,
)
from programs.reward_functions_library.judges import llm_judge, reward_model
from programs.reward_functions_library.length import (
    cosine_scaled,
    ideal_length,
    max_length_penalty,
    min_length,
    soft_overlong_punishment,
)
from programs.reward_functions_library.programs import code_block_format, code_execution, no_syntax_error
from programs.reward_functions_library.style import (
    citation,
    language_consistency,
    no_repetition,
    reasoning_quality,
    repetition_penalty,
)


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

citation_reward = citation
code_block_format_reward = code_block_format
code_execution_reward = code_execution
code_generation_reward = code_generation
cosine_scaled_reward = cosine_scaled
exact_match_reward = exact_match
fuzzy_match_reward = fuzzy_match
gsm8k_reward = gsm8k
ideal_length_reward = ideal_length
incremental_format_reward = incremental_format
json_format_reward = json_format
json_schema_reward = json_schema
language_consistency_reward = language_consistency
math_equivalence_reward = math_equivalence
math_problem_reward = math_problem
max_length_penalty_reward = max_length_penalty
min_length_reward = min_length
multiple_choice_reward = multiple_choice
no_repetition_reward = no_repetition
no_syntax_error_reward = no_syntax_error
numeric_correctness_reward = numeric_correctness
reasoning_quality_reward = reasoning_quality
repetition_penalty_reward = repetition_penalty
soft_overlong_punishment_reward = soft_overlong_punishment
soft_xml_format_reward = soft_xml_format
strict_xml_format_reward = strict_xml_format
tag_count_reward = tag_count
think_format_reward = think_format
llm_judge_reward, reward_model_reward = llm_judge, reward_model
no_repetition_penalty = repetition_penalty
