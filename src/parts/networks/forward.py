"""The forward pass: attention that runs a shared prompt once, backbone, logits, log-probs, values."""

import functools
import inspect
import math
from collections.abc import Iterator

from parts.foundation.messages import UserError, is_out_of_memory, need
from parts.foundation.processes import torch, transformers
from parts.foundation.settings import BaseConfig
from parts.networks.batches import Layout, layout_of, micro_batches, own_rows, trimmed
from parts.networks.key_cache import Groups, give_room
from parts.networks.models import Models, autocast, unwrapped
from parts.networks.tokenizers import token_count

SHARED_PROMPTS = "shared_prompts"  # name under which `shared_attention` is registered in transformers


def rows_at(x, places, empty: bool = False):
    """Rows of x [N, ...] at places [...]. Place N gives the last row, or zeros with `empty`.

    The backward pass sums equal places in a fixed order.
    """
    padding = len(x) if empty else None
    x = torch.cat([x, x.new_zeros(1, *x.shape[1:])]) if empty else x
    rows = torch.nn.functional.embedding(places.clamp(max=len(x) - 1), x.flatten(1), padding_idx=padding)
    return rows.view(*places.shape, *x.shape[1:])


def shared_attention(module, query, key, value, attention_mask, layout: Layout | Groups | None = None, **kwargs):
    """Transformers' "sdpa" attention; with a `Layout`, each text of the packed line [1, heads, N, D] sees itself only.

    With `Groups`, it is the attention of each row's next token. Prompts start in column 0, so they need the causal mask
    only: pads follow them, no token sees a pad, and the results of pads are dropped.
    """
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    if hasattr(module, "kept_tokens"):
        module.kept_tokens.kept = layout.kept if isinstance(layout, Layout) else None
    if layout is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)
    if isinstance(layout, Groups):
        return layout.attend(module.layer_idx, query, key, value, kwargs.get("scaling")), None
    line = [x[0].transpose(0, 1) for x in (query, key, value)]  # [N, heads, D]

    def attend(asking, asked, mask):
        places = (asking, asked, asked)
        if layout.back is None:
            blocks = [x.reshape(*place.shape, *x.shape[1:]) for x, place in zip(line, places, strict=True)]
        else:
            blocks = [rows_at(x, place) for x, place in zip(line, places, strict=True)]
        blocks = [block.transpose(1, 2) for block in blocks]
        return sdpa_attention_forward(module, *blocks, mask, **kwargs)[0].flatten(0, 1)  # [rows x columns, heads, D]

    attended = attend(layout.prompts, layout.prompts, None)
    if layout.responses.numel():
        mask = layout.added_to_scores(query.dtype)
        attended = torch.cat([attended, attend(layout.responses, layout.texts, mask)])
    return (attended if layout.back is None else rows_at(attended, layout.back))[None], None


class KeptTokens:
    """Restricts a network's last `mlp` to a line's kept tokens, as no other state is used after it.

    The layer's attention runs first and sets `kept`, also when the layer is recomputed.
    """

    def __init__(self, layer):
        self.kept, self.count = None, 0
        self.attentions = [module for module in layer.modules() if hasattr(module, "layer_idx")]
        for module in self.attentions:
            module.kept_tokens = self
        self.hooks = [layer.mlp.register_forward_pre_hook(self.narrow), layer.mlp.register_forward_hook(self.widen)]

    def remove(self) -> None:
        for hook in self.hooks:
            hook.remove()
        for module in self.attentions:
            del module.kept_tokens

    def narrow(self, mlp, args):
        """Before the mlp: select the kept states [1, M, H] of [1, N, H]."""
        if self.kept is None:
            return None
        self.count = args[0].shape[1]
        return args[0].index_select(1, self.kept), *args[1:]

    def widen(self, mlp, args, output):
        """After the mlp: put them back into [1, N, H], with 0 elsewhere."""
        if self.kept is None:
            return None
        return output.new_zeros(1, self.count, output.shape[2]).index_copy(1, self.kept, output)


def recomputing_layers(network) -> list:
    """The layers of a network that recompute their activations under gradient checkpointing: its decoder layers."""
    kind = transformers.modeling_layers.GradientCheckpointingLayer
    return [layer for layer in network.modules() if isinstance(layer, kind)]


def set_attention(model, name: str, narrow: bool = False) -> None:
    """Set the attention to SHARED_PROMPTS or a kind of transformers; `narrow`: the last mlp runs kept tokens only."""
    transformers.AttentionInterface.register(SHARED_PROMPTS, shared_attention)
    transformers.AttentionMaskInterface.register(SHARED_PROMPTS, transformers.masking_utils.sdpa_mask)
    network = unwrapped(model)
    network.config.get_text_config()._attn_implementation = name
    layers = recomputing_layers(network)
    for module in layers[-1:] and list(layers[-1].modules()):
        if hasattr(module, "kept_tokens"):
            module.kept_tokens.remove()
    if narrow and layers and hasattr(layers[-1], "mlp"):
        KeptTokens(layers[-1])


