"""A reward for JSON by a schema: what is written, what it pays, and schemas that cannot be used."""

import json
import subprocess
import sys

import pytest
from conftest import load_module, load_script, run_script, script_env, write_lines
from preflight_here import try_here

from parts.rewards.schema_examples import checker_of, example_of

FIELDS = {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 0}, "id": {"$ref": "#/$defs/id"}}
PERSON = {"type": "object", "properties": FIELDS, "required": ["name", "age"], "additionalProperties": False}
PERSON["$defs"] = {"id": {"type": "string", "pattern": "^[A-Z]{2}-\\d{3}$"}}
ADA = '{"name": "Ada", "age": 36, "id": "AB-123"}'
template = load_script("create_reward_template")


@pytest.fixture
def written(tmp_path, monkeypatch, capsys):
    """written(schema, *flags) -> (module of the reward, report)."""
    try_here(monkeypatch, template)
    monkeypatch.chdir(tmp_path)

    def write(schema, *flags):
        (tmp_path / "schema.json").write_text(json.dumps(schema))
        given = ["--task", "json_schema", "--schema", "schema.json", "--output", "mine.py", *flags]
        assert template.main(given) == 0, capsys.readouterr().err
        said = capsys.readouterr()
        sys.stderr.write(said.err)
        report = json.loads(said.out)
        return load_module(tmp_path / "mine.py", f"json_reward_{tmp_path.name}"), report

    return write


def paid(module, texts, **columns):
    """Scores by TRL's contract."""
    return module.json_schema_reward([None] * len(texts), texts, **columns)


def test_valid_json_pays_alone_or_as_one_fenced_block(written):
    module, report = written(PERSON)
    assert report["self_test"].endswith(" 0 wrong") and checker_of(PERSON).is_valid(json.loads(report["paid_in_full"]))
    good = [ADA, f"\n```json\n{ADA}\n```", f"```\n{ADA}\n```\n", f"<think>name?</think>\n{ADA}"]
    assert paid(module, good) == [1.0] * len(good)
    bad = ["", "{", f"Here: {ADA}", f"{ADA}{ADA}", f"```json\n{ADA}\n```\n```json\n{ADA}\n```", f"<think>{ADA}"]
    bad += ['{"name": "Ada"}', ADA.replace("36", "-1"), ADA.replace("36", '"36"'), ADA.replace("AB-", "ab-"), "NaN"]
    bad += [ADA[:-1] + ', "x": 1}', "[" * 100_000, '{"name": "' + "a" * 20_000 + '", "age": 1}']
    assert paid(module, bad) == [0.0] * len(bad)
    assert module.compute_score("d", ADA, "", {})["score"] == 1.0


def test_exact_properties_have_the_values_of_the_row(written):
    module, _ = written(PERSON, "--exact", "age", "name")
    rows = {"age": [36, "36", 37, None], "name": ["Ada"] * 4}
    assert paid(module, [ADA] * 4, **rows) == [1.0, 1.0, 0.0, None]
    assert paid(module, [ADA.replace("36", "true")], age=[1], name=["Ada"]) == [0.0]
    extra = {"ground_truth_field": "age:json", "name": "Ada"}
    assert [module.compute_score("d", ADA, truth, extra)["score"] for truth in ("36", "35")] == [1.0, 0.0]


def test_it_is_tried_on_data_as_a_format(written, tmp_path, capsys):
    write_lines(tmp_path / "rows.jsonl", [{"prompt": f"Who is {name}?"} for name in "abcd"])
    written({"type": "object"})
    assert "accepts {}, which a model learns to say" in capsys.readouterr().err
    _, report = written(PERSON, "--data", "rows.jsonl", "--force")
    assert report["tried"]["ready"] and report["tried"]["gold_with_full_marks"] == 1
    assert {"empty", "truncated", "prompt_echo"} <= {*report["tried"]["not_paid"]}
    booking = {name: {"type": kind} for name, kind in (("who", "string"), ("open", "boolean"), ("tags", "array"))}
    rows = [{"prompt": f"{i}?", "who": f'{i} "Bo"\n', "open": i < 3, "tags": ["a", i]} for i in range(6)]
    write_lines(tmp_path / "rows.jsonl", rows)
    schema = {"type": "object", "properties": booking, "required": [*booking]}
    _, report = written(schema, "--exact", *booking, "--data", "rows.jsonl", "--force")
    assert report["tried"]["ready"] and report["tried"]["gold_with_full_marks"] == 1


