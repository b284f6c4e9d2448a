"""The checks of a reward and the verdict."""

import itertools
import math
import statistics
from collections import Counter
from pathlib import Path

from parts.foundation.bundle import EMBEDDED_DATA
from parts.foundation.messages import need
from parts.rewards.user_code import reward_arguments
from programs.reward_preflight.probes import LONGEST, PROBES, PROFILES, in_place, prepare_probes
from programs.reward_preflight.reward_process import OwnProcess, bounds
from programs.reward_preflight.rows_and_gold import SOLUTIONS, answer_columns, gold_variants
from programs.reward_preflight.scoring import KINDS, Graded, Grader

FULL_SHARE = 0.95  # share of the highest score that counts as full marks, as a part may shape the length
MIN_RECALL = 0.95  # share of gold that must have full marks
TRIAL_ROWS = 8  # rows on which the gold formats compete
PROBE_ROWS = 32  # rows from which probes are made
LEAK = 2 << 20  # bytes by which the process grows each time that the same batch is scored again
CHECKED = 56  # completions of a row that the checks score
PAYING_ROWS = 0.05  # share of rows that may be paid more than allowed; up to it each is a warning
SLOW_S = 1.0  # seconds for a completion above which there is a warning
ADVICE = {
    "raised": "give such a completion the lowest score; raise only for wrong columns",
    "hung": "run the work in a process that can be killed; --timeout_s allows more time",
    "died": "never exit the process; run native or untrusted code in another one",
    "malformed": "return a list with one entry per completion",
    "not_finite": "return a finite number, or None where the function does not apply",
    "changed": "copy a list before changing it: other functions get the same lists",
    "memory": "keep nothing, or a bounded number of entries, from one call to the next",
    "state": "keep nothing from one call to the next",
    "batch": "score each completion by itself: batches differ with the number of processes and the order of the data",
    "not_deterministic": "keep nothing from earlier calls; seed random choices; give a judge temperature 0 and a cache",
    "signature": "add **kwargs",
    "unscored": "None means not applicable, and such an answer has no gradient: give wrong answers 0",
    "latency": "bound the work per completion, or make it async; --timeout_s allows more time",
    "sign": "the sign of the score, and the row whose reference it reads",
    "long_gold": "a larger --max_new_tokens, or shorter references",
    "chat": "--chat in the preflight and the run, or chat messages; a base model needs neither",
}
WARNINGS = {"signature", "latency", "none", "long_gold", "chat"}  # findings that never fail


