"""What no default shows: how an old TRL counted, sampled and summed, said in today's settings."""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

from programs.migrate.edits import Report, Row, by_hand
from programs.migrate.trl_run import SAMPLING, UNKNOWN, TrlRun


@dataclass(frozen=True)
class Change:
    """A setting of the new script; `text` is None where it goes."""

    name: str
    text: str | None
    row: Row
    new_name: str = ""


def factor(text: str) -> str:
    """An expression as a factor of a product."""
    return text if re.fullmatch(r"[\w.]+|\([^()]*\)", text) else f"({text})"


def product(run: TrlRun, first: str, second: str) -> str:
    values = run.value(first), run.value(second)
    if UNKNOWN in values or any(run.has(n) and not isinstance(run.node(n), ast.Constant) for n in (first, second)):
        return f"{factor(run.text(first))} * {factor(run.text(second))}"
    return str(values[0] * values[1])


def changed(name: str, text: str, rule: str, **values) -> Change:
    return Change(name, text, by_hand(f"{name}={text}", rule, **values))


def batch(run: TrlRun, report: Report) -> Iterator[Change]:
    """GRPO before 0.15: sizes of batches count prompts, each with `num_generations` completions."""
    if run.config != "GRPOConfig" or not run.before("0.15"):
        return
    report.note(by_hand("", "padding").why)
    sizes = ["per_device_train_batch_size"]
    if any(run.has(n) and run.value(n) != "no" for n in ("eval_strategy", "evaluation_strategy")):
        sizes.append("per_device_eval_batch_size")
    for name in sizes:
        text = product(run, name, "num_generations")
        yield changed(name, text, "batch", size=run.text(name), group=run.text("num_generations"))


def sampling(run: TrlRun, report: Report) -> Iterator[Change]:
    """Sampling by default, and log-probs that the temperature did not divide."""
    if run.config != "GRPOConfig":
        return
    vllm = run.value("use_vllm")
    if run.before("0.16"):
        if run.value("temperature") != 1.0:
            old = run.text("temperature")
            yield changed("temperature", "1.0", "temperature", old=old)
            yield changed("generation_kwargs", f'{{"temperature": {old}}}', "temperature", old=old)
        if vllm is not True:
            yield changed("top_k", f"0 if {run.text('use_vllm')} else 50" if vllm is UNKNOWN else "50", "top_k")
    elif run.before("0.27") and run.has("top_k") and run.value("top_k") is None:
        yield changed("top_k", "0", "top_k_none")


def loss(run: TrlRun, report: Report) -> Iterator[Change]:
    """Aggregation before it had a name, the KL without the importance ratio, no correction for vLLM."""
    if run.config != "GRPOConfig":
        return
    if run.before("0.16"):
        yield changed("loss_type", '"grpo"', "mean_of_completions")
    elif run.before("0.17"):
        yield changed("loss_type", '"bnpo"', "mean_of_tokens")
    if run.before("0.26") and run.value("beta") != 0:
        yield changed("use_bias_correction_kl", "False", "kl")
    if run.value("use_vllm") in (False, None):
        return
    if run.before("0.23"):
        yield changed("vllm_importance_sampling_correction", "False", "vllm_correction")
    elif run.before("0.26"):
        yield changed("vllm_importance_sampling_mode", '"token_truncate"', "vllm_correction_mode")


def engine(run: TrlRun, report: Report) -> Iterator[Change]:
    """Where vLLM runs."""
    if run.config not in SAMPLING or run.value("use_vllm") in (False, None):
        return
    if run.before("0.16"):
        report.note(
            "vLLM had a device of its own; today it shares those of the training (vllm_mode colocate) or is a server"
        )
    elif run.before("0.18"):
        yield changed("vllm_mode", '"server"', "vllm_server")
    if run.value("vllm_mode") == "server" or (
        not run.before("0.16") and run.before("1.0") and not run.has("vllm_mode")
    ):
        report.note("the server: `vllm serve MODEL --logprobs-mode processed_logprobs` (references/grpo_trl.md)")


