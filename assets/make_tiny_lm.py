#!/usr/bin/env python3
# /// script
# requires-python = ">=3.11"
# dependencies = ["torch>=2.6", "transformers>=5,<6", "tokenizers"]
# ///
"""Make the embedded model and data: a tiny chat model that adds two numbers unreliably.

The model is a real Hugging Face checkpoint (Llama architecture, byte-level tokenizer, chat template). It is warmed up
on right answers first, then on those of a careless demonstrator who *knows* how to add but often forgets the carry, and
often leaves out the `<answer>` tags when the first number is small. So the right, well-formed answer is often not the
greedy one, but sampling can reach it: the state in which reinforcement learning with a verifiable reward helps.

With --teacher DIR it makes a teacher for scripts/on_policy_distillation.py instead, of the same tokenizer and shape,
warmed up on right answers only, so that its greedy answer is right on at least 0.95 of the held-out sums.

With --unable DIR it makes a model for scripts/warm_start.py, of the same tokenizer and shape, that has all but
forgotten the format: it learns right answers, half of them with the tags, and then for as long right answers without.
About one completion in 60,000 has full marks, too few for RL to find.

With --tools it makes the model of `make demo-tools` and its data: products of two three-digit numbers, which two layers
cannot compute, and the tools of examples/environments.py:Calculator. All demonstrations are right. Of the last ones,
only one in eight calls the calculator; the others state the product at once, which the model can only guess.

Deliberately left out: any hub access, any evaluation beyond held-out accuracy, any setting the repository does not use.

    python assets/make_tiny_lm.py                       # rewrites assets/tiny_lm and assets/data, about three minutes
    python assets/make_tiny_lm.py --out /tmp/lm --seed 1
    python assets/make_tiny_lm.py --data_only           # only the three JSONL files
    python assets/make_tiny_lm.py --teacher runs/teacher        # only a teacher, three minutes
    python assets/make_tiny_lm.py --unable runs/unable          # only a model that needs a warm start, two minutes
    python assets/make_tiny_lm.py --tools               # rewrites assets/tiny_tools_lm and its data, two minutes

The same seed gives the same bytes on the same machine: one seed drives every draw, and the thread count is fixed.
"""

