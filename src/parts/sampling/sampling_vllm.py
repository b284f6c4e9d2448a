"""Sampling with vLLM on the same GPU, and copying the weights into it."""

import importlib.util
import os
from collections.abc import Iterator

from parts.foundation.messages import UserError, need, suggest
from parts.foundation.processes import raised_in_all, torch, transformers, world
from parts.foundation.settings import BaseConfig
from parts.networks.adapters import adapter_settings, base_of, merge_command
from parts.networks.models import Models, compute_dtype, unwrapped
from parts.sampling.sampling import untouched_generators
from parts.sampling.sync_check import SyncCheck, logprob_gap

# 0.30 is run by the tests; that 0.22 and 0.26 have the same interface was read in their source, as was 0.33, but from
# 0.31 on vLLM asks for an older transformers than this bundle does.
VLLM_OLDEST, VLLM_ABOVE = (0, 22), (0, 31)
VLLM_PIP = "pip install 'vllm>={}.{},<{}.{}'".format(*VLLM_OLDEST, *VLLM_ABOVE)
BOOLS = {**dict.fromkeys(("true", "yes", "on", "1"), "--"), **dict.fromkeys(("false", "no", "off", "0"), "--no-")}
OURS = {  # arguments of the engine that follow from the run's settings
    "model": "--model",
    "tokenizer": "--model",
    "seed": "--seed",
    "enable_lora": "leaving it out: adapters are merged for the copy",
    "gpu_memory_utilization": "--vllm_memory",
    "max_model_len": "--max_prompt_tokens, --max_new_tokens and --max_conversation_tokens",
    "logprobs_mode": "leaving it out",
    "distributed_executor_backend": "leaving it out",
    "tensor_parallel_size": "leaving it out: each process has an engine of its own",
    "pipeline_parallel_size": "leaving it out: each process has an engine of its own",
    "data_parallel_size": "torchrun",
    "enable_sleep_mode": "a smaller --vllm_memory: the engine keeps its memory during updates",
}
PROBE = "Each process samples a few tokens of this text, and the policy says how likely they are to it."


def import_vllm(flag: str, instead: str):
    """The module vllm, for what `flag` asked, its engine in this process, where weights can be copied into it."""
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")  # nothing is sent without a word of the user's
    # it warns at every copy that rotary embeddings have no weights
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    try:
        import vllm
    except ImportError as error:
        problem = "not installed" if not importlib.util.find_spec("vllm") else f"which does not load: {error}"
        raise UserError(f"got {flag}, {problem}; expected vLLM; try `{VLLM_PIP}`, or {instead}") from None
    version = tuple(int(part) for part in vllm.__version__.split(".")[:2])
    got = f"got {flag} with vLLM {vllm.__version__}"
    need(version >= VLLM_OLDEST, f"{got}; expected one that takes new weights; try `{VLLM_PIP}`, or {instead}")
    return vllm


