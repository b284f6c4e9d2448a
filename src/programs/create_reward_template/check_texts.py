"""Text of checks and self-tests."""

# kind -> (its function, the call of it; @A@ is the argument)
CHECKS = {
    "equals": (
        '''

def equals(text: str, gold) -> bool | None:
    """Whether the final answer is the gold one, but for case and white space."""
    return None if gold is None else final_answer(text).casefold().split() == str(gold).casefold().split()
''',
        "equals(text, row.get(@A@))",
    ),
    "contains": (
        '''

def contains(text: str, gold) -> bool | None:
    """Whether the visible text holds the gold answer as words of its own."""
    return None if gold is None else bool(re.search(rf"(?i)(?<!\\w){re.escape(str(gold))}(?!\\w)", visible(text)))
''',
        "contains(text, row.get(@A@))",
    ),
    "number": (
        '''

def number(text: str, gold) -> bool | None:
    """Whether the final answer is the gold number, to one part in a million; a gold that is none does not apply."""
    values = []
    for value in (gold, final_answer(text)):
        try:
            values.append(float(str(value).strip().strip("$*").replace(",", "")))
        except ValueError:
            values.append(math.nan)
    return None if math.isnan(values[0]) else math.isclose(*values, rel_tol=1e-6)
''',
        "number(text, row.get(@A@))",
    ),
    "matches": ("", "bool(re.search(@A@, text[:MAX_CHARACTERS]))"),
    "lacks": ("", "not re.search(@A@, text[:MAX_CHARACTERS])"),
    "words": ("", "@A@ <= len(text.split()) <= @B@"),
    "json": (
        '''

def json_object(text: str, *keys: str) -> bool:
    """Whether the visible text, or the one fenced block that it is, is a JSON object with these keys."""
    text = re.sub(r"^```(?:json)?\\n|\\n```$", "", visible(text).strip())
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return isinstance(value, dict) and all(key in value for key in keys)
''',
        "json_object(text@A@)",
    ),
}

COMPLETION_TEXT = '''

def completion_text(completion) -> str:
    """The text of a string, of chat messages without those of tools, or of None."""
    if completion is None or isinstance(completion, str):
        return completion or ""
    contents = [message.get("content") or "" for message in completion if message.get("role") != "tool"]
    return "".join(c if isinstance(c, str) else "".join(part.get("text") or "" for part in c) for c in contents)
'''

TRL_ROWS = '''

def rows_of(prompts, count: int, columns: dict) -> list[dict]:
    """One dict a completion, with its prompt and its value of each column."""
    lists = {name: column for name, column in columns.items() if hasattr(column, "__len__")}  # not trainer_state
    lists["prompt"] = [None] * count if prompts is None else prompts
    return [dict(zip(lists, values, strict=True)) for values in zip(*lists.values(), strict=True)]
'''

TRL_CALL = {
    "sync": '''

def @NAME@(prompts, completions, @GIVEN@**columns) -> list[float | None]:
    """Score a batch by TRL's contract; None where the reward does not apply. Range: @RANGE@."""
    rows = rows_of(prompts, len(completions), {@PASSED@**columns})
    return [score(completion_text(c), row) for c, row in zip(completions, rows, strict=True)]
''',
    "threads": '''

def @NAME@(prompts, completions, @GIVEN@**columns) -> list[float | None]:
    """Score a batch by TRL's contract; None where the reward does not apply. Range: @RANGE@."""
    rows = rows_of(prompts, len(completions), {@PASSED@**columns})
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:  # the programs run in processes of their own
        return list(pool.map(score, map(completion_text, completions), rows))
''',
    "async": '''

async def @NAME@(prompts, completions, @GIVEN@**columns) -> list[float | None]:
    """Score a batch by TRL's contract; None where the judge gives no score. Range: @RANGE@."""
    rows = rows_of(prompts, len(completions), {@PASSED@**columns})
    pairs = zip(completions, rows, strict=True)
    return list(await asyncio.gather(*(score(completion_text(c), row) for c, row in pairs)))
''',
}

