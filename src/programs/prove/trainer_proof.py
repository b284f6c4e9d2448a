"""A trainer or a verl job: what selfcheck.py and verl_train.py --check find, with the user's flags."""

import ast
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from parts.foundation.bundle import EMBEDDED_DATA, EMBEDDED_MODEL
from parts.foundation.file_text import file_text
from parts.foundation.messages import need
from parts.sampling.saved_models import saved
from programs.prove.proof import Proof, parsed, report_of

CONTRACT = {"accumulate_gradients", "make_experience"}  # functions that only trainers have
SHOWN = ("logprob_shift", "advantages_detached", "accumulation")  # checks whose measurements are quoted

EMBEDDED = {"model": EMBEDDED_MODEL, "data": EMBEDDED_DATA}
TWO_STEPS = {"steps": 2, "lr": 1e-3, "prompts": 4, "group_size": 4, "batch_size": 16, "max_new_tokens": 16}
STEP_REWARDS = file_text("files/step_rewards.py")
NEVER_RUN = "resuming, several processes, schedules and checkpoints of a longer run"


def prove_trainer(file: Path, flags: list[str], seconds: float) -> Proof:
    begin = time.monotonic()
    proof, report = Proof("trainer", str(file)), report_of("selfcheck.py", [str(file), *flags, "--json"], seconds)
    passed, failed, rest = ([x for x in report["checks"] if x["status"] == s] for s in ("pass", "FAIL", "n/a"))
    proof.figures["checks"] = {x["name"]: x for x in report["checks"]}
    proof.findings = [f"{x['name']}: {x['measured']}; try: {x['try']}" for x in failed]
    proof.not_measured = [f"{x['name']}: {x['measured']}" for x in rest]
    ran, named = len(passed) + len(failed), " ".join([str(file), *flags])
    proof.say(f"{len(passed)} of {ran} checks of selfcheck.py pass for {named}.")
    if measured := [f"{x['name']}: {x['measured']}" for x in passed if x["name"] in SHOWN]:
        proof.say(f"Measured: {'; '.join(measured)}.")
    prove_steps(proof, file, flags, seconds - (time.monotonic() - begin))
    proof.say(f"Not checked: {'; '.join([*(x['name'] for x in rest), NEVER_RUN])}.")
    return proof


def prove_steps(proof: Proof, file: Path, flags: list[str], seconds: float) -> None:
    """Run two steps of a page: they change the weights, but not where every advantage is 0."""
    configs = [node.body for node in parsed(file) if isinstance(node, ast.ClassDef) and node.name == "Config"]
    fields = {x.target.id for body in configs for x in body if isinstance(x, ast.AnnAssign)}
    if not {"steps", "out", "lr", "reward"} <= fields:
        proof.skip("What steps of its train change", "it is not a page with the settings steps, out, lr and reward")
        return
    rewards = ["varied"] if fields & {"gae_lambda", "kl_coef", "entropy_coef"} else ["varied", "equal"]
    flags = [word for flag in flags for word in (flag.split("=", 1) if flag.startswith("--") else [flag])]
    flags += [word for name, value in EMBEDDED.items() if f"--{name}" not in flags for word in (f"--{name}", value)]
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "rewards.py").write_text(STEP_REWARDS, encoding="utf-8")
        try:
            with ThreadPoolExecutor() as pool:
                errors = [*pool.map(lambda name: run_steps(file, flags, fields, Path(folder, name), seconds), rewards)]
        except subprocess.TimeoutExpired:
            proof.skip(
                "What steps of its train change", f"they take longer than {seconds:.0f} s; try a larger --minutes"
            )
            return
        start = flags[flags.index("--model") + 1]
        changes = [
            {"loads": False, "error": error} if error else saved(start, Path(folder, name))
            for name, error in zip(rewards, errors, strict=True)
        ]
    proof.figures["change_by_steps"] = dict(zip(rewards, changes, strict=True))
    if failed := [change["error"] for change in changes if not change["loads"]]:
        proof.find(f"train: two steps leave no model that loads: {failed[0]}")
        return
    moved, *kept = (change["largest_weight_change"] for change in changes)
    with_equal = "".join(f", and by {x:.2g} where all scores are equal" for x in kept)
    proof.say(f"Two steps of its train move weights by at most {moved:.2g}{with_equal}.")
    if not moved:
        proof.find("train: two steps with different scores leave every weight unchanged")
    if any(kept):
        proof.find(f"train: two steps change weights by {kept[0]:.2g} where scores are equal and all advantages 0")


def run_steps(file: Path, flags: list[str], fields: set[str], out: Path, seconds: float) -> str:
    """Run two steps of a page with the reward of STEP_REWARDS that its folder is called after; returns the error."""
    short = TWO_STEPS | {"eval_data": "", "out": out, "reward": f"{out.parent}/rewards.py:{out.name}"}
    words = [str(x) for name, value in short.items() if name in fields for x in (f"--{name}", value)]
    command = [sys.executable, file, *flags, *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=max(1.0, seconds))
    return (done.stderr.strip().splitlines() or ["no message"])[-1] if done.returncode else ""


def prove_job(path: Path, python: str, seconds: float) -> Proof:
    """Check settings of verl_train.py (.yaml), or Hydra overrides, one a line (.txt), in a Python that has verl."""
    proof, flag = Proof("verl job", str(path)), "--overrides" if path.suffix == ".txt" else "--config"
    need(Path(python).is_file(), f"got --python {python}, which is not a file; expected a Python that has verl")
    report = report_of("verl_train.py", ["--check", flag, str(path)], seconds, python)
    proof.findings, proof.figures = report.pop("findings"), report
    if "checked" in report:
        proof.skip("What verl says", f"{python} has no verl; checked: {report['checked'].partition(';')[0]}")
        return proof
    proof.say(f"verl {report['verl']} composes the {report['overrides']} overrides of {path} in its own configuration.")
    if "data" in report:
        rows = f"{report['data']['rows that fit']} of {report['data']['rows']} training rows"
        same = "" if flag == "--overrides" else "; prompts have the same token ids as in ppo_train.py"
        proof.say(f"verl's own data set takes {rows}{same}.")
    if tried := report.get("reward"):
        reward = "The reward" if flag == "--overrides" else "The job's copy of the reward, alone in its folder,"
        how = f"{tried['completions']} completions of {tried['rows']} rows one by one, as verl does"
        proof.say(f"{reward} scores {how}; the scores are {tried['scores']}.")
    if "unchecked" in report:
        proof.skip("What the reward pays for the job's rows", report["unchecked"])
    return proof
