"""examples/verl/: each component through verl's own loading code, in this process, against oracles of its own."""

import asyncio
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from conftest import FEW_TRAIN, TINY_LM, load_module, read_lines, write_lines
from omegaconf import open_dict
from verl_helpers import EXAMPLES, compose, verl_rows, write_prompts

PROMPT = "<|user|>{}<|end|><|assistant|>"


@pytest.fixture(scope="module")
def tokenizer():
    from verl.utils.tokenizer import hf_tokenizer

    return hf_tokenizer(str(TINY_LM))


def example(name: str):
    """A file of examples/verl as a module."""
    return load_module(EXAMPLES / f"{name}.py", name)


def dataset(tokenizer, *overrides):
    """The training data that verl makes of a configuration."""
    from verl.trainer.ppo.utils import create_rl_dataset

    config = compose(*overrides).data
    return create_rl_dataset(config.train_files, config, tokenizer, None)


def by_custom_class(name: str, cls: str) -> list[str]:
    """The overrides that name a data set class."""
    return [f"data.custom_cls.path={EXAMPLES}/{name}.py", f"data.custom_cls.name={cls}"]


COLUMNS = by_custom_class("columns_dataset", "ColumnsDataset")


def test_columns_dataset_reads_our_files_as_they_are(tokenizer):
    rows, expected = dataset(tokenizer, *COLUMNS, f"data.train_files={FEW_TRAIN}"), read_lines(FEW_TRAIN)
    assert len(rows) == len(expected)
    for i in (0, len(rows) - 1):
        row = rows[i]
        assert row["raw_prompt"] == expected[i]["prompt"]
        assert row["reward_model"] == {"style": "rule", "ground_truth": expected[i]["answer"]}
        assert (row["data_source"], row["index"], row["extra_info"]) == ("columns", i, {"index": i})


def test_columns_dataset_takes_text_prompts_other_names_and_a_system_prompt(tokenizer, tmp_path):
    first = {"prompt": "2+3=", "solution": "5", "level": 2, "data_source": "sums"}
    path = write_lines(tmp_path / "rows.jsonl", [first, {"prompt": "x" * 40, "solution": "6"}])
    options = [f"data.train_files={path}", "+data.answer_key=solution", "+data.system_prompt=Brief.", *COLUMNS]
    [row] = dataset(tokenizer, *options, "data.filter_overlong_prompts=True")  # the second is beyond 32 tokens
    assert row["raw_prompt"] == [{"role": "system", "content": "Brief."}, {"role": "user", "content": "2+3="}]
    assert row["reward_model"]["ground_truth"] == "5" and row["data_source"] == "sums"
    assert row["extra_info"] == {"index": 0, "level": 2}
    with pytest.raises(KeyError, match=r"row 0: got the columns .*; expected prompt and answer; try"):
        dataset(tokenizer, *COLUMNS, f"data.train_files={path}")


@pytest.fixture(scope="module")
def parquet(tmp_path_factory):
    return write_prompts(tmp_path_factory.mktemp("parquet"))


CURRICULUM = [*by_custom_class("curriculum_dataset", "CurriculumDataset"), "data.shuffle=False"]


def difficulties(rows) -> list:
    """The difficulty of each row, in the order in which verl would take them."""
    from verl.trainer.ppo.utils import create_rl_sampler

    return [rows[i]["extra_info"]["difficulty"] for i in create_rl_sampler(SimpleNamespace(shuffle=False), rows)]


def test_curriculum_sorts_by_difficulty(tokenizer, parquet):
    strict = difficulties(dataset(tokenizer, *parquet, *CURRICULUM, "+data.curriculum_blur=0"))
    assert strict == sorted(row["extra_info"]["difficulty"] for row in verl_rows())
    blurred = difficulties(dataset(tokenizer, *parquet, *CURRICULUM))
    assert sorted(blurred) == strict and blurred != strict
    assert np.corrcoef(np.argsort(np.argsort(blurred)), np.arange(128))[0, 1] > 0.9
    # at a blur b, two rows can only change places if their ranks differ by less than b / (1 - b)
    place = example("curriculum_dataset").curriculum_order(np.arange(1000), 0.1)
    assert 50 < (np.maximum.accumulate(place) - place).max() < 1000 / 9 + 1
    for override, message in [("data.shuffle=True", "got data.shuffle=True"), ("+data.difficulty_key=level", "level")]:
        with pytest.raises(ValueError, match=message):
            dataset(tokenizer, *parquet, *CURRICULUM, override)


