"""A script that trains with TRL: its trainers, their configs and their imports."""

import ast
import builtins
import re
import textwrap

from parts.data.trl_names import trl_defaults, trl_today
from parts.foundation.user_scripts import FUNCTIONS, Argument, PythonSource
from programs.migrate.edits import Change, Report, by_hand, edit_call
from programs.migrate.tables import NAMES, changes, entry_at, gone_entry, is_there, newest, numbers
from programs.migrate.trainer_parts import mend_loading, mend_model_config, mend_rewards, name_unsloth
from programs.migrate.trl_run import CONFIGS, SAMPLING, UNKNOWN, TrlRun
from programs.migrate.trl_settings import MEANINGS, default_changes, old_trainer, planned, prompt_limit

OFFER = "its YAML file: migrate.py FILE.yaml --config_class"
MOVED = {"neftune_noise_alpha", "max_prompt_length", "max_target_length"}  # into the config, beside those of the table


def trainer_calls(source: PythonSource) -> list[tuple[str, ast.Call]]:
    """Calls of TRL's trainers, and of the script's own classes that are made of one."""
    names = {name: name for name in CONFIGS}
    for name, definition in source.definitions.items():
        for base in map(source.name_of, getattr(definition, "bases", [])):
            if base in CONFIGS:
                names[name] = base
    calls = [(trainer, call) for name, trainer in names.items() for call in source.calls.get(name, [])]
    variables = {*source.calls} - {*names, *source.imports, *source.definitions, *vars(builtins)}
    for call in [x for name in variables for x in source.calls[name] if isinstance(x.func, ast.Name)]:
        made = source.origin(call.func)  # a class by another name
        found = [made.body, made.orelse] if isinstance(made, ast.IfExp) else [made]
        calls += [(names[name], call) for name in map(source.name_of, found) if name in names][:1]
    return sorted(calls, key=lambda pair: source.start(pair[1]))


def is_config(source: PythonSource, call: ast.expr | None) -> bool:
    return isinstance(call, ast.Call) and source.name_of(call) in {*CONFIGS.values(), "TrainingArguments"}


def config_call(source: PythonSource, trainer: str, call: ast.Call) -> tuple[ast.Call | None, ast.expr | None]:
    """(The call that makes the trainer's args, what stands there)."""
    node = source.argument(call, "config") or source.argument(call, "args", NAMES["places"].get(trainer, ()))
    made = source.origin(node)
    return (made if is_config(source, made) else None), node


