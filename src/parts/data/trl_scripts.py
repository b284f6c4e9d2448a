"""A script that trains with TRL: the calls of its trainers, and of the configs that they get."""

import ast
import builtins

from parts.foundation.user_scripts import PythonSource

METHODS = "GRPO RLOO SFT DPO Reward KTO GKD Distillation OnlineDPO ORPO CPO PPO PPOv2".split()
CONFIGS = {f"{method}Trainer": f"{method}Config" for method in METHODS}
BASE = "TrainingArguments"  # transformers' class, from which TRL's configs derive


def trainer_names(source: PythonSource) -> dict[str, str]:
    """{name of a trainer of TRL, or of a class of the script that is derived from one: that trainer}."""
    return {name: trainer for trainer in CONFIGS for name in source.derived(trainer)}


def class_names(source: PythonSource, call: ast.Call | None) -> list[str]:
    """Names of the classes that a call may be of, through a variable for one or for one of two."""
    origin = source.origin(call and call.func)
    return [*map(source.name_of, [origin.body, origin.orelse] if isinstance(origin, ast.IfExp) else [origin])]


def trainer_calls(source: PythonSource) -> list[tuple[str, ast.Call]]:
    """(TRL trainer, call) for calls of trainers, of the script's subclasses and of variables for one, in file order."""
    names = trainer_names(source)
    calls = [(trainer, call) for name, trainer in names.items() for call in source.calls.get(name, [])]
    variables = {*source.calls} - {*names, *source.imports, *source.definitions, *vars(builtins)}
    for call in [x for name in variables for x in source.calls[name] if isinstance(x.func, ast.Name)]:
        calls += [(names[name], call) for name in class_names(source, call) if name in names][:1]
    return sorted(calls, key=lambda pair: source.start(pair[1]))


def config_call(source: PythonSource, call: ast.Call, places=()) -> tuple[ast.Call | None, ast.expr | None]:
    """(The call that makes a trainer's config, if it is seen; the expression that the trainer gets).

    `places`: names of the trainer's arguments in order.
    """
    node = source.argument(call, "config") or source.argument(call, "args", places)
    origin = source.origin(node)
    is_config = isinstance(origin, ast.Call) and source.name_of(origin) in {*CONFIGS.values(), BASE}
    return (origin if is_config else None), node
