"""The algorithms by name: which choices each one makes, and which choices contradict each other."""

import math

from parts.foundation.messages import need, say
from parts.foundation.settings import BaseConfig, check_trainer
from parts.learning.idle_settings import say_idle

# What the algorithms without a critic share, and what each has of its own. references/rl_algorithms.md says where each
# figure comes from; group_size (papers: 4 to 64) and minibatches (papers: up to 16) are ours, for a batch of 128.
GROUP_DEFAULTS = {
    "group_size": 8,
    "advantage": "grpo",
    "loss": "clip",
    "aggregation": "token_mean",
    "ppo_epochs": 1,
    "minibatches": 1,
    "dynamic_sampling": False,
    "kl_coef": 0.0,
    "kl_in": "loss",
    "kl_estimator": "k3",
    "missing_eos_penalty": 0.0,
    "overlong_share": 0.0,
    "clip_eps_low": 0.2,
    "clip_eps_high": 0.2,
    "dual_clip": 0.0,
}
REWARD_KL = {"kl_in": "reward", "kl_estimator": "k1"}
ALONE = {"group_size": 1, "kl_coef": 0.01, **REWARD_KL}
OF_SEQUENCES = {"aggregation": "seq_mean_token_mean", "minibatches": 4}
PRESETS = {
    "ppo": {**ALONE, "advantage": "gae", "ppo_epochs": 2, "dual_clip": 3.0},
    "grpo": {"aggregation": "seq_mean_token_mean"},  # without KL, as TRL; the paper has kl_coef 0.04
    "dr_grpo": {"advantage": "mean", "aggregation": "seq_mean_token_sum_norm"},
    "dapo": {"clip_eps_high": 0.28, "dynamic_sampling": True, "overlong_share": 0.2, "minibatches": 4},
    "rloo": {"advantage": "rloo", "aggregation": "seq_mean_token_sum", "kl_coef": 0.05, **REWARD_KL},
    "reinforce_pp": {**ALONE, "advantage": "reinforce_pp"},
    "reinforce_pp_baseline": {"advantage": "reinforce_pp_baseline", "kl_estimator": "k2", "kl_coef": 0.001},
    "remax": {**ALONE, "advantage": "remax", "aggregation": "seq_mean_token_sum"},
    "opo": {"advantage": "opo"},
    "gpg": {"advantage": "gpg", "loss": "reinforce"},
    "maxrl": {"advantage": "maxrl"},
    "gdpo": {"advantage": "gdpo"},
    "gspo": {**OF_SEQUENCES, "loss": "gspo", "clip_eps_low": 3e-4, "clip_eps_high": 4e-4},
    "cispo": {"loss": "cispo", "clip_eps_low": 1.0, "clip_eps_high": 4.0, "minibatches": 4},
    "sapo": {**OF_SEQUENCES, "loss": "sapo"},
    "gmpo": {**OF_SEQUENCES, "loss": "gmpo", "clip_eps_low": 0.4, "clip_eps_high": 0.4},
    "dppo_tv": {"loss": "dppo_tv", "dual_clip": 20.0, "clip_eps_low": 0.15, "clip_eps_high": 0.15, "minibatches": 4},
    "dppo_kl": {"loss": "dppo_kl", "dual_clip": 20.0, "clip_eps_low": 0.05, "clip_eps_high": 0.05, "minibatches": 4},
    "clip_cov": {"loss": "clip_cov", "minibatches": 4},
    "kl_cov": {"loss": "kl_cov", "minibatches": 4},
}
CLIPPED = {"clip", "gspo", "cispo", "gmpo", "dppo_tv", "dppo_kl", "clip_cov"}
READ_BY = {  # settings that only some values of a choice read
    **dict.fromkeys(("critic", "critic_model", "critic_lr", "critic_warmup_steps"), ("advantage", {"gae"})),
    **dict.fromkeys(("gae_lambda", "whiten_rewards", "whiten_advantages"), ("advantage", {"gae"})),
    **dict.fromkeys(("value_clip", "vf_coef"), ("advantage", {"gae"})),
    **dict.fromkeys(("advantage_std", "advantage_eps"), ("advantage", {"grpo", "gdpo"})),
    "gamma": ("advantage", {"gae", "reinforce_pp"}),
    **dict.fromkeys(("clip_eps_low", "clip_eps_high"), ("loss", CLIPPED)),
    **dict.fromkeys(("sapo_tau_pos", "sapo_tau_neg"), ("loss", {"sapo"})),
    **dict.fromkeys(("cov_low", "cov_high"), ("loss", {"clip_cov"})),
    "cov_frac": ("loss", {"clip_cov", "kl_cov"}),
    "kl_cov_coef": ("loss", {"kl_cov"}),
    "dual_clip": ("loss", {"clip", "dppo_tv", "dppo_kl"}),
    "norm_length": ("aggregation", {"fixed_length"}),
    **dict.fromkeys(("max_refills", "max_oversampling"), ("dynamic_sampling", {True})),
}
GROUPED = {"grpo", "mean", "rloo", "reinforce_pp_baseline", "opo", "gpg", "gpg_verl", "maxrl", "gdpo"}  # need a group


