"""Samples as causes read them: text, score, gold, and what a completion states and is paid for."""

import json
import math
import re
import statistics
from dataclasses import dataclass, field

from parts.reading.trends import repeats

GOLD_NAMES = (
    *("gold", "answer", "ground truth", "ground_truth", "solution", "target", "label", "reference_answer"),
    *("final_answer", "reference", "expected", "gts", "response", "output"),
)
MARKS = {  # how a completion marks its answer: what matches it, what a reward's source has of it
    "####": (r"####\s*([^\n]*)", ("####",)),
    "\\boxed{}": (r"\\boxed\s*\{([^{}]*(?:\{[^{}]*\}[^{}]*)*)\}", ("boxed",)),
    "<answer>": (r"<answer>(.*?)</answer>", ("<answer>",)),
    "[…]": (r"(?<!\w)\[([^\[\]\n]{1,40})\]", (r"\[(", r"\[\s*(")),
    "answer is": (r"(?i)\banswer(?: is)?\s*[:=]?\s*([^\n]*)", ("answer is", "Answer:", "answer:", "ANSWER")),
}
MARK_FORMS = ("{}", "#### {}", "\\boxed{{{}}}", "<answer>{}</answer>", "The answer is {}.")
NUMBER = re.compile(r"(?<![\w.])[-−]?\$?\d[\d,]*(?:\.\d+)?(?:/\d+)?(?![\w])")


@dataclass(frozen=True)
class Text:
    """One logged completion; `right` is None where the gold answer is not known."""

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


def plain_text(value) -> str:
    """A text, or the last message's content of messages."""
    if isinstance(value, list) and value:
        last = value[-1]
        value = last.get("content") if isinstance(last, dict) else last
    return value if isinstance(value, str) else "" if value is None else json.dumps(value, ensure_ascii=False)


def simplest(answer: str) -> str:
    """An answer without marks, signs of money, separators of thousands and a final point."""
    answer = answer.strip().strip("$ *`").rstrip(".").replace("−", "-")
    bare = re.sub(r"[,\s$]", "", answer)
    if re.fullmatch(r"-?\d+(\.\d+)?", bare):
        return f"{float(bare):.10g}" if "." in bare else str(int(bare)) if len(bare) < 400 else bare
    return answer.casefold()


def gold_of(row: dict) -> str | None:
    """The gold answer of a row, by its columns' names; worked solutions give what they mark."""
    columns = {str(key).casefold(): value for key, value in row.items()}
    columns |= {str(key).casefold(): value for key, value in (row.get("columns") or {}).items()}
    if isinstance(columns.get("reward_model"), dict):
        columns |= columns["reward_model"]
    for name in GOLD_NAMES:
        value = columns.get(name)
        if isinstance(value, (str, int, float)) and not isinstance(value, bool) and str(value).strip():
            text = str(value)
            marked = [stated for mark in ("####", "\\boxed{}", "<answer>") for stated in marked_answers(text, mark)]
            return simplest(marked[-1] if marked else text)
    return None


def marked_answers(text: str, mark: str) -> list[str]:
    """What stands behind or inside a mark, each time."""
    return [match.strip() for match in re.findall(MARKS[mark][0], text, re.DOTALL if "<" in mark else 0)]


def stated_answer(text: str, numeric: bool) -> str:
    """The answer that a completion states last: marked, else the last number or the last line."""
    for mark in ("<answer>", "\\boxed{}", "####", "answer is"):
        marked = marked_answers(text, mark)
        if marked:
            inner = NUMBER.findall(marked[-1]) if numeric else []
            return simplest(inner[0] if inner else marked[-1])
    numbers = NUMBER.findall(text) if numeric else []
    return simplest(numbers[-1] if numbers else text.strip().rpartition("\n")[2])


