"""Run diagnose.py on labelled runs, and count how often it is right."""

import contextlib
import importlib.util
import io
import json
import os
import re
import shutil
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "src"))
from parts.evaluating.paired_tests import wilson_interval

ROOT = Path(__file__).resolve().parents[2]

NONE = ("healthy", "noise")
LIMITS = {  # lower limits of the shares below, upper ones for "at most"
    "first": 0.90,
    "first two": 0.97,
    "first, log alone": 0.65,
    "says what it lacks, log alone": 0.97,
}
AT_MOST = {"more than two": 0.0, "harmful advice": 0.0, "blamed healthy runs": 0.02, "blamed noise": 0.01}
MORE, LESS = r"(rais|increas|higher|larger|longer|more|add|allow)", r"(lower|reduc|decreas|smaller|shorten|less|cut)"
TRAIN_ON = r"train (on|longer)|more steps|(larger|higher) learning rate|(rais|increas)\w* (the )?(learning rate|--?l)"
FEEDS = {  # cause: advice that makes it worse, or spends the user's money on it
    "near_greedy_sampling": rf"{LESS}\w*.{{0,30}}(temperature|top_p|top_k)",
    "answer_form": TRAIN_ON,
    "gold_mismatch": TRAIN_ON,
    "constant_reward": TRAIN_ON,
    "inverted_reward": TRAIN_ON,
    "reward_ignores_answer": TRAIN_ON,
    "noisy_reward": TRAIN_ON,
    "too_hard": r"harder",
    "too_easy": r"easier",
    "too_sparse": rf"{LESS}\w*.{{0,20}}(group|num_generations)",
    "memorised_prompts": r"more (epochs|passes)|train (on|longer)|fewer prompts",
    "part_bought": rf"{MORE}\w*.{{0,40}}(limit|max_new_tokens|max_completion_length|length|tokens)|more steps",
    "limit_too_short": rf"{LESS}\w*.{{0,30}}(limit|max_new_tokens|max_completion_length)",
    "updates_too_large": rf"{MORE}\w*.{{0,20}}(rate|--?lr\b|passes|epochs|minibatches)",
    "nothing_moves": rf"{LESS}\w*.{{0,20}}(learning rate|--?lr\b)|{MORE}\w*.{{0,20}}(\bkl|beta|kl_coef|warm)",
    "kl_holds_policy": rf"{MORE}\w*.{{0,20}}(\bKL|beta|kl_coef)",
    "no_group_variance": TRAIN_ON,
    "critic_useless": r"without (a )?warm-?up",
    "overflow": rf"{MORE}\w*.{{0,20}}(rate|--?lr\b|scale)",
}


@dataclass
class Answer:
    """diagnose.py's answers about one run: from all its files, and from its log alone."""

    label: dict
    folder: str
    full: dict
    alone: dict = field(default_factory=dict)


def causes(said: dict) -> list[str]:
    """Names of the causes, the first one first."""
    return [one["cause"] for one in said.get("causes", [])]


def harmful(cause: str, said: dict) -> list[str]:
    """Sentences of the advice that would make the planted cause worse, except those that advise against it."""
    advice = [text for one in said.get("causes", []) for text in (one.get("change"), one.get("decide_with")) if text]
    sentences = [s for text in advice for s in re.split(r"(?<=[.;:!?])\s+", text)]
    refused = re.compile(r"\b(not|never|no|instead of|rather than|before|without)\b", re.IGNORECASE)
    fed = re.compile(FEEDS.get(cause, r"(?!)"), re.IGNORECASE)
    return [s for s in sentences if fed.search(s) and not refused.search(s)]


