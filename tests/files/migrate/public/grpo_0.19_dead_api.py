"""SQL with an API that may die: a trainer that goes on."""
import os

from peft import LoraConfig
from transformers import AutoModelForCausalLM, BitsAndBytesConfig
from trl import GRPOConfig, GRPOTrainer
from datasets import load_dataset

MAX_PROMPT_LEN = 4096


def reward(prompts, completions, gt_sql, **kwargs):
    return [None if c is None else float(g in c) for c, g in zip(completions, gt_sql)]


class APIAwareGRPOTrainer(GRPOTrainer):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.dead = 0

    def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
        try:
            return super().compute_loss(model, inputs, return_outputs, **kwargs)
        except RuntimeError:
            self.dead += 1
            raise


bnb = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4")
model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-7B", quantization_config=bnb, device_map={"": int(os.environ.get("LOCAL_RANK", 0))})
trainer = APIAwareGRPOTrainer(
    model=model,
    reward_funcs=[reward],
    args=GRPOConfig(
        "out",
        max_prompt_length=MAX_PROMPT_LEN,
        max_completion_length=1024,
        num_generations=6,
        per_device_train_batch_size=6,
        steps_per_generation=2,
        gradient_accumulation_steps=4,
        beta=0.001,
        top_k=None,
        delta=4.0,
        vllm_guided_decoding_regex=None,
        wandb_log_unique_prompts=True,
    ),
    train_dataset=load_dataset("org/sql", split="train"),
    peft_config=LoraConfig(task_type="CAUSAL_LM"),
)
trainer.train()
