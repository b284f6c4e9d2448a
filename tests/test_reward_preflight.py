"""The preflight says of toy rewards what is wrong with them, and of sound ones that they are ready."""

import json
import re
import subprocess

import pytest
from conftest import EVAL_DATA, ROOT, run_script, write_lines
from preflight_here import ProcessHere

from programs.reward_preflight import command
from programs.reward_preflight.command import main

ROWS = [{"prompt": f"{a}+{a + 3}=", "answer": str(2 * a + 3)} for a in range(11, 19)]

EACH = {  # {name: what a reward pays for a text with the answer a, the prompt p and the number i}
    "pays_empty": "float(not text) or right(text, a)",
    "pays_keywords": "right(text, a) + 0.1 * text.count('therefore')",
    "pays_prompt": "float(text == p) or right(text, a)",
    "pays_any_number": r"full(r'<answer>\d+</answer>', text)",
    "pays_repeats": "float(text.count(f'<answer>{a}</answer>'))",
    "raises": "float(json.loads(text) == int(a))",
    "dies": "right(text, a) if text else os._exit(7)",
    "exits": "right(text, a) if text else exit(0)",
    "nan": "right(text, a) if text.strip() else float('nan')",
    "by_position": "right(text, a) * (1.0 if i == 0 else 0.5)",
    "constant": "0.0",
    "constant_1": "1.0",
    "half": "0.5 * right(text, a)",
    "none_if_wrong": "right(text, a) or None",
    "tagged": "full(r'<answer>[^<>]+</answer>', text)",
    "grades": "right(text, a) * random.uniform(0.6, 0.8)",
    "boxed": r"float(text == '\\boxed{%s}' % a.split('####')[-1].strip())",
    "hashes": r"full(r'(?s)steps \d.*#### %s' % a.split()[-1], text)",
    "think": r"full(r'(?s)<think>.+</think>\s*<answer>\s*%s\s*</answer>' % a, text)",
    "final": "float(text == f'Final: {a}!')",
    "capitals": "full(f'ANSWER: {a}', text)",
    "of_json": "float(text[:1] == '{' and json.loads(text)['answer'] == a)",
    "keeps_the_first": "kept.setdefault(str(p), right(text, a))",
    "by_level": "kwargs['level'][i] * right(text, a)",
    "pays_the_answer": "float(a) * right(text, a)",
    "ten_at_best": "(2.0 if a == '25' else 10.0) * right(text, a)",
    "joins": "float(text == '<answer>' + a + '</answer>')",
}
EACH_FORM = """
def {}(prompts, completions, **kwargs):
    rows = zip(completions, kwargs.get("answer", prompts), prompts)
    return [{} for i, (text, a, p) in enumerate(rows)]
"""
REWARDS = r"""import asyncio, json, os, random, re, subprocess, time

kept = {}

def full(pattern, text):
    return float(re.fullmatch(pattern, text) is not None)

def right(text, answer):
    return float(re.fullmatch(r"<answer>([^<]*)</answer>", text) is not None and text[8:-9] == answer)

def good(prompts, completions, answer, **kwargs):
    '''Exact.

    Range: {0, 1}
    '''
    print("printed by a reward")
    return [right(text, a) for text, a in zip(completions, answer)]

def shorter(prompts, completions, **kwargs):
    lengths = [len(text) for text in completions]
    spread = max(lengths) - min(lengths)
    return [0.5 - (length - min(lengths)) / spread if spread else 0.0 for length in lengths]

shorter.needs_group = True

async def good_async(prompts, completions, answer, **kwargs):
    await asyncio.sleep(0)
    return good(prompts, completions, answer)

def bare(completions, answer):
    return good(None, completions, answer)

def as_messages(prompts, completions, answer, **kwargs):
    assert all(c[0]["role"] == "assistant" for c in completions)
    return [right(c[0]["content"], a) for c, a in zip(completions, answer)]

def evaluates(prompts, completions, answer, **kwargs):
    inside = [re.fullmatch(r"<answer>(?:(\d+)\+)?(\d+)=?</answer>", text) for text in completions]
    return [float(m is not None and int(m[1] or 0) + int(m[2]) == int(a)) for m, a in zip(inside, answer)]

def hangs_with_child(prompts, completions, answer, **kwargs):
    if "" in completions:
        child = subprocess.Popen(["sleep", "300"])
        with open(os.environ["PIDS"], "a") as f:
            f.write(f"{child.pid}\n")
        child.wait()
    return good(prompts, completions, answer)

def too_few(prompts, completions, answer, **kwargs):
    return good(prompts, completions, answer)[1:]

def changes(prompts, completions, answer, **kwargs):
    result = good(prompts, completions, answer)
    answer.reverse()
    return result

def penalty(prompts, completions, **kwargs):
    '''Range: [-1, 0]'''
    return [-float(len(text) > 40) for text in completions]

def letter(completion, answer):
    said = re.findall(r"####\s*([A-D])(?![a-z])", completion) or [completion.strip()]
    return float(said[-1] == answer)

def verified(completion, answer):
    from math_verify import parse, verify
    said = re.fullmatch(r"\\boxed\{(.*)\}", completion)
    gold, found = (parse(f"${text}$", parsing_timeout=None) for text in (answer, said[1] if said else ""))
    return float(verify(gold, found, timeout_seconds=None))

def of_solution(completion, solution):
    return float(completion == "\\boxed{%s}" % solution)

def backtracks(completion, answer):
    re.match(r"(\w+\s?)*$", completion)
    return good(completion, answer)

def slow(completion, answer):
    time.sleep(0.02)
    return 0.0

def slow_start(completions, **kwargs):
    time.sleep(0.15)
    return [0.0] * len(completions)

def runs_code(prompt, completion, entry_point):
    found, names = re.fullmatch(r"(?s)```python\n(.*?)\n```", completion), {}
    try:
        exec(found[1], names)
        return float(names[entry_point](3) == 9)
    except Exception:
        return 0.0

def trl_only(prompts, completions, answer, completion_ids, trainer_state, log_metric, **kwargs):
    log_metric("seen", 1.0)
    assert all(len(ids) >= len(text) / 4 for ids, text in zip(completion_ids, completions))
    return good(prompts, completions, answer)

def reads(prompts, completions, answer, **kwargs):
    '''Range: {0, 1}'''
    with open("longest.txt", "a") as f:  # more than one process calls this
        f.writelines(f"{len(text)}\n" for text in completions if "99999" in text)  # not the gold formats
    found = [re.fullmatch(r"<answer>(-?[0-9]+)</answer>", text) for text in completions]
    return [float(m is not None and int(m[1]) == int(a)) for m, a in zip(found, answer)]
""" + "".join(EACH_FORM.format(name, pays) for name, pays in EACH.items())
LINES = REWARDS.splitlines()
LIBRARY = ROOT / "examples" / "reward_functions_library.py"
RAISES_AT = LINES.index("def raises(prompts, completions, **kwargs):") + 3
HANGS_AT = LINES.index("        child.wait()") + 1


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with the toy rewards, rows, and files that cannot be used, each for another reason."""
    path = tmp_path_factory.mktemp("preflight")
    (path / "rewards.py").write_text(REWARDS, encoding="utf-8")
    write_lines(path / "rows.jsonl", ROWS)
    (path / "exits_at_import.py").write_text("import os\nos._exit(5)\n")
    write_lines(path / "plain.jsonl", [{"prompt": "1+1="}])
    write_lines(path / "unasked.jsonl", [{"question": "1+1=", "answer": "2"}])
    return path


def flags_of(folder, name, flags, rows) -> list[str]:
    data = write_lines(folder / "others.jsonl", rows) if rows else "rows.jsonl"
    spec = name if ":" in name else f"rewards.py:{name}"
    return ["--reward", spec, "--data", data, "--json", *map(str, flags)]


def checked(code, text) -> tuple:
    assert code in (0, 1)
    return code, json.loads(text, parse_constant=lambda text: pytest.fail(f"{text} is not JSON"))


@pytest.fixture
def check(folder, monkeypatch, capsys):
    """check(reward, *flags, rows=ROWS) -> (exit code, report) of a preflight whose reward is called in this process."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(command, "OwnProcess", ProcessHere)

    def run(name, *flags, rows=None) -> tuple:
        code = main(flags_of(folder, name, flags, rows))
        out, err = capsys.readouterr()
        assert out, err
        return checked(code, out)

    return run


