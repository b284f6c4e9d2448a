"""Read settings from YAML, JSON, shell or Python, and map ours, TRL's, verl's and others' to common names."""

import ast
import contextlib
import json
import math
import re
import shlex
import tomllib
from pathlib import Path

from parts.foundation.messages import need
from parts.foundation.user_scripts import ARITHMETIC, without_magics
from parts.reading.dialects import ACTOR, SETTINGS
from parts.reading.logged_run import LoggedRun, as_number

GROUPED = ("grpo", "rloo", "grpo_passk", "gpg", "rloo_vectorized", "dapo", "dr_grpo", "gspo", "cispo", "opo")
CONFIG_CALL = re.compile(r"(?<!SFT)(?<!Lora)(?<!Generation)(?:Config|Arguments|Args|Trainer)$")
SAMPLES_CALL = re.compile(r"(SamplingParams|GenerationConfig|\.generate)$")
EVALUATES = re.compile(r"(?!.*train)(.*_)?(ev|val|(eval|test|valid|judge|infer)[a-z]*)(_.*)?", re.IGNORECASE)
OTHER_PARTS = re.compile(r"(^|\.)(val|eval|test|valid|validation|judge|grader|ref)[._]")
# settings whose product is the number of updates per batch, under all names that a one-page trainer may give them
REPEATS = ("minibatches", "epochs", "ppo_epochs", "updates", "iterations", "num_iterations")
NO_SETTINGS = re.compile(  # names of files beside a log that hold no training settings
    r"(trainer_state|summary|results?|versions|label|requirements)$|(eval|test|val|infer|generation|serv|judge|demo)"
)
LOADS = re.compile(r"(load_dataset|from_pretrained|from_json|from_csv|from_parquet)$")
KEEPS = ("map", "shuffle", "rename_column", "rename_columns", "remove_columns", "to", "cuda", "train")  # all rows
MOST_BYTES = 200_000  # larger files are results or data, not settings; notebooks with outputs may have ten times more


def flat_config(config: dict, prefix: str = "") -> dict:
    """Flatten nested settings to {dotted name: value}."""
    flat = {}
    for key, value in config.items():
        if isinstance(value, dict) and "value" in value and {*value} <= {"value", "desc"}:  # wandb's config.yaml
            value = value["value"]
        is_folder = isinstance(value, dict) and value
        flat |= flat_config(value, f"{prefix}{key}.") if is_folder else {f"{prefix}{key}": value}
    return flat


def number_or_text(text):
    """Convert a word of a command, or a YAML value, to a number, boolean, None or unquoted text."""
    if not isinstance(text, str):
        return text
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            return kind(text)
    return {"true": True, "false": False, "null": None, "none": None}.get(text.strip().lower(), text.strip("'\""))


def printed_config(lines: list[str]) -> dict:
    """verl's settings by dotted names, from the lines in which it prints them; {} while they are incomplete."""
    plain = [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in lines]
    plain[0] = plain[0][plain[0].find("{'actor_rollout_ref': ") :]
    plain = [re.sub(r"^.*?\(\w+ pid=\d+(, ip=[\d.]+)?\) ?", "", line) for line in plain]
    try:  # lines that other processes print in between begin differently
        return flat_config(ast.literal_eval("".join(line for line in plain if line[:1] in " {")))
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return {}


def shell_settings(text: str) -> dict:
    """Settings `--flag value`, `--flag=value` and `a.b=1` of a shell script, with its variables expanded."""
    text = re.sub(r"\$\{\w+:?[-=]([^${}]*)\}", r"\1", text)  # ${NAME:-default}
    variables = dict(re.findall(r"^\s*(?:export\s+)?([A-Za-z_]\w*)=([^\s$`]+)\s*$", text, re.MULTILINE))
    text = re.sub(r"\$\{?(\w+)\}?", lambda match: variables.get(match[1], match[0]), text.replace("\\\n", " "))
    words, flat = [], {}
    for line in text.splitlines():
        try:
            words += shlex.split(line, comments=True)
        except ValueError:
            words += line.split()
    for i, word in enumerate(words):
        after = words[i + 1] if i + 1 < len(words) else "--"
        if match := re.fullmatch(r"(?:--|\+{0,2})([A-Za-z_][\w.-]*)=(.*)", word, re.DOTALL):
            flat[match[1].replace("-", "_")] = number_or_text(match[2])
        elif re.fullmatch(r"--[A-Za-z][\w.-]*", word):
            flat[word[2:].replace("-", "_")] = True if after.startswith("--") else number_or_text(after)
    return flat


