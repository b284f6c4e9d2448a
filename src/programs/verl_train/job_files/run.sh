#!/usr/bin/env bash
# Written by verl_train.py for verl {verl}; from the settings to the overrides.
set -e
{start}metrics={log}.jsonl; n=1
while [[ -e $metrics ]]; do metrics={log}.$((++n)).jsonl; done  # {reason}
export VERL_FILE_LOGGER_PATH=$metrics TOKENIZERS_PARALLELISM=false
overrides=(
{overrides}
)
exec {python} -u -m verl.trainer.main_ppo "${overrides[@]}"
