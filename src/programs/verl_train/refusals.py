"""What verl cannot express, ignores or changes, and sizes that do not divide."""

import math
import re

from parts.data.verl_keys import CORRECTION, advice_today
from parts.environments.play_setup import check_idle, check_room
from parts.foundation.messages import need, say
from parts.learning.own_functions import own_function
from parts.learning.presets import GROUPED, check_config, is_own
from parts.networks.adapters import refuse_adapter
from programs.verl_train.settings import ADVANTAGES, OWN_NAME, VERL, Config

SAMPLER, KWARGS = "trainer.v1.sampler.custom_sampler", "trainer.v1.sampler.sampler_kwargs"
WEIGHT_DTYPE = "model_dtype"  # below a part that FSDP shards

# Settings that verl cannot express: (the value or values that mean the same there, why another is refused).
FIXED = {
    "kl_target": ([0.0], "verl's controller counts nats per token; try --override algorithm.kl_ctrl.type=adaptive"),
    "mask_truncated": ([False], "verl trains on truncated completions; try --overlong_share 0.2"),
    "advantage_std": (["unbiased"], "verl's standard deviation is the unbiased one"),
    "advantage_eps": ([1e-6], "verl adds 1e-6"),
    "whiten_rewards": ([False], "verl does not whiten rewards"),
    "whiten_advantages": ([True], "verl always whitens GAE's advantages"),
    "turn_baseline": (["conversation"], "verl's estimators compare whole conversations; try scripts/ppo_train.py"),
    "max_oversampling": ([1.0], "verl replaces a group at a time; try --max_refills"),
    "target_kl": ([0.0], "verl ends no update early; try fewer --ppo_epochs"),
    "critic": (["separate"], "verl's critic has its own backbone"),
    "attn_implementation": (
        ["auto"],
        "verl's actor takes flash_attention_2; try --override "
        "+actor_rollout_ref.model.override_config.attn_implementation=sdpa "
        "actor_rollout_ref.model.use_remove_padding=False",
    ),
    "merge_lora": ([False], "verl saves adapters; merge them afterwards, with peft's merge_and_unload"),
    "load_in_4bit": ([False], "verl trains no 4-bit weights; try --lora_rank with --offload all"),
    "device": (["auto", "cuda"], "verl finds the devices by itself"),
    "metrics_file": ([""], "verl writes its own names; try scripts/ppo_train.py"),
    "metric_names": ([""], "verl writes its own names; try scripts/ppo_train.py"),
    "dry_run": ([False], "--check is the dry run"),
}

# Settings that mean nothing to verl, or have a counterpart that is always on: why. They are told, and the job goes on.
IDLE_IN_VERL = {
    "rollout_engine": "it is the engine of a single process; verl samples with --verl_rollout",
    "rollout_batch_size": "the rollout engine forms its own batches",
    "decode_graphs": "the rollout engine has graphs of its own",
    "vllm_args": "try --override +actor_rollout_ref.rollout.engine_kwargs.vllm.KEY=VALUE",
    "check_sync": "verl does not compare weights; watch rollout_corr/kl with --mismatch",
    "share_prompts": "verl has actor_rollout_ref.actor.use_prefix_grouper, with the package prefix_grouper",
    "logits_chunk": "verl has no such bound; memory follows --micro_batch_tokens",
    "max_bad_updates": "verl skips a non-finite update and goes on; watch actor/grad_norm",
    "plot_every": "verl draws no curves; metrics.jsonl has the figures",
    "threads": "verl's processes set their own",
    "save_dtype": "verl saves fp32 weights; its model merger writes the folder",
    "stop_when": "verl's job does not judge itself; run scripts/diagnose.py on its folder",
}
# Overrides that would undo what a setting or a guard of this script does: (why, what to write).
TRAPS = {
    "custom_reward_function": ("is read by the old trainer only", "--reward FILE.py:function"),
    "reward_model": ("is read by the old trainer only", "--reward, or --override reward.reward_model.…"),
    "reward.custom_reward_function": ("is not read by the job's reward manager", "--reward FILE.py:function"),
    "reward.reward_manager": ("removes token ids, length penalties and the guard on rewards", "--reward"),
    f"{CORRECTION}.bypass_mode": ("makes the trainer leave out the correction", "--mismatch"),
    SAMPLER: ("removes the guard that ends the run when a reward raises", "leaving it out"),
    KWARGS: ("belongs to the guard that ends the run when a reward raises", "--max_refills"),
    "trainer.v1.sampler.sync_refill_failed_groups": ("hides rollouts and rewards that fail", "leaving it out"),
    "trainer.v1.trainer_mode": ("uses another replay buffer, without the guard on rewards", "leaving it out"),
    "trainer.total_epochs": ("can end the run before its last step, without a checkpoint", "--steps"),
    "trainer.total_training_steps": ("is --steps here, on which the last checkpoint depends", "--steps"),
    "trainer.save_freq": ("can leave out the last checkpoint", "--save_every"),
    "trainer.use_v1": ("chooses a trainer without the guard on rewards", "leaving it out"),
}

ACTIONS = ("print", "export", "check", "run")


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


def batch_findings(c: Config) -> list[str]:
    """Sizes for which verl fills up with padding sequences without a word, or ends after minutes."""
    tokens, gpus = c.micro_batch_tokens * c.sequence_parallel, c.nodes * c.gpus_per_node
    replicas, part = max(1, gpus // c.sequence_parallel), c.batch_size // c.minibatches
    batch = math.lcm(replicas, c.group_size) * c.minibatches
    least = math.ceil(c.conversation_tokens / c.sequence_parallel)
    worst = part // replicas * c.conversation_tokens
    shares = {name: getattr(c, name) for name in ("sequence_parallel", "rollout_tensor_parallel")}
    wrong = {f"{name} {n} for {gpus} GPUs; expected a divisor": gpus % n for name, n in shares.items()} | {
        f"micro_batch_tokens {c.micro_batch_tokens}; expected {least}, a sequence's share of a GPU": (
            tokens < c.conversation_tokens
        ),
        f"{part} completions in a minibatch for {replicas} replicas of the policy; expected a multiple, as verl fills "
        f"up with padding; try --batch_size {batch}": part % replicas,
        f"loss gmpo, micro_batch_tokens {c.micro_batch_tokens}; expected {worst}, a minibatch in one piece, as verl's "
        "geo_mean adds up the means of its micro-batches": c.loss == "gmpo" and tokens < worst,
    }
    return [f"batch: got {text}" for text, is_wrong in wrong.items() if is_wrong]
