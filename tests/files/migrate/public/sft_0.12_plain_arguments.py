import torch
from transformers import AutoTokenizer, AutoModelForCausalLM, TrainingArguments, DataCollatorForLanguageModeling
from trl import SFTTrainer
import pandas as pd
from datasets import Dataset
import json
import os

model_id = "google/gemma-2b-it"
output_dir = "train"
cache_dir = os.path.join(output_dir, "cache")

model = AutoModelForCausalLM.from_pretrained(model_id, device_map={"": 0}, torch_dtype=torch.float16, cache_dir=cache_dir)
tokenizer = AutoTokenizer.from_pretrained(model_id, add_eos_token=True, cache_dir=cache_dir)
tokenizer.pad_token = tokenizer.eos_token

def formatting_func(prompt, response):
    return f"Question: {prompt}\nAnswer: {response}"

def load_data(file_path):
    with open(file_path, 'r') as f:
        df = pd.DataFrame(json.load(f))
    df['text'] = df.apply(lambda row: formatting_func(row['prompt'], row['response']), axis=1)
    return Dataset.from_pandas(df[['text']])

train_dataset = load_data('train.json')

training_args = TrainingArguments(
    output_dir=output_dir,
    per_device_train_batch_size=1,  # Reduce batch size
    gradient_accumulation_steps=4,
    warmup_steps=3,  # an integer
    max_steps=100,
    learning_rate=2e-4,
    logging_steps=1,
    save_strategy="epoch",
    fp16=True,
)

data_collator = DataCollatorForLanguageModeling(tokenizer, mlm=False)

trainer = SFTTrainer(
    model=model,
    train_dataset=train_dataset,
    args=training_args,
    data_collator=data_collator,
)

model.config.use_cache = False
trainer.train()
