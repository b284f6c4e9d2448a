"""A TRL run: its settings under one version, and those that make today's TRL do it, in a script or a YAML file."""

import ast
import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from parts.data.trl_names import trl_defaults
from parts.data.trl_scripts import BASE
from parts.foundation.file_text import file_text, with_values
from parts.foundation.messages import need
from parts.foundation.user_scripts import FUNCTIONS, Argument, PythonSource
from programs.migrate.edits import DEFAULT, RULES, UNSURE, Change, Report, by_hand, chosen, rules_of
from programs.migrate.job_files import YamlJob
from programs.migrate.tables import ABSENT, NAMES, changes, default_at, gone_entry, newest, numbers, since_of

SAMPLING = ("GRPOConfig", "RLOOConfig")
UNKNOWN = object()  # the value of an argument that is not a literal
NO_CALLS = ("isinstance", "issubclass", "super", "hasattr", "fields")  # these call no class that they get
CUT = ("max_prompt_length", "max_target_length", "max_completion_length")  # if no config has it, an added class cuts
OF_OTHERS = ("per_device_train_batch_size", "per_device_eval_batch_size", "temperature", "generation_kwargs", "top_k")
SAME = ([None, 0, -1], [True, "group"], [False, "none"])  # values of top_k and scale_rewards that are one setting
MAKES_MODEL = re.compile("from_pretrained|from_config|^get_.*model|^[A-Z]")  # functions that return a model
GIVES_NAME = re.compile("^f?['\"]|name|path|args[.]|argv|environ|model_id|checkpoint", re.I)  # expressions of a name
OLD_TRAINERS = file_text("files/old_trainers.py")


def reward_functions(source: PythonSource) -> list[ast.AST]:
    """The functions of a file with a parameter `completions`, which TRL passes to rewards by keyword."""
    functions = [x for x in source.nodes if isinstance(x, FUNCTIONS)]
    return [x for x in functions if "completions" in {y.arg for y in [*x.args.args, *x.args.kwonlyargs]}]


@dataclass
class TrlRun:
    """One config call of a script under one version."""

    source: PythonSource
    config: str  # the class that the trainer takes
    version: str
    call: ast.Call | None
    of_trainer: dict[str, ast.expr] = field(default_factory=dict)  # settings given to the trainer, not the config
    unseen_args: ast.expr | None = None  # the expression of a config that is made at run time
    trainer: ast.Call | None = None  # which reads most settings: what is set after it counts as set in a branch

    def __post_init__(self):
        source, call, made = self.source, self.call, self.call or self.unseen_args
        late = source.start(self.trainer) if self.trainer else len(source.text)
        given, self.unseen = source.arguments(call) if call else ([], [made] if made else [])
        self.fields = {} if call else {x.name: x for x in source.fields(self.config)}  # of a config class in the script
        changes = source.changes(made) if made else []
        self.arguments = [*self.fields.values(), *given]
        self.arguments += [replace(x, is_sure=x.is_sure and x.start < late) for x in changes]
        # {old or new name of a setting: the expression given}
        self.nodes = {argument.name: argument.value for argument in self.arguments} | self.of_trainer
        # set in a branch, or changed where that is not followed
        self.unsure = {argument.name for argument in self.arguments if not argument.is_sure}
        self.unsure |= {getattr(change, "attr", "") for change in (source.hidden_changes(made) if made else [])}
        for name, node in [*self.nodes.items()]:
            new = gone_entry(self.config, name).get("renamed")
            if new and name != "warmup_ratio":
                self.nodes.setdefault(new, node)
                self.unsure |= {new} if name in self.unsure else set()

    def has(self, name: str) -> bool:
        return name in self.nodes

    def in_branch(self, name: str) -> list[Argument]:
        """The arguments that set it, if each of them is in a branch of the script."""
        given = [x for x in self.arguments if name in (x.name, gone_entry(self.config, x.name).get("renamed"))]
        is_set = name in {*self.fields, *self.of_trainer} or any(argument.is_sure for argument in given)
        return [] if is_set else given

    def branches(self, name: str) -> set[ast.AST]:
        return {self.source.parents[self.source.parents[x.value]] for x in self.in_branch(name)}

    def value(self, name: str):
        """The literal given, else the version's default, else None; UNKNOWN for an expression or an unsure value."""
        try:
            if name in self.unsure:
                return UNKNOWN
            if member := self.member(name):
                return member[1]
            return self.source.value(self.nodes[name]) if self.has(name) else self.default(name)
        except (ValueError, TypeError):
            return UNKNOWN

    def member(self, name: str) -> tuple[str, str] | None:
        """(class, text) of a setting that is a member of an enumeration of TRL or transformers; else None."""
        node = self.source.resolved(self.nodes.get(name))
        owner = self.source.imports.get(getattr(getattr(node, "value", None), "id", ""), ("", ""))
        is_member = isinstance(node, ast.Attribute) and node.attr.isupper() and owner[0].startswith(("trl", "transf"))
        return (owner[1], node.attr.lower()) if is_member else None

    def default(self, name: str):
        default = default_at(self.config, name, self.version)
        return None if default is ABSENT else default

    def text(self, name: str) -> str:
        """The source of an argument, else of its default; NAME + UNSURE for an unsure value."""
        if name in self.unsure:
            return name + UNSURE
        return self.source.code(self.nodes[name]) if name in self.nodes else repr(self.default(name))

    def place(self, name: str) -> str:
        """The place where an argument is last given; "" for a default."""
        return self.source.place(self.nodes[name]) if name in self.nodes else ""

    @property
    def model(self) -> str:
        """Whether the trainer's model is given by `name` or as an `object`; "" if that cannot be seen."""
        node = self.trainer and self.source.resolved(self.source.argument(self.trainer, "model", ("model",)))
        while isinstance(node, ast.Call) and isinstance(getattr(node.func, "value", None), ast.Call):
            node = node.func.value  # of AutoModelForCausalLM.from_pretrained(NAME).to("cuda")
        if isinstance(node, ast.Call):
            return "object" if MAKES_MODEL.search(self.source.name_of(node)) else ""
        return "name" if node and GIVES_NAME.search(self.source.code(node)) else ""

    def is_on(self, name: str) -> bool:
        """Whether a setting, given or by default, may be other than off."""
        return self.value(name) not in (None, False, "no")

    def before(self, version: str) -> bool:
        return numbers(self.version) < numbers(version)


