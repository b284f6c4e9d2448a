"""Running the tasks, and the command line."""

import contextlib
import dataclasses
import itertools
import json
import random
import shlex
import sys
import time
from pathlib import Path

from parts.evaluating.evaluation_results import compare_reports, count_repeated, unique_keys
from parts.evaluating.paired_tests import summarize
from parts.foundation.bundle import in_bundle
from parts.foundation.exit_codes import exit_code, quiet_environment
from parts.foundation.messages import need, say, suggest, tell
from parts.foundation.processes import is_first, world
from parts.running.output_folder import make_folder, versions, write_text
from programs.evaluation.models import open_models
from programs.evaluation.others import reports_to_compare
from programs.evaluation.own_tasks import EnvironmentTask, RewardTask
from programs.evaluation.requests import compute, make_requests
from programs.evaluation.rows import count_trained, task_rows, warn_of_trained
from programs.evaluation.scored_tasks import MultipleChoice, Perplexity
from programs.evaluation.settings import Config, check_choices, parse_config
from programs.evaluation.tasks import Code, Generation, Math, Task

KINDS = (Generation, Math, Code, Perplexity, MultipleChoice, RewardTask, EnvironmentTask)
TASKS = {kind.name: kind for kind in KINDS}


def make_task(text: str, config: Config) -> Task:
    name = text.partition(":")[0]
    need(name != "custom", "got task custom, which was removed; try --task reward:FILE.py:function")
    need(name in TASKS, f"got task {name!r}; expected one of {', '.join(TASKS)}{suggest(name, list(TASKS))}")
    return TASKS[name](text, config)


def answered(config: Config, task: Task, model, rows: list[dict], shots: list[dict]) -> tuple:
    """(rows, their prompts, the records of the first process, counts) of a task that needs one answer at a time."""
    got = f"got task {task.name} with {model.source}"
    need(model.can_logprobs or not task.logprobs, f"{got}; expected a model with log-probs; try --engine hf")
    prompts, nested, cut = make_requests(config, task, model, rows, shots)
    if cut:
        say(f"warning: {task.label}: {cut} of {len(rows)} prompts exceed the context and lost their beginning")
    flat = [request for group in nested for request in group]
    outputs, reused = compute(config, model, flat, "logprob" if task.logprobs else "generate", task.label[:40])
    parts = iter(outputs)
    grouped = [[next(parts) for _ in group] for group in nested]
    records = task.score(rows, grouped) if world()[0] == 0 else []
    return rows, prompts, records, {"prompts_cut": cut, "from_cache": reused}


def run_task(config: Config, task: Task, model, rows: list[dict], shots: list[dict]) -> tuple[dict, list[dict]]:
    """(results of one task, its samples); nothing on other processes than the first."""
    done = task.play(model, rows) if task.plays else answered(config, task, model, rows, shots)
    rows, prompts, records, counts = done
    if world()[0] != 0:
        return {}, []
    # a given completion is no part of a row's name: two files, or two columns, of completions have the same rows
    named, values = prompts if config.completion_column else rows, task.values_of(records)
    result = {
        "metrics": {name: summarize(v, config.bootstrap, config.seed) for name, v in values.items()},
        "definition": task.definition,
        "rows": len(rows),
        **counts,
        "keys": unique_keys(named),
        "values": {name: dataclasses.asdict(v) for name, v in values.items()},
    }
    samples = []
    for row, prompt, key, scored in zip(rows, prompts, result["keys"], records, strict=True):
        about = {"task": task.label, "key": key, "id": row.get("id", row.get("task_id"))}
        samples += [about | {"sample": i, "prompt": prompt} | record for i, record in enumerate(scored)]
    return result, samples


def keep_earlier(folder: Path, config: Config) -> None:
    """Rename results of other settings in a folder, which this run would replace; refuse a training run's folder."""
    got = f"got output_dir {str(folder)!r}, where a training run has its samples.jsonl"
    need(not (folder / "metrics.jsonl").exists(), f"{got}; expected another folder; try {folder / 'evaluation'}")
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        earlier = json.loads((folder / "results.json").read_text(encoding="utf-8"))["settings"]
        if earlier != json.loads(json.dumps(dataclasses.asdict(config))):
            number = next(n for n in itertools.count(1) if not (folder / f"results-{n}.json").exists())
            for name in ("samples.jsonl", "results.json"):
                (folder / name).rename(folder / name.replace(".", f"-{number}."))
            say(f"note: earlier results with other settings are now {folder / f'results-{number}.json'}")


