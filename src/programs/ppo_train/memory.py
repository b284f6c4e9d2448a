"""The memory that a run will need, and the sizes that follow from it."""

from parts.learning.advantages import estimator
from parts.networks.models import shaped_network
from parts.running.fit import Sizes, rollout_sizes
from parts.running.memory import (
    frozen_bytes,
    head_of_pieces,
    memory_of_run,
    network_bytes,
    sampled_at_once,
    shape_of,
    update_pass,
)
from programs.ppo_train.settings import Config

POLICY_BUFFERS = 5  # float32 tensors [tokens, vocabulary] of a piece that exist at once, the gradient's among them


def longest_row(config: Config, prompt: int) -> int:
    """Most tokens of a row, where the longest prompt has so many."""
    return config.conversation_tokens if config.environment else prompt + config.max_new_tokens


def memory_estimate(config: Config, model, prompt: int, processes: int) -> dict[str, float]:
    """Bytes per process, see `memory_of_run`; the critic is counted with the policy's size.

    Args:
        model: the policy's network on the meta device.
        prompt: tokens of the longest prompt.
    """
    shape, parameters = shape_of(model), sum(p.numel() for p in model.parameters())
    if not shape:
        return {}
    run = update_pass(config, model, longest_row(config, prompt), processes)
    networks = 2 if estimator(config).critic and config.critic == "separate" else 1
    trained = tuple(networks * x for x in network_bytes(config, shape, parameters))
    full = config.kl_coef and not config.lora_rank
    reference = frozen_bytes(shape, parameters, run.compute, 4) if full else 0
    head = head_of_pieces(config, shape, run, POLICY_BUFFERS)
    at_once = sampled_at_once(config, processes)
    return memory_of_run(shape, run, trained, {"reference": reference}, head, at_once, config.max_new_tokens)


def sizes_of_run(config: Config, rows: list[dict], processes: int) -> Sizes:
    """What may be chosen by the memory that is free."""
    model, prompt = shaped_network(config, config.model), max(len(row["prompt_ids"]) for row in rows)
    return rollout_sizes(
        config,
        lambda changed: memory_estimate(changed, model, prompt, processes),
        lambda changed: longest_row(changed, prompt),
        processes,
    )
