"""TRL's figures under our names, and the log of a run that TRL trains."""

import math
import re

from parts.running.progress import RunLog
from programs.grpo_train.settings import Config

# TRL's names of what metrics.jsonl calls otherwise
METRICS = {
    "reward": "reward/mean",
    "reward_std": "reward/std",
    "kl": "kl/ref",
    "loss": "policy/loss",
    "entropy": "policy/entropy",
    "clip_ratio/region_mean": "policy/clip_frac",
    "cispo_clip_ratio": "policy/clip_frac",
    "completions/mean_length": "rollout/length_mean",
    "completions/clipped_ratio": "rollout/truncated_frac",
    "sampling/sampling_logp_difference/max": "rollout/logprob_gap_max",
    "learning_rate": "optim/lr",
    "grad_norm": "optim/grad_norm",
    "step_time": "time/step",
}


TRL_PANELS = (
    ("reward", ("reward/mean", "eval/accuracy")),
    (
        "groups without signal, clipped, truncated (share)",
        ("reward/zero_std_frac", "policy/clip_frac", "rollout/truncated_frac"),
    ),
    ("completion length (tokens)", ("rollout/length_mean",)),
    ("KL to the reference (nats per token)", ("kl/ref",)),
    ("entropy (nats)", ("policy/entropy",)),
    ("gradient norm", ("optim/grad_norm",)),
)


def our_metrics(logs: dict) -> dict:
    """TRL's log entry under the names of references/metrics.md; what is None or has no such name is left out."""
    metrics = {METRICS[key]: value for key, value in logs.items() if key in METRICS and value is not None}
    for key, value in logs.items():
        match = re.fullmatch(r"rewards/(.+)/mean", key)
        if match and value is not None and not math.isnan(value):
            metrics[f"reward/{match[1]}"] = value
    return metrics


class TrlLog(RunLog):
    """A RunLog of TRL's run: TRL has the trackers, and logs at its own times, so the bar moves by itself."""

    panels = TRL_PANELS

    def __init__(self, config: Config, steps: int, start: int):
        super().__init__(config, start, steps, report_to=[])

    def show(self, step: int, metrics: dict) -> None:
        """Show the reward beside the bar."""
        if "reward/mean" in metrics:
            self.bar.set_postfix_str(f"reward {metrics['reward/mean']:.3f}", refresh=False)

    def advance(self, step: int) -> None:
        """Move the bar to a step."""
        if self.active:
            self.bar.update(step - self.bar.n)
