"""What verl cannot express, ignores, or would do behind a user's back: errors and notes."""

import re

from parts.data.pass_band import check_band
from parts.data.verl_keys import advice_today
from parts.environments.play_setup import check_idle, check_room
from parts.foundation.messages import need, say
from parts.learning.own_functions import own_function
from parts.learning.presets import GROUPED, check_config, is_own
from parts.networks.models import refuse_adapter
from programs.verl_train.names import FIXED, IDLE_IN_VERL, NOTES, OLD_TRAINER, TRAPS
from programs.verl_train.settings import VERL, Config

ACTIONS = ("print", "export", "check", "run", "submit", "slurm")


def check_action(config) -> None:
    chosen = [name for name in ACTIONS if getattr(config, name)]
    expected = f"expected one of --{' --'.join(ACTIONS)}"
    need(len(chosen) == 1, f"got {', '.join(chosen) or 'nothing to do'}; {expected}")


def check_own(config: Config) -> None:
    """Raise UserError for an estimator or loss of the user's own that cannot be called; one of groups needs them."""
    if is_own(config.advantage) and "groups" in own_function("advantage", config.advantage).names:
        GROUPED.add(config.advantage)
    if is_own(config.loss):
        own_function("loss", config.loss)


def check_expressible(config: Config) -> None:
    check_own(config)
    for name in ("model", "critic_model"):
        refuse_adapter(getattr(config, name), f"--{name}", "whose reference would be the bare base in verl")
    check_config(config)
    relevant = {"advantage_std": {"grpo", "gdpo"}, "advantage_eps": {"grpo", "gdpo"}, "whiten_advantages": {"gae"}}
    for name, (allowed, why) in FIXED.items():
        value = getattr(config, name)
        acts = config.advantage in relevant.get(name, {config.advantage})
        need(value in allowed or not acts, f"got {name} {value}; expected {allowed[0]} with verl: {why}")
    c, old = config, config.advantage in OLD_TRAINER
    check_idle(c, bool(c.environment))
    check_room(c, c.max_prompt_tokens)
    check_band(c, c.group_size)
    needs = f"got --environment with advantage {c.advantage}, which needs verl's old trainer"
    need(not c.environment or not old, f"{needs}; expected an estimator of its default one; try --algorithm grpo")
    several = c.kl_estimator == "k3_ratio" and c.kl_coef and c.ppo_epochs * c.minibatches > 1
    got = "got kl_estimator k3_ratio with several updates a batch"
    need(not several, f"{got}; expected one, where verl's k3+ is the same; try k2")
    alpha = f"got lora_alpha {c.lora_alpha}; expected a whole number with verl; try {max(1, round(c.lora_alpha))}"
    need(not c.lora_rank or float(c.lora_alpha).is_integer(), alpha)
    learns = c.vf_coef or c.advantage != "gae"
    need(learns, "got vf_coef 0; expected more than 0 with verl, whose critic always learns; try --vf_coef 0.5")
    fits = {"sapo": "seq_mean_token_mean", "gmpo": "seq_mean_token_mean"}.get(c.loss, c.aggregation)
    need(c.aggregation == fits, f"got loss {c.loss} with aggregation {c.aggregation}; expected {fits}, verl's only one")
    got = "got lr_schedule linear; expected constant or cosine with verl's fsdp2; try --backend megatron"
    need(c.lr_schedule != "linear" or c.backend == "megatron", got)
    got = "got precision fp32 with megatron; expected bf16 or fp16 there; try --precision bf16"
    need(c.precision != "fp32" or c.backend == "fsdp2", got)
    pieces = {"tensor_parallel": c.tensor_parallel, "pipeline_parallel": c.pipeline_parallel}
    idle = [name for name, size in pieces.items() if size > 1 and c.backend == "fsdp2"]
    need(not idle, f"got --{', --'.join(idle)} with fsdp2, which shards by itself; expected 1; try --backend megatron")
    both = old and c.dynamic_sampling
    need(not both, f"got --dynamic_sampling with {c.advantage}; verl's trainers have one of both")
    got = "got --keep_between without dynamic_sampling; expected it with verl, whose loader has its own order and whose"
    need(c.dynamic_sampling or not c.keep_between, f"{got} buffer can replace groups; try --dynamic_sampling")
    prompts = c.batch_size // c.group_size
    got = f"got batch_size {c.batch_size}, group_size {c.group_size}, minibatches {c.minibatches}"
    whole = c.minibatches * c.group_size * max(1, prompts // c.minibatches)
    expected = "expected whole groups in a minibatch, as verl counts prompts"
    need(prompts % c.minibatches == 0, f"{got}; {expected}; try --batch_size {whole}")
    check_action(c)


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
            say(f"note: {name} {getattr(config, name)}: {NOTES[name]}")
    if config.warmup_steps:
        say("note: warmup_steps: verl's first update has learning rate 0, so its rates come one step after ours")
    if config.loss in ("clip_cov", "kl_cov"):
        say(f"note: loss {config.loss}: verl chooses the tokens in each micro-batch, ours in the minibatch")
    if config.advantage == "gdpo":
        say("note: advantage gdpo: verl counts a reward that does not apply as 0, ours leaves it out")
    if config.advantage in OLD_TRAINER:
        say(f"note: advantage {config.advantage} needs verl's old trainer, trainer.use_v1=False, which verl deprecates")
