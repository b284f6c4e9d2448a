"""The log of a run: metrics.jsonl, samples.jsonl with their tokens, curves.png, trackers, the progress bar."""

import contextlib
import dataclasses
import hashlib
import json
import math
import os
import sys
from pathlib import Path

from parts.foundation.messages import UserError
from parts.foundation.processes import world
from parts.foundation.settings import BaseConfig

LOGGED = 8  # samples of a step or an evaluation
OF_CONVERSATIONS = ("ended_by", "turn_rewards", "messages", "pieces")
SAMPLE_KEYS = (
    "prompt",
    "completion",
    "score",
    "rewards",
    "finished",
    "advantage",
    *OF_CONVERSATIONS,
)  # of samples.jsonl


def reward_means(samples: list[dict]) -> dict[str, float]:
    """Mean of each reward function over the samples to which it applies."""
    means = {}
    for name in samples[0]["rewards"]:
        values = [s["rewards"][name] for s in samples if s["rewards"][name] is not None]
        means |= {name: sum(values) / len(values)} if values else {}
    return means


def forget_after(path: Path, step: int) -> None:
    """Drop lines of later steps, and a torn last line, from a JSONL file that a resumed run will write again."""
    if not path.exists():
        return
    kept = []
    for line in path.read_text(encoding="utf-8").split("\n"):
        with contextlib.suppress(ValueError):
            if json.loads(line)["step"] <= step:
                kept.append(line + "\n")
    temporary = path.with_suffix(".tmp")
    temporary.write_text("".join(kept), encoding="utf-8")
    os.replace(temporary, path)


def piece_lengths(tokenizer, ids: list[int]) -> list[int]:
    """How many characters of the ids' text each token adds, one number per id; they sum to the text's length.

    A token that ends inside a character (byte-level BPE) adds 0, and the one that completes it adds all of it. Each
    piece is decoded behind the one before it, as some tokenizers drop a space at the beginning of a text.
    """
    lengths, start, done = [], 0, 0  # ids[start:done] is the piece before, ids[done:] what is not yet text
    for end in range(1, len(ids) + 1):
        before, text = (tokenizer.decode(ids[start:stop], skip_special_tokens=False) for stop in (done, end))
        if len(text) > len(before) and not text.endswith("\ufffd"):
            lengths.append(len(text) - len(before))
            start, done = done, end
        else:
            lengths.append(0)
    rest = len(tokenizer.decode(ids, skip_special_tokens=False)) - sum(lengths)
    if rest < 0:  # a tokenizer whose pieces are no pieces of the text
        return [0] * (len(ids) - 1) + [rest + sum(lengths)]
    return [*lengths[:-1], lengths[-1] + rest] if lengths else []


def note_advantages(samples: list[dict], batch: dict) -> None:
    """Give the samples that may be logged the advantages [B, T] of their response tokens, where the batch has any."""
    if "advantages" not in batch:
        return
    first = batch["advantages"].shape[1] - max(len(s["response_ids"]) for s in samples)  # column of the responses
    for sample, values in zip(samples, batch["advantages"][:LOGGED, first:].tolist(), strict=False):
        sample["advantages"] = values[: len(sample["response_ids"])]


def token_figures(tokenizer, sample: dict) -> dict:
    """What samples.jsonl has of a sample's tokens; of a conversation those of all its answers, one after the other.

    Returns:
        token_lengths, logprobs of the sampler, and advantages, lists of one length; one advantage where all are equal.
        {} for a completion that was not sampled.
    """
    if "offpolicy" in sample:
        return {}
    ids, spans = sample["response_ids"], [(0, len(sample["response_ids"]))]
    if "turn_ends" in sample:
        spans = [(end - n, end) for end, n in zip(sample["turn_ends"], sample["answer_lengths"], strict=True)]

    def sampled(values: list) -> list:
        return [value for start, end in spans for value in values[start:end]]

    lengths = [n for start, end in spans for n in piece_lengths(tokenizer, ids[start:end])]
    figures = {"token_lengths": lengths, "logprobs": [round(x, 3) or 0 for x in sampled(sample["rollout_logprobs"])]}
    advantages = [float(f"{x:.3g}") or 0 for x in sampled(sample.get("advantages", []))]
    if len({*advantages}) == 1:
        return figures | {"advantage": advantages[0]}
    return figures | ({"advantages": advantages} if advantages else {})


PANELS = (  # title and metrics of each plot; what a run does not log is left out
    ("reward", ("reward/mean", "eval/accuracy")),
    ("KL (nats per token)", ("kl/ref", "kl/approx", "kl/teacher", "eval/reverse_kl")),
    ("completion length (tokens)", ("rollout/length_mean",)),
    ("entropy (nats)", ("policy/entropy", "policy/teacher_entropy")),
    (
        "explained variance, equal groups, overlap",
        ("value/explained_variance", "reward/zero_std_frac", "policy/overlap"),
    ),
    ("clipped and truncated (share)", ("policy/clip_frac", "rollout/truncated_frac")),
)


def draw_panels(panels: list[tuple[str, dict[str, list]]], title: str):
    """A figure of panels (title, {name: points}) over one step axis."""
    from matplotlib.figure import Figure

    columns = min(3, max(1, len(panels)))
    shape = max(1, math.ceil(len(panels) / columns)), columns
    size = (0.5 + 4.2 * columns, 0.4 + 3.1 * shape[0])
    figure = Figure(figsize=size, layout="constrained")  # pyplot's would stay in memory until it is closed
    axes = figure.subplots(*shape, sharex=True, squeeze=False)
    for axis in axes.flat[len(panels) :]:
        axis.set_visible(False)
    for axis, (heading, lines) in zip(axes.flat, panels, strict=False):
        for key, points in lines.items():
            axis.plot(*zip(*points, strict=True), label=key, marker="o" if len(points) < 20 else None, markersize=3)
        axis.set_title(heading, fontsize=10)
        axis.grid(alpha=0.3)
        axis.legend(fontsize=8)
        axis.tick_params(labelbottom=True)
    figure.suptitle(title)
    figure.supxlabel("step")
    return figure


