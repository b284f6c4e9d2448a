"""Trainers of one page and of scripts behind the interface of the checks; what they must offer (`--contract`)."""

import dataclasses
import inspect
import itertools
import random
import re
from pathlib import Path

from parts.foundation.bundle import EMBEDDED_DATA, EMBEDDED_ENVIRONMENTS, EMBEDDED_MODEL, EMBEDDED_REWARDS
from parts.foundation.dialect import in_own_words
from parts.foundation.file_text import file_text
from parts.foundation.messages import UserError, need, say
from parts.foundation.processes import np, torch, transformers
from parts.networks.batches import collate
from programs.selfcheck.conversation_checks import ANSWER_TOKENS, TURNS, Record, through_a_file
from programs.selfcheck.trainer import NEW_TOKENS, PROBES, SAMPLED, Definition, Trainer, networks

CONTRACT = file_text("contract.txt")
ENTRY = re.compile(r"^  (\w+)(?:\(.*?\))?(?: -> .*)?\n      (?:where Config has (no )?(\w+): )?", re.MULTILINE)
PAGE_NEEDS, SCRIPT_NEEDS = re.split(r"\nA script: .*\n", CONTRACT)
PAGE = ENTRY.findall(PAGE_NEEDS)  # (name, "no " or "", field of Config or "")
SCRIPT = [(name, "", "") for name in SCRIPT_NEEDS.split()]
INSTEAD = {"response_logits": "token_logprobs"}  # {name: another that will do}
DRAWN = 8 * SAMPLED  # rows of which some of the shorter half are taken
FIELDS = ("model", "data", "temperature", "max_new_tokens", "micro_batch")  # of a page's Config
LOSSES_OF_PAPERS = (
    Definition("mean over tokens"),
    Definition("mean over completions of token means", "seq_mean_token_mean"),
    Definition("sum over tokens / max_new_tokens", "seq_mean_token_sum_norm"),
)
ZERO_SUM = ("grpo", "mean", "rloo", "gpg", "gpg_verl", "maxrl")  # the advantages of a group sum to 0


