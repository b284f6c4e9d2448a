"""A constant reward: every completion is paid the same, or one part always pays the same."""

import ast

from parts.reading.cause import CERTAIN, LIKELY, LOST, STILL, Cause, Evidence, Fact, fact, shown
from parts.reading.logged_run import LoggedRun, first_part, is_constant, is_solved
from parts.reading.sample_texts import COMPLETIONS, early_texts, scores_by_answer


def placeholder(source: str) -> str:
    """Why a reward's source may pay always the same: it never reads completions, or an exception becomes a score."""
    try:
        nodes = list(ast.walk(ast.parse(source)))
    except (SyntaxError, ValueError):
        return ""
    for function in [node for node in nodes if isinstance(node, ast.FunctionDef)]:
        given = {argument.arg for argument in (*function.args.args, *function.args.kwonlyargs)} & COMPLETIONS
        inside = list(ast.walk(function))
        # len(completions), and `for _ in completions`, do not look at any
        unread = [
            node.args[0]
            for node in inside
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "len" and node.args
        ]
        unread += [
            node.iter for node in inside if isinstance(node, ast.comprehension) and ast.unparse(node.target) == "_"
        ]
        reads = [node for node in inside if isinstance(node, ast.Name) and node.id in given and node not in unread]
        if given and not reads:
            return f"{function.name} never reads its {min(given)}"
    caught = [node for node in nodes if isinstance(node, ast.ExceptHandler)]
    if any(not isinstance(inner, ast.Raise) for node in caught for inner in node.body[-1:]):
        return "the reward turns an exception into a score"
    return ""


def find_constant_reward(run: LoggedRun) -> Evidence | None:
    """No spread of scores, or of the part for correctness, at any step, for right and wrong completions alike."""
    if run.trials.get("constant"):
        return Evidence(CERTAIN + 0.08, [Fact(run.trials["constant"], "rescore")])
    name, means = first_part(run)
    part = len(run.parts()) > 1 and len(means) >= 3 and max(means) - min(means) < 1e-9
    few = 0 < len(run.values("score")) < 3 and run.series.get("score_std") and max(run.values("score_std")) <= 1e-6
    few = few and (run.last("score") or placeholder(run.reward_source))  # a few zeros may be wrong answers
    solved = is_solved(run) and not (is_constant(run) and max(run.early("score_std", 3), default=1) <= 1e-6)
    if not (is_constant(run) or few or part) or solved:
        return None
    why, level = placeholder(run.reward_source), means[-1] if part else run.last("score")
    right, wrong = scores_by_answer(early_texts(run.texts))
    series = f"part:{name}" if part else "score_std" if run.series.get("score_std") else "score"
    facts = [fact(run, series, f"{name if part else 'every completion'} scored {level:.4g} at every step")]
    if why:
        return Evidence(CERTAIN + 0.07 if right or "exception" not in why else CERTAIN, [*facts, Fact(why, "reward")])
    if right and wrong and not part:
        examples = [t for t in run.texts if t.right][:1] + [t for t in run.texts if t.right is False][:2]
        facts.append(shown(examples, f"{len(right)} right and {len(wrong)} wrong completions are paid alike"))
    # neither "always wrong" nor, where wrong ones are among them, "always right"
    sure = abs(level) > 1e-9 and (abs(level - 1) > 1e-9 or (wrong and not part))
    always_wrong = abs(level) <= 1e-9 and not right and wrong
    return Evidence(CERTAIN + 0.05 if sure else LIKELY - 0.15 if always_wrong else LIKELY + 0.02, facts)


CONSTANT_REWARD = Cause(
    "constant_reward",
    "the reward pays every completion the same: a placeholder, or an exception turned into a score",
    find_constant_reward,
    f"{STILL} {LOST} nothing_moves too_hard too_easy too_sparse no_group_variance critic_useless reward_ignores_answer "
    "part_dies updates_too_large part_bought answer_form gold_mismatch kl_holds_policy",
    "have {reward} read the completion, and let an exception end the run; score gold answers before training: "
    "python scripts/reward_preflight.py --reward FILE.py:{reward} --data DATA",
    "python scripts/diagnose.py RUN --rescore --reward FILE.py:{reward}",
    "definition: equal scores give advantage 0; verl#3024",
)
