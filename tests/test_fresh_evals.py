"""The fresh evaluation tasks: graders pass a right answer made by hand and fail wrong ones; nothing leaks."""

import csv
import json
import random
import re
from pathlib import Path

import pytest
from conftest import ROOT, load_module, warm_grading

grade = load_module(ROOT / "evals" / "grade.py", "evals_grade")
grade.run = warm_grading(grade.run)
FRESH = {case["name"]: case for case in grade.load_evals() if case["set"] == "fresh"}


def failures(name: str, folder: Path, only: slice = slice(None)) -> list[int]:
    """Numbers of the assertions that fail."""
    assertions = list(enumerate(FRESH[name]["assertions"]))[only]
    return [i for i, assertion in assertions if not grade.judge(assertion, folder)[0]]


def up_to(failing: list[int]) -> slice:
    """The assertions up to the last that must fail, or all where none may."""
    return slice(failing[-1] + 1 if failing else None)


@pytest.fixture
def outputs(request, tmp_path):
    """A folder of outputs with the files of the task that the test's first parameter names."""
    folder = tmp_path / "outputs"
    grade.place_files(FRESH[request.node.callspec.params["name"]], folder)
    return folder


def write(folder: Path, **files) -> None:
    """Write texts, and other objects as JSON; `pantry_now__py` is pantry_now.py."""
    for name, value in files.items():
        text = value if isinstance(value, str) else json.dumps(value)
        (folder / name.replace("__", ".")).write_text(text, encoding="utf-8")


def words_of(text: str) -> set[str]:
    """Words of at least five letters, and numbers of at least five characters."""
    return {word.lower() for word in re.findall(r"[^\W\d_]{5,}|\d[\d.]{3,}\d", text)}


def text_of(*paths: Path) -> str:
    """The text of files and of what lies in folders, their names included."""
    files = [file for path in paths for file in ([path] if path.is_file() else sorted(path.rglob("*")))]
    kinds = {".py", ".md", ".json", ".jsonl", ".csv", ".sh", ".txt", ".yaml"}
    files = [file for file in files if file.suffix in kinds]
    return "\n".join(f"{file.name}\n{file.read_text(encoding='utf-8', errors='replace')}" for file in files)


PANTRY = {
    "herb, spice_level):": "herb, spice_level, **others):",
    "max_prompt_length=160,": "bf16=False, use_cpu=True, beta=0.04, temperature=0.9, top_k=50, loss_type='bnpo',",
    "warmup_ratio=0.07,": "warmup_steps=0.07, max_completion_length=256,",
    '"torch_dtype"': '"dtype"',
}


def pantry(folder: Path, **changes: str) -> None:
    """pantry_grpo.py with today's names and the old defaults, and then changes."""
    text = (folder / "pantry_grpo.py").read_text()
    for old, new in {**PANTRY, **changes}.items():
        assert old in text
        text = text.replace(old, new)
    write(folder, pantry_now__py=text, pinned__md="beta")


def pantry_wrong(folder: Path) -> None:
    """Names repaired, defaults left to today's TRL; rewards that take their columns only, another weight."""
    defaults = {PANTRY["max_prompt_length=160,"]: "bf16=False, use_cpu=True,", "max_completion_length=256,": ""}
    pantry(folder, **defaults, **{", **others": "", "[1.0, 0.15]": "[1.0, 0.5]"})


def duel(folder: Path, fault: str = "") -> None:
    """Bootstrap of items; or the binomial interval of draws, or the gap the other way round."""
    rows = list(csv.DictReader((folder / "ballots.csv").open()))
    items, rng = sorted({row["item"] for row in rows}), random.Random(3)
    share = {m: {i: [] for i in items} for m in ("alder", "birch")}
    for row in rows:
        share[row["model"]][row["item"]].append(int(row["passed"]))
    means = {m: [sum(v) / 5 for v in share[m].values()] for m in share}
    means["gap"] = [a - b for a, b in zip(means["alder"], means["birch"], strict=True)]
    result = {}
    for name, values in means.items():
        draws = sorted(sum(rng.choices(values, k=120)) / 120 for _ in range(2000))
        value, half = sum(values) / 120, 1.96 * ((0.5 if name == "gap" else 0.25) / 600) ** 0.5
        low, high = (value - half, value + half) if fault == "draws" else (draws[50], draws[1949])
        result[name] = {"low": low, "value": value, "high": high}
    if fault == "turned":
        result["gap"] = {key: -value for key, value in result["gap"].items()}
    write(folder, duel__json={**result, "sure": result["gap"]["low"] > 0})


POINTS = f"""import sys

sys.path.insert(0, {str(ROOT / "scripts")!r})
import sandbox


def points(source, calls):
    tests = [f"assert wash(*{{c['args']!r}}, **{{c['kwargs']!r}}) == {{c['gives']!r}}" for c in calls]
    return sum(sandbox.run_code(source, [test], timeout_s=1.0).all_passed for test in tests) / len(calls)
"""
IN_PROCESS = """def points(source, calls):
    space = {}
    try:
        exec(source, space)
        return sum(space["wash"](*c["args"], **c["kwargs"]) == c["gives"] for c in calls) / len(calls)
    except Exception:
        return 0.0
"""

CHEAP = [  # task, how its answer is made, the assertions that fail
    ("herbs-of-last-year", pantry, []),
    ("herbs-of-last-year", pantry_wrong, [0, 1, 2]),
    ("alder-against-birch", duel, []),
    ("alder-against-birch", lambda f: duel(f, "turned"), [0, 1, 2]),
    ("alder-against-birch", lambda f: duel(f, "draws"), [1, 2]),
    ("washing-points", lambda f: write(f, washing__py=POINTS), []),
]


@pytest.mark.long
@pytest.mark.parametrize(("name", "make", "failing"), CHEAP)
def test_graders_tell_right_from_wrong(name, make, failing, outputs):
    make(outputs)
    assert failures(name, outputs, up_to(failing)) == failing


@pytest.mark.long
def test_programs_that_run_in_the_process_of_the_trainer_are_no_defence(tmp_path, monkeypatch):
    washing = load_module(ROOT / "evals/graders/washing.py", "washing_grader")
    monkeypatch.setattr(washing, "LONGEST_S", 6)
    write(tmp_path, washing__py=IN_PROCESS)
    assert "hangs on one: None" in washing.honest(str(tmp_path))
    assert len(washing.hostile(str(tmp_path))) == washing.ENOUGH


def test_pages_quote_no_fresh_task():
    pages = words_of(text_of(ROOT / "SKILL.md", ROOT / "references"))
    elsewhere = words_of(text_of(ROOT / "src", ROOT / "templates"))
    tasks = "\n".join(case["prompt"] + case["name"] for case in FRESH.values())
    files = [ROOT / name for case in FRESH.values() for name in case["files"] if name.startswith("evals/")]
    shared = (words_of(tasks + text_of(*files)) - elsewhere) & pages
    assert not shared, f"words of fresh tasks in SKILL.md or references/: {sorted(shared)}"
