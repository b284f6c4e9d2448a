"""Checkpoints, resuming, the exported model."""

import dataclasses
import json
import shutil
from pathlib import Path

from parts.foundation.messages import UserError, say
from parts.foundation.processes import gather_rows, world
from parts.foundation.settings import BaseConfig
from parts.networks.models import Models, merged, save_network, save_tokenizer
from parts.running.output_folder import check_folder, write_folder
from parts.sampling.sampling import restore_rng, rng_state


def save_checkpoint(config: BaseConfig, models: Models, optimizer, scaler, state: dict) -> None:
    """Save everything that the next step depends on, atomically; keep the newest few."""
    import torch

    states, failure = gather_rows([rng_state()]), None
    if world()[0] == 0:

        def write(folder: Path) -> None:
            save_network(models.policy, folder / "policy")
            save_tokenizer(models.tokenizer, folder / "policy")
            if models.critic:
                trained = {name for name, p in models.critic.named_parameters() if p.requires_grad}
                torch.save({k: v for k, v in models.critic.state_dict().items() if k in trained}, folder / "critic.pt")
            saved = {"optimizer": optimizer.state_dict(), "scaler": scaler.state_dict(), "rng": states}
            torch.save(saved, folder / "optimizer.pt")
            (folder / "state.json").write_text(json.dumps({**state, "config": dataclasses.asdict(config)}, indent=1))

        target = Path(config.output_dir) / "checkpoints" / f"step-{state['step']:06d}"
        try:
            if not target.exists():  # saved already: nothing changes between two saves of one step
                write_folder(target, write)
            for old in checkpoints(config)[: -config.keep_checkpoints]:
                shutil.rmtree(old)
        except UserError as error:
            failure = error
    gather_rows([], failure)  # nobody goes on before the checkpoint is there


def checkpoints(config: BaseConfig) -> list[Path]:
    """Complete checkpoints of the run, oldest first."""
    return sorted((Path(config.output_dir) / "checkpoints").glob("step-*"))


def restore(models: Models, optimizer, scaler, checkpoint: Path) -> dict:
    """Load optimizer, scaler and generators; return the saved state."""
    import torch

    saved = torch.load(checkpoint / "optimizer.pt", map_location=models.device, weights_only=False)
    optimizer.load_state_dict(saved["optimizer"])
    scaler.load_state_dict(saved["scaler"])
    restore_rng(saved["rng"][world()[0] % len(saved["rng"])])
    return json.loads((checkpoint / "state.json").read_text())


def find_checkpoint(config: BaseConfig) -> Path | None:
    """Return the checkpoint to resume from, if any; refuse another run's folder and a resume with other settings."""
    saved = checkpoints(config) if check_folder(config) else []
    if config.resume and not saved:
        say(f"warning: got --resume, but {config.output_dir} holds no checkpoint of it; starting at step 0")
    return saved[-1] if saved else None


def export(config: BaseConfig, models: Models, target: Path) -> None:
    """Write final/: the policy in the dtype it came in, or its adapters, with tokenizer; loads with transformers."""
    from transformers import AutoConfig

    if world()[0] != 0:
        return
    policy = models.policy
    if config.lora_rank and config.merge_lora:
        policy = merged(policy)
    if not config.lora_rank:
        policy = policy.to(getattr(AutoConfig.from_pretrained(config.model), "dtype", None) or policy.dtype)

    def write(folder: Path) -> None:
        save_network(policy, folder)
        save_tokenizer(models.tokenizer, folder)

    write_folder(target, write)
