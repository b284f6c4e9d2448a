"""Checks of completions: cut off, repeated; of conversations: limits, tools."""

import statistics

from parts.reading.log_reading import as_number, step_of
from parts.reading.logged_run import LoggedRun, first_part, is_solved, late, span
from parts.reading.trends import ends, repeats

TEXTS = 8  # completions of a step that are looked at for repetition: as many as the trainers log


def mean_of_the_last(run: LoggedRun) -> tuple[str, float]:
    """Name and late mean of the score for correctness, which is a share where scores end at 1; 0 where they do not."""
    part, means = first_part(run)
    highest = [as_number(row.get("score")) or 0.0 for row in run.samples] + run.values("score_max") + means
    return part, ends(means)[1] if means and max(highest) <= 1 else 0.0


def check_truncation(run: LoggedRun):
    """Completions that the length limit cuts, and those that are paid all the same."""
    cut = run.values("truncated")
    if len(cut) < 3 or ends(cut)[1] < 0.2:
        return
    (first, last), (part, mean) = ends(cut), mean_of_the_last(run)
    saw = f"{last:.0%} of the completions in {span(run, 'truncated')} hit the length limit ({first:.0%} at the start)"
    if mean + last - 1 > 0.5 * min(mean, last):
        saw += f"; {part} is {mean:.3g} there, so at least {mean + last - 1:.0%} were cut and paid"
        yield run.find("paid-unfinished", "truncated", saw)
    else:
        yield run.find("truncation", "truncated", saw)


def check_conversations(run: LoggedRun):
    """Tools that are not called or mostly fail, and conversations that a limit ends."""
    calls, failures = run.values("tool_calls"), run.values("tool_failures")
    # where nothing was called and nothing took a moment, nothing replied either: then there are tools
    tools = run.settings.get("tools") or not any(run.values("tool_seconds"))
    if len(calls) >= 3 and not any(calls) and tools:
        yield run.find("no-tool-calls", "tool_calls", f"not one tool call in {len(calls)} steps")
    if len(failures) >= 3 and late(run, "tool_failures") >= 0.5 and (not calls or late(run, "tool_calls") > 0):
        saw = f"{late(run, 'tool_failures'):.0%} of the tool calls in {span(run, 'tool_failures')} came to an error"
        yield run.find("tool-failures", "tool_failures", saw)
    if len(run.values("limit")) >= 3 and late(run, "limit") >= 0.5:
        saw = f"{late(run, 'limit'):.0%} of the conversations in {span(run, 'limit')} were ended by a limit"
        if run.values("turns"):
            saw += f", after {late(run, 'turns'):.3g} answers"
        yield run.find("turn-limit", "limit", saw, note=is_solved(run))


def check_waiting(run: LoggedRun):
    """Tools or rewards that take much of a step."""
    medians = {name: statistics.median(run.values(f"time_{name}") or [0]) for name in ("step", "reward", "rollout")}
    tools, scoring, step = run.values("tool_seconds"), run.values("time_reward"), medians["step"]
    if len(tools) >= 3 and step and statistics.median(tools) > 0.3 * step:
        saw = f"a conversation waits {statistics.median(tools):.3g} s for its tools, in a step of {step:.3g} s"
        yield run.find("slow-tools", "tool_seconds", saw)
    whole = step or medians["reward"] + medians["rollout"]
    if len(scoring) >= 3 and whole and medians["reward"] > 0.3 * whole:
        saw = f"rewards take {medians['reward']:.3g} s of {whole:.3g} s"
        yield run.find("slow-reward", "time_reward", saw)


def check_repetition(run: LoggedRun):
    """Completions that repeat themselves, by samples.jsonl."""
    by_step: dict[int, list[str]] = {}
    for row in run.samples:
        text = row.get("completion")
        if row.get("kind", "train") == "train" and isinstance(text, str):
            by_step.setdefault(step_of(row), []).append(text)
    shares = {step: statistics.median(map(repeats, by_step[step][:TEXTS])) for step in sorted(by_step)}
    if shares and shares[max(shares)] > 0.5:
        run.series["repeats"], last = shares, max(shares)
        run.names["repeats"] = "samples.jsonl"
        saw = f"half of the completions of step {last} consist to {shares[last]:.0%} or more of repeated pieces"
        yield run.find("repetition", "repeats", saw)
