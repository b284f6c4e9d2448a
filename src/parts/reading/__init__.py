"""Reading what runs and evaluations have written: statistics, logs, findings."""

ROOMS = (
    "paired_tests",
    "evaluation_results",
    "metric_names",
    "finding_advice",
    "trends",
    "logged_run",
    "sample_dumps",
    "plain_logs",
    "run_settings",
    "log_reading",
    "reward_findings",
    "completion_findings",
    "update_findings",
    "findings",
)
