"""What the tests share: `from conftest import ROOT, TINY_LM, load_script, run_script`."""

import contextlib
import functools
import importlib.util
import io
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
from warm_process import WarmProcess

ROOT = Path(__file__).resolve().parent.parent
SCRIPTS = ROOT / "scripts"
sys.path.append(str(ROOT / "src"))  # tests of parts: `from parts.learning.losses import kl_estimate`
# `make test-verl`, `make test-vllm` and `make test-real` run these
collect_ignore = [f"with_{name}" for name in ("verl", "vllm") if not importlib.util.find_spec(name)]
if "REAL_MODELS" not in os.environ:
    collect_ignore.append("real")
ASSETS = ROOT / "assets"
TINY_LM = ASSETS / "tiny_lm"
TRAIN_DATA = ASSETS / "data" / "arithmetic_train.jsonl"
EVAL_DATA = ASSETS / "data" / "arithmetic_eval.jsonl"
WIDE_DATA = ASSETS / "data" / "arithmetic_wide.jsonl"
# the first rows of both, for runs of a few steps: to read all 4,352 prompts takes longer than such a run
FEW_TRAIN, FEW_EVAL = (ROOT / "tests" / "data" / f"few_{name}.jsonl" for name in ("train", "eval"))
FEW = [f"--data={FEW_TRAIN}", f"--eval_data={FEW_EVAL}"]
SECOND_ATTEMPT = f"{ROOT / 'examples' / 'environments.py'}:SecondAttempt"

# one thread each, as tests run side by side; no network
QUIET = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "MPLBACKEND": "Agg"}
os.environ.update(QUIET)


def pytest_configure(config) -> None:
    """Hide real GPUs, before torch is imported, from all tests but those of `-m gpu`."""
    ray_counts_them = importlib.util.find_spec("verl")  # its tests give Ray a pretended GPU, which must not be hidden
    if config.option.markexpr != "gpu" and not ray_counts_them:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Keep test modules as pytest rewrites them, PYTHONDONTWRITEBYTECODE or not: half of a worker's start is that."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "dont_write_bytecode", False)
        return (yield)


def load_module(path: Path, name: str):
    """Load a Python file as a module; it stands in sys.modules before it runs, as dataclasses need."""
    spec = importlib.util.spec_from_file_location(name, path)
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@functools.cache
def load_script(name: str):
    """Load scripts/NAME.py by path, once per test process.

    Its runs leave an empty curves.png: to draw it takes as long as a run of a few steps. So do those of the warm
    process, unless their environment has DRAW.
    """
    module = load_module(SCRIPTS / f"{name}.py", f"script_{name}")
    if hasattr(module, "plot_curves"):
        module.plot_curves = lambda source, target: target.touch()
    return module


@functools.cache
def warm_process() -> WarmProcess:
    """This test process's own; it ends with it, as its input closes."""
    return WarmProcess()


def read_lines(path: Path) -> list[dict]:
    """The rows of a JSONL file."""
    return list(map(json.loads, path.read_text(encoding="utf-8").splitlines()))


def write_lines(path: Path, rows) -> str:
    """Write JSONL; its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def edited(text: str, pairs) -> str:
    """A text in which texts that stand there once have others in their place."""
    for old, new in pairs:
        assert text.count(old) == 1 and old != new, f"it no longer stands there once: {old}"
        text = text.replace(old, new)
    return text


def without_clock(run: Path) -> list[dict]:
    """The lines of a run's metrics.jsonl without what depends on the clock and the machine."""
    rows, timed = read_lines(run / "metrics.jsonl"), ("time/", "tool/seconds", "memory/")
    return [{k: v for k, v in row.items() if not k.startswith(timed) and "per_s" not in k} for row in rows]


def patch_rooms(monkeypatch, name: str, value) -> None:
    """Replace a name of src/ in every room that has it, as `from parts.x import name` binds it in the importing one."""
    for module in [m for n, m in sys.modules.items() if n.startswith(("parts.", "programs.")) and hasattr(m, name)]:
        monkeypatch.setattr(module, name, value)


