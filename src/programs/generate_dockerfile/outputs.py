"""The files beside it."""

import json
import os
import shlex
from pathlib import Path

from parts.foundation.messages import UserError, need
from programs.generate_dockerfile.dockerfile import dockerfile
from programs.generate_dockerfile.flags import Config
from programs.generate_dockerfile.pins import ImagePlan
from programs.generate_dockerfile.tables import BUNDLE_FOLDERS


def dockerignore(plan: ImagePlan) -> str:
    """What the build may see: of the bundle only what is copied; else nothing that is large or secret."""
    if plan.style == "base":
        allowed = [f"!{folder}" for folder in BUNDLE_FOLDERS]
        return "\n".join(["# only what the Dockerfile copies", "*", *allowed, "**/__pycache__", "**/*.pyc", ""])
    kept_out = [".git", ".venv*", "**/__pycache__", "**/*.pyc", ".env*", "**/*.pem", "**/*.key", "runs", "wandb"]
    kept_out += ["outputs", "checkpoints", "**/*.safetensors", "**/*.pt", ".cache", ".devcontainer"]
    return "\n".join(["# history, environments, secrets, results", *kept_out, ""])


def caches(plan: ImagePlan) -> dict[str, str]:
    """Named volumes and where they are mounted."""
    more = {"nanochat-cache": "/cache/nanochat"} if plan.style == "nanochat" else {}
    return {"hf-cache": "/cache/huggingface", **more}


def compose(plan: ImagePlan, folder: Path) -> str:
    """A compose file with the GPUs, shared memory, caches, and tokens by name."""
    path = json.dumps(Path(plan.output).name)
    context = json.dumps(os.path.relpath(plan.context, folder))
    if plan.style == "base":
        path = json.dumps(os.path.relpath(Path(plan.output).absolute(), plan.context))
    lines = [
        "services:",
        "  trainer:",
        f"    image: {json.dumps(plan.name)}",
        "    build:",
        f"      context: {context}",
        f"      dockerfile: {path}",
        "    platform: linux/amd64",
        "    init: true",
        "    stdin_open: true",
        "    tty: true",
        '    shm_size: "16gb"  # torch and NCCL share tensors through it',
        "    stop_grace_period: 2m  # a trainer saves on SIGTERM",
        "    volumes:",
        '      - ".:/workspace"',
        *(f"      - {json.dumps(f'{name}:{path}')}" for name, path in caches(plan).items()),
        "    environment:  # by name: values come from your shell",
        "      - HF_TOKEN",
        "      - WANDB_API_KEY",
    ]
    if plan.style == "verl":
        lines += ["    network_mode: host", "    cap_add: [SYS_ADMIN]  # as verl's documents start it"]
    if plan.choice.cuda != "cpu":
        lines += ["    deploy:", "      resources:", "        reservations:", "          devices:"]
        lines += ["            - driver: nvidia", "              count: all", "              capabilities: [gpu]"]
    return "\n".join([*lines, "volumes:", *(f"  {name}: {{}}" for name in caches(plan)), ""])


def devcontainer(plan: ImagePlan, folder: Path) -> str:
    """A devcontainer.json for the folder that holds the Dockerfile."""
    gpu = plan.choice.cuda != "cpu"
    content = {
        "name": plan.name,
        "build": {
            "dockerfile": os.path.relpath(Path(plan.output).absolute(), folder),
            "context": os.path.relpath(plan.context, folder),
            "options": ["--platform=linux/amd64"],
        },
        "runArgs": [*(["--gpus=all"] if gpu else []), *run_flags(plan)],
        "init": True,
        "workspaceFolder": "/workspace",
        "workspaceMount": "source=${localWorkspaceFolder},target=/workspace,type=bind",
        "mounts": [f"source={name},target={path},type=volume" for name, path in caches(plan).items()],
        "remoteUser": plan.user,
        "remoteEnv": {name: f"${{localEnv:{name}}}" for name in ("HF_TOKEN", "WANDB_API_KEY")},
        "hostRequirements": {"gpu": gpu},
        "customizations": {"vscode": {"extensions": ["ms-python.python", "charliermarsh.ruff"]}},
    }
    return json.dumps(content, indent=2) + "\n"


def run_flags(plan: ImagePlan) -> list[str]:
    """Flags of `docker run` that a style needs beside its GPUs."""
    return ["--shm-size=16g", *(["--network=host", "--cap-add=SYS_ADMIN"] if plan.style == "verl" else [])]


def commands(plan: ImagePlan) -> dict[str, str]:
    """Build, run and push, as typed into a shell."""
    what = {
        "base": "python /opt/rl-training-code/scripts/ppo_train.py --steps 5 --output_dir runs/first",
        "trl": "trl vllm-serve --help",
        "verl": "python3 -m verl.trainer.main_ppo --help",
        "nanochat": "python -m scripts.chat_rl --help",
    }[plan.style]
    gpus = [] if plan.choice.cuda == "cpu" else ["--gpus", "all"]
    volumes = [word for name, path in caches(plan).items() for word in ("--volume", f"{name}:{path}")]
    tokens = ["--env", "HF_TOKEN", "--env", "WANDB_API_KEY"]
    build = ["docker", "build", "--platform", "linux/amd64", "--file", plan.output, "--tag", plan.name]
    start = ["docker", "run", "--rm", "-it", "--init", *gpus, *run_flags(plan), *volumes, *tokens]
    return {
        "build": shlex.join([*build, os.path.relpath(plan.context)]),
        "run": f'{shlex.join(start)} --volume "$PWD:/workspace" {plan.name} {what}',
        "push": f'docker tag {plan.name} "$REGISTRY/{plan.name}" && docker push "$REGISTRY/{plan.name}"',
    }


def outputs(plan: ImagePlan, config: Config) -> dict[Path, str]:
    """The files to write, with their text."""
    path = Path(plan.output)
    folder = path.absolute().parent
    # BuildKit reads NAME.dockerignore beside the Dockerfile first; the context may be another folder
    ignore = ".dockerignore" if plan.context == folder else f"{path.name}.dockerignore"
    files = {path: dockerfile(plan), path.parent / ignore: dockerignore(plan)}
    if config.compose:
        files[path.parent / "compose.yaml"] = compose(plan, folder)
    if config.devcontainer:
        files[path.parent / ".devcontainer" / "devcontainer.json"] = devcontainer(plan, folder / ".devcontainer")
    return files


def write(files: dict[Path, str], force: bool) -> None:
    """Write all files, or none.

    Raises:
        UserError: A file exists with another text and force is off, or cannot be written.
    """
    kept = [str(path) for path, text in files.items() if path.exists() and path.read_text("utf-8") != text]
    need(force or not kept, f"got {', '.join(kept)} already there; expected new files; try --force or another --output")
    for path, text in files.items():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        except OSError as error:
            raise UserError(f"got {error} at {path}; expected a folder to write to; try another --output") from error
