"""A model of transformers: batched sampling and scoring; the beginning that all prompts share is read once."""

import dataclasses
import functools
import hashlib
import itertools
import math
import time
from pathlib import Path

from parts.data.chat import give_template
from parts.foundation.messages import DivergedError, UserError, is_out_of_memory, need, say
from parts.foundation.processes import THREADS, np, torch, transformers
from parts.networks.adapters import base_of, load_pretrained, merged
from parts.networks.forward import all_logits, cached_states, logprobs_and_entropy, plain_states, settle_logits
from parts.networks.key_cache import KeptTexts, pairs_of, roomy_layer
from parts.networks.loading import attention_choice, load_error
from parts.networks.models import Models, autocast, check_tokens, compute_dtype, widest_float
from parts.networks.tokenizers import ending_ids, read_tokenizer
from parts.rewards.user_code import visible_text
from parts.running.fit import USABLE_SHARE, gib, memory_for_each
from parts.running.memory import PassShape, attention_kind, sampling_bytes, shape_of
from parts.sampling.sampling import HFEngine, TurnSampler
from programs.evaluation.requests import Request, cut_at
from programs.evaluation.settings import Config

NOT_FINITE = "try --precision fp32, or another checkpoint"
LOGITS_AT_ONCE = 2**26
PROMPT = 256  # tokens of a prompt, as batches are reckoned
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
        size = len(self.prefix)
        if not size or any(len(ids) <= size or ids[:size] != self.prefix for ids in sequences):
            return sequences, None, None
        device = self.models.device
        if self.pairs is None:
            ids = torch.tensor([self.prefix], device=device)
            with torch.no_grad(), autocast(self.config, device):
                self.pairs = pairs_of(cached_states(self.models.policy, ids, torch.ones_like(ids), None)[1])
        cache, rows = transformers.DynamicCache(), len(sequences)
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
        ended = super().ends(tokens, rows, t)
        if not self.stops or (t + 1) % STOP_EVERY:
            return ended
        longest = max(len(stop.encode()) for stop in self.stops)  # no token is shorter than a byte
        tails = tokens[rows, max(0, t + 1 - STOP_EVERY - longest - 4) : t + 1].tolist()
        texts = self.models.tokenizer.batch_decode(tails, skip_special_tokens=False)
        stopped = [any(stop in text for stop in self.stops) for text in texts]
        return ended | torch.tensor(stopped, device=ended.device)


