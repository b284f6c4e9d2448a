"""Pay for the right final answer of a mathematical task, and only that."""

from pathlib import Path

from contract import GOLD, completion_text
from loading import HERE, load_file

# loaded here, so that a missing file stops the trainer at its start; its path travels to other processes
GRADER = Path(load_file(HERE / "math_grader.py").__file__)


def score(text: str, row: dict) -> float | None:
    """1 if the final answer (in a box, <answer>, after #### or "the answer is") equals the gold one, else 0."""
    return load_file(GRADER).math_score(text, row.get(GOLD), completion_text(row.get("prompt"), ()))


CASES = [  # (completion, columns of the row, score)
    (r"3 + 4 = 7, so \boxed{7}", {"gold_column": "7"}, 1.0),
    (r"so \boxed{\frac{1}{2}}", {"gold_column": "0.5"}, 1.0),
    ("<think>2 + 2 = 4</think>\n<answer>4</answer>", {"gold_column": ["four", "4"]}, 1.0),
    (r"so \boxed{8}", {"gold_column": "7"}, 0.0),
    (r"\boxed{7} or \boxed{8}", {"gold_column": "7"}, 0.0),
    (r"\boxed{2^10}", {"gold_column": "1024", "prompt": "2^10 ="}, 0.0),  # the task, not its result
    ("", {"gold_column": "7"}, 0.0),
    (r"\boxed{7}", {"gold_column": None}, None),
]
