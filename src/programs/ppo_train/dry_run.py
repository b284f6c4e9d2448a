"""--dry_run: settings, batch arithmetic, memory."""

import os

from parts.data.chat import strings_past_template
from parts.data.prompts import load_splits
from parts.environments.play_setup import check_environment_rows, load_with_reward, make_play_setup, playable_rows
from parts.foundation.processes import device_name
from parts.learning.losses import check_loss
from parts.learning.optimizer import learning_rates
from parts.learning.presets import check_config
from parts.networks.models import end_and_pad_ids, load_tokenizer, settle_model, settle_precision, shaped_network
from parts.running.plan import changed_settings, print_plan
from programs.ppo_train.memory import memory_estimate
from programs.ppo_train.models import load_reward
from programs.ppo_train.settings import Config, check_environment


def dry_run(config: Config) -> None:
    """Print batch arithmetic, a memory estimate per process, and the settings that are no defaults, as JSON."""
    import torch

    size = int(os.environ.get("WORLD_SIZE", "1"))
    settle_model(config)
    check_config(config, size)
    check_loss(config)
    check_environment(config)
    settle_precision(config, torch.device(device_name(config)))
    tokenizer = load_tokenizer(config)
    rows, held_out = load_splits(config, tokenizer)
    environments, reward = load_with_reward(config, tokenizer) if config.environment else (None, load_reward(config))
    prompts = [row["prompt"] for row in rows + held_out]
    for row in (rows + held_out)[:: max(1, len(rows))]:
        reward.check_columns(row)
    model = shaped_network(config, config.model)
    parameters = sum(p.numel() for p in model.parameters())
    if environments:
        check_environment_rows(environments, rows + held_out)
        setup = make_play_setup(config, tokenizer, end_and_pad_ids(config, model, tokenizer)[0], environments)
        rows = playable_rows(config, setup, rows, config.data)
        held_out = playable_rows(config, setup, held_out, "held-out prompts")
    lr, critic_lr = learning_rates(config, parameters)
    plan = {
        "batch": {
            "processes": size,
            "steps": config.steps,
            "completions_per_step": config.batch_size,
            "prompts": len(rows),
            "held_out_prompts": len(held_out),
            "longest_prompt_tokens": max(len(row["prompt_ids"]) for row in rows),
            "prompts_past_the_chat_template": strings_past_template(config, tokenizer, prompts),
            "prompts_per_step": config.batch_size // config.group_size,
            "completions": config.steps * config.batch_size,
            "passes_over_the_data": round(config.steps * config.batch_size / config.group_size / len(rows), 2),
            "completions_per_optimizer_step": config.batch_size // config.minibatches,
            "optimizer_steps": config.steps * config.ppo_epochs * config.minibatches,
        },
        "parameters": parameters,
    }
    if environments:
        plan["environment"] = {
            "tools": {kind.name: kind.tool_names for kind in environments.kinds.values()},
            "tool_format": setup.form if isinstance(setup.form, str) else "response template",
            "conversation_tokens": config.conversation_tokens,
        }
    settings = changed_settings(config, lr=lr, critic_lr=critic_lr)
    print_plan(device_name(config), plan, memory_estimate(config, model, rows, size), settings)
