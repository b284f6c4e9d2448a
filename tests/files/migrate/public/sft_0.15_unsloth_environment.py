#!/usr/bin/env python3
"""QLoRA of a large model; settings are environment variables."""

import os
from unsloth import FastLanguageModel
from trl import SFTTrainer, SFTConfig
from datasets import load_dataset

MODEL_NAME = os.environ.get("MODEL_NAME", "unsloth/Llama-3.3-70B-Instruct-bnb-4bit")
MAX_SEQ_LENGTH = int(os.environ.get("MAX_SEQ_LENGTH", "2048"))
BATCH_SIZE = int(os.environ.get("BATCH_SIZE", "1"))
GRADIENT_ACCUMULATION = int(os.environ.get("GRADIENT_ACCUMULATION", "16"))


def main():
    model, tokenizer = FastLanguageModel.from_pretrained(
        model_name=MODEL_NAME,
        max_seq_length=MAX_SEQ_LENGTH,
        dtype=None,  # Auto-detect
        load_in_4bit=True,
    )
    model = FastLanguageModel.get_peft_model(
        model,
        r=8,
        lora_alpha=16,
        use_gradient_checkpointing="unsloth",
        random_state=42,
    )
    dataset = load_dataset("trl-lib/Capybara", split="train")

    training_args = SFTConfig(
        output_dir="./qlora",

        # Training - conservative
        num_train_epochs=1,
        per_device_train_batch_size=BATCH_SIZE,
        gradient_accumulation_steps=GRADIENT_ACCUMULATION,
        learning_rate=2e-5,

        bf16=True,
        gradient_checkpointing=True,
        optim="adamw_8bit",

        # Scheduler
        warmup_ratio=0.1,
        lr_scheduler_type="cosine",

        logging_steps=5,
        logging_first_step=True,
        save_strategy="steps",
        save_steps=50,
        eval_strategy="no",
        seed=42,
    )

    trainer = SFTTrainer(
        model=model,
        tokenizer=tokenizer,
        train_dataset=dataset,
        args=training_args,
    )
    trainer.train()
    model.save_pretrained("./qlora")


if __name__ == "__main__":
    main()
