"""Probe what a model's cache and attention can do, before sampling and training rely on it."""

import contextlib
import functools
import math
from dataclasses import dataclass, replace

from parts.foundation.messages import is_out_of_memory, need, say
from parts.foundation.processes import torch, transformers
from parts.foundation.settings import BaseConfig
from parts.networks.batches import collate, layout_of, left_pad
from parts.networks.forward import (
    SHARED_PROMPTS,
    below_the_head,
    cached_states,
    length_that_shares,
    line_states,
    next_states,
    plain_states,
    set_attention,
    settle_logits,
)
from parts.networks.key_cache import KeptTexts, group_rows, has_plain_layers, select_rows
from parts.networks.loading import load_network
from parts.networks.models import Models, autocast, compute_dtype, unwrapped
from parts.networks.tokenizers import end_and_pad_ids


@dataclass(frozen=True)
class Decoding:
    """What a model's cache can do, as probed."""

    pads: bool  # it handles left padding, so that prompts of several lengths form one batch
    leaving: bool  # finished rows can be dropped from it
    groups: bool = False  # it can hold a prompt once for all rows that begin with it
    plain: bool = False  # texts can be continued by several tokens, and take our own masks and positions


def probe_texts(vocabulary: int, padded: bool = True) -> list[list[int]]:
    """Two texts of token ids: of 12 and 6 tokens if `padded`, else of 12 each."""
    first, second = ([(step * i + step) % vocabulary for i in range(12)] for step in (37, 53))
    return [first, second[:6] if padded else second]


def relative_gap(states, expected) -> float:
    """Mean over states [..., H] of |state - expected| / |expected|; NaN in a state counts as infinite.

    NaN in `expected` counts as a gap of 0, because the cache did not cause it. Sampling refuses such a network later.
    """
    gaps = (states.float() - expected.float()).norm(dim=-1) / expected.float().norm(dim=-1).clamp(min=1e-12)
    return float(gaps.nan_to_num(nan=math.inf).where(~expected.isnan().any(dim=-1), 0.0).mean())


def states_alone(network, texts: list[list[int]], device) -> list:
    """Hidden states [T, H] of each text by itself, without pads and without a cache."""
    whole = [torch.tensor([text], device=device) for text in texts]
    return [plain_states(network, ids, torch.ones_like(ids))[0] for ids in whole]


def decoding_gap(models: Models, vocabulary: int, decoding: Decoding) -> float:
    """Mean relative gap between states of tokens fed one by one to the policy with a cache and of whole texts."""
    texts, new, gaps, device = probe_texts(vocabulary, decoding.pads), 4, [], models.device
    expected = states_alone(models.policy, texts, device)
    ids, mask = left_pad([text[: 1 - new] for text in texts], models.pad_id, device)
    rows, cache = [0, 1], None
    for t in range(new):
        states, cache = cached_states(models.policy, ids, mask, cache)
        gaps += [relative_gap(states[i, -1], expected[row][t - new]) for i, row in enumerate(rows)]
        if decoding.leaving and t == 0:
            rows, mask = [1], mask[1:]
            select_rows(cache, torch.tensor(rows, device=device))
        ids = torch.tensor([[texts[row][t + 1 - new]] for row in rows], device=device)
        mask = torch.cat([mask, torch.ones_like(ids)], dim=1)
    return sum(gaps) / len(gaps)