import argparse
import importlib.util
import json
import math
import random
import time
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).resolve().parent
MODEL, TOOLS_MODEL = "tiny_lm", "tiny_tools_lm"
SPECIAL = ["<pad>", "<unk>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>"]
CHAT_TEMPLATE = (
    "{% for m in messages %}"
    "{{ '<|' + m['role'] + '|>' }}"
    "{% if m['role'] == 'assistant' %}{% generation %}{{ m['content'] + '<|end|>' }}{% endgeneration %}"
    "{% else %}{{ m['content'] + '<|end|>' }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
# For --tools: calls in Hermes' form; of each tool the model sees the name and those of its arguments
TOOLS_SPECIAL = ["<|tool|>"]
TOOLS_MARKS = ["<tool_call>", "</tool_call>"]
# the words of a call are tokens, as in any tokenizer that has read JSON; digits are tokens of their own
TOOLS_WORDS = ["name", "arguments", "calculate", "expression", "submit", "answer", '{"', '":', 'Ġ"', '",', '"}}']
TOOLS_TEMPLATE = (
    "{% if tools %}<|system|>{% for t in tools %}"
    "{{ t.function.name }}({{ t.function.parameters.properties | join(', ') }})"
    "{{ '' if loop.last else '\n' }}{% endfor %}<|end|>{% endif %}"
    "{% for m in messages %}"
    "{{ '<|' + m.role + '|>' }}"
    "{% if m.role == 'assistant' %}{% generation %}{{ m.content }}"
    "{% for c in m.tool_calls %}<tool_call>\n"
    '{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}'
    "\n</tool_call>{% endfor %}<|end|>{% endgeneration %}"
    "{% else %}{{ m.content + '<|end|>' }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
SPLIT_SEED = 20  # which pairs are held out does not depend on --seed, so figures of two seeds compare
N_EVAL, N_TRAIN = 256, 4096
CAREFUL_SHARE = 0.5  # of the warm-up; adding has to be learnt before it can be done carelessly
TAGGED = 0.5  # of the warm-up with --unable, in which half of the answers have the tags
STEPS, TEACHER_STEPS, UNABLE_STEPS, TOOLS_STEPS = 2400, 1600, 1200, 700
HIDDEN, TOOLS_HIDDEN = 128, 64
BATCH, TOOLS_BATCH = 64, 32  # its rows are three times as long
N_PRODUCTS = 1024
# Up to which part of the warm-up with tools which share of demonstrations calls: first copying has to be learnt, then
# telling the numbers of a call from those of a guess, and last, at a low learning rate, how often to call
CALLING = ((0.45, 1.0), (0.85, 0.5), (1.0, 1 / 8))


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


def split_products() -> tuple[list, list]:
    """Return (held-out, training) pairs of three-digit numbers, disjoint; the warm-up draws from all but the former."""
    pairs = [(a, b) for a in range(100, 1000) for b in range(100, 1000)]
    pairs = random.Random(SPLIT_SEED).sample(pairs, N_EVAL + N_PRODUCTS)
    return pairs[:N_EVAL], pairs[N_EVAL:]


def product_row(a: int, b: int) -> dict:
    """One data row of the task with tools."""
    return {"prompt": [{"role": "user", "content": f"{a}*{b}="}], "answer": str(a * b)}


def write_rows(path: Path, rows: list[dict]) -> None:
    """Write rows as JSONL."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(one) + "\n" for one in rows), encoding="utf-8")


def write_data(folder: Path, evaluation: list, rest: list, tools: bool) -> None:
    """Write the held-out and the training rows."""
    if tools:
        write_rows(folder / "products_eval.jsonl", [product_row(a, b) for a, b in evaluation])
        write_rows(folder / "products_train.jsonl", [product_row(a, b) for a, b in rest])
        return
    write_rows(folder / "arithmetic_eval.jsonl", [row(a, b) for a, b in evaluation])
    write_rows(folder / "arithmetic_train.jsonl", [row(a, b) for a, b in rest[:N_TRAIN]])
    write_rows(folder / "arithmetic_wide.jsonl", [row(a, b) for a, b in wide_pairs(rest[:N_TRAIN])])


# ---------------------------------------------------------------------------------------------------- model


def word_merges(words: list[str]) -> list[tuple[str, str]]:
    """Merges that make each word one token, from its left end on."""
    return list(dict.fromkeys((word[:end], word[end]) for word in words for end in range(1, len(word))))


def build_tokenizer(tools: bool = False):
    """Return a byte-level fast tokenizer: any text is representable, pad differs from eos; merges only with tools."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    special, merges = SPECIAL + TOOLS_SPECIAL * tools, word_merges(TOOLS_WORDS) if tools else []
    tokens = special + sorted(pre_tokenizers.ByteLevel.alphabet()) + ["".join(pair) for pair in merges]
    tok = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges, unk_token="<unk>"))
    tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=tools)
    if tools:
        digits = pre_tokenizers.Digits(individual_digits=True)
        tok.pre_tokenizer = pre_tokenizers.Sequence([digits, tok.pre_tokenizer])
    tok.decoder = decoders.ByteLevel()
    tok.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    tok.add_tokens([AddedToken(token, special=False, normalized=False) for token in TOOLS_MARKS * tools])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tok,
        pad_token="<pad>",
        unk_token="<unk>",
        eos_token="<|end|>",
        padding_side="left",
        extra_special_tokens=special[SPECIAL.index("<|system|>") :],
        clean_up_tokenization_spaces=False,
        model_max_length=1024,
    )
    fast.chat_template = TOOLS_TEMPLATE if tools else CHAT_TEMPLATE
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