def check_apart(folder, name, *flags, rows=None, env=None) -> tuple:
    """The same by the command line, with a process of the reward's own."""
    done = run_script("reward_preflight", *flags_of(folder, name, flags, rows), cwd=folder, env=env)
    assert ("printed by a reward" in done.stderr) >= (name == "good")  # and never in the JSON
    return checked(done.returncode, done.stdout or done.stderr)


def failures(report) -> set[str]:
    """The checks that failed."""
    return {finding["check"] for finding in report["findings"] if finding["severity"] == "fail"}


def finding(report, check) -> dict:
    """The first finding of a check."""
    return next(f for f in report["findings"] if f["check"] == check)


@pytest.mark.parametrize("name", ["good", "good_async", "think", "trl_only"])
def test_sound_reward_is_ready(folder, check, name):
    code, report = check_apart(folder, name) if name == "good" else check(name)
    assert (code, report["ready"], failures(report)) == (0, True, set())
    assert report["gold"]["full_marks"] == 1 and report["gold"]["full_score"] == 1 and report["gold"]["none"] == 0
    shares = {probe["name"]: probe["worst"] for probe in report["probes"] if probe["name"] != "repeated_gold"}
    assert set(shares.values()) == {0.0} and len(shares) == 9
    assert report["rows"] == 8 and all(report["contract"].values())
    function = report["functions"][0]
    assert function["name"] == name and function["none_rate"] == 0 and 0 < function["p50_ms"] <= function["p99_ms"]
    assert not any(function[kind] for kind in ("raised", "hung", "died", "malformed", "not_finite"))


