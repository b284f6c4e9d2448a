"""Loading models: names and defaults of transformers that changed, and Unsloth's loader."""

import ast

from programs.migrate.edits import Report, Row, by_hand
from programs.migrate.python_source import PythonSource
from programs.migrate.tables import numbers
from programs.migrate.trl_run import transformers_of

NEW_NAMES = {"torch_dtype": "dtype", "use_auth_token": "token"}
QUANTISED = ("load_in_4bit", "load_in_8bit")
SINCE = "transformers 5.0"


def is_model(source: PythonSource, call: ast.Call) -> bool:
    owner = call.func.value if isinstance(call.func, ast.Attribute) else None
    name = source.name_of(owner) if owner is not None else ""
    return name.startswith("AutoModel") or name.endswith(("ForCausalLM", "ForSequenceClassification"))


def rename_arguments(source: PythonSource, arguments: dict, report: Report) -> None:
    for old, new in NEW_NAMES.items():
        if old in arguments and new not in arguments:
            argument = arguments[old]
            text = f'"{new}"' if argument.quoted else new
            row = Row(f"{new}={source.code(argument.value)}", SINCE, f"the new name of {old}", "ignored: fp32")
            report.edit(argument.start, argument.name_end, text, row)


def mend_loading(source: PythonSource, version: str, report: Report) -> set[str]:
    """Edit calls of from_pretrained; names that the script has to import from transformers."""
    wanted = set()
    for call in source.calls.get("from_pretrained", []):
        if not is_model(source, call):
            continue
        arguments, unseen = source.arguments(call)
        rename_arguments(source, arguments, report)
        if flash := arguments.get("use_flash_attention_2"):
            text = 'attn_implementation="flash_attention_2"'
            if source.code(flash.value) != "True":
                text = f'attn_implementation="flash_attention_2" if {source.code(flash.value)} else "sdpa"'
            report.edit(flash.start, flash.end, text, Row(text, SINCE, "its new name", "TypeError"))
        bits = [n for n in QUANTISED if n in arguments]
        for name in bits:
            argument = arguments[name]
            text = f"quantization_config=BitsAndBytesConfig({name}={source.code(argument.value)})"
            row = Row(text, SINCE, f"{name} is no longer an argument", "TypeError")
            if argument.quoted or len(bits) > 1 or "quantization_config" in arguments:
                place = source.place(argument.start)
                report.refuse(place, name, "no longer an argument", "quantization_config=BitsAndBytesConfig(…)")
                continue
            report.edit(argument.start, argument.end, text, row)
            wanted.add("BitsAndBytesConfig")
        is_old = numbers(transformers_of(version)) < (5, 0)
        if is_old and not unseen and not {"torch_dtype", "dtype"} & {*arguments}:
            kind = "float16" if bits or "quantization_config" in arguments else "float32"
            row = by_hand(f'dtype="{kind}"', "precision")
            report.edits += source.additions(call, [(f'dtype="{kind}"', row)])
    for argument in model_kwargs(source):
        rename_arguments(source, argument, report)
    return wanted


LORA = ("r", "lora_alpha", "lora_dropout", "target_modules", "bias", "use_rslora", "modules_to_save")


def name_unsloth(source: PythonSource, report: Report) -> None:
    """Say that Unsloth replaces code of TRL, and what each of its calls is without it."""
    names = {n: x for n, x in source.imports.items() if x[0].split(".")[0] in ("unsloth", "unsloth_zoo")}
    for module, _, statement in names.values():
        why = f"{module} replaces code of TRL and of the model: its run is not that of TRL alone"
        nearest = "leaving its imports out, with what stands below for its calls"
        report.refuse(source.place(source.span(statement)[0]), module, why, nearest)
    for method, calls in source.calls.items():
        for call in calls:
            function = call.func.value if isinstance(call.func, ast.Attribute) else call.func
            if getattr(function, "id", "") in names:
                place = source.place(source.span(call)[0])
                report.refuse(place, source.code(call.func), "Unsloth's", plain(source, call, method))


def plain(source: PythonSource, call: ast.Call, method: str) -> str:
    """What a call of Unsloth is with transformers and peft."""
    given = {name: source.code(argument.value) for name, argument in source.arguments(call)[0].items()}
    if method == "from_pretrained":
        model = given.get("model_name") or (source.code(call.args[0]) if call.args else "NAME")
        bits = next(
            (n for n in QUANTISED if given.get(n) == "True"), "load_in_4bit" if not {*QUANTISED} & {*given} else ""
        )
        quantised = f", quantization_config=BitsAndBytesConfig({bits}=True)" if bits else ""
        kind = given.get("dtype", '"auto"')
        loader = f"AutoModelForCausalLM.from_pretrained({model}, dtype={kind}{quantised})"
        return f"{loader} and AutoTokenizer.from_pretrained({model})"
    if method == "get_peft_model":
        settings = ", ".join(f"{name}={given[name]}" for name in LORA if name in given)
        return f"peft_config=LoraConfig({settings}) as an argument of the trainer"
    if "bfloat16" in method:
        return "torch.cuda.is_bf16_supported()"
    return "leaving it out"


def model_kwargs(source: PythonSource) -> list[dict]:
    """Dictionaries that are given as model_init_kwargs, as arguments."""
    nodes = [k.value for calls in source.calls.values() for call in calls for k in call.keywords]
    keys = [k.arg for calls in source.calls.values() for call in calls for k in call.keywords]
    named = [n for n, key in zip(nodes, keys, strict=True) if key and key.endswith("model_init_kwargs")]
    named += [
        node.value
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "attr", "").endswith("model_init_kwargs")
    ]
    found = []
    for node in {id(source.resolved(n)): source.resolved(n) for n in named}.values():
        spread = ast.Call(func=ast.Name("dict"), args=[], keywords=[])
        if isinstance(node, ast.Dict):
            spread.keywords = [ast.keyword(arg=None, value=node)]
            ast.copy_location(spread.keywords[0], node)
            found.append(source.arguments(spread)[0])
        elif isinstance(node, ast.Call):
            found.append(source.arguments(node)[0])
    return found
