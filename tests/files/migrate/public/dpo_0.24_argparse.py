from __future__ import annotations

import argparse
from typing import Optional

import torch
from datasets import load_dataset
from peft import LoraConfig
from transformers import AutoModelForCausalLM, AutoTokenizer, BitsAndBytesConfig
from trl import DPOConfig, DPOTrainer


def load_model(model_path: str, load_in_4bit: bool):
    quant_cfg = None
    if load_in_4bit:
        quant_cfg = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_compute_dtype=torch.bfloat16)

    return AutoModelForCausalLM.from_pretrained(
        model_path,
        device_map="auto",
        trust_remote_code=True,
        quantization_config=quant_cfg,
        dtype=torch.bfloat16,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="QLoRA DPO")
    parser.add_argument("--model-path", required=True)
    parser.add_argument("--output-dir", default="out")
    parser.add_argument("--lr", type=float, default=5e-6)
    parser.add_argument("--max-len", type=int, default=1024)
    parser.add_argument("--max-prompt-len", type=int, default=768)
    parser.add_argument("--beta", type=float, default=0.1)
    args = parser.parse_args()

    model = load_model(args.model_path, load_in_4bit=False)
    tokenizer = AutoTokenizer.from_pretrained(args.model_path, trust_remote_code=True)
    train_dataset = load_dataset("json", data_files="pairs.jsonl", split="train")
    eval_dataset: Optional[object] = None
    peft_config = LoraConfig(r=16, task_type="CAUSAL_LM")

    train_args = DPOConfig(
        output_dir=args.output_dir,
        learning_rate=args.lr,
        per_device_train_batch_size=1,
        per_device_eval_batch_size=1,
        gradient_accumulation_steps=16,
        max_length=args.max_len,
        max_prompt_length=args.max_prompt_len,
        beta=args.beta,
        bf16=torch.cuda.is_available(),
        logging_steps=10,
        save_strategy="epoch",
        eval_strategy="epoch" if eval_dataset is not None else "no",
        report_to=[],
    )

    trainer = DPOTrainer(
        model=model,
        ref_model=None,
        args=train_args,
        train_dataset=train_dataset,
        eval_dataset=eval_dataset,
        processing_class=tokenizer,
        peft_config=peft_config,
    )

    trainer.train()
    trainer.save_model(args.output_dir)


if __name__ == "__main__":
    main()
