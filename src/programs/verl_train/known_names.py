"""The names in verl's configuration where verl is not installed, from assets/verl_keys.txt."""

from parts.data.verl_keys import NAMES_FILE, known_names
from parts.foundation.messages import suggest
from programs.verl_train.hydra import Override
from programs.verl_train.settings import VERL


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
