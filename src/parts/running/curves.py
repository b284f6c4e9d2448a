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


def draw_panels(panels: list[tuple[str, dict[str, list]]], title: str):
    """A figure of panels (title, {name: points}) over one step axis."""
    from matplotlib.figure import Figure

    columns = min(3, max(1, len(panels)))
    shape = max(1, math.ceil(len(panels) / columns)), columns
    size = (0.5 + 4.2 * columns, 0.4 + 3.1 * shape[0])
    figure = Figure(figsize=size, layout="constrained")  # pyplot's would stay in memory until it is closed
    axes = figure.subplots(*shape, sharex=True, squeeze=False)
    for axis in axes.flat[len(panels) :]:
        axis.set_visible(False)
    for axis, (heading, lines) in zip(axes.flat, panels, strict=False):
        for key, points in lines.items():
            axis.plot(*zip(*points, strict=True), label=key, marker="o" if len(points) < 20 else None, markersize=3)
        axis.set_title(heading, fontsize=10)
        axis.grid(alpha=0.3)
        axis.legend(fontsize=8)
        axis.tick_params(labelbottom=True)
    figure.suptitle(title)
    figure.supxlabel("step")
    return figure


def plot_curves(source: Path, target: Path, panels=PANELS) -> None:
    """Draw the panels (title, metrics) of which a metrics.jsonl has a figure, titled as the run."""
    rows = [json.loads(line) for line in source.read_text(encoding="utf-8").splitlines()]
    drawn = []
    for title, keys in panels:
        lines = {key: [(row["step"], row[key]) for row in rows if row.get(key) is not None] for key in keys}
        if any(lines.values()):
            drawn.append((title, {key: points for key, points in lines.items() if points}))
    figure, temporary = draw_panels(drawn, target.absolute().parent.name), target.with_suffix(".tmp.png")
    figure.savefig(temporary, dpi=100)
    os.replace(temporary, target)
