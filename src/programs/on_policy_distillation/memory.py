"""The memory that a run will need."""

from parts.networks.models import shaped_network
from parts.rewards.text_servers import is_server
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
from programs.on_policy_distillation.settings import Config
from programs.on_policy_distillation.teachers import teacher_specs

STUDENT_BUFFERS = 8  # float32 tensors [tokens, vocabulary] of a piece that exist at once, of both models


def local_sources(config: Config) -> list[str]:
    """Where the teachers are that run in this process."""
    return [source for source in teacher_specs(config).values() if not is_server(source)]


def distillation_memory(config: Config, networks: dict, prompt: int, processes: int) -> dict[str, float]:
    """Bytes per process, see `memory_of_run`.

    Args:
        networks: student and teachers by their source, on the meta device.
        prompt: tokens of the longest prompt.
    """
    counts = {source: sum(p.numel() for p in network.parameters()) for source, network in networks.items()}
    shapes = {source: shape_of(network) for source, network in networks.items()}
    if not all(shapes.values()):
        return {}
    student, shape = networks[config.model], shapes[config.model]
    run = update_pass(config, student, prompt + config.max_new_tokens, processes)
    at_once = sampled_at_once(config, processes)
    trained = network_bytes(config, shape, counts[config.model])
    precision = config.teacher_precision or config.precision
    width = 4 if precision == "fp32" else 2
    each, embeddings = (0.516, width) if config.teacher_in_4bit else (width, 4)
    teachers = sum(frozen_bytes(shapes[s], counts[s], each, embeddings) for s in local_sources(config))
    head = head_of_pieces(config, shape, run, STUDENT_BUFFERS)
    return memory_of_run(shape, run, trained, {"teachers": teachers}, head, at_once, config.max_new_tokens)


def sizes_of_run(config: Config, rows: list[dict], processes: int) -> Sizes:
    """What may be chosen by the memory that is free."""
    networks = {source: shaped_network(config, source) for source in [config.model, *local_sources(config)]}
    prompt = max(len(row["prompt_ids"]) for row in rows)
    return rollout_sizes(
        config,
        lambda changed: distillation_memory(changed, networks, prompt, processes),
        lambda changed: prompt + changed.max_new_tokens,
        processes,
    )
