"""Settings of the trainer, and contradictions between them."""

import math
from dataclasses import dataclass

from parts.foundation.bundle import EMBEDDED_MODEL, in_bundle
from parts.foundation.messages import need
from parts.foundation.settings import check_trainer, in_order, parse_settings, setting
from parts.learning.idle_settings import say_idle
from parts.learning.losses import AGGREGATIONS
from parts.learning.trainer_settings import RolloutSettings

OBJECTIVES = {"reverse_kl": 1.0, "forward_kl": 0.0, "jsd": None, "policy_gradient": None}  # beta of the divergence


@in_order(batch_size="steps", objective="check_sync", ppo_epochs="norm_length", eval_samples="allow_overlap")
@dataclass
class Config(RolloutSettings):
    """All settings and their defaults: those of RolloutSettings and these; each is a flag and a key of --config."""

    # student, teacher and data
    model: str = setting(EMBEDDED_MODEL, "student: model folder or hub id", section="student, teacher and data")
    teacher: str = setting("", "folder, hub id, or http://HOST:PORT/v1[#MODEL]")
    teacher_precision: str = setting("", "of a local teacher (default: --precision)", ["fp32", "bf16", "fp16"])
    teacher_in_4bit: bool = setting(False, "4-bit weights of a local teacher (needs bitsandbytes)")
    output_dir: str = setting("runs/distillation", "folder for logs, checkpoints and final/", free=True)
    # rollout
    batch_size: int = setting(128, "completions per step, over all processes", positive=True)
    group_size: int = setting(1, "sampled completions per prompt; a reward's baseline needs several", positive=True)
    # objective
    objective: str = setting("reverse_kl", "divergence from the teacher", list(OBJECTIVES), section="objective")
    beta: float = setting(0.5, "jsd: weight of the teacher in the mixture; 0 and 1 are forward and reverse KL")
    kl_top_k: int = setting(
        0, "likeliest tokens of the teacher that a divergence compares one by one, all others together (0: all)"
    )
    kl_coef: float = setting(1.0, "weight of the divergence")
    discount: float = setting(0.0, "policy_gradient: weight of later tokens' log-ratios in a token's advantage")
    reward_coef: float = setting(0.0, "weight of the rewards minus their group's mean; 0: they are only measured")
    aggregation: str = setting("token_mean", "how token losses become one number", lambda: list(AGGREGATIONS))
    ppo_epochs: int = setting(1, "passes over each batch", positive=True)
    minibatches: int = setting(1, "optimizer steps per pass; must divide batch_size", positive=True)
    clip_eps_low: float = setting(0.2, "policy_gradient, rewards: the ratio is clipped below at 1 - this")
    clip_eps_high: float = setting(0.2, "policy_gradient, rewards: the ratio is clipped above at 1 + this")
    dual_clip: float = setting(3.0, "policy_gradient, rewards: bound on ratio for negative advantages (0: off)")
    # optimization
    lr: float = setting(
        0.0, "learning rate (0: 1e-3 below 50M parameters, 1e-4 with LoRA, else 1e-5)", section="optimization"
    )
    # precision and memory
    logits_chunk: int = setting(
        2**25, "logits (tokens x vocabulary) that exist at once, of each model", positive=True, free=True, auto=True
    )
    # logs and checkpoints
    eval_samples: int = setting(1, "completions per held-out prompt in eval/reverse_kl", positive=True)


def check_config(config: Config, world: int = 1) -> None:
    """Raise UserError for settings that contradict each other or would do nothing."""
    check_trainer(config)
    c, sampled = config, config.objective == "policy_gradient"
    made = f"`python {in_bundle('assets/make_tiny_lm.py')} --teacher runs/teacher`, then --teacher runs/teacher"
    need(c.teacher, f"got no --teacher; expected a folder, a hub id or a server; for the embedded task try {made}")
    largest = max(c.beta, c.discount)
    need(largest <= 1, f"got {largest} for beta or discount; expected at most 1")
    need(c.beta == Config.beta or c.objective == "jsd", f"got --beta with {c.objective}; expected --objective jsd")
    need(sampled or not c.discount, f"got --discount with {c.objective}; expected --objective policy_gradient")
    need(not (sampled and c.kl_top_k), "got --kl_top_k with policy_gradient, which looks at the sampled token only")
    need(c.kl_coef or c.reward_coef, "got kl_coef 0 and reward_coef 0, which leave no loss; try --kl_coef 1")
    got = f"got reward_coef {c.reward_coef} with group_size 1; expected several completions per prompt"
    need(c.group_size > 1 or not c.reward_coef, f"{got}, whose mean is the baseline; try --group_size 8")
    fixed = c.aggregation == "fixed_length"
    need(fixed or not c.norm_length, "got --norm_length; expected --aggregation fixed_length, which divides by it")
    part = c.minibatches * world
    got = f"got batch_size {c.batch_size}, minibatches {c.minibatches}, processes {world}"
    expected = f"expected a multiple of {part}; try --batch_size {math.ceil(c.batch_size / part) * part}"
    need(c.batch_size % part == 0, f"{got}; {expected}")
    got = f"got batch_size {c.batch_size}, group_size {c.group_size}"
    need(c.batch_size % c.group_size == 0, f"{got}; expected whole groups")
    say_idle(config, config.ppo_epochs * config.minibatches)


def parse_config(argv: list[str]):
    return parse_settings(argv, Config, __doc__)
