#!/usr/bin/env python3
"""Measure the figures of benchmarks/README.md again on this machine, and write them beside the committed ones.

    python benchmarks/all.py --quick                       # about half an hour with a GPU: fewer pairs, seeds and steps
    python benchmarks/all.py --only grpo_vs_trl growth     # some of them, in full
    python benchmarks/all.py --list                        # all benchmarks, what they need, which run with --quick

Each benchmark is one command that prints JSON or a Markdown table; its output goes to DIR/NAME.log. DIR/figures.md has
a line per figure: the committed value (benchmarks/figures.json), this machine's, and their ratio. DIR/figures.json has
this machine's figures, its description and the commands. Both are rewritten after each benchmark, so a run may be
stopped at any time. Benchmarks that cannot run here are skipped with the reason. TRL 1.12 and lm-eval need their own
environments: --trl112 and --lm_eval name their interpreters; the docstrings of their benchmarks say how to make them.
With a GPU, benchmarks with the device `auto` run on it, all others on the CPU.
"""

import argparse
import importlib.util
import json
import os
import platform
import re
import shlex
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COMMITTED = ROOT / "benchmarks" / "figures.json"
NAMING = ("axis", "value", "case", "algorithm", "arm", "grader", "page", "seed", "warm start", "step")
NAMING += ("figure", "trainer", "planted")  # of diagnosis.py
SETTINGS = ("settings", "base")
PARTS = {"trl_grpo_worker", "trl_ppo_worker"}  # scripts that others start


@dataclass
class Benchmark:
    """A command, what it needs, and its flags with --quick."""

    script: str
    full: str = ""  # flags; {out} is the output folder
    quick: str | None = ""  # flags with --quick; None: skipped there
    device: str = "cpu"  # auto: a GPU if there is one
    python: str = ""  # trl112, lm_eval: interpreter passed as a flag; verl, vllm: interpreter that runs it
    needs: tuple[str, ...] = ()  # packages of this environment
    makes: dict[str, str] = field(default_factory=dict)  # {folder below {out}: command} that come first


