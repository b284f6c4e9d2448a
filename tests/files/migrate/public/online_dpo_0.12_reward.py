import torch
from datasets import load_dataset
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer
from trl import OnlineDPOConfig, OnlineDPOTrainer

model = AutoModelForCausalLM.from_pretrained("Llama-3.1-8B-Instruct", torch_dtype=torch.bfloat16)
ref_model = AutoModelForCausalLM.from_pretrained("Llama-3.1-8B-Instruct", torch_dtype=torch.bfloat16)
reward_model = AutoModelForSequenceClassification.from_pretrained("reward", num_labels=1)
tokenizer = AutoTokenizer.from_pretrained("Llama-3.1-8B-Instruct", padding_side="left")

args = OnlineDPOConfig(
    output_dir="./online",
    learning_rate=5e-7,
    beta=0.1,  # as in DPO
    per_device_train_batch_size=4,
    gradient_accumulation_steps=4,
    max_new_tokens=512,
    missing_eos_penalty=1.0,
    bf16=True,
)
trainer = OnlineDPOTrainer(
    model=model,
    ref_model=ref_model,
    reward_model=reward_model,
    args=args,
    train_dataset=load_dataset("org/prompts", split="train"),
    processing_class=tokenizer,
    reward_processing_class=AutoTokenizer.from_pretrained("reward"),
)
trainer.train()
