"""run.sh: the command."""

import dataclasses
import shlex
from pathlib import Path

from parts.foundation.file_text import file_text, with_values
from programs.verl_train.hydra import Override
from programs.verl_train.overrides import Layout
from programs.verl_train.settings import VERL, Config

REASON = "each start has its own: verl empties the file that it is given"
RUN_SCRIPT = file_text("job_files/run.sh")
HANDED = r"{VERL_FILE_LOGGER_PATH:'${metrics//\'/\\\'}'}"  # Hydra's quoting: \' for a quote in the path


def by_setting(overrides: list[Override]) -> list[Override]:
    """Overrides in the order of the settings that they come from."""
    names = [f.name for f in dataclasses.fields(Config)]
    return sorted(overrides, key=lambda o: len(names) if o.source == "override" else names.index(o.source))


def script(config: Config, job: Layout, overrides: list[Override], python: str = "python") -> str:
    """run.sh: the command, each override below the setting that it comes from."""
    lines, source = [], None
    if config.slurm:
        lines.append(f'  "+ray_kwargs.ray_init.runtime_env.env_vars={HANDED}"  # for a Ray that stands')
    for override in by_setting(overrides):
        if override.source != source:
            source = override.source
            given = "" if source == "override" else f": {getattr(config, source)}"
            lines.append(f"  # {source}{given}".replace("\n", " "))
        lines.append(f"  {shlex.quote(override.text())}")
    start = f"cd {shlex.quote(job.folder)}\n" if job.folder else ""
    if not config.slurm:
        start += "unset RAY_ADDRESS\n"  # the Ray of a --run is its own, in all its processes
    log = shlex.quote(str(Path(job.output) / "metrics"))
    places = {"verl": VERL, "start": start, "log": log, "reason": REASON, "python": python}
    return with_values(RUN_SCRIPT, **places, overrides="\n".join(lines))


def write_script(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755)
