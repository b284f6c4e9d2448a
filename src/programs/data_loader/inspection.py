"""Statistics of a data set."""

import array
import itertools
import math
from collections import Counter

from programs.data_loader.bad_rows import shown
from programs.data_loader.batches import prompt_ids
from programs.data_loader.row_reader import digest


def percentiles(values) -> dict[str, int]:
    """p50, p95 and the largest of some lengths; each is a length that occurs."""
    ordered = sorted(values)
    ranks = {"p50": math.ceil(0.5 * len(ordered)) - 1, "p95": math.ceil(0.95 * len(ordered)) - 1, "max": -1}
    return {name: ordered[rank] for name, rank in ranks.items()} if ordered else {}


class Stats:
    """What --inspect shows about good rows; it keeps lengths and digests of rows, not the rows."""

    def __init__(self, tokenizer=None):
        self.tokenizer = tokenizer
        self.lengths = {name: array.array("q") for name in ("prompt_chars", "prompt_tokens", "completion_chars")}
        self.files, self.sources, self.fields, self.types, self.examples = Counter(), Counter(), Counter(), {}, []
        self.rows, self.prompts, self.place_sets, self.again, self.conflicts = set(), {}, {}, 0, set()

    def add(self, row: dict, file: str) -> None:
        """Take in a row of an input."""
        self.sources[row["source"]] += 1
        for name, value in row.items():
            self.fields[name] += 1
            self.types.setdefault(name, set()).add(type(value).__name__)
        self.lengths["prompt_chars"].append(sum(len(message["content"]) for message in row["prompt"]))
        if self.tokenizer:
            self.lengths["prompt_tokens"].append(len(prompt_ids(self.tokenizer, row)))
        for name in ("completion", "chosen"):
            if name in row:
                said = [row[name]] if isinstance(row[name], str) else [message["content"] for message in row[name]]
                self.lengths["completion_chars"].append(sum(map(len, said)))
        gold = [row.get(name) for name in ("answer", "tests", "completion", "chosen", "rejected")]
        prompt, gold = digest(row["prompt"]), digest(gold)
        whole = digest([prompt.hex(), gold.hex()])
        self.again += whole in self.rows
        self.rows.add(whole)
        first, places = self.prompts.get(prompt, (gold, frozenset()))
        places |= {(file, row["source"])}
        self.prompts[prompt] = first, self.place_sets.setdefault(places, places)  # one object for all that are equal
        self.files[file] += 1
        if gold != first:
            self.conflicts.add(prompt)
        if len(self.examples) < 3:
            self.examples.append({name: shown(value) for name, value in row.items()})

    def overlaps(self) -> dict[str, int]:
        """Prompts that stand in two inputs, or in two sources of one input."""
        found, which = Counter(), int(len(self.files) < 2)
        for _, places in self.prompts.values():
            found.update(" & ".join(pair) for pair in itertools.combinations(sorted({p[which] for p in places}), 2))
        return dict(found)

    def report(self) -> dict:
        """All of it as JSON."""
        fields = {name: {"rows": count, "types": sorted(self.types[name])} for name, count in self.fields.items()}
        return {
            "rows": self.sources.total(),
            "sources": dict(self.sources),
            "fields": fields,
            "lengths": {name: percentiles(values) for name, values in self.lengths.items() if values},
            "duplicates": self.again,
            "prompts_with_other_answers": len(self.conflicts),
            "overlap": self.overlaps(),
            "examples": self.examples,
        }
