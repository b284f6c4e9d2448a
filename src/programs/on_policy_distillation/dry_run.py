"""--dry_run: settings, batch arithmetic, memory."""

import os

from parts.data.chat import strings_past_template
from parts.foundation.processes import device_name
from parts.networks.models import settle_model, settle_precision, shaped_network
from parts.running.fit import settle_sizes
from parts.running.plan import changed_settings, print_plan
from programs.on_policy_distillation.inputs import load_inputs, validate
from programs.on_policy_distillation.memory import local_sources, sizes_of_run
from programs.on_policy_distillation.models import student_learning_rate
from programs.on_policy_distillation.settings import Config, offpolicy_rows


def print_distillation_plan(config: Config) -> None:
    """Print batch arithmetic, a memory estimate per process, and the settings that are no defaults, as JSON."""
    import torch

    size = int(os.environ.get("WORLD_SIZE", "1"))
    settle_model(config)
    validate(config, size)
    settle_precision(config, torch.device(device_name(config)))
    inputs = load_inputs(config)
    rows = inputs.rows
    sizes = sizes_of_run(config, rows, size)
    fit = settle_sizes(config, device_name(config), sizes)
    prompts = [row["prompt"] for row in rows + inputs.held_out]
    networks = {source: shaped_network(config, source) for source in [config.model, *local_sources(config)]}
    counts = {source: sum(p.numel() for p in network.parameters()) for source, network in networks.items()}
    fresh = config.batch_size - offpolicy_rows(config)
    plan = {
        "batch": {
            "processes": size,
            "steps": config.steps,
            "completions_per_step": config.batch_size,
            "prompts": len(rows),
            "held_out_prompts": len(inputs.held_out),
            "longest_prompt_tokens": max(len(row["prompt_ids"]) for row in rows),
            "prompts_past_the_chat_template": strings_past_template(config, inputs.tokenizer, prompts),
            "sampled_completions_per_step": fresh,
            "completions_of_the_data_per_step": offpolicy_rows(config),
            "completions": config.steps * config.batch_size,
            "completions_per_optimizer_step": config.batch_size // config.minibatches,
            "optimizer_steps": config.steps * config.ppo_epochs * config.minibatches,
        },
        "parameters": {"student": counts[config.model], "teachers": [counts[s] for s in local_sources(config)]},
    }
    settings = changed_settings(config, lr=student_learning_rate(config, counts[config.model]))
    print_plan(device_name(config), plan, sizes.estimate(config), settings, fit.line)
