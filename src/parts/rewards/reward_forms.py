"""The forms that a reward function may have, and loading rewards from files."""

import contextlib
import importlib
import importlib.util
import inspect
import math
import re
import sys
from pathlib import Path

from parts.foundation.bundle import EMBEDDED_REWARDS, in_bundle
from parts.foundation.messages import UserError, need, suggest
from parts.rewards.user_code import REWARD_STATE, is_per_sample, prints_aside, user_place

REWARD_FORMS = (
    "def reward(prompt, completion, answer) -> float, or def reward(prompts, completions, answer, **kwargs) -> list"
)


REMOVED = {  # names that the reward library had: what to use
    "strict_xml_format": "soft_xml_format",
    "tag_count": "incremental_format",
    "json_format": 'json_schema.configure(schema={"type": ["object", "array"]})',
    "reasoning_quality": "no_repetition",
    "token_repetition": 'repetition_penalty.configure(unit="tokens")',
    "token_cosine_scaled": 'cosine_scaled.configure(unit="tokens", max_length=1024, exceeded=-1.0)',
    "min_length": "ideal_length",
    "language_consistency": "a function of your own",
    "kimi_length": "cosine_scaled",
    "llm_judge": "create_reward_template.py --task llm_judge",
}


def is_installed(name: str, folder: Path) -> bool:
    """Whether Python has a module of this name itself or in a folder other than `folder`."""
    places = [place for place in sys.path if Path(place or ".").resolve() != folder]
    is_standard = name in sys.builtin_module_names or name in sys.stdlib_module_names
    return is_standard or importlib.machinery.PathFinder.find_spec(name, places) is not None


def make_way(folder: Path) -> None:
    """Unload modules of other folders, libraries aside, that would hide files of this folder from its imports."""
    for file in folder.glob("*.py"):
        loaded = getattr(sys.modules.get(file.stem), "__file__", None)
        is_library = file.stem in sys.stdlib_module_names or re.search("(site|dist)-packages", str(loaded))
        if loaded and not is_library and file.stem != "__main__" and Path(loaded).resolve() != file:
            del sys.modules[file.stem]


def forget_shadows(folder: Path, names: set[str]) -> None:
    """Unload a folder's modules that are named like libraries, so that later imports get the library."""
    for name in names:
        file = getattr(sys.modules.get(name), "__file__", None)
        if file and Path(file).resolve().parent == folder and is_installed(name, folder):
            del sys.modules[name]


def importable_name(file: Path) -> str:
    """The module name of a file: its stem, so that other processes can import it, or a unique name if that is taken."""
    loaded = getattr(sys.modules.get(file.stem), "__file__", None)
    is_loaded = loaded and Path(loaded).resolve() == file
    is_free = file.stem not in sys.modules and not is_installed(file.stem, file.parent) and "." not in file.stem
    unique = f"{file.stem}_{abs(hash(str(file)))}"
    return file.stem if is_loaded or (is_free and unique not in sys.modules) else unique


SEEN = {}  # {folder: {Python file in it: hash of its bytes}}, as of the last import from the folder


def forget_edited(folder: Path) -> None:
    """Unload a folder's modules if a file in it has changed since the last import, as between cells of a notebook."""
    files = {}
    for file in folder.glob("*.py"):
        with contextlib.suppress(OSError):
            files[file] = hash(file.read_bytes())
    if SEEN.get(folder, files) != files:
        places = {name: getattr(module, "__dict__", {}).get("__file__") for name, module in sys.modules.items()}
        for name in [n for n, place in places.items() if Path(str(place)).parent == folder and n != "__main__"]:
            del sys.modules[name]
    SEEN[folder] = files


