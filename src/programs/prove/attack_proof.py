"""A reward that runs programs, on hostile ones: what is paid, read, changed, left behind or ended."""

import contextlib
import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from parts.rewards.attacks import TEST_OF_ATTACKS, attack_programs, called_on_programs
from programs.prove.proof import Proof

TESTS = ("tests", "test_list", "test_cases", "test", "unit_tests", "asserts", "ground_truth", "answer")
TOGETHER_S, ALONE_S = 40.0, 15.0  # all programs in one call; one of them
HARMFUL = ("file deleted", "file changed", "files left behind", "process left behind", "network")  # right, but for that


def attacked_row(row: dict, names: set[str]) -> dict | None:
    """A row whose tests, in their own form, are the attacks'; None where no column has tests that a reward takes."""
    truth = row.get("reward_model")
    if isinstance(truth, dict) and (inner := attacked_row(truth, {*truth})):
        return row | {"reward_model": inner}
    for name in TESTS:
        value, test = row.get(name), TEST_OF_ATTACKS
        if name not in names or "assert " not in json.dumps(value, default=str):
            continue
        with contextlib.suppress(ValueError, TypeError):
            test = json.dumps([test]) if isinstance(json.loads(value), list) else test
        if "def check(" in str(value):
            test = f"def check(candidate):\n    {test.replace('f(', 'candidate(')}"
        own = {"entry_point": "f", "setup": ""}
        return row | {name: test if isinstance(value, str) else [test]} | {n: own[n] for n in own if n in row}
    return None


def prove_against_attacks(proof: Proof, spec: str, row: dict) -> None:
    """Call a reward on right and hostile programs, and say what got through."""
    (path, _, name), programs = spec.partition("*")[0].rpartition(":"), attack_programs()

    def outcome(codes: list[str], seconds: float) -> dict:
        return called_on_programs(str(Path(path).resolve()), name, row, codes, seconds)

    together = outcome([code for *_, code in programs], TOGETHER_S)
    hostile = [i for i, (kind, *_) in enumerate(programs) if kind == "hostile"]
    outcomes = [{"scores": [score], "harm": together["harm"]} for score in together.get("scores", ())]
    if not outcomes or together["harm"] or any(outcomes[i]["scores"][0] for i in hostile):  # which one, and only it?
        with ThreadPoolExecutor(4) as pool:
            outcomes = [*pool.map(lambda program: outcome([program[2]], ALONE_S), programs)]
    scores = [x.get("scores", [0.0])[0] for x in outcomes]
    right, wrong = min(s for s, (kind, *_) in zip(scores, programs, strict=True) if kind == "right"), scores[hostile[0]]
    if right <= wrong:
        proof.skip("How it stands attacks", "a right and a wrong program with the test f(2) == 4 get the same score")
        return
    through = {}
    for i in hostile:
        problems = [*outcomes[i].get("harm", ()), *(outcomes[i][x] for x in ("ended", "raised") if x in outcomes[i])]
        if programs[i][1] not in HARMFUL and scores[i] > wrong:
            problems.append(f"it is paid {scores[i]:g}")
        if problems:
            through[programs[i][1]] = "; ".join(problems)
    proof.figures["attacks"] = {"tried": [programs[i][1] for i in hostile], "got_through": through}
    proof.findings += [f"attack {name}: {problem}" for name, problem in through.items()]
    held, through = len(hostile) - len(through), ", ".join(through) or "none"
    proof.say(
        f"{held} of {len(hostile)} hostile and wrong programs were contained, each called through this very reward on "
        f"this machine (user {os.getuid()}), and right ones are paid; got through: {through}."
    )
