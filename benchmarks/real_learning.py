#!/usr/bin/env python3
"""Train real models on small tasks with ppo_train.py's defaults; print held-out accuracy before and after as a table.

    python benchmarks/real_learning.py --ways grpo --seeds 0 1 2                       # Qwen 0.5B, both tasks
    python benchmarks/real_learning.py --tasks json --ways ppo --seeds 0 --steps 6 -- --group_size 8
    python benchmarks/real_learning.py --model gemma-3-270m --tasks tool --ways grpo   # a base model, string prompts

Model folders lie in --models (default: REAL_MODELS, else ../real_models). Tasks:

    json    a sentence about a person as one line of JSON with three keys; full marks if it parses to those values
    words   sums, differences and products in a sentence; full marks for "The answer is N." with the right N
    tool    a request for a meeting as the JSON of a tool call; full marks for the right call, with or without its tags

Only lengths, batch and steps differ from the defaults. Intervals are Wilson's, 95 %; `rise` says whether they part. GiB
is the peak resident memory of the process. Of a run that does not rise, stderr has what diagnose.py says. Runs go one
after the other; one that has ended (result.json in --output) is not run again.
"""

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NAMES = ["Ann", "Ben", "Carla", "David", "Emma", "Farid", "Grace", "Hugo", "Ines", "Jonas", "Kenji", "Lea"]
CITIES = ["Oslo", "Lima", "Paris", "Cairo", "Delhi", "Quito", "Rome", "Tokyo"]
THINGS = ["apples", "books", "coins", "pens", "stamps", "shells"]
TOKENS = {"json": 24, "words": 16, "tool": 48}
WAYS = {
    "grpo": ["--algorithm", "grpo"],
    "ppo": ["--algorithm", "ppo", "--critic", "shared"],
    "lora": ["--algorithm", "grpo", "--lora_rank", "16"],
}
SYSTEM = {
    "json": 'Reply with one line of JSON with the keys "name" (string), "age" (integer), "city" (string). No Markdown.',
    "words": 'Reply with one short sentence that begins with "The answer is", then the number, and nothing else.',
    "tool": """You may call {"name": "book", "parameters": {"guest": "string", "day": "string", "hour": "integer"}}.
Reply with the call alone: {"name": "book", "arguments": {...}}""",
}
# a base model is shown the form
SHOWN = {
    "json": 'Text: Mia, 44, from Bonn, called.\nJSON: {"name": "Mia", "age": 44, "city": "Bonn"}\n\nText: {}\nJSON:',
    "words": "Q: Mia has 12 hats and buys 15 more. How many hats does Mia have now?\nA: The answer is 27.\n\nQ: {}\nA:",
    "tool": 'Text: Mia at 11 on Sunday.\nCall: {"name": "book", "arguments": '
    '{"guest": "Mia", "day": "Sunday", "hour": 11}}\n\nText: {}\nCall:',
}
REWARDS = '''
import json
import re


def text_of(completion):
    """The text; of a base model, which goes on with another example, the first line."""
    if isinstance(completion, str):
        return completion.strip().split("\\n")[0]
    return completion[-1]["content"].strip()


def one_line_json(completions, answer, **kwargs):
    """1 where the whole completion is one line of JSON with the right values."""
    scores = []
    for completion, gold in zip(completions, answer, strict=True):
        text = text_of(completion)
        try:
            scores.append(float("\\n" not in text and json.loads(text) == json.loads(gold)))
        except ValueError:
            scores.append(0.0)
    return scores


def short_answer(completions, answer, **kwargs):
    """1 where the completion is the sentence with the right number and nothing else."""
    return [float(text_of(c) == f"The answer is {gold}.") for c, gold in zip(completions, answer, strict=True)]


def tool_call(completions, answer, **kwargs):
    """1 where the completion is the right call and nothing else, within its tags or without."""
    scores = []
    for completion, gold in zip(completions, answer, strict=True):
        tagged = re.fullmatch(r"<tool_call>\\s*(.*?)\\s*</tool_call>", text_of(completion), re.DOTALL)
        try:
            right = json.loads(tagged[1] if tagged else text_of(completion)) == json.loads(gold)
        except ValueError:
            right = False
        scores.append(float(right))
    return scores
'''
FUNCTIONS = {"json": "one_line_json", "words": "short_answer", "tool": "tool_call"}
DAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"]


def json_row(draw: random.Random) -> tuple[str, str]:
    """(a sentence about a person, its JSON)."""
    name, city, age = draw.choice(NAMES), draw.choice(CITIES), draw.randint(18, 80)
    sentences = ["{n} is {a} years old and lives in {c}.", "{n}, {a}, from {c}, called today."]
    sentence = draw.choice([*sentences, "In {c} we met {n}, who just turned {a}."])
    return sentence.format(n=name, a=age, c=city), json.dumps({"name": name, "age": age, "city": city})


def words_row(draw: random.Random) -> tuple[str, str]:
    """(a word problem of one step, its answer)."""
    name, thing, kind = draw.choice(NAMES), draw.choice(THINGS), draw.randrange(3)
    a, b = (draw.randint(3, 12), draw.randint(3, 12)) if kind == 2 else (draw.randint(40, 90), draw.randint(5, 39))
    if kind == 0:
        return f"{name} has {a} {thing} and buys {b} more. How many {thing} does {name} have now?", str(a + b)
    if kind == 1:
        return f"{name} has {a} {thing} and gives away {b}. How many {thing} are left?", str(a - b)
    return f"{name} fills {a} boxes with {b} {thing} each. How many {thing} is that?", str(a * b)


