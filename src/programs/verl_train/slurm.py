"""--slurm: a batch file."""

import re
import shlex
from pathlib import Path

from parts.foundation.file_text import file_text, with_values
from parts.foundation.messages import need
from programs.verl_train.engine_overrides import cpus_needed
from programs.verl_train.overrides import Layout
from programs.verl_train.settings import Config

SBATCH = file_text("job_files/job.sbatch")


def batch_file(config: Config, job: Layout) -> str:
    least = cpus_needed(config.gpus_per_node, 1)
    need(
        not config.cpus or config.cpus >= least,
        f"got --cpus {config.cpus}; expected {least} on each machine, or Ray waits for ever; try to leave --cpus out",
    )
    cpus = config.cpus or max(16, cpus_needed(config.gpus_per_node, 8))
    return with_values(
        SBATCH,
        name=re.sub(r"[^\w.-]", "_", Path(job.output).name),
        nodes=config.nodes,
        gpus=config.gpus_per_node,
        cpus=cpus,
        all_gpus=config.nodes * config.gpus_per_node,
        output=shlex.quote(job.output),
        script=shlex.quote(f"{job.folder}/run.sh"),
    )
