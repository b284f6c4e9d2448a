"""Each script works alone: copied into an empty folder, it does there what its name says, without its neighbours."""

import shutil

import pytest
from conftest import EVAL_DATA, ROOT, SCRIPTS, TINY_LM, TRAIN_DATA, read_lines, run_script, write_lines

REWARD = """
def right(prompts, completions, answer, **kwargs):
    return [float(f"<answer>{a}</answer>" in str(c)) for c, a in zip(completions, answer, strict=True)]
"""
WITHOUT_TORCH = (
    *("create_reward_template", "data_loader", "diagnose", "generate_dockerfile", "math_grader", "report"),
    *("reward_preflight", "sandbox", "verl_train"),
)
READ_DATA = {"evaluation", "grpo_train", "on_policy_distillation", "ppo_train", "reward_preflight", "verl_train"}
READ_DATA |= {"warm_start"}  # their warnings about data come from data_loader.py
COMMANDS = {  # script: (flags, what it says or the file that it leaves)
    "create_reward_template": (["--task=qa", "--output=reward.py"], "reward.py"),
    "data_loader": (["{rows}", "--out=clean.jsonl"], "clean.jsonl"),
    "diagnose": ([str(ROOT / "tests" / "data" / "diagnose" / "ppo_cold")], "ppo_cold"),
    "evaluation": (
        ["--model={model}", "--task=generation", "--data={rows}", "--max_new_tokens=2", "--output_dir=out"],
        "out",
    ),
    "generate_dockerfile": (["--style=trl", "--output=Dockerfile"], "Dockerfile"),
    "grpo_train": (["--model={model}", "--data={rows}", "--reward={reward}", "--dry_run"], "memory_estimate"),
    "math_grader": (["so it is \\boxed{{\\frac{{1}}{{2}}}}", "0.5"], '"score": 1.0'),
    "migrate": (["--help"], "usage: migrate.py"),
    "merge_adapter": (["--help"], "Merge a LoRA adapter"),
    "on_policy_distillation": (["--model={model}", "--teacher={model}", "--data={rows}", "--dry_run"], "teacher (GiB)"),
    "prove": (["--help"], "Verify a run"),
    "ppo_train": (["--model={model}", "--data={rows}", "--reward={reward}", "--dry_run"], "memory_estimate"),
    "report": ([str(ROOT / "tests" / "data" / "diagnose" / "ppo_cold"), "--output=page.html"], "page.html"),
    "reward_preflight": (["--reward={reward}", "--data={rows}", "--json"], '"ready"'),
    "sandbox": (["--code={program}", "--tests={tests}"], "passed"),
    "selfcheck": ([str(SCRIPTS / "ppo_train.py"), "--model={model}", "--data={rows}", "--max_new_tokens=4"], "0 FAIL"),
    "verl_train": (
        ["--model={model}", "--data={rows}", "--reward={reward}", "--batch_size=4", "--output_dir=out", "--print"],
        "verl.trainer",
    ),
    "warm_start": (
        ["--model={model}", "--self", "--data={rows}", "--reward={reward}", f"--eval_data={EVAL_DATA}", "--dry_run"],
        "memory_estimate",
    ),
}
NEED_THE_BUNDLE = {  # {script: (its command line, the file of the bundle that it fills in)}
    "new_notebook": (["--output=idea.ipynb"], "notebook_template.ipynb"),
    "new_trainer": (["ppo", "mine.py"], "templates/ppo.py"),
}


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    """Rows, a reward, a program and its tests, in a folder of their own."""
    folder = tmp_path_factory.mktemp("inputs")
    write_lines(folder / "rows.jsonl", read_lines(TRAIN_DATA)[:8])
    (folder / "reward.py").write_text(REWARD)
    (folder / "program.py").write_text("def double(x):\n    return 2 * x\n")
    (folder / "tests.py").write_text("assert double(3) == 6\n")
    return {
        **{"model": TINY_LM, "rows": folder / "rows.jsonl"},
        **{"reward": f"{folder / 'reward.py'}:right", "program": folder / "program.py", "tests": folder / "tests.py"},
    }


def test_every_script_is_copied():
    assert {path.stem for path in SCRIPTS.glob("*.py")} == COMMANDS.keys() | NEED_THE_BUNDLE.keys()


@pytest.mark.long
@pytest.mark.parametrize("name", COMMANDS)
def test_a_copy_works_alone(name, inputs, tmp_path):
    flags, expected = COMMANDS[name]
    (tmp_path / "data_loader.py").write_text("raise SystemExit('somebody else wrote this')\n")
    copy = shutil.copy(SCRIPTS / f"{name}.py", tmp_path)
    done = run_script(tmp_path / copy, *(f.format(**inputs) for f in flags), cwd=tmp_path, fresh=name in WITHOUT_TORCH)
    assert done.returncode == (name in ("diagnose", "reward_preflight")), done.stderr  # a finding is exit code 1
    assert (tmp_path / expected).exists() or expected in done.stdout
    assert "Traceback" not in done.stderr
    assert done.stderr.count("FILE --validate") == (name in READ_DATA), done.stderr


@pytest.mark.parametrize("name", NEED_THE_BUNDLE)
def test_a_copy_that_needs_the_bundle_says_so(name, inputs, tmp_path):
    shutil.copy(SCRIPTS / f"{name}.py", tmp_path)
    flags, missing = NEED_THE_BUNDLE[name]
    done = run_script(tmp_path / f"{name}.py", *flags, cwd=tmp_path, fresh=True)
    assert done.returncode == 2 and missing in done.stderr and "Traceback" not in done.stderr
