"""assets/notebook_template.ipynb runs, repeats what ppo_train.py does, and says honestly what it found."""

import base64
import json
import math
import re
import shlex
import shutil
import sys
from pathlib import Path

import nbformat
import numpy as np
import pytest
from conftest import FEW_EVAL, FEW_TRAIN, ROOT, TRAIN_DATA, load_script, read_lines, run_script

NOTEBOOK = ROOT / "assets" / "notebook_template.ipynb"
SMALL = "SEEDS = [3, 5, 7]\nSTEPS = 3\nPROMPTS = 2\nGROUP_SIZE = 4\nMINIBATCHES = 2\n"
SMALL += "MAX_NEW_TOKENS = 20\nEVAL_PROMPTS = 16"


def template():
    """The notebook as it stands."""
    return nbformat.read(NOTEBOOK, as_version=4)


def cell(notebook, name: str):
    """The cell with this id."""
    return next(c for c in notebook.cells if c.id == name)


RUN_CELLS = """
import json, sys
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output

shell, ran = InteractiveShell.instance(), []
for source in json.load(open(sys.argv[1])):
    with capture_output() as said:
        result = shell.run_cell(source, store_history=True)
    result.raise_error()
    ran.append([said.stdout, said.stderr, [output.data for output in said.outputs]])
json.dump(ran, open(sys.argv[1], "w"))
"""


def execute(notebook, folder, settings=SMALL):
    """Run a notebook's cells in a folder, with further lines in its parameters cell, and nothing left at home.

    In IPython in a fork of the warm process; `new_notebook.py --run`, tested below, starts a kernel.
    """
    parameters = next(c for c in notebook.cells if "parameters" in c.metadata.get("tags", []))
    parameters.source += f"\n{settings}\nOUTPUT = {str(folder / 'out')!r}"
    cells, file = [c for c in notebook.cells if c.cell_type == "code"], folder / "cells.json"
    file.write_text(json.dumps([c.source for c in cells]))
    done = run_script(Path("-c"), RUN_CELLS, file, cwd=folder, env={"IPYTHONDIR": str(folder / "ipython"), "DRAW": "1"})
    assert done.returncode == 0, done.stdout + done.stderr
    new = nbformat.v4.new_output
    for c, (out, err, shown) in zip(cells, json.loads(file.read_text()), strict=True):
        streams = [new("stream", name=name, text=said) for name, said in (("stdout", out), ("stderr", err)) if said]
        c.outputs = streams + [new("display_data", data=data) for data in shown]
    return notebook


def text(notebook, name: str) -> str:
    """What a cell printed."""
    return "".join(o.text for o in cell(notebook, name).outputs if o.output_type == "stream")


def pictures(notebook) -> list[bytes]:
    """PNG images among a notebook's outputs."""
    found = [o.data["image/png"] for c in notebook.cells if c.cell_type == "code" for o in c.outputs if "data" in o]
    return [base64.b64decode(data) for data in found]


def runs(notebook) -> dict:
    """(arm, seed) -> held-out score and accuracy, as the run cell printed them."""
    line = re.compile(r"^(\w+) +seed (\d+): held-out score (\S+), accuracy ([\d.]+), [\d.]+ tokens", re.MULTILINE)
    return {(a, int(s)): (float(score), float(acc)) for a, s, score, acc in line.findall(text(notebook, "run"))}


def command(notebook, arm: str) -> list[str]:
    """The words of the command that the last cell printed for an arm, or for what else it names."""
    lines = text(notebook, "next").split("\n")
    return shlex.split(lines[lines.index(f"# {arm}") + 1])


def run_command(words: list, folder):
    """A command that a notebook printed, run in a folder."""
    return run_script(folder / words[1], *words[2:], cwd=folder)


def in_bundle(notebook):
    """The notebook told where the bundle is, as it runs in another folder."""
    cell(notebook, "setup").source = cell(notebook, "setup").source.replace('BUNDLE = ""', f"BUNDLE = {str(ROOT)!r}")
    return notebook


@pytest.fixture(scope="module")
def executed(tmp_path_factory):
    """The notebook executed with small settings, and its folder."""
    folder = tmp_path_factory.mktemp("notebook")
    notebook = in_bundle(template())
    dump = "import json\nprint(json.dumps({name: results[name, SEEDS[0]][0] for name in ARMS}))"
    notebook.cells.append(nbformat.v4.new_code_cell(dump, id="dump"))
    return execute(notebook, folder, SMALL + "\nLR = 1e-3"), folder


