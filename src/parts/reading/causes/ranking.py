"""Find a run's signs, rank the causes that explain them, and give a verdict."""

from dataclasses import asdict

from parts.reading.causes.cause import CERTAIN, LIKELY, Cause, Evidence
from parts.reading.causes.groups import GROUP_CAUSES
from parts.reading.causes.machinery import MACHINERY_CAUSES
from parts.reading.causes.outcomes import OUTCOME_CAUSES
from parts.reading.causes.rewards import REWARD_CAUSES
from parts.reading.causes.updates import UPDATE_CAUSES
from parts.reading.dialects import WORDS
from parts.reading.logged_run import GAIN, TREND_STEPS, Fact, LoggedRun, ends, is_flat, names_correctness, trend
from parts.reading.sample_texts import right_gain

CAUSES = (*MACHINERY_CAUSES, *GROUP_CAUSES, *REWARD_CAUSES, *UPDATE_CAUSES, *OUTCOME_CAUSES)
LEARNED, NOT_LEARNED, BROKEN, TOO_SHORT, OPEN = "learned", "did not learn", "broken", "too short", "no verdict"
MANY = 50  # a run with fewer steps may be called too short
SIDE_CAUSES = ("critic_useless",)  # a run may learn despite it
MOVES = (  # sign, series, limit of last / first stretch, least distance between them
    ("length_rose", "length", 1.5, 0.0),
    ("length_fell", "length", 0.5, 0.0),
    ("entropy_fell", "entropy", 0.2, 0.01),
    ("entropy_rose", "entropy", 2.0, 0.2),
)
LEVELS = (  # sign, series, limit that its last stretch exceeds, text
    ("equal_groups", "zero_std", 0.8 - 1e-9, "{:.0%} of the groups score all alike"),
    ("truncated", "truncated", 0.2 - 1e-9, "{:.0%} of the completions are cut"),
    ("kl_high", "kl", 0.3, "{name} is {:.3g} nats a token"),
    ("clipped", "clip_frac", 0.3, "{:.0%} of the tokens are clipped"),
)


def signs(run: LoggedRun) -> dict[str, Fact]:
    """Signs that metrics show, {name: fact}. They need a cause to explain them and carry no advice."""
    seen, scores, lost, held_out = {}, run.values("score"), run.collapse(), run.values("held_out")
    solved, gained = run.is_solved(), run.gained()
    if run.is_constant():
        text = f"all completions of nearly every step scored {run.ends('score')[1]:.4g}"
        seen["constant_scores"] = run.fact("score", text)
    elif lost:
        seen["score_fell"] = run.fact("score", f"the score fell from {lost[0]:.3g} to {lost[1]:.3g}", lost[2])
    elif is_flat(scores) and not solved:
        seen["flat_score"] = run.fact("score", f"the score is flat over {len(scores)} steps")
    if len(held_out) >= 2 and not gained and not solved:
        text, peak = f"the held-out figure went from {held_out[0]:.3g} to {held_out[-1]:.3g}", run.held_out_peak()
        if peak is not None and max(held_out) > held_out[0]:
            text += f" (best: {max(held_out):.3g} at step {peak})"
        if run.trend("score") > 0:
            text += ", while the score went from {:.3g} to {:.3g}".format(*run.ends("score"))
        seen["held_out_flat"] = run.fact("held_out", text)
    for name, series, limit, words in LEVELS:
        late = run.ends(series)[1]
        if late > limit and not {"equal_groups": solved, "kl_high": gained}.get(name):
            seen[name] = run.fact(series, words.format(late, name=run.name(series)))
    for name, series, share, least in MOVES:
        (first, last), way = run.ends(series), 1 if share > 1 else -1
        usual = gained and (held_out or series != "length") and last > 0.01 * first  # without held-out, length may pay
        usual = usual or (name == "entropy_fell" and (solved or "kl/teacher" in run.columns))
        if run.trend(series) == way and not usual and way * (last - share * first) > 0 and way * (last - first) > least:
            seen[name] = run.fact(series, f"{run.name(series)} went from {first:.4g} to {last:.4g}")
    return seen


def ranked_causes(run: LoggedRun, seen: dict[str, Fact]) -> list[tuple[Cause, Evidence]]:
    """At most two root causes, which no other cause explains; sorted by strength and by how many signs they explain."""
    candidates = [(cause, evidence) for cause in CAUSES if (evidence := cause.evidence(run))]
    candidates = [(cause, evidence) for cause, evidence in candidates if evidence.strength >= LIKELY - 0.2]

    def weight(pair: tuple[Cause, Evidence]) -> tuple:
        explained = sum(sign in seen for sign in pair[0].explains.split())
        return pair[1].strength >= CERTAIN, pair[1].strength + 0.01 * explained

    candidates.sort(key=weight, reverse=True)
    places = {cause.name: (-evidence.strength, place) for place, (cause, evidence) in enumerate(candidates)}

    def is_explained(cause: Cause, evidence: Evidence) -> bool:
        """Whether another cause explains this one; of two that explain each other, the stronger does."""
        others = [other for other, stronger in candidates if stronger.strength >= evidence.strength - 0.3]
        others = [other for other in others if cause.name in other.explains.split()]
        effects = cause.explains.split()
        return any(other.name not in effects or places[other.name] < places[cause.name] for other in others)

    roots = [pair for pair in candidates if not is_explained(*pair)]
    if not roots or roots[0][1].strength < LIKELY:
        return []
    first = roots[0][1].strength
    second = [pair for pair in roots[1:] if pair[1].strength >= (CERTAIN if first >= CERTAIN else first - 0.25)]
    return [roots[0], *second[:1]]


