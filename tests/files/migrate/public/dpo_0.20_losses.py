"""Two losses with weights; BF16 if the card has it."""
import torch
from datasets import load_dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import DPOConfig, DPOTrainer


def bf16_available():
    return torch.cuda.is_available() and torch.cuda.is_bf16_supported()


model = AutoModelForCausalLM.from_pretrained("m")
tok = AutoTokenizer.from_pretrained("m")
eval_dataset = None
config = DPOConfig(
    output_dir="o",
    loss_type=["sigmoid", "bco_pair", "sft"],
    loss_weights=[0.8, 0.2, 1.0],
    f_divergence_type="js_divergence",
    max_length=2048,
    max_prompt_length=1024,
    max_completion_length=512,
    bf16=bf16_available(),
    fp16=not bf16_available(),
    eval_strategy="epoch" if eval_dataset is not None else "no",
    reference_free=False,
    force_use_ref_model=False,
    padding_free=True,
    use_liger_loss=False,
    tools=None,
)
DPOTrainer(model=model, ref_model=None, args=config, train_dataset=load_dataset("p", split="train"), processing_class=tok).train()
