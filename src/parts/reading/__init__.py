"""Reading what runs and evaluations have written: statistics, logs, settings, samples."""

ROOMS = (
    "paired_tests",
    "evaluation_results",
    "dialects",
    "logged_run",
    "run_settings",
    "sample_texts",
    "sample_files",
    "log_reading",
    "run_folder",
    "rescoring",
)
