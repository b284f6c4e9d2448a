"""A verl job of an old version as a job of the newest: keys, values, and defaults that changed in silence."""

import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path

from parts.data.verl_keys import ACTOR, MODEL, OFF, REF, ROLLOUT, advice_today, known_names
from parts.foundation.messages import suggest
from programs.migrate.edits import Report, Row, by_hand
from programs.migrate.job_files import ShellJob, Word, YamlJob
from programs.migrate.python_source import PythonSource
from programs.migrate.tables import changes, entry_at, newest, numbers

PER_JOB = {  # sizes that counted the whole job, with the sequence parallelism that shares them
    f"{ACTOR}.ppo_micro_batch_size": f"{ACTOR}.ulysses_sequence_parallel_size",
    f"{REF}.log_prob_micro_batch_size": f"{REF}.ulysses_sequence_parallel_size",
    f"{ROLLOUT}.log_prob_micro_batch_size": f"{ACTOR}.ulysses_sequence_parallel_size",
    "critic.ppo_micro_batch_size": "critic.ulysses_sequence_parallel_size",
    "critic.forward_micro_batch_size": "critic.ulysses_sequence_parallel_size",
}
# Defaults that changed and say nothing of the run: the engine's room, names of old keys, validation.
NOT_WRITTEN = {
    f"{ACTOR}.optim.warmup_style",
    f"{ACTOR}.optim.min_lr_ratio",
    f"{ROLLOUT}.enforce_eager",
    f"{ROLLOUT}.load_format",
    f"{ROLLOUT}.max_num_seqs",
    f"{ROLLOUT}.mode",
    f"{ROLLOUT}.calculate_log_probs",
    f"{REF}.fsdp_config.forward_only",
    *("critic.model.external_lib", "critic.model.tokenizer_path", "critic.model.trust_remote_code", "critic.strategy"),
    *("critic.optim.min_lr_ratio", "critic.optim.warmup_style", "data.return_raw_chat", "data.val_batch_size"),
    "trainer.resume_from_path",
}
VALUES = {f"{ROLLOUT}.load_format": {"dummy_dtensor": "dummy", "dummy_megatron": "dummy", "dummy_hf": "dummy"}}
SHOWN = (
    *(f"{ACTOR}.{name}" for name in ("entropy_coeff", "use_kl_loss", "kl_loss_coef", "kl_loss_type", "clip_ratio_low")),
    *(
        f"{ACTOR}.{name}"
        for name in ("clip_ratio_high", "clip_ratio_c", "ppo_mini_batch_size", "optim.lr", "ppo_epochs")
    ),
    *("algorithm.adv_estimator", "algorithm.use_kl_in_reward", "algorithm.kl_ctrl.kl_coef", "data.seed"),
    *("data.filter_overlong_prompts", "data.train_batch_size", "data.max_prompt_length", "data.max_response_length"),
    *(f"{ROLLOUT}.{name}" for name in ("name", "n", "temperature", "top_p", "top_k")),
    *("trainer.total_epochs", "trainer.total_training_steps", f"{MODEL}.use_remove_padding"),
)


