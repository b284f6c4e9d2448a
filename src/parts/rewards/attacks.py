"""Right and hostile programs on which code rewards are tried."""

import re

from parts.foundation.file_text import file_text

# What is tried with the test `assert f(2) == 4`. A hostile program pays only where what it tries succeeds: @MARK@ is a
# file that it must not touch, @PORT@ a server that it must not reach, @NAME@ the name of a process that it leaves.
ATTACKS = file_text("files/attacks.txt")
TEST_OF_ATTACKS = "assert f(2) == 4"


def attack_programs() -> list[tuple[str, str, str]]:
    """(right or hostile, name, code) of each program."""
    found = re.split(r"^# (right|hostile): (.*)\n", ATTACKS, flags=re.MULTILINE)[1:]
    return [(kind, name, code.strip()) for kind, name, code in zip(found[::3], found[1::3], found[2::3], strict=True)]
