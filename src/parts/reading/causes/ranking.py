"""Which cause explains a run best, and the run's verdict."""

from dataclasses import asdict

from parts.reading.causes.cause import CERTAIN, LIKELY, Cause, Evidence, Fact
from parts.reading.causes.groups import GROUP_CAUSES
from parts.reading.causes.machinery import MACHINERY_CAUSES
from parts.reading.causes.outcomes import OUTCOME_CAUSES
from parts.reading.causes.rewards import REWARD_CAUSES
from parts.reading.causes.signs import signs
from parts.reading.causes.updates import UPDATE_CAUSES
from parts.reading.dialects import WORDS
from parts.reading.logged_run import GAIN, LoggedRun, first_part, gained, held_out_gain
from parts.reading.trends import TREND_STEPS, is_flat, trend

CAUSES = (*MACHINERY_CAUSES, *GROUP_CAUSES, *REWARD_CAUSES, *UPDATE_CAUSES, *OUTCOME_CAUSES)
SAMPLES = "samples.jsonl, log_completions=True, trainer.rollout_data_dir"
LEARNED, NOT_LEARNED, BROKEN, TOO_SHORT = "learned", "did not learn", "broken", "too short"


def ranked_causes(run: LoggedRun, seen: dict[str, Fact]) -> list[tuple[Cause, Evidence]]:
    """At most two causes: those that no other one explains, the surest first, then those that explain most."""
    found = [(cause, evidence) for cause in CAUSES if (evidence := cause.evidence(run))]
    found = [(cause, evidence) for cause, evidence in found if evidence.strength >= LIKELY - 0.2]

    def weight(pair: tuple[Cause, Evidence]) -> tuple:
        cause, evidence = pair
        explained = sum(sign in seen for sign in cause.explains.split())
        return evidence.strength >= CERTAIN, evidence.strength + 0.01 * explained

    found.sort(key=weight, reverse=True)
    places = {cause.name: (-evidence.strength, place) for place, (cause, evidence) in enumerate(found)}

    def is_explained(cause: Cause, evidence: Evidence) -> bool:
        """Whether another cause, of two that explain each other the stronger, explains this one."""
        others = [other for other, stronger in found if stronger.strength >= evidence.strength - 0.3]
        others = [other for other in others if cause.name in other.explains.split()]
        own = cause.explains.split()
        return any(other.name not in own or places[other.name] < places[cause.name] for other in others)

    roots = [pair for pair in found if not is_explained(*pair)]
    if not roots or roots[0][1].strength < LIKELY:
        return []
    first = roots[0][1].strength
    second = [pair for pair in roots[1:] if pair[1].strength >= (CERTAIN if first >= CERTAIN else first - 0.25)]
    return [roots[0], *second[:1]]


def judged_run(run: LoggedRun, causes: list[tuple[Cause, Evidence]], seen: dict[str, Fact]) -> tuple[str, int | None]:
    """The verdict, and the step since which a run is broken."""
    gain = held_out_gain(run)
    sure = [(cause, evidence) for cause, evidence in causes if evidence.strength >= CERTAIN]
    broken = [(cause, evidence) for cause, evidence in sure if cause.breaks]
    lost = seen.get("score_fell")
    if broken or lost:
        steps = [evidence.since for _, evidence in broken if evidence.since is not None] + ([lost.step] if lost else [])
        return BROKEN, min(steps, default=min(run.steps(), default=1))
    if gain and gain[2] < 0 and gain[0] < -GAIN:
        return BROKEN, min((step for step in run.series["held_out"] if step), default=None)
    works = gain[1] > 0 if gain else trend(first_part(run)[1]) > 0
    if works and gained(run) and not any(cause.name != "critic_useless" for cause, _ in sure):
        return LEARNED, None
    hopeless = [cause for cause, _ in sure if cause.name not in ("critic_useless", "memory_grows")]
    if hopeless or (is_flat(run.values("score")) and not (gain and gain[2] > 2 * GAIN)):
        return NOT_LEARNED, None
    if gain and gain[2] < GAIN and len(run.steps()) >= 2 * TREND_STEPS:
        return NOT_LEARNED, None
    return TOO_SHORT, None


def what_was_read(run: LoggedRun) -> tuple[list[str], list[str]]:
    """What the run left, and what more would decide."""
    texts, source = run.texts, run.settings_file or "beside the log"
    read = (  # whether it is there, what it is called then, what would give it
        (run.steps(), f"{run.format}, {len(run.steps())} steps", ""),
        (run.series.get("score"), "", "the score under a known name: --columns reward=NAME"),
        (run.config or run.settings_file, f"settings ({source})", "settings: --settings FILE"),
        (texts, f"{len(texts)} samples", f"samples with scores ({SAMPLES})"),
        (not texts or any(t.score is not None for t in texts), "", "scores of the samples, logged beside them"),
        (
            not texts or any(t.gold for t in texts),
            "gold answers" * bool(texts),
            "gold answers of the samples: --data FILE",
        ),
        (run.reward_source, "the reward's source", "the reward's source: --reward FILE.py:function"),
        (len(run.values("held_out")) > 1, "a held-out figure", "two held-out evaluations"),
        (run.series.keys() & {"score_std", "zero_std", "score_max"}, "", "the spread of scores of a step"),
    )
    return [name for there, name, _ in read if there and name], [name for there, _, name in read if name and not there]


def diagnose(run: LoggedRun) -> dict:
    """A run's verdict, causes and what they rest on, as plain data."""
    seen = signs(run)
    causes = ranked_causes(run, seen)
    verdict, since = judged_run(run, causes, seen)
    words = WORDS[run.trainer] | {"reward": first_part(run)[0] if run.parts() else "NAME"}
    had, lacked = what_was_read(run)
    steps = run.steps() or [step for _, step, _ in run.bad]
    explained = {name for cause, _ in causes for name in cause.explains.split()}
    return {
        "path": run.path,
        "format": run.format,
        "trainer": run.trainer,
        "steps": [min(steps), max(steps)],
        "verdict": verdict,
        "since_step": since,
        "causes": [
            {
                "cause": cause.name,
                "certainty": "certain" if evidence.strength >= CERTAIN else "likely",
                "says": cause.says,
                "evidence": [asdict(fact) | {"samples": list(fact.samples)} for fact in evidence.facts],
                "explains": [seen[sign].text for sign in seen if sign in cause.explains.split()],
                "decide_with": cause.decide_with.replace("RUN", run.path).format(**words) or None
                if len(causes) > 1 or evidence.strength < CERTAIN
                else None,
                "change": cause.change.format(**words),
                "source": cause.source,
            }
            for cause, evidence in causes
        ],
        "unexplained": [fact.text for sign, fact in seen.items() if sign not in explained],
        "had": had,
        "lacked": lacked,
        "remarks": run.remarks,
    }
