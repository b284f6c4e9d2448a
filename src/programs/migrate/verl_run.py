"""A verl job of an old version as a job of the newest: keys, values, and defaults that changed in silence."""

import importlib.util
import re
from pathlib import Path

from parts.data.verl_keys import ACTOR, REF, ROLLOUT, advice_today, known_names
from parts.foundation.messages import suggest
from programs.migrate.edits import Change, Report, by_hand, rules_of
from programs.migrate.job_files import ShellJob, Word, YamlJob
from programs.migrate.tables import changes, entry_at, is_there, newest, numbers

PER_JOB = {  # sizes that counted the whole job -> the part with the sequence parallelism that shares them
    f"{ACTOR}.ppo_micro_batch_size": ACTOR,
    f"{REF}.log_prob_micro_batch_size": REF,
    f"{ROLLOUT}.log_prob_micro_batch_size": ACTOR,
    "critic.ppo_micro_batch_size": "critic",
    "critic.forward_micro_batch_size": "critic",
}
# Defaults that changed and say nothing of the run: the engine's room, names of old keys, validation.
NOT_WRITTEN = {
    *(f"{ACTOR}.optim.{name}" for name in ("warmup_style", "min_lr_ratio")),
    *(f"{ROLLOUT}.{name}" for name in ("enforce_eager", "load_format", "max_num_seqs", "mode", "calculate_log_probs")),
    f"{REF}.fsdp_config.forward_only",
    *("critic.optim.min_lr_ratio", "critic.optim.warmup_style", "data.return_raw_chat", "data.val_batch_size"),
    "trainer.resume_from_path",
}
OLD_SECTIONS = ("reward_model.", "custom_reward_function.", "sandbox_fusion.", "ray_init.")
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
            report.refuse(job.place(start), name, "a main module of its own", nearest)
        if others:
            return report
        for word in job.words:
            plan |= self.word(word)
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

    def word(self, word: Word) -> dict[str, Change]:
        """What becomes of a setting that is given."""
        key, newest_verl = word.key, newest("verl")
        if key in PER_JOB and word.plain not in ("null", "None"):
            return self.per_gpu(word)
        if key == f"{ACTOR}.clip_ratio":
            return self.both_sides(word)
        if key == f"{ROLLOUT}.load_format" and re.fullmatch("dummy_(dtensor|megatron|hf)", word.plain):
            return {key: Change(key, "dummy", self.since(key), "its new name", "an error")}
        if entry := self.moved(word):
            target, why, otherwise = entry
            if target is not None and target.lstrip("+") not in self.given:
                return {key: Change(target, word.value, self.since(key), why, otherwise)}
            why = why if target is None else f"{target} is given too"
            return {key: Change(key, None, self.since(key), f"{key}: {why}", otherwise)}
        if word.sign == "+" and key in self.known and not word.plain.startswith("{"):
            return {key: Change(key, word.value, newest_verl, "a key of its own today: no +", "an error of Hydra")}
        if not word.sign and self.known and key not in self.known:
            near = suggest(key, sorted(self.known)).removeprefix("; try ") or "leaving it out"
            self.refuse(word, key, f"verl {newest_verl} does not have it", near)
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
            if word.plain not in UNSET and not instead.startswith(("leaving it out", "data.filter_overlong")):
                self.refuse(word, f"{key}={word.value}", f"verl {effect}", instead)
            return None, "gone, and the run is the same", f"verl {effect}"
        if entry.get("gone"):
            if word.plain not in UNSET and not key.startswith(("reward_model", "trainer")):
                self.refuse(word, key, f"gone since {entry['since']}", "leaving it out")
            return None, "gone", "an error of Hydra"
        return None

    def number(self, key: str, default: int) -> int | None:
        """A whole number that the job gives, or the default; None for a variable."""
        plain = self.given[key].plain if key in self.given else str(default)
        return int(plain) if plain.isdigit() else None

    def per_gpu(self, word: Word) -> dict[str, Change]:
        """A micro batch of the whole job as one of each GPU."""
        new, why = f"{word.key}_per_gpu", by_hand("", "", "micro_batch").why
        gpus, nodes = self.number("trainer.n_gpus_per_node", 8), self.number("trainer.nnodes", 1)
        parallel = self.number(f"{PER_JOB[word.key]}.ulysses_sequence_parallel_size", 1)
        size = self.number(word.key, 0)
        if new in self.given:
            return {word.key: Change(word.key, None, "0.2", f"{new} is given too", "an error")}
        if None in (gpus, nodes, parallel, size) or not size // max(1, gpus * nodes // parallel):
            nearest = f"{new}={word.value} / (nnodes x n_gpus_per_node)"
            self.refuse(word, f"{word.key}={word.value}", f"{why}; a number is a variable here", nearest)
            return {}
        value = str(size // max(1, gpus * nodes // parallel))
        return {word.key: by_hand(new, value, "micro_batch")}

    def both_sides(self, word: Word) -> dict[str, Change]:
        """clip_ratio is no longer read: both sides of the bound."""
        keys = [k for k in (f"{ACTOR}.clip_ratio_{side}" for side in ("low", "high")) if k not in self.given]
        sides = [Change(key, word.value, "0.4", "each side has its own key", "0.2") for key in keys]
        first = sides.pop(0) if sides else Change(word.key, None, "0.4", "both sides are given too")
        return {word.key: first} | {change.name: change for change in sides}

    def silent(self) -> dict[str, Change]:
        """Settings that the old version had by default, or by its code, and that the job does not give."""
        plan = {}
        for key, entries in changes("verl")["keys"].items():
            is_here = is_there(entries, self.version) and not entries[-1].get("gone")
            if not is_here or key in NOT_WRITTEN or key.startswith(OLD_SECTIONS):
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


def composed(job: ShellJob, report: Report) -> str:
    """Compose a new job with the verl of this Python; says what was checked."""
    package = importlib.util.find_spec("verl")
    if not package:
        return "names of keys, as verl is not installed here"
    from hydra import compose, initialize_config_dir

    words = [w for w in job.words if w.is_fixed]
    texts = [f"{w.sign}{w.key}" + f"={w.value.strip()}" * (w.value is not None) for w in words]
    try:
        folder = str(Path(package.origin).parent / "trainer" / "config")
        with initialize_config_dir(config_dir=folder, version_base=None):
            compose("ppo_trainer", overrides=texts)
    except Exception as error:
        line = str(error).strip().splitlines()[0]
        report.refuse("", "the new job", f"verl's configuration refuses it: {line}", "the key that it names")
    variables = len(job.words) - len(words)
    return f"composed with verl's own configuration, without the {variables} settings whose values are variables"