class TrlMigration:
    """One script from one version of TRL to the newest."""

    def __init__(self, source: PythonSource, version: str):
        self.source, self.version, self.report = source, version, Report()
        self.runs: list[tuple[TrlRun, dict[str, Change]]] = []  # with what becomes of their settings
        self.done: set[int] = set()  # calls of configs

    def migrate(self) -> Report:
        source, report = self.source, self.report
        for trainer, call in trainer_calls(source):
            is_old_rloo = trainer == "RLOOTrainer" and numbers(self.version) < (0, 22)
            if is_old_rloo or trainer in ("PPOTrainer", "PPOv2Trainer"):
                self.carry_over(trainer, call)
            else:
                self.trainer(trainer, call)
        for config in CONFIGS.values():  # those that no trainer of this file takes, as a function returns them
            for call in source.calls.get(config, []):
                if id(call) not in self.done and not config.startswith("PPO"):
                    self.lone_config(TrlRun(source, config, self.version, call))
        if mend_loading(source, self.version, report):
            self.add_import("transformers", "BitsAndBytesConfig")
        mend_model_config(source, report)
        name_unsloth(source, report)
        self.move_names()
        return report

    def place(self, node: ast.AST) -> str:
        return self.source.place(self.source.start(node))

    def trainer(self, trainer: str, call: ast.Call) -> None:
        source, report, config = self.source, self.report, CONFIGS[trainer]
        made, node = config_call(source, trainer, call)
        arguments, unseen = source.arguments(call)
        plan, moved = self.own_arguments(trainer, call, arguments)
        given = {argument.name: argument.value for argument in arguments}
        of_trainer = {name: value for name, value in given.items() if name in moved or name in MOVED}
        of_trainer |= {change.name: of_trainer[name] for name, change in moved.items()}
        run = TrlRun(source, config, self.version, made, of_trainer)
        if made is None and (node or unseen):
            run.unseen = [node or unseen[0]]
        settings = planned(run, report) | {change.name: change for change in moved.values()}
        if made is not None:
            self.config(run, settings)
        elif node is None and not unseen:
            plan |= self.new_config(run, trainer, call, settings)
        else:
            self.unseen_config(run, call, node or unseen[0], settings, old_trainer(run, False))
            for name, change in moved.items():
                nearest = f"{change.setting} in {config}"
                report.refuse(self.place(call), name, "an argument of the config, which cannot be seen", nearest)
        if trainer == "SFTTrainer" and "formatting_func" in given and run.before("0.17"):
            plan |= self.format_rows(run, given["formatting_func"])
        edit_call(source, call, plan, report)
        takes_text = bool({"dataset_text_field", "formatting_func"} & {*run.nodes, *given})
        field = run.value("dataset_text_field") or UNKNOWN
        takes_text = takes_text or any(getattr(node, "value", None) == field for node in source.nodes)
        if old := old_trainer(run, takes_text):
            self.insert_class(run, call, *old)
        self.say_differences(run, trainer, call)
        if config in (*SAMPLING, "OnlineDPOConfig"):
            rewards = source.resolved(source.argument(call, "reward_funcs", NAMES["places"].get(trainer, ())))
            mend_rewards(source, rewards if run.before("0.18") else None, report)

    def own_arguments(self, trainer: str, call: ast.Call, arguments: list[Argument]) -> tuple[dict, dict]:
        """(What becomes of a trainer's own arguments, those that are the config's today, which won over it)."""
        is_own = self.source.code(call.func) in self.source.definitions  # it may take more
        table, plan, moved = changes("trl")["trainers"].get(trainer, {}), {}, {}
        names = {argument.name for argument in arguments}
        for argument in arguments:
            name, text = argument.name, self.source.code(argument.value)
            entry = entry_at(table.get(name, []), newest("trl"))
            if name == "tokenizer":  # gone from all trainers, with a warning before
                entry = {"since": "0.12", "gone": True, "renamed": "processing_class"}
            if not entry.get("gone"):
                if not is_own and name not in trl_today("trainers").get(trainer, [name]):
                    place, why = self.source.place(argument.start), f"no {trainer} of TRL has it"
                    self.report.refuse(place, f"{name}={text}", why, "leaving it out")
                continue
            since, new = entry["since"], entry.get("renamed") or ""
            is_moved = (new.startswith("args.") or name in MOVED) and name not in NAMES["lossless"]
            new = new.removeprefix("args.") or name
            plan[name] = Change(name, None, since, f"{name} is no argument of {trainer}")
            if is_moved and not new.startswith(("max_prompt", "max_target")):  # a class cuts prompts
                moved[name] = Change(new, text, since, "an argument of the config now")
            elif not is_moved and new != name and new not in names:
                plan[name] = Change(new, text, since, f"the new name of {name}")
            elif not is_moved and new == name and name not in NAMES["lossless"] and text not in ("None", "False"):
                place, nearest = self.source.place(argument.start), NAMES["gone_arguments"].get(name, "leaving it out")
                self.report.refuse(place, f"{name}={text}", f"gone since {since}", nearest)
        return plan, moved

    def config(self, run: TrlRun, plan: dict[str, Change]) -> None:
        """Edit the call of a config, and the assignments to its attributes, once."""
        source, report = self.source, self.report
        if id(run.call) in self.done:
            return
        self.done.add(id(run.call))
        self.runs.append((run, {} if run.unseen else {**plan}))
        for change in source.hidden_changes(run.call):
            nearest = f"arguments of {run.config}(…)"
            report.refuse(self.place(change), source.code(change), "settings that cannot be seen here", nearest)
        for argument in run.arguments if run.config in trl_today("defaults") else []:
            if argument.name not in trl_defaults(run.config) and not gone_entry(run.config, argument.name):
                place, text = source.place(argument.start), f"{argument.name}={source.code(argument.value)}"
                report.refuse(place, text, f"no {run.config} of TRL has it", "leaving it out")
        added = [name for name, change in plan.items() if not run.in_config(name) and change.text is not None]
        spread = [k.value for k in run.call.keywords if not k.arg and source.items(k.value)[1]]
        if run.unseen:
            shown = ", ".join(f"**{source.code(node)}" for node in run.unseen)
            why = "made at run time: no name in it is renamed"
            if len(spread) == 1:  # what it gives wins over the defaults then
                start, end = source.span(spread[0])
                for name in added:
                    report.edit(start, start, f'{"{" * (name == added[0])}"{name}": {plan[name].text}, ', plan[name])
                report.edit(start, start, "**" * bool(added))
                report.edit(end, end, "}" * bool(added))
            elif added:
                why += f", and nothing says whether it has {', '.join(added)}, whose defaults changed"
            nearest = f"one dictionary with all settings, which nothing changes later, or {OFFER} {run.config}"
            report.refuse(self.place(run.call), shown, why, nearest)
            plan = {name: change for name, change in plan.items() if name not in added}
        edit_call(source, run.call, plan, report)
        if source.name_of(run.call) == "TrainingArguments":
            why = "the trainer's own class, which has its settings"
            report.edit(*source.span(run.call.func), run.config, Change(run.config, "", "0.13", why, "other defaults"))
            self.add_import("trl", run.config)

    def lone_config(self, run: TrlRun) -> None:
        if run.has("max_prompt_length") and old_trainer(run, False):
            why = "prompts are no longer cut, and the trainer of this config cannot be seen"
            nearest = "rows that are short enough, or this number in a class that cuts prompts"
            shown = f"max_prompt_length={run.text('max_prompt_length')}"
            self.report.refuse(self.place(run.call), shown, why, nearest)
        self.config(run, planned(run, self.report))

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

    def unseen_config(self, run: TrlRun, call: ast.Call, node: ast.expr, settings: dict, old: tuple | None) -> None:
        """Say that the settings of a trainer cannot be seen, and where to look; defaults go into a parser."""
        source, report, place = self.source, self.report, self.place(call)
        nearest = f"one call {run.config}(…) with all settings, or {OFFER} {run.config}"
        why = "made at run time: its settings cannot be seen"
        is_file = any(source.calls.get(f"parse_{kind}") for kind in ("yaml_file", "json_file", "dict"))
        parsers = [x for name in ("HfArgumentParser", "TrlParser") for x in source.calls.get(name, []) if not is_file]
        for parser in [x for x in parsers if run.config in {source.name_of(n) for n in ast.walk(x)}]:
            statement = source.around(parser, ast.stmt)
            name = source.code(statement.targets[0]) if isinstance(statement, ast.Assign) else ""
            added = {n: change for n, change in settings.items() if change.text is not None}
            if name and added and id(parser) not in self.done:
                self.done.add(id(parser))
                why = "settings come from the command line: the old defaults are set, removed flags are not renamed"
                start, indent = source.span(statement)[1], " " * statement.col_offset
                text = ", ".join(change.setting for change in added.values())
                report.edit(start, start, f"\n{indent}{name}.set_defaults({text})")
                for change in added.values():
                    report.edit(start, start, "", change)
        report.refuse(place, f"args={source.code(node)}", why, nearest)
        limit, _ = prompt_limit(run)
        if old and limit:
            why = f"prompts are cut to {limit}, the default then, as the settings cannot be seen"
            report.refuse(place, "max_prompt_length", why, f"the number of the settings for the {limit} of the class")

    def insert_class(self, run: TrlRun, call: ast.Call, ending: str, body: str) -> None:
        """Put a class that does as the old trainer before the statement of a trainer, and use it there."""
        source, report, base = self.source, self.report, self.source.code(call.func)
        name, statement = base.split(".")[-1] + ending, source.around(call, ast.stmt)
        while source.text[: source.start(statement)].rpartition("\n")[2].strip() and source.around(statement, ast.stmt):
            statement = source.around(statement, ast.stmt)
        limit = run.nodes.get("max_prompt_length")
        home = source.around(limit, FUNCTIONS) if limit and prompt_limit(run)[0] is UNKNOWN else None
        if home and home is not source.around(call, FUNCTIONS):
            shown = f"max_prompt_length={source.code(limit)}"
            report.refuse(self.place(limit), shown, "known inside another function only", f"a number in {name}")
        line = source.text.rfind("\n", 0, source.start(statement)) + 1
        text = textwrap.indent(f"class {name}({base}):\n{body}\n\n", re.match(r"[ \t]*", source.text[line:])[0])
        report.edit(line, line, text if statement.col_offset else f"{text}\n")
        row = by_hand(f"{name}(…)", "", "end_token" if ending == "WithoutEndToken" else "prompts")
        report.edit(*source.span(call.func), name, row)

    def say_differences(self, run: TrlRun, trainer: str, call: ast.Call) -> None:
        """What no edit brings back: places of arguments, methods that are replaced."""
        source, report, place = self.source, self.report, self.place(call)
        first = NAMES["places"].get(trainer, ())[: 2 if trainer == "DPOTrainer" and run.before("0.13") else None]
        if len(call.args) > len(first):
            why = f"{trainer}'s arguments have other places today"
            report.refuse(place, source.code(call.args[len(first)]), why, "NAME=VALUE for each argument")
        base = source.code(call.func)
        for name in [n.id for n in ast.walk(source.origin(call.func)) if isinstance(n, ast.Name)]:
            if name in source.imports and source.imports[name][0].split(".")[0] != "trl":
                report.note(f"{name} is imported from {source.imports[name][0]}: whether it fits cannot be seen here")
        methods = [x.name for x in getattr(source.definitions.get(base), "body", []) if isinstance(x, ast.FunctionDef)]
        if overridden := ", ".join(name for name in methods if name != "__init__"):
            why = f"written for the {trainer} of {self.version}, whose methods it replaces"
            report.refuse(place, f"{base}.{overridden}", why, "a comparison with the methods of today's")
        if trainer == "RewardTrainer" and "input_ids_chosen" in source.text:
            nearest = "columns chosen and rejected of text or messages; or token ids as chosen_ids and rejected_ids"
            report.refuse(place, "input_ids_chosen", "RewardTrainer tokenizes, or takes other columns", nearest)

    def format_rows(self, run: TrlRun, given: ast.expr) -> dict[str, Change]:
        """A formatting_func that took a batch and returned its texts, for one row."""
        source = self.source
        nodes = [*ast.walk(source.definitions.get(source.code(given), ast.Pass()))]
        returned = [source.resolved(n.value) for n in nodes if isinstance(n, ast.Return)]
        has_list = any(isinstance(n, ast.List | ast.ListComp) for n in returned)
        appends = any(isinstance(n, ast.Call) and source.name_of(n) == "append" for n in nodes)
        if not (has_list or appends or (run.before("0.15") and not run.is_on("packing"))):
            return {}
        text = f"lambda row: {source.code(given)}({{key: [value] for key, value in row.items()}})[0]"
        why = "it took a batch; now it takes a row"
        return {"formatting_func": Change("formatting_func", text, "0.17", why, "an error")}

    def carry_over(self, trainer: str, call: ast.Call) -> None:
        """A trainer that is gone: the command of this bundle with its settings."""
        config = CONFIGS[trainer]
        calls = self.source.calls.get(config, [])
        run, flags = TrlRun(self.source, config, self.version, calls[0] if calls else None), []
        for flag, names in NAMES["carried"].items():
            name = next((n for n in names if run.has(n)), None)
            if name and run.value(name) is not UNKNOWN:
                flags.append(f"--{flag} {run.value(name)}")
        script = "scripts/ppo_train.py" + " --advantage rloo" * (trainer == "RLOOTrainer")
        nearest = " ".join([f"python {script}", *flags, "(see --help for other settings)"])
        why = f"{trainer} of {self.version} has no successor in TRL"
        if trainer == "RLOOTrainer":
            why = by_hand("", "", "rloo").why
        self.report.refuse(self.place(call), trainer, why, nearest)
        self.done |= {id(c) for c in calls}

    def move_names(self) -> None:
        """Imports from TRL that moved or are gone."""
        table, modules = changes("trl")["modules"], trl_today("modules")
        today = {*changes("trl")["exports"], *CONFIGS, *CONFIGS.values(), "*"}
        for node in self.source.nodes:
            if not isinstance(node, ast.ImportFrom) or (node.module or "").split(".")[0] != "trl":
                continue
            moved: dict[str, list[str]] = {}
            kept, since, path = [], "", node.module.split(".")
            names = [n for m, inside in modules.items() if f"{m}.".startswith(f"{node.module}.") for n in inside]
            for alias in node.names:
                name, text = alias.name, self.source.code(alias)
                entry, place = entry_at(table.get(name, []), newest("trl")), self.place(node)
                is_gone = not is_there(table.get(name, []), newest("trl"))
                is_gone_here = name not in (today if node.module in ("trl", "trl.trainer") else [*names, "*"])
                is_gone_here = is_gone_here or name in NAMES["gone_names"]
                if path[1:2] == ["experimental"]:  # folders, whose names may change
                    is_gone_here = {*path[2:3], name}.isdisjoint([*modules["trl.experimental"], *today])
                if is_gone and is_gone_here:
                    copy = "its copy in the script, or trl.experimental, which has some"
                    nearest = NAMES["gone_names"].get(name, copy)
                    self.report.refuse(place, name, f"no longer in {node.module}", nearest)
                is_moved = not is_gone and entry["at"] != node.module and name not in names
                if is_moved and ("experimental" in f"{entry['at']} {node.module}" or node.module.count(".") > 1):
                    moved.setdefault(entry["at"], []).append(text)
                    since = entry["since"]
                else:
                    kept.append(text)
            if moved:
                lines = [f"from {module} import {', '.join(names)}" for module, names in moved.items()]
                row = Change("; ".join(lines), "", since, "its new place", "ImportError")
                lines = [f"from {node.module} import {', '.join(kept)}"] * bool(kept) + lines
                self.report.edit(*self.source.span(node), f"\n{' ' * node.col_offset}".join(lines), row)

    def add_import(self, module: str, name: str) -> None:
        """Import a name that an edit uses, before the first import from TRL."""
        imports = self.source.imports
        nodes = [node for module, _, node in imports.values() if module.split(".")[0] == "trl"]
        nodes.append(self.source.tree.body[0])
        text = f"from {module} import {name}\n{' ' * nodes[0].col_offset}"
        start = self.source.start(nodes[0])
        is_added = any(edit.start == start and edit.text == text for edit in self.report.edits)
        if name not in imports and not is_added:
            row = Change(text.strip(), "", newest("trl"), "used by the lines below", "NameError")
            self.report.edit(start, start, text, row)


def outcome(source: PythonSource, version: str) -> dict[str, str]:
    """What a version makes of a script where it says nothing: {setting: value}, by what would be written out."""
    settings, report = {}, Report()
    for trainer, call in trainer_calls(source):
        run = TrlRun(source, CONFIGS[trainer], version, config_call(source, trainer, call)[0])
        plan = default_changes(run) | dict(change for meaning in MEANINGS for change in meaning(run, report))
        settings |= {name: change.text or "" for name, change in plan.items()}
        if run.value("max_prompt_length"):
            settings["prompts"] = f"cut to {run.text('max_prompt_length')}"
    return settings
