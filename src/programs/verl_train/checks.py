"""--check: all that can be verified before a run, of a job or of a file of hand-written overrides."""

import asyncio
import contextlib
import dataclasses
import importlib.util
import inspect
import json
import math
import re
import sys
import tempfile
from pathlib import Path

from parts.data.chat import give_template, template_settings
from parts.data.prompts import encode_prompt
from parts.data.verl_keys import ACTOR, CORRECTION, advice_today
from parts.foundation.messages import UserError, need, say, tell
from parts.rewards.user_code import trial_texts
from programs.verl_train.data import parquet_length
from programs.verl_train.job_folder import prepare_job, try_job
from programs.verl_train.overrides import Override, cpus_needed, name_findings
from programs.verl_train.refusals import batch_findings
from programs.verl_train.settings import INSTALL, VERL, Config

RAY_CPUS = "ray_kwargs.ray_init.num_cpus"
COUNTS = (  # keys whose values verl computes with
    *("trainer.nnodes", "trainer.n_gpus_per_node", "trainer.save_freq", "trainer.total_epochs", RAY_CPUS),
    *("data.train_batch_size", "transfer_queue.backend.SimpleStorage.num_data_storage_units"),
)
LINE = re.compile(r"((?:\+\+|\+)?[\w.@/:-]+)=(.*)|(~[\w.@/:-]+)")
SECOND = re.compile(r"[^'\"\[{(]*\s[+~]{0,2}[\w@/-]+\.[\w.@/-]+=.*")  # another KEY=VALUE in a value without quotes


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
    """Compose verl's configuration from overrides: (configuration or None, findings on what Hydra refuses)."""
    import verl
    from hydra import compose, initialize_config_dir
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    folder, got = str(Path(verl.__file__).parent / "trainer" / "config"), "overrides"
    sources = {override.text(): override.source for override in overrides}  # once each: Hydra refuses a second `+`
    try:
        for text, source in sources.items():
            got = f"{text} (from {source})"
            OverridesParser.create().parse_override(text)
        got = "overrides"
        with initialize_config_dir(config_dir=folder, version_base=None):
            return compose("ppo_trainer", overrides=[*sources]), []
    except (HydraException, ValueError) as error:
        return None, [f"override: got {got}, which verl refuses: {' '.join(str(error).split())[:300]}"]


def missing_values(composed) -> list[str]:
    """Findings for keys without a value, or else for counts that are not integers."""
    from omegaconf import OmegaConf

    judge = composed.reward.reward_model.enable  # without a reward model its settings may be missing
    missing = sorted(k for k in OmegaConf.missing_keys(composed) if judge or not k.startswith("reward.reward_model."))
    if missing:
        return [f"missing: got no {key}; expected it, as verl has no default" for key in missing]
    counts = {key: OmegaConf.select(composed, key) for key in COUNTS}
    wrong = {k: n for k, n in counts.items() if not isinstance(n, int) and (n is not None or k != RAY_CPUS)}
    return [f"number: got {key}={value}; expected an integer" for key, value in wrong.items()]


def missing_engine(name: str) -> bool:
    return name in ("vllm", "sglang") and not importlib.util.find_spec(name)


def config_findings(composed) -> list[str]:
    """What verl's own validation says, and what would hang a run or leave it without a checkpoint."""
    from omegaconf import OmegaConf
    from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY, POLICY_LOSS_REGISTRY
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
    names = {"algorithm.adv_estimator": ADV_ESTIMATOR_REGISTRY, f"{ACTOR}.policy_loss.loss_mode": POLICY_LOSS_REGISTRY}
    own = composed.actor_rollout_ref.model.external_lib or composed.reward.reward_manager.module.path
    for key, known in names.items():
        if (name := OmegaConf.select(composed, key)) not in known and not own:  # a module of one's own may register it
            advice = "try actor_rollout_ref.model.external_lib with a module that registers it"
            findings.append(f"name: got {key}={name}; expected one of {', '.join(known)}; {advice}")
    actor, estimator = composed.actor_rollout_ref.actor, composed.algorithm.adv_estimator
    if rollout.n == 1 and re.match("grpo|rloo|opo|gdpo", str(estimator)):
        got = f"group: got actor_rollout_ref.rollout.n=1 with {estimator}, which compares the samples of a prompt"
        findings.append(f"{got}; expected 2 or more; try 8")
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
    got += f"; expected the {data.train_batch_size} of a step"
    if not len(rows):  # verl leaves out those without chat messages
        got += f", with chat messages in {data.prompt_key}; its columns are {', '.join(rows.dataframe.column_names)}"
    return report, rows, [got] if is_few else []


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
        _, overrides = prepare_job(config, folder=Path(folder))
        findings, report = batch_findings(config), {"verl": VERL, "overrides": len(overrides)}
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


