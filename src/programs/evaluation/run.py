"""Running the tasks."""

import dataclasses
import hashlib
import json
import math
import time
from pathlib import Path

from parts.data.chat import TemplateForm, template_settings
from parts.data.question_parts import warn_unread
from parts.foundation.messages import UserError, need, say
from parts.reading.paired_tests import summarize
from parts.running.output_folder import versions, write_text
from programs.evaluation.cache import compute
from programs.evaluation.environment_task import EnvironmentTask
from programs.evaluation.prompts import add_shots, encode_pair, encode_rendered
from programs.evaluation.report import print_metrics
from programs.evaluation.rows_and_siblings import ranks, rows_of
from programs.evaluation.scored_tasks import Perplexity
from programs.evaluation.settings import Config
from programs.evaluation.tasks import Request, Task
from programs.evaluation.trained_rows import count_trained


def task_rows(config: Config, task: Task) -> tuple[list[dict], list[dict]]:
    """(rows to evaluate, rows for worked examples), checked."""
    source = task.settings["data"] or config.data
    rows, shots = rows_of(source), []
    if config.fewshot and type(task) is not Perplexity:
        same_rows = not config.fewshot_data
        pool = rows if same_rows else rows_of(config.fewshot_data, "--fewshot_data")
        need(
            len(pool) >= config.fewshot + same_rows,
            f"got {len(pool)} rows; expected more than --fewshot {config.fewshot}",
        )
        shots, count = pool[: config.fewshot], len(rows)
        rows = rows[config.fewshot :] if same_rows else [row for row in rows if row not in shots]
        if same_rows:
            say(f"{task.label}: the first {config.fewshot} rows are the worked examples and not evaluated")
        elif len(rows) < count:
            say(f"{task.label}: {count - len(rows)} rows are worked examples and not evaluated")
            need(rows, "got no rows but the worked examples; expected others; try another --fewshot_data")
    limit = task.settings["limit"] or config.limit
    rows = rows[:limit] if limit else rows
    for number, row in enumerate(rows, start=1 + config.fewshot * (not config.fewshot_data)):
        try:
            task.check_row(row)
            if type(task) is not Perplexity:
                task.question(row)
            if config.completion_column:
                given_texts(config, row)
        except UserError as error:
            raise type(error)(f"{source}, row {number}: {error}") from None
    if type(task) is not Perplexity:
        warn_unread(source, [(task.unused(row), task.question(row)) for row in rows])
    return rows, shots


def given_texts(config: Config, row: dict) -> list[str]:
    """The completions in --completion_column: a text or a list of them."""
    given = row.get(config.completion_column)
    texts = [given] if isinstance(given, str) else given
    good = isinstance(texts, list) and texts and all(isinstance(text, str) for text in texts)
    need(good, f"got {str(given)[:60]!r} in column {config.completion_column!r}; expected text or a list of texts")
    return texts


def evaluation_template(config: Config) -> str:
    """The file of --chat_template FILE; "" for auto, on and off."""
    return "" if config.chat_template in ("auto", "on", "off") else config.chat_template


def use_template(config: Config, model) -> bool:
    """Whether prompts go through the chat template; for a server, whether they go as messages."""
    has = bool(model.tokenizer.chat_template) if model.tokenizer else config.chat_template == "on"
    if config.base_url:
        return config.chat_template != "off"
    need(
        has or config.chat_template != "on" or config.completion_column,
        f"got --chat_template on, but {model.source} has none; expected a chat model; try --chat_template off",
    )
    return has and config.chat_template != "off"


def make_requests(config: Config, task: Task, model, rows: list[dict], shots: list[dict]) -> tuple[list, list, int]:
    """(prompts, requests of each row, how many prompts were cut to fit the context)."""
    chat, prompts, requests, cut = use_template(config, model), [], [], 0
    worked, template = [(task.question(row), task.target(row)) for row in shots], template_settings(config)
    limit = task.settings["max_new_tokens"] or config.max_new_tokens
    stops = list(dict.fromkeys([*task.stops(chat), *config.stop]))
    room = (model.max_length or math.inf) - limit
    if not task.logprobs:
        need(room > 0, f"got max_new_tokens {limit} for a context of {model.max_length}; expected less")
    form = TemplateForm(model.tokenizer) if chat and model.tokenizer else None
    for row in rows:
        if type(task) is Perplexity:
            prompts.append(task.text(row))
            requests.append([Request(ids=context, scored=scored) for context, scored in task.requests(row, model)])
            continue
        question = task.question(row)
        templated = form is not None and form.holds(question)
        need(
            not templated or not (worked or config.system_prompt),
            f"got prompt {question[:80]!r}, which is in the chat template's form already, with worked examples or a "
            "system prompt; expected chat messages or plain text; try without --fewshot and --system_prompt",
        )
        prompt = add_shots(task, question, worked, config, chat and not templated)
        prompts.append(prompt)
        if task.logprobs:
            pairs = [encode_pair(model.tokenizer, prompt, choice, **template) for choice in task.choices(row)[0]]
            cut += any(len(a) + len(b) > model.max_length + 1 for a, b in pairs)
            fits = all(0 < len(b) <= model.max_length for _, b in pairs)
            need(fits, f"got a choice of no or more than {model.max_length} tokens: {str(task.choices(row)[0])[:200]}")
            requests.append([Request(ids=a, scored=b) for a, b in pairs])
        elif config.completion_column:
            requests.append([Request([], sample=i, given=t) for i, t in enumerate(given_texts(config, row))])
        else:
            ids = encode_rendered(model.tokenizer, prompt, **template) or [model.prefix_id] if model.tokenizer else []
            long = len(ids) > room
            cut += long
            ids = ids[-room:] if long else ids
            shared = {"stops": stops, "limit": limit, "prompt": None if model.tokenizer else prompt, "cut": long}
            requests.append([Request(ids=ids, sample=i, **shared) for i in range(config.n)])
    return prompts, requests, cut


