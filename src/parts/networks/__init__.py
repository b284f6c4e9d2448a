"""Networks: loading, adapters, batches, caches and the forward pass."""

ROOMS = (
    "whole_models",
    "precision",
    "adapters",
    "tokenizers",
    "models",
    "batches",
    "key_cache",
    "forward",
    "faster_layers",
    "cache_probe",
)
