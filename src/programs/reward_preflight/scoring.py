"""Grading completions, and the findings of all checks."""

import math
import statistics
from collections import Counter
from dataclasses import dataclass, field
from typing import ClassVar

from parts.rewards.user_code import reward_arguments
from programs.reward_preflight.reward_process import OwnProcess

KINDS = ("raised", "hung", "died", "malformed", "not_finite")  # how a call fails
GIVE_UP = 3  # hung calls or dead processes after which a function is not called again
BATCH = 64  # completions per call
TOKEN_CHARACTERS = 4  # characters that stand for a token
PAYING_ROWS = 0.05  # share of rows that may be paid more than allowed; up to it each is a warning


class Checks:
    """Base of the checks of rewards and of environments; `report` is what --json prints.

    A subclass has `evidence(graded) -> dict`: what a finding shows of a completion or conversation.
    """

    advice_on: ClassVar[dict] = {}  # {check: what to try}

    def __init__(self, args, rows: list[dict], **about):
        self.args, self.rows = args, rows
        self.findings, self.counts = [], Counter()  # three of each check are kept, the others counted
        known = {"reward": args.reward, "data": args.data, "rows": len(rows), "seed": args.seed, "gold": None}
        self.report = about | known

    def find(self, check: str, message: str, graded=None, failed: bool = True, advice: str = "") -> None:
        """Add a finding, with what was `graded` as evidence; a failure, or else a warning."""
        self.counts[check] += 1
        advice = advice or self.advice_on.get(check, "")
        entry = {"severity": "fail" if failed else "warning", "check": check, "message": message, "try": advice}
        if self.counts[check] <= 3:
            self.findings.append(entry | (self.evidence(graded) if graded else {}))

    def verdict(self) -> dict:
        """The report with its end: findings, failures first, and whether all is ready, as none failed."""
        findings = sorted(self.findings, key=lambda finding: finding["severity"] != "fail")
        more = {check: count - 3 for check, count in self.counts.items() if count > 3}
        ready = all(finding["severity"] != "fail" for finding in findings)
        return self.report | {"findings": findings, "more_findings": more, "ready": ready}

    def judge_gold(self, noun: str, failed: bool, paid: list[float], low: list[tuple[str, object]]) -> None:
        """Add findings about gold; `low`: (message, evidence) of each gold without full marks."""
        gold = self.report["gold"]
        if failed:
            text = f"{gold['full_marks']:.1%} of {gold['rows']} gold {noun} have full marks"
            if gold.get("full_score", 1.0) == 1:
                text += ", which eval/accuracy counts"
            advice = "--gold_template 'Answer: {answer}', as the reward reads it, or --gold_column; check its columns"
            if not gold["full_marks"] and max(paid, default=0.0) > 0:
                advice += f"; --full_score {max(paid):g} if that is the highest score intended"
            self.find("gold", text, advice=advice)
        for text, evidence in low[:2]:
            self.find("gold", text, evidence, failed, "look at this row's reference")

    def payment(
        self,
        line: dict,
        paid: list,
        gold: float,
        lowest: float,
        noun: str,
        advice: str,
        rows=PAYING_ROWS,
        gold_of_row=(),
    ) -> dict:
        """Complete a line of the report with shares of gold's payment; add findings for rows that are paid too much.

        Args:
            line: the name, description and allowed share of a probe or policy.
            paid: (score, evidence) pairs.
            gold: what gold is paid on average.
            lowest: the lowest score seen; it counts as nothing if gold is not above 0.
            rows: share of the rows that may be paid too much before the check fails.
            gold_of_row: {row's number: what its own gold is paid}, instead of `gold` if above nothing.
        """
        floor, allowed, summary = 0.0 if gold > 1e-9 else min(0.0, gold, lowest), line["allowed"], line["what"]
        if not paid or gold - floor < 1e-9:
            return line | {"share": None, "worst": None, "paying_rows": 0, "status": "n/a"}
        tops = {number: top for number, top in dict(gold_of_row).items() if top is not None and top - floor > 1e-9}
        tops = [tops.get(one.row["number"], gold) for _, one in paid]
        shares = [((score - floor) / (top - floor), one) for (score, one), top in zip(paid, tops, strict=True)]
        shares.sort(key=lambda pair: pair[0])
        of_rows = {one.row["number"]: (share, one) for share, one in shares}  # each row's best, which comes last
        paying = sorted((pair for pair in of_rows.values() if pair[0] > allowed + 1e-6), key=lambda pair: -pair[0])
        line |= {"share": statistics.fmean(share for share, _ in shares), "worst": shares[-1][0]}
        failed = bool(paying) and (line["share"] > allowed + 1e-6 or len(paying) > rows * len(of_rows))
        paying = paying if failed or rows == PAYING_ROWS else []
        for share, one in paying[:3]:
            text = f"pays {share:.0%} of gold's {noun} ({allowed:.0%} allowed) for: {summary[0].lower()}{summary[1:-1]}"
            allow = f"--allow {line['name']}={math.ceil(100 * share) / 100:g}"
            self.find(line["name"], text, one, failed, f"{advice}, or {allow} if that is intended")
        return line | {"paying_rows": len(paying), "status": "FAIL" if failed else "warning" if paying else "pass"}


