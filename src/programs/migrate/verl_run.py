"""Migrate a verl job to the newest version: keys, values, and defaults that changed silently."""

import re
from dataclasses import replace

from parts.data.verl_keys import ACTOR, GONE, ROLLOUT, advice_today, known_names
from parts.foundation.messages import suggest
from programs.migrate.edits import RULES, Change, Report, by_hand, rules_of
from programs.migrate.job_files import IN_BRANCH, SECTIONS, ShellJob, Word, YamlJob
from programs.migrate.tables import ABSENT, NAMES, changes, end_of, is_gone, newest, numbers, value_at

OLD_SECTIONS = ("reward_model.", "custom_reward_function.", "sandbox_fusion.", "ray_init.")
FREE = ("reward.reward_kwargs.", "reward.custom_reward_function.reward_kwargs.", "ray_kwargs.")  # take any name
MANAGERS = ("naive", "dapo", "gdpo", "remote", "rate_limited")
# Settings that only say how the machine holds the old reward model, or gradients.
OF_THE_MACHINE = re.compile(
    r"reward_model\.(micro_batch_size\w*|forward_\w+|use_dynamic_bsz|ulysses_\w+|prime_\w+|strategy"
    r"|model\.(fsdp_config\.[\w.]+|use_\w+))|.*\.grad_offload"
)
NUMBER = r"\d+|\$\w+|\$\{.*\}"  # or a shell variable for one
UNSET = ("False", "false", "null", "None", "0", "-1")
# (Key, value) that verl never read.
UNREAD = {("data.truncation", "left"), ("data.truncation", "error"), ("data.reward_fn_key", "data_source")}
OWN_CONFIG = re.compile(
    r"--config-(?:name[= ](?!['\"]?ppo_(?:megatron_)?trainer\b)|path[= ](?!['\"]?(?:\./)?config\b))\S+"
)
BATCH, PROMPTS = "data.gen_batch_size", "data.train_batch_size"
TARGET = r"\+?[\w.]+(?:=[\w-]+)?"  # advice that is a key, not a sentence


