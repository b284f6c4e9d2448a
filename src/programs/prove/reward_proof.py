"""A reward: which trainers can call it, reward_preflight.py's checks on the user's rows, hostile programs."""

import ast
import contextlib
import inspect
import itertools
import json
import os
import tempfile
import textwrap
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from parts.data.rows import prompt_of, read_rows
from parts.foundation.file_text import file_text, with_values
from parts.foundation.messages import UserError
from parts.rewards.attacks import TEST_OF_ATTACKS, attack_programs, called_on_programs
from parts.rewards.reward_forms import find_reward, spec_parts
from parts.rewards.rewards import Reward
from programs.prove.proof import Proof, failures_of, preflight_of

TESTS = ("tests", "cases", "test_list", "test_cases", "test", "unit_tests", "asserts", "input_output")
TRUTHS = ("ground_truth", "answer")  # which may be tests, too
CALL = {"args": [2], "expected": 4, "function": "f", "fn_name": "f", "inputs": [[2]], "outputs": [4]}  # f(2) == 4
OUTPUTS = ("output", "outputs", "expected_output", "expected", "stdout")
FED = dict.fromkeys(("input", "inputs", "stdin"), "2\n") | dict.fromkeys(OUTPUTS, "4\n")  # f(2) == 4 on stdin, stdout
FED_MAIN = "print(f(int(input())))"  # added to a program that is judged by what it prints
TOGETHER_S, ALONE_S = 40.0, 25.0  # limits for a call with all programs, and with one
HARMFUL = ("file deleted", "file changed", "files left behind", "process left behind", "network")  # pass, but do harm
AS_SAMPLE_REWARD = file_text("files/as_sample_reward.py")
FAILED = ("hung", "died", "raised", "malformed", "not_finite")  # failures that reward_preflight.py counts
NONSENSE = ("empty", "whitespace", "unicode_junk", "keyword_stuffing", "very_long")  # probes of reward_preflight.py
ANSWER_FORMS = ("<answer>{}</answer>", "\\boxed{{{}}}", "#### {}", "Answer: {}", "```python\n{}\n```", "{}")
ESCAPE = (  # reaches `open` even if eval gets no builtins
    "[c for c in ().__class__.__base__.__subclasses__() if c.__name__ == 'catch_warnings'][0]()"
    "._module.__builtins__['open']"
)
GOLD_NAMES = ("target", "answer", "final_answer", "solution", "gold", "label")  # in a ground truth that is a dictionary
OURS = {"completions", "prompt", "completion"}  # one of which our trainers pass
COMPLETION_NAMES = {"completions", "completion", "completion_ids"}
VERL_NAMES = {"data_source", "solution_str", "ground_truth", "extra_info"}  # verl's reward managers pass these by name


def fed_test(tests, single: bool = False):
    """Replace calls or input/output tests by the attacks' single test, in the same form; None for other tests."""
    if isinstance(tests, str):
        with contextlib.suppress(ValueError):
            tests = fed_test(json.loads(tests), single)
            return json.dumps(tests) if tests else None
    if single and isinstance(tests, list) and len(tests) == 2:  # texts on stdin and stdout, or a call
        return ["2\n", "4\n"] if {*map(type, tests)} == {str} else [[2], 4] if isinstance(tests[0], list) else None
    if isinstance(tests, list) and tests:
        return [test] if (test := fed_test(tests[0], single=True)) else None
    if isinstance(tests, dict) and (tests.get("fn_name") or {"args", "expected"} <= {*tests}):
        return tests | {name: value for name, value in CALL.items() if name in tests}
    pair = {x: FED[x] for x in tests if x in FED} if isinstance(tests, dict) else {}
    lists = {x: [text] if isinstance(tests[x], list) else text for x, text in pair.items()}
    return tests | lists if len({*pair.values()}) == 2 else None


