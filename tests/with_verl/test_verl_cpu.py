"""verl's real trainer on the embedded model, without a GPU: GRPO, and a resume with our components."""

import importlib.util
import re
import sys

import pytest
import torch
from conftest import ROOT, TINY_LM, TRAIN_DATA, load_module, read_lines
from verl_helpers import EXAMPLES, run_main_ppo, write_prompts

CURRICULUM = [
    f"data.custom_cls.path={EXAMPLES}/curriculum_dataset.py",
    "data.custom_cls.name=CurriculumDataset",
    "data.shuffle=False",
    "data.validation_shuffle=False",
    "+data.curriculum_blur=0",
    "data.gen_batch_size=1",
]


def dumped(folder) -> list[dict]:
    """The completions of a run with trainer.rollout_data_dir=folder, by step."""
    rows = [row for path in sorted(folder.glob("*.jsonl"), key=lambda p: int(p.stem)) for row in read_lines(path)]
    assert rows
    return rows


def sum_of(row) -> int:
    """The right answer of a dumped completion, from its prompt."""
    a, b = map(int, re.findall(r"\d+", row["input"])[-2:])
    return a + b


@pytest.fixture(scope="module")
def grpo(tmp_path_factory):
    """Two steps of GRPO with our reward library, a curriculum and a reward manager, saved after the second."""
    folder = tmp_path_factory.mktemp("grpo")
    data = write_prompts(folder)
    common = [
        *data,
        *CURRICULUM,
        "algorithm.adv_estimator=grpo",
        f"trainer.default_local_dir={folder}/checkpoints",
        "trainer.save_freq=10",
    ]
    metrics = run_main_ppo(
        folder,
        *common,
        "reward.reward_manager.source=importlib",
        "reward.reward_manager.name=BudgetRewardManager",
        f"reward.reward_manager.module.path={EXAMPLES}/budget_reward_manager.py",
        "+reward.reward_kwargs.budget=4",
        "+reward.reward_kwargs.token_cost=0.01",
        "trainer.total_training_steps=2",
        f"trainer.rollout_data_dir={folder}/rollouts",
    )
    return folder, common, metrics


def test_grpo_runs_two_steps(grpo):
    _, _, metrics = grpo
    assert [row["step"] for row in metrics] == [1, 2]
    for row in metrics:
        learns = row["critic/advantages/max"] > row["critic/advantages/min"]  # else all of a group scored alike
        assert (row["actor/grad_norm"] > 0) == learns and row["actor/lr"] == 1e-3
        # the rollout's probabilities are the trainer's, but for weights that verl hands over in bf16
        assert row["training/rollout_probs_diff_max"] < 0.02
        assert row["training/rollout_actor_probs_pearson_corr"] > 0.999


def test_grpo_scores_are_those_of_our_reward_library(grpo):
    library = load_module(ROOT / "examples" / "reward_functions_library.py", "library_of_this_process")
    folder, _, metrics = grpo
    rows = dumped(folder / "rollouts")
    assert len(rows) == 2 * 8 * 4
    for row in rows:
        # whatever was sampled, the library says here what it said there; its own tests hold what it says
        correct = library.correctness_reward([None], [row["output"]], [str(sum_of(row))])[0]
        score = correct + 0.2 * library.format_reward([None], [row["output"]])[0]
        # the dump has no token ids: data.max_response_length allows 24, of which 4 cost nothing; the manager's own test
        # holds the length that it takes
        allowed = [score - 0.01 * max(0, tokens - 4) for tokens in range(1, 25)]
        allowed.append(min(0.0, allowed[-1]))  # cut off
        assert any(row["score"] == pytest.approx(value, abs=1e-6) for value in allowed), row
    for step, row in enumerate(metrics, start=1):
        scores = [r["score"] for r in rows if r["step"] == step]
        assert row["critic/score/mean"] == pytest.approx(sum(scores) / len(scores), abs=1e-5)


def test_curriculum_feeds_the_easiest_prompts_first(grpo):
    folder, _, _ = grpo
    easiest = sorted(int(row["answer"]) for row in read_lines(TRAIN_DATA)[:128])
    seen = {step: sorted(sum_of(r) for r in dumped(folder / "rollouts") if r["step"] == step)[::4] for step in (1, 2)}
    assert seen == {1: easiest[:8], 2: easiest[8:16]}


def test_final_checkpoint_merges_into_a_model_that_loads(grpo, tmp_path, monkeypatch):
    from transformers import AutoModelForCausalLM
    from verl.model_merger.__main__ import main

    folder, _, metrics = grpo
    assert (folder / "checkpoints" / "latest_checkpointed_iteration.txt").read_text() == "2"
    source = folder / "checkpoints" / "global_step_2" / "actor"
    options = ["merge", "--backend", "fsdp", "--local_dir", str(source), "--target_dir", str(tmp_path / "merged")]
    monkeypatch.setattr(sys, "argv", ["model_merger", *options])
    main()
    before = AutoModelForCausalLM.from_pretrained(TINY_LM, dtype=torch.float32).state_dict()
    after = AutoModelForCausalLM.from_pretrained(tmp_path / "merged", dtype=torch.float32).state_dict()
    assert before.keys() == after.keys()
    moved = {name: float((after[name] - before[name]).abs().max()) for name in before}
    # Adam moves a weight by up to its rate a step, here 1e-3, and the merger rounds to bf16, 2^-9 of the weight
    bound = {name: 2.2e-3 + float(before[name].abs().max()) / 256 for name in before}
    assert all(moved[name] < bound[name] for name in before)
    assert all(0 < moved[name] for name in before) or not any(row["actor/grad_norm"] for row in metrics)


