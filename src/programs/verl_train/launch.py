"""run.sh, and who starts it: this machine, a Ray cluster or Slurm."""

import contextlib
import dataclasses
import importlib.util
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

from parts.data.verl_keys import ROLLOUT
from parts.foundation.file_text import file_text, with_values
from parts.foundation.messages import need, say, tell
from parts.running.output_folder import follow_umask
from programs.verl_train.checks import missing_engine, need_verl
from programs.verl_train.data import safetensors_header
from programs.verl_train.from_trl import TrlRun
from programs.verl_train.job_folder import job_findings, prepare_job
from programs.verl_train.overrides import Layout, Override, cpus_needed
from programs.verl_train.refusals import size_findings, split_override
from programs.verl_train.rewards import REWARD_ERROR
from programs.verl_train.settings import INSTALL, VERL, Config

RUN = file_text("job_files/run.sh")
SBATCH = file_text("job_files/job.sbatch")
# a Ray that stands has not the environment of run.sh; Hydra wants \' for a quote in the path
HANDED = r'''"+ray_kwargs.ray_init.runtime_env.env_vars={VERL_FILE_LOGGER_PATH:'${metrics//\'/\\\'}'}"'''
UNSAID = ("override", "reward", "data", "eval_data", "output_dir", "cpus")  # whose values stand in the override
# what a process of the reward prints of itself, after Ray's prefix, or as the error that ends the run
FAILED_REWARD = re.compile(
    r"^(?:\S*\(\w+ pid=[^)]*\)\S* )?(?:.*RuntimeError: .*?)?((?:REWARD|ENVIRONMENT) FAILED: .*)", re.MULTILINE
)
RAY_ADDRESSES = {"RAY_ADDRESS", "RAY_API_SERVER_ADDRESS"}  # of a cluster that Ray would take for the one meant


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
    places, names = places or {}, [f.name for f in dataclasses.fields(Config)]
    order = {name: i for i, name in enumerate(names)} | {"override": len(names)}
    stands = config.slurm or config.submit
    lines, source = [f"  {HANDED}"] if stands else [], None
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
        ray="" if stands else "unset RAY_ADDRESS  # a Ray of its own, in all its processes\n",
        output=shell_word(job.output, places),
        overrides="\n".join(lines),
        python=python,
    )


def batch_file(config: Config, job: Layout) -> str:
    """job.sbatch, which starts Ray on the machines and then run.sh."""
    least = cpus_needed(config.gpus_per_node, 1)
    got = f"got --cpus {config.cpus}; expected {least} on each machine, or Ray hangs"
    need(not config.cpus or config.cpus >= least, f"{got}; try leaving --cpus out")
    return with_values(
        SBATCH,
        name=re.sub(r"[^\w.-]", "_", Path(job.output).name),
        nodes=config.nodes,
        gpus=config.gpus_per_node,
        cpus=config.cpus or max(16, cpus_needed(config.gpus_per_node, 8)),
        all_gpus=config.nodes * config.gpus_per_node,
        output=shlex.quote(job.output),
        script=shlex.quote(f"{job.folder}/run.sh"),
    )


def write_script(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755)


def follow(command: list[str], output: Path, action: str, stopped: str) -> int:
    """Run a command and return 0, 1 on failure, 3 where a reward or an environment failed, 128 + n after signal n.

    Its output goes to the terminal and to verl.log of the output folder. The flag `action` decides on the cluster,
    whatever the environment names; `stopped` is said after a signal.
    """
    signals, failed, log = [], "", output / "verl.log"
    for name in RAY_ADDRESSES & os.environ.keys():
        say(f"note: {name} {os.environ[name]} is ignored for --{action}")
    env = {name: value for name, value in os.environ.items() if name not in RAY_ADDRESSES}
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    child = subprocess.Popen(command, env=env, start_new_session=True, **pipes)

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
                failed = failed or failure_in(line.decode(errors="replace"))
    finally:
        for signum, handler in earlier.items():
            signal.signal(signum, handler)
    with contextlib.suppress(OSError):  # on a cluster it may be another machine's
        failed = (output / REWARD_ERROR).read_text(encoding="utf-8").strip()
    if signals:
        say(f"stopped by signal {signals[0]}; {stopped}")
        return 128 + signals[0]
    if failed:
        say(f"error: {failed}")
        return 3
    if child.returncode:
        say(f"error: verl ended with exit code {child.returncode}; expected 0; its log is {log}")
    return int(child.returncode != 0)


def failure_in(line: str) -> str:
    match = FAILED_REWARD.match(line)
    return match[1].strip() if match else ""


