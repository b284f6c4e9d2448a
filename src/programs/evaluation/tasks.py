"""What a task is; generation, mathematics, code."""

import math
import re
from collections.abc import Iterable
from typing import ClassVar

from parts.data.pass_rates import pass_at_k
from parts.data.question_parts import unnamed_function
from parts.data.rows import check_prompt
from parts.evaluating.paired_tests import Values
from parts.foundation.bundle import sibling
from parts.foundation.messages import UserError, need, suggest
from parts.rewards.user_code import user_text
from programs.evaluation.rows import PROMPT_COLUMNS, first_of
from programs.evaluation.settings import Config

STRICT = re.compile(r"#### (\-?[0-9\.\,]+)")
FLEXIBLE = re.compile(r"(-?[$0-9.,]{2,})|(-?[0-9]+)")
IGNORED = (re.compile(","), re.compile(r"\$"), re.compile(r"(?s).*#### "), re.compile(r"\.$"))


def extract_strict(text: str) -> str:
    """The first `#### number`, as lm-evaluation-harness's strict-match of GSM8K; "[invalid]" without one."""
    matches = STRICT.findall(text)
    return matches[0].strip() if matches else "[invalid]"


def extract_flexible(text: str) -> str:
    """The last number, as lm-evaluation-harness's flexible-extract of GSM8K; "[invalid]" without one."""
    matches = FLEXIBLE.findall(text)
    return next(part for part in matches[-1] if part).strip() if matches else "[invalid]"


def gsm8k_form(text: str) -> str:
    """What lm-evaluation-harness compares: without `,`, `$`, all up to the last `#### ` and a final point, lower case.

    >>> gsm8k_form("2+2=4\\n#### $1,004.")
    '1004'
    """
    for pattern in IGNORED:
        text = pattern.sub("", text)
    return text.lower()


def ngram_share(words: list[str], size: int) -> float | None:
    """Distinct n-grams divided by n-grams (Li 2016); None for a text of fewer than `size` words."""
    grams = [tuple(words[i : i + size]) for i in range(len(words) - size + 1)]
    return len(set(grams)) / len(grams) if grams else None


class Task:
    """One task: what to ask of a row, and how to score what comes back.

    `score(rows, outputs)` gets a list of outputs {"text", "ids", "tokens", "finish"} per row, or of log-probs, and
    returns a list of records per row, for samples.jsonl; `values_of(records)` is {metric: Values} over the rows.
    """

    name = "task"
    logprobs = False  # scored by log-probs instead of completions
    plays = False  # scored by conversations
    asks = True  # has prompts
    in_turns = False  # whether a chat template writes them, which depends on the model
    targets_named = False  # takes names of functions beside options
    options: ClassVar[dict] = {}  # option: default, whose type the option has
    choices_of: ClassVar[dict] = {}  # option: the values that it may have
    needs = ()  # columns of which a row must have one
    passes = ""  # the metric that pass@k counts
    definition = ""
    directions: ClassVar[dict] = {}  # whether higher is better, None for neither, where that is not so

    def __init__(self, text: str, config: Config):
        self.label, self.config, self.targets = text, config, []
        self.settings = {"data": "", "limit": 0, "max_new_tokens": 0, **self.options}
        for part in filter(None, text.partition(":")[2].split(",")):
            key, equals, value = part.partition("=")
            if not equals:
                need(self.targets_named, f"got {part!r} in {text!r}; expected key=value")
                self.targets.append(part)
                continue
            near = suggest(key, list(self.settings))
            need(key in self.settings, f"got task {text!r}; expected options {', '.join(self.settings)}{near}")
            kind, known = type(self.settings[key]), self.choices_of.get(key)
            need(not known or value in known, f"got {part} in {text!r}; expected one of {', '.join(known or ())}")
            try:
                self.settings[key] = kind(value)
            except ValueError:
                raise UserError(f"got {key} {value!r} in task {text!r}; expected a {kind.__name__}") from None
        self.source = self.settings["data"] or config.data
        self.max_new_tokens = self.settings["max_new_tokens"] or config.max_new_tokens
        self.ks = read_ks(self)
        self.check()

    def check(self) -> None:
        """Raise UserError for what cannot work, and load what the task needs."""

    def stops(self, chat: bool) -> list[str]:
        return []

    def prompt(self, row: dict):
        """The prompt that a row has: text, or chat messages."""
        prompt = self.require(row, PROMPT_COLUMNS)
        check_prompt(prompt, "column prompt")
        return prompt

    def question(self, row: dict):
        """What is asked; with the option `template`, as `Question: …` where that or the column's name says so."""
        prompt, template = self.prompt(row), self.settings.get("template", "plain")
        if template == "plain" or (template == "auto" and "prompt" in row):
            return prompt
        return f"Question: {user_text(prompt)}\nAnswer:"

    def target(self, row: dict) -> str:
        """What the assistant says to a few-shot row."""
        answer = first_of(row, ("completion", "solution", "answer", "canonical_solution", "code"))
        text = user_text(answer) if isinstance(answer, list) and answer else answer
        need(isinstance(text, str), f"got columns {', '.join(row)}; expected completion, solution or answer as text")
        return text

    def require(self, row: dict, names) -> object:
        """The first of these columns, or UserError."""
        value = first_of(row, names)
        got = f"task {self.name} got columns {', '.join(row)}; expected one of {', '.join(names)}"
        need(value is not None, f"{got}; try data_loader.py, with --map prompt=COLUMN answer=COLUMN")
        return value

    def unused(self, row: dict) -> dict:
        """The columns of a row that the task does not use beside its question."""
        return row

    def check_row(self, row: dict) -> None:
        """Raise UserError unless the row has what the scoring needs."""
        if self.needs:
            self.require(row, self.needs)

    def decide(self, placed: list[tuple[str, dict]]) -> None:
        """Settle what holds for all (place, row) pairs; UserError where it cannot be."""

    def score(self, rows: list[dict], outputs: list[list[dict]]) -> list[list[dict]]:
        """Of each row its records, one for each completion, or one for all log-probs.

        A record is {"completion", "finish", "tokens", "metrics": {name: number or None}, "extracted", "reason"}.
        """
        if self.logprobs:
            scored, groups = map(self.score_logprobs, rows, outputs), [[{}]] * len(rows)
        else:
            pairs = [(row, out) for row, outs in zip(rows, outputs, strict=True) for out in outs]
            scored, groups = iter(self.score_pairs(pairs)), outputs
        shown = {"completion": "text", "finish": "finish", "tokens": "tokens"}
        return [[{name: out.get(key) for name, key in shown.items()} | next(scored) for out in outs] for outs in groups]

    def score_pairs(self, pairs: list[tuple[dict, dict]]) -> Iterable[dict]:
        """What the records of (row, output) pairs add to the output."""
        return (self.score_one(row, out) for row, out in pairs)

    def values_of(self, records: list[list[dict]]) -> dict:
        """The values of all metrics in the records: a row's is the mean over its samples that have one."""
        values = {}
        for name in dict.fromkeys(n for outs in records for r in outs for n in r["metrics"]):
            by_row = [[r["metrics"][name] for r in outs if r["metrics"].get(name) is not None] for outs in records]
            means = [sum(x) / len(x) if x else None for x in by_row]
            values[name] = Values(means, higher_is_better=self.directions.get(name, True))
        return values | pass_values(records, self.passes, self.ks)