def loaded_name(node: ast.expr) -> ast.expr | None:
    """The file or model that a chain such as `load_dataset("json", data_files=FILE)["train"].map(…)` has all of."""
    while isinstance(node, ast.Call | ast.Attribute | ast.Subscript):
        if isinstance(node, ast.Call) and (call := LOADS.search(ast.unparse(node.func))):
            given = {keyword.arg: keyword.value for keyword in node.keywords}
            is_part = "[" in ast.unparse(given["split"]) if "split" in given else len(node.args) > 1
            if is_part:
                return None
            return given.get("data_files") if call[1] == "load_dataset" else (node.args or [None])[0]
        if isinstance(node, ast.Attribute) and node.attr not in KEEPS:
            return None
        node = node.func if isinstance(node, ast.Call) else node.value
    return None


def keeps_itself(name: str, value: ast.expr) -> bool:
    """Whether a name stands for the same file or model as before, as in `rows = rows.map(…)`."""
    return isinstance(value, ast.Call) and ast.unparse(value.func) in [f"{name}.{method}" for method in KEEPS]


def expression_value(node: ast.expr, known: dict[str, ast.expr]):
    """Evaluate a literal, a name in `known`, a sum, a product, a call's keywords or what it loads; else the source."""
    for _ in range(4):  # a name may stand for another name
        if isinstance(node, ast.Name | ast.Attribute):
            node = known.get(getattr(node, "attr", None) or node.id, node)
    if isinstance(node, ast.Call) and (ast.unparse(node.func) == "dict" or SAMPLES_CALL.search(ast.unparse(node.func))):
        return call_settings(node, known)
    if loaded := loaded_name(node):  # a name may be loaded from its own former value
        return expression_value(loaded, {name: value for name, value in known.items() if value is not node})
    if isinstance(node, ast.BinOp) and type(node.op) in ARITHMETIC:
        sides = [expression_value(side, known) for side in (node.left, node.right)]
        if all(isinstance(side, int | float) for side in sides) and sides[1]:
            return ARITHMETIC[type(node.op)](*sides)
    if isinstance(node, ast.Dict):
        pairs = zip(node.keys, node.values, strict=True)
        return {getattr(key, "value", ""): expression_value(value, known) for key, value in pairs}
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError):
        return ast.unparse(node)


def call_settings(call: ast.Call, known: dict[str, ast.expr]) -> dict:
    """The keyword arguments of a call, including those of `**name`."""
    flat = {}
    for keyword in call.keywords:
        value = expression_value(keyword.value, known)
        flat |= {keyword.arg: value} if keyword.arg else value if isinstance(value, dict) else {}
    return flat


def training_nodes(tree: ast.Module) -> list[ast.AST]:
    """The nodes of a script, except those in functions and classes that evaluate, by their names."""
    nodes = [tree]
    for node in nodes:
        for child in ast.iter_child_nodes(node):
            is_named = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
            if not is_named or not EVALUATES.fullmatch(child.name):
                nodes.append(child)
    return nodes


def script_settings(text: str) -> dict:
    """Settings in a Python script, which is parsed and never run.

    They are the keyword arguments of its configs and trainers. If these hold no known setting, they are those of its
    samplers and its variables. A name is resolved if the file gives it one value: by assignment or as a flag's default.
    """
    calls, given = [], {}
    for node in training_nodes(ast.parse(text)):
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value:
            target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
            given.setdefault(ast.unparse(target).rpartition(".")[2], []).append(node.value)
        elif isinstance(node, ast.Call):
            calls.append(node)
            default = [keyword.value for keyword in node.keywords if keyword.arg == "default"]
            if default and node.args and ast.unparse(node.func).endswith("add_argument"):
                given.setdefault(ast.unparse(node.args[-1]).strip("-'").replace("-", "_"), []).extend(default)
    known = {name: x for name, (x, *later) in given.items() if all(keeps_itself(name, value) for value in later)}
    trains, samples = (
        [flat_config(call_settings(call, known)) for call in calls if pattern.search(ast.unparse(call.func))]
        for pattern in (CONFIG_CALL, SAMPLES_CALL)
    )
    flat = {key: value for call in trains for key, value in call.items()}
    if common_settings(flat):
        return flat
    # where samplers disagree, one may belong to an evaluation: only what they agree on counts
    agreed = {k: v for call in samples for k, v in call.items() if all(other.get(k, v) == v for other in samples)}
    return agreed | {name.lower(): expression_value(value, known) for name, value in known.items()}


