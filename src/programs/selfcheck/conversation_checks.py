"""Checks of conversations: what was sampled stays, it alone is trained, nothing goes to another conversation.

The trainer plays with an environment, and mostly with answers, of selfcheck's own, so what each token is, is known.
"""

import copy
from dataclasses import dataclass

from programs.selfcheck.input_checks import turn_end
from programs.selfcheck.scripted_talks import (
    NOTED,
    PLAYED,
    Record,
    number_of,
    numbers_in,
    odd_answers,
    thought_answers,
)
from programs.selfcheck.subject import Subject, check


@dataclass
class Played:
    """One play: what the trainer did, and the conversations of the batch that it made."""

    record: Record
    rows: list[list[int]]  # ids of each conversation, without pads
    masks: list[list[int]]  # of each, likewise
    logprobs: list[list[float]]
    outside: int  # tokens of the mask at pads
    scores: list[float]
    numbers: list[int | None]  # which conversation each is

    def turns(self, row: int) -> list:
        """The answers of a row of the batch, as they were asked for and given."""
        return self.record.turns.get(self.numbers[row], [])


def end_of_turn(s: Subject) -> int:
    """The token that ends an answer: the one by which the template does it, where that is an end token."""
    ends = [*s.models.eos_ids]
    return next((i for i in turn_end(s.models.tokenizer) if i in ends), ends[0])


