"""The rules of the house hold: standalone scripts, budgets, quick --help, clean data, pins."""

import ast
import importlib.metadata
import os
import re
import subprocess
import sys
import tomllib

import pytest
from conftest import ROOT, script_env
from packaging.requirements import Requirement

# what tools/build.py writes it holds to the same rules itself
BY_HAND = sorted(
    {path for folder in ("examples", "templates") for path in (ROOT / folder).rglob("*.py")}
    - {ROOT / "examples" / "reward_functions_library.py"}
)
COMMANDS = sorted((ROOT / "scripts").glob("*.py"))
LARGE = {"torch", "transformers", "trl", "datasets", "numpy", "matplotlib", "wandb"}


def relative(path) -> str:
    """A readable test id."""
    return str(path.relative_to(ROOT))


def text_of(path) -> str:
    """The text of a file."""
    with open(path, encoding="utf-8") as f:
        return f.read()


REQUIREMENTS = [line for line in text_of(ROOT / "requirements.txt").splitlines() if not line.startswith("#")]
PINS = dict(line.split()[0].split("==") for line in REQUIREMENTS)


def imports(nodes) -> set[str]:
    """The packages that statements import."""
    found = set()
    for node in nodes:
        if isinstance(node, ast.ImportFrom | ast.Import):
            names = [node.module] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
            found |= {"." if name is None else name.split(".")[0] for name in names}
    return found


@pytest.mark.parametrize("name", ["ppo_train", "data_loader"])
def test_help_loads_no_large_package(name):
    command = [sys.executable, "-X", "importtime", str(ROOT / "scripts" / f"{name}.py"), "--help"]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, env=script_env())
    imported = {line.rsplit("|", 1)[-1].strip().split(".")[0] for line in done.stderr.splitlines()}
    assert done.returncode == 0 and "usage:" in done.stdout and "argparse" in imported
    assert imported & LARGE == set()


def test_examples_and_pages_import_no_sibling():
    siblings = {other.stem for other in [*BY_HAND, *COMMANDS]} | {"scripts", "examples", "templates", "tools", "assets"}
    for path in BY_HAND:
        assert not imports(ast.walk(ast.parse(text_of(path)))) & {*siblings, "."}, path


def pep723(source: str) -> dict:
    """The inline metadata of a script, as PEP 723 reads it."""
    block = re.search(r"(?m)^# /// script$\s(?P<content>(^#(| .*)$\s)+)^# ///$", source)
    lines = block["content"].splitlines() if block else []
    return tomllib.loads("\n".join(line[2:] for line in lines))


OPTIONAL = {"wandb", "trackio", "vllm"}  # each asked for by a flag, with a message where it is missing
OPTIONAL |= {"huggingface_hub", "safetensors"}  # transformers brings them
# --check and --run say how to install verl, which brings the others; trl knows more chat templates
OF_VERL, OF_TRL = {"verl", "hydra", "omegaconf", "ray", "tensordict"}, {"trl"}
OF_SCRIPTS = {"verl_train": OF_VERL | OF_TRL, "migrate": OF_VERL}
OF_SCRIPTS |= {"ppo_train": OF_TRL, "evaluation": OF_TRL, "reward_preflight": OF_TRL}
IMPORT = r"(?m)^ *(?:from (?=\S+ import )|import )(\w+)"
REGISTERED = {"yaml": "pyyaml", "math_verify": "math-verify"}


@pytest.mark.parametrize("path", COMMANDS, ids=relative)
def test_script_declares_its_dependencies(path):
    text = text_of(path)
    metadata = pep723(text)
    assert metadata["requires-python"]
    declared = {r.name: r for r in map(Requirement, metadata.get("dependencies", []))}
    for name, requirement in declared.items():
        assert requirement.specifier.contains(PINS[name]), f"{requirement} excludes the tested {PINS[name]}"
    known = {*sys.stdlib_module_names, *OPTIONAL, *OF_SCRIPTS.get(path.stem, ())}

    def faults(anywhere: set[str], at_once: set[str]) -> set[str]:
        undeclared = {REGISTERED.get(name, name) for name in anywhere - known} - {*declared}
        return undeclared | (at_once & LARGE)  # --help would load it, too

    # to parse a script takes a second: only where a line, perhaps of a text, looks like a fault
    if faults({*re.findall(IMPORT, text)}, {*re.findall(IMPORT.replace(" *", ""), text)}):
        tree = ast.parse(text)
        assert not faults(imports(ast.walk(tree)), imports(tree.body))


@pytest.mark.parametrize("line", REQUIREMENTS, ids=lambda line: line.split("=")[0])
def test_requirement_is_pinned_explained_and_installed(line):
    assert re.fullmatch(r"[\w-]+==[\w.]+  # \S.+", line), "expected `name==version  # what it is for`"
    assert REQUIREMENTS[0].startswith("torch==")
    name, version = re.match(r"([\w-]+)==(\S+)", line).groups()
    assert importlib.metadata.version(name).split("+")[0] == version


PLACES = ("*", "[!.]*/**/*", ".ci/*", ".github/**/*", ".claude-plugin/*")
TEXTS = {".py", ".md", ".txt", ".toml", ".yaml", ".yml", ".json", ".jsonl", ".sh"}


def test_no_file_names_a_path_of_one_machine():
    machine = re.compile(r"(?<![\w.])/(?:home/(?!trainer/)|Users/|root/|work/|mnt/)[\w.-]")
    found = [
        f"{os.path.relpath(path, ROOT)}:{number}"
        for path in (path for place in PLACES for path in ROOT.glob(place) if not {"runs", "wandb"} & {*path.parts})
        if path.name in ("Makefile", "run") or path.suffix in TEXTS
        for number, line in enumerate(text_of(path).split("\n"), start=1)
        if machine.search(line)
    ]
    assert found == []
