"""--run on this machine."""

import contextlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

from parts.data.verl_keys import ROLLOUT
from parts.foundation.messages import need, say, tell
from parts.running.output_folder import follow_umask
from programs.verl_train.checks import missing_engine, need_verl
from programs.verl_train.environment_job import need_sound_job
from programs.verl_train.job_folder import prepare_job
from programs.verl_train.memory import say_findings
from programs.verl_train.model_files import safetensors_header
from programs.verl_train.overrides import Layout
from programs.verl_train.refusals import split_override
from programs.verl_train.rewards import REWARD_ERROR
from programs.verl_train.run_script import script, write_script
from programs.verl_train.settings import INSTALL, Config


def run_local(config: Config) -> int:
    """--run: the trainer as a child process; its output goes to the terminal and to verl.log."""
    need_verl()
    names = [value for _, key, value in map(split_override, config.override) if key == f"{ROLLOUT}.name"]
    engine = (names or [config.verl_rollout])[-1]
    need(not missing_engine(engine), f"got a Python without {engine}, which samples; expected it; {INSTALL}")
    job, overrides = prepare_job(config)
    folder, output = Path(job.folder), Path(job.output)
    if address := os.environ.get("RAY_ADDRESS"):
        say(f"note: RAY_ADDRESS {address} is left aside, as --run starts a Ray of its own; try --submit for a cluster")
    say_findings(config, job.parameters)
    need_sound_job(config, folder)
    write_script(folder / "run.sh", script(config, job, overrides, shlex.quote(sys.executable)))
    log, stopped = output / "verl.log", []
    child = subprocess.Popen(
        [str(folder / "run.sh")],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )

    def stop(signum, frame) -> None:
        stopped.append(signum)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGTERM if len(stopped) == 1 else signal.SIGKILL)

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
    if stopped:
        say(f"stopped by signal {stopped[0]}; go on from the newest checkpoint with --resume")
        return 128 + stopped[0]
    return finish(config, job, child.returncode)


def finish(config: Config, job: Layout, code: int) -> int:
    """Tell how a run ended, and copy its last policy to final/; returns the exit code."""
    output = Path(job.output)
    last = output / "checkpoints" / f"global_step_{config.steps}" / "actor"
    failed = output / REWARD_ERROR
    if failed.is_file():
        say(f"error: {failed.read_text(encoding='utf-8').strip()}")
        return 3
    if code:
        say(f"error: verl ended with exit code {code}; expected 0; its log is {output / 'verl.log'}")
        return 1
    if not last.is_dir():
        say(f"error: got a run that ended without the checkpoint of step {config.steps}; expected {last}")
        return 1
    follow_umask(output / "checkpoints")
    final = output / "final"
    source = last / ("lora_adapter" if config.lora_rank else "huggingface")
    if source.is_dir():
        temporary = output / "final.tmp"
        shutil.rmtree(temporary, ignore_errors=True)
        shutil.copytree(source, temporary)
        name_dtype(temporary)
        follow_umask(temporary)
        shutil.rmtree(final, ignore_errors=True)
        os.replace(temporary, final)
    summary = {"steps": config.steps, "checkpoint": str(last.parent), "final": str(final) if source.is_dir() else None}
    tell(json.dumps(summary, indent=1))
    return 0


def name_dtype(folder: Path) -> None:
    """Let config.json name the dtype of the weights beside it: verl writes bfloat16 there, whatever they are."""
    weights, config = sorted(folder.glob("model*.safetensors")), folder / "config.json"
    if not weights or not config.is_file():
        return
    entries = [entry for name, entry in safetensors_header(weights[0]).items() if name != "__metadata__"]
    dtype = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}.get(entries[0]["dtype"])
    settings = json.loads(config.read_text(encoding="utf-8"))
    if dtype:
        config.write_text(json.dumps(settings | {"dtype": dtype}, indent=2), encoding="utf-8")
