"""Preferences with the SFT term and smoothed labels, all from flags."""
import argparse
import json

from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import DPOConfig, DPOTrainer

parser = argparse.ArgumentParser()
parser.add_argument("--rpo_alpha", type=float, default=None)
parser.add_argument("--label_smoothing", type=float, default=0.0)
parser.add_argument("--max_prompt_length", type=int, default=512)
parser.add_argument("--max_seq_length", type=int, default=1024)
parser.add_argument("--warmup_ratio", type=float, default=0.1)
parser.add_argument("--beta", type=float, default=0.1)
parser.add_argument("--output_dir")
args = parser.parse_args()

model = AutoModelForCausalLM.from_pretrained("m", torch_dtype="auto")
tokenizer = AutoTokenizer.from_pretrained("m")
dataset = Dataset.from_list([json.loads(line) for line in open("pairs.jsonl")])
dpo_config = DPOConfig(
    warmup_ratio=args.warmup_ratio,
    output_dir=args.output_dir,
    bf16=True,
    gradient_checkpointing=True,
    max_length=args.max_seq_length,
    max_prompt_length=args.max_prompt_length,
    rpo_alpha=args.rpo_alpha,
    label_smoothing=args.label_smoothing,
    beta=args.beta,
)
trainer = DPOTrainer(model=model, ref_model=None, args=dpo_config, train_dataset=dataset, processing_class=tokenizer)
trainer.train()
