#!/usr/bin/env bash
# {title} in verl {verl}; written by verl_train.py.
# bash run.sh [KEY=VALUE ...]: further overrides win.
set -euo pipefail
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cd "$HERE"
{ray}mkdir -p {output}
metrics={output}/metrics.jsonl; n=1
while [[ -e $metrics ]]; do metrics={output}/metrics.$((++n)).jsonl; done  # verl empties the file that it is given
export VERL_FILE_LOGGER_PATH=$metrics TOKENIZERS_PARALLELISM=false
overrides=(
{overrides}
)
if [[ "${overrides[*]} $*" != *attn_implementation* ]] && ! {python} -c 'import flash_attn' 2>/dev/null; then
  overrides+=(  # verl's default attention needs it
    +actor_rollout_ref.model.override_config.attn_implementation=sdpa
    actor_rollout_ref.model.use_remove_padding=False
  )
fi
exec {python} -u -m verl.trainer.main_ppo "${overrides[@]}" "$@"
