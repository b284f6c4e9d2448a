"""The folder of a job: data, rewards, an environment, settings."""

import dataclasses
import json
import os
from pathlib import Path

from parts.data.held_out import hold_out, mark_trained, overlap_metric
from parts.data.prompts import evaluated_rows
from parts.data.question_parts import warn_unread
from parts.data.rows import placed_rows
from parts.data.verl_layout import OWN_INFO
from parts.environments.conversations import PlaySetup
from parts.environments.play_setup import (
    check_environment_rows,
    check_fits,
    load_with_reward,
    make_play_setup,
    playable_rows,
)
from parts.environments.tool_calls import CALL_FORMATS
from parts.foundation.bundle import BUNDLE, held_out_source, specs_for
from parts.foundation.messages import need, say
from parts.networks.tokenizers import open_tokenizer
from parts.rewards.reward_forms import full_spec
from parts.rewards.rewards import Reward, call_limits
from programs.verl_train.data import row_columns, verl_rows, write_parquet_file
from programs.verl_train.hydra import Override
from programs.verl_train.model_files import chat_template, count_parameters, end_ids_of, model_shape
from programs.verl_train.overrides import Layout, make_overrides
from programs.verl_train.refusals import check_expressible
from programs.verl_train.reward_files import refuse_groups, try_job, write_modules
from programs.verl_train.rewards import REWARD_ERROR
from programs.verl_train.settings import Config


def prepare_job(config: Config, remote: bool = False, folder: Path | None = None) -> tuple[Layout, list[Override]]:
    """Write the job folder and return the job and its overrides; `remote`: it will be another machine's work folder."""
    check_expressible(config)
    check_output(config)
    specs = reward_specs(config)
    output = Path(config.output_dir).resolve()
    folder = folder or output / "job"
    setup = environment_setup(config) if config.environment else None
    rows, columns = job_rows(config, setup, config.data, "train")
    held_out, more = [], []
    if config.hold_out:
        parts = hold_out(config, [task_row(row) | {"row": row} for row in rows])
        rows, held_out = ([task["row"] for task in part] for part in parts)
        held_out = evaluated_rows(config, held_out)
    elif source := held_out_source(config):
        held_out, more = job_rows(config, setup, source, "test")
    tasks, columns = [task_row(row) for row in held_out], list(dict.fromkeys([*columns, *more]))
    mark_trained(config, [task_row(row) for row in rows], tasks)
    check_row_count(config, len(rows))
    folder.mkdir(parents=True, exist_ok=True)
    template = chat_template(config.model, rows + held_out, config.chat, config.chat_template)
    write_parquet_file(rows, folder / "train.parquet")
    write_parquet_file(held_out or rows[:1], folder / "val.parquet")  # verl wants one
    write_code(config, folder, setup, columns, "" if config.check else str(output / REWARD_ERROR))
    reward = Reward(specs)
    refuse_groups(reward)
    for row in (rows + held_out)[:: max(1, len(rows))]:
        reward.check_columns({"prompt": row["prompt"], "columns": dict.fromkeys(columns)})
    job = Layout(
        folder="" if remote else str(folder),
        output=str(output),
        template=(setup and setup.bridge.chat_template) or template,
        held_out=bool(held_out),
        parameters=count_parameters(config),
        columns=columns,
        rows=len(rows),
        cpus=None if remote or config.slurm else config.cpus or os.cpu_count() or 1,
    )
    need(
        job.parameters or config.lr,
        f"got model {config.model!r} of unknown size, which lr 0 depends on; try --lr 1e-6",
    )
    overrides = make_overrides(config, job)
    settings = {"settings": dataclasses.asdict(config), "overrides": [o.text() for o in overrides]}
    settings |= {"held_out_rows": len(held_out), **overlap_metric(tasks)}
    (folder / "settings.json").write_text(json.dumps(settings, indent=1), encoding="utf-8")
    return job, overrides


