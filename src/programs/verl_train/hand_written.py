"""--overrides: a file of overrides that was written by hand, checked without settings of ours."""

import ast
import contextlib
import dataclasses
import importlib.util
import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

from parts.foundation.messages import UserError, need, say, suggest, tell
from programs.verl_train.checks import compose_config, missing_engine, need_verl, parquet_length, validation_findings
from programs.verl_train.engine_overrides import cpus_needed
from programs.verl_train.hydra import Override
from programs.verl_train.known_names import name_findings
from programs.verl_train.names import ACTOR, CORRECTION, FSDP, MODEL, REF, ROLLOUT
from programs.verl_train.settings import INSTALL, VERL, Config
from programs.verl_train.shell_scripts import UNRUN, shell_overrides, starts_verl

IGNORED, GONE = "ignores it", "no longer has it"
# What is written in older guides, or looks right: key, or key=value -> (what verl does with it, what to write). Where a
# key is a whole section, its keys stand below what to write.
TODAY = {
    f"{ACTOR}.clip_ratio": (IGNORED, f"{ACTOR}.clip_ratio_low and {ACTOR}.clip_ratio_high"),
    f"{ACTOR}.grad_clip": (IGNORED, f"{ACTOR}.optim.clip_grad"),
    "critic.grad_clip": (IGNORED, "critic.optim.clip_grad"),
    f"{ACTOR}.use_torch_compile": (IGNORED, f"{FSDP}.use_torch_compile"),
    f"{FSDP}.dtype": (IGNORED, f"+{FSDP}.mixed_precision.param_dtype"),
    f"{REF}.fsdp_config.dtype": (IGNORED, f"+{REF}.fsdp_config.mixed_precision.param_dtype"),
    "critic.fsdp.dtype": (IGNORED, "+critic.fsdp.mixed_precision.param_dtype"),
    f"{REF}.fsdp_config.param_offload": (IGNORED, "leaving it out: the reference always waits in CPU memory"),
    "custom_reward_function": (IGNORED, "reward.custom_reward_function"),
    "reward_model.custom_reward_function": (GONE, "reward.custom_reward_function"),
    "reward_model": (IGNORED, "the section reward"),
    "reward_model.reward_manager": (IGNORED, "reward.reward_manager.name"),
    "reward_model.enable": (IGNORED, "reward.reward_model.enable"),
    "reward_model.model.path": (IGNORED, "reward.reward_model.model_path"),
    "reward_model.num_workers": (IGNORED, "reward.num_workers"),
    "reward_model.reward_kwargs": (GONE, "+reward.reward_kwargs"),
    "reward_model.use_reward_loop": (GONE, "leaving it out: it is always on"),
    "reward_model.launch_reward_fn_async": (GONE, "leaving it out: it is always on"),
    "sandbox_fusion": (IGNORED, "reward.sandbox_fusion"),
    "algorithm.filter_groups.max_num_gen_batches": (IGNORED, "algorithm.filter_groups.max_inflight_gen_batches"),
    f"{CORRECTION}.loss_type": (IGNORED, f"{ACTOR}.policy_loss.loss_mode"),
    f"{CORRECTION}.bypass_mode=true": ("leaves out the correction with it", "leaving it out"),
    "algorithm.policy_loss_fn": (GONE, f"{ACTOR}.policy_loss.loss_mode"),
    f"{ACTOR}.tis_imp_ratio_cap": (GONE, f"{CORRECTION}.rollout_is=token and {CORRECTION}.rollout_is_threshold"),
    "algorithm.rollout_is": (GONE, f"{CORRECTION}.rollout_is"),
    "data.chat_template": (GONE, f"{MODEL}.custom_chat_template, the template's text"),
    "data.sampler": (GONE, "data.shuffle=False, and a data set that orders its rows"),
    "data.datagen": (GONE, "data.custom_cls"),
    **dict.fromkeys(("data.return_raw_input_ids", "data.return_raw_chat"), (IGNORED, "leaving it out")),
    "data.reward_fn_key": (IGNORED, "the column data_source"),
    "data.truncation": (IGNORED, "data.filter_overlong_prompts=True"),
    f"{ROLLOUT}.multi_turn.max_turns": (GONE, f"{ROLLOUT}.multi_turn.max_assistant_turns"),
    f"{ROLLOUT}.multi_turn.interaction_config_path": (GONE, "an agent loop of your own"),
    f"{ROLLOUT}.multi_turn.enable": (IGNORED, f"{ROLLOUT}.agent.default_agent_loop=tool_agent"),
    f"{ROLLOUT}.mode=sync": ("refuses it at the start", "leaving it out: all rollout is asynchronous"),
    f"{ROLLOUT}.name=hf": ("refuses it at the start", f"{ROLLOUT}.name=vllm"),
    f"{ACTOR}.ppo_micro_batch_size": ("deprecates it", f"{ACTOR}.ppo_micro_batch_size_per_gpu"),
    f"{ACTOR}.optim.warmup_style": ("deprecates it", f"{ACTOR}.optim.lr_scheduler_type"),
    f"{ACTOR}.ulysses_sequence_parallel_size": ("deprecates it", f"{FSDP}.ulysses_sequence_parallel_size"),
    "critic.model.fsdp_config": (GONE, "critic.fsdp"),
    "trainer.use_legacy_worker_impl": (GONE, "leaving it out: there is one engine"),
    "trainer.balance_batch=false": (IGNORED, "leaving it out"),
    "trainer.esi_redundant_time": (IGNORED, "leaving it out"),
    "ray_init": (GONE, "ray_kwargs.ray_init"),
}
SHOWN = (  # what the file came to
    *("algorithm.adv_estimator", "algorithm.use_kl_in_reward", "data.train_batch_size", f"{ROLLOUT}.n"),
    *(f"{ROLLOUT}.name", f"{ROLLOUT}.temperature", "data.max_prompt_length", "data.max_response_length"),
    *(f"{ACTOR}.{name}" for name in ("ppo_mini_batch_size", "ppo_epochs", "loss_agg_mode", "clip_ratio_low")),
    *(f"{ACTOR}.{name}" for name in ("clip_ratio_high", "use_kl_loss", "kl_loss_coef", "kl_loss_type", "optim.lr")),
    *("trainer.nnodes", "trainer.n_gpus_per_node", "trainer.total_epochs", "trainer.total_training_steps"),
    *("trainer.save_freq", "reward.custom_reward_function.path", "reward.reward_manager.name"),
)
COUNTS = (  # what is computed with
    *("trainer.nnodes", "trainer.n_gpus_per_node", "trainer.save_freq", "trainer.total_epochs"),
    *("data.train_batch_size", "transfer_queue.backend.SimpleStorage.num_data_storage_units"),
)


