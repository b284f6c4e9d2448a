"""Reading what runs have written: logs, settings, samples."""

ROOMS = ("dialects", "logged_run", "run_settings", "sample_texts", "sample_files", "log_reading", "logs", "run_folder")
