"""A reward: the forms of trainers that it has, reward_preflight.py's checks on the user's rows, hostile programs."""

import ast
import tempfile
import tracemalloc
from pathlib import Path

from parts.data.rows import prompt_of, read_rows
from parts.foundation.file_text import file_text, with_values
from parts.foundation.messages import UserError
from parts.rewards.rewards import Reward
from programs.prove.attack_proof import attacked_row, prove_against_attacks
from programs.prove.proof import Proof, failures_of, parsed, report_of

AS_SAMPLE_REWARD = file_text("files/as_sample_reward.py")
MEASURED_ROWS = 32
NONSENSE = ("empty", "whitespace", "unicode_junk", "keyword_stuffing", "very_long")  # probes of reward_preflight.py
VERL_NAMES = {"data_source", "solution_str", "ground_truth", "extra_info"}  # verl's reward managers pass these by name


def arguments_of(path: Path, name: str) -> ast.arguments | None:
    """The parameters of a function of a file; None where it has no such `def`."""
    kinds = ast.FunctionDef | ast.AsyncFunctionDef
    return next((node.args for node in parsed(path) if isinstance(node, kinds) and node.name == name), None)


def forms_of(arguments: ast.arguments) -> dict[str, str]:
    """{trainer: "" where a reward has its form, else why not}."""
    every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    names, takes_any = {x.arg for x in every}, arguments.kwarg is not None
    batch, sample = "completions" in names, bool({"prompt", "completion"} & names)
    trl = "" if batch and takes_any else "no **kwargs, and TRL passes every column" if batch else "it scores no batch"
    missing = {"solution_str", "ground_truth"} - names or (set() if takes_any else VERL_NAMES - names)
    verl = f"it takes no {', '.join(sorted(missing))}" if missing else ""
    return {"TRL": trl, "verl": verl, "ours": "" if batch or sample else "it takes no completion or completions"}


def prove_reward(spec: str, data: str, seconds: float) -> Proof:
    """Try a reward on rows."""
    file, _, name = spec.partition("*")[0].rpartition(":")
    proof, arguments, rows = Proof("reward", spec), arguments_of(Path(file), name), read_rows(data)
    forms = forms_of(arguments) if arguments else {}
    with tempfile.TemporaryDirectory() as folder:
        tried, taken = spec, {*rows[0]}
        if forms and forms["ours"] and {"solution_str", "ground_truth"} <= {x.arg for x in arguments.args}:
            adapter = Path(folder, "as_sample_reward.py")
            adapter.write_text(with_values(AS_SAMPLE_REWARD, file=repr(str(Path(file).resolve())), name=repr(name)))
            tried = f"{adapter}:as_sample_reward"
        elif arguments and not arguments.kwarg:
            taken &= {x.arg for x in arguments.args}
        attacked = attacked_row({"prompt": "", **rows[0]}, taken)
        describe_forms(proof, forms, name)
        try:
            report = report_of("reward_preflight.py", ["--reward", tried, "--data", data, "--json"], seconds)
            describe_checks(proof, report, tried, data)
        except UserError as error:
            if not attacked or "reference completion" not in str(error):
                raise
            report = {"findings": []}
            proof.skip("What gold answers are paid", "the rows have tests and no solutions")
        if attacked:
            prove_against_attacks(proof, tried, attacked)
    proof.findings += failures_of(report)
    return proof


def describe_forms(proof: Proof, forms: dict[str, str], name: str) -> None:
    """The sentence of the forms; a function that no trainer can call is a finding."""
    if not forms:
        proof.skip("The form", f"{name} is no function that the file defines with def")
        return
    proof.figures["forms"] = {trainer: not why for trainer, why in forms.items()}
    words = [f"{trainer} {'can' if not why else f'cannot ({why})'}" for trainer, why in forms.items()]
    proof.say(f"Which trainers can call {name}, by its parameters: {'; '.join(words)}.")
    if all(forms.values()):
        proof.find(f"no trainer can call {name}: {'; '.join(words)}")


def describe_checks(proof: Proof, report: dict, spec: str, data: str) -> None:
    """The sentences of gold, nonsense and repeated scoring."""
    gold, contract = report["gold"], report["contract"]
    probes = {line["name"]: line for line in report["probes"]}
    paid = {name: probes[name]["worst"] for name in NONSENSE if probes.get(name, {}).get("worst") is not None}
    proof.figures |= {"gold": {key: gold[key] for key in ("rows", "variant", "full_marks", "mean")}}
    proof.figures |= {"nonsense_worst_share": paid, "contract": contract, "probes": report["probes"]}
    most = f"{max(paid.values()):.0%} of gold's score" if paid else "nothing that could be compared"
    count = sum(probes[name]["completions"] for name in paid)
    proof.say(
        f"reward_preflight.py gave {gold['full_marks']:.1%} of {gold['rows']} gold answers of {data} full marks "
        f"(written {gold['variant']!r}); of {count} nonsense completions ({', '.join(paid)}), the best got {most}."
    )
    tests = ("deterministic", "order_independent", "batch_independent")
    names = {"deterministic": "twice", "order_independent": "in another order", "batch_independent": "alone"}
    words = [f"{names[test]} {'yes' if contract[test] else 'no'}" for test in tests if test in contract]
    function = report["functions"][0]
    proof.figures |= {key: function[key] for key in ("p50_ms", "p99_ms")}
    took = f"{function['p50_ms']:g} ms (99 % within {function['p99_ms']:g} ms)" if function["p50_ms"] else "no time"
    if any(function[kind] for kind in ("hung", "died", "raised", "malformed", "not_finite")):
        proof.skip("Memory", "the reward failed on some completions")
    else:
        peak = proof.figures["peak_bytes_a_completion"] = peak_bytes(spec, data)
        took += f" and {peak / 1024:.1f} KiB of Python memory"
    proof.say(f"The same completions get the same scores: {', '.join(words)}; a gold one takes {took}.")


def peak_bytes(spec: str, data: str) -> int:
    """The peak of Python memory in a batch of gold completions, for each of them."""
    rows = [{"prompt": prompt_of(row, "prompt", data), "columns": row} for row in read_rows(data)[:MEASURED_ROWS]]
    texts = [f"<answer>{row['columns'].get('answer', '')}</answer>" for row in rows]
    reward = Reward([spec])
    reward(rows[:1], texts[:1], [[1]])  # imports are not a completion's
    tracemalloc.start()
    try:
        reward(rows, texts, [[1] * len(text) for text in texts])
        return round(tracemalloc.get_traced_memory()[1] / len(rows))
    finally:
        tracemalloc.stop()
