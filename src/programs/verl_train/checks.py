"""--check: what can be found out before a run."""

import contextlib
import copy
import importlib
import importlib.util
import json
import math
import sys
import tempfile
from pathlib import Path

from parts.data.chat import give_template, template_settings
from parts.data.prompts import encode_prompt
from parts.foundation.messages import UserError, need, say, tell
from parts.learning.advantages import overlong_penalty
from parts.rewards.rewards import call_limits
from parts.rewards.user_code import visible_text
from programs.verl_train.engine_overrides import cpus_needed
from programs.verl_train.environment_check import environment_findings
from programs.verl_train.environment_job import job_findings
from programs.verl_train.hydra import Override
from programs.verl_train.job_folder import prepare_job, reward_specs
from programs.verl_train.memory import memory_plan, size_findings
from programs.verl_train.model_files import parquet_length
from programs.verl_train.overrides import Layout
from programs.verl_train.rewards import RewardBatcher, rounding_of, tried_answers
from programs.verl_train.settings import INSTALL, VERL, Config

COUNTS = (  # what is computed with
    *("trainer.nnodes", "trainer.n_gpus_per_node", "trainer.save_freq", "trainer.total_epochs"),
    *("data.train_batch_size", "transfer_queue.backend.SimpleStorage.num_data_storage_units"),
)


def need_verl() -> None:
    """Raise UserError unless this Python has the verl that this file is written for."""
    import importlib.metadata

    try:
        version = importlib.metadata.version("verl")
    except importlib.metadata.PackageNotFoundError:
        raise UserError(f"got a Python without verl ({sys.executable}); expected verl {VERL}; {INSTALL}") from None
    other = f"got verl {version} in {sys.executable}; expected {VERL}, whose keys are written here; {INSTALL}"
    need(version == VERL, other)
    missing = [name for name in ("transfer_queue", "cachetools", "hydra", "ray") if not importlib.util.find_spec(name)]
    need(not missing, f"got verl without {', '.join(missing)}; expected what its trainer imports; {INSTALL}")


def compose_config(overrides: list[Override]):
    """(verl's configuration of the overrides that Hydra takes, or None; a finding for each that it refuses)."""
    import verl
    from hydra import compose, initialize_config_dir
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    folder, findings, rest = str(Path(verl.__file__).parent / "trainer" / "config"), [], []
    parser = OverridesParser.create()
    for override in overrides:
        try:
            parser.parse_override(override.text())
            rest.append(override)
        except HydraException as error:
            findings.append(refusal(override, error))
    with initialize_config_dir(config_dir=folder, version_base=None):
        while True:
            try:
                return compose("ppo_trainer", overrides=[o.text() for o in rest]), findings
            except (HydraException, ValueError) as error:
                reason = error
            # Hydra stops at the first that it does not know, and names it
            named = [o for o in rest if o.key.lstrip("+~") in str(reason)]
            if not named:
                return None, [*findings, f"override: verl's configuration does not compose: {reason}"]
            worst = max(named, key=lambda o: len(o.key))
            findings.append(refusal(worst, reason))
            rest.remove(worst)


def refusal(override: Override, error: Exception) -> str:
    reason = " ".join(str(error).split())[:200]
    return f"override: got {override.text()} (from {override.source}), which verl refuses: {reason}"


def missing_engine(name: str) -> bool:
    """Whether a rollout engine that verl ships is not installed here."""
    return name in ("vllm", "sglang") and not importlib.util.find_spec(name)


def value_findings(composed) -> list[str]:
    """Keys without a value, and counts that are no integers."""
    from omegaconf import OmegaConf

    judge = composed.reward.reward_model.enable  # a reward model's engine has a name of its own
    missing = sorted(k for k in OmegaConf.missing_keys(composed) if judge or not k.startswith("reward.reward_model."))
    if missing:
        return [f"missing: got no {key}; expected it, as verl has no default" for key in missing]
    counts = {key: OmegaConf.select(composed, key) for key in (*COUNTS, "ray_kwargs.ray_init.num_cpus")}
    wrong = {k: n for k, n in counts.items() if not isinstance(n, int) and (n is not None or k in COUNTS)}
    return [f"number: got {key}={value}; expected an integer" for key, value in wrong.items()]


