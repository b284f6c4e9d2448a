"""The folder of a job: data, rewards, commands."""

import ast
import dataclasses
import json
import math
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from parts.bundle import BUNDLE, EMBEDDED_DATA, EMBEDDED_EVAL, EMBEDDED_REWARDS
from parts.messages import UserError, need, say
from parts.reward_calls import CallLimits, call_limits
from parts.reward_forms import load_rewards
from parts.rewards import Reward
from parts.rows import read_rows
from programs.verl_train.data import chat_template, verl_rows, write_parquet_file
from programs.verl_train.engine_overrides import make_overrides
from programs.verl_train.memory import count_parameters
from programs.verl_train.names import NOTES, OLD_TRAINER, TABLE
from programs.verl_train.overrides import Layout, Override, check_expressible
from programs.verl_train.rewards import REWARD_ERROR, RewardBatcher
from programs.verl_train.settings import VERL, Config

MODULE = '''"""{what}. Written by verl_train.py; loads the copy of it that lies beside this file."""

import importlib.util
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
NAME = "verl_train_job"
if NAME not in sys.modules:
    spec = importlib.util.spec_from_file_location(NAME, HERE / "verl_train.py")
    sys.modules[NAME] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules[NAME])
{code}
'''


def imported_names(source: str, package: list[str]) -> list[str]:
    """Dotted names that Python source may import, each with its parents; `package` is where relative ones begin."""
    found: list[str] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            found += [base, *(f"{base}.{alias.name}".strip(".") for alias in node.names)]  # a name may be a module
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            called = getattr(node.func, "attr", getattr(node.func, "id", ""))
            value = node.args[0].value
            found += [value] if called in ("import_module", "__import__") and isinstance(value, str) else []
    parts = [name.split(".") for name in found if name]
    return list(dict.fromkeys(".".join(words[: i + 1]) for words in parts for i in range(len(words))))


def imported_files(path: Path) -> list[Path]:
    """The Python files beside a file that it imports, directly or through each other; itself comes first."""
    folder, found, waiting = path.parent, [], [path]
    while waiting:
        file = waiting.pop()
        if file in found:
            continue
        found.append(file)
        package = list(file.relative_to(folder).parts[:-1])
        try:
            names = imported_names(file.read_text(encoding="utf-8"), package)
        except (SyntaxError, ValueError) as error:
            raise UserError(f"got {file}, which cannot be read ({error}); expected Python source in UTF-8") from None
        for name in names:
            base = folder.joinpath(*name.split("."))
            if name.split(".")[0] not in sys.stdlib_module_names:
                waiting += [f for f in (base.with_name(base.name + ".py"), base / "__init__.py") if f.is_file()]
    return found


def write_reward_module(
    folder: Path, specs: list[str], columns: list[str], ship: list[str] = (), error_file: str = "", limits=()
):
    """Write verl_reward.py, verl_hooks.py, this file, and the reward files with what they need; returns the module.

    A reward file is copied with the files beside it that it imports, and with `ship`; nothing else leaves its folder.
    """
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(__file__, folder / "verl_train.py")
    folders, moved = {}, []
    for old in folder.glob("rewards_*"):
        shutil.rmtree(old, ignore_errors=True)
    for spec in specs:
        target, star, weight = spec.partition("*")
        file, _, name = target.rpartition(":")
        path = Path(file).resolve()
        load_rewards(spec)  # its errors are best told here
        place = folders.setdefault(path.parent, folder / f"rewards_{len(folders)}")
        if not place.is_dir():
            place.mkdir()
            for other in map(Path, ship):  # a user's own file of a name wins
                got = f"got --ship {str(other)!r}, which is no file; expected a file that a reward needs"
                need(other.is_file(), got)
                shutil.copyfile(other, place / other.name)
        for other in imported_files(path):
            copy_to = place / other.relative_to(path.parent)
            copy_to.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(other, copy_to)
        moved.append(f"{place.name}/{path.name}:{name}{star}{weight}")
    code = f"SPECS, COLUMNS, ERROR_FILE, LIMITS = {moved!r}, {columns!r}, {error_file!r}, {tuple(limits)!r}\n"
    code += "specs = [f'{HERE}/{spec}' for spec in SPECS]\n"
    code += "compute_score = sys.modules[NAME].make_compute_score(specs, COLUMNS, ERROR_FILE, LIMITS)"
    module = folder / "verl_reward.py"
    module.write_text(MODULE.format(what="The reward function of the run", code=code), encoding="utf-8")
    code = "sys.modules[NAME].register_estimators()\n"
    code += "TokenRewardManager = sys.modules[NAME].token_reward_manager()\n"
    code += "StrictReplayBuffer = sys.modules[NAME].strict_replay_buffer()"
    hooks = MODULE.format(what="The reward manager and the replay buffer of the run", code=code)
    (folder / "verl_hooks.py").write_text(hooks, encoding="utf-8")
    return module


