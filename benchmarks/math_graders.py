#!/usr/bin/env python3
"""Math graders side by side over tests/data/math_cases.jsonl; prints a Markdown table.

    python benchmarks/math_graders.py                               # ours and what .venv holds: math-verify, TRL
    python benchmarks/math_graders.py --install --peers ~/peers     # and verl, verifiers, open-r1, by pip --target
    python benchmarks/math_graders.py --graders ours trl --show 20  # the rows they miss

Each grader runs in a process of its own, on its main thread, where signal-based timeouts work; an item that takes
longer than --limit seconds is stopped, pays nothing and costs the limit. Completions reach each grader in the form it
gets in training: chat messages for TRL and open-r1, a string elsewhere. Packages are as released except modules that
the graders never use but that import torch, ray or API clients: they are replaced by the lines in PEERS.

A row agrees when the grader pays (score 1) exactly where the table expects 1: None and 0 both pay nothing.
"""

import argparse
import importlib.metadata
import importlib.util
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CASES = ROOT / "tests" / "data" / "math_cases.jsonl"
LIBRARY = ROOT / "examples" / "reward_functions_library.py"
OPEN_R1 = "open-r1 @ git+https://github.com/huggingface/open-r1@1416fa0cf21595d2083b399a2a0bbddd7f6e9563"

# folder: (what pip installs without dependencies, modules replaced because they import what graders never use)
PEERS = {
    "verl": (
        ["verl==0.9.1", "pylatexenc==2.10"],
        {"verl/__init__.py": "", "verl/utils/__init__.py": "", "verl/utils/metric/__init__.py": "Metric = ()\n"},
    ),
    "verifiers": (
        ["verifiers==0.4.0"],
        {
            "verifiers/__init__.py": "",
            "verifiers/v1/__init__.py": "",
            "verifiers/v1/utils/__init__.py": "",
            "verifiers/v1/errors.py": "class SandboxError(Exception):\n    pass\n",
        },
    ),
    "open-r1": (  # with the versions it pins
        [OPEN_R1, "math-verify==0.5.2", "latex2sympy2_extended==1.0.6"],
        {
            "open_r1/utils/__init__.py": "",
            "open_r1/utils/code_providers.py": "get_provider = None\n",
            "open_r1/utils/competitive_programming/__init__.py": (
                "SubtaskResult = add_includes = get_morph_client_from_env = get_piston_client_from_env = None\n"
                "patch_code = score_submission = score_subtask = None\n"
            ),
        },
    ),
}


def chat(text: str) -> list:
    """A completion as a trainer hands it over for chat data."""
    return [{"role": "assistant", "content": text}]


