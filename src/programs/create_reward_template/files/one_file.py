"""Pay for a program that passes the tests of its row, judged in a sandbox: see PAY.

TRL, and trainers with its contract: my_reward.py:reward_name
    column gold_column: asserts, or what else run_code takes
One file for Linux that needs only the standard library. The reward stands at the end, below its sandbox; read run_code
first. No program runs in the process that calls the reward; none is left when it returns.
"""

import re
import textwrap
import warnings

from sandbox import Sandbox, run_many, without_end_tokens

LIMITS = {}
PAY = "all"  # 1 if all tests pass, else 0; "fraction": the share that passes
PAY_WEAK_TESTS = True  # those that take the program's own word, as decode(encode(s)) == s; False: they pay nothing
WHOLE_WITHOUT_FENCE = True  # a text without a fence is a program; False: it has none
FENCED = re.compile(r"```[ \t]*([\w.+-]*)[^\n]*\n(.*?)(?:^[ \t]*```|\Z)", re.DOTALL | re.MULTILINE)


def text_of(completion) -> str:
    """The text of a completion, a text or chat messages, without its end tokens."""
    text = completion if isinstance(completion, str) else completion[-1]["content"] if completion else ""
    return without_end_tokens(text)


def program_in(text: str) -> str:
    """The last block of Python in a text, else the last without label; one that no fence closes goes to the end."""
    blocks = [(label.lower(), code) for label, code in FENCED.findall(text)]
    python = [code for label, code in blocks if label.startswith("py")] or [code for label, code in blocks if not label]
    return textwrap.dedent(python[-1]) if python else text if WHOLE_WITHOUT_FENCE and not blocks else ""


def reward_name(prompts, completions, gold_column, **kwargs) -> list:
    """What PAY says for each completion's program, from 0.0 to 1.0; None where the tests judge nothing."""
    sandbox, jobs = Sandbox(), []
    for i, (said, checks) in enumerate(zip(completions, gold_column, strict=True)):
        about = {name: kwargs[name][i] or "" for name in ("entry_point", "setup") if kwargs.get(name)}
        jobs.append({"code": program_in(text_of(said)), "tests": checks, "sandbox": sandbox, **LIMITS, **about})
    try:
        verdicts = run_many(jobs)
    finally:
        sandbox.stop()
    unfit = [i for i, verdict in enumerate(verdicts) if not verdict.usable]
    if unfit:
        warnings.warn(f"{len(unfit)} of {len(verdicts)} rows have tests that judge nothing: {unfit}", stacklevel=2)
    paid = [v.fraction if PAY == "fraction" else float(v.all_passed) for v in verdicts]
    return [p * (v.trusted or PAY_WEAK_TESTS) if v.usable else None for p, v in zip(paid, verdicts, strict=True)]
