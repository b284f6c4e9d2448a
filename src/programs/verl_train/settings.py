"""Settings, hardware by name, and verl's names of estimators, losses and aggregations."""

import dataclasses
from dataclasses import dataclass
from types import SimpleNamespace

from parts.foundation.dialect import flag_values
from parts.foundation.settings import build_parser, in_order, parse_flags, parse_settings, setting, yaml_flags
from parts.learning.own_functions import NamesOrFiles
from parts.learning.trainer_settings import PolicySettings
from parts.networks.models import precision_on

ADVANTAGES = {  # our estimator -> verl's; those that end in _ours are registered by verl_hooks.py
    "gae": "gae",
    "grpo": "grpo",
    "mean": "grpo",
    "rloo": "rloo",
    "opo": "opo",
    "gpg": "gpg_ours",
    "gpg_verl": "gpg",
    "maxrl": "maxrl_ours",
    **dict.fromkeys(("gdpo", "remax")),  # verl's default trainer gives no scores by function, and no baselines
    "reinforce_pp": "reinforce_plus_plus",
    "reinforce_pp_baseline": "reinforce_plus_plus_baseline",
}
LOSSES = {
    "clip": "vanilla",
    "reinforce": "gpg",
    "gspo": "gspo",
    "cispo": "cispo",
    "sapo": "sapo",
    "gmpo": "geo_mean",
    "dppo_tv": "dppo_tv",
    "dppo_kl": "dppo_kl",
    "clip_cov": "clip_cov",
    "kl_cov": "kl_cov",
}
AGGREGATIONS = {
    "token_mean": "token-mean",
    "seq_mean_token_mean": "seq-mean-token-mean",
    "seq_mean_token_sum": "seq-mean-token-sum",
    "seq_mean_token_sum_norm": "seq-mean-token-sum-norm",
    "fixed_length": "seq-mean-token-sum-norm",
}
OWN_NAME = "own_ours"  # what the job calls an estimator or a loss of the user's own
OWN_LOSS_MODULE = "verl_own_loss"  # the job's file that puts such a loss into verl's registry

VERL = "0.9.1"
INSTALL = "try `make setup-verl` and .venv-verl/bin/python, or pip install -r requirements-verl.txt elsewhere"


@in_order(advantage="group_size", hardware="dry_run")
@dataclass
class Config(PolicySettings):
    """All settings and their defaults: those of ppo_train.py, then verl's; each is a flag and a key of --config."""

    # algorithm: choices
    advantage: str = setting(
        None, "advantage estimator, or your own, FILE.py:function of scores, groups …", lambda: NamesOrFiles(ADVANTAGES)
    )
    loss: str = setting(
        None, "policy loss, or your own, FILE.py:function of logprobs, old_logprobs …", lambda: NamesOrFiles(LOSSES)
    )
    aggregation: str = setting(None, "how token losses become one number", lambda: list(AGGREGATIONS))
    # machines
    hardware: str = setting(
        "", "preset for machines; other flags win over it", lambda: list(HARDWARE), section="machines"
    )
    nodes: int = setting(1, "number of machines", positive=True)
    gpus_per_node: int = setting(1, "GPUs per machine", positive=True)
    cpus: int = setting(0, "CPUs per node that Ray may use (0: as many as this machine has)")
    # engines
    verl_rollout: str = setting("vllm", "sampling engine", ["vllm", "sglang"], section="engines")
    rollout_tensor_parallel: int = setting(1, "GPUs per sampler", positive=True)
    sequence_parallel: int = setting(1, "GPUs per sequence (Ulysses)", positive=True)
    offload: str = setting("none", "what moves to CPU memory while it is not needed", ["none", "optimizer", "all"])
    override: list[str] = setting(
        [],
        "Hydra override KEY=VALUE for verl, repeatable; wins over the settings",
        section="verl's own keys, and runs of TRL",
    )
    data_source: str = setting(
        "", "verl's data_source of all rows (default: their column source, else the file's name)"
    )
    overrides: str = setting("", "FILE of hand-written overrides, KEY=VALUE per line, for --check to validate")
    from_trl: str = setting(
        "",
        "FILE.py of a run with TRL's GRPOTrainer: its settings, rewards and data; flags win; what is lost is reported",
    )
    trl_processes: int = setting(0, "processes of the TRL run, which scale its batch size (0: nodes x gpus_per_node)")
    ship: list[str] = setting([], "further file that a reward or environment needs, repeatable")
    # what to do
    print: bool = setting(
        False, "print the command and write the job folder, which `ray job submit` takes", section="what to do"
    )
    export: str = setting(
        "", "write run.sh, verl_reward.py and data to this folder, which then needs neither this script nor its bundle"
    )
    check: bool = setting(False, "compose and load everything with the installed verl, without starting a run")
    run: bool = setting(False, "train on this machine, in its own Ray")

    def __post_init__(self):
        super().__post_init__()
        if self.precision == "auto":
            self.precision = "bf16"  # which the GPUs of verl's machines have
            if self.run:
                import torch

                self.precision = precision_on("auto", torch.device("cuda" if torch.cuda.is_available() else "cpu"))


# The flags that a machine stands for; a larger model needs others (references/verl_training.md, memory arithmetic).
ON_GPU = {"precision": "bf16", "gradient_checkpointing": "true", "micro_batch_tokens": "16384"}
SMALL = {"offload": "all", "vllm_memory": "0.4", "micro_batch_tokens": "8192"}
MACHINE = {"gpus_per_node": "8", "vllm_memory": "0.6"}
HARDWARE = {
    "1x24GB": ON_GPU | SMALL,
    "1x80GB": ON_GPU | {"offload": "optimizer", "vllm_memory": "0.5"},
    "8x80GB": ON_GPU | MACHINE,
    "2x8x80GB": ON_GPU | MACHINE | {"nodes": "2"},
}


def given_flags(words: list[str]) -> SimpleNamespace:
    """The settings that a command line has, None for the others; bad flags end the program at once."""
    flags = parse_flags(build_parser(Config, __doc__), words)
    return SimpleNamespace(**dict.fromkeys(["config", *(f.name for f in dataclasses.fields(Config))]) | vars(flags))


def hardware_flags(words: list[str]) -> list[str]:
    """The flags that --hardware stands for, from the command line or the file of --config; others win over them."""
    given, flags = given_flags(words), {}
    if given.config and not given.hardware:  # the file's other lines win over its hardware
        flags = flag_values(yaml_flags(given.config, [*vars(given)]))
    ready = HARDWARE.get(given.hardware or flags.get("hardware"), {})
    return [f"--{name}={value}" for name, value in ready.items() if name not in flags]


def parse_config(argv: list[str]):
    return parse_settings(argv, Config, __doc__)
