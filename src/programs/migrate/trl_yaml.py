"""YAML files of TRL's command line, of open-r1 and of scripts that read their config from one."""

import ast
import json

from parts.foundation.user_scripts import PythonSource
from programs.migrate.edits import Report, Row, by_hand
from programs.migrate.job_files import YamlJob
from programs.migrate.trl_config import old_trainer, planned
from programs.migrate.trl_run import TrlRun

SIGNS = {"num_generations": "GRPOConfig", "max_completion_length": "GRPOConfig", "max_seq_length": "SFTConfig"} | {
    "packing": "SFTConfig",
    "precompute_ref_log_probs": "DPOConfig",
    "rpo_alpha": "DPOConfig",
}


def config_of(job: YamlJob) -> str:
    """The config class that the keys of a file belong to; "" for none."""
    return next((config for key, config in SIGNS.items() if any(w.key == key for w in job.words)), "")


def run_of(job: YamlJob, config: str, version: str) -> TrlRun:
    """The settings of a file as a call of a config."""
    import yaml

    given = {key: value for key, value in (yaml.safe_load(job.text) or {}).items() if str(key).isidentifier()}
    source = PythonSource(job.name, f"{config}({', '.join(f'{key}={value!r}' for key, value in given.items())})")
    return TrlRun(source, config, version, source.calls[config][0])


def migrate_yaml(job: YamlJob, run: TrlRun, report: Report) -> None:
    words, added = {word.key: word for word in job.words}, []
    for name, change in planned(run, report).items():
        text = None if change.text is None else json.dumps(run.source.value(ast.parse(change.text, mode="eval").body))
        if name in words and text is None:
            job.remove(words[name], change.row, report)
        elif name in words:
            job.rename(words[name], change.new_name or name, text, change.row, report)
        elif text is not None:
            added.append((change.new_name or name, text, change.row))
    job.add(added, report)
    nearest = "the class that migrate.py puts into a script"
    if limit := run.value("max_prompt_length"):
        nearest_rows = f"{nearest}, or rows that are short enough"
        report.refuse("", f"max_prompt_length: {limit}", "prompts are no longer cut", nearest_rows)
    if run.config == "SFTConfig" and old_trainer(run, run.has("dataset_text_field")):
        report.refuse("", "dataset_text_field", by_hand("", "end_token").why, nearest)
    for word in job.words:
        if word.key.endswith("torch_dtype"):
            key = word.key.removesuffix("torch_dtype") + "dtype"
            job.rename(word, key, None, Row(f"{key}: {word.value}", "transformers 5.0", "its new name", "fp32"), report)
