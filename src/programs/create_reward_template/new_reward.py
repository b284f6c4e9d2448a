"""A new reward."""

from programs.create_reward_template.assembly import head_of, listing, put_in, quoted, usage_notes, with_imports
from programs.create_reward_template.check_texts import (
    COMPLETION_TEXT,
    JUDGE_SETUP,
    SELF_TEST,
    TEST_TOTAL,
    TEST_TRL,
    TEST_VERL,
    TRL_CALL,
    TRL_ROWS,
    VERL_CALL,
    VERL_ROW,
)
from programs.create_reward_template.json_reward import json_parts
from programs.create_reward_template.new_reward_texts import FORMAT, LOAD_HELPER, STAND_IN
from programs.create_reward_template.port_texts import LOOP
from programs.create_reward_template.recipes import TASKS
from programs.create_reward_template.rubric import custom_cases, custom_parts, read_rule


def adapters(args, call: str, gold_columns: list[str], words: dict) -> tuple[str, str]:
    """(the functions of the contracts asked for, the body of their self-test)."""
    is_async = call == "async"
    given = "".join(f"{name}{'=None' * is_async}, " for name in gold_columns)  # a judge can do without
    passed = "".join(f'"{name}": {name}, ' for name in gold_columns)
    marks = {"async": "async " * is_async, "await": "await " * is_async}
    marks |= {"run": "loop().run_until_complete(" * is_async, "end": ")" * is_async, "given": given, "passed": passed}
    first = "".join(f'    columns.setdefault("{name}", [None] * len(CASES))\n' for name in gold_columns)
    marks["first"] = first
    text, test = COMPLETION_TEXT + LOOP * is_async, ""
    if args.target != "verl":
        text, test = text + TRL_ROWS + TRL_CALL[call], test + TEST_TRL
    if args.target != "trl":
        text, test = text + VERL_ROW + VERL_CALL, test + TEST_VERL
    return put_in(text, **marks, **words), put_in(test, **marks, **words)


def new_reward(args) -> str:
    """The text of a new reward."""
    task = TASKS[args.task]
    gold = args.gold_column or task.gold
    gold_columns, cases, extra_test, setup = [gold], list(task.cases or []), "", ""
    settings, core, checks = task.settings, task.core, ""
    if args.task == "format":
        gold_columns, core = [], FORMAT
        settings, cases = f"TAGS = [{', '.join(map(quoted, args.tags))}]\n", format_cases(args.tags)
    elif args.task == "json_schema":
        gold_columns = args.exact or []
        gold = gold_columns[0] if gold_columns else "answer"
        settings, core, cases = json_parts(args)
    elif args.task == "custom":
        rubric = [read_rule(text, args.example) for text in args.rule]
        gold_columns = list(dict.fromkeys(rule["column"] for rule in rubric if rule["column"]))
        gold, extra_test = gold_columns[0] if gold_columns else gold, TEST_TOTAL
        settings, core, checks = custom_parts(args, rubric)
        cases = custom_cases(settings + core, rubric)
    elif args.task == "llm_judge":
        words = {"base_url": args.base_url, "judge_model": args.judge_model, "rubric": args.rubric}
        settings = put_in(settings, **{name: quoted(value) for name, value in words.items()})
        setup, checks = JUDGE_SETUP, STAND_IN
    words = {"gold": gold, "name": args.name, "about": task.about, "range": task.range}
    contracts, test = adapters(args, task.call, gold_columns, words)
    filled = [(text, {k.replace("@GOLD@", gold): v for k, v in row.items()}, value) for text, row, value in cases]
    filled += [(e["completion"], example_columns(e), e["score"]) for e in args.example if "score" in e]
    helper = put_in(LOAD_HELPER, helper=task.helper) if task.helper else ""
    gold_line = f'GOLD = "{gold}"  # the column of the gold answer; verl calls it ground_truth\n'
    uses_gold = "GOLD" in core + contracts + test
    body = "\n" + settings.lstrip("\n") + gold_line * uses_gold + helper.rstrip("\n") + "\n" + core + contracts
    body += listing("CASES", "(completion, columns of the row, score)", filled)
    body += checks + put_in(SELF_TEST, setup=setup, body=test + extra_test, gold=gold, name=args.name)
    notes = usage_notes(args, args.name, ", ".join(gold_columns), task.columns)
    if task.helper:
        notes[-1:-1] = [f"Needs {task.helper}.py beside it; copy both to every machine.", ""]
    return with_imports(head_of(task.about, notes, task.needs), body)


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
