"""Settings that a version lacks are filtered."""
import inspect

from transformers import AutoTokenizer
from trl import DPOConfig, DPOTrainer
from datasets import load_dataset


def filter_supported_kwargs(cls, kwargs):
    known = inspect.signature(cls.__init__).parameters
    return {k: v for k, v in kwargs.items() if k in known}


def main(args):
    dpo_config_kwargs = {
        "output_dir": args.output_path,
        "per_device_train_batch_size": 1,
        "learning_rate": args.learning_rate,
        "logging_dir": args.logging_dir,
        "bf16": True,
        "gradient_checkpointing": True,
        "remove_unused_columns": False,
        "max_prompt_length": 4096,
        "max_length": 8192,
    }
    training_args = DPOConfig(**filter_supported_kwargs(DPOConfig, dpo_config_kwargs))
    trainer = DPOTrainer(
        model=args.model_name,
        args=training_args,
        train_dataset=load_dataset("json", data_files=args.data)["train"],
        processing_class=AutoTokenizer.from_pretrained(args.model_name),
    )
    trainer.train()
