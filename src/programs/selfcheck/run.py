"""Load and prepare the trainer, run the checks, the command line."""

import argparse
import contextlib
import json
import re
import sys
import time
from pathlib import Path

from parts.foundation.bundle import in_bundle
from parts.foundation.exit_codes import quiet_environment
from parts.foundation.messages import Help, UserError, need, say, suggest, tell
from parts.foundation.processes import torch
from parts.rewards.reward_forms import import_file
from programs.selfcheck.adapters import CONTRACT, OnePage, ScriptsTrainer
from programs.selfcheck.conversation_checks import TURN_CHECKS
from programs.selfcheck.input_checks import INPUT_CHECKS
from programs.selfcheck.numeric_checks import NUMERIC_CHECKS, own_logprobs
from programs.selfcheck.trainer import PROBES, Trainer, networks, rest

PROBE_TOKENS = 64  # of a real prompt that a probe is cut from
CHECKS = (*INPUT_CHECKS, *NUMERIC_CHECKS, *TURN_CHECKS)


def load_trainer(file: str) -> Trainer:
    """Load a trainer's file; UserError if it cannot be loaded or lacks a name of the contract."""
    path = Path(file)
    need(
        path.suffix == ".py" and path.is_file(),
        f"got trainer {file!r}, which is not a Python file; expected TRAINER.py first, then its flags; "
        f"try {in_bundle('scripts/ppo_train.py')}",
    )
    sys.dont_write_bytecode = True  # no __pycache__ beside the trainer or the reward file
    module = import_file("trainer", file, file)
    kind = ScriptsTrainer if {"HFEngine", "settle_precision"} & vars(module).keys() else OnePage
    trainer, source = kind(module), path.read_text(encoding="utf-8")
    names = trainer.missing()
    need(
        not names or not re.search(r"^\s*from trl\b.*Trainer\b", source, re.MULTILINE),
        f"got trainer {file!r}, which leaves the training to TRL; expected one in plain PyTorch, whose own functions "
        f"can be called; try {in_bundle('templates/grpo.py')}",
    )
    need(
        not names,
        f"got trainer {file!r} without {', '.join(names)}; expected all that the checks call; try selfcheck.py "
        "--contract, or a copy of templates/grpo.py beside it and `from grpo import *` before your own functions",
    )
    return trainer


def prepare(s: Trainer) -> None:
    """Load everything through the trainer, and make the probes.

    Raises:
        UserError: the checks cannot start.
    """
    try:
        s.load()
        s.probes = make_probes(s.rows, s.takes_holes)
        s.initial = own_logprobs(s)
    except s.user_errors as error:
        raise UserError(str(error).removeprefix("error: ")) from error
    except Exception as error:
        raise UserError(f"got {type(error).__name__} before the first check: {' '.join(str(error).split())}") from error


