"""summary.json and the lines at the end of a run."""

import json
from pathlib import Path

from parts.foundation.messages import tell
from parts.foundation.processes import world
from parts.foundation.settings import BaseConfig
from parts.running.run_end import faults_at_end

EXAMPLES, SHOWN = 32, 4  # kept of an evaluation; shown of these, those that changed first
LINE = 200  # characters of a message that are shown
HELD_OUT = {"accuracy": ("accuracy", ".3f"), "reverse_kl": ("reverse KL", ".4g")}  # eval/KEY: its name and format


def run_summary(config: BaseConfig, state: dict) -> dict:
    """Steps, seed, folder and both held-out evaluations of a run's state."""
    summary = {"steps": state["step"], "seed": config.seed, "output_dir": config.output_dir}
    for when in ("before", "after"):
        evaluation = state[f"eval_{when}"]
        if evaluation:
            figures = {key: evaluation["metrics"].get(f"eval/{key}") for key in HELD_OUT}
            figures |= {f"{key}_interval": interval_of(evaluation["metrics"], key) for key in HELD_OUT}
            summary |= {f"{key}_{when}": value for key, value in figures.items() if value is not None}
            summary |= {f"eval_{when}": evaluation | {"examples": evaluation["examples"][:SHOWN]}}
    if state["eval_before"] and state["eval_after"]:
        examples = [state[f"eval_{when}"]["examples"] for when in ("before", "after")]
        pairs = sorted(
            zip(*examples, strict=True), key=lambda pair: pair[0].get("completion") == pair[1].get("completion")
        )
        for when, shown in zip(("before", "after"), zip(*pairs[:SHOWN], strict=True), strict=True):
            summary[f"eval_{when}"]["examples"] = list(shown)
    return summary


def interval_of(metrics: dict, key: str) -> list[float] | None:
    """The 95% interval of eval/KEY, where there is one."""
    ends = [metrics.get(f"eval/{key}_{end}") for end in ("low", "high")]
    return None if None in ends else ends


def report(config: BaseConfig, summary: dict) -> None:
    """Write summary.json and print what a person wants to know at the end."""
    if world()[0] != 0:
        return
    folder = Path(config.output_dir)
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    rate = "--learning_rate" if hasattr(config, "learning_rate") else "--lr"
    summary["faults"] = faults_at_end(rows, summary, rate)
    (folder / "summary.json").write_text(json.dumps(summary, indent=1, ensure_ascii=False))
    if "eval_after" in summary:
        print_held_out(summary)
    tell(f"{summary['steps']} steps in {summary['seconds']:.0f} s")
    if summary["faults"]:
        tell(f"something went wrong: {'; '.join(summary['faults'])}; scripts/diagnose.py {folder} says more")
    tell(f"curves {folder / 'curves.png'}\nmodel  {folder / 'final'}")


def print_held_out(summary: dict) -> None:
    """Print completions, or one conversation, and figures of the held-out prompts, before and after."""
    examples = [summary[f"eval_{when}"]["examples"] for when in ("before", "after")]
    if all("messages" in of_time[0] for of_time in examples):
        print_conversations(*[of_time[0] for of_time in examples])
    else:
        print_completions(*examples)
    for key, (name, form) in HELD_OUT.items():
        if f"{key}_before" in summary:
            before, after = (with_interval(summary, key, form, when) for when in ("before", "after"))
            tell(f"held-out {name} {before} -> {after}", end=", ")


def print_completions(examples_before: list[dict], examples_after: list[dict]) -> None:
    """Print a line for each prompt."""
    for before, after in zip(examples_before, examples_after, strict=True):
        prompt = before["prompt"] if isinstance(before["prompt"], str) else before["prompt"][-1]["content"]
        tell(f"  {prompt[-60:]!r:16} before {before['completion'][-60:]!r:32} after {after['completion'][-60:]!r}")


def print_conversations(before: dict, after: dict) -> None:
    """Print two conversations, a line for each message."""
    for when, conversation in (("before", before), ("after", after)):
        tell(f"held-out conversation {when}, score {conversation['score']:.4g}")
        for message in conversation["messages"]:
            tell(f"  {message['role']:9}  {message_line(message)}")


def message_line(message: dict) -> str:
    """What a message says, and the tools that it calls, in one line."""
    calls = [call["function"] for call in message.get("tool_calls") or ()]
    said = [f"calls {call['name']} {json.dumps(call['arguments'], ensure_ascii=False)}" for call in calls]
    text = " ".join(" ".join([str(message.get("content") or ""), *said]).split())
    return text if len(text) <= LINE else f"{text[:LINE]}…"


def with_interval(summary: dict, key: str, form: str, when: str) -> str:
    """A figure of the summary, and its interval where there is one."""
    ends = summary.get(f"{key}_interval_{when}")
    return format(summary[f"{key}_{when}"], form) + (f" ({ends[0]:{form}} to {ends[1]:{form}})" if ends else "")
