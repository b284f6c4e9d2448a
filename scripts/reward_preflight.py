#!/usr/bin/env python3
# Built from src/programs/reward_preflight/ by tools/build.py: a change belongs there, then `make build`.
# A copy is yours to edit: this file needs no other of this bundle's scripts.
# /// script
# requires-python = ">=3.11"
# dependencies = ["pyarrow", "datasets"]
# ///
"""Check a reward function on real rows before a run: does it pay what it should, and only that, fast, every time?

A reward is FILE.py:function[*weight], or the name of a function or preset of the library; several are summed with their
weights, as the trainers do. It is called in a process of its own, with a time limit per call, on

    gold       the reference completion of each row, in the format that scores best: full marks expected (recall), that
               is 95 % of the highest score by the documented ranges (1 where a function documents none)
    probes     completions that must not pay: empty, cut before the answer, the prompt, lists of answers, keywords, …;
               share = (score - floor) / (gold - floor), floor = 0, or the lowest score seen where gold is not above 0
    contract   the same batch twice, reversed and one by one; lengths, NaN, exceptions, time limit, changed inputs
    samples    your model's completions: spread within the group of a prompt, and the forecast for groups of G

    zero-std forecast of a prompt = sum over score values v of q_v^G;  p^G + (1 - p)^G for two values (p = pass rate)

`--max_new_tokens N` says how long a completion of the run can be: probes are cut there, at 4 N characters or, where
that is given, at --max_characters; without either they go up to 40,000 characters.

A group whose scores are all equal has no advantage (Shao 2024, DeepSeekMath, section 4.1). q_v is the share seen in the
samples, so few samples per prompt forecast too much.

Deliberately left out: a model (bring --samples), the tokenizer (`completion_ids` are stood in for by one id for every 4
characters) and lone surrogates, which no tokenizer decodes to. About 15 completions are scored per row.

    python scripts/reward_preflight.py --list
    python scripts/reward_preflight.py --score correctness_reward --data scored.jsonl   # prompt, completion, answer
    python scripts/reward_preflight.py --reward my_rewards.py:correct --reward "my_rewards.py:format*0.2" \\
        --data train.jsonl --samples samples.jsonl --group_size 16 --json

Exit codes: 0 ready (or scored, listed), 1 not ready (--score: a row could not be scored), 2 bad input.
"""

import argparse
import asyncio
import contextlib
import csv
import difflib
import faulthandler
import functools
import importlib
import importlib.util
import inspect
import json
import math
import os
import pickle
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from dataclasses import dataclass, field
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path

# ------------------------------------------------------------------------------------ messages (src/parts/messages.py)


class UserError(Exception):
    """Something the user can mend; printed without a traceback. `code` is the exit code."""

    code = 2


def need(condition, message: str) -> None:
    """Raise UserError with a message of the form got / expected / try unless the condition holds."""
    if not condition:
        raise UserError(message)


def say(text: str) -> None:
    """Print a diagnostic line on stderr, once in a torchrun launch."""
    if os.environ.get("RANK", "0") == "0":
        print(text, file=sys.stderr, flush=True)


def suggest(word: str, names: list[str]) -> str:
    """Return '; try NAME' for the nearest name, if one is near."""
    return "".join(f"; try {name}" for name in difflib.get_close_matches(word, names, n=1))


# ------------------------------------------------------------------------------------ settings (src/parts/settings.py)


def parse_flags(parser: argparse.ArgumentParser, argv: list[str] | None) -> argparse.Namespace:
    """Parse a command line; an unknown flag ends the program with the nearest known one."""
    known, unknown = parser.parse_known_args(argv)
    if unknown:
        near = suggest(unknown[0].split("=")[0], [flag for action in parser._actions for flag in action.option_strings])
        parser.error(f"got unknown argument {unknown[0]!r}; expected a flag of --help{near}")
    return known


# -------------------------------------------------------------------------------------------- rows (src/parts/rows.py)


def read_json_lines(path: Path) -> list[dict]:
    """Read JSONL; a broken line is named by file and number (blank lines count)."""
    rows = []
    with path.open(encoding="utf-8-sig", newline="\n") as f:
        for number, line in enumerate(f, start=1):
            if not line.strip():
                continue
            try:
                rows.append(json.loads(line))
            except (ValueError, RecursionError) as error:
                raise UserError(f"{path}:{number}: got no JSON ({error}); expected one object a line") from None
            need(isinstance(rows[-1], dict), f"{path}:{number}: got {line[:40]!r}; expected an object with a prompt")
    return rows


def is_hub_id(source: str) -> bool:
    """Whether a name that is no local path could be `owner/name` or `name` on the hub."""
    return not Path(source).exists() and not source.startswith((".", "/", "~")) and source.count("/") <= 1


def read_csv(path: Path) -> list[dict]:
    """Read CSV with a header; a row of another number of fields is named by its line."""
    rows = []
    with path.open(encoding="utf-8-sig", newline="") as f:
        csv.field_size_limit(2**31 - 1)
        reader = csv.DictReader(f, strict=True)
        for row in reader:
            fits = None not in row and None not in row.values()
            need(fits, f"{path}:{reader.line_num}: got another number of fields than the header's; try quoting")
            rows.append(row)
    return rows


def read_json_list(path: Path) -> list[dict]:
    """Read JSON, one list of objects."""
    rows = json.loads(path.read_text(encoding="utf-8-sig"))
    objects = isinstance(rows, list) and all(isinstance(row, dict) for row in rows)
    need(objects, f"{path}: got JSON that is not a list of objects; try JSONL, one object a line")
    return rows


def read_parquet(path: Path) -> list[dict]:
    """Read a parquet file."""
    import pyarrow.parquet

    return pyarrow.parquet.read_table(path).to_pylist()


READERS = {
    ".jsonl": read_json_lines,
    ".ndjson": read_json_lines,
    ".json": read_json_list,
    ".csv": read_csv,
    ".parquet": read_parquet,
}


def read_hub(source: str) -> list[dict]:
    """Read a data set of the hub: `owner/name[:config][@split]`."""
    import datasets

    name, _, split = source.partition("@")
    name, _, subset = name.partition(":")
    try:
        return datasets.load_dataset(name, subset or None, split=split or "train").to_list()
    except Exception as error:
        raise UserError(f"got data {source!r}: no such file, and the hub says: {error}") from None


def read_rows(source: str) -> list[dict]:
    """Read rows from a JSONL, JSON, CSV or parquet file, or from the hub: `owner/name[:config][@split]`."""
    path, suffix = Path(source), Path(source).suffix.lower()
    if not path.is_file():
        need(
            is_hub_id(source) and suffix not in READERS,
            f"got data {source!r}, which is not a file; expected JSONL, JSON, CSV, parquet or a hub id",
        )
        return read_hub(source)
    need(suffix in READERS, f"got data {source!r}; expected a name ending in .jsonl, .json, .csv or .parquet")
    try:
        return READERS[suffix](path)
    except (ValueError, OSError, RecursionError, csv.Error) as error:
        raise UserError(f"{path}: got a file that cannot be read ({error}); expected valid {suffix}") from None


def check_prompt(prompt, where: str) -> None:
    """Raise UserError unless the prompt is a non-empty string or a list of chat messages."""
    is_text = isinstance(prompt, str) and prompt.strip()
    is_chat = isinstance(prompt, list) and all(
        isinstance(m, dict) and isinstance(m.get("role"), str) and isinstance(m.get("content"), str) for m in prompt
    )
    need(
        is_text or (is_chat and prompt),
        f"{where}: got prompt {str(prompt)[:80]!r}; expected a non-empty string or a list of "
        '{"role": …, "content": …} messages',
    )


# ---------------------------------------------------------------------------- reward texts (src/parts/reward_texts.py)


def text_of_turns(completion) -> str:
    """The text of a completion or prompt, a string or messages."""
    if isinstance(completion, str):
        return completion
    return "\n".join(str(message.get("content") or "") for message in completion)


