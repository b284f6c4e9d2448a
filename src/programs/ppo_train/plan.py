"""What a run will need: its memory, the sizes that fit, and --dry_run."""

import os

from parts.foundation.processes import device_name
from parts.learning.advantages import estimator
from parts.learning.optimizer import learning_rates
from parts.networks.models import end_and_pad_ids, settle_model, settle_precision, shaped_network
from parts.running.fit import Sizes, rollout_sizes, show_plan
from parts.running.memory import memory_of_trainer, network_weights
from parts.running.plan import batch_plan, environment_plan
from programs.ppo_train.inputs import load_inputs, validate
from programs.ppo_train.settings import Config

POLICY_BUFFERS = 5  # float32 tensors [tokens, vocabulary] of a piece that exist at once, the gradient's among them


def memory_estimate(config: Config, model, prompt: int, processes: int) -> dict[str, float]:
    """Bytes per process, see `memory_of_trainer`; the critic is counted with the policy's size."""
    own_reference = config.kl_coef and not config.lora_rank
    reference = network_weights(model, 4 if config.precision == "fp32" else 2, 4) if own_reference else 0
    networks = 2 if estimator(config).critic and config.critic == "separate" else 1
    return memory_of_trainer(config, model, prompt, processes, POLICY_BUFFERS, {"reference": reference}, networks)


def sizes_of_run(config: Config, rows: list[dict], processes: int) -> Sizes:
    """What may be chosen by the memory that is free."""
    model, prompt = shaped_network(config, config.model), max(len(row["prompt_ids"]) for row in rows)
    return rollout_sizes(config, lambda changed: memory_estimate(changed, model, prompt, processes), prompt, processes)


def dry_run(config: Config) -> None:
    """Print batch arithmetic, a memory estimate per process, and the settings that are no defaults, as JSON."""
    import torch

    size, device = int(os.environ.get("WORLD_SIZE", "1")), device_name(config)
    settle_model(config)
    validate(config, size)
    settle_precision(config, torch.device(device))
    inputs = load_inputs(config)
    model = shaped_network(config, config.model)
    parameters = sum(p.numel() for p in model.parameters())
    inputs.prepare_play(config, end_and_pad_ids(config, model, inputs.tokenizer)[0])
    rows, completions = inputs.rows, config.steps * config.batch_size
    batch = batch_plan(config, inputs.tokenizer, rows, inputs.held_out) | {
        "steps": config.steps,
        "completions_per_step": config.batch_size,
        "prompts_per_step": config.batch_size // config.group_size,
        "completions": completions,
        "passes_over_the_data": round(completions / config.group_size / len(rows), 2),
        "completions_per_optimizer_step": config.batch_size // config.minibatches,
        "optimizer_steps": config.steps * config.ppo_epochs * config.minibatches,
    }
    plan = {"batch": batch, "parameters": parameters} | environment_plan(config, inputs.setup)
    lr, critic_lr = learning_rates(config, parameters)
    show_plan(config, device, sizes_of_run(config, rows, size), plan, lr=lr, critic_lr=critic_lr)
