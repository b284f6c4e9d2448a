#!/usr/bin/env bash
# METHOD: grpo | gspo | dr
set -xeuo pipefail
METHOD=${METHOD:-grpo}
policy_loss_mode=vanilla
loss_agg_mode=token-mean
use_kl_loss=False
case "${METHOD}" in
    grpo) use_kl_loss=${USE_KL_LOSS:-False} ;;
    gspo)
        policy_loss_mode=gspo
        loss_agg_mode=seq-mean-token-mean
        ;;
    dr) loss_agg_mode=seq-mean-token-sum-norm ;;
    *)
        echo "Unknown METHOD=${METHOD}" >&2
        exit 1
        ;;
esac

ALGORITHM=(
    algorithm.adv_estimator=grpo
    algorithm.use_kl_in_reward=False
    algorithm.norm_adv_by_std_in_grpo=False
)
REWARD=(
    reward_model.reward_manager=dapo
    +reward_model.reward_kwargs.overlong_buffer_cfg.enable=True
    +reward_model.reward_kwargs.overlong_buffer_cfg.len=4096
    +reward_model.reward_kwargs.overlong_buffer_cfg.penalty_factor=1.0
    +reward_model.reward_kwargs.overlong_buffer_cfg.log=False
    +reward_model.reward_kwargs.max_resp_len=8192
)
ACTOR=(
    actor_rollout_ref.model.path="${MODEL_PATH}"
    actor_rollout_ref.actor.policy_loss.loss_mode=${policy_loss_mode}
    actor_rollout_ref.actor.optim.lr=1e-6
    actor_rollout_ref.actor.ppo_mini_batch_size=32
    actor_rollout_ref.actor.use_dynamic_bsz=True
    actor_rollout_ref.actor.use_kl_loss=${use_kl_loss}
    actor_rollout_ref.actor.loss_agg_mode=${loss_agg_mode}
    actor_rollout_ref.actor.clip_ratio_c=10.0
)
ROLLOUT=(
    actor_rollout_ref.rollout.name=vllm
    actor_rollout_ref.rollout.mode=async
    actor_rollout_ref.rollout.n=16
    actor_rollout_ref.rollout.calculate_log_probs=True
)
EXTRA=()
if [ -n "${DEBUG:-}" ]; then
    EXTRA+=(
        trainer.total_training_steps=2
        data.train_batch_size=16
    )
fi
python3 -m verl.trainer.main_ppo \
    "${ALGORITHM[@]}" \
    "${REWARD[@]}" \
    data.train_files="['${TRAIN_FILE}']" \
    data.val_files="['${TRAIN_FILE}']" \
    data.train_batch_size=256 \
    data.return_raw_chat=True \
    data.truncation=left \
    data.max_response_length=8192 \
    "${ACTOR[@]}" \
    "${ROLLOUT[@]}" \
    trainer.n_gpus_per_node=8 \
    trainer.val_before_train=False \
    "${EXTRA[@]}" "$@"
