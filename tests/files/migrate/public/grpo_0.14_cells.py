# %%
import re

import torch
import wandb
from datasets import Dataset, load_dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

# %%
SYSTEM = "Think, then answer."


def questions(split) -> Dataset:
    data = load_dataset("openai/gsm8k", "main")[split]
    return data.map(
        lambda x: {
            "prompt": [{"role": "system", "content": SYSTEM}, {"role": "user", "content": f"Question: {x['question']}"}],
            "answer": x["answer"].split("####")[1].strip(),
        }
    )


dataset = questions("train")
validation_dataset = questions("test")


# %%
def correctness(prompts, completions, answer, **kwargs) -> list[float]:
    texts = [completion[0]["content"] for completion in completions]
    return [2.0 if t == a else 0.0 for t, a in zip(texts, answer)]


def is_int(completions, **kwargs) -> list[float]:
    return [0.5 if c[0]["content"].isdigit() else 0.0 for c in completions]


# %%
model_name = "Qwen/Qwen2.5-0.5B"
output_dir = f"output/{model_name}"
run_name = f"{model_name}-GRPO"

training_args = GRPOConfig(
    output_dir=output_dir,
    run_name=run_name,
    learning_rate=5e-6,
    adam_beta1=0.9,
    adam_beta2=0.99,
    weight_decay=0.1,
    warmup_ratio=0.1,
    lr_scheduler_type="cosine",
    logging_steps=1,
    bf16=True,
    per_device_train_batch_size=3,
    gradient_accumulation_steps=4,
    num_generations=3,
    max_prompt_length=256,
    max_completion_length=1000,
    num_train_epochs=1,
    save_steps=100,
    max_grad_norm=0.1,
    log_on_each_node=False,
    use_vllm=False,
    # vllm_gpu_memory_utilization=0.3,
    # vllm_device="cuda:0",
    report_to="wandb",
)

model = AutoModelForCausalLM.from_pretrained(
    model_name, torch_dtype=torch.bfloat16, device_map=None
).to("cpu")

tokenizer = AutoTokenizer.from_pretrained(model_name)
tokenizer.pad_token = tokenizer.eos_token

# %%
wandb.init(project="GRPO", name=run_name, config=training_args.to_dict())

# %%
trainer = GRPOTrainer(
    model=model,
    processing_class=tokenizer,
    reward_funcs=[
        is_int,
        correctness,
    ],
    args=training_args,
    train_dataset=dataset,
    eval_dataset=validation_dataset,  # Add evaluation dataset
)

# %%
trainer.train()
output_dir_final = "../artifacts/final"
trainer.save_model(output_dir_final)
