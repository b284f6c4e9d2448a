"""Settings under TRL's names, profiles, and contradictions between settings."""

import dataclasses
import importlib.util
import json
from dataclasses import dataclass

from parts.environments.play_setup import check_idle, check_room
from parts.foundation.messages import UserError, need, suggest
from parts.foundation.processes import torch, transformers
from parts.foundation.settings import check_values, in_order, parse_settings, setting
from parts.learning.optimizer import default_learning_rate
from parts.learning.trainer_settings import ConversationSettings, TrainerSettings
from parts.networks.loading import refuse_attention
from parts.sampling.sampling_vllm import VLLM_PIP


@in_order(
    profile="",
    max_prompt_length="chat_template_kwargs",
    environment="reward_retries",
    learning_rate="entropy_coef",
    gradient_checkpointing="attn_implementation",
    logging_steps="report_to",
    per_device_eval_batch_size="allow_overlap",
)
@dataclass
class Config(TrainerSettings, ConversationSettings):
    """Settings and defaults; every field is a flag and a key of --config. Names are TRL's where it has them."""

    # model and data
    profile: str = setting(
        "", "ready settings; other flags win over it", ["memory", "fast", "cpu"], free=True, section="model and data"
    )
    max_prompt_length: int = setting(512, "longer prompts are left out, and counted; in tokens", positive=True)
    reward: list[str] = setting([], "FILE.py:function[*weight] or a library's name, repeatable; first: eval/accuracy")
    output_dir: str = setting("runs/grpo", "folder for logs, checkpoints and final/", free=True)
    # rollout
    steps: int = setting(100, "optimizer steps (TRL: max_steps)", free=True, section="rollout")
    num_train_epochs: float = setting(0.0, "passes over the data, in place of --steps (0: off)", free=True)
    num_generations: int = setting(8, "completions per prompt: the group")
    per_device_train_batch_size: int = setting(
        0, "completions per forward pass (0: 128 below 50M parameters, else 8)", free=True
    )
    gradient_accumulation_steps: int = setting(
        0, "forward passes per step (0: 1 below 50M parameters, else 8)", free=True
    )
    steps_per_generation: int = setting(0, "forward passes per rollout (0: gradient_accumulation_steps)")
    num_iterations: int = setting(1, "optimization passes over each rollout", positive=True)
    max_completion_length: int = setting(256, "longest completion, in tokens", positive=True)
    temperature: float = setting(1.0, "sampling temperature", positive=True)
    top_p: float = setting(1.0, "nucleus sampling; below 1 the sampler is not the policy of the loss", positive=True)
    top_k: int = setting(0, "top-k sampling (0: off); as top_p")
    use_vllm: str = setting("", "sample with vLLM, in this process or from a server", ["colocate", "server"])
    vllm_gpu_memory_utilization: float = setting(0.3, "colocate: vLLM's share of GPU memory", positive=True, free=True)
    vllm_enable_sleep_mode: bool = setting(False, "vLLM releases its memory during updates", free=True)
    vllm_server_base_url: str = setting("", "address of a running vLLM server (default: 0.0.0.0:8000)", free=True)
    # algorithm
    loss_type: str = setting(
        "dapo",
        "form of the loss",
        ["grpo", "dapo", "dr_grpo", "bnpo", "cispo", "sapo", "luspo", "vespo"],
        section="algorithm",
    )
    importance_sampling_level: str = setting("token", "ratio per token, or per sequence (GSPO)", ["token", "sequence"])
    epsilon: float = setting(0.2, "the ratio is clipped below at 1 - this", positive=True)
    epsilon_high: float = setting(0.0, "the ratio is clipped above at 1 + this (0: epsilon; DAPO 0.28, cispo 5)")
    beta: float = setting(0.0, "weight of the KL to the reference; 0 loads no reference")
    scale_rewards: str = setting("group", "what the advantage is divided by", ["group", "batch", "none"])
    mask_truncated_completions: bool = setting(False, "truncated completions contribute no gradient")
    # optimization
    learning_rate: float = setting(
        0.0, "0: 5e-4 below 50M parameters, else 1e-6; with LoRA ten times that", section="optimization"
    )
    lr_scheduler_type: str = setting("linear", "shape after warm-up: linear, cosine, constant_with_warmup, …")
    warmup_steps: float = setting(0.0, "steps over which the learning rate rises; below 1, a share of all steps")
    optim: str = setting("adamw_torch_fused", "optimizer, by transformers' name")
    max_grad_norm: float = setting(1.0, "gradient clipping")
    # precision and memory
    dtype: str = setting(
        "",
        "dtype of the weights (default: float32, LoRA: as --precision)",
        ["auto", "float32", "bfloat16", "float16"],
        section="precision and memory",
    )
    use_cpu: bool = setting(False, "train on the CPU even if there is a GPU", free=True)
    gradient_checkpointing: str = setting("auto", "recompute activations; auto: on GPUs", ["auto", "true", "false"])
    merge_lora: bool = setting(False, "merge the adapters into final/; they stay beside it in final/adapter", free=True)
    save_dtype: str = setting(
        "checkpoint", "dtype of final/: --model's (bf16 loses small changes) or fp32", ["checkpoint", "fp32"], free=True
    )
    # logs and checkpoints
    logging_steps: int = setting(1, "steps between lines of metrics.jsonl", positive=True, free=True)
    per_device_eval_batch_size: int = setting(0, "held-out prompts sampled at once (0: as in a rollout)", free=True)
    save_steps: int = setting(50, "steps between checkpoints, raised to whole rollouts (0: only at a stop)", free=True)
    save_total_limit: int = setting(2, "newest checkpoints to keep", positive=True, free=True)
    trainer_args: list[str] = setting([], "key=value …: any other field of TRL's GRPOConfig", several=True)

    def __post_init__(self):
        self.chat = self.chat or bool(self.environment)  # a conversation begins with a user's turn

    @property
    def max_new_tokens(self) -> int:
        """The bound of an answer, by the name that the parts read."""
        return self.max_completion_length

    @property
    def max_prompt_tokens(self) -> int:
        """The bound of a prompt, by the name that the parts read."""
        return self.max_prompt_length


