#!/usr/bin/env python3
"""Our GRPO beside TRL's GRPOTrainer: same model, data, rewards, group, batch and lengths, alternating runs.

    python benchmarks/grpo_vs_trl.py --pairs 5

Prints a JSON object: per figure the median of each side and the median of the ratios, pair by pair. With a GPU both
sides run on it, in bfloat16, and memory is what torch has allocated there. Speed and memory come from runs without
evaluation; seconds to an accuracy come from runs that evaluate after every step, with the time of the evaluation itself
not counted on either side. One update per batch, no KL, token mean, no reference: TRL's own
defaults; Adam's epsilon and the learning rate are ours on both sides.
"""

import argparse
import json
import subprocess
import sys
import tempfile

from ppo_vs_trl import DATA, ROOT, environment, medians_of, run_ours, seconds_per_step, seconds_to


def run_trl(flags: list[str], eval_every: int, threads: int) -> dict:
    """Run the TRL worker; the same result as run_ours."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, str(ROOT / "benchmarks/trl_grpo_worker.py"), *DATA, *flags, "--output_dir", folder]
        command += ["--eval_every", str(eval_every)]
        done = subprocess.run(command, env=environment(threads), capture_output=True, text=True)
        if done.returncode:
            sys.exit(done.stderr)
        return json.loads(done.stdout.strip().splitlines()[-1])


def main() -> None:
    """Alternate the two sides and print medians and ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--accuracy", type=float, default=0.75)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    flags = ["--steps", str(args.steps), "--batch_size", "128", "--group_size", "8", "--max_new_tokens", "32"]
    flags += ["--lr", "2e-4"]
    extra = ["--algorithm", "grpo", "--kl_coef", "0", "--aggregation", "token_mean", "--micro_batch_tokens", "8192"]
    rows = []
    for pair in range(args.pairs):
        seeded = [*flags, "--seed", str(pair)]
        ours, trl = (
            [run(every) for every in (0, 1)]
            for run in (
                lambda every: run_ours(seeded, every, args.threads, extra),  # noqa: B023, called in this pass
                lambda every: run_trl(seeded, every, args.threads),  # noqa: B023
            )
        )
        row = {
            "seconds_per_step": [seconds_per_step(ours[0]), seconds_per_step(trl[0])],
            "peak_mib": [ours[0]["peak_mib"], trl[0]["peak_mib"]],
            f"seconds_to_{args.accuracy}": [seconds_to(ours[1], args.accuracy), seconds_to(trl[1], args.accuracy)],
            "final_accuracy": [ours[1]["marks"][-1][2], trl[1]["marks"][-1][2]],
        }
        print(json.dumps({"pair": pair, **row}), file=sys.stderr, flush=True)
        rows.append(row)
    result = {"settings": vars(args)}
    print(json.dumps(result | medians_of(rows), indent=1))


if __name__ == "__main__":
    main()
