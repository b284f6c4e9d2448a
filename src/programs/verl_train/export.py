"""--export: a job as four files that need neither this script nor its bundle."""

import ast
import dataclasses
import inspect
import json
import math
import shlex
import tempfile
from pathlib import Path

from parts.foundation.messages import need, say, tell
from parts.learning.presets import is_own
from parts.rewards.extracts import bound_names, extract
from parts.rewards.reward_forms import find_reward, is_per_sample, weight_of
from programs.verl_train.data import write_parquet_file
from programs.verl_train.export_texts import COMPUTE_SCORE, FEW, PORT, RUN
from programs.verl_train.export_trial import told, tried
from programs.verl_train.from_trl import TrlRun, shown_setting
from programs.verl_train.hydra import Override
from programs.verl_train.job_folder import prepare_job, reward_specs
from programs.verl_train.known_names import name_findings
from programs.verl_train.names import ADVANTAGES, KWARGS, OWN_NAME, SAMPLER, TABLE
from programs.verl_train.overrides import Layout
from programs.verl_train.reward_files import imported_files
from programs.verl_train.rewards import bits_of
from programs.verl_train.run_script import write_script
from programs.verl_train.settings import VERL, Config

OF_THE_HOOKS = ("reward.reward_manager.", "reward.reward_kwargs.", f"{SAMPLER}.", f"{KWARGS}.")  # verl_hooks.py's
GENERATED = set(
    "BITS COLUMNS GOLD GOLD_IS_JSON WEIGHTS columns_of compute_score row prompt completion parts total named".split()
)
UNSAID = ("override", "reward", "data", "eval_data", "output_dir", "cpus")  # whose values would be of this machine


def check_exportable(config: Config) -> None:
    """Raise UserError for what needs verl_hooks.py or verl_environment.py, so this script beside it."""
    hooked = ["environment", "dynamic_sampling", "missing_eos_penalty", "overlong_share"]
    found = [f"{name} {getattr(config, name)}" for name in hooked if getattr(config, name)]
    found += [f"advantage {config.advantage}"] * ADVANTAGES.get(config.advantage, OWN_NAME).endswith("_ours")
    found += [f"loss {config.loss}"] * is_own(config.loss)
    found += [f"nodes {config.nodes}"] * (config.nodes > 1)
    expected = "expected what verl has by itself, on one machine; try --print, whose folder takes this script along"
    need(not found, f"got --export with {', '.join(found)}; {expected}")


def embedded_rewards(specs: list[str]) -> tuple[str, dict]:
    """Source with the reward functions and what they use, and {function: weight}; UserError where it is not enough."""
    files = {Path(spec.partition("*")[0].rpartition(":")[0]).resolve() for spec in specs}
    need(len(files) == 1, f"got rewards of {len(files)} files; expected those of one with --export; try --print")
    file = files.pop()
    beside = [other.name for other in imported_files(file)[1:]]
    alone = "expected a file that stands alone with --export; try --print, whose folder takes them along"
    need(not beside, f"got {file.name}, which imports {', '.join(beside)}; {alone}")
    weights = {}
    for spec in specs:
        found, _ = find_reward(spec)
        plain = inspect.isfunction(found) and not inspect.iscoroutinefunction(found) and found.__name__ not in weights
        plain = plain and spec.partition("*")[0].endswith(f":{found.__name__}")  # so no lambda, and none twice
        need(plain, f"got reward {spec!r}; expected plain functions with --export; try --print, which takes all kinds")
        weights[found.__name__] = weight_of(spec)
    source, names = extract(file.read_text(encoding="utf-8"), list(weights)), set()
    for statement in ast.parse(source).body:
        names |= {statement.name} if hasattr(statement, "name") else bound_names(statement)
    taken = ", ".join(sorted(names & GENERATED))
    need(not taken, f"got {file.name} with the names {taken}; expected others, as --export uses these; try --print")
    return source, weights


