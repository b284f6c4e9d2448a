"""A trainer as the checks see it: what pages and scripts have in common."""

from programs.selfcheck.subject import NEW_TOKENS, PROBES, SAMPLED

LIGHT_TOKENS = 16  # of a completion by all of a large model


class Trainer:
    """A module with the functions of the contract; its subclasses call them."""

    takes_holes = False  # responses with tokens of others in between
    has_policy_loss = True  # trains by advantages
    chats = False  # sends plain prompts as chats, unless its settings say otherwise
    on_cut = False  # the model is a cut, of which neither text nor reward says anything
    light = False  # of a large model: no reference, no critic of its own, few and short completions

    def __init__(self, module, needed):
        self.module, self.needed = module, needed
        self.config = self.models = self.with_reference = self.engine = self.reward = self.environment = None

    @property
    def few(self) -> tuple[int, int]:
        """(prompts to sample from, tokens of a completion)."""
        new = min(self.config.max_new_tokens, NEW_TOKENS)
        return (PROBES, min(new, LIGHT_TOKENS)) if self.light else (SAMPLED, new)

    @property
    def plays(self) -> bool:
        """Whether it has conversations with an environment."""
        return bool(getattr(self.config, "environment", "")) and not self.on_cut

    @property
    def scored(self) -> bool:
        """Whether completions are scored: distillation needs no reward."""
        return self.reward is not None or self.plays

    def silent(self) -> str:
        """Why no conversations can be played; "" where they can."""
        return "" if self.plays else "one answer a prompt: no environment"

    def uncalled(self) -> str:
        """Why no run looks at the chat template; "" where one does."""
        return ""

    def template_settings(self) -> dict:
        """What the trainer gives to the chat template."""
        return {}

    def weights_changed(self) -> None:
        """Tell the sampler, where it is not the policy itself."""

    def chat_of(self, row: dict) -> list[dict]:
        """The messages that a prompt is sent as, without an answer yet; none for plain text."""
        if isinstance(row["prompt"], str):
            chats = getattr(self.config, "chat", self.chats)
            return [{"role": "user", "content": row["prompt"]}] if chats else []
        return row["prompt"] if row["prompt"][-1]["role"] != "assistant" else []

    def gae(self, *tensors_and_numbers):
        """(advantages, returns) by the trainer's own function."""
        return self.module.gae(*tensors_and_numbers)

    def without_critic(self) -> dict:
        """The settings with which the loss is the policy's alone."""
        return {"vf_coef": 0.0} if hasattr(self.config, "vf_coef") else {}
