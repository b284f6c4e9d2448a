"""Loading what is checked, cutting a large model to a few layers, making probes, moving the policy."""

import copy
import dataclasses

from parts.foundation.messages import UserError, say
from programs.selfcheck.oracle import own_logprobs
from programs.selfcheck.trainer import PROBES, Trainer, networks

ENOUGH = 20_000_000  # parameters that a cut has to save; a model that saves fewer is checked whole
PROBE_TOKENS = 64  # of the prompts of probes


@dataclasses.dataclass
class Cut:
    """What stands for a model in checks that do not need its weights: two layers, or one of each kind."""

    model: str
    config: object
    layers: int
    of_layers: int
    parameters: int  # of the whole model
    saved: int

    def __str__(self) -> str:
        return f"its first {self.layers} of {self.of_layers} layers"

    def write(self, folder: str) -> str:
        """Save the cut with its tokenizer into a folder."""
        from transformers import AutoModelForCausalLM, AutoTokenizer

        AutoModelForCausalLM.from_pretrained(self.model, config=self.config, dtype="auto").save_pretrained(folder)
        AutoTokenizer.from_pretrained(self.model).save_pretrained(folder)
        return folder


def cut_of(model: str) -> Cut:
    """The cut of a model: two layers, or as many as it takes to have one of each kind."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(model)
    with torch.device("meta"):
        network = AutoModelForCausalLM.from_config(copy.deepcopy(config))
    text = config.get_text_config()
    count = text.num_hidden_layers
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
    return Cut(model, config, layers, count, network.num_parameters(), saved)


def cuts_for(settings) -> dict[str, Cut]:
    """{setting: its model's cut} for a run; {} where that saves little, cannot be, or vLLM holds the model."""
    models, teacher = {"model": settings.model}, getattr(settings, "teacher", None)
    if teacher:
        models["teacher"] = teacher[0] if isinstance(teacher, list) else teacher
    if getattr(settings, "rollout_engine", "") == "vllm" or (isinstance(teacher, list) and len(teacher) > 1):
        return {}
    try:
        cuts = {name: cut_of(model) for name, model in models.items()}
    except OSError:  # no such model, which the trainer tells best
        return {}
    except Exception as error:  # an architecture that differs
        say(f"note: checking all of the model, which cannot be cut: {type(error).__name__}: {error}")
        return {}
    return cuts if cuts["model"].saved >= ENOUGH else {}


def on_cuts(settings, cuts: dict[str, Cut], folder: str):
    """Settings with the cuts in place of the models."""
    from transformers.utils import logging

    logging.set_verbosity_error()  # it names the layers that a cut leaves out
    written = {name: cut.write(f"{folder}/{name}") for name, cut in cuts.items()}
    if "teacher" in written and isinstance(settings.teacher, list):
        written["teacher"] = [written["teacher"]]
    return dataclasses.replace(settings, **written)


def prepare(s: Trainer) -> None:
    """Load everything through the trainer, and make the sequences on which it is checked.

    Raises:
        UserError: for what keeps the checks from starting.
    """
    s.moved = 0.0
    try:
        s.load()
        s.probes = make_probes(s.rows, s.takes_holes)
        s.initial = own_logprobs(s)
    except s.user_errors as error:
        raise UserError(str(error).removeprefix("error: ")) from error
    except Exception as error:
        raise UserError(f"got {type(error).__name__} before the first check: {error}") from error


def make_probes(rows: list[dict], holes: bool) -> list[dict]:
    """Samples with prompts of growing and responses of shrinking length, all different, cut from real prompts.

    With `holes` the second has a token in its response that the policy has not sampled, as a tool's output is.
    """
    probes = []
    for i, row in enumerate(rows[:PROBES]):
        ids = list(row["prompt_ids"])[-PROBE_TOKENS:]
        endless = ids * (2 * PROBES + 4)
        sample = {"prompt": row["prompt"], "prompt_ids": endless[: len(ids) + 2 * i], "completion": ""}
        response = endless[1 : 4 + 2 * (PROBES - i)]
        sample |= {"response_ids": response, "rollout_logprobs": [0.0] * len(response), "finished": True}
        sample["response_mask"] = [int(not (holes and i == 1 and j == 2)) for j in range(len(response))]
        score = 1.6 + 1.5 * (-1) ** i + 0.1 * i  # no two alike in a group, none below 0
        sample |= {"rewards": {"probe": score}, "weights": {"probe": 1.0}, "group": i // 2, "baseline": 0.0}
        probes.append(sample | {"score": score})
    return probes


def move(s: Trainer) -> None:
    """Add noise to the trained weights, in memory, until the policy differs clearly from the untouched one."""
    import torch

    scale, enough = 0.01, max(0.05, 3 * s.limits[0])  # nats per token
    for attempt in range(8):
        generator = torch.Generator(s.device).manual_seed(attempt)
        with torch.no_grad():
            for p in (p for network in networks(s.models) for p in network.parameters() if p.requires_grad):
                size = p.abs().mean().item() or 1.0  # LoRA's B and the value head are 0
                noise = torch.randn(p.shape, generator=generator, device=p.device, dtype=p.dtype)
                p.add_(noise, alpha=scale * size)
        s.moved = (own_logprobs(s) - s.initial).abs().mean().item()
        if s.moved >= enough:
            break
        scale *= 2
    if s.engine:
        s.engine.sync()
