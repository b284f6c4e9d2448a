"""Convert rows of each form to the schema."""

import functools
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass

from parts.data.question_parts import is_empty, is_system, odd_prompt, placeholder_in, texts_in, unread_parts
from parts.data.stated_answers import visible
from programs.data_loader.answers import as_answer, gold_of, ground_truth, is_short, marks_answer, names_value
from programs.data_loader.bad_rows import TEXT_ONLY, BadRow, Names, opened, shown
from programs.data_loader.choices import LETTER_ALONE, LETTERED, choices_of, picked, with_choices
from programs.data_loader.messages import (
    as_prompt,
    as_reply,
    check_completion,
    check_order,
    ends_with,
    media_column,
    passages_before,
    read_messages,
    split_prompt,
    without_placeholder,
)
from programs.data_loader.tests_of_programs import (
    METHOD,
    as_code,
    calls_on_stdin,
    check_runnable,
    is_preamble,
    read_tests,
)

ALIASES = re.compile(r"(answer_)?aliases|(alt|alternat(iv)?e|other|additional|acceptable)_answers")
BARE_MARK = re.compile(r"####[^\n#\\]*|\$?\\boxed\{[^{}]*\}\$?")  # only a marked answer


@dataclass(frozen=True)
class FileFacts:
    """What the rows of a file share, beyond their form."""

    mapped: frozenset[str] = frozenset()  # fields that --map fills
    sources: frozenset[str] = frozenset()  # columns that it fills them from
    first_number: int | None = None  # number of the first choice: 0, 1, or None if no row shows it
    number_texts: frozenset[str] = frozenset()  # columns whose numbers are choices' texts
    worked: bool = False  # most answers mark the final one, so one without a mark is cut off


