"""What our trainers, TRL, verl and others call metrics and settings."""

# common name: what our logs call it, TRL's, earlier TRL's (GRPO until 0.16, PPO until 1.12, online DPO) and OpenRLHF's,
# verl's; of several names for one in a row, the first here counts. Sums over a completion's tokens are not read.
METRICS = {
    "score": ("reward/mean", "reward", "objective/scores", "critic/score/mean critic/rewards/mean"),
    "score_std": ("reward/std", "reward_std", "", ""),
    "score_max": ("", "", "", "critic/score/max"),
    "score_min": ("", "", "", "critic/score/min"),
    "advantage_max": ("", "", "", "critic/advantages/max"),
    "advantage_min": ("", "", "", "critic/advantages/min"),
    "zero_std": ("reward/zero_std_frac", "frac_reward_zero_std", "", ""),
    "kl": ("kl/ref", "kl", "", "actor/kl_loss actor/reward_kl_penalty critic/kl"),
    "kl_step": ("kl/approx", "", "policy/approxkl_avg ppo_kl", "actor/ppo_kl"),
    "kl_weight": ("kl/coef", "", "", ""),
    "loss": ("policy/loss", "loss", "loss/policy_avg policy_loss", "actor/pg_loss"),
    "clip_frac": (
        "policy/clip_frac",
        "clip_ratio/region_mean cispo_clip_ratio",
        "clip_ratio policy/clipfrac_avg ppo_clip_ratio",
        "actor/pg_clipfrac",
    ),
    "entropy": ("policy/entropy", "entropy", "policy/entropy_avg entropy_loss", "actor/entropy actor/entropy_loss"),
    "ratio_max": ("policy/ratio_max", "", "", ""),
    "value_loss": ("value/loss", "", "loss/value_avg critic_loss", "critic/vf_loss"),
    "explained_variance": ("value/explained_variance", "", "", "critic/vf_explained_var"),
    "length": (
        "rollout/length_mean",
        "completions/mean_length",
        "completion_length response_length",
        "response_length/mean",
    ),
    "length_max": ("", "", "", "response_length/max"),
    "truncated": ("rollout/truncated_frac", "completions/clipped_ratio", "", "response_length/clip_ratio"),
    "gap_mean": ("", "sampling/sampling_logp_difference/mean", "", ""),
    "gap_max": ("rollout/logprob_gap_max", "sampling/sampling_logp_difference/max", "", ""),
    "turns": ("rollout/turns_mean", "", "", ""),
    "limit": ("rollout/limit_frac", "", "", ""),
    "tool_calls": ("tool/calls_mean", "tools/call_frequency", "", ""),
    "tool_failures": ("tool/failure_frac", "tools/failure_frequency", "", ""),
    "tool_seconds": ("tool/seconds", "", "", ""),
    "mismatch_kl": ("mismatch/kl", "", "", "rollout_corr/k3_kl"),
    "weight_mean": (
        "mismatch/weight_mean",
        "sampling/importance_sampling_ratio/mean",
        "",
        "rollout_corr/rollout_is_mean",
    ),
    "weight_std": ("", "", "", "rollout_corr/rollout_is_std"),
    "weight_ess": ("", "", "", "rollout_corr/rollout_is_eff_sample_size"),
    "probs_correlation": ("", "", "", "training/rollout_actor_probs_pearson_corr"),
    "lr": ("optim/lr", "learning_rate", "lr actor_lr", "actor/lr"),
    "grad_norm": ("optim/grad_norm", "grad_norm", "", "actor/grad_norm"),
    "updates": ("optim/updates", "", "", ""),
    "skipped": ("optim/skipped_updates", "", "", ""),
    "time_step": ("time/step", "step_time", "", "timing_s/step"),
    "gpu_memory": ("memory/gpu_peak_gib", "", "", "perf/max_memory_allocated_gb"),
    "memory": ("memory/process_gib", "", "", ""),
    "held_out": ("eval/accuracy", "eval_reward", "eval_objective/scores", ""),
    "held_out_rows": ("eval/rows", "", "", ""),
}
OURS, TRL, EARLIER, VERL = ({key: name for name, keys in METRICS.items() for key in keys[i].split()} for i in range(4))
NAMES = {"ours": OURS, "trl": TRL | EARLIER, "verl": VERL}
PATTERNS = {  # common name, and what else is called so; of parts, group 1 is the reward's name
    "ours": {
        "held_out": r"eval/accuracy",
        "part": r"reward/(?!mean$|std$|zero_std_frac$)(.+)",
        "held_out_part": r"eval/(?!accuracy|rows|score$|length)(.+)",
    },
    "trl": {
        "held_out": r"eval_reward|(?:eval_)?eval_.+_pass1",
        "part": r"rewards/(?!chosen|rejected|margins|accuracies)(.+?)(?:/mean)?(?<!/std)",
        "held_out_part": r"eval_rewards/(.+?)(?:/mean)?(?<!/std)",
    },
    "verl": {"held_out": r"val-core/.+/(?:acc|reward)/mean@\d+|val/test_score/.+", "part": r"gdpo/(.+)/mean"},
}
# common name of a setting: ours, TRL's, and the ends of dotted names that mean it elsewhere (verl's, EasyR1's, …)
SETTINGS = {
    "temperature": "temperature temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "do_sample": "rollout.do_sample",
    "group_size": "group_size num_generations rollout.n n_samples_per_prompt num_sample_generations",
    "max_length": "max_new_tokens max_completion_length max_response_length response_length max_tokens",
    "lr": "lr learning_rate actor.optim.lr actor_learning_rate",
    "kl": "kl_coef beta actor.kl_loss_coef kl_ctrl.kl_coef init_kl_coef",
    "warmup": "warmup_steps actor.optim.lr_warmup_steps lr_warmup_steps",
    "steps": "steps max_steps total_training_steps",
    "epochs": "ppo_epochs num_iterations actor.ppo_epochs num_ppo_epochs epochs",
    "minibatches": "minibatches num_mini_batches",
    "precision": "precision fsdp_config.model_dtype torch_dtype dtype bnb_dtype",
    "data": "data data.train_files dataset train_dataset prompt_data",
    "eval_data": "eval_data data.val_files val_dataset eval_dataset",
    "reward": "reward reward_funcs custom_reward_function.path reward.reward_function",
    "grad_clip": "max_grad_norm max_grad_norm grad_clip clip_grad",
    "repetition_penalty": "repetition_penalty",
    "critic_lr": "critic_lr critic.optim.lr",
    "critic_warmup": "critic_warmup_steps trainer.critic_warmup",
    "value_clip": "value_clip",
    "batch": "batch_size train_batch_size rollout_batch_size rollout.batch_size",
}
ACTOR = "actor_rollout_ref.actor"
ADVISED = ("lr", "group_size", "temperature", "max_length", "kl", "grad_clip")  # settings that a remedy names