@pytest.mark.long
def test_printed_command_repeats_the_arm_exactly(executed):
    """The loop of the notebook against the trainer: every step and the held-out figures are the same."""
    (notebook, folder), arm = executed, "idea"
    done = run_command([*command(notebook, arm), "--eval_data", FEW_EVAL], folder)
    assert done.returncode == 0, done.stderr
    lines = read_lines(folder / "out" / arm / "metrics.jsonl")
    names = {"reward": "reward/mean", "length": "rollout/length_mean", "clipped": "policy/clip_frac"}
    history = json.loads(text(notebook, "dump"))[arm]
    assert len(history) == 3 and history[-1]["KL"] > 1e-3
    for ours, theirs in zip(history, lines[1:], strict=True):
        found = {name: ours[name] for name in names}
        assert found == pytest.approx({name: theirs[key] for name, key in names.items()}, rel=1e-4, abs=1e-7)
    words = command(notebook, "both on one page")
    assert words[2:5] == [str(folder / "out" / name) for name in ("baseline", "idea")] + ["--output"]
    found, printed = runs(notebook), re.search(r"by seed: (.*)", text(notebook, "verdict"))[1]
    differences = [found["idea", seed][0] - found["baseline", seed][0] for seed in (3, 5, 7)]
    assert [float(x) for x in printed.split(", ")] == pytest.approx(differences, abs=2e-3)
    score, accuracy = found[arm, 3]
    assert (score, accuracy) == pytest.approx((lines[-1]["eval/score"], lines[-1]["eval/accuracy"]), abs=6e-4)


