#!/usr/bin/env python3
"""Compare how well second attempts are learned under different baselines and data, as a Markdown table.

The embedded model never gets a second answer right. The start model is made from it by supervised steps on its own
first answers and, after wrong ones, on second answers of which a quarter is right. Each arm trains the start model with
`SecondAttempt` (1 for a right first answer, 0.5 for a right second one). Then all models, the start included, get the
same held-out conversations: a sum, a wrong first answer sampled from the start model, "Wrong. Try again.". `second` is
the share of right answers among 8 samples at temperature 1 for each; `first` is the share of right greedy first
answers. The arm `retry` adds rows whose prompt is such a conversation (of training sums), with their own group and
baseline. `turn_tokens` is `turn` with the mean over tokens. The arms `page…` are templates/multi_turn.py with its
changes, the others scripts/ppo_train.py.

    python benchmarks/second_attempts.py --seeds 0 1 2 3 4 --arms conversation turn turn_tokens page page_turn_tokens
    python benchmarks/second_attempts.py --seeds 0 --arms page_turn_tokens --steps 2 --start_steps 20    # a trial
"""

import argparse
import itertools
import json
import os
import random
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
import transformers

ROOT = Path(__file__).resolve().parent.parent
EMBEDDED, DATA = ROOT / "assets" / "tiny_lm", ROOT / "assets" / "data"
SAID, DRAWS = "Wrong. Try again.", 8
ARMS = {
    "conversation": ["--algorithm", "grpo", "--kl_coef", "0.04"],
    "turn": ["--algorithm", "grpo", "--kl_coef", "0.04", "--turn_baseline", "turn"],
    "turn_tokens": [
        "--algorithm",
        "grpo",
        "--kl_coef",
        "0.04",
        "--turn_baseline",
        "turn",
        "--aggregation",
        "token_mean",
    ],
    "critic": ["--algorithm", "ppo"],
    "retry": ["--algorithm", "grpo", "--kl_coef", "0.04"],
}
PAGE_ARMS = {  # with changes of new_trainer.py
    "page": [],
    "page_turn": ["--turn_baseline", "turn"],
    "page_turn_tokens": ["--turn_baseline", "turn", "--change", "token_mean"],
}
MIXED = '''
import sys
sys.path.insert(0, {folder!r})
from environments import SecondAttempt


class LastAttempt(SecondAttempt):
    """Rows that begin after a wrong answer: 1 for a right one."""

    def reply(self, text: str) -> None:
        """Hear the answer.

        Args:
            text: The answer.
        """
        super().reply(text)

BOTH = {{"first": SecondAttempt, "last": LastAttempt}}
'''


def read(name: str) -> list[dict]:
    """Rows of a file in assets/data."""
    return [json.loads(line) for line in (DATA / name).read_text().splitlines()]


def answers(model, tokenizer, conversations: list[list[dict]], sample: bool) -> list[str]:
    """One answer to each conversation."""
    texts = [tokenizer.apply_chat_template(c, tokenize=False, add_generation_prompt=True) for c in conversations]
    batch = tokenizer(texts, return_tensors="pt", padding=True, padding_side="left", add_special_tokens=False)
    drawn = {"do_sample": True, "temperature": 1.0, "top_k": 0} if sample else {"do_sample": False}
    with torch.no_grad():
        ids = model.generate(**batch, max_new_tokens=32, **drawn)
    return tokenizer.batch_decode(ids[:, batch["input_ids"].shape[1] :], skip_special_tokens=True)


def is_right(text: str, row: dict) -> bool:
    """Whether the last tagged answer is the row's."""
    tagged = re.findall(r"<answer>([^<]*)</answer>", text)
    return bool(tagged) and tagged[-1].strip() == row["answer"]


def first_answers(rows: list[dict], draws: int) -> list[tuple[dict, str]]:
    """Rows with first answers of the embedded model, drawn at temperature 1."""
    model, tokenizer = load(EMBEDDED)
    torch.manual_seed(0)
    again = [row for row in rows for _ in range(draws)]
    return list(zip(again, answers(model, tokenizer, [row["prompt"] for row in again], sample=True), strict=True))


def make_start(folder: Path, steps: int) -> None:
    """Teach the embedded model second answers, a quarter of them right, and keep its first answers as they are."""
    model, tokenizer = load(EMBEDDED)
    draw, rows = random.Random(0), []
    for row, text in first_answers(read("arithmetic_train.jsonl")[:1024], 2):
        turns = [*row["prompt"], {"role": "assistant", "content": text}]
        if not is_right(text, row):
            other = int(row["answer"]) + (0 if draw.random() < 0.25 else draw.choice([-11, -10, -1, 1, 10, 11]))
            turns += [{"role": "user", "content": SAID}, {"role": "assistant", "content": f"<answer>{other}</answer>"}]
        given = {"return_dict": True, "return_assistant_tokens_mask": True}
        rows.append(tokenizer.apply_chat_template(turns, **given))
    optimizer = torch.optim.AdamW(model.train().parameters(), lr=1e-3)
    for _ in range(steps):
        chosen = draw.sample(rows, 64)
        width = max(len(row["input_ids"]) for row in chosen)
        ids = torch.tensor([row["input_ids"] + [0] * (width - len(row["input_ids"])) for row in chosen])
        mask = torch.tensor([row["assistant_masks"] + [0] * (width - len(row["input_ids"])) for row in chosen])
        labels = torch.where(mask.bool(), ids, -100)
        model(input_ids=ids, labels=labels).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def failed(rows: list[dict], start: Path) -> list[tuple[dict, list[dict]]]:
    """Rows as conversations that continue after a wrong answer of the start model; rows it always solves are out."""
    model, tokenizer = load(start)
    torch.manual_seed(0)
    open_rows, found = list(rows), []
    for _ in range(8):
        said = answers(model, tokenizer, [row["prompt"] for row in open_rows], sample=True)
        wrong = [not is_right(text, row) for text, row in zip(said, open_rows, strict=True)]
        for row, text, bad in zip(open_rows, said, wrong, strict=True):
            turns = [{"role": "assistant", "content": text}, {"role": "user", "content": SAID}]
            found += [(row, [*row["prompt"], *turns])] if bad else []
        open_rows = [row for row, bad in zip(open_rows, wrong, strict=True) if not bad]
    return found


