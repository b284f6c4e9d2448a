"""Names of metrics and settings in our trainers, TRL, verl and others."""

# One metric a line: common name | our name | TRL's | earlier TRL's (GRPO until 0.16, PPO until 1.12, online DPO) and
# others', without what OUTER of log_reading.py drops | verl's. If a log has several names of one metric, the first
# listed wins. Sums over tokens are not read.
METRICS = """
score | reward/mean | reward | objective/scores | critic/score/mean critic/rewards/mean
score | | | rollout_scores/mean raw_reward task_reward reward/total train_reward reward/avg_raw_reward | reward/overall
score | | | reward_score scores ep_rew rm |
score_std | reward/std | reward_std | rollout_scores/std reward/std |
score_max | | | | critic/score/max
score_min | | | | critic/score/min
advantage_max | | | | critic/advantages/max
advantage_min | | | | critic/advantages/min
zero_std | reward/zero_std_frac | frac_reward_zero_std | |
kl | kl/ref | kl | kl_div policy_kl kl_loss | actor/kl_loss actor/reward_kl_penalty critic/kl
kl_step | kl/approx | | approxkl approx_kl approx_policy_kl ppo_kl | actor/ppo_kl
kl_weight | kl/coef | | | actor/kl_coef actor/reward_kl_penalty_coeff
loss | policy/loss | loss | loss/policy policy_loss pg_loss actor_loss pg | actor/pg_loss
clip_frac | policy/clip_frac | clip_ratio/region_mean | clip_ratio clipfrac clip_frac clip_fraction | actor/pg_clipfrac
clip_frac | | cispo_clip_ratio | ppo_clip_ratio pg_clipfrac |
entropy | policy/entropy | entropy | policy_entropy entropy_loss | actor/entropy actor/entropy_loss
ratio_max | policy/ratio_max | | |
value_loss | value/loss | | loss/value critic_loss value_loss vf_loss cri | critic/vf_loss
explained_variance | value/explained_variance | | explained_variance explained_var | critic/vf_explained_var
length | rollout/length_mean | completions/mean_length | completion_length response_length | response_length/mean
length | | | generation_length response_lengths response_len seq_len seq_length sequence_length sequence_lengths |
length | | | responses_len val/sequence_lengths generate/avg_num_tokens gen_tokens_per_sample glen ep_len ep_lens |
length_max | | | | response_length/max
truncated | rollout/truncated_frac | completions/clipped_ratio | truncated truncated_ratio | response_length/clip_ratio
truncated | | | no_eos_ratios truncate_ratio truncation_rate is_truncated |
gap_mean | | sampling/sampling_logp_difference/mean | train_rollout_logprob_abs_diff |
gap_max | rollout/logprob_gap_max | sampling/sampling_logp_difference/max | |
turns | rollout/turns_mean | | |
limit | rollout/limit_frac | | |
tool_calls | tool/calls_mean | tools/call_frequency | |
tool_failures | tool/failure_frac | tools/failure_frequency | |
tool_seconds | tool/seconds | | |
mismatch_kl | mismatch/kl | | generation_kl_error gen_kl_error mismatch_kl | rollout_corr/k3_kl
weight_mean | mismatch/weight_mean | sampling/importance_sampling_ratio/mean | | rollout_corr/rollout_is_mean
probs_correlation | | | | training/rollout_actor_probs_pearson_corr
lr | optim/lr | learning_rate | lr actor_lr policy_lr act_lr lr-pg_0 learning_rate_group_0 | actor/lr
grad_norm | optim/grad_norm | grad_norm | raw_grad_norm | actor/grad_norm
updates | optim/updates | | |
skipped | optim/skipped_updates | | |
time_step | time/step | step_time | | timing_s/step
gpu_memory | memory/gpu_peak_gib | | | perf/max_memory_allocated_gb
memory | memory/process_gib | | |
held_out | eval/accuracy | eval_reward | eval_objective/scores |
held_out_rows | eval/rows | | |
"""
ROWS = [[names.split() for names in line.split("|")] for line in METRICS.strip().splitlines()]
OURS, TRL, EARLIER, VERL = ({key: name for (name,), *names in ROWS for key in names[i]} for i in range(4))
NAMES = {"ours": OURS, "verl": VERL, "trl": TRL | EARLIER}
PATTERNS = {  # common name -> pattern of further names; group 1 of a part is the reward function's name
    "ours": {
        "held_out": r"eval/accuracy",
        "part": r"reward/(?!mean$|std$|zero_std_frac$)(.+)",
        "held_out_part": r"eval/(?!accuracy(?:_low|_high)?$|rows|trained_rows|score$|length)(.+)",
    },
    "trl": {
        "held_out": r"(?:eval_)?eval_.+_pass1|(?:eval|val|valid|validation|test|held_out)[_/](?!rewards/)(?:.+/)?"
        r"(?:(?:avg|mean)_)?(?:acc|accuracy|score|reward|reward/total|avg@\d+|pass@1)",
        "part": r"(?:rewards/(?!chosen|rejected|margins|accuracies)|(?=(?:train_)?acc(?:uracy)?$))"
        r"(.+?)(?:/mean)?(?<!/std)",
        "held_out_part": r"eval_rewards/(.+?)(?:/mean)?(?<!/std)",
    },
    "verl": {
        "held_out": r"val-core/.+/(?:acc|reward)/mean@\d+|val/test_score/.+|val/reward_score",
        "part": r"(?:gdpo(?=/.+/mean)|reward)/(?!overall)(.+?)(?:/mean)?",
    },
}
# common name of a setting -> our name, TRL's, verl's, then endings of dotted names in other frameworks (EasyR1, …)
ACTOR = "actor_rollout_ref.actor"
SETTINGS = {
    "temperature": "temperature temperature actor_rollout_ref.rollout.temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "do_sample": "rollout.do_sample",
    "group_size": "group_size num_generations actor_rollout_ref.rollout.n rollout.n n_samples_per_prompt "
    "num_sample_generations num_generations_per_prompt",
    "max_length": "max_new_tokens max_completion_length data.max_response_length max_response_length response_length "
    "generate_max_len max_tokens",
    "lr": f"lr learning_rate {ACTOR}.optim.lr actor.optim.lr actor_learning_rate",
    "kl": f"kl_coef beta {ACTOR}.kl_loss_coef actor.kl_loss_coef kl_ctrl.kl_coef init_kl_coef",
    "warmup": "warmup_steps actor.optim.lr_warmup_steps lr_warmup_steps",
    "steps": "steps max_steps total_training_steps",
    "epochs": f"ppo_epochs num_iterations {ACTOR}.ppo_epochs actor.ppo_epochs num_ppo_epochs epochs",
    "precision": "precision fsdp_config.model_dtype torch_dtype dtype bnb_dtype",
    "data": "data data.train_files dataset train_dataset prompt_data train_file train_data train_path",
    "eval_data": "eval_data data.val_files val_dataset eval_dataset eval_file val_file test_file test_data",
    "reward": "reward reward_funcs custom_reward_function.path reward.reward_function",
    "reward_name": "custom_reward_function.name",
    "grad_clip": "max_grad_norm grad_clip clip_grad",
    "repetition_penalty": "repetition_penalty",
    "critic_lr": "critic_lr critic.optim.lr",
    "critic_warmup": "critic_warmup_steps trainer.critic_warmup",
    "batch": "batch_size train_batch_size rollout_batch_size rollout.batch_size",
}
ADVISED = ("lr", "group_size", "temperature", "max_length", "kl", "epochs")
OUR_WORDS, TRL_WORDS, VERL_WORDS = ({name: SETTINGS[name].split()[i] for name in ADVISED} for i in range(3))
WORDS = {  # trainer -> {common name: the name that a remedy uses for the setting}
    "ppo_train": {name: f"--{word}" for name, word in OUR_WORDS.items()},
    "one_page": {name: f"--{word.removeprefix('ppo_')}" for name, word in OUR_WORDS.items()},
    "grpo_train": {name: f"--{word}" for name, word in TRL_WORDS.items()},
    "trl": TRL_WORDS,
    "verl": VERL_WORDS,
    "other": OUR_WORDS,
}
