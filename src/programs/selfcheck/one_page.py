"""A trainer on one page, of templates/ or a copy, as the checks see it."""

import copy
import dataclasses
import itertools
import random
from pathlib import Path

from parts.foundation.bundle import EMBEDDED_DATA, EMBEDDED_ENVIRONMENTS, EMBEDDED_MODEL, EMBEDDED_REWARDS, specs_for
from parts.foundation.dialect import in_own_words
from parts.foundation.messages import UserError, need
from parts.networks.batches import collate
from programs.selfcheck.contract import lacking, lacking_fields
from programs.selfcheck.scripted_talks import ANSWER_TOKENS, TURNS, Record, through_a_file
from programs.selfcheck.subject import PROBES, Definition, networks, rest, take_gradients
from programs.selfcheck.trainer import Trainer

LOSSES_OF_PAPERS = (
    Definition("mean over tokens"),
    Definition("mean over completions of token means", "seq_mean_token_mean"),
    Definition("sum over tokens / max_new_tokens", "seq_mean_token_sum_norm"),
)
GUARD = "check_template"  # where a page has it


class OnePage(Trainer):
    """templates/ppo.py, grpo.py, distillation.py, multi_turn.py and copies."""

    settled_logprobs = ("old_logprobs", "ref_logprobs", "rollout_logprobs")  # the last are compared with the trainer's
    takes_holes = chats = True
    user_errors = (SystemExit,)  # these trainers end with a sentence

    def __init__(self, module, needed):
        super().__init__(module, needed)
        self.guards = Path(module.__file__).read_text(encoding="utf-8").count(f"{GUARD}(")  # definition and calls

    @property
    def fields(self) -> dict:
        return {f.name: f for f in dataclasses.fields(self.module.Config)}

    def lacking(self) -> list[str]:
        """Names that the trainer has not."""
        if not dataclasses.is_dataclass(getattr(self.module, "Config", None)):
            return lacking(self.module, self.needed, None)
        return lacking(self.module, self.needed, self.fields) + lacking_fields(self.fields)

    def parse(self, flags: list[str]) -> list[str]:
        """Read the settings; what is required and not given is the embedded model's, data's and reward's."""
        words = [word for flag in flags for word in (flag.split("=", 1) if flag.startswith("--") else [flag])]
        given = dict(itertools.pairwise([*words, ""]))
        embedded = {"model": EMBEDDED_MODEL, "data": EMBEDDED_DATA, "reward": f"{EMBEDDED_REWARDS}:correctness_reward"}
        embedded["environment"] = f"{EMBEDDED_ENVIRONMENTS}:SecondAttempt"
        embedded["teacher"] = given.get("--model", EMBEDDED_MODEL)  # the student untouched
        for field in [] if {"-h", "--help"} & {*flags} else self.fields.values():
            if field.default is not dataclasses.MISSING or f"--{field.name}" in given:
                continue
            value = embedded.get(field.name, "")
            if field.name == "reward":
                specs_for(given.get("--data", EMBEDDED_DATA), [])
            need(
                value and (field.name == "teacher" or Path(value.rpartition(":")[0] or value).exists()),
                f"got no --{field.name}; expected the flags of a run; try --{field.name}",
            )
            flags = [*flags, f"--{field.name}", value]
        self.config = self.read(flags)
        return []

    def read(self, flags: list[str]):
        """The settings of a command line, in the page's own way or else in transformers'."""
        if hasattr(self.module, "parse_config"):
            return self.module.parse_config(flags)
        from transformers import HfArgumentParser

        try:
            flags = in_own_words(flags, [f.name for f in dataclasses.fields(self.module.Config)])
            return HfArgumentParser(self.module.Config).parse_args_into_dataclasses(flags)[0]
        except ValueError as error:  # unknown flags
            raise UserError(f"{error}; expected those of the trainer; try --help") from error

    def load(self) -> None:
        """Load everything through the trainer, as its `train` does, and cut the work to a few short sequences."""
        count, new_tokens = self.few
        small = {"batch_size": count, "max_new_tokens": new_tokens}
        small |= {"epochs": 2, "minibatches": 1, "group_size": 2, "prompts": PROBES // 2}
        small = {name: value for name, value in small.items() if name in self.fields}
        config = dataclasses.replace(self.config, **small)
        if self.plays:
            self.environment = self.module.load_environment(config.environment)
        elif not self.on_cut and config.reward:
            self.reward = self.module.load_reward(config.reward)
        kl = {"kl_coef": (config.kl_coef or 0.05) * (not self.light)} if hasattr(config, "kl_coef") else {}
        self.with_reference = self.module.load_models(dataclasses.replace(config, **kl))
        for name in ("critic", "reference"):
            setattr(self.with_reference, name, getattr(self.with_reference, name, None))
        self.models = copy.copy(self.with_reference)
        self.models.reference = self.models.reference if getattr(config, "kl_coef", 0) else None
        if self.plays:
            self.guard()
        rows = self.module.load_rows(config, self.models.tokenizer, config.data)
        random.Random(getattr(config, "seed", 0)).shuffle(rows)
        drawn = sorted(itertools.islice(itertools.cycle(rows), 8 * count), key=lambda row: len(row["prompt_ids"]))
        self.rows = [row | {"prompt": row["columns"]["prompt"]} for row in drawn[: 4 * count : 4]]
        self.config = dataclasses.replace(config, **{"batch_size": PROBES} if "batch_size" in self.fields else {})

    @property
    def device(self):
        import torch

        return torch.device(self.models.device)

    @property
    def precision(self) -> str:
        """bf16 on a GPU that has it, or where the weights are; else fp32."""
        import torch

        gpu = self.device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
        return "bf16" if gpu or next(self.models.policy.parameters()).dtype != torch.float32 else "fp32"

    def scores(self, samples: list[dict]):
        """(scores, values by reward function) of the completions of `rows`; an environment plays its own."""
        if self.environment is not None:
            batch, *_ = self.module.rollout(self.config, self.models, self.environment, self.rows)
            return batch["scores"].tolist(), {}
        return self.reward(self.rows, [sample["completion"] for sample in samples]), {}

    @property
    def talks(self) -> bool:
        """Whether the environment of the run replies."""
        return hasattr(self.environment, "reply")

    def guard(self) -> None:
        """Let the trainer look at the chat template, as before a run; it ends the program if that is of no use."""
        if hasattr(self.module, GUARD):
            getattr(self.module, GUARD)(self.models)

    def uncalled(self) -> str:
        return f"{GUARD} is there, but nothing calls it" if self.guards == 1 else ""

    def play(self, record: Record, rows: list[dict]):
        """(batch, scores) of conversations with a record's environments and answers."""
        limits = {"max_turns": TURNS, "max_tokens": 2**20, "max_new_tokens": ANSWER_TOKENS}
        limits = {name: value for name, value in limits.items() if name in self.fields}
        config, generate = dataclasses.replace(self.config, **limits), self.module.generate

        def scripted(config, models, prompts, *settings, **named):
            return self.collate(
                [
                    {"prompt_ids": [*prompt], "response_ids": ids, "rollout_logprobs": logprobs}
                    for prompt, (ids, logprobs) in zip(prompts, record.answer(prompts), strict=True)
                ]
            )

        self.guard()
        made = through_a_file(record.environment(), self.module.load_environment)
        self.module.generate = scripted
        try:
            batch, *_ = self.module.rollout(config, self.models, made, rows)
        finally:
            self.module.generate = generate
        return batch, batch["scores"].tolist()

    def sampled(self):
        """(samples, batch) by the trainer's sampler, one completion for each of `rows`, unscored."""
        return self.generated([row["prompt_ids"] for row in self.rows])

    def generated(self, prompts: list[list[int]]):
        """(samples, batch) by the trainer's sampler, one completion a prompt."""
        import torch

        torch.manual_seed(0)
        batch = self.module.generate(self.config, self.models, prompts)
        return self.samples_of(prompts, batch), batch

    def samples_of(self, prompts: list[list[int]], batch: dict) -> list[dict]:
        """Samples of a batch that the trainer generated.

        `response_mask` [n] is 1 on the tokens after the prompt that the policy sampled: those of the trainer's mask,
        those with a log-prob, and the last; others in between are of tools or of the user.
        """
        samples, names = [], ("input_ids", "attention_mask", "response_mask", "rollout_logprobs")
        for prompt, *row in zip(prompts, *(batch[name].cpu() for name in names), strict=True):
            ids, mask, seen = (x[row[1].bool()] for x in (row[0], row[2], row[3]))
            if ids[: len(prompt)].tolist() != list(prompt) or len(ids) == len(prompt):
                raise ValueError("a row of generate() does not begin with its prompt, or has nothing after it")
            ids, mask = (x[len(prompt) :].tolist() for x in (ids, ((mask != 0) | (seen != 0)).int()))
            finished = ids[-1] in self.models.eos_ids
            text = self.models.tokenizer.decode(ids[:-1] if finished else ids)
            sample = {"prompt_ids": list(prompt), "response_ids": ids, "response_mask": [*mask[:-1], 1]}
            sample |= {"rollout_logprobs": seen[len(prompt) :].tolist(), "score": 0.0}
            samples.append(sample | {"completion": text, "finished": finished})
        return samples

    def greedy(self, prompts: list[list[int]]) -> list[list[int]]:
        """Greedy completions of a batch of prompts."""
        batch = self.module.generate(self.config, self.models, prompts, greedy=True)
        return [sample["response_ids"] for sample in self.samples_of(prompts, batch)]

    def collate(self, samples: list[dict]) -> dict:
        """Samples as a batch of [B, T] tensors, laid out as `generate` does."""
        return collate(samples, self.models.pad_id, self.device)

    def laid_out(self, samples: list[dict]):
        """(samples, batch) as the trainer lays them out: completions of its own, for these prompts."""
        return self.generated([sample["prompt_ids"] for sample in samples])

    def logprobs(self, batch: dict, **settings):
        """(log-probs, entropy), [B, T] each, without gradient."""
        import torch

        config, mask = dataclasses.replace(self.config, **settings), batch["response_mask"].bool()
        with torch.no_grad():
            if hasattr(self.module, "token_logprobs"):
                return self.module.token_logprobs(config, self.models.policy, batch)
            dist = torch.log_softmax(self.module.response_logits(config, self.models.policy, batch), dim=-1)  # [N, V]
            found = dist.gather(-1, batch["input_ids"][mask][:, None]).squeeze(-1), -(dist.exp() * dist).sum(-1)
            return tuple(x.new_zeros(mask.shape).masked_scatter(mask, x) for x in found)

    def experience(self, samples: list[dict], models=None, **settings) -> dict:
        """The training batch made of samples."""
        import torch

        models, batch = models or self.models, self.collate(samples)
        batch["scores"] = torch.tensor([float(s["score"]) for s in samples], device=self.device)
        batch["rollout_logprobs"] = self.logprobs(batch)[0]  # pages stop where sampler and trainer differ
        if not self.has_policy_loss:
            return batch
        return self.module.make_experience(self.with_kl(models, **settings), models, batch)

    def with_kl(self, models, **settings):
        """The settings, with KL if there is a reference, and without if not."""
        kl = {"kl_coef": (self.config.kl_coef or 0.05) if models.reference is not None else 0.0}
        return dataclasses.replace(self.config, **kl if "kl_coef" in self.fields else {}, **settings)

    def per_pass(self, rows: int, width: int = 1) -> dict:
        """The settings with which so many rows of a batch go through the networks at once."""
        return {"micro_batch": rows}

    def chunked(self, tokens: int) -> dict:
        """The settings with which the output layer sees so many tokens at once; none where there are no such."""
        return {"chunk": tokens} if hasattr(self.config, "chunk") else {}

    def gradients(self, batch: dict, count: int, **settings) -> list:
        """Gradients by the trainer's accumulate_gradients of `count` rows."""
        import torch

        config, rows = dataclasses.replace(self.config, **settings), torch.arange(count, device=self.device)
        try:
            self.module.accumulate_gradients(config, self.models, batch, rows)
            return take_gradients(self.models)
        finally:
            rest(self.models)

    @property
    def has_policy_loss(self) -> bool:
        """Whether it trains by advantages; else by the divergence from a teacher."""
        return "teacher" not in self.fields

    def starts_update(self, samples: list[dict], models) -> None:
        """Begin an update as of a run, on samples."""
        import torch

        batch = {name: x.detach() for name, x in self.experience(samples, models).items()}
        groups = [{"params": [p for p in n.parameters() if p.requires_grad]} for n in networks(models)]
        optimizer, step = torch.optim.AdamW(groups, lr=0.0), getattr(self.config, "critic_warmup_steps", 0) + 1
        self.module.update(self.with_kl(models), models, optimizer, batch, step)

    def swap_loss(self, function):
        """Put a function in the place of the policy loss, where there is one."""
        if not self.has_policy_loss:
            return function
        old, self.module.policy_loss = self.module.policy_loss, function
        return old

    def definitions(self):
        """(the losses of which the trainer's has to be one, why there is none)."""
        if self.has_policy_loss:
            return [dataclasses.replace(d, constant=self.config.max_new_tokens) for d in LOSSES_OF_PAPERS], ""
        teacher = {"kl_coef": 1.0, "teacher": self.models.teacher}
        return [Definition("reverse KL", **teacher), Definition("forward KL", **teacher, beta=0.0)], ""

    def group_of(self, samples: list[dict]):
        """(the group of each sample, why advantages of a group need not sum to 0)."""
        if "group_size" not in self.fields:
            return [], "advantages are not of groups"
        return [i // self.config.group_size for i in range(len(samples))], ""

    def values_after(self, ids):
        """Values [T] of the text up to each token of ids [1, T], by the plain critic; None without one."""
        if self.models.critic is None:
            return None
        return self.models.critic(input_ids=ids, attention_mask=ids * 0 + 1).logits[0, :, 0].float()
