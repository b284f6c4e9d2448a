"""run.sh: the command."""

import dataclasses
import shlex
from pathlib import Path

from programs.verl_train.hydra import Override
from programs.verl_train.overrides import Layout
from programs.verl_train.settings import VERL, Config

EMPTIES = "# each start has its own: verl empties the file that it is given"
HANDED = r"{VERL_FILE_LOGGER_PATH:'${metrics//\'/\\\'}'}"  # Hydra's quoting: \' for a quote in the path


def by_setting(overrides: list[Override]) -> list[Override]:
    """Overrides in the order of the settings that they come from."""
    names = [f.name for f in dataclasses.fields(Config)]
    return sorted(overrides, key=lambda o: len(names) if o.source == "override" else names.index(o.source))


def script(config: Config, job: Layout, overrides: list[Override], python: str = "python") -> str:
    """run.sh: the command, each override below the setting that it comes from."""
    lines = [
        "#!/usr/bin/env bash",
        f"# Written by verl_train.py for verl {VERL}; from the settings to the overrides.",
        "set -e",
    ]
    if job.folder:
        lines.append(f"cd {shlex.quote(job.folder)}")
    if not config.slurm:
        lines.append("unset RAY_ADDRESS")  # the Ray of a --run is its own, in all its processes
    log = shlex.quote(str(Path(job.output) / "metrics"))
    lines += [f"metrics={log}.jsonl; n=1", f"while [[ -e $metrics ]]; do metrics={log}.$((++n)).jsonl; done  {EMPTIES}"]
    lines += ["export VERL_FILE_LOGGER_PATH=$metrics TOKENIZERS_PARALLELISM=false", "overrides=("]
    if config.slurm:
        lines.append(f'  "+ray_kwargs.ray_init.runtime_env.env_vars={HANDED}"  # for a Ray that stands')
    source = None
    for override in by_setting(overrides):
        if override.source != source:
            source = override.source
            given = "" if source == "override" else f": {getattr(config, source)}"
            lines.append(f"  # {source}{given}".replace("\n", " "))
        lines.append(f"  {shlex.quote(override.text())}")
    lines += [")", f'exec {python} -u -m verl.trainer.main_ppo "${{overrides[@]}}"', ""]
    return "\n".join(lines)


def write_script(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755)
