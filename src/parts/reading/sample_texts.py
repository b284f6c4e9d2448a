"""Logged completions: score, gold answer, stated answer and what it was paid."""

import json
import re
import statistics
from collections.abc import Callable
from dataclasses import dataclass, field

from parts.evaluating.paired_tests import share_gain
from parts.reading.logged_run import is_finite, names_correctness

GOLD_NAMES = (
    *("gold", "answer", "ground truth", "ground_truth", "solution", "target", "label", "reference_answer"),
    *("final_answer", "reference", "expected", "gts", "response", "output"),
)
# marked answers in completions: the first group that matches is the mark or its tag, the last one the answer
MARKED = re.compile(
    r"<(\w+)>([^<>]*)</\1>|\\(boxed)\s*\{((?:[^{}]|\{[^{}]*\})*)\}|(####)\s*([^\n]*)"
    r"|(?i:\b(answer(?: is|[:=]))\s*((?:(?!\\boxed|</?\w+>|####|\banswer(?: is|[:=])|[.!?](?:\s|$))[^\n])*))"
)
IN_SOURCE = re.compile(r"<\\?/?(\w+)>|(boxed)|(####)|(?i:\b(answer(?: is|:)))")  # marks in a reward's source
COMPLETIONS = {"completions", "completion", "solution_str", "response", "responses"}  # reward functions' argument
NUMBER = re.compile(r"(?<![\w.])[-−]?\$?\d[\d,]*(?:\.\d+)?(?:/\d+)?(?![\w])")


@dataclass(frozen=True)
class Text:
    """One logged completion; `right` is None if the gold answer is unknown."""

    id: str
    step: int
    kind: str
    prompt: str
    completion: str
    score: float | None
    gold: str | None = None
    right: bool | None = None
    finished: bool | None = None
    parts: dict = field(default_factory=dict)
    unscored: bool = False  # every reward function returned None

    @property
    def pay(self) -> float | None:
        """The reward for correctness: by the part named so, else the first; the score if there is at most one part."""
        if len(self.parts) < 2:
            return self.score
        return self.parts[next(filter(names_correctness, self.parts), next(iter(self.parts)))]

    def has_gold(self, gold: str | None = None) -> bool:
        """Whether the completion contains its gold answer (or `gold`); if the prompt does too, it must state it."""
        gold = gold or self.gold
        is_inside = bool(gold) and holds(self.completion, gold)
        return is_inside and (not holds(self.prompt, gold) or stated_answer(self.completion, gold) == gold)


def plain_text(value) -> str:
    """A text, or the content of the last message; other values as JSON."""
    if isinstance(value, list) and value:
        last = value[-1]
        value = last.get("content") if isinstance(last, dict) else last
    return value if isinstance(value, str) else "" if value is None else json.dumps(value, ensure_ascii=False)


def plain_math(text: str) -> str:
    r"""The text with LaTeX's \text{…} unwrapped and \frac{a}{b} as a/b."""
    text = re.sub(r"\\(?:text|textbf|mathrm|mathbf|mbox)\s*\{([^{}]*)\}", r"\1", text)
    return re.sub(r"\\[dt]?frac\s*\{([^{}]+)\}\s*\{([^{}]+)\}", r"\1/\2", text)


def simplest(answer: str) -> str:
    """Normalise an answer: numbers and fractions to decimal text, others to lower case without outer marks."""
    answer = plain_math(answer).strip().strip("$ *`()").rstrip(".").replace("−", "-")
    bare = re.sub(r"[,\s$]", "", answer)
    if ratio := re.fullmatch(r"(-?\d{1,15})/0*([1-9]\d{0,14})", bare):
        return f"{int(ratio[1]) / int(ratio[2]):.10g}"
    if re.fullmatch(r"-?\d+(\.\d+)?", bare):
        return f"{float(bare):.10g}" if "." in bare else str(int(bare)) if len(bare) < 400 else bare
    return answer.casefold()


def gold_of(row: dict) -> str | None:
    """The gold answer of a row, from the first of GOLD_NAMES that it has; of a worked solution the marked answer."""
    columns = {str(key).casefold(): value for key, value in row.items()}
    columns |= {str(key).casefold(): value for key, value in (row.get("columns") or {}).items()}
    if isinstance(columns.get("reward_model"), dict):
        columns |= columns["reward_model"]
    for name in GOLD_NAMES:
        value = columns.get(name)
        if isinstance(value, (str, int, float)) and not isinstance(value, bool) and str(value).strip():
            marked = marked_answers(str(value))
            gold = simplest(marked[-1][1] if marked else str(value))
            numbers = NUMBER.findall(gold)
            # a number with a unit counts as the number
            return simplest(numbers[0]) if len(numbers) == 1 and len(gold.split()) <= 3 else gold
    return None


def marked_answers(text: str) -> list[tuple[str, str]]:
    """(mark, answer) of every marked answer in a text; the mark of `<tag>…</tag>` is the tag's name."""
    matches = [[part for part in groups if part] for groups in MARKED.findall(text)]
    return [(groups[0].casefold(), groups[1].strip()) for groups in matches if len(groups) == 2]


def stated_answer(text: str, gold: str) -> str:
    """The last answer in a text: marked, else the last number if the gold is a number, else the last line."""
    marked = [answer for mark, answer in marked_answers(text) if mark not in ("think", "reasoning")]
    last = plain_math(marked[-1]) if marked else text.strip().rpartition("\n")[2]
    if not NUMBER.fullmatch(gold):  # a single marked answer that contains the gold counts as the gold
        return gold if len(marked) == 1 < len(gold) and holds(last, gold) else simplest(last)
    numbers = NUMBER.findall(last if marked else text)
    return simplest(numbers[-1] if numbers else last)


