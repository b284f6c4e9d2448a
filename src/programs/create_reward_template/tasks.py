"""The tasks: which files each takes, its constants, the cases of its self-test, and the trial of what was written."""

import ast
import json
import pprint
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from parts.foundation.file_text import file_text
from parts.foundation.messages import UserError, need, say, suggest
from parts.rewards.schema_examples import checker_of, example_of
from programs.create_reward_template.assembly import (
    ADAPTERS,
    CONTRACT,
    LOADING,
    assembled,
    check_column,
    contracts_of,
    head_of,
    list_rows,
    marked_long,
    named,
)

SCRIPTS = Path(__file__).resolve().parent  # where math_grader.py, sandbox.py and reward_preflight.py are
FINAL_ANSWER = file_text("files/final_answer.py")
MATH_ANSWER = file_text("files/math_answer.py")
CODE_TESTS = file_text("files/code_tests.py")
SHORT_ANSWER = file_text("files/short_answer.py")
TAG_FORMAT = file_text("files/tag_format.py")
JSON_SCHEMA = file_text("files/json_schema.py")
LLM_JUDGE = file_text("files/llm_judge.py")
FINAL_NUMBER = file_text("files/final_number.py")
PASSES_TESTS = file_text("files/passes_tests.py")
OR_LOADER = ", or data_loader.py, which reads objects and many forms"


@dataclass
class Recipe:
    """What a task is made of."""

    texts: tuple[str, ...]  # the last one is its own; the file begins with its docstring
    gold: str = "answer"  # the column that verl calls ground_truth; "" for none
    helper: str = ""
    needs: str = ""  # dependencies, as PEP 723 lists them
    columns: str = ""  # columns besides gold, in words


MATH_VERIFY = '"math-verify[antlr4_13_2]>=0.8,<1"'
TASKS = {
    "math": Recipe(
        (LOADING, MATH_ANSWER), "answer", "math_grader", MATH_VERIFY, "prompt, so that copying the task does not pay"
    ),
    "final_number": Recipe((FINAL_NUMBER,)),
    "code": Recipe(
        (LOADING, CODE_TESTS), "tests", "sandbox", columns="entry_point and setup, where the tests need them"
    ),
    "passes_tests": Recipe((PASSES_TESTS,), "tests", "sandbox"),
    "qa": Recipe((FINAL_ANSWER, SHORT_ANSWER)),
    "format": Recipe((TAG_FORMAT,), ""),
    "json_schema": Recipe((FINAL_ANSWER, JSON_SCHEMA), "", needs='"jsonschema>=4.20,<5", "referencing"'),
    "llm_judge": Recipe((LLM_JUDGE,), columns="prompt, which the judge should see"),
}


def new_reward(args) -> str:
    task, gold = TASKS[args.task], args.gold_column or TASKS[args.task].gold
    roots, tests = contracts_of(args)
    about = ast.get_docstring(ast.parse(task.texts[-1]))
    if args.task == "final_number":
        head = head_of(args, about, gold, "")
        return assembled(
            head[head.index('"""') :], [named(FINAL_NUMBER, [gold], gold_column=gold, reward_name=args.name)], roots
        )
    columns, constants, cases = [gold] if gold else [], {}, []
    if args.task == "code":
        constants = {"LIMITS": limits_of(args), "PAY": f'"{args.pay}"'}
    elif args.task == "format":
        constants, cases = {"TAGS": json.dumps(args.tags)}, format_cases(args.tags)
    elif args.task == "json_schema":
        columns = args.exact or []
        constants, cases = json_parts(args)
    texts = [CONTRACT, *task.texts]
    if cases:
        texts.append(f"CASES = [  # (completion, columns of the row, score)\n{list_rows(cases)}]\n")
    words = {"gold_column": columns[0] if columns else "answer", "reward_name": args.name}
    texts = [named(text, columns, **words) for text in [*texts, ADAPTERS]]
    beside = f"\nNeeds {task.helper}.py beside it; copy both to every machine.\n" if task.helper else ""
    end = f"{beside}\n    python {args.output.name} --test\n"
    others = task.columns or ", ".join(columns[1:])
    head = head_of(args, about, ", ".join(columns[:1]), others, task.needs, end)
    return assembled(head, texts, [*roots, "self_test"], constants | {"CONTRACTS": f"[{', '.join(tests)}]"})


