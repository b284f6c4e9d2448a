#!/usr/bin/env bash
set -euo pipefail

# Multi-turn SQL agent with LoRA on three GPUs
MODEL_PATH=${MODEL_PATH:-data/models/Coder-14B}
TRAIN_FILES=${TRAIN_FILES:-data/train.parquet}
VAL_FILES=${VAL_FILES:-data/validation.parquet}
NGPUS_PER_NODE=${NGPUS_PER_NODE:-3}
TRAIN_BATCH_SIZE=${TRAIN_BATCH_SIZE:-4}
PPO_MAX_TOKEN_LEN_PER_GPU=${PPO_MAX_TOKEN_LEN_PER_GPU:-16384}
MAX_TURNS=${MAX_TURNS:-3}

DATA=(
  algorithm.adv_estimator=grpo
  algorithm.use_kl_in_reward=False
  data.train_files="['${TRAIN_FILES}']"
  data.val_files="['${VAL_FILES}']"
  data.train_batch_size="${TRAIN_BATCH_SIZE}"
  data.max_prompt_length=4096
  data.return_raw_chat=True
  data.filter_overlong_prompts=True
  data.truncation=error
)

MODEL=(
  actor_rollout_ref.model.path="${MODEL_PATH}"
  actor_rollout_ref.model.trust_remote_code=True
  actor_rollout_ref.model.use_remove_padding=True
  actor_rollout_ref.model.lora_rank=64
  actor_rollout_ref.model.lora_alpha=128
  actor_rollout_ref.model.target_modules=all-linear
)

ACTOR=(
  actor_rollout_ref.actor.strategy=fsdp
  actor_rollout_ref.actor.optim.lr=5e-7
  actor_rollout_ref.actor.ppo_mini_batch_size="${TRAIN_BATCH_SIZE}"
  actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1
  actor_rollout_ref.actor.ppo_epochs=1
  actor_rollout_ref.actor.use_kl_loss=True
  actor_rollout_ref.actor.kl_loss_coef=0.01
  actor_rollout_ref.actor.kl_loss_type=low_var_kl
  actor_rollout_ref.actor.use_dynamic_bsz=True
  actor_rollout_ref.actor.ppo_max_token_len_per_gpu="${PPO_MAX_TOKEN_LEN_PER_GPU}"
)

ROLLOUT=(
  actor_rollout_ref.rollout.name=vllm
  actor_rollout_ref.rollout.mode=async
  actor_rollout_ref.rollout.tensor_model_parallel_size=1
  actor_rollout_ref.rollout.n=4
  actor_rollout_ref.rollout.prompt_length=4096
  actor_rollout_ref.rollout.load_format=safetensors
  actor_rollout_ref.rollout.agent.agent_loop_config_path=configs/agent_loop.yaml
  actor_rollout_ref.rollout.agent.default_agent_loop=sql_agent
  actor_rollout_ref.rollout.agent.num_workers="${TRAIN_BATCH_SIZE}"
  actor_rollout_ref.rollout.multi_turn.enable=True
  actor_rollout_ref.rollout.multi_turn.max_assistant_turns="${MAX_TURNS}"
  actor_rollout_ref.rollout.multi_turn.max_user_turns="${MAX_TURNS}"
  actor_rollout_ref.rollout.multi_turn.max_parallel_calls=1
)

TRAINER=(
  trainer.balance_batch=True
  trainer.logger='["console"]'
  trainer.n_gpus_per_node="${NGPUS_PER_NODE}"
  trainer.nnodes=1
  trainer.total_training_steps=500
  trainer.val_before_train=False
)

RAY_RUNTIME=(
  '+ray_kwargs.ray_init.runtime_env.excludes=["data/**","logs/**","*.sqlite"]'
)

python -m verl.trainer.main_ppo \
  "${DATA[@]}" \
  "${MODEL[@]}" \
  "${ACTOR[@]}" \
  "${ROLLOUT[@]}" \
  "${TRAINER[@]}" \
  "${RAY_RUNTIME[@]}" \
  "$@"
