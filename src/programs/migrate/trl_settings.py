"""What becomes of the settings of a TRL run, by the tables, by hand, and by classes that cut prompts."""

import ast
import re
from collections.abc import Iterator

from parts.data.trl_names import trl_defaults
from parts.foundation.file_text import file_text, with_values
from programs.migrate.edits import Change, Report, by_hand, rules_of
from programs.migrate.tables import ABSENT, NAMES, changes, default_at, gone_entry, newest, since_of
from programs.migrate.trl_run import SAMPLING, UNKNOWN, TrlRun

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
            given, is_dict = run.text("generation_kwargs"), isinstance(run.nodes["generation_kwargs"], ast.Dict)
            kwargs = f"{kwargs[:-1]}, {given[1:] if is_dict else f'**{given}}}'}"
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
            if run.has("warmup_steps"):  # one argument for both
                text = text if run.value("warmup_steps") == 0 else f"{run.text('warmup_steps')} or {text}"
                yield "warmup_steps", Change("warmup_steps", None, since, "0 left the warmup to warmup_ratio")
            yield "warmup_ratio", Change("warmup_steps", text, since, "warmup_steps below 1 is the share")
    if run.has("group_by_length"):
        given, on, off = run.text("group_by_length"), '"group_by_length"', '"random"'
        text = {"True": on, "False": off}.get(given, f"{on} if {given} else {off}")
        yield "group_by_length", Change("train_sampling_strategy", text, since, "its new name")
    if run.has("adafactor"):
        given, optim = run.text("adafactor"), run.text("optim")
        text = '"adafactor"' if given == "True" else f'"adafactor" if {given} else {optim}'
        is_cut = given == "False" or (run.has("optim") and "adafactor" not in run.unsure)
        if is_cut and given != "False":
            yield "optim", Change("optim", text, since, "adafactor won over it")
        name, why = ("adafactor", "optim says it") if is_cut else ("optim", "its new name")
        yield "adafactor", Change(name, None if is_cut else text, since, why)


def preferences(run: TrlRun, report: Report) -> Changes:
    """DPO: the SFT term by its new name, a loss that is gone."""
    kinds, shown, why = run.value("loss_type"), run.text("loss_type"), "rpo_alpha weighed the SFT term"
    if run.config == "DPOConfig" and run.has("rpo_alpha") and run.value("rpo_alpha") is not None:
        weights = ", ".join(["1.0"] * (len(kinds) if isinstance(kinds, list) else 1))
        weights = run.text("loss_weights")[1:-1] if run.has("loss_weights") else weights
        shown = shown[1:-1] if isinstance(kinds, list) else shown
        yield "rpo_alpha", Change("loss_weights", f"[{weights}, {run.text('rpo_alpha')}]", "0.29", why)
        yield "loss_type", Change("loss_type", f'[{shown}, "sft"]', "0.29", why)
        if run.has("loss_weights"):
            yield "loss_weights", Change("loss_weights", None, "0.29", "its weights stand before that of the SFT term")
    if run.config == "DPOConfig" and "kto_pair" in str(kinds):
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


CUT = ("max_prompt_length", "max_target_length", "max_completion_length")  # by a class, where no config has it
ELSEWHERE = {"warmup_ratio", "group_by_length", "adafactor", "rpo_alpha", *CUT}
OF_OTHERS = ("per_device_train_batch_size", "per_device_eval_batch_size", "temperature", "generation_kwargs")
SAME = ([None, 0, -1], [True, "group"], [False, "none"])  # values of top_k and scale_rewards that are one setting
OLD_TRAINERS = file_text("files/old_trainers.py")


def python(value) -> str:
    """A default of a table as source."""
    if isinstance(value, dict) and set(value) == {"expr"}:
        return value["expr"]
    return f'"{value}"' if isinstance(value, str) and '"' not in value else repr(value)


def is_same(name: str, old, new) -> bool:
    """Whether two defaults mean the same."""
    if (type(old) is type(new) and old == new) or (isinstance(new, list) and new == [old]):
        return True
    return name in ("top_k", "scale_rewards") and any(old in group and new in group for group in SAME)


def given_changes(run: TrlRun, report: Report) -> dict[str, Change]:
    """What becomes of the arguments that the script gives and that are gone."""
    plan = {}
    elsewhere = ELSEWHERE - {*CUT} if run.config == "DistillationConfig" else ELSEWHERE  # no class cuts its prompts
    for name in [n for n in run.nodes if n not in elsewhere and n not in run.of_trainer]:
        gone, place = gone_entry(run.config, name), run.source.place(run.source.start(run.nodes[name]))
        if not gone:
            continue
        since, new, text = since_of(run.config, name, run.version), gone.get("renamed"), run.text(name)
        new = new if new in trl_defaults(run.config) else None
        if new and not run.in_config(new) and name not in NAMES["lossless"]:
            plan[name] = Change(new, text, since, f"the new name of {name}")
            continue
        same = (None, False, "", NAMES["same_values"].get(name))
        is_lost = not (name in NAMES["lossless"] or new or run.value(name) in same)
        plan[name] = Change(name, None, since, f"{name} is gone{', and the run is the same' * (not is_lost)}")
        if is_lost:
            nearest = NAMES["gone_arguments"].get(name, "leaving it out")
            report.refuse(place, f"{name}={text}", f"gone since {since}", nearest)
    return plan


