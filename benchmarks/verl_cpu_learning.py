#!/usr/bin/env python3
"""Train the embedded model with verl's real trainer on the CPU plug-in, and print how its mean reward rises.

    .venv-verl/bin/python benchmarks/verl_cpu_learning.py --steps 30

GRPO, 32 prompts a step, 8 completions each, scored by examples/reward_functions_library.py: 1 for a right answer, 0.2
for its format. Exits 1 if the mean reward of the last five steps is not 0.3 above that of the first.
"""

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests" / "with_verl"), str(ROOT / "tests")]


def main() -> int:
    """Run the trainer once and print a Markdown table; returns the exit code."""
    from verl_helpers import run_main_ppo, write_prompts

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--lr", type=float, default=3e-4)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder, started = Path(name), time.monotonic()
        rows = run_main_ppo(
            folder,
            *write_prompts(folder, count=4096, held_out=256),
            "algorithm.adv_estimator=grpo",
            "data.train_batch_size=32",
            "actor_rollout_ref.rollout.n=8",
            "actor_rollout_ref.actor.ppo_mini_batch_size=32",
            f"actor_rollout_ref.actor.optim.lr={args.lr}",
            f"trainer.total_training_steps={args.steps}",
            f"trainer.test_freq={args.steps}",
            "trainer.val_before_train=True",
            "trainer.resume_mode=disable",
            timeout=3600,
        )
        seconds = time.monotonic() - started
    print("| step | mean reward |\n|---|---|")
    reward = [row["critic/score/mean"] for row in rows if "critic/score/mean" in row]
    for step in range(0, len(reward), 5):
        print(f"| {step + 1} | {reward[step]:.3f} |")
    held_out = [value for row in rows for key, value in row.items() if key.endswith("correct/mean@1")]
    rise = sum(reward[-5:]) / 5 - reward[0]
    print(f"| {len(reward) - 4} to {len(reward)} | {sum(reward[-5:]) / 5:.3f} |\n")
    found = {"rise": rise, "accuracy before": held_out[0], "accuracy after": held_out[-1], "seconds": seconds}
    print(json.dumps({name: round(value, 3) for name, value in found.items()}))
    return 0 if rise >= 0.3 else 1


if __name__ == "__main__":
    sys.exit(main())
