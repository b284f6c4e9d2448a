"""The state of a run, checkpoints, resuming, the exported model."""

import contextlib
import dataclasses
import functools
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from parts.foundation.messages import say
from parts.foundation.processes import gather_rows, of_first_process, raised_in_all, torch, transformers, world
from parts.foundation.settings import BaseConfig
from parts.learning.optimizer import lr_factor
from parts.networks.adapters import merged, save_network
from parts.networks.models import Models
from parts.networks.tokenizers import save_tokenizer
from parts.running.output_folder import check_folder, saved_settings, write_folder
from parts.sampling.sampling import restore_rng, rng_state


@dataclass(frozen=True)
class TrainState:
    """What a checkpoint keeps of a run beside its networks. `Progress.write` alone puts another in its place."""

    step: int = 0  # steps that are done
    kl_coef: float = 0.0  # the next step's
    kept: list[float] = field(default_factory=lambda: [0.0, 0.0])  # groups that differed, groups sampled, recent ones
    bad: int = 0  # non-finite updates in a row
    eval_before: dict | None = None
    eval_after: dict | None = None
    seconds: float = 0.0  # of earlier sessions
    prompts: int = 0  # taken from the stream
    pending: dict | None = None  # metrics of a step that is still to be evaluated


def save_checkpoint(config: BaseConfig, models: Models, optimizer, scaler, state: TrainState) -> None:
    """Save everything that the next step depends on, atomically; keep the newest few."""
    states = gather_rows([rng_state()])

    def write(folder: Path) -> None:
        save_network(models.policy, folder / "policy")
        save_tokenizer(models.tokenizer, folder / "policy")
        if models.critic:
            trained = {name for name, p in models.critic.named_parameters() if p.requires_grad}
            torch.save({k: v for k, v in models.critic.state_dict().items() if k in trained}, folder / "critic.pt")
        saved = {"optimizer": optimizer.state_dict(), "scaler": scaler.state_dict(), "rng": states}
        torch.save(saved, folder / "optimizer.pt")
        saved = dataclasses.asdict(state) | {"config": dataclasses.asdict(config)}
        (folder / "state.json").write_text(json.dumps(saved, indent=1))

    target = Path(config.output_dir) / "checkpoints" / f"step-{state.step:06d}"
    with raised_in_all():  # no process goes on before the checkpoint exists
        if world()[0] == 0:
            saved = json.loads((target / "state.json").read_text()) if target.exists() else None
            if not saved or saved.get("pending") != state.pending:  # else nothing has changed since
                write_folder(target, write)
            for old in checkpoints(config)[: -config.keep_checkpoints]:
                os.replace(old, old.with_name(f".{old.name}.gone"))  # a kill while it is deleted would leave half of it
            for gone in target.parent.glob(".step-*.gone"):
                shutil.rmtree(gone, ignore_errors=True)


def checkpoints(config: BaseConfig) -> list[Path]:
    """Complete checkpoints of the run, oldest first."""
    return sorted((Path(config.output_dir) / "checkpoints").glob("step-*"))


def trainer_checkpoints(folder: Path) -> dict[int, Path]:
    """{step: folder} of a transformers trainer's complete checkpoints; it writes trainer_state.json last."""
    complete = {}
    for checkpoint in folder.glob("checkpoint-*"):
        with contextlib.suppress(OSError, ValueError, KeyError):
            complete[json.loads((checkpoint / "trainer_state.json").read_text())["global_step"]] = checkpoint
    return complete


def restore(config: BaseConfig, models: Models, optimizer, scaler, checkpoint: Path | None) -> TrainState:
    """Load optimizer, scaler and generators of a checkpoint; return its state, or that of a new run.

    A new run's weights are those of the first process: a user's code may have seeded each one differently.
    """
    if not checkpoint:
        for p in (p for group in optimizer.param_groups for p in group["params"]):
            p.data.copy_(of_first_process(p.data))
        return TrainState(kl_coef=config.kl_coef)
    loaded = torch.load(checkpoint / "optimizer.pt", map_location=models.device, weights_only=False)
    optimizer.load_state_dict(loaded["optimizer"])
    scaler.load_state_dict(loaded["scaler"])
    restore_rng(loaded["rng"][world()[0] % len(loaded["rng"])])
    saved = json.loads((checkpoint / "state.json").read_text())
    saved.setdefault("prompts", saved["step"] * config.batch_size // config.group_size)  # runs older than the key
    return TrainState(**{f.name: saved[f.name] for f in dataclasses.fields(TrainState) if f.name in saved})


def note_schedule(schedule: str, factor: Callable[[int, int], float], step: int, before: int, steps: int) -> None:
    """Say so where `steps` in place of `before` move the learning rate after `step` steps, `factor(step, of)`."""
    old, new = (factor(min(step, number), number) for number in (before, steps))
    if step < steps and old != new:
        say(
            f"note: got --resume with steps {before} -> {steps}: by {schedule}, the learning rate of step {step + 1} "
            f"is {new:.3g} of its peak, not {old:.3g}"
        )


def find_checkpoint(config: BaseConfig) -> Path | None:
    """Return the checkpoint to resume from, if any; refuse another run's folder and a resume with other settings."""
    saved = checkpoints(config) if check_folder(config) else []
    if config.resume and not saved:
        say(f"warning: got --resume, but {config.output_dir} holds no checkpoint of it; starting at step 0")
    if saved:
        step = int(saved[-1].name.removeprefix("step-"))
        before = saved_settings(Path(config.output_dir)).get("steps", config.steps)
        factor = functools.partial(lr_factor, warmup=config.warmup_steps, schedule=config.lr_schedule)
        note_schedule(f"lr_schedule {config.lr_schedule}", factor, step, before, config.steps)
    return saved[-1] if saved else None


def export(config: BaseConfig, models: Models, target: Path) -> None:
    """Write final/: the policy in --save_dtype, or its adapters, with tokenizer; loads with transformers."""
    if world()[0] != 0:
        return
    policy, exact = models.policy, config.save_dtype == "fp32"
    if config.lora_rank and config.merge_lora:
        policy = merged(policy.float() if exact else policy)
    if not config.lora_rank and not exact:  # trained weights are fp32
        saved = transformers.AutoConfig.from_pretrained(config.model)
        policy = policy.to(getattr(saved, "dtype", None) or policy.dtype)

    def write(folder: Path) -> None:
        save_network(policy, folder)
        save_tokenizer(models.tokenizer, folder)

    write_folder(target, write)