def plot_curves(source: Path, target: Path, panels=PANELS) -> None:
    """Draw the panels (title, metrics) of which a metrics.jsonl has a figure, titled as the run."""
    rows = [json.loads(line) for line in source.read_text(encoding="utf-8").splitlines()]
    drawn = []
    for title, keys in panels:
        lines = {key: [(row["step"], row[key]) for row in rows if row.get(key) is not None] for key in keys}
        if any(lines.values()):
            drawn.append((title, {key: points for key, points in lines.items() if points}))
    figure, temporary = draw_panels(drawn, target.absolute().parent.name), target.with_suffix(".tmp.png")
    figure.savefig(temporary, dpi=100)
    os.replace(temporary, target)


def open_tracker(name: str, config: BaseConfig, start: int):
    """Return (log(metrics, step), close()) of an experiment tracker."""
    settings, folder = dataclasses.asdict(config), Path(config.output_dir)
    try:
        if name == "tensorboard":
            from torch.utils.tensorboard import SummaryWriter

            writer = SummaryWriter(folder / "tensorboard", purge_step=start + 1 if start else None)
            return lambda metrics, step: [writer.add_scalar(k, v, step) for k, v in metrics.items()], writer.close
        if name == "wandb":
            import wandb

            run_id = hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:8]  # the same when resumed
            names = {"project": "rl-training", "name": folder.name, "id": run_id, "resume": "allow"}
            run = wandb.init(**names, dir=folder, config=settings)
            return lambda metrics, step: run.log(metrics, step=step), run.finish
        import trackio

        run = trackio.init(project="rl-training", name=folder.name, config=settings, resume="allow")
        return lambda metrics, step: run.log(metrics, step=step), run.finish
    except ImportError:
        raise UserError(f"got --report_to {name}, which is not installed; try `pip install {name}`") from None
    except Exception as error:
        raise UserError(f"got --report_to {name}, which does not start: {error}; try its offline mode") from error


class RunLog:
    """Writes metrics.jsonl, samples.jsonl, curves.png and trackers on rank 0; does nothing elsewhere.

    Args:
        start: the step that a resumed run goes on from; -1 for a new one.
        steps: those of the whole run.
        report_to: names of trackers.
        tokenizer: of samples whose tokens' figures are written too; None: they are not.
    """

    panels = PANELS  # of curves.png

    def __init__(self, config: BaseConfig, start: int, steps: int, report_to: list[str], tokenizer=None):
        self.tokenizer = tokenizer
        self.config, self.dir, self.active = config, Path(config.output_dir), world()[0] == 0
        self.trackers, self.bar = [], None
        if not self.active:
            return
        from tqdm import tqdm

        for name in ("metrics.jsonl", "samples.jsonl"):
            forget_after(self.dir / name, start)
        start = max(start, 0)
        self.trackers = [open_tracker(name, config, start) for name in report_to]
        wait = 0.5 if sys.stderr.isatty() else 20
        self.bar = tqdm(total=steps, initial=start, mininterval=wait, maxinterval=wait, dynamic_ncols=True)

    def metrics(self, step: int, metrics: dict) -> None:
        """Append one line to metrics.jsonl, and tell the trackers and who watches."""
        if not self.active:
            return
        with (self.dir / "metrics.jsonl").open("a", encoding="utf-8") as f:
            f.write(json.dumps({"step": step, **{k: float(f"{v:.7g}") for k, v in metrics.items()}}) + "\n")
        for track, _ in self.trackers:
            track(metrics, step)
        self.show(step, metrics)
        if "eval/accuracy" in metrics:
            value, low, high = (metrics[f"eval/accuracy{end}"] for end in ("", "_low", "_high"))
            text = f"step {step}: held-out accuracy {value:.3f} (95%: {low:.3f} to {high:.3f})"
            self.bar.write(text, file=sys.stderr)

    def show(self, step: int, metrics: dict) -> None:
        """Move the bar, with reward and speed beside it."""
        if "reward/mean" in metrics:
            speed = metrics["rollout/tokens_per_s"]
            self.bar.set_postfix_str(f"reward {metrics['reward/mean']:.3f}, {speed:.0f} tokens/s", refresh=False)
            self.bar.update()

    def samples(self, step: int, kind: str, samples: list[dict]) -> None:
        """Append a few samples to samples.jsonl."""
        if not self.active:
            return
        with (self.dir / "samples.jsonl").open("a", encoding="utf-8") as f:
            for s in samples[:LOGGED]:
                entry = {k: s[k] for k in SAMPLE_KEYS if k in s}
                entry |= token_figures(self.tokenizer, s) if self.tokenizer else {}
                entry = {"step": step, "kind": kind, **entry}
                f.write(json.dumps(entry, ensure_ascii=False, separators=(",", ":")) + "\n")

    def plot(self) -> None:
        """Draw curves.png from metrics.jsonl, if there is one."""
        if self.active and (self.dir / "metrics.jsonl").exists():
            plot_curves(self.dir / "metrics.jsonl", self.dir / "curves.png", self.panels)

    def close(self) -> None:
        """Finish the bar and the trackers."""
        if self.active:
            self.bar.close()
            for _, close in self.trackers:
                close()
