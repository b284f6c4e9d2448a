#!/usr/bin/env python3
"""Make what tests/test_evaluation.py compares with: two tiny models, small data, and lm-evaluation-harness's numbers.

The models are trained for some minutes to write GSM8K-style solutions, right in part, so that no column is all 0 or 1:
`bos` has a BOS that its tokenizer adds and no pad token; `plain` has no BOS. Their weights are stored in float16 and
loaded as float32 by both sides. The data are made here too, from a seed.

    python make_oracle.py models                        # with torch and transformers: models and data
    python -m venv V && V/bin/pip install torch==2.13.0 && V/bin/pip install lm-eval==0.4.13 transformers accelerate
    V/bin/python make_oracle.py oracle                  # offline: oracle.json
"""

import json
import random
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
TINY_LM = HERE.parents[2] / "assets" / "tiny_lm"
MODELS = ("bos", "plain")
CHAT = (
    "{% for m in messages %}{{ '<|' + m['role'] + '|>' + m['content'] + '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
THINGS, NAMES = ["pens", "nuts", "cups", "eggs"], ["Ann", "Bob", "Eve", "Tom"]
MAX_NEW = 40


def problem(rng: random.Random) -> dict:
    """One problem whose solution ends in GSM8K's form, some with a thousands separator."""
    a, b = (rng.randrange(1, 10) for _ in range(2))
    if rng.random() < 0.25:
        a *= 1000
    name, thing, total = rng.choice(NAMES), rng.choice(THINGS), a + b
    return {
        "question": f"{name} has {a} {thing} and gets {b}. How many?",
        "answer": f"{a}+{b}={total}\n#### {total:,}",
    }


def document(rng: random.Random) -> str:
    """A training text: problems as few-shot text or as a chat."""
    rows = [problem(rng) for _ in range(rng.randrange(1, 5))]
    if rng.random() < 0.6:
        return "\n\n".join(f"Question: {r['question']}\nAnswer: {r['answer']}" for r in rows) + "\n\nQuestion:"
    return "".join(f"<|user|>Question: {r['question']}\nAnswer:<|end|><|assistant|>{r['answer']}<|end|>" for r in rows)


def make_data() -> None:
    """Write problems, shots, choices and texts."""
    rng = random.Random(7)
    problems = [problem(rng) for _ in range(60)]
    problems[11]["question"] = "It rains. " * 50 + problems[11]["question"]  # longer than the context
    words = "the cat sat on a mat and saw two red birds fly over some old house near blue sea".split()
    choices = []
    for _ in range(40):
        options = [" ".join(rng.sample(words, rng.randrange(1, 5))) for _ in range(4)]
        options[rng.randrange(4)] = str(rng.randrange(100))
        choices.append({"question": problem(rng)["question"], "choices": options, "answer": rng.randrange(4)})
    texts = []
    for length in (1, 3, 9, 20, 40, 60, 90, 150, 200, 260, 400):
        text = " ".join(rng.choice([*words, "Ünïcode", "42", "\n"]) for _ in range(length))
        texts.append({"text": text})
    for name, rows in {
        "shots": [problem(rng) for _ in range(3)],
        **{"problems": problems, "choices": choices, "texts": texts},
    }.items():
        (HERE / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def make_model(name: str, seed: int, steps: int = 1200) -> None:
    """Train and store one model."""
    import torch
    from tokenizers import Tokenizer, processors
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    torch.manual_seed(seed)
    core = Tokenizer.from_file(str(TINY_LM / "tokenizer.json"))
    special = {"unk_token": "<unk>", "eos_token": "<|end|>"}
    template = CHAT
    if name == "bos":
        core.add_special_tokens(["<s>"])
        core.post_processor = processors.TemplateProcessing(
            single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", core.token_to_id("<s>"))]
        )
        special["bos_token"], template = "<s>", "{{ bos_token }}" + CHAT
    else:
        special["pad_token"] = "<pad>"
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, clean_up_tokenization_spaces=False, **special)
    tokenizer.chat_template = template
    config = LlamaConfig(
        vocab_size=len(core.get_vocab()), hidden_size=48, intermediate_size=128, num_hidden_layers=3, head_dim=12,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=480, tie_word_embeddings=True,
        bos_token_id=core.token_to_id("<s>"), eos_token_id=2, pad_token_id=None if name == "bos" else 0,
    )  # fmt: skip
    model, rng = LlamaForCausalLM(config), random.Random(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=4e-3, total_steps=steps)
    for step in range(steps):
        rows = [tokenizer.encode(document(rng))[:300] for _ in range(16)]
        width = max(map(len, rows))
        ids = torch.tensor([r + [0] * (width - len(r)) for r in rows])
        mask = torch.tensor([[1] * len(r) + [0] * (width - len(r)) for r in rows])
        loss = model(input_ids=ids, attention_mask=mask, labels=ids.masked_fill(mask == 0, -100)).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 200 == 0 or step == steps - 1:
            print(name, step, round(loss.item(), 3), flush=True)
    model.half().save_pretrained(HERE / name)
    tokenizer.save_pretrained(HERE / name)


GSM8K = """
doc_to_text: "Question: {{question}}\\nAnswer:"
doc_to_target: "{{answer}}"
output_type: generate_until
generation_kwargs: {until: ["Question:", "</s>", "<|im_end|>"], do_sample: false, temperature: 0.0, max_gen_toks: MAX}
metric_list:
  - {metric: exact_match, aggregation: mean, higher_is_better: true, ignore_case: true, ignore_punctuation: false,
     regexes_to_ignore: [",", "\\\\$", "(?s).*#### ", "\\\\.$"]}
filter_list:
  - {name: strict-match, filter: [{function: regex, regex_pattern: '#### (\\-?[0-9\\.\\,]+)'}, {function: take_first}]}
  - {name: flexible-extract, filter: [{function: regex, group_select: -1,
     regex_pattern: '(-?[$0-9.,]{2,})|(-?[0-9]+)'}, {function: take_first}]}
fewshot_split: train
fewshot_config: {sampler: first_n}
""".replace("MAX", str(MAX_NEW))
CHOICES = """
doc_to_text: "Question: {{question}}\\nAnswer:"
doc_to_choice: "{{choices}}"
doc_to_target: answer
output_type: multiple_choice
metric_list: [{metric: acc, aggregation: mean}, {metric: acc_norm, aggregation: mean}]
"""
TEXTS = """
doc_to_text: ""
doc_to_target: "{{text}}"
output_type: loglikelihood_rolling
metric_list: [{metric: word_perplexity}, {metric: byte_perplexity}, {metric: bits_per_byte}]
"""


def task_files(folder: Path, data: Path = HERE) -> None:
    """Write the local tasks; `data` holds problems, shots, choices and texts."""
    for name, body, files in (
        ("problems", GSM8K, {"test": "problems", "train": "shots"}),
        ("choices", CHOICES, {"test": "choices"}),
        ("texts", TEXTS, {"test": "texts"}),
    ):
        lines = [f"task: own_{name}", "dataset_path: json", "dataset_kwargs:", "  data_files:"]
        lines += [f"    {split}: {data / file}.jsonl" for split, file in files.items()]
        lines += ["test_split: test", *["training_split: train"] * ("train" in files), body]
        (folder / f"own_{name}.yaml").write_text("\n".join(lines))


def ask_harness(model: str, task: str, batch_size: int, folder: str, **settings) -> dict:
    """Results of one task."""
    from lm_eval import simple_evaluate
    from lm_eval.tasks import TaskManager

    manager = TaskManager(include_path=folder, include_defaults=False)
    arguments = {"pretrained": model, "dtype": "float32"}
    return simple_evaluate(
        "hf", arguments, [f"own_{task}"], batch_size=batch_size, device="cpu", task_manager=manager,
        bootstrap_iters=0, **settings,
    )  # fmt: skip


def oracle() -> None:
    """Write oracle.json."""
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        task_files(Path(folder))
        for name in MODELS:
            for shots in (0, 3):
                for chat in (False, True):
                    for size in (1, 64):
                        settings = {"num_fewshot": shots, "apply_chat_template": chat, "fewshot_as_multiturn": True}
                        out = ask_harness(str(HERE / name), "problems", size, folder, **settings)
                        rows = {"strict-match": {}, "flexible-extract": {}}
                        texts = {}
                        for s in out["samples"]["own_problems"]:
                            rows[s["filter"]][s["doc_id"]] = (s["filtered_resps"][0], s["exact_match"])
                            texts[s["doc_id"]] = s["resps"][0][0]
                        found[f"{name} problems {shots} {'chat' if chat else 'text'} {size}"] = {
                            "texts": [texts[i] for i in sorted(texts)],
                            **{key: [value[i] for i in sorted(value)] for key, value in rows.items()},
                        }
            for chat in (False, True):
                for size in (1, 64):
                    out = ask_harness(str(HERE / name), "choices", size, folder, apply_chat_template=chat)
                    rows = {s["doc_id"]: s for s in out["samples"]["own_choices"]}
                    found[f"{name} choices {'chat' if chat else 'text'} {size}"] = {
                        "logprobs": [[r[0] for r in rows[i]["filtered_resps"]] for i in sorted(rows)],
                        "acc": [rows[i]["acc"] for i in sorted(rows)],
                        "acc_norm": [rows[i]["acc_norm"] for i in sorted(rows)],
                    }
            for size in (1, 64):
                out = ask_harness(str(HERE / name), "texts", size, folder)["results"]["own_texts"]
                keys = ("word_perplexity", "byte_perplexity", "bits_per_byte")
                found[f"{name} texts {size}"] = {key: out[f"{key},none"] for key in keys}
    (HERE / "oracle.json").write_text(json.dumps(found, indent=0) + "\n")


def main() -> None:
    """Command line entry."""
    if sys.argv[1:] == ["models"]:
        make_data()
        for seed, name in enumerate(MODELS):
            make_model(name, seed)
    elif sys.argv[1:] == ["oracle"]:
        oracle()
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main()
