"""Errors, settings, processes: what every program starts with."""

ROOMS = (
    "file_text",
    "messages",
    "bundle",
    "dialect",
    "settings",
    "processes",
    "user_scripts",
    "exit_codes",
)
