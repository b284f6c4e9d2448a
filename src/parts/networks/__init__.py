"""Networks: loading, adapters, batches, caches and the forward pass."""

ROOMS = (
    "whole_models",
    "adapters",
    "models",
    "tokenizers",
    "loading",
    "batches",
    "key_cache",
    "forward",
    "faster_layers",
    "cache_probe",
)