def is_own(name) -> bool:
    """Whether a choice names a function of the user's own, FILE.py:function."""
    return ".py:" in str(name)


def check_algorithm(config: BaseConfig) -> None:
    """Raise UserError for choices of the algorithm that contradict each other or would do nothing."""
    c, grouped = config, config.advantage in GROUPED
    got = f"got advantage {c.advantage} with group_size {c.group_size}; expected several completions per prompt"
    need(c.group_size > 1 or not grouped, f"{got}, whose mean is the baseline; try --group_size 8")
    dynamic = f"got --dynamic_sampling with {c.advantage}; expected a group estimator; try --algorithm dapo"
    need(grouped or not c.dynamic_sampling, dynamic)
    need(c.kl_coef or not c.kl_target, "got --kl_target with kl_coef 0, which it cannot adapt; try --kl_coef 0.05")
    got = f"got kl_horizon {c.kl_horizon} with batch_size {c.batch_size}; expected more, as both count completions"
    need(c.kl_horizon > c.batch_size or not c.kl_target, f"{got}; try --kl_horizon {100 * c.batch_size}")
    in_reward = c.kl_in == "reward"
    need(in_reward or not c.kl_target, "got --kl_target with the KL in the loss; expected it in the reward")
    ratio_weighted = c.kl_estimator == "k3_ratio" and in_reward
    need(not ratio_weighted, "got kl_estimator k3_ratio in the reward; expected k1, which is exact, or --kl_in loss")
    gdpo = c.advantage == "gdpo" and in_reward and c.kl_coef
    need(not gdpo, "got advantage gdpo with the KL in the reward, which it would not see; try --kl_in loss")
    below = c.missing_eos_penalty or c.overlong_share or (c.kl_coef and in_reward)
    need(c.advantage != "maxrl" or not below, "got maxrl with a penalty or KL in the reward; expected neither")
    need(c.max_oversampling >= 1, f"got max_oversampling {c.max_oversampling}; expected 1 or more; try 2")
    need(c.overlong_share <= 1, f"got overlong_share {c.overlong_share}; expected 0 to 1")
    need(c.dual_clip == 0 or c.dual_clip > 1, f"got dual_clip {c.dual_clip}; expected 0 (off) or more than 1; try 3")
    got = f"got cov_frac {c.cov_frac}, cov_low {c.cov_low}, cov_high {c.cov_high}"
    need(c.cov_frac <= 1 and c.cov_low <= c.cov_high, f"{got}; expected cov_frac <= 1 and cov_low <= cov_high")
    usual = type(config)(algorithm=c.algorithm)
    for name, (choice, values) in READ_BY.items():
        unread = getattr(c, choice) not in values and not is_own(getattr(c, choice))
        idle = unread and getattr(c, name) != getattr(usual, name)
        readers = f"expected {choice} {' or '.join(sorted(map(str, values)))}, where it acts; try without --{name}"
        need(not idle, f"got {name} {getattr(c, name)} with {choice} {getattr(c, choice)}; {readers}")
    if c.kl_coef and c.kl_in == "loss" and c.kl_estimator == "k1":
        say("warning: k1 in the loss has no gradient in expectation; try --kl_estimator k3_ratio, or --kl_in reward")


def check_config(config: BaseConfig, world: int = 1) -> None:
    """Raise UserError for settings that cannot work together."""
    check_trainer(config)
    need(max(config.gamma, config.gae_lambda) <= 1, "got gamma or gae_lambda above 1; expected 0 to 1; try --gamma 1")
    check_algorithm(config)
    if (warmup := config.critic_warmup_steps) >= config.steps:
        say(
            f"warning: got critic_warmup_steps {warmup} with steps {config.steps}: the policy does not train; try fewer"
        )
    say_idle(config, config.ppo_epochs * config.minibatches, PRESETS[config.algorithm])
    part = math.lcm(config.minibatches * world, config.group_size)
    need(
        config.batch_size % part == 0,
        f"got batch_size {config.batch_size}, group_size {config.group_size}, minibatches {config.minibatches}, "
        f"processes {world}; expected a batch_size, counted in completions, that is a multiple of {part}; "
        f"try --batch_size {math.ceil(config.batch_size / part) * part}",
    )
