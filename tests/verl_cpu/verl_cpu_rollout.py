"""The rollout `hf_cpu`: a Ray actor that samples with Hugging Face transformers, all waiting requests in one batch."""

import asyncio
import os

import ray
import torch
from verl.workers.rollout.base import BaseRollout
from verl.workers.rollout.replica import RolloutReplica, TokenOutput


class HFServer:
    """The inference server: `generate` samples tokens, `update_weights` takes over the trainer's."""

    def __init__(self, model_path, config):
        from transformers import AutoModelForCausalLM

        torch.set_num_threads(1)
        torch.manual_seed(config.seed)
        self.config = config
        self.model = AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32).eval()
        eos = self.model.generation_config.eos_token_id
        self.eos = set(eos if isinstance(eos, list) else [eos])
        self.global_steps = None
        self.waiting = []
        self.lock = asyncio.Lock()

    async def ready(self):
        """Return once the model is loaded."""

    async def generate(self, request_id, *, prompt_ids, sampling_params, image_data=None, video_data=None):
        """Sample a completion of `prompt_ids`, together with the requests that wait meanwhile."""
        result = asyncio.get_running_loop().create_future()
        limit = sampling_params.get("max_tokens") or sampling_params.get("max_new_tokens")
        room = self.config.prompt_length + self.config.response_length - len(prompt_ids)
        if sampling_params.get("top_p", 1.0) != 1.0 or sampling_params.get("top_k", -1) > 0:
            raise ValueError(
                f"got {sampling_params}; expected top_p=1 and top_k=-1, all that this rollout samples with"
            )
        temperature = float(sampling_params.get("temperature", 1.0))
        request = (list(prompt_ids), min(limit or self.config.response_length, room), temperature)
        self.waiting.append((request, result))
        async with self.lock:
            if not result.done():
                batch, self.waiting = self.waiting, []
                samples = await asyncio.to_thread(self.sample, [request for request, _ in batch])
                for (_, other), sample in zip(batch, samples, strict=True):
                    other.set_result(sample)
        ids, logprobs = result.result()
        logprobs = logprobs if sampling_params.get("logprobs") else None
        known = {"stop_reason": "completed", "extra_fields": {"global_steps": self.global_steps}}
        return TokenOutput(token_ids=ids, log_probs=logprobs, **known)

    @torch.inference_mode()
    def sample(self, requests):
        """Sample for each (prompt ids, most tokens, temperature); 0 is greedy. Returns (ids, logprobs) each."""
        width = max(len(prompt) for prompt, _, _ in requests)
        ids = torch.tensor([[0] * (width - len(prompt)) + prompt for prompt, _, _ in requests])  # (B, T)
        mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt, _, _ in requests])
        heat = torch.tensor([t for _, _, t in requests])[:, None]  # (B, 1)
        positions, cache = (mask.cumsum(1) - 1).clamp(min=0), None
        samples, running = [([], []) for _ in requests], [limit > 0 for _, limit, _ in requests]
        while any(running):
            out = self.model(
                input_ids=ids, attention_mask=mask, position_ids=positions, past_key_values=cache, use_cache=True
            )
            cache = out.past_key_values
            logprobs = torch.log_softmax(out.logits[:, -1].float() / torch.where(heat > 0, heat, 1.0), -1)  # (B, V)
            ids = torch.where(heat > 0, torch.multinomial(logprobs.exp(), 1), logprobs.argmax(-1, keepdim=True))
            taken = logprobs.gather(-1, ids)
            for i, (_, limit, _) in enumerate(requests):
                if running[i]:
                    samples[i][0].append(int(ids[i]))
                    samples[i][1].append(float(taken[i]))
                    running[i] = int(ids[i]) not in self.eos and len(samples[i][0]) < limit
            mask = torch.cat([mask, torch.ones_like(ids)], 1)
            positions = positions[:, -1:] + 1
        return samples

    async def update_weights(self, state, global_steps=None):
        """Take over the trainer's weights; a tied output layer is not among them."""
        async with self.lock:
            missing, unexpected = self.model.load_state_dict(state, strict=False)
        if unexpected or any("lm_head" not in name for name in missing):
            raise ValueError(f"got unknown weights {unexpected}, and none for {missing}")
        self.global_steps = global_steps

    async def set_global_steps(self, global_steps):
        """Note the trainer's step, which each completion carries."""
        self.global_steps = global_steps

    async def nothing(self, *args, **kwargs):
        """Sleep, caches and profiles: there is no device memory to give back."""

    wake_up = sleep = abort_all_requests = resume_generation = nothing
    clear_kv_cache = release_kv_cache = resume_kv_cache = start_profile = stop_profile = nothing


class HFReplica(RolloutReplica):
    """Starts the server; verl makes one of these per group of tensor-parallel workers."""

    async def launch_servers(self):
        """Start the actor and wait for its model."""
        path = getattr(self.model_config, "local_path", None) or self.model_config.path
        self._server_address = f"hf_cpu_server_{self.replica_rank}"
        options = {"name": self._server_address, "num_cpus": 0, "max_concurrency": self.max_concurrency}
        self._server_handle = ray.remote(HFServer).options(**options).remote(path, self.config)
        await self._server_handle.ready.remote()
        self.servers = [self._server_handle]


class HFServerAdapter(BaseRollout):
    """Sits in the trainer's worker and hands its weights to the server."""

    def __init__(self, config, model_config, device_mesh, replica_rank=-1):
        super().__init__(config, model_config, device_mesh)
        replica, place = divmod(int(os.environ["RANK"]), self.config.tensor_model_parallel_size)
        self.is_leader = place == 0
        self.server_name = f"hf_cpu_server_{replica if replica_rank == -1 else replica_rank}"

    async def resume(self, tags):
        """Nothing to take back: the server keeps its memory."""

    async def release(self):
        """Nothing to give back."""

    async def update_weights(self, weights, global_steps=None, wire_format="named_tensors", **kwargs):
        """Send all weights; every rank gathers them, the leader sends."""
        state = {name: tensor.detach().float().cpu().clone() for name, tensor in weights}
        if self.is_leader:
            await ray.get_actor(self.server_name).update_weights.remote(state, global_steps=global_steps)
