"""The settings of a TRL run today: by the tables, by hand, and by classes that cut prompts."""

import ast
import re
from collections.abc import Iterator

from parts.data.trl_names import trl_defaults
from parts.foundation.file_text import file_text, with_values
from programs.migrate.edits import UNSURE, Change, Report, by_hand, rules_of
from programs.migrate.tables import ABSENT, NAMES, changes, default_at, gone_entry, newest, since_of
from programs.migrate.trl_run import SAMPLING, UNKNOWN, TrlRun, scoring

Changes = Iterator[tuple[str, Change]]


def by_rules(run: TrlRun, report: Report) -> Changes:
    """The settings, notes and refusals of by_hand.json that hold for this config, version and script."""
    here, loss = {*run.source.imports, *run.source.calls}, run.value("loss_type")
    kinds = loss if isinstance(loss, list) else [loss]
    for rule, entry in rules_of("trl", run.version):
        unless, losses = entry.get("unless", ""), entry.get("losses", kinds)
        is_given = unless in here or (run.has(unless) and str(run.value(unless)) not in ("None", "0", "0.0"))
        is_on = "when" not in entry or any(map(run.is_on, entry["when"]))
        is_on = is_on and (loss is UNKNOWN or any(kind in losses for kind in kinds))
        is_on = is_on and re.search(entry.get("text", ""), "\n".join(map(run.source.code, scoring(run.source))))
        pair = [run.value(x) if isinstance(x, str) else x for x in entry.get("equal", ())]
        is_known = pair and not {None, UNKNOWN} & {*pair}  # whether the condition holds
        if run.config not in entry["configs"] or not is_on or is_given or (is_known and pair[0] == pair[1]):
            continue
        if loss is UNKNOWN and "losses" in entry:
            shown = ", ".join(kind for kind in losses if kind)
            report.note(f"loss_type is known at run time only; if it is {shown}: {entry['why']}")
        elif "setting" in entry:
            yield entry["setting"], by_hand(entry["setting"], entry["value"], rule)
        elif is_known or "nearest" in entry:
            name = entry["equal"][0] if is_known else re.match(r"\w+", entry["shown"])[0]
            nearest = entry.get("nearest") or entry["same_if"]
            report.refuse(run.place(name), entry.get("shown", f"{name}={run.text(name)}"), entry["why"], nearest)
        else:
            report.note_rule(entry)


def term(text: str) -> str:
    """An expression as part of a larger one."""
    return text if re.fullmatch(r"[\w.]+|\([^()]*\)", text.removesuffix(UNSURE)) else f"({text})"


def product(run: TrlRun, first: str, second: str) -> str:
    """A product of two settings: a number where both are written as such."""
    values = run.value(first), run.value(second)
    if UNKNOWN in values or any(run.has(n) and not isinstance(run.nodes[n], ast.Constant) for n in (first, second)):
        return f"{term(run.text(first))} * {term(run.text(second))}"
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
    vllm = run.value("use_vllm")
    top_k = f"0 if {run.text('use_vllm')} else 50" if vllm is UNKNOWN else "50"
    if run.config == "OnlineDPOConfig" and run.before("0.27") and not (run.before("0.14") or run.has("top_k")):
        if run.before("0.23") or vllm is not True:
            yield "top_k", by_hand("top_k", "50" if run.before("0.23") else top_k, "top_k_online")
    if run.config != "GRPOConfig":
        return
    if run.before("0.16") and run.value("temperature") != 1.0:
        kwargs = f'{{"temperature": {run.text("temperature")}}}'
        yield "temperature", by_hand("temperature", "1.0", "temperature")
        yield "generation_kwargs", by_hand("generation_kwargs", kwargs, "temperature")
    if run.before("0.16") and vllm is not True:
        yield "top_k", by_hand("top_k", top_k, "top_k")
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
        steps = run.value("warmup_steps") if run.has("warmup_steps") else 0
        if (ratio is not UNKNOWN and ratio >= 1) or steps is UNKNOWN:
            why = "warmup_steps counts steps from 1 on, and won over it if it was not 0"
            report.refuse(run.place("warmup_ratio"), f"warmup_ratio={text}", why, "the number of all steps")
        elif steps:
            yield "warmup_ratio", Change("warmup_ratio", None, since, "warmup_steps won over it")
        else:
            if run.has("warmup_steps"):  # one argument for both
                yield "warmup_steps", Change("warmup_steps", None, since, "0 left the warmup to warmup_ratio")
            yield "warmup_ratio", Change("warmup_steps", text, since, "warmup_steps below 1 is the share")
    if run.has("group_by_length"):
        given, on, off = run.text("group_by_length"), '"group_by_length"', '"random"'
        text = {"True": on, "False": off}.get(given, f"{on} if {given} else {off}")
        yield "group_by_length", Change("train_sampling_strategy", text, since, "its new name")