PROFILES = {
    # one GPU of 16 to 24 GB: up to about 3B parameters, 7B with --load_in_4bit
    "memory": {
        "lora_rank": 16,
        "precision": "bf16",
        "gradient_checkpointing": "true",
        "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": 16,
    },
    # GPUs of 80 GB with vLLM in the same process
    "fast": {
        "use_vllm": "colocate",
        "vllm_enable_sleep_mode": True,
        "vllm_gpu_memory_utilization": 0.5,
        "precision": "bf16",
        "per_device_train_batch_size": 16,
        "gradient_accumulation_steps": 4,
        "max_completion_length": 1024,
    },
    # what the smoke tests use
    "cpu": {
        "use_cpu": True,
        "precision": "fp32",
        "gradient_checkpointing": "false",
        "per_device_train_batch_size": 64,
        "gradient_accumulation_steps": 1,
        "max_completion_length": 48,
    },
}

# fields of TRL's config that this file sets itself: what to use
SET_HERE = {
    "max_steps": "--steps",
    **dict.fromkeys(("bf16", "fp16"), "--precision"),
    **dict.fromkeys(("eval_strategy", "eval_steps", "do_eval", "eval_on_start"), "--eval_data and --eval_every"),
    "activation_checkpointing": "--gradient_checkpointing",
    "resume_from_checkpoint": "--resume",
    "reward_weights": "--reward FILE.py:f*0.5",
    "vllm_mode": "--use_vllm",
    "save_strategy": "--save_steps",
    "generation_batch_size": "--steps_per_generation",
    "auto_find_batch_size": "--profile memory",
    "data_seed": "--seed",
    "shuffle_dataset": "leaving it out: each pass over the prompts has an order of its own",
    "max_tool_calling_iterations": "--max_turns, which is one more",
    **dict.fromkeys(("remove_unused_columns", "num_generations_eval"), "leaving it out"),
    **dict.fromkeys(("load_best_model_at_end", "disable_tqdm"), "leaving it out"),
}


def parse_config(argv: list[str]) -> Config:
    """Settings of a command line: defaults, then --profile, then --config, then flags; a later one wins."""
    config = parse_settings(argv, Config, __doc__)
    for name, value in PROFILES.get(config.profile, {}).items():
        if name not in config.given:
            setattr(config, name, value)
    return config


