from datasets import load_dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, AutoModelForSequenceClassification
from trl import RewardConfig, RewardTrainer

name = "Qwen/Qwen2-0.5B-Instruct"
model = AutoModelForCausalLM.from_pretrained(name, torch_dtype="auto")
tokenizer = AutoTokenizer.from_pretrained(name)
rows = load_dataset("trl-lib/ultrafeedback_binarized", split="train")
rows = rows.map(lambda x: {"chosen": x["answer"], "rejected": x["question"]})
model = AutoModelForSequenceClassification.from_pretrained(name, num_labels=1)
args = RewardConfig(output_dir="reward", center_rewards_coefficient=0.01, max_length=256, learning_rate=1e-5)
trainer = RewardTrainer(model=model, args=args, processing_class=tokenizer, train_dataset=rows.remove_columns("prompt"))
trainer.train()
