"""run.sh, and the run on this machine."""

import contextlib
import dataclasses
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

from parts.data.verl_keys import ROLLOUT
from parts.foundation.file_text import file_text, with_values
from parts.foundation.messages import need, say, tell
from parts.running.output_folder import follow_umask
from programs.verl_train.checks import missing_engine, need_verl
from programs.verl_train.data import safetensors_header
from programs.verl_train.from_trl import TrlRun
from programs.verl_train.job_folder import job_findings, prepare_job
from programs.verl_train.overrides import Layout, Override
from programs.verl_train.refusals import batch_findings, split_override
from programs.verl_train.rewards import REWARD_ERROR
from programs.verl_train.settings import INSTALL, VERL, Config

RUN = file_text("job_files/run.sh")
UNSAID = ("override", "reward", "data", "eval_data", "output_dir", "cpus")  # whose values stand in the override


def shell_word(text: str, places: dict[str, str]) -> str:
    """A word of bash; `places` are paths that stand as variables."""
    if not any(place in text for place in places):
        return shlex.quote(text)
    escaped = re.sub(r'([\\"$`])', r"\\\1", text)
    for place, variable in places.items():
        escaped = escaped.replace(place, variable)
    return f'"{escaped}"'


def script(
    config: Config, job: Layout, overrides: list[Override], python="python", places=None, run: TrlRun | None = None
) -> str:
    """run.sh: the command; after the first override of a setting stand the setting and TRL's names for it."""
    places, names = {f"{job.folder}/": "$HERE/"} | (places or {}), [f.name for f in dataclasses.fields(Config)]
    order = {name: i for i, name in enumerate(names)} | {"override": len(names)}
    lines, source = [], None
    for override in sorted(overrides, key=lambda o: order[o.source]):
        line = f"  {shell_word(override.text(), places)}"
        if override.source != source:
            source = override.source
            value = "" if source in UNSAID else f": {getattr(config, source)}"
            line += f"  # {source}{value}{run.origins.get(source, '') if run else ''}".replace("\n", " ")
        lines.append(line)
    return with_values(
        RUN,
        title=Path(config.from_trl).name if config.from_trl else config.algorithm,
        verl=VERL,
        ray="standing" if config.nodes > 1 else "own",
        output=shell_word(job.output, places),
        overrides="\n".join(lines),
        python=python,
    )


def write_script(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755)


def follow(command: list[str], output: Path) -> int:
    """Run a command and return 0, 1 on failure, 3 where a reward or an environment failed, 128 + n after signal n.

    Its output goes to the terminal and to verl.log of the output folder.
    """
    signals, failed, log = [], "", output / "verl.log"
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    child = subprocess.Popen(command, start_new_session=True, **pipes)

    def stop(signum, frame) -> None:
        signals.append(signum)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGTERM if len(signals) == 1 else signal.SIGKILL)

    earlier = {n: signal.signal(n, stop) for n in (signal.SIGTERM, signal.SIGINT)}
    try:
        with log.open("ab") as f, child:
            for line in child.stdout:
                f.write(line)
                f.flush()
                sys.stderr.buffer.write(line)
                sys.stderr.flush()
    finally:
        for signum, handler in earlier.items():
            signal.signal(signum, handler)
    with contextlib.suppress(OSError):
        failed = (output / REWARD_ERROR).read_text(encoding="utf-8").strip()
    if signals:
        say(f"stopped by signal {signals[0]}; --resume continues from the newest checkpoint")
        return 128 + signals[0]
    if failed:
        say(f"error: {failed}")
        return 3
    if child.returncode:
        say(f"error: verl ended with exit code {child.returncode}; expected 0; its log is {log}")
    return int(child.returncode != 0)


def run_local(config: Config, run: TrlRun | None = None) -> int:
    """--run: the trainer as a child process; its output goes to the terminal and to verl.log."""
    need_verl()
    names = [value for _, key, value in map(split_override, config.override) if key == f"{ROLLOUT}.name"]
    engine = (names or [config.verl_rollout])[-1]
    need(not missing_engine(engine), f"got a Python without {engine}, the sampling engine; expected it; {INSTALL}")
    job, overrides = prepare_job(config)
    for finding in batch_findings(config):
        say(f"warning: {finding}")
    folder, output = Path(job.folder), Path(job.output)
    findings = job_findings(folder)
    need(not findings, "".join(findings[:1]))
    write_script(folder / "run.sh", script(config, job, overrides, shlex.quote(sys.executable), run=run))
    if config.nodes == 1 and (address := os.environ.get("RAY_ADDRESS")):
        say(f"note: RAY_ADDRESS {address} is ignored for --run, which has a Ray of its own")
    return follow([str(folder / "run.sh")], output) or finish(config, output)


def finish(config: Config, output: Path) -> int:
    """Tell how a run ended, and copy its last policy to final/; returns the exit code."""
    last = output / "checkpoints" / f"global_step_{config.steps}" / "actor"
    if not last.is_dir():
        say(f"error: got a run that ended without the checkpoint of step {config.steps}; expected {last}")
        return 1
    follow_umask(output / "checkpoints")
    source, final = last / ("lora_adapter" if config.lora_rank else "huggingface"), output / "final"
    if source.is_dir():
        shutil.rmtree(final, ignore_errors=True)
        shutil.copytree(source, final)
        name_dtype(final)
        follow_umask(final)
    summary = {"steps": config.steps, "checkpoint": str(last.parent), "final": str(final) if source.is_dir() else None}
    tell(json.dumps(summary, indent=1))
    return 0


def name_dtype(folder: Path) -> None:
    """Let config.json name the dtype of the weights beside it: verl writes bfloat16 there, whatever they are."""
    weights, config = sorted(folder.glob("model*.safetensors")), folder / "config.json"
    if weights and config.is_file():
        entry = next(entry for name, entry in safetensors_header(weights[0]).items() if name != "__metadata__")
        dtype = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}[entry["dtype"]]
        settings = json.loads(config.read_text(encoding="utf-8")) | {"dtype": dtype}
        config.write_text(json.dumps(settings, indent=2), encoding="utf-8")
