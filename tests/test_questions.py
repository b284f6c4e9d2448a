"""All of a question reaches the prompt: passages, choices; what does not is named. Marks of final answers."""

import re
from types import SimpleNamespace

import pytest
from conftest import ROOT, TINY_LM, load_script, read_lines, write_lines
from transformers import AutoTokenizer

from parts.data.prompts import load_prompts, read_prompts
from parts.data.question_parts import odd_answers, unread_parts, warn_unread
from parts.data.rows import check_prompt, read_rows
from parts.foundation.messages import UserError
from programs.data_loader.answers import gold_of
from programs.data_loader.form_names import normalise
from programs.evaluation.rows import task_rows
from programs.evaluation.run import make_task

# a column of answers, and the note about it (a pattern; empty: none); a solution, and the answer that it marks
CASES = read_lines(ROOT / "tests" / "data" / "answer_cases.jsonl")


def rows_file(tmp_path, *rows):
    """A JSONL file of rows."""
    return write_lines(tmp_path / "rows.jsonl", rows)


def said_of(capsys, *prompts) -> str:
    """The warnings about prompts."""
    warn_unread("d.jsonl", [({"prompt": prompt}, prompt) for prompt in prompts])
    return capsys.readouterr().err


def test_the_command_names_it_and_a_file_of_its_own_is_silent(tmp_path, capsys):
    path, out = rows_file(tmp_path, {"question": "How many?", "hint": "Seven.", "answer": "7"}), tmp_path / "out.jsonl"
    main = load_script("data_loader").main
    for flags, code in ((["--validate"], 1), (["--inspect"], 0), (["--out", str(out)], 0)):
        assert main([path, *flags]) == code
        assert "the column hint, which looks like a part of the question" in capsys.readouterr().err
    assert main([str(out), "--validate"]) == 0 and capsys.readouterr().err == ""


NOTES = {
    **{"answer": "7", "solution": "Seven apples.", "rationale": "Count.", "level": "Level 3", "id": "x"},
    **{"source": "s", "metadata": {"a": "b"}, "url": "http://x", "context_id": "c1", "image_count": 0, "figure": None},
    **{"supporting_facts": {"title": ["A"], "sent_id": [0]}, "text": "Q: How many? A: 7", "generations": ["a", "b"]},
}


def test_notes_about_a_question_are_no_part_of_it():
    assert unread_parts(NOTES, "How many?") == []


UNREAD_CHOICES = {"prompt": "2+2?", "context": "Use base ten.", "A": "4", "B": "5", "answer": "A"}


@pytest.mark.parametrize("case", [case for case in CASES if "values" in case])
def test_answers_that_may_be_read_otherwise_are_noted(case):
    values, note = case["values"], case["note"]
    lines = odd_answers("answer", values)
    assert len(lines) == bool(note) and re.search(note, "".join(lines))
    if values == [True, False]:
        assert odd_answers("answer", values, ["True or false?"] * 2) == []  # where prompts ask for them


def test_an_image_placeholder_and_a_message_in_the_form_of_a_template_are_said(capsys):
    prompts = ["<image>\nHow many?", [{"role": "user", "content": "[IMG] How many?"}], "What is <image> in HTML?"]
    prompts += ["Mend this HTML:\n<video>\n<source>\n</video>", "Picture <image>\nHow many?", "Alt text for [image]"]
    assert "3 of 6 prompts have an image placeholder, but no image" in said_of(capsys, *prompts)
    chat = [{"role": "user", "content": "<|im_start|>user\n2+2?<|im_end|>\n<|im_start|>assistant\n<think>"}]
    said = said_of(capsys, chat, [{"role": "user", "content": "2+2?"}])
    assert "1 of 2 prompts open an assistant's turn" in said


def test_prompts_that_end_with_an_answer_or_name_roles_otherwise(capsys):
    turns = [{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "4"}]
    said = said_of(capsys, turns, turns[:1])
    assert "1 of 2 prompts end with an answer, which the model continues; try data_loader.py" in said
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


@pytest.mark.parametrize("case", [case for case in CASES if "text" in case])
def test_a_mark_counts_at_the_end_and_before_a_short_answer(case):
    assert gold_of(case["text"]) == case["gold"]


def test_chats_without_a_prompt_are_read_as_by_the_loader(tmp_path, capsys):
    turns = [{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "4"}]
    file = str(tmp_path / "d.jsonl")
    write_lines(tmp_path / "d.jsonl", [{"messages": turns, "level": 1}, {"messages": turns[:1], "level": 2}])
    (place, row), (_, asked) = read_prompts(file, "prompt")
    assert (row["prompt"], row["completion"], row["level"], asked["prompt"]) == (turns[:1], turns[1:], 1, turns[:1])
    assert place.startswith(file) and "read by data_loader.py; the last answer" in capsys.readouterr().err
    assert [row for _, row in read_prompts(file, "messages")] == read_rows(file)
    write_lines(tmp_path / "d.jsonl", [{"messages": turns[:1]}])
    assert len(read_prompts(file, "prompt")) == 1 and "the last answer" not in capsys.readouterr().err
    write_lines(tmp_path / "d.jsonl", [{"messages": [{"role": "nobody", "content": "2+2?"}]}])
    with pytest.raises(UserError, match=r"d\.jsonl:1: .*'nobody'"):
        read_prompts(file, "prompt")
