"""Public data sets: what scripts/data_loader.py makes of rows in their schemas.

tests/data/public_sets.jsonl has a line for each: `rows` with the columns and types of the data set, written for these
tests, and what should become of them: `kind` and `fields` (one value a row), with the arguments in `options`, or a
`refusal`, words of the message. «…» marks a part of the question, which must reach the prompt; ‹…› marks what must not.
"""

import json
import re

import pytest
from conftest import ROOT, load_script

SETS = [json.loads(line) for line in (ROOT / "tests/data/public_sets.jsonl").read_text(encoding="utf-8").splitlines()]
SHUFFLED = ("Idavidrein/gpqa", "allenai/sciq")  # published with the right choice in one place
RIGHT = """
class Solution:
    def twice(self, n):
        return 2 * n

twice = task_func = Solution().twice

if __name__ == "__main__":
    print(twice(int(input())))
"""

loader, sandbox = load_script("data_loader"), load_script("sandbox")


def cases(condition) -> list:
    """The data sets for which a condition holds, as parameters of a test."""
    return [pytest.param(case, id=case["name"]) for case in SETS if condition(case)]


def loaded(case: dict, folder):
    """What load_rows gives for a file with the rows of a data set."""
    path = folder / case.get("file", "rows.jsonl")
    rows = case["rows"]
    text = json.dumps(rows) if path.suffix == ".json" else "\n".join(json.dumps(row) for row in rows)
    path.write_text(text, encoding="utf-8")
    return loader.load_rows(path, **case.get("options", {}))


def prompt_of(row: dict) -> str:
    """All that the model reads before it answers."""
    return "\n".join(message["content"] for message in row["prompt"])


def right_choice(row: dict) -> str:
    """The text of the choice whose letter is the answer."""
    lines = re.findall(rf"^\(?{re.escape(row['answer'])}[).:]\s*(.+)$", prompt_of(row), re.MULTILINE)
    assert len(lines) == 1, f"answer {row['answer']!r} of {prompt_of(row)!r}"
    return lines[0]


@pytest.mark.parametrize("case", cases(lambda case: "refusal" not in case))
def test_the_whole_question_and_the_answer_are_read(case, tmp_path, capsys):
    result = loaded(case, tmp_path)
    assert result.kind == case["kind"]
    assert "warning" not in capsys.readouterr().err
    raw = case["rows"] if isinstance(case["rows"], list) else [case["rows"]]
    for number, (before, row) in enumerate(zip(raw, result.rows, strict=True)):
        text, prompt = json.dumps(before, ensure_ascii=False), prompt_of(row)
        assert [part for part in re.findall("«.*?»", text) if part not in prompt] == [], prompt
        assert [part for part in re.findall("‹.*?›", text) if part in prompt] == [], prompt
        for name, values in case["fields"].items():
            assert (right_choice(row) if name == "right" else row.get(name)) == values[number], name


@pytest.mark.parametrize("case", cases(lambda case: "refusal" in case))
def test_a_refusal_names_the_reason(case, tmp_path):
    with pytest.raises(loader.UserError, match=case["refusal"]):
        loaded(case, tmp_path)


@pytest.mark.parametrize("case", cases(lambda case: case["name"] in SHUFFLED))
def test_the_right_choice_has_no_fixed_letter(case, tmp_path):
    answers = [row["answer"] for row in loaded(case, tmp_path).rows]
    assert len({*answers}) > 1, answers


@pytest.mark.parametrize("case", cases(lambda case: case.get("kind") == "code" or "tests" in case.get("fields", ())))
def test_right_programs_pass_and_wrong_ones_do_not(case, tmp_path):
    rows = [row for row in loaded(case, tmp_path).rows if "tests" in row]
    assert rows
    for row in rows:
        settings = {name: row[name] for name in ("entry_point", "setup") if name in row}
        programs = (RIGHT, RIGHT.replace("2 *", "3 *"))
        right, wrong = (sandbox.run_code(code, row["tests"], **settings) for code in programs)
        assert right.status == "ok" and right.passed == right.total > 0, right.detail
        assert wrong.status == "failed" and wrong.passed == 0, wrong.detail


def flags(case: dict) -> str:
    """The flags of the command that say the same as the options of load_rows."""
    options = case.get("options", {})
    parts = [f"--map {field}={column}" for field, column in options.get("mapping", {}).items()]
    parts += [f"--drop {name}" for name in options.get("drop", ())]
    parts += [f"--kind {options['kind']}"] if "kind" in options else []
    return " ".join(parts)


def test_the_page_lists_the_same_data_sets_with_the_same_outcome():
    page = (ROOT / "references" / "data_formats.md").read_text(encoding="utf-8")
    section = page.split("\n## Public data sets\n")[1].split("\n## ")[0]
    listed = []
    for line in section.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if len(cells) == 2 and "`" in line:
            first, second = cells
            if first.startswith("`"):
                outcome = second.strip("`") if second.startswith("`--") else "refused"
                listed.append((first.strip("`"), outcome))
            else:
                listed += [(name, first) for name in re.findall("`(.+?)`", second)]
    taken = [(case["name"], flags(case) or case["kind"].replace("_", " ")) for case in SETS if "refusal" not in case]
    refused = [(case["name"], "refused") for case in SETS if "refusal" in case]
    assert sorted(listed) == sorted(taken + refused)