TEACHER, UNABLE = ({name: f"assets/make_tiny_lm.py --{name} {{out}}/{name}"} for name in ("teacher", "unable"))
GIVEN = {"trl112": "--trl_python", "lm_eval": "--lm_eval_python"}
BENCHMARKS = {
    "demo": Benchmark("demo_seeds", "--seeds 0 1 2", "--seeds 0", "auto"),
    "demo_tools": Benchmark("demo_seeds", "--tools", "--tools --seeds 0", "auto"),
    "growth": Benchmark("growth", "--json", "--json --axes batch length", "auto"),
    "grpo_vs_trl": Benchmark("grpo_vs_trl", "--pairs 3", "--pairs 1 --steps 12", "auto", needs=("trl",)),
    "grpo_vs_trl_random": Benchmark(
        "grpo_vs_trl", "--case random --pairs 3", "--case random --pairs 1 --steps 4", "auto", needs=("trl",)
    ),
    "ppo_vs_trl": Benchmark(
        "ppo_vs_trl", "--pairs 3 --threads 1", "--pairs 1 --threads 1 --steps 8", "auto", python="trl112"
    ),
    "ppo_vs_trl_shared": Benchmark(
        "ppo_vs_trl", "--pairs 3 --threads 1 --critic shared", None, "auto", python="trl112"
    ),
    "distillation_vs_trl": Benchmark(
        "distillation_vs_trl",
        "--teacher {out}/teacher --pairs 3",
        "--teacher {out}/teacher --pairs 1 --steps 8",
        needs=("trl",),
        makes=TEACHER,
    ),
    "tools_vs_trl": Benchmark("tools_vs_trl", "--pairs 2 --steps 5", "--pairs 1 --steps 2", needs=("trl",)),
    "sampling_vs_generate": Benchmark(
        "sampling_vs_generate", "--rounds 1", "--rounds 1 --rows 32 --tokens 128", "auto"
    ),
    "vllm_rollouts": Benchmark(
        "vllm_rollouts",
        "--rows 64 --tokens 256 --repeats 1",
        "--rows 64 --tokens 64 --repeats 1",
        "auto",
        python="vllm",
    ),
    "algorithm_presets": Benchmark("algorithm_presets", "", "--algorithms grpo dapo rloo -- --steps 20", "auto"),
    "grpo_seeds": Benchmark("grpo_seeds", "", "--seeds 0 --steps 20", "auto", needs=("trl",)),
    # these two need the model folders that their docstrings name
    "real_learning": Benchmark("real_learning", "", None, "auto"),
    "real_model": Benchmark("real_model", "", None, needs=("trl",)),
    "posted_logs": Benchmark("posted_logs", "", ""),
    "warm_start": Benchmark(
        "warm_start",
        "--model {out}/unable",
        '--model {out}/unable --seeds 0 --ways "200 solutions" --no_rl_alone --steps 50',
        "auto",
        needs=("trl",),
        makes=UNABLE,
    ),
    "shared_prompts": Benchmark("shared_prompts", "", "--only embedded --pairs 1"),
    "one_page": Benchmark("one_page_seeds", "", "--seeds 0 --pages grpo -- --steps 20", "auto"),
    "second_attempts": Benchmark("second_attempts", "--seeds 0", "--seeds 0 --arms turn --steps 10", "auto"),
    "logprob_memory": Benchmark("logprob_memory", "", "--tokens 512"),
    "distill_memory": Benchmark("distill_memory", "", "--tokens 256"),
    "memory_estimates": Benchmark("memory_estimates", "", "--only gpt2", needs=("trl",)),
    "math_graders": Benchmark(
        "math_graders", "--peers {out}/peers --install", "--graders ours math-verify", needs=("math_verify",)
    ),
    "sandbox_speed": Benchmark("sandbox_speed", "", "--programs 50 --rounds 2"),
    "data_loader_speed": Benchmark(
        "data_loader_speed", "--json --megabytes 20", "--json --megabytes 20 --repeats 1", needs=("datasets",)
    ),
    "diagnosis": Benchmark("diagnosis", "--runs {out}/runs", "--part --runs {out}/runs", needs=("trl",)),
    "false_alarms": Benchmark("false_alarms", "", "--logs 20"),
    "report_speed": Benchmark("report_speed", "", "--share 0.1 --repeats 1", needs=("plotly",)),
    "evaluation_vs_lm_eval": Benchmark("evaluation_vs_lm_eval", "", "--pairs 1 --rows 16", python="lm_eval"),
    "verl_cpu_learning": Benchmark("verl_cpu_learning", "--steps 30", None, python="verl"),
}


def obstacle(one: Benchmark, args) -> str:
    """Why a benchmark cannot run here; empty where it can."""
    if args.quick and one.quick is None:
        return "left out by --quick"
    missing = [name for name in one.needs if not importlib.util.find_spec(name)]
    if missing:
        return f"{', '.join(missing)} not installed; try requirements.txt"
    if one.python in GIVEN and not getattr(args, one.python):
        return f"no environment for it; try --{one.python} PYTHON, as benchmarks/{one.script}.py says"
    if one.python in ("verl", "vllm") and not interpreter(one).exists():
        return f"no .venv-{one.python}; try make setup-{one.python}"
    return ""


def interpreter(one: Benchmark) -> Path:
    """The Python that runs a benchmark."""
    own = one.python in ("verl", "vllm")
    return ROOT / f".venv-{one.python}" / "bin" / "python" if own else Path(sys.executable)


def command_of(one: Benchmark, args) -> list[str]:
    """The command line of a benchmark."""
    flags = shlex.split((one.quick if args.quick else one.full).replace("{out}", str(args.output)))
    given = [GIVEN[one.python], getattr(args, one.python)] if one.python in GIVEN else []
    return [str(interpreter(one)), f"benchmarks/{one.script}.py", *given, *flags]


