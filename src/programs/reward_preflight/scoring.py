"""Scores of completions, graded, and what was found."""

import math
from collections import Counter
from dataclasses import dataclass, field

from parts.rewards.user_code import reward_arguments
from programs.reward_preflight.reward_process import OwnProcess

KINDS = ("raised", "hung", "died", "malformed", "not_finite")  # how a call fails
GIVE_UP = 3  # calls over the time limit, or dead processes, after which a function is not called again
BATCH = 64  # completions per call
TOKEN_CHARACTERS = 4  # characters that stand for a token
PAYING_ROWS = 0.05  # share of a probe's rows that may be paid more than allowed, each a warning


class Findings:
    """Findings of all checks; three of each check are kept, the others counted."""

    def __init__(self):
        self.kept, self.counts = [], Counter()

    def add(self, check: str, message: str, failed: bool, advice: str, extra: dict | None = None) -> None:
        self.counts[check] += 1
        entry = {"severity": "fail" if failed else "warning", "check": check, "message": message, "try": advice}
        if self.counts[check] <= 3:
            self.kept.append(entry | (extra or {}))

    def verdict(self) -> dict:
        """The end of a report: failures come first, and without them all is ready."""
        self.kept.sort(key=lambda finding: finding["severity"] != "fail")
        more = {check: count - 3 for check, count in self.counts.items() if count > 3}
        ready = all(finding["severity"] != "fail" for finding in self.kept)
        return {"findings": self.kept, "more_findings": more, "ready": ready}


def payment_status(find, line: dict, shares: list[tuple[float, object]], noun: str, advice: str) -> str:
    """Status of a probe or policy, with findings about what is paid more than it may be.

    Args:
        find: `find(check, message, evidence, failed, advice)` adds a finding.
        line: its name, description, mean share of gold's payment, and allowed share.
        shares: (share of gold, evidence) of its rows.
    """
    allowed, summary = line["allowed"], line["what"]
    paying = sorted((pair for pair in shares if pair[0] > allowed + 1e-6), key=lambda pair: -pair[0])
    failed = bool(paying) and (line["share"] > allowed + 1e-6 or len(paying) > PAYING_ROWS * len(shares))
    for share, evidence in paying[:3]:
        paid = f"pays {share:.0%} of gold's {noun} ({allowed:.0%} allowed)"
        allow = f"--allow {line['name']}={math.ceil(100 * share) / 100:g}"
        text = f"{paid} for: {summary[0].lower()}{summary[1:-1]}"
        find(line["name"], text, evidence, failed, f"{advice}, or {allow} if that is intended")
    return "FAIL" if failed else "warning" if paying else "pass"


def ranked(variants: list[tuple[dict, dict]], trial) -> list[str]:
    """Names of the variants of gold, the best first.

    Args:
        variants: (row, {variant: gold}) of each row.
        trial: `trial([(row, gold), …]) -> (share of full marks, mean)`, asked where there are several.
    """
    names = dict.fromkeys(name for _, of_row in variants for name in of_row)
    pairs = {name: [(row, of_row[name]) for row, of_row in variants if name in of_row] for name in names}
    figures = {name: trial(pairs[name]) for name in names} if len(names) > 1 else {}
    return sorted(names, key=lambda name: [-figure for figure in figures.get(name, ())])


def excerpt(text: str) -> str:
    """The beginning of a text on one line."""
    return repr(text if len(text) <= 100 else text[:100] + "…")[1:-1]


@dataclass
class Graded:
    """A completion of a row with its scores by function; `problems` says why one is missing."""

    row: dict
    text: str
    parts: dict[str, float | None] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)  # only where it was called alone


class Grader:
    """Scores completions with every function, in batches; a batch that fails is scored one completion at a time."""

    def __init__(self, process: OwnProcess, seen=lambda *_: None):
        self.process, self.seen = process, seen  # seen(kind, function, message, graded) is told of each problem
        self.weights = {f["name"]: f["weight"] for f in process.about}
        self.tallies = {name: Counter() for name in self.weights}  # calls, completions, none and the kinds of KINDS
        self.singly = set()  # functions for which a batch took longer than the limit

    def grade(self, pairs: list[tuple[dict, str]], alone: bool = False) -> list[Graded]:
        results = [Graded(row, text) for row, text in pairs]
        for name in self.weights:
            size = 1 if alone or name in self.singly else BATCH
            for start in range(0, len(results), size):
                self.score(name, results[start : start + size])
        return results

    def score(self, name: str, piece: list[Graded]) -> None:
        """Fill in one function's scores of a batch; where the batch fails, of its completions one by one."""
        tally = self.tallies[name]
        if tally["hung"] + tally["died"] >= GIVE_UP:
            for graded in piece:
                graded.problems[name] = f"not called after {GIVE_UP} calls that hung or died"
            return
        texts = [graded.text for graded in piece]
        ids = [list(range(1, 1 + math.ceil(len(text) / TOKEN_CHARACTERS))) for text in texts]
        reply = self.process.call(name, reward_arguments([graded.row for graded in piece], texts, ids))
        if reply.get("changed"):
            self.count("changed", name, "changes its inputs", piece[0])
        if "values" in reply:
            self.keep(name, piece, reply)
            return
        kind = next(kind for kind in KINDS if kind in reply)
        if len(piece) == 1:
            tally["completions"] += 1
            piece[0].problems[name] = reply[kind]
            self.count(kind, name, f"{reply[kind]} ({reply['where']})" if reply.get("where") else reply[kind], piece[0])
            return
        for graded in piece:
            self.score(name, [graded])
        if not any(name in graded.problems for graded in piece):
            message = f"{reply[kind]} on a batch of {len(piece)}, but on none of its completions alone"
            self.count("slow_batch" if kind == "hung" else "batch", name, message, piece[0])
            self.singly |= {name} if kind == "hung" else set()

    def count(self, kind: str, name: str, message: str, graded: Graded) -> None:
        self.tallies[name][kind] += 1
        self.seen(kind, name, message, graded)

    def keep(self, name: str, piece: list[Graded], reply: dict) -> None:
        self.tallies[name] += Counter(completions=len(piece), none=reply["values"].count(None) - len(reply["bad"]))
        for i, (graded, value) in enumerate(zip(piece, reply["values"], strict=True)):
            graded.parts[name] = value
            if len(piece) == 1:
                graded.seconds[name] = reply["seconds"]
            if i in reply["bad"]:
                graded.problems[name] = reply["bad"][i]
                self.count("not_finite", name, reply["bad"][i], graded)

    def total(self, graded: Graded) -> float | None:
        """The weighted sum of a completion's scores; None where no function applies or one failed."""
        parts = {name: value for name, value in graded.parts.items() if value is not None}
        if graded.problems or not parts:
            return None
        return sum(self.weights[name] * value for name, value in parts.items())
