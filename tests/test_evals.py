"""The evaluations of the skill: their form, and that assertions pass right answers and fail wrong and absent ones."""

import json
import re
import shlex
import shutil

import pytest
from conftest import ROOT, TINY_LM, edited, load_module, load_script, run_script, warm_grading

grade = load_module(ROOT / "evals" / "grade.py", "evals_grade")
grade.run = warm_grading(grade.run)
EVALS = json.loads((ROOT / "evals" / "evals.json").read_text(encoding="utf-8"))
QUERIES = json.loads((ROOT / "evals" / "trigger_queries.json").read_text(encoding="utf-8"))
CASES = {case["name"]: case for case in EVALS["evals"]}
# agentskills.io, Evaluating skills; name and set are ours
KEYS = {"id", "name", "set", "prompt", "expected_output", "files", "assertions"}


# ------------------------------------------------------------------------------------------------ form


def test_evals_have_the_form_of_the_guide():
    assert {*EVALS} == {"skill_name", "evals"} and EVALS["skill_name"] == "rl-training-code"
    for case in CASES.values():
        assert KEYS <= {*case} <= KEYS | {"makes"} and case["set"] in ("seen", "fresh"), case["name"]
        assert all(case[key] for key in KEYS - {"files"}), case["name"]
        for name in case["files"]:
            assert (ROOT / name).exists() and name.split("/")[-1].split(".")[0] in case["prompt"], (case["name"], name)
    assert [case["id"] for case in EVALS["evals"]] == [*range(1, len(CASES) + 1)]
    named = {name for case in CASES.values() for name in case["files"]}
    assert {f"evals/files/{p.name}" for p in (ROOT / "evals/files").iterdir() if p.name != "__pycache__"} <= named
    for text in [*(case["prompt"] for case in CASES.values()), *(row["query"] for row in QUERIES)]:
        assert not re.search(r"rl-training-code|SKILL\.md|scripts/", text), text


def test_every_assertion_can_be_checked():
    for case in CASES.values():
        for assertion in case["assertions"]:
            form = grade.FORMS.fullmatch(assertion)
            assert form, assertion
            for regex in filter(None, (form["match"], form["absent"], form["prints"])):
                re.compile(regex)
            words = shlex.split(form["what"]) if form["code"] or form["prints"] else []
            if words[1:2] == ["-c"]:
                compile(words[2], case["name"], "exec")
            scripts = [word.replace("$SKILL", str(ROOT)) for word in words if word.startswith("$SKILL")]
            assert all((ROOT / script).exists() for script in scripts)


def test_readme_has_the_tables_of_the_records():
    text, records = (ROOT / "evals" / "README.md").read_text(encoding="utf-8"), ROOT / "evals" / "records.jsonl"
    for since, before in (
        ("2026-11-30", "9"),
        ("2026-11-29", "2026-11-30"),
        ("2026-11-26", "2026-11-29"),
        ("2026-11-24T19", "2026-11-25"),
        ("2026-11-24T15", "2026-11-24T18"),
        ("", "2026-11-24T15"),
    ):
        assert grade.table(grade.load_records(records), since, before) in text


# ------------------------------------------------------------------------------------------------ right answers


def script(folder, name: str, *flags) -> None:
    """Run scripts/NAME.py in a folder of outputs."""
    done = run_script(name, *flags, cwd=folder)
    assert done.returncode == 0, done.stderr