def preferences(run: TrlRun, report: Report) -> Changes:
    """DPO: the SFT term and a loss by their new names, the coefficient of a divergence."""
    kinds, shown, why = run.value("loss_type"), run.text("loss_type"), "rpo_alpha weighed the SFT term"
    if run.config != "DPOConfig" or not run.before("0.29"):
        return
    renamed = re.sub(r"(['\"])aot_pair\1", r"\1aot_unpaired\1", shown)
    if renamed != shown:
        shown = renamed
        yield "loss_type", Change("loss_type", shown, "0.29", "its new name", "ValueError")
    elif kinds is UNKNOWN:
        report.note("loss_type is known at run time only; if it is aot_pair: the name is gone, now aot_unpaired")
    kind, coefficient = run.value("f_divergence_type"), f"1 - {term(run.text('f_alpha_divergence_coef'))}"
    alpha = by_hand("f_alpha_divergence_coef", coefficient, "alpha")
    if kind == "alpha_divergence":
        yield alpha.name, alpha
    elif kind is UNKNOWN:
        instead = f"{alpha.why}: {alpha.setting}"
        report.note(f"f_divergence_type is known at run time only; if it is alpha_divergence: {instead}")
    if run.has("rpo_alpha") and run.value("rpo_alpha") is None:
        yield "rpo_alpha", Change("rpo_alpha", None, "0.29", "there was no SFT term")
    elif run.has("rpo_alpha"):
        weights = ", ".join(["1.0"] * (len(kinds) if isinstance(kinds, list) else 1))
        weights = run.text("loss_weights")[1:-1] if run.has("loss_weights") else weights
        shown = shown[1:-1] if isinstance(kinds, list) else shown
        weight = run.text("rpo_alpha") + " or 0.0" * (run.value("rpo_alpha") is UNKNOWN)  # None: no SFT term
        yield "rpo_alpha", Change("loss_weights", f"[{weights}, {weight}]", "0.29", why)
        yield "loss_type", Change("loss_type", f'[{shown}, "sft"]', "0.29", why)
        if run.has("loss_weights"):
            yield "loss_weights", Change("loss_weights", None, "0.29", "its weights stand before that of the SFT term")


def supervised(run: TrlRun, report: Report) -> Changes:
    """SFT and GKD: a way of packing that is gone, the average over micro-batches, the mixture of two models."""
    if run.config not in ("SFTConfig", "GKDConfig"):
        return
    if run.config == "GKDConfig" and run.before("0.16") and (beta := run.value("beta")) != 0.5:
        change = by_hand("beta", f"{1.0 - beta}" if beta in (0, 1) else "", "mixture")
        if change.text:
            yield "beta", change
        else:
            nearest = "a subclass with that generalized_jsd_loss"
            report.refuse(run.place("beta"), f"beta={run.text('beta')}", change.why, nearest)
    if run.is_on("packing") and run.value("packing_strategy") == "ffd":
        yield "packing_strategy", Change("packing_strategy", '"bfd"', "0.20", "ffd is gone", "ValueError")
        report.refuse(
            run.place("packing_strategy"),
            'packing_strategy="ffd"',
            "gone since 0.20",
            'packing_strategy="bfd", other neighbours',
        )
    if run.before("0.15") and run.has("max_seq_length") and run.value("max_seq_length") is None:
        yield "max_seq_length", Change("max_seq_length", None, "0.15", "None was the default, today's length")


MEANINGS = (by_rules, batch, sampling, schedule, preferences, supervised)


CUT = ("max_prompt_length", "max_target_length", "max_completion_length")  # by a class, where no config has it
ELSEWHERE = {"warmup_ratio", "group_by_length", "rpo_alpha", *CUT}
OF_OTHERS = ("per_device_train_batch_size", "per_device_eval_batch_size", "temperature", "generation_kwargs", "top_k")
SAME = ([None, 0, -1], [True, "group"], [False, "none"])  # values of top_k and scale_rewards that are one setting
OLD_TRAINERS = file_text("files/old_trainers.py")


def python(value) -> str:
    """A default of a table as source."""
    if isinstance(value, dict) and set(value) == {"expr"}:
        return value["expr"]
    return f'"{value}"' if isinstance(value, str) and '"' not in value else repr(value)


def is_same(name: str, old, new) -> bool:
    """Whether two defaults mean the same."""
    if (isinstance(old, bool) is isinstance(new, bool) and old == new) or new == [old]:
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
        if new and not run.in_config(new) and not {new, name} & {*run.of_trainer, *NAMES["lossless"]}:
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
    if name == "average_tokens_across_devices":  # the others count no tokens with it
        return run.config != "SFTConfig"
    if name == "use_bias_correction_kl":
        return run.value("beta") == 0
    if name == "f_alpha_divergence_coef":
        return run.value("f_divergence_type") != "alpha_divergence"
    return name == "bf16" and run.has("fp16") and run.value("fp16") is not False


