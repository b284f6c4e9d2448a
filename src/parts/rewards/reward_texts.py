"""Texts that rewards see: of sampled ids, of chat turns, of a trial."""


def visible(text: str) -> str:
    """The text after the thinking part; "" while thinking has not ended."""
    text = text.rpartition("</think>")[2]
    return "" if "<think>" in text else text


def visible_text(tokenizer, ids: list[int], eos_ids) -> str:
    """The text of sampled ids without the end tokens and pads at their end.

    Special tokens before that stay visible: a policy that writes `<|user|>` into its answer has to be seen doing so.
    """
    ends, length = {*eos_ids, tokenizer.eos_token_id, tokenizer.pad_token_id}, len(ids)
    while length and ids[length - 1] in ends:
        length -= 1
    return tokenizer.decode(ids[:length], skip_special_tokens=False)


def text_of_turns(completion) -> str:
    """The text of a completion or prompt, a string or messages."""
    if isinstance(completion, str):
        return completion
    return "\n".join(str(message.get("content") or "") for message in completion)


def user_text(prompt) -> str:
    """What the model was asked: a string prompt, or the last message."""
    return prompt if isinstance(prompt, str) else prompt[-1]["content"]


def text_of_answers(completion) -> str:
    """The text of a completion; of a conversation what the model said, without tools' results and replies."""
    if isinstance(completion, str):
        return completion
    return text_of_turns([message for message in completion if message.get("role", "assistant") == "assistant"])


def trial_texts(gold: str) -> list[str]:
    """Completions that rewards of all kinds tell apart."""
    right = [gold, f"#### {gold}", f"so it is \\boxed{{{gold}}}", f"<answer>{gold}</answer>", f"first\n{gold}"]
    return [*right, f"The answer is {gold}.", f"{gold} or not", "41", "", "nothing"]
