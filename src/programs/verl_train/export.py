"""--export: a job as four files that need neither this script nor its bundle."""

import ast
import inspect
import json
import tempfile
from pathlib import Path

from parts.foundation.file_text import file_text, with_values
from parts.foundation.messages import need, say, tell
from parts.learning.presets import is_own
from parts.rewards.extracts import bound_names, extract
from parts.rewards.reward_forms import find_reward, weight_of
from parts.rewards.user_code import is_per_sample
from programs.verl_train.data import parquet_rows, write_parquet_file
from programs.verl_train.from_trl import TrlRun
from programs.verl_train.job_folder import file_of, imported_files, prepare_job, reward_specs, try_job
from programs.verl_train.launch import script, write_script
from programs.verl_train.overrides import Override, name_findings
from programs.verl_train.rewards import bits_of
from programs.verl_train.settings import ADVANTAGES, OWN_NAME, VERL, Config

COMPUTE_SCORE = file_text("job_files/export_reward.py")
PORT = file_text("job_files/port.md")
FEW = """- The data has fewer rows than a step has prompts, where TRL takes no step and verl does not start: `run.sh`
  lists the file {times} times, enough to try it, too little to train on.
"""
HOOKED = ("environment", "dynamic_sampling", "missing_eos_penalty", "overlong_share")
GENERATED = set(
    "BITS COLUMNS GOLD GOLD_IS_JSON WEIGHTS columns_of compute_score row prompt completion parts total named".split()
)
FILES = ("run.sh", "verl_reward.py", "train.parquet", "val.parquet", "port.md")
KEYS_CHECKED = f"Every key of `run.sh` is one that verl {VERL}'s configuration has, or takes with +"


def check_exportable(config: Config) -> None:
    """Raise UserError for what needs verl_hooks.py or verl_environment.py, so this script beside it."""
    needs = {name: getattr(config, name) for name in HOOKED}
    needs["advantage"] = (ADVANTAGES.get(config.advantage, OWN_NAME) or "").endswith("_ours")
    needs |= {"loss": is_own(config.loss), "nodes": config.nodes > 1}
    got = ", ".join(f"{name} {getattr(config, name)}" for name, value in needs.items() if value)
    expected = "expected what verl has itself, on one machine; try --print, whose folder includes this script"
    need(not got, f"got --export with {got}; {expected}")


def embedded_rewards(specs: list[str]) -> tuple[str, dict]:
    """Source with the reward functions and what they use, and {function: weight}; UserError where it is not enough."""
    files = {file_of(spec) for spec in specs}
    need(len(files) == 1, f"got rewards from {len(files)} files; expected one file with --export; try --print")
    file = files.pop()
    beside = [other.name for other in imported_files(file)[1:]]
    alone = "expected a file that stands alone with --export; try --print, whose folder includes them"
    need(not beside, f"got {file.name}, which imports {', '.join(beside)}; {alone}")
    weights = {}
    for spec in specs:
        function, _ = find_reward(spec)
        plain = inspect.isfunction(function) and not inspect.iscoroutinefunction(function)
        # so no lambda, and none twice
        plain = plain and spec.partition("*")[0].endswith(f":{function.__name__}") and function.__name__ not in weights
        need(plain, f"got reward {spec!r}; expected plain functions with --export; try --print, which takes all kinds")
        weights[function.__name__] = weight_of(spec)
    source = extract(file.read_text(encoding="utf-8"), list(weights))
    names = set().union(*map(bound_names, ast.parse(source).body))
    taken = ", ".join(sorted(names & GENERATED))
    need(not taken, f"got {file.name} with the names {taken}; expected others, as --export needs these; try --print")
    return source, weights


