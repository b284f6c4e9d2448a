#!/usr/bin/env python3
"""Train the embedded model with TRL's last PPO and print one JSON line; run by ppo_vs_trl.py in TRL's own environment.

TRL 1.12.0 is the last release with a PPOTrainer. It takes `nn.Module` rewards and tokenized prompts only, so the rule
is wrapped as a reward model: `backbone` returns hidden states whose single channel is the score.
"""

import argparse
import json
import os
import re
import resource
import time

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")


def main() -> None:
    """Run one training and print its measurements."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--data", required=True)
    parser.add_argument("--eval_data", required=True)
    for name, default in (("steps", 20), ("batch_size", 128), ("ppo_epochs", 2), ("minibatches", 1), ("seed", 0)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--max_new_tokens", type=int, default=32)
    parser.add_argument("--lr", type=float, default=2e-4)
    parser.add_argument("--kl_coef", type=float, default=0.01)
    parser.add_argument("--vf_coef", type=float, default=0.5)
    parser.add_argument("--eval_every", type=int, default=0, help="0: never, for clean memory and speed")
    parser.add_argument("--reward", default="sum", choices=["sum", "vowels"], help="vowels: their share of the answer")
    parser.add_argument("--output_dir", required=True)
    args = parser.parse_args()

    import torch
    from datasets import Dataset
    from transformers import (
        AutoModelForCausalLM,
        AutoModelForSequenceClassification,
        AutoTokenizer,
        PrinterCallback,
        ProgressCallback,
        TrainerCallback,
    )
    from trl.experimental.ppo import PPOConfig, PPOTrainer

    gpu = torch.cuda.is_available()
    torch.manual_seed(args.seed)
    tokenizer = AutoTokenizer.from_pretrained(args.model, padding_side="left")
    policy = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32)
    reference = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32)
    critic = AutoModelForSequenceClassification.from_pretrained(args.model, num_labels=1, dtype=torch.float32)
    torch.nn.init.zeros_(critic.score.weight)
    with open(args.data, encoding="utf-8") as f:
        train = [json.loads(line) for line in f]
    with open(args.eval_data, encoding="utf-8") as f:
        held_out = [json.loads(line) for line in f]

    def encode(row):
        return tokenizer.apply_chat_template(row["prompt"], add_generation_prompt=True, return_dict=True)["input_ids"]

    def score_of(text: str) -> float:
        """1 for the right sum in tags and 0.2 for the tags, or the share of vowels."""
        if args.reward == "vowels":
            answer = text.split("<|im_start|>assistant\n")[-1].split("<|im_end|>")[0].split("<|endoftext|>")[0]
            return sum(x in "aeiou" for x in answer) / max(len(answer), 1)
        question, _, answer = text.replace("<pad>", "").partition("<|assistant|>")
        a, b = map(int, re.findall(r"\d+", question))
        answer = answer.split("<|end|>")[0].strip()
        found = re.findall(r"<answer>\s*(.*?)\s*</answer>", answer)
        tagged = re.fullmatch(r"<answer>\s*[^<>\s][^<>]*</answer>", answer)
        return float(found == [str(a + b)]) + 0.2 * bool(tagged)

    class Rule(torch.nn.Module):
        """The score, shaped like a sequence classifier."""

        base_model_prefix = "backbone"

        class Backbone(torch.nn.Module):
            def forward(self, input_ids, attention_mask, **kwargs):
                scores = [score_of(t) for t in tokenizer.batch_decode(input_ids, skip_special_tokens=False)]
                hidden = torch.tensor(scores, device=input_ids.device)[:, None, None].expand(-1, input_ids.shape[1], 1)
                return type("Output", (), {"hidden_states": (hidden,)})()

        def __init__(self):
            super().__init__()
            self.backbone, self.score = self.Backbone(), torch.nn.Identity()

    @torch.no_grad()
    def accuracy(model) -> float:
        enc = tokenizer.pad({"input_ids": [encode(row) for row in held_out]}, return_tensors="pt")
        out = model.generate(
            **enc.to(model.device),
            do_sample=False,
            max_new_tokens=args.max_new_tokens,
            pad_token_id=tokenizer.pad_token_id,
        )
        texts = tokenizer.batch_decode(out[:, enc["input_ids"].shape[1] :], skip_special_tokens=True)
        return sum(t == f"<answer>{r['answer']}</answer>" for t, r in zip(texts, held_out, strict=True)) / len(texts)

    class Clock(TrainerCallback):
        """Seconds of training at the end of each step, and accuracy, the evaluation itself not counted."""

        def __init__(self):
            self.spent, self.last, self.marks = 0.0, time.perf_counter(), []

        def on_step_end(self, arguments, state, control, **kwargs):
            self.spent += time.perf_counter() - self.last
            step = len(self.marks) + 1
            right = accuracy(policy) if args.eval_every and step % args.eval_every == 0 else None
            self.marks.append((step, self.spent, right))
            self.last = time.perf_counter()

    config = PPOConfig(
        output_dir=args.output_dir,
        total_episodes=args.steps * args.batch_size,
        learning_rate=args.lr,
        lr_scheduler_type="constant",
        seed=args.seed,
        per_device_train_batch_size=args.batch_size,  # with accumulation 1, every minibatch is one optimizer step
        gradient_accumulation_steps=1,
        num_mini_batches=args.minibatches,
        num_ppo_epochs=args.ppo_epochs,
        response_length=args.max_new_tokens,
        stop_token="eos",
        temperature=1.0,
        kl_coef=args.kl_coef,
        vf_coef=args.vf_coef,
        gamma=1.0,
        lam=0.95,
        missing_eos_penalty=1.0,
        num_sample_generations=0,
        local_rollout_forward_batch_size=args.batch_size,
        use_cpu=not gpu,
        bf16=gpu,  # as ours computes there
        gradient_checkpointing=False,
        report_to="none",
        save_strategy="no",
        logging_steps=1,
        disable_tqdm=True,
        dataloader_pin_memory=False,
    )
    trainer = PPOTrainer(
        args=config,
        processing_class=tokenizer,
        model=policy,
        ref_model=reference,
        reward_model=Rule(),
        value_model=critic,
        train_dataset=Dataset.from_list([{"input_ids": encode(row)} for row in train]),
    )
    for callback in (PrinterCallback, ProgressCallback):
        trainer.remove_callback(callback)
    clock = Clock()
    trainer.add_callback(clock)
    clock.last = time.perf_counter()
    trainer.train()
    peak = (
        torch.cuda.max_memory_allocated() / 2**20 if gpu else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    )
    print(json.dumps({"marks": clock.marks, "peak_mib": round(peak)}))


if __name__ == "__main__":
    main()
