"""A reward for TRL's GRPOTrainer."""


def last_line(prompts, completions, answer, **kwargs):
    """1 where the last line is the answer, 0.2 where the answer stands anywhere."""
    texts = [c if isinstance(c, str) else c[-1]["content"] for c in completions]
    lines = [text.strip().split("\n")[-1] for text in texts]
    return [
        1.0 if line == gold else 0.2 if gold in text else 0.0
        for line, text, gold in zip(lines, texts, answer, strict=True)
    ]
