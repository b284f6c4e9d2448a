"""What no default shows: how an old TRL counted, sampled and summed, said in today's settings."""

import ast
import re
from collections.abc import Iterator

from programs.migrate.edits import Change, Report, Row, by_hand, changed
from programs.migrate.trl_names import SAMPLING
from programs.migrate.trl_run import UNKNOWN, TrlRun

Changes = Iterator[tuple[str, Change]]


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
    report.note(by_hand("", "padding").why)
    yield changed(
        "per_device_train_batch_size", product(run, "per_device_train_batch_size", "num_generations"), "batch"
    )
    if any(run.has(n) and run.value(n) != "no" for n in ("eval_strategy", "evaluation_strategy")):
        yield changed(
            "per_device_eval_batch_size", product(run, "per_device_eval_batch_size", "num_generations"), "batch"
        )


def sampling(run: TrlRun, report: Report) -> Changes:
    """Sampling by default, and log-probs that the temperature did not divide."""
    if run.config != "GRPOConfig":
        return
    vllm = run.value("use_vllm")
    if run.before("0.16"):
        if run.value("temperature") != 1.0:
            kwargs = f'{{"temperature": {run.text("temperature")}}}'
            if run.has("generation_kwargs"):
                kwargs = f"{{**{kwargs}, **{run.text('generation_kwargs')}}}"
            yield changed("temperature", "1.0", "temperature")
            yield changed("generation_kwargs", kwargs, "temperature")
        if vllm is not True:
            yield changed("top_k", f"0 if {run.text('use_vllm')} else 50" if vllm is UNKNOWN else "50", "top_k")
    elif run.before("0.27") and run.has("top_k") and run.value("top_k") is None:
        yield changed("top_k", "0", "top_k_none")


def loss(run: TrlRun, report: Report) -> Changes:
    """Aggregation before it had a name, the KL without the importance ratio."""
    if run.config != "GRPOConfig":
        return
    if run.before("0.16"):
        yield changed("loss_type", '"grpo"', "mean_of_completions")
    elif run.before("0.17"):
        yield changed("loss_type", '"bnpo"', "mean_of_tokens")
    if run.before("0.26") and run.value("beta") != 0:
        yield changed("use_bias_correction_kl", "False", "kl")


def engine(run: TrlRun, report: Report) -> Changes:
    """Where vLLM runs, and samples of it without a correction."""
    if run.config not in SAMPLING or not run.is_on("use_vllm"):
        return
    if run.before("0.16"):
        report.note("vLLM had a device of its own; today it shares the training's (vllm_mode colocate) or is a server")
    elif run.before("0.18"):
        yield changed("vllm_mode", '"server"', "vllm_server")
    by_default = not run.before("0.16") and run.before("1.0") and not run.has("vllm_mode")
    if by_default or run.value("vllm_mode") == "server":
        report.note("the server: `vllm serve MODEL --logprobs-mode processed_logprobs` (references/grpo_trl.md)")
    if run.config == "GRPOConfig" and run.before("0.23"):
        yield changed("vllm_importance_sampling_correction", "False", "vllm_correction")
    elif run.config == "GRPOConfig" and run.before("0.26"):
        yield changed("vllm_importance_sampling_mode", '"token_truncate"', "vllm_correction_mode")


def schedule(run: TrlRun, report: Report) -> Changes:
    """The share of warmup steps; fewer names for the same."""
    since = "transformers 5.0"
    if run.has("warmup_ratio"):
        steps, ratio = run.value("warmup_steps"), run.value("warmup_ratio")
        text = run.text("warmup_ratio")
        if run.has("warmup_steps") and steps not in (0, UNKNOWN):
            yield "warmup_ratio", Change(None, Row("", since, "warmup_steps won over it", "TypeError"))
        elif ratio is not UNKNOWN and ratio >= 1:
            report.refuse("", f"warmup_ratio={ratio}", "warmup_steps counts steps from 1 on", "the number of all steps")
        else:
            row = Row(f"warmup_steps={text}", since, "warmup_steps below 1 is the share", "TypeError")
            yield "warmup_ratio", Change(text, row, "warmup_steps")
    if run.has("group_by_length"):
        text = run.text("group_by_length")
        text = '"random"' if text == "False" else f'"group_by_length" if {text} else "random"'
        row = Row(f"train_sampling_strategy={text}", since, "its new name", "TypeError")
        yield "group_by_length", Change(text, row, "train_sampling_strategy")
    if run.has("adafactor"):
        row = Row('optim="adafactor"', since, "its new name", "TypeError")
        yield "adafactor", Change('"adafactor"' if run.value("adafactor") is True else None, row, "optim")


def preferences(run: TrlRun, report: Report) -> Changes:
    """DPO: the length, the SFT term by its new name, and what is gone."""
    if run.config != "DPOConfig":
        return
    if run.before("0.12") and run.value("max_length") is None:
        yield changed("max_length", "512", "dpo_length")
    if run.has("rpo_alpha") and run.value("rpo_alpha") is not None:
        kinds = run.text("loss_type") if run.has("loss_type") else '"sigmoid"'
        row = Row(f'loss_type=[{kinds}, "sft"]', "0.29", "rpo_alpha weighed the SFT term", "TypeError")
        yield "rpo_alpha", Change(f"[1.0, {run.text('rpo_alpha')}]", row, "loss_weights")
        yield "loss_type", Change(f'[{kinds}, "sft"]', row)
    if "kto_pair" in str(run.value("loss_type")):
        report.refuse("", 'loss_type="kto_pair"', "DPOTrainer no longer has it", "KTOTrainer, on unpaired rows")


def supervised(run: TrlRun, report: Report) -> Changes:
    """SFT: what the loss is over, packing that cut one long text, the average over micro-batches."""
    if run.config not in ("SFTConfig", "GKDConfig"):
        return
    if run.config == "SFTConfig" and run.before("0.17"):
        if "DataCollatorForCompletionOnlyLM" not in run.source.imports:
            yield changed("completion_only_loss", "False", "whole_text")
        if not run.before("0.16"):
            report.note(by_hand("", "end_token_of_chat").why)
    if run.config == "SFTConfig" and run.before("0.13") and run.value("max_seq_length") is None:
        report.note(by_hand("", "sft_length").why)
    if run.is_on("packing") and run.before("0.19"):
        yield changed("packing_strategy", '"wrapped"', "wrapped")
    elif run.is_on("packing") and run.value("packing_strategy") == "ffd":
        yield "packing_strategy", Change('"bfd"', Row('packing_strategy="bfd"', "0.20", "ffd is gone", "ValueError"))
        report.refuse("", 'packing_strategy="ffd"', "gone since 0.20", 'packing_strategy="bfd", other neighbours')
    if run.before("0.12") and run.value("gradient_accumulation_steps") not in (1, None):
        why = "the loss was the mean over micro-batches; since transformers 4.46 over the tokens of the step"
        report.refuse("", f"gradient_accumulation_steps={run.text('gradient_accumulation_steps')}", why, "as it is")


def dropout(run: TrlRun, report: Report) -> Changes:
    """Dropout that no setting switched off yet."""
    first = {"RewardConfig": "0.14", "KTOConfig": "0.12"}.get(run.config)
    if first and run.before(first) and not run.has("disable_dropout"):
        yield changed("disable_dropout", "False", "dropout")


MEANINGS = (dropout, batch, sampling, loss, engine, schedule, preferences, supervised)
