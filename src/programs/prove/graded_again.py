"""Compute an evaluation's scores again from its stored completions."""

import re
import time
from pathlib import Path

from parts.data.prompts import RESERVED
from parts.data.rows import prompt_of, read_rows
from parts.evaluating.evaluation_results import unique_keys
from parts.foundation.bundle import BUNDLE
from parts.foundation.messages import UserError, need
from parts.rewards.reward_forms import import_file, spec_parts
from parts.rewards.rewards import Reward
from parts.rewards.user_code import user_text

GOLDS = ("answer", "final_answer", "expected_answer", "ground_truth", "solution")  # evaluation.py's columns for math
NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
PROMPTS = ("prompt", "question", "problem", "instruction", "query", "text", "input")  # evaluation.py's columns


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


def graded_by_reward(
    samples: list[dict], rows: dict[str, dict], specs: list[str], data: str
) -> list[tuple[dict, str, list]]:
    """Score all samples with the columns of their rows; returns (sample, function, [its score])."""
    need(all(Path(spec_parts(x)[0]).is_file() for x in specs), "its functions are not here")
    need(rows, f"its data {data} are not here")
    need(all(sample["key"] in rows for sample in samples), f"{data} has other rows by now")
    examples = []
    for sample in samples:
        row = rows[sample["key"]]
        column = next(name for name in PROMPTS if row.get(name) is not None)
        columns = {name: value for name, value in row.items() if name not in RESERVED}
        examples.append({"prompt": prompt_of(row, column, data), "columns": columns})
    texts = [sample["completion"] or "" for sample in samples]
    parts = Reward(specs)(examples, texts, [[1] * max(1, sample.get("tokens") or 1) for sample in samples])[1]
    return [(sample, name, [values[i]]) for name, values in parts.items() for i, sample in enumerate(samples)]


def grade_again(label: str, samples: list[dict], settings: dict, seconds: float) -> list[tuple[dict, str, list]]:
    """(Sample, metric, possible scores) of a task; UserError says why they cannot be computed."""
    kind, _, rest = label.partition(":")
    need(all("completion" in sample for sample in samples), "samples.jsonl has no completions")
    parts = [part for part in rest.split(",") if part]
    options = dict(part.split("=", 1) for part in parts if "=" in part)
    data = options.get("data") or settings.get("data") or ""
    given = read_rows(data) if Path(data).is_file() else []
    rows = dict(zip(unique_keys(given), given, strict=True))
    if kind == "math":
        need(all("gold" in sample for sample in samples), "samples.jsonl has no gold answers")
        return graded_math(samples, rows, seconds)
    need(kind == "reward" and settings, f"task {kind} is not scored here")
    specs = [part for part in parts if "=" not in part] + list(settings.get("reward") or ())
    return graded_by_reward(samples, rows, specs, data)


def regrade(proof, results, seconds: float) -> str:
    """Add findings about scores that differ when computed again; returns what was computed, as a sentence."""
    clauses = []
    for label, rows in results.samples.items():
        samples = [sample for row in rows.values() for sample in row]
        try:
            graded = grade_again(label, samples, results.settings, seconds / len(results.samples))
        except (UserError, OSError, KeyError, TypeError, ValueError, StopIteration) as error:
            proof.not_measured.append(f"{results.name}, {label}: scores were not computed again: {error}")
            clauses.append(f"scores of {label} were not computed again ({error})")
            continue
        by, wrong = "math_grader.py" if label.startswith("math") else "its functions", []
        for sample, name, scores in graded:
            stored, possible = sample["metrics"].get(name), [x for x in scores if x is not None]
            if stored is not None and possible and all(abs(stored - x) > 1e-6 for x in possible):
                text = f"{str(sample['completion'])[-60:]!r}"
                text += f", gold {sample['gold']!r}," if "gold" in sample else ""
                wrong.append(f"row {sample['key']}: {text} has {name} {stored}, {by} {possible[0]}")
        again = f"{len(graded)} scores of {label} were computed again from the completions by {by}"
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
