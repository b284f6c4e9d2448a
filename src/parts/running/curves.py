"""curves.png: the metrics of a run over its steps."""

import json
import math
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
    """Draw the panels (title, metrics) of which a metrics.jsonl has a figure over one step axis, titled as the run."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    rows = [json.loads(line) for line in source.read_text(encoding="utf-8").splitlines()]
    drawn = []
    for title, keys in panels:
        lines = {key: [(row["step"], row[key]) for row in rows if row.get(key) is not None] for key in keys}
        if any(lines.values()):
            drawn.append((title, {key: points for key, points in lines.items() if points}))
    columns = min(3, max(1, len(drawn)))
    shape = max(1, math.ceil(len(drawn) / columns)), columns
    size = (0.5 + 4.2 * columns, 0.4 + 3.1 * shape[0])
    figure, axes = pyplot.subplots(*shape, figsize=size, layout="constrained", sharex=True, squeeze=False)
    for axis in axes.flat[len(drawn) :]:
        axis.set_visible(False)
    for axis, (title, lines) in zip(axes.flat, drawn, strict=False):
        for key, points in lines.items():
            axis.plot(*zip(*points, strict=True), label=key, marker="o" if len(points) < 20 else None, markersize=3)
        axis.set_title(title, fontsize=10)
        axis.grid(alpha=0.3)
        axis.legend(fontsize=8)
        axis.tick_params(labelbottom=True)
    figure.suptitle(target.absolute().parent.name)
    figure.supxlabel("step")
    temporary = target.with_suffix(".tmp.png")
    figure.savefig(temporary, dpi=100)
    pyplot.close(figure)
    os.replace(temporary, target)