def text_of_answers(completion) -> str:
    """The text of a completion; of a conversation what the model said, without tools' results and replies."""
    if isinstance(completion, str):
        return completion
    return text_of_turns([message for message in completion if message.get("role", "assistant") == "assistant"])


# ---------------------------------------------------------------------------- reward forms (src/parts/reward_forms.py)

REWARD_FORMS = (
    "def reward(prompt, completion, answer) -> float, or def reward(prompts, completions, answer, **kwargs) -> list"
)


def is_per_sample(function) -> bool:
    """Whether a reward takes one sample, told by the names of its parameters: `prompt` or `completion`, not plural.

    Raises:
        UserError: it has names of both forms.
    """
    names = inspect.signature(function).parameters
    one = [name for name in ("prompt", "completion") if name in names]
    many = [name for name in ("prompts", "completions") if name in names]
    name = getattr(function, "__name__", type(function).__name__)
    got = f"got reward {name} with {' and '.join([*one, *many])}, so for one sample or for a batch"
    need(not (one and many), f"{got}; expected one of two forms: {REWARD_FORMS}")
    return bool(one)


class PerSample:
    """A reward `(prompt, completion, **columns) -> float or None`, async or not, in the shape of a batch.

    `prompt` is the data's, a string or chat messages; `completion` is text in both cases; every other argument is the
    sample's entry. Signature and name are those of a function with TRL's contract.
    """

    def __init__(self, function):
        self.function, self.__name__ = function, getattr(function, "__name__", type(function).__name__)
        self.__doc__, parameter = inspect.getdoc(function), inspect.Parameter
        own = [p for p in inspect.signature(function).parameters.values() if p.kind is not p.VAR_POSITIONAL]
        named = {p.name: p for p in own if p.kind is not p.VAR_KEYWORD}
        columns = [p.replace(kind=p.KEYWORD_ONLY) for name, p in named.items() if name not in ("prompt", "completion")]
        both = [parameter(name, parameter.KEYWORD_ONLY) for name in ("prompts", "completions")]
        rest = [p for p in own if p.kind is p.VAR_KEYWORD]
        self.names = None if rest else {*named}
        self.__signature__ = inspect.Signature([*both, *columns, *rest])

    def calls(self, prompts: list, completions: list, **columns) -> list:
        """One call for each completion, still to be made."""
        whole = {name: columns.pop(name) for name in ("trainer_state", "log_extra", "log_metric") if name in columns}
        found = []
        for i, (prompt, completion) in enumerate(zip(prompts, completions, strict=True)):
            given = {name: values[i] for name, values in columns.items()} | whole
            given |= {"prompt": prompt, "completion": text_of_answers(completion)}
            taken = {name: value for name, value in given.items() if self.names is None or name in self.names}
            found.append(functools.partial(self.function, **taken))
        return found

    def __call__(self, **arguments) -> list:
        """Scores of a batch; what an async function returns is still to be awaited."""
        return [call() for call in self.calls(**arguments)]


def as_reward(function):
    """A reward with the signature of a batch, from one of either form."""
    return PerSample(function) if is_per_sample(function) else function


def import_file(what: str, spec: str, file: str):
    """Import a user's file once, by its path; `what` and `spec` name it in the message of a UserError."""
    module_name = f"{what}_{Path(file).stem}_{abs(hash(str(Path(file).resolve())))}"
    if module_name not in sys.modules:
        sys.path.append(str(Path(file).resolve().parent))  # it may import its neighbours, as when it is run
        module_spec = importlib.util.spec_from_file_location(module_name, file)
        sys.modules[module_name] = module = importlib.util.module_from_spec(module_spec)
        try:
            module_spec.loader.exec_module(module)
        except Exception as error:
            del sys.modules[module_name]
            problem = f"importing {file} raises {type(error).__name__}: {error}"
            raise UserError(f"got {what} {spec!r}: {problem}; expected a file that imports") from error
    return sys.modules[module_name]


def load_rewards(spec: str) -> list[tuple]:
    """Load `FILE.py:name[*weight]` and return (function, weight) pairs.

    The name is a function, or a preset: a list of functions that has their weights as its attribute `weights`.
    """
    target, _, weight = spec.partition("*")
    file, _, name = target.rpartition(":")
    need(file and Path(file).is_file(), f"got reward {spec!r}: no file {file!r}; expected FILE.py:function[*weight]")
    try:
        factor = float(weight or 1.0)
    except ValueError:
        raise UserError(f"got reward {spec!r}: {weight!r} is no number; expected FILE.py:function[*weight]") from None
    module = import_file("reward", spec, file)
    members = vars(module)
    need(math.isfinite(factor), f"got reward {spec!r}: weight {factor}; expected a finite number")
    found = members.get(name)
    if isinstance(found, list) and found and all(map(callable, found)):
        weights = getattr(found, "weights", [1.0] * len(found))
        number = f"got reward {spec!r}: {len(found)} functions with {len(weights)} weights; expected one for each"
        need(len(weights) == len(found), number)
        return [(f, factor * w) for f, w in zip(found, weights, strict=True)]
    own = {
        n: m for n, m in members.items() if getattr(m, "__module__", "") == module.__name__ and not n.startswith("_")
    }
    known = [n for n, member in own.items() if callable(member) and n == getattr(member, "__name__", n)]
    what = f"{file} has no function {name!r}; expected one of {', '.join(known)}{suggest(name, known)}"
    need(callable(found), f"got reward {spec!r}: {what}")
    return [(found, factor)]


def reward_arguments(rows: list[dict], completions: list, completion_ids: list[list[int]]) -> dict:
    """Keyword arguments of a reward function in TRL's shapes; a column absent from a row is None there.

    Completions are texts, or the messages of conversations, which stay as they are.
    """
    columns = {name: None for row in rows for name in row["columns"]}
    return {
        "prompts": [row["prompt"] for row in rows],
        "completions": [
            [{"role": "assistant", "content": said}] if isinstance(said, str) and not isinstance(prompt, str) else said
            for prompt, said in zip([row["prompt"] for row in rows], completions, strict=True)
        ],
        "completion_ids": completion_ids,
        **{name: [row["columns"].get(name) for row in rows] for name in columns},
    }


# ---------------------------------------------------------------------------- reward calls (src/parts/reward_calls.py)


@dataclass
class CallLimits:
    """Limits on calls of async rewards: seconds for one (0: none), how many at once, and further tries."""

    timeout: float = 600.0
    concurrency: int = 32
    retries: int = 2


def call_limits(config) -> CallLimits:
    """The limits that a run's settings name."""
    return CallLimits(config.reward_timeout, config.reward_concurrency, config.reward_retries)


class CallFailed(Exception):
    """A call raised its __cause__; `number` is its place among the calls of a batch."""

    def __init__(self, number: int):
        super().__init__(number)
        self.number = number


# lost connections as httpx, openai and anthropic, aiohttp, requests and urllib call them
LOST = {"TransportError", "APIConnectionError", "ClientConnectionError", "ConnectionError", "Timeout", "URLError"}


def is_passing(error: BaseException) -> bool:
    """Whether another try may help: a lost connection, a time limit, or an HTTP status 408, 425, 429 or 5xx."""
    holders = (error, getattr(error, "response", None))
    for status in (getattr(holder, name, None) for holder in holders for name in ("status_code", "status", "code")):
        if isinstance(status, int):
            return status in (408, 425, 429) or status >= 500
    names = {kind.__name__ for kind in type(error).__mro__}
    return isinstance(error, ConnectionError | TimeoutError) or bool(names & LOST)


