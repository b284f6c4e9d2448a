"""Which files a task takes."""

from dataclasses import dataclass
from pathlib import Path

from parts.foundation.file_text import file_text
from programs.create_reward_template.assembly import LOADING

FINAL_ANSWER = file_text("files/final_answer.py")
MATH_ANSWER = file_text("files/math_answer.py")
CODE_TESTS = file_text("files/code_tests.py")
SHORT_ANSWER = file_text("files/short_answer.py")
TAG_FORMAT = file_text("files/tag_format.py")
JSON_SCHEMA = file_text("files/json_schema.py")
LLM_JUDGE = file_text("files/llm_judge.py")
RUBRIC_CHECKS = file_text("files/rubric.py")
FINAL_NUMBER = file_text("files/final_number.py")
PASSES_TESTS = file_text("files/passes_tests.py")
HELPERS = Path(__file__).resolve().parent  # where math_grader.py and sandbox.py are


@dataclass
class Recipe:
    """What a task is made of."""

    texts: tuple[str, ...]  # the last one is its own; the file begins with its docstring
    gold: str = "answer"  # the column that verl calls ground_truth; "" for none
    helper: str = ""
    needs: str = ""  # dependencies, as PEP 723 lists them
    columns: str = ""  # columns besides gold, in words


TASKS = {
    "math": Recipe(
        (LOADING, MATH_ANSWER),
        helper="math_grader",
        needs='"math-verify[antlr4_13_2]>=0.8,<1"',
        columns="prompt, so that copying the task does not pay",
    ),
    "final_number": Recipe((FINAL_NUMBER,)),
    "code": Recipe(
        (LOADING, CODE_TESTS),
        gold="tests",
        helper="sandbox",
        columns="entry_point and setup, where the tests need them",
    ),
    "passes_tests": Recipe((PASSES_TESTS,), gold="tests", helper="sandbox"),
    "qa": Recipe((FINAL_ANSWER, SHORT_ANSWER)),
    "format": Recipe((TAG_FORMAT,)),
    "json_schema": Recipe((FINAL_ANSWER, JSON_SCHEMA), gold="", needs='"jsonschema>=4.20,<5", "referencing"'),
    "llm_judge": Recipe((LLM_JUDGE,), columns="prompt, which the judge should see"),
    "custom": Recipe((FINAL_ANSWER, RUBRIC_CHECKS)),
}

DEFAULT_RULES = ["equals:answer", "words:1-400*0.1"]
RESERVED = {"prompt", "prompts", "completion", "completions", "completion_ids", "columns", "self", "extra_info"}
