"""An environment: what scripted answers are paid, again and beside others, and whether all four programs pay alike."""

import argparse
import contextlib
import dataclasses
import inspect
import itertools
import json
import multiprocessing
import os
import random
import re
import signal
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

from parts.data.prompts import prompt_row, read_prompts
from parts.environments.conversations import PlayLimits, play
from parts.environments.environments import Environments
from parts.environments.play_setup import check_environment_rows, load_scored, score_talks, score_weights
from parts.environments.scripted_play import ScriptedPlayer
from parts.foundation.messages import UserError, need
from parts.foundation.settings import parse_flags
from parts.rewards.reward_forms import full_spec, import_file
from programs.prove.four_places import compare_ways, places
from programs.prove.proof import Proof
from programs.prove.reward_proof import ANSWER_FORMS

TURNS = 8  # of a conversation, unless --max_turns
GOLD_ROWS, ROWS, TRIAL_ROWS = 32, 8, 4  # rows for gold answers; for others; to choose gold's form
FULL_SHARE = 0.95  # share of full marks that counts as such, and of the rows whose gold answers must have them
ALLOWED = {
    "silence": 0.05,
    "nonsense": 0.05,
    "brackets": 0.05,
    "meaningless calls": 0.5,
    "several answers": 0.25,
}  # of full marks
TOOL_S = 6.0  # seconds for the tool calls of an answer, or for a reply
LOAD_S = 300.0  # seconds to import the environment
ANSWERS = ("answer", "final_answer", "label", "target", "ground_truth")  # columns with the answer
JUNK_TEXT = "Lorem qzx vwpt {[(<$\\\u202e\U0001f9ee jkh."
SAMPLE = {"integer": 1, "number": 1.0, "boolean": False, "array": [], "object": {}}
# defaults of a run's settings that the parts read
RUN = {"tool_format": "", "reward_timeout": 600.0, "reward_concurrency": 32, "reward_retries": 2}


def is_environment(file: Path, name: str) -> bool:
    """Whether a file's name makes environments: a class without __call__, a dictionary, a call without arguments."""
    member = getattr(import_file("reward", f"{file}:{name}", str(file)), name, None)
    if inspect.isclass(member):
        return not any("__call__" in vars(base) for base in member.__mro__)
    parameters = inspect.signature(member).parameters.values() if callable(member) else ()
    needs_none = all(p.default is not p.empty for p in parameters)  # `*args` and `**columns` have no default
    return isinstance(member, dict) or (callable(member) and needs_none)


def call_text(name: str, arguments: dict) -> str:
    """A tool call in the form of Hermes and Qwen, by which scripted answers are parsed."""
    body = json.dumps({"name": name, "arguments": arguments}).replace("<", "\\u003c")  # no tag inside a value
    return f"<tool_call>\n{body}\n</tool_call>"


def answer_text(value, where: str) -> str:
    """An answer of the column gold: a text, a call {"name", "arguments"}, or a list of calls."""
    if isinstance(value, str):
        return value
    calls = value if isinstance(value, list) else [value]
    named = calls and all(isinstance(x, dict) and isinstance(x.get("name"), str) for x in calls)
    need(named, f'{where}: got {str(value)[:80]!r}; expected a text, a call {{"name", "arguments"}} or several')
    return "".join(call_text(call["name"], call.get("arguments") or {}) for call in calls)


def as_typed(value, kind: str):
    """A column's value as a tool parameter's type wants it: text as a number, anything as a string."""
    if kind in ("integer", "number") and isinstance(value, str):
        with contextlib.suppress(ValueError):
            return int(value) if kind == "integer" or re.fullmatch(r"-?\d+", value) else float(value)
    return str(value) if kind == "string" else value


def gold_scripts(columns: dict, kind, where: str) -> dict[str, list[str]]:
    """{form: script for full marks}: of the column gold, else of a tool that takes the answer, else of texts."""
    if (given := columns.get("gold")) is not None:
        return {"column gold": [answer_text(x, where) for x in (given if isinstance(given, list) else [given])]}
    scripts = {}
    for tool in kind.tools:
        name, parameters = tool["function"]["name"], tool["function"]["parameters"]
        required = parameters.get("required", [])
        if {*ANSWERS} & {*required} and all(columns.get(x) is not None for x in required):
            typed = {x: as_typed(columns[x], parameters["properties"][x].get("type")) for x in required}
            scripts[f"tool {name}({', '.join(required)})"] = [call_text(name, typed)]
    answer = answer_of(columns)
    if scripts or answer is None or not (kind.talks or not kind.tools):  # a text cannot call a tool
        return scripts
    return {form: [form.format(answer)] for form in ANSWER_FORMS}