def judged_run(run: LoggedRun, causes: list[tuple[Cause, Evidence]], seen: dict[str, Fact]) -> tuple[str, int | None]:
    """(verdict, step from which on the run is broken or None)."""
    gain, lost = run.held_out_gain(), seen.get("score_fell")
    sure = [(cause, evidence) for cause, evidence in causes if evidence.strength >= CERTAIN]
    broken = [evidence.since for cause, evidence in sure if cause.breaks]
    if broken or lost:
        steps = [step for step in (*broken, lost and lost.step) if step is not None]
        return BROKEN, min(steps, default=min(run.steps(), default=1))
    if gain and gain[2] < 0 and gain[0] < -GAIN:
        peak = run.held_out_peak() or 0
        return BROKEN, min((step for step in run.series["held_out"] if step > peak), default=None)
    right = right_gain(run.texts)
    works = gain[1] > 0 if gain else trend(run.answer_part()[1]) > 0 and not (right and right[0] <= 0)
    if works and run.gained() and all(cause.name in SIDE_CAUSES for cause, _ in sure):
        return LEARNED, None
    hopeless = any(cause.name not in SIDE_CAUSES for cause, _ in sure)
    name, part = run.answer_part()
    form_first = not causes and run.trend("score") > 0 and len(part) < 2 * MANY  # correctness may still follow
    flat = is_flat(run.values("score")) or (names_correctness(name) and is_flat(part) and not form_first)
    stuck = gain and gain[2] < GAIN and len(run.steps()) >= 2 * TREND_STEPS
    open_ended = gain and gain[2] > 2 * GAIN  # it may have learned
    if hopeless or (flat and not open_ended) or stuck:
        return NOT_LEARNED, None
    steps = run.steps() or [0]
    if steps[-1] - steps[0] + 1 < MANY:
        return TOO_SHORT, None
    why = f"the held-out gain lies between {gain[1]:.2g} and {gain[2]:.2g}" if gain else "the log has no score"
    if part and not gain:
        chance = "samples show no more right answers" if trend(part) > 0 else "chance explains that"
        why = "{} went from {:.3g} to {:.3g}: {}".format(name, *ends(part), chance)
    run.remarks.append(f"no verdict, as {why}")
    return OPEN, None


def what_was_read(run: LoggedRun) -> tuple[list[str], list[str]]:
    """(data that the run left, data that would help a decision)."""
    texts, missing = run.texts, "samples with scores (samples.jsonl, log_completions=True, trainer.rollout_data_dir)"
    beside, source = run.settings_file or "beside the log", "the reward's source"
    scored, gold = any(t.score is not None for t in texts), any(t.gold for t in texts)
    read = (  # whether it exists, its name if so, how to provide it
        (run.steps(), f"{run.format}, {len(run.steps())} steps", ""),
        (run.series.get("score"), "", "the score under a known name: --columns reward=NAME"),
        (run.knows_settings(), f"settings ({beside})", "settings: --settings FILE"),
        (texts, f"{len(texts)} samples", missing),
        (scored or not texts, "", "scores of the samples, logged beside them"),
        (gold or not texts, "gold answers" * gold, "gold answers of the samples: --data FILE"),
        (run.reward_source, f"{source} ({run.reward_file})", f"{source}: --reward FILE.py:function"),
        (len(run.values("held_out")) > 1, "a held-out figure", "two held-out evaluations"),
        (run.series.keys() & {"score_std", "zero_std", "score_max"}, "", "the spread of scores of a step"),
    )
    return [name for there, name, _ in read if there and name], [name for there, _, name in read if name and not there]


def diagnose(run: LoggedRun) -> dict:
    """A run's verdict, causes and evidence, as plain data."""
    seen = signs(run)
    causes = ranked_causes(run, seen)
    verdict, since = judged_run(run, causes, seen)
    words = WORDS[run.trainer] | {"reward": run.answer_part()[0] if run.parts() else "NAME"}
    had, lacked = what_was_read(run)
    steps = run.steps() or [step for _, step, _ in run.bad]
    explained, reports = {name for cause, _ in causes for name in cause.explains.split()}, []
    for cause, evidence in causes:
        sure = evidence.strength >= CERTAIN
        reports.append(
            {
                "cause": cause.name,
                "certainty": "certain" if sure else "likely",
                "says": cause.says,
                "evidence": [asdict(fact) | {"samples": list(fact.samples)} for fact in evidence.facts],
                "explains": [seen[sign].text for sign in seen if sign in cause.explains.split()],
                "decide_with": None,
                "change": cause.change.format(**words),
                "source": cause.source,
            }
        )
        if cause.decide_with and (len(causes) > 1 or not sure):
            reports[-1]["decide_with"] = cause.decide_with.replace("RUN", run.path).format(**words)
    return {
        "path": run.path,
        "format": run.format,
        "trainer": run.trainer,
        "steps": [min(steps), max(steps)],
        "verdict": verdict,
        "since_step": since,
        "causes": reports,
        "unexplained": [fact.text for sign, fact in seen.items() if sign not in explained],
        "had": had,
        "lacked": lacked,
        "remarks": run.remarks,
    }