class Shape:
    """A row on its way to the schema, `out`: `take` fetches a field and marks it as used; unused fields are kept."""

    def __init__(self, row: dict, facts: FileFacts):
        self.row, self.used, self.out, self.facts = row, set(), {}, facts
        self.choices = None  # the choices that were added to the prompt
        self.unread: list[str] = []  # columns that look like parts of the question but are not in the prompt
        self.untaken: list[str] | None = None  # if nothing can be graded: the other columns, which may hold answers
        self.notes: list[str] = []
        self.is_ours = False  # this script wrote the row: its columns need no advice
        self.tests_name = "tests"  # the column that the tests came from

    def name(self, names: Iterable[str]) -> str | None:
        """The first of these fields that the row has and that is unused, or None."""
        return next((name for name in names if self.row.get(name) is not None and name not in self.used), None)

    def take(self, names: Iterable[str], expected: str):
        """(Name, value) of the first of these fields, now used; BadRow, which says what was `expected`, if none is."""
        names = tuple(names)
        name = self.name(names)
        if name is None:
            if empty := [name for name in names if name in self.row and name not in self.used]:
                raise BadRow(empty[0], "null or an empty cell", expected)
            present = ", ".join(key for key, item in self.row.items() if item is not None) or "none"
            cells = {key: opened(cell) for key, cell in self.row.items() if key not in Names.ANSWER}
            fields = {
                key: [name for name in (*names, *Names.CHAT) if name in cell]
                for key, cell in cells.items()
                if isinstance(cell, dict)
            }
            paths = [f"{key}.{inner[0]}" for key, inner in fields.items() if inner]
            path = paths[0] if len(paths) == 1 else "COLUMN, or =COLUMN.FIELD for a field of an object"
            advice = f"--map {names[0]}={path}"
            raise BadRow(names[0], f"the columns {present[:200]}", f"{expected}: one of {', '.join(names)}", advice)
        self.used.add(name)
        return name, self.row[name]

    def prompt(self) -> None:
        """Fill in the prompt, with passages before it, and Alpaca's input and choices after it.

        If --map fills the prompt, only passages that it fills too are added.
        """
        self.choices = choices_of(self.row)
        names = Names.CHOICE_PROMPT if self.choices else Names.PROMPT
        if not self.choices and self.row.get("entry_point"):  # what has only a program's imports comes last
            names = sorted(names, key=lambda name: is_preamble(self.row.get(name), self.row["entry_point"]))
        name, value = self.take(names, "a prompt")
        if name == "instruction":
            extra = self.row.get("input")
            if extra is not None and not (isinstance(value, str) and isinstance(extra, str)):
                raise BadRow("input", shown(extra), "text that goes with the instruction")
            value = f"{value}\n\n{extra}" if extra and extra.strip() else value
            self.used.add("input")
        if name != "prompt" and isinstance(self.row.get("history"), list) and self.row["history"]:
            raise BadRow("history", "earlier turns apart from the prompt", "all turns in `messages`", "--drop history")
        self.set_prompt(value, name)
        self.add_passages(isinstance(value, str) and "prompt" not in self.facts.mapped)
        if self.choices:
            message = self.out["prompt"][-1]
            message["content"] = with_choices(message["content"], self.choices.texts)
            if self.choices.columns[0] not in ("choices", "options"):
                self.used.update(self.choices.columns)
                self.out["choices"] = self.choices.texts

    def set_prompt(self, value, name: str) -> None:
        """Fill in the prompt's messages; a column `system` precedes them unless they have a system message."""
        systems = [name for name in self.row if is_system(name)]
        system = self.name(name for name in systems if not is_empty(self.row[name]))
        self.out["prompt"] = as_prompt(value, name, self.row[system] if system else None)
        begun = self.out["prompt"][0]["content"].strip()
        self.used.update(name for name in systems if str(self.row[name] or "").strip() in ("", begun))

    def add_passages(self, all_columns: bool) -> None:
        """Put passages before the last message: of all columns that may hold one, or only of those that --map fills."""
        message, mapped = self.out["prompt"][-1], self.facts.mapped
        names = [name for name in self.row if name not in self.used and (all_columns or name in mapped)]
        passages = passages_before(self.row, message["content"], names, mapped)
        self.used.update(passages)
        for name, text in passages.items():
            if isinstance(self.row[name], str) and self.row[name] != text:
                self.notes.append(f"rows have documents as JSON in {name}, which are text in the prompt")
        if passages:
            message["content"] = "\n\n".join([*passages.values(), message["content"]])

    def answer(self, name: str) -> None:
        """Fill in `answer`: a bare one, or the final answer of a worked solution, whose text is kept as `solution`."""
        text = as_answer(self.row[name], name)
        self.used.add(name)
        marked, thought = gold_of(text), "think>" in text
        if marked is None and self.facts.worked:
            got = f"{shown(text[-60:])} without a final answer"
            raise BadRow(name, got, "#### or \\boxed{…}, as the other rows")
        answer = marked if marked is not None else visible(text).strip() if thought else text
        if not answer.strip():
            raise BadRow(name, f"{shown(text[-60:])}, which ends without an answer", "text after #### or in \\boxed{}")
        if name == "solution" and marked is None and not names_value(answer):
            raise BadRow(name, f"{shown(text[-60:])} without a final answer", "#### or \\boxed{…}", "a field `answer`")
        self.out["answer"] = answer
        if "####" not in text and len({*re.findall(r"\\boxed\{([^{}]+)\}", text)}) > 1:
            self.notes.append(f"rows have several boxes in {name}, of which the last one is taken")
        if name == "solution" and marked is None:
            self.out[name] = text  # TRL's rewards read it
        elif answer != text and not BARE_MARK.fullmatch(text.strip()):
            taken = name != "solution" and self.row.get("solution") is not None
            self.out["answer_text" if taken else "solution"] = text

    def gold(self, name: str) -> None:
        """Fill in a ground truth: an answer, accepted answers, or tests; other objects stay as they are."""
        value = self.row[name]
        if name == "label" and not isinstance(value, bool) and value in (0, 1):
            advice = "--map answer=label if it is the answer, --drop label if not"
            raise BadRow(name, f"{value}, an answer or a class", "a truth value, or text", advice)
        cell = opened(value)
        fields = ground_truth(value, name, self.row) if isinstance(cell, list | dict) else {"answer": value}
        as_text = isinstance(value, str) and "ground_truth" in fields  # of an object that holds no known answer
        stays = as_text and (name == "verification_info" or {*cell} in ({"target", "numbers"}, {"target", "nums"}))
        if (as_text or fields.get("answer") == value) and not stays and not isinstance(value, list):
            parts = cell if isinstance(cell, list) else [cell]
            if isinstance(value, str) and all(isinstance(part, dict) for part in parts) and "answer" not in name:
                got = f"rows have JSON text in {name}, which is taken as the answer"
                self.notes.append(f"{got}; if it is data for a verifier, --map COLUMN={name} keeps it as a column")
            self.answer(name)
        elif "ground_truth" not in fields:
            self.out.update(fields)
            self.used |= {name} - {"verification_info"}

    def finish(self) -> dict:
        """Complete and check `out`: known fields first, then all unused ones that are not null."""
        row, out = self.row, self.out
        if name := media_column(row, "\n".join(message["content"] for message in out["prompt"])):
            advice = f"leaving out the row, or --drop {name} if the text does not need it"
            raise BadRow(name, shown(row[name]), TEXT_ONLY, advice)
        if place := next(filter(None, (placeholder_in(message["content"]) for message in out["prompt"])), None):
            raise BadRow("prompt", f"an image placeholder, {shown(place)}", TEXT_ONLY, "--on_bad skip")
        asked = out["prompt"][-1]["content"]
        if self.choices and "answer" not in out and row.get("answer") is not None:
            pick_letter(self)
        reply = functools.partial(as_reply, prompt=out["prompt"])
        readers = {"answer": as_answer, "tests": functools.partial(read_tests, row=row)}
        readers |= {"completion": reply, "chosen": reply, "rejected": reply}
        for name, read in readers.items():  # these names have one meaning in all forms
            if row.get(name) is not None and name not in self.used and name not in out:
                out[name] = read(row[name], name)
                self.used.add(name)
        for name in ("entry_point", "setup", "source", "id"):
            value = row.get(name)
            if value is None or name in out:
                continue
            if name in ("id", "source") and isinstance(value, int | float):
                value = json.dumps(value)
            if not isinstance(value, str):
                raise BadRow(name, f"{type(value).__name__} {shown(value)}", "text", f"--map other_name={name}")
            out[name] = METHOD.sub(r"\1", value) if name == "entry_point" else value
            self.used.add(name)
        if "tests" in out:
            check_runnable(out, self.tests_name)
        if "completion" in out:
            check_completion(row, asked, out["completion"])
        elif ends_with(asked, str(out.get("answer", ""))):
            self.notes.append("prompts end with their answer; cut it off, unless they ask whether it is right")
        if "id" not in out and isinstance(row.get("task_id"), str | int):
            out["id"] = str(row["task_id"])
        rest = {name: value for name, value in row.items() if name not in self.used and value is not None}
        out |= {name: value for name, value in rest.items() if name not in out}
        if not self.is_ours:
            for name in filter(ALIASES.fullmatch, rest if "answer" in out else ()):
                given = {text.lower() for text in texts_in(out["answer"])}
                if not {text.lower() for text in texts_in(opened(rest[name]))} <= given:
                    self.notes.append(f"rows may have more accepted answers in {name}; answer may be a list of all")
            whole = "\n".join(message["content"] for message in out["prompt"])
            if re.fullmatch(r"\(?[A-J]\)?", str(out.get("answer"))) and not LETTERED.search(whole):
                self.notes.append(LETTER_ALONE)
            self.notes += [f"prompts {line}" for line in odd_prompt(out, out["prompt"])]
            self.notes += calls_on_stdin(out.get("tests"), self.tests_name, row, asked)
            known = {*self.facts.mapped, *self.facts.sources, *(self.choices.columns if self.choices else ())}
            known |= {"tools"} if {"completion", "chosen"} & out.keys() else set()  # trainers on replies render them
            rest = {name: value for name, value in rest.items() if name not in known}
            self.unread = unread_parts(rest, out["prompt"])
            if not {"answer", "tests", "completion", "chosen", "ground_truth"} & out.keys():
                self.look_for_answers(rest)
        return out

    def look_for_answers(self, rest: dict) -> None:
        """List the columns, or fields of objects, that may hold answers or tests; note responses to compare."""
        self.untaken, responses = [], compared(self.row)
        if responses:
            note = f"rows have responses to compare in {', '.join(responses)}, which no form reads"
            self.notes.append(f"{note}; for preferences, --map chosen=COLUMN rejected=COLUMN")
        for name, value in ((name, value) for name, value in rest.items() if name not in responses):
            cell = opened(value) if isinstance(opened(value), dict) else {}
            known = [f"{name}.{key}" for key in (*Names.ANSWER, *Names.TESTS) if not is_empty(cell.get(key))]
            self.untaken += known or [name] * isinstance(value, str | int | list | dict)