def call_of(function, columns: list[str], name: str) -> str:
    """The source of one entry of `parts`: a call for one sample, or for a batch of one."""
    parameters = inspect.signature(function).parameters.values()
    rest = any(p.kind is p.VAR_KEYWORD for p in parameters)
    named = [p.name for p in parameters if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
    one = is_per_sample(function)
    own = (
        {"prompt": "prompt", "completion": "solution_str"}
        if one
        else {"prompts": "[prompt]", "completions": "[completion]"}
    )
    given = [f"{key}={value}" for key, value in own.items() if rest or key in named]
    if rest:
        given.append("**row" if one else "**{key: [value] for key, value in row.items()}")
    else:
        given += [f'{key}=row["{key}"]' if one else f'{key}=[row["{key}"]]' for key in columns if key in named]
    return f'        "{name}": {name}({", ".join(given)}){"" if one else "[0]"},'


def reward_text(specs: list[str], rows: list[dict], columns: list[str], group_size: int) -> str:
    """verl_reward.py: the functions themselves, and verl's call."""
    source, weights = embedded_rewards(specs)
    fields = {row["extra_info"]["ground_truth_field"] for row in rows}
    need(
        len(fields) == 1,
        f"got rows with ground truth in {', '.join(sorted(fields))}; expected one column with --export",
    )
    gold, _, form = fields.pop().partition(":")
    functions = {spec: find_reward(spec)[0] for spec in specs}
    calls = "\n".join(call_of(function, columns, function.__name__) for function in functions.values())
    is_text = rows[0]["extra_info"].get("prompt_is_text", False)
    tail = COMPUTE_SCORE.format(
        verl=VERL,
        columns=[name for name in columns if name != gold],
        gold="" if gold == "none" else gold,
        is_json=bool(form),
        weights=weights,
        bits=bits_of(group_size),
        completion="solution_str" if is_text else '[{"role": "assistant", "content": solution_str}]',
        calls=calls,
    )
    return with_imports(source) + tail


def with_imports(source: str) -> str:
    """Python source that imports json and math, behind its docstring and imports of __future__."""
    tree, lines = ast.parse(source), source.splitlines()
    imports = [alias for node in tree.body if isinstance(node, ast.Import) for alias in node.names]
    lacking = {"json", "math"} - {alias.name for alias in imports if not alias.asname}
    if not lacking:
        return source
    head = 0
    for node in tree.body:
        docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if not docstring and getattr(node, "module", "") != "__future__":
            break
        head = node.end_lineno
    before, after = lines[:head], lines[head:]
    while after and not after[0].strip():
        after.pop(0)
    gap = [] if after and after[0].startswith(("import ", "from ")) else [""] * 2
    ours = [f"import {name}" for name in sorted(lacking)]
    return "\n".join([*before, *[""] * bool(before), *ours, *gap, *after]) + "\n"


def with_places(text: str, places: dict[str, str]) -> str:
    """Text with the folder's paths as variables."""
    for place, name in places.items():
        text = text.replace(place, name)
    return text


def shell_word(text: str, places: dict[str, str]) -> str:
    """A word of bash with the folder's paths as variables."""
    if "'" not in text and not any(place in text for place in places):
        return shlex.quote(text)
    for mark in ("\\", '"', "$", "`"):
        text = text.replace(mark, f"\\{mark}")
    return f'"{with_places(text, places)}"'


def run_text(config: Config, overrides: list[Override], places: dict[str, str]) -> str:
    """run.sh: the command; the first override of a setting has the setting behind it."""
    lines, source, cpus = [], None, 1
    for override in sorted(overrides, key=lambda o: list(TABLE).index(o.source) if o.source in TABLE else len(TABLE)):
        word, comment = shell_word(override.text(), places), ""
        if override.source != source:
            source = override.source
            value = "" if source in UNSAID else f": {getattr(config, source)}"
            comment = f"  # {source}{value}".replace("\n", " ").rstrip(": ")
        if override.key == "ray_kwargs.ray_init.num_cpus":
            cpus, word = override.value, f'"{run_word(override)}"'
        lines.append(f"  {word}{comment}")
    what = Path(config.from_trl).name if config.from_trl else config.algorithm
    return RUN.format(what=what, verl=VERL, cpus=cpus, overrides="\n".join(lines))


def trl_names(run: TrlRun, source: str, group: list[Override]) -> list[str]:
    """The names of TRL's that the overrides of a setting follow from."""
    keys = {override.key.lstrip("+") for override in group}
    if source == "override":
        written = {f"{override.key}={override.value}" for override in group}
        return run.taken["override"] if written <= {*run.settings.get("override", [])} else []
    # those of a setting that has no override of its own, as minibatches, stand with the key that they decide
    beside = [name for name in run.taken if keys & {*TABLE.get(name, ())} and name in ("minibatches", "kl_in")]
    return list(dict.fromkeys(name for setting in (source, *beside) for name in run.taken.get(setting, ())))


def port_value(run: TrlRun, name: str) -> str:
    """A value of TRL's as a cell, without this machine's folders."""
    value, origin = run.values[name], " (as many as GPUs)" if name == "processes" else " (default)"
    if name.endswith("_dataset"):
        value = Path(value).name if Path(value).is_file() else value
    return f"{value!r}{'' if name in run.given else origin}".replace("|", "\\|")


def run_word(override: Override) -> str:
    """An override as run.sh has it."""
    return f"{override.key}=$cpus" if override.key == "ray_kwargs.ray_init.num_cpus" else override.text()


def port_rows(run: TrlRun, overrides: list[Override], places: dict[str, str]) -> tuple[list[str], list[str]]:
    """(rows of the table, each override once; names of TRL's that are in none of them)."""
    rows, rest, shown = [], [], set()
    sources = [*run.taken, *(override.source for override in overrides)]
    for source in dict.fromkeys(sources):
        group = [override for override in overrides if override.source == source]
        names = trl_names(run, source, group)
        words = "<br>".join(f"`{with_places(run_word(override), places)}`" for override in group)
        given = ", ".join(port_value(run, name) for name in names)
        row = f"| {', '.join(names) or '—'} | {given or f'`{source}` here'} | {words} |"
        if words:
            (rows if names else rest).append(row)
            shown |= {*names}
    return rows + rest, [name for name in run.values if name in run.given and name not in shown]


def port_text(
    config: Config, run: TrlRun, overrides: list[Override], places: dict[str, str], checked: list[str]
) -> str:
    """port.md: each override of run.sh beside what it follows from, given or by default; the checks; the rest."""
    rows, unshown = port_rows(run, overrides, places)
    notes = "\n".join(f"- {note}." for note in run.notes)
    lost = [
        name for name in unshown if any(note.startswith(shown_setting(name, run.values[name])) for note in run.notes)
    ]
    same = ", ".join(f"`{name}`" for name in unshown if name not in lost)
    return PORT.format(
        source=Path(config.from_trl).name,
        verl=VERL,
        table="\n".join(rows),
        checked="".join(f"- {what}.\n" for what in checked),
        notes=notes + f"\n- Of the machine or the log, or nothing with these values: {same}." * bool(same),
        max_prompt=config.max_prompt_tokens,
        correction="" if config.mismatch == "none" else "; the correction is on",
        few=FEW.format(times=times) if (times := max(o.text().count("train.parquet") for o in overrides)) > 1 else "",
    )


def parquet_rows(file: Path) -> list[dict]:
    """Rows of a job's parquet file; the prompt goes to extra_info too, as verl gives a reward no other."""
    import pyarrow.parquet

    rows = pyarrow.parquet.read_table(file).to_pylist()
    for row in rows:
        text = row["extra_info"].get("prompt_is_text")
        prompt = row["prompt"][0]["content"] if text else row["prompt"]
        row["extra_info"]["prompt_json"] = json.dumps(prompt, ensure_ascii=False)
    return rows


def standing_alone(config: Config, job: Layout, overrides: list[Override], count: int) -> list[Override]:
    """Overrides without the hooks, and without a file for validation where there is none.

    verl starts no epoch of fewer rows than a step has prompts: such a file is listed as often as it takes.
    """
    found, train = [], job.file("train.parquet")
    times = math.ceil(config.batch_size // config.group_size / count)
    for override in overrides:
        if override.key.startswith(OF_THE_HOOKS):
            continue
        if override.key == "data.train_files" and times > 1:
            override = dataclasses.replace(override, value=[train] * times)
        if override.key == "data.val_files" and not job.held_out:  # verl wants one
            override = dataclasses.replace(override, value=train)
        found.append(override)
    return found


def checked_export(config: Config, overrides: list[Override], reward: str, columns: list[str], rows: list) -> list[str]:
    """What was found right of an export, by sentences; what was not is said.

    Raises:
        UserError: a key that verl's configuration does not have, which is one of --override.
    """
    named = name_findings(overrides)
    need(not named, "; ".join(named or []))
    keys = f"Every key of `run.sh` is one that verl {VERL}'s configuration has, or takes with +"
    right = [keys] * (named is not None)
    found, warnings = told(tried(reward_specs(config), columns, reward, rows, config.group_size))
    for warning in warnings:
        say(f"warning: {warning}")
    return [*right, *[f"The reward was tried: {found}"] * bool(found)]


def export_job(config: Config, run: TrlRun | None = None) -> int:
    """--export: write run.sh, verl_reward.py, the data, and port.md of a TRL run."""
    check_exportable(config)
    folder = Path(config.export).resolve()
    names = ["run.sh", "verl_reward.py", "train.parquet", "val.parquet", "port.md"]
    there = ", ".join(name for name in names if (folder / name).exists())
    need(not there, f"got --export {config.export}, which has {there}; expected none of them; try another folder")
    config.output_dir, config.cpus = str(folder / "run"), 1  # the fewest CPUs that Ray needs, which run.sh raises
    with tempfile.TemporaryDirectory() as job_folder:
        job, overrides = prepare_job(config, folder=Path(job_folder).resolve())
        names = names[: 4 if job.held_out else 3] + names[4:] * bool(run)
        splits = {name: parquet_rows(Path(job_folder) / name) for name in names if name.endswith("parquet")}
        reward = reward_text(reward_specs(config), splits["train.parquet"], job.columns, config.group_size)
    overrides = standing_alone(config, job, overrides, len(splits["train.parquet"]))
    checked = checked_export(config, overrides, reward, job.columns, splits["train.parquet"])
    places = {job.folder: "$HERE", str(folder): "$HERE"}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "verl_reward.py").write_text(reward, encoding="utf-8")
    for name, rows in splits.items():
        write_parquet_file(rows, folder / name)
    write_script(folder / "run.sh", run_text(config, overrides, places))
    if run:
        (folder / "port.md").write_text(port_text(config, run, overrides, places, checked), encoding="utf-8")
        for file in (folder / "run").glob("trl_*"):  # they are in verl_reward.py and the data now
            file.unlink()
    if (folder / "run").is_dir() and not any((folder / "run").iterdir()):
        (folder / "run").rmdir()
    for name in names:
        tell(folder / name)
    for what in checked:
        say(f"checked: {what}")
    say(f"start it in verl's environment: bash {folder / 'run.sh'}")
    return 0
