"""What the documents say holds: links, paths, commands, code blocks, metric and setting lists, size, spelling.

Fences: `python` runs, all of a page in one namespace and in a folder of its own; what may not run says why behind the
language. Commands in `bash`, `sh` and `console` fences and in running text are parsed: files exist, flags stand in
--help or pass the trainer's own parser.
The code of verl's pages is checked in verl's environment, by tests/with_verl.
"""

import ast
import contextlib
import functools
import importlib
import importlib.util
import io
import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from conftest import FEW, ROOT, TINY_LM, load_module, load_script, read_lines, run_script, write_lines

from parts.reading.dialects import EARLIER

FOLDERS = ("references", "benchmarks", "evals", "examples", "assets", "scripts", "templates", "tools", "tests")
MARKDOWN = sorted(
    [*ROOT.glob("*.md"), *(p for folder in FOLDERS for p in (ROOT / folder).rglob("*.md") if "files" not in p.parts)]
)

CONFIG = ROOT / "assets" / "training_config.yaml"
BLOCK = re.compile(r"^```(\w*)([^\n]*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def fences(path, *languages: str) -> list[tuple[str, str]]:
    """(reason not to run, text) of a document's fenced blocks in these languages."""
    found = BLOCK.findall(path.read_text(encoding="utf-8"))
    return [(why.strip(), text) for language, why, text in found if language in languages]


def of_verl(path) -> bool:
    """Whether the code of a page is checked in verl's environment."""
    return path.name.startswith("verl_")


def commands(path) -> list[str]:
    """Shell commands of a document, continued lines joined, comments dropped; those in its tables too."""
    lines = "".join(text for _, text in fences(path, "bash", "sh", *([] if of_verl(path) else ["console"])))
    lines = lines.replace("\\\n", " ").splitlines()
    lines += re.findall(r"`((?:python|make|torchrun) [^`…]+)`", BLOCK.sub("", path.read_text(encoding="utf-8")))
    return [line.split(" #")[0].strip() for line in lines if line.split("#")[0].strip()]


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
def test_paths_in_text_exist(path):
    spans = re.findall(r"(?<!\[)`([^`\n]+)`", BLOCK.sub("", path.read_text(encoding="utf-8")))
    named = re.findall(rf"(?:^|(?<=[\s=]))(?:{'|'.join(FOLDERS)})/[\w./-]*\w", "\n".join(spans), re.MULTILINE)
    missing = [name for name in named if not (ROOT / name).exists()]
    assert not missing


def test_spelling():
    files = [*MARKDOWN, *(p for d in ("scripts", "examples", "templates", "tools") for p in (ROOT / d).rglob("*.py"))]
    known = "ans,dne,ths,ist,oder,tage,falso"  # in regular expressions; German; Italian
    command = [sys.executable, "-m", "codespell_lib", "-L", known, *map(str, [*files, CONFIG])]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


@functools.cache
def flags_of(script: str) -> frozenset[str]:
    """The flags that scripts/NAME.py --help shows."""
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown), pytest.raises(SystemExit):
        load_script(script).main(["--help"])
    return frozenset(re.findall(r"(?<![\w-])--?[a-zA-Z][\w-]*", shown.getvalue()))


def command_problems(command: str) -> list[str]:
    """What is wrong with a documented command."""
    words = [word for word in shlex.split(command) if not re.match(r"[A-Z_]+=", word)]
    if not words:  # variables alone
        return []
    if words[0] == "make":
        targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        return [f"no target {word}" for word in words[1:] if "=" not in word and word not in targets]
    inside = [word.partition(":")[0] for word in words if word.split("/")[0] in FOLDERS and "/" in word]
    problems = [f"no file {word}" for word in inside if not list(ROOT.glob(word))]
    at = next((i for i, word in enumerate(words) if re.fullmatch(r"scripts/\w+\.py", word)), None)
    if at is None or problems:
        known = "python python3 torchrun accelerate vllm git . pip uv claude jq for cd cp".split()
        return problems + ([] if words[0] in known else [f"what is {words[0]}?"])
    script, flags = words[at][8:-3], words[at + 1 :]
    flags = flags[: flags.index("+")] if "+" in flags else flags  # "… + the run's flags"
    own = {"idea.py:median_advantages": "mean", "idea.py:clipped_low": "clip"}  # of a page, run in test_own_functions
    flags = [own.get(flag, flag) for flag in flags if flag != "FLAGS"]
    try:
        return script_problems(script, flags)
    except (Exception, SystemExit) as error:  # the parsers of the trainers say what they expect
        return [f"{type(error).__name__}: {error}"]


