"""Conversations with tools and environments."""

ROOMS = (
    "environments",
    "tool_calls",
    "tool_runs",
    "control_tokens",
    "turn_bridge",
    "text_turns",
    "conversations",
    "play",
    "play_setup",
)
