"""Names of self-written loops: what the words of a name say of a log's column or a sample's."""

import itertools
import re

from parts.reading.log_reading import FIGURES, ODD_KEYS, common_name, names_step, whole_number
from parts.reading.logged_run import LoggedRun

KINDS = {  # kind of a word -> words that self-written loops use, in the singular
    "step": "step iteration iter it update upd round cycle episode t schritt runde",
    "epoch": "epoch ep epoche",
    "score": "score reward rew r return ret point pay paid payoff utility belohnung lohn punkte ertrag",
    "right": "right correct acc accuracy solved solve pass exact em success richtig korrekt genauigkeit",
    "held": "dev val valid validation test held heldout holdout eval evaluation unseen prüf pruef",
    "length": "length len word token tok char länge laenge wörter woerter wort zeichen",
    **{"spread": "std sd stdev", "sum": "sum total cum cumulative seen summe", "kl": "kl", "lr": "lr"},
    **{"entropy": "entropy", "truncated": "truncated"},
    **{"gold": "gold want wanted expected truth target", "completion": "completion response resp output reply antwort"},
    "prompt": "prompt question ask query problem task input instruction frage aufgabe q",
    "": "mean avg average train training out set rate frac share pct percent the of mittel mittlere quote",
    "other": "min max best loss err error coef weight scale limit budget baseline time sec second ms hour context id "
    "idx index row item norm clip ratio per count n num value code run seed experiment exp trial variant lauf",
}
KIND = {word: kind for kind, words in KINDS.items() for word in words.split()}
FITS = {  # figure of --columns or text of a sample -> kinds of its words; of several, the first that a file has counts
    **{"step": ("step", "epoch"), "reward": ("score", "score sum"), "reward_std": ("score spread",)},
    **{"accuracy": ("held right", "held score", "held"), "length": ("length", "completion length")},
    **{name: (name,) for name in ("kl", "lr", "entropy", "truncated", "prompt", "completion")},
    "gold": ("gold", "gold right", "gold completion"),
}
OF_RL = {"kl", "entropy", "length", "truncated", "reward_std"}  # no table of matches or of boosting has them


def words_of(name: str) -> list[str]:
    """The words of a name in camelCase, snake_case or with other signs; two known words may be written as one."""
    words, name = [], re.sub(r"(?<=[^\W_A-Z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", " ", name)
    for word in re.findall(r"[^\W\d_]+", name.lower()):
        word = word if word in KIND else word.removesuffix("s")
        halves = [(word[:i], word[i:]) for i in range(2, len(word) - 1) if {word[:i], word[i:]} <= KIND.keys()]
        words += halves[0] if halves and word not in KIND else (word,)
    return words


def best_fits(names: list[str]) -> dict[str, list[str]]:
    """{figure or text: the columns that fit it best by their words}; several fit equally."""
    fits: dict[str, list] = {}
    for name in names:
        words = words_of(name)
        kinds, unknown = {KIND[word] for word in words if word in KIND} - {""}, sum(word not in KIND for word in words)
        common = common_name("_".join(words), "trl") or "held_out"  # of a known name in camelCase
        for figure in (figure for figure, known in FIGURES.items() if known == common != "held_out"):
            fits.setdefault(figure, []).append((-1, unknown, name))
        for figure, forms in FITS.items():
            fits.setdefault(figure, []).extend((i, unknown, name) for i, x in enumerate(forms) if kinds == {*x.split()})
    return {figure: [x[2] for x in found if x[:2] == min(found)[:2]] for figure, found in fits.items() if found}


def own_columns(run: LoggedRun) -> dict[str, list[str]]:
    """{figure of --columns: columns that fit equally} of a log without a known score or step.

    {} if it is no log of training. Rounds, points and lengths are those of games, too: the step must grow, and another
    figure stand beside them.
    """
    known = [name for name in run.columns if names_step(name)]
    if known and any(name == "score" or name.startswith("part:") for name in run.series):
        return {}
    taken = {figure for figure, name in FIGURES.items() if name in run.series}
    fits = {figure: x for figure, x in best_fits([*run.columns]).items() if figure in FIGURES.keys() - taken}
    steps = known or fits.get("step", [])
    cells = [whole_number(row[name]) for name in steps[:1] for row in run.head if row.get(name) not in (None, "")]
    grows = None not in cells and 2 * sum(a < b for a, b in itertools.pairwise(cells)) > len(cells)
    figures = {*fits, *run.series} - {"step", "length"}
    if not grows or not figures & {"reward", "score"} or not figures - {"reward", "score"}:
        return {}
    scores = {word for name in fits.get("reward", ()) for word in words_of(name)}
    of_matches = "point" in scores and ["win"] in map(words_of, run.columns)
    of_boosting = {"train", "score"} <= scores and min(run.values("lr"), default=0.0) >= 0.05
    if (of_matches or of_boosting) and not {*fits, *run.series} & OF_RL:
        return {}
    return {figure: names for figure, names in fits.items() if figure != "step" or not known}


def sample_columns(rows: list[dict]) -> dict[str, str]:
    """{name in samples.jsonl: column}, the only other text as completion or prompt; {} for known or too few names."""
    names = [name for name in rows[0] if name not in ODD_KEYS] if rows else []
    texts = [name for name in names if any(isinstance(row.get(name), (str, list)) for row in rows)]
    is_text = {"prompt": True, "completion": True, "reward": False, "step": False}
    fits = {kind: fitting[0] for kind, fitting in best_fits(names).items() if len(fitting) == 1}
    fits = {kind: x for kind, x in fits.items() if is_text.get(kind, x in texts) == (x in texts)}
    rest = [name for name in texts if name not in fits.values()]
    missing = [kind for kind in ("completion", "prompt") if kind not in fits]
    fits |= {missing[0]: rest[0]} if missing and len(rest) == 1 else {}
    if {"completion", "score"} <= {*names} or not {"completion", "reward"} <= fits.keys():
        return {}
    columns = {"score" if kind == "reward" else kind: column for kind, column in fits.items()}
    return {kind: columns[kind] for kind in ("completion", "prompt", "score", "step", "gold") if kind in columns}


def meanings(columns: dict[str, str]) -> str:
    """What columns were read as, in words."""
    others = {kind.replace("accuracy", "held-out accuracy"): name for kind, name in columns.items() if name != kind}
    return "read " + ", ".join(f"{name} as {kind}" for kind, name in others.items())
