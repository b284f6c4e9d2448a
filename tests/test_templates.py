"""templates/*.py: their numbers are those of the scripts, and their command lines work."""

import ast
import contextlib
import dataclasses
import inspect
import json
import math
import os
import re
import runpy
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from conftest import (
    EVAL_DATA,
    ROOT,
    SECOND_ATTEMPT,
    TINY_LM,
    TRAIN_DATA,
    edited,
    load_module,
    load_script,
    read_lines,
    run_script,
    write_lines,
)
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, HfArgumentParser

from parts.data.prompts import encode_prompt

NAMES = ("ppo", "grpo", "distillation")
ALL = (*NAMES, "multi_turn")
PATHS = {name: ROOT / "templates" / f"{name}.py" for name in ALL}
PAGES = {name: load_module(PATHS[name], f"template_{name}") for name in ALL}
ppo, grpo, distillation, multi_turn = PAGES.values()
new_trainer = load_script("new_trainer")
REWARD = """def reward(prompt, completion, answer) -> float:
    return float(answer in completion)


def batch(prompts, completions, answer, **columns) -> list:
    assert set(columns) <= {"other"}
    assert [isinstance(p, str) for p in prompts] == [isinstance(c, str) for c in completions]
    texts = [c if isinstance(c, str) else c[0]["content"] for c in completions]
    return [float(right in text) for right, text in zip(answer, texts, strict=True)]


def broken(prompt, completion, answer): return 1 / 0
def vast(prompt, completion): return 1e39
def short(completions, **columns): return [0.0]
"""


def body(module, name: str) -> str:
    """The arguments and statements of a function, without docstring and imports."""
    [node] = ast.parse(inspect.getsource(getattr(module, name))).body
    docstring = ast.get_docstring(node) is not None
    statements = [n for n in node.body[docstring:] if not isinstance(n, ast.Import)]
    return ast.dump(node.args) + "".join(map(ast.dump, statements))


OF_GROUPS = "group_advantages policy_loss load_models make_experience accumulate_gradients update"
COMMON = {
    "check_settings": ALL,
    "check_fits": NAMES,
    "load_whole": ALL,
    "load_rows": NAMES,
    "load_reward": NAMES,
    "bf16_autocast": ALL,
    "run": ALL,
    "generate": ALL,
    "encode": NAMES,
    "count_trained": NAMES,
    "rollout": ("ppo", "grpo"),
    "token_logprobs": ("ppo", "grpo", "multi_turn"),
} | dict.fromkeys(OF_GROUPS.split(), ("grpo", "multi_turn"))


@pytest.mark.parametrize("name", COMMON)
def test_what_the_templates_share_is_the_same(name):
    assert len({body(PAGES[template], name) for template in COMMON[name]}) == 1


@pytest.fixture
def models(monkeypatch):
    """Policy, critic and reference in float64, all moved off their start and off one another."""
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)  # where pages and scripts say float32
    found = ppo.load_models(SimpleNamespace(model=str(TINY_LM), kl_coef=0.05))
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    with torch.no_grad():
        for network in (found.policy, found.critic, found.reference):
            for p in network.parameters():
                p.add_(torch.randn_like(p), alpha=0.02)
    for network in (found.policy, found.critic, found.reference):
        network.double()
    yield found
    torch.set_default_dtype(default)


@pytest.fixture
def batch(models):
    """Four rows: pads on the left and on the right, responses of 1 to 6 tokens, a hole in one, chosen numbers."""
    torch.manual_seed(1)
    attention = torch.tensor([[0, 0, 1, 1, 1, 1, 1, 0, 0, 0], [1] * 10, [0, 1, 1, 1, 1, 0, 0, 0, 0, 0], [0] + [1] * 9])
    response = attention * (torch.arange(10) >= 4)
    response[1, 6] = 0  # a tool's output
    ids = torch.randint(6, 200, (4, 10)) * attention
    made = {"input_ids": ids, "attention_mask": attention, "response_mask": response, "loss_mask": response}
    logprobs = ppo.token_logprobs(SimpleNamespace(temperature=1.0), models.policy, made)[0].detach()
    for name in ("old_logprobs", "ref_logprobs"):
        made[name] = (logprobs + 0.3 * torch.randn(4, 10)) * response
    made["rollout_logprobs"] = logprobs
    return made | {"scores": torch.tensor([1.0, 0.0, 0.5, 2.0])}


