#!/usr/bin/env python3
# Built from src/programs/data_loader/ by tools/build.py: a change belongs there, then `make build`.
# A copy is yours to edit: this file needs no other of this bundle's scripts.
# /// script
# requires-python = ">=3.11"
# dependencies = [
#     "torch>=2.6", "transformers>=5.23,<6", "datasets", "pyarrow", "tqdm", "charset-normalizer",
# ]
# ///
"""Read training data of any common form, check it row by row, and write it in the shape a trainer wants.

Prompts, conversations, prompt + response, preferences, math, choices and code, from JSONL, JSON, TXT, CSV, TSV and
parquet (.gz and .zst too), folders, globs, stdin, the hub and reasoning-gym, become one schema: `prompt` (messages),
`answer`, `tests`, `completion`, `chosen`, `rejected`, `source`, `id`, and every other column as it was. A row that
does not fit is named by file, line and field. references/data_formats.md describes schema, formats and targets.

As a library: `load_rows`, `normalise`, `write_rows`, `create_dataloader`, `stream_dataset`, `register_format`.

Deliberately left out: images and audio, tokenised data sets, packing, and any cleaning of texts. Code in the data is
parsed, never run; paths and URLs in the data are never opened; nothing is unpickled.

    python scripts/data_loader.py train.jsonl --out clean.jsonl                       # any known form, detected
    python scripts/data_loader.py train.jsonl test.csv --inspect --tokenizer MODEL    # lengths, duplicates, overlap
    python scripts/data_loader.py train.jsonl --split 0.1 --seed 0 --out part.jsonl    # and part.eval.jsonl
    python scripts/data_loader.py "data/*.jsonl.gz" --for verl --shuffle 0 --split eval=200 --out train.parquet

Exit codes: 0 done, 1 --validate or --inspect found bad rows, 2 bad input (nothing is written).
"""

# Contents
#       104-143  messages           Errors that a user can mend, each with its exit code, and what is said on stderr
#       146-149  bundle             Where this bundle and its embedded model, data and rewards lie
#       152-283  dialect            One setting under several names: ours, those of the pages, and TRL's. A program …
#       286-314  settings           Settings: a dataclass whose fields are flags and YAML keys, and the checks that …
#       317-593  data files         Data files as UTF-8 bytes: unpacked, recoded, and refused by name where they hold …
#       596-727  tables             Rows of CSV and TSV files: the separator, the header, and the cells below it
#       730-910  nested rows        Rows inside other JSON: an object that holds a list of them, columns instead of …
#       913-950  rows               Rows of data from JSONL, JSON, CSV, parquet or the hub, and what a prompt may be
#      953-1128  question parts     Columns that look like a part of the question: texts to read before it, options, …
#     1131-1193  answer marks       Final answers that worked solutions mark by a last line `#### 42`
#     1196-1287  chat               Chat templates: their settings, what they write for messages, and strings that …
#     1290-1298  held out           Held-out prompts that also train: prompts compared by what they ask, counted, …
#     1301-1321  prompts            Prompts as token ids, for training and held out
#     1324-1342  verl layout        The layout of rows for verl: the ground truth in reward_model, all other columns …
#     1345-1414  models             Loading networks: precision, LoRA adapters, tokenizers, 4-bit weights, frozen …
#     1417-1427  batches            Batches: padding, collating, micro-batches, one line of tokens in which a prompt …
#     1430-1489  bad rows           Errors of rows, and limits
#     1492-1533  media              Columns that hold images, video or audio
#     1536-1691  messages           Chat messages
#     1694-1862  json values        JSON values, one at a time, in bounded memory
#     1865-2021  test checks        Tests that can be run at all
#     2024-2180  answers and tests  Reference answers and tests, and the columns that may hold them
#     2183-2260  passages           Texts that a question is about: passages, documents, tables
#     2263-2481  published tests    Published forms of tests and ground truths, as the sandbox and the rewards take them
#     2484-2767  choices            Questions with choices
#     2770-3168  forms              The forms that rows come in
#     3171-3250  written rows       Rows that this script wrote before, or that verl reads
#     3253-3430  form names         Forms by name, and which one a row has
#     3433-3633  records            Records of each file format
#     3636-3783  reading            Files, globs, hub and settings of reading
#     3786-4107  writing            Rows written for each target
#     4110-4421  row reader         Rows read, checked and counted
#     4424-4575  batches            Batches of prompts: padded on the left, shuffled anew in each epoch, resumed …
#     4578-4643  inspection         Statistics of a data set
#     4646-4687  held out           Held-out rows: which rows leave the training data, all those of a prompt together
#     4690-5002  command            The command line

import argparse
import array
import ast
import codecs
import contextlib
import csv
import datetime
import decimal
import difflib
import functools
import gzip
import hashlib
import importlib
import importlib.util
import io
import itertools
import json
import math
import os
import random
import re
import shlex
import ssl
import string
import sys
import tempfile
import unicodedata
import urllib.error
import urllib.parse
import urllib.request
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

# ------------------------------------------------------------------------- messages (src/parts/foundation/messages.py)


class UserError(Exception):
    """Something the user can mend; printed without a traceback. `code` is the exit code."""

    code = 2


class RowFlaw(UserError):
    """A row that cannot be used; says which field, what it held, what was expected, and how to mend it."""

    def __init__(self, field: str, got, expected: str, advice: str = "mending or leaving out the row"):
        super().__init__(f"{field}: got {got}; expected {expected}; try {advice}")
        self.parts = {"field": field, "got": str(got), "expected": expected, "try": advice}


def need(condition, message: str) -> None:
    """Raise UserError with a message of the form got / expected / try unless the condition holds."""
    if not condition:
        raise UserError(message)


def say(text: str) -> None:
    """Print a diagnostic line on stderr, once in a torchrun launch."""
    if os.environ.get("RANK", "0") == "0":
        print(text, file=sys.stderr, flush=True)


def tell(*words: str, end: str = "\n") -> None:
    """Print a result on stdout; where its reader has gone, as `| head` has, this and what follows is told to nobody."""
    try:
        print(*words, end=end, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def suggest(word: str, names: list[str]) -> str:
    """Return '; try NAME' for the nearest name, if one is near."""
    return "".join(f"; try {name}" for name in difflib.get_close_matches(word, names, n=1))


# ----------------------------------------------------------------------------- bundle (src/parts/foundation/bundle.py)

HERE = Path(__file__).resolve()
BUNDLE = next((folder for folder in HERE.parents if (folder / "assets" / "tiny_lm").is_dir()), HERE.parent.parent)


# --------------------------------------------------------------------------- dialect (src/parts/foundation/dialect.py)

# Names of one meaning and one unit. A program takes the ones that it does not have for the one that it has.
SYNONYMS = [
    line.split()
    for line in """
model model_name_or_path model_name
data dataset dataset_name train_data train_dataset
eval_data eval_dataset
reward reward_funcs
output_dir out output
lr learning_rate
lr_schedule lr_scheduler_type
steps max_steps total_training_steps
group_size num_generations n
max_prompt_tokens max_prompt_length
max_new_tokens max_completion_length max_response_length
kl_coef beta
clip_eps_low epsilon
clip_eps_high epsilon_high
dual_clip delta
ppo_epochs num_iterations epochs
epochs num_train_epochs
mask_truncated mask_truncated_completions
adam_eps adam_epsilon
lora_rank lora_r
micro_batch micro_batch_size
save_every save_steps
eval_every eval_steps
keep_checkpoints save_total_limit
vllm_memory vllm_gpu_memory_utilization gpu_memory_utilization
rollout_engine engine
base base_model
""".strip().splitlines()
]
TRL_BATCH = ("per_device_train_batch_size", "gradient_accumulation_steps")
# Names that a program with all the settings of the second column does not have: how what it has follows from them.
RELATIONS = (
    ("epochs", "ppo_epochs", "passes over a batch are --ppo_epochs; passes over the data follow from --steps"),
    ("epochs", "num_iterations", "passes over a rollout are --num_iterations, over the data --num_train_epochs"),
    ("num_train_epochs", "steps batch_size", "steps = num_train_epochs x rows x completions per prompt / batch_size"),
    ("num_train_epochs", "steps prompts", "steps = num_train_epochs x rows / prompts"),
    ("warmup_ratio", "warmup_steps", "warmup_steps = warmup_ratio x steps"),
    ("prompts", "batch_size group_size", "batch_size = prompts x group_size"),
    ("train_batch_size", "batch_size group_size", "batch_size = verl's train_batch_size x group_size"),
    ("generation_batch_size", "batch_size minibatches", "batch_size is the same"),
    ("steps_per_generation", "minibatches", "minibatches = steps_per_generation / gradient_accumulation_steps"),
    ("micro_batch", "micro_batch_tokens", "micro_batch_tokens = micro_batch x tokens of a row"),
    ("micro_batch_size", "micro_batch_tokens", "micro_batch_tokens = micro_batch_size x tokens of a row"),
    ("use_vllm", "rollout_engine", "try --rollout_engine vllm"),
    ("use_vllm", "engine", "try --engine vllm"),
    ("rollout_engine", "use_vllm", "try --use_vllm colocate"),
    ("shown_samples", "bootstrap fewshot", "try scripts/report.py FOLDER, whose page shows the samples"),
    ("bf16", "precision", "try --precision bf16"),
    ("fp16", "precision", "try --precision fp16"),
    ("algorithm", "loss_type", "try --loss_type, --scale_rewards and --importance_sampling_level"),
    ("loss_type", "loss aggregation", "loss_type grpo is --aggregation seq_mean_token_mean, dapo is token_mean"),
    ("scale_rewards", "algorithm advantage", "scale_rewards group is --advantage grpo, none is --advantage mean"),
    ("importance_sampling_level", "algorithm loss", "importance_sampling_level sequence is --loss gspo"),
)


def flag_name(word: str) -> str:
    """Return the name in `--name` or `--name=value`, with `_`; "" if the word is not a flag."""
    return word[2:].partition("=")[0].replace("-", "_") if word.startswith("--") else ""


def flag_values(words: list[str]) -> dict[str, str]:
    """The value that each flag of a command line has last."""
    follows = [*words, "--"][1:]
    pairs = [
        (word, after if "=" not in word else word.partition("=")[2]) for word, after in zip(words, follows, strict=True)
    ]
    return {flag_name(word): "" if value.startswith("--") else value for word, value in pairs if flag_name(word)}


def relation(name: str, names, values: dict[str, str]) -> str:
    """How a program's settings follow from one that it does not have, "" where that is not known."""
    if name in names:
        return ""
    world, number = int(os.environ.get("WORLD_SIZE", 1)), values.get(name, "")
    if name in TRL_BATCH and "lr" in names and {"batch_size", "prompts"} & {*names}:
        sizes = [values.get(n) or usual for n, usual in zip(TRL_BATCH, ("8", "1"), strict=True)]
        whole = int(sizes[0]) * int(sizes[1]) * world if all(map(str.isdigit, sizes)) else "N"
        text = f"batch_size {whole} = {TRL_BATCH[0]} {sizes[0]} x {TRL_BATCH[1]} {sizes[1]} x processes {world}"
        return f"{text}; try --batch_size {whole}" if "batch_size" in names else f"{text} = prompts x group_size"
    if name == "batch_size" and {*TRL_BATCH} <= {*names}:
        share = int(number) // world if number.isdigit() else 0
        passes = 8 if share % 8 == 0 else 1
        text = f"batch_size {number} = {TRL_BATCH[0]} {share // passes} x {TRL_BATCH[1]} {passes} x processes {world}"
        return f"{text}; try --{TRL_BATCH[0]} {share // passes} --{TRL_BATCH[1]} {passes}"
    if name == "batch_size" and {"prompts", "group_size"} <= {*names}:
        return "batch_size = prompts x group_size; try --prompts and --group_size"
    fits = (text for other, needed, text in RELATIONS if other == name and {*needed.split()} <= {*names})
    return next(fits, "")


def own_name(name: str, names) -> str:
    """What a program with these settings calls one; "" where it has none of that meaning and unit."""
    if name in names or relation(name, names, {}):
        return name if name in names else ""
    return next((own for group in SYNONYMS if name in group for own in group if own in names), "")


def in_own_words(words: list[str], names, elsewhere=()) -> list[str]:
    """A command line in a program's own names; one setting by two names needs one value.

    TRL's `epsilon` alone bounds both sides, our `clip_eps_low` one; `elsewhere`: names that a settings file gives.

    Raises:
        UserError: two names of one setting have different values.
    """
    found, first, values = [], {}, flag_values(words)
    for word in words:
        given = flag_name(word)
        own = own_name(given, names) if given else ""
        if own and given in values:
            before = first.setdefault(own, given)
            both = f"got --{before} {values[before]} and --{given} {values[given]}, two names of one setting"
            need(same_value(values[before], values[given]), f"{both}; expected one of them; try --{own}")
        found.append(f"--{own}{word[2 + len(given) :]}" if own and own != given else word)
    if "epsilon" in values and first.get("clip_eps_low") and not {"clip_eps_high", *elsewhere} & first.keys():
        found.append(f"--clip_eps_high={values['epsilon']}")
    return found


def same_value(one: str, other: str) -> bool:
    """Whether two texts say the same, as `1e-5` and `0.00001` do."""
    try:
        return one == other or float(one) == float(other)
    except ValueError:
        return False


# ------------------------------------------------------------------------- settings (src/parts/foundation/settings.py)


def flags_of(parser: argparse.ArgumentParser) -> list[str]:
    """The names of a parser's flags, with `_`."""
    return [flag_name(flag) for action in parser._actions for flag in action.option_strings if flag_name(flag)]


def parse_flags(
    parser: argparse.ArgumentParser, argv: list[str] | None, elsewhere=(), removed: dict[str, str] | None = None
) -> argparse.Namespace:
    """Parse a command line, whose flags may have other programs' names; an unknown one is told the nearest known.

    Args:
        removed: {flag of earlier versions, with `_`: what to use instead}.
    """
    argv, removed, names = sys.argv[1:] if argv is None else argv, removed or {}, flags_of(parser)
    try:
        known, unknown = parser.parse_known_args(in_own_words(argv, names, elsewhere))
    except UserError as error:
        parser.error(str(error))
    if unknown:
        name = unknown[0].split("=")[0]
        if flag_name(name) in removed:
            parser.error(f"got {name}, which was removed; try {removed[flag_name(name)]}")
        follows = relation(flag_name(name), names, flag_values(argv))
        near = f"; {follows}" if follows else suggest(name, [f"--{name}" for name in names])
        parser.error(f"got unknown argument {unknown[0]!r}; expected a flag of --help{near}")
    return known


# --------------------------------------------------------------------------- data files (src/parts/data/data_files.py)

HEAD_BYTES = 1 << 18  # bytes at the beginning of a file that tell what it is
EXPORT, UNPACK, SHEET = "exporting its rows as JSONL", "unpacking it first", "saving the sheet as CSV UTF-8"
# first bytes -> what such a file is, and what to do with it; other binary files are told by their zero bytes
BINARIES = {
    rb"PAR1": ("a parquet file", "a name that ends in .parquet"),
    rb"%PDF-": ("a PDF", EXPORT),
    rb"PK\x03\x04.*(xl/|\[Content_Types\])": ("an Excel workbook", SHEET),
    rb"PK\x03\x04": ("a zip archive", UNPACK),
    rb"\xd0\xcf\x11\xe0\xa1\xb1": ("an old Office file (.xls, .doc)", SHEET),
    rb"ARROW1|\xff\xff\xff\xff": ("an Arrow file", EXPORT),
    rb".{4}\0\0\0\0\{\"": ("a safetensors file", EXPORT),
    rb"\x80[\x02-\x05]": ("a pickle, which is never opened", EXPORT),
    rb"BZh|\xfd7zXZ|7z\xbc\xaf|Rar!|.{257}ustar": ("an archive", UNPACK),
}
POINTERS = {
    rb"version https://(git-lfs|hawser)\.github\.com/spec/": ("a pointer of Git LFS", "`git lfs pull` in its folder"),
    rb"[./]*(\.git|annex)/[\w./-]*objects/\S*\s*\Z": ("a pointer of git-annex", "`git annex get` in its folder"),
}
MARKUP = re.compile(rb"\s*<(!doctype|html|\?xml|head\b|body\b|error\b)", re.IGNORECASE)
MARKUP_LINE = re.compile(rb"\s*(<[^<>]*>\s*)+(\n|\Z)")
REPLY = re.compile(
    rb"\s*([1-5]\d\d:? |entry |repository |page )?(not found|forbidden|unauthorized|bad (request|gateway)|gone|"
    rb"internal server error|service unavailable|too many requests|gateway time-?out|"
    rb"invalid username or password)\.?\s*\Z",
    re.IGNORECASE,
)
REASON_KEYS = ("error", "errors", "message", "detail")
REPLY_KEYS = {
    *(*REASON_KEYS, "code", "status", "statusCode", "status_code", "type", "title", "documentation_url", "path"),
    *("request_id", "requestId", "traceId", "timestamp", "success", "cause"),
}
# columns of prompts: those that always ask, and those that do in one file and are a word about the rows in another
ASKS = {
    *("prompt", "question", "problem", "query", "instruction", "messages", "conversations", "conversation"),
    *("chosen", "completion"),
}
WEAK = {"text", "input", "description"}
TEXT_CODECS = ("cp1252", "cp1250", "cp1251", "gb18030", "cp932", "big5", "euc_kr", "euc_jp")  # what spreadsheets write
EASTERN = re.compile("[a-z][¡¢£¥ª¯²³¹º¼½¾¿Ÿ][a-z]")  # Polish, Czech or Hungarian letters, read as CP1252


class Unpacked(io.RawIOBase):
    """The bytes of a chunk iterator as a file; what cannot be unpacked is a UserError that names the file."""

    def __init__(self, chunks: Iterator[bytes], name: str, inner):
        self.chunks, self.name, self.rest, self.inner = chunks, name, b"", inner

    def close(self) -> None:
        self.inner.close()
        super().close()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer) -> int:
        try:
            while not self.rest and (chunk := next(self.chunks, None)) is not None:
                self.rest = chunk
        except UserError:
            raise
        except Exception as error:  # zlib, gzip, zstandard, codecs and the system each have their own
            advice = "; try another --encoding" if isinstance(error, UnicodeDecodeError) else ""
            got = f"{self.name}: got bytes that cannot be read ({error})"
            raise UserError(f"{got}; expected an intact file{advice}") from None
        size = min(len(buffer), len(self.rest))
        buffer[:size], self.rest = self.rest[:size], self.rest[size:]
        return size


def bounded(stream, name: str, limit: int) -> Iterator[bytes]:
    """Chunks of an unpacked stream; UserError once there is more than the limit."""
    total = 0
    while chunk := stream.read(1 << 18):
        total += len(chunk)
        got = f"{name}: got more than {limit} unpacked bytes"
        need(total <= limit, f"{got}; expected at most max_bytes; try --max_bytes if the file is yours")
        yield chunk


def recoded(stream, codec: str) -> Iterator[bytes]:
    """Text of another encoding as UTF-8."""
    chunks = iter(lambda: stream.read(1 << 18), b"")
    yield from (text.encode() for text in codecs.iterdecode(chunks, codec))


def zstd_stream(raw, name: str):
    """A reader of zstd data: Python 3.14 has one, the package zstandard another."""
    with contextlib.suppress(ImportError):
        return importlib.import_module("compression.zstd").ZstdFile(raw)
    try:
        zstandard = importlib.import_module("zstandard")
    except ImportError:
        advice = "try `pip install zstandard`, or unpack it first"
        raise UserError(f"{name}: got zstd data; expected the package zstandard; {advice}") from None
    return zstandard.ZstdDecompressor().stream_reader(raw, read_across_frames=True)


def open_data(
    source: str, form: str | None, max_bytes: int = 8 << 30, encoding: str | None = None, sure: bool = False
) -> tuple:
    """Open a file or stdin (`-`) as UTF-8 bytes without a byte order mark; returns (stream, form).

    Packing and encoding are told from the bytes, as names are often wrong. Without a form (stdin) it is told too;
    `sure` takes the form as it is.

    Raises:
        UserError: it holds no rows whatever its name says, such as a pointer of Git LFS, an error page or a pickle, or
            its encoding cannot be told.
    """
    name = "stdin" if source == "-" else source
    with contextlib.ExitStack() as opened:
        try:
            raw = io.BufferedReader(sys.stdin.buffer, HEAD_BYTES) if source == "-" else open(source, "rb", HEAD_BYTES)
            head = opened.enter_context(raw).peek(HEAD_BYTES)
        except OSError as error:
            raise UserError(f"got {name}: {error.strerror}; expected a readable file") from None
        if head[:2] == b"\x1f\x8b" or head[:4] == b"\x28\xb5\x2f\xfd":
            stream = gzip.GzipFile(fileobj=raw) if head[:2] == b"\x1f\x8b" else zstd_stream(raw, name)
            raw = io.BufferedReader(Unpacked(bounded(stream, name, max_bytes), name, raw), HEAD_BYTES)
            head = raw.peek(HEAD_BYTES)
        refuse_no_data(head, name, form)
        if codec := encoding or codec_of(head, name, form or ("jsonl" if head.lstrip()[:1] in (b"{", b"[") else "txt")):
            raw = io.BufferedReader(Unpacked(recoded(raw, codec), name, raw), HEAD_BYTES)
            head = raw.peek(HEAD_BYTES)
            refuse_no_data(head, name, form)
        elif head.startswith(codecs.BOM_UTF8):
            head = head[raw.readinto(bytearray(len(codecs.BOM_UTF8))) :]
        form = form if sure else form_of_text(head, name, form)
        opened.pop_all()
    return raw, form


def form_of_text(head: bytes, name: str, form: str | None) -> str:
    """The form that a text shows, where it has no name that tells it, or one that tells which JSON it is."""
    start = head.lstrip()[:1]
    if form is None:
        form = "jsonl" if start in (b"{", b"[") else "txt"
    elif form in ("txt", "csv", "tsv") and holds_json(head):
        got = f"{name}: got JSON in a file that is read as {form}"
        raise UserError(f"{got}; expected text; try renaming it to end in .json")
    if form == "txt":
        names = re.split(r"[,;\t]", head.partition(b"\n")[0].decode("utf-8", "replace").strip().lower())
        got = f"{name}: got a first line of column names, {', '.join(names)[:60]}, in a file of one prompt a line"
        is_table = len(names) > 1 and {*names} & (ASKS | WEAK) and all(map(str.isidentifier, names))
        need(not is_table, f"{got}; expected prompts; try --input_format csv, or renaming it to end in .csv")
    return "json" if form == "jsonl" and not begins_lines(head) else form


def holds_json(head: bytes) -> bool:
    """Whether a text is JSON: its first line is an object or array, or all of it is one."""
    text = head.decode("utf-8", "replace").strip()
    if not text.startswith(("{", "[")):
        return False
    for part in (text.partition("\n")[0], text):
        with contextlib.suppress(ValueError, RecursionError):
            return isinstance(json.loads(part), dict | list)
    return len(head) >= HEAD_BYTES  # a first line longer than that


def begins_lines(head: bytes) -> bool:
    """Whether a JSON file has a value on its first line, not an array or object over several lines."""
    first, _, rest = head.lstrip().partition(b"\n")
    if first[:1] == b"[":
        return bool(rest.strip()) and first.rstrip().endswith(b"]")
    return first.strip() != b"{"


def refuse_no_data(head: bytes, name: str, form: str | None) -> None:
    """Raise UserError where the first bytes are those of something that holds no rows."""
    is_binary = not head.isascii() or b"\0" in head or head.startswith(b"%PDF-")
    again = "downloading it again, and look at the file first"
    fits = (pair for first, pair in BINARIES.items() if is_binary and re.match(first, head, re.DOTALL))
    kind, advice = next(fits, (None, ""))
    if kind == "a parquet file" and form == "parquet":
        return
    if kind is None:
        kind, advice = next((pair for start, pair in POINTERS.items() if re.match(start, head)), (None, again))
    if kind is None and MARKUP.match(head) and (form not in ("txt", None) or is_page(head)):
        kind = "an HTML or XML page"
    if kind is None and len(head) < 10_000 and (REPLY.match(head) or is_reply(head)):
        kind = f"a server's error message, {head[:80].decode('utf-8', 'replace').strip()!r}"
    need(kind is None, f"{name}: got {kind}; expected rows of data as {form or 'text'}; try {advice}")


def is_page(head: bytes) -> bool:
    """Whether a text that begins with markup is a page, not prompts about some."""
    closed = head.lower().count(b"</html>")
    lines = [line for line in head.split(b"\n") if line.strip()]
    if len(lines) == 1:
        return closed < 2 and head.rstrip().endswith(b">")
    tags = sum(line.lstrip().startswith(b"<") for line in lines)
    ends = closed == 0 or (closed == 1 and head.rstrip().endswith(b">"))
    return ends and 2 * tags >= len(lines) and bool(MARKUP_LINE.match(lines[0]))


def is_reply(head: bytes) -> bool:
    """Whether a file is one JSON object that only says what went wrong."""
    if not head.lstrip().startswith(b"{"):
        return False
    try:
        value = json.loads(head)
    except (ValueError, RecursionError):
        return False
    failed = {"error", "errors"} & value.keys() and not value.keys() & {*ASKS, *WEAK, "data", "rows"}
    return bool(failed) or (value.keys() <= REPLY_KEYS and any(key in value for key in REASON_KEYS))


