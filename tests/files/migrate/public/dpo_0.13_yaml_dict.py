"""
DPO for a ranker; settings come from a YAML file.

    torchrun --nproc_per_node=4 dpo_train.py --config configs/dpo.yaml
"""

import argparse
import os
from typing import Dict

import torch
from datasets import Dataset
from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    BitsAndBytesConfig
)
from trl import DPOConfig, DPOTrainer

import yaml

try:
    import wandb
    WANDB_AVAILABLE = True
except ImportError:
    WANDB_AVAILABLE = False


def setup(config: Dict):
    bnb_config = BitsAndBytesConfig(load_in_4bit=True)
    model = AutoModelForCausalLM.from_pretrained(
        config["model"]["name"],
        quantization_config=bnb_config,
        device_map="auto",
        attn_implementation="flash_attention_2" if config["model"].get("use_flash_attention_2") else "eager",
        trust_remote_code=True
    )
    model = prepare_model_for_kbit_training(model)
    peft_config = LoraConfig(r=8, task_type="CAUSAL_LM")
    model = get_peft_model(model, peft_config)
    tokenizer = AutoTokenizer.from_pretrained(
        config["model"]["name"],
        trust_remote_code=True
    )
    return model, tokenizer, peft_config


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--config", type=str, required=True)
    args = parser.parse_args()
    with open(args.config) as f:
        config = yaml.safe_load(f)
    seed = config.get("seed", 42)
    train_dataset = Dataset.from_list([{"prompt": "a", "chosen": "b", "rejected": "c"}])
    eval_dataset = None
    model, tokenizer, peft_config = setup(config)
    ref_model = None  # implicit
    training_config = config["training"]
    dpo_config = config["dpo"]
    data_config = config["data"]

    training_args = DPOConfig(
        output_dir=training_config["output_dir"],
        per_device_train_batch_size=training_config["batch_size"],
        gradient_accumulation_steps=training_config["gradient_accumulation_steps"],
        learning_rate=training_config["learning_rate"],
        weight_decay=training_config.get("weight_decay", 0.0),
        max_steps=training_config.get("max_steps", -1),
        num_train_epochs=training_config.get("epochs", 1),
        warmup_steps=training_config.get("warmup_steps", 100),
        
        # DPO specific
        beta=dpo_config["beta"],
        loss_type=dpo_config.get("loss_type", "sigmoid"),
        
        # Precision
        bf16=training_config.get("bf16", True),
        tf32=training_config.get("tf32", True),
        
        gradient_checkpointing=config.get("distributed", {}).get("gradient_checkpointing", True),
        report_to="wandb" if WANDB_AVAILABLE and config.get("logging", {}).get("report_to") == "wandb" else "none",
        
        eval_strategy="steps" if eval_dataset else "no",
        eval_steps=config.get("evaluation", {}).get("eval_steps", 100) if eval_dataset else None,
        
        # Data
        max_length=data_config.get("max_length", 2048),
        max_prompt_length=data_config.get("max_prompt_length", 1024),
        
        # Misc
        remove_unused_columns=False,
        seed=seed
    )
    
    trainer = DPOTrainer(
        model=model,
        ref_model=ref_model,
        args=training_args,
        train_dataset=train_dataset,
        eval_dataset=eval_dataset,
        tokenizer=tokenizer,
        peft_config=peft_config
    )
    trainer.train()


if __name__ == "__main__":
    main()
