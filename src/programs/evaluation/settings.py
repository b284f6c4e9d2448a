"""Settings."""

import os
from dataclasses import dataclass
from pathlib import Path

from parts.data.chat import template_settings
from parts.environments.play_setup import TURN_SETTINGS, check_idle, check_room
from parts.foundation.bundle import EMBEDDED_MODEL
from parts.foundation.messages import need
from parts.foundation.settings import check_values, in_order, parse_settings, setting
from parts.learning.trainer_settings import ConversationSettings
from parts.networks.loading import ATTENTION_KINDS


@in_order(task="", engine="tool_format")
@dataclass
class Config(ConversationSettings):
    """All settings and their defaults; every field is a flag and a key of --config."""

    # what
    task: list[str] = setting([], "NAME[:option=value,…], repeatable; see above", section="what is evaluated")
    model: list[str] = setting([], f"folder, adapter folder or hub id; two are compared (default: {EMBEDDED_MODEL})")
    data: str = setting("", "rows to evaluate on: file, folder, or hub id[:config][@split]")
    limit: int = setting(0, "use only the first rows (0: all)")
    compare: list[str] = setting(
        [], "BEFORE AFTER, or one file of two models: compare results of any program; no model runs", several=True
    )
    completion_column: str = setting("", "grade this column of the data instead of a model's completions")
    output_dir: str = setting("runs/evaluation", "folder for results.json, samples.jsonl and the cache")
    # prompt
    fewshot: int = setting(0, "worked examples before each prompt", section="prompt and rewards")
    fewshot_data: str = setting(
        "", "file whose first rows are the worked examples (default: --data; these rows are then not evaluated)"
    )
    chat_template: str = setting("auto", "auto: the model's if it has one; on, off, or a FILE with a template")
    chat_template_kwargs: str = setting("", 'JSON object for the chat template, such as {"enable_thinking": false}')
    system_prompt: str = setting("", "text, or a file with it")
    reward: list[str] = setting([], "FILE.py:function[*weight] for the tasks reward and environment, repeatable")
    reward_timeout: float = setting(600.0, "seconds for one call of an async reward (0: no limit)")
    reward_concurrency: int = setting(32, "calls of async rewards at once, in each process", positive=True)
    reward_retries: int = setting(2, "further calls after a lost connection, a time limit or HTTP 408, 425, 429, 5xx")
    # sampling
    n: int = setting(1, "completions per prompt", positive=True, section="sampling")
    temperature: float = setting(0.0, "0 is greedy")
    top_p: float = setting(1.0, "sample from the smallest set of tokens with this probability", positive=True)
    max_new_tokens: int = setting(256, "longest completion", positive=True)
    stop: list[str] = setting([], "string that ends a completion, repeatable; added to the task's own")
    seed: int = setting(0, "seed of sampling and bootstrap")
    # conversations
    max_prompt_tokens: int = setting(
        512, "longer prompts of conversations are left out, and counted", positive=True, section="conversations"
    )
    # engine
    engine: str = setting("hf", "engine that runs the model", ["hf", "vllm"], section="engine")
    base_url: str = setting("", "OpenAI-compatible server, such as http://localhost:8000/v1 (key: OPENAI_API_KEY)")
    base_model: str = setting("", "base model of an adapter folder (default: the one it names)")
    concurrency: int = setting(16, "requests to --base_url at a time", positive=True)
    precision: str = setting(
        "auto", "auto: bf16 if the CUDA GPU supports it, else fp32", ["auto", "fp32", "bf16", "fp16"]
    )
    attn_implementation: str = setting(
        "auto", "transformers' attention implementation; auto: its own choice", lambda: list(ATTENTION_KINDS)
    )
    device: str = setting("auto", "auto (a CUDA GPU, else the CPU), cpu, cuda, cuda:N, or mps, which is untested")
    threads: str = setting("auto", "CPU threads: a number, or auto (fewer if other processes use the cores)")
    batch_tokens: int = setting(
        32768, "tokens per batch, with completions; halved when memory runs out", positive=True, auto=True
    )
    batch_size: int = setting(0, "most sequences per batch (0: as many as batch_tokens allows)")
    max_length: int = setting(0, "context in tokens (0: the model's)")
    vllm_memory: float = setting(0.9, "share of GPU memory that vLLM may take")
    vllm_args: list[str] = setting([], "key=value …: any other argument of vLLM's engine", several=True)
    cache: bool = setting(True, "reuse earlier results from the cache, which also resumes a killed run")
    cache_dir: str = setting("", "folder of the cache (default: OUTPUT_DIR/cache)")
    # report
    bootstrap: int = setting(2000, "bootstrap samples", positive=True, section="report")

    # what the parts read and this program does not offer
    rollout_batch_size = 10**9

    def __post_init__(self):
        if self.environment and "environment" not in [text.partition(":")[0] for text in self.task]:
            self.task = [*self.task, "environment"]

    @property
    def template_file(self) -> str:
        """The file of --chat_template FILE; "" for auto, on and off."""
        return "" if self.chat_template in ("auto", "on", "off") else self.chat_template


