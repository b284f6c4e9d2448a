"""Sampling with the policy itself: a KV cache, rows that leave the batch when they end."""

import contextlib
import functools
import itertools
import random
from collections.abc import Callable, Iterator

from parts.foundation.messages import DivergedError, say, say_once
from parts.foundation.processes import np, torch, world
from parts.foundation.settings import BaseConfig
from parts.networks.batches import left_pad
from parts.networks.cache_probe import decoding_of_policy
from parts.networks.faster_layers import foldable_layers, folded, one_kernel_norms, onednn_linears, replaced
from parts.networks.forward import cached_states, lm_logits, masks_itself, next_states, tempered
from parts.networks.key_cache import KeptTexts, continued, group_rows, select_rows, worth_grouping
from parts.networks.models import Models, autocast, compute_dtype, unwrapped, widest_float
from parts.sampling.room_steps import RoomSteps

DRAWN_AT_ONCE = 2**24  # probabilities in float64; three tensors of them exist at a time
DRAWN_ON_CPU = 2**21  # tensors above 32 MiB get fresh memory for each token, which costs more than the draw


def inverse_cdf(log_probs, uniform):
    """Draw one index per row of log_probs [B, V] with uniform [B] in [0, 1)."""
    cdf = log_probs.to(widest_float(log_probs.device)).exp().cumsum(-1)
    margin = max(1e-12, 4 * torch.finfo(cdf.dtype).eps)
    point = uniform[:, None].to(cdf) * cdf[:, -1:] * (1 - margin)  # below the total in spite of rounding
    return torch.searchsorted(cdf, point, right=True).squeeze(-1).clamp(max=cdf.shape[1] - 1)  # a row of NaN


def steps_between_looks(device) -> int:
    """How many tokens are sampled between looks at which rows have ended: for each one a device is waited for."""
    return 1 if device.type == "cpu" else 8