def load_ours(path: str) -> Callable:
    """`math_equivalence` of the reward library."""
    spec = importlib.util.spec_from_file_location("reward_functions_library", path)
    sys.modules[spec.name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return lambda text, gold: module.math_equivalence(prompts=[None], completions=[text], answer=[gold])[0]


def load_math_verify(_: str) -> Callable:
    """math-verify's `parse` and `verify` as its README calls them, the gold in a LaTeX environment."""
    from math_verify import parse, verify

    return lambda text, gold: verify(parse(gold if "$" in gold or "####" in gold else f"${gold}$"), parse(text))


def load_accuracy(module: str, wrap: bool) -> Callable:
    """`accuracy_reward` of TRL or open-r1; `wrap` puts a bare gold between dollar signs."""

    def loader(_: str) -> Callable:
        reward = importlib.import_module(module).accuracy_reward

        def score(text, gold):
            solution = f"${gold}$" if wrap and "$" not in gold and "####" not in gold else gold
            return reward(completions=[chat(text)], solution=[solution])[0]

        return score

    return loader


def load_verl(name: str) -> Callable:
    """One of verl's graders; GSM8K's gold as verl's data preparation leaves it."""

    def loader(_: str) -> Callable:
        grade = importlib.import_module(f"verl.utils.reward_score.{name}").compute_score

        def score(text, gold):
            if name == "gsm8k":
                gold = gold.split("####")[-1].strip().replace(",", "")
            result = grade(text, gold)
            if isinstance(result, dict):
                return float(result["acc"])
            return float(result[0] if isinstance(result, tuple) else result)

        return score

    return loader


def load_verifiers(_: str) -> Callable:
    """The function behind verifiers' math rubric since 0.4."""
    from verifiers.v1.utils.score import verify_boxed_math_answer

    return verify_boxed_math_answer


# name: (loader, folder in PEERS or None, what marks a row in its own answer format; boxes where it reads several)
GRADERS = {
    "ours": (load_ours, None, "\\boxed{"),
    "math-verify": (load_math_verify, None, "\\boxed{"),
    "trl": (load_accuracy("trl.rewards", wrap=False), None, "\\boxed{"),
    "trl-dollar": (load_accuracy("trl.rewards", wrap=True), None, "\\boxed{"),
    "open-r1": (load_accuracy("open_r1.rewards", wrap=False), "open-r1", "\\boxed{"),
    "open-r1-dollar": (load_accuracy("open_r1.rewards", wrap=True), "open-r1", "\\boxed{"),
    "verl-gsm8k": (load_verl("gsm8k"), "verl", "####"),
    "verl-math_reward": (load_verl("math_reward"), "verl", "\\boxed{"),
    "verl-math_dapo": (load_verl("math_dapo"), "verl", "Final answer: "),
    "verl-prime_math": (load_verl("prime_math"), "verl", "\\boxed{"),
    "verl-math_verify": (load_verl("math_verify"), "verl", "\\boxed{"),
    "verifiers": (load_verifiers, "verifiers", "\\boxed{"),
}
TITLES = {
    "trl": "TRL accuracy_reward",
    "trl-dollar": "TRL accuracy_reward, gold as `$…$`",
    "open-r1": "open-r1 accuracy_reward",
    "open-r1-dollar": "open-r1 accuracy_reward, gold as `$…$`",
    "verifiers": "verifiers verify_boxed_math_answer",
}


def read_cases(path: Path) -> list[dict]:
    """Rows with their completion written out: `completion` + piece * n + suffix where `completion_repeat` stands."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]
    for row in rows:
        piece, n, suffix = row.pop("completion_repeat", ("", 0, ""))
        row["completion"] = row.get("completion", "") + piece * n + suffix
    return rows


def work(name: str, path: str) -> None:
    """Worker: grade JSON lines from stdin; what a grader prints goes to stderr."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    grade = GRADERS[name][0](path)
    for line in sys.stdin:
        text, gold = json.loads(line)
        start, error = time.perf_counter(), None
        try:
            score = grade(text, gold)
        except Exception as problem:  # in training it would end the run; here it pays nothing and is counted
            score, error = None, type(problem).__name__
        seconds = time.perf_counter() - start
        print(json.dumps([None if score is None else float(score), seconds, error]), file=answers, flush=True)


class Worker:
    """One grader in a process group of its own, replaced when an item takes too long."""

    def __init__(self, name: str, path: str, folder: Path | None, limit: float):
        self.command = [sys.executable, __file__, "--worker", name, "--ours", path]
        extra = [str(folder)] if folder else []
        self.env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(extra), "HF_HUB_OFFLINE": "1"}
        self.limit, self.process = limit, None

    def start(self) -> None:
        """Start the process and grade two rows that are not counted: imports and what starts at the first answer."""
        self.log = tempfile.TemporaryFile()
        self.process = subprocess.Popen(
            self.command, env=self.env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log,
            start_new_session=True, bufsize=0,
        )  # fmt: skip
        self.ask("so \\boxed{\\sum_{k=1}^{3} k}", "6", 120)
        _, _, error = self.ask("so \\boxed{\\frac{x+1}{2}}", "\\frac{1+x}{2}", 120)
        if error:
            self.log.seek(0)
            said = self.log.read().decode(errors="replace").strip().split("\n")[-1]
            raise RuntimeError(said or error)

    def ask(self, text: str, gold: str, limit: float | None = None) -> tuple:
        """Grade one row: (score, seconds, error)."""
        limit = limit or self.limit
        try:
            self.process.stdin.write((json.dumps([text, gold]) + "\n").encode())
        except BrokenPipeError:
            return None, 0.0, "died"
        ready, _, _ = select.select([self.process.stdout], [], [], limit)
        line = self.process.stdout.readline() if ready else b""
        if line:
            return tuple(json.loads(line))
        return None, limit, "died" if ready else "timeout"

    def stop(self) -> None:
        """End the whole process group."""
        if self.process:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self.process = None

    def grade(self, text: str, gold: str) -> tuple:
        """Grade one row within the limit, starting the process if needed."""
        if not self.process:
            self.start()
        result = self.ask(text, gold)
        if result[2] in ("timeout", "died"):
            self.stop()
        return result


def install(folder: Path, specs: list[str], replaced: dict[str, str]) -> str | None:
    """Install packages without dependencies into a folder; return pip's error if it fails."""
    done = folder / ".installed"
    if done.exists():
        return None
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder), *specs]
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode:
        lines = result.stderr.strip().split("\n")
        return next((line.strip() for line in lines if "fatal:" in line or "ERROR:" in line), lines[-1])
    for name, text in replaced.items():
        (folder / name).write_text(text)
    done.touch()
    return None


