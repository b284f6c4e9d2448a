"""Inputs of a run and their checks: prompts, rewards, environments, networks."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from parts.data.prompts import load_splits
from parts.environments.conversations import PlaySetup
from parts.environments.play_setup import (
    TURN_SETTINGS,
    check_chat_template,
    check_environment_rows,
    check_fits,
    check_idle,
    check_room,
    load_scored,
    make_play_setup,
    playable_rows,
)
from parts.foundation.bundle import specs_for
from parts.foundation.messages import need
from parts.foundation.processes import torch, transformers
from parts.learning.advantages import ADVANTAGES, estimator
from parts.learning.optimizer import adamw, learning_rates
from parts.learning.presets import check_config
from parts.networks.adapters import adapter_settings, add_lora
from parts.networks.cache_probe import check_pads, share_prompts
from parts.networks.forward import settle_logits
from parts.networks.loading import load_network, load_policy
from parts.networks.models import Models, add_sparsely, check_context, check_tokens, keep_as_reference, unwrapped
from parts.networks.tokenizers import end_and_pad_ids, load_tokenizer
from parts.rewards.rewards import Reward, call_limits
from parts.sampling.rollouts import collect
from programs.ppo_train.rollout import converse
from programs.ppo_train.settings import Config


def make_critic(config: Config, policy, device):
    """A value head that starts at 0, with its own backbone when the critic is separate."""
    critic = torch.nn.Module()
    critic.backbone = None
    if config.critic == "separate":
        critic.backbone = load_network(transformers.AutoModel, config.critic_model or config.model, config, device)
        known, used = (m.get_input_embeddings().weight.shape[0] for m in (critic.backbone, unwrapped(policy)))
        got = f"got critic_model {config.critic_model!r} of {known} tokens"
        need(known >= used, f"{got}; expected the policy's {used} at least")
        if config.lora_rank:
            critic.backbone = add_lora(critic.backbone, config)
    size = unwrapped(critic.backbone or policy).config.get_text_config().hidden_size
    critic.head = torch.nn.Linear(size, 1, device=device)  # float32 whatever the backbone's dtype
    torch.nn.init.zeros_(critic.head.weight)
    torch.nn.init.zeros_(critic.head.bias)
    return critic


def load_models(config: Config, device, checkpoint: Path | None = None, tokenizer=None) -> Models:
    """Load tokenizer, policy, critic and (with KL) reference, from a checkpoint where there is one."""
    tokenizer = tokenizer or load_tokenizer(config)
    policy = load_policy(config, device, checkpoint and checkpoint / "policy")
    add_sparsely(policy, device)
    critic = make_critic(config, policy, device) if estimator(config).critic else None
    if checkpoint and critic:
        trained = torch.load(checkpoint / "critic.pt", map_location="cpu", weights_only=True, mmap=True)
        critic.load_state_dict(trained, strict=False)
    reference = None
    if config.kl_coef:
        reference = policy
        if adapter_settings(config.model):
            keep_as_reference(policy, config.model)
        elif not config.lora_rank:
            reference = load_network(transformers.AutoModelForCausalLM, config.model, config, device, frozen=True)
    if config.gradient_checkpointing:
        for network in filter(None, (policy, critic and critic.backbone)):
            network.activation_checkpointing_enable({"use_reentrant": False})
    eos_ids, pad_id = end_and_pad_ids(config, policy, tokenizer)
    models = Models(policy, critic, reference, tokenizer, eos_ids, pad_id, device)
    settle_logits(config, models)
    check_pads(config, models, policy, "model")
    if critic and critic.backbone:
        check_pads(config, models, critic.backbone, "critic_model")
    share_prompts(config, models, models.networks)
    return models


def make_optimizer(config: Config, models: Models):
    rates = learning_rates(config, sum(p.numel() for p in models.policy.parameters()))
    return adamw(config, [pair for pair in zip((models.policy, models.critic), rates, strict=True) if pair[0]])


@dataclass
class Inputs:
    """What a run is given beside its settings."""

    tokenizer: object
    rows: list[dict]
    held_out: list[dict]
    reward: Reward
    environments: object = None  # with --environment
    setup: PlaySetup | None = None  # what conversations are played with, once the model's end tokens are known

    @property
    def sample(self) -> Callable:
        """What samples and scores: completions, or conversations with the environment."""
        return functools.partial(converse, self.setup) if self.setup else collect

    def prepare_play(self, config: Config, end_ids: list[int]) -> None:
        """With an environment, leave out prompts that no conversation can begin with."""
        if self.environments:
            self.setup = make_play_setup(config, self.tokenizer, end_ids, self.environments)
            self.rows = playable_rows(config, self.setup, self.rows, config.data)
            self.held_out = playable_rows(config, self.setup, self.held_out, "held-out prompts")


def load_reward(config: Config) -> Reward:
    """The configured reward functions, by default those of the embedded task with its data."""
    return Reward(specs_for(config.data, config.reward), call_limits(config))


def load_inputs(config: Config) -> Inputs:
    tokenizer = load_tokenizer(config)
    rows, held_out = load_splits(config, tokenizer)
    environments, reward = load_scored(config) if config.environment else (None, load_reward(config))
    for row in (rows + held_out)[:: max(1, len(rows))]:
        reward.check_columns(row)
    if environments:
        check_chat_template(config, tokenizer)
        check_environment_rows(environments, rows + held_out)
    return Inputs(tokenizer, rows, held_out, reward, environments)


def validate(config: Config, processes: int) -> None:
    """Raise UserError for settings that cannot work; say which do nothing."""
    check_config(config, processes)
    check_idle(config, bool(config.environment), (*TURN_SETTINGS, "turn_baseline"))
    by_turn = [name for name, entry in ADVANTAGES.items() if getattr(entry, "by_turn", False)]
    got = f"got --turn_baseline turn with advantage {config.advantage}; expected one of {', '.join(by_turn)}"
    need(config.turn_baseline == "conversation" or estimator(config).by_turn, f"{got}; try --algorithm rloo")
    check_room(config, config.max_prompt_tokens)


def check_lengths(config: Config, inputs: Inputs, models: Models) -> None:
    """Raise UserError where the longest completion or conversation exceeds a model, or a token has no embedding."""
    rows = inputs.rows + inputs.held_out
    if inputs.environments:
        check_fits(config, getattr(unwrapped(models.policy).config.get_text_config(), "max_position_embeddings", None))
        check_tokens(models, rows)
    else:
        check_context(config, models, rows)
