"""Print the overrides that a shell script gives to verl's trainer, a line each, with the values of its variables.

The script is read, not run. Exit 1 where one matches the pattern.

python evals/graders/verl_words.py run.sh [--without PATTERN]
"""

import argparse
import importlib.util
import re
import sys
from pathlib import Path

SCRIPT = Path(__file__).resolve().parent.parent.parent / "scripts" / "verl_train.py"


def main() -> int:
    """Read and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("file")
    parser.add_argument("--without", default="(?!)")
    args = parser.parse_args()
    spec = importlib.util.spec_from_file_location("verl_train", SCRIPT)
    sys.modules["verl_train"] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.say = lambda text: None
    words = [override.text() for override in module.read_overrides(args.file)]
    print("\n".join(words))
    return int(any(re.match(args.without, word) for word in words))


if __name__ == "__main__":
    sys.exit(main())
