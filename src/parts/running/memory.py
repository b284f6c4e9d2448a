"""The memory that a run will need, from the shape of its networks."""

import dataclasses
from dataclasses import dataclass

from parts.foundation.processes import device_name
from parts.foundation.settings import BaseConfig
from parts.networks.faster_layers import copy_fits

FOUR_NORMS = {"gemma2", "gemma3", "gemma3_text", "glm4"}  # norms before and after attention and MLP
QK_NORM = {"qwen3", "qwen3_moe", "gemma3", "gemma3_text"}  # norms of queries and keys, per head
DRAWN = 2**24  # probabilities in float64 that the sampler holds three times: its DRAWN_AT_ONCE
INNER_COPIES = {"gelu_new": 5, "relu": 1}  # of MLPs without a gate; the others keep input and output


@dataclass(frozen=True)
class DecoderShape:
    """What of a model's config.json decides how much memory its activations take; see `decoder_shape`."""

    layers: int
    hidden: int
    vocab: int
    embeddings: int  # weights of the embedding and the output layer
    heads: int
    queries: int  # heads x head size
    keys: int  # kv heads x head size
    inner: int  # width of the MLP, or of one expert
    gated: bool  # the MLP has a gate, and its own layers for queries, keys and values stand beside it
    inner_copies: int  # tensors [tokens, inner] that the MLP keeps
    norms: int  # per layer
    norm: str  # layer, rms, or rms32 (Gemma's, all in float32)
    qk_norm: bool
    softcap: bool  # of attention scores
    logit_softcap: bool
    experts: int  # that a token visits; 0 for a dense MLP
    shared_inner: int  # of the expert that every token visits


@dataclass(frozen=True)
class PassShape:
    """A micro-batch, and how it runs through a network."""

    rows: int
    length: int  # tokens of a row, pads included
    compute: int = 4  # bytes per number in matrix products
    stream: int = 4  # bytes per number between layers; 4 with float32 weights, under autocast as well
    attention: str = "sdpa"  # eager keeps [rows, heads, length, length]; flash has neither these nor a mask
    checkpointing: bool = False
    lora_rank: int = 0  # 0: all weights are trained

    @property
    def tokens(self) -> int:
        """Tokens of the micro-batch, pads included."""
        return self.rows * self.length

    @property
    def casts(self) -> bool:
        """Whether every linear layer makes a copy of its own of its input; adapters are float32."""
        return self.compute < (4 if self.lora_rank else self.stream)

    @property
    def padded(self) -> bool:
        """Whether there is a mask [rows, 1, length, length], for which keys and values are repeated per head."""
        return self.rows > 1 and self.attention != "flash"


def first_set(config: dict, names, default=0):
    """The value of the first of several keys that a config has, and that is neither None nor 0."""
    return next((config[name] for name in names if config.get(name)), default)


def decoder_shape(config: dict) -> DecoderShape:
    """Read the config.json of a decoder, its text part where there are several."""
    hidden, kind = first_set(config, ("hidden_size", "n_embd", "d_model")), config.get("model_type") or ""
    heads = first_set(config, ("num_attention_heads", "n_head", "n_heads"))
    head = config.get("head_dim") or hidden // heads
    activation = first_set(config, ("hidden_act", "hidden_activation", "activation_function"), "")
    rms = bool(config.get("rms_norm_eps"))
    gated = rms or activation in ("silu", "swish")
    experts = first_set(config, ("num_experts_per_tok", "num_experts_per_token"))
    widths = ("n_inner", "ffn_dim", "intermediate_size")
    widths = ("moe_intermediate_size", *widths) if experts else widths
    return DecoderShape(
        layers=first_set(config, ("num_hidden_layers", "n_layer", "n_layers")),
        hidden=hidden,
        vocab=config["vocab_size"],
        embeddings=config["vocab_size"] * hidden * (1 if config.get("tie_word_embeddings", True) else 2),
        heads=heads,
        queries=heads * head,
        keys=(config.get("num_key_value_heads") or heads) * head,
        inner=first_set(config, widths, 4 * hidden),
        gated=gated,
        inner_copies=4 if gated else INNER_COPIES.get(activation, 2),
        norms=4 if kind in FOUR_NORMS else 2,
        norm=("rms32" if kind.startswith("gemma") else "rms") if rms else "layer",
        qk_norm=kind in QK_NORM,
        softcap=bool(config.get("attn_logit_softcapping")),
        logit_softcap=bool(config.get("final_logit_softcapping")),
        experts=experts,
        shared_inner=config.get("shared_expert_intermediate_size") or 0,
    )