def call_of(function, columns: list[str]) -> str:
    """The source of one entry of `parts`: a call for one sample, or for a batch of one."""
    parameters, name = inspect.signature(function).parameters.values(), function.__name__
    rest = any(p.kind is p.VAR_KEYWORD for p in parameters)
    named = [p.name for p in parameters if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
    if is_per_sample(function):
        texts, item = {"prompt": "prompt", "completion": "solution_str"}, ""
        row, columns = "**row", {key: f'row["{key}"]' for key in columns}
    else:
        texts, item = {"prompts": "[prompt]", "completions": "[completion]"}, "[0]"
        row, columns = "**{key: [value] for key, value in row.items()}", {key: f'[row["{key}"]]' for key in columns}
    given = texts if rest else {key: value for key, value in (texts | columns).items() if key in named}
    words = [f"{key}={value}" for key, value in given.items()] + [row] * rest
    return f'        "{name}": {name}({", ".join(words)}){item},'


def reward_text(specs: list[str], rows: list[dict], columns: list[str], group_size: int) -> str:
    """verl_reward.py: the functions themselves, and verl's call."""
    source, weights = embedded_rewards(specs)
    fields = {row["extra_info"]["ground_truth_field"] for row in rows}
    got = f"got rows with ground truth in {', '.join(sorted(fields))}"
    need(len(fields) == 1, f"{got}; expected one column with --export")
    gold, _, form = fields.pop().partition(":")
    calls = "\n".join(call_of(find_reward(spec)[0], columns) for spec in specs)
    is_text = rows[0]["extra_info"].get("prompt_is_text", False)
    tail = with_values(
        COMPUTE_SCORE,
        verl=VERL,
        columns=[name for name in columns if name != gold],
        gold=repr("" if gold == "none" else gold),
        is_json=bool(form),
        weights=weights,
        n=bits_of(group_size),
        completion="solution_str" if is_text else '[{"role": "assistant", "content": solution_str}]',
        parts=f"{{\n{calls}\n    }}",
    )
    return f"{source}\n\n{tail}"


def port_text(config: Config, run: TrlRun, overrides: list[Override], checked: list[str]) -> str:
    """port.md: what was checked, and what is not the same in verl."""
    notes = [f"- {note}." for note in run.notes]
    idle = ", ".join(f"`{name}`" for name in run.idle)
    if idle:
        notes.append(f"- Of the machine or the log, or nothing with these values: {idle}.")
    times = max(o.text().count("train.parquet") for o in overrides)
    return with_values(
        PORT,
        source=Path(config.from_trl).name,
        verl=VERL,
        checked="".join(f"- {sentence}.\n" for sentence in checked),
        notes="\n".join(notes),
        max_prompt=config.max_prompt_tokens,
        correction="" if config.mismatch == "none" else "; the correction is on",
        few=FEW.format(times=times) if times > 1 else "",
    )


def export_job(config: Config, run: TrlRun | None = None) -> int:
    """--export: write run.sh, verl_reward.py, the data, and port.md of a TRL run; 3 where a trial reward raised."""
    check_exportable(config)
    folder = Path(config.export).resolve()
    there = ", ".join(name for name in FILES if (folder / name).exists())
    need(not there, f"got --export {config.export}, which has {there}; expected a folder without them; try another")
    config.output_dir, config.cpus = str(folder / "run"), 1  # so that run.sh names the fewest CPUs that Ray needs
    with tempfile.TemporaryDirectory() as job_folder:
        place = Path(job_folder).resolve()
        job, overrides = prepare_job(config, folder=place)
        names = ["train.parquet", "val.parquet"] if job.held_out else ["train.parquet"]
        splits = {name: parquet_rows(place / name) for name in names}
        for row in [row for split in splits.values() for row in split]:  # verl gives a reward no other prompt
            prompt = row["prompt"][0]["content"] if row["extra_info"].get("prompt_is_text") else row["prompt"]
            row["extra_info"]["prompt_json"] = json.dumps(prompt, ensure_ascii=False)
        rows = splits["train.parquet"]
        reward = reward_text(reward_specs(config), rows, job.columns, config.group_size)
        wrong = name_findings(overrides)
        need(not wrong, "; ".join(text for _, text in wrong or []))
        settings = json.loads((place / "settings.json").read_text(encoding="utf-8"))
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "verl_reward.py").write_text(reward, encoding="utf-8")
        for name, split in splits.items():
            write_parquet_file(split, folder / name)
        write_parquet_file(rows, place / "train.parquet")
        findings, trial = try_job(place, export=str(folder / "verl_reward.py"))
    checked = ([KEYS_CHECKED] if wrong is not None else []) + findings
    if trial.get("raised"):
        checked.append(f"in a trial the reward raised at {trial['raised']}; verl would silently drop such a row")
    if trial.get("completions") and not findings:
        seen = ", ".join(f"{score:g}" for score in trial["scores"][:6])
        tried = f"{trial['completions']} completions of {trial['rows']} rows"
        checked.append(f"The reward was tried: {tried} have the functions' weighted sum as their score ({seen} seen)")
    if trained := settings.get("eval/trained_rows"):
        shares = f"{trained} of {settings['held_out_rows']} evaluation prompts also occur in training"
        checked.append(f"{shares}: the accuracy that verl logs is inflated")
    text = script(config, job, overrides, places={str(folder): "$HERE"}, run=run)
    write_script(folder / "run.sh", text)
    if run:
        (folder / "port.md").write_text(port_text(config, run, overrides, checked), encoding="utf-8")
        (folder / "run" / "trl_rewards.py").unlink(missing_ok=True)  # it is in verl_reward.py now
    for name in FILES:
        if (folder / name).exists():
            tell(folder / name)
    for sentence in checked:
        say(f"{'checked' if sentence.startswith(('Every', 'The')) else 'warning'}: {sentence}")
    if trial.get("raised"):
        say("error: got a reward that raised, as shown above; the files are written; try fixing it, and another folder")
        return 3
    say(f"start it in verl's environment: bash {folder / 'run.sh'}")
    return 0