SAYS = """def says(prompts, completions, answer, **kwargs):
    texts = [c if isinstance(c, str) else c[-1]["content"] for c in completions]
    return [float(gold in text) for text, gold in zip(texts, answer, strict=True)]
"""
CORRECT = """import re


def correct(prompts, completions, answer, **kwargs):
    found = [re.findall(r"#### *(-?[0-9][0-9,.]*)", c[-1]["content"]) for c in completions]
    said = [numbers[0].replace(",", "") if len(numbers) == 1 else None for numbers in found]
    gold = [text.split("####")[-1].strip().replace(",", "") for text in answer]
    return [float(a is not None and float(a.rstrip(".")) == float(g)) for a, g in zip(said, gold, strict=True)]
"""
VERL_REWARD = """def compute_score(data_source, solution_str, ground_truth, extra_info=None, **kwargs):
    last = solution_str.strip().split("\\n")[-1]
    return 1.0 if last == ground_truth else 0.2 if ground_truth in solution_str else 0.0
"""
LAUNCH = """python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo data.train_files=train.parquet \\
  data.val_files=test.parquet actor_rollout_ref.model.path=Qwen/Qwen2.5-7B-Instruct \\
  actor_rollout_ref.rollout.name=vllm actor_rollout_ref.rollout.n=8 \\
  actor_rollout_ref.actor.clip_ratio_low=0.2 actor_rollout_ref.actor.clip_ratio_high=0.28 \\
  reward.custom_reward_function.path=my_score.py reward.custom_reward_function.name=compute_score
"""
FLAT = """All completions of a group score the same (reward/std 0), so the advantages are 0; the loss says nothing.
1. Read completions in samples.jsonl. 2. Run the preflight on the reward: is the answer extracted? 3. Easier prompts.
"""
ANSWERS = {
    "gsm8k-reward": {"reward.py": CORRECT},
    "port-reward-to-verl": {"verl_reward.py": VERL_REWARD},
    "flat-run": {"answer.md": FLAT},
    "group-signal": {"answer.json": json.dumps({f"g{n}": 0.95**n + 0.05**n for n in (8, 16)})},
    "verl-launch": {"run.sh": LAUNCH},
    "is-rl-right": {"answer.md": "SFT on the chats. There is no checker, so RL has no reward. Then preference pairs."},
    "code-reward": {"answer.md": "No network, no files, bounded memory.\n"},
    "ppo-first-run": {"says.py": SAYS},
    "ppotrainer-missing": {"answer.md": "Removed from TRL, not renamed. Use scripts/ppo_train.py.\n"},
}


def fixed_grpo(folder) -> None:
    """old_grpo.py with today's names."""
    pairs = (
        ("def reward(completions, answer):", "def reward(completions, answer, **kwargs):"),
        ("        warmup_ratio=0.1,\n", "        warmup_steps=0.1,\n        use_cpu=True,\n        bf16=False,\n"),
        ("        max_prompt_length=256,\n", ""),
        ("per_device_train_batch_size=4", "per_device_train_batch_size=8"),
        ('"torch_dtype"', '"dtype"'),
        ("tokenizer=Auto", "processing_class=Auto"),
        ('split="train"),', 'split="train").filter(lambda row: len(row["prompt"]) < 256),'),
    )
    (folder / "fixed.py").write_text(edited((folder / "old_grpo.py").read_text(), pairs))


def median_trainer(folder) -> None:
    """A copy of the trainer with one estimator more."""
    text = (ROOT / "scripts" / "ppo_train.py").read_text(encoding="utf-8")
    function = '''def median_advantages(scores, groups, **_):
    """R - median of the group."""
    return scores - torch_median(scores, groups)


def torch_median(scores, groups):
    """The median of each row's group."""
    import torch

    return torch.stack([torch.quantile(scores[groups == g].float(), 0.5) for g in groups]).to(scores)


ADVANTAGES = {
    "median": median_advantages,
'''
    assert text.count("ADVANTAGES = {\n") == 1
    (folder / "my_trainer.py").write_text(text.replace("ADVANTAGES = {\n", function))
    (folder / "my_reward.py").write_text(SAYS)


def sandbox_verdicts(folder) -> None:
    sandbox = load_script("sandbox")
    rows = [json.loads(line) for line in (folder / "programs.jsonl").read_text().splitlines()]
    found = {row["id"]: sandbox.run_code(row["code"], row["tests"], timeout_s=1.0).all_passed for row in rows}
    (folder / "verdicts.json").write_text(json.dumps(found))


def merged_adapter(folder) -> None:
    """The steps of references/deployment.md."""
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer

    base = AutoModelForCausalLM.from_pretrained(folder / "tiny_lm", dtype=torch.float32)
    PeftModel.from_pretrained(base, folder / "adapter").merge_and_unload().to(torch.bfloat16).save_pretrained(
        folder / "merged"
    )
    AutoTokenizer.from_pretrained(folder / "tiny_lm").save_pretrained(folder / "merged")


def two_accuracies(folder) -> None:
    """The figures of evaluation.py's paired test."""
    for column in ("before", "after"):
        script(
            *(folder, "evaluation", "--task=math", "--data=answers.jsonl", f"--completion_column={column}"),
            f"--output_dir={column}",
        )
    script(folder, "evaluation", "--compare", "before/results.json", "after/results.json", "--output_dir=compared")
    found = json.loads((folder / "compared" / "comparison.json").read_text())["tasks"]["math"]["verified"]
    answer = {"accuracy_before": found["before"], "accuracy_after": found["after"], "p_value": found["p"]}
    (folder / "answer.json").write_text(json.dumps(answer))


