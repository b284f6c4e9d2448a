"""What a run will need: its memory, the sizes that fit, and --dry_run."""

import dataclasses
import math

from parts.foundation.processes import device_name
from parts.networks.models import settle_precision, shaped_network
from parts.rewards.text_servers import is_server
from parts.running.fit import SAMPLING, UPDATE, Sizes, is_chosen_here, ladder, lighter_settings, show_plan
from parts.running.memory import backward_peak, network_bytes, pass_of_rows, sampling_bytes, shape_of, trl_head
from parts.running.plan import batch_plan
from programs.warm_start.settings import Config, settled_training
from programs.warm_start.supervise import enough_epochs


def warm_start_memory(config: Config, model, teacher, prompt: int) -> dict[str, float]:
    """Bytes: what stays, and the peaks of training and sampling.

    Args:
        model: the network on the meta device.
        teacher: a local one, the same way, else None; the model is not in memory while it samples.
        prompt: tokens of the longest prompt.
    """
    parameters, shape = sum(p.numel() for p in model.parameters()), shape_of(model)
    if not shape:
        return {}
    run = pass_of_rows(config, model, settled_training(config, parameters)[1], prompt + config.max_new_tokens)
    trained = sum(network_bytes(config, shape, parameters))
    rows = 0 if config.rollout_engine == "vllm" else config.rollout_batch_size
    prompts = dataclasses.replace(run, rows=rows, length=prompt)
    peaks = [parameters * run.stream + sampling_bytes(shape, prompts, config.max_new_tokens)]
    if teacher and (other := shape_of(teacher)):
        weights = sum(p.numel() for p in teacher.parameters()) * run.compute
        peaks.append(weights + sampling_bytes(other, prompts, config.max_new_tokens))
    return {
        "weights, gradients and optimizer": trained,
        UPDATE: trained + backward_peak(shape, run, trl_head(shape, run, fused=False)),
        SAMPLING: max(peaks),
    }


def sizes_of_run(config: Config, rows: list[dict]) -> Sizes:
    """What may be chosen by the memory that is free: how many completions are sampled at once."""
    model, prompt = shaped_network(config, config.model), max(len(row["prompt_ids"]) for row in rows)
    local = config.teacher and not is_server(config.teacher)
    teacher = shaped_network(config, config.teacher) if local else None
    recompute = {} if config.gradient_checkpointing else {"gradient_checkpointing": True}

    def choices(changed: Config, heed: bool) -> dict[str, list[dict]]:
        open_here = not heed or is_chosen_here(changed, "rollout_batch_size")
        counts = ladder(changed.rollout_batch_size, 1) if open_here else [changed.rollout_batch_size]
        return {UPDATE: [{}], SAMPLING: [{"rollout_batch_size": count} for count in counts]}

    return Sizes(
        estimate=lambda changed: warm_start_memory(changed, model, teacher, prompt),
        choices=choices,
        text=lambda changed: f"{changed.rollout_batch_size} completions sampled at once",
        lighter=lighter_settings(config, "max_new_tokens", recompute, bits=False),
        aside=config.vllm_memory if config.rollout_engine == "vllm" else 0.0,
    )


def print_warm_start_plan(config: Config, tokenizer, rows: list[dict], held_out: list[dict]) -> int:
    """Print what a run would do as JSON; returns the exit code."""
    import torch

    device = device_name(config)
    settle_precision(config, torch.device(device))
    parameters = sum(p.numel() for p in shaped_network(config, config.model).parameters())
    lr, micro = settled_training(config, parameters)
    round_prompts = min(config.prompts_per_round, len(rows))
    most, draws, epochs = len(rows), 0, config.epochs
    if config.samples_solutions:
        most, draws = round_prompts * min(config.max_per_prompt, config.samples), config.max_draws
        epochs = enough_epochs(config, most)
    batch = batch_plan(config, tokenizer, rows, held_out) | {
        "rounds": config.rounds,
        "held_out_samples": min(config.eval_prompts or len(held_out), len(held_out)) * config.eval_samples,
        "samples_of_a_draw": round_prompts * config.samples if draws else 0,
        "draws_at_most": draws,
        "solutions_of_a_draw_at_most": most,
        "completions_per_optimizer_step": config.batch_size,
        "optimizer_steps_on_these": math.ceil(epochs * math.ceil(most / config.batch_size)),
    }
    source = config.teacher or ("the model's samples" if config.self else f"column {config.completion_column}")
    plan = {"batch": batch, "solutions": source, "parameters": parameters}
    show_plan(config, device, sizes_of_run(config, rows + held_out), plan, lr=lr, micro_batch_size=micro)
    return 0
