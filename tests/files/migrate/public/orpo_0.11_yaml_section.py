import torch
from datasets import load_dataset
from peft import LoraConfig, prepare_model_for_kbit_training
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    BitsAndBytesConfig,
)
from trl import ORPOConfig, ORPOTrainer

import yaml

with open("config.yaml", "r") as file:
    try:
        config = yaml.safe_load(file)
    except yaml.YAMLError as exc:
        print(f"Error reading config.yaml: {exc}")
        exit(1)

base_model = config["base_model"]
config["bnb_config"]["bnb_4bit_compute_dtype"] = torch.float16
bnb_config = BitsAndBytesConfig(**config["bnb_config"])

peft_config = LoraConfig(**config["peft_config"])
tokenizer = AutoTokenizer.from_pretrained(base_model)
model = AutoModelForCausalLM.from_pretrained(
    base_model,
    quantization_config=bnb_config,
    device_map="auto",
    attn_implementation="eager",
)
model = prepare_model_for_kbit_training(model)
dataset = load_dataset(config["dataset"], split="all").train_test_split(test_size=config["test_size"])

orpo_args = ORPOConfig(**config["train_config"])

trainer = ORPOTrainer(
    model=model,
    args=orpo_args,
    train_dataset=dataset["train"],
    eval_dataset=dataset["test"],
    peft_config=peft_config,
    tokenizer=tokenizer,
)
trainer.train()
trainer.save_model(config["new_model"])
