"""Try a reward that runs programs on hostile ones: are they paid, do they read, change, leave or end anything?"""

import contextlib
import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from parts.rewards.attacks import TEST_OF_ATTACKS, attack_programs, called_on_programs
from parts.rewards.reward_forms import spec_parts
from programs.prove.proof import Proof

TESTS = ("tests", "test_list", "test_cases", "test", "unit_tests", "asserts", "ground_truth", "answer")
OUTPUTS = ("output", "outputs", "expected_output", "expected", "stdout")
FED = dict.fromkeys(("input", "inputs", "stdin"), "2\n") | dict.fromkeys(OUTPUTS, "4\n")  # f(2) == 4 on stdin, stdout
FED_MAIN = "print(f(int(input())))"  # added to a program that is judged by what it prints
TOGETHER_S, ALONE_S = 40.0, 25.0  # limits for a call with all programs, and with one
HARMFUL = ("file deleted", "file changed", "files left behind", "process left behind", "network")  # pass, but do harm


def fed_test(tests):
    """Replace input/output tests by the attacks' single test, in the same form; None for tests of another kind."""
    if isinstance(tests, str):
        with contextlib.suppress(ValueError):
            tests = fed_test(json.loads(tests))
            return json.dumps(tests) if tests else None
    if isinstance(tests, list) and tests:
        return [test] if (test := fed_test(tests[0])) else None
    pair = {x: FED[x] for x in tests if x in FED} if isinstance(tests, dict) else {}
    lists = {x: [text] if isinstance(tests[x], list) else text for x, text in pair.items()}
    return tests | lists if len({*pair.values()}) == 2 else None


def attacked_row(row: dict, names: set[str]) -> dict | None:
    """The row with its tests replaced by the attacks' test, in the same form; None without tests among `names`."""
    truth = row.get("reward_model")
    if isinstance(truth, dict) and (inner := attacked_row(truth, {*truth})):
        return row | {"reward_model": inner}
    for name in TESTS:
        value, test = row.get(name), TEST_OF_ATTACKS
        if name in names and (fed := fed_test(value)):
            return row | {name: fed}
        if name not in names or "assert " not in json.dumps(value, default=str):
            continue
        with contextlib.suppress(ValueError, TypeError):
            test = json.dumps([test]) if isinstance(json.loads(value), list) else test
        if "def check(" in str(value):
            test = f"def check(candidate):\n    {test.replace('f(', 'candidate(')}"
        fixed = {column: text for column, text in (("entry_point", "f"), ("setup", "")) if column in row}
        return row | {name: test if isinstance(value, str) else [test]} | fixed
    return None


def prove_against_attacks(proof: Proof, spec: str, row: dict) -> None:
    """Call a reward on right and hostile programs, and report which hostile ones were paid or did harm."""
    (path, name, _), programs = spec_parts(spec), attack_programs()
    if TEST_OF_ATTACKS not in str(row) and "candidate(2)" not in str(row):  # tests of input and output
        programs = [(kind, about, code and f"{code}\n\n{FED_MAIN}") for kind, about, code in programs]

    def outcome(codes: list[str], seconds: float) -> dict:
        return called_on_programs(str(Path(path).resolve()), name, row, codes, seconds)

    together = outcome([code for *_, code in programs], TOGETHER_S)
    hostile = [i for i, (kind, *_) in enumerate(programs) if kind == "hostile"]
    outcomes = [{"scores": [score], "harm": together["harm"]} for score in together.get("scores", ())]
    if not outcomes or together["harm"] or any(outcomes[i]["scores"][0] for i in hostile):  # find out which
        with ThreadPoolExecutor(4) as pool:
            outcomes = [*pool.map(lambda program: outcome([program[2]], ALONE_S), programs)]
    scores = [x.get("scores", [0.0])[0] for x in outcomes]
    rights = {about: s for s, (kind, about, _) in zip(scores, programs, strict=True) if kind == "right"}
    right, wrong = rights["plain"], scores[hostile[0]]
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
    libraries = (
        ", and so is one with an import" if rights["a library"] > wrong else f"; one with an import gets {wrong:g}"
    )
    held, through = len(hostile) - len(through), ", ".join(through) or "none"
    proof.say(
        f"{held} of {len(hostile)} hostile and wrong programs were contained, each called through this very reward on "
        f"this machine (user {os.getuid()}); got through: {through}. A plain right program is paid{libraries}."
    )
