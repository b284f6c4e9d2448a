#!/usr/bin/env python3
"""Train the embedded model with the one-page trainers for several seeds; held-out accuracy as a Markdown table.

    python benchmarks/one_page_seeds.py --seeds 0 1 2

The pages' defaults; the reward is 1 where the text between the tags, or without them all of it, is the answer. The
teacher of distillation.py is what grpo.py has trained with the first seed.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
REWARD = """
def reward(prompts, completions, answer, **columns):
    texts = [turns if isinstance(turns, str) else turns[-1]["content"] for turns in completions]
    found = [text.rpartition("<answer>")[2].partition("</answer>")[0].strip() for text in texts]
    return [float(x == right) for x, right in zip(found, answer, strict=True)]
"""


def main() -> None:
    """Run each page with each seed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--pages", nargs="+", default=["ppo", "grpo", "distillation"])
    parser.add_argument("flags", nargs="*", help="further flags of the pages, after --")
    args = parser.parse_args()
    if "distillation" in args.pages and "grpo" not in args.pages[: args.pages.index("distillation")]:
        parser.error("got distillation without grpo; expected its teacher; try --pages grpo distillation")
    data, env = ROOT / "assets" / "data", {"OMP_NUM_THREADS": "1", **os.environ}
    print("| page | seed | accuracy before | after | steps | CPU seconds |\n|---|---|---|---|---|---|", flush=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "my.py").write_text(REWARD)
        for page in args.pages:
            for seed in args.seeds:
                out = folder / f"{page}_{seed}"
                command = [
                    sys.executable,
                    str(ROOT / "templates" / f"{page}.py"),
                    "--model",
                    ROOT / "assets" / "tiny_lm",
                ]
                command += ["--data", data / "arithmetic_train.jsonl", "--eval_data", data / "arithmetic_eval.jsonl"]
                command += ["--reward", f"{folder}/my.py:reward", "--out", out, "--seed", seed, *args.flags]
                command += ["--teacher", folder / f"grpo_{args.seeds[0]}"] * (page == "distillation")
                before = resource.getrusage(resource.RUSAGE_CHILDREN)
                done = subprocess.run([str(word) for word in command], capture_output=True, text=True, env=env)
                if done.returncode:
                    sys.exit(done.stderr)
                after = resource.getrusage(resource.RUSAGE_CHILDREN)
                lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
                right = [f"{line['eval/accuracy']:.3f}" for line in lines if "eval/accuracy" in line]
                cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
                row = [f"{page}.py", seed, right[0], right[-1], lines[-1]["step"], f"{cpu:.0f}"]
                print("| " + " | ".join(map(str, row)) + " |", flush=True)


if __name__ == "__main__":
    main()
