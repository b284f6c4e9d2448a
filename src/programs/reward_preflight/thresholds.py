"""Limits of the checks."""

from pathlib import Path

LIBRARY = str(Path(__file__).resolve().parent.parent / "examples" / "reward_functions_library.py")
OWN_DATA = Path(__file__).resolve().parent.parent / "assets" / "data"  # for the embedded model, which reads plain text
LOAD_LIMIT_S = 300.0  # an import may load torch or a judge
KINDS = ("raised", "hung", "died", "malformed", "not_finite")  # how a call fails
GIVE_UP = 3  # calls over the time limit, or dead processes, after which a function is not called again
BATCH = 64  # completions per call
TRIAL_ROWS = 8  # rows on which the gold formats compete
PROBE_ROWS = 32  # rows from which probes are made
PAYING_ROWS = 0.05  # share of a probe's rows that may be paid more than allowed, each a warning
SLOW_S = 1.0  # a completion above this is a warning
TOKEN_CHARACTERS = 4  # characters that stand for a token
LONGEST = 40_000  # characters of a probe where the run sets no limit
POLICY_ROWS = 8  # rows on which scripted policies play; gold plays all
AGAIN_ROWS = 4  # of which as many are played again, and all at once
