"""Memory of one GPU, and sizes that do not divide."""

import math

from parts.foundation.messages import say
from parts.running.memory import PassShape, backward_peak, decoder_shape
from programs.verl_train.model_files import model_shape
from programs.verl_train.settings import Config


def memory_plan(config: Config, parameters: float | None) -> list[dict]:
    """Memory of one GPU in GiB, each with its formula; training and sampling take turns on the same GPU."""
    if not parameters:
        return []
    c, shape, gpus, lines = config, model_shape(config), config.nodes * config.gpus_per_node, []
    width, count = 4 if c.precision == "fp32" else 2, f"{parameters / 1e9:.3g}e9"
    nets, which = (2, "policy and critic") if c.advantage == "gae" else (1, "policy")

    def line(name: str, formula: str, amount: float, kind: str) -> None:
        lines.append({"what": name, "formula": formula, "GiB": round(amount / 2**30, 3), "kind": kind})

    trained = 0.0 if c.lora_rank else 1.0
    waits = {"none": set(), "optimizer": {"optimizer"}, "all": {"weights", "optimizer"}}[c.offload]
    for part, size in {
        "weights": 4.0 if trained else width,
        "gradients": 4 * trained,
        "optimizer": 8 * trained,
    }.items():
        # what is offloaded comes back for its network's update, one network at a time
        n, kind = (1, "train, offloaded while sampling") if part in waits else (nets, "train, kept")
        formula = f"{n} x {count} x {size:g} bytes / {gpus} shards"
        line(f"{part} ({which})", formula, n * parameters * size / gpus, kind)
    if c.kl_coef and not c.lora_rank:
        line("reference", "kept in CPU memory by verl, a layer at a time on the GPU", 0, "train")
    if shape:
        decoder, tokens = decoder_shape(shape), c.micro_batch_tokens  # verl multiplies by sequence_parallel, and splits
        # FSDP casts weights and what is between layers; without padding, a row of all tokens stands for any rows
        sizes = {"rows": 1, "length": tokens, "compute": width, "stream": width, "lora_rank": c.lora_rank}
        run = PassShape(**sizes, attention="flash", checkpointing=c.gradient_checkpointing)
        kept = "their inputs, one computed again" if c.gradient_checkpointing else "all that they keep"
        formula = f"{tokens} tokens x {decoder.layers} layers, {kept}, and its gradients"
        line("activations", formula, backward_peak(decoder, run, 0), "train")
        text = f"{tokens:g} tokens x {shape['vocab_size']} x (4 + 4 + {width}) bytes"
        line("logits, their gradient and softmax", text, tokens * shape["vocab_size"] * (8 + width), "train")
    else:
        line("activations, logits, KV cache", "not counted: the model's config.json is not here", 0, "train")
    rollout = c.vllm_memory * c.gpu_memory * 2**30
    line("rollout engine", f"vllm_memory {c.vllm_memory:g} x {c.gpu_memory:g} GiB", rollout, "sample")
    inside = parameters * width / c.rollout_tensor_parallel
    line("its weights, inside that", f"{count} x {width} bytes / {c.rollout_tensor_parallel} GPUs", inside, "inside")
    if shape:
        each = decoder.layers * decoder.keys * 2 * width
        text = f"{decoder.layers} layers x {decoder.keys} x 2 x {width} bytes x {c.conversation_tokens} tokens"
        at_once = c.conversation_tokens * each / c.rollout_tensor_parallel
        line("its KV cache for one completion, inside that", text, at_once, "inside")
    return lines


def memory_findings(config: Config, plan: list[dict]) -> tuple[dict, list[str]]:
    """Sums of the plan, and what does not fit."""
    if not plan:
        return {}, []
    sums = {
        "training": sum(line["GiB"] for line in plan if line["kind"].startswith("train")),
        # weights are gathered and handed over while both are there; what is offloaded waits elsewhere by then
        "sampling": sum(line["GiB"] for line in plan if line["kind"] in ("sample", "train, kept")),
        "rollout weights": next(line["GiB"] for line in plan if line["what"].startswith("its weights")),
    }
    sums = {name: round(value, 2) for name, value in sums.items()}
    of, engine, findings = f"of {config.gpu_memory:g} GiB", config.vllm_memory * config.gpu_memory, []
    room = config.gpu_memory * 0.95  # the rest is CUDA's and NCCL's
    if sums["training"] > room:
        advice = "--offload all, --gradient_checkpointing, fewer --micro_batch_tokens, more GPUs, or --lora_rank 32"
        findings.append(f"memory: training needs {sums['training']} {of}; try {advice}")
    if sums["sampling"] > room:
        advice = "a lower --vllm_memory, or --offload optimizer"
        findings.append(f"memory: sampling needs {sums['sampling']} {of}; try {advice}")
    if sums["rollout weights"] > 0.9 * engine:
        got = f"memory: the sampler's weights take {sums['rollout weights']} GiB of vllm_memory's {engine:g}"
        findings.append(f"{got}; try a higher --vllm_memory or --rollout_tensor_parallel 2")
    return sums, findings


def batch_findings(config: Config, shape: dict) -> list[str]:
    """What does not divide; verl would fill some of it up with padding sequences, without a word."""
    c, gpus, tokens = config, config.nodes * config.gpus_per_node, config.micro_batch_tokens * config.sequence_parallel
    split, together = c.sequence_parallel, c.rollout_tensor_parallel
    replicas, part = max(1, gpus // split), c.batch_size // c.minibatches
    batch = math.lcm(replicas, c.group_size) * c.minibatches
    least, worst = math.ceil(c.conversation_tokens / split), part // replicas * c.conversation_tokens
    heads, pairs, count = shape.get("num_attention_heads"), shape.get("num_key_value_heads"), math.lcm(together, split)
    wrong = {
        f"{gpus} GPUs, {split} per replica of the policy; expected a multiple": gpus % split,
        f"{c.gpus_per_node} GPUs per node, rollout_tensor_parallel {together}; expected a divisor": (
            gpus % together or c.gpus_per_node < min(gpus, together)
        ),
        f"micro_batch_tokens {c.micro_batch_tokens}; expected {least}, a sequence's share of a GPU": (
            tokens < c.conversation_tokens
        ),
        f"{part} completions in a minibatch for {replicas} replicas of the policy; expected a multiple, as verl fills "
        f"up with padding; try --batch_size {batch}": part % replicas,
        f"loss gmpo, micro_batch_tokens {c.micro_batch_tokens}; expected {worst}, a minibatch in one piece, as verl's "
        "geo_mean adds up the means of its micro-batches": c.loss == "gmpo" and tokens < worst,
        f"{heads} num_attention_heads over {count} GPUs; expected a multiple": heads and heads % count,
        f"{pairs} num_key_value_heads over {together} GPUs; expected a multiple": (
            pairs and pairs % together and together % pairs
        ),
    }
    return [f"batch: got {text}" for text, is_wrong in wrong.items() if is_wrong]


def size_findings(config: Config, parameters: float | None) -> tuple[dict, list[str]]:
    """(sums of memory, what does not fit into it and sizes that do not divide)."""
    sums, findings = memory_findings(config, memory_plan(config, parameters))
    return sums, findings + batch_findings(config, model_shape(config))


def say_findings(config: Config, parameters: float | None) -> None:
    """Warn of what --check makes findings of."""
    for finding in size_findings(config, parameters)[1]:
        say(f"warning: {finding}")