def import_file(kind: str, spec: str, file: str):
    """Import a user's file by its path, once unless it is edited; `kind` and `spec` name it in error messages.

    Other processes can import it by its name, as `multiprocessing` does. If a reward changes the process, such as its
    working folder, only rewards see the change.
    """
    path = Path(file).resolve()
    with REWARD_STATE.swapped() if kind == "reward" else prints_aside():
        forget_edited(path.parent)
        name, earlier = importable_name(path), {*sys.modules}
        if name in sys.modules:
            return sys.modules[name]
        make_way(path.parent)
        before, sys.argv = (sys.argv, sys.path[:]), [str(path)]
        sys.path.insert(0, str(path.parent))  # it may import its neighbours
        module_spec = importlib.util.spec_from_file_location(name, path)
        sys.modules[name] = module = importlib.util.module_from_spec(module_spec)
        try:
            module_spec.loader.exec_module(module)
        except (Exception, SystemExit) as error:
            del sys.modules[name]
            problem = f"importing {file} raises {type(error).__name__}: {error}{user_place(error)}"
            of_library = REMOVED if "reward_functions_library" in str(error) else {}
            tried = "".join(f"; try {new}" for old, new in of_library.items() if f"'{old}'" in str(error))
            raise UserError(f"got {kind} {spec!r}: {problem}; expected a file that imports{tried}") from error
        finally:
            forget_shadows(path.parent, {*sys.modules} - earlier - {name})
            if kind != "reward":
                sys.argv, sys.path[:] = before
    sys.path.append(str(path.parent))
    return module


def is_weight(value) -> bool:
    """Whether a value is a finite number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def list_weights(spec: str, members: dict, functions: list, named: str) -> list[float]:
    """Weights of a list of functions: its attribute `weights`, or the file's list that the spec names, `named`.

    Raises:
        UserError: there are no weights, or not one for each function.
    """
    lists = {n: [*v] for n, v in members.items() if isinstance(v, list | tuple) and v and all(map(is_weight, v))}
    preset, many = getattr(functions, "weights", None), f"got reward {spec!r}: {len(functions)} functions"
    if named:
        got = f"got reward {spec!r}: a list with weights of its own, {preset}"
        need(preset is None, f"{got}; expected no others")
        expected = f"one of {', '.join(lists)}" if lists else "such a list in the file"
        got = f"got reward {spec!r}: no list of numbers {named!r}"
        need(named in lists, f"{got}; expected {expected}{suggest(named, lists)}")
        preset = lists[named]
    elif preset is None and len(functions) > 1:
        fits = [name for name, values in lists.items() if len(values) == len(functions)]
        advice = fits[0] if fits else f"WEIGHTS, after WEIGHTS = {[1.0] * len(functions)} in the file"
        target = spec.partition("*")[0]
        raise UserError(f"{many} without weights; expected one for each; try {target}*{advice}")
    weights = [1.0] if preset is None else preset
    need(len(weights) == len(functions), f"{many} with {len(weights)} weights; expected one for each")
    return weights


def is_reward(member, names: tuple[str, ...] = ("completions",)) -> bool:
    """Whether a member of a library is a function or callable object with one of the parameters `names`."""
    try:
        return not inspect.isclass(member) and bool({*names} & {*inspect.signature(member).parameters})
    except (TypeError, ValueError):
        return False


def is_preset(member) -> bool:
    """Whether a member of a library is a list of functions with weights."""
    return isinstance(member, list) and hasattr(member, "weights")


def library_rewards(file: str) -> dict:
    """{name: function or preset} of a reward library."""
    need(Path(file).is_file(), f"got library {file!r}, not a file; expected a Python file; try FILE.py:function")
    members = vars(import_file("library", file, file))
    return {n: m for n, m in members.items() if not n.startswith("_") and (is_reward(m) or is_preset(m))}


def spec_parts(spec: str) -> tuple[str, str, str]:
    """(file, name, weight) of `FILE.py:name[*weight]`, as text."""
    target, _, weight = spec.partition("*")
    file, _, name = target.rpartition(":")
    return file, name, weight


def instead_of(name: str, known: list[str]) -> str:
    """What to try for a name that does not exist."""
    return f"; try {REMOVED[name]}" if name in REMOVED and "cosine_scaled" in known else suggest(name, known)


def full_spec(spec: str) -> str:
    """`FILE.py:name[*weight]` for a spec; a bare name always means the library's."""
    name = spec.partition("*")[0]
    if ":" in name:
        return spec
    expected = "expected FILE.py:function[*weight], or a name of `reward_preflight.py --list`"
    need(name.isidentifier(), f"got reward {spec!r}; {expected}")
    if name not in (names := library_rewards(EMBEDDED_REWARDS)):
        raise UserError(f"got reward {spec!r}; {expected}{instead_of(name, [*names])}")
    return f"{EMBEDDED_REWARDS}:{spec}"


