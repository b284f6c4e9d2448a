"""The memory and the plan of a run, its loop, and the command line."""

import functools
import os
import sys
import time

from parts.environments.environments import EnvironmentFault
from parts.foundation.exit_codes import exit_code, quiet_environment
from parts.foundation.messages import RewardError
from parts.foundation.processes import device_name, room_for, start_processes, torch, world
from parts.learning.advantages import estimator
from parts.learning.optimizer import learning_rates
from parts.networks.adapters import settle_model
from parts.networks.loading import shaped_network
from parts.networks.models import settle_precision
from parts.networks.tokenizers import end_and_pad_ids
from parts.running.checkpoints import find_checkpoint, restore
from parts.running.fit import LOADING, Sizes, batch_plan, environment_plan, rollout_sizes, settle_or_refuse, show_plan
from parts.running.memory import memory_of_trainer, network_weights
from parts.running.progress import begin_run, grad_scaler, seed_generators
from parts.sampling.sampling import HFEngine
from parts.sampling.sampling_vllm import VllmEngine
from programs.ppo_train.models import check_lengths, load_inputs, load_models, make_optimizer, validate
from programs.ppo_train.rollout import Sampler, evaluate
from programs.ppo_train.settings import Config, parse_config
from programs.ppo_train.step import train_step

POLICY_BUFFERS = 4  # float32 tensors [tokens, vocabulary] of a piece that exist at once, the gradient's among them


def memory_estimate(config: Config, model, prompt: int, processes: int) -> dict[str, float]:
    """Bytes per process, see `memory_of_trainer`; the critic is counted with the policy's size."""
    own_reference = config.kl_coef and not config.lora_rank
    reference = network_weights(model, 4 if config.precision == "fp32" else 2, 4) if own_reference else 0
    networks = 2 if estimator(config).critic and config.critic == "separate" else 1
    buffers = POLICY_BUFFERS + bool(config.entropy_coef)  # through which a gradient flows, too
    return memory_of_trainer(config, model, prompt, processes, buffers, {"reference": reference}, networks)


def sizes_of_run(config: Config, rows: list[dict], processes: int) -> Sizes:
    """What may be chosen by the memory that is free."""
    model, prompt = shaped_network(config, config.model), max(len(row["prompt_ids"]) for row in rows)
    return rollout_sizes(config, lambda changed: memory_estimate(changed, model, prompt, processes), prompt, processes)


def dry_run(config: Config) -> int:
    """Print batch arithmetic, a memory estimate per process, and the settings that are no defaults, as JSON."""
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
    return 0


def train(config: Config) -> int:
    started = time.perf_counter()
    settle_model(config)
    device = start_processes(config)
    validate(config, world()[1])
    settle_precision(config, device)
    seed_generators(config)
    inputs = load_inputs(config)
    checkpoint = find_checkpoint(config)
    settle_or_refuse(config, str(device), sizes_of_run(config, inputs.rows, world()[1]))
    with room_for(*LOADING):
        models = load_models(config, device, checkpoint, inputs.tokenizer)
        inputs.prepare_play(config, models.eos_ids)
        check_lengths(config, inputs, models)
        optimizer, scaler = make_optimizer(config, models), grad_scaler(config, device)
        state = restore(config, models, optimizer, scaler, checkpoint)
        engine = {"hf": HFEngine, "vllm": VllmEngine}[config.rollout_engine](config, models)
    sampler = Sampler(config, models, engine, inputs.reward, inputs.rows, state, inputs.sample)

    def evaluate_held_out(step: int) -> tuple[dict, list[dict]]:
        engine.sync(step)
        return evaluate(config, models, engine, inputs.reward, inputs.held_out, inputs.sample)

    step = functools.partial(train_step, config, models, sampler, optimizer, scaler)
    progress = begin_run(config, models, optimizer, scaler, state, started)
    return progress.run(step, evaluate_held_out if inputs.held_out else None, (RewardError, EnvironmentFault))


def run(argv: list[str]) -> int:
    config = parse_config(argv)
    quiet_environment(config.rollout_engine == "vllm")
    return dry_run(config) if config.dry_run else train(config)


def main(argv: list[str] | None = None) -> int:
    return exit_code(lambda: run(sys.argv[1:] if argv is None else argv))


if __name__ == "__main__":
    sys.exit(main())
