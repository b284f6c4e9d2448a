"""Advantage estimators and policy losses of the user's own, `FILE.py:function`, in the tables of the known ones."""

import inspect
import traceback
from pathlib import Path

from parts.foundation.messages import UserError, need
from parts.foundation.processes import torch
from parts.learning.advantages import ADVANTAGES
from parts.learning.losses import LOSSES, PolicyLoss
from parts.learning.presets import GROUPED, is_own
from parts.rewards.reward_forms import import_file

KNOWN = {  # what such a function may take by name
    "advantage": ("scores", "groups", "rewards", "mask", "config"),
    "loss": ("logprobs", "old_logprobs", "advantages", "mask", "config"),
}


class NamesOrFiles(list):
    """The names of a choice, beside which any `FILE.py:function` is one."""

    def __contains__(self, name) -> bool:
        return super().__contains__(name) or is_own(name)


class OwnFunction:
    """A user's function, called with those of the arguments that it names; its result is checked at each call.

    `spec` names it in messages.
    kind `advantage`: (scores [B], groups [B], rewards [B, T], mask [B, T], config) -> advantages [B] or [B, T].
    kind `loss`: (logprobs, old_logprobs, advantages, mask, all [B, T], config) -> loss [B, T] of each token, or that
    and [B, T] with 1 where a bound changed it.

    Raises:
        UserError: it needs what there is not, it raises, or its result has another shape, or a
        gradient where it should have none, or none where it should have one, or advantages are not finite. A loss that
        is not is left to the trainer, which leaves such updates out and counts them.
    """

    def __init__(self, kind: str, spec: str, function):
        self.kind, self.spec, self.function, known = kind, spec, function, KNOWN[kind]
        parameters = inspect.signature(self.function).parameters.values()
        unnamed = [p.name for p in parameters if p.kind is p.POSITIONAL_ONLY]
        need(not unnamed, f"got {kind} {spec!r}, which takes {', '.join(unnamed)} by position; try it without the /")
        lacking = [p.name for p in parameters if p.default is p.empty and p.name not in known and p.kind in (0, 1, 3)]
        takes = f"expected parameters among {', '.join(known)}"
        need(not lacking, f"got {kind} {spec!r}, which needs {', '.join(lacking)}; {takes}")
        whole = any(p.kind is p.VAR_KEYWORD for p in parameters)
        self.names = [name for name in known if whole or name in {p.name for p in parameters}]

    def __call__(self, **known):
        """The result of the function, which gets copies: what it changes in place is read again afterwards."""
        copies = {
            name: x.clone() if isinstance(x, torch.Tensor) else x for name, x in known.items() if name in self.names
        }
        try:
            result = self.function(**copies)
        except Exception as error:
            frames = traceback.extract_tb(error.__traceback__)
            code = getattr(inspect.unwrap(self.function), "__code__", None)
            frame = ([f for f in frames if code and f.filename == code.co_filename] or frames)[-1]
            file = "the cell" if "ipykernel_" in frame.filename else Path(frame.filename).name
            where = f"{file}, line {frame.lineno}"
            raise UserError(f"{self.kind} {self.spec} raises {type(error).__name__}: {error} ({where})") from error
        return self.checked_loss(result, known) if self.kind == "loss" else self.checked_advantages(result, known)

    def checked(self, result, shapes: list):
        """The tensor, if it has one of the shapes."""
        kind, shown = f"{self.kind} {self.spec}", " or ".join(str(list(shape)) for shape in shapes)
        need(isinstance(result, torch.Tensor), f"got {type(result).__name__} from {kind}; expected a tensor {shown}")
        need(result.shape in shapes, f"got a tensor {list(result.shape)} from {kind}; expected {shown}")
        return result

    def checked_advantages(self, result, known: dict):
        result = self.checked(result, [known["scores"].shape, known["mask"].shape])
        need(bool(result.isfinite().all()), f"got NaN or infinite advantages from {self.spec}; expected finite ones")
        need(not result.requires_grad, f"got advantages with a gradient from {self.spec}; try .detach()")
        return result.to(known["rewards"].dtype)

    def checked_loss(self, result, known: dict):
        """(loss, clipped), as the trainer takes them."""
        loss, clipped = result if isinstance(result, tuple) and len(result) == 2 else (result, None)
        loss = self.checked(loss, [known["logprobs"].shape])
        lost = known["logprobs"].requires_grad and not loss.requires_grad
        need(not lost, f"got a loss without a gradient from {self.spec}; try logprobs without .detach()")
        clipped = known["mask"] * 0.0 if clipped is None else self.checked(clipped, [known["logprobs"].shape])
        return loss, clipped.detach().float()


def own_function(kind: str, spec: str) -> OwnFunction:
    """The function that FILE.py:function names; UserError where there is none, or it is not one of its kind."""
    file, _, name = spec.rpartition(":")
    need(Path(file).is_file(), f"got {kind} {spec!r}: no file {file!r}; expected FILE.py:function")
    function = getattr(import_file(kind, spec, file), name, None)
    need(callable(function), f"got {kind} {spec!r}: {file} has no function {name!r}; expected one that it defines")
    return OwnFunction(kind, spec, function)


def enter_own(config) -> None:
    """Enter what `advantage` and `loss` name as FILE.py:function into ADVANTAGES, GROUPED and LOSSES."""
    if is_own(config.advantage) and config.advantage not in ADVANTAGES:
        function = ADVANTAGES[config.advantage] = own_function("advantage", config.advantage)
        if "groups" in function.names:
            GROUPED.add(config.advantage)
    if is_own(config.loss) and config.loss not in LOSSES:
        LOSSES[config.loss] = PolicyLoss(own_function("loss", config.loss), trains_zero_advantage=True)