def schedule(run: TrlRun, report: Report) -> Iterator[Change]:
    """The share of warmup steps; fewer names for the same."""
    if run.has("warmup_ratio"):
        steps, ratio = run.value("warmup_steps") if run.has("warmup_steps") else 0, run.value("warmup_ratio")
        row = Row(
            f"warmup_steps={run.text('warmup_ratio')}",
            "transformers 5.0",
            "warmup_steps below 1 is the share",
            "TypeError",
        )
        if steps not in (0, UNKNOWN):
            yield Change("warmup_ratio", None, Row("", "transformers 5.0", "warmup_steps won over it", "TypeError"))
        elif ratio is not UNKNOWN and ratio >= 1:
            report.refuse("", f"warmup_ratio={ratio}", "warmup_steps counts steps from 1 on", "the number of all steps")
        else:
            yield Change("warmup_ratio", run.text("warmup_ratio"), row, "warmup_steps")
    if run.has("group_by_length"):
        text = run.text("group_by_length")
        chosen = {"True": '"group_by_length"', "False": '"random"'}.get(
            text, f'"group_by_length" if {text} else "random"'
        )
        row = Row(f"train_sampling_strategy={chosen}", "transformers 5.0", "its new name", "TypeError")
        yield Change("group_by_length", chosen, row, "train_sampling_strategy")
    if run.has("adafactor"):
        row = Row('optim="adafactor"', "transformers 5.0", "its new name", "TypeError")
        yield Change("adafactor", '"adafactor"' if run.value("adafactor") is True else None, row, "optim")


def preferences(run: TrlRun, report: Report) -> Iterator[Change]:
    """DPO: the SFT term by its new name."""
    if run.config != "DPOConfig":
        return
    if run.before("0.12") and run.value("max_length") is None:
        yield changed("max_length", "512", "dpo_length")
    if run.has("rpo_alpha") and run.value("rpo_alpha") is not None:
        kinds, alpha = run.text("loss_type") if run.has("loss_type") else '"sigmoid"', run.text("rpo_alpha")
        row = Row(f'loss_type=[{kinds}, "sft"]', "0.29", "rpo_alpha weighed the SFT term", "TypeError")
        yield Change("rpo_alpha", f"[1.0, {alpha}]", row, "loss_weights")
        yield Change("loss_type", f'[{kinds}, "sft"]', row)
    if "kto_pair" in str(run.value("loss_type")):
        report.refuse("", 'loss_type="kto_pair"', "DPOTrainer no longer has it", "KTOTrainer, on unpaired rows")
    for name in ("reference_free", "force_use_ref_model", "model_adapter_name", "ref_adapter_name"):
        if run.value(name) not in (None, False) and run.has(name):
            near = {"reference_free": "a ref_model of equal log-probs"}.get(name, "peft's own adapter names")
            report.refuse("", name, "DPOConfig no longer has it (0.29)", near)


def packing(run: TrlRun, report: Report) -> Iterator[Change]:
    """SFT: packing cut one long text; the average over micro-batches."""
    if run.config not in ("SFTConfig", "GKDConfig"):
        return
    if run.config == "SFTConfig" and run.before("0.17"):
        if "DataCollatorForCompletionOnlyLM" not in run.source.imports:
            yield changed("completion_only_loss", "False", "whole_text")
        if not run.before("0.16"):
            report.note(by_hand("", "end_token_of_chat").why)
    if run.config == "SFTConfig" and run.before("0.13") and run.value("max_seq_length") is None:
        report.note(by_hand("", "sft_length").why)
    if run.value("packing") not in (False, None):
        if run.before("0.19"):
            yield changed("packing_strategy", '"wrapped"', "wrapped")
        elif run.value("packing_strategy") == "ffd":
            yield Change(
                "packing_strategy", '"bfd"', Row('packing_strategy="bfd"', "0.20", "ffd is gone", "ValueError")
            )
            report.refuse("", 'packing_strategy="ffd"', "gone since 0.20", 'packing_strategy="bfd", other neighbours')
    if run.before("0.12") and run.value("gradient_accumulation_steps") not in (1, None):
        why = "the loss was the mean over micro-batches; since transformers 4.46 over the tokens of the step"
        report.refuse("", f"gradient_accumulation_steps={run.text('gradient_accumulation_steps')}", why, "as it is")


def dropout(run: TrlRun, report: Report) -> Iterator[Change]:
    """Dropout that no setting switched off yet."""
    first = {"RewardConfig": "0.14", "KTOConfig": "0.12"}.get(run.config)
    if first and run.before(first) and not run.has("disable_dropout"):
        yield changed("disable_dropout", "False", "dropout", since=first)


MEANINGS = (dropout, batch, sampling, loss, engine, schedule, preferences, packing)