def planned(run: TrlRun, report: Report) -> dict[str, Change]:
    """{argument: what becomes of it}, with those to add."""
    plan = given_changes(run, report) | default_changes(run)
    seen = run.call is None and run.config in run.source.calls  # calls elsewhere, which get their own
    for meaning in MEANINGS:
        changes = dict(meaning(run, report))
        for name in [name for name in changes if run.unseen and name in OF_OTHERS and changes[name].source]:
            change = changes.pop(name)
            if not seen or name in {*run.nodes, *run.unsure}:
                report.note(f"{name}: {change.why}: edit it by hand, as the settings cannot be seen")
        of_branch = [c for name, c in changes.items() if UNSURE in (c.text or "") and c.text != name + UNSURE]
        for name in [name for name in run.unsure if any(name + UNSURE in c.text for c in of_branch)]:
            shown = ", ".join(c.setting.replace(UNSURE, "") for c in changes.values() if c.text)
            why = f"set in a branch, or changed later: {of_branch[0].why}"
            report.refuse(run.place(name), name, why, f"{shown}, each with the value of its branch")
        plan |= {} if of_branch else changes  # what an edit says would hold in one branch alone
    for name in [n for n in CUT if run.in_config(n) and n not in {*trl_defaults(run.config), *run.fields}]:
        if name in run.unsure:
            why = f"set in a branch, and no trainer has {name}"
            report.refuse(run.place(name), name, why, "a trainer for each value")
        else:
            plan[name] = Change(name, None, "0.28", f"no trainer has {name}")
    return plan


def prompt_limit(run: TrlRun, call: ast.Call | None = None):
    """(Tokens that the old version cut prompts to or None, their source before the call of the trainer)."""
    limit, node, default = run.value("max_prompt_length"), run.nodes.get("max_prompt_length"), 0
    if run.config == "DPOConfig" and run.before("0.12"):
        limit, default = limit or 128, 128
    limit = 512 if limit == -1 else limit  # DPO of 0.28: not set
    if limit is not UNKNOWN:
        is_name = call and isinstance(node, ast.Name) and not run.source.rebound(node, node, call)
        return limit, node.id if is_name and run.value("max_prompt_length") == limit else str(limit)
    is_field = "max_prompt_length" in run.fields  # which stays, as the class of the settings is the script's
    text = f"{run.source.code(run.unseen_args)}.max_prompt_length" if is_field else run.text("max_prompt_length")
    return limit, f"{text} or {default}"


def old_trainer(run: TrlRun, takes_text: bool, call: ast.Call | None = None) -> tuple[str, str, Change] | None:
    """(Name's end, class, its line of the table) for rows as the old version made them; None without a difference.

    `takes_text`: the rows of SFT are plain texts, to which the old version put no end token.
    """
    limit, shown = prompt_limit(run, call)
    is_cut, cuts_rows = run.before("0.29") and limit is not None, run.config == "DPOConfig" and run.before("0.12")
    if run.config in SAMPLING and (is_cut or run.before("0.26")):
        ending, rule = ("WithCutPrompts", "prompts") if is_cut else ("WithPlainPrompts", "plain_prompts")
        return class_of(run, "Sampled", ending, rule, limit=shown if is_cut else "0", special=not run.before("0.26"))
    if run.config == "DPOConfig" and is_cut:
        longest = "512" if run.value("max_length") is None else run.text("max_length")
        answer = f"{term(longest)} - {term(shown)}" if cuts_rows else run.text("max_completion_length")
        ending, rule = ("WithCutRows", "cut_rows") if cuts_rows else ("WithCutPrompts", "prompts")
        part = ":limit" if cuts_rows and run.value("truncation_mode") == "keep_start" else "-limit:"
        values = {"answer": "None" if answer == "-1" else answer, "longest": longest if cuts_rows else "0"}
        return class_of(run, "DPO", ending, rule, limit=shown, part=f"prompt[{part}]", **values)
    if run.config == "SFTConfig" and run.before("0.16") and run.value("packing") is not True and takes_text:
        return class_of(run, "SFT", "WithoutEndToken", "end_token")
    return None


def class_of(run: TrlRun, name: str, ending: str, rule: str, **values) -> tuple[str, str, Change]:
    """A class of old_trainers.py with its values, without its first line."""
    text = OLD_TRAINERS.partition(f"\nclass {name}(")[2].partition("\n\n\n")[0]
    text = with_values(text.partition("\n")[2].rstrip(), version=run.version, **values)
    return ending, text, by_hand(ending, "", rule)
