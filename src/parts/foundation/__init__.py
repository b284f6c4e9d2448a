"""Errors, settings, processes: what every program starts with."""

ROOMS = (
    "file_text",
    "python_source",
    "messages",
    "bundle",
    "dialect",
    "settings",
    "processes",
    "user_scripts",
    "exit_codes",
)