def ready_job(config: Config, run: TrlRun | None, python: str = "python", remote: bool = False) -> Layout:
    """Write the job folder with its run.sh, once its copies load and its rewards mean in verl what they mean here."""
    job, overrides = prepare_job(config, remote)
    folder = Path(job.output) / "job"
    for finding in size_findings(config, job.parameters)[2]:
        say(f"warning: {finding}")
    findings = job_findings(folder)
    need(not findings, "".join(findings[:1]))
    write_script(folder / "run.sh", script(config, job, overrides, python, run=run))
    return job


def run_local(config: Config, run: TrlRun | None = None) -> int:
    """--run: the trainer as a child process; its output goes to the terminal and to verl.log."""
    need_verl()
    names = [value for _, key, value in map(split_override, config.override) if key == f"{ROLLOUT}.name"]
    engine = (names or [config.verl_rollout])[-1]
    need(not missing_engine(engine), f"got a Python without {engine}, the sampling engine; expected it; {INSTALL}")
    job = ready_job(config, run, shlex.quote(sys.executable))
    stopped, output = "--resume continues from the newest checkpoint", Path(job.output)
    return follow([f"{job.folder}/run.sh"], output, "run", stopped) or finish(config, output)


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


def fetch(address: str, path: str) -> dict:
    with urllib.request.urlopen(address.rstrip("/") + path, timeout=10) as answer:
        return json.load(answer)


def need_cluster(config: Config) -> None:
    """Raise UserError within seconds unless a Ray dashboard answers there, with the GPUs and CPUs of the run."""
    got, usage, gpus = f"got --submit {config.submit}", {}, config.nodes * config.gpus_per_node
    address = re.fullmatch(r"https?://[^/\s]+/?", config.submit)
    need(address, f"{got}; expected the dashboard's address; try --submit http://HEAD:8265")
    try:
        fetch(config.submit, "/api/version")
    except (OSError, ValueError) as error:
        expected = "expected the address that `ray start --head --dashboard-host=0.0.0.0` prints"
        has_token = getattr(error, "code", None) in (401, 403)  # which Ray's own client sends
        need(has_token, f"{got}, where no Ray cluster answers ({error}); {expected}; try opening it in a browser")
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):  # not every one tells what it has
        usage = fetch(config.submit, "/api/cluster_status")["data"]["clusterStatus"]["loadMetricsReport"]["usage"]
    for name, count in {"GPU": gpus, "CPU": cpus_needed(gpus, 1)}.items():
        total = usage.get(name, [0, 0])[1]
        lacking = f"{got} with {total:g} {name}s; expected {count}, or Ray hangs"
        need("CPU" not in usage or total >= count, f"{lacking}; try fewer --nodes or --gpus_per_node")


def submit_job(config: Config, run: TrlRun | None = None) -> int:
    """--submit: send the job folder to a Ray cluster by `ray job submit`, follow its log, and return as it does."""
    need_cluster(config)
    need(importlib.util.find_spec("ray"), f"got a Python without ray ({sys.executable}); expected it; {INSTALL}")
    output = Path(ready_job(config, run, remote=True).output)
    folder = output / "job"
    say_what_is_sent(config, folder)
    variables = {name: value for name, value in os.environ.items() if name.startswith("VERL_")}
    runtime = {"excludes": ["__pycache__", "*.sbatch", "*.log"], "env_vars": variables}
    command = [sys.executable, "-m", "ray.scripts.scripts", "job", "submit", "--address", config.submit]
    command += ["--working-dir", str(folder), "--runtime-env-json", json.dumps(runtime), "--", "bash", "run.sh"]
    stopped = f"the job continues; to stop it: ray job stop --address {config.submit} and its name, as printed above"
    code = follow(command, output, "submit", stopped)
    if not code:
        tell(json.dumps({"status": "SUCCEEDED", "output_dir": str(output)}))
    return code


def say_what_is_sent(config: Config, folder: Path) -> None:
    """Tell which files of the user go to a cluster, and which folders of this machine its nodes have to see."""
    names = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    users = [n for n in names if n.startswith(("rewards_", "environment/", "own_")) and "__pycache__" not in n]
    say(f"note: these files of yours are sent: {', '.join(users)}")
    for name in ("model", "critic_model"):
        if (path := getattr(config, name)) and Path(path).is_dir():
            say(f"note: the folder of --{name} {path} is not sent; every node needs it there; try a hub id")
    say(f"note: checkpoints and logs go to {folder.parent} on the nodes; several nodes must share it")
