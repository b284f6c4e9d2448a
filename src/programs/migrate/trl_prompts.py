"""Prompts that an old TRL cut: a class in the new script that does it, as today's trainers do not."""

from programs.migrate.edits import Report, Row
from programs.migrate.trl_meanings import Change
from programs.migrate.trl_run import SAMPLING, UNKNOWN, TrlRun

SAMPLED = '''

class {name}({trainer}):
    """Prompts as TRL {version} made them."""

    def _tokenize_prompts(self, prompts):
        if isinstance(prompts[0], str):  # plain text{plain}
            ids, images, fields = self.processing_class(text=prompts{special})["input_ids"], None, {}
        else:
            ids, images, fields = super()._tokenize_prompts(prompts)
        return [row[-{limit}:] for row in ids], images, fields
'''
PAIRED = '''

class {name}({trainer}):
    """Prompts cut on the left, as in TRL {version}."""

    def _prepare_dataset(self, *args, **kwargs):
        rows = super()._prepare_dataset(*args, **kwargs)
        return rows.map(lambda row: {body})
'''

TEXTS = '''

class {name}({trainer}):
    """Texts without an end token behind them, as in TRL {version}."""

    def _prepare_dataset(self, rows, tokenizer, args, packing, formatting_func, *rest):
        text = formatting_func or (lambda row: row[args.dataset_text_field])
        rows = rows.map(lambda row: {"input_ids": tokenizer(text(row))["input_ids"]}, remove_columns=rows.column_names)
        return super()._prepare_dataset(rows, tokenizer, args, packing, None, *rest)
'''


def cut_prompts(run: TrlRun, trainer: str, plan: dict[str, Change], report: Report) -> str | None:
    """A class under the expression `trainer` that cuts prompts as the old version did; None where it cut none.

    Takes the settings that are gone out of the plan's way.
    """
    names = [n for n in ("max_prompt_length", "max_target_length") if run.in_config(n)]
    for name in names:
        plan[name] = Change(name, None, Row("", "0.28", f"no trainer has {name}", "TypeError"))
    limit, version = run.value("max_prompt_length"), run.version
    shown = run.text("max_prompt_length")
    if limit is UNKNOWN and not run.source.is_global(run.node("max_prompt_length")):
        shown = "self.longest_prompt"  # the class stands outside the function: the migration sets it there
    if run.config in SAMPLING:
        has_bos = not run.before("0.26")
        if (limit is None and has_bos) or not run.before("0.29"):
            return None
        special = "" if has_bos else ", add_special_tokens=False"
        keep = "0" if limit is None else f"({shown} or 0)" if limit is UNKNOWN else shown
        text = SAMPLED.replace("[row[-{limit}:] for row in ids]", "ids") if limit is None else SAMPLED
        values = {"special": special, "plain": "" if has_bos else ": no BOS token", "limit": keep}
    elif run.config == "DPOConfig" and run.before("0.29"):
        if limit is None and run.before("0.12"):
            limit, shown = 128, "128"
        if limit in (None, -1):
            return None
        answer = run.text("max_completion_length") if run.value("max_completion_length") not in (None, -1) else ""
        body = f'{{"prompt_ids": row["prompt_ids"][-{shown}:]}}'
        if answer:
            cuts = "".join(f', "{key}": row["{key}"][:{answer}]' for key in ("chosen_ids", "rejected_ids"))
            body = body[:-1] + cuts + "}"
        text, values = PAIRED, {"body": body}
    else:
        if names and limit not in (None, -1):
            report.refuse("", f"max_prompt_length={shown}", "prompts are no longer cut", "rows that are short enough")
        return None
    for key, value in (values | {"trainer": trainer, "version": version}).items():
        text = text.replace(f"{{{key}}}", value)
    return text


def text_as_it_is(run: TrlRun, trainer: str, moved: dict, arguments: dict) -> str | None:
    """A class that tokenizes plain texts as SFT did before 0.16; None where it makes no difference."""
    has_text = run.has("dataset_text_field") or "dataset_text_field" in moved or "formatting_func" in arguments
    packs = run.value("packing") not in (False, None)
    if run.config != "SFTConfig" or not run.before("0.16") or packs or not has_text:
        return None
    return TEXTS.replace("{trainer}", trainer).replace("{version}", run.version)
