"""How losses per token become one number: the weight of each token."""

AGGREGATIONS = {
    "token_mean": "sum over all tokens / their number: DAPO",
    "seq_mean_token_mean": "mean over completions of their token mean: GRPO",
    "seq_mean_token_sum": "mean over completions of their token sum",
    "seq_mean_token_sum_norm": "mean over completions of token sum / max_new_tokens: Dr. GRPO",
    "fixed_length": "mean over completions of token sum / norm_length",
}


def token_weights(mask, config, tokens, sequences):
    """Weights [B, T] of token losses, so that their weighted sum over all pieces is the minibatch's loss.

    Args:
        mask: [B, T], a piece of the minibatch.
        config: `aggregation`, `max_new_tokens` and `norm_length` are read.
        tokens: masked tokens of the whole minibatch.
        sequences: rows of the whole minibatch.
    """
    if config.aggregation == "token_mean":
        return mask / tokens
    if config.aggregation == "seq_mean_token_mean":
        return mask / (sequences * mask.sum(1, keepdim=True).clamp(min=1))
    divisors = {"seq_mean_token_sum": 1, "seq_mean_token_sum_norm": config.max_new_tokens}
    return mask / (sequences * divisors.get(config.aggregation, config.norm_length))
