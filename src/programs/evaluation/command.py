"""The command line."""

import random
import shlex
import sys
from pathlib import Path

from parts.foundation.exit_codes import exit_code, quiet_environment
from parts.foundation.messages import say, tell
from parts.reading.evaluation_results import read_report
from parts.running.output_folder import make_folder
from programs.evaluation.comparison import print_comparison
from programs.evaluation.models import open_models
from programs.evaluation.rows_and_siblings import ranks
from programs.evaluation.run import evaluate, task_rows
from programs.evaluation.settings import Config, parse_config
from programs.evaluation.task_table import check_choices, make_task
from programs.evaluation.trained_rows import warn_of_trained


def run(config: Config) -> int:
    """Do what the settings say and return the exit code."""
    check_choices(config)
    if config.system_prompt and Path(config.system_prompt).is_file():
        config.system_prompt = Path(config.system_prompt).read_text(encoding="utf-8").strip()
    random.seed(config.seed)  # for the user's graders
    if config.compare:
        reports = list(map(read_report, config.compare))
        warn_of_trained(reports)
        print_comparison(*reports, config)
        return 0
    tasks = [make_task(text, config) for text in dict.fromkeys(config.task)]
    loaded = [(task, *task_rows(config, task)) for task in tasks]  # before a model is
    folder, reports = Path(config.output_dir), []
    make_folder(config)
    for model in open_models(config):
        inner = folder if len(config.model) < 2 else folder / ("before", "after")[len(reports)]
        reports.append(evaluate(config, loaded, model, inner))
        del model  # before the next one is loaded
    if len(reports) == 2 and ranks()[0] == 0:
        print_comparison(*reports, config)
    if ranks()[0] == 0:
        tell(f"report {folder}")
        shown = [folder] if len(reports) < 2 else [folder / "before", folder / "after"]
        target = shlex.quote(str(folder / "page.html"))
        say(f"as a page: python scripts/report.py {shlex.join(map(str, shown))} --output {target}")
    return 0


def main(argv: list[str] | None = None) -> int:
    """Command line entry; returns the exit code."""

    def start() -> int:
        config = parse_config(sys.argv[1:] if argv is None else argv)
        quiet_environment(config.engine == "vllm")
        return run(config)

    return exit_code(
        start,
        mend="mend it and run the same command",
        stopped="stopped; what was computed is in the cache, the same command goes on",
    )


if __name__ == "__main__":
    sys.exit(main())