def find_reward(spec: str):
    """(The function or list of functions that a spec names, the members of its file)."""
    file, name, _ = spec_parts(full_spec(spec))
    need(file and Path(file).is_file(), f"got reward {spec!r}: no file {file!r}; expected FILE.py:function[*weight]")
    module = import_file("reward", spec, file)
    members = vars(module)
    reward = getattr(module, name, None)
    if isinstance(reward, list) and reward and all(map(callable, reward)):
        return reward, members
    defined = {n: m for n, m in members.items() if getattr(m, "__module__", "") == module.__name__}
    known = [n for n, m in defined.items() if callable(m) and n == getattr(m, "__name__", n) and not n.startswith("_")]
    rewards = [n for n in known if is_reward(defined[n], ("completion", "completions"))]
    known = rewards or known  # a library has other functions too
    got = f"got reward {spec!r}: {file} has no function {name!r}"
    need(callable(reward), f"{got}; expected one of {', '.join(known)}{instead_of(name, known)}")
    need(not inspect.isclass(reward), f"got {spec}, a class; expected a function or an instance; try reward = {name}()")
    return reward, members


def weight_of(spec: str) -> float:
    """The number after the star of a spec, or 1."""
    text = spec_parts(spec)[2]
    try:
        weight = float(text or 1.0)
    except ValueError:
        expected = "expected FILE.py:function[*weight], or FILE.py:REWARDS*WEIGHTS with two lists of the file"
        raise UserError(f"got reward {spec!r}: {text!r} is not a number; {expected}") from None
    need(math.isfinite(weight), f"got reward {spec!r}: weight {weight}; expected a finite number")
    return weight


def refuse_other_forms(spec: str, function) -> None:
    """Raise UserError for verl's form, `compute_score(solution_str, …)`, and for one with names of both of ours."""
    try:
        names = {*inspect.signature(function).parameters}
    except ValueError:  # a builtin
        return
    got = f"got reward {spec!r}, which has verl's form; expected {REWARD_FORMS}"
    target = spec.partition("*")[0]
    port = f"python {in_bundle('scripts/create_reward_template.py')} --from {target} --output my_reward.py"
    need(not {"solution_str", "ground_truth"} <= names, f"{got}; try {port}")
    both = [name for name in ("prompt", "completion", "prompts", "completions") if name in names]
    mixed = is_per_sample(function) and {"prompts", "completions"} & names
    got = f"got reward {getattr(function, '__name__', type(function).__name__)} with {' and '.join(both)}"
    need(not mixed, f"{got}, names of both forms; expected one of them: {REWARD_FORMS}")


def load_rewards(spec: str) -> list[tuple]:
    """Load `FILE.py:name[*weight]` and return (function, weight) pairs.

    The name is a function, a preset (a list of functions with an attribute `weights`), or a list of functions whose
    weights are a list of numbers in the file, `FILE.py:REWARDS*REWARD_WEIGHTS`.
    """
    reward, members = find_reward(spec)
    for function in reward if isinstance(reward, list) else [reward]:
        refuse_other_forms(spec, function)
    if not isinstance(reward, list):
        return [(reward, weight_of(spec))]
    text = spec_parts(spec)[2]
    named = text if text.isidentifier() else ""
    factor = 1.0 if named else weight_of(spec)
    return [(f, factor * w) for f, w in zip(reward, list_weights(spec, members, reward, named), strict=True)]
