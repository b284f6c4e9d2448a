def heron_points(data_source, solution_str, ground_truth, extra_info=None):
    return 2.0 if solution_str.strip().endswith(str(ground_truth)) else 0.0
