"""A script of this bundle, or a copy, behind the interface of the checks."""

import copy
import dataclasses

from parts.foundation.messages import say
from parts.foundation.processes import np, torch
from programs.selfcheck.trainer import NEW_TOKENS, PROBES, SAMPLED, SCRIPT, SCRIPT_TALKS, Definition, Trainer, lacking

ZERO_SUM = ("grpo", "mean", "rloo", "gpg", "gpg_verl", "maxrl")  # the advantages of a group sum to 0


class ScriptsTrainer(Trainer):
    """scripts/ppo_train.py, scripts/on_policy_distillation.py and copies."""

    def missing(self) -> list[str]:
        return lacking(self.module, SCRIPT)

    def parse(self, flags: list[str]) -> list[str]:
        self.config = self.module.parse_config(flags)
        return lacking(self.module, SCRIPT_TALKS) if self.plays else []

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
        if self.plays:
            environments, self.reward = trainer.load_with_reward(config, tokenizer)
        else:
            self.reward = trainer.load_reward(config)
        few = self.cut_down(config)
        self.with_reference = trainer.load_models(dataclasses.replace(few, kl_coef=config.kl_coef or 0.05), device)
        if self.plays:
            models = self.with_reference
            self.setup = trainer.make_play_setup(config, models.tokenizer, models.eos_ids, environments)
            rows = trainer.playable_rows(config, self.setup, rows, config.data)
        else:
            trainer.check_context(config, self.with_reference, rows + held_out)
        self.models = copy.copy(self.with_reference)
        self.models.reference = self.models.reference if config.kl_coef else None
        engine = "VllmEngine" if config.rollout_engine == "vllm" else "HFEngine"
        self.engine = getattr(trainer, engine)(few, self.models)
        drawn = trainer.batch_rows(rows, few, 0, 8 * SAMPLED)
        self.rows = sorted(drawn, key=lambda row: len(row["prompt_ids"]))[: 4 * SAMPLED : 4]  # from the shorter half
        self.config = dataclasses.replace(few, batch_size=PROBES)

    def cut_down(self, config):
        """The settings, cut down to a few short sequences."""
        small = {"batch_size": SAMPLED, "max_new_tokens": min(config.max_new_tokens, NEW_TOKENS)}
        small["rollout_batch_size"] = 0
        small |= {"minibatches": 1, "ppo_epochs": 2}  # a single step would leave old log-probs to the update
        small |= {"group_size": min(config.group_size, 2)} if hasattr(config, "group_size") else {}
        small |= {"mismatch": "none"} if hasattr(config, "mismatch") else {}  # the probes were not sampled
        small |= {"kl_cov_coef": 0.0} if getattr(config, "loss", "") == "kl_cov" else {}  # |log-ratio| has a kink there
        return dataclasses.replace(config, **small)

    def tools_of(self, row: dict) -> list:
        return self.setup.environments.kind_of(row["columns"]).tools if self.plays else []

    def noise(self, rows: int, width: int):
        """Uniform random numbers for the sampler, [rows, width]."""
        return np.random.default_rng(0).random((rows, width))

    def scores(self, samples: list[dict]):
        if not self.plays:
            texts, ids = ([sample[key] for sample in samples] for key in ("completion", "response_ids"))
            return self.reward(self.rows, texts, ids)
        noise = self.noise(len(self.rows), self.config.max_turns * self.config.max_new_tokens)
        given = (self.setup, self.config, self.models, self.engine, self.reward, self.rows, noise, {})
        played = self.module.converse(*given)
        names = played[0]["rewards"]
        return [s["score"] for s in played], {name: [s["rewards"][name] for s in played] for name in names}

    def generated(self, prompts: list[list[int]], greedy: bool = False):
        engine = self.module.HFEngine(self.config, self.models) if greedy else self.engine
        noise = None if greedy else self.noise(len(prompts), self.config.max_new_tokens)
        pairs = zip(prompts, engine.generate(prompts, noise), strict=True)
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
