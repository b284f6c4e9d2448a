"""Memory of one GPU, and sizes that do not divide."""

import math

from parts.data.verl_keys import FSDP
from parts.foundation.messages import say
from parts.running.memory import PassShape, adapter_weights, backward_peak, decoder_shape
from programs.verl_train.model_files import model_shape
from programs.verl_train.names import WEIGHT_DTYPE
from programs.verl_train.refusals import split_override
from programs.verl_train.settings import Config

TRAINING = ("weights", "gradients", "optimizer", "activations", "logits")
OFFLOADED = {"none": set(), "optimizer": {"optimizer"}, "all": {"weights", "optimizer"}}  # by --offload


def trained_widths(c: Config) -> list[int]:
    """Bytes of a weight of each trained network; its adapters, gradients and Adam's moments have the same dtype."""
    given = {key: dtype for _, key, dtype in map(split_override, c.override)}
    parts = [FSDP, "critic.fsdp"] if c.advantage == "gae" else [FSDP]
    return [4 if "32" in given.get(f"{part}.{WEIGHT_DTYPE}", "fp32") else 2 for part in parts]


def memory_plan(c: Config, parameters: float | None) -> dict[str, float]:
    """GiB of one GPU by part; training and sampling take turns on it. The reference waits in CPU memory."""
    if not parameters:
        return {}
    shape, gpus, widths, tokens = model_shape(c), c.nodes * c.gpus_per_node, trained_widths(c), c.micro_batch_tokens
    decoder, width, parts = decoder_shape(shape) if shape else None, 4 if c.precision == "fp32" else 2, {}
    adapters = adapter_weights(decoder, c.lora_rank) if decoder else 0
    trained = adapters if c.lora_rank else parameters
    for part, count in {"weights": parameters + adapters, "gradients": trained, "optimizer": 2 * trained}.items():
        # what is offloaded comes back for its network's update, one network at a time
        parts[part] = count / gpus * (max if part in OFFLOADED[c.offload] else sum)(widths)
    if decoder:
        # FSDP casts weights and what is between layers; without padding, a row of all tokens stands for any rows.
        # verl multiplies the tokens by sequence_parallel, and splits them
        sizes = {"rows": 1, "length": tokens, "compute": width, "stream": width}
        run = PassShape(**sizes, lora_rank=c.lora_rank, attention="flash", checkpointing=c.gradient_checkpointing)
        parts["activations"] = backward_peak(decoder, run, 0)
        parts["logits"] = tokens * shape["vocab_size"] * (4 + 4 + width)  # with their gradient and softmax
        parts["KV cache of a completion"] = (
            decoder.layers * decoder.keys * 2 * width * c.conversation_tokens / c.rollout_tensor_parallel
        )
    parts["rollout weights"] = parameters * width / c.rollout_tensor_parallel
    parts["rollout engine"] = c.vllm_memory * c.gpu_memory * 2**30  # with its weights and cache
    return {part: round(size / 2**30, 3) for part, size in parts.items()}


def memory_findings(config: Config, plan: dict[str, float]) -> tuple[dict, list[str]]:
    """Sums of the plan, and what does not fit."""
    if not plan:
        return {}, []
    # weights are gathered and handed over while both are there; what is offloaded waits elsewhere by then
    kept = {"weights", "gradients", "optimizer"} - OFFLOADED[config.offload]
    sums = {
        "training": sum(plan.get(part, 0) for part in TRAINING),
        "sampling": plan["rollout engine"] + sum(plan[part] for part in kept),
        "rollout weights": plan["rollout weights"],
    }
    sums = {name: round(value, 2) for name, value in sums.items()}
    of, engine = f"of {config.gpu_memory:g} GiB", config.vllm_memory * config.gpu_memory
    room = config.gpu_memory * 0.95  # the rest is CUDA's and NCCL's
    bf16 = f"--override {FSDP}.{WEIGHT_DTYPE}=bf16, whose adapters and optimizer lose small updates"
    wrong = {
        f"training needs {sums['training']} {of}; try --offload all, --gradient_checkpointing, fewer "
        f"--micro_batch_tokens, more GPUs, or {bf16 if config.lora_rank else '--lora_rank 32'}": (
            sums["training"] > room
        ),
        f"sampling needs {sums['sampling']} {of}; try a lower --vllm_memory, or --offload optimizer": (
            sums["sampling"] > room
        ),
        f"the sampler's weights take {sums['rollout weights']} GiB of vllm_memory's {engine:g}; try a higher "
        "--vllm_memory or --rollout_tensor_parallel 2": sums["rollout weights"] > 0.9 * engine,
    }
    return sums, [f"memory: {text}" for text, is_wrong in wrong.items() if is_wrong]


def batch_findings(c: Config) -> list[str]:
    """Sizes for which verl fills up with padding sequences without a word, or ends after minutes."""
    tokens, gpus = c.micro_batch_tokens * c.sequence_parallel, c.nodes * c.gpus_per_node
    replicas, part = max(1, gpus // c.sequence_parallel), c.batch_size // c.minibatches
    batch = math.lcm(replicas, c.group_size) * c.minibatches
    least = math.ceil(c.conversation_tokens / c.sequence_parallel)
    worst = part // replicas * c.conversation_tokens
    shares = {name: getattr(c, name) for name in ("sequence_parallel", "rollout_tensor_parallel")}
    wrong = {f"{name} {n} for {gpus} GPUs; expected a divisor": gpus % n for name, n in shares.items()} | {
        f"micro_batch_tokens {c.micro_batch_tokens}; expected {least}, a sequence's share of a GPU": (
            tokens < c.conversation_tokens
        ),
        f"{part} completions in a minibatch for {replicas} replicas of the policy; expected a multiple, as verl fills "
        f"up with padding; try --batch_size {batch}": part % replicas,
        f"loss gmpo, micro_batch_tokens {c.micro_batch_tokens}; expected {worst}, a minibatch in one piece, as verl's "
        "geo_mean adds up the means of its micro-batches": c.loss == "gmpo" and tokens < worst,
    }
    return [f"batch: got {text}" for text, is_wrong in wrong.items() if is_wrong]


def size_findings(config: Config, parameters: float | None) -> tuple[dict, dict, list[str]]:
    """(Memory by part, its sums, what does not fit into it and sizes that do not divide)."""
    plan = memory_plan(config, parameters)
    if "activations" not in plan:
        missing = "activations, logits, KV cache and adapters are not" if plan else "nothing is"
        say(f"note: memory: no config.json of {config.model} on this machine, so {missing} counted")
    sums, findings = memory_findings(config, plan)
    return plan, sums, findings + batch_findings(config)
