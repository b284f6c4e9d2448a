"""The sampler with top-p, stop strings, and the beginning that all prompts share read once."""

import itertools
import math

from parts.networks.forward import cached_states
from parts.networks.key_cache import pairs_of, roomy_layer
from parts.networks.models import autocast, widest_float
from parts.sampling.sampling import HFEngine

PREFIX_MIN = 16  # tokens that all prompts must share for their states to be kept
STOP_EVERY = 8  # steps between looks for stop strings; what was sampled past one is cut off


def common_prefix(sequences: list[list[int]]) -> list[int]:
    """The tokens that all sequences begin with, leaving each at least one of its own."""
    low, high = min(sequences), max(sequences)  # in the order of dictionaries, all others lie between these
    shared = [a for a, _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(low, high, strict=False))]
    return shared[: min(map(len, sequences)) - 1]


class PrefixEngine(HFEngine):
    """HFEngine for many prompts that begin alike, as those with worked examples do."""

    prefix, pairs, stops = (), None, ()  # the shared tokens, their keys and values by layer, and stop strings

    def share(self, sequences: list[list[int]]) -> None:
        """Let all batches to come share what these sequences begin with, where the cache can."""
        tokens = common_prefix(sequences) if len(sequences) > 1 else []
        tokens = tokens if len(tokens) >= PREFIX_MIN and self.decoding.plain else []
        if tokens != self.prefix:
            self.prefix, self.pairs = tokens, None

    def behind_prefix(self, sequences: list[list[int]]) -> tuple:
        """(the sequences without the shared prefix, its mask [B, T] and its cache); as they are, None, None without."""
        import torch
        from transformers.cache_utils import DynamicCache

        size = len(self.prefix)
        if not size or any(len(ids) <= size or ids[:size] != self.prefix for ids in sequences):
            return sequences, None, None
        device = self.models.device
        if self.pairs is None:
            ids = torch.tensor([self.prefix], device=device)
            with torch.no_grad(), autocast(self.config, device):
                self.pairs = pairs_of(cached_states(self.models.policy, ids, torch.ones_like(ids), None)[1])
        cache, rows = DynamicCache(), len(sequences)
        cache.layers = [roomy_layer()(*(x.expand(rows, -1, -1, -1) for x in pair)) for pair in self.pairs]
        return [ids[size:] for ids in sequences], torch.ones(rows, size, dtype=torch.long, device=device), cache

    def read_on(self, new, mask=None, cache=None):
        return super().read_on(*(self.behind_prefix(new) if cache is None else (new, mask, cache)))

    def draw(self, log_probs, uniform):
        top_p = self.config.top_p
        if uniform is not None and top_p < 1:  # the smallest set of tokens with this probability
            ordered, index = log_probs.sort(dim=-1, descending=True)
            mass = ordered.to(widest_float(log_probs.device)).exp()
            outside = mass.cumsum(-1) - mass >= top_p  # the mass before each token
            log_probs = log_probs.masked_fill(outside.scatter(-1, index, outside), -math.inf)
        return super().draw(log_probs, uniform)

    def ends(self, tokens, rows, t):
        import torch

        ended = super().ends(tokens, rows, t)
        if not self.stops or (t + 1) % STOP_EVERY:
            return ended
        longest = max(len(stop.encode()) for stop in self.stops)  # no token is shorter than a byte
        tails = tokens[rows, max(0, t + 1 - STOP_EVERY - longest - 4) : t + 1].tolist()
        texts = self.models.tokenizer.batch_decode(tails, skip_special_tokens=False)
        stopped = [any(stop in text for stop in self.stops) for text in texts]
        return ended | torch.tensor(stopped, device=ended.device)
