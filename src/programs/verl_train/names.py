"""What verl calls each setting, and what it refuses or ignores."""

import re

ADVANTAGES = {  # our estimator -> verl's; those that end in _ours are registered by verl_hooks.py
    "gae": "gae",
    "grpo": "grpo",
    "mean": "grpo",
    "rloo": "rloo",
    "opo": "opo",
    "gpg": "gpg_ours",
    "gpg_verl": "gpg",
    "maxrl": "maxrl_ours",
    "gdpo": "gdpo",
    "remax": "remax",
    "reinforce_pp": "reinforce_plus_plus",
    "reinforce_pp_baseline": "reinforce_plus_plus_baseline",
}
LOSSES = {
    "clip": "vanilla",
    "reinforce": "gpg",
    "gspo": "gspo",
    "cispo": "cispo",
    "sapo": "sapo",
    "gmpo": "geo_mean",
    "dppo_tv": "dppo_tv",
    "dppo_kl": "dppo_kl",
    "clip_cov": "clip_cov",
    "kl_cov": "kl_cov",
}
AGGREGATIONS = {
    "token_mean": "token-mean",
    "seq_mean_token_mean": "seq-mean-token-mean",
    "seq_mean_token_sum": "seq-mean-token-sum",
    "seq_mean_token_sum_norm": "seq-mean-token-sum-norm",
    "fixed_length": "seq-mean-token-sum-norm",
}
OWN_NAME = "own_ours"  # what the job calls an estimator or a loss of the user's own
OWN_LOSS_MODULE = "verl_own_loss"  # the job's file that puts such a loss into verl's registry
OLD_TRAINER = {"gdpo", "remax"}  # verl's default trainer gives these estimators no per-function scores, no baselines
OFF = 1e9  # a bound that no ratio reaches: verl, like us, bounds the log-ratio to +-20, and exp(20) is 4.9e8

ACTOR, REF, ROLLOUT, MODEL = (f"actor_rollout_ref.{part}" for part in ("actor", "ref", "rollout", "model"))
SAMPLER, KWARGS = "trainer.v1.sampler.custom_sampler", "trainer.v1.sampler.sampler_kwargs"
OPTIM, MEGATRON, FSDP = f"{ACTOR}.optim", f"{ACTOR}.megatron", f"{ACTOR}.fsdp_config"
COMPUTE = "mixed_precision.param_dtype"  # below a part that FSDP trains
DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}  # our precision -> Megatron's and the samplers'
POLICY_LOSS, CORRECTION = f"{ACTOR}.policy_loss", "algorithm.rollout_correction"

# Settings that verl cannot express: (the value or values that mean the same there, why another is refused).
FIXED = {
    "kl_target": ([0.0], "verl's controller counts nats per token; try --override algorithm.kl_ctrl.type=adaptive"),
    "mask_truncated": ([False], "verl trains on truncated completions; try --overlong_share 0.2"),
    "advantage_std": (["unbiased"], "verl's standard deviation is the unbiased one"),
    "advantage_eps": ([1e-6], "verl adds 1e-6"),
    "whiten_rewards": ([False], "verl does not whiten rewards"),
    "whiten_advantages": ([True], "verl always whitens GAE's advantages"),
    "turn_baseline": (["conversation"], "verl's estimators compare whole conversations; try scripts/ppo_train.py"),
    "max_oversampling": ([1.0], "verl replaces a group at a time; try --max_refills"),
    "target_kl": ([0.0], "verl ends no update early; try fewer --ppo_epochs"),
    "critic": (["separate"], "verl's critic has its own backbone"),
    "attn_implementation": (
        ["auto"],
        "verl's actor takes flash_attention_2; try --override "
        "+actor_rollout_ref.model.override_config.attn_implementation=sdpa "
        "actor_rollout_ref.model.use_remove_padding=False",
    ),
    "merge_lora": ([False], "verl saves adapters; merge them afterwards, with peft's merge_and_unload"),
    "load_in_4bit": ([False], "verl trains no 4-bit weights; try --lora_rank with --offload all"),
    "device": (["auto", "cuda"], "verl finds the devices by itself"),
    "dry_run": ([False], "--check is the dry run"),
}

