"""Pay for a program that passes the tests of its row, judged in a sandbox: see PAY.

TRL, and trainers with its contract: my_reward.py:reward_name
    column gold_column: asserts, or what else run_code takes
sandbox.py stands beside this file: standard library alone, on Linux. No program runs in the trainer's process.
"""

import sys
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from sandbox import Sandbox, program_of, run_code, run_many

# strict: raise where nothing isolates a program
LIMITS = {"timeout_s": 3.0, "memory_mb": 512, "strict": True}
run_code("x = 1", ["assert x == 1"], **LIMITS)  # which is here then, before a training begins
PAY = "all"  # 1 if all tests pass, else 0; "fraction": the share that passes
PAY_WEAK_TESTS = True  # those that take the program's own word, as decode(encode(s)) == s; False: they pay nothing
WHOLE_WITHOUT_FENCE = True  # a text without a fence is a program; False: it has none


def text_of(completion) -> str:
    """The text of a completion, a text or chat messages."""
    return completion if isinstance(completion, str) else completion[-1]["content"] if completion else ""


def reward_name(prompts, completions, gold_column, **kwargs) -> list:
    """What PAY says for each completion's program, from 0.0 to 1.0; None where the tests judge nothing."""
    sandbox, jobs = Sandbox(), []  # for this call alone: none of its processes is left when it returns
    prompts = prompts or [""] * len(completions)
    for i, (prompt, said, checks) in enumerate(zip(prompts, completions, gold_column, strict=True)):
        about = {name: kwargs[name][i] or "" for name in ("entry_point", "setup") if kwargs.get(name)}
        text = text_of(said)
        is_program = WHOLE_WITHOUT_FENCE or "```" in text
        code = program_of(text, checks, prompt=prompt, **about) if is_program else ""
        jobs.append({"code": code, "tests": checks, "sandbox": sandbox, **LIMITS, **about})
    try:
        verdicts = run_many(jobs)
    finally:
        sandbox.stop()
    unfit = [i for i, verdict in enumerate(verdicts) if not verdict.usable]
    if unfit:
        warnings.warn(f"{len(unfit)} of {len(verdicts)} rows have tests that judge nothing: {unfit}", stacklevel=2)
    paid = [v.fraction if PAY == "fraction" else float(v.all_passed) for v in verdicts]
    return [p * (v.trusted or PAY_WEAK_TESTS) if v.usable else None for p, v in zip(paid, verdicts, strict=True)]