def shorter_rows(drawn) -> list[dict]:
    """SAMPLED rows from the shorter half of DRAWN ones."""
    return sorted(drawn, key=lambda row: len(row["prompt_ids"]))[: DRAWN // 2 : 4]


def lacking(module, needed: list[tuple], fields=()) -> list[str]:
    """Names of the contract that a trainer lacks, given the fields of its Config."""
    asked = [name for name, no, field in needed if not field or (field in fields) != bool(no)]
    return [name for name in asked if not {name, INSTEAD.get(name)} & vars(module).keys()]


class OnePage(Trainer):
    """templates/ppo.py, grpo.py, distillation.py, multi_turn.py and copies."""

    takes_holes = True
    user_errors = (SystemExit,)  # these trainers end with a sentence

    @property
    def fields(self) -> dict:
        config = getattr(self.module, "Config", None)
        return {f.name: f for f in dataclasses.fields(config)} if dataclasses.is_dataclass(config) else {}

    def missing(self) -> list[str]:
        fields = self.fields
        asked = (*FIELDS, "vf_coef") if "gae_lambda" in fields else FIELDS
        names = [f"Config.{name}" for name in asked if fields and name not in fields]
        return lacking(self.module, PAGE, fields) + names

    def parse(self, flags: list[str]) -> None:
        """Read the settings; required ones that are not given get the embedded model, data, reward or environment."""
        words = [word for flag in flags for word in (flag.split("=", 1) if flag.startswith("--") else [flag])]
        given = dict(itertools.pairwise([*words, ""]))
        embedded = {"model": EMBEDDED_MODEL, "data": EMBEDDED_DATA, "reward": f"{EMBEDDED_REWARDS}:correctness_reward"}
        embedded["environment"] = f"{EMBEDDED_ENVIRONMENTS}:SecondAttempt"
        embedded["teacher"] = given.get("--model", EMBEDDED_MODEL)  # the student untouched
        required = [name for name, field in self.fields.items() if field.default is dataclasses.MISSING]
        if {"-h", "--help"} & {*flags}:
            required = []
        for name in [x for x in required if f"--{x}" not in given]:
            value = embedded.get(name, "")
            exists = name == "teacher" or Path(value.rpartition(":")[0] or value or "-").exists()
            need(exists, f"got no --{name}; expected the flags of a run; try --{name}")
            flags = [*flags, f"--{name}", value]
        try:
            flags = in_own_words(flags, list(self.fields))
            self.config = transformers.HfArgumentParser(self.module.Config).parse_args_into_dataclasses(flags)[0]
        except ValueError as error:  # unknown flags
            got = f"got {str(error).partition(': ')[2]}"
            raise UserError(f"{got}; expected flags of the trainer; try its --help") from error

    def known(self, **settings) -> dict:
        """The settings that are fields of the page's Config."""
        return {name: value for name, value in settings.items() if name in self.fields}

    def load(self) -> None:
        """Load everything through the trainer, as its `train` does, cut down to a few short sequences."""
        small = {"batch_size": SAMPLED, "max_new_tokens": min(self.config.max_new_tokens, NEW_TOKENS)}
        small |= {"group_size": 2, "prompts": PROBES // 2}
        config = dataclasses.replace(self.config, **self.known(**small, epochs=2, minibatches=1))
        kl_coef = getattr(config, "kl_coef", 0)
        kl = self.known(kl_coef=kl_coef or 0.05)
        self.with_reference = self.module.load_models(dataclasses.replace(config, **kl))
        for name in ("critic", "reference"):
            setattr(self.with_reference, name, getattr(self.with_reference, name, None))
        self.settle_models(kl_coef)
        self.device = torch.device(self.models.device)
        bf16 = self.device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
        bf16 = bf16 or next(self.models.policy.parameters()).dtype != torch.float32
        self.precision = "bf16" if bf16 else "fp32"  # bf16 if the GPU or the weights are
        if self.plays and hasattr(self.module, "check_template"):
            self.module.check_template(self.models)  # it exits if the chat template cannot be used
        rows = self.module.load_rows(config, self.models.tokenizer, config.data)
        random.Random(getattr(config, "seed", 0)).shuffle(rows)
        drawn = itertools.islice(itertools.cycle(rows), DRAWN)
        self.rows = [row | {"prompt": row["columns"]["prompt"]} for row in shorter_rows(drawn)]
        self.config = dataclasses.replace(config, **self.known(batch_size=PROBES))

    def play(self, record: Record, rows: list[dict]):
        limits = self.known(max_turns=TURNS, max_tokens=2**20, max_new_tokens=ANSWER_TOKENS)
        config, generate = dataclasses.replace(self.config, **limits), self.module.generate

        def scripted(config, models, prompts, *settings, **named):
            answers = zip(prompts, record.answer(prompts), strict=True)
            return self.collate([self.sample(prompt, *answer) for prompt, answer in answers])

        environment = through_a_file(record, self.module.load_environment)
        self.module.generate = scripted
        try:
            batch, *_ = self.module.rollout(config, self.models, environment, rows)
        finally:
            self.module.generate = generate
        return batch, batch["scores"].tolist()

    def generated(self, prompts: list[list[int]]):
        torch.manual_seed(0)
        batch, samples = self.module.generate(self.config, self.models, prompts), []
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


class ScriptsTrainer(Trainer):
    """scripts/ppo_train.py, scripts/on_policy_distillation.py and copies."""

    def missing(self) -> list[str]:
        return lacking(self.module, SCRIPT)

    def parse(self, flags: list[str]) -> None:
        self.config = self.module.parse_config(flags)

    @property
    def user_errors(self) -> tuple:
        """Exceptions whose text is meant for the user."""
        return (self.module.UserError, SystemExit)

    def load(self) -> None:
        trainer, config = self.module, self.config
        trainer.check_config(config)
        device = self.device = trainer.start_processes(config)
        trainer.settle_precision(config, device)
        if config.precision == "fp16":
            say("note: checked in fp32, without fp16's scaling of gradients")
            config = dataclasses.replace(config, precision="fp32")
        self.precision = config.precision
        tokenizer = trainer.load_tokenizer(config)
        rows, held_out = trainer.load_splits(config, tokenizer)
        small = {"batch_size": SAMPLED, "max_new_tokens": min(config.max_new_tokens, NEW_TOKENS)}
        small["rollout_batch_size"] = 0
        small |= {"minibatches": 1, "ppo_epochs": 2}  # a single step would leave old log-probs to the update
        small |= {"group_size": min(config.group_size, 2)} if hasattr(config, "group_size") else {}
        small |= {"mismatch": "none"} if hasattr(config, "mismatch") else {}  # the probes were not sampled
        penalties = ("missing_eos_penalty", "overlong_share")  # group_advantages knows the scores without them
        small |= {name: 0.0 for name in penalties if hasattr(config, name)}
        small |= {"kl_cov_coef": 0.0} if getattr(config, "loss", "") == "kl_cov" else {}  # |log-ratio| has a kink there
        few = dataclasses.replace(config, **small)
        self.with_reference = trainer.load_models(dataclasses.replace(few, kl_coef=config.kl_coef or 0.05), device)
        trainer.check_context(config, self.with_reference, rows + held_out)
        self.settle_models(config.kl_coef)
        engine = "VllmEngine" if config.rollout_engine == "vllm" else "HFEngine"
        self.engine = getattr(trainer, engine)(few, self.models)
        self.rows = shorter_rows(trainer.batch_rows(rows, few, 0, DRAWN))
        self.config = dataclasses.replace(few, batch_size=PROBES)

    def generated(self, prompts: list[list[int]]):
        noise = np.random.default_rng(0).random((len(prompts), self.config.max_new_tokens))
        pairs = zip(prompts, self.engine.generate(prompts, noise), strict=True)
        samples = [self.sample(prompt, *output) for prompt, output in pairs]
        return samples, self.collate(samples)

    def collate(self, samples: list[dict]) -> dict:
        return self.module.collate(samples, self.models.pad_id, self.device)

    def logprobs(self, batch: dict, **settings):
        config = dataclasses.replace(self.config, **settings)
        with torch.no_grad(), self.module.autocast(config, self.device):
            hidden = self.module.predicting_states(self.models.policy, batch)
            return self.module.token_logprobs(config, self.models.policy, hidden, batch)

    def experience(self, samples: list[dict] | None = None, models=None, **settings) -> dict:
        config = dataclasses.replace(self.config, **settings)
        given = models or self.models, samples or self.probes
        return self.module.make_experience(config, *given, config.kl_coef or 0.05)

    def per_pass(self, rows: int) -> dict:
        settings = {"micro_batch_tokens": rows}  # at 1 each row is a micro-batch
        if hasattr(self.config, "logits_chunk"):
            vocabulary = self.models.policy.get_input_embeddings().weight.shape[0]
            settings |= {"logits_chunk": (2 * rows + 1) * vocabulary, "entropy_coef": self.config.entropy_coef or 0.01}
        return settings

    def accumulate(self, config, batch: dict) -> None:
        self.module.switch_checkpointing(self.models, self.config.gradient_checkpointing)
        scaler = torch.amp.GradScaler(self.models.device.type, enabled=False)
        self.module.accumulate_gradients(config, self.models, batch, list(range(PROBES)), scaler)

    def start_update(self, batch: dict, models, step) -> None:
        optimizer = self.module.make_optimizer(self.config, models)
        optimizer.step, scaler = step, torch.amp.GradScaler(self.device.type, enabled=False)
        number = getattr(self.config, "critic_warmup_steps", 0)
        self.module.update(self.config, models, optimizer, scaler, batch, number)

    def definitions(self):
        config = self.config
        if getattr(config, "loss", "clip") == "clip_cov":
            return [], "Clip-Cov leaves out tokens of its choice"
        if getattr(config, "kl_top_k", 0):
            return [], "the divergence is of chosen tokens"
        how, known = getattr(config, "aggregation", "token_mean"), {"entropy_coef": config.entropy_coef}
        length = config.max_new_tokens if how == "seq_mean_token_sum_norm" else getattr(config, "norm_length", 1)
        objective = getattr(config, "objective", "policy_gradient")
        if objective != "policy_gradient" and hasattr(self.models.teacher, "model"):
            beta, teacher = {"reverse_kl": 1.0, "forward_kl": 0.0}.get(objective, config.beta), self.models.teacher
            known |= {"kl_coef": config.kl_coef, "beta": beta, "teacher": teacher.model, "width": teacher.width}
        return [Definition("", how, length, **known)], ""

    def clips(self):
        loss, known = getattr(self.config, "loss", "clip"), {"clip": "token", "gspo": "sequence", "cispo": "weight"}
        return ([known[loss]], "") if loss in known else ([], f"--loss {loss} has bounds of its own")

    def group_of(self, samples: list[dict]):
        how = getattr(self.config, "advantage", "")
        if hasattr(self.config, "objective") or how not in ZERO_SUM:
            return [], "advantages are not of groups"
        if self.config.group_size < 2:
            return [], "one completion per prompt"
        if self.config.kl_in == "reward" and self.config.kl_coef:
            return [], "the KL in the reward differs within a group"
        return [sample["group"] for sample in samples], ""

    def values_after(self, ids):
        critic = self.models.critic
        if not hasattr(critic, "head"):
            return None
        policy, mask = self.models.policy, ids * 0 + 1
        policy = policy.get_base_model() if hasattr(policy, "get_base_model") else policy
        below = policy.base_model if policy.base_model is not policy else policy.model
        states = (critic.backbone or below)(input_ids=ids, attention_mask=mask).last_hidden_state
        return critic.head(states[0].float()).squeeze(-1)
