"""All of a question reaches the prompt: passages, choices; what does not is named. Marks of final answers."""

import re
from types import SimpleNamespace

import pytest
from conftest import TINY_LM, load_script, write_lines
from transformers import AutoTokenizer

from parts.data.prompts import load_prompts
from parts.data.question_parts import odd_answers, unread_parts, warn_unread
from parts.data.rows import check_prompt
from parts.foundation.messages import UserError
from programs.data_loader.answers_and_tests import gold_of
from programs.data_loader.form_names import normalise
from programs.data_loader.row_reader import load_rows
from programs.evaluation.rows import task_rows
from programs.evaluation.run import make_task


def asked(row: dict) -> str:
    """The last message of a row's prompt."""
    return normalise(row)["prompt"][-1]["content"]


def rows_file(tmp_path, *rows):
    """A JSONL file of rows."""
    return write_lines(tmp_path / "rows.jsonl", rows)


# ------------------------------------------------------------------------------------------------------- passages


def test_the_command_names_it_and_a_file_of_its_own_is_silent(tmp_path, capsys):
    path, out = rows_file(tmp_path, {"question": "How many?", "hint": "Seven.", "answer": "7"}), tmp_path / "out.jsonl"
    main = load_script("data_loader").main
    for flags, code in ((["--validate"], 1), (["--inspect"], 0), (["--out", str(out)], 0)):
        assert main([path, *flags]) == code
        assert "the column hint, which looks like a part of the question" in capsys.readouterr().err
    assert main([str(out), "--validate"]) == 0 and capsys.readouterr().err == ""


NOTES = {
    **{"answer": "7", "solution": "Seven apples.", "explanation": "Count them.", "rationale": "Count.", "type": "t"},
    **{"long_answer": "Seven apples.", "level": "Level 3", "difficulty": "hard", "subject": "Algebra", "id": "x"},
    **{"source": "s", "metadata": {"a": "b"}, "url": "http://x", "context_id": "c1", "image_count": 0, "figure": None},
    **{"supporting_facts": {"title": ["A"], "sent_id": [0]}, "text": "Q: How many? A: 7", "generations": ["a", "b"]},
}


def test_notes_about_a_question_are_no_part_of_it():
    assert unread_parts(NOTES, "How many?") == []


def test_a_system_prompt_in_a_column_is_unread_where_no_message_has_it():
    row, user = {"prompt": "How many?", "system": "Be brief."}, {"role": "user", "content": "How many?"}
    assert unread_parts(row, "How many?") == ["system"]
    assert unread_parts(row, [{"role": "system", "content": "Be brief."}, user]) == []


UNREAD_CHOICES = {"prompt": "2+2?", "context": "Use base ten.", "A": "4", "B": "5", "answer": "A"}


@pytest.mark.parametrize(
    ("name", "schema", "unread"),
    [
        ("schema", {"type": "object", "properties": {"age": {"type": "integer"}}}, False),
        ("schema", '{"properties": {"age": true}}', False),
        ("json_schema", {"$schema": "https://json-schema.org/draft/2020-12/schema"}, False),
        ("schema", "CREATE TABLE people (age INTEGER)", True),
        ("schema", {"people": ["age"], "type": ["id"]}, True),
        ("schema", {"properties": {"rooms": "INTEGER"}}, True),
        ("output_format", {"type": "object"}, True),
    ],
)
def test_a_json_schema_is_for_the_reward_and_tables_are_for_the_question(name, schema, unread):
    assert bool(unread_parts({"prompt": "Who is it?", name: schema}, "Who is it?")) is unread


