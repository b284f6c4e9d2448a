"""The report and the plot."""

from pathlib import Path

from parts.foundation.messages import tell
from parts.reading.findings import NOT_JUDGED, remedies
from parts.reading.logged_run import LoggedRun, UnreadableError
from parts.running.pictures import draw_panels


def print_verdict(run: LoggedRun, data: dict) -> None:
    """A run's verdict for a person."""
    first, last = data["steps"]
    count = sum(f["severity"] == "finding" for f in data["findings"])
    verdict = f"{count} finding{'s' * (count > 1)}" if count else data["verdict"]
    tell(f"{data['path']}: {data['trainer']}, {data['format']}, steps {first}-{last}: {verdict}")
    if data["verdict"].startswith(NOT_JUDGED):
        for remedy in remedies(run):
            tell(f"  try {remedy}")
    for f in data["findings"]:
        tell(f"\n  {f['severity'].upper()} {f['id']}  ({f['metric']}, step {f['step']}, {f['value']:.4g})")
        tell(f"    saw     {f['saw']}\n    cause   {f['cause']}")
        for i, change in enumerate(f["change"]):
            tell(f"    {'change ' if i == 0 else '       '} {change}")
        tell(f"    source  {f['source']}")
    if data["not_judged"]:
        tell(f"\n  the log has no figures for {', '.join(data['not_judged'])}")


MARK = {"rotation": 90, "ha": "right", "va": "center", "color": "tab:red", "fontsize": 8}
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
    panels = []
    for title, names in PANELS:
        lines = {}
        for run in runs:
            suffix = f" · {Path(run.path).parent.name or run.path}" if len(runs) > 1 else ""
            lines |= {run.names.get(n, n) + suffix: sorted(run.series[n].items()) for n in names if run.series.get(n)}
        if lines:
            panels.append((title, lines))
    titles = []
    for report in reports:
        ids = [finding["id"] for finding in report["findings"] if finding["severity"] == "finding"]
        titles.append(f"{report['path']}: {', '.join(ids) or report['verdict'].partition(':')[0]}")
    figure = draw_panels(panels, "\n".join(titles))
    for axis, (_, lines) in zip(figure.axes, panels, strict=False):
        for finding in reports[0]["findings"] if len(runs) == 1 else []:
            if finding["severity"] == "finding" and finding["metric"] in lines:
                axis.axvline(finding["step"], color="tab:red", linestyle="--", linewidth=1)
                axis.text(finding["step"], 0.5, finding["id"], transform=axis.get_xaxis_transform(), **MARK)
    try:
        figure.savefig(target, dpi=100)
    except (OSError, ValueError) as error:
        raise UnreadableError(f"got --plot {target} ({error}); expected a name such as curves.png") from None
