"""scripts/evaluation.py: definitions, statistics, engine, files, messages.

Numbers of lm-evaluation-harness 0.4.13 are stored in tests/data/evaluation/oracle.json by make_oracle.py there; the
rest is compared with enumerations, hand-computed figures, or transformers' own generate.
"""

import functools
import itertools
import json
import math
import shlex
import signal
import time
from fractions import Fraction
from unittest.mock import Mock

import numpy as np
import pytest
from conftest import (
    EVAL_DATA,
    ROOT,
    TINY_LM,
    load_script,
    read_lines,
    run_script,
    save_random_model,
    signal_script,
    start_script,
    write_lines,
)
from local_server import serving

from parts.data.pass_rates import pass_at_k
from parts.evaluating.paired_tests import (
    Z95,
    Values,
    compare_values,
    mcnemar_exact,
    paired_proportion_interval,
    rows_needed,
    summarize,
    verdict_of,
    wilson_interval,
)
from parts.foundation.messages import UserError

DATA = ROOT / "tests" / "data" / "evaluation"
ev = load_script("evaluation")


@pytest.fixture(scope="module")
def oracle():
    """The stored numbers of lm-evaluation-harness."""
    return json.loads((DATA / "oracle.json").read_text())


def results(folder):
    """results.json of a run."""
    return json.loads((folder / "results.json").read_text())


def run_here(folder, *flags):
    """Run main in this process and return its results."""
    assert ev.main([*map(str, flags), "--output_dir", str(folder)]) == 0
    return results(folder)


def graded(folder, rows: list[dict], task: str, *flags, column: str = "done") -> dict:
    """What results.json says of a task that grades a column of these rows."""
    data = write_lines(folder / "graded.jsonl", rows)
    flags = ("--task", task, "--data", data, "--completion_column", column, *flags)
    return run_here(folder / "o", *flags)["tasks"][task]


# ------------------------------------------------------------------------------------------------ statistics
def test_pass_at_k_is_the_share_of_subsets_that_hold_a_pass():
    for n in range(1, 9):
        for c, k in itertools.product(range(n + 1), range(1, n + 1)):
            subsets = list(itertools.combinations([1] * c + [0] * (n - c), k))
            assert pass_at_k(n, c, k) == float(Fraction(sum(map(any, subsets)), len(subsets)))
    assert pass_at_k(200, 3, 100) == float(1 - Fraction(100 * 99 * 98, 200 * 199 * 198))
    assert pass_at_k(10_000, 1, 5_000) == 0.5
    for wrong in ((3, 1, 4), (3, 1, 0), (3, 4, 1), (3, -1, 1)):
        with pytest.raises(UserError, match="expected"):
            pass_at_k(*wrong)


def test_wilson_interval():
    # the roots of (p - x/n)^2 = z^2 p (1 - p) / n, which define the interval
    for x, n in [(1, 10), (5, 10), (81, 263), (9, 10)]:
        for p in wilson_interval(x, n):
            assert (p - x / n) ** 2 == pytest.approx(Z95**2 * p * (1 - p) / n, rel=1e-9)
    assert wilson_interval(81, 263) == pytest.approx((0.2553, 0.3662), abs=5e-5)  # Newcombe 1998, table I
    assert wilson_interval(0, 20) == pytest.approx((0.0, 0.1611), abs=5e-5)  # the same
    assert wilson_interval(20, 20)[1] == 1.0


def test_mcnemar_is_the_binomial_test():
    assert mcnemar_exact(9, 0) == 2 / 2**9
    assert mcnemar_exact(0, 0) == 1.0 and mcnemar_exact(4, 4) == 1.0
    assert mcnemar_exact(2, 8) == mcnemar_exact(8, 2) == 2 * (1 + 10 + 45) / 2**10
    assert 0 < mcnemar_exact(900, 100) < 1e-100  # no overflow


def test_paired_interval_of_proportions():
    up, down = 10 / 202, 1 / 202  # n = 200, 9 better, none worse
    half = 1.959964 * math.sqrt((up + down - (up - down) ** 2) / 202)
    assert paired_proportion_interval(9, 0, 200) == pytest.approx((up - down - half, up - down + half), rel=1e-6)


def test_rows_needed_reach_80_percent_power():
    n = rows_needed(0.1, math.sqrt(0.25 / 100), 100)  # sd 0.5, difference 0.1
    assert n == math.ceil(((1.959964 + 0.841621) * 0.5 / 0.1) ** 2) == 197
    assert rows_needed(0.0, 1.0, 10) is None


def test_bootstrap_agrees_with_theory_and_repeats():
    ratio = summarize(Values([1.0, 0.0, 2.0], [1.0, 0.0, 1.0]), 500, 0)
    assert ratio["value"] == 1.5 and ratio["ci95"] == [1.0, 2.0]  # without the draws of 0 / 0
    values = np.random.default_rng(1).normal(3.0, 2.0, 400).tolist()
    found = summarize(Values(values), 4000, 0)
    error = np.std(values, ddof=1) / 20
    assert found["value"] == pytest.approx(np.mean(values)) and found["stderr"] == pytest.approx(error)
    low, high = found["ci95"]
    assert (low, high) == pytest.approx((np.mean(values) - 1.96 * error, np.mean(values) + 1.96 * error), abs=0.03)
    assert found == summarize(Values(values), 4000, 0)
    assert found["interval"] == "bootstrap" and found["n"] == 400


def test_ratios_pool_before_dividing_and_missing_values_are_not_zeros():
    found = summarize(Values([1.0, 30.0], [1, 10], exp=True), 100, 0)
    assert found["value"] == pytest.approx(math.exp(31 / 11))
    found = summarize(Values([1.0, None, 0.0, 1.0]), 100, 0)
    assert (found["value"], found["n"], found["of"]) == (pytest.approx(2 / 3), 3, 4)
    assert summarize(Values([None, None]), 100, 0)["value"] is None
    one = summarize(Values([0.3]), 100, 0)
    assert one["value"] == 0.3 and one["stderr"] is None and one["ci95"] is None
    for values in ([1e308, 0.0], [1e308, 1e308]):
        huge = summarize(Values(values), 10, 0)
        assert huge["interval"] == "too large for a number" and huge["ci95"] is None and huge["stderr"] is None
        assert compare_values(Values(values), Values([0.0, 1.0]), 10, 0) is None
    assert summarize(Values([1.0] * 4, higher_is_better=None), 10, 0)["interval"] == "bootstrap"  # turns, no share
    huge = summarize(Values([1e5, 1e5], [1, 1], exp=True), 10, 0)
    assert huge["value"] is None and huge["interval"] == "too large for a number"