class HFEngine:
    """Samples with the policy itself, batched, with a cache; rows that are finished leave the batch if it lets them."""

    def __init__(self, config: BaseConfig, models: Models):
        self.config, self.models = config, models
        self.decoding = decoding_of_policy(config, models)
        self.layers = foldable_layers(models.policy, models.device)
        self.forms = one_kernel_norms(models.policy, models.device)
        if compute_dtype(config, models.device) == torch.float32:
            self.forms += onednn_linears(models.policy, models.device)
        self.graphs = config.decode_graphs and models.device.type == "cuda" and self.can_record()
        self.end_ids = torch.tensor(models.eos_ids, dtype=torch.long, device=models.device)

    def can_record(self) -> bool:
        """Whether the step of a token fits into a CUDA graph; a note says why not."""
        policy, device = self.models.policy, self.models.device
        why = "its attention or its cache builds masks for each token"
        if self.decoding.plain and masks_itself(policy):
            with self.ready():
                token = torch.zeros(2, dtype=torch.long, device=device)
                mask = torch.ones(2, 2, dtype=torch.long, device=device)
                cache = cached_states(policy, token[:, None], mask[:, :1], None)[1]
                if not RoomSteps(policy).waits(token, mask, cache):
                    return True
            why = "the host waits for the GPU in each layer, as with experts"
        say(f"note: {type(unwrapped(policy)).__name__} samples without CUDA graphs: {why}; vLLM samples faster")
        return False

    def sync(self, step: int = 0) -> None:
        """The sampler is the policy: there are no weights to copy."""

    @contextlib.contextmanager
    def ready(self) -> Iterator[None]:
        """Context in which layers run as for sampling: adapters folded, weights cast once, others in faster forms."""
        with contextlib.ExitStack() as changed, torch.no_grad(), autocast(self.config, self.models.device):
            if self.layers:
                changed.enter_context(folded(self.layers))
            if self.forms:
                changed.enter_context(replaced(self.forms))
            yield

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
        with self.ready():
            for rows in self.batches(list(map(len, prompts))):
                batch, draws = [prompts[i] for i in rows], None if noise is None else noise[rows]
                texts = self.read(batch, self.decoding.groups and not self.graphs)
                sampled = self.sample(*texts, draws)
                for i, output in zip(rows, sampled, strict=True):
                    outputs[i] = output
        return outputs

    def batches(self, lengths: list[int]) -> list[list[int]]:
        """Indices of prompts that are sampled together: of similar length, or of one if the cache takes no pads."""
        size = self.config.rollout_batch_size or max(1, self.config.batch_size // world()[1])
        order = sorted(range(len(lengths)), key=lambda i: lengths[i])
        groups = [order]
        if not self.decoding.pads:
            groups = [list(group) for _, group in itertools.groupby(order, key=lambda i: lengths[i])]
        return [group[start : start + size] for group in groups for start in range(0, len(group), size)]

    def read(self, prompts: list[list[int]], groups: bool = False) -> tuple:
        """(states [B, H] after the prompts, mask [B, T], cache); equal ones are read, with `groups` held once."""
        once = prompts
        if self.decoding.leaving:
            once = list(map(list, dict.fromkeys(map(tuple, prompts))))
        states, mask, cache = self.read_on(once)
        if len(once) < len(prompts):
            place = {tuple(ids): i for i, ids in enumerate(once)}
            index = torch.tensor([place[tuple(ids)] for ids in prompts], device=self.models.device)
            if groups and worth_grouping(cache, len(prompts)):
                cache = group_rows(cache, mask, index)
            else:
                select_rows(cache, index)
            states, mask = states[index], mask[index]
        return states, mask, cache

    def read_on(self, new: list[list[int]], mask=None, cache=None) -> tuple:
        """(states [B, H] after new tokens of each row, mask [B, T] of all, cache), after those of a cache."""
        models = self.models
        ids, new_mask = left_pad(new, models.pad_id, models.device)
        mask = new_mask if mask is None else torch.cat([mask, new_mask], dim=1)
        with torch.no_grad(), autocast(self.config, models.device):
            states, cache = cached_states(models.policy, ids, mask, cache)
        return states[:, -1], mask, cache

    def draw(self, log_probs, uniform):
        """One token per row of log_probs [B, V]: by uniform [B] in [0, 1), or the most likely one for None."""
        if uniform is None:
            return log_probs.argmax(-1)
        at_once = DRAWN_ON_CPU if log_probs.device.type == "cpu" else DRAWN_AT_ONCE
        rows = max(1, at_once // log_probs.shape[1])
        pieces = zip(log_probs.split(rows), uniform.split(rows), strict=True)
        return torch.cat([inverse_cdf(*piece) for piece in pieces])

    def ends(self, tokens, rows, t: int):
        """Which rows [n] of tokens [B, T] end with the token at t."""
        return torch.isin(tokens[rows, t], self.end_ids)

    def sample(self, states, mask, cache, noise, leave=None) -> list[tuple[list[int], list[float]]]:
        """Completions of the texts that a cache holds, as `generate` returns them; states [B, H] are of their ends.

        `leave` is called as KeptTexts.take is, before rows leave the batch and at the end.
        """
        models, limit, device = self.models, self.config.max_new_tokens, self.models.device
        n, width = mask.shape
        tokens = torch.zeros(n, limit, dtype=torch.long, device=device)
        logprobs = torch.zeros(n, limit, device=device)
        lengths = torch.full((n,), limit, device=device)
        noise = None if noise is None else torch.as_tensor(noise).to(widest_float(device)).to(device)
        rows = torch.arange(n, device=device)  # which sequence each row of the shrinking batch is
        running, padded = torch.ones_like(rows, dtype=torch.bool), not bool(mask.all())
        mask, every = torch.cat([mask, mask.new_ones(n, limit)], dim=1), steps_between_looks(device)
        steps = RoomSteps(models.policy) if self.graphs else None
        with torch.no_grad(), autocast(self.config, device):
            for t in range(limit):
                logits = tempered(lm_logits(models.policy, states), self.config.temperature)
                dist = torch.log_softmax(logits, dim=-1)  # [rows, V]
                token = self.draw(dist, None if noise is None else noise[rows, t])  # [rows]
                tokens[rows, t], logprobs[rows, t] = token, dist.gather(-1, token[:, None]).squeeze(-1)
                ending = running & self.ends(tokens, rows, t)
                lengths[rows] = torch.where(ending, t + 1, lengths[rows])
                running &= ~ending
                alive = int(running.sum()) if t % every == every - 1 else len(rows)
                if not alive or t + 1 == limit:
                    break
                if self.decoding.leaving and alive <= 0.75 * len(rows):  # it copies the cache: not for every row
                    keep = running.nonzero().squeeze(-1)
                    if steps:
                        steps.leave()
                    if leave:
                        leave(cache, (~running).nonzero().squeeze(-1), rows, lengths)
                    select_rows(cache, keep)
                    rows, running, token, mask = rows[keep], running[keep], token[keep], mask[keep]
                seen = mask[:, : width + t + 1]
                if steps:
                    states = steps.step(token, seen, cache)
                else:
                    states, cache = self.step(token, seen, cache, padded)
        if steps:
            steps.leave()
        if leave:
            leave(cache, None, rows, lengths)
        if not torch.isfinite(logprobs).all():
            raise DivergedError("got log-probs that are not finite while sampling; expected finite; try a lower --lr")
        return [(x[:n], p[:n]) for x, p, n in zip(tokens.tolist(), logprobs.tolist(), lengths.tolist(), strict=True)]

    def step(self, token, mask, cache, padded: bool) -> tuple:
        """(states [B, H] after one more token [B] for each row, cache)."""
        if self.decoding.plain:
            return next_states(self.models.policy, token, mask, cache, padded), cache
        states, cache = cached_states(self.models.policy, token[:, None], mask, cache)
        return states[:, -1], cache


class TurnSampler:
    """Samples the turns of conversations: what was read and said up to a turn is not read again by the next.

    A turn that is no single batch is sampled as any prompts are, and nothing is kept of it.
    """

    def __init__(self, engine: HFEngine):
        self.engine, self.kept = engine, KeptTexts()

    def generate(self, prompts: list[list[int]], noise, numbers: list[int]) -> list[tuple[list[int], list[float]]]:
        """Like HFEngine.generate, for conversations with `numbers`: what was kept of them is not read again."""
        engine, kept, self.kept = self.engine, self.kept, KeptTexts()
        if len(engine.batches(list(map(len, prompts)))) != 1:
            say_once("note: each batch of a turn reads its conversations again; try a higher --rollout_batch_size")
            return engine.generate(prompts, noise)
        texts = dict(zip(numbers, prompts, strict=True))
        with engine.ready():
            if kept.begins(texts):
                order, states, mask, cache = continued(kept, texts, engine.read_on)
            else:
                order, (states, mask, cache) = numbers, engine.read(prompts)
            del kept
            place = {number: i for i, number in enumerate(numbers)}
            noise = None if noise is None else noise[[place[number] for number in order]]
            keep = functools.partial(self.kept.take, order, mask)
            sampled = dict(zip(order, engine.sample(states, mask, cache, noise, keep), strict=True))
        self.kept.ids = {number: texts[number] + ids[:-1] for number, (ids, _) in sampled.items()}
        return [sampled[number] for number in numbers]


def turn_sampler(engine) -> Callable:
    """`(prompts, noise, numbers) -> completions` of an engine, for the turns of the conversations of one batch."""
    if isinstance(engine, HFEngine) and engine.decoding.plain:
        return TurnSampler(engine).generate
    return lambda prompts, noise, numbers: engine.generate(prompts, noise)


def rng_state() -> dict:
    """State of every random generator that a reward function could use; training itself draws from seeds and steps."""
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    return {"python": random.getstate(), "numpy": np.random.get_state(), "torch": torch.get_rng_state(), "cuda": cuda}


def restore_rng(states: dict) -> None:
    """Put the states back; those of GPUs where there are as many as there were."""
    random.setstate(states["python"])
    np.random.set_state(states["numpy"])
    torch.set_rng_state(states["torch"].cpu())
    if states["cuda"] and torch.cuda.device_count() == len(states["cuda"]):
        torch.cuda.set_rng_state_all([s.cpu() for s in states["cuda"]])


@contextlib.contextmanager
def untouched_generators(seed: int | None = None) -> Iterator[None]:
    """Seed the generators for the block with `seed`, of 32 bits, and restore them after it."""
    states = rng_state()
    try:
        if seed is not None:
            for set_seed in (random.seed, np.random.seed, torch.manual_seed):
                set_seed(seed)
        yield
    finally:
        restore_rng(states)
