"""A script that trains with TRL: its trainers, their configs and their imports."""

import ast
import math
import re
from dataclasses import replace

from parts.data.trl_names import trl_defaults, trl_today
from parts.data.trl_scripts import BASE, CONFIGS, config_call, trainer_calls, trainer_names
from parts.foundation.user_scripts import DEFS, NAMED, Argument, PythonSource
from programs.migrate.edits import DEFAULT, RULES, UNSURE, Change, Report, edit_arguments, edit_call
from programs.migrate.tables import NAMES, changes, end_of, gone_entry, newest, numbers, since_of, value_at
from programs.migrate.trainer_parts import insert_class, mend_loading, mend_model_config, mend_rewards, name_unsloth
from programs.migrate.trl_settings import (
    NO_CALLS,
    SAMPLING,
    UNKNOWN,
    TrlRun,
    default_changes,
    meanings,
    old_methods,
    old_rows,
    planned,
    prompt_limit,
    python,
)

MOVED = {"neftune_noise_alpha", "max_prompt_length", "max_target_length"}  # also moved to the config, by no table


def lone_configs(source: PythonSource, taken: set[int]) -> list[tuple[str, ast.Call]]:
    """(Config, call) of configs that no trainer here takes, such as a function's result; `taken`: ids of the others."""
    calls = [(config, call) for config in [*CONFIGS.values(), BASE] for call in source.calls.get(config, [])]
    return [(config, call) for config, call in calls if id(call) not in taken and not config.startswith("PPO")]


