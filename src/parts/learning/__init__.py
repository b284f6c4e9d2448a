"""The numerics of learning: KL, advantages, losses, gradients."""

ROOMS = (
    "kl",
    "advantages",
    "losses",
    "aggregation",
    "shaping",
    "presets",
    "trainer_settings",
    "own_functions",
    "gradient_sums",
    "optimizer",
)
