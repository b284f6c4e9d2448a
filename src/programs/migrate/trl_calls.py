"""Trainers, imports and names of a script that trains with TRL."""

import ast

from programs.migrate.edits import Edit, Report, Row, by_hand
from programs.migrate.python_source import PythonSource
from programs.migrate.tables import changes, entry_at, newest, numbers
from programs.migrate.trl_arguments import add_to_call, planned, write_arguments
from programs.migrate.trl_meanings import Change
from programs.migrate.trl_models import mend_loading, name_unsloth
from programs.migrate.trl_names import BESIDE_THE_RUN, CARRIED, GONE_NAMES, GONE_TRAINERS, LOSSLESS, RENAMED, TRL_TODAY
from programs.migrate.trl_prompts import cut_prompts, text_as_it_is
from programs.migrate.trl_rewards import mend_rewards
from programs.migrate.trl_run import CONFIGS, UNKNOWN, TrlRun

PLACES = {  # the first arguments of a trainer by their places, as far as they are those of all versions
    "GRPOTrainer": ("model", "reward_funcs", "args", "train_dataset", "eval_dataset", "processing_class"),
    "RLOOTrainer": ("model", "reward_funcs", "args", "train_dataset", "eval_dataset", "processing_class"),
    "SFTTrainer": ("model", "args", "data_collator", "train_dataset", "eval_dataset"),
    "DPOTrainer": ("model", "ref_model", "args", "data_collator", "train_dataset", "eval_dataset"),
    "KTOTrainer": ("model", "ref_model", "args"),
    "OnlineDPOTrainer": ("model", "ref_model", "reward_funcs"),
    "RewardTrainer": ("model", "args", "data_collator", "train_dataset", "eval_dataset"),
}
NEW_ARGUMENTS = {"tokenizer": "processing_class", "reward_model": "reward_funcs", "config": "args"} | {
    "reward_processing_class": "reward_processing_classes"
}
ARGUMENTS_WITHOUT_EQUAL = {"judge": "a reward function that asks the judge", "model_init": "model="}
COPYING = {"replace", "deepcopy", "copy", "make", "partial"}  # calls that make a config of another one


def trainer_calls(source: PythonSource) -> list[tuple[str, ast.Call]]:
    """Calls of TRL's trainers, and of the script's own classes that are made of one."""
    calls = [(name, call) for name in CONFIGS for call in source.calls.get(name, [])]
    for name, definition in source.definitions.items():
        for base in getattr(definition, "bases", []):
            if source.name_of(base) in CONFIGS:
                calls += [(source.name_of(base), call) for call in source.calls.get(name, [])]
    return sorted(calls, key=lambda pair: source.span(pair[1]))


def config_call(source: PythonSource, trainer: str, call: ast.Call) -> tuple[ast.Call | None, ast.expr | None]:
    """(The call that makes the trainer's args, what stands there)."""
    arguments, _ = source.arguments(call)
    places = PLACES.get(trainer, ())
    node = next((arguments[n].value for n in ("args", "config") if n in arguments), None)
    if node is None and "args" in places and len(call.args) > places.index("args"):
        node = call.args[places.index("args")]
    made = source.resolved(node)
    if isinstance(made, ast.Name):  # bound more than once, or changed behind its call
        makers = [
            n.value
            for n in ast.walk(source.tree)
            if isinstance(n, ast.Assign)
            and isinstance(n.value, ast.Call)
            and getattr(n.targets[0], "id", "") == made.id
        ]
        made = makers[0] if len(makers) == 1 else made
    return (made if isinstance(made, ast.Call) and is_config(source, made) else None), node


def is_config(source: PythonSource, call: ast.Call) -> bool:
    name = source.name_of(call)
    return name in CONFIGS.values() or name == "TrainingArguments" or config_base(source, name) is not None


def config_base(source: PythonSource, name: str) -> str | None:
    """TRL's config under a class of the script."""
    bases = getattr(source.definitions.get(name), "bases", [])
    return next((source.name_of(b) for b in bases if source.name_of(b) in CONFIGS.values()), None)


