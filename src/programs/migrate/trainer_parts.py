"""What a trainer is made with: models loaded as transformers wants it, rewards that take all TRL passes, a class."""

import ast
import re
import textwrap
from dataclasses import replace

from parts.foundation.user_scripts import Argument, PythonSource
from programs.migrate.edits import Change, Report, by_hand, edit_arguments, edit_call
from programs.migrate.tables import NAMES, gone_entry, newest, numbers, transformers_of
from programs.migrate.trl_settings import UNKNOWN, TrlRun, prompt_limit, reward_functions

MODEL_ARGS = ("model_args", "model_config")  # names of a ModelConfig
QUANTISED = ("load_in_4bit", "load_in_8bit")
WITHOUT_UNSLOTH = (
    "leaving it out: AutoModelForCausalLM.from_pretrained(NAME, dtype=…, quantization_config="
    "BitsAndBytesConfig(load_in_4bit=True)), as Unsloth has by default, AutoTokenizer.from_pretrained(NAME), and for "
    "the trainer peft_config=LoraConfig(…) with r, lora_alpha and target_modules of get_peft_model"
)


def is_model(source: PythonSource, call: ast.Call) -> bool:
    owner = call.func.value if isinstance(call.func, ast.Attribute) else None
    name = source.name_of(owner) if owner is not None else ""
    module = source.imports.get(getattr(owner, "id", ""), ("",))[0].split(".")[0]
    return bool(re.match(r"AutoModel|\w+For[A-Z]\w+$", name) or (module == "transformers" and name.endswith("Model")))


def renamed(source: PythonSource, arguments: list[Argument], report: Report) -> dict[str, Change]:
    """Changes to old arguments of from_pretrained; refuses a second argument with the same new name."""
    plan, since, effect = {}, "transformers 5.0", "ignored, or a TypeError"
    given = {argument.name: argument for argument in arguments}
    texts = {name: source.code(argument.value) for name, argument in given.items()}
    for old in [old for old in NAMES["forms"] if old in given]:
        new, form = NAMES["forms"][old]
        if new in {*given, *(change.name for change in plan.values())}:
            report.refuse(source.place(given[old].start), old, "no longer an argument", f"all of it in {new}=…")
        else:
            plan[old] = Change(new, form.format(texts[old]), since, f"the new name of {old}", effect)
    parts = [name for name in given if name in QUANTISED or name.startswith(("bnb_4bit_", "llm_int8_"))]
    switches = [texts[name] for name in QUANTISED if texts.get(name, "False") != "False"]
    if any(name in QUANTISED for name in parts):
        plan |= {name: Change(name, None, since, "part of quantization_config", effect) for name in parts}
    if switches:  # BitsAndBytesConfig would quantise even if all were False
        text = f"BitsAndBytesConfig({', '.join(f'{name}={texts[name]}' for name in parts)})"
        text += f" if {' or '.join(switches)} else None" if "True" not in switches else ""
        plan[parts[0]] = Change("quantization_config", text, since, f"the new form of {parts[0]}", effect)
    return plan


def precision(source: PythonSource, node: ast.expr | None, text: str) -> str:
    """Source of the dtype that old transformers chose: float16 for a quantised model, else float32.

    `node`: the call's quantization_config; `text`: the one that migration adds, or "".
    """
    origin = source.resolved(node)
    if (isinstance(origin, ast.Call) and source.name_of(origin).endswith("Config")) or text.endswith(")"):
        return '"float16"'
    condition = text.partition(") if ")[2].removesuffix(" else None") or (source.code(node) if node else "None")
    return '"float32"' if condition == "None" else f'"float16" if {condition} else "float32"'


def mend_loading(source: PythonSource, version: str, report: Report) -> bool:
    """Edit calls of from_pretrained and dictionaries of its arguments; returns whether one uses BitsAndBytesConfig."""
    is_old, plans = numbers(transformers_of(version)) < (5, 0), []
    for call in filter(lambda call: is_model(source, call), source.calls.get("from_pretrained", [])):
        arguments, unseen = source.arguments(call)
        names, plan = {argument.name for argument in arguments}, renamed(source, arguments, report)
        plans.append(plan)
        if is_old and not unseen and not {"torch_dtype", "dtype"} & names:
            text = next((change.text for change in plan.values() if change.name == "quantization_config"), "")
            dtype = precision(source, source.argument(call, "quantization_config"), text)
            plan["dtype"] = by_hand("dtype", dtype, "precision")
        edit_call(source, call, plan, report)
    named = [(x.arg, x) for x in source.nodes if isinstance(x, ast.keyword)]
    assigned = [x for x in source.nodes if isinstance(x, ast.Assign | ast.AnnAssign)]
    named += [(source.code(getattr(x, "target", None) or x.targets[0]), x) for x in assigned]
    for node in [node for name, node in named if str(name).endswith("model_init_kwargs") and node.value]:
        factories = [x.body for x in ast.walk(node.value) if isinstance(x, ast.Lambda)]  # of a dataclass field
        items, _ = source.items(factories[0] if factories else node.value)
        plans.append(renamed(source, items, report))
        edit_arguments(source, items, plans[-1], report)
    return any(change.name == "quantization_config" for plan in plans for change in plan.values())


