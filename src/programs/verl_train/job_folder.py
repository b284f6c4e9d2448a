"""The folder of a job: data, rewards, an environment, settings; the copies of the user's files are tried there."""

import ast
import dataclasses
import json
import math
import os
import runpy
import shutil
import subprocess
import sys
import time
from pathlib import Path

from parts.data.held_out import hold_out, mark_trained, overlap_metric
from parts.data.prompts import evaluated_rows, read_prompts, warn_unread
from parts.data.verl_layout import OWN_INFO
from parts.environments.conversations import PlaySetup
from parts.environments.play_setup import (
    OBJECTS,
    check_chat_template,
    check_environment_rows,
    check_fits,
    load_scored,
    make_play_setup,
    playable_rows,
)
from parts.environments.tool_calls import CALL_FORMATS
from parts.foundation.bundle import BUNDLE, held_out_source, specs_for
from parts.foundation.file_text import file_text, with_values
from parts.foundation.messages import UserError, need, say
from parts.learning.presets import is_own
from parts.networks.tokenizers import open_tokenizer
from parts.rewards.reward_forms import full_spec, load_rewards
from parts.rewards.rewards import Reward, call_limits
from parts.rewards.user_code import trial_texts
from programs.verl_train.data import (
    chat_template,
    count_parameters,
    end_ids_of,
    longest_context,
    parquet_rows,
    row_columns,
    verl_rows,
    write_parquet_file,
)
from programs.verl_train.overrides import Layout, Override, make_overrides
from programs.verl_train.refusals import check_expressible
from programs.verl_train.rewards import JOB_FILE, JOB_FOLDER, REWARD_ERROR, REWARD_FAILED
from programs.verl_train.settings import OWN_LOSS_MODULE, Config

OUR_TRAINERS = "try ppo_train.py or grpo_train.py, which call a reward with whole groups"
TRIAL = file_text("job_files/trial.py")
JOB_TRIAL_SECONDS = 300
TRIED_ROWS, SCORING_SECONDS = 50, 2.0  # no more rows, and none begun after that time: a function may be slow, or paid
MODULE = file_text("job_files/module.py")  # how the modules of a job begin
MODULES = {  # what verl loads of a job: its title, and what it has of verl_train.py
    "verl_reward": ("The rewards of the run", "batcher = JOB.RewardBatcher(JOB.job_settings(HERE))"),
    "verl_hooks": (
        "The reward manager and the replay buffer of the run",
        "TokenRewardManager, StrictReplayBuffer = JOB.hooks(HERE)",
    ),
    OWN_LOSS_MODULE: ("The policy loss of the run", "JOB.register_loss(HERE)"),
    "verl_environment": ("The agent loop of the run", "EnvironmentLoop = JOB.environment_loop(HERE)"),
}
LOOP = file_text("job_files/environment.yaml")


def imported_files(path: Path) -> list[Path]:
    """The Python files beside a file that it imports, directly or through each other; itself comes first."""
    folder, files, waiting = path.parent, [], [path]
    while waiting:
        file = waiting.pop()
        if file in files:
            continue
        files.append(file)
        try:
            tree = ast.parse(file.read_text(encoding="utf-8"))
        except (SyntaxError, ValueError) as error:
            raise UserError(f"got {file}, which cannot be read ({error}); expected Python source in UTF-8") from None
        for base in imported_places(tree, folder, [*file.relative_to(folder).parts[:-1]]):
            waiting += [f for f in (base.with_name(f"{base.name}.py"), base / "__init__.py") if f.is_file()]
    return files


def imported_places(tree: ast.Module, folder: Path, package: list[str]) -> list[Path]:
    """Where in a folder the modules lie that a source may import, each after its packages."""
    names = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*above, *filter(None, [node.module])])
            names += [base, *(f"{base}.{alias.name}".strip(".") for alias in node.names)]  # a name may be a module
    parts = [name.split(".") for name in names if name and name.split(".")[0] not in sys.stdlib_module_names]
    return sorted({folder.joinpath(*words[: i + 1]) for words in parts for i in range(len(words))})


def file_of(spec: str) -> Path:
    """The file of FILE.py:function*weight."""
    return Path(spec.partition("*")[0].rpartition(":")[0]).resolve()