Plan = dict[str, Change]  # {argument: its change}


def by_rules(run: TrlRun, report: Report) -> Iterator[Plan]:
    """Yield the settings of the rules in by_hand.json that apply to a run; report their notes and refusals."""
    rules = [(r, e) for r, e in rules_of("trl", run.version) if not (run.trainer and "method" in e)]
    for rule, entry in [(rule, entry) for rule, entry in rules if applies(run, entry)]:
        plan = {key: by_hand(key, text_of_rule(run, form), rule) for key, form in entry.get("set", {}).items()}
        wanted, (name, others) = entry.get("is", {}), next(iter(entry.get("is_not", {}).items()), ("", ()))
        values = [run.value(name), *(run.value(x) if isinstance(x, str) else x for x in others)]
        is_known = name != "" and not any(x is None or x is UNKNOWN for x in values)
        if is_known and values[0] in values[1:]:
            continue
        if unknown := next((x for x in wanted if run.value(x) is UNKNOWN), None):
            shown = ", ".join(map(str, wanted[unknown]))
            settings = "".join(f": {change.setting}" for change in plan.values() if change.setting)
            report.note(f"{unknown} is known at run time only; if it is {shown}: {entry['why']}{settings}")
            continue
        yield plan
        if "nearest" in entry or (is_known and "set" not in entry):
            name = name or re.match(r"\w+", entry["shown"])[0]
            nearest = entry.get("nearest") or entry["same_if"]
            report.refuse(run.place(name), entry.get("shown", f"{name}={run.text(name)}"), entry["why"], nearest)
        elif "set" not in entry or "same_if" in entry:
            report.note_rule(entry)


def applies(run: TrlRun, entry: dict) -> bool:
    """Whether a rule may apply. Each condition that the rule has must hold:

    - `configs` has the run's; `when`: one of these is on; `given`: it is given; `unless`: neither given nor imported.
    - `is`: these settings have a listed value or an unknown one; `text`: the source of some reward matches.
    - `model`: the trainer's is given like this, or it cannot be seen.
    - `member`: one of the settings of `is` is a member of an enumeration, or none if false.
    """
    unless, rewards = entry.get("unless"), reward_functions(run.source) if "text" in entry else ()
    is_on = run.config in entry["configs"] and ("when" not in entry or any(map(run.is_on, entry["when"])))
    is_out = unless in {*run.source.imports, *run.source.calls}
    is_out = is_out or (run.has(unless) and run.value(unless) is not None)
    for name, wanted in entry.get("is", {}).items():
        value = run.value(name)
        values = value if isinstance(value, list) else [value]
        is_on = is_on and (value is UNKNOWN or any(x in wanted for x in values))
    is_on = is_on and entry.get("model") in (None, run.model or entry.get("model"))
    is_on = is_on and entry.get("member") in (None, any(map(run.member, entry.get("is", ()))))
    has_text = re.search(entry.get("text", ""), "\n".join(map(run.source.code, rewards)))
    return bool(is_on and has_text) and not is_out and ("given" not in entry or run.has(entry["given"]))


