"""Distillation: a share of the student's own texts."""
import argparse

from datasets import load_dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GKDConfig, GKDTrainer


def main(args):
    student = AutoModelForCausalLM.from_pretrained(args.student, torch_dtype="auto", load_in_4bit=args.use_4bit)
    teacher = AutoModelForCausalLM.from_pretrained(args.teacher, torch_dtype="auto")
    tokenizer = AutoTokenizer.from_pretrained(args.student)
    training_args = GKDConfig(
        output_dir=args.output_dir,
        max_seq_length=args.max_seq_length,
        learning_rate=args.lr,
        eval_strategy="steps",
        warmup_steps=100,
        gradient_accumulation_steps=1,
        gradient_checkpointing=True,
        temperature=args.temperature,
        lmbda=args.lmbda,
        beta=args.beta,
        max_new_tokens=args.max_new_tokens,
        seq_kd=args.seq_kd,
        disable_dropout=True,
        metric_for_best_model="eval_loss",
    )
    trainer = GKDTrainer(
        model=student, teacher_model=teacher, args=training_args, processing_class=tokenizer,
        train_dataset=load_dataset("json", data_files="t.jsonl", split="train"),
        eval_dataset=load_dataset("json", data_files="e.jsonl", split="train"),
    )
    trainer.train()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    for name in ("student", "teacher", "output_dir"):
        parser.add_argument(f"--{name}")
    main(parser.parse_args())