def shape_of(network) -> DecoderShape | None:
    """The shape of a network of transformers; None where its config does not say it, as without attention."""
    try:
        shape = decoder_shape(network.config.get_text_config().to_dict())
    except (KeyError, TypeError, ZeroDivisionError):
        return None
    sizes = (shape.layers, shape.hidden, shape.vocab, shape.heads, shape.keys, shape.inner)
    return shape if all(isinstance(size, int) and size for size in sizes) else None


def attention_kind(implementation: str | None) -> str:
    """What PassShape calls an attention of transformers."""
    name = implementation or "sdpa"
    return "flash" if "flash" in name else "eager" if name == "eager" else "sdpa"


def norm_bytes(model: DecoderShape, run: PassShape, width: int) -> int:
    """Bytes per number that a norm keeps: its input, and what a trained weight multiplies, of `width` bytes."""
    if model.norm == "layer":
        return 4 if run.casts else run.stream
    return 4 + (0 if run.lora_rank else 4 if model.norm == "rms32" else width)


def attention_activations(model: DecoderShape, run: PassShape) -> float:
    """Bytes that the attention of one layer keeps, from its queries to its output."""
    width, queries, keys = run.compute, model.queries, model.keys
    repeated = run.padded or run.attention == "eager"
    per_token = (2 * queries + 2 * (queries if repeated else keys)) * width  # queries, output, keys, values
    if run.lora_rank and run.casts:
        per_token += queries * width
    if model.qk_norm:
        per_token += (queries + keys) * norm_bytes(model, run, width)
    pairs = run.rows * run.length**2
    if run.attention == "eager":  # softmax in float32, its copy for the product with the values, tanh of the scores
        scores = 4 + width * (width < 4) + width * model.softcap
        return run.tokens * per_token + pairs * model.heads * scores
    return run.tokens * (per_token + 4 * model.heads) + pairs * width * run.padded


def mlp_activations(model: DecoderShape, run: PassShape) -> float:
    """Bytes that one MLP keeps, its input apart; experts run in the width of what is between layers."""
    copies = model.inner_copies
    if not model.experts:
        return run.tokens * copies * model.inner * run.compute
    routed = model.experts * (copies * model.inner + 2 * model.hidden) * run.stream
    return run.tokens * (routed + copies * model.shared_inner * run.compute)


def layer_activations(model: DecoderShape, run: PassShape) -> float:
    """Bytes that one decoder layer keeps for its backward pass, weights apart."""
    inputs = 2  # of attention and MLP, one copy each, or one for every linear layer that reads it
    if run.casts and model.gated:
        inputs = 4 if model.experts else 5
    per_token = model.hidden * (model.norms * norm_bytes(model, run, run.stream) + inputs * run.compute)
    per_token += (7 if model.gated else 4) * run.lora_rank * run.compute
    return run.tokens * per_token + attention_activations(model, run) + mlp_activations(model, run)


def layer_transient(model: DecoderShape, run: PassShape) -> float:
    """Bytes that the backward pass of the last layer has beside what was saved: gradients of its activations."""
    inner = model.inner * (model.experts or 1)
    mlp = run.tokens * (2 * inner * (run.stream if model.experts else run.compute) + 2 * model.hidden * 4)
    if run.lora_rank and run.casts:
        mlp += run.tokens * inner * 4  # what goes into an adapter is made float32 first
    if run.attention != "eager":
        return mlp
    scores = 2 * 4 * run.rows * run.length**2 * model.heads  # by then the MLP's activations are gone
    return max(mlp, scores - mlp_activations(model, run))


def adapter_weights(model: DecoderShape, rank: int) -> int:
    """Weights of LoRA adapters of a rank on all linear layers."""
    hidden, inner = model.hidden, model.inner * (not model.experts)
    sides = (4 if model.gated else 2) * hidden + 2 * model.queries + 2 * model.keys  # GPT-2: one layer for q, k and v
    sides += (3 if model.gated else 2) * (hidden + inner)
    return model.layers * rank * sides


