"""Models in vLLM, on servers, and none; opening those that were named."""

import json
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

from parts.data.chat import give_template, template_settings
from parts.foundation.bundle import EMBEDDED_MODEL
from parts.foundation.messages import UserError
from parts.foundation.processes import start_processes, torch, transformers
from parts.networks.adapters import refuse_adapter
from parts.networks.loading import generation_settings
from parts.networks.models import compute_dtype, settle_precision
from parts.rewards.text_servers import server_text
from parts.sampling.sampling_vllm import import_vllm, vllm_options
from programs.evaluation.local_model import LocalModel
from programs.evaluation.requests import Request, cut_at
from programs.evaluation.settings import Config

OURS = {  # arguments of the engine that follow from other settings
    "model": "--model",
    "tokenizer": "--model",
    "dtype": "--precision",
    "seed": "--seed",
    "gpu_memory_utilization": "--vllm_memory",
    "max_model_len": "--max_length",
    "enable_lora": "a model that the adapters are merged into",
    "enable_sleep_mode": "leaving it out: nothing else needs the memory",
}


class VllmModel(LocalModel):
    """The same by vLLM; completions only."""

    can_logprobs = False

    def tokens_at_once(self) -> int:
        """Any number: vLLM makes its own batches."""
        return 0

    def load(self, source: str) -> tuple:
        vllm = import_vllm("--engine vllm", "--engine hf")
        refuse_adapter(source, "--model", "with --engine vllm")
        kind = str(compute_dtype(self.config, self.device)).removeprefix("torch.")
        settings = {"dtype": kind, "gpu_memory_utilization": self.config.vllm_memory, "seed": self.config.seed}
        settings["max_model_len"] = self.config.max_length or None
        if self.device.type == "cpu":
            settings["enforce_eager"] = True  # to compile takes minutes there, and gains little
        settings |= {"enable_prefix_caching": True} | vllm_options(self.config.vllm_args, OURS)
        try:
            self.vllm, self.llm = vllm, vllm.LLM(model=source, **settings)
            shape = transformers.AutoConfig.from_pretrained(source)
            tokenizer = transformers.AutoTokenizer.from_pretrained(source)
            give_template(tokenizer, self.config.template_file)
        except Exception as error:
            raise UserError(f"got --engine vllm, which fails to start: {error}; try --engine hf") from error
        weights = [torch.empty(0, dtype=getattr(torch, kind))]  # what LocalModel reads of a model that lives elsewhere
        model = SimpleNamespace(config=shape, generation_config=generation_settings(source))
        model.parameters = lambda: iter(weights)
        return model, tokenizer, getattr(shape, "_commit_hash", None)

    def turns(self):  # vLLM keeps what it has read by itself
        return lambda requests, done, numbers: self.generate(requests, done)

    def generate(self, requests, done):
        params = [
            self.vllm.SamplingParams(
                max_tokens=r.limit,
                temperature=self.config.temperature,
                top_p=self.config.top_p,
                stop=r.stops or None,
                stop_token_ids=self.eos_ids,
                skip_special_tokens=False,
                seed=(r.seed() + r.sample + self.config.seed) % 2**31,
            )
            for r in requests
        ]
        outputs = self.llm.generate([{"prompt_token_ids": r.ids} for r in requests], params, use_tqdm=False)
        for i, (request, output) in enumerate(zip(requests, outputs, strict=True)):
            done(i, self.finished(request, list(output.outputs[0].token_ids)))


class ServerModel:
    """An OpenAI-compatible server; chat messages go to /chat/completions, text to /completions."""

    can_logprobs = False
    tokenizer, max_length, load_s, parameters = None, None, 0.0, None
    notes = ("a server's weights cannot be hashed: empty the cache when they change",)

    def __init__(self, config: Config):
        self.config, self.source, self.template = config, config.model[0], template_settings(config)
        self.hash = " ".join([config.base_url, self.source, json.dumps(self.template) * bool(self.template)]).rstrip()

    def generate(self, requests, done):
        with ThreadPoolExecutor(self.config.concurrency) as pool:
            for i, output in enumerate(pool.map(self.ask, requests)):
                done(i, output)

    def ask(self, request: Request) -> dict:
        """One completion; a busy server is asked five times."""
        chat = isinstance(request.prompt, list)
        body = {"model": self.source, "max_tokens": request.limit, "temperature": self.config.temperature}
        body |= {"top_p": self.config.top_p, "seed": (request.seed() + request.sample + self.config.seed) % 2**31}
        if chat and self.template:
            body["chat_template_kwargs"] = self.template
        if request.stops:
            body["stop"] = request.stops[:4]  # servers take four; all of them are cut off here
        hint = "try another --base_url or --model"
        whole, reason, tokens = server_text(self.config.base_url, request.prompt, body, hint)
        text = cut_at(whole, request.stops)
        finish = "length" if reason == "length" and text == whole else "stop"
        return {"text": text, "ids": [], "tokens": tokens, "finish": finish}


class GivenCompletions:
    """No model: the completions stand in the data."""

    can_logprobs, tokenizer, max_length, parameters, notes, load_s = False, None, None, None, (), 0.0
    source, hash = "completions of the data", "given"

    def generate(self, requests, done):
        for i, request in enumerate(requests):
            done(i, {"text": request.given, "ids": [], "tokens": None, "finish": "given"})


def open_models(config: Config):
    """Yield the models of a run, one after the other."""
    if config.completion_column:
        yield GivenCompletions()
    elif config.base_url:
        yield ServerModel(config)
    else:
        device = start_processes(config)
        settle_precision(config, device)
        kind = {"hf": LocalModel, "vllm": VllmModel}[config.engine]
        for source in config.model or [EMBEDDED_MODEL]:
            yield kind(config, source, device)