VERL_ROW = '''

def verl_row(ground_truth, extra_info) -> dict:
    """The columns of a row: ground_truth is GOLD, or what extra_info says it is; values kept as JSON are decoded."""
    extra = dict(extra_info or {})
    packed = [] if extra.get("json_columns") is None else list(extra["json_columns"])
    row = {name: json.loads(v) if name in packed and isinstance(v, str) else v for name, v in extra.items()}
    row = {name.removeprefix("column:"): value for name, value in row.items()}
    field, _, form = str(extra.get("ground_truth_field") or GOLD).partition(":")
    row[field] = json.loads(ground_truth) if form == "json" else ground_truth
    if row.get("prompt") is None:
        row["prompt"] = row.get("raw_prompt")  # from the reward manager of verl_train.py
    return {name: value.tolist() if hasattr(value, "tolist") else value for name, value in row.items()}  # numpy
'''

VERL_CALL = '''

@ASYNC@def compute_score(data_source, solution_str, ground_truth, extra_info=None, **kwargs) -> dict:
    """Score a completion by verl's contract, which knows no None: the score is 0, and `applies` too."""
    value = @AWAIT@score(solution_str, verl_row(ground_truth, extra_info))
    return {"score": 0.0 if value is None else value, "applies": float(value is not None)}
'''

TEST_TRL = """
    columns = {name: [row.get(name) for _, row, _ in CASES] for _, row, _ in CASES for name in row}
@FIRST@    prompts = columns.pop("prompt", [None] * len(CASES))
    scores = @RUN@@NAME@(prompts, [text for text, _, _ in CASES], **columns)@END@
    results += [("TRL", case, got, case[2]) for case, got in zip(CASES, scores, strict=True)]
    messages = [[{"role": "assistant", "content": text}] for text, _, _ in CASES]
    chats = @RUN@@NAME@(prompts, messages, **columns)@END@
    results += [("TRL, chat", case, got, case[2]) for case, got in zip(CASES, chats, strict=True)]"""

TEST_VERL = """
    for case in CASES:
        text, row, expected = case
        extra = {name: value for name, value in row.items() if name != GOLD} | {"ground_truth_field": f"{GOLD}:json"}
        got = @RUN@compute_score("self-test", text, json.dumps(row.get(GOLD)), extra)@END@
        results.append(("verl", case, got["score"] if got["applies"] else None, expected))"""

TEST_TOTAL = """
    results += [("total", (str(held), {}, expected), total(held), expected) for held, expected in TOTALS]
    for number, text, row, holds in CHECKED:
        name, _, check = RUBRIC[number]
        results.append((f"check {name!r}", (text, row, holds), check(text, row), holds))"""

SELF_TEST = '''

def same(got, expected) -> bool:
    """Whether two scores are equal, to rounding."""
    numbers = all(isinstance(value, int | float) for value in (got, expected))
    return abs(got - expected) < 1e-9 if numbers else got is expected


def self_test() -> int:
    """Score every case; print what is wrong and return how many are."""
    @SETUP@results = []@BODY@
    wrong = [result for result in results if not same(result[2], result[3])]
    for contract, (text, row, _), got, expected in wrong:
        print(f"WRONG by {contract}: got {got}; expected {expected} for {text!r} of {row}")
    print(f"{len(results)} scores, {len(wrong)} wrong")
    return len(wrong)


if __name__ == "__main__":
    if sys.argv[1:] != ["--test"]:
        sys.exit(__doc__)
    sys.exit(1 if self_test() else 0)
'''

JUDGE_SETUP = """global BASE_URL
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), StandIn)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    BASE_URL = f"http://127.0.0.1:{server.server_port}/v1"
    os.environ["no_proxy"] = "127.0.0.1"
    warnings.simplefilter("ignore")  # the silent judge
    """
