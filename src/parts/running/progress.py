"""A run's progress and log: evaluations, the end of each step, stopping by a signal, trackers."""

import contextlib
import dataclasses
import functools
import hashlib
import importlib
import json
import math
import random
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

from parts.foundation.messages import MemoryShortage, UserError, need, say, suggest
from parts.foundation.processes import (
    THREADS,
    StopRequest,
    StopRequested,
    forget_peak,
    memory_metrics,
    np,
    room_for,
    torch,
    world,
)
from parts.foundation.settings import BaseConfig
from parts.networks.models import Models
from parts.rewards.rewards import known_scores
from parts.running.checkpoints import TrainState, export, save_checkpoint
from parts.running.output_folder import WRITTEN, make_folder, write_settings, write_text
from parts.running.pictures import SAMPLE_KEYS, plot_curves
from parts.running.run_check import BROKEN, Verdicts, check_stop_when, say_stopped
from parts.running.run_end import EXAMPLES, report, run_summary
from parts.sampling.sampling import restore_rng, rng_state

LOGGED = 8  # samples of a step or an evaluation
COLUMN_LENGTH = 500  # characters of a row's column in samples.jsonl
EXAMPLE_KEYS = ("prompt", "completion", "score", "messages")  # of summary.json; the last of conversations only


def reward_means(samples: list[dict]) -> dict[str, float]:
    """Mean of each reward function over the samples to which it applies."""
    means = {}
    for name in samples[0]["rewards"]:
        values = [s["rewards"][name] for s in samples if s["rewards"][name] is not None]
        means |= {name: sum(values) / len(values)} if values else {}
    return means


def rollout_metrics(samples: list[dict], lengths: list[int], timer: dict) -> dict[str, float]:
    """Rewards, where there are some, lengths and speed of a rollout."""
    scores, metrics = known_scores(samples), {}
    if scores:
        metrics = {"reward/mean": statistics.fmean(scores), "reward/std": statistics.pstdev(scores)}
        metrics |= {f"reward/{name}": mean for name, mean in reward_means(samples).items()}
    metrics["rollout/length_mean"] = statistics.fmean(lengths)
    metrics["rollout/truncated_frac"] = statistics.fmean(not s["finished"] for s in samples)
    return metrics | {"rollout/tokens_per_s": sum(lengths) / max(timer["rollout"], 1e-9)}


def forget_after(path: Path, step: int) -> None:
    """Drop lines of later steps, and a torn last line, from a JSONL file that a resumed run will write again."""
    kept = []
    for line in path.read_text(encoding="utf-8", errors="replace").split("\n") if path.exists() else ():
        with contextlib.suppress(ValueError):
            if json.loads(line)["step"] <= step:
                kept.append(line + "\n")
    if path.exists():
        write_text(path, "".join(kept))


def metric_names(text: str) -> dict[str, str]:
    """{name in the user's file: ours} of --metric_names; {} for all under our names."""
    pairs = [pair.partition("=") for pair in text.replace(" ", ",").split(",") if pair]
    fine = all(user_name and equals and ours for user_name, equals, ours in pairs)
    need(fine, f"got --metric_names {text}; expected NAME=METRIC, comma-separated, such as reward=reward/mean")
    once = len({"step", *(user_name for user_name, _, _ in pairs)}) == 1 + len(pairs)
    need(once, f"got --metric_names {text}; expected each name once, and no 'step', which is there already")
    return {user_name: ours for user_name, _, ours in pairs}


def begin_metrics_file(config: BaseConfig, start: int) -> dict[str, str]:
    """Make --metrics_file, or cut a resumed run's after step `start`; returns its names. UserError for another file."""
    names, path = metric_names(config.metric_names), Path(config.metrics_file)
    need(
        config.metrics_file or not names, "got --metric_names alone; expected a file for them; try --metrics_file FILE"
    )
    if config.metrics_file:
        is_of_run = path.resolve() in [Path(config.output_dir, name).resolve() for name in (*WRITTEN, "config.json")]
        need(
            not is_of_run,
            f"got --metrics_file {path}, a file of the run itself; expected another; try a name of your own",
        )
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
            text = path.read_text(encoding="utf-8", errors="replace")
        except OSError as error:
            got = f"got --metrics_file {path} ({error.strerror})"
            raise UserError(f"{got}; expected a file to write to; try another --metrics_file") from None
        fits = not text or (config.resume and text.startswith('{"step":'))
        got = f"got --metrics_file {path}, which is not empty"
        need(fits, f"{got}; expected a new file, or with --resume this run's; try another --metrics_file")
        forget_after(path, start)
        if not path.stat().st_size:
            path.unlink()
    return names


