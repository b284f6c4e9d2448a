"""What our trainers, TRL, verl and others call metrics and settings."""

# what each framework's log calls the quantities below; of several names for one in a row, the first here counts
OURS = {
    "reward/mean": "score",
    "reward/std": "score_std",
    "reward/zero_std_frac": "zero_std",
    "kl/ref": "kl",
    "kl/approx": "kl_step",
    "policy/loss": "loss",
    "policy/clip_frac": "clip_frac",
    "policy/entropy": "entropy",
    "policy/ratio_max": "ratio_max",
    "value/loss": "value_loss",
    "value/explained_variance": "explained_variance",
    "rollout/length_mean": "length",
    "rollout/truncated_frac": "truncated",
    "rollout/logprob_gap_max": "gap_max",
    "rollout/turns_mean": "turns",
    "rollout/limit_frac": "limit",
    "tool/calls_mean": "tool_calls",
    "tool/failure_frac": "tool_failures",
    "tool/seconds": "tool_seconds",
    "mismatch/kl": "mismatch_kl",
    "mismatch/weight_mean": "weight_mean",
    "optim/lr": "lr",
    "optim/grad_norm": "grad_norm",
    "optim/updates": "updates",
    "optim/skipped_updates": "skipped",
    "time/step": "time_step",
    "memory/gpu_peak_gib": "gpu_memory",
    "memory/process_gib": "memory",
    "eval/accuracy": "held_out",
    "eval/rows": "held_out_rows",
    "kl/coef": "kl_weight",
}
TRL = {
    "reward": "score",
    "reward_std": "score_std",
    "frac_reward_zero_std": "zero_std",
    "kl": "kl",
    "loss": "loss",
    "clip_ratio/region_mean": "clip_frac",
    "cispo_clip_ratio": "clip_frac",
    "entropy": "entropy",
    "completions/mean_length": "length",
    "completions/clipped_ratio": "truncated",
    "tools/call_frequency": "tool_calls",
    "tools/failure_frequency": "tool_failures",
    "sampling/sampling_logp_difference/mean": "gap_mean",
    "sampling/sampling_logp_difference/max": "gap_max",
    "sampling/importance_sampling_ratio/mean": "weight_mean",
    "learning_rate": "lr",
    "grad_norm": "grad_norm",
    "step_time": "time_step",
    "eval_reward": "held_out",
}
VERL = {
    "critic/score/mean": "score",
    "critic/rewards/mean": "score",
    "critic/score/max": "score_max",
    "critic/score/min": "score_min",
    "critic/advantages/max": "advantage_max",
    "critic/advantages/min": "advantage_min",
    "actor/kl_loss": "kl",
    "actor/reward_kl_penalty": "kl",
    "actor/ppo_kl": "kl_step",
    "actor/pg_loss": "loss",
    "actor/pg_clipfrac": "clip_frac",
    "actor/entropy": "entropy",
    "actor/entropy_loss": "entropy",
    "critic/vf_loss": "value_loss",
    "critic/vf_explained_var": "explained_variance",
    "response_length/mean": "length",
    "response_length/max": "length_max",
    "response_length/clip_ratio": "truncated",
    "rollout_corr/k3_kl": "mismatch_kl",
    "rollout_corr/rollout_is_mean": "weight_mean",
    "rollout_corr/rollout_is_std": "weight_std",
    "rollout_corr/rollout_is_eff_sample_size": "weight_ess",
    "training/rollout_actor_probs_pearson_corr": "probs_correlation",
    "actor/lr": "lr",
    "actor/grad_norm": "grad_norm",
    "timing_s/step": "time_step",
    "perf/max_memory_allocated_gb": "gpu_memory",
}
EARLIER = {  # and elsewhere: what TRL's trainers, and OpenRLHF, called them in the last two years
    # GRPO until 0.16, PPO until 1.12, online DPO; sums over a completion's tokens are no figures of a token
    "completion_length": "length",
    "clip_ratio": "clip_frac",
    "objective/scores": "score",
    "policy/approxkl_avg": "kl_step",
    "policy/clipfrac_avg": "clip_frac",
    "policy/entropy_avg": "entropy",
    "loss/policy_avg": "loss",
    "loss/value_avg": "value_loss",
    "lr": "lr",
    "eval_objective/scores": "held_out",
    # OpenRLHF, as it names them to trackers
    "response_length": "length",
    "policy_loss": "loss",
    "critic_loss": "value_loss",
    "ppo_kl": "kl_step",
    "ppo_clip_ratio": "clip_frac",
    "entropy_loss": "entropy",
    "actor_lr": "lr",
}
NAMES = {"ours": OURS, "trl": TRL | EARLIER, "verl": VERL | {"critic/kl": "kl"}}  # the last one until 0.3
PARTS = {
    "ours": r"reward/(?!mean$|std$|zero_std_frac$)(.+)",
    "trl": r"rewards/(?!chosen|rejected|margins|accuracies)(.+?)(?:/mean)?(?<!/std)",
    "verl": r"gdpo/(.+)/mean",
}
HELD_OUT_PARTS = {
    "ours": r"eval/(?!accuracy|rows|score$|length)(.+)",
    "trl": r"eval_rewards/(.+?)(?:/mean)?(?<!/std)",
    "verl": r"(?!)",
}
HELD_OUT = {
    "ours": r"eval/accuracy",
    "trl": r"eval_reward|(?:eval_)?eval_.+_pass1",
    "verl": r"val-core/.+/(?:acc|reward)/mean@\d+|val/test_score/.+",
}


