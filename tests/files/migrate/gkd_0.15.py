from datasets import load_dataset
from transformers import AutoTokenizer
from trl import GKDConfig, GKDTrainer

tokenizer = AutoTokenizer.from_pretrained("Qwen/Qwen2-0.5B-Instruct")

rows = load_dataset("trl-lib/chatbot_arena_completions", split="train")
rows = rows.map(
    lambda x: {"messages": [{"role": "user", "content": x["question"]}, {"role": "assistant", "content": x["answer"]}]},
    remove_columns=rows.column_names,
)
args = GKDConfig(output_dir="gkd", lmbda=0.5, max_new_tokens=16, per_device_train_batch_size=2)
trainer = GKDTrainer(
    model="Qwen/Qwen2-0.5B-Instruct",
    teacher_model="Qwen/Qwen2-1.5B-Instruct",
    args=args,
    processing_class=tokenizer,
    train_dataset=rows,
)
trainer.train()