@pytest.mark.parametrize(
    ("values", "line"),
    [
        (["3,5", "4,25", "12"], "2 of 3 values of answer look like '3,5'.*write a decimal point"),
        (["1,2", "3,4"], "look like '1,2': .*write a decimal point"),
        (["12,50\u202f€", "12,34,567"], "2 of 2 values of answer look like .*and no groups"),
        ([" " + "a" * 50], r"like ' a+\.+a+', which"),
        ([[["5"], ["6"]]], "list several .* truth values, like .*'6'"),
        ([["true", "false"], ["True", "true"]], "1 of 2 values of answer list several .* values, like .*'false'"),
        (["1.500,0", "3,125 cm", "7", "8", "9", "10"], "1 of 6 values of answer look like '1.500,0'"),
        (["#N/A", float("nan"), "5", "\\N"], "3 of 4 values of answer look like '#N/A'"),
        ([True, False], "2 of 2 values of answer are truth values, 'TRUE'"),
        (["TRUE", "no"], "1 of 2 values of answer are truth values, 'TRUE'"),
        (["WAHR", "FAUX", "VERO"], "3 of 3 values of answer are truth values, 'WAHR'"),
        (["true", "false"], ""),
        (["€1.200", "950 €", "1.50 €"], "1 of 3 values of answer look like '€1.200': .*write 1200"),
        (["01/fev", "4. Mär", "01-févr.", "1,2E+11", "5 mar", "3-fold"], "4 of 6 values .*'01/fev', as spread"),
        (["b'6\\n'", 'b"x"', "b"], "2 of 3 values of answer are bytes as Python prints them"),
        (["٥", "१२ km", "x²", "５", "5"], "2 of 5 values of answer have digits that some graders .*, like '٥'"),
        (["04-Mar", "2024-03-04 00:00:00", "1.2E+11", "-5"], "3 of 4 values of answer look like '04-Mar', as spread"),
        (["We add two and two. " * 6 + "It is 4.", "5"], "1 of 2 values of answer have over 20 words and no marked"),
        (["We add two and two. " * 6 + "\n#### 4", "5"], ""),
        (["proof", "notfound", "7"], "2 of 3 values of answer look like 'proof', a missing value"),
        ([{"value": "Rome", "aliases": []}, "7"], "1 of 2 values of answer are objects, like .*data_loader.py"),
        (["['a', 'b']", "[1, 2]"], "1 of 2 values of answer are lists as text"),
        (
            ["{'text': array(['a'], dtype=object)}", "np.array([1])", "print(array(['a']))"],
            "1 of 3 .* are lists as text",
        ),
        ([["1", "2"], ["42", "forty-two"], ["1,000", "1000"]], "1 of 3 values of answer list several numbers"),
        ([["A", "C"], ["B"]], "1 of 2 values of answer list several .* truth values, like .*'C'"),
        (["x = \frac{1}{2}", "\boxed{5}", "1\n2"], "2 of 3 values of answer have lost backslashes, like .*x0crac"),
        (["4", "", "5"], "1 of 3 values of answer are empty"),
        ([2.0, None, 3.0], "2 of 3 values of answer look like '2.0': .*Int64"),
        (["4", " 5", "6\u200b"], "2 of 3 values of answer have blanks around them, like ' 5'"),
        (['="4"', "'5", "6"], "2 of 3 values of answer have a spreadsheet's mark of text, like '=\"4\"'"),
        (["1,000", "3.5", 2.5, 2, None, "True", "a, b", "def f(): pass\n"], ""),
    ],
)
def test_answers_that_may_be_read_otherwise_are_noted(values, line):
    lines = odd_answers("answer", values)
    assert len(lines) == bool(line) and re.search(line, "".join(lines))
    if values == [True, False]:
        assert odd_answers("answer", values, ["True or false?"] * 2) == []  # where prompts ask for them


def test_an_image_placeholder_is_said_where_no_image_goes_to_the_model(capsys):
    prompts = ["<image>\nHow many?", [{"role": "user", "content": "[IMG] How many?"}], "What is <image> in HTML?"]
    prompts += ["Mend this HTML:\n<video>\n<source>\n</video>", "Picture <image>\nHow many?", "Alt text for [image]"]
    warn_unread("d.jsonl", [({"prompt": prompt}, prompt) for prompt in prompts])
    assert "3 of 6 prompts have an image placeholder, but no image" in capsys.readouterr().err


