"""scripts/new_trainer.py: a page with settings and changes, checked and run by one command."""

import ast
import datetime
import json
import math
import os
import re
import signal

import pyarrow.parquet
import pytest
import torch
from conftest import EVAL_DATA, ROOT, TINY_LM, TRAIN_DATA, load_module, load_script, read_lines, run_script, write_lines
from transformers import AutoModelForCausalLM, AutoTokenizer

from parts.sampling.saved_models import answered, reverse_kl

new = load_script("new_trainer")
REWARD = '''"""A reward."""
from __future__ import annotations

import math
import textwrap

TAG = "answer"  # the tag


def inside(text):
    return textwrap.dedent(text).partition(f"<{TAG}>")[2].partition(f"</{TAG}>")[0]


def reward(prompt, completion, answer):
    """Full marks for the right number."""
    return float(inside(completion) == str(answer)) + 0 * math.pi


if __name__ == "__main__":
    print(reward("", "<answer>1</answer>", 1))
'''
IDEA = '''"""A paper's."""
import torch

HALF = 0.5


def median(scores, groups):
    """Minus the median of the group."""
    return scores - torch.stack([scores[groups == group].median() for group in groups])


def upper(logprobs, old_logprobs, advantages, config):
    """No lower bound."""
    ratio = (logprobs - old_logprobs).exp()
    bound = 1 + config.clip_eps_high
    return -advantages * ratio.clamp(max=bound), (ratio > bound).float()


def reinforce(*, logprobs, advantages, scale=HALF, **_):
    return -scale * logprobs * advantages


def turned(logprobs, advantages):
    return logprobs * advantages


def placed(scores, /):
    return scores


def needy(scores, groups, rewards):
    return scores


'''


@pytest.fixture
def folder(tmp_path):
    """A user's folder: rewards, ideas, a few rows."""
    (tmp_path / "my.py").write_text(REWARD)
    (tmp_path / "idea.py").write_text(IDEA)
    for name, source in (("train", TRAIN_DATA), ("test", EVAL_DATA)):
        write_lines(tmp_path / f"{name}.jsonl", read_lines(source)[:8])
    return tmp_path


GIVEN = ("--model", str(TINY_LM), "--data", "train.jsonl", "--max_new_tokens", "8")
BATCH = ("--prompts", "2")


def report_of(done) -> dict:
    assert done.stdout, done.stderr
    return json.loads(done.stdout)


@pytest.fixture
def made(folder, monkeypatch, capsys):
    """made(*words) -> what the command reports of a page that it has written in the user's folder."""
    monkeypatch.chdir(folder)

    def make(*words) -> dict:
        code = new.main([*map(str, words)])
        shown = capsys.readouterr()
        assert code == 0, shown.err
        return json.loads(shown.out)

    return make


@pytest.mark.parametrize("kind", new.PAGES)
def test_the_page_alone_is_the_template_with_the_settings(kind, folder, made):
    flags = [] if kind == "ppo" else ["--temperature", "0.7"]
    report, page = made(kind, "mine.py", *flags), (ROOT / "templates" / f"{kind}.py").read_text()
    mine = (folder / "mine.py").read_text()
    assert "selfcheck" not in report and report["lines"] == len(page.splitlines())
    own = page.replace("temperature: float = 1.0", "temperature: float = 0.7") if flags else page
    assert mine.partition("@dataclass")[2] == own.partition("@dataclass")[2]
    head, pages = (x.partition("\n\nimport ")[0].splitlines() for x in (mine, page))
    assert " in one file." in head[0] and "    python mine.py --model" in head[2] and "scripts/" not in "".join(head)
    assert len([1 for a, b in zip(head, pages, strict=True) if a != b]) == 3
    assert report["settings"] == ({"temperature": 0.7} if flags else {})
    lines = mine.splitlines()
    for name, said in report["functions"].items():
        first = re.fullmatch(r"(\d+)-\d+: .+", said)[1]
        assert re.match(rf"(def|class) {name}\b", lines[int(first) - 1])


