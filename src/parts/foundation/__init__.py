"""What every program needs: errors, settings, processes."""

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
