"""Pictures of a run: curves.png, and the per-token figures of samples.jsonl."""

import json
import math
import os
from pathlib import Path

OF_CONVERSATIONS = ("ended_by", "turn_rewards", "messages", "pieces")
# of samples.jsonl
SAMPLE_KEYS = ("prompt", "completion", "score", "rewards", "finished", "advantage", *OF_CONVERSATIONS)


def piece_lengths(tokenizer, ids: list[int]) -> list[int]:
    """How many characters of the ids' text each token adds, one number per id; they sum to the text's length.

    A token that ends inside a character (byte-level BPE) adds 0, and the one that completes it adds all of it. Each
    piece is decoded after the one before it, as some tokenizers drop a space at the beginning of a text.
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


def token_figures(tokenizer, sample: dict) -> dict:
    """What samples.jsonl has of a sample's tokens, or of all answers of a conversation, one after the other.

    These are lists of one length; there is one advantage where all are equal.
    """
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


PANELS = {  # title and metrics of each plot; what a run does not log is left out
    "reward": ("reward/mean", "eval/accuracy"),
    "KL (nats per token)": ("kl/ref", "kl/approx", "kl/teacher", "eval/reverse_kl"),
    "completion length (tokens)": ("rollout/length_mean",),
    "entropy (nats)": ("policy/entropy", "policy/teacher_entropy"),
    "explained variance, equal groups, overlap": ("value/explained_variance", "reward/zero_std_frac", "policy/overlap"),
    "clipped and truncated (share)": ("policy/clip_frac", "rollout/truncated_frac"),
}


def plot_curves(source: Path, target: Path) -> None:
    """Draw those PANELS that a metrics.jsonl has figures for, over one step axis, with the run as title."""
    from matplotlib.figure import Figure

    rows, drawn = [json.loads(line) for line in source.read_text(encoding="utf-8").splitlines()], {}
    for heading, keys in PANELS.items():
        points = {key: [(row["step"], row[key]) for row in rows if row.get(key) is not None] for key in keys}
        if lines := {key: values for key, values in points.items() if values}:
            drawn[heading] = lines
    columns = min(3, max(1, len(drawn)))
    shape = max(1, math.ceil(len(drawn) / columns)), columns
    size = (0.5 + 4.2 * columns, 0.4 + 3.1 * shape[0])
    figure = Figure(figsize=size, layout="constrained")  # pyplot's would stay in memory until it is closed
    axes = figure.subplots(*shape, sharex=True, squeeze=False)
    for axis in axes.flat[len(drawn) :]:
        axis.set_visible(False)
    for axis, (heading, lines) in zip(axes.flat, drawn.items(), strict=False):
        for key, values in lines.items():
            axis.plot(*zip(*values, strict=True), label=key, marker="o" if len(values) < 20 else None, markersize=3)
        axis.set_title(heading, fontsize=10)
        axis.grid(alpha=0.3)
        axis.legend(fontsize=8)
        axis.tick_params(labelbottom=True)
    figure.suptitle(target.absolute().parent.name)
    figure.supxlabel("step")
    temporary = target.with_suffix(".tmp.png")
    figure.savefig(temporary, dpi=100)
    os.replace(temporary, target)
