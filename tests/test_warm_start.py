"""scripts/warm_start.py: solutions as the trainers' ids, no leaks, rounds that a kill does not lose, the way on."""

import itertools
import json
import math
import shlex
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch
from conftest import EVAL_DATA, FEW, SCRIPTS, SHAPE, TINY_LM, TRAIN_DATA, load_script, read_lines, write_lines
from local_server import serving
from small_runs import same, weights
from transformers import AutoModelForCausalLM, AutoTokenizer

from parts.data.pass_rates import describe_pass_rates, group_signal, histogram, what_fits
from parts.foundation.messages import UserError
from programs.warm_start import samples as rounds
from programs.warm_start.samples import Sampler, chosen_samples, measured, obstacles, sampled_solutions, widens
from programs.warm_start.settings import Config, check_warm_start
from programs.warm_start.solutions import solution_ids
from programs.warm_start.supervise import enough_epochs, make_sft_trainer, supervise, training_rows

warm = load_script("warm_start")
TOKENIZER = AutoTokenizer.from_pretrained(TINY_LM)
END, ASSISTANT = TOKENIZER.convert_tokens_to_ids(["<|end|>", "<|assistant|>"])
ROWS = read_lines(TRAIN_DATA)[:24]
SMALL = ["--max_new_tokens=24", "--eval_prompts=4", "--eval_samples=4", "--batch_size=8", "--rollout_batch_size=16"]
SMALL += [FEW[1]]
OF_SELF = ["--self", "--prompts_per_round=12", "--samples=4", "--rounds=2", "--min_rounds=2", "--seed=3"]


def user(text: str) -> list[dict]:
    """A chat prompt."""
    return [{"role": "user", "content": text}]


@pytest.mark.parametrize(("n", "c", "group"), [(6, 1, 4), (6, 6, 3), (7, 3, 3)])
def test_signal_is_the_share_of_groups_with_both(n, c, group):
    answers = [i < c for i in range(n)]
    groups = list(itertools.combinations(answers, group))
    assert group_signal(n, c, group) == pytest.approx(sum(len({*g}) == 2 for g in groups) / len(groups))
    assert group_signal(2, 1, 8) == pytest.approx(1 - 2 * 0.5**8)


@pytest.mark.parametrize(
    ("counts", "fits"),
    [
        ([(16, 0)] * 10, "warm start"),
        ([(16, 16)] * 10, "harder prompts"),
        ([(16, 6)] * 10, "RL now"),
        ([(16, 0)] * 8 + [(16, 5)] * 2, "easier prompts"),
        ([(16, 0)] * 8 + [(16, 16)] * 2, "warm start"),  # mean 0.2, yet no group teaches
    ],
)
def test_what_fits_and_every_rate_is_in_one_bin(counts, fits):
    rates = [0, 0.05, 0.1, 0.3, 0.5, 0.75, 0.89, 0.9, 0.99, 1]
    bins = histogram(rates)
    assert [bins[x] for x in ("0", "0 to 0.1", "0.1 to 0.25", "0.9 to 1", "1")] == [1, 1, 1, 2, 1]
    assert sum(bins.values()) == len(rates)
    assert describe_pass_rates(counts, 8, 0.1, 0.9)["fits"] == fits
    assert what_fits(0.1, 0.5, 1, 0.1, 0.9) == what_fits(0.9, 0.5, 1, 0.1, 0.9) == "RL now"


def test_a_leak_ends_the_command(tmp_path, capsys):
    data = write_lines(tmp_path / "train.jsonl", [*ROWS, read_lines(EVAL_DATA)[0]])
    assert warm.main(["--self", f"--data={data}", *SMALL, f"--output_dir={tmp_path / 'run'}"]) == 2
    assert "1 of 25 prompts that are held out too" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


MODELS = SimpleNamespace(tokenizer=TOKENIZER, eos_ids=[END])


