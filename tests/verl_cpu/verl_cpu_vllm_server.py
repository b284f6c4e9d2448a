"""verl's own vLLM server, with another way for the weights: on a CPU vLLM packs its layers, and loads them anew."""

import ray
import torch
from verl.workers.rollout.vllm_rollout.bucketed_weight_transfer import BucketedWeightReceiver
from verl.workers.rollout.vllm_rollout.utils import vLLMColocateWorkerExtension
from verl.workers.rollout.vllm_rollout.vllm_async_server import vLLMHttpServer, vLLMReplica


class Worker(vLLMColocateWorkerExtension):
    """What verl adds to vLLM's worker."""

    def update_weights_from_ipc(self, peft_config=None, base_sync_done=False, use_shm=False):
        """Take over the trainer's weights, which come through shared memory in pieces."""
        weights = {}

        def keep(piece, is_last):
            weights.update((name, x.clone()) for name, x in piece)

        receiver = BucketedWeightReceiver(self._get_zmq_handle(), torch.device("cpu"), use_shm)
        receiver.receive_weights(on_bucket_received=keep)
        weights.setdefault("lm_head.weight", weights["model.embed_tokens.weight"])  # tied: vLLM has a packed copy
        self.model_runner.reload_weights(weights_iterator=iter(weights.items()))


class Server(vLLMHttpServer):
    """The Ray actor that holds the engine."""

    def _get_worker_extension_cls(self):
        return f"{Worker.__module__}.{Worker.__name__}"


class Replica(vLLMReplica):
    """Starts the server."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.server_class = ray.remote(Server)
