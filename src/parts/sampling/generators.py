"""The random generators that a user's code may draw from: their states, taken and put back."""

import contextlib
import random
from collections.abc import Iterator


def rng_state() -> dict:
    """State of every random generator that a reward function could use; training itself draws from seeds and steps."""
    import numpy as np
    import torch

    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    return {"python": random.getstate(), "numpy": np.random.get_state(), "torch": torch.get_rng_state(), "cuda": cuda}


def restore_rng(states: dict) -> None:
    """Put the states back; those of GPUs where there are as many as there were."""
    import numpy as np
    import torch

    random.setstate(states["python"])
    np.random.set_state(states["numpy"])
    torch.set_rng_state(states["torch"].cpu())
    if states["cuda"] and torch.cuda.device_count() == len(states["cuda"]):
        torch.cuda.set_rng_state_all([s.cpu() for s in states["cuda"]])


def same_rng(one: dict, other: dict) -> bool:
    """Whether two states are the same: nothing was drawn between them."""
    import numpy as np
    import torch

    pairs = zip([one["torch"], *one["cuda"]], [other["torch"], *other["cuda"]], strict=True)
    numpy = all(np.array_equal(a, b) for a, b in zip(one["numpy"], other["numpy"], strict=True))
    return one["python"] == other["python"] and numpy and all(torch.equal(a, b) for a, b in pairs)


@contextlib.contextmanager
def untouched_generators(seed: int | None = None) -> Iterator[None]:
    """Leave the generators as they were, whatever the block draws from them, or seeds.

    Args:
        seed: 32 bits that they begin with in the block; None lets them go on.
    """
    import numpy as np
    import torch

    states = rng_state()
    try:
        if seed is not None:
            for set_seed in (random.seed, np.random.seed, torch.manual_seed):
                set_seed(seed)
        yield
    finally:
        restore_rng(states)