@pytest.mark.parametrize("prompt", [user("12+30="), "12+30="])
@pytest.mark.parametrize("text", ["<answer>42</answer>", " so\n42 ", "<answer>42</answer><|end|>"])
def test_a_solution_is_its_tokens_and_one_end_token(prompt, text):
    ids = warm.encode_prompt(TOKENIZER, prompt)
    found = solution_ids(Config(), MODELS, {"prompt": prompt, "prompt_ids": ids}, text)
    plain = text.removesuffix("<|end|>")
    assert found == [*TOKENIZER(plain, add_special_tokens=False).input_ids, END]
    with pytest.raises(UserError, match="end token inside"):
        solution_ids(Config(), MODELS, {"prompt": prompt, "prompt_ids": ids}, "2<|end|>3")


@pytest.mark.parametrize("text", ["<think>\nso</think>4", "<think>so</think>4", "so</think>4"])
def test_a_tag_that_the_template_opens_is_not_repeated(text):
    tokenizer = AutoTokenizer.from_pretrained(TINY_LM)
    tokenizer.chat_template = TOKENIZER.chat_template.replace("'<|assistant|>' }}", "'<|assistant|><think>\\n' }}")
    row = {"prompt": user("1+1="), "prompt_ids": warm.encode_prompt(tokenizer, user("1+1="))}
    assert tokenizer.decode(row["prompt_ids"]).endswith("<think>\n")
    found = solution_ids(Config(), SimpleNamespace(tokenizer=tokenizer, eos_ids=[END]), row, text)
    assert found == [*TOKENIZER("so</think>4").input_ids, END]
    asked = {"prompt": user("1+1="), "prompt_ids": warm.encode_prompt(TOKENIZER, user("1+1="))}
    assert solution_ids(Config(), MODELS, asked, text) == [*TOKENIZER(text).input_ids, END], "this prompt opens none"
    tokenizer.chat_template = TOKENIZER.chat_template.replace("<|end|>", "<|system|>")  # another token ends a turn
    (other,) = tokenizer.convert_tokens_to_ids(["<|system|>"])
    row = {"prompt": user("1+1="), "prompt_ids": warm.encode_prompt(tokenizer, user("1+1="))}
    found = solution_ids(Config(), SimpleNamespace(tokenizer=tokenizer, eos_ids=[END, other]), row, "2")
    assert found == [*TOKENIZER("2").input_ids, other]


def sample(row: int, text: str, passed: bool, form: float | None = 1.0) -> dict:
    """A sample of a round."""
    return {"row": row, "text": text, "passed": passed, "rewards": {"right": float(passed), "format_reward": form}}


def test_different_well_formed_samples_are_chosen_few_of_the_easy_and_all_of_the_hard():
    easy = [sample(0, f"e{i}", True) for i in range(8)]
    middle = [sample(1, f"m{i}", i < 6) for i in range(8)]
    hard = [sample(2, f"h{i // 2}", i < 4) for i in range(8)]  # each text twice
    malformed = [sample(4, "wrong form", True, 0.5), sample(4, "none", True, None), sample(4, "good", True)]
    malformed += [sample(4, "wrong", False)] * 4
    bare = {"row": 5, "text": "no such reward", "passed": True, "rewards": {"right": 1.0}}
    given = [*easy, *middle, *hard, *[sample(3, "n", False)] * 8, *malformed, bare]
    texts = [one["text"] for one in chosen_samples(given)]
    assert texts == ["e0", "m0", "m1", "h0", "h1", "good", "no such reward"]


