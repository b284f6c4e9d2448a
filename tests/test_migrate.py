"""scripts/migrate.py: old TRL scripts and verl jobs, edited in place so that the run stays the same.

What is expected is written by hand from the sources of the old versions; what exists today is asked of installed TRL.
"""

# tests/data/migrate_forms.jsonl: one form of a script, of a job or of a settings file a line; migrate_scripts.jsonl:
# whole scripts of tests/files/migrate, some by other authors. What holds of each:
#   file, from, text    the file's name, its version, and its text
#   code                the exit code
#   has, hasnt          texts of the new file
#   refused             texts of what the report says to have no equal today
#   said, unsaid        texts of the report, or of the error
#   why                 where it was misread, and the lines of the old packages that decide it

import ast
import dataclasses
import importlib
import inspect
import json
import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from conftest import ROOT, TINY_LM, load_script, read_lines, run_script
from datasets import Dataset

migrate = load_script("migrate")
FILES = ROOT / "tests" / "files" / "migrate"
PUBLIC = FILES / "public"
FORMS, SCRIPTS = (read_lines(ROOT / "tests" / "data" / f"migrate_{name}.jsonl") for name in ("forms", "scripts"))


def version_of(name: str) -> str:
    package = "verl" if name.startswith("verl") else "trl"
    return f"{package}==" + re.search(r"_(\d+[.]\d+)", name)[1]


def migrated(tmp_path, capsys, file, *flags: str) -> tuple[int, dict, str]:
    """(Exit code, the table, the new text)."""
    out = tmp_path / f"new{file.suffix}"
    out.unlink(missing_ok=True)
    code = migrate.main([str(file), "--out", str(out), "--json", *flags])
    said = capsys.readouterr()
    assert said.out, said.err
    return code, json.loads(said.out), out.read_text(encoding="utf-8")


def written(tmp_path, capsys, name: str, text: str, version: str) -> tuple[int, dict, str]:
    """The same for a file of a text."""
    (tmp_path / name).write_text(text)
    return migrated(tmp_path, capsys, tmp_path / name, "--from", version)


def missing(words: list[str], text: str) -> list[str]:
    """The words that a text has not."""
    return [word for word in words if word not in text]


def names_today(module: str, name: str) -> set[str]:
    """Names that a config or a trainer of installed TRL takes."""
    made = getattr(importlib.import_module(module), name)
    is_config = dataclasses.is_dataclass(made)
    return {f.name for f in dataclasses.fields(made)} if is_config else {*inspect.signature(made.__init__).parameters}


def check_names(text: str, said: str) -> None:
    """Every name of TRL, and every argument of its classes, is there today, or is said not to be."""
    tree, classes = ast.parse(text), {}
    for node in [
        n for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) and (n.module or "").split(".")[0] == "trl"
    ]:
        for alias in [alias for alias in node.names if alias.name not in said + "PPOConfig"]:
            assert hasattr(importlib.import_module(node.module), alias.name), (node.module, alias.name)
            if alias.name.endswith(("Config", "Trainer")):
                classes[alias.name] = node.module
    for call in [n for n in ast.walk(tree) if isinstance(n, ast.Call)]:
        name = re.sub("AsBefore\\d*$", "", ast.unparse(call.func))
        given = {keyword.arg for keyword in call.keywords if keyword.arg}
        if name in classes and name != "ModelConfig":
            unknown = {argument for argument in given - names_today(classes[name], name) if argument not in said}
            assert not unknown, (name, unknown)


ACTOR = "actor_rollout_ref.actor"


@pytest.mark.parametrize("case", SCRIPTS, ids=lambda case: case["file"])
def test_a_script_is_the_same_run_or_says_why_not(case, tmp_path, capsys):
    file = next(path for path in (FILES / case["file"], PUBLIC / case["file"]) if path.exists())
    before = file.read_bytes()
    code, table, text = migrated(tmp_path, capsys, file, "--from", version_of(file.name))
    assert code == (3 if table["not_expressible"] else 0) and file.read_bytes() == before
    entries = [x for x in table["not_expressible"] if not x["setting"].endswith("token-mean")]  # verl's loss before 0.8
    lost = " ".join(f"{x['setting']} {x['why']} {x['nearest']}" for x in entries)
    assert (3 if entries else 0) == case["code"], lost
    plain = "\n".join(line.partition("#")[0] for line in text.splitlines())
    has = case.get("has", [])
    shown = text if "#" in "".join(has) else plain  # a comment sets nothing
    assert missing(has, shown + "".join(shown.split())) == []  # also where lines break elsewhere
    assert missing(case.get("refused", []), lost) == []
    assert not [word for word in case.get("hasnt", []) if word in plain]
    if file.suffix == ".py" and "scripts/ppo_train.py --advantage" not in lost:
        check_names(text, lost)