def output_of(command: list[str], env: dict, log, limit: float) -> tuple[str, int | None]:
    """(Output of a command, its exit code); None if it was killed, with its children, after `limit` seconds."""
    given = {"cwd": ROOT, "env": env, "stdout": subprocess.PIPE, "stderr": log, "text": True}
    with subprocess.Popen(command, start_new_session=True, **given) as process:
        try:
            return process.communicate(timeout=max(1, limit))[0], process.returncode
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return process.communicate()[0], None
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise


def run(name: str, one: Benchmark, args, limit: float) -> dict:
    """Run a benchmark; its figures, or why there are none."""
    why = obstacle(one, args)
    if why:
        return {"why": why}
    env = {**os.environ, "HF_HUB_OFFLINE": "1"} | ({"CUDA_VISIBLE_DEVICES": ""} if one.device == "cpu" else {})
    commands = []
    for folder, made in one.makes.items():
        if not (args.output / folder).exists():
            commands.append([sys.executable, *shlex.split(made.replace("{out}", str(args.output)))])
    commands.append(command_of(one, args))
    started, text = time.monotonic(), ""
    with open(args.output / f"{name}.log", "w", encoding="utf-8") as log:
        for command in commands:
            text, code = output_of(command, env, log, limit - (time.monotonic() - started))
            log.write(text)
            if code is None:
                late = f"not done within {limit:.0f} s; try --minutes, or it alone with --only {name}"
                return {"why": late, "command": shlex.join(command), "figures": figures_of(text)}
            if code and not figures_of(text):
                return {"why": f"exit code {code}; see {name}.log", "command": shlex.join(command)}
    found = {"command": shlex.join(commands[-1]), "seconds": round(time.monotonic() - started)}
    return found | {"figures": figures_of(text)}


# ------------------------------------------------------------------------------------------------ figures


def figures_of(text: str) -> dict[str, float]:
    """{name: number} from a benchmark's output: JSON objects, and Markdown tables by row and column."""
    found: dict[str, float] = {}
    for match in re.finditer(r"^\{", text, re.MULTILINE):
        try:
            found |= numbers(json.JSONDecoder().raw_decode(text, match.start())[0])
        except ValueError:
            continue
    head: list[str] = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")] if line.startswith("|") else []
        if cells and head and not set("".join(cells)) <= {"-"}:
            found |= numbers(dict(zip(head, map(as_number, cells), strict=False)))
        head = (head or cells) if cells else []
    return found


def as_number(cell: str) -> float | str:
    """A table cell as a number, also if brackets follow; else the cell."""
    match = re.fullmatch(r"(-?[\d,]*\.?\d+)(?: \(.*\))?", cell)
    return float(match[1].replace(",", "")) if match else cell


def numbers(value: object, name: str = "") -> dict[str, float]:
    """{path of names: number} in a JSON value; a row of a list is named by its entries of NAMING."""
    if isinstance(value, dict):
        words = [value[key] for key in NAMING if key in value]
        name = " ".join(filter(None, [name, *(f"{x:g}" if isinstance(x, float) else str(x) for x in words)]))
        inner = [(f"{name} {key}".strip(), one) for key, one in value.items() if key not in (*NAMING, *SETTINGS)]
    elif isinstance(value, list):
        inner = [(name if isinstance(one, dict) else f"{name} {i}", one) for i, one in enumerate(value)]
    else:
        return {name: value} if isinstance(value, int | float) and not isinstance(value, bool) else {}
    return {found: x for title, one in inner for found, x in numbers(one, title).items()}


def committed_figures() -> dict[str, dict[str, float]]:
    """{benchmark: {figure: value}} of benchmarks/README.md."""
    return json.loads(COMMITTED.read_text(encoding="utf-8"))["figures"]


def machine() -> dict:
    """A description of this machine."""
    import torch

    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else ""
    load, kind = os.getloadavg()[0], platform.processor() or platform.machine()
    return {
        **{"cores": os.cpu_count(), "processor": kind, "memory_gib": round(memory, 1), "gpu": gpu, "load": load},
        **{"python": platform.python_version(), "torch": torch.__version__, "time": time.strftime("%Y-%m-%d %H:%M")},
    }


