"""Conversations with environments through TRL, and held-out evaluation with greedy completions."""

import dataclasses
from collections.abc import Callable
from unittest import mock

from parts.environments.conversations import Conversation, PlaySetup, play
from parts.environments.environments import Environments
from parts.environments.play_setup import OF_ENVIRONMENT, as_rewards_see, check_environments, pays, pieces
from parts.evaluating.paired_tests import held_out_figures
from parts.foundation.messages import need
from parts.foundation.processes import gather_rows, raised_in_all, transformers, world
from parts.rewards.user_code import TRL_EXTRAS, visible_text
from programs.grpo_train.rewards import Scorer, as_completions, environment_score
from programs.grpo_train.settings import Config


def let_environments_score(config: Config, environments: Environments, scorer: Scorer) -> None:
    """Put the environments' own score beside the rewards, with weight 1; refuse what nothing pays."""
    check_environments(config, environments, scorer.functions)
    kinds = environments.kinds.values()
    if not any(map(pays, kinds)):
        return
    scorer.functions |= {OF_ENVIRONMENT: environment_score}
    scorer.weights |= {OF_ENVIRONMENT: 1.0}
    if any(kind.scores for kind in kinds):  # then it comes first: it is what a held-out row's full marks are
        scorer.functions = {OF_ENVIRONMENT: environment_score} | scorer.functions


def check_sampling_apart(trainer) -> None:
    """Raise UserError where all processes sample together: their conversations have different numbers of turns."""
    plugin = trainer.accelerator.state.deepspeed_plugin
    together = {
        "FSDP": trainer.is_fsdp_enabled,
        "DeepSpeed ZeRO-3": plugin is not None and plugin.zero_stage == 3,
        "--use_vllm server": trainer.use_vllm and trainer.vllm_mode == "server",
        "vllm_tensor_parallel_size": trainer.use_vllm and trainer.vllm_tensor_parallel_size > 1,
    }
    reasons = [name for name, given in together.items() if given and world()[1] > 1]
    got = f"got conversations with {', '.join(reasons)} and {world()[1]} processes, which then sample together"
    need(not reasons, f"{got}; expected each by itself; try plain data parallelism, ZeRO-2, or --use_vllm colocate")


def rollout_function(setup: PlaySetup, scorer: Scorer) -> Callable:
    """TRL's rollout_func: play a conversation for each prompt, sampled by TRL's trainer.

    TRL hands it nothing of a row but the prompt, so the data set's prompts are the numbers of rows.
    """

    def rollout(prompts: list[str], trainer) -> dict:
        def sample(so_far: list[list[int]], numbers: list[int], turn: int) -> list[tuple[list[int], list[float]]]:
            ids, logprobs = trainer._generate_single_turn(so_far, None, {}, 1)  # as TRL's own loop of tools does
            return list(zip(ids, logprobs or [[0.0] * len(answer) for answer in ids], strict=True))

        rows = [scorer.rows[int(prompt)] for prompt in prompts]
        conversations = play(rows, setup, sample)
        scorer.heard = heard(rows, conversations)
        return {
            "prompt_ids": [c.prompt_ids for c in conversations],
            "completion_ids": [c.response_ids for c in conversations],
            "logprobs": [c.rollout_logprobs for c in conversations] if trainer.use_vllm else None,
            "env_mask": [c.response_mask for c in conversations],
        }

    return rollout


def heard(rows: list[dict], conversations: list[Conversation]) -> tuple[list[dict], list[list[dict]]]:
    """Rows as rewards see them, with their conversation, and the messages."""
    seen, messages = as_rewards_see(rows, conversations)
    return [{**row, "talk": conversation} for row, conversation in zip(seen, conversations, strict=True)], messages


def brief(setup: PlaySetup, conversation: Conversation) -> Conversation:
    """A conversation for metrics, as processes exchange it; finished if all of its answers ended by themselves."""
    finished = all(setup.bridge.ends(conversation.response_ids[start:end]) for start, end in conversation.spans)
    return dataclasses.replace(conversation, kind=None, environment=None, prompt="", messages=[], finished=finished)