# Settings that mean nothing to verl, or have a counterpart that is always on: why. They are told, and the job goes on.
IDLE_IN_VERL = {
    "score_while_sampling": "verl decides when a reward is called",
    "rollout_engine": "engine of one process; verl samples with --verl_rollout",
    "rollout_batch_size": "the rollout engine forms its own batches",
    "reuse_prefill": "the rollout engine has a prefix cache of its own",
    "vllm_args": "try --override +actor_rollout_ref.rollout.engine_kwargs.vllm.KEY=VALUE",
    "check_sync": "verl compares no weights; watch rollout_corr/kl with --mismatch",
    "share_prompts": "verl has actor_rollout_ref.actor.use_prefix_grouper, with the package prefix_grouper",
    "logits_chunk": "verl has no such bound; memory follows --micro_batch_tokens",
    "max_bad_updates": "verl skips a non-finite update and goes on; watch actor/grad_norm",
    "plot_every": "verl draws no curves; metrics.jsonl has the figures",
    "stop_when": "verl's job judges nothing itself; ask scripts/diagnose.py of its folder",
}
# Settings that become no override: what they are for.
NOTES = IDLE_IN_VERL | {
    "algorithm": "sets others",
    "hardware": "sets others",
    "eval_rows": "of val.parquet",
    **dict.fromkeys(("reward_timeout", "reward_concurrency", "reward_retries"), "in verl_reward.py"),
    **dict.fromkeys(("max_turns", "tool_timeout", "tool_characters", "tool_format"), "in verl_environment.py"),
    "kl_horizon": "without kl_target nothing adapts",
    "sample_every": "above 0, verl writes every completion, to samples/, those of evaluations to held_out/",
    "allow_overlap": "checked alone",
    "sample_tokens": "verl writes no figures of tokens",
    "gpu_memory": "for the memory arithmetic",
    "parameters": "for the memory arithmetic and lr 0",
    "override": "passed on",
    "overrides": "checked alone",
    "from_trl": "settings are read off it",
    "trl_processes": "of the TRL run",
    "run_script": "of the TRL run",
    "data_source": "written into the rows",
    "ship": "copied into the job folder",
    **dict.fromkeys(("print", "check", "run", "submit", "slurm", "export"), "what to do with the job"),
}

# What older guides have, or what looks right: key, or key=value -> (what verl 0.9.1 does with it, what to write). Where
# that is a whole section, the keys of the old one stand below it.
IGNORED, GONE = "ignores it", "no longer has it"
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

# Overrides that would undo what a setting or a guard of this script does: (why, what to write).
TRAPS = {
    "custom_reward_function": ("is read by the old trainer only", "--reward FILE.py:function"),
    "reward_model": ("is read by the old trainer only", "--reward, or --override reward.reward_model.…"),
    "reward.custom_reward_function": ("puts another reward in the place of yours", "--reward FILE.py:function"),
    "reward.reward_manager": ("takes away token ids, length penalties and the guard on rewards", "--reward"),
    f"{CORRECTION}.bypass_mode": ("makes the trainer leave out the correction", "--mismatch"),
    SAMPLER: ("takes away the guard that ends the run when a reward raises", "leaving it out"),
    KWARGS: ("belongs to the guard that ends the run when a reward raises", "--max_refills"),
    "trainer.v1.sampler.sync_refill_failed_groups": ("hides rollouts and rewards that fail", "leaving it out"),
    "trainer.v1.trainer_mode": ("uses another replay buffer, without the guard on rewards", "leaving it out"),
    "trainer.total_epochs": ("can end the run before its last step, without a checkpoint", "--steps"),
    "trainer.total_training_steps": ("is --steps here, on which the last checkpoint depends", "--steps"),
    "trainer.save_freq": ("can leave out the last checkpoint", "--save_every"),
    "trainer.use_v1": ("chooses a trainer without the guard on rewards", "--advantage"),
}


def advice_today(key: str, value: str) -> tuple[str, str] | None:
    """(What verl does with a key of TODAY, what to write), by the most exact entry."""
    value = value.strip().lower()
    for trap in sorted(TODAY, key=len, reverse=True):
        name, _, only = trap.partition("=")
        if (key == name or key.startswith(f"{name}.")) and only in ("", value):
            effect, instead = TODAY[trap]
            is_section = re.fullmatch(r"\+?[\w.]+", instead)
            return effect, instead + key.removeprefix(name) if is_section else instead
    return None