def test_a_message_in_the_form_of_a_template_is_said(capsys):
    chat = [{"role": "user", "content": "<|im_start|>user\n2+2?<|im_end|>\n<|im_start|>assistant\n<think>"}]
    warn_unread("d.jsonl", [({"prompt": prompt}, prompt) for prompt in (chat, [{"role": "user", "content": "2+2?"}])])
    assert "1 of 2 prompts open an assistant's turn" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("prompt", "words"),
    [
        ("nan", "are a missing value"),
        ("Is 3 &lt; 4?", "have HTML entities"),
        ("N_00 apples and N_01 pears?", "have placeholders"),
        ("GrÃ¶ÃŸe?", "look like UTF-8 read as cp1252"),
        ("What is $\frac12$?", "have lost backslashes"),
        ("Write &lt; in HTML.", ""),
        ("What is nan in Python?", ""),
        ("Write a function that escapes & as &amp;.", ""),
    ],
)
def test_prompts_that_are_not_as_their_author_wrote_them_are_said(prompt, words, capsys):
    warn_unread("d.jsonl", [({"prompt": prompt}, prompt)])
    said = capsys.readouterr().err
    assert f"1 of 1 prompts {words}" in said if words else said == ""


def test_prompts_that_end_with_an_answer_or_name_roles_otherwise(capsys):
    turns = [{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "4"}]
    warn_unread("d.jsonl", [({"prompt": turns}, turns), ({"prompt": turns[:1]}, turns[:1])])
    assert "1 of 2 prompts end with an answer, which the model continues; try data_loader.py" in capsys.readouterr().err
    for role, known in (("User", "user"), ("human", "user"), ("gpt", "assistant")):
        with pytest.raises(UserError, match=f"row 1: got the role '{role}'; expected '{known}'"):
            check_prompt([{"role": role, "content": "2+2?"}], "row 1")
    check_prompt([{"role": "observation", "content": "4"}], "row 1")


def test_trainers_name_what_they_do_not_read(tmp_path, capsys):
    settings = {"prompt_column": "prompt", "max_prompt_tokens": 999, "chat": False, "chat_template_kwargs": ""}
    config = SimpleNamespace(**settings, model="m")
    tokenizer = AutoTokenizer.from_pretrained(TINY_LM)
    load_prompts(config, tokenizer, str(rows_file(tmp_path, UNREAD_CHOICES)))
    lines = [line for line in capsys.readouterr().err.splitlines() if "part of the question" in line]
    assert len(lines) == 1 and "context (in 1 of 1 rows), A (in 1 of 1 rows), B (in" in lines[0]
    assert "data_loader.py" in lines[0]
    prepared = normalise(UNREAD_CHOICES) | {"source": "s", "id": "1", "hint": "Count."}
    assert unread_parts(prepared, prepared["prompt"]) == ["hint"]
    load_prompts(config, tokenizer, str(rows_file(tmp_path, prepared)))
    assert "part of the question" not in capsys.readouterr().err


@pytest.mark.parametrize(("task", "is_named"), [("math", True), ("multiple_choice", False)])
def test_an_evaluation_names_choices_that_its_task_does_not_read(task, is_named, tmp_path, capsys):
    from programs.evaluation.settings import Config

    path = rows_file(tmp_path, {"prompt": "2+2?", "choices": ["4", "5"], "answer": "4"})
    config = Config(data=str(path), model=[str(TINY_LM)], task=[task])
    task_rows(config, make_task(task, config))
    assert ("choices (in 1 of 1 rows)" in capsys.readouterr().err) == is_named


# ---------------------------------------------------------------------------------------------------------- marks

