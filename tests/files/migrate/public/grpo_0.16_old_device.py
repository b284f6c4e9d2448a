"""GRPO with rule rewards: seven GPUs train, the eighth samples."""

import torch
from datasets import load_dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

from reward_functions import reward_fn

MODEL_ID = "org/small-sft"


def prepare():
    rows = load_dataset("org/rl-mix", split="train")
    return rows.map(lambda row: {"prompt": [{"role": "user", "content": row["prompt"]}]})


def main():
    ds = prepare()
    tokenizer = AutoTokenizer.from_pretrained(MODEL_ID, trust_remote_code=True)
    tokenizer.padding_side = "left"
    model = AutoModelForCausalLM.from_pretrained(
        MODEL_ID,
        attn_implementation="sdpa",
        torch_dtype=torch.bfloat16,
        trust_remote_code=True,
    )
    grpo_config = GRPOConfig(
        output_dir="./out",
        # -- seven train, one samples --
        use_vllm=True,
        vllm_device="cuda:7",
        vllm_gpu_memory_utilization=0.9,
        # -- batch --
        per_device_train_batch_size=8,
        gradient_accumulation_steps=4,
        gradient_checkpointing=True,
        bf16=True,
        # -- objective --
        num_generations=8,
        max_completion_length=2048,
        beta=0.04,
        num_iterations=3,
        temperature=1.0,
        top_p=0.95,
        learning_rate=1e-5,
        num_train_epochs=1,
        lr_scheduler_type="cosine",
        warmup_ratio=0.03,
        max_grad_norm=1.0,
        weight_decay=0.1,
        adam_beta1=0.9,
        adam_beta2=0.95,
        adam_epsilon=1e-8,
        logging_steps=10,
        save_strategy="steps",
        save_steps=300,
        save_total_limit=3,
        save_only_model=True,
        report_to="wandb",
        seed=42,
        torch_empty_cache_steps=10,
    )
    trainer = GRPOTrainer(
        model=model,
        reward_funcs=reward_fn,
        args=grpo_config,
        train_dataset=ds,
        processing_class=tokenizer,
    )
    trainer.train()
    trainer.save_model("./out")


if __name__ == "__main__":
    main()