def test_settings_of_every_type_become_defaults(tmp_path):
    page = source = new.page_text("ppo")
    given = {"steps": 7, "lr": 3e-5, "chat": False, "eval_data": 'ü "x"\\n.jsonl', "minutes": math.inf}
    for name, value in given.items():
        source = new.with_default(source, name, value)
    (tmp_path / "mine.py").write_text(source, encoding="utf-8")
    config = load_module(tmp_path / "mine.py", "page_with_defaults").Config(model="", data="", reward="")
    assert {name: getattr(config, name) for name in given} == given
    changed = [b for a, b in zip(page.splitlines(), source.splitlines(), strict=True) if a != b]
    assert len(changed) == 4 and all("  # " in line or "eval_data" in line for line in changed)  # as lines have room


def test_completions_by_generate_are_the_most_probable_tokens(tmp_path):
    """Whatever the model's own settings of sampling say, with pads before shorter prompts, and cut at the end token."""
    model, tokenizer = (x.from_pretrained(TINY_LM) for x in (AutoModelForCausalLM, AutoTokenizer))
    ends = {tokenizer.eos_token_id, model.generation_config.eos_token_id}
    model.generation_config.update(repetition_penalty=5.0, no_repeat_ngram_size=1, do_sample=True, temperature=9.0)
    prompts = [tokenizer.encode(f"<|user|>{text}<|end|><|assistant|>") for text in ("1+1=", "27+31=")]
    found = answered(model, tokenizer, prompts, max_new_tokens=24, do_sample=False)
    for prompt, answer in zip(prompts, found, strict=True):
        ids = list(prompt)
        while len(ids) < len(prompt) + 24 and ids[-1] not in ends | {None}:
            with torch.no_grad():
                ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
        assert answer == ids[len(prompt) :] and answer[-1] in ends


def test_the_kl_of_answers_is_that_of_the_definition():
    """Summed over the vocabulary by hand, of two texts of unlike lengths."""
    model, teacher = (AutoModelForCausalLM.from_pretrained(TINY_LM).eval() for _ in "12")
    with torch.no_grad():
        for weight in teacher.parameters():
            weight.mul_(0.9)
    prompts, answers, total = [[5, 6], [7, 8, 9, 10]], [[11, 12, 13], [14]], 0.0
    for prompt, answer in zip(prompts, answers, strict=True):
        for n in range(len(answer)):
            ids = torch.tensor([prompt + answer[:n]])
            with torch.no_grad():
                p, q = ((m(ids).logits[0, -1].double() / 0.7).softmax(-1) for m in (model, teacher))
            total += sum(a * math.log(a / b) for a, b in zip(p.tolist(), q.tolist(), strict=True))
    assert reverse_kl(model, teacher, prompts, answers, 0.7) == pytest.approx(total / 4, rel=1e-4) and total > 0.1


@pytest.mark.long
def test_one_command_writes_checks_trains_and_judges(folder):
    flags = [*GIVEN, *BATCH, "--reward", "my.py:reward", "--eval_data", "test.jsonl", *"--steps 2 --out run".split()]
    flags += ["--max_new_tokens", "32"]  # 8 cut the answers, which is a cause
    done = run_script("new_trainer", "grpo", "mine.py", *flags, cwd=folder, fresh=True)
    report = report_of(done)
    assert done.returncode == 0, done.stderr
    assert report["selfcheck"]["passed"] > 5 and report["selfcheck"]["failed"] == {}
    run = report["run"]
    assert (run["exit_code"], run["steps"]) == (0, 2) and run["before"] == run["before"] and 0 <= run["after"] <= 1
    assert run["verdict"] == "too short" and len(run["last_samples"]) == 2
    assert run["saved_model"] == new.saved(str(TINY_LM), folder / "run") and run["saved_model"]["loads"]
    before = read_lines(folder / "run" / "samples.jsonl")
    assert report["command"] == "python mine.py" in (folder / "mine.py").read_text()
    assert run_script(folder / "mine.py", cwd=folder).returncode == 0
    assert read_lines(folder / "run" / "samples.jsonl") == before and (folder / "run.1").exists()