def layer_weights(model: DecoderShape) -> int:
    """Weights of the linear layers of one decoder layer, routed experts apart."""
    inner = model.shared_inner if model.experts else model.inner
    return model.hidden * (2 * model.queries + 2 * model.keys + (3 if model.gated else 2) * inner)


def weight_copies(model: DecoderShape, run: PassShape) -> float:
    """Bytes of the copies that autocast makes of one layer's float32 weights."""
    return layer_weights(model) * run.compute * (run.casts and not run.lora_rank)


def head_bytes(model: DecoderShape, run: PassShape, logits: float, buffers: int) -> float:
    """Bytes of `buffers` float32 tensors of `logits` numbers, and of the gradient a trained output layer adds."""
    buffers += model.logit_softcap
    return 4 * (buffers * logits + model.vocab * model.hidden * (not run.lora_rank))


def saved_for_backward(model: DecoderShape, run: PassShape) -> float:
    """Bytes that the network below its output layer keeps for the backward pass, with autocast's copies of weights.

    Measured on Llama, Qwen 2 and 3, GPT-2, Gemma 2 and 3, Mixtral and Qwen 3 MoE of transformers 5.23; a rough guess
    for networks with state-space or linear-attention layers, latent attention, or norms in other places.
    """
    last = run.tokens * model.hidden * norm_bytes(model, run, run.stream)
    if run.checkpointing:
        return last + model.layers * run.tokens * model.hidden * run.stream  # what goes into each layer
    return last + model.layers * (layer_activations(model, run) + weight_copies(model, run))


def backward_peak(model: DecoderShape, run: PassShape, head: float) -> float:
    """Most bytes of a forward and backward pass beside weights, gradients and optimizer; `head` is of `head_bytes`."""
    saved = saved_for_backward(model, run)
    states = 2 * 4 * run.tokens * model.hidden  # shifted, and picked by the mask
    mask = run.rows * run.length**2 * run.padded * (4 if run.attention == "eager" else 1)
    copies, layer = weight_copies(model, run), layer_transient(model, run)
    if not run.checkpointing:
        return mask + saved + max(states + head, layer)
    forward = model.layers * copies + layer
    again = layer_activations(model, run) + copies + layer
    return mask + saved + max(forward, states + head, again)


def frozen_bytes(model: DecoderShape, parameters: int, width: float, embedding_width: int) -> float:
    """Bytes of weights of which embedding and output layer have a width of their own; 4-bit ones take 0.516 each."""
    embeddings = min(model.embeddings, parameters)
    return (parameters - embeddings) * width + embeddings * embedding_width


def network_bytes(config: BaseConfig, shape: DecoderShape, parameters: int) -> tuple[float, float]:
    """Bytes of a trained network's weights with its optimizer's state, and of its gradients."""
    if not config.lora_rank:
        return 12 * parameters, 4 * parameters  # float32: weights, and the two moments of AdamW
    width = 4 if config.precision == "fp32" else 2
    base = frozen_bytes(shape, parameters, 0.516 if config.load_in_4bit else width, width)
    adapters = adapter_weights(shape, config.lora_rank)
    return base + 12 * adapters, 4 * adapters


def sampling_bytes(model: DecoderShape, run: PassShape, new_tokens: int) -> float:
    """Bytes of the KV cache of prompts of `run` and their completions, of their forward pass, and of a token's draw.

    That has logits, scaled ones and log-probs [rows, V] in float32, and probabilities in float64.
    """
    cache = 2 * model.layers * model.keys * run.compute * run.rows * (run.length + new_tokens)
    logits = run.rows * model.vocab
    draw = 4 * (3 + model.logit_softcap) * logits + 3 * 8 * min(logits, max(DRAWN, model.vocab))
    return cache + model.layers * weight_copies(model, run) + max(layer_transient(model, run), draw)


def folded_bytes(config: BaseConfig, model: DecoderShape, run: PassShape) -> float:
    """Bytes of the weights with LoRA in them, which a GPU samples with beside the base; see `foldable_layers`."""
    if not config.lora_rank or config.load_in_4bit or config.rollout_engine == "vllm":
        return 0
    size = model.layers * layer_weights(model) * run.compute
    return size if copy_fits(size, device_name(config)) else 0


