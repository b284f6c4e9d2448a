"""Code: a stream of fixed lengths."""
import os

from accelerate import Accelerator
from datasets import load_dataset
from peft import LoraConfig
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainingArguments, set_seed
from trl import SFTTrainer
from trl.trainer import ConstantLengthDataset


def create_datasets(tokenizer):
    data = load_dataset("org/code", split="train", use_auth_token=True, streaming=True)
    train = ConstantLengthDataset(tokenizer, data.skip(100), formatting_func=lambda x: x["text"], infinite=True, seq_length=1024)
    valid = ConstantLengthDataset(tokenizer, data.take(100), formatting_func=lambda x: x["text"], seq_length=1024)
    return train, valid


def run_training(train_data, val_data):
    training_args = TrainingArguments(
        output_dir="./out",
        dataloader_drop_last=True,
        eval_strategy="steps",
        max_steps=1000,
        per_device_train_batch_size=2,
        learning_rate=8e-5,
        lr_scheduler_type="cosine",
        gradient_checkpointing=True,
        fp16=False,
        bf16=True,
        ddp_find_unused_parameters=False,
    )
    model = AutoModelForCausalLM.from_pretrained("llama", load_in_8bit=True, device_map={"": Accelerator().process_index})
    trainer = SFTTrainer(
        model=model,
        args=training_args,
        train_dataset=train_data,
        eval_dataset=val_data,
        peft_config=LoraConfig(r=16, task_type="CAUSAL_LM"),
        packing=True,
    )
    trainer.train()
    trainer.model.save_pretrained(os.path.join(training_args.output_dir, "final/"))


if __name__ == "__main__":
    set_seed(42)
    run_training(*create_datasets(AutoTokenizer.from_pretrained("llama")))
