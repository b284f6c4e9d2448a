"""Held-out evaluations: which rows they take, the interval of the accuracy, how greedy answers are batched."""

import contextlib
from types import SimpleNamespace

import pytest
import torch
from conftest import EVAL_DATA, TINY_LM, load_script

from parts.prompts import evaluated_rows
from programs.grpo_train.evaluation import greedy_completions


def config(count: int, seed: int = 0):
    return SimpleNamespace(eval_rows=count, seed=seed)


def test_an_evaluation_takes_so_many_rows_the_same_ones_in_every_run(capsys):
    rows = [{"prompt": str(i)} for i in range(600)]
    picked = evaluated_rows(config(100), rows)
    assert "100 of 600 rows" in capsys.readouterr().err
    numbers = [int(row["prompt"]) for row in picked]
    assert len({*numbers}) == 100 and numbers == sorted(numbers), "each once, in the order of the file"
    assert numbers[-1] > 400 and numbers[50] > 150, "from the whole file"
    assert evaluated_rows(config(100, seed=7), rows) == picked, "runs of other seeds compare"
    capsys.readouterr()
    assert evaluated_rows(config(0), rows) is rows and evaluated_rows(config(600), rows) is rows
    assert not capsys.readouterr().err


@pytest.mark.parametrize("name", ["ppo_train", "grpo_train", "on_policy_distillation"])
def test_the_trainers_read_no_more_held_out_rows_than_asked(name, tmp_path):
    script, few = load_script(name), tmp_path / "few.jsonl"
    few.write_text("".join(EVAL_DATA.read_text().splitlines(keepends=True)[:8]))
    of_trl = name == "grpo_train"
    parse = script.parse_arguments if of_trl else script.parse_config
    tokenizer = script.left_tokenizer(parse([])) if of_trl else script.load_tokenizer(parse([]))

    def sizes(*flags: str) -> list[int]:
        config = parse([f"--data={few}", f"--eval_data={few}", *flags])
        return list(map(len, script.load_splits(config, tokenizer, *([script.load_task] if of_trl else []))))

    assert parse([]).eval_rows == 512 and sizes("--eval_rows=3") == [8, 3] and sizes("--eval_rows=0") == [8, 8]


def test_verl_gets_no_more_held_out_rows_than_asked():
    verl = load_script("verl_train")
    config = verl.parse_config(["--eval_rows=3"])
    assert len(verl.job_rows(config, None, str(EVAL_DATA), "test")[0]) == 3
    assert len(verl.job_rows(config, None, str(EVAL_DATA), "train")[0]) == 256


def test_the_accuracy_comes_with_its_interval():
    """81 of 263, and 0 of 20: Newcombe 1998, table I."""
    from parts.paired_tests import accuracy_figures

    def sample(value):
        return {"rewards": {"first": value, "second": 1.0}}

    found = accuracy_figures([*[sample(1.0)] * 80, sample(1.5), *[sample(0.99)] * 181, sample(None)])
    assert found == {
        "eval/accuracy": pytest.approx(81 / 263),
        "eval/accuracy_low": pytest.approx(0.2553, abs=5e-5),
        "eval/accuracy_high": pytest.approx(0.3662, abs=5e-5),
    }
    assert accuracy_figures([sample(0.0)] * 20)["eval/accuracy_high"] == pytest.approx(0.1611, abs=5e-5)


@pytest.fixture(scope="module")
def trainer():
    """What greedy_completions reads of TRL's trainer."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model, tokenizer = AutoModelForCausalLM.from_pretrained(TINY_LM), AutoTokenizer.from_pretrained(TINY_LM)
    state = SimpleNamespace(deepspeed_plugin=None)
    return SimpleNamespace(
        use_vllm=False,
        model=model,
        model_wrapped=model,
        processing_class=tokenizer,
        max_completion_length=10,
        eos_token_ids=[tokenizer.eos_token_id],
        args=SimpleNamespace(ds3_gather_for_generation=True),
        accelerator=SimpleNamespace(device=torch.device("cpu"), state=state, unwrap_model=lambda model: model),
        _dist=SimpleNamespace(summon_full_params=lambda *_, **__: contextlib.nullcontext()),
    )


def test_greedy_answers_do_not_depend_on_how_many_are_sampled_at_once(trainer):
    from parts.rows import read_rows

    tokenizer, texts = trainer.processing_class, [row["prompt"] for row in read_rows(str(EVAL_DATA))[:8]]
    prompts = [tokenizer.apply_chat_template(text, add_generation_prompt=True)["input_ids"] for text in texts]
    prompts += [prompts[i][-n:] for i, n in ((0, 3), (1, 9), (2, 5))]  # of other lengths, in no order
    alone = greedy_completions(trainer, prompts, 1)
    assert len({*map(tuple, alone)}) > 3 and len({*map(len, alone)}) > 1
    assert greedy_completions(trainer, prompts, 4) == alone and greedy_completions(trainer, prompts, 64) == alone
    assert greedy_completions(trainer, [], 64) == []