def attacked_row(row: dict, names: set[str]) -> dict | None:
    """The row with its tests replaced by the attacks' test, in the same form; None without tests among `names`."""
    truth = row.get("reward_model")
    if isinstance(truth, dict) and (inner := attacked_row(truth, {*truth})):
        return row | {"reward_model": inner}
    for name in (*TESTS, *TRUTHS):
        value, test = row.get(name), TEST_OF_ATTACKS
        if name in names and (fed := fed_test(value)):
            return row | {name: fed} | ({} if "4\\n" in str(fed) else {"entry_point": "f"})
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
    (path, function, _), programs = spec_parts(spec), attack_programs()
    if any("4\\n" in str(row.get(name)) for name in (*TESTS, *TRUTHS, "reward_model")):  # tests of input and output
        programs = [(kind, about, code and f"{code}\n\n{FED_MAIN}") for kind, about, code in programs]

    def outcome(codes: list[str], seconds: float) -> dict:
        return called_on_programs(str(Path(path).resolve()), function, row, codes, seconds)

    names, codes = [about for _, about, _ in programs], [code for *_, code in programs]
    hostile = [about for kind, about, _ in programs if kind == "hostile"]
    together = outcome(codes, TOGETHER_S)
    scores = dict(zip(names, together.get("scores", ()), strict=False))  # none if a program ended them all
    outcomes = {name: {"scores": [score], "harm": together["harm"]} for name, score in scores.items()}
    if not outcomes or together["harm"] or any(outcomes[x]["scores"][0] for x in hostile):  # find out which
        with ThreadPoolExecutor(4) as pool:
            outcomes = dict(zip(names, pool.map(lambda code: outcome([code], ALONE_S), codes), strict=True))
    scores = {name: x.get("scores", [0.0])[0] for name, x in outcomes.items()}
    wrong, through = scores[hostile[0]], {}
    if scores["plain"] <= wrong:
        proof.skip("How it stands attacks", "a right and a wrong program with the test f(2) == 4 get the same score")
        return
    for name in hostile:
        x = outcomes[name]
        problems = [*x.get("harm", ()), *(x[how] for how in ("ended", "raised") if how in x)]
        if name not in HARMFUL and scores[name] > wrong:
            problems.append(f"it is paid {scores[name]:g}")
        if problems:
            through[name] = "; ".join(problems)
    proof.figures["attacks"] = {"tried": hostile, "got_through": through}
    proof.findings += [f"attack {name}: {problem}" for name, problem in through.items()]
    paid = scores["a library"] > wrong
    libraries = ", and so is one with an import" if paid else f"; one with an import gets {wrong:g}"
    proof.say(
        f"{len(hostile) - len(through)} of {len(hostile)} hostile and wrong programs were contained, each called "
        f"through this very reward on this machine (user {os.getuid()}); got through: {', '.join(through) or 'none'}. "
        f"A plain right program is paid{libraries}."
    )


