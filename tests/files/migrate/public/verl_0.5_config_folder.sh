#!/usr/bin/env bash
set -euo pipefail
usage() {
  cat <<'EOF'
Usage: run.sh <fog|rain> [--smoke]
EOF
}
if [[ "${1:-}" == "-h" ]]; then usage; exit 0; fi
case "${1}" in
  fog|rain) ;;
  *) exit 2 ;;
esac
HYDRA_OVERRIDES=()
if [[ "${SMOKE:-0}" == "1" ]]; then
  HYDRA_OVERRIDES+=(
    data.train_batch_size=1
    actor_rollout_ref.rollout.n=2
    actor_rollout_ref.rollout.max_num_seqs=2
    trainer.total_training_steps=1
  )
fi
"${PYTHON_BIN}" -u -m verl.trainer.main_ppo \
  --config-path "${CONFIG_DIR}" \
  --config-name expert_grpo_2gpu \
  data.train_files="${TRAIN_PARQUET}" \
  data.val_files="${VAL_PARQUET}" \
  actor_rollout_ref.model.path="${MODEL_PATH}" \
  trainer.logger='["console","swanlab"]' \
  trainer.experiment_name="${1}-2gpu" \
  "${HYDRA_OVERRIDES[@]}" \
  "$@"