@dataclass(frozen=True)
class Written(Override):
    """An override as it stands in a file; `source` says where."""

    def text(self) -> str:
        """The line."""
        return self.key if self.value is None else f"{self.key}={self.value}"


def read_overrides(file: str) -> list[Written]:
    """The overrides of a file: KEY=VALUE or ~KEY a line, as Hydra takes them, or a shell script; `#` begins a comment.

    Raises:
        UserError: the file cannot be read, has none, or a line is none.
    """
    try:
        text = Path(file).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise UserError(f"got --overrides {file}: {error}; expected a text file") from None
    if starts_verl(text):
        found = [Written(*override) for override in shell_overrides(text, file)]
    else:
        found = listed_overrides(text, file)
    need(found, f"got --overrides {file} without any; expected KEY=VALUE, one a line, or a script that starts verl")
    return found


def listed_overrides(text: str, file: str) -> list[Written]:
    """The overrides of a text with one a line."""
    found = []
    for number, line in enumerate(text.splitlines(), start=1):
        comment = re.search(r"(^|\s)#[^'\"]*$", line)  # in quotes it is text
        said = (line[: comment.start()] if comment else line).strip().removesuffix("\\").strip()
        match = re.fullmatch(r"((?:\+\+|\+)?[\w.@/:-]+)=(.*)|(~[\w.@/:-]+)", said)
        need(match or not said, f"{file}, line {number}: got {said!r}; expected KEY=VALUE, or # and a comment")
        if match:
            found.append(Written(match[1] or match[3], match[2], f"{file}, line {number}"))
    return found


def today(override: Override) -> tuple[str, str] | None:
    """(What verl does with a key of TODAY, what to write), the most exact one."""
    bare, value = override.key.lstrip("+~"), str(override.value).strip().lower()
    for trap in sorted(TODAY, key=len, reverse=True):
        name, _, only = trap.partition("=")
        if (bare == name or bare.startswith(f"{name}.")) and only in ("", value):
            what, instead = TODAY[trap]
            section = re.fullmatch(r"\+?[\w.]+", instead)
            return what, instead + bare.removeprefix(name) * bool(section)
    return None


