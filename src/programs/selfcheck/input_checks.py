"""Checks of inputs: tokens, chat template."""

import json

from programs.selfcheck.trainer import Trainer, check

ANSWER = "Yes"  # the assistant's text in rendered chats


@check(moved=False)
def special_tokens(s: Trainer):
    """End tokens are known and end a turn of the template; all ids are rows of the embedding; one BOS at most.

    Try: use this checkpoint's pad, end tokens and tokenizer; if a turn ends with another token, add that to
        eos_token_id in the model's generation config.
    """
    tokenizer, ends, pad = s.models.tokenizer, s.models.eos_ids, s.models.pad_id
    eos, bos, closing = tokenizer.eos_token_id, tokenizer.bos_token_id, turn_end(tokenizer)
    rows = s.models.policy.get_input_embeddings().weight.shape[0]
    prompts = [list(row["prompt_ids"]) for row in s.rows]
    faults = {
        "no end token": not ends,
        f"the tokenizer's end token {eos} is not among them": eos is not None and eos not in ends,
        "an end token has no embedding": not all(0 <= i < rows for i in ends),
        f"pad {pad} has no embedding": not 0 <= pad < rows,
        "tokens without an embedding": len(tokenizer) > rows,
        "prompt tokens without an embedding": max(map(max, prompts)) >= rows,
        "prompts begin with two BOS tokens": bos is not None and any(ids[:2] == [bos, bos] for ids in prompts),
        f"the template ends a turn with {closing}, no end token": closing and not set(closing) & set(ends),
    }
    names = ", ".join(f"{i} {tokenizer.convert_ids_to_tokens(i)!r}" for i in ends)
    pads = f"{pad} is an end token too" if pad in ends else pad
    text = f"end {names}; pad {pads}; {len(tokenizer)} tokens, embedding {rows}"
    true = [fault for fault, is_true in faults.items() if is_true]
    return not true, "; ".join([text, *true])


def turn_end(tokenizer) -> list[int]:
    """The special tokens with which the chat template closes an assistant turn."""
    if not tokenizer.chat_template:
        return []
    chat = [{"role": "user", "content": "?"}, {"role": "assistant", "content": ANSWER}]
    text = tokenizer.apply_chat_template(chat, tokenize=False).rpartition(ANSWER)[2]
    special = set(tokenizer.all_special_ids)
    return [i for i in tokenizer(text, add_special_tokens=False).input_ids if i in special]


@check(moved=False)
def template_ends_at_generation(s: Trainer):
    """A chat prompt's ids are those of its messages in the chat template, with the start of the answer.

    Try: encode chat prompts with add_generation_prompt=True, the tools and chat_template_kwargs, once.
    """
    tokenizer, rows = s.models.tokenizer, []
    for row in s.rows:
        turns = row["prompt"]
        if isinstance(turns, str):  # sent as a chat by pages, by scripts with --chat
            turns = [{"role": "user", "content": turns}] if getattr(s.config, "chat", True) else []
        if turns and turns[-1]["role"] != "assistant":
            rows.append((turns, [*row["prompt_ids"]]))
    if not tokenizer.chat_template or not rows:
        return None, "no chat template, or plain prompts: an instruct model needs --chat, or chat messages"
    given = json.loads(getattr(s.config, "chat_template_kwargs", "") or "{}") | {"return_dict": True}
    given["tools"] = [*getattr(s.module, "TOOLS", {}).values()] or None
    for turns, ids in rows:
        expected = tokenizer.apply_chat_template(turns, add_generation_prompt=True, **given)["input_ids"]
        if ids != [*expected]:
            return False, f"prompt ends {tokenizer.decode(ids)[-40:]!r}, expected {tokenizer.decode(expected)[-40:]!r}"
    return True, f"{len(rows)} prompts end where an assistant turn starts: {tokenizer.decode(ids)[-30:]!r}"


INPUT_CHECKS = (special_tokens, template_ends_at_generation)