class TrlMigration:
    """One script from one version of TRL to the newest."""

    def __init__(self, source: PythonSource, version: str):
        self.source, self.version, self.report = source, version, Report()
        self.runs: list[TrlRun] = []
        self.imports: dict[str, set[str]] = {"trl": set(), "transformers": set()}
        self.done: set[int] = set()

    def migrate(self) -> Report:
        for trainer, call in trainer_calls(self.source):
            if trainer in GONE_TRAINERS or (trainer == "RLOOTrainer" and numbers(self.version) < (0, 22)):
                self.carry_over(trainer, call)
            else:
                self.trainer(trainer, call)
        self.lone_configs()
        self.imports["transformers"] |= mend_loading(self.source, self.version, self.report)
        name_unsloth(self.source, self.report)
        self.names()
        self.add_imports()
        return self.report

    def lone_configs(self) -> None:
        """Configs that no trainer of this file takes, as those that a function returns."""
        for config in CONFIGS.values():
            for call in self.source.calls.get(config, []):
                if id(call) in self.done or config in ("PPOConfig", "PPOv2Config"):
                    continue
                run = TrlRun(self.source, config, self.version, call)
                plan = planned(run, self.report)
                if cut_prompts(run, "", plan, Report()) and run.has("max_prompt_length"):
                    place, shown = self.source.place(self.source.span(call)[0]), run.text("max_prompt_length")
                    why = "prompts are no longer cut, and the trainer of this config cannot be seen"
                    nearest = "rows that are short enough, or this number in the class that cuts prompts"
                    self.report.refuse(place, f"max_prompt_length={shown}", why, nearest)
                self.config(run, call, plan)

    def trainer(self, trainer: str, call: ast.Call) -> None:
        source, report = self.source, self.report
        config = CONFIGS[trainer]
        made, node = config_call(source, trainer, call)
        arguments, unseen = source.arguments(call)
        run = TrlRun(source, config, self.version, made)
        moved = self.moved_arguments(trainer, arguments, run)
        plan = planned(run, report)
        base = source.code(call.func)
        new_class = cut_prompts(run, base, plan, report) or text_as_it_is(run, base, moved, arguments)
        plan |= moved
        place = source.place(source.span(call)[0])
        model = arguments["model"].value if "model" in arguments else next(iter(call.args), None)
        is_path = isinstance(source.resolved(model), ast.Constant)
        if config == "GRPOConfig" and run.before("0.18") and run.value("beta") != 0 and not is_path:
            report.note(by_hand("", "reference").why)
        first = PLACES.get(trainer, ())[: 2 if trainer == "DPOTrainer" and run.before("0.13") else None]
        if len(call.args) > len(first):
            shown, why = source.code(call.args[len(first)]), f"{trainer}'s arguments have other places today"
            report.refuse(place, shown, why, "NAME=VALUE for each argument")
        if made is not None and id(made) not in self.done:
            self.config(run, made, plan)
        elif made is None and node is None and not unseen:
            self.add_config(run, trainer, call, plan)
        elif made is None:
            self.unseen_config(run, place, node, unseen, new_class)
        self.edit_trainer(trainer, call, arguments, new_class)
        if new_class and "self.longest_prompt" in new_class:
            self.set_longest_prompt(run, call)
        methods = [x.name for x in getattr(source.definitions.get(base), "body", []) if isinstance(x, ast.FunctionDef)]
        if overridden := [name for name in methods if name != "__init__"]:
            why = f"written for the {trainer} of {self.version}, whose methods it replaces"
            report.refuse(place, f"{base}.{', '.join(overridden)}", why, "a comparison with the methods of today's")
        if trainer == "RewardTrainer" and "input_ids_chosen" in source.text:
            nearest = "columns chosen and rejected of text or messages; or token ids as chosen_ids and rejected_ids"
            report.refuse(place, "input_ids_chosen", "RewardTrainer tokenizes, or takes other columns", nearest)
        if config in ("GRPOConfig", "RLOOConfig", "OnlineDPOConfig"):
            rewards = arguments["reward_funcs"].value if "reward_funcs" in arguments else None
            if rewards is None and "reward_funcs" in PLACES.get(trainer, ()) and len(call.args) > 1:
                rewards = call.args[1]
            mend_rewards(source, rewards, report)

    def set_longest_prompt(self, run: TrlRun, call: ast.Call) -> None:
        """Give the class that cuts prompts a limit that only the function of the trainer knows."""
        source, node, statement = self.source, run.node("max_prompt_length"), self.source.statement_of(call)
        start = source.span(statement)[0]
        if source.function_of(node) is not source.function_of(call) or source.text[:start].split("\n")[-1].strip():
            shown = f"max_prompt_length={source.code(node)}"
            nearest = "longest_prompt = NUMBER in the class that cuts prompts"
            self.report.refuse(source.place(start), shown, "known inside a function only", nearest)
            return
        name = next(edit.text for edit in reversed(self.report.edits) if edit.start == source.span(call.func)[0])
        text = f"{name}.longest_prompt = {source.code(node)}\n{' ' * statement.col_offset}"
        self.report.edit(start, start, text)

    def unseen_config(self, run: TrlRun, place: str, node, unseen: list, new_class: str | None) -> None:
        """Say that the settings of a trainer cannot be seen, and where to look for them."""
        shown = self.source.code(node) if node is not None else f"**{self.source.code(unseen[0])}"
        makers = self.source.bound_to(getattr(node, "id", "")) or [node]
        nearest = (
            f"the YAML file or command line that it is read from: migrate.py FILE.yaml --config_class {run.config}"
        )
        calls = [maker for maker in makers if isinstance(maker, ast.Call)]
        if any(self.source.name_of(call) in COPYING or is_config(self.source, call) for call in calls):
            nearest = f"one call {run.config}(…) with all settings"
        self.report.refuse(place, f"args={shown}", "made at run time: its settings cannot be seen", nearest)
        limit = run.value("max_prompt_length")
        if new_class and isinstance(limit, int):
            why = f"prompts are cut to {limit}, the default then, as the settings cannot be seen"
            self.report.refuse(
                place, "max_prompt_length", why, f"the number of the settings for the {limit} of the class"
            )

    def config(self, run: TrlRun, call: ast.Call, plan: dict[str, Change]) -> None:
        """Edit the call of a config, once."""
        self.done.add(id(call))
        plan = plan or planned(run, self.report)
        add_to_call(run, call, write_arguments(run, plan, self.report), self.report)
        self.runs.append(run)
        for change in self.source.hidden_changes(call):
            place, shown = self.source.place(self.source.span(change)[0]), self.source.code(change)
            self.report.refuse(place, shown, "settings that cannot be seen here", f"arguments of {run.config}(…)")
        if self.source.name_of(call) == "TrainingArguments":
            start, end = self.source.span(call.func)
            row = Row(f"{run.config}(…)", "0.13", "the trainer's own class, which has its settings", "other defaults")
            self.report.edit(start, end, run.config, row)
            self.imports["trl"].add(run.config)

    def add_config(self, run: TrlRun, trainer: str, call: ast.Call, plan: dict[str, Change]) -> None:
        """Give a trainer without args a config with the old defaults."""
        self.runs.append(run)
        additions = [change for change in plan.values() if change.text is not None]
        if not additions:
            return
        model = self.source.arguments(call)[0].get("model")
        try:
            name = str(self.source.value(model.value)).split("/")[-1] if model else "trainer"
        except ValueError:
            name = "trainer"
        folder = f'"{name}-{trainer.removesuffix("Trainer")}"'
        inside = ", ".join(f"{c.new_name or c.name}={c.text}" for c in additions)
        start = Row(
            f"args={run.config}(output_dir={folder}, …)", newest("trl"), "defaults then, as none were given", ""
        )
        rows = [(f"args={run.config}(output_dir={folder}, {inside})", start)]
        self.report.edits += self.source.additions(call, rows)
        end = self.source.span(call)[1]
        for change in additions:
            self.report.edit(end, end, "", change.row)
        self.imports["trl"].add(run.config)

    def moved_arguments(self, trainer: str, arguments: dict, run: TrlRun) -> dict[str, Change]:
        """Arguments of the trainer that are the config's today; the trainer's won over it."""
        table, moved = changes("trl")["trainers"].get(trainer, {}), {}
        for name, argument in arguments.items():
            entry = entry_at(table.get(name, []), newest("trl"))
            if not entry or not entry.get("gone") or name in (*NEW_ARGUMENTS, *LOSSLESS, *ARGUMENTS_WITHOUT_EQUAL):
                continue
            new, text = RENAMED.get(name) or name, self.source.code(argument.value)
            run.of_trainer[name] = argument
            row = Row(f"{new}={text}", entry["since"], "an argument of the config now", "TypeError")
            if name != "max_prompt_length" and new not in run.arguments:  # cut_prompts has that one
                moved[new] = Change(new, text, row)
        return moved

    def edit_trainer(self, trainer: str, call: ast.Call, arguments: dict, new_class: tuple[str, str] | None) -> None:
        source, report = self.source, self.report
        table = changes("trl")["trainers"].get(trainer, {})
        for name, argument in arguments.items():
            entry = entry_at(table.get(name, []), newest("trl"))
            if name == "tokenizer":
                entry = {"since": "0.12", "gone": True}
            if not entry or not entry.get("gone"):
                continue
            since, new = entry["since"], NEW_ARGUMENTS.get(name)
            if new and new not in arguments:
                text = f'"{new}"' if argument.quoted else new
                row = Row(f"{new}={source.code(argument.value)}", since, f"the new name of {name}", "TypeError")
                report.edit(argument.start, argument.name_end, text, row)
                continue
            if name in ARGUMENTS_WITHOUT_EQUAL:
                report.refuse(source.place(argument.start), name, f"gone since {since}", ARGUMENTS_WITHOUT_EQUAL[name])
            row = Row("", since, f"{name} is no argument of {trainer}", "TypeError")
            report.edit(*source.removal(argument), "", row)
        if trainer == "SFTTrainer" and "formatting_func" in arguments and numbers(self.version) < (0, 17):
            self.format_rows(arguments)
        if new_class:
            name = self.insert_class(trainer, call, new_class)
            start, end = source.span(call.func)
            row = by_hand(f"{name}(…)", "end_token" if trainer == "SFTTrainer" else "prompts")
            report.edit(start, end, name, row)

    def format_rows(self, arguments: dict) -> None:
        """A formatting_func that took a batch and returned its texts, for one row."""
        argument, source = arguments["formatting_func"], self.source
        function = source.definitions.get(source.code(argument.value))
        nodes = ast.walk(function) if function else []
        returned = [source.resolved(n.value) for n in nodes if isinstance(n, ast.Return)]
        lists = any(isinstance(n, ast.List | ast.ListComp) for n in returned) or any(
            isinstance(n, ast.Call) and getattr(n.func, "attr", "") == "append"
            for n in ast.walk(function or ast.Pass())
        )
        packs = any(run.value("packing") not in (False, None) for run in self.runs)
        if lists or (numbers(self.version) < (0, 15) and not packs):
            text = f"lambda row: {source.code(argument.value)}({{key: [value] for key, value in row.items()}})[0]"
            row = Row("formatting_func=lambda row: …[0]", "0.17", "it took a batch; now it takes a row", "an error")
            self.report.edit(*source.span(argument.value), text, row)

    def insert_class(self, trainer: str, call: ast.Call, text: str) -> str:
        """Put a class behind the imports at the top of the file, or behind the script's own trainer; returns its name.

        A class of the same text serves several trainers.
        """
        source, base = self.source, self.source.code(call.func)
        stem = base.split(".")[-1] + ("WithoutEndToken" if trainer == "SFTTrainer" else "WithCutPrompts")
        definition, (_, _, statement) = (
            source.definitions.get(base),
            source.imports.get(base.split(".")[0], ("", "", None)),
        )
        if definition is None and statement not in source.tree.body:  # imported inside a function
            text = f"\nfrom trl import {trainer}{f' as {base}' if base != trainer else ''}{text}"
        for name in (stem, *(f"{stem}{number}" for number in range(2, 10))):
            written = text.rstrip("\n").replace("{name}", name)
            others = [edit.text for edit in self.report.edits if f"class {name}(" in edit.text]
            if any(written.strip() in text for text in others):
                return name
            if not others:
                break
        before = [n for n in source.tree.body if isinstance(n, ast.Import | ast.ImportFrom) and n.lineno < call.lineno]
        before += [n for n in source.tree.body if n is definition]
        if before:
            line_end = source.text.find("\n", max(source.span(node)[1] for node in before))
            place = len(source.text) if line_end < 0 else line_end
        else:  # before the first statement behind a docstring
            place = source.span(source.tree.body[ast.get_docstring(source.tree) is not None])[0]
            written = written.strip("\n") + "\n\n\n"
        self.report.edit(place, place, written, None)
        return name

    def carry_over(self, trainer: str, call: ast.Call) -> None:
        """A trainer that is gone: the command of this bundle with its settings."""
        source, config = self.source, CONFIGS[trainer]
        calls = source.calls.get(config, [])
        run = TrlRun(source, config, self.version, calls[0] if calls else None)
        flags = {}
        for flag, names in CARRIED.items():
            name = next((n for n in names if run.has(n)), None)
            if name and run.value(name) is not UNKNOWN:
                flags[flag] = run.value(name)
        target = GONE_TRAINERS.get(trainer, "scripts/ppo_train.py --advantage rloo")
        nearest = " ".join([f"python {target}", *(f"--{flag} {value}" for flag, value in flags.items())])
        carried = {name for names in CARRIED.values() for name in names}
        beside = [
            name for name in run.arguments if name not in (carried | BESIDE_THE_RUN) or run.value(name) is UNKNOWN
        ]
        if beside:
            nearest += f" (see --help for {', '.join(beside)})"
        why = f"{trainer} of {self.version} has no successor in TRL"
        if trainer == "RLOOTrainer":
            why = by_hand("", "rloo", trainer=trainer, version=self.version).why
        self.report.refuse(source.place(source.span(call)[0]), trainer, why, nearest)
        self.done |= {id(c) for c in calls}

    def names(self) -> None:
        """Imports from TRL that moved or are gone."""
        for node in ast.walk(self.source.tree):
            if not isinstance(node, ast.ImportFrom) or not (node.module or "").split(".")[0] == "trl":
                continue
            moved = {}
            for alias in node.names:
                entry = entry_at(changes("trl")["modules"].get(alias.name, []), newest("trl"))
                is_gone_today = not entry or entry.get("gone")
                known = {*TRL_TODAY, *CONFIGS, *CONFIGS.values()}  # a trainer that is gone is said at its call
                is_known = alias.name in known or node.module not in ("trl", "trl.trainer")
                if is_gone_today and alias.name != "*" and (GONE_NAMES.get(alias.name) or not is_known):
                    place = self.source.place(self.source.span(node)[0])
                    nearest = (
                        GONE_NAMES.get(alias.name) or "its copy in the script, or trl.experimental, which has some"
                    )
                    self.report.refuse(place, alias.name, "no longer in trl", nearest)
                elif not is_gone_today and ("experimental" in entry["at"] or "experimental" in node.module):
                    if entry["at"] != node.module:
                        moved.setdefault(entry["at"], []).append((alias, entry["since"]))
            if moved:
                self.move_imports(node, moved)

    def move_imports(self, node: ast.ImportFrom, moved: dict[str, list]) -> None:
        """Write a statement again: what stays, and a line for each new module."""
        gone = [alias for pairs in moved.values() for alias, _ in pairs]
        kept = [self.source.code(alias) for alias in node.names if alias not in gone]
        lines = [f"from {node.module} import {', '.join(kept)}"] if kept else []
        lines += [f"from {at} import {', '.join(self.source.code(a) for a, _ in pairs)}" for at, pairs in moved.items()]
        start, end = self.source.span(node)
        indent = " " * node.col_offset
        since = next(iter(moved.values()))[0][1]
        row = Row("; ".join(lines[bool(kept) :]), since, "its new place", "ImportError")
        self.report.edit(start, end, f"\n{indent}".join(lines), row)

    def add_imports(self) -> None:
        """Import the names that the edits use."""
        for module, names in self.imports.items():
            for name in sorted(names - {*self.source.imports}):
                nodes = [
                    n
                    for n in ast.walk(self.source.tree)
                    if isinstance(n, ast.ImportFrom) and n.module == module and n.level == 0
                ]
                row = Row(f"from {module} import {name}", newest("trl"), "used by the lines below", "NameError")
                if nodes:
                    end = self.source.span(nodes[0].names[-1])[1]
                    self.report.edits.insert(0, Edit(end, end, f", {name}", row))  # before a class at that place
                    continue
                first = next((n for n in self.source.tree.body if isinstance(n, ast.Import | ast.ImportFrom)), None)
                start = self.source.span(first)[0] if first else 0
                self.report.edit(start, start, f"from {module} import {name}\n", row)
