set -x

# the config file used: verl/trainer/main_ppo/config/ppo_megatron_trainer.yaml
export NCCL_DEBUG=WARN
pip install -e .

# head or worker
if [ "$(hostname)" == "${MASTER_ADDR}" ]; then
    # This is master node
    ray start --head --node-ip-address ${MASTER_ADDR} --num-gpus 8
    
    python3 -m verl.trainer.main_ppo --config-path=config \
            --config-name='ppo_megatron_trainer.yaml'\
            data.train_files=/data/gsm8k/train.parquet \
            data.val_files=/data/gsm8k/test.parquet \
            data.train_batch_size=1024 \
            data.val_batch_size=1312 \
            data.max_prompt_length=512 \
            data.max_response_length=512 \
            actor_rollout_ref.model.path=/models/chat-7b \
            actor_rollout_ref.actor.optim.lr=2e-6 \
            actor_rollout_ref.actor.ppo_mini_batch_size=256 \
            actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4 \
            actor_rollout_ref.actor.megatron.tensor_model_parallel_size=4 \
            actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=8 \
            actor_rollout_ref.rollout.tensor_model_parallel_size=2 \
            actor_rollout_ref.rollout.name=vllm \
            actor_rollout_ref.rollout.gpu_memory_utilization=0.5 \
            actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=16 \
            actor_rollout_ref.ref.megatron.tensor_model_parallel_size=4 \
            critic.optim.lr=2e-5 \
            critic.model.path=/models/chat-7b \
            critic.model.enable_gradient_checkpointing=False \
            critic.ppo_micro_batch_size_per_gpu=4 \
            critic.megatron.tensor_model_parallel_size=4 \
            algorithm.kl_ctrl.kl_coef=0.001 \
            trainer.critic_warmup=0 \
            trainer.logger=['console','wandb'] \
            trainer.project_name='verl_megatron' \
            trainer.experiment_name='function_rm' \
            trainer.n_gpus_per_node=8 \
            trainer.nnodes=2 \
            trainer.save_freq=-1 \
            trainer.total_epochs=15 \
            +trainer.val_before_train=False $@
else
    # This is worker node
    sleep 10
    ray start --address ${MASTER_ADDR}:6379 --num-gpus 8
    while true; do
        if ping -c 1 $MASTER_ADDR; then
            sleep 10
        else
            break
        fi
    done
fi
