"""The loop of a run and the command line."""

import functools
import sys
import time

from parts.foundation.exit_codes import exit_code, quiet_environment
from parts.foundation.messages import RewardError
from parts.foundation.processes import room_for, start_processes, world
from parts.networks.models import settle_model, settle_precision
from parts.running.checkpoints import find_checkpoint, restore
from parts.running.fit import LOADING, settle_or_refuse
from parts.running.progress import begin_run, grad_scaler, seed_generators
from parts.sampling.sampling import HFEngine
from parts.sampling.sampling_vllm import VllmEngine
from programs.on_policy_distillation.evaluation import DistillationLog, evaluate
from programs.on_policy_distillation.models import load_inputs, load_models, make_optimizer, validate
from programs.on_policy_distillation.plan import print_distillation_plan, sizes_of_run
from programs.on_policy_distillation.settings import Config, parse_config
from programs.on_policy_distillation.step import train_step


def train(config: Config) -> int:
    """Train as configured and return the exit code."""
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
        validate(config, inputs=inputs, models=models)
        optimizer, scaler = make_optimizer(config, models), grad_scaler(config, device)
        state = restore(config, models, optimizer, scaler, checkpoint)
        engine = {"hf": HFEngine, "vllm": VllmEngine}[config.rollout_engine](config, models)

    def evaluate_held_out(step: int) -> tuple[dict, list[dict]]:
        engine.sync(step)
        return evaluate(config, models, engine, inputs.reward, inputs.held_out)

    step = functools.partial(train_step, config, models, engine, inputs.reward, inputs.rows, optimizer, scaler)
    progress = begin_run(config, models, optimizer, scaler, state, started, DistillationLog)
    return progress.run(step, evaluate_held_out if inputs.held_out else None, (RewardError,))


def run(argv: list[str]) -> int:
    """Do what a command line says and return the exit code."""
    config = parse_config(argv)
    quiet_environment(config.rollout_engine == "vllm")
    if config.dry_run:
        print_distillation_plan(config)
        return 0
    return train(config)


def main(argv: list[str] | None = None) -> int:
    """Command line entry; returns the exit code."""
    return exit_code(lambda: run(sys.argv[1:] if argv is None else argv))


if __name__ == "__main__":
    sys.exit(main())
