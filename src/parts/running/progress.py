"""The course of a run: its begin, evaluations, what follows a step, stopping by a signal, its end."""

import dataclasses
import functools
import random
import time
from collections.abc import Callable
from pathlib import Path

from parts.foundation.messages import say
from parts.foundation.processes import StopRequest, forget_peak, memory_metrics
from parts.foundation.settings import BaseConfig
from parts.networks.models import Models
from parts.running.checkpoints import TrainState, export, save_checkpoint
from parts.running.output_folder import make_folder, write_settings
from parts.running.run_log import RunLog
from parts.running.summary import EXAMPLES, report, run_summary

EXAMPLE_KEYS = ("prompt", "completion", "score", "messages")  # of summary.json; the last of conversations only


def seed_generators(config: BaseConfig) -> None:
    """Seed all generators, for new adapters and the user's rewards; training itself draws from seeds and steps."""
    import numpy as np
    import torch

    for set_seed in (random.seed, np.random.seed, torch.manual_seed):
        set_seed(config.seed)


def grad_scaler(config: BaseConfig, device):
    """The scaler of gradients of an fp16 run; one that does nothing otherwise."""
    import torch

    scaler = torch.amp.GradScaler(device.type, init_scale=2.0**12, enabled=config.precision == "fp16")
    scaler.scale(torch.zeros((), device=device))  # makes its state: a process may have no rows in its first update
    return scaler


def begin_run(
    config: BaseConfig, models: Models, optimizer, scaler, state: TrainState, started: float, log_class=RunLog
) -> "Progress":
    """Make the output folder and the log, once all else is known to be in order.

    Args:
        started: time.perf_counter() at the start of this session.
    """
    make_folder(config)
    start, tokenizer = state.step or -1, models.tokenizer if config.sample_tokens else None
    log = log_class(config, start, config.steps, config.report_to, tokenizer)
    write_settings(config)
    save = functools.partial(save_checkpoint, config, models, optimizer, scaler)
    return Progress(config, models, state, started, log, save)


def is_due(step: int, every: int) -> bool:
    """Whether something that happens every so many steps (0: never) happens after this one."""
    return bool(every) and step % every == 0


class Progress:
    """Keeps the state of a run, and does what surrounds its steps.

    Args:
        started: time.perf_counter() at the start of this session.
        write_checkpoint: writes a checkpoint of a state.
    """

    def __init__(
        self, config: BaseConfig, models: Models, state: TrainState, started: float, log: RunLog, write_checkpoint
    ):
        self.config, self.models, self.state, self.started = config, models, state, started
        self.log, self.write_checkpoint, self.stop = log, write_checkpoint, StopRequest()
        self.evaluate = None

    def run(self, step: Callable, evaluate: Callable | None, faults: tuple) -> int:
        """Do the steps that are left, and what follows the last; returns the exit code.

        Args:
            step: does a step from a state; returns its metrics, its samples, and the state's fields after it.
            evaluate: returns (metrics, samples) of the held-out prompts at a step; None where there are none.
            faults: errors of scoring, which changes no weights: the last step is saved, its evaluation pending.
        """
        self.evaluate = evaluate
        try:
            self.begin()
            while self.state.step < self.config.steps:
                code = self.end_step(*step(self.state))
                if code:
                    return code
            self.log.plot()
            export(self.config, self.models, Path(self.config.output_dir) / "final")
            summary = run_summary(self.config, vars(self.state)) | {"seconds": round(self.seconds(), 1)}
        except faults:
            self.save()
            raise
        finally:
            self.log.close()
            self.stop.restore()
        report(self.config, summary)
        return 0

    def write(self, **fields) -> None:
        """Change fields of the state."""
        self.state = dataclasses.replace(self.state, **fields)

    def seconds(self) -> float:
        """Time of the run so far, earlier sessions included."""
        return self.state.seconds + time.perf_counter() - self.started

    def save(self) -> None:
        """Write a checkpoint, of step 0 none: it would keep the settings and the evaluation of what has failed."""
        if self.state.step:
            self.write_checkpoint(dataclasses.replace(self.state, seconds=self.seconds()))

    def held_out(self, step: int) -> dict:
        """Metrics of the held-out prompts, and a few examples."""
        metrics, samples = self.evaluate(step)
        self.log.samples(step, "eval", samples)
        examples = [{k: s[k] for k in EXAMPLE_KEYS if k in s} for s in samples[:EXAMPLES]]
        return {"metrics": metrics, "examples": examples}

    def begin(self) -> None:
        """Evaluate before the first step; a resumed run may still owe its last step's evaluation."""
        if self.evaluate and self.state.eval_before is None:
            self.write(eval_before=self.held_out(0))
            self.log.metrics(0, self.state.eval_before["metrics"])
        if self.state.pending:
            self.log_pending()
        forget_peak()

    def log_pending(self) -> None:
        """Evaluate where it is time, and log the metrics of the step."""
        step, metrics = self.state.step, self.state.pending
        if self.evaluate and (step == self.config.steps or is_due(step, self.config.eval_every)):
            self.write(eval_after=self.held_out(step))
            metrics |= self.state.eval_after["metrics"]
        self.log.metrics(step, metrics)
        self.write(pending=None)

    def end_step(self, metrics: dict, samples: list[dict], after: dict) -> int:
        """Write the state after a step; evaluate, log and save.

        Returns:
            128 + n where signal n ends the run here, else 0.
        """
        config, step = self.config, self.state.step + 1
        self.write(step=step, pending=metrics | memory_metrics(), **after)
        self.log_pending()
        if is_due(step, config.sample_every):
            self.log.samples(step, "train", samples)
        if is_due(step, config.plot_every):
            self.log.plot()
        signum = self.stop.agreed()
        if signum or is_due(step, config.save_every) or step == config.steps:
            self.save()
        forget_peak()
        if not signum or step == config.steps:
            return 0
        self.log.plot()
        say(f"stopped by signal {signum} after step {step}; go on with --resume")
        return 128 + signum
