"""Conversations with tools and environments."""

ROOMS = (
    "environments",
    "tool_calls",
    "tool_runs",
    "turn_bridge",
    "text_turns",
    "conversations",
    "play",
    "play_setup",
)
