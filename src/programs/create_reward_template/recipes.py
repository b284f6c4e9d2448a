"""Which parts a task takes."""

from dataclasses import dataclass
from pathlib import Path

from programs.create_reward_template.new_reward_texts import (
    CODE,
    CODE_CASES,
    CODE_SETTINGS,
    JUDGE,
    JUDGE_CASES,
    JUDGE_SETTINGS,
    MATH,
    MATH_CASES,
    QA,
    QA_CASES,
)

HELPERS = Path(__file__).resolve().parent  # where math_grader.py and sandbox.py are


@dataclass
class Recipe:
    """What a task is made of."""

    about: str  # first line of the file
    gold: str = "answer"  # the column that verl calls ground_truth; "" for none
    core: str = ""
    cases: list | None = None
    settings: str = ""
    call: str = "sync"
    range: str = "[0, 1]"
    helper: str = ""
    needs: str = ""  # dependencies, as PEP 723 lists them
    columns: str = ""  # columns besides gold, in words


TASKS = {
    "math": Recipe(
        "Pay for the right final answer of a mathematical task, and only that.",
        core=MATH,
        cases=MATH_CASES,
        range="{0, 1}",
        helper="math_grader",
        call="sync",
        needs='"math-verify[antlr4_13_2]>=0.8,<1"',
        columns="prompt, so that copying the task does not pay",
    ),
    "final_number": Recipe("Pay for the right number behind ####, as in GSM8K, and only that.", range="{0, 1}"),
    "code": Recipe(
        "Pay for a program that passes its tests, which run in a sandbox.",
        gold="tests",
        core=CODE,
        cases=CODE_CASES,
        settings=CODE_SETTINGS,
        call="threads",
        helper="sandbox",
        columns="entry_point and setup, where the tests need them",
    ),
    "passes_tests": Recipe("Pay for a program that passes its tests.", gold="tests", range="{0, 1}", helper="sandbox"),
    "qa": Recipe("Pay for the right short answer, and only that.", core=QA, cases=QA_CASES, range="{0, 1}"),
    "format": Recipe("Pay for the layout, whatever stands in it: a tenth of the weight, beside a check of content."),
    "json_schema": Recipe(
        "Pay for JSON that a schema accepts, alone or as one fenced block.",
        gold="",
        needs='"jsonschema>=4.20,<5", "referencing"',
    ),
    "llm_judge": Recipe(
        "Pay what a model behind an OpenAI-compatible endpoint says an answer is worth.",
        core=JUDGE,
        cases=JUDGE_CASES,
        settings=JUDGE_SETTINGS,
        call="async",
        columns="prompt, which the judge should see",
    ),
    "custom": Recipe("Pay by a rubric of weighted checks."),
}

DEFAULT_RULES = ["equals:answer", "words:1-400*0.1"]
RESERVED = {"prompt", "prompts", "completion", "completions", "completion_ids", "columns", "self", "extra_info"}
IMPORTS = [  # (a sign of use, the line)
    *((rf"\b{name}\.", f"import {name}") for name in ("asyncio", "functools", "hashlib", "importlib.util", "inspect")),
    (r"\bjson\.", "import json"),
    (r"\bhttp\.server\.", "import http.server"),
    *((rf"\b{name}\.", f"import {name}") for name in ("math", "os", "re", "sys", "textwrap", "threading", "time")),
    (r"\burllib\.request\.", "import urllib.request"),
    *((rf"\b{name}\.", f"import {name}") for name in ("warnings", "zlib")),
    (r"\bThreadPoolExecutor\(", "from concurrent.futures import ThreadPoolExecutor"),
    (r"\bPath\b", "from pathlib import Path"),
]
INSTALLED = [(r"\bjsonschema\.", "import jsonschema"), (r"\bRegistry\(", "from referencing import Registry")]