def test_equal_scores_have_no_advantage_whatever_rounding_says_and_groups_of_one_end_the_run():
    # torch.mean of eight 1.2 is 1.1999999: beside a deviation of 1e-7 and the 1e-6 that is an advantage of 0.1
    for size in range(2, 65):
        for score in (0.1, 0.7, 1.2, 1.3, 123.456):
            assert not grpo.group_advantages(torch.full((2 * size,), score), size).any(), (size, score)
    with pytest.raises(SystemExit, match="got --group_size 1, where every advantage is 0"):
        grpo.group_advantages(torch.tensor([1.0, 0.0]), 1)


def test_scores_that_do_not_apply_take_no_part_in_their_group():
    nan = math.nan
    scores = torch.tensor([nan, 1.0, 0.0, nan, 2.0, nan, nan, nan, nan, nan, nan, nan])
    advantages = grpo.group_advantages(scores, 4).nan_to_num()
    deviation = 0.5**0.5 + 1e-6  # of 1 and 0, by n - 1
    torch.testing.assert_close(advantages[1:3], torch.tensor([0.5, -0.5]) / deviation)
    assert not advantages[[0, 3]].any() and not advantages[4:].any()


@pytest.mark.parametrize("name", ALL)
def test_a_reward_that_sometimes_does_not_apply(name, folder, train):
    (folder / "some.py").write_text(
        "def reward(completions, **kwargs):\n"
        "    return [None if i % 3 == 0 else float(len(str(x))) for i, x in enumerate(completions)]\n"
        f"import sys; sys.path.insert(0, {str(ROOT / 'examples')!r})\n"
        "import environments\nCOUNT = [0]\n"
        "class Game(environments.SecondAttempt):\n"
        "    def get_reward(self):\n"
        "        COUNT[0] += 1\n        return None if COUNT[0] % 3 else 1.0\n"
    )
    pays = ["--environment", "some.py:Game"] if name == "multi_turn" else ["--reward", "some.py:reward"]
    train(name, *pays, "--eval_data", "test.jsonl", "--steps", "1", "--max_new_tokens", "6")
    assert all(math.isfinite(x) for row in read_lines(folder / "out" / "metrics.jsonl") for x in row.values())
    scores = [row["score"] for row in read_lines(folder / "out" / "samples.jsonl")]
    assert None in scores and any(scores)


def changed(kind: str, names: str, folder):
    """A page with changes, as a module."""
    source = new_trainer.page_text(kind)
    for name in names.split():
        source = new_trainer.with_change(source, kind, name)
    (folder / "mine.py").write_text(source)
    return load_module(folder / "mine.py", f"{kind}_{'_'.join(names.split())}")


