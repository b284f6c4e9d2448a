import os
import torch
from datasets import load_dataset
from trl import KTOConfig, KTOTrainer
from transformers import Qwen2VLForConditionalGeneration, AutoProcessor
from peft import get_peft_model, LoraConfig, TaskType

model = Qwen2VLForConditionalGeneration.from_pretrained(
    "Qwen/Qwen2-VL-7B-Instruct",
    torch_dtype=torch.bfloat16,
    attn_implementation="flash_attention_2",
    device_map="auto",
)

lora_config = LoraConfig(
    task_type=TaskType.SEQ_2_SEQ_LM,  # For text generation tasks
    target_modules=['q_proj', 'k_proj', 'v_proj', 'qkv'],
    r=8,
)
model = get_peft_model(model, lora_config)

processor = AutoProcessor.from_pretrained("Qwen/Qwen2-VL-7B-Instruct")
train_dataset = load_dataset("json", data_files={"train": "kto.json"}, split="train")

training_args = KTOConfig(
    output_dir="KTO-LoRA",
    logging_steps=10,
    save_strategy="epoch",
    learning_rate=5e-7,
    per_device_train_batch_size=4,
    num_train_epochs=1,
    warmup_steps=100,
    bf16=True,  # Use bfloat16 precision
    remove_unused_columns=False,  # Keep all columns
)

trainer = KTOTrainer(
    model=model,
    args=training_args,
    processing_class=processor.tokenizer,
    train_dataset=train_dataset,
)
trainer.train()
model.save_pretrained("KTO-LoRA")
