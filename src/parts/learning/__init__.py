"""The numerics of learning: advantages, losses, KL, gradients."""

ROOMS = (
    "losses",
    "advantages",
    "presets",
    "trainer_settings",
    "own_functions",
    "optimizer",
)
