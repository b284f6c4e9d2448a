"""What is asked of a model: worked examples, templates, token ids; and what was computed before."""

import contextlib
import hashlib
import json
import math
from dataclasses import dataclass, field
from pathlib import Path

from parts.data.chat import TemplateForm, chat_text, joined_text, template_settings
from parts.data.prompts import encode_prompt, encode_text, refusals_told
from parts.foundation.messages import need, say
from parts.foundation.processes import dealt, gather_rows, raised_in_all, world
from parts.rewards.user_code import user_text
from programs.evaluation.rows import given_texts
from programs.evaluation.settings import Config
from programs.evaluation.tasks import Task


@dataclass
class Request:
    """One thing to compute: a completion of `ids`, or the log-prob of `scored` after `ids`."""

    ids: list[int]
    scored: list[int] | None = None
    stops: list[str] = field(default_factory=list)
    limit: int = 0  # most new tokens
    sample: int = 0  # which of the n completions
    prompt: object = None  # text or messages, for servers
    given: str | None = None  # the completion itself, with --completion_column
    cut: bool = False  # the beginning did not fit the context

    def key(self) -> str:
        """What the result depends on, besides model and settings."""
        content = [self.ids, self.scored, self.stops, self.limit, self.sample, self.prompt]
        content += [] if self.given is None else [self.given]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:32]

    def seed(self) -> int:
        """A number that depends on the prompt only."""
        return int(hashlib.sha256(json.dumps([self.ids, self.prompt]).encode()).hexdigest()[:15], 16)


def cut_at(text: str, stops: list[str]) -> str:
    """The text before the first of each stop string, one after the other."""
    for stop in stops:
        text = text.split(stop)[0]
    return text


def add_shots(question, shots: list[tuple], system: str, chat: bool):
    """The prompt with system prompt and worked examples: chat messages with a template, text without."""
    as_text = [(user_text(q) if isinstance(q, list) else q, answer) for q, answer in shots]
    if not chat:
        if isinstance(question, list):  # the form that trainers give to a chat without a template
            question = joined_text(question)
        worked = "".join(f"{q} {answer}\n\n" for q, answer in as_text)
        return (f"{system}\n\n" if system else "") + worked + question
    messages = [dict(m) for m in question] if isinstance(question, list) else [{"role": "user", "content": question}]
    has_system = messages[0]["role"] == "system"
    head = [messages.pop(0)] if has_system else [{"role": "system", "content": system}] if system else []
    for q, answer in as_text:
        head += [{"role": "user", "content": q}, {"role": "assistant", "content": answer}]
    return head + messages


def encode_pair(tokenizer, prompt, choice: str, **template) -> tuple[list[int], list[int]]:
    """(context, continuation) ids; spaces between them belong to the continuation, as tokenizers have them."""
    if isinstance(prompt, list):
        with refusals_told():
            text = chat_text(tokenizer, prompt, **template)
        whole, before = (tokenizer.encode(part, add_special_tokens=False) for part in (text + choice, text.rstrip()))
    else:
        whole, before = (encode_text(tokenizer, part) for part in (f"{prompt} {choice}", prompt.rstrip()))
    return before, whole[len(before) :]


def make_requests(config: Config, task: Task, model, rows: list[dict], shots: list[dict]) -> tuple[list, list, int]:
    """(prompts, requests of each row, how many prompts were cut to fit the context)."""
    if not task.asks:
        pairs = [task.requests(row, model) for row in rows]
        return [task.text(row) for row in rows], [[Request(a, b) for a, b in pair] for pair in pairs], 0
    has_template = bool(model.tokenizer.chat_template) if model.tokenizer else bool(config.base_url)
    fits = has_template or config.chat_template != "on" or config.completion_column
    need(fits, f"got --chat_template on, but {model.source} has none; expected a chat model; try off")
    prompts, requests, cut = [], [], 0
    task.in_turns = chat = has_template and config.chat_template != "off"
    worked, template = [(task.question(row), task.target(row)) for row in shots], template_settings(config)
    form = TemplateForm(model.tokenizer) if chat and model.tokenizer else None
    strings = sum(isinstance(row.get("prompt"), str) for row in rows)
    if chat and strings and config.chat_template == "auto":
        got = f"{strings} of {len(rows)} prompts are strings, sent as user turns through the chat template"
        say(f"note: {got}; for a model trained without --chat, which saw bare strings, use --chat_template off")
    for row in rows:
        question = task.question(row)
        templated = form is not None and form.holds(question)
        got = f"got prompt {str(question)[:80]!r}, which already has the form of the chat template"
        need(not templated or not (worked or config.system_prompt), f"{got}; try without --fewshot and --system_prompt")
        prompts.append(add_shots(question, worked, config.system_prompt, chat and not templated))
        if task.logprobs:
            pairs = [encode_pair(model.tokenizer, prompts[-1], choice, **template) for choice in task.choices(row)[0]]
            cut += any(len(a) + len(b) > model.max_length + 1 for a, b in pairs)
            fits = all(0 < len(b) <= model.max_length for _, b in pairs)
            need(fits, f"got a choice of 0 or over {model.max_length} tokens: {str(task.choices(row)[0])[:200]}")
            requests.append([Request(a, b) for a, b in pairs])
        elif config.completion_column:
            requests.append([Request([], sample=i, given=t) for i, t in enumerate(given_texts(config, row))])
        else:
            requests.append(completions_of(config, task, model, prompts[-1], chat))
            cut += requests[-1][0].cut
    return prompts, requests, cut


