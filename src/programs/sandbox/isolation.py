"""What the sandbox keeps programs from on this machine: the report, and the refusal where that is too little."""

import os
import warnings

from programs.sandbox.messages import LINUX, SandboxError
from programs.sandbox.process import DEFAULT, Sandbox

WARNED = set()


def sandbox_report(sandbox: Sandbox | None = None) -> dict:
    """Which layers are in force, why others are not, and what a confined process was found to be kept from."""
    sandbox = sandbox or DEFAULT
    isolated = sandbox.isolated()
    layers = dict(sandbox.report["layers"])
    if layers["landlock"] == "on":
        layers["landlock"] = f"on (version {sandbox.report['abi']})"
    always = ("rlimits", "environment", "scratch", "output cap", "process tree", "wall clock")
    return {"isolated": isolated, "layers": {**layers, **dict.fromkeys(always, "on")}}


def check_isolation(sandbox: Sandbox, strict: bool) -> None:
    """Warn once of what programs are not kept from; if strict, refuse to run without network and file isolation."""
    missing = [name for name, kept in sandbox.isolated().items() if not kept]
    if not missing:
        return
    exposed = os.getuid() == 0 and "files" in missing and sandbox.report["layers"]["user"] != "on"
    off = ", ".join(f"{name} ({why})" for name, why in sandbox.report["layers"].items() if why != "on")
    problem = f"sandbox: got no protection of: {', '.join(missing)}; layers missing here: {off}"
    if strict and set(missing) & {"network", "files"}:
        raise SandboxError(
            f"{problem}; expected network and file isolation (strict); try Linux with Landlock and seccomp"
        )
    if exposed and "user" not in sandbox.disable:
        raise SandboxError(f"{problem}; expected isolation, or another user, for model code; try an ordinary user")
    if problem not in WARNED:
        WARNED.add(problem)
        warnings.warn(problem, RuntimeWarning, stacklevel=3)


def available_cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if LINUX else os.cpu_count() or 1
