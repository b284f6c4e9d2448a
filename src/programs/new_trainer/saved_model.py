"""What a run has saved, judged by other code than its own."""

import json
import runpy
import sys
from pathlib import Path

from parts.networks.models import sample_plainly


def by_answers(samples: list[dict]) -> dict[int, dict]:
    """{answers of the model in a conversation: how many conversations in the log, and their mean return}."""
    scores = {}
    for sample in samples:
        before = len(sample["prompt"]) if isinstance(sample["prompt"], list) else 1
        answers = sum(message["role"] == "assistant" for message in sample["messages"][before:])
        scores.setdefault(answers, []).append(sample["score"])
    return {n: {"conversations": len(x), "mean_return": round(sum(x) / len(x), 4)} for n, x in sorted(scores.items())}


def saved(start: str, out: Path) -> dict:
    """Whether the model in a run's folder loads, and how far it has moved from the model that the run started with."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    try:
        AutoTokenizer.from_pretrained(out)
        before, after = (
            AutoModelForCausalLM.from_pretrained(x, dtype=torch.float32).state_dict() for x in (start, out)
        )
        change = max((after[name] - x).abs().max().item() for name, x in before.items())
    except Exception as error:  # whatever a folder that is not right makes transformers raise
        return {"loads": False, "error": f"{type(error).__name__}: {error}"}
    return {"loads": True, "largest_weight_change": change}


def loaded(file: str) -> dict:
    """The names of a script; what it imports from its folder is found, as when it is started."""
    sys.path.append(str(Path(file).resolve().parent))
    return runpy.run_path(file)


def ends_of(model, tokenizer) -> list[int]:
    """The tokens that end an answer: chat models name several."""
    ends = model.generation_config.eos_token_id
    return sorted({*(ends if isinstance(ends, list) else [ends]), tokenizer.eos_token_id} - {None})


def answered(model, tokenizer, ids: list[list[int]], **how) -> list[list[int]]:
    """The tokens by which transformers' own generate answers prompts, with the end token; `how` are its settings."""
    import torch

    width, answers, ends = max(map(len, ids)), [], ends_of(model, tokenizer)
    sample_plainly(model, ends, (ends or [0])[0])
    for i in range(0, len(ids), 64):
        part = ids[i : i + 64]
        rows = torch.tensor([[0] * (width - len(x)) + x for x in part], device=model.device)
        mask = torch.tensor([[0] * (width - len(x)) + [1] * len(x) for x in part], device=model.device)
        for new in model.generate(input_ids=rows, attention_mask=mask, **how)[:, width:].tolist():
            answers.append(new[: next((n + 1 for n, token in enumerate(new) if token in ends), len(new))])
    return answers


def reverse_kl(model, teacher, prompts: list[list[int]], answers: list[list[int]], temperature: float) -> float:
    """Mean of KL(model || teacher) over the tokens of answers, in nats, one text at a time and without a cache."""
    import torch

    total, tokens = 0.0, sum(map(len, answers))
    for prompt, answer in zip(prompts, answers, strict=True):
        ids = torch.tensor([prompt + answer], device=model.device)
        with torch.no_grad():
            p, q = (network(ids).logits[0, len(prompt) - 1 : -1].float() / temperature for network in (model, teacher))
        width = min(p.shape[-1], q.shape[-1])
        p, q = (x[:, :width].log_softmax(-1) for x in (p, q))
        total += torch.nn.functional.kl_div(q, p, reduction="sum", log_target=True).item()
    return total / tokens


def by_generate(file: str, out: Path) -> dict:
    """The held-out accuracy of the saved model by transformers' own generate, greedy and at the run's temperature.

    The script's rows and reward, its own sampling and evaluation not.

    Returns:
        rows (at most 256); with a reward greedy and sampled, the shares of scores of 1 and above; with a teacher
        reverse_kl, nats a token, of what was sampled.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    page = loaded(file)
    config = page["Config"](**json.loads((out / "settings.json").read_text(encoding="utf-8")))
    device = torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
    tokenizer, load = AutoTokenizer.from_pretrained(out), AutoModelForCausalLM.from_pretrained
    names = [out, config.teacher] if "teacher" in vars(config) else [out]
    model, *teacher = (load(name, dtype=torch.float32).to(device).eval() for name in names)
    ends, rows = ends_of(model, tokenizer), page["load_rows"](config, tokenizer, config.eval_data)[:256]
    reward = page["load_reward"](config.reward) if config.reward else None
    prompts, figures = [row["prompt_ids"] for row in rows], {"rows": len(rows)}
    torch.manual_seed(config.seed)
    sampled = {"do_sample": True, "temperature": config.temperature, "top_k": 0, "top_p": 1.0}
    ways = ({"greedy": {"do_sample": False}} if reward else {}) | {"sampled": sampled}
    for name, how in ways.items():
        answers = answered(model, tokenizer, prompts, max_new_tokens=config.max_new_tokens, **how)
        if reward:
            texts = [tokenizer.decode(ids[:-1] if ids[-1] in ends else ids) for ids in answers]
            scores = reward(rows, texts)
            figures[name] = round(sum(score >= 1 for score in scores) / len(rows), 4)
    if teacher:
        figures["reverse_kl"] = round(reverse_kl(model, *teacher, prompts, answers, config.temperature), 6)
    return figures
