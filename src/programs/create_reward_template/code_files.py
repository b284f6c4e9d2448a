"""A code reward as the user calls it: its signature, its limits, everything in one file; its trial on programs."""

import ast
import re

from parts.foundation.file_text import file_text
from parts.foundation.messages import UserError, need, say
from parts.foundation.user_scripts import defaults_of
from parts.rewards.attacks import TEST_OF_ATTACKS, attack_programs, called_on_programs
from programs.create_reward_template.assembly import assembled, named
from programs.create_reward_template.tasks import PASSES_TESTS, SCRIPTS, limits_of

ONE_FILE = file_text("files/one_file.py")
START = '\n\nif __name__ == "__main__"'
START_SERVER = START + ' and sys.argv[1:2] == ["--server"]:\n    serve(int(sys.argv[2]), ROLES)\n'
TRIAL_S = 120  # seconds that a trial may take: 4 are usual, nearly all of them for the endless loop
NOT_AGAINST = (
    "weak tests; tests that take the program's own word (PAY_WEAK_TESTS); secrets in Python's library folders; holes "
    "in the kernel"
)
OF_TRL = ("prompts", "completion", "completions", "completion_ids")  # parameters that are no columns
ANSWERS = re.compile("(program|code|solution|response|generation|submission|candidate|prediction)s?(_strs?|_texts?)?")
_COLUMNS = "entry_point fn_name func_name function_name, setup setup_code test_setup_code, outputs expected_outputs"
OF_ROW = {name: one.split()[0] for one in _COLUMNS.split(", ") for name in one.split()}  # column: what the reward reads
LIMIT = re.compile(
    r"(?:max_|per_|test_)*(?:(time_?out|time_?limit|seconds)|mem(?:ory)?(?:_limit)?)(?:_s|_secs?|_seconds|_mi?b)?(?:_per_test)?"
)
UNITS = {
    "timeout_s": {"": 1, "s": 1, "sec": 1, "seconds": 1, "ms": 0.001, "min": 60},
    "memory_mb": {"": 1, "m": 1, "mb": 1, "mib": 1, "g": 1024, "gb": 1024, "gib": 1024},
}
RIGHT_AT_0 = "programs that need processes, network or files, more than {timeout_s:g} s {in_what} or {memory_mb} MiB"
IN_WHAT = {"call": "in a call", "test": "in a test, 4 to 10 times that in all,", "completion": "in all tests"}


def amount(limit: str, text) -> float:
    """The seconds or MiB of a limit such as 2, "500ms", "256MiB" or "1 GB"."""
    match = re.fullmatch(r"(\d+\.?\d*|\.\d+) ?([a-z]*)", str(text).strip().lower())
    value = float(match[1]) * UNITS[limit].get(match[2], 0) if match else 0
    value = int(value) if limit == "memory_mb" else value
    need(value > 0, f"got {limit} {text}; expected numbers above 0, such as 2 or 500ms of time, 256 or 1GB of memory")
    return value


def read_signature(text: str) -> tuple[str, str, str, dict[str, str]]:
    """(name, parameter of the answers, gold column, {parameter: its default as code, or ""}) of NAME(completions, …).

    Columns after the first are optional.
    """
    got = f"got --signature {text!r}; expected NAME(completions, COLUMN) such as code_reward(completions, tests)"
    try:
        (function,) = ast.parse(f"def {text.strip().removeprefix('def ').rstrip(':')}:\n    pass").body
        parameters = {name: ast.unparse(value) if value else "" for name, value in defaults_of(function.args).items()}
    except (SyntaxError, ValueError, AttributeError):
        raise UserError(got) from None
    answers = [name for name in parameters if name in ("completion", "completions")]
    answers = [*answers, *filter(ANSWERS.fullmatch, parameters), ""][0]
    gold, *_ = [name for name in parameters if name not in (*OF_TRL, answers, "prompt") and not limit_of(name)] or [""]
    need(gold and answers, f"{got}; code, programs, solution, responses or the like may stand for completions")
    given = [gold, answers, *OF_TRL] + ([] if answers.endswith("s") else ["prompt"])
    parameters |= {name: parameters[name] or "None" for name in parameters if name not in given}
    required = [name for name, default in parameters.items() if not default]
    need([*parameters][: len(required)] == required, f"{got}; try {', '.join(required)} first")
    return function.name, answers, gold, parameters


def limit_of(name: str) -> str | None:
    """The limit that a parameter sets, such as "memory_mb" for max_memory_mb; None for others."""
    match = LIMIT.fullmatch(name)
    return match and ("timeout_s" if match[1] else "memory_mb")


def take_limits(args) -> None:
    """Make the signature's defaults of limits those of the flags; a limit without a default gets the flag's."""
    for name, limit in [(name, limit_of(name)) for name in args.parameters if limit_of(name)]:
        if args.parameters[name] != "None":
            setattr(args, limit, amount(limit, args.parameters[name].strip("'\"")))
        args.parameters[name] = str(getattr(args, limit))