def test_a_round_samples_until_enough_prompts_have_a_solution(tmp_path, monkeypatch, capsys):
    """Ten prompts, of which 7 and 2 pass: draws of three go on through the stream, also in the next round."""
    asked = []

    def draw(self, rows, numbers, part):
        asked.append(numbers)
        made = [sample(n, f"s{n}", n in (7, 2)) for n in numbers for _ in range(self.count)]
        return [one | {"ids": [5, END], "prompt": rows[one["row"]]["prompt"]} for one in made]

    monkeypatch.setattr(Sampler, "draw", draw)
    monkeypatch.setattr(rounds, "FEWEST_PROMPTS", 2)
    config = Config(self=True, samples=2, prompts_per_round=3, max_draws=3, rollout_batch_size=4)
    rows = [{"prompt": user(f"{n}")} for n in range(10)]
    shop = SimpleNamespace(config=config, rows=rows, check_stop=lambda: None, sampler=None)
    shop.round_folder = lambda n: tmp_path / f"{n}"
    stream = [row["prompt"][0]["content"] for row in warm.batch_rows(rows, config, 0, 18)]
    needed = next(n for n in (3, 6, 9) if {"7", "2"} <= {*stream[:n]} or n == 9)
    found = sampled_solutions(shop, 1)
    assert [str(n) for numbers in asked for n in numbers] == stream[:needed]
    assert {one["row"] for one in found} <= {7, 2} and len(found) == len({*stream[:needed]} & {"7", "2"})
    counts = {"prompts": needed, "samples": 2 * needed, "passed": 2 * len(found)}
    counts |= {"solved": len(found), "solutions": len(found)}
    assert json.loads((tmp_path / "1/sampled.json").read_text()) == counts
    asked.clear()
    assert sampled_solutions(shop, 1) == found and not asked, "nothing is sampled twice"
    write_lines(tmp_path / "1/supervised.jsonl", found)
    monkeypatch.setattr(rounds, "FEWEST_PROMPTS", 9)  # as many as there are not: all draws are made
    sampled_solutions(shop, 2)
    stream = [row["prompt"][0]["content"] for row in warm.batch_rows(rows, config, needed, 9)]
    assert [str(n) for numbers in asked for n in numbers] == stream
    assert "so few solutions teach little" in capsys.readouterr().err


@pytest.mark.parametrize(("rows", "epochs", "passes"), [(16, 2, 32), (40, 2, 32 / 3), (1000, 2, 2), (512, 0.5, 1)])
def test_few_solutions_are_passed_over_until_there_are_enough_steps(rows, epochs, passes):
    assert enough_epochs(Config(epochs=epochs, batch_size=16), rows) == pytest.approx(passes)


@pytest.mark.parametrize(("settings", "start"), [({"self": True}, 0), ({"teacher": "x"}, 0), ({}, 2)])
def test_sampled_solutions_train_the_model_as_it_came(settings, start, tmp_path):
    load = Mock(side_effect=StopIteration)  # what a round starts from
    shop = SimpleNamespace(config=Config(**settings), rows=[], round_folder=lambda n: tmp_path, load=load)
    with pytest.raises(StopIteration):
        supervise(shop, 3, [])
    load.assert_called_once_with(start)


@pytest.mark.parametrize(
    ("unsolved", "goes_on"),
    [([64, 30], True), ([64, 12], False), ([30, 28], False), ([30, 26], True), ([10, 30], False), ([40], False)],
)
def test_rounds_of_samples_go_on_while_they_widen_what_is_solved(unsolved, goes_on):
    """Of 64 prompts; 0.8 of them are 51.2, and 0.05 are 3.2."""
    found = [{"prompts": 64, "prompts_by_pass_rate": {"0": n}} for n in unsolved]
    assert widens(Config(self=True), found) == goes_on
    assert not widens(Config(), found), "the data's own solutions are the same in each round"


