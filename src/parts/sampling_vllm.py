"""Sampling with vLLM on the same GPU, and copying the weights into it."""

import os

from parts.messages import UserError
from parts.models import Models, unwrapped
from parts.precision import compute_dtype
from parts.processes import world
from parts.settings import BaseConfig


class VllmEngine:
    """Samples with vLLM on the same GPU; the policy's weights are copied into it before every rollout."""

    def __init__(self, config: BaseConfig, models: Models):
        os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")  # keeps the model reachable in this process
        try:
            import vllm
        except ImportError:
            raise UserError(
                "got --rollout_engine vllm, not installed; expected vLLM and a GPU; try `pip install vllm`, or hf"
            ) from None
        self.vllm, self.config, self.models = vllm, config, models
        settings = {
            "dtype": str(compute_dtype(config, models.device)).removeprefix("torch."),
            "gpu_memory_utilization": config.vllm_memory,
            "max_model_len": config.max_prompt_tokens + config.max_new_tokens,
            "distributed_executor_backend": "external_launcher" if world()[1] > 1 else None,
            "logprobs_mode": "processed_logprobs",  # after the temperature, as the trainer has them
            "seed": config.seed,
        }
        try:
            self.llm = vllm.LLM(model=config.model, **settings)
        except Exception as error:
            raise UserError(f"got --rollout_engine vllm, which does not start: {error}; try hf") from error

    def sync(self) -> None:
        """Copy the policy's weights into the engine and forget cached prefixes.

        LoRA's deltas are added on the way: merging into the base and back would wear it out in bf16.
        """
        import torch

        policy = unwrapped(self.models.policy)
        adapted = {name: m for name, m in policy.named_modules() if hasattr(m, "get_delta_weight")}

        def weights():
            for key, x in policy.state_dict().items():
                owner, base, leaf = key.rpartition(".base_layer.")
                if base and leaf == "weight":
                    x = (x.float() + adapted[owner].get_delta_weight("default").float()).to(x.dtype)
                if "lora_" not in key:
                    yield key.replace(".base_layer", ""), x

        with torch.no_grad():
            self.llm.llm_engine.model_executor.driver_worker.model_runner.model.load_weights(weights())
        self.llm.reset_prefix_cache()

    def generate(self, prompts: list[list[int]], noise) -> list[tuple[list[int], list[float]]]:
        """As HFEngine.generate; the first draw of each row of `noise` seeds that row."""
        shared = {"max_tokens": self.config.max_new_tokens, "stop_token_ids": self.models.eos_ids, "logprobs": 0}
        shared |= {"temperature": 0.0 if noise is None else self.config.temperature, "detokenize": False}
        seeds = [None] * len(prompts) if noise is None else [int(row[0] * 2**31) for row in noise]
        params = [self.vllm.SamplingParams(seed=seed, **shared) for seed in seeds]
        requests = [{"prompt_token_ids": ids} for ids in prompts]
        outputs = [request.outputs[0] for request in self.llm.generate(requests, params, use_tqdm=False)]
        return [
            (list(o.token_ids), [at[i].logprob for i, at in zip(o.token_ids, o.logprobs, strict=True)]) for o in outputs
        ]