def own_script(folder, name: str, *pairs, file: str = "", **result) -> None:
    """A one-page trainer for answers of a few tokens; that it learns is tested elsewhere."""
    page = (ROOT / "templates" / f"{name}.py").read_text(encoding="utf-8")
    page = edited(page, [("max_new_tokens: int = 256", "max_new_tokens: int = 32"), *pairs])
    (folder / (file or f"my_{name}.py")).write_text(page)
    (folder / "result.json").write_text(json.dumps({"before": 0.43, "after": 0.99} | result))


def own_distillation(folder) -> None:
    """The teacher is the student with other weights, as making a good one takes two minutes."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    teacher = AutoModelForCausalLM.from_pretrained(TINY_LM)
    torch.manual_seed(0)
    for weight in teacher.parameters():
        weight.data += 0.02 * torch.randn_like(weight)
    for part in (teacher, AutoTokenizer.from_pretrained(TINY_LM)):
        part.save_pretrained(folder / "teacher")
    own_script(folder, "distillation", kl_before=0.7, kl_after=0.01)


SECOND = """from my_reward import reward


class Second:
    def reset(self, prompt, answer, **row):
        self.answer, self.tries, self.right = answer, 0, False

    def reply(self, text):
        self.tries += 1
        self.right = reward(None, text, self.answer) == 1
        return None if self.right or self.tries == 2 else "Wrong. Try again."

    def get_reward(self):
        return 1.0 / self.tries if self.right else 0.0
"""


def second_attempt(folder) -> None:
    """The page for several turns, with its environment as the default."""
    pair = ("    environment: str  #", '    environment: str = "second.py:Second"  #')
    own_script(folder, "multi_turn", pair, file="second_try.py", after=0.95)
    (folder / "second.py").write_text(SECOND)


MOVED = """python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo data.train_files=train.parquet \\
  actor_rollout_ref.model.path=Qwen/Qwen2.5-1.5B-Instruct data.train_batch_size=32 data.max_response_length=512 \\
  actor_rollout_ref.rollout.name=vllm actor_rollout_ref.rollout.n=8 actor_rollout_ref.rollout.temperature=0.9 \\
  actor_rollout_ref.actor.clip_ratio_low=0.2 actor_rollout_ref.actor.clip_ratio_high=0.28 \\
  actor_rollout_ref.actor.use_kl_loss=true actor_rollout_ref.actor.kl_loss_coef=0.02 \\
  reward.custom_reward_function.path=verl_reward.py reward.custom_reward_function.name=compute_score
"""


def moved_run(folder) -> None:
    """The recipe's two commands, and the command line."""
    source = "trl_run.py:REWARDS*REWARD_WEIGHTS"
    script(folder, "create_reward_template", "--from", source, "--for", "verl", "--output", "verl_reward.py")
    script(folder, "data_loader", "word_problems.jsonl", "--for", "verl", "--out", "train.parquet")
    (folder / "run.sh").write_text(MOVED)


def never_right(folder) -> None:
    """The warm start with solutions in the form that the reward pays."""
    rows = [json.loads(line) for line in (folder / "arithmetic_train.jsonl").read_text().splitlines()[:200]]
    lines = [json.dumps(row | {"completion": f"#### {row['answer']}"}) for row in rows]
    (folder / "solutions.jsonl").write_text("\n".join(lines) + "\n")
    data = ["--data=solutions.jsonl", "--eval_data=arithmetic_eval.jsonl", "--reward=hash_reward.py:reward"]
    sizes = ["--max_new_tokens=12", "--eval_prompts=32", "--eval_samples=8", "--pass_low=0.3", "--epochs=12"]
    script(folder, "warm_start", "--model=tiny_lm", *data, *sizes, "--output_dir=run")
    first, *_, last = json.loads((folder / "run" / "summary.json").read_text())["rounds"]
    shutil.copytree(folder / "run" / "final", folder / "warm")
    passes = round(first["pass_rate"] * first["samples"])
    (folder / "start.json").write_text(json.dumps({"samples": first["samples"], "passes": passes}))
    (folder / "result.json").write_text(json.dumps({"before": first["pass_rate"], "after": last["pass_rate"]}))
    (folder / "answer.md").write_text(
        "No sample passes, so every group scores 0 alike and has no advantage.\n"
        "python scripts/ppo_train.py --algorithm grpo --model warm --reward hash_reward.py:reward …\n"
    )


