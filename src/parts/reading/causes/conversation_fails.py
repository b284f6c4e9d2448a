"""Conversations that fail: tools are not called, their calls end in errors."""

from parts.reading.cause import CERTAIN, STILL, Cause, Evidence, fact
from parts.reading.logged_run import LoggedRun


def find_conversation_fails(run: LoggedRun) -> Evidence | None:
    """No tool call at all where there are tools, or every second call in error."""
    calls, failures = run.values("tool_calls"), run.values("tool_failures")
    # where nothing was called and nothing took a moment, nothing replied either: then there are tools
    tools = run.settings.get("tools") or not any(run.values("tool_seconds"))
    if len(calls) >= 3 and not any(calls) and tools:
        return Evidence(CERTAIN, [fact(run, "tool_calls", f"not one tool call in {len(calls)} steps")])
    if len(failures) >= 3 and run.last("tool_failures") >= 0.5 and (not calls or run.last("tool_calls") > 0):
        text = f"{run.last('tool_failures'):.0%} of the tool calls come to an error"
        return Evidence(CERTAIN, [fact(run, "tool_failures", text)])
    return None


CONVERSATION_FAILS = Cause(
    "conversation_fails",
    "the model does not use its tools: it calls none, or most calls end in an error",
    find_conversation_fails,
    f"{STILL} too_hard too_sparse nothing_moves",
    "read the calls and errors in samples.jsonl; an instruct model that was trained on tools; {tool_form}",
    "",
    "definition: what is never sampled gets no gradient; every second call: our heuristic",
)
