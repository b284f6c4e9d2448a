"""Settings of a run under common names: ours, TRL's, verl's, EasyR1's, ms-swift's; YAML, JSON, shell, Python."""

import ast
import json
import math
import re
import shlex
from pathlib import Path

from parts.reading.logged_run import LoggedRun, UnreadableError
from parts.reading.metric_names import ACTOR
from parts.reading.plain_logs import number_or_text

# common name: the last parts of dotted names that mean it in one trainer or another
NAMES_OF_SETTINGS = {
    "temperature": ("temperature",),
    "top_k": ("top_k",),
    "top_p": ("top_p",),
    "min_p": ("min_p",),
    "do_sample": ("rollout.do_sample",),
    "group_size": ("group_size", "num_generations", "rollout.n", "n_samples_per_prompt", "num_sample_generations"),
    "max_length": (
        *("max_new_tokens", "max_completion_length", "max_response_length"),
        *("response_length", "generate_max_len", "max_tokens"),
    ),
    "lr": ("lr", "learning_rate", "actor.optim.lr", "actor_learning_rate"),
    "kl": ("kl_coef", "beta", "actor.kl_loss_coef", "kl_ctrl.kl_coef", "init_kl_coef"),
    "warmup": ("warmup_steps", "actor.optim.lr_warmup_steps", "lr_warmup_steps"),
    "steps": ("steps", "max_steps", "total_training_steps"),
    "epochs": ("ppo_epochs", "num_iterations", "actor.ppo_epochs", "num_ppo_epochs", "epochs"),
    "minibatches": ("minibatches", "num_mini_batches"),
    "precision": ("precision", "fsdp_config.model_dtype", "torch_dtype", "dtype", "bnb_dtype"),
    "data": ("data", "data.train_files", "dataset", "train_dataset", "prompt_data"),
    "eval_data": ("eval_data", "data.val_files", "val_dataset", "eval_dataset"),
    "reward": ("reward", "reward_funcs", "custom_reward_function.path", "reward.reward_function"),
    "grad_clip": ("max_grad_norm", "grad_clip", "clip_grad"),
    "repetition_penalty": ("repetition_penalty",),
    "critic_lr": ("critic_lr", "critic.optim.lr"),
    "batch": ("batch_size", "train_batch_size", "rollout_batch_size", "rollout.batch_size"),
}
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


