"""What a run will need: its memory, the sizes that fit, and --dry_run."""

import os

from parts.foundation.processes import device_name
from parts.networks.models import settle_model, settle_precision, shaped_network
from parts.rewards.text_servers import is_server
from parts.running.fit import Sizes, rollout_sizes, show_plan
from parts.running.memory import memory_of_trainer, network_weights
from parts.running.plan import batch_plan
from programs.on_policy_distillation.models import load_inputs, student_learning_rate, validate
from programs.on_policy_distillation.settings import Config
from programs.on_policy_distillation.teachers import teacher_specs

STUDENT_BUFFERS = 8  # float32 tensors [tokens, vocabulary] of a piece that exist at once, of both models


def local_teachers(config: Config) -> list:
    """The teachers that run in this process, on the meta device."""
    return [shaped_network(config, source) for source in teacher_specs(config).values() if not is_server(source)]


def sizes_of_run(config: Config, rows: list[dict], processes: int) -> Sizes:
    """What may be chosen by the memory that is free."""
    student, teachers = shaped_network(config, config.model), local_teachers(config)
    prompt = max(len(row["prompt_ids"]) for row in rows)
    width = 4 if (config.teacher_precision or config.precision) == "fp32" else 2
    widths = (0.516, width) if config.teacher_in_4bit else (width, 4)
    frozen = {"teachers": sum(network_weights(teacher, *widths) for teacher in teachers)}

    def estimate(changed: Config) -> dict[str, float]:
        return memory_of_trainer(changed, student, prompt, processes, STUDENT_BUFFERS, frozen)

    return rollout_sizes(config, estimate, prompt, processes)


def print_distillation_plan(config: Config) -> None:
    """Print batch arithmetic, a memory estimate per process, and the settings that are no defaults, as JSON."""
    import torch

    size, device = int(os.environ.get("WORLD_SIZE", "1")), device_name(config)
    settle_model(config)
    validate(config, size)
    settle_precision(config, torch.device(device))
    inputs = load_inputs(config)
    networks = [shaped_network(config, config.model), *local_teachers(config)]
    student, *teachers = (sum(p.numel() for p in network.parameters()) for network in networks)
    batch = batch_plan(config, inputs.tokenizer, inputs.rows, inputs.held_out) | {
        "steps": config.steps,
        "completions_per_step": config.batch_size,
        "completions": config.steps * config.batch_size,
        "completions_per_optimizer_step": config.batch_size // config.minibatches,
        "optimizer_steps": config.steps * config.ppo_epochs * config.minibatches,
    }
    plan = {"batch": batch, "parameters": {"student": student, "teachers": teachers}}
    lr = student_learning_rate(config, student)
    show_plan(config, device, sizes_of_run(config, inputs.rows, size), plan, lr=lr)