def test_the_loss_is_that_of_the_solutions_tokens_behind_the_trainers_prompts(tmp_path):
    """Oracle: log-softmax of the model on each prompt and solution alone, the mean over all solutions' tokens."""
    numbers = range(6)
    shop = SimpleNamespace(
        config=Config(batch_size=8, max_new_tokens=24, lr=1e-9, device="cpu", save_every=0),
        rows=[{"prompt_ids": warm.encode_prompt(TOKENIZER, ROWS[i]["prompt"])} for i in numbers],
        stop=SimpleNamespace(signum=0),
    )
    shop.config.precision, shop.config.epochs = "fp32", 1.0
    texts = [f"<answer>{ROWS[i]['answer']}</answer>" + "!" * i for i in numbers]
    solutions = [{"row": i, "ids": [*TOKENIZER(texts[i]).input_ids, END]} for i in numbers]
    model = AutoModelForCausalLM.from_pretrained(TINY_LM, dtype=torch.float32)
    total = tokens = 0
    for one in solutions:
        prompt = shop.rows[one["row"]]["prompt_ids"]
        assert prompt[-1] == ASSISTANT
        logits = torch.log_softmax(model(torch.tensor([prompt + one["ids"]])).logits[0], -1)
        picked = [logits[len(prompt) - 1 + t, token].item() for t, token in enumerate(one["ids"])]
        total, tokens = total - sum(picked), tokens + len(picked)
    rows = training_rows(shop, solutions)
    trainer = make_sft_trainer(shop, tmp_path / "sft", rows, model)
    losses, sizes = [], []
    for batch in trainer.get_train_dataloader():
        sizes.append(int((batch["labels"] != -100).sum()))
        losses.append(trainer.compute_loss(model, batch).item() * sizes[-1])
    assert sum(sizes) == tokens
    assert sum(losses) / tokens == pytest.approx(total / tokens, rel=1e-5)


def test_a_mixture_of_experts_learns_its_solutions_alone_and_keeps_its_settings(tmp_path):
    """Without its own loss of the router; oracle: transformers' cross-entropy. TRL writes into a model's settings."""
    from transformers import Qwen3MoeConfig

    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "router_aux_loss_coef": 0.5}
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(Qwen3MoeConfig(**SHAPE, **experts, head_dim=8)).save_pretrained(tmp_path / "moe")
    TOKENIZER.save_pretrained(tmp_path / "moe")
    config = Config(model=str(tmp_path / "moe"), precision="fp32", device="cpu", lr=1e-9, epochs=1.0)
    policy = warm.load_policy(config, torch.device("cpu"), None)
    models, ids = SimpleNamespace(policy=policy, tokenizer=warm.load_tokenizer(config)), [40, 41, 42, END]
    with torch.no_grad():
        expected = policy(torch.tensor([ids]), labels=torch.tensor([[-100, *ids[1:]]])).loss.item()
    shop = SimpleNamespace(
        **{"config": config, "rows": [{"prompt_ids": ids[:1]}], "stop": SimpleNamespace(signum=0)},
        **{"round_folder": lambda n: tmp_path, "load": lambda n: models, "release": lambda: None},
    )
    supervise(shop, 1, [{"row": 0, "ids": ids[1:]}])
    assert json.loads((tmp_path / "training.json").read_text())["loss_first"] == pytest.approx(expected, rel=1e-5)
    for name in ("config.json", "generation_config.json"):
        before, after = (json.loads((tmp_path / folder / name).read_text()) for folder in ("moe", "policy"))
        assert after == before


def test_measure_counts_passes_ends_format_and_entropy():
    def held_out(row: int, passed: bool, finished: bool, shape: float, logprob: float) -> dict:
        rewards = {"correct": float(passed), "format_reward": shape}
        one = {"row": row, "text": f"{row}{logprob}", "ids": [1, 2], "passed": passed, "finished": finished}
        return one | {"rewards": rewards, "logprob": logprob}

    samples = [held_out(0, True, True, 1, -1), held_out(0, False, False, 0, -2)]
    samples += [held_out(1, False, True, 1, -1), held_out(1, False, True, 0, -4)]
    found = measured(Config(), samples, 3)
    expected = {"round": 3, "pass_rate": 0.25, "ends": 0.75, "format": 0.5, "entropy": 8 / 8, "prompts": 2}
    assert {key: found[key] for key in expected} == expected
    assert found["pass_at_k"] == {"1": 0.25, "2": 0.5}
    assert set(obstacles(Config(), found)) == {"ends", "format"}
    collapsed = found | {"ends": 1.0, "format": None, "entropy": 0.001}
    assert set(obstacles(Config(pass_low=0.3), collapsed)) == {"pass rate", "entropy"}


