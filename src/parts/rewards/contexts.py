"""What around a number, a box or a mark changes what it says: 5 million, -\\boxed{5}, "the wrong answer is 5"."""

import functools
import itertools
import re
from fractions import Fraction

from parts.data.answer_marks import BOX, boxes_in
from parts.data.stated_answers import marks

_SCALES = (  # a size and the words that multiply the number before them by it
    "12 dozen|100 hundred 백|1e4 万 萬 만|1e5 lakh लाख|1e7 crore करोड़|1e8 亿 億 억|1e12 trillion|1e15 quadrillion"
    "|1e3 thousand tausend mille tsd mil mila duizend tusen tysiąc tysiące tysięcy ribu nghìn ngàn"
    " тыс тысяча тысячи тысяч हज़ार हजार พัน 천 千"
    "|1e6 million millionen miljon miljoner millone mio mln milione milioni milhão milhõe millón milyon juta triệu"
    " млн миллион миллиона миллионов ล้าน"
    "|1e9 billion milliard milliarde milliarden miljard miljarder bn mrd млрд миллиард миллиарда миллиардов"
    "|1/5 fifths|1/6 sixths|1/7 sevenths|1/8 eighths|1/9 ninths|1/10 tenths|1/12 twelfths|1/100 hundredths"
    "|1/1000 thousandths"
)
SCALE_WORDS = {word: Fraction(size) for size, *words in map(str.split, _SCALES.split("|")) for word in words}
_BEFORE_BOX = re.compile(  # a sign (not a bullet) or a negation right before a box
    r"(?i)(?:(?<![^\s${(=])[-−](?:\\,)?|[=(] *[-−] *|\\pm *|(?:\b(?:not|cannot|nicht)|n['’]t|不是)(?: be)?[ *$(]*)\Z"
)
_AFTER_BOX = re.compile(  # a power of ten or a scale right after a box (a dozen may be what is counted); another choice
    r"(?i)[ \t$]*(?:(?:\\times|\\cdot|[x×·]) *10\^(?:\{[^{}]*\}|\d+)|or[\s$(]*(?-i:[A-J])\b"
    rf"|(?:{'|'.join(word for word in SCALE_WORDS if word != 'dozen')})s?(?![\w-]))"
)
_AFTER_NUMBER = re.compile(  # after a box with digits: another number, a denial (a choice may be what is wrong)
    r"(?i)[\s$]*(?:or[\s$]*\d+\$?\.?(?:\n|\Z)|is (?:wrong|incorrect|not (?:the )?(?:correct|right|answer)))"
)
_DENIED = re.compile(  # before "answer is"
    r"(?i)\b(?:if|whether|unless|suppose|supposing|assume|assuming|wrong|incorrect|false|not (?:true|sure)|se|si|если"
    r"|falsche|fausse|mauvaise|fel|felaktiga?t?|forkerte?|feil|błędna|nieprawidłowa|неправильный|неверный|yanlış)"
    r"(?: that)?(?: (?:the|an?|my|our|la))?(?: (?:correct|right|final|best))?[*_ ]*\Z"
)
_CHECKED = re.compile(  # before "the answer:", whose check follows
    r"(?i)\b(?:(?:double[- ]?|re-?)?check(?:ing)?|verify(?:ing)?|test(?:ing)?)[*_ ]+(?:the|this|that|my|our|your)"
    r"(?: (?:correct|right|final))?[*_ ]*\Z"
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
    """Contents of the outermost boxes, with what right before or after a box changes; None if one is not closed.

    >>> stated_boxes("$-\\\\boxed{5}$"), stated_boxes("\\\\boxed{5} million"), stated_boxes("not \\\\boxed{5}")
    (['-5'], ['5 million'], ['not 5'])
    """
    boxes, at = boxes_in(text), 0
    for i, content in enumerate(boxes or ()):
        box = BOX.search(text, at)
        at = box.end() + (len(content) + 1) * box[0].endswith("{")
        before, after = text[max(0, box.start() - 60) : box.start()], text[at : at + 60]
        after = _AFTER_BOX.match(after) or (content.isdigit() and _AFTER_NUMBER.match(after))
        before = _BEFORE_BOX.search(before)
        if (before or after) and not content.isalnum():
            content = f"({content})"
        boxes[i] = (before[0] if before else "") + content + (after[0] if after else "")
    return boxes


@functools.lru_cache(maxsize=8)
def _states_once(text: str) -> bool:
    """Whether a text has one mark and no box."""
    return not BOX.search(text) and len([*itertools.islice(marks(text), 2)]) == 1


def is_denied(text: str, mark: re.Match) -> bool:
    """Whether a mark states no answer: "the wrong answer is", "if the answer is", "check the answer:"."""
    before = text[max(0, mark.start() - 60) : mark.start()]
    names = re.fullmatch(r"\w+(?: for \w+)?[^\w.]+", mark[0])  # no verb: "the answer for x = 3: 2x = 6"
    checked = names and _CHECKED.search(before)
    return bool(_DENIED.search(before) or (checked and not _states_once(text)))


def chosen(answer: str) -> str:
    """The answer in "not 5 but 6" or "6, not 5"; other texts as they are.

    >>> chosen("not 5 but 6"), chosen("6, not 5"), chosen("not 5")
    ('6', '6', 'not 5')
    """
    return _NOT_AFTER.sub(r"\1", _NOT_BEFORE.sub("", answer))