def ranked(variants: list[tuple[dict, dict]], trial, merit) -> list[str]:
    """Names of gold's variants, the best first.

    Args:
        variants: (row, {variant: gold}) of each row.
        trial: `trial([(row, gold), …]) -> results`, called if there are several variants.
        merit: `merit(results) -> (share of full marks, mean)`, called once all were tried.
    """
    names = dict.fromkeys(name for _, of_row in variants for name in of_row)
    pairs = {name: [(row, of_row[name]) for row, of_row in variants if name in of_row] for name in names}
    results = {name: trial(pairs[name]) for name in names} if len(names) > 1 else {}
    return sorted(names, key=lambda name: [-figure for figure in merit(results[name])] if results else [])


@dataclass
class Graded:
    """A completion, or a script of answers, with its scores by function; `problems` says why a score is missing."""

    row: dict
    text: str | list[str]
    policy: str = ""  # that gives the script's answers
    parts: dict[str, float | None] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)  # only if it was scored alone
    outcome: dict | None = None  # of a conversation that came to its end


def as_batch(piece: list[Graded]) -> dict:
    """The arguments with which a trainer calls a reward."""
    texts = [graded.text for graded in piece]
    ids = [list(range(1, 1 + math.ceil(len(text) / TOKEN_CHARACTERS))) for text in texts]
    return reward_arguments([graded.row for graded in piece], texts, ids)


class Grader:
    """Scores completions with every function, in batches; a batch that fails is scored one completion at a time.

    `arguments(batch)` is what a function is called with; `on_problem(kind, function, message, graded)` is called for
    each problem.
    """

    def __init__(self, process: OwnProcess, weights: dict[str, float], arguments, on_problem):
        self.process, self.weights, self.arguments, self.on_problem = process, weights, arguments, on_problem
        self.tallies = {name: Counter() for name in self.weights}  # completions, None scores and problems by kind
        self.singly = set()  # functions that took too long for a batch

    def grade(self, pairs: list[tuple], alone: bool = False, policy: str = "") -> list[Graded]:
        results = [Graded(row, text, policy) for row, text in pairs]
        for name in self.weights:
            size = 1 if alone or name in self.singly else BATCH
            for start in range(0, len(results), size):
                self.score(name, results[start : start + size])
        return results

    def score(self, name: str, piece: list[Graded]) -> None:
        """Fill in one function's scores of a batch; if the batch fails, score its completions one by one."""
        tally = self.tallies[name]
        if tally["hung"] + tally["died"] >= GIVE_UP:
            for graded in piece:
                graded.problems[name] = f"not called after {GIVE_UP} calls that hung or died"
            return
        reply = self.process.call(name, self.arguments(piece))
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
        self.on_problem(kind, name, message, graded)

    def keep(self, name: str, piece: list[Graded], reply: dict) -> None:
        self.tallies[name] += Counter(completions=len(piece), none=reply["values"].count(None) - len(reply["bad"]))
        for i, (graded, value) in enumerate(zip(piece, reply["values"], strict=True)):
            graded.parts[name] = value
            graded.outcome = reply["outcomes"][i] if "outcomes" in reply else None
            if len(piece) == 1:
                graded.seconds[name] = reply["seconds"]
            if i in reply["bad"]:
                graded.problems[name] = reply["bad"][i]
                self.count("not_finite", name, reply["bad"][i], graded)

    def total(self, graded: Graded) -> float | None:
        """The weighted sum of a completion's scores; None if no function applies or one failed."""
        parts = {name: value for name, value in graded.parts.items() if value is not None}
        if graded.problems or not parts:
            return None
        return sum(self.weights[name] * value for name, value in parts.items())