def test_what_was_migrated_does_not_change_again(tmp_path, capsys):
    for file in [p for p in FILES.iterdir() if p.suffix in (".py", ".sh", ".yaml")]:
        out = tmp_path / f"new_{file.name}"
        migrate.main([str(file), "--from", version_of(file.name), "--out", str(out)])
        capsys.readouterr()
        code = migrate.main([str(out), "--from", version_of(file.name)])
        is_as_it_was = out.read_bytes() == file.read_bytes()
        assert is_as_it_was or ("was migrated before" in capsys.readouterr().out and code == 0), file.name


@pytest.mark.parametrize("case", FORMS)
def test_one_form(case, tmp_path, capsys):
    old, new = tmp_path / case["file"], tmp_path / f"new_{case['file']}"
    old.write_text(case["text"])
    kind = "SFTConfig" if "dataset_text_field" in case["text"] else "GRPOConfig"
    flags = ["--config_class", kind] if old.suffix == ".yaml" else []
    code = migrate.main([str(old), "--from", case["from"], *flags, "--out", str(new), "--json"])
    out, err = capsys.readouterr()
    assert code == case["code"], out + err
    text = new.read_text() if new.exists() else ""
    table = json.loads(out) if new.exists() else {"not_expressible": []}
    report, refused = json.dumps(table) + out + err, table["not_expressible"]
    assert missing(case.get("has", []), text) == [], text
    assert missing(case.get("refused", []), json.dumps(refused)) == []
    assert old.suffix == ".py" or len(refused) == len({x["setting"] for x in refused}), refused
    assert missing(case.get("said", []), report) == []
    assert not [word for word in case.get("hasnt", []) if word in text], text
    assert not [word for word in case.get("unsaid", []) if word in report]
    if old.suffix == ".py":
        compile(text, "new.py", "exec")


@pytest.mark.parametrize("case", [case for case in FORMS if "AsBefore" in "".join(case.get("has", []))])
def test_lines_of_dos_stay(case, tmp_path, capsys):
    news = []
    for newline in ("\n", "\r\n"):
        (tmp_path / "old.py").write_text(case["text"], newline=newline)
        migrated(tmp_path, capsys, tmp_path / "old.py", "--from", case["from"])
        news.append((tmp_path / "new.py").read_bytes().decode())
    assert news[1] == news[0].replace("\n", "\r\n")


@pytest.mark.parametrize(
    ("version", "mode", "rows"),
    [
        # max_length 6, max_prompt_length 2: a row of 6 stays, a longer prompt is cut, then answers to 6 - 2
        ("0.11", "keep_end", [([1, 2, 3], [4], [5, 6, 7]), ([3, 4], [5], [6, 7, 8, 9]), ([2, 3], [4], [5, 6, 7, 8])]),
        ("0.11", "keep_start", [([1, 2, 3], [4], [5, 6, 7]), ([1, 2], [5], [6, 7, 8, 9]), ([1, 2], [4], [5, 6, 7, 8])]),
        ("0.20", "keep_end", [([2, 3], [4], [5, 6, 7]), ([3, 4], [5], [6, 7, 8, 9]), ([2, 3], [4], [5, 6, 7, 8, 9])]),
    ],
)
def test_rows_of_dpo_are_cut_as_by_the_old_version(version, mode, rows, tmp_path, capsys):
    """Written by hand from _truncate_tokens of 0.11.4 and tokenize_row of 0.20.0."""
    settings = f"'o', max_length=6, max_prompt_length=2, truncation_mode='{mode}'"
    text = f"from trl import DPOConfig, DPOTrainer\nDPOTrainer(m, args=DPOConfig({settings}))\n"
    _, _, new = written(tmp_path, capsys, "old.py", text, f"trl=={version}")
    keys = ("prompt_ids", "chosen_ids", "rejected_ids")
    whole = [([1, 2, 3], [4], [5, 6, 7]), ([1, 2, 3, 4], [5], [6, 7, 8, 9]), ([1, 2, 3], [4], [5, 6, 7, 8, 9])]

    class DPOTrainer:
        def _prepare_dataset(self, rows, tokenizer, args):
            assert args.max_length is None  # TRL leaves out rows whose prompt is longer
            return Dataset.from_list([dict(zip(keys, row, strict=True)) for row in rows])

    (definition,) = [node for node in ast.parse(new).body if isinstance(node, ast.ClassDef)]
    names, args = {"DPOTrainer": DPOTrainer}, SimpleNamespace(max_length=6)
    exec(ast.unparse(definition), names)
    cut = names[definition.name]()._prepare_dataset(whole, None, args)
    assert [tuple(row[key] for key in keys) for row in cut] == rows and args.max_length == 6


