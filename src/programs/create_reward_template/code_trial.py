"""The programs that the shortest code reward is tried on."""

from parts.foundation.messages import UserError
from parts.rewards.attacks import TEST_OF_ATTACKS, attack_programs, called_on_programs

TRIAL_S = 120  # seconds that a trial may take: 4 are usual, nearly all of them for the endless loop
# what the attacks of the sandbox's own tests say
HOLDS = (
    "endless loops, exits with success, objects equal to everything, forged output, patched judges, killed parents, "
    "processes and files left behind, files deleted, changed and read, network, secrets of the environment, memory, "
    "much output"
)
NOT_AGAINST = (
    "weak tests; tests that take the program's own word (PAY_WEAK_TESTS); secrets in Python's library folders; holes "
    "in the kernel"
)
RIGHT_AT_0 = (
    "programs that need processes, network or files, more than {timeout_s:g} s a {per} or {memory_mb} MiB; tests that "
    "compare two objects of the program, pass it a function that reads other names, or capture what it prints"
)


def tried_on_programs(args) -> dict:
    """What the written reward pays for right and for hostile programs, and what holds of it.

    Raises:
        UserError: it raised, as it does where nothing isolates programs.
    """
    kinds, names, codes = map(list, zip(*attack_programs(), strict=True))
    row = {"prompt": [{"role": "user", "content": ""}], args.gold_column or "tests": [TEST_OF_ATTACKS]}
    told = called_on_programs(str(args.output.resolve()), args.name, row, codes, TRIAL_S)
    if "ended" in told:
        return {"ready": False, "ended": told["ended"]}
    if "raised" in told:
        raise UserError(f"got {told['raised']} from {args.output}; nothing is written; try sandbox.py --report")
    tried = list(zip(kinds, names, told["scores"], strict=True))
    hostile = [name for kind, name, _ in tried if kind == "hostile"]
    missed = [name for kind, name, score in tried if kind == "right" and score != 1.0]
    paid = [name for kind, name, score in tried if kind == "hostile" and score]
    report = {"ready": not paid and not missed, "right_programs": kinds.count("right"), "not_paid_of_them": missed}
    report |= {"hostile_programs": hostile, "paid_of_them": paid, "isolated": told["isolated"]}
    return report | {"holds_against": HOLDS, "not_against": NOT_AGAINST, "right_but_0": RIGHT_AT_0.format(**vars(args))}