def measure(name: str, rows: list[dict], args) -> dict:
    """Grade all rows with one grader."""
    loader_folder, marker = GRADERS[name][1:]
    folder = args.peers / loader_folder if loader_folder else None
    if folder and not (folder / ".installed").exists():
        return {"missing": args.failed.get(loader_folder, "not installed (--install)")}
    worker, own, agreed, own_agreed = Worker(name, args.ours, folder, args.limit), 0, 0, 0
    wrong, seconds, none, errors = {"false +": [], "false -": []}, [], 0, 0
    try:
        for row in rows:
            score, spent, error = worker.grade(row["completion"], row["answer"])
            pays, expected = score is not None and score >= 1, row["expected"] == 1
            seconds.append(spent)
            none += score is None and not error
            errors += bool(error)
            agreed += pays == expected
            if marker in row["completion"]:
                own += 1
                own_agreed += pays == expected
            if pays != expected:
                wrong["false +" if pays else "false -"].append({**row, "got": score, "error": error})
    except RuntimeError as problem:
        return {"missing": f"does not load: {problem}"}
    finally:
        worker.stop()
    return {
        "agreement": 100 * agreed / len(rows), "own": f"{100 * own_agreed / max(own, 1):.1f} ({own})", "wrong": wrong,
        "none": none, "errors": errors, "median_ms": 1e3 * sorted(seconds)[len(rows) // 2], "slowest": max(seconds),
    }  # fmt: skip


def version(name: str) -> str:
    """Package version for the table, where the package is in this environment or pinned here."""
    folder = GRADERS[name][1]
    if folder:
        spec = PEERS[folder][0][0]
        return spec.partition("==")[2] or spec.rpartition("@")[2][:7]
    return importlib.metadata.version({"ours": "math-verify", "math-verify": "math-verify"}.get(name, "trl"))


def main() -> None:
    """Grade the table with each grader and print it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graders", nargs="+", default=list(GRADERS), choices=list(GRADERS))
    parser.add_argument("--peers", type=Path, default=Path(tempfile.gettempdir()) / "math_graders")
    parser.add_argument("--install", action="store_true", help="pip install what --peers lacks")
    parser.add_argument("--open_r1", default=OPEN_R1, help="what pip installs open-r1 from, e.g. a local checkout")
    parser.add_argument("--ours", default=str(LIBRARY), help="reward library to measure")
    parser.add_argument("--cases", type=Path, default=CASES)
    parser.add_argument("--limit", type=float, default=20.0, help="seconds an item may take")
    parser.add_argument("--show", type=int, default=0, help="print that many wrong rows of each grader")
    parser.add_argument("--worker", choices=list(GRADERS), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        return work(args.worker, args.ours)
    rows, args.failed = read_cases(args.cases), {}
    needed = {GRADERS[name][1] for name in args.graders if args.install}
    for name, (specs, replaced) in PEERS.items():
        if name not in needed:
            continue
        specs = [args.open_r1 if spec == OPEN_R1 else spec for spec in specs]
        args.failed[name] = install(args.peers / name, specs, replaced)
    positive = sum(row["expected"] == 1 for row in rows)
    print(f"{len(rows)} cases, {positive} of them correct answers.\n")
    head = ["grader", "agreement %", "in its own format % (rows)", "false +", "false -", "None", "errors, timeouts"]
    head += ["median ms", "slowest s"]
    print("| " + " | ".join(head) + " |\n|" + "---|" * len(head))
    for name in args.graders:
        result = measure(name, rows, args)
        title = TITLES.get(name, name.replace("verl-", "verl "))
        if name != "ours":
            title += f" ({version(name)})"
        if "missing" in result:
            print(f"| {title} | not measured: {result['missing']} |" + " |" * (len(head) - 2), flush=True)
            continue
        wrong = result["wrong"]
        cells = [f"{result['agreement']:.1f}", result["own"], len(wrong["false +"])]
        cells += [len(wrong["false -"]), result["none"], result["errors"]]
        cells += [f"{result['median_ms']:.1f}", f"{result['slowest']:.2f}"]
        print(f"| {title} | " + " | ".join(map(str, cells)) + " |", flush=True)
        for sign, missed in wrong.items():
            for row in missed[: args.show]:
                text = row["completion"] if len(row["completion"]) < 200 else row["completion"][:200] + "…"
                line = f"    {sign} {row['kind']}: {text!r} gold {row['answer']!r} {row['error'] or ''}"
                print(line, file=sys.stderr)


if __name__ == "__main__":
    main()
