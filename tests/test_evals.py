"""The evaluations of the skill: their form, that absent answers fail, and how runs are prepared and graded."""

import json
import re
import shlex
import shutil

import pytest
from conftest import ROOT, load_module, warm_grading

grade = load_module(ROOT / "evals" / "grade.py", "evals_grade")
grade.run = warm_grading(grade.run)
EVALS = json.loads((ROOT / "evals" / "evals.json").read_text(encoding="utf-8"))
QUERIES = json.loads((ROOT / "evals" / "trigger_queries.json").read_text(encoding="utf-8"))
CASES = {case["name"]: case for case in EVALS["evals"]}
# agentskills.io, Evaluating skills; name and set are ours
KEYS = {"id", "name", "set", "prompt", "expected_output", "files", "assertions"}


def test_evals_have_the_form_of_the_guide():
    assert {*EVALS} == {"skill_name", "evals"} and EVALS["skill_name"] == "rl-training-code"
    for case in CASES.values():
        assert KEYS <= {*case} <= KEYS | {"makes"} and case["set"] in ("seen", "fresh"), case["name"]
        assert all(case[key] for key in KEYS - {"files"}), case["name"]
        for name in case["files"]:
            assert (ROOT / name).exists() and name.split("/")[-1].split(".")[0] in case["prompt"], (case["name"], name)
    assert [case["id"] for case in EVALS["evals"]] == [*range(1, len(CASES) + 1)]
    named = {name for case in CASES.values() for name in case["files"]}
    assert {f"evals/files/{p.name}" for p in (ROOT / "evals/files").iterdir() if p.name != "__pycache__"} <= named
    for text in [*(case["prompt"] for case in CASES.values()), *(row["query"] for row in QUERIES)]:
        assert not re.search(r"rl-training-code|SKILL\.md|scripts/", text), text


def test_every_assertion_can_be_checked():
    for case in CASES.values():
        for assertion in case["assertions"]:
            form = grade.FORMS.fullmatch(assertion)
            assert form, assertion
            for regex in filter(None, (form["match"], form["absent"], form["prints"])):
                re.compile(regex)
            words = shlex.split(form["what"]) if form["code"] or form["prints"] else []
            if words[1:2] == ["-c"]:
                compile(words[2], case["name"], "exec")
            scripts = [word.replace("$SKILL", str(ROOT)) for word in words if word.startswith("$SKILL")]
            assert all((ROOT / script).exists() for script in scripts)


def test_readme_has_the_tables_of_the_records():
    text, records = (ROOT / "evals" / "README.md").read_text(encoding="utf-8"), ROOT / "evals" / "records.jsonl"
    for since, before in (
        ("2026-11-30", "9"),
        ("2026-11-29", "2026-11-30"),
        ("2026-11-26", "2026-11-29"),
        ("2026-11-24T19", "2026-11-25"),
        ("2026-11-24T15", "2026-11-24T18"),
        ("", "2026-11-24T15"),
    ):
        assert grade.table(grade.load_records(records), since, before) in text


@pytest.mark.parametrize("name", CASES)
def test_an_absent_answer_fails(name, tmp_path):
    grade.place_files(CASES[name], tmp_path / "outputs")
    cheap = [a for a in CASES[name]["assertions"] if not re.search(r"transformers import|\$SKILL", a)]
    failed = [a for a in cheap if not grade.judge(a, tmp_path / "outputs")[0]]
    assert failed == [a for a in cheap if "keep_me.txt" not in a]


def test_prepare_and_grade(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(grade, "load_evals", lambda: [CASES["group-signal"], CASES["flat-run"]])
    assert grade.main(["prepare", str(tmp_path / "w")]) == 0
    assert grade.main(["prepare", str(tmp_path / "w")]) == 2 and "expected a new name" in capsys.readouterr().err
    run = tmp_path / "w" / "eval-06-group-signal" / "with_skill"
    prompt = (run / "prompt.txt").read_text()
    assert prompt.startswith(CASES["group-signal"]["prompt"]) and "../record.json" in prompt
    record = {"calls": 3, "minutes": 1.5, "read": {"SKILL.md": 120, "references/x.md": 30}, "before_first": 140}
    (run / "record.json").write_text(json.dumps(record))
    (run / "outputs" / "notes.md").write_text("one\ntwo\n")
    (run / "outputs" / "answer.json").write_text(json.dumps({f"g{n}": 0.95**n + 0.05**n for n in (8, 16)}))
    assert grade.main(["grade", str(tmp_path / "w")]) == 0
    summary = json.loads((tmp_path / "w" / "benchmark.json").read_text())["run_summary"]
    assert summary["with_skill"]["seen"]["mean"] == 0.5 and summary["without_skill"]["seen"]["mean"] == 0
    assert summary["delta"] == {"seen": 0.5}
    efforts = json.loads((tmp_path / "w" / "benchmark.json").read_text())["efforts"]["group-signal"]["with_skill"]
    known = {"pass_rate": 1.0, "calls": 3, "minutes": 1.5, "lines_read": 150, "lines_before_first_command": 140}
    assert efforts == known | {"lines_delivered": 2}
    graded = json.loads((run / "grading.json").read_text())
    assert graded["summary"] == {"passed": 1, "failed": 0, "total": 1, "pass_rate": 1.0}
    assert set(graded["assertion_results"][0]) == {"text", "passed", "evidence"}
    assert grade.main(["check", str(run / "outputs"), "--eval", "6"]) == 0
    assert grade.main(["check", str(run / "outputs"), "--eval", "5"]) == 1
    assert grade.main(["check", str(run / "outputs"), "--eval", "99"]) == 2
    (run / "record.json").write_text('{"calls": 3}')
    capsys.readouterr()
    assert grade.main(["grade", str(tmp_path / "w")]) == 2 and "without calls, minutes" in capsys.readouterr().err
    shutil.rmtree(run / "outputs")
    assert grade.main(["grade", str(tmp_path / "w")]) == 2
    passed, evidence = grade.judge('`python -c "import time; time.sleep(60)"` exits 0', tmp_path, 1)
    assert not passed and "timed out" in evidence


def test_what_a_case_needs_is_made_by_commands_that_exist(tmp_path):
    with pytest.raises(ValueError, match="expected 0"):
        grade.make("tools/budget.py --no_such_flag", tmp_path / "teacher")
    scripts = [case["makes"].values() for case in CASES.values() if "makes" in case]
    assert all((ROOT / command.split()[0]).exists() for commands in scripts for command in commands)
