"""Our settings as TRL's."""

import dataclasses
from pathlib import Path

from parts.data.chat import template_settings
from parts.foundation.messages import UserError
from parts.networks.models import attention_choice, precision_on
from programs.grpo_train.settings import Config, trainer_fields

OPTIONAL = ("steps_per_generation", "epsilon_high", "vllm_server_base_url")  # 0 or "" here is None there
OTHERWISE = ("num_train_epochs", "gradient_checkpointing")  # names of TRL's with another meaning or default there


def trl_settings(config: Config, steps: int) -> dict:
    """Arguments of TRL's GRPOConfig for a resolved config."""
    import torch
    from trl import GRPOConfig

    gpu = torch.cuda.is_available() and not config.use_cpu
    precision = precision_on(config.precision, torch.device("cuda" if gpu else "cpu"))
    compute = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}[precision]
    checkpointing = config.gradient_checkpointing == "true" or (config.gradient_checkpointing == "auto" and gpu)
    names = {f.name for f in dataclasses.fields(GRPOConfig)} - {*OTHERWISE}
    settings = {name: value for name, value in dataclasses.asdict(config).items() if name in names}
    settings |= {name: getattr(config, name) or None for name in OPTIONAL}
    settings |= {
        "output_dir": str(Path(config.output_dir) / "checkpoints"),
        "max_steps": steps,
        "bf16": precision == "bf16",
        "fp16": precision == "fp16",
        "use_cpu": not gpu,
        "dataloader_pin_memory": gpu,
        "activation_checkpointing": checkpointing,  # TRL still lists the older name, gradient_checkpointing
        "use_vllm": bool(config.use_vllm),
        "vllm_mode": config.use_vllm or "colocate",
        "save_strategy": "steps" if config.save_steps else "no",
        "save_steps": config.save_steps or 500,
        "report_to": config.report_to or "none",
        "run_name": Path(config.output_dir).name,
        "disable_tqdm": True,
        "shuffle_dataset": False,
        "remove_unused_columns": False,  # prompt_order shuffles; rewards need their rows
    }
    if config.use_vllm == "colocate":
        settings["vllm_max_model_length"] = config.conversation_tokens
    settings["model_init_kwargs"] = {"dtype": config.dtype or (compute if config.lora_rank else "float32")}
    settings["model_init_kwargs"] |= attention_choice(config)
    extra = trainer_fields(config.trainer_args)
    settings["chat_template_kwargs"] = template_settings(config)
    settings["model_init_kwargs"] |= extra.pop("model_init_kwargs", None) or {}
    return settings | extra


def trl_config(config: Config, steps: int):
    """TRL's GRPOConfig; what it refuses is told as a UserError."""
    from trl import GRPOConfig

    try:
        return GRPOConfig(**trl_settings(config, steps))
    except (ValueError, TypeError, ImportError) as error:
        raise UserError(f"TRL refuses these settings: {error}") from error