def holds(text: str, gold: str) -> bool:
    """Whether a gold answer stands anywhere in a text, as a word or number of its own."""
    if re.fullmatch(r"-?\d[\d.]*", gold):
        return any(simplest(number) == gold for number in NUMBER.findall(text)) or gold in {
            simplest(part) for part in re.findall(r"-?\d+", text)
        }
    return re.search(rf"(?<!\w){re.escape(gold)}(?!\w)", text.casefold()) is not None


def sample_texts(samples: list[dict], golds: dict[str, str]) -> list[Text]:
    """The samples that have a completion, in the order of the log; `golds` are those of --data by prompt."""
    texts = []
    for i, row in enumerate(samples):
        completion = row.get("completion")
        if not isinstance(completion, (str, list)):
            continue
        completion, prompt = plain_text(completion), plain_text(row.get("prompt"))
        gold = gold_of({k: v for k, v in row.items() if k not in ("prompt", "completion")}) or golds.get(prompt)
        right = None if gold is None else stated_answer(completion, bool(NUMBER.fullmatch(gold))) == gold
        score, rewards = row.get("score"), row.get("rewards")
        parts = {k: float(v) for k, v in rewards.items() if is_real(v)} if isinstance(rewards, dict) else {}
        step = int(row["step"]) if is_real(row.get("step")) else 0
        texts.append(
            Text(
                id=f"{step}.{i}",
                step=step,
                kind=str(row.get("kind", "train")),
                prompt=prompt,
                completion=completion,
                score=float(score) if is_real(score) else None,
                gold=gold,
                right=right,
                finished=row.get("finished") if isinstance(row.get("finished"), bool) else None,
                parts=parts,
            )
        )
    return texts


def is_real(value) -> bool:
    """Whether a value is a finite number."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def source_marks(source: str) -> set[str]:
    """The marks that a reward's source names."""
    return {mark for mark, (_, words) in MARKS.items() if any(word in source for word in words)}


def asked_marks(texts: list[Text]) -> set[str]:
    """The marks that most prompts ask for."""
    words = {"####": "####", "\\boxed{}": "boxed", "<answer>": "<answer>"}
    return {m for m, word in words.items() if texts and sum(word in t.prompt for t in texts) * 2 > len(texts)}


FEATURES = {  # what a reward may pay in place of the answer: how much of it a completion has
    "length": len,
    "tags": lambda text: len(re.findall(r"</?\w+>", text)),
    "digits": lambda text: sum(map(str.isdigit, text)),
    "repetition": repeats,
    "answers tried": lambda text: sum(len(marked_answers(text, mark)) for mark in MARKS),
    "text after the answer": lambda text: len(re.split(r"</answer>|\\boxed\{[^{}]*\}|####\s*\S+", text)[-1].strip()),
}


def correlation(x: list[float], y: list[float]) -> float:
    """Pearson's correlation; 0 where one of them does not vary."""
    if len(x) < 3 or max(x) == min(x) or max(y) == min(y):
        return 0.0
    return statistics.correlation(x, y)


def within_classes(values: list[float], classes: list) -> list[float]:
    """Values less the mean of their class."""
    means = {c: statistics.fmean(v for v, k in zip(values, classes, strict=True) if k == c) for c in {*classes}}
    return [v - means[c] for v, c in zip(values, classes, strict=True)]


def payment_by_feature(texts: list[Text]) -> dict[str, float]:
    """Correlation of score and each feature among completions that are equally right."""
    scored = [t for t in texts if t.score is not None]
    classes = [t.right for t in scored]
    scores = within_classes([t.score for t in scored], classes) if scored else []
    paid = {}
    for name, measure in FEATURES.items():
        amounts = [float(measure(t.completion)) for t in scored]
        paid[name] = correlation(within_classes(amounts, classes), scores) if scored else 0.0
    return paid


def shares_by_answer(texts: list[Text]) -> tuple[list[float], list[float]]:
    """Scores of right completions, and of wrong ones, where the gold answer is known."""
    scored = [t for t in texts if t.score is not None and t.right is not None]
    return [t.score for t in scored if t.right], [t.score for t in scored if not t.right]
