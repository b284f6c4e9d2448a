import argparse
from datasets import load_dataset
from transformers import AutoModelForCausalLM
from trl import SFTConfig, SFTTrainer


def make_config(output_dir: str, is_ampere_plus: bool, max_length: int) -> SFTConfig:
    per_device_batch = 2
    grad_accum = max(1, 8 // per_device_batch)  # about 8

    return SFTConfig(
        output_dir=output_dir,
        # -- epochs / batch
        num_train_epochs=3,
        per_device_train_batch_size=per_device_batch,
        per_device_eval_batch_size=per_device_batch,
        gradient_accumulation_steps=grad_accum,
        gradient_checkpointing=True,
        optim="paged_adamw_8bit",
        bf16=is_ampere_plus,
        fp16=not is_ampere_plus,
        learning_rate=2e-4,
        lr_scheduler_type="cosine",
        warmup_ratio=0.05,
        # -- of SFT
        max_length=max_length,
        dataset_text_field="text",
        completion_only_loss=True,
        packing=False,
        logging_steps=20,
        eval_strategy="steps",
        eval_steps=100,
        load_best_model_at_end=True,
        metric_for_best_model="eval_loss",
        greater_is_better=False,
        loss_type="nll",                   # pin until the default is stable
        report_to="none",
        seed=42,
    )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default=None)
    args = parser.parse_args()
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype="auto")
    rows = load_dataset("json", data_files="dataset.json", split="train").train_test_split(0.1)
    cfg = make_config("out", True, 1024)
    trainer = SFTTrainer(model=model, args=cfg, train_dataset=rows["train"], eval_dataset=rows["test"])
    trainer.train()


main()