class Preflight:
    """Runs the checks of a reward one after another; `report` is what --json prints."""

    def __init__(self, args, rows: list[dict], process: OwnProcess):
        self.args, self.rows, self.functions = args, rows, process.about
        self.findings, self.counts = [], Counter()  # three of each check are kept, the others counted
        known = {"reward": args.reward, "data": args.data, "rows": len(rows), "seed": args.seed, "gold": None}
        self.report = {"profile": args.profile} | known
        weights = {function["name"]: function["weight"] for function in self.functions}
        self.grader = Grader(process, weights, self.find)
        self.best = {}  # {function: its `best_score`}
        self.upside_down = False  # whether a form of gold is paid less than wrong answers in that form
        self.whole = {function["name"] for function in self.functions if function["needs_group"]}  # score groups

    def find(
        self, check: str, message: str, graded: Graded | None = None, failed: bool = True, advice: str = ""
    ) -> None:
        """Add a finding, with what was `graded` as evidence; a failure, or else a warning."""
        self.counts[check] += 1
        advice = advice or ADVICE.get(check, "")
        if graded and graded.row["gold"] is None:
            message += f", row {graded.row['number']}, which has no reference"
        if graded and len(graded.text) > LONGEST // 2 and not self.args.limit_characters:
            advice += "; or --max_new_tokens N, if completions of the run are shorter"
        varies = self.args.profile == "judge" and check in ("not_deterministic", "batch", "state")
        failed = failed and not varies and check not in WARNINGS
        entry = {"severity": "fail" if failed else "warning", "check": check, "message": message, "try": advice}
        if self.counts[check] <= 3:
            self.findings.append(entry | (self.evidence(graded) if graded else {}))

    def evidence(self, graded: Graded) -> dict:
        text = graded.text if len(graded.text) <= 100 else graded.text[:100] + "…"
        score = self.grader.total(graded)
        return {"row": graded.row["number"], "completion": repr(text)[1:-1], "score": score}

    def run(self) -> dict:
        """All checks; returns the report with the verdict."""
        self.fit()
        golds = self.gold()
        self.look_at_gold(golds)
        self.probes(golds)
        self.contract(golds)
        self.describe(golds)
        findings = sorted(self.findings, key=lambda finding: finding["severity"] != "fail")
        more = {check: count - 3 for check, count in self.counts.items() if count > 3}
        ready = all(finding["severity"] != "fail" for finding in findings)
        return self.report | {"findings": findings, "more_findings": more, "ready": ready}

    def fit(self) -> None:
        """Leave out rows whose checks would take longer than --budget_s, by the time of a second small batch."""
        if not (budget := self.args.budget_s):
            return
        batch = reward_arguments(self.rows[:1] * TRIAL_ROWS, ["?"] * TRIAL_ROWS, [[1]] * TRIAL_ROWS)
        calls = [self.grader.process.call(function["name"], batch) for _ in "12" for function in self.functions]
        seconds = sum(call.get("seconds", 0.0) for call in calls[len(self.functions) :]) / TRIAL_ROWS
        if seconds * CHECKED * len(self.rows) > budget:
            slow, count = f"a completion takes {seconds:.1f} s", int(budget / seconds / CHECKED)
            expected = f"{budget / CHECKED:.1g} s, as the checks of a row score {CHECKED}; try a larger --budget_s"
            need(count, f"got {', '.join(self.args.reward)}: {slow}; expected {expected}, or an async function")
            self.find("latency", f"{slow}: only {count} of {len(self.rows)} rows are checked")
            self.rows = self.rows[:count]

    # ---- gold

    def full(self, graded: Graded) -> float:
        """The total of full marks from functions that apply: of each the highest documented score, else its `best`."""
        if self.args.full_score is not None:
            return self.args.full_score
        tops = 0.0
        for function in self.functions:
            name, (low, high) = function["name"], bounds(function["range"])
            ends = (low or 0.0, self.best.get(name, 1.0) if high is None else high)
            applies = graded.parts.get(name) is not None or name in graded.problems
            # scores that compare a group's completions are left out: a single completion cannot reach them
            tops += max(function["weight"] * end for end in ends) if applies and name not in self.whole else 0.0
        return tops

    def is_full(self, graded: Graded) -> bool:
        total, full = self.grader.total(graded), self.full(graded)
        return total is not None and total >= full * (FULL_SHARE if full > 0 else 1.0) - 1e-6

    def figures(self, results: list[Graded]) -> dict:
        """Share of full marks among rows to which some function applies, mean score, and share of None."""
        totals = [total for graded in results if (total := self.grader.total(graded)) is not None]
        applicable = len(totals) + sum(bool(graded.problems) for graded in results)
        full = sum(map(self.is_full, results)) / max(1, applicable)
        return {"full_marks": full, "mean": statistics.fmean(totals or [0.0]), "none": 1 - applicable / len(results)}

    def gold(self) -> list[Graded]:
        """Score the reference completions, in the format that scores best on the first rows."""
        pairs = [(row, variants) for row in self.rows if (variants := gold_variants(row, self.args))]
        need(
            pairs,
            f"{self.args.data}: got columns {', '.join(self.rows[0]['columns']) or 'none'}, which give no reference "
            f"completion; expected those of --gold_template or {', '.join((*SOLUTIONS, *answer_columns(self.args)))}; "
            "try --answer_column, --gold_column or --gold_template",
        )
        forms = {}
        for row, variants in pairs:
            for name, text in variants.items():
                forms.setdefault(name, []).append((row, text))
        merits = {name: self.figures(self.trial(of_form)) for name, of_form in forms.items()} if len(forms) > 1 else {}
        order = sorted(forms, key=lambda name: [-merits[name][x] for x in ("full_marks", "mean")] if merits else [])
        for row, variants in pairs:
            row["gold"] = next(variants[name] for name in order if name in variants)
        results = self.grader.grade([(row, row["gold"]) for row, _ in pairs], alone=True)
        self.best = {function["name"]: self.best_score(results, function["name"]) for function in self.functions}
        self.report["gold"] = {"variant": order[0], **self.figures(results), "full_score": max(map(self.full, results))}
        self.report["gold"] |= {"rows": len(pairs), "rows_without_gold": len(self.rows) - len(pairs)}
        return results

    def best_score(self, golds: list[Graded], name: str) -> float:
        """Gold's highest score, at least 1; its lowest if a column with few values, such as a weight, explains all."""
        paid = [(g.row["columns"], part) for g in golds if (part := g.parts.get(name) or 0.0) >= 1]
        scores = [part for _, part in paid] or [1.0]
        columns = {x for columns, _ in paid for x in columns} - {*SOLUTIONS, *answer_columns(self.args)}
        for column in columns - {self.args.gold_column}:
            pairs = {(str(columns.get(column)), round(part, 9)) for columns, part in paid}
            if len(pairs) == len({value for value, _ in pairs}) <= len(paid) / 2:
                return min(scores)
        return max(scores)

    def trial(self, pairs: list[tuple]) -> list[Graded]:
        """Score gold in one variant on the first rows, in a batch with the next rows' gold as wrong answers."""
        few = pairs[:TRIAL_ROWS]
        wrong = [(row, text) for (row, _), (_, text) in zip(few, few[1:] + few[:1], strict=True)]
        results = self.grader.grade([*few, *wrong])
        results, others = results[: len(few)], map(self.grader.total, results[len(few) :])
        scores = zip(map(self.grader.total, results), others, strict=True)
        self.upside_down |= all(None not in pair and pair[0] < pair[1] for pair in scores)
        return results

    def look_at_gold(self, results: list[Graded]) -> None:
        """Add findings about gold: recall, None, texts longer than the run's limit."""
        gold, scores = self.report["gold"], [(graded, self.grader.total(graded)) for graded in results]
        failed = gold["full_marks"] < MIN_RECALL and self.args.profile != "judge"
        if failed:
            text = f"{gold['full_marks']:.1%} of {gold['rows']} gold completions have full marks"
            text += ", which eval/accuracy counts" if gold["full_score"] == 1 else ""
            advice = "--gold_template 'Answer: {answer}', as the reward reads it, or --gold_column; check its columns"
            best = max(score or 0.0 for _, score in scores)
            if not gold["full_marks"] and best > 0:
                advice += f"; --full_score {best:g} if that is the highest score intended"
            self.find("gold", text, advice=advice)
        for graded in [g for g, score in scores if score is not None and not self.is_full(g)][:2]:
            parts = ", ".join(f"{name} {value}" for name, value in graded.parts.items())
            text = f"gold scores {self.grader.total(graded):g} of {self.full(graded):g} ({parts})"
            self.find("gold", text, graded, failed, "look at this row's reference")
        if failed and not gold["full_marks"] and self.upside_down:
            self.find("sign", "in one form of the answer, every gold one is paid less than that of another row")
        if 0 < gold["none"] < 1:
            message = f"{gold['none']:.1%} of the gold completions get None: trainers count that as 0 or skip it"
            self.find("none", message, advice="leave out rows whose reference cannot be used")
        limit = self.args.limit_characters
        longer = [graded for graded in results if limit and len(graded.text) > limit]
        if longer:
            share = f"{len(longer)} of {len(results)} gold completions"
            self.find("long_gold", f"{share} are longer than {limit:,} characters, the run's limit", longer[0])

    # ---- probes

    def probes(self, golds: list[Graded]) -> None:
        """Score the completions that must not pay, made from rows with full marks first."""
        limit = self.args.limit_characters
        prepare_probes([graded.row for graded in golds], self.rows, self.args.seed, limit)
        ranked_rows = [g.row for g in sorted(golds, key=lambda graded: not self.is_full(graded))[:PROBE_ROWS]]
        tables = {}
        for name, (_, function) in PROBES.items():
            long = name == "very_long"
            probes = [(row, function(row)) for row in ranked_rows[: 2 if long else None]]
            pairs = [(row, text) for row, texts in probes for text in dict.fromkeys(text[:limit] for text in texts)]
            tables[name] = self.grader.grade([(row, text) for row, text in pairs if text != row["gold"]], alone=long)
        gold, own_totals = self.report["gold"]["mean"], {g.row["number"]: self.grader.total(g) for g in golds}
        paid = {
            name: [(score, graded) for graded in results if (score := self.grader.total(graded)) is not None]
            for name, results in tables.items()
        }
        lowest = min((score for pairs in paid.values() for score, _ in pairs), default=0.0)
        if gold - min(0.0, lowest) < 1e-9:
            self.find("probes", "gold scores no more than the worst completion", advice="see the findings about gold")
        tried = [g for results in tables.values() for g in results if own_totals[g.row["number"]] is not None]
        unscored = [g for g in tried if not g.problems and self.grader.total(g) is None]
        if 2 * len(unscored) > sum(not g.problems for g in tried):
            message = f"{len(unscored)} of {len(tried)} completions that must not pay get None, where gold has a score"
            self.find("unscored", message, unscored[0])
        self.report["probes"] = []
        for name, results in tables.items():
            usual = PROFILES[self.args.profile].get(name, PROBES[name][0])
            line = {"name": name, "what": PROBES[name][1].__doc__, "allowed": self.args.allow.get(name, usual)}
            advice = "make the function refuse it"
            if self.args.profile == "answer" and PROFILES["format"].get(name) == 1.0:
                advice += ", or --profile format if the reward pays for the form alone"
            line["completions"] = len(results)
            self.report["probes"].append(self.payment(line, paid[name], lowest, own_totals, advice))
        slowest = max((seconds for g in tables["very_long"] for seconds in g.seconds.values()), default=0.0)
        if slowest > SLOW_S:
            size = max(len(graded.text) for graded in tables["very_long"])
            message = "" if limit else "; if completions of the run are shorter, try --max_new_tokens N"
            self.find("latency", f"a completion of {size:,} characters takes {slowest:.1f} s{message}")

    def payment(self, line: dict, paid: list, lowest: float, gold_of_row: dict, advice: str) -> dict:
        """Complete a probe's line of the report; add findings for rows that are paid too large a share of gold's score.

        Args:
            line: the name, description and allowed share.
            paid: (score, graded) pairs.
            lowest: the lowest score seen; it counts as nothing if gold is not above 0.
            gold_of_row: {row's number: what its own gold is paid}, instead of gold's mean if above nothing.
        """
        gold, allowed, summary = self.report["gold"]["mean"], line["allowed"], line["what"]
        floor = 0.0 if gold > 1e-9 else min(0.0, gold, lowest)
        if not paid or gold - floor < 1e-9:
            return line | {"share": None, "worst": None, "paying_rows": 0, "status": "n/a"}
        shares = []
        for score, graded in paid:
            top = gold_of_row.get(graded.row["number"])
            top = top if top is not None and top - floor > 1e-9 else gold
            shares.append(((score - floor) / (top - floor), graded))
        shares.sort(key=lambda pair: pair[0])
        of_rows = {graded.row["number"]: (share, graded) for share, graded in shares}  # each row's best comes last
        paying = sorted((pair for pair in of_rows.values() if pair[0] > allowed + 1e-6), key=lambda pair: -pair[0])
        line |= {"share": statistics.fmean(share for share, _ in shares), "worst": shares[-1][0]}
        failed = bool(paying) and (line["share"] > allowed + 1e-6 or len(paying) > PAYING_ROWS * len(of_rows))
        for share, graded in paying[:3]:
            text = f"pays {share:.0%} of gold's score ({allowed:.0%} allowed) for: {summary[0].lower()}{summary[1:-1]}"
            allow = f"--allow {line['name']}={math.ceil(100 * share) / 100:g}"
            self.find(line["name"], text, graded, failed, f"{advice}, or {allow} if that is intended")
        return line | {"paying_rows": len(paying), "status": "FAIL" if failed else "warning" if paying else "pass"}

    # ---- contract, functions

    def contract(self, golds: list[Graded]) -> None:
        """Score one batch of right and wrong texts twice, reversed and one by one: scores must not change.

        An empty completion precedes each text, as it must not get what an earlier one left behind.
        """
        pairs = []
        for i, g in enumerate(golds[:PROBE_ROWS]):  # every second text is wrong
            wrong = in_place(g.row, g.row["wrong"][0]) if g.row["wrong"] else g.row["other_gold"]
            pairs += [(g.row, ""), (g.row, g.text if i % 2 else wrong)]
        graded, held = [], []  # bytes after each batch
        for order in (pairs, pairs, pairs[::-1]):
            graded.append(self.grader.grade(order))
            held.append(self.grader.process.memory())
        first, again, reverse = graded[0], graded[1], graded[2][::-1]
        kept = min(after - before for before, after in itertools.pairwise(held)) if all(held) else 0
        if kept >= LEAK:
            each = f"{kept / len(pairs) / 1024:,.0f} KiB of each completion"
            self.find("memory", f"keeps {each}, even of one that it scores again")
        result = {"deterministic": self.agree(first, again, "not_deterministic", "on the same batch")}
        if result["deterministic"]:
            result["order_independent"] = self.agree(first, reverse, "batch", "in reversed order")
            alone = self.grader.grade(pairs, alone=True)
            result["batch_independent"] = self.agree(first, alone, "batch", "when scored alone")
            result["state_independent"] = self.in_a_new_process(golds)
        self.without_gold()
        result["inputs_unchanged"] = not any(tally["changed"] for tally in self.grader.tallies.values())
        closed = [function["name"] for function in self.functions if not function["takes_any"]]
        for name in closed:
            self.find("signature", f"{name} has no **kwargs: TRL passes every column, which raises a TypeError")
        self.report["contract"] = result | {"takes_any_column": not closed}
        strings = sum(isinstance(row["prompt"], str) for row in self.rows)
        self.report["string_prompts"] = strings
        embedded = Path(EMBEDDED_DATA).parent  # plain text for the embedded model
        if strings and not self.args.chat and Path(self.args.data).resolve().parent != embedded:
            message = f"{strings} of {len(self.rows)} prompts are strings, which bypass a model's chat template"
            self.find("chat", f"{message}: an instruct model rarely answers them, and rewards stay near 0")

    def in_a_new_process(self, golds: list[Graded]) -> bool:
        """Whether gold, with another variant in each row, scores the same in a new process in reversed order."""
        variants = [[*gold_variants(graded.row, self.args).values()] for graded in golds]
        count = max(TRIAL_ROWS, *map(len, variants))
        texts = [texts[i % len(texts)] for i, texts in enumerate(variants[:count])]
        pairs = [(graded.row, text) for graded, text in zip(golds, texts, strict=False)]
        rest = golds[count : 2 * count]  # a text that is wrong for one row and right for the next
        pairs += [(graded.row, graded.text) for graded in rest]
        pairs += [(graded.row, following.text) for graded, following in itertools.pairwise(rest)]
        first = self.grader.grade(pairs, alone=True)
        self.grader.process.end()  # the next call starts another
        other = self.grader.grade(pairs[::-1], alone=True)[::-1]
        return self.agree(first, other, "state", "in a new process, in reversed order")

    def without_gold(self) -> None:
        """Score a text for the rows without a reference, which a run has too; failures become findings."""
        rows = [row for row in self.rows if not row["gold"]][:PROBE_ROWS]
        for row in rows:
            row["gold"] = None
        self.grader.grade([(row, "<answer>0</answer>") for row in rows], alone=True)

    def agree(self, a: list[Graded], b: list[Graded], check: str, how: str) -> bool:
        """Whether two gradings of the same completions agree; differences become findings."""
        same = True
        for x, y in zip(a, b, strict=True):
            names = (x.parts.keys() & y.parts.keys()) - x.problems.keys() - y.problems.keys()
            for name in names - (self.whole if check == "batch" else set()):  # group scores depend on the batch
                u, v = x.parts[name], y.parts[name]
                if u != v and (u is None or v is None or abs(u - v) > 1e-6):
                    same = False
                    self.find(check, f"{name} scores {u}, then {v} {how}", x)
        return same

    def describe(self, golds: list[Graded]) -> None:
        lines = []
        for function in self.functions:
            name, tally = function["name"], self.grader.tallies[function["name"]]
            values = [g.parts[name] for g in golds if g.parts.get(name) is not None]
            seconds = sorted(g.seconds[name] for g in golds if name in g.seconds)
            line = {key: function[key] for key in ("name", "weight", "range")}
            line |= {"gold_mean": statistics.fmean(values) if values else None}
            line |= {key: tally[key] for key in ("completions", *KINDS)}
            line |= {"none_rate": tally["none"] / max(1, tally["completions"])}
            for percent in (50, 99):  # nearest rank
                place = max(0, math.ceil(percent / 100 * len(seconds)) - 1)
                line[f"p{percent}_ms"] = round(1e3 * seconds[place], 3) if seconds else None
            lines.append(line)
            if seconds and line["p99_ms"] > 1e3 * SLOW_S:
                self.find("latency", f"{name} takes {line['p99_ms'] / 1e3:.1f} s a completion (p99)")
        self.report["functions"] = lines
