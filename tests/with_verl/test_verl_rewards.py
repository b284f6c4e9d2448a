"""Rewards in verl: generated files and ports through its loader and managers, each kind in three contracts."""

import asyncio
import copy
import functools
import importlib.util
import inspect
import itertools
import json
import re
import warnings

import numpy as np
import pytest
import torch
from conftest import ROOT, TINY_LM, load_module, load_script
from local_server import serving
from omegaconf import OmegaConf
from verl_helpers import compose

LIBRARY = ROOT / "examples" / "reward_functions_library.py"
HELPERS = [str(ROOT / "scripts" / f"{name}.py") for name in ("math_grader", "sandbox")]
FILES = [("math", "verl"), *((task, "both") for task in ("math", "code", "qa", "format", "llm_judge", "custom"))]
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


def in_data(row: dict) -> dict:
    """A row of columns as a row of data: with a prompt, without columns that are None."""
    given = {name: value for name, value in row.items() if value is not None}
    return {"prompt": "?"} | given


# ------------------------------------------------------------------------------------------------ generated files


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """{(task, contract): path} of generated rewards."""
    made = {}
    for task, contract in FILES:
        path = made[task, contract] = tmp_path_factory.mktemp(f"{task}_{contract}") / "my_reward.py"
        assert template.main(["--task", task, "--for", contract, "--output", str(path)]) == 0
    return made


@pytest.fixture
def stand_in(files, monkeypatch):
    """The judge of the generated file's own test, as a server; files that are loaded now ask it."""
    judge = load_module(files["llm_judge", "both"], f"script_stand_in_{next(numbers)}").stand_in

    def answer(asked):
        return 200, {"choices": [{"message": {"content": judge(asked.body["messages"][0]["content"])}}]}

    with serving(answer) as url:
        monkeypatch.setenv("OPENAI_BASE_URL", f"{url}/v1")
        monkeypatch.setenv("JUDGE_MODEL", "judge")
        yield


@pytest.mark.parametrize(("task", "contract"), FILES)
@pytest.mark.filterwarnings("ignore:got no score")  # the judge is silent once
def test_generated_file_scores_in_verl(files, task, contract, tokenizer, stand_in, tmp_path):
    from verl.experimental.reward_loop.reward_manager.naive import NaiveRewardManager
    from verl.trainer.ppo.reward import load_reward_manager

    path = files[task, contract]
    manager = load_reward_manager(config_of(path), tokenizer)
    assert type(manager) is NaiveRewardManager and not manager.is_async_reward_score
    cases = load_module(path, f"script_cases_{next(numbers)}").CASES
    rows = dataset_rows(tmp_path, [in_data(row) for _, row, _ in cases], tokenizer)
    for (text, columns, expected), row in zip(cases, rows, strict=True):
        if "prompt" in columns:
            row["extra_info"]["prompt"] = row["raw_prompt"]
        result = scored(manager, tokenizer, row, text)
        assert result["reward_score"] == pytest.approx(expected or 0.0, abs=1e-12), text
        extra = {"score": result["reward_score"], "applies": float(expected is not None)}
        assert result["reward_extra_info"] == extra


def test_missing_helper_stops_verl_at_its_start(files, tmp_path):
    from verl.trainer.ppo.reward import get_custom_reward_fn

    path = tmp_path / "my_reward.py"
    path.write_text(files["math", "verl"].read_text())
    with pytest.raises(RuntimeError, match="Error loading module") as caught:
        get_custom_reward_fn(config_of(path))
    assert "math_grader.py; expected the file" in str(caught.value.__cause__)


# ------------------------------------------------------------------------------------------------ ports

VERL_OWN = ROOT.joinpath(importlib.util.find_spec("verl").submodule_search_locations[0], "utils", "reward_score")


