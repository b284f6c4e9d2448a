#!/bin/bash
# Two machines; only the first one trains.
train_file=/data/or1/train.parquet
train_files="['$train_file']"
test_files="['/data/aime24.parquet', '/data/aime25.parquet']"
ENTROPY_COEFF=0.0
ROLLOUT_BATCH_SIZE=256
MAX_PROMPT_LENGTH=2048
RES_LENGTH=32768
SP=1
MAX_TOKEN_LEN=$((2*(RES_LENGTH + MAX_PROMPT_LENGTH) / SP))

if [ "${HOSTNAME##*-}" -eq 0 ]; then
    ray start --head --port=6379
    python3 -m verl.trainer.main_ppo \
        algorithm.adv_estimator=grpo \
        data.train_files="$train_files" \
        data.val_files="$test_files" \
        data.offline_rollout_n=2 \
        data.train_batch_size=$ROLLOUT_BATCH_SIZE \
        data.val_batch_size=512 \
        data.max_prompt_length=$MAX_PROMPT_LENGTH \
        data.max_response_length=$RES_LENGTH \
        data.filter_overlong_prompts=True \
        actor_rollout_ref.model.path=$BASE_MODEL \
        actor_rollout_ref.model.use_remove_padding=True \
        actor_rollout_ref.actor.use_dynamic_bsz=True \
        actor_rollout_ref.actor.ppo_max_token_len_per_gpu=$MAX_TOKEN_LEN \
        actor_rollout_ref.actor.optim.lr=1e-6 \
        actor_rollout_ref.actor.entropy_coeff=$ENTROPY_COEFF \
        actor_rollout_ref.actor.ppo_mini_batch_size=256 \
        actor_rollout_ref.actor.use_kl_loss=False \
        actor_rollout_ref.actor.ulysses_sequence_parallel_size=$SP \
        actor_rollout_ref.rollout.name=vllm \
        actor_rollout_ref.rollout.n=14 \
        actor_rollout_ref.rollout.enforce_eager=False \
        actor_rollout_ref.rollout.free_cache_engine=False \
        actor_rollout_ref.rollout.max_num_batched_tokens=$MAX_TOKEN_LEN \
        +actor_rollout_ref.rollout.val_temperature=0.6 \
        algorithm.kl_ctrl.kl_coef=0.0 \
        reward_model.reward_manager=prime \
        trainer.critic_warmup=0 \
        trainer.logger=['console','wandb'] \
        trainer.n_gpus_per_node=8 \
        trainer.nnodes=2 \
        trainer.remove_previous_ckpt_in_save=False \
        trainer.total_epochs=30
else
    ray start --address="$HEAD:6379" --block
fi
