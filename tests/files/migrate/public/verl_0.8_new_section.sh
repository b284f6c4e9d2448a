# Coder 1.5B, warm start, GRPO without a KL
set -xeuo pipefail

${RAY_BIN:-ray} stop --force 2>/dev/null || true
GPU_PIDS=$(nvidia-smi --query-compute-apps=pid --format=csv,noheader 2>/dev/null | tr -d ' ' | grep -v '^$') || true

MODEL_PATH=${MODEL_PATH:-$HOME/models/coder/final}
TRAIN_FILE=${TRAIN_FILE:-$HOME/data/apps.parquet}
VAL_FILE=${VAL_FILE:-$HOME/data/lcb.parquet}
REWARD_FN_PATH=${REWARD_FN_PATH:-$PWD/rewards/lcb_reward.py}

TRAIN_BATCH_SIZE=32          # longer tasks
ROLLOUT_GPU_MEM_UTIL=0.35    # for the cache
LOG_FILE=${LOG_FILE:-train.log}

cd "${VERL_DIR:-verl}"

${PYTHON:-python} -m verl.trainer.main_ppo \
    algorithm.adv_estimator=grpo \
    algorithm.use_kl_in_reward=False \
    data.train_files=${TRAIN_FILE} \
    data.val_files=${VAL_FILE} \
    data.train_batch_size=${TRAIN_BATCH_SIZE} \
    data.max_prompt_length=1024 \
    data.filter_overlong_prompts=True \
    data.truncation=error \
    actor_rollout_ref.model.path=${MODEL_PATH} \
    "+actor_rollout_ref.model.override_config.attn_implementation=eager" \
    actor_rollout_ref.model.use_remove_padding=False \
    actor_rollout_ref.actor.optim.lr=5e-6 \
    actor_rollout_ref.actor.ppo_mini_batch_size=32 \
    actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4 \
    actor_rollout_ref.actor.use_kl_loss=False \
    actor_rollout_ref.actor.entropy_coeff=0 \
    actor_rollout_ref.actor.fsdp_config.optimizer_offload=True \
    actor_rollout_ref.actor.fsdp_config.model_dtype=bfloat16 \
    actor_rollout_ref.actor.use_dynamic_bsz=True \
    actor_rollout_ref.rollout.name=vllm \
    actor_rollout_ref.rollout.gpu_memory_utilization=${ROLLOUT_GPU_MEM_UTIL} \
    actor_rollout_ref.rollout.max_model_len=3072 \
    actor_rollout_ref.rollout.enforce_eager=True \
    actor_rollout_ref.rollout.n=8 \
    actor_rollout_ref.rollout.free_cache_engine=True \
    actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=2 \
    actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=2 \
    actor_rollout_ref.ref.fsdp_config.param_offload=True \
    reward.custom_reward_function.path=${REWARD_FN_PATH} \
    reward.custom_reward_function.name=compute_score \
    trainer.balance_batch=True \
    "trainer.logger=[console]" \
    trainer.n_gpus_per_node=1 \
    trainer.nnodes=1 \
    trainer.max_actor_ckpt_to_keep=2 \
    "+trainer.save_best_metric=val-core/lcb/acc/mean@1" \
    trainer.total_epochs=4 \
    transfer_queue.enable=False \
    trainer.resume_mode=disable \
    2>&1 | tee ${LOG_FILE}
