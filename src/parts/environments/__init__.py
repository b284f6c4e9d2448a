"""Conversations with tools and environments."""

ROOMS = (
    "environments",
    "tool_calls",
    "tool_runs",
    "control_tokens",
    "turn_bridge",
    "conversations",
    "scripted_play",
    "play",
    "play_setup",
)
