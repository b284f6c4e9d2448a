"""A sum, at most two tries. After a wrong first try the keeper says whether it was too dim or too bright."""

import re


def number(reply):
    match = re.fullmatch(r"\s*<answer>\s*(\d+)\s*</answer>\s*", reply)
    return int(match[1]) if match else None


def keeper(total, reply):
    """None where the reply is right, else what the keeper says."""
    said = number(reply)
    if said == total:
        return None
    return "no light" if said is None else "too dim" if said < total else "too bright"


def pay(total, replies):
    """1 for a right first try, 0.6 for a right second one, else 0."""
    rights = [number(reply) == total for reply in replies]
    return 1.0 if rights[0] else 0.6 if len(rights) == 2 and rights[1] else 0.0
