from datasets import load_dataset
from transformers import AutoModelForCausalLM
from trl import DPOConfig, DPOTrainer

from mdpo import MDPOTrainer


def run(method, output_dir, beta, learning_rate):
    model = AutoModelForCausalLM.from_pretrained("org/vision-text")
    train_dataset = load_dataset("json", data_files="pairs.jsonl", split="train")
    if method == 'dpo':
        training_args = DPOConfig(
            output_dir=output_dir,
            per_device_train_batch_size=1,
            max_prompt_length=4096,
            max_length=4096,
            max_completion_length=4096,
            lr_scheduler_type="cosine",
            warmup_ratio=0.05,
            learning_rate=learning_rate,
            beta=beta,
            eval_strategy="no",
            use_liger_loss=False
        )

        trainer = DPOTrainer(
            model=model,
            args=training_args,
            train_dataset=train_dataset,
        )
    elif method == 'mrpo':
        training_args = DPOConfig(
            loss_type=["sigmoid"],
            rpo_alpha=1.0,
            output_dir=output_dir,
            per_device_train_batch_size=1,
            max_prompt_length=4096,
            max_length=4096,
            max_completion_length=4096,
            lr_scheduler_type="cosine",
            warmup_ratio=0.05,
            learning_rate=learning_rate,
            beta=beta,
            eval_strategy="no",
            use_liger_loss=False
        )

        trainer = MDPOTrainer(
            model=model,
            args=training_args,
            train_dataset=train_dataset,
        )
    trainer.train()


run("dpo", "out", 0.1, 5e-7)