def vllm_options(pairs: list[str], owned: dict[str, str]) -> dict:
    """--vllm_args as arguments of vLLM's engine, read as its command line does; `owned` are the program's."""
    if not pairs:
        return {}
    from vllm.engine.arg_utils import EngineArgs
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser = EngineArgs.add_cli_args(FlexibleArgumentParser(add_help=False))
    actions, values = {action.dest: action for action in parser._actions}, {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        key, got = key.replace("-", "_"), f"got --vllm_args {pair!r}; expected "
        need(equals, f"{got}key=value; try --vllm_args {key}=true")
        need(key not in owned, f"{got}an argument that this script leaves to you; try {owned.get(key)}")
        need(key in actions, f"{got}an argument of vLLM's engine{suggest(key, [*actions])}")
        values[key] = vllm_value(parser, actions[key], text, got)
    return values


def vllm_value(parser, action, text: str, got: str):
    """`text` as the value of an argument of vLLM's command line."""
    flag = "--" + action.dest.replace("_", "-")
    need(action.nargs != 0 or text.lower() in BOOLS, f"{got}true or false")
    line = [BOOLS[text.lower()] + flag.removeprefix("--")] if action.nargs == 0 else [f"{flag}={text}"]

    def refuse(message: str):
        raise UserError(f"{got}a value that vLLM takes: {message}")

    parser.error = refuse
    return getattr(parser.parse_args(line), action.dest)


def cut_vocabulary(network, known: int) -> None:
    """Let vLLM sample none but the first `known` rows of an embedding: it cuts its own padding at the same place."""
    for layer in network.modules():
        if type(layer).__name__ == "LogitsProcessor":
            layer.org_vocab_size = min(known, layer.org_vocab_size)


def check_copies(source: str, policy) -> None:
    """Raise UserError for an adapter that is more than matrices beside the base's, which are all that is copied."""
    settings = adapter_settings(source)
    if not settings:
        return
    base = transformers.AutoConfig.from_pretrained(base_of(source)).get_text_config()
    more = [
        name for name in ("use_dora", "modules_to_save", "trainable_token_indices", "lora_bias") if settings.get(name)
    ]
    if policy.get_input_embeddings().weight.shape[0] != base.vocab_size:
        more.append("rows of added tokens")
    got = f"got --rollout_engine vllm with the adapter {source!r}, which has {', '.join(more)}"
    need(not more, f"{got}; expected LoRA's matrices alone; try hf, or {merge_command(source)}")


class VllmEngine:
    """Samples with vLLM on the same GPU; the policy's weights are copied into it before every rollout."""

    def __init__(self, config: BaseConfig, models: Models):
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # keeps the model reachable in this process
        self.vllm = import_vllm("--rollout_engine vllm", "hf")
        self.config, self.models = config, models
        self.watch = SyncCheck(config.check_sync, f"`{VLLM_PIP}`, or --rollout_engine hf")
        longest = getattr(unwrapped(models.policy).config.get_text_config(), "max_position_embeddings", None)
        length = config.max_prompt_tokens + config.max_new_tokens
        if getattr(config, "environment", ""):
            length = config.conversation_tokens
        settings = {
            "dtype": str(compute_dtype(config, models.device)).removeprefix("torch."),
            "gpu_memory_utilization": config.vllm_memory,
            "max_model_len": min(length, longest or length),
            "distributed_executor_backend": "external_launcher" if world()[1] > 1 else None,
            "logprobs_mode": "processed_logprobs",  # after the temperature, as the trainer has them
            "seed": config.seed,
        }
        if models.device.type == "cpu":
            settings["enforce_eager"] = True  # to compile takes minutes there, and gains little
        settings |= vllm_options(config.vllm_args, OURS)
        check_copies(config.model, models.policy)
        self.exact = settings["dtype"] in ("float32", "float") and not settings.get("quantization")
        tf32 = torch.get_float32_matmul_precision()
        try:
            with untouched_generators():  # it seeds all of them anew, and rewards may draw from them
                self.llm = self.vllm.LLM(model=base_of(config.model), **settings)
        except Exception as error:
            raise UserError(f"got --rollout_engine vllm, which does not start: {error}; try hf") from error
        finally:
            torch.set_float32_matmul_precision(tf32)  # its worker sets that of the whole process
        if known := unwrapped(models.policy).known_tokens:
            cut_vocabulary(self.network().get_model(), known)

    def network(self):
        """What runs vLLM's model in this process."""
        return self.llm.llm_engine.model_executor.driver_worker.model_runner

    def weights(self) -> Iterator[tuple]:
        """The policy's tensors under their own names, as vLLM loads them from a folder.

        LoRA's deltas are added on the way: merging into the base and back would wear it out in bf16.
        """
        policy = unwrapped(self.models.policy)
        adapted = {name: m for name, m in policy.named_modules() if hasattr(m, "get_delta_weight")}
        for key, x in policy.state_dict().items():
            owner, base, leaf = key.rpartition(".base_layer.")
            if base and leaf == "weight":
                x = (x.float() + adapted[owner].get_delta_weight("default").float()).to(x.dtype)
            if "lora_" not in key:
                yield key.replace(".base_layer", ""), x

    def sync(self, step: int = 0) -> None:
        """Copy the policy's weights into the engine after `step` updates, and forget cached prefixes.

        Every process must call it: an error of one, such as out of memory, is raised by all.
        """
        with raised_in_all():
            self.copy_weights()
            if self.watch.due(step):
                self.check(step)

    def copy_weights(self) -> None:
        """Load vLLM's layers anew: where it keeps a matrix packed (on CPUs, or rounded), it is packed again."""
        from vllm.config import set_current_vllm_config

        with torch.no_grad(), set_current_vllm_config(self.llm.llm_engine.vllm_config):
            self.network().reload_weights(weights_iterator=self.weights())
        self.llm.reset_prefix_cache()

    def check(self, step: int) -> None:
        """Raise StaleSamplerError unless the engine has the policy's weights."""
        with torch.no_grad():
            self.watch.compare(step, self.weights(), self.network().get_model())
        prompt = self.models.tokenizer.encode(PROBE, add_special_tokens=False)[: self.config.max_prompt_tokens]
        prompts = [prompt[: 1 + i * len(prompt) // 4] for i in range(1, 4)]
        outputs = self.generate(prompts, [[0.5]] * 3, limit=8)
        self.watch.judge(step, logprob_gap(self.config, self.models, prompts, outputs), self.exact)

    def generate(self, prompts: list[list[int]], noise, limit: int = 0) -> list[tuple[list[int], list[float]]]:
        """As HFEngine.generate, but all rows draw from one generator, which the first draw of `noise` seeds.

        The same prompts, draws and weights give the same batch; a row's completion depends on the rest of its batch.
        A seed for each row would keep vLLM from sampling all rows at once.
        """
        if not prompts:
            return []
        length = min(limit or self.config.max_new_tokens, self.config.max_new_tokens)
        shared = {"max_tokens": length, "stop_token_ids": self.models.eos_ids, "logprobs": 0}
        shared |= {"temperature": 0.0 if noise is None else self.config.temperature, "detokenize": False}
        params = self.vllm.SamplingParams(**shared)
        requests = [{"prompt_token_ids": ids} for ids in prompts]
        with untouched_generators(None if noise is None else int(noise[0][0] * 2**32)):
            outputs = [done.outputs[0] for done in self.llm.generate(requests, params, use_tqdm=False)]
        return [
            (list(o.token_ids), [at[i].logprob for i, at in zip(o.token_ids, o.logprobs, strict=True)]) for o in outputs
        ]
