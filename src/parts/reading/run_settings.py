"""Settings of a run under common names: ours, TRL's, verl's, EasyR1's, ms-swift's; YAML, JSON, shell, Python."""

import ast
import contextlib
import json
import math
import re
import shlex
from pathlib import Path

from parts.foundation.messages import need
from parts.reading.dialects import ACTOR, SETTINGS
from parts.reading.logged_run import LoggedRun

GROUPED = ("grpo", "rloo", "grpo_passk", "gpg", "rloo_vectorized", "dapo", "dr_grpo", "gspo", "cispo", "opo")
CONFIG_CALL = re.compile(r"(?:Config|Arguments|Args|Trainer|Params)$")
# what multiplies the updates of a batch in a page, and under which names a page of one's own has it
REPEATS = ("minibatches", "epochs", "ppo_epochs", "updates", "iterations", "num_iterations")
NO_SETTINGS = ("trainer_state", "summary", "results", "result", "versions", "label", "requirements")
MOST_BYTES = 2_000_000  # of a file of settings


def flat_config(config: dict, prefix: str = "") -> dict:
    """Nested settings by their dotted names."""
    flat = {}
    for key, value in config.items():
        is_folder = isinstance(value, dict) and value
        flat |= flat_config(value, f"{prefix}{key}.") if is_folder else {f"{prefix}{key}": value}
    return flat


def number_or_text(text):
    """A word of a command or a YAML value as a number, truth value or text."""
    if not isinstance(text, str):
        return text
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            return kind(text)
    return {"true": True, "false": False, "null": None, "none": None}.get(text.strip().lower(), text.strip("'\""))


def printed_config(lines: list[str]) -> dict:
    """verl's settings by dotted names, printed over many lines with Ray's prefix; {} where they are not whole."""
    plain = [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in lines]
    plain[0] = plain[0][plain[0].find("{'actor_rollout_ref': ") :]
    plain = [re.sub(r"^.*?\(\w+ pid=\d+(, ip=[\d.]+)?\) ?", "", line) for line in plain]
    try:  # without the lines of another process in between
        return flat_config(ast.literal_eval("".join(line for line in plain if line[:1] in " {")))
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return {}


def shell_settings(text: str) -> dict:
    """`--flag value`, `--flag=value` and `a.b=1` of a command or shell script; its variables stand for their values."""
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


