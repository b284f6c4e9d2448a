"""The loop of a run and the command line."""

import functools
import random
import sys
import time
from pathlib import Path

from parts.data.pass_band import band_metrics, next_rates, passes_fully
from parts.data.prompts import load_splits
from parts.environments.environments import EnvironmentFault
from parts.environments.play_setup import check_environment_rows, load_with_reward, make_play_setup, playable_rows
from parts.foundation.exit_codes import exit_code, quiet_environment
from parts.foundation.messages import RewardError
from parts.foundation.processes import start_processes, world
from parts.learning.kl import next_kl_coef
from parts.learning.losses import check_loss
from parts.learning.presets import check_config
from parts.networks.models import check_context, load_tokenizer, settle_model, settle_precision
from parts.running.checkpoints import export, find_checkpoint, restore, save_checkpoint
from parts.running.output_folder import make_folder, write_settings
from parts.running.progress import Progress, fresh_state
from parts.running.run_log import RunLog
from parts.running.sample_tokens import note_advantages
from parts.running.summary import report
from parts.sampling.rollouts import collect
from parts.sampling.sampling import HFEngine
from parts.sampling.sampling_vllm import VllmEngine
from programs.ppo_train.dry_run import dry_run
from programs.ppo_train.environment_rollout import check_positions, converse
from programs.ppo_train.experience import make_experience
from programs.ppo_train.metrics import evaluate, sample_metrics
from programs.ppo_train.models import load_models, load_reward
from programs.ppo_train.rollout import kept_lately, rollout
from programs.ppo_train.settings import Config, check_environment, parse_config
from programs.ppo_train.update import make_optimizer, update


def train(config: Config) -> int:
    """Train as configured and return the exit code."""
    import numpy as np
    import torch

    started = time.perf_counter()
    settle_model(config)
    device = start_processes(config)
    check_config(config, world()[1])
    check_loss(config)
    check_environment(config)
    settle_precision(config, device)
    for set_seed in (random.seed, np.random.seed, torch.manual_seed):  # for new adapters and the user's rewards
        set_seed(config.seed)
    tokenizer = load_tokenizer(config)
    rows, held_out = load_splits(config, tokenizer)
    environments, reward = load_with_reward(config, tokenizer) if config.environment else (None, load_reward(config))
    for row in (rows + held_out)[:: max(1, len(rows))]:
        reward.check_columns(row)
    if environments:
        check_environment_rows(environments, rows + held_out)
    checkpoint = find_checkpoint(config)
    models = load_models(config, device, checkpoint)
    sample = collect
    if environments:
        check_positions(config, models)
        setup = make_play_setup(config, models.tokenizer, models.eos_ids, environments)
        rows = playable_rows(config, setup, rows, config.data)
        held_out = playable_rows(config, setup, held_out, "held-out prompts")
        sample = functools.partial(converse, setup)
    else:
        check_context(config, models, rows + held_out)
    optimizer = make_optimizer(config, models)
    scaler = torch.amp.GradScaler(device.type, init_scale=2.0**12, enabled=config.precision == "fp16")
    scaler.scale(torch.zeros((), device=device))  # makes its state: a process may have no rows in its first update
    state = fresh_state(kl_coef=config.kl_coef, pass_rates={}, kept=[0.0, 0.0])
    if checkpoint:
        saved = restore(models, optimizer, scaler, checkpoint)
        saved.setdefault("prompts", saved["step"] * config.batch_size // config.group_size)  # runs older than the key
        saved = {"pass_rates": {}, "kept": state["kept"]} | saved
        state = {key: saved[key] for key in state}
    engine = {"hf": HFEngine, "vllm": VllmEngine}[config.rollout_engine](config, models)
    make_folder(config)
    start = state["step"] if checkpoint else -1
    log = RunLog(config, start, config.steps, config.report_to, models.tokenizer if config.sample_tokens else None)
    write_settings(config)

    def evaluate_held_out() -> tuple[dict, list[dict]]:
        engine.sync(state["step"])
        return evaluate(config, models, engine, reward, held_out, sample)

    save = functools.partial(save_checkpoint, config, models, optimizer, scaler)
    progress = Progress(config, state, started, log, save, evaluate_held_out if held_out else None)
    try:
        progress.begin()
        for step in range(state["step"], config.steps):
            timer = {}

            # rollout: every process samples its share of the prompts and gets the whole batch
            engine.sync(step)
            begun, rates, lately = state["prompts"], state["pass_rates"], state["kept"]
            samples, drawn, prompts = rollout(
                config, models, engine, reward, rows, step, begun, timer, sample, lately, rates
            )
            state["kept"] = kept_lately(config, lately, drawn)

            # experience and update
            begin = time.perf_counter()
            batch = make_experience(config, models, samples, state["kl_coef"])
            note_advantages(samples, batch)
            metrics = sample_metrics(config, batch, drawn, timer)
            metrics |= update(config, models, optimizer, scaler, batch, step, state)
            timer["update"] = time.perf_counter() - begin
            metrics |= {f"time/{phase}": seconds for phase, seconds in timer.items()}
            if models.reference:
                metrics["kl/coef"] = state["kl_coef"]
                if config.kl_target:
                    kl, count = metrics["kl/ref_completion"], config.batch_size
                    state["kl_coef"] = next_kl_coef(state["kl_coef"], kl, config.kl_target, config.kl_horizon, count)

            # logs, evaluation, checkpoint
            if config.keep_between:
                state["pass_rates"] = next_rates(rates, [(s["number"], passes_fully(s["rewards"])) for s in drawn])
                metrics |= band_metrics(config, state["pass_rates"], len(rows))
            code = progress.end_step(metrics, samples, prompts)
            if code:
                return code
        log.plot()
        export(config, models, Path(config.output_dir) / "final")
        summary = progress.summary()
    except (RewardError, EnvironmentFault):
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
        dry_run(config)
        return 0
    return train(config)


def main(argv: list[str] | None = None) -> int:
    """Command line entry; returns the exit code."""
    return exit_code(lambda: run(sys.argv[1:] if argv is None else argv))


if __name__ == "__main__":
    sys.exit(main())