def test_rewards_take_what_the_trainer_passes(tmp_path, capsys):
    """Once, where two trainers have one reward; one of another file is named."""
    text = (FILES / "grpo_0.15_countdown.py").read_text()
    text = f"from mine import score\n{text}rewards = [score]\n{text[text.index('trainer = ') :]}"
    text = text.replace("reward_funcs=[", "reward_funcs=[score, ", 1)
    _, table, new = written(tmp_path, capsys, "old.py", text, "trl==0.15")
    assert new.count("**kwargs") == 2 and "score is imported from mine" in "".join(table["notes"])
    assert "def format_reward(completions, answer, **kwargs):" in new
    assert "def length_reward(prompts, completions, **kwargs):" in new


GRPO = "from trl import GRPOConfig, GRPOTrainer\n"
UNSEEN = GRPO + 'cfg = load(open("cfg.yaml"))\nGRPOTrainer("m", print, args=GRPOConfig(**cfg))\n'
PPO = "from trl import PPOConfig, PPOTrainer\nPPOTrainer(PPOConfig(model_name='gpt2-imdb'), m, None, t)\n"
CLEAR_LINES = [
    (GRPO, "trl==0.1", 2, r"got --from trl==0.9 and .* there since 0.14"),
    (GRPO, "torch==2", 2, r"got --from 'torch==2'; expected trl==VERSION"),
    (GRPO + "x = (", None, 2, r"old.py, line 2: got '\(' was never closed; expected Python"),
    (GRPO + "args = GRPOConfig('o', seed=1, seed=2)\n", "trl==0.17", 2,
     r"repeated: seed \(.*old.py, line \d+\).*expected Python.*try"),
    ("import torch\n", None, 2, "which imports nothing from TRL.*try a verl job as a file .sh"),
    (GRPO + "GRPOConfig(loss_type='grpo')\n", "trl==0.14", 2, "which TRL|there since 0.17"),
    (GRPO + "GRPOConfig(beta=0.1, num_iterations=2, vllm_device='x')\n", None, 0, "trl 0.16 to 0.17 fit"),
    (UNSEEN, "trl==0.14", 3, r"\*\*cfg: made at run time.*migrate.py FILE.yaml --config_class GRPOConfig"),
    ("from trl.rewards import accuracy_reward\n", "trl==1.2", 0, "needs no change"),
    # older than the tables
    ("# pip install trl==0.7.4\n" + PPO, None, 3, r"note: read as trl 0.9, with which"),
    # a module of TRL has a name as long as TRL itself
    ("from trl.trainer.ppov2_trainer import PPOv2Config, PPOv2Trainer\nPPOv2Trainer(PPOv2Config('o'), t)\n", None, 3,
     "trl 0.11 to 0.12 fit by the names used, and make the same run|trl 0.9 to 0.12 fit"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "version", "code", "said"), CLEAR_LINES)
def test_one_clear_line(text, version, code, said, tmp_path, capsys):
    (tmp_path / "old.py").write_text(text)
    out = [f"--out={tmp_path}/new.py"] if code == 2 else []
    assert migrate.main([str(tmp_path / "old.py"), *out, *([f"--from={version}"] if version else [])]) == code
    captured = capsys.readouterr()
    assert re.search(said, captured.out + captured.err) and not (tmp_path / "new.py").exists()