def test_the_forward_kl_is_trained_and_the_reverse_one_evaluated(tmp_path):
    mine = changed("distillation", "forward_kl", tmp_path)
    student, teacher = torch.randn(2, 3, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    p, q = student.log_softmax(-1), teacher.log_softmax(-1)
    torch.testing.assert_close(mine.reverse_kl(student, teacher)[0], (q.exp() * (q - p)).sum(-1))
    with torch.no_grad():
        torch.testing.assert_close(mine.reverse_kl(student, teacher)[0], (p.exp() * (p - q)).sum(-1))


@pytest.mark.parametrize(("kind", "change"), [("grpo", "length_cost"), ("multi_turn", "turn_cost")])
def test_a_cost_is_charged_in_training_and_not_in_evaluations(kind, change, tmp_path):
    (tmp_path / "one.py").write_text(
        "def one(completion):\n    return 1.0\n\n\nclass Game:\n    def reset(self, **row):\n        pass\n\n"
        "    def reply(self, text):\n        return 'Again.'\n\n    def get_reward(self):\n        return 1.0\n"
    )
    mine = changed(kind, change, tmp_path)
    name, spec, load = ("reward", "one.py:one", "load_reward")
    if kind == "multi_turn":
        name, spec, load = ("environment", "one.py:Game", "load_environment")
    config = mine.Config(model=str(TINY_LM), data=str(EVAL_DATA), max_new_tokens=4, **{name: f"{tmp_path}/{spec}"})
    models, pays = mine.load_models(config), getattr(mine, load)(f"{tmp_path}/{spec}")
    rows = mine.load_rows(config, models.tokenizer, config.data)[:3]
    trained, evaluated = (mine.rollout(config, models, pays, rows, greedy)[1] for greedy in (False, True))
    assert all(sample["score"] < 1 for sample in trained) and all(sample["score"] == 1 for sample in evaluated)


@pytest.mark.parametrize("page", [grpo, distillation], ids=["grpo", "distillation"])
def test_a_pass_has_1024_tokens_at_most(page, models, monkeypatch):
    """The logits of more would fill a GPU at a vocabulary of 151,936."""
    ids, mask, sizes = torch.randint(6, 200, (5, 300)), torch.ones(5, 300, dtype=torch.long), []
    response, run = mask * (torch.arange(300) >= 290), page.run
    batch = {"input_ids": ids, "attention_mask": mask, "response_mask": response, "scores": torch.rand(5)}
    batch["rollout_logprobs"] = ppo.token_logprobs(SimpleNamespace(temperature=1.0), models.policy, batch)[0].detach()
    noted = lambda network, ids, *given, **kw: sizes.append(len(ids)) or run(network, ids, *given, **kw)  # noqa: E731
    monkeypatch.setattr(page, "run", noted)
    settings = page.Config(model="", data="", **{"teacher": ""} if page is distillation else {"reward": ""})
    if page is distillation:
        models.teacher = models.reference
    else:
        settings.group_size = 5
        batch = page.make_experience(settings, models, batch)
    page.accumulate_gradients(settings, models, batch, torch.arange(5))
    assert set(sizes) == {3, 2}


def test_generate_is_greedy_decoding_by_transformers_and_the_sampled_end_token_counts():
    found = ppo.load_models(SimpleNamespace(model=str(TINY_LM), kl_coef=0.0))
    found.policy.generation_config.max_new_tokens = 3  # a model's own settings are not obeyed
    texts, ended = ["1+1=", "35+59=", "8"], []
    prompts = [found.tokenizer.apply_chat_template([{"role": "user", "content": t}], return_dict=False) for t in texts]
    batch = ppo.generate(SimpleNamespace(max_new_tokens=24, temperature=1.0), found, prompts, greedy=True)
    for i, prompt in enumerate(prompts):
        ids = torch.tensor([prompt])
        own = GenerationConfig(do_sample=False, max_new_tokens=24, eos_token_id=found.eos_ids, pad_token_id=0)
        expected = found.policy.generate(ids, attention_mask=torch.ones_like(ids), generation_config=own)
        got = batch["input_ids"][i][batch["attention_mask"][i].bool()]
        assert got.tolist() == expected[0].tolist()
        sampled = batch["input_ids"][i][batch["response_mask"][i].bool()]
        assert sampled.tolist() == expected[0, len(prompt) :].tolist()
        ended.append(sampled[-1] in found.eos_ids)
    assert any(ended)


@pytest.mark.parametrize(
    ("ids", "new", "says"),
    [
        ([5] * 1000, 24, ""),
        ([5] * 1000, 25, "got prompts of 1000 and completions of 25 tokens; expected 1024 in all"),
        ([5, 262], 25, "got a prompt with token 262, and a model that embeds 262"),
    ],
)
def test_a_prompt_that_the_model_has_no_positions_or_embedding_for_is_refused(ids, new, says):
    policy, rows = AutoModelForCausalLM.from_pretrained(TINY_LM), [{"prompt_ids": [7]}, {"prompt_ids": ids}]
    with pytest.raises(SystemExit, match=says) if says else contextlib.nullcontext():
        grpo.check_fits(SimpleNamespace(max_new_tokens=new), policy, rows)


def page_config(kind: str, **settings):
    """(A page, its Config with placeholders for what is required)."""
    page = PAGES[kind]
    required = [f.name for f in dataclasses.fields(page.Config) if f.default is dataclasses.MISSING]
    return page, page.Config(**dict.fromkeys(required, "none") | settings)


@pytest.mark.parametrize("name", ALL)
def test_a_sampler_that_is_not_the_trainer_stops_the_run(name, models, batch):
    models.teacher, batch["rollout_logprobs"] = models.reference, 1.1 * batch["rollout_logprobs"]
    page, settings = page_config(name, **{"group_size": 2} if name in ("grpo", "multi_turn") else {})
    with pytest.raises(SystemExit, match="sampler and trainer differ by"):
        if name == "distillation":
            page.accumulate_gradients(settings, models, batch, torch.arange(4))
        else:
            page.make_experience(settings, models, batch)


OUT_OF_RANGE = {  # check_settings is the same on all pages
    "grpo": "steps=0 temperature=0.0 lr=-1.0 lr=2.0 micro_batch=0 seed=-1 minutes=nan group_size=0 epochs=0",
    "ppo": "batch_size=0 gamma=1.1 kl_coef=-0.1 vf_coef=-1.0 clip_eps_low=-0.1",
    **{"distillation": "chunk=0", "multi_turn": "max_turns=0"},
}


@pytest.mark.parametrize("kind", OUT_OF_RANGE)
def test_a_number_out_of_range_ends_a_run_before_it_begins(kind):
    for pair in OUT_OF_RANGE[kind].split():
        name, _, text = pair.partition("=")
        page, config = page_config(kind, **{name: int(text) if text.removeprefix("-").isdecimal() else float(text)})
        with pytest.raises(SystemExit, match=f"error: got --{name} {text}; expected .* or more"):
            page.train(config)
    if kind == "ppo":  # these have a meaning at 0 and at infinity
        zeros = dict.fromkeys(("lr", "critic_lr", "kl_coef", "dual_clip", "value_clip", "minutes"), 0.0)
        page, config = page_config(kind, **zeros, seed=0, critic_warmup_steps=0, chat=False, clip_eps_high=math.inf)
        page.check_settings(config)


def test_a_column_named_step_does_not_replace_the_steps_number(folder):
    write_lines(folder / "steps.jsonl", [row | {"step": 99} for row in read_lines(TRAIN_DATA)[:2]])
    paths = {"data": str(folder / "steps.jsonl"), "reward": f"{folder}/my.py:reward", "out": str(folder / "out")}
    grpo.train(grpo.Config(model=str(TINY_LM), **paths, steps=1, prompts=1, group_size=2, max_new_tokens=4))
    assert [sample["step"] for sample in read_lines(folder / "out" / "samples.jsonl")] == [1, 1]


def test_a_distillation_without_reward_has_none_to_stop_at(folder, tmp_path):
    mine, sizes = changed("distillation", "stop_rule", tmp_path), {"steps": 2, "batch_size": 2, "max_new_tokens": 4}
    paths = {"data": str(folder / "train.jsonl"), "out": str(folder / "out"), "teacher": str(TINY_LM)}
    mine.train(mine.Config(model=str(TINY_LM), **paths, **sizes))
    assert [row["step"] for row in read_lines(folder / "out" / "metrics.jsonl")] == [1, 2]


@pytest.fixture
def folder(tmp_path):
    """A folder with rewards and a few rows, chat and string prompts among them."""
    (tmp_path / "my.py").write_text(REWARD)
    rows = TRAIN_DATA.read_text().splitlines()[:12]
    (tmp_path / "train.jsonl").write_text("\n".join([*rows, "", '{"prompt": "1+1=", "answer": "2", "other": 1}']))
    write_lines(tmp_path / "test.jsonl", read_lines(EVAL_DATA)[:6])
    return tmp_path


def command(name, path, *flags) -> list[str]:
    """A command line of a template for a few tiny steps; a later flag wins."""
    teacher = ["--teacher", TINY_LM] * (name == "distillation")
    size = ["--prompts", "2", "--group_size", "4"] if name in ("grpo", "multi_turn") else ["--batch_size", "8"]
    scored = ["--environment", SECOND_ATTEMPT] if name == "multi_turn" else ["--reward", "my.py:reward"]
    given = ["--model", TINY_LM, *teacher, *size, "--data", "train.jsonl", *scored, "--steps", "2"]
    return [sys.executable, str(path), *map(str, (*given, "--max_new_tokens", "12", *flags))]


def run(name, folder, *flags) -> subprocess.CompletedProcess:
    """Run a template."""
    line = command(name, PATHS[name], *flags)
    return run_script(Path(line[1]), *line[2:], cwd=folder)


@pytest.fixture
def train(folder, monkeypatch):
    """train(name, *flags) -> train with a template, or a changed copy of it, as its command does, in this process."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(signal, "signal", lambda *_: None)

    def start(name, *flags, path=None):
        page = load_module(path or PATHS[name], f"trained_{name}")
        [config] = HfArgumentParser(page.Config).parse_args_into_dataclasses(command(name, "", *flags)[2:])
        page.train(config)

    return start


@pytest.mark.long
@pytest.mark.parametrize("name", ALL)
def test_two_steps_leave_a_model_its_tokenizer_and_logs(name, folder):
    umask, talks = os.umask(0o027), name == "multi_turn"
    try:
        reward = [] if talks else ["--reward", "my.py:batch"]
        done = run(name, folder, "--eval_data", "test.jsonl", *reward)
    finally:
        os.umask(umask)
    assert done.returncode == 0, done.stderr
    metrics, out = read_lines(folder / "out" / "metrics.jsonl"), folder / "out"
    assert [m["step"] for m in metrics] == [0, 1, 2, 2]
    assert "eval/accuracy" in metrics[0] and "eval/accuracy" in metrics[-1]
    mean = "eval/score" if talks else "eval/accuracy"
    ends = {"before": metrics[0][mean], "after": metrics[-1][mean]}
    if name == "distillation":
        ends |= {"kl_before": metrics[0]["eval/reverse_kl"], "kl_after": metrics[-1]["eval/reverse_kl"]}
    assert json.loads((out / "result.json").read_text()) == ends
    own = {"ppo": "kl/ref", "grpo": "reward/zero_std_frac", "distillation": "kl/teacher"}
    own["multi_turn"] = "rollout/turns_mean"
    samples, said = read_lines(out / "samples.jsonl"), "messages" if talks else "completion"
    assert own[name] in metrics[1] and {"step", "prompt", "answer", said, "score"} <= set(samples[0])
    AutoModelForCausalLM.from_pretrained(out)
    loaded, original = AutoTokenizer.from_pretrained(out), AutoTokenizer.from_pretrained(TINY_LM)
    assert loaded.backend_tokenizer.to_str() == original.backend_tokenizer.to_str()
    assert loaded.chat_template == original.chat_template and loaded.padding_side == original.padding_side
    for file in out.iterdir():
        assert file.stat().st_mode & 0o777 == 0o640, file.name
    kept = (out / "model.safetensors").read_bytes()
    again = run(name, folder)
    assert again.returncode == 0 and (folder / "out.1" / "model.safetensors").read_bytes() == kept, again.stderr
    its_model = run(name, folder, "--teacher" if name == "distillation" else "--model", out)
    (out / "settings.json").unlink()
    for refused in (its_model, run(name, folder)):
        assert refused.returncode == 1 and "not an earlier run, or the model's folder" in refused.stderr
    assert not (folder / "out.2").exists() and (out / "model.safetensors").is_file()


@pytest.mark.long
@pytest.mark.parametrize("name", ["ppo", "grpo"])
def test_a_reward_that_fell_is_said_at_the_end(name, folder, train, capsys):
    rule = "calls = []\n\n\ndef paid(completions, **kwargs):\n    calls.append(1)\n    return [{}] * len(completions)\n"
    for worth, told in (("1 / len(calls) ** 4", True), ("1.0", False)):
        (folder / "fell.py").write_text(rule.format(worth))
        train(name, "--reward", "fell.py:paid", "--steps", "3", "--max_new_tokens", "4")
        said = "warning: the reward fell from 1.000 to 0.012; try a lower --lr"
        assert (said in capsys.readouterr().out) is told


def test_distillation_measures_the_reverse_kl_of_held_out_prompts(tmp_path):
    """By hand: the mean over the sampled tokens, each completion alone; without a reward, with weights in bf16.

    An evaluation leaves the draws of the training as they are.
    """
    student, teacher = (AutoModelForCausalLM.from_pretrained(TINY_LM) for _ in range(2))
    torch.manual_seed(0)
    with torch.no_grad():
        for p in teacher.parameters():
            p.add_(torch.randn_like(p), alpha=0.02)
    for name, model in (("student", student.to(torch.bfloat16)), ("teacher", teacher)):
        model.save_pretrained(tmp_path / name)
        AutoTokenizer.from_pretrained(TINY_LM).save_pretrained(tmp_path / name)
    given = {name: str(tmp_path / name) for name in ("teacher", "out")} | {"model": str(tmp_path / "student")}
    given |= {"data": write_lines(tmp_path / "train.jsonl", read_lines(TRAIN_DATA)[:8]), "lr": 1e-4}
    given |= {"steps": 1, "batch_size": 8, "max_new_tokens": 4, "temperature": 0.7, "seed": 3}
    held_out = write_lines(tmp_path / "test.jsonl", read_lines(EVAL_DATA)[:130])  # two parts
    config = distillation.Config(**given, eval_data=held_out)
    distillation.train(config)
    first, step, last = read_lines(tmp_path / "out/metrics.jsonl")
    assert set(first) == {"step", "eval/reverse_kl", "eval/rows"} == set(last) and first["eval/rows"] == 130
    result = json.loads((tmp_path / "out/result.json").read_text())
    kl = {"kl_before": first["eval/reverse_kl"], "kl_after": last["eval/reverse_kl"]}
    assert result == {"before": None, "after": None, **kl} and kl["kl_after"] < kl["kl_before"]
    models = distillation.load_models(dataclasses.replace(config, model=config.out))  # the weights as saved
    rows, found = distillation.load_rows(config, models.tokenizer, config.eval_data), []
    torch.manual_seed(config.seed)
    for part in (rows[:128], rows[128:]):
        batch = distillation.generate(config, models, [row["prompt_ids"] for row in part])
        for ids, real, own in zip(*(batch[k] for k in ("input_ids", "attention_mask", "response_mask")), strict=True):
            ids, own = ids[real.bool()][None], own[real.bool()].bool()[1:]
            with torch.no_grad():
                logits = [n(ids).logits[0, :-1][own].float() for n in (models.policy, models.teacher)]
            p, q = (torch.log_softmax(x / config.temperature, -1) for x in logits)
            found += (p.exp() * (p - q)).sum(-1).tolist()
    assert kl["kl_after"] == pytest.approx(sum(found) / len(found), rel=1e-4)
    distillation.train(dataclasses.replace(config, eval_data="", out=str(tmp_path / "plain")))
    (without,) = read_lines(tmp_path / "plain/metrics.jsonl")
    assert {k: x for k, x in step.items() if "time/" not in k}.items() <= without.items()
    assert not (tmp_path / "plain/result.json").exists()  # nothing was held out


def test_a_string_is_a_users_turn_unless_the_flag_is_off(folder):
    tokenizer, prompts = AutoTokenizer.from_pretrained(TINY_LM), {}
    for chat in (True, False):
        rows = ppo.load_rows(SimpleNamespace(chat=chat, max_prompt_tokens=99), tokenizer, folder / "train.jsonl")
        prompts[chat] = [tokenizer.decode(row["prompt_ids"]) for row in rows]
    assert prompts[True][-1] == "<|user|>1+1=<|end|><|assistant|>" and prompts[False][-1] == "1+1="
    assert prompts[True][:-1] == prompts[False][:-1]
    assert len({type(row["columns"]["prompt"]) for row in rows[-3:]}) == 2  # each completion has its own prompt's form
    texts = [rows[-3]["columns"]["answer"], "nothing", "so 2"]
    for name in ("reward", "batch"):  # both forms of a reward score alike
        assert ppo.load_reward(f"{folder}/my.py:{name}")(rows[-3:], texts) == [1.0, 0.0, 1.0]


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--reward", "my.py:broken"], ["my.py:broken, line 12, on train.jsonl:", "ZeroDivisionError"]),
        (["--reward", "my.py:vast"], ["my.py:vast, on train.jsonl:", "expected a finite number"]),  # inf in float32
        (["--reward", "my.py:short"], ["my.py:short, on train.jsonl:", "expected a finite number or None for each"]),
        (["--reward", "my.py:missing"], ["'my.py:missing'", "expected FILE.py:function"]),
        (["--data", "no_json.jsonl"], ["no_json.jsonl:2: JSONDecodeError", "expected an object with a prompt"]),
        (["--data", "no_prompt.jsonl"], ["no_prompt.jsonl:1: KeyError", "expected an object with a prompt"]),
        (["--max_prompt_tokens", "2"], ["got no prompt of 1 to 2 tokens"]),
    ],
)
def test_a_broken_row_or_reward_is_named_by_file_and_line(folder, train, flags, said):
    good = '{"prompt": "1+1=", "answer": "2"}\n'
    (folder / "no_json.jsonl").write_text(good + "{\n")
    (folder / "no_prompt.jsonl").write_text('{"question": "1+1="}\n')
    with pytest.raises(SystemExit) as stopped:
        train("ppo", *flags)
    assert all(text in str(stopped.value) for text in said)


def full(*_):
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--out", "train.jsonl/out"], "^error: .Errno 20. Not a directory"),
        ([], "^error: CUDA out of memory. Tried to allocate 2 GiB; expected enough memory; try a lower"),
    ],
)
def test_what_the_system_refuses_is_told_without_a_traceback(flags, says, folder, monkeypatch):
    monkeypatch.chdir(folder)
    monkeypatch.setattr(torch, "isin", full)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(sys, "argv", command("ppo", PATHS["ppo"], *flags)[1:])
    with pytest.raises(SystemExit, match=says):
        runpy.run_path(str(PATHS["ppo"]), run_name="__main__")
    assert flags or (folder / "out" / "model.safetensors").exists()


@pytest.mark.parametrize("name", NAMES)
def test_a_loss_that_is_not_finite_stops_the_run_and_spares_the_weights(name, folder, train):
    pairs = [(".isfinite().all()", ".div(0).isfinite().all()")]
    (folder / "changed.py").write_text(edited(PATHS[name].read_text(), pairs))
    with pytest.raises(SystemExit, match="not finite"):
        train(name, path=folder / "changed.py")
    kept, start = (AutoModelForCausalLM.from_pretrained(f) for f in (folder / "out", TINY_LM))
    assert all(torch.equal(a, b) for a, b in zip(kept.parameters(), start.parameters(), strict=True))


STOPS = """import os, signal, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)  # as a shell starts `command &`
sys.path.insert(0, {examples!r})
from environments import SecondAttempt
CALLS = []