@pytest.mark.long
def test_cells_that_run_again_see_what_changed_or_say_so(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text("def mine(completions, **k):\n    return [1.0] * len(completions)\n")
    names, notebook = {"__name__": "notebook"}, in_bundle(template())
    cell(notebook, "settings").source += f"""
{SMALL}
DATA, EVAL_DATA, REWARDS = {str(FEW_TRAIN)!r}, {str(FEW_EVAL)!r}, ['mine.py:mine']
SEEDS, STEPS, EVAL_PROMPTS, OUTPUT, IDEA = [1], 1, 2, 'out', {{}}"""

    def run(*cells):
        for name in cells:
            exec(compile(cell(notebook, name).source, name, "exec"), names)

    monkeypatch.delitem(sys.modules, "ppo_train", raising=False)
    run("setup", "settings", "data", "idea", "loop", "run")
    assert names["results"]["baseline", 1][1]["eval/score"] == 1
    (tmp_path / "mine.py").write_text("def mine(completions, **k):\n    return [0.25] * len(completions)\n")
    run("run")
    assert names["results"]["baseline", 1][1]["eval/score"] == 0.25 == names["results"]["baseline", 1][0][0]["reward"]
    run("idea")
    with pytest.raises(ValueError, match="an IDEA or BASELINE that has not run"):
        run("next")
    names["GROUP_SIZE"] = 2
    for name in ("reward", "run"):
        with pytest.raises(ValueError, match=r"settings that have changed since \*\*Data and model\*\* ran"):
            run(name)
    run("data", "run")
    monkeypatch.delitem(sys.modules, "ppo_train")


@pytest.fixture(scope="module")
def verdict():
    """The function of the verdict cell, and its table of Student's t."""
    names = {"np": np, "math": math}
    exec(cell(template(), "verdict").source.split("\n\n\ndef by_arm")[0], names)
    return names["verdict"], names["T95"]


def test_table_of_student_t_is_that_of_simulation_and_false_alarms_are_as_rare_as_promised(verdict):
    rng = np.random.default_rng(0)
    for df, value in verdict[1].items():
        below = (np.abs(rng.standard_t(df, 400_000)) < value).mean()
        assert below == pytest.approx(0.95, abs=0.0016)  # 4.5 standard errors
    said = [verdict[0]("score", np.zeros(6), rng.normal(size=6)) for _ in range(4000)]
    assert sum(line.startswith("DIFFERENCE") for line in said) / 4000 == pytest.approx(0.05, abs=0.014)


@pytest.mark.parametrize(
    ("baseline", "idea", "begins"),
    [
        ([0.5, 0.6, 0.7], [0.5, 0.6, 0.7], "NO EFFECT"),
        ([0.5], [0.9], "UNKNOWN"),
        ([0.5, 0.5, 0.5], [0.6, 0.5, 0.4], "WITHIN THE NOISE"),
        # mean 0.1, sd 0.04: half width 4.303 * 0.04 / sqrt(3) = 0.0994, then sd 0.0404: 0.1004
        ([0.0, 0.0, 0.0], [0.06, 0.10, 0.14], "HINT: better"),
        ([0.0, 0.0, 0.0], [-0.06, -0.10, -0.14], "LOSS: worse"),
        ([0.0, 0.0, 0.0], [0.0596, 0.10, 0.1404], "WITHIN THE NOISE"),
        ([0.0] * 6, [-0.1, -0.2, -0.1, -0.2, -0.1, -0.2], "DIFFERENCE: worse"),
        ([0.1, 0.9, 0.5, 0.2, 0.8, 0.4], [0.2, 1.0, 0.6, 0.31, 0.9, 0.5], "DIFFERENCE: better"),  # pairing matters
    ],
)
def test_verdict(verdict, baseline, idea, begins, capsys):
    said = verdict[0]("score", baseline, idea)
    assert said.startswith(begins)
    if begins.startswith("HINT"):
        assert "25% of the time" in said and "95 % interval +0.001 to +0.199" in capsys.readouterr().out
        assert verdict[0]("tokens", [9.0] * 3, [5.0, 5.1, 4.9], "longer", "shorter").startswith("HINT: shorter than")


@pytest.fixture
def mine(tmp_path):
    """A folder with a reward file and data of one's own."""
    (tmp_path / "my.py").write_text("def short(completions, **_):\n    return [-len(str(c)) for c in completions]\n")
    shutil.copy(FEW_TRAIN, tmp_path / "train.jsonl")
    (tmp_path / "books").mkdir()
    return tmp_path


def test_new_notebook_is_filled_in(mine, monkeypatch, capsys):
    monkeypatch.chdir(mine)
    (mine / "train.jsonl").write_text((mine / "train.jsonl").read_text().replace('"prompt"', '"Frage"'))
    flags = ["--reward", "my.py:short*0.5", "--data", "train.jsonl", "--output", "books/idea.ipynb"]
    assert load_script("new_notebook").main([*flags, "--prompt_column", "Frage", "--chat"]) == 0
    wrote = {"wrote": "books/idea.ipynb", "run": "jupyter execute books/idea.ipynb"}
    assert json.loads(capsys.readouterr().out) == wrote
    notebook = nbformat.read(mine / "books" / "idea.ipynb", as_version=4)
    nbformat.validate(notebook)
    settings = cell(notebook, "settings").source
    assert "DATA = '../train.jsonl'  # prompts" in settings and "REWARDS = ['../my.py:short*0.5']" in settings
    assert "PROMPT_COLUMN = 'Frage'  #" in settings and "CHAT = True  #" in settings
    assert f"BUNDLE = {str(ROOT)!r}  # folder" in cell(notebook, "setup").source  # wherever papermill is called
    unchanged = [c.source for c in notebook.cells if c.id not in ("setup", "settings")]
    assert unchanged == [c.source for c in template().cells if c.id not in ("setup", "settings")]


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ("--reward my.py:shor", "my.py has no function 'shor'; expected one of short; try short"),
        ("--data train.jsonl", "got --data without --reward"),
        ("--seeds 3 3", "got --seeds [3, 3]; expected different ones"),
        ("--steps 0", "got --steps 0; expected 1 or more"),
        ("--output no/idea.ipynb", "a folder that exists"),
        ("--idea reward=my.py", "got --idea reward=my.py"),
        ("--idea advantage", "expected reward=, advantage= or loss=FILE.py:function, or SETTING=value"),
        ("--idea advantage=ideas.py:medan", "ideas.py has no 'medan'; expected one of its names; try median"),
        ("--idea clip_eps_high=28%", "clip_eps_high=28%; expected a number"),
        ("--idea gamma=1", "expected one of advantage, advantage_eps"),
        ("--idea advantage=ideas.py:median --idea loss=double.py:median", "double.py names median, as the notebook"),
    ],
)
def test_new_notebook_refuses(ideas, flags, says, monkeypatch, capsys):
    monkeypatch.chdir(ideas)
    assert load_script("new_notebook").main(["--output", "idea.ipynb", *flags.split()]) == 2
    assert says in capsys.readouterr().err and not list(ideas.glob("*.ipynb"))


IDEAS = '''"""Ideas."""

from __future__ import annotations

import torch


def right_and_short(prompt, completion, answer):
    """A reward of one sample."""
    return 0.2 * (f"<answer>{answer}</answer>" in completion) / (1 + len(completion))


def median(scores, groups):
    """Against the median of the group."""
    return torch.cat([s - s.median() for s in scores.split(groups.bincount().tolist())])


def asymmetric(logprobs, old_logprobs, advantages):
    """More room above."""
    ratio = (logprobs - old_logprobs).exp()
    return torch.maximum(-advantages * ratio, -advantages * ratio.clamp(0.8, 6.0))


def three(scores):
    """Of the wrong shape."""
    return scores[:3]


if __name__ == "__main__":
    print(median(torch.rand(4), torch.zeros(4).int()))
'''