def test_the_version_is_found_by_a_pin_or_by_names(tmp_path, capsys):
    (tmp_path / "old.py").write_text("# pip install trl==0.14.0\n" + (FILES / "grpo_0.14_tldr.py").read_text())
    _, table, text = migrated(tmp_path, capsys, tmp_path / "old.py")
    assert (table["version"], table["found"]) == ("0.14", "pinned in old.py: trl==0.14")
    assert "trl==1.16" in text
    assert migrate.main([str(FILES / "trl_0.14_recipe.yaml")]) == 2
    assert re.search("without a setting of verl; .* try --from trl==", capsys.readouterr().err)
    assert migrate.main([str(FILES / "grpo_0.14_tldr.py")]) == 2
    assert re.search(r"trl 0.14 to 1.16 fit.*\n.*loss_type: .*0.14-0.15: \"grpo\"", capsys.readouterr().err, re.S)


@pytest.mark.parametrize("order", [1, -1])
def test_a_section_that_a_setting_refers_to_moves_to_its_place(tmp_path, order):
    reference = "  reward_kwargs:\n    overlong_buffer_cfg: ${reward_model.overlong_buffer}\n"
    parts = [reference, "  overlong_buffer: {enable: True, len: 4}\n"][::order]
    (tmp_path / "old.yaml").write_text("".join(["reward_model:\n  reward_manager: dapo\n", *parts]))
    migrate.main([str(tmp_path / "old.yaml"), "--from=verl==0.5", f"--out={tmp_path}/new.yaml"])
    new = yaml.safe_load((tmp_path / "new.yaml").read_text())
    assert new["reward"]["reward_kwargs"]["overlong_buffer_cfg"] == {"enable": True, "len": 4}


def test_a_notebook_keeps_its_magics(tmp_path, capsys):
    """Only lines of code change: outputs, metadata, magics, shell and help stay; a second time nothing changes."""
    script = (FILES / "grpo_0.14_tldr.py").read_text()
    cells = ["%%capture\n!pip install trl==0.14.0 \\\n  peft\nif x:\n  !ls \\\na\n  !ls"]
    cells.append("%cd /content\nrows = !ls\nn = %time 1 + 1\nn?\n?print")
    cells += [script + "print('%d'\n      % 3)", "%%bash\necho $HOME"]
    output = {"output_type": "stream", "name": "stdout", "text": ["é\n"]}
    cell = {"cell_type": "code", "metadata": {"id": "a"}, "outputs": [output], "execution_count": 1}
    notebook = {"cells": [cell | {"source": c.splitlines(keepends=True)} for c in cells], "nbformat": 4}
    (tmp_path / "old.ipynb").write_text(json.dumps(notebook, indent=1, ensure_ascii=False), encoding="utf-8")
    code, table, text = migrated(tmp_path, capsys, tmp_path / "old.ipynb")
    changed = {row["line"].split(",")[0] for row in table["changes"]}
    assert (code, changed, table["found"]) == (0, {"cell 1", "cell 3"}, "pinned in old.ipynb: trl==0.14")
    new = json.loads(text)["cells"]
    assert [c | {"source": 0} for c in new] == [c | {"source": 0} for c in notebook["cells"]] and "é" in text
    sources = ["".join(c["source"]) for c in new]
    assert re.match(r"%%capture\n# Migrated .*\n!pip install trl==1.16.\* \\\n  peft\nif x:\n  !ls", sources[0])
    assert sources[1::2] == cells[1::2] and "per_device_train_batch_size=8" in sources[2]
    assert migrate.main([str(tmp_path / "new.ipynb")]) == 0 and "was migrated before" in capsys.readouterr().out


