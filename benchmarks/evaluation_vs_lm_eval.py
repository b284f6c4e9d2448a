#!/usr/bin/env python3
"""CPU seconds of scripts/evaluation.py beside lm-evaluation-harness: GSM8K-style generation, alternating runs.

Both sides load the same small model (the one in tests/data/evaluation, trained to write GSM8K-style solutions and then
the next question, as base models do) and do the same rows with at most 200 new tokens. The clock is each process's CPU
time from the first prompt to the last score, so without start-up. Shots are the same three rows for all. The rows whose
completion is the same on both sides are counted. `--width` takes a random model of that hidden size instead, which
never stops, so that every row costs all of `--max_new_tokens`.

    python3 -m venv V && V/bin/pip install torch==2.13.0 && V/bin/pip install lm-eval==0.4.13 transformers accelerate
    python benchmarks/evaluation_vs_lm_eval.py --lm_eval_python V/bin/python --pairs 3
"""

import argparse
import importlib.util
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
STORED = ROOT / "tests" / "data" / "evaluation"
CASES = {  # name: (shots, our batch size, theirs); 0 and 1 are the defaults
    "0 shots, batch 32": (0, 32, 32),
    "3 shots, batch 32": (3, 32, 32),
    "0 shots, defaults": (0, 0, 1),
    "3 shots, defaults": (3, 0, 1),
}


def load(path: Path):
    """A Python file as a module."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    sys.modules[path.stem] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def make_model(folder: Path, width: int) -> None:
    """A random model with the embedded tokenizer."""
    import torch
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        **{"vocab_size": 262, "hidden_size": width, "intermediate_size": 3 * width, "num_hidden_layers": 4},
        **{"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 4096},
        **{"initializer_range": 0.1, "eos_token_id": 2, "pad_token_id": 0, "bos_token_id": None},
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(ROOT / "assets" / "tiny_lm")
    tokenizer.chat_template = None
    tokenizer.save_pretrained(folder)


def ours(folder: Path, shots: int, size: int, new: int) -> tuple[float, list[str], list]:
    """(CPU seconds, completions, scores) of scripts/evaluation.py."""
    import torch

    ev = load(ROOT / "scripts" / "evaluation.py")
    config = ev.Config(
        task=["math"], data=str(folder / "problems.jsonl"), fewshot=shots, fewshot_data=str(folder / "shots.jsonl"),
        batch_size=size, max_new_tokens=new, cache=False, chat_template="off",  # as the harness by default
    )  # fmt: skip
    model = ev.LocalModel(config, str(folder / "model"), torch.device("cpu"))
    task = ev.make_task("math", config)
    rows, worked = ev.task_rows(config, task)
    begin = time.process_time()
    found, samples = ev.run_task(config, task, model, rows, worked)
    seconds = time.process_time() - begin
    return seconds, [s["completion"] for s in samples], [found["values"][k]["top"] for k in ("strict", "flexible")]


def theirs(folder: Path, shots: int, size: int, new: int) -> tuple[float, list[str], list]:
    """The same of the harness."""
    from lm_eval import simple_evaluate
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager

    maker = load(STORED / "make_oracle.py")
    maker.GSM8K = maker.GSM8K.replace(f"max_gen_toks: {maker.MAX_NEW}", f"max_gen_toks: {new}")
    maker.task_files(folder, folder)
    model = HFLM(pretrained=str(folder / "model"), dtype="float32", device="cpu", batch_size=size)
    manager = TaskManager(include_path=str(folder), include_defaults=False)
    begin = time.process_time()
    out = simple_evaluate(model, tasks=["own_problems"], num_fewshot=shots, task_manager=manager, bootstrap_iters=0)
    seconds = time.process_time() - begin
    rows = sorted(out["samples"]["own_problems"], key=lambda s: s["doc_id"])
    scores = [[s["exact_match"] for s in rows if s["filter"] == name] for name in ("strict-match", "flexible-extract")]
    return seconds, [s["resps"][0][0] for s in rows if s["filter"] == "strict-match"], scores


def worker(args) -> None:
    """Run one side once and print JSON on the last line."""
    shots, our_size, their_size = CASES[args.case]
    side, size = (ours, our_size) if args.side == "ours" else (theirs, their_size)
    print(json.dumps(side(Path(args.folder), shots, size, args.max_new_tokens)))


def main() -> None:
    """Command line entry."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lm_eval_python", help="interpreter of the environment that holds lm-eval")
    parser.add_argument("--rows", type=int, default=128)
    parser.add_argument("--max_new_tokens", type=int, default=200)
    parser.add_argument("--width", type=int, default=0, help="hidden size of a random model instead")
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--case", help=argparse.SUPPRESS)
    parser.add_argument("--side", help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.side:
        worker(args)
        return
    with tempfile.TemporaryDirectory() as folder:
        maker, rng = load(STORED / "make_oracle.py"), random.Random(1)
        for name, count in (("shots", 3), ("problems", args.rows)):
            rows = (json.dumps(maker.problem(rng)) + "\n" for _ in range(count))
            Path(folder, f"{name}.jsonl").write_text("".join(rows))
        if args.width:
            make_model(Path(folder, "model"), args.width)
        else:
            shutil.copytree(STORED / "plain", Path(folder, "model"))
            Path(folder, "model", "chat_template.jinja").unlink()
        quiet = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "HF_HOME": folder, "TOKENIZERS_PARALLELISM": "false"}
        print("| case | ours, CPU s | lm-eval, CPU s | ratio (median of pairs) | same completions | same scores |")
        print("|---|---|---|---|---|---|")
        for case in CASES:
            times, agree = {"ours": [], "lm_eval": []}, ""
            for _ in range(args.pairs):
                found = {}
                for side, python in (("ours", sys.executable), ("lm_eval", args.lm_eval_python)):
                    command = [python, __file__, "--case", case, "--side", side, "--folder", folder]
                    command += ["--max_new_tokens", str(args.max_new_tokens)]
                    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **quiet})
                    if done.returncode:
                        sys.exit(done.stderr)
                    found[side] = json.loads(done.stdout.strip().split("\n")[-1])
                    times[side].append(found[side][0])
                texts = sum(a == b for a, b in zip(found["ours"][1], found["lm_eval"][1], strict=True))
                agree = f"{texts} of {args.rows} | {'yes' if found['ours'][2] == found['lm_eval'][2] else 'no'}"
            ratios = [b / a for a, b in zip(times["ours"], times["lm_eval"], strict=True)]
            one, two = (statistics.median(times[side]) for side in ("ours", "lm_eval"))
            print(f"| {case} | {one:.1f} | {two:.1f} | {statistics.median(ratios):.2f} | {agree} |", flush=True)


if __name__ == "__main__":
    main()