class Queue:
    """Stands for TransferQueue: prompts and their completions; each new prompt has the next group of scores."""

    def __init__(self, groups):
        self.groups, self.tags, self.scores = iter(enumerate(groups)), {}, {}

    def add(self, count):
        for name, scores in (next(self.groups) for _ in range(count)):
            self.tags[str(name)] = {"is_prompt": True, "global_steps": 1, "status": "finished"}
            for i, score in enumerate(scores):
                self.tags[f"{name}_{i}_0"] = {}
                self.scores[f"{name}_{i}_0"] = torch.tensor([0.0, score])  # (T,)

    def kv_list(self):
        return {"train": dict(self.tags)}

    def kv_batch_get(self, keys, partition_id, select_fields):
        assert partition_id == "train" and select_fields == ["rm_scores"]
        return {"rm_scores": [self.scores[key] for key in keys]}

    def kv_clear(self, partition_id, keys):
        for key in keys:
            self.tags.pop(key, None)


def difficulty_buffer(queue, monkeypatch, **options):
    """The buffer, made by the trainer's own code."""
    import transfer_queue
    from verl.trainer.ppo.v1.trainer_base import PPOTrainer

    for name in ("kv_list", "kv_batch_get", "kv_clear"):
        monkeypatch.setattr(transfer_queue, name, getattr(queue, name))
    sampler = "trainer.v1.sampler"
    config = compose(
        f"{sampler}.custom_sampler.path={EXAMPLES}/difficulty_buffer.py",
        f"{sampler}.custom_sampler.name=DifficultyBuffer",
        *(f"+{sampler}.sampler_kwargs.{key}={value}" for key, value in options.items()),
    )
    trainer = SimpleNamespace(config=config, trainer_mode="sync", _add_prompts_to_generate=queue.add)
    buffer = PPOTrainer._build_replay_buffer(trainer)
    assert type(buffer).__name__ == "DifficultyBuffer"
    return buffer


def test_difficulty_buffer_drops_and_refills(monkeypatch):
    easy, hard, some, half = [1.0] * 4, [0.0] * 4, [0.0, 0.0, 0.0, 1.0], [0.0, 1.0, 0.0, 1.0]
    queue = Queue([easy, half, hard, some, half, [1.0, 1.0, 1.0, 0.8], half, half])
    queue.add(2)
    buffer = difficulty_buffer(queue, monkeypatch, train_batch_size=2, low=0.3, high=0.9)
    batch, metrics = buffer.sample(1, "train", 2)
    # 0 and 2 are all alike, 3 and 5 have means of 0.25 and 0.95; 1 and 4 are the first two in the band
    assert {key.split("_")[0] for key in batch.keys} == {"1", "4"} and len(batch.keys) == 8
    assert metrics["training/filter_groups/evicted_samples"] == 4


def test_difficulty_buffer_gives_up_dropping(monkeypatch):
    queue = Queue([[0.0] * 4] * 20)
    queue.add(2)
    buffer = difficulty_buffer(queue, monkeypatch, train_batch_size=2, max_dropped=3)
    for _ in range(2):  # the count starts again with each step
        batch, metrics = buffer.sample(1, "train", 2)
        assert len(batch.keys) == 8 and metrics["training/filter_groups/evicted_samples"] == 3
        queue.add(2)


class Script:
    """Stands for the inference servers: answers with given texts and notes what it was asked."""

    def __init__(self, tokenizer, *texts):
        self.tokenizer, self.texts, self.asked, self.ids = tokenizer, list(texts), [], set()

    async def generate(self, request_id, prompt_ids, sampling_params):
        from verl.workers.rollout.replica import TokenOutput

        self.ids.add(request_id)
        assert len(self.ids) == 1, "another id may go to another server, which has not the conversation in its cache"
        self.asked.append((self.tokenizer.decode(prompt_ids), sampling_params["max_tokens"]))
        ids = self.tokenizer.encode(self.texts.pop(0) + "<|end|>")[: sampling_params["max_tokens"]]
        return TokenOutput(token_ids=ids, log_probs=[-float(i) for i in ids], extra_fields={"global_steps": 7})