@pytest.mark.long
@pytest.mark.parametrize("name", "grpo_0.14_gsm8k sft_0.13_formatting dpo_0.11_arguments".split())
def test_the_new_script_trains_one_step(name, tmp_path, capsys, monkeypatch):
    """GRPO's in a process of its own, as users have it; the others in forks of one that has TRL loaded."""

    def forked(command, folder, environment) -> str:
        done = run_script(Path(command[1]), *command[2:], cwd=folder, env=migrate.QUIET)
        return done.stderr if done.returncode else ""

    if not name.startswith("grpo"):
        monkeypatch.setattr(migrate, "failure_of", forked)
    shutil.copy(FILES / f"{name}.py", tmp_path)
    data = FILES / ("rows.jsonl" if name.startswith(("grpo", "dpo")) else "texts.jsonl")
    flags = ["--from", version_of(name), "--check", "--model", str(TINY_LM), "--data", str(data), "--json"]
    code = migrate.main([str(tmp_path / f"{name}.py"), *flags])
    said = capsys.readouterr()
    assert code == 0, said.err
    trial = json.loads(said.out)["trial"]
    read = {row["setting"]: row["read"] for row in trial["settings"]}
    assert trial["loss"] == trial["loss"] and read["gradient_checkpointing"] is False


TRAIN = "python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo "
PER_GPU = f"{ACTOR}.ppo_micro_batch_size_per_gpu"


def test_each_command_of_a_job_has_its_own_settings(tmp_path, capsys):
    """Of verl 0.3: the KL was in the reward unless a KL loss was used, which one command and one branch do."""
    loss, two = f"{ACTOR}.use_kl_loss=True", TRAIN.replace("grpo", "gae")
    job = f"{TRAIN}{loss} data.seed=7 {PER_GPU}=1\n{two}{PER_GPU}=1 critic.{PER_GPU[24:]}=1\n"
    code, _, text = written(tmp_path, capsys, "old.sh", job, "verl==0.3")
    first, second = text.split("adv_estimator=grpo")[:2]
    assert code == 0 and "use_kl_in_reward" not in first and "data.seed=1" not in first
    assert "algorithm.use_kl_in_reward=True" in second and "data.seed=1" in second
    branch = f'if [ "$A" ]; then\n  EXTRA="{loss} data.seed=7"\nfi\n{TRAIN}{PER_GPU}=1 $EXTRA\n'
    code, table, text = written(tmp_path, capsys, "old.sh", branch, "verl==0.3")
    (refused,) = table["not_expressible"]
    assert code == 3 and "set in a branch" in refused["setting"] and refused["line"] == "line 2"
    assert "data.seed=1 " in text and 'data.seed=7"' in text and "use_kl_in_reward" not in text
    words = [f"{ACTOR}.grad_clip=0.5 {ACTOR}.clip_ratio=0.1", f"{ACTOR}.grad_clip=2.0"]
    both = branch.replace(f"{loss} data.seed=7", f'{words[0]}"; else E="{words[1]}')
    code, table, text = written(tmp_path, capsys, "old.sh", both, "verl==0.3")
    assert "optim.clip_grad=0.5" in text and "optim.clip_grad=2.0" in text  # each its own value
    assert code == 3 and "clip_ratio_high there" in json.dumps(table["not_expressible"])
    # one call of a function is not all of them
    call = f"run {ACTOR}.entropy_coeff=0 \\\n  data.seed=7"
    job = f'run() {{\n  {TRAIN}{PER_GPU}=1 "$@"\n}}\nrun\n{call}\n'
    code, _, text = written(tmp_path, capsys, "old.sh", job, "verl==0.3")
    assert code == 0 and "entropy_coeff=0.001" in text and "data.seed=1 " in text and call in text


def test_pins_change_where_packages_are_installed(tmp_path, capsys):
    text = "# pip install trl==0.17.0 my-trl==0.17 'transformers>=4.48,<4.50' vllm==0.7.2\n# seen with trl==0.17.0\n"
    text += "# /// script\n# dependencies = ['trl~=0.17']\n# ///\n" + GRPO
    _, table, new = written(tmp_path, capsys, "old.py", text, "trl==0.17")
    assert "# pip install trl==1.16.* my-trl==0.17 'transformers==5.23.*' vllm==0.7.2\n# seen with trl==0.17.0\n" in new
    assert "['trl==1.16.*']" in new and any("vllm==0.7.2" in note for note in table["notes"])
    ray = """ray job submit --runtime-env-json '{"pip": ["verl==0.8.0"]}' -- """
    job = f"pip install verl==0.8.0 'torch<2.7'\n{ray}{TRAIN}{PER_GPU}=1\n"
    _, table, new = written(tmp_path, capsys, "old.sh", job, "verl==0.8")
    assert "pip install verl==0.9.* 'torch<2.7'" in new and '"pip": ["verl==0.9.*"]' in new
    assert any("torch<2.7" in note for note in table["notes"])