def test_a_page_with_its_reward_inside_needs_no_other_file(folder):
    source = new.with_file(new.page_text("grpo"), "reward", f"{folder}/my.py:reward")
    (folder / "mine.py").write_text(source)
    (folder / "my.py").unlink()
    mine = load_module(folder / "mine.py", "page_with_reward")
    assert mine.Config(model="", data="").reward == f"{folder}/mine.py:reward"
    scores = mine.load_reward(mine.Config(model="", data="").reward)
    rows = [{"columns": {"prompt": "1+1=", "answer": "2"}, "where": "x:1"}]
    assert scores(rows, ["<answer>2</answer>"]) == [1.0] and scores(rows, ["2"]) == [0.0]
    assert source.count("__main__") == 1 and "__future__" not in source
    assert "# the tag" in source and "A reward." not in source
    names = [x.name for x in ast.parse(source).body if isinstance(x, ast.FunctionDef | ast.ClassDef)]
    assert names.index("reward") < names.index("Config")


def test_a_page_with_its_environment_inside_needs_no_other_file(folder):
    methods = ("reset(self, **row)", "reply(self, text)", "get_reward(self)")
    (folder / "game.py").write_text("class Game:\n" + "".join(f"    def {x}:\n        return None\n" for x in methods))
    source = new.with_file(new.page_text("multi_turn"), "environment", f"{folder}/game.py:Game")
    (folder / "mine.py").write_text(source)
    (folder / "game.py").unlink()
    mine = load_module(folder / "mine.py", "page_with_game")
    spec = mine.Config(model="", data="").environment
    assert spec == f"{folder}/mine.py:Game" and mine.load_environment(spec).__name__ == "Game"


DATA = "grpo mine.py --model m --reward my.py:reward --data"
RUN = f"{DATA} train.jsonl --out"
GAME = "multi_turn mine.py --model m --environment game.py:Game --data gold.jsonl"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("grpo mine.txt", ["mine.txt", "expected a name ending in .py"]),
        ("grpo my.py", ["my.py, which exists", "--force"]),
        ("grpo mine.py --change dr_grp", ["--change dr_grp", "try dr_grpo"]),
        ("grpo mine.py --change dr_grpo token_mean", ["touches the same line"]),
        ("grpo mine.py --advantage idea.py:needy", ["needs rewards", "among scores, groups"]),
        ("grpo mine.py --loss idea.py:medan", ["idea.py:medan", "expected one of median, upper"]),
        ("ppo mine.py --advantage idea.py:median", ["without group_advantages", "grpo or multi_turn"]),
        ("grpo mine.py --model m", ["got --model without --data, --reward"]),
        ("grpo mine.py --inline", ["--inline without"]),
        ("ppo mine.py --inline --reward double.py:gae", ["got gae in double.py", "other names"]),
        (f"{RUN} .", ["--out ., which exists and is not an earlier run"]),
        ("grpo mine.py --temperature nan", ["got --temperature nan; expected 0.001 or more"]),
        ("multi_turn mine.py --turn_baseline both", ["--turn_baseline both; expected", "turn or conversation"]),
        ("grpo mine.py --hold_out 2", ["--hold_out 2 without a run"]),
        ("grpo mine.py --vf_coef 0.1", ["got unknown argument '--vf_coef'; expected a flag of --list"]),
        ("ppo mine.py --resume", ["try ppo_train.py or on_policy_distillation.py"]),
        ("ppo mine.py --lora_rank 8", ["--lora_rank", "--change lora"]),
        (f"{DATA} rows.csv --prompt_column question", ["rows.csv:2: got columns prompt, answer; expected 'question'"]),
        (f"{DATA} asked.jsonl", ["asked.jsonl:2: got columns question, answer", "--out asked_read.jsonl"]),
        (f"{DATA} gold.jsonl", ["reward takes 'answer'", "with the columns prompt, gold"]),
        (GAME, ["environment Game: reset does not take this data", "'answer'", "got the columns prompt, gold"]),
    ],
)
def test_bad_input_is_refused_and_nothing_written(words, says, folder, capsys, monkeypatch):
    monkeypatch.chdir(folder)
    (folder / "rows.csv").write_text("prompt,answer\n1+1=,2\n")
    (folder / "asked.jsonl").write_text('\n{"question": "1+1=", "answer": "2"}\n')
    (folder / "gold.jsonl").write_text('{"prompt": "1+1=", "gold": "2"}\n')
    (folder / "double.py").write_text("def gae(prompt, completion):\n    return 0.0\n")
    methods = ("reset(self, answer)", "reply(self, text)", "get_reward(self)")
    (folder / "game.py").write_text("class Game:\n" + "".join(f"    def {x}: pass\n" for x in methods))
    before = sorted(x.name for x in folder.iterdir())
    try:
        code = new.main(words.split())
    except SystemExit as error:
        code = error.code
    told = capsys.readouterr()
    assert code == 2 and all(text in told.err for text in says) and not told.out, told.err
    assert sorted(x.name for x in folder.iterdir()) == before and (folder / "my.py").read_text() == REWARD