MADE = {
    "never-right": never_right,
    "own-ppo-script": lambda folder: own_script(folder, "ppo"),
    "own-grpo-script": lambda folder: own_script(
        folder, "grpo", ("clip_eps_high: float = 0.2 ", "clip_eps_high: float = 0.28 ")
    ),
    "own-distillation-script": own_distillation,
    "code-reward": lambda folder: script(
        *(folder, "create_reward_template", "--task=passes_tests", "--name=reward", "--output=code_reward.py")
    ),
    "second-attempt-trainer": second_attempt,
    "trl-run-to-verl": moved_run,
    "ppo-first-run": lambda folder: script(
        *(folder, "ppo_train", "--model=tiny_lm", "--data=sums.jsonl", "--reward=says.py:says", "--output_dir=run"),
        *("--steps=3", "--batch_size=16", "--max_new_tokens=8", "--eval_every=0", "--lr=1e-4"),
    ),
    "stale-trl-code": fixed_grpo,
    "csv-to-training-data": lambda folder: script(
        *(folder, "data_loader", "support.csv", "--map", "prompt=Question", "answer=Gold", "--drop", "Notes"),
        *("--for", "trl", "--out", "train.jsonl"),
    ),
    "is-the-gain-real": two_accuracies,
    "merge-lora": merged_adapter,
    "dockerfile": lambda folder: script(folder, "generate_dockerfile", "--style", "trl", "--output", "Dockerfile"),
    "new-algorithm": median_trainer,
    "untrusted-programs": sandbox_verdicts,
    "notebook": lambda folder: script(folder, "new_notebook", "--output", "idea.ipynb"),
}


SEEN = [name for name, case in CASES.items() if case["set"] == "seen"]  # the others: test_fresh_evals.py


@pytest.mark.long
@pytest.mark.parametrize("name", SEEN)
def test_reference_answers_pass(name, tmp_path):
    outputs = tmp_path / "outputs"
    grade.place_files(CASES[name], outputs)
    for file, text in ANSWERS.get(name, {}).items():
        (outputs / file).write_text(text)
    if name in MADE:
        MADE[name](outputs)
    graded = grade.grade(CASES[name], outputs)
    assert not [result for result in graded["assertion_results"] if not result["passed"]]


# ------------------------------------------------------------------------------------------------ wrong answers

SUBSTRING = """def correct(prompts, completions, answer, **kwargs):
    gold = [text.split("####")[-1].strip() for text in answer]
    return [float(g in c[-1]["content"]) for g, c in zip(gold, completions, strict=True)]
"""
UNPAIRED = {"accuracy_before": 0.6, "accuracy_after": 0.75, "p_value": 0.08}
WRONG = {
    "substring reward": ("gsm8k-reward", {"reward.py": SUBSTRING}, [0, 1, 2]),
    "forgotten partial credit": ("port-reward-to-verl", {"verl_reward.py": VERL_REWARD.replace("0.2 if", "0 if")}, [0]),
    "p^G alone": ("group-signal", {"answer.json": '{"g8": 0.6, "g16": 0.36}'}, [0]),
    "unpaired test": ("is-the-gain-real", {"answer.json": json.dumps(UNPAIRED)}, [1]),
    "key that verl ignores": (
        "verl-launch",
        {"run.sh": LAUNCH.replace(" reward.custom", " custom").replace("_low=0.2", "=0.2")},
        [1, 2, 3],
    ),
    "learning rate first": ("flat-run", {"answer.md": "Raise the learning rate first.\n"}, [0, 1, 2, 3]),
    "programs believed": (
        "untrusted-programs",
        {"verdicts.json": '{"double": true, "wrong": false, "hangs": false, "deletes": false, "cheats": true}'},
        [2],
    ),
    "a distillation that learnt nothing": (
        "own-distillation-script",
        {"result.json": '{"before": 0.43, "after": 0.44, "kl_before": 0.7, "kl_after": 0.69}'},
        [0, 1, 2, 3, 4, 5],
    ),
    "GRPO by TRL": (
        "own-grpo-script",
        {"my_grpo.py": "from trl import GRPOTrainer\n", "result.json": '{"before": 0.43, "after": 0.99}'},
        [1, 2, 3, 4],
    ),
    "programs run in the reward's own process": (
        "code-reward",
        {"code_reward.py": "import os\n\ndef reward(**kwargs):\n    os._exit(0)\n", "answer.md": "Safe.\n"},
        [0, 1, 2],
    ),
    "held-out prompts among the solutions, and GRPO for longer": (
        "never-right",
        {
            "start.json": '{"samples": 512, "passes": 0}',
            "result.json": '{"before": 0.0, "after": 0.0}',
            "solutions.jsonl": '{"prompt": "34+71=", "completion": "#### 105"}\n',
            "answer.md": "Train with GRPO for 600 steps in the place of 60.\n",
        },
        [1, 2, 3, 4],
    ),
    "RL because the boss said so": ("is-rl-right", {"answer.md": "Use GRPO with a length reward.\n"}, [0, 1, 2]),
}