def side_by_side(monkeypatch, work, count: int = 2) -> list:
    """What `work(rank)` returns in threads, as if each was a process; collectives meet in their order, or it fails."""
    local, barrier, slots = threading.local(), threading.Barrier(count, timeout=20), [None] * count
    results, failures = [None] * count, []

    def exchange(value) -> list:
        slots[local.rank] = value
        barrier.wait()
        values = list(slots)
        barrier.wait()
        return values

    def sum_over(tensor):
        parts = exchange(tensor.clone())
        assert len({p.shape for p in parts}) == 1, "processes meet in different collectives"
        return tensor.copy_(sum(parts))

    def gather_rows(mine, error=None, shares=None):
        parts, found = exchange((mine, error)), {}
        assert all(isinstance(part, tuple) for part in parts), "processes meet in different collectives"
        for rank, (rows, _) in enumerate(parts):
            numbers = shares[rank] if shares else range(rank, count * len(rows), count)
            found |= dict(zip(numbers, rows, strict=True))
        return [found[row] for row in sorted(found)]

    def run(rank: int) -> None:
        local.rank = rank
        try:
            results[rank] = work(rank)
        except BaseException as error:
            failures.append(error)
            barrier.abort()

    with monkeypatch.context() as patch:
        for name, fake in (("sum_over_processes", sum_over), ("gather_rows", gather_rows)):
            patch_rooms(patch, name, fake)
        patch_rooms(patch, "world", lambda: (local.rank, count))
        threads = [threading.Thread(target=run, args=(rank,)) for rank in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    if failures:  # the first that failed ended all
        raise next((e for e in failures if not isinstance(e, threading.BrokenBarrierError)), failures[0])
    return results


@pytest.fixture(scope="module", autouse=True)
def _imports_end_with_the_module(tmp_path_factory):
    """What a test module imported from its temporary folders is not what the next imports under the same name."""
    path, own = list(sys.path), str(tmp_path_factory.getbasetemp())
    yield
    sys.path[:] = path
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None)).startswith(own):
            del sys.modules[name]


def script_command(name: str | Path, *flags) -> list[str]:
    """The command line of scripts/NAME.py, or of a script by its path."""
    path = name if isinstance(name, Path) else SCRIPTS / f"{name}.py"
    return [sys.executable, str(path), *map(str, flags)]


def script_env(env: dict | None = None) -> dict:
    """The environment of a script's process."""
    return {**os.environ, **QUIET, **(env or {})}


def run_new_trainer(command: list[str], cwd: Path) -> subprocess.CompletedProcess:
    """The command line of scripts/new_trainer.py in this process; what it starts is forked."""
    new, out, err = load_script("new_trainer"), io.StringIO(), io.StringIO()

    def follow(started, stdout) -> tuple[int, int]:
        done = run_script(cwd / started[1], *started[2:], cwd=cwd)
        stdout.write(done.stdout)
        sys.stderr.write(done.stderr)
        return done.returncode, 0

    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        patch.chdir(cwd)
        patch.setattr(new, "follow", follow)
        code = new.main(command[2:])
    return subprocess.CompletedProcess(command, code, out.getvalue(), err.getvalue())


