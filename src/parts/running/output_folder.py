"""The output folder: which run owns it, folders written whole or not at all, modes by the umask."""

import contextlib
import dataclasses
import errno
import fcntl
import hashlib
import json
import os
import re
import shutil
import sys
from pathlib import Path

from parts.foundation.messages import UserError, is_disk_full, need, say
from parts.foundation.processes import LOCKS, gather_rows, is_first, world
from parts.foundation.settings import BaseConfig, free_on_resume

WRITTEN = ("metrics.jsonl", "samples.jsonl", "summary.json", "curves.png", "versions.json")  # by a run, in its folder


def write_text(path: Path, text: str) -> None:
    """Write a file that appears whole or not at all, also after the machine went down."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.tmp")
    with temporary.open("w", encoding="utf-8", errors="backslashreplace") as f:
        f.write(text)
        f.flush()
        os.fsync(f.fileno())
    os.replace(temporary, path)


def follow_umask(folder: Path) -> None:
    """Let all files below a new folder have its read and write permissions: safetensors writes for the owner only."""
    allowed = folder.stat().st_mode & 0o666
    for file in filter(Path.is_file, folder.rglob("*")):
        file.chmod(file.stat().st_mode & 0o111 | allowed)


def write_folder(target: Path, write, intact: str = "earlier checkpoints are intact") -> None:
    """Call write(folder) on a temporary sibling and rename it, so that `target` never names a half-written folder."""
    temporary, before = (target.with_name(f".{target.name}.{end}") for end in ("tmp", "before"))
    shutil.rmtree(temporary, ignore_errors=True)
    if before.exists() and not target.exists():  # a kill came between the two renames below
        os.replace(before, target)
    try:
        temporary.mkdir(parents=True)
        write(temporary)
        follow_umask(temporary)
        for file in filter(Path.is_file, temporary.rglob("*")):
            with file.open("rb") as f:
                os.fsync(f.fileno())
        if target.exists():  # removing it takes time; a kill would leave half of it
            shutil.rmtree(before, ignore_errors=True)
            os.replace(target, before)
        os.replace(temporary, target)
        shutil.rmtree(before, ignore_errors=True)
    except Exception as error:  # a full disk shows as OSError, RuntimeError or SafetensorError, by writer
        shutil.rmtree(temporary, ignore_errors=True)
        if before.exists() and not target.exists():
            os.replace(before, target)
        said = f"got {type(error).__name__} while saving {target}: {error}"
        if is_disk_full(error):
            said = f"got a full disk while saving {target}; expected enough space; try deleting files"
        elif isinstance(error, OSError):
            said = f"got {error} while saving {target}; expected a writable folder; try another one"
        raise UserError(f"{said}; {intact}") from error


def saved_settings(folder: Path) -> dict:
    """The settings in a run's config.json; UserError where that file is no run's, as in a model's folder."""
    file, saved = folder / "config.json", None
    if not file.exists():
        return {}
    with contextlib.suppress(ValueError):  # broken
        saved = json.loads(file.read_text(encoding="utf-8"))
    got = f"got output_dir {str(folder)!r}, whose config.json belongs to no run; expected a new folder"
    need(isinstance(saved, dict) and "output_dir" in saved, f"{got}; try another --output_dir")
    return saved


def finished_work(folder: Path) -> list[str]:
    """Names of what finished steps have left in a folder; evaluations and checkpoints of step 0 are none of that."""
    log = folder / "metrics.jsonl"
    lines = log.read_text().splitlines() if log.exists() else []
    left = {
        "final": (folder / "final").exists(),
        "metrics.jsonl": not all(re.match(r'\{"step": 0\b|$', line) for line in lines),
        "checkpoints": any(int(x.name.rpartition("-")[2]) for x in (folder / "checkpoints").glob("[!.]*-*[0-9]")),
        "rounds": any(path.is_file() for path in (folder / "rounds").rglob("[!.]*")),
    }
    return [name for name, there in left.items() if there]


# what a changed file means for --resume, by the setting that names it
CHANGED = {
    "data": "prompts are taken from the new rows by number, so some may train twice or never",
    "eval_data": "held-out figures from now on come from other rows",
}


