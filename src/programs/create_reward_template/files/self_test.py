"""The end of a written file: its self-test and command line."""

import sys

from adapters import trl_results, verl_results

TESTS = [trl_results, verl_results]


def same(got, expected) -> bool:
    """Whether two scores are equal, to rounding."""
    numbers = all(isinstance(value, int | float) for value in (got, expected))
    return abs(got - expected) < 1e-9 if numbers else got is expected


def self_test() -> int:
    """Score every case; print what is wrong and return how many are."""
    results = [result for test in TESTS for result in test()]
    wrong = [result for result in results if not same(result[2], result[3])]
    for contract, (text, row, _), got, expected in wrong:
        print(f"WRONG by {contract}: got {got}; expected {expected} for {text!r} of {row}")
    if len({str(result[2]) for result in results}) == 1:
        print(f"note: every case scores {results[0][2]}; add one to CASES that does not")
    print(f"{len(results)} scores, {len(wrong)} wrong")
    return len(wrong)


if __name__ == "__main__":
    if sys.argv[1:] != ["--test"]:
        sys.exit(__doc__)
    sys.exit(1 if self_test() else 0)
