"""The numerics of learning: advantages, losses, KL, gradients."""

ROOMS = (
    "losses",
    "advantages",
    "presets",
    "own_functions",
    "optimizer",
)
