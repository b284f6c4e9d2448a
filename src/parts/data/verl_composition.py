"""Compose the installed verl's configuration from overrides by Hydra, and check it."""

from pathlib import Path

RAY_CPUS = "ray_kwargs.ray_init.num_cpus"
COUNTS = (  # keys whose values verl computes with
    *("trainer.nnodes", "trainer.n_gpus_per_node", "trainer.save_freq", "trainer.total_epochs", RAY_CPUS),
    *("data.train_batch_size", "transfer_queue.backend.SimpleStorage.num_data_storage_units"),
)


def composition(overrides: dict[str, str], name: str = "ppo_trainer"):
    """Compose verl's configuration from {override: origin}: (configuration or None, findings on what Hydra refuses)."""
    import verl
    from hydra import compose, initialize_config_dir
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    folder, got = str(Path(verl.__file__).parent / "trainer" / "config"), "overrides"
    try:
        for text, source in overrides.items():
            got = f"{text} (from {source})"
            OverridesParser.create().parse_override(text)
        got = "overrides"
        with initialize_config_dir(config_dir=folder, version_base=None):
            return compose(name, overrides=[*overrides]), []
    except (HydraException, ValueError) as error:
        return None, [f"override: got {got}, which verl refuses: {' '.join(str(error).split())[:300]}"]


def missing_values(composed) -> list[str]:
    """Findings for keys without a value, or else for counts that are not integers."""
    from omegaconf import OmegaConf

    judge = composed.reward.reward_model.enable  # without a reward model its settings may be missing
    missing = sorted(k for k in OmegaConf.missing_keys(composed) if judge or not k.startswith("reward.reward_model."))
    if missing:
        return [f"missing: got no {key}; expected it, as verl has no default" for key in missing]
    counts = {key: OmegaConf.select(composed, key) for key in COUNTS}
    wrong = {k: n for k, n in counts.items() if not isinstance(n, int) and (n is not None or k != RAY_CPUS)}
    return [f"number: got {key}={value}; expected an integer" for key, value in wrong.items()]