def default_changes(run: TrlRun) -> dict[str, Change]:
    """Defaults that changed and that the script does not give, with their old values."""
    tables, plan = changes("trl")["configs"], {}
    for name in dict.fromkeys([*tables.get(run.config, {}), *tables["TrainingArguments"]]):
        old, new = default_at(run.config, name, run.version), default_at(run.config, name, newest("trl"))
        is_beside = ABSENT in (old, new) or name in NAMES["beside_the_run"]
        if is_beside or run.has(name) or is_same(name, old, new) or is_idle(run, name):
            continue
        since = since_of(run.config, name, run.version)
        plan[name] = Change(name, python(old), since, "its default then", python(new))
    return plan


def is_idle(run: TrlRun, name: str) -> bool:
    """Whether a setting cannot act beside what the script gives."""
    switches = {"vllm_": "use_vllm", "ref_model_": "sync_ref_model", "packing_strategy": "packing"}
    switch = next((switches[start] for start in switches if name.startswith(start)), None)
    if switch:
        return not run.is_on(switch)
    if name == "optim":
        return run.is_on("adafactor") and "adafactor" not in run.unsure
    if name == "use_bias_correction_kl":
        return run.value("beta") == 0
    if name == "f_alpha_divergence_coef":
        return "alpha" not in str(run.value("f_divergence_type")).lower()
    return name == "bf16" and run.has("fp16") and run.value("fp16") is not False


def planned(run: TrlRun, report: Report) -> dict[str, Change]:
    """{argument: what becomes of it}, with those to add."""
    plan = given_changes(run, report) | default_changes(run)
    for name, change in [pair for meaning in MEANINGS for pair in meaning(run, report)]:
        if run.unseen and name in OF_OTHERS and change.source:
            report.note(f"{name}: {change.why}: edit it by hand, as the settings cannot be seen")
        else:
            plan[name] = change
    for name in CUT:
        if run.in_config(name) and name not in trl_defaults(run.config):
            plan[name] = Change(name, None, "0.28", f"no trainer has {name}")
    return plan


def prompt_limit(run: TrlRun):
    """(Tokens that the old version cut prompts to or None, their source)."""
    limit = run.value("max_prompt_length")
    if run.config == "DPOConfig" and limit is None and run.before("0.12"):
        limit = 128
    return (None if limit == -1 else limit), run.text("max_prompt_length") if limit is UNKNOWN else str(limit)


def old_trainer(run: TrlRun, takes_text: bool) -> tuple[str, str] | None:
    """(Name's end, class) that makes prompts or texts as the old version did; None without a difference.

    `takes_text`: the rows of SFT are plain texts, to which the old version put no end token.
    """
    limit, shown = prompt_limit(run)
    if run.config in SAMPLING and run.before("0.29") and (limit is not None or run.before("0.26")):
        cut = f"({shown} or 0)" if limit is UNKNOWN else shown
        rows = "parts[0]" if limit is None else f"[row[-{cut}:] for row in parts[0]]"
        return class_of(run, "SampledWithCutPrompts", rows=rows, special=not run.before("0.26"))
    if run.config == "DPOConfig" and run.before("0.29") and limit is not None:
        cuts = f'"prompt_ids": row["prompt_ids"][-{shown}:]'
        if run.value("max_completion_length") not in (None, -1):
            answer = run.text("max_completion_length")
            cuts += "".join(f', "{key}": row["{key}"][:{answer}]' for key in ("chosen_ids", "rejected_ids"))
        return class_of(run, "DPOWithCutPrompts", cuts=f"{{{cuts}}}")
    if run.config == "SFTConfig" and run.before("0.16") and not run.is_on("packing") and takes_text:
        return class_of(run, "SFTWithoutEndToken")
    return None


def class_of(run: TrlRun, name: str, **values) -> tuple[str, str]:
    """A class of old_trainers.py with its values, without its first line."""
    text = OLD_TRAINERS.partition(f"\nclass {name}(")[2].partition("\n\n\n")[0]
    text = with_values(text.partition("\n")[2].rstrip(), version=run.version, **values)
    return f"With{name.partition('With')[2]}", text
