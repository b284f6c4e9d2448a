"""Completions that were computed before."""

import hashlib
import json
from pathlib import Path

from parts.foundation.messages import UserError
from parts.foundation.processes import dealt, gather_rows
from programs.evaluation.requests import Request
from programs.evaluation.rows import ranks
from programs.evaluation.settings import Config


class ResultCache:
    """Results by request in a JSONL file per model and settings; a killed run finds there what it had."""

    def __init__(self, config: Config, model, kind: str):
        self.rows, self.file, self.hits = {}, None, 0
        if not config.cache or config.completion_column:
            return
        used = {"model": model.hash, "kind": kind, "engine": config.base_url or config.engine}
        used |= {"dtype": str(getattr(model, "dtype", "")), "length": model.max_length}
        attention = config.attn_implementation
        used |= {"attention": attention} if attention != "auto" else {}
        used |= {"vllm_args": config.vllm_args} if config.vllm_args else {}
        if kind != "logprob" and config.temperature:
            used |= {name: getattr(config, name) for name in ("temperature", "top_p", "seed")}
        name = hashlib.sha256(json.dumps(used, sort_keys=True).encode()).hexdigest()[:16]
        folder = Path(config.cache_dir or Path(config.output_dir) / "cache")
        folder.mkdir(parents=True, exist_ok=True)
        for path in sorted(folder.glob(f"{kind}-{name}.*.jsonl")):
            self.read(path)
        if ranks()[1] > 1:
            gather_rows([None])  # all have read before one writes
        self.file = (folder / f"{kind}-{name}.{ranks()[0]}.jsonl").open("a", encoding="utf-8")
        if self.file.tell():
            self.file.write("\n")  # ends a line that a kill cut short

    def read(self, path: Path) -> None:
        """Take in the whole lines of a cache file."""
        with path.open(encoding="utf-8", newline="\n") as f:
            for line in f:
                try:
                    row = json.loads(line)
                    self.rows[row["key"]] = row["output"]
                except (ValueError, KeyError, TypeError):
                    continue

    def add(self, key: str, output: dict) -> None:
        """Write one result."""
        if self.file:
            self.file.write(json.dumps({"key": key, "output": output}) + "\n")
            self.file.flush()

    def close(self) -> None:
        """Close the file."""
        if self.file:
            self.file.close()


def compute(config: Config, model, requests: list[Request], kind: str, title: str) -> tuple[list[dict], int]:
    """(outputs of all requests in order, how many came from the cache); shared out over the processes."""
    from tqdm import tqdm

    cache, (rank, size) = ResultCache(config, model, kind), ranks()
    keys = [r.key() for r in requests]
    waiting = {key: r for key, r in zip(keys, requests, strict=True) if key not in cache.rows}
    reused, asked = sum(key in cache.rows for key in keys), list(waiting.values())
    sizes = [len(r.ids) + len(r.scored or ()) + r.limit for r in asked]
    local = [asked[i] for i in dealt(sizes, [tuple(r.ids) for r in asked], size)[rank]]
    computed, failure = {}, None
    bar = tqdm(total=len(local), desc=title, disable=None if rank == 0 else True, smoothing=0.1)

    def done(i: int, output: dict) -> None:
        computed[local[i].key()] = output
        cache.add(local[i].key(), output)
        bar.update()

    try:
        getattr(model, kind)(local, done)
    except Exception as error:  # the other processes wait for this one: tell them
        plain = size == 1 or isinstance(error, UserError)
        failure = error if plain else UserError(f"process {rank}: {type(error).__name__}: {error}")
    finally:
        bar.close()
        cache.close()
    parts = gather_rows([computed], failure) if size > 1 else [computed]
    if failure:
        raise failure
    fresh = {key: output for part in parts for key, output in part.items()}
    return [fresh[key] if key in fresh else cache.rows[key] for key in keys], reused