def test_paired_comparison_of_proportions():
    before, after = [0.0] * 9 + [1.0] * 100 + [0.0] * 91, [1.0] * 109 + [0.0] * 91
    found = compare_values(Values(before), Values(after), 200, 0)
    assert found["test"] == "exact McNemar" and found["p"] == pytest.approx(0.00390625)
    assert (found["better"], found["worse"], found["rows"]) == (9, 0, 200)
    assert found["difference"] == pytest.approx(0.045)
    assert "A real gain" in verdict_of("acc", found, True)
    assert "A real loss" in verdict_of("acc", found, False)
    few = compare_values(Values([0.0, 0.0, 1.0]), Values([1.0, 0.0, 1.0]), 200, 0)
    assert few["p"] == 1.0 and "Within the noise" in verdict_of("acc", few, True)
    same = compare_values(Values([0.0, 1.0]), Values([0.0, 1.0]), 200, 0)
    assert "No difference at all" in verdict_of("acc", same, True)


def test_paired_bootstrap_sees_what_an_unpaired_test_does_not():
    rng = np.random.default_rng(2)
    before = rng.normal(0, 10, 300)
    found = compare_values(Values(before.tolist()), Values((before + rng.normal(0.3, 1.0, 300)).tolist()), 2000, 0)
    assert found["test"] == "paired permutation" and found["p"] < 0.01
    assert 0 < found["ci95"][0] < found["difference"] < found["ci95"][1]


def test_few_rows_have_the_exact_p_of_a_permutation_test():
    """All ways to give each row's two values to the two sides, counted here one by one."""
    before, after = [0.25, 0.5, 0.0, 0.75, 0.25, 0.5], [0.5, 0.75, 0.5, 0.5, 1.0, 0.5]
    d = [b - a for a, b in zip(before, after, strict=True)]
    sums = [abs(sum(s * x for s, x in zip(signs, d, strict=True))) for signs in itertools.product((1, -1), repeat=6)]
    found = compare_values(Values(before), Values(after), 2000, 0)
    assert found["test"] == "paired permutation" and found["p"] == sum(x >= abs(sum(d)) - 1e-9 for x in sums) / 2**6
    for n in (2, 5):  # a bootstrap of equal differences has no spread: the least p of n rows is 2 / 2^n
        found = compare_values(Values([0.25] * n), Values([0.5] * n), 2000, 0)
        assert found["p"] == 2 / 2**n and "Within the noise; to see" in verdict_of("acc", found, True)
    ratios = [(Values([1.0, 9.0], [1, 3], exp=True), Values([2.0, 9.0], [1, 3], exp=True))]
    assert [compare_values(*pair, 50, 0)["p"] for pair in ratios] == [1.0]  # one row differs, either way as far


@pytest.mark.long
def test_with_few_rows_intervals_cover_and_the_test_keeps_its_level():
    """Pass rates of 4 draws, 8 rows, 2,000 repetitions: 95 % +- 4 sd; the plain bootstrap covers 91 %."""
    rng, covered, found = np.random.default_rng(0), [0, 0], 0
    for seed in range(2000):
        chance = rng.beta(0.7, 0.7, 8)
        a, b = (rng.binomial(4, chance) / 4 for _ in range(2))
        test = compare_values(Values(a.tolist()), Values(b.tolist()), 500, seed)
        low, high = summarize(Values(a.tolist()), 500, seed)["ci95"]
        found += test["p"] < 0.05
        covered[0] += test["ci95"][0] <= 1e-9 and test["ci95"][1] >= -1e-9
        covered[1] += low <= 0.5 <= high
    assert min(covered) > 2000 * 0.93 and found < 2000 * 0.07, (covered, found)


