"""Our settings as verl's overrides, in Hydra's grammar."""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from parts.data.chat import template_settings
from parts.data.verl_keys import ACTOR, CORRECTION, FSDP, MODEL, NAMES_FILE, OFF, REF, ROLLOUT, known_names
from parts.foundation.messages import suggest
from parts.learning.optimizer import learning_rates
from programs.verl_train.refusals import KWARGS, SAMPLER, WEIGHT_DTYPE, split_override
from programs.verl_train.rewards import REWARD_ERROR
from programs.verl_train.settings import ADVANTAGES, AGGREGATIONS, LOSSES, OWN_LOSS_MODULE, OWN_NAME, VERL, Config

OPTIM = f"{ACTOR}.optim"
ATTENTION = f"{MODEL}.override_config.attn_implementation"
DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}  # our precision -> the samplers'
POLICY_LOSS = f"{ACTOR}.policy_loss"
COMPUTE = "mixed_precision.param_dtype"  # below a part that FSDP shards
# keys that verl reads and its configuration files leave out
ADDED = {
    ATTENTION,
    "reward.reward_kwargs.missing_eos_penalty",
    "reward.reward_kwargs.overlong_share",
    "ray_kwargs.ray_init.address",
    "data.apply_chat_template_kwargs",  # there, and empty: `+` lets it take names
    *(f"{prefix}.override_optimizer_config" for prefix in (OPTIM, "critic.optim")),  # there, and null
    "critic.ppo_infer_max_token_len_per_gpu",  # the one that the default trainer reads, for updates too
}


@dataclass(frozen=True)
class Override:
    """One Hydra override and the setting, or the line of a file, that it comes from."""

    key: str
    value: object
    source: str
    is_written: bool = False  # by the user, in Hydra's grammar; without a value it is ~KEY

    def text(self) -> str:
        """KEY=VALUE in Hydra's grammar; `+` where verl's configuration has no such key."""
        if self.is_written:
            return self.key if self.value is None else f"{self.key}={self.value}"
        is_added = self.key in ADDED or self.key.startswith(f"{KWARGS}.") or self.key.endswith(COMPUTE)
        return f"{'+' if is_added else ''}{self.key}={hydra_value(self.value)}"


def hydra_value(value) -> str:
    """A value in Hydra's override grammar; text that could be read as something else is quoted."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "True", False: "False"}[value]
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, list):
        return f"[{','.join(map(hydra_value, value))}]"
    if isinstance(value, dict):
        return f"{{{','.join(f'{key}:{hydra_value(item)}' for key, item in value.items())}}}"
    words = ("null", "true", "false", "nan", "inf")
    if re.fullmatch(r"[A-Za-z_/][\w./-]*", value, re.ASCII) and value.lower() not in words:
        return value
    escaped = re.sub(r"(\\+)(?='|$)", r"\1\1", value)  # Hydra undoubles backslashes before a quote only
    return "'" + escaped.replace("'", "\\'") + "'"


def name_findings(overrides: list[Override]) -> list[tuple[Override, str]] | None:
    """Overrides of keys that verl's configuration does not have, or has where `+` adds; None for an unknown engine.

    Hydra's KEY=VALUE and ~KEY need an existing key, +KEY=VALUE a new one (or a dictionary), ++KEY=VALUE takes either.
    Values, choices of groups (with @ or /) and hydra.* are not checked.
    """
    engines = [str(o.value) for o in overrides if o.key == "model_engine"] or ["dp"]
    known, findings = known_names(engines[-1]) if NAMES_FILE.is_file() else set(), []
    if not known:
        return None
    for override in overrides:
        key, _, value = override.text().partition("=")
        bare = key.lstrip("+~")
        if key.startswith("++") or bare.startswith("hydra.") or "@" in bare or "/" in bare:
            continue
        got = f"key: got {override.text()} ({override.source}), a key that verl {VERL}"
        if key.startswith("+") and bare in known and not value.lstrip("'\"").startswith("{"):
            findings.append((override, f"{got} has; expected it without the +"))
        if not key.startswith("+") and bare not in known:
            near = suggest(bare, sorted(known)) or "; expected a key of verl; a new key takes a +"
            near = "; try model_engine=megatron" if ".megatron." in bare and engines[-1] == "dp" else near
            findings.append((override, f"{got} does not have{near}"))
    return findings


Rows = Iterator[tuple[str, str, object]]  # (the setting that it comes from, verl's key, its value)


@dataclass
class Layout:
    """What the overrides need beside the settings: where things lie, and what was found out about them."""

    folder: str  # of train.parquet and verl_reward.py
    output: str  # checkpoints, samples and logs; absolute
    template: str | None  # chat template for data or models without one
    held_out: bool
    parameters: float | None
    columns: list[str]  # what reward functions get, beside prompts and completions
    rows: int = 0
    cpus: int = 1  # of a Ray of its own

    def file(self, name: str) -> str:
        return str(Path(self.folder) / name)


def make_overrides(config: Config, job: Layout) -> list[Override]:
    """Every override of the run, the user's own last; each key once."""
    parts = (data_rows, rollout_rows, algorithm_rows, loss_rows, reward_rows, critic_rows, engine_rows, trainer_rows)
    rows = [row for part in parts for row in part(config, job)]
    overrides = {key: Override(key, value, source) for source, key, value in rows}
    for text in config.override:
        sign, key, value = split_override(text)
        overrides.pop(key, None)
        overrides[key] = Override(sign + key, value, "override", is_written=True)
    return list(overrides.values())


