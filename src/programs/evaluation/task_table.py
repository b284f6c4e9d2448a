"""Tasks by name."""

import os
from pathlib import Path

from parts.data.chat import template_settings
from parts.foundation.messages import need, suggest
from parts.foundation.settings import check_numbers
from programs.evaluation.environment_task import EnvironmentTask
from programs.evaluation.own_tasks import Custom, RewardTask
from programs.evaluation.run import evaluation_template
from programs.evaluation.scored_tasks import MultipleChoice, Perplexity
from programs.evaluation.settings import Config, check_environment
from programs.evaluation.tasks import Code, Generation, Math, Task


def check_choices(config: Config) -> None:
    """Raise UserError for settings that cannot work."""
    check_numbers(config)
    template = evaluation_template(config)
    got = f"got chat_template {template!r}, which is no file; expected auto, on, off, or a file with a Jinja template"
    need(not template or Path(template).is_file(), got)
    need(
        not (template and config.base_url),
        "got --chat_template FILE with --base_url; expected the server's own; try auto",
    )
    template_settings(config)
    need(config.top_p <= 1, f"got top_p {config.top_p}; expected more than 0, at most 1; try 0.95")
    greedy = config.n > 1 and not config.temperature and not config.completion_column
    need(not greedy, f"got n {config.n} with temperature 0, so all alike; expected sampling; try --temperature 0.8")
    need(len(config.model) < 3, f"got {len(config.model)} models; expected one, or two to compare")
    need(
        len(config.compare) in (0, 2),
        f"got --compare with {len(config.compare)} files; expected two results.json; try --compare BEFORE AFTER",
    )
    need(config.task or config.compare, f"got no --task; expected one of {', '.join(TASKS)}; try --task math")
    need(all(config.stop), "got an empty --stop; expected text")
    check_environment(config)
    need(not (config.base_url and len(config.model) != 1), "got --base_url; expected one --model, the server's name")
    http = config.base_url.startswith(("http://", "https://")) or not config.base_url
    need(http, f"got base_url {config.base_url!r}; expected http:// or https:// before it; try http://HOST:PORT/v1")
    text, path = config.system_prompt, Path(config.system_prompt)
    meant = path.is_dir() or (len(text.split()) == 1 and path.suffix in (".txt", ".md", ".jinja"))
    got = f"got system_prompt {text!r}, which is no file; expected text, or a file that holds it"
    need(not text or not meant or path.is_file(), f"{got}; try the path from here, {Path.cwd()}")
    local = {"--base_url": config.base_url, "--engine vllm": config.engine == "vllm"}
    idle = config.vllm_args and (config.engine != "vllm" or config.base_url)
    away = config.attn_implementation != "auto" and (config.engine == "vllm" or config.base_url)
    need(not away, "got --attn_implementation without --engine hf, which alone reads it; try to leave it out")
    need(not idle, "got --vllm_args without vLLM in this process; try --engine vllm, or the server's own flags")
    several = int(os.environ.get("WORLD_SIZE", "1")) > 1
    for flag, given in local.items():
        need(not (given and several), f"got {flag} under torchrun; expected one process; try without torchrun")


TASKS = {
    kind.name: kind
    for kind in (Generation, Math, Code, Perplexity, MultipleChoice, RewardTask, Custom, EnvironmentTask)
}


def make_task(text: str, config: Config) -> Task:
    """The task of a --task flag."""
    name = text.partition(":")[0]
    need(name in TASKS, f"got task {name!r}; expected one of {', '.join(TASKS)}{suggest(name, list(TASKS))}")
    return TASKS[name](text, config)
