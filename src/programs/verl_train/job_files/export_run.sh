#!/usr/bin/env bash
# {title} in verl {verl}; written by verl_train.py --export.
# bash run.sh [KEY=VALUE ...]: further overrides win. Logs, samples and checkpoints go to run/ beside this file.
set -euo pipefail
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cd "$HERE"
mkdir -p run
unset RAY_ADDRESS  # a Ray of its own
metrics=$HERE/run/metrics.jsonl; n=1
while [[ -e $metrics ]]; do metrics=$HERE/run/metrics.$((++n)).jsonl; done  # verl empties the file that it is given
export VERL_FILE_LOGGER_PATH=$metrics TOKENIZERS_PARALLELISM=false
cpus=$(nproc)  # with fewer than {cpus} Ray would wait for ever, without a word
((cpus >= {cpus})) || cpus={cpus}
overrides=(
{overrides}
)
if ! python -c 'import flash_attn' 2>/dev/null; then  # verl's default attention needs it
  overrides+=(
    +actor_rollout_ref.model.override_config.attn_implementation=sdpa
    actor_rollout_ref.model.use_remove_padding=False
  )
fi
exec python -u -m verl.trainer.main_ppo "${overrides[@]}" "$@"
