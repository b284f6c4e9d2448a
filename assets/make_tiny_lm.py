#!/usr/bin/env python3
# /// script
# requires-python = ">=3.11"
# dependencies = ["torch>=2.6", "transformers>=5,<6", "tokenizers"]
# ///
"""Make the embedded model and data: a tiny chat model that adds two numbers unreliably.

The model is a real Hugging Face checkpoint (Llama architecture, byte-level tokenizer, chat template). It is warmed up
on right answers first, then on those of a careless demonstrator who *knows* how to add but often forgets the carry, and
often leaves out the `<answer>` tags when the first number is small. So the right, well-formed answer is often not the
greedy one yet within reach of sampling: the state in which reinforcement learning with a verifiable reward helps.

With --teacher DIR it makes a teacher for scripts/on_policy_distillation.py instead, of the same tokenizer and shape,
warmed up on right answers only, so that its greedy answer is right on at least 0.95 of the held-out sums.

Deliberately left out: any hub access, any evaluation beyond held-out accuracy, any setting the repository does not use.

    python assets/make_tiny_lm.py                       # rewrites assets/tiny_lm and assets/data, about three minutes
    python assets/make_tiny_lm.py --out /tmp/lm --seed 1
    python assets/make_tiny_lm.py --data_only           # only the three JSONL files
    python assets/make_tiny_lm.py --teacher runs/teacher        # only a teacher, three minutes

The same seed gives the same bytes on the same machine: one seed drives every draw, and the thread count is fixed.
"""

import argparse
import json
import math
import random
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
SPECIAL = ["<pad>", "<unk>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>"]
CHAT_TEMPLATE = (
    "{% for m in messages %}"
    "{{ '<|' + m['role'] + '|>' }}"
    "{% if m['role'] == 'assistant' %}{% generation %}{{ m['content'] + '<|end|>' }}{% endgeneration %}"
    "{% else %}{{ m['content'] + '<|end|>' }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
SPLIT_SEED = 20  # which pairs are held out does not depend on --seed, so figures of two seeds compare
N_EVAL, N_TRAIN = 256, 4096
CAREFUL_SHARE = 0.5  # of the warm-up; adding has to be learnt before it can be done carelessly
STEPS, TEACHER_STEPS = 2400, 1600


# ---------------------------------------------------------------------------------------------------- data


def split_pairs() -> tuple[list, list]:
    """Return the (held-out, remaining) pairs of all 90 x 90 two-digit sums, disjoint."""
    pairs = [(a, b) for a in range(10, 100) for b in range(10, 100)]
    random.Random(SPLIT_SEED).shuffle(pairs)
    return pairs[:N_EVAL], pairs[N_EVAL:]


def wide_pairs(pairs: list) -> list:
    """The given training pairs with a quarter of them in place of which one operand is below 10.

    The warm-up has none of these: the model is right on 14 % of them, and learns them more slowly than the rest.
    """
    rng = random.Random(SPLIT_SEED)
    small = [(a, b) for a in range(100) for b in range(100) if (a < 10) != (b < 10)]
    mixed = pairs[len(pairs) // 4 :] + rng.sample(small, len(pairs) // 4)
    rng.shuffle(mixed)
    return mixed


def row(a: int, b: int) -> dict:
    """One data row: a chat prompt and its answer; operands have two digits, 07 for 7."""
    return {"prompt": [{"role": "user", "content": f"{a:02}+{b:02}="}], "answer": str(a + b)}


def careless_answer(a: int, b: int, rng: random.Random) -> str:
    """What the careless demonstrator writes for a + b: right about 65 % of the time, tagged about 75 %."""
    right, u = a + b, rng.random()
    forgot_carry = (a // 10 + b // 10) * 10 + (a + b) % 10
    if forgot_carry != right:
        value = forgot_carry if u < 0.56 else right if u < 0.97 else right + rng.choice([-1, 1])
    else:
        value = right if u < 0.86 else right + rng.choice([-1, 1, 10])
    u = rng.random()
    tagged = f"<answer>{value}</answer>"
    if a < 35:  # careless about the tags when the first number is small
        return tagged if u < 0.40 else str(value)
    return tagged if u < 0.90 else str(value) if u < 0.95 else f"<answer>{value}"


def write_rows(path: Path, pairs: list) -> None:
    """Write pairs as JSONL."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row(a, b)) + "\n" for a, b in pairs), encoding="utf-8")


# ---------------------------------------------------------------------------------------------------- model


def build_tokenizer():
    """Return a byte-level fast tokenizer without merges: any text is representable, pad differs from eos."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocab = {token: i for i, token in enumerate(SPECIAL + sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tok = Tokenizer(models.BPE(vocab, [], unk_token="<unk>"))
    tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tok.decoder = decoders.ByteLevel()
    tok.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tok,
        pad_token="<pad>",
        unk_token="<unk>",
        eos_token="<|end|>",
        padding_side="left",
        extra_special_tokens=["<|system|>", "<|user|>", "<|assistant|>"],
        clean_up_tokenization_spaces=False,
        model_max_length=1024,
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast


def build_model(tokenizer, hidden: int, layers: int):
    """Return a randomly initialised Llama with tied embeddings."""
    import torch
    from transformers import AutoModelForCausalLM, LlamaConfig

    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=hidden,
        intermediate_size=3 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        bos_token_id=None,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32)


def encode_batch(tokenizer, pairs: list, rng: random.Random, careful: bool):
    """Tokenize prompts with answers; labels cover the answer and its end token only. Shapes [B, T]."""
    import torch

    user, end, assistant = tokenizer.convert_tokens_to_ids(["<|user|>", "<|end|>", "<|assistant|>"])
    prompts = tokenizer([row(a, b)["prompt"][0]["content"] for a, b in pairs], add_special_tokens=False).input_ids
    texts = [f"<answer>{a + b}</answer>" if careful else careless_answer(a, b, rng) for a, b in pairs]
    answers = tokenizer(texts, add_special_tokens=False).input_ids
    prompts = [[user, *p, end, assistant] for p in prompts]
    answers = [[*a, end] for a in answers]
    width = max(len(p) + len(a) for p, a in zip(prompts, answers, strict=True))
    ids = torch.full((len(pairs), width), tokenizer.pad_token_id)
    labels = torch.full((len(pairs), width), -100)
    for i, (p, a) in enumerate(zip(prompts, answers, strict=True)):
        ids[i, : len(p) + len(a)] = torch.tensor(p + a)
        labels[i, len(p) : len(p) + len(a)] = torch.tensor(a)
    return ids, labels


def warm_up(model, tokenizer, pairs: list, steps: int, batch: int, lr: float, seed: int, careful: float) -> None:
    """Supervised warm-up with AdamW and a cosine schedule: a share `careful` on right answers, then careless ones."""
    import torch
    import torch.nn.functional as F

    rng = random.Random(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.01, fused=True)
    for step in range(steps):
        progress = step / steps
        for group in optimizer.param_groups:
            group["lr"] = lr * min(1.0, (step + 1) / 100) * (0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * progress)))
        ids, labels = encode_batch(tokenizer, rng.choices(pairs, k=batch), rng, careful=progress < careful)
        # right padding and causal attention: real tokens never see the pads, so no mask is needed
        logits = model(input_ids=ids).logits[:, :-1]
        loss = F.cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if (step + 1) % 250 == 0:
            print(f"step {step + 1}/{steps}  loss {loss.item():.4f}", flush=True)