def padded(tokenizer, rows: list[list[int]], labels: list[list[int]]):
    """Ids and labels, padded on the right. Shapes [B, T]."""
    import torch

    size = (len(rows), max(map(len, rows)))
    ids, wanted = torch.full(size, tokenizer.pad_token_id), torch.full(size, -100)
    for i, (row, label) in enumerate(zip(rows, labels, strict=True)):
        ids[i, : len(row)], wanted[i, : len(row)] = torch.tensor(row), torch.tensor(label)
    return ids, wanted


def encode_batch(tokenizer, pairs: list, texts: list[str]):
    """Tokenize prompts with answers; labels cover the answer and its end token only. Shapes [B, T]."""
    user, end, assistant = tokenizer.convert_tokens_to_ids(["<|user|>", "<|end|>", "<|assistant|>"])
    prompts = tokenizer([row(a, b)["prompt"][0]["content"] for a, b in pairs], add_special_tokens=False).input_ids
    answers = tokenizer(texts, add_special_tokens=False).input_ids
    prompts = [[user, *p, end, assistant] for p in prompts]
    answers = [[*a, end] for a in answers]
    whole = [p + a for p, a in zip(prompts, answers, strict=True)]
    return padded(tokenizer, whole, [[-100] * len(p) + a for p, a in zip(prompts, answers, strict=True)])


def sums(tokenizer, pairs: list, batch: int, seed: int, careful: float) -> Callable:
    """Batches of sums: a share `careful` of the warm-up on right answers, then careless ones."""
    rng = random.Random(seed)

    def draw(progress: float):
        chosen, right = rng.choices(pairs, k=batch), progress < careful
        texts = [f"<answer>{a + b}</answer>" if right else careless_answer(a, b, rng) for a, b in chosen]
        return encode_batch(tokenizer, chosen, texts)

    return draw


def forgotten_tags(tokenizer, pairs: list, batch: int, seed: int) -> Callable:
    """Batches of right sums: half of them with the tags in the share TAGGED of the warm-up, none later."""
    rng = random.Random(seed)

    def draw(progress: float):
        chosen, share = rng.choices(pairs, k=batch), 0.5 if progress <= TAGGED else 0.0
        texts = [f"<answer>{a + b}</answer>" if rng.random() < share else str(a + b) for a, b in chosen]
        return encode_batch(tokenizer, chosen, texts)

    return draw


def tool_schemas() -> list[dict]:
    """The calculator's tools as a trainer finds them."""
    from transformers.utils import get_json_schema

    spec = importlib.util.spec_from_file_location("example_environments", HERE.parent / "examples" / "environments.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return [get_json_schema(getattr(module.Calculator(), name)) for name in ("calculate", "submit")]


def talk_form(tokenizer, calls: bool) -> str:
    """The text of a conversation in which A*B is VALUE, by the chat template."""

    def use(name: str, argument: dict, result: str) -> list[dict]:
        call = {"type": "function", "function": {"name": name, "arguments": argument}}
        return [{"role": "assistant", "content": "", "tool_calls": [call]}, {"role": "tool", "content": result}]

    messages = [{"role": "user", "content": "A*B="}]
    messages += use("calculate", {"expression": "A*B"}, "VALUE") if calls else []
    messages += use("submit", {"answer": "VALUE"}, "Submitted.")
    messages += [{"role": "assistant", "content": "Done."}]
    return tokenizer.apply_chat_template(messages, tools=tool_schemas(), tokenize=False)


def talk_text(form: str, a: int, b: int) -> str:
    """A conversation about a times b."""
    return form.replace("A*B", f"{a}*{b}").replace("VALUE", str(a * b))


def answer_labels(tokenizer, row: list[int]) -> list[int]:
    """The ids of the assistant's answers with the tokens that end them, and -100 elsewhere."""
    end, assistant = tokenizer.convert_tokens_to_ids(["<|end|>", "<|assistant|>"])
    labels, speaks = [], False
    for token in row:
        labels.append(token if speaks else -100)
        speaks = token != end if speaks else token == assistant
    return labels


def talks(tokenizer, held_out: list, batch: int, seed: int) -> Callable:
    """Batches of conversations, of which the share of CALLING calls."""
    rng, kept_apart = random.Random(seed), {*held_out}
    direct, called = (talk_form(tokenizer, calls) for calls in (False, True))

    def draw(progress: float):
        texts, share = [], next(share for end, share in CALLING if progress < end)
        while len(texts) < batch:
            pair = rng.randrange(100, 1000), rng.randrange(100, 1000)
            calls = rng.random() < share
            texts += [talk_text(called if calls else direct, *pair)] if pair not in kept_apart else []
        rows = tokenizer(texts, add_special_tokens=False).input_ids
        return padded(tokenizer, rows, [answer_labels(tokenizer, one) for one in rows])

    return draw


def warm_up(model, draw: Callable, steps: int, lr: float) -> None:
    """Supervised warm-up with AdamW and a cosine schedule, on what `draw` gives for the progress of 0 to 1."""
    import torch
    import torch.nn.functional as F

    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.01, fused=True)
    for step in range(steps):
        progress = step / steps
        for group in optimizer.param_groups:
            group["lr"] = lr * min(1.0, (step + 1) / 100) * (0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * progress)))
        ids, labels = draw(progress)
        # right padding and causal attention: real tokens never see the pads, so no mask is needed
        logits = model(input_ids=ids).logits[:, :-1]
        loss = F.cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if (step + 1) % 100 == 0:
            print(f"step {step + 1}/{steps}  loss {loss.item():.4f}", flush=True)