def holds(gap, limit: float) -> bool:
    """Whether `gap()` is below the limit; False if it fails because the cache lacks an operation."""
    try:
        return gap() < limit
    except (AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        if is_out_of_memory(error):  # not a fault of the cache
            raise
        return False


def turns_gap(models: Models, config) -> float:
    """Mean relative gap between texts read in turns, with pads in between, and whole texts; inf for other caches.

    `config` is the policy's text config.
    """
    texts, gaps, policy, device = probe_texts(config.vocab_size), [], models.policy, models.device
    expected = states_alone(models.policy, texts, device)

    def compare(states, order, places) -> None:
        gaps.extend(relative_gap(states[i], expected[row][places[row] - 1]) for i, row in enumerate(order))

    ids, mask = left_pad([texts[0][:5], texts[1][:2]], models.pad_id, device)
    cache = cached_states(policy, ids, mask, None)[1]
    if not has_plain_layers(cache, config):
        return math.inf
    token = torch.tensor([texts[0][5], texts[1][2]], device=device)
    grown = torch.cat([mask, torch.ones_like(token[:, None])], dim=1)
    compare(next_states(policy, token, grown, cache, True), (0, 1), (6, 3))
    rows, lengths = torch.arange(2, device=device), torch.tensor([2, 2], device=device)
    kept = KeptTexts({0: texts[0][:6], 1: texts[1][:3]})
    for leaving in (rows[1:], rows[:1]):
        kept.take([0, 1], mask, cache, leaving, rows, lengths)
    order, cache, mask = kept.cache_of([0, 1])
    new, new_mask = left_pad([(texts[0][6:9], texts[1][3:4])[row] for row in order], models.pad_id, device)
    mask = torch.cat([mask, new_mask], dim=1)
    compare(cached_states(policy, new, mask, cache)[0][:, -1], order, (9, 4))
    token = torch.tensor([(texts[0][9], texts[1][4])[row] for row in order], device=device)
    mask = torch.cat([mask, torch.ones_like(token[:, None])], dim=1)
    compare(next_states(policy, token, mask, cache, True), order, (10, 5))
    ids = torch.tensor([texts[0][:6]], device=device)  # without pads
    cache = cached_states(policy, ids[:, :5], torch.ones_like(ids[:, :5]), None)[1]
    compare(next_states(policy, ids[:, 5], torch.ones_like(ids), cache, False), (0,), (6,))
    return sum(gaps) / len(gaps)


def groups_gap(config: BaseConfig, models: Models, vocabulary: int) -> float:
    """Largest relative gap of a state if each prompt is held once for its rows, one of which leaves."""
    policy, device, gaps = models.policy, models.device, []
    prompts, which = probe_texts(vocabulary), torch.tensor([1, 0, 1, 1], device=device)
    new = torch.arange(1, 9, device=device).view(2, 4) % vocabulary
    texts = [prompts[n] + new[:, row].tolist() for row, n in enumerate(which)]
    ids, mask = left_pad(prompts, models.pad_id, device)
    with autocast(config, device):
        expected = states_alone(models.policy, texts, device)
        cache = group_rows(cached_states(policy, ids, mask, None)[1], mask, which)
    mask, rows = mask[which], torch.arange(4, device=device)
    for t in range(2):
        mask = torch.cat([mask, torch.ones_like(mask[:, :1])], dim=1)
        with autocast(config, device):
            states = next_states(policy, new[t, rows], mask, cache, padded=True)
        gaps += [relative_gap(state, expected[row][t - 2]) for state, row in zip(states, rows, strict=True)]
        if t == 0:
            rows, mask = rows[1:], mask[1:]
            select_rows(cache, rows)
    return max(gaps)


def gap_limits(config: BaseConfig, device) -> tuple[float, float]:
    """(limit of the mean gap, limit of the worst gap) that rounding can explain.

    Faults of caches and pads give a mean of 0.3 or more. The worst gap only has to show that each token sees what it
    should, as old and new log-probs are computed in the same way. Two bf16 passes of Gemma 3 270M differ by 0.047 (each
    by 0.03 to 0.04 from float32), of Qwen2.5 0.5B by 0.013. A visible pad, a hidden token or a position off by one
    moves the worst state by 0.26 or more.
    """
    return (0.01, 1e-4) if compute_dtype(config, device).itemsize > 2 else (0.2, 0.12)


@contextlib.contextmanager
def first_layers(config: BaseConfig, network, device):
    """Context in which a float32 network runs its first layers only: enough to have every kind of layer.

    They show what a cache can do, in a twelfth of the time for Qwen2.5 0.5B. All layers run in bf16, as each adds its
    rounding, and in a network whose layers read the keys of others.
    """
    below, text = below_the_head(network), unwrapped(network).config.get_text_config()
    layers, types = getattr(below, "layers", ()), vars(text).get("layer_types")
    kinds = [(types and types[i], *map(type, layer.modules())) for i, layer in enumerate(layers)]
    count = max(2, *(kinds.index(kind) + 1 for kind in kinds)) if kinds else 0
    alike = not getattr(text, "num_kv_shared_layers", 0) and len(kinds) == text.num_hidden_layers
    if not alike or count >= len(kinds) or compute_dtype(config, device).itemsize <= 2:
        yield
        return
    try:
        below.layers, text.num_hidden_layers = layers[:count], count
        if types:
            text.layer_types = types[:count]
        yield
    finally:
        below.layers, text.num_hidden_layers = layers, len(layers)
        if types:
            text.layer_types = types


def check_pads(config: BaseConfig, models: Models, network, name: str) -> None:
    """Raise UserError if left padding changes a network's states, as in some networks without attention."""
    texts = probe_texts(unwrapped(network).get_input_embeddings().weight.shape[0])
    ids, mask = left_pad(texts, models.pad_id, models.device)
    with torch.no_grad(), autocast(config, models.device), first_layers(config, network, models.device):
        padded, [expected] = plain_states(network, ids, mask), states_alone(network, texts[1:], models.device)
    gap = relative_gap(padded[1, -len(texts[1]) :], expected)
    kind, fits = type(unwrapped(network)).__name__, gap < gap_limits(config, models.device)[0]
    got = f"got {name} {kind}, whose states move by {gap:.0%} when a text is padded on the left"
    need(fits, f"{got}; expected a network that ignores masked tokens; try another architecture")


def load_sampler(config: BaseConfig, tokenizer, device, name: str) -> Models:
    """Load a frozen network that only samples, and probe it like a trained one."""
    policy = load_network(transformers.AutoModelForCausalLM, config.model, config, device, frozen=True)
    ends, pad = end_and_pad_ids(config, policy, tokenizer)
    models = Models(policy, None, None, tokenizer, ends, pad, device)
    settle_logits(config, models)
    check_pads(config, models, policy, name)
    return models


def decoding_of_policy(config: BaseConfig, models: Models) -> Decoding:
    """Probe the policy's cache; UserError if no way of sampling with it agrees with the model as trained."""
    policy, device = models.policy, models.device
    text, name = unwrapped(policy).config.get_text_config(), type(unwrapped(policy)).__name__
    size = unwrapped(policy).get_input_embeddings().weight.shape[0]
    (limit, worst), can_group = gap_limits(config, device), False
    candidates = (Decoding(pads, leaving) for pads in (True, False) for leaving in (True, False))  # most capable first
    with torch.no_grad(), autocast(config, device), first_layers(config, policy, device):
        gap = functools.partial(decoding_gap, models, size)
        measured = next((able for able in candidates if holds(functools.partial(gap, able), limit)), None)
        if measured and measured.pads and measured.leaving:
            plain = holds(lambda: turns_gap(models, text), limit)
            can_group = plain and length_that_shares(policy) == math.inf
            groups = can_group and holds(lambda: groups_gap(config, models, size), worst)
            measured = replace(measured, plain=plain, groups=groups)
    need(
        measured,
        f"got {name}, whose states differ between a whole text and one token at a time with a cache; expected equal "
        "states; try vLLM (--rollout_engine vllm, in evaluation.py --engine vllm), or another architecture",
    )
    again = ", and reads the whole conversation again at each turn" if getattr(config, "environment", "") else ""
    notes = (
        (measured.pads, "the cache of {} cannot handle padding; only prompts of equal length are sampled together"),
        (measured.leaving, "the cache of {} cannot drop rows; a batch is sampled until its last completion ends"),
        (measured.plain, "{} builds masks for each token" + again),
        (
            measured.groups or not can_group,
            "the cache of {} cannot share a prompt among completions: its states would change",
        ),
    )
    for can, note in notes:
        if not can:
            say(f"note: {note.format(name)}")
    return measured


def sharing_gap(config: BaseConfig, models: Models, network, narrow: bool) -> float:
    """Largest relative gap of a state if each prompt runs once for its rows; `narrow` as for `set_attention`."""
    texts = probe_texts(unwrapped(network).get_input_embeddings().weight.shape[0])
    kinds = [(texts[row], texts[0][-length:]) for row, length in ((0, 7), (1, 5), (0, 2), (0, 1), (1, 8))]
    samples = [{"prompt_ids": a, "response_ids": b, "rollout_logprobs": [0.0] * len(b)} for a, b in kinds]
    piece = collate(samples, models.pad_id, models.device)
    layout, sampled = layout_of(piece, math.inf), piece["response_mask"].bool()

    def plainly():
        return plain_states(network, piece["input_ids"], piece["attention_mask"]).roll(1, dims=1)[sampled]

    with torch.no_grad(), autocast(config, models.device):
        expected = plainly()
        set_attention(network, SHARED_PROMPTS, narrow)
        got = torch.cat([line_states(network, layout)[sampled], plainly()])
    return max(relative_gap(*pair) for pair in zip(got, expected.repeat(2, 1), strict=True))


def can_share(config: BaseConfig, models: Models, network) -> bool:
    """Let a network run each prompt once for all of its rows if the states stay the same; returns whether it does."""
    implementation = unwrapped(network).config.get_text_config()._attn_implementation
    if implementation == SHARED_PROMPTS:  # already set: under LoRA the reference is the policy
        return True
    for narrow in (True, False) if implementation == "sdpa" else ():
        gap = functools.partial(sharing_gap, config, models, network, narrow)
        with first_layers(config, network, models.device):
            shares = holds(gap, gap_limits(config, models.device)[1])
            set_attention(network, implementation)
        if shares:
            set_attention(network, SHARED_PROMPTS, narrow)
            if not narrow:
                say(f"note: the last MLP of {type(unwrapped(network)).__name__} also runs tokens without a gradient")
            return True
    return False


def share_prompts(config: BaseConfig, models: Models, networks: list) -> None:
    """Let the networks that can (None is skipped) run each prompt once for all of its rows; note those that cannot."""
    if not config.share_prompts:
        return
    networks = [network for network in networks if network is not None]
    cannot = [network for network in networks if not can_share(config, models, network)]
    longest = getattr(config, "conversation_tokens", config.max_prompt_tokens + config.max_new_tokens)
    short = [network for network in networks if 0 < length_that_shares(network) < longest]
    for group, which in ((cannot, "completions"), (short, "completions that are longer than its window")):
        for name in sorted({type(unwrapped(network)).__name__ for network in group}):
            say(f"note: {name} runs a prompt again with each of its {which}")