def config_findings(composed) -> list[str]:
    """What verl's own validation says, and what would hang a run or leave it without a checkpoint."""
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import omega_conf_to_dataclass, validate_config

    findings, rollout, trainer = [], composed.actor_rollout_ref.rollout, composed.trainer
    if missing_engine(rollout.name):
        say(f"note: {rollout.name} is not installed here; the run needs it")
    try:
        omega_conf_to_dataclass(rollout)
        validate_config(composed, need_reference_policy(composed), need_critic(composed))
    except Exception as error:  # assertions, and ValueError and TypeError of dataclasses
        if missing_engine(rollout.name) and "vllm version None" in str(error):
            say("note: LoRA's rank is not held against vLLM, which is not installed here")
        else:
            findings.append(f"validation: verl refuses the configuration: {type(error).__name__}: {error}")
    units, cpus = composed.transfer_queue.backend.SimpleStorage.num_data_storage_units, "ray_kwargs.ray_init.num_cpus"
    given, needed = composed.ray_kwargs.ray_init.num_cpus, cpus_needed(trainer.nnodes * trainer.n_gpus_per_node, units)
    if given is not None and given < needed:
        hangs = "the run would wait for ever, without a word"
        findings.append(f"cpus: got {cpus}={given}; expected {needed}: {hangs}; try {cpus}={needed}")
    actor = composed.actor_rollout_ref.actor
    if actor.ppo_epochs == 1 and actor.ppo_mini_batch_size == composed.data.train_batch_size:
        say("note: one update a batch, so the ratio is 1 and no clip acts; a smaller ppo_mini_batch_size makes more")
    if trainer.save_freq <= 0:
        findings.append(f"checkpoint: got trainer.save_freq={trainer.save_freq}, so nothing is saved; try 25")
    return findings


