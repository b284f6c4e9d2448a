set -x
export HYDRA_FULL_ERROR=1
CONFIG_PATH="$(pwd)/config"
current_time=$(date "+%Y%m%d_%H%M%S")

python3 -m beyond.main_ppo \
    --config-path="$CONFIG_PATH" \
    --config-name='beyond_dataflow' \
    env_service.env_url=http://localhost:8000 \
    algorithm.adv_estimator=grpo \
    data.train_batch_size=32 \
    data.return_raw_chat=True \
    actor_rollout_ref.rollout.use_qwen3=True \
    actor_rollout_ref.rollout.name=vllm \
    trainer.experiment_name="bs32_${current_time}" \
    2>&1 | tee "log_${current_time}.log" \
    $@
