#!/bin/bash
#SBATCH --nodes=2
#SBATCH --gpus-per-node=8
srun --nodes=1 --ntasks=1 -w "$head" docker run --rm --gpus all verl:0.7 bash -c "
  ray start --head --port=6379 &&
  python3 -m verl.trainer.main_ppo \
    algorithm.adv_estimator=rloo \
    data.train_files=/data/train.parquet \
    data.val_files=/data/test.parquet \
    data.train_batch_size=1024 \
    data.max_prompt_length=512 data.max_response_length=1024 \
    actor_rollout_ref.model.path=Qwen/Qwen3-8B \
    actor_rollout_ref.actor.optim.lr=1e-6 \
    actor_rollout_ref.actor.ppo_mini_batch_size=256 \
    actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=16 \
    actor_rollout_ref.actor.use_kl_loss=False \
    actor_rollout_ref.rollout.name=sglang \
    actor_rollout_ref.rollout.mode=sync \
    actor_rollout_ref.rollout.n=5 \
    actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=16 \
    reward_model.reward_manager=naive \
    reward_model.launch_reward_fn_async=True \
    custom_reward_function.path=/code/score.py \
    custom_reward_function.name=score \
    algorithm.use_kl_in_reward=True \
    algorithm.kl_penalty=kl \
    algorithm.kl_ctrl.kl_coef=0.001 \
    trainer.logger='[\"console\",\"wandb\"]' \
    trainer.n_gpus_per_node=8 trainer.nnodes=2 \
    trainer.rollout_data_dir=/out/rollouts \
    trainer.total_epochs=15
"
