"""Our settings as verl's overrides: data, rollout, algorithm, loss, rewards."""

from dataclasses import dataclass
from pathlib import Path

from parts.data.chat import template_settings
from parts.data.pass_band import band_of
from parts.data.verl_keys import ACTOR, CORRECTION, FSDP, MODEL, OFF, ROLLOUT
from programs.verl_train.names import (
    ADVANTAGES,
    AGGREGATIONS,
    DTYPES,
    KWARGS,
    LOSSES,
    MEGATRON,
    OLD_TRAINER,
    OWN_LOSS_MODULE,
    OWN_NAME,
    POLICY_LOSS,
    SAMPLER,
)
from programs.verl_train.rewards import REWARD_ERROR
from programs.verl_train.settings import Config


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
        return str(Path(self.folder) / name)


def data_overrides(config: Config, job: Layout) -> dict:
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
        **response_overrides(config, job),
    }


def response_overrides(config: Config, job: Layout) -> dict:
    """The length of what follows a prompt, and who samples it: verl's single-turn loop, or the job's own."""
    if not config.environment:
        return {"max_new_tokens": {"data.max_response_length": config.max_new_tokens}}
    return {
        # a bound that is never met: the loop ends conversations, and bounds each answer
        "max_conversation_tokens": {"data.max_response_length": config.conversation_tokens},
        "environment": {
            f"{ROLLOUT}.agent.default_agent_loop": "environment",
            f"{ROLLOUT}.agent.agent_loop_config_path": job.file("verl_environment.yaml"),
        },
    }


def rollout_overrides(config: Config, job: Layout) -> dict:
    lora = {f"{ROLLOUT}.load_format": "safetensors"} if config.lora_rank else {}  # adapters are sent, the base is not
    return {
        "verl_rollout": {f"{ROLLOUT}.name": config.verl_rollout},
        "group_size": {f"{ROLLOUT}.n": config.group_size},
        # the whole distribution: a truncated sampler is not the policy whose log-probs the ratio compares
        "temperature": {
            f"{ROLLOUT}.temperature": config.temperature,
            f"{ROLLOUT}.top_p": 1.0,
            f"{ROLLOUT}.top_k": -1,
        },
        "vllm_memory": {f"{ROLLOUT}.gpu_memory_utilization": config.vllm_memory},
        "rollout_tensor_parallel": {f"{ROLLOUT}.tensor_model_parallel_size": config.rollout_tensor_parallel},
        "precision": {f"{ROLLOUT}.dtype": DTYPES[config.precision]},
        "lora_rank": lora,
    }


def algorithm_overrides(config: Config, job: Layout) -> dict:
    """Advantages, KL, groups, and the correction for a sampler that is not the trainer's policy."""
    c, kl = config, config.kl_coef > 0
    in_reward, in_loss = kl and c.kl_in == "reward", kl and c.kl_in == "loss"
    advantage = {
        "algorithm.adv_estimator": ADVANTAGES.get(c.advantage, OWN_NAME),
        "critic.enable": c.advantage == "gae",
    }
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
            **({f"{ACTOR}.kl_loss_type": c.kl_estimator.replace("k3_ratio", "k3+")} if in_loss else {}),
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
        "loss": {
            f"{POLICY_LOSS}.loss_mode": LOSSES.get(c.loss, OWN_NAME),
            **({f"{MODEL}.external_lib": OWN_LOSS_MODULE} if c.loss not in LOSSES else {}),
        },
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
            "keep_between": {f"{KWARGS}.keep_between": list(band_of(config))} if config.keep_between else {},
        }
    return {
        "reward": reward,
        "missing_eos_penalty": {"reward.reward_kwargs.missing_eos_penalty": config.missing_eos_penalty},
        "overlong_share": {"reward.reward_kwargs.overlong_share": config.overlong_share},
        **refill,
    }
