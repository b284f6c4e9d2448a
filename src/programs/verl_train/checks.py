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
from parts.rewards.reward_calls import call_limits
from parts.rewards.reward_texts import visible_text
from programs.verl_train.batches import batch_findings
from programs.verl_train.engine_overrides import cpus_needed
from programs.verl_train.environment_check import environment_findings
from programs.verl_train.environment_job import loading_findings
from programs.verl_train.hydra import Override
from programs.verl_train.job_folder import prepare_job, reward_specs
from programs.verl_train.memory import memory_findings, memory_plan
from programs.verl_train.model_files import model_shape
from programs.verl_train.overrides import Layout
from programs.verl_train.rewards import RewardBatcher, rounding_of
from programs.verl_train.settings import INSTALL, VERL, Config
from programs.verl_train.whole_batches import split_findings


def need_verl() -> None:
    """Raise UserError unless this Python has the verl that this file is written for."""
    import importlib.metadata

    try:
        found = importlib.metadata.version("verl")
    except importlib.metadata.PackageNotFoundError:
        raise UserError(f"got a Python without verl ({sys.executable}); expected verl {VERL}; {INSTALL}") from None
    need(
        found == VERL, f"got verl {found} in {sys.executable}; expected {VERL}, whose keys are written here; {INSTALL}"
    )
    missing = [name for name in ("transfer_queue", "cachetools", "hydra", "ray") if not importlib.util.find_spec(name)]
    need(not missing, f"got verl without {', '.join(missing)}; expected what its trainer imports; {INSTALL}")


def compose_config(overrides: list[Override]):
    """(verl's configuration, findings): every override that Hydra refuses is one."""
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
                found = compose("ppo_trainer", overrides=[o.text() for o in rest])
                return (None if findings else found), findings
            except (HydraException, ValueError) as error:
                why = error
            # Hydra stops at the first that it does not know, and names it
            named = [o for o in rest if o.key.lstrip("+~") in str(why)]
            if not named:
                return None, [*findings, f"override: verl's configuration does not compose: {why}"]
            worst = max(named, key=lambda o: len(o.key))
            findings.append(refusal(worst, why))
            rest.remove(worst)


def refusal(override: Override, error: Exception) -> str:
    """The finding about an override that Hydra refuses."""
    why = " ".join(str(error).split())[:200]
    return f"override: got {override.text()} (from {override.source}), which verl refuses: {why}"


def missing_engine(name: str) -> bool:
    """Whether a rollout engine that verl ships is not installed here."""
    return name in ("vllm", "sglang") and not importlib.util.find_spec(name)


def validation_findings(composed) -> list[str]:
    """What verl's own validation says."""
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import validate_config

    try:
        validate_config(composed, need_reference_policy(composed), need_critic(composed))
    except Exception as error:  # assertions, and ValueError and TypeError of dataclasses
        if not (missing_engine(composed.actor_rollout_ref.rollout.name) and "vllm version None" in str(error)):
            return [f"validation: verl refuses the configuration: {type(error).__name__}: {error}"]
        say("note: LoRA's rank is not held against vLLM, which is not installed here")
    return []


def config_findings(composed) -> list[str]:
    """What verl's own validation, and the CPUs of a local Ray, say."""
    found = validation_findings(composed)
    trainer, units = composed.trainer, composed.transfer_queue.backend.SimpleStorage.num_data_storage_units
    needed = cpus_needed(trainer.nnodes * trainer.n_gpus_per_node, units)
    given = composed.ray_kwargs.ray_init.num_cpus
    if given is not None and given < needed:
        found.append(
            f"cpus: got ray_kwargs.ray_init.num_cpus {given}; expected {needed}: the run would wait for ever, without "
            f"a word; try --override ray_kwargs.ray_init.num_cpus={needed}"
        )
    if composed.trainer.total_training_steps and composed.trainer.save_freq <= 0:
        found.append("checkpoint: got trainer.save_freq below 1, so that nothing is saved; try --save_every 25")
    return found


def our_prompt_ids(config: Config, tokenizer, messages: list[dict], is_text: bool) -> list[int]:
    """Token ids that our own trainers give a prompt."""
    prompt = messages[0]["content"] if is_text and not config.chat else messages
    return encode_prompt(tokenizer, prompt, **template_settings(config))


