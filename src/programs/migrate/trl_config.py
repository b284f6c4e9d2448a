"""What becomes of the settings of a TRL run: names that are gone, defaults that changed, prompts that were cut."""

from programs.migrate.edits import Change, Report
from programs.migrate.tables import ABSENT, changes, default_at, gone_entry, newest, since_of
from programs.migrate.trl_meanings import MEANINGS
from programs.migrate.trl_names import BESIDE_THE_RUN, LOSSLESS, SAMPLING
from programs.migrate.trl_run import UNKNOWN, TrlRun

ELSEWHERE = {"warmup_ratio", "group_by_length", "adafactor", "rpo_alpha", "max_prompt_length", "max_target_length"}
SAME = ([None, 0, -1], [True, "group"], [False, "none"])  # values of top_k and scale_rewards that are one setting
CLASS = '''
class {name}({base}):
    """Made as by TRL {version}."""

'''
SAMPLED = """
    def _tokenize_prompts(self, prompts):
        if isinstance(prompts[0], str):
            ids, images, fields = self.processing_class(text=prompts{special})["input_ids"], None, {}
        else:
            ids, images, fields = super()._tokenize_prompts(prompts)
        return {rows}, images, fields
"""
PAIRED = """
    def _prepare_dataset(self, *args, **kwargs):
        rows = super()._prepare_dataset(*args, **kwargs)
        return rows.map(lambda row: {{cuts}})
"""
TEXTS = """
    def _prepare_dataset(self, rows, tokenizer, args, packing, formatting_func, *rest):
        text = formatting_func or (lambda row: row[args.dataset_text_field])
        rows = rows.map(lambda row: {"input_ids": tokenizer(text(row))["input_ids"]}, remove_columns=rows.column_names)
        return super()._prepare_dataset(rows, tokenizer, args, packing, None, *rest)
"""


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
    for name in [n for n in run.nodes if n not in ELSEWHERE and n not in run.of_trainer]:
        gone = gone_entry(run.config, name)
        if not gone:
            continue
        since, new, text = since_of(run.config, name, run.version), gone.get("renamed"), run.text(name)
        if new and new not in run.arguments and name not in LOSSLESS:
            plan[name] = Change(new, text, since, f"the new name of {name}")
            continue
        is_lost = not (name in LOSSLESS or new or run.value(name) in (None, False, ""))
        plan[name] = Change(name, None, since, f"{name} is gone{', and the run is the same' * (not is_lost)}")
        if is_lost:
            place = run.source.place(run.source.start(run.nodes[name]))
            report.refuse(place, f"{name}={text}", f"gone since {since}", "leaving it out")
    return plan


def default_changes(run: TrlRun) -> dict[str, Change]:
    """Defaults that changed and that the script does not give, with their old values."""
    tables, plan = changes("trl")["configs"], {}
    for name in dict.fromkeys([*tables.get(run.config, {}), *tables["TrainingArguments"]]):
        old, new = default_at(run.config, name, run.version), default_at(run.config, name, newest("trl"))
        is_absent = old is ABSENT or new is ABSENT
        if is_absent or run.has(name) or name in BESIDE_THE_RUN or is_same(name, old, new) or is_idle(run, name):
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
    if name == "use_bias_correction_kl":
        return run.value("beta") == 0
    if name == "f_alpha_divergence_coef":
        return "alpha" not in str(run.value("f_divergence_type")).lower()
    return name == "bf16" and run.has("fp16") and run.value("fp16") is not False


def planned(run: TrlRun, report: Report) -> dict[str, Change]:
    """{argument: what becomes of it}, with those to add."""
    plan = given_changes(run, report) | default_changes(run)
    for meaning in MEANINGS:
        plan |= dict(meaning(run, report))
    for name in ("max_prompt_length", "max_target_length"):
        if run.in_config(name):
            plan[name] = Change(name, None, "0.28", f"no trainer has {name}")
    return plan


def prompt_limit(run: TrlRun):
    """(Tokens that the old version cut prompts to or None, their source)."""
    limit = run.value("max_prompt_length")
    if run.config == "DPOConfig" and limit is None and run.before("0.12"):
        limit = 128
    return (None if limit == -1 else limit), run.text("max_prompt_length") if limit is UNKNOWN else str(limit)


def old_trainer(run: TrlRun, takes_text: bool) -> tuple[str, str] | None:
    """(Name's end, body) of a class that makes prompts or texts as the old version did; None without a difference.

    `takes_text`: the rows of SFT are plain texts, to which the old version put no end token.
    """
    limit, shown = prompt_limit(run)
    if run.config in SAMPLING and run.before("0.29") and (limit is not None or run.before("0.26")):
        special = ", add_special_tokens=False" if run.before("0.26") else ""
        cut = f"({shown} or 0)" if limit is UNKNOWN else shown
        rows = "ids" if limit is None else f"[row[-{cut}:] for row in ids]"
        return "WithCutPrompts", SAMPLED.replace("{special}", special).replace("{rows}", rows)
    if run.config == "DPOConfig" and run.before("0.29") and limit is not None:
        cuts = f'"prompt_ids": row["prompt_ids"][-{shown}:]'
        if run.value("max_completion_length") not in (None, -1):
            answer = run.text("max_completion_length")
            cuts += "".join(f', "{key}": row["{key}"][:{answer}]' for key in ("chosen_ids", "rejected_ids"))
        return "WithCutPrompts", PAIRED.replace("{cuts}", cuts)
    if run.config == "SFTConfig" and run.before("0.16") and not run.is_on("packing") and takes_text:
        return "WithoutEndToken", TEXTS
    return None
