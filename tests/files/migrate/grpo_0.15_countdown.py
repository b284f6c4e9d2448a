from datasets import load_dataset
from trl import GRPOConfig, GRPOTrainer


def format_reward(completions, answer):
    return [1.0 if a in c else 0.0 for c, a in zip(completions, answer)]


def length_reward(prompts, completions):
    return [-0.01 * len(c) for c in completions]


config = GRPOConfig(
    output_dir="runs/countdown",
    beta=0.001,
    temperature=1.0,
    num_generations=8,
    per_device_train_batch_size=8,
    gradient_accumulation_steps=4,
    max_prompt_length=None,
    max_steps=450,
    lr_scheduler_type="cosine",
    warmup_ratio=0.03,
    model_init_kwargs={"torch_dtype": "bfloat16", "attn_implementation": "sdpa"},
)
dataset = load_dataset("json", data_files="rows.jsonl", split="train")
trainer = GRPOTrainer(
    "Qwen/Qwen2.5-0.5B", reward_funcs=[format_reward, length_reward], args=config, train_dataset=dataset
)
trainer.train()
