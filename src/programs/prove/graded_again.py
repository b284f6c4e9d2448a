"""Compute an evaluation's scores again from its stored completions."""

import re
import time
from pathlib import Path

from parts.data.rows import read_rows
from parts.evaluating.evaluation_results import unique_keys
from parts.foundation.bundle import BUNDLE
from parts.foundation.messages import UserError, need
from parts.rewards.reward_forms import import_file
from parts.rewards.user_code import user_text

GOLDS = ("answer", "final_answer", "expected_answer", "ground_truth", "solution")  # evaluation.py's columns for math
NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


def graded_math(samples: list[dict], rows: dict[str, dict], seconds: float) -> list[tuple[dict, str, list]]:
    """Grade samples against their rows' gold while time lasts; returns (sample, metric, its possible scores)."""
    file, end = BUNDLE / "scripts" / "math_grader.py", time.monotonic() + seconds
    need(file.is_file(), f"{file} is missing")
    grader, graded = import_file("grader", str(file), str(file)), []
    grader.start_worker(patience_s=60)
    for sample in samples:
        if time.monotonic() > end:
            break
        # graded with and without the prompt: few-shot examples or a template may hide that an answer copies the task
        prompts, row = ("", user_text(sample.get("prompt") or "")), rows.get(sample["key"], {})
        gold = next((row[name] for name in GOLDS if row.get(name) is not None), sample["gold"])
        scores = {grader.math_score(sample["completion"] or "", gold, prompt) for prompt in prompts}
        graded.append((sample, "verified", [*scores]))
    return graded


def regrade(proof, results, seconds: float) -> str:
    """Add findings about math scores that differ when computed again; returns what was computed, as a clause."""
    clauses = []
    for label, of_task in results.samples.items():
        samples = [sample for row in of_task.values() for sample in row]
        kind, _, options = label.partition(":")
        data = dict(x.split("=", 1) for x in options.split(",") if "=" in x).get("data") or results.settings.get("data")
        try:
            need(kind == "math", f"prove.py grades math alone, not {kind}")
            need(all({"completion", "gold"} <= {*x} for x in samples), "samples.jsonl has no completions or golds")
            given = read_rows(data) if data and Path(data).is_file() else []
            graded = graded_math(
                samples, dict(zip(unique_keys(given), given, strict=True)), seconds / len(results.samples)
            )
        except (UserError, OSError, KeyError, TypeError, ValueError) as error:
            proof.not_measured.append(f"{results.name}, {label}: scores were not computed again: {error}")
            clauses.append(f"scores of {label} were not computed again ({error})")
            continue
        wrong = []
        for sample, name, scores in graded:
            stored, possible = sample["metrics"].get(name), [x for x in scores if x is not None]
            if stored is not None and possible and all(abs(stored - x) > 1e-6 for x in possible):
                text = f"{str(sample['completion'])[-60:]!r}, gold {sample['gold']!r}, has {name} {stored}"
                wrong.append(f"row {sample['key']}: {text}, math_grader.py {possible[0]}")
        again = f"{len(graded)} scores of {label} were computed again from the completions by math_grader.py"
        clauses.append(f"{again}, {len(wrong)} differ")
        proof.findings += [f"{results.name}, {label}, {text}" for text in wrong[:3]]
        if len(wrong) > 3:
            proof.find(f"{results.name}, {label}: {len(wrong) - 3} more scores are not those of their completions")
    return "; ".join(clauses)


def grade_other(proof, results, seconds: float) -> str:
    """Grade another program's samples by math_grader.py where golds are numbers; returns the outcome as a clause.

    Full marks are a finding if the completion has numbers, but not the gold one.
    """
    metric, gradable, same, wrong = results.metrics[0], {}, 0, []
    samples = [x for row in results.samples[results.task].values() for x in row if x["metrics"].get(metric) in (0, 1)]
    for sample in samples:
        gold = str(sample["gold"]).rpartition("####")[2].strip().lstrip("$").replace(",", "")
        if sample["completion"] and NUMBER.fullmatch(gold):
            gradable[id(sample)] = float(gold)
    if not gradable or 2 * len(gradable) < len(samples):
        has_texts = any(x["completion"] for x in samples)
        why = "too few rows have one and a gold number"
        return f"completions of {results.file.name} were not graded: {why}" if has_texts else ""
    graded = graded_math([sample for sample in samples if id(sample) in gradable], {}, seconds)
    for x, _, scores in graded:
        score, numbers = x["metrics"][metric], [*map(float, NUMBER.findall(x["completion"].replace(",", "")))]
        same += score in scores
        if score == 1 and 1 not in scores and numbers and gradable[id(x)] not in numbers:
            text = f"{x['completion'][-60:]!r} has {metric} 1, but lacks its gold {x['gold']}"
            wrong.append(f"{results.name}, row {x['key']}: {text}")
    proof.findings += wrong[:3] + ([f"{results.name}: {len(wrong) - 3} more rows like these"] if len(wrong) > 3 else [])
    return f"math_grader.py scores {same} of {len(graded)} completions as {results.file.name} does"
