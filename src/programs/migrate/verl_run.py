"""A verl job of an old version as a job of the newest: keys, values, and defaults that changed in silence."""

import importlib.util
import re
import shlex
from dataclasses import replace
from pathlib import Path

from parts.data.verl_keys import ACTOR, GONE, ROLLOUT, advice_today, known_names
from parts.foundation.messages import suggest
from programs.migrate.edits import Change, Report, by_hand, rules_of
from programs.migrate.job_files import ShellJob, Word, YamlJob
from programs.migrate.tables import NAMES, changes, entry_at, is_there, newest, numbers

OLD_SECTIONS = ("reward_model.", "custom_reward_function.", "sandbox_fusion.", "ray_init.")
FREE = ("reward.reward_kwargs.", "reward.custom_reward_function.reward_kwargs.", "ray_kwargs.")  # any name below
MANAGERS = ("naive", "dapo", "gdpo", "remote", "rate_limited")
# Settings of the old reward model that only place it on the machine.
OF_THE_MACHINE = re.compile(
    r"reward_model\.(micro_batch_size\w*|forward_\w+|use_dynamic_bsz|ulysses_\w+|prime_\w+|strategy"
    r"|model\.(fsdp_config\.\w+|use_remove_padding))"
)
NUMBER = r"\d+|\$\w+|\$\{.*\}"  # or a variable of the shell, which has one
UNSET = ("False", "false", "null", "None", "0")