def run_script(name: str | Path, *flags, cwd=None, env=None, timeout=600, fresh=False) -> subprocess.CompletedProcess:
    """Run scripts/NAME.py, or a script by its path, through its real command line; output is captured as text.

    It is a process of its own either way: forked where the libraries are loaded already, or started from nothing if
    `fresh`, or where the environment holds what Python or a library reads as it starts. new_trainer.py runs in this
    process, unless `fresh`, so that what it starts is forked, too.
    """
    command = script_command(name, *flags)
    if fresh or {"PYTHONPATH", "HOME"} & {*(env or {})}:
        return subprocess.run(command, cwd=cwd, env=script_env(env), timeout=timeout, capture_output=True, text=True)
    if Path(command[1]) == SCRIPTS / "new_trainer.py" and cwd:
        return run_new_trainer(command, cwd)
    with tempfile.TemporaryDirectory() as folder:
        out, err = Path(folder, "out"), Path(folder, "err")
        os.umask(umask := os.umask(0))
        request = {"command": command[1:], "cwd": cwd and str(cwd), "env": script_env(env), "timeout": timeout}
        code = warm_process().run({**request, "out": str(out), "err": str(err), "umask": umask})
        return subprocess.CompletedProcess(command, code, out.read_text(), err.read_text())


def warm_grading(run):
    """`run` of evals/grade.py; Python that loads torch starts in the warm process."""
    heavy = re.compile(r"\b(torch|transformers|trl|tiny|fixed)\b")

    def judged(command: str, folder: Path, timeout_s: float) -> tuple[int, str]:
        python, name, *flags = [word.replace("$SKILL", str(ROOT)) for word in shlex.split(command)]
        start = Path("-c") if name == "-c" else folder / name
        text = flags[0] if name == "-c" else start.read_text(encoding="utf-8") if start.is_file() else ""
        if python != "python" or not heavy.search(text):
            return run(command, folder, timeout_s)
        done = run_script(start, *flags, cwd=folder, env={"PYTHONDONTWRITEBYTECODE": "1"}, timeout=timeout_s)
        return done.returncode, done.stdout + done.stderr

    return judged


def free_port() -> int:
    """A port that nobody listens to."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def torchrun(script: Path, *flags, env: dict | None = None) -> subprocess.CompletedProcess:
    """Run a script as two processes of one run."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2", f"--master_port={free_port()}"]
    command = [*launcher, *map(str, (script, *flags))]
    return subprocess.run(command, env=script_env(env), timeout=600, capture_output=True, text=True)


def start_script(name: str | Path, *flags, **more) -> Future:
    """`run_script` in a thread: a test looks on, and may end the process by `signal_script`."""
    return ThreadPoolExecutor(1).submit(run_script, name, *flags, **more)


def signal_script(number: int = signal.SIGKILL) -> None:
    """Send a signal to the script that `start_script` began, if it has not ended."""
    with contextlib.suppress(TypeError, ProcessLookupError):  # None: it has
        os.kill(warm_process().child, number)


