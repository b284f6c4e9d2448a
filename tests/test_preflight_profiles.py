"""reward_preflight.py knows what a reward pays for: answers, a format, or quality as a judge grades it."""

import json

import pytest
from conftest import run_script

REWARDS = """
import random, re

def tagged(completions, **kwargs):
    return [float(re.fullmatch(r"<answer>[^<>]+</answer>", text) is not None) for text in completions]

def named(completions, answer, **kwargs):
    return tagged(completions)

def looked_up(completions, **kwargs):
    return [float(text == f"<answer>{a}</answer>") for text, a in zip(completions, kwargs["answer"])]

def from_prompt(prompts, completions, **kwargs):
    return [float(text == f"<answer>{eval(p[:-1])}</answer>") for p, text in zip(prompts, completions)]

def constant(completions, **kwargs):
    return [1.0] * len(completions)

def grades(completions, answer, **kwargs):
    right = [text == f"<answer>{a}</answer>" for text, a in zip(completions, answer)]
    return [x * random.uniform(0.6, 0.8) for x in right]
"""


@pytest.fixture
def judged(tmp_path):
    """judged(function, *flags) -> the report on eight rows of sums."""

    def run(name, *flags):
        (tmp_path / "mine.py").write_text(REWARDS)
        rows = [{"prompt": f"{a}+{a + 3}=", "answer": str(2 * a + 3)} for a in range(11, 19)]
        (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        flags = ["--reward", f"mine.py:{name}", "--data", "rows.jsonl", "--chat", "--json", *flags]
        done = run_script("reward_preflight", *flags, cwd=tmp_path)
        assert done.returncode in (0, 1), done.stderr
        return json.loads(done.stdout)

    return run


@pytest.mark.parametrize(
    ("name", "flags", "profile", "failed"),
    [
        ("tagged", [], "format", set()),
        ("tagged", ["--profile", "format"], "format", set()),
        ("tagged", ["--profile", "answer"], "answer", {"prompt_echo", "answer_listing", "wrong_answer", "very_long"}),
        ("named", [], "answer", {"prompt_echo", "answer_listing", "wrong_answer", "very_long"}),
        ("looked_up", [], "answer", set()),
        ("from_prompt", [], "answer", set()),
        ("constant", [], "format", {"empty", "whitespace", "unicode_junk"}),
        ("grades", ["--profile", "judge"], "judge", set()),
    ],
)
def test_probes_fail_by_what_the_reward_pays_for(judged, name, flags, profile, failed):
    report = judged(name, *flags)
    assert report["profile"] == profile
    assert {probe["name"] for probe in report["probes"] if probe["status"] == "FAIL"} == failed
    assert report["ready"] == (not failed)
    told = [f["severity"] for f in report["findings"] if f["check"] == "profile"]
    assert told == (["warning"] if profile == "format" and not flags else [])


def test_grades_that_vary_fail_but_for_a_judge(judged):
    findings = {f["check"] for f in judged("grades")["findings"] if f["severity"] == "fail"}
    assert {"gold", "not_deterministic"} <= findings


def test_a_column_schema_that_is_no_json_schema(tmp_path):
    (tmp_path / "mine.py").write_text(REWARDS)
    (tmp_path / "rows.jsonl").write_text('{"prompt": "?", "answer": "x", "schema": "CREATE TABLE t (a INT)"}\n')
    done = run_script("reward_preflight", "--reward", "mine.py:named", "--data", "rows.jsonl", cwd=tmp_path)
    assert done.returncode == 1 and "Traceback" not in done.stderr


def test_a_schema_a_row_needs_no_gold_column(tmp_path):
    schemas = [
        {"type": "object", "properties": {f"key{i}": {"type": "integer"}}, "required": [f"key{i}"]} for i in range(4)
    ]
    rows = [{"prompt": f"JSON {i}", "schema": json.dumps(schema)} for i, schema in enumerate(schemas)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    flags = ["--reward", "json_schema", "--data", "rows.jsonl", "--json"]
    report = json.loads(run_script("reward_preflight", *flags, cwd=tmp_path).stdout)
    assert report["ready"] and report["profile"] == "format" and report["gold"]["full_marks"] == 1


@pytest.mark.parametrize("mode", [["--environment", "e.py:E"], ["--model", "m", "--reward", "json_format"]])
def test_a_profile_is_of_rewards_alone(tmp_path, mode):
    done = run_script("reward_preflight", *mode, "--data", "rows.jsonl", "--profile", "format", cwd=tmp_path)
    assert done.returncode == 2 and f"got --profile with {mode[0]}" in done.stderr
