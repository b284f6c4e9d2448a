"""Grade the two-turn game of lantern_game.py, in this folder.

python evals/graders/lantern.py episodes FILE [N] | pays

episodes: each row of FILE is a game that the keeper would have led, its tokens in order, the model's own marked in
`trained`, its `pay` right, and at least N. pays: lantern/ earns more than tiny_lm/ on lantern_asks.jsonl, and
lantern.json says how much.
"""

import json
import sys
from pathlib import Path

from tiny import jsonl, load, opened, say
from transformers import AutoTokenizer

LEAST_GAIN, TOLERANCE = 0.1, 0.02


def spans(ids: list[int], user: int, speaker: int, end: int) -> list[tuple[int, int]]:
    """Where the assistant's turns lie, the end token included; a turn that was cut ends where the user speaks."""
    turns = []
    for low in [i + 1 for i, token in enumerate(ids) if token == speaker and ids[i - 1] == end]:
        high = next((i + (ids[i] == end) for i in range(low, len(ids)) if ids[i] in (end, user)), len(ids))
        turns.append((low, high))
    return turns


def fault(row: dict, tokenizer, game, asks: dict[str, int]) -> str:
    """What is wrong with an episode, or nothing."""
    ids, turns = (
        row["ids"],
        spans(row["ids"], *tokenizer.convert_tokens_to_ids(["<|user|>", "<|assistant|>", "<|end|>"])),
    )
    marked = [int(any(low <= i < high for low, high in turns)) for i in range(len(ids))]
    if list(map(int, row["trained"])) != marked:
        return "trained marks other tokens than the model's"
    replies = [tokenizer.decode(ids[low:high], skip_special_tokens=True) for low, high in turns]
    text = tokenizer.decode(ids)
    ask = next((ask for ask in asks if text.startswith(f"<|user|>{ask}<|end|>")), None)
    if ask is None or not 1 <= len(turns) <= 2:
        return "no ask of the file, or not one or two turns"
    hint = game.keeper(asks[ask], replies[0])
    whole = f"<|user|>{ask}<|end|><|assistant|>{replies[0]}"
    rest = text.removeprefix(whole).removeprefix("<|end|>")
    if (hint is None) != (len(turns) == 1):
        return "a second try after a right first one, or none after a wrong one"
    if hint and rest.removesuffix("<|end|>") != f"<|user|>{hint}<|end|><|assistant|>{replies[1]}":
        return "not what the keeper says"
    return "" if abs(row["pay"] - game.pay(asks[ask], replies)) < 1e-9 else "another pay"


def episodes(game, file: str, least: str = "1") -> bool:
    """Every row, and some variety."""
    asks, rows = {row["ask"]: row["total"] for row in jsonl("lantern_asks.jsonl")}, jsonl(file)
    tokenizer = AutoTokenizer.from_pretrained("tiny_lm")
    faults = [f"row {i}: {text}" for i, row in enumerate(rows, 1) if (text := fault(row, tokenizer, game, asks))]
    print("; ".join(faults[:3]) or f"{len(rows)} episodes")
    return not faults and len(rows) >= int(least) and len({tuple(row["ids"]) for row in rows}) > len(rows) / 2


def mean_pay(game, folder: str) -> float:
    """Played greedily, the tokens of the first turn kept as they are."""
    (model, tokenizer), rows = load(folder), jsonl("lantern_asks.jsonl")
    texts = [opened(tokenizer, [{"role": "user", "content": row["ask"]}]) for row in rows]
    replies = [[tokenizer.decode(ids, skip_special_tokens=True)] for ids in say(model, tokenizer, texts)]
    open_games = [i for i, row in enumerate(rows) if game.keeper(row["total"], replies[i][0])]
    further = []
    for i in open_games:
        hint = opened(tokenizer, [{"role": "user", "content": game.keeper(rows[i]["total"], replies[i][0])}])
        further.append(f"{texts[i]}{replies[i][0]}<|end|>{hint}")
    for i, ids in zip(open_games, say(model, tokenizer, further), strict=True):
        replies[i].append(tokenizer.decode(ids, skip_special_tokens=True))
    return sum(game.pay(row["total"], said) for row, said in zip(rows, replies, strict=True)) / len(rows)


def pays(game) -> bool:
    """Both models, played anew."""
    reported = json.loads(Path("lantern.json").read_text(encoding="utf-8"))
    actual = {"before": mean_pay(game, "tiny_lm"), "after": mean_pay(game, "lantern")}
    print(f"reported {reported}, recomputed {actual}")
    true = all(abs(reported[name] - value) <= TOLERANCE for name, value in actual.items())
    return true and actual["after"] >= actual["before"] + LEAST_GAIN


if __name__ == "__main__":
    sys.path.insert(0, str(Path.cwd()))
    import lantern_game

    sys.exit(not {"episodes": episodes, "pays": pays}[sys.argv[1]](lantern_game, *sys.argv[2:]))