def copied(folder: Path, name: str, spec: str, ship: list[str]) -> str:
    """FILE.py:function as a job has it: its file lies in the folder `name`, with what it imports, and with `ship`."""
    path, place = file_of(spec), folder / name
    if not place.is_dir():
        place.mkdir()
        for other in map(Path, ship):  # a user's own file of a name wins
            got = f"got --ship {str(other)!r}, which is not a file"
            need(other.is_file(), f"{got}; expected a file that a reward or environment needs")
            shutil.copyfile(other, place / other.name)
    for other in imported_files(path):
        copy_to = place / other.relative_to(path.parent)
        copy_to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(other, copy_to)
    return f"{JOB_FOLDER}/{name}/{path.name}:{spec.rpartition(':')[2]}"


def write_modules(folder: Path, specs, columns: list[str], ship=(), functions=None, environment=None, **limits) -> Path:
    """Write what verl loads of a job, this file, and the user's files with what they need; returns verl_reward.py.

    A file is copied with the files beside it that it imports, and with `ship`; nothing else leaves its folder.

    Args:
        specs: rewards, FILE.py:function*weight.
        functions: {"advantage" or "loss": FILE.py:function}; other values are names that verl has.
        environment: {"file": FILE.py:NAME, "tools": {kind: schemas, as the launcher's transformers made them},
            "limits": of PlayLimits, "form": of tool calls}.
        limits: `reward_limits` and `error_file`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(__file__, folder / "verl_train.py")
    for old in [*folder.glob("rewards_*"), *folder.glob("own_*"), folder / "environment"]:
        shutil.rmtree(old, ignore_errors=True)
    places, own_functions = {}, {kind: spec for kind, spec in (functions or {}).items() if is_own(spec)}
    for spec in specs:
        load_rewards(spec)  # its errors are best told here
        places.setdefault(file_of(spec).parent, f"rewards_{len(places)}")
    job = {"columns": columns, "reward_limits": (), "error_file": "", "environment": None} | limits
    job["rewards"] = [copied(folder, places[file_of(spec).parent], spec, ship) for spec in specs]
    job["own"] = {kind: copied(folder, f"own_{kind}", spec, ship) for kind, spec in own_functions.items()}
    needed = {OWN_LOSS_MODULE: "loss" in own_functions, "verl_environment": environment}
    if environment:
        file = copied(folder, "environment", environment["file"], ship)
        job["environment"] = environment | {"file": file}
        (folder / "verl_environment.yaml").write_text(LOOP, encoding="utf-8")
    (folder / JOB_FILE).write_text(json.dumps(job, indent=1), encoding="utf-8")
    for name, (title, code) in MODULES.items():
        (folder / f"{name}.py").unlink(missing_ok=True)
        if needed.get(name, True):
            (folder / f"{name}.py").write_text(f"{with_values(MODULE, title=title)}{code}\n", encoding="utf-8")
    return folder / "verl_reward.py"


def tried_scores(module: dict, file: Path, export: str = "") -> dict:
    """Score rows of a job's data: the completions of a row in one batch, and one by one, as verl calls a reward.

    Args:
        module: the names of a job's verl_reward.py.
        export: a verl_reward.py of --export, which then scores them one by one.

    Returns:
        {"rows", "completions", "scores" seen, "raised": the first error, "unlike": {function: [scores of a batch, those
        one by one]} where they differ}. A function that differs from itself on one batch shows nothing.
    """
    batcher = module["batcher"]
    batcher.reward.silent = True  # that nothing applies to any completion here is no news
    trial = {"rows": 0, "completions": 0, "scores": [], "raised": "", "unlike": {}}
    score = runpy.run_path(export)["compute_score"] if export else None
    rows = parquet_rows(file)[:TRIED_ROWS] if batcher.reward.functions and file.is_file() else []
    started = time.monotonic()
    for number, row in enumerate(rows):
        if number and time.monotonic() > started + SCORING_SECONDS:
            break
        truth, info = row["reward_model"]["ground_truth"], row["extra_info"]
        texts, asked = trial_texts(str(truth)[:200] or "yes"), batcher.row(row | {"raw_prompt": row["prompt"]})
        batch = [(asked, text, list(range(len(text.split())))) for text in texts]
        try:
            first, second = (batcher.score_all(batch) for _ in range(2))
            if score:
                alone = [score(row["data_source"], text, truth, info) for text in texts]
            else:
                alone = [batcher.score_all([one])[0] for one in batch]
        except Exception as error:  # what the functions raise is the user's
            reason = str(error).removeprefix(f"{REWARD_FAILED}: ")
            trial["raised"] = trial["raised"] or f"row {number + 1} of the data: {reason}"
            continue
        trial["rows"], trial["completions"] = trial["rows"] + 1, trial["completions"] + len(texts)
        trial["scores"] = sorted({*trial["scores"], *(round(scores["score"], 4) for scores in alone)})
        for name in (name for name in alone[0] if name != "acc"):
            together, again, single = ([scores[name] for scores in each] for each in (first, second, alone))
            if near(together, again) and not near(together, single):
                trial["unlike"].setdefault(name, [together, single])
    return trial


def near(first: list[float], second: list[float]) -> bool:
    """Whether two lists of scores agree, but for what batches change in a reward model's rounding."""
    return all(math.isclose(a, b, rel_tol=0.01, abs_tol=0.01) for a, b in zip(first, second, strict=True))