def test_a_run_that_ends_in_its_first_step_or_before_is_told(folder, monkeypatch):
    monkeypatch.chdir(folder)
    write = "import pathlib, sys; p = pathlib.Path('run'); p.mkdir(); (p / 'samples.jsonl').touch(); sys.exit('no')"
    (folder / "mine.py").write_text(write)
    found = {}
    new.trained("mine.py", [], str(TINY_LM), folder / "run", found)
    assert found["exit_code"] == 1 and found["last_samples"] == [] and "by_answers" not in found
    (folder / "run/metrics.jsonl").write_text('{"step": 7}\n')  # of an earlier run
    (folder / "mine.py").write_text("raise SystemExit(1)")
    found = {}
    new.trained("mine.py", [], str(TINY_LM), folder / "run", found)
    assert found == {"exit_code": 1, "ended_by": 0, "out": str(folder / "run")}


def test_an_own_estimator_is_called_by_the_page(folder):
    (folder / "mine.py").write_text(new.with_own(new.page_text("grpo"), "advantage", f"{folder}/idea.py:median"))
    (folder / "idea.py").unlink()
    page = load_module(folder / "mine.py", "grpo_with_own_advantage")
    scores = torch.tensor([3.0, 1.0, 2.0, 0.0, 0.0, 5.0])
    assert page.group_advantages(scores, 2).tolist() == [2.0, 0.0, 2.0, 0.0, 0.0, 5.0]  # torch takes the lower median


@pytest.mark.parametrize("kind", ["ppo", "grpo"])
def test_an_own_loss_is_called_by_the_page(kind, folder):
    bounds = {"clip_eps_low": 0.1, "clip_eps_high": 0.3} | ({"dual_clip": 3.0} if kind == "ppo" else {})
    old, advantages = torch.tensor([[-1.0, -2.0, -0.5]]), torch.tensor([[1.0, -2.0, 1.0]])
    logprobs = (old + torch.tensor([[0.1, -0.7, 0.4]])).requires_grad_()
    pages = {}
    for name in ("upper", "reinforce"):
        (folder / "mine.py").write_text(new.with_own(new.page_text(kind), "loss", f"{folder}/idea.py:{name}"))
        pages[name] = load_module(folder / "mine.py", f"{kind}_with_{name}")
    ratio = (logprobs - old).exp()
    loss, seen, clipped = pages["upper"].policy_loss(logprobs, old, advantages, **bounds)
    torch.testing.assert_close(loss, -advantages * ratio.clamp(max=1.3))
    torch.testing.assert_close(seen, ratio)
    assert clipped.tolist() == [[0.0, 0.0, 1.0]]
    loss, _, clipped = pages["reinforce"].policy_loss(logprobs, old, advantages, **bounds)
    loss.sum().backward()
    torch.testing.assert_close(logprobs.grad, -0.5 * advantages)
    assert not clipped.any()