def test_quotes_stay(tmp_path, capsys):
    """Around several settings, inside a word ('a'b'c'); an apostrophe in a text behind << opens nothing."""
    text = "A=\"critic.grad_clip=1 data.truncation='error' data.seed=$S\"  # don't data.truncation=error\n"
    text += f'{TRAIN}$A {PER_GPU}=1 "+reward_model.reward_kwargs.x={{a: 1, b: 2}}"\n'
    _, _, new = written(tmp_path, capsys, "old.sh", text, "verl==0.8")
    expected = 'A="critic.optim.clip_grad=1 data.seed=$S"  # don\'t data.truncation=error\n'
    expected += f'{TRAIN}$A {PER_GPU}=1 "+reward.reward_kwargs.x={{a: 1, b: 2}}"\n'
    assert new.split("\n", 1)[1] == expected
    head = "V='['a.parquet', 'b.parquet']'\ncat > x.py << EOF\n# don't\nEOF\n"
    engine = "+actor_rollout_ref.rollout.engine_kwargs.vllm.a=True"
    text = f"{head}{TRAIN}{PER_GPU}=1 {ACTOR}.checkpoint.contents=['model', 'extra'] {engine}\n"
    _, table, new = written(tmp_path, capsys, "old.sh", text, "verl==0.3")
    assert f" {ACTOR}.checkpoint.save_contents=['model', 'extra'] {engine}\n" in new and head in new
    assert not any("engine_kwargs" in row["setting"] for row in table["changes"])  # it stays as it is


ONE_ROW = "actor_rollout_ref:\n  rollout:\n    name: vllm\n  actor:\n    ppo_micro_batch_size_per_gpu: 1\n"
BRACES = "data: {max_prompt_length: 9, truncation: error}\n" + ONE_ROW
NEW_ACTOR = {"ppo_micro_batch_size_per_gpu": 1, "optim": {"clip_grad": 0.5}}
OPTIM = "    optim: {warmup_style: cosine,\n      lr: 1.0}\n    grad_clip: 0.5\n"
JOBS = [  # (job of verl 0.5, a section of the new one, its settings, what is said)
    # names that other values use are no settings
    ("size: 1\nrows: &rows 1\nother: 2\nactor_rollout_ref:\n  actor:\n    ppo_micro_batch_size_per_gpu: *rows\n"
     "  rollout:\n    n: ${size}\nalgorithm: {adv_estimator: grpo}\n", "other", 2, '"setting": "other"'),
    # in braces, and without a last line's end
    (BRACES + "    grad_clip: 0.5", "actor_rollout_ref.actor", NEW_ACTOR, ""),
    # a section in braces moves as a whole
    ("reward_model: {reward_manager: naive}\n" + ONE_ROW + OPTIM, "reward", {"reward_manager": {"name": "naive"}},
     '"line": "line 1", "setting": "reward.reward_manager.name=naive"'),
    (ONE_ROW + OPTIM, "actor_rollout_ref.actor.optim",
     {"lr_scheduler_type": "cosine", "lr": 1.0, "clip_grad": 0.5}, ""),
    ("reward_model:\n  sandbox_fusion: {url: x, max_concurrent: 3}\n" + ONE_ROW, "reward.sandbox_fusion",
     {"url": "x", "max_concurrent": 3}, '"line": "line 2", "setting": "reward.sandbox_fusion.max_concurrent=3"'),
]  # fmt: skip


@pytest.mark.parametrize(("text", "section", "settings", "said"), JOBS)
def test_a_job_in_yaml_keeps_its_sections_and_comments(text, section, settings, said, tmp_path, capsys):
    _, table, new = written(tmp_path, capsys, "old.yaml", text, "verl==0.5")
    tree = yaml.safe_load(new)
    for name in section.split("."):
        tree = tree[name]
    assert tree == settings and not {"reward_model", "custom_reward_function"} & {*yaml.safe_load(new)}
    assert said in json.dumps(table) and '"setting": "rows' not in json.dumps(table)
    assert re.findall("#.*", text) == re.findall("#.*", new.partition("\n")[2])