def dependencies(config: BaseConfig) -> dict[str, tuple[str, str]]:
    """{package or file that a run's numbers depend on: (the setting that names it, version or hash)}."""
    versions_of = {name: ("", number) for name, number in versions().items()}
    for name, value in dataclasses.asdict(config).items():
        texts = [x for x in (value if isinstance(value, list) else [value]) if isinstance(x, str)]
        texts = [text for text in texts if Path(text).suffix and name != "metrics_file"]
        specs = [text.partition("*")[0].rpartition(":")[0] for text in texts]  # of FILE.py:function*weight
        for file in filter(os.path.isfile, texts + specs):
            with open(file, "rb") as f:
                versions_of[file] = name, "sha256 " + hashlib.file_digest(f, "sha256").hexdigest()[:16]
    return versions_of


def warn_of_changes(config: BaseConfig) -> None:
    """Warn of each dependency that has changed since the run was last started."""
    path = Path(config.output_dir) / "versions.json"
    saved = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    for dependency, (name, value) in dependencies(config).items():
        if saved.get(dependency, value) != value:
            effect = CHANGED.get(name, "earlier steps ran with another one, so figures may not be comparable")
            say(f"warning: got --resume with a changed {dependency}: {effect}")


def check_folder(config: BaseConfig) -> bool:
    """Whether --resume continues the run in the output folder; a folder without a finished step is free.

    UserError: it holds a run, and --resume is not given or changes settings that may not change.
    """
    folder, settings = Path(config.output_dir), dataclasses.asdict(config)
    work, saved = finished_work(folder), saved_settings(folder)
    if not work:
        foreign = [name for name in WRITTEN if not saved and (folder / name).exists()]
        got = f"got output_dir {str(folder)!r}, which has {', '.join(foreign)} and no run's config.json"
        need(not foreign, f"{got}; expected a new folder, as these files would be replaced; try another --output_dir")
        return False
    got = f"got output_dir {str(folder)!r}, which holds a run ({', '.join(work)}); expected a new folder"
    need(config.resume, f"{got}; try --resume to continue, or another --output_dir")
    changed = [k for k in settings if k not in free_on_resume(config) and k in saved and saved[k] != settings[k]]
    text = ", ".join(f"{k} {saved[k]!r} -> {settings[k]!r}" for k in changed)
    need(not changed, f"got --resume with changed settings: {text}; expected the run's; try a new --output_dir")
    gone = ", ".join(f"{k} {value!r}" for k, value in saved.items() if k not in settings and value)
    if gone:
        say(f"note: got --resume of an older version's run, whose settings {gone} have no effect any more")
    warn_of_changes(config)
    return True


def make_folder(config: BaseConfig) -> None:
    """Create the output folder, once everybody has looked for another run's files in it, and keep other runs out."""
    gather_rows([None])
    try:
        Path(config.output_dir).mkdir(parents=True, exist_ok=True)
        if is_first():
            LOCKS.append(Path(config.output_dir, ".lock").open("a"))
            fcntl.lockf(LOCKS[-1], fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP):  # a file system without locks
            return
        taken = isinstance(error, BlockingIOError)
        got = f"got output_dir {config.output_dir!r} ({'another run is writing to it' if taken else error})"
        raise UserError(f"{got}; expected a folder to write to; try another --output_dir") from None


def versions() -> dict:
    from importlib.metadata import PackageNotFoundError, version

    numbers = {"python": sys.version.split()[0]}
    for name in ("torch", "transformers", "tokenizers", "numpy", "peft", "trl", "vllm", "math-verify"):
        with contextlib.suppress(PackageNotFoundError):
            numbers[name] = version(name)
    return numbers


def write_settings(config: BaseConfig) -> None:
    """Write config.json, and versions.json with the dependencies, once all else is known to be in order."""
    if world()[0] == 0:
        used = {dependency: value for dependency, (_, value) in dependencies(config).items()}
        write_text(Path(config.output_dir) / "versions.json", json.dumps(used, indent=1))
        write_text(Path(config.output_dir) / "config.json", json.dumps(dataclasses.asdict(config), indent=1))
