"""A code reward as the user calls it: its signature, its limits, everything in one file; its trial on programs."""

import ast
import re

from parts.foundation.file_text import file_text
from parts.foundation.messages import UserError, need
from parts.rewards.attacks import TEST_OF_ATTACKS, attack_programs, called_on_programs
from programs.create_reward_template.assembly import assembled, named
from programs.create_reward_template.tasks import PASSES_TESTS
from programs.create_reward_template.trials import SCRIPTS

ONE_FILE = file_text("files/one_file.py")
START_SERVER = '\n\nif __name__ == "__main__" and sys.argv[1:2] == ["--server"]:\n    serve(int(sys.argv[2]))\n'
TRIAL_S = 120  # seconds that a trial may take: 4 are usual, nearly all of them for the endless loop
# what the attacks of the sandbox's own tests say
HOLDS = (
    "endless loops, exits with success, objects equal to everything, forged output, patched judges, killed parents, "
    "processes and files left behind, files deleted, changed and read, network, secrets of the environment, memory, "
    "much output"
)
NOT_AGAINST = (
    "weak tests; tests that take the program's own word (PAY_WEAK_TESTS); secrets in Python's library folders; holes "
    "in the kernel"
)
RIGHT_AT_0 = "programs that need processes, network or files, more than {timeout_s:g} s a {per} or {memory_mb} MiB"


def read_signature(text: str) -> tuple[str, list[str]]:
    """(name, parameters but ** and *) of NAME(completions, COLUMN, ...)."""
    got = f"got --signature {text!r}; expected NAME(completions, COLUMN) such as code_reward(completions, tests)"
    try:
        (function,) = ast.parse(f"def {text.strip().removeprefix('def ').rstrip(':')}:\n    pass").body
        parameters = [x.arg for x in (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)]
    except (SyntaxError, ValueError, AttributeError):
        need(False, got)
    columns = [name for name in parameters if name not in ("prompts", "completions", "completion_ids")]
    need("completions" in parameters and len(columns) == 1, f"{got}; further columns come by ** as it is")
    return function.name, parameters


def with_signature(text: str, name: str, parameters: list[str]) -> str:
    """A written reward whose function has these parameters first; all callers of ours pass keywords."""
    rest = ["prompts=None"] * ("prompts" not in parameters)
    header = re.compile(rf"^((?:async )?def {name}\()(?:prompts, )?completions, \w+(?:=None)?, (\*\*\w+)", re.MULTILINE)
    if "completion_ids" in parameters:  # which TRL gives; so does the self-test
        text = text.replace("completions=[text], **", "completions=[text], completion_ids=[[]], **")
    return header.sub(lambda match: match[1] + ", ".join([*parameters, *rest, match[2]]), text, count=1)


def limits_of(args) -> str:
    """LIMITS of a code reward, as code."""
    limits = {"timeout_s": args.timeout_s}
    if args.per == "completion":
        limits["total_timeout_s"] = args.timeout_s
    limits |= {"memory_mb": args.memory_mb, "strict": True}  # strict: raise where nothing isolates a program
    return repr(limits | ({"stop_at_first_failure": True} if args.stop_at_first_failure else {})).replace("'", '"')


def sandbox_source() -> str:
    """The sandbox that --one_file includes."""
    path = SCRIPTS / "sandbox.py"
    need(path.is_file(), f"got --one_file, but no {path}; expected it beside this script")
    return path.read_text(encoding="utf-8")


def code_reward(args) -> str:
    """The text of the task passes_tests: beside sandbox.py, or with it inside."""
    words = {"gold_column": args.gold_column or "tests", "reward_name": args.name}
    text = named(ONE_FILE if args.one_file else PASSES_TESTS, [words["gold_column"]], **words)
    text = text.replace("my_reward.py", args.output.name, 1)
    if not args.one_file:
        return re.sub(r"^LIMITS = \{.*\}", lambda _: f"LIMITS = {limits_of(args)}", text, flags=re.MULTILINE)
    head, body = text[: text.index("import re\n")], text.replace("sandbox import", "waiting import")
    constants = {"LIMITS": limits_of(args), "WHOLE_WITHOUT_FENCE": str(args.no_fence == "whole")}
    return assembled(head, [sandbox_source(), body], [args.name, "serve"], constants) + START_SERVER


def tried_on_programs(args) -> dict:
    """What the written reward pays for right and for hostile programs, and what holds of it.

    Raises:
        UserError: it raised, as it does where nothing isolates programs.
    """
    kinds, names, codes = map(list, zip(*attack_programs(), strict=True))
    row = {"prompt": [{"role": "user", "content": ""}], args.gold_column or "tests": [TEST_OF_ATTACKS]}
    told = called_on_programs(str(args.output.resolve()), args.name, row, codes, TRIAL_S)
    if "ended" in told:
        return {"ready": False, "ended": told["ended"]}
    if "raised" in told:
        raise UserError(f"got {told['raised']} from {args.output}; nothing is written; try sandbox.py --report")
    tried = list(zip(kinds, names, told["scores"], strict=True))
    hostile = [name for kind, name, _ in tried if kind == "hostile"]
    missed = [name for kind, name, score in tried if kind == "right" and score != 1.0]
    paid = [name for kind, name, score in tried if kind == "hostile" and score]
    report = {"ready": not paid and not missed, "right_programs": kinds.count("right"), "not_paid_of_them": missed}
    report |= {"hostile_programs": hostile, "paid_of_them": paid, "isolated": told["isolated"]}
    return report | {"holds_against": HOLDS, "not_against": NOT_AGAINST, "right_but_0": RIGHT_AT_0.format(**vars(args))}
