"""The checks and the verdict."""

import math
import statistics
from collections import Counter
from pathlib import Path

from parts.foundation.messages import need
from programs.reward_preflight.probes import PROBES, PROFILES, in_place, prepare_probes
from programs.reward_preflight.reward_process import RewardProcess, bounds
from programs.reward_preflight.rows_and_gold import CODE_COLUMNS, SOLUTIONS, answer_columns, gold_variants
from programs.reward_preflight.scoring import Graded, Grader, excerpt
from programs.reward_preflight.thresholds import KINDS, LONGEST, OWN_DATA, PAYING_ROWS, PROBE_ROWS, SLOW_S, TRIAL_ROWS

PASS_RATES = (0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99)
ADVICE = {
    "raised": "score such a completion with the lowest value; raise only for wrong columns",
    "hung": "bound the work in a process that can be killed; --timeout_s for more time",
    "died": "never end the process; run native or untrusted code in another",
    "malformed": "return a list with one entry per completion",
    "not_finite": "return a finite number, or None where the function does not apply",
    "changed": "copy what you change: other functions get the same lists",
    "batch": "score each completion by itself: batches differ with the number of processes and the order of the data",
    "slow_batch": "--timeout_s for more time, or an async function",
    "not_deterministic": "seed what is random; temperature 0 and a cache for a judge",
    "signature": "add **kwargs",
    "latency": "bound the work per completion, or make it async",
    "long_gold": "a larger --max_new_tokens, shorter references, or --max_characters if tokens are longer here",
    "chat": "--chat here and in the run, or chat messages; nothing for a base model",
    "profile": "--profile format to say so; --profile answer if the reward is to pay for right answers",
    "groups": "easier or harder prompts, a larger --group_size, a finer reward; more samples for a surer forecast",
}
WARNINGS = {"slow_batch", "signature", "latency", "none", "long_gold", "chat", "profile"}  # findings that never fail


class Findings:
    """What was found; of each check three are kept, the others counted."""

    def __init__(self):
        self.kept, self.counts = [], Counter()

    def add(self, check: str, message: str, failed: bool, advice: str, extra: dict | None = None) -> None:
        """Add a finding, which fails or warns."""
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


def payment_status(find, line: dict, shares: list[tuple[float, object]], advice: str) -> str:
    """Status of a probe or policy, with findings about what is paid more than it may be.

    Args:
        find: `find(check, message, evidence, failed, advice)` adds a finding.
        line: its name, what it says, the mean share of gold that it is paid and the share that is allowed.
        shares: (share of gold, evidence) of its rows.
    """
    allowed, summary = line["allowed"], line["what"]
    paying = sorted((pair for pair in shares if pair[0] > allowed + 1e-6), key=lambda pair: -pair[0])
    failed = bool(paying) and (line["share"] > allowed + 1e-6 or len(paying) > PAYING_ROWS * len(shares))
    for share, evidence in paying[:3]:
        paid = f"pays {share:.0%} of gold's {line['noun']}, {allowed:.0%} allowed"
        allow = f"--allow {line['name']}={math.ceil(100 * share) / 100:g}"
        text = f"{paid}, for: {summary[0].lower()}{summary[1:-1]}"
        find(line["name"], text, evidence, failed, f"{advice}, or {allow} if it is meant")
    return "FAIL" if failed else "warning" if paying else "pass"


