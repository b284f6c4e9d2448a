"""Which cause explains a run best, and the run's verdict."""

from dataclasses import asdict

from parts.reading.cause import CERTAIN, LIKELY, Cause, Evidence, Fact
from parts.reading.causes.answer_form import ANSWER_FORM
from parts.reading.causes.constant_reward import CONSTANT_REWARD
from parts.reading.causes.conversation_fails import CONVERSATION_FAILS
from parts.reading.causes.critic_useless import CRITIC_USELESS
from parts.reading.causes.gold_mismatch import GOLD_MISMATCH
from parts.reading.causes.inverted_reward import INVERTED_REWARD
from parts.reading.causes.jump_at_restart import JUMP_AT_RESTART
from parts.reading.causes.kl_holds_policy import KL_HOLDS_POLICY
from parts.reading.causes.limit_too_short import LIMIT_TOO_SHORT
from parts.reading.causes.memorised_prompts import MEMORISED_PROMPTS
from parts.reading.causes.memory_grows import MEMORY_GROWS
from parts.reading.causes.near_greedy_sampling import NEAR_GREEDY_SAMPLING
from parts.reading.causes.no_group_variance import NO_GROUP_VARIANCE
from parts.reading.causes.noisy_reward import NOISY_REWARD
from parts.reading.causes.nothing_moves import NOTHING_MOVES
from parts.reading.causes.other_eval_task import OTHER_EVAL_TASK
from parts.reading.causes.overflow import OVERFLOW
from parts.reading.causes.part_bought import PART_BOUGHT
from parts.reading.causes.part_dies import PART_DIES
from parts.reading.causes.reward_ignores_answer import REWARD_IGNORES_ANSWER
from parts.reading.causes.sampler_mismatch import SAMPLER_MISMATCH
from parts.reading.causes.stale_weights import STALE_WEIGHTS
from parts.reading.causes.too_easy import TOO_EASY
from parts.reading.causes.too_hard import TOO_HARD
from parts.reading.causes.too_sparse import TOO_SPARSE
from parts.reading.causes.updates_too_large import UPDATES_TOO_LARGE
from parts.reading.logged_run import GAIN, LoggedRun, first_part, gained, held_out_gain
from parts.reading.metric_names import SETTINGS
from parts.reading.signs import signs
from parts.reading.trends import TREND_STEPS, is_flat, trend

CAUSES = (
    *(OVERFLOW, JUMP_AT_RESTART, NEAR_GREEDY_SAMPLING, ANSWER_FORM, GOLD_MISMATCH, CONSTANT_REWARD, INVERTED_REWARD),
    *(NOISY_REWARD, REWARD_IGNORES_ANSWER, LIMIT_TOO_SHORT, TOO_HARD, TOO_EASY, TOO_SPARSE, NO_GROUP_VARIANCE),
    *(SAMPLER_MISMATCH, STALE_WEIGHTS, UPDATES_TOO_LARGE, NOTHING_MOVES, KL_HOLDS_POLICY, PART_BOUGHT, PART_DIES),
    *(MEMORISED_PROMPTS, OTHER_EVAL_TASK, CRITIC_USELESS, CONVERSATION_FAILS, MEMORY_GROWS),
)
LEARNED, NOT_LEARNED, BROKEN, TOO_SHORT = "learned", "did not learn", "broken", "too short"


def ranked_causes(run: LoggedRun, seen: dict[str, Fact]) -> list[tuple[Cause, Evidence]]:
    """At most two causes: those that no other one explains, the surest first, then those that explain most."""
    found = [
        (cause, evidence) for cause in CAUSES if (evidence := cause.test(run)) and evidence.strength >= LIKELY - 0.2
    ]

    def weight(pair: tuple[Cause, Evidence]) -> tuple:
        cause, evidence = pair
        return evidence.strength >= CERTAIN, evidence.strength + 0.01 * sum(
            sign in seen for sign in cause.explains.split()
        )

    found.sort(key=weight, reverse=True)
    roots = [
        (cause, evidence)
        for place, (cause, evidence) in enumerate(found)
        if not any(
            cause.name in other.explains.split()
            and (other.name not in cause.explains.split() or (-stronger.strength, rank) < (-evidence.strength, place))
            and stronger.strength >= evidence.strength - 0.3
            for rank, (other, stronger) in enumerate(found)
        )
    ]
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
    known = (
        (f"{run.format}, {len(run.steps())} steps", bool(run.steps())),
        (f"settings ({run.settings_file or 'beside the log'})", bool(run.config or run.settings_file)),
        (f"{len(run.texts)} samples", bool(run.texts)),
        ("gold answers", any(t.gold for t in run.texts)),
        ("the reward's source", bool(run.reward_source)),
        ("a held-out figure", len(run.values("held_out")) > 1),
    )
    had = [name for name, there in known if there]
    missing = (
        ("the score under a known name: --columns reward=NAME", bool(run.series.get("score"))),
        ("settings: --settings FILE", known[1][1]),
        ("samples with scores (samples.jsonl, log_completions=True, trainer.rollout_data_dir)", known[2][1]),
        (
            "scores of the samples: --rescore --reward FILE.py:function",
            not run.texts or any(t.score is not None for t in run.texts),
        ),
        ("gold answers of the samples: --data FILE", known[3][1] or not known[2][1]),
        ("the reward's source: --reward FILE.py:function", known[4][1]),
        ("two held-out evaluations", known[5][1]),
        ("the spread of scores of a step", bool(run.series.keys() & {"score_std", "zero_std", "score_max"})),
    )
    return had, [name for name, there in missing if not there]


def diagnose(run: LoggedRun) -> dict:
    """A run's verdict, causes and what they rest on, as plain data."""
    seen = signs(run)
    causes = ranked_causes(run, seen)
    verdict, since = judged_run(run, causes, seen)
    words = SETTINGS[run.trainer] | {"reward": first_part(run)[0] if run.parts() else "NAME"}
    had, lacked = what_was_read(run)
    facts = {"path": run.path, "format": run.format, "trainer": run.trainer}
    steps = run.steps() or [step for _, step, _ in run.broken]
    explained = {name for cause, _ in causes for name in cause.explains.split()}
    return facts | {
        "steps": [min(steps), max(steps)],
        "verdict": verdict,
        "since_step": since,
        "causes": [
            {
                "cause": cause.name,
                "certainty": "certain" if evidence.strength >= CERTAIN else "likely",
                "says": cause.says,
                "evidence": [as_json(fact) for fact in evidence.facts],
                "explains": [seen[sign].text for sign in seen if sign in cause.explains.split()],
                "decide_with": command_for(run, cause, words)
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


def as_json(fact: Fact) -> dict:
    """A fact as plain data."""
    return asdict(fact) | {"samples": list(fact.samples)}


def command_for(run: LoggedRun, cause: Cause, words: dict) -> str | None:
    """The command that tells whether it is this cause."""
    return cause.decide_with.replace("RUN", run.path).format(**words) or None
