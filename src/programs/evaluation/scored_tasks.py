"""Tasks of log-probs: perplexity, multiple choice."""

import math
import re
import string
from typing import ClassVar

from parts.data.prompts import encode_text
from parts.data.rows import check_unicode
from parts.evaluating.paired_tests import Values
from parts.foundation.messages import need
from programs.evaluation.tasks import Task

CHOICE_COLUMNS = ("choices", "options", "endings")
GOLD_COLUMNS = ("answer", "label", "answerKey", "gold", "correct", "answer_idx", "answer_index")


def text_windows(tokens: list[int], prefix: list[int], length: int, stride: int) -> list[tuple[list[int], list[int]]]:
    """Cut tokens into (context, scored) pairs for a model of `length` positions; every token is scored once.

    The first window is conditioned on `prefix`; each later one scores the next `stride` tokens, given as many tokens
    before them as fit. stride = length is lm-evaluation-harness's rolling window: one token of context, and a last
    window that looks back over a full one.
    """
    end = min(length, len(tokens))
    windows = [(prefix, tokens[:end])] if tokens else []
    while end < len(tokens):
        scored = min(stride, len(tokens) - end)
        end += scored
        windows.append((tokens[max(0, end - length - 1) : end - scored], tokens[end - scored : end]))
    return windows


class Perplexity(Task):
    """Log-probs of whole texts."""

    name = "perplexity"
    logprobs = True
    asks = False
    options: ClassVar[dict] = {"stride": 0, "column": ""}

    def check(self):
        stride = self.settings["stride"]
        windows = f"{stride} new tokens a window" if stride else "disjoint windows of the context with one token before"
        start = "each text is given BOS (end token without one) before the text as the tokenizer encodes it, so that a "
        start += "BOS of the tokenizer's own is scored, as lm-evaluation-harness does"
        self.definition = f"{start}; {windows}; words: re.split(r'\\s+'); bytes: UTF-8"

    def text(self, row: dict) -> str:
        names = [self.settings["column"]] if self.settings["column"] else ["text", "page", "content", "completion"]
        text = self.require(row, names)
        need(isinstance(text, str) and text, f"got {str(text)[:60]!r}; expected a non-empty text")
        check_unicode(text)
        return text

    def check_row(self, row):
        self.text(row)

    def requests(self, row: dict, model) -> list[tuple[list[int], list[int]]]:
        """(context, scored) token pairs of a row."""
        length, stride = model.max_length, self.settings["stride"] or model.max_length
        need(1 <= stride <= length, f"got stride {stride}; expected 1 to the context of {length} tokens")
        return text_windows(encode_text(model.tokenizer, self.text(row)), [model.prefix_id], length, stride)

    def score_logprobs(self, row, outs):
        text, sizes = self.text(row), {"nats": -math.fsum(out["logprob"] for out in outs)}
        sizes |= {"tokens": sum(out["count"] for out in outs), "words": len(re.split(r"\s+", text))}
        sizes["bytes"] = len(text.encode("utf-8", "replace"))
        return {"metrics": sizes, "extracted": None, "reason": ""}

    def values_of(self, records):
        sizes = {
            name: [record["metrics"][name] for (record,) in records] for name in ("nats", "tokens", "words", "bytes")
        }
        kinds = {"token_perplexity": "tokens", "word_perplexity": "words", "byte_perplexity": "bytes"}
        bits = Values([x / math.log(2) for x in sizes["nats"]], sizes["bytes"], False, False)
        perplexities = {name: Values(sizes["nats"], sizes[kind], True, False) for name, kind in kinds.items()}
        return perplexities | {"bits_per_byte": bits}


class MultipleChoice(Task):
    """The most likely of the choices."""

    name = "multiple_choice"
    logprobs = True
    options: ClassVar[dict] = {"template": "auto"}
    choices_of: ClassVar[dict] = {"template": ("auto", "qa", "plain")}
    definition = "acc: the highest log-prob; acc_norm: the highest log-prob per character of the choice"

    reading = "text"  # of an answer that could be the text of one choice and the place of another

    def choices_and_readings(self, row: dict) -> tuple[list[str], dict[str, int]]:
        """The choices, and the index of the right one by each reading of the answer; one where labels say which."""
        choices, labels = self.require(row, CHOICE_COLUMNS), None
        if isinstance(choices, dict) and "text" not in choices:  # MedQA: {"A": …, "B": …}
            labels, choices = list(choices), list(choices.values())
        elif isinstance(choices, dict):  # ARC: {"text": […], "label": […]}
            choices, labels = choices["text"], choices.get("label")
        good = isinstance(choices, list) and len(choices) > 1 and all(isinstance(c, str) and c for c in choices)
        need(good, f"got choices {str(choices)[:80]}; expected a list of two texts or more")
        gold = self.require(row, GOLD_COLUMNS)
        gold = gold[0] if isinstance(gold, list) and len(gold) == 1 else gold
        labels = [*map(str, labels or ())]
        if str(gold) in labels:
            return choices, {"text": labels.index(str(gold)), "place": labels.index(str(gold))}
        place = gold if isinstance(gold, int) and not isinstance(gold, bool) else -1
        if isinstance(gold, str):
            place = int(gold) if gold.isdecimal() else string.ascii_uppercase.find(gold) if len(gold) == 1 else -1
        indices = {"text": choices.index(gold) if gold in choices else -1, "place": place}
        indices = {reading: index for reading, index in indices.items() if 0 <= index < len(choices)}
        expected = "expected an index from 0, a letter, or the text"
        need(indices, f"got answer {gold!r} for {len(choices)} choices; {expected}")
        return choices, indices

    def choices(self, row: dict) -> tuple[list[str], int]:
        """The choices and the index of the right one."""
        choices, indices = self.choices_and_readings(row)
        return choices, indices.get(self.reading, next(iter(indices.values())))

    def decide(self, placed):
        """Read answers such as "0" the one way that fits all rows: as the text of a choice, or its place."""
        indices = [self.choices_and_readings(row)[1] for _, row in placed]
        unsure = next((i for i, of_row in enumerate(indices) if len({*of_row.values()}) > 1), None)
        if unsure is None:
            return
        fitting = [reading for reading in ("text", "place") if all(reading in of_row for of_row in indices)]
        place, row = placed[unsure]
        texts, gold = self.choices_and_readings(row)[0], self.require(row, GOLD_COLUMNS)
        got = f"{place}: got answer {gold!r} for choices {texts}, the text of one and the place of another"
        need(len(fitting) == 1, f"{got}; expected a file that allows one reading; try numbers, not strings, for places")
        (self.reading,) = fitting

    def unused(self, row):
        return {name: value for name, value in row.items() if name not in CHOICE_COLUMNS}

    def target(self, row):
        choices, gold = self.choices(row)
        return choices[gold]

    def check_row(self, row):
        self.choices(row)

    def score_logprobs(self, row, outs):
        (choices, gold), logprobs = self.choices(row), [out["logprob"] for out in outs]
        picked = max(range(len(choices)), key=logprobs.__getitem__)
        normed = [x / len(c) for x, c in zip(logprobs, choices, strict=True)]
        picked_norm = max(range(len(choices)), key=normed.__getitem__)
        metrics = {"acc": float(picked == gold), "acc_norm": float(picked_norm == gold)}
        record = {"metrics": metrics, "extracted": choices[picked], "logprobs": logprobs, "gold": choices[gold]}
        return record | {"reason": "right" if picked == gold else f"not {choices[gold]!r}"}
