"""What the tests of verl share: `from verl_helpers import CPU_OVERRIDES, cpu_env, run_main_ppo, write_prompts, …`."""

import atexit
import functools
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from conftest import EVAL_DATA, QUIET, ROOT, TINY_LM, TRAIN_DATA, read_lines

PLUGIN = ROOT / "tests" / "verl_cpu"
EXAMPLES = ROOT / "examples" / "verl"

LIMIT = 1800  # seconds, on a machine of any speed; what hangs ends then
FSDP = ("actor_rollout_ref.actor.fsdp_config", "actor_rollout_ref.ref.fsdp_config", "critic.fsdp")

# what a run without a GPU needs, see tests/verl_cpu/README.md; fp32 throughout, so that numbers compare
CPU_OVERRIDES = """
trainer.device=cpu trainer.n_gpus_per_node=1 trainer.nnodes=1 actor_rollout_ref.actor.strategy=fsdp2
critic.strategy=fsdp2 actor_rollout_ref.rollout.name=hf_cpu actor_rollout_ref.rollout.tensor_model_parallel_size=1
actor_rollout_ref.rollout.agent.num_workers=1 reward.num_workers=1 data.dataloader_num_workers=0
transfer_queue.backend.SimpleStorage.num_data_storage_units=1 ray_kwargs.ray_init.num_cpus=32
+ray_kwargs.ray_init.num_gpus=1 +ray_kwargs.ray_init.include_dashboard=False
""".split()
CPU_OVERRIDES += [
    *(f"{role}.model.use_remove_padding=False" for role in ("actor_rollout_ref", "critic")),
    *(f"{role}.model.enable_gradient_checkpointing=False" for role in ("actor_rollout_ref", "critic")),
    *(f"+{role}.model.override_config.attn_implementation=eager" for role in ("actor_rollout_ref", "critic")),
    *(f"{fsdp}.use_torch_compile=False" for fsdp in FSDP),  # where verl reads it
    # verl's `dtype` would not do: the forward pass runs in bf16 under it. Weights reach the rollout in bf16 in any case
    *(f"+{fsdp}.mixed_precision.param_dtype=fp32" for fsdp in FSDP),
]

# small steps on the embedded model
SMALL_RUN = [f"{role}.model.path={TINY_LM}" for role in ("actor_rollout_ref", "critic")]
SMALL_RUN += """
data.train_batch_size=8 data.max_prompt_length=32 data.max_response_length=24 data.filter_overlong_prompts=False
actor_rollout_ref.rollout.n=4 actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=16
actor_rollout_ref.actor.ppo_mini_batch_size=8 actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=16
actor_rollout_ref.actor.optim.lr=1e-3 trainer.logger=[console,file] trainer.val_before_train=False
trainer.test_freq=-1 trainer.total_epochs=4
""".split()

REWARD = """
from reward_functions_library import correctness_reward


def compute_score(data_source, solution_str, ground_truth, extra_info=None, **kwargs):
    return correctness_reward([None], [solution_str], [ground_truth])[0]
"""


def cpu_env(*modules: str, **env: str) -> dict:
    """The environment of a run on CPU; `modules` are loaded by every process of verl, beside the plug-in."""
    paths = [str(PLUGIN), str(EXAMPLES), str(ROOT / "examples")]
    ours = {
        "PYTHONPATH": os.pathsep.join(paths),
        "VERL_PLATFORM": "cpu",
        "VERL_USE_EXTERNAL_MODULES": ",".join(["verl_cpu", *modules]),
        "HYDRA_FULL_ERROR": "1",
        "RAY_AUTH_MODE": "disabled",  # else Ray puts a token into the home folder
        # Ray starts workers ahead that no actor of verl can use, as their environment differs
        "RAY_prestart_worker_first_driver": "0",
        "RAY_enable_worker_prestart": "0",
    }
    return {**os.environ, **QUIET, **ours, **env}


@functools.cache
def forked_workers() -> str:
    """Start the process that Ray's workers are forked from, once; returns the override that uses it."""
    socket = Path(tempfile.mkdtemp(prefix="verl")) / "workers"
    script = str(PLUGIN / "forked_worker.py")
    command = [sys.executable, script, "--serve", str(socket)]
    server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=cpu_env(), text=True)
    atexit.register(shutil.rmtree, socket.parent, ignore_errors=True)
    atexit.register(server.communicate)  # its standard input closes: it ends
    assert server.stdout.readline() == "ready\n"
    return f"ray_kwargs.ray_init.runtime_env.py_executable='{sys.executable} -I -S {script} {socket}'"


def verl_rows(path=TRAIN_DATA, count: int = 128) -> list[dict]:
    """The first rows of the embedded task in verl's schema; the difficulty is the size of the sum."""
    rows = []
    for i, row in enumerate(read_lines(path)[:count]):
        model = {"style": "rule", "ground_truth": row["answer"]}
        info = {"index": i, "difficulty": int(row["answer"])}
        rows.append({"data_source": "arithmetic", "prompt": row["prompt"], "reward_model": model, "extra_info": info})
    return rows


def write_prompts(folder: Path) -> list[str]:
    """Write train.parquet, test.parquet and reward.py into the folder; returns the overrides that name them."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.Table.from_pylist(verl_rows()), folder / "train.parquet")
    pq.write_table(pa.Table.from_pylist(verl_rows(EVAL_DATA, 8)), folder / "test.parquet")
    (folder / "reward.py").write_text(REWARD)
    files = [f"data.{name}_files={folder}/{file}.parquet" for name, file in (("train", "train"), ("val", "test"))]
    return [*files, f"reward.custom_reward_function.path={folder}/reward.py"]


def compose(*overrides: str):
    """The configuration that main_ppo would run with."""
    import verl
    from hydra import compose, initialize_config_dir

    with initialize_config_dir(str(Path(verl.__file__).parent / "trainer" / "config"), version_base=None):
        return compose("ppo_trainer", [*CPU_OVERRIDES, *SMALL_RUN, *overrides])


def run_command(command: list[str], env: dict, cwd: Path, timeout: float = LIMIT) -> subprocess.CompletedProcess:
    """Run a command that starts Ray; all its processes end with it, also when time runs out."""
    with (cwd / "log.txt").open("w+") as log:
        process = subprocess.Popen(command, env=env, cwd=cwd, stdout=log, stderr=log, start_new_session=True)
        try:
            process.wait(timeout)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait(20)
        log.seek(0)
        return subprocess.CompletedProcess(command, process.returncode, log.read(), "")


def run_main_ppo(folder: Path, *overrides: str, modules=()) -> list[dict]:
    """Run `python -m verl.trainer.main_ppo` in the folder; returns the metrics of each step."""
    folder.mkdir(exist_ok=True)
    env = cpu_env(*modules, VERL_FILE_LOGGER_PATH=str(folder / "metrics.jsonl"))
    command = [sys.executable, "-m", "verl.trainer.main_ppo", *CPU_OVERRIDES, *SMALL_RUN, forked_workers(), *overrides]
    done = run_command(command, env, folder)
    assert done.returncode == 0, done.stdout[-6000:]
    return [{"step": row["step"], **row["data"]} for row in read_lines(folder / "metrics.jsonl")]