def term(text: str) -> str:
    """Put an expression into parentheses unless it is a name, a number or in parentheses already."""
    return text if re.fullmatch(r"[\w.]+(\[[^][]*\])*|\([^()]*\)", text.removesuffix(UNSURE)) else f"({text})"


def text_of_rule(run: TrlRun, form: str | None) -> str | None:
    """Fill a text of by_hand.json with the settings that it names; compute it if they are two numbers."""
    if form is None:
        return None
    text = form.format_map({name: term(run.text(name)) for name in re.findall(r"\{(\w+)\}", form)})
    if numbers := re.fullmatch(r"([\d.]+) ([*-]) ([\d.]+)", text):
        first, second = map(ast.literal_eval, numbers.group(1, 3))
        return str(first * second if numbers[2] == "*" else first - second)
    return chosen(text)


def one_device(run: TrlRun, report: Report) -> Iterator[Plan]:
    """Load a model given by name onto one device, by a `device_map` that one of the script's overrides."""
    source, change, name = run.source, by_hand("device_map", "None", "one_device"), "model_init_kwargs"
    node, value, model = run.nodes.get(name), run.value(name), run.model
    is_given = node is not None and any(item.name == "device_map" for item in source.items(node)[0])
    if is_given or model == "object" or not run.before("0.26") or run.config not in RULES["one_device"]["configs"]:
        return
    is_hidden = run.unseen or name in {*run.unsure, *run.fields, *run.of_trainer}
    if model != "name" or is_hidden or isinstance(value, str):
        report.note(change.why)
    elif value in (None, {}):
        yield {name: replace(change, name=name, text='{"device_map": None}')}
    elif isinstance(node, ast.Dict):
        space = re.match(r"\s*", source.code(node)[1:])[0]
        report.insert(source.start(node) + 1 + len(space), f'"device_map": None,{space or " "}', change)
    else:
        made = source.resolved(node)
        first, last = ("", "") if isinstance(made, ast.Dict) or source.name_of(made) == "dict" else ("(", " or {})")
        report.insert(source.start(node), f'{{"device_map": None, **{first}', change)
        report.insert(source.span(node)[1], last + "}")


def warmup(run: TrlRun, report: Report) -> Iterator[Plan]:
    """Migrate warmup_ratio, today a warmup_steps below 1."""
    since, ratio, text = "transformers 5.0", run.value("warmup_ratio"), run.text("warmup_ratio")
    steps = run.value("warmup_steps") if run.has("warmup_steps") else 0
    if not run.has("warmup_ratio"):
        return
    if (ratio is not UNKNOWN and ratio >= 1) or steps is UNKNOWN:
        why = "warmup_steps counts steps from 1 on, and won over it if it was not 0"
        report.refuse(run.place("warmup_ratio"), f"warmup_ratio={text}", why, "the number of all steps")
    elif steps:
        yield {"warmup_ratio": Change("warmup_ratio", None, since, "warmup_steps won over it")}
    else:
        plan = {"warmup_ratio": Change("warmup_steps", text, since, "warmup_steps below 1 is the share")}
        if run.has("warmup_steps"):  # one argument for both
            plan["warmup_steps"] = Change("warmup_steps", None, since, "0 left the warmup to warmup_ratio")
        yield plan


