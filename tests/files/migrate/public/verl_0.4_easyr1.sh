#!/bin/bash
set -x
MODEL_PATH=Qwen/Qwen2.5-VL-7B-Instruct  # or a folder

python3 -m verl.trainer.main \
    config=examples/config.yaml \
    data.train_files=org/geometry3k@train \
    data.val_files=org/geometry3k@test \
    data.rollout_batch_size=512 \
    data.max_pixels=1204224 \
    worker.actor.model.model_path=${MODEL_PATH} \
    worker.actor.global_batch_size=128 \
    worker.actor.micro_batch_size_per_device_for_update=4 \
    worker.rollout.n=10 \
    worker.rollout.tensor_parallel_size=2 \
    worker.reward.score_function=./examples/score_function/math.py:compute_score \
    algorithm.disable_kl=True \
    trainer.experiment_name=qwen2_5_vl_grpo \
    trainer.n_gpus_per_node=4 \
    trainer.total_episodes=2
