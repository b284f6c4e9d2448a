"""Two runs compared, row by row."""

import json
from pathlib import Path

from parts.foundation.messages import tell
from parts.reading.evaluation_results import compare_reports
from parts.running.output_folder import write_text
from programs.evaluation.settings import Config


def print_comparison(before: dict, after: dict, config: Config) -> None:
    """Write comparison.json and print the verdicts."""
    names = [report["model"]["name"] for report in (before, after)]
    results = compare_reports(before, after, config.bootstrap, config.seed)
    folder = Path(config.output_dir)
    folder.mkdir(parents=True, exist_ok=True)
    content = {"before": names[0], "after": names[1], "tasks": results}
    write_text(folder / "comparison.json", json.dumps(content, indent=1, allow_nan=False))
    tell(f"before {names[0]}\nafter  {names[1]}")
    for metrics in results.values():
        for metric in metrics.values():
            tell(f"  {metric['verdict']}")
