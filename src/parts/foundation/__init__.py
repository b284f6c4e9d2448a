"""Errors, settings, processes: what every program starts with."""

ROOMS = (
    "file_text",
    "messages",
    "bundle",
    "dialect",
    "settings",
    "idle_settings",
    "processes",
    "exit_codes",
)