# what else a remedy names, by who trains
NO_FILTER = "a training file without the prompts that all or none solve"
CRITIC = "more critic updates (--minibatches 4, lower --lr), another --critic_lr, {}, or {}"
OUR_WORDS = {name: f"--{SETTINGS[name].split()[0]}" for name in ADVISED} | {
    "reuse": "--ppo_epochs and --minibatches",
    "critic": CRITIC.format("--critic_warmup_steps 10, --value_clip 0 where scores are large", "--algorithm grpo"),
    "filter": "--dynamic_sampling true",
    "mismatch": "--mismatch tis",
    "precision": "--precision bf16 (or fp32)",
    "tool_form": "--tool_format",
}
TRL_WORDS = {name: SETTINGS[name].split()[1] for name in ADVISED} | {
    "reuse": "num_iterations and steps_per_generation",
    "critic": "another rate of the critic, or a method without a critic",
    "filter": f"{NO_FILTER} (TRL has no dynamic sampling)",
    "mismatch": "vllm_importance_sampling_correction=True",
    "precision": "bf16=True with weights in float32, in place of fp16=True",
    "tool_form": "a tokenizer with a response schema",
}
PAGE_WORDS = {
    "reuse": "--epochs and --minibatches",
    "critic": CRITIC.format("--critic_warmup_steps 10", "templates/grpo.py"),
    "grad_clip": "the bound of clip_grad_norm_",
    "filter": NO_FILTER,
    "mismatch": "scripts/ppo_train.py --mismatch tis",
    "precision": "weights in float32, as the page has them",
    "tool_form": "what the page takes for a call",
}
WORDS = {
    "ppo_train": OUR_WORDS,
    "one_page": OUR_WORDS | PAGE_WORDS,
    "grpo_train": TRL_WORDS
    | {name: f"--{SETTINGS[name].split()[1]}" for name in ADVISED}
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
        "critic": "a smaller critic.ppo_mini_batch_size, another critic.optim.lr, trainer.critic_warmup=10, a large "
        "critic.cliprange_value, or algorithm.adv_estimator=grpo",
        "grad_clip": f"{ACTOR}.grad_clip",
        "filter": "algorithm.filter_groups.enable=True",
        "mismatch": "algorithm.rollout_correction.rollout_is=token",
        "precision": f"{ACTOR}.fsdp_config.dtype=bfloat16 with model_dtype=fp32",
        "tool_form": "actor_rollout_ref.rollout.multi_turn.format",
    },
}
