"""Our settings as verl's overrides: data, rollout, algorithm, loss, rewards."""

import re
from dataclasses import dataclass
from pathlib import Path

from parts.chat import template_settings
from parts.messages import need
from parts.presets import check_config
from programs.verl_train.names import (
    ACTOR,
    ADVANTAGES,
    AGGREGATIONS,
    COMPUTE,
    CORRECTION,
    DTYPES,
    FIXED,
    FSDP,
    KWARGS,
    LOSSES,
    MEGATRON,
    MODEL,
    OFF,
    OLD_TRAINER,
    OPTIM,
    POLICY_LOSS,
    ROLLOUT,
    SAMPLER,
    TABLE,
    TRAPS,
)
from programs.verl_train.rewards import REWARD_ERROR
from programs.verl_train.settings import VERL, Config


@dataclass(frozen=True)
class Override:
    """One Hydra override and the setting that it comes from."""

    key: str
    value: object
    source: str

    def text(self) -> str:
        """KEY=VALUE in Hydra's grammar; `+` where verl's configuration has no such key."""
        if self.source == "override":
            return f"{self.key}={self.value}"
        return f"{'+' if self.key in ADDED else ''}{self.key}={hydra_value(self.value)}"


# keys that verl reads and its configuration files leave out
ADDED = {
    "reward.reward_kwargs.missing_eos_penalty",
    "reward.reward_kwargs.overlong_share",
    "algorithm.gdpo_reward_keys",
    "algorithm.gdpo_reward_weights",
    "ray_kwargs.ray_init.address",
    "data.apply_chat_template_kwargs",  # there, and empty: `+` lets it take names
    *(f"{prefix}.override_optimizer_config" for prefix in (OPTIM, "critic.optim")),  # with megatron empty, else null
    "critic.ppo_infer_max_token_len_per_gpu",  # the one that the default trainer reads, for updates too
    *(key for keys in TABLE.values() for key in keys if key.startswith(KWARGS) or key.endswith(COMPUTE)),
}


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


