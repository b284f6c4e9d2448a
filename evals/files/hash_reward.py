"""1 where the completion is the marker and the right number, and nothing else."""


def reward(prompt, completion, answer):
    return float(completion.strip() == f"#### {answer}")