def prove_reward(spec: str, data: str, flags: list[str], seconds: float) -> Proof:
    """Run reward_preflight.py on a reward and the rows of `data`, and hostile programs if the rows have tests."""
    file, name, _ = spec_parts(spec)
    proof, function, rows = Proof("reward", spec), find_reward(spec)[0], read_rows(data)
    parameters = {} if isinstance(function, list) else inspect.signature(function).parameters
    names, takes_any = {*parameters}, any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    with tempfile.TemporaryDirectory() as folder:
        tried, taken, read = spec, {*rows[0]}, data
        if not names & OURS and {"solution_str", "ground_truth"} <= names:
            adapter = Path(folder, "as_sample_reward.py")
            adapter.write_text(with_values(AS_SAMPLE_REWARD, file=repr(str(Path(file).resolve())), name=repr(name)))
            tried = f"{adapter}:as_sample_reward"
        elif names and not takes_any:
            taken &= names
        attacked = attacked_row({"prompt": "", **rows[0]}, taken)
        describe_forms(proof, names, takes_any, name)
        is_verl = isinstance(rows[0].get("reward_model"), dict) and not attacked  # it keeps gold answers there
        is_free = not any(flag.startswith("--profile") for flag in flags)
        if pays_for_form := is_free and reads_completions_alone(function, parameters):
            rows, flags = [{"answer": str(i), **row} for i, row in enumerate(rows)], ["--profile", "format", *flags]
            form = "its form was checked (--profile format), not that right answers are paid more than wrong ones"
            proof.say(f"It reads completions alone, no answers: {form}.")
        if is_verl or pays_for_form:
            read = str(Path(folder, "rows.jsonl"))
            rows = [with_ground_truth(row) for row in rows] if is_verl else rows
            Path(read).write_text("".join(json.dumps(x, default=str) + "\n" for x in rows), encoding="utf-8")
        try:
            report = preflight_of(tried, read, flags, seconds)
            column = dict(itertools.pairwise(flags)).get("--prompt_column", "prompt")
            first = [{"prompt": prompt_of(rows[0], column, data), "columns": rows[0]}]
            truth = rows[0].get("ground_truth")
            is_part = isinstance(truth, dict) and len(truth) > 1  # no answer by itself: a target, and numbers for it
            if is_unpaid(report, flags, is_part):
                skip_gold(proof, report, is_part)
            describe_checks(proof, report, data)
        except UserError as error:
            if not attacked or "reference completion" not in str(error):
                raise UserError(str(error).replace(read, data)) from None
            report = {"findings": []}
            proof.skip("What gold answers are paid", "the rows have tests and no solutions")
        if attacked:
            prove_against_attacks(proof, tried, attacked)
        elif taken & {*TESTS}:
            proof.skip("How it stands attacks", "the tests are no assert statements, calls or input and output")
        elif not any(report["functions"][0][kind] for kind in FAILED) and runs_answers(tried, first):
            proof.find("it runs what stands in the place of an answer as Python: a model can do what this user can")
    proof.findings += [finding.replace(read, data) for finding in failures_of(report)]
    return proof


def reads_completions_alone(function, parameters) -> bool:
    """Whether a reward takes and reads neither prompts nor columns of the rows; False without source."""
    try:
        source = inspect.getsource(function if inspect.isroutine(function) else type(function).__call__)
        tree = ast.parse(textwrap.dedent(source))
    except (OSError, TypeError, SyntaxError):
        return False
    read = {x.id for x in ast.walk(tree) if isinstance(x, ast.Name)}
    others = {name for name, p in parameters.items() if name in read or p.kind is not p.VAR_KEYWORD} - COMPLETION_NAMES
    return bool(COMPLETION_NAMES & read) and not others - ({"prompt", "prompts"} - read)


def with_ground_truth(row: dict) -> dict:
    """A row in verl's form with its ground truth as a column; the answer in one such as {"target": 65} as another."""
    truth = (row.get("reward_model") or {}).get("ground_truth")
    answers = [truth[name] for name in GOLD_NAMES if name in truth] if isinstance(truth, dict) else []
    return row | {"ground_truth": truth} | ({"final_answer": answers[0]} if answers else {})


def is_unpaid(report: dict, flags: list[str], is_part: bool) -> bool:
    """Whether no guessed form of gold answers is fully paid in any row, and no failure explains that.

    `is_part`: what is taken for a gold answer may be a part of the question, so that wrong ones may get as much.
    """
    named = any(flag.startswith(("--gold", "--full_score", "--full-score")) for flag in flags)
    gold, works = report["gold"], not any(report["functions"][0][kind] for kind in FAILED)
    checks = {x["check"] for x in report["findings"]}
    none_paid = (is_part or "probes" in checks) and not gold["full_marks"] and "{" in gold["variant"]
    return none_paid and works and not named and "sign" not in checks


def skip_gold(proof: Proof, report: dict, is_part: bool) -> None:
    """Say that gold answers were not measured, and drop the findings that depend on them."""
    proof.is_open = True
    forms = "'{answer}', '\\boxed{answer}', '<answer>…', '#### …', 'Answer: …'"
    advice = "try -- --gold_template with the form that it pays, such as 'Result: {answer}'"
    advice += ", or --gold_column with right completions" if is_part else ""
    proof.skip(
        "What gold answers are paid",
        f"no usual form that reward_preflight.py tries ({forms}, …) is paid in any row; {advice}",
    )
    dropped = {"gold", "probes", *(x["name"] for x in report["probes"] if is_part)}
    report["findings"] = [x for x in report["findings"] if x["check"] not in dropped]


