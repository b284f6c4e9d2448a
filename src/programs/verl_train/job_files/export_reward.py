# below: the call of verl {verl}, by verl_train.py --export
COLUMNS, GOLD, GOLD_IS_JSON = "{columns}", "{gold}", "{is_json}"  # verl calls the column GOLD ground_truth
WEIGHTS = "{weights}"
BITS = "{n}"  # of a score: float32 adds up a group of equal ones exactly, or verl makes advantages of 0.1 of eight 1.2


def columns_of(ground_truth, extra_info) -> dict:
    """The columns of a row as they were in the data."""
    import json

    extra = dict(extra_info or {})
    coded, row = extra.get("json_columns"), {}
    coded = [] if coded is None else list(coded)  # a list from verl's rows, an array from those of pandas
    for name in COLUMNS:
        value = extra.get(name)
        row[name] = json.loads(value) if name in coded and value is not None else value
    if GOLD:
        row[GOLD] = json.loads(ground_truth) if GOLD_IS_JSON else ground_truth
    return row


def compute_score(data_source, solution_str, ground_truth, extra_info=None, **kwargs) -> dict:
    """One completion's weighted sum, and each function's own value; verl knows no None, which adds nothing and is 0."""
    import json
    import math

    row = columns_of(ground_truth, extra_info)
    prompt = json.loads((extra_info or {}).get("prompt_json") or "null")
    completion = "{completion}"
    parts = "{parts}"
    total = sum(WEIGHTS[name] * value for name, value in parts.items() if value is not None)
    named = {name: float(value or 0.0) for name, value in parts.items()}
    mantissa, exponent = math.frexp(total)
    return {**named, "score": math.ldexp(round(math.ldexp(mantissa, BITS)), exponent - BITS)}
