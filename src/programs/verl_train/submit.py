"""--submit to a Ray cluster."""

import contextlib
import json
import os
import re
import shlex
import sys
import time
import urllib.request
from pathlib import Path

from parts.foundation.messages import UserError, need, say, tell
from programs.verl_train.engine_overrides import cpus_needed
from programs.verl_train.environment_job import need_sound_job
from programs.verl_train.job_folder import environment, prepare_job
from programs.verl_train.memory import say_findings
from programs.verl_train.overrides import Layout
from programs.verl_train.rewards import REWARD_ERROR
from programs.verl_train.settings import INSTALL, Config


def fetch(address: str, path: str, timeout: float) -> dict:
    with urllib.request.urlopen(address.rstrip("/") + path, timeout=timeout) as answer:
        return json.loads(answer.read())


def need_cluster(address: str) -> None:
    """Raise UserError within seconds unless a Ray dashboard answers there."""
    got = f"got --submit {address!r}; expected the dashboard's address; try --submit http://HEAD:8265"
    need(re.fullmatch(r"https?://[^/\s]+/?", address), got)
    try:
        version = fetch(address, "/api/version", 10)
    except (OSError, ValueError) as error:
        if getattr(error, "code", None) in (401, 403):  # it asks for a token, which Ray's own client sends
            return
        raise UserError(
            f"got --submit {address}, where no Ray cluster answers ({error}); expected the address that "
            "`ray start --head --dashboard-host=0.0.0.0` prints; try to open it in a browser"
        ) from None
    other = f"got --submit {address}, which answers {str(version)[:80]}; expected a Ray dashboard"
    need("ray_version" in version, other)


def cluster_findings(config: Config, address: str) -> list[str]:
    """What the cluster lacks for the run; nothing where its dashboard does not tell."""
    usage: dict = {}
    for _ in range(10):  # a dashboard that has just begun knows of no machine yet
        try:
            status = fetch(address, "/api/cluster_status", 10)["data"]["clusterStatus"]
            usage = status["loadMetricsReport"]["usage"]
        except (OSError, ValueError, KeyError, TypeError):
            return []
        if "CPU" in usage:
            break
        time.sleep(1)
    gpus = config.nodes * config.gpus_per_node
    wanted = {"GPU": gpus, "CPU": cpus_needed(gpus, 1)}
    totals = {name: usage.get(name, [0, 0])[1] for name in wanted}
    return [
        f"got a cluster with {totals[name]:g} {name}s; expected {count}, or Ray waits for ever"
        for name, count in wanted.items()
        if usage and totals[name] < count
    ]


def submit_job(config: Config) -> int:
    """--submit: send the job folder to a Ray cluster, follow the log, and return as the job does."""
    need_cluster(config.submit)
    job, overrides = prepare_job(config, remote=True)
    lacking = cluster_findings(config, config.submit)
    need(not lacking, f"{'; '.join(lacking)}; try fewer --nodes or --gpus_per_node")
    folder = Path(job.output) / "job"
    say_findings(config, job.parameters)
    say_local_paths(config, job)
    need_sound_job(config, folder)
    files = [path for path in folder.rglob("*") if path.is_file()]
    names = sorted(str(path.relative_to(folder)) for path in files if "__pycache__" not in path.parts)
    users = [name for name in names if name.startswith(("rewards_", "environment/", "own_"))]
    say(f"note: your files that are sent: {', '.join(users)}")
    size = sum(path.stat().st_size for path in files)
    need(size < 500e6, f"got a job folder of {size / 1e6:.0f} MB; expected Ray's 500 MB at most; try less data")
    try:
        from ray.job_submission import JobStatus, JobSubmissionClient
    except ImportError:
        got = f"got a Python without ray ({sys.executable})"
        raise UserError(f"{got}; expected the cluster's version; {INSTALL}") from None
    (folder / "run.sh").unlink(missing_ok=True)
    with without_variables("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS"):  # Ray would take them for the address given
        client = JobSubmissionClient(config.submit)
    runtime = {
        "working_dir": str(folder),
        "excludes": ["__pycache__", "*.sbatch", "*.log", "trial.json"],
        "env_vars": environment(job) | {name: value for name, value in os.environ.items() if name.startswith("VERL_")},
    }
    words = ["python3", "-u", "-m", "verl.trainer.main_ppo", *(o.text() for o in overrides)]
    name = client.submit_job(entrypoint=shlex.join(words), runtime_env=runtime)
    say(f"submitted {name} to {config.submit}; to stop it: ray job stop --address {config.submit} {name}")
    try:
        log = follow(client, name)
    except KeyboardInterrupt:
        say(f"job {name} goes on; to stop it: ray job stop --address {config.submit} {name}")
        return 130
    status = client.get_job_status(name)
    if status != JobStatus.SUCCEEDED:
        log = log or client.get_job_logs(name)
        tail = "\n".join(log.splitlines()[-30:])
        say(f"{tail}\nerror: job {name} is {status.value}: {client.get_job_info(name).message}")
        failure = reward_failure(log, Path(job.output) / REWARD_ERROR)
        if failure:
            say(f"error: {failure}")
        return 3 if failure else 1
    tell(json.dumps({"job": name, "status": status.value, "output_dir": job.output}))
    return 0


@contextlib.contextmanager
def without_variables(*names: str):
    """The process without these environment variables, until the block ends."""
    held = {name: os.environ.pop(name) for name in names if name in os.environ}
    if held:
        say(f"note: {', '.join(f'{name} {value}' for name, value in held.items())} left aside for --submit")
    try:
        yield
    finally:
        os.environ.update(held)


def say_local_paths(config: Config, job: Layout) -> None:
    """Tell which folders of this machine the nodes of a cluster have to see."""
    for name in ("model", "critic_model"):
        value = getattr(config, name)
        if value and Path(value).is_dir():
            where = f"note: --{name} {Path(value).resolve()} is a folder of this machine and is not sent"
            say(f"{where}; every node needs it at this path; try a hub id, or a file system that all share")
    say(f"note: checkpoints and logs go to {job.output} on the nodes; with several it has to be shared")


# what a process of the reward prints of itself, behind Ray's prefix, or as the error that ends the run
FAILED_REWARD = re.compile(
    r"^(?:\S*\(\w+ pid=[^)]*\)\S* )?(?:.*RuntimeError: .*?)?((?:REWARD|ENVIRONMENT) FAILED: .*)", re.MULTILINE
)


def reward_failure(log: str, error_file: Path) -> str:
    """The words of a reward or environment that failed, from anywhere in a job's log or from its file; "" if none."""
    with contextlib.suppress(OSError):  # there where the nodes share this machine's folders
        return error_file.read_text(encoding="utf-8").strip()
    match = FAILED_REWARD.search(log)
    return match[1].strip() if match else ""


class LostJob(UserError):
    """The cluster no longer answers about a job, which may still run."""

    code = 1


def follow(client, name: str, pause: float = 2.0) -> str:
    """Print a job's log as it grows, until the job ends; returns all of it. Half a minute without answer is endured."""
    seen, log, missed = 0, "", 0
    while True:
        try:
            ended = client.get_job_status(name).is_terminal()
            log, missed = client.get_job_logs(name) or "", 0
        except (OSError, RuntimeError) as error:  # those of requests are OSErrors
            ended, missed = False, missed + 1
            if missed > 15:
                got = f"got no answer about job {name} ({error}); expected its status"
                raise LostJob(f"{got}; it may still run; try ray job logs --follow {name}") from error
        sys.stderr.write(log[seen:])
        sys.stderr.flush()
        seen = max(seen, len(log))
        if ended:
            return log
        time.sleep(pause)
