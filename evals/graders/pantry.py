"""Grade pantry_now.py: the run of pantry_grpo.py (TRL 0.17.0) on today's TRL. Prints every value that differs.

python evals/graders/pantry.py defaults|written|rewards

defaults: what the old run had from TRL 0.17.0 itself, read off its GRPOConfig. written: what its file says.
"""

import sys
from pathlib import Path

DEFAULTS = {
    "beta": 0.04,
    "temperature": 0.9,
    "top_k": 50,
    "top_p": 1.0,
    "loss_type": "bnpo",
    "max_completion_length": 256,
    "learning_rate": 1e-6,
    "num_iterations": 1,
    "epsilon": 0.2,
    "max_grad_norm": 1.0,
    "mask_truncated_completions": False,
    "bf16": False,
    "fp16": False,
    "lr_scheduler_type": "linear",
    "weight_decay": 0.0,
}
WRITTEN = {
    "max_steps": 340,
    "num_generations": 6,
    "per_device_train_batch_size": 6,
    "gradient_accumulation_steps": 2,
    "reward_weights": [1.0, 0.15],
}


def different(arguments, expected: dict) -> list[str]:
    """Names whose value is another."""
    return [
        f"{name} {got!r} for {value!r}"
        for name, value in expected.items()
        if (got := getattr(arguments, name)) != value and getattr(got, "value", None) != value
    ]


def defaults(module) -> list[str]:
    """What TRL 0.17.0 added."""
    return different(module.build_args(), DEFAULTS)


def written(module) -> list[str]:
    """What the file says; warm-up and scaling have other names or values today."""
    arguments = module.build_args()
    wrong = different(arguments, WRITTEN)
    if arguments.get_warmup_steps(arguments.max_steps) != 24:  # ceil(0.07 x 340)
        wrong.append("warm-up")
    if arguments.scale_rewards not in (False, "none"):
        wrong.append(f"scale_rewards {arguments.scale_rewards!r}")
    if str((arguments.model_init_kwargs or {}).get("dtype", "torch.float32")).removeprefix("torch.") != "float32":
        wrong.append("dtype")
    return wrong


def rewards(module) -> list[str]:
    """The same scores, whatever else TRL hands over."""
    said = ["Basil, of course", "dill and a lot of words that nobody asked for", "No idea"]
    given = {"herb": ["basil", "dill", "mint"], "spice_level": [3, 1, 2], "completion_ids": [[1]] * 3}
    extra = {"trainer_state": None, "log_extra": None, "log_metric": None, "environments": None}
    turns = [[{"role": "assistant", "content": text}] for text in said]
    expected = {"herb_score": [1.5, 0.5, -0.25], "brevity": [1.0, 0.0, 1.0]}
    got = {name: getattr(module, name)(prompts=["p"] * 3, completions=turns, **given, **extra) for name in expected}
    return [f"{name} {got[name]}" for name in expected if list(map(float, got[name])) != expected[name]]


if __name__ == "__main__":
    sys.path.insert(0, str(Path.cwd()))
    import pantry_now

    differences = {"defaults": defaults, "written": written, "rewards": rewards}[sys.argv[1]](pantry_now)
    print("; ".join(differences) or "the same")
    sys.exit(bool(differences))
