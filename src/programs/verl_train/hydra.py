"""Overrides in Hydra's grammar, and those whose keys verl does not have, from assets/verl_keys.txt."""

import re
from dataclasses import dataclass

from parts.data.verl_keys import NAMES_FILE, known_names
from parts.foundation.messages import suggest
from programs.verl_train.names import ATTENTION, COMPUTE, KWARGS, OPTIM
from programs.verl_train.settings import VERL

# keys that verl reads and its configuration files leave out
ADDED = {
    ATTENTION,
    "reward.reward_kwargs.missing_eos_penalty",
    "reward.reward_kwargs.overlong_share",
    "ray_kwargs.ray_init.address",
    "data.apply_chat_template_kwargs",  # there, and empty: `+` lets it take names
    *(f"{prefix}.override_optimizer_config" for prefix in (OPTIM, "critic.optim")),  # there, and null
    "critic.ppo_infer_max_token_len_per_gpu",  # the one that the default trainer reads, for updates too
}


@dataclass(frozen=True)
class Override:
    """One Hydra override and the setting, or the line of a file, that it comes from."""

    key: str
    value: object
    source: str
    is_written: bool = False  # by the user, in Hydra's grammar; without a value it is ~KEY

    def text(self) -> str:
        """KEY=VALUE in Hydra's grammar; `+` where verl's configuration has no such key."""
        if self.is_written:
            return self.key if self.value is None else f"{self.key}={self.value}"
        is_added = self.key in ADDED or self.key.startswith(f"{KWARGS}.") or self.key.endswith(COMPUTE)
        return f"{'+' if is_added else ''}{self.key}={hydra_value(self.value)}"


def hydra_value(value) -> str:
    """A value in Hydra's override grammar; text that could be read as something else is quoted."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "True", False: "False"}[value]
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, list):
        return f"[{','.join(map(hydra_value, value))}]"
    if isinstance(value, dict):
        return f"{{{','.join(f'{key}:{hydra_value(item)}' for key, item in value.items())}}}"
    words = ("null", "true", "false", "nan", "inf")
    if re.fullmatch(r"[A-Za-z_/][\w./-]*", value, re.ASCII) and value.lower() not in words:
        return value
    escaped = re.sub(r"(\\+)(?='|$)", r"\1\1", value)  # Hydra undoubles backslashes before a quote only
    return "'" + escaped.replace("'", "\\'") + "'"


def name_findings(overrides: list[Override]) -> list[tuple[Override, str]] | None:
    """Overrides of keys that verl's configuration does not have, or has where `+` adds; None for an unknown engine.

    Hydra's KEY=VALUE and ~KEY need an existing key, +KEY=VALUE a new one (or a dictionary), ++KEY=VALUE takes either.
    Values, choices of groups (with @ or /) and hydra.* are not checked.
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
            near = suggest(bare, sorted(known)) or "; expected a key of verl; a new key takes a +"
            findings.append((override, f"{got} does not have{near}"))
    return findings