def other_scripts(row: dict, kind, rows: list[dict]) -> dict[str, list[str]]:
    """{policy: script} of answers that earn nothing, and of calls with meaningless arguments."""
    scripts = {"silence": [""], "nonsense": [JUNK_TEXT], "brackets": ["(" * 100_000]}
    if kind.tools:
        calls = []
        for tool, text in itertools.product(kind.tools, ("nothing", "__import__('os')._exit(1)", {"a": [1]})):
            types = {x: p.get("type") for x, p in tool["function"]["parameters"]["properties"].items()}
            given = {
                x: (SAMPLE | {"string": text}).get(t if isinstance(t, str) else "string") for x, t in types.items()
            }
            calls.append(call_text(tool["function"]["name"], given))
        scripts["meaningless calls"] = calls
    elif answer := answer_of(row["columns"]):
        wrong = sorted({x for other in rows if (x := answer_of(other["columns"])) not in (None, answer)})
        scripts |= {"several answers": [f"{wrong[0]}, {answer}, {wrong[-1]}"]} if wrong else {}
    return scripts


def answer_of(columns: dict) -> str | None:
    return next((str(columns[name]) for name in ANSWERS if columns.get(name) is not None), None)


class Player:
    """Plays scripted conversations with an environment and the rewards beside it."""

    def __init__(self, spec: str, rewards: list[str], rows: list[dict], turns: int, note: Callable):
        self.note = note  # gets where it is, in words
        self.rewards = [full_spec(spec) for spec in rewards]
        self.environments, self.reward = load_scored(SimpleNamespace(environment=spec, reward=self.rewards, **RUN))
        check_environment_rows(self.environments, rows)
        self.reward.check_columns(rows[0])
        self.limits = PlayLimits(turns, 10**15, 1, TOOL_S)

    def kind_of(self, row: dict):
        return self.environments.kind_of(row["columns"])

    def returns(self, pairs: list[tuple], kinds: Environments | None = None) -> tuple[list[float], list]:
        """(Returns, conversations) of (row, script) pairs that are played together."""
        rows = [row for row, _ in pairs]
        player = ScriptedPlayer(kinds or self.environments, rows, [script for _, script in pairs], self.limits)
        talks = play(rows, player.setup, player.sample)
        scores = score_talks(player.setup, rows, talks, self.reward)
        weights = score_weights(self.reward, scores[0])
        return [sum(weights[k] * (x or 0.0) for k, x in of_talk.items()) for of_talk in scores], talks


def prove_environment(spec: str, data: str, flags: list[str], seconds: float) -> Proof:
    """`prove_played` in a process of its own, which an environment may end or never give back."""
    parser = argparse.ArgumentParser(prog="prove.py ENV.py:Class --data FILE --", allow_abbrev=False)
    parser.add_argument("--reward", action="append", default=[], metavar="FN", help="a reward beside the environment")
    parser.add_argument("--prompt_column", default="prompt", metavar="NAME", help="column with the prompt")
    parser.add_argument("--max_turns", type=int, default=TURNS, metavar="N", help="answers in a conversation")
    given, place, proof = parse_flags(parser, flags), "the import", Proof("environment", spec)
    ours, theirs = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(target=send_proof, args=(theirs, given, spec, data))
    process.start()
    end = (heard := time.monotonic()) + LOAD_S
    try:
        while place and time.monotonic() < end and (process.is_alive() or ours.poll()):
            if ours.poll(0.05):
                (place, proof), heard = ours.recv(), time.monotonic()
                end = end if ", row " in place else heard + seconds  # libraries take their time to load
        is_late = process.is_alive()
    finally:
        with contextlib.suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)  # and what the environment has started
        process.kill()
        process.join()
    if isinstance(proof, UserError):
        raise proof
    if place and not is_late:
        ended = f"died: in {place}, it ended its process (exit code {process.exitcode})"
        proof.find(f"{ended}; try running what a model writes in another process, as sandbox.py does")
    elif ", row " in place and time.monotonic() - heard > seconds / 4:
        proof.find(f"hung: {place} takes more than {seconds / 4:g} s; try methods that return; a tool has {TOOL_S:g} s")
    elif place:
        got = f"got {spec}, whose conversations take longer than {seconds:g} s ({place})"
        need(proof.findings, f"{got}; expected methods that return; try a larger --minutes")
        proof.skip("The rest", f"it takes longer than {seconds:g} s ({place})")
    return proof


