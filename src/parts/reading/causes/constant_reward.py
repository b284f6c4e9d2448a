"""A constant reward: every completion is paid the same, or one part always pays the same."""

import ast

from parts.reading.cause import CERTAIN, LIKELY, LOST, STILL, Cause, Evidence, Fact, fact, shown
from parts.reading.logged_run import LoggedRun, first_part, is_constant, is_solved
from parts.reading.sample_texts import shares_by_answer


def placeholder(source: str) -> str:
    """Why a reward's source pays always the same: it never reads completions; "" where it may read them."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return ""
    for function in [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]:
        names = {argument.arg for argument in (*function.args.args, *function.args.kwonlyargs)}
        given = names & {"completions", "completion", "solution_str", "response", "responses"}
        counted = [
            call.args for call in ast.walk(function) if isinstance(call, ast.Call) and ast.unparse(call.func) == "len"
        ]
        inside = {id(node) for arguments in counted for argument in arguments for node in ast.walk(argument)}
        reads = [n for n in ast.walk(function) if isinstance(n, ast.Name) and n.id in given and id(n) not in inside]
        loops = [n for n in ast.walk(function) if isinstance(n, ast.comprehension) and ast.unparse(n.target) == "_"]
        if given and len(reads) <= len(loops):
            return f"{function.name} of the reward never reads its {next(iter(given))}"
    return ""


def constant_part(run: LoggedRun) -> Fact | None:
    """The part for correctness pays the same at every step while others vary."""
    name, means = first_part(run)
    if not run.parts() or len(means) < 5 or max(means) - min(means) > 1e-9 or len(run.parts()) < 2:
        return None
    return fact(run, f"part:{name}", f"{name} paid {means[0]:.4g} at every one of {len(means)} steps")


def find_constant_reward(run: LoggedRun) -> Evidence | None:
    """No spread of scores at any step, for right and wrong completions alike."""
    facts = [Fact(run.trials["constant"], "rescore")] if run.trials.get("constant") else []
    empty = placeholder(run.reward_source)
    part = constant_part(run)
    scores = run.values("score")
    few = 0 < len(scores) < 3 and run.series.get("score_std") and max(run.values("score_std")) <= 1e-6
    if not (is_constant(run) or few or part or facts):
        return None
    if is_solved(run):
        return None
    level = run.last("score")
    facts.append(
        part
        or fact(
            run,
            "score_std" if run.series.get("score_std") else "score",
            f"every completion scored {level:.4g}, at every step",
        )
    )
    right, wrong = shares_by_answer(run.texts)
    strength = LIKELY
    if empty:
        facts.append(Fact(empty, "reward"))
        strength = CERTAIN + 0.07
    elif run.trials.get("constant"):
        strength = CERTAIN + 0.08
    elif right and wrong and not part:
        said = [t for t in run.texts if t.right][:1] + [t for t in run.texts if t.right is False][:2]
        facts.append(shown(said, f"{len(right)} right and {len(wrong)} wrong completions are paid alike"))
        strength = CERTAIN + 0.05
    elif not part and abs(level) > 1e-9 and not (wrong == [] and level >= 1):
        strength = CERTAIN + 0.02  # neither "always wrong" nor "always right"
    elif not part and right == [] and wrong:
        strength = LIKELY - 0.15  # always wrong explains it
    return Evidence(strength, facts)


CONSTANT_REWARD = Cause(
    "constant_reward",
    "the reward pays every completion the same: a placeholder, or an exception turned into a score",
    find_constant_reward,
    f"{STILL} {LOST} nothing_moves too_hard too_easy too_sparse no_group_variance critic_useless "
    "reward_ignores_answer part_dies updates_too_large",
    "have {reward} read the completion, and let an exception end the run; score gold answers before training: "
    "python scripts/reward_preflight.py --reward FILE.py:{reward} --data DATA",
    "python scripts/diagnose.py RUN --rescore --reward FILE.py:{reward}",
    "definition: equal scores give advantage 0; verl#3024",
)