def load_diagnose():
    """scripts/diagnose.py as a module."""
    spec = importlib.util.spec_from_file_location("diagnose_script", ROOT / "scripts" / "diagnose.py")
    module = sys.modules["diagnose_script"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def said_of(words: list[str], folder: Path) -> dict:
    """The JSON that `diagnose.py WORDS --json` prints in a folder, or an object with its error."""
    module = sys.modules.get("diagnose_script") or load_diagnose()
    out, err, before = io.StringIO(), io.StringIO(), os.getcwd()
    os.chdir(folder)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            module.main([*words, "--json"])
    except SystemExit:
        pass
    except Exception as e:
        return {"verdict": "traceback", "causes": [], "lacked": [], "error": repr(e)}
    finally:
        os.chdir(before)
    try:
        read = json.loads(out.getvalue())
    except ValueError:
        return {"verdict": "unreadable", "causes": [], "lacked": [], "error": err.getvalue()[-300:]}
    return read[0] if isinstance(read, list) else read


def logs_of(out: Path) -> list[Path]:
    """The log of a run: metrics.jsonl, or the newest trainer_state.json."""
    states = sorted(out.glob("checkpoint-*/trainer_state.json"), key=lambda path: path.stat().st_mtime)
    return [path for path in (out / "metrics.jsonl", *states[-1:]) if path.exists()][:1]


def ask(folder: str) -> Answer:
    """Both answers of one labelled run."""
    place = Path(folder)
    label = json.loads((place / "label.json").read_text(encoding="utf-8"))
    answer = Answer(label, folder, said_of(["out"], place))
    if label["cause"] != "noise":
        with tempfile.TemporaryDirectory() as parent:
            empty = Path(parent) / "run" / "out"  # beside no other file
            empty.mkdir(parents=True)
            for log in logs_of(place / "out"):
                shutil.copy(log, empty)
                answer.alone = said_of([log.name], empty)
    return answer


# ------------------------------------------------------------------------------------------------ figures


def tallies(answers: list[Answer]) -> dict[str, tuple[int, int]]:
    """{figure with a limit: (hits, runs)}."""
    ill = [a for a in answers if a.label["cause"] not in NONE]
    well = [a for a in answers if a.label["cause"] == "healthy"]
    noise = [a for a in answers if a.label["cause"] == "noise"]

    def count(runs: list, is_hit) -> tuple[int, int]:
        return sum(map(bool, map(is_hit, runs))), len(runs)

    return {
        "first": count(ill, lambda a: causes(a.full)[:1] == [a.label["cause"]]),
        "first two": count(ill, lambda a: a.label["cause"] in causes(a.full)[:2]),
        "more than two": count(answers, lambda a: len(causes(a.full)) > 2 or len(causes(a.alone)) > 2),
        "harmful advice": count(ill, lambda a: harmful(a.label["cause"], a.full) + harmful(a.label["cause"], a.alone)),
        "blamed healthy runs": count(well, lambda a: causes(a.full) or causes(a.alone)),
        "blamed noise": count(noise, lambda a: causes(a.full)),
        "first, log alone": count(ill, lambda a: causes(a.alone)[:1] == [a.label["cause"]]),
        "says what it lacks, log alone": count(ill, lambda a: a.alone.get("lacked")),
    }


def missed(figures: dict[str, tuple[int, int]]) -> list[str]:
    """Names of the figures that miss their limits; figures without runs do not count."""
    wrong = []
    for name, (hits, n) in figures.items():
        share = hits / n if n else LIMITS.get(name, 0.0)
        if share < LIMITS.get(name, 0.0) or share > AT_MOST.get(name, 1.0):
            wrong.append(name)
    return wrong


def shown(hits: int, n: int) -> str:
    """`0.800 (12 of 15; 0.548 to 0.930)`."""
    if not n:
        return "–"
    return "{:.3f} ({} of {}; {:.3f} to {:.3f})".format(hits / n, hits, n, *wilson_interval(hits, n))


def figure_table(sets: dict[str, list[Answer]]) -> list[str]:
    """All figures with a limit, a column for each set of runs."""
    columns = {name: tallies(answers) for name, answers in sets.items()}
    lines = ["| figure | aim | " + " | ".join(columns) + " |", "|---" * (len(columns) + 2) + "|"]
    for name in next(iter(columns.values())):
        limit = f"≥ {LIMITS[name]:.2f}" if name in LIMITS else f"≤ {AT_MOST[name]:.2f}"
        lines.append(f"| {name} | {limit} | " + " | ".join(shown(*each[name]) for each in columns.values()) + " |")
    return lines


def others(answers: list[Answer], part: str) -> str:
    """The three most common wrong first answers."""
    firsts = Counter((causes(getattr(a, part)) or [getattr(a, part).get("verdict", "?")])[0] for a in answers)
    firsts.pop(answers[0].label["cause"], None)
    return ", ".join(f"{name} {count}" for name, count in firsts.most_common(3)) or "–"


def confusion_table(answers: list[Answer]) -> list[str]:
    """A line for every planted cause and way of planting it."""
    head = "| planted | runs | first | first two | named instead | log alone: first | named instead |"
    lines = [head, "|---" * 7 + "|"]
    groups: dict[tuple, list[Answer]] = {}
    for a in answers:
        if a.label["cause"] != "noise":
            groups.setdefault((a.label["cause"], a.label["variant"]), []).append(a)
    for (cause, variant), group in sorted(groups.items()):
        n, wanted = len(group), [] if cause == "healthy" else [cause]
        first = sum(causes(a.full)[:1] == wanted for a in group)
        two = sum(cause in causes(a.full)[:2] for a in group) if wanted else first
        alone = sum(causes(a.alone)[:1] == wanted for a in group)
        low, high = wilson_interval(first, n)
        lines.append(
            f"| {cause}, {variant} | {n} | {first} ({low:.2f} to {high:.2f}) | {two} | {others(group, 'full')} "
            f"| {alone} | {others(group, 'alone')} |"
        )
    return lines


def trainer_table(answers: list[Answer]) -> list[str]:
    """The main figures by trainer."""
    lines = ["| trainer | first | first two | healthy runs blamed | log alone: first |", "|---|---|---|---|---|"]
    for trainer in dict.fromkeys(a.label["trainer"] for a in answers if a.label["cause"] != "noise"):
        each = tallies([a for a in answers if a.label["trainer"] == trainer])
        names = ("first", "first two", "blamed healthy runs", "first, log alone")
        lines.append(f"| {trainer} | " + " | ".join(shown(*each[name]) for name in names) + " |")
    return lines


def verdict_table(answers: list[Answer]) -> list[str]:
    """Verdicts of healthy runs, of noise and of planted ones."""
    counts = {kind: Counter() for kind in ("planted", *NONE)}
    for a in answers:
        counts[a.label["cause"] if a.label["cause"] in NONE else "planted"][a.full.get("verdict", "?")] += 1
    verdicts = sorted({verdict for each in counts.values() for verdict in each})
    lines = ["| runs | " + " | ".join(verdicts) + " |", "|---" * (len(verdicts) + 1) + "|"]
    return lines + [f"| {kind} | " + " | ".join(str(each[v]) for v in verdicts) + " |" for kind, each in counts.items()]


def misses(answers: list[Answer]) -> list[str]:
    """Every run that was not answered rightly: its folder, what was planted, what was said."""
    lines = []
    for a in answers:
        cause, said = a.label["cause"], (causes(a.full), causes(a.alone))
        fed = harmful(cause, a.full) + harmful(cause, a.alone)
        if any(said) if cause in NONE else said[0][:1] != [cause] or fed:
            facts = [(c["cause"], [fact["text"] for fact in c["evidence"]]) for c in a.full.get("causes", [])]
            lines += [f"## {cause}: {a.folder}", f"- planted: {a.label.get('strength')}"]
            lines += [f"- said: {a.full.get('verdict')}, {facts} {a.full.get('error', '')}"]
            lines += [f"- log alone: {a.alone.get('verdict')}, {said[1]}", *(f"- feeds the fault: {x}" for x in fed)]
    return lines
