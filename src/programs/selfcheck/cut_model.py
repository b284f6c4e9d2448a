"""A large model cut to a few layers and tokens: the same code with less to compute."""

import copy
import time
from dataclasses import dataclass

ENOUGH = 20_000_000  # parameters that a cut has to save; a model that saves fewer is checked whole
TOKENS = 4096  # of the vocabulary


@dataclass
class Cut:
    """What stands for a model in checks that do not need its weights."""

    model: str
    config: object
    layers: int
    of_layers: int
    parameters: int  # of the whole model
    saved: int

    def __str__(self) -> str:
        return f"its first {self.layers} of {self.of_layers} layers"

    def write(self, folder: str, whole_vocabulary: bool) -> str:
        """Save the cut with a tokenizer into a folder; of a cut vocabulary tokens 0 and 1 are pad and end token."""
        from transformers import AutoModelForCausalLM, AutoTokenizer

        network = AutoModelForCausalLM.from_pretrained(self.model, config=self.config, dtype="auto")
        tokenizer = AutoTokenizer.from_pretrained(self.model)
        if not whole_vocabulary:
            network.resize_token_embeddings(min(TOKENS, len(tokenizer)))
            for config in (network.config, network.config.get_text_config(), network.generation_config):
                config.pad_token_id, config.eos_token_id = 0, 1
            tokenizer.pad_token, tokenizer.eos_token = tokenizer.convert_ids_to_tokens([0, 1])
        network.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        return folder


def cut_of(model: str) -> Cut:
    """The cut of a model: two layers, or as many as it takes to have one of each kind."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(model)
    small = copy.deepcopy(config)
    text, count = small.get_text_config(), config.get_text_config().num_hidden_layers
    with torch.device("meta"):
        network = AutoModelForCausalLM.from_config(config)
    (stack,) = [m for m in network.modules() if isinstance(m, torch.nn.ModuleList) and len(m) == count]
    types = getattr(text, "layer_types", None) or [""] * count
    shapes = [{name: p.shape for name, p in layer.named_parameters()} for layer in stack]
    kinds = list(zip(types, shapes, strict=True))
    layers = max(2, *(kinds.index(kind) + 1 for kind in kinds))
    for name, value in vars(text).items():
        if isinstance(value, list | tuple) and len(value) == count:
            setattr(text, name, value[:layers])
    text.num_hidden_layers = layers
    saved = sum(shape.numel() for layer in shapes[layers:] for shape in layer.values())
    saved += max(0, text.vocab_size - TOKENS) * text.hidden_size
    return Cut(model, small, layers, count, network.num_parameters(), saved)


def expected_seconds(cut: Cut) -> float:
    """About how long the checks of a cut model take here, by the time of one product of matrices."""
    import torch

    device = torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
    a, b, times = torch.ones(64, 1024, device=device), torch.ones(1024, 4096, device=device), []
    for _ in range(5):
        started = time.perf_counter()
        (a @ b).sum().item()
        times.append(time.perf_counter() - started)
    return 8 + 25 * min(times) / b.numel() * cut.parameters
