#!/usr/bin/env bash
set -euo pipefail

PYTHON_BIN=${PYTHON_BIN:-/envs/verl/bin/python}
USE_IMAGES=${USE_IMAGES:-1}
INFER_BACKEND=${INFER_BACKEND:-vllm}
TRAIN_BATCH_SIZE=${TRAIN_BATCH_SIZE:-4}
DYNAMIC_BSZ=${DYNAMIC_BSZ:-True}

DATA=(
  algorithm.adv_estimator=grpo
  algorithm.use_kl_in_reward=False
  data.train_files="${TRAIN_FILE}"
  data.val_files="${VAL_FILE}"
  data.train_batch_size=${TRAIN_BATCH_SIZE}
  data.return_raw_chat=True
  data.filter_overlong_prompts=True
  data.truncation=error
  data.dataloader_num_workers=${DATALOADER_NUM_WORKERS:-0}
)
if [ "${USE_IMAGES}" = "1" ]; then
  DATA+=(
    +data.mm_processor_kwargs.min_pixels=3136
    +data.mm_processor_kwargs.max_pixels=12544
  )
fi

ACTOR=(
  actor_rollout_ref.model.path="${MODEL_PATH}"
  actor_rollout_ref.actor.optim.lr=1e-6
  actor_rollout_ref.actor.ppo_mini_batch_size=${TRAIN_BATCH_SIZE}
  actor_rollout_ref.actor.use_dynamic_bsz=${DYNAMIC_BSZ}
  actor_rollout_ref.actor.use_kl_loss=False
  actor_rollout_ref.actor.entropy_coeff=0
)

ROLLOUT=(
  actor_rollout_ref.rollout.name=${INFER_BACKEND}
  actor_rollout_ref.rollout.mode=async
  actor_rollout_ref.rollout.n=4
  actor_rollout_ref.rollout.agent.default_agent_loop=minecraft_agent
)

if [ "${DYNAMIC_BSZ}" != "True" ]; then
  ACTOR+=(actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1)
  ROLLOUT+=(actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=1)
fi

TRAINER=(
  trainer.logger='["console"]'
  trainer.n_gpus_per_node=4
  trainer.nnodes=1
  trainer.val_before_train=False
)

EXTRA=(
  actor_rollout_ref.actor.strategy=fsdp2
  actor_rollout_ref.rollout.enforce_eager=True
  actor_rollout_ref.rollout.multi_stage_wake_up=False
  actor_rollout_ref.rollout.enable_chunked_prefill=False
  +actor_rollout_ref.rollout.engine_kwargs.vllm.max_model_len=5120
)

cd "${VERL_HOME}"
"${PYTHON_BIN}" -m verl.trainer.main_ppo \
  "${DATA[@]}" \
  "${ACTOR[@]}" \
  "${ROLLOUT[@]}" \
  "${TRAINER[@]}" \
  "${EXTRA[@]}" \
  "$@"
