"""The numerics of learning: advantages, losses, KL, gradients."""

ROOMS = (
    "losses",
    "idle_settings",
    "advantages",
    "presets",
    "trainer_settings",
    "own_functions",
    "optimizer",
    "oracles",
)