@pytest.fixture(scope="module")
def of_self(tmp_path_factory):
    """An uninterrupted run with --self, and what it printed."""
    folder = tmp_path_factory.mktemp("of_self")
    data = write_lines(folder / "train.jsonl", ROWS)
    patch = pytest.MonkeyPatch()
    drawn = count_draws(patch)
    assert warm.main([f"--data={data}", *OF_SELF, *SMALL, f"--output_dir={folder / 'run'}"]) == 0
    patch.undo()
    return SimpleNamespace(folder=folder, data=data, run=folder / "run", draws=len(drawn))


def count_draws(patch) -> list:
    """A list that grows with each call of the sampler."""
    calls, real = [], warm.HFEngine.generate

    def counted(self, prompts, noise):
        calls.append(len(prompts))
        return real(self, prompts, noise)

    patch.setattr(warm.HFEngine, "generate", counted)
    return calls


@pytest.mark.long
def test_a_run_ends_with_a_model_a_summary_and_commands_that_parse(of_self):
    summary = json.loads((of_self.run / "summary.json").read_text())
    assert summary["ready"] and summary["model"] == str(of_self.run / "final") and len(summary["rounds"]) == 3
    ppo, grpo = (shlex.split(command)[2:] for command in summary["commands"])
    assert shlex.split(summary["commands"][0])[1] == str(SCRIPTS / "ppo_train.py")
    found = load_script("ppo_train").parse_config(ppo)
    assert (found.model, found.data, found.max_new_tokens) == (summary["model"], of_self.data, 24)
    assert load_script("grpo_train").parse_config(grpo).max_completion_length == 24
    assert not same(weights(TINY_LM, "model.safetensors"), weights(of_self.run))
    training = json.loads((of_self.run / "rounds/round-002/training.json").read_text())
    assert training["loss_last"] < 1 and math.isfinite(training["loss_first"])
    answers = {json.dumps(row["prompt"]): row["answer"] for row in ROWS}  # only samples that pass train
    lines = read_lines(of_self.run / "rounds/round-002/supervised.jsonl")
    assert lines and len({(json.dumps(one["prompt"]), one["text"]) for one in lines}) == len(lines)
    assert all(f"<answer>{answers[json.dumps(one['prompt'])]}</answer>" in one["text"] for one in lines)
    assert all(one["ids"][-1] == END and TOKENIZER.decode(one["ids"][:-1]) == one["text"] for one in lines)


class Killed(BaseException):
    """Stands for kill -9: nothing catches it."""


@pytest.mark.long
def test_what_was_killed_goes_on_and_samples_nothing_twice(of_self, tmp_path, monkeypatch):
    moments = (3, 6, 4, 9)  # a part of the start's measure, of round 1's samples, its policy, round 2's measure
    flags = [f"--data={of_self.data}", *OF_SELF, *SMALL, f"--output_dir={tmp_path / 'run'}", "--resume"]
    drawn, real = count_draws(monkeypatch), warm.os.replace
    for moment in moments:  # the session ends as it writes its file of this number: half of it is there
        left = iter(range(moment))

        def replace(source, target, left=left):
            if next(left, None) is None:
                raise Killed
            real(source, target)

        monkeypatch.setattr(warm.os, "replace", replace)
        with pytest.raises(Killed):
            warm.main(flags)
    monkeypatch.setattr(warm.os, "replace", real)
    assert warm.main(flags) == 0
    assert len(drawn) <= of_self.draws + len(moments)  # the part that was being written, at most
    names = ["summary.json", "rounds/round-002/supervised.jsonl", "rounds/round-002/measure.json"]
    for name in names:
        plain = (of_self.run / name).read_text().replace(str(of_self.run), "RUN")
        assert (tmp_path / "run" / name).read_text().replace(str(tmp_path / "run"), "RUN") == plain
    assert same(weights(of_self.run), weights(tmp_path / "run"))
    drawn.clear()
    assert warm.main(flags) == 0 and not drawn  # all is there
    assert warm.main([*flags, "--rounds=3", "--min_rounds=3"]) == 0
    run = tmp_path / "run"
    assert same(weights(run), weights(run, "rounds/round-003/policy/model.safetensors"))
    assert not same(weights(run), weights(of_self.run))


