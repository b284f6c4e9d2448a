"""The end of a port to verl that holds a function of one sample."""

from mine import reward_name


def compute_score(data_source, solution_str, ground_truth, extra_info=None, **kwargs) -> float:
    """reward_name for one completion; 0 for None, which verl has not."""
    return float(reward_name(prompt=None, completion=solution_str, gold_column=ground_truth) or 0.0)
