"""What several graders need of a small chat model, in plain torch and transformers: load, sample, compare."""

import json
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

BATCH = 64


def jsonl(path: str) -> list[dict]:
    """The objects of a JSONL file."""
    return [json.loads(line) for line in Path(path).read_text(encoding="utf-8").splitlines() if line.strip()]


def load(folder: str):
    """Model in fp32 and tokenizer of a folder."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    return model, AutoTokenizer.from_pretrained(folder, padding_side="left")


@torch.no_grad()
def say(model, tokenizer, texts: list[str], sampled: bool = False, new_tokens: int = 24) -> list[list[int]]:
    """Token ids that follow each text, up to and with the end token."""
    replies = []
    for start in range(0, len(texts), BATCH):
        batch = tokenizer(texts[start : start + BATCH], return_tensors="pt", padding=True, add_special_tokens=False)
        batch.pop("token_type_ids", None)
        kind = {"do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0} if sampled else {"do_sample": False}
        end = tokenizer.eos_token_id
        out = model.generate(**batch, max_new_tokens=new_tokens, eos_token_id=end, pad_token_id=end, **kind)
        for row in out[:, batch["input_ids"].shape[1] :].tolist():
            replies.append(row[: row.index(end) + 1] if end in row else row)
    return replies


def opened(tokenizer, turns: list[dict]) -> str:
    """Text of a conversation up to where the assistant speaks."""
    return tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)


def spoken(model, tokenizer, questions: list[str]) -> list[str]:
    """Greedy replies to user turns, without the end token."""
    texts = [opened(tokenizer, [{"role": "user", "content": question}]) for question in questions]
    return [tokenizer.decode(ids, skip_special_tokens=True) for ids in say(model, tokenizer, texts)]