def send_proof(connection, given: argparse.Namespace, spec: str, data: str) -> None:
    """Send pairs of where the environment is, "" at the end, and its proof so far, or what is wrong with the input."""
    os.setpgrp()
    os.dup2(2, 1)  # stdout is for the report
    proof = Proof("environment", spec)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            prove_played(proof, given, data, lambda place: connection.send((place, proof)))
    except UserError as error:
        proof = UserError(str(error))
    connection.send(("", proof))


def prove_played(proof: Proof, given: argparse.Namespace, data: str, note: Callable) -> None:
    """Play scripted answers to rows of `data`, again and in all four programs; compare what they are paid."""
    placed = read_prompts(data, given.prompt_column)
    need(placed, f"got data {data!r} without rows; expected at least one")
    rows = [prompt_row(row, given.prompt_column, place) | {"number": i} for i, (place, row) in enumerate(placed, 1)]
    rows = drawn(rows, GOLD_ROWS)
    player = Player(proof.thing, given.reward, rows, given.max_turns, note)
    note("the conversations")
    pairs = {}
    for row in drawn(rows, ROWS):
        for policy, script in other_scripts(row, player.kind_of(row), rows).items():
            pairs.setdefault(policy, []).append((row, script))
    # silence first: what it is paid later shows what earlier conversations leave behind
    plays = {"silence": played(proof, player, "silence", pairs.pop("silence"))}
    plays["gold"] = gold_plays(proof, player, rows, data)
    plays |= {policy: played(proof, player, policy, of_policy) for policy, of_policy in pairs.items()}
    describe_payment(proof, plays, data)
    few = [play for of_policy in plays.values() for play in of_policy[:ROWS]]
    if not few:
        proof.skip("What the four places pay", "no conversation came to its end")
        return
    few.sort(key=lambda play: -play["return"])  # what an object keeps of the best shows in the worst
    note("the conversations, played again")
    compare_ways(proof, few, ways_of_playing(player, few) | places(proof.thing, player.rewards, player.limits, few))


def drawn(rows: list[dict], most: int) -> list[dict]:
    """At most so many rows, at random, as environments may alternate; in their order."""
    return sorted(random.Random(0).sample(rows, min(most, len(rows))), key=lambda row: row["number"])


def played(proof: Proof, player: Player, policy: str, pairs: list[tuple]) -> list[dict]:
    """Play (row, script) pairs one after another, up to the first that raises or whose tool hangs: a finding."""
    plays = []
    for row, script in pairs:
        player.note(f"{policy}, row {row['number']}")
        try:
            (value,), (talk,) = player.returns([(row, script)])
        except UserError as error:  # names the row, the file and the line
            text = str(error).replace("row 1 of the batch", f"row {row['number']}")
            proof.find(f"fault: {policy}: {text}; try accepting whatever a model may say")
            break
        results = [message for message in talk.messages if message["role"] == "tool"]
        errors = [x for x in results if re.match(r"\{['\"]error['\"]: ", x["content"])]
        if late := [x["name"] for x in errors if f"no answer in {TOOL_S:g} s" in x["content"]]:
            proof.find(f"hung_tool: tool {late[0]} gave no answer in {TOOL_S:g} s; try a limit inside the tool")
            break
        errors = [x["content"][:200] for x in errors]
        plays.append({"policy": policy, "row": row, "script": script, "return": value, "errors": errors})
    return plays