@pytest.mark.long
def test_a_teacher_with_adapters_and_a_round_that_is_not_enough(tmp_path, capsys):
    data, run = write_lines(tmp_path / "train.jsonl", ROWS[:8]), tmp_path / "run"
    flags = [f"--data={data}", *SMALL, f"--teacher={TINY_LM}", "--samples=4", "--rounds=1", "--lora_rank=4", "--seed=1"]
    assert warm.main([*flags, f"--output_dir={run}", "--pass_low=0.9"]) == 1
    assert "RL cannot begin yet: pass rate" in capsys.readouterr().err and not (run / "final").exists()
    assert (run / "rounds/round-001/policy/adapter_model.safetensors").exists()
    for one in read_lines(run / "rounds/round-001/supervised.jsonl"):
        assert one["ids"] == [*TOKENIZER(one["text"], add_special_tokens=False).input_ids, END]
    assert warm.main([*flags, f"--output_dir={tmp_path / 'merged'}", "--min_rounds=1"]) == 0
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged/final")
    assert type(merged).__name__ == "LlamaForCausalLM" and not (tmp_path / "merged/final/adapter_config.json").exists()


class Teacher:
    """Knows the sums of even first digit, writes too much for others, and is busy at the first request for a text."""

    def __init__(self):
        self.calls, self.busy = [], True

    def __call__(self, request) -> tuple:
        if request.body is None:
            return 200, {"data": [{"id": "large"}]}
        if self.busy:
            self.busy = False
            return 503, {}
        self.calls.append((request.path, request.headers["Authorization"], request.body))
        sum_, reason = request.body["messages"][-1]["content"].rstrip("="), "stop"
        said = f"<answer>{sum(map(int, sum_.split('+')))}</answer>"
        if int(sum_[0]) % 2:
            reason = "length"
        elif request.body["seed"] % 2:
            said = f"<|end|>{said}"  # the policy's own end token stands inside what it would learn
        message = {"content": said, "reasoning_content": "so"}
        return 200, {"choices": [{"message": message, "finish_reason": reason}]}