EMBEDDED_SPECS = [f"{EMBEDDED_REWARDS}:correctness_reward", f"{EMBEDDED_REWARDS}:format_reward*0.2"]


def prepare_job(config: Config, remote: bool = False, folder: Path | None = None) -> tuple[Layout, list[Override]]:
    """Write the job folder and return the job and its overrides; `remote`: it will be another machine's work folder."""
    check_expressible(config)
    check_output(config)
    output = Path(config.output_dir).resolve()
    folder = folder or output / "job"
    folder.mkdir(parents=True, exist_ok=True)
    rows, columns = verl_rows(read_rows(config.data), config.prompt_column, "train", Path(config.data).stem)
    embedded = Path(config.data).resolve() == Path(EMBEDDED_DATA)
    source = config.eval_data or (EMBEDDED_EVAL if embedded else "")
    held_out, more = rows[:1], []
    if source:
        held_out, more = verl_rows(read_rows(source), config.prompt_column, "test", Path(source).stem)
    prompts = config.batch_size // config.group_size
    need(len(rows) >= prompts, f"got {len(rows)} rows; expected the {prompts} prompts of a step at least")
    template = chat_template(config.model, rows + held_out, config.chat, config.chat_template)
    write_parquet_file(rows, folder / "train.parquet")
    write_parquet_file(held_out, folder / "val.parquet")
    specs = config.reward or EMBEDDED_SPECS
    columns = list(dict.fromkeys([*columns, *more]))
    error_file = output / REWARD_ERROR
    if not config.check:
        error_file.unlink(missing_ok=True)
    ours = [BUNDLE / "scripts" / f"{name}.py" for name in ("math_grader", "sandbox")]  # the library looks for them late
    ship = [*(str(file) for file in ours if file.is_file()), *config.ship]
    limits = dataclasses.astuple(call_limits(config))
    write_reward_module(folder, specs, columns, ship, str(error_file), limits)
    reward = Reward(specs)
    refuse_groups(reward)
    for row in (rows + held_out)[:: max(1, len(rows))]:
        reward.check_columns({"prompt": row["prompt"], "columns": dict.fromkeys(columns)})
    job = Layout(
        folder="" if remote else str(folder),
        output=str(output),
        template=template,
        held_out=bool(source),
        reward_weights=reward.weights,
        parameters=count_parameters(config),
        hydra=str(output / "hydra"),
        columns=columns,
        cpus=None if remote else config.cpus or os.cpu_count() or 1,
    )
    need(
        job.parameters or config.lr,
        f"got model {config.model!r} of unknown size; expected it for lr 0; try --lr 1e-6, or --parameters 7B",
    )
    overrides = make_overrides(config, job)
    settings = json.dumps(
        {"settings": dataclasses.asdict(config), "overrides": [o.text() for o in overrides]}, indent=1
    )
    (folder / "settings.json").write_text(settings, encoding="utf-8")
    trial = json.dumps(trial_batch(specs, columns, rows), default=str)
    (folder / "trial.json").write_text(trial, encoding="utf-8")
    return job, overrides


