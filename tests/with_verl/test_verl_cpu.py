"""verl's real trainer on the embedded model, without a GPU: one step with our components; and with vLLM."""

import importlib.util
import sys

import pytest
import torch
from conftest import TINY_LM, read_lines
from verl_helpers import EXAMPLES, run_main_ppo, write_prompts

SAMPLER = "trainer.v1.sampler"


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """(Folder, metrics, completions) of a step with a data set, estimator, loss, agent loop and buffer of ours."""
    folder = tmp_path_factory.mktemp("step")
    ours = f"""
data.custom_cls.path={EXAMPLES}/curriculum_dataset.py data.custom_cls.name=CurriculumDataset data.shuffle=False
data.validation_shuffle=False +data.curriculum_blur=0 data.gen_batch_size=1 data.max_response_length=48
algorithm.adv_estimator=maxrl actor_rollout_ref.actor.policy_loss.loss_mode=topr
actor_rollout_ref.rollout.agent.default_agent_loop=feedback_agent
actor_rollout_ref.rollout.multi_turn.max_assistant_turns=2
{SAMPLER}.custom_sampler.path={EXAMPLES}/difficulty_buffer.py {SAMPLER}.custom_sampler.name=DifficultyBuffer
trainer.default_local_dir={folder}/checkpoints trainer.rollout_data_dir={folder}/rollouts
trainer.save_freq=1 trainer.total_training_steps=1
""".split()
    for setting in ("train_batch_size=8", "low=0.05", "high=0.95", "max_dropped=3"):
        ours.append(f"+{SAMPLER}.sampler_kwargs.{setting}")
    modules = ("maxrl_advantage", "topr_loss", "feedback_agent")
    [metrics] = run_main_ppo(folder, *write_prompts(folder), *ours, modules=modules)
    return folder, metrics, read_lines(folder / "rollouts" / "1.jsonl")


def test_estimator_loss_agent_and_buffer_were_used(trained):
    _, metrics, rows = trained
    scores = [row["score"] for row in rows]
    assert len(scores) == 8 * 4 and set(scores) <= {0.0, 0.75, 1.0}  # one attempt, two attempts, none right
    groups = [scores[i : i + 4] for i in range(0, 32, 4)]
    largest = [(max(g) - sum(g) / 4) / (sum(g) / 4 + 1e-6) for g in groups if max(g) > 0]
    assert metrics["critic/advantages/max"] == pytest.approx(max(largest, default=0.0), abs=1e-4)
    assert metrics["critic/score/mean"] == pytest.approx(sum(scores) / 32, abs=1e-5)
    assert "actor/tapered_frac" in metrics and 2 <= metrics["num_turns/mean"] <= 4
    learns = metrics["critic/advantages/max"] > metrics["critic/advantages/min"]  # else all of a group scored alike
    assert (metrics["actor/grad_norm"] > 0) == learns and metrics["actor/lr"] == 1e-3
    # the rollout's probabilities are the trainer's, but for weights that verl hands over in bf16
    assert metrics["training/rollout_probs_diff_max"] < 0.02
    assert metrics["training/rollout_actor_probs_pearson_corr"] > 0.999


def test_final_checkpoint_merges_into_a_model_that_loads(trained, tmp_path, monkeypatch):
    from transformers import AutoModelForCausalLM
    from verl.model_merger.__main__ import main

    folder, metrics, _ = trained
    assert (folder / "checkpoints" / "latest_checkpointed_iteration.txt").read_text() == "1"
    source = folder / "checkpoints" / "global_step_1" / "actor"
    options = ["merge", "--backend", "fsdp", "--local_dir", str(source), "--target_dir", str(tmp_path / "merged")]
    monkeypatch.setattr(sys, "argv", ["model_merger", *options])
    main()
    before = AutoModelForCausalLM.from_pretrained(TINY_LM, dtype=torch.float32).state_dict()
    after = AutoModelForCausalLM.from_pretrained(tmp_path / "merged", dtype=torch.float32).state_dict()
    assert before.keys() == after.keys()
    moved = {name: float((after[name] - before[name]).abs().max()) for name in before}
    # Adam moves a weight by up to its rate a step, here 1e-3, and the merger rounds to bf16, 2^-9 of the weight
    bound = {name: 1.2e-3 + float(before[name].abs().max()) / 256 for name in before}
    assert all(moved[name] < bound[name] for name in before)
    assert all(0 < moved[name] for name in before) or not metrics["actor/grad_norm"]


VLLM = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_NO_USAGE_STATS": "1"}


@pytest.mark.skipif(
    not importlib.util.find_spec("vllm"), reason="verl's environment has no vLLM: tests/verl_cpu/README.md"
)
def test_vllm_is_the_rollout(tmp_path, monkeypatch):
    """Two steps; in the second vLLM has weights that verl has sent: its probabilities are the trainer's."""
    for name, value in VLLM.items():
        monkeypatch.setenv(name, value)
    rollout = "actor_rollout_ref.rollout"
    of_rollout = "name=vllm enforce_eager=True free_cache_engine=False dtype=float32 max_model_len=64"
    of_rollout += " checkpoint_engine.update_weights_bucket_megabytes=16"
    flags = [f"+{rollout}.enable_sleep_mode=False", *(f"{rollout}.{x}" for x in of_rollout.split())]
    flags += ["algorithm.adv_estimator=grpo", "trainer.total_training_steps=2"]
    flags += ["trainer.resume_mode=disable", "trainer.save_freq=-1"]
    metrics = run_main_ppo(tmp_path, *write_prompts(tmp_path), *flags, modules=("verl_cpu_vllm",))
    assert [row["step"] for row in metrics] == [1, 2]
    assert metrics[0]["actor/grad_norm"] > 0 and metrics[0]["actor/lr"] == 1e-3
    assert all(row["training/rollout_probs_diff_max"] < 1e-4 for row in metrics)
