"""--dry_run: settings, what a round samples and trains, memory."""

import dataclasses
import math

from parts.data.chat import strings_past_template
from parts.foundation.processes import device_name
from parts.networks.models import settle_precision, shaped_network
from parts.running.memory import (
    backward_peak,
    decoder_shape,
    head_bytes,
    network_bytes,
    pass_of_rows,
    sampling_bytes,
)
from parts.running.plan import changed_settings, print_plan
from programs.warm_start.settings import Config, settled_training
from programs.warm_start.supervise import enough_epochs

TILE = 32_768  # vocabulary of a piece of TRL's output layer
TILE_BUFFERS = 7  # float32 tensors of a piece that exist at once where there is no Triton, measured on a CPU


def warm_start_memory(config: Config, model, longest: int) -> dict[str, float]:
    """Bytes: what stays, and the peaks of training and sampling; packed rows are counted, a teacher is not."""
    parameters = sum(p.numel() for p in model.parameters())
    shape, (_, micro) = decoder_shape(model.config.get_text_config().to_dict()), settled_training(config, parameters)
    run = pass_of_rows(config, model, micro, longest * (4 if config.packing else 1))
    kept, gradients = network_bytes(config, shape, parameters)
    head = head_bytes(shape, run, run.tokens * min(shape.vocab, TILE), TILE_BUFFERS)
    prompts = dataclasses.replace(run, rows=config.rollout_batch_size, length=longest - config.max_new_tokens)
    return {
        "weights, gradients and optimizer": kept + gradients,
        "peak of training": kept + gradients + backward_peak(shape, run, head),
        "peak of sampling": parameters * run.stream + sampling_bytes(shape, prompts, config.max_new_tokens),
    }


def print_warm_start_plan(config: Config, tokenizer, rows: list[dict], held_out: list[dict]) -> int:
    """Print what a run would do as JSON; returns the exit code."""
    import torch

    settle_precision(config, torch.device(device_name(config)))
    model = shaped_network(config, config.model)
    parameters = sum(p.numel() for p in model.parameters())
    lr, micro = settled_training(config, parameters)
    longest = max(len(row["prompt_ids"]) for row in rows + held_out)
    measured_prompts = min(config.eval_prompts or len(held_out), len(held_out))
    round_prompts = min(config.prompts_per_round, len(rows))
    most, draws, epochs = len(rows), 0, config.epochs
    if config.samples_solutions:
        most, draws = round_prompts * min(config.max_per_prompt, config.samples), config.max_draws
        epochs = enough_epochs(config, most)
    plan = {
        "solutions": config.teacher or ("the model's samples" if config.self else f"column {config.completion_column}"),
        "batch": {
            "rounds": config.rounds,
            "completions_per_optimizer_step": config.batch_size,
            "prompts": len(rows),
            "samples_of_a_draw": round_prompts * config.samples if draws else 0,
            "draws_at_most": draws,
            "solutions_of_a_draw_at_most": most,
            "optimizer_steps_on_these": math.ceil(epochs * math.ceil(most / config.batch_size)),
        },
        "held_out": {"prompts": len(held_out), "samples": measured_prompts * config.eval_samples},
        "longest_prompt_tokens": longest,
        "prompts_past_the_chat_template": strings_past_template(config, tokenizer, [row["prompt"] for row in rows]),
        "parameters": parameters,
    }
    memory = warm_start_memory(config, model, longest + config.max_new_tokens)
    print_plan(device_name(config), plan, memory, changed_settings(config, lr=lr, micro_batch_size=micro))
    return 0
