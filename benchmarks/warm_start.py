#!/usr/bin/env python3
"""A model that is never right: RL alone, a warm start alone, and RL after a warm start, as a Markdown table.

python assets/make_tiny_lm.py --unable runs/unable
python benchmarks/warm_start.py --model runs/unable --seeds 0 1 2

RL is GRPO by scripts/ppo_train.py with its defaults; a warm start has 200 worked solutions, or the model's own samples.
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
DATA, HELD_OUT = (ROOT / "assets" / "data" / f"arithmetic_{name}.jsonl" for name in ("train", "eval"))
WAYS = {
    "200 solutions": ["--epochs", "1"],
    "own samples": "--self --prompts_per_round 1024 --max_draws 10 --sample_temperature 1.3 --epochs 4".split(),
}


def cpu_seconds() -> float:
    """Seconds of the CPU that ended children took."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def run(script: str, *flags) -> float:
    """Run a script; returns its seconds of the CPU."""
    command, start = [sys.executable, str(ROOT / "scripts" / f"{script}.py"), *map(str, flags)], cpu_seconds()
    done = subprocess.run(command, capture_output=True, text=True, env={"OMP_NUM_THREADS": "1", **os.environ})
    if done.returncode not in (0, 1):
        sys.exit(done.stderr)
    return cpu_seconds() - start


def rl(folder: Path, model: str, seed: int, steps: int) -> tuple[float, float, float]:
    """(accuracy before, after, seconds) of GRPO."""
    flags = [
        "--algorithm",
        "grpo",
        "--kl_coef",
        0.04,
        "--model",
        model,
        "--data",
        DATA,
        "--eval_data",
        HELD_OUT,
        "--max_new_tokens",
        24,
    ]
    flags += ["--steps", steps, "--seed", seed, "--save_every", 0, "--eval_every", 0, "--output_dir", folder]
    seconds = run("ppo_train", *flags)
    found = json.loads((folder / "summary.json").read_text())
    return found["accuracy_before"], found["accuracy_after"], seconds


def warm(folder: Path, model: str, seed: int, way: str) -> tuple[dict, float]:
    """(summary, seconds) of a warm start."""
    data = DATA
    if way == "200 solutions":
        rows = [json.loads(line) for line in DATA.read_text().splitlines()[:200]]
        data = folder.with_name("solutions.jsonl")
        lines = [json.dumps(row | {"completion": f"<answer>{row['answer']}</answer>"}) for row in rows]
        data.write_text("\n".join(lines) + "\n")
    flags = ["--model", model, "--data", data, "--eval_data", HELD_OUT, "--max_new_tokens", 24, "--seed", seed]
    seconds = run("warm_start", *flags, "--rollout_batch_size", 512, "--output_dir", folder, *WAYS[way])
    return json.loads((folder / "summary.json").read_text()), seconds


def main() -> None:
    """Run all combinations once per seed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--no_rl_alone", action="store_true", help="leave out RL without a warm start")
    args = parser.parse_args()
    print("| seed | warm start | rounds | pass rate | accuracy | after RL | seconds of the CPU |\n|" + "---|" * 7)
    for seed in args.seeds:
        with tempfile.TemporaryDirectory() as folder:
            if not args.no_rl_alone:
                before, after, seconds = rl(Path(folder, "alone"), args.model, seed, args.steps)
                print(f"| {seed} | none | – | – | {before:.3f} | {after:.3f} | {seconds:.0f} |", flush=True)
            for way in args.ways:
                out = Path(folder, way.replace(" ", "_"))
                found, seconds = warm(out, args.model, seed, way)
                last, cells = found["rounds"][-1], [seed, way, found["rounds"][-1]["round"]]
                cells += [f"{last['pass_rate']:.3f}"]
                if not found["ready"]:
                    print(f"| {' | '.join(map(str, cells))} | not ready | – | {seconds:.0f} |", flush=True)
                    continue
                before, after, more = rl(out / "rl", found["model"], seed, args.steps)
                cells += [f"{before:.3f}", f"{after:.3f}", f"{seconds:.0f} + {more:.0f}"]
                print(f"| {' | '.join(map(str, cells))} |", flush=True)


if __name__ == "__main__":
    main()