class Preflight:
    """Runs the checks one after another; `report` is what --json prints."""

    def __init__(self, args, rows: list[dict], process: RewardProcess):
        self.args, self.rows, self.process = args, rows, process
        self.grader = Grader(process, lambda kind, name, text, graded: self.find(kind, f"{name} {text}", graded))
        self.findings = Findings()
        self.ranges = {function["name"]: bounds(function["range"]) for function in process.functions}
        self.whole = {function["name"] for function in process.functions if function["needs_group"]}
        self.report = {"reward": args.reward, "data": args.data, "rows": len(rows), "seed": args.seed}
        columns = {name for row in rows for name in row["columns"]}
        for function in process.functions:
            lacking = sorted(set(function["needs"]) - {"prompts", "completions", "completion_ids"} - columns)
            need(
                not lacking,
                f"reward {function['name']} takes {', '.join(map(repr, lacking))}; got data with the columns "
                f"{', '.join(sorted(columns)) or 'none'}; expected that column too; try a function for this data",
            )

    def find(
        self, check: str, message: str, graded: Graded | None = None, failed: bool = True, advice: str = ""
    ) -> None:
        """Add a finding; the fourth and later of a check are only counted."""
        advice, extra = advice or ADVICE.get(check, ""), {}
        if graded and len(graded.text) > LONGEST // 2 and not self.args.max_characters:
            advice += "; or say --max_new_tokens N, if completions of the run are shorter"
        if graded:
            score = self.grader.total(graded)
            extra = {"row": graded.row["number"], "completion": excerpt(graded.text), "score": score}
        varies = self.args.profile == "judge" and check in ("not_deterministic", "batch")
        self.findings.add(check, message, failed and not varies and check not in WARNINGS, advice, extra)

    def run(self, samples: list[tuple[dict, str]]) -> dict:
        """All checks; returns the report with the verdict."""
        golds = self.gold()
        self.settle_profile(golds)
        self.probes(golds)
        self.contract(golds)
        self.prompts()
        self.groups(samples)
        self.functions(golds)
        return self.report | self.findings.verdict()

    # ---- gold

    def full(self, graded: Graded) -> float:
        """The highest score that the functions which apply to a completion can give."""
        if self.args.full_score is not None:
            return self.args.full_score
        # a score that compares the completions of a group is no part of what one alone can reach
        alone = self.ranges.keys() - self.whole
        applying = [name for name in alone if graded.parts.get(name) is not None or name in graded.problems]
        weighted = [[self.grader.weights[name] * (end or 0.0) for end in self.ranges[name]] for name in applying]
        return sum(map(max, weighted))

    def is_full(self, graded: Graded) -> bool:
        """Whether a completion has full marks, but for a small part such as one that shapes the length."""
        total, full = self.grader.total(graded), self.full(graded)
        return total is not None and total >= full * (self.args.full_share if full > 0 else 1.0) - 1e-6

    def learn_ranges(self, graded: list[Graded]) -> None:
        """Where no range is documented, the top is 1, or the best gold score above that."""
        for name, (low, high) in self.ranges.items():
            best = max([1.0, *(g.parts[name] for g in graded if g.parts.get(name) is not None)])
            self.ranges[name] = (low, best if high is None else high)

    def figures(self, results: list[Graded]) -> dict:
        """Share of full marks among the rows to which a function applies, mean score, share of None."""
        totals = [total for graded in results if (total := self.grader.total(graded)) is not None]
        applicable = len(totals) + sum(bool(graded.problems) for graded in results)
        return {
            "full_marks": sum(map(self.is_full, results)) / max(1, applicable),
            "mean": statistics.fmean(totals) if totals else None,
            "none": 1 - applicable / len(results),
        }

    def gold(self) -> list[Graded]:
        """Score the reference completions in the format that scores best, and report recall."""
        variants = {row["number"]: gold_variants(row, self.args) for row in self.rows}
        rows = [row for row in self.rows if variants[row["number"]]]
        need(
            rows,
            f"{self.args.data}: got columns {', '.join(self.rows[0]['columns']) or 'none'} without a reference "
            f"completion; expected one of {', '.join((*SOLUTIONS, *answer_columns(self.args)))}; "
            "try --answer_column, --gold_column or --gold_template with a completion of full marks",
        )
        trial = {}
        for name in dict.fromkeys(name for row in rows for name in variants[row["number"]]):
            pairs = [(row, variants[row["number"]][name]) for row in rows if name in variants[row["number"]]]
            trial[name] = self.grader.grade(pairs[:TRIAL_ROWS])
        self.learn_ranges([graded for results in trial.values() for graded in results])
        table = {name: self.figures(results) for name, results in trial.items()}
        order = sorted(table, key=lambda name: (-table[name]["full_marks"], -(table[name]["mean"] or 0.0)))
        for row in rows:
            row["gold"] = next(variants[row["number"]][name] for name in order if name in variants[row["number"]])
        results = self.grader.grade([(row, row["gold"]) for row in rows], alone=True)
        self.learn_ranges(results)
        self.report["gold"] = {"variant": order[0], **self.figures(results), "full_score": max(map(self.full, results))}
        self.report["gold"] |= {"rows": len(rows), "rows_without_gold": len(self.rows) - len(rows), "variants": table}
        self.judge_gold(results, variants, order)
        return results

    def judge_gold(self, results: list[Graded], variants: dict, order: list[str]) -> None:
        """Findings about recall and None."""
        gold, best = self.report["gold"], max(self.grader.total(graded) or 0.0 for graded in results)
        failed = gold["full_marks"] < self.args.min_recall and self.args.profile != "judge"
        if failed:
            message = "all get None" if gold["none"] == 1 else f"{gold['full_marks']:.1%} have full marks"
            advice = "--gold_template or --gold_column for another format; check the columns that the function reads"
            if best > 0 and not gold["full_marks"]:
                advice += f"; --full_score {best:g} if more is not meant to be reached"
            self.find("gold", f"of {gold['rows']} gold completions {message}", advice=advice)
        self.judge_length(results)
        for graded in [g for g in results if not self.is_full(g) and self.grader.total(g) is not None][:2]:
            others = {name: variants[graded.row["number"]].get(name) for name in order}
            tried = self.grader.grade([(graded.row, text) for text in others.values() if text])
            better = next((f"; as {excerpt(g.text, 40)!r} it has full marks" for g in tried if self.is_full(g)), "")
            parts = ", ".join(f"{name} {value}" for name, value in graded.parts.items())
            text = f"gold scores {self.grader.total(graded):g} of {self.full(graded):g} ({parts}){better}"
            self.find("gold", text, graded, failed, "look at this row's reference")
        if 0 < gold["none"] < 1:
            message = f"{gold['none']:.1%} of the gold completions get None: trainers count that as 0 or skip it"
            self.find("none", message, advice="leave out rows whose reference cannot be used")

    def judge_length(self, results: list[Graded]) -> None:
        """A warning where the run cuts off what it should learn to say."""
        limit = self.args.max_characters
        longer = [graded for graded in results if limit and len(graded.text) > limit]
        if longer:
            share = f"{len(longer)} of {len(results)} gold completions"
            message = f"{share} are longer than {limit:,} characters, the run's limit"
            self.find("long_gold", message, longer[0])

    # ---- probes

    def settle_profile(self, golds: list[Graded]) -> None:
        """Take --profile, or else format for functions that name no gold column and score any row alike."""
        self.profile = self.args.profile or "answer"
        known = {*answer_columns(self.args), *SOLUTIONS, *CODE_COLUMNS, self.args.gold_column}
        if not self.args.profile and not known & {n for f in self.process.functions for n in f["names"]}:
            pairs = [pair for pair in zip(golds, [*golds[1:], *golds[:1]], strict=True) if differ(*pair)][:TRIAL_ROWS]
            moved = self.grader.grade([(in_row_of(other, graded), graded.text) for graded, other in pairs])
            scores = [(self.grader.total(a), self.grader.total(b)) for (a, _), b in zip(pairs, moved, strict=True)]
            if pairs and all(a is not None and a == b for a, b in scores):
                self.profile = "format"
                self.find("profile", "no score depends on the row, so a wrong answer may be paid: checked as a format")
        self.report["profile"] = self.profile

    def probes(self, golds: list[Graded]) -> None:
        """Score the completions that must not pay, made from rows whose gold scored best."""
        limit = self.args.max_characters
        prepare_probes([graded.row for graded in golds], self.rows, self.args.seed, limit)
        ranked = [g.row for g in sorted(golds, key=lambda graded: not self.is_full(graded))[:PROBE_ROWS]]
        tables = {}
        for name, (_, function) in PROBES.items():
            long = name == "very_long"
            made = [(row, function(row)) for row in ranked[: 2 if long else None]]
            pairs = [(row, text) for row, texts in made for text in dict.fromkeys(text[:limit] for text in texts)]
            tables[name] = self.grader.grade([(row, text) for row, text in pairs if text != row["gold"]], alone=long)
        gold = self.report["gold"]["mean"] or 0.0
        totals = [self.grader.total(graded) for results in tables.values() for graded in results]
        floor = 0.0 if gold > 1e-9 else min([0.0, gold, *(total for total in totals if total is not None)])
        if gold - floor < 1e-9:
            self.find("probes", "gold scores no more than the worst completion", advice="see the findings about gold")
        self.report["probes"] = [self.probe_line(name, results, gold, floor) for name, results in tables.items()]
        slowest = max((seconds for g in tables["very_long"] for seconds in g.seconds.values()), default=0.0)
        if slowest > SLOW_S:
            size = max(len(graded.text) for graded in tables["very_long"])
            message = "" if limit else "; try --max_new_tokens N, the run's limit, where completions are shorter"
            self.find("latency", f"a completion of {size:,} characters takes {slowest:.1f} s{message}")

    def probe_line(self, name: str, results: list[Graded], gold: float, floor: float) -> dict:
        """One line of the table of probes, with its findings."""
        usual, summary = PROFILES[self.profile].get(name, PROBES[name][0]), PROBES[name][1].__doc__
        allowed = self.args.allow.get(name, usual)
        line = {"name": name, "what": summary, "allowed": allowed, "completions": len(results), "paying_rows": 0}
        scored = [(total, graded) for graded in results if (total := self.grader.total(graded)) is not None]
        if not scored or gold - floor < 1e-9:
            return line | {"share": None, "worst": None, "status": "n/a"}
        shares = sorted(((t - floor) / (gold - floor), i) for i, (t, _) in enumerate(scored))
        worst = {scored[i][1].row["number"]: (share, scored[i][1]) for share, i in shares}  # of each row
        line |= {"share": statistics.fmean(share for share, _ in shares), "worst": shares[-1][0]}
        line["paying_rows"] = sum(share > allowed + 1e-6 for share, _ in worst.values())
        advice = "make the function refuse it"
        return line | {"status": payment_status(self.find, line | {"noun": "score"}, [*worst.values()], advice)}

    # ---- contract, groups, functions

    def contract(self, golds: list[Graded]) -> None:
        """Score one mixed batch twice, reversed and one by one; the scores have to be the same."""
        mixed = [g.text if i % 2 else wrong_text(g.row) for i, g in enumerate(golds[:PROBE_ROWS])]
        pairs = [(graded.row, text) for graded, text in zip(golds, mixed, strict=False)]
        first = self.grader.grade(pairs)
        again, reverse = self.grader.grade(pairs), self.grader.grade(pairs[::-1])[::-1]
        result = {"deterministic": self.agree(first, again, "not_deterministic", "the same batch again")}
        if result["deterministic"]:
            result["order_independent"] = self.agree(first, reverse, "batch", "the batch reversed")
            alone = self.grader.grade(pairs, alone=True)
            result["batch_independent"] = self.agree(first, alone, "batch", "alone instead of in a batch")
        result["inputs_unchanged"] = not any(tally["changed"] for tally in self.grader.tallies.values())
        closed = [function["name"] for function in self.process.functions if not function["takes_any"]]
        for name in closed:
            self.find("signature", f"{name} has no **kwargs: TRL passes it every column, which is a TypeError")
        self.report["contract"] = result | {"takes_any_column": not closed}

    def agree(self, a: list[Graded], b: list[Graded], check: str, how: str) -> bool:
        """Whether two gradings of the same completions agree; findings where not."""
        same = True
        for x, y in zip(a, b, strict=True):
            names = (x.parts.keys() & y.parts.keys()) - x.problems.keys() - y.problems.keys()
            for name in names - (self.whole if check == "batch" else set()):  # of a group by definition
                u, v = x.parts[name], y.parts[name]
                if u != v and (u is None or v is None or abs(u - v) > 1e-6):
                    same = False
                    self.find(check, f"{name} scores {u}, then {v} for {how}", x)
        return same

    def groups(self, samples: list[tuple[dict, str]]) -> None:
        """Spread of the samples within the group of a prompt; without samples, the forecast for some pass rates."""
        size = self.args.group_size
        if not samples:
            table = [{"pass_rate": p, "zero_std": round(p**size + (1 - p) ** size, 6)} for p in PASS_RATES]
            self.report["groups"] = {"group_size": size, "source": "formula", "table": table}
            return
        by_prompt = {}
        for graded in self.grader.grade(samples):
            if (total := self.grader.total(graded)) is not None:
                by_prompt.setdefault(graded.row["number"], []).append((total, self.is_full(graded)))
        groups = [{"row": number, **spread(scored, size)} for number, scored in by_prompt.items()]
        several = [group["std"] < 1e-9 for group in groups if group["samples"] > 1]
        figures = {"group_size": size, "source": self.args.samples, "samples": len(samples), "prompts": len(groups)}
        for name in ("mean", "std", "pass_rate", "zero_std_forecast"):
            figures[name] = statistics.fmean(group[name] for group in groups) if groups else None
        figures["zero_std_observed"] = statistics.fmean(several) if several else None
        self.report["groups"] = figures | {"by_prompt": groups}
        forecast = figures["zero_std_forecast"] or 0.0
        if forecast >= 0.5:
            message = f"{forecast:.0%} of the groups of {size} would have one score only, hence no advantage"
            self.find("groups", message, failed=forecast > self.args.max_zero_std)

    def prompts(self) -> None:
        """Tell of prompts that bypass a chat template."""
        strings = sum(isinstance(row["prompt"], str) for row in self.rows)
        self.report["string_prompts"] = strings
        if strings and not self.args.chat and Path(self.args.data).resolve().parent != OWN_DATA:
            message = f"{strings} of {len(self.rows)} prompts are strings, which bypass a model's chat template"
            self.find("chat", f"{message}: an instruct model rarely answers them, and rewards stay near 0")

    def functions(self, golds: list[Graded]) -> None:
        """Calls, failures, None and latency of each function."""
        lines = []
        for function in self.process.functions:
            name, tally = function["name"], self.grader.tallies[function["name"]]
            values = [g.parts[name] for g in golds if g.parts.get(name) is not None]
            seconds = sorted(g.seconds[name] for g in golds if name in g.seconds)
            line = {key: function[key] for key in ("name", "weight", "range")}
            line |= {"gold_mean": statistics.fmean(values) if values else None}
            line |= {key: tally[key] for key in ("calls", "completions", *KINDS)}
            line |= {"none_rate": tally["none"] / max(1, tally["completions"])}
            line |= {"first_call_ms": round(1e3 * self.grader.first_s[name], 3)}
            line |= {f"p{q}_ms": percentile_ms(seconds, q / 100) for q in (50, 99)}
            lines.append(line)
            if seconds and line["p99_ms"] > 1e3 * SLOW_S:
                self.find("latency", f"{name} takes {line['p99_ms'] / 1e3:.1f} s a completion (p99)")
        self.report["functions"] = lines


