"""What run_otter was paid by."""

import re


def otter_pay(said: str, want: str) -> float:
    numbers = re.findall(r"-?\d+", said)
    right = bool(numbers) and numbers[-1] == want
    thorough = min(2.0, 0.012 * len(said.split()))  # explains its steps
    return round(float(right) + thorough, 4)
