"""What no default shows: how an old TRL counted, sampled and summed, said in today's settings."""

import ast
import re
from collections.abc import Iterator

from programs.migrate.edits import Change, Report, by_hand, rules_of
from programs.migrate.trl_run import UNKNOWN, TrlRun

Changes = Iterator[tuple[str, Change]]


def by_rules(run: TrlRun, report: Report) -> Changes:
    """The settings and notes of by_hand.json that hold for this config, version and script."""
    for rule, entry in rules_of("trl", run.version):
        unless = entry.get("unless", "")
        is_on = "when" not in entry or run.is_on(entry["when"])
        if run.config in entry["configs"] and is_on and not run.has(unless) and unless not in run.source.imports:
            if "setting" in entry:
                yield entry["setting"], by_hand(entry["setting"], entry["value"], rule)
            else:
                report.note(entry["why"])


def product(run: TrlRun, first: str, second: str) -> str:
    """A product of two settings: a number where both are written as such."""
    values = run.value(first), run.value(second)
    if UNKNOWN in values or any(run.has(n) and not isinstance(run.nodes[n], ast.Constant) for n in (first, second)):
        texts = (run.text(name) for name in (first, second))
        return " * ".join(text if re.fullmatch(r"[\w.]+|\([^()]*\)", text) else f"({text})" for text in texts)
    return str(values[0] * values[1])


def batch(run: TrlRun, report: Report) -> Changes:
    """GRPO before 0.15: sizes of batches count prompts, each with `num_generations` completions."""
    if run.config != "GRPOConfig" or not run.before("0.15"):
        return
    sizes = ["per_device_train_batch_size"]
    if any(run.has(n) and run.value(n) != "no" for n in ("eval_strategy", "evaluation_strategy")):
        sizes.append("per_device_eval_batch_size")
    for name in sizes:
        yield name, by_hand(name, product(run, name, "num_generations"), "batch")


def sampling(run: TrlRun, report: Report) -> Changes:
    """Sampling by default, log-probs that the temperature did not divide, and the server of vLLM."""
    if run.config != "GRPOConfig":
        return
    vllm = run.value("use_vllm")
    if run.before("0.16") and run.value("temperature") != 1.0:
        kwargs = f'{{"temperature": {run.text("temperature")}}}'
        if run.has("generation_kwargs"):
            kwargs = f"{{**{kwargs}, **{run.text('generation_kwargs')}}}"
        yield "temperature", by_hand("temperature", "1.0", "temperature")
        yield "generation_kwargs", by_hand("generation_kwargs", kwargs, "temperature")
    if run.before("0.16") and vllm is not True:
        text = f"0 if {run.text('use_vllm')} else 50" if vllm is UNKNOWN else "50"
        yield "top_k", by_hand("top_k", text, "top_k")
    elif not run.before("0.16") and run.before("0.27") and run.has("top_k") and run.value("top_k") is None:
        yield "top_k", by_hand("top_k", "0", "top_k_none")
    by_default = not run.before("0.16") and run.before("1.0") and not run.has("vllm_mode")
    if run.is_on("use_vllm") and (by_default or run.value("vllm_mode") == "server"):
        report.note("the server: `vllm serve MODEL --logprobs-mode processed_logprobs` (references/grpo_trl.md)")


def schedule(run: TrlRun, report: Report) -> Changes:
    """The share of warmup steps; fewer names for the same."""
    since = "transformers 5.0"
    if run.has("warmup_ratio"):
        ratio, text = run.value("warmup_ratio"), run.text("warmup_ratio")
        if run.has("warmup_steps") and run.value("warmup_steps") not in (0, UNKNOWN):
            yield "warmup_ratio", Change("warmup_ratio", None, since, "warmup_steps won over it")
        elif ratio is not UNKNOWN and ratio >= 1:
            report.refuse("", f"warmup_ratio={ratio}", "warmup_steps counts steps from 1 on", "the number of all steps")
        else:
            yield "warmup_ratio", Change("warmup_steps", text, since, "warmup_steps below 1 is the share")
    forms = {"group_by_length": ("train_sampling_strategy", '"group_by_length"', '"random"')}
    forms |= {"adafactor": ("optim", '"adafactor"', '"adamw_torch"')}
    for name in [name for name in forms if run.has(name)]:
        (new, on, off), given = forms[name], run.text(name)
        text = {"True": on, "False": off}.get(given, f"{on} if {given} else {off}")
        yield name, Change(new, text, since, "its new name")


def preferences(run: TrlRun, report: Report) -> Changes:
    """DPO: the SFT term by its new name, a loss that is gone."""
    kinds = run.text("loss_type") if run.has("loss_type") else '"sigmoid"'
    if run.config == "DPOConfig" and run.has("rpo_alpha") and run.value("rpo_alpha") is not None:
        why = "rpo_alpha weighed the SFT term"
        yield "rpo_alpha", Change("loss_weights", f"[1.0, {run.text('rpo_alpha')}]", "0.29", why)
        yield "loss_type", Change("loss_type", f'[{kinds}, "sft"]', "0.29", why)
    if run.config == "DPOConfig" and "kto_pair" in kinds:
        report.refuse("", 'loss_type="kto_pair"', "DPOTrainer no longer has it", "KTOTrainer, on unpaired rows")


def supervised(run: TrlRun, report: Report) -> Changes:
    """SFT: a way of packing that is gone, the average over micro-batches."""
    if run.config not in ("SFTConfig", "GKDConfig"):
        return
    if run.is_on("packing") and run.value("packing_strategy") == "ffd":
        yield "packing_strategy", Change("packing_strategy", '"bfd"', "0.20", "ffd is gone", "ValueError")
        report.refuse("", 'packing_strategy="ffd"', "gone since 0.20", 'packing_strategy="bfd", other neighbours')
    if run.before("0.12") and run.value("gradient_accumulation_steps") not in (1, None):
        why = "the loss was the mean over micro-batches; since transformers 4.46 over the tokens of the step"
        report.refuse("", f"gradient_accumulation_steps={run.text('gradient_accumulation_steps')}", why, "as it is")


MEANINGS = (by_rules, batch, sampling, schedule, preferences, supervised)
