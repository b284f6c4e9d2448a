"""The names in verl's configuration where verl is not installed, from assets/verl_keys.txt."""

from parts.foundation.bundle import BUNDLE
from parts.foundation.messages import suggest
from programs.verl_train.hydra import Override
from programs.verl_train.settings import VERL

NAMES_FILE = BUNDLE / "assets" / "verl_keys.txt"


def known_names(engine: str) -> set[str]:
    """Every key of verl's configuration with a model_engine; none for an engine that the file does not have."""
    found, has_engine = set(), False
    for line in NAMES_FILE.read_text(encoding="utf-8").splitlines()[1:]:
        where, section, *names = line.split()
        has_engine = has_engine or where == engine
        if where in ("*", engine):
            found |= {f"{section}.{name}".lstrip(".") for name in names}
    return found if has_engine else set()


def name_findings(overrides: list[Override]) -> list[str] | None:
    """Findings about keys that verl's configuration does not have, or has where `+` adds; None where it is not known.

    By Hydra's rules: KEY=VALUE and ~KEY want a key that is there, +KEY=VALUE one that is not (a dictionary may be
    added to), ++KEY=VALUE takes either. Values are not looked at, nor are choices of groups (with @ or /) and hydra.*.
    """
    engines = [str(o.value) for o in overrides if o.key == "model_engine"] or ["dp"]
    known, found = known_names(engines[-1]) if NAMES_FILE.is_file() else set(), []
    if not known:
        return None
    for override in overrides:
        text = override.text()
        key, bare = text.partition("=")[0], text.partition("=")[0].lstrip("+~")
        if key.startswith("++") or bare.startswith("hydra.") or "@" in bare or "/" in bare:
            continue
        there = bare in known
        if key.startswith("+") and there and not text.partition("=")[2].lstrip("'\"").startswith("{"):
            found.append(f"key: got {text} ({override.source}), a key that verl {VERL} has; expected it without the +")
        if not key.startswith("+") and not there:
            what = f"key: got {text} ({override.source}), a key that verl {VERL} does not have"
            found.append(what + (suggest(bare, sorted(known)) or "; expected one of its own; a new one takes a +"))
    return found
