#!/usr/bin/env python3
# /// script
# requires-python = ">=3.11"
# dependencies = ["pyyaml", "packaging"]
# ///
"""Write the tables of scripts/migrate.py: what changed between the versions of TRL, transformers and verl.

The wheels of all minor versions are downloaded into a folder and parsed; nothing is installed or run.

- `trl_changes.json`: "configs" (fields and their defaults), "trainers" (arguments), "modules" (where a class is
  imported from), "exports" (what `from trl import` finds in the newest), "transformers" (the newest minor version
  that a TRL version allowed at its release). The histories of TrainingArguments have versions of transformers;
  fields that a TRL config does not list come from TrainingArguments.
- `verl_changes.json`: the leaf keys of ppo_trainer.yaml that changed or are gone.
- `parts/data/trl_names.json`: the newest TRL: "defaults" of TrainingArguments, and those of its configs that differ;
  "trainers" (names of their arguments), "modules" (names that its modules define).

A name has its history: {version: what holds from it on}, a default (for an argument null, for a class its module), or
{"gone": its new name, or ""}. Names that never changed since their class appeared are left out. A default is a JSON
value, or {"expr": source} if it is no literal.

    python tools/version_tables.py --cache /tmp/wheels
    python tools/version_tables.py --check               # the newest entries against the installed packages
"""

import argparse
import ast
import json
import re
import subprocess
import sys
import textwrap
import zipfile
from email import message_from_string
from importlib.util import find_spec
from pathlib import Path

import yaml
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "src" / "programs" / "migrate"
NAMES = ROOT / "src" / "parts" / "data" / "trl_names.json"
PINNED = {"trl": "requirements.txt", "transformers": "requirements.txt", "verl": "requirements-verl.txt"}
OLDEST = {"trl": "0.9", "transformers": "4.31", "verl": "0.2"}
METHODS = (
    "GRPO",
    "RLOO",
    "SFT",
    "DPO",
    "Reward",
    "GKD",
    "Distillation",
    "OnlineDPO",
    "PPO",
    "PPOv2",
    "KTO",
    "ORPO",
    "CPO",
)
CONFIGS = (*(f"{name}Config" for name in METHODS), "ModelConfig")
TRAINERS = tuple(f"{name}Trainer" for name in METHODS)
HELPERS = (
    "AutoModelForCausalLMWithValueHead",
    "DataCollatorForCompletionOnlyLM",
    "ModelConfig",
    "ScriptArguments",
    "TrlParser",
    "get_kbit_device_map",
    "get_peft_config",
    "get_quantization_config",
    "setup_chat_format",
)
FOLDERS = (r"trl/trainer/\w+\.py", r"trl/experimental/\w+/\w+\.py", r"trl/(scripts/|commands/)?\w+\.py")
OF_PPO = json.loads((FOLDER / "names.json").read_text(encoding="utf-8"))["carried"].values()
CARRIED = {name for terms in OF_PPO for term in terms for name in term.split(" * ")}  # from the gone configs of PPO
RENAMED = json.loads((Path(__file__).with_name("renamed_arguments.json")).read_text(encoding="utf-8"))


class Sources:
    """Texts of one version of a package: a wheel, or the installed package."""

    def __init__(self, place: Path, prefix: str = ""):
        if place.is_dir():
            paths = {
                f"{prefix}{path.relative_to(place).as_posix()}": path for path in place.rglob("*") if path.is_file()
            }
            self.names, self.text = list(paths), lambda name: paths[name].read_text(encoding="utf-8")
            return
        wheel = zipfile.ZipFile(place)
        self.names, self.text = wheel.namelist(), lambda name: wheel.read(name).decode("utf-8")
        self.day = max(info.date_time for info in wheel.infolist())
        metadata = next(name for name in self.names if name.endswith(".dist-info/METADATA"))
        needs = message_from_string(self.text(metadata)).get_all("Requires-Dist") or []
        self.needs = [need for need in map(Requirement, needs) if not need.marker or "extra" not in str(need.marker)]


def pinned(package: str) -> Version:
    """The version that this repository is tested with."""
    text = (ROOT / PINNED[package]).read_text(encoding="utf-8")
    return Version(re.search(rf"^{package}==(\S+)", text, re.MULTILINE)[1])