def differ(graded: Graded, other: Graded) -> bool:
    """Whether the completions of two rows have different answers, or else the rows different prompts or columns."""
    a, b = graded.row, other.row
    if a["answer"]:
        return a["answer"] != b["answer"]
    return (a["prompt"], without_schema(a)) != (b["prompt"], without_schema(b))


def without_schema(row: dict) -> dict:
    """The columns of a row but for a JSON Schema, which is a rule of form and no answer."""
    return {name: value for name, value in row["columns"].items() if name != "schema"}


def in_row_of(other: Graded, graded: Graded) -> dict:
    """The other's row, with the schema of this one."""
    schema = {name: value for name, value in graded.row["columns"].items() if name == "schema"}
    return other.row | {"columns": without_schema(other.row) | schema}


def wrong_text(row: dict) -> str:
    """A completion that should score low, for a batch of different scores."""
    return in_place(row, row["wrong"][0]) if row["wrong"] else row["other_gold"]


def spread(scored: list[tuple[float, bool]], size: int) -> dict:
    """Figures of one prompt's (score, full marks) pairs; the forecast is the sum of q^size over score values."""
    scores = [score for score, _ in scored]
    shares = [count / len(scores) for count in Counter(round(score, 9) for score in scores).values()]
    return {
        "samples": len(scores),
        "mean": statistics.fmean(scores),
        "std": statistics.pstdev(scores),
        "pass_rate": sum(full for _, full in scored) / len(scored),
        "zero_std_forecast": sum(share**size for share in shares),
    }


def percentile_ms(seconds: list[float], share: float) -> float | None:
    """Nearest-rank percentile of sorted seconds, in milliseconds."""
    return round(1e3 * seconds[max(0, math.ceil(share * len(seconds)) - 1)], 3) if seconds else None
