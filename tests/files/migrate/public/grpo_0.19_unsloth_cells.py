# %%
from unsloth import FastLanguageModel, is_bfloat16_supported
from unsloth.chat_templates import get_chat_template
from trl import GRPOConfig, GRPOTrainer, SFTTrainer, SFTConfig  # type: ignore
import numpy as np
from datasets import Dataset
from vllm import SamplingParams

from qr_reward import Quality

max_seq_length = 2048
max_prompt_length = 256
lora_rank = 32

# %%
quality = Quality()
reward_primary = quality.reward_fun_generator({"core": 1})

# %%
dataset = Dataset.load_from_disk("evals")

# %%
model, tokenizer = FastLanguageModel.from_pretrained(
    model_name="unsloth/Qwen3-4B-Base",
    max_seq_length=max_seq_length,
    load_in_4bit=False,
    fast_inference=True,
    max_lora_rank=lora_rank,
    gpu_memory_utilization=0.8,
)
tokenizer = get_chat_template(tokenizer, chat_template="qwen-3")

model = FastLanguageModel.get_peft_model(
    model,
    r=lora_rank,
    lora_alpha=lora_rank * 2,
    use_gradient_checkpointing="unsloth",
    random_state=3407,
)

# %%
lengths = dataset.map(lambda x: {"L": len(x["tokens"])})
maximum_length = int(np.quantile(lengths["L"], 0.9))

# %%
max_prompt_length = maximum_length + 1  # + 1 just in case!
max_completion_length = max_seq_length - max_prompt_length

vllm_sampling_params = SamplingParams(
    min_p=0.1,
    top_p=1.0,
    top_k=-1,
    seed=3407,
    stop=[tokenizer.eos_token],
    include_stop_str_in_output=True,
)

training_args = GRPOConfig(
    vllm_sampling_params=vllm_sampling_params,
    temperature=1.0,
    learning_rate=5e-6,
    weight_decay=0.001,
    warmup_ratio=0.1,
    lr_scheduler_type="linear",
    optim="adamw_8bit",
    logging_steps=1,
    per_device_train_batch_size=4,
    gradient_accumulation_steps=1,  # Increase to 4 for smoother training
    num_generations=4,  # Decrease if out of memory
    max_prompt_length=max_prompt_length,
    max_completion_length=max_completion_length,
    num_train_epochs=1,
    max_steps=2000,
    save_steps=100,
    report_to="none",
    output_dir="outputs",
    # eval_strategy = "steps",
)

trainer = GRPOTrainer(
    model=model,
    processing_class=tokenizer,
    reward_funcs=[
        reward_primary,
    ],  # type: ignore
    args=training_args,
    train_dataset=dataset,
)
trainer.train()

# %%
model.save_lora("grpo_saved_lora")
