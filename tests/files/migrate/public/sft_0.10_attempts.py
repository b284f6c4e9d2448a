"""Tries arguments until a version of TRL takes them."""
import logging

from datasets import load_from_disk
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainingArguments
from trl import SFTTrainer


class Finetuner:
    def __init__(self, config):
        self.config = config
        self.tokenizer = AutoTokenizer.from_pretrained(config["model"])
        self.model = AutoModelForCausalLM.from_pretrained(config["model"], load_in_4bit=True, device_map="auto")

    def format(self, example):
        return f"{example['q']} {example['a']}"

    def train(self):
        args = TrainingArguments(
            output_dir=self.config["output_dir"],
            evaluation_strategy="steps",
            warmup_ratio=self.config["training"]["warmup_ratio"],
            report_to=[],
        )
        base_kwargs = {"model": self.model, "args": args, "train_dataset": load_from_disk("d")}
        optional_kwargs = {
            "tokenizer": self.tokenizer,
            "formatting_func": self.format,
            "max_seq_length": self.config["training"]["max_seq_length"],
        }
        attempts = [
            {**base_kwargs, **optional_kwargs},
            {**base_kwargs, **{k: v for k, v in optional_kwargs.items() if k != "tokenizer"}},
            base_kwargs,
        ]
        trainer = None
        for kwargs in attempts:
            try:
                trainer = SFTTrainer(**kwargs)
                break
            except TypeError as e:
                logging.warning(e)
        trainer.train()