def evaluate(config: Config, tasks: list[tuple], model, folder: Path) -> dict:
    """Run all tasks on one model, write its files, and return what results.json holds."""
    started, results, samples = time.perf_counter(), {}, []
    trained = count_trained(model.source, [(task, rows) for task, rows, _ in tasks])
    for task, rows, shots in tasks:
        results[task.label], shown = run_task(config, task, model, rows, shots)
        results[task.label] |= {"trained_rows": trained[task.label]} if task.label in trained else {}
        samples += shown
    about = {"name": model.source, "hash": model.hash, "parameters": model.parameters, "context": model.max_length}
    about |= {"dtype": str(getattr(model, "dtype", "unknown")), "notes": model.notes}
    seconds = {"load": model.load_s, "all": time.perf_counter() - started + model.load_s}
    report = {"settings": dataclasses.asdict(config), "versions": versions(), "model": about, "seconds": seconds}
    report |= {"tasks": results}
    if world()[0] == 0:
        folder.mkdir(parents=True, exist_ok=True)
        write_text(folder / "samples.jsonl", "".join(json.dumps(s, ensure_ascii=True) + "\n" for s in samples))
        write_text(folder / "results.json", json.dumps(report, indent=1, allow_nan=False))
        print_metrics(report)
    return report


def in_short(metric: dict) -> list[str]:
    """Cells of a metric: value, standard error, interval, rows."""
    if metric["value"] is None:
        return ["not applicable", "", "", f"0 of {metric['of']}"]
    low_high = "" if metric["ci95"] is None else "[{:.4g}, {:.4g}]".format(*metric["ci95"])
    error = "" if metric["stderr"] is None else f"{metric['stderr']:.2g}"
    count = str(metric["n"]) if metric["n"] == metric["of"] else f"{metric['n']} of {metric['of']}"
    return [f"{metric['value']:.4g}", error, low_high, count]


def print_metrics(report: dict) -> None:
    lines, notes = [["task", "metric", "value", "stderr", "95 % interval", "rows"]], [*report["model"]["notes"]]
    for task, result in report["tasks"].items():
        lines += [[task, name, *in_short(metric)] for name, metric in result["metrics"].items()]
        if result["prompts_cut"]:
            notes.append(f"{task}: {result['prompts_cut']} of {result['rows']} prompts were cut to fit the context")
        if again := count_repeated(result["keys"]):
            notes.append(f"{task}: {again} of {result['rows']} rows repeat another one: the intervals are too narrow")
        if result.get("rows_left_out"):
            notes.append(f"{task}: {result['rows_left_out']} rows with too long prompts were left out")
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    tell(f"{report['model']['name']} ({report['model']['hash']})")
    for line in lines:
        tell("  " + "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
    for note in notes:
        tell(f"  note: {note}")


def print_comparison(before: dict, after: dict, config: Config) -> None:
    """Compare two runs row by row: write comparison.json, print the verdicts."""
    names = [report["model"]["name"] for report in (before, after)]
    results = compare_reports(before, after, config.bootstrap, config.seed)
    folder = Path(config.output_dir)
    folder.mkdir(parents=True, exist_ok=True)
    content = {"before": names[0], "after": names[1], "tasks": results}
    write_text(folder / "comparison.json", json.dumps(content, indent=1, allow_nan=False))
    tell(f"before {names[0]}\nafter  {names[1]}")
    for metrics in results.values():
        for metric in metrics.values():
            tell(f"  {metric['verdict']}")
    tests = [metric["p"] for metrics in results.values() for metric in metrics.values() if metric["p"] is not None]
    if len(tests) > 2 and (small := sum(p < 0.05 for p in tests)):
        sure = f"{sum(p < 0.05 / len(tests) for p in tests)} below 0.05 / {len(tests)}"
        tell(f"{small} of {len(tests)} tests have p < 0.05, as 1 in 20 has by chance; {sure}")
    tell(f"as JSON {folder / 'comparison.json'}")


def run(config: Config) -> int:
    check_choices(config)
    need(config.task or config.compare, f"got no --task; expected one of {', '.join(TASKS)}; try --task math")
    if config.system_prompt and Path(config.system_prompt).is_file():
        config.system_prompt = Path(config.system_prompt).read_text(encoding="utf-8").strip()
    random.seed(config.seed)  # for the user's graders
    if config.compare:
        reports = reports_to_compare(config.compare)
        warn_of_trained(reports)
        print_comparison(*reports, config)
        return 0
    tasks = [make_task(text, config) for text in dict.fromkeys(config.task)]
    loaded = [(task, *task_rows(config, task)) for task in tasks]  # before a model is
    folder, reports = Path(config.output_dir), []
    folders = [folder / "before", folder / "after"] if len(config.model) == 2 else [folder]
    make_folder(config)
    for place in folders if is_first() else ():
        keep_earlier(place, config)
    for model in open_models(config):
        reports.append(evaluate(config, loaded, model, folders[len(reports)]))
        del model  # before the next one is loaded
    if world()[0] == 0:
        if len(reports) == 2:
            print_comparison(*reports, config)
        tell(f"report {folder}")
        target = shlex.quote(str(folder / "page.html"))
        say(f"as a page: python {in_bundle('scripts/report.py')} {shlex.join(map(str, folders))} --output {target}")
    return 0


def main(argv: list[str] | None = None) -> int:
    def start() -> int:
        config = parse_config(sys.argv[1:] if argv is None else argv)
        quiet_environment(config.engine == "vllm")
        return run(config)

    return exit_code(
        start,
        mend="fix it and run the same command",
        stopped="stopped; results so far are in the cache, the same command continues",
    )


if __name__ == "__main__":
    sys.exit(main())
