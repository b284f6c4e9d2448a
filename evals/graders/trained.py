"""Exit 0 if a model that transformers loads lies in FOLDER or below it, and its weights are not START's.

python evals/graders/trained.py FOLDER START
"""

import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM


def main(folder: str, start: str = "") -> int:
    """Compare the first model found."""
    found = sorted(path.parent for path in Path(folder).rglob("config.json") if any(path.parent.glob("*.safetensors")))
    if not found:
        print(f"no model in {folder}")
        return 1
    new = AutoModelForCausalLM.from_pretrained(str(found[-1]), dtype=torch.float32).state_dict()
    if not start:
        print(f"{found[-1]} loads")
        return 0
    old = AutoModelForCausalLM.from_pretrained(start, dtype=torch.float32).state_dict()
    moved = max((new[name] - old[name]).abs().max().item() for name in old)
    print(f"{found[-1]}: the largest change of a weight is {moved:.2e}")
    return int(not 0 < moved < float("inf"))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