@pytest.fixture(scope="session")
def tokenizer():
    """The embedded model's; its template writes <|role|>content<|end|>."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(TINY_LM)


@pytest.fixture(scope="session")
def ppo():
    """scripts/ppo_train.py as a module."""
    return load_script("ppo_train")


SHAPE = {
    **{"vocab_size": 262, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4},
    **{"num_key_value_heads": 2, "max_position_embeddings": 256, "initializer_range": 0.2, "attention_dropout": 0.1},
    **{"bos_token_id": None, "eos_token_id": 2, "pad_token_id": 0},
}
SLIDING = {"sliding_window": 6}
FAMILIES = {
    "llama": ("LlamaConfig", {}),
    "qwen2": ("Qwen2Config", {}),
    "qwen3": ("Qwen3Config", {"head_dim": 8}),
    "mistral": ("MistralConfig", {"head_dim": 8, **SLIDING}),
    "gemma3": ("Gemma3TextConfig", {"head_dim": 8, **SLIDING, "layer_types": ["sliding_attention", "full_attention"]}),
    "gemma2": ("Gemma2Config", {"head_dim": 8, **SLIDING, "final_logit_softcapping": 2.0}),
    "phi3": ("Phi3Config", {"resid_pdrop": 0.1}),
    "gpt2": ("GPT2Config", {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 256}),
    "gpt_neox": ("GPTNeoXConfig", {"hidden_dropout": 0.1}),
    "olmo2": ("Olmo2Config", {}),
}

STATES = {"num_hidden_layers": 3}
DELTA = {"linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_key_head_dim": 8, "linear_value_head_dim": 8}
MAMBA = {
    **{"mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_state": 8, "mamba_n_groups": 1, "mamba_chunk_size": 16},
    **{"attention_dropout": 0.0, "num_hidden_layers": 3},
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
FEW_EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
LINEAR_FIRST = {"layer_types": ["linear_attention", "full_attention", "linear_attention"]}
QWEN3_5 = {**STATES, **DELTA, **LINEAR_FIRST, "head_dim": 8}
JAMBA = {"num_experts": 4, "attn_layer_period": 3, "attn_layer_offset": 1, "num_hidden_layers": 3}
JAMBA |= {"use_mamba_kernels": False, "mamba_d_state": 8, "mamba_dt_rank": 4}
MINIMAX = {"layer_types": ["linear_attention", "full_attention"], "head_dim": 8, "block_size": 16}
LLAMA4 = {"head_dim": 8, "intermediate_size_mlp": 64, "num_local_experts": 4, "attention_chunk_size": 8}
LLAMA4 |= {"num_hidden_layers": 4, "no_rope_layers": [1, 1, 1, 0], "interleave_moe_layer_step": 2}
HYBRIDS = {  # layers with recurrent or convolution states, Llama 4's chunks and positions, Mamba's own names
    "qwen3_next": ("Qwen3NextConfig", QWEN3_5 | EXPERTS | {"shared_expert_intermediate_size": 32}),
    "qwen3_5": ("Qwen3_5TextConfig", QWEN3_5),
    "lfm2": ("Lfm2Config", {**STATES, "layer_types": ["conv", "full_attention", "conv"], "block_ff_dim": 64}),
    "jamba": ("JambaConfig", JAMBA),
    "falcon_h1": ("FalconH1Config", {**MAMBA, "mamba_d_ssm": 64, "head_dim": 8, "lm_head_multiplier": 0.5}),
    "minimax": ("MiniMaxConfig", FEW_EXPERTS | MINIMAX),
    "llama4": ("Llama4TextConfig", LLAMA4),
    "mamba": ("MambaConfig", {"state_size": 8}),
    "mamba2": ("Mamba2Config", {"state_size": 8, "num_heads": 8, "head_dim": 8, "n_groups": 1, "chunk_size": 16}),
    "rwkv": ("RwkvConfig", {"attention_hidden_size": 32}),
}
FALCON = ("FalconConfig", {"hidden_dropout": 0.1, "parallel_attn": False, "alibi": False})

QWEN = {  # the config.json of Qwen2.5-0.5B
    **{"model_type": "qwen2", "hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24},
    **{"num_attention_heads": 14, "num_key_value_heads": 2, "vocab_size": 151_936, "rms_norm_eps": 1e-6},
    **{"hidden_act": "silu", "tie_word_embeddings": True},
}


@pytest.fixture(scope="session")
def saved(tmp_path_factory):
    """saved(family, seed) -> folder of a random model, made once and for reading only."""
    return functools.cache(lambda family, seed=0: save_random_model(family, tmp_path_factory.mktemp(family), seed))


def save_random_model(family: str, folder: Path, seed: int = 0, chat_template: bool = True, pad: bool = True) -> str:
    """Save a tiny random model of a family, with the embedded tokenizer; dropout is on in its configuration.

    One token in seven ends its text, so that the completions of a batch end at different times.
    """
    import torch
    import transformers

    config_class, extra = {**FAMILIES, **HYBRIDS, "falcon": FALCON}[family]
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(getattr(transformers, config_class)(**{**SHAPE, **extra}))
    model.generation_config.eos_token_id = [2, *range(200, 238)]
    tokenizer = transformers.AutoTokenizer.from_pretrained(TINY_LM)
    if not chat_template:
        tokenizer.chat_template = None
    if not pad:
        tokenizer.pad_token = model.config.pad_token_id = model.generation_config.pad_token_id = None
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)