def sft_term(run: TrlRun, report: Report) -> Iterator[Plan]:
    """Migrate DPO's rpo_alpha, today the weight of a loss `sft`, and the loss aot_pair."""
    kinds, shown, why = run.value("loss_type"), run.text("loss_type"), "rpo_alpha weighed the SFT term"
    if run.config != "DPOConfig" or not run.before("0.29"):
        return
    renamed = re.sub(r"(['\"])aot_pair\1", r"\1aot_unpaired\1", shown)
    if renamed != shown:
        yield {"loss_type": Change("loss_type", renamed, "0.29", "its new name", "ValueError")}
    elif kinds is UNKNOWN:
        report.note("loss_type is known at run time only; if it is aot_pair: the name is gone, now aot_unpaired")
    if run.has("rpo_alpha") and run.value("rpo_alpha") is None:
        yield {"rpo_alpha": Change("rpo_alpha", None, "0.29", "there was no SFT term")}
    elif run.has("rpo_alpha"):
        weights = ", ".join(["1.0"] * (len(kinds) if isinstance(kinds, list) else 1))
        weights = run.text("loss_weights")[1:-1] if run.has("loss_weights") else weights
        losses = renamed[1:-1] if isinstance(kinds, list) else renamed
        weight = run.text("rpo_alpha") + (" or 0.0" if run.value("rpo_alpha") is UNKNOWN else "")  # None: no SFT term
        plan = {"rpo_alpha": Change("loss_weights", f"[{weights}, {weight}]", "0.29", why)}
        plan["loss_type"] = Change("loss_type", f'[{losses}, "sft"]', "0.29", why)
        if run.has("loss_weights"):
            why = "its weights stand before that of the SFT term"
            plan["loss_weights"] = Change("loss_weights", None, "0.29", why)
        yield plan


def meanings(run: TrlRun, report: Report) -> Iterator[Plan]:
    """Yield the changes that no signature shows, in plans that apply as a whole or not at all."""
    yield from by_rules(run, report)
    yield from one_device(run, report)
    yield from warmup(run, report)
    yield from sft_term(run, report)


def python(value) -> str:
    """Python source of a default in the tables."""
    return f'"{value}"' if isinstance(value, str) and '"' not in value else repr(value)


def is_same(name: str, old, new) -> bool:
    if (isinstance(old, bool) is isinstance(new, bool) and old == new) or new == [old]:
        return True
    return name in ("top_k", "scale_rewards") and any(old in group and new in group for group in SAME)


def given_changes(run: TrlRun, report: Report) -> dict[str, Change]:
    """Changes of given arguments that no longer exist."""
    plan, cut = {}, () if run.config == "DistillationConfig" else CUT  # no class cuts for Distillation
    for name, (owner, text) in {name: run.member(name) or ("", "") for name in run.nodes}.items():
        if owner in NAMES["gone_names"]:
            plan[name] = Change(name, f'"{text}"', "0.29", f"the text of a member of {owner}", "ImportError")
    for name in [n for n in run.nodes if n not in ("warmup_ratio", "rpo_alpha", *run.of_trainer)]:
        gone, place = gone_entry(run.config, name), run.source.place(run.nodes[name])
        if not gone or (name in cut and name in run.fields):
            continue
        if name in cut and name in run.unsure:
            report.refuse(place, name, f"set in a branch, and no trainer has {name}", "a trainer for each value")
            continue
        since = gone["since"] if name in cut else since_of(run.config, name, run.version)
        new, text = gone.get("renamed"), run.text(name)
        new, form = NAMES["forms"].get(name, (new if new in trl_defaults(run.config) else None, "{}"))
        others = {*run.of_trainer, *NAMES["lossless"]}
        if new and new not in {x.name for x in run.arguments} and not {new, name} & others:
            plan[name] = Change(new, chosen(form.format(text)), since, f"the new name of {name}")
            continue
        is_idle = run.value(name) in (None, False, "", NAMES["same_values"].get(name))
        is_lost = not (name in (*cut, *NAMES["lossless"]) or new or is_idle)
        effect = ", and the run is the same" if not is_lost and name not in cut else ""
        plan[name] = Change(name, None, since, f"{name} is gone{effect}")
        if is_lost:
            nearest = NAMES["gone_arguments"].get(name, "leaving it out")
            report.refuse(place, f"{name}={text}", f"gone since {since}", nearest)
    return plan


def default_changes(run: TrlRun) -> dict[str, Change]:
    """Old values of defaults that changed, for settings that the script does not give, or in a branch alone."""
    tables, plan = changes("trl")["configs"], {}
    for name in dict.fromkeys([*tables.get(run.config, {}), *tables["TrainingArguments"]]):
        old, new = default_at(run.config, name, run.version), default_at(run.config, name, newest("trl"))
        is_beside = ABSENT in (old, new) or name in NAMES["beside_the_run"]
        is_given = run.has(name) and not run.in_branch(name)
        if is_beside or is_given or is_same(name, old, new) or is_idle(run, name):
            continue
        plan[name] = Change(name, python(old), since_of(run.config, name, run.version), DEFAULT, python(new))
    return plan