class TrlMigration:
    """One script from one version of TRL to the newest."""

    def __init__(self, source: PythonSource, version: str):
        self.source, self.version, self.report = source, version, Report()
        self.runs: list[tuple[TrlRun, dict[str, Change]]] = []  # with the changes of their settings
        self.done: set[int] = set()  # ids of config calls that are edited
        self.classes: dict[tuple, str] = {}  # {what an added class is made of: its name}

    def migrate(self) -> Report:
        source, report = self.source, self.report
        for trainer, call in trainer_calls(source):
            is_old_rloo = trainer == "RLOOTrainer" and numbers(self.version) < (0, 22)
            if is_old_rloo or trainer in ("PPOTrainer", "PPOv2Trainer"):
                self.carry_over(trainer, call)
            else:
                self.trainer(trainer, call)
        for config, call in lone_configs(source, self.done):
            self.lone_config(TrlRun(source, config, self.version, call))
        if mend_loading(source, self.version, report):
            self.add_import("transformers", "BitsAndBytesConfig")
        for run, settings in self.runs:
            self.edit_reads(run, settings)
        mend_model_config(source, report)
        name_unsloth(source, report)
        self.say_classes()
        self.move_names()
        return report

    def refuse(self, argument: Argument, why: str, nearest: str = "leaving it out") -> None:
        place, text = self.source.place(argument.start), f"{argument.name}={self.source.code(argument.value)}"
        self.report.refuse(place, text, why, nearest)

    def trainer(self, trainer: str, call: ast.Call) -> None:
        """Migrate one call of a trainer, with its config, rewards and class."""
        source, report, config = self.source, self.report, CONFIGS[trainer]
        made, node = config_call(source, call, NAMES["places"].get(trainer, ()))
        arguments, unseen = source.arguments(call)
        plan, moved, of_trainer = self.own_arguments(trainer, call, arguments, made or node)
        given = {argument.name: argument.value for argument in arguments}
        unseen_args = None if made else node or next(iter(unseen), None)
        run = TrlRun(source, config, self.version, made, of_trainer, unseen_args, call)
        settings = {change.name: change for change in moved.values()} | planned(run, report)
        if made is not None:
            for hidden in unseen:
                why = f"arguments of {trainer} that cannot be seen here"
                report.refuse(source.place(hidden), source.code(hidden), why, "NAME=VALUE for each argument")
            self.hoist(run, call, moved, settings, plan)
            self.config(run, settings)
        elif unseen_args is None:
            plan |= self.new_config(run, trainer, call, settings)
        else:
            self.say_unseen(run, call, f"args={source.code(unseen_args)}", settings)
            edit_arguments(source, run.arguments, settings, report)
            self.runs.append((run, settings))
            for name, change in moved.items():
                nearest = f"{change.setting} in {config}"
                report.refuse(source.place(call), name, "an argument of the config, which cannot be seen", nearest)
                del plan[name]
        if trainer == "SFTTrainer" and "formatting_func" in given and run.before("0.17"):
            plan |= self.format_rows(run, given["formatting_func"])
        edit_call(source, call, plan, report)
        self.restore(run, call, {*given})
        self.say_differences(run, trainer, call)
        for node in [x for x in source.nodes if isinstance(x, ast.Attribute) and x.attr == "tokenizer"]:
            if isinstance(node.ctx, ast.Load) and source.is_object(node.value, call):
                why, end = f"{source.code(node)} is gone", source.span(node)[1]
                change = Change("processing_class", "", "transformers 5.0", why, "AttributeError")
                report.edit(end - len("tokenizer"), end, "processing_class", change)
        if config in (*SAMPLING, "OnlineDPOConfig"):
            rewards = source.resolved(source.argument(call, "reward_funcs", NAMES["places"].get(trainer, ())))
            mend_rewards(source, rewards if run.before("0.18") else None, report)

    def restore(self, run: TrlRun, call: ast.Call, given: set[str]) -> None:
        """Add a class that does what no setting restores; `given`: names of the trainer's arguments."""
        source, report = self.source, self.report
        takes_text = bool({"dataset_text_field", "formatting_func"} & {*run.nodes, *given})
        field = run.value("dataset_text_field") or UNKNOWN
        takes_text = takes_text or any(getattr(node, "value", None) == field for node in source.nodes)
        if (rows := old_rows(run, takes_text, call)) and UNSURE in rows[0]:
            why = f"set in a branch, or changed later: {rows[1].why}"
            name = re.search(rf"(\w+){re.escape(UNSURE)}", rows[0])[1]
            report.refuse(source.place(call), name, why, "a trainer for each value, then migrate.py again")
            rows = None
        elif rows and run.unseen and (limit := prompt_limit(run)[0]) and not run.has("max_prompt_length"):
            why = f"prompts are cut to {limit}, the default then, as the settings cannot be seen"
            also = ", and for longest" if rows[1].why == RULES["cut_rows"]["why"] else ""
            nearest = f"your number for the {limit} of the class{also}"
            report.refuse(source.place(call), "max_prompt_length", why, nearest)
        if methods := ([rows] if rows else []) + old_methods(run):
            replaced = {method for _, _, names in self.replaced() for method in names}
            defined = [{*re.findall(r"^    (?:def )?(\w+)(?:\(| = )", text, re.M)} for text, _ in methods]
            kept = [method for method, names in zip(methods, defined, strict=True) if not replaced & names]
            for _, row in [method for method in methods if method not in kept]:
                why = f"{row.why}; the script's own method stays"
                report.refuse(source.place(call), row.name, why, "the same in that method")
            if kept:
                insert_class(run, call, kept, self.classes, report)
        elif run.config == "SFTConfig" and run.before("0.16") and run.value("packing") is not True:
            report.note_rule(RULES["end_token"])

    def own_arguments(self, trainer: str, call: ast.Call, arguments: list[Argument], made) -> tuple[dict, dict, dict]:
        """({argument: its change}, {argument: the config's new setting}, {setting: value that overrode the config})."""
        is_own = self.source.code(call.func) in self.source.definitions  # a subclass may take more
        table, plan, moved = changes("trl")["trainers"].get(trainer, {}), {}, {}
        of_trainer, names = {}, {argument.name for argument in arguments}
        for argument in arguments:
            name, value, text = argument.name, argument.value, self.source.code(argument.value)
            entry = end_of(table.get(name, {}))
            if name == "tokenizer":  # deprecated, then removed from all trainers
                entry = {"since": "0.12", "renamed": "processing_class"}
            if not entry:
                if not is_own and name not in trl_today("trainers").get(trainer, [name]):
                    self.refuse(argument, f"no {trainer} of TRL has it")
                continue
            since, new = entry["since"], entry["renamed"]
            is_moved = (new.startswith("args.") or name in MOVED) and name not in NAMES["lossless"]
            new = new.removeprefix("args.") or name
            plan[name] = Change(name, None, since, f"{name} is not an argument of {trainer}")
            if is_moved:
                is_read = isinstance(value, ast.Attribute) and value.attr in (name, new)  # beta=args.beta
                if text != "None" and not (is_read and self.source.is_object(value.value, made)):
                    of_trainer[new] = value
                    if not new.startswith(("max_prompt", "max_target")):  # a class that migration adds cuts prompts
                        moved[name] = Change(new, text, since, "an argument of the config now")
            elif new != name and new not in names:
                plan[name] = Change(new, text, since, f"the new name of {name}")
            elif new == name and name not in NAMES["lossless"] and text not in ("None", "False"):
                self.refuse(argument, f"gone since {since}", NAMES["gone_arguments"].get(name, "leaving it out"))
        return plan, moved, of_trainer

    def hoist(self, run: TrlRun, call: ast.Call, moved: dict, settings: dict, plan: dict) -> None:
        """Refuse moved arguments whose value may differ at the config's call or at another trainer that shares it."""
        source, made = self.source, run.call
        earlier = next((plan for other, plan in self.runs if other.call is made), None)  # if trainers share it
        for name, change in moved.items():
            value, text, nearest = run.of_trainer[change.name], change.text, f"{change.setting} in {run.config}"
            why = "an argument of the config now, which another trainer takes too"
            if names := ", ".join(source.rebound(value, call, made)):
                text = None if run.value(change.name) is UNKNOWN else python(run.value(change.name))
                why = f"an argument of the config now; {names} may be another value at {source.place(made)}, or none"
                settings[change.name] = replace(change, text=text)
            is_other = earlier is not None and getattr(earlier.get(change.name), "text", None) != text
            if text is None or is_other:
                self.report.refuse(source.place(value), f"{name}={change.text}", why, nearest)
                del plan[name], settings[change.name]

    def config(self, run: TrlRun, plan: dict[str, Change]) -> None:
        """Edit a config's call and the assignments to its attributes, once."""
        source, report = self.source, self.report
        if id(run.call) in self.done:
            return
        self.done.add(id(run.call))
        for change in source.hidden_changes(run.call):
            shown = source.code(source.around(change, ast.stmt)).partition("\n")[0]
            nearest = f"arguments of {run.config}(…)"
            report.refuse(source.place(change), shown, "settings that cannot be seen here", nearest)
        for argument in run.arguments if run.config in trl_today("defaults") else []:
            if argument.name not in trl_defaults(run.config) and not gone_entry(run.config, argument.name):
                self.refuse(argument, f"no {run.config} of TRL has it")
        if run.unseen:
            shown = ", ".join(f"**{source.code(node)}" for node in run.unseen)
            added = self.say_unseen(run, run.call, shown, plan)
            plan = {name: change for name, change in plan.items() if name not in added}
        edit_call(source, run.call, plan, report)
        self.runs.append((run, plan))
        if source.name_of(run.call) == BASE != run.config:
            why = "the trainer's own class, which has its settings"
            report.edit(*source.span(run.call.func), run.config, Change(run.config, "", "0.13", why, "other defaults"))
            self.add_import("trl", run.config)

    def edit_reads(self, run: TrlRun, plan: dict[str, Change]) -> None:
        """Where the script reads a setting that is gone, put its new name or its value."""
        source, report, config = self.source, self.report, run.call or run.unseen_args
        cuts = [edit for edit in report.edits if not edit.text]
        altered = {name for name, change in plan.items() if change.source and change.name == name}
        loads = [x for x in source.nodes if isinstance(x, ast.Attribute) and isinstance(x.ctx, ast.Load)]
        loads = [x for x in loads if x.attr in altered or gone_entry(run.config, x.attr)]
        in_callback = [x for x in loads if len(self.runs) == 1 and source.code(x.value) == "args"]
        in_callback = [x for x in in_callback if "Callback" in str(source.bases(source.around(x, ast.ClassDef)))]
        for node in [x for x in loads if source.is_object(x.value, config) or x in in_callback]:
            (start, end), name, shown = source.span(node), node.attr, source.code(node)
            new, since = gone_entry(run.config, name).get("renamed"), since_of(run.config, name, run.version)
            is_known = run.value(name) is not UNKNOWN and (run.call is not None or run.has(name))
            if any(cut.start <= start and end <= cut.end for cut in cuts):
                continue
            if name in altered:
                why = f"reads {plan[name].setting} now: {plan[name].why}"
                report.refuse(source.place(node), shown, why, "what it was then, where it is read")
            elif new in trl_defaults(run.config) and name != "warmup_ratio":
                report.edit(end - len(name), end, new, Change(new, "", since, f"{shown} is gone", "AttributeError"))
            elif is_known:
                text = python(run.value(name))
                report.edit(start, end, text, Change(text, "", since, f"{shown} is gone", "AttributeError"))
            else:
                report.refuse(source.place(node), shown, f"{run.config} no longer has it", "its value")

    def lone_config(self, run: TrlRun) -> None:
        """Migrate a config whose trainer cannot be seen; say what a class would restore there."""
        settings, rows = planned(run, self.report), old_rows(run, False)
        if rows and run.has("max_prompt_length"):
            why = "prompts are no longer cut, and the trainer of this config cannot be seen"
            nearest = "rows that are short enough, or this number in a class that cuts prompts"
            shown = f"max_prompt_length={run.text('max_prompt_length')}"
            self.report.refuse(self.source.place(run.call), shown, why, nearest)
        elif rows:
            self.report.note_rule({"why": rows[1].why, "same_if": f"the trainer of {run.config} is migrated, too"})
        self.config(run, settings)

    def new_config(self, run: TrlRun, trainer: str, call: ast.Call, plan: dict[str, Change]) -> dict[str, Change]:
        """The argument `args` with the old defaults, for a trainer that has none."""
        self.runs.append((run, plan))
        added = [change.setting for change in plan.values() if change.text is not None]
        if not added:
            return {}
        arguments = ", ".join([f'output_dir="{trainer}"', *added])
        for change in plan.values():
            self.report.edit(self.source.start(call), self.source.start(call), "", change)
        self.add_import("trl", run.config)
        text, why = f"{run.config}({arguments})", "the defaults then, as none were given"
        return {"args": Change("args", text, newest("trl"), why, "today's")}

    def say_unseen(self, run: TrlRun, call: ast.Call, shown: str, settings: dict) -> dict[str, Change]:
        """Refuse settings that cannot be seen, and say where to look; returns old defaults for those not given."""
        calls = [] if run.call else sorted(self.source.calls.get(run.config, ()), key=self.source.start)
        places = ", ".join(dict.fromkeys(map(self.source.place, calls)))
        given = {*run.of_trainer, *(x.name for x in run.arguments)}
        added = {n: x for n, x in settings.items() if x.text and (n not in given or x.why == DEFAULT)}
        defaults = f"where nothing sets them, the old version had {', '.join(c.setting for c in added.values())}"
        why = "made at run time: its settings cannot be seen, no name in it is renamed"
        why += f"; {run.config}(…) is edited at {places}" if places else (f"; {defaults}" if added else "")
        nearest = f"one call {run.config}(…) with all settings, or its YAML file: migrate.py FILE.yaml --config_class"
        self.report.refuse(self.source.place(call), shown, why, f"{nearest} {run.config}")
        return added

    def say_differences(self, run: TrlRun, trainer: str, call: ast.Call) -> None:
        """Report what no edit restores: positions of arguments, overridden methods, imported classes."""
        source, report, place = self.source, self.report, self.source.place(call)
        first = NAMES["places"].get(trainer, ())[: 2 if trainer == "DPOTrainer" and run.before("0.13") else None]
        if len(call.args) > len(first):
            why = f"{trainer}'s arguments have other places today"
            report.refuse(place, source.code(call.args[len(first)]), why, "NAME=VALUE for each argument")
        for name in [n.id for n in ast.walk(source.origin(call.func)) if isinstance(n, ast.Name)]:
            if name in source.imports and source.imports[name][0].split(".")[0] != "trl":
                report.note(f"{name} is imported from {source.imports[name][0]}: whether it fits cannot be seen here")
        if trainer == "RewardTrainer" and "input_ids_chosen" in source.text:
            nearest = "columns chosen and rejected of text or messages; or token ids as chosen_ids and rejected_ids"
            report.refuse(place, "input_ids_chosen", "RewardTrainer tokenizes, or takes other columns", nearest)

    def say_classes(self) -> None:
        """Refuse classes that replace methods of a trainer, and trainers and configs that are called out of sight."""
        source, report = self.source, self.report
        seen = {name for trainer, _ in trainer_calls(source) for name in (trainer, CONFIGS[trainer])}
        names = {*CONFIGS, *CONFIGS.values()} - {*seen, *source.definitions}
        why = "called where it cannot be seen: no setting is renamed, no old default is written"
        for call in [call for call in source.calls.get("getattr", []) if call.args]:
            if source.imports.get(source.code(call.args[0]), ("",))[0] == "trl":
                report.refuse(source.place(call), source.code(call), why, "its name instead of getattr")
        nodes = [x for x in source.nodes if isinstance(x, NAMED) and isinstance(x.ctx, ast.Load)]
        for node in [node for node in nodes if source.name_of(node) in names]:
            shown, parent = source.code(node), source.parents[node]
            holder = source.parents[parent] if isinstance(parent, ast.Tuple | ast.IfExp) else parent
            kinds = ast.Call | ast.Dict | ast.List | ast.keyword
            is_value = isinstance(holder, kinds if parent is holder else kinds | ast.Assign)
            is_known = getattr(parent, "func", None) is node or source.name_of(holder) in NO_CALLS
            if is_value and not is_known and source.imports.get(shown.split(".")[0], ("trl",))[0].startswith("trl"):
                report.refuse(source.place(node), shown, why, f"a call {shown}(…) in the script")
        for node, name, methods in self.replaced():
            why = f"written for the {trainer_names(source)[name]} of {self.version}, whose methods it replaces"
            nearest = "a comparison with the methods of today's"
            report.refuse(source.place(node), f"{name}.{', '.join(methods)}", why, nearest)

    def replaced(self) -> list[tuple[ast.AST, str, list[str]]]:
        """(Place, trainer or class derived from one, methods) where the script replaces methods of a trainer."""
        source, trainers = self.source, trainer_names(self.source)
        places = [(x, source.name_of(x.value), [name]) for x, name in source.stores if name]
        for name, definition in [(x, source.definitions[x]) for x in trainers if x in source.definitions]:
            methods = [x.name for x in definition.body if isinstance(x, DEFS) and x.name != "__init__"]
            places += [(definition, name, methods)] if methods else []
        return [place for place in places if place[1] in trainers]

    def format_rows(self, run: TrlRun, given: ast.expr) -> dict[str, Change]:
        """Wrap a formatting_func that took a batch so that it takes one row; {} if it took a row."""
        source, function = self.source, self.source.resolved(given)
        nodes = [*ast.walk(source.definitions.get(source.code(given), ast.Pass()))]
        returned = [source.resolved(n.value) for n in nodes if isinstance(n, ast.Return)]
        returned += [function.body] if isinstance(function, ast.Lambda) else []
        has_list = any(isinstance(n, ast.List | ast.ListComp) for n in returned)
        appends = any(isinstance(n, ast.Call) and source.name_of(n) == "append" for n in nodes)
        if not (has_list or appends or (run.before("0.15") and not run.is_on("packing"))):
            return {}
        code = source.code(given) if isinstance(given, NAMED) else f"({source.code(given)})"
        text = f"lambda row: {code}({{key: [value] for key, value in row.items()}})[0]"
        why = "it took a batch; now it takes a row"
        return {"formatting_func": Change("formatting_func", text, "0.17", why, "an error")}

    def carry_over(self, trainer: str, call: ast.Call) -> None:
        """Refuse a trainer that TRL dropped; suggest this bundle's command with its settings."""
        config = CONFIGS[trainer]
        calls, constant = self.source.calls.get(config, []), NAMES["of_ppo"] if config.startswith("PPO") else {}
        run, flags, carried = TrlRun(self.source, config, self.version, calls[0] if calls else None), {}, set()
        for flag, names in [(flag, term.split(" * ")) for flag, terms in NAMES["carried"].items() for term in terms]:
            values = [constant.get(x) if run.value(x) is None else run.value(x) for x in names]
            if not any(x is None or x is False or x is UNKNOWN for x in values):  # defaults of that version count too
                flags.setdefault(flag, math.prod(values) if len(names) > 1 else values[0])
                carried.update(names)
        if (update := flags.pop("rows", 0)) and isinstance(run.value("batch_size"), int):  # before 0.12
            flags["minibatches"] = run.value("batch_size") // update
        left = ", ".join(f"{x.name}={self.source.code(x.value)}" for x in run.arguments if x.name not in carried)
        script = "scripts/ppo_train.py" + (" --advantage rloo" if trainer == "RLOOTrainer" else "")
        nearest = " ".join([f"python {script}", *(f"--{flag} {value}" for flag, value in flags.items())])
        nearest += f"; no flag was found for {left}" if left else ""
        nearest += f"; these are defaults of {config}, whose settings cannot be seen" if not calls else ""
        why = f"{trainer} of {self.version} has no successor in TRL"
        why = RULES["rloo"]["why"] if trainer == "RLOOTrainer" else why
        self.report.refuse(self.source.place(call), trainer, why, nearest)
        self.done |= {id(c) for c in calls}

    def home(self, module: str, name: str) -> str:
        """The module of TRL that has a name today; "" if none has."""
        history, modules = changes("trl")["modules"].get(name, {}), trl_today("modules")
        exports, is_top = changes("trl")["exports"], module in ("trl", "trl.trainer")
        inside = [x for place, names in modules.items() if f"{place}.".startswith(f"{module}.") for x in names]
        is_text = module in modules and name.endswith(("_template", "_schema"))  # of a chat, which no table lists
        if is_text or name in ["*", *(exports if is_top else inside)]:
            return module
        today = value_at(history, newest("trl"), None)
        if today and ("experimental" not in module or module in history.values()):
            return today
        if module.startswith("trl.experimental"):  # folders, whose names may change
            return module if (module.split(".")[2:3] or [name])[0] in modules["trl.experimental"] else ""
        places = ["trl"] if name in exports else [x for x, names in modules.items() if name in names]
        return places[0] if len(places) == 1 and name not in NAMES["gone_names"] else ""

    def nearest(self, name: str) -> str:
        """Advice for a name that TRL no longer has."""
        kind = re.search("Trainer$|Config$|Judge$|$", name)[0]
        old = f"an environment with trl=={self.version}: no current trainer gives the same run"
        advice = {"": "a copy of it in the script", "Judge": NAMES["gone_arguments"]["judge"]}.get(kind, old)
        return NAMES["gone_names"].get(name, advice)

    def is_edited_away(self, name: str) -> bool:
        """Whether edits replace every use of a name in the script."""
        spans = [self.source.span(x) for x in self.source.nodes if isinstance(x, ast.Name) and x.id == name]
        edits = [edit for edit in self.report.edits if edit.text]
        is_written = any(re.search(rf"\b{name}\b", edit.text) for edit in edits)
        is_read = any(not any(e.start <= start and end <= e.end for e in edits) for start, end in spans)
        return bool(spans) and not is_written and not is_read

    def move_names(self) -> None:
        """Edit imports from TRL that moved; refuse those that are gone, and uses of `trl.NAME` with a moved name."""
        source, table, nowhere = self.source, changes("trl")["modules"], NAMES["gone_names"]
        for module, name, node in source.imports.values():
            if module.startswith("transformers") and name in nowhere:
                self.report.refuse(source.place(node), name, f"no longer in {module}", nowhere[name])
        for node in [x for x in source.nodes if isinstance(x, ast.ImportFrom) and f"{x.module}.".startswith("trl.")]:
            homes, since = {node.module: []}, ""
            gone = [alias for alias in node.names if not self.home(node.module, alias.name)]
            unused = [alias for alias in gone if self.is_edited_away(alias.asname or alias.name)]
            for alias in [alias for alias in node.names if alias not in unused]:
                home = self.home(node.module, alias.name)
                homes.setdefault(home or node.module, []).append(source.code(alias))
                if home not in ("", node.module) and alias.name in table:
                    since = [*table[alias.name]][-1]
                if not home:
                    why = f"no longer in {node.module}"
                    self.report.refuse(source.place(node), alias.name, why, self.nearest(alias.name))
            lines = [f"from {home} import {', '.join(names)}" for home, names in homes.items() if names]
            if (moved := lines[bool(homes[node.module]) :]) or unused:
                why = "its new place" if moved else f"nothing uses {', '.join(map(source.code, unused))} any more"
                row = Change("; ".join(moved), "", since or newest("trl"), why, "ImportError")
                self.report.edit(*source.span(node), f"\n{' ' * node.col_offset}".join(lines) or "pass", row)
        modules = [name for name, (module, original, _) in source.imports.items() if not original and module == "trl"]
        for node in [x for x in source.nodes if isinstance(x, ast.Attribute) and source.code(x.value) in modules]:
            name, home = node.attr, self.home("trl", node.attr)
            if home != "trl" and name in {*table, *nowhere}:
                nearest = f"from {home} import {name}" if home else self.nearest(name)
                self.report.refuse(source.place(node), source.code(node), "no longer in trl", nearest)

    def add_import(self, module: str, name: str) -> None:
        """Import a name that an edit uses, before the first import from TRL."""
        imports = self.source.imports
        nodes = [node for module, _, node in imports.values() if module.split(".")[0] == "trl"]
        nodes.append(self.source.tree.body[0])
        text = f"from {module} import {name}"
        if name not in imports:
            row = Change(text, "", newest("trl"), "used by the lines below", "NameError")
            self.report.insert(self.source.start(nodes[0]), f"{text}\n{' ' * nodes[0].col_offset}", row)


def outcome(source: PythonSource, version: str) -> dict[str, str]:
    """{setting: value} that a version uses where the script gives none, as migration would write it out."""
    settings, report = {}, Report()
    places = NAMES["places"]
    made = [(CONFIGS[t], config_call(source, call, places.get(t, ()))[0]) for t, call in trainer_calls(source)]
    for config, call in [*made, *lone_configs(source, {id(call) for _, call in made})]:
        run = TrlRun(source, config, version, call)
        for plan in [default_changes(run), *meanings(run, report)]:
            settings |= {name: change.text or "" for name, change in plan.items()}
        if run.value("max_prompt_length"):
            settings["prompts"] = f"cut to {run.text('max_prompt_length')}"
    return settings