class RewardLoop:
    """One event loop in a thread of its own, so that what an async reward keeps, such as a client, stays usable."""

    def __init__(self):
        self.loop, self.slots = asyncio.new_event_loop(), {}
        self.thread = threading.Thread(target=self.serve, name="rewards", daemon=True)
        self.thread.start()

    def serve(self) -> None:
        """Run the loop for ever; SystemExit, which a task lets through, does not end it."""
        while True:
            with contextlib.suppress(SystemExit, KeyboardInterrupt):
                self.loop.run_forever()

    def gather(self, jobs: list[tuple], limits: CallLimits) -> list:
        """Await jobs (number, call, the awaitable that it returned) together and return their results in order."""
        future = asyncio.run_coroutine_threadsafe(self.gathered(jobs, limits), self.loop)
        try:
            return future.result()
        finally:
            future.cancel()  # where a signal ended the wait

    async def gathered(self, jobs: list[tuple], limits: CallLimits) -> list:
        """`gather`, within the loop; where one fails, the others are cancelled."""
        tasks = [asyncio.ensure_future(self.answer(*job, limits)) for job in jobs]
        try:
            return await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            close_unstarted([first for _, _, first in jobs])

    async def answer(self, number: int, call, first, limits: CallLimits):
        """The result of one job; a try that fails in passing is followed by another call."""
        for attempt in range(1 + limits.retries):
            async with self.slots.setdefault(limits.concurrency, asyncio.Semaphore(limits.concurrency)):
                try:
                    return await within(call() if attempt else first, limits.timeout)
                except asyncio.CancelledError as error:
                    if asyncio.current_task().cancelling():  # by `gathered`
                        raise
                    raise CallFailed(number) from RuntimeError(f"was cancelled from within: {error}")
                except BaseException as error:  # SystemExit would end the loop
                    if attempt == limits.retries or not is_passing(error):
                        raise CallFailed(number) from error
                await asyncio.sleep(min(30.0, 0.5 * 2**attempt))


async def within(awaitable, seconds: float):
    """The result of an awaitable, or TimeoutError after a time (0: never)."""
    try:
        async with asyncio.timeout(seconds or None) as clock:
            return await awaitable
    except TimeoutError as error:
        if not clock.expired():
            raise
        raise TimeoutError(f"no answer in {seconds:g} s; try a higher --reward_timeout") from error


def close_unstarted(results: list) -> None:
    """Close the coroutines among results that nobody will await."""
    for result in results:
        if inspect.iscoroutine(result) and inspect.getcoroutinestate(result) == inspect.CORO_CREATED:
            result.close()


LOOPS, LOOPS_LOCK = {}, threading.Lock()


def reward_loop() -> RewardLoop:
    """The loop of this process; a forked one has its own."""
    with LOOPS_LOCK:
        if os.getpid() not in LOOPS:
            LOOPS[os.getpid()] = RewardLoop()
        return LOOPS[os.getpid()]


def answers(calls: list, limits: CallLimits) -> list:
    """Make calls and return their results; those that give an awaitable run together in the reward loop.

    Raises:
        CallFailed: a call raised; the others are cancelled.
    """
    results = []
    for number, call in enumerate(calls):
        try:
            results.append(call())
        except Exception as error:
            close_unstarted(results)
            raise CallFailed(number) from error
    jobs = [(i, calls[i], result) for i, result in enumerate(results) if inspect.isawaitable(result)]
    try:
        awaited = reward_loop().gather(jobs, limits) if jobs else []
    except CallFailed as failed:
        if isinstance(failed.__cause__, Exception):
            raise
        raise failed.__cause__ from None  # SystemExit ends the run, as from a function that is not async
    for (number, _, _), result in zip(jobs, awaited, strict=True):
        results[number] = result
    return results


def reward_calls(function, arguments: dict) -> list:
    """The calls that score a batch, still to be made: one for each completion of a PerSample, else one in all."""
    parameters = inspect.signature(function).parameters.values()
    if not any(p.kind is p.VAR_KEYWORD for p in parameters):
        arguments = {p.name: arguments[p.name] for p in parameters if p.name in arguments}
    if isinstance(function, PerSample):
        return function.calls(**arguments)
    return [functools.partial(function, **arguments)]


def scored_batch(function, arguments: dict, limits: CallLimits):
    """What one reward function returns for a batch, awaited."""
    results = answers(reward_calls(function, arguments), limits)
    return results if isinstance(function, PerSample) else results[0]


# ------------------------------------------------------------ thresholds (src/programs/reward_preflight/thresholds.py)

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


# ------------------------------------------------------ rows and gold (src/programs/reward_preflight/rows_and_gold.py)

SOLUTIONS = ("solution", "completion", "response", "canonical_solution", "code")  # columns with a whole completion
ANSWERS = ("answer", "final_answer", "label", "target", "ground_truth")  # columns with a final answer
CODE_COLUMNS = {"canonical_solution", "entry_point", "test", "tests", "test_list", "test_cases"}
TEMPLATES = (
    "{answer}",
    "\\boxed{{answer}}",
    "#### {answer}",
    "<answer>{answer}</answer>",
    "The answer is {answer}.",
    "<think>\n{reasoning}\n</think>\n\\boxed{{answer}}",
    "<think>\n{reasoning}\n</think>\n{answer}",
    "<think>\n{reasoning}\n</think>\n<answer>\n{answer}\n</answer>",
    "<reasoning>\n{reasoning}\n</reasoning>\n<answer>\n{answer}\n</answer>\n",
)
MARKED = re.compile(r"####\s*(?P<a>[^\n]+)|\\boxed\{(?P<b>(?:[^{}]|\{[^{}]*\})*)\}|<answer>(?P<c>[^<]*)</answer>")


def text_of(value) -> str | None:
    """Text of a string, of chat messages (contents joined) or of a list's first string; None for anything else."""
    if isinstance(value, list) and value and all(isinstance(m, dict) for m in value):
        return "".join(str(message.get("content") or "") for message in value)
    if isinstance(value, list) and value and isinstance(value[0], str):
        return value[0]
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    return value if isinstance(value, str) else None


def prompt_text(prompt) -> str:
    """What the model was asked: a string prompt, or the last message."""
    return prompt if isinstance(prompt, str) else prompt[-1]["content"]


def marked_answer(text: str) -> tuple[str, str] | None:
    """(answer, text before it) of the last `####`, `\\boxed{}` or `<answer>` of a solution."""
    found = list(MARKED.finditer(text))
    if not found:
        return None
    return next(part for part in found[-1].groups() if part is not None).strip(), text[: found[-1].start()].strip()


def make_row(raw: dict, where: str, number: int, args) -> dict:
    """A row for reward_arguments, with its final answer and the reasoning before it where columns hold them."""
    need(
        args.prompt_column in raw,
        f"{where}: got columns {', '.join(raw) or 'none'}; expected {args.prompt_column!r}; try --prompt_column NAME",
    )
    prompt = raw[args.prompt_column]
    check_prompt(prompt, where)
    reserved = {"prompt", "prompts", "completions", "completion_ids", args.prompt_column}
    columns = {name: value for name, value in raw.items() if name not in reserved}
    row = {"number": number, "prompt": prompt, "columns": columns, "answer": None, "reasoning": "", "gold": ""}
    for name in dict.fromkeys([*ANSWERS, args.gold_column, *SOLUTIONS]):
        text = text_of(columns.get(name))
        marked = marked_answer(text or "")
        if text and text.strip() and (marked or name in ANSWERS):
            row["answer"], row["reasoning"] = marked or (text.strip(), "")
            break
    return row


def fill(template: str, values: dict) -> str:
    """Put values in the places `{name}` of a template; the braces of a LaTeX command stay."""
    template = re.sub(r"(\\[A-Za-z]+)\{(\w+)\}", r"\1{{\2}}", template)
    return re.sub(r"\{(\w+)\}", lambda m: str(values[m[1]]) if values.get(m[1]) is not None else m[0], template)