def try_job(folder: Path, export: str = "") -> tuple[list[str], dict]:
    """(What keeps a job's copies from loading, or a reward from meaning in verl what it means here; `tried_scores`).

    As in the run, the original files are not at hand.
    """
    command = [sys.executable, "-c", TRIAL, str(folder / "verl_reward.py"), export]
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=JOB_TRIAL_SECONDS)
    except subprocess.TimeoutExpired:
        say(f"note: the reward took over {JOB_TRIAL_SECONDS} s for a few completions, so single ones were not tried")
        return [], {}
    lines = done.stdout.splitlines()
    if "LOADED" not in lines:
        kind = "environment" if (folder / "verl_environment.py").is_file() else "reward"
        last = (done.stderr.strip() or "no message").splitlines()[-1]
        got = f"{kind}: its copy for the run does not load: {last}"
        return [f"{got}; expected every file that it imports beside it; try --ship FILE"], {}
    trial = next((json.loads(line.removeprefix("TRIAL ")) for line in lines if line.startswith("TRIAL ")), {})
    unlike = trial.get("unlike", {})
    return [
        f"reward {name}: got scores that depend on the other completions of a batch, or on earlier calls "
        f"({together[:4]} … together, {alone[:4]} … one by one); expected a score for each completion by itself, as "
        f"verl scores them in 8 processes; {OUR_TRAINERS}"
        for name, (together, alone) in unlike.items()
        if name != "score" or len(unlike) == 1
    ], trial


def prepare_job(config: Config, folder: Path | None = None) -> tuple[Layout, list[Override]]:
    """Write the job folder and return the job and its overrides."""
    check_expressible(config)
    check_output(config)
    specs = reward_specs(config)
    output = Path(config.output_dir).resolve()
    folder = folder or output / "job"
    setup = environment_setup(config) if config.environment else None
    rows, columns = job_rows(config, setup, config.data, "train")
    held_out, more = [], []
    if config.hold_out:
        parts = hold_out(config, [task_row(row) | {"row": row} for row in rows])
        rows, held_out = ([task["row"] for task in part] for part in parts)
        held_out = evaluated_rows(config, held_out)
    elif source := held_out_source(config):
        held_out, more = job_rows(config, setup, source, "test")
    tasks, columns = [task_row(row) for row in held_out], list(dict.fromkeys([*columns, *more]))
    mark_trained(config, [task_row(row) for row in rows], tasks)
    prompts = config.batch_size // config.group_size
    few = f"got {len(rows)} rows; expected at least the {prompts} prompts of a step"
    few += "; try more rows, or a smaller --batch_size"
    need(len(rows) >= prompts or config.print or config.export, few)
    if len(rows) < prompts:  # a command may be written before its data is there
        say(f"warning: {few}")
    folder.mkdir(parents=True, exist_ok=True)
    template = chat_template(config.model, rows + held_out, config.chat, config.chat_template)
    write_parquet_file(rows, folder / "train.parquet")
    write_parquet_file(held_out or rows[:1], folder / "val.parquet")  # verl wants one
    write_code(config, folder, setup, columns, "" if config.check else str(output / REWARD_ERROR))
    reward = Reward(specs)
    grouped = ", ".join(name for name, function in reward.functions.items() if getattr(function, "needs_group", False))
    got = f"got reward {grouped}, which compares the completions of a prompt"
    need(not grouped, f"{got}; expected a score for each completion by itself, as verl scores them; {OUR_TRAINERS}")
    given = [*columns, OBJECTS] if setup else columns
    for row in (rows + held_out)[:: max(1, len(rows))]:
        reward.check_columns({"prompt": row["prompt"], "columns": dict.fromkeys(given)})
    job = Layout(
        folder=str(folder),
        output=str(output),
        template=(setup and setup.bridge.chat_template) or template,
        held_out=bool(held_out),
        parameters=count_parameters(config),
        columns=columns,
        rows=len(rows),
        cpus=config.cpus or os.cpu_count() or 1,
    )
    need(
        job.parameters or config.lr, f"got model {config.model!r} of unknown size, which lr 0 depends on; try --lr 1e-6"
    )
    overrides = make_overrides(config, job)
    settings = {"settings": dataclasses.asdict(config), "overrides": [o.text() for o in overrides]}
    settings |= {"held_out_rows": len(held_out), **overlap_metric(tasks)}
    (folder / "settings.json").write_text(json.dumps(settings, indent=1), encoding="utf-8")
    return job, overrides