def open_tracker(name: str, config: BaseConfig, start: int):
    """Return (log(metrics, step), close()) of an experiment tracker."""
    settings, folder, more = dataclasses.asdict(config), Path(config.output_dir), {}
    try:
        if name == "tensorboard":
            from torch.utils.tensorboard import SummaryWriter

            writer = SummaryWriter(folder / "tensorboard", purge_step=start + 1 if start else None)
            return lambda metrics, step: [writer.add_scalar(k, v, step) for k, v in metrics.items()], writer.close
        if name == "wandb":
            run_id = hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:8]  # the same when resumed
            more = {"id": run_id, "dir": folder}
        tracker = importlib.import_module(name)
        run = tracker.init(project="rl-training", name=folder.name, config=settings, resume="allow", **more)
        return lambda metrics, step: run.log(metrics, step=step), run.finish
    except ImportError:
        raise UserError(f"got --report_to {name}, which is not installed; try `pip install {name}`") from None
    except Exception as error:
        raise UserError(f"got --report_to {name}, which does not start: {error}; try its offline mode") from error


class RunLog:
    """Writes metrics.jsonl, samples.jsonl, curves.png and trackers on rank 0; does nothing elsewhere.

    A resumed run goes on from step `start`, -1 for a new one.
    """

    def __init__(self, config: BaseConfig, start: int, steps: int, report_to: list[str]):
        self.config, self.dir, self.active = config, Path(config.output_dir), world()[0] == 0
        self.trackers, self.bar, self.verdicts = [], None, Verdicts(self.dir)
        if not self.active:
            return
        from tqdm import tqdm

        for name in ("metrics.jsonl", "samples.jsonl"):
            forget_after(self.dir / name, start)
        self.names = begin_metrics_file(config, start)
        start = max(start, 0)
        self.trackers = [open_tracker(name, config, start) for name in report_to]
        wait = 0.5 if sys.stderr.isatty() else 20
        self.bar = tqdm(total=steps, initial=start, mininterval=wait, maxinterval=wait, dynamic_ncols=True)

    def metrics(self, step: int, metrics: dict) -> None:
        """Append one line to metrics.jsonl, and tell the trackers and who watches."""
        if not self.active:
            return
        rounded = {k: float(f"{v:.7g}") for k, v in metrics.items()}
        with (self.dir / "metrics.jsonl").open("a", encoding="utf-8") as f:
            f.write(json.dumps({"step": step, **rounded}) + "\n")
        if self.config.metrics_file:
            self.in_own_names(step, {k: v for k, v in rounded.items() if not k.startswith("eval/")})
        for track, _ in self.trackers:
            track(metrics, step)
        self.show(step, metrics)
        for key, name, form in (("accuracy", "accuracy", ".3f"), ("reverse_kl", "reverse KL", ".4f")):
            if f"eval/{key}" in metrics:
                value, low, high = (metrics.get(f"eval/{key}{end}") for end in ("", "_low", "_high"))
                interval = "" if low is None else f" (95%: {low:{form}} to {high:{form}})"
                self.bar.write(f"step {step}: held-out {name} {value:{form}}{interval}", file=sys.stderr)

    def in_own_names(self, step: int, metrics: dict) -> None:
        """Append one line to --metrics_file for an update: `step`, and the metrics of --metric_names or all."""
        path = Path(self.config.metrics_file)
        wrong = next((name for name in self.names.values() if metrics and name not in metrics), "")
        if wrong and not path.exists():  # a step without an update lacks some, too
            known = f"step {step} has {', '.join(metrics)}{suggest(wrong, [*metrics])}"
            say(f"warning: --metric_names has {wrong}, written as null; {known}")
        if metrics:
            chosen = {user_name: metrics.get(name) for user_name, name in self.names.items()} or metrics
            with path.open("a", encoding="utf-8") as f:
                f.write(json.dumps({"step": step, **chosen}) + "\n")

    def show(self, step: int, metrics: dict) -> None:
        """Move the bar to a step, with the reward and the speed where it is measured, or the KL to the teacher."""
        if "reward/mean" in metrics:
            speed = metrics.get("rollout/tokens_per_s")
            pace = "" if speed is None else f", {speed:.0f} tokens/s"
            self.bar.set_postfix_str(f"reward {metrics['reward/mean']:.3f}{pace}", refresh=False)
        elif "time/update" in metrics:
            self.bar.set_postfix_str(f"KL {metrics.get('kl/teacher', math.nan):.3f}", refresh=False)
        self.bar.update(step - self.bar.n)

    def samples(self, step: int, kind: str, samples: list[dict]) -> None:
        """Append a few samples to samples.jsonl."""
        if not self.active:
            return
        with (self.dir / "samples.jsonl").open("a", encoding="utf-8", errors="backslashreplace") as f:
            for s in samples[:LOGGED]:
                entry = {k: s[k] for k in SAMPLE_KEYS if k in s}
                columns = s.get("columns", {}).items()  # gold answers; long texts are in the data
                kept = {k: v for k, v in columns if isinstance(v, (str, int, float)) and len(str(v)) <= COLUMN_LENGTH}
                entry |= {"columns": kept} if kept else {}
                entry = {"step": step, "kind": kind, **entry}
                f.write(json.dumps(entry, ensure_ascii=False, separators=(",", ":")) + "\n")

    def judge(self, step: int, steps: int, stop: StopRequest) -> None:
        """Say what is wrong with the run, at steps 3, 10, 30 … and the last; end it where --stop_when asks for that."""
        if self.active and (is_asked(step) or step == steps):
            if self.verdicts.is_broken(step) and self.config.stop_when == "broken":
                stop.signum = stop.signum or BROKEN

    def plot(self) -> None:
        """Draw curves.png from metrics.jsonl, if there is one."""
        if self.active and (self.dir / "metrics.jsonl").exists():
            plot_curves(self.dir / "metrics.jsonl", self.dir / "curves.png")

    def close(self) -> None:
        if self.active:
            self.bar.close()
            for _, close in self.trackers:
                close()


