"""--dry_run: settings, batch arithmetic, memory."""

import os

from parts.data.chat import strings_past_template
from parts.foundation.processes import device_name
from parts.learning.optimizer import learning_rates
from parts.networks.models import end_and_pad_ids, settle_model, settle_precision, shaped_network
from parts.running.fit import settle_sizes
from parts.running.plan import changed_settings, print_plan
from programs.ppo_train.inputs import load_inputs, validate
from programs.ppo_train.memory import sizes_of_run
from programs.ppo_train.settings import Config


def dry_run(config: Config) -> None:
    """Print batch arithmetic, a memory estimate per process, and the settings that are no defaults, as JSON."""
    import torch

    size = int(os.environ.get("WORLD_SIZE", "1"))
    settle_model(config)
    validate(config, size)
    settle_precision(config, torch.device(device_name(config)))
    inputs = load_inputs(config)
    prompts = [row["prompt"] for row in inputs.rows + inputs.held_out]
    model = shaped_network(config, config.model)
    parameters = sum(p.numel() for p in model.parameters())
    inputs.prepare_play(config, end_and_pad_ids(config, model, inputs.tokenizer)[0])
    rows, setup = inputs.rows, inputs.setup
    sizes = sizes_of_run(config, rows, size)
    fit = settle_sizes(config, device_name(config), sizes)
    lr, critic_lr = learning_rates(config, parameters)
    plan = {
        "batch": {
            "processes": size,
            "steps": config.steps,
            "completions_per_step": config.batch_size,
            "prompts": len(rows),
            "held_out_prompts": len(inputs.held_out),
            "longest_prompt_tokens": max(len(row["prompt_ids"]) for row in rows),
            "prompts_past_the_chat_template": strings_past_template(config, inputs.tokenizer, prompts),
            "prompts_per_step": config.batch_size // config.group_size,
            "completions": config.steps * config.batch_size,
            "passes_over_the_data": round(config.steps * config.batch_size / config.group_size / len(rows), 2),
            "completions_per_optimizer_step": config.batch_size // config.minibatches,
            "optimizer_steps": config.steps * config.ppo_epochs * config.minibatches,
        },
        "parameters": parameters,
    }
    if setup:
        plan["environment"] = {
            "tools": {kind.name: kind.tool_names for kind in setup.environments.kinds.values()},
            "tool_format": setup.form if isinstance(setup.form, str) else "response template",
            "conversation_tokens": config.conversation_tokens,
        }
    settings = changed_settings(config, lr=lr, critic_lr=critic_lr)
    print_plan(device_name(config), plan, sizes.estimate(config), settings, fit.line)
