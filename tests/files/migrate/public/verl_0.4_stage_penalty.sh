# Stages of a run; the penalty is optional.
OVERLONG_ARGS=()
if [ -n "${MS_OVERLONG_LEN:-}" ]; then
  OVERLONG_ARGS=(reward_model.reward_manager=dapo
    +reward_model.reward_kwargs.overlong_buffer_cfg.enable=True
    +reward_model.reward_kwargs.overlong_buffer_cfg.len=$MS_OVERLONG_LEN
    +reward_model.reward_kwargs.overlong_buffer_cfg.penalty_factor=${MS_OVERLONG_PENALTY:-1.0}
    +reward_model.reward_kwargs.max_resp_len=${MS_MAXRESP:-32768})
fi
LOAD_ARGS=("actor_rollout_ref.actor.checkpoint.load_contents=['model']")
$PY -m verl.trainer.main_ppo "${LOAD_ARGS[@]}" "${OVERLONG_ARGS[@]}" \
    algorithm.adv_estimator=grpo \
    algorithm.use_kl_in_reward=False \
    data.train_files=$PARQUET \
    data.val_files=$PARQUET \
    data.train_batch_size=${MS_BS:-128} \
    data.max_prompt_length=${MS_MAXPROMPT:-8192} \
    data.max_response_length=${MS_MAXRESP:-32768} \
    data.filter_overlong_prompts=True \
    reward_model.enable=False \
    actor_rollout_ref.model.path=$MODEL \
    actor_rollout_ref.actor.optim.lr=${MS_LR:-2e-5} \
    actor_rollout_ref.actor.ppo_mini_batch_size=128 \
    actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1 \
    actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-sum \
    actor_rollout_ref.actor.clip_ratio_high=0.28 \
    actor_rollout_ref.rollout.name=vllm \
    actor_rollout_ref.rollout.n=8 \
    actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=1 \
    custom_reward_function.path=reward.py \
    trainer.n_gpus_per_node=8 trainer.nnodes=1 trainer.save_freq=10
