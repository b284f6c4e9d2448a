"""metrics.jsonl, samples.jsonl and curves.png."""

import json
import math
import os
import re
import sys
from pathlib import Path

from parts.processes import world
from parts.run_log import forget_after
from programs.grpo_train.settings import Config

# TRL's names of what metrics.jsonl calls otherwise
METRICS = {
    "reward": "reward/mean",
    "reward_std": "reward/std",
    "kl": "kl/ref",
    "loss": "policy/loss",
    "entropy": "policy/entropy",
    "clip_ratio/region_mean": "policy/clip_frac",
    "cispo_clip_ratio": "policy/clip_frac",
    "completions/mean_length": "rollout/length_mean",
    "completions/clipped_ratio": "rollout/truncated_frac",
    "sampling/sampling_logp_difference/max": "rollout/logprob_gap_max",
    "learning_rate": "optim/lr",
    "grad_norm": "optim/grad_norm",
    "step_time": "time/step",
}


def our_metrics(logs: dict) -> dict:
    """TRL's log entry under the names of references/metrics.md; what is None or has no such name is left out."""
    found = {METRICS[key]: value for key, value in logs.items() if key in METRICS and value is not None}
    for key, value in logs.items():
        match = re.fullmatch(r"rewards/(.+)/mean", key)
        if match and value is not None and not math.isnan(value):
            found[f"reward/{match[1]}"] = value
    return found


def draw_curves(source: Path, target: Path) -> None:
    """Draw reward, learning signal, length, KL, entropy and gradient norm over the steps."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    rows = [json.loads(line) for line in source.read_text(encoding="utf-8").splitlines()]
    panels = [
        ("reward", ["reward/mean", "eval/accuracy"]),
        ("groups without signal, clipped, truncated (share)", ["reward/zero_std_frac", "policy/clip_frac"]),
        ("completion length (tokens)", ["rollout/length_mean"]),
        ("KL to the reference (nats per token)", ["kl/ref"]),
        ("entropy (nats)", ["policy/entropy"]),
        ("gradient norm", ["optim/grad_norm"]),
    ]
    panels[1][1].append("rollout/truncated_frac")
    figure, axes = pyplot.subplots(2, 3, figsize=(13, 6.5), layout="constrained")
    for axis, (title, keys) in zip(axes.flat, panels, strict=True):
        for key in keys:
            points = [(row["step"], row[key]) for row in rows if key in row]
            if points:
                axis.plot(*zip(*points, strict=True), label=key, marker="o" if len(points) < 20 else None, markersize=3)
        axis.set(title=title, xlabel="step")
        axis.grid(alpha=0.3)
        if axis.lines:
            axis.legend(fontsize=8)
    temporary = target.with_suffix(".tmp.png")
    figure.savefig(temporary, dpi=100)
    pyplot.close(figure)
    os.replace(temporary, target)


class Journal:
    """Writes metrics.jsonl, samples.jsonl and curves.png, and shows progress, on rank 0; does nothing elsewhere."""

    def __init__(self, config: Config, steps: int, start: int):
        self.dir, self.active, self.bar = Path(config.output_dir), world()[0] == 0, None
        if not self.active:
            return
        from tqdm import tqdm

        for name in ("metrics.jsonl", "samples.jsonl"):
            forget_after(self.dir / name, start)
        wait = 0.5 if sys.stderr.isatty() else 20
        self.bar = tqdm(total=steps, initial=max(start, 0), mininterval=wait, maxinterval=wait, dynamic_ncols=True)

    def metrics(self, step: int, metrics: dict) -> None:
        """Append one line to metrics.jsonl."""
        if not self.active:
            return
        with (self.dir / "metrics.jsonl").open("a", encoding="utf-8") as f:
            f.write(json.dumps({"step": step, **{k: float(f"{v:.7g}") for k, v in metrics.items()}}) + "\n")
        if "reward/mean" in metrics:
            self.bar.set_postfix_str(f"reward {metrics['reward/mean']:.3f}", refresh=False)
        if "eval/accuracy" in metrics:
            self.bar.write(f"step {step}: held-out accuracy {metrics['eval/accuracy']:.3f}", file=sys.stderr)

    def advance(self, step: int) -> None:
        """Move the bar to a step."""
        if self.active:
            self.bar.update(step - self.bar.n)

    def samples(self, step: int, kind: str, samples: list[dict], count: int = 8) -> None:
        """Append a few samples to samples.jsonl."""
        if not self.active:
            return
        with (self.dir / "samples.jsonl").open("a", encoding="utf-8") as f:
            for s in samples[:count]:
                entry = {k: s[k] for k in ("prompt", "completion", "score", "rewards", "finished")}
                f.write(json.dumps({"step": step, "kind": kind, **entry}, ensure_ascii=False) + "\n")

    def plot(self) -> None:
        """Draw curves.png from metrics.jsonl."""
        if self.active and (self.dir / "metrics.jsonl").exists():
            draw_curves(self.dir / "metrics.jsonl", self.dir / "curves.png")

    def close(self) -> None:
        """Finish the bar."""
        if self.active:
            self.bar.close()
