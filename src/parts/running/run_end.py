"""A run's end: summary.json, the faults that its last steps show, and what is printed."""

import json
import statistics
from pathlib import Path

from parts.foundation.bundle import in_bundle
from parts.foundation.messages import tell
from parts.foundation.processes import world
from parts.foundation.settings import BaseConfig
from parts.running.output_folder import write_text

LAST = 3  # steps at the end that are judged, fewer in a run as short
KL_LOST = 10.0  # nats a token; an even choice among 22,000 tokens has an entropy of 10
EXAMPLES, SHOWN = 32, 4  # kept of an evaluation; shown of these, those that changed first
LINE = 200  # characters of a message that are shown
HELD_OUT = {"accuracy": ("accuracy", ".3f"), "reverse_kl": ("reverse KL", ".4g")}  # eval/KEY: its name and format


def faults_at_end(rows: list[dict], summary: dict, rate: str) -> list[str]:
    """What went wrong, a clause each, by rows of metrics.jsonl and held-out figures; empty where nothing is certain."""

    def last(name: str) -> list[float]:
        """The values of the last steps; none where the run has only one."""
        values = [row[name] for row in rows if name in row]
        return values[-min(LAST, len(values) - 1) :] if len(values) > 1 else []

    faults, lower = [], f"try a lower {rate}"
    scores = [row["reward/mean"] for row in rows if "reward/mean" in row]
    spread = next((row["reward/std"] for row in rows if "reward/std" in row), 0.0)
    alike = last("reward/std") and max(last("reward/std")) <= 0.1 * spread
    drop = max(scores) - statistics.fmean(last("reward/mean")) if len(scores) > 1 else 0.0
    high = [score - min(scores) > 0.5 * drop for score in scores]  # a single success among zeros is no level
    lasting = bool(high) and (high[0] or sum(high) > 1)
    at_lowest = alike and max(last("reward/mean")) - min(scores) <= 0.1 * drop
    fell = at_lowest and lasting and drop > max(0.5 * spread, 1e-6)
    if fell:
        faults.append(f"the reward fell from {max(scores):.3f} to its lowest, {scores[-1]:.3f}, for all alike; {lower}")
    kinds = (("accuracy", "held-out accuracy", False), ("reverse_kl", "held-out reverse KL", True))
    for key, name, higher_is_worse in kinds:
        before, after = (summary.get(f"{key}_interval_{when}") for when in ("before", "after"))
        if before and after and (after[0] > before[1] if higher_is_worse else after[1] < before[0]):
            values = [summary[f"{key}_{when}"] for when in ("before", "after")]
            faults.append(f"the {name} got worse, {values[0]:.4g} -> {values[1]:.4g}; {lower}")
    for name, reference in (("kl/ref", "the reference"), ("kl/approx", "the policy before an update")):
        if last(name) and statistics.median(map(abs, last(name))) > KL_LOST:
            faults.append(
                f"the KL to {reference} is {last(name)[-1]:.4g} nats a token: the policy has left it; {lower}"
            )
    updates = [row["optim/updates"] for row in rows if "optim/updates" in row]
    if updates and not any(updates):
        faults.append("no update was applied: groups that score alike, or gradients that are not finite, train nothing")
    cut, lengths = last("rollout/truncated_frac"), last("rollout/length_mean")
    before, after = (summary.get(f"accuracy_interval_{when}") for when in ("before", "after"))
    rose = before and after and after[0] > before[1]  # as where the reward reads the first line of a base model's text
    if cut and min(cut) > 0.95 and not rose:
        faults.append("nearly every completion is cut at the length limit; try a higher one, or first a warm start")
    if cut and lengths and max(lengths) <= 1.01 and max(cut) < 0.5:
        faults.append(f"the policy says nothing: completions are empty; {lower}, or a reward that pays 0 for them")
    return faults


def run_summary(config: BaseConfig, state: dict) -> dict:
    """Steps, seed, folder and both held-out evaluations of a run's state, with the examples that changed first."""
    summary = {"steps": state["step"], "seed": config.seed, "output_dir": config.output_dir}
    evaluations = {when: state[f"eval_{when}"] for when in ("before", "after") if state[f"eval_{when}"]}
    rows = list(zip(*(evaluation["examples"] for evaluation in evaluations.values()), strict=True))
    rows.sort(key=lambda row: len(row) < 2 or row[0].get("completion") == row[1].get("completion"))
    for (when, evaluation), examples in zip(evaluations.items(), zip(*rows[:SHOWN], strict=True), strict=True):
        for key in HELD_OUT:
            value, *ends = (evaluation["metrics"].get(f"eval/{key}{end}") for end in ("", "_low", "_high"))
            figures = {key: value, f"{key}_interval": None if None in ends else ends}
            summary |= {f"{name}_{when}": figure for name, figure in figures.items() if figure is not None}
        summary[f"eval_{when}"] = evaluation | {"examples": list(examples)}
    return summary


def report(config: BaseConfig, summary: dict) -> None:
    """Write summary.json and print what a person wants to know at the end."""
    if world()[0] != 0:
        return
    folder = Path(config.output_dir)
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    rate = "--learning_rate" if hasattr(config, "learning_rate") else "--lr"
    summary["faults"] = faults_at_end(rows, summary, rate)
    write_text(folder / "summary.json", json.dumps(summary, indent=1, ensure_ascii=False))
    if "eval_after" in summary:
        print_held_out(summary)
    tell(f"{summary['steps']} step{'s' if summary['steps'] != 1 else ''} in {summary['seconds']:.0f} s")
    if summary["faults"]:
        faults = "; ".join(summary["faults"])
        tell(f"something went wrong: {faults}; {in_bundle('scripts/diagnose.py')} {folder} says more")
    tell(f"curves {folder / 'curves.png'}\nmodel  {folder / 'final'}")


def print_held_out(summary: dict) -> None:
    """Print completions, or one conversation, and figures of the held-out prompts, before and after."""
    before, after = (summary[f"eval_{when}"]["examples"] for when in ("before", "after"))
    if "messages" in before[0] and "messages" in after[0]:
        print_conversations(before[0], after[0])
    else:
        for one, other in zip(before, after, strict=True):
            prompt = one["prompt"] if isinstance(one["prompt"], str) else one["prompt"][-1]["content"]
            tell(f"  {prompt[-60:]!r:16} before {one['completion'][-60:]!r:32} after {other['completion'][-60:]!r}")
    for key, (name, form) in HELD_OUT.items():
        if f"{key}_before" in summary:
            figures = (with_interval(summary, key, form, when) for when in ("before", "after"))
            tell(f"held-out {name} {' -> '.join(figures)}", end=", ")


def print_conversations(before: dict, after: dict) -> None:
    """Print two conversations, a line for each message and the tools that it calls."""
    for when, conversation in (("before", before), ("after", after)):
        tell(f"held-out conversation {when}, score {conversation['score']:.4g}")
        for message in conversation["messages"]:
            calls = [call["function"] for call in message.get("tool_calls") or ()]
            said = [f"calls {call['name']} {json.dumps(call['arguments'], ensure_ascii=False)}" for call in calls]
            text = " ".join(" ".join([str(message.get("content") or ""), *said]).split())
            tell(f"  {message['role']:9}  {text if len(text) <= LINE else f'{text[:LINE]}…'}")


def with_interval(summary: dict, key: str, form: str, when: str) -> str:
    """A figure of the summary, and its interval where there is one."""
    ends = summary.get(f"{key}_interval_{when}")
    return format(summary[f"{key}_{when}"], form) + (f" ({ends[0]:{form}} to {ends[1]:{form}})" if ends else "")
