from peft import LoraConfig, TaskType

from trl import RewardTrainer, RewardConfig

from reward.src.dataset import load_preference_dataset
from reward.src.model import build_bnb_config, load_reward_model

def process_pref(example):
    tokenizer = process_pref.tokenizer
    tc = tokenizer(example["question"] + example["chosen"])
    tr = tokenizer(example["question"] + example["rejected"])
    return {
        "input_ids_chosen":      tc["input_ids"],
        "attention_mask_chosen": tc["attention_mask"],
        "input_ids_rejected":    tr["input_ids"],
        "attention_mask_rejected":tr["attention_mask"]
    }

def main():
    tokenizer, model = load_reward_model(r'D:\models\Instruct', build_bnb_config())
    dataset = load_preference_dataset("./data/preference.json")
    process_pref.tokenizer = tokenizer
    dataset = dataset.map(process_pref, remove_columns=["question", "chosen", "rejected"])

    config = RewardConfig(output_dir="./reward_model")
    config.num_train_epochs = 1  # one
    config.per_device_train_batch_size = 1

    trainer = RewardTrainer(
        model=model,             # reward
        tokenizer=tokenizer,     # tokenizer
        args=config,             # settings
        train_dataset=dataset    # data
    )

    trainer.train()
    trainer.save_model("./reward_model")

if __name__ == "__main__":
    main()
