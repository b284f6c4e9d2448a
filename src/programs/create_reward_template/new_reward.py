"""A new reward."""

import ast
import re

from programs.create_reward_template.assembly import (
    ADAPTERS,
    CASES_ABOUT,
    CONTRACT,
    SELF_TEST,
    assembled,
    contract_tests,
    head_of,
    list_rows,
    listing,
    named,
    quoted,
    usage_notes,
)
from programs.create_reward_template.json_reward import json_parts
from programs.create_reward_template.recipes import TASKS
from programs.create_reward_template.rubric import custom_cases, custom_parts, read_rule


def new_reward(args) -> str:
    """The text of a new reward."""
    task, constants, cases = TASKS[args.task], {}, []
    columns, tests = [args.gold_column or task.gold], contract_tests(args)
    if args.task == "format":
        columns, constants = [], {"TAGS": f"[{', '.join(map(quoted, args.tags))}]"}
        cases = format_cases(args.tags)
    elif args.task == "json_schema":
        columns = args.exact or []
        constants, cases = json_parts(args)
    elif args.task == "custom":
        rubric = [read_rule(text, args.example) for text in args.rule]
        columns = list(dict.fromkeys(rule["column"] for rule in rubric if rule["column"]))
        constants = custom_parts(args, rubric)
        cases, tests = custom_cases(task.texts, constants, rubric), [*tests, "rubric_results"]
    elif args.task == "llm_judge":
        constants = {
            "BASE_URL": f'os.environ.get("OPENAI_BASE_URL", {quoted(args.base_url)})',
            "MODEL": f'os.environ.get("JUDGE_MODEL", {quoted(args.judge_model)})',
            "RUBRIC": quoted(args.rubric),
        }
        tests = ["stand_in_judge", *tests]
    examples = [(e["completion"], example_columns(e), e["score"]) for e in args.example if "score" in e]
    texts = [CONTRACT, *task.texts]
    if cases:
        texts.append(listing("CASES", CASES_ABOUT, cases + examples))
    elif examples:
        before, start, after = task.texts[-1].partition("CASES = [")
        rows, end, rest = after.partition("\n]\n")
        texts[-1] = before + start + rows + "\n" + list_rows(examples) + end.lstrip("\n") + rest
    words = {"gold_column": columns[0] if columns else "answer", "reward_name": args.name}
    texts = [named(text, columns, **words) for text in [*texts, ADAPTERS, SELF_TEST]]
    if args.task != "llm_judge":  # nothing to await
        texts[-2] = re.sub(r"finished\((\w+\(.*\))\)", r"\1", texts[-2])
    roots = [args.name] * (args.target != "verl") + ["compute_score"] * (args.target != "trl") + ["self_test"]
    about = ast.get_docstring(ast.parse(task.texts[-1]))
    notes = usage_notes(args, ", ".join(columns), task.columns)
    if task.helper:
        notes[-1:-1] = [f"Needs {task.helper}.py beside it; copy both to every machine.", ""]
    return assembled(head_of(about, notes, task.needs), texts, roots, constants | {"TESTS": f"[{', '.join(tests)}]"})


def example_columns(example: dict) -> dict:
    """The columns of an --example."""
    return {name: value for name, value in example.items() if name not in ("completion", "score")}


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
        ("word", {}, 0.0),
        ("", {}, 0.0),
    ]
