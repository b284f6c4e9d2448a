#Most of it follows a gist

from datasets import load_from_disk
from trl import GRPOConfig, GRPOTrainer
import legal_reasoning.utils as lru
from peft import LoraConfig
from transformers import AutoTokenizer, AutoModelForCausalLM
import torch

def main():

    model_name = "models/Qwen_Qwen2.5-1.5B-Instruct"
    output_dir="models/local"

    peft_config = LoraConfig(
        r=16,
        lora_alpha=64,
        task_type="CAUSAL_LM",
    )

    max_prompt_length=1024
    max_completion_length=512

    dataset = lru.get_questions(load_from_disk("data/gsm8k"),split="train")

    training_args = GRPOConfig(
        output_dir=output_dir,
        learning_rate=5e-6,
        adam_beta1 = 0.9,
        adam_beta2 = 0.99,
        weight_decay = 0.1,
        warmup_ratio = 0.1,
        lr_scheduler_type='cosine',
        optim = "paged_adamw_8bit",
        logging_steps=1,
        bf16=True,
        per_device_train_batch_size=1,
        gradient_accumulation_steps=4,
        num_generations=6,
        max_prompt_length=max_prompt_length,
        max_completion_length=max_completion_length,
        num_train_epochs=1,
        #max_steps = 10,
        save_steps=100,
        save_total_limit=3,
        max_grad_norm=0.1,
        log_on_each_node=False,
        use_vllm=True,
        #vllm_device = "cuda:0",
        vllm_gpu_memory_utilization = 0.3,
        eval_accumulation_steps = 1,
        vllm_max_model_len = max_prompt_length + max_completion_length,
        # "enable_chunked_prefill": True,
        report_to="wandb" #I'm disabling Wandb.
    )

    model = AutoModelForCausalLM.from_pretrained(
        model_name,
        #load_in_8bit=True
        torch_dtype=torch.bfloat16,
        device_map="auto",
        attn_implementation="flash_attention_2"
        #peft_config=peft_config
    )

    tokenizer = AutoTokenizer.from_pretrained(model_name)
    tokenizer.pad_token = tokenizer.eos_token

    trainer = GRPOTrainer(
        model=model,
        processing_class=tokenizer,
        reward_funcs=[
            lru.xmlcount_reward_func,
            lru.correctness_reward_func],
        args=training_args,
        train_dataset=dataset,
        #peft_config=peft_config
    )
    trainer.train()
    trainer.save_model(training_args.output_dir)

    return None


if __name__ == "__main__":
    main()