def describe_forms(proof: Proof, names: set[str], takes_any: bool, name: str) -> None:
    """Say which trainers can call a reward with these parameters; if none can, that is a finding."""
    if not names:
        proof.skip("The form", f"{name} is a list, or has no parameters that can be read")
        return
    batch = "completions" in names
    trl = "" if batch and takes_any else "no **kwargs, and TRL passes every column" if batch else "it scores no batch"
    missing = {"solution_str", "ground_truth"} - names or (set() if takes_any else VERL_NAMES - names)
    verl = f"it takes no {', '.join(sorted(missing))}" if missing else ""
    ours = "" if names & OURS else "it takes no completion or completions"
    forms = {"TRL": trl, "verl": verl, "ours": ours}
    proof.figures["forms"] = {trainer: not why for trainer, why in forms.items()}
    words = [f"{trainer} {'can' if not why else f'cannot ({why})'}" for trainer, why in forms.items()]
    proof.say(f"Which trainers can call {name}, by its parameters: {'; '.join(words)}.")
    if all(forms.values()):
        proof.find(f"neither TRL, verl nor this bundle can call {name}: {'; '.join(words)}")


def describe_checks(proof: Proof, report: dict, data: str) -> None:
    """Add the sentences on gold answers, nonsense and repeated scoring."""
    gold, contract = report["gold"], report["contract"]
    probes = {line["name"]: line for line in report["probes"]}
    paid = {name: probes[name]["worst"] for name in NONSENSE if probes.get(name, {}).get("worst") is not None}
    proof.figures |= {"gold": {key: gold[key] for key in ("rows", "variant", "full_marks", "mean", "none")}}
    proof.figures |= {"nonsense_worst_share": paid, "contract": contract, "probes": report["probes"]}
    most = f"{max(paid.values()):.0%} of gold's score" if paid else "nothing that could be compared"
    count = sum(probes[name]["completions"] for name in paid)
    more = f"; {gold['none']:.1%} got None and do not count" if gold["none"] else ""
    if not proof.is_open:
        proof.say(
            f"reward_preflight.py gave {gold['full_marks']:.1%} of {gold['rows']} gold answers of {data} full marks"
            f"{more} (written {gold['variant']!r}); of {count} nonsense completions ({', '.join(paid)}), the best got "
            f"{most}."
        )
    names = {"deterministic": "twice", "order_independent": "in another order", "batch_independent": "alone"}
    names["state_independent"] = "in a new process"
    words = [f"{name} {'yes' if contract[test] else 'no'}" for test, name in names.items() if test in contract]
    function = report["functions"][0]
    proof.figures |= {key: function[key] for key in ("p50_ms", "p99_ms")}
    if function["p50_ms"] is None:
        proof.skip("Whether the same completions get the same scores", "no gold completion got a score")
        return
    took = f"takes {function['p50_ms']:g} ms (99 % within {function['p99_ms']:g} ms)"
    slow = "".join(f"; slow: {x['message']}" for x in report["findings"] if x["check"] == "latency")
    proof.say(f"The same completions get the same scores: {', '.join(words)}; a gold one {took}{slow}.")


def runs_answers(spec: str, rows: list[dict]) -> bool:
    """Whether a reward runs a model's answers as Python, such as by `eval`: whether an answer can create a file."""
    with tempfile.TemporaryDirectory() as folder:
        call = f"({str(Path(folder, 'made'))!r}, 'w').close()"
        for code, form in itertools.product((f"open{call}", ESCAPE + call), ANSWER_FORMS):
            with contextlib.suppress(Exception):  # a reward may fail on such a text
                Reward([spec])(rows, [form.format(code)], [[1]])
        return bool([*Path(folder).iterdir()])