# ------------------------------------------------------------------------------------------------ definitions
@pytest.mark.parametrize(("count", "length"), [(1, 8), (8, 8), (30, 7)])
def test_windows_score_every_token_once(count, length):
    tokens = list(range(100, 100 + count))
    for stride in (length, length // 2, 1):
        windows = ev.text_windows(tokens, [9], length, stride)
        assert [t for _, scored in windows for t in scored] == tokens
        assert windows[0][0] == [9]
        for context, scored in windows:
            assert 1 <= len(context) and len(context + scored) <= length + 1  # the last token is not read
            whole = [9, *tokens]
            at = whole.index(scored[0])
            assert whole[at - len(context) : at] == context


# ------------------------------------------------------------------------------------------------ lm-evaluation-harness
@functools.cache
def oracle_model(name: str, size: int):
    """A stored model with a batch size."""
    import torch

    config = ev.Config(task=["math"], batch_size=size, cache=False, max_new_tokens=40)
    return ev.LocalModel(config, str(DATA / name), torch.device("cpu"))


def run_stored(name: str, task: str, size: int, **settings):
    """(outputs, records, values, prompts) of a stored model on stored data."""
    model = oracle_model(name, size)
    config = ev.Config(task=[task], batch_size=size, cache=False, max_new_tokens=40, **settings)
    model.config, kind = config, ev.make_task(task, config)
    rows, shots = ev.task_rows(config, kind)
    _, nested, cut = ev.make_requests(config, kind, model, rows, shots)
    found = {}
    flat = [r for group in nested for r in group]
    getattr(model, "logprob" if kind.logprobs else "generate")(flat, found.__setitem__)
    parts = iter([found[i] for i in range(len(flat))])
    grouped = [[next(parts) for _ in group] for group in nested]
    records = kind.score(rows, grouped)
    return grouped, records, kind.values_of(records), cut


@pytest.mark.long
@pytest.mark.parametrize(("name", "shots", "chat"), [("bos", 3, "chat"), ("plain", 3, "text")])
def test_gsm8k_is_the_harness_item_by_item(oracle, name, shots, chat):
    expected = oracle[f"{name} problems {shots} {chat} 64"]
    settings = {"data": str(DATA / "problems.jsonl"), "fewshot": shots, "fewshot_data": str(DATA / "shots.jsonl")}
    settings["chat_template"] = "on" if chat == "chat" else "off"
    outputs, records, values, cut = run_stored(name, "math:template=gsm8k", 64, **settings)
    assert [outs[0]["text"] for outs in outputs] == expected["texts"]
    for ours, theirs in (("strict", "strict-match"), ("flexible", "flexible-extract")):
        assert [[rs[0][ours], rs[0]["metrics"][ours]] for rs in records] == expected[theirs]
        assert values[ours].top == [score for _, score in expected[theirs]]
    assert cut == 1  # the one long problem


@pytest.mark.parametrize(("name", "chat", "size"), [("bos", "chat", 64), ("plain", "text", 64)])
def test_multiple_choice_is_the_harness(oracle, name, chat, size):
    expected = oracle[f"{name} choices {chat} {size}"]
    template = "on" if chat == "chat" else "off"
    settings = {"data": str(DATA / "choices.jsonl"), "chat_template": template}
    outputs, _, values, _ = run_stored(name, "multiple_choice", size, **settings)
    assert values["acc"].top == expected["acc"] and values["acc_norm"].top == expected["acc_norm"]
    assert 0 < sum(values["acc"].top) < len(values["acc"].top)
    ours = [out["logprob"] for outs in outputs for out in outs]
    assert ours == pytest.approx([x for row in expected["logprobs"] for x in row], rel=1e-5, abs=1e-5)


@pytest.mark.parametrize(("name", "size"), [("bos", 1), ("plain", 64)])
def test_perplexities_are_the_harness_ones(oracle, name, size):
    _, _, values, _ = run_stored(name, "perplexity", size, data=str(DATA / "texts.jsonl"))
    for metric, expected in oracle[f"{name} texts {size}"].items():
        assert summarize(values[metric], 10, 0)["value"] == pytest.approx(expected, rel=1e-5), metric


# ------------------------------------------------------------------------------------------------ engine
def engine(source, **settings):
    """A model with these settings."""
    import torch

    config = ev.Config(**{"task": ["math"], "cache": False, "max_new_tokens": 24, **settings})
    return ev.LocalModel(config, str(source), torch.device("cpu"))


def completions(model, requests):
    """Outputs in order."""
    found = {}
    model.generate(requests, found.__setitem__)
    return [found[i] for i in range(len(requests))]


def prompts_of(model, count, prefix=(), n=1, limit=24, stops=()):
    """Requests of different lengths behind one prefix."""
    rows = [[*prefix, *(40 + (7 * i + j) % 150 for j in range(2 + 17 * (i % 5)))] for i in range(count)]
    return [ev.Request(ids=r, limit=limit, sample=s, stops=list(stops)) for r in rows for s in range(n)]


def test_the_prefix_is_shared_and_changes_nothing(tmp_path, monkeypatch):
    model = engine(save_random_model("gpt2", tmp_path))
    requests = prompts_of(model, 10, range(50, 90))
    assert model.engine  # it measures the cache when it is made
    read, network = [], model.model.base_model
    forward = network.forward
    monkeypatch.setattr(network, "forward", lambda **k: read.append(k["input_ids"].shape) or forward(**k))
    shared = completions(model, requests)
    with_sharing = sum(map(math.prod, read))
    read.clear()
    monkeypatch.setattr(ev, "PREFIX_MIN", 10**9)
    assert completions(model, requests) == shared
    assert sum(map(math.prod, read)) > with_sharing + 8 * 40  # nine rows no longer read those forty tokens
    assert [completions(model, [r])[0] for r in requests] == shared
    assert ev.common_prefix([[1, 2, 3, 4], [1, 2, 3], [1, 2, 3, 5]]) == [1, 2] and ev.common_prefix([[1, 2], [3]]) == []


@pytest.mark.long
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_results_do_not_depend_on_batches(tmp_path, temperature):
    source = save_random_model("llama", tmp_path)
    settings = {"temperature": temperature, "n": 3 if temperature else 1, "top_p": 0.9}
    found = []
    for size, tokens in ((1, 10**6), (5, 10**6), (64, 10**6), (0, 100)):
        model = engine(source, batch_size=size, batch_tokens=tokens, **settings)
        found.append(completions(model, prompts_of(model, 14, n=settings["n"])))
    assert found[0] == found[1] == found[2] == found[3]
    if temperature:
        groups = [{tuple(out["ids"]) for out in found[0][i : i + 3]} for i in range(0, 42, 3)]
        assert sum(len(group) == 3 for group in groups) > 7  # samples of one prompt differ, but for early ends
        other = engine(source, seed=1, **settings)
        assert completions(other, prompts_of(other, 14, n=3)) != found[0]


def test_sampling_follows_the_distribution(tmp_path):
    """Chi-squared of 3,000 first tokens against the model's own probabilities, with and without top_p."""
    import torch

    source = save_random_model("llama", tmp_path)
    for top_p in (1.0, 0.5):
        model = engine(source, temperature=0.7, top_p=top_p, n=3000, batch_tokens=10**7)
        requests = [ev.Request(ids=[40, 41, 42], limit=1, sample=i) for i in range(3000)]
        model.eos_ids.clear()
        found = torch.tensor([out["ids"][0] for out in completions(model, requests)]).bincount(minlength=262)
        probs = (model.model(torch.tensor([[40, 41, 42]])).logits[0, -1] / 0.7).softmax(-1)
        order = probs.sort(descending=True)
        keep = order.indices[: int((order.values.cumsum(0) < top_p).sum()) + 1]
        inside = torch.zeros_like(probs).index_fill(0, keep, 1.0)
        expected = probs * inside / (probs * inside).sum() * 3000
        assert found[inside == 0].sum() == 0
        likely = expected >= 5
        chi = ((found - expected) ** 2 / expected)[likely].sum().item()
        degrees = int(likely.sum()) - 1
        assert chi < degrees + 4 * math.sqrt(2 * degrees) + 4


def test_stop_strings_end_rows_early_and_exactly(tmp_path):
    model = engine(save_random_model("llama", tmp_path))
    free = completions(model, prompts_of(model, 20, limit=48))
    stops = [free[0]["text"][5:7], free[3]["text"][9:10], "never in it"]
    found = completions(model, prompts_of(model, 20, limit=48, stops=stops))
    stopped = 0
    for whole, out in zip(free, found, strict=True):
        text = whole["text"]
        for stop in stops:
            text = text.split(stop)[0]
        assert out["text"] == text
        if out["finish"] == "stop":
            stopped += 1
            decoded = [model.tokenizer.decode(whole["ids"][:k]) for k in (out["tokens"] - 1, out["tokens"])]
            assert [any(s in part for s in stops) for part in decoded] == [False, True]
        else:
            assert out == whole
    assert stopped >= 2


def test_out_of_memory_halves_the_batch(tmp_path, monkeypatch, capsys):
    source = save_random_model("llama", tmp_path)
    model = engine(source)
    expected = completions(model, prompts_of(model, 21))
    model, sizes = engine(source), []
    inner = model.engine.generate

    def scarce(prompts, noise):
        sizes.append(len(prompts))
        if len(prompts) > 3:
            raise RuntimeError("CUDA out of memory. Tried to allocate")
        return inner(prompts, noise)

    monkeypatch.setattr(model.engine, "generate", scarce)
    assert completions(model, prompts_of(model, 21)) == expected
    assert sizes[:4] == [21, 10, 5, 2]
    assert "out of memory on 21 sequences" in capsys.readouterr().err
    monkeypatch.setattr(model.engine, "generate", Mock(side_effect=MemoryError("no room")))
    with pytest.raises(ev.UserError, match=r"one sequence .*no room"):
        completions(model, prompts_of(model, 4))


def test_lora_folder_is_the_merged_model(tmp_path):
    import peft
    import torch
    from transformers import AutoModelForCausalLM

    base = save_random_model("llama", tmp_path / "base")
    torch.manual_seed(1)
    shape = peft.LoraConfig(r=2, target_modules="all-linear", init_lora_weights=False)
    adapted = peft.get_peft_model(AutoModelForCausalLM.from_pretrained(base), shape)
    adapted.save_pretrained(tmp_path / "adapter")
    save_random_model("llama", tmp_path / "merged")  # for its tokenizer
    adapted.merge_and_unload().save_pretrained(tmp_path / "merged")
    one, two, three = (engine(p) for p in (tmp_path / "adapter", base, tmp_path / "merged"))
    requests = prompts_of(one, 8)
    assert completions(one, requests) == completions(three, requests) != completions(two, requests)
    assert one.hash != two.hash
    save_random_model("llama", base, seed=1)  # another base under the same adapter
    assert engine(tmp_path / "adapter").hash != one.hash


def test_numbers_that_are_none_are_refused(tmp_path):
    import torch

    model = engine(save_random_model("llama", tmp_path))
    with torch.no_grad():
        model.model.get_output_embeddings().weight[7] = math.nan
    with pytest.raises(ev.UserError, match="try --precision fp32"):
        completions(model, prompts_of(model, 2))
    with pytest.raises(ev.UserError, match="try --precision fp32"):
        model.logprob([ev.Request(ids=[40], scored=[41])], lambda i, out: None)


# ------------------------------------------------------------------------------------------------ tasks
CODE_ROWS = [
    {
        "task_id": "T/0",
        "prompt": "from math import floor\n\ndef half(x: float) -> int:\n    '''Half of x, down.'''\n",
        "canonical_solution": "    return floor(x / 2)\n",
        "test": "def check(candidate):\n    assert candidate(5) == 2\n    assert candidate(-1) == -1\n",
        "entry_point": "half",
    },
    {
        "task_id": 1,
        "text": "Write a function to add two numbers.",
        "canonical_solution": "def add(a, b):\n    return a + b",
        "test_list": ["assert add(1, 2) == 3", "assert add(0, -1) == -1"],
    },
]


def test_code_of_both_shapes(tmp_path):
    found = graded(tmp_path, CODE_ROWS, "code", column="canonical_solution")
    assert found["metrics"]["pass@1"]["value"] == 1.0
    halves = ["```python\ndef half(x):\n    return floor(x / 2)\n```", "    return 0\n", "half = lambda x: x // 2"]
    sums = ["Sure:\n```python\ndef add(a, b):\n    return a + b\n```\nDone.", "add = None", "```\nadd = max"]
    rows = [{**row, "done": texts} for row, texts in zip(CODE_ROWS, (halves, sums), strict=True)]
    found = graded(tmp_path, rows, "code:k=1/2/3")
    assert found["values"]["pass@1"]["top"] == [2 / 3, 1 / 3]
    assert found["values"]["pass@2"]["top"] == [1.0, pytest.approx(2 / 3)]
    assert found["metrics"]["pass@3"]["value"] == 1.0
    shown = read_lines(tmp_path / "o" / "samples.jsonl")
    assert shown[0]["reason"].startswith("ok: ") and shown[1]["reason"].startswith("failed: ")
    assert "from math import floor" in shown[0]["extracted"]
    few = [[{"metrics": {"passed": x}} for x in row] for row in ([1.0, None], [1.0, 0.0])]  # None: no tests to run
    values = ev.pass_values(few, "passed", [1, 2])
    assert values["pass@1"].top == [1.0, 0.5] and values["pass@2"].top == [None, 1.0]


def test_generation_task(tmp_path):
    rows = [{"prompt": "x", "done": ["a b a b", "<answer>4</answer>"]}, {"prompt": "y", "done": ["", "one two"]}]
    values = graded(tmp_path, rows, "generation")["values"]
    assert values["empty"]["top"] == [0.0, 0.5]
    assert values["distinct_2"]["top"] == [pytest.approx(2 / 3), 1.0]
    assert values["length_characters"]["top"] == [12.5, 3.5] and values["truncated"]["top"] == [None, None]


def test_chats_are_read_as_the_trainers_read_them(tmp_path):
    """The last answer of a chat is the completion, which shots show; other columns stay."""
    turns = [[{"role": "user", "content": f"{n}+1="}, {"role": "assistant", "content": str(n + 1)}] for n in range(3)]
    data = write_lines(tmp_path / "chats.jsonl", [{"messages": x, "answer": x[1]["content"]} for x in turns])
    config = ev.Config(data=str(data), fewshot=1)
    rows, shots = ev.task_rows(config, task := ev.make_task("math", config))
    assert [(row["prompt"], row["answer"]) for row in rows] == [(turns[1][:1], "2"), (turns[2][:1], "3")]
    assert task.target(shots[0]) == "1"
    found = run_here(tmp_path / "o", "--task", "generation", "--data", data, "--max_new_tokens", 4)
    assert found["tasks"]["generation"]["rows"] == 3


def test_math_reads_gsm8k_boxed_and_normalised_rows(tmp_path):
    rows = [
        {"question": "q", "answer": "1,000+3\n#### 1,003", "done": "so\n#### 1003"},
        {"problem": "q", "answer": "\\frac{1}{2}", "done": "\\boxed{0.5}"},
        {"prompt": [{"role": "user", "content": "17+4="}], "answer": "21", "done": "17+4 = 20"},
        {"prompt": "q", "answer": 4, "done": "The answer is 4."},
        {"prompt": "q", "answer": ["41", "#### 42"], "done": "\\boxed{42}"},
        {"prompt": "q", "answer": ["41", "#### 42"], "done": "\\boxed{43}"},
    ]
    values = graded(tmp_path, rows, "math")["values"]
    assert values["verified"]["top"] == [1.0, 1.0, 0.0, 1.0, 1.0, 0.0]
    assert values["strict"]["top"] == [1.0, None, 0.0, 0.0, None, None]
    assert values["flexible"]["top"] == [1.0, None, 0.0, 1.0, None, None]


def test_reward_task_scores_as_a_trainer(tmp_path):
    (tmp_path / "r.py").write_text(
        "def length(completions, **kwargs):\n    return [float(len(c)) for c in completions]\n\n\n"
        "async def known(completions, answer):\n    return [None if a is None else float(c == a)\n"
        "            for c, a in zip(completions, answer)]\n\n\n"
        "def exact(prompt, completion, answer):\n"
        "    return None if answer is None else float(prompt + completion == 'x' + answer)\n"
    )
    rows = [{"prompt": "x", "answer": "ab", "done": ["ab", "c"]}, {"prompt": "y", "answer": None, "done": ["d", "e"]}]
    base = f"{tmp_path}/r.py"
    values = graded(tmp_path, rows, f"reward:{base}:length*0.5", "--reward", f"{base}:known*2")["values"]
    assert values["length"]["top"] == [1.5, 1.0] and values["known"]["top"] == [0.5, None]
    assert values["score"]["top"] == [1.75, 0.5]
    assert graded(tmp_path, rows, f"reward:{base}:exact")["values"]["exact"]["top"] == [0.5, None]


def test_multiple_choice_forms_of_gold():
    task = ev.make_task("multiple_choice", ev.Config(task=["multiple_choice"]))
    choices = ["red", "blue"]
    two, by_letter = {"choices": choices}, {"options": {"A": "red", "B": "blue"}}
    labelled = {"choices": {"text": choices, "label": ["1", "2"]}}
    right = [two | {"answer": answer} for answer in (1, "1", "B", "blue")]
    right += [by_letter | gold for gold in ({"answer": "blue"}, {"answer_idx": "B"})]
    right += [labelled | {"answerKey": key} for key in ("2", 2)]
    for row in [*right, {"options": choices, "answer": ["B"]}]:
        assert task.choices(row) == (choices, 1), row
    assert task.choices({"options": choices, "correct": "A"}) == (choices, 0)
    numbers = {"choices": {"text": ["2", "1"], "label": ["1", "2"]}, "answerKey": "1"}
    assert task.choices(numbers) == (["2", "1"], 0), "a label, where there are labels, not a text"
    one, two = {"choices": ["3", "4", "0", "1"], "answer": "0"}, {"choices": ["5", "6"]}
    for answer, picked in (("0", [0, 0]), ("1", [0, 1]), ("5", [2, 0])):  # by place or text, as the other row says
        task.decide([("f:1", one), ("f:2", two | {"answer": answer})])
        assert [task.choices(row)[1] for row in (one, two | {"answer": answer})] == picked
    other = {"choices": choices}
    for rows in ([one], [one, other | {"answer": "B"}, other | {"answer": "red"}]):
        with pytest.raises(ev.UserError, match="f:4: got answer '0'"):
            task.decide([(f"f:{i}", row) for i, row in enumerate(rows, 4)])
    for answer in (2, "C", "green", True, -1):
        with pytest.raises(ev.UserError, match="expected an index"):
            task.choices({"choices": choices, "answer": answer})


@pytest.mark.parametrize("template", ["", ":template=gsm8k"])
def test_a_question_is_the_users_turn_where_a_chat_template_is_on(template):
    model = engine(TINY_LM)
    row, shot = {"question": "What is 3 + 4?", "answer": "7"}, {"question": "What is 1 + 1?", "answer": "2"}

    def requests(chat: str):
        config = ev.Config(task=["math"], chat_template=chat)
        return ev.make_requests(config, ev.make_task(f"math{template}", config), model, [row], [shot])

    assert requests("off")[0][0].endswith(" 2\n\nQuestion: What is 3 + 4?\nAnswer:")
    form = "Question: {}\nAnswer:" if template else "{}"
    worked, asked = (form.format(x["question"]) for x in (shot, row))
    turns = [{"role": r, "content": x} for r, x in (("user", worked), ("assistant", "2"), ("user", asked))]
    prompts, ((request,),), _ = requests("on")
    ids = model.tokenizer.apply_chat_template(turns, add_generation_prompt=True, tokenize=True, return_dict=False)
    assert prompts == [turns] and request.ids == ids


def test_prompts_with_a_system_prompt():
    assert ev.add_shots("q", [("a", "1 #### 1")], "S", chat=False) == "S\n\na 1 #### 1\n\nq"
    turns = ev.add_shots("q", [("a", "1 #### 1")], "S", chat=True)
    assert [m["role"] for m in turns] == ["system", "user", "assistant", "user"]
    own = [{"role": "system", "content": "own"}, {"role": "user", "content": "u"}]
    assert ev.add_shots(own, [], "S", chat=True) == own


# ------------------------------------------------------------------------------------------------ runs and files
@pytest.fixture(scope="module")
def first_run(tmp_path_factory):
    """A run through the command line on the embedded model."""
    folder = tmp_path_factory.mktemp("run")
    flags = ("--task", "math", "--task", "generation", "--data", EVAL_DATA, "--limit", 48, "--max_new_tokens", 32)
    done = run_script("evaluation", *flags, "--output_dir", folder)
    assert done.returncode == 0, done.stderr
    return folder, flags, done


def test_a_run_through_the_command_line(first_run):
    folder, _, done = first_run
    found = results(folder)
    metric = found["tasks"]["math"]["metrics"]["verified"]
    assert 0 < metric["value"] < 1 and metric["interval"] == "wilson" and metric["n"] == 48
    assert metric["ci95"][0] < metric["value"] < metric["ci95"][1]
    assert found["model"]["hash"] and found["versions"]["torch"] and found["settings"]["limit"] == 48
    assert found["seconds"]["all"] > 0
    shown = read_lines(folder / "samples.jsonl")
    assert len(shown) == 96
    assert {"prompt", "completion", "extracted", "metrics", "reason", "finish"} <= set(shown[0])
    assert "verified" in done.stdout and "95 % interval" in done.stdout
    (said,) = [line for line in done.stderr.splitlines() if line.startswith("as a page: python scripts/report.py ")]
    assert load_script("report").main(shlex.split(said)[5:]) == 0
    page = (folder / "page.html").read_text(encoding="utf-8")
    assert "Evaluations" in page and "strict" in page
    assert sum(s["metrics"]["verified"] for s in shown[:48]) / 48 == metric["value"]
    # both tasks ask the same of the model, so the second one takes it from the cache
    assert found["tasks"]["generation"]["from_cache"] in (0, 48)


def test_a_run_keeps_the_results_of_other_settings(tmp_path, capsys):
    data = write_lines(tmp_path / "d.jsonl", [{"prompt": "1+1=", "answer": "2", "done": "The answer is 2"}])
    flags = ("--data", data, "--completion_column", "done")
    for _ in range(2):  # the same settings replace their own
        run_here(tmp_path / "o", "--task", "math", *flags)
    assert not list((tmp_path / "o").glob("*-1.*")) and "earlier results" not in capsys.readouterr().err
    run_here(tmp_path / "o", "--task", "generation", *flags)
    kept = [json.loads((tmp_path / "o" / f"{name}.json").read_text())["tasks"] for name in ("results-1", "results")]
    assert [[*tasks] for tasks in kept] == [["math"], ["generation"]]
    assert read_lines(tmp_path / "o" / "samples-1.jsonl")[0]["task"] == "math"
    assert "earlier results with other settings" in capsys.readouterr().err


def test_cache_misses_other_weights_and_settings(tmp_path):
    source = tmp_path / "model"
    save_random_model("llama", source)
    data = write_lines(tmp_path / "d.jsonl", [{"prompt": "abc"}, {"prompt": "de"}])
    flags = ["--model", source, "--task", "generation", "--data", data, "--max_new_tokens", 8]

    def reused(*extra):
        return run_here(tmp_path / "o", *flags, *extra)["tasks"]["generation"]["from_cache"]

    assert reused() == 0 and reused("--batch_size", 1) == 2 and reused("--stop", "zzz") == 0
    assert reused("--temperature", 1) == 0 and reused("--temperature", 1, "--seed", 1) == 0
    assert reused() == 2 and reused("--cache", "false") == 0
    parts = ev.fingerprint(source, full=10)  # of a large file parts are hashed
    assert parts == ev.fingerprint(source, full=10)
    save_random_model("llama", source, seed=1)
    assert reused() == 0 and ev.fingerprint(source, full=10) != parts


@pytest.mark.long
def test_a_killed_run_goes_on(tmp_path):
    data = write_lines(tmp_path / "d.jsonl", [{"prompt": f"{i}+{i}=", "answer": str(2 * i)} for i in range(120)])
    sizes = ("--max_new_tokens", 16, "--batch_size", 4)
    flags = ("--task", "math", "--data", data, *sizes, "--output_dir", tmp_path / "o")
    run, cache = start_script("evaluation", *flags), tmp_path / "o" / "cache"
    while not run.done() and sum(path.read_text().count("\n") for path in cache.glob("*.jsonl")) < 12:
        time.sleep(0.01)
    signal_script(signal.SIGKILL)
    assert run.result().returncode == -signal.SIGKILL, "it came to its end before the kill"
    (file,) = cache.glob("*.jsonl")
    with file.open("a") as f:
        f.write('{"key": "cut')  # what a kill in the middle of a line leaves
    kept = file.read_text().count("\n")
    assert 12 <= kept < 120
    done = run_script("evaluation", *flags)
    assert done.returncode == 0, done.stderr
    assert results(tmp_path / "o")["tasks"]["math"]["from_cache"] == kept
    plain = run_script("evaluation", *flags[:-1], tmp_path / "p", "--cache", "false")
    assert plain.returncode == 0
    ours, theirs = ([s["completion"] for s in read_lines(tmp_path / f / "samples.jsonl")] for f in ("o", "p"))
    assert ours == theirs


def test_perplexity_of_a_known_model(tmp_path):
    """Uniform logits: perplexity = vocabulary, by enumeration."""
    import torch

    model = engine(save_random_model("llama", tmp_path))
    with torch.no_grad():
        model.model.get_output_embeddings().weight.zero_()
    task = ev.make_task("perplexity", ev.Config(task=["perplexity"]))
    row = {"text": "two words"}
    found = {}
    model.logprob([ev.Request(ids=a, scored=b) for a, b in task.requests(row, model)], found.__setitem__)
    values = task.values_of(task.score([row], [list(found.values())]))
    value = {name: ev.summarize(v, 10, 0)["value"] for name, v in values.items()}
    assert value["token_perplexity"] == pytest.approx(262) == value["byte_perplexity"]  # a byte is a token
    assert value["word_perplexity"] == pytest.approx(262 ** (9 / 2))
    assert value["bits_per_byte"] == pytest.approx(math.log2(262))


def test_two_models_and_compare(first_run, tmp_path):
    save_random_model("llama", tmp_path / "m")
    flags = ("--task", "math", "--data", EVAL_DATA, "--limit", 48, "--max_new_tokens", 32)
    models = ("--model", tmp_path / "m", "--model", TINY_LM)
    done = run_script("evaluation", *flags, *models, "--output_dir", tmp_path / "o")
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "o" / "comparison.json").read_text())["tasks"]["math"]["verified"]
    assert (found["test"], found["worse"]) == ("exact McNemar", 0) and found["p"] < 0.001
    assert "A real gain" in found["verdict"]
    assert found["after"] == results(tmp_path / "o" / "after")["tasks"]["math"]["metrics"]["verified"]["value"]
    files = [tmp_path / "o" / side / "results.json" for side in ("before", "after")]
    again = run_script("evaluation", "--compare", *files, "--output_dir", tmp_path / "c")
    assert again.returncode == 0 and found["verdict"] in again.stdout


