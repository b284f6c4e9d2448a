"""Resume points, and the exported model."""

import json
import shutil
from pathlib import Path

from parts.foundation.messages import need, say
from parts.foundation.processes import world
from parts.networks.models import base_of, generation_settings, load_pretrained, merged, tokenizer_of
from parts.running.output_folder import check_folder, write_folder
from programs.grpo_train.settings import Config


def saved_steps(config: Config) -> dict[int, Path]:
    """Complete checkpoints by step; one whose trainer_state.json, written last, cannot be read is not complete."""
    checkpoints = {}
    for folder in (Path(config.output_dir) / "checkpoints").glob("checkpoint-*"):
        try:
            state = json.loads((folder / "trainer_state.json").read_text())
            state["stateful_callbacks"]["RunCallback"]
        except (OSError, ValueError, KeyError):
            continue
        checkpoints[state["global_step"]] = folder
    return dict(sorted(checkpoints.items()))


def resume_point(config: Config) -> Path | None:
    """The checkpoint to resume from, if any; refuses another run's folder and a resume with other settings."""
    saved = saved_steps(config) if check_folder(config) else {}
    if config.resume and not saved:
        say(f"warning: got --resume, but {config.output_dir} holds no complete checkpoint; starting at step 0")
    return saved[max(saved)] if saved else None


def save_as_it_came(config: Config, folder: Path) -> None:
    """Save the start's tokenizer and generation settings: TRL's tokenizer pads on the left, rollouts obey no settings.

    An adapter has no generation settings of its own.
    """
    from transformers import AutoTokenizer

    AutoTokenizer.from_pretrained(tokenizer_of(config.model)).save_pretrained(folder)
    if (folder / "generation_config.json").exists():
        generation_settings(base_of(config.model)).to_json_file(folder / "generation_config.json")


def export_final(config: Config, trainer) -> None:
    """Write final/: the model in the dtype it came in, or its adapters, or both merged; it loads with transformers."""
    raw = Path(config.output_dir) / ".final.raw"
    trainer.save_model(str(raw))  # every process: sharded weights are gathered
    trainer.accelerator.wait_for_everyone()
    if world()[0] != 0:
        return
    need(
        list(raw.glob("*.safetensors")),
        "got no weights from the sharded model; expected whole ones; try FSDP's fsdp_state_dict_type: FULL_STATE_DICT, "
        "or DeepSpeed's stage3_gather_16bit_weights_on_model_save: true; the checkpoints are intact",
    )

    def write(folder: Path) -> None:
        from transformers import AutoConfig, AutoModelForCausalLM

        dtype = getattr(AutoConfig.from_pretrained(base_of(config.model)), "dtype", None) or trainer.model.dtype
        if config.lora_rank:
            adapter = folder / "adapter" if config.merge_lora else folder
            adapter.mkdir(exist_ok=True)
            for file in raw.glob("adapter_*"):
                shutil.copy(file, adapter)
        if config.merge_lora:
            merged(load_pretrained(AutoModelForCausalLM, str(raw), dtype=dtype)).save_pretrained(folder)
        elif not config.lora_rank:
            AutoModelForCausalLM.from_pretrained(raw, dtype=dtype).save_pretrained(folder)
        save_as_it_came(config, folder)

    write_folder(Path(config.output_dir) / "final", write)
    shutil.rmtree(raw)
