"""vLLM in TRL's process: the arguments of its engine that TRL does not pass on."""

import contextlib
import functools
from collections.abc import Iterator

from parts.models import unwrapped
from parts.vllm_options import import_vllm, vllm_options
from programs.grpo_train.settings import Config

BY_TRL = {  # arguments of the engine that TRL sets, and what to use for them
    **dict.fromkeys(("model", "tokenizer"), "--model"),
    "dtype": "--precision or --dtype",
    "seed": "--seed",
    "gpu_memory_utilization": "--vllm_gpu_memory_utilization",
    "max_model_len": "--max_prompt_length and --max_completion_length",
    "enable_sleep_mode": "--vllm_enable_sleep_mode",
    "tensor_parallel_size": "--trainer_args vllm_tensor_parallel_size=2",
    "model_impl": "--trainer_args vllm_model_impl=transformers",
    "trust_remote_code": "--trainer_args trust_remote_code=true",
    **dict.fromkeys(("logprobs_mode", "distributed_executor_backend"), "to leave it out"),
}


def sampler_dtype(config: Config, args) -> str:
    """The dtype in which the trainer computes log-probs, in vLLM's words; TRL leaves vLLM to choose one."""
    if args.bf16 or args.fp16:
        return "bfloat16" if args.bf16 else "float16"
    kind = args.model_init_kwargs["dtype"]
    if kind == "auto":  # that of the saved weights, where vLLM's own auto takes bfloat16 for float32
        from transformers import AutoConfig

        kind = AutoConfig.from_pretrained(config.model).dtype or "float32"
    return str(kind).removeprefix("torch.")


@contextlib.contextmanager
def engine_arguments(config: Config, args) -> Iterator[None]:
    """While TRL builds its engine, add the dtype, the seed and --vllm_args to what it passes."""
    if config.use_vllm != "colocate":
        yield
        return
    import_vllm("--use_vllm colocate", "to leave it out")
    from trl.generation import vllm_generation

    ours = {"dtype": sampler_dtype(config, args)} | ({"enforce_eager": True} if args.use_cpu else {})
    ours |= vllm_options(config.vllm_args, BY_TRL)
    build = vllm_generation.LLM
    vllm_generation.LLM = lambda **theirs: build(**theirs | ours | {"seed": theirs["seed"] + config.seed})
    try:
        yield
    finally:
        vllm_generation.LLM = build


def repair_copies(config: Config, trainer) -> None:
    """On a CPU let TRL's engine load its layers anew: vLLM packs their matrices there, and TRL's copy finds none."""
    if config.use_vllm == "colocate" and trainer.args.use_cpu:
        trainer.vllm_generation.sync_weights = functools.partial(reload_layers, trainer.vllm_generation)


def reload_layers(engine) -> None:
    """Copy the policy's weights into TRL's engine, adapters merged, and forget cached prefixes."""
    runner = engine.llm.llm_engine.model_executor.driver_worker.model_runner
    runner.reload_weights(weights_iterator=with_tied_head(engine))
    engine.llm.reset_prefix_cache()


def with_tied_head(engine) -> Iterator[tuple]:
    """TRL's named weights, and an output layer that shares its matrix: TRL names it once, vLLM keeps a packed copy."""
    head = unwrapped(engine.model).get_output_embeddings()
    names = set()
    for name, x in engine._iter_named_params():
        names.add(name)
        yield name, x
    if "lm_head.weight" not in names:
        yield "lm_head.weight", head.weight.data