def test_chat_prompts_get_chat_completions(check):
    rows = [{"prompt": [{"role": "user", "content": row["prompt"]}], "answer": row["answer"]} for row in ROWS]
    assert check("as_messages", rows=rows)[0] == 0
    assert "raised" in failures(check("as_messages")[1])  # plain prompts: it is given strings


def test_the_last_choice_of_a_prompt_is_a_guess_and_no_echo(check):
    prompts = [f"Which is {n}+{n}?\n\nA. {2 * n}\nB. {n}\nC. {3 * n}\nD. {2 * n}" for n in range(10, 30)]
    rows = [{"prompt": prompt, "answer": letter} for prompt, letter in zip(prompts, "DABC" * 5, strict=True)]
    assert check("letter", rows=rows)[0] == 0


@pytest.mark.long
def test_a_reward_that_works_out_the_prompts_formula_is_found(check):
    """math-verify alone pays for `\\boxed{2x + 3x}`; the library's function does not."""
    pairs = [(2, 3), (4, 5), (1, 7), (6, 2)]
    rows = [{"prompt": f"Simplify ${a}x + {b}x$.\nBe brief.", "answer": f"{a + b}x"} for a, b in pairs]
    asked = "Expand \\((x + {})^2\\).\nBe brief."
    rows += [{"prompt": asked.format(a), "answer": f"x^2+{2 * a}x+{a * a}"} for a in (2, 3, 4, 8)]
    code, report = check("verified", "--max_new_tokens", 64, rows=rows)
    assert code == 1 and "prompt_echo" in failures(report)
    assert check(f"{LIBRARY}:math_equivalence", "--max_new_tokens", 64, rows=rows)[0] == 0


def test_weighted_sum_is_judged_not_each_part(check):
    code, report = check("good", "--reward", "rewards.py:pays_any_number*0.25")
    assert code == 0 and report["gold"]["full_score"] == 1.25
    wrong = next(probe for probe in report["probes"] if probe["name"] == "wrong_answer")
    assert wrong["worst"] == pytest.approx(0.25 / 1.25)
    assert [f["weight"] for f in report["functions"]] == [1, 0.25]