def test_compare_takes_common_rows_and_says_so(tmp_path, capsys):
    """The completions are no part of a row's name."""
    for side, (column, done) in zip(("one", "two"), (("a", "1"), ("b", "2")), strict=True):
        rows = [{"prompt": str(i), "answer": "1", column: done if i < 4 else "1"} for i in range(8)]
        data = write_lines(tmp_path / f"{side}.jsonl", rows if side == "one" else rows[2:])
        run_here(tmp_path / side, "--task", "math", "--data", data, "--completion_column", column)
    flags = ["--compare", str(tmp_path / "one"), str(tmp_path / "two"), "--output_dir", str(tmp_path / "c")]
    assert ev.main(flags) == 0
    assert "2 rows are in only one of the runs" in capsys.readouterr().err
    found = json.loads((tmp_path / "c" / "comparison.json").read_text())["tasks"]["math"]["verified"]
    assert found["rows"] == 6 and found["worse"] == 2


def test_rows_that_repeat_another_one_do_not_count_in_the_test(tmp_path, capsys):
    """3 of 10 rows are better: exact p 2 / 2^3; each is there three times."""
    shown = {"a": 4, "b": 7}
    rows = [{"prompt": str(i), "answer": "1"} | {x: "1" if i < k else "2" for x, k in shown.items()} for i in range(10)]
    data = write_lines(tmp_path / "rows.jsonl", rows * 3)
    for name in shown:
        run_here(tmp_path / name, "--task", "math", "--data", data, "--completion_column", name)
    assert "20 of 30 rows repeat another one: the intervals are too narrow" in capsys.readouterr().out
    assert not ev.main(["--compare", *(str(tmp_path / x) for x in shown), "--output_dir", str(tmp_path / "o")])
    out, err = capsys.readouterr()
    found = json.loads((tmp_path / "o" / "comparison.json").read_text())["tasks"]["math"]["verified"]
    assert (found["rows"], found["better"], found["p"]) == (10, 3, 0.25)
    assert "20 rows repeat another one, are not independent of it, and are left out" in err
    assert "tests have p < 0.05" not in out


