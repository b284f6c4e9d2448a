#!/bin/bash
set -e

MODEL="${1:-/checkpoints/merged_550}"
BENCH="${2:-AIME24}"   # AIME24 / AMC23
OUT="eval_outputs/${BENCH}.parquet"

echo "Step 1/2: generation"

/envs/verl/bin/python -m verl.trainer.main_generation \
    "+ray_kwargs.ray_init._temp_dir=/tmp/ray" \
    trainer.nnodes=1 \
    trainer.n_gpus_per_node=1 \
    data.path=test_data/${BENCH}/test.parquet \
    data.output_path=$OUT \
    model.path="$MODEL" \
    rollout.name=vllm \
    rollout.temperature=0.6

/envs/verl/bin/python -m verl.trainer.main_eval \
    data.path=$OUT \
    custom_reward_function.path=reward_score/math/__init__.py \
    custom_reward_function.name=reward_func_eval
