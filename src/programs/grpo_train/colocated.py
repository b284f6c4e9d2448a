"""vLLM in TRL's process: the arguments of its engine that TRL does not pass on, and proof of its weights."""

import contextlib
import functools
from collections.abc import Callable, Iterator

from parts.foundation.processes import raised_in_all, transformers
from parts.networks.adapters import base_of
from parts.networks.models import unwrapped
from parts.networks.tokenizers import token_count
from parts.sampling.sampling_vllm import VLLM_PIP, cut_vocabulary, import_vllm, vllm_options
from parts.sampling.sync_check import SyncCheck
from programs.grpo_train.settings import Config

BY_TRL = {  # arguments of the engine that TRL sets, and what to use for them
    **dict.fromkeys(("model", "tokenizer"), "--model"),
    "dtype": "--precision or --dtype",
    "seed": "--seed",
    "gpu_memory_utilization": "--vllm_gpu_memory_utilization",
    "max_model_len": "--max_prompt_length and --max_completion_length",
    "enable_sleep_mode": "--vllm_enable_sleep_mode",
    "enable_lora": "leaving it out: TRL merges adapters for the copy",
    "tensor_parallel_size": "--trainer_args vllm_tensor_parallel_size=2",
    "model_impl": "--trainer_args vllm_model_impl=transformers",
    "trust_remote_code": "--trainer_args trust_remote_code=true",
    **dict.fromkeys(("logprobs_mode", "distributed_executor_backend"), "leaving it out"),
}


def sampler_dtype(config: Config, args) -> str:
    """The dtype in which the trainer computes log-probs, in vLLM's words; TRL leaves vLLM to choose one."""
    if args.bf16 or args.fp16:
        return "bfloat16" if args.bf16 else "float16"
    kind = args.model_init_kwargs["dtype"]
    if kind == "auto":  # that of the saved weights, where vLLM's own auto takes bfloat16 for float32
        kind = transformers.AutoConfig.from_pretrained(base_of(config.model)).dtype or "float32"
    return str(kind).removeprefix("torch.")


@contextlib.contextmanager
def engine_arguments(config: Config, args) -> Iterator[None]:
    """While TRL builds its engine, add the dtype, the seed and --vllm_args to what it passes."""
    if config.use_vllm != "colocate":
        yield
        return
    import_vllm("--use_vllm colocate", "leaving it out")
    from trl.generation import vllm_generation

    ours = {"dtype": sampler_dtype(config, args)} | ({"enforce_eager": True} if args.use_cpu else {})
    ours |= vllm_options(config.vllm_args, BY_TRL)
    build = vllm_generation.LLM
    vllm_generation.LLM = lambda **theirs: build(**theirs | ours | {"seed": theirs["seed"] + config.seed})
    try:
        yield
    finally:
        vllm_generation.LLM = build


def sample_tokens_only(config: Config, trainer) -> None:
    """Keep TRL's sampler from rows of the embedding that are no tokens; a vLLM server is left as it is."""
    known = token_count(trainer.processing_class, trainer.eos_token_ids)
    rows = unwrapped(trainer.model).get_input_embeddings().weight.shape[0]
    if config.use_vllm == "colocate":
        cut_vocabulary(network_of(trainer.vllm_generation).get_model(), known)
    elif known < rows and not config.use_vllm:
        given = trainer.generation_config.suppress_tokens or []
        trainer.generation_config.suppress_tokens = [*given, *range(known, rows)]


def watch_copies(config: Config, trainer) -> SyncCheck | None:
    """Compare the weights of TRL's engine with the policy's after copies, as --check_sync says; None without vLLM.

    On a CPU the engine's layers are loaded anew: vLLM packs their matrices there, and TRL's own copy finds none.
    """
    if not config.use_vllm:
        return None
    watch = SyncCheck(config.check_sync, f"`{VLLM_PIP}`, or to leave --use_vllm out")
    if config.use_vllm == "colocate":  # of a server's weights only the log-probs tell
        engine = trainer.vllm_generation
        copy = functools.partial(reload_layers, engine) if trainer.args.use_cpu else engine.sync_weights
        engine.sync_weights = functools.partial(copy_and_compare, trainer, copy, watch)
    return watch


def copy_and_compare(trainer, copy: Callable, watch: SyncCheck) -> None:
    copy()
    engine, step = trainer.vllm_generation, trainer.state.global_step
    if engine.tensor_parallel_size > 1 or not watch.due(step):  # an engine on several GPUs has shards of tensors
        return
    with raised_in_all():
        watch.compare(step, with_tied_head(engine), network_of(engine).get_model())


def judge_logprobs(config: Config, args, watch: SyncCheck | None, step: int, logs: dict) -> None:
    """Raise StaleSamplerError where TRL found sampler and trainer too far apart in the mean since its last log entry.

    What top-p and the like leave of a distribution has other log-probs than the trainer's.
    """
    gap = logs.get("sampling/sampling_logp_difference/mean")
    whole = config.top_p == 1 and not config.top_k and not args.min_p and args.repetition_penalty == 1
    if watch and watch.every and gap is not None and whole and not args.generation_kwargs:
        rounded = any(pair.startswith("quantization") for pair in config.vllm_args)
        exact = config.use_vllm == "colocate" and sampler_dtype(config, args) == "float32" and not rounded
        watch.judge(step, gap, exact)


def network_of(engine):
    """What runs vLLM's model in this process."""
    return engine.llm.llm_engine.model_executor.driver_worker.model_runner


def reload_layers(engine) -> None:
    """Copy the policy's weights into TRL's engine, adapters merged, and forget cached prefixes."""
    network_of(engine).reload_weights(weights_iterator=with_tied_head(engine))
    engine.llm.reset_prefix_cache()


def with_tied_head(engine) -> Iterator[tuple]:
    """TRL's named weights, and an output layer that shares its matrix: TRL names it once, vLLM keeps a packed copy."""
    head = unwrapped(engine.model).get_output_embeddings()
    names = set()
    for name, x in engine._iter_named_params():
        names.add(name)
        yield name, x
    whole = not engine._dist.is_fsdp and head.weight.numel()  # else this process has a shard of it
    if "lm_head.weight" not in names and whole:
        yield "lm_head.weight", head.weight.data