def script_problems(script: str, flags: list[str]) -> list[str]:
    """Unknown flags of scripts/NAME.py; the trainers' parsers also see types and choices, and raise."""
    trainer = "ppo_train"
    if script == "selfcheck" and flags and flags[0].endswith(".py"):
        if flags[0].startswith("templates/"):
            load_module(ROOT / flags[0], "documented_template").parse_config([f for f in flags[1:] if f != "--json"])
            return []
        name = flags.pop(0).removeprefix("scripts/").removesuffix(".py")
        trainer = name if (ROOT / "scripts" / f"{name}.py").exists() else trainer
        flags = [flag for flag in flags if flag not in ("--json", "--help")]
    elif script not in ("ppo_train", "grpo_train", "on_policy_distillation") or "--help" in flags:
        return [w for w in flags if re.match(r"--?[a-zA-Z]", w) and w.split("=")[0] not in flags_of(script)]
    else:
        trainer = script
    module = load_script(trainer)
    module.parse_config(flags)
    return []


@pytest.mark.parametrize("path", MARKDOWN, ids=lambda path: path.name)
def test_commands_are_ones_that_exist(path):
    found = {command: command_problems(command) for command in commands(path)}
    assert not {command: problems for command, problems in found.items() if problems}


PYTHON = [path for path in MARKDOWN if fences(path, "python")]


