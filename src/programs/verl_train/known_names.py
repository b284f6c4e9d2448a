"""The names in verl's configuration where verl is not installed, from assets/verl_keys.txt."""

from parts.foundation.bundle import BUNDLE
from parts.foundation.messages import suggest
from programs.verl_train.hydra import Override
from programs.verl_train.settings import VERL

NAMES_FILE = BUNDLE / "assets" / "verl_keys.txt"


def known_names(engine: str) -> set[str]:
    """Every key of verl's configuration with a model_engine; none for an engine that the file does not have."""
    names, has_engine = set(), False
    for line in NAMES_FILE.read_text(encoding="utf-8").splitlines()[1:]:
        where, section, *leaves = line.split()
        has_engine = has_engine or where == engine
        if where in ("*", engine):
            names |= {f"{section}.{leaf}".lstrip(".") for leaf in leaves}
    return names if has_engine else set()


def name_findings(overrides: list[Override]) -> list[tuple[Override, str]] | None:
    """Overrides of keys that verl's configuration does not have, or has where `+` adds; None for an unknown engine.

    By Hydra's rules: KEY=VALUE and ~KEY want a key that is there, +KEY=VALUE one that is not (a dictionary may be
    added to), ++KEY=VALUE takes either. Values are not looked at, nor are choices of groups (with @ or /) and hydra.*.
    """
    engines = [str(o.value) for o in overrides if o.key == "model_engine"] or ["dp"]
    known, findings = known_names(engines[-1]) if NAMES_FILE.is_file() else set(), []
    if not known:
        return None
    for override in overrides:
        key, _, value = override.text().partition("=")
        bare = key.lstrip("+~")
        if key.startswith("++") or bare.startswith("hydra.") or "@" in bare or "/" in bare:
            continue
        got = f"key: got {override.text()} ({override.source}), a key that verl {VERL}"
        if key.startswith("+") and bare in known and not value.lstrip("'\"").startswith("{"):
            findings.append((override, f"{got} has; expected it without the +"))
        if not key.startswith("+") and bare not in known:
            near = suggest(bare, sorted(known)) or "; expected one of its own; a new one takes a +"
            findings.append((override, f"{got} does not have{near}"))
    return findings