def test_no_var_keywords_is_only_a_warning_and_fine_for_one_sample(check):
    code, report = check("bare")
    assert code == 0 and finding(report, "signature")["severity"] == "warning"
    assert report["contract"]["takes_any_column"] is False
    assert check("letter")[1]["contract"]["takes_any_column"] is True


@pytest.mark.parametrize(
    ("name", "failing"),
    [
        ("pays_empty", {"empty"}),
        ("evaluates", {"answer_listing", "raised"}),  # the prompt in the answer's place; int() of 40,000 digits
        ("pays_keywords", {"keyword_stuffing"}),
        ("pays_prompt", {"prompt_echo"}),
        ("pays_any_number", {"wrong_answer", "very_long"}),
        ("pays_repeats", {"repeated_gold"}),
        ("penalty", {"empty"}),
    ],
)
def test_completion_that_must_not_pay_is_found(check, name, failing):
    code, report = check(name)
    assert code == 1 and failing <= failures(report)
    if name == "penalty":  # pays for nothing by itself, but may stand beside another
        assert check("good", "--reward", "rewards.py:penalty*0.1")[0] == 0
        return
    assert failures(report) - failing <= {"repeated_gold", "answer_listing", "prompt_echo"}
    assert report["gold"]["full_marks"] == 1
    for check_name in failing - {"raised"}:
        shown = finding(report, check_name)
        assert shown["score"] > 0 and shown["try"] and 1 <= shown["row"] <= len(ROWS)


def test_probes_keep_within_the_run(folder, check):
    """int() refuses the probe of 40,000 digits; a run of 20 tokens, 80 characters, cannot say so much."""
    code, report = check("reads")
    assert code == 1 and failures(report) == {"raised"} and "--max_new_tokens" in finding(report, "raised")["try"]
    (folder / "longest.txt").unlink()
    code, report = check("reads", "--max_new_tokens", "20")
    assert code == 0, report["findings"]
    assert max(map(int, (folder / "longest.txt").read_text().split())) == 80
    code, report = check("reads", "--max_new_tokens", "2")  # gold is of 19 characters
    said = finding(report, "long_gold")
    assert said["severity"] == "warning" and "8 of 8" in said["message"] and "8 characters" in said["message"]


def test_reward_of_a_group_is_not_blamed_for_it(check):
    """It compares the completions of a prompt, so that one alone gets another score."""
    _, report = check(f"{LIBRARY}:exact_match", "--reward", "rewards.py:shorter*0.5")
    assert "batch" not in failures(report) and "gold" not in failures(report), report["findings"]
    assert report["gold"]["full_marks"] == 1


def test_none_is_no_score_for_a_wrong_answer(check):
    code, report = check("none_if_wrong")
    assert code == 1 and failures(report) == {"unscored"}, report["findings"]
    assert "give wrong answers 0" in finding(report, "unscored")["try"]


@pytest.mark.parametrize(
    ("name", "profile", "failed"),
    [
        ("tagged", "format", set()),
        ("tagged", "answer", {"prompt_echo", "answer_listing", "wrong_answer", "very_long"}),
        ("constant_1", "format", {"empty", "whitespace", "unicode_junk"}),
        ("grades", "judge", set()),
    ],
)
def test_probes_fail_by_what_the_reward_pays_for(check, name, profile, failed):
    _, report = check(name, "--chat", "--profile", profile)
    assert report["profile"] == profile and report["ready"] == (not failed)
    assert {probe["name"] for probe in report["probes"] if probe["status"] == "FAIL"} == failed
    if profile == "answer":
        assert "--profile format" in finding(report, "wrong_answer")["try"]


def test_a_column_schema_is_gold_where_it_is_a_json_schema(check):
    text = [{"prompt": "?", "answer": "x", "schema": "CREATE TABLE t (a INT)"}]
    assert check("tagged", rows=text)[0] == 1
    schemas = [{"properties": {f"key{i}": {"type": "integer"}}, "required": [f"key{i}"]} for i in range(4)]
    rows = [{"prompt": f"JSON {i}", "schema": json.dumps({"type": "object"} | s)} for i, s in enumerate(schemas)]
    _, report = check(f"{LIBRARY}:json_schema", "--profile", "format", rows=rows)
    assert report["ready"] and report["gold"]["full_marks"] == 1


