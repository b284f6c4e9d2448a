"""A trainer as the checks see it, and how figures are compared."""

import contextlib
import dataclasses
import math

SAMPLED = 8  # prompts to sample from
NEW_TOKENS = 32  # tokens of a completion
PROBES = 4  # fixed sequences for log-probs and gradients
ALL_ROWS = 2**30  # rows in one pass

# mean difference of log-probs in nats (ten times as much for a single token), relative difference of gradients
LIMITS = {"fp32": (1e-4, 1e-3), "bf16": (0.1, 0.15)}


@dataclasses.dataclass(frozen=True)
class Definition:
    """A loss as papers write it: what the trainer's gradient is compared with."""

    name: str  # where there are several
    aggregation: str = "token_mean"
    constant: float = 1.0  # by which some aggregations divide the sum of a sequence
    entropy_coef: float = 0.0
    kl_coef: float = 0.0  # weight of the divergence from the teacher
    beta: float = 1.0  # which one: 1 reverse KL, 0 forward KL, between them Jensen-Shannon
    teacher: object = None
    width: int | None = None  # logits that count


class Seen(BaseException):
    """Ends an update at its first loss."""


class Trainer:
    """A module with the functions of the contract. A subclass calls them:

    missing() -> names; parse(flags)
    load() sets config, device, precision, models, with_reference, rows, reward, environment
    scores(samples) -> (scores, {function: values}) of the completions of `rows`, or of conversations that it plays
    play(record, rows) -> (batch, scores) of conversations with a record's environments and answers, of pages alone
    generated(prompts, greedy) -> (samples, batch); collate(samples) -> batch
    logprobs(batch, **settings) -> (log-probs, entropy), [B, T] each, without gradient
    experience(samples, models, **settings) -> batch, by default of the probes; accumulate(config, batch) adds gradients
    per_pass(rows): settings for so many rows in a pass, and few of their tokens at the output layer, at once
    definitions() -> (losses of which the trainer's has to be one, why there is none)
    clips() -> (the clips of `own_surrogate` that its policy loss may have, why there are none)
    start_update(batch, models, step) trains on the batch by the trainer's own `update`, with a step of the optimizer
    group_of(samples) -> (the group of each, why advantages of a group need not sum to 0)
    values_after(ids) -> values [T] of the text up to each token of ids [1, T] by the plain critic; None without one
    """

    takes_holes = False  # responses with tokens of others in between
    chats = False  # sends plain prompts as chats, unless its settings say otherwise

    def __init__(self, module):
        self.module = module
        self.config = self.models = self.with_reference = self.engine = self.reward = self.environment = None
        self.probes = []  # samples for log-probs and gradients
        self.initial = None  # log-probs of the probes' responses under the untouched policy, [tokens]
        self.moved = 0.0  # nats per token between the policy and the untouched one

    @property
    def limits(self) -> tuple[float, float]:
        """Tolerances of log-probs and of gradients."""
        return LIMITS[self.precision]

    @property
    def plays(self) -> bool:
        """Whether it has conversations with an environment."""
        return bool(getattr(self.config, "environment", ""))

    def sampled(self):
        """(samples, batch) by the trainer's sampler, one completion for each of `rows`."""
        return self.generated([row["prompt_ids"] for row in self.rows])

    def sample(self, prompt: list[int], ids: list[int], logprobs: list[float]) -> dict:
        """A completion with its text."""
        finished = ids[-1] in self.models.eos_ids
        text = self.models.tokenizer.decode(ids[:-1] if finished else ids)
        sample = {"prompt_ids": [*prompt], "response_ids": ids, "rollout_logprobs": logprobs}
        return sample | {"completion": text, "finished": finished, "score": 0.0}

    def chat_of(self, row: dict) -> list[dict]:
        """The messages that a prompt is sent as, without an answer yet; none for plain text."""
        if isinstance(row["prompt"], str):
            chats = getattr(self.config, "chat", self.chats)
            return [{"role": "user", "content": row["prompt"]}] if chats else []
        return row["prompt"] if row["prompt"][-1]["role"] != "assistant" else []

    def gradients(self, batch: dict, **settings) -> list:
        """Gradients of the probes by the trainer's own function, a vector for each network."""
        self.accumulate(dataclasses.replace(self.config, **settings), batch)
        return take_gradients(self.models)

    def first_loss(self, batch: dict, models) -> tuple | None:
        """(log-probs, old log-probs), [n, T], that `update` first gives to the policy loss: empty if it calls none.

        None where the trainer has no functions of these names.
        """
        if not hasattr(self.module, "update"):
            return None
        table = getattr(self.module, "LOSSES", getattr(self.module.update, "__globals__", {}))  # a template's, too
        name = getattr(self.config, "loss", "policy_loss")
        if name not in table:
            return None
        loss, seen = table[name], []

        def watched(logprobs, old_logprobs, *args, **known):
            seen.extend((logprobs, old_logprobs))
            raise Seen

        watched.__dict__.update(getattr(loss, "__dict__", {}))  # what an entry of a table says of itself
        table[name] = watched
        try:
            with contextlib.suppress(Seen):
                self.start_update(batch, models, lambda: None)
        finally:
            table[name] = loss
            rest(models)
        return tuple(seen)

    def steps_of_update(self) -> list[list]:
        """The gradients that the optimizer gets in two calls of `update`, which are neither clipped nor applied."""
        import torch

        def norm(parameters, *_, **__):
            return torch.nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])

        steps, clip = [], torch.nn.utils.clip_grad_norm_
        torch.nn.utils.clip_grad_norm_ = norm
        try:
            for _ in range(2):
                self.start_update(self.settled(), self.models, lambda: steps.append(gradients_of(self.models)))
        finally:
            torch.nn.utils.clip_grad_norm_ = clip
            rest(self.models)
        return steps

    def settled(self) -> dict:
        """The trainer's batch without a graph and with current log-probs throughout: one fault fails one check."""
        batch = {name: x.detach() for name, x in self.experience().items()}
        current = self.logprobs(self.collate(self.probes))[0]
        names = {"old_logprobs", "ref_logprobs", "rollout_logprobs"} & {*batch}
        return batch | dict.fromkeys(names, current)

    def response_logprobs(self, samples: list[dict], batch: dict | None = None):
        """The trainer's log-probs of the sampled tokens, [tokens]."""
        batch = batch or self.collate(samples)
        return self.logprobs(batch)[0][responses(batch, samples)]