def write_code(config: Config, folder: Path, setup: PlaySetup | None, columns: list[str], error_file: str) -> None:
    """Write the job's modules, with the user's files that they load."""
    if error_file:
        Path(error_file).unlink(missing_ok=True)
    ours = [BUNDLE / "scripts" / f"{name}.py" for name in ("math_grader", "sandbox")]  # the library looks for them late
    environment = setup and {
        "file": config.environment,
        "tools": {kind.name: kind.tools for kind in setup.environments.kinds.values()},
        "limits": dataclasses.asdict(setup.limits),
        "form": setup.form,
    }
    write_modules(
        folder,
        reward_specs(config),
        columns,
        [*(str(file) for file in ours if file.is_file()), *config.ship],
        {"advantage": config.advantage, "loss": config.loss},
        environment,
        reward_limits=dataclasses.astuple(call_limits(config)),
        error_file=error_file,
    )


def check_row_count(config: Config, count: int) -> None:
    """Refuse fewer rows than a step has prompts; a command may be written before its data is there."""
    prompts = config.batch_size // config.group_size
    few = f"got {count} rows; expected at least the {prompts} prompts of a step"
    few += "; try more rows, or a smaller --batch_size"
    need(count >= prompts or config.print or config.export, few)
    if count < prompts:
        say(f"warning: {few}")


def reward_specs(config: Config) -> list[str]:
    """The reward functions of a job; an environment needs none."""
    return [*map(full_spec, config.reward if config.environment else specs_for(config.data, config.reward))]


def job_rows(config: Config, setup: PlaySetup | None, source: str, split: str) -> tuple[list[dict], list[str]]:
    """verl's rows of a file, and the names of their columns; with an environment, those that it can begin with."""
    placed = evaluated_rows(config, placed_rows(source)) if split == "test" else placed_rows(source)
    places, read = [place for place, _ in placed], [row for _, row in placed]
    rows, columns = verl_rows(read, config.prompt_column, split, Path(source).stem, bool(setup), places)
    warn_unread(source, [(row, row[config.prompt_column]) for row in read if config.prompt_column in row])
    for row in rows:
        row["data_source"] = config.data_source or row["data_source"]
    return environment_rows(config, setup, rows, columns, source) if setup else rows, columns


def task_row(row: dict) -> dict:
    """What `mark_trained` compares of verl's rows."""
    return {"prompt": row["prompt"], "columns": {k: v for k, v in row["extra_info"].items() if k not in OWN_INFO}}


def check_output(config: Config) -> None:
    """Refuse another run's folder."""
    folder = Path(config.output_dir)
    traces = [*sorted(folder.glob("checkpoints/global_step_*")), *folder.glob("metrics.jsonl")]
    got = f"got output_dir {str(folder)!r}, which holds a run ({', '.join(p.name for p in traces[:3])})"
    advice = "expected a new folder; try --resume to continue, or another --output_dir"
    need(config.resume or config.check or not traces, f"{got}; {advice}")


def environment_setup(config: Config) -> PlaySetup:
    """What conversations are played with; UserError for what cannot be played with this model in verl."""
    tokenizer = open_tokenizer(config)
    environments, _ = load_with_reward(config, tokenizer)
    ends = end_ids_of(config.model, tokenizer)
    need(ends, f"got model {config.model!r} without an end token; expected eos_token_id in its generation config")
    setup = make_play_setup(config, tokenizer, ends, environments)
    need(
        isinstance(setup.form, str),
        "got a model whose tool calls are read by a response template, which verl's transformers (5.10) lacks; "
        f"expected one of {', '.join(CALL_FORMATS)}; try --tool_format NAME",
    )
    check_fits(config, model_shape(config).get("max_position_embeddings"))
    return setup


def environment_rows(config: Config, setup: PlaySetup, rows: list[dict], columns: list[str], source: str) -> list[dict]:
    """verl's rows without those whose prompts are too long with the tools; UserError for one that `reset` refuses."""
    known = []
    for row in rows:
        values = {name: value for name, value in row_columns(row).items() if name in columns}
        known.append({"prompt": row["prompt"], "columns": values, "row": row})
    check_environment_rows(setup.environments, known)
    return [fit["row"] for fit in playable_rows(config, setup, known, source)]


def job_findings(folder: Path) -> list[str]:
    """What is wrong with a job's files in a process of their own; an error of a reward there is a warning."""
    findings, trial = try_job(folder)
    if trial.get("raised"):
        say(f"warning: a reward raised in a trial, which would end verl's run: {trial['raised']}")
    return findings