def test_exception_is_counted_and_located(check):
    code, report = check("raises")
    assert code == 1 and report["functions"][0]["raised"] > 50
    shown = finding(report, "raised")
    assert "JSONDecodeError" in shown["message"] and f"rewards.py:{RAISES_AT}, in " in shown["message"]
    assert report["more_findings"]["raised"] > 3
    assert report["gold"]["full_marks"] == 1  # it still finishes


@pytest.mark.parametrize(("name", "how"), [("dies", "exit code 7"), ("exits", "SystemExit")])
def test_reward_that_ends_its_process_is_found(folder, check, name, how):
    code, report = check_apart(folder, name) if name == "dies" else check(name)
    assert code == 1 and failures(report) == {"died" if name == "dies" else "raised"}
    assert how in report["findings"][0]["message"] and report["findings"][0]["completion"] == ""
    function = report["functions"][0]  # given up after three deaths; 8 empty ones, four times again in a batch
    assert (function["died"], function["raised"]) == ((3, 0) if name == "dies" else (0, 40))


def test_an_import_that_ends_its_process_is_told(folder):
    flags = ["--reward", "exits_at_import.py:f", "--data", "rows.jsonl"]
    done = run_script("reward_preflight", *flags, cwd=folder)
    assert done.returncode == 2 and "whose import ended the process with exit code 5" in done.stderr


def test_hang_is_located_and_bounded_and_leaves_no_child(folder):
    pids = folder / "pids.txt"
    code, report = check_apart(folder, "hangs_with_child", "--timeout-s", "0.3", env={"PIDS": str(pids)})
    place = f"{folder.resolve()}/rewards.py:{HANGS_AT}, in hangs_with_child"
    assert code == 1 and f"more than 0.3 s ({place})" in finding(report, "hung")["message"]
    assert report["functions"][0]["hung"] == 3 and report["gold"]["full_marks"] == 1
    assert "hung" in failures(check_apart(folder, "backtracks", "--timeout-s", "0.3")[1])
    found = [int(line) for line in pids.read_text().split()]
    assert len(found) >= 3
    for pid in found:  # dead, or not yet collected
        state = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True).stdout
        assert state.strip()[:1] in ("", "Z")


def test_a_slow_reward_gets_as_many_rows_as_fit(folder, check, capsys):
    """0.02 s a completion: a row takes 1.1 s and more, whatever the machine."""
    assert main(flags_of(folder, "slow", ["--budget_s", "1"], None)) == 2
    assert "got rewards.py:slow: a completion takes 0." in capsys.readouterr().err
    _, report = check("slow", "--budget_s", "5")
    assert 1 <= report["gold"]["rows"] < 8 and "of 8 rows are checked" in finding(report, "latency")["message"]
    check("slow_start", "--budget_s", "5")  # not refused: the time is of a batch, not of a completion


@pytest.mark.parametrize(
    ("name", "expected", "contract"),
    [
        ("nan", {"not_finite"}, {}),
        ("by_position", {"batch"}, {"deterministic": True, "order_independent": False, "batch_independent": False}),
        ("grades", {"not_deterministic", "gold"}, {"deterministic": False}),
        ("too_few", {"malformed", "gold"}, {}),
        ("changes", {"changed"}, {"inputs_unchanged": False}),
        ("constant", {"gold", "probes"}, {}),
    ],
)
def test_broken_contract_is_found(check, name, expected, contract):
    code, report = check(name)
    assert code == 1 and expected <= failures(report)
    assert contract.items() <= report["contract"].items()
    function = report["functions"][0]
    assert function["not_finite"] == (7 * 8 if name == "nan" else 0)  # two blank texts a row, and empty ones
    if name == "too_few":
        assert "returned 0 values for 1 completion" in finding(report, "malformed")["message"]