def converse(tokenizer, *texts, room=64, turns=3, answer="5"):
    """Run the agent loop as verl's worker does; returns its output and what the server was asked."""
    import hydra
    from verl.experimental.agent_loop.agent_loop import DictConfigWrap, ToolListWrap, _agent_loop_registry
    from verl.utils.dataset.rl_dataset import RLHFDataset

    example("feedback_agent")
    config = compose(f"data.max_response_length={room}", "data.train_files=a", "data.val_files=b")
    with open_dict(config):
        config.actor_rollout_ref.rollout.multi_turn.max_assistant_turns = turns
    server = Script(tokenizer, *texts)

    async def run():
        known = {"trainer_config": DictConfigWrap(config), "data_config": DictConfigWrap(config.data)}
        known |= {"server_manager": server, "tokenizer": tokenizer, "processor": None, "hf_model_type": "llama"}
        known |= {"dataset_cls": RLHFDataset, "tools": ToolListWrap([])}
        loop = hydra.utils.instantiate(_agent_loop_registry["feedback_agent"], **known)
        row = {"raw_prompt": [{"role": "user", "content": "2+3="}], "reward_model": {"ground_truth": answer}}
        return await loop.run({"temperature": 1.0}, **row)

    return asyncio.run(run()), server.asked


def test_feedback_agent_masks_the_tool_and_scores_by_turn(tokenizer):
    out, asked = converse(tokenizer, "4", "<answer>5</answer>")
    said, tool, again = "4<|end|>", "<|user|>too small<|end|><|assistant|>", "<answer>5</answer><|end|>"
    assert tokenizer.decode(out.prompt_ids) == PROMPT.format("2+3=")
    assert tokenizer.decode(out.response_ids) == said + tool + again
    lengths = [len(tokenizer.encode(text)) for text in (said, tool, again)]
    assert out.response_mask == [1] * lengths[0] + [0] * lengths[1] + [1] * lengths[2]
    sampled = [-float(i) if m else 0.0 for i, m in zip(out.response_ids, out.response_mask, strict=True)]
    assert out.response_logprobs == sampled
    assert (out.reward_score, out.num_turns, out.extra_fields["global_steps"]) == (0.75, 4, 7)
    assert asked[1] == (PROMPT.format("2+3=") + said + tool, 64 - sum(lengths[:2]))


def test_feedback_agent_stays_within_the_response_length(tokenizer):
    out, asked = converse(tokenizer, "4" * 10, "5", room=20)  # the tool's message does not fit
    assert len(asked) == 1 and len(out.response_ids) == len(out.response_mask) == len(out.response_logprobs) == 11
    out, _ = converse(tokenizer, "4" * 90, room=20)
    assert len(out.response_ids) == 20 and set(out.response_mask) == {1}


def test_maxrl_advantage_through_verl(tokenizer):
    from verl import DataProto
    from verl.trainer.ppo.ray_trainer import compute_advantage

    estimator = example("maxrl_advantage").maxrl_advantage
    scores, groups = [1, 0, 0, 0, 3, 0, 0, 0.5], list("abaabacb")
    mask = torch.ones(8, 3)
    mask[0, 1:] = 0
    rewards = torch.zeros(8, 3)
    rewards[:, 0] = torch.tensor(scores)
    tensors, uids = {"token_level_rewards": rewards, "response_mask": mask}, np.array(groups, dtype=object)
    data = DataProto.from_dict(tensors=tensors, non_tensors={"uid": uids})
    out = compute_advantage(data, adv_estimator="maxrl", config=compose().algorithm).batch["advantages"]
    for i, group in enumerate(groups):
        mean = np.mean([s for s, g in zip(scores, groups, strict=True) if g == group])
        expected = (scores[i] - mean) / (mean + 1e-6)
        assert out[i].tolist() == pytest.approx([expected * m for m in mask[i].tolist()], abs=1e-5)
    with pytest.raises(ValueError, match=r"got a score of -1; expected none below 0"):
        estimator(-rewards.clamp(max=1), mask, np.array(groups))


