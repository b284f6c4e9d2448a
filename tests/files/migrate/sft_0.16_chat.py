from datasets import load_dataset
from trl import SFTConfig, SFTTrainer

dataset = load_dataset("trl-lib/Capybara", split="train")
dataset = dataset.map(
    lambda x: {"messages": [{"role": "user", "content": x["question"]}, {"role": "assistant", "content": x["answer"]}]},
    remove_columns=dataset.column_names,
)
config = SFTConfig(
    output_dir="Qwen2.5-0.5B-SFT",
    max_seq_length=2048,
    packing=True,
    learning_rate=2.0e-5,
    use_liger=False,
    torch_compile=False,
    fp16=False,
)
trainer = SFTTrainer(model="Qwen/Qwen2.5-0.5B", args=config, train_dataset=dataset)
trainer.train()