def read_overrides(file: str) -> list[Override]:
    """The overrides of a file: KEY=VALUE or ~KEY per line, as Hydra takes them; `#` begins a comment."""
    try:
        lines = Path(file).read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise UserError(f"got --overrides {file}: {error}; expected a text file") from None
    overrides, flags = [], " ".join(line.strip(" \t\\") for line in lines if line.lstrip().startswith("--config-"))
    ways = {"ppo_trainer": "leaving them out", "ppo_megatron_trainer": "model_engine=megatron in their place"}
    config = re.search(r"--config-name[= ]['\"]?([\w-]+)", flags)
    way = ways.get(config and config[1], "the settings of its file in their place")
    need(not flags, f"got {file} with {flags}; expected one KEY=VALUE per line and no flags; try {way}")
    for number, line in enumerate(lines, start=1):
        text = re.sub(r"(^|\s)#[^'\"]*$", "", line).strip()  # in quotes it is text
        match = LINE.fullmatch(text)
        if text and (not match or SECOND.fullmatch(match[2] or "")):
            got = f"{file}, line {number}: got {text!r}; expected one KEY=VALUE per line"
            way = "printf '%s\\n' in place of `python3 -m verl.trainer.main_ppo`, which makes bash print such lines"
            raise UserError(f"{got}; for a shell script, try a copy with {way}")
        if match:
            overrides.append(Override(match[1] or match[3], match[2], f"{file}, line {number}", is_written=True))
    need(overrides, f"got --overrides {file} without overrides; expected KEY=VALUE, one per line")
    return overrides


def trap_findings(overrides: list[Override]) -> tuple[list[Override], list[str]]:
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
        if override.text() == "data.reward_fn_key=data_source":
            advice = None  # which verl does
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


def epoch_findings(composed) -> list[str]:
    """Epochs that end before total_training_steps."""
    trainer, files = composed.trainer, composed.data.train_files
    paths = [Path(name).expanduser() for name in ([files] if isinstance(files, str) else files)]
    if not trainer.total_training_steps or not all(p.is_file() and p.suffix == ".parquet" for p in paths):
        return []
    steps = sum(map(parquet_length, paths)) // composed.data.train_batch_size
    if steps * trainer.total_epochs >= trainer.total_training_steps:
        return []
    got = f"steps: got {trainer.total_epochs} epochs of {steps} steps"
    wanted = f"trainer.total_training_steps={trainer.total_training_steps}"
    return [f"{got}; expected {wanted}, or the run ends early without a checkpoint"]