def printed_config(text: str) -> dict:
    """verl's settings by dotted names, which it prints at the start over many lines with Ray's prefix; {} without."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
    start = re.search(r"\{'actor_rollout_ref': ", plain)
    lines = []
    for line in plain[start.start() :].split("\n", 5000)[:5000] if start else []:
        line = re.sub(r"^.*?\(\w+ pid=\d+(, ip=[\d.]+)?\) ?", "", line)
        if line[:1] not in " {" and line != "":  # another process in between
            continue
        lines.append(line)
        if line.endswith("}}"):
            try:
                return flat_config(ast.literal_eval("\n".join(lines)))
            except (ValueError, SyntaxError, MemoryError, RecursionError):
                continue
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
    try:
        text = path.read_text(encoding="utf-8", errors="replace") if path.stat().st_size < MOST_BYTES else ""
        if path.suffix == ".py":
            return script_settings(text)
        if path.suffix in (".yaml", ".yml"):
            import yaml

            loaded = yaml.safe_load(text)
        elif path.suffix == ".json":
            loaded = json.loads(text)
        else:
            return shell_settings(text)
    except (OSError, ValueError, SyntaxError, RecursionError, ImportError):
        return {}
    except Exception as error:  # of yaml, which need not be installed
        if type(error).__module__.partition(".")[0] != "yaml":
            raise
        return {}
    if isinstance(loaded, list):  # hydra's overrides
        return shell_settings("\n".join(str(item) for item in loaded))
    return {k: number_or_text(v) for k, v in flat_config(loaded).items()} if isinstance(loaded, dict) else {}


def common_settings(flat: dict) -> dict:
    """What the causes want to know of settings by their dotted names."""
    settings, extra = {}, flat.get("trainer_args") or []
    flat = flat | shell_settings(" ".join(map(str, extra))) if isinstance(extra, list) else flat
    for name, endings in NAMES_OF_SETTINGS.items():
        for ending in endings:
            keys = [key for key in flat if key == ending or ("." in key and f".{key}".endswith(f".{ending}"))]
            aside = ("val_kwargs", ".ref.") if name == "critic_lr" else ("val_kwargs", ".ref.", "critic")
            keys = [key for key in keys if not any(word in key for word in aside)]
            keys = [key for key in keys if flat[key] is not None]
            if keys and name not in settings:
                settings[name] = flat[min(keys, key=len)]
    if "learning_rate" in flat and "beta" not in flat and "num_generations" in flat:
        settings["kl"] = 0.0  # TRL's default
    return {
        name: value for name, value in settings.items() if name in ("data", "reward") or not isinstance(value, list)
    }


def verl_settings(flat: dict) -> dict:
    """What the causes want to know of verl's settings by their dotted names."""
    if not flat:
        return {}
    batch, mini = flat.get("data.train_batch_size"), flat.get(f"{ACTOR}.ppo_mini_batch_size")
    epochs, estimator = flat.get(f"{ACTOR}.ppo_epochs", 1), flat.get("algorithm.adv_estimator")
    bypass = flat.get("algorithm.rollout_correction.bypass_mode")
    known = common_settings(flat)
    if flat.get(f"{ACTOR}.use_kl_loss") is False and flat.get("algorithm.use_kl_in_reward") is False:
        known["kl"] = 0.0
    elif flat.get("algorithm.use_kl_in_reward") and not flat.get(f"{ACTOR}.use_kl_loss"):
        known["kl"] = flat.get("algorithm.kl_ctrl.kl_coef", known.get("kl"))
    return known | {
        "updates": None if bypass or not batch or not mini else epochs * max(1, batch // mini),
        "grouped": estimator in GROUPED,
        "critic_warmup": flat.get("trainer.critic_warmup") or 0,
    }


def our_settings(config: dict) -> tuple[str, dict]:
    """(trainer, what the causes want to know) of a config.json; `trainer` is "" where it does not say."""
    known = common_settings(config) | {"fp16": config.get("precision") == "fp16"}
    if not known.get("lr"):  # 0 stands for a default by size
        known.pop("lr", None)
    if "num_generations" in config:
        per_rollout = config.get("steps_per_generation", 0)
        one = config.get("num_iterations", 1) == 1 and not config.get("generation_batch_size")
        one = one and per_rollout in (0, config.get("gradient_accumulation_steps", 0))
        return "grpo_train", known | {"updates": 1 if one else None, "grouped": True}
    if "ppo_epochs" not in config:
        return "", known
    advantage = config.get("advantage") or config.get("algorithm") or "gae"
    grouped = advantage not in ("gae", "ppo", "remax", "reinforce_pp")
    return "ppo_train", known | {
        "updates": config["ppo_epochs"] * config.get("minibatches", 1),
        # a distillation's rewards may be measured only
        "grouped": bool(config.get("reward_coef")) if "teacher" in config else grouped,
        "critic_warmup": config.get("critic_warmup_steps", 0),
        "value_clip": config.get("value_clip", 0),
        "exact": config.get("precision") == "fp32" and config.get("rollout_engine") == "hf",
        "tools": bool(config.get("tool_format")),  # refused where an environment has none
    }


def page_settings(given: dict) -> dict:
    """What the causes want to know of a one-page trainer's settings.json."""
    known = common_settings(given)
    if not known.get("lr"):  # 0 stands for a default by size
        known.pop("lr", None)
    return known | {
        "grouped": "group_size" in given,
        "updates": math.prod(given.get(name) or 1 for name in REPEATS),
        "critic_warmup": given.get("critic_warmup_steps", 0),
        "value_clip": given.get("value_clip", 0),
    }


def settings_beside(folder: Path) -> tuple[Path, dict] | None:
    """The file of settings in a run's folder, and what it has; the one with most that is known."""
    found = []
    for pattern in ("*.json", "*.yaml", "*.yml", ".hydra/*.yaml", "*.py", "*.sh", "*.txt", "command*"):
        for path in sorted(folder.glob(pattern)):
            flat = read_settings(path) if path.is_file() and path.stem not in NO_SETTINGS else {}
            found.append((len(common_settings(flat)), path, flat))
    best = max(found, key=lambda entry: entry[0], default=(0, folder, {}))
    return (best[1], best[2]) if best[0] >= 3 else None


def add_settings(run: LoggedRun, folder: Path, given: str) -> None:
    """Give a run what --settings names, or else what lies beside a log whose settings are not known yet."""
    if given:
        path = Path(given)
        found = path, read_settings(path)
        if not common_settings(found[1]):
            raise UnreadableError(
                f"got --settings {given} without a setting that is known; expected YAML, JSON, a shell script or a "
                "Python script with names such as temperature, learning_rate, num_generations"
            )
    else:
        found = (
            None
            if run.settings.get("lr") or run.config.get("lr") is not None
            else next(filter(None, map(settings_beside, (folder, folder.parent))), None)
        )
    if found:
        path, flat = found
        is_verl = any(key.startswith(("actor_rollout_ref.", "data.")) for key in flat)
        known = verl_settings(flat) if is_verl else common_settings(flat)
        run.settings |= {name: value for name, value in known.items() if value is not None}
        run.config = flat | run.config
        run.settings_file = path.name
        if run.trainer == "trl" and "num_generations" in flat:
            run.settings.setdefault("grouped", True)
