"""A code reward as the user calls it: its signature, its limits, everything in one file; its trial on programs."""

import ast
import re

from parts.foundation.messages import UserError, need, say
from parts.foundation.user_scripts import defaults_of
from parts.rewards.attacks import TEST_OF_ATTACKS, attack_programs, called_on_programs
from programs.create_reward_template.assembly import assembled, named
from programs.create_reward_template.tasks import PASSES_TESTS, SCRIPTS, limits_of

BESIDE = "sandbox.py stands beside this file: standard library alone, on Linux."
INSIDE = """The sandbox is inside, so this file needs only the standard library, on Linux; the reward stands at the end.
Read run_code first."""
START = '\n\nif __name__ == "__main__"'
START_SERVER = START + ' and sys.argv[1:2] == ["--server"]:\n    serve(int(sys.argv[2]), ROLES)\n'
TRIAL_S = 120  # seconds that a trial may take: 4 are usual, nearly all of them for the endless loop
NOT_AGAINST = (
    "weak tests; tests that take the program's own word (PAY_WEAK_TESTS); secrets in Python's library folders; holes "
    "in the kernel"
)
OF_TRL = ("prompt", "prompts", "completion_ids")  # parameters that are neither answers nor columns
ANSWERS = re.compile("(completion|program|code|solution|response|generation|submission|candidate|prediction)s?")
RIGHT_AT_0 = "programs that need processes, network or files, more than {timeout_s:g} s {in_what} or {memory_mb} MiB"
IN_WHAT = {"call": "in a call", "test": "in a test, 4 to 10 times that in all,", "completion": "in all tests"}


def read_signature(text: str) -> tuple[str, str, list[str]]:
    """(name, parameter of the answers, parameters) of NAME(completions, COLUMN, …), whose first column is the gold one.

    Columns after the first may have the default None.
    """
    got = f"got --signature {text!r}; expected NAME(completions, COLUMN) such as code_reward(completions, tests)"
    try:
        (function,) = ast.parse(f"def {text.strip().removeprefix('def ').rstrip(':')}:\n    pass").body
        defaults = defaults_of(function.args)
    except (SyntaxError, ValueError, AttributeError):
        raise UserError(got) from None
    fixed = [name for name, value in defaults.items() if value is not None and ast.unparse(value) != "None"]
    need(not fixed, f"{got}, without a default of {', '.join(fixed)}; try --timeout_s and --memory_mb for limits")
    named = sorted(filter(ANSWERS.fullmatch, defaults), key=lambda name: not name.startswith("completion"))
    need(named, f"{got}; code, programs, solutions, responses or the like may stand for completions")
    columns = [name for name in defaults if name not in (named[0], *OF_TRL)]
    need(columns, f"{got}, with a column")
    need([*defaults][len(defaults) - len(columns) + 1 :] == columns[1:], f"{got}; try {', '.join(columns[1:])} last")
    return function.name, named[0], [*defaults]


def with_signature(text: str, args) -> str:
    """A written reward with a function of the parameters of --signature, which calls the one for a batch by keyword."""
    name, one = args.name.removesuffix("_batch"), not args.answers.endswith("s")
    prompt = "prompt" if one else "prompts"
    others = [x for x in args.parameters if x not in (args.answers, args.gold_column, prompt)]
    header = [x + "=None" if x in others and x not in OF_TRL else x for x in args.parameters]
    header += [] if prompt in args.parameters else [f"{prompt}=None"]
    given = {"prompts": prompt, "completions": args.answers} | {x: x for x in (args.gold_column, *others)}
    if not one:  # one text stands for all rows
        of_all = {"entry_point", "setup"} & {*others}
        given |= {x: f"[{x}] * len({args.answers}) if isinstance({x}, str) else {x}" for x in of_all}
    call = ", ".join(f"{x}=[{value}]" if one else f"{x}={value}" for x, value in given.items())
    lines = [f"def {name}({', '.join(header)}, **kwargs):"]
    lines += [f'    """What {args.name} says of {"one answer" if one else "answers"}."""']
    if one:
        lines.append("    kwargs = {name: [value] for name, value in kwargs.items()}")
    lines.append(f"    return {args.name}({call}, **kwargs)" + ("[0]" if one else ""))
    if args.task in ("code", "passes_tests") and (unread := {*others} - {"entry_point", "setup", *OF_TRL}):
        say(f"note: {args.output} does not read {', '.join(sorted(unread))} of --signature; edit it if it should")
    if args.answers == "completions":  # so that TRL can call it
        text, args.name = text.replace(f":{args.name}", f":{name}", 1), name
    body, main, end = text.rpartition(START) if START in text else (text, "", "")
    return body.rstrip() + "\n\n\n" + "\n".join(lines) + "\n" + main + end


def sandbox_source() -> str:
    """The sandbox that --one_file includes."""
    path = SCRIPTS / "sandbox.py"
    need(path.is_file(), f"got --one_file, but no {path}; expected it beside this script")
    return path.read_text(encoding="utf-8")


def code_reward(args) -> str:
    """The text of the task passes_tests: beside sandbox.py, or with it inside."""
    gold = args.gold_column or "tests"
    text = named(PASSES_TESTS, [gold], gold_column=gold, reward_name=args.name)
    text = text.replace("my_reward.py", args.output.name, 1)
    constants = {"LIMITS": limits_of(args), "PAY": f'"{args.pay}"', "WHOLE_WITHOUT_FENCE": args.no_fence == "whole"}
    for name, value in constants.items():
        text = re.sub(
            rf"^{name} = (\{{.*\}}|\S+)", lambda _, pair=(name, value): "{} = {}".format(*pair), text, flags=re.M
        )
    if not args.one_file:
        return text
    text = text.replace(BESIDE, INSIDE).replace("from sandbox", "from waiting")
    return (
        assembled(text[: text.index("import ")], [sandbox_source(), text], [args.name, "serve", "ROLES"]) + START_SERVER
    )


def tried_on_programs(args) -> dict:
    """What the written reward pays for right and for hostile programs, and what holds of it.

    Raises:
        UserError: it raised, as it does where nothing isolates programs.
    """
    kinds, names, codes = map(list, zip(*attack_programs(), strict=True))
    row = {"prompt": [{"role": "user", "content": ""}], args.gold_column or "tests": [TEST_OF_ATTACKS]}
    outcome = called_on_programs(str(args.output.resolve()), args.name, row, codes, TRIAL_S)
    if "ended" in outcome:
        return {"ready": False, "ended": outcome["ended"]}
    if "raised" in outcome:
        raise UserError(f"got {outcome['raised']} from {args.output}; nothing is written; try sandbox.py --report")
    tried = list(zip(kinds, names, outcome["scores"], strict=True))
    hostile = [name for kind, name, _ in tried if kind == "hostile"]
    missed = [name for kind, name, score in tried if kind == "right" and score != 1.0]
    paid = [name for kind, name, score in tried if kind == "hostile" and score]
    report = {"ready": not paid and not missed, "right_programs": kinds.count("right"), "not_paid_of_them": missed}
    report |= {"hostile_programs": hostile, "paid_of_them": paid, "isolated": outcome["isolated"]}
    report |= {"not_against": NOT_AGAINST, "on_your_rows": f"prove.py {args.output}:{args.name} --data FILE"}
    return report | {"right_but_0": RIGHT_AT_0.format(in_what=IN_WHAT[args.per], **vars(args))}
