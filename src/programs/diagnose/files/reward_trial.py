def trial():
    """Call the reward as the JSON on stdin says and print its scores; its own prints go to stderr."""
    import contextlib
    import inspect
    import json
    import sys

    given = json.load(sys.stdin)
    function = globals()[given["function"]]
    names = inspect.signature(function).parameters
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in names.values())

    def called(columns):
        return function(**{key: value for key, value in columns.items() if takes_any or key in names})

    def sample_score(row):
        gold = row["columns"].get("ground_truth", row["gold"])
        texts = dict.fromkeys((row["own"], "completion", "solution_str"), row["text"]) | {"prompt": row["prompt"]}
        more = {"ground_truth": gold, "data_source": "", "extra_info": row["columns"]}
        value = called(row["columns"] | texts | more)
        return value["score"] if isinstance(value, dict) else value

    def scores(rows):
        if "completions" not in names:
            return [sample_score(row) for row in rows]
        columns = {key: [row["columns"].get(key) for row in rows] for row in rows for key in row["columns"]}
        texts = {f"{key}s": [row[key] for row in rows] for key in ("prompt", "completion")}
        return list(called(columns | texts))

    with contextlib.redirect_stdout(sys.stderr):
        batches = [scores(rows) for rows in given["calls"]]
    words = ["-" if value is None else f"{float(value):.4g}" for values in batches for value in values]
    print("=" + " ".join(words) + "=")


trial()
