from open_r1.trainer.env_grpo_trainer import Qwen2VLEnvGRPOTrainer
from trl import GRPOConfig, get_peft_config, ModelConfig
import torch


def get_default_model_config():
    return ModelConfig(
        load_in_4bit=True,
        lora_r=64,
        lora_target_modules=["q_proj", "v_proj"],
        use_peft=True,
        use_bnb_nested_quant=True,
    )


def get_default_grpo_config(run_name: str, num_gpus: int = 1) -> GRPOConfig:
    return GRPOConfig(
        output_dir=f"outputs/{run_name}",
        run_name=run_name,
        learning_rate=5e-6,
        warmup_steps=50,
        num_train_epochs=1,
        lr_scheduler_type="cosine",
        optim="adamw_8bit",
        bf16=False,
        fp16=True,
        beta=0.04,
        max_prompt_length=1024,
        max_completion_length=128,
        per_device_train_batch_size=1,
        num_generations=1,
        gradient_accumulation_steps=int(64 / num_gpus),
        gradient_checkpointing=True,
        save_strategy="epoch",
        use_vllm=True,
        vllm_device=f"cuda:{num_gpus-1}",
        vllm_gpu_memory_utilization=0.1,
        logging_steps=1,
        report_to="wandb",
        gradient_checkpointing_kwargs={"use_reentrant": False},
        model_init_kwargs={
            'load_in_4bit': True,
            'bnb_4bit_compute_dtype': torch.float16,
        },
    )


def reward_format(completions, **kwargs):
    return [0.1 for completion in completions]


if __name__ == '__main__':
    trainer = Qwen2VLEnvGRPOTrainer(
        model="Qwen/Qwen2.5-VL-3B-Instruct",
        args=get_default_grpo_config(run_name='home-rl', num_gpus=1),
        peft_config=get_peft_config(model_args=get_default_model_config()),
        min_pixels=(300*300),
    )
    trainer.train()