def trainer_fields(pairs: list[str]) -> dict:
    """Read --trainer_args: key=value with a field of TRL's GRPOConfig, typed by transformers' parser."""
    if not pairs:
        return {}
    from trl import GRPOConfig

    def refuse(message: str) -> None:
        raise UserError(f"got --trainer_args {pair!r}: {message}")

    parser, values = transformers.HfArgumentParser(GRPOConfig), {}
    parser.error = refuse
    names, flags = ([f.name for f in dataclasses.fields(kind)] for kind in (GRPOConfig, Config))
    for pair in pairs:
        key, equals, text = pair.partition("=")
        flag = SET_HERE.get(key, f"--{key} {text}" if key in flags else "")
        stale = f"{suggest(key, [*names, *flags])}; or see references/grpo_trl.md, Where memory may be stale"
        if not equals or flag or key not in names:
            other = f"; try {flag}" if flag else stale
            refuse(f"expected key=value with a field of TRL's GRPOConfig that this script leaves to you{other}")
        values[key] = getattr(parser.parse_args([f"--{pair}"]), key)
        if text.startswith("{"):
            try:
                values[key] = json.loads(text)
            except ValueError as error:
                refuse(f"expected JSON: {error}")
    return values


def check_settings(config: Config) -> None:
    """Raise UserError for settings that cannot be right, whatever the model."""
    c = config
    check_values(c, "model", "data", "output_dir", "prompt_column")
    check_idle(c, bool(c.environment))
    check_room(c, c.max_prompt_length)
    need(c.steps or c.num_train_epochs, "got --steps 0; expected 1 or more")
    need(c.lora_rank or not c.load_in_4bit, "got --load_in_4bit without adapters; try --lora_rank 16")
    need(c.lora_rank or not c.merge_lora, "got --merge_lora without adapters; try --lora_rank 16")
    need(c.top_p <= 1, f"got top_p {c.top_p}; expected at most 1; try 0.95")
    idle = c.vllm_args and c.use_vllm != "colocate"
    need(not idle, "got --vllm_args without vLLM in this process; try --use_vllm colocate, or the server's own flags")
    missing = [name for name in c.report_to if not importlib.util.find_spec(name)]
    need(not missing, f"got --report_to {', '.join(missing)}, not installed; try `pip install {' '.join(missing)}`")


def check_machine(config: Config) -> None:
    """Raise UserError for settings that need hardware or packages that are not there."""
    gpu = torch.cuda.is_available() and not config.use_cpu
    if config.use_vllm:
        other = f"try `{VLLM_PIP}`, or leave --use_vllm (or --profile fast) out to sample with transformers"
        need(importlib.util.find_spec("vllm"), f"got --use_vllm {config.use_vllm}, but vLLM is not installed; {other}")
        served = config.use_vllm == "server"  # TRL's transfer of weights to it is CUDA's
        need(gpu or not served, "got --use_vllm server without a GPU; expected CUDA; try --use_vllm colocate")
    fp16 = config.precision == "fp16"
    need(gpu or not fp16, "got --precision fp16 on a CPU; expected fp32 or bf16; try --precision fp32")
    if config.attn_implementation == "flex_attention" and not gpu:
        raise refuse_attention(config, config.model, "it has no backward pass on a CPU")
    if "8bit" in config.optim and not (gpu and importlib.util.find_spec("bitsandbytes")):
        got = f"got --optim {config.optim}; expected CUDA and `pip install bitsandbytes`"
        raise UserError(f"{got}; try --optim adamw_torch_fused")


def fill_in(config: Config, parameters: int) -> Config:
    """Fill in the settings that follow from the model's size and from one another."""
    tiny = parameters < 50e6
    return dataclasses.replace(
        config,
        learning_rate=config.learning_rate or default_learning_rate("trl_policy", parameters, bool(config.lora_rank)),
        per_device_train_batch_size=config.per_device_train_batch_size or (128 if tiny else 8),
        gradient_accumulation_steps=config.gradient_accumulation_steps or (1 if tiny else 8),
    )
