"""--overrides: a file of overrides that was written by hand, checked without settings of ours."""

import ast
import contextlib
import dataclasses
import importlib.util
import re
import sys
from dataclasses import dataclass
from pathlib import Path

from parts.data.verl_keys import ACTOR, CORRECTION, ROLLOUT, advice_today
from parts.foundation.messages import UserError, need, say, suggest
from programs.verl_train.checks import compose_config, config_findings, need_verl, report_findings, value_findings
from programs.verl_train.hydra import Override, name_findings
from programs.verl_train.model_files import parquet_length
from programs.verl_train.settings import INSTALL, VERL, Config

LINE = re.compile(r"((?:\+\+|\+)?[\w.@/:-]+)=(.*)|(~[\w.@/:-]+)")
SECOND = re.compile(r"[^'\"\[{(]*\s[+~]{0,2}[\w@/-]+\.[\w.@/-]+=.*")  # another KEY=VALUE in a value without quotes
SHOWN = (  # what the file came to
    *("algorithm.adv_estimator", "algorithm.use_kl_in_reward", "data.train_batch_size", f"{ROLLOUT}.n"),
    *(f"{ROLLOUT}.name", f"{ROLLOUT}.temperature", "data.max_prompt_length", "data.max_response_length"),
    *(f"{ACTOR}.{name}" for name in ("ppo_mini_batch_size", "ppo_epochs", "loss_agg_mode", "clip_ratio_low")),
    *(f"{ACTOR}.{name}" for name in ("clip_ratio_high", "use_kl_loss", "kl_loss_coef", "kl_loss_type", "optim.lr")),
    *("trainer.nnodes", "trainer.n_gpus_per_node", "trainer.total_epochs", "trainer.total_training_steps"),
    *("trainer.save_freq", "reward.custom_reward_function.path", "reward.reward_manager.name"),
)


@dataclass(frozen=True)
class Written(Override):
    """An override as it stands in a file; `source` says where."""

    def text(self) -> str:
        return self.key if self.value is None else f"{self.key}={self.value}"


def read_overrides(file: str) -> list[Written]:
    """The overrides of a file: KEY=VALUE or ~KEY per line, as Hydra takes them; `#` begins a comment."""
    try:
        lines = Path(file).read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise UserError(f"got --overrides {file}: {error}; expected a text file") from None
    overrides = []
    for number, line in enumerate(lines, start=1):
        comment = re.search(r"(^|\s)#[^'\"]*$", line)  # in quotes it is text
        text = (line[: comment.start()] if comment else line).strip().removesuffix("\\").strip()
        match = LINE.fullmatch(text)
        if text and (not match or SECOND.fullmatch(match[2] or "")):
            raise UserError(
                f"{file}, line {number}: got {text!r}; expected one KEY=VALUE per line, or a # comment; for a shell "
                "script, try a copy with printf '%s\\n' in the place of `python3 -m verl.trainer.main_ppo`: `bash "
                "COPY > overrides.txt` writes such lines"
            )
        if match:
            overrides.append(Written(match[1] or match[3], match[2], f"{file}, line {number}"))
    need(overrides, f"got --overrides {file} without overrides; expected KEY=VALUE, one per line")
    for override in overrides:
        if re.search(r"\$\w", str(override.value)):
            say(f"note: {override.source}: {override.text()} has a shell variable, which verl does not expand")
    return overrides


def trap_findings(overrides: list[Written]) -> tuple[list[Written], list[str]]:
    """(The other overrides, findings about those that verl does not act upon, and about keys that stand twice)."""
    findings, rest, seen = [], [], {}
    values = {o.key.lstrip("+"): str(o.value).lower() for o in overrides}
    has_both_sides = {f"{ACTOR}.clip_ratio_low", f"{ACTOR}.clip_ratio_high"} <= {*values}
    has_old_trainer = values.get("trainer.use_v1") == "false"
    for override in overrides:
        key = override.key.lstrip("+")
        advice = advice_today(key.lstrip("~"), str(override.value))
        if (key == f"{ACTOR}.clip_ratio" and has_both_sides) or (key.startswith(f"{CORRECTION}.") and has_old_trainer):
            advice = None  # beside both sides it may stand; the old trainer reads them
        if advice:
            effect, instead = advice
            findings.append(f"key: got {override.text()} ({override.source}); verl {VERL} {effect}; try {instead}")
        else:
            rest.append(override)
        if key in seen:
            got = f"twice: got {key} in {seen[key]} and {override.source}"
            findings.append(f"{got}; expected it once, as the last wins")
        seen[key] = override.source
    return rest, findings