def write_report(args, results: dict[str, dict], first: dict) -> None:
    """Write figures.json and figures.md from the results so far."""
    known = committed_figures()
    lines = ["| benchmark | figure | committed | here | here / committed |", "|---|---|---|---|---|"]
    for name, found in results.items():
        if "why" in found:
            kind = "measured in part" if found.get("figures") else "not measured"
            lines.append(f"| {name} | {kind}: {found['why']} | | | |")
        for figure, here in found.get("figures", {}).items():
            old = known.get(name, {}).get(figure)
            ratio = f"{here / old:.2f}" if old else ""
            lines.append(f"| {name} | {figure} | {'' if old is None else f'{old:g}'} | {here:g} | {ratio} |")
    about = ", ".join(f"{key} {value}" for key, value in first.items() if value != "")
    head = f"# Figures of {'a quick run' if args.quick else 'a run'}\n\n{about}; load now {os.getloadavg()[0]:.1f}.\n"
    if args.quick:
        head += "\nFewer pairs, seeds, steps and rows than the committed ones had: read ratios, not digits.\n"
    commands = [
        f"- `{found['command']}` ({found.get('seconds', '?')} s)" for found in results.values() if "command" in found
    ]
    text = "\n".join([head, *lines, "", "Commands:", "", *commands, ""])
    (args.output / "figures.md").write_text(text, encoding="utf-8")
    report = {"machine": first, "quick": args.quick, "benchmarks": results}
    (args.output / "figures.json").write_text(json.dumps(report, indent=1), encoding="utf-8")


def show_list(args) -> None:
    """Print every benchmark with its device, its command, and why it cannot run here."""
    for name, one in BENCHMARKS.items():
        why = obstacle(one, args)
        quick = "left out" if one.quick is None else one.quick or "as in full"
        print(f"{name} ({'GPU where there is one' if one.device == 'auto' else 'CPU'}){f': {why}' if why else ''}")
        print(f"    {one.script}.py {one.full}\n    --quick: {quick}")


def main(argv: list[str] | None = None) -> int:
    """Run the chosen benchmarks; exit code 1 if one that could run gave no figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer pairs, seeds, steps; ends after --minutes")
    parser.add_argument("--only", nargs="+", default=[*BENCHMARKS], choices=[*BENCHMARKS], metavar="NAME")
    parser.add_argument("--list", action="store_true", help="print what there is and stop")
    parser.add_argument("--output", type=Path, default=Path("runs/benchmarks"), metavar="DIR")
    parser.add_argument(
        "--minutes", type=float, help="for all of them together (default: 30 with --quick, else no end)"
    )
    parser.add_argument("--trl112", metavar="PYTHON", help="interpreter of an environment with TRL 1.12")
    parser.add_argument("--lm_eval", metavar="PYTHON", help="interpreter of an environment with lm-eval 0.4.13")
    args = parser.parse_args(argv)
    if args.list:
        show_list(args)
        return 0
    args.output = args.output.resolve()
    args.output.mkdir(parents=True, exist_ok=True)
    minutes = args.minutes or (30 if args.quick else 10_000)
    end, results, first = time.monotonic() + 60 * minutes, {}, machine()
    for name in args.only:
        left = end - time.monotonic()
        over = {"why": f"the {minutes:g} minutes were over; try --minutes"}
        results[name] = run(name, BENCHMARKS[name], args, min(left, 300) if args.quick else left) if left > 0 else over
        said = results[name].get("why") or f"{len(results[name]['figures'])} figures, {results[name]['seconds']} s"
        print(f"{name}: {said}", file=sys.stderr, flush=True)
        write_report(args, results, first)
    print(args.output / "figures.md")
    failed = [
        name for name, found in results.items() if not found.get("figures") and not obstacle(BENCHMARKS[name], args)
    ]
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