def test_imports_that_the_page_has_in_part_are_no_clash(folder, monkeypatch, capsys):
    """Of names imported in one statement, of a submodule, and further down."""
    monkeypatch.chdir(folder)
    head = "import math, statistics\nimport torch.nn\nfrom dataclasses import dataclass, field\n\nHALF = 0.5\n"
    head += "from pathlib import PurePath, Path\n\nUSED = [math, statistics, dataclass, field, PurePath, Path]\n"
    (folder / "idea.py").write_text(IDEA.replace("import torch\n", head))
    assert new.main(["grpo", "mine.py", "--advantage", "idea.py:median"]) == 0
    text = (folder / "mine.py").read_text()
    assert "\nfrom pathlib import PurePath, Path\n" in text and text.count("import torch\n") == 1
    load_module(folder / "mine.py", "page_with_imports")
    (folder / "idea.py").write_text(IDEA.replace("import torch\n", "import torch\nfrom numpy import pad\n"))
    assert new.main(["grpo", "other.py", "--advantage", "idea.py:median"]) == 2
    assert "got pad in" in capsys.readouterr().err


@pytest.mark.long
def test_a_page_with_own_functions_is_checked_and_trains(folder):
    """Estimators other than the group's mean are no finding; the sign of a loss is."""
    given = [*GIVEN, *BATCH, "--max_new_tokens", "24", "--reward", "my.py:reward"]
    own = ["--advantage", "idea.py:median", "--loss", "idea.py:upper", "--leave_out", "padding"]
    flags = ["mine.py", *given, *own, "--steps", 2, "--out", "run"]
    report = report_of(run_script("new_trainer", "grpo", *flags, cwd=folder))
    assert report["selfcheck"]["failed"] == {}
    assert report["selfcheck"]["left_out"] == ["padding", "group_advantages", "policy_clip"]
    assert report["run"]["exit_code"] == 0 and report["run"]["saved_model"]["largest_weight_change"] > 0
    turned = run_script("new_trainer", "grpo", "turned.py", *given, "--loss", "idea.py:turned", cwd=folder)
    failed = report_of(turned)["selfcheck"]["failed"]
    assert turned.returncode == 1 and list(failed) == ["advantages_detached"]
    assert "gradient 2.0e+00 apart" in failed["advantages_detached"]


def fake_phases(folder, monkeypatch, check: str, page: str) -> list[str]:
    """Words of a command line whose selfcheck.py and page are these texts; PARENT is the command's process."""
    (folder / "scripts").mkdir()
    (folder / "scripts" / "selfcheck.py").write_text(check.replace("PARENT", str(os.getpid())))
    for name in ("templates", "references"):
        (folder / name).symlink_to(ROOT / name)
    monkeypatch.setattr(new, "BUNDLE", folder)
    monkeypatch.setattr(new, "as_own", lambda *_: page.replace("PARENT", str(os.getpid())))
    monkeypatch.chdir(folder)
    return ["grpo", "mine.py", *GIVEN, "--reward", "my.py:reward", "--out", "run"]


PASSED = """print('{"checks": []}')"""
STOP = "import os, signal, time; os.kill(PARENT, signal.NUMBER); time.sleep(600)"
EMPTY_RUN = "import pathlib; p = pathlib.Path('run'); p.mkdir(); (p / 'settings.json').write_text('{}')\n"


@pytest.mark.parametrize(("phase", "number"), [("check", "SIGTERM"), ("train", "SIGINT"), ("saved", "SIGTERM")])
def test_a_signal_in_any_phase_ends_with_the_report(phase, number, folder, monkeypatch, capfd):
    stop = STOP.replace("NUMBER", number)
    page = EMPTY_RUN + (stop if phase == "train" else "")
    words = fake_phases(folder, monkeypatch, stop if phase == "check" else PASSED, page)
    if phase == "saved":
        monkeypatch.setattr(new, "saved", lambda *_: os.kill(os.getpid(), getattr(signal, number)))
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # as a shell starts `command &`
    try:
        assert new.main(words) == 128 + getattr(signal, number)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
    report = json.loads(capfd.readouterr().out)
    ended = report["run"] if phase == "train" else report
    assert report["wrote"] == "mine.py" and ended["ended_by"] == getattr(signal, number)
    assert ("selfcheck" in report, "run" in report) == (phase in ("train", "saved"), phase in ("train", "saved"))


FAILED = {"checks": [{"name": "group_advantages", "status": "FAIL", "measured": "0.5 apart"}]}