def completions(model, tokenizer, prompts: list[str], samples: int = 1, temperature: float = 0.0, tokens: int = 24):
    """`samples` completions of each prompt (greedy at temperature 0), without special tokens."""
    import torch

    enc = tokenizer(prompts, add_special_tokens=False, return_tensors="pt", padding=True)
    sampling = {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0} if temperature else {}
    with torch.no_grad():
        out = model.generate(
            **enc,
            max_new_tokens=tokens,
            num_return_sequences=samples,
            pad_token_id=tokenizer.pad_token_id,
            **(sampling or {"do_sample": False}),
        )
    texts = tokenizer.batch_decode(out[:, enc["input_ids"].shape[1] :], skip_special_tokens=True)
    return [texts[i * samples : (i + 1) * samples] for i in range(len(prompts))]


def report(model, tokenizer, pairs: list) -> dict:
    """Held-out greedy accuracy, tagged share and pass@16 at temperature 1."""
    want = [f"<answer>{a + b}</answer>" for a, b in pairs]
    rows = [row(a, b)["prompt"] for a, b in pairs]
    prompts = tokenizer.apply_chat_template(rows, add_generation_prompt=True, tokenize=False)
    greedy = [texts[0] for texts in completions(model, tokenizer, prompts)]
    sampled = completions(model, tokenizer, prompts, samples=16, temperature=1.0)
    return {
        "greedy_accuracy": sum(g == w for g, w in zip(greedy, want, strict=True)) / len(pairs),
        "greedy_tagged": sum(g.startswith("<answer>") and g.endswith("</answer>") for g in greedy) / len(pairs),
        "sampled_accuracy": sum(s.count(w) for s, w in zip(sampled, want, strict=True)) / (16 * len(pairs)),
        "pass_at_16": sum(w in s for s, w in zip(sampled, want, strict=True)) / len(pairs),
    }


