from datasets import load_dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainingArguments
from trl import DPOTrainer

name = "Qwen/Qwen2-0.5B-Instruct"
model = AutoModelForCausalLM.from_pretrained(name, torch_dtype="auto")
tokenizer = AutoTokenizer.from_pretrained(name)
rows = load_dataset("trl-lib/ultrafeedback_binarized", split="train")
rows = rows.map(lambda x: {"chosen": x["answer"], "rejected": x["question"]})
args = TrainingArguments(output_dir="dpo", per_device_train_batch_size=2, logging_steps=25)
trainer = DPOTrainer(
    model, None, args=args, beta=0.2, train_dataset=rows, tokenizer=tokenizer, max_length=128, max_prompt_length=64
)
trainer.train()