def test_a_check_that_cannot_run_or_fails_leaves_a_report_and_no_run(folder, monkeypatch, capfd):
    words = fake_phases(folder, monkeypatch, "raise SystemExit(2)", EMPTY_RUN)
    assert new.main(words) == 2
    shown = capfd.readouterr()
    assert json.loads(shown.out)["error"] in shown.err and "exit code 2 of selfcheck" in shown.err
    assert json.loads(shown.out)["wrote"] is None and not (folder / "mine.py").exists(), "a retry needs no --force"
    (folder / "scripts" / "selfcheck.py").write_text(f"import sys\nprint({json.dumps(FAILED)!r})\nsys.exit(1)")
    assert new.main(words) == 1
    report = json.loads(capfd.readouterr().out)
    assert report["selfcheck"]["failed"] == {"group_advantages": "0.5 apart"} and "run" not in report
    assert not (folder / "run").exists() and (folder / "mine.py").read_text() == EMPTY_RUN


def test_rows_held_out_become_files_of_the_run(folder, made, monkeypatch):
    line = ["grpo", "mine.py", *GIVEN, "--reward", "my.py:reward", "--out", "run", "--hold_out", "3", "--force"]
    monkeypatch.setattr(new, "checked", lambda file, flags, left_out: {"failed": {}, "seconds": 0.0, "flags": flags})
    monkeypatch.setattr(new, "trained", lambda *_: _[-1].update({"exit_code": 0, "ended_by": 0}))
    report = made(*line)
    trained, kept = ((folder / "run_data" / f"{x}.jsonl").read_text().splitlines() for x in ("train", "held_out"))
    assert sorted(trained + kept) == sorted((folder / "train.jsonl").read_text().splitlines())
    assert len(kept) == 3 and report["held_out"] == {"rows": 3, "also_in_training": 0}
    own = load_module(folder / "mine.py", "own_rows").Config()
    assert (own.data, own.eval_data, own.out) == ("run_data/train.jsonl", "run_data/held_out.jsonl", "run")
    assert report["selfcheck"]["flags"][2:4] == ["--data", "run_data/train.jsonl"] and report["notes"] == []
    made(*line, "--seed", "5")  # the same rows
    (folder / "run_data" / "train.jsonl").write_text("{}\n")
    with pytest.raises(AssertionError, match=r"run_data/train\.jsonl, which has other rows"):
        made(*line)


def test_rows_of_a_table_become_a_file_that_the_page_reads(folder, made, monkeypatch):
    (folder / "rows.csv").write_text("Frage;answer\n1+1=;2\n2+2=;4\n", encoding="utf-8")
    table = pyarrow.table({"Frage": ["3+3="], "answer": ["6"], "day": [datetime.date(2024, 5, 1)]})
    pyarrow.parquet.write_table(table, folder / "rows.parquet")
    monkeypatch.setattr(new, "checked", lambda file, flags, left_out: {"failed": {}, "seconds": 0.0, "flags": flags})
    line = ["grpo", "mine.py", "--model", TINY_LM, "--reward", "my.py:reward", "--prompt_column", "Frage", "--force"]
    report = made(*line, "--data", "rows.csv", "--eval_data", "rows.parquet")
    assert report["selfcheck"]["flags"][2:4] == ["--data", "mine_data/train.jsonl"]
    assert read_lines(folder / "mine_data" / "train.jsonl")[1] == {"Frage": "2+2=", "answer": "4"}
    kept = {"Frage": "3+3=", "answer": "6", "day": "2024-05-01"}
    assert read_lines(folder / "mine_data" / "held_out.jsonl") == [kept]
    user, model = {"role": "user", "content": "1+1="}, {"role": "assistant", "content": "2"}
    write_lines(folder / "chats.jsonl", [{"messages": [user, model], "answer": "2"}])  # prompts end before the answer
    made("grpo", "talks.py", *line[2:-3], "--data", "chats.jsonl")
    (row,) = read_lines(folder / "talks_data" / "train.jsonl")
    assert (row["prompt"], row["answer"]) == ([user], "2")