def data_findings(composed, config: Config) -> tuple[dict, list[str], object, object]:
    """(report, findings, data set, tokenizer): the training data through verl's own data set."""
    from transformers import AutoTokenizer
    from verl.trainer.ppo.utils import create_rl_dataset
    from verl.utils.config import omega_conf_to_dataclass

    model, findings = omega_conf_to_dataclass(composed.actor_rollout_ref.model), []
    files, data = composed.data.train_files, composed.data
    rows = create_rl_dataset(files, data, model.tokenizer, model.processor, is_train=True)
    total, prompts = parquet_length(files), data.train_batch_size
    report = {"rows": total, "rows that fit": len(rows), "steps in an epoch": len(rows) // prompts}
    if len(rows) < prompts:
        got = f"data: got {len(rows)} of {total} rows within max_prompt_tokens"
        return report, [f"{got}; expected the {prompts} of a step"], rows, model.tokenizer
    our_tokenizer, template = AutoTokenizer.from_pretrained(config.model), data.get("apply_chat_template_kwargs") or {}
    give_template(our_tokenizer, config.chat_template)
    for i in range(0, len(rows), max(1, len(rows) // 8)):
        row = rows[i]
        is_text = bool(row["extra_info"].get("prompt_is_text"))
        verls = model.tokenizer.apply_chat_template(
            row["raw_prompt"], add_generation_prompt=True, tokenize=True, **template
        )
        verls = verls["input_ids"] if hasattr(verls, "keys") else verls
        prompt = row["raw_prompt"][0]["content"] if is_text and not config.chat else row["raw_prompt"]
        if list(verls) != list(encode_prompt(our_tokenizer, prompt, **template_settings(config))):
            got = f"prompt: verl gives row {row['index']} other token ids than our trainers"
            findings.append(f"{got}; try chat messages")
            break
    return report, findings, rows, model.tokenizer


def scores_of(composed, row: dict, text: str, tokenizer, manager, batcher: RewardBatcher) -> tuple[float, float]:
    """(verl's score of a completion, ours)."""
    import numpy as np
    import torch
    from tensordict import TensorDict
    from verl import DataProto

    ids = [*tokenizer(text, add_special_tokens=False).input_ids, tokenizer.eos_token_id]
    batch = {"responses": torch.tensor([ids]), "attention_mask": torch.ones(1, len(ids), dtype=torch.long)}
    arrays = {name: np.empty(1, dtype=object) for name in row if name != "dummy_tensor"}
    for name, array in arrays.items():
        array[0] = copy.deepcopy(row[name])
    data = DataProto(batch=TensorDict(batch, batch_size=1), non_tensor_batch=arrays)
    verls = manager.loop.run_until_complete(manager.run_single(data))["reward_score"]
    extra = row["extra_info"] | {"raw_prompt": row["raw_prompt"]}
    our_row = batcher.row(row["data_source"], row["reward_model"]["ground_truth"], extra)
    ours = batcher.reward([our_row], [visible_text(tokenizer, ids, [])], [ids])[0][0]
    share = composed.reward.reward_kwargs.overlong_share
    return float(verls), ours - overlong_penalty(len(ids), composed.data.max_response_length, share)


def reward_findings(composed, rows, tokenizer, config: Config, job: Layout) -> tuple[list[dict], list[str]]:
    """Score real rows through verl's own loader and our manager, and hold the scores against our own."""
    from verl.trainer.ppo.reward import load_reward_manager

    manager = load_reward_manager(composed, tokenizer)
    batcher = RewardBatcher(reward_specs(config), job.columns, call_limits(config))
    examples, findings = [], []
    for row, text in tried_answers(rows):
        where = f"reward: row {row['index']}, completion {text[:60]!r}"
        try:
            verls, ours = scores_of(composed, row, text, tokenizer, manager, batcher)
        except Exception as error:
            findings.append(f"{where}: {type(error).__name__}: {error}")
            continue
        examples.append({"row": row["index"], "completion": text[:60], "score": verls})
        if not math.isclose(verls, ours, rel_tol=rounding_of(config.group_size), abs_tol=1e-6):
            findings.append(f"{where}: verl gets {verls}, our trainers {ours}")
    return examples, findings


def run_check(config: Config) -> int:
    """--check: compose, load and count everything; a JSON report on stdout, exit code 1 with findings."""
    need_verl()
    with tempfile.TemporaryDirectory(prefix="verl_check_") as folder:
        sys.path.insert(0, folder)  # where the run finds a loss of the user's own
        job, overrides = prepare_job(config, folder=Path(folder))
        sums, findings = size_findings(config, job.parameters)
        plan = memory_plan(config, job.parameters)
        report = {"verl": VERL, "overrides": len(overrides), "memory": plan, "memory_sums_GiB": sums}
        with contextlib.redirect_stdout(sys.stderr):  # verl prints
            composed, refused = compose_config(overrides)
            findings += refused
            if composed is not None and not refused:
                findings += config_findings(composed) + job_findings(config, Path(folder))
                report["data"], more, rows, tokenizer = data_findings(composed, config)
                check = environment_findings if config.environment else reward_findings
                examples, failures = check(composed, rows, tokenizer, config, job) if len(rows) else ([], [])
                findings += more + failures
                report["environment" if config.environment else "reward"] = examples
    return report_findings(report, findings)


def report_findings(report: dict, findings: list[str]) -> int:
    """Print a report with its findings; the exit code is 1 where there are any."""
    tell(json.dumps(report | {"findings": findings}, indent=1, ensure_ascii=False))
    for finding in findings:
        say(f"finding: {finding}")
    return int(bool(findings))