def is_idle(run: TrlRun, name: str) -> bool:
    """Whether a setting has no effect in a run, for what the script gives or its config."""
    switch, off = next((x for start, x in NAMES["acts_unless"].items() if name.startswith(start)), (None, ()))
    if not switch:
        return name == "average_tokens_across_devices" and run.config != "SFTConfig"
    branches = run.branches(name)
    is_on_there = branches and branches <= run.branches(switch)  # and off elsewhere
    return run.value(switch) in off or (is_on_there and run.default(switch) in off)


def planned(run: TrlRun, report: Report) -> dict[str, Change]:
    """{argument: its change}, with arguments to add."""
    plan = given_changes(run, report) | default_changes(run)
    items = {name: [x for x in run.in_branch(name) if not x.form.endswith(".{name} = {text}")] for name in plan}
    for name in [name for name in items if items[name] and plan[name].why == DEFAULT]:  # of a dictionary
        why = f"set in a branch; without it, its default was {plan[name].text} then"
        report.refuse(run.place(name), name, why, f"{plan[name].setting} before the branch")
        del plan[name]
    is_made_elsewhere = run.call is None and run.config in run.source.calls  # that call is edited itself
    for group in meanings(run, report):
        for name in [name for name in group if run.unseen and name in OF_OTHERS and group[name].source]:
            change = group.pop(name)
            if not is_made_elsewhere or name in {*run.nodes, *run.unsure}:
                report.note(f"{name}: {change.why}: edit it by hand, as the settings cannot be seen")
        of_branch = [c for name, c in group.items() if UNSURE in (c.text or "") and c.text != name + UNSURE]
        for name in [name for name in run.unsure if any(name + UNSURE in c.text for c in of_branch)]:
            shown = ", ".join(c.setting.replace(UNSURE, "") for c in group.values() if c.text)
            why = f"set in a branch, or changed later: {of_branch[0].why}"
            report.refuse(run.place(name), name, why, f"{shown}, each with the value of its branch")
        plan |= {} if of_branch else group  # an edit would be right in one branch only
    return plan


def prompt_limit(run: TrlRun, call: ast.Call | None = None):
    """(Tokens that the old version cut prompts to, None or UNKNOWN; their source before the trainer's call)."""
    limit, node, default = run.value("max_prompt_length"), run.nodes.get("max_prompt_length"), 0
    if run.config == "DPOConfig" and run.before("0.12"):
        limit, default = limit or 128, 128
    limit = 512 if limit == -1 else limit  # DPO of 0.28: not set
    if limit is not UNKNOWN:
        is_name = call and isinstance(node, ast.Name) and not run.source.rebound(node, node, call)
        return limit, node.id if is_name and run.value("max_prompt_length") == limit else str(limit)
    is_field = "max_prompt_length" in run.fields  # which stays, as the class of the settings is the script's
    text = f"{run.source.code(run.unseen_args)}.max_prompt_length" if is_field else run.text("max_prompt_length")
    return limit, f"{term(text)} or {default}"


def old_rows(run: TrlRun, takes_text: bool, call: ast.Call | None = None) -> tuple[str, Change] | None:
    """(Source, row of the table) of a method that makes rows as the old version; None if not needed.

    `takes_text`: SFT's rows are plain texts, to which the old version added no end token.
    """
    limit, shown = prompt_limit(run, call)
    is_cut, cuts_rows = run.before("0.29") and limit is not None, run.config == "DPOConfig" and run.before("0.12")
    if run.config in SAMPLING and (is_cut or run.before("0.26")):
        values = {"limit": shown if is_cut else "0", "special": not run.before("0.26")}
        return one_method("Prompts", "prompts" if is_cut else "plain_prompts", **values)
    if run.config == "DPOConfig" and is_cut:
        longest = "512" if run.value("max_length") is None else run.text("max_length")
        answer = f"{term(longest)} - {term(shown)}" if cuts_rows else run.text("max_completion_length")
        part = ":limit" if cuts_rows and run.value("truncation_mode") == "keep_start" else "-limit:"
        values = {"answer": "None" if answer == "-1" else answer, "longest": longest if cuts_rows else "0"}
        rule = "cut_rows" if cuts_rows else "prompts"
        return one_method("DPO", rule, limit=shown, part=f"prompt[{part}]", **values)
    if run.config == "SFTConfig" and run.before("0.16") and run.value("packing") is not True and takes_text:
        return one_method("SFT", "end_token")
    return None


