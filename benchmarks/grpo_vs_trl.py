#!/usr/bin/env python3
"""Our GRPO beside TRL's GRPOTrainer: same model, data, rewards, group, batch and lengths, alternating runs.

    python benchmarks/grpo_vs_trl.py --pairs 5
    python benchmarks/grpo_vs_trl.py --pairs 5 --case random     # 21M parameters, 128 + 128 tokens

Prints a JSON object: per figure the median of each side and the median of the ratios, pair by pair. With a GPU both
sides run on it, in bfloat16, and memory is what torch has allocated there. Speed and memory come from runs without
evaluation; seconds to an accuracy come from runs that evaluate after every step, with the time of the evaluation itself
not counted on either side. One update per batch, no KL, token mean, no reference: TRL's own
defaults; Adam's epsilon and the learning rate are ours on both sides.
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path

from ppo_vs_trl import DATA, ROOT, environment, medians_of, run_ours, seconds_per_step, seconds_to
from shared_prompts import save_random_model

SPECIAL = {"pad_token": "<pad>", "unk_token": "<unk>", "eos_token": "<end>"}  # ids 0 to 2 of the random model
WORDS = 4096  # its vocabulary
REWARD = """def even_share(completions, **kwargs):
    return [sum(word[-1] in "02468" for word in text.split()) / 128 for text in completions]
"""


def random_task(folder: Path) -> tuple[list[str], str]:
    """Flags of a random model of 21M parameters and prompts of 128 words; a reward with which groups differ."""
    import tokenizers
    import transformers

    save_random_model(str(folder / "model"))
    names = [*SPECIAL.values(), *(f"w{i}" for i in range(len(SPECIAL), WORDS))]
    words = tokenizers.models.WordLevel({name: i for i, name in enumerate(names)}, unk_token="<unk>")
    text = tokenizers.Tokenizer(words)
    text.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    transformers.PreTrainedTokenizerFast(tokenizer_object=text, **SPECIAL).save_pretrained(folder / "model")
    draw = random.Random(0)
    rows = [{"prompt": " ".join(f"w{draw.randrange(3, WORDS)}" for _ in range(128)), "answer": "0"} for _ in range(256)]
    for name, some in (("train", rows[8:]), ("eval", rows[:8])):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in some), encoding="utf-8")
    (folder / "reward.py").write_text(REWARD, encoding="utf-8")
    data = ["--model", str(folder / "model"), "--data", str(folder / "train.jsonl")]
    return [*data, "--eval_data", str(folder / "eval.jsonl")], f"{folder / 'reward.py'}:even_share"


def run_trl(data: list[str], flags: list[str], eval_every: int, threads: int) -> dict:
    """Run the TRL worker; the same result as run_ours."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, str(ROOT / "benchmarks/trl_grpo_worker.py"), *data, *flags, "--output_dir", folder]
        command += ["--eval_every", str(eval_every)]
        done = subprocess.run(command, env=environment(threads), capture_output=True, text=True)
        if done.returncode:
            sys.exit(done.stderr)
        return json.loads(done.stdout.strip().splitlines()[-1])


def pair_of(args, data: list[str], flags: list[str], extra: list[str]) -> dict:
    """Figures (ours, TRL's) of one pair of runs; of the embedded task those with evaluations too."""

    def both(every: int) -> tuple[dict, dict]:
        ours = run_ours(flags, every, args.threads, [*extra, "--max_prompt_tokens", "128"], data)
        return ours, run_trl(data, flags, every, args.threads)

    quick = both(0)
    found = {"seconds_per_step": list(map(seconds_per_step, quick)), "peak_mib": [run["peak_mib"] for run in quick]}
    if args.case == "embedded":
        watched = both(1)
        found[f"seconds_to_{args.accuracy}"] = [seconds_to(run, args.accuracy) for run in watched]
        found["final_accuracy"] = [run["marks"][-1][2] for run in watched]
    return found


def main() -> None:
    """Alternate the two sides and print medians and ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--case", choices=("embedded", "random"), default="embedded")
    parser.add_argument("--steps", type=int, default=0, help="0: 30, or 6 of the random model's")
    parser.add_argument("--accuracy", type=float, default=0.75)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    small = args.case == "embedded"
    args.steps = args.steps or (30 if small else 6)
    batch, tokens = ("128", "32") if small else ("32", "128")
    flags = ["--steps", str(args.steps), "--batch_size", batch, "--group_size", "8", "--max_new_tokens", tokens]
    flags += ["--lr", "2e-4"]
    extra = ["--algorithm", "grpo", "--kl_coef", "0", "--aggregation", "token_mean", "--micro_batch_tokens", "8192"]
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        data = DATA
        if not small:
            data, reward = random_task(Path(folder))
            flags += ["--reward", reward]
        for pair in range(args.pairs):
            row = pair_of(args, data, [*flags, "--seed", str(pair)], extra)
            print(json.dumps({"pair": pair, **row}), file=sys.stderr, flush=True)
            rows.append(row)
    result = {"settings": vars(args)}
    print(json.dumps(result | medians_of(rows), indent=1))


if __name__ == "__main__":
    main()
