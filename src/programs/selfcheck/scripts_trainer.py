"""A script of this bundle, or a copy of one, as the checks see it."""

import copy
import dataclasses
import inspect
import types

from programs.selfcheck.contract import SCRIPT_TALKS, lacking
from programs.selfcheck.scripted_talks import ANSWER_TOKENS, TURNS, Record, through_a_file
from programs.selfcheck.subject import PROBES, Definition, rest, take_gradients
from programs.selfcheck.trainer import Trainer

ZERO_SUM = ("grpo", "mean", "rloo", "gpg", "gpg_verl", "maxrl")  # the advantages of a group sum to 0


class ScriptsTrainer(Trainer):
    """scripts/ppo_train.py, scripts/on_policy_distillation.py and copies; OnePage says what the methods mean."""

    settled_logprobs = ("old_logprobs", "ref_logprobs")

    def lacking(self) -> list[str]:
        return lacking(self.module, self.needed, None)

    def parse(self, flags: list[str]) -> list[str]:
        self.config = self.module.parse_config(flags)
        critic = {"gae_lambda"} if getattr(self.config, "advantage", "") == "gae" else set()
        talks = lacking(self.module, SCRIPT_TALKS, None) if self.plays else []
        return lacking(self.module, self.needed, critic) + talks

    @property
    def user_errors(self) -> tuple:
        """Exceptions that speak to the user."""
        return (self.module.UserError, SystemExit)

    def load(self) -> None:
        trainer, config = self.module, self.config
        trainer.check_config(config)
        device = trainer.start_processes(config)
        if hasattr(trainer, "settle_precision"):  # copies of older trainers have no `auto`
            trainer.settle_precision(config, device)
        tokenizer = trainer.load_tokenizer(config)
        environments, (rows, held_out) = None, trainer.load_splits(config, tokenizer)
        if self.plays:
            environments, self.reward = trainer.load_with_reward(config, tokenizer)
        elif not self.on_cut:
            self.reward = trainer.load_reward(config)
        count, new_tokens = self.few
        small = {"batch_size": count, "minibatches": 1, "ppo_epochs": 2, "rollout_batch_size": 0}
        small["max_new_tokens"] = new_tokens
        small |= {"critic": "shared"} if self.light and hasattr(config, "critic") else {}
        small |= {"group_size": min(config.group_size, 2)} if hasattr(config, "group_size") else {}
        small |= {"mismatch": "none"} if hasattr(config, "mismatch") else {}  # the probes were not sampled
        small |= {"kl_cov_coef": 0.0} if getattr(config, "loss", "") == "kl_cov" else {}  # |log-ratio| has a kink there
        few = dataclasses.replace(config, **small)
        kl_coef = (config.kl_coef or 0.05) * (not self.light)
        self.with_reference = trainer.load_models(dataclasses.replace(few, kl_coef=kl_coef), device)
        if self.plays:
            self.setup = self.setup_of(config, environments)
            rows = trainer.playable_rows(config, self.setup, rows, config.data)
        else:
            trainer.check_context(config, self.with_reference, rows + held_out)
        self.models = self.with_reference
        if not config.kl_coef:
            self.models = copy.copy(self.with_reference)
            self.models.reference = None
        engine = "VllmEngine" if config.rollout_engine == "vllm" else "HFEngine"
        self.engine = getattr(trainer, engine)(few, self.models)
        drawn = trainer.batch_rows(rows, few, 0, 8 * count)
        self.rows = sorted(drawn, key=lambda row: len(row["prompt_ids"]))[: 4 * count : 4]  # from the shorter half
        self.config = dataclasses.replace(few, batch_size=PROBES)

    def setup_of(self, config, environments):
        """What conversations are played with, by the trainer."""
        models = self.with_reference
        return self.module.make_play_setup(config, models.tokenizer, models.eos_ids, environments)

    @property
    def talks(self) -> bool:
        return any(kind.talks for kind in self.setup.environments.kinds.values())

    def silent(self) -> str:
        if not self.plays:
            return "one answer a prompt: no environment"
        if self.talks:
            return ""
        try:
            self.probe_setup(Record(self.models.tokenizer, []))
        except self.user_errors as error:
            return f"checked with an environment that replies, for which {error}"
        return ""

    def probe_setup(self, record: Record):
        """(settings, setup) of conversations with a record's environments."""
        limits = {"max_turns": TURNS, "max_conversation_tokens": 2**20, "max_new_tokens": ANSWER_TOKENS}
        config = dataclasses.replace(self.config, **limits, tool_format="", reward=[])

        def load(spec: str):
            return self.module.load_with_reward(dataclasses.replace(config, environment=spec), self.models.tokenizer)

        environments, reward = through_a_file(record.environment(), load)
        self.probed = self.setup_of(config, environments)
        return config, self.probed, reward

    def template_settings(self) -> dict:
        return self.probed.bridge.settings

    def play(self, record: Record, rows: list[dict]):
        config, setup, reward = self.probe_setup(record)
        engine = types.SimpleNamespace(generate=lambda prompts, noise: record.answer(prompts))
        samples = self.module.converse(setup, config, self.models, engine, reward, rows, None, {})
        return self.collate(samples), [sample["score"] for sample in samples]

    @property
    def device(self):
        return self.models.device

    @property
    def precision(self) -> str:
        return self.config.precision

    def scores(self, samples: list[dict]):
        if self.plays:
            return self.played_scores()
        texts, ids = ([sample[key] for sample in samples] for key in ("completion", "response_ids"))
        return self.reward(self.rows, texts, ids)

    def played_scores(self):
        """(scores, values by name) of conversations with the run's environment, one for each of `rows`."""
        import numpy as np

        noise = np.random.default_rng(0).random((len(self.rows), self.config.max_turns * self.config.max_new_tokens))
        given = (self.setup, self.config, self.models, self.engine, self.reward, self.rows, noise, {})
        samples = self.module.converse(*given)
        names = samples[0]["rewards"]
        return [s["score"] for s in samples], {name: [s["rewards"][name] for s in samples] for name in names}

    def sampled(self):
        import numpy as np

        def no_reward(rows, completions, completion_ids):
            return [0.0] * len(rows), {"none": [0.0] * len(rows)}

        noise = np.random.default_rng(0).random((len(self.rows), self.config.max_new_tokens))
        samples = self.module.collect(self.config, self.models, self.engine, no_reward, self.rows, noise, {})
        return samples, self.collate(samples)

    def greedy(self, prompts: list[list[int]]) -> list[list[int]]:
        engine = self.module.HFEngine(self.config, self.models)
        return [ids for ids, _ in engine.generate(prompts, None)]

    def weights_changed(self) -> None:
        self.engine.sync()

    def collate(self, samples: list[dict]) -> dict:
        return self.module.collate(samples, self.models.pad_id, self.device)

    def laid_out(self, samples: list[dict]):
        return samples, self.collate(samples)

    def logprobs(self, batch: dict, **settings):
        import torch

        config = dataclasses.replace(self.config, **settings)
        with torch.no_grad(), self.module.autocast(config, self.device):
            hidden = self.module.predicting_states(self.models.policy, batch)
            return self.module.token_logprobs(config, self.models.policy, hidden, batch)

    def experience(self, samples: list[dict], models=None, **settings) -> dict:
        config = dataclasses.replace(self.config, **settings)
        return self.module.make_experience(config, models or self.models, samples, config.kl_coef or 0.05)

    def per_pass(self, rows: int, width: int = 1) -> dict:
        return {"micro_batch_tokens": 1 if rows == 1 else rows * width}

    def chunked(self, tokens: int) -> dict:
        if not hasattr(self.config, "logits_chunk"):
            return {}
        vocabulary = self.models.policy.get_input_embeddings().weight.shape[0]
        return {"logits_chunk": tokens * vocabulary, "entropy_coef": 0.01}

    def scaler(self):
        """The gradient scaler of an fp16 run; one that does nothing otherwise."""
        import torch

        enabled = self.config.precision == "fp16"
        return torch.amp.GradScaler(self.device.type, init_scale=2.0**12, enabled=enabled)

    def gradients(self, batch: dict, count: int, **settings) -> list:
        config, scaler = dataclasses.replace(self.config, **settings), self.scaler()
        self.module.switch_checkpointing(self.models, self.config.gradient_checkpointing)
        try:
            self.module.accumulate_gradients(config, self.models, batch, list(range(count)), scaler)
            return take_gradients(self.models, scaler.get_scale())
        finally:
            rest(self.models)

    def starts_update(self, samples: list[dict], models) -> None:
        config = dataclasses.replace(self.config, kl_coef=self.config.kl_coef or 0.05)
        batch = {name: x.detach() for name, x in self.experience(samples, models).items()}
        optimizer = self.module.make_optimizer(config, models)
        given = config, models, optimizer, self.scaler(), batch, getattr(config, "critic_warmup_steps", 0)
        asked = inspect.signature(self.module.update).parameters
        older = {"health": {"step": 0, "bad": 0, "kl_coef": config.kl_coef}} if "health" in asked else {}
        self.module.update(*given, **older)

    def swap_loss(self, function):
        if getattr(self.config, "loss", "clip") in ("clip", "clip_cov"):
            old, self.module.policy_loss = self.module.policy_loss, function
        else:
            table, name = self.module.LOSSES, self.config.loss
            old, table[name] = table[name], function
        return old

    def definitions(self):
        config = self.config
        if getattr(config, "loss", "clip") == "clip_cov":
            return [], "Clip-Cov leaves out tokens of its choice"
        if getattr(config, "kl_top_k", 0):
            return [], "the divergence is of chosen tokens"
        how, known = getattr(config, "aggregation", "token_mean"), {"entropy_coef": config.entropy_coef}
        length = config.max_new_tokens if how == "seq_mean_token_sum_norm" else getattr(config, "norm_length", 1)
        objective = getattr(config, "objective", "policy_gradient")
        if objective != "policy_gradient" and hasattr(self.models.teachers[0], "model"):
            beta, teacher = {"reverse_kl": 1.0, "forward_kl": 0.0}.get(objective, config.beta), self.models.teachers[0]
            known |= {"kl_coef": config.kl_coef, "beta": beta, "teacher": teacher.model, "width": teacher.width}
        return [Definition("", how, length, **known)], ""

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