@pytest.fixture(scope="module")
def resumed(grpo):
    """The third step, with a custom estimator, loss, agent loop and buffer."""
    folder, common, _ = grpo
    return run_main_ppo(
        folder / "resumed",
        *common,
        "algorithm.adv_estimator=maxrl",
        "actor_rollout_ref.actor.policy_loss.loss_mode=topr",
        "actor_rollout_ref.rollout.agent.default_agent_loop=feedback_agent",
        "actor_rollout_ref.rollout.multi_turn.max_assistant_turns=2",
        f"trainer.v1.sampler.custom_sampler.path={EXAMPLES}/difficulty_buffer.py",
        "trainer.v1.sampler.custom_sampler.name=DifficultyBuffer",
        "+trainer.v1.sampler.sampler_kwargs.train_batch_size=8",
        "+trainer.v1.sampler.sampler_kwargs.low=0.05",
        "+trainer.v1.sampler.sampler_kwargs.high=0.95",
        "+trainer.v1.sampler.sampler_kwargs.max_dropped=3",
        "data.max_response_length=48",
        "trainer.total_training_steps=3",
        "trainer.resume_mode=auto",
        f"trainer.rollout_data_dir={folder}/resumed/rollouts",
        modules=("maxrl_advantage", "topr_loss", "feedback_agent"),
    )


def test_resume_takes_up_step_optimizer_and_data(grpo, resumed):
    folder, _, _ = grpo
    assert [row["step"] for row in resumed] == [3]
    file = "actor/optim_world_size_1_rank_0.pt"
    states = [torch.load(folder / f"checkpoints/global_step_{step}" / file, weights_only=False) for step in (2, 3)]
    assert [{int(s["step"]) for s in state["state"].values()} for state in states] == [{2}, {3}]
    seen = {sum_of(row) for row in dumped(folder / "resumed" / "rollouts")}
    easiest = sorted(int(row["answer"]) for row in read_lines(TRAIN_DATA)[:128])
    assert seen <= {*easiest[16:40]}, "the curriculum went on where it stopped"


def test_custom_estimator_loss_agent_and_buffer_were_used(grpo, resumed):
    folder, _, _ = grpo
    [row] = resumed
    scores = [r["score"] for r in dumped(folder / "resumed" / "rollouts")]
    assert len(scores) == 8 * 4 and set(scores) <= {0.0, 0.75, 1.0}  # one attempt, two attempts, none right
    groups = [scores[i : i + 4] for i in range(0, 32, 4)]
    means = [sum(group) / 4 for group in groups if max(group) > 0]
    largest = [(max(g) - m) / (m + 1e-6) for g, m in zip([g for g in groups if max(g) > 0], means, strict=True)]
    assert row["critic/advantages/max"] == pytest.approx(max(largest, default=0.0), abs=1e-4)
    assert "actor/tapered_frac" in row and 2 <= row["num_turns/mean"] <= 4


VLLM = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_NO_USAGE_STATS": "1"}


@pytest.mark.skipif(
    not importlib.util.find_spec("vllm"), reason="verl's environment has no vLLM: tests/verl_cpu/README.md"
)
def test_vllm_is_the_rollout(tmp_path, monkeypatch):
    """Two steps; in the second vLLM has weights that verl has sent: its probabilities are the trainer's."""
    for name, value in VLLM.items():
        monkeypatch.setenv(name, value)
    rollout = "actor_rollout_ref.rollout"
    metrics = run_main_ppo(
        tmp_path,
        *write_prompts(tmp_path),
        f"{rollout}.name=vllm",
        f"{rollout}.enforce_eager=True",
        f"{rollout}.free_cache_engine=False",
        f"+{rollout}.enable_sleep_mode=False",
        f"{rollout}.dtype=float32",
        f"{rollout}.max_model_len=64",
        f"{rollout}.checkpoint_engine.update_weights_bucket_megabytes=16",
        "algorithm.adv_estimator=grpo",
        "trainer.total_training_steps=2",
        "trainer.resume_mode=disable",
        "trainer.save_freq=-1",
        modules=("verl_cpu_vllm",),
    )
    assert [row["step"] for row in metrics] == [1, 2]
    assert metrics[0]["actor/grad_norm"] > 0 and metrics[0]["actor/lr"] == 1e-3
    assert all(row["training/rollout_probs_diff_max"] < 1e-4 for row in metrics)