@pytest.mark.parametrize("mode", ["token-mean", "seq-mean-token-sum", "seq-mean-token-mean"])
def test_topr_loss_and_its_gradient(mode):
    from verl.trainer.ppo.core_algos import get_policy_loss_fn

    example("topr_loss")
    generator = torch.Generator().manual_seed(0)
    old = -torch.rand(4, 5, generator=generator)
    new = (old + 0.3 * torch.randn(4, 5, generator=generator)).requires_grad_()
    mask = (torch.arange(5) < torch.tensor([[5], [3], [4], [1]])).float()
    advantages = torch.tensor([1.5, -1.0, -2.0, -0.5])[:, None] * mask
    config = SimpleNamespace(global_batch_info={})
    loss, metrics = get_policy_loss_fn("topr")(old, new, advantages, mask, mode, config)
    loss.backward()
    # one number at a time
    weights = []
    for i in range(4):
        ratio = math.exp(sum(float((new - old)[i, t].detach()) for t in range(5) if mask[i, t]))
        weights.append(1.0 if advantages[i, 0] >= 0 else min(1.0, ratio))
    assert 0 < sum(w < 1 for w in weights) < 3
    lengths, total, gradient = mask.sum(1).tolist(), 0.0, torch.zeros(4, 5)
    for i in range(4):
        share = {"token-mean": 1 / sum(lengths), "seq-mean-token-sum": 1 / 4}.get(mode, 1 / 4 / lengths[i])
        for t in range(int(lengths[i])):
            gradient[i, t] = -weights[i] * float(advantages[i, t]) * share
            total += float(gradient[i, t]) * float(new[i, t])
    assert float(loss) == pytest.approx(total, rel=1e-5)
    torch.testing.assert_close(new.grad, gradient)
    tapered = sum(n for n, w in zip(lengths, weights, strict=True) if w < 1) / sum(lengths)
    assert metrics == {"actor/tapered_frac": pytest.approx(tapered)}


def scored(tokenizer, texts, *options):
    """The results of BudgetRewardManager, made by verl, for completions of at most 12 tokens."""
    from verl import DataProto
    from verl.trainer.ppo.reward import load_reward_manager

    own = ("source=importlib", "name=BudgetRewardManager", f"module.path={EXAMPLES}/budget_reward_manager.py")
    config = compose(*options, *(f"reward.reward_manager.{setting}" for setting in own))
    ids = [tokenizer.encode(text)[:12] for text in texts]
    responses = torch.tensor([row + [tokenizer.pad_token_id] * (12 - len(row)) for row in ids])
    mask = torch.tensor([[1] * (2 + len(row)) + [0] * (12 - len(row)) for row in ids])
    n, columns = len(texts), {"data_source": "sums", "reward_model": {"ground_truth": "5"}, "extra_info": {}}
    data = DataProto.from_dict(
        tensors={"prompts": torch.ones(n, 2, dtype=torch.long), "responses": responses, "attention_mask": mask},
        non_tensors={name: np.array([value] * n, dtype=object) for name, value in columns.items()},
    )
    manager = load_reward_manager(config, tokenizer)
    return [manager.loop.run_until_complete(manager.run_single(data[i : i + 1])) for i in range(n)]


def test_budget_reward_manager(tokenizer, tmp_path):
    path = tmp_path / "reward.py"
    path.write_text(
        "def compute_score(data_source, solution_str, ground_truth, extra_info=None, bonus=0.0, **kwargs):\n"
        "    return {'score': float(ground_truth in solution_str) + bonus, 'seen': len(solution_str)}\n"
    )
    options = [f"reward.custom_reward_function.path={path}", "+reward.reward_kwargs.token_cost=0.125"]
    texts = ["5<|end|>", "=5===<|end|>", "5===========", "4<|end|>", "============"]
    results = scored(tokenizer, texts, *options, "+reward.reward_kwargs.budget=4")
    # in the budget · 2 tokens over it · right, but cut off · wrong · cut off, 8 over
    assert [r["reward_score"] for r in results] == [1.0, 0.75, 0.0, 0.0, -1.0]
    extras = [(r["reward_extra_info"]["tokens"], r["reward_extra_info"]["cut_off"]) for r in results]
    assert extras == [(2, 0.0), (6, 0.0), (12, 1.0), (2, 0.0), (12, 1.0)]
    assert results[1]["reward_extra_info"]["seen"] == 5
    kwargs = "+reward.custom_reward_function.reward_kwargs.bonus=0.5"
    assert scored(tokenizer, texts[:1], *options, "+reward.reward_kwargs.budget=4", kwargs)[0]["reward_score"] == 1.5
    with pytest.raises(ValueError, match=r"got no reward.reward_kwargs.budget"):
        scored(tokenizer, texts, *options)