def write_code(config: Config, folder: Path, setup: PlaySetup | None, columns: list[str], error_file: str) -> None:
    """Write the job's modules, with the user's files that they load."""
    if error_file:
        Path(error_file).unlink(missing_ok=True)
    ours = [BUNDLE / "scripts" / f"{name}.py" for name in ("math_grader", "sandbox")]  # the library looks for them late
    environment = setup and {
        "file": config.environment,
        "tools": {kind.name: kind.tools for kind in setup.environments.kinds.values()},
        "limits": dataclasses.asdict(setup.limits),
        "form": setup.form,
    }
    write_modules(
        folder,
        reward_specs(config),
        columns,
        [*(str(file) for file in ours if file.is_file()), *config.ship],
        {"advantage": config.advantage, "loss": config.loss},
        environment,
        reward_limits=dataclasses.astuple(call_limits(config)),
        error_file=error_file,
    )


def reward_specs(config: Config) -> list[str]:
    """The reward functions of a job; an environment needs none."""
    return [*map(full_spec, config.reward if config.environment else specs_for(config.data, config.reward))]


def job_rows(config: Config, setup: PlaySetup | None, source: str, split: str) -> tuple[list[dict], list[str]]:
    """verl's rows of a file, and the names of their columns; with an environment, those that it can begin with."""
    placed = read_prompts(source, config.prompt_column)
    placed = evaluated_rows(config, placed) if split == "test" else placed
    places, read = [place for place, _ in placed], [row for _, row in placed]
    rows, columns = verl_rows(read, config.prompt_column, split, Path(source).stem, bool(setup), places)
    warn_unread(source, [(row, row[config.prompt_column]) for row in read if config.prompt_column in row])
    for row in rows:
        row["data_source"] = config.data_source or row["data_source"]
    if not setup:
        return rows, columns
    known = []
    for row in rows:
        values = {name: value for name, value in row_columns(row).items() if name in columns}
        known.append({"prompt": row["prompt"], "columns": values, "row": row})
    check_environment_rows(setup.environments, known)  # UserError for one that `reset` refuses
    return [fit["row"] for fit in playable_rows(config, setup, known, source)], columns


def task_row(row: dict) -> dict:
    """What `mark_trained` compares of verl's rows."""
    return {"prompt": row["prompt"], "columns": {k: v for k, v in row["extra_info"].items() if k not in OWN_INFO}}


def check_output(config: Config) -> None:
    """Refuse another run's folder."""
    folder = Path(config.output_dir)
    traces = [*sorted(folder.glob("checkpoints/global_step_*")), *folder.glob("metrics.jsonl")]
    got = f"got output_dir {str(folder)!r}, which holds a run ({', '.join(p.name for p in traces[:3])})"
    advice = "expected a new folder; try --resume to continue, or another --output_dir"
    need(config.resume or config.check or not traces, f"{got}; {advice}")


def environment_setup(config: Config) -> PlaySetup:
    """What conversations are played with; UserError for what cannot be played with this model in verl."""
    tokenizer = open_tokenizer(config)
    environments, _ = load_scored(config)
    check_chat_template(config, tokenizer)
    ends = end_ids_of(config.model, tokenizer)
    need(ends, f"got model {config.model!r} without an end token; expected eos_token_id in its generation config")
    setup = make_play_setup(config, tokenizer, ends, environments)
    need(
        isinstance(setup.form, str),
        "got a model whose tool calls are read by a response template, which verl's transformers (5.10) lacks; "
        f"expected one of {', '.join(CALL_FORMATS)}; try --tool_format NAME",
    )
    check_fits(config, longest_context(config.model))
    return setup


def job_findings(folder: Path) -> list[str]:
    """What is wrong with a job's files in a process of their own; an error of a reward there is a warning."""
    findings, trial = try_job(folder)
    if trial.get("raised"):
        say(f"warning: a reward raised in a trial, which would end verl's run: {trial['raised']}")
    return findings