def script_settings(text: str) -> dict:
    """Literal arguments of a training script's configurations and trainers, which is parsed and never run."""
    tree, flat, constants = ast.parse(text), {}, {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            constants[node.targets[0].id] = node.value
    for call in ast.walk(tree):
        name = ast.unparse(call.func) if isinstance(call, ast.Call) else ""
        for keyword in call.keywords if CONFIG_CALL.search(name) and not name.endswith("LoraConfig") else []:
            value = constants.get(getattr(keyword.value, "id", ""), keyword.value)
            try:
                flat[keyword.arg] = ast.literal_eval(value)
            except (ValueError, TypeError, SyntaxError):
                flat[keyword.arg] = ast.unparse(value)
    return flat_config({key: value for key, value in flat.items() if key})


def read_settings(path: Path) -> dict:
    """The settings in a file by dotted names; {} of a file that has none."""
    import yaml

    try:
        text = path.read_text(encoding="utf-8", errors="replace") if path.stat().st_size < MOST_BYTES else ""
        if path.suffix == ".py":
            return script_settings(text)
        if path.suffix not in (".yaml", ".yml", ".json"):
            return shell_settings(text)
        loaded = json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
    except (OSError, ValueError, SyntaxError, RecursionError, yaml.YAMLError):
        return {}
    if isinstance(loaded, list):  # hydra's overrides
        return shell_settings("\n".join(map(str, loaded)))
    return {k: number_or_text(v) for k, v in flat_config(loaded).items()} if isinstance(loaded, dict) else {}


def common_settings(flat: dict) -> dict:
    """What the causes want to know of settings by their dotted names."""
    settings, extra = {}, flat.get("trainer_args")
    flat = flat | shell_settings(" ".join(map(str, extra))) if isinstance(extra, list) else flat
    for name, endings in SETTINGS.items():
        aside = ("val_kwargs", ".ref.") if name.startswith("critic") else ("val_kwargs", ".ref.", "critic")
        lists = name in ("data", "reward")
        known = {k: v for k, v in flat.items() if v is not None and (lists or not isinstance(v, list))}
        for ending in endings.split():
            keys = [key for key in known if key == ending or key.endswith(f".{ending}")]
            keys = [key for key in keys if not any(word in key for word in aside)]
            if keys and name not in settings:
                settings[name] = known[min(keys, key=len)]
    if "learning_rate" in flat and "beta" not in flat and "num_generations" in flat:
        settings["kl"] = 0.0  # TRL's default
    return settings


def verl_settings(flat: dict) -> dict:
    """What the causes want to know of verl's settings by their dotted names."""
    if not flat:
        return {}
    batch, mini = flat.get("data.train_batch_size"), flat.get(f"{ACTOR}.ppo_mini_batch_size")
    epochs, bypass = flat.get(f"{ACTOR}.ppo_epochs", 1), flat.get("algorithm.rollout_correction.bypass_mode")
    known = common_settings(flat)
    if flat.get(f"{ACTOR}.use_kl_loss") is False and flat.get("algorithm.use_kl_in_reward") is False:
        known["kl"] = 0.0
    elif flat.get("algorithm.use_kl_in_reward") and not flat.get(f"{ACTOR}.use_kl_loss"):
        known["kl"] = flat.get("algorithm.kl_ctrl.kl_coef", known.get("kl"))
    return known | {
        "updates": None if bypass or not batch or not mini else epochs * max(1, batch // mini),
        "grouped": flat.get("algorithm.adv_estimator") in GROUPED,
    }


def our_settings(config: dict, is_page: bool = False) -> tuple[str, dict]:
    """(trainer, what the causes want to know) of a config.json or a page's settings.json; "" where it does not say."""
    known = common_settings(config)
    if not known.get("lr"):  # 0 stands for a default by size
        known.pop("lr", None)
    if "num_generations" in config:
        per_rollout = config.get("steps_per_generation", 0)
        one = config.get("num_iterations", 1) == 1 and not config.get("generation_batch_size")
        one = one and per_rollout in (0, config.get("gradient_accumulation_steps", 0))
        return "grpo_train", known | {"updates": 1 if one else None, "grouped": True}
    if not is_page and "ppo_epochs" not in config:
        return "", known
    known["updates"] = math.prod(config.get(name) or 1 for name in REPEATS)
    if is_page:
        return "one_page", known | {"grouped": "group_size" in config}
    advantage = config.get("advantage") or config.get("algorithm") or "gae"
    grouped = advantage not in ("gae", "ppo", "remax", "reinforce_pp")
    return "ppo_train", known | {
        # a distillation's rewards may be measured only
        "grouped": bool(config.get("reward_coef")) if "teacher" in config else grouped,
        "exact": config.get("precision") == "fp32" and config.get("rollout_engine") == "hf",
        "tools": bool(config.get("tool_format")),  # refused where an environment has none
    }


def settings_beside(folder: Path) -> tuple[Path, dict] | None:
    """The file of settings in a run's folder, and what it has; the one with most that is known."""
    patterns = ("*.json", "*.yaml", "*.yml", ".hydra/*.yaml", "*.py", "*.sh", "*.txt", "command*")
    paths = [path for pattern in patterns for path in sorted(folder.glob(pattern)) if path.is_file()]
    found = [(path, read_settings(path)) for path in paths if path.stem not in NO_SETTINGS]
    best = max(found, key=lambda entry: len(common_settings(entry[1])), default=(folder, {}))
    return best if len(common_settings(best[1])) >= 3 else None


def add_settings(run: LoggedRun, folder: Path | None, given: str) -> None:
    """Give a run what --settings names, or else what lies beside a log whose settings are not known yet."""
    path, flat = Path(given), {}
    if given:
        need(path.exists(), f"got --settings {given}, which does not exist; expected a file")
        flat = read_settings(path)
        need(
            common_settings(flat),
            f"got --settings {given} without a setting that is known; expected YAML, JSON, a shell script or a Python "
            "script with names such as temperature, learning_rate, num_generations",
        )
    elif folder and not (run.settings.get("lr") or run.config.get("lr") is not None):
        path, flat = next(filter(None, map(settings_beside, (folder, folder.parent))), (path, flat))
    if flat:
        is_verl = any(key.startswith(("actor_rollout_ref.", "data.")) for key in flat)
        known = verl_settings(flat) if is_verl else common_settings(flat)
        run.settings |= {name: value for name, value in known.items() if value is not None}
        run.config = flat | run.config
        run.settings_file = path.name
        if run.trainer == "trl" and "num_generations" in flat:
            run.settings.setdefault("grouped", True)
