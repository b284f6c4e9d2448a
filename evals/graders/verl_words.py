"""Print the overrides that a shell script gives to verl's trainer, a line each, with the values of its variables.

bash reads the script with a `python3` that prints its arguments; no other command is there to be run. Exit 1 where one
override matches the pattern.

python evals/graders/verl_words.py run.sh [--without PATTERN]
"""

import argparse
import re
import subprocess
import sys

STAND_INS = """
python3() { [ "$1" = -m ] && shift 2; printf '%s\\n' "$@"; }
python() { python3 "$@"; }
command_not_found_handle() { return 0; }
. "$1"
"""


def main() -> int:
    """Read and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("file")
    parser.add_argument("--without", default="(?!)")
    args = parser.parse_args()
    command = ["/bin/bash", "-c", STAND_INS, "verl_words", f"./{args.file}"]
    done = subprocess.run(command, env={"PATH": "/nonexistent"}, capture_output=True, text=True, timeout=60)
    words = [line for line in done.stdout.splitlines() if "=" in line]
    print("\n".join(words))
    return int(any(re.match(args.without, word) for word in words))


if __name__ == "__main__":
    sys.exit(main())
