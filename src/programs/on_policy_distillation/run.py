"""The loop of a run and the command line."""

import functools
import random
import sys
import time
from pathlib import Path

from parts.data.prompts import load_splits
from parts.foundation.exit_codes import exit_code, quiet_environment
from parts.foundation.messages import RewardError
from parts.foundation.processes import start_processes, world
from parts.networks.models import check_context, load_tokenizer, settle_model, settle_precision
from parts.running.checkpoints import export, find_checkpoint, restore, save_checkpoint
from parts.running.output_folder import make_folder, write_settings
from parts.running.progress import Progress, fresh_state
from parts.running.sample_tokens import note_advantages
from parts.running.summary import report
from parts.sampling.sampling import HFEngine
from parts.sampling.sampling_vllm import VllmEngine
from programs.on_policy_distillation.dry_run import print_distillation_plan
from programs.on_policy_distillation.experience import make_experience
from programs.on_policy_distillation.metrics import DistillationLog, batch_metrics, evaluate
from programs.on_policy_distillation.models import load_models, load_reward
from programs.on_policy_distillation.rollout import rollout_batch
from programs.on_policy_distillation.settings import Config, check_config, parse_config
from programs.on_policy_distillation.teachers import check_teachers, teacher_specs
from programs.on_policy_distillation.update import make_optimizer, update


def train(config: Config) -> int:
    """Train as configured and return the exit code."""
    import numpy as np
    import torch

    started = time.perf_counter()
    settle_model(config)
    device = start_processes(config)
    check_config(config, world()[1])
    settle_precision(config, device)
    for set_seed in (random.seed, np.random.seed, torch.manual_seed):  # for new adapters and the user's rewards
        set_seed(config.seed)
    teacher_specs(config)
    reward, tokenizer = load_reward(config), load_tokenizer(config)
    rows, held_out = load_splits(config, tokenizer)
    for row in (rows + held_out)[:: max(1, len(rows))]:
        reward.check_columns(row)
    checkpoint = find_checkpoint(config)
    check_teachers(config, tokenizer, rows, held_out)
    models = load_models(config, device, checkpoint)
    check_context(config, models, rows + held_out)
    optimizer = make_optimizer(config, models)
    scaler = torch.amp.GradScaler(device.type, init_scale=2.0**12, enabled=config.precision == "fp16")
    state = fresh_state()
    if checkpoint:
        saved = restore(models, optimizer, scaler, checkpoint)
        state = {key: saved[key] for key in state}
    engine = {"hf": HFEngine, "vllm": VllmEngine}[config.rollout_engine](config, models)
    make_folder(config)
    start = state["step"] if checkpoint else -1
    log = DistillationLog(
        config, start, config.steps, config.report_to, models.tokenizer if config.sample_tokens else None
    )
    write_settings(config)

    def evaluate_held_out() -> tuple[dict, list[dict]]:
        engine.sync(state["step"])
        return evaluate(config, models, engine, reward, held_out)

    save = functools.partial(save_checkpoint, config, models, optimizer, scaler)
    progress = Progress(config, state, started, log, save, evaluate_held_out if held_out else None)
    try:
        progress.begin()
        for step in range(state["step"], config.steps):
            timer = {}

            # rollout: every process samples its share of the prompts and gets the whole batch
            engine.sync(step)
            samples, prompts = rollout_batch(config, models, engine, reward, rows, step, state["prompts"], timer)

            # the teacher's part, and the update
            begin = time.perf_counter()
            batch = make_experience(config, models, samples, config.kl_coef)
            note_advantages(samples, batch)
            metrics = batch_metrics(config, batch, samples, timer)
            metrics |= update(config, models, optimizer, scaler, batch, step, state)
            timer["update"] = time.perf_counter() - begin
            metrics |= {f"time/{phase}": seconds for phase, seconds in timer.items()}

            # logs, evaluation, checkpoint
            code = progress.end_step(metrics, samples, prompts)
            if code:
                return code
        log.plot()
        export(config, models, Path(config.output_dir) / "final")
        summary = progress.summary()
    except RewardError:
        progress.save()  # scoring changes no weights: these are the last step's, with its metrics if not yet logged
        raise
    finally:
        progress.close()
    report(config, summary)
    return 0


def run(argv: list[str]) -> int:
    """Do what a command line says and return the exit code."""
    config = parse_config(argv)
    quiet_environment()
    if config.dry_run:
        print_distillation_plan(config)
        return 0
    return train(config)


def main(argv: list[str] | None = None) -> int:
    """Command line entry; returns the exit code."""
    return exit_code(lambda: run(sys.argv[1:] if argv is None else argv))


if __name__ == "__main__":
    sys.exit(main())