def data_rows(c: Config, job: Layout) -> Rows:
    prompts, train = c.batch_size // c.group_size, job.file("train.parquet")
    # verl starts no epoch of fewer rows than a step has prompts; a folder that stands alone lists them as often
    times = math.ceil(prompts / job.rows) if c.export and job.rows else 1
    yield "data", "data.train_files", [train] * times if times > 1 else train
    if job.template is not None:
        yield "data", f"{MODEL}.custom_chat_template", job.template
    yield "eval_data", "data.val_files", train if c.export and not job.held_out else job.file("val.parquet")
    if not job.held_out:
        yield "eval_data", "data.val_max_samples", 1
    yield "prompt_column", "data.prompt_key", "prompt"
    if switches := template_settings(c):
        yield "chat_template_kwargs", "data.apply_chat_template_kwargs", switches
    for key in ("data.seed", f"{ACTOR}.data_loader_seed", "critic.data_loader_seed", f"{ROLLOUT}.seed", f"{FSDP}.seed"):
        yield "seed", key, c.seed
    yield "batch_size", "data.train_batch_size", prompts
    yield "batch_size", f"{ACTOR}.ppo_mini_batch_size", prompts // c.minibatches
    yield "max_prompt_tokens", "data.max_prompt_length", c.max_prompt_tokens
    yield "max_prompt_tokens", "data.filter_overlong_prompts", True
    if c.environment:  # a bound that is never met: the loop ends conversations, and bounds each answer
        yield "max_conversation_tokens", "data.max_response_length", c.conversation_tokens
        yield "environment", f"{ROLLOUT}.agent.default_agent_loop", "environment"
        yield "environment", f"{ROLLOUT}.agent.agent_loop_config_path", job.file("verl_environment.yaml")
    else:
        yield "max_new_tokens", "data.max_response_length", c.max_new_tokens


def rollout_rows(c: Config, job: Layout) -> Rows:
    yield "verl_rollout", f"{ROLLOUT}.name", c.verl_rollout
    yield "group_size", f"{ROLLOUT}.n", c.group_size
    yield "temperature", f"{ROLLOUT}.temperature", c.temperature
    # the whole distribution: a truncated sampler is not the policy whose log-probs the ratio compares
    yield "temperature", f"{ROLLOUT}.top_p", 1.0
    yield "temperature", f"{ROLLOUT}.top_k", -1
    yield "vllm_memory", f"{ROLLOUT}.gpu_memory_utilization", c.vllm_memory
    yield "rollout_tensor_parallel", f"{ROLLOUT}.tensor_model_parallel_size", c.rollout_tensor_parallel
    yield "precision", f"{ROLLOUT}.dtype", DTYPES[c.precision]
    if c.lora_rank:  # adapters are sent, the base is not
        yield "lora_rank", f"{ROLLOUT}.load_format", "safetensors"