def codec_of(head: bytes, name: str, form: str) -> str | None:
    """What a file has to be decoded by; None for UTF-8, and where its flaws are those of single rows.

    JSON is UTF-8, or UTF-16 with a byte order mark; of spreadsheets and texts other encodings are told, and said.
    """
    need(head[:4] not in (b"\xff\xfe\0\0", b"\0\0\xfe\xff"), f"{name}: got UTF-32; expected UTF-8 or UTF-16")
    if head[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        return "utf-16"
    got, advice = (
        f"{name}: got bytes that are not UTF-8",
        f"try python scripts/data_loader.py {name} --out clean.jsonl --encoding",
    )
    if wide := utf16_of(head):
        wrong = f"{got} but UTF-16 without a byte order mark; expected UTF-8; {advice} {wide}"
        need(form in ("csv", "tsv", "txt"), wrong)
        say(f"{name}: read as {wide.upper()}")
        return wide
    bad, good = utf8_counts(head)
    is_binary = b"\0" in head[:1024] and head.lstrip()[:1] not in (b"{", b"[")
    need(not is_binary, f"{name}: got some binary file; expected rows of data as {form}; try {EXPORT}")
    if bad < 2 or good >= bad or form in ("json", "jsonl"):
        return None
    near = near_codecs(head)
    if good and near and {*near} <= {"cp1252", "cp1250"}:
        return None  # UTF-8 with flaws: in a text of such bytes nothing looks like UTF-8
    likely = f", perhaps {' or '.join(near)}" if near else ""
    need(len(near) == 1, f"{got}{likely}; expected UTF-8; {advice} {near[0] if near else 'cp1252'}, or another's name")
    say(f"{name}: read as {near[0].upper()}")
    return near[0]


def utf16_of(head: bytes) -> str | None:
    """UTF-16 without a mark, by the zero bytes of its line feeds and Latin letters; else None."""
    for codec, zeros, others in (("utf-16-le", head[1::2], head[::2]), ("utf-16-be", head[::2], head[1::2])):
        if zeros.count(0) > 10 * others.count(0) and zeros.count(0) > len(zeros) / 20:
            with contextlib.suppress(UnicodeDecodeError):
                codecs.getincrementaldecoder(codec)().decode(head, final=False)
                return codec
    return None


def utf8_counts(head: bytes) -> tuple[int, int]:
    """In how many places a text is not UTF-8, and how many characters of several bytes it has besides."""
    if len(head) >= HEAD_BYTES:  # the last character may be cut
        head = head[: head.rfind(b"\n") + 1] or head[:-4]
    text = head.decode("utf-8", "surrogateescape")
    places = [len(run) for run in re.findall("[\udc80-\udcff]+", text)]
    good = len(re.findall("[^\0-\x7f\udc80-\udcff]", text)) if places else 0
    return sum(max(1, size // 2) for size in places), good  # a character that is cut leaves 3 bytes at most


def near_codecs(head: bytes) -> list[str]:
    """The encodings that a text may well be in, by charset-normalizer; more than one where it cannot be told."""
    try:
        normalizer = importlib.import_module("charset_normalizer")
    except ImportError:
        return []
    lines = [line for line in head.split(b"\n") if not line.isascii()]
    sample = b"\n".join(lines[:-1] if len(head) >= HEAD_BYTES else lines)[: 1 << 16]
    matches = [*normalizer.from_bytes(sample, cp_isolation=TEXT_CODECS)]
    ranks = [match.chaos - match.coherence for match in matches]
    near = [match for match, rank in zip(matches, ranks, strict=True) if rank <= min(ranks) + 0.08]
    names = {name for match in near for name in match.could_be_from_charset}
    if names <= {"cp1252", "cp1250"}:
        if EASTERN.search(sample.decode("cp1252", "replace")):
            return ["cp1250"]
        return ["cp1252"] if "cp1252" in names else ["cp1252", "cp1250"]
    return sorted(match.encoding for match in near)


# ----------------------------------------------------------------------------------- tables (src/parts/data/tables.py)

SEPARATORS = (",", ";", "\t", "|")
MARK = re.compile(r'"?sep=(.)"?[\r\n]*\Z')  # Excel's first line
LONGEST_CELL = 256 << 20  # characters of a cell
# what tells a header from a title above it, and from a row of data
HEADER_NAMES = {*ASKS, *WEAK, "answer", "response", "output", "solution", "rejected", "choices", "id"}
OTHER_ENCODING = "data_loader.py --encoding cp1252, or another's name, if the whole file is in it"
OTHER_BYTES = re.compile("[\udc80-\udcff]")


def table_rows(stream, name: str, delimiter: str, chosen: str | None = None) -> Iterator[tuple[int, dict | RowFlaw]]:
    """(line, row) below the header of a CSV file; every cell is text. A row that does not fit comes as its flaw.

    Args:
        stream: UTF-8 bytes that can be peeked at.
        name: what messages call the file.
        delimiter: what stands between cells, unless the file says or shows otherwise.
        chosen: the same, whatever the file shows.
    """
    csv.field_size_limit(LONGEST_CELL)
    head = stream.peek(1 << 20).decode("utf-8", "surrogateescape")
    with io.TextIOWrapper(stream, "utf-8", "surrogateescape", newline="") as lines:
        above = 0
        if mark := MARK.match(head.partition("\n")[0]):
            lines.readline()
            head, above, chosen = head.partition("\n")[2], 1, chosen or mark[1]
        used = chosen or separator_of(head, delimiter, name)
        if used != delimiter:
            say(f"{name}: read with {used!r} between the columns")
        records = first_records(head, used)
        at = header_at(records)
        padded = at < len(records) and len(records[at]) > 1 and all(cell[:1] == " " for cell in records[at][1:])
        reader = csv.reader(lines, delimiter=used, strict=True, skipinitialspace=padded)
        try:
            header = next(itertools.islice((cells for cells in reader if any(cells)), at, None), [])
        except csv.Error as error:
            raise UserError(f"{name}:1: got a header that is not valid CSV ({error}); expected column names") from None
        where = f"{name}:{reader.line_num + above}"
        if at:
            say(f"{where}: taken for the header; what stands above it is left out")
        yield from body(reader, column_names(header, where), used, above)


def column_names(header: list[str], where: str) -> list[str]:
    """The names of the columns: without blanks around them, and without the empty columns that spreadsheets append."""
    names = filled([cell.strip() for cell in header])
    twice = [column for column, count in Counter(names).items() if count > 1]
    need(not twice, f"{where}: got the column {twice[:1]} twice; expected each name once; try renaming one")
    text = next((cell for cell in names if len(cell) > 60 or cell[-1:] in tuple(".?!:。？！")), None)
    if text and not HEADER_NAMES & {cell.casefold() for cell in names}:
        say(
            f"warning: {where}: got the column name {text[:60]!r}; is it data? Then put a line of column names above it"
        )
    return names


def body(reader, names: list[str], delimiter: str, above: int) -> Iterator[tuple[int, dict | RowFlaw]]:
    """The rows below the header; `above` lines were read before the reader saw the file."""
    while True:
        start = reader.line_num
        line = start + above + 1
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            yield line, RowFlaw("row", f"no CSV ({error})", "RFC 4180 quoting", 'quotes as ""')
            if reader.line_num == start:
                return
            continue
        if not any(cell.strip() for cell in cells):
            continue
        if len(cells) > len(names):
            cells = cells[: len(names)] + filled(cells[len(names) :])
        if other := OTHER_BYTES.search("".join(cells)):
            got = f"byte {ord(other[0]) - 0xDC00:#04x}, which is not UTF-8"
            yield (
                line,
                RowFlaw("row", got, "UTF-8 text", OTHER_ENCODING),
            )
        elif len(cells) != len(names):
            advice = f"quoting fields that hold {delimiter!r}"
            yield line, RowFlaw("row", f"{len(cells)} fields", f"{len(names)} as in the header", advice)
        else:
            yield line, dict(zip(names, cells, strict=True))


def filled(cells: list[str]) -> list[str]:
    """The cells without empty ones at the end."""
    size = next((size for size in range(len(cells), 0, -1) if cells[size - 1].strip()), 0)
    return cells[:size]


def first_records(head: str, delimiter: str) -> list[list[str]]:
    """Return the first non-empty records, up to the first that is not valid CSV."""
    records = []
    try:
        for cells in itertools.islice(csv.reader(io.StringIO(head, newline=""), delimiter=delimiter, strict=True), 50):
            if any(cells):
                records.append(cells)
    except csv.Error:
        pass
    return records


def header_at(records: list[list[str]]) -> int:
    """Which record is the header: the first, unless that is a title above known column names."""
    if not records or len(filled(records[0])) > 1 or records[0][0].strip().casefold() in HEADER_NAMES:
        return 0
    known = (len(cells) > 1 and HEADER_NAMES & {cell.strip().casefold() for cell in cells} for cells in records[:10])
    return next((number for number, is_header in enumerate(known) if is_header), 0)


def separator_of(head: str, delimiter: str, name: str) -> str:
    """What stands between the columns: as expected where that parts the header, else what parts all rows alike."""
    parted, steady = [], []
    for separator in dict.fromkeys((delimiter, *SEPARATORS)):
        records = first_records(head, separator)
        table = records[header_at(records) :]
        width = len(filled(table[0])) if table else 0
        if width > 1:
            parted.append(separator)
            if all(len(filled(cells)) <= width <= len(cells) for cells in table):
                steady.append(separator)
    if delimiter in parted and (delimiter in steady or not steady):
        return delimiter
    likely = steady or parted or [delimiter]
    got = f"{name}: got columns that may be parted by {' or '.join(map(repr, likely))}"
    advice = f"try python scripts/data_loader.py {name} --out clean.jsonl --delimiter {likely[0]!r}"
    need(len(likely) == 1, f"{got}; expected one of them; {advice}")
    return likely[0]


# ------------------------------------------------------------------------- nested rows (src/parts/data/nested_rows.py)

ANSWERED = {"answer", "solution", "completion", "response", "output", "chosen"}
NESTED = {"paragraphs", "qas", "qa_pairs", "questions"}
LISTS = {
    *("data", "rows", "examples", "samples", "items", "records", "instances", "entries", "tasks", "problems"),
    *("prompts", "dataset", "train", "test", "validation", "valid", "dev", "eval", *NESTED),
}
CONTEXT = ("text", "context", "passage", "article", "story", "paragraph", "document", "table", "background", "body")
CHAT = re.compile(r"""\s*(?:\[\s*)?\{\s*(["'])(role|from|content|value)\1\s*:""")
# what begins a turn in dialogues that are one text: HH-RLHF, Guanaco and Alpaca, ChatML, Llama 3, Llama 2, Glaive
TURNS = (
    r"(?:\A|\n\n)(Human|Assistant): ?",
    r"### ?(Human|User|Assistant|System|Instruction|Input|Response): ?",
    r"<\|im_start\|>(\w+)\n",
    r"<\|start_header_id\|>(\w+)<\|end_header_id\|>",
    r"(\[/?INST\])",
    r"(?:\A|\n)(USER|ASSISTANT|FUNCTION RESPONSE|SYSTEM): ",
)
TURN_ENDS = re.compile(r"</?s>|<\|(im_end|eot_id|endoftext|begin_of_text)\|>")
SPEAKERS = {
    **dict.fromkeys(("human", "user", "instruction", "input", "[inst]"), "user"),
    **dict.fromkeys(("assistant", "response", "[/inst]"), "assistant"),
    **{"system": "system", "tool": "tool", "function response": "tool"},
}
CHAT_COLUMNS = (*sorted(ASKS), "rejected", "response", "output", "text", "input", "history")


def rows_in(value: dict, name: str, alone: bool, known=()) -> list | None:
    """The rows of an object that holds them; None where it is a row itself.

    Args:
        value: a JSON object.
        name: what messages call its file.
        alone: it is all that its file holds.
        known: columns that make it a row, beside the usual ones.

    Raises:
        UserError: it holds rows, but not plainly which.
    """
    table = rows_of_columns(value, name, known) if alone else None
    asks = value.keys() & {*ASKS, *known}
    lists = [value[key] for key in LISTS & value.keys() if isinstance(value[key], list) and value[key]]
    is_head = alone and not value.keys() & {*ANSWERED, *known} and any(is_row(items[0]) for items in lists)
    if table is not None or (asks and not is_head):  # a prompt above a list of rows is not plainly one
        return table
    shared = {key: value[key] for key in CONTEXT if isinstance(value.get(key), str)}
    nested = {key: item for key, item in value.items() if isinstance(item, list | dict) and item}
    rows = {key: items for key, items in nested.items() if holds_rows(key, items, value, alone)}
    objects = {key: item for key, item in value.items() if isinstance(item, dict) and (key in LISTS or len(value) == 1)}
    tables = [rows_in(item, name, True, known) for item in objects.values()] if alone else []
    if len(tables) == 1 and tables[0]:
        return tables[0]
    if alone and nested and not any(tables) and all(map(is_row, value.values())):
        rows = {"": [*value.values()]}  # by index, as pandas' orient="index"
    keys = ["rows"] if "rows" in rows and "row" in rows["rows"][0] else [*rows]
    if len(keys) == 1 and not asks:
        unused = [key for key in value if key not in keys and key not in shared] if keys[0] else []
        if alone and unused:
            say(f"{name}: read the rows of {keys[0]!r}; not used: {', '.join(unused)[:200]}")
        return [row for number, item in enumerate(rows[keys[0]], 1) for row in unfolded(item, name, number, shared)]
    if alone and not value.keys() & (WEAK - {"description"}):
        keys = keys or [key for key in nested if key in LISTS]
    if not keys:
        return None
    part = f"json.load(open({name!r}))[{keys[0]!r}]"
    if isinstance(value[keys[0]], list) and isinstance(value[keys[0]][0], str):
        part = f"[{{'prompt': text}} for text in {part}]"
    code = f"import json; json.dump({part}, open('rows.json', 'w'))"
    got = f"{name}: got one object that holds {' and '.join(map(repr, keys[:5]))}, and not plainly one list of rows"
    raise UserError(f'{got}; expected JSONL, or one list of objects; try taking one out: python -c "{code}"')


def is_row(item) -> bool:
    """Whether an item has a field that asks, or holds others that may."""
    return isinstance(item, dict) and bool(item.keys() & (ASKS | NESTED))


def holds_rows(name: str, items, value: dict, alone: bool) -> bool:
    """Whether a list in an object is one of rows: by the fields of its first item, and of the list's name."""
    if not isinstance(items, list) or not isinstance(items[0], dict):
        return False
    if is_row(items[0]) or (name == "rows" and isinstance(items[0].get("row"), dict)):
        return alone or name in LISTS
    # the examples of a programming task are no rows, though those of a task of BIG-bench are
    cases = {"input", "output"} <= items[0].keys() and name in ("examples", "samples") and value.keys() & WEAK
    return alone and name in LISTS and not cases


def unfolded(item, name: str, number: int, shared: dict) -> list:
    """The rows that an item of a list stands for, each with what they share."""
    if not isinstance(item, dict):
        return [item]
    if isinstance(item.get("row"), dict) and "row_idx" in item:  # as the viewer of the hub gives them
        cut = ", ".join(map(str, item.get("truncated_cells") or ()))
        got = f"{name}: got row {number}, of which the hub's viewer has cut {cut}"
        need(not cut, f"{got}; expected whole cells; try the data set's name, OWNER/NAME, or its parquet files")
        return [item["row"]]
    rows = rows_in(item, name, alone=False)
    return [{**shared, **row} if isinstance(row, dict) else row for row in ([item] if rows is None else rows)]


def rows_of_columns(value: dict, name: str, known) -> list[dict] | None:
    """The rows of an object whose values are columns: lists, or objects by index, or pandas' orient="split"."""
    columns, data = value.get("columns"), value.get("data")
    if isinstance(columns, list) and isinstance(data, list) and data and isinstance(data[0], list):
        fits = all(isinstance(row, list) and len(row) == len(columns) for row in data)
        need(fits, f"{name}: got a row of another length than `columns`; expected {len(columns)} cells; try JSONL")
        return [dict(zip(map(str, columns), row, strict=True)) for row in data]
    asking = [value[key] for key in value.keys() & {*ASKS, *WEAK, *known}]
    if asking and all(isinstance(item, dict) and item and all(map(str.isdigit, item)) for item in value.values()):
        places = [*max(value.values(), key=len)]
        return [{key: column.get(place) for key, column in value.items()} for place in places]
    lists = len(value) > 1 and all(isinstance(item, list) for item in value.values())
    if not asking or not lists or not all(map(is_column, asking)):
        return None
    sizes = {key: len(column) for key, column in value.items()}
    listed = ", ".join(f"{key}: {size}" for key, size in sizes.items())[:200]
    got = f"{name}: got columns of unequal length ({listed})"
    need(len({*sizes.values()}) == 1, f"{got}; expected one value for each row; try JSONL, one object a line")
    return [dict(zip(value, row, strict=True)) for row in zip(*value.values(), strict=True)]


def is_column(items: list) -> bool:
    """Whether a list holds prompts, texts or messages, not the messages of one."""
    texts = all(isinstance(item, str) and item.strip() for item in items)
    return bool(items) and (texts or all(isinstance(item, list) and item for item in items))


def with_chats(row: dict) -> dict:
    """The row with messages instead of their JSON text, as cells of a spreadsheet hold them; other texts stay.

    Raises:
        RowFlaw: a text is such JSON but broken, or the same as Python prints it.
    """
    chats = {}
    for name in CHAT_COLUMNS:
        text = row.get(name)
        start = CHAT.match(text) if isinstance(text, str) else None
        if not start or not text.rstrip().endswith(("]", "}")):
            continue
        try:
            messages = json.loads(text)
        except (ValueError, RecursionError) as error:
            if str(error).startswith("Extra data"):
                continue  # a text that begins with messages
            got = f"chat messages as Python prints them, {text[:40]!r}" if start[1] == "'" else f"broken JSON ({error})"
            advice = "json.dumps for the column, or pandas' to_json(FILE, orient='records', lines=True) for all"
            raise RowFlaw(name, got, "a list of messages, or its JSON text", advice) from None
        messages = [messages] if isinstance(messages, dict) else messages
        if all(
            isinstance(m, dict) and ({"role", "content"} <= m.keys() or {"from", "value"} <= m.keys()) for m in messages
        ):
            chats[name] = messages
    return {**row, **chats} if chats else row


def turns_in(text: str) -> list[dict] | None:
    """The messages of a dialogue that is one text, `### Human: … ### Assistant: …` or the like; None for other texts.

    The last one is empty where the text ends with a speaker's mark.
    """
    for mark in TURNS:
        above, *pieces = re.split(mark, text)
        roles = [SPEAKERS.get(speaker.lower()) for speaker in pieces[::2]]
        preface = TURN_ENDS.sub("", above).strip()
        if "assistant" not in roles or None in roles or roles[0] == "assistant":
            continue
        if preface and not preface.startswith("Below is an instruction"):  # Alpaca's
            continue
        turns = []
        for role, said in zip(roles, pieces[1::2], strict=True):
            content = TURN_ENDS.sub("", said).strip()
            if turns and turns[-1]["role"] == role:
                turns[-1]["content"] += f"\n\n{content}"
            else:
                turns.append({"role": role, "content": content})
        if preface:
            turns[0]["content"] = f"{preface}\n\n{turns[0]['content']}"
        return turns
    return None


# --------------------------------------------------------------------------------------- rows (src/parts/data/rows.py)


def is_hub_id(source: str) -> bool:
    """Whether a name, not a local path, could be `owner/name` or `name` on the hub."""
    return not Path(source).exists() and not source.startswith((".", "/", "~")) and source.count("/") <= 1


def hub_rows(source: str) -> Iterator[dict]:
    """Rows of a data set of the hub, `owner/name[:config][@split]`; code that comes with it is never run."""
    import datasets

    name, _, split = source.partition("@")
    name, _, subset = name.partition(":")
    offline = not hub_is_reached()
    datasets.config.HF_HUB_OFFLINE = datasets.config.HF_HUB_OFFLINE or offline
    try:
        yield from datasets.load_dataset(name, subset or None, split=split or "train")
    except Exception as error:  # every layer below has its own
        why = "and the hub cannot be reached" if offline else "and the hub says"
        raise UserError(f"got data {source!r}: no such file, {why}: {str(error)[:300]}") from None


@functools.cache
def hub_is_reached() -> bool:
    """Whether the hub answers within 5 seconds; if not, its client reads the cache alone, without minutes of trying."""
    import huggingface_hub.constants as hub

    if hub.HF_HUB_OFFLINE:
        return False
    try:
        urllib.request.urlopen(urllib.request.Request(hub.ENDPOINT, method="HEAD"), timeout=5).close()
    except OSError as error:
        if isinstance(error, urllib.error.HTTPError) or isinstance(getattr(error, "reason", None), ssl.SSLError):
            return True  # an answer too; certificates of a proxy may be known to the hub's client alone
        hub.HF_HUB_OFFLINE = True
        return False
    return True


# ------------------------------------------------------------------- question parts (src/parts/data/question_parts.py)

# texts that a question is asked about, in the order in which they stand before it
READ_FIRST = (
    *("pre_text", "context", "contexts", "ctx", "passage", "passages", "article", "body", "story", "background"),
    *("document", "documents", "doc", "docs", "paragraph", "paragraphs", "premise", "hypothesis", "support"),
    *("dialogue", "dialog", "schema", "table", "tables", "scenario", "excerpt", "post_text"),
)
# perhaps a part of the question, perhaps a note about it
DOUBTFUL = (
    *("hint", "hints", "fact", "facts", "evidence", "evidences", "history", "sentence1", "sentence2", "sent1", "sent2"),
    *("starter_code", "abstract", "essay", "knowledge", "situation", "transcript", "vignette", "email", "snippet"),
    *("constraints", "input_format", "output_format", "input_description", "output_description", "search_results"),
    *("source_text", "reference_text", "full_text", "kontext", "textabschnitt", "contexte", "contexto", "passaggio"),
    *("上下文", "背景", "文章", "材料", "原文", "段落"),
)
SECOND_TEXTS = ("prompt", "question", "problem", "query", "instruction", "text", "input", "description")
MEDIA = {"image", "picture", "figure", "img", "photo", "video", "audio", "diagram", "screenshot", "frame"}
MEDIA_ENDS = {"url", "uri", "link", "path", "file", "byte", "base", "data", "list", "caption", "description"}
JSON_TYPES = {"object", "array", "string", "number", "integer", "boolean", "null"}  # of JSON Schema
NOTE_WORDS = {"supporting", "gold", "answer", "output", "response", "correct", "solution", "is", "has", "num"}
CHOICE_KEYS = (
    *("choices", "options", "answer_choices", "answer_options", "endings", "choice", "candidates", "alternatives"),
    *("mc1_targets", "answers", "distractors", "incorrect_answers"),
)
NUMBER_KEYS = ("label", "gold_label", "correct", "correct_option", "answer_idx", "answer_index", "cop")
# one choice a column: A, optionB, option_1, opa, sol2, ending0, mc_answer4, "Incorrect Answer 3"
ONE_CHOICE = re.compile(
    r"((?i:op(?=[A-Da-d])|opt(?:ion)?|choice|(?:mc_?)?answer|ans|sol|ending|candidate|alternative|distractor"
    r"|(?:incorrect|wrong)_?answer)_?)([A-Ja-j]|\d\d?)|([A-Ja-j])"
)
WRONG = re.compile(r"(?i)distractor|incorrect|wrong")  # columns of choices without the right one


def plain_name(name: str) -> str:
    """A column's name in lower case, with _ between its words: `Correct Answer` is `correct_answer`."""
    return re.sub(r"[\s-]+", "_", name.strip()).lower()


@functools.lru_cache(4096)
def part_names(names: tuple[str, ...]) -> list[str]:
    """The columns whose names say that they hold a part of the question."""
    return [name for name in names if names_part(name)]


def names_part(name: str) -> bool:
    """Whether a column's name says that it holds a part of the question."""
    if plain_name(name) in (*READ_FIRST, *DOUBTFUL, *SECOND_TEXTS):
        return True
    words = words_in(name)
    if not words or NOTE_WORDS & {*words}:
        return False
    if is_media(name):
        return True
    return len(words) > 1 and head_of(name) in {*READ_FIRST, *DOUBTFUL}


def head_of(name: str) -> str:
    """What a column's name says that it holds: passage for `flores_passage` and `passage_text`."""
    stems = [word.removesuffix("s") for word in words_in(name)]
    return stems[-2] if len(stems) > 1 and stems[-1] in ("text", "content") else stems[-1]


def words_in(name: str) -> list[str]:
    """The words of a column's name, which may be in camel case."""
    return re.findall(r"[^\W\d_]+", plain_name(re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name)))


def is_media(name: str) -> bool:
    """Whether a column's name says that it holds images, sound, or where they lie."""
    stems = [word.removesuffix("s") for word in words_in(name)]
    return bool(MEDIA & {*stems}) and stems[-1] in MEDIA | MEDIA_ENDS


@functools.lru_cache(4096)
def choice_names(names: tuple[str, ...]) -> tuple[list[str], list[tuple[str, ...]]]:
    """(columns that may hold all choices, groups of columns that hold one each) among the columns of a row.

    The names of a group differ in a letter from A or a number from 0 or 1.
    """
    families = {}
    for name in names:
        if match := ONE_CHOICE.fullmatch(re.sub(r"[\s-]+", "_", name)):
            prefix, mark = match[1] or str(match[3].isupper()), match[2] or match[3]
            place = int(mark) if mark.isdigit() else ord(mark.lower()) - ord("a")
            families.setdefault(prefix.lower(), {})[place] = name
    complete = []
    for prefix, family in families.items():
        least = 4 if prefix == "false" else 1 if WRONG.match(prefix) else 2  # `a` and `b` alone are rather two numbers
        if min(family) < 2 and len(family) >= least and max(family) - min(family) + 1 == len(family):
            complete.append(tuple(family[place] for place in sorted(family)))
    return [name for name in CHOICE_KEYS if name in names], complete


def choice_columns(row: dict) -> tuple[str, ...]:
    """The columns with the choices of a question, one or several; () where none looks like it."""
    keys, families = choice_names(tuple(row))
    for name in keys:
        value = row[name]
        if is_empty(value) or not isinstance(value, str | list | dict):
            continue
        if isinstance(value, str) and (name == "choice" or value.strip() in ("[]", "{}")):
            continue
        if name == "answers":  # ReClor's, or with a truth value each; elsewhere accepted answers
            several = isinstance(value, list) and len(value) > 1 and row.get("answer") is None
            judged = several and isinstance(value[0], dict) and bool in map(type, value[0].values())
            if not several or not (judged or any(row.get(number) is not None for number in NUMBER_KEYS)):
                continue
        return (name,)
    for family in families:
        given = tuple(name for name in family if not is_empty(row[name]))
        if len(given) > 1 or (given and WRONG.match(given[0])):
            return given if given == family[: len(given)] else family
    return ()


def is_empty(value) -> bool:
    """Whether a cell holds nothing: null, blanks, an empty list or object."""
    return value is None or value in ([], {}) or (isinstance(value, str) and not value.strip())


def texts_in(value) -> list[str]:
    """Every text and number in a value, however deep; of a chat message its content."""
    if isinstance(value, dict | list):
        inner = value if isinstance(value, list) else [item for key, item in value.items() if key != "role"]
        return [text for item in inner for text in texts_in(item)]
    return [] if value is None or isinstance(value, bool) else [value if isinstance(value, str) else repr(value)[:100]]


def squeezed(text: str) -> str:
    """A text with one blank between its words."""
    return " ".join(text.split())


def is_json_schema(name: str, value) -> bool:
    """Whether a column named as a schema holds a JSON Schema, by which a reward checks, and no tables of a database."""
    if head_of(name) != "schema":
        return False
    try:
        schema = json.loads(value) if isinstance(value, str) else value
    except ValueError:
        return False
    if not isinstance(schema, dict):
        return False
    properties, kind = schema.get("properties"), schema.get("type")
    if isinstance(properties, dict) and all(isinstance(one, dict | bool) for one in properties.values()):
        return True
    return bool(schema.keys() & {"$schema", "$ref", "anyOf", "oneOf", "allOf"}) or (
        isinstance(kind, str) and kind in JSON_TYPES
    )


def unread_parts(row: dict, prompt) -> list[str]:
    """Columns that look like a part of the question but are not in the prompt, a text or messages."""
    choices, unread = choice_columns(row), []
    names = [name for name in dict.fromkeys([*part_names(tuple(row)), *choices]) if not is_empty(row[name])]
    names = [name for name in names if row[name] != prompt and not is_json_schema(name, row[name])]
    if not names:
        return []
    whole = prompt if isinstance(prompt, str) else "\n\n".join(message["content"] for message in prompt)
    asked, parts = squeezed(whole), [squeezed(part) for part in whole.split("\n\n")]
    for name in names:
        inside = [squeezed(text) for text in texts_in(row[name])]
        is_note = isinstance(row[name], int | float) and name not in choices
        is_whole = (
            name in SECOND_TEXTS and len(inside) == 1 and all(part in inside[0] for part in parts)
        )  # Alpaca's text
        is_there = all(text in asked for text in inside) and (name not in choices or has_letters(asked))
        if not is_note and not is_whole and not is_there:
            unread.append(name)
    return unread


def has_letters(text: str) -> bool:
    """Whether a text offers choices as A and B, with a point, bracket or colon."""
    return all(re.search(rf"\b{letter}\s?[).:、．]", text, re.IGNORECASE) for letter in "AB")


# ----------------------------------------------------------------------- answer marks (src/parts/data/answer_marks.py)

HASH = re.compile(r"(?<!#)####(?!#)[ \t]*([^\n]*)")
HEADING = re.compile(
    r"(?i)(\d+[.)] *)?((final )?(answer|solution|result)s?:?|(conclusion|summary|steps?|explanation|introduction"
    r"|overview|notes?|example|verification|check|references|discussion|background)\b[^$\\=]*)"
)
VALUE = re.compile(r"\W*[A-Za-z]\W*|(?!\d+[.)]\s)\S*[\d\\]\S*(?: \S+){0,3}")  # a letter, or a number with its unit
NUMBER = re.compile(r"[-+]?[$€£]?\s?[-+]?[\d.,/: ]*\d[\d.,/]*\s?[%°$€£]?\.?")
STATEMENTS = (
    ast.FunctionDef,
    ast.ClassDef,
    ast.Import,
    ast.ImportFrom,
    ast.For,
    ast.While,
    ast.If,
    ast.With,
    ast.Assign,
)


def is_heading(text: str, mark: re.Match) -> bool:
    """Whether `####` opens a heading or a comment: a title, a long line, or words with text below them."""
    if mark[0][0] != "#":
        return False
    line, _, below = text[mark.start() + 4 :].partition("\n")
    line = line.strip(" \t*_")
    is_title = HEADING.fullmatch(line) or line.endswith((":", "#")) or len(line) > 80
    return bool(is_title) or (below.strip() != "" and not VALUE.fullmatch(line))


def hash_mark(text: str) -> re.Match | None:
    """The last `####` of a worked solution, its answer in group 1; None where it is a heading, or in code.

    An answer is short. Words stand at the end, where "The answer is: …" may repeat them; a number may have text below.

    >>> hash_mark("2 + 2 = 4\\n#### 4")[1], hash_mark("#### Step 1\\nAdd them: 4.")
    ('4', None)
    """
    marks = list(HASH.finditer(text))
    if not marks:
        return None
    mark = marks[-1]
    answer, before, below = mark[1].strip(), text[: mark.start()], text[mark.end() :].strip()
    if answer and re.fullmatch(rf"(?i)the (final )?answer is:? *{re.escape(answer)}\.?", below):
        text, below = text[: mark.end()], ""
    if before.count("```") % 2 or is_heading(text, mark):
        return None
    is_number = NUMBER.fullmatch(answer) is not None
    if below:  # only a number has text below it, and several are numbered headings
        return mark if is_number and len(marks) == 1 and answer[-1] != "." and not is_program(text) else None
    words = len(re.findall(r"[^\W\d_]{2,}", re.sub(r"\\[a-z]+", "", answer)))
    most = 0 if before.rpartition("\n")[2].strip() else 5  # a mark inside a line is a number's
    return mark if is_number or not answer or (words <= most and not is_program(before)) else None


def is_program(text: str) -> bool:
    """Whether a text is Python source that does something."""
    try:
        return any(isinstance(node, STATEMENTS) for node in ast.parse(text).body)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False


# --------------------------------------------------------------------------------------- chat (src/parts/data/chat.py)


def as_object(arguments):
    """Arguments of a tool call as an object, where they are one or its JSON text; others as they are."""
    try:
        value = json.loads(arguments or "{}") if isinstance(arguments, str) else arguments
    except ValueError:
        return arguments
    return value if isinstance(value, dict) else arguments


def as_json(arguments):
    """Arguments of a tool call as JSON text."""
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)


def recast(form: Callable, call):
    """A tool call, or several, with arguments in the form of `as_object` or `as_json`."""
    if isinstance(call, dict):
        return {key: form(value) if key == "arguments" else recast(form, value) for key, value in call.items()}
    return [recast(form, one) for one in call] if isinstance(call, list) else call


def with_arguments(form: Callable, messages: list[dict]) -> list[dict]:
    """Messages whose tool calls have arguments in a form."""
    return [m | {"tool_calls": recast(form, m["tool_calls"])} if m.get("tool_calls") else m for m in messages]


def write_chat(tokenizer, messages: list[dict], **given) -> str:
    """The text of `apply_chat_template`, with the arguments of tool calls in the form that the template takes.

    Most templates encode objects as JSON, so that OpenAI's JSON text would be encoded twice. DeepSeek's take text only,
    and a template that prints what it gets would write an object as Python does.

    Raises:
        ValueError: arguments are no object.
    """
    objects = with_arguments(as_object, messages)
    calls = [call.get("function", call) for message in objects for call in message.get("tool_calls") or ()]
    arguments, given["tokenize"] = [call["arguments"] for call in calls if call.get("arguments")], False
    for odd in [value for value in arguments if not isinstance(value, dict)]:
        raise ValueError(f"the arguments of a tool call are {str(odd)[:80]!r}, no JSON object")
    try:
        text = tokenizer.apply_chat_template(objects, **given)
        if not any(str(value) in text for value in arguments):
            return text
    except TypeError:
        if not arguments:
            raise
    return tokenizer.apply_chat_template(with_arguments(as_json, messages), **given)


def chat_text(tokenizer, messages: list[dict], **template) -> str:
    """The text of a prompt up to where the model writes: a new turn, or the assistant's own where that ends the prompt.

    Raises:
        ValueError: the template changes the text of that turn, or the turn calls a tool.
    """
    text = messages[-1]["content"]
    if messages[-1]["role"] != "assistant":
        return write_chat(tokenizer, messages, add_generation_prompt=True, **template)
    if messages[-1].get("tool_calls"):
        raise ValueError("it ends in a tool call without its result")
    if not text.strip():  # an empty place for the answer
        return write_chat(tokenizer, messages[:-1], add_generation_prompt=True, **template) + text
    try:
        whole = write_chat(tokenizer, messages, continue_final_message=True, **template)
    except ValueError:  # the text is not in it
        whole = ""
    kept = next((part for part in (text, text.rstrip(), text.strip()) if whole.endswith(part)), None)
    if kept is None:
        raise ValueError(f"it does not keep the assistant's turn that ends the prompt, {text[-80:]!r}")
    begun = whole.removesuffix(kept)
    if text.lstrip().startswith("<think>"):  # Qwen3's puts an empty thought before text that it finds none in
        begun = re.sub(r"<think>\s*</think>\s*$", "", begun)
    return begun + text


def chat_ids(tokenizer, messages: list[dict], **template) -> list[int]:
    """Token ids of `chat_text`."""
    if messages[-1]["role"] == "assistant" or any(message.get("tool_calls") for message in messages):
        return list(tokenizer(chat_text(tokenizer, messages, **template), add_special_tokens=False).input_ids)
    return list(
        tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=True, **template)["input_ids"]
    )


