"""Pairs that the script tokenizes; a score head on LoRA."""
import os
from dataclasses import dataclass, field

from datasets import load_dataset
from peft import LoraConfig
from transformers import AutoModelForSequenceClassification, AutoTokenizer, HfArgumentParser
from trl import RewardConfig, RewardTrainer


@dataclass
class ScriptArguments:
    model_name: str = field(default="m")
    seq_length: int = field(default=512)
    debug: bool = field(default=False)


script_args = HfArgumentParser(ScriptArguments).parse_args_into_dataclasses()[0]
tokenizer = AutoTokenizer.from_pretrained(script_args.model_name)
model = AutoModelForSequenceClassification.from_pretrained(script_args.model_name, num_labels=1)
args = RewardConfig(
    output_dir="o",
    per_device_train_batch_size=4,
    evaluation_strategy="steps",
    save_strategy="steps" if not script_args.debug else "no",
    remove_unused_columns=False,
    center_rewards_coefficient=0.01,
)
trainer = RewardTrainer(
    model=model,
    tokenizer=tokenizer,
    args=args,
    train_dataset=load_dataset("pairs", split="train"),
    peft_config=LoraConfig(r=8, task_type="SEQ_CLS", modules_to_save=["scores"]),
    max_length=script_args.seq_length,
)
trainer.train()
