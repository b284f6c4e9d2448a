"""Loading what is checked, making probes, moving the policy."""

from parts.foundation.messages import UserError
from programs.selfcheck.oracle import own_logprobs
from programs.selfcheck.trainer import PROBES, Trainer, networks

PROBE_TOKENS = 64  # of the prompts of probes


def prepare(s: Trainer) -> None:
    """Load everything through the trainer, and make the sequences on which it is checked.

    Raises:
        UserError: for what keeps the checks from starting.
    """
    try:
        s.load()
        s.probes = make_probes(s.rows, s.takes_holes)
        s.initial = own_logprobs(s)
    except s.user_errors as error:
        raise UserError(str(error).removeprefix("error: ")) from error
    except Exception as error:
        raise UserError(f"got {type(error).__name__} before the first check: {error}") from error


def make_probes(rows: list[dict], holes: bool) -> list[dict]:
    """Samples with prompts of growing and responses of shrinking length, all different, cut from real prompts.

    With `holes` the second has a token in its response that the policy has not sampled, as a tool's output is.
    """
    probes = []
    for i, row in enumerate(rows[:PROBES]):
        ids = list(row["prompt_ids"])[-PROBE_TOKENS:]
        endless = ids * (2 * PROBES + 4)
        sample = {"prompt": row["prompt"], "prompt_ids": endless[: len(ids) + 2 * i], "completion": ""}
        response = endless[1 : 4 + 2 * (PROBES - i)]
        sample |= {"response_ids": response, "rollout_logprobs": [0.0] * len(response), "finished": True}
        sample["response_mask"] = [int(not (holes and i == 1 and j == 2)) for j in range(len(response))]
        score = 1.6 + 1.5 * (-1) ** i + 0.1 * i  # no two alike in a group, none below 0
        sample |= {"rewards": {"probe": score}, "weights": {"probe": 1.0}, "group": i // 2, "baseline": 0.0}
        probes.append(sample | {"score": score})
    return probes


def move(s: Trainer) -> None:
    """Add noise to the trained weights, in memory, until the policy differs clearly from the untouched one."""
    import torch

    scale, enough = 0.01, max(0.05, 3 * s.limits[0])  # nats per token
    for attempt in range(8):
        generator = torch.Generator(s.device).manual_seed(attempt)
        with torch.no_grad():
            for p in (p for network in networks(s.models) for p in network.parameters() if p.requires_grad):
                size = p.abs().mean().item() or 1.0  # LoRA's B and the value head are 0
                noise = torch.randn(p.shape, generator=generator, device=p.device, dtype=p.dtype)
                p.add_(noise, alpha=scale * size)
        s.moved = (own_logprobs(s) - s.initial).abs().mean().item()
        if s.moved >= enough:
            break
        scale *= 2
    if s.engine:
        s.engine.sync()