def seed_generators(config: BaseConfig) -> None:
    """Seed all generators, for new adapters and the user's rewards; training itself draws from seeds and steps."""
    for set_seed in (random.seed, np.random.seed, torch.manual_seed):
        set_seed(config.seed)


def grad_scaler(config: BaseConfig, device):
    """The scaler of gradients of an fp16 run; one that does nothing otherwise."""
    scaler = torch.amp.GradScaler(device.type, init_scale=2.0**12, enabled=config.precision == "fp16")
    scaler.scale(torch.zeros((), device=device))  # makes its state: a process may have no rows in its first update
    return scaler


def begin_run(config: BaseConfig, models: Models, optimizer, scaler, state: TrainState, started: float) -> "Progress":
    """Make the output folder and the log, once all else is known to be in order."""
    check_stop_when(config.stop_when)
    make_folder(config)
    log = RunLog(config, state.step or -1, config.steps, config.report_to)
    write_settings(config)
    save = functools.partial(save_checkpoint, config, models, optimizer, scaler)
    return Progress(config, models, state, started, log, save)


def sampling_advice(config: BaseConfig) -> str:
    """What to try where memory ran out while completions were sampled."""
    if config.rollout_engine == "vllm":
        return f"--resume with a lower --vllm_memory than {config.vllm_memory:g}"
    rows = config.rollout_batch_size or max(1, config.batch_size // world()[1])
    shorter = f"a new run with a lower --max_new_tokens than {config.max_new_tokens}"
    return f"--resume --rollout_batch_size {rows // 2}, or {shorter}" if rows > 1 else shorter


def update_advice(config: BaseConfig) -> str:
    """What to try where memory ran out in an update."""
    flags = f"--micro_batch_tokens {max(1, config.micro_batch_tokens // 2)} --logits_chunk {config.logits_chunk // 4}"
    return f"--resume {flags}" + ("" if config.gradient_checkpointing else ", or --resume --gradient_checkpointing")


def is_due(step: int, every: int) -> bool:
    """Whether something that happens every so many steps (0: never) happens after this one."""
    return bool(every) and step % every == 0


def is_asked(step: int) -> bool:
    """Whether a run is judged after this step: 3, 10, 30, 100, 300 …"""
    return step >= 3 and str(step).rstrip("0") in ("1", "3")


def is_sampled(step: int, every: int) -> bool:
    """Whether samples of a step are logged: as often as asked, and of steps 1 and 3, which show most faults."""
    return is_due(step, every) or (bool(every) and step in (1, 3))


class Progress:
    """Keeps the state of a run, and does what surrounds its steps; the session `started` at this perf_counter()."""

    def __init__(
        self, config: BaseConfig, models: Models, state: TrainState, started: float, log: RunLog, write_checkpoint
    ):
        self.config, self.models, self.state, self.started = config, models, state, started
        self.log, self.write_checkpoint, self.stop = log, write_checkpoint, StopRequest()
        self.evaluate, self.rng = None, rng_state()
        self.write()

    def run(self, step: Callable, evaluate: Callable | None, faults: tuple) -> int:
        """Do the steps that are left, and what follows the last; returns the exit code.

        Args:
            step: does a step from a state; returns its metrics, its samples, and the state's fields after it.
            evaluate: returns (metrics, samples) of the held-out prompts at a step; None where there are none.
            faults: errors of scoring, which changes no weights: the last step is saved, its evaluation pending; so it
                is where memory ran out before an update.
        """
        self.evaluate = evaluate
        try:
            self.begin()
            while self.state.step < self.config.steps:
                begin, self.rng = time.perf_counter(), rng_state()
                result = step(self.state)
                THREADS.after(time.perf_counter() - begin)
                if code := self.end_step(*result):
                    return code
            self.log.plot()
            export(self.config, self.models, Path(self.config.output_dir) / "final")
            summary = run_summary(self.config, vars(self.state)) | {"seconds": round(self.seconds(), 1)}
        except StopRequested as stop:
            restore_rng(self.rng)  # as nothing had been drawn for what is left
            self.save()
            return self.stopped(stop.signum)
        except (*faults, MemoryShortage) as fault:
            if getattr(fault, "before_update", True):
                restore_rng(self.rng)  # as nothing had been drawn for what is left
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
        self.stop.can_save = self.state.step > 0

    def seconds(self) -> float:
        """Time of the run so far, earlier sessions included."""
        return self.state.seconds + time.perf_counter() - self.started

    def save(self) -> None:
        """Write a checkpoint, of step 0 none: it would keep the settings and the evaluation of what has failed."""
        if self.state.step:
            self.write_checkpoint(dataclasses.replace(self.state, seconds=self.seconds()))

    def held_out(self, step: int) -> dict:
        """Metrics of the held-out prompts, and a few examples."""
        with room_for("in the evaluation", sampling_advice(self.config), before_update=True):
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
        """Write the state after a step; evaluate, log, save; returns the exit code where the run ends early, else 0."""
        config, step = self.config, self.state.step + 1
        self.write(step=step, pending=metrics | memory_metrics(), **after)
        if is_sampled(step, config.sample_every):
            self.log.samples(step, "train", samples)
        self.rng = rng_state()
        self.log_pending()
        self.log.judge(step, config.steps, self.stop)
        if is_due(step, config.plot_every):
            self.log.plot()
        signum = self.stop.agreed()
        if signum or is_due(step, config.save_every) or step == config.steps:
            self.save()
        forget_peak()
        if not signum or step == config.steps:
            return 0
        return self.stopped(signum)

    def stopped(self, signum: int) -> int:
        self.log.plot()
        return say_stopped(signum, self.state.step)