def played(s: Subject, record: Record) -> Played:
    """Let the trainer play two conversations of each of two rows, whose objects it gets twice, as groups have them."""
    few = [copy.deepcopy(row) for row in s.trainer.rows[:2]]
    for row in few:
        row["columns"][NOTED] = []
    rows = [row for row in few for _ in range(PLAYED // len(few))]
    batch, scores = s.trainer.play(record, rows)
    real = [mask.bool() for mask in batch["attention_mask"].cpu()]
    columns = [[x[at].tolist() for x, at in zip(batch[name].cpu(), real, strict=True)] for name in NAMES]
    outside = int((batch["response_mask"].cpu() * (1 - batch["attention_mask"].cpu())).ne(0).sum())
    numbers = [number_of(s.models.tokenizer.decode(ids)) for ids in columns[0]]
    if not record.turns:
        raise ValueError("the trainer sampled nothing by the sampler that it is checked with; see --contract")
    if len(numbers) != len(rows):
        raise ValueError(f"{len(rows)} rows gave {len(numbers)} conversations")
    return Played(record, *columns, outside, [float(x) for x in scores], numbers)


NAMES = ("input_ids", "response_mask", "rollout_logprobs")


def odd_play(s: Subject, paid: int | None = None) -> Played:
    """A play in which the text of an answer, encoded anew, has other ids."""
    tokenizer = s.models.tokenizer
    return played(s, Record(tokenizer, odd_answers(tokenizer, end_of_turn(s)), paid))


def first_difference(one: list[int], two: list[int]) -> int:
    """The first place at which two lists differ."""
    return next((i for i, (a, b) in enumerate(zip(one, two, strict=False)) if a != b), min(len(one), len(two)))


def broken_turn(s: Subject, play: Played, row: int) -> str:
    """How a conversation of the batch departs from what was sampled; "" where it does not."""
    turns, ids, decode = play.turns(row), play.rows[row], s.models.tokenizer.decode
    if not turns:
        return "it holds no word of its conversation: what reset returns is to stand after the prompt"
    for i, turn in enumerate(turns):
        expected = turn.prompt + turn.ids
        follows, place = (turns[i + 1].prompt, f"the prompt of turn {i + 2}") if turns[i + 1 :] else (ids, "the batch")
        if follows[: len(expected)] == expected:
            continue
        at = first_difference(expected, follows)
        where = f"of turn {i + 1}" if at >= len(turn.prompt) else "before it"
        start = len(turn.prompt) if at >= len(turn.prompt) else max(0, at - 2)
        one, two = (x[start : start + max(8, at - start + 4)] for x in (expected, follows))
        text = f"{place} departs from what was sampled, {where}: {one} {decode(one)!r} is {two} {decode(two)!r} there"
        same = decode(follows).startswith(decode(expected))
        return f"{text}; the text is the same: it was encoded anew" if same else text
    return ""


@check(
    "append the ids that were sampled to those before them, and what the chat template has between two answers after "
    "them; neither decode and encode an answer, nor render the conversation anew",
    moved=False,
    plays=True,
)
def turn_ids(s: Subject):
    """Ids that were sampled stay in place, in the next turn's prompt and in the batch."""
    play = odd_play(s)
    count = sum(len(turns) for turns in play.record.turns.values())
    faults = [f"conversation {i}: {text}" for i in range(PLAYED) if (text := broken_turn(s, play, i))]
    if faults:
        return False, f"{faults[0]} ({len(faults)} of {PLAYED} conversations)"
    if count == PLAYED:
        return None, "no conversation has a second answer: the trainer's limits allow one"
    odd = sum(anew(s.models.tokenizer, turn.ids) != turn.ids for turns in play.record.turns.values() for turn in turns)
    return True, f"{count} answers of {PLAYED} conversations are as sampled; {odd} of them, encoded anew, are other ids"


def anew(tokenizer, ids: list[int]) -> list[int]:
    """The ids of the text of ids."""
    return tokenizer.encode(tokenizer.decode(ids), add_special_tokens=False)


def expected_mask(play: Played, row: int) -> list[int]:
    """1 on what was sampled."""
    mask = [0] * len(play.rows[row])
    for turn in play.turns(row):
        mask[len(turn.prompt) : len(turn.prompt) + len(turn.ids)] = [1] * len(turn.ids)
    return mask


@check(
    "let response_mask be 1 on sampled tokens alone, an answer's end token among them, and 0 on the prompt, on what "
    "tools and environment say and on the template's tokens between two answers; rollout_logprobs stand there, too",
    moved=False,
    plays=True,
)
def turn_mask(s: Subject):
    """The mask is 1 on what was sampled and on nothing else, and each of these tokens has its own log-prob."""
    play, tokenizer = odd_play(s), s.models.tokenizer
    faults, count = [f"1 on {play.outside} pads"] if play.outside else [], 0
    for row, ids in enumerate(play.rows):
        if broken_turn(s, play, row):
            return None, "what was sampled cannot be found in the batch: see turn_ids"
        mask, expected = [int(x != 0) for x in play.masks[row]], expected_mask(play, row)
        count += sum(expected)
        leaked = [i for i, (a, b) in enumerate(zip(mask, expected, strict=True)) if a > b]
        lost = [i for i, (a, b) in enumerate(zip(mask, expected, strict=True)) if a < b]
        if leaked or lost:
            text = tokenizer.decode([ids[i] for i in leaked[:40]])
            wrong = [f"1 on {len(leaked)} tokens that were not sampled ({text!r})"] if leaked else []
            wrong += [f"0 on {len(lost)} tokens that were sampled"] if lost else []
            faults.append(f"conversation {row}: {', '.join(wrong)}")
        else:
            faults += wrong_logprobs(play, row)
    if faults:
        return False, "response_mask: " + "; ".join(faults)
    return True, f"{count} sampled tokens in {PLAYED} conversations, and no other, with the sampler's log-probs"


def wrong_logprobs(play: Played, row: int) -> list[str]:
    """What is wrong with a conversation's log-probs as the sampler saw them."""
    given = [x for turn in play.turns(row) for x in turn.logprobs]
    kept = [x for x, sampled in zip(play.logprobs[row], expected_mask(play, row), strict=True) if sampled]
    wrong = sum(abs(a - b) > 1e-5 for a, b in zip(given, kept, strict=True))
    return [f"conversation {row}: right, but rollout_logprobs are others' at {wrong} of its tokens"] if wrong else []


@check(
    "ask each conversation's own environment for its return, once its last answer was heard, and keep scores in the "
    "order of the batch",
    moved=False,
    plays=True,
)
def turn_rewards(s: Subject):
    """A return that changes, changes the score of its own conversation and no other."""
    usual, faults = odd_play(s), []
    for paid in range(PLAYED):
        more = odd_play(s, paid)
        if None in more.numbers or sorted(more.numbers) != [*range(PLAYED)]:
            return None, "the batch's conversations cannot be told apart: see turn_ids"
        changed = [i for i, (a, b) in enumerate(zip(usual.scores, more.scores, strict=True)) if abs(a - b) > 1e-6]
        row = more.numbers.index(paid)
        if changed != [row]:
            names = ", ".join(map(str, changed)) or "none"
            faults.append(f"of conversation {row}: score {names} changes with its return")
    early = ", ".join(map(str, sorted(usual.record.early)))
    if early:
        faults.append(f"conversation {early}: asked for the return before its last answer was heard")
    return not faults, "; ".join(faults) or f"{PLAYED} returns, each in the score of its own conversation"


@check(
    "make an environment and a copy of the row for each conversation: what one changes, no other may see",
    moved=False,
    plays=True,
)
def turn_state(s: Subject):
    """Each conversation has its own environment, row, prompt and replies."""
    play, tokenizer = odd_play(s), s.models.tokenizer
    record, faults = play.record, []
    for one, other in record.reused:
        faults.append(f"one environment object serves conversations {one} and {other} at once")
    for number, others in enumerate(record.rows):
        if others:
            names = " and ".join(map(str, others))
            faults.append(f"reset of conversation {number} got columns that reset of {names} had changed")
    for number, turns in sorted(record.turns.items()):
        strangers = numbers_in(tokenizer.decode(turns[-1].prompt)) - {number}
        if strangers:
            faults.append(f"conversation {number} is told what is said in {', '.join(map(str, sorted(strangers)))}")
        faults += wrong_ears(record, tokenizer, number)
    return not faults, "; ".join(dict.fromkeys(faults)) or f"{PLAYED} environments, rows and prompts, none shared"


def wrong_ears(record: Record, tokenizer, number: int) -> list[str]:
    """Answers that another environment heard, and those that none did."""
    turns, heard = record.turns[number], record.heard.get(number, [])
    said = {
        n: [squeezed(tokenizer.decode(t.ids, skip_special_tokens=True)) for t in x] for n, x in record.turns.items()
    }
    others = [
        n for n in sorted(said) for text in heard if squeezed(text) in said[n] and squeezed(text) not in said[number]
    ]
    if others:
        return [
            f"the environment of conversation {number} heard answers of {', '.join(map(str, dict.fromkeys(others)))}"
        ]
    text = f"of {len(turns)} answers of conversation {number} its environment heard {len(heard)}"
    return [text] if len(turns) != len(heard) else []


def squeezed(text: str) -> str:
    """A text without white space."""
    return "".join(text.split())


# drops what was thought in all answers, put before a template's own text
FORGETFUL = (
    "{%- set kept = namespace(messages=[]) -%}{%- for m in messages -%}{%- if m.role == 'assistant' and m.content is "
    "string -%}{%- set kept.messages = kept.messages + [dict(m, content=m.content.split('</think>')[-1].lstrip())] -%}"
    "{%- else -%}{%- set kept.messages = kept.messages + [m] -%}{%- endif -%}{%- endfor -%}"
    "{%- set messages = kept.messages -%}"
)


@check(
    "before a run, put a chat together turn by turn, with thoughts where the template knows them, compare it with what "
    "the template writes for the whole, and stop where they differ, as multi_turn.py's check_template does",
    moved=False,
    plays=True,
)
def turn_template(s: Subject):
    """Turn by turn reads as the template writes the whole; a template for which that cannot be is noticed."""
    unused = s.trainer.uncalled()
    if unused:
        return False, unused
    fault = rewritten(s) if s.trainer.talks else ""
    if fault:
        return False, fault
    tokenizer, template = s.models.tokenizer, s.models.tokenizer.chat_template
    text = "turns read as the template writes them" if s.trainer.talks else "the environment of the run has no reply"
    try:
        tokenizer.chat_template = FORGETFUL + tokenizer.get_chat_template()
        rendered(s, [{"role": "user", "content": "?"}, {"role": "assistant", "content": "<think></think>!"}])
        fault = rewritten(s, thinks=True)
    except (Exception, SystemExit):
        return True, f"{text}; a template that drops what was thought is refused"
    finally:
        tokenizer.chat_template = template
    if fault:
        return False, f"a template that drops what was thought is not noticed: {fault}"
    return True, f"{text}, also with one that drops what was thought"


def rewritten(s: Subject, thinks: bool | None = None) -> str:
    """Where the last turn's prompt is another than what the template writes for the conversation; "" if nowhere."""
    tokenizer = s.models.tokenizer
    prompt = tokenizer.decode(s.trainer.rows[0]["prompt_ids"]).rstrip()
    thinks = "</think>" in tokenizer.get_chat_template() if thinks is None else thinks
    thinks, begun = thinks and not prompt.endswith("</think>"), prompt.endswith("<think>")  # it may be told not to
    play = played(s, Record(tokenizer, thought_answers(tokenizer, end_of_turn(s), thinks, begun)))
    for number, turns in sorted(play.record.turns.items()):
        asked, follow_up = messages_of(s, play.record, number, "<think>" if thinks and begun else "")
        first, last = (squeezed(tokenizer.decode(turns[i].prompt)) for i in (0, -1))
        begin, whole = (squeezed(rendered(s, chat)) for chat in (asked, asked + follow_up))
        got, expected = last[len(first) :], whole[len(begin) :]
        if not whole.startswith(begin) or got != expected:
            at = max(0, first_difference([*got], [*expected]) - 8)
            return (
                f"turn {len(turns)} of conversation {number} goes on from {got[at : at + 60]!r}, where the template "
                f"writes {expected[at : at + 60]!r}"
            )
    return ""


def messages_of(s: Subject, record: Record, number: int, begun: str) -> tuple[list[dict], list[dict]]:
    """A conversation's prompt, and what follows up to its last answer; `begun`: what the template puts before one."""
    end, follow_up = end_of_turn(s), []
    asked = copy.deepcopy(s.trainer.chat_of(s.trainer.rows[number // 2]))
    asked[-1]["content"] += f" [talk {number}]"
    for turn, said in zip(record.turns[number][:-1], record.said.get(number, []), strict=False):
        text = begun + s.models.tokenizer.decode([i for i in turn.ids if i != end])
        follow_up += [{"role": "assistant", "content": text}, {"role": "user", "content": said}]
    return asked, follow_up


def rendered(s: Subject, chat: list[dict]) -> str:
    """A chat up to the next answer, as text."""
    settings = {"tokenize": False, "add_generation_prompt": True, **s.trainer.template_settings()}
    return s.models.tokenizer.apply_chat_template(chat, **settings)
