"""Networks: loading, adapters, caches, and the forward pass."""

ROOMS = (
    "numerics",
    "precision",
    "adapters",
    "tokenizers",
    "models",
    "key_cache",
    "group_cache",
    "shared_prompts",
    "forward",
    "batches",
    "cache_probe",
)