def tool_row(draw: random.Random) -> tuple[str, str]:
    """(a request for a meeting, the call)."""
    name, day, hour = draw.choice([*NAMES, *CITIES]), draw.choice(DAYS), draw.randint(8, 19)
    sentence = draw.choice(
        ["Book {n} on {d} at {h}.", "{n} would like to come at {h} on {d}.", "{d}, {h} o'clock: {n}."]
    )
    call = {"name": "book", "arguments": {"guest": name, "day": day, "hour": hour}}
    return sentence.format(n=name, d=day, h=hour), json.dumps(call)


def write_task(folder: Path, task: str, chat: bool, held_out: int) -> None:
    """train.jsonl, eval.jsonl without a prompt of it, and rewards.py."""
    draw, make = random.Random(1), {"json": json_row, "words": words_row, "tool": tool_row}[task]
    rows = dict(make(draw) for _ in range(4000))  # equal prompts once
    lines = []
    for question, answer in rows.items():
        turns = [{"role": "system", "content": SYSTEM[task]}, {"role": "user", "content": question}]
        prompt = turns if chat else SHOWN[task].replace("{}", question)
        lines.append(json.dumps({"prompt": prompt, "answer": answer}) + "\n")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "eval.jsonl").write_text("".join(lines[:held_out]), encoding="utf-8")
    (folder / "train.jsonl").write_text("".join(lines[held_out:]), encoding="utf-8")
    (folder / "rewards.py").write_text(REWARDS, encoding="utf-8")


def train(model: Path, task: str, way: str, seed: int, args) -> dict:
    """Run ppo_train.py once; its summary with the peak memory."""
    data = args.output / f"{task}_data_{model.name}"
    run = args.output / f"{task}_{model.name}_{way}_{seed}"
    result = run / "result.json"
    if result.exists():
        return json.loads(result.read_text())
    shutil.rmtree(run, ignore_errors=True)
    write_task(data, task, any(model.glob("chat_template*")), args.eval_rows)
    command = [sys.executable, str(ROOT / "scripts/ppo_train.py"), "--model", str(model), *WAYS[way]]
    command += ["--data", str(data / "train.jsonl"), "--eval_data", str(data / "eval.jsonl")]
    command += ["--reward", f"{data / 'rewards.py'}:{FUNCTIONS[task]}", "--max_new_tokens", str(TOKENS[task])]
    command += ["--steps", str(args.steps), "--batch_size", str(args.batch_size), "--seed", str(seed)]
    command += ["--micro_batch_tokens", "512", "--save_every", "0", "--eval_every", "0", "--output_dir", str(run)]
    run.parent.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    with open(f"{run}.log", "w", encoding="utf-8") as log:
        process = subprocess.Popen([*command, *args.flags], stdout=log, stderr=log)
        _, status, usage = os.wait4(process.pid, 0)
    if status:
        sys.exit(f"{' '.join(command)}\nended with exit code {os.waitstatus_to_exitcode(status)}; see {run}.log")
    summary = json.loads((run / "summary.json").read_text())
    shutil.rmtree(run / "final")  # 2 GB each
    keys = ["accuracy_before", "accuracy_interval_before", "accuracy_after", "accuracy_interval_after"]
    figures = {key: summary[key] for key in keys} | {"minutes": (time.monotonic() - started) / 60}
    figures |= {"cpu_minutes": (usage.ru_utime + usage.ru_stime) / 60, "gib": usage.ru_maxrss / 2**20}
    result.write_text(json.dumps(figures))
    return figures


def verdict(run: Path) -> str:
    """The first finding of diagnose.py."""
    command = [sys.executable, str(ROOT / "scripts/diagnose.py"), str(run / "metrics.jsonl")]
    lines = subprocess.run(command, capture_output=True, text=True).stdout.splitlines()
    return next((line.strip() for line in lines if line.strip()), "nothing")


def main() -> None:
    """Every task, way and seed, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=Path, default=Path(os.environ.get("REAL_MODELS", ROOT / "../real_models")))
    parser.add_argument("--model", default="qwen2.5-coder-0.5b-instruct", help="folder in --models")
    parser.add_argument("--tasks", nargs="+", default=[*TOKENS], choices=[*TOKENS])
    parser.add_argument("--ways", nargs="+", default=["grpo"], choices=[*WAYS])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--batch_size", type=int, default=64)
    parser.add_argument("--eval_rows", type=int, default=96)
    parser.add_argument("--output", type=Path, default=Path("runs/real_learning"))
    parser.add_argument("flags", nargs="*", help="further flags of ppo_train.py, after --")
    args = parser.parse_args()
    model = args.models.resolve() / args.model
    if not (model / "config.json").exists():
        sys.exit(f"got no model in {model}; expected a transformers folder; try --models FOLDER or --model NAME")
    heads = ["task", "algorithm", "seed", "before", "after", "rise", "minutes", "CPU minutes", "GiB"]
    print("| " + " | ".join(heads) + " |\n" + "|---" * len(heads) + "|", flush=True)
    for seed in args.seeds:
        for task in args.tasks:
            for way in args.ways:
                x = train(model, task, way, seed, args)
                (low, high), (low2, high2) = x["accuracy_interval_before"], x["accuracy_interval_after"]
                rise = "yes" if low2 > high else "no"
                cells = [task, way, seed, f"{x['accuracy_before']:.3f} ({low:.2f} to {high:.2f})"]
                cells += [f"{x['accuracy_after']:.3f} ({low2:.2f} to {high2:.2f})", rise]
                cells += [f"{x[key]:.1f}" for key in ("minutes", "cpu_minutes", "gib")]
                print("| " + " | ".join(map(str, cells)) + " |", flush=True)
                if rise == "no":
                    run = args.output / f"{task}_{model.name}_{way}_{seed}"
                    print(f"\ndiagnose.py on {run.name}: {verdict(run)}\n", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