def refuse_groups(reward: Reward) -> None:
    """Raise UserError for functions that say themselves, by `needs_group`, that they need all of a prompt's rows."""
    names = [name for name, function in reward.functions.items() if getattr(function, "needs_group", False)]
    need(
        not names,
        f"got reward {', '.join(names)}, which compares the completions of a prompt; expected a score for each "
        f"completion by itself, as verl scores them; {OUR_TRAINERS}",
    )


OUR_TRAINERS = "try ppo_train.py or grpo_train.py, which call a reward with whole groups"


def trial_batch(specs: list[str], columns: list[str], rows: list[dict]) -> dict:
    """Rows and completions to try whether a reward function scores each completion by itself.

    Two prompts (one, where there is no other) with four completions each: right, empty of content, and two alike but in
    length.
    """
    known, first = RewardBatcher(specs, columns), rows[:1]
    chosen = first + [row for row in rows[1:50] if row["prompt"] != first[0]["prompt"]][:1]
    tried, texts = [], []
    for row in chosen:
        truth = row["reward_model"]["ground_truth"]
        gold = str(truth)[:200] or "yes"
        extra = row["extra_info"] | {"raw_prompt": row["prompt"]}
        tried += [known.row(row["data_source"], truth, extra)] * 4
        texts += [f"<answer>{gold}</answer>", "no answer", f"The answer is {gold}.", f"So, the answer is {gold}. " * 3]
    return {"rows": tried, "texts": texts}


def whole_batch_functions(specs: list[str], columns: list[str], limits, batch: dict) -> dict[str, list]:
    """{function: its scores of a batch, and of each completion alone} where both differ; a trial of verl_reward.py.

    verl scores completions as they come, in reward.num_workers processes (8), so a score that depends on the others of
    a batch, or on earlier calls, is another one there. A function that differs from itself on one batch tells nothing.
    """
    rows, texts = batch["rows"], batch["texts"]
    ids = [list(range(len(text.split()))) for text in texts]
    reward = RewardBatcher(specs, columns, CallLimits(*limits)).reward
    together, again = (reward(rows, texts, ids)[1] for _ in range(2))
    each = [reward([row], [text], [own])[1] for row, text, own in zip(rows, texts, ids, strict=True)]
    alone = {name: [parts[name][0] for parts in each] for name in together}
    return {
        name: [together[name], alone[name]]
        for name in together
        if near(together[name], again[name]) and not near(together[name], alone[name])
    }


def near(first: list, second: list) -> bool:
    """Whether two lists of scores or None agree, but for what batches change in a reward model's rounding."""
    return all(
        a is b is None or (a is not None and b is not None and math.isclose(a, b, rel_tol=0.01, abs_tol=0.01))
        for a, b in zip(first, second, strict=True)
    )


TRIAL = """
import json, runpy, sys
module = runpy.run_path(sys.argv[1])
trial = json.load(open(sys.argv[2], encoding="utf-8"))
own = sys.modules[module["NAME"]]
print("\\nTRIAL " + json.dumps(own.whole_batch_functions(module["specs"], module["COLUMNS"], module["LIMITS"], trial)))
"""


def split_findings(module: Path, timeout_s: float = 300) -> list[str]:
    """Reward functions that need whole batches, tried in a process of its own; one that raises is told elsewhere."""
    command = [sys.executable, "-c", TRIAL, str(module), str(module.with_name("trial.json"))]
    try:
        done = subprocess.run(command, cwd=module.parent, capture_output=True, text=True, timeout=timeout_s)
    except subprocess.TimeoutExpired:
        say(f"note: 8 completions took the reward over {timeout_s:g} s, so it was not tried on parts of a batch")
        return []
    answers = [line for line in done.stdout.splitlines() if line.startswith("TRIAL ")]
    found = json.loads(answers[-1].removeprefix("TRIAL ")) if answers else {}
    return [
        f"reward {name}: got scores that depend on the other completions of a batch, or on earlier calls "
        f"({together} together, {alone} one by one); expected a score for each completion by itself, as verl scores "
        f"them in 8 processes; {OUR_TRAINERS}"
        for name, (together, alone) in found.items()
    ]


