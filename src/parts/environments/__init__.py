"""Conversations with tools and environments."""

ROOMS = (
    "environments",
    "tool_calls",
    "tool_runs",
    "turn_bridge",
    "conversations",
    "scripted_play",
    "play_setup",
)
