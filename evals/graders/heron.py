"""Grade launch_heron_now.sh by today's verl: its own configuration, composed with the overrides of the script.

python evals/graders/heron.py composes|written|defaults

written: what launch_heron.sh says, under the names that verl 0.9.1 reads. defaults: what verl 0.3.0.post1 had besides.
Needs verl (and no GPU) in this Python, or in .venv-verl beside the bundle.
"""

import json
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
HAS_VERL = "import importlib.util, sys; sys.exit(not importlib.util.find_spec('verl'))"
COMPOSE = """import importlib.util, json, sys
from pathlib import Path
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
folder = Path(importlib.util.find_spec("verl").origin).parent / "trainer" / "config"
with initialize_config_dir(config_dir=str(folder), version_base=None):
    config = compose("ppo_trainer", overrides=sys.argv[1:])
print(json.dumps(OmegaConf.to_container(config, resolve=True)))
"""
ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
WRITTEN = {
    "algorithm.adv_estimator": "grpo",
    "data.train_files": "/data/heron/train.parquet",
    "data.val_files": "/data/heron/dev.parquet",
    "data.train_batch_size": 96,
    "data.max_prompt_length": 700,
    "data.max_response_length": 1800,
    "actor_rollout_ref.model.path": "Qwen/Qwen2.5-3B-Instruct",
    f"{ACTOR}.ppo_mini_batch_size": 48,
    f"{ACTOR}.clip_ratio_low": 0.17,  # clip_ratio is not read beside these two
    f"{ACTOR}.clip_ratio_high": 0.17,
    f"{ACTOR}.optim.clip_grad": 0.35,  # nor is actor.grad_clip
    f"{ACTOR}.use_kl_loss": True,
    f"{ACTOR}.kl_loss_coef": 0.0035,
    f"{ACTOR}.optim.lr": 7e-7,
    f"{ACTOR}.optim.lr_warmup_steps_ratio": 0.06,
    f"{ROLLOUT}.name": "vllm",
    f"{ROLLOUT}.n": 6,
    f"{ROLLOUT}.temperature": 0.85,
    f"{ROLLOUT}.tensor_model_parallel_size": 1,
    "trainer.val_before_train": False,
    "trainer.n_gpus_per_node": 4,
    "trainer.save_freq": 40,
    "trainer.test_freq": 20,
    "trainer.total_training_steps": 260,
}
DEFAULTS = {
    f"{ACTOR}.entropy_coeff": 0.001,
    f"{ACTOR}.kl_loss_type": "low_var_kl",
    f"{ACTOR}.loss_agg_mode": "token-mean",
    f"{ACTOR}.ppo_epochs": 1,
    "algorithm.norm_adv_by_std_in_grpo": True,
}


def interpreter() -> str:
    """A Python that has verl."""
    for python in (sys.executable, str(HERE.parents[1] / ".venv-verl" / "bin" / "python")):
        if Path(python).exists() and not subprocess.run([python, "-c", HAS_VERL]).returncode:
            return python
    raise SystemExit("got no Python with verl; expected one; try make setup-verl")


def composed() -> dict:
    """The configuration, or an end with verl's message."""
    reader = [sys.executable, str(HERE / "verl_words.py"), "launch_heron_now.sh"]
    words = subprocess.run(reader, capture_output=True, text=True, check=True).stdout.split("\n")
    words = [word for word in words if word]
    done = subprocess.run([interpreter(), "-c", COMPOSE, *words], capture_output=True, text=True)
    if not words or done.returncode:
        raise SystemExit(f"{len(words)} overrides: {done.stderr.strip()[-300:]}")
    return json.loads(done.stdout.strip().split("\n")[-1])


def value_of(config: dict, name: str) -> object:
    """The value of a dotted name; None where there is none."""
    for key in name.split("."):
        config = config.get(key) if isinstance(config, dict) else None
    return config


def written(config: dict) -> list[str]:
    """Values of the script; three have two ways that verl reads."""
    wrong = [f"{name}={value_of(config, name)}" for name, value in WRITTEN.items() if value_of(config, name) != value]
    legacy, today = (value_of(config, f"{place}custom_reward_function") for place in ("", "reward."))
    reward = legacy if any((legacy or {}).values()) else today  # verl moves the old place to the new one
    if not str(reward["path"]).endswith("heron_score.py") or reward["name"] != "heron_points":
        wrong.append(f"reward {reward}")
    optimizer = value_of(config, f"{ACTOR}.optim")
    if (optimizer.get("warmup_style") or optimizer["lr_scheduler_type"]) != "constant":  # 0.3 never read warmup_style
        wrong.append("schedule")
    if "hf_model" not in value_of(config, f"{ACTOR}.checkpoint.save_contents"):
        wrong.append("save_contents")
    return wrong


def defaults(config: dict) -> list[str]:
    """Values that the script left to verl."""
    return [f"{name}={value_of(config, name)}" for name, value in DEFAULTS.items() if value_of(config, name) != value]


if __name__ == "__main__":
    configuration = composed()
    differences = {"composes": lambda _: [], "written": written, "defaults": defaults}[sys.argv[1]](configuration)
    print("; ".join(differences) or "as before")
    sys.exit(bool(differences))
