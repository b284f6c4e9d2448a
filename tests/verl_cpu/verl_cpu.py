"""Lets verl 0.9.1's real trainer run without a GPU. For smoke tests only; see README.md beside this file.

Through verl's extension points: the platform `cpu` (VERL_PLATFORM) and the rollout `hf_cpu` (`rollout.name`).
Replaced, as verl has no setting for them: the process group's backend (verl would ask for gloo twice, which torch
refuses), the critic's attention (fixed to flash_attention_2) and the reference's pinned memory (needs a GPU).
"""

import os
import types
from contextlib import nullcontext

import torch
import verl.utils.distributed
import verl.utils.fsdp_utils
import verl.utils.model
from verl.plugin.platform.platform_base import PlatformBase
from verl.plugin.platform.platform_manager import PlatformRegistry
from verl.workers.rollout.base import _ROLLOUT_REGISTRY
from verl.workers.rollout.replica import RolloutReplicaRegistry

# verl registers its FSDP engine for the devices cuda and npu only; it works on a CPU as it is
os.environ.setdefault("VERL_ENGINE_DEVICE", "cuda")


def cpu_device() -> torch.device:
    """What verl hands to `Tensor.to`."""
    return torch.device("cpu")


def zero(*args, **kwargs) -> int:
    """How much memory of a device is in use, and what calls about a device's memory return."""
    return 0


class CpuModule(types.ModuleType):
    """`torch.cpu` with the names of `torch.cuda` that verl calls."""

    is_available = staticmethod(lambda: True)
    current_device = staticmethod(cpu_device)
    set_device = empty_cache = ipc_collect = reset_peak_memory_stats = staticmethod(zero)
    memory_allocated = memory_reserved = max_memory_allocated = max_memory_reserved = staticmethod(zero)
    mem_get_info = staticmethod(lambda *args: (0, 0))
    get_device_name = staticmethod(lambda *args: "CPU")
    manual_seed = manual_seed_all = staticmethod(torch.manual_seed)
    get_rng_state, set_rng_state = staticmethod(torch.get_rng_state), staticmethod(torch.set_rng_state)

    def __getattr__(self, name):
        return getattr(torch.cpu, name)


@PlatformRegistry.register(platform="cpu")
class PlatformCPU(PlatformBase):
    """One CPU as verl's accelerator; Ray is told of a logical GPU, `+ray_kwargs.ray_init.num_gpus=1`."""

    device_name, vendor_name = "cpu", "generic"
    device_module = CpuModule("torch_cpu_as_cuda")

    def is_available(self):
        return True

    def current_device(self):
        return cpu_device()

    def device_count(self):
        return 1

    def nothing(self, *args):
        """Return None."""

    set_device = synchronize = set_allocator_settings = empty_cache = cudart = nothing
    profiler_start = profiler_stop = nothing

    def manual_seed(self, seed):
        torch.manual_seed(seed)

    manual_seed_all = manual_seed

    def get_device_capability(self, device_index=0):
        return None, None

    def communication_backend_name(self):
        return "gloo"

    def visible_devices_envvar(self):
        return "CUDA_VISIBLE_DEVICES"

    def nvtx_range(self, msg):
        return nullcontext()

    def ray_resource_name(self):
        return "GPU"

    def ray_noset_envvars(self):
        return ["RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES"]

    def is_ipc_supported(self):
        return False


def load_replica():
    """The class behind `actor_rollout_ref.rollout.name=hf_cpu`."""
    from verl_cpu_rollout import HFReplica

    return HFReplica


RolloutReplicaRegistry.register("hf_cpu", load_replica)
_ROLLOUT_REGISTRY["hf_cpu", "async"] = "verl_cpu_rollout.HFServerAdapter"


initialize_global_process_group_ray = verl.utils.distributed.initialize_global_process_group_ray


def initialize_gloo(timeout_second=None, backend=None):
    """Make verl's process group, with gloo for the one device there is."""
    initialize_global_process_group_ray(timeout_second, backend="gloo")


def load_critic(local_path, torch_dtype, model_config, trust_remote_code):
    """Load a model with a value head of one number a token, as verl does, with eager attention."""
    from transformers import AutoModelForTokenClassification

    given = {"dtype": torch_dtype, "config": model_config, "trust_remote_code": trust_remote_code}
    return AutoModelForTokenClassification.from_pretrained(local_path, attn_implementation="eager", **given)


class UnpinnedOffloadPolicy(verl.utils.fsdp_utils.CPUOffloadPolicy):
    """FSDP2's offload policy in ordinary memory."""

    def __init__(self, pin_memory=True):
        super().__init__(pin_memory=False)


verl.utils.distributed.initialize_global_process_group_ray = initialize_gloo
verl.utils.model.load_valuehead_model = load_critic
verl.utils.fsdp_utils.CPUOffloadPolicy = UnpinnedOffloadPolicy
