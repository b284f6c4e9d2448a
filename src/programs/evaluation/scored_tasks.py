"""Tasks of log-probs: perplexity, multiple choice."""

import math
import re
from typing import ClassVar

from parts.data.prompts import encode_text
from parts.data.rows import check_unicode
from parts.evaluating.paired_tests import Values
from parts.foundation.messages import UserError, need
from programs.evaluation.rows import sibling
from programs.evaluation.tasks import Task


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

    numbering = (None, frozenset())  # what the rows show of their numbers

    def decide(self, rows):
        """Find out what all rows together show: whether numbers count from 0 or 1, or are the texts of choices."""
        loader = sibling("data_loader")
        self.numbering = loader.numbering_of(map(loader.known_names, rows))

    def choices(self, row: dict) -> tuple[list[str], int]:
        """The choices and the index of the right one, as data_loader.py reads them."""
        loader = sibling("data_loader")
        row = loader.known_names(row)
        try:
            choices = loader.choices_of(row)
            got = f"task {self.name} got columns {', '.join(row)}; expected one of choices, options, or one for each"
            need(choices, f"{got} choice; try data_loader.py, with --map choices=COLUMN answer=COLUMN")
            return choices.texts, loader.right_choice(row, choices, *self.numbering)[1]
        except loader.UserError as error:
            raise UserError(f"{error}{' (flags of data_loader.py)' * ('--' in str(error))}") from None

    def unused(self, row):
        used = sibling("data_loader").choice_columns(row)
        return {name: value for name, value in row.items() if name not in used}

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
