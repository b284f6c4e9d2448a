"""A code reward as the user wants to call it: its signature, its limits, all of it in one file."""

import ast
import re

from parts.foundation.file_text import file_text
from parts.foundation.messages import need
from programs.create_reward_template.assembly import assembled, named
from programs.create_reward_template.tasks import PASSES_TESTS
from programs.create_reward_template.trials import SCRIPTS

ONE_FILE = file_text("files/one_file.py")
START_SERVER = '\n\nif __name__ == "__main__" and sys.argv[1:2] == ["--server"]:\n    serve(int(sys.argv[2]))\n'


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
    return header.sub(lambda match: match[1] + ", ".join([*parameters, *rest, match[2]]), text, count=1)


def limits_of(args) -> str:
    """LIMITS of a code reward, as code."""
    limits = {"timeout_s": args.timeout_s}
    if args.per == "completion":
        limits["total_timeout_s"] = args.timeout_s
    limits |= {"memory_mb": args.memory_mb, "strict": True}  # strict: raise where nothing isolates a program
    return repr(limits | ({"stop_at_first_failure": True} if args.stop_at_first_failure else {})).replace("'", '"')


def code_reward(args) -> str:
    """The text of the task passes_tests: beside sandbox.py, or with it inside."""
    words = {"gold_column": args.gold_column or "tests", "reward_name": args.name}
    text = named(ONE_FILE if args.one_file else PASSES_TESTS, [words["gold_column"]], **words)
    text = text.replace("my_reward.py", args.output.name, 1)
    if not args.one_file:
        return re.sub(r"^LIMITS = \{.*\}", lambda _: f"LIMITS = {limits_of(args)}", text, flags=re.MULTILINE)
    path = SCRIPTS / "sandbox.py"
    need(path.is_file(), f"got --one_file, and no {path}; expected it beside this script")
    sandbox, head = path.read_text(encoding="utf-8"), text[: text.index("import re\n")]
    constants = {"LIMITS": limits_of(args), "WHOLE_WITHOUT_FENCE": str(args.no_fence == "whole")}
    return (
        assembled(head, [sandbox, text.replace("sandbox import", "waiting import")], [args.name, "serve"], constants)
        + START_SERVER
    )
