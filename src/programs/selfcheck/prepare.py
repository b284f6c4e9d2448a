"""Making the subject, and moving the policy off its start."""

import copy
import dataclasses

from programs.selfcheck.oracle import own_logprobs
from programs.selfcheck.subject import NEW_TOKENS, PROBE_TOKENS, PROBES, SAMPLED, Subject, networks


def prepare(trainer, config) -> Subject:
    """Load everything through the trainer, as its `train` does, and cut the work to a few short sequences."""
    trainer.check_config(config)
    device = trainer.start_processes(config)
    if hasattr(trainer, "settle_precision"):  # copies of older trainers have no `auto`
        trainer.settle_precision(config, device)
    reward = trainer.load_reward(config)
    rows, held_out = trainer.load_splits(config, trainer.load_tokenizer(config))
    small = {"batch_size": SAMPLED, "minibatches": 1, "ppo_epochs": 2, "rollout_batch_size": 0}
    small["max_new_tokens"] = min(config.max_new_tokens, NEW_TOKENS)
    small |= {"group_size": min(config.group_size, 2)} if hasattr(config, "group_size") else {}
    small |= {"mismatch": "none"} if hasattr(config, "mismatch") else {}  # the probes were not sampled
    small |= {"kl_cov_coef": 0.0} if getattr(config, "loss", "") == "kl_cov" else {}  # |log-ratio| has a kink there
    few = dataclasses.replace(config, **small)
    with_reference = trainer.load_models(dataclasses.replace(few, kl_coef=config.kl_coef or 0.05), device)
    trainer.check_context(config, with_reference, rows + held_out)
    models = with_reference
    if not config.kl_coef:
        models = copy.copy(with_reference)
        models.reference = None
    engine = getattr(trainer, "VllmEngine" if config.rollout_engine == "vllm" else "HFEngine")(few, models)
    drawn = trainer.batch_rows(rows, few, 0, 8 * SAMPLED)
    picked = sorted(drawn, key=lambda row: len(row["prompt_ids"]))[: 4 * SAMPLED : 4]  # from the shorter half
    subject = Subject(trainer, few, models, with_reference, engine, reward, picked, make_probes(picked))
    subject.config = dataclasses.replace(few, batch_size=len(subject.probes))
    subject.initial = own_logprobs(subject)
    return subject


def make_probes(rows: list[dict]) -> list[dict]:
    """Samples with prompts of growing and responses of shrinking length, all different, cut from real prompts."""
    probes = []
    for i, row in enumerate(rows[:PROBES]):
        ids = list(row["prompt_ids"])[-PROBE_TOKENS:]
        endless = ids * (2 * PROBES + 4)
        sample = {"prompt": row["prompt"], "prompt_ids": endless[: len(ids) + 2 * i], "completion": ""}
        response = endless[1 : 4 + 2 * (PROBES - i)]
        sample |= {"response_ids": response, "rollout_logprobs": [0.0] * len(response), "finished": True}
        score = 1.6 + 1.5 * (-1) ** i + 0.1 * i  # no two alike in a group, none below 0
        sample |= {"rewards": {"probe": score}, "weights": {"probe": 1.0}, "group": i // 2, "baseline": 0.0}
        probes.append(sample | {"score": score})
    return probes


def move(s: Subject) -> None:
    """Add noise to the trained weights, in memory, until the policy differs clearly from the untouched one."""
    import torch

    scale, enough = 0.01, max(0.05, 3 * s.limits[0])  # nats per token
    for attempt in range(8):
        generator = torch.Generator(s.models.device).manual_seed(attempt)
        with torch.no_grad():
            for p in (p for network in networks(s) for p in network.parameters() if p.requires_grad):
                size = p.abs().mean().item() or 1.0  # LoRA's B and the value head are 0
                noise = torch.randn(p.shape, generator=generator, device=p.device, dtype=p.dtype)
                p.add_(noise, alpha=scale * size)
        s.moved = (own_logprobs(s) - s.initial).abs().mean().item()
        if s.moved >= enough:
            break
        scale *= 2
    s.engine.sync()