def joined_text(messages: list[dict]) -> str:
    """Chat messages as text for a tokenizer without chat template: contents joined by newlines."""
    end = "" if messages[-1]["role"] == "assistant" else "\n"
    return "\n".join(message["content"] for message in messages) + end


# ------------------------------------------------------------------------------- held out (src/parts/data/held_out.py)


def asked_words(prompt) -> str:
    """What a prompt asks: alike for prompts that differ in case, white space, Unicode form or system prompt only."""
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    asked = [message for message in messages if message["role"] not in ("system", "developer")] or messages
    texts = [unicodedata.normalize("NFKC", str(message["content"])).casefold() for message in asked]
    return "\n".join("".join(text.split()) for text in texts)


# --------------------------------------------------------------------------------- prompts (src/parts/data/prompts.py)


def encode_text(tokenizer, text: str) -> list[int]:
    """Token ids of a text; what the tokenizer puts before a text, such as BOS, is not put before one that has it."""
    ids = list(tokenizer(text).input_ids)
    if ids and ids[0] in ids[1:4]:  # perhaps twice
        bare = list(tokenizer(text, add_special_tokens=False).input_ids)
        for n in (1, 2, 3):
            if ids[n : n + len(bare)] == bare and bare[:n] == ids[:n]:
                return ids[n:]
    return ids


def encode_prompt(tokenizer, prompt, **template) -> list[int]:
    """Token ids of a prompt; chat messages go through the chat template, up to where the model writes."""
    if isinstance(prompt, str):
        return encode_text(tokenizer, prompt)
    if tokenizer.chat_template:
        return chat_ids(tokenizer, prompt, **template)
    return encode_text(tokenizer, joined_text(prompt))


# ------------------------------------------------------------------------- verl layout (src/parts/data/verl_layout.py)

VERL_COLUMNS = ("data_source", "prompt", "ability", "reward_model", "extra_info")
# of extra_info, beside columns
OWN_INFO = ("index", "split", "ground_truth_field", "json_columns", "prompt_is_text", "absent_columns")


def ground_truth_of(row: dict) -> tuple[str | None, str, str]:
    """(The column that holds it, extra_info.ground_truth_field, its text): the tests, else the answer, else none."""
    gold = next((name for name in ("tests", "answer") if row.get(name) is not None), None)
    truth = "" if gold is None else row[gold]
    if isinstance(truth, str):
        return gold, gold or "none", truth
    return gold, f"{gold}:json", json.dumps(truth, ensure_ascii=False)


def info_key(name: str) -> str:
    """A column's name in extra_info, which has names of its own."""
    return f"column:{name}" if name in OWN_INFO or name.startswith("column:") else name


# ------------------------------------------------------------------------------- models (src/parts/networks/models.py)


def config_file(source: str) -> str | None:
    """adapter_config.json of a folder or hub id; None where there is none, as in a plain model."""
    if Path(source).is_dir():
        file = Path(source) / "adapter_config.json"
        return str(file) if file.is_file() else None
    if not is_hub_id(source):
        return None
    from transformers.utils import find_adapter_config_file

    hub_is_reached()  # or its client would try again for a minute
    return find_adapter_config_file(source)


def merge_command(source: str, *flags: str) -> str:
    """The command that merges an adapter into its base."""
    script = BUNDLE / "scripts" / "merge_adapter.py"
    words = ["python", str(script if script.is_file() else "scripts/merge_adapter.py"), source, *flags]
    return f"`{shlex.join([*words, '--output', Path(source).name + '-merged'])}`"


def adapter_settings(source: str) -> dict | None:
    """adapter_config.json of a LoRA adapter; None of a plain model, UserError for other kinds of adapters."""
    file = config_file(source)
    if not file:
        return None
    got = f"got the adapter {source!r}"
    try:
        settings = json.loads(Path(file).read_text(encoding="utf-8"))
        task, kind = settings.get("task_type"), settings.get("peft_type")
    except (ValueError, AttributeError) as error:
        raise UserError(f"{got}, whose adapter_config.json is broken: {error}; expected peft's") from None
    need(task in (None, "CAUSAL_LM"), f"{got} of task type {task}; expected CAUSAL_LM")
    need(kind == "LORA", f"{got} of type {kind}; expected LORA; try to merge it with the library that trained it")
    if Path(source).is_dir():
        whole = [x.name for form in ("model*.safetensors", "pytorch_model*.bin") for x in Path(source).glob(form)]
        both = f"{got} beside the weights of a whole model ({', '.join(whole[:2])}); expected one of them"
        need(not whole, f"{both}; try to move the files adapter_* to a folder of their own")
    return settings


def base_of(source: str, base: str = "") -> str:
    """The base that an adapter names, or the `base` given for it; a plain model is its own."""
    settings = adapter_settings(source)
    if not settings:
        return source
    base = base or settings.get("base_model_name_or_path") or ""
    is_here = Path(base).is_dir() if base else False
    need(
        is_here or is_hub_id(base),
        f"got the adapter {source!r}, whose base {base!r} is not there; expected a folder, as seen from here, or a hub "
        f"id; try {merge_command(source, '--base', 'FOLDER')}, or to mend adapter_config.json",
    )
    chain = f"got the adapter {source!r}, whose base {base!r} is an adapter itself; expected a whole model"
    need(not config_file(base), f"{chain}; try {merge_command(base)}, and that folder as base")
    return str(Path(base).resolve()) if is_here else base


def tokenizer_of(source: str, base: str = "") -> str:
    """Where the tokenizer of a model lies: in an adapter's own folder, or else in that of its base."""
    if not adapter_settings(source):
        return source
    from transformers.utils import cached_file

    files = ("tokenizer_config.json", "tokenizer.json")
    quiet = {f"_raise_exceptions_for_{problem}": False for problem in ("missing_entries", "connection_errors")}
    has_tokenizer = any(cached_file(source, name, **quiet) for name in files)
    return source if has_tokenizer else base_of(source, base)


# ----------------------------------------------------------------------------- batches (src/parts/networks/batches.py)


def left_pad(sequences: list[list[int]], pad_id: int, device):
    """Return (input_ids, attention_mask), both [B, T], pads on the left."""
    import torch

    width = max(map(len, sequences))
    ids = torch.tensor([[pad_id] * (width - len(s)) + list(s) for s in sequences], device=device)
    mask = torch.tensor([[0] * (width - len(s)) + [1] * len(s) for s in sequences], device=device)
    return ids, mask


# --------------------------------------------------------------------- bad rows (src/programs/data_loader/bad_rows.py)

KINDS = ("prompts", "conversations", "prompt_response", "preferences", "math", "choices", "code")
TARGETS = ("ours", "trl", "verl")
SUFFIXES = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "json",
    ".txt": "txt",
    ".csv": "csv",
    ".tsv": "tsv",
    ".parquet": "parquet",
}
PACKED = (".gz", ".zst")
DEFAULT_MAX_BYTES = 8 * 2**30  # what one compressed file may unpack to
MAX_LINE = 256 * 2**20  # a longer line is a bad row: a whole file without line ends must not fill the memory
MAX_DEPTH = 100  # deeper JSON breaks readers further on, Python's own encoder among them
HEAD = 100  # rows that decide what a file is taken for
CHUNK = 10_000  # rows held at once while a parquet file is written


class BadRow(RowFlaw):
    """A row that does not fit."""


class BadRows(UserError):
    """The rows that do not fit, the first 20 in the message; `rejected` holds those that were kept."""

    def __init__(self, rejected: list[dict], count: int):
        self.rejected, self.count = rejected, count
        lines: dict[tuple, list] = {}  # rows with the same flaw are one line
        for item in rejected[:20]:
            lines.setdefault((item["file"], flaw_of(item)), []).append(item["line"])
        shown_rows = []
        for (file, flaw), (first, *others) in lines.items():
            also = f" (also in line{'s' if others[1:] else ''} {', '.join(map(str, others))})" if others else ""
            shown_rows.append(f"{file}:{first}: {flaw}{also}")
        more = [f"… and {count - 20} more"] if count > 20 else []
        head = f"got {count} bad rows; expected none; try mending them, or --on_bad skip to leave them out"
        super().__init__("\n".join([head, *shown_rows, *more]))


def flaw_of(item: dict) -> str:
    """What is wrong with a rejected row."""
    return f"{item['field']}: got {item['got']}; expected {item['expected']}; try {item['try']}"


def shown(value) -> str:
    """A value as a message shows it: short, and printable whatever it holds."""
    text = repr(value)[:1000]
    return (text if len(text) <= 80 else text[:79] + "…").encode("utf-8", "backslashreplace").decode()


def plain_text(text: str) -> bool:
    """Whether UTF-8 can hold the text, which half a surrogate pair it cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


# --------------------------------------------------------------------------- media (src/programs/data_loader/media.py)

ENDINGS = "png|jpe?g|gif|webp|bmp|tiff?|svg|mp[34]|wav|flac|ogg|webm|mov|avi|mkv"
PLACES = re.compile(rf"data:|https?://|[^\n]+\.({ENDINGS})\Z|[\w+/=]{{60}}", re.IGNORECASE)  # the last is base64
PLACE = r"(<(image|video|audio)([_ ]?\d+)?>|<\|(image|video|audio)_pad\|>|<\|vision_start\|>)"
MARKS = re.compile(PLACE)
PLACED = re.compile(rf"^\s*{PLACE}|{PLACE}\s*$", re.MULTILINE)  # at an end of a line: not a word of the text
PICTURE = re.compile(r"!\[[^\]]*\]\([^)\s]+\)")  # Markdown's


def is_media_name(name: str) -> bool:
    """Whether a column's name is that of images, video or audio, not of another thing's picture."""
    begins = words_in(name)[:1]
    plain = begins and begins[0].removesuffix("s") in MEDIA | {"decoded"} and is_media(name)
    return plain or name in ("multi_modal_data", "pixel_values")


def check_media(row: dict, prompt: list[dict]) -> bool:
    """Raise BadRow for media beside a prompt or a place for some in it; returns whether it has a Markdown image."""
    text = "\n".join(message["content"] for message in prompt)
    expected = "text only: images, video and audio are not read"
    if name := media_column(row, text):
        advice = f"leaving out the row, or --drop {name} where the text stands alone"
        raise BadRow(name, shown(row[name]), expected, advice)
    if place := PLACED.search(text):
        raise BadRow("prompt", f"the place of an image, {shown(place[0].strip())}", expected, "--on_bad skip")
    return PICTURE.search(text) is not None


def media_column(row: dict, text: str = "") -> str | None:
    """The first column with an image, video or audio: an object, a path, a URL, base64, or a list of such.

    Where the text has a place for one, such as `<image>`, whatever stands in a column of such a name is one.
    """
    for name, value in row.items():
        if value and is_media_name(name):
            placed = MARKS.search(text) is not None
            items = value if isinstance(value, list) else [value]
            held = [item for item in items if item not in (None, "", [], {})]
            if any(placed or isinstance(item, dict | list) or PLACES.match(str(item)) for item in held):
                return name
    return None


# --------------------------------------------------------------------- messages (src/programs/data_loader/messages.py)

PROMPT_KEYS = (
    *("prompt", "question", "problem", "query", "instruction", "text", "input", "description"),
    *("question_content", "problem_description", "problem_statement", "instruct_prompt", "complete_prompt"),
)
RESPONSE_KEYS = ("completion", "response", "output", "target", "answer")
GOLD_KEYS = (
    *("answer", "final_answer", "expected_answer", "correct_answer", "reference_answer", "gold_answer"),
    *("short_answer", "exact_answer", "numeric_answer", "numerical_answer", "answer_number", "answer_value"),
    *("accepted_answers", "golden_answer", "golden_answers", "ground_truth", "ground_truths", "golden", "gold"),
    *("target", "expected", "answers", "answers_spans", "final_decision", "label", "verification_info"),
)
ANSWER_KEYS = (*GOLD_KEYS, "solution")
CHOICE_PROMPT_KEYS = (*PROMPT_KEYS, "question_stem", "stem", "goal", "ctx", "startphrase", "sent1", "sentence")
PICK_KEYS = (
    *("answerKey", "answer_key", "answer", "answer_idx", "answer_index", "answer_letter", "correct", "correct_option"),
    *("correct_answer", "correct_answer_num", "cop", "gold", "gold_label", "label", "labels", "target", "ground_truth"),
)
CHAT_KEYS = ("messages", "conversations", "conversation")
TEST_KEYS = (
    *("tests", "test_list", "test_cases", "unit_tests", "unit_test", "test_code", "official_tests", "input_output"),
    *("public_test_cases", "private_test_cases", "public_tests", "private_tests", "generated_tests"),
    *("hidden_unit_tests", "test"),
)
ROLES = {
    **{role: role for role in ("system", "developer", "user", "assistant", "tool")},
    "human": "user",
    **dict.fromkeys(("gpt", "bot", "model", "function_call"), "assistant"),
    **dict.fromkeys(("function", "observation", "function_response", "tool_response"), "tool"),
}
TEXT_PARTS = ("text", "input_text", "output_text")
# who may speak after whom; None is the beginning
MAY_FOLLOW = {
    "system": (None,),
    "developer": (None, "system"),
    "user": (None, "system", "developer", "assistant"),
    "assistant": ("user", "tool"),
    "tool": ("assistant", "tool"),
}


def read_messages(value, name: str) -> list[dict]:
    """Chat messages of OpenAI's or ShareGPT's form as {"role", "content", …}; content parts are joined."""
    if not isinstance(value, list) or not value:
        raise BadRow(name, shown(value), "a non-empty list of messages")
    return [read_message(raw, f"{name}[{number}]") for number, raw in enumerate(value)]


def read_message(raw, name: str) -> dict:
    """One chat message; further keys that hold something (tool_calls, name, …) stay."""
    if not isinstance(raw, dict):
        raise BadRow(name, shown(raw), 'a message such as {"role": "user", "content": "…"}')
    said, text = ("role", "content") if "role" in raw else ("from", "value")
    role = raw.get(said)
    known = ROLES.get(role) if isinstance(role, str) else None
    if known is None:
        got = f"role {shown(role)}" if said in raw else f"the keys {', '.join(raw) or 'none'}"
        raise BadRow(name, got, f"a role of {', '.join(sorted(ROLES))}", "naming the speaker by one of these")
    content, calls = raw.get(text), raw.get("tool_calls") or raw.get("function_call")
    if isinstance(content, list):
        content = join_parts(content, name)
    if content is None and calls:
        content = ""
    if not isinstance(content, str):
        raise BadRow(name, f"{text} {shown(content)}", "text, or a list of text parts")
    if not content.strip() and not calls and known != "tool":
        raise BadRow(name, f"empty content of role {known}", "text")
    if len(raw) == 2:
        return {"role": known, "content": content}
    if column := media_column(raw, content):
        raise BadRow(f"{name}.{column}", shown(raw[column]), "text only", "leaving out rows with other media")
    more = {key: item for key, item in raw.items() if key not in (said, text) and item is not None}
    if clash := {"role", "content"} & set(more):
        raise BadRow(name, f"{', '.join(sorted(clash))} beside from and value", "one of the two forms")
    return {"role": known, "content": content, **more}


def join_parts(parts: list, name: str) -> str:
    """The text of content parts, put together as chat templates do: without anything in between.

    Parts are OpenAI's {"type": "text", "text"} or LLaMA-Factory's {"type": "text", "value"}.
    """
    texts = []
    for part in parts:
        kind = part.get("type") if isinstance(part, dict) else part
        text = part.get("text", part.get("value")) if isinstance(part, dict) and kind in TEXT_PARTS else None
        if not isinstance(text, str):
            raise BadRow(name, f"a content part {shown(kind)}", "text parts only", "leaving out rows with other media")
        texts.append(text)
    return "".join(texts)


def without_placeholder(value):
    """Raw messages without an empty last turn of the assistant, which stands for what is to be written."""
    last = value[-1] if isinstance(value, list) and len(value) > 1 else None
    if not isinstance(last, dict) or ROLES.get(str(last.get("role", last.get("from")))) != "assistant":
        return value
    empty = all(is_empty(item) for key, item in last.items() if key not in ("role", "from"))
    return value[:-1] if empty else value


def check_order(messages: list[dict], name: str, before: str | None = None) -> None:
    """Raise BadRow where a message cannot follow the one before it, as chat templates see it."""
    for number, message in enumerate(messages):
        role = message["role"]
        if before not in MAY_FOLLOW[role]:
            after = f"after {before}" if before else "at the beginning"
            wanted = [other for other, roles in MAY_FOLLOW.items() if before in roles]
            raise BadRow(f"{name}[{number}]", f"role {role} {after}", " or ".join(wanted), "mending the order of turns")
        before = role


def as_prompt(value, name: str, system=None) -> list[dict]:
    """A prompt, text or messages, as messages that end where the assistant's turn begins."""
    if isinstance(value, str):
        if not value.strip():
            raise BadRow(name, "an empty prompt", "text")
        messages = [{"role": "user", "content": value}]
    elif isinstance(value, list) and value:
        messages = read_messages(without_placeholder(value), name)
    else:
        raise BadRow(name, f"{type(value).__name__} {shown(value)}", "text or a list of messages")
    if system is not None:
        if not isinstance(system, str):
            raise BadRow("system", shown(system), "text")
        if system.strip() and messages[0]["role"] not in ("system", "developer"):
            messages = [{"role": "system", "content": system}, *messages]
    check_order(messages, name)
    if messages[-1]["role"] not in ("user", "tool"):
        got, advice = (
            f"last role {messages[-1]['role']}",
            "naming the field `messages`, moving the end to `completion`, or, where the model is to go on with it, "
            "giving the file to the trainer as it is",
        )
        raise BadRow(name, got, "a prompt that ends with user or tool", advice)
    return messages


def as_reply(value, name: str, prompt: list[dict]) -> str | list[dict]:
    """A completion: text as it is, or messages that go on from the prompt, whose repetition is cut."""
    if isinstance(value, str):
        if not value.strip():
            raise BadRow(name, "an empty text", "a completion")
        return value
    if isinstance(value, dict):
        value = [value]
    if not isinstance(value, list):
        raise BadRow(name, f"{type(value).__name__} {shown(value)}", "text or messages")
    messages = read_messages(value, name)
    if len(messages) > len(prompt) and messages[: len(prompt)] == prompt:
        messages = messages[len(prompt) :]
    check_order(messages, name, prompt[-1]["role"])
    if messages[-1]["role"] != "assistant":
        raise BadRow(name, f"last role {messages[-1]['role']}", "assistant at the end")
    return messages


# --------------------------------------------------------------- json values (src/programs/data_loader/json_values.py)


@dataclass(slots=True)
class Record:
    """One row as read: where it stood, its fields, or the flaw that makes it unusable and its text."""

    line: int
    row: dict | None
    flaw: RowFlaw | None = None
    text: str = ""


def broken(line: int, error: RowFlaw, data: bytes | str = b"") -> Record:
    """A record that could not be read; a long text is cut, as it is only there to be found again."""
    text = data[:100_000].decode("utf-8", "backslashreplace") if isinstance(data, bytes) else data[:100_000]
    return Record(line, None, error, text.rstrip("\r\n"))


