"""A run's folder: its model, start, teacher, data and rewards, wherever the command is started."""

import json
from pathlib import Path
from types import SimpleNamespace

from parts.data.chat import template_settings
from parts.foundation.bundle import BUNDLE, held_out_source, specs_for
from parts.foundation.messages import UserError
from parts.running.output_folder import saved_settings

ACCEPTED = (
    "expected a run's folder, results.json of evaluation.py or its folder, FILE.py:function or :Environment with "
    "--data, a trainer or a file or folder of losses and advantages in Python, or settings (.yaml) or "
    "overrides (.txt) of a verl job"
)
DEFAULTS = {  # of settings that not every program has
    **{"teacher": [], "reward": [], "eval_data": "", "environment": "", "prompt_column": "prompt", "chat": False},
    **{"chat_template_kwargs": "", "max_prompt_tokens": 512, "max_new_tokens": 256, "temperature": 1.0},
}
NAMES_OF_TRL = {"max_prompt_length": "max_prompt_tokens", "max_completion_length": "max_new_tokens"}


def values_of(folder: Path) -> dict:
    """The settings that lie in a run's folder, ours or a page's; {} of another folder."""
    try:
        page = folder / "settings.json"
        return json.loads(page.read_text(encoding="utf-8")) if page.is_file() else saved_settings(folder)
    except (UserError, OSError, ValueError):  # a model's config.json
        return {}


def run_settings(folder: Path) -> SimpleNamespace:
    """The settings of a run under our names.

    `saved` is the folder of the model, `reward` and `teacher` are lists, files are named as seen from here.
    """
    values, is_page = values_of(folder), (folder / "settings.json").is_file()
    values = {**DEFAULTS, **{NAMES_OF_TRL.get(name, name): value for name, value in values.items()}}

    def place(name: str) -> str:
        """A path of the settings as seen from here; other names as they are."""
        places = (Path(name), folder / name, *(parent / name for parent in folder.resolve().parents), BUNDLE / name)
        return str(next((path for path in places if name and path.exists()), name))

    run = SimpleNamespace(**values, saved=folder if is_page else folder / "final", is_page=is_page)
    for name in ("model", "data"):
        setattr(run, name, place(values[name]))
    run.eval_data, run.template = place(held_out_source(run)), template_settings(run)
    rewards, teachers = ([x] if isinstance(x, str) else x for x in (run.reward or [], run.teacher or []))
    if not rewards and not teachers and not run.environment:
        rewards = specs_for(run.data, [])
    run.reward = ["".join((place(file), *rest)) for file, *rest in (spec.rpartition(":") for spec in rewards)]
    run.teacher = [place(name.partition("=")[2] or name) for name in teachers]
    return run