def gold_plays(proof: Proof, player: Player, rows: list[dict], data: str) -> list[dict]:
    """Play gold answers in the form that is paid best in the first rows; findings where they have no full marks."""
    scripts = [(row, gold_scripts(row["columns"], player.kind_of(row), f"{data}, column gold")) for row in rows]
    scripts = [(row, forms) for row, forms in scripts if forms]
    means = {form: 0.0 for _, forms in scripts for form in forms}
    for form in means if len(means) > 1 else ():
        trial = [(row, forms[form]) for row, forms in scripts[:TRIAL_ROWS] if form in forms]
        means[form] = statistics.fmean([play["return"] for play in played(proof, player, "gold", trial)] or [0.0])
    order = sorted(means, key=lambda form: -means[form])
    pairs = [(row, next(forms[form] for form in order if form in forms)) for row, forms in scripts]
    plays, advice = played(proof, player, "gold", pairs), "try a column gold with the answers of each turn"
    is_unpaid = plays and {*means} <= {*ANSWER_FORMS} and all(play["return"] <= 0 for play in plays)
    others = [forms for _, forms in scripts[1:] + scripts[:1]]
    for form in means if is_unpaid else ():
        wrong = [(row, forms[form]) for (row, _), forms in zip(scripts, others, strict=True)][:TRIAL_ROWS]
        paid = statistics.fmean([play["return"] for play in played(proof, player, "wrong", wrong)] or [means[form]])
        if paid > means[form]:
            form = form.format("answer")
            proof.find(f"sign: gold answers ({form}) are paid less than those of other rows; try the other sign")
            return plays
    if not pairs or is_unpaid:
        proof.is_open = True
        why = "no usual form of the answer is paid in any row" if pairs else "no row says them"
        proof.skip("What gold answers are paid", f"{why}; {advice}")
    if proof.is_open or not plays:
        return plays
    low = [play for play in plays if play["return"] < FULL_SHARE]
    form = order[0].format("answer")
    proof.figures["gold"] = {"form": form, "rows": len(plays), "full_marks": 1 - len(low) / len(plays)}
    if len(low) > (1 - FULL_SHARE) * len(plays):
        reason = f" ({low[0]['errors'][0]})" if low[0]["errors"] else ""
        text = f"gold answers ({form}) have less than full marks, 1, in {len(low)} of {len(plays)} rows"
        first = f"row {low[0]['row']['number']} gets {low[0]['return']:g}{reason}"
        proof.find(f"gold: {text}, such as {first}; {advice}")
    return plays


def describe_payment(proof: Proof, plays: dict[str, list[dict]], data: str) -> None:
    """Say what gold answers and others are paid; a finding where one without content is paid."""
    paid = {policy: [play["return"] for play in of_policy] for policy, of_policy in plays.items() if of_policy}
    full = max(statistics.fmean(paid.pop("gold", [1.0])), 1.0)
    proof.figures["most_paid"] = {policy: max(values) for policy, values in paid.items()}
    if gold := proof.figures.get("gold"):
        marks = f"gold answers ({gold['form']}) have full marks in {gold['full_marks']:.0%} of {gold['rows']} rows"
        others = ", ".join(f"{policy} {value:g}" for policy, value in proof.figures["most_paid"].items()) or "nothing"
        proof.say(f"{proof.thing} was played on {data}: {marks}; the most that others are paid: {others}.")
    for policy, values in paid.items():
        if (most := max(values)) > ALLOWED[policy] * full:
            mean = f"{statistics.fmean(values):g} on average, at most {most:g}"
            proof.find(f"{policy}: it is paid {mean}, of {full:g}; try paying for the task alone")


def ways_of_playing(player: Player, plays: list[dict]) -> dict:
    """{finding: function that plays the same conversations again and gives their returns} of the same environment."""
    pairs = [(play["row"], play["script"]) for play in plays]
    always = {name: itertools.repeat(kind.make()).__next__ for name, kind in player.environments.kinds.items()}
    kinds = {name: dataclasses.replace(kind, make=always[name]) for name, kind in player.environments.kinds.items()}
    one_object = Environments(kinds)  # of each kind, which serves one conversation after another, as with TRL
    return {
        "not_repeatable: side by side, it": lambda: player.returns(pairs)[0],
        "reset: an object that served other conversations": lambda: [
            player.returns([pair], one_object)[0][0] for pair in pairs
        ],
    }
