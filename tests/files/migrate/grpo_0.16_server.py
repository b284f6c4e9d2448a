from datasets import load_dataset
from trl import GRPOConfig, GRPOTrainer


def reward(completions, **kwargs):
    return [float(len(c)) for c in completions]


config = GRPOConfig(
    output_dir="runs/server",
    use_vllm=True,
    vllm_server_host="10.0.0.1",
    num_iterations=2,
    epsilon_high=0.28,
    per_device_train_batch_size=8,
    scale_rewards=False,
    max_completion_length=1024,
    log_completions=True,
)
dataset = load_dataset("json", data_files="rows.jsonl", split="train")
trainer = GRPOTrainer("Qwen/Qwen2.5-0.5B", reward_funcs=[reward], args=config, train_dataset=dataset)
trainer.train()
