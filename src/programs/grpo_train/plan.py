"""What a run will need: its memory, the micro-batch that fits, and --dry_run."""

import dataclasses
import os

from parts.foundation.processes import world
from parts.networks.models import shaped_network
from parts.running.fit import SAMPLING, UPDATE, Sizes, ladder, lighter_settings, settle_or_refuse, show_plan
from parts.running.memory import (
    PassShape,
    adapter_weights,
    attention_kind,
    frozen_bytes,
    memory_of_run,
    shape_of,
    trl_head,
)
from parts.running.plan import batch_plan, environment_plan
from programs.grpo_train.prepare import Prepared, prepare_run
from programs.grpo_train.settings import Config
from programs.grpo_train.trl_arguments import trl_settings


def trl_pass(config: Config, model, args: dict, length: int) -> PassShape:
    """The micro-batch of an update, were all its rows of this length."""
    stream = 4 if args["model_init_kwargs"]["dtype"] == "float32" else 2
    given = args["model_init_kwargs"].get("attn_implementation")
    return PassShape(
        rows=config.per_device_train_batch_size,
        length=length,
        compute=2 if args["bf16"] or args["fp16"] else stream,
        stream=stream,
        attention=attention_kind(given or model.config._attn_implementation),
        checkpointing=args["activation_checkpointing"],
        lora_rank=config.lora_rank,
    )


def moments(optimizer: str) -> float:
    """Numbers that an optimizer of transformers keeps of a weight, in the weight's width."""
    if optimizer.startswith(("sgd", "adafactor")):
        return 0
    return 0.5 if "8bit" in optimizer else 2


def trl_memory(ready: Prepared, config: Config, model, longest: int, processes: int) -> dict[str, float]:
    """Bytes per process, see `memory_of_run`; what vLLM takes is left out.

    {} where weights are sharded, which this does not count.
    """
    args, parameters, shape = trl_settings(config, ready.plan.steps), ready.parameters, shape_of(model)
    sharded = any(os.environ.get(f"ACCELERATE_USE_{name}") for name in ("DEEPSPEED", "FSDP", "MEGATRON_LM"))
    if not shape or sharded or args.get("deepspeed") or args.get("fsdp"):
        return {}
    whole = config.conversation_tokens if config.converses else longest + config.max_completion_length
    run = trl_pass(config, model, args, whole)
    if config.lora_rank:
        each, adapters = 0.516 if config.load_in_4bit else run.stream, adapter_weights(shape, config.lora_rank)
        kept, gradients = frozen_bytes(shape, parameters, each, run.stream) + 12 * adapters, 4 * adapters
    else:
        kept, gradients = (1 + moments(config.optim)) * parameters * run.stream, parameters * run.stream
    reference = parameters * run.stream if config.beta and not config.lora_rank else 0
    at_once = 0 if config.use_vllm else ready.plan.completions_per_rollout // processes
    head = trl_head(shape, run, not args["use_cpu"])
    frozen = {"reference": reference}
    return memory_of_run(shape, run, (kept, gradients), frozen, head, at_once, config.max_completion_length)


def splits(config: Config, of_run: Config, heed: bool) -> list[dict]:
    """Completions of a forward pass and forward passes of a step, whose product stays; one pair where they matter.

    Args:
        of_run: the settings as they were given, 0 where they were left open.
    """
    batch, passes = config.per_device_train_batch_size, config.gradient_accumulation_steps
    names = ("per_device_train_batch_size", "gradient_accumulation_steps", "steps_per_generation")
    left_open = not any(getattr(of_run, name) for name in names)
    exact = config.loss_type != "bnpo" and config.top_entropy_quantile == 1  # these look at a forward pass
    sizes = [size for size in ladder(batch, 1) if batch % size == 0] if exact and (left_open or not heed) else [batch]
    return [{names[0]: size, names[1]: passes * batch // size} for size in sizes]


def sizes_of_run(ready: Prepared, of_run: Config, processes: int) -> Sizes:
    """What may be chosen by the memory that is free."""
    config, longest = ready.config, max(len(row["prompt_ids"]) for row in ready.rows)
    model, checkpointing = shaped_network(config, config.model), {"gradient_checkpointing": "true"}
    recompute = {} if trl_settings(config, 1)["activation_checkpointing"] else checkpointing
    beside = config.use_vllm == "colocate" and not config.vllm_enable_sleep_mode
    return Sizes(
        estimate=lambda changed: trl_memory(ready, changed, model, longest, processes),
        choices=lambda changed, heed: {UPDATE: splits(changed, of_run, heed), SAMPLING: [{}]},
        text=lambda changed: f"micro-batches of {changed.per_device_train_batch_size} completions",
        lighter=lighter_settings(config, "max_completion_length", recompute, bits=not config.merge_lora),
        aside=config.vllm_gpu_memory_utilization if beside else 0.0,
    )


def settle_batch(ready: Prepared, of_run: Config) -> None:
    """Let a forward pass be as large as memory allows; UserError where a run cannot fit."""
    settle_or_refuse(ready.config, trl_device(ready.config), sizes_of_run(ready, of_run, world()[1]))


def trl_device(config: Config) -> str:
    """What TRL will train on."""
    if trl_settings(config, 1)["use_cpu"]:
        return "cpu"
    return f"cuda:{os.environ.get('LOCAL_RANK', '0')}"


def show_trl_plan(config: Config) -> int:
    """Print batch arithmetic, memory per process, and the settings that are no defaults, as JSON."""
    ready = prepare_run(config)
    resolved, plan = ready.config, ready.plan
    turns = resolved.max_turns if resolved.converses else 1
    completions = plan.rollouts * plan.completions_per_rollout
    passes = plan.rollouts * plan.prompts_per_rollout / len(ready.rows)
    batch = (
        batch_plan(config, ready.tokenizer, ready.rows, ready.held_out)
        | dataclasses.asdict(plan)
        | {
            "prompts_per_step": plan.completions_per_step / resolved.num_generations / resolved.num_iterations,
            "optimizer_steps": plan.steps,
            "passes_over_the_data": round(passes, 2),
            "completion_tokens_at_most": completions * turns * resolved.max_completion_length,
        }
    )
    shown = {"batch": batch, "stages": [dataclasses.asdict(stage) for stage in ready.stages]}
    shown |= {"parameters": ready.parameters} | environment_plan(resolved, ready.setup)
    sizes = sizes_of_run(ready, config, int(os.environ.get("WORLD_SIZE", "1")))
    show_plan(resolved, trl_device(resolved), sizes, shown)
    return 0