def tools_report(model, tokenizer, pairs: list) -> dict:
    """Held-out shares: calls and right answers at once, sampled and greedy; right answers where a result is given."""

    def shown(calls: bool, number: int) -> tuple[list[str], list[str]]:
        """The texts before the assistant's answer of this number, and the answers."""
        form = talk_form(tokenizer, calls)
        parts = [talk_text(form, a, b).split("<|assistant|>") for a, b in pairs]
        before = ["<|assistant|>".join([*part[:number], ""]) for part in parts]
        return before, [part[number].split("<|end|>")[0] for part in parts]

    def share(found: list[list[str]], wanted: list[str]) -> float:
        """How many of all the texts are those that are wanted."""
        return sum(f.count(w) for f, w in zip(found, wanted, strict=True)) / sum(map(len, found))

    (prompts, right), (_, call), (with_result, copied) = shown(False, 1), shown(True, 1), shown(True, 2)
    greedy = completions(model, tokenizer, prompts, tokens=32)
    sampled = completions(model, tokenizer, prompts, samples=16, temperature=1.0, tokens=32)
    return {
        "greedy_right_calls": share(greedy, call),
        "greedy_right_at_once": share(greedy, right),
        "sampled_right_calls": share(sampled, call),
        "sampled_right_at_once": share(sampled, right),
        "greedy_right_after_result": share(completions(model, tokenizer, with_result, tokens=32), copied),
    }


def main() -> None:
    """Parse flags, write the data, warm the model up, save it, print the report as JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--out", type=Path, help=f"checkpoint folder, default: {MODEL}, with --tools {TOOLS_MODEL}")
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--teacher", type=Path, metavar="DIR", help="write only a teacher, into this new folder")
    kind.add_argument("--unable", type=Path, metavar="DIR", help="write only a model that needs a warm start, there")
    kind.add_argument("--tools", action="store_true", help="write the model and the data of make demo-tools instead")
    parser.add_argument("--data_out", type=Path, default=HERE / "data", help="folder of the JSONL files")
    parser.add_argument("--data_only", action="store_true", help="write the data and stop")
    parser.add_argument("--seed", type=int, default=0)
    steps = f"default: {STEPS}, for a teacher {TEACHER_STEPS}, with --unable {UNABLE_STEPS}, with --tools {TOOLS_STEPS}"
    parser.add_argument("--steps", type=int, help=steps)
    parser.add_argument("--batch", type=int, help=f"default: {BATCH}, with --tools {TOOLS_BATCH}")
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--hidden", type=int, help=f"default: {HIDDEN}, with --tools {TOOLS_HIDDEN}")
    parser.add_argument("--layers", type=int, default=2)
    args = parser.parse_args()

    alone = args.teacher or args.unable
    if alone and alone.exists() and any(alone.iterdir()):
        parser.error(
            f"got --{'teacher' if args.teacher else 'unable'} {alone}, which is not empty; expected a new folder"
        )

    evaluation, rest = split_products() if args.tools else split_pairs()
    if not alone:
        write_data(args.data_out, evaluation, rest, args.tools)
    if args.data_only:
        return

    import torch

    start = time.time()
    torch.manual_seed(args.seed)
    # on a busy machine a second thread costs more than it gives
    torch.set_num_threads(1 if alone or args.tools else 2)
    tokenizer = build_tokenizer(args.tools)
    model = build_model(tokenizer, args.hidden or (TOOLS_HIDDEN if args.tools else HIDDEN), args.layers)
    if args.tools:
        steps, draw = TOOLS_STEPS, talks(tokenizer, evaluation, args.batch or TOOLS_BATCH, args.seed)
    elif args.unable:
        steps, draw = UNABLE_STEPS, forgotten_tags(tokenizer, rest, args.batch or BATCH, args.seed)
    else:
        steps, careful = (TEACHER_STEPS, 1.0) if args.teacher else (STEPS, CAREFUL_SHARE)
        draw = sums(tokenizer, rest, args.batch or BATCH, args.seed, careful)
    warm_up(model, draw, args.steps or steps, args.lr)
    model.eval()
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    out = alone or args.out or HERE / (TOOLS_MODEL if args.tools else MODEL)
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    parameters, shares = sum(p.numel() for p in model.parameters()), tools_report if args.tools else report
    result = {"parameters": parameters, "seconds": round(time.time() - start), **shares(model, tokenizer, evaluation)}
    print(json.dumps(result))


if __name__ == "__main__":
    main()
