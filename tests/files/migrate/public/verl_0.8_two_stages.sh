#!/bin/bash
set -e
common="data.train_files=a.parquet data.val_files=b.parquet actor_rollout_ref.model.path=m actor_rollout_ref.rollout.n=8 actor_rollout_ref.rollout.name=vllm algorithm.adv_estimator=grpo"
python -m verl.trainer.main_ppo $common \
    data.max_response_length=2048 actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4 \
    actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-sum-norm \
    actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=4 trainer.total_training_steps=100 trainer.default_local_dir=ckpt
python -m verl.trainer.main_ppo $common \
    data.max_response_length=8192 actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1 \
    actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-sum-norm \
    actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=1 trainer.total_training_steps=300 trainer.default_local_dir=ckpt # second
