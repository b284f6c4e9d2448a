from datasets import load_dataset
from trl import GRPOConfig, GRPOTrainer


def cosine_reward(max_length):
    def cosine(completions, answer):
        return [len(c) / max_length for c in completions]

    return cosine


config = GRPOConfig(
    output_dir="runs/factory",
    top_p=0.95,
    min_p=0.05,
    generation_kwargs={"no_repeat_ngram_size": 4},
    save_safetensors=True,
)
dataset = load_dataset("json", data_files="rows.jsonl", split="train")
trainer = GRPOTrainer(
    "Qwen/Qwen2.5-0.5B",
    reward_funcs=[cosine_reward(100), lambda completions: [1.0] * len(completions)],
    args=config,
    train_dataset=dataset,
)
trainer.train()
