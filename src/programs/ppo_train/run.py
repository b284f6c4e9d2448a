"""The loop of a run and the command line."""

import os
import random
import sys
import time
from pathlib import Path

from parts.checkpoints import export, find_checkpoint, restore, save_checkpoint
from parts.folders import make_folder, write_settings
from parts.kl import next_kl_coef
from parts.losses import check_loss
from parts.messages import RewardError, UserError, say
from parts.models import check_context
from parts.precision import settle_precision
from parts.presets import check_config
from parts.processes import StopRequest, leave_processes, start_processes, world
from parts.prompts import load_splits
from parts.run_log import RunLog
from parts.sampling import HFEngine
from parts.sampling_vllm import VllmEngine
from parts.summary import report
from parts.tokenizers import load_tokenizer
from programs.ppo_train.dry_run import dry_run
from programs.ppo_train.experience import make_experience
from programs.ppo_train.metrics import evaluate, sample_metrics
from programs.ppo_train.models import load_models, load_reward
from programs.ppo_train.rollout import rollout
from programs.ppo_train.settings import Config, parse_config
from programs.ppo_train.update import make_optimizer, update


def train(config: Config) -> int:
    """Train as configured and return the exit code."""
    import numpy as np
    import torch

    started = time.perf_counter()
    if Path(config.model).is_dir():
        config.model = str(Path(config.model).resolve())  # adapters name their base: it is found from any folder
    device = start_processes(config)
    check_config(config, world()[1])
    check_loss(config)
    settle_precision(config, device)
    for set_seed in (random.seed, np.random.seed, torch.manual_seed):  # for new adapters and the user's rewards
        set_seed(config.seed)
    reward = load_reward(config)
    rows, held_out = load_splits(config, load_tokenizer(config))
    for row in (rows + held_out)[:: max(1, len(rows))]:
        reward.check_columns(row)
    checkpoint = find_checkpoint(config)
    models = load_models(config, device, checkpoint)
    check_context(config, models, rows + held_out)
    optimizer = make_optimizer(config, models)
    scaler = torch.amp.GradScaler(device.type, init_scale=2.0**12, enabled=config.precision == "fp16")
    scaler.scale(torch.zeros((), device=device))  # makes its state: a process may have no rows in its first update
    state = {"step": 0, "kl_coef": config.kl_coef, "bad": 0, "eval_before": None, "eval_after": None, "seconds": 0.0}
    state |= {"prompts": 0, "pending": None}  # prompts taken from the stream; metrics of a step still to be evaluated
    if checkpoint:
        saved = restore(models, optimizer, scaler, checkpoint)
        saved.setdefault("prompts", saved["step"] * config.batch_size // config.group_size)  # runs older than the key
        state = {key: saved[key] for key in state}
    engine = {"hf": HFEngine, "vllm": VllmEngine}[config.rollout_engine](config, models)
    make_folder(config)
    log, stop = RunLog(config, state["step"] if checkpoint else -1), StopRequest()
    write_settings(config)

    def save() -> None:
        seconds = state["seconds"] + time.perf_counter() - started
        save_checkpoint(config, models, optimizer, scaler, {**state, "seconds": seconds})

    def held_out_evaluation(step: int) -> dict:
        engine.sync()
        metrics, samples = evaluate(config, models, engine, reward, held_out)
        log.samples(step, "eval", samples)
        examples = [{k: s[k] for k in ("prompt", "completion", "score")} for s in samples[:4]]
        return {"metrics": metrics, "examples": examples}

    def finish_step() -> None:
        step, metrics = state["step"], state["pending"]
        if held_out and (step == config.steps or (config.eval_every and step % config.eval_every == 0)):
            state["eval_after"] = held_out_evaluation(step)
            metrics |= state["eval_after"]["metrics"]
        log.metrics(step, metrics)
        state["pending"] = None

    try:
        if held_out and state["eval_before"] is None:
            state["eval_before"] = held_out_evaluation(0)
            log.metrics(0, state["eval_before"]["metrics"])
        if state["pending"]:
            finish_step()
        for step in range(state["step"], config.steps):
            timer = {}

            # rollout: every process samples its share of the prompts and gets the whole batch
            engine.sync()
            samples, drawn, prompts = rollout(config, models, engine, reward, rows, step, state["prompts"], timer)

            # experience and update
            begin = time.perf_counter()
            batch = make_experience(config, models, samples, state["kl_coef"])
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
            step += 1
            state |= {"step": step, "prompts": prompts, "pending": metrics}
            finish_step()
            if config.sample_every and step % config.sample_every == 0:
                log.samples(step, "train", samples)
            if config.plot_every and step % config.plot_every == 0:
                log.plot()
            signum = stop.agreed()
            if signum or (config.save_every and step % config.save_every == 0) or step == config.steps:
                save()
            if signum and step < config.steps:
                log.plot()
                say(f"stopped by signal {signum} after step {step}; go on with --resume")
                return 128 + signum
        summary = {"steps": state["step"], "seed": config.seed, "output_dir": config.output_dir}
        for name in ("before", "after"):
            if state[f"eval_{name}"]:
                summary |= {f"accuracy_{name}": state[f"eval_{name}"]["metrics"]["eval/accuracy"]}
                summary |= {f"eval_{name}": state[f"eval_{name}"]}
        log.plot()
        export(config, models, Path(config.output_dir) / "final")
        summary["seconds"] = round(state["seconds"] + time.perf_counter() - started, 1)
    except RewardError:
        save()  # scoring changes no weights: these are the last step's, its metrics with them if not yet logged
        raise
    finally:
        log.close()
        stop.restore()
    report(config, summary)
    return 0


def main(argv: list[str] | None = None) -> int:
    """Command line entry; returns the exit code."""
    try:
        config = parse_config(sys.argv[1:] if argv is None else argv)
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
        if config.dry_run:
            dry_run(config)
            return 0
        return train(config)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        return error.code
    except OSError as error:  # a full disk while logging, say
        print(f"error: got {error}; expected to read and write files; mend it and try --resume", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        say("stopped at once; the newest checkpoint is intact, go on with --resume")
        return 130
    finally:
        leave_processes()


if __name__ == "__main__":
    sys.exit(main())