def algorithm_rows(c: Config, job: Layout) -> Rows:
    """Advantages, KL, and the correction for a sampler that is not the trainer's policy."""
    in_reward, in_loss = (c.kl_coef > 0 and c.kl_in == place for place in ("reward", "loss"))
    yield "advantage", "algorithm.adv_estimator", ADVANTAGES.get(c.advantage, OWN_NAME)
    yield "advantage", "critic.enable", c.advantage == "gae"
    if c.advantage in ("grpo", "mean"):
        yield "advantage", "algorithm.norm_adv_by_std_in_grpo", c.advantage == "grpo"
    yield "gamma", "algorithm.gamma", c.gamma
    yield "gae_lambda", "algorithm.lam", c.gae_lambda
    yield "kl_coef", "algorithm.use_kl_in_reward", in_reward
    yield "kl_coef", f"{ACTOR}.use_kl_loss", in_loss
    if in_reward:
        yield "kl_coef", "algorithm.kl_ctrl.kl_coef", c.kl_coef
        yield "kl_estimator", "algorithm.kl_penalty", c.kl_estimator
    if in_loss:
        yield "kl_coef", f"{ACTOR}.kl_loss_coef", c.kl_coef
        yield "kl_estimator", f"{ACTOR}.kl_loss_type", c.kl_estimator.replace("k3_ratio", "k3+")
    # auto: the sampler is vLLM or SGLang, in another precision than the trainer
    level = {"none": None, "seq_mask": "sequence"}.get(c.mismatch, "token")
    yield "mismatch", f"{CORRECTION}.rollout_is", level
    if c.mismatch in ("icepop", "seq_mask"):
        yield "mismatch_high", f"{CORRECTION}.rollout_is_threshold", f"{c.mismatch_low}_{c.mismatch_high}"
    elif level:
        yield "mismatch_high", f"{CORRECTION}.rollout_is_threshold", c.mismatch_high


def loss_rows(c: Config, job: Layout) -> Rows:
    """The policy loss, its bounds, its aggregation, and the passes over a batch."""
    yield "loss", f"{POLICY_LOSS}.loss_mode", LOSSES.get(c.loss, OWN_NAME)
    if c.loss not in LOSSES:
        yield "loss", f"{MODEL}.external_lib", OWN_LOSS_MODULE
    yield "aggregation", f"{ACTOR}.loss_agg_mode", AGGREGATIONS[c.aggregation]
    yield "aggregation", "critic.loss_agg_mode", "token-mean"
    # left out, verl takes a micro-batch's longest
    if c.aggregation == "seq_mean_token_sum_norm":
        yield "max_new_tokens", f"{ACTOR}.loss_scale_factor", c.max_new_tokens
    if c.aggregation == "fixed_length":
        yield "norm_length", f"{ACTOR}.loss_scale_factor", c.norm_length
    yield "ppo_epochs", f"{ACTOR}.ppo_epochs", c.ppo_epochs
    yield "ppo_epochs", f"{ACTOR}.shuffle", True
    yield "clip_eps_low", f"{ACTOR}.clip_ratio_low", c.clip_eps_low
    yield "clip_eps_high", f"{ACTOR}.clip_ratio_high", c.clip_eps_high
    yield "dual_clip", f"{ACTOR}.clip_ratio_c", c.dual_clip or OFF
    if c.loss == "sapo":
        yield "sapo_tau_pos", f"{ACTOR}.tau_pos", c.sapo_tau_pos
        yield "sapo_tau_neg", f"{ACTOR}.tau_neg", c.sapo_tau_neg
    if c.loss in ("clip_cov", "kl_cov"):
        yield "cov_frac", f"{POLICY_LOSS}.{c.loss}_ratio", c.cov_frac
    if c.loss == "clip_cov":
        yield "cov_low", f"{POLICY_LOSS}.clip_cov_lb", c.cov_low
        yield "cov_high", f"{POLICY_LOSS}.clip_cov_ub", c.cov_high
    if c.loss == "kl_cov":
        yield "kl_cov_coef", f"{POLICY_LOSS}.ppo_kl_coef", c.kl_cov_coef
    yield "entropy_coef", f"{ACTOR}.entropy_coeff", c.entropy_coef


