"""Each recipe of references/recipes.md runs from an empty folder with the embedded model, with a few steps."""

import json
import re
import shlex
import shutil
from pathlib import Path

import pytest
from conftest import EVAL_DATA, ROOT, TINY_LM, TRAIN_DATA, load_module, read_lines, run_script

PAGE = (ROOT / "references" / "recipes.md").read_text(encoding="utf-8")
FENCE = re.compile(r"^```(\w+)([^\n]*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
HEAD, *SECTIONS = re.split(r"^## ", PAGE, flags=re.MULTILINE)
RECIPES = {text.partition("\n")[0]: text for text in SECTIONS}
TOGETHER = ("A run by flags", "Held-out split, before and after", "A flat run")  # the later ones read the first's run
VERL = "A TRL reward in verl"


def write_files(text: str, folder: Path) -> None:
    """Write the fences that are named as files."""
    for language, name, body in FENCE.findall(text):
        if language == "python":
            (folder / name.strip()).write_text(body)


def shorter(words: list[str]) -> list[str]:
    """A command's words with a few steps in the place of many."""
    words, few = [*words], {"--steps": {"60": "2", "90": "3"}, "--save_every": {"10": "1"}}
    few["--prompts_per_round"] = {"64": "16"}
    for i, word in enumerate(words[:-1]):
        words[i + 1] = few.get(word, {}).get(words[i + 1], words[i + 1])
    return [*words, *(["--steps", "2"] if words[0].endswith("/new_trainer.py") else [])]


def run_recipe(name: str, folder: Path) -> list:
    """Run the commands of a recipe; what each returned."""
    write_files(RECIPES[name], folder)
    lines = "".join(body for language, _, body in FENCE.findall(RECIPES[name]) if language == "bash")
    done = []
    for line in lines.replace("\\\n", " ").splitlines():
        for variable, value in (("$S", ROOT), ("$M", TINY_LM), ("$T", TINY_LM)):
            line = line.replace(variable, str(value))
        program, *words = shlex.split(line)
        if program == "cp":
            shutil.copy(words[0], folder / words[1])
            continue
        assert program == "python", line
        path, *flags = shorter(words)
        done.append(run_script(folder / path, *flags, cwd=folder))  # an absolute path stays as it is
    return done


@pytest.fixture
def folder(tmp_path):
    """An empty folder but for the three files that the page begins with, and a run of TRL's to move."""
    write_files(HEAD, tmp_path)
    shutil.copy(ROOT / "evals" / "files" / "trl_run.py", tmp_path)
    for name in ("word_problems", "gsm8k"):  # the data of the run to move, and of the final number
        shutil.copy(ROOT / "evals" / "files" / "word_problems.jsonl", tmp_path / f"{name}.jsonl")
    for name, source, count in (("train", TRAIN_DATA, 256), ("test", EVAL_DATA, 8)):
        (tmp_path / f"{name}.jsonl").write_text("\n".join(source.read_text().splitlines()[:count]) + "\n")
    return tmp_path


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name in RECIPES if name not in (*TOGETHER, VERL)])
def test_a_recipe_runs_in_an_empty_folder(name, folder):
    for done in run_recipe(name, folder):
        too_short = done.args[1].endswith("diagnose.py") and done.returncode == 3  # to judge two steps
        assert done.returncode == 0 or too_short, (done.args, done.stdout, done.stderr)


@pytest.mark.long
def test_recipes_around_a_run_by_flags(folder):
    plain, before_after, flat = (run_recipe(name, folder) for name in TOGETHER)
    assert all(done.returncode == 0 for done in plain + before_after), [done.stderr for done in plain + before_after]
    assert (folder / "runs/flags/final/config.json").exists()
    compared = json.loads((folder / "runs/before_after/comparison.json").read_text())
    found = compared["tasks"]["reward:my.py:reward"]["reward"]
    assert compared["after"] == "runs/flags/final" and found["rows"] >= 20 and found["test"] == "exact McNemar"
    names = ("data.jsonl", "data.eval.jsonl")
    train, held = ({json.dumps(row["prompt"]) for row in read_lines(folder / name)} for name in names)
    assert not train & held
    assert [done.returncode for done in flat] == [3], "two steps are too few to judge"


def test_the_reward_for_verl_pays_what_it_pays_in_trl(folder):
    (done,) = run_recipe(VERL, folder)
    tried = json.loads(done.stdout)["tried"]
    assert tried == {"completions": 10, "same_score": 10, "scores": [0.0, 1.0]}
    (folder / "my.py").unlink()  # it needs no other file
    score = load_module(folder / "verl_reward.py", "recipe_verl_reward").compute_score
    assert [score("d", f"<answer>{x}</answer>", "7", extra_info={"index": 0}) for x in (7, 8)] == [1.0, 0.0]
