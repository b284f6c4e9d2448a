"""A run's saved model, judged by transformers alone: loading, weights, plain generate, KL."""

import math
import warnings
from pathlib import Path

from parts.foundation.processes import torch, transformers
from parts.networks.loading import sample_plainly
from parts.networks.tokenizers import ending_ids
from parts.networks.whole_models import load_whole


def load_plainly(source):
    """A causal model in fp32 by transformers; an adapter through peft, merged into its base.

    UserError or UserWarning if tensors are missing, which both would fill with new ones.
    """
    if (Path(source) / "adapter_config.json").is_file():
        from peft import AutoPeftModelForCausalLM

        with warnings.catch_warnings():
            warnings.filterwarnings("error", message="Found missing adapter keys")
            return AutoPeftModelForCausalLM.from_pretrained(source, dtype=torch.float32).merge_and_unload()
    return load_whole(transformers.AutoModelForCausalLM.from_pretrained, source, dtype=torch.float32)


def dtype_of(source):
    """The dtype in which a whole model was saved; None of an adapter."""
    is_adapter = (Path(source) / "adapter_config.json").is_file()
    return None if is_adapter else transformers.AutoConfig.from_pretrained(source).dtype


def weight_change(start, model, saved_in=None) -> dict:
    """How far weights have moved from the start's, rounded to the dtype in which the model was saved.

    largest_weight_change is not finite where a weight is not; tensors_changed is the share of all tensors.
    """
    after, changes = model.state_dict(), []
    for name, x in start.state_dict().items():
        rounded = x.to(saved_in).float() if saved_in else x.float()
        same_rows = after[name][: len(x)] if x.dim() else after[name]  # a larger vocabulary has more rows
        changes.append((same_rows.float() - rounded).abs().max().item())
    largest = next((x for x in changes if not math.isfinite(x)), max(changes))
    return {"largest_weight_change": largest, "tensors_changed": sum(x != 0 for x in changes) / len(changes)}


def saved(start: str, out: Path) -> dict:
    """Whether the model in a folder loads, and how far it has moved from the model that its run started with."""
    try:
        transformers.AutoTokenizer.from_pretrained(out)
        return {"loads": True, **weight_change(load_plainly(start), load_plainly(out), dtype_of(out))}
    except Exception as error:  # whatever a folder that is not right makes transformers raise
        return {"loads": False, "error": f"{type(error).__name__}: {error}"}


def answered(model, tokenizer, ids: list[list[int]], **how) -> list[list[int]]:
    """The tokens by which transformers' own generate answers prompts, with the end token; `how` are its settings."""
    width, answers, ends = max(map(len, ids)), [], ending_ids(model.generation_config.eos_token_id, tokenizer)
    sample_plainly(model, ends, (ends or [0])[0])
    for i in range(0, len(ids), 64):
        part = ids[i : i + 64]
        rows = torch.tensor([[0] * (width - len(x)) + x for x in part], device=model.device)
        mask = torch.tensor([[0] * (width - len(x)) + [1] * len(x) for x in part], device=model.device)
        for new in model.generate(input_ids=rows, attention_mask=mask, **how)[:, width:].tolist():
            answers.append(new[: next((n + 1 for n, token in enumerate(new) if token in ends), len(new))])
    return answers


def answer_texts(model, tokenizer, answers: list[list[int]]) -> list[str]:
    """The texts of answers, without their end token."""
    ends = ending_ids(model.generation_config.eos_token_id, tokenizer)
    return [tokenizer.decode(ids[:-1] if ids and ids[-1] in ends else ids) for ids in answers]


def reverse_kl(model, teacher, prompts: list[list[int]], answers: list[list[int]], temperature: float) -> float:
    """Mean of KL(model || teacher) over the tokens of answers, in nats, one text at a time and without a cache."""
    total, tokens = 0.0, sum(map(len, answers))
    for prompt, answer in zip(prompts, answers, strict=True):
        ids = torch.tensor([prompt + answer], device=model.device)
        with torch.no_grad():
            p, q = (network(ids).logits[0, len(prompt) - 1 : -1].float() / temperature for network in (model, teacher))
        width = min(p.shape[-1], q.shape[-1])
        p, q = (x[:, :width].log_softmax(-1) for x in (p, q))
        total += torch.nn.functional.kl_div(q, p, reduction="sum", log_target=True).item()
    return total / tokens