GOLD = {
    "2 + 2 = 4\n#### 4": "4",
    "2 + 2 = 4 #### 4": "4",
    "#### $1,004.50": "1004.50",
    "x\n#### -7\nThe answer is: -7": "-7",
    "Which?\n#### yes": "yes",
    "#### 3 hours": "3 hours",
    "#### Step 1\nWe add, so \\boxed{5}.": "5",
    "#### Step 1: add\nIt is 5.\n#### Step 2: check\nIt is right.": None,
    "#### 1\nWe add.\n#### 2\nWe check.": None,
    "The plan:\n#### Therefore we can see that she has 42 apples left": None,
    "def f():\n    return 1\n#### helpers": None,
    "```\n#### 4\n```": None,
    "##### 4": None,
    "It is so.\n\n#### Conclusion": None,
    "We add.\n#### Step 2": None,
    "We add.\n#### Answer: 42": "42",
    "We add.\n#### The answer is **42**": "42",
    "We add.\n#### -1,234.5": "-1234.5",
    "We add. <answer> 42 </answer>\n": "42",
    "First \\boxed{3 wrong. Then \\boxed{5}.": "5",
    "Thus.\nThe answer is $\\boxed{\\frac{1}{2": None,
    "\\boxed\\frac12, \\boxed\\text{B}": "\\text{B}",
    "So \\boxed\\frac{\\sqrt{3}}2.": "\\frac{\\sqrt{3}}2",
    "So \\boxed\\left(1, 2\\right).": "",
    "We add.\nSo the answer is 12.": "12",
    "We add 5 and 7, and therefore the correct answer is 12, which is even.": "12",
    "We add.\nFinal Answer: The final answer is $12$. I hope it is correct.": "$12$",
    "We add.\nAnswer: 12 because 3*4=12": "12",
    "We choose.\nThe answer is (B). This is because A is wrong.": "(B)",
    "Rats are prey. So the answer is yes.": "yes",
    "The answer is J. K. Rowling.": "J. K. Rowling",
    "We add.\n**Result:** 12": "12",
    "We add.\n**Answer** = 12": "12",
    "So x = 3.\nThe final answer = 2x": "2x",
    "x = 3\ny = 4\nanswer = x * y": None,
    "let x = 3;\nanswer = x;": None,
    "SELECT name FROM quiz WHERE answer = 5": None,
    "SELECT name\nFROM quiz\nWHERE id = 2\nAND answer = 5": None,
    "https://quiz.example/check?ans=5": None,
    "assert answer == 5": None,
    "print(answer=5)": None,
    "Full credit if the answer is 12.": None,
    "If the answer is 5, add 2 to get 7.": None,
    "I choose happiness every day.": None,
    "She praised his answer: clever and concise.": None,
    'x = 1\nprint("The answer is", x)': None,
}


@pytest.mark.parametrize("text", GOLD)
def test_a_mark_counts_at_the_end_and_before_a_short_answer(text):
    assert gold_of(text) == GOLD[text]


# ------------------------------------------------------------------------------------------------------ dialogues

SPOKEN = ("User: Hi\nAssistant: Yo", "Human: Hi Assistant: Yo Human: Why?", "user: Hi\n\nassistant: Yo\nuser: Why?")


@pytest.mark.parametrize("text", SPOKEN)
def test_a_dialogue_without_known_marks_is_read_and_said(text, tmp_path, capsys):
    (row,) = load_rows(rows_file(tmp_path, {"prompt": text})).rows
    said = capsys.readouterr().err
    assert row["prompt"] == [{"role": "user", "content": text}]
    assert "note: 1 prompts are dialogues in one text" in said and "`messages`" in said
    warn_unread("x.jsonl", [({"prompt": text}, text)])
    assert "1 of 1 prompts are dialogues with answers" in capsys.readouterr().err


OPEN = ("\n\nHuman: Hi\n\nAssistant:", "### Human: Hi\n### Assistant:", "Human: are you real? Say yes.", "Q: a\nA: b")


@pytest.mark.parametrize(
    "text",
    [
        *(*OPEN, "User: 2+2?\nAssistant: Let me think.\n<think>", "Is a User: or Assistant: field"),
        "<|user|> and <|assistant|> are tokens of which model?",
    ],
)
def test_an_open_dialogue_and_other_texts_stay(text, tmp_path, capsys):
    assert load_rows(rows_file(tmp_path, {"prompt": text, "answer": "a"})).rows[0]["prompt"][0]["content"] == text
    said = capsys.readouterr().err
    assert ("a chat template writes another" in said) == (text in OPEN[:2]) and "warning" not in said
    warn_unread("x.jsonl", [({"prompt": text}, text)])
    assert capsys.readouterr().err == ""
