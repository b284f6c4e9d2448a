"""What the documents say holds: links, commands, code blocks, metric and setting lists, the skill's header."""

import ast
import dataclasses
import json
import re
import shlex
import shutil
import subprocess
import sys

import pytest
import yaml
from conftest import ROOT, load_script, run_script, script_env

MARKDOWN = sorted(ROOT.glob("*.md")) + sorted((ROOT / "references").glob("*.md"))
CONFIG = ROOT / "assets" / "training_config.yaml"
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def blocks(path, *languages: str) -> list[str]:
    """Fenced code blocks of a document in these languages."""
    return [text for language, text in BLOCK.findall(path.read_text(encoding="utf-8")) if language in languages]


def commands(path) -> list[str]:
    """Shell commands of a document, continued lines joined, comments dropped; those in its tables too."""
    lines = "".join(blocks(path, "bash", "sh")).replace("\\\n", " ").splitlines()
    lines += re.findall(r"`((?:python|make|torchrun) [^`…]+)`", BLOCK.sub("", path.read_text(encoding="utf-8")))
    return [line.split(" #")[0].strip() for line in lines if line.split("#")[0].strip()]


COMMANDS = [(path, command) for path in MARKDOWN for command in commands(path)]


# ------------------------------------------------------------------------------------------------ every document


