"""Sampling with the policy itself: a KV cache, rows that leave the batch when they end."""

import itertools

from parts.batches import left_pad
from parts.cache_probe import decoding_of_policy, select_rows
from parts.forward import cached_states, lm_logits
from parts.messages import DivergedError
from parts.models import Models
from parts.precision import autocast, widest_float
from parts.processes import world
from parts.settings import BaseConfig


def inverse_cdf(log_probs, uniform):
    """Draw one index per row of log_probs [B, V] with uniform [B] in [0, 1)."""
    import torch

    cdf = log_probs.to(widest_float(log_probs.device)).exp().cumsum(-1)
    margin = max(1e-12, 4 * torch.finfo(cdf.dtype).eps)
    point = uniform[:, None].to(cdf) * cdf[:, -1:] * (1 - margin)  # below the total in spite of rounding
    return torch.searchsorted(cdf, point, right=True).squeeze(-1).clamp(max=cdf.shape[1] - 1)  # a row of NaN


class HFEngine:
    """Samples with the policy itself, batched, with a cache; rows that are finished leave the batch if it lets them."""

    def __init__(self, config: BaseConfig, models: Models):
        self.config, self.models = config, models
        self.decoding = decoding_of_policy(config, models)

    def sync(self, step: int = 0) -> None:
        """The sampler is the policy: there are no weights to copy."""

    def generate(self, prompts: list[list[int]], noise) -> list[tuple[list[int], list[float]]]:
        """Sample one completion per prompt.

        Args:
            prompts: token ids, any lengths.
            noise: uniform draws [len(prompts), max_new_tokens] in [0, 1), so that a row's completion does not depend on
                the rest of its batch; None decodes greedily.

        Returns:
            (token ids with the end token if there is one, their log-probs) per prompt.
        """
        outputs = [None] * len(prompts)
        for rows in self.batches(list(map(len, prompts))):
            sampled = self.generate_batch([prompts[i] for i in rows], None if noise is None else noise[rows])
            for i, output in zip(rows, sampled, strict=True):
                outputs[i] = output
        return outputs

    def batches(self, lengths: list[int]) -> list[list[int]]:
        """Indices of prompts that are sampled together: of like length, of one where the cache bears no pads."""
        size = self.config.rollout_batch_size or max(1, self.config.batch_size // world()[1])
        order = sorted(range(len(lengths)), key=lambda i: lengths[i])
        groups = [order]
        if not self.decoding.pads:
            groups = [list(group) for _, group in itertools.groupby(order, key=lambda i: lengths[i])]
        return [group[start : start + size] for group in groups for start in range(0, len(group), size)]

    def generate_batch(self, prompts, noise):
        """`generate` for prompts that fit in memory at once."""
        import torch

        models, limit = self.models, self.config.max_new_tokens
        ids, mask = left_pad(prompts, models.pad_id, models.device)
        n, ends = len(prompts), torch.tensor(models.eos_ids, device=ids.device)
        tokens = torch.zeros(n, limit, dtype=torch.long, device=ids.device)
        logprobs = torch.zeros(n, limit, device=ids.device)
        lengths = torch.full((n,), limit, device=ids.device)
        noise = None if noise is None else torch.as_tensor(noise).to(widest_float(ids.device)).to(ids.device)
        rows = torch.arange(n, device=ids.device)  # which sequence each row of the shrinking batch is
        running, cache = torch.ones_like(rows, dtype=torch.bool), None
        with torch.no_grad(), autocast(self.config, models.device):
            for t in range(limit):
                states, cache = cached_states(models.policy, ids, mask, cache)
                logits = lm_logits(models.policy, states[:, -1]).float()
                dist = torch.log_softmax(logits / self.config.temperature, dim=-1)  # [rows, V]
                token = dist.argmax(-1) if noise is None else inverse_cdf(dist, noise[rows, t])  # [rows]
                tokens[rows, t], logprobs[rows, t] = token, dist.gather(-1, token[:, None]).squeeze(-1)
                ended = running & torch.isin(token, ends)
                lengths[rows] = torch.where(ended, t + 1, lengths[rows])
                running &= ~ended
                alive = int(running.sum())
                if not alive:
                    break
                ids, mask = token[:, None], torch.cat([mask, torch.ones_like(token[:, None])], dim=1)
                if self.decoding.leaving and alive <= 0.75 * len(rows):  # it copies the cache: not for every row
                    keep = running.nonzero().squeeze(-1)
                    select_rows(cache, keep)
                    rows, running, ids, mask = rows[keep], running[keep], ids[keep], mask[keep]
        if not torch.isfinite(logprobs).all():
            raise DivergedError("got log-probs that are not finite while sampling; expected finite; try a lower --lr")
        return [(x[:n], p[:n]) for x, p, n in zip(tokens.tolist(), logprobs.tolist(), lengths.tolist(), strict=True)]
