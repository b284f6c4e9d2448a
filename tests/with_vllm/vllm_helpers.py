"""What the tests of vLLM share: engines that live as long as this process, and how a run's metrics are read."""

import functools
import json
import os
from pathlib import Path

# one thread and little memory; to compile takes minutes on a CPU, so that every engine here runs eagerly
ENV = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
}
os.environ.update(ENV)

import vllm  # noqa: E402  (it reads some of them as it loads)


@functools.cache
def share_engines() -> None:
    """Let runs in this process that ask for the same engine have the same one: each copies its weights into it."""
    build, made = vllm.LLM, {}

    def llm(**settings):
        key = json.dumps(settings, sort_keys=True, default=str)
        if key not in made:
            made[key] = build(**settings)
        return made[key]

    vllm.LLM = llm


share_engines()

SIZES = ["--batch_size=32", "--max_prompt_tokens=40", "--max_new_tokens=24", "--plot_every=0"]
SAMPLED = [*SIZES, "--rollout_engine=vllm", "--temperature=0.8", "--check_sync=1"]


def metrics(folder: Path) -> list[dict]:
    """The lines of a run's metrics.jsonl."""
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def untimed(folder: Path) -> list[dict]:
    """Metrics without what the clock decides."""
    return [
        {k: v for k, v in line.items() if not k.startswith("time/") and "tokens_per_s" not in k}
        for line in metrics(folder)
    ]


def prompts_of(models) -> list[list[int]]:
    """A few sums, as token ids."""
    return [models.tokenizer.encode(text) for text in ("12+30=", "7+5=", "99+1=", "34+71=")]