def shared_length(networks: list) -> float:
    """Longest row, in tokens, whose prompt all networks (None is skipped) can run once for several rows; 0: none."""
    return min((length_that_shares(network) for network in networks if network is not None), default=0)


def length_that_shares(model) -> float:
    """`shared_length` of one network: how far all of its layers look back, inf if without limit."""
    config = unwrapped(model).config.get_text_config()
    if config._attn_implementation != SHARED_PROMPTS:
        return 0
    windows = [getattr(config, name, None) for name in ("sliding_window", "attention_chunk_size", "window_size")]
    if not getattr(config, "use_sliding_window", True):
        windows[0] = None
    return min((window for window in windows if window), default=math.inf)


def tempered(logits, temperature: float):
    """Logits in float32 or wider, divided by the temperature."""
    logits = logits.float() if logits.dtype.itemsize < 4 else logits
    return logits if temperature == 1 else logits / temperature


def pieces_of_batch(config: BaseConfig, models: Models, batch: dict, rows) -> Iterator[tuple]:
    """Yield (rows, columns, micro-batch) for this process's share of some rows of a batch."""
    local_rows, shared = own_rows(batch, rows), shared_length(models.networks)
    for piece_rows in micro_batches(batch, local_rows, config.micro_batch_tokens, shared):
        piece, columns = trimmed(batch, piece_rows)
        yield piece_rows, columns, piece


def logprobs_and_entropy(logits_fn, hidden, targets, temperature: float, chunk: int, entropy_grad: bool = False):
    """Log-prob of each target and entropy of its distribution, without holding all logits at once.

    Args:
        logits_fn: maps hidden states [n, H] to logits [n, V].
        hidden: [N, H], the states that predict the targets.
        targets: [N] token ids.
        temperature: logits are divided by it.
        chunk: rows of `hidden` per piece; several pieces are recomputed in the backward pass.
        entropy_grad: let gradients flow through the entropy.

    Returns:
        (logprobs [N], entropy [N]), in float32 or wider.
    """

    def piece(h, t):
        logprobs = torch.log_softmax(tempered(logits_fn(h), temperature), dim=-1)  # [n, V]
        with torch.set_grad_enabled(torch.is_grad_enabled() and entropy_grad):
            entropy = -(logprobs.exp() * logprobs).sum(-1)
        return logprobs.gather(-1, t[:, None]).squeeze(-1), entropy

    if len(hidden) <= chunk:
        return piece(hidden, targets)
    pieces = zip(hidden.split(chunk), targets.split(chunk), strict=True)
    if torch.is_grad_enabled():
        parts = [torch.utils.checkpoint.checkpoint(piece, h, t, use_reentrant=False) for h, t in pieces]
    else:
        parts = [piece(h, t) for h, t in pieces]
    logprobs, entropy = zip(*parts, strict=True)
    return torch.cat(logprobs), torch.cat(entropy)


@functools.cache  # called for every sampled token
def takes(network_class, argument: str) -> bool:
    """Whether a network's forward has an argument of this name."""
    return argument in inspect.signature(network_class.forward).parameters


def below_the_head(model):
    """The network below the output layer; Llama 4's attribute differs from its `base_model_prefix`."""
    network = unwrapped(model)
    return getattr(network, "model", network) if network.base_model is network else network.base_model


def backbone(model, input_ids, attention_mask, **kwargs):
    """Run the network below the output layer; positions count real tokens only, so padding does not shift them."""
    network = below_the_head(model)
    width = input_ids.shape[1]
    if takes(type(network), "position_ids"):
        kwargs["position_ids"] = (attention_mask.cumsum(dim=1) - 1).clamp(min=0)[:, -width:]
    if takes(type(network), "cache_params"):  # Mamba applies the mask to the new tokens only
        attention_mask = attention_mask[:, -width:]
    return network(input_ids=input_ids, attention_mask=attention_mask, **kwargs)


def cached_states(model, input_ids, attention_mask, cache):
    """(hidden states [B, t, H] of new tokens that follow those in the cache, or begin one if it is None; the cache)."""
    name = "cache_params" if takes(type(below_the_head(model)), "cache_params") else "past_key_values"
    out = backbone(model, input_ids, attention_mask, **{name: cache}, use_cache=True)
    keys_and_values = getattr(out, name, None)
    if cache is None:
        give_room(keys_and_values)
    return out.last_hidden_state, keys_and_values


def masks_itself(model) -> bool:
    """Whether the attention takes a finished 4D mask, which transformers passes on as it is."""
    return unwrapped(model).config._attn_implementation in ("sdpa", SHARED_PROMPTS)