def wheels(package: str, cache: Path) -> dict[str, Sources]:
    """{minor version: sources of its newest patch}, oldest first, up to the pinned; downloads what the folder lacks."""
    pip = [sys.executable, "-m", "pip"]
    listing = subprocess.run([*pip, "index", "versions", package], capture_output=True, text=True, check=True).stdout
    newest = {}
    for text in re.search(r"Available versions: (.*)", listing)[1].split(", "):
        number = Version(text)
        minor = f"{number.major}.{number.minor}"
        in_range = Version(OLDEST[package]) <= number <= pinned(package)
        if in_range and number > Version(newest.get(minor, "0")):
            newest[minor] = text
    sources = {}
    for minor in sorted(newest, key=Version):
        pattern = f"{package}-{newest[minor]}-*.whl"
        if not list(cache.glob(pattern)):
            flags = ["-q", "--no-deps", "--only-binary", ":all:", "-d", str(cache)]
            subprocess.run([*pip, "download", *flags, f"{package}=={newest[minor]}"], check=True)
        sources[minor] = Sources(next(cache.glob(pattern)))
    return sources


def literal(node: ast.expr | None, names: dict[str, ast.expr]) -> object:
    """The value of a default; {"expr": source} if it is no literal."""
    node = names.get(node.id, node) if isinstance(node, ast.Name) else node
    try:
        value = ast.literal_eval(node)
        return json.loads(json.dumps(value))  # tuples become lists
    except (ValueError, TypeError):
        return {"expr": ast.unparse(node)}


def field_default(node: ast.expr | None, names: dict[str, ast.expr]) -> object:
    """Default of a field of a dataclass."""
    if node is None:
        return "<required>"
    if isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] == "field":
        given = {keyword.arg: keyword.value for keyword in node.keywords}
        factory = given.get("default_factory")
        if isinstance(factory, ast.Lambda):
            return literal(factory.body, names)
        if isinstance(factory, ast.Name) and factory.id in ("list", "dict"):
            return {"list": [], "dict": {}}[factory.id]
        return literal(factory, names) if factory else field_default(given.get("default"), names)
    return literal(node, names)


class Classes:
    """Classes of one version by name; a class that only redirects to another of its name does not count."""

    def __init__(self, sources: Sources, folders: tuple[str, ...]):
        self.nodes: dict[str, ast.ClassDef] = {}
        for folder in folders:  # the first folder with a class has it
            for name in sorted(sources.names):
                if re.fullmatch(folder, name):
                    self.add(ast.parse(sources.text(name)))

    def add(self, tree: ast.Module):
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and not any(base == f"_{node.name}" for base in bases(node)):
                self.nodes.setdefault(node.name, node)

    def fields(self, name: str) -> dict[str, object]:
        """{field: default} of a dataclass, with those of the bases that the package has."""
        node = self.nodes.get(name)
        if node is None:
            return {}
        result = {}
        for base in reversed(bases(node)):
            result.update(self.fields(base))
        assigned = [x for x in ast.walk(node) if isinstance(x, ast.Assign) and isinstance(x.targets[0], ast.Name)]
        names = {x.targets[0].id: x.value for x in assigned}
        for item in node.body:
            if isinstance(item, ast.AnnAssign) and not item.target.id.startswith("_"):
                result[item.target.id] = field_default(item.value, names)
        return result

    def inherits(self, name: str, base: str) -> bool:
        """Whether a class derives from another, directly or not."""
        node = self.nodes.get(name)
        return node is not None and any(x == base or self.inherits(x, base) for x in bases(node))

    def arguments(self, name: str) -> list[str]:
        """The arguments of a class's `__init__`, or of its base's."""
        node = self.nodes.get(name)
        if node is None:
            return []
        start = next((x for x in node.body if isinstance(x, ast.FunctionDef) and x.name == "__init__"), None)
        if start is None:
            return next(filter(None, map(self.arguments, bases(node))), [])
        return [x.arg for x in (*start.args.args[1:], *start.args.kwonlyargs)]