@pytest.mark.parametrize(
    ("schema", "flags", "said"),
    [
        ("{", [], "got --schema schema.json: Expecting"),
        ('{"type": "objekt"}', [], "got --schema schema.json, invalid at type"),
        ('{"properties": {"a": {"$ref": "other.json"}}}', [], "$ref 'other.json', another file"),
        ('{"type": "string", "pattern": "^[a-z]{3}[0-9]$"}', [], 'try "examples": [VALUE] in the schema'),
        (json.dumps(PERSON), ["--schema", "none.json"], "No such file"),
        (json.dumps(PERSON), ["--schema", ""], "without a schema; try --schema FILE"),
        (json.dumps(PERSON), ["--exact", "nam"], "try name"),
        (json.dumps(PERSON), ["--tags", "a"], "got --tags with json_schema"),
    ],
)
def test_what_cannot_be_used(tmp_path, monkeypatch, capsys, schema, flags, said):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "schema.json").write_text(schema)
    assert template.main(["--task", "json_schema", "--schema", "schema.json", "--output", "mine.py", *flags]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: got ") and said in error and not (tmp_path / "mine.py").exists()


NEVER, SEVENS = {"type": "string", "minLength": 2, "maxLength": 1}, {"type": "integer", "multipleOf": 7, "minimum": 10}
DRAFT_7 = {"$schema": "http://json-schema.org/draft-07/schema#", "definitions": {"x": {"const": 5}}}


@pytest.mark.parametrize(
    "schema",
    [
        True,
        PERSON,
        {"type": "array", "items": {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1}, "minItems": 3},
        {"type": "array", "prefixItems": [{"type": "string"}, {"type": "integer"}], "items": False},
        {"type": "array", "items": {"type": "string"}, "uniqueItems": True, "minItems": 3},
        {"anyOf": [NEVER, SEVENS]},
        {"allOf": [{"required": ["a"]}, {"properties": {"b": {"enum": [3]}}, "required": ["b"]}], "type": "object"},
        {"$ref": "#/$defs/n", "$defs": {"n": {"type": "object", "properties": {"next": {"$ref": "#/$defs/n"}}}}},
        {"type": "object", "additionalProperties": {"type": "integer"}, "minProperties": 2},
        DRAFT_7 | {"$ref": "#/definitions/x"},
    ],
)
def test_an_example_is_what_the_schema_accepts(schema):
    """jsonschema says so."""
    import jsonschema

    value = example_of(schema)
    assert value is not None
    jsonschema.validate(value, schema)


def test_a_bare_name_is_the_librarys_whatever_files_are_called(tmp_path, monkeypatch):
    from parts.rewards.reward_forms import load_rewards

    monkeypatch.chdir(tmp_path)
    (tmp_path / "json_schema").write_text("")
    (tmp_path / "json_schema.py").write_text("def json_schema(completions, **kwargs):\n    raise OSError\n")
    ((function, weight),) = load_rewards("json_schema*0.5")
    assert weight == 0.5 and function(None, ["{}", "1"], ["true", "false"]) == [1.0, 0.0]
    named = [(f.__name__, w) for f, w in load_rewards("MATH_REASONING_REWARDS*2")]
    assert named == [("math_equivalence", 2.0), ("incremental_format", 0.2), ("no_repetition", 0.1)]


def test_a_port_takes_a_bare_name(tmp_path):
    made = run_script("create_reward_template", "--from", "numeric_correctness", "--output", "verl.py", cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    done = subprocess.run([sys.executable, "verl.py", "--test"], cwd=tmp_path, capture_output=True, env=script_env())
    assert done.returncode == 0
