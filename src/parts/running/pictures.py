"""The picture of a run, curves.png, and the keys of samples.jsonl."""

import json
import math
import os
from pathlib import Path

OF_CONVERSATIONS = ("ended_by", "turn_rewards", "messages", "pieces")
# of samples.jsonl
SAMPLE_KEYS = ("prompt", "completion", "score", "rewards", "finished", "advantage", *OF_CONVERSATIONS)


PANELS = {  # title and metrics of each plot; what a run does not log is left out
    "reward": ("reward/mean", "eval/accuracy"),
    "KL (nats per token)": ("kl/ref", "kl/approx", "kl/teacher", "eval/reverse_kl"),
    "completion length (tokens)": ("rollout/length_mean",),
    "entropy (nats)": ("policy/entropy", "policy/teacher_entropy"),
    "explained variance, equal groups, overlap": ("value/explained_variance", "reward/zero_std_frac", "policy/overlap"),
    "clipped and truncated (share)": ("policy/clip_frac", "rollout/truncated_frac"),
}


def plot_curves(source: Path, target: Path) -> None:
    """Draw those PANELS that a metrics.jsonl has figures for, over one step axis, with the run as title."""
    from matplotlib.figure import Figure

    rows, drawn = [json.loads(line) for line in source.read_text(encoding="utf-8").splitlines()], {}
    for heading, keys in PANELS.items():
        points = {key: [(row["step"], row[key]) for row in rows if row.get(key) is not None] for key in keys}
        if lines := {key: values for key, values in points.items() if values}:
            drawn[heading] = lines
    columns = min(3, max(1, len(drawn)))
    shape = max(1, math.ceil(len(drawn) / columns)), columns
    size = (0.5 + 4.2 * columns, 0.4 + 3.1 * shape[0])
    figure = Figure(figsize=size, layout="constrained")  # pyplot's would stay in memory until it is closed
    axes = figure.subplots(*shape, sharex=True, squeeze=False)
    for axis in axes.flat[len(drawn) :]:
        axis.set_visible(False)
    for axis, (heading, lines) in zip(axes.flat, drawn.items(), strict=False):
        for key, values in lines.items():
            axis.plot(*zip(*values, strict=True), label=key, marker="o" if len(values) < 20 else None, markersize=3)
        axis.set_title(heading, fontsize=10)
        axis.grid(alpha=0.3)
        axis.legend(fontsize=8)
        axis.tick_params(labelbottom=True)
    figure.suptitle(target.absolute().parent.name)
    figure.supxlabel("step")
    temporary = target.with_suffix(".tmp.png")
    figure.savefig(temporary, dpi=100)
    os.replace(temporary, target)