def reward_rows(c: Config, job: Layout) -> Rows:
    """The reward, what is taken from it, and the guard that ends a run when it fails."""
    if c.export:  # a function that needs nothing of ours
        yield "reward", "reward.custom_reward_function.path", job.file("verl_reward.py")
        yield "reward", "reward.custom_reward_function.name", "compute_score"
        return
    hooks = job.file("verl_hooks.py")
    yield "reward", "reward.reward_manager.source", "importlib"
    yield "reward", "reward.reward_manager.name", "TokenRewardManager"
    yield "reward", "reward.reward_manager.module.path", hooks
    yield "reward", f"{SAMPLER}.path", hooks
    yield "reward", f"{SAMPLER}.name", "StrictReplayBuffer"
    yield "reward", f"{KWARGS}.error_file", str(Path(job.output) / REWARD_ERROR)
    yield "missing_eos_penalty", "reward.reward_kwargs.missing_eos_penalty", c.missing_eos_penalty
    yield "overlong_share", "reward.reward_kwargs.overlong_share", c.overlong_share
    if c.dynamic_sampling:  # by the score before length penalties, as ours
        yield "dynamic_sampling", "algorithm.filter_groups.enable", True
        yield "dynamic_sampling", "algorithm.filter_groups.metric", "score"
        yield "dynamic_sampling", f"{KWARGS}.filter_groups_metric", "score"
        yield "batch_size", f"{KWARGS}.train_batch_size", c.batch_size // c.group_size
        yield "max_refills", f"{KWARGS}.max_refills", c.max_refills


def critic_rows(c: Config, job: Layout) -> Rows:
    if c.advantage != "gae":
        return
    yield "critic_model", "critic.model.path", model_path(c.critic_model or c.model)
    yield "model", "critic.model.tokenizer_path", model_path(c.model)
    # verl's actor trains from the step of this number on, and its first step is 1
    yield "critic_warmup_steps", "trainer.critic_warmup", c.critic_warmup_steps + 1 if c.critic_warmup_steps else 0
    yield "value_clip", "critic.cliprange_value", c.value_clip or OFF
    # Adam does not see the scale of a loss of its own, gradient clipping does
    yield "vf_coef", "critic.optim.clip_grad", c.max_grad_norm / c.vf_coef
    yield "gradient_checkpointing", "critic.model.enable_gradient_checkpointing", c.gradient_checkpointing
    yield "micro_batch_tokens", "critic.ppo_max_token_len_per_gpu", c.micro_batch_tokens
    yield "micro_batch_tokens", "critic.ppo_infer_max_token_len_per_gpu", c.micro_batch_tokens


def engine_rows(c: Config, job: Layout) -> Rows:
    """Who trains: adapters, optimizers, sharding, precision, micro-batches, offload."""
    critic = c.advantage == "gae"
    trained = [FSDP, "critic.fsdp"] if critic else [FSDP]
    yield "model", f"{MODEL}.path", model_path(c.model)
    if c.precision == "fp32":  # which flash attention does not compute
        yield "precision", ATTENTION, "sdpa"
        yield "precision", f"{MODEL}.use_remove_padding", False
    for model in ([MODEL, "critic.model"] if critic else [MODEL]) if c.lora_rank else []:
        yield "lora_rank", f"{model}.lora_rank", c.lora_rank
        yield "lora_rank", f"{model}.target_modules", "all-linear"
        yield "lora_alpha", f"{model}.lora_alpha", int(c.lora_alpha or 2 * c.lora_rank)
    yield "max_grad_norm", f"{OPTIM}.clip_grad", c.max_grad_norm
    rates = learning_rates(c, job.parameters or 1e9)
    for name, optimizer, rate in zip(("lr", "critic_lr"), (OPTIM, "critic.optim")[: 1 + critic], rates, strict=False):
        yield name, f"{optimizer}.lr", rate
        yield "lr_schedule", f"{optimizer}.lr_scheduler_type", c.lr_schedule
        yield "warmup_steps", f"{optimizer}.lr_warmup_steps", c.warmup_steps
        yield "weight_decay", f"{optimizer}.weight_decay", c.weight_decay
        yield "adam_beta2", f"{optimizer}.betas", [0.9, c.adam_beta2]
        yield "adam_eps", f"{optimizer}.override_optimizer_config", {"eps": c.adam_eps}
    yield "gpus_per_node", f"{ACTOR}.strategy", "fsdp2"
    yield "gpus_per_node", "critic.strategy", "fsdp2"
    frozen = [f"{REF}.fsdp_config"] if c.kl_coef and not c.lora_rank else []  # with LoRA it is the actor
    for part in trained + frozen:
        yield "precision", f"{part}.{COMPUTE}", c.precision  # FSDP does not read its `dtype`
        # adapters, gradients and Adam have the dtype of the weights; frozen ones need no master copy
        yield "precision", f"{part}.{WEIGHT_DTYPE}", "fp32" if part in trained else c.precision
        yield "sequence_parallel", f"{part}.ulysses_sequence_parallel_size", c.sequence_parallel
    yield "micro_batch_tokens", f"{ACTOR}.use_dynamic_bsz", True
    for key in (f"{ACTOR}.ppo", f"{ROLLOUT}.log_prob", *[f"{REF}.log_prob"] * len(frozen)):
        yield "micro_batch_tokens", f"{key}_max_token_len_per_gpu", c.micro_batch_tokens
    yield "gradient_checkpointing", f"{MODEL}.enable_gradient_checkpointing", c.gradient_checkpointing
    for part in trained:
        yield "offload", f"{part}.param_offload", c.offload == "all"
        yield "offload", f"{part}.optimizer_offload", c.offload != "none"


