"""Each recipe of references/recipes.md runs from an empty folder with the embedded model, with a few steps."""

import dataclasses
import json
import re
import shlex
import shutil
from pathlib import Path

import pytest
from conftest import EVAL_DATA, ROOT, TINY_LM, TRAIN_DATA, load_module, load_script, read_lines, run_script

PAGE = (ROOT / "references" / "recipes.md").read_text(encoding="utf-8")
FENCE = re.compile(r"^```(\w+)([^\n]*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
HEAD, *SECTIONS = re.split(r"^## ", PAGE, flags=re.MULTILINE)
RECIPES = {text.partition("\n")[0]: text for text in SECTIONS}
TOGETHER = ("A run by flags", "Held-out split, before and after", "A flat run")  # the later ones read the first's run
CODE, NUMBER, VERL = "A code reward in my own folder", "A final number, as in GSM8K", "A TRL reward in verl"


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
@pytest.mark.parametrize("name", [name for name in RECIPES if name not in (*TOGETHER, CODE, NUMBER, VERL)])
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


@pytest.mark.long
def test_the_code_reward_pays_programs_that_pass(folder, monkeypatch):
    assert [done.returncode for done in run_recipe(CODE, folder)] == [0, 0]
    monkeypatch.syspath_prepend(str(folder))
    reward = load_module(folder / "code_reward.py", "recipe_code_reward").reward
    right, wrong = (f"So:\n```python\ndef double(x):\n    return {body}\n```" for body in ("2 * x", "x"))
    tests = [["assert double(4) == 8"]] * 4
    assert reward(["Double."] * 4, [right, wrong, "no program", [{"content": right}]], tests) == [1, 0, 0, 1]
    others = f"```bash\npip list\n```\n{right}\nIt prints:\n```\n8\n```"
    assert reward([""] * 3, [others, [], ""], tests[:3]) == [1, 0, 0]
    item = "1. So:\n" + "".join(f"   {line}\n" for line in right.splitlines()[1:])  # a block inside a list
    assert reward([""], [item], tests[:1]) == [1]
    with pytest.warns(UserWarning, match="tests that judge nothing: \\[1\\]"):
        assert reward([""] * 2, [right, right], [tests[0], ["not Python at all"]]) == [1, None]
    with pytest.raises(ValueError, match="zip"):
        reward([""] * 2, [right, right], tests[:1])


@pytest.mark.long
def test_trl_calls_the_number_reward_as_the_recipe_says(folder):
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    (done,) = run_recipe(NUMBER, folder)
    told = json.loads(done.stdout)["trl_calls_it"]
    named, lists = {*re.findall(r"\w+(?==)", told)} - {"COLUMN"}, ("prompts", "completions", "completion_ids", "level")
    reward, seen = load_module(folder / "gsm8k.py", "recipe_number_in_trl").final_number_reward, []

    def correct(completions, answer, **kwargs):
        given = {"completions": completions, **kwargs}
        assert {*given} == named | {"level"} and all(len(given[name]) == len(answer) for name in lists)
        assert all([{**m, "content": ""} for m in c] == [{"role": "assistant", "content": ""}] for c in completions)
        scores = reward(completions, answer, **kwargs)
        seen.extend(zip(answer, scores, strict=True))
        return scores

    prompt = [{"role": "user", "content": "3+4="}]
    rows = [{"prompt": prompt, "answer": x, "level": 1} for x in ("so #### 7", "no number")]
    assert GRPOConfig(output_dir=str(folder), use_cpu=True, bf16=False).max_completion_length == 512
    batch = {"per_device_train_batch_size": 8, "num_generations": 4, "max_completion_length": 4, "max_steps": 2}
    config = GRPOConfig(output_dir=str(folder / "trl"), use_cpu=True, bf16=False, report_to="none", **batch)
    trainer = GRPOTrainer(str(TINY_LM), reward_funcs=correct, args=config, train_dataset=Dataset.from_list(rows))
    trainer.train()
    assert dict(seen) == {"so #### 7": 0.0, "no number": None}
    assert all(p.isfinite().all() for p in trainer.model.parameters())


def test_the_reward_for_verl_pays_what_it_pays_in_trl(folder):
    (done,) = run_recipe(VERL, folder)
    tried = json.loads(done.stdout)["tried"]
    assert tried == {"completions": 10, "same_score": 10, "scores": [0.0, 1.0]}
    (folder / "my.py").unlink()  # it needs no other file
    score = load_module(folder / "verl_reward.py", "recipe_verl_reward").compute_score
    assert [score("d", f"<answer>{x}</answer>", "7", extra_info={"index": 0}) for x in (7, 8)] == [1.0, 0.0]


def test_recipes_are_listed():
    anchors = [re.sub(r"[^\w\- ]", "", name.lower()).replace(" ", "-") for name in RECIPES]
    assert [anchor for anchor in anchors if f"(#{anchor})" not in HEAD] == []


def test_settings_of_the_quickstart_are_those_of_trl_and_of_ours():
    """The names of the first two columns; those of the third are looked up in verl by test_verl_docs.py."""
    from trl import GRPOConfig

    text = (ROOT / "references" / "verl_quickstart.md").read_text(encoding="utf-8")
    rows = [re.split(r" \| ", line.strip("| ")) for line in re.findall(r"^\| .*\|$", text, re.MULTILINE)]
    theirs, ours = ({n for row in rows[1:] for n in re.findall(r"`([\w.]+)`", row[i])} for i in range(2))
    assert theirs - {"environment_factory"} <= {field.name for field in dataclasses.fields(GRPOConfig)}
    assert ours <= {field.name for field in dataclasses.fields(load_script("verl_train").Config)} and len(ours) > 15