def heading_anchors(text: str) -> set[str]:
    """Anchors of the headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", BLOCK.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("path", MARKDOWN, ids=lambda path: path.name)
def test_relative_links_exist(path):
    text = path.read_text(encoding="utf-8")
    for link in re.findall(r"\]\(([^)\s]+)\)", BLOCK.sub("", text)):
        if re.match(r"[a-z]+:", link):
            continue
        file, _, anchor = link.partition("#")
        target = path.parent / file if file else path
        assert target.exists(), link
        assert not anchor or anchor in heading_anchors(target.read_text(encoding="utf-8")), link


@pytest.mark.parametrize("path", MARKDOWN, ids=lambda path: path.name)
def test_code_blocks_parse(path):
    for code in blocks(path, "python"):
        ast.parse(code)
    for rows in blocks(path, "json"):
        assert all(json.loads(line) for line in rows.splitlines())


def test_documents_have_commands():
    assert len(COMMANDS) > 15


@pytest.mark.parametrize(("path", "command"), COMMANDS, ids=[f"{path.name}: {c[:60]}" for path, c in COMMANDS])
def test_command_is_one_that_exists(path, command):
    words = shlex.split(command)
    if words[0] == "make":
        targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        assert all(word in targets for word in words[1:] if "=" not in word)
    elif "scripts/ppo_train.py" in words or "scripts/selfcheck.py" in words:
        at = next(i for i, word in enumerate(words) if word.startswith("scripts/"))
        flags = [word for word in words[at + 1 :] if word not in ("--json", "--help")]
        if words[at] == "scripts/selfcheck.py":
            assert (ROOT / flags.pop(0)).exists()
        flags = flags[: flags.index("+")] if "+" in flags else flags  # "… + the run's flags"
        load_script("ppo_train").parse_config(flags)
    elif words[0] in ("python", "torchrun"):
        assert (ROOT / words[1]).exists()
    else:
        assert words[0] in (".", "git")


# ------------------------------------------------------------------------------------------------ README


@pytest.fixture(scope="module")
def readme_files(tmp_path_factory):
    """The files that README.md shows, as a user would write them."""
    folder = tmp_path_factory.mktemp("readme")
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for name, content in re.findall(r"This is `(my_[\w.]+)`:\n\n```\w+\n(.*?)```", text, re.DOTALL):
        (folder / name).write_text(content)
    assert {path.name for path in folder.iterdir()} == {"my_prompts.jsonl", "my_rewards.py"}
    return folder


def test_readme_commands_for_your_own_data_run(readme_files):
    own = [c for c in commands(ROOT / "README.md") if "my_prompts.jsonl" in c and "--model" not in c]
    assert [c.split()[1] for c in own] == ["scripts/ppo_train.py", "scripts/selfcheck.py", "scripts/ppo_train.py"]
    for command in own:
        words = [str(ROOT / word) if word.startswith("scripts/") else word for word in shlex.split(command)]
        done = subprocess.run(
            [sys.executable, *words[1:]],
            cwd=readme_files,
            env=script_env(),
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in (readme_files / "runs/mine/metrics.jsonl").read_text().splitlines()]
    assert rows[-1]["step"] == 5 and {"reward/says", "reward/brief", "eval/accuracy"} <= set(rows[-1])


# ------------------------------------------------------------------------------------------------ SKILL.md


def test_skill_header_is_valid(tmp_path):
    header = yaml.safe_load((ROOT / "SKILL.md").read_text(encoding="utf-8").split("---\n")[1])
    assert set(header) <= {"name", "description", "license", "compatibility", "metadata", "allowed-tools"}
    assert header["name"] == "rl-training-code" and len(header["description"]) <= 1024
    assert not set("<>") & set(header["description"])
    folder = tmp_path / "rl-training-code"  # the checker wants the folder to have the skill's name
    folder.mkdir()
    shutil.copy(ROOT / "SKILL.md", folder)
    code = "from skills_ref.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", code, "validate", str(folder)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_skill_is_short():
    text = (ROOT / "SKILL.md").read_text(encoding="utf-8")
    assert text.count("\n") < 500 and len(text) < 4 * 5000  # about 5,000 tokens


# ------------------------------------------------------------------------------------------------ metrics

NAMESPACES = ("reward", "kl", "policy", "value", "rollout", "optim", "time", "eval")
KEY = re.compile(rf"({'|'.join(NAMESPACES)})/[a-z0-9_]+")


def keys_in_code() -> set[str]:
    """String literals of the scripts that are metric names."""
    found = set()
    for path in (ROOT / "scripts").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and KEY.fullmatch(node.value):
                found.add(node.value)
    return found


def test_metrics_of_code_and_of_a_run_are_those_of_the_glossary(tmp_path):
    done = run_script(
        "ppo_train", "--steps", 1, "--batch_size", 8, "--max_new_tokens", 8, "--output_dir", tmp_path / "run"
    )
    assert done.returncode == 0, done.stderr
    logged = set()
    for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines():
        for key in json.loads(line):
            namespace, _, name = key.partition("/")
            logged.add(f"{namespace}/<function>" if name in ("correctness_reward", "format_reward") else key)
    glossary = re.findall(r"^\| `([^`]+)` \|", (ROOT / "references" / "metrics.md").read_text(), re.MULTILINE)
    assert len(glossary) == len(set(glossary))
    assert set(glossary) == (logged - {"step"}) | keys_in_code()


def test_each_metric_has_meaning_range_warning_and_source():
    for line in (ROOT / "references" / "metrics.md").read_text(encoding="utf-8").splitlines():
        if line.startswith("| `"):
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            assert len(cells) == 5 and all(cells), line


# ------------------------------------------------------------------------------------------------ training_config.yaml


def test_annotated_settings_are_the_defaults_from_any_folder(tmp_path, monkeypatch):
    ppo = load_script("ppo_train")
    monkeypatch.chdir(tmp_path)
    assert ppo.parse_config(["--config", str(CONFIG)]) == ppo.Config()
    assert ppo.parse_config(["--config", str(CONFIG), "--steps", "7"]).steps == 7


def test_annotated_settings_name_every_field_in_the_order_of_config():
    keys = re.findall(r"^(?:# )?([a-z_0-9]+):(?: |$)", CONFIG.read_text(encoding="utf-8"), re.MULTILINE)
    assert keys == [f.name for f in dataclasses.fields(load_script("ppo_train").Config)]


def test_annotated_settings_run_as_they_are(tmp_path):
    done = run_script("ppo_train", "--config", CONFIG, "--steps", 1, "--output_dir", "run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run" / "final" / "model.safetensors").exists()