@pytest.mark.long
def test_a_teacher_behind_a_server(tmp_path, monkeypatch, capsys):
    teacher, run = Teacher(), tmp_path / "run"
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    monkeypatch.setattr(warm.time, "sleep", lambda seconds: None)
    data = write_lines(tmp_path / "train.jsonl", ROWS[:12])
    flags = [f"--data={data}", *SMALL, "--samples=4", "--rounds=1", "--sample_temperature=0.7", "--pass_low=0.9"]
    flags += ["--max_draws=1", f"--reward={warm.EMBEDDED_REWARDS}:correctness_reward", "--epochs=1"]
    flags += ["--eval_samples=2", "--eval_prompts=1"]
    with serving(teacher) as server:
        url, calls = f"{server}/v1", teacher.calls
        assert warm.main([*flags, f"--output_dir={run}", f"--teacher={url}"]) == 1
        said = capsys.readouterr().err
        assert "or with an end token" in said and said.count("returns its thinking apart from its text") == 1
        assert {(path, key) for path, key, _ in calls} == {("/v1/chat/completions", "Bearer secret")}
        asked = [body for *_, body in calls]
        assert {(b["model"], b["max_tokens"], b["temperature"]) for b in asked} == {("large", 24, 0.7)}
        assert len({b["seed"] for b in asked}) == len(calls) == 12 * 4
        told = read_lines(run / "rounds/round-001/supervised.jsonl")
        even = {json.dumps(row["prompt"]) for row in ROWS[:12] if int(row["prompt"][-1]["content"][0]) % 2 == 0}
        assert told and {json.dumps(one["prompt"]) for one in told} <= even, "those that did not end are not learnt"
        assert all(one["ids"] == [*TOKENIZER(one["text"], add_special_tokens=False).input_ids, END] for one in told)
        assert warm.main([*flags, f"--output_dir={run}", f"--teacher={url}", "--resume"]) == 1
        assert len(calls) == 48, "nothing is asked twice"
    monkeypatch.setattr(warm.urllib.request, "urlopen", Mock(side_effect=ConnectionRefusedError("refused")))
    capsys.readouterr()
    assert warm.main([*flags, f"--output_dir={tmp_path / 'gone'}", f"--teacher={url}#large"]) == 2
    assert f"from {url}/chat/completions; expected an answer; try another --teacher" in capsys.readouterr().err


@pytest.mark.long
def test_given_solutions_that_the_reward_does_not_pass_are_left_out(tmp_path, capsys):
    good = [row | {"completion": f"<answer>{row['answer']}</answer>"} for row in ROWS[:8]]
    bad = [row | {"completion": row["answer"]} for row in ROWS[8:12]]
    data = write_lines(tmp_path / "train.jsonl", good + bad + good[:2])
    flags = [f"--data={data}", *SMALL, "--min_rounds=1", "--rounds=1", "--epochs=1", f"--output_dir={tmp_path / 'run'}"]
    assert warm.main(flags) == 0
    told = "left out 4 of 14 solutions as the reward does not pass them, 0 over 24 tokens, 2 duplicates"
    assert told in capsys.readouterr().err
    assert json.loads((tmp_path / "run/rounds/round-001/training.json").read_text())["solutions"] == 8


@pytest.mark.parametrize(
    ("completion", "message"),
    [
        ("42", "in the form that the reward pays"),
        ([{"role": "assistant", "content": "42", "reasoning_content": "so"}], "with reasoning_content"),
        ([{"role": "assistant", "content": "42", "tool_calls": [{"id": 1}]}], "with tool_calls"),
        ([{"role": "user", "content": "42"}], "one assistant message"),
    ],
)
def test_solutions_that_cannot_train_are_told_early(completion, message, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(warm, "load_network", None)
    data = write_lines(tmp_path / "bad.jsonl", [row | {"completion": completion} for row in ROWS])
    assert warm.main([f"--data={data}", *SMALL, f"--output_dir={tmp_path / 'run'}"]) == 2
    assert message in capsys.readouterr().err and not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"self": True, "teacher": "x"}, "--self and --teacher"),
        ({"samples": 4, "max_draws": 9}, "--samples, --max_draws without --self or --teacher"),
        ({"pass_low": 0.95}, "pass_low"),
        ({"teacher": "a/b", "rollout_engine": "vllm"}, "holds one model"),
        ({"teacher": "./nowhere"}, r"got teacher .\./nowhere"),
        ({"precision": "fp16", "device": "cpu"}, "TRL trains in fp32"),
    ],
)
def test_settings_that_contradict_are_refused(settings, message):
    with pytest.raises(UserError, match=message):
        check_warm_start(Config(**settings))


