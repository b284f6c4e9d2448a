"""Text of a port."""

LOAD_SOURCE = '''
SOURCE = Path(__file__).resolve().parent / @SOURCE@  # keep it there


def source(name: str = "@FUNCTION@"):
    """What is ported here, or another member of its file."""
    module = f"reward_source_{zlib.crc32(str(SOURCE).encode())}"
    if module not in sys.modules:
        if not SOURCE.is_file():
            raise FileNotFoundError(f"got no {SOURCE}; expected the file that is ported here; try copying it there")
        spec = importlib.util.spec_from_file_location(module, SOURCE)
        loaded = importlib.util.module_from_spec(spec)
        sys.modules[module] = loaded
        spec.loader.exec_module(loaded)
    return getattr(sys.modules[module], name)


source()  # so that a missing file stops the trainer at its start
'''

PARTS = '''

def parts() -> dict:
    """{name: (function, weight)}: one function, or those of a list."""
    found, named = source(), {}
    functions = [found] if callable(found) else found
    for function, weight in zip(functions, @WEIGHTS@, strict=True):
        name = getattr(function, "__name__", type(function).__name__)
        while name in named:
            name += "_2"
        named[name] = function, WEIGHT * weight
    return named


def takes_one(function) -> bool:
    """Whether a function takes one sample, `(prompt, completion, …) -> score`, told by its parameters' names."""
    return bool({"prompt", "completion"} & {*inspect.signature(function).parameters})


def taken(function, given: dict) -> dict:
    """Those of the arguments that a function takes."""
    parameters = inspect.signature(function).parameters.values()
    fixed = [p for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    missing = [p.name for p in fixed if p.default is p.empty and p.name not in given]
    if missing:
        columns = ", ".join(sorted({*given} - {*SILENT, "prompt", "prompts", "completion", "completions"})) or "none"
        raise TypeError(f"got the columns {columns}; expected {', '.join(missing)} too; try extra_info or GOLD")
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return given
    return {p.name: given[p.name] for p in fixed if p.name in given}


SILENT = {"trainer_state": None, "log_extra": lambda *_: None, "log_metric": lambda *_: None}


def arguments_of(function, text: str, row: dict, extras: dict = SILENT) -> dict:
    """One sample, or a batch of one in TRL's shapes, as far as the function takes it."""
    completion = [{"role": "assistant", "content": text}] if CHAT else text
    given = {name: [value] for name, value in row.items() if name != "prompt"}
    given |= {"prompts": [row.get("prompt")], "completions": [completion]}
    if takes_one(function):
        given = row | {"prompt": row.get("prompt"), "completion": text}
    return taken(function, given | extras)


def number(value) -> float | None:
    """A score as a float, or None."""
    if value is not None and not math.isfinite(value):
        raise ValueError(f"got the score {value}; expected a finite number or None")
    return None if value is None else float(value)


def only(function, values) -> float | None:
    """The one score of a sample or a batch of one."""
    values = values.tolist() if hasattr(values, "tolist") else values
    (value,) = [values] if takes_one(function) else values
    return number(value)


def summed(scores: dict) -> float | None:
    """The weighted sum of the parts that apply; None if none does."""
    weights = {name: weight for name, (_, weight) in parts().items()}
    known = [weights[name] * value for name, value in scores.items() if value is not None]
    return sum(known) if known else None
'''

TO_VERL = '''

@ASYNC@def compute_score(data_source, solution_str, ground_truth, extra_info=None, **kwargs) -> dict:
    """The reward by verl's contract, which knows no None: the score is 0, and `applies` too."""
    row, scores, raised = verl_row(ground_truth, extra_info), {}, 0.0
    for name, (function, _) in parts().items():
        arguments, scores[name] = arguments_of(function, solution_str, row), None
        try:
            @CALL@
        except Exception as error:  # verl would drop the row, and go on with what is left of its group
            raised = 1.0
            warnings.warn(f"{name} raised {error!r} for {solution_str[:200]!r}; the score is 0", stacklevel=2)
    value = None if raised else summed(scores)
    named = {f"reward/{name}": score or 0.0 for name, score in scores.items() if len(scores) > 1}
    return {"score": value or 0.0, "applies": float(value is not None), "raised": raised, **named}
'''
CALL_SYNC = "scores[name] = only(function, function(**arguments))"
ORIGINAL_SYNC = "scores[name] = only(function, function(**arguments_of(function, text, row)))"
ORIGINAL_ASYNC = """found = function(**arguments_of(function, text, row))
            found = loop().run_until_complete(waited(found)) if inspect.isawaitable(found) else found
            scores[name] = only(function, found)"""
CALL_ASYNC = """found = await asyncio.to_thread(function, **arguments)
            scores[name] = only(function, await found if inspect.isawaitable(found) else found)"""

