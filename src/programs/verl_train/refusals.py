"""Settings that verl cannot express, ignores, or silently changes: errors and notes."""

import re

from parts.data.verl_keys import advice_today
from parts.environments.play_setup import check_idle, check_room
from parts.foundation.messages import need, say
from parts.learning.own_functions import own_function
from parts.learning.presets import GROUPED, check_config, is_own
from parts.networks.adapters import refuse_adapter
from programs.verl_train.names import ADVANTAGES, FIXED, IDLE_IN_VERL, OWN_NAME, TRAPS
from programs.verl_train.settings import VERL, Config

ACTIONS = ("print", "export", "check", "run", "submit", "slurm")


def check_expressible(c: Config) -> None:
    """Raise UserError for settings that verl has no equal of."""
    if is_own(c.advantage) and "groups" in own_function("advantage", c.advantage).names:
        GROUPED.add(c.advantage)
    if is_own(c.loss):
        own_function("loss", c.loss)  # refuses one that cannot be called
    for name in ("model", "critic_model"):
        refuse_adapter(getattr(c, name), f"--{name}", "whose reference in verl would be the base model")
    check_config(c)
    acts = {"advantage_std": "grpo", "advantage_eps": "grpo", "whiten_advantages": "gae"}
    for name, (allowed, why) in FIXED.items():
        value = getattr(c, name)
        fits = value in allowed or acts.get(name, c.advantage) != c.advantage
        shown = " ".join(value) if isinstance(value, list) else value
        need(fits, f"got {name} {shown}; expected {allowed[0] or 'none'} with verl: {why}")
    check_idle(c, bool(c.environment))
    check_room(c, c.max_prompt_tokens)
    prompts = c.batch_size // c.group_size
    whole = c.minibatches * c.group_size * max(1, prompts // c.minibatches)
    mean = "seq_mean_token_mean"
    flash = ["advantage gae"] if c.advantage == "gae" and "trainer.device=cpu" not in c.override else []
    flash += [f"sequence_parallel {c.sequence_parallel}"] if c.sequence_parallel > 1 else []
    refused = {
        f"advantage {c.advantage}; expected one that verl's default trainer computes; try --algorithm grpo, or "
        "scripts/ppo_train.py": not ADVANTAGES.get(c.advantage, OWN_NAME),
        "kl_estimator k3_ratio with several updates per batch; expected one, where verl's k3+ is the same; try k2": (
            c.kl_estimator == "k3_ratio" and c.kl_coef and c.ppo_epochs * c.minibatches > 1
        ),
        f"lora_alpha {c.lora_alpha}; expected a whole number with verl; try {max(1, round(c.lora_alpha))}": (
            c.lora_rank and not float(c.lora_alpha).is_integer()
        ),
        "vf_coef 0; expected more than 0 with verl, whose critic always learns; try --vf_coef 0.5": (
            c.advantage == "gae" and not c.vf_coef
        ),
        f"loss {c.loss} with aggregation {c.aggregation}; expected {mean}, verl's only one": (
            c.loss in ("sapo", "gmpo") and c.aggregation != mean
        ),
        f"precision fp32 with {', '.join(flash)}; expected bf16 or fp16, as verl computes these with flash attention "
        "alone; try --precision bf16": c.precision == "fp32" and flash,
        "lr_schedule linear; expected constant or cosine with verl's FSDP; try cosine": c.lr_schedule == "linear",
        f"batch_size {c.batch_size}, group_size {c.group_size}, minibatches {c.minibatches}; expected whole groups in "
        f"each minibatch, as verl counts prompts; try --batch_size {whole}": prompts % c.minibatches,
    }
    for got, wrong in refused.items():
        need(not wrong, f"got {got}")
    chosen = [name for name in ACTIONS if getattr(c, name)]
    got = f"got {', '.join(chosen) or 'nothing to do'}"
    need(len(chosen) == 1, f"{got}; expected one of --{' --'.join(ACTIONS)}")


def split_override(text: str) -> tuple[str, str, str]:
    """(`+`, `++`, `~` or nothing; key; value) of KEY=VALUE; UserError for other text and for a trap."""
    match = re.fullmatch(r"(\+\+|\+|~)?([\w.@/-]+)=(.*)", text, re.DOTALL)
    need(match, f"got --override {text!r}; expected KEY=VALUE; try --override trainer.log_val_generations=4")
    sign, key, value = match.groups()
    expected = f"expected a key that verl {VERL} acts upon"
    for trap, (why, instead) in TRAPS.items():
        caught = key == trap or key.startswith(f"{trap}.") or trap.startswith(f"{key}.")
        need(not caught, f"got --override {text!r}: {key} {why}; {expected}; try {instead}")
    effect, instead = advice_today(key, value) or ("", "")
    need(not effect, f"got --override {text!r}: verl {effect}; {expected}; try {instead}")
    return sign or "", key, value


def say_notes(config: Config) -> None:
    """Tell which of the user's settings mean nothing to verl, or something else."""
    usual = Config()
    for name in IDLE_IN_VERL:
        if getattr(config, name) != getattr(usual, name):
            say(f"note: {name} {getattr(config, name)}: {IDLE_IN_VERL[name]}")
    if config.warmup_steps:
        say("note: warmup_steps: verl's first update has learning rate 0, so its rates follow ours one step later")
    if config.loss in ("clip_cov", "kl_cov"):
        say(f"note: loss {config.loss}: verl chooses the tokens in each micro-batch, ours in the minibatch")