def reward(completions, **kwargs):
    CALLS.extend(completions)
    if len(CALLS) - len(completions) <= 20 < len(CALLS):  # 6 at the start, 8 a step: in the second one
        os.kill(os.getpid(), signal.{number})
    return [0.0] * len(completions)


class Game(SecondAttempt):
    def get_reward(self):
        return super().get_reward() + reward([""])[0]
"""


@pytest.mark.long
@pytest.mark.parametrize(("name", "number"), [("ppo", "SIGINT"), ("multi_turn", "SIGTERM")])
def test_a_signal_or_minutes_end_a_run_with_everything_saved(name, number, folder, train):
    train(name, "--steps", "100000", "--minutes", "0.001", "--eval_data", "test.jsonl")
    assert [row["step"] for row in read_lines(folder / "out" / "metrics.jsonl")] == [0, 1, 1]  # one step is always made
    AutoModelForCausalLM.from_pretrained(folder / "out")
    (folder / "stops.py").write_text(STOPS.format(examples=str(ROOT / "examples"), number=number))
    pays = ["--environment", "stops.py:Game"] if name == "multi_turn" else ["--reward", "stops.py:reward"]
    done = run(name, folder, *pays, "--steps", "100000", "--eval_data", "test.jsonl")
    assert done.returncode == 0, done.stderr
    rows = read_lines(folder / "out" / "metrics.jsonl")
    assert [row["step"] for row in rows] == [0, 1, 2] and "eval/accuracy" in rows[-1]
    AutoModelForCausalLM.from_pretrained(folder / "out")


OF_THE_LOOP = [  # selfcheck runs the others
    (name, change, known["edits"])
    for name in ALL
    for change, known in new_trainer.changes_of(name).items()
    if change in ("lora", "metrics_file", "stop_rule")
]


def test_the_reference_shows_the_changes_as_they_are():
    text, shown, files = (ROOT / "references" / "templates.md").read_text(encoding="utf-8"), {}, {}
    for name, block in re.findall(r"^```diff (\w+)\n(.*?)```", text, re.MULTILINE | re.DOTALL):
        shown.setdefault(name, []).append(block)
    for path in (ROOT / "templates" / "changes").iterdir():
        files[path.stem] = re.split(r"^@@.*\n", path.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    assert shown == files


@pytest.mark.long
@pytest.mark.parametrize(("name", "change", "pairs"), OF_THE_LOOP, ids=[f"{n}: {t}" for n, t, _ in OF_THE_LOOP])
def test_a_listed_change_of_the_loop_can_be_made_and_runs(name, change, pairs, folder, train):
    (folder / "changed.py").write_text(edited(PATHS[name].read_text(encoding="utf-8"), pairs))
    train(name, path=folder / "changed.py")
    assert [m["step"] for m in read_lines(folder / "out" / "metrics.jsonl")] == [1, 2]
    AutoModelForCausalLM.from_pretrained(folder / "out")


@pytest.mark.parametrize(("last", "text"), [("user", "Be brief.\n1+1=\n"), ("assistant", "Be brief.\n1+1=")])
def test_messages_for_a_base_model_are_joined_as_by_the_scripts(last, text, tmp_path, capsys):
    tokenizer = AutoTokenizer.from_pretrained(TINY_LM)
    tokenizer.chat_template = None
    prompt = [{"role": "system", "content": "Be brief."}, {"role": last, "content": "1+1="}]
    (tmp_path / "chats.jsonl").write_text(json.dumps({"prompt": prompt}))
    config = SimpleNamespace(chat=True, max_prompt_tokens=99)
    [row] = ppo.load_rows(config, tokenizer, tmp_path / "chats.jsonl")
    assert row["prompt_ids"] == tokenizer.encode(text) == encode_prompt(tokenizer, prompt)
    assert "no chat template: messages are joined by newlines" in capsys.readouterr().out