def load(path: Path):
    """Model and tokenizer."""
    model = transformers.AutoModelForCausalLM.from_pretrained(path)
    return model.eval(), transformers.AutoTokenizer.from_pretrained(path)


def probe(path: Path, rows: list[dict], conversations: list) -> tuple[float, float]:
    """Shares of right first answers and right second answers."""
    model, tokenizer = load(path)
    first = answers(model, tokenizer, [row["prompt"] for row in rows], sample=False)
    torch.manual_seed(1)
    again = [pair for pair in conversations for _ in range(DRAWS)]
    second = answers(model, tokenizer, [turns for _, turns in again], sample=True)
    right = sum(map(is_right, first, rows)) / len(rows)
    return right, sum(is_right(text, row) for text, (row, _) in zip(second, again, strict=True)) / len(second)


def train_page(arm: str, seed: int, steps: int, start: Path, folder: Path) -> Path:
    """Write the page with the arm's changes and train with it; return the trained model's folder."""
    page, settings = str(folder / "page.py"), ["--max_turns", "2", "--max_new_tokens", "32"]
    flags = ["--environment", "examples/environments.py:SecondAttempt", "--data", str(DATA / "arithmetic_train.jsonl")]
    flags += ["--model", str(start), "--steps", str(steps), "--seed", str(seed), "--out", f"{folder}/run"]
    about = {"check": True, "capture_output": True, "cwd": ROOT, "env": {"OMP_NUM_THREADS": "1", **os.environ}}
    command = [sys.executable, "scripts/new_trainer.py", "multi_turn", page, *settings, *PAGE_ARMS[arm]]
    subprocess.run(command, **about)
    subprocess.run([sys.executable, page, *flags], **about)
    return folder / "run"


def train(arm: str, seed: int, steps: int, start: Path, folder: Path) -> Path:
    """Run an arm; return the trained model's folder."""
    if arm in PAGE_ARMS:
        return train_page(arm, seed, steps, start, folder)
    flags = ["--environment", "examples/environments.py:SecondAttempt", "--data", str(DATA / "arithmetic_train.jsonl")]
    if arm == "retry":
        rows = read("arithmetic_train.jsonl")
        mixed = [{**row, "environment": "first"} for row in rows]
        mixed += [{**row, "prompt": turns, "environment": "last"} for row, turns in failed(rows[:1024], start)]
        random.Random(seed).shuffle(mixed)
        (folder / "mixed.jsonl").write_text("".join(json.dumps(row) + "\n" for row in mixed))
        held = [{**row, "environment": "first"} for row in read("arithmetic_eval.jsonl")]
        (folder / "held.jsonl").write_text("".join(json.dumps(row) + "\n" for row in held))
        (folder / "both.py").write_text(MIXED.format(folder=str(ROOT / "examples")))
        flags = ["--environment", f"{folder}/both.py:BOTH", "--data", f"{folder}/mixed.jsonl"]
        flags += ["--eval_data", f"{folder}/held.jsonl", "--max_prompt_tokens", "128"]
    command = [
        sys.executable,
        "scripts/ppo_train.py",
        "--model",
        str(start),
        *flags,
        *ARMS[arm],
        "--max_turns",
        "2",
        "--max_new_tokens",
        "32",
    ]
    command += ["--steps", str(steps), "--seed", str(seed), "--output_dir", f"{folder}/run"]
    subprocess.run(command, check=True, capture_output=True, cwd=ROOT, env={"OMP_NUM_THREADS": "1", **os.environ})
    return folder / "run" / "final"


def main() -> None:
    """Train and probe every arm."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--arms", nargs="+", default=[*ARMS, *PAGE_ARMS], choices=[*ARMS, *PAGE_ARMS])
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--start_steps", type=int, default=300, help="supervised steps that make the start")
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows = read("arithmetic_eval.jsonl")
    with tempfile.TemporaryDirectory() as name:
        start = Path(name, "start")
        make_start(start, args.start_steps)
        conversations = failed(rows, start)
        print(f"{len(conversations)} held-out conversations after a wrong answer\n")
        print("| arm | seed | first | second |\n|---|---|---|---|")
        first, second = probe(start, rows, conversations)
        print(f"| before training | | {first:.3f} | {second:.3f} |", flush=True)
        for arm, seed in itertools.product(args.arms, args.seeds):
            folder = Path(name, f"{arm}_{seed}")
            folder.mkdir()
            first, second = probe(train(arm, seed, args.steps, start, folder), rows, conversations)
            print(f"| {arm} | {seed} | {first:.3f} | {second:.3f} |", flush=True)


if __name__ == "__main__":
    main()
