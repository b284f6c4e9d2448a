"""An image by a row of the table of compatible versions, the files beside its Dockerfile, and the command line."""

import argparse
import json
import os
import re
import shlex
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

from parts.foundation.bundle import BUNDLE
from parts.foundation.file_text import file_text
from parts.foundation.messages import Help, UserError, need, say, tell
from parts.foundation.settings import parse_flags

UBUNTU = file_text("ubuntu.Dockerfile")
VERL = file_text("verl.Dockerfile")
PINS = file_text("pins.toml")
STYLES = {"base": "this bundle", "trl": "GRPO with TRL and vLLM", "verl": "verl"}
COMPOSE = file_text("compose.yaml")
DEVCONTAINER = file_text("devcontainer.json")
BUNDLE_FOLDERS = ("assets", "examples", "references", "scripts", "templates")
ONLY_BUNDLE = ["# only what the Dockerfile copies", "*", *(f"!{folder}" for folder in BUNDLE_FOLDERS)]
NO_SECRETS = [
    *("# history, environments, secrets, results", ".git", ".venv*", ".env*", "**/*.pem", "**/*.key", "runs", "wandb"),
    *("outputs", "checkpoints", "**/*.safetensors", "**/*.pt", ".cache", ".devcontainer"),
]
COMPILED = ["**/__pycache__", "**/*.pyc"]


@dataclass(frozen=True)
class ImagePlan:
    """All that a Dockerfile is made from."""

    style: str
    cuda: str
    torch: str
    index: str  # torch's own package index if PyPI's wheel is for another CUDA version, else ""
    image: str  # image to start from
    pins: dict[str, str]
    name: str

    @property
    def requirements(self) -> list[str]:
        return [f"{name}=={version}" for name, version in {"torch": self.torch, **self.pins}.items()]

    def context(self, output: Path) -> Path:
        return BUNDLE if self.style == "base" else output.absolute().parent

    @property
    def dockerfile(self) -> str:
        copies = [f"COPY --chown=1000:1000 {folder} /opt/rl-training-code/{folder}" for folder in BUNDLE_FOLDERS]
        values = {
            "NAME": self.name,
            "PURPOSE": STYLES[self.style],
            "SYSTEM": ' \\\n        "libnuma1=2.0.18*"' if self.style == "trl" else "",
            "COPIES": "\n".join([*copies, "", ""]) if self.style == "base" else "",
            "UV": tomllib.loads(PINS)["images"]["uv"],
            "IMAGE": self.image,
            "TORCH": self.torch,
            "INDEX": f" --index-url {self.index}" if self.index else "",
            "PINS": " \\\n        ".join(f'"{name}=={version}"' for name, version in self.pins.items()),
        }
        return re.sub("@([A-Z]+)@", lambda mark: values[mark[1]], VERL if self.style == "verl" else UBUNTU)


def make_plan(style: str, cuda: str, sglang: bool) -> ImagePlan:
    """Plan an image from the table; UserError if it has no such CUDA version, or for SGLang without verl."""
    advice = "try another; nanochat is installed by `uv sync` in a clone of it"
    need(style in STYLES, f"got --style {style}; expected one of {', '.join(STYLES)}; {advice}")
    table = tomllib.loads(PINS)
    rows = table[style]
    cuda = cuda or next(iter(rows["torch"]))
    need(not sglang or style == "verl", f"got --sglang with --style {style}; expected --style verl")
    known, got = list(rows["torch"]), f"got --cuda {cuda} with --style {style}"
    need(cuda in known, f"{got}; expected one of {', '.join(known)} (--list); try --style {style} --cuda {known[0]}")
    torch, on_pypi = rows["torch"][cuda]
    pins = rows.get(cuda, {}) | {name: table["base"]["pins"][name] for name in rows.get("as_in_base", ())}
    pins, engine = pins | rows.get("pins", {}), "sglang" if sglang else "vllm"
    wheel = cuda if cuda == "cpu" else f"cu{cuda.replace('.', '')}"
    index = "" if cuda == on_pypi else f"https://download.pytorch.org/whl/{wheel}"
    if style == "verl":
        image, part = rows["images"][engine], f"{engine}-"
    else:
        kind = "devel" if style == "trl" else "base"  # vLLM compiles kernels while it runs
        image, part = table["images"][cuda].format(kind=kind), f"vllm{pins['vllm']}-" if "vllm" in pins else ""
    name = f"rl-{style}:{part}torch{torch}-{wheel}"
    return ImagePlan(style, cuda, torch, index, image, pins, name)


def read_flags(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=Help, allow_abbrev=False)
    parser.add_argument("--style", default="base", help="what the image is for: base, trl or verl")
    parser.add_argument("--cuda", default="", help="CUDA version, such as 12.8, or cpu (default: the style's first)")
    parser.add_argument("--sglang", action="store_true", help="with --style verl: the image with SGLang, not vLLM")
    parser.add_argument("--output", default="Dockerfile", help="file to write, or - for stdout and no other file")
    parser.add_argument("--force", action="store_true", help="overwrite existing files")
    parser.add_argument("--compose", action="store_true", help="also write compose.yaml")
    parser.add_argument(
        "--devcontainer", action="store_true", help="also write .devcontainer/devcontainer.json and compose.yaml"
    )
    parser.add_argument("--list", action="store_true", help="print the table of versions and end")
    return parse_flags(parser, argv)