def test_compare_names_settings_that_differ(tmp_path, capsys):
    data = write_lines(tmp_path / "rows.jsonl", [{"prompt": "1", "answer": "1", "done": "1"}])
    shared = ["--task", "math", "--data", data, "--completion_column", "done"]
    for name, flags in {"a": (), "b": ("--max_new_tokens", "8"), "c": ("--bootstrap", "9")}.items():
        run_here(tmp_path / name, *shared, *flags)
    for name, said in {"b": "got runs with max_new_tokens 256 and 8; expected the same settings", "c": ""}.items():
        capsys.readouterr()
        assert not ev.main(["--compare", *(f"{tmp_path}/{x}" for x in ("a", name)), f"--output_dir={tmp_path}/o"])
        warning = capsys.readouterr().err
        assert said in warning and ("got runs" in warning) == bool(said)


def trained_model(tmp_path, name: str, **settings):
    """A model in the final/ of a run with these settings."""
    run = tmp_path / name
    model = save_random_model("llama", run / "final")
    (run / "config.json").write_text(json.dumps({"output_dir": str(run), **settings}))
    return model


def test_rows_that_a_model_was_trained_on_are_counted_and_said(tmp_path, capsys):
    asked = [{"question": text, "answer": "1"} for text in ("1 + 0 =", "2 - 1 =", "3 - 2 =", "4 - 3 =")]
    data = write_lines(tmp_path / "test.jsonl", asked)
    turns = [{"role": "system", "content": "Add."}, {"role": "user", "content": "1+0="}]
    first = write_lines(tmp_path / "sft.jsonl", [{"prompt": turns}])
    then = write_lines(tmp_path / "rl.jsonl", [{"problem": "2 - 1  ="}, {"problem": "9 - 8 ="}])
    warm = trained_model(tmp_path, "warm", data=first)
    after = trained_model(tmp_path, "rl", data=then, prompt_column="problem", model=str(warm))
    before = save_random_model("llama", tmp_path / "base")
    flags = ["--task", "math", "--data", data, "--max_new_tokens", "4"]
    for name, model, count in (("a", before, None), ("b", after, 2)):
        assert run_here(tmp_path / name, *flags, "--model", model)["tasks"]["math"].get("trained_rows") == count
        lines = [line for line in capsys.readouterr().err.splitlines() if "was trained on rows" in line]
        assert len(lines) == bool(count) and all("math: 2 of 4 rows" in line for line in lines)
    compare = ["--compare", str(tmp_path / "a"), str(tmp_path / "b"), "--output_dir", str(tmp_path / "c")]
    assert ev.main(compare) == 0
    assert "math: 2 of 4" in capsys.readouterr().err
    lost = trained_model(tmp_path, "lost", data=str(tmp_path / "gone.jsonl"))
    run_here(tmp_path / "d", *flags, "--model", lost)
    assert "note: cannot tell whether" in capsys.readouterr().err


