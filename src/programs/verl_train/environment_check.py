"""--check of an environment: verl's loop plays some rows with scripted answers, and is held against `play`."""

import asyncio
import math
from pathlib import Path

from parts.environments.play import play
from parts.environments.play_setup import PlaySetup, load_with_reward, score_talks, score_weights
from parts.learning.advantages import length_penalty
from parts.rewards.rewards import Reward
from programs.verl_train.data import row_columns
from programs.verl_train.environment_job import environment_setup
from programs.verl_train.overrides import Layout
from programs.verl_train.rewards import rounding_of, tried_answers
from programs.verl_train.settings import Config


class ScriptedServer:
    """Stands for verl's servers: every answer is the same."""

    def __init__(self, ids: list[int]):
        self.ids = ids

    async def generate(self, **request):
        from verl.workers.rollout.replica import TokenOutput

        return TokenOutput(token_ids=self.ids, log_probs=[-1.0] * len(self.ids))


async def played_by_verl(composed, row: dict, tokenizer, job: Layout, answer: list[int]):
    """What the job's loop makes of a row of verl's data."""
    from verl.experimental.agent_loop.agent_loop import DictConfigWrap
    from verl.utils.import_utils import load_extern_object

    loop = load_extern_object(str(Path(job.folder) / "verl_environment.py"), "EnvironmentLoop")(
        trainer_config=DictConfigWrap(composed),
        server_manager=ScriptedServer(answer),
        tokenizer=tokenizer,
        processor=None,
        dataset_cls=None,
        data_config=DictConfigWrap(composed.data),
    )
    return await loop.run({}, **row)


def played_by_us(config: Config, setup: PlaySetup, reward: Reward, row: dict, columns: list[str], answer: list[int]):
    """(the conversation, its score) that ppo_train.py would have."""
    known = row_columns(row)
    our_row = {"prompt": row["raw_prompt"], "columns": {name: known[name] for name in columns if name in known}}

    def same(prompts, numbers, turn):
        return [(answer, [-1.0] * len(answer)) for _ in prompts]

    [conversation] = play([our_row], setup.environments, setup.bridge, same, setup.limits, setup.form)
    [values] = score_talks(setup, [our_row], [conversation], reward)
    weights = score_weights(reward, values)
    score = sum(weights[name] * value for name, value in values.items() if value is not None)
    sample = {"finished": setup.bridge.ends(answer), "answer_lengths": [len(answer)]}
    return conversation, score - length_penalty(config, sample | {"response_ids": conversation.response_ids})


def environment_findings(composed, rows, tokenizer, config: Config, job: Layout) -> tuple[list[dict], list[str]]:
    """Play real rows in verl's loop and in ours, each with a right answer and with none; what differs is a finding."""
    setup, examples = environment_setup(config), []
    reward = load_with_reward(config, setup.bridge.tokenizer)[1]
    wrong = [setup.bridge.check(kind.tools, kind.talks) for kind in setup.environments.kinds.values()]
    findings = [f"environment: the chat template, as verl's transformers render it: {text}" for text in wrong if text]
    for row, text in tried_answers(rows):
        letters = tokenizer(text, add_special_tokens=False).input_ids[: setup.limits.answer_tokens - 1]
        answer, where = [*letters, tokenizer.eos_token_id], f"environment: row {row['index']}, answer {text[:60]!r}"
        try:
            verls = asyncio.run(played_by_verl(composed, row, tokenizer, job, answer))
            ours, score = played_by_us(config, setup, reward, row, job.columns, answer)
        except Exception as error:
            findings.append(f"{where}: {type(error).__name__}: {error}")
            continue
        tokens = (verls.prompt_ids, verls.response_ids, verls.response_mask)
        if tokens != (ours.prompt_ids, ours.response_ids, ours.response_mask):
            findings.append(f"{where}: verl's loop has other tokens than our trainers")
        if not math.isclose(verls.reward_score, score, rel_tol=rounding_of(config.group_size), abs_tol=1e-6):
            findings.append(f"{where}: verl's loop scores {verls.reward_score}, our trainers {score}")
        turns = verls.num_turns // 2
        examples.append({"row": row["index"], "answer": text[:60], "turns": turns, "score": verls.reward_score})
    return examples, findings
