"""What a script uses of TRL, and what a version makes of it where it says nothing."""

import ast

from programs.migrate.edits import Report
from programs.migrate.python_source import PythonSource
from programs.migrate.tables import changes, newest
from programs.migrate.trl_arguments import default_changes
from programs.migrate.trl_calls import config_call, trainer_calls
from programs.migrate.trl_meanings import MEANINGS
from programs.migrate.trl_run import CONFIGS, TrlRun
from programs.migrate.versions import Use


def uses(source: PythonSource) -> list[Use]:
    """(What the script uses, line, its entries) for names whose presence depends on the version."""
    tables, named = changes("trl"), []
    for trainer, call in trainer_calls(source):
        place = source.place(source.span(call)[0])
        for name in source.arguments(call)[0]:
            if name in tables["trainers"].get(trainer, {}):
                named.append((f"{trainer}({name}=…)", place, tables["trainers"][trainer][name]))
        made, _ = config_call(source, trainer, call)
        named += config_uses(source, CONFIGS[trainer], made)
    for config in CONFIGS.values():
        for call in source.calls.get(config, []):
            named += config_uses(source, config, call)
    for name, (module, original, node) in source.imports.items():
        if module.split(".")[0] == "trl" and original in tables["modules"]:
            entries = [
                e
                for e in tables["modules"][original]
                if e.get("gone") or e.get("at") == module or module.count(".") > 1
            ]
            named.append((f"from {module} import {name}", source.place(source.span(node)[0]), entries))
    return named


def config_uses(source: PythonSource, config: str, call: ast.Call | None) -> list[Use]:
    if call is None:
        return []
    run, table = TrlRun(source, config, newest("trl"), call), changes("trl")["configs"].get(config, {})
    base = changes("trl")["configs"]["TrainingArguments"]
    place = source.place(source.span(call)[0])
    names = [n for n in (*run.arguments, *run.attributes) if n in table and n not in base and n not in INHERITABLE]
    return [(f"{config}({name}=…)", place, table[name]) for name in names]


INHERITABLE = (
    {"per_device_train_batch_size", "gradient_accumulation_steps", "learning_rate", "bf16", "logging_steps"}
    | {"gradient_checkpointing", "remove_unused_columns", "push_to_hub", "run_name", "use_liger_kernel"}
    | {"lr_scheduler_kwargs", "seed", "max_grad_norm", "dataloader_drop_last", "neftune_noise_alpha"}
)


def outcome(source: PythonSource, version: str) -> dict[str, str]:
    """What a version makes of a script where it says nothing: {setting: value}, by what would be written out."""
    settings, report = {}, Report()
    for trainer, call in trainer_calls(source):
        run = TrlRun(source, CONFIGS[trainer], version, config_call(source, trainer, call)[0])
        for name, change in default_changes(run).items():
            settings[name] = change.text
        for meaning in MEANINGS:
            settings |= {change.name: change.text or "" for change in meaning(run, report)}
        if run.value("max_prompt_length"):
            settings["prompts"] = f"cut to {run.text('max_prompt_length')}"
    return settings
