"""A trainer: selfcheck.py's checks on it, with the user's flags."""

from pathlib import Path

from parts.foundation.messages import UserError
from programs.prove.proof import Proof, report_of

CONTRACT = {"accumulate_gradients", "make_experience"}  # functions that only trainers have
SHOWN = ("logprob_shift", "advantages_detached", "accumulation")  # whose measurements stand in the sentences


def prove_trainer(file: Path, flags: list[str], seconds: float) -> Proof:
    """Run the checks, of what the trainer has of the contract where it has not all."""
    proof, words = Proof("trainer", str(file)), [str(file), *flags, "--json"]
    try:
        report = report_of("selfcheck.py", words, seconds)
    except UserError as error:
        if "--partial" not in str(error) or "--partial" in flags:
            raise
        report = report_of("selfcheck.py", [*words, "--partial"], seconds)
    by_status = {status: [x for x in report["checks"] if x["status"] == status] for status in ("pass", "FAIL", "n/a")}
    checks, ran = {x["name"]: x for x in report["checks"]}, len(by_status["pass"]) + len(by_status["FAIL"])
    proof.figures["checks"] = checks
    proof.say(
        f"{len(by_status['pass'])} of {ran} checks of selfcheck.py pass for {file} {' '.join(flags)}".strip() + "."
    )
    proof.say(
        "They call its own functions on short sequences with pads and ragged rows, and compare with plain networks' "
        "logits and with the published formulas, computed in selfcheck.py."
    )
    measured = [f"{name}: {checks[name]['measured']}" for name in SHOWN if checks[name]["status"] == "pass"]
    if measured:
        proof.say(f"Measured: {'; '.join(measured)}.")
    proof.not_measured += [f"{x['name']}: {x['measured']}" for x in by_status["n/a"]]
    if by_status["n/a"]:
        proof.say(f"Not checked: {'; '.join(x['name'] for x in by_status['n/a'])}.")
    for x in by_status["FAIL"]:
        proof.find(f"{x['name']}: {x['measured']}; try: {x['try']}")
    return proof
