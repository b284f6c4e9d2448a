"""The memory that a run will need."""

from parts.networks.models import shaped_network
from parts.running.memory import (
    DecoderShape,
    PassShape,
    adapter_weights,
    attention_kind,
    decoder_shape,
    frozen_bytes,
    head_bytes,
    memory_of_run,
)
from programs.grpo_train.prepare import Prepared
from programs.grpo_train.settings import Config

TILE = (4096, 32_768)  # tokens and vocabulary of a piece of TRL's output layer
TILE_BUFFERS = 7  # float32 tensors of a piece that exist at once where there is no Triton, measured on a CPU


def trl_head(shape: DecoderShape, run: PassShape, fused: bool) -> float:
    """Bytes that TRL's output layer and loss take for a micro-batch; with Triton (`fused`) one piece is all."""
    tokens = min(run.tokens, TILE[0])
    logits = 0 if fused else tokens * min(shape.vocab, TILE[1])
    return tokens * TILE[1] * run.compute + head_bytes(shape, run, logits, TILE_BUFFERS)


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


def trl_memory(ready: Prepared, args: dict, longest: int, processes: int) -> dict[str, float]:
    """Bytes per process, see `memory_of_run`; what vLLM takes is left out."""
    config, parameters = ready.config, ready.parameters
    model = shaped_network(config, config.model)
    shape = decoder_shape(model.config.get_text_config().to_dict())
    whole = config.conversation_tokens if config.converses else longest + config.max_completion_length
    run = trl_pass(config, model, args, whole)
    if config.lora_rank:
        each, adapters = 0.516 if config.load_in_4bit else run.stream, adapter_weights(shape, config.lora_rank)
        kept, gradients = frozen_bytes(shape, parameters, each, run.stream) + 12 * adapters, 4 * adapters
    else:
        kept, gradients = 3 * parameters * run.stream, parameters * run.stream  # weights and two moments of AdamW
    reference = parameters * run.stream if config.beta and not config.lora_rank else 0
    at_once = 0 if config.use_vllm else ready.plan.completions_per_rollout // processes
    head = trl_head(shape, run, not args["use_cpu"])
    frozen = {"reference": reference}
    return memory_of_run(shape, run, (kept, gradients), frozen, head, at_once, config.max_completion_length)