def holds(text: str, gold: str) -> bool:
    """Whether a text contains the gold answer as a separate word or number."""
    if re.fullmatch(r"-?\d[\d.]*", gold):
        numbers = NUMBER.findall(text) + re.findall(r"-?\d+", text)
        return any(simplest(number) == gold for number in numbers)
    return re.search(rf"(?<!\w){re.escape(gold)}(?!\w)", text.casefold()) is not None


def sample_texts(samples: list[dict], golds: dict[str, str]) -> list[Text]:
    """Samples with a completion as `Text`s, in the order of the log; `golds` maps prompts to gold answers."""
    texts = []
    for i, row in enumerate(samples):
        if not isinstance(row.get("completion"), (str, list)):
            continue
        completion, prompt = plain_text(row["completion"]), plain_text(row.get("prompt"))
        gold = gold_of({k: v for k, v in row.items() if k not in ("prompt", "completion")}) or golds.get(prompt)
        right = None if gold is None else stated_answer(completion, gold) == gold
        score, rewards = row.get("score"), row.get("rewards")
        score = float(score) if is_finite(score) else None
        parts = {k: float(v) for k, v in rewards.items() if is_finite(v)} if isinstance(rewards, dict) else {}
        step = int(float(row["step"])) if is_finite(row.get("step")) else 0
        finished = row.get("finished") if isinstance(row.get("finished"), bool) else None
        kind = str(row.get("kind", "train"))
        none = isinstance(rewards, dict) and bool(rewards) and all(v is None for v in rewards.values())
        texts.append(Text(f"{step}.{i}", step, kind, prompt, completion, score, gold, right, finished, parts, none))
    return texts


def some_of(texts: list[Text]) -> list[Text]:
    """At most 2,000 texts, evenly spaced: enough for a mean or a correlation."""
    return texts[:: 1 + len(texts) // 2000]


def grouped(texts: list[Text], key: Callable) -> list[list[Text]]:
    """Groups of texts with equal keys, in the order of the log."""
    groups: dict = {}
    for text in texts:
        groups.setdefault(key(text), []).append(text)
    return list(groups.values())


def source_marks(source: str) -> set[str]:
    """The answer marks that a reward's source, or a prompt, mentions."""
    return {part.casefold() for groups in IN_SOURCE.findall(source) for part in groups if part}


def repeats(text: str) -> float:
    """Share of repeated 6-character pieces in a text's first 1,000 characters; 0 for fewer than 30 characters."""
    text = text[:1000]
    pieces = [text[i : i + 6] for i in range(len(text) - 5)]
    return 1 - len(set(pieces)) / len(pieces) if len(text) >= 30 else 0.0


FEATURES = {  # what a reward may pay instead of the answer -> its amount in a completion
    "length": len,
    "tags": lambda text: len(re.findall(r"</?\w+>", text)),
    "digits": lambda text: sum(map(str.isdigit, text)),
    "repetition": repeats,
    "answers tried": lambda text: len(marked_answers(text)),
    "text after the answer": lambda text: len(re.split(r"</answer>|\\boxed\{[^{}]*\}|####\s*\S+", text)[-1].strip()),
}


def payment_by_feature(texts: list[Text]) -> dict[str, float]:
    """Correlation of score and each feature, both centred among equally right completions; 0 if one does not vary."""
    scored, paid = some_of([t for t in texts if t.score is not None]), {}

    def within(values: list[float]) -> list[float]:
        pairs = list(zip(values, (t.right for t in scored), strict=True))
        means = {kind: statistics.fmean(v for v, right in pairs if right is kind) for kind in {t.right for t in scored}}
        return [v - means[right] for v, right in pairs]

    scores = within([t.score for t in scored])
    for name, measure in FEATURES.items():
        amounts = within([float(measure(t.completion)) for t in scored])
        varied = len(scored) > 2 and max(amounts) > min(amounts) and max(scores) > min(scores)
        paid[name] = statistics.correlation(amounts, scores) if varied else 0.0
    return paid


def early_texts(texts: list[Text]) -> list[Text]:
    """The samples of the run's first third, before the policy drifts; all samples if these are fewer than 24."""
    steps = sorted({t.step for t in texts})
    early = [t for t in texts if t.step <= steps[len(steps) // 3]] if steps else []
    return early if len(early) >= 24 else texts


def scores_by_answer(texts: list[Text]) -> tuple[list[float], list[float]]:
    """The rewards for correctness of right and of wrong completions, of those with a known gold answer."""
    return tuple([t.pay for t in texts if t.right is kind and t.pay is not None] for kind in (True, False))


def right_gain(texts: list[Text]) -> tuple[float, float, float] | None:
    """(gain, low, high) of the share of right completions, between held-out evaluations, else thirds of training."""
    held_out, train = ([t for t in texts if t.kind == kind and t.right is not None] for kind in ("eval", "train"))
    graded = held_out if len({t.step for t in held_out}) > 1 else train
    steps = sorted({t.step for t in graded})
    third = 1 if graded is held_out else max(1, len(steps) // 3)
    shares = [[t for t in graded if t.step in part] for part in (steps[:third], steps[-third:])]
    if len(steps) < 2 or min(map(len, shares)) < 8:
        return None
    draws = [len({(t.step, t.prompt) for t in share}) for share in shares]  # a prompt's completions are alike
    return share_gain(*((statistics.fmean(t.right for t in x), n) for x, n in zip(shares, draws, strict=True)))