@pytest.mark.parametrize(
    ("file", "texts", "gold"),
    [
        ("gsm8k", ["#### 18", "#### 19", "18", "so 9 * 2 = 18.\n#### 18"], "18"),
        ("math_reward", [r"\boxed{\frac{1}{2}}", r"\boxed{\frac12}", r"\boxed{1}", "1/2"], r"\frac{1}{2}"),
        ("math_dapo", ["Answer: 18", "Answer: 19", "18"], "18"),
        ("search_r1_like_qa_em", ["<answer>a</answer><answer>Paris</answer>", "Paris"], None),
    ],
)
def test_verls_own_scores_ported_to_trl(tmp_path, file, texts, gold):
    source = VERL_OWN / f"{file}.py"
    row = {"answer": gold}
    if file == "search_r1_like_qa_em":  # its ground truth is an object, so rows of verl's form are needed
        gold = {"target": ["Paris"]}
        row = {"reward_model": {"ground_truth": gold}}
    flags = ["--from", f"{source}:compute_score", "--output", str(tmp_path / "port.py")]
    flags += ["--gold_column", "reward_model"] if isinstance(gold, dict) else []
    (tmp_path / "row.jsonl").write_text(json.dumps(row))
    assert template.main([*flags, "--data", str(tmp_path / "row.jsonl")]) == 0
    module = load_module(tmp_path / "port.py", f"script_port_{next(numbers)}")
    original = load_module(source, f"script_original_{next(numbers)}").compute_score
    given = [original(solution_str=text, ground_truth=gold) for text in texts]
    expected = [float(value["score"] if isinstance(value, dict) else value) for value in given]
    column = {"reward_model": [{"ground_truth": gold}] * len(texts)} if isinstance(gold, dict) else None
    got = module.verl_reward([None] * len(texts), texts, **(column or {"answer": [gold] * len(texts)}))
    assert got == expected and len({*got}) > 1


def test_ported_async_reward_through_verl(tmp_path, tokenizer):
    from verl.trainer.ppo.reward import load_reward_manager

    source = "async def close(prompts, completions, answer, **kwargs):\n"
    source += "    return [len(c[0]['content']) / len(a) if a else None for c, a in zip(completions, answer)]\n"
    (tmp_path / "mine.py").write_text(source)
    port = tmp_path / "port.py"
    assert template.main(["--from", f"{tmp_path / 'mine.py'}:close*2", "--output", str(port)]) == 0
    manager = load_reward_manager(config_of(port), tokenizer)
    assert manager.is_async_reward_score
    rows = dataset_rows(tmp_path, [{"prompt": "?", "answer": "abcd"}], tokenizer)
    assert scored(manager, tokenizer, rows[0], "ab")["reward_score"] == 1.0


# ------------------------------------------------------------------------------------------------ one case a kind

VARIANTS = '''
"""Rewards made of the library's, for the cases that a name alone cannot say."""

import importlib.util
import sys

if "library_of_variants" not in sys.modules:
    spec = importlib.util.spec_from_file_location("library_of_variants", {library!r})
    sys.modules["library_of_variants"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules["library_of_variants"])
lib = sys.modules["library_of_variants"]

twelve_tokens = lib.ideal_length.configure(ideal=12, unit="tokens")
gated = lib.combine([lib.exact_match, lib.format_reward], [1.0, 0.25], mode="gated", name="gated")
judged = lib.llm_judge.configure(base_url={url!r}, model="judge", retries=0, name="judged")
with_judge = lib.combine([lib.exact_match, judged], [1.0, 0.5], name="with_judge")
preferred = lib.reward_model.configure(model={model!r}, device="cpu", name="preferred")
'''
TESTS = ["assert f(1) == 1", "assert f(2) == 4"]
SQUARE, SAME = BLOCK.format("def f(x):\n    return x * x"), BLOCK.format("def f(x):\n    return x")
CASES = {  # a reward of each kind, or a variant -> (columns of the row, completions whose scores are not all the same)
    "exact_match": ({"answer": ["New York", "NYC"]}, ["<answer>New  York</answer>", "Paris", ""]),
    "numeric_correctness": ({"answer": "1234"}, ["$1,234.0", "1233"]),
    "math_equivalence": ({"answer": "0.5"}, [r"so \boxed{\frac{1}{2}}", r"\boxed{2}", ""]),
    "squad_f1": ({"answers": {"text": ["Eiffel tower", "the tower"]}}, ["The tower in Paris", "Rome"]),
    "code_execution": ({"tests": TESTS}, [SQUARE, SAME]),
    "json_schema": ({"schema": SCHEMA}, ['{"n": 1}', '{"n": "x"}']),
    "soft_overlong_punishment": ({"answer": "2"}, ["a", "a " * 9000, "a " * 12_000]),
    "token_cosine_scaled": ({"answer": "2"}, [r"\boxed{2}", r"\boxed{3}", r"Well, so it is \boxed{2}"]),
    "reasoning_quality": ({"prompt": "How many apples?"}, [WORDS, "Therefore thus because."]),
    "language_consistency": ({"prompt": "Wie geht es?"}, ["gut", "gut 好好好"]),
    "MATH_REASONING_REWARDS": ({"prompt": "3 * 4 trees?", "answer": "12"}, [WORDS + r" \boxed{12}", "<reasoning>"]),
    "SUMMARIZATION_REWARDS": ({"reference": "the cat sat"}, ["a cat sat", "dog dog dog dog", ""]),
    "twelve_tokens": ({"answer": "2"}, ["Hello", "Hello there!"]),
    "gated": ({"answer": "2"}, ["<answer>2</answer>", "2", "<answer>3</answer>"]),
    "with_judge": ({"prompt": "2 + 2?", "answer": "4"}, ["4", "Four, as 2 + 2 = 4.", "Five"]),
    "preferred": ({"prompt": "2 + 2?"}, ["Four", "Five, I think"]),
}
NEED_IDS = {"token_cosine_scaled"}  # verl's own managers give none, that of verl_train.py does