# common name of a setting: ours, TRL's, and the ends of dotted names that mean it elsewhere (verl's, EasyR1's, …)
SETTINGS = {
    "temperature": ("temperature", "temperature"),
    "top_k": ("top_k",),
    "top_p": ("top_p",),
    "min_p": ("min_p",),
    "do_sample": ("rollout.do_sample",),
    "group_size": ("group_size", "num_generations", "rollout.n", "n_samples_per_prompt", "num_sample_generations"),
    "max_length": (
        *("max_new_tokens", "max_completion_length", "max_response_length"),
        *("response_length", "generate_max_len", "max_tokens"),
    ),
    "lr": ("lr", "learning_rate", "actor.optim.lr", "actor_learning_rate"),
    "kl": ("kl_coef", "beta", "actor.kl_loss_coef", "kl_ctrl.kl_coef", "init_kl_coef"),
    "warmup": ("warmup_steps", "actor.optim.lr_warmup_steps", "lr_warmup_steps"),
    "steps": ("steps", "max_steps", "total_training_steps"),
    "epochs": ("ppo_epochs", "num_iterations", "actor.ppo_epochs", "num_ppo_epochs", "epochs"),
    "minibatches": ("minibatches", "num_mini_batches"),
    "precision": ("precision", "fsdp_config.model_dtype", "torch_dtype", "dtype", "bnb_dtype"),
    "data": ("data", "data.train_files", "dataset", "train_dataset", "prompt_data"),
    "eval_data": ("eval_data", "data.val_files", "val_dataset", "eval_dataset"),
    "reward": ("reward", "reward_funcs", "custom_reward_function.path", "reward.reward_function"),
    "grad_clip": ("max_grad_norm", "max_grad_norm", "grad_clip", "clip_grad"),
    "repetition_penalty": ("repetition_penalty",),
    "critic_lr": ("critic_lr", "critic.optim.lr"),
    "batch": ("batch_size", "train_batch_size", "rollout_batch_size", "rollout.batch_size"),
}
ACTOR = "actor_rollout_ref.actor"
ADVISED = ("lr", "group_size", "temperature", "max_length", "kl", "grad_clip")  # settings that a remedy names

# what else a remedy names, by who trains
NO_FILTER = "a training file without the prompts that all or none solve"
OUR_WORDS = {name: f"--{SETTINGS[name][0]}" for name in ADVISED} | {
    "reuse": "--ppo_epochs and --minibatches",
    "critic_lr": "--critic_lr",
    "critic_warmup": "--critic_warmup_steps 10",
    "critic_updates": "--minibatches 4, with a lower --lr, as the policy gets them too",
    "value_clip": "--value_clip 0",
    "critic_free": "--algorithm grpo or rloo",
    "filter": "--dynamic_sampling true",
    "mismatch": "--mismatch tis",
    "precision": "--precision bf16 (or fp32)",
    "tool_form": "--tool_format",
}
CRITIC = ("critic_lr", "critic_warmup", "critic_updates", "value_clip", "critic_free")  # which TRL's trainers lack
TRL_WORDS = {
    **{name: SETTINGS[name][1] for name in ADVISED},
    **dict.fromkeys(CRITIC, "the critic's settings"),
    "reuse": "num_iterations and steps_per_generation",
    "filter": f"{NO_FILTER} (TRL has no dynamic sampling)",
    "mismatch": "vllm_importance_sampling_correction=True",
    "precision": "bf16=True with weights in float32, in place of fp16=True",
    "tool_form": "a tokenizer with a response schema",
}
WORDS = {
    "ppo_train": OUR_WORDS,
    "one_page": OUR_WORDS
    | {
        "reuse": "--epochs and --minibatches",
        "critic_free": "templates/grpo.py",
        "grad_clip": "the bound of clip_grad_norm_",
        "filter": NO_FILTER,
        "mismatch": "scripts/ppo_train.py --mismatch tis",
        "precision": "weights in float32, as the page has them",
        "tool_form": "what the page takes for a call",
    },
    "grpo_train": TRL_WORDS
    | {name: f"--{SETTINGS[name][1]}" for name in ADVISED}
    | {
        "reuse": "--num_iterations and --steps_per_generation",
        "mismatch": "--trainer_args vllm_importance_sampling_correction=true",
        "precision": "--precision bf16 (or fp32)",
        "tool_form": "--tool_format",
    },
    "trl": TRL_WORDS,
    "verl": {
        "lr": f"{ACTOR}.optim.lr",
        "group_size": "actor_rollout_ref.rollout.n",
        "temperature": "actor_rollout_ref.rollout.temperature",
        "max_length": "data.max_response_length",
        "kl": f"{ACTOR}.kl_loss_coef (use_kl_loss=True), or algorithm.kl_ctrl.kl_coef (use_kl_in_reward=True)",
        "reuse": f"{ACTOR}.ppo_epochs, or a larger {ACTOR}.ppo_mini_batch_size",
        "critic_lr": "critic.optim.lr",
        "critic_warmup": "trainer.critic_warmup=10",
        "critic_updates": "critic.ppo_mini_batch_size a quarter of the batch, or a larger critic.ppo_epochs",
        "value_clip": "critic.cliprange_value=1000 (as good as off)",
        "critic_free": "algorithm.adv_estimator=grpo or rloo",
        "grad_clip": f"{ACTOR}.grad_clip",
        "filter": "algorithm.filter_groups.enable=True",
        "mismatch": "algorithm.rollout_correction.rollout_is=token",
        "precision": f"{ACTOR}.fsdp_config.dtype=bfloat16 with model_dtype=fp32",
        "tool_form": "actor_rollout_ref.rollout.multi_turn.format",
    },
}
