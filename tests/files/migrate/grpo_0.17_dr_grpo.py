from datasets import load_dataset
from trl import GRPOConfig, GRPOTrainer


def reward(completions, **kwargs):
    return [float(len(c)) for c in completions]


config = GRPOConfig(
    output_dir="runs/dr",
    loss_type="dr_grpo",
    scale_rewards=False,
    beta=0.0,
    per_device_train_batch_size=16,
    wandb_log_unique_prompts=True,
    use_liger_loss=False,
)
dataset = load_dataset("json", data_files="rows.jsonl", split="train")
trainer = GRPOTrainer("Qwen/Qwen2.5-0.5B", reward_funcs=[reward], args=config, train_dataset=dataset)
trainer.train()
