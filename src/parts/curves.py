"""curves.png: the metrics of a run over its steps."""

import json
import os
from pathlib import Path

PANELS = (  # title and metrics of each plot; what a run does not log is left out
    ("reward", ("reward/mean", "eval/accuracy")),
    ("KL (nats per token)", ("kl/ref", "kl/approx", "kl/teacher", "eval/reverse_kl")),
    ("completion length (tokens)", ("rollout/length_mean",)),
    ("entropy (nats)", ("policy/entropy", "policy/teacher_entropy")),
    (
        "explained variance, equal groups, overlap",
        ("value/explained_variance", "reward/zero_std_frac", "policy/overlap"),
    ),
    ("clipped and truncated (share)", ("policy/clip_frac", "rollout/truncated_frac")),
)


def plot_curves(source: Path, target: Path, panels=PANELS) -> None:
    """Draw six panels (title, metrics) over the steps that a metrics.jsonl has."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    rows = [json.loads(line) for line in source.read_text(encoding="utf-8").splitlines()]
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