def test_the_saved_model_is_compared_with_the_start(tmp_path):
    assert new.saved(str(TINY_LM), TINY_LM) == {"loads": True, "largest_weight_change": 0.0, "tensors_changed": 0.0}
    moved = AutoModelForCausalLM.from_pretrained(TINY_LM, dtype=torch.float32)
    with torch.no_grad():
        moved.model.norm.weight[3] -= 0.25
    moved.save_pretrained(tmp_path / "moved")
    AutoTokenizer.from_pretrained(TINY_LM).save_pretrained(tmp_path / "moved")
    found = new.saved(str(TINY_LM), tmp_path / "moved")
    assert found["loads"] and found["largest_weight_change"] == pytest.approx(0.25, abs=1e-6)
    (tmp_path / "moved" / "model.safetensors").write_bytes(b"cut off")
    broken = new.saved(str(TINY_LM), tmp_path / "moved")
    assert not broken["loads"] and "Error" in broken["error"]


def test_a_setting_that_a_change_makes_brings_the_change(folder, made):
    report = made("grpo", "own.py", "--kl-coef", "0.1", "--epochs", "2")
    assert report["changes"] == ["kl"] and report["settings"] == {"kl_coef": 0.1, "epochs": 2}
    own = load_module(folder / "own.py", "own_with_kl")
    assert own.Config("", "", "").kl_coef == 0.1
    report = made("grpo", "two.py", "--change", "kl", "token_mean", "--kl_coef", "0.2")
    assert report["changes"] == ["kl", "token_mean"]
    assert made("ppo", "theirs.py", "--kl_coef", "0.2")["changes"] == [], "PPO's page has this setting"


def test_a_page_reads_the_users_column_and_logs_under_the_users_names(folder, made):
    rows = [{"question": f"{a}+1=", "answer": str(a + 1)} for a in range(8)]
    asked = write_lines(folder / "asked.jsonl", rows)
    flags = ["--prompt_column=question", "--metrics_file=mine.jsonl"]
    names = "--metric_names=reward=reward/mean, loss=policy/loss"
    assert made("grpo", "own.py", *flags, names)["changes"] == ["prompt_column", "metrics_file"]
    page, given = load_module(folder / "own.py", "own_names"), {"max_new_tokens": 4, "prompts": 2, "group_size": 2}
    page.train(page.Config(model=str(TINY_LM), data=asked, reward="my.py:reward", steps=2, **given))
    every = read_lines(folder / "out" / "metrics.jsonl")
    logged = [{"step": x["step"], "reward": x["reward/mean"], "loss": x["policy/loss"]} for x in every]
    assert read_lines(folder / "mine.jsonl") == logged and len(logged) == 2
    samples = read_lines(folder / "out" / "samples.jsonl")
    assert samples[0]["prompt"] in [row["question"] for row in rows] and "question" not in samples[0]


def test_the_settings_and_changes_that_the_skill_names_are_those_of_the_pages():
    """SKILL.md's table of pages, so that an agent need not list them."""
    table = (ROOT / "SKILL.md").read_text(encoding="utf-8").partition("| page | defaults | `--change` ")[2]
    rows = [line.strip("|").split("|") for line in table.partition("\n\n")[0].splitlines()[2:]]
    assert {row[0].strip(" `") for row in rows} == {"all", *new.PAGES}
    for name, settings, changes in rows:
        for kind in new.PAGES if name.strip() == "all" else [name.strip(" `")]:
            defaults = {name: known["default"] for name, known in new.settings_of(new.page_text(kind)).items()}
            for setting, value in re.findall(r"--(\w+) ([\d.]+)", settings):
                assert float(defaults[setting]) == float(value), (kind, setting)
            assert {*re.findall(r"`(\w+)`", changes)} <= {*new.changes_of(kind)}, kind


def test_what_a_page_would_ignore_is_noted(made):
    for flags, noted in (
        ("grpo noted.py --change gspo --clip_eps_high 0.28 --epochs 2", []),
        ("grpo lora.py --change lora --loss idea.py:turned --clip_eps_low 0.1", ["clip_eps_low 0.1", "change lora"]),
        ("ppo ppo.py --change cispo monte_carlo --dual_clip 2 --gae_lambda 0.9", ["gae_lambda 0.9", "dual_clip 2.0"]),
    ):
        assert [note.partition(":")[0] for note in made(*flags.split())["notes"]] == noted