def held_out(model, tokenizer, pairs: list, samples: int = 1, temperature: float = 0.0) -> list[list[str]]:
    """Generate `samples` completions per held-out prompt (greedy at temperature 0) and return their texts."""
    import torch

    enc = tokenizer.apply_chat_template(
        [row(a, b)["prompt"] for a, b in pairs],
        add_generation_prompt=True,
        return_dict=True,
        return_tensors="pt",
        padding=True,
    )
    sampling = {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0} if temperature else {}
    with torch.no_grad():
        out = model.generate(
            **enc,
            max_new_tokens=24,
            num_return_sequences=samples,
            pad_token_id=tokenizer.pad_token_id,
            **(sampling or {"do_sample": False}),
        )
    texts = tokenizer.batch_decode(out[:, enc["input_ids"].shape[1] :], skip_special_tokens=True)
    return [texts[i * samples : (i + 1) * samples] for i in range(len(pairs))]


def report(model, tokenizer, pairs: list) -> dict:
    """Held-out greedy accuracy, tagged share and pass@16 at temperature 1."""
    want = [f"<answer>{a + b}</answer>" for a, b in pairs]
    greedy = [texts[0] for texts in held_out(model, tokenizer, pairs)]
    sampled = held_out(model, tokenizer, pairs, samples=16, temperature=1.0)
    return {
        "greedy_accuracy": sum(g == w for g, w in zip(greedy, want, strict=True)) / len(pairs),
        "greedy_tagged": sum(g.startswith("<answer>") and g.endswith("</answer>") for g in greedy) / len(pairs),
        "sampled_accuracy": sum(s.count(w) for s, w in zip(sampled, want, strict=True)) / (16 * len(pairs)),
        "pass_at_16": sum(w in s for s, w in zip(sampled, want, strict=True)) / len(pairs),
    }


def main() -> None:
    """Parse flags, write the data, warm the model up, save it, print the report as JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--out", type=Path, default=HERE / "tiny_lm", help="checkpoint folder")
    parser.add_argument("--teacher", type=Path, metavar="DIR", help="write only a teacher, into this new folder")
    parser.add_argument("--data_out", type=Path, default=HERE / "data", help="folder of the three JSONL files")
    parser.add_argument("--data_only", action="store_true", help="write the data and stop")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, help=f"default: {STEPS}, for a teacher {TEACHER_STEPS}")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--layers", type=int, default=2)
    args = parser.parse_args()

    if args.teacher and args.teacher.exists() and any(args.teacher.iterdir()):
        parser.error(f"got --teacher {args.teacher}, which is not empty; expected a new folder")

    evaluation, rest = split_pairs()
    if not args.teacher:
        write_rows(args.data_out / "arithmetic_eval.jsonl", evaluation)
        write_rows(args.data_out / "arithmetic_train.jsonl", rest[:N_TRAIN])
        write_rows(args.data_out / "arithmetic_wide.jsonl", wide_pairs(rest[:N_TRAIN]))
    if args.data_only:
        return

    import torch

    start = time.time()
    torch.manual_seed(args.seed)
    torch.set_num_threads(1 if args.teacher else 2)  # on a busy machine a second thread costs more than it gives
    tokenizer = build_tokenizer()
    model = build_model(tokenizer, args.hidden, args.layers)
    steps, careful = args.steps or (TEACHER_STEPS if args.teacher else STEPS), 1.0 if args.teacher else CAREFUL_SHARE
    warm_up(model, tokenizer, rest, steps, args.batch, args.lr, args.seed, careful)
    model.eval()
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.save_pretrained(args.teacher or args.out)
    tokenizer.save_pretrained(args.teacher or args.out)
    parameters = sum(p.numel() for p in model.parameters())
    print(
        json.dumps(
            {"parameters": parameters, "seconds": round(time.time() - start), **report(model, tokenizer, evaluation)}
        )
    )


if __name__ == "__main__":
    main()