def compared(row: dict) -> list[str]:
    """Columns of several responses: response_a and response_b, chosen_x and rejected_x, a list `completions`."""
    filled = [name for name, value in row.items() if isinstance(value, str | list | dict) and not is_empty(value)]
    stems = {name: Names.COMPARED.sub(r"\1", name.lower()) for name in filled if Names.COMPARED.search(name.lower())}
    several = [name for name in stems if [*stems.values()].count(stems[name]) > 1]
    answers = row.get("completions")
    return several or ["completions"] * (isinstance(answers, list) and len(answers) > 1)


def check_pick(row: dict) -> None:
    """Raise BadRow for an answer, or a better completion, that only names one of several responses to compare."""
    names = {text.lower() for name in compared(row) for text in (name, name[-1])}
    for name in ("answer", "chosen"):
        if str(row.get(name)).lower() in names:
            got = f"{shown(row[name])}, which seems to name a response in another column"
            raise BadRow(name, got, "the text of the response", "copying it, or --drop for the other columns")


def as_prompts(shape: Shape) -> None:
    """A prompt, and what else `finish` finds; BadRow for a single message of a conversation."""
    for names in Names.MESSAGES_ALONE:
        if shape.row.keys() >= {*names}:
            got, advice = f"one message of a conversation ({', '.join(names)})", "--drop for these columns"
            raise BadRow(names[0], got, "the whole conversation in `messages`", advice)
    check_pick(shape.row)
    shape.prompt()