def trap_findings(overrides: list[Written]) -> tuple[list[Written], list[str]]:
    """(The other overrides, findings about those that verl does not act upon, and about keys that stand twice)."""
    found, rest, seen = [], [], {}
    values = {o.key.lstrip("+"): str(o.value).lower() for o in overrides}
    both = {f"{ACTOR}.clip_ratio_low", f"{ACTOR}.clip_ratio_high"} <= {*values}
    old = values.get("trainer.use_v1") == "false"
    for override in overrides:
        key, trap = override.key.lstrip("+"), today(override)
        if (key == f"{ACTOR}.clip_ratio" and both) or (key.startswith(f"{CORRECTION}.") and old):
            trap = None  # beside both sides it may stand; the old trainer reads them
        if trap:
            what, instead = trap
            found.append(f"key: got {override.text()} ({override.source}); verl {VERL} {what}; try {instead}")
        else:
            rest.append(override)
        if key in seen:
            found.append(f"twice: got {key} in {seen[key]} and {override.source}; expected it once, as the last wins")
        seen[key] = override.source
    return rest, found


def known_keys() -> list[str]:
    """Every key of verl's own configuration."""
    from omegaconf import OmegaConf

    def below(node, prefix: str) -> list[str]:
        if not isinstance(node, dict):
            return [prefix]
        return [prefix] * bool(prefix) + [
            k for name, v in node.items() for k in below(v, f"{prefix}.{name}".lstrip("."))
        ]

    base, _ = compose_config([])
    return below(OmegaConf.to_container(base, resolve=False), "")


def with_suggestions(refused: list[str], overrides: list[Written]) -> list[str]:
    """Findings about refused overrides, each with the nearest key of verl where its own is none."""
    if not refused:
        return []
    known = known_keys()
    unknown = [o for o in overrides if o.key.lstrip("+~") not in known]
    near = [next((o.key for o in unknown if names(line, o)), "") for line in refused]
    return [line + (suggest(key.lstrip("+~"), known) if key else "") for line, key in zip(refused, near, strict=True)]


def names(line: str, override: Written) -> bool:
    """Whether a finding of compose_config is about an override."""
    return f"got {override.text()} (from {override.source})" in line


def start_findings(composed) -> list[str]:
    """What would stop, hang or silently shorten a run with this configuration."""
    from omegaconf import OmegaConf
    from verl.utils.config import omega_conf_to_dataclass

    judge = composed.reward.reward_model.enable  # a reward model's engine has a name of its own
    missing = sorted(k for k in OmegaConf.missing_keys(composed) if judge or not k.startswith("reward.reward_model."))
    if missing:
        return [f"missing: got no {key}; expected it, as verl has no default" for key in missing]
    found = validation_findings(composed)
    try:
        omega_conf_to_dataclass(composed.actor_rollout_ref.rollout)
    except Exception as error:  # as validate_config's
        found.append(f"validation: verl refuses the rollout: {type(error).__name__}: {error}")
    if wrong := {key: x for key in COUNTS if not isinstance(x := OmegaConf.select(composed, key), int)}:
        why = "expected an integer; try a value for its variable, as in `NODES=2 python …`"
        return [*found, *(f"number: got {key}={x}; {why}" for key, x in wrong.items())]
    trainer, cpus = composed.trainer, composed.ray_kwargs.ray_init.num_cpus
    needed = cpus_needed(
        trainer.nnodes * trainer.n_gpus_per_node, composed.transfer_queue.backend.SimpleStorage.num_data_storage_units
    )
    if isinstance(cpus, str) and UNRUN not in cpus:
        found.append(f"number: got ray_kwargs.ray_init.num_cpus={cpus}; expected an integer")
    elif isinstance(cpus, str):  # what a command such as nproc prints, where the script runs
        say(f"note: num_cpus comes from a command; {needed} are needed, with fewer Ray waits for ever")
    elif cpus is not None and cpus < needed:
        found.append(f"cpus: got ray_kwargs.ray_init.num_cpus={cpus}; expected {needed}, or it waits for ever")
    actor = composed.actor_rollout_ref.actor
    if actor.ppo_epochs == 1 and actor.ppo_mini_batch_size == composed.data.train_batch_size:
        say("note: one update a batch, so the ratio is 1 and no clip acts; a smaller ppo_mini_batch_size makes more")
    if trainer.save_freq <= 0:
        found.append(f"checkpoint: got trainer.save_freq={trainer.save_freq}, so nothing is saved; try 25")
    return found + file_findings(composed)


def file_findings(composed) -> list[str]:
    """Epochs that end before total_training_steps, a reward file without its function; notes on files not here."""
    trainer, data, reward = composed.trainer, composed.data, composed.reward.custom_reward_function.path
    found = reward_file_findings(composed.reward.custom_reward_function)
    files = {"data.train_files": data.train_files, "data.val_files": data.val_files}
    files |= {"reward.custom_reward_function.path": reward} if reward else {}
    for key, names in files.items():
        for name in [names] if isinstance(names, str) else names or []:
            if not name.startswith("pkg://") and not Path(name).expanduser().exists():
                say(f"note: {key}: {name} is not on this machine; the run needs it")
    train = [data.train_files] if isinstance(data.train_files, str) else [*data.train_files]
    paths = [Path(name).expanduser() for name in train]
    if not trainer.total_training_steps or not all(p.is_file() and p.suffix == ".parquet" for p in paths):
        return found
    steps = sum(parquet_length(str(path)) for path in paths) // data.train_batch_size * trainer.total_epochs
    if steps < trainer.total_training_steps:
        what = f"steps: got {trainer.total_epochs} epochs of {steps // trainer.total_epochs} steps"
        wanted = f"trainer.total_training_steps={trainer.total_training_steps}"
        found.append(f"{what}; expected {wanted}, or the run ends early, unsaved")
    return found


