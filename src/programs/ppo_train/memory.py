"""The memory that a run will need."""

import dataclasses

from parts.learning.advantages import estimator
from parts.running.memory import (
    backward_peak,
    decoder_shape,
    frozen_bytes,
    head_of_pieces,
    network_bytes,
    sampling_bytes,
    saved_for_backward,
    update_pass,
)
from programs.ppo_train.settings import Config

POLICY_BUFFERS = 5  # float32 tensors [tokens, vocabulary] of a piece that exist at once, the gradient's among them


def memory_estimate(config: Config, model, rows: list[dict], processes: int) -> dict[str, float]:
    """Bytes per process: what stays, what passes, and the peaks of update and sampling.

    The critic is counted with the policy's size. Left out are the process, CUDA's context, libraries and fragments.
    """
    parameters = sum(p.numel() for p in model.parameters())
    shape = decoder_shape(model.config.get_text_config().to_dict())
    longest = max(len(row["prompt_ids"]) for row in rows) + config.max_new_tokens
    if config.environment:
        longest = config.conversation_tokens
    run = update_pass(config, model, longest, processes)
    at_once = min(config.rollout_batch_size or config.batch_size, config.batch_size // processes)
    networks = 2 if estimator(config).critic and config.critic == "separate" else 1
    kept, gradients = (networks * x for x in network_bytes(config, shape, parameters))
    full = config.kl_coef and not config.lora_rank
    reference = frozen_bytes(shape, parameters, run.compute, 4) if full else 0
    head, saved = head_of_pieces(config, shape, run, POLICY_BUFFERS), saved_for_backward(shape, run)
    prompts = dataclasses.replace(run, rows=at_once, length=longest - config.max_new_tokens)
    sampling = sampling_bytes(shape, prompts, config.max_new_tokens)
    return {
        "weights, gradients and optimizer": kept + gradients,
        "reference": reference,
        "activations of a micro-batch": saved,
        "logits": head,
        "KV cache while sampling": 2 * shape.layers * shape.keys * run.compute * at_once * run.length,
        "peak of the update": kept + gradients + reference + backward_peak(shape, run, head),
        "peak of sampling": kept + reference + sampling,
    }
