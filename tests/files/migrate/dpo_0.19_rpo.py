from datasets import load_dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import DPOConfig, DPOTrainer

name = "Qwen/Qwen2-0.5B-Instruct"
model = AutoModelForCausalLM.from_pretrained(name, torch_dtype="auto")
tokenizer = AutoTokenizer.from_pretrained(name)
rows = load_dataset("trl-lib/ultrafeedback_binarized", split="train")
rows = rows.map(lambda x: {"chosen": x["answer"], "rejected": x["question"]})
args = DPOConfig(output_dir="dpo", rpo_alpha=0.5, max_prompt_length=None, generate_during_eval=False)
trainer = DPOTrainer(model=model, args=args, processing_class=tokenizer, train_dataset=rows)
trainer.train()
