"""An environment in a job: what it is played with, the rows that it takes, and the files of the agent loop."""

import dataclasses
import pprint
import shutil
from pathlib import Path

from parts.environments.play_setup import (
    PlaySetup,
    check_environment_rows,
    check_fits,
    load_with_reward,
    make_play_setup,
    playable_rows,
)
from parts.environments.tool_calls import CALL_FORMATS
from parts.foundation.file_text import file_text
from parts.foundation.messages import need, say
from parts.networks.models import open_tokenizer
from parts.rewards.reward_forms import full_spec
from parts.rewards.rewards import call_limits
from programs.verl_train.data import row_columns
from programs.verl_train.job_trial import try_job
from programs.verl_train.model_files import end_ids_of, model_shape
from programs.verl_train.reward_files import copy_with_imports, moved_rewards, write_module
from programs.verl_train.settings import Config

COPY = "environment"  # folder of the job
LOOP = file_text("job_files/environment.yaml")


def environment_setup(config: Config) -> PlaySetup:
    """What conversations are played with; UserError for what cannot be played with this model in verl."""
    tokenizer = open_tokenizer(config)
    environments, _ = load_with_reward(config, tokenizer)
    ends = end_ids_of(config.model, tokenizer)
    need(ends, f"got model {config.model!r} without an end token; expected eos_token_id in its generation config")
    setup = make_play_setup(config, tokenizer, ends, environments)
    need(
        isinstance(setup.form, str),
        "got a model whose tool calls are read by a response template, which the transformers of verl (5.10) has not; "
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


def write_environment_module(
    folder: Path, config: Config, setup: PlaySetup, columns: list[str], ship: list[str], error_file: str
) -> None:
    """Write verl_environment.py and .yaml, and the environment's file with what it imports, into the job folder."""
    file = config.environment.rpartition(":")[0]
    place = folder / COPY
    shutil.rmtree(place, ignore_errors=True)
    copy_with_imports(Path(file).resolve(), place, ship)
    settings = {
        "environment": copied_environment(config),
        "tools": {kind.name: kind.tools for kind in setup.environments.kinds.values()},
        "limits": dataclasses.asdict(setup.limits),
        "form": setup.form,
        "rewards": moved_rewards([*map(full_spec, config.reward)]),
        "reward_limits": dataclasses.astuple(call_limits(config)),
        "columns": columns,
        "error_file": error_file,
    }
    code = f"SETTINGS = {pprint.pformat(settings, width=116, sort_dicts=False)}\n"
    code += "for_here = {'environment': f\"{HERE}/{SETTINGS['environment']}\"}\n"
    code += "for_here['rewards'] = [f'{HERE}/{spec}' for spec in SETTINGS['rewards']]\n"
    code += "settings = sys.modules[NAME].LoopSettings(**SETTINGS | for_here)\n"
    code += "sys.modules[NAME].load_environments(settings.environment)\n"
    code += "EnvironmentLoop = sys.modules[NAME].environment_loop(settings)"
    write_module(folder / "verl_environment.py", "The agent loop of the run", code)
    (folder / "verl_environment.yaml").write_text(LOOP, encoding="utf-8")


def copied_environment(config: Config) -> str:
    """FILE.py:NAME of the environment in a job's folder; "" without one."""
    file, _, name = config.environment.rpartition(":")
    return f"{COPY}/{Path(file).name}:{name}" if file else ""


def job_findings(config: Config, folder: Path) -> list[str]:
    """What is wrong with a job's files in a process of their own; an error of a reward there is a warning."""
    findings, found = try_job(folder, copied_environment(config))
    if found.get("raised"):
        say(f"warning: in a trial a reward raised, at which verl's run would end: {found['raised']}")
    return findings


def need_sound_job(config: Config, folder: Path) -> None:
    findings = job_findings(config, folder)
    need(not findings, "".join(findings[:1]))
