"""Reading what runs have written: logs, settings, samples."""

ROOMS = (
    "dialects",
    "logged_run",
    "run_settings",
    "sample_texts",
    "log_reading",
    "own_names",
    "sample_files",
    "logs",
    "run_folder",
)