def check_choices(config: Config) -> None:
    """Raise UserError for settings that cannot work."""
    c, url, served = config, config.base_url, config.engine == "vllm" or config.base_url
    check_values(c)
    template_settings(c)
    check_environment(c)
    text, path = c.system_prompt, Path(c.system_prompt)
    is_path = path.is_dir() or (len(text.split()) == 1 and path.suffix in (".txt", ".md", ".jinja"))
    several = int(os.environ.get("WORLD_SIZE", "1")) > 1
    wrong = {
        f"chat_template {c.template_file!r}, which is not a file; expected auto, on, off, or a template file": (
            c.template_file and not Path(c.template_file).is_file()
        ),
        "--chat_template FILE with --base_url; expected the server's own; try auto": c.template_file and url,
        f"top_p {c.top_p}; expected more than 0, at most 1; try 0.95": c.top_p > 1,
        f"n {c.n} with temperature 0, at which all completions are equal; try --temperature 0.8": (
            c.n > 1 and not c.temperature and not c.completion_column
        ),
        f"{len(c.model)} models; expected one, or two to compare": len(c.model) > 2,
        f"{len(c.compare)} paths after --compare; expected one or two; try --compare BEFORE AFTER": len(c.compare) > 2,
        "an empty --stop; expected text": not all(c.stop),
        "--base_url without one --model; expected the name that the server gives it": url and len(c.model) != 1,
        f"base_url {url!r}; expected http:// or https:// before it; try http://HOST:PORT/v1": (
            url and not url.startswith(("http://", "https://"))
        ),
        f"system_prompt {text!r}, which is not a file; expected text, or a file with it; try the path from here": (
            text and is_path and not path.is_file()
        ),
        "--attn_implementation, which only --engine hf reads; try leaving it out": (
            c.attn_implementation != "auto" and served
        ),
        "--vllm_args without vLLM in this process; try --engine vllm, or the server's own flags": (
            c.vllm_args and (c.engine != "vllm" or url)
        ),
        "--base_url or --engine vllm under torchrun; expected one process; try without torchrun": several and served,
    }
    for message, is_so in wrong.items():
        need(not is_so, f"got {message}")


def check_environment(config: Config) -> None:
    """Raise UserError for settings that contradict an environment, or do nothing without one."""
    c = config
    check_idle(c, bool(c.environment), (*TURN_SETTINGS, "max_prompt_tokens"))
    if not c.environment:
        return
    in_data = "expected the data's prompts as they are; try messages in the column prompt"
    refused = {
        "base_url": "expected a model that takes token ids; try its folder as --model, or --engine vllm",
        "completion_column": "but a conversation needs a model; try --model",
        "stop": "expected answers that end at the end token; try a lower --max_new_tokens",
        "fewshot": in_data,
        "system_prompt": in_data,
    }
    for name, why in refused.items():
        need(not getattr(c, name), f"got --environment with --{name}, {why}")
    templated = c.chat_template != "off"
    need(templated, "got --environment with --chat_template off; expected turns; try --chat_template auto")
    check_room(c, c.max_prompt_tokens)


def parse_config(argv: list[str]):
    return parse_settings(argv, Config, __doc__)