def next_states(model, token, mask, cache, padded: bool):
    """States [B, H] of one more token [B] per row, with a plain cache or one of `group_rows`.

    mask [B, T] is 1 on all tokens of the texts, including the new ones. `padded` says whether it may contain a 0: to
    look would make the host wait for the device.
    """
    network = below_the_head(model)
    prepared, extra = mask[:, None, None].bool() if masks_itself(model) else mask, {}
    if groups := getattr(cache, "groups", None):
        prepared, padded, extra = mask.new_zeros(1, 1, 1, 1), True, {"layout": groups}  # 4D: no mask is built
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
    """Hidden states [B, T, H] of whole texts without a cache, as in training."""
    return backbone(model, input_ids, attention_mask, use_cache=False).last_hidden_state


def lm_logits(model, hidden):
    """Logits [..., V] of hidden states [..., H], for the tokenizer's tokens only (see `settle_logits`)."""
    return known_logits(model, all_logits(model, hidden))


def known_logits(model, logits):
    """Cut logits [..., rows] to those [..., V] of the tokenizer's tokens, as `settle_logits` has counted them."""
    known = getattr(unwrapped(model), "known_tokens", None)
    return logits if known is None else logits[..., :known]


def lost_mass(model, logits):
    """Probability [...] that logits [..., rows] give to rows without a token; NaN if all rows have one.

    We neither sample nor train these rows, but other samplers may draw them.
    """
    known = getattr(unwrapped(model), "known_tokens", None)
    return logits[..., 0] * math.nan if known is None else logits.softmax(-1)[..., known:].sum(-1)


def all_logits(model, hidden):
    """Logits [..., rows] of all rows of the output layer, for hidden states [..., H], in its weights' precision."""
    model = unwrapped(model)
    head, config = model.get_output_embeddings(), model.config.get_text_config()
    with torch.autocast(hidden.device.type, enabled=False):
        logits = head(hidden.to(head.weight.dtype))
    for name, power in (("logit_scale", 1), ("logits_scaling", -1), ("lm_head_multiplier", 1)):
        if (scale := getattr(config, name, None) or 1.0) != 1:  # a product with 1 would copy all logits
            logits = logits * scale**power
    cap = getattr(config, "final_logit_softcapping", None)
    return torch.tanh(logits / cap) * cap if cap else logits


def settle_logits(config: BaseConfig, models: Models) -> None:
    """Let policy and reference ignore output rows beyond the tokenizer's tokens.

    UserError if the policy's logits are not its output layer applied to its backbone's states, as this part assumes.
    """
    ids = torch.tensor([[models.pad_id, 0, 1, 2]], device=models.device)
    name = type(unwrapped(models.policy)).__name__
    try:
        with torch.no_grad(), autocast(config, models.device):
            expected = models.policy(input_ids=ids).logits.float()
            logits = all_logits(models.policy, plain_states(models.policy, ids, torch.ones_like(ids))).float()
    except (AttributeError, RuntimeError, TypeError, ValueError) as error:  # for example, Mamba with 4-bit weights
        if is_out_of_memory(error):
            raise
        raise UserError(
            f"got {name} with these settings, which does not read four tokens: {error}; expected a plain decoder; "
            "try weights of 16 bits, or another architecture"
        ) from error
    finite = expected.isfinite().all()
    got = f"got {name}, whose logits are not finite; expected finite ones"
    need(finite, f"{got}; try another checkpoint, or bf16 in place of fp16")
    got = f"got {name}, whose logits are not output layer x hidden state; expected a plain decoder (logit scale and "
    equal = torch.allclose(logits, expected, rtol=2e-2, atol=2e-2 * expected.std().item())
    need(equal, f"{got}soft-capping are known); try another architecture, or adapt all_logits()")
    count = token_count(models.tokenizer, models.eos_ids)
    for network in filter(None, (models.policy, models.reference)):
        unwrapped(network).known_tokens = count if count < logits.shape[-1] else None


def line_states(model, layout: Layout):
    """Run a packed line; returns the hidden states [B, T, H] that predict the sampled tokens, 0 elsewhere."""
    out = below_the_head(model)(
        input_ids=layout.ids[None],
        position_ids=layout.positions[None],
        attention_mask=layout.ids.new_zeros(1, 1, 1, 1),  # 4D: transformers builds no mask
        use_cache=False,
        layout=layout,
    )
    return rows_at(out.last_hidden_state[0], layout.predicting, empty=True)


def predicting_states(model, piece: dict):
    """Hidden states [B, T, H] that predict each token: entry t is the state after token t - 1 (entry 0 is unused).

    If `share_prompts` has enabled it, no pad is run, and a shared prompt runs once where that saves time. States that
    predict tokens that were not sampled are then 0.
    """
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
    """Values [B, T] in float32: entry t is the value of the text before token t."""
    with torch.autocast(hidden.device.type, enabled=False):
        return critic.head(hidden.float()).squeeze(-1)