def read_settings(path: Path) -> dict:
    """The settings in a file by dotted names; {} if it is unreadable, too large or has none."""
    import yaml

    loaders = {".json": json.loads, ".ipynb": json.loads, ".toml": tomllib.loads}
    loaders |= dict.fromkeys((".yaml", ".yml"), yaml.safe_load)
    try:
        most = MOST_BYTES * (10 if path.suffix == ".ipynb" else 1)
        text = path.read_text(encoding="utf-8-sig", errors="replace") if path.stat().st_size < most else ""
        if path.suffix == ".py":
            return script_settings(text)
        if path.suffix not in loaders:
            return shell_settings(text)
        loaded = loaders[path.suffix](text)
        if path.suffix == ".ipynb":
            cells = ["".join(cell["source"]) for cell in loaded["cells"] if cell["cell_type"] == "code"]
            return script_settings("\n".join(map(without_magics, cells)))
    except (OSError, ValueError, LookupError, TypeError, SyntaxError, RecursionError, yaml.YAMLError):
        return {}
    # verl_train.py's, wandb-metadata.json's, or hydra's alone
    overrides = loaded.get("overrides", loaded.get("args")) if isinstance(loaded, dict) else loaded
    if isinstance(overrides, list):
        return shell_settings("\n".join(map(str, overrides)))
    flat = flat_config(loaded) if isinstance(loaded, dict) else {}
    named = {f"${{{key}}}": value for key, value in flat.items()}  # OmegaConf's references
    return {k: number_or_text(named.get(v, v) if isinstance(v, str) else v) for k, v in flat.items()}


def common_settings(flat: dict) -> dict:
    """Map settings by dotted names to common names (`SETTINGS`); the shortest matching name wins."""
    settings, extra = {}, flat.get("trainer_args")
    flat = flat | shell_settings(" ".join(map(str, extra))) if isinstance(extra, list) else flat
    for name, endings in SETTINGS.items():
        lists = name in ("data", "reward")
        known = {k: v for k, v in flat.items() if v is not None and (lists or not isinstance(v, list))}
        for ending in endings.split():
            keys = [k for k in known if f".{k}".endswith(f".{ending}") and ("critic" in name or "critic" not in k)]
            keys = [key for key in keys if name == "eval_data" or not OTHER_PARTS.search(key)]
            if keys and name not in settings:
                settings[name] = known[min(keys, key=len)]
    if "learning_rate" in flat and "beta" not in flat and "num_generations" in flat:
        settings["kl"] = 0.0  # TRL's default
    return settings


