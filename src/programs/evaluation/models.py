"""Opening the models that were named."""

from parts.foundation.bundle import EMBEDDED_MODEL
from parts.foundation.processes import start_processes
from parts.networks.models import settle_precision
from programs.evaluation.local_model import LocalModel
from programs.evaluation.settings import Config
from programs.evaluation.vllm_and_servers import ServerModel, VllmModel


class GivenCompletions:
    """No model: the completions stand in the data."""

    can_logprobs, tokenizer, max_length, tokens, notes, load_s = False, None, None, 0, [], 0.0
    source, hash, parameters = "completions of the data", "given", None

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
