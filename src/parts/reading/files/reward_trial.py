def trial():
    """Call the reward named on standard input's first line as the JSON after it says; print its scores."""
    import inspect
    import json
    import sys

    given = json.load(sys.stdin)
    function, rows = globals()[given["function"]], given["rows"]
    names = inspect.signature(function).parameters
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in names.values())

    def scores(rows):
        if "completions" in names:
            columns = {key: [row["columns"].get(key) for row in rows] for row in rows for key in row["columns"]}
            columns |= {"prompts": [row["prompt"] for row in rows], "completions": [row["completion"] for row in rows]}
            return function(**{key: value for key, value in columns.items() if takes_any or key in names})
        values = []
        for row in rows:
            gold = row["columns"].get("ground_truth", row["gold"])
            whole = row["columns"] | {"prompt": row["prompt"], "completion": row["text"], "solution_str": row["text"]}
            whole |= {"ground_truth": gold, "data_source": "", "extra_info": row["columns"]}
            value = function(**{key: value for key, value in whole.items() if takes_any or key in names})
            values.append(value["score"] if isinstance(value, dict) else value)
        return values

    calls = [rows, rows] if given["how"] == "twice" else [[row] for row in rows] if given["how"] == "alone" else [rows]
    found = [list(scores(call)) for call in calls]
    values = found[-1] if given["how"] != "alone" else [value for call in found for value in call]
    print("=" + " ".join("-" if value is None else f"{float(value):.4g}" for value in values) + "=")


trial()
