#!/usr/bin/env bash
set -x
USE_KL=${1:-True}
MICRO=$((2 * 8))
python3 -m verl.trainer.main_ppo \
    data.train_files=$HOME/data/gsm8k/train.parquet \
    data.val_files=$HOME/data/gsm8k/test.parquet \
    data.train_batch_size=256 \
    data.max_prompt_length=512 \
    data.max_response_length=1024 \
    actor_rollout_ref.model.path=Qwen/Qwen2.5-7B-Instruct \
    actor_rollout_ref.actor.optim.lr=1e-6 \
    actor_rollout_ref.actor.ppo_mini_batch_size=64 \
    actor_rollout_ref.actor.use_kl_loss=$USE_KL \
    actor_rollout_ref.actor.ppo_micro_batch_size=$MICRO \
    actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=8 \
    "$@"
