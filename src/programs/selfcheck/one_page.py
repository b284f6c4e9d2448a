"""A one-page trainer, of templates/ or a copy, behind the interface of the checks."""

import copy
import dataclasses
import inspect
import itertools
import math
import random
from pathlib import Path

from parts.foundation.bundle import EMBEDDED_DATA, EMBEDDED_ENVIRONMENTS, EMBEDDED_MODEL, EMBEDDED_REWARDS, specs_for
from parts.foundation.dialect import in_own_words
from parts.foundation.messages import UserError, need
from parts.foundation.processes import torch, transformers
from parts.networks.batches import collate
from programs.selfcheck.conversation_checks import ANSWER_TOKENS, TURNS, Record, through_a_file
from programs.selfcheck.trainer import (
    NEW_TOKENS,
    PAGE,
    PROBES,
    SAMPLED,
    Definition,
    Trainer,
    lacking,
    lacking_fields,
    networks,
)

LOSSES_OF_PAPERS = (
    Definition("mean over tokens"),
    Definition("mean over completions of token means", "seq_mean_token_mean"),
    Definition("sum over tokens / max_new_tokens", "seq_mean_token_sum_norm"),
)


class OnePage(Trainer):
    """templates/ppo.py, grpo.py, distillation.py, multi_turn.py and copies."""

    takes_holes = chats = True
    user_errors = (SystemExit,)  # these trainers end with a sentence

    @property
    def fields(self) -> dict:
        config = getattr(self.module, "Config", None)
        return {f.name: f for f in dataclasses.fields(config)} if dataclasses.is_dataclass(config) else {}

    def missing(self) -> list[str]:
        return lacking(self.module, PAGE, self.fields) + (lacking_fields(self.fields) if self.fields else [])

    def parse(self, flags: list[str]) -> list[str]:
        """Read the settings; required ones that are not given get the embedded model, data, reward or environment."""
        words = [word for flag in flags for word in (flag.split("=", 1) if flag.startswith("--") else [flag])]
        given = dict(itertools.pairwise([*words, ""]))
        embedded = {"model": EMBEDDED_MODEL, "data": EMBEDDED_DATA, "reward": f"{EMBEDDED_REWARDS}:correctness_reward"}
        embedded["environment"] = f"{EMBEDDED_ENVIRONMENTS}:SecondAttempt"
        embedded["teacher"] = given.get("--model", EMBEDDED_MODEL)  # the student untouched
        required = [name for name, field in self.fields.items() if field.default is dataclasses.MISSING]
        for name in [] if {"-h", "--help"} & {*flags} else required:
            if f"--{name}" in given:
                continue
            if name == "reward":
                specs_for(given.get("--data", EMBEDDED_DATA), [])
            value = embedded.get(name, "")
            exists = name == "teacher" or Path(value.rpartition(":")[0] or value or "-").exists()
            need(exists, f"got no --{name}; expected the flags of a run; try --{name}")
            flags = [*flags, f"--{name}", value]
        if hasattr(self.module, "parse_config"):
            self.config = self.module.parse_config(flags)
            return []
        try:
            flags = in_own_words(flags, list(self.fields))
            self.config = transformers.HfArgumentParser(self.module.Config).parse_args_into_dataclasses(flags)[0]
        except ValueError as error:  # unknown flags
            raise UserError(
                f"got {str(error).partition(': ')[2]}; expected flags of the trainer; try its --help"
            ) from error
        return []

    def known(self, **settings) -> dict:
        """The settings that are fields of the page's Config."""
        return {name: value for name, value in settings.items() if name in self.fields}

    def load(self) -> None:
        """Load everything through the trainer, as its `train` does, cut down to a few short sequences."""
        small = {"batch_size": SAMPLED, "max_new_tokens": min(self.config.max_new_tokens, NEW_TOKENS)}
        small |= {"group_size": 2, "prompts": PROBES // 2}
        config = dataclasses.replace(self.config, **self.known(**small, epochs=2, minibatches=1))
        if self.plays:
            self.environment = self.module.load_environment(config.environment)
        elif config.reward:
            self.reward = self.module.load_reward(config.reward)
        kl_coef = getattr(config, "kl_coef", 0)
        kl = self.known(kl_coef=kl_coef or 0.05)
        self.with_reference = self.module.load_models(dataclasses.replace(config, **kl))
        for name in ("critic", "reference"):
            setattr(self.with_reference, name, getattr(self.with_reference, name, None))
        self.models, self.device = copy.copy(self.with_reference), torch.device(self.with_reference.device)
        bf16 = self.device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
        bf16 = bf16 or next(self.models.policy.parameters()).dtype != torch.float32
        self.precision = "bf16" if bf16 else "fp32"  # bf16 if the GPU or the weights are
        self.models.reference = self.models.reference if kl_coef else None
        if self.plays:
            self.guard()
        rows = self.module.load_rows(config, self.models.tokenizer, config.data)
        random.Random(getattr(config, "seed", 0)).shuffle(rows)
        drawn = sorted(itertools.islice(itertools.cycle(rows), 8 * SAMPLED), key=lambda row: len(row["prompt_ids"]))
        self.rows = [row | {"prompt": row["columns"]["prompt"]} for row in drawn[: 4 * SAMPLED : 4]]
        self.config = dataclasses.replace(config, **self.known(batch_size=PROBES))

    def scores(self, samples: list[dict]):
        if not self.plays:
            return self.reward(self.rows, [sample["completion"] for sample in samples]), {}
        batch, *_ = self.module.rollout(self.config, self.models, self.environment, self.rows)
        return [None if math.isnan(x) else x for x in batch["scores"].tolist()], {}  # NaN: not applicable

    def guard(self) -> None:
        """Let the trainer check the chat template, as before a run; it exits if the template cannot be used."""
        if hasattr(self.module, "check_template"):
            self.module.check_template(self.models)

    def play(self, record: Record, rows: list[dict]):
        limits = self.known(max_turns=TURNS, max_tokens=2**20, max_new_tokens=ANSWER_TOKENS)
        config, generate = dataclasses.replace(self.config, **limits), self.module.generate

        def scripted(config, models, prompts, *settings, **named):
            answers = zip(prompts, record.answer(prompts), strict=True)
            return self.collate([self.sample(prompt, *answer) for prompt, answer in answers])

        self.guard()
        environment = through_a_file(record, self.module.load_environment)
        self.module.generate = scripted
        try:
            batch, *_ = self.module.rollout(config, self.models, environment, rows)
        finally:
            self.module.generate = generate
        return batch, batch["scores"].tolist()

    def generated(self, prompts: list[list[int]], greedy: bool = False):
        torch.manual_seed(0)
        batch, samples = self.module.generate(self.config, self.models, prompts, greedy=greedy), []
        columns = (batch[name].cpu() for name in ("input_ids", "attention_mask", "rollout_logprobs"))
        for prompt, ids, real, logprobs in zip(prompts, *columns, strict=True):
            ids, logprobs = (x[real.bool()].tolist() for x in (ids, logprobs))
            if ids[: len(prompt)] != [*prompt] or len(ids) == len(prompt):
                raise ValueError("a row of generate() does not begin with its prompt, or has nothing after it")
            samples.append(self.sample(prompt, ids[len(prompt) :], logprobs[len(prompt) :]))
        return samples, batch

    def collate(self, samples: list[dict]) -> dict:
        """Samples as a batch of [B, T] tensors, laid out as `generate` does."""
        return collate(samples, self.models.pad_id, self.device)

    def logprobs(self, batch: dict, **settings):
        config, mask = dataclasses.replace(self.config, **settings), batch["response_mask"].bool()
        with torch.no_grad():
            if hasattr(self.module, "token_logprobs"):
                return self.module.token_logprobs(config, self.models.policy, batch)
            dist = torch.log_softmax(self.module.response_logits(config, self.models.policy, batch), dim=-1)  # [N, V]
            pair = dist.gather(-1, batch["input_ids"][mask][:, None]).squeeze(-1), -(dist.exp() * dist).sum(-1)
            return tuple(x.new_zeros(mask.shape).masked_scatter(mask, x) for x in pair)

    def experience(self, samples: list[dict] | None = None, models=None, **settings) -> dict:
        models, samples = models or self.models, samples or self.probes
        batch = self.collate(samples)
        batch["scores"] = torch.tensor([float(s["score"]) for s in samples], device=self.device)
        # a page stops if sampler and trainer differ
        batch["rollout_logprobs"] = self.logprobs(batch)[0] * batch["response_mask"]
        if "teacher" in self.fields:  # no advantages: it minimises the divergence
            return batch
        kl = self.known(kl_coef=(getattr(self.config, "kl_coef", 0) or 0.05) if models.reference is not None else 0.0)
        return self.module.make_experience(dataclasses.replace(self.config, **(kl | settings)), models, batch)

    def per_pass(self, rows: int) -> dict:
        return {"micro_batch": rows} | self.known(chunk=2 * rows + 1)

    def accumulate(self, config, batch: dict) -> None:
        self.module.accumulate_gradients(config, self.models, batch, torch.arange(PROBES, device=self.device))

    def start_update(self, batch: dict, models, step) -> None:
        groups = [{"params": [p for p in n.parameters() if p.requires_grad]} for n in networks(models)]
        number, optimizer = getattr(self.config, "critic_warmup_steps", 0) + 1, torch.optim.AdamW(groups, lr=0.0)
        optimizer.step = step
        self.module.update(self.config, models, optimizer, batch, number)

    def definitions(self):
        if "teacher" not in self.fields:
            return [dataclasses.replace(d, constant=self.config.max_new_tokens) for d in LOSSES_OF_PAPERS], ""
        teacher = {"kl_coef": 1.0, "teacher": self.models.teacher}
        return [Definition("reverse KL", **teacher), Definition("forward KL", **teacher, beta=0.0)], ""

    def clips(self):
        loss = getattr(self.module, "policy_loss", None)
        if loss and len(inspect.signature(loss).parameters) < 4:
            return [], "policy_loss takes no bound: no clip"
        if {"clip_eps_low", "clip_eps_high"} <= {*self.fields}:
            return ["token", "sequence", "weight_5"], ""
        return [], "no clip_eps_low and clip_eps_high: no clip"

    def group_of(self, samples: list[dict]):
        if "group_size" not in self.fields:
            return [], "advantages are not of groups"
        return [i // self.config.group_size for i in range(len(samples))], ""

    def values_after(self, ids):
        if self.models.critic is None:
            return None
        return self.models.critic(input_ids=ids, attention_mask=ids * 0 + 1).logits[0, :, 0].float()
