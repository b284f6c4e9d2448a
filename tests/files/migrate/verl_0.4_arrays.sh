#!/usr/bin/env bash
# settings in arrays
DATA=(
    data.train_files="$HOME/data/train.parquet"  # rows
    data.val_files="$HOME/data/test.parquet"
    data.train_batch_size=128
    # data.seed=7 is not set
)
ACTOR=(
    actor_rollout_ref.model.path="${MODEL_PATH}"
    actor_rollout_ref.actor.optim.warmup_style=cosine
    actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=2
    actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=2
    actor_rollout_ref.rollout.mode=sync
)
python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo "${DATA[@]}" "${ACTOR[@]}" "$@"