def reward_file_findings(reward) -> list[str]:
    """A reward file without the function that verl would call; the file is parsed, not run."""
    path = Path(reward.path or "").expanduser()
    if not path.is_file():
        return []
    try:
        body = ast.parse(path.read_text(encoding="utf-8")).body
    except (SyntaxError, ValueError) as error:
        return [f"reward: got {path}, which is no Python ({error}); expected a file with {reward.name}"]
    names = [node.name for node in body if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
    others = [node for node in body if isinstance(node, (ast.Import, ast.ImportFrom, ast.Assign, ast.If, ast.Try))]
    if reward.name in names or any(reward.name in ast.unparse(node) or "*" in ast.unparse(node) for node in others):
        return []
    got = f"reward: got {path} with the functions {', '.join(names) or 'none'}"
    return [f"{got}; expected reward.custom_reward_function.name={reward.name} among them{suggest(reward.name, names)}"]


def check_alone(config: Config) -> None:
    """Raise UserError unless --overrides stands with --check only."""
    need(config.check, f"got --overrides {config.overrides} without --check; expected both: a run takes --override")
    usual = dataclasses.asdict(dataclasses.replace(Config(), check=True, overrides=config.overrides))
    others = [name for name, value in dataclasses.asdict(config).items() if value != usual[name]]
    flags = " ".join(f"--{name}" for name in others)
    need(not others, f"got {flags} with --overrides, which are all of the command; expected --check --overrides alone")


def check_written(config: Config) -> int:
    """--check --overrides: compose and validate with verl's own configuration; exit code 1 with findings."""
    check_alone(config)
    overrides = read_overrides(config.overrides)
    rest, findings = trap_findings(overrides)
    named = None if importlib.util.find_spec("verl") else name_findings(rest)
    if named is not None:
        return report_names(overrides, [*findings, *named])
    need_verl()
    report = {"verl": VERL, "overrides": len(overrides)}
    with contextlib.redirect_stdout(sys.stderr):  # verl prints
        composed, refused = compose_config(rest)
        findings += with_suggestions(refused, rest)
        if refused:  # what the others come to
            composed, _ = compose_config([o for o in rest if not any(names(line, o) for line in refused)])
        if composed is not None:
            if not composed_name_is_missing(composed) and missing_engine(composed.actor_rollout_ref.rollout.name):
                say(f"note: {composed.actor_rollout_ref.rollout.name} is not installed here; the run needs it")
            findings += start_findings(composed)
            report["settings"] = shown_settings(composed)
    tell(json.dumps(report | {"findings": findings}, indent=1, ensure_ascii=False))
    for finding in findings:
        say(f"finding: {finding}")
    return int(bool(findings))


def report_names(overrides: list[Written], findings: list[str]) -> int:
    """What --check --overrides finds where verl is not installed: names, keys without effect, the reward's function."""
    values = {o.key.lstrip("+"): str(o.value).strip("'\"") for o in overrides}
    reward = [values.get(f"reward.custom_reward_function.{name}") for name in ("path", "name")]
    findings += reward_file_findings(SimpleNamespace(path=reward[0], name=reward[1] or "compute_score"))
    checked = "names of keys, keys without effect, the reward's function; no values, as verl is not installed here"
    tell(json.dumps({"verl": VERL, "overrides": len(overrides), "checked": checked, "findings": findings}, indent=1))
    say(f"note: {checked}; for those, {INSTALL}")
    for finding in findings:
        say(f"finding: {finding}")
    return int(bool(findings))


def composed_name_is_missing(composed) -> bool:
    """Whether the one key without a default, the rollout engine, was left out."""
    from omegaconf import OmegaConf

    return OmegaConf.is_missing(composed.actor_rollout_ref.rollout, "name")


def shown_settings(composed) -> dict:
    """What the configuration says at SHOWN, as JSON."""
    from omegaconf import OmegaConf

    found = {key: OmegaConf.select(composed, key, throw_on_missing=False) for key in SHOWN}
    return {k: OmegaConf.to_container(v) if OmegaConf.is_config(v) else v for k, v in found.items()}
