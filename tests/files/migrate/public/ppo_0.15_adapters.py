import datetime

from datasets import load_dataset
from peft import LoraConfig
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer
from trl import PPOConfig, PPOTrainer

tokenizer = AutoTokenizer.from_pretrained("q")
policy = AutoModelForCausalLM.from_pretrained("q", torch_dtype="bfloat16")
reward = AutoModelForSequenceClassification.from_pretrained("r", num_labels=1)
value = AutoModelForSequenceClassification.from_pretrained("r", num_labels=1)
peft_config = LoraConfig(r=32, task_type="CAUSAL_LM")
ppo_config = PPOConfig(
    per_device_train_batch_size=2,
    gradient_accumulation_steps=4,
    local_rollout_forward_batch_size=8,
    vf_coef=0.5,
    cliprange=0.1,
    cliprange_value=0.5,
    total_episodes=1000,
    learning_rate=5e-6,
    num_ppo_epochs=2,
    response_length=200,
    logging_dir=f"./{datetime.datetime.now()}",
    output_dir="./checkpoint/ppo",
)
trainer = PPOTrainer(
    args=ppo_config, processing_class=tokenizer, model=policy, ref_model=None, reward_model=reward, value_model=value,
    train_dataset=load_dataset("d", split="train"), peft_config=peft_config,
)
trainer.train()
trainer.save_model(ppo_config.output_dir)
