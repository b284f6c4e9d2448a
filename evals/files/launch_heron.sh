#!/usr/bin/env bash
# verl 0.3.0.post1, one node, 4 GPUs
set -euo pipefail
BIRDS=/data/heron
python3 -m verl.trainer.main_ppo \
    algorithm.adv_estimator=grpo \
    data.train_files=$BIRDS/train.parquet \
    data.val_files=$BIRDS/dev.parquet \
    data.train_batch_size=96 \
    data.max_prompt_length=700 \
    data.max_response_length=1800 \
    actor_rollout_ref.model.path=Qwen/Qwen2.5-3B-Instruct \
    actor_rollout_ref.model.use_remove_padding=True \
    actor_rollout_ref.actor.ppo_mini_batch_size=48 \
    actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=3 \
    actor_rollout_ref.actor.clip_ratio=0.17 \
    actor_rollout_ref.actor.grad_clip=0.35 \
    actor_rollout_ref.actor.use_kl_loss=True \
    actor_rollout_ref.actor.kl_loss_coef=0.0035 \
    actor_rollout_ref.actor.optim.lr=7e-7 \
    actor_rollout_ref.actor.optim.warmup_style=cosine \
    actor_rollout_ref.actor.optim.lr_warmup_steps_ratio=0.06 \
    actor_rollout_ref.actor.checkpoint.contents="['model','hf_model','optimizer','extra']" \
    actor_rollout_ref.rollout.name=vllm \
    actor_rollout_ref.rollout.n=6 \
    actor_rollout_ref.rollout.temperature=0.85 \
    actor_rollout_ref.rollout.tensor_model_parallel_size=1 \
    actor_rollout_ref.rollout.use_fire_sampling=False \
    actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=6 \
    actor_rollout_ref.rollout.load_format=dummy_dtensor \
    actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=6 \
    custom_reward_function.path=heron_score.py \
    custom_reward_function.name=heron_points \
    trainer.remove_previous_ckpt_in_save=True \
    +trainer.val_before_train=False \
    trainer.n_gpus_per_node=4 \
    trainer.nnodes=1 \
    trainer.save_freq=40 \
    trainer.test_freq=20 \
    trainer.total_training_steps=260 \
    trainer.project_name=heron trainer.experiment_name=grpo-3b