def check_expressible(config: Config) -> None:
    """Raise UserError for settings that verl cannot express."""
    check_config(config)
    relevant = {"advantage_std": {"grpo", "gdpo"}, "advantage_eps": {"grpo", "gdpo"}, "whiten_advantages": {"gae"}}
    for name, (allowed, why) in FIXED.items():
        value = getattr(config, name)
        acts = config.advantage in relevant.get(name, {config.advantage})
        need(value in allowed or not acts, f"got {name} {value}; expected {allowed[0]} with verl: {why}")
    c = config
    need(
        c.kl_estimator != "k3_ratio" or not c.kl_coef,
        "got kl_estimator k3_ratio; expected k1, k2 or k3 with verl; try k2, whose gradient in the loss is the same",
    )
    alpha = f"got lora_alpha {c.lora_alpha}; expected a whole number with verl; try {max(1, round(c.lora_alpha))}"
    need(not c.lora_rank or float(c.lora_alpha).is_integer(), alpha)
    learns = c.vf_coef or c.advantage != "gae"
    need(learns, "got vf_coef 0; expected more than 0 with verl, whose critic always learns; try --vf_coef 0.5")
    fits = {"sapo": "seq_mean_token_mean", "gmpo": "seq_mean_token_mean"}.get(c.loss, c.aggregation)
    need(c.aggregation == fits, f"got loss {c.loss} with aggregation {c.aggregation}; expected {fits}, verl's only one")
    need(
        c.lr_schedule != "linear" or c.backend == "megatron",
        "got lr_schedule linear; expected constant or cosine with verl's fsdp2; try --backend megatron",
    )
    halves = c.precision != "fp32" or c.backend == "fsdp2"
    need(halves, "got precision fp32 with megatron; expected bf16 or fp16 there; try --precision bf16")
    pieces = {"tensor_parallel": c.tensor_parallel, "pipeline_parallel": c.pipeline_parallel}
    idle = [name for name, size in pieces.items() if size > 1 and c.backend == "fsdp2"]
    need(not idle, f"got --{', --'.join(idle)} with fsdp2, which shards by itself; expected 1; try --backend megatron")
    old = c.advantage in OLD_TRAINER
    need(
        not (old and c.dynamic_sampling), f"got --dynamic_sampling with {c.advantage}; verl's trainers have one of both"
    )
    prompts = c.batch_size // c.group_size
    whole = c.minibatches * c.group_size * max(1, prompts // c.minibatches)
    need(
        prompts % c.minibatches == 0,
        f"got batch_size {c.batch_size}, group_size {c.group_size}, minibatches {c.minibatches}; expected whole groups "
        f"in a minibatch, as verl counts prompts; try --batch_size {whole}",
    )
    chosen = [name for name in ("print", "check", "run", "submit", "slurm") if getattr(c, name)]
    need(
        len(chosen) == 1,
        f"got {', '.join(chosen) or 'nothing to do'}; expected one of --print --check --run --submit --slurm",
    )


@dataclass
class Layout:
    """What the overrides need beside the settings: where things lie, and what was found out about them."""

    folder: str  # of train.parquet and verl_reward.py; "" where a job's working directory is that folder
    output: str  # checkpoints, samples and logs; absolute
    template: str | None  # chat template for data or models without one
    held_out: bool
    reward_weights: dict[str, float]
    parameters: float | None
    hydra: str  # where Hydra may write
    columns: list[str]  # what reward functions get, beside prompts and completions
    cpus: int | None = None  # Ray's own CPUs, counted for a local run; None on a cluster that exists

    def file(self, name: str) -> str:
        """Path of a file of the job folder."""
        return str(Path(self.folder) / name)


def split_override(text: str) -> tuple[str, str, str]:
    """(`+`, `++`, `~` or nothing; key; value) of KEY=VALUE; UserError for other text and for a trap."""
    match = re.fullmatch(r"(\+\+|\+|~)?([\w.@/-]+)=(.*)", text, re.DOTALL)
    need(match, f"got --override {text!r}; expected KEY=VALUE; try --override trainer.log_val_generations=4")
    sign, key, value = match.groups()
    for trap, (why, instead) in TRAPS.items():
        need(
            key != trap and not key.startswith(f"{trap}.") and not trap.startswith(f"{key}."),
            f"got --override {text!r}: {key} {why}; expected a key that verl {VERL} acts upon; try {instead}",
        )
    return sign or "", key, value


def data_overrides(config: Config, job: Layout) -> dict:
    """Files, prompts and their lengths."""
    template = {} if job.template is None else {f"{MODEL}.custom_chat_template": job.template}
    switches = template_settings(config)
    return {
        "data": {"data.train_files": job.file("train.parquet"), **template},
        "eval_data": {
            "data.val_files": job.file("val.parquet"),
            **({} if job.held_out else {"data.val_max_samples": 1}),
        },
        "prompt_column": {"data.prompt_key": "prompt"},
        "chat_template_kwargs": {"data.apply_chat_template_kwargs": switches} if switches else {},
        "seed": {
            "data.seed": config.seed,
            f"{ACTOR}.data_loader_seed": config.seed,
            "critic.data_loader_seed": config.seed,
            f"{ROLLOUT}.seed": config.seed,
            f"{MEGATRON if config.backend == 'megatron' else FSDP}.seed": config.seed,
        },
        "batch_size": {
            "data.train_batch_size": config.batch_size // config.group_size,
            f"{ACTOR}.ppo_mini_batch_size": config.batch_size // config.group_size // config.minibatches,
        },
        "max_prompt_tokens": {"data.max_prompt_length": config.max_prompt_tokens, "data.filter_overlong_prompts": True},
        "max_new_tokens": {"data.max_response_length": config.max_new_tokens},
    }


def rollout_overrides(config: Config, job: Layout) -> dict:
    """Who samples, and how."""
    lora = {f"{ROLLOUT}.load_format": "safetensors"} if config.lora_rank else {}  # adapters are sent, the base is not
    return {
        "verl_rollout": {f"{ROLLOUT}.name": config.verl_rollout},
        "group_size": {f"{ROLLOUT}.n": config.group_size},
        "temperature": {f"{ROLLOUT}.temperature": config.temperature},
        "top_p": {f"{ROLLOUT}.top_p": config.top_p},
        "top_k": {f"{ROLLOUT}.top_k": config.top_k or -1},
        "vllm_memory": {f"{ROLLOUT}.gpu_memory_utilization": config.vllm_memory},
        "rollout_tensor_parallel": {f"{ROLLOUT}.tensor_model_parallel_size": config.rollout_tensor_parallel},
        "precision": {f"{ROLLOUT}.dtype": DTYPES[config.precision]},
        "lora_rank": lora,
    }


def algorithm_overrides(config: Config, job: Layout) -> dict:
    """Advantages, KL, groups, and the correction for a sampler that is not the trainer's policy."""
    c, kl = config, config.kl_coef > 0
    in_reward, in_loss = kl and c.kl_in == "reward", kl and c.kl_in == "loss"
    advantage = {"algorithm.adv_estimator": ADVANTAGES[c.advantage], "critic.enable": c.advantage == "gae"}
    if c.advantage in ("grpo", "mean", "gdpo"):
        advantage["algorithm.norm_adv_by_std_in_grpo"] = c.advantage != "mean"
    if c.advantage in OLD_TRAINER:
        advantage["trainer.use_v1"] = False
    if c.advantage == "gdpo":
        advantage["algorithm.gdpo_reward_keys"] = list(job.reward_weights)
        advantage["algorithm.gdpo_reward_weights"] = list(job.reward_weights.values())
    band = f"{c.mismatch_low}_{c.mismatch_high}"
    how = {"auto": "tis"}.get(
        c.mismatch, c.mismatch
    )  # the sampler is vLLM or SGLang, in another precision than the trainer
    correction = {
        "none": {"mismatch": {f"{CORRECTION}.rollout_is": None}},
        "tis": {
            "mismatch": {f"{CORRECTION}.rollout_is": "token"},
            "mismatch_high": {f"{CORRECTION}.rollout_is_threshold": c.mismatch_high},
        },
        "icepop": {"mismatch": {f"{CORRECTION}.rollout_is": "token", f"{CORRECTION}.rollout_is_threshold": band}},
        "seq_mask": {"mismatch": {f"{CORRECTION}.rollout_is": "sequence", f"{CORRECTION}.rollout_is_threshold": band}},
    }[how]
    return {
        "advantage": advantage,
        "gamma": {"algorithm.gamma": c.gamma},
        "gae_lambda": {"algorithm.lam": c.gae_lambda},
        "kl_coef": {
            "algorithm.use_kl_in_reward": in_reward,
            **({"algorithm.kl_ctrl.kl_coef": c.kl_coef} if in_reward else {}),
            f"{ACTOR}.use_kl_loss": in_loss,
            **({f"{ACTOR}.kl_loss_coef": c.kl_coef} if in_loss else {}),
        },
        "kl_estimator": {
            **({"algorithm.kl_penalty": c.kl_estimator} if in_reward else {}),
            **({f"{ACTOR}.kl_loss_type": c.kl_estimator} if in_loss else {}),
        },
        **correction,
    }


def loss_overrides(config: Config, job: Layout) -> dict:
    """The policy loss, its bounds, its aggregation, and the passes over a batch."""
    c = config
    length = {"seq_mean_token_sum_norm": c.max_new_tokens, "fixed_length": c.norm_length}.get(c.aggregation)
    source = "norm_length" if c.aggregation == "fixed_length" else "max_new_tokens"
    cov = {"clip_cov": "clip_cov_ratio", "kl_cov": "kl_cov_ratio"}.get(c.loss)
    return {
        "loss": {f"{POLICY_LOSS}.loss_mode": LOSSES[c.loss]},
        "aggregation": {f"{ACTOR}.loss_agg_mode": AGGREGATIONS[c.aggregation], "critic.loss_agg_mode": "token-mean"},
        source: {f"{ACTOR}.loss_scale_factor": length}
        if length
        else {},  # left out, verl takes a micro-batch's longest
        "ppo_epochs": {f"{ACTOR}.ppo_epochs": c.ppo_epochs, f"{ACTOR}.shuffle": True},
        "clip_eps_low": {f"{ACTOR}.clip_ratio_low": c.clip_eps_low},
        "clip_eps_high": {f"{ACTOR}.clip_ratio_high": c.clip_eps_high},
        "dual_clip": {f"{ACTOR}.clip_ratio_c": c.dual_clip or OFF},
        "sapo_tau_pos": {f"{ACTOR}.tau_pos": c.sapo_tau_pos} if c.loss == "sapo" else {},
        "sapo_tau_neg": {f"{ACTOR}.tau_neg": c.sapo_tau_neg} if c.loss == "sapo" else {},
        "cov_frac": {f"{POLICY_LOSS}.{cov}": c.cov_frac} if cov else {},
        "cov_low": {f"{POLICY_LOSS}.clip_cov_lb": c.cov_low} if c.loss == "clip_cov" else {},
        "cov_high": {f"{POLICY_LOSS}.clip_cov_ub": c.cov_high} if c.loss == "clip_cov" else {},
        "kl_cov_coef": {f"{POLICY_LOSS}.ppo_kl_coef": c.kl_cov_coef} if c.loss == "kl_cov" else {},
        "entropy_coef": {f"{ACTOR}.entropy_coeff": c.entropy_coef},
    }


def reward_overrides(config: Config, job: Layout) -> dict:
    """The reward, what is taken from it, and the guard that ends a run when it fails."""
    reward = {
        "reward.custom_reward_function.path": job.file("verl_reward.py"),
        "reward.custom_reward_function.name": "compute_score",
        "reward.reward_manager.source": "importlib",
        "reward.reward_manager.name": "TokenRewardManager",
        "reward.reward_manager.module.path": job.file("verl_hooks.py"),
    }
    refill = {}
    if config.advantage not in OLD_TRAINER:
        reward[f"{SAMPLER}.path"], reward[f"{SAMPLER}.name"] = job.file("verl_hooks.py"), "StrictReplayBuffer"
        reward[f"{KWARGS}.error_file"] = str(Path(job.output) / REWARD_ERROR)
    if config.dynamic_sampling:
        refill = {
            "dynamic_sampling": {
                "algorithm.filter_groups.enable": True,
                "algorithm.filter_groups.metric": "score",  # before length penalties, as ours
                f"{KWARGS}.filter_groups_metric": "score",
            },
            "batch_size": {f"{KWARGS}.train_batch_size": config.batch_size // config.group_size},
            "max_refills": {f"{KWARGS}.max_refills": config.max_refills},
        }
    return {
        "reward": reward,
        "missing_eos_penalty": {"reward.reward_kwargs.missing_eos_penalty": config.missing_eos_penalty},
        "overlong_share": {"reward.reward_kwargs.overlong_share": config.overlong_share},
        **refill,
    }
