"""One forward pass: backbone, logits, log-probs of the response tokens, values."""

import functools
import inspect
import math

from parts.foundation.messages import UserError, need
from parts.foundation.settings import BaseConfig
from parts.networks.key_cache import give_room
from parts.networks.models import Models, unwrapped
from parts.networks.numerics import logprobs_and_entropy
from parts.networks.shared_prompts import SHARED_PROMPTS, Layout, layout_of, length_that_shares, rows_at


@functools.cache  # asked for every token that is sampled
def takes(network_class, argument: str) -> bool:
    """Whether a network's forward has an argument of this name."""
    return argument in inspect.signature(network_class.forward).parameters


def below_the_head(model):
    """The network below the output layer; Llama 4 has it under another name than its own prefix says."""
    network = unwrapped(model)
    return getattr(network, "model", network) if network.base_model is network else network.base_model


def backbone(model, input_ids, attention_mask, **kwargs):
    """Run the network below the output layer; positions count real tokens, so padding does not shift them."""
    network = below_the_head(model)
    width = input_ids.shape[1]
    if takes(type(network), "position_ids"):
        kwargs["position_ids"] = (attention_mask.cumsum(dim=1) - 1).clamp(min=0)[:, -width:]
    if takes(type(network), "cache_params"):  # Mamba multiplies the new tokens by the mask, and looks back at none
        attention_mask = attention_mask[:, -width:]
    return network(input_ids=input_ids, attention_mask=attention_mask, **kwargs)


def cached_states(model, input_ids, attention_mask, cache):
    """Hidden states [B, t, H] of the new tokens behind those of a cache (None: there are none), and the cache."""
    name = "cache_params" if takes(type(below_the_head(model)), "cache_params") else "past_key_values"
    out = backbone(model, input_ids, attention_mask, **{name: cache}, use_cache=True)
    found = getattr(out, name, None)
    if cache is None:
        give_room(found)
    return out.last_hidden_state, found


def next_states(model, token, mask, cache, padded: bool):
    """States [B, H] of one more token [B] for each row of a plain cache, or of one that `group_rows` has made.

    The host does not wait for what a mask holds.

    Args:
        mask: [B, T], 1 on the tokens of the texts, the new ones included.
        padded: whether there may be a 0 in it.
    """
    network = below_the_head(model)
    sdpa = unwrapped(model).config._attn_implementation in ("sdpa", SHARED_PROMPTS)
    prepared, extra = mask[:, None, None].bool() if sdpa else mask, {}
    if groups := getattr(cache, "groups", None):
        prepared, padded, extra = mask.new_zeros(1, 1, 1, 1), True, {"layout": groups}  # a mask that needs no making
    out = network(
        input_ids=token[:, None],
        attention_mask=prepared if padded else None,
        position_ids=mask.sum(dim=1, keepdim=True) - 1,
        past_key_values=cache,
        use_cache=True,
        **extra,
    )
    return out.last_hidden_state[:, -1]


def plain_states(model, input_ids, attention_mask):
    """Hidden states [B, T, H] of whole texts, as in training."""
    return backbone(model, input_ids, attention_mask, use_cache=False).last_hidden_state


def lm_logits(model, hidden):
    """Logits [..., V] of hidden states [..., H], without those of rows that are no tokens where `settle_logits` cut."""
    return known_logits(model, all_logits(model, hidden))


def known_logits(model, logits):
    """Those [..., V] of logits [..., rows] that are of tokens, as `settle_logits` has found."""
    known = getattr(unwrapped(model), "known_tokens", None)
    return logits if known is None else logits[..., :known]


def lost_mass(model, logits):
    """Probability [...] of the rows that are no tokens, of logits [..., rows]; NaN where all are.

    Nothing is sampled from these rows or learnt about them here, but other samplers may draw them.
    """
    known = getattr(unwrapped(model), "known_tokens", None)
    return logits[..., 0] * math.nan if known is None else logits.softmax(-1)[..., known:].sum(-1)