TO_TRL_SUM = '''

def results_of(function, completions, rows: list[dict], given: dict) -> list:
    """What a function returns: one result for each sample if it takes one, else one for the batch."""
    if not takes_one(function):
        return [function(**taken(function, given))]
    extras = {name: given[name] for name in SILENT if name in given}
    pairs = zip(map(completion_text, completions), rows, strict=True)
    return [function(**arguments_of(function, text, row, SILENT | extras)) for text, row in pairs]


def values_of(function, results: list, count: int) -> list[float | None]:
    """The scores of a batch."""
    values = results if takes_one(function) else results[0]
    values = [number(value) for value in (values.tolist() if hasattr(values, "tolist") else values)]
    if len(values) != count:
        raise ValueError(f"got {len(values)} scores; expected {count}, one a completion")
    return values


@ASYNC@def @NAME@(prompts, completions, @GIVEN@**columns) -> list[float | None]:
    """The weighted sum of @FUNCTION@ by TRL's contract: of the parts that apply, None where none does."""
    columns, count = {@PASSED@**columns}, len(completions)
    rows = rows_of(prompts, count, columns)
    given = SILENT | columns | {"prompts": prompts, "completions": completions}
    results = {name: results_of(function, completions, rows, given) for name, (function, _) in parts().items()}
@GATHERED@    scores = {name: values_of(function, results[name], count) for name, (function, _) in parts().items()}
    for name, values in scores.items():
        known = [value for value in values if value is not None]
        if known:
            given["log_metric"](f"reward/{name}", sum(known) / len(known))
    return [summed({name: values[i] for name, values in scores.items()}) for i in range(count)]
'''
GATHERED = """    waits = {name: asyncio.gather(*map(waited, own)) for name, own in results.items()}  # all at once
    results = {name: await own for name, own in waits.items()}
"""

TEST_TO_TRL_SUM = """
    for case in CASES:
        text, row, expected = case
        columns = {name: [value] for name, value in row.items() if name != "prompt"}
        completion = [{"role": "assistant", "content": text}] if CHAT else text
        expected = original_score(text, row) if expected == "the original's" else expected
        got = @RUN@@NAME@([row.get("prompt")], [completion], **columns)@END@[0]
        results.append(("TRL", case, got, expected))"""

TEST_TO_VERL = """
    for case in CASES:
        text, row, expected = case
        extra = {name: value for name, value in row.items() if name != GOLD} | {"ground_truth_field": f"{GOLD}:json"}
        got = @RUN@compute_score("self-test", text, json.dumps(row.get(GOLD)), extra)@END@
        if expected == "the original's":
            expected = original_score(text, row)
        score = got["score"] if got["applies"] else "raised" if got["raised"] else None
        results.append(("verl", case, score, expected))"""

ORIGINAL_SCORE = '''

def original_score(text: str, row: dict):
    """What the original says of a row, or what it raises."""
    scores = {}
    for name, (function, _) in parts().items():
        try:
            @ORIGINAL@
        except Exception as error:
            return f"a score, where the original raises {error!r}"
    return summed(scores)
'''

LOOP = '''

@functools.cache
def loop():
    """The self-test's one event loop: a client that a reward keeps stays usable, as in the trainers."""
    return asyncio.new_event_loop()
'''

WAITED = '''

async def waited(found):
    """What is found, or what awaiting it gives."""
    return await found if inspect.isawaitable(found) else found
'''

TO_TRL = '''

def arguments_of(text: str, row: dict) -> dict:
    """What verl would give to compute_score."""
    extra, gold = row.get("extra_info"), row.get(GOLD)
    if not isinstance(extra, dict):
        extra = {name: value for name, value in row.items() if name != GOLD}
    if GOLD == "reward_model":  # a row in verl's form, taken as it is
        gold = gold["ground_truth"]
    elif not isinstance(gold, str):  # as data_loader.py writes it
        gold = json.dumps(gold)
    name = row.get("data_source") or row.get("source") or DATA_SOURCE
    given = {"data_source": name, "solution_str": text, "ground_truth": gold, "extra_info": extra}
    parameters = inspect.signature(source()).parameters.values()
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return given
    return {p.name: given[p.name] for p in parameters if p.name in given}


def value_of(result) -> float | None:
    """The score in what a compute_score returns: a number, a dict with `score`, or a tuple that begins with it."""
    result = result["score"] if isinstance(result, dict) else result
    result = result[0] if isinstance(result, tuple | list) else result
    return None if result is None else float(result)


@ASYNC@def @NAME@(prompts, completions, @GIVEN@**columns) -> list[float | None]:
    """@FUNCTION@ of SOURCE by TRL's contract."""
    rows = rows_of(prompts, len(completions), {@PASSED@**columns})
    calls = [source()(**arguments_of(completion_text(c), row)) for c, row in zip(completions, rows, strict=True)]
    return [value_of(result) for result in @GATHER@]
'''

TEST_TO_TRL = """
    columns = {name: [row.get(name) for _, row, _ in CASES] for _, row, _ in CASES for name in row}
    prompts = columns.pop("prompt", [None] * len(CASES))
    scores = @RUN@@NAME@(prompts, [text for text, _, _ in CASES], **columns)@END@
    for case, got in zip(CASES, scores, strict=True):
        text, row, expected = case
        if expected == "the original's":
            expected = value_of(@RUN@source()(**arguments_of(text, row))@END@)
        results.append(("TRL", case, got, expected))"""

SPREAD = """
    if len({str(result[2]) for result in results}) == 1:
        print(f"note: every case scores {results[0][2]}; add one to CASES that does not")"""
