"""YAML files of TRL's command line, of open-r1 and of scripts that read their config from one."""

import ast
import json
import re
from collections import Counter
from dataclasses import replace

from parts.data.trl_names import trl_defaults
from parts.foundation.messages import need
from parts.foundation.user_scripts import PythonSource
from programs.migrate.edits import RULES, Change, Report
from programs.migrate.job_files import YamlJob
from programs.migrate.tables import BASE, NAMES, changes
from programs.migrate.trl_run import TrlRun
from programs.migrate.trl_settings import old_trainer, planned


def config_of(job: YamlJob) -> str:
    """The config class that a key of the file gives away; "" if none does."""
    names = {word.key.rpartition(".")[2] for word in job.words}
    return next((config for key, config in NAMES["signs"].items() if key in names), "")


def home_of(job: YamlJob, config: str) -> str:
    """The section that has the settings of a config, with a dot; "" for the file as a whole."""
    settings = {*trl_defaults(config), *changes("trl")["configs"].get(config, {}), *changes("trl")["configs"][BASE]}
    places = [w.key.rpartition(".") for w in job.words if settings.isdisjoint(w.key.split(".")[:-1])]
    homes = Counter(section for section, _, name in places if name in settings)
    home = max(homes, key=lambda section: (homes[section], section == ""), default="")
    rivals = homes.keys() - {"", home}
    others = sorted(section for section in rivals if homes[section] > max(2, homes[home] / 2))
    got = f"got {job.name} with settings of {config} in {' and in '.join([home, *others])}"
    need(not home or not others, f"{got}; expected one section; try a file for each")
    return f"{home}." if home else ""


def run_of(job: YamlJob, config: str, version: str) -> TrlRun:
    """The run of a YAML file, with its settings as arguments of a config's call."""
    import yaml

    given = yaml.safe_load(job.text)
    for section in home_of(job, config).split(".")[:-1]:
        given = given[section]
    given = {key: value for key, value in given.items() if str(key).isidentifier()}
    source = PythonSource(job.name, f"{config}({', '.join(f'{key}={value!r}' for key, value in given.items())})")
    return TrlRun(source, config, version, source.calls[config][0])


def migrate_yaml(job: YamlJob, run: TrlRun) -> Report:
    """Edit the settings of a file; refuse what only a class in a script restores."""
    report, home = Report(), home_of(job, run.config)
    plan = planned(run, report)
    for key, change in [*plan.items()]:
        try:
            value = change.text and run.source.value(ast.parse(change.text, mode="eval").body)
            plan[key] = replace(change, text=change.text and json.dumps(value))
        except ValueError:
            report.refuse("", f"{key}: {run.text(key)}", change.why, "the value by hand, as it is computed")
            del plan[key]
    plan = {f"{home}{key}": replace(change, name=f"{home}{change.name}") for key, change in plan.items()}
    for word in [word for word in job.words if word.key.endswith("torch_dtype")]:
        key = word.key.removesuffix("torch_dtype") + "dtype"
        plan[word.key] = Change(key, word.value, "transformers 5.0", "its new name", "fp32")
    given = {word.key for word in job.words}
    edits = [(word, plan[word.key]) for word in job.words if word.key in plan]
    job.apply(edits, [change for key, change in plan.items() if key not in given], report)
    nearest = "the class that migrate.py puts into a script, or rows that are short enough"
    if limit := run.value("max_prompt_length"):
        report.refuse("", f"max_prompt_length: {limit}", "prompts are no longer cut", nearest)
    if run.config == "SFTConfig" and old_trainer(run, run.has("dataset_text_field")):
        report.refuse("", "dataset_text_field", RULES["end_token"]["why"], nearest.split(", or")[0])
    starts = {word.key.removeprefix(home): word.start for word in job.words}
    for entry in report.impossible:
        key = re.match(r"\w*", entry["setting"])[0]
        entry["line"] = job.place(starts[key]) if key in starts else ""
    return report