def all_logits(model, hidden):
    """Logits [..., rows] of hidden states [..., H], in the precision of the output layer's weights."""
    import torch

    model = unwrapped(model)
    head, config = model.get_output_embeddings(), model.config.get_text_config()
    with torch.autocast(hidden.device.type, enabled=False):
        logits = head(hidden.to(head.weight.dtype))
    logits = logits * (getattr(config, "logit_scale", None) or 1.0) / (getattr(config, "logits_scaling", None) or 1.0)
    logits = logits * (getattr(config, "lm_head_multiplier", None) or 1.0)
    cap = getattr(config, "final_logit_softcapping", None)
    return torch.tanh(logits / cap) * cap if cap else logits


def settle_logits(models: Models) -> None:
    """Cut the rows beyond the tokenizer from the vocabulary of policy and reference.

    Raises UserError if its logits are not its output layer on its backbone's states, as assumed here.
    """
    import torch

    ids = torch.tensor([[models.pad_id, 0, 1, 2]], device=models.device)
    name = type(unwrapped(models.policy)).__name__
    try:
        with torch.no_grad():
            expected = models.policy(input_ids=ids).logits.float()
            got = all_logits(models.policy, plain_states(models.policy, ids, torch.ones_like(ids))).float()
    except (AttributeError, RuntimeError, TypeError, ValueError) as error:  # Mamba with 4-bit weights, for one
        raise UserError(
            f"got {name} with these settings, which does not read four tokens: {error}; expected a plain decoder; "
            "try weights of 16 bits, or another architecture"
        ) from error
    need(
        torch.allclose(got, expected, rtol=2e-2, atol=2e-2 * expected.std().item()),
        f"got {name}, whose logits are not output layer x hidden state; expected a "
        "plain decoder (logit scale and soft-capping are known); try another architecture, or adapt all_logits()",
    )
    known = 1 + max(*models.tokenizer.get_vocab().values(), *models.eos_ids)
    for network in filter(None, (models.policy, models.reference)):
        unwrapped(network).known_tokens = known if known < got.shape[-1] else None


def line_states(model, layout: Layout):
    """Hidden states [B, T, H] that predict the tokens that were sampled, 0 elsewhere."""
    out = below_the_head(model)(
        input_ids=layout.ids[None],
        position_ids=layout.positions[None],
        attention_mask=layout.ids.new_zeros(1, 1, 1, 1),  # of four dimensions: one that needs no making
        use_cache=False,
        layout=layout,
    )
    return rows_at(out.last_hidden_state[0], layout.predicting)


def predicting_states(model, piece: dict):
    """Hidden states [B, T, H] that predict each token: entry t is the state after token t - 1 (t = 0 has none).

    Where `share_prompts` has found that a network can, no pad is run and, where it saves time, a common prompt once for
    all of its rows; the states that predict what was not sampled are then 0.
    """
    import torch

    longest = length_that_shares(model)
    layout = layout_of(piece, longest) if longest else None
    if layout:
        return line_states(model, layout)
    hidden = plain_states(model, piece["input_ids"], piece["attention_mask"])
    return torch.cat([hidden[:, :1], hidden[:, :-1]], dim=1)


def token_logprobs(config: BaseConfig, model, hidden, piece: dict, entropy_grad: bool = False):
    """Log-prob of each response token and entropy of its distribution, [B, T], 0 outside the response mask."""
    mask = piece["response_mask"].bool()
    chunk = max(1, config.logits_chunk // unwrapped(model).config.get_text_config().vocab_size)
    flat = logprobs_and_entropy(
        lambda h: lm_logits(model, h), hidden[mask], piece["input_ids"][mask], config.temperature, chunk, entropy_grad
    )
    return tuple(x.new_zeros(mask.shape).masked_scatter(mask, x) for x in flat)


def token_values(critic, hidden):
    """Values [B, T] in float32: entry t is V of the text before token t."""
    import torch

    with torch.autocast(hidden.device.type, enabled=False):
        return critic.head(hidden.float()).squeeze(-1)
