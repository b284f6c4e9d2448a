"""The visible text of a completion, and its final answer."""

import re


def visible(text: str) -> str:
    """The text after the thinking part; "" while thinking has not ended."""
    text = text.rpartition("</think>")[2]
    return "" if "<think>" in text else text


NOUN = r"(?<!wrong )(?<!false )(?<!incorrect )\b(?:answer|antwort|réponse|respuesta)"
IS = r"[*_\"]*(?: (?:is|ist|est|es)\b|\s?[:：])"
PHRASE = rf"(?im){NOUN}{IS}|^(?:#+ |\*\*)(?:final )?answer[*_]*\n|答案(?:是|为|[:：])|(?:答え|正解)(?:は|[:：])"
WOULD_BE = rf"(?i){NOUN}[*_]* (?:would|will|must|should) be\b"  # where no other phrase is
BOX = re.compile(r"(?<!not )\\boxed\{(?:\\text\{([^{}]+)\}|([^{}]+))\}")


def final_answer(text: str) -> str:
    """What stands in <answer>, else in a box, after the last "answer is" or 答案：, or the whole text; "" for two."""
    text = visible(text)
    tagged = [part.partition("</answer>")[0] for part in text.split("<answer>")[1:]]
    last = text.rfind("\\boxed")
    boxes = [] if re.search(PHRASE, text[last:]) else [box[0] for box in BOX.finditer(text)]
    marked = {BOX.sub(r"\1\2", part).strip() for part in tagged or boxes}
    if marked:
        return marked.pop() if len(marked) == 1 else ""
    said = re.split(PHRASE, text)[1:] or re.split(WOULD_BE, text)[1:]
    return (said[-1].lstrip(" :*\n").split("\n")[0] if said else text).strip().rstrip(".。")
