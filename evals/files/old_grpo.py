from datasets import load_dataset
from transformers import AutoTokenizer
from trl import GRPOConfig, GRPOTrainer


def reward(completions, answer):
    return [1.0 if a in c[0]["content"] else 0.0 for c, a in zip(completions, answer, strict=True)]


def make_config():
    return GRPOConfig(
        output_dir="out",
        learning_rate=5e-6,
        warmup_ratio=0.1,
        per_device_train_batch_size=4,
        num_generations=8,
        max_prompt_length=256,
        max_completion_length=512,
        beta=0.04,
        model_init_kwargs={"torch_dtype": "float32"},
    )


if __name__ == "__main__":
    trainer = GRPOTrainer(
        model="Qwen/Qwen2.5-0.5B-Instruct",
        args=make_config(),
        tokenizer=AutoTokenizer.from_pretrained("Qwen/Qwen2.5-0.5B-Instruct"),
        reward_funcs=[reward],
        train_dataset=load_dataset("json", data_files="sums.jsonl", split="train"),
    )
    trainer.train()