def test_format_of_gold_is_found(check):
    def variant(*given, **more):
        gold = check(*given, **more)[1]["gold"]
        return gold["variant"], gold["full_marks"]

    assert variant("good") == ("<answer>{answer}</answer>", 1)
    rows = [{"prompt": "?" * i, "answer": f"steps {i}, then more.\n#### {i}"} for i in range(3, 9)]
    assert variant("hashes", rows=rows) == ("column answer", 1)
    solutions = [{"prompt": "?" * i, "solution": f"{i}"} for i in range(3, 9)]  # answers, as of TRL's data sets
    for name, given in (("boxed", rows), ("of_solution", solutions)):
        assert variant(name, rows=given) == ("\\boxed{{answer}}", 1)  # the number after ####
    for template in (r"\boxed{answer}", r"\boxed{{answer}}"):
        assert variant("boxed", "--gold_template", template) == ("--gold_template", 1)
    for name in ("capitals", "of_json"):  # other usual formats
        assert variant(name, rows=ROWS[:3])[1] == 1, name


def test_gold_of_a_format_of_ones_own(check):
    code, report = check("final")
    assert code == 1 and report["gold"]["full_marks"] == 0
    assert "0.0% of 8 gold completions have full marks" in finding(report, "gold")["message"]
    assert "--gold_template" in finding(report, "gold")["try"]
    shown = next(f for f in report["findings"] if f["check"] == "gold" and "row" in f)
    assert "gold scores 0 of 1" in shown["message"] and shown["row"] in range(1, 9)
    assert check("final", "--gold-template", "Final: {answer}!")[0] == 0
    rows = [{**row, "reply": f"Final: {row['answer']}!"} for row in ROWS]
    report = check("final", "--gold_column", "reply", rows=rows)[1]
    assert (report["gold"]["variant"], report["ready"]) == ("column reply", True)


def test_one_bad_gold_row_is_shown(check):
    rows = [{**row, "solution": f"<answer>{row['answer']}</answer>"} for row in ROWS[:7]]
    rows.append({"prompt": "1+1=", "answer": "2", "solution": "<answer>3</answer>"})
    code, report = check("good", "--gold_column", "solution", rows=rows)
    assert code == 1 and report["gold"]["full_marks"] == pytest.approx(7 / 8)
    shown = next(f for f in report["findings"] if f["check"] == "gold" and "row" in f)
    assert (shown["row"], shown["completion"], shown["score"]) == (8, "<answer>3</answer>", 0.0)


def test_full_marks_are_those_of_gold_or_as_given(check):
    code, report = check("ten_at_best")  # no range: the best of gold
    assert code == 1 and report["gold"]["full_score"] == 10 and report["gold"]["full_marks"] == pytest.approx(7 / 8)
    code, report = check("half")
    assert code == 1 and "--full_score 0.5" in finding(report, "gold")["try"]
    assert check("half", "--full_score", "0.5")[0] == 0


def test_code_in_blocks_is_gold(folder):
    rows = [
        {"prompt": f"def {n}(x):\n", "canonical_solution": f"    y = {body}\n    return y\n", "entry_point": n}
        for n, body in (("square", "x * x"), ("triple", "3 * x"), ("power", "x**2"))
    ]
    _, report = check_apart(folder, "runs_code", rows=rows)
    assert report["gold"]["variant"] == "prompt + column canonical_solution in a code block"
    assert report["gold"]["full_marks"] == 1


@pytest.mark.long
def test_library_reward_on_the_embedded_data(tmp_path):
    flags = ("--reward", "correctness_reward", "--data", EVAL_DATA, "--limit", 16)
    first, second = (json.loads(run_script("reward_preflight", *flags, "--json", cwd=tmp_path).stdout) for _ in "12")
    assert first["ready"] and first["rows"] == 16 and first["gold"]["full_marks"] == 1
    assert first["gold"] == second["gold"] and first["probes"] == second["probes"]  # the same rows are drawn
    assert list(tmp_path.iterdir()) == []


SMALL_LIBRARY = '''class Preset(list):
    weights = [1.0, 0.5]

def says(prompts, completions, **kwargs):
    """1 for *yes*.

    Range: {0, 1}; weight it 1.
    """
    return [float(text == "yes") for text in completions]

def brief(prompts, completions, **kwargs):
    """Minus 1 for a long text.

    Range: [-1, 0].
    """
    return [-float(len(text) > 9) for text in completions]
says_reward = says
BOTH = Preset([says, brief])
'''


