"""What comes after the warm start: final/, and the command of the RL run."""

import shlex
from pathlib import Path

from parts.foundation.bundle import BUNDLE, HERE
from parts.running.checkpoints import export
from programs.warm_start.settings import Config
from programs.warm_start.workshop import Workshop

SHARED = (
    "data",
    "eval_data",
    "prompt_column",
    "chat",
    "chat_template",
    "chat_template_kwargs",
    "reward",
    "temperature",
)
NAMES = {  # this program's setting: ppo_train's, grpo_train's
    "max_prompt_tokens": ("max_prompt_tokens", "max_prompt_length"),
    "max_new_tokens": ("max_new_tokens", "max_completion_length"),
    "group_size": ("group_size", "num_generations"),
}


def script_path(name: str) -> str:
    """A sibling of this script, in the bundle or beside a copy; else its name alone."""
    places = (HERE.parent, BUNDLE / "scripts")
    return next((str(place / f"{name}.py") for place in places if (place / f"{name}.py").is_file()), f"{name}.py")


def rl_command(config: Config, model: str, trainer: str) -> str:
    """The command that goes on with a model: the same data, rewards, template and lengths."""
    usual, words = type(config)(), ["python", script_path(trainer)]
    words += ["--algorithm", "grpo"] if trainer == "ppo_train" else []
    words += ["--model", model]
    for name in (*SHARED, *NAMES):
        value = getattr(config, name)
        if value == getattr(usual, name) and name != "max_new_tokens":
            continue
        flag = NAMES[name][trainer == "grpo_train"] if name in NAMES else name
        for one in value if isinstance(value, list) else [value]:
            words += [f"--{flag}"] if one is True else [f"--{flag}", str(one)]
    return shlex.join(
        [*words, "--output_dir", str(Path(config.output_dir).with_name(f"{Path(config.output_dir).name}_rl"))]
    )


def hand_over(shop: Workshop, number: int) -> str:
    """Write final/ from the policy after a round; returns the model that RL goes on with."""
    if not shop.policy_folder(number):
        return shop.config.model
    final = shop.folder / "final"
    if not final.exists():
        export(shop.config, shop.load(number), final)
        shop.release()  # adapters are merged, and the weights may have another dtype
    return str(final)