def old_methods(run: TrlRun) -> list[tuple[str, Change]]:
    """The same for each rule of by_hand.json whose difference a method restores."""
    rules = [(rule, entry) for rule, entry in rules_of("trl", run.version) if "method" in entry]
    return [one_method(entry["method"], rule) for rule, entry in rules if applies(run, entry)]


def one_method(name: str, rule: str, **values) -> tuple[str, Change]:
    """The body of a class of old_trainers.py, filled with values, and its row."""
    text = OLD_TRAINERS.partition(f"\nclass {name}(")[2].partition("\n\n\n")[0].partition("\n")[2].rstrip()
    why = RULES[rule]["why"]
    row = by_hand(re.search(r"(\w+)(?:\(| = )", text)[1], "", rule)
    return with_values(text, comment=f"{why[0].upper()}{why[1:]}.", **values), row


def config_of(job: YamlJob) -> str:
    """The config class that a key of the file gives away; "" if none does."""
    names = {word.key.rpartition(".")[2] for word in job.words}
    return next((config for key, config in NAMES["signs"].items() if key in names), "")


def home_of(job: YamlJob, config: str) -> str:
    """The section that has the settings of a config, with a dot; "" for the file as a whole."""
    settings = {*trl_defaults(config), *changes("trl")["configs"].get(config, {}), *changes("trl")["configs"][BASE]}
    places = [w.key.rpartition(".") for w in job.words if settings.isdisjoint(w.key.split(".")[:-1])]
    homes = Counter(section for section, _, name in places if name in settings)
    home = max(homes, key=lambda section: (homes[section], section == ""), default="")
    rivals = homes.keys() - {"", home}
    others = sorted(section for section in rivals if homes[section] > max(2, homes[home] / 2))
    got = f"got {job.name} with settings of {config} in {' and in '.join([home, *others])}"
    need(not home or not others, f"{got}; expected one section; try a file for each")
    return f"{home}." if home else ""


def run_of(job: YamlJob, config: str, version: str) -> TrlRun:
    """The run of a YAML file, with its settings as arguments of a config's call."""
    import yaml

    given = yaml.safe_load(job.text)
    for section in home_of(job, config).split(".")[:-1]:
        given = given[section]
    given = {key: value for key, value in given.items() if str(key).isidentifier()}
    source = PythonSource(job.name, f"{config}({', '.join(f'{key}={value!r}' for key, value in given.items())})")
    return TrlRun(source, config, version, source.calls[config][0])


def migrate_yaml(job: YamlJob, run: TrlRun) -> Report:
    """Edit the settings of a file; refuse what only a class in a script restores."""
    report, home = Report(), home_of(job, run.config)
    plan = planned(run, report)
    for key, change in [*plan.items()]:
        try:
            value = change.text and run.source.value(ast.parse(change.text, mode="eval").body)
            plan[key] = replace(change, text=change.text and json.dumps(value))
        except ValueError:
            report.refuse("", f"{key}: {run.text(key)}", change.why, "the value by hand, as it is computed")
            del plan[key]
    plan = {f"{home}{key}": replace(change, name=f"{home}{change.name}") for key, change in plan.items()}
    for word in [word for word in job.words if word.key.endswith("torch_dtype")]:
        key = word.key.removesuffix("torch_dtype") + "dtype"
        plan[word.key] = Change(key, word.value, "transformers 5.0", "its new name", "fp32")
    given = {word.key for word in job.words}
    edits = [(word, plan[word.key]) for word in job.words if word.key in plan]
    job.apply(edits, [change for key, change in plan.items() if key not in given], report)
    nearest = "the class that migrate.py puts into a script, or rows that are short enough"
    if limit := run.value("max_prompt_length"):
        report.refuse("", f"max_prompt_length: {limit}", "prompts are no longer cut", nearest)
    if run.config == "SFTConfig" and old_rows(run, run.has("dataset_text_field")):
        report.refuse("", "dataset_text_field", RULES["end_token"]["why"], nearest.split(", or")[0])
    starts = {word.key.removeprefix(home): word.start for word in job.words}
    for entry in report.impossible:
        key = re.match(r"\w*", entry["setting"])[0]
        entry["line"] = job.place(starts[key]) if key in starts else ""
    return report