def as_math(shape: Shape) -> None:
    """A problem and its final answer, bare or in a worked solution; a short answer is preferred to a long text."""
    shape.prompt()
    row, names = shape.row, [name for name in Names.ANSWER if shape.name([name])]
    if not names:
        shape.take(Names.ANSWER, "an answer")
    short = [name for name in names[1:] if name not in ("label", "solution") and is_short(row[name])]
    if short and names[0] == "answer" and not is_short(row["answer"]) and not marks_answer(row["answer"]):
        shape.gold(short[0])
        shape.used.add("answer")
        shape.out["answer_text" if row.get("solution") is not None else "solution"] = row["answer"]
    else:
        shape.gold(names[0])
        taken, others = str(shape.out.get("answer")), [name for name in names[1:] if name != "solution"]
        others = [name for name in others if str(gold_of(str(row[name])) or row[name]).strip() != taken]
        shape.notes += [f"rows have another gold answer in {name}; {names[0]} is taken" for name in others]


def as_choices(shape: Shape) -> None:
    """A question with its choices, which go into the prompt, and the letter of the right one."""
    shape.prompt()
    if shape.choices is None:
        expected = "a column `choices` or `options`: a list of 2 to 26 texts, {text, label}, or {A: text}"
        raise BadRow("choices", "no choices", expected, "--map choices=COLUMN")
    pick_letter(shape)


def pick_letter(shape: Shape) -> None:
    """Fill in the letter of the right choice."""
    shape.out["answer"], name, notes = picked(
        shape.row, shape.choices, shape.facts.first_number, shape.facts.number_texts
    )
    shape.used.add(name)
    shape.notes += notes


def as_response(shape: Shape) -> None:
    if shape.name(Names.CHAT) and not shape.name(["prompt"]):
        as_conversation(shape)
        if "completion" not in shape.out:
            raise BadRow("messages", "no assistant turn at the end", "a conversation that ends with the assistant")
        return
    shape.prompt()
    name, value = shape.take(Names.RESPONSE, "a completion")
    shape.out["completion"] = as_reply(value, name, shape.out["prompt"])


