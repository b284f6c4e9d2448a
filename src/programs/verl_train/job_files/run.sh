#!/usr/bin/env bash
# {title} in verl {verl}; written by verl_train.py.
# bash run.sh [KEY=VALUE ...]: further overrides win.
set -euo pipefail
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
ray={ray}
if [[ ${RAY_JOB_CONFIG_JSON_ENV_VAR:-} && $PWD == "$HERE" ]]; then
  ray=standing HERE=.  # of `ray job submit --working-dir JOB`, with a copy of this folder for each node
fi
cd "$HERE"
mkdir -p {output}
metrics={output}/metrics.jsonl; n=1
while [[ -e $metrics ]]; do metrics={output}/metrics.$((++n)).jsonl; done  # verl empties the file that it is given
export VERL_FILE_LOGGER_PATH=$metrics TOKENIZERS_PARALLELISM=false
overrides=(
{overrides}
)
if [[ $ray == own ]]; then
  unset RAY_ADDRESS  # in all its processes
else  # its processes do not have this environment; Hydra wants \' for a quote in the path
  overrides+=(
    ray_kwargs.ray_init.num_cpus=null ++ray_kwargs.ray_init.address=null
    "+ray_kwargs.ray_init.runtime_env.env_vars={VERL_FILE_LOGGER_PATH:'${metrics//\'/\\\'}'}"
  )
fi
if [[ "${overrides[*]} $*" != *attn_implementation* ]] && ! {python} -c 'import flash_attn' 2>/dev/null; then
  overrides+=(  # verl's default attention needs it
    +actor_rollout_ref.model.override_config.attn_implementation=sdpa
    actor_rollout_ref.model.use_remove_padding=False
  )
fi
exec {python} -u -m verl.trainer.main_ppo "${overrides[@]}" "$@"