def files_of_deployment(folder):
    """A run's folder with an adapter that changes the model, and the run's settings."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.manual_seed(0)
    base = AutoModelForCausalLM.from_pretrained(TINY_LM)
    model = get_peft_model(base, LoraConfig(r=4, target_modules=["q_proj", "up_proj"], init_lora_weights=False))
    model.save_pretrained(folder / "runs/mine/final")
    AutoTokenizer.from_pretrained(TINY_LM).save_pretrained(folder / "runs/mine/final")
    (folder / "runs/mine/config.json").write_text(json.dumps({"algorithm": "grpo"}))
    return {}


def names_of_templates(folder) -> dict:
    """The functions of losses.py, and log-probs for them."""
    import torch

    names = vars(load_module(ROOT / "templates" / "losses.py", "documented_losses"))
    logprobs = torch.full((2, 3), -1.0, requires_grad=True)
    given = {name: torch.full((2, 3), -1.5) for name in ("old_logprobs", "ref_logprobs")}
    given |= {"logprobs": logprobs, "advantages": torch.ones(2, 3), "mask": torch.ones(2, 3)}
    return given | {name: names[name] for name in ("paper_loss", "aggregate", "kl")}


def files_of_data(folder):
    """Data files, one whose gold column looks like numbers, and a tokenizer."""
    from transformers import AutoTokenizer

    (folder / "sums.csv").write_text("question,gold\n34+71=,105\n5+5=,10\n")
    rows = {
        "gsm8k": {"question": "1+1?", "answer": "2\n#### 2"},
        "code": {"prompt": "Add.", "tests": ["assert f(1) == 1"]},
        "mbpp": {"text": "Add.", "test_list": ["assert f(1) == 1"]},
    }
    for name, row in rows.items():
        write_lines(folder / f"{name}.jsonl", [row] * 40)
    return {"tokenizer": AutoTokenizer.from_pretrained(TINY_LM)}


SETUP = {"templates.md": names_of_templates, "deployment.md": files_of_deployment}
SETUP |= dict.fromkeys(("grpo_trl.md", "data_formats.md"), files_of_data)


@pytest.mark.long
@pytest.mark.parametrize("path", PYTHON, ids=lambda path: path.name)
def test_python_blocks_run(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    importlib.invalidate_caches()  # of `scripts` on the path, which was another folder for the page before
    loaded = set(sys.modules)
    for folder in ("scripts", "examples", "assets"):
        (tmp_path / folder).symlink_to(ROOT / folder)
    if of_verl(path):
        return [ast.parse(code) for _, code in fences(path, "python")] and None
    names = {"__name__": "document", **SETUP.get(path.name, lambda folder: {})(tmp_path)}
    for why, code in fences(path, "python"):
        if not why:
            exec(compile(code, str(path), "exec"), names)
    if path.name == "deployment.md":
        merged = tmp_path / "runs/mine/merged"
        assert (merged / "chat_template.jinja").exists() and len(names["answers"]) == 2
        card = yaml.safe_load((merged / "README.md").read_text().split("---\n")[1])
        assert card["base_model"].startswith("Qwen/") and card["tags"] == ["reinforcement-learning", "grpo"]
    for name in set(sys.modules) - loaded:  # a script imported by its bare name is not the one other tests load
        if (ROOT / "scripts" / f"{name}.py").exists() or name == "reward_functions_library":
            del sys.modules[name]


@pytest.mark.parametrize("path", MARKDOWN, ids=lambda path: path.name)
def test_data_blocks_parse(path):
    for _, rows in fences(path, "json"):
        assert all(json.loads(line) for line in rows.splitlines()) if "\n{" in rows else json.loads(rows)
    for _, text in fences(path, "yaml"):
        assert yaml.safe_load(text)


def test_nanochats_loss_is_ours_times_the_factor_that_the_page_names():
    import torch

    ppo = load_script("ppo_train")
    config = ppo.parse_config("--algorithm dr_grpo --loss reinforce --aggregation token_mean --group_size 4".split())
    assert (config.kl_coef, config.ppo_epochs, config.minibatches, config.advantage) == (0, 1, 1, "mean")
    logprobs, scores = -torch.rand(4, 6, dtype=torch.float64), torch.tensor([1.0, 0.0, 0.0, 1.0])
    mask = (torch.arange(6) < torch.tensor([6, 6, 1, 2])[:, None]).double()
    advantages = (scores - scores.mean())[:, None] * mask
    found, _ = ppo.LOSSES["reinforce"](logprobs=logprobs, advantages=advantages)
    ours = found * ppo.token_weights(mask, config, tokens=mask.sum(), sequences=4)
    for rows in (slice(0, 2), slice(2, 4)):  # two passes of two
        theirs = -(logprobs * advantages)[rows] / (mask[rows].sum() * 2)
        assert torch.allclose(theirs, mask.sum() / (2 * mask[rows].sum()) * ours[rows], atol=1e-12)


@pytest.fixture(scope="module")
def readme_files(tmp_path_factory):
    """The files that README.md shows, as a user would write them."""
    folder = tmp_path_factory.mktemp("readme")
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for name, content in re.findall(r"This is `(my_[\w.]+)`:\n\n```\w+\n(.*?)```", text, re.DOTALL):
        (folder / name).write_text(content)
    assert {path.name for path in folder.iterdir()} == {"my_prompts.jsonl", "my_rewards.py", "my_test.jsonl"}
    return folder


@pytest.mark.long
def test_readme_commands_for_your_own_data_run(readme_files):
    own = [c for c in commands(ROOT / "README.md") if "my_prompts.jsonl" in c and "--model" not in c]
    names = ["ppo_train", "selfcheck", "ppo_train", "ppo_train"]
    assert [c.split()[1] for c in own] == [f"scripts/{name}.py" for name in names]
    for command in own:
        _, script, *flags = (str(ROOT / word) if word.startswith("scripts/") else word for word in shlex.split(command))
        done = run_script(Path(script), *flags, cwd=readme_files)
        assert done.returncode == 0, done.stderr
    rows = read_lines(readme_files / "runs/mine/metrics.jsonl")
    assert rows[-1]["step"] == 5 and {"reward/says", "reward/brief", "eval/accuracy"} <= set(rows[-1])


def test_skill_is_short_and_its_header_is_valid(tmp_path):
    header, body = (ROOT / "SKILL.md").read_text(encoding="utf-8").split("---\n", 2)[1:]
    header, lines = yaml.safe_load(header), body.splitlines()
    assert len(lines) <= 220 and all(len(line) <= 120 for line in lines if not line.startswith("|"))
    assert len(body.split()) <= 1600, "every agent reads this page whole"
    assert set(header) <= {"name", "description", "license", "compatibility", "metadata", "allowed-tools"}
    assert header["name"] == "rl-training-code" and len(header["description"]) <= 700
    assert not set("<>") & set(header["description"])
    folder = tmp_path / "rl-training-code"  # the checker wants the folder to have the skill's name
    folder.mkdir()
    shutil.copy(ROOT / "SKILL.md", folder)
    code = "from skills_ref.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", code, "validate", str(folder)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


NAMESPACES = ("reward", "kl", "policy", "value", "rollout", "tool", "prompts", "optim", "time", "memory", "eval")
KEY = re.compile(rf"({'|'.join(NAMESPACES)})/[a-z0-9_]+")


def keys_in_code() -> set[str]:
    """Metric names in the scripts: string literals, and the phases that a step measures."""
    found = set()
    for path in (ROOT / "scripts").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and KEY.fullmatch(node.value):
                found.add(node.value)
            timed = isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant)
            if timed and isinstance(node.value, ast.Name) and node.value.id == "timer":
                found.add(f"time/{node.slice.value}")  # phases are logged under this prefix
    return found


@pytest.mark.long
def test_metrics_of_code_and_of_a_run_are_those_of_the_glossary(tmp_path):
    sizes = "--steps 1 --batch_size 8 --max_new_tokens 8".split()
    done = run_script("ppo_train", *FEW, *sizes, "--output_dir", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    logged = set()
    for row in read_lines(tmp_path / "run" / "metrics.jsonl"):
        for key in row:
            namespace, _, name = key.partition("/")
            logged.add(f"{namespace}/<function>" if name in ("correctness_reward", "format_reward") else key)
    glossary = re.findall(r"^\| `([^`]+)` \|", (ROOT / "references" / "metrics.md").read_text(), re.MULTILINE)
    assert len(glossary) == len(set(glossary))
    assert set(glossary) == (logged - {"step"}) | keys_in_code().difference(EARLIER)  # those of other trainers aside
