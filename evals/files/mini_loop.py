"""Our own loop. objective() is what we change; the rest stays as it is."""

import argparse
import json

import torch


def objective(kind, new, old, adv, keep, lo=0.2, hi=0.2):
    """new, old, keep: [B, T]; adv: [B]. A scalar to minimise."""
    if kind != "plain":
        raise ValueError(f"no objective {kind}")
    ratio = torch.exp(new - old)
    gain = torch.minimum(ratio * adv[:, None], ratio.clamp(1 - lo, 1 + hi) * adv[:, None])
    return -(gain * keep).sum() / keep.sum()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--kind", default="plain")
    parser.add_argument("--updates", type=int, default=3)
    args = parser.parse_args()
    torch.manual_seed(5)
    table = torch.zeros(11, 11, requires_grad=True)  # a bigram policy: row = last token
    optimizer = torch.optim.Adam([table], lr=0.1)
    for update in range(args.updates):
        with torch.no_grad():
            tokens = torch.zeros(64, 9, dtype=torch.long)
            for t in range(1, 9):
                tokens[:, t] = torch.multinomial(table[tokens[:, t - 1]].softmax(-1), 1)[:, 0]
            old = table.log_softmax(-1)[tokens[:, :-1], tokens[:, 1:]]
        paid = (tokens[:, 1:] == 7).float().mean(1)
        adv = (paid - paid.mean()) / (paid.std() + 1e-6)
        keep = torch.ones_like(old)
        for _ in range(4):
            new = table.log_softmax(-1)[tokens[:, :-1], tokens[:, 1:]]
            loss = objective(args.kind, new, old, adv, keep)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(json.dumps({"update": update, "paid": paid.mean().item(), "loss": loss.item()}))


if __name__ == "__main__":
    main()
