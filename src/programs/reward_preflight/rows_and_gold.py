"""Rows of the data, and their reference completions (gold)."""

import json
import random
import re

from parts.data.answer_marks import hash_mark, stated_gold
from parts.data.prompts import read_prompts, warn_unread
from parts.data.rows import check_prompt
from parts.foundation.messages import need
from parts.rewards.schema_examples import example_of
from parts.rewards.user_code import user_text

SOLUTIONS = ("solution", "completion", "response", "canonical_solution", "code")  # columns with a whole completion
ANSWERS = ("answer", "final_answer", "label", "target", "ground_truth")  # columns with a final answer
SHORT_ANSWER = 40  # characters
CODE_COLUMNS = {"canonical_solution", "entry_point", "test", "tests", "test_list", "test_cases"}
TEMPLATES = (
    "{answer}",
    "\\boxed{{answer}}",
    "#### {answer}",
    "<answer>{answer}</answer>",
    "The answer is {answer}.",
    "Answer: {answer}",
    "ANSWER: {answer}",
    "Final answer: {answer}",
    '{"answer": "{answer}"}',
    "<think>\n{reasoning}\n</think>\n\\boxed{{answer}}",
    "<think>\n{reasoning}\n</think>\n{answer}",
    "<think>\n{reasoning}\n</think>\n<answer>\n{answer}\n</answer>",
    "<reasoning>\n{reasoning}\n</reasoning>\n<answer>\n{answer}\n</answer>\n",
)
MARKED = re.compile(r"\\boxed\{((?:[^{}]|\{[^{}]*\})*)\}|<answer>([^<]*)</answer>")


def text_of(value) -> str | None:
    """A text, number, list's first string or messages' joined contents as text; None for anything else."""
    if isinstance(value, list) and value and all(isinstance(m, dict) for m in value):
        return "".join(str(message.get("content") or "") for message in value)
    if isinstance(value, list) and value and isinstance(value[0], str):
        return value[0]
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    return value if isinstance(value, str) else None


def marked_answer(text: str) -> tuple[str, str] | None:
    """(Answer, text before it) at the last `####`, `\\boxed{}` or `<answer>` of a solution, or None."""
    hashed = hash_mark(text)
    matches = [*MARKED.finditer(text), *([hashed] if hashed and hashed[1].strip() else [])]
    if not matches:
        return None
    last = max(matches, key=re.Match.start)
    return next(part for part in last.groups() if part is not None).strip(), text[: last.start()].strip()


def answer_columns(args) -> tuple[str, ...]:
    return (args.answer_column,) if args.answer_column else ANSWERS


def make_row(raw: dict, where: str, number: int, args) -> dict:
    """A row for reward_arguments, with the final answer and the reasoning before it if columns hold them."""
    for flag, name in (("prompt_column", args.prompt_column), ("answer_column", args.answer_column)):
        got = f"{where}: got columns {', '.join(raw) or 'none'}"
        need(name is None or name in raw, f"{got}; expected {name!r}; try --{flag} NAME")
    prompt = raw[args.prompt_column]
    check_prompt(prompt, where)
    reserved = {"prompt", "prompts", "completions", "completion_ids", args.prompt_column}
    columns = {name: value for name, value in raw.items() if name not in reserved}
    row = {"number": number, "place": where, "prompt": prompt, "columns": columns}
    row |= {"answer": None, "reasoning": "", "gold": ""}
    answers = answer_columns(args)
    for name in dict.fromkeys([*answers, args.gold_column, *SOLUTIONS]):
        text = text_of(columns.get(name))
        marked = marked_answer(text or "")
        # a solution of one short line, as TRL's rows have it, is an answer
        is_short = name == "solution" and text and len(text) <= SHORT_ANSWER and "\n" not in text and not is_code(row)
        if text and text.strip() and (marked or is_short or name in answers):
            row["answer"], row["reasoning"] = marked or (stated_gold(text) or text.strip(), "")
            break
    return row


def load_rows(args, count: int) -> list[dict]:
    """Read --data and draw `count` rows of it with --seed."""
    raw = read_prompts(args.data, args.prompt_column)
    need(raw, f"got data {args.data!r} without rows; expected at least one")
    rows = [make_row(row, place, i, args) for i, (place, row) in enumerate(raw, 1)]
    warn_unread(args.data, [(row, row[args.prompt_column]) for _, row in raw])
    return pick(rows, count, args.seed)


def pick(rows: list[dict], count: int, seed: int) -> list[dict]:
    """Draw `count` rows with a seed and keep their order; all rows for 0."""
    if not 0 < count < len(rows):
        return rows
    return [rows[i] for i in sorted(random.Random(seed).sample(range(len(rows)), count))]


def is_object_or_array(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict | list)
    except ValueError:
        return False


def fill(template: str, values: dict) -> str:
    """Fill the places `{name}` of a template for which there is a value, as JSON where the template is JSON.

    Braces of LaTeX commands stay.
    """
    template = re.sub(r"(\\[A-Za-z]+)\{(\w+)\}", r"\1{{\2}}", template)
    is_json = is_object_or_array(re.sub(r"\{\w+\}", "0", template))

    def written(match):
        value, before = values.get(match[1]), re.sub(r"\\.", "", template[: match.start()])
        if value is None or not is_json:
            return match[0] if value is None else str(value)
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
        return json.dumps(text, ensure_ascii=False)[1:-1] if before.count('"') % 2 else text

    return re.sub(r"\{(\w+)\}", written, template)


def gold_variants(row: dict, args) -> dict[str, str]:
    """{variant: reference completion} of a row, the preferred variant first."""
    columns, variants = row["columns"], {}
    values = {**columns, "prompt": user_text(row["prompt"]), "answer": row["answer"]}
    values["reasoning"] = row["reasoning"] or "The result follows step by step from what is given."
    if args.gold_template:
        template = re.sub(r"\\n(?![A-Za-z])", "\n", args.gold_template)
        wanted = [name for name in re.findall(r"\{(\w+)\}", template) if values.get(name) is None]
        return {} if wanted else {"--gold_template": fill(template, values)}
    for name in [args.gold_column] if args.gold_column else SOLUTIONS:
        text = text_of(columns.get(name))
        if not text or not text.strip():
            continue
        variants[f"column {name}"] = text
        if is_code(row) and "```" not in text:
            variants[f"column {name} in a code block"] = f"```python\n{text}\n```"
            whole = f"{values['prompt']}{text}"
            variants[f"prompt + column {name} in a code block"] = f"```python\n{whole}\n```"
    for name in () if args.gold_column else answer_columns(args):
        text = text_of(columns.get(name))
        if text and marked_answer(text):
            variants[f"column {name}"] = text
    if columns.get("schema") and not args.gold_column:
        example = example_of(columns["schema"])
        variants |= {"an example of the column schema": json.dumps(example)} if example is not None else {}
    if row["answer"] and not args.gold_column:
        variants |= {template: fill(template, values) for template in TEMPLATES}
    return variants


def is_code(row: dict) -> bool:
    return bool(CODE_COLUMNS & set(row["columns"]))