def gold_variants(row: dict, args) -> dict[str, str]:
    """Reference completions of a row by variant, the preferred first."""
    columns, variants = row["columns"], {}
    values = {**columns, "prompt": prompt_text(row["prompt"]), "answer": row["answer"]}
    values["reasoning"] = row["reasoning"] or "The result follows step by step from what is given."
    if args.gold_template:
        template = re.sub(r"\\n(?![A-Za-z])", "\n", args.gold_template)
        wanted = [name for name in re.findall(r"\{(\w+)\}", template) if values.get(name) is None]
        return {} if wanted else {"--gold_template": fill(template, values)}
    for name in [args.gold_column] if args.gold_column else SOLUTIONS:
        text = text_of(columns.get(name))
        if not text or not text.strip():
            continue
        variants[f"column {name}"] = text
        if is_code(row) and "```" not in text:
            variants[f"column {name} in a code block"] = f"```python\n{text}\n```"
            whole = f"{values['prompt']}{text}"
            variants[f"prompt + column {name} in a code block"] = f"```python\n{whole}\n```"
    for name in [] if args.gold_column else ANSWERS:
        text = text_of(columns.get(name))
        if text and marked_answer(text):
            variants[f"column {name}"] = text
    if row["answer"] and not args.gold_column:
        variants |= {template: fill(template, values) for template in TEMPLATES}
    return variants


def is_code(row: dict) -> bool:
    """Whether a row is a programming task."""
    return bool(CODE_COLUMNS & set(row["columns"]))


# -------------------------------------------------------------------- probes (src/programs/reward_preflight/probes.py)

PROBES = {}  # name -> (share of gold's score it may get, function)


def probe(allowed: float):
    """Register `probe(row) -> completions` under its own name; its docstring is what the report says."""

    def register(function):
        PROBES[function.__name__] = (allowed, function)
        return function

    return register


def answer_span(row: dict) -> tuple[int, int] | None:
    """Where the gold completion last has the final answer as a word of its own."""
    if not row["answer"]:
        return None
    found = list(re.finditer(rf"(?<!\w){re.escape(row['answer'])}(?!\w)", row["gold"]))
    return found[-1].span() if found else None


def in_place(row: dict, text: str) -> str:
    """The gold completion with another text where its final answer stands; the text alone where there is none."""
    span = answer_span(row)
    return row["gold"][: span[0]] + text + row["gold"][span[1] :] if span else text


@probe(0.05)
def empty(row: dict) -> list[str]:
    """Nothing at all."""
    return [""]


@probe(0.05)
def whitespace(row: dict) -> list[str]:
    """White space only."""
    return [" ", "\n\n\t \n"]


@probe(0.05)
def unicode_junk(row: dict) -> list[str]:
    """Characters of many scripts, controls and symbols without an answer."""
    return ["\u202e\ufffd\u0000\u200b\U0001f9ee\u066a\ufdfd\U0001d54f s\u0301\u0937" * 20, "\ufeff{[(<$\\`'\"" * 40]


@probe(0.1)
def prompt_echo(row: dict) -> list[str]:
    """The prompt again, and its last line in answer marks."""
    text = prompt_text(row["prompt"])
    task = (text.strip().splitlines() or [""])[-1].rstrip(" =?:.")
    return [text, f"<answer>{task}</answer>", f"\\boxed{{{task}}}", f"#### {task}"]


