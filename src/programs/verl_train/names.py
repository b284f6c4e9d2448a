"""verl's name of each setting, and the settings that verl refuses or ignores."""

from parts.data.verl_keys import ACTOR, CORRECTION, MODEL

ADVANTAGES = {  # our estimator -> verl's; those that end in _ours are registered by verl_hooks.py
    "gae": "gae",
    "grpo": "grpo",
    "mean": "grpo",
    "rloo": "rloo",
    "opo": "opo",
    "gpg": "gpg_ours",
    "gpg_verl": "gpg",
    "maxrl": "maxrl_ours",
    **dict.fromkeys(("gdpo", "remax")),  # verl's default trainer gives no scores by function, and no baselines
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

SAMPLER, KWARGS = "trainer.v1.sampler.custom_sampler", "trainer.v1.sampler.sampler_kwargs"
OPTIM = f"{ACTOR}.optim"
COMPUTE, WEIGHT_DTYPE = "mixed_precision.param_dtype", "model_dtype"  # below a part that FSDP shards
ATTENTION = f"{MODEL}.override_config.attn_implementation"
DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}  # our precision -> the samplers'
POLICY_LOSS = f"{ACTOR}.policy_loss"

# Settings that verl cannot express: (the value or values that mean the same there, why another is refused).
FIXED = {
    "kl_target": ([0.0], "verl's controller counts nats per token; try --override algorithm.kl_ctrl.type=adaptive"),
    "mask_truncated": ([False], "verl trains on truncated completions; try --overlong_share 0.2"),
    "advantage_std": (["unbiased"], "verl's standard deviation is the unbiased one"),
    "advantage_eps": ([1e-6], "verl adds 1e-6"),
    "whiten_rewards": ([False], "verl does not whiten rewards"),
    "whiten_advantages": ([True], "verl always whitens GAE's advantages"),
    "turn_baseline": (["conversation"], "verl's estimators compare whole conversations; try scripts/ppo_train.py"),
    "keep_between": ([[]], "verl's loader has its own order; try --dynamic_sampling"),
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
    "metrics_file": ([""], "verl writes its own names; try scripts/ppo_train.py"),
    "metric_names": ([""], "verl writes its own names; try scripts/ppo_train.py"),
    "dry_run": ([False], "--check is the dry run"),
}

# Settings that mean nothing to verl, or have a counterpart that is always on: why. They are told, and the job goes on.
IDLE_IN_VERL = {
    "score_while_sampling": "verl decides when a reward is called",
    "rollout_engine": "it is the engine of a single process; verl samples with --verl_rollout",
    "rollout_batch_size": "the rollout engine forms its own batches",
    "reuse_prefill": "the rollout engine has a prefix cache of its own",
    "decode_graphs": "the rollout engine has graphs of its own",
    "vllm_args": "try --override +actor_rollout_ref.rollout.engine_kwargs.vllm.KEY=VALUE",
    "check_sync": "verl does not compare weights; watch rollout_corr/kl with --mismatch",
    "share_prompts": "verl has actor_rollout_ref.actor.use_prefix_grouper, with the package prefix_grouper",
    "logits_chunk": "verl has no such bound; memory follows --micro_batch_tokens",
    "max_bad_updates": "verl skips a non-finite update and goes on; watch actor/grad_norm",
    "plot_every": "verl draws no curves; metrics.jsonl has the figures",
    "threads": "verl's processes set their own",
    "save_dtype": "verl saves fp32 weights; its model merger writes the folder",
    "stop_when": "verl's job does not judge itself; run scripts/diagnose.py on its folder",
}
# Overrides that would undo what a setting or a guard of this script does: (why, what to write).
TRAPS = {
    "custom_reward_function": ("is read by the old trainer only", "--reward FILE.py:function"),
    "reward_model": ("is read by the old trainer only", "--reward, or --override reward.reward_model.…"),
    "reward.custom_reward_function": ("is not read by the job's reward manager", "--reward FILE.py:function"),
    "reward.reward_manager": ("removes token ids, length penalties and the guard on rewards", "--reward"),
    f"{CORRECTION}.bypass_mode": ("makes the trainer leave out the correction", "--mismatch"),
    SAMPLER: ("removes the guard that ends the run when a reward raises", "leaving it out"),
    KWARGS: ("belongs to the guard that ends the run when a reward raises", "--max_refills"),
    "trainer.v1.sampler.sync_refill_failed_groups": ("hides rollouts and rewards that fail", "leaving it out"),
    "trainer.v1.trainer_mode": ("uses another replay buffer, without the guard on rewards", "leaving it out"),
    "trainer.total_epochs": ("can end the run before its last step, without a checkpoint", "--steps"),
    "trainer.total_training_steps": ("is --steps here, on which the last checkpoint depends", "--steps"),
    "trainer.save_freq": ("can leave out the last checkpoint", "--save_every"),
    "trainer.use_v1": ("chooses a trainer without the guard on rewards", "leaving it out"),
}