def bases(node: ast.ClassDef) -> list[str]:
    """Names of a class's bases, without their modules."""
    return [ast.unparse(base).split(".")[-1] for base in node.bases]


def modules(sources: Sources) -> dict[str, str]:
    """{class: module to import it from}, `trl` first."""
    result = {}
    for name in sorted(x for x in sources.names if re.fullmatch(r"trl/(experimental/\w+/)?__init__\.py", x)):
        tree, module = ast.parse(sources.text(name)), name.removesuffix("/__init__.py").replace("/", ".")
        aliases = [alias.name for x in ast.walk(tree) if isinstance(x, ast.ImportFrom) for alias in x.names]
        texts = [x.value for x in ast.walk(tree) if isinstance(x, ast.Constant) and isinstance(x.value, str)]
        for exported in {*aliases, *texts} & {*CONFIGS, *TRAINERS, *HELPERS}:
            if module == "trl" or result.get(exported) != "trl":
                result[exported] = module
    return result


def exports(sources: Sources) -> list[str]:
    """What `from trl import` finds."""
    nodes = ast.walk(ast.parse(sources.text("trl/__init__.py")))
    texts = {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    return sorted(text for text in texts if text.isidentifier() and not text.startswith("_"))


def changes(versions: dict[str, dict], renamed: dict | None = None, kept=()) -> dict[str, dict]:
    """{name: its history} for names that changed over {version: {name: value}}; versions without names are skipped."""
    present = {number: values for number, values in versions.items() if values}
    histories: dict[str, dict] = {}
    for number, values in present.items():
        for name, value in values.items():
            history = histories.setdefault(name, {})
            if not history or not is_same(newest(history), value):
                history[number] = value
        for name in histories.keys() - values.keys():
            if not is_gone(newest(histories[name])):
                histories[name][number] = {"gone": new_name(name, renamed or {})}
    first = next(iter(present), None)
    return {
        name: history
        for name, history in sorted(histories.items())
        if len(history) > 1 or first not in history or name in kept
    }


def newest(history: dict):
    """What holds of a name today."""
    return [*history.values()][-1]


def is_gone(value) -> bool:
    return isinstance(value, dict) and "gone" in value


def is_same(old, new) -> bool:
    """Whether two defaults mean the same, as 0 and 0.0, or {} and None do."""
    old, new = (None if value == {} else json.loads(json.dumps(value, default=str)) for value in (old, new))
    return old == new and isinstance(old, bool) is isinstance(new, bool)


def new_name(name: str, renamed: dict[str, str]) -> str:
    """Today's name of a key, from its own entry or that of a section, which ends with a dot; "" if it has none."""
    section = next((old for old in renamed if old.endswith(".") and name.startswith(old)), None)
    return renamed.get(name) or (renamed[section] + name.removeprefix(section) if section else "")


def trl_tables(trl: dict[str, Sources], transformers: dict[str, Sources]) -> dict:
    """Content of trl_changes.json."""
    classes = {number: Classes(sources, FOLDERS) for number, sources in trl.items()}
    arguments = {
        number: Classes(sources, (r"transformers/training_args\.py",)).fields("TrainingArguments")
        for number, sources in transformers.items()
    }
    base = changes(arguments, renamed=RENAMED["TrainingArguments"])
    transformers_of = {number: allowed(sources, transformers) for number, sources in trl.items()}
    inherited = {number: arguments[newest] for number, newest in transformers_of.items()}
    configs, trainers, newest_trl = {}, {}, [*trl][-1]
    for name in CONFIGS:
        versions = with_inherited({n: c.fields(name) for n, c in classes.items()}, inherited, classes, name)
        overridden = {field for c in classes.values() for field in c.fields(name)} & {*inherited[newest_trl]}
        configs[name] = changes(versions, renamed=RENAMED["configs"] | RENAMED.get(name, {}), kept={*base, *overridden})
        if name.startswith("PPO"):
            configs[name] = {field: history for field, history in configs[name].items() if field in CARRIED}
    for name in TRAINERS:
        versions = {n: dict.fromkeys(c.arguments(name)) for n, c in classes.items()}
        config = name.replace("Trainer", "Config")
        today = next(reversed(classes.values())).fields(config)
        moved = {field: f"args.{field}" for field in today}
        moved |= {old: f"args.{new}" for old, new in RENAMED["configs"].items() if new in today}
        gone = {argument for arguments in versions.values() for argument in arguments} - set([*versions.values()][-1])
        moved = {old: new for old, new in moved.items() if old in gone}
        trainers[name] = changes(versions, renamed=moved | RENAMED["trainers"] | RENAMED.get(name, {}))
    return {
        "versions": list(trl),
        "transformers": transformers_of,
        "exports": exports(trl[newest_trl]),
        "modules": changes({number: modules(sources) for number, sources in trl.items()}),
        "trainers": {name: table for name, table in trainers.items() if table},
        "configs": {"TrainingArguments": base, **configs},
    }


def with_inherited(versions: dict, inherited: dict, classes: dict[str, Classes], name: str) -> dict:
    """{version: fields of a config}; where a version lacks a field of others, TrainingArguments' field counts."""
    anywhere = {field for fields in versions.values() for field in fields}
    result = {}
    for number, fields in versions.items():
        below = inherited[number] if classes[number].inherits(name, "TrainingArguments") else {}
        result[number] = {field: value for field, value in below.items() if field in anywhere} | fields
    return result


def allowed(sources: Sources, transformers: dict[str, Sources]) -> str:
    """The newest minor version of transformers that a TRL version allowed when it was released."""
    bounds = next(need.specifier for need in sources.needs if need.name == "transformers")
    fitting = [number for number in transformers if bounds.contains(f"{number}.99")]
    return max((n for n in fitting if transformers[n].day <= sources.day), default=fitting[0], key=Version)


def leaves(node: dict, prefix: str = "") -> dict[str, object]:
    """{dotted key: value} of a configuration's leaves, without those that only profile."""
    result = {}
    for name, value in node.items():
        if name in ("_target_", "defaults", "hydra") or re.search("profil|nsight", name):
            continue
        if isinstance(value, dict) and value:
            result.update(leaves(value, f"{prefix}{name}."))
        else:
            result[f"{prefix}{name}"] = plain(value, prefix)
    return result


def plain(value: object, prefix: str) -> object:
    """A value of verl's YAML: `1e-6` as a number, `${oc.select:.a,1}` in section x as `${x.a}`."""
    if not isinstance(value, str):
        return value
    if re.fullmatch(r"\d+(\.\d+)?e-?\d+", value):
        return float(value)
    reference = re.fullmatch(r"\$\{(?:oc\.select:)?(\.?[\w.]+)(?:,.*)?\}", value)
    if reference is None:
        return value
    return "${" + (prefix.removesuffix(".") if reference[1].startswith(".") else "") + reference[1] + "}"


def verl_keys(sources: Sources) -> dict[str, object]:
    """{key: value} of verl's configuration; from 0.5 on the package has the composed file."""
    folder = "verl/trainer/config/"
    names = [f"{folder}_generated_ppo_trainer.yaml", f"{folder}ppo_trainer.yaml"]
    return leaves(yaml.safe_load(sources.text(next(name for name in names if name in sources.names))))


def text_of(tables: dict) -> str:
    """JSON with lines of at most 120 characters, unless one entry is longer."""
    text = json.dumps(tables, separators=(",\x00", ":"))  # a break only between entries, not at a space of a string
    lines = textwrap.wrap(text.replace(" ", "\xa0").replace("\x00", " "), 120, break_on_hyphens=False)
    return "\n".join(lines).replace("\xa0", " ") + "\n"


def trl_names(trl: Sources, transformers: Sources) -> dict:
    """Content of trl_names.json."""
    classes = Classes(trl, FOLDERS)
    base = Classes(transformers, (r"transformers/training_args\.py",)).fields("TrainingArguments")
    experimental = {m[1] for name in trl.names if (m := re.match(r"trl/experimental/([a-z]\w+)(/.*)?\.py", name))}
    pattern = r"trl/((trainer|models|extras|rewards|scripts)/)?[a-z]\w+\.py"
    files = [name for name in trl.names if re.fullmatch(pattern, name)]
    configs = {
        name: {k: v for k, v in classes.fields(name).items() if k not in base or v != base[k]} for name in CONFIGS
    }
    return {
        "defaults": {"TrainingArguments": base} | {name: fields for name, fields in configs.items() if fields},
        "trainers": {name: classes.arguments(name) for name in TRAINERS if classes.arguments(name)},
        "modules": {name.removesuffix(".py").replace("/", "."): top_names(trl.text(name)) for name in sorted(files)}
        | {"trl.experimental": sorted(experimental)},
    }


def top_names(text: str) -> list[str]:
    """The public classes, functions and constants of a module, but for lower-case texts, such as chat templates."""
    nodes = ast.walk(ast.parse(text))
    names = {node.name for node in nodes if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.col_offset == 0}
    assigned = [node.targets[0] for node in ast.parse(text).body if isinstance(node, ast.Assign)]
    names |= {target.id for target in assigned if isinstance(target, ast.Name) and not target.id.islower()}
    return sorted(name for name in names if not name.startswith("_"))


def outdated() -> list[str]:
    """Entries of the tables whose newest state differs from the installed packages."""
    names = [package for package in OLDEST if find_spec(package)]
    roots = {name: Path(find_spec(name).submodule_search_locations[0]) for name in names}
    installed = {name: Sources(root, f"{name}/") for name, root in roots.items()}
    tables, actual = {}, {}
    if "trl" in installed:
        trl = json.loads((FOLDER / "trl_changes.json").read_text(encoding="utf-8"))
        classes = Classes(installed["trl"], FOLDERS)
        base = Classes(installed["transformers"], (r"transformers/training_args\.py",)).fields("TrainingArguments")
        tables |= {name: table for kind in ("configs", "trainers") for name, table in trl[kind].items()}
        for name in CONFIGS:
            actual[name] = (base if classes.inherits(name, "TrainingArguments") else {}) | classes.fields(name)
        actual |= {name: dict.fromkeys(classes.arguments(name)) for name in TRAINERS} | {"TrainingArguments": base}
        if trl["exports"] != exports(installed["trl"]):
            return ["exports: the table is not what the installed trl has"]
        names = trl_names(installed["trl"], installed["transformers"])
        if json.loads(NAMES.read_text(encoding="utf-8")) != json.loads(json.dumps(names)):
            return ["trl_names.json: the table is not what the installed trl has"]
    if "verl" in installed:
        tables["verl"] = json.loads((FOLDER / "verl_changes.json").read_text(encoding="utf-8"))["keys"]
        actual["verl"] = verl_keys(installed["verl"])
    lines = []
    for name, key, last in [(name, key, newest(h)) for name, table in tables.items() for key, h in table.items()]:
        today = actual[name].get(key, {"gone": ""})
        if actual[name] and not (is_same(last, today) or (is_gone(last) and is_gone(today))):
            lines.append(f"{name}.{key}: the table ends with {last}, installed is {today}")
    return lines


def main() -> int:
    """Command line entry; returns the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--cache", type=Path, help="folder for the wheels, outside the repository")
    parser.add_argument("--check", action="store_true", help="exit 1 where the tables are not the installed packages'")
    args = parser.parse_args()
    if args.check:
        print("\n".join(lines := outdated()) or "the tables end with what is installed")
        return int(bool(lines))
    if args.cache is None:
        parser.error("got no --cache; expected a folder for the wheels; try --cache /tmp/wheels")
    args.cache.mkdir(parents=True, exist_ok=True)
    packages = {package: wheels(package, args.cache) for package in OLDEST}
    keys = changes({n: verl_keys(s) for n, s in packages["verl"].items()}, renamed=RENAMED["verl"])
    tables = {
        "trl_changes.json": trl_tables(packages["trl"], packages["transformers"]),
        "verl_changes.json": {
            "versions": list(packages["verl"]),
            "keys": {name: history for name, history in keys.items() if len(history) > 1},
        },
    }
    today = [[*packages[name].values()][-1] for name in ("trl", "transformers")]
    NAMES.write_text(text_of(trl_names(*today)), encoding="utf-8")
    for name, content in tables.items():
        (FOLDER / name).write_text(text_of(content), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