def make_probes(rows: list[dict], holes: bool) -> list[dict]:
    """Samples cut from real prompts, all different: prompts get longer, responses shorter.

    With `holes`, the second response has a token that was not sampled, as if from a tool.
    """
    probes = []
    for i, row in enumerate(rows[:PROBES]):
        ids = list(row["prompt_ids"])[-PROBE_TOKENS:]
        endless = ids * (2 * PROBES + 4)
        sample = {"prompt": row["prompt"], "prompt_ids": endless[: len(ids) + 2 * i], "completion": ""}
        response = endless[1 : 4 + 2 * (PROBES - i)]
        sample |= {"response_ids": response, "rollout_logprobs": [0.0] * len(response), "finished": True}
        sample["response_mask"] = [int(not (holes and i == 1 and j == 2)) for j in range(len(response))]
        score = 1.6 + (1.5 - 0.5 * (i // 2)) * (-1) ** i + 0.1 * i  # distinct, positive; groups differ in spread
        sample |= {"rewards": {"probe": score}, "weights": {"probe": 1.0}, "group": i // 2, "baseline": 0.0}
        probes.append(sample | {"score": score})
    return probes


def move(s: Trainer) -> None:
    """Add noise to the trained weights, in memory, until the policy differs clearly from the untouched one."""
    scale, enough = 0.01, max(0.05, 3 * s.limits[0])  # nats per token
    for attempt in range(8):
        generator = torch.Generator(s.device).manual_seed(attempt)
        with torch.no_grad():
            for p in (p for network in networks(s.models) for p in network.parameters() if p.requires_grad):
                size = p.abs().mean().item() or 1.0  # LoRA's B and the value head are 0
                noise = torch.randn(p.shape, generator=generator, device=p.device, dtype=p.dtype)
                p.add_(noise, alpha=scale * size)
        s.moved = (own_logprobs(s) - s.initial).abs().mean().item()
        if s.moved >= enough:
            break
        scale *= 2
    if s.engine:
        s.engine.sync()


def selfcheck(file: str, flags: list[str], left_out: list[str]) -> list[dict]:
    """Load a trainer with its flags and run the checks; UserError if they cannot start."""
    known = [function.__name__ for function in CHECKS]
    for name in left_out:
        need(name in known, f"got --leave_out {name}; expected one of {', '.join(known)}{suggest(name, known)}")
    gone = "got --partial, which was removed; expected all of --contract; try `from grpo import *` of a template's copy"
    need("--partial" not in flags, gone)
    trainer = load_trainer(file)
    trainer.parse(flags)
    prepare(trainer)
    return [result_of(trainer, function, left_out) for function in CHECKS]


def result_of(s: Trainer, function, left_out: list[str]) -> dict:
    """Run a check and report it on stderr; if it raises or exits, it fails with the exception's text."""
    started, name = time.perf_counter(), function.__name__
    try:
        if function.moved and not s.moved:
            move(s)
        idle = "left out, by --leave_out" if name in left_out else ""
        if function.plays and not (s.plays and hasattr(s, "play")):
            idle = "of pages with an environment" if s.plays else "one answer a prompt: no environment"
        passed, text = (None, idle) if idle else function(s)
    except (Exception, SystemExit) as error:
        rest(s.models)
        kind = "" if isinstance(error, SystemExit) else f"{type(error).__name__}: "
        passed, text = False, kind + str(error).removeprefix("error: ")
    status = "n/a" if passed is None else "pass" if passed else "FAIL"
    say(f"selfcheck: {name:<28} {status:<5} {time.perf_counter() - started:5.1f} s")
    advice = function.advice if status == "FAIL" else ""
    return {"name": name, "status": status, "measured": " ".join(text.split())[:400], "try": advice}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        usage="selfcheck.py [-h] [--contract] TRAINER.py [the trainer's flags] [--leave_out NAME] [--json]",
        description=__doc__,
        formatter_class=Help,
        allow_abbrev=False,
    )
    parser.add_argument("trainer", metavar="TRAINER.py", nargs="?", help="the script to check; its flags follow")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of the table")
    text = "checks that do not fit your method, such as group_advantages for a baseline that is not the group's mean"
    parser.add_argument("--leave_out", "--leave-out", nargs="+", default=[], metavar="NAME", help=text)
    parser.add_argument("--contract", action="store_true", help="print what a trainer must offer, and stop")
    options, flags = parser.parse_known_args(argv)
    if options.contract:
        tell(CONTRACT.rstrip())
        return 0
    if not options.trainer:
        parser.error(f"got no TRAINER.py; expected it first, then its flags; try {in_bundle('templates/ppo.py')}")
    quiet_environment()
    started = time.perf_counter()
    try:
        with contextlib.redirect_stdout(sys.stderr):  # a reward function may print
            results = selfcheck(options.trainer, flags, options.leave_out)
    except UserError as error:
        say(f"error: {error}")
        return error.code
    seconds, passed = time.perf_counter() - started, all(row["status"] != "FAIL" for row in results)
    if options.json:
        report = {"trainer": options.trainer, "passed": passed, "seconds": round(seconds, 1), "checks": results}
        tell(json.dumps(report, indent=1, ensure_ascii=False))
    else:
        for row in results:
            advice = f" | try: {row['try']}" if row["try"] else ""
            tell(f"{row['name']:<28} {row['status']:<5} {row['measured']}{advice}")
        counts = [f"{sum(row['status'] == status for row in results)} {status}" for status in ("pass", "FAIL", "n/a")]
        tell(f"{', '.join(counts)} in {seconds:.1f} s")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