def as_conversation(shape: Shape) -> None:
    """A conversation: a last assistant turn is the completion, what precedes it the prompt."""
    name, value = shape.take(Names.CHAT, "messages")
    shape.used.add("prompt")  # if it is there too, it repeats the first turn
    messages = read_messages(without_placeholder(value), name)
    check_order(messages, name)
    reply = [messages.pop()] if messages[-1]["role"] == "assistant" else None
    shape.set_prompt(messages, name)
    shape.add_passages(False)
    text = shape.row.get("solution")
    if reply:
        shape.out["completion"] = reply
        if marks_answer(text) and shape.row.get("answer") is None:
            shape.notes.append("rows mark a final answer in solution; for rewards, --kind math takes it as answer")
        return
    check_pick(shape.row)
    if gold := shape.name(Names.ANSWER if marks_answer(text) or names_value(text) else Names.GOLD):
        shape.gold(gold)  # in Tulu 3's data for verifiable rewards `ground_truth`, in ms-swift's `solution`


def as_preferences(shape: Shape) -> None:
    """A better and a worse completion, with the prompt in a column or as their common beginning."""
    _, chosen = shape.take(["chosen"], "the better completion")
    _, rejected = shape.take(["rejected"], "the worse completion")
    names = {*shape.row, *(key for cell in shape.row.values() if isinstance(cell, dict) for key in cell)}
    names |= {name[-1] for name in names if Names.COMPARED.search(name.lower())}  # response_a, response_1
    if {str(chosen), str(rejected)} <= names and not choices_of(shape.row):
        got = f"{shown(chosen)}, which seems to name a response in another column"
        advice = "copying both texts into `chosen` and `rejected`, or --drop for the other columns"
        raise BadRow("chosen", got, "the text of the response", advice)
    if shape.name(Names.PROMPT):
        shape.prompt()
    elif shape.name(Names.CHAT) and not (isinstance(chosen, list) and chosen[:1] == rejected[:1]):
        as_conversation(shape)  # ShareGPT's: two messages may follow
        if shape.out.pop("completion", None):
            raise BadRow("conversations", "a last assistant turn", "a conversation that chosen and rejected continue")
    else:
        shared, chosen, rejected = split_prompt(chosen, rejected)
        shape.set_prompt(shared, "chosen")
    pairs = (("chosen", chosen), ("rejected", rejected))
    better, worse = (as_reply(value, name, shape.out["prompt"]) for name, value in pairs)
    if better == worse:
        raise BadRow("rejected", "the same as chosen", "a worse completion")
    if type(better) is not type(worse):
        raise BadRow("rejected", f"{type(worse).__name__} beside {type(better).__name__}", "both in one form")
    shape.out["chosen"], shape.out["rejected"] = better, worse


def as_ours(shape: Shape) -> None:
    """A row that this script wrote: checked, otherwise unchanged."""
    shape.is_ours = True
    shape.out["prompt"] = as_prompt(shape.row["prompt"], "prompt")
    shape.used.add("prompt")


def as_verl(shape: Shape) -> None:
    """A row of verl's five columns, kept for --for verl; its ground truth becomes the answer or tests."""
    row, out = shape.row, shape.out
    row |= {name: opened(row[name]) for name in ("reward_model", "extra_info") if name in row}
    model, extra = row["reward_model"], row.get("extra_info")
    gold = model.get("ground_truth") if isinstance(model, dict) else None
    out["prompt"] = as_prompt(row["prompt"], "prompt")
    out["source"] = as_answer(row["data_source"], "data_source")
    shape.used |= {"prompt", "data_source"}
    if gold is None and not (isinstance(model, dict) and model.get("style") == "model"):
        raise BadRow("reward_model", shown(model), 'an object such as {"ground_truth": "42"}')
    if not isinstance(extra, dict | None):
        raise BadRow("extra_info", shown(extra), "an object", "storing it as an object instead of text")
    if gold not in (None, ""):
        out.update(ground_truth(gold, "reward_model.ground_truth", row))
    if extra and isinstance(extra.get("index"), int | str) and row.get("id") is None:
        out["id"] = str(extra["index"])
    for name in ("answer", "tests", "ground_truth", "source"):
        if name in out and row.get(name) is not None:  # a column of the row's own beside verl's
            out[f"column:{name}"] = row[name]
            shape.used.add(name)


FORMS = {
    "prompts": as_prompts,
    "conversations": as_conversation,
    "prompt_response": as_response,
    "preferences": as_preferences,
    "math": as_math,
    "choices": as_choices,
    "code": as_code,
    "ours": as_ours,
    "verl": as_verl,
}
