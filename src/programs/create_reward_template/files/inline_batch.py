"""The end of a port to verl that holds a function of TRL's contract."""

from mine import reward_name


def compute_score(data_source, solution_str, ground_truth, extra_info=None, **kwargs) -> float:
    """reward_name for one completion; 0 for None, which verl has not."""
    completion = [{"role": "assistant", "content": solution_str}]
    return float(reward_name(prompts=[None], completions=[completion], gold_column=[ground_truth])[0] or 0.0)