class VerlMigration:
    """One job from one version of verl to the newest."""

    def __init__(self, job: ShellJob | YamlJob, version: str):
        self.job, self.version, self.report = job, version, Report()
        self.given: dict[str, Word] = {word.key: word for word in job.words}
        self.known = known_names("dp") | known_names("megatron")
        self.added: list[tuple[str, str, Row]] = []

    def before(self, version: str) -> bool:
        return numbers(self.version) < numbers(version)

    def migrate(self) -> Report:
        report, job = self.report, self.job
        others = [m for m in job.mains if (m[1] or m[2]).split("/")[-1] not in ("verl.trainer.main_ppo", "main_ppo.py")]
        for main in others:
            nearest = "its authors' newest version; this script migrates jobs of verl.trainer.main_ppo"
            report.refuse(job.place(main.start()), main[1] or main[2], "a main module of its own", nearest)
        if others:
            return report
        for word in job.words:
            self.word(word)
        own = re.search(r"--config-name[= ]+(\S+)", job.text)
        if own and own[1].strip("'\"").removesuffix(".yaml") not in ("ppo_trainer", "ppo_megatron_trainer"):
            why = "settings of that file cannot be seen here: defaults that changed are not written"
            nearest = f"migrate.py FILE/{own[1]}.yaml --from verl=={self.version} --out NEW.yaml"
            report.refuse(job.place(own.start()), own[0], why, nearest)
        else:
            self.added += self.silent()
        job.add(self.added, report)
        self.rewards()
        if "VLLM_ATTENTION_BACKEND" in job.text:
            report.note("VLLM_ATTENTION_BACKEND=XFORMERS was for vLLM 0.6; leave it out with today's")
        return report

    def word(self, word: Word) -> None:
        """Edit one setting that is given."""
        key, job, report = word.key, self.job, self.report
        if key in PER_JOB and word.plain not in ("null", "None"):
            self.per_gpu(word)
        elif key == f"{ACTOR}.clip_ratio":
            self.both_sides(word)
        elif word.plain in VALUES.get(key, {}):
            new = VALUES[key][word.plain]
            job.rename(word, key, new, Row(f"{key}={new}", self.since(key), "the value's new name", "an error"), report)
        elif entry := self.moved(word):
            target, why, otherwise = entry
            if target is None:
                job.remove(word, Row("", self.since(key), f"{key}: {why}", otherwise), report)
            elif target.lstrip("+") in self.given:
                job.remove(word, Row("", self.since(key), f"{key}: {target} is given too", otherwise), report)
            else:
                job.rename(word, target, None, Row(f"{target}={word.value}", self.since(key), why, otherwise), report)
        elif word.sign == "+" and key in self.known and not word.plain.startswith("{"):
            row = Row(f"{key}={word.value}", newest("verl"), "a key of its own today: no +", "an error of Hydra")
            job.rename(word, key, None, row, report)
        elif not word.sign and self.known and key not in self.known and not key.startswith("hydra"):
            near = suggest(key, sorted(self.known)).removeprefix("; try ") or "leaving it out"
            report.refuse(job.place(word.start), key, f"verl {newest('verl')} does not have it", near)

    def since(self, key: str) -> str:
        entries = changes("verl")["keys"].get(key, [])
        later = [e["since"] for e in entries if numbers(e["since"]) > numbers(self.version)]
        return later[-1] if later else newest("verl")

    def moved(self, word: Word) -> tuple[str | None, str, str] | None:
        """(New key or None to leave it out, why, what verl does with the old one)."""
        key = word.key
        entry = entry_at(changes("verl")["keys"].get(key, []), newest("verl"))
        advice = advice_today(key, word.plain)
        new = entry.get("renamed") if entry and entry.get("gone") else None
        if new:
            return new, "its new name", "an error of Hydra"
        if advice:
            effect, instead = advice
            target = instead if re.fullmatch(r"\+?[\w.]+", instead) else None
            if target and target.startswith("+") and target[1:] in self.known:
                target = target[1:]
            lost = target is None and not instead.startswith(("leaving it out", "data.filter_overlong"))
            if lost and word.plain not in ("False", "false", "null", "None", "0"):
                self.report.refuse(self.job.place(word.start), f"{key}={word.value}", f"verl {effect}", instead)
            return target, "its new name" if target else "gone, and the run is the same", f"verl {effect}"
        if entry and entry.get("gone"):
            if word.plain not in ("False", "false", "null", "None", "0") and not key.startswith(
                ("reward_model", "trainer")
            ):
                self.report.refuse(self.job.place(word.start), key, f"gone since {entry['since']}", "leaving it out")
            return None, "gone", "an error of Hydra"
        return None

    def number(self, key: str, default: int) -> int | None:
        """A whole number that the job gives, or the default; None for a variable."""
        word = self.given.get(key)
        if word is None:
            return default
        return int(word.plain) if word.is_fixed and word.plain.lstrip("-").isdigit() else None

    def per_gpu(self, word: Word) -> None:
        """A micro batch of the whole job as one of each GPU."""
        new, place = f"{word.key}_per_gpu", self.job.place(word.start)
        gpus, nodes = self.number("trainer.n_gpus_per_node", 8), self.number("trainer.nnodes", 1)
        parallel, size = self.number(PER_JOB[word.key], 1), self.number(word.key, 0)
        why = by_hand("", "micro_batch").why
        if new in self.given:
            self.job.remove(word, Row("", "0.2", f"{new} is given too", "an error"), self.report)
        elif None in (gpus, nodes, parallel, size) or not size // max(1, gpus * nodes // parallel):
            nearest = f"{new}={word.value} / (nnodes x n_gpus_per_node)"
            self.report.refuse(place, f"{word.key}={word.value}", f"{why}; a number is a variable here", nearest)
        else:
            value = str(size // max(1, gpus * nodes // parallel))
            self.job.rename(word, new, value, by_hand(f"{new}={value}", "micro_batch"), self.report)

    def both_sides(self, word: Word) -> None:
        """clip_ratio is no longer read: both sides of the bound."""
        sides = [s for s in ("low", "high") if f"{ACTOR}.clip_ratio_{s}" not in self.given]
        row = Row(f"{ACTOR}.clip_ratio_…={word.value}", "0.4", "each side has its own key", "0.2")
        if not sides:
            self.job.remove(word, row, self.report)
            return
        self.job.rename(word, f"{ACTOR}.clip_ratio_{sides[0]}", None, row, self.report)
        for side in sides[1:]:
            key = f"{ACTOR}.clip_ratio_{side}"
            self.added.append((key, word.value, Row(f"{key}={word.value}", "0.4", "the other side", "0.2")))

    def silent(self) -> Iterator[tuple[str, str, Row]]:
        """Settings that the old version had by default, or by its code, and that the job does not give."""
        for key, entries in changes("verl")["keys"].items():
            old, new = entry_at(entries, self.version), entries[-1]
            if not old or old.get("gone") or new.get("gone") or key in self.given or key in NOT_WRITTEN:
                continue
            if old["default"] == new["default"] or "$" in f"{old['default']}{new['default']}" or is_old_section(key):
                continue
            if (
                is_number(old["default"])
                and is_number(new["default"])
                and float(old["default"]) == float(new["default"])
            ):
                continue
            value = "null" if old["default"] is None else str(old["default"])
            shown = "none: it has to be given" if new["default"] == "???" else str(new["default"])
            yield key, value, Row(f"{key}={value}", self.since(key), "its default then", shown)
        yield from (change for change in self.by_code() if change[0] not in self.given)

    def by_code(self) -> Iterator[tuple[str, str, Row]]:
        def line(key: str, value: str, rule: str) -> tuple[str, str, Row]:
            return key, value, by_hand(f"{key}={value}", rule)

        if self.before("0.4"):
            kl_loss = self.given.get(f"{ACTOR}.use_kl_loss")
            key = "algorithm.use_kl_in_reward"
            if kl_loss and not kl_loss.is_fixed:
                why = f"{by_hand('', 'kl_in_reward').why}; it is a variable here"
                nearest = f"{key}=True where use_kl_loss is False"
                self.report.refuse(self.job.place(kl_loss.start), f"{kl_loss.key}={kl_loss.value}", why, nearest)
            elif not kl_loss or kl_loss.plain.lower() != "true":
                yield line(key, "True", "kl_in_reward")
            yield line(f"{ACTOR}.clip_ratio_c", str(OFF), "dual_clip")
        if self.before("0.3"):
            yield line("data.filter_overlong_prompts", "True", "overlong")
        if self.before("0.6"):
            yield line("data.seed", "1", "data_seed")
        if self.before("0.7"):
            self.report.note(by_hand("", "token_mean").why)

    def rewards(self) -> None:
        """A reward file beside the job whose function does not take what verl passes."""
        word = self.given.get("custom_reward_function.path") or self.given.get("reward.custom_reward_function.path")
        file = Path(self.job.name).parent / word.plain if word and word.is_fixed else None
        if not file or not file.is_file():
            return
        name = self.given.get("custom_reward_function.name")
        source = PythonSource(str(file), file.read_text(encoding="utf-8"))
        function = source.definitions.get(name.plain if name else "compute_score")
        if function is None or not hasattr(function, "args") or function.args.kwarg:
            return
        names = {a.arg for a in [*function.args.args, *function.args.kwonlyargs]}
        missing = {"data_source", "solution_str", "ground_truth", "extra_info"} - names
        if missing:
            place = source.place(source.span(function)[0])
            why = f"verl calls it with {', '.join(sorted(missing))} too, by keyword"
            self.report.refuse(place, f"{file.name}:{function.name}", why, "**kwargs behind its parameters")


def is_number(value) -> bool:
    return not isinstance(value, bool) and bool(re.fullmatch(r"-?[\d.]+(e-?\d+)?", str(value), re.I))


def is_old_section(key: str) -> bool:
    return key.startswith(("reward_model.", "custom_reward_function.", "sandbox_fusion.", "ray_init."))


def default_of(key: str, version: str):
    entry = entry_at(changes("verl")["keys"].get(key, []), version)
    return entry["default"] if entry and not entry.get("gone") else None


def verl_side_by_side(migration: VerlMigration, job: ShellJob | YamlJob) -> list[dict]:
    """Settings of the old job under its version, and of the new one under the newest."""
    after = {word.key: word.plain for word in job.words}
    before = {word.key: word.plain for word in migration.given.values()}
    by_code = {key: value for key, value, _ in migration.by_code()}
    clip = before.get(f"{ACTOR}.clip_ratio")
    rows = []
    for key in SHOWN:
        old = before.get(key, by_code.get(key, default_of(key, migration.version)))
        if clip and key in (f"{ACTOR}.clip_ratio_low", f"{ACTOR}.clip_ratio_high"):
            old = before.get(key, clip)
        new = after.get(key, default_of(key, newest("verl")))
        if old is not None or new is not None:
            rows.append({"config": "verl", "setting": key, "old": old, "new": new, "same": same_value(old, new)})
    return rows


def same_value(old, new) -> bool:
    if is_number(old) and is_number(new):
        return float(old) == float(new)
    return str(old).lower() == str(new).lower() or None in (old, new)


def composed(job: ShellJob | YamlJob, report: Report) -> str:
    """Compose a new job with the verl of this Python; says what was checked."""
    if not importlib.util.find_spec("verl"):
        return "names of keys, as verl is not installed here"
    from hydra import compose, initialize_config_dir

    folder = Path(importlib.util.find_spec("verl").origin).parent / "trainer" / "config"
    words = [w for w in job.words if w.is_fixed]
    texts = [f"{w.sign}{w.key}" + f"={w.value.strip()}" * (w.value is not None) for w in words]
    try:
        with initialize_config_dir(config_dir=str(folder), version_base=None):
            compose("ppo_trainer", overrides=texts)
    except Exception as error:
        line = str(error).strip().splitlines()[0]
        report.refuse("", "the new job", f"verl's configuration refuses it: {line}", "the key that it names")
    variables = len(job.words) - len(words)
    return f"composed with verl's own configuration, without the {variables} settings whose values are variables"
