"""Rewards in verl: generated files and ports through its loader and managers, each kind in three contracts."""

import copy
import functools
import importlib.util
import itertools
import warnings

import numpy as np
import pytest
import torch
from conftest import ROOT, TINY_LM, load_module, load_script, write_lines
from omegaconf import OmegaConf
from verl_helpers import compose

LIBRARY = ROOT / "examples" / "reward_functions_library.py"
HELPERS = [str(ROOT / "scripts" / f"{name}.py") for name in ("math_grader", "sandbox")]
FILES = [("math", "verl"), ("code", "both")]
template, launcher, loader = (load_script(n) for n in ("create_reward_template", "verl_train", "data_loader"))
numbers = itertools.count()
WORDS = "Tom picks 3 apples from each of the 4 trees. That is 3 * 4 = 12 apples in his basket."
BLOCK = "```python\n{}\n```"
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


@pytest.fixture(scope="session")
def tokenizer():
    """The embedded tokenizer, as verl loads it."""
    from verl.utils import hf_tokenizer

    return hf_tokenizer(str(TINY_LM))


@functools.cache
def composed():
    """verl's configuration, composed once: that takes a second."""
    return compose()


def config_of(module, manager: dict | None = None):
    """verl's configuration with a reward, and a reward manager if one is named."""
    config = copy.deepcopy(composed())
    config.reward.custom_reward_function.path = module and str(module)
    for key, value in (manager or {}).items():
        OmegaConf.update(config, f"reward.reward_manager.{key}", str(value))
    return config


def dataset_rows(folder, rows, tokenizer, write=None) -> list[dict]:
    """Rows as verl's data set gives them, after a trip through parquet; written by data_loader.py, or by `write`."""
    from verl.trainer.ppo.utils import create_rl_dataset

    path = folder / f"rows_{next(numbers)}.parquet"
    if write:
        write(rows, path)
    else:
        loader.write_rows(rows, path, "verl")
    dataset = create_rl_dataset(str(path), composed().data, tokenizer, None)
    return [dataset[i] for i in range(len(rows))]


def scored(manager, tokenizer, row: dict, text: str) -> dict:
    """What a reward manager of verl makes of a completion."""
    from tensordict import TensorDict
    from verl import DataProto

    ids = [*tokenizer(text, add_special_tokens=False).input_ids, tokenizer.eos_token_id]
    responses = torch.tensor([ids + [tokenizer.pad_token_id] * 3])
    mask = torch.tensor([[1] * (4 + len(ids)) + [0] * 3])
    batch = {"prompts": torch.full((1, 4), 65), "responses": responses, "attention_mask": mask}
    arrays = {}
    for name, value in row.items():
        if name != "dummy_tensor":
            arrays[name] = np.empty(1, dtype=object)
            arrays[name][0] = copy.deepcopy(value)
    data = DataProto(batch=TensorDict(batch, batch_size=1), non_tensor_batch=arrays)
    result = manager.loop.run_until_complete(manager.run_single(data))
    assert all(np.isscalar(value) for value in result["reward_extra_info"].values())  # verl makes arrays of them
    return result


@pytest.mark.parametrize(("task", "contract"), FILES)
def test_generated_file_scores_in_verl(task, contract, tokenizer, tmp_path):
    from verl.experimental.reward_loop.reward_manager.naive import NaiveRewardManager
    from verl.trainer.ppo.reward import load_reward_manager

    path = tmp_path / "my_reward.py"
    assert template.main(["--task", task, "--for", contract, "--output", str(path)]) == 0
    manager = load_reward_manager(config_of(path), tokenizer)
    assert type(manager) is NaiveRewardManager and not manager.is_async_reward_score
    cases = load_module(path, f"script_cases_{next(numbers)}").CASES
    given = [{"prompt": "?"} | {name: value for name, value in row.items() if value is not None} for _, row, _ in cases]
    rows = dataset_rows(tmp_path, given, tokenizer)
    for (text, columns, expected), row in zip(cases, rows, strict=True):
        if "prompt" in columns:
            row["extra_info"]["prompt"] = row["raw_prompt"]
        result = scored(manager, tokenizer, row, text)
        assert result["reward_score"] == pytest.approx(expected or 0.0, abs=1e-12), text
        extra = {"score": result["reward_score"], "applies": float(expected is not None)}
        assert result["reward_extra_info"] == extra


VERL_OWN = ROOT.joinpath(importlib.util.find_spec("verl").submodule_search_locations[0], "utils", "reward_score")

PARIS = {"target": ["Paris"]}


