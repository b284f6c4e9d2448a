"""Short poems; a YAML file has the numbers, functions make the parts."""

import argparse
import logging
import os

import yaml
from datasets import load_dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

logger = logging.getLogger(__name__)


def reward_func(completions, **kwargs):
    return [1.0 if "\n" in c else 0.0 for c in completions]


def setup_grpo_config(config):
    train = config["training"]
    return GRPOConfig(
        output_dir=train["output_dir"],
        num_train_epochs=train["epochs"],
        per_device_train_batch_size=train["batch_size"],
        gradient_accumulation_steps=train.get("grad_accum", 1),
        num_generations=config["grpo"]["group_size"],
        max_prompt_length=config["grpo"]["max_prompt_length"],
        max_completion_length=config["grpo"]["max_new_tokens"],
        temperature=config["grpo"]["temperature"],
        fp16=train["fp16"],
        warmup_ratio=train["warmup_ratio"],
        logging_dir=os.path.join(train["output_dir"], "logs"),
    )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--config", default="config.yaml")
    config = yaml.safe_load(open(parser.parse_args().config))
    tokenizer = AutoTokenizer.from_pretrained(config["model"])
    model = AutoModelForCausalLM.from_pretrained(config["model"], torch_dtype="auto", use_cache=False)
    dataset = load_dataset("json", data_files=config["data"], split="train")
    grpo_config = setup_grpo_config(config)
    logger.info(f"group {grpo_config.num_generations}, prompts to {grpo_config.max_prompt_length}")
    trainer = GRPOTrainer(
        model=model, args=grpo_config, train_dataset=dataset, reward_funcs=reward_func, processing_class=tokenizer
    )
    trainer.train()


if __name__ == "__main__":
    main()