def read_ks(task: Task) -> list[int]:
    """The option k=1/10 as numbers, none above the samples there are."""
    text = task.settings.get("k", "")
    try:
        ks = [int(k) for k in filter(None, text.split("/"))]
    except ValueError:
        raise UserError(f"got k={text} in {task.label!r}; expected numbers like k=1/10") from None
    n = math.inf if task.config.completion_column else task.config.n
    for k in ks:
        need(1 <= k <= n, f"got k={k} in {task.label!r} with n {n}; expected k of 1 to n; try --n {max(k, 1)}")
    return ks


def pass_values(records: list[list[dict]], metric: str, ks: list[int]) -> dict:
    """{"pass@k": Values}, a row's value being the unbiased estimate from its samples; None of fewer than k usable."""
    values = {f"pass@{k}": [] for k in ks}
    for outs in records:
        passed = [r["metrics"].get(metric) for r in outs]
        usable = [x for x in passed if x is not None]
        for k in ks:
            too_few = len(usable) < k <= len(outs) or not usable
            values[f"pass@{k}"].append(None if too_few else pass_at_k(len(usable), int(sum(usable)), k))
    return {name: Values(x) for name, x in values.items()}


class Generation(Task):
    """What completions look like."""

    name = "generation"
    neutral = ("length_tokens", "length_characters", "distinct_1", "distinct_2", "distinct_3", "repetition_4")
    directions: ClassVar[dict] = dict.fromkeys(neutral) | {"truncated": False, "empty": False}
    definition = "distinct_n and repetition_4 over whitespace-separated words of each completion; truncated: no end"

    def score_one(self, row, out):
        text, words = out["text"], out["text"].split()
        metrics = {"length_tokens": out["tokens"], "length_characters": len(text)}
        metrics |= {f"distinct_{n}": ngram_share(words, n) for n in (1, 2, 3)}
        share = ngram_share(words, 4)
        metrics["repetition_4"] = None if share is None else 1 - share
        metrics["truncated"] = None if out["finish"] == "given" else float(out["finish"] == "length")
        metrics["empty"] = float(not text.strip())
        return {"metrics": metrics, "extracted": None, "reason": f"ended by {out['finish']}"}


