"""Text that changes a number, a box or an answer mark beside it: 5 million, -\\boxed{5}, "the wrong answer is 5"."""

import re
from fractions import Fraction

from parts.data.answer_marks import BOX, boxes_in
from parts.data.stated_answers import NEGATED, SCALES

SCALE_WORDS = SCALES | {  # with fractions, and words of more languages
    **{word: Fraction(1, n) for n, word in enumerate("fifths sixths sevenths eighths ninths tenths".split(), 5)},
    **{"twelfths": Fraction(1, 12), "hundredths": Fraction(1, 100), "thousandths": Fraction(1, 1000)},
    **dict.fromkeys("tsd mil mila duizend tusen tysiąc tysiące tysięcy ribu nghìn ngàn".split(), 1000),
    **dict.fromkeys("тыс тысяча тысячи тысяч हज़ार हजार พัน 천 千".split(), 1000),
    **dict.fromkeys("mio mln milione milioni milhão milhõe millón milyon juta triệu".split(), 10**6),
    **dict.fromkeys("млн миллион миллиона миллионов ล้าน".split(), 10**6),
    **dict.fromkeys("bn mrd млрд миллиард миллиарда миллиардов".split(), 10**9),
    **{"백": 100, "लाख": 10**5, "करोड़": 10**7, "억": 10**8, "quadrillion": 10**15},
}
_BEFORE_BOX = re.compile(  # a factor, a sign (not a bullet) or a command right before a box; a negation
    r"(?i)(?:\d|(?:^|(?<=[\s${(=]))[-−](?:\\,)?|[=(] *[-−] *|\\pm *|\S* ?\\(?:cdot|times) *"
    r"|\\(?:sqrt|[dt]?frac(?:\{[^{}]*\})?)\s*\{"
    rf"|(?:{NEGATED}|\bcannot|\bnever|\bneither) *(?:be|equal(?: to)?|that|是|为)?[ *$(]*)$"
)
_AFTER_BOX = re.compile(  # digits, an operation or a scale right after a box; an alternative, a denial
    r"(?i)(?:[.,e]|\\[,;!]|\{,\})?\d[\d.,]*|[ixyz](?!\w)|[ \t]*(?:\^\s*\{?\s*[-\d]|/\s*(?:[\d(]|\\(?!text|mathrm))"
    r"|\\(?:times|cdot|pm|div|pi|sqrt|frac)\b|[x×·±+-]\s?\d)[^\s$]*(?: ?\d[^\s$]*)?"
    rf"|[ \t$]*(?:{'|'.join(SCALE_WORDS)})s?(?![^\W\d_])"
    r"|[\s$,(*]{0,4}(?:or|oder|ou|或者?)\s*(?:(?:maybe|perhaps|possibly)\s+)?[$*(]*(?:-?\d|(?-i:[A-J])\b)[^.\n]*"
    r"|[\s$)*]{0,3}is(?: wrong| incorrect| false|(?: not|n['’]t) (?:(?:the|a|my) )?(?:correct|right|final|answer))"
)
_DENIED = re.compile(  # before "answer is"
    r"(?i)\b(?:if|whether|unless|suppos(?:e|ing)|assum(?:e|ing)|(?<!no )(?<!without )doubt|wrong|incorrect|false"
    r"|not (?:true|sure))(?:[*_ ]+that)?(?:[*_ ]+(?:the|an?|my|our))?(?:[*_ ]+(?:correct|right|final|best))?[*_ ]*$"
)
_NOT_BEFORE = re.compile(  # before the answer: the one that it is not
    r"(?i)^[\s*]*(?:(?:not|nicht)\b|不是)[^.\n。]{1,40}?(?:\b(?:but|sondern)\b|[，,]?\s*而是|, it(?:['’]s| is)\b)\s*"
    r"|^[^.\n。]{1,40}?(?:[가이] 아니라|ではなく)[\s、]*"
)
_NOT_AFTER = re.compile(
    r"^([\s*$(]*(?:-?\d(?:[\d.,/]*\d)?|[A-J])[)*$]*)"
    r"(?:,? (?:(?:and )?not|instead of|rather than) |[，,]不是)[*$(]*(?:-?\d|[A-J]\b).*"
)


def stated_boxes(text: str) -> list[str] | None:
    """Contents of the outermost boxes, with adjacent text that changes them; None if a box is not closed.

    >>> stated_boxes("$-\\\\boxed{5}$"), stated_boxes("\\\\boxed{5} million"), stated_boxes("not \\\\boxed{5}")
    (['-5'], ['5 million'], ['not 5'])
    """
    boxes, at = boxes_in(text), 0
    for i, content in enumerate(boxes or ()):
        box = BOX.search(text, at)
        at = box.end() + (len(content) + 1) * box[0].endswith("{")
        before, after = text[max(0, box.start() - 60) : box.start()], text[at : at + 60]
        blank = re.match(r"[\s}]*=", after)  # 3 \cdot \boxed{5} = 15
        before, after = None if blank else _BEFORE_BOX.search(before), _AFTER_BOX.match(after)
        if (before or after) and not content.isalnum():
            content = f"({content})"
        boxes[i] = (before[0] if before else "") + content + (after[0] if after else "")
    return boxes


def is_denied(text: str, mark: re.Match) -> bool:
    """Whether a mark states no answer: "the wrong answer is", "if the answer is"."""
    return _DENIED.search(text[max(0, mark.start() - 60) : mark.start()]) is not None


def chosen(answer: str) -> str:
    """The answer in "not 5 but 6" or "6, not 5"; other texts as they are.

    >>> chosen("not 5 but 6"), chosen("6, not 5"), chosen("not 5")
    ('6', '6', 'not 5')
    """
    return _NOT_AFTER.sub(r"\1", _NOT_BEFORE.sub("", answer))
