"""An environment: reward_preflight.py's checks."""

import re
from pathlib import Path

from programs.prove.proof import Proof, failures_of, preflight_of


def is_environment(file: Path, name: str) -> bool:
    """Whether a name of a file, which is not run, is a class that is not called, or a dictionary: no rewards."""
    text = file.read_text(encoding="utf-8", errors="replace")
    found = re.search(rf"^(class {name}\b.*(\n(?!\S).*)*|{name}\b.*= *\{{)", text, re.MULTILINE)
    return bool(found) and "def __call__(" not in found[0]


def prove_environment(spec: str, data: str, flags: list[str], seconds: float) -> Proof:
    """Try an environment on rows."""
    report = preflight_of("environment", spec, data, flags, seconds)
    proof = Proof("environment", spec, findings=failures_of(report))
    proof.figures = {name: report[name] for name in ("gold", "policies")}
    known = [line for line in report["policies"] if line["name"] != "gold" and line["max"] is not None]
    paid = ", ".join(f"{line['name']} {line['max']:g}" for line in known)
    if gold := report["gold"]:
        marks = f"gold answers ({gold['variant']}) have full marks in {gold['full_marks']:.0%} of {gold['rows']} rows"
        proof.say(f"reward_preflight.py played {spec} on {data}: {marks}; the most that others are paid: {paid}.")
    else:
        proof.skip("What gold answers are paid", "no row says them; try a column gold with the answers of each turn")
    for note in [x for x in report["findings"] if x["check"] == "goes_on"]:
        proof.say(f"Note: {note['message']}; {note['try']}.")
    return proof