@pytest.mark.long
@pytest.mark.parametrize("kind", WRONG)
def test_wrong_answers_fail(kind, tmp_path):
    name, files, failing = WRONG[kind]
    outputs = tmp_path / "outputs"
    grade.place_files(CASES[name], outputs)
    for file, text in files.items():
        (outputs / file).write_text(text)
    assertions = CASES[name]["assertions"][: failing[-1] + 1]
    assert [i for i, assertion in enumerate(assertions) if not grade.judge(assertion, outputs)[0]] == failing


@pytest.mark.parametrize("name", CASES)
def test_an_absent_answer_fails(name, tmp_path):
    grade.place_files(CASES[name], tmp_path / "outputs")
    cheap = [a for a in CASES[name]["assertions"] if not re.search(r"transformers import|\$SKILL", a)]
    failed = [a for a in cheap if not grade.judge(a, tmp_path / "outputs")[0]]
    assert failed == [a for a in cheap if "keep_me.txt" not in a]


# ------------------------------------------------------------------------------------------------ grade.py


def test_prepare_and_grade(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(grade, "load_evals", lambda: [CASES["group-signal"], CASES["flat-run"]])
    assert grade.main(["prepare", str(tmp_path / "w")]) == 0
    assert grade.main(["prepare", str(tmp_path / "w")]) == 2 and "expected a new name" in capsys.readouterr().err
    run = tmp_path / "w" / "eval-06-group-signal" / "with_skill"
    prompt = (run / "prompt.txt").read_text()
    assert prompt.startswith(CASES["group-signal"]["prompt"]) and "../record.json" in prompt
    record = {"calls": 3, "minutes": 1.5, "read": {"SKILL.md": 120, "references/x.md": 30}, "before_first": 140}
    (run / "record.json").write_text(json.dumps(record))
    (run / "outputs" / "notes.md").write_text("one\ntwo\n")
    (run / "outputs" / "answer.json").write_text(ANSWERS["group-signal"]["answer.json"])
    assert grade.main(["grade", str(tmp_path / "w")]) == 0
    summary = json.loads((tmp_path / "w" / "benchmark.json").read_text())["run_summary"]
    assert summary["with_skill"]["seen"]["mean"] == 0.5 and summary["without_skill"]["seen"]["mean"] == 0
    assert summary["delta"] == {"seen": 0.5}
    efforts = json.loads((tmp_path / "w" / "benchmark.json").read_text())["efforts"]["group-signal"]["with_skill"]
    known = {"pass_rate": 1.0, "calls": 3, "minutes": 1.5, "lines_read": 150, "lines_before_first_command": 140}
    assert efforts == known | {"lines_delivered": 2}
    graded = json.loads((run / "grading.json").read_text())
    assert graded["summary"] == {"passed": 1, "failed": 0, "total": 1, "pass_rate": 1.0}
    assert set(graded["assertion_results"][0]) == {"text", "passed", "evidence"}
    assert grade.main(["check", str(run / "outputs"), "--eval", "6"]) == 0
    assert grade.main(["check", str(run / "outputs"), "--eval", "5"]) == 1
    assert grade.main(["check", str(run / "outputs"), "--eval", "99"]) == 2
    (run / "record.json").write_text('{"calls": 3}')
    capsys.readouterr()
    assert grade.main(["grade", str(tmp_path / "w")]) == 2 and "without calls, minutes" in capsys.readouterr().err
    shutil.rmtree(run / "outputs")
    assert grade.main(["grade", str(tmp_path / "w")]) == 2
    passed, evidence = grade.judge('`python -c "import time; time.sleep(60)"` exits 0', tmp_path, 1)
    assert not passed and "timed out" in evidence


def test_prepare_makes_what_a_case_needs(tmp_path, monkeypatch, capsys):
    made = {**CASES["group-signal"], "makes": {"teacher": "tools/budget.py --help"}}
    monkeypatch.setattr(grade, "load_evals", lambda: [made])
    monkeypatch.setattr(grade, "make", lambda command, folder: (folder.mkdir(), (folder / "x").write_text(command)))
    assert grade.main(["prepare", str(tmp_path / "w")]) == 0
    for arm in grade.CONFIGURATIONS:
        made = tmp_path / "w" / "eval-06-group-signal" / arm / "outputs" / "teacher" / "x"
        assert made.read_text() == "tools/budget.py --help"
    monkeypatch.undo()
    with pytest.raises(ValueError, match="expected 0"):
        grade.make("tools/budget.py --no_such_flag", tmp_path / "teacher")
    scripts = [case["makes"].values() for case in CASES.values() if "makes" in case]
    assert all((ROOT / command.split()[0]).exists() for commands in scripts for command in commands)