class JsonDecoder:
    """Python's JSON decoder, which also sees duplicate keys, NaN, infinity and floats out of range.

    The hooks only take notes, so that a flawed value has an end and its neighbours in an array can be read.
    """

    def __init__(self):
        self.flaws: list[BadRow] = []
        self.long_integer = False
        hooks = {"parse_constant": self.constant, "parse_float": self.number, "parse_int": self.whole}
        self.json = json.JSONDecoder(object_pairs_hook=self.unique, **hooks)

    def unique(self, pairs: list[tuple]) -> dict:
        """Note a key that stands twice, of which Python would keep the last."""
        row = dict(pairs)
        if len(row) != len(pairs):
            key = next(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
            self.flaws.append(BadRow(key, "the key twice in one object", "each key once", "keeping one of them"))
        return row

    def constant(self, name: str) -> float:
        """Note NaN, Infinity or -Infinity, which JSON does not have."""
        self.flaws.append(BadRow("row", name, "a number that JSON has", "null, or a finite number"))
        return 0.0

    def number(self, text: str) -> float:
        """Note a float that would become infinite."""
        value = float(text)
        return value if math.isfinite(value) else self.constant(shown(text))

    def whole(self, text: str) -> int:
        """Note an integer of more digits than Python reads, or of more than 64 bits perhaps."""
        try:
            self.long_integer = self.long_integer or len(text) > 18
            return int(text)
        except ValueError as error:
            self.flaws.append(huge_integer(error))
            return 0

    def decode(self, text: str, start: int = 0) -> tuple:
        """The value that begins at `start`, and its end; BadRow where the syntax is wrong."""
        self.flaws.clear()
        self.long_integer = False
        try:
            return self.json.raw_decode(text, start)
        except RecursionError:
            raise too_deep() from None
        except json.JSONDecodeError as error:
            where = f"line {error.lineno}, " * (start > 0 or error.lineno > 1) + f"column {error.colno}"
            got = f"no JSON ({error.msg} at {where}, near {nearby(text, error.pos)})"
            raise BadRow("row", got, "one JSON object") from None

    def check(self, value, text: str) -> dict:
        """Return the value if it is an object that can be used, else raise BadRow."""
        if self.flaws:
            raise self.flaws[0]
        if not isinstance(value, dict):
            raise no_object(value)
        if self.long_integer or text.count("[") + text.count("{") > MAX_DEPTH or HALF_PAIR.search(text):
            return as_plain(value)
        return value


JSON_NAMES = {"null": None, "true": True, "false": False}
HALF_PAIR = re.compile(r"\\u[dD][89a-fA-F]")


def no_object(value) -> BadRow:
    """Report a row that is not an object; a bare message gets advice of its own."""
    expected = "a JSON object with named fields"
    is_chat = isinstance(value, list) and value and isinstance(value[0], dict)
    advice = ['{"messages": […]} for each row, an answer in a field of its own'] if is_chat else []
    return BadRow("row", f"{type(value).__name__} {shown(value)}", expected, *advice)


def nearby(text: str, at: int) -> str:
    """What stands around a place, as a message shows it."""
    return shown(text[max(at - 20, 0) : at + 20])


def huge_integer(error: ValueError) -> BadRow:
    """The flaw of an integer that Python refuses to read."""
    return BadRow("row", f"an integer of too many digits ({error})", "at most 4300 digits", "writing it as a string")


def too_deep() -> BadRow:
    """The flaw of a row with too many levels."""
    return BadRow("row", "nesting too deep", f"at most {MAX_DEPTH} levels", "storing the inner part as JSON text")


def as_plain(value, name: str = "row", depth: int = 0, any_size: bool = False):
    """Return a value made of what JSON has; dates and decimals become text. BadRow names the field of anything else.

    Integers have at most 64 bits, as pyarrow changes or refuses longer ones; in tests they may be of any size.
    """
    if isinstance(value, str):
        if not plain_text(value):
            raise BadRow(name, f"{shown(value)}, which is not Unicode text", "UTF-8", "mending the encoding")
        return value
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        if not any_size and not -(2**63) <= value < 2**63:
            raise BadRow(name, "an integer of more than 64 bits", "what pyarrow can hold", "writing it as a string")
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise BadRow(name, value, "a finite number", "null, or leaving the field out")
        return value
    if depth > MAX_DEPTH:
        raise too_deep()
    if isinstance(value, dict):
        wrong = [key for key in value if not isinstance(key, str) or not plain_text(key)]
        if wrong:
            raise BadRow(name, f"the key {shown(wrong[0])}", "names of text")
        if depth == 0 and name == "row":
            return {key: as_plain(item, key, 1, key in TEST_KEYS) for key, item in value.items()}
        return {key: as_plain(item, name, depth + 1, any_size) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [as_plain(item, name, depth + 1, any_size) for item in value]
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, decimal.Decimal):
        return str(value)
    raise BadRow(name, type(value).__name__, "text, numbers, lists and objects", f"--drop {name}")


def json_or_literal(text: str):
    """The value of JSON text, or of a Python literal in which null, true and false may stand; ValueError for others."""
    with contextlib.suppress(ValueError, RecursionError):
        return json.loads(text)
    try:
        return literal_value(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, TypeError, RecursionError, MemoryError) as error:
        raise ValueError(f"neither JSON nor a literal: {error}") from None


def literal_value(node: ast.expr):
    """The plain value of a Python literal in which null, true and false may stand; ValueError for anything else."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str | int | float | None):
        return node.value
    if isinstance(node, ast.Name) and node.id in JSON_NAMES:
        return JSON_NAMES[node.id]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and isinstance(node.operand, ast.Constant):
        return -node.operand.value
    if isinstance(node, ast.List | ast.Tuple):
        return [literal_value(item) for item in node.elts]
    if isinstance(node, ast.Dict):
        return {literal_value(key): literal_value(item) for key, item in zip(node.keys, node.values, strict=True)}
    raise ValueError(ast.dump(node)[:80])


# --------------------------------------------------------------- test checks (src/programs/data_loader/test_checks.py)


def check_test(test, name: str) -> None:
    """Raise BadRow unless a test is source, a case for stdin, or a call with what it should return."""
    if isinstance(test, str):
        check_python(test, name)
        if not test.strip():
            raise BadRow(name, "an empty test", "Python source")
    elif isinstance(test, dict):
        if not ({"input", "output"} <= set(test) or "expected" in test):
            raise BadRow(name, f"the keys {', '.join(test) or 'none'}", "input and output, or args and expected")
    elif not isinstance(test, list) or len(test) != 2:
        raise BadRow(name, shown(test), "source, {input, output}, {args, expected} or [args, expected]")


@functools.lru_cache(32)
def parsed(source: str) -> ast.Module:
    """The syntax tree of Python source, which is never run; a row's tests are asked for twice."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # invalid escapes are the data's own matter
        return ast.parse(source)


def check_python(source: str, name: str) -> None:
    """Raise BadRow where tests are no Python; they are parsed, never run."""
    try:
        parsed(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise BadRow(name, f"{shown(source)} ({error})", "Python source") from None


FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def check_runnable(row: dict, name: str) -> None:
    """Raise BadRow for tests that no program can pass or fail, so that the row would never train."""
    tests, entry_point = row["tests"], row.get("entry_point") or None
    if entry_point is not None and not entry_point.isidentifier():
        raise BadRow("entry_point", shown(entry_point), "the name of a function, or of a method of a class Solution")
    if isinstance(tests, dict):
        check_paired(tests, name, entry_point)
    elif isinstance(tests, str) or isinstance(tests[0], str):
        check_asserts([tests] if isinstance(tests, str) else tests, name, entry_point, row)
    elif all(isinstance(test, dict) and {"input", "output"} <= set(test) for test in tests):
        for number, test in enumerate(tests):
            check_stdin(test, f"{name}[{number}]")
    else:
        pairs = isinstance(tests[0], list)  # the rewards of this bundle call `solution` then
        for number, test in enumerate(tests):
            check_call(test, f"{name}[{number}]", entry_point or ("solution" if pairs else None))


def check_paired(tests: dict, name: str, entry_point: str | None) -> None:
    """Raise BadRow unless inputs and outputs are those of a script, or of the function `fn_name`."""
    function = tests.get("fn_name")
    if not function:
        if entry_point and not all(isinstance(item, str) for item in tests["inputs"]):
            got = f"inputs that are no text and entry_point {shown(entry_point)}, but no fn_name"
            raise BadRow(name, got, "text for a script, or a function to call", "the key fn_name in the tests")
        return
    if not isinstance(function, str) or not function.isidentifier():
        raise BadRow(name, f"fn_name {shown(function)}", "the name of a function")
    for number, arguments in enumerate(tests["inputs"]):
        if not isinstance(arguments, list):
            raise BadRow(f"{name}.inputs[{number}]", shown(arguments), f"a list of the arguments of {function}")


def check_stdin(test: dict, name: str) -> None:
    """Raise BadRow unless a test is text for a script and the text that it prints."""
    wrong = [key for key in ("input", "output") if not isinstance(test[key], str | int | float)]
    if wrong or test.get("fn_name"):
        got = f"{wrong[0]} {shown(test[wrong[0]])}" if wrong else f"fn_name {shown(test['fn_name'])}"
        advice = 'calls as {"function", "args", "expected"}, by a format of your own'
        raise BadRow(name, f"{got} in a test with input and output", "text on stdin and stdout", advice)


def check_call(test, name: str, entry_point: str | None) -> None:
    """Raise BadRow unless a test says which function to call, with which arguments."""
    if isinstance(test, list):
        test = {"args": test[0] if isinstance(test[0], list) else [test[0]], "expected": test[1]}
    if "expected" not in test:
        raise BadRow(name, "a test for stdin among calls", "tests of one form")
    function, arguments, named = test.get("function") or entry_point, test.get("args", []), test.get("kwargs") or {}
    if function is None:
        raise BadRow("entry_point", "no name of the function to call", "one, or `function` in each test", ENTRY_ADVICE)
    if not isinstance(function, str) or not function.isidentifier():
        raise BadRow(name, f"function {shown(function)}", "the name of a function")
    if not isinstance(arguments, list) or not isinstance(named, dict):
        raise BadRow(name, f"args {shown(arguments)} and kwargs {shown(named)}", "a list and an object")


ENTRY_ADVICE = "--map entry_point=COLUMN"


def check_asserts(sources: list[str], name: str, entry_point: str | None, row: dict) -> None:
    """Raise BadRow unless something in Python tests is counted, and what they test has a name."""
    live, idle = live_nodes([parsed(source) for source in sources], entry_point)
    if entry_point is None and any(function.name == "check" for function in idle):
        raise BadRow("entry_point", "none beside tests in check(candidate)", "the function under test", ENTRY_ADVICE)
    if not any(map(is_counted, live)):
        where = f"; {idle[0].name}() is never called" if idle else ""
        raise BadRow(name, f"tests that assert nothing{where}", "an assert that is run, or a unittest.TestCase")
    said = f"{row['prompt'][-1]['content']} {row.get('setup', '')}"
    if entry_point is None and "candidate" in unbound(live) and "candidate" not in said:
        raise BadRow("entry_point", "none beside tests of `candidate`", "the function under test", ENTRY_ADVICE)


def live_nodes(trees: list[ast.Module], entry_point: str | None) -> tuple[list[ast.AST], list]:
    """(nodes that run with the tests, functions that nothing calls), as scripts/sandbox.py runs them."""
    used, live, idle, waiting = {"check"} if entry_point else set(), [], [], [*trees]
    while waiting:
        node = waiting.pop()
        if isinstance(node, FUNCTIONS) and node.name not in used and not node.name.startswith("test"):
            idle.append(node)
        else:
            live.append(node)
            used |= {node.id} if isinstance(node, ast.Name) else set()
            waiting += parts_that_run(node)
        if not waiting:
            waiting, idle = [n for n in idle if n.name in used], [n for n in idle if n.name not in used]
    return live, idle


def parts_that_run(node: ast.AST) -> list[ast.AST]:
    """The children of a node, without what stands under `if __name__ == "__main__"`; methods count as called."""
    if isinstance(node, ast.ClassDef):
        methods = [part for item in node.body if isinstance(item, FUNCTIONS) for part in item.body]
        return [*methods, *(item for item in node.body if not isinstance(item, FUNCTIONS))]
    if isinstance(node, ast.If) and isinstance(node.test, ast.Compare):
        sides = (node.test.left, *node.test.comparators)
        if {getattr(side, "id", getattr(side, "value", None)) for side in sides} == {"__name__", "__main__"}:
            return list(node.orelse)
    return list(ast.iter_child_nodes(node))


def is_counted(node: ast.AST) -> bool:
    """Whether scripts/sandbox.py counts a statement as a test: asserts, calls of assert…, raises, test cases."""
    if isinstance(node, ast.With):
        called = [getattr(item.context_expr, "func", None) for item in node.items]
        return any(getattr(f, "attr", getattr(f, "id", "")) in ("raises", "assertRaises") for f in called)
    if isinstance(node, ast.ClassDef):
        return bool(node.bases)
    function = getattr(node.value, "func", None) if isinstance(node, ast.Expr) else None
    name = getattr(function, "attr", getattr(function, "id", ""))
    own = isinstance(function, ast.Attribute) and getattr(function.value, "id", "") == "self"
    return isinstance(node, ast.Assert) or (name.startswith("assert") and not own)


def unbound(nodes: list[ast.AST]) -> set[str]:
    """Names that are used and that nothing among the nodes gives a meaning to."""
    used = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    stored = {node.id for node in nodes if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)}
    given = {node.arg for node in nodes if isinstance(node, ast.arg)}
    named = {node.name for node in nodes if isinstance(node, (*FUNCTIONS, ast.ClassDef))}
    imported = {node.asname or node.name for node in nodes if isinstance(node, ast.alias)}
    return used - stored - given - named - imported


# --------------------------------------------------- answers and tests (src/programs/data_loader/answers_and_tests.py)

BOXED = re.compile(r"\\f?boxed\s*(\{|(?=[^\s{]))")
BARE_MARK = re.compile(r"####[^\n#\\]*|\$?\\boxed\{[^{}]*\}\$?")  # an answer in its mark and nothing else
LEAD = re.compile(r"(?i)\**(the )?(final )?(answer|solution|result)\**( is:?|:)")
MONEY = re.compile(r"-?\$?-?(\d{1,3}(,\d{3})+|\d+)?(\.\d+)?")
SPAN = {"text", "answer_start", "answer_end"}  # an answer in a passage, as SQuAD has it
# words of columns that hold what a model should write, and the field of the schema that takes them
TARGET_WORDS = {
    **dict.fromkeys(("answer", "solution", "gold", "truth", "target", "label", "result", "reference", "ref"), "answer"),
    **dict.fromkeys(("expected", "correct", "attempt"), "answer"),
    **dict.fromkeys(("test", "assert", "assertion", "check"), "tests"),
    **dict.fromkeys(("response", "output", "completion", "reply"), "completion"),
    **dict.fromkeys(("chosen", "better", "win", "winner", "preferred", "accepted", "positive"), "chosen"),
    **dict.fromkeys(("rejected", "worse", "lose", "loser", "dispreferred", "negative"), "rejected"),
}
NOTE_STARTS = ("sample", "example", "num", "n", "is", "has")  # of columns about answers
TARGET_ENDS = {"text", "value", "number", "string", "code", "case", "list", "letter", "key", "index", "a", "b"}


def last_boxed(text: str) -> str | None:
    r"""What the last \boxed{…} holds, braces inside matched; None without a complete one.

    >>> last_boxed(r"so \boxed{\frac{1}{2}}.")
    '\\frac{1}{2}'
    """
    found = list(BOXED.finditer(text))
    match = found[-1] if found else None  # an earlier one is no answer where the last is cut off
    if match is None or not match[1]:
        return text[match.end()] if match else None  # \boxed 5
    depth, escaped = 1, False
    for at in range(match.end(), len(text)):
        depth += 0 if escaped else {"{": 1, "}": -1}.get(text[at], 0)
        escaped = text[at] == "\\" and not escaped
        if depth == 0:
            return text[match.end() : at].strip()
    return None


def gold_of(text: str) -> str | None:
    r"""The final answer in a worked solution: after a final `####`, else in the last \boxed{…}; None without either.

    >>> gold_of("It is 1000 + 3.\n#### 1,003")
    '1003'
    """
    found = None
    while True:
        if mark := hash_mark(text):
            text = LEAD.sub("", mark[1].strip()).strip("* ")
            if MONEY.fullmatch(text):
                text = text.replace(",", "").replace("$", "")
        else:
            inner = last_boxed(text) if "boxed" in text else None
            if inner is None:
                return found
            text = inner
        found = text


def as_answer(value, name: str) -> str | list[str]:
    """An answer as text, or a list of accepted ones; a number or truth value is written as JSON writes it."""
    if isinstance(value, dict):
        accepted = accepted_answers(value)
        if accepted is None:
            inner = next((key for key in value if isinstance(value[key], str | int | float)), "KEY")
            expected = "text, a number, or a list of accepted answers"
            raise BadRow(name, f"an object with {', '.join(value)}", expected, f"--map answer={name}.{inner}")
        value = accepted
    if isinstance(value, list) and all(isinstance(item, dict) and "text" in {*item} <= SPAN for item in value):
        value = [item["text"] for item in value]  # SQuAD's own files
    if isinstance(value, list) and value and all(isinstance(item, str | int | float) for item in value):
        texts = [as_answer(item, name) for item in value if not isinstance(item, str) or item.strip()]
        value = list(dict.fromkeys(texts)) or ""
        if len(value) > 1:
            return value
        value = "".join(value)
    if isinstance(value, bool | int | float):
        return json.dumps(value)
    if not isinstance(value, str):
        raise BadRow(name, f"{type(value).__name__} {shown(value)}", "text, a number, or a list of accepted answers")
    if not value.strip():
        raise BadRow(name, "an empty answer", "text or a number")
    return value


def accepted_answers(value: dict):
    """The accepted answers of TriviaQA's {value, aliases}, SQuAD's {text}, {"target": [...]}; None for others.

    DROP's several spans are parts of one answer, so that only a single one is read.
    """
    if "value" in value and isinstance(value.get("aliases"), list):
        return [value["value"], *value["aliases"]]
    if isinstance(value.get("text"), list) and set(value) <= SPAN:
        return value["text"]
    if set(value) == {"spans", "types"} and len({str(span) for span in value["spans"] or ()}) == 1:
        return value["spans"][:1]
    if len(value) == 1 and set(value) <= set(GOLD_KEYS):
        return next(iter(value.values()))
    return None


def as_tests(value, name: str):
    """Tests in a form that scripts/sandbox.py takes; JSON text is decoded. An empty set would pass any program."""
    if isinstance(value, str) and value.lstrip()[:1] in ("[", "{"):
        value = tests_from_json(value, name)
    if isinstance(value, dict) and {"input", "output"} <= set(value):
        single = not isinstance(value["input"], list)
        others = {key: item for key, item in value.items() if key not in ("input", "output")}  # fn_name among them
        value = [value] if single else {**others, "inputs": value["input"], "outputs": value["output"]}
    if isinstance(value, dict):
        inputs, outputs = value.get("inputs"), value.get("outputs")
        if not isinstance(inputs, list) or not isinstance(outputs, list) or len(inputs) != len(outputs):
            got = f"the keys {', '.join(value) or 'none'}"
            if isinstance(inputs, list) and isinstance(outputs, list):
                got = f"{len(inputs)} inputs and {len(outputs)} outputs"
            raise BadRow(name, got, "inputs and outputs, lists of one length")
        count = len(inputs)
    elif isinstance(value, str):
        check_python(value, name)
        count = len(value.strip())
    elif isinstance(value, list):
        count = len(value)
        for number, test in enumerate(value):
            check_test(test, f"{name}[{number}]")
        if len({isinstance(test, str) for test in value}) > 1:
            raise BadRow(name, "Python source and cases in one list", "tests of one form")
    else:
        raise BadRow(name, f"{type(value).__name__} {shown(value)}", "Python source, a list, or inputs and outputs")
    if not count:
        raise BadRow(name, "no tests", "at least one, as none at all pass every program")
    return value


def tests_from_json(text: str, name: str, expected: str = "tests as JSON text, or Python source"):
    """Decode tests given as JSON text; JSON that is cut off must not pass for Python source."""
    decoder, text = JsonDecoder(), text.strip()
    try:
        value, end = decoder.decode(text)
        if decoder.flaws or end != len(text):
            raise decoder.flaws[0] if decoder.flaws else BadRow(name, f"{shown(text[end:])} after JSON", "JSON")
    except BadRow as error:
        raise BadRow(name, error.parts["got"], expected) from None
    return as_plain(value, name, any_size=True)


def target_fields(row: dict) -> dict[str, str]:
    """{column: field of the schema} for columns that look like what a model should write: answers, tests, responses."""
    fields = {}
    for name, value in row.items():
        stems = [word.removesuffix("s") for word in words_in(name)]
        known = [
            TARGET_WORDS[stem] for stem in stems if stem in TARGET_WORDS and (stem != "label" or "text" not in row)
        ]
        is_cell = not is_empty(value) and not isinstance(value, bool | dict)
        if known and is_cell and stems[-1] in TARGET_WORDS.keys() | TARGET_ENDS and stems[0] not in NOTE_STARTS:
            fields[name] = known[0]
    return fields


# --------------------------------------------------------------------- passages (src/programs/data_loader/passages.py)

LONG_NAMES = ("context", "passage", "article", "document", "story", "paragraph", "schema", "table")
TEXT_KEYS = ("text", "contexts", "sentences", "paragraphs", "passages", "paragraph_text", "passage_text", "content")
SCALAR = str | int | float


def passages_before(row: dict, question: str, names: list[str], mapped: frozenset[str]) -> dict[str, str]:
    """{column: text} of what goes before a question; a column that the question quotes already does not.

    Raises:
        BadRow: a column that --map names as a passage cannot be read as one.
    """
    found, asked = {}, squeezed(question)
    filled = [name for name in names if not is_empty(row[name])]
    passages = [name for name in READ_FIRST if name in filled]
    if "hint" in filled and "lecture" in row:  # ScienceQA's
        passages.append("hint")
    longer = [name for name in filled if names_part(name) and head_of(name) in LONG_NAMES]
    if not passages and len(longer) == 1:  # such as flores_passage; of several, some may be there to mislead
        passages = longer
    for name in passages:
        text = passage(row[name], name)
        if text is None and name in mapped:
            expected = "text, texts, a table, or {title, text} with any of these"
            raise BadRow(name, shown(row[name]), expected, f"--map {name}=COLUMN.FIELD, or --drop COLUMN")
        if text and text.strip() and not all(squeezed(part) in asked for part in texts_in(row[name])):
            found[name] = text
    return found


def passage(value, name: str) -> str | None:
    """The text of a passage, a list of them, documents with titles, or a table; None where that is not plain."""
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        return document(value)
    if not isinstance(value, list) or not value:
        return None
    if all(isinstance(item, list) for item in value):
        if all(len(pair) == 2 and isinstance(pair[0], str) and isinstance(pair[1], list) for pair in value):
            return joined([document({"title": title, "sentences": texts}) for title, texts in value])  # HotpotQA's file
        return table(value)
    if name.startswith("table") and all(isinstance(item, dict) for item in value):
        header = list(dict.fromkeys(key for item in value for key in item))
        return table([header, *([item.get(key, "") for key in header] for item in value)])
    return joined([item if isinstance(item, str) else document(item) for item in value])


def document(value) -> str | None:
    """The text of an object: a title and a text, lists of both (HotpotQA), texts (PubMedQA), or header and rows."""
    if not isinstance(value, dict) or "role" in value:  # a chat is no passage
        return None
    rows = value.get("rows")
    if isinstance(value.get("header"), list) and isinstance(rows, list) and all(isinstance(row, list) for row in rows):
        return table([value["header"], *rows])
    text = next((value[key] for key in TEXT_KEYS if not is_empty(value.get(key))), None)
    title = value.get("title", "")
    if isinstance(title, list) and isinstance(text, list) and len(title) == len(text):
        return joined([document({"title": head, "sentences": body}) for head, body in zip(title, text, strict=True)])
    if isinstance(text, list) and all(isinstance(part, str) for part in text):
        glue = " " if "sentences" in value else "\n\n"
        text = glue.join(part.strip() for part in text if part.strip())
    if not isinstance(text, str) or not isinstance(title, str):
        return None
    return f"{title}\n{text}" if title.strip() else text


def joined(texts: list[str | None]) -> str | None:
    """Texts with a blank line between them; None if one of them is none."""
    return None if None in texts else "\n\n".join(text for text in texts if text.strip())


def table(rows: list[list]) -> str | None:
    """Rows of cells as lines."""
    if not all(cell is None or isinstance(cell, SCALAR) for row in rows for cell in row):
        return None
    return "\n".join(" | ".join("" if cell is None else str(cell) for cell in row) for row in rows)


# ------------------------------------------------------- published tests (src/programs/data_loader/published_tests.py)

METHOD = re.compile(r"\ASolution\(\)\.(\w+)\Z")  # the sandbox finds methods of a class Solution by their names
NAMED = re.compile(r"\s*[A-Za-z_]\w*\s*=(?!=)")  # `nums = [3, 3], target = 6`
NODES = re.compile(r"^[^#\n]*\b(ListNode|TreeNode|Node)\b", re.MULTILINE)
PARTS = (("public_test_cases", "private_test_cases"), ("public_tests", "private_tests", "generated_tests"))
ASSERTS = re.compile(r"^\s*assert\b", re.MULTILINE)
CASE_KEYS = {"stdin": "input", "stdout": "output", "expected_output": "output", "expected": "output"}
OTHER_LANGUAGES = re.compile(
    r"(?i)(gnu )?(c(\+\+|pp|#|sharp)?|java(script)?|js|node(\.js)?|type(script)?|ts|go(lang)?|rust|ruby|php|kotlin"
    r"|swift|scala|perl|haskell|julia|lua|dart|pascal|bash|r|d|sql)([ -]?\d.*)?"
)


def read_tests(value, name: str, row: dict):
    """Tests of any published form; those of a function become calls of it."""
    if isinstance(value, str) and value.lstrip()[:1] in ("[", "{"):
        value = python_object(value)
        value = tests_from_json(value, name) if isinstance(value, str) else value
    if isinstance(value, dict) and isinstance(value.get("test_cases"), list):  # PrimeIntellect's verification_info
        check_language(value, name)
        value = value["test_cases"]
    function = function_of(row)
    lists = isinstance(value, dict) and all(isinstance(item, list) for item in value.get("inputs") or "")
    if lists and function and not row.get("entry_point") and not value.get("fn_name"):
        value = {**value, "fn_name": function}
    if isinstance(value, list):
        value = [known_keys(case) if isinstance(case, dict) else case for case in value]
    if isinstance(value, list) and value and all(isinstance(case, dict) and "input" in case for case in value):
        calls = [as_call(case, f"{name}[{number}]", function, row) for number, case in enumerate(value)]
        if any(calls) and not all(calls):
            raise BadRow(f"{name}[{calls.index(None)}]", "a test for stdin among calls", "tests of one form")
        value = paired(calls, value) if any(calls) else [with_one_output(case) for case in value]
    elif isinstance(value, dict) and value.get("fn_name"):
        for key in ("inputs", "input"):  # PRIME's are lines of JSON, one an argument
            if isinstance(value.get(key), list) and any(isinstance(item, str) for item in value[key]):
                output = value.get(f"out{key[2:]}")
                pairs = zip(value[key], output if isinstance(output, list) else [], strict=False)
                cases = [{"input": given, "output": out, "testtype": "functional"} for given, out in pairs]
                return read_tests(cases, name, {"entry_point": value["fn_name"]})
    return as_tests(value, name)


def known_keys(case: dict) -> dict:
    """A case of a test with its keys as they are known: `stdin` is `input`, `expected_output` is `output`."""
    if "input" not in case and "stdin" not in case:
        return case
    return {CASE_KEYS.get(key, key): item for key, item in case.items()}


def check_language(value: dict, name: str) -> None:
    """Raise BadRow where tests are for another language."""
    language = next((value[key] for key in ("language", "programming_language", "lang") if key in value), None)
    if isinstance(language, str) and OTHER_LANGUAGES.fullmatch(language):
        raise BadRow(name, f"tests of programs in {language}", "Python", "leaving out rows in other languages")


def function_of(row: dict) -> str | None:
    """The name of the function under test, as the columns of a row give it."""
    about = row.get("metadata")
    if isinstance(about, str) and about.lstrip().startswith("{"):
        about = tests_from_json(about, "metadata")
    about = about if isinstance(about, dict) else {}
    names = [row.get("entry_point"), row.get("fn_name"), row.get("func_name"), about.get("func_name")]
    name = next((name for name in names if isinstance(name, str) and name), None)
    return name and METHOD.sub(r"\1", name)


def as_call(case: dict, name: str, function: str | None, row: dict) -> dict | None:
    """The call that a case with input and output asks for; None where the input is text on stdin."""
    given = case["input"]
    function = function_of(case) or function
    named = isinstance(given, str) and NAMED.match(given) is not None
    asked = case.get("testtype") == "functional" or case.get("type") == "function_call" or function_of(case)
    if not (asked or named or (function and isinstance(given, list | dict))):
        return None
    if "output" not in case:
        raise BadRow(name, f"the keys {', '.join(case)}", "input and output")
    if function is None:
        expected = "the function's name: a column entry_point, or func_name in metadata"
        raise BadRow(name, f"arguments, {shown(given)}, and no function to call", expected, "--map entry_point=COLUMN")
    nodes = NODES.search(row["starter_code"]) if isinstance(row.get("starter_code"), str) else None
    if named and nodes:
        raise BadRow(name, f"lists that stand for a {nodes[1]}", "plain values, or tests in Python in a column `test`")
    arguments = {"args": given} if isinstance(given, list) else {"kwargs": given}
    if isinstance(given, str):
        lines = [line for line in given.splitlines() if line.strip()]
        arguments = (
            {"kwargs": named_values(given, name)} if named else {"args": [plain_value(line, name) for line in lines]}
        )
    output = case["output"]
    expected = plain_value(output, name) if isinstance(given, str) and isinstance(output, str) else output
    return {"function": function, **arguments, "expected": expected}


def paired(calls: list[dict], cases: list[dict]):
    """Calls, those with lists of arguments as APPS has them: a result may be in a list of one there."""
    one = {call["function"] for call in calls} == {calls[0]["function"]}
    if not one or not all(isinstance(case["input"], list) for case in cases):
        return calls
    inputs, outputs = [call["args"] for call in calls], [call["expected"] for call in calls]
    return {"fn_name": calls[0]["function"], "inputs": inputs, "outputs": outputs}


def plain_value(text: str, name: str):
    """The value of JSON text or of a Python literal; nothing is run."""
    try:
        return json_or_literal(text)
    except ValueError:
        raise BadRow(name, shown(text), "values in JSON or Python") from None


def named_values(text: str, name: str) -> dict:
    """{name: value} of `nums = [3, 3], target = 6`, on one line or on several."""
    lines = [line.strip().rstrip(",") for line in text.splitlines() if line.strip()]
    try:
        call = ast.parse(f"f({', '.join(lines)})", mode="eval").body
        values = {item.arg: literal_value(item.value) for item in call.keywords}
        if call.args or None in values:
            raise ValueError(text)
    except (ValueError, SyntaxError, TypeError, AttributeError, RecursionError, MemoryError):
        raise BadRow(name, shown(text), "arguments of the form `name = value`") from None
    return values


def with_one_output(case: dict) -> dict:
    """A case for stdin; xCodeEval lists the outputs that are right."""
    output = case.get("output")
    return {**case, "output": output[0]} if isinstance(output, list) and len(output) == 1 else case


def joined_tests(row: dict, name: str) -> tuple[list[str], object]:
    """(columns used, tests) of a column and those that go with it; what is packed is never opened."""
    names = next((part for part in PARTS if name in part), (name,))
    taken, tests = [], None
    for column in names:
        value = row.get(column)
        packed = len(names) > 1 and isinstance(value, str) and value.lstrip()[:1] not in ("[", "{")
        if value is None or packed or (len(names) > 1 and holds_no_tests(value)):
            continue
        read = read_tests(value, column, row)
        taken.append(column)
        if tests is None:
            tests = read
        elif isinstance(tests, list) and isinstance(read, list):
            tests = [*tests, *read]
        elif isinstance(tests, dict) and isinstance(read, dict):
            tests = {**tests, **{key: [*tests[key], *read[key]] for key in ("inputs", "outputs")}}
        else:
            raise BadRow(column, f"tests of another form than {taken[0]}", "tests of one form", f"--drop {column}")
    if tests is None:
        raise BadRow(name, shown(row[name]), "tests as JSON", "leaving out rows without tests")
    return taken, tests


def holds_no_tests(value) -> bool:
    """Whether a column that others go with holds no tests."""
    return value in ([], {}, "[]", "{}") or (isinstance(value, dict) and not any(value.values()))


def prompt_names(row: dict) -> tuple[str, ...]:
    """The names of prompts in their order, those last that hold only a program's imports and helpers."""
    present = [name for name in PROMPT_KEYS if row.get(name) is not None]
    if len(present) < 2:
        return PROMPT_KEYS
    return (*sorted(PROMPT_KEYS, key=lambda name: name in present and is_preamble(row[name], row.get("entry_point"))),)


def is_preamble(text, entry_point) -> bool:
    """Whether a text is Python that imports and defines helpers but leaves nothing to write."""
    if not isinstance(text, str) or not re.search(r"^(import|from) \w", text, re.MULTILINE):
        return False
    try:
        nodes = list(ast.walk(parsed(text)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    functions = [node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    stubs = [node for node in functions if all(isinstance(part, ast.Pass | ast.Expr) for part in node.body)]
    return not stubs and entry_point not in {node.name for node in functions}


def ground_truth(value, name: str, row: dict) -> dict:
    """The fields of a ground truth: tests, an answer, or accepted answers; an object of another kind stays one.

    JSON text is decoded where it holds tests or texts; a list of numbers may be mathematics and stays text.
    """
    whole, text = value, isinstance(value, str)
    if text and value.lstrip()[:1] in ("[", "{"):
        try:
            whole = tests_from_json(value, name)
        except BadRow:
            whole = python_object(value)
    if isinstance(whole, dict) and whole:
        if isinstance(whole.get("test_code"), str):  # Skywork's
            called = METHOD.sub(r"\1", str(whole.get("entry_point") or ""))
            fields = {"entry_point": called, "setup": whole.get("import_prefix")}
            return {"tests": as_tests(whole["test_code"], name), **{k: v for k, v in fields.items() if v}}
        if source := next((whole[key] for key in ("functional", "assert_case") if whole.get(key)), None):
            return {"tests": read_tests(source, name, row)}  # Code-R1's and verl's prime_code
        if {"inputs", "outputs"} <= set(whole) or {"input", "output"} <= set(whole) or "test_cases" in whole:
            return {"tests": read_tests(whole, name, row)}
        accepted = accepted_answers(whole)
        return {"ground_truth": value} if accepted in (None, []) else {"answer": as_answer(accepted, name)}
    if isinstance(whole, list) and whole:
        cases = all(isinstance(item, dict) and "input" in item for item in whole)
        pairs = row.get("entry_point") and all(isinstance(item, list) and len(item) == 2 for item in whole)
        if cases or pairs or all(isinstance(item, str) and ASSERTS.search(item) for item in whole):
            return {"tests": read_tests(whole, name, row)}
        if not text or all(isinstance(item, str) for item in whole):
            return {"answer": as_answer(whole, name)}
    return {"answer": as_answer(value, name)}


def python_object(text: str):
    """An object that Python's repr wrote, or the text itself."""
    with contextlib.suppress(ValueError):
        value = json_or_literal(text) if text.lstrip().startswith("{'") else text
        return value if isinstance(value, dict) else text
    return text


# ----------------------------------------------------------------------- choices (src/programs/data_loader/choices.py)

LETTERS = string.ascii_uppercase
RIGHT_KEYS = ("correct_answer", "best_answer", "answer", "correct")  # beside columns of wrong answers
RIGHT_WORDS = {"answer", "ans", "correct", "right", "gold", "key", "truth"}
PICK_WORDS = {*RIGHT_WORDS, "option", "choice", "label", "letter", "index", "idx", "number", "num", "true", "the", "is"}
LABEL = re.compile(r"[A-Za-z]|\d\d?")
LABEL_END = re.compile(r"([A-Ja-j]|\d\d?)$")


@dataclass
class Choices:
    """The choices of a row, and how it names the right one."""

    columns: tuple[str, ...]
    texts: list[str]
    labels: list[str] = field(default_factory=list)  # as the row names the choices
    right: int | None = None  # where the choices themselves say it
    first: int | None = None  # what numbers count from in published data of this form; None: unknown


def choices_of(row: dict) -> Choices | None:
    """The choices of a row; None where no column looks like it.

    Raises:
        BadRow: columns look like choices, but are in no form that is known.
    """
    columns = choice_columns(row)
    if not columns:
        return None
    name, value = columns[0], row[columns[0]]
    if WRONG.match(name):
        choices = from_wrong(row, columns)
    elif name in CHOICE_KEYS:
        choices = from_value(name, listed_in(value) if isinstance(value, str) else value)
    else:
        choices = from_columns(row, columns)
    if choices is None or not 1 < len(choices.texts) <= len(LETTERS) or "" in choices.texts:
        expected = "2 to 26 choices: a list of texts, {text, label}, {A: text}, or `A. … B. …`"
        got = shown(value) if len(columns) == 1 else ", ".join(f"{name} {shown(row[name])}" for name in columns)
        raise BadRow(name, got, expected, f"--drop {shlex.join(columns)} where these are no choices")
    if name == "mc1_targets" and choices.right is not None:  # whose first is always the right one
        choices = shuffled(choices)
    return choices


def from_columns(row: dict, columns: tuple[str, ...]) -> Choices | None:
    """Choices that have a column each: a letter is a label; a number counts as the columns do."""
    if any(not isinstance(row[name], SCALAR) for name in columns):
        return None
    marks = [LABEL_END.search(name)[1] for name in columns]
    texts, stem = [str(row[name]).strip() for name in columns], columns[0][: -len(marks[0])].lower()
    if marks[0].isdigit():  # PIQA's and COPA's `label` counts from 0, whatever the columns' names
        from_zero = stem in ("sol", "choice") and row.get("label") is not None
        return Choices(columns, texts, first=0 if from_zero else int(marks[0]))
    return Choices(columns, texts, [mark.upper() for mark in marks], first={"op": 0, "answer": 1}.get(stem))


def from_wrong(row: dict, columns: tuple[str, ...]) -> Choices | None:
    """The right answer and wrong ones, in an order that their texts decide."""
    right = next((name for name in RIGHT_KEYS if isinstance(row.get(name), SCALAR)), None)
    wrong = row[columns[0]] if isinstance(row[columns[0]], list) else [row[name] for name in columns]
    texts = [row.get(right), *wrong]
    if right is None or not all(isinstance(text, SCALAR) for text in texts):
        return None
    return shuffled(Choices((*columns, right), [str(text).strip() for text in texts], right=0))


def shuffled(choices: Choices) -> Choices:
    """The same choices in an order that depends on nothing but their texts, so that the first is not always right."""
    order = list(range(len(choices.texts)))
    random.Random("\n".join(choices.texts)).shuffle(order)
    texts = [choices.texts[index] for index in order]
    return Choices(choices.columns, texts, right=order.index(choices.right))


def from_value(name: str, value) -> Choices | None:
    """Choices in one column: a list, objects, ARC's {"text", "label"}, MedQA's {"A": text}, {text: whether right}."""
    labels, marks = [], None
    if isinstance(value, dict):
        listed = next(
            (key for key in ("text", "texts", "choices", "options") if isinstance(value.get(key), list)), None
        )
        given = {key: item for key, item in value.items() if not is_empty(item)}
        if listed:
            labels, marks = value.get("label") or [], value.get("labels")
            value = value[listed]
        elif name == "mc1_targets":
            value, marks = list(value), list(value.values())
        elif all(LABEL.fullmatch(key) for key in given):
            labels, value = list(given), list(given.values())
        elif all(ONE_CHOICE.fullmatch(key) for key in given):
            labels, value = [LABEL_END.search(key)[1] for key in given], list(given.values())
        else:
            return None
    elif isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
        text = next(
            (key for key in ("text", "content", "option", "choice", "answer", "value") if key in value[0]), None
        )
        label = next((key for key in ("label", "key", "letter", "id", "identifier", "option") if key in value[0]), None)
        mark = next((key for key, item in value[0].items() if isinstance(item, bool)), None)
        if text is None or any(text not in item for item in value):
            return None
        marks = [item.get(mark) for item in value] if mark else None
        labels = [item.get(label) for item in value] if label and label != text else []
        value = [item[text] for item in value]
    while isinstance(value, list) and not labels and value and is_empty(value[-1]):
        value = value[:-1]
    plain = isinstance(value, list) and all(isinstance(text, SCALAR) for text in value)
    if not plain or not isinstance(labels, list) or len(labels) not in (0, len(value)):
        return None
    texts, labels = [str(text).strip() for text in value], [str(label).strip() for label in labels]
    right = right_mark(marks) if isinstance(marks, list) else None
    return Choices((name,), texts, labels, right, 0 if name in ("choices", "choice", "endings", "answers") else None)


def right_mark(marks: list) -> int | None:
    """The place of the only truth among truth values, or the only 1 among zeros."""
    good = len(marks) > 1 and all(isinstance(mark, int) and mark in (0, 1) for mark in marks) and sum(marks) == 1
    return [int(mark) for mark in marks].index(1) if good else None


def listed_in(text: str):
    """Choices in one text: JSON, a list or object as Python and numpy print it, or lines and marks; else the text."""
    text = text.strip()
    if text[0] in "[{":
        with contextlib.suppress(ValueError, RecursionError):
            return json.loads(text)
        printed = re.sub(r"\barray\(|,\s*dtype=[\w'<>]+\)", "", text)
        printed = re.sub(r"(?<=['\"])\s+(?=['\"])", ", ", printed)  # numpy prints no commas
        with contextlib.suppress(ValueError):
            return json_or_literal(printed)
        return marked_choices(text) or text
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return marked_choices(text) or (lines if len(lines) > 1 else text)


def marked_choices(text: str) -> dict | None:
    """The choices of `A. x B. y`, `(a) x (b) y`, `a ) x , b ) y` or `1. x 2. y` by their marks; None where a mark
    stands more than once, as nobody knows then where a choice ends."""
    for marks in (LETTERS, LETTERS.lower(), [str(number) for number in range(1, 27)]):
        ends, found = [], 0
        for mark in marks:
            places = list(re.finditer(rf"(?:^|(?<=[\s,;|]))[(\[]?{mark}\s?[).:、．\]]\)?(?!\d)", text, re.MULTILINE))
            if len(places) != 1 or places[0].start() < found:
                break
            found = places[0].end()
            ends.append((mark, places[0]))
        else:
            places = []
        if len(ends) < 2 or places or text[: ends[0][1].start()].strip():
            continue
        stops = [place.start() for _, place in ends[1:]] + [len(text)]
        return {
            mark: text[place.end() : stop].strip().rstrip(",;|").rstrip()
            for (mark, place), stop in zip(ends, stops, strict=True)
        }
    return None


def right_choice(row: dict, choices: Choices, first: int | None) -> tuple[str, int, bool]:
    """(column, place, whether the row leaves open that its number counts from elsewhere) of the right choice.

    `first` is what numbers of choices count from in this file, None where no row shows it.

    Raises:
        BadRow: no column says which choice is right, or none in a way that can be read.
    """
    if choices.right is not None:
        return choices.columns[0], choices.right, False
    picks = picks_of(row, choices)
    for name, value in picks:
        if (place := named_place(value, choices)) is not None:
            return name, place, False
    count, texts = len(choices.texts), choices.texts
    for name, value in picks:
        number, same = as_number(value, choices), places_of(str(value).strip(), texts)
        start = first_place(name, choices) if first is None else first
        if number is not None and start is None:
            got, expected = f"{number}, counted from 0 or from 1, which no row shows", letters_or_texts(choices)
            raise BadRow(name, got, expected, f"--map answer_index={name} where they count from 0, or letters")
        place = number - start if number is not None else -1
        if same and place in range(count) and same != [place] and first is None and isinstance(value, str):
            raise BadRow(name, f"{shown(value)}, the text of one choice and the number of another", "a letter")
        if place in range(count):
            return name, place, first is None and 0 < number < count
        if len(same) == 1:
            return name, same[0], False
    numbers = "" if choices.labels else f"a number from {first or 0} to {count - 1 + (first or 0)}, "
    expected, drop = numbers + letters_or_texts(choices), f"--drop {shlex.join(choices.columns)}"
    if picks:
        letters = re.findall(r"[A-Za-z0-9]", str(picks[0][1]))
        several = 1 < len(letters) == len(re.findall(r"\w+", str(picks[0][1]).strip())) or isinstance(picks[0][1], list)
        got = f"{shown(picks[0][1])}, several choices" if several else shown(picks[0][1])
        raise BadRow(picks[0][0], got, expected, f"{'--on_bad skip' if several else 'mending the row'}, or {drop}")
    if empty := next((name for name in PICK_KEYS if name in row and name not in choices.columns), None):
        raise BadRow(empty, "an empty cell", expected, f"leaving out the row, or --kind prompts --drop {empty}")
    names = ", ".join(name for name in row if not is_empty(row[name]))
    advice = f"--map answer=COLUMN, --kind prompts for questions without answers, or {drop}"
    raise BadRow("answer", f"the columns {names[:200]}", f"the right choice: {expected}", advice)


def letters_or_texts(choices: Choices) -> str:
    """How the right choice may be named, as messages say it."""
    labels = f"one of the labels {', '.join(choices.labels)}" if choices.labels else ""
    return labels or f"a letter from A to {LETTERS[len(choices.texts) - 1]}, or a choice's text"


def first_place(name: str, choices: Choices) -> int | None:
    """What numbers count from where no row shows it: by the choices' columns, or as an index counts."""
    indices = ("answer_idx", "answer_index", "correct_option", "label")
    return 0 if choices.first is None and name in indices else choices.first


def picks_of(row: dict, choices: Choices) -> list[tuple[str, object]]:
    """(column, value) of what may say which choice is right; a list of one counts as what it holds."""
    others = (name for name in row if {*words_in(name)} & RIGHT_WORDS and {*words_in(name)} <= PICK_WORDS)
    names = [name for name in dict.fromkeys((*PICK_KEYS, *others)) if name not in choices.columns]
    values = [(name, row[name]) for name in names if not is_empty(row.get(name))]
    return [(name, value[0] if isinstance(value, list) and len(value) == 1 else value) for name, value in values]


def places_of(word: str, texts: list[str]) -> list[int]:
    """Where a text stands in a list; in another case where it does not stand there as it is."""
    exact = [place for place, text in enumerate(texts) if text == word]
    return exact or [place for place, text in enumerate(texts) if text.lower() == word.lower()]


def named_place(value, choices: Choices) -> int | None:
    """The place of the choice that a value names by its label, text or letter, or by truth values; numbers aside."""
    if isinstance(value, list):
        return right_mark(value) if len(value) == len(choices.texts) else None
    if not isinstance(value, str | int) or isinstance(value, bool):
        return None
    word, texts, labels = str(value).strip(), choices.texts, choices.labels
    columns = choices.columns if len(choices.columns) == len(texts) else ()
    texts_too = [] if as_number(value, choices) is not None else [texts]
    for names in ([*columns], labels, *texts_too):
        if len(places := places_of(word, names)) == 1:
            return places[0]
    match = re.fullmatch(r"(?i:option |choice |answer )?[(\[]?([a-zA-Z])[\])]?[.:]?(?:[)\s]\s*(.+))?", word, re.DOTALL)
    place = LETTERS.index(match[1].upper()) if match else len(texts)
    fits = place < len(texts) and (not labels or is_letters(labels)) and match[2] in (None, texts[place])
    return place if fits else None


def is_letters(labels: list[str]) -> bool:
    """Whether labels are A, B, C, … in order."""
    return [label.upper() for label in labels] == list(LETTERS[: len(labels)])


def as_number(value, choices: Choices) -> int | None:
    """The number of a choice that a cell holds; None where choices have numbers as labels."""
    word = str(value).strip()
    whole = isinstance(value, int | str) and word.isascii() and word.isdigit() and len(word) < 3
    return int(word) if whole and (not choices.labels or is_letters(choices.labels)) else None


def first_number(row: dict) -> int | None:
    """What a row shows of how its file counts choices: 0 or 1, or None where its number may be either."""
    try:
        choices = choices_of(row)
    except BadRow:
        return None
    picks = [value for _, value in picks_of(row, choices)] if choices and choices.right is None else []
    if any(named_place(value, choices) is not None for value in picks):
        return None
    numbers = [as_number(value, choices) for value in picks if not places_of(str(value).strip(), choices.texts)]
    return 0 if 0 in numbers else 1 if choices and len(choices.texts) in numbers else None


def with_choices(question: str, texts: list[str]) -> str:
    """The question and its choices, each with its letter; a question that has them already, as it is."""
    pairs = list(zip(LETTERS, texts, strict=False))
    marks = [re.match(rf"(?i)\(?{letter}[).:]\s*", text) for letter, text in pairs]
    bare = [text[mark.end() :] for text, mark in zip(texts, marks, strict=True)] if all(marks) else texts
    if all(
        re.search(rf"\b{letter}[).:]\s*{re.escape(text)}", question)
        for letter, text in zip(LETTERS, bare, strict=False)
    ):
        return question
    upper = all(marks) and all(mark[0].isupper() for mark in marks)
    lines = texts if upper else [f"{letter}. {text}" for letter, text in zip(LETTERS, bare, strict=False)]
    return "\n".join([question.rstrip(), "", *lines])


# --------------------------------------------------------------------------- forms (src/programs/data_loader/forms.py)

READERS = {
    "answer": lambda value, name, shape: as_answer(value, name),
    "tests": lambda value, name, shape: read_tests(value, name, shape.row),
    **dict.fromkeys(
        ("completion", "chosen", "rejected"), lambda value, name, shape: as_reply(value, name, shape.out["prompt"])
    ),
}


@dataclass(frozen=True)
class FileFacts:
    """What the rows of a file have in common, beyond their form."""

    mapped: frozenset[str] = frozenset()  # the fields that --map names
    sources: frozenset[str] = frozenset()  # the columns that it takes them from
    first_number: int | None = None  # what numbers of choices count from: 0, 1, or None where no row shows it


NO_FACTS = FileFacts()


class Shape:
    """One row on its way to the schema: `take` fetches a field and marks it as used; what is not used stays."""

    def __init__(self, row: dict, facts: FileFacts = NO_FACTS):
        self.row, self.used, self.out, self.facts = row, set(), {}, facts
        self.choices = None  # those that the prompt has got
        self.unread: list[str] = []  # columns that look like a part of the question and are not in the prompt
        self.untaken: dict[str, str] = {}  # {column: field} that look like an answer, where the row has none
        self.notes: list[str] = []
        self.is_ours = False  # written here before: what stands beside the prompt has been decided on
        self.tests_name = "tests"  # the column they came from

    def name(self, names: Iterable[str]) -> str | None:
        """The first of these fields that the row has and that is not used yet."""
        return next((name for name in names if self.row.get(name) is not None and name not in self.used), None)

    def take(self, names: Iterable[str], what: str):
        """(name, value) of the first of these fields; BadRow where there is none."""
        names = tuple(names)
        name = self.name(names)
        if name is None:
            if empty := [name for name in names if name in self.row and name not in self.used]:
                raise BadRow(empty[0], "null, or an empty cell", what)
            has = ", ".join(key for key, item in self.row.items() if item is not None) or "none"
            advice = nested_advice(self.row, names) or f"--map {names[0]}=COLUMN"
            raise BadRow(names[0], f"the columns {has[:200]}", f"{what}: one of {', '.join(names)}", advice)
        self.used.add(name)
        return name, self.row[name]

    def prompt(self) -> None:
        """Fill in the prompt: passages and LLaMA-Factory's history precede, Alpaca's input and choices follow.

        Where --map names the prompt, only passages that it names too go before it.
        """
        self.choices = choices_of(self.row)
        name, value = self.take(CHOICE_PROMPT_KEYS if self.choices else prompt_names(self.row), "a prompt")
        if name == "instruction" and (more := self.name(["input"])):
            extra = self.take([more], "")[1]
            if not isinstance(value, str) or not isinstance(extra, str):
                raise BadRow(more, shown(extra), "text that goes with the instruction")
            value = f"{value}\n\n{extra}" if extra.strip() else value
        elif name == "instruction":
            self.used.add("input")
        if name != "prompt" and isinstance(self.row.get("history"), list):
            value = [*self.turns(), {"role": "user", "content": value}]
        system = self.name(["system", "system_prompt"])
        self.out["prompt"] = as_prompt(value, name, self.take([system], "")[1] if system else None)
        self.add_passages(isinstance(value, str) and "prompt" not in self.facts.mapped)
        if self.choices:
            message = self.out["prompt"][-1]
            message["content"] = with_choices(message["content"], self.choices.texts)
            if self.choices.columns[0] not in ("choices", "options"):
                self.used.update(self.choices.columns)
                self.out["choices"] = self.choices.texts

    def add_passages(self, all_columns: bool) -> None:
        """Put passages before the last message: of all columns that may hold one, or of those that --map names."""
        message, mapped = self.out["prompt"][-1], self.facts.mapped
        names = [name for name in self.row if name not in self.used and (all_columns or name in mapped)]
        passages = passages_before(self.row, message["content"], names, mapped)
        self.used.update(passages)
        if passages:
            message["content"] = "\n\n".join([*passages.values(), message["content"]])

    def turns(self) -> list[dict]:
        """Earlier turns from `history`, a list of [user, assistant]."""
        turns = []
        for number, pair in enumerate(self.take(["history"], "")[1]):
            if not isinstance(pair, list) or len(pair) != 2:
                raise BadRow(f"history[{number}]", shown(pair), "[user text, assistant text]")
            turns += [{"role": role, "content": text} for role, text in zip(("user", "assistant"), pair, strict=True)]
        return turns

    def answer(self, name: str) -> None:
        """Fill in the final answer of a worked solution, and keep the whole as `solution`; a bare answer stays."""
        text = as_answer(self.row[name], name)
        self.used.add(name)
        gold = gold_of(text)
        if gold is not None and not gold.strip():
            raise BadRow(name, f"{shown(text[-60:])}, which ends without an answer", "text after #### or in \\boxed{}")
        if name == "solution" and gold is None and not names_value(text):
            raise BadRow(name, f"{shown(text[-60:])} without a final answer", "#### or \\boxed{…}", "a field `answer`")
        self.out["answer"] = text if gold is None else gold
        if name == "solution" and gold is None:
            self.out[name] = text  # TRL's rewards read it
        if gold is not None and not BARE_MARK.fullmatch(text.strip()):
            taken = name != "solution" and self.row.get("solution") is not None
            self.out["answer_text" if taken else "solution"] = text

    def gold(self, name: str) -> None:
        """Fill in what a ground truth holds: an answer, a list of accepted ones, or tests; other objects stay."""
        value = self.row[name]
        if name == "label" and not isinstance(value, bool) and value in (0, 1):
            value = self.class_label(value)
        fields = {"answer": value}
        if isinstance(value, list | dict) or (isinstance(value, str) and value.lstrip()[:1] in ("[", "{")):
            fields = ground_truth(value, name, self.row)
        if fields.get("answer") == value or (isinstance(value, str) and "ground_truth" in fields):
            if isinstance(value, list):
                self.out["answer"] = value
                self.used.add(name)
            else:
                self.answer(name)
        elif "ground_truth" not in fields:
            self.out.update(fields)
            self.used.add(name)

    def class_label(self, value: int):
        """What a `label` of 0 or 1 says: in SuperGLUE's BoolQ false or true, elsewhere perhaps a class."""
        if self.row.get("passage") is None:
            self.notes.append("rows have the answer 0 or 1 by `label`, which may stand for a class; --drop label if so")
            return value
        self.notes.append("rows have a passage and a label of 0 or 1, read as false and true, as in BoolQ")
        self.row["label"] = value == 1
        return value == 1

    def finish(self) -> dict:
        """The normalised row: known fields first, then every field that was not used; null means absent."""
        row, out = self.row, self.out
        if check_media(row, out["prompt"]):
            self.notes.append("prompts have a Markdown image, which a model of text does not see")
        for name in READERS:  # these names mean the same in rows of any kind
            if row.get(name) is not None and name not in self.used and name not in out:
                out[name] = READERS[name](row[name], name, self)
                self.used.add(name)
        for name in ("entry_point", "setup", "source", "id"):
            value = row.get(name)
            if value is None or name in out:
                continue
            if name in ("id", "source") and isinstance(value, int | float):
                value = json.dumps(value)
            if not isinstance(value, str):
                raise BadRow(name, f"{type(value).__name__} {shown(value)}", "text", f"--map other_name={name}")
            out[name] = METHOD.sub(r"\1", value) if name == "entry_point" else value
            self.used.add(name)
        if "tests" in out:
            check_runnable(out, self.tests_name)
        if "completion" in out:
            check_paired_preference(row)
        if "id" not in out and isinstance(row.get("task_id"), str | int):
            out["id"] = str(row["task_id"])
        rest = {name: value for name, value in row.items() if name not in self.used and value is not None}
        for name, value in rest.items():
            out.setdefault(name, value)
        if clash := [name for name in RESERVED if name in out]:
            raise BadRow(clash[0], "a column of this name", "another name, as files use this one", f"--drop {clash[0]}")
        if not self.is_ours:
            known = {*self.facts.mapped, *self.facts.sources, *(self.choices.columns if self.choices else ())}
            rest = {name: value for name, value in rest.items() if name not in known}
            self.unread = unread_parts(rest, out["prompt"])
            if not {"answer", "tests", "completion", "chosen", "ground_truth"} & out.keys():
                self.untaken = {name: field for name, field in target_fields(row).items() if name not in known}
        return out


def as_prompts(shape: Shape) -> None:
    """A prompt, and an answer if there is one."""
    row, advice = shape.row, "a file in that form, or --drop for the columns"
    for names in MESSAGES_ALONE:
        if all(name in row for name in names):
            got = f"one message of a conversation ({', '.join(names)})"
            raise BadRow(names[0], got, "whole conversations in `messages`", advice)
    pairs = {}
    for name in row:
        if (match := ONE_RESPONSE.fullmatch(name)) and row[name] is not None:
            pairs.setdefault(match[1].lower(), []).append(name)
    if names := next((names for names in pairs.values() if len(names) > 1), None):
        got = f"several responses to compare ({', '.join(names)})"
        raise BadRow(names[0], got, "the better one in `chosen`, the other in `rejected`", advice)
    shape.prompt()


def as_math(shape: Shape) -> None:
    """A problem and its final answer, given or in a worked solution; of a long text and a short one the short."""
    shape.prompt()
    names = [name for name in ANSWER_KEYS if shape.row.get(name) is not None and name not in shape.used]
    if not names:
        shape.take(ANSWER_KEYS, "an answer")
    short = [name for name in names[1:] if name not in ("label", "solution") and is_short(shape.row[name])]
    text = shape.row[names[0]]
    if names[0] == "answer" and short and not is_short(text) and not marks_answer(text):
        shape.gold(short[0])
        shape.used.add("answer")
        shape.out["answer_text" if shape.row.get("solution") is not None else "solution"] = text
    else:
        shape.gold(names[0])


def is_short(value) -> bool:
    """Whether a value may be an answer without its explanation."""
    text = value.strip() if isinstance(value, str) else ""
    return isinstance(value, int | float | list) or ("\n" not in text and 0 < len(text.split()) < 6)


def as_choices(shape: Shape) -> None:
    """A question, its choices, which become part of the prompt, and the letter of the right one."""
    shape.prompt()
    if shape.choices is None:
        expected = "a column `choices` or `options`: a list of 2 to 26 texts, {text, label}, or {A: text}"
        raise BadRow("choices", "no choices", expected, "--map choices=COLUMN")
    name, place, is_open = right_choice(shape.row, shape.choices, shape.facts.first_number)
    if is_open and len(shape.choices.columns) == 1:
        shape.notes.append(f"rows name the right choice by a number in {name}, which was read as counted from 0")
    shape.used.add(name)
    shape.out["answer"] = LETTERS[place]


def as_worked(shape: Shape) -> None:
    """As math, in a file whose answers are worked solutions: one without a marked final answer is cut off or wrong."""
    as_math(shape)
    name = next((name for name in ANSWER_KEYS if shape.row.get(name) is not None), "answer")
    if not marks_answer(shape.row.get(name)):
        text = as_answer(shape.row.get(name), name)
        raise BadRow(name, f"{shown(text[-60:])} without a final answer", "#### or \\boxed{…}, as the other rows")


def as_code(shape: Shape) -> None:
    """A task and its tests: HumanEval, MBPP, APPS and alike."""
    shape.prompt()
    row = shape.row
    check_language(row, "tests")
    first = ("tests", "test") if row.get("entry_point") else ()
    name, _ = shape.take((*dict.fromkeys((*first, *TEST_KEYS)), "verification_info"), "tests")
    taken, shape.out["tests"] = joined_tests(row, name)
    shape.used.update(taken)
    shape.tests_name = name
    starter, message = row.get("starter_code"), shape.out["prompt"][-1]
    if isinstance(starter, str) and starter.strip() and starter.strip() not in message["content"]:
        message["content"] += f"\n\nBegin with this code:\n\n```python\n{starter.rstrip()}\n```"
    if name == "test" and row.get("setup") is None:  # HumanEval's tests use the imports and helpers of its prompt
        heads = [key for key in ("prompt", "complete_prompt") if isinstance(row.get(key), str) and is_python(row[key])]
        if heads:
            shape.out["setup"] = row[heads[0]]
            shape.used.add(heads[0])
    if name == "test_list" and row.get("setup") is None:
        imports = row.get("test_imports")
        lines = [row.get("test_setup_code"), *(imports if isinstance(imports, list) else [])]
        if setup := "\n".join(line for line in lines if isinstance(line, str) and line.strip()):
            shape.out["setup"] = setup


def is_python(text: str) -> bool:
    """Whether a text is Python source."""
    try:
        check_python(text, "prompt")
    except BadRow:
        return False
    return True


def as_response(shape: Shape) -> None:
    """A prompt and a completion."""
    if shape.name(CHAT_KEYS) and not shape.name(["prompt"]):
        as_conversation(shape)
        if "completion" not in shape.out:
            raise BadRow("messages", "no assistant turn at the end", "a conversation that ends with the assistant")
        return
    shape.prompt()
    name, value = shape.take(RESPONSE_KEYS, "a completion")
    shape.out["completion"] = as_reply(value, name, shape.out["prompt"])


def as_conversation(shape: Shape) -> None:
    """A conversation: all before the last assistant turn is the prompt, that turn the completion."""
    name, value = shape.take(CHAT_KEYS, "messages")
    shape.used.add("prompt")  # the first turn, where both are there
    messages = read_messages(without_placeholder(value), name)
    system = shape.name(["system", "system_prompt"])
    if system and messages[0]["role"] != "system":
        messages = [{"role": "system", "content": as_answer(shape.take([system], "")[1], system)}, *messages]
    check_order(messages, name)
    if messages[-1]["role"] == "assistant":
        shape.out["prompt"], shape.out["completion"] = messages[:-1], messages[-1:]
    else:
        shape.out["prompt"] = messages
        gold = shape.name(GOLD_KEYS[1:])  # as Tulu 3's sets for verifiable rewards have it
        if gold and shape.row.get("answer") is None:
            shape.gold(gold)
    shape.out["prompt"] = as_prompt(shape.out["prompt"], name)
    shape.add_passages(False)


def as_preferences(shape: Shape) -> None:
    """A better and a worse completion, with the prompt beside them or at their common beginning."""
    _, chosen = shape.take(["chosen"], "the better completion")
    _, rejected = shape.take(["rejected"], "the worse completion")
    if shape.name(PROMPT_KEYS):
        shape.prompt()
    elif shape.name(CHAT_KEYS):  # ShareGPT's: a conversation, and two messages that may follow
        as_conversation(shape)
        if shape.out.pop("completion", None):
            raise BadRow(
                "conversations", "an assistant at the end", "a conversation that chosen and rejected go on from"
            )
    else:
        shared, chosen, rejected = split_prompt(chosen, rejected)
        shape.out["prompt"] = as_prompt(shared, "chosen")
    replies = [
        as_reply(value, name, shape.out["prompt"]) for name, value in (("chosen", chosen), ("rejected", rejected))
    ]
    if replies[0] == replies[1]:
        raise BadRow("rejected", "the same as chosen", "a worse completion")
    if type(replies[0]) is not type(replies[1]):
        raise BadRow("rejected", f"{type(replies[1]).__name__} beside {type(replies[0]).__name__}", "both of one form")
    shape.out["chosen"], shape.out["rejected"] = replies


def split_prompt(chosen, rejected) -> tuple:
    """(prompt, chosen, rejected) of two dialogues that begin alike, as messages or in the text form of HH-RLHF."""
    if isinstance(chosen, str) and isinstance(rejected, str):
        chosen, rejected = dialogue(chosen, "chosen"), dialogue(rejected, "rejected")
    chosen, rejected = read_messages(chosen, "chosen"), read_messages(rejected, "rejected")
    same = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(chosen, rejected, strict=False)))
    same = min(same, len(chosen) - 1, len(rejected) - 1)
    while same and chosen[same - 1]["role"] not in ("user", "tool"):
        same -= 1
    if not same:
        advice = "leaving out the row, or --map prompt=COLUMN where a column has the prompt"
        raise BadRow("chosen", "no prompt", "a field `prompt`, or dialogues that begin alike", advice)
    return chosen[:same], chosen[same:], rejected[same:]


def dialogue(text: str, name: str) -> list[dict]:
    """The messages of a text with `Human:` and `Assistant:` turns."""
    turns = turns_in(text)
    if turns is None:
        expected = "a field `prompt` beside it, or turns `\\n\\nHuman: …\\n\\nAssistant: …`"
        raise BadRow(name, shown(text), expected, "--map prompt=COLUMN")
    return turns


def nested_advice(row: dict, names: tuple[str, ...]) -> str | None:
    """What to do where one of these names stands inside an object, or in a list of objects."""
    for column, value in row.items():
        text = isinstance(value, str) and value.lstrip()[:1] == "["
        value = listed_in(value) if text else value
        several = isinstance(value, list) and (len(value) > 1 or text)
        inner, path = (value[0], f"{column}.0") if isinstance(value, list) and value else (value, column)
        if isinstance(inner, dict) and (
            name := next((name for name in names if isinstance(inner.get(name), str)), None)
        ):
            if several:
                form = ", which are JSON or Python text" if text else ""
                return f"a file with a row for each of the {len(value)} objects in {column}{form}"
            return f"--map {names[0]}={path}.{name}, and the other fields likewise"
    return None


def check_paired_preference(row: dict) -> None:
    """Raise BadRow for a completion that a truth value calls good or bad, as KTO's data have it."""
    for name in ("label", "kto_tag"):
        if str(row.get(name)).lower() in ("true", "false"):
            expected = "completions that are right, or pairs of chosen and rejected"
            advice = f"TRL's KTOTrainer, which reads such rows as they are, or --drop {name} to take all as right"
            raise BadRow(name, f"{row[name]} beside a completion", expected, advice)


RESERVED = ("text_fields", "json_columns")

# columns of a row that is one message, as OpenAssistant's are
MESSAGES_ALONE = (("parent_id", "role"), ("role", "content"), ("from", "value"))
ONE_RESPONSE = re.compile(r"(?i)((?:\w+_)?(?:response|ref|reply|completion|output|summary))_?([ab]|[0-9])")

TEST_SOURCE = re.compile(r"^(def (check\(|test)|assert\b|class \w+\(.*TestCase)", re.MULTILINE)


def names_value(value) -> bool:
    """Whether a `solution` is the answer alone, as in TRL's data for rewards: a number, a formula or a word."""
    if not isinstance(value, str) or not is_short(value) or "boxed" in value or is_program(value):
        return False
    return len(re.findall(r"(?<!\\)\b[^\W\d_]{2,}", value)) < 2


def marks_answer(value) -> bool:
    """Whether a text is a worked solution that marks its final answer, or began to."""
    return isinstance(value, str) and ("\\boxed" in value or gold_of(value) is not None)


# ------------------------------------------------------------- written rows (src/programs/data_loader/written_rows.py)


def as_ours(shape: Shape) -> None:
    """A row that this script wrote, for itself or for TRL: checked, and otherwise as it is."""
    row, out, shape.is_ours = shape.row, shape.out, True
    row.update(decoded(row, shape.used))
    texts = row["text_fields"] if isinstance(row.get("text_fields"), list) else ()
    shape.used.add("text_fields")
    out["prompt"] = as_prompt(row["prompt"], "prompt")
    for name in texts:
        value = row.get(name) if isinstance(name, str) else None
        if isinstance(value, list) and len(value) == 1 and isinstance(value[0], dict):
            row[name] = value[0].get("content")
    shape.used.add("prompt")


def as_verl(shape: Shape) -> None:
    """A row of verl's five columns; one that this script wrote comes back as it was."""
    row = shape.row
    extra = row.get("extra_info")
    gold = row["reward_model"].get("ground_truth") if isinstance(row["reward_model"], dict) else None
    field = extra.get("ground_truth_field") if isinstance(extra, dict) else None
    if not isinstance(field, str):
        foreign_verl(shape)
        return
    inner = {key: value for key, value in extra.items() if key not in OWN_INFO and value is not None}
    inner.update(decoded(extra, set()))
    inner = {key.removeprefix("column:"): value for key, value in inner.items()}
    name, _, form = field.partition(":")
    if name not in ("answer", "tests", "none"):
        raise BadRow("extra_info.ground_truth_field", shown(field), "answer, tests or none")
    if name != "none":
        inner[name] = from_json(gold, "reward_model.ground_truth") if form == "json" else gold
    others = {key: value for key, value in row.items() if key not in VERL_COLUMNS}  # agent_name, say
    shape.row = {**others, "prompt": row["prompt"], **inner}
    shape.used.clear()
    as_ours(shape)


def foreign_verl(shape: Shape) -> None:
    """A row that verl reads and this script did not write: its columns stay as they are, for --for verl."""
    row, out, model = shape.row, shape.out, shape.row["reward_model"]
    gold = model.get("ground_truth") if isinstance(model, dict) else None
    out["prompt"] = as_prompt(row["prompt"], "prompt")
    out["source"] = as_answer(row["data_source"], "data_source")
    shape.used |= {"prompt", "data_source"}
    if gold is None and not (isinstance(model, dict) and model.get("style") == "model"):
        raise BadRow("reward_model", shown(model), 'an object such as {"ground_truth": "42"}')
    if gold not in (None, ""):
        out.update(ground_truth(gold, "reward_model.ground_truth", row))
    extra = row.get("extra_info")
    if isinstance(extra, dict):
        coded = decoded({**row, **extra}, set())
        row.update({name: value for name, value in coded.items() if name in row})
        extra = row["extra_info"] = {**extra, **{name: value for name, value in coded.items() if name in extra}}
        extra.pop("json_columns", None)
        if isinstance(extra.get("index"), int | str) and row.get("id") is None:
            out["id"] = str(extra["index"])
    for name in ("answer", "tests", "ground_truth", "source"):
        if name in out and row.get(name) is not None:  # a column of the row's own beside verl's
            out[f"column:{name}"] = row[name]
            shape.used.add(name)


def decoded(row: dict, used: set) -> dict:
    """Columns that a parquet file holds as JSON text, as `json_columns` says."""
    names = row.get("json_columns")
    if not isinstance(names, list):
        return {}
    used.add("json_columns")
    return {name: from_json(row[name], name) for name in names if isinstance(name, str) and row.get(name) is not None}


def from_json(text, name: str):
    """The value of JSON text that this script wrote."""
    expected = "JSON text, as json_columns says"
    if not isinstance(text, str):
        raise BadRow(name, shown(text), expected)
    return tests_from_json(text, name, expected)


# ----------------------------------------------------------------- form names (src/programs/data_loader/form_names.py)

FORMS: dict[str, Callable[[Shape], None]] = {
    "prompts": as_prompts,
    "conversations": as_conversation,
    "prompt_response": as_response,
    "preferences": as_preferences,
    "math": as_math,
    "worked": as_worked,
    "choices": as_choices,
    "code": as_code,
    "ours": as_ours,
    "verl": as_verl,
}
CUSTOM: dict[str, tuple[Callable, str]] = {}


def register_format(name: str, function: Callable | None = None, *, kind: str = "prompts"):
    """Teach load_rows a format: a function that turns a raw row into fields of the schema, or None if it is not its.

    The result passes the checks of `kind`; `prompt` may be text. Columns that the function leaves out are dropped, so
    return `{**row, "prompt": …}` to keep them. With kind "auto" registered formats are asked first, by their name only
    they are used alone. Without `function` this is a decorator.

    Raises:
        UserError: the name or the kind cannot be used.
    """
    need(name not in FORMS and name not in ("auto", "mixed"), f"got the format name {name!r}, which is built in")
    need(kind in KINDS, f"got kind {kind!r}; expected one of {', '.join(KINDS)}{suggest(str(kind), list(KINDS))}")
    if function is None:
        return lambda function: register_format(name, function, kind=kind)
    CUSTOM[name] = (function, kind)
    return function


def form_of(row: dict) -> str | None:
    """What a row is by the names of its fields: a kind, `ours`, `verl`, a registered name, or None."""
    for name, (function, _) in CUSTOM.items():
        with contextlib.suppress(Exception):  # such as KeyError: a row of another format
            if function(dict(row)) is not None:
                return name
    names = tuple(name for name, value in row.items() if value is not None)
    form = form_of_fields(names, isinstance(row.get("prompt"), list))
    if form in (None, "prompts", "math") and choice_columns(row) and {*names} & {*CHOICE_PROMPT_KEYS}:
        return "choices"
    if form == "math" and holds_tests(row):
        return "code"
    if form == "prompts" and repeats_prompt(row):
        return "conversations"  # UltraChat's
    marked = any(marks_answer(row.get(name)) for name in ("answer", "solution"))
    if form == "prompts" and (marked or names_value(row.get("solution"))):
        return "math"
    if form == "prompts" and isinstance(row.get("test"), str) and TEST_SOURCE.search(row["test"]):
        return "code"  # HumanEval's without entry_point
    return form


def holds_tests(row: dict) -> bool:
    """Whether PrimeIntellect's verification_info holds tests and not an answer."""
    about = row.get("verification_info")
    return about is not None and "test_cases" in (about if isinstance(about, dict) else str(about)[:200])


def repeats_prompt(row: dict) -> bool:
    """Whether the prompt is but the first user turn of a conversation beside it."""
    name = next((name for name in CHAT_KEYS if isinstance(row.get(name), list)), None)
    turns = [turn for turn in (row[name] if name else ()) if isinstance(turn, dict)]
    first = next((turn for turn in turns if turn.get("role", turn.get("from")) in ("user", "human")), {})
    prompt = row.get("prompt")
    return isinstance(prompt, str) and prompt == first.get("content", first.get("value"))


@functools.lru_cache(4096)
def form_of_fields(names: tuple, prompt_is_chat: bool) -> str | None:
    """The form that goes with these names; the most special one first."""
    has = set(names)
    if prompt_is_chat and {"prompt", "source", "id"} <= has:
        return "ours"
    if {"prompt", "data_source", "reward_model"} <= has:
        return "verl"
    if has & {"chosen"} and has & {"rejected"}:
        return "preferences"
    asks = has & set(PROMPT_KEYS)
    if asks and (has & set(TEST_KEYS[:-1]) or {"test", "entry_point"} <= has):
        return "code"
    if has & set(CHAT_KEYS) and "prompt" not in has:
        return "conversations"
    if asks and ({"completion"} <= has or {"response"} <= has or {"output"} <= has):
        return "prompt_response"
    golds = has & set(GOLD_KEYS) - ({"label"} if asks == {"text"} else set())  # a label of a text is a class
    if asks and golds - ({"answer"} if not has & {"question", "problem"} else set()):  # a solution may be a program
        return "math"
    return "prompts" if asks else None


def kind_of(row: dict) -> str:
    """The kind of a normalised row, by its fields."""
    marks = (("tests", "code"), ("chosen", "preferences"), ("completion", "prompt_response"), ("answer", "math"))
    return next((kind for name, kind in marks if name in row), "prompts")


def normalise(row: dict, kind: str = "auto") -> dict:
    """Return a raw row in the schema; the row itself is not changed.

    Raises:
        BadRow: a field is missing, or holds what it cannot.
        UserError: no such kind.
    """
    check_kind(kind)
    row = as_plain(row)
    if not isinstance(row, dict):
        raise BadRow("row", f"{type(row).__name__} {shown(row)}", "an object with named fields")
    row = known_names(with_chats(row))
    return convert(row, form_of(row) or "prompts" if kind == "auto" else kind).out


def known_names(row: dict) -> dict:
    """A row with its columns as this script writes them: `Question` is `question`; OpenBookQA's object is opened."""
    question = row.get("question")
    if isinstance(question, dict) and isinstance(question.get("stem"), str):
        row = {**{name: value for name, value in row.items() if name != "question"}, **question}
        row["question"] = row.pop("stem")
    if not {*row} & {*CHAT_KEYS[:-1], "chosen", "source", "reward_model", *RESPONSE_KEYS}:
        for name in ("text", "prompt", "chat", "dialogue", "conversation"):
            turns = turns_in(row[name]) if isinstance(row.get(name), str) else None
            if turns and turns[-1]["content"] and turns[-1]["role"] == "assistant":
                row = {**{key: value for key, value in row.items() if key != name}, "messages": turns}
                if isinstance(row.get("system"), str):
                    row["system"] = row["system"].removeprefix("SYSTEM: ")  # Glaive's
                break
    if is_paired(row.get("inputs"), row.get("outputs")):
        row = {**row, "input_output": {"inputs": row["inputs"], "outputs": row["outputs"]}}
        row = {name: value for name, value in row.items() if name not in ("inputs", "outputs")}
    new = new_names(tuple(row))
    return {new.get(name, name): value for name, value in row.items()} if new else row


def is_paired(inputs, outputs) -> bool:
    """Whether two columns hold the inputs and outputs of tests."""
    return isinstance(inputs, list) and isinstance(outputs, list) and len(inputs) == len(outputs) > 0


@functools.lru_cache(4096)
def new_names(names: tuple[str, ...]) -> dict[str, str]:
    """{name: the known name that it is but for case, blanks and dashes}; none in files of this script and of verl."""
    if {"prompt", "source", "id"} <= {*names} or {"data_source", "reward_model"} <= {*names}:
        return {}
    known = {*PROMPT_KEYS[:5], *ANSWER_KEYS, *READ_FIRST, *CHOICE_KEYS, *RESPONSE_KEYS, "correct", "answer_key"}
    found = {plain_name(name): name for name in reversed(names)}
    return {name: plain for plain, name in found.items() if plain in known and plain not in names}


def convert(row: dict, form: str, facts: FileFacts = NO_FACTS) -> Shape:
    """A plain row of a known form in the schema: `out` of what is returned."""
    if form in CUSTOM:
        function, form = CUSTOM[form]
        name = getattr(function, "__name__", "the function")
        try:
            made = function(dict(row))
        except Exception as error:
            got = f"{type(error).__name__}: {error} from {name}"
            raise BadRow("row", got, "a row of the registered format") from None
        if not isinstance(made, dict):
            raise BadRow("row", f"{shown(made)} from {name}", "a row of the registered format")
        row, facts = as_plain(made), FileFacts(frozenset(made))  # the function says what is the prompt
    elif form in KINDS:  # files of this script and of verl may be given with any kind
        named = form_of_fields(tuple(name for name, item in row.items() if item is not None), True)
        form = named if named in ("ours", "verl") and isinstance(row.get("prompt"), list) else form
    shape = Shape(dict(row), facts)
    FORMS[form](shape)
    shape.finish()
    return shape


def check_kind(kind: str) -> None:
    """Raise UserError for a kind that does not exist."""
    known = ["auto", *KINDS, *CUSTOM]
    need(kind in known, f"got kind {kind!r}; expected one of {', '.join(known)}{suggest(str(kind), known)}")


# ----------------------------------------------------------------------- records (src/programs/data_loader/records.py)

JSON_SPACE = re.compile(r"[ \t\n\r]*")
COMMAS = re.compile(r"[ \t\n\r,]*")


def json_lines(stream) -> Iterator[Record]:
    """Rows of JSONL. Lines end at line feeds only; blank ones are counted, not read."""
    decoder, number = JsonDecoder(), 0
    while data := stream.readline(MAX_LINE):
        number += 1
        if len(data) == MAX_LINE and not data.endswith(b"\n"):
            while (rest := stream.readline(MAX_LINE)) and not rest.endswith(b"\n"):
                pass
            yield broken(number, BadRow("row", f"a line of {MAX_LINE} bytes and more", "a shorter one"), data)
        elif not data.isspace():
            yield read_line(decoder, data, number)


def read_line(decoder: JsonDecoder, data: bytes, number: int) -> Record:
    """One line of JSONL."""
    try:
        text = data.decode().strip()
        value, end = decoder.decode(text)
        if end < len(text):
            raise BadRow("row", f"{shown(text[end : end + 40])} after the object", "one object a line")
        return Record(number, decoder.check(value, text))
    except UnicodeDecodeError as error:
        where = f"byte {data[error.start]:#04x} at column {error.start + 1}, which is not UTF-8"
        return broken(number, BadRow("row", where, "UTF-8 text", OTHER_ENCODING), data)
    except BadRow as error:
        return broken(number, error, data)


def json_values(stream) -> Iterator[Record]:
    """Rows of a JSON file: an array of objects, one object with one list of them, objects in a row, or JSONL."""
    data = stream.read()
    try:
        text = data.decode()
    except UnicodeDecodeError:
        text = ""
    if not text or (data.lstrip()[:1] != b"[" and has_line_object(data)):
        yield from json_lines(io.BytesIO(data))
    else:
        yield from values_of(text)


def has_line_object(data: bytes) -> bool:
    """Whether one of the first lines is an object by itself: in JSONL a broken line costs no other."""
    for line in itertools.islice(data.split(b"\n"), HEAD):
        with contextlib.suppress(BadRow, UnicodeDecodeError):
            text = line.decode().strip()
            if line[:1] == b"{" and JsonDecoder().decode(text)[1] == len(text):
                return True
    return False


def values_of(text: str) -> Iterator[Record]:
    """Rows of a text that holds JSON values one after another, or in one array.

    A comma too many or too few is a flaw of its own that costs no value; what follows a value without an end is lost.
    """
    decoder, line, counted, at = JsonDecoder(), 1, 0, JSON_SPACE.match(text).end()
    inside = text.startswith("[", at)
    at, is_first = at + inside, True
    while True:
        begin, at = at, COMMAS.match(text, at).end()
        is_closed = inside and text.startswith("]", at)
        is_last = is_closed or at == len(text)
        if (count := text.count(",", begin, at)) != (wanted := int(inside and not is_first and not is_last)):
            yield misplaced_comma(text, begin, at, count, wanted)
        if is_last:
            break
        line, counted = line + text.count("\n", counted, at), at
        try:
            value, end = decoder.decode(text, at)
        except BadRow as error:
            parts = {"field": "row", "got": error.parts["got"], "expected": error.parts["expected"]}
            yield broken(line, BadRow(**parts, advice="mending it, as nothing after it could be read"), text[at:])
            return
        try:
            yield Record(line, decoder.check(value, text[at:end]))
        except BadRow as error:
            yield broken(line, error, text[at:end])
        at, is_first = end, False
    line += text.count("\n", counted, at)
    if inside and not is_closed:
        yield broken(line, BadRow("row", "an array without end", "`]` at its end"), text[-100:])
    elif inside and (rest := text[at + 1 :].strip()):
        yield broken(line, BadRow("row", f"{shown(rest)} after the array", "the end of the file"), rest)


def misplaced_comma(text: str, begin: int, end: int, count: int, wanted: int) -> Record:
    """The record of a flaw of commas: it names the place of the first that is too many, or where one is missing."""
    commas = [at for at in range(begin, end) if text[at] == ","]
    at = commas[wanted] if count > wanted else end
    column = at - text.rfind("\n", 0, at)
    got = f"{'a comma too many' if count > wanted else 'no comma'} (at column {column}, near {nearby(text, at)})"
    error = BadRow("row", got, "one comma between two values of an array, and no other", "mending the commas there")
    return broken(text.count("\n", 0, at) + 1, error, text[max(at - 50, 0) : at + 50])


def unfolded_rows(records: Iterator[Record], name: str, known: tuple) -> Iterator[Record]:
    """The records, with the rows inside of objects that hold rows; such rows are counted from 1."""
    first, second = next(records, None), next(records, None)
    count = 0
    for record in itertools.chain([item for item in (first, second) if item], records):
        rows = rows_in(record.row, name, second is None, known) if record.row is not None else None
        if rows is None:
            yield record
        for row in rows or ():
            count += 1
            yield checked(count, row)


def text_rows(stream, separator: str | None) -> Iterator[Record]:
    """One prompt a line, or between separators; blank ones are skipped. The line is where the prompt begins."""
    pieces = ((number, line) for number, line in enumerate(stream, start=1))
    if separator is not None:
        need(separator, "got an empty text separator; expected text that stands between two prompts")
        pieces, number = [], 1
        for piece in stream.read().split(separator.encode()):
            start = number + piece[: len(piece) - len(piece.lstrip())].count(b"\n")
            number += (piece + separator.encode()).count(b"\n")
            pieces.append((start, piece))
    for number, piece in pieces:
        try:
            if piece.strip():
                yield Record(number, {"prompt": piece.decode().strip("\r\n")})
        except UnicodeDecodeError as error:
            yield broken(
                number,
                BadRow("prompt", f"bytes that are not UTF-8 ({error.reason})", "UTF-8 text", OTHER_ENCODING),
                piece,
            )


def csv_rows(stream, name: str, delimiter: str, chosen: str | None) -> Iterator[Record]:
    """Rows of a CSV or TSV file with a header; every value is text, and an empty one is absent."""
    for line, row in table_rows(stream, name, delimiter, chosen):
        if isinstance(row, RowFlaw):
            yield broken(line, row)
        else:
            yield checked(line, {column: cell or None for column, cell in row.items()})


def parquet_rows(source: str, max_bytes: int) -> Iterator[Record]:
    """Rows of a parquet file, 1000 at a time; numbered from 1."""
    import pyarrow.parquet

    number = 0
    try:
        with open(source, "rb") as raw:
            refuse_no_data(raw.peek(), source, "parquet")
            file = pyarrow.parquet.ParquetFile(raw)
            meta = file.metadata
            size = sum(meta.row_group(i).total_byte_size for i in range(meta.num_row_groups))
            too_big = f"{source}: got {size} unpacked bytes; expected at most max_bytes {max_bytes}; try --max_bytes"
            need(size <= max_bytes, too_big)
            for batch in file.iter_batches(1000):
                for row in batch.to_pylist():
                    number += 1
                    yield checked(number, row)
    except (OSError, ValueError, pyarrow.ArrowException, RecursionError) as error:
        raise UserError(f"{source}: got no readable parquet ({shown(str(error))}); expected an intact file") from None


def checked(number: int, row) -> Record:
    """A record of a row that Python holds already."""
    try:
        if not isinstance(row, dict):
            raise no_object(row)
        return Record(number, as_plain(row))
    except BadRow as error:
        return broken(number, error, shown(row))


def generated_rows(source: str) -> Iterator[Record]:
    """Tasks of reasoning-gym: `reasoning_gym:NAME?size=100&seed=0&KEY=VALUE`, the keys those of the generator."""
    name, _, query = source.partition(":")[2].partition("?")
    try:
        gym = importlib.import_module("reasoning_gym")
    except ImportError:
        raise UserError(f"got {source!r}; expected the package; try `pip install reasoning-gym`") from None
    settings = {"size": 100, "seed": 0}
    for key, value in urllib.parse.parse_qsl(query):
        try:
            settings[key] = json.loads(value)
        except ValueError:
            settings[key] = value
    try:
        tasks = gym.create_dataset(name, **settings)
        rows = (tasks[index] for index in range(len(tasks)))
        for number, row in enumerate(rows, start=1):
            yield checked(number, json.loads(json.dumps(row, default=str)))
    except (TypeError, ValueError, AssertionError) as error:
        known = [*importlib.import_module("reasoning_gym.factory").DATASETS]
        name = "" if name in known else name
        raise UserError(
            f"got {source!r}: {error}; expected a generator and its settings{suggest(name, known)}"
        ) from None


# ----------------------------------------------------------------------- reading (src/programs/data_loader/reading.py)


def expand(sources, max_files: int = 100_000) -> list[str]:
    """The files behind paths, folders and globs, in order; hub ids, generators and `-` stay as they are."""
    found = []
    for source in [sources] if isinstance(sources, str | Path) else list(sources):
        path, source = Path(source), str(source)
        if source == "-" or source.startswith("reasoning_gym:"):
            found.append(source)
        elif path.is_dir():
            files = (
                file
                for file in sorted(path.rglob("*"))
                if not any(p.startswith(".") for p in file.parts[len(path.parts) :])
            )
            files = list(itertools.islice((str(f) for f in files if f.is_file() and format_of(str(f))), max_files))
            need(files, f"got the folder {source} without a data file; expected names such as x.jsonl or x.csv.gz")
            found += files
        elif path.exists():
            known = format_of(source)
            expected = f"a name that ends in {', '.join(SUFFIXES)}, also with .gz or .zst"
            need(known, f"got {source}; expected {expected}; try renaming it, or --input_format")
            found.append(source)
        elif any(mark in source for mark in "*?["):
            import glob

            files = [file for file in sorted(glob.glob(source, recursive=True)) if format_of(file)]
            need(files, f"got {source}, which matches no data file; expected at least one")
            found += files
        else:
            hub = is_hub_id(source) and not format_of(source)
            need(
                hub,
                f"got {source}, which is no file, folder or glob; expected one, or a hub id such as openai/gsm8k:main",
            )
            found.append(source)
    need(found, "got no input; expected files, folders, globs, hub ids or `-`")
    return found


def format_of(name: str) -> str | None:
    """The format that a file's name tells, `.gz` and `.zst` aside."""
    path = Path(name.lower())
    return SUFFIXES.get(Path(path.stem).suffix if path.suffix in PACKED else path.suffix)


def name_of(source: str) -> str:
    """What rows of this input have as `source`, unless they say it themselves."""
    if source == "-":
        return "stdin"
    if source.startswith("reasoning_gym:"):
        return source.partition("?")[0]
    if not Path(source).exists():
        return source
    path = Path(source)
    return Path(path.stem).stem if path.suffix.lower() in PACKED else path.stem


def distinct_names(files: list[str]) -> dict[str, str]:
    """The name of each input; files of one name also carry the folders in which they differ."""
    names = {file: name_of(file) for file in files}
    for name, count in Counter(names.values()).items():
        alike = [file for file in names if names[file] == name]
        if count > 1 and all(Path(file).is_file() for file in alike):
            inside = {file: os.path.abspath(file) for file in alike}
            top = os.path.commonpath([os.path.dirname(path) for path in inside.values()])
            inside = {file: Path(path).relative_to(top) for file, path in inside.items()}
            short = Counter(path.parent / name for path in inside.values())
            # a.jsonl and a.csv in one folder differ only by what follows the stem
            names |= {f: str(p.parent / name if short[p.parent / name] == 1 else p) for f, p in inside.items()}
    return names


@dataclass
class Settings:
    """How rows are read: the keyword arguments of load_rows."""

    kind: str = "auto"
    mapping: dict = field(default_factory=dict)
    drop: tuple = ()
    system_prompt: str | None = None
    on_bad: str = "fail"
    limit: int | None = None
    max_bytes: int = DEFAULT_MAX_BYTES
    text_separator: str | None = None
    input_format: str | None = None
    dedup: bool = False
    encoding: str | None = None
    delimiter: str | None = None

    def __post_init__(self):
        check_kind(self.kind)
        self.mapping = dict(self.mapping or {})
        for field_name, source in self.mapping.items():
            need(field_name and source, f"got the mapping {field_name!r}={source!r}; expected field=source")
        need(self.on_bad in ("fail", "skip"), f"got on_bad {self.on_bad!r}; expected fail or skip")
        need(self.limit is None or self.limit > 0, f"got limit {self.limit}; expected 1 or more")
        need(self.max_bytes > 0, f"got max_bytes {self.max_bytes}; expected 1 or more")
        self.delimiter = {"\\t": "\t", "tab": "\t"}.get(self.delimiter, self.delimiter)
        wrong = f"got delimiter {self.delimiter!r}; expected one character, such as ';', or tab"
        need(self.delimiter is None or (len(self.delimiter) == 1 and self.delimiter not in '"\r\n'), wrong)
        try:
            "".encode(self.encoding or "utf-8")
            if self.encoding and codecs.lookup(self.encoding).name == "utf-8":
                self.encoding = "utf-8-sig"
        except LookupError as error:
            raise UserError(f"got encoding: {error}; expected a name that Python knows, such as cp1252") from None
        formats = sorted(set(SUFFIXES.values()))
        known = self.input_format in (None, *formats)
        need(known, f"got input_format {self.input_format!r}; expected one of {', '.join(formats)}")


def reading_settings(kind: str, reading: dict) -> Settings:
    """The settings that keyword arguments of load_rows mean."""
    known = [name for name in Settings.__dataclass_fields__ if name != "kind"]
    wrong = [name for name in reading if name not in known]
    near = suggest(wrong[0], known) if wrong else ""
    need(not wrong, f"got the argument {wrong[:1]}; expected one of {', '.join(known)}{near}")
    return Settings(kind, **{**reading, "drop": tuple(reading.get("drop", ()))})


def records_of(source: str, settings: Settings) -> Iterator[Record]:
    """The rows of one input as they stand there."""
    if source.startswith("reasoning_gym:"):
        return generated_rows(source)
    if source != "-" and not Path(source).exists():
        return (checked(number, row) for number, row in enumerate(hub_rows(source), start=1))
    form = settings.input_format or format_of(source)
    if form == "parquet":
        need(source != "-", "got parquet on stdin; expected a file, as parquet is not read in one go")
        return parquet_rows(source, settings.max_bytes)
    return file_rows(source, form, settings)


def file_rows(source: str, form: str | None, settings: Settings) -> Iterator[Record]:
    """The rows of a file that is read as bytes, or of stdin."""
    name = "stdin" if source == "-" else source
    stream, form = open_data(source, form, settings.max_bytes, settings.encoding, settings.input_format is not None)
    with contextlib.closing(stream):
        if form in ("csv", "tsv"):
            yield from csv_rows(stream, name, "," if form == "csv" else "\t", settings.delimiter)
        elif form == "txt":
            yield from text_rows(stream, settings.text_separator)
        else:
            records = json_values(stream) if form == "json" else json_lines(stream)
            known = tuple(column.partition(".")[0] for column in settings.mapping.values())
            yield from unfolded_rows(records, name, known)


# ----------------------------------------------------------------------- writing (src/programs/data_loader/writing.py)

# names that TRL's trainers give to reward functions themselves
TRL_ARGUMENTS = ("prompts", "completions", "completion_ids", "trainer_state", "log_extra", "log_metric")
VERL_OUTSIDE = ("agent_name", "__rollout_n__")  # what verl reads beside its five columns
VERL_OBJECTS = ("reward_model", ("extra", "tools_kwargs"), ("extra", "interaction_kwargs"))  # never JSON text
NO_GOLD = {*OWN_INFO, *VERL_COLUMNS, "source", "id", "agent_name", "need_tools_kwargs", "style"}
DATE_LIKE = re.compile(r"\d{4}-\d\d-\d\d([T ]\d\d:\d\d(:\d\d(\.\d+)?)?)?Z?")
ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False)
LINE_ENDS = {ord(mark): f"\\u{ord(mark):04x}" for mark in "\x85\u2028\u2029"}  # str.splitlines cuts there


def json_line(row: dict) -> str:
    """A row as one line of JSON, on any reader's idea of lines."""
    text = ENCODER.encode(row)
    if not text.isascii() and any(mark in text for mark in "\x85\u2028\u2029"):
        text = text.translate(LINE_ENDS)
    return text + "\n"


def trl_row(row: dict) -> dict:
    """A row as TRL's trainers read it: completions are messages like the prompt; `text_fields` names those of text."""
    clash = [name for name in TRL_ARGUMENTS if name in row]
    advice = f"try --map old_{clash[0]}={clash[0]}" if clash else ""
    need(not clash, f"got the column {clash[:1]}, a name that TRL gives to rewards itself; expected another; {advice}")
    texts = [name for name in ("completion", "chosen", "rejected") if isinstance(row.get(name), str)]
    if not texts:
        return row
    turned = {name: [{"role": "assistant", "content": row[name]}] for name in texts}
    return {**row, **turned, "text_fields": texts}


def verl_row(row: dict, index: int, split: str, data_source: str = "") -> dict:
    """A row as verl's RLHFDataset reads it; all that verl has no column for goes into extra_info.

    `data_source` is the row's own source where none is named; extra_info keeps that one in any case. A row with an
    `extra_info` or `reward_model` of its own is in verl's form already, and keeps each key where verl reads it.
    """
    if isinstance(row.get("extra_info"), dict) or isinstance(row.get("reward_model"), dict):
        return own_verl_row(row, index, split, data_source)
    (gold, field, truth), kind = ground_truth_of(row), kind_of(row)
    extra = {"index": index, "split": split, "ground_truth_field": field}
    outside = {name: row[name] for name in VERL_OUTSIDE if name in row}
    for name, value in row.items():
        if name not in ("prompt", gold, *outside):
            extra[info_key(name)] = value
    return {
        "data_source": data_source or row.get("source") or "data",
        "prompt": row["prompt"],
        "ability": kind if kind in ("math", "code") else "chat",
        "reward_model": {"style": "rule", "ground_truth": truth},
        **outside,
        "extra_info": extra,
    }


def own_verl_row(row: dict, index: int, split: str, data_source: str) -> dict:
    """A row in verl's form as it was before reading, with the prompt, and the answer or tests, that it has now."""
    extra, kind = row.get("extra_info"), kind_of(row)
    model = row.get("reward_model") or {"style": "rule"}
    truth = model.get("ground_truth")
    held = ground_truth(truth, "reward_model.ground_truth", row) if truth not in (None, "") else {}
    if "ground_truth" not in held and any(row.get(name) != held.get(name) for name in ("tests", "answer")):
        truth = row.get("tests", row.get("answer", ""))
        model = {**model, "ground_truth": truth if isinstance(truth, str) else ENCODER.encode(truth)}
    if "reward_model" not in row:
        extra = {"index": index, "split": split, **(extra or {})}
    derived = re.fullmatch(r".*:\d+", row.get("id", "")) or row.get("id") == str((extra or {}).get("index"))
    left = {"prompt", "source", "tests", "answer", *held, *(["id"] if derived else []), *VERL_COLUMNS}
    return {
        "data_source": data_source or row.get("source") or "data",
        "prompt": row["prompt"],
        "ability": row.get("ability", kind if kind in ("math", "code") else "chat"),
        "reward_model": model,
        **({} if extra is None else {"extra_info": extra}),
        **{name.removeprefix("column:"): value for name, value in row.items() if name not in left},
    }


def target_rows(rows: Iterable[dict], target: str, split: str, data_source: str = "") -> Iterator[dict]:
    """Rows in the shape of the target."""
    for index, row in enumerate(rows):
        if target == "verl":
            row = verl_row(row, index, split, data_source)
        yield trl_row(row) if target == "trl" else row


def write_rows(rows: Iterable[dict], path, target: str = "ours", *, split: str = "train", data_source: str = "") -> int:
    """Write normalised rows to a .jsonl or .parquet file and return their number; the file appears whole or not at all.

    Args:
        target: "ours", "trl" or "verl"; load_rows reads each of them back as it was.
        split: what verl's extra_info.split says.
        data_source: verl's data_source of all rows; "" is each row's source.

    Raises:
        UserError: the path, the target or a column cannot be used.
    """
    rows, path = list(rows), Path(path)
    check_out(path, target)
    with new_file(path) as temporary:
        return fill_file(lambda: iter(rows), temporary, path.suffix, (target, split, data_source))[0]


def check_out(path: Path, target: str) -> None:
    """Raise UserError unless something can be written there."""
    need(target in TARGETS, f"got the target {target!r}; expected one of {', '.join(TARGETS)}")
    need(path.suffix in (".jsonl", ".parquet"), f"got the output {path}; expected a name in .jsonl or .parquet")
    need(path.parent.is_dir(), f"got the output {path}; expected a folder that exists; try mkdir -p {path.parent}")
    need(not path.is_dir(), f"got the output {path}, a folder; expected the name of a file")


def fill_file(make_rows: Callable[[], Iterator[dict]], path: Path, suffix: str, shape: tuple[str, str, str]) -> tuple:
    """Write the rows that make_rows gives to a file, shaped as target_rows shapes them; parquet asks for them twice.

    Returns their number, and how many of verl's have no ground truth.
    """
    target, lacking = shape[0], Counter()
    if suffix == ".parquet":
        count = write_parquet(lambda: target_rows(make_rows(), *shape), path, target, lacking)
        return count, tell_lacking(lacking, count)
    count, dates = 0, {}
    with open(path, "w", encoding="utf-8", newline="\n") as f:
        for row in target_rows(make_rows(), *shape):
            f.write(json_line(row))
            count += 1
            if target != "ours":
                watch_dates(row, dates)
            watch_truth(row, target, lacking)
    if dated := [name for name, all_dates in dates.items() if all_dates]:
        what = f"datasets reads {', '.join(dated)} of a .jsonl as dates, as each value looks like one"
        say(f"warning: {what}; try a .parquet output")
    return count, tell_lacking(lacking, count)


def watch_truth(row: dict, target: str, lacking: Counter) -> None:
    """Count a row of verl's without ground truth, under "", and the columns in which it could be."""
    model = row.get("reward_model") or {}
    if target != "verl" or model.get("ground_truth") not in (None, "") or model.get("style") == "model":
        return
    columns = {**row, **(row.get("extra_info") or {})}
    lacking.update(
        ["", *(n for n, v in columns.items() if n not in NO_GOLD and isinstance(v, str | int | float | list))]
    )


def tell_lacking(lacking: Counter, count: int) -> int:
    """Say how many rows have no ground truth; returns that number."""
    if rows := lacking.pop("", 0):
        columns = ", ".join(lacking) or "none"
        got = f'{rows} of {count} rows have no ground truth (neither answer nor tests), and verl gets "" there'
        say(f"warning: {got}; columns that could hold it: {columns[:200]}; try --map answer=COLUMN")
    return rows


def watch_dates(row: dict, dates: dict) -> None:
    """Note which text columns hold nothing but dates so far: pyarrow's JSON reader turns those into datetimes."""
    inner = {**(row.get("extra_info") or {}), "ground_truth": row.get("reward_model", {}).get("ground_truth")}
    for name, value in {**row, **(inner if "reward_model" in row else {})}.items():
        if isinstance(value, str) and dates.get(name, True):
            dates[name] = bool(DATE_LIKE.fullmatch(value))


@contextlib.contextmanager
def new_file(path: Path):
    """A temporary file beside `path` that takes its place when the block ends well, and vanishes when it does not."""
    try:
        handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    except OSError as error:
        raise UserError(f"got the output {path}: {error.strerror}; expected a folder to write to") from None
    os.close(handle)
    try:
        yield Path(temporary)
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(temporary, 0o666 & ~mask)  # mkstemp's file is for its owner only
        os.replace(temporary, path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)


def chunks(rows: Iterator[dict], size: int = CHUNK) -> Iterator[list[dict]]:
    """Lists of so many rows."""
    while chunk := list(itertools.islice(rows, size)):
        yield chunk


def write_parquet(make_rows: Callable[[], Iterator[dict]], path: Path, target: str, lacking: Counter) -> int:
    """Write parquet in two passes: one finds the types of all columns, one writes.

    A column whose values parquet would change (objects of different keys, numbers beside text) is stored as JSON text,
    and its name in `json_columns`; load_rows decodes it.
    """
    import pyarrow
    import pyarrow.parquet

    plan = ColumnPlan(target)
    for chunk in chunks(make_rows()):
        for row in chunk:
            watch_truth(row, target, lacking)
        plan.look([flat(row, target) for row in chunk])
    plan.conclude()
    count = 0
    schema = plan.schema()
    with pyarrow.parquet.ParquetWriter(path, schema) as writer:
        for chunk in chunks(make_rows()):
            rows = [nested(plan.encode(flat(row, target)), target) for row in chunk]
            writer.write_table(pyarrow.Table.from_pylist(rows, schema=schema))
            count += len(rows)
    return count


def flat(row: dict, target: str) -> dict:
    """A target row with verl's extra_info spread out, so that its fields are planned as columns."""
    if target != "verl":
        return row
    spread_out = {("extra", name): value for name, value in (row.get("extra_info") or {}).items()}
    return {**{name: value for name, value in row.items() if name != "extra_info"}, **spread_out}


def nested(row: dict, target: str) -> dict:
    """The opposite of flat."""
    if target != "verl":
        return row
    outer = {name: value for name, value in row.items() if not isinstance(name, tuple)}
    inner = {name[1]: value for name, value in row.items() if isinstance(name, tuple)}
    return {**outer, **({"extra_info": inner} if inner else {})}


MESSAGE_FIELDS = ("prompt", "completion", "chosen", "rejected")
LOOSE = (*MESSAGE_FIELDS, *VERL_OBJECTS)  # objects may differ in their keys: readers take null for absent


class ColumnPlan:
    """The parquet type of each column, and which ones have to be JSON text to come back as they were."""

    def __init__(self, target: str):
        self.target = target
        self.types: dict = {}  # column -> types seen; None: JSON text
        self.as_json: list = []

    def look(self, rows: list[dict]) -> None:
        """Take in a chunk of rows."""
        import pyarrow

        for name in dict.fromkeys(itertools.chain.from_iterable(rows)):
            values = [row.get(name) for row in rows]
            try:
                column = pyarrow.array(values)
                back = column.to_pylist()
                same = back == values or (name in LOOSE and bare(back) == bare(values))
            except (pyarrow.ArrowException, OverflowError, TypeError, ValueError):
                same = False
            seen = self.types.setdefault(name, [])
            if not same:
                self.types[name] = None
            elif seen is not None and "struct<>" in str(column.type):  # parquet has no object without fields
                self.types[name] = None
            elif seen is not None and column.type not in seen:
                seen.append(column.type)

    def conclude(self) -> None:
        """Merge the types of all chunks; fixed columns must not become text."""
        import pyarrow

        for name, types in self.types.items():
            if types is None:
                merged = None
            else:
                merged = self.merge(types, loose=name in LOOSE)
            if merged is None or pyarrow.types.is_null(merged):
                fixed = name in ("prompt", *VERL_OBJECTS) or (self.target == "trl" and name in MESSAGE_FIELDS)
                shown_name = f"extra_info.{name[1]}" if isinstance(name, tuple) else name
                got = f"got {shown_name} with values that parquet would change; expected values alike"
                need(not fixed or merged is not None, f"{got}; try an output in .jsonl")
                self.as_json.append(name)
                merged = pyarrow.string()
            self.types[name] = merged

    def merge(self, types: list, loose: bool):
        """One type for all, or None; objects may differ in their keys only where absent ones are told from null."""
        import pyarrow

        kinds = [kind for kind in types if not pyarrow.types.is_null(kind)] or types
        strict = any("struct" in str(kind) for kind in kinds) and not loose
        if strict and len(kinds) > 1:
            return None
        try:
            schemas = [pyarrow.schema([("x", kind)]) for kind in kinds]
            return pyarrow.unify_schemas(schemas, promote_options="permissive").field("x").type
        except (pyarrow.ArrowException, ValueError, TypeError):
            return None

    def encode(self, row: dict) -> dict:
        """A row with JSON text where the plan says so."""
        names = [name for name in self.as_json if row.get(name) is not None]
        if not names:
            return row
        marks = ("extra", "json_columns") if self.target == "verl" else "json_columns"
        plain = [name[1] if isinstance(name, tuple) else name for name in names]
        return {**row, **{name: ENCODER.encode(row[name]) for name in names}, marks: plain}

    def schema(self):
        """The parquet schema."""
        import pyarrow

        listed = pyarrow.list_(pyarrow.string())
        if self.target != "verl":
            columns = {**self.types, **({"json_columns": listed} if self.as_json else {})}
            return pyarrow.schema(list(columns.items()))
        outer = [(name, kind) for name, kind in self.types.items() if not isinstance(name, tuple)]
        inner = [(name[1], kind) for name, kind in self.types.items() if isinstance(name, tuple)]
        inner += [("json_columns", listed)] if self.as_json else []
        return pyarrow.schema([*outer, *([("extra_info", pyarrow.struct(inner))] if inner else [])])


def bare(value):
    """A value as parquet gives it back, without the keys that only other rows have."""
    if isinstance(value, dict):
        return {key: bare(item) for key, item in value.items() if item is not None}
    return [bare(item) for item in value] if isinstance(value, list) else value


# ----------------------------------------------------------------- row reader (src/programs/data_loader/row_reader.py)

FEW_PROMPTS = 20


def at_path(row: dict, source: str, raw: dict[str, str]):
    """The value of a column, or at a dotted path in one; None where there is none. `raw`: {known name: own name}."""
    head, *path = [source] if source in row or source in raw else source.split(".")
    value = row
    for key in [raw.get(head, head), *path]:
        if isinstance(value, list) and key.isdecimal():
            value = dict(enumerate(value)).get(int(key))
        else:
            value = value.get(key) if isinstance(value, dict) else None
    return value


def raw_names(row: dict) -> dict[str, str]:
    """{known name: the row's own name}, as messages say known names."""
    return {known: name for name, known in new_names(tuple(row)).items()}


def remapped(row: dict, settings: Settings) -> dict:
    """A row after --drop and --map, its columns under known names; the source of a mapping may be a dotted path.

    Where a cell holds messages as JSON text, the row has the messages.
    """
    raw = raw_names(row)
    drop = {*settings.drop, *(raw.get(name, name) for name in settings.drop)}
    row = {name: value for name, value in row.items() if name not in drop}
    mapped = {name: at_path(row, source, raw) for name, source in settings.mapping.items()}
    if name := next((name for name, value in mapped.items() if value is None), ""):
        source = settings.mapping[name]
        advice = f"--map {name}=COLUMN{suggest(source, list(row)).replace('; try', ', perhaps')}"
        raise BadRow(name, f"the columns {', '.join(row)[:200]}", f"the column {source!r} of --map", advice)
    for source in settings.mapping.values():
        row.pop(raw.get(source, source), None)
    paths = [source.split(".")[0] for source in settings.mapping.values()]
    if clash := [name for name in mapped if row.get(name) is not None and name not in paths]:
        raise BadRow(clash[0], f"a column of that name beside --map {clash[0]}", "one of the two", f"--drop {clash[0]}")
    return known_names(with_chats({**mapped, **{name: value for name, value in row.items() if name not in mapped}}))


def check_mapping(rows: list[dict], settings: Settings, file: str) -> None:
    """Raise UserError for a column of --map that none of the rows has: once, not for each row."""
    rows = [{name: value for name, value in row.items() if name not in settings.drop} for row in rows]
    columns = [*dict.fromkeys(itertools.chain.from_iterable(rows))]
    for name, source in settings.mapping.items():
        known = any(source in row or at_path(row, source, raw_names(row)) is not None for row in rows)
        near = suggest(source, columns).replace("; try ", f"; try --map {name}=") or f"; try --map {name}=COLUMN"
        got = f"{file}: got --map {name}={source}, and no row has {source!r}"
        need(known or not rows, f"{got}; expected one of the columns {', '.join(columns)[:500]}{near}")


class RowReader:
    """Iterates over the good rows of all inputs, normalised, in order; what it leaves out it counts and reports.

    `counts` adds up at any time: read = kept + rejected + deduplicated. `on_reject` gets each bad row.
    """

    def __init__(self, sources, settings: Settings, on_reject: Callable[[dict], None]):
        self.files, self.settings, self.on_reject = expand(sources), settings, on_reject
        self.names, self.current = distinct_names(self.files), ""
        self.counts = {"read": 0, "kept": 0, "rejected": 0, "deduplicated": 0}
        self.kinds, self.reasons, self.seen, self.notes = Counter(), [], set(), Counter()
        self.facts, self.unread = FileFacts(), Counter()  # of the current file; columns by their rows
        self.untaken: Counter[tuple[str, str]] = Counter()  # (column, field) of what may be an answer, by their rows
        self.texts: dict[str, set] = {"prompt": set()}  # digests, while there are but a few prompts

    @property
    def kind(self) -> str:
        """The kind of all rows so far, or `mixed`."""
        return "mixed" if len(self.kinds) > 1 else next(iter(self.kinds), "prompts")

    @property
    def why(self) -> str:
        """Why each input was taken for what it was taken for."""
        return "; ".join(self.reasons)

    def __iter__(self) -> Iterator[dict]:
        for file in self.files:
            yield from self.rows_of(file)
            if self.counts["kept"] == self.settings.limit:
                return

    def rows_of(self, file: str) -> Iterator[dict]:
        """The good rows of one input."""
        records, name = iter(records_of(file, self.settings)), self.names[file]
        self.current = name
        form, records = self.detect(file, records)
        before = self.counts["read"]
        for record in records:
            self.counts["read"] += 1
            try:
                row = self.read(record, form)
            except RowFlaw as error:
                self.counts["rejected"] += 1
                where = {"file": "stdin" if file == "-" else file, "line": record.line}
                self.on_reject({**where, **error.parts, "row": record.text if record.row is None else record.row})
                continue
            row.setdefault("source", name)
            row.setdefault("id", f"{name}:{record.line}")
            if self.settings.dedup and self.repeats(row):
                self.counts["deduplicated"] += 1
                continue
            self.counts["kept"] += 1
            self.watch_prompts(row)
            yield row
            if self.counts["kept"] == self.settings.limit:
                return
        if self.counts["read"] == before and len(self.files) > 1:  # of a single one, need_rows says it
            say(f"warning: {'stdin' if file == '-' else file} holds no row")

    def watch_prompts(self, row: dict) -> None:
        """Count distinct prompts, and distinct texts in unused columns that have the name of a prompt."""
        if len(self.texts["prompt"]) > FEW_PROMPTS:
            return
        for name in ("prompt", *PROMPT_KEYS):
            if name == "prompt" or isinstance(row.get(name), str):
                self.texts.setdefault(name, set()).add(digest(row[name]))

    def collapse(self) -> str:
        """What to say where all prompts are a few texts and an unused column has many; "" elsewhere."""
        prompts = len(self.texts["prompt"])
        others = {name: len(texts) for name, texts in self.texts.items() if len(texts) >= max(5, 3 * prompts)}
        if prompts > FEW_PROMPTS or not others:
            return ""
        name = max(others, key=others.get)
        got = f"got {prompts} distinct prompts in {self.counts['kept']} rows, and {others[name]} distinct {name}"
        return f"{got}; expected prompts that differ; try --map prompt={name}, with --drop for a column in its way"

    def need_rows(self, rejected: list[dict] = ()) -> None:
        """Raise UserError if no row at all could be used; of those that were rejected it shows the first."""
        if self.counts["kept"]:
            return
        inputs, bad = " ".join(self.files[:5]) + " …" * (len(self.files) > 5), self.counts["rejected"]
        counts = f"{self.counts['read']} read" + (f", {bad} bad" if bad else "")
        first = ""
        if rejected:
            first = f"; the first bad one: {rejected[0]['file']}:{rejected[0]['line']}: {flaw_of(rejected[0])}"
        raise UserError(f"got no usable row from {inputs} ({counts}); expected at least one{first}")

    def say_notes(self) -> None:
        """Say which columns look like a part of the question but are in no prompt, and what rows were read for."""
        for name, count in self.unread.items():
            got = f"got the column {name}, which looks like a part of the question and is in no prompt"
            use = (
                ""
                if is_media(name)
                else f"--map {shlex.quote(f'background={name}')} to put it before the question, or "
            )
            say(f"warning: {got} ({count} of {self.counts['read']} rows); try {use}--drop {shlex.quote(name)}")
        if self.untaken:
            columns = ", ".join(name for name, _ in self.untaken)
            fields = {field: name for name, field in reversed(self.untaken)}  # the first column of each
            flags = " ".join(shlex.quote(f"{field}={name}") for field, name in fields.items())
            got = f"got {max(self.untaken.values())} of {self.counts['read']} rows without answer, tests or completion"
            drop = f"--drop {shlex.join(name for name, _ in self.untaken)} where they hold none"
            say(f"warning: {got}, beside the columns {columns}; try --map {flags}, or {drop}")
        for text, count in self.notes.items():
            if count:
                say(f"note: {count} {text}")

    def read(self, record: Record, form: str) -> dict:
        """One record normalised."""
        if record.flaw:
            raise record.flaw
        settings = self.settings
        row = remapped(record.row, settings)
        own = form_of(row)
        if settings.kind == "auto":
            form = self.agreed(form, own, row)
        shape = convert(row, form, self.facts)
        row = shape.out
        self.unread.update(shape.unread)
        self.untaken.update(shape.untaken.items())
        self.notes.update(shape.notes)
        packed = isinstance(row.get("private_test_cases"), str)
        self.notes["rows have pickled private_test_cases, which are never opened: they get the public tests"] += packed
        if settings.system_prompt:
            if row["prompt"][0]["role"] in ("system", "developer"):
                self.notes["rows kept their own system prompt"] += row["prompt"][0]["content"] != settings.system_prompt
            else:
                row["prompt"] = [{"role": "system", "content": settings.system_prompt}, *row["prompt"]]
        return row

    def agreed(self, form: str, own: str | None, row: dict) -> str:
        """The form by which a row of an input of this form is read; BadRow where it is quite another one."""
        if own in ("ours", "verl"):
            return own
        if own is None:  # the conversion says what is missing
            return "prompts" if form in ("ours", "verl") else form
        if (
            own == form
            or (own == "prompts" and form not in ("ours", "verl"))
            or (own, form) in (("math", "prompts"), ("math", "worked"))
        ):
            return form  # a row that only asks lacks what this form needs, and the conversion says what
        got = f"a row of {own}, with the columns {', '.join(row)[:200]}"
        raise BadRow("row", got, f"{form.replace('worked', 'math')}, as the other rows", "a file for each kind")

    def detect(self, file: str, records: Iterator[Record]) -> tuple[str, Iterator[Record]]:
        """(form, all records): what most of the first rows are, and why; a given kind is taken as it is."""
        settings, label = self.settings, "stdin" if file == "-" else file
        head = list(itertools.islice(records, HEAD))
        if settings.on_bad == "fail" or len(head) < HEAD:  # else a later row may have the column
            check_mapping([record.row for record in head if record.row is not None], settings, label)
        forms, kinds, fields, marked, numbers = Counter(), Counter(), {}, 0, set()
        for record in head:
            with contextlib.suppress(RowFlaw):
                row = remapped(record.row, settings) if record.row is not None else None
                form = form_of(row) if row is not None else None
                if form:
                    forms[form] += 1
                    first = next((row[name] for name in ANSWER_KEYS if row.get(name) is not None), None)
                    marked += form == "math" and marks_answer(first)
                    fields.setdefault(form, [name for name in row if row[name] is not None])
                    if form in ("ours", "verl"):
                        kinds[kind_of(convert(row, form).out)] += 1
                    if form == "choices" or settings.kind == "choices":
                        numbers.add(first_number(row))
        records = itertools.chain(head, records)
        self.facts = FileFacts(
            mapped=frozenset(settings.mapping),
            sources=frozenset(plain_name(source.partition(".")[0]) for source in settings.mapping.values()),
            first_number=min(numbers - {None}, default=None),
        )
        if settings.kind != "auto":
            kind = CUSTOM[settings.kind][1] if settings.kind in CUSTOM else settings.kind
            self.kinds[kind] += 1
            self.reasons.append(f"{label}: {settings.kind}, as asked for")
            return "worked" if kind == "math" and 2 * marked > len(head) else settings.kind, records
        if not forms:
            self.kinds["prompts"] += 1
            self.reasons.append(f"{label}: prompts, as no row has the fields of another kind")
            return "prompts", records
        form = max(forms, key=lambda form: (forms[form], form != "prompts"))  # of equals the one with answers
        count = forms[form]
        kind = CUSTOM[form][1] if form in CUSTOM else form
        if form in ("ours", "verl"):
            self.kinds.update(kinds.keys() or ["prompts"])
            kind = f"{' and '.join(kinds) or 'prompts'}, in the form of {form}"
        else:
            self.kinds[kind] += 1
        sign = f"fields {', '.join(fields[form][:8])}" + (f", registered as {form}" if form in CUSTOM else "")
        worked = form == "math" and 2 * marked > count
        cut = (
            "; answer is the final one, the text around it is in solution (--kind prompts leaves columns as they were)"
        )
        self.reasons.append(
            f"{label}: {kind}, as {count} of the first {len(head)} rows have the {sign}{cut if worked else ''}"
        )
        return "worked" if worked else form, records

    def repeats(self, row: dict) -> bool:
        """Whether a row with the same prompt, answer, tests and completions came before."""
        parts = [row.get(name) for name in ("prompt", "answer", "tests", "completion", "chosen", "rejected")]
        mark = digest(parts)
        if mark in self.seen:
            return True
        self.seen.add(mark)
        return False


def digest(value) -> bytes:
    """16 bytes that stand for a JSON value."""
    return hashlib.blake2b(json.dumps(value, sort_keys=True).encode(), digest_size=16).digest()


@dataclass
class Loaded:
    """What load_rows returns: rows of the schema, what they were taken for and why, and what was left out."""

    rows: list[dict]
    kind: str
    why: str
    rejected: list[dict]
    counts: dict[str, int]


def load_rows(sources, kind: str = "auto", **reading) -> Loaded:
    """Read all rows of files, folders, globs, hub ids or generators into the schema.

    Args:
        sources: one input or a list: a path, a folder, a glob, `-` for stdin, `owner/name[:config][@split]`,
            `reasoning_gym:NAME?size=…&seed=…`.
        kind: one of KINDS, a registered format, or "auto": what most of the first 100 rows are, decided for each file.
        mapping: field of the schema -> column that holds it; the column may be a dotted path.
        system_prompt: put before prompts that have none.
        on_bad: "fail" raises BadRows after everything is read; "skip" leaves bad rows out and lists them in `rejected`.
        limit: stop after this many good rows.
        max_bytes: what a compressed or parquet file may unpack to.
        text_separator: what stands between two prompts of a .txt file (default: a line each).
        drop: columns to leave out.
        dedup: leave out rows whose prompt, answer, tests and completions came before.
        input_format: read every file as jsonl, json, txt, csv, tsv or parquet, whatever its name.
        encoding: what texts are decoded by (default: UTF-8, or what a CSV, TSV or TXT file shows).
        delimiter: what stands between the columns of CSV and TSV files (default: what the file shows).

    Raises:
        BadRows: rows do not fit, and on_bad is "fail".
        UserError: an input cannot be read, an argument cannot be used, or there is no usable row.
    """
    settings = reading_settings(kind, reading)
    rejected = []
    reader = RowReader(sources, settings, rejected.append)
    rows = list(reader)
    if rejected and settings.on_bad == "fail":
        raise BadRows(rejected, len(rejected))
    reader.need_rows(rejected)
    reader.say_notes()
    return Loaded(rows, reader.kind, reader.why, rejected, reader.counts)


# ----------------------------------------------------------------------- batches (src/programs/data_loader/batches.py)

INSTEAD = {  # arguments of create_dataloader that it no longer takes
    **dict.fromkeys(
        ("weights", "mix_until"), "datasets.interleave_datasets with probabilities, on files of write_rows"
    ),
    "curriculum": "a file sorted by that column, and no shuffle_seed",
    **dict.fromkeys(("streaming", "shuffle_buffer"), "stream_dataset in torch's DataLoader"),
}


def prompt_ids(tokenizer, row: dict) -> list[int]:
    """Token ids of a row's prompt up to where the assistant speaks; a column `tools` goes to the chat template."""
    if tokenizer.chat_template:
        tools = row.get("tools") if isinstance(row.get("tools"), list) else None
        return chat_ids(tokenizer, row["prompt"], tools=tools)
    return encode_prompt(tokenizer, row["prompt"])


class Collator:
    """Turns rows into a batch: `input_ids` and `attention_mask` [B, T], padded on the left, and each column as a list.

    A column that a row lacks is None there. Also works as `collate_fn` of a torch DataLoader.
    """

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer
        self.pad_id = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id
        need(self.pad_id is not None, "got a tokenizer without pad and eos token; expected one; try setting pad_token")

    def __call__(self, rows: list[dict]) -> dict:
        names = dict.fromkeys(itertools.chain.from_iterable(rows))
        clash = ", ".join({"input_ids", "attention_mask"} & set(names))
        need(not clash, f"got the column {clash}, which the batch has itself; expected another name; try drop")
        ids, mask = left_pad([prompt_ids(self.tokenizer, row) for row in rows], self.pad_id, None)
        return {"input_ids": ids, "attention_mask": mask, **{name: [row.get(name) for row in rows] for name in names}}


class PromptLoader:
    """Batches of prompts, epoch after epoch: each `for` goes through the rest of the current epoch.

    The order depends on nothing but the rows, the settings and the epoch, so `state_dict()` after a batch and
    `load_state_dict()` in another process give exactly the batches that would have followed. `left_out` counts prompts
    that are longer than max_prompt_tokens.
    """

    def __init__(self, rows: list[dict], collator: Collator, settings: dict):
        self.collator, self.settings, self.epoch, self.position = collator, settings, 0, 0
        longest = settings["max_prompt_tokens"]
        if longest is not None:
            fitting = [row for row in rows if len(prompt_ids(collator.tokenizer, row)) <= longest]
            need(fitting, f"got no prompt within max_prompt_tokens {longest}; expected some; try a higher one")
        self.rows = rows if longest is None else fitting
        self.left_out = len(rows) - len(self.rows)
        if self.left_out:
            say(f"warning: left out {self.left_out} of {len(rows)} prompts longer than max_prompt_tokens {longest}")
        # what the order of rows depends on: a position means nothing where it differs
        names = ("shuffle_seed", "max_prompt_tokens", "world_size")
        self.order = {name: settings[name] for name in names} | {"rows": digest([row["id"] for row in self.rows]).hex()}

    def __iter__(self) -> Iterator[dict]:
        rank, world, seed = (self.settings[name] for name in ("rank", "world_size", "shuffle_seed"))
        order = list(range(len(self.rows)))
        if seed is not None:
            random.Random(f"{seed} {self.epoch}").shuffle(order)
        while group := order[self.position : self.position + self.settings["batch_size"] * world]:
            self.position += len(group)
            if indices := group[rank : len(group) - len(group) % world : world]:  # each process as many rows
                yield self.collator([self.rows[index] for index in indices])
        self.epoch, self.position = self.epoch + 1, 0

    def __len__(self) -> int:
        """Batches of a whole epoch."""
        world = self.settings["world_size"]
        full, rest = divmod(len(self.rows), self.settings["batch_size"] * world)
        return full + (rest >= world)

    def state_dict(self) -> dict:
        """Where the loader stands: epoch, rows consumed in it (by all processes), and what both depend on."""
        return {"epoch": self.epoch, "position": self.position, "order": self.order}

    def load_state_dict(self, state: dict) -> None:
        """Go on where a loader with the same rows and settings stood."""
        fits = isinstance(state, dict) and {"epoch", "position", "order"} <= set(state)
        need(fits, f"got the state {shown(state)}; expected what state_dict returned")
        wrong = ", ".join(key for key, value in self.order.items() if state["order"].get(key) != value)
        need(not wrong, f"got a position of a loader with other {wrong}; expected the same rows and settings")
        self.epoch, self.position = state["epoch"], state["position"]


def create_dataloader(
    kind: str,
    sources,
    tokenizer,
    *,
    batch_size: int,
    max_prompt_tokens: int | None = None,
    shuffle_seed: int | None = None,
    rank: int = 0,
    world_size: int = 1,
    **reading,
) -> PromptLoader:
    """Batches of prompts with all their columns, from any input that load_rows reads.

    Args:
        kind: one of KINDS, a registered format, or "auto".
        sources: an input or a list of them.
        tokenizer: a Hugging Face tokenizer; its chat template makes the text.
        batch_size: prompts a batch and process; the last of an epoch may be smaller.
        max_prompt_tokens: leave out longer prompts, and count them in `left_out`.
        shuffle_seed: shuffle anew in each epoch, by this seed (default: the order of the files).
        rank, world_size: this process and how many there are; each gets other rows of the same order.
        **reading: further arguments of load_rows: mapping, system_prompt, on_bad, limit, max_bytes, …

    Raises:
        UserError: an argument cannot be used, or an input cannot be read; BadRows where rows do not fit.
    """
    need(batch_size > 0, f"got batch_size {batch_size}; expected 1 or more")
    need(0 <= rank < world_size, f"got rank {rank} of {world_size}; expected 0 to world_size - 1")
    for name, other in INSTEAD.items():
        need(name not in reading, f"got the argument {name}, which create_dataloader no longer takes; try {other}")
    settings = {"batch_size": batch_size, "max_prompt_tokens": max_prompt_tokens, "shuffle_seed": shuffle_seed}
    settings |= {"rank": rank, "world_size": world_size}
    return PromptLoader(load_rows(sources, kind, **reading).rows, Collator(tokenizer), settings)


def stream_dataset(kind: str, sources, **reading):
    """The rows as a torch IterableDataset, read while iterating, for files larger than memory.

    For a torch DataLoader with `collate_fn=Collator(tokenizer)`; each of its workers, in each process of
    torch.distributed, yields other rows. A bad row raises BadRows at once unless on_bad is "skip".
    """
    import torch

    settings = reading_settings(kind, reading)

    def refuse(item: dict) -> None:
        if settings.on_bad == "fail":
            raise BadRows([item], 1)

    class RowStream(torch.utils.data.IterableDataset):
        """Rows of this worker."""

        def __iter__(self):
            info, is_multi = torch.utils.data.get_worker_info(), torch.distributed.is_initialized()
            rank, world = (torch.distributed.get_rank(), torch.distributed.get_world_size()) if is_multi else (0, 1)
            worker, workers = (info.id, info.num_workers) if info else (0, 1)
            reader = RowReader(sources, settings, refuse)
            yield from itertools.islice(reader, rank * workers + worker, None, world * workers)
            reader.need_rows()

    return RowStream()


# ----------------------------------------------------------------- inspection (src/programs/data_loader/inspection.py)


def percentiles(values) -> dict[str, int]:
    """p50, p95 and the largest of some lengths; each is a length that occurs."""
    ordered = sorted(values)
    ranks = {"p50": math.ceil(0.5 * len(ordered)) - 1, "p95": math.ceil(0.95 * len(ordered)) - 1, "max": -1}
    return {name: ordered[rank] for name, rank in ranks.items()} if ordered else {}


class Stats:
    """What --inspect shows about good rows; it keeps lengths and digests of rows, not the rows."""

    def __init__(self, tokenizer=None):
        self.tokenizer = tokenizer
        self.lengths = {name: array.array("q") for name in ("prompt_chars", "prompt_tokens", "completion_chars")}
        self.files, self.sources, self.fields, self.types, self.examples = Counter(), Counter(), Counter(), {}, []
        self.rows, self.prompts, self.place_sets, self.again, self.conflicts = set(), {}, {}, 0, set()

    def add(self, row: dict, file: str) -> None:
        """Take in a row of an input."""
        self.sources[row["source"]] += 1
        for name, value in row.items():
            self.fields[name] += 1
            self.types.setdefault(name, set()).add(type(value).__name__)
        self.lengths["prompt_chars"].append(sum(len(message["content"]) for message in row["prompt"]))
        if self.tokenizer:
            self.lengths["prompt_tokens"].append(len(prompt_ids(self.tokenizer, row)))
        for name in ("completion", "chosen"):
            if name in row:
                said = [row[name]] if isinstance(row[name], str) else [message["content"] for message in row[name]]
                self.lengths["completion_chars"].append(sum(map(len, said)))
        gold = [row.get(name) for name in ("answer", "tests", "completion", "chosen", "rejected")]
        prompt, gold = digest(row["prompt"]), digest(gold)
        whole = digest([prompt.hex(), gold.hex()])
        self.again += whole in self.rows
        self.rows.add(whole)
        first, places = self.prompts.get(prompt, (gold, frozenset()))
        places |= {(file, row["source"])}
        self.prompts[prompt] = first, self.place_sets.setdefault(places, places)  # one object for all that are equal
        self.files[file] += 1
        if gold != first:
            self.conflicts.add(prompt)
        if len(self.examples) < 3:
            self.examples.append({name: shown(value) for name, value in row.items()})

    def overlaps(self) -> dict[str, int]:
        """Prompts that stand in two inputs, or in two sources of one input."""
        found, which = Counter(), int(len(self.files) < 2)
        for _, places in self.prompts.values():
            found.update(" & ".join(pair) for pair in itertools.combinations(sorted({p[which] for p in places}), 2))
        return dict(found)

    def report(self) -> dict:
        """All of it as JSON."""
        fields = {name: {"rows": count, "types": sorted(self.types[name])} for name, count in self.fields.items()}
        return {
            "rows": self.sources.total(),
            "sources": dict(self.sources),
            "fields": fields,
            "lengths": {name: percentiles(values) for name, values in self.lengths.items() if values},
            "duplicates": self.again,
            "prompts_with_other_answers": len(self.conflicts),
            "overlap": self.overlaps(),
            "examples": self.examples,
        }


# --------------------------------------------------------------------- held out (src/programs/data_loader/held_out.py)


def split_size(text: str, count: int) -> tuple[str, int]:
    """(name, rows) of --split: NAME=N, NAME=SHARE, or N or SHARE alone, whose name is eval."""
    name, _, size = text.rpartition("=")
    name = name if "=" in text else "eval"
    try:
        number = int(size) if size.isdigit() else round(float(size) * count)
    except (ValueError, OverflowError):
        number = 0
    good = re.fullmatch(r"\w+", name) and name != "rejected" and 0 < number < count
    expected = f"expected NAME=N with N from 1 to {count - 1}, or a share, or one of these alone; try --split 0.1"
    need(good, f"got --split {text} of {count} rows; {expected}")
    return name, number


def held_out_rows(prompts: list[bytes], size: int, seed: int) -> set[int]:
    """Rows to hold out, whole prompts at random: `size` of them, or as near below it as prompts of several rows allow.

    Args:
        prompts: a digest of each row's `asked_words`.

    Raises:
        UserError: there is one prompt only.
    """
    groups: dict[bytes, list[int]] = {}
    for row, prompt in enumerate(prompts):
        groups.setdefault(prompt, []).append(row)
    got = f"got --split of {len(prompts)} rows of one prompt"
    need(len(groups) > 1, f"{got}; expected several prompts, as rows of one stay together")
    generator, owned = random.Random(seed), [*groups.values()]
    picked = generator.sample(range(len(owned)), min(size, len(owned)))
    rest = [*{*range(len(owned))}.difference(picked)]
    generator.shuffle(rest)  # where those picked have too many rows each
    chosen: set[int] = set()
    for group in [*picked, *rest]:
        if len(chosen) + len(owned[group]) <= size:
            chosen.update(owned[group])
        if len(chosen) == size:
            break
    return chosen or {*min((owned[group] for group in picked), key=len)}


# ----------------------------------------------------------------------- command (src/programs/data_loader/command.py)

SEVERAL = {"action": "extend", "nargs": "+", "default": []}
FLAGS = {  # name: (help, what argparse gets)
    "kind": (f"auto, {', '.join(KINDS)}", {"default": "auto", "metavar": "KIND"}),
    "out": ("file to write, .jsonl or .parquet", {"type": Path, "metavar": "FILE"}),
    "for": ("who reads the output", {"dest": "target", "choices": TARGETS, "default": "ours"}),
    "data_source": ("verl's data_source of all rows (default: each row's source)", {"metavar": "NAME"}),
    "inspect": ("report fields, lengths, duplicates, overlap of sources, examples", {"action": "store_true"}),
    "tokenizer": ("folder or hub id, for lengths in tokens", {"metavar": "DIR"}),
    "plot": (argparse.SUPPRESS, {}),
    "validate": (
        "only report bad rows, and columns that no prompt holds though they look like it; exit 1 for any",
        {"action": "store_true"},
    ),
    "limit": ("stop after N good rows", {"type": int, "metavar": "N"}),
    "split": (
        "held-out rows, whole prompts: 0.1 or 200 go to OUT.eval.jsonl, NAME=0.1 or NAME=200 to OUT.NAME.jsonl",
        {"metavar": "[NAME=]N"},
    ),
    "seed": ("of --split (default: that of --shuffle, else 0)", {"type": int, "metavar": "SEED"}),
    "dedup": ("leave out rows whose prompt, answer, tests and completions came before", {"action": "store_true"}),
    "system_prompt": ("file with a system prompt for prompts that have none", {"type": Path, "metavar": "FILE"}),
    "shuffle": ("shuffle the output by this seed", {"type": int, "metavar": "SEED"}),
    "map": ("field=column, the column perhaps a dotted path", {**SEVERAL, "metavar": "F=C"}),
    "drop": ("columns to leave out, those that are added (source, id) too", {**SEVERAL, "metavar": "COLUMN"}),
    "on_bad": (
        "skip: write the good rows, and the bad ones to OUT.rejected.jsonl",
        {"choices": ("fail", "skip"), "default": "fail"},
    ),
    "txt_sep": (
        r"what stands between prompts of a .txt, such as '\n\n' (default: a line each)",
        {"metavar": "TEXT"},
    ),
    "input_format": (
        "read inputs as jsonl, json, txt, csv, tsv or parquet, whatever their names",
        {"metavar": "NAME"},
    ),
    "encoding": ("of all inputs, such as cp1252 (default: UTF-8, else as the file shows)", {"metavar": "NAME"}),
    "delimiter": (
        "between the columns of CSV and TSV: one character, or tab (default: as the file shows)",
        {"metavar": "C"},
    ),
    "max_bytes": (
        "what one packed file may unpack to",
        {"type": int, "default": DEFAULT_MAX_BYTES, "metavar": "N"},
    ),
    "json": ("print one JSON object on stdout", {"action": "store_true"}),
}


def make_command() -> argparse.ArgumentParser:
    """The command line; flags work with `_` and `-`."""
    parser = argparse.ArgumentParser(
        usage="%(prog)s IN ... [--flag value ...]    (--help has all flags)",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    inputs = "files, folders, globs, `-`, hub id[:config][@split], reasoning_gym:NAME?size=100&seed=0"
    parser.add_argument("inputs", nargs="+", metavar="IN", help=inputs)
    for name, (text, options) in FLAGS.items():
        default = options.get("default")
        text += f" (default: {default})" if default else ""
        parser.add_argument(*dict.fromkeys([f"--{name}", f"--{name.replace('_', '-')}"]), help=text, **options)
    return parser


def settings_of(args) -> Settings:
    """Check the arguments that are not checked elsewhere, and make the settings of the reading."""
    need(args.plot is None, "got --plot, which is gone; try --inspect, which prints the lengths' percentiles")
    rules = (
        (args.out or args.inspect or args.validate, "nothing to do; expected --out FILE, --inspect or --validate"),
        (not (args.validate and args.out), "--validate with --out; expected one of them, as --validate writes nothing"),
        (args.out or (not args.split and args.shuffle is None), "--split or --shuffle without --out; expected --out"),
        (
            args.target == "verl" or args.data_source is None,
            f"--data_source with --for {args.target}; expected --for verl, which has such a column",
        ),
        (args.data_source != "", "--data_source ''; expected a name, such as openai/gsm8k"),
        (
            args.split or args.seed is None,
            "--seed without --split; expected both; try --shuffle SEED for an order",
        ),
        (not args.tokenizer or args.inspect, "--tokenizer alone; expected --inspect with it"),
    )
    for holds, got in rules:
        need(holds, f"got {got}")
    wrong = [item for item in args.map if "=" not in item]
    need(not wrong, f"got --map {wrong[:1]}; expected field=column; try inputs before --map")
    if args.out:
        check_out(args.out, args.target)
    system = None
    if args.system_prompt:
        try:
            system = args.system_prompt.read_text(encoding="utf-8-sig").strip()
        except (OSError, ValueError) as error:
            raise UserError(f"got --system_prompt {args.system_prompt}: {error}; expected a text file") from None
        need(system, f"got --system_prompt {args.system_prompt}, which is empty; expected text")
    separator = args.txt_sep
    if separator is not None:
        separator = re.sub(r"\\([nt\\])", lambda match: {"n": "\n", "t": "\t"}.get(match[1], "\\"), separator)
    names = ("kind", "on_bad", "limit", "max_bytes", "input_format", "dedup", "encoding", "delimiter")
    return Settings(
        **{name: getattr(args, name) for name in names},
        mapping=dict(item.split("=", 1) for item in args.map),
        drop=tuple(args.drop),
        system_prompt=system,
        text_separator=separator,
    )


def open_tokenizer(name: str):
    """A tokenizer from a folder or the hub."""
    need(Path(name).is_dir() or is_hub_id(name), f"got --tokenizer {name}; expected a folder or a hub id")
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(tokenizer_of(name))
    except (OSError, ValueError) as error:
        raise UserError(f"got --tokenizer {name}, which does not load: {shown(str(error))}") from None


class Spool:
    """Rows on disk, in an unnamed file, with their offsets: what is written later takes no memory now."""

    def __init__(self, folder: Path | None):
        self.file, self.offsets = tempfile.TemporaryFile(dir=folder), array.array("q", [0])

    def add(self, line: str) -> None:
        """Append a line."""
        self.offsets.append(self.offsets[-1] + self.file.write(line.encode()))

    def lines(self, order: Iterable[int] | None = None) -> Iterator[bytes]:
        """The lines, all or in this order."""
        self.file.seek(0)
        if order is None:
            yield from self.file
            return
        at = 0
        for index in order:
            start, end = self.offsets[index], self.offsets[index + 1]
            if at != start:
                self.file.seek(start)
            at = end
            yield self.file.read(end - start)

    def __len__(self) -> int:
        return len(self.offsets) - 1


class Run:
    """One call of the command: reads once into spools, then writes all outputs or none."""

    def __init__(self, args, settings: Settings):
        self.args, self.first_rejected = args, []
        folder = args.out.parent if args.out else None
        self.good, self.bad = Spool(folder), Spool(folder)
        self.stats = Stats(open_tokenizer(args.tokenizer) if args.tokenizer else None)
        self.reader = RowReader(args.inputs, settings, self.reject)
        self.prompts: list[bytes] = []  # digests, for a split
        self.outputs: list[dict] = []

    def reject(self, item: dict) -> None:
        """Keep a bad row for the report and the .rejected.jsonl."""
        if len(self.first_rejected) < 20:
            self.first_rejected.append(item)
        if self.args.on_bad == "skip" and self.args.out:
            self.bad.add(json.dumps(item) + "\n")

    def read(self) -> None:
        """Go through all rows once."""
        from tqdm import tqdm

        args = self.args
        drop = {*args.drop} - {*self.reader.settings.mapping}  # --map puts another column in the place of a dropped one
        for row in tqdm(self.reader, desc="rows", unit="", delay=1, disable=None, file=sys.stderr):
            if args.inspect:
                self.stats.add(row, self.reader.current)
            if args.out:
                self.good.add(json_line({name: value for name, value in row.items() if name not in drop}))
            if args.split:
                self.prompts.append(digest(asked_words(row["prompt"])))

    def parts(self) -> list[tuple[Path, str, list[int] | None]]:
        """(path, split name, order of rows) of each output."""
        args, count = self.args, len(self.good)
        order = list(range(count)) if args.split or args.shuffle is not None else None
        if args.shuffle is not None:
            random.Random(args.shuffle).shuffle(order)
        if not args.split:
            return [(args.out, "train", order)]
        name, size = split_size(args.split, count)
        chosen = held_out_rows(self.prompts, size, args.seed if args.seed is not None else args.shuffle or 0)
        if len(chosen) != size:
            say(f"note: {len(chosen)} rows are held out, not {size}, as rows of one prompt stay together")
        held, rest = [i for i in order if i in chosen], [i for i in order if i not in chosen]
        return [(args.out, "train", rest), (args.out.with_suffix(f".{name}{args.out.suffix}"), name, held)]

    def write(self) -> None:
        """Write every output beside its place, then put all in place."""
        args = self.args
        with contextlib.ExitStack() as stack:
            for path, split, order in self.parts():
                temporary = stack.enter_context(new_file(path))
                count, lacking = self.write_part(temporary, path, split, order)
                output = {"path": str(path), "rows": count, "split": split, "for": args.target}
                if lacking:
                    output["without_ground_truth"] = lacking
                if args.split:
                    output["prompts"] = len({self.prompts[row] for row in order})
                self.outputs.append(output)
            if args.on_bad == "skip":
                path = args.out.with_suffix(".rejected.jsonl")
                with open(stack.enter_context(new_file(path)), "wb") as f:
                    f.writelines(self.bad.lines())
                self.outputs.append({"path": str(path), "rows": len(self.bad), "split": "rejected"})

    def write_part(self, temporary: Path, path: Path, split: str, order: list[int] | None) -> tuple:
        """Write one output; lines of our own schema are copied as they are. Returns what fill_file does."""
        if self.args.target == "ours" and path.suffix == ".jsonl":
            with open(temporary, "wb") as f:
                f.writelines(self.good.lines(order))
            return len(self.good) if order is None else len(order), 0
        shape = (self.args.target, split, self.args.data_source or "")
        return fill_file(lambda: map(json.loads, self.good.lines(order)), temporary, path.suffix, shape)

    def report(self) -> dict:
        """The report that --json prints."""
        return {
            "kind": self.reader.kind,
            "why": self.reader.why,
            "counts": self.reader.counts,
            "outputs": self.outputs,
            "unread": dict(self.reader.unread),
            "no_answer": {name: count for (name, _), count in self.reader.untaken.items()},
            "errors": self.first_rejected,
            "stats": self.stats.report() if self.args.inspect else {},
        }


def run_command(args) -> int:
    """Do what the arguments ask for; returns the exit code."""
    run = Run(args, settings_of(args))
    run.read()
    counts, rejected = run.reader.counts, run.reader.counts["rejected"]
    only_look = not args.out
    failed = bool(rejected) and args.on_bad == "fail"
    error = BadRows(run.first_rejected, rejected) if failed else None
    if not failed and not (only_look and counts["read"]):
        try:
            run.reader.need_rows()
        except UserError as nothing:
            error = nothing
    if args.out and not error:
        run.write()
    run.reader.say_notes()
    if collapse := run.reader.collapse():
        say(f"warning: {collapse}")
    if args.json:
        report = run.report()
        report["errors"] = report["errors"] or ([{"message": str(error)}] if error else [])
        tell(json.dumps(report))
    else:
        print_summary(run)
    if error:
        say(f"error: {error}")
        return 1 if only_look and failed else error.code
    return int(
        (bool(rejected) and only_look) or (bool(run.reader.unread or run.reader.untaken or collapse) and args.validate)
    )


def print_summary(run: Run) -> None:
    """The report for people."""
    report = run.report()
    tell(f"{report['kind']}: {report['why']}")
    tell(", ".join(f"{count} {name}" for name, count in report["counts"].items()))
    for output in report["outputs"]:
        prompts = f" of {output['prompts']} prompts" if "prompts" in output else ""
        tell(f"wrote {output['path']}: {output['rows']} rows{prompts}")
    stats = report["stats"]
    for name, item in stats.get("fields", {}).items():
        lost = ", looks like a part of the question and is in no prompt" if name in report["unread"] else ""
        tell(f"  {name}: in {item['rows']} rows, {' or '.join(item['types'])}{lost}")
    for name, lengths in stats.get("lengths", {}).items():
        tell(f"  {name}: " + ", ".join(f"{key} {value}" for key, value in lengths.items()))
    if stats:
        tell(f"  duplicates: {stats['duplicates']}; prompts with other answers: {stats['prompts_with_other_answers']}")
        tell(f"  overlap: {', '.join(f'{pair}: {count}' for pair, count in stats['overlap'].items()) or 'none'}")
        for number, example in enumerate(stats["examples"], start=1):
            tell(f"  example {number}: " + "; ".join(f"{name}={value}" for name, value in example.items()))


def main(argv: list[str] | None = None) -> int:
    """Command line entry; returns the exit code."""
    parser = make_command()
    args = parse_flags(parser, argv)
    try:
        return run_command(args)
    except UserError as error:
        message, code = str(error), error.code
    except OSError as error:  # a full disk, a file that vanished
        message, code = f"got {error}; expected files that can be read and written", 2
    if args.json:
        none = {"kind": None, "why": "", "counts": {}, "outputs": [], "stats": {}}
        tell(json.dumps({**none, "errors": [{"message": message}]}))
    say(f"error: {message}")
    return code


if __name__ == "__main__":
    sys.exit(main())