class VerlMigration:
    """One job from one version of verl to the newest."""

    def __init__(self, job: ShellJob | YamlJob, version: str):
        self.job, self.version, self.report = job, version, Report()
        self.given: dict[str, Word] = {word.key: word for word in job.words}
        self.known = known_names("dp") | known_names("megatron")

    def before(self, version: str) -> bool:
        return numbers(self.version) < numbers(version)

    def migrate(self) -> Report:
        report, job, plan = self.report, self.job, {}
        others = [m for m in job.mains if m[0].split("/")[-1] not in ("verl.trainer.main_ppo", "main_ppo.py")]
        for name, start, _ in others:
            nearest = "its authors' newest version; this script migrates jobs of verl.trainer.main_ppo"
            nearest = NAMES["successors"].get(name.split(".")[-1], nearest) if name.startswith("verl.") else nearest
            report.refuse(job.place(start), name, "a main module of its own", nearest)
        if others:
            return report
        for word in job.words:
            plan |= self.word(word)
        if fork := [w.key for w in job.words if w.sign == "+" and w.key not in plan and not self.read(w)]:
            report.note(f"verl does not read +{', +'.join(fork)}: settings of a fork, or of your own code")
        own = re.search(r"--config-name[= ]+['\"]?([\w./-]+)", job.text)
        if own and own[1].removesuffix(".yaml") not in ("ppo_trainer", "ppo_megatron_trainer"):
            why = "settings of that file cannot be seen here: defaults that changed are not written"
            nearest = f"migrate.py FILE/{own[1]}.yaml --from verl=={self.version} --out NEW.yaml"
            report.refuse(job.place(own.start()), own[0], why, nearest)
        else:
            plan |= {key: change for key, change in self.silent().items() if key not in plan}
        job.apply(plan, report)
        if "VLLM_ATTENTION_BACKEND" in job.text:
            report.note("VLLM_ATTENTION_BACKEND=XFORMERS was for vLLM 0.6; leave it out with today's")
        return report

    def refuse(self, word: Word, setting: str, why: str, nearest: str) -> None:
        self.report.refuse(self.job.place(word.start), setting, why, nearest)

    def read(self, word: Word) -> bool:
        """Whether verl has a key, or a dictionary of free names that it stands in."""
        parts = word.key.lstrip("+").split(".")
        above = [".".join(parts[:end]) for end in range(2, len(parts))]
        is_free = any(x in self.known and not any(k.startswith(f"{x}.") for k in self.known) for x in above)
        is_free = is_free or word.key.lstrip("+").startswith(FREE) or ".override_" in word.key
        return word.key.lstrip("+") in self.known or (is_free and (word.sign != "" or isinstance(self.job, YamlJob)))

    def manager(self, word: Word, target: str) -> dict[str, Change]:
        """The reward manager: prime scored each row, as naive does; others have another form today."""
        name = "naive" if word.plain == "prime" else word.value
        if word.is_fixed and word.plain not in (*MANAGERS, "prime"):
            own = "a class of RewardManagerBase, by reward.reward_manager.source=importlib, name and module.path"
            nearest = "naive, with a function of one row" if word.plain == "batch" else own
            self.refuse(word, f"{word.key}={word.value}", "verl no longer has this manager", nearest)
        return {word.key: Change(target, name, self.since(word.key), "its new name", "ignored")}

    def word(self, word: Word) -> dict[str, Change]:
        """What becomes of a setting that is given."""
        key, newest_verl = word.key, newest("verl")
        if key in NAMES["per_job"] and word.plain not in ("null", "None"):
            return self.per_gpu(word)
        if key == f"{ACTOR}.clip_ratio":
            return self.both_sides(word)
        if key == f"{ROLLOUT}.load_format" and re.fullmatch("dummy_(dtensor|megatron|hf)", word.plain):
            return {key: Change(key, "dummy", self.since(key), "its new name", "an error")}
        if entry := self.moved(word):
            target, why, otherwise = entry
            if target == "reward.reward_manager.name":
                return self.manager(word, target)
            to = (target or "").partition("=")[0]
            if target and not self.read(replace(word, key=to, sign=to[: to.startswith("+")])):
                near = suggest(target, sorted(self.known)).removeprefix("; try ") or "leaving it out"
                self.refuse(word, f"{key}={word.value}", f"verl has neither it nor {target}", near)
                return {}
            if target is not None and target.lstrip("+") not in self.given:
                target, _, value = target.partition("=")
                return {key: Change(target, value or word.value, self.since(key), why, otherwise)}
            why = why if target is None else f"{target} is given too"
            return {key: Change(key, None, self.since(key), f"{key}: {why}", otherwise)}
        if word.sign == "+" and key in self.known and not word.plain.startswith("{"):
            return {key: Change(key, word.value, newest_verl, "a key of its own today: no +", "an error of Hydra")}
        if not word.sign and self.known and not self.read(word):
            near = suggest(key, sorted(self.known)).removeprefix("; try ") or "leaving it out"
            why = "no release's ppo_trainer.yaml has it: it is a fork's or another trainer's"
            if ".megatron." in key or key in changes("verl")["keys"]:
                why = f"verl {newest_verl} does not have it"
            self.refuse(word, key, why, near)
        return {}

    def since(self, key: str) -> str:
        entries = changes("verl")["keys"].get(key, [])
        later = [e["since"] for e in entries if numbers(e["since"]) > numbers(self.version)]
        return later[-1] if later else newest("verl")

    def moved(self, word: Word) -> tuple[str | None, str, str] | None:
        """(New key or None to leave it out, why, what verl does with the old one)."""
        key = word.key
        entry = entry_at(changes("verl")["keys"].get(key, []), newest("verl"))
        if entry.get("gone") and entry.get("renamed"):
            return entry["renamed"], "its new name", "an error of Hydra"
        if advice := advice_today(key, word.plain):
            effect, instead = advice
            if re.fullmatch(r"\+?[\w.]+", instead):
                return instead[instead[1:] in self.known :], "its new name", f"verl {effect}"
            other, _, value = instead.partition("=")
            is_same = instead.startswith("leaving it out") or OF_THE_MACHINE.fullmatch(key) or other in self.given
            is_same = is_same or (key == "data.truncation" and word.plain in ("left", "error"))
            if effect == GONE and re.fullmatch(r"[\w-]+", value):
                return f"{other}={value}", "its new form", f"verl {effect}"
            if word.plain not in UNSET and not is_same:
                self.refuse(word, f"{key}={word.value}", f"verl {effect}", instead)
            return None, "gone, and the run is the same", f"verl {effect}"
        if entry.get("gone"):
            if word.plain not in UNSET and not key.startswith(("reward_model", "trainer")):
                self.refuse(word, key, f"gone since {entry['since']}", "leaving it out")
            return None, "gone", "an error of Hydra"
        return None

    def per_gpu(self, word: Word) -> dict[str, Change]:
        """A micro batch of the whole job as one of each GPU."""
        new = f"{word.key}_per_gpu"
        keys = ("trainer.n_gpus_per_node", 8), ("trainer.nnodes", 1)
        keys += ((f"{NAMES['per_job'][word.key]}.ulysses_sequence_parallel_size", 1),)
        texts = [self.given[key].plain if key in self.given else str(default) for key, default in keys]
        if new in self.given:
            return {word.key: Change(word.key, None, "0.2", f"{new} is given too", "an error")}
        if all(text.isdigit() for text in (*texts, word.plain)):
            gpus, nodes, parallel = map(int, texts)
            value = str(int(word.plain) // max(1, gpus * nodes // parallel))
        elif isinstance(self.job, ShellJob) and all(re.fullmatch(NUMBER, x) for x in (*texts, word.plain)):
            value = "$(({} / ({} * {} / {})))".format(word.plain, *texts)  # as the old version, by the shell
        else:
            value = "0"
        if value == "0":
            why = f"{by_hand('', '', 'micro_batch').why}: less than one row, or not known here"
            self.refuse(word, f"{word.key}={word.value}", why, f"{new}={word.value} / (nnodes x n_gpus_per_node)")
            return {}
        return {word.key: by_hand(new, value, "micro_batch")}

    def both_sides(self, word: Word) -> dict[str, Change]:
        """clip_ratio is no longer read: both sides of the bound."""
        keys = [k for k in (f"{ACTOR}.clip_ratio_{side}" for side in ("low", "high")) if k not in self.given]
        sides = [Change(key, word.value, "0.4", "each side has its own key", "0.2") for key in keys]
        first = sides.pop(0) if sides else Change(word.key, None, "0.4", "both sides are given too")
        return {word.key: first} | {change.name: change for change in sides}

    def silent(self) -> dict[str, Change]:
        """Settings that the old version had by default, or by its code, and that the job does not give."""
        plan, estimator = {}, self.given.get("algorithm.adv_estimator")
        has_critic = not estimator or not estimator.is_fixed or estimator.plain == "gae"
        for key, entries in changes("verl")["keys"].items():
            if key.startswith("critic.") and not has_critic:
                continue
            is_here = is_there(entries, self.version) and not entries[-1].get("gone")
            if not is_here or key in NAMES["not_written"] or key.startswith(OLD_SECTIONS):
                continue
            old, new = entry_at(entries, self.version)["default"], entries[-1]["default"]
            if not is_equal(old, new) and "$" not in f"{old}{new}":
                value = "null" if old is None else str(old)
                shown = "none: it has to be given" if new == "???" else str(new)
                plan[key] = Change(key, value, self.since(key), "its default then", shown)
        return {key: change for key, change in (plan | self.by_code()).items() if key not in self.given}

    def by_code(self) -> dict[str, Change]:
        """What no default shows."""
        kl_loss, key, plan = self.given.get(f"{ACTOR}.use_kl_loss"), "algorithm.use_kl_in_reward", {}
        if self.before("0.4") and kl_loss and not kl_loss.is_fixed:
            why = f"{by_hand('', '', 'kl_in_reward').why}; it is a variable here"
            self.refuse(kl_loss, f"{kl_loss.key}={kl_loss.value}", why, f"{key}=True where use_kl_loss is False")
        elif self.before("0.4") and (not kl_loss or kl_loss.plain.lower() != "true"):
            plan[key] = by_hand(key, "True", "kl_in_reward")
        for rule, entry in rules_of("verl", self.version):
            if "setting" in entry:
                plan[entry["setting"]] = by_hand(entry["setting"], entry["value"], rule)
            else:
                self.report.note(entry["why"])
        return plan


def is_equal(old, new) -> bool:
    """Whether two values are one setting, as 1 and 1.0 or true and True."""
    try:
        return float(str(old)) == float(str(new))
    except ValueError:
        return str(old).lower() == str(new).lower()


def as_shell_reads(job: ShellJob, word: Word) -> str:
    """A value without the shell's quotes, where they are not around the whole word."""
    is_quoted = job.text[word.start - 1 : word.start] in ("'", '"')
    return word.value.strip() if is_quoted else "".join(shlex.split(word.value))


def composed(job: ShellJob, report: Report) -> str:
    """Compose a new job with the verl of this Python; says what was checked."""
    package = importlib.util.find_spec("verl")
    if not package:
        return "names of keys, as verl is not installed here"
    from hydra import compose, initialize_config_dir

    words = [w for w in job.words if w.is_fixed]
    texts = [f"{w.sign}{w.key}" + f"={as_shell_reads(job, w)}" * (w.value is not None) for w in words]
    name = "ppo_megatron_trainer" if "ppo_megatron_trainer" in job.text else "ppo_trainer"
    try:
        folder = str(Path(package.origin).parent / "trainer" / "config")
        with initialize_config_dir(config_dir=folder, version_base=None):
            compose(name, overrides=texts)
    except Exception as error:
        line = str(error).strip().splitlines()[0]
        report.refuse("", "the new job", f"verl's configuration refuses it: {line}", "the key that it names")
    variables = len(job.words) - len(words)
    return f"composed with verl's own configuration, without the {variables} settings whose values are variables"
