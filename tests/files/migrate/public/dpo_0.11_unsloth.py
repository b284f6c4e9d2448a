import torch
from trl import DPOConfig, DPOTrainer
from unsloth import FastLanguageModel
import json
from datasets import Dataset
max_seq_length = 8192 # any number

model, tokenizer = FastLanguageModel.from_pretrained(
    model_name = "org/tulu-7b",
    max_seq_length = max_seq_length,
    dtype = None, # None for auto detection
    load_in_4bit = True,
)

model = FastLanguageModel.get_peft_model(
    model,
    r = 16,
    target_modules = ["q_proj", "k_proj", "v_proj", "o_proj",
                      "gate_proj", "up_proj", "down_proj",],
    lora_alpha = 16,
    use_gradient_checkpointing = True,
    random_state = 3407,
)

training_args = DPOConfig(
    output_dir="./dpo_output",
    beta=0.1,
)

train_dataset = json.load(open("data/dpo_train.json", 'r'))
train_dataset = Dataset.from_dict(train_dataset)

dpo_trainer = DPOTrainer(
    model,
    ref_model=None,
    args=training_args,
    train_dataset=train_dataset,
    tokenizer=tokenizer,
    bf16=False,
)
dpo_trainer.train()