def mend_model_config(source: PythonSource, report: Report) -> None:
    """Rename or refuse settings that TRL's ModelConfig no longer has: its arguments, and reads of `model_args.name`."""
    given = [(x.name, x.start) for call in source.calls.get("ModelConfig", []) for x in source.arguments(call)[0]]
    reads = [x for x in source.nodes if isinstance(x, ast.Attribute) and source.code(x.value).endswith(MODEL_ARGS)]
    given += [(x.attr, source.span(x)[1] - len(x.attr)) for x in reads]
    is_used = source.imports.get("ModelConfig", ("",))[0].startswith("trl")
    for name, start in [(name, source.text.index(name, start)) for name, start in given if is_used]:
        gone = gone_entry("ModelConfig", name)
        if new := gone.get("renamed"):
            row = Change(new, "", gone["since"], f"the new name of {name}", "TypeError, or AttributeError")
            report.edit(start, start + len(name), new, row)
        elif gone:
            why = f"no setting of ModelConfig since {gone['since']}"
            report.refuse(source.place(start), name, why, f"{name} of the trainer's config, or of from_pretrained")


def name_unsloth(source: PythonSource, report: Report) -> None:
    """Refuse imports of Unsloth, which replaces code of TRL, and name the plain calls."""
    for module, _, statement in source.imports.values():
        if module.split(".")[0] in ("unsloth", "unsloth_zoo"):
            why = f"{module} replaces code of TRL and of the model: its run is not that of TRL alone"
            report.refuse(source.place(statement), module, why, WITHOUT_UNSLOTH)


WHY = "the trainer also passes completion_ids, trainer_state and more by keyword"
LIBRARIES = {"functools", "trl", "transformers", "torch", "math", "re"}


def mend_rewards(source: PythonSource, node: ast.expr | None, report: Report) -> None:
    """Add **kwargs to each reward function of the file; note imported rewards, which may lack it.

    `node`: the trainer's reward_funcs, or None.
    """
    for args in [function.args for function in reward_functions(source) if not function.args.kwarg]:
        end = max(source.span(part)[1] for part in ast.iter_child_nodes(args))
        report.insert(end, ", **kwargs", Change("**kwargs", "", "0.18", WHY))
    for name in sorted({part.id for part in ast.walk(node) if isinstance(part, ast.Name)} if node else ()):
        module = source.imports.get(name, ("", "", None))[0]
        if module and module.split(".")[0] not in LIBRARIES:
            report.note(f"{name} is imported from {module}: it needs **kwargs, which cannot be seen here")


def insert_class(run: TrlRun, call: ast.Call, methods: list, classes: dict[tuple, str], report: Report) -> None:
    """Write a class with these methods, a row of the table for each, and call it in the trainer's place.

    It stands above the module's statement, or above the trainer's if it uses names that are not known there.
    `classes`: {what a class is made of: its name} of those that are written.
    """
    source, base = run.source, run.source.code(call.func)
    around = [x for x in source.blocks(call) if isinstance(x, ast.stmt)]
    limit = run.nodes.get("max_prompt_length") if prompt_limit(run)[0] is UNKNOWN else None
    if limit and (names := ", ".join(source.rebound(limit, limit, call))):
        why = f"{names} may be another value at {source.place(call)}, or none"
        report.refuse(source.place(limit), f"max_prompt_length={source.code(limit)}", why, "a number in the class")
    body = "\n\n".join(text for text, _ in methods)
    signatures = [x for x in ast.walk(ast.parse(f"class _:\n{body}")) if isinstance(x, ast.arguments)]
    used = [call.func, *(default for x in signatures for default in x.defaults)]
    is_local = any(source.rebound(x, call, around[-1]) for x in used)
    heads = {x: source.text[: source.start(x)].rpartition("\n") for x in around}
    statement = next(x for x in around[0 if is_local else -1 :] if not heads[x][2].strip() or x is around[-1])
    first = (getattr(statement, "decorator_list", None) or [statement])[0]
    indent, key = re.match(r"[ \t]*", heads[statement][2])[0], (base, body, is_local and statement)
    if key not in classes:
        name = base.split(".")[-1] + "AsBefore"
        number = sum(other.startswith(name) for other in classes.values())
        classes[key] = f"{name}{number + 1}" if number else name
        above = source.text[: source.start(first)].rpartition("\n")[0] + "\n"
        above = re.sub(r"(?:^[ \t]*#[^\n]*\n)+\Z", "", above, flags=re.M)  # comments on the statement
        is_apart = source.notebook or any(edit.start == len(above) for edit in report.edits)
        newlines = 1 if above.rstrip().endswith(":") else 2 if indent else 3
        gap = "" if is_apart else "\n" * (newlines - len(above) + len(above.rstrip("\n")))
        doc = f"Does what TRL {run.version} did and no setting of {newest('trl')} does; overrides its private methods."
        head = textwrap.indent(f'class {classes[key]}({base}):\n    """{doc}"""\n', indent)
        report.edit(len(above), len(above), gap + head)
        for text, row in methods:
            row = replace(row, name=f"{classes[key]}.{row.name}")
            report.edit(len(above), len(above), f"\n{textwrap.indent(text, indent)}\n", row)
        report.edit(len(above), len(above), "\n" if indent else "\n\n")
    report.edit(*source.span(call.func), classes[key])