def check(moved: bool = True, plays: bool = False):
    """Mark `function(trainer) -> (passed or None for not applicable, measurement)` as a check.

    Its docstring ends with what to try where it fails.

    Args:
        moved: whether the policy has to be off its start.
        plays: whether it needs a page that plays conversations.
    """

    def mark(function):
        function.advice = " ".join(function.__doc__.partition("Try: ")[2].split()).rstrip(".")
        function.moved, function.plays = moved, plays
        return function

    return mark


def networks(models) -> list:
    return [x for x in (models.policy, getattr(models, "critic", None)) if x is not None]


def rest(models) -> None:
    """Drop gradients and leave training mode."""
    for network in networks(models):
        network.zero_grad()
        network.eval()


def gradients_of(models) -> list:
    """One vector per network with up to 4,096 entries of each gradient, evenly spaced."""
    import torch

    vectors = []
    for network in networks(models):
        parts = [torch.zeros(1)]
        for p in (p for p in network.parameters() if p.requires_grad):
            g = torch.zeros_like(p) if p.grad is None else p.grad
            parts.append(g.flatten()[:: max(1, g.numel() // 4096)].float().cpu())
        vectors.append(torch.cat(parts))
    return vectors


def take_gradients(models) -> list:
    """The same; clears the gradients."""
    vectors = gradients_of(models)
    rest(models)
    return vectors


def agree(a, b, limit: float) -> tuple[bool, str]:
    """Whether two vectors differ by at most `limit` on average and ten times that anywhere; and the text of it."""
    difference = (a.float() - b.float()).abs()
    mean, peak = difference.mean().item(), difference.max().item()
    return mean <= limit and peak <= 10 * limit, f"{peak:.1e} nats apart at most, {mean:.1e} on average"


def apart(gradients: list, expected: list) -> tuple[float, float]:
    """The largest relative difference |a - b| / |b| of two lists of vectors, and the first ratio of their lengths."""
    pairs = [(a, b, b.norm().clamp(min=1e-12)) for a, b in zip(gradients, expected, strict=True)]
    ratio = (pairs[0][0].norm() / pairs[0][2]).item()
    return largest(((a - b).norm() / norm).item() for a, b, norm in pairs), ratio


def largest(values) -> float:
    """The maximum, where one that is not a number counts as infinite."""
    return max(math.inf if math.isnan(value) else value for value in values)


def sampled_places(sample: dict) -> list[int]:
    """1 on those of the tokens after the prompt that the policy sampled: on all, unless `response_mask` is other."""
    return sample.get("response_mask", [1] * len(sample["response_ids"]))


def responses(batch: dict, samples: list[dict], whole: bool = False):
    """True [B, T] on sampled tokens, or on all after the prompts: each row's last real ones, wherever pads are."""
    import torch

    mask = torch.zeros_like(batch["attention_mask"])
    for row, real, sample in zip(mask, batch["attention_mask"], samples, strict=True):
        places = [1] * len(sample["response_ids"]) if whole else sampled_places(sample)
        row[real.nonzero().squeeze(-1)[-len(places) :]] = torch.tensor(places, device=row.device)
    return mask.bool()
