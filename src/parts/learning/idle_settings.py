"""Settings without effect in a configuration: named at the start, with what would activate them."""

from collections.abc import Iterable

from parts.foundation.bundle import held_out_source
from parts.foundation.messages import say
from parts.foundation.settings import BaseConfig
from parts.learning.losses import mismatch_mode


def does_nothing(config: BaseConfig, decider: str, values: tuple) -> bool:
    """Whether the deciding setting has one of the values, or is off where none are given; False without such a one."""
    if decider in ("always", "held_out"):
        return decider == "always" or not (held_out_source(config) or getattr(config, "hold_out", 0))
    if not hasattr(config, decider) or (decider == "rollout_engine" and hasattr(config, "hardware")):
        return False  # under verl, which has hardware, vLLM always samples
    held = mismatch_mode(config) if decider == "mismatch" else getattr(config, decider)  # what auto stands for
    return held in values if values else not held


BOUNDS, EPSILONS = ("mismatch_low", "mismatch_high"), ("epsilon", "epsilon_high")
VLLM_OF_TRL = ("vllm_gpu_memory_utilization", "vllm_enable_sleep_mode", "vllm_server_base_url", "check_sync")
OF_EVALUATION = ("eval_every", "eval_rows", "eval_samples", "per_device_eval_batch_size")
# (settings, the one that decides whether they act, its values where they do not, why, what makes them act); of all
# trainers, TRL's names too
IDLE = [
    (("kl_in", "kl_estimator"), "kl_coef", (), "there is no KL", "--kl_coef 0.05"),
    (("kl_horizon",), "kl_target", (), "the KL coefficient is fixed", "--kl_target 5"),
    (("lora_alpha", "merge_lora"), "lora_rank", (), "there are no adapters", "--lora_rank 16"),
    (("critic_model",), "critic", ("shared",), "the critic is the policy's backbone", "--critic separate"),
    (BOUNDS, "mismatch", ("none",), "no mismatch is corrected", "--mismatch seq_mask"),
    (BOUNDS[:1], "mismatch", ("tis",), "tis has no lower bound", "--mismatch icepop"),
    (("vllm_memory", "check_sync"), "rollout_engine", ("hf",), "vLLM does not sample", "--rollout_engine vllm"),
    (("decode_graphs",), "rollout_engine", ("vllm",), "vLLM has graphs of its own", "--rollout_engine hf"),
    (VLLM_OF_TRL, "use_vllm", (), "vLLM does not sample", "--use_vllm colocate"),
    (EPSILONS, "loss_type", ("sapo", "vespo"), "this loss_type has no such bound", "--loss_type dapo"),
    (EPSILONS[:1], "loss_type", ("cispo",), "cispo has an upper cap only", "--loss_type dapo"),
    (OF_EVALUATION, "held_out", (), "there are no held-out prompts", "--eval_data FILE or --hold_out N"),
]
# what the ratio to the policy before the update enters, which is 1 in a rollout's first update
OF_RATIO = (
    *("clip_eps_low", "clip_eps_high", "dual_clip", "sapo_tau_pos", "sapo_tau_neg", "kl_cov_coef", "value_clip"),
    *("target_kl", *EPSILONS, "importance_sampling_level"),
)
RATIO_LOSSES = ("clip", "gspo", "cispo", "sapo", "gmpo", "dppo_tv", "dppo_kl", "kl_cov")  # all REINFORCE's at ratio 1


def idle_settings(config: BaseConfig, updates: int, named: Iterable[str] = ()) -> list[str]:
    """A line for each reason why settings do nothing: those that the user gave, or that a preset is named for.

    `updates` are the optimizer steps of a rollout.
    """
    passes = "--num_iterations 2" if hasattr(config, "num_iterations") else "--minibatches 4"
    once = "a rollout has one optimizer step, whose ratio is 1"
    table = [*IDLE]
    if updates == 1 and ".py:" not in str(getattr(config, "loss", "")):
        cap_below_1 = getattr(config, "loss_type", "") == "cispo" and 0 < config.epsilon_high < 1
        acting = {"epsilon_high"} if cap_below_1 else set()
        quantile = any(pair.startswith("top_entropy_quantile") for pair in getattr(config, "trainer_args", ()))
        acting |= {"importance_sampling_level"} if quantile else set()
        loss = ["loss"] if getattr(config, "loss", "") in RATIO_LOSSES else []
        names = [name for name in (*OF_RATIO, *loss) if name not in acting]
        table.append((names, "always", (), once, passes))
    if getattr(config, "objective", "policy_gradient") != "policy_gradient" and not config.reward_coef:
        names = (*OF_RATIO, "mismatch", *BOUNDS)
        table = [*IDLE, (names, "always", (), f"{config.objective} has no ratio", "--objective policy_gradient")]
    lines, asked = [], {*config.given, *named}
    for names, decider, values, why, remedy in table:
        idle = [f"{name} {getattr(config, name)}" for name in names if name in asked and getattr(config, name)]
        if idle and does_nothing(config, decider, values):
            lines.append(f"{', '.join(idle)}: without effect, as {why}; try {remedy}")
    return lines


def say_idle(config: BaseConfig, updates: int, named: Iterable[str] = ()) -> None:
    """Print `idle_settings` on stderr."""
    for line in idle_settings(config, updates, named):
        say(f"note: {line}")
