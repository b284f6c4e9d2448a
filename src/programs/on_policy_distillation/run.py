"""The memory and the plan of a run, its loop, and the command line."""

import functools
import os
import sys
import time

from parts.foundation.exit_codes import exit_code, quiet_environment
from parts.foundation.messages import RewardError
from parts.foundation.processes import device_name, room_for, start_processes, torch, world
from parts.networks.adapters import settle_model
from parts.networks.loading import shaped_network
from parts.networks.models import check_context, settle_precision
from parts.rewards.text_servers import is_server
from parts.running.checkpoints import find_checkpoint, restore
from parts.running.fit import LOADING, Sizes, batch_plan, rollout_sizes, settle_or_refuse, show_plan
from parts.running.memory import memory_of_trainer, network_weights
from parts.running.progress import begin_run, grad_scaler, seed_generators
from parts.sampling.sampling import HFEngine
from parts.sampling.sampling_vllm import VllmEngine
from programs.on_policy_distillation.evaluation import evaluate
from programs.on_policy_distillation.models import load_inputs, load_models, make_optimizer, student_learning_rate
from programs.on_policy_distillation.settings import Config, check_config, parse_config
from programs.on_policy_distillation.step import train_step

STUDENT_BUFFERS = 6  # float32 tensors [tokens, vocabulary] of a piece that exist at once, of both models


def shaped_teacher(config: Config):
    """A local teacher on the meta device; None for a server."""
    return None if is_server(config.teacher) else shaped_network(config, config.teacher)


def sizes_of_run(config: Config, rows: list[dict], processes: int) -> Sizes:
    """What may be chosen by the memory that is free."""
    student, teacher = shaped_network(config, config.model), shaped_teacher(config)
    prompt = max(len(row["prompt_ids"]) for row in rows)
    width = 4 if (config.teacher_precision or config.precision) == "fp32" else 2
    widths = (0.516, width) if config.teacher_in_4bit else (width, 4)
    frozen = {"teacher": network_weights(teacher, *widths) if teacher else 0}

    def estimate(changed: Config) -> dict[str, float]:
        buffers = STUDENT_BUFFERS + 2 * bool(changed.entropy_coef)  # a gradient of its own, and its sum with the other
        return memory_of_trainer(changed, student, prompt, processes, buffers, frozen)

    return rollout_sizes(config, estimate, prompt, processes)


def dry_run(config: Config) -> int:
    """Print batch arithmetic, a memory estimate per process, and the settings that are no defaults, as JSON."""
    size, device = int(os.environ.get("WORLD_SIZE", "1")), device_name(config)
    settle_model(config)
    check_config(config, size)
    settle_precision(config, torch.device(device))
    tokenizer, _, rows, held_out = load_inputs(config)
    networks = {"student": shaped_network(config, config.model), "teacher": shaped_teacher(config)}
    parameters = {name: sum(p.numel() for p in network.parameters()) for name, network in networks.items() if network}
    batch = batch_plan(config, tokenizer, rows, held_out) | {
        "steps": config.steps,
        "completions_per_step": config.batch_size,
        "completions": config.steps * config.batch_size,
        "completions_per_optimizer_step": config.batch_size // config.minibatches,
        "optimizer_steps": config.steps * config.ppo_epochs * config.minibatches,
    }
    plan, lr = {"batch": batch, "parameters": parameters}, student_learning_rate(config, parameters["student"])
    show_plan(config, device, sizes_of_run(config, rows, size), plan, lr=lr)
    return 0


def train(config: Config) -> int:
    started = time.perf_counter()
    settle_model(config)
    device = start_processes(config)
    check_config(config, world()[1])
    settle_precision(config, device)
    seed_generators(config)
    tokenizer, reward, rows, held_out = load_inputs(config)
    checkpoint = find_checkpoint(config)
    settle_or_refuse(config, str(device), sizes_of_run(config, rows, world()[1]))
    with room_for(*LOADING):
        models = load_models(config, device, checkpoint, tokenizer)
        check_context(config, models, rows + held_out)
        optimizer, scaler = make_optimizer(config, models), grad_scaler(config, device)
        state = restore(config, models, optimizer, scaler, checkpoint)
        engine = {"hf": HFEngine, "vllm": VllmEngine}[config.rollout_engine](config, models)

    def evaluate_held_out(step: int) -> tuple[dict, list[dict]]:
        engine.sync(step)
        return evaluate(config, models, engine, reward, held_out)

    step = functools.partial(train_step, config, models, engine, reward, rows, optimizer, scaler)
    progress = begin_run(config, models, optimizer, scaler, state, started)
    return progress.run(step, evaluate_held_out if held_out else None, (RewardError,))


def run(argv: list[str]) -> int:
    config = parse_config(argv)
    quiet_environment(config.rollout_engine == "vllm")
    return dry_run(config) if config.dry_run else train(config)


def main(argv: list[str] | None = None) -> int:
    return exit_code(lambda: run(sys.argv[1:] if argv is None else argv))


if __name__ == "__main__":
    sys.exit(main())