@probe(0.25)
def truncated(row: dict) -> list[str]:
    """Gold cut off before its final answer (code and prose: after a quarter and a half)."""
    gold, span = row["gold"], answer_span(row)
    cuts = [span[0], 3 * span[0] // 4, span[0] // 2] if span else [len(gold) // 2, len(gold) // 4]
    return [gold[:cut] for cut in cuts if gold[:cut].strip()]


@probe(0.25)
def answer_listing(row: dict) -> list[str]:
    """Many candidate answers at once, the right one in the middle."""
    right, wrong = row["answer"], row["wrong"]
    if not right:
        return []
    several = [*wrong[: len(wrong) // 2], right, *wrong[len(wrong) // 2 :]]
    texts = [", ".join(several), " or ".join([wrong[0], right, wrong[-1]])]
    if number_of(right) is not None:
        texts.append(" ".join([*map(str, range(50)), right, *map(str, range(50, 100))]))
    if re.fullmatch(r"\(?[A-Ja-j]\)?", right):
        texts += ["A, B, C, D, E, F, G, H, I, J", "(A) (B) (C) (D) (E)"]
    repeated = "\n".join(in_place(row, text) for text in several)
    # the prompt in the answer's place: a grader that evaluates `3 + 4`, or looks for the answer anywhere, pays
    return [*texts, *(in_place(row, text) for text in texts), repeated, in_place(row, prompt_text(row["prompt"]))]


CONNECTORS = "first, second, then, next, because, since, therefore, thus, hence, however, so, finally, in conclusion"
TAGS = "<think></think> <reasoning></reasoning> <answer></answer> \\boxed{} #### ```python\n``` {} [1] (Smith, 2020)"


@probe(0.25)
def keyword_stuffing(row: dict) -> list[str]:
    """Format tags and connector words without content."""
    steps = " ".join(f"Step {i}: {word}." for i, word in enumerate(CONNECTORS.split(", "), 1))
    framed = f"<think>\n{steps}\n</think>\n<answer>\n{CONNECTORS}\n</answer>"
    return [CONNECTORS, TAGS, framed, f"{steps} The final answer is {TAGS}", f"{CONNECTORS}, " * 20]


@probe(0.5)
def wrong_answer(row: dict) -> list[str]:
    """Gold of a row with another answer, and another answer in this gold."""
    other = [row["other_gold"]] if row["other_gold"] else []
    return other + ([in_place(row, row["wrong"][0])] if answer_span(row) else [])


@probe(1.0)
def repeated_gold(row: dict) -> list[str]:
    """Gold twenty times over."""
    return ["\n".join([row["gold"]] * 20)]


@probe(0.25)
def very_long(row: dict) -> list[str]:
    """As much text without an answer as the run allows: its limit, else 40,000 characters (two rows)."""
    size = row["limit"] or LONGEST
    digits = max(1, size - len(in_place(row, ""))) if row["limit"] else size
    brackets = "(" * (size // 2) + ")" * (size // 2)
    return ["a " * (size // 2), brackets, in_place(row, "9" * digits), "\\frac{" * (size // 6)]


@probe(0.25)
def code_tricks(row: dict) -> list[str]:
    """Code that exits, prints success, equals everything or redefines what tests use."""
    if not is_code(row):
        return []
    entry = row["columns"].get("entry_point") or (re.findall(r"def (\w+)", row["gold"]) or ["solution"])[-1]
    equal = "class Equal:\n    def __eq__(self, other):\n        return True\n    __hash__ = None\n\n"
    programs = [
        "import sys\nsys.exit(0)",
        f"import os\n\ndef {entry}(*args, **kwargs):\n    os._exit(0)",
        "print('OK')\nprint('All tests passed')",
        f"{equal}def {entry}(*args, **kwargs):\n    return Equal()",
        f"import builtins\nbuiltins.all = builtins.any = lambda *a: True\n\ndef {entry}(*args):\n    return None",
    ]
    return [f"```python\n{code}\n```" if "```" in row["gold"] else code for code in programs]


def number_of(text: str) -> float | None:
    """The value of a text that is one number, with or without thousands separators."""
    with contextlib.suppress(ValueError):
        value = float(text.replace(",", ""))
        return value if math.isfinite(value) else None


def same_answer(a: str, b: str) -> bool:
    """Whether two answers are the same number or the same text."""
    if number_of(a) is not None and number_of(b) is not None:
        return number_of(a) == number_of(b)
    return a.strip().lower() == b.strip().lower()


def distractors(answer: str, others: list[str], rng: random.Random) -> list[str]:
    """At least two wrong answers: those of other rows, else near numbers, other letters, or words."""
    wrong = sorted({other for other in others if not same_answer(other, answer)})
    wrong = rng.sample(wrong, min(len(wrong), 8))
    number = number_of(answer)
    if number is None:
        near = [word for word in ("B", "C", "A", "no", "unknown") if word.lower() != answer.lower()]
    else:
        near = [f"{number + step:.15g}" for step in (1, -1, 10, 7)]
    return wrong if len(wrong) >= 2 else [*wrong, *near][:4]


def prepare_probes(rows: list[dict], everything: list[dict], seed: int, limit: int | None = None) -> None:
    """Give each row its wrong answers, the gold of a row with another answer, and the run's limit of characters."""
    rng = random.Random(seed)
    answers = [row["answer"] for row in everything if row["answer"]]
    for i, row in enumerate(rows):
        row["limit"] = limit
        row["wrong"] = distractors(row["answer"], answers, rng) if row["answer"] else []
        others = rows[i + 1 :] + rows[:i]
        different = (other["gold"] for other in others if other["gold"] and not same_task(other, row))
        row["other_gold"] = next(different, "")


def same_task(a: dict, b: dict) -> bool:
    """Whether two rows have the same answer, or without answers the same gold."""
    if a["answer"] and b["answer"]:
        return same_answer(a["answer"], b["answer"])
    return a["gold"] == b["gold"]


# ---------------------------------------------------- reward process (src/programs/reward_preflight/reward_process.py)


def load_parts(specs: list[str]) -> dict[str, tuple]:
    """{name: (function, weight)} of everything that the specs name; a preset stands for its functions."""
    parts = {}
    for function, weight in [pair for spec in specs for pair in load_rewards(spec)]:
        name = getattr(function, "__name__", type(function).__name__)
        while name in parts:
            name += "_2"
        parts[name] = as_reward(function), weight
    return parts


def declared_range(function) -> str:
    """The first `[low, high]` or `{low, …, high}` of a docstring before its examples, after `Range:` if it has that."""
    doc = (inspect.getdoc(function) or "").partition(">>>")[0]
    for match in re.finditer(r"[\[{][^][{}\n]*,[^][{}\n]*[]}]", doc[max(0, doc.find("Range:")) :]):
        if any(end is not None for end in bounds(match[0])):
            return match[0]
    return ""


def bounds(text: str) -> tuple[float | None, float | None]:
    """The ends of a range such as `[-1, 0]` or `{0, 1}`; None for an end that is no number."""
    items = re.sub(r"[][{} ]", "", text.replace("\u2212", "-")).split(",")
    return number_of(items[0]), number_of(items[-1])


TRL_EXTRAS = {"trainer_state": None, "log_extra": lambda *_: None, "log_metric": lambda *_: None}


def describe(name: str, function, weight: float) -> dict:
    """What the checks have to know about a function."""
    parameters = inspect.signature(function).parameters.values()
    required = [p.name for p in parameters if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    return {
        "name": name,
        "weight": weight,
        "range": declared_range(function),
        "needs_group": bool(getattr(function, "needs_group", False)),
        "needs": [parameter for parameter in required if parameter not in TRL_EXTRAS],
        "takes_any": any(p.kind is p.VAR_KEYWORD for p in parameters),
    }


def as_scores(result, count: int) -> dict:
    """A reward's result as {"values": floats and None, "bad": {index: what is neither}}, or {"malformed": why}."""
    values = result.tolist() if hasattr(result, "tolist") else result
    if not isinstance(values, list | tuple) or len(values) != count:
        got = f"{len(values)} values" if isinstance(values, list | tuple) else f"a {type(values).__name__}"
        return {"malformed": f"returned {got} for {count} completion{'s' * (count != 1)}"}
    floats, bad = [], {}
    for i, value in enumerate(values):
        value = value.item() if hasattr(value, "item") else value
        if value is not None and not (isinstance(value, int | float) and abs(value) < sys.float_info.max):
            bad[i], value = f"returned {value!r}"[:200], None
        floats.append(None if value is None else float(value))
    return {"values": floats, "bad": bad}


def own_frame(frames: list[tuple], files: list[str]) -> str:
    """The first of (file, line, function) that is in one of the reward files; the first at all where none is."""
    own = {Path(file).resolve() for file in files}
    file, line, name = next((f for f in frames if Path(f[0]).resolve() in own), (frames or [("", 0, "")])[0])
    return f"{file}:{line}, in {name}" if file else ""


def raised_at(error: BaseException) -> list[tuple]:
    """(file, line, function) of the frames of an exception, innermost first."""
    return [(f.filename, f.lineno, f.name) for f in reversed(traceback.extract_tb(error.__traceback__))]


def call_once(function, arguments: dict, files: list[str], limits: CallLimits) -> dict:
    """Call a function with what its signature takes: scores or failure, the seconds, and whether inputs changed."""
    parameters = inspect.signature(function).parameters
    before, reply = pickle.dumps(arguments), {}
    given = arguments | {name: value for name, value in TRL_EXTRAS.items() if name in parameters}
    started = time.perf_counter()
    try:
        result = scored_batch(function, given, limits)
        reply["seconds"] = time.perf_counter() - started
        reply |= as_scores(result, len(arguments["completions"]))
    except BaseException as caught:  # SystemExit ends a training run too
        error = caught.__cause__ if isinstance(caught, CallFailed) else caught
        reply |= {"seconds": time.perf_counter() - started, "where": own_frame(raised_at(error), files)}
        reply["raised"] = f"raised {type(error).__name__}: {error}"[:300]
    return reply | {"changed": pickle.dumps(arguments) != before}


def serve_rewards(fd: int) -> None:
    """Loop of the reward's process: load, then answer (function, arguments) until the other side hangs up."""
    os.set_inheritable(fd, False)
    connection = Connection(fd)
    sys.dont_write_bytecode = True  # no __pycache__ beside the reward file
    specs, timeout_s, trace, limits = connection.recv()
    files = [file_of(spec) for spec in specs]
    try:
        parts = load_parts(specs)
        connection.send([describe(name, *part) for name, part in parts.items()])
    except UserError as error:
        connection.send(str(error))
        return
    except Exception as error:
        connection.send(f"got reward {', '.join(specs)}: {type(error).__name__}: {error}; expected functions")
        return
    while True:
        try:
            name, arguments = connection.recv()
        except EOFError:
            return
        # its own C thread ends the process even where a regular expression holds the interpreter
        faulthandler.dump_traceback_later(timeout_s, exit=True, file=trace)
        reply = call_once(parts[name][0], arguments, files, CallLimits(*limits))
        faulthandler.cancel_dump_traceback_later()
        connection.send(reply)


class RewardProcess:
    """The process in which rewards run: a hang or crash costs one call, and the next starts a new one."""

    def __init__(self, specs: list[str], timeout_s: float, limits: CallLimits | None = None):
        self.specs, self.timeout_s, self.process, self.limits = specs, timeout_s, None, limits or CallLimits()
        self.files, self.trace = [file_of(spec) for spec in specs], tempfile.TemporaryFile()
        self.functions = self.start()

    def start(self) -> list[dict]:
        """Start the process and return the description of its functions."""
        self.connection, theirs = Pipe()
        inherited = [theirs.fileno(), self.trace.fileno()]
        command = [sys.executable, str(Path(__file__).resolve()), "--serve", str(inherited[0])]
        # what a reward prints goes to stderr; an own session, so that its children can be ended with it
        keep = {"stdin": subprocess.DEVNULL, "stdout": 2, "pass_fds": inherited, "start_new_session": True}
        self.process = subprocess.Popen(command, **keep)
        theirs.close()
        limits = (self.limits.timeout, self.limits.concurrency, self.limits.retries)
        self.connection.send((self.specs, self.timeout_s, inherited[1], limits))
        answer = self.receive(LOAD_LIMIT_S)
        if answer is None:
            answer = f"got reward {', '.join(self.specs)}: importing it {self.end()}; expected an import that returns"
        if not isinstance(answer, list):
            self.__exit__()
            raise UserError(answer)
        return answer

    def receive(self, limit_s: float):
        """The next message, or None when the process is gone or the limit has passed."""
        end = time.monotonic() + limit_s
        try:
            while not self.connection.poll(0.05):
                gone = self.process.poll() is not None and not self.connection.poll(0)
                if gone or time.monotonic() > end:
                    return None
            return self.connection.recv()
        except (EOFError, ConnectionResetError):
            return None

    def call(self, name: str, arguments: dict) -> dict:
        """One call of a function; {"hung": why} past the time limit, {"died": why} if the process ended."""
        if self.process is None:
            self.start()
        started = time.perf_counter()
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # receive() tells
            self.connection.send((name, arguments))
        reply = self.receive(self.timeout_s + 5)
        if reply is not None:
            return reply
        seconds, how = time.perf_counter() - started, self.end()
        if seconds < self.timeout_s:
            return {"died": how, "seconds": seconds}
        where = own_frame(self.stuck_at(), self.files)
        return {"hung": f"took more than {self.timeout_s:g} s", "where": where, "seconds": seconds}

    def stuck_at(self) -> list[tuple]:
        """(file, line, function) of the frames that the process dumped when it hung, innermost first."""
        self.trace.seek(0)
        text = self.trace.read().decode(errors="replace")
        self.trace.seek(0)
        self.trace.truncate()
        return re.findall(r'File "(.*?)", line (\d+) in (.*)', text)

    def end(self) -> str:
        """End the process and its children, and say how it ended."""
        if self.process is None:
            return ""
        self.connection.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(0.5)  # it leaves by itself when it waits for a call
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        code, self.process = self.process.wait(), None
        return f"ended the process with exit code {code}" if code >= 0 else f"died of signal {-code}"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.end()
        self.trace.close()


def file_of(spec: str) -> str:
    """The file of `FILE.py:function[*weight]`."""
    return spec.partition("*")[0].rpartition(":")[0]


# ------------------------------------------------------------------ scoring (src/programs/reward_preflight/scoring.py)


def excerpt(text: str, width: int = 100) -> str:
    """The beginning of a text on one line."""
    return repr(text if len(text) <= width else text[:width] + "…")[1:-1]


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

    def __init__(self, process: RewardProcess, seen=lambda *_: None):
        self.process, self.seen = process, seen  # seen(kind, function, message, graded) is told of each problem
        self.weights = {f["name"]: f["weight"] for f in process.functions}
        self.tallies = {name: Counter() for name in self.weights}  # calls, completions, none and the kinds of KINDS
        self.first_s, self.singly = {}, set()  # singly: functions for which a batch took longer than the limit

    def grade(self, pairs: list[tuple[dict, str]], alone: bool = False) -> list[Graded]:
        """Score (row, completion) pairs with every function."""
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
        tally["calls"] += 1
        self.first_s.setdefault(name, reply["seconds"])
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
            what = f"{reply[kind]} on a batch of {len(piece)}, though on no completion alone"
            self.count("slow_batch" if kind == "hung" else "batch", name, what, piece[0])
            self.singly |= {name} if kind == "hung" else set()

    def count(self, kind: str, name: str, message: str, graded: Graded) -> None:
        """Count a problem of a function and tell of it."""
        self.tallies[name][kind] += 1
        self.seen(kind, name, message, graded)

    def keep(self, name: str, piece: list[Graded], reply: dict) -> None:
        """Store the scores of a batch."""
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


# -------------------------------------------------------------- preflight (src/programs/reward_preflight/preflight.py)

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
    "groups": "easier or harder prompts, a larger --group_size, a finer reward; more samples for a surer forecast",
}
WARNINGS = {"slow_batch", "signature", "latency", "none", "long_gold", "chat"}  # findings that never fail


class Preflight:
    """Runs the checks one after another; `report` is what --json prints."""

    def __init__(self, args, rows: list[dict], process: RewardProcess):
        self.args, self.rows, self.process = args, rows, process
        self.grader = Grader(process, lambda kind, name, text, graded: self.find(kind, f"{name} {text}", graded))
        self.findings, self.counts = [], Counter()
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
        self.counts[check] += 1
        severity = "fail" if failed and check not in WARNINGS else "warning"
        entry = {"severity": severity, "check": check, "message": message, "try": advice or ADVICE.get(check, "")}
        if graded and len(graded.text) > LONGEST // 2 and not self.args.max_characters:
            entry["try"] += "; or say --max_new_tokens N, if completions of the run are shorter"
        if graded:
            score = self.grader.total(graded)
            entry |= {"row": graded.row["number"], "completion": excerpt(graded.text), "score": score}
        if self.counts[check] <= 3:
            self.findings.append(entry)

    def run(self, samples: list[tuple[dict, str]]) -> dict:
        """All checks; returns the report with the verdict."""
        golds = self.gold()
        self.probes(golds)
        self.contract(golds)
        self.prompts()
        self.groups(samples)
        self.functions(golds)
        self.findings.sort(key=lambda finding: finding["severity"] != "fail")
        more = {check: count - 3 for check, count in self.counts.items() if count > 3}
        ready = all(finding["severity"] != "fail" for finding in self.findings)
        return self.report | {"findings": self.findings, "more_findings": more, "ready": ready}

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
            f"completion; expected one of {', '.join((*SOLUTIONS, *ANSWERS))}; try --gold_column or --gold_template",
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
        failed = gold["full_marks"] < self.args.min_recall
        if failed:
            what = "all get None" if gold["none"] == 1 else f"{gold['full_marks']:.1%} have full marks"
            advice = "--gold_template or --gold_column for another format; check the columns that the function reads"
            if best > 0 and not gold["full_marks"]:
                advice += f"; --full_score {best:g} if more is not meant to be reached"
            self.find("gold", f"of {gold['rows']} gold completions {what}", advice=advice)
        self.judge_length(results)
        for graded in [g for g in results if not self.is_full(g) and self.grader.total(g) is not None][:2]:
            others = {name: variants[graded.row["number"]].get(name) for name in order}
            tried = self.grader.grade([(graded.row, text) for text in others.values() if text])
            better = next((f"; as {excerpt(g.text, 40)!r} it has full marks" for g in tried if self.is_full(g)), "")
            parts = ", ".join(f"{name} {value}" for name, value in graded.parts.items())
            text = f"gold scores {self.grader.total(graded):g} of {self.full(graded):g} ({parts}){better}"
            self.find("gold", text, graded, failed, "look at this row's reference")
        if 0 < gold["none"] < 1:
            what = f"{gold['none']:.1%} of the gold completions get None: trainers count that as 0 or skip it"
            self.find("none", what, advice="leave out rows whose reference cannot be used")

    def judge_length(self, results: list[Graded]) -> None:
        """A warning where the run cuts off what it should learn to say."""
        limit = self.args.max_characters
        longer = [graded for graded in results if limit and len(graded.text) > limit]
        if longer:
            share = f"{len(longer)} of {len(results)} gold completions"
            what = f"{share} are longer than {limit:,} characters, the run's limit"
            self.find("long_gold", what, longer[0])

    # ---- probes

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
            what = "" if limit else "; try --max_new_tokens N, the run's limit, where completions are shorter"
            self.find("latency", f"a completion of {size:,} characters takes {slowest:.1f} s{what}")

    def probe_line(self, name: str, results: list[Graded], gold: float, floor: float) -> dict:
        """One line of the table of probes, with its findings."""
        allowed, what = self.args.allow.get(name, PROBES[name][0]), PROBES[name][1].__doc__
        line = {"name": name, "what": what, "allowed": allowed, "completions": len(results), "paying_rows": 0}
        scored = [(total, graded) for graded in results if (total := self.grader.total(graded)) is not None]
        if not scored or gold - floor < 1e-9:
            return line | {"share": None, "worst": None, "status": "n/a"}
        shares = sorted(((t - floor) / (gold - floor), i) for i, (t, _) in enumerate(scored))
        worst = {scored[i][1].row["number"]: (share, scored[i][1]) for share, i in shares}  # of each row
        paying = {row: pair for row, pair in worst.items() if pair[0] > allowed + 1e-6}
        mean = statistics.fmean(share for share, _ in shares)
        failed = mean > allowed + 1e-6 or len(paying) > PAYING_ROWS * len(worst)
        for share, graded in sorted(paying.values(), key=lambda pair: -pair[0])[:3]:
            text = f"pays {share:.0%} of gold's score, {allowed:.0%} allowed, for: {what[0].lower()}{what[1:-1]}"
            advice = f"make the function refuse it, or --allow {name}={math.ceil(100 * share) / 100:g} if it is meant"
            self.find(name, text, graded, failed, advice)
        status = "FAIL" if failed else "warning" if paying else "pass"
        return line | {"share": mean, "worst": shares[-1][0], "paying_rows": len(paying), "status": status}

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
            what = f"{forecast:.0%} of the groups of {size} would have one score only, hence no advantage"
            self.find("groups", what, failed=forecast > self.args.max_zero_std)

    def prompts(self) -> None:
        """Tell of prompts that bypass a chat template."""
        strings = sum(isinstance(row["prompt"], str) for row in self.rows)
        self.report["string_prompts"] = strings
        if strings and not self.args.chat and Path(self.args.data).resolve().parent != OWN_DATA:
            what = f"{strings} of {len(self.rows)} prompts are strings, which bypass a model's chat template"
            self.find("chat", f"{what}: an instruct model rarely answers them, and rewards stay near 0")

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


# -------------------------------------------------------------------- inputs (src/programs/reward_preflight/inputs.py)


def pick(rows: list[dict], count: int, seed: int) -> list[dict]:
    """`count` rows drawn with a seed, in their order; all for 0."""
    if not 0 < count < len(rows):
        return rows
    return [rows[i] for i in sorted(random.Random(seed).sample(range(len(rows)), count))]


def load_data(args) -> list[dict]:
    """Every row of --data, checked."""
    raw = read_rows(args.data)
    need(raw, f"got data {args.data!r} without rows; expected at least one")
    return [make_row(row, f"{args.data}, row {i}", i, args) for i, row in enumerate(raw, 1)]


def load_samples(args, rows: list[dict]) -> list[tuple[dict, str]]:
    """(row, completion) of every sample; a sample names its row by `prompt` or by `index`, the row's number from 0."""
    known = {json.dumps(prompt): row for row in rows for prompt in (row["prompt"], prompt_text(row["prompt"]))}
    pairs = []
    for number, raw in enumerate(read_rows(args.samples) if args.samples else [], 1):
        where, index = f"{args.samples}, row {number}", raw.get("index")
        in_range = isinstance(index, int) and 0 <= index < len(rows)
        row = known.get(json.dumps(raw["prompt"])) if "prompt" in raw else rows[index] if in_range else None
        got = f"prompt {str(raw['prompt'])[:60]!r}" if "prompt" in raw else f"index {index!r} and no prompt"
        need(row, f"{where}: got {got}; expected a prompt of {args.data}, or its index below {len(rows)}")
        texts = [text_of(text) for text in raw.get("completions") or [raw.get("completion")]]
        need(None not in texts, f"{where}: got no text in `completion` or `completions`; expected a string or messages")
        pairs += [(row, text) for text in texts]
    need(pairs or not args.samples, f"got samples {args.samples!r} without rows; expected at least one")
    return pairs


def load_library(file: str) -> dict:
    """Public members of a reward library by name."""
    need(Path(file).is_file(), f"got library {file!r}, which is no file; expected a Python file; try --library FILE.py")
    spec = importlib.util.spec_from_file_location("listed_rewards", file)
    sys.dont_write_bytecode = True
    sys.modules["listed_rewards"] = module = importlib.util.module_from_spec(spec)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            spec.loader.exec_module(module)
    except Exception as error:
        what = f"importing it raises {type(error).__name__}: {error}"
        raise UserError(f"got library {file!r}: {what}; expected a file that imports") from error
    return {name: member for name, member in vars(module).items() if not name.startswith("_")}


def is_reward(member) -> bool:
    """Whether a library's member is a reward function, or an object that is called like one."""
    try:
        return not inspect.isclass(member) and "completions" in inspect.signature(member).parameters
    except (TypeError, ValueError):
        return False


def is_preset(member) -> bool:
    """Whether a library's member is a list of functions with weights."""
    return isinstance(member, list) and hasattr(member, "weights")


def resolve(spec: str, library: str) -> str:
    """`FILE.py:function[*weight]` of a spec; a bare name is one of the library's."""
    name = spec.partition("*")[0]
    if ":" in name:
        return spec
    names = [name for name, member in load_library(library).items() if is_reward(member) or is_preset(member)]
    expected = "expected FILE.py:function or a name that --list shows"
    need(name in names, f"got reward {spec!r}; {expected}{suggest(name, names)}")
    return f"{library}:{spec}"


# -------------------------------------------------------------------- report (src/programs/reward_preflight/report.py)


def aligned(lines: list[list]) -> str:
    """Lines of cells as a table; the last column is not padded."""
    shown = [["-" if c is None else f"{c:.4g}" if isinstance(c, float) else str(c) for c in line] for line in lines]
    widths = [max(map(len, column)) for column in zip(*shown, strict=True)]
    rows = [[cell.ljust(width) for cell, width in zip(line, widths, strict=True)] for line in shown]
    return "\n".join("  ".join(row).rstrip() for row in rows)


def columns_of(lines: list[dict], heads: dict[str, str]) -> str:
    """A table of the lines' values under other names."""
    return aligned([list(heads.values()), *([line[key] for key in heads] for line in lines)]) + "\n"


PROBE_HEADS = {
    "name": "probe",
    "completions": "texts",
    "share": "share",
    "worst": "worst",
    "allowed": "allowed",
    "paying_rows": "rows paid",
    "status": "status",
    "what": "completion",
}
FUNCTION_HEADS = {
    "name": "function",
    "weight": "weight",
    "range": "range",
    "gold_mean": "gold mean",
    "none_rate": "none",
    **{kind: kind for kind in KINDS},
    "p50_ms": "p50 ms",
    "p99_ms": "p99 ms",
}


def print_report(report: dict) -> None:
    """The report of a preflight for people."""
    gold, groups = report["gold"], report["groups"]
    print(f"reward   {', '.join(report['reward'])}")
    print(f"data     {report['data']}, {report['rows']} rows, seed {report['seed']}")
    share = f"{gold['full_marks']:.1%} full marks ({gold['full_score']:g})"
    print(f"gold     {share}, mean {gold['mean'] or 0:.4g}, none {gold['none']:.1%}, as {gold['variant']!r}\n")
    print(columns_of(report["probes"], PROBE_HEADS))
    print(columns_of(report["functions"], FUNCTION_HEADS))
    if groups["source"] == "formula":
        cells = "  ".join(f"{line['pass_rate']:g}: {line['zero_std']:.3f}" for line in groups["table"])
        print(f"groups   of {groups['group_size']} without spread, by pass rate   {cells}")
    else:
        names = ("prompts", "mean", "std", "pass_rate", "zero_std_observed", "zero_std_forecast")
        cells = ", ".join(f"{name} {groups[name]:.4g}" for name in names if groups[name] is not None)
        print(f"groups   {groups['samples']} samples, groups of {groups['group_size']}: {cells}")
    for finding in report["findings"]:
        shown = (
            f" | row {finding['row']}, score {finding['score']}: '{finding['completion']}'" if "row" in finding else ""
        )
        print(f"{finding['severity']:<7}  {finding['check']}: {finding['message']}{shown} | try: {finding['try']}")
    for check, count in report["more_findings"].items():
        print(f"         and {count} more of {check}")
    print("verdict  ready" if report["ready"] else "verdict  not ready", f"in {report['seconds']:.1f} s")


def print_json(value) -> None:
    """One JSON object on stdout."""
    print(json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False))


# ---------------------------------------------------------------------- modes (src/programs/reward_preflight/modes.py)


def list_library(args) -> int:
    """--list: functions with range and first line, presets with their parts; aliases are left out."""
    members, functions, presets = load_library(args.reward_library), [], []
    first = {id(member): name for name, member in reversed(members.items())}
    for name, member in members.items():
        if is_preset(member):
            parts = [[f.__name__, weight] for f, weight in zip(member, member.weights, strict=True)]
            presets.append({"name": name, "parts": dict(parts)})
        elif is_reward(member) and first[id(member)] == name:
            summary = (inspect.getdoc(member) or "").partition("\n")[0]
            functions.append({"name": name, "range": declared_range(member), "summary": summary})
    if args.json:
        print_json({"functions": functions, "presets": presets})
        return 0
    lines = [list(line.values()) for line in functions]
    lines += [[p["name"], "preset", " + ".join(f"{w:g} {n}" for n, w in p["parts"].items())] for p in presets]
    print(aligned(lines) if lines else "no reward functions")
    return 0


def score_file(args) -> int:
    """--score: the score of every row's own completion."""
    pairs, name = [], args.completion_column
    for row in pick(load_data(args), args.max_rows, args.seed):
        text = text_of(row["columns"].pop(name, None))
        where = f"{args.data}, row {row['number']}"
        need(text is not None, f"{where}: got no text in {name!r}; expected a completion; try --completion_column NAME")
        pairs.append((row, text))
    with RewardProcess(args.reward, args.timeout_s, call_limits(args)) as process:
        grader = Grader(process)
        results = grader.grade(pairs)
    lines = [{"row": g.row["number"], "score": grader.total(g), "parts": g.parts} for g in results]
    for line, graded in zip(lines, results, strict=True):
        line |= {"problems": graded.problems, "completion": excerpt(graded.text)}
    totals = [line["score"] for line in lines if line["score"] is not None]
    mean = statistics.fmean(totals) if totals else None
    if args.json:
        print_json({"reward": args.reward, "data": args.data, "mean": mean, "rows": lines})
    else:
        names = list(grader.weights) if len(grader.weights) > 1 else []
        cells = [["row", "score", *names, "completion"]]
        for line in lines:
            text = " | ".join([line["completion"], *(f"{n} {problem}" for n, problem in line["problems"].items())])
            cells.append([line["row"], line["score"], *(line["parts"].get(n) for n in names), text])
        print(
            aligned(cells), f"\nmean {'-' if mean is None else f'{mean:.4g}'} over {len(totals)} of {len(lines)} rows"
        )
    return int(any(line["problems"] for line in lines))


def preflight(args) -> int:
    """--reward: all checks on rows drawn from the data."""
    started, rows = time.perf_counter(), load_data(args)
    samples = load_samples(args, rows)
    with RewardProcess(args.reward, args.timeout_s, call_limits(args)) as process:
        report = Preflight(args, pick(rows, args.max_rows or 64, args.seed), process).run(samples)
    report["seconds"] = round(time.perf_counter() - started, 1)
    (print_json if args.json else print_report)(report)
    return 0 if report["ready"] else 1


# ------------------------------------------------------------------ command (src/programs/reward_preflight/command.py)


def share_of(text: str) -> tuple[str, float]:
    """Read NAME=SHARE of --allow."""
    name, _, value = text.partition("=")
    if name not in PROBES or number_of(value) is None:
        names = f"NAME one of {', '.join(PROBES)}{suggest(name, [*PROBES])}"
        raise argparse.ArgumentTypeError(f"got {text!r}, expected NAME=SHARE such as empty=0.4, {names}")
    return name, float(value)


def make_parser() -> argparse.ArgumentParser:
    """The command line; flags work with `_` and `-`."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw, allow_abbrev=False)

    def flag(name: str, help: str, **options) -> None:
        text = help + (f" (default: {options['default']})" if options.get("default") else "")
        parser.add_argument(*dict.fromkeys([f"--{name}", f"--{name.replace('_', '-')}"]), help=text, **options)

    flag("list", "list the library's functions and presets", action="store_true")
    flag("score", "score the rows' own completions: FILE.py:function or a name of --list", metavar="FN")
    flag("reward", "check a reward: FILE.py:function[*weight] or a name, repeatable", action="append", metavar="FN")
    flag("data", "rows: JSONL, JSON, CSV or parquet file, or hub id[:config][@split]", metavar="FILE")
    flag("samples", "your model's completions: rows of prompt or index, and completion or completions", metavar="FILE")
    flag("group_size", "completions per prompt in the run", type=int, default=8, metavar="G")
    tokens = "tokens a completion of the run may have; probes are cut there, at 4 characters a token"
    flag("max_new_tokens", f"{tokens} (TRL: max_completion_length)", type=int, metavar="N")
    flag("max_characters", "the same limit in characters, where 4 a token is wrong", type=int, metavar="N")
    flag("prompt_column", "column with the prompt", default="prompt", metavar="NAME")
    flag("completion_column", "column that --score scores", default="completion", metavar="NAME")
    flag("gold_column", "column with the reference completion (default: the usual names)", metavar="NAME")
    template = "reference completion, such as 'Answer: {answer}' or '\\boxed{answer}'; {NAME} is a column"
    flag("gold_template", template, metavar="TEXT")
    flag("full_score", "score of full marks (default: of the documented ranges, else 1)", type=float, metavar="SCORE")
    flag("full_share", "share of that score from which marks count as full", type=float, default=0.95, metavar="SHARE")
    flag("min_recall", "share of gold that must have full marks", type=float, default=0.95, metavar="SHARE")
    flag("allow", "share of gold's score that a probe may get, NAME=SHARE, repeatable", type=share_of, action="append")
    flag(
        "max_zero_std",
        "forecast of groups without spread above which it fails",
        type=float,
        default=0.9,
        metavar="SHARE",
    )
    flag("max_rows", "rows drawn from the data (default: 64; all with --score)", type=int, default=0, metavar="N")
    flag("timeout_s", "longest time for one call of a reward", type=float, default=30.0, metavar="SECONDS")
    flag("reward_timeout", "as in the run: one call of an async reward", type=float, default=600.0, metavar="SECONDS")
    flag("reward_concurrency", "as in the run: calls of async rewards at once", type=int, default=32, metavar="N")
    flag("reward_retries", "as in the run: further calls after a lost connection", type=int, default=2, metavar="N")
    flag("chat", "the run has --chat: string prompts go through the chat template", action="store_true")
    flag("library", "file in which bare names are looked up", default=LIBRARY, metavar="FILE.py", dest="reward_library")
    flag("seed", "seed of the rows drawn", type=int, default=0, metavar="N")
    flag("json", "print one JSON object on stdout", action="store_true")
    parser.add_argument("--serve", type=int, help=argparse.SUPPRESS)  # the reward's process
    return parser


def check_arguments(args) -> None:
    """Raise UserError for arguments that cannot work together; resolve the names of rewards."""
    modes = [f"--{name}" for name in ("list", "score", "reward") if getattr(args, name)]
    need(len(modes) == 1, f"got {' and '.join(modes) or 'no mode'}; expected one of --list, --score, --reward")
    need(args.list or args.data, f"got {modes[0]} without --data; expected rows; try --data FILE.jsonl")
    need(args.reward or not args.samples, f"got --samples with {modes[0]}; expected it with --reward")
    ranges = {"group_size": (2, 1e6), "max_rows": (0, 1e9), "timeout_s": (0.01, 1e6)}
    ranges |= {"max_new_tokens": (1, 1e7), "max_characters": (1, 1e8)}
    ranges |= {"reward_timeout": (0, 1e6), "reward_concurrency": (1, 1e6), "reward_retries": (0, 1e3)}
    for name, (low, high) in {**ranges, "full_share": (0, 1), "min_recall": (0, 1), "max_zero_std": (0, 1)}.items():
        value = getattr(args, name)
        fits = value is None or low <= value <= high
        need(fits, f"got {name} {value}; expected {low:g} to {high:g}; try --{name} {low:g}")
    args.reward = [resolve(spec, args.reward_library) for spec in args.reward or [args.score] * bool(args.score)]
    args.allow = dict(args.allow or [])
    if args.max_new_tokens and not args.max_characters:
        args.max_characters = TOKEN_CHARACTERS * args.max_new_tokens


def main(argv: list[str] | None = None) -> int:
    """Command line entry; returns the exit code."""
    parser = make_parser()
    args = parse_flags(parser, argv)
    if args.serve is not None:
        serve_rewards(args.serve)
        return 0
    try:
        check_arguments(args)
        return (list_library if args.list else score_file if args.score else preflight)(args)
    except UserError as error:
        say(f"error: {error}")
        return error.code


if __name__ == "__main__":
    sys.exit(main())
