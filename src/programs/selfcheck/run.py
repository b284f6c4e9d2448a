"""The command line."""

import argparse
import contextlib
import gc
import json
import sys
import tempfile
import time

from parts.foundation.exit_codes import quiet_environment
from parts.foundation.messages import UserError, need, say, suggest, tell
from programs.selfcheck.advantage_checks import gae_formula, group_advantages, value_head_zero, value_loss_gradient
from programs.selfcheck.contract import contract
from programs.selfcheck.conversation_checks import (
    turn_ids,
    turn_mask,
    turn_rewards,
    turn_state,
    turn_template,
)
from programs.selfcheck.input_checks import reward_answers, special_tokens, template_ends_at_generation
from programs.selfcheck.partial import aside, load_partial, load_trainer, need_names, unchecked
from programs.selfcheck.policy_checks import (
    accumulation,
    advantages_detached,
    chunking,
    first_update_ratio,
    logprob_shift,
    padding,
    prompt_gradient,
    reference_is_initial,
    sampler_agreement,
)
from programs.selfcheck.prepare import cuts_for, expected_seconds, move, on_cuts, prepare
from programs.selfcheck.subject import Subject, rest

OF_TURNS = (turn_template, turn_ids, turn_mask, turn_rewards, turn_state)
CHECKS = (
    *(special_tokens, template_ends_at_generation, reward_answers, value_head_zero, gae_formula, group_advantages),
    *(reference_is_initial, first_update_ratio, sampler_agreement, logprob_shift, padding, accumulation, chunking),
    *(advantages_detached, prompt_gradient, value_loss_gradient, *OF_TURNS),
)
# those that need the weights of the run, or its tokens and no network
WHOLE = (special_tokens, template_ends_at_generation, reward_answers, logprob_shift, *OF_TURNS)


def selfcheck(file: str, flags: list[str], partial: bool = False, left_out: tuple = ()) -> list[dict]:
    """Load a trainer with its flags and run the checks; what keeps them from starting is a UserError.

    With `partial` it may lack a part of the contract; checks of that are not run, and say so. Nor are those left out.
    """
    known = [function.__name__ for function in CHECKS]
    for name in left_out:
        need(name in known, f"got --leave_out {name}; expected one of {', '.join(known)}{suggest(name, known)}")
    trainer = load_partial(file) if partial else load_trainer(file)
    need_names(file, trainer.parse(flags))
    settings = trainer.config
    cuts = cuts_for(settings)
    if not cuts:
        return run_checks(prepare(trainer), CHECKS, left_out)
    cut, names = cuts["model"], ", ".join(function.__name__ for function in WHOLE if function not in OF_TURNS)
    size, seconds = cut.parameters / 1e6, expected_seconds(cut)
    say(f"selfcheck: {size:,.0f} million parameters, about {seconds:.0f} s; {names} on all, the rest on {cut}")
    trainer.light = True
    results = run_checks(prepare(trainer), WHOLE, left_out, still=True)
    trainer.models = trainer.with_reference = trainer.engine = None
    gc.collect()
    with tempfile.TemporaryDirectory() as folder:
        trainer.light, trainer.on_cut = False, True
        trainer.config = on_cuts(settings, cuts, folder)
        others = [function for function in CHECKS if function not in WHOLE]
        results += run_checks(prepare(trainer), others, left_out, where=f"on {cut}: ")
    return sorted(results, key=lambda row: known.index(row["name"]))


def run_checks(s: Subject, checks, left_out: tuple = (), where: str = "", still: bool = False) -> list[dict]:
    """Run checks, a line on stderr for each; one that raises, or ends the program, fails with its exception's text.

    With `still` the policy stays as it was loaded.
    """
    results = []
    for function in checks:
        started, name = time.perf_counter(), function.__name__
        try:
            said = "left out, by --leave_out" if name in left_out else ""
            passed, text = None, said or unchecked(s.trainer, name)
            if not text:
                if function.moved and not (s.moved or still):
                    move(s)
                passed, text = function(s)
                text = where * (passed is not None) + text + aside(s.trainer, name)
        except (Exception, SystemExit) as error:
            rest(s.models)
            said = str(error).removeprefix("error: ")
            passed, text = False, said if isinstance(error, SystemExit) else f"{type(error).__name__}: {said}"
        status = {None: "n/a", True: "pass", False: "FAIL"}[passed if passed is None else bool(passed)]
        seconds = time.perf_counter() - started
        say(f"selfcheck: {name:<28} {status:<5} {seconds:5.1f} s")
        row = {"name": name, "status": status, "measured": " ".join(text.split())[:400]}
        results.append(row | {"try": function.advice if status == "FAIL" else ""})
    return results


def print_table(results: list[dict], seconds: float) -> None:
    """One line per check, then the count of each status."""
    for row in results:
        advice = f" | try: {row['try']}" if row["try"] else ""
        tell(f"{row['name']:<28} {row['status']:<5} {row['measured']}{advice}")
    counts = {status: sum(row["status"] == status for row in results) for status in ("pass", "FAIL", "n/a")}
    tell(", ".join(f"{n} {status}" for status, n in counts.items()), f"in {seconds:.1f} s")


def main(argv: list[str] | None = None) -> int:
    """Command line entry; returns the exit code."""
    parser = argparse.ArgumentParser(
        usage="selfcheck.py [-h] [--contract] TRAINER.py [the trainer's flags] [--partial] [--leave_out NAME] [--json]",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("trainer", metavar="TRAINER.py", nargs="?", help="the script to check; its flags follow")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of the table")
    parser.add_argument("--partial", action="store_true", help="check what a page has of the contract, tell the rest")
    own = "checks that are not for your method, such as group_advantages for a baseline that is not the group's mean"
    parser.add_argument("--leave_out", "--leave-out", nargs="+", default=[], metavar="NAME", help=own)
    parser.add_argument("--contract", action="store_true", help="print what a trainer must offer, and stop")
    options, flags = parser.parse_known_args(argv)
    if options.contract:
        tell(contract())
        return 0
    if not options.trainer:
        parser.error("got no TRAINER.py; expected it first, then its flags; try templates/ppo.py")
    quiet_environment()
    started = time.perf_counter()
    try:
        with contextlib.redirect_stdout(sys.stderr):  # a reward function may print
            results = selfcheck(options.trainer, flags, options.partial, options.leave_out)
    except UserError as error:
        say(f"error: {error}")
        return error.code
    seconds, passed = time.perf_counter() - started, all(row["status"] != "FAIL" for row in results)
    if options.json:
        report = {"trainer": options.trainer, "passed": passed, "seconds": round(seconds, 1), "checks": results}
        tell(json.dumps(report, indent=1, ensure_ascii=False))
    else:
        print_table(results, seconds)
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
