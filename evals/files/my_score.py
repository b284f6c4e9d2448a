def compute_score(data_source, solution_str, ground_truth, extra_info=None, **kwargs):
    """1 where the completion ends in the answer."""
    return float(solution_str.strip().endswith(ground_truth))
