"""The report and the plot."""

from pathlib import Path

from parts.foundation.messages import tell
from parts.reading.findings import NOT_JUDGED, columns_to_try
from parts.reading.logged_run import LoggedRun, UnreadableError


def print_verdict(run: LoggedRun, data: dict) -> None:
    """A run's verdict for a person."""
    first, last = data["steps"]
    count = sum(f["severity"] == "finding" for f in data["findings"])
    verdict = f"{count} finding{'s' * (count > 1)}" if count else data["verdict"]
    tell(f"{data['path']}: {data['trainer']}, {data['format']}, steps {first}-{last}: {verdict}")
    if data["verdict"].startswith(NOT_JUDGED):
        tell(f"  try --columns {columns_to_try(run)}; what the log does not have is then left out")
    for f in data["findings"]:
        tell(f"\n  {f['severity'].upper()} {f['id']}  ({f['metric']}, step {f['step']}, {f['value']:.4g})")
        tell(f"    saw     {f['saw']}\n    cause   {f['cause']}")
        for i, change in enumerate(f["change"]):
            tell(f"    {'change ' if i == 0 else '       '} {change}")
        tell(f"    source  {f['source']}")
    if data["not_judged"]:
        tell(f"\n  the log has no figures for {', '.join(data['not_judged'])}")


PANELS = [
    ("score and held-out", ["score", "held_out"]),
    ("groups without signal, truncated, clipped (share)", ["zero_std", "truncated", "clip_frac"]),
    ("completion length (tokens)", ["length"]),
    ("entropy (nats a token)", ["entropy"]),
    ("KL: to the reference, of a step, to the sampler", ["kl", "kl_step", "mismatch_kl"]),
    ("gradient norm", ["grad_norm", "critic_grad_norm"]),
    ("explained variance", ["explained_variance"]),
    ("ratio and importance weights", ["ratio_max", "weight_mean", "weight_ess"]),
]


def draw(runs: list[LoggedRun], reports: list[dict], target: Path) -> None:
    """Draw what the checks looked at; findings of a single run are marked at their step."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(2, 4, figsize=(17, 7.5), layout="constrained")
    for axis, (title, names) in zip(axes.flat, PANELS, strict=True):
        for run in runs:
            draw_lines(axis, run, names, several=len(runs) > 1)
        if len(runs) == 1:
            mark_findings(axis, reports[0]["findings"])
        axis.set(title=title, xlabel="step")
        axis.grid(alpha=0.3)
        if axis.lines:
            axis.legend(fontsize=7)
        else:
            axis.text(0.5, 0.5, "not in the log", transform=axis.transAxes, ha="center", color="gray")
            axis.set(xticks=[], yticks=[])
    worst = {r["path"]: [f["id"] for f in r["findings"] if f["severity"] == "finding"] for r in reports}
    figure.suptitle("\n".join(f"{path}: {', '.join(ids) or 'healthy'}" for path, ids in worst.items()), fontsize=10)
    try:
        figure.savefig(target, dpi=100)
    except (OSError, ValueError) as error:
        raise UnreadableError(f"got --plot {target} ({error}); expected a name such as curves.png") from None
    finally:
        pyplot.close(figure)


def draw_lines(axis, run: LoggedRun, names: list[str], several: bool) -> None:
    """Draw the metrics of a run that its log has; where there are several runs, each line says whose it is."""
    whose = f" · {Path(run.path).parent.name or run.path}" if several else ""
    for name in names:
        points = sorted(run.series.get(name, {}).items())
        if points:
            marker = "o" if len(points) < 20 else None
            label = run.names.get(name, name) + whose
            axis.plot(*zip(*points, strict=True), label=label, marker=marker, markersize=3)


def mark_findings(axis, findings: list[dict]) -> None:
    """Mark the findings about the metrics of a panel at their steps."""
    shown = [line.get_label() for line in axis.lines]
    look = {"rotation": 90, "ha": "right", "va": "center", "color": "tab:red", "fontsize": 8}
    for finding in findings:
        if finding["severity"] == "finding" and finding["metric"] in shown:
            axis.axvline(finding["step"], color="tab:red", linestyle="--", linewidth=1)
            axis.annotate(finding["id"], (finding["step"], 0.5), xycoords=("data", "axes fraction"), **look)
