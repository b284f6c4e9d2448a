"""Sizes that do not divide, and what is said of sizes before a run."""

import math

from parts.foundation.messages import say
from programs.verl_train.memory import memory_findings, memory_plan
from programs.verl_train.model_files import model_shape
from programs.verl_train.overrides import Layout
from programs.verl_train.settings import Config


def batch_findings(config: Config, shape: dict) -> list[str]:
    """What does not divide; verl would fill some of it up with padding sequences, without a word."""
    c, gpus = config, config.nodes * config.gpus_per_node
    split = c.sequence_parallel * (c.tensor_parallel * c.pipeline_parallel if c.backend == "megatron" else 1)
    checks = [
        (gpus % split == 0, f"{gpus} GPUs with {split} to a replica of the policy; expected a multiple"),
        (
            gpus % c.rollout_tensor_parallel == 0 and c.gpus_per_node >= min(gpus, c.rollout_tensor_parallel),
            f"{c.gpus_per_node} GPUs a node, rollout_tensor_parallel {c.rollout_tensor_parallel}; expected a divisor",
        ),
        (
            c.micro_batch_tokens * c.sequence_parallel >= c.conversation_tokens,
            f"micro_batch_tokens {c.micro_batch_tokens}; expected "
            f"{math.ceil(c.conversation_tokens / c.sequence_parallel)}, a sequence's share of a GPU",
        ),
    ]
    replicas = max(1, gpus // split)
    part = c.batch_size // c.minibatches
    checks.append(
        (
            part % replicas == 0,
            f"{part} completions in a minibatch for {replicas} replicas of the policy; expected a multiple, as verl "
            f"fills up with padding; try --batch_size {math.lcm(replicas, c.group_size) * c.minibatches}",
        )
    )
    if c.loss == "gmpo":
        worst = part // replicas * c.conversation_tokens
        checks.append(
            (
                c.micro_batch_tokens * c.sequence_parallel >= worst,
                f"loss gmpo, micro_batch_tokens {c.micro_batch_tokens}; expected {worst}, a minibatch in one piece, as "
                "verl's geo_mean adds up the means of its micro-batches",
            )
        )
    for name in ("num_attention_heads", "num_key_value_heads"):
        heads, size = shape.get(name), max(c.rollout_tensor_parallel, c.tensor_parallel)
        if heads and name == "num_attention_heads":
            size = math.lcm(size, c.sequence_parallel if c.backend == "fsdp2" else 1)
        if heads:
            checks.append(
                (
                    heads % size == 0 or (size % heads == 0 and name != "num_attention_heads"),
                    f"{heads} {name} over {size} GPUs; expected a multiple",
                )
            )
    return [f"batch: got {text}" for fine, text in checks if not fine]


def say_findings(config: Config, job: Layout) -> None:
    """Warn of what does not fit into memory and of sizes that do not divide; --check makes findings of them."""
    plan = memory_plan(config, job.parameters)
    for finding in memory_findings(config, plan)[1] + batch_findings(config, model_shape(config)):
        say(f"warning: {finding}")
