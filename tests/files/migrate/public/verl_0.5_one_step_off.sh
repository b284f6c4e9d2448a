#!/usr/bin/env bash
set -xeuo pipefail

NUM_GPUS=${NUM_GPUS:-8}
MODEL_PATH=${MODEL_PATH:-${HOME}/models/Qwen2.5-0.5B}
n_gpus_rollout=2
n_gpus_training=$((NUM_GPUS - n_gpus_rollout))

common_params=(
    data.train_files="${HOME}/data/gsm8k/train.parquet"
    data.val_files="${HOME}/data/gsm8k/test.parquet"
    data.truncation='left'
    data.train_batch_size=8
    algorithm.adv_estimator=grpo
    actor_rollout_ref.hybrid_engine=False \
    actor_rollout_ref.model.path="${MODEL_PATH}"
    actor_rollout_ref.rollout.name=vllm \
    reward_model.reward_manager=dapo
    +reward_model.reward_kwargs.overlong_buffer_cfg.enable=True
    trainer.logger=['console']
    trainer.n_gpus_per_node=${n_gpus_training}
    rollout.nnodes=1
)

python3 -m recipe.one_step_off_policy.main_ppo \
    "${common_params[@]}" \
    actor_rollout_ref.actor.strategy=fsdp2 \
    critic.strategy=fsdp2 $@
