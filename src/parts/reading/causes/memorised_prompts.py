"""Few prompts learnt by heart: training rises, held-out does not."""

from parts.reading.cause import CERTAIN, LIKELY, STILL, Cause, Evidence, Fact, fact, shown
from parts.reading.logged_run import GAIN, LoggedRun, first_part, held_out_gain
from parts.reading.sample_texts import scores_by_answer
from parts.reading.trends import ends, trend


def seen_prompts(run: LoggedRun) -> tuple[int, int]:
    """(distinct training prompts, prompts drawn) of the logged samples, a step's repeats of a prompt as one."""
    drawn = {(t.step, t.prompt) for t in run.texts if t.kind == "train"}
    return len({prompt for _, prompt in drawn}), len(drawn)


def find_memorised_prompts(run: LoggedRun) -> Evidence | None:
    """The training score for correctness rose far above the held-out figure, on few distinct prompts."""
    gain, (name, part) = held_out_gain(run), first_part(run)
    held_out = run.values("held_out")
    if not gain or len(part) < 6 or max(part) > 1:
        return None
    first, last = ends(part)
    rose = last - first
    alike = first <= held_out[0] + 0.15 or min(run.series["held_out"]) > 3  # at the start, where that was measured
    held_back = alike and gain[0] <= 0.5 * rose and last >= held_out[-1] + 0.15
    if rose < 0.1 or trend(part) < 0 or not held_back:
        return None
    right, wrong = scores_by_answer([t for t in run.texts if t.kind == "train"])
    if len(right) > 8 and len(wrong) > 8 and sum(wrong) / len(wrong) > 0.5 * sum(right) / len(right):
        return None  # wrong completions are paid too: the reward is at fault
    text = f"{name} rose from {first:.3g} to {last:.3g} in training"
    text += f", held out from {held_out[0]:.3g} to {held_out[-1]:.3g}"
    facts = [fact(run, "held_out", text)]
    train = [t for t in run.texts if t.kind == "train"]
    distinct, drawn = seen_prompts(run)
    rows = run.settings.get("rows")
    if rows and rows <= 128:
        facts.append(Fact(f"the training data have {rows} distinct prompts", "data"))
    elif drawn >= 3 and distinct <= 0.7 * drawn:
        facts.append(shown(train, f"{drawn} logged draws are of {distinct} distinct prompts"))
    return Evidence(CERTAIN + 0.04 if len(facts) > 1 else LIKELY, facts, since=run_ahead(run, first, rose))


def run_ahead(run: LoggedRun, first: float, rose: float) -> int:
    """The first step whose score is half of the rise ahead."""
    name = f"part:{first_part(run)[0]}" if run.parts() else "score"
    points = sorted(run.series[name].items())
    return next((step for step, value in points if value > first + max(rose / 2, GAIN)), points[-1][0])


MEMORISED_PROMPTS = Cause(
    "memorised_prompts",
    "few prompts are learnt by heart: the training score rises, the held-out figure does not",
    find_memorised_prompts,
    f"{STILL} entropy_fell kl_high length_fell length_rose too_easy part_bought no_group_variance "
    "other_eval_task critic_useless updates_too_large",
    "more distinct prompts, each seen a few times at most; keep the checkpoint with the best held-out figure",
    "python scripts/evaluation.py on the start and the end, on other prompts of the task",
    "definition of a held-out set; gain held out below half of the gain in training",
    breaks=True,
)
