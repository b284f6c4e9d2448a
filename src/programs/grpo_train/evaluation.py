"""Held-out evaluation with greedy completions."""

import statistics

from parts.data.held_out import overlap_metric
from parts.environments.conversations import Conversation
from parts.environments.play import play
from parts.environments.play_setup import PlaySetup
from parts.foundation.messages import UserError
from parts.foundation.processes import gather_rows, world
from parts.reading.paired_tests import accuracy_figures
from parts.rewards.user_code import text_of_turns
from programs.grpo_train.conversations_for_trl import conversation_entry, conversation_metrics, heard
from programs.grpo_train.rewards import Scorer, Stage, as_completions, weighted_sum
from programs.grpo_train.settings import Config


def greedy_completions(trainer, prompts: list[list[int]], batch_size: int, sync: bool = True) -> list[list[int]]:
    """Token ids of one greedy completion per prompt, by the sampler that trains; vLLM gets its weights with `sync`."""
    import torch
    from trl.models import unwrap_model_for_generation

    if trainer.use_vllm:
        engine = trainer.vllm_generation
        if sync:
            engine.sync_weights()
        kept, engine.temperature = engine.temperature, 0.0
        try:
            return engine.generate(prompts, None, 1)[1]
        finally:
            engine.temperature = kept
    device, pad_id = trainer.accelerator.device, trainer.processing_class.pad_token_id
    completions = [None] * len(prompts)
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))  # a batch of like lengths has few pads
    limits = {"max_new_tokens": trainer.max_completion_length, "do_sample": False, "disable_compile": True}
    limits |= {"eos_token_id": trainer.eos_token_ids, "pad_token_id": pad_id}
    trainer.model.eval()
    with (
        unwrap_model_for_generation(
            trainer.model_wrapped, trainer.accelerator, gather_deepspeed3_params=trainer.args.ds3_gather_for_generation
        ) as model,
        torch.no_grad(),
        trainer._dist.summon_full_params(trainer.model_wrapped, recurse=False),
    ):
        for start in range(0, len(prompts), batch_size):
            numbers = order[start : start + batch_size]
            batch = [prompts[i] for i in numbers]
            width = max(map(len, batch))
            ids = torch.tensor([[pad_id] * (width - len(p)) + p for p in batch], device=device)  # [B, T]
            mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in batch], device=device)
            made = model.generate(input_ids=ids, attention_mask=mask, **limits)[:, width:].tolist()
            for number, tokens in zip(numbers, made, strict=True):
                ends = [i for i, token in enumerate(tokens) if token in trainer.eos_token_ids]
                completions[number] = tokens[: ends[0] + 1] if ends else tokens
    trainer.model.train()
    return completions


def greedy_conversations(config: Config, trainer, setup: PlaySetup, rows: list[dict]) -> list[Conversation]:
    """One greedy conversation per row."""

    def sample(so_far: list[list[int]], numbers: list[int], turn: int) -> list[tuple[list[int], list[float]]]:
        made = greedy_completions(trainer, so_far, config.per_device_eval_batch_size, sync=turn == 0)
        return [(ids, [0.0] * len(ids)) for ids in made]

    return play(rows, setup.environments, setup.bridge, sample, setup.limits, setup.form)


def scored_samples(trainer, scorer: Scorer, goal: Stage, rows: list[dict], completions: list, ids: list) -> list[dict]:
    """Samples of completions, scored by the rewards of a stage."""
    if not rows:
        return []
    extra = {"trainer_state": trainer.state, "log_extra": lambda *_: None, "log_metric": lambda *_: None}
    parts, samples = {name: scorer.score(name, rows, completions, ids, extra) for name in goal.weights}, []
    for i, row in enumerate(rows):
        rewards = {name: values[i] for name, values in parts.items()}
        sample = {"prompt": row["prompt"], "completion": text_of_turns(completions[i]), "rewards": rewards}
        sample |= {"score": weighted_sum(rewards, goal.weights), "length": len(ids[i]), "columns": row["columns"]}
        samples.append(sample | {"finished": bool(ids[i]) and ids[i][-1] in trainer.eos_token_ids})
    return samples


def evaluate(
    config: Config, trainer, scorer: Scorer, goal: Stage, rows: list[dict], setup: PlaySetup | None = None
) -> tuple[dict, list[dict]]:
    """Greedy held-out evaluation by the rewards of `goal`, the last stage.

    Args:
        setup: what conversations are played with, in the place of completions.

    Returns:
        (metrics, samples): accuracy is the share of rows with full marks, 1 or more, from the goal's first function.
    """
    rank, size = world()
    share = rows[rank::size]
    if 0 < len(rows) % size <= rank:  # every process samples the same number
        share = share + rows[:1]
    if not setup:
        ids = greedy_completions(trainer, [row["prompt_ids"] for row in share], config.per_device_eval_batch_size)
    share, states = rows[rank::size], scorer.state_dict()  # what adapts does so to training only
    samples, failure = [], None
    try:
        if setup:
            conversations = greedy_conversations(config, trainer, setup, share)
            seen, said = heard(share, conversations)
            samples = scored_samples(trainer, scorer, goal, seen, said, [x.response_ids for x in conversations])
            samples = [s | conversation_entry(setup, x) for s, x in zip(samples, conversations, strict=True)]
        else:
            ids = ids[: len(share)]
            made = as_completions(trainer.processing_class, share, ids, trainer.eos_token_ids) if share else []
            samples = scored_samples(trainer, scorer, goal, share, made, ids)
    except UserError as error:  # the other processes wait for this one: tell them
        failure = error
    scorer.load_state_dict(states)
    samples, metrics = gather_rows(samples, failure), {}
    for name in goal.weights:
        values = [s["rewards"][name] for s in samples if s["rewards"][name] is not None]
        metrics |= {f"eval/{name}": statistics.fmean(values)} if values else {}
    metrics |= accuracy_figures(samples) | {"eval/score": statistics.fmean(s["score"] for s in samples)}
    metrics["eval/length_mean"] = statistics.fmean(s["length"] for s in samples)
    metrics |= {"eval/rows": len(samples)} | overlap_metric(rows)
    if setup:
        played = conversation_metrics([s["talk"] for s in samples])
        metrics["eval/turns_mean"] = played["rollout/turns_mean"]
        metrics["eval/calls_mean"] = played["tool/calls_mean"]
    return metrics, samples
