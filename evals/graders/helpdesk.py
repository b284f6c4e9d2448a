"""Grade pupil/, distilled from mentor/, in this folder: reverse KL per token on the asks of helpdesk_later.jsonl.

python evals/graders/helpdesk.py learnt|reported

The model samples at temperature 1; at each token it sampled, sum_v p_v (log p_v - log q_v) over the vocabulary.
learnt: pupil/ has less than half of tiny_lm/'s. reported: pupil.json's kl_before and kl_after are near.
"""

import json
import sys
from pathlib import Path

import torch
from tiny import BATCH, jsonl, load, opened, say

SHARE = 0.5
SAMPLES = 6  # replies to each ask: a standard error of 3 to 5 %
RELATIVE, ABSOLUTE = 0.25, 0.005  # one reply to each ask has 8 to 10 %; a single rare reply can add 0.002 nats


@torch.no_grad()
def reverse_kl(folder: str, mentor) -> float:
    """Nats per sampled token."""
    model, tokenizer = load(folder)
    torch.manual_seed(0)
    asks = [row["messages"][:-1] for row in jsonl("helpdesk_later.jsonl")]
    texts = [opened(tokenizer, turns) for turns in asks for _ in range(SAMPLES)]
    heads = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]
    pairs = list(zip(heads, say(model, tokenizer, texts, sampled=True), strict=True))
    total = 0.0
    for start in range(0, len(pairs), BATCH):
        rows = [torch.tensor(head + reply) for head, reply in pairs[start : start + BATCH]]
        ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)  # (B, T); causal: pads behind change nothing
        p, q = (m(ids).logits.double().log_softmax(-1) for m in (model, mentor))
        divergence = (p.exp() * (p - q)).sum(-1)  # (B, T)
        for row, (head, reply) in zip(divergence, pairs[start : start + BATCH], strict=True):
            total += row[len(head) - 1 : len(head) + len(reply) - 1].sum().item()
    return total / sum(len(reply) for _, reply in pairs)


def main(part: str) -> int:
    """Both models against the mentor."""
    mentor, _ = load("mentor")
    before, after = reverse_kl("tiny_lm", mentor), reverse_kl("pupil", mentor)
    print(f"recomputed: {before:.4f} before, {after:.4f} after")
    if part == "learnt":
        return int(not after < SHARE * before)
    reported = json.loads(Path("pupil.json").read_text(encoding="utf-8"))
    print(f"reported {reported}")
    near = [abs(reported[k] - v) <= RELATIVE * v + ABSOLUTE for k, v in (("kl_before", before), ("kl_after", after))]
    return int(not all(near))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
