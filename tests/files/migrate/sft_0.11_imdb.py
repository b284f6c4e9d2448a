from datasets import load_dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainingArguments
from trl import SFTTrainer

dataset = load_dataset("stanfordnlp/imdb", split="train")
model = AutoModelForCausalLM.from_pretrained("facebook/opt-350m")
tokenizer = AutoTokenizer.from_pretrained("facebook/opt-350m")
args = TrainingArguments(
    output_dir="/tmp/imdb", per_device_train_batch_size=4, evaluation_strategy="no", warmup_ratio=0.03
)
trainer = SFTTrainer(
    model,
    args=args,
    train_dataset=dataset,
    tokenizer=tokenizer,
    dataset_text_field="question",
    max_seq_length=512,
    packing=True,
    dataset_num_proc=1,
)
trainer.train()
