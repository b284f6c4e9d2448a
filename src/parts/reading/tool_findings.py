"""The checks of conversations with tools and environments."""

import statistics

from parts.reading.logged_run import LoggedRun, is_solved, late, span


def check_tools(run: LoggedRun):
    """Tools that are not called, mostly fail, or take most of a step."""
    calls, failures = run.values("tool_calls"), run.values("tool_failures")
    seconds, step = run.values("tool_seconds"), run.values("time_step")
    # where nothing was called and nothing took a moment, nothing replied either: then there are tools
    tools = run.settings.get("tools") or not any(seconds)
    if len(calls) >= 3 and not any(calls) and tools:
        yield run.find("no-tool-calls", "tool_calls", f"not one tool call in {len(calls)} steps")
    if len(failures) >= 3 and late(run, "tool_failures") >= 0.5 and (not calls or late(run, "tool_calls") > 0):
        saw = f"{late(run, 'tool_failures'):.0%} of the tool calls in {span(run, 'tool_failures')} came to an error"
        yield run.find("tool-failures", "tool_failures", saw)
    if len(seconds) >= 3 and step and statistics.median(seconds) > 0.3 * statistics.median(step):
        saw = f"a conversation waits {statistics.median(seconds):.3g} s for its tools, in a step of "
        yield run.find("slow-tools", "tool_seconds", saw + f"{statistics.median(step):.3g} s")


def check_turns(run: LoggedRun):
    """Conversations that a limit ends."""
    if len(run.values("limit")) >= 3 and late(run, "limit") >= 0.5:
        saw = f"{late(run, 'limit'):.0%} of the conversations in {span(run, 'limit')} were ended by a limit"
        if run.values("turns"):
            saw += f", after {late(run, 'turns'):.3g} answers"
        yield run.find("turn-limit", "limit", saw, note=is_solved(run))
