"""The memory that a run will need."""

from parts.learning.advantages import estimator
from parts.running.memory import (
    decoder_shape,
    frozen_bytes,
    head_of_pieces,
    memory_of_run,
    network_bytes,
    update_pass,
)
from programs.ppo_train.settings import Config

POLICY_BUFFERS = 5  # float32 tensors [tokens, vocabulary] of a piece that exist at once, the gradient's among them


def memory_estimate(config: Config, model, rows: list[dict], processes: int) -> dict[str, float]:
    """Bytes per process, see `memory_of_run`; the critic is counted with the policy's size."""
    parameters = sum(p.numel() for p in model.parameters())
    shape = decoder_shape(model.config.get_text_config().to_dict())
    longest = max(len(row["prompt_ids"]) for row in rows) + config.max_new_tokens
    if config.environment:
        longest = config.conversation_tokens
    run = update_pass(config, model, longest, processes)
    at_once = min(config.rollout_batch_size or config.batch_size, config.batch_size // processes)
    networks = 2 if estimator(config).critic and config.critic == "separate" else 1
    trained = tuple(networks * x for x in network_bytes(config, shape, parameters))
    full = config.kl_coef and not config.lora_rank
    reference = frozen_bytes(shape, parameters, run.compute, 4) if full else 0
    head = head_of_pieces(config, shape, run, POLICY_BUFFERS)
    return memory_of_run(shape, run, trained, {"reference": reference}, head, at_once, config.max_new_tokens)
