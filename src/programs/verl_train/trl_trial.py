"""--run_script: a TRL script run up to its trainer, in a process of its own, for what cannot be read off its source."""

import importlib
import json
import os
import sys
import types
from pathlib import Path

from parts.foundation.messages import UserError, need, say
from parts.foundation.user_scripts import run_as_main, script_end

TRIAL_SECONDS = 600  # a script that loads and maps its data takes less
RECORD = "--record_trl"  # the first argument of the process


class Recorded:
    """In the place of a class: its arguments, and None for what it would have beside them."""

    def __init__(self, *_, **settings):
        self.__dict__.update(settings)

    def __getattr__(self, name: str):
        if name.startswith("__"):
            raise AttributeError(name)


def changed_settings(settings) -> dict:
    """The attributes of an object that are not those of its class by default."""
    usual = vars(type(settings)())
    return {name: value for name, value in vars(settings).items() if value != usual.get(name)}


def write_rows(dataset, file: Path) -> None:
    with file.open("w", encoding="utf-8") as f:
        for number, row in enumerate(dataset, start=1):
            for name, value in dict(row).items():
                try:
                    json.dumps(value)
                except (TypeError, ValueError):
                    kind = type(value).__name__
                    raise UserError(f"row {number}: got a {kind} in the column {name!r}; expected JSON") from None
            f.write(json.dumps(dict(row), ensure_ascii=False) + "\n")


def recorder(folder: Path) -> type:
    """GRPOTrainer's place: writes what it is given, and ends the script."""

    class GRPOTrainer:
        def __init__(self, model=None, reward_funcs=None, args=None, train_dataset=None, eval_dataset=None, **more):
            lora, held_out = more.get("peft_config"), eval_dataset if hasattr(eval_dataset, "column_names") else None
            given = {"model": model if isinstance(model, str) else None, "config": vars(args) if args else {}}
            given["lora"] = changed_settings(lora) if lora else None
            for name, rows in (("train_dataset", train_dataset), ("eval_dataset", held_out)):
                if rows is not None:
                    write_rows(rows, folder / f"trl_{name}.jsonl")
                    given[name] = str(folder / f"trl_{name}.jsonl")
            text = json.dumps(given, default=lambda x: sorted(x) if isinstance(x, set | frozenset) else str(x))
            (folder / "trl_trial.json").write_text(text, encoding="utf-8")
            os._exit(0)  # whatever the script would catch or do at its end

    return GRPOTrainer


def record(file: str, folder: str) -> int:
    """The process: run a script with recorders in the place of TRL's trainer and its settings."""
    config, trainer = type("GRPOConfig", (Recorded,), {}), recorder(Path(folder))
    modules = [importlib.import_module("trl")]
    for name in ("trl.trainer.grpo_trainer", "trl.trainer.grpo_config"):
        modules.append(types.ModuleType(name))
        sys.modules[name] = modules[-1]
    for module in modules:
        module.GRPOConfig, module.GRPOTrainer = config, trainer
    return run_as_main(file)


def trial_of(file: str, folder: str) -> dict:
    """What a script passes to its trainer; its data sets are written to the folder."""
    script, out = Path(file).resolve(), Path(folder).resolve()
    out.mkdir(parents=True, exist_ok=True)
    say(f"note: running {script.name} in {script.parent} up to GRPOTrainer(…), for {TRIAL_SECONDS} s at most")
    command = [sys.executable, __file__, RECORD, str(script), str(out)]
    answer = out / "trl_trial.json"
    answer.unlink(missing_ok=True)
    end = script_end(command, script.parent, TRIAL_SECONDS) or "it ended before its trainer"
    expected = f"expected it to reach GRPOTrainer(…); try `python {script.name}` by hand, or --data FILE"
    need(answer.is_file(), f"got {file}, which failed: {end}; {expected}")
    given = json.loads(answer.read_text(encoding="utf-8"))
    answer.unlink()
    return given
