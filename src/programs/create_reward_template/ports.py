"""Ports between TRL and verl."""

import inspect
import json
import os
from pathlib import Path

from parts.foundation.messages import need, say
from parts.rewards.reward_forms import find_reward, is_per_sample, weight_of
from programs.create_reward_template.assembly import head_of, listing, put_in, usage_notes, with_imports
from programs.create_reward_template.check_texts import COMPLETION_TEXT, SELF_TEST, TRL_ROWS, VERL_ROW
from programs.create_reward_template.new_reward import example_columns
from programs.create_reward_template.new_reward_texts import DOUBLE, TESTS
from programs.create_reward_template.port_texts import (
    CALL_ASYNC,
    CALL_SYNC,
    GATHERED,
    LOAD_SOURCE,
    LOOP,
    ORIGINAL_ASYNC,
    ORIGINAL_SCORE,
    ORIGINAL_SYNC,
    PARTS,
    SPREAD,
    TEST_TO_TRL,
    TEST_TO_TRL_SUM,
    TEST_TO_VERL,
    TO_TRL,
    TO_TRL_SUM,
    TO_VERL,
    WAITED,
)
from programs.create_reward_template.weights import check_import, weights_of_list, without_trainer


def is_async_callable(function) -> bool:
    """Whether calling a function, an instance of a class too, gives something to await."""
    return any(map(inspect.iscoroutinefunction, (function, getattr(function, "__call__", None))))  # noqa: B004


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
    one = len(functions) == 1 and weights[1] == "[1.0]"
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
    words = {"function": name, "source": json.dumps(path), "weights": weights[1]}
    return (
        port_to_trl(args, functions, signatures, words) if is_verl else port_of_trl(args, functions, weights[0], words)
    )


def port_cases(args, gold: str, required: list[str]) -> list[tuple]:
    """Completions and rows for the self-test of a port: those of --example, or made up from the gold column."""
    original = "the original's"
    if args.example:
        return [(e["completion"], example_columns(e), e.get("score", original)) for e in args.example]
    others = [name for name in required if name != gold]
    row = '{"completion": "…", ' + ", ".join(f'"{name}": …' for name in [gold, *others]) + "}"
    got = f"got --from {args.source!r}, which needs {', '.join(others)}"
    need(not others, f"{got}; expected a row for the self-test; try --example '{row}'")
    if gold in ("tests", "test_cases", "test", "test_list"):
        texts = (DOUBLE, DOUBLE.replace("2 * x", "x + 4"), "")
        return [(text, {gold: TESTS}, original) for text in texts]
    texts = ["42", "<answer>42</answer>", r"so it is \boxed{42}", "#### 42", "41", ""]
    return [(text, {gold: "42"}, original) for text in texts]


