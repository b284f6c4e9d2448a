"""Zephyr of 2024: all of DPO's settings at the trainer."""
import torch
from datasets import load_dataset
from peft import LoraConfig, prepare_model_for_kbit_training
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainingArguments
from trl import DPOTrainer, create_reference_model
from trl.trainer.utils import DPODataCollatorWithPadding

model = AutoModelForCausalLM.from_pretrained("zephyr", low_cpu_mem_usage=True, torch_dtype=torch.float16, load_in_4bit=True)
model = prepare_model_for_kbit_training(model)
tokenizer = AutoTokenizer.from_pretrained("zephyr")
tokenizer.padding_side = "left"
data = load_dataset("org/pairs", split="train")
training_args = TrainingArguments(
    per_device_train_batch_size=4,
    gradient_accumulation_steps=4,
    learning_rate=5e-5,
    lr_scheduler_type="cosine",
    max_steps=200,
    save_strategy="no",
    evaluation_strategy="no",
    output_dir="out",
    optim="paged_adamw_32bit",
    warmup_steps=100,
    fp16=True,
    remove_unused_columns=False,
)
dpo_trainer = DPOTrainer(
    model,
    None,
    args=training_args,
    train_dataset=data,
    tokenizer=tokenizer,
    peft_config=LoraConfig(r=16, task_type="CAUSAL_LM"),
    beta=0.1,
    loss_type="ipo",
    max_prompt_length=1024,
    max_length=1536,
    max_target_length=None,
    truncation_mode="keep_end",
    label_pad_token_id=-100,
    padding_value=0,
    generate_during_eval=False,
    precompute_ref_log_probs=True,
)
dpo_trainer.train()