def completions_of(config: Config, task: Task, model, prompt, chat: bool) -> list[Request]:
    shared = {"stops": list(dict.fromkeys([*task.stops(chat), *config.stop])), "limit": task.max_new_tokens}
    if not model.tokenizer:
        return [Request([], sample=i, prompt=prompt, **shared) for i in range(config.n)]
    room = (model.max_length or math.inf) - task.max_new_tokens
    need(room > 0, f"got max_new_tokens {task.max_new_tokens} for a context of {model.max_length}; expected less")
    with refusals_told():
        ids = encode_prompt(model.tokenizer, prompt, **template_settings(config)) or [model.prefix_id]
    long = len(ids) > room
    return [Request(ids[-room:] if long else ids, sample=i, cut=long, **shared) for i in range(config.n)]


class ResultCache:
    """Results by request in a JSONL file per model and settings; a killed run finds there what it had."""

    def __init__(self, config: Config, model, kind: str):
        self.rows, self.file, self.hits = {}, None, 0
        if not config.cache or config.completion_column:
            return
        used = {"model": model.hash, "kind": kind, "engine": config.base_url or config.engine}
        used |= {"dtype": str(getattr(model, "dtype", "")), "length": model.max_length}
        used |= {"attention": config.attn_implementation} if config.attn_implementation != "auto" else {}
        used |= {"vllm_args": config.vllm_args} if config.vllm_args else {}
        if kind != "logprob" and config.temperature:
            used |= {name: getattr(config, name) for name in ("temperature", "top_p", "seed")}
        name = hashlib.sha256(json.dumps(used, sort_keys=True).encode()).hexdigest()[:16]
        folder = Path(config.cache_dir or Path(config.output_dir) / "cache")
        folder.mkdir(parents=True, exist_ok=True)
        for path in sorted(folder.glob(f"{kind}-{name}.*.jsonl")):
            self.read(path)
        if world()[1] > 1:
            gather_rows([None])  # all have read before one writes
        self.file = (folder / f"{kind}-{name}.{world()[0]}.jsonl").open("a", encoding="utf-8")
        if self.file.tell():
            self.file.write("\n")  # ends a line that a kill cut short

    def read(self, path: Path) -> None:
        """Take in the whole lines of a cache file."""
        with path.open(encoding="utf-8", newline="\n") as f:
            for line in f:
                with contextlib.suppress(ValueError, KeyError, TypeError):
                    row = json.loads(line)
                    self.rows[row["key"]] = row["output"]

    def add(self, key: str, output: dict) -> None:
        if self.file:
            self.file.write(json.dumps({"key": key, "output": output}) + "\n")
            self.file.flush()

    def close(self) -> None:
        if self.file:
            self.file.close()


def compute(config: Config, model, requests: list[Request], kind: str, title: str) -> tuple[list[dict], int]:
    """(outputs of all requests in order, how many came from the cache); shared out over the processes."""
    from tqdm import tqdm

    cache, (rank, size) = ResultCache(config, model, kind), world()
    keys = [r.key() for r in requests]
    waiting = {key: r for key, r in zip(keys, requests, strict=True) if key not in cache.rows}
    reused, asked = sum(key in cache.rows for key in keys), list(waiting.values())
    sizes = [len(r.ids) + len(r.scored or ()) + r.limit for r in asked]
    local = [asked[i] for i in dealt(sizes, [tuple(r.ids) for r in asked], size)[rank]]
    computed = {}
    bar = tqdm(total=len(local), desc=title, disable=None if rank == 0 else True, smoothing=0.1)

    def done(i: int, output: dict) -> None:
        computed[local[i].key()] = output
        cache.add(local[i].key(), output)
        bar.update()

    with raised_in_all(), bar, contextlib.closing(cache):
        getattr(model, kind)(local, done)
    fresh = {key: output for part in gather_rows([computed]) for key, output in part.items()}
    return [fresh[key] if key in fresh else cache.rows[key] for key in keys], reused