def required_columns(args, functions: list) -> tuple[list[str], set[str]]:
    """(columns that functions of TRL's contract require, all that they name); UserError for what verl cannot give."""
    signatures = [inspect.signature(function).parameters for function in functions]
    named = [p for s in signatures for p in s.values() if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    own = {"prompts", "completions", "completion_ids", "trainer_state", "log_extra", "log_metric", "environments"}
    own |= {"prompt", "completion"}
    required = list(dict.fromkeys(p.name for p in named if p.default is p.empty and p.name not in own))
    taken = {p.name for p in named}
    if args.target == "trl":
        return required, taken
    whole = any(getattr(function, "needs_group", False) for function in functions)
    got = f"got --from {args.source!r}, which compares the completions of a prompt"
    need(not whole, f"{got}; verl scores each by itself; try ppo_train.py or grpo_train.py, which hand over groups")
    for name in ("completion_ids", "environments"):
        demanded = any(p.name == name and p.default is p.empty for p in named)
        need(not demanded, f"got --from {args.source!r}, which requires {name}; verl gives none; try a length in words")
        if name in taken:
            of_source = args.source.partition("*")[0].rpartition(":")[2]
            say(f"note: {name} is not given in verl: {of_source} goes by what it does without")
    return required, taken


def port_of_trl(args, functions: list, settings: str, words: dict) -> str:
    """Rewards of TRL's contract, or of one sample, as a compute_score, as one reward of TRL's contract, or both."""
    required, named = required_columns(args, functions)
    usual = [n for n in ("answer", "tests", "test_cases", "solution", "ground_truth", "label") if n in named]
    gold = args.gold_column or next(iter([*(n for n in usual if n in required), *required, *usual]), "answer")
    is_async = any(is_async_callable(function) for function in functions)
    marks = {"async": "async " * is_async, "call": CALL_ASYNC if is_async else CALL_SYNC}
    marks |= {"run": "loop().run_until_complete(" * is_async, "end": ")" * is_async, "name": args.name}
    marks |= {"original": ORIGINAL_ASYNC if is_async else ORIGINAL_SYNC, "gathered": GATHERED * is_async}
    marks |= {"given": "".join(f"{n}, " for n in required), "passed": "".join(f'"{n}": {n}, ' for n in required)}
    for_trl, for_verl = args.target != "verl", args.target != "trl"
    weight = weight_of(args.source)
    about = "the column that verl calls ground_truth; the others are read from extra_info"
    head = f'\nGOLD = "{gold}"  # {about}\n' if for_verl else "\n"
    head += f"WEIGHT = {weight}\n{settings}CHAT = {args.completions == 'messages'}"
    head += (
        "  # completions as chat messages, or text"
        if for_verl
        else "  # completions of the self-test: as chat, or text"
    )
    cases = listing("CASES", "(completion, columns of the row, score)", port_cases(args, gold, required))
    parts = LOAD_SOURCE + VERL_ROW * for_verl + (COMPLETION_TEXT + TRL_ROWS) * for_trl + PARTS
    body = head + put_in(parts + TO_VERL * for_verl + TO_TRL_SUM * for_trl, **marks, **words) + cases
    body += LOOP * is_async + WAITED * is_async + put_in(ORIGINAL_SCORE, **marks)
    test = TEST_TO_VERL * for_verl + TEST_TO_TRL_SUM * for_trl
    body += put_in(SELF_TEST, setup="", body=put_in(test, **marks) + SPREAD)
    contracts = " and ".join(["TRL"] * for_trl + ["verl"] * for_verl)
    about = f"{words['function']} of {Path(args.source.rpartition(':')[0]).name}, "
    kind = "a reward of TRL's contract" if words["weights"] == "[1.0]" else "the weighted sum of a list"
    about += f"{kind}, for {contracts}."
    columns = ", ".join(n for n in [*required, "prompt"] if n != gold)
    return with_imports(head_of(about, usage_notes(args, args.name, gold, columns)), body)


def port_to_trl(args, functions: list, signatures: list, words: dict) -> str:
    """A reward of TRL's contract for a compute_score."""
    verl_gives = ("data_source", "solution_str", "ground_truth", "extra_info")
    fixed = [p for p in signatures[0].values() if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    unknown = [p.name for p in fixed if p.default is p.empty and p.name not in verl_gives]
    got = f"got --from {args.source!r}, which requires {', '.join(unknown)}"
    need(not unknown, f"{got}; expected only what verl gives without reward_kwargs; try a default")
    gold, is_async = args.gold_column or "answer", is_async_callable(functions[0])
    gather = "await asyncio.gather(*calls)" if is_async else "calls"
    marks = {"async": "async " * is_async, "gather": gather, "given": f"{gold}, ", "passed": f'"{gold}": {gold}, '}
    marks |= {"run": "loop().run_until_complete(" * is_async, "end": ")" * is_async, "name": args.name}
    settings = f'\nGOLD = "{gold}"  # the column that becomes ground_truth; the others become extra_info\n'
    settings += f"DATA_SOURCE = {args.data_source!r}  # for rows without a column data_source or source"
    cases = listing("CASES", "(completion, columns of the row, score)", port_cases(args, gold, []))
    parts = LOAD_SOURCE + COMPLETION_TEXT + TRL_ROWS + TO_TRL
    test = TEST_TO_TRL
    if is_async:
        parts += LOOP + WAITED
        test = test.replace("@RUN@source()(", "@RUN@waited(source()(").replace("))@", ")))@")
    body = settings + put_in(parts, **marks, **words) + cases
    body += put_in(SELF_TEST, setup="", body=put_in(test, **marks) + SPREAD)
    about = f"{words['function']} of {Path(args.source.rpartition(':')[0]).name}, a reward of verl's contract, for TRL."
    return with_imports(head_of(about, usage_notes(args, args.name, gold, "")), body)