def file_findings(composed) -> list[str]:
    """Epochs that end before total_training_steps; notes on files that are not here."""
    trainer, data = composed.trainer, composed.data
    files = {"data.train_files": data.train_files, "data.val_files": data.val_files}
    files["reward.custom_reward_function.path"] = composed.reward.custom_reward_function.path
    for key, names in files.items():
        for name in [names] if isinstance(names, str) else names or []:
            if not name.startswith("pkg://") and not Path(name).expanduser().exists():
                say(f"note: {key}: {name} is not on this machine; the run needs it")
    train = [data.train_files] if isinstance(data.train_files, str) else [*data.train_files]
    paths = [Path(name).expanduser() for name in train]
    if not trainer.total_training_steps or not all(p.is_file() and p.suffix == ".parquet" for p in paths):
        return []
    steps = sum(parquet_length(str(path)) for path in paths) // data.train_batch_size
    if steps * trainer.total_epochs >= trainer.total_training_steps:
        return []
    got = f"steps: got {trainer.total_epochs} epochs of {steps} steps"
    wanted = f"trainer.total_training_steps={trainer.total_training_steps}"
    return [f"{got}; expected {wanted}, or the run ends early without a checkpoint"]


def reward_file_findings(file: str | None, function: str | None) -> list[str]:
    """A reward file without the function that verl would call; the file is parsed, not run."""
    path, function = Path(file or "").expanduser(), function or "compute_score"
    if not path.is_file():
        return []
    try:
        body = ast.parse(path.read_text(encoding="utf-8")).body
    except (SyntaxError, ValueError) as error:
        return [f"reward: got {path}, which is not valid Python ({error}); expected a file with {function}"]
    names = [node.name for node in body if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
    others = [node for node in body if isinstance(node, (ast.Import, ast.ImportFrom, ast.Assign, ast.If, ast.Try))]
    if function in names or any(function in ast.unparse(node) or "*" in ast.unparse(node) for node in others):
        return []
    got = f"reward: got {path} with the functions {', '.join(names) or 'none'}"
    return [f"{got}; expected reward.custom_reward_function.name={function} among them{suggest(function, names)}"]


def check_alone(config: Config) -> None:
    """Raise UserError unless --overrides stands with --check only."""
    need(config.check, f"got --overrides {config.overrides} without --check; expected both: a run takes --override")
    usual = dataclasses.asdict(dataclasses.replace(Config(), check=True, overrides=config.overrides))
    flags = " ".join(f"--{name}" for name, value in dataclasses.asdict(config).items() if value != usual[name])
    need(not flags, f"got {flags} with --overrides, a whole command by itself; expected --check --overrides alone")


def check_written(config: Config) -> int:
    """--check --overrides: names of keys, then verl's own configuration where it is installed; 1 with findings."""
    check_alone(config)
    overrides = read_overrides(config.overrides)
    rest, findings = trap_findings(overrides)
    report, wrong = {"verl": VERL, "overrides": len(overrides)}, name_findings(rest)
    findings += [text for _, text in wrong or []]
    values = {o.key.lstrip("+"): str(o.value).strip("'\"") for o in overrides}
    findings += reward_file_findings(
        *(values.get(f"reward.custom_reward_function.{name}") for name in ("path", "name"))
    )
    if wrong is not None and not importlib.util.find_spec("verl"):
        checked = "names of keys, keys without effect, the reward's function; no values, as verl is not installed here"
        say(f"note: {checked}; for those, {INSTALL}")
        return report_findings(report | {"checked": checked}, findings)
    need_verl()
    rest = [o for o in rest if o not in [override for override, _ in wrong or []]]
    with contextlib.redirect_stdout(sys.stderr):  # verl prints
        composed, refused = compose_config(rest)
        findings += refused
        if composed is not None:
            # what does not begin to be a configuration is told alone
            findings += value_findings(composed) or [*config_findings(composed), *file_findings(composed)]
            report["settings"] = shown_settings(composed)
    return report_findings(report, findings)


def shown_settings(composed) -> dict:
    from omegaconf import OmegaConf

    values = {key: OmegaConf.select(composed, key, throw_on_missing=False) for key in SHOWN}
    return {k: OmegaConf.to_container(v) if OmegaConf.is_config(v) else v for k, v in values.items()}
