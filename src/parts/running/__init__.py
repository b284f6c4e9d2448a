"""A run on this machine: its plan, logs, checkpoints and end."""

ROOMS = ("memory", "fit", "pictures", "output_folder", "checkpoints", "run_end", "run_check", "progress")
