from datasets import load_dataset
from transformers import AutoModelForSequenceClassification, AutoTokenizer
from trl import RewardConfig, RewardTrainer

tok = AutoTokenizer.from_pretrained("m")
reward_model = AutoModelForSequenceClassification.from_pretrained("m", num_labels=1)
for name, param in reward_model.named_parameters():
    param.requires_grad = name.startswith("score.")


def accuracy(pair):
    return {"accuracy": (pair.predictions[0] > pair.predictions[1]).mean()}


config = RewardConfig(output_dir="r", eval_strategy="steps", learning_rate=1e-5, fp16=True, dataset_num_proc=4)
config.max_length = 768
trainer = RewardTrainer(
    model=reward_model, args=config, train_dataset=load_dataset("p", split="train"), compute_metrics=accuracy, processing_class=tok
)
trainer.train()
