"""A run on this machine: its plan, logs, checkpoints and end."""

ROOMS = (
    "memory",
    "plan",
    "curves",
    "sample_tokens",
    "run_log",
    "output_folder",
    "checkpoints",
    "run_end",
    "summary",
    "progress",
)
