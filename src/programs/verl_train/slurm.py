"""--slurm: a batch file."""

import re
import shlex
from pathlib import Path

from parts.foundation.messages import need
from programs.verl_train.engine_overrides import cpus_needed
from programs.verl_train.overrides import Layout
from programs.verl_train.settings import Config

SBATCH = """#!/usr/bin/env bash
#SBATCH --job-name={name}
#SBATCH --nodes={nodes}
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node={gpus}
#SBATCH --cpus-per-task={cpus}
#SBATCH --exclusive
#SBATCH --output={output}/slurm-%j.log
# Written by verl_train.py: a Ray node on each machine, then the run on the first. All see {output}.
set -euo pipefail
mapfile -t hosts < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
head=${{hosts[0]}}
address=$(srun --nodes=1 --ntasks=1 -w "$head" hostname --ip-address | awk '{{print $1}}')
port=${{RAY_PORT:-6379}}
export RAY_ADDRESS="$address:$port"
trap 'kill $(jobs -p) 2>/dev/null || true' EXIT

srun --nodes=1 --ntasks=1 -w "$head" env -u RAY_ADDRESS ray start --head --node-ip-address="$address" --port="$port" \\
    --num-cpus={cpus} --num-gpus={gpus} --block &
sleep "${{RAY_WAIT:-10}}"
if (( SLURM_JOB_NUM_NODES > 1 )); then
    srun --nodes=$((SLURM_JOB_NUM_NODES - 1)) --ntasks=$((SLURM_JOB_NUM_NODES - 1)) --exclude="$head" \\
        env -u RAY_ADDRESS ray start --address="$RAY_ADDRESS" --num-cpus={cpus} --num-gpus={gpus} --block &
fi
for (( i = 0; ; i++ )); do  # fewer GPUs than the run asks for, and Ray would wait for ever
    found=$(ray status 2>/dev/null | sed -n 's|.*/\\([0-9.]*\\) GPU.*|\\1|p' || true)
    found=${{found%%$'\\n'*}}
    if awk -v found="${{found:-0}}" 'BEGIN {{ exit !(found >= {all_gpus}) }}'; then break; fi
    if (( i >= ${{RAY_TRIES:-60}} )); then echo "error: got ${{found:-no}} GPUs; expected {all_gpus}" >&2; exit 1; fi
    sleep 5
done
srun --overlap --nodes=1 --ntasks=1 -w "$head" bash {script}
"""


def batch_file(config: Config, job: Layout) -> str:
    least = cpus_needed(config.gpus_per_node, 1)
    need(
        not config.cpus or config.cpus >= least,
        f"got --cpus {config.cpus}; expected {least} on each machine, or Ray waits for ever; try to leave --cpus out",
    )
    cpus = config.cpus or max(16, cpus_needed(config.gpus_per_node, 8))
    return SBATCH.format(
        name=re.sub(r"[^\w.-]", "_", Path(job.output).name),
        nodes=config.nodes,
        gpus=config.gpus_per_node,
        cpus=cpus,
        all_gpus=config.nodes * config.gpus_per_node,
        output=shlex.quote(job.output),
        script=shlex.quote(f"{job.folder}/run.sh"),
    )
