"""Held-out evaluation with greedy completions."""

import statistics

from parts.data.held_out import overlap_metric
from parts.environments.conversations import Conversation
from parts.environments.play import play
from parts.environments.play_setup import PlaySetup
from parts.foundation.messages import UserError
from parts.foundation.processes import gather_rows, world
from parts.reading.paired_tests import accuracy_figures
from programs.grpo_train.conversations_for_trl import conversation_entry, conversation_metrics, heard
from programs.grpo_train.rewards import Scorer, Stage, as_completions
from programs.grpo_train.settings import Config


def greedy_completions(trainer, prompts: list[list[int]], batch_size: int) -> list[list[int]]:
    """Token ids of one greedy completion per prompt, by the sampler that trains."""
    from transformers import GenerationConfig

    ends, pad_id = trainer.eos_token_ids, trainer.processing_class.pad_token_id
    limits = {"max_new_tokens": trainer.max_completion_length, "do_sample": False, "disable_compile": True}
    greedy = {"generation_config": GenerationConfig(**limits, eos_token_id=ends, pad_token_id=pad_id)}
    owner = trainer.vllm_generation if trainer.use_vllm else trainer
    changed = {"temperature": 0.0} if trainer.use_vllm else greedy | {"generation_kwargs": {}}
    kept = {name: getattr(owner, name) for name in changed}
    vars(owner).update(changed)
    trainer.model.eval()
    completions = [None] * len(prompts)
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))  # a batch of like lengths has few pads
    size = len(prompts) if trainer.use_vllm else batch_size
    try:
        for start in range(0, len(prompts), max(1, size)):
            numbers = order[start : start + size]
            made = trainer._generate_single_turn([prompts[i] for i in numbers], None, {}, 1)[0]
            for number, tokens in zip(numbers, made, strict=True):
                completions[number] = tokens
    finally:
        vars(owner).update(kept)
        trainer.model.train()
    return completions


def greedy_conversations(config: Config, trainer, setup: PlaySetup, rows: list[dict]) -> list[Conversation]:
    """One greedy conversation per row."""

    def sample(so_far: list[list[int]], numbers: list[int], turn: int) -> list[tuple[list[int], list[float]]]:
        made = greedy_completions(trainer, so_far, config.per_device_eval_batch_size)
        return [(ids, [0.0] * len(ids)) for ids in made]

    return play(rows, setup.environments, setup.bridge, sample, setup.limits, setup.form)


def scored_samples(trainer, scorer: Scorer, goal: Stage, rows: list[dict], completions: list, ids: list) -> list[dict]:
    """Samples of completions, scored by the rewards of a stage."""
    if not rows:
        return []
    extra = {"trainer_state": trainer.state, "log_extra": lambda *_: None, "log_metric": lambda *_: None}
    rewards = {name: scorer.score(name, rows, completions, ids, extra) for name in goal.weights}
    return scorer.as_samples(rows, completions, ids, rewards, goal.weights)


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
