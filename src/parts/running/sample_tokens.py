"""What each sampled token was given, for the few samples of samples.jsonl: its text, log-prob and advantage."""

LOGGED = 8  # samples of a step or an evaluation


def piece_lengths(tokenizer, ids: list[int]) -> list[int]:
    """How many characters of the ids' text each token adds, one number per id; they sum to the text's length.

    A token that ends inside a character (byte-level BPE) adds 0, and the one that completes it adds all of it. Each
    piece is decoded behind the one before it, as some tokenizers drop a space at the beginning of a text.
    """
    lengths, start, done = [], 0, 0  # ids[start:done] is the piece before, ids[done:] what is not yet text
    for end in range(1, len(ids) + 1):
        before, text = (tokenizer.decode(ids[start:stop], skip_special_tokens=False) for stop in (done, end))
        if len(text) > len(before) and not text.endswith("\ufffd"):
            lengths.append(len(text) - len(before))
            start, done = done, end
        else:
            lengths.append(0)
    rest = len(tokenizer.decode(ids, skip_special_tokens=False)) - sum(lengths)
    if rest < 0:  # a tokenizer whose pieces are no pieces of the text
        return [0] * (len(ids) - 1) + [rest + sum(lengths)]
    return [*lengths[:-1], lengths[-1] + rest] if lengths else []


def note_advantages(samples: list[dict], batch: dict) -> None:
    """Give the samples that may be logged the advantages [B, T] of their response tokens, where the batch has any."""
    if "advantages" not in batch:
        return
    first = batch["advantages"].shape[1] - max(len(s["response_ids"]) for s in samples)  # column of the responses
    for sample, values in zip(samples, batch["advantages"][:LOGGED, first:].tolist(), strict=False):
        sample["advantages"] = values[: len(sample["response_ids"])]


def token_figures(tokenizer, sample: dict) -> dict:
    """What samples.jsonl has of a sample's tokens; of a conversation those of all its answers, one after the other.

    Returns:
        token_lengths, logprobs of the sampler, and advantages, lists of one length; one advantage where all are equal.
        {} for a completion that was not sampled.
    """
    if "offpolicy" in sample:
        return {}
    ids, spans = sample["response_ids"], [(0, len(sample["response_ids"]))]
    if "turn_ends" in sample:
        spans = [(end - n, end) for end, n in zip(sample["turn_ends"], sample["answer_lengths"], strict=True)]

    def sampled(values: list) -> list:
        return [value for start, end in spans for value in values[start:end]]

    lengths = [n for start, end in spans for n in piece_lengths(tokenizer, ids[start:end])]
    found = {"token_lengths": lengths, "logprobs": [round(x, 3) or 0 for x in sampled(sample["rollout_logprobs"])]}
    advantages = [float(f"{x:.3g}") or 0 for x in sampled(sample.get("advantages", []))]
    if len({*advantages}) == 1:
        return found | {"advantage": advantages[0]}
    return found | ({"advantages": advantages} if advantages else {})