class Math(Task):
    """Final answers of mathematical problems."""

    name = "math"
    options: ClassVar[dict] = {"template": "auto", "k": ""}
    choices_of: ClassVar[dict] = {"template": ("auto", "gsm8k", "plain")}
    needs = ("answer", "final_answer", "expected_answer", "ground_truth", "solution")
    passes = "verified"
    definition = (
        "strict, flexible: strict-match and flexible-extract of GSM8K in lm-evaluation-harness 0.4.13; "
        "verified: math_grader.py on the final answer (box, tag, ####, 'the answer is', or nothing but an answer)"
    )

    def question(self, row):
        """What is asked; in a user's turn as it is, unless the option `template` says otherwise."""
        as_it_is = self.in_turns and self.settings["template"] == "auto"
        return self.prompt(row) if as_it_is else super().question(row)

    def stops(self, chat):
        return ["Question:", "</s>", "<|im_end|>"]

    def target(self, row):
        solution = first_of(row, ("solution", "completion"))
        return super().target(row) if solution is None else super().target({"solution": solution})

    def score_one(self, row, out):
        grader, gold, text = sibling("math_grader"), first_of(row, self.needs), out["text"]
        grader.start_worker(patience_s=60)  # an evaluation waits for it rather than leave an answer out
        expected = gsm8k_form(str(gold))
        numeric = bool(re.fullmatch(r"-?[0-9.]+", expected))
        extracted = {"strict": extract_strict(text), "flexible": extract_flexible(text)}
        metrics = {name: float(gsm8k_form(x) == expected) if numeric else None for name, x in extracted.items()}
        verified, answer = grader.math_score(text, gold, user_text(self.prompt(row))), grader.final_answer(text)
        reason = "no final answer found" if answer is None else "right" if verified else "wrong answer"
        reason = reason if verified is not None else f"gold {str(gold)[:80]!r} cannot be graded"
        reason += " (cut off)" if out["finish"] == "length" else ""
        golds = [*map(grader.gold_answer, gold)] if isinstance(gold, list) else grader.gold_answer(gold)
        record = {"metrics": {"verified": verified} | metrics, "extracted": answer, "reason": reason, "gold": golds}
        return record | extracted


class Code(Task):
    """Programs, run against tests."""

    name = "code"
    options: ClassVar[dict] = {"k": "1", "timeout_s": 3.0}
    needs = ("tests", "test", "test_list", "test_cases")
    definition = "a sample passes if all its tests do, in sandbox.py; pass@k = 1 - C(n - c, k) / C(n, k) per problem"

    def check(self):
        need(self.settings["timeout_s"] > 0, f"got timeout_s in {self.label!r}; expected more than 0")

    def question(self, row):
        prompt = self.prompt(row)
        if isinstance(prompt, list) and len(prompt) == 1 and self.head(row):
            return prompt[0]["content"]
        tests = row.get("test_list")
        is_unnamed = "prompt" not in row or (isinstance(prompt, str) and unnamed_function(row, prompt))
        if tests and is_unnamed:  # MBPP's prompts do not name the function
            lines = [tests] if isinstance(tests, str) else map(str, tests)
            return f"{prompt}\nYour code should pass these tests:\n\n" + "\n".join(lines) + "\n"
        return prompt

    def head(self, row: dict) -> str:
        """The prompt, where it is the beginning of the program."""
        text, name = user_text(self.prompt(row)), row.get("entry_point")
        return text if name and re.search(rf"^\s*(?:async )?def {re.escape(str(name))}\b", text, re.M) else ""

    def stops(self, chat):
        return [] if chat else ["\nclass", "\ndef", "\n#", "\nif", "\nprint", "\n```\n", "[DONE]"]

    def score_pairs(self, pairs):
        sandbox, jobs = sibling("sandbox"), []
        for row, out in pairs:
            tests, prompt = first_of(row, self.needs), self.prompt(row)
            setup = row.get("setup") or "\n".join([row.get("test_setup_code") or "", *(row.get("test_imports") or [])])
            about = {"entry_point": row.get("entry_point"), "setup": setup if setup.strip() else self.head(row)}
            program = sandbox.program_of(out["text"], tests, prompt=prompt, **about)
            jobs.append({"code": program, "tests": tests, "timeout_s": self.settings["timeout_s"], **about})
        try:
            return map(self.record, sandbox.run_many(jobs), jobs)
        except (sandbox.BadTests, sandbox.SandboxError) as error:
            raise UserError(f"task code: {error}") from None

    def values_of(self, records):
        return pass_values(records, "passed", self.ks)

    def record(self, verdict, job: dict) -> dict:
        """The record of one program; tests that cannot be used do not count."""
        passed = float(verdict.all_passed) if verdict.usable else None
        reason = f"{verdict.status}: {verdict.passed} of {verdict.total} tests; {verdict.detail}"
        return {"metrics": {"passed": passed}, "extracted": job["code"], "reason": reason[:2000]}
