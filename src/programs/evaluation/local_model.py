"""A model of transformers: batched sampling and scoring."""

import functools
import inspect
import itertools
import math
import time
from pathlib import Path

from parts.data.chat import give_template
from parts.data.prompts import encode_text
from parts.data.rows import is_hub_id
from parts.foundation.messages import need, say
from parts.networks.batches import left_pad
from parts.networks.cache_probe import Decoding, decoding_gap, holds, measured_decoding, turns_gap
from parts.networks.key_cache import give_room, select_rows
from parts.networks.models import (
    LOADABLE,
    attention_choice,
    compute_dtype,
    load_error,
    load_pretrained,
    merged,
    tokenizer_of,
    widest_float,
)
from parts.rewards.reward_texts import visible_text
from parts.sampling.sampling import inverse_cdf
from programs.evaluation.extraction import cut_at
from programs.evaluation.local_turns import TurnAnswers
from programs.evaluation.run import evaluation_template
from programs.evaluation.settings import Config
from programs.evaluation.tasks import Request, fingerprint

PREFIX_MIN = 16  # tokens that all prompts must share for their states to be kept
NOT_FINITE = "try --precision fp32, or another checkpoint"
STOP_EVERY = 8  # steps between looks for stop strings; what was sampled past one is cut off


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception says that CPU or GPU memory ran out."""
    text = str(error).lower()
    return isinstance(error, MemoryError) or "out of memory" in text or "can't allocate memory" in text


def common_prefix(sequences: list[list[int]]) -> list[int]:
    """The tokens that all sequences begin with, leaving each at least one of its own."""
    low, high = min(sequences), max(sequences)  # in the order of dictionaries, all others lie between these
    shared = [a for a, _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(low, high, strict=False))]
    return shared[: min(map(len, sequences)) - 1]


def nucleus(log_probs, top_p: float):
    """log_probs [B, V] without the tokens outside the smallest set with probability top_p."""
    ordered, index = log_probs.sort(dim=-1, descending=True)
    mass = ordered.to(widest_float(log_probs.device)).exp()
    outside = mass.cumsum(-1) - mass >= top_p  # the mass before each token
    return log_probs.masked_fill(outside.scatter(-1, index, outside), -math.inf)


class LocalModel:
    """A Hugging Face model: batches by token budget, a cache that finished rows leave, a shared prefix runs once."""

    can_logprobs = True

    def __init__(self, config: Config, source: str, device):

        self.config, self.source, self.device, self.notes = config, source, device, []
        started = time.perf_counter()
        self.model, self.tokenizer, commit = self.load(source)
        self.parameters = sum(p.numel() for p in self.model.parameters())
        names = [source] + [config.base_model] * bool(config.base_model)
        folders = [name for name in names if Path(name).is_dir()]
        self.hash = "-".join(map(fingerprint, folders)) if folders else f"{source}@{commit}"
        text = self.model.config.get_text_config()
        own = (getattr(text, name, None) for name in ("n_positions", "max_position_embeddings", "n_ctx"))
        limits = [*own, self.tokenizer.model_max_length if self.tokenizer.model_max_length < 10**12 else None, 2048]
        self.max_length = config.max_length or next(int(x) for x in limits if x)
        ends = self.model.generation_config.eos_token_id
        ends = {*(ends if isinstance(ends, list) else [ends]), self.tokenizer.eos_token_id} - {None}
        self.eos_ids = sorted(ends)
        starts = (self.tokenizer.bos_token_id, self.tokenizer.eos_token_id, *self.eos_ids, 0)
        self.prefix_id = next(i for i in starts if i is not None)
        self.pad_id = next(i for i in (self.tokenizer.pad_token_id, *self.eos_ids, 0) if i is not None)
        if self.tokenizer.pad_token_id is None:
            self.notes.append(f"no pad token: token {self.pad_id} fills batches, masked out")
        if not self.eos_ids:
            self.notes.append("no end token: completions end at stop strings or max_new_tokens")
        if not self.tokenizer.chat_template:
            self.notes.append("no chat template: prompts are plain text")
        self.takes = set(inspect.signature(self.model.forward).parameters)
        self.vocabulary, self.dtype = text.vocab_size, next(self.model.parameters()).dtype
        self.plain_cache = self.has_plain_cache() if self.can_logprobs else False
        self.budget, self.tokens, self.load_s = config.batch_tokens, 0, time.perf_counter() - started

    def load(self, source: str) -> tuple:
        """(model, tokenizer, commit) of a folder, adapter folder or hub id."""
        from transformers import AutoModelForCausalLM, AutoTokenizer
        from transformers.utils import logging

        logging.set_verbosity_error()
        logging.disable_progress_bar()
        found = Path(source).is_dir() or is_hub_id(source)
        need(found, f"got model {source!r}, which is not a folder; {LOADABLE}")
        dtype, base = compute_dtype(self.config, self.device), self.config.base_model
        try:
            options = {"dtype": dtype, **attention_choice(self.config)}
            model = merged(load_pretrained(AutoModelForCausalLM, source, base, **options))
            tokenizer = AutoTokenizer.from_pretrained(tokenizer_of(source, base))
            give_template(tokenizer, evaluation_template(self.config))
        except Exception as error:  # OSError, ValueError, SafetensorError, …
            raise load_error(self.config, source, error) from error
        commit = getattr(model.config, "_commit_hash", None)
        return model.to(self.device).eval().requires_grad_(False), tokenizer, commit

    def encode(self, text: str) -> list[int]:
        """Token ids of a plain text."""
        return encode_text(self.tokenizer, text)

    def forward(self, ids, mask, cache=None, keep: int = 1, use_cache: bool = True):
        """Logits [B, keep, V] of the last `keep` positions, and the cache; positions count real tokens only."""
        extra = {"logits_to_keep": keep} if "logits_to_keep" in self.takes else {}
        if "position_ids" in self.takes:
            extra["position_ids"] = (mask.cumsum(dim=1) - 1).clamp(min=0)[:, -ids.shape[1] :]
        name = "cache_params" if "cache_params" in self.takes else "past_key_values"
        if name == "cache_params":  # Mamba multiplies the new tokens by the mask, and looks back at none
            mask = mask[:, -ids.shape[1] :]
        out = self.model(input_ids=ids, attention_mask=mask, **{name: cache}, use_cache=use_cache, **extra)
        return out.logits[:, -keep:], getattr(out, name, None)

    def read_whole(self, ids, mask):
        """Logits [B, T, V] of whole texts, without a cache."""
        return self.forward(ids, mask, keep=ids.shape[1], use_cache=False)[0]

    def read_more(self, ids, mask, cache) -> tuple:
        """(logits [B, t, V] of tokens after those of a cache, the cache)."""
        first = cache is None
        logits, cache = self.forward(ids, mask, cache, keep=ids.shape[1])
        if first:
            give_room(cache)
        return logits, cache

    @property
    def rounding(self) -> float:
        """The relative distance of logits that rounding explains; faults of caches give 0.3 and more."""
        return 0.01 if self.dtype.itemsize > 2 else 0.2

    @functools.cached_property
    def decoding(self) -> Decoding:
        """What the cache can do; UserError where one token at a time gives other logits than a whole text."""
        known = self.vocabulary, self.pad_id, self.device
        found = measured_decoding(
            lambda decoding: decoding_gap(self.read_whole, self.read_more, decoding, *known), self.rounding
        )
        need(
            found,
            f"got {type(self.model).__name__}, whose logits of a whole text and of one token at a time with a cache "
            "differ; expected the same ones; try --engine vllm, or another architecture",
        )
        return found

    def turns(self):
        """`(requests, done, numbers)`: `generate` for the turns of the conversations with these numbers."""
        return TurnAnswers(self).generate if self.goes_on else lambda requests, done, _: self.generate(requests, done)

    @functools.cached_property
    def goes_on(self) -> bool:
        """Whether texts that the cache holds can be gone on with by several tokens, with pads between these."""

        def one(token, mask, cache, padded):
            return self.read_more(token[:, None], mask, cache)[0][:, -1]

        known = self.model.config.get_text_config(), self.pad_id, self.device
        gap = functools.partial(turns_gap, self.read_whole, self.read_more, one, *known)
        plain = self.plain_cache and self.decoding.pads and self.decoding.leaving
        return plain and holds(gap, self.rounding)

    def in_batches(self, sizes: list[int], run) -> None:
        """Call run(indices) on groups within the token budget, longest first; what does not fit memory is halved."""
        waiting = sorted(range(len(sizes)), key=lambda i: (-sizes[i], i))
        while waiting:
            count = max(1, self.budget // max(1, sizes[waiting[0]]))
            rows = waiting[: min(count, self.config.batch_size or count)]
            failed = None
            try:
                run(rows)
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                failed = str(error).split("\n")[0][:200]
            if failed is None:
                del waiting[: len(rows)]
                continue
            size = sizes[rows[0]]
            advice = "try a lower --max_new_tokens or --max_length, or --precision bf16"
            need(
                len(rows) > 1, f"got out of memory on one sequence of {size} tokens ({failed}); expected room; {advice}"
            )
            self.budget = len(rows) // 2 * size
            say(f"out of memory on {len(rows)} sequences; going on with batches of {len(rows) // 2}")
            self.free_memory()

    def free_memory(self) -> None:
        """Give cached blocks back to the device."""
        if self.device.type == "cuda":
            import torch

            torch.cuda.empty_cache()

    def shared_prefix(self, sequences: list[list[int]]):
        """(tokens, cache of one row) of what all sequences begin with; ([], None) where that cannot be shared."""
        import torch

        tokens = common_prefix(sequences) if len(sequences) > 1 and self.plain_cache else []
        if len(tokens) < PREFIX_MIN:
            return [], None
        ids = torch.tensor([tokens], device=self.device)
        return tokens, self.forward(ids, torch.ones_like(ids))[1]

    def has_plain_cache(self) -> bool:
        """Whether pads between tokens change nothing: keys and values of all tokens, told apart by position ids."""
        import torch
        from transformers.cache_utils import DynamicCache, DynamicLayer

        text = self.model.config.get_text_config()
        window = getattr(text, "sliding_window", None) and getattr(text, "use_sliding_window", True)
        if window or getattr(text, "window_size", None) or "position_ids" not in self.takes:
            return False
        ids = torch.full((1, 2), self.pad_id, device=self.device)
        with torch.inference_mode():
            cache = self.forward(ids, torch.ones_like(ids))[1]
        return isinstance(cache, DynamicCache) and all(type(layer) is DynamicLayer for layer in cache.layers)

    def spread(self, cache, rows: int):
        """A copy of a one-row cache with this many rows."""
        from transformers.cache_utils import DynamicCache

        return cache and DynamicCache(
            [(x.keys.expand(rows, -1, -1, -1), x.values.expand(rows, -1, -1, -1)) for x in cache.layers]
        )

    def generate(self, requests: list[Request], done) -> None:
        """Complete each request and call done(index, output) as its batch ends."""
        import torch

        for group in self.groups(requests):
            sizes = [len(requests[i].ids) + requests[i].limit for i in group]
            with torch.inference_mode():
                prefix = self.shared_prefix([requests[i].ids for i in group])

                def run(rows, group=group, prefix=prefix):
                    picked = [requests[group[row]] for row in rows]
                    for row, output in zip(rows, self.generate_batch(picked, prefix), strict=True):
                        done(group[row], output)

                self.in_batches(sizes, run)

    def groups(self, requests: list[Request]) -> list[list[int]]:
        """Indices of requests that may share a batch and a prefix; of one length where the cache bears no pads."""
        groups: dict[tuple, list[int]] = {}
        pads = self.decoding.pads
        for i, r in enumerate(requests):  # prompts that lost their beginning share none with the others
            groups.setdefault((r.cut, 0 if pads else len(r.ids)), []).append(i)
        return [groups[key] for key in sorted(groups)]

    def noise(self, requests: list[Request], width: int):
        """Uniform draws [B, width] that depend on seed, prompt and sample only, so on no batch; None for greedy."""
        import numpy as np
        import torch

        if not self.config.temperature:
            return None
        seeds = [[self.config.seed, r.seed(), r.sample] for r in requests]
        draws = np.stack([np.random.default_rng(seed).random(width) for seed in seeds])
        return torch.as_tensor(draws).to(widest_float(self.device)).to(self.device)

    def pick(self, logits, noise):
        """One token per row of logits [B, V]: the most likely one, or by inverse CDF of noise [B]."""
        import torch

        if noise is None:
            return logits.argmax(-1)
        dist = torch.log_softmax(logits.float() / self.config.temperature, dim=-1)
        return inverse_cdf(nucleus(dist, self.config.top_p) if self.config.top_p < 1 else dist, noise)

    def prefill(self, requests: list[Request], prefix):
        """(logits [B, V], mask [B, T], cache) after the prompts; equal prompts run once, the prefix not at all."""
        import torch

        shared, parts, start = len(prefix[0]), [], 0
        prompts = [tuple(r.ids) for r in requests]
        if self.decoding.leaving:
            prompts = sorted(set(prompts), key=lambda ids: (-len(ids), ids))
        while start < len(prompts):  # groups of like length, as reading pads costs what reading tokens does
            own = len(prompts[start]) - shared
            least = max(0, own - max(32, own // 5)) + shared if self.plain_cache else 0
            group = list(itertools.takewhile(lambda ids, least=least: len(ids) >= least, prompts[start:]))
            ids, mask = left_pad([ids[shared:] for ids in group], self.pad_id, self.device)
            mask = torch.cat([mask.new_ones(len(group), shared), mask], dim=1)
            parts.append((mask, *self.forward(ids, mask, self.spread(prefix[1], len(group)))))
            start += len(group)
        mask, logits, cache = parts[0] if len(parts) == 1 else self.stacked(parts)
        need(not bool(logits.isnan().any()), f"got logits that are no numbers; expected finite ones; {NOT_FINITE}")
        if len(prompts) < len(requests) or [r.ids for r in requests] != list(map(list, prompts)):
            place = {prompt: i for i, prompt in enumerate(prompts)}
            index = torch.tensor([place[tuple(r.ids)] for r in requests], device=self.device)
            select_rows(cache, index)
            logits, mask = logits[index], mask[index]
        return logits[:, -1], mask, cache

    def stacked(self, parts: list[tuple]) -> tuple:
        """One (mask, logits, cache) of several, padded on the left to the width of the widest."""
        import torch
        from torch.nn.functional import pad
        from transformers.cache_utils import DynamicCache

        masks, logits, caches = zip(*parts, strict=True)
        gaps = [max(m.shape[1] for m in masks) - m.shape[1] for m in masks]

        def together(layers) -> list:
            both = ("keys", "values")  # [B, heads, T, head_dim]
            pairs = list(zip(layers, gaps, strict=True))
            return [torch.cat([pad(getattr(layer, name), (0, 0, gap, 0)) for layer, gap in pairs]) for name in both]

        cache = DynamicCache([tuple(together(layers)) for layers in zip(*(c.layers for c in caches), strict=True)])
        return torch.cat([pad(m, (g, 0)) for m, g in zip(masks, gaps, strict=True)]), torch.cat(logits), cache

    def generate_batch(self, requests: list[Request], prefix) -> list[dict]:
        """`generate` for requests that fit memory at once."""
        sampled = self.sample(requests, *self.prefill(requests, prefix))
        return [self.finished(request, ids) for request, ids in zip(requests, sampled, strict=True)]

    def sample(self, requests: list[Request], logits, mask, cache, leave=None) -> list[list[int]]:
        """The tokens sampled after texts that a cache holds: logits [B, V] after each, mask [B, T] of their tokens.

        Args:
            leave: called as KeptTexts.take is, before rows leave the batch and at the end.
        """
        import torch

        give_room(cache)
        width = max(r.limit for r in requests)
        noise, n = self.noise(requests, width), len(requests)
        ends = torch.tensor(self.eos_ids, device=self.device, dtype=torch.long)
        tokens = torch.zeros(n, width, dtype=torch.long, device=self.device)
        limits = torch.tensor([r.limit for r in requests], device=self.device)
        lengths = limits.clone()
        rows = torch.arange(n, device=self.device)  # which request each row of the shrinking batch is
        running = torch.ones_like(rows, dtype=torch.bool)
        for t in range(width):
            token = self.pick(logits, None if noise is None else noise[rows, t])
            tokens[rows, t] = token
            over = running & (torch.isin(token, ends) | (t + 1 >= limits[rows]))
            lengths[rows] = torch.where(over, t + 1, lengths[rows])
            running = running & ~over
            if (t + 1) % STOP_EVERY == 0:
                running = self.unstopped(requests, tokens, rows, running, lengths, t + 1)
            alive = int(running.sum())
            if not alive:
                break
            ids, mask = token[:, None], torch.cat([mask, torch.ones_like(token[:, None])], dim=1)
            if self.decoding.leaving and alive <= 0.75 * len(rows):  # it copies the cache: not for every row
                keep = running.nonzero().squeeze(-1)
                if leave:
                    leave(cache, (~running).nonzero().squeeze(-1), rows, lengths)
                select_rows(cache, keep)
                rows, running, ids, mask = rows[keep], running[keep], ids[keep], mask[keep]
            logits, cache = self.forward(ids, mask, cache)
            logits = logits[:, -1]
        if leave:
            leave(cache, None, rows, lengths)
        return [ids[:length] for ids, length in zip(tokens.tolist(), lengths.tolist(), strict=True)]

    def unstopped(self, requests, tokens, rows, running, lengths, t: int):
        """`running` [B] without the rows that a stop string has ended by step t."""
        import torch

        places = [i for i, alive in enumerate(running.tolist()) if alive and requests[int(rows[i])].stops]
        if not places:
            return running
        picked = rows[places]
        longest = max(len(s.encode()) for i in picked.tolist() for s in requests[i].stops)  # no token is shorter
        tails = tokens[picked, max(0, t - STOP_EVERY - longest - 4) : t].tolist()
        texts = self.tokenizer.batch_decode(tails, skip_special_tokens=False)
        hit = [any(s in text for s in requests[i].stops) for i, text in zip(picked.tolist(), texts, strict=True)]
        stopped = torch.zeros_like(running)
        stopped[places] = torch.tensor(hit, device=running.device)
        lengths[rows] = torch.where(stopped, t, lengths[rows])
        return running & ~stopped

    def finished(self, request: Request, ids: list[int]) -> dict:
        """The output of a request from its sampled ids: text before the first stop string, tokens up to it."""
        self.tokens += len(ids)
        ended = bool(ids) and ids[-1] in self.eos_ids
        end, ids = (ids[-1:], ids[:-1]) if ended else ([], ids)
        whole = visible_text(self.tokenizer, ids, self.eos_ids)
        text, finish = cut_at(whole, request.stops), "eos" if ended else "length"
        if len(text) < len(whole):
            low, high = 1, len(ids)  # the fewest tokens whose text has a stop string
            while low < high:
                middle = (low + high) // 2
                part = self.tokenizer.decode(ids[:middle], skip_special_tokens=False)
                low, high = (low, middle) if any(s in part for s in request.stops) else (middle + 1, high)
            ids, finish = ids[:low], "stop"
        return {"text": text, "ids": ids, "end": end, "tokens": len(ids), "finish": finish}

    def logprob(self, requests: list[Request], done) -> None:
        """Sum the log-probs of each request's `scored` after its ids, and call done(index, output)."""
        import torch

        # the last scored token is never read; requests that read the same tokens share a row (one-letter choices)
        groups: dict[tuple, list[int]] = {}
        for i, r in enumerate(requests):
            groups.setdefault(tuple((r.ids + r.scored)[-(self.max_length + 1) : -1]), []).append(i)
        kept = {read: max(len(requests[i].scored) for i in members) for read, members in groups.items()}
        weight = self.vocabulary * self.config.batch_tokens / 2**28  # at most 2^28 logits a batch
        for full in (False, True):  # texts that fill the context share no beginning with the others
            unique = [read for read in groups if (len(read) == self.max_length) == full]
            with torch.inference_mode():
                heads = [list(read[: len(read) - kept[read] + 1]) for read in unique]
                prefix = self.shared_prefix(heads)

                def run(rows, unique=unique, prefix=prefix):
                    reads = [unique[row] for row in rows]
                    self.logprob_batch(reads, [groups[read] for read in reads], requests, prefix, done)

                self.in_batches([max(len(read), math.ceil(kept[read] * weight)) for read in unique], run)

    def logprob_batch(self, reads, members, requests: list[Request], prefix, done) -> None:
        """`logprob` for rows that fit memory at once; pads stand on the right, where nothing looks at them."""
        import torch

        shared, cache = prefix
        width, n = max(map(len, reads)) - len(shared), len(reads)
        rows = [list(read[len(shared) :]) for read in reads]
        ids = torch.tensor([r + [self.pad_id] * (width - len(r)) for r in rows], device=self.device)
        mask = torch.tensor([[1] * (len(shared) + len(r)) + [0] * (width - len(r)) for r in rows], device=self.device)
        first = min(len(r) - max(len(requests[i].scored) for i in m) for r, m in zip(rows, members, strict=True))
        logits, _ = self.forward(ids, mask, self.spread(cache, n), keep=width - first, use_cache=cache is not None)
        for row, (r, m) in enumerate(zip(rows, members, strict=True)):
            longest = max(len(requests[i].scored) for i in m)
            own = logits[row, len(r) - longest - first : len(r) - first].float()  # [longest, V]
            log_z = torch.logsumexp(own, dim=-1)
            for i in m:
                scored = torch.tensor(requests[i].scored, device=self.device)
                k = len(scored)
                nats = own[-k:].gather(-1, scored[:, None]).squeeze(-1) - log_z[-k:]
                total = float(nats.to(widest_float(nats.device)).sum())
                need(math.isfinite(total), f"got a log-prob of {total}; expected a finite one; {NOT_FINITE}")
                done(i, {"logprob": total, "count": k})
        self.tokens += sum(map(len, rows))
