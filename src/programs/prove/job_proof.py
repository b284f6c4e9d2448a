"""A verl job: what verl_train.py --check says of it, in a Python that has verl."""

from pathlib import Path

from parts.foundation.messages import need
from programs.prove.proof import Proof, report_of


def prove_job(path: Path, python: str, seconds: float) -> Proof:
    """Check settings of verl_train.py (.yaml), or Hydra overrides, one a line (.txt)."""
    proof, flag = Proof("verl job", str(path)), "--overrides" if path.suffix == ".txt" else "--config"
    need(Path(python).is_file(), f"got --python {python}, which is no file; expected a Python that has verl")
    report = report_of("verl_train.py", ["--check", flag, str(path)], seconds, python)
    proof.findings, proof.figures = report.pop("findings"), report
    if "checked" in report:
        proof.skip("What verl says", f"{python} has no verl; checked: {report['checked'].partition(';')[0]}")
        return proof
    proof.say(f"verl {report['verl']} composes the {report['overrides']} overrides of {path} in its own configuration.")
    if "data" in report:
        rows = f"{report['data']['rows that fit']} of {report['data']['rows']} training rows"
        proof.say(f"verl's own data set takes {rows}; prompts have the same token ids as in ppo_train.py.")
    if tried := report.get("reward"):
        how = f"{tried['completions']} completions of {tried['rows']} rows one by one, as verl does"
        proof.say(f"The job's copy of the reward, alone in its folder, scores {how}; the scores are {tried['scores']}.")
    return proof