def memory_of_run(
    shape: DecoderShape, run: PassShape, trained: tuple, frozen: dict[str, float], head: float, at_once: int, new: int
) -> dict[str, float]:
    """Bytes per process: what stays, what passes, and the peaks of update and sampling.

    Left out are the process, CUDA's context, libraries and fragments of memory. `run` is the largest micro-batch of an
    update, `trained` of `network_bytes`, `head` of `head_bytes`; `at_once` completions of `new` tokens are sampled.
    """
    kept, gradients = trained
    stays = kept + sum(frozen.values())
    prompts = dataclasses.replace(run, rows=at_once, length=run.length - new)
    return {
        "weights, gradients and optimizer": kept + gradients,
        **frozen,
        "activations of a micro-batch": saved_for_backward(shape, run),
        "logits": head,
        "KV cache while sampling": 2 * shape.layers * shape.keys * run.compute * at_once * run.length,
        "peak of the update": stays + gradients + backward_peak(shape, run, head),
        "peak of sampling": stays + sampling_bytes(shape, prompts, new),
    }


def longest_row(config: BaseConfig, prompt: int) -> int:
    """Most tokens of a row, where the longest prompt has so many."""
    return config.conversation_tokens if getattr(config, "environment", "") else prompt + config.max_new_tokens


def network_weights(network, width: float, embedding_width: float) -> float:
    """Bytes of a frozen network, whose embedding and output layer have a width of their own."""
    shape, parameters = shape_of(network), sum(p.numel() for p in network.parameters())
    return frozen_bytes(shape, parameters, width, embedding_width) if shape else parameters * width


def memory_of_trainer(
    config: BaseConfig, model, prompt: int, processes: int, buffers: int, frozen: dict[str, float], networks: int = 1
) -> dict[str, float]:
    """Bytes per process of a trainer with this bundle's step, see `memory_of_run`; {} for an unknown architecture.

    The largest micro-batch has rows as long as the longest prompt and completion. It is the plain one of rows x
    columns: where prompts are run once for their rows, and no pads, less is taken. `networks` of the size of `model`
    are trained, `frozen` ones are given in bytes; `buffers` as of `head_bytes`.
    """
    shape, parameters = shape_of(model), sum(p.numel() for p in model.parameters())
    if not shape:
        return {}
    longest, share = longest_row(config, prompt), config.batch_size // processes
    rows = min(config.micro_batch_tokens // longest, share // config.minibatches)
    run = pass_of_rows(config, model, max(1, rows), longest)
    trained = tuple(networks * x for x in network_bytes(config, shape, parameters))
    at_once = 0 if config.rollout_engine == "vllm" else min(config.rollout_batch_size or share, share)
    piece = min(max(config.logits_chunk, shape.vocab), run.tokens * shape.vocab)  # every token is trained on
    head = head_bytes(shape, run, piece, buffers)
    memory = memory_of_run(shape, run, trained, frozen, head, at_once, config.max_new_tokens)
    memory["peak of sampling"] += folded_bytes(config, shape, run)
    return memory


TILE = (4096, 32_768)  # tokens and vocabulary of a piece of TRL's output layer
TILE_BUFFERS = 7  # float32 tensors of a piece that exist at once where there is no Triton, measured on a CPU


def trl_head(shape: DecoderShape, run: PassShape, fused: bool) -> float:
    """Bytes that TRL's output layer and loss take for a micro-batch; with Triton (`fused`) one piece is all."""
    tokens = min(run.tokens, TILE[0])
    logits = 0 if fused else tokens * min(shape.vocab, TILE[1])
    return tokens * TILE[1] * run.compute + head_bytes(shape, run, logits, TILE_BUFFERS)


def pass_of_rows(config: BaseConfig, model, rows: int, length: int) -> PassShape:
    """A micro-batch of so many rows of one length, in the run's precision."""
    width = 4 if config.precision == "fp32" else 2
    return PassShape(
        rows=rows,
        length=length,
        compute=width,
        stream=width if config.lora_rank else 4,
        attention=attention_kind(model.config._attn_implementation),
        checkpointing=config.gradient_checkpointing,
        lora_rank=config.lora_rank,
    )
