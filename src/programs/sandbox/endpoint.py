"""A service elsewhere."""

import json
import os
import time

from programs.sandbox.child import find, operate
from programs.sandbox.errors import BadTests, Died, SandboxError
from programs.sandbox.limits import MAX_ANSWER, MAX_COLLISIONS, MAX_DEPTH, MAX_KEY, MAX_NUMBER
from programs.sandbox.values import (
    alike,
    argument_types,
    build,
    check_hashes,
    compare,
    decode,
    decode_text,
    encode,
    is_json,
    key_weight,
    plain_types,
    same_output,
    short_int,
    views,
    zone,
)
from programs.sandbox.verdicts import Plan, Verdict, conclude


def run_at_endpoint(url: str, code: str, plan: Plan, limits: dict) -> Verdict:
    """Run the program at a SandboxFusion service (POST URL/run_code) and compare its output here."""
    if plan.kind == "python":
        what = f"got {plan.cases[0][:80]!r} for an endpoint"
        raise BadTests(f"{what}; expected `assert f(literals) == literal`, calls, or stdin tests")
    cases, results = plan.cases, []
    end = time.monotonic() + limits["total_s"]
    for number, case in enumerate(cases):
        if time.monotonic() > end:
            break
        detail = ask_endpoint(url, code, case, plan.kind, limits)
        results.append({"test": number, "passed": not detail, "detail": detail})
        if detail.startswith("timeout"):
            break
    return conclude(results, len(cases))


def ask_endpoint(url: str, code: str, case: tuple, kind: str, limits: dict) -> str:
    """One test at the service; return "" if it passes, else what is wrong."""
    nonce, stdin = os.urandom(12).hex(), case[0]
    if kind != "stdin":
        call = {"op": "call", "target": case[0], "args": case[1], "kwargs": case[2]}
        stdin = json.dumps({"nonce": nonce, "call": call})
        code = remote_driver(code)
    seconds = limits["timeout_s"]
    body = {"code": code, "language": "python", "stdin": stdin, "memory_limit_MB": limits["memory_mb"]}
    answer = post_json(url.rstrip("/") + "/run_code", {**body, "run_timeout": seconds}, seconds + 30)
    result = answer.get("run_result") or {}
    if result.get("status") == "TimeLimitExceeded":
        return f"timeout: more than {limits['timeout_s']} s"
    if answer.get("status") == "SandboxError":
        raise SandboxError(f"{url}: {answer.get('message')}")
    printed = str(result.get("stdout") or "")
    if len(printed) > limits["result_bytes"]:
        return f"output limit: more than {limits['result_bytes'] >> 20} MiB printed"
    if answer.get("status") != "Success" or result.get("return_code") != 0:
        return (str(result.get("stderr") or "").strip().splitlines() or ["the process ended with an error"])[-1][:500]
    if kind == "stdin":
        return "" if same_output(case[1], printed) else f"printed {printed[:200]!r}, expected {case[1][:200]!r}"
    line = printed.partition("\n" + nonce)[2].partition("\n")[0]
    try:
        return compare(json.loads(line, parse_int=short_int), decode(case[3]), case[4])
    except (ValueError, RecursionError, Died):
        return "the process sent no valid message"


def remote_driver(code: str) -> str:
    """A script that loads the program, performs the call on stdin, and prints the answer behind the call's secret."""
    import inspect

    values = (zone, plain_types, argument_types, views, alike, is_json, encode, decode, decode_text, build, key_weight)
    parts = [inspect.getsource(part) for part in (Died, *values, check_hashes, find, operate)]
    parts.append("SIMPLE = {bool, int, str, type(None)}\n")
    parts += ["PLAIN_TYPES, ARGUMENT_TYPES, VIEWS, ALIKE = plain_types(), argument_types(), views(), alike()\n"]
    parts.insert(0, "import collections, datetime, decimal, fractions, json, math, sys, types\n")
    limits = {"DEPTH": MAX_DEPTH, "NUMBER": MAX_NUMBER, "KEY": MAX_KEY, "COLLISIONS": MAX_COLLISIONS}
    parts.insert(1, "".join(f"MAX_{name} = {value}\n" for name, value in limits.items()))
    parts.append("getattr(sys, 'set_int_max_str_digits', int)(0)\n")
    load = f"try:\n    exec({code!r}, namespace)\nexcept (EOFError, SystemExit):\n    pass\n"
    parts.append(f"job = json.load(sys.stdin)\nnamespace = {{'__name__': 'program'}}\n{load}")
    parts.append(
        "call = job['call']\n"
        "args = [decode(item) for item in call['args']]\n"
        "kwargs = {name: decode(item) for name, item in call['kwargs'].items()}\n"
        "value = operate(call, find(call['target'], namespace, []), args, kwargs)\n"
        "print('\\n' + job['nonce'] + json.dumps({'value': encode(value)}))\n"
    )
    return "\n".join(parts)


def post_json(url: str, body: dict, timeout_s: float) -> dict:
    """POST a JSON object and return the JSON object that answers; raise SandboxError if there is none."""
    from http.client import HTTPException
    from urllib.error import URLError
    from urllib.request import Request, urlopen

    request = Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    for pause in (0.5, 2.0, None):
        try:
            with urlopen(request, timeout=timeout_s) as response:
                answer = json.loads(response.read(MAX_ANSWER), parse_int=short_int)
            if isinstance(answer, dict) and isinstance(answer.get("run_result") or {}, dict):
                return answer
            problem = f"got {answer!r:.100}"
        except (URLError, HTTPException, OSError, ValueError) as error:
            problem = str(error)
        if pause:
            time.sleep(pause)
    raise SandboxError(f"{url}: {problem}; expected a SandboxFusion service")