def run_task(config: Config, task: Task, model, rows: list[dict], shots: list[dict]) -> tuple[dict, list[dict]]:
    """(results of one task, its samples)."""
    if task.plays:
        return play_task(config, task, model, rows)
    need(
        model.can_logprobs or not task.logprobs,
        f"got task {task.name} with {model.source}; expected a model whose log-probs can be read; try --engine hf",
    )
    started = time.perf_counter()
    prompts, nested, cut = make_requests(config, task, model, rows, shots)
    if cut:
        say(f"warning: {task.label}: {cut} of {len(rows)} prompts are longer than the context and lost their beginning")
    encoded = time.perf_counter()
    before = model.tokens
    flat = [request for group in nested for request in group]
    if config.completion_column:
        outputs = [{"text": r.given, "ids": [], "tokens": None, "finish": "given"} for r in flat]
        reused = 0
    else:
        outputs, reused = compute(config, model, flat, "logprob" if task.logprobs else "generate", task.label[:40])
    computed = time.perf_counter()
    parts = iter(outputs)
    grouped = [[next(parts) for _ in group] for group in nested]
    if ranks()[0] != 0:
        return {}, []
    records, values = task.score(rows, grouped)
    scored = time.perf_counter()
    # a given completion is no part of a row's name: two files, or two columns, of completions have the same rows
    about = {
        "prompts_cut": cut,
        "from_cache": reused,
        "seconds": {"encode": encoded - started, "compute": computed - encoded, "score": scored - computed},
        "tokens_per_second": (model.tokens - before) / max(1e-9, computed - encoded),
    }
    result = result_of(config, task, prompts if config.completion_column else rows, values, about)
    return result, samples_of(task, zip(rows, prompts, result["keys"], grouped, records, strict=True))


def play_task(config: Config, task: EnvironmentTask, model, rows: list[dict]) -> tuple[dict, list[dict]]:
    """`run_task` for conversations."""
    started, before = time.perf_counter(), model.tokens
    examples, records, reused = task.play(model, rows)
    if ranks()[0] != 0:
        return {}, []
    seconds = time.perf_counter() - started
    about = {
        "prompts_cut": 0,
        "rows_left_out": len(rows) - len(examples),
        "from_cache": reused,
        "seconds": {"play": seconds},
        "tokens_per_second": (model.tokens - before) / max(1e-9, seconds),
    }
    played = [example["row"] for example in examples]
    result = result_of(config, task, played, task.values_of(records), about)
    prompts = [example["prompt"] for example in examples]
    shown = [
        [{k: v for k, v in r.items() if k not in ("text", "finish", "tokens")} for r in outputs] for outputs in records
    ]
    return result, samples_of(task, zip(played, prompts, result["keys"], records, shown, strict=True))


def result_of(config: Config, task: Task, named: list, values: dict, about: dict) -> dict:
    """What results.json has of a task; `named` are the rows, or what they are told apart by."""
    return {
        "metrics": {name: summarize(v, config.bootstrap, config.seed) for name, v in values.items()},
        "definition": task.definition,
        "rows": len(named),
        **about,
        "keys": unique_keys([json.dumps(x, sort_keys=True, default=str) for x in named]),
        "values": {name: dataclasses.asdict(v) for name, v in values.items()},
    }


def samples_of(task: Task, scored) -> list[dict]:
    """What samples.jsonl has of each (row, prompt, key, outputs, records)."""
    samples = []
    for row, prompt, key, outputs, records in scored:
        for number, record in enumerate(records):
            output = outputs[number] if not task.logprobs else {}
            shown = {"task": task.label, "key": key, "id": row.get("id", row.get("task_id")), "sample": number}
            shown |= {"prompt": prompt, "completion": output.get("text"), "finish": output.get("finish")}
            samples.append(shown | {"tokens": output.get("tokens"), **record})
    return samples


def unique_keys(texts: list[str]) -> list[str]:
    """A short hash of each row, so that two runs find their common rows; repeats are numbered."""
    seen, keys = {}, []
    for text in texts:
        key = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
        seen[key] = seen.get(key, 0) + 1
        keys.append(key if seen[key] == 1 else f"{key}.{seen[key]}")
    return keys


def evaluate(config: Config, tasks: list[tuple], model, folder: Path) -> dict:
    """Run all tasks on one model, write its files, and return what results.json holds."""
    started, results, samples = time.perf_counter(), {}, []
    trained = count_trained(model.source, [(task, rows) for task, rows, _ in tasks])
    for task, rows, shots in tasks:
        results[task.label], shown = run_task(config, task, model, rows, shots)
        samples += shown
    for label, count in trained.items() if ranks()[0] == 0 else ():
        results[label]["trained_rows"] = count
    about = {"name": model.source, "hash": model.hash, "parameters": model.parameters, "context": model.max_length}
    about |= {"dtype": str(getattr(model, "dtype", "unknown")), "notes": model.notes}
    seconds = {"load": model.load_s, "all": time.perf_counter() - started + model.load_s}
    report = {"settings": dataclasses.asdict(config), "versions": versions(), "model": about, "seconds": seconds}
    report |= {"tasks": results}
    if ranks()[0] == 0:
        folder.mkdir(parents=True, exist_ok=True)
        write_text(folder / "samples.jsonl", "".join(json.dumps(s, ensure_ascii=True) + "\n" for s in samples))
        write_text(folder / "results.json", json.dumps(report, indent=1, allow_nan=False))
        print_metrics(report)
    return report
