"""Errors, settings, processes: what every program starts with."""

ROOMS = (
    "messages",
    "bundle",
    "dialect",
    "settings",
    "idle_settings",
    "processes",
    "exit_codes",
)
