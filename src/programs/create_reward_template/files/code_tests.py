"""Pay for a program that passes its tests, which run in a sandbox."""

import os
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from contract import GOLD, completion_text, rows_of
from loading import HERE, load_file

PAY = "all"  # or "fraction": passed / total, a denser signal that also pays for hard-coded easy cases
LIMITS = {"timeout_s": 3.0, "memory_mb": 512}
# loaded here, so that a missing file stops the trainer at its start; its path travels to other processes
SANDBOX = Path(load_file(HERE / "sandbox.py").__file__)


def score(text: str, row: dict) -> float | None:
    """What the tests say of the program, run in the sandbox; None where a row's tests cannot be used."""
    tests = row.get(GOLD)
    if not tests:
        return None
    names = {"entry_point": row.get("entry_point"), "setup": row.get("setup") or ""}
    sandbox = load_file(SANDBOX)
    code = sandbox.program_of(text, tests, prompt=row.get("prompt"), **names)
    try:
        verdict = sandbox.run_code(code, tests, **LIMITS, **names)
    except sandbox.BadTests as error:
        return warnings.warn(f"got tests that cannot be used, so no score: {error}", stacklevel=2)
    if not verdict.usable:
        return None
    return verdict.fraction if PAY == "fraction" else float(verdict.all_passed)


def reward_name(prompts, completions, gold_column, **columns) -> list[float | None]:
    """Score a batch by TRL's contract; None where the reward does not apply. Range: [0, 1]."""
    rows = rows_of(prompts, len(completions), {"gold_column": gold_column, **columns})
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:  # the programs run in processes of their own
        return list(pool.map(score, map(completion_text, completions), rows))


DOUBLE = "```python\ndef double(x):\n    return 2 * x\n```"
CASES = [  # (completion, columns of the row, score)
    (DOUBLE, {"gold_column": ["assert double(4) == 8", "assert double(0) == 0"]}, 1.0),
    (DOUBLE, {"gold_column": [[[4], 8], [[-1], -2]], "entry_point": "double"}, 1.0),
    (f"```bash\npip list\n```\n{DOUBLE}\n```\n8\n```", {"gold_column": ["assert double(4) == 8"]}, 1.0),
    ("1. So:\n   ```python\n   def f():\n       return 8\n   ```", {"gold_column": ["assert f() == 8"]}, 1.0),
    ("```python\nprint(2 * int(input()))\n```", {"gold_column": [{"input": "4\n", "output": "8"}]}, 1.0),
    (DOUBLE.replace("2 * x", "x + 4"), {"gold_column": ["assert double(4) == 8"]}, 1.0),
    (DOUBLE.replace("2 * x", "x + 4"), {"gold_column": ["assert double(0) == 0"]}, 0.0),
    ("```python\nimport os\nos._exit(0)\n```", {"gold_column": ["assert double(4) == 8"]}, 0.0),
    (f"<think>{DOUBLE}</think>\nI am done.", {"gold_column": ["assert double(4) == 8"]}, 0.0),
    (DOUBLE, {"gold_column": None}, None),
]
