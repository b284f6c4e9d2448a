import argparse

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

from think_reward import ThinkReward, prefixes

parser = argparse.ArgumentParser()
parser.add_argument("--wandb", action="store_true")
args = parser.parse_args()
G, B, LR, SEED = 8, 4, 2e-6, 0
MAX_CHECKPOINTS = 3

tokenizer = AutoTokenizer.from_pretrained("Qwen/Qwen3-1.7B-Base")
model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen3-1.7B-Base", dtype=torch.bfloat16)
model.gradient_checkpointing_enable()
closethink_id = tokenizer.convert_tokens_to_ids("</think>")

grpo_config = GRPOConfig(
    output_dir="checkpoints",
    num_generations=G,
    per_device_train_batch_size=G,
    gradient_accumulation_steps=B,
    steps_per_generation=1,
    max_completion_length=2048,
    temperature=1.0,
    learning_rate=LR,
    optim="paged_adamw_8bit",
    num_iterations=1,
    generation_kwargs={"stop_token_ids": [tokenizer.eos_token_id, closethink_id]},
    seed=SEED,
    bf16=True,
    lr_scheduler_type="constant",
    # warmup_steps=int(0.05 * args.max_steps),
    warmup_ratio=0.05,
    logging_steps=5,
    save_strategy="steps",
    save_steps=100,
    save_total_limit=MAX_CHECKPOINTS,
    report_to="wandb" if args.wandb else "none",
    num_train_epochs=100,
    use_vllm=True,
    vllm_gpu_memory_utilization=0.3,
    vllm_max_model_length=2560,
    vllm_enable_sleep_mode=True,
    vllm_importance_sampling_correction=False,
    use_liger_kernel=True,
)

trainer = GRPOTrainer(
    model=model,
    reward_funcs=ThinkReward(model, tokenizer, alpha=0.5),
    args=grpo_config,
    train_dataset=prefixes(),
)

trainer.train()
