"""The task json_schema: constants of the reward, and the cases of its self-test."""

import json
import pprint
from pathlib import Path

from parts.foundation.messages import UserError, need, say, suggest
from parts.rewards.schema_examples import checker_of, example_of
from programs.create_reward_template.rubric import check_column


def read_schema(file: str):
    """The JSON Schema of a file; UserError for what is none, or needs another file."""
    got = f"got --schema {file}"
    try:
        schema = json.loads(Path(file).read_text(encoding="utf-8"))
        checker_of(schema)
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{got}: {error}; expected a file with a JSON Schema") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{got}: {error}; expected JSON; try python -m json.tool {file}") from None
    except ImportError as error:
        raise UserError(f"{got}: {error}; expected what validates it; try pip install jsonschema referencing") from None
    except Exception as error:  # jsonschema's own, of many classes
        where = "/".join(map(str, getattr(error, "path", ()))) or "its top"
        what = str(getattr(error, "message", error)).partition("\n")[0]
        raise UserError(f"{got}, invalid at {where}: {what}; expected a valid JSON Schema") from None
    for reference in references(schema):
        near = reference.startswith("#") or not isinstance(schema, dict) or reference == schema.get("$id")
        need(near, f"{got} with $ref {reference!r}, another file; expected one file; try putting it into $defs")
    return schema


def references(part) -> list[str]:
    """Every $ref of a schema."""
    if isinstance(part, list):
        return [found for one in part for found in references(one)]
    if not isinstance(part, dict):
        return []
    inner = [found for one in part.values() for found in references(one)]
    return [*inner, part["$ref"]] if isinstance(part.get("$ref"), str) else inner


def json_parts(args) -> tuple[dict[str, str], list[tuple]]:
    """(constants, cases) of the reward; args.gold_template becomes a completion that it pays in full."""
    schema = read_schema(args.schema)
    example, exact = good_value(args, schema), args.exact or []
    keys = list(schema.get("properties", {})) if isinstance(schema, dict) else []
    flags = " and ".join(["--exact"] * bool(exact) + ["--partial"] * bool(args.partial))
    need(keys or not flags, f"got {flags} with a schema without properties at its top; expected some")
    for key in exact:
        known = f"expected among {', '.join(keys)}{suggest(key, keys)}"
        need(key in keys and key in example, f"got --exact {key!r}, which the schema's example has not; {known}")
        check_column(key, "--exact")
    if checker_of(schema).is_valid({}):
        say("warning: the schema accepts {}, which a model learns to say; try required: [KEYS]")
    args.gold_template = template_of(example, exact)
    shown = pprint.pformat(schema, width=110, sort_dicts=False).split("\n")
    constants = {
        "EXACT": f"{json.dumps(exact)}  # properties whose value is the row's, in columns of these names",
        "PARTIAL": f"{bool(args.partial)}  # True: else half the share of properties that hold",
        "SCHEMA": "\n".join(line + "  # noqa: E501" * (len(line) > 111) for line in shown),
    }
    return constants, json_cases(args, schema, example, len(keys))


def good_value(args, schema):
    """A value that the schema accepts: of an --example with score 1, or made up."""
    for example in args.example:
        if example.get("score") == 1:
            try:
                return json.loads(example["completion"])
            except (ValueError, RecursionError) as error:
                got = f"got --example with the completion {example['completion']!r} and score 1"
                raise UserError(f"{got}: {error}; expected JSON") from None
    value = example_of(schema)
    form = '\'{"completion": "JSON", "score": 1}\''
    need(
        value is not None or checker_of(schema).is_valid(None),
        f"got --schema {args.schema}, for which no example was found; expected one for the self-test; "
        f"try --example {form}",
    )
    return value


def template_of(example, exact: list[str]) -> str:
    """A completion that has full marks, with places for the columns of the row."""
    whole = example | {key: f"{{{key}}}" for key in exact} if exact else example
    text = json.dumps(whole, ensure_ascii=False)
    for key in exact:
        text = text if isinstance(example[key], str) else text.replace(f'"{{{key}}}"', f"{{{key}}}")
    return text


def json_cases(args, schema, example, size: int) -> list[tuple]:
    """Cases of the self-test, whose scores follow from the definition."""
    text, row = json.dumps(example), {key: example[key] for key in args.exact or []}
    fenced = f"```json\n{text}\n```"
    cases = [(text, row, 1.0), (fenced, row, 1.0), (f"<think>A plan.</think>\n{text}", row, 1.0)]
    cases += [(t, row, 0.0) for t in (f"Here it is:\n{fenced}", f"{text} {text}", f"<think>{text}", "", "NaN")]
    checker, required = checker_of(schema), schema.get("required", []) if isinstance(schema, dict) else []
    others = next((value for value in (None, 0, "text", [], {}) if not checker.is_valid(value)), example)
    cases += [(json.dumps(others), row, 0.0)] if others != example else []
    for key in required if isinstance(example, dict) and {*example} >= {*schema.get("properties", {})} else []:
        part = {name: value for name, value in example.items() if name != key}
        cases.append(
            (
                json.dumps(part),
                row,
                0.5 * (size - (key in schema.get("properties", {}))) / size if args.partial else 0.0,
            )
        )
    if row:
        first = args.exact[0]
        other = {first: "another" if isinstance(example[first], str) else [example[first]]}
        cases += [
            (text, row | {first: None}, None),
            (text, row | other, 0.5 * (size - 1) / size if args.partial else 0.0),
        ]
    return cases
