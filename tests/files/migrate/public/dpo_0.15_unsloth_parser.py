from unsloth import FastLanguageModel  # noqa F401

import pandas as pd
from datasets import load_dataset
from transformers import HfArgumentParser
from trl import (
    DPOConfig,
    DPOTrainer,
    ModelConfig,
    ScriptArguments,
)
from trl.trainer.utils import SIMPLE_CHAT_TEMPLATE


def load_model(training_args, model_args):
    model, tokenizer = FastLanguageModel.from_pretrained(
        model_name=model_args.model_name_or_path,
        max_lora_rank=model_args.lora_r,
        gpu_memory_utilization=0.6,
    )
    model = FastLanguageModel.get_peft_model(model, r=model_args.lora_r, lora_alpha=model_args.lora_r)
    if tokenizer.chat_template is None:
        tokenizer.chat_template = SIMPLE_CHAT_TEMPLATE
    return tokenizer, model


def show(trainer, batch):
    policy, ref = trainer.generate_from_model_and_ref(trainer.model, batch)
    print(pd.DataFrame({"policy": policy, "ref": ref}))


def load_and_train(training_args, model_args):
    tokenizer, model = load_model(training_args, model_args)
    rows = load_dataset("trl-lib/ultrafeedback_binarized")
    trainer = DPOTrainer(
        model,
        args=training_args,
        train_dataset=rows["train"],
        eval_dataset=(
            rows["test"] if training_args.eval_strategy != "no" else None
        ),
        processing_class=tokenizer,
    )
    trainer.train()
    trainer.save_model(training_args.output_dir)
    return trainer


if __name__ == "__main__":
    parser = HfArgumentParser((ScriptArguments, DPOConfig, ModelConfig))
    script_args, training_args, model_args = (
        parser.parse_args_into_dataclasses()
    )
    load_and_train(training_args, model_args)
