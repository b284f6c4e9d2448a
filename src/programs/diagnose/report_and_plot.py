"""The report and the plot."""

from pathlib import Path

from parts.foundation.messages import tell
from parts.reading.logged_run import LoggedRun, UnreadableError
from parts.running.pictures import draw_panels

SHOWN_TEXT = 160  # characters of a sample that is shown


def print_verdict(run: LoggedRun, data: dict) -> None:
    """A run's verdict for a person."""
    first, last = data["steps"]
    since = f" since step {data['since_step']}" if data["since_step"] is not None else ""
    tell(f"{data['path']}: {data['trainer']}, {data['format']}, steps {first}-{last}: {data['verdict']}{since}")
    texts = {text.id: text for text in run.texts}
    for cause in data["causes"]:
        tell(f"\n  {cause['certainty'].upper()} {cause['cause']}: {cause['says']}")
        for item in cause["evidence"]:
            place = f"  ({item['figure']}{'' if item['step'] is None else ', step {step}'.format(**item)})"
            tell(f"    saw       {item['text']}{place if item['figure'] else ''}")
            for id in item["samples"][:3]:
                text = texts[id]
                score = "" if text.score is None else f"{text.score:.3g}"
                tell(f"              {id} score {score} gold {text.gold}: {text.completion[-SHOWN_TEXT:]!r}")
        for text in cause["explains"]:
            tell(f"    explains  {text}")
        tell(f"    change    {cause['change']}")
        if cause["decide_with"]:
            tell(f"    to decide {cause['decide_with']}")
        tell(f"    source    {cause['source']}")
    for text in data["unexplained"] if data["verdict"] != "learned" else []:
        tell(f"  seen: {text}")
    for text in data["remarks"]:
        tell(f"  note: {text}")
    tell(f"\n  had: {', '.join(data['had'])}")
    if data["lacked"]:
        tell(f"  would decide more: {'; '.join(data['lacked'])}")


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
    """Draw the figures of the causes; evidence of a single run is marked at its step."""
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
        names = [cause["cause"] for cause in report["causes"]]
        titles.append(f"{report['path']}: {', '.join([report['verdict'], *names])}")
    figure = draw_panels(panels, "\n".join(titles))
    marks = [(c["cause"], e) for c in reports[0]["causes"] for e in c["evidence"]] if len(runs) == 1 else []
    for axis, (_, lines) in zip(figure.axes, panels, strict=False):
        for name, item in marks:
            if item["figure"] in lines and item["step"] is not None:
                axis.axvline(item["step"], color="tab:red", linestyle="--", linewidth=1)
                axis.text(item["step"], 0.5, name, transform=axis.get_xaxis_transform(), **MARK)
    try:
        figure.savefig(target, dpi=100)
    except (OSError, ValueError) as error:
        raise UnreadableError(f"got --plot {target} ({error}); expected a name such as curves.png") from None
