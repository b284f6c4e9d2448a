from datasets import load_dataset
from trl import SFTConfig, SFTTrainer


def formatting_prompts_func(example):
    return [f"### Question: {q}\n ### Answer: {a}" for q, a in zip(example["question"], example["answer"])]


dataset = load_dataset("lucasmccabe-lmi/CodeAlpaca-20k", split="train")
trainer = SFTTrainer(
    "facebook/opt-350m",
    train_dataset=dataset,
    args=SFTConfig(output_dir="/tmp/alpaca", max_seq_length=256),
    formatting_func=formatting_prompts_func,
)
trainer.train()