def trainer_rows(c: Config, job: Layout) -> Rows:
    """Steps, evaluation, checkpoints, logs, machines."""
    output, gpus = Path(job.output), c.nodes * c.gpus_per_node
    # an epoch has a step at least, so epochs never end before the steps do; verl saves at the last step only
    yield "steps", "trainer.total_training_steps", c.steps
    yield "steps", "trainer.total_epochs", c.steps
    yield "eval_every", "trainer.test_freq", (c.eval_every or c.steps) if job.held_out else -1
    yield "eval_every", "trainer.val_before_train", job.held_out
    contents = ["model", "optimizer", "extra"]
    if not c.lora_rank:
        contents.append("hf_model")  # with adapters it writes wrong names
    yield "save_every", "trainer.save_freq", c.save_every or c.steps
    yield "save_every", f"{ACTOR}.checkpoint.save_contents", contents
    yield "keep_checkpoints", "trainer.max_actor_ckpt_to_keep", c.keep_checkpoints
    yield "keep_checkpoints", "trainer.max_critic_ckpt_to_keep", c.keep_checkpoints
    # a script that is written may be started again; else the folder is new, or the user resumes
    yield "resume", "trainer.resume_mode", "auto" if c.resume or c.print else "disable"
    yield "report_to", "trainer.logger", ["console", "file", *c.report_to]
    yield "output_dir", "trainer.default_local_dir", str(output / "checkpoints")
    yield "output_dir", "trainer.project_name", "verl_train"
    yield "output_dir", "trainer.experiment_name", output.name
    yield "output_dir", "hydra.run.dir", str(output / "hydra")
    if c.sample_every:
        yield "output_dir", "trainer.rollout_data_dir", str(output / "samples")
    if c.sample_every and job.held_out:
        yield "output_dir", "trainer.validation_data_dir", str(output / "held_out")
    yield "nodes", "trainer.nnodes", c.nodes
    yield "gpus_per_node", "trainer.n_gpus_per_node", c.gpus_per_node
    # a Ray of its own, also where one runs already, or RAY_ADDRESS names one
    yield "cpus", "ray_kwargs.ray_init.num_cpus", max(job.cpus, cpus_needed(gpus, 1))
    yield "cpus", "ray_kwargs.ray_init.address", "local"
    units = 8 if job.cpus >= cpus_needed(gpus, 8) else 1
    yield "cpus", "transfer_queue.backend.SimpleStorage.num_data_storage_units", units


def cpus_needed(gpus: int, storage_units: int) -> int:
    """CPUs that Ray has to promise before a run begins: with fewer it hangs without a message.

    The task runner and the queue's controller take one each, a storage unit one, and the place of a GPU three.
    """
    return 2 + storage_units + 3 * gpus


def model_path(model: str) -> str:
    """A model as any folder's process finds it."""
    return str(Path(model).resolve()) if Path(model).is_dir() else model
