import copy

import datasets
import torch
from peft import LoraConfig, TaskType, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import RLOOConfig, RLOOTrainer


class MyRLOOTrainer(RLOOTrainer):
    def generate_completions(self, sampling=False):
        return None


def reward_correctness(prompts, completions):
    return [0.0 for _ in completions]


model = AutoModelForCausalLM.from_pretrained("m", torch_dtype=torch.bfloat16, trust_remote_code=True)
tokenizer = AutoTokenizer.from_pretrained("m")
model = get_peft_model(model, LoraConfig(r=8, task_type=TaskType.CAUSAL_LM))
training_args = RLOOConfig(
    output_dir="./rloo-vlm",
    do_train=True,
    per_device_train_batch_size=1,
    gradient_accumulation_steps=4,
    num_train_epochs=3,
    learning_rate=2e-5,
    warmup_ratio=0.1,
    optim="paged_adamw_32bit",
    bf16=True,
    length_column_name="prompt",
    response_length=100,
    temperature=1.0,
    stop_token_id=tokenizer.eos_token_id,
    rloo_k=4,
)
trainer = MyRLOOTrainer(
    config=training_args,
    policy=model,
    ref_policy=copy.deepcopy(model),
    processing_class=tokenizer,
    reward_model=[reward_correctness],
    train_dataset=datasets.load_dataset("d")["train"],
)
trainer.train()