def test_list_shows_functions_and_presets(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "library.py").write_text(SMALL_LIBRARY, encoding="utf-8")
    assert main(["--list", "library.py", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert listed["functions"] == [
        {"name": "says", "range": "{0, 1}", "summary": "1 for *yes*."},
        {"name": "brief", "range": "[-1, 0]", "summary": "Minus 1 for a long text."},
    ]
    assert listed["presets"] == [{"name": "BOTH", "parts": {"says": 1.0, "brief": 0.5}}]
    assert main(["--list", "library.py"]) == 0
    assert re.search(r"^BOTH +preset +1 says \+ 0.5 brief$", capsys.readouterr().out, re.MULTILINE)


GOOD = ["--reward", "rewards.py:good", "--data", "rows.jsonl"]
BAD = [  # flags, what the message holds
    ([], ["no mode", "expected one of"]),
    (["--reward", "rewards.py:good"], ["without --data", "try --data"]),
    (["--reward", "rewards.py:gud", "--data", "rows.jsonl"], ["no function 'gud'", "expected one of"]),
    (["--reward", "rewards.py:good", "--data", "plain.jsonl"], ["takes 'answer'", "expected that column"]),
    (["--reward", "rewards.py:constant", "--data", "plain.jsonl"], ["give no reference", "try --answer_column"]),
    (["--reward", "rewards.py:good", "--data", "unasked.jsonl"], ["unasked.jsonl:1: got", "try --prompt_column"]),
    ([*GOOD, "--model", "m", "--group_size", "1"], ["group_size 1", "expected 2 to"]),
    ([*GOOD, "--score", "x"], ["'--score'; expected a flag of --help; try evaluation.py --task reward:FUNCTION"]),
    ([*GOOD, "--temperature", "0.5"], ["got --temperature with --reward", "with --model"]),
    (["--environment", "e.py:E", "--data", "rows.jsonl"], ["'--environment'", "try prove.py ENV.py:Class"]),
    ([*GOOD, "--allow", "emty=1"], ["got 'emty=1'", "try empty"]),
]


@pytest.mark.usefixtures("check")
def test_bad_input_says_got_expected_try(capsys):
    for flags, expected in BAD:
        try:
            code = main(flags)
        except SystemExit as stop:  # argparse
            code = stop.code
        out, err = capsys.readouterr()
        assert code == 2 and out == "" and "got" in err and "Traceback" not in err, (flags, err)
        assert all(text in err for text in expected), (flags, err)


def test_table_names_probe_row_and_advice(check, capsys):
    assert main(["--reward", "rewards.py:pays_empty", "--data", "rows.jsonl"]) == 1
    shown = capsys.readouterr().out
    assert re.search(r"^empty +8 +1 +1 +0.05 +8 +FAIL +Nothing at all\.$", shown, re.MULTILINE)
    row = r"^fail +empty: pays 100% .* \| row \d, score 1.0: '' \| try: .*--allow empty=1"
    assert re.search(row, shown, re.MULTILINE) and "verdict  not ready" in shown
    assert main(GOOD) == 0 and "verdict  ready" in capsys.readouterr().out


def test_state_between_calls_is_found(folder):
    code, report = check_apart(folder, "keeps_the_first")
    assert code == 1 and "scores 0.0, then 1.0 in a new process" in finding(report, "state")["message"]


def test_weights_of_rows_and_rows_without_a_reference(check):
    rows = [{"prompt": f"{i}+1=", "answer": str(i + 1), "level": 1 + i % 3} for i in range(9)]
    code, report = check("by_level", rows=rows)
    assert code == 0 and report["gold"]["full_score"] == 1, "the level explains what gold gets"
    code, report = check("pays_the_answer", rows=rows)
    assert code == 1 and "gold scores 1 of 9" in str(report["findings"])
    rows[4]["answer"] = None
    code, report = check("joins", rows=rows)
    assert code == 1 and "row 5, which has no reference" in finding(report, "raised")["message"]
