"""Reading what runs and evaluations have written: statistics, logs, settings, samples, signs."""

ROOMS = (
    "paired_tests",
    "evaluation_results",
    "metric_names",
    "marked_texts",
    "trends",
    "logged_run",
    "sample_texts",
    "plain_logs",
    "sample_dumps",
    "run_settings",
    "log_reading",
    "cause",
    "signs",
)