@pytest.fixture
def ideas(mine):
    """The folder, with ideas, one of which names something as another does."""
    (mine / "ideas.py").write_text(IDEAS, encoding="utf-8-sig")
    (mine / "double.py").write_text("def median(logprobs, advantages):\n    return -logprobs * advantages\n")
    return mine


def test_ideas_become_the_cell(ideas, monkeypatch):
    monkeypatch.chdir(ideas)
    flags = ["reward=ideas.py:right_and_short", "advantage=ideas.py:median", "clip_eps_high=0.28"]
    flags = [word for idea in flags for word in ("--idea", idea)]
    flags += "--seeds 4 5 --steps 2 --output idea.ipynb".split()
    assert load_script("new_notebook").main(flags) == 0
    notebook = nbformat.read(ideas / "idea.ipynb", as_version=4)
    source, found = cell(notebook, "idea").source, {"REWARDS": ["theirs"]}
    assert [gone for gone in ("__future__", "__main__", "print(") if gone in source] == []
    exec(source, found)
    assert found["BASELINE"] == {}
    assert found["IDEA"]["reward"] == ["theirs", found["right_and_short"]]
    assert found["IDEA"]["advantage"] is found["median"] and found["IDEA"]["clip_eps_high"] == 0.28
    assert source.count("def ") == 4, "one file, one text"
    settings = cell(notebook, "settings").source
    assert "SEEDS = [4, 5]  # both" in settings and "STEPS = 2\n" in settings


@pytest.mark.long
def test_a_notebook_that_is_run_reports_what_it_found(ideas):
    ideas_of_file = ("reward=ideas.py:right_and_short", "advantage=ideas.py:median", "loss=ideas.py:asymmetric")
    flags = [word for idea in ideas_of_file for word in ("--idea", idea)]
    flags += ["--seeds", 3, "--steps", 2, "--run", "--output", "idea.ipynb"]
    (ideas / "train.jsonl").write_text("".join(TRAIN_DATA.read_text().splitlines(keepends=True)[:30] * 2))
    flags += ["--data", "train.jsonl", "--reward", "numeric_correctness"]
    done = run_script("new_notebook", *flags, cwd=ideas, fresh=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    plain, ran = (nbformat.read(ideas / name, as_version=4) for name in ("idea.ipynb", "idea.run.ipynb"))
    assert found["wrote"] == "idea.ipynb" and found["ran"] == "idea.run.ipynb"
    assert [c.source for c in plain.cells] == [c.source for c in ran.cells]
    assert not any(c.get("outputs") for c in plain.cells) and len(pictures(ran)) == 1
    assert set(runs(ran)) == {("baseline", 3), ("idea", 3)}
    assert "--hold_out 6 " in shlex.join(command(ran, "idea")) and "54 prompts, 6 held out" in text(ran, "data")
    for name, key in (("run", "runs"), ("verdict", "verdict"), ("next", "next")):
        assert found[key] == text(ran, name).splitlines() and found[key]
    # both arms are judged by the baseline's reward; what the idea pays for besides is told of both
    assert re.search(r"own reward on the held-out completions: baseline \S+, idea \S+", text(ran, "verdict"))
    done = run_command(command(ran, "idea"), ideas)
    assert done.returncode == 0, done.stderr
    last = read_lines(ideas / "runs" / "notebook" / "idea" / "metrics.jsonl")[-1]
    assert last["eval/accuracy"] == pytest.approx(runs(ran)["idea", 3][1], abs=6e-4)
    assert last["reward/right_and_short"] > 0


@pytest.mark.long
@pytest.mark.parametrize(
    ("idea", "says", "trained"),
    [
        ("advantage=ideas.py:three", "got a tensor [3] from advantage idea; expected [128]", 1),
        ("kl_coef=-1", "got kl_coef -1; expected 0 or more", 0),
    ],
)
def test_a_cell_that_fails_is_named(idea, says, trained, ideas):
    flags = ("--idea", idea, "--seeds", 3, "--steps", 1, "--run", "--output", "idea.ipynb")
    done = run_script("new_notebook", *flags, cwd=ideas, fresh=True)
    assert done.returncode == 1 and not done.stdout and "Traceback" not in done.stderr and says in done.stderr
    ran = nbformat.read(ideas / "idea.run.ipynb", as_version=4)
    assert any(c.get("outputs") for c in ran.cells) and text(ran, "run").count("baseline") == trained
