#!/usr/bin/env python3
"""Make what tests/test_evaluation.py compares with: the numbers of lm-evaluation-harness for two tiny stored models.

The models write GSM8K-style solutions, right in part, so that no column is all 0 or 1: `bos` has a BOS that its
tokenizer adds and no pad token; `plain` has no BOS. Weights are stored in float16 and loaded as float32 by both sides.

    python -m venv V && V/bin/pip install torch==2.13.0 && V/bin/pip install lm-eval==0.4.13 transformers accelerate
    V/bin/python make_oracle.py                         # offline: oracle.json
"""

import json
import random
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
MODELS = ("bos", "plain")
THINGS, NAMES = ["pens", "nuts", "cups", "eggs"], ["Ann", "Bob", "Eve", "Tom"]
MAX_NEW = 40


def problem(rng: random.Random) -> dict:
    """A problem as the models were trained on, whose solution ends in GSM8K's form; some numbers have separators."""
    a, b = (rng.randrange(1, 10) for _ in range(2))
    if rng.random() < 0.25:
        a *= 1000
    name, thing, total = rng.choice(NAMES), rng.choice(THINGS), a + b
    question = f"{name} has {a} {thing} and gets {b}. How many?"
    return {"question": question, "answer": f"{a}+{b}={total}\n#### {total:,}"}


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


if __name__ == "__main__":
    oracle()