def fingerprint(source: str, full: int = 2**32) -> str:
    """Hash of the files of a checkpoint folder; of a file above 4 GiB its size, its time and 256 evenly spaced MiB."""
    total = hashlib.sha256()
    suffixes = (".json", ".safetensors", ".bin", ".model", ".jinja", ".txt")
    for path in sorted(p for p in Path(source).iterdir() if p.suffix in suffixes and p.is_file()):
        size, large = path.stat().st_size, path.stat().st_size > full
        total.update(f"{path.name} {size} {path.stat().st_mtime_ns if large else ''}".encode())
        with path.open("rb") as f:
            for start in range(0, size, max(2**20, size // 256) if large else 2**20):
                f.seek(start)
                total.update(f.read(2**20))
    return total.hexdigest()[:16]


class LocalModel:
    """A Hugging Face model: HFEngine samples, in batches under a budget of tokens that is halved where memory ends."""

    can_logprobs = True

    def __init__(self, config: Config, source: str, device):
        self.config, self.source, self.device, self.notes = config, source, device, []
        started = time.perf_counter()
        self.model, self.tokenizer, commit = self.load(source)
        self.parameters = sum(p.numel() for p in self.model.parameters())
        sources = dict.fromkeys([source, base_of(source, config.base_model)])  # an adapter's base may change under it
        self.hash = "-".join(fingerprint(x) if Path(x).is_dir() else f"{x}@{commit}" for x in sources)
        text, longest = self.model.config.get_text_config(), self.tokenizer.model_max_length
        of_tokenizer = longest if longest < 10**12 else 2048
        self.max_length = int(config.max_length or getattr(text, "max_position_embeddings", None) or of_tokenizer)
        self.eos_ids = ending_ids(self.model.generation_config.eos_token_id, self.tokenizer)
        starts = (self.tokenizer.bos_token_id, self.tokenizer.eos_token_id, *self.eos_ids, 0)
        self.prefix_id = next(i for i in starts if i is not None)
        self.pad_id = next(i for i in (self.tokenizer.pad_token_id, *self.eos_ids, 0) if i is not None)
        if not self.eos_ids:
            self.notes.append("no end token: completions end at a stop string or at max_new_tokens")
        if not self.tokenizer.chat_template:
            self.notes.append("no chat template: prompts are plain text")
        self.vocabulary, self.dtype = text.vocab_size, next(self.model.parameters()).dtype
        self.models = Models(self.model, None, None, self.tokenizer, self.eos_ids, self.pad_id, device)
        if self.can_logprobs:
            settle_logits(config, self.models)
        self.budget, self.load_s = self.tokens_at_once(), time.perf_counter() - started

    def load(self, source: str) -> tuple:
        """(model, tokenizer, commit) of a folder, adapter folder or hub id."""
        transformers.logging.set_verbosity_error()
        transformers.logging.disable_progress_bar()
        dtype, base = compute_dtype(self.config, self.device), self.config.base_model
        try:
            tokenizer = read_tokenizer(source, base)
            options = {"dtype": dtype, **attention_choice(self.config)}
            model = merged(load_pretrained(transformers.AutoModelForCausalLM, source, base, **options))
            give_template(tokenizer, self.config.template_file)
        except Exception as error:  # OSError, ValueError, SafetensorError, …
            raise load_error(self.config, source, error) from error
        commit = getattr(model.config, "_commit_hash", None)
        return model.to(self.device).eval().requires_grad_(False), tokenizer, commit

    def tokens_at_once(self) -> int:
        """Tokens of a batch, completions included: those of --batch_tokens, or at most as many as memory holds."""
        shape, tokens = shape_of(self.model), self.config.batch_tokens
        machine = memory_for_each(str(self.device))
        if not shape or not machine or "batch_tokens" in self.config.given:
            return tokens
        new, width, kind = self.config.max_new_tokens, self.dtype.itemsize, self.model.config._attn_implementation
        row = sampling_bytes(shape, PassShape(1, PROMPT, width, width, attention_kind(kind)), new) / (PROMPT + new)
        pieces = 4 * 4 * min(LOGITS_AT_ONCE, tokens * self.vocabulary)  # of log-probs
        fitting = max(PROMPT + new, int((USABLE_SHARE * machine["free"] - pieces) / row))
        tokens = min(tokens, fitting)
        say(f"batches of {tokens:,} tokens: {gib(tokens * row + pieces)} of {gib(machine['free'])} GiB")
        return tokens

    @functools.cached_property
    def engine(self) -> PrefixEngine:
        """Who samples; made where it is needed, as it measures what the cache can do."""
        return PrefixEngine(dataclasses.replace(self.config, temperature=1.0), self.models)

    def turns(self):
        """`(requests, done, numbers)`: `generate` for the turns of the conversations with these numbers."""
        sampler = TurnSampler(self.engine) if self.engine.decoding.plain else None
        return lambda requests, done, numbers: self.generate(requests, done, sampler, numbers)

    def in_batches(self, sizes: list[int], run) -> None:
        """Call run(indices) on groups within the token budget, longest first; what does not fit memory is halved."""
        waiting = sorted(range(len(sizes)), key=lambda i: (-sizes[i], i))
        while waiting:
            count, begin, failed = max(1, self.budget // max(1, sizes[waiting[0]])), time.perf_counter(), ""
            rows = waiting[: min(count, self.config.batch_size or count)]
            try:
                run(rows)
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                failed = str(error).split("\n")[0][:200]
            if not failed:
                THREADS.after(time.perf_counter() - begin)
                del waiting[: len(rows)]
                continue
            size = sizes[rows[0]]
            advice = "expected room; try a lower --max_new_tokens or --max_length, or --precision bf16"
            need(len(rows) > 1, f"got out of memory on one sequence of {size} tokens ({failed}); {advice}")
            self.budget = len(rows) // 2 * size
            say(f"out of memory on {len(rows)} sequences; going on with batches of {len(rows) // 2}")
            if self.device.type == "cuda":
                torch.cuda.empty_cache()

    def generate(self, requests: list[Request], done, turns: TurnSampler | None = None, numbers=()) -> None:
        """Complete each request and call done(index, output) as its batch ends.

        `turns` samples requests that are one batch, the conversations with these `numbers`, from what it has kept.
        """
        check_tokens(self.models, [{"prompt_ids": r.ids} for r in requests])
        config, engine, whole = self.config, self.engine, [r.ids for r in requests if not r.cut]
        engine.share(whole)  # prompts that lost their beginning share none with the others
        engine.stops = list(dict.fromkeys(stop for r in requests for stop in r.stops))

        def run(rows: list[int]) -> None:
            picked = [requests[row] for row in rows]
            limit, prompts = max(r.limit for r in picked), [r.ids for r in picked]
            engine.config = dataclasses.replace(config, max_new_tokens=limit, temperature=config.temperature or 1.0)
            noise = self.noise(picked, limit)
            try:
                if turns and len(rows) == len(requests):
                    outputs = turns.generate(prompts, noise, [numbers[row] for row in rows])
                else:
                    if turns:
                        turns.kept = KeptTexts()
                    outputs = engine.generate(prompts, noise)
            except DivergedError as error:
                raise UserError(f"got logits that are not finite; expected finite ones; {NOT_FINITE}") from error
            for row, (ids, _) in zip(rows, outputs, strict=True):
                done(row, self.finished(requests[row], ids[: requests[row].limit]))

        self.in_batches([len(r.ids) + r.limit for r in requests], run)

    def noise(self, requests: list[Request], width: int):
        """Uniform draws [B, width] that depend on seed, prompt and sample only, so on no batch; None for greedy."""
        if not self.config.temperature:
            return None
        seeds = [[self.config.seed, r.seed(), r.sample] for r in requests]
        return np.stack([np.random.default_rng(seed).random(width) for seed in seeds])

    def finished(self, request: Request, ids: list[int]) -> dict:
        """The output of a request from its sampled ids: text before the first stop string, tokens up to it."""
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
        check_tokens(self.models, [{"prompt_ids": r.ids + r.scored} for r in requests])
        # the last scored token is never read; requests that read the same tokens share a row (one-letter choices)
        groups: dict[tuple, list[int]] = {}
        for i, r in enumerate(requests):
            groups.setdefault(tuple((r.ids + r.scored)[-(self.max_length + 1) : -1]), []).append(i)
        reads, heads = list(groups), []
        for read, members in groups.items():
            if len(read) < self.max_length:  # texts that fill the context share no beginning with the others
                heads.append(list(read[: len(read) + 1 - max(len(requests[i].scored) for i in members)]))
        shared = len(heads) > 1 and len(common_prefix(heads)) >= PREFIX_MIN
        if shared:
            self.engine.share(heads)

        def run(rows: list[int]) -> None:
            batch = {reads[row]: groups[reads[row]] for row in rows}
            shares = shared and all(len(read) < self.max_length for read in batch)
            self.logprob_batch(batch, requests, shares, done)

        self.in_batches(list(map(len, reads)), run)

    def logprob_batch(self, batch: dict, requests: list[Request], shares: bool, done) -> None:
        """`logprob` for {tokens: requests} that fit memory at once; pads stand on the right, where nothing looks."""
        rows, mask, cache = list(map(list, batch)), None, None
        if shares:
            rows, mask, cache = self.engine.behind_prefix(rows)
        width = max(map(len, rows))
        ids = torch.tensor([r + [self.pad_id] * (width - len(r)) for r in rows], device=self.device)
        real = torch.tensor([[1] * len(r) + [0] * (width - len(r)) for r in rows], device=self.device)
        numbers, chunk = [i for members in batch.values() for i in members], max(1, LOGITS_AT_ONCE // self.vocabulary)
        counts = [len(requests[i].scored) for i in numbers]
        scored = torch.tensor([token for i in numbers for token in requests[i].scored], device=self.device)
        with torch.no_grad():
            if cache:
                hidden, _ = cached_states(self.model, ids, torch.cat([mask, real], dim=1), cache)  # [n, width, H]
            else:
                hidden = plain_states(self.model, ids, real)
            states = []  # [n, H] of each request: those that predict its scored tokens
            for x, row, members in zip(hidden, rows, batch.values(), strict=True):
                states += [x[len(row) - len(requests[i].scored) : len(row)] for i in members]
            nats, _ = logprobs_and_entropy(lambda h: all_logits(self.model, h), torch.cat(states), scored, 1.0, chunk)
        sums = torch.stack([x.sum() for x in nats.to(widest_float(nats.device)).split(counts)])
        for i, count, total in zip(numbers, counts, sums.tolist(), strict=True):  # a GPU is waited for once
            need(math.isfinite(total), f"got a log-prob of {total}; expected a finite one; {NOT_FINITE}")
            done(i, {"logprob": total, "count": count})