@pytest.fixture(scope="module")
def variants(tmp_path_factory):
    """The file of variants, with a judge and a reward model of its own."""
    import transformers

    folder = tmp_path_factory.mktemp("variants")
    torch.manual_seed(0)
    tokenizer = transformers.AutoTokenizer.from_pretrained(TINY_LM)
    shape = {"vocab_size": len(tokenizer), "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "pad_token_id": tokenizer.pad_token_id}
    config = transformers.LlamaConfig(**shape, **heads, num_labels=1)
    transformers.LlamaForSequenceClassification(config).save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    with serving(graded) as url:
        text = VARIANTS.format(library=str(LIBRARY), schema=SCHEMA, url=f"{url}/v1", model=str(folder / "model"))
        (folder / "variants.py").write_text(text)
        yield folder / "variants.py"


def graded(asked) -> tuple:
    """A judge for the library's question: the number of letters F in the fenced text, and 2 for the right reference."""
    message = asked.body["messages"][0]["content"]
    text = message.split("\n" + message.splitlines()[-1] + "\n")[1]
    grade = text.count("F") + 2 * ("Reference answer:\n4" in message) * ("2 + 2?" in message)
    return 200, {"choices": [{"message": {"content": f'{{"score": {grade}}}'}}]}


def by_trl_contract(file, name, row, texts, ids) -> list[float]:
    """The weighted sum of the functions, each called as TRL calls it, on functions loaded afresh."""
    found = getattr(load_module(file, f"script_afresh_{next(numbers)}"), name)
    functions = [found] if callable(found) else found
    columns = {key: [value] * len(texts) for key, value in row.items() if key != "prompt"}
    extras = {"trainer_state": object(), "log_extra": lambda *_: None, "log_metric": lambda *_: None}
    weights = found.weights if isinstance(found, list) else [1.0]
    totals = [0.0] * len(texts)
    for function, weight in zip(functions, weights, strict=True):
        result = function(
            prompts=[[{"role": "user", "content": row["prompt"]}]] * len(texts),
            completions=[[{"role": "assistant", "content": text}] for text in texts],
            completion_ids=ids,
            **columns,
            **extras,
        )

        async def waited(result=result):
            return await result

        values = asyncio.run(waited()) if inspect.isawaitable(result) else result
        totals = [total + weight * (value or 0.0) for total, value in zip(totals, values, strict=True)]
    return totals


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


@pytest.mark.parametrize("name", CASES)
def test_same_score_in_all_three_contracts(name, variants, in_verl, tokenizer, ppo, tmp_path, capsys):
    """Ours, TRL's contract, verl's loader with the module of verl_train.py, and with a port of the template script."""
    from verl.trainer.ppo.reward import load_reward_manager

    columns, texts = CASES[name]
    file = variants if re.search(rf"(?m)^{name} = ", VARIANTS) else LIBRARY
    row = {"prompt": "What is it?"} | columns
    ids = [[*tokenizer(text, add_special_tokens=False).input_ids, tokenizer.eos_token_id] for text in texts]

    reward = ppo.Reward([f"{file}:{name}"])
    chat = [{"role": "user", "content": row["prompt"]}]
    own = {name: value for name, value in columns.items() if name != "prompt"}
    ours, _ = reward([{"prompt": chat, "columns": own}] * len(texts), texts, ids)
    assert len({*ours}) > 1, "a case that cannot tell"
    assert by_trl_contract(file, name, row, texts, ids) == pytest.approx(ours, abs=1e-12)

    launched, loaded = in_verl[0][name]
    launcher.write_modules(tmp_path / "job", [f"{file}:{name}"], in_verl[1], ship=HELPERS)
    hooks = {"source": "importlib", "name": "TokenRewardManager", "module.path": tmp_path / "job" / "verl_hooks.py"}
    manager = load_reward_manager(config_of(None, hooks), tokenizer)
    got = [scored(manager, tokenizer, launched, text)["reward_score"] for text in texts]
    rounded = 2.0 ** -launcher.bits_of(composed().actor_rollout_ref.rollout.n)
    assert got == pytest.approx(ours, rel=rounded, abs=1e-12)

    (tmp_path / "row.jsonl").write_text(json.dumps(row))
    data = ["--data", str(tmp_path / "row.jsonl")]
    port = tmp_path / "port.py"
    if name in NEED_IDS:
        assert template.main(["--from", f"{file}:{name}", "--output", str(port), *data]) == 2
        assert "which requires completion_ids; verl gives none" in capsys.readouterr().err and not port.exists()
        return
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert template.main(["--from", f"{file}:{name}", "--output", str(port), *data]) == 0
        manager = load_reward_manager(config_of(port), tokenizer)
        results = []
        for text, own in zip(texts, ids, strict=True):  # verl's plain manager tells neither the prompt nor the ids
            told = {"raw_prompt": loaded["raw_prompt"], "completion_ids": own}
            results.append(scored(manager, tokenizer, loaded | {"extra_info": loaded["extra_info"] | told}, text))
    assert [result["reward_score"] for result in results] == pytest.approx(ours, abs=1e-12)
    assert all(result["reward_extra_info"]["raised"] == 0.0 for result in results)


def test_a_row_without_an_answer_beside_one_with_it_scores_0_in_both_modules(tokenizer, tmp_path):
    from verl.trainer.ppo.reward import load_reward_manager

    chats = [{"prompt": [{"role": "user", "content": "?"}], "answer": answer, "level": 1} for answer in ("12", None)]
    rows, names = launcher.verl_rows(chats, "prompt")
    launcher.write_modules(tmp_path / "job", [f"{LIBRARY}:exact_match"], names, ship=HELPERS)
    hooks = {"source": "importlib", "name": "TokenRewardManager", "module.path": tmp_path / "job" / "verl_hooks.py"}
    port, data = tmp_path / "port.py", tmp_path / "rows.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in chats))
    assert template.main(["--from", f"{LIBRARY}:exact_match", "--output", str(port), "--data", str(data)]) == 0
    launched = dataset_rows(tmp_path, rows, tokenizer, launcher.write_parquet_file)
    loaded = dataset_rows(tmp_path, chats, tokenizer)
    for manager, given in ((config_of(None, hooks), launched), (config_of(port), loaded)):
        results = [scored(load_reward_manager(manager, tokenizer), tokenizer, row, "12") for row in given]
        assert [result["reward_score"] for result in results] == pytest.approx([1.0, 0.0], rel=1e-2)
        assert all(result["reward_extra_info"].get("raised", 0.0) == 0.0 for result in results)