def conversation_entry(setup: PlaySetup, conversation: Conversation) -> dict:
    """What a sample has of a conversation."""
    bridge, short = setup.bridge, brief(setup, conversation)
    answers = [conversation.response_ids[start:end] for start, end in conversation.spans]
    return {
        "prompt": conversation.prompt,
        "completion": "\n".join(visible_text(bridge.tokenizer, ids, bridge.end_ids) for ids in answers),
        "finished": short.finished,
        "length": sum(conversation.response_mask),  # what was sampled
        "ended_by": conversation.ended_by,
        "turn_rewards": conversation.turn_rewards,
        "messages": conversation.messages,
        "pieces": pieces(bridge.tokenizer, conversation),
        "talk": short,
    }


def greedy_completions(trainer, prompts: list[list[int]], batch_size: int) -> list[list[int]]:
    """Token ids of one greedy completion per prompt, by the sampler that trains."""
    ends, pad_id = trainer.eos_token_ids, trainer.processing_class.pad_token_id
    limits = {"max_new_tokens": trainer.max_completion_length, "do_sample": False, "disable_compile": True}
    greedy = {"generation_config": transformers.GenerationConfig(**limits, eos_token_id=ends, pad_token_id=pad_id)}
    owner = trainer.vllm_generation if trainer.use_vllm else trainer
    changed = {"temperature": 0.0} if trainer.use_vllm else greedy | {"generation_kwargs": {}}
    trainer.model.eval()
    completions = {}
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))  # a batch of like lengths has few pads
    size = len(prompts) if trainer.use_vllm else batch_size
    with mock.patch.multiple(owner, **changed):
        for start in range(0, len(prompts), max(1, size)):
            numbers = order[start : start + size]
            made = trainer._generate_single_turn([prompts[i] for i in numbers], None, {}, 1)[0]
            completions |= zip(numbers, made, strict=True)
    trainer.model.train()
    return [completions[i] for i in range(len(prompts))]


def greedy_conversations(config: Config, trainer, setup: PlaySetup, rows: list[dict]) -> list[Conversation]:
    def sample(so_far: list[list[int]], numbers: list[int], turn: int) -> list[tuple[list[int], list[float]]]:
        made = greedy_completions(trainer, so_far, config.per_device_eval_batch_size)
        return [(ids, [0.0] * len(ids)) for ids in made]

    return play(rows, setup, sample)


def evaluate(config: Config, trainer, scorer: Scorer, rows: list[dict], setup: PlaySetup | None = None) -> tuple:
    """(Metrics, samples) of a greedy held-out evaluation, of conversations if there is a `setup` to play them with.

    Accuracy is the share of rows with full marks, 1 or more, from the first function.
    """
    rank, size = world()
    share, states = rows[rank::size], scorer.state_dict()  # what adapts does so to training only
    conversations = []
    if not setup:
        same = share + rows[:1] if 0 < len(rows) % size <= rank else share  # every process samples the same number
        ids = greedy_completions(trainer, [row["prompt_ids"] for row in same], config.per_device_eval_batch_size)
        ids = ids[: len(share)]
    with raised_in_all():
        if setup:
            conversations = greedy_conversations(config, trainer, setup, share)
            ids, (share, said) = [x.response_ids for x in conversations], heard(share, conversations)
        else:
            said = as_completions(trainer.processing_class, share, ids, trainer.eos_token_ids)
        extra = TRL_EXTRAS | {"trainer_state": trainer.state}
        rewards = {name: scorer.score(name, share, said, ids, extra) for name in scorer.functions if share}
        samples = scorer.as_samples(share, said, ids, rewards)
        if setup:
            samples = [s | conversation_entry(setup, x) for s, x in zip(samples, conversations, strict=True)]
    scorer.load_state_dict(states)
    samples = gather_rows(samples)
    return held_out_figures(samples, [s["length"] for s in samples], rows), samples
