"""The four Dockerfiles, the files beside them, and the table of versions that fit together."""

from parts.foundation.file_text import file_text

BASE = file_text("base.Dockerfile")
TRL = file_text("trl.Dockerfile")
VERL = file_text("verl.Dockerfile")
NANOCHAT = file_text("nanochat.Dockerfile")
COMPOSE = file_text("compose.yaml")
DEVCONTAINER = file_text("devcontainer.json")
PINS = file_text("pins.toml")

DOCKERFILES = {"base": BASE, "trl": TRL, "verl": VERL, "nanochat": NANOCHAT}
BUNDLE_FOLDERS = ("assets", "examples", "references", "scripts", "templates")
ONLY_BUNDLE = "\n".join(
    [
        "# only what the Dockerfile copies",
        "*",
        *(f"!{folder}" for folder in BUNDLE_FOLDERS),
        "**/__pycache__",
        "**/*.pyc",
    ]
)
NO_SECRETS = """\
# history, environments, secrets, results
.git
.venv*
**/__pycache__
**/*.pyc
.env*
**/*.pem
**/*.key
runs
wandb
outputs
checkpoints
**/*.safetensors
**/*.pt
.cache
.devcontainer
"""