def limits_of(args) -> str:
    """LIMITS of a code reward, as code."""
    limits = {"timeout_s": args.timeout_s, "total_timeout_s": args.per == "completion" and args.timeout_s}
    limits |= {"memory_mb": args.memory_mb, "strict": args.task == "passes_tests"}  # raise where nothing isolates
    limits |= {"stop_at_first_failure": args.stop_at_first_failure, "each_alone": args.per == "call"}
    return repr({name: value for name, value in limits.items() if value}).replace("'", '"')


def format_cases(tags: list[str]) -> list[tuple]:
    """Cases of the task format, their scores worked out by hand for n tags: 0.5 * marks / (2 n)."""
    whole, n = "\n".join(f"<{tag}>word</{tag}>" for tag in tags), len(tags)
    return [
        (whole, {}, 1.0),
        (f" {whole}\n", {}, 1.0),
        (f"{whole} and more", {}, 0.5),  # every mark, but text outside
        (whole.replace("word", "", 1), {}, 0.5),
        (f"<{tags[0]}>word", {}, 0.25 / n),
        (f"<{tags[0]}>word</{tags[0]}>{whole}", {}, 0.0),  # a mark that stands twice
        ("", {}, 0.0),
    ]


# ------------------------------------------------------------------------------------------------ JSON by a schema


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
        problem = str(getattr(error, "message", error)).partition("\n")[0]
        raise UserError(f"{got}, invalid at {where}: {problem}; expected a valid JSON Schema") from None
    address = schema.get("$id") if isinstance(schema, dict) else None
    others = {*re.findall(r'"\$ref": "([^#"][^"]*)"', json.dumps(schema))} - {address}
    other = min(others, default=None)
    need(other is None, f"{got} with $ref {other!r}, another file; expected one; try putting it into $defs")
    return schema


def json_parts(args) -> tuple[dict[str, str], list[tuple]]:
    """(constants, cases) of the reward; args.gold_template becomes a completion that it pays in full."""
    schema = read_schema(args.schema)
    example, exact = example_of(schema), args.exact or []
    has_example = example is not None or checker_of(schema).is_valid(None)
    got = f"got --schema {args.schema}, for which no example was found"
    need(has_example, f'{got}; expected one for the self-test; try "examples": [VALUE] in the schema')
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
        "SCHEMA": "\n".join(marked_long(line, 111) for line in shown),
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


# ------------------------------------------------------------------------------------------------ what was written


def tested(path: Path) -> str:
    """What the self-test of a written file says; UserError where a score is wrong."""
    done = subprocess.run([sys.executable, str(path), "--test"], capture_output=True, text=True)
    need(done.returncode == 0, f"got a self-test that fails: {(done.stdout + done.stderr).strip()[-600:]}")
    return done.stdout.strip()


def checks_of(args) -> list[str]:
    """The flags of reward_preflight.py that fit a task: its profile, and what has full marks."""
    if args.task == "llm_judge":
        return ["--profile", "judge"]
    if args.task == "format":
        return ["--profile", "format", "--gold_template", "\n".join(f"<{tag}>text</{tag}>" for tag in args.tags)]
    if args.task == "json_schema":
        return ["--profile", "answer" if args.exact else "format", "--gold_template", args.gold_template]
    return []


def preflighted(args) -> dict:
    """What reward_preflight.py says of the written reward on the rows of --data, in short."""
    script = SCRIPTS / "reward_preflight.py"
    need(script.is_file(), f"got --data, and no {script}; expected it beside this script; try without --data")
    command = [sys.executable, str(script), "--reward", f"{args.output}:{args.name}", "--data", args.data, "--json"]
    command += ["--prompt_column", args.prompt_column or "prompt", *checks_of(args)]
    runs_code = TASKS[args.task].helper == "sandbox"
    command += ["--answer_column", args.gold_column] if args.gold_column and not runs_code else []
    done = subprocess.run(command, capture_output=True, text=True)
    wrong = re.split("^error: ", done.stderr.strip(), flags=re.MULTILINE)[-1]
    wrong = wrong.replace(", --gold_column or --gold_template", OR_LOADER).replace("--answer_column", "--gold_column")
    need(done.returncode in (0, 1) and done.stdout, f"{wrong}; nothing is written")
    outcome = json.loads(done.stdout)
    paid_nothing = [probe["name"] for probe in outcome["probes"] if probe["status"] == "pass"]
    summary = {
        "ready": outcome["ready"],
        "rows": outcome["rows"],
        "gold_with_full_marks": outcome["gold"]["full_marks"],
    }
    summary |= {"completions": sum(f["completions"] for f in outcome["functions"]), "not_paid": paid_nothing}
    return summary | {"findings": outcome["findings"]}
