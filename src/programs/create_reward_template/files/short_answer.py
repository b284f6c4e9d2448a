"""Pay for the right short answer, and only that."""

import re
import unicodedata

from contract import GOLD
from final_answer import final_answer

REMARK = re.compile(  # a further sentence: "Paris. It lies on the Seine."; no second answer, no name after a title
    r"(?:(?<=\w{3})|(?<=\d)|(?<=\b[Nn]o))[*_]{0,4}\.[*_]{0,4}\s+(?=(?!I\b)[A-Z][\w'’]* [a-z])"
    r"(?!(?i:.{0,300}(?:\b(?:or|also|but|not?|wait|maybe|perhaps|possibly|could|might|however|actually|wrong|incorrect"
    r"|false|right|correct|rather|otherwise|alternatively|instead|either|second|mind|scratch|ignore|another)\b"
    r"|n['’]t\b))).*"
)

REASON = re.compile(  # not two explanations, each of one option, nor one that takes the answer back
    r"(?is),? because\b[^.]*$|\n[\s#*_]{0,9}(explanation|reason(?:ing)?|rationale|why)\b"
    r"(?!.{0,2000}(?:\n[\s#*_]{0,9}\1|\bwait|\bnot sure|\balso (?:correct|right))\b).*"
)
YES_OR_NO = re.compile(r"(?is)\A[\s*_]*(yes(?!.*\bno\b)|no(?!.*\byes\b))[*_]*[,.;:!]\s.*")  # Yes, both are American.


def normal(text) -> str:
    """Lower case without articles, extra white space and the punctuation around words."""
    text = unicodedata.normalize("NFC", str(text).casefold()).translate(str.maketrans("’–−", "'--"))
    text = re.sub(r"(?<=[^\W\d_])-(?=[^\W\d_])", " ", text)  # a hyphen, no minus
    text = re.sub(r"(?<=\b[^\W\d_])\.(?=[^\W\d_]\b)", "", text)  # U.S.A.
    words = [word.strip(".,;:!?\"'“”()[]{}*_`") for word in text.split()]
    kept = [word for word in words if word not in ("a", "an", "the", "")]
    return " ".join(kept or filter(None, words))  # the answer can be A


def score(text: str, row: dict) -> float | None:
    """1 if the final answer is a gold one, else 0; None without a gold answer."""
    gold = row.get(GOLD)
    golds = {normal(one) for one in (gold if isinstance(gold, list) else [gold]) if one is not None} - {""}
    final = final_answer(text)
    short = (final, REMARK.sub("", final), REASON.sub("", final), YES_OR_NO.sub(r"\1", final))
    answers = {normal(answer) for answer in short}
    return float(bool(answers & golds)) if golds else None


CASES = [  # (completion, columns of the row, score)
    ("Paris", {"gold_column": "Paris"}, 1.0),
    ("I looked it up. The answer is the Eiffel-Tower.", {"gold_column": ["eiffel tower", "la tour Eiffel"]}, 1.0),
    ("<think>London?</think> <answer>Paris</answer>", {"gold_column": "paris"}, 1.0),
    ("The U.S.A.", {"gold_column": ["USA", "United States"]}, 1.0),
    ("“O’Neill”", {"gold_column": "O'Neill"}, 1.0),
    ("The wrong answer is Paris.", {"gold_column": "Paris"}, 0.0),
    ("**Paris**\n\n**Explanation:** Lyon is not.", {"gold_column": "Paris"}, 1.0),
    ("**Yes**, both are American.", {"gold_column": "yes"}, 1.0),
    ("Yes, no, maybe", {"gold_column": "yes"}, 0.0),
    ("Torino, Milano", {"gold_column": "Torino"}, 0.0),
    ("London, Paris, Rome", {"gold_column": "Paris"}, 0.0),
    ("<answer>Paris</answer><answer>Rome</answer>", {"gold_column": "Paris"}, 0.0),
    ("<think>Paris", {"gold_column": "Paris"}, 0.0),
    ("", {"gold_column": "Paris"}, 0.0),
    ("(a)", {"gold_column": "A"}, 1.0),
    ("5", {"gold_column": "-5"}, 0.0),
    ("Paris", {"gold_column": None}, None),
]