def with_columns(text: str, further: list[str], args) -> str:
    """A code reward that reads limits, a function's name and outputs from the further parameters of its signature."""
    lines, read = "", {OF_ROW[name]: name for name in further if name in OF_ROW}
    for name in filter(limit_of, further):  # one number, or a list with one for each completion, or None
        is_total = args.per == "completion" and limit_of(name) == "timeout_s"
        total = ' = about["total_timeout_s"]' if is_total else ""
        lines += f"        if (limit := {name}[i] if isinstance({name}, list) else {name}) is not None:\n"
        lines += f'            about["{limit_of(name)}"]{total} = float(limit)\n'
    text = text.replace("        jobs.append(", f"{lines}        jobs.append(", 1)
    if outputs := read.get("outputs"):
        function = f', "fn_name": {read["entry_point"]} and {read["entry_point"]}[i]' if "entry_point" in read else ""
        line = f'        checks = {{"inputs": checks, "outputs": {outputs}[i]{function}}} if {outputs} else checks\n'
        text = text.replace("        about =", f"{line}        about =", 1)
    if unread := [name for name in further if name not in OF_ROW and not limit_of(name)]:
        say(f"note: the reward does not read {', '.join(unread)} of --signature; edit {args.output} if it should")
    return text


def with_signature(text: str, args) -> str:
    """A written reward whose function has the parameters of --signature first; all callers of ours pass keywords."""
    plain = {args.answers: "completions"} | ({} if args.answers.endswith("s") else {"prompt": "prompts"})  # for a batch
    header = [f"{plain.get(name, name)}={default}".rstrip("=") for name, default in args.parameters.items()]
    if "prompts" not in {plain.get(name, name) for name in args.parameters}:
        header.append("prompts=None")
    further = [name for name in args.parameters if name not in (*OF_TRL, *plain, args.gold_column)]
    if args.task == "passes_tests":
        text = with_columns(text, further, args)
        further = [name for name in further if not limit_of(name)]
    if "completion_ids" in args.parameters:  # which TRL gives; so does the self-test
        text = text.replace("completions=[text], **", "completions=[text], completion_ids=[[]], **")
    start = rf"^((?:async )?def {args.name}\()(?:prompts, )?completions, \w+(?:=None)?, \*\*(\w+)(.*\n.*\n)"
    values = {name: f"[{name}] * len(completions) if isinstance({name}, str) else {name}" for name in further}
    added = "".join(f'    \\2["{OF_ROW.get(name, name)}"] = {value}\n' for name, value in values.items())  # from its **
    text = re.sub(start, rf"\1{', '.join(header)}, **\2\3{added}", text, count=1, flags=re.MULTILINE)
    return text if args.answers == "completions" else with_caller(text, plain, args)


def with_caller(text: str, plain: dict[str, str], args) -> str:
    """A written reward that scores one answer, or names the answers otherwise, by a function for a batch."""
    one, batch = not args.answers.endswith("s"), f"{args.name}_batch"
    usual_name = "completion" if one else "completions"  # as trainers name the answers
    missing = "" if args.answers == usual_name else "None"
    header = [f"{name}={default or missing}".rstrip("=") for name, default in args.parameters.items()]
    header += [f"{usual_name}=None"] if missing else []
    call = [f"{plain.get(x, x)}=" + (f"[{x}]" if one and not limit_of(x) else x) for x in args.parameters]
    kind, wait = ("async ", "await ") if f"async def {args.name}(" in text else ("", "")
    text = re.sub(rf"(?m)(?:(?<=^def )|(?<=^async def )){args.name}(?=\()|\b{args.name}(?=\(prompts=)", batch, text)
    body, main, end = text.rpartition(START) if START in text else (text, "", "")
    lines = [f"{kind}def {args.name}({', '.join(header)}, **kwargs):"]
    lines += [f'    """What {batch} says of {"one answer" if one else "answers"}; trainers say `{usual_name}`."""']
    if missing:
        lines.append(f"    {args.answers} = {usual_name} if {args.answers} is None else {args.answers}")
    if one:
        lines.append("    kwargs = {name: [value] for name, value in kwargs.items()}")
    lines += [
        f"    scores = {wait}{batch}({', '.join(call)}, **kwargs)",
        f"    return scores{'[0]' if one else ''}",
        "",
    ]
    if one:
        args.name = batch  # what TRL can call
    return body.rstrip() + "\n\n\n" + "\n".join(lines) + main + end


def sandbox_source() -> str:
    """The sandbox that --one_file includes."""
    path = SCRIPTS / "sandbox.py"
    need(path.is_file(), f"got --one_file, but no {path}; expected it beside this script")
    return path.read_text(encoding="utf-8")


def code_reward(args) -> str:
    """The text of the task passes_tests: beside sandbox.py, or with it inside."""
    words = {"gold_column": args.gold_column or "tests", "reward_name": args.name}
    text = named(ONE_FILE if args.one_file else PASSES_TESTS, [words["gold_column"]], **words)
    text = text.replace("my_reward.py", args.output.name, 1).replace('PAY = "all"', f'PAY = "{args.pay}"', 1)
    if not args.one_file:
        return re.sub(r"^LIMITS = \{.*\}", lambda _: f"LIMITS = {limits_of(args)}", text, flags=re.MULTILINE)
    head, body = text[: text.index("import re\n")], text.replace("sandbox import", "waiting import")
    constants = {"LIMITS": limits_of(args), "WHOLE_WITHOUT_FENCE": str(args.no_fence == "whole")}
    return assembled(head, [sandbox_source(), body], [args.name, "serve", "ROLES"], constants) + START_SERVER


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