def need_whole(findings: list[str]) -> None:
    """Raise UserError for the first finding."""
    need(not findings, "; ".join(findings[:1]))


def check_output(config: Config) -> None:
    """Refuse another run's folder, and a resume for another number of GPUs."""
    folder = Path(config.output_dir)
    found = sorted(folder.glob("checkpoints/global_step_*")) + [p for p in [folder / "metrics.jsonl"] if p.exists()]
    need(
        config.resume or config.check or not found,
        f"got output_dir {str(folder)!r}, which holds a run ({', '.join(p.name for p in found[:3])}); expected a new "
        "folder; try --resume to go on, or another --output_dir",
    )
    size = config.nodes * config.gpus_per_node
    sizes = {
        int(m[1]) for p in folder.glob("checkpoints/*/actor/model_*") if (m := re.search(r"world_size_(\d+)", p.name))
    }
    need(
        not config.resume or not sizes or size in sizes,
        f"got --resume with {size} GPUs; expected the {', '.join(map(str, sizes))} of its checkpoints, whose files are "
        "one for each GPU",
    )


def environment(job: Layout) -> dict[str, str]:
    """Environment variables of the run; each start has a metrics file of its own, as verl empties it."""
    path = Path(job.output) / "metrics.jsonl"
    number = 2
    while path.exists():
        path, number = path.with_name(f"metrics.{number}.jsonl"), number + 1
    return {"VERL_FILE_LOGGER_PATH": str(path), "TOKENIZERS_PARALLELISM": "false"}


def script(config: Config, job: Layout, overrides: list[Override], python: str = "python") -> str:
    """run.sh: the command, each override below the setting that it comes from."""
    lines = [
        "#!/usr/bin/env bash",
        f"# Written by verl_train.py for verl {VERL}; from the settings to the overrides.",
        "set -e",
    ]
    lines += [f"cd {shlex.quote(job.folder)}"] if job.folder else []
    lines += [] if config.slurm else ["unset RAY_ADDRESS"]  # the Ray of a --run is its own, in all its processes
    lines += [f"export {name}={shlex.quote(value)}" for name, value in environment(job).items()]
    lines += ["overrides=("]
    source = None
    for override in sorted(overrides, key=lambda o: list(TABLE).index(o.source) if o.source in TABLE else len(TABLE)):
        if override.source != source:
            source = override.source
            given = "" if source == "override" else f": {getattr(config, source)}"
            lines.append(f"  # {source}{given}".replace("\n", " "))
        lines.append(f"  {shlex.quote(override.text())}")
    lines += [")", f'exec {python} -u -m verl.trainer.main_ppo "${{overrides[@]}}"', ""]
    return "\n".join(lines)


def write_script(path: Path, text: str) -> None:
    """Write an executable file."""
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755)


def say_notes(config: Config) -> None:
    """Tell which of the user's settings mean nothing to verl, or something else."""
    defaults = {f.name: f.default for f in dataclasses.fields(Config)}
    told = ("rollout_engine", "rollout_batch_size", "logits_chunk", "max_bad_updates", "plot_every")
    for name in told:
        if getattr(config, name) != defaults[name]:
            say(f"note: {name} {getattr(config, name)}: {NOTES[name]}")
    if config.warmup_steps:
        say("note: warmup_steps: verl's first update has learning rate 0, so its rates come one step after ours")
    if config.loss in ("clip_cov", "kl_cov"):
        say(f"note: loss {config.loss}: verl chooses the tokens in each micro-batch, ours in the minibatch")
    if config.advantage == "gdpo":
        say("note: advantage gdpo: verl counts a reward that does not apply as 0, ours leaves it out")
    if config.advantage in OLD_TRAINER:
        say(f"note: advantage {config.advantage} needs verl's old trainer, trainer.use_v1=False, which verl deprecates")