def compose(plan: ImagePlan, output: Path) -> str:
    """compose.yaml for the image: GPUs, shared memory, caches, and tokens from the environment."""
    folder, context, text = output.absolute().parent, plan.context(output), COMPOSE
    for mark, fits in {"GPU": plan.cuda != "cpu", "verl": plan.style == "verl"}.items():
        text = re.sub(rf"(?m)  # {mark}$" if fits else rf"(?m)^.*# {mark}\b.*\n", "", text)
    values = {"NAME": plan.name, "CONTEXT": os.path.relpath(context, folder)}
    values["DOCKERFILE"] = os.path.relpath(output.absolute(), context)
    return re.sub('"@([A-Z]+)@"', lambda mark: json.dumps(values[mark[1]]), text)


def run_flags(plan: ImagePlan) -> list[str]:
    """Flags of `docker run`; torch and NCCL share tensors through /dev/shm."""
    flags = ["--shm-size=16g"] if plan.cuda == "cpu" else ["--gpus=all", "--shm-size=16g"]
    return flags + (["--network=host", "--cap-add=SYS_ADMIN"] if plan.style == "verl" else [])


def commands(plan: ImagePlan, output: Path) -> dict[str, str]:
    """Shell commands that build, run and push the image."""
    program = {
        "base": "python /opt/rl-training-code/scripts/ppo_train.py --steps 5 --output_dir runs/first",
        "trl": "vllm serve --help",
        "verl": "python3 -m verl.trainer.main_ppo --help",
    }[plan.style]
    tokens = ["--volume", "hf-cache:/cache/huggingface", "--env", "HF_TOKEN", "--env", "WANDB_API_KEY"]
    build = ["docker", "build", "--platform", "linux/amd64", "--file", str(output), "--tag", plan.name]
    start = ["docker", "run", "--rm", "-it", "--init", *run_flags(plan), *tokens]
    return {
        "build": shlex.join([*build, os.path.relpath(plan.context(output))]),
        "run": f'{shlex.join(start)} --volume "$PWD:/workspace" {plan.name} {program}',
        "push": f'docker tag {plan.name} "$REGISTRY/{plan.name}" && docker push "$REGISTRY/{plan.name}"',
    }


def write(files: dict[Path, str], force: bool) -> None:
    """Write all files; UserError, and none is written, if one exists with another text and `force` is off."""
    kept = [str(path) for path, text in files.items() if path.exists() and path.read_text("utf-8") != text]
    need(force or not kept, f"got {', '.join(kept)}, which exist; expected new files; try --force or another --output")
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def generate(args: argparse.Namespace) -> None:
    """Write the files and print a report as JSON; UserError for bad input."""
    plan = make_plan(args.style, args.cuda, args.sglang)
    base, output = plan.style == "base", Path(args.output)
    missing = [name for name in BUNDLE_FOLDERS if base and not (BUNDLE / name).is_dir()]
    need(not missing, f"got no {', '.join(missing)} beside this script; expected the whole bundle; try --style trl")
    if args.output == "-":
        need(not args.compose and not args.devcontainer, "got --output - and a second file; try --output Dockerfile")
        tell(plan.dockerfile, end="")
        return
    if output.is_dir():
        output /= "Dockerfile"
    # BuildKit prefers NAME.dockerignore beside the Dockerfile; the context may be another folder
    ignore = output.parent / (f"{output.name}.dockerignore" if base else ".dockerignore")
    files = {output: plan.dockerfile, ignore: "\n".join([*(ONLY_BUNDLE if base else NO_SECRETS), *COMPILED, ""])}
    if args.compose or args.devcontainer:
        files[output.parent / "compose.yaml"] = compose(plan, output)
    if args.devcontainer:
        files[output.parent / ".devcontainer" / "devcontainer.json"] = DEVCONTAINER
    write(files, args.force)
    trl, tested = plan.pins.get("trl[vllm]"), make_plan("base", "", False).pins["trl"]
    if trl not in (None, tested):
        say(f"note: trl {trl} for CUDA {plan.cuda}; this bundle was tested with {tested}")
    report = {"files": [str(path) for path in files], "image": plan.name, "from": plan.image}
    tell(json.dumps(report | {"requirements": plan.requirements, "commands": commands(plan, output)}, indent=2))


def main(argv: list[str] | None = None) -> int:
    try:
        args = read_flags(argv)
        if args.list:
            tell(PINS, end="")
        else:
            generate(args)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.code
    except OSError as error:
        print(f"error: got {error}; expected a folder to write to; try another --output", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
