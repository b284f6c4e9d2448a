"""Figures of evaluations: intervals, paired tests, results.json."""

ROOMS = ("paired_tests", "evaluation_results", "scored_samples")
