"""The visible text of a completion, and its final answer."""

import re


def visible(text: str) -> str:
    """The text after the thinking part; "" while thinking has not ended."""
    text = text.rpartition("</think>")[2]
    return "" if "<think>" in text else text


NOUN = r"(?<!wrong )(?<!false )(?<!incorrect )\b(?:answer|antwort|réponse|respuesta)"
IS = r"(?: (?:is|ist|est|es)\b|\s?[:：])"
PHRASE = rf"(?i){NOUN}{IS}|答案(?:是|为|[:：])|(?:答え|正解)(?:は|[:：])"


def final_answer(text: str) -> str:
    """What stands in <answer>, else after the last "answer is" or 答案：, else the whole text; "" for two."""
    text = visible(text)
    tagged = {part.partition("</answer>")[0].strip() for part in text.split("<answer>")[1:]}
    if tagged:
        return tagged.pop() if len(tagged) == 1 else ""
    said = re.split(PHRASE, text)[1:]
    return (said[-1].lstrip(" :*\n").split("\n")[0] if said else text).strip().rstrip(".。")
