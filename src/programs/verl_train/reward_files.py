"""The reward's files, copied into the job with what they import."""

import ast
import shutil
import sys
from pathlib import Path

from parts.foundation.file_text import file_text, with_values
from parts.foundation.messages import UserError, need
from parts.learning.presets import is_own
from parts.rewards.reward_forms import load_rewards
from programs.verl_train.names import OWN_LOSS_MODULE

MODULE = file_text("job_files/module.py")  # how the modules of a job begin


def imported_names(source: str, package: list[str]) -> set[str]:
    """Dotted names that Python source may import, each with its parents; `package` is where relative ones begin."""
    names = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*above, *filter(None, [node.module])])
            names += [base, *(f"{base}.{alias.name}".strip(".") for alias in node.names)]  # a name may be a module
    parts = [name.split(".") for name in names if name]
    return {".".join(words[: i + 1]) for words in parts for i in range(len(words))}


def imported_files(path: Path) -> list[Path]:
    """The Python files beside a file that it imports, directly or through each other; itself comes first."""
    folder, files, waiting = path.parent, [], [path]
    while waiting:
        file = waiting.pop()
        if file in files:
            continue
        files.append(file)
        try:
            names = imported_names(file.read_text(encoding="utf-8"), [*file.relative_to(folder).parts[:-1]])
        except (SyntaxError, ValueError) as error:
            raise UserError(f"got {file}, which cannot be read ({error}); expected Python source in UTF-8") from None
        for name in sorted(names):
            base = folder.joinpath(*name.split("."))
            if name.split(".")[0] not in sys.stdlib_module_names:
                waiting += [f for f in (base.with_name(f"{base.name}.py"), base / "__init__.py") if f.is_file()]
    return files


def file_of(spec: str) -> Path:
    """The file of FILE.py:function*weight."""
    return Path(spec.partition("*")[0].rpartition(":")[0]).resolve()


def copy_with_imports(path: Path, place: Path, ship: list[str]) -> None:
    """Copy a file into a folder with the files beside it that it imports; where the folder is new, `ship` too."""
    if not place.is_dir():
        place.mkdir()
        for other in map(Path, ship):  # a user's own file of a name wins
            got = f"got --ship {str(other)!r}, which is no file; expected a file that a reward or environment needs"
            need(other.is_file(), got)
            shutil.copyfile(other, place / other.name)
    for other in imported_files(path):
        copy_to = place / other.relative_to(path.parent)
        copy_to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(other, copy_to)


def moved_rewards(specs: list[str]) -> list[str]:
    """Rewards `FILE.py:function*weight` as the job folder has them: a folder for each that they come from."""
    folders, moved = {}, []
    for spec in specs:
        path = file_of(spec)
        place = folders.setdefault(path.parent, f"rewards_{len(folders)}")
        moved.append(f"{place}/{path.name}:{spec.rpartition(':')[2]}")
    return moved


def moved_functions(folder: Path, specs: dict[str, str], ship: list[str]) -> dict[str, str]:
    """{kind: FILE.py:function} of the user's own, copied into the job's folder own_KIND; not the known ones."""
    moved = {}
    for kind, spec in specs.items():
        shutil.rmtree(folder / f"own_{kind}", ignore_errors=True)
        if is_own(spec):
            copy_with_imports(file_of(spec), folder / f"own_{kind}", ship)
            moved[kind] = f"own_{kind}/{file_of(spec).name}:{spec.rpartition(':')[2]}"
    return moved


def write_module(path: Path, title: str, code: str) -> None:
    """Write a module of the job: the loader of verl_train.py's copy, then lines that use it."""
    path.write_text(f"{with_values(MODULE, title=title)}{code}\n", encoding="utf-8")


def write_reward_module(
    folder: Path,
    specs: list[str],
    columns: list[str],
    ship: list[str] = (),
    error_file: str = "",
    limits=(),
    functions=None,
):
    """Write verl_reward.py, verl_hooks.py, this file, and the reward files with what they need; returns the module.

    A reward file is copied with the files beside it that it imports, and with `ship`; nothing else leaves its folder.
    The same for an estimator of advantages and a policy loss of the user's own, {kind: FILE.py:function}; for a loss
    verl_own_loss.py, which verl imports in each worker.
    """
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(__file__, folder / "verl_train.py")
    for old in folder.glob("rewards_*"):
        shutil.rmtree(old, ignore_errors=True)
    moved = moved_rewards(specs)
    for spec, to in zip(specs, moved, strict=True):
        load_rewards(spec)  # its errors are best told here
        copy_with_imports(file_of(spec), folder / Path(to).parent, ship)
    code = f"SPECS, COLUMNS, ERROR_FILE, LIMITS = {moved!r}, {columns!r}, {error_file!r}, {tuple(limits)!r}\n"
    code += "specs = [f'{HERE}/{spec}' for spec in SPECS]\n"
    code += "batcher = sys.modules[NAME].RewardBatcher(specs, COLUMNS, ERROR_FILE, LIMITS)"
    module = folder / "verl_reward.py"
    write_module(module, "The rewards of the run", code)
    moved = moved_functions(folder, functions or {}, ship)
    code = f"sys.modules[NAME].register_estimators(HERE, {moved.get('advantage', '')!r})\n"
    code += "TokenRewardManager = sys.modules[NAME].token_reward_manager(HERE / 'verl_reward.py')\n"
    code += "StrictReplayBuffer = sys.modules[NAME].strict_replay_buffer()"
    write_module(folder / "verl_hooks.py", "The reward manager and the replay buffer of the run", code)
    loss = folder / f"{OWN_LOSS_MODULE}.py"
    loss.unlink(missing_ok=True)
    if "loss" in moved:
        write_module(loss, "The policy loss of the run", f"sys.modules[NAME].register_loss(HERE, {moved['loss']!r})")
    return module