def verl_settings(flat: dict) -> dict:
    """Map verl's settings by dotted names to common names, with the KL weight in use and the updates per batch."""
    sizes = {f"{ACTOR}.ppo_epochs": 1} | flat  # a shell variable that is not expanded gives None
    names = ("data.train_batch_size", f"{ACTOR}.ppo_mini_batch_size", f"{ACTOR}.ppo_epochs")
    batch, mini, epochs = (as_number(sizes.get(name)) for name in names)
    bypass = flat.get("algorithm.rollout_correction.bypass_mode")
    common = common_settings(flat)
    if any(key.startswith(ACTOR) for key in flat):  # both KL terms are off by default; each has its own weight
        in_loss, in_reward = flat.get(f"{ACTOR}.use_kl_loss"), flat.get("algorithm.use_kl_in_reward")
        weight = f"{ACTOR}.kl_loss_coef" if in_loss else "algorithm.kl_ctrl.kl_coef" if in_reward else ""
        common["kl"] = flat.get(weight, 0.001 if weight else 0.0)
    return common | {
        "updates": None if bypass or not batch or not mini or not epochs else epochs * max(1, batch // mini),
        "grouped": flat.get("algorithm.adv_estimator") in GROUPED,
    }


def our_settings(config: dict, is_page: bool = False) -> tuple[str, dict]:
    """(trainer or "", common settings) of a config.json, or with `is_page` of a one-page trainer's settings.json."""
    common = common_settings(config)
    if not common.get("lr"):  # 0 means: the default for the model's size
        common.pop("lr", None)
    if "num_generations" in config:
        per_rollout = config.get("steps_per_generation", 0)
        one = config.get("num_iterations", 1) == 1 and not config.get("generation_batch_size")
        one = one and per_rollout in (0, config.get("gradient_accumulation_steps", 0))
        return "grpo_train", common | {"updates": 1 if one else None, "grouped": True}
    if not is_page and "ppo_epochs" not in config:
        return "", common
    common["updates"] = math.prod(as_number(config.get(name)) or 1 for name in REPEATS)
    if is_page:
        return "one_page", common | {"grouped": "group_size" in config}
    advantage = config.get("advantage") or config.get("algorithm") or "gae"
    grouped = advantage not in ("gae", "ppo", "remax", "reinforce_pp")
    return "ppo_train", common | {
        # a distillation may measure rewards without training on them
        "grouped": bool(config.get("reward_coef")) if "teacher" in config else grouped,
        "exact": config.get("precision") == "fp32" and config.get("rollout_engine") == "hf",
        "tools": bool(config.get("tool_format")),  # the trainer refuses a format if the environment has no tools
    }


def is_of_run(flat: dict, rates: list) -> bool:
    """Whether a learning rate in a file is the highest logged one, up to rounding, or one that may not be reached."""
    endings = tuple(f".{name}" for name in SETTINGS["lr"].split())
    given = [as_number(value) for key, value in flat.items() if f".{key}".endswith(endings)]
    values = [value for _, value in rates]
    if not any(given) or not any(values):
        return True
    # a log from the beginning reached the peak if its rate is constant or fell
    reached = rates[0][0] <= 0.1 * rates[-1][0] and (values[-1] < max(values) or min(values) == max(values))
    return any(rate and 0.5 <= rate / max(values) <= (2 if reached else math.inf) for rate in given)


def differ(one: dict, other: dict) -> bool:
    """Whether two files set the learning rate or group size of runs, and differ in a number."""
    one, other = common_settings(one), common_settings(other)
    kinds = [known.keys() & {"lr", "group_size"} for known in (one, other)]
    values = [{as_number(known[name]) for known in (one, other)} - {None} for name in one.keys() & other.keys()]
    return len(other) >= 3 and kinds[0] == kinds[1] != set() and any(len(pair) > 1 for pair in values)


def settings_beside(folder: Path, rates=(), remarks=None) -> tuple[Path, dict] | None:
    """(file, settings) of the file with the most known settings in a folder that may be of a run with these rates.

    If files of one ending differ in a number, `remarks` gets one that says so, and none is read.
    """
    patterns = ("*.json", "*.yaml", "*.yml", "*.toml", ".hydra/*.yaml", "*.py", "*.ipynb", "*.sh", "*.txt", "command*")
    paths = [path for pattern in patterns for path in sorted(folder.glob(pattern)) if path.is_file()]
    candidates = [(path, read_settings(path)) for path in paths if not NO_SETTINGS.match(path.stem.lower())]
    candidates = [(path, flat) for path, flat in candidates if path.suffix == ".py" or is_of_run(flat, rates)]
    path, flat = max(candidates, key=lambda entry: len(common_settings(entry[1])), default=(folder, {}))
    alike = [(p.name, more) for p, more in candidates if p.suffix == path.suffix and is_of_run(more, rates)]
    others = [name for name, more in alike if differ(flat, more)]
    if others and remarks is not None:
        remarks += [f"{path.name} and {others[0]} hold different settings: none was read; try --settings {path}"]
        return None
    for other, flags in candidates if path.suffix == ".py" else ():  # a script's command line overrides its defaults
        flat = flat | (flags if other.suffix in ("", ".sh", ".txt") else {})
    known = common_settings(flat)
    return (path, flat) if len(known) >= 3 and known.keys() & {"lr", "group_size"} else None


def settings_of(folder: Path, rates=(), remarks=None) -> tuple[Path, dict] | None:
    """(File, settings) of a run's folder: in it, in `job` of verl_train.py, or of the script that wrote it."""
    if inside := settings_beside(folder, rates, remarks) or settings_beside(folder / "job", rates, remarks):
        return inside
    script = script_of_output(folder)
    return (script, read_settings(script)) if script else None


def script_of_output(folder: Path) -> Path | None:
    """The script, at most three folders above, that names this folder as its output_dir."""
    for place in folder.resolve().parents[:3]:
        for path in [path for ending in ("py", "ipynb", "sh") for path in sorted(place.glob(f"*.{ending}"))[:20]]:
            named = read_settings(path).get("output_dir")
            if isinstance(named, str) and (place / named).resolve() == folder.resolve():
                return path
    return None


def add_settings(run: LoggedRun, folder: Path | None, given: str) -> None:
    """Add the settings of the file `given` by --settings; without one, and if none are known, those beside the log."""
    path, flat = Path(given), {}
    if given:
        need(path.exists(), f"got --settings {given}, which does not exist; expected a file")
        flat = read_settings(path)
        need(
            common_settings(flat),
            f"got --settings {given} without a setting that is known; expected YAML, JSON, a shell script or a Python "
            "script with names such as temperature, learning_rate, num_generations",
        )
    elif folder and not run.knows_settings():
        known = run.points("lr"), run.remarks
        path, flat = settings_of(folder, *known) or settings_beside(folder.parent, *known) or (path, flat)
    if flat:
        is_verl = any(key.startswith(("actor_rollout_ref.", "data.")) for key in flat)
        common = verl_settings(flat) if is_verl else common_settings(flat)
        run.settings |= {name: value for name, value in common.items() if value is not None}
        run.config = flat | run.config
        run.settings_file = path.name
        if run.trainer == "trl" and "num_generations" in flat:
            run.settings.setdefault("grouped", True)
