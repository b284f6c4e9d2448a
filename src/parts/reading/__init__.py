"""Reading what runs and evaluations have written: statistics, logs, findings."""

ROOMS = (
    "paired_tests",
    "evaluation_results",
    "metric_names",
    "finding_thresholds",
    "finding_advice",
    "trends",
    "logged_run",
    "sample_dumps",
    "plain_logs",
    "log_reading",
    "tool_findings",
    "memory_findings",
    "held_out_findings",
    "findings",
    "verdict",
)
