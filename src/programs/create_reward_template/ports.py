"""Ports between TRL and verl."""

import inspect
import json
import os
from pathlib import Path

from parts.foundation.file_text import file_text
from parts.foundation.messages import need, say
from parts.rewards.reward_forms import find_reward, is_per_sample, weight_of
from programs.create_reward_template.assembly import (
    CASES_ABOUT,
    CONTRACT,
    LOADING,
    SELF_TEST,
    assembled,
    contract_tests,
    head_of,
    listing,
    named,
    usage_notes,
)
from programs.create_reward_template.new_reward import example_columns
from programs.create_reward_template.weights import check_import, weights_of_list, without_trainer

PORT = file_text("files/port.py")
PORT_TO_TRL = file_text("files/port_to_trl.py")
ORIGINAL = "the original's"
DOUBLE = "```python\ndef double(x):\n    return 2 * x\n```"
TESTS_OF_DOUBLE = ["assert double(4) == 8", "assert double(0) == 0"]
NOT_COLUMNS = {
    *("prompts", "completions", "prompt", "completion", "completion_ids", "environments"),
    *("trainer_state", "log_extra", "log_metric"),
}
VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def is_async_callable(function) -> bool:
    """Whether calling a function, an instance of a class too, gives something to await."""
    return any(map(inspect.iscoroutinefunction, (function, getattr(function, "__call__", None))))  # noqa: B004


def sync_form(text: str) -> str:
    """The text of a port, written for async rewards, for those that are not."""
    lines = [line for line in text.splitlines(keepends=True) if not line.startswith("    results = await ")]
    text = "".join(lines).replace("await called(function, arguments)", "function(**arguments)")
    for name in ("compute_score", "reward_name"):
        text = text.replace(f"async def {name}", f"def {name}")
    return text


def ported(args) -> str:
    """The text of a port of --from, which fixes args.target and args.name."""
    spec = args.source
    file, _, name = spec.partition("*")[0].rpartition(":")
    file = without_trainer(args, spec, file, name)
    args.source = spec = f"{file}:{spec.rpartition(':')[2]}"
    check_import(spec, file)
    found, _ = find_reward(spec)
    several, star = isinstance(found, list), spec.partition("*")[2]
    if several and star.isidentifier() and not args.weights:  # as the trainers take them
        args.source, args.weights = spec.partition("*")[0], [star]
    weight_of(args.source)
    functions = found if several else [found]
    signatures = [inspect.signature(function).parameters for function in functions]
    weights = weights_of_list(args, file, name)
    one = len(functions) == 1 and weights == "[1.0]"
    is_verl = one and {"solution_str", "ground_truth"} <= {*signatures[0]}
    is_trl = not is_verl and all(
        is_per_sample(f) or "completions" in inspect.signature(f).parameters for f in functions
    )
    expected = "expected (prompts, completions, **columns) or (data_source, solution_str, ground_truth, …), "
    expected += "or (prompt, completion, **columns) for one sample"
    need(is_verl or is_trl, f"got --from {spec!r} with the arguments {', '.join(signatures[0])}; {expected}")
    target = "trl" if is_verl else "verl"
    if is_verl or (one and not is_per_sample(functions[0])):
        lacking = f"expected --for {target}, the contract that it does not have"
        need(args.target in (None, target), f"got --for {args.target} with --from {spec!r}; {lacking}")
    args.target = args.target or target
    if not one and name == args.name:  # a function is not called REWARDS
        args.name = name.lower() if name.isupper() else name
    path = os.path.relpath(Path(file).resolve(), Path(args.output or "reward.py").resolve().parent)
    need(path != Path(args.output or "").name, f"got --output {args.output}, the file of --from; expected another")
    constants = {"SOURCE": f"HERE / {json.dumps(path)}  # keep it there"}
    write = port_to_trl if is_verl else port_of_trl
    return write(args, functions, constants, weights)


def port_cases(args, gold: str, required: list[str]) -> str:
    """Completions and rows for the self-test of a port: those of --example, or made up from the gold column."""
    texts, row = ["42", "<answer>42</answer>", r"so it is \boxed{42}", "#### 42", "41", ""], {gold: "42"}
    if gold in ("tests", "test_cases", "test", "test_list"):
        texts, row = [DOUBLE, DOUBLE.replace("2 * x", "x + 4"), ""], {gold: TESTS_OF_DOUBLE}
    cases = [(text, row, ORIGINAL) for text in texts]
    if args.example:
        cases = [(e["completion"], example_columns(e), e.get("score", ORIGINAL)) for e in args.example]
    others = [name for name in required if name != gold]
    form = '{"completion": "…", ' + ", ".join(f'"{name}": …' for name in [gold, *others]) + "}"
    got = f"got --from {args.source!r}, which needs {', '.join(others)}"
    need(args.example or not others, f"{got}; expected a row for the self-test; try --example '{form}'")
    return listing("CASES", CASES_ABOUT, cases)


