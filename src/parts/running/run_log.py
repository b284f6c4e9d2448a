"""Who writes metrics.jsonl and samples.jsonl, tells the trackers, and moves the progress bar."""

import contextlib
import dataclasses
import hashlib
import json
import os
import sys
from pathlib import Path

from parts.foundation.messages import UserError
from parts.foundation.processes import world
from parts.foundation.settings import BaseConfig
from parts.running.curves import PANELS, plot_curves
from parts.running.sample_tokens import LOGGED, token_figures

OF_CONVERSATIONS = ("ended_by", "turn_rewards", "messages", "pieces")
SAMPLE_KEYS = (
    "prompt",
    "completion",
    "score",
    "rewards",
    "finished",
    "advantage",
    *OF_CONVERSATIONS,
)  # of samples.jsonl


def reward_means(samples: list[dict]) -> dict[str, float]:
    """Mean of each reward function over the samples to which it applies."""
    means = {}
    for name in samples[0]["rewards"]:
        values = [s["rewards"][name] for s in samples if s["rewards"][name] is not None]
        means |= {name: sum(values) / len(values)} if values else {}
    return means


def forget_after(path: Path, step: int) -> None:
    """Drop lines of later steps, and a torn last line, from a JSONL file that a resumed run will write again."""
    if not path.exists():
        return
    kept = []
    for line in path.read_text(encoding="utf-8").split("\n"):
        with contextlib.suppress(ValueError):
            if json.loads(line)["step"] <= step:
                kept.append(line + "\n")
    temporary = path.with_suffix(".tmp")
    temporary.write_text("".join(kept), encoding="utf-8")
    os.replace(temporary, path)


def open_tracker(name: str, config: BaseConfig, start: int):
    """Return (log(metrics, step), close()) of an experiment tracker."""
    settings, folder = dataclasses.asdict(config), Path(config.output_dir)
    try:
        if name == "tensorboard":
            from torch.utils.tensorboard import SummaryWriter

            writer = SummaryWriter(folder / "tensorboard", purge_step=start + 1 if start else None)
            return lambda metrics, step: [writer.add_scalar(k, v, step) for k, v in metrics.items()], writer.close
        if name == "wandb":
            import wandb

            run_id = hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:8]  # the same when resumed
            names = {"project": "rl-training", "name": folder.name, "id": run_id, "resume": "allow"}
            run = wandb.init(**names, dir=folder, config=settings)
            return lambda metrics, step: run.log(metrics, step=step), run.finish
        import trackio

        run = trackio.init(project="rl-training", name=folder.name, config=settings, resume="allow")
        return lambda metrics, step: run.log(metrics, step=step), run.finish
    except ImportError:
        raise UserError(f"got --report_to {name}, which is not installed; try `pip install {name}`") from None
    except Exception as error:
        raise UserError(f"got --report_to {name}, which does not start: {error}; try its offline mode") from error


class RunLog:
    """Writes metrics.jsonl, samples.jsonl, curves.png and trackers on rank 0; does nothing elsewhere.

    Args:
        start: the step that a resumed run goes on from; -1 for a new one.
        steps: those of the whole run.
        report_to: names of trackers.
        tokenizer: of samples whose tokens' figures are written too; None: they are not.
    """

    panels = PANELS  # of curves.png

    def __init__(self, config: BaseConfig, start: int, steps: int, report_to: list[str], tokenizer=None):
        self.tokenizer = tokenizer
        self.config, self.dir, self.active = config, Path(config.output_dir), world()[0] == 0
        self.trackers, self.bar = [], None
        if not self.active:
            return
        from tqdm import tqdm

        for name in ("metrics.jsonl", "samples.jsonl"):
            forget_after(self.dir / name, start)
        start = max(start, 0)
        self.trackers = [open_tracker(name, config, start) for name in report_to]
        wait = 0.5 if sys.stderr.isatty() else 20
        self.bar = tqdm(total=steps, initial=start, mininterval=wait, maxinterval=wait, dynamic_ncols=True)

    def metrics(self, step: int, metrics: dict) -> None:
        """Append one line to metrics.jsonl, and tell the trackers and who watches."""
        if not self.active:
            return
        with (self.dir / "metrics.jsonl").open("a", encoding="utf-8") as f:
            f.write(json.dumps({"step": step, **{k: float(f"{v:.7g}") for k, v in metrics.items()}}) + "\n")
        for track, _ in self.trackers:
            track(metrics, step)
        self.show(step, metrics)
        if "eval/accuracy" in metrics:
            value, low, high = (metrics[f"eval/accuracy{end}"] for end in ("", "_low", "_high"))
            text = f"step {step}: held-out accuracy {value:.3f} (95%: {low:.3f} to {high:.3f})"
            self.bar.write(text, file=sys.stderr)

    def show(self, step: int, metrics: dict) -> None:
        """Move the bar, with reward and speed beside it."""
        if "reward/mean" in metrics:
            speed = metrics["rollout/tokens_per_s"]
            self.bar.set_postfix_str(f"reward {metrics['reward/mean']:.3f}, {speed:.0f} tokens/s", refresh=False)
            self.bar.update()

    def samples(self, step: int, kind: str, samples: list[dict]) -> None:
        """Append a few samples to samples.jsonl."""
        if not self.active:
            return
        with (self.dir / "samples.jsonl").open("a", encoding="utf-8") as f:
            for s in samples[:LOGGED]:
                entry = {k: s[k] for k in SAMPLE_KEYS if k in s}
                entry |= token_figures(self.tokenizer, s) if self.tokenizer else {}
                entry = {"step": step, "kind": kind, **entry}
                f.write(json.dumps(entry, ensure_ascii=False, separators=(",", ":")) + "\n")

    def plot(self) -> None:
        """Draw curves.png from metrics.jsonl, if there is one."""
        if self.active and (self.dir / "metrics.jsonl").exists():
            plot_curves(self.dir / "metrics.jsonl", self.dir / "curves.png", self.panels)

    def close(self) -> None:
        """Finish the bar and the trackers."""
        if self.active:
            self.bar.close()
            for _, close in self.trackers:
                close()
