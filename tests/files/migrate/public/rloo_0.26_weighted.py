"""Two rewards with weights, plain prompts."""
from datasets import load_dataset
from trl import RLOOConfig, RLOOTrainer

dataset = load_dataset("trl-lib/tldr", split="train")


def short(completions, **kwargs):
    return [-len(c) / 100 for c in completions]


def polite(completions):
    return [float("please" in c) for c in completions]


args = RLOOConfig(
    output_dir="rloo",
    learning_rate=1e-6,
    per_device_train_batch_size=8,
    num_generations=8,
    reward_weights=[0.7, 0.3],
    max_prompt_length=256,
    normalize_advantages=True,
    reward_clip_range=(-5.0, 5.0),
    log_completions=True,
)
trainer = RLOOTrainer(model="Qwen/Qwen2-0.5B-Instruct", reward_funcs=[short, polite], args=args, train_dataset=dataset)
trainer.train()