def required_columns(args, functions: list) -> tuple[list[str], set[str]]:
    """(columns that functions of TRL's contract require, all that they name); UserError for what verl cannot give."""
    signatures = [inspect.signature(function).parameters for function in functions]
    parameters = [p for s in signatures for p in s.values() if p.kind not in VARIADIC]
    required = list(dict.fromkeys(p.name for p in parameters if p.default is p.empty and p.name not in NOT_COLUMNS))
    names = {p.name for p in parameters}
    if args.target == "trl":
        return required, names
    whole = any(getattr(function, "needs_group", False) for function in functions)
    got = f"got --from {args.source!r}, which compares the completions of a prompt"
    need(not whole, f"{got}; verl scores each by itself; try ppo_train.py or grpo_train.py, which hand over groups")
    for name in ("completion_ids", "environments"):
        demanded = any(p.name == name and p.default is p.empty for p in parameters)
        need(not demanded, f"got --from {args.source!r}, which requires {name}; verl gives none; try a length in words")
        if name in names:
            of_source = args.source.partition("*")[0].rpartition(":")[2]
            say(f"note: {name} is not given in verl: {of_source} goes by what it does without")
    return required, names


def port_of_trl(args, functions: list, constants: dict, weights: str) -> str:
    """Rewards of TRL's contract, or of one sample, as a compute_score, as one reward of TRL's contract, or both."""
    required, names = required_columns(args, functions)
    usual = [n for n in ("answer", "tests", "test_cases", "solution", "ground_truth", "label") if n in names]
    gold = args.gold_column or next(iter([*(n for n in usual if n in required), *required, *usual]), "answer")
    constants |= {"CHAT": f"{args.completions == 'messages'}  # completions as chat messages, or text"}
    constants |= {"WEIGHT": str(weight_of(args.source)), "WEIGHTS": weights}
    text = PORT
    if weights.startswith("source"):
        text = text.replace("functions, WEIGHTS,", f"functions, {weights},")
    if not any(map(is_async_callable, functions)):
        text = sync_form(text)
    contracts = [name for name, other in (("TRL", "verl"), ("verl", "trl")) if args.target != other]
    kind = "a reward of TRL's contract" if weights == "[1.0]" else "the weighted sum of a list"
    columns = ", ".join(n for n in [*required, "prompt"] if n != gold)
    cases = port_cases(args, gold, required)
    return written_port(
        args, text, constants, cases, f"{kind}, for {' and '.join(contracts)}.", gold, required, columns
    )


def port_to_trl(args, functions: list, constants: dict, weights: str) -> str:
    """A reward of TRL's contract for a compute_score."""
    verl_gives = ("data_source", "solution_str", "ground_truth", "extra_info")
    fixed = [p for p in inspect.signature(functions[0]).parameters.values() if p.kind not in VARIADIC]
    unknown = [p.name for p in fixed if p.default is p.empty and p.name not in verl_gives]
    got = f"got --from {args.source!r}, which requires {', '.join(unknown)}"
    need(not unknown, f"{got}; expected only what verl gives without reward_kwargs; try a default")
    gold = args.gold_column or "answer"
    constants |= {"DATA_SOURCE": f"{args.data_source!r}  # for rows without a column data_source or source"}
    text = PORT_TO_TRL if is_async_callable(functions[0]) else sync_form(PORT_TO_TRL)
    cases = port_cases(args, gold, [])
    return written_port(args, text, constants, cases, "a reward of verl's contract, for TRL.", gold, [gold], "", PORT)


def written_port(args, text, constants, cases, about, gold, required, columns, *more: str) -> str:
    """The whole file of a port."""
    name = args.source.partition("*")[0].rpartition(":")[2]
    words = {"gold_column": gold, "reward_name": args.name, "source_name": name}
    texts = [named(part, required, **words) for part in (CONTRACT, LOADING)]
    texts += [cases, *(named(part, required, **words) for part in (text, *more, SELF_TEST))]
    roots = [args.name] * (args.target != "verl") + ["compute_score"] * (args.target != "trl") + ["self_test"]
    about = f"{name} of {Path(args.source.rpartition(':')[0]).name}, {about}"
    head = head_of(about, usage_notes(args, gold, columns))
    return assembled(head, texts, roots, constants | {"TESTS": f"[{', '.join(contract_tests(args))}]"})