class VerlMigration:
    """One job from one version of verl to the newest."""

    def __init__(self, job: ShellJob | YamlJob, version: str, report: Report):
        self.job, self.version, self.report = job, version, report
        self.given: dict[str, Word] = {}
        for word in job.words:
            is_unsure = word.in_branch or self.given.get(word.key, word).value != word.value
            self.given[word.key] = replace(word, value=IN_BRANCH, literal=None) if is_unsure else word
        self.is_megatron = bool(re.search(r"ppo_megatron|model_engine(=|: )megatron", job.text))
        self.engine = known_names("megatron" if self.is_megatron else "dp")
        self.known = known_names("dp") | known_names("megatron")

    def before(self, version: str) -> bool:
        return numbers(self.version) < numbers(version)

    def migrate(self) -> None:
        report, job, edits, added, silent = self.report, self.job, [], {}, {}
        for name, start, _ in other_mains(job):
            nearest = "its authors' newest version; this script migrates jobs of verl.trainer.main_ppo"
            is_known = name.startswith(("verl.", "recipe.dapo."))
            nearest = NAMES["successors"].get(name.split(".")[-1], nearest) if is_known else nearest
            report.refuse(job.place(start), name, "a main module of its own", nearest)
        if other_mains(job):
            return
        for word in job.words:  # one key may stand twice, with a value for each branch
            changes = self.word(word)
            if len(changes) > 1 and self.is_unsure(word.key):
                names = ", ".join(change.name for change in changes.values())
                self.refuse(word, word.key, "set in a branch, or with several values", f"{names} there")
            elif word.key in changes:
                edits.append((word, changes.pop(word.key)))
                added |= changes
        done = {word.key for word, _ in edits}
        known = done | {x["setting"].partition("=")[0] for x in report.impossible}
        if fork := [w.key for w in job.words if w.sign == "+" and w.key not in known and not self.reads(w)]:
            report.note(f"verl does not read +{', +'.join(fork)}: settings of a fork, or of your own code")
        if matches := [*OWN_CONFIG.finditer(job.text)]:  # a configuration file or folder that is not verl's
            why = "settings of that file cannot be seen here: defaults that changed are not written"
            nearest = f"migrate.py on that file too, with --from verl=={self.version}"
            report.refuse(job.place(matches[0].start()), " ".join(match[0] for match in matches), why, nearest)
        else:
            silent = {key: change for key, change in self.silent().items() if key not in done}
        # defaults come before all words of a command, so that a word in a branch wins if it runs
        sure = {key for key in self.given if not self.is_unsure(key)}
        edits += [(word, silent[word.key]) for word in job.words if word.key in {*silent} & sure]
        job.apply(edits, [c for key, c in (added | silent).items() if key not in sure], report)
        if "VLLM_ATTENTION_BACKEND=" in job.text:
            report.note("VLLM_ATTENTION_BACKEND=XFORMERS was for vLLM 0.6; leave it out with today's")

    def is_unsure(self, key: str) -> bool:
        """Whether a setting is given in a branch, or with several values."""
        return self.text(key) == IN_BRANCH

    def nearest(self, key: str) -> str:
        """Advice for an unknown key: verl's most similar key, or to leave it out."""
        section, _, last = key.rpartition(".")
        names = key.split(".")[-1 if key.partition(".")[0] in SECTIONS else -2 :]  # two, if verl lacks the section
        alike = [x for x in self.known if x.endswith("." + ".".join(names))]
        alike += [x for x in self.known if x.startswith(f"{section}.") and suggest(last, [x.rpartition(".")[2]], 0.85)]
        return suggest(key, sorted(alike), 0).removeprefix("; try ") or "leaving it out"

    def refuse(self, word: Word, setting: str, why: str, nearest: str) -> None:
        self.report.refuse(self.job.place(word.start), setting, why, nearest)

    def reads(self, word: Word) -> bool:
        """Whether verl reads a key: it is known, or lies in a dictionary that takes any name."""
        parts = word.key.lstrip("+").split(".")
        above = [".".join(parts[:end]) for end in range(2, len(parts))]
        is_free = any(x in self.known and not any(k.startswith(f"{x}.") for k in self.known) for x in above)
        is_free = is_free or word.key.lstrip("+").startswith(FREE) or ".override_" in word.key
        return word.key.lstrip("+") in self.known or (is_free and (word.sign != "" or isinstance(self.job, YamlJob)))

    def manager(self, word: Word, target: str) -> dict[str, Change]:
        """The change of a reward manager: prime becomes naive, as both score row by row; unknown ones are refused."""
        name = "naive" if word.plain == "prime" else word.value
        if word.is_fixed and word.plain not in (*MANAGERS, "prime"):
            nearest = "a class of RewardManagerBase, by reward.reward_manager.source=importlib, name and module.path"
            nearest = "naive, with a function of one row" if word.plain == "batch" else nearest
            self.refuse(word, f"{word.key}={word.value}", "verl no longer has this manager", nearest)
        return {word.key: Change(target, name, self.since(word.key), "its new name", "ignored")}

    def word(self, word: Word) -> dict[str, Change]:
        """{key: change} of a setting that the job gives, under its own key or new ones; {} leaves it."""
        key, newest_verl = word.key, newest("verl")
        if key in NAMES["per_job"] and word.plain not in ("null", "None"):
            return self.per_gpu(word)
        if word.sign == "~":
            gone = Change(key, None, newest_verl, "nothing to delete", "an error of Hydra")
            return {} if key in self.known else {key: gone}
        is_other = self.text(BATCH) not in ("", "null", f"${{{PROMPTS}}}", self.text(PROMPTS))
        if key in (BATCH, PROMPTS) and is_other and self.before("0.9") and not self.before("0.4"):
            return self.prompts(word)
        if (neutral := self.neutral(word)) is not None:
            return neutral
        if key == f"{ROLLOUT}.load_format" and re.fullmatch("dummy_(dtensor|megatron|hf)", word.plain):
            return {key: Change(key, "dummy", self.since(key), "its new name", "an error")}
        if key == f"{ACTOR}.clip_ratio" and not self.before("0.4"):  # in all losses, up to today
            self.report.note(f"{key} is read only if clip_ratio_low or _high is null, as then; their default is 0.2")
            return {}
        if key.startswith("algorithm.filter_groups.") and self.before("0.9"):
            return {key: Change(key, None, newest_verl, "main_ppo did not read it", "it acts")}
        if entry := self.moved(word):
            return self.renamed(word, *entry)
        if word.sign == "+" and key in self.known and not word.plain.startswith("{"):
            return {key: Change(key, word.value, newest_verl, "a key of its own today: no +", "an error of Hydra")}
        is_anchor = "." not in key and str(word.value).startswith("&")  # a name of the file's own, which *name reads
        if not word.sign and self.known and not self.reads(word) and not is_anchor:
            was_there = ".megatron." in key or key in changes("verl")["keys"]
            why = "no release's ppo_trainer.yaml has it: it is a fork's or another trainer's"
            self.refuse(word, key, f"verl {newest_verl} does not have it" if was_there else why, self.nearest(key))
        return {}

    def neutral(self, word: Word) -> dict[str, Change] | None:
        """The change of a setting that the old version did not read: to a value that does nothing; None for others.

        Refused are a setting that acted then and does nothing today (its rule has "nearest"), and one whose rule
        depends on a value that is not known here.
        """
        for rule, entry in self.rules():
            target, _, value = entry.get("neutral", {}).get(word.key, "").rpartition("=")
            if not value or is_equal(word.plain, value):
                continue
            target, nearest = target or word.key, entry.get("nearest")
            for condition in entry.get("where", ()):
                if re.search("[$`]", self.text(re.search(r"[\w.]+", condition)[0])):
                    nearest = nearest or f"{target}={value} if {condition}"
            if not nearest:
                return {word.key: by_hand(target, value if target in self.engine else None, rule)}
            self.refuse(word, f"{word.key}={word.value}", entry["why"], nearest)
            return {}
        return None

    def rules(self) -> list[tuple[str, dict]]:
        """The rules of the old version whose conditions all hold for this job."""
        return [(r, e) for r, e in rules_of("verl", self.version) if all(map(self.holds, e.get("where", ())))]

    def holds(self, condition: str) -> bool:
        """Whether a condition holds: a part of the run, KEY (given and on), !KEY, KEY=VALUE, KEY!=VALUE or KEY|KEY."""
        if "|" in condition:
            return any(map(self.holds, condition.split("|")))
        has_reference = self.before("0.4") or self.is_on("algorithm.use_kl_in_reward")
        has_reference = has_reference or self.is_on(f"{ACTOR}.use_kl_loss")
        parts = {"critic": self.has_critic, "reference": has_reference, "megatron": self.is_megatron}
        is_not, name, sign, value = re.fullmatch(r"(!?)([\w.]+)(!?=|)(.*)", condition).groups()
        is_so = is_equal(self.text(name), value) if sign else parts.get(name, self.is_on(name))
        return is_so != (bool(is_not) or sign == "!=")

    def prompts(self, word: Word) -> dict[str, Change]:
        """The change of data.train_batch_size, or of data.gen_batch_size, which won over it."""
        if self.is_unsure(BATCH):
            self.refuse(word, BATCH, f"{RULES['fetched']['why']}; it is set in a branch", f"{PROMPTS} there")
            return {}
        is_second = word.key == BATCH and PROMPTS in self.given
        return {word.key: by_hand(PROMPTS, None if is_second else self.given[BATCH].value, "fetched")}

    def renamed(self, word: Word, targets: list[str], why: str, otherwise: str) -> dict[str, Change]:
        """Changes of one setting to today's targets: KEY, or KEY=VALUE if the value changes too; none removes it."""
        key, plan = word.key, []
        for target, _, value in [target.partition("=") for target in targets]:
            if target == "reward.reward_manager.name":
                return self.manager(word, target)
            today = replace(word, key=target, sign=target[: target.startswith("+")])
            if not self.reads(today) and self.reads(replace(today, sign="+")):
                target = f"+{target}"
            elif not self.reads(today):
                if self.is_off(word):
                    return {key: Change(key, None, self.since(key), f"{key}: gone, and the run is the same", otherwise)}
                self.refuse(word, f"{key}={word.value}", f"verl has neither it nor {target}", self.nearest(target))
                return {}
            if target.lstrip("+") not in {*self.given} - {key}:
                plan.append(Change(target, value or word.value, self.since(key), why, otherwise))
        why = f"{key}: {why}" if not targets else f"given as {' and '.join(targets)}, too"
        first = plan[0] if plan else Change(key, None, self.since(key), why, otherwise)
        return {key: first} | {change.name: change for change in plan[1:]}

    def since(self, key: str) -> str:
        if key == f"{ACTOR}.clip_ratio":
            return "0.4"
        history = changes("verl")["keys"].get(key, {})
        later = [v for v, value in history.items() if is_gone(value) or numbers(v) > numbers(self.version)]
        return later[-1] if later else newest("verl")

    def is_off(self, word: Word) -> bool:
        """Whether the old version did the same without this setting."""
        default = value_at(changes("verl")["keys"].get(word.key, {}), self.version, None)
        return word.plain in UNSET or is_equal(word.plain, default) or (word.key, word.plain) in UNREAD

    def moved(self, word: Word) -> tuple[list[str], str, str] | None:
        """(New keys, none to remove the setting; why; what verl does with the old one), or None to keep it."""
        key, is_same, advice = word.key, self.is_off(word), advice_today(word.key, word.plain)
        gone = end_of(changes("verl")["keys"].get(key, {}))
        if gone.get("renamed"):
            return [gone["renamed"]], "its new name", "an error of Hydra"
        if not advice and (not gone or key in self.engine):
            return None
        effect, instead = advice or ("", "leaving it out")
        otherwise = f"verl {effect}" if advice else "an error of Hydra"
        if re.fullmatch(f"{TARGET}(?: and {TARGET})*", instead) and (
            "=" not in instead or (effect == GONE and not is_same)
        ):
            names = re.findall(TARGET, instead.replace(" and ", " "))
            why = "its new form" if "=" in instead or len(names) > 1 else "its new name"
            return [name[name[1:] in self.known :] for name in names], why, otherwise
        if word.sign == "+" and self.reads(word):
            return None
        if key not in self.known and self.reads(replace(word, sign="+")):
            return [f"+{key}"], "it is no key of its own: +", otherwise
        is_same = is_same or OF_THE_MACHINE.fullmatch(key) or instead.partition("=")[0] in {*self.given} - {key}
        if not is_same and not (advice and instead.startswith("leaving it out")):
            self.refuse(word, f"{key}={word.value}", otherwise if advice else f"gone since {gone['since']}", instead)
            return None if key in self.known else ([], "gone, see the top", otherwise)
        return [], "gone, and the run is the same", otherwise

    def per_gpu(self, word: Word) -> dict[str, Change]:
        """Turn a micro-batch size of the whole job into one per GPU."""
        new = f"{word.key}_per_gpu"
        keys = ("trainer.n_gpus_per_node", 8), ("trainer.nnodes", 1)
        keys += ((f"{NAMES['per_job'][word.key]}.ulysses_sequence_parallel_size", 1),)
        texts = [replace(self.given[key], literal=None).plain if key in self.given else str(n) for key, n in keys]
        size = replace(word, literal=None).plain  # variables stay
        if new in self.given:
            return {word.key: Change(word.key, None, "0.2", f"{new} is given too", "an error")}
        if all(text.isdigit() for text in (*texts, size)):
            gpus, nodes, parallel = map(int, texts)
            value = str(int(size) // max(1, gpus * nodes // parallel))
        elif isinstance(self.job, ShellJob) and all(re.fullmatch(NUMBER, x) for x in (*texts, size)):
            value = "$(({} / ({} * {} / {})))".format(size, *texts)  # the shell divides
        else:
            value = "0"
        if value == "0":
            why = f"{RULES['micro_batch']['why']}: less than one row, or not known here"
            self.refuse(word, f"{word.key}={word.value}", why, f"{new}={word.value} / (nnodes x n_gpus_per_node)")
            return {}
        return {word.key: by_hand(new, value, "micro_batch")}

    def silent(self) -> dict[str, Change]:
        """Settings to write out, as the job does not give them and the old version's default or code differed."""
        plan = {}
        for key, history in changes("verl")["keys"].items():
            if not self.is_open(key) or (key.startswith("critic.") and not self.has_critic):
                continue
            is_packed = key.endswith(".use_remove_padding") and self.is_megatron  # whatever it says
            old, new = value_at(history, self.version), value_at(history, newest("verl"))
            is_out = is_packed or key in NAMES["not_written"] or key.startswith(OLD_SECTIONS)
            if is_out or old is ABSENT or new is ABSENT:
                continue
            if not is_equal(old, new) and "$" not in f"{old}{new}":
                value = "null" if old is None else str(old)
                shown = "none: it has to be given" if new == "???" else str(new)
                plan[key] = Change(key, value, self.since(key), "its default then", shown)
        plan |= self.by_code()
        return {key: change for key, change in plan.items() if self.is_open(key)} | self.mean_of_loss()

    def is_open(self, key: str) -> bool:
        """Whether verl has a key, and the job does not give it in every case."""
        return key in self.engine and (key not in self.given or self.is_unsure(key))

    @property
    def has_critic(self) -> bool:
        estimator = self.given.get("algorithm.adv_estimator")
        return not estimator or not estimator.is_fixed or estimator.plain == "gae"

    def text(self, key: str, default: str = "") -> str:
        return self.given[key].plain if key in self.given else default

    def is_on(self, key: str) -> bool:
        """Whether a setting is given and not switched off."""
        return self.text(key) != "" and not any(is_equal(self.text(key), off) for off in UNSET)

    def by_code(self) -> dict[str, Change]:
        """Settings that restore old behaviour of verl's code, which no default shows."""
        kl_loss, key, plan = self.given.get(f"{ACTOR}.use_kl_loss"), "algorithm.use_kl_in_reward", {}
        if self.before("0.4") and kl_loss and not kl_loss.is_fixed:
            why = f"{RULES['kl_in_reward']['why']}; it is a variable here, or set in a branch"
            self.refuse(kl_loss, f"{kl_loss.key}={kl_loss.value}", why, f"{key}=True where use_kl_loss is False")
        elif self.before("0.4") and (not kl_loss or kl_loss.plain.lower() != "true"):
            plan[key] = by_hand(key, "True", "kl_in_reward")
        for rule, entry in self.rules():
            plan |= {name: by_hand(name, value, rule) for name, value in entry.get("set", {}).items()}
            if "set" in entry or "neutral" in entry:
                continue
            if "nearest" in entry:
                self.report.refuse("", entry["what"], entry["why"], entry["nearest"])
            else:
                self.report.note_rule(entry)
        return plan

    def mean_of_loss(self) -> dict[str, Change]:
        """Restore a loss averaged over each GPU's micro-batch, if today's average over the mini-batch can equal it."""
        mode, scale, rows = f"{ACTOR}.loss_agg_mode", f"{ACTOR}.loss_scale_factor", self.rows()
        kind, length = self.text(mode, "token-mean"), self.text("data.max_response_length", "512")
        has_old_engine = self.before("0.8") and self.text("trainer.use_legacy_worker_impl") != "disable"
        change, rule, nearest = None, "token_mean", "token-mean as it is"
        loss = self.text(f"{ACTOR}.policy_loss.loss_mode", "vanilla")
        has_terms = self.is_on(f"{ACTOR}.use_kl_loss") or self.is_on(f"{ACTOR}.entropy_coeff")
        if not self.before("0.9"):
            return {}
        if "$" in loss + kind:
            why = f"known at run time only; for token-mean: {RULES[rule]['why']}; for gspo: {RULES['gspo_mean']['why']}"
            self.report.refuse("", f"{mode}={kind}", why, nearest)
            return {}
        if loss == "gspo" and kind != "seq-mean-token-mean":
            rule, nearest = "gspo_mean", f"{mode}=seq-mean-token-mean for gspo"
            change = None if has_terms else by_hand(mode, "seq-mean-token-mean", rule)
        elif loss == "geo_mean" and has_old_engine and not self.is_one_micro_batch(rows):
            rule, nearest = "geo_mean", f"{ACTOR}.ppo_micro_batch_size_per_gpu = the rows of a mini-batch on one GPU"
        elif loss in ("gspo", "sapo", "geo_mean") and not has_terms:  # loss_agg_mode does not affect their mean
            return {}
        elif kind == "token-mean" and has_old_engine and not self.is_one_micro_batch(rows, gpus=1):
            change = by_hand(mode, "seq-mean-token-mean", "token_mean_of_row") if rows == "1" else None
        elif kind == "seq-mean-token-sum-norm" and self.before("0.7"):
            rule, nearest = "sum_of_rows", f"{scale} = max_response_length / ppo_micro_batch_size_per_gpu"
            if rows.isdigit() and length.isdigit():
                change = by_hand(scale, str(int(length) / int(rows)).removesuffix(".0"), rule)
        elif kind == "seq-mean-token-sum-norm" and scale not in self.given:
            change = by_hand(scale, length, "response_length")
        else:
            return {}
        if not change:
            place = self.job.place(self.given[mode].start) if mode in self.given else ""
            self.report.refuse(place, f"{mode}={kind}", RULES[rule]["why"], nearest)
        return {change.name: change} if change else {}

    def is_one_micro_batch(self, rows: str, gpus: int = 0) -> bool:
        """Whether each of `gpus` GPUs (0: any number) runs its share of a mini-batch at once; False for variables."""
        keys = (f"{ACTOR}.ppo_mini_batch_size", f"{ROLLOUT}.n", "trainer.n_gpus_per_node", "trainer.nnodes")
        texts = [self.text(key, default) for key, default in zip(keys, ("256", "1", "8", "1"), strict=True)]
        if not all(map(str.isdigit, [rows, *texts])):
            return False
        mini, n, gpus_per_node, nodes = map(int, texts)
        world = gpus_per_node * nodes
        return gpus in (0, world) and int(rows) * world == mini * n

    def rows(self) -> str:
        """Rows in each micro-batch of a GPU, as text; "" if that varies or is not known here."""
        keys = [f"{section}.ppo_micro_batch_size" for section in (ACTOR, "critic")[: 1 + self.has_critic]]
        of_job = {key: self.per_gpu(self.given[key]) for key in keys if key in self.given}
        counts = {self.text(f"{k}_per_gpu") or next((c.text for c in of_job.get(k, {}).values()), "") for k in keys}
        is_fixed = len(counts) == 1 and not self.is_on(f"{ACTOR}.use_dynamic_bsz")
        return counts.pop() if is_fixed else ""


def other_mains(job: ShellJob | YamlJob) -> list[tuple[str, int, int]]:
    return [m for m in job.mains if m[0].split("/")[-1] not in ("verl.trainer.main_ppo", "main_ppo.py")]


def is_equal(old, new) -> bool:
    """Whether two values mean the same setting, such as 1 and 1.0, or true and True."""
    try:
        return float(str(old)) == float(str(new))
    except ValueError:
        return str(old).lower() == str(new).lower()
