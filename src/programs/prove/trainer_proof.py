"""A trainer or a verl job: what selfcheck.py and verl_train.py --check find, with the user's flags."""

from pathlib import Path

from parts.foundation.messages import need
from programs.prove.proof import Proof, report_of

CONTRACT = {"accumulate_gradients", "make_experience"}  # functions that only trainers have
SHOWN = ("logprob_shift", "advantages_detached", "accumulation")  # checks whose measurements are quoted
NEVER_RUN = "its train and what a run saves, for which try prove.py OUT"


def prove_trainer(file: Path, flags: list[str], seconds: float) -> Proof:
    proof, report = Proof("trainer", str(file)), report_of("selfcheck.py", [str(file), *flags, "--json"], seconds)
    passed, failed, rest = ([x for x in report["checks"] if x["status"] == s] for s in ("pass", "FAIL", "n/a"))
    proof.figures["checks"] = {x["name"]: x for x in report["checks"]}
    proof.findings = [f"{x['name']}: {x['measured']}; try: {x['try']}" for x in failed]
    proof.not_measured = [f"{x['name']}: {x['measured']}" for x in rest]
    ran, named = len(passed) + len(failed), " ".join([str(file), *flags])
    proof.say(f"{len(passed)} of {ran} checks of selfcheck.py pass for {named}.")
    if measured := [f"{x['name']}: {x['measured']}" for x in passed if x["name"] in SHOWN]:
        proof.say(f"Measured: {'; '.join(measured)}.")
    proof.say(f"Not checked: {'; '.join([*(x['name'] for x in rest), NEVER_RUN])}.")
    return proof


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