def test_rows_that_a_run_held_out_are_not_those_that_it_trained_on(tmp_path):
    rows = [{"prompt": f"{n} + {n} =", "answer": "1"} for n in range(30)]
    data = write_lines(tmp_path / "all.jsonl", rows)
    trainer = load_script("ppo_train")
    config = trainer.parse_config([f"--data={data}", "--hold_out=10"])
    held_out = trainer.load_splits(config, trainer.load_tokenizer(config))[1]
    file = write_lines(tmp_path / "held_out.jsonl", [{"prompt": row["prompt"]} for row in held_out])
    model = str(trained_model(tmp_path, "run", data=data, hold_out=10))
    task = ev.make_task("generation", ev.Config(task=["generation"]))
    assert ev.count_trained(model, [(task, rows)]) == {"generation": 20}
    assert ev.count_trained(model, [(task, ev.read_rows(file))]) == {} and len(held_out) == 10


def test_server(tmp_path, monkeypatch, capsys):
    """It answers 5 and runs on past a stop string, and is busy at first."""
    calls, busy, text = [], [1], " #### 5 Question: x"

    def answer(asked):
        if busy:
            return 503, busy.pop()
        calls.append((asked.path, asked.body, asked.headers["Authorization"]))
        if asked.body["model"] == "bad":
            return 404, ""
        said = {"text": text}
        if asked.path.endswith("/chat/completions"):
            parts = [{"type": "text", "text": part} for part in (text[:7], text[7:])]
            said = {"message": {"content": parts}}
        return 200, {"choices": [{"finish_reason": "stop", **said}], "usage": {"completion_tokens": 7}}

    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    monkeypatch.setattr(ev.time, "sleep", lambda s: None)
    data = write_lines(tmp_path / "d.jsonl", [{"question": f"{i}", "answer": "#### 5"} for i in range(5)])
    with serving(answer) as server:
        url = f"{server}/v1"
        flags = ["--base_url", url, "--model", "m", "--data", data, "--cache", "false"]
        found = run_here(tmp_path / "o", *flags, "--task", "math")
        assert found["tasks"]["math"]["metrics"]["strict"]["value"] == 1.0
        path, body, key = calls[0]
        assert path == "/v1/chat/completions" and key == "Bearer secret" and body["stop"][0] == "Question:"
        assert sorted(call[1]["messages"][0]["content"] for call in calls) == [*"01234"]
        shown = read_lines(tmp_path / "o" / "samples.jsonl")
        assert shown[0]["completion"] == " #### 5 " and shown[0]["finish"] == "stop" and shown[0]["tokens"] == 7
        run_here(tmp_path / "o", *flags, "--task", "math", "--chat_template", "off")
        assert calls[-1][0] == "/v1/completions" and calls[-1][1]["prompt"].endswith("\nAnswer:")
        assert "secret" not in (tmp_path / "o" / "results.json").read_text()
        texts = write_lines(tmp_path / "t.jsonl", [{"text": "abc"}])
        assert ev.main(["--base_url", url, "--model", "m", "--data", texts, "--task", "perplexity"]) == 2
        assert "log-probs" in capsys.readouterr().err
        flags[3] = "bad"
        assert ev.main([*flags, "--task", "math"]) == 2 and "404" in capsys.readouterr().err


