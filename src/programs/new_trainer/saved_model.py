"""What a run has saved, judged by independent code."""

import json
import runpy
import sys
from pathlib import Path

from parts.sampling.saved_models import answer_texts, answered, reverse_kl


def by_answers(samples: list[dict]) -> dict[int, dict]:
    """{answers of the model in a conversation: how many conversations in the log, and their mean return}."""
    scores = {}
    for sample in samples:
        before = len(sample["prompt"]) if isinstance(sample["prompt"], list) else 1
        answers = sum(message["role"] == "assistant" for message in sample["messages"][before:])
        scores.setdefault(answers, []).append(sample["score"])
    return {n: {"conversations": len(x), "mean_return": round(sum(x) / len(x), 4)} for n, x in sorted(scores.items())}


def loaded(file: str) -> dict:
    """The names of a script; what it imports from its folder is found, as when it is started."""
    sys.path.append(str(Path(file).resolve().parent))
    return runpy.run_path(file)


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
    rows = page["load_rows"](config, tokenizer, config.eval_data)[:256]
    reward = page["load_reward"](config.reward) if config.reward else None
    prompts, figures = [row["prompt_ids"] for row in rows], {"rows": len(rows)}
    torch.manual_seed(config.seed)
    sampled = {"do_sample": True, "temperature": config.temperature, "top_k": 0, "top_p": 1.0}
    ways = ({"greedy": {"do_sample": False}} if reward else {}) | {"sampled": sampled}
    for name, how in ways.items():
        answers = answered(model, tokenizer, prompts, max_new_tokens=config.max_new_tokens, **how)
        if reward:
            scores = reward(rows, answer_texts(model, tokenizer, answers))
            figures[name] = round(sum(score >= 1 for score in scores) / len(rows), 4)
    if teacher:
        figures["reverse_kl"] = round(reverse_kl(model, *teacher, prompts, answers, config.temperature), 6)
    return figures