def data_findings(composed, config: Config) -> tuple[dict, list[str], object, object]:
    """(report, findings, data set, tokenizer): the training data through verl's own data set."""
    from transformers import AutoTokenizer
    from verl.trainer.ppo.utils import create_rl_dataset
    from verl.utils.config import omega_conf_to_dataclass

    model, found = omega_conf_to_dataclass(composed.actor_rollout_ref.model), []
    files, data = composed.data.train_files, composed.data
    rows = create_rl_dataset(files, data, model.tokenizer, model.processor, is_train=True)
    total, prompts = parquet_length(files), data.train_batch_size
    report = {"rows": total, "rows that fit": len(rows), "steps in an epoch": len(rows) // prompts}
    if len(rows) < prompts:
        found.append(
            f"data: got {len(rows)} of {total} rows within max_prompt_tokens; expected the {prompts} of a step"
        )
        return report, found, rows, model.tokenizer
    epochs = -(-composed.trainer.total_training_steps // report["steps in an epoch"])
    if epochs > composed.trainer.total_epochs:
        found.append(
            f"steps: got {composed.trainer.total_epochs} epochs; expected {epochs}, or the run ends early, unsaved"
        )
    ours, template = AutoTokenizer.from_pretrained(config.model), data.get("apply_chat_template_kwargs") or {}
    give_template(ours, config.chat_template)
    for i in range(0, len(rows), max(1, len(rows) // 8)):
        row = rows[i]
        is_text = bool(row["extra_info"].get("prompt_is_text"))
        theirs = model.tokenizer.apply_chat_template(
            row["raw_prompt"], add_generation_prompt=True, tokenize=True, **template
        )
        theirs = theirs["input_ids"] if hasattr(theirs, "keys") else theirs
        if list(theirs) != list(our_prompt_ids(config, ours, row["raw_prompt"], is_text)):
            found.append(f"prompt: verl gives row {row['index']} other token ids than our trainers; try chat messages")
            break
    return report, found, rows, model.tokenizer


def parquet_length(path: str) -> int:
    """Rows of a parquet file."""
    import pyarrow.parquet

    return pyarrow.parquet.read_metadata(path).num_rows


def reward_findings(composed, rows, tokenizer, config: Config, job: Layout) -> tuple[list[dict], list[str]]:
    """Score real rows through verl's own loader and our manager, and hold the scores against our own."""
    import numpy as np
    import torch
    from tensordict import TensorDict
    from verl import DataProto
    from verl.trainer.ppo.reward import load_reward_manager

    manager = load_reward_manager(composed, tokenizer)
    mine = RewardBatcher(reward_specs(config), job.columns, call_limits(config))
    examples, found = [], []

    def score(row: dict, text: str) -> tuple[dict, float]:
        ids = [*tokenizer(text, add_special_tokens=False).input_ids, tokenizer.eos_token_id]
        batch = {"responses": torch.tensor([ids]), "attention_mask": torch.ones(1, len(ids), dtype=torch.long)}
        other = {k: v for k, v in row.items() if k != "dummy_tensor"}
        arrays = {}
        for name, value in other.items():
            arrays[name] = np.empty(1, dtype=object)
            arrays[name][0] = copy.deepcopy(value)
        data = DataProto(batch=TensorDict(batch, batch_size=1), non_tensor_batch=arrays)
        result = manager.loop.run_until_complete(manager.run_single(data))
        extra = row["extra_info"] | {"raw_prompt": row["raw_prompt"]}
        ours = mine.row(row["data_source"], row["reward_model"]["ground_truth"], extra)
        scores, _ = mine.reward([ours], [visible_text(tokenizer, ids, [])], [ids])
        return result, scores[0] - overlong_penalty(
            len(ids), composed.data.max_response_length, composed.reward.reward_kwargs.overlong_share
        )

    picked = {0, len(rows) // 2, len(rows) - 1}
    for i in sorted(picked):
        row = rows[i]
        for text in (str(row["reward_model"]["ground_truth"]) or "yes", "no answer"):
            try:
                result, expected = score(row, text)
            except Exception as error:
                found.append(f"reward: row {row['index']}, completion {text[:60]!r}: {type(error).__name__}: {error}")
                continue
            got = float(result["reward_score"])
            examples.append({"row": row["index"], "completion": text[:60], "score": got})
            if not math.isclose(got, expected, rel_tol=rounding_of(config.group_size), abs_tol=1e-6):
                found.append(
                    f"reward: row {row['index']}, completion {text[:60]!r}: verl gets {got}, our trainers {expected}"
                )
    return examples, found


def run_check(config: Config) -> int:
    """--check: compose, load and count everything; a JSON report on stdout, exit code 1 with findings."""
    need_verl()
    with tempfile.TemporaryDirectory(prefix="verl_check_") as folder:
        sys.path.insert(0, folder)  # where the run finds a loss of the user's own
        return check_job(config, *prepare_job(config, folder=Path(folder)))


def check_job(config: Config, job: Layout, overrides: list[Override]) -> int:
    """Check a job whose folder is written."""
    plan = memory_plan(config, job.parameters)
    sums, findings = memory_findings(config, plan)
    findings += batch_findings(config, model_shape(config))
    report = {"verl": VERL, "overrides": len(overrides), "memory": plan, "memory_sums_GiB": sums}
    with contextlib.redirect_stdout(sys.stderr):  # verl prints
        composed, refused = compose_config(overrides)
        findings += refused
        if composed is not None:
            if missing_engine(composed.actor_rollout_ref.rollout.name):
                say(f"note: {composed.actor_rollout_ref.rollout.name} is not installed here; the run needs it")
            findings += config_findings(composed)
            findings += loading_findings(config, Path(job.folder))
            findings += split_findings(Path(job.folder) / "verl_reward.py")
            data, more, rows, tokenizer = data_findings(composed, config)
            findings += more
            examples = []
            if len(rows):
                find = environment_findings if config.environment else reward_findings
                examples, more = find(composed, rows, tokenizer, config, job)
                findings += more
            report |= {"data": data, "environment" if config.environment else "reward": examples}
    tell(json.dumps(report | {"findings": findings}, indent=1, ensure_ascii=False))
    for finding in findings:
        say(f"finding: {finding}")
    return int(bool(findings))