@pytest.mark.parametrize(
    ("file", "texts", "gold", "row", "flags"),
    [
        ("gsm8k", ["#### 18", "#### 19", "18", "so 9 * 2 = 18.\n#### 18"], "18", {"answer": "18"}, []),
        ("math_dapo", ["Answer: 18", "Answer: 19", "18"], "18", {"answer": "18"}, []),  # a dictionary
        ("search_r1_like_qa_em", ["<answer>a</answer><answer>Paris</answer>", "Paris"], PARIS,
         {"reward_model": {"ground_truth": PARIS}}, ["--gold_column", "reward_model"]),
    ],
)  # fmt: skip
def test_verls_own_scores_ported_to_trl(tmp_path, file, texts, gold, row, flags):
    source = VERL_OWN / f"{file}.py"
    flags = [*flags, "--from", f"{source}:compute_score", "--output", str(tmp_path / "port.py")]
    assert template.main([*flags, "--data", write_lines(tmp_path / "row.jsonl", [row])]) == 0
    module = load_module(tmp_path / "port.py", f"script_port_{next(numbers)}")
    original = load_module(source, f"script_original_{next(numbers)}").compute_score
    given = [original(solution_str=text, ground_truth=gold) for text in texts]
    expected = [float(value["score"] if isinstance(value, dict) else value) for value in given]
    columns = {name: [value] * len(texts) for name, value in row.items()}
    got = module.verl_reward([None] * len(texts), texts, **columns)
    assert got == expected and len({*got}) > 1


TESTS = ["assert f(1) == 1", "assert f(2) == 4"]
SQUARE, SAME = BLOCK.format("def f(x):\n    return x * x"), BLOCK.format("def f(x):\n    return x")
CASES = {  # a reward of each kind -> (columns of the row, completions whose scores are not all the same)
    "exact_match": ({"answer": ["New York", "NYC"]}, ["<answer>New  York</answer>", "Paris", ""]),
    "squad_f1": ({"answers": {"text": ["Eiffel tower", "the tower"]}}, ["The tower in Paris", "Rome"]),
    "code_execution": ({"tests": TESTS}, [SQUARE, SAME]),
    "json_schema": ({"schema": SCHEMA}, ['{"n": 1}', '{"n": "x"}']),
    "MATH_REASONING_REWARDS": ({"prompt": "3 * 4 trees?", "answer": "12"}, [WORDS + r" \boxed{12}", "<reasoning>"]),
}


@pytest.fixture(scope="module")
def in_verl(tokenizer, tmp_path_factory):
    """The rows of all cases in verl, once written by verl_train.py, once by data_loader.py; the columns for rewards."""
    folder, chats = tmp_path_factory.mktemp("data"), []
    for columns, _ in CASES.values():
        row = {"prompt": "What is it?"} | columns
        chats.append(row | {"prompt": [{"role": "user", "content": row["prompt"]}]})
    rows, names = launcher.verl_rows(chats, "prompt")
    launched = dataset_rows(folder, rows, tokenizer, launcher.write_parquet_file)
    loaded = dataset_rows(folder, chats, tokenizer)
    return dict(zip(CASES, zip(launched, loaded, strict=True), strict=True)), names


def modules_of(name: str, columns: list[str], data, folder) -> tuple[dict, list[str]]:
    """(Settings of a job's reward manager with a reward of the library, flags that port the reward to verl)."""
    launcher.write_modules(folder / "job", [f"{LIBRARY}:{name}"], columns, ship=HELPERS)
    hooks = {"source": "importlib", "name": "TokenRewardManager", "module.path": folder / "job" / "verl_hooks.py"}
    port = ["--from", f"{LIBRARY}:{name}", "--output", str(folder / "port.py"), "--data", str(data)]
    return hooks, port


@pytest.mark.parametrize("name", CASES)
def test_same_score_in_all_three_contracts(name, in_verl, tokenizer, ppo, tmp_path):
    """Ours, verl's loader with the module of verl_train.py, and with a port of the template script."""
    from verl.trainer.ppo.reward import load_reward_manager

    columns, texts = CASES[name]
    row = {"prompt": "What is it?"} | columns
    ids = [[*tokenizer(text, add_special_tokens=False).input_ids, tokenizer.eos_token_id] for text in texts]
    own = {name: value for name, value in columns.items() if name != "prompt"}
    chat = {"prompt": [{"role": "user", "content": row["prompt"]}], "columns": own}
    ours, _ = ppo.Reward([f"{LIBRARY}:{name}"])([chat] * len(texts), texts, ids)
    assert len({*ours}) > 1, "a case that cannot tell"

    launched, loaded = in_verl[0][name]
    hooks, port = modules_of(name, in_verl[1], write_lines(tmp_path / "row.jsonl", [row]), tmp_path)
    manager = load_reward_manager(config_of(None, hooks), tokenizer)
    got = [scored(manager, tokenizer, launched, text)["reward_score"] for text in texts]
    rounded = 2.0 ** -launcher.bits_of(composed().actor_rollout_ref.rollout.n)
    assert got == pytest.approx(ours, rel=rounded, abs=1e-12)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert template.main(port) == 0
        manager = load_reward_manager(config_of(tmp_path / "port.py"), tokenizer)
        results = []
        for text, own in zip(texts, ids, strict=True):  # verl's plain manager tells neither the prompt nor the ids
            told = {"raw_prompt": loaded["raw_prompt"], "completion_ids": own}
            results.append(scored(manager, tokenizer, loaded | {"extra_info": loaded["extra_info"] | told}, text))
    assert [result["reward_score"] for result in results] == pytest.approx(ours, abs=1e-12)
    assert all(result["reward_extra_info"]["raised"] == 0.0 for result in results)