def written_rows(composed) -> tuple[dict, list[dict], list[str]]:
    """(Report, some rows, findings) of the training files, if they and the model are here."""
    from verl.utils.config import omega_conf_to_dataclass

    data, files = composed.data, composed.data.train_files
    files = [files] if isinstance(files, str) else [*files]
    tests = [data.val_files] if isinstance(data.val_files, str) else data.val_files or []
    away = [name for name in tests if "://" not in name and not Path(name).expanduser().is_file()]
    no_test = [f"data: got data.val_files {name}, which is not here; expected a file, as for train" for name in away]
    if away := [name for name in files if not Path(name).expanduser().is_file()]:
        return {"unchecked": f"{away[0]} is not here"}, [], []
    try:
        model = omega_conf_to_dataclass(composed.actor_rollout_ref.model)
    except Exception as error:  # a hub's name, or a folder of the cluster
        return {"unchecked": f"the model does not load here ({str(error)[:100]})"}, [], []
    template = {"add_generation_prompt": True, **(data.get("apply_chat_template_kwargs") or {})}
    try:
        report, rows, findings = rows_in_verl(composed, model)
        picked = [rows[i] for i in range(0, len(rows), max(1, len(rows) // 4))]
        for prompt in [row["raw_prompt"] for row in picked if not model.processor]:
            need(isinstance(prompt, list), f"{prompt!r} is not a list of messages")
            length = len(model.tokenizer.apply_chat_template(prompt, return_dict=True, **template)["input_ids"])
            got = f"data: got a prompt of {length} tokens with data.max_prompt_length={data.max_prompt_length}"
            fits = f"{got}; expected shorter ones; try data.filter_overlong_prompts=True"
            findings += [fits] if length > data.max_prompt_length and fits not in findings else []
    except Exception as error:  # a column that is missing, a file of another kind, a prompt that the template refuses
        got = f"data: verl's data set does not take {', '.join(files)}: {type(error).__name__}: {str(error)[:200]}"
        return {}, [], [f"{got}; expected {data.prompt_key} with chat messages"]
    unusable = [r for r in picked if "data_source" not in r or "ground_truth" not in (r.get("reward_model") or {})]
    if unusable:
        columns = ", ".join(name for name in unusable[0] if name not in ("raw_prompt", "dummy_tensor", "index"))
        findings.append(f"data: got rows of {columns}; expected data_source and reward_model.ground_truth")
    return {"data": report}, [] if unusable else picked, no_test + findings


def tried_reward(composed, rows: list[dict]) -> tuple[dict, list[str]]:
    """(Report, findings) of the reward that verl's own loader finds, called on rows as verl's manager does."""
    from verl.trainer.ppo.reward import get_custom_reward_fn
    from verl.utils.reward_score import default_compute_score

    path = composed.reward.custom_reward_function.path
    if not rows and not Path(path or "").is_file():  # it lies where the job will run
        return {}, []
    try:
        score = get_custom_reward_fn(composed) or default_compute_score
    except Exception as error:  # whatever the user's module raises
        return {}, [f"reward: verl does not load it: {error.__cause__ or error!r}"]
    scores, wrong = [], ""
    for row in rows:
        truth, info = row["reward_model"]["ground_truth"], {**row["extra_info"], "num_turns": None}
        for text in trial_texts(str(truth)[:200]):
            given = {"data_source": row["data_source"], "solution_str": text, "ground_truth": truth}
            try:
                value = score(**given, extra_info=info)
                value = asyncio.run(value) if inspect.isawaitable(value) else value
                scores.append(float(value["score"] if isinstance(value, dict) else value))
            except Exception as error:  # the function raises, or returns something that is not a score
                wrong = wrong or f"reward: verl's call raises {type(error).__name__}: {str(error)[:200]}"
    if not all(map(math.isfinite, scores)):
        wrong = wrong or "reward: got a score that is not finite; expected numbers"
    tried = {"rows": len(rows), "completions": len(rows) * len(trial_texts(""))}
    tried["scores"] = sorted({round(x, 4) for x in scores})
    return {"reward": tried} if scores else {}, [wrong] if wrong else []


def check_written(config: Config) -> int:
    """--check --overrides: names of keys, then verl's own configuration where it is installed; 1 with findings."""
    usual = dataclasses.asdict(dataclasses.replace(Config(), check=config.check, overrides=config.overrides))
    others = "".join(f" --{name}" for name, value in dataclasses.asdict(config).items() if value != usual[name])
    got = f"got --overrides {config.overrides}{' with' if others else ''}{others}"
    need(config.check and not others, f"{got}; expected --check --overrides FILE alone: a run takes --override")
    overrides = read_overrides(config.overrides)
    rest, findings = trap_findings(overrides)
    report, wrong = {"verl": VERL, "overrides": len(overrides)}, name_findings(rest)
    findings += [text for _, text in wrong or []]
    if wrong is not None and not importlib.util.find_spec("verl"):
        checked = "names of keys, keys without effect; no values, as verl is not installed here"
        say(f"note: {checked}; for those, {INSTALL}")
        return report_findings(report | {"checked": checked}, findings)
    need_verl()
    rest = [o for o in rest if o not in [override for override, _ in wrong or []]]
    with contextlib.redirect_stdout(sys.stderr):  # verl prints
        composed, refused = compose_config(rest)
        findings += refused
        if composed is not None:
            # what does not begin to be a configuration is told alone
            more = missing_values(composed) or [*config_findings(composed), *epoch_findings(composed)]
            known = [f"got no {o.key.lstrip('+')};" for o in overrides if o not in rest]  # refused above
            findings += [text for text in more if not any(key in text for key in known)]
            if not findings:
                read, rows, of_data = written_rows(composed)
                tried, of_reward = tried_reward(composed, rows)
                report, findings = report | read | tried, of_data + of_reward
    return report_findings(report, findings)