@pytest.mark.parametrize(("value", "fits", "code"), [("0", "warm start", 1), ("len(c) % 2", "RL now", 0)])
def test_the_preflight_of_a_model_says_what_fits(value, fits, code, tmp_path, capsys):
    source = f"def r(prompts, completions, **kwargs):\n    return [{value} for c in map(str, completions)]\n"
    (tmp_path / "r.py").write_text(source)
    flags = [f"--model={TINY_LM}", f"--reward={tmp_path / 'r.py'}:r", f"--data={EVAL_DATA}", "--limit=4"]
    flags += ["--group_size=4", "--max_new_tokens=24", "--json"]
    assert load_script("reward_preflight").main(flags) == code
    found = json.loads(capsys.readouterr().out)
    assert found["fits"] == fits and found["samples"] == 64 and sum(found["prompts_by_pass_rate"].values()) == 4
    assert sum(found["scores"].values()) == 64
    assert value != "0" or found["pass_rate"] == found["groups_with_signal"] == 0


def test_the_end_does_not_send_back_to_a_warm_start(tmp_path, capsys):
    """Prompts that are always or never solved: a pass rate of 0.8, and no group teaches."""
    figures = describe_pass_rates([(16, 16)] * 8 + [(16, 0)] * 2, 8, 0.1, 0.9)
    figures |= {"round": 0, "ends": 1.0, "format": None, "entropy": 1.0}
    shop = SimpleNamespace(config=Config(output_dir=str(tmp_path)), folder=tmp_path, policy_folder=lambda n: None)
    assert figures["fits"] == "warm start" and warm.conclude(shop, [figures]) == 0
    said = capsys.readouterr().out
    assert "few groups have both right and wrong answers" in said and "show the model solutions" not in said


def test_rows_are_held_out_of_the_data_as_the_trainers_do(tmp_path, capsys):
    rows = [row | {"completion": f"<answer>{row['answer']}</answer>"} for row in ROWS]
    data = write_lines(tmp_path / "train.jsonl", rows)
    flags = [f"--data={data}", "--hold_out=6", f"--reward={warm.EMBEDDED_REWARDS}:correctness_reward"]
    assert warm.main([*flags, "--max_new_tokens=24", "--batch_size=4", "--epochs=1.5", "--dry_run"]) == 0
    batch = json.loads(capsys.readouterr().out)["batch"]
    assert (batch["prompts"], batch["held_out_prompts"], batch["optimizer_steps_on_these"]) == (18, 6, 8)
    command = shlex.split(warm.rl_command(warm.parse_config(flags), "final", "ppo_train"))[2:]
    assert load_script("ppo_train").parse_config(command).hold_out == 6
    assert warm.main([*FEW, *SMALL, f"--output_dir={tmp_path / 'run'}"]) == 2
    assert "--completion_column NAME" in capsys.readouterr().err
    assert warm.main([FEW[0], "--self", f"--output_dir={tmp_path / 'run'}"]) == 2
    assert "got no --eval_data" in capsys.readouterr().err


def test_a_round_that_finds_nothing_is_the_last(tmp_path, capsys):
    """The same model would be sampled again; --resume tries another round."""
    (tmp_path / "r.py").write_text("def r(prompt, completion):\n    return 0.0\n")
    data = write_lines(tmp_path / "train.jsonl", ROWS[:8])
    flags = [f"--data={data}", *SMALL, "--self", "--samples=2", "--max_draws=1", f"--reward={tmp_path / 'r.py'}:r"]
    flags += [f"--output_dir={tmp_path / 'run'}", "--eval_prompts=2", "--eval_samples=2", "--max_new_tokens=8"]
    for times, more in ((1, []), (2, ["--resume"])):
        assert warm.main([*flags, *more]) == 1
        said = capsys.readouterr().err
        assert f"round {times}: 0 of" in said and f"round {times + 1}:" not in said and "teach little" not in said
        assert "no solution was found: try --data with a column completion" in said
    assert len(json.loads((tmp_path / "run/summary.json").read_text())["rounds"]) == 3
