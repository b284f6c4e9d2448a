"""--check: everything that can be verified before a run."""

import contextlib
import importlib.util
import json
import sys
import tempfile
from pathlib import Path

from parts.data.chat import give_template, template_settings
from parts.data.prompts import encode_prompt
from parts.data.verl_composition import RAY_CPUS, composition
from parts.foundation.messages import UserError, need, say, tell
from programs.verl_train.hydra import Override, name_findings
from programs.verl_train.job_folder import prepare_job
from programs.verl_train.memory import size_findings
from programs.verl_train.model_files import parquet_length
from programs.verl_train.overrides import cpus_needed
from programs.verl_train.reward_files import try_job
from programs.verl_train.settings import INSTALL, VERL, Config


def need_verl() -> None:
    """Raise UserError unless this Python has the verl that this file is written for."""
    import importlib.metadata

    try:
        version = importlib.metadata.version("verl")
    except importlib.metadata.PackageNotFoundError:
        raise UserError(f"got a Python without verl ({sys.executable}); expected verl {VERL}; {INSTALL}") from None
    other = f"got verl {version} in {sys.executable}; expected {VERL}, whose keys are written here; {INSTALL}"
    need(version == VERL, other)


def compose_config(overrides: list[Override]):
    """(verl's configuration of overrides, or None; a finding where Hydra refuses one of them)."""
    return composition({override.text(): override.source for override in overrides})


def missing_engine(name: str) -> bool:
    return name in ("vllm", "sglang") and not importlib.util.find_spec(name)


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
            say("note: the LoRA rank is not checked against vLLM, which is not installed here")
        else:
            findings.append(f"validation: verl refuses the configuration: {type(error).__name__}: {error}")
    units, given = composed.transfer_queue.backend.SimpleStorage.num_data_storage_units, composed.ray_kwargs.ray_init
    needed = cpus_needed(trainer.nnodes * trainer.n_gpus_per_node, units)
    if given.num_cpus is not None and given.num_cpus < needed:
        findings.append(f"cpus: got {RAY_CPUS}={given.num_cpus}; expected {needed}, or the run hangs in silence")
    actor = composed.actor_rollout_ref.actor
    if actor.ppo_epochs == 1 and actor.ppo_mini_batch_size == composed.data.train_batch_size:
        say("note: with one update per batch the ratio is 1 and no clip acts; a smaller ppo_mini_batch_size makes more")
    if trainer.save_freq <= 0:
        findings.append(f"checkpoint: got trainer.save_freq={trainer.save_freq}, so nothing is saved; try 25")
    return findings


def rows_in_verl(composed, model) -> tuple[dict, object, list[str]]:
    """(Report, rows, findings) of the training data in verl's own data set."""
    from verl.trainer.ppo.utils import create_rl_dataset

    data = composed.data
    files = [data.train_files] if isinstance(data.train_files, str) else [*data.train_files]
    rows = create_rl_dataset(files, data, model.tokenizer, model.processor, is_train=True)
    total = sum(map(parquet_length, files)) if all(name.endswith(".parquet") for name in files) else len(rows)
    report = {"rows": total, "rows that fit": len(rows), "steps in an epoch": len(rows) // data.train_batch_size}
    got = f"data: got {len(rows)} of {total} rows within {data.max_prompt_length} tokens"
    is_few = len(rows) < data.train_batch_size
    return report, rows, [f"{got}; expected the {data.train_batch_size} of a step"] if is_few else []


def data_findings(composed, config: Config) -> tuple[dict, list[str]]:
    """(Report, findings) about the training data through verl's own data set."""
    from transformers import AutoTokenizer
    from verl.utils.config import omega_conf_to_dataclass

    model = omega_conf_to_dataclass(composed.actor_rollout_ref.model)
    report, rows, findings = rows_in_verl(composed, model)
    if findings:
        return report, findings
    our_tokenizer = AutoTokenizer.from_pretrained(config.model)
    template = composed.data.get("apply_chat_template_kwargs") or {}
    give_template(our_tokenizer, config.chat_template)
    for i in range(0, len(rows), max(1, len(rows) // 8)):
        messages, is_text = rows[i]["raw_prompt"], bool(rows[i]["extra_info"].get("prompt_is_text"))
        verls = model.tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, tokenize=True, return_dict=True, **template
        )["input_ids"]
        prompt = messages[0]["content"] if is_text and not config.chat else messages
        if [*verls] != [*encode_prompt(our_tokenizer, prompt, **template_settings(config))]:
            got = f"prompt: verl gives row {rows[i]['index']} other token ids than our trainers do"
            return report, [f"{got}; try chat messages"]
    return report, []


def run_check(config: Config) -> int:
    """--check: compose, load and count everything; a JSON report on stdout, exit code 1 with findings."""
    need_verl()
    with tempfile.TemporaryDirectory(prefix="verl_check_") as folder:
        sys.path.insert(0, folder)  # where the run finds a loss of the user's own
        job, overrides = prepare_job(config, folder=Path(folder))
        plan, sums, findings = size_findings(config, job.parameters)
        report = {"verl": VERL, "overrides": len(overrides), "memory": plan, "memory_sums_GiB": sums}
        wrong = name_findings(overrides) or []
        findings += [text for _, text in wrong]
        with contextlib.redirect_stdout(sys.stderr):  # verl prints
            composed, refused = compose_config([o for o in overrides if o not in [override for override, _ in wrong]])
            findings += refused
            if composed is not None and not wrong:
                findings += config_findings(composed)
                report["data"], more = data_findings(composed, config)
                tried, report["reward"] = try_job(Path(folder))
                findings += more + tried
    raised = report.get("reward", {}).get("raised")
    if raised and not config.environment:  # a reward of conversations may read what a single answer lacks
        findings.append(f"reward: in a trial it raised at {raised}; a run would end there")
    return report_findings(report, findings)


def report_findings(report: dict, findings: list[str]) -> int:
    """Print a report with its findings; the exit code is 1 where there are any."""
    tell(json.dumps(report | {"findings": findings}, indent=1, ensure_ascii=False))
    for finding in findings:
        say(f"finding: {finding}")
    return int(bool(findings))
