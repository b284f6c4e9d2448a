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
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # an engine in a process of its own takes half a minute to start
}
os.environ.update(ENV)

import vllm  # noqa: E402  (it reads some of them as it loads)
from conftest import read_lines  # noqa: E402


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
    return read_lines(folder / "metrics.jsonl")


def prompts_of(models) -> list[list[int]]:
    """A few sums, as token ids."""
    return [models.tokenizer.encode(text) for text in ("12+30=", "7+5=", "99+1=", "34+71=")]


def with_wider_heads(source, target: Path, size: int = 96) -> Path:
    """A Llama's folder written anew with attention heads of `size`: the same function, for vLLM's kernels on a CPU.

    The new dimensions are zeros. Rotary embeddings turn dimension j of either half by theta^(-2j / size): the old ones
    move to where they turn as before. Scores are divided by the root of `size`, so that the queries grow by its ratio.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    old = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    narrow = old.config.head_dim
    ratio, half = size // narrow, narrow // 2
    place = torch.cat([torch.arange(half) * ratio, size // 2 + torch.arange(half) * ratio])
    config = type(old.config).from_dict({**old.config.to_dict(), "head_dim": size})
    new = type(old)(config)
    found = dict(old.state_dict())
    for name, x in found.items():
        if name.endswith(("q_proj.weight", "k_proj.weight", "v_proj.weight", "o_proj.weight")):
            x = x.t() if "o_proj" in name else x  # [heads x size, hidden]
            wide = torch.zeros(len(x) // narrow, size, x.shape[1])
            wide[:, place] = x.view(-1, narrow, x.shape[1]) * ((size / narrow) ** 0.5 if "q_proj" in name else 1.0)
            wide = wide.flatten(0, 1)
            found[name] = wide.t().contiguous() if "o_proj" in name else wide
    new.load_state_dict(found)
    ids = torch.arange(5, 45)[None]
    with torch.no_grad():
        torch.testing.assert_close(new(ids).logits, old(ids).logits, rtol=0, atol=1e-4)
    new.generation_config = old.generation_config
    new.save_pretrained(target)
    AutoTokenizer.from_pretrained(source).save_pretrained(target)
    return target