# ------------------------------------------------------------------------------------------------ messages
EXAMPLES = ROOT / "examples" / "environments.py"
ROWS = ["--data", str(EVAL_DATA), "--limit", "2"]
BAD = {  # {name: (flags, what the message holds)}
    "no data": ("--task math", "got no --data"),
    "empty set": ("--task math --data {empty}", "without rows"),
    "missing column": ("--task math --data {one}", "one.jsonl:2: task math got columns prompt"),
    "n alike": ("--task generation --data {one} --n 4", "try --temperature"),
    "removed task": ("--task custom:x.py:f --data {one}", "removed; try --task reward:FILE.py:function"),
    "context": ("--task generation --data {one} --max_new_tokens 5000", "for a context of 1024"),
    "no template": ("--task=generation --data={one} --model={bare} --chat_template=on", "has none"),
    "no system prompt": ("--task math --system_prompt nowhere/system.txt", "which is not a file"),
    "an old file": ("--compare {old} {old}", "without scores of single rows; expected results.json"),
    "a training run's folder": ("--task generation --data {one}", "where a training run has its samples"),
    "vllm": ("--task generation --data {one} --engine vllm", "pip install 'vllm>=0.22,<0.31'"),
    "surrogate": ("--task generation --data {half}", "h.jsonl:2: column prompt: got 'bad \\ud800 char'"),
    "played, idle": ("--task math --max_turns 3", "got max_turns 3 without an environment"),
    "played, server": ("--environment {second} --base_url http://x --model x", "expected a model that takes"),
    "played, no room": ("--environment {second} --max_conversation_tokens 700", "512 + 256 tokens"),
    "played, positions": ("--environment {second}", "expected at most the model's 1024"),
    "played, columns": ("--environment {examples}:GuessTheNumber", "jsonl:1: environment GuessTheNumber: reset does"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_clear(tmp_path, name, capsys):
    flags, expected = BAD[name]
    half = [{"prompt": "a", "text": "a \udc00"}, {"prompt": "bad \ud800 char"}]
    places = {"empty": write_lines(tmp_path / "e.jsonl", []), "half": write_lines(tmp_path / "h.jsonl", half)}
    places |= {"one": str(tmp_path / "one.jsonl"), "old": str(tmp_path / "old.json")}
    (tmp_path / "one.jsonl").write_text('\n{"prompt": "a"}\n')
    (tmp_path / "old.json").write_text('{"tasks": {"math": {"metrics": {}}}, "model": {"name": "m"}}')
    if "training" in name:
        (tmp_path / "o").mkdir()
        (tmp_path / "o" / "metrics.jsonl").write_text('{"step": 1}')
    places |= {"examples": str(EXAMPLES), "second": f"{EXAMPLES}:SecondAttempt"}
    if "{bare}" in flags:
        places["bare"] = save_random_model("llama", tmp_path / "bare", chat_template=False)
    flags = [flag.format(**places) for flag in flags.split()]
    flags += ROWS if name.startswith("played") else []
    try:
        code = ev.main([*flags, "--output_dir", str(tmp_path / "o")])
    except SystemExit as stop:
        code = stop.code
    message = capsys.readouterr().err
    assert code == 2 and expected in message and "Traceback" not in message
    assert not (tmp_path / "o" / "results.json").exists()


def test_long_prompts_are_counted_and_said(tmp_path, capsys):
    data = write_lines(tmp_path / "d.jsonl", [{"prompt": "x" * 3000}, {"prompt": "y"}])
    found = run_here(tmp_path / "o", "--task", "generation", "--data", data, "--max_new_tokens", 8)
    assert found["tasks"]["generation"]["prompts_cut"] == 1
    out = capsys.readouterr()
    assert "1 of 2 prompts exceed the context" in out.err and "1 of 2 prompts were cut" in out.out


@pytest.mark.parametrize(
    ("shots_at", "kept_at", "said"),
    [([0], [1, 2, 3], "2 rows serve as worked examples"), ([2, 3], [0, 1, 3, 4], "1 rows serve as worked examples")],
    ids=["of the data", "of another file"],
)
def test_worked_examples_are_not_evaluated(tmp_path, capsys, shots_at, kept_at, said):
    rows = [{"question": f"{n}+1?", "answer": str(n + 1)} for n in range(4)]
    rows.append({"id": 7, **rows[0]})  # asks the same as the first
    data = write_lines(tmp_path / "rows.jsonl", rows)
    shots_data = write_lines(tmp_path / "shots.jsonl", [rows[i] for i in shots_at]) if len(shots_at) > 1 else ""
    config = ev.Config(data=str(data), fewshot_data=str(shots_data), fewshot=1)
    kept, shots = ev.task_rows(config, ev.make_task("math", config))
    assert shots == [rows[shots_at[0]]] and kept == [rows[i] for i in kept_at]
    assert said in capsys.readouterr().err
