"""The command line."""

import dataclasses
import sys
from pathlib import Path

from parts.foundation.dialect import check_units, in_own_words
from parts.foundation.exit_codes import exit_code
from parts.foundation.messages import need, say, tell
from programs.verl_train.checks import check_written, run_check
from programs.verl_train.export import export_job
from programs.verl_train.from_trl import TrlRun, trl_run
from programs.verl_train.job_folder import prepare_job
from programs.verl_train.launch import run_local, script, write_script
from programs.verl_train.overrides import name_findings
from programs.verl_train.refusals import batch_findings, say_notes
from programs.verl_train.settings import Config, hardware_flags, parse_config


def print_files(config: Config, run: TrlRun | None) -> int:
    """--print: write the job folder and print the command."""
    job, overrides = prepare_job(config)
    folder, text = Path(job.folder), script(config, job, overrides, run=run)
    write_script(folder / "run.sh", text)
    tell(text, end="")
    for finding in batch_findings(config) + [text for _, text in name_findings(overrides) or []]:
        say(f"warning: {finding}")
    say("note: the rewards were not tried, which --check does")
    return 0


def run(argv: list[str]) -> int:
    words = in_own_words(argv, [f.name for f in dataclasses.fields(Config)])
    machines = hardware_flags(words)
    of_trl = trl_run(words, machines)
    config = parse_config(machines + (of_trl.flags if of_trl else []) + words)
    check_units(dataclasses.asdict(config), argv)
    need(of_trl or not config.from_trl, "got from_trl in the file of --config; expected it as a flag")
    if config.overrides:
        return check_written(config)
    say_notes(config)
    if config.check:
        return run_check(config)
    if config.export:
        return export_job(config, of_trl)
    return run_local(config, of_trl) if config.run else print_files(config, of_trl)


def main(argv: list[str] | None = None) -> int:
    words = sys.argv[1:] if argv is None else argv
    return exit_code(lambda: run(words), mend="try the same command", stopped="stopped")


if __name__ == "__main__":
    sys.exit(main())
