"""A run on this machine: its plan, logs, checkpoints and end."""

ROOMS = (
    "memory",
    "plan",
    "run_log",
    "output_folder",
    "checkpoints",
    "run_end",
    "summary",
    "progress",
)
