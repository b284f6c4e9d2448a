"""The task json_schema: constants of the reward, and the cases of its self-test."""

import json
import pprint
import re
from pathlib import Path

from parts.foundation.messages import UserError, need, say, suggest
from parts.rewards.schema_examples import checker_of, example_of
from programs.create_reward_template.assembly import check_column


def read_schema(file: str):
    """The JSON Schema of a file; UserError for what is none, or needs another file."""
    got = f"got --schema {file}"
    try:
        schema = json.loads(Path(file).read_text(encoding="utf-8"))
        checker_of(schema)
    except ImportError as error:
        raise UserError(f"{got}: {error}; expected what validates it; try pip install jsonschema referencing") from None
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{got}: {error}; expected a JSON Schema; try python -m json.tool {file}") from None
    except Exception as error:  # jsonschema's own, of many classes
        where = "/".join(map(str, getattr(error, "path", ()))) or "its top"
        what = str(getattr(error, "message", error)).partition("\n")[0]
        raise UserError(f"{got}, invalid at {where}: {what}; expected a valid JSON Schema") from None
    own = schema.get("$id") if isinstance(schema, dict) else None
    others = {*re.findall(r'"\$ref": "([^#"][^"]*)"', json.dumps(schema))} - {own}
    need(
        not others,
        f"{got} with $ref {min(others, default='')!r}, another file; expected one; try putting it into $defs",
    )
    return schema


def json_parts(args) -> tuple[dict[str, str], list[tuple]]:
    """(constants, cases) of the reward; args.gold_template becomes a completion that it pays in full."""
    schema = read_schema(args.schema)
    example, exact = example_of(schema), args.exact or []
    found = example is not None or checker_of(schema).is_valid(None)
    got = f"got --schema {args.schema}, for which no example was found"
    need(found, f'{got}; expected one for the self-test; try "examples": [VALUE] in the schema')
    keys = list(schema.get("properties", {})) if isinstance(schema, dict) else []
    for key in exact:
        known = f"expected among {', '.join(keys) or 'its properties'}{suggest(key, keys)}"
        need(key in keys and key in example, f"got --exact {key!r}, which the schema's example lacks; {known}")
        check_column(key, "--exact")
    if checker_of(schema).is_valid({}):
        say("warning: the schema accepts {}, which a model learns to say; try required: [KEYS]")
    args.gold_template = template_of(example, exact)
    shown = pprint.pformat(schema, width=110, sort_dicts=False).split("\n")
    constants = {
        "EXACT": f"{json.dumps(exact)}  # properties whose value is the row's, in columns of these names",
        "SCHEMA": "\n".join(line + "  # noqa: E501" * (len(line) > 111) for line in shown),
    }
    return constants, json_cases(schema, example, exact)


def template_of(example, exact: list[str]) -> str:
    """A completion that has full marks, with places for the columns of the row."""
    whole = example | {key: f"{{{key}}}" for key in exact} if exact else example
    text = json.dumps(whole, ensure_ascii=False)
    for key in exact:
        text = text if isinstance(example[key], str) else text.replace(f'"{{{key}}}"', f"{{{key}}}")
    return text


def json_cases(schema, example, exact: list[str]) -> list[tuple]:
    """Cases of the self-test, whose scores follow from the definition."""
    text, row = json.dumps(example), {key: example[key] for key in exact}
    fenced = f"```json\n{text}\n```"
    cases = [(t, row, 1.0) for t in (text, fenced, f"<think>A plan.</think>\n{text}")]
    cases += [(t, row, 0.0) for t in (f"Here it is:\n{fenced}", f"{text} {text}", f"<think>{text}", "", "NaN")]
    required = schema.get("required", []) if isinstance(schema, dict) and isinstance(example, dict) else []
    for key in required:
        cases.append((json.dumps({name: value for name, value in example.items() if name != key}), row, 0.0))
    for key in exact[:1]:
        other = "another" if isinstance(example[key], str) else [example[key]]
        cases += [(text, row | {key: None}, None), (text, row | {key: other}, 0.0)]
    return cases
