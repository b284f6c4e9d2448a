"""What is pinned."""

import contextlib
import re
import sys
from dataclasses import dataclass
from pathlib import Path

from parts.foundation.bundle import BUNDLE
from parts.foundation.messages import need
from programs.generate_dockerfile.choice import WEIGHTS, Choice, choose
from programs.generate_dockerfile.flags import Config
from programs.generate_dockerfile.stacks import IMAGES, WHEELS
from programs.generate_dockerfile.tables import BUILD_PINS


def plain_name(name: str) -> str:
    """A distribution's normalized name, without its extras."""
    return re.sub(r"[-_.]+", "-", name.split("[")[0]).lower()


def read_extras(texts: list[str], taken: dict[str, str]) -> dict[str, str]:
    """Parse repeated --extra NAME==VERSION.

    Raises:
        UserError: The text is no exact pin, or the table pins that package already.
    """
    extras = {}
    for text in texts:
        match = re.fullmatch(r"([A-Za-z0-9][\w.-]*(?:\[[\w,.-]+\])?)==([A-Za-z0-9][\w.!+-]*)", text, re.ASCII)
        need(match, f"got --extra {text!r}; expected NAME==VERSION, an exact pin; try --extra liger-kernel==0.8.2")
        name, version = match.groups()
        known = {plain_name(key): value for key, value in {**taken, **extras}.items()}
        need(
            known.get(plain_name(name), version) == version,
            f"got --extra {text}; expected a package that is not pinned yet ({name}=={known.get(plain_name(name))}); "
            "try another row of the table (--list)",
        )
        extras[name] = version
    return extras


def installed_pins(names: list[str]) -> tuple[dict[str, str], list[str]]:
    """Versions installed here of `names` and of all that they pull in, and what has no release on an index.

    A requirement under a marker counts where its package is installed: one pin too many does no harm.
    """
    from importlib.metadata import PackageNotFoundError, distribution

    pins, local, queue = {}, [], [plain_name(name) for name in names]
    seen = set(queue)
    while queue:
        name = queue.pop(0)
        try:
            found = distribution(name)
        except PackageNotFoundError:
            continue
        if re.search("dir_info|vcs_info", found.read_text("direct_url.json") or ""):
            local.append(name)
        else:
            pins[name] = found.version.split("+")[0]
        wanted = [line for line in found.requires or [] if not re.search(r"\bextra\s*==", line)]
        more = [plain_name(re.match(r"[\w.-]+", line)[0]) for line in wanted]
        queue += [other for other in dict.fromkeys(more) if other not in seen]
        seen.update(more)
    return pins, local


def env_settings(wanted: dict) -> dict:
    """What the environment that runs this script settles: Python, torch, and the style's engine.

    Raises:
        UserError: torch is not installed, or another Python was asked for.
    """
    from importlib.metadata import PackageNotFoundError, version

    found = {}
    for name in ("torch", "vllm", "sglang", "verl"):
        with contextlib.suppress(PackageNotFoundError):
            found[name] = version(name)
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    asked = wanted.get("python", here)
    need(asked == here, f"got --python {asked} with --from_env; expected {here}, which runs this script; try without")
    by_package = "verl" if "verl" in found else "trl" if "vllm" in found else "base"
    style = wanted.get("style", by_package)
    own = style == "nanochat" or wanted.get("verl_base") == "image"
    need(
        not own, "got --from_env for an image with versions of its own; expected another style; try without --from_env"
    )
    names = {"base": ("torch",), "trl": ("torch", "vllm"), "verl": ("torch", "vllm", "sglang", "verl")}[style]
    missing = {"base": {"torch"}, "trl": {"torch", "vllm"}, "verl": {"torch", "verl"}}[style] - set(found)
    need(
        not missing,
        f"got an environment without {', '.join(sorted(missing))}; expected it for --style {style}; "
        "try this script with the Python of another environment, or no --from_env",
    )
    settled = {"style": style, "python": here, **{name: found[name].split("+")[0] for name in names if name in found}}
    built_for = re.search(r"\+cu(\d+)(\d)$", found["torch"])
    settled |= {"cuda": f"{built_for[1]}.{built_for[2]}"} if built_for else {}
    settled |= {"verl_base": "cuda"} if style == "verl" else {}
    return {**settled, **wanted}


@dataclass(frozen=True)
class ImagePlan:
    """All that a Dockerfile is made from."""

    choice: Choice
    pins: dict[str, str]
    extras: dict[str, str]
    flash_attn: str
    megatron: bool
    user: str
    uid: int
    output: str
    local: tuple[str, ...] = ()

    @property
    def style(self) -> str:
        """The style of the row."""
        return self.choice.stack.style

    @property
    def torch(self) -> str:
        """The version of torch in the image."""
        return self.choice.facts["torch"]

    @property
    def image(self) -> str:
        """The tag that the image starts from."""
        stack, cuda = self.choice.stack, self.choice.cuda
        if stack.base == "image":
            use = "verl-vllm" if "vllm" in stack.held else "verl-sglang"
        elif cuda == "cpu":
            use = "cpu"
        else:
            # vLLM and SGLang compile kernels while they run, flash-attn and Megatron's packages when they install
            use = "devel" if self.flash_attn or self.style in ("trl", "verl") else "base"
        return next(row.tag for row in IMAGES if row.use == use and row.cuda == cuda)

    @property
    def wheel_index(self) -> str:
        """torch's own index, where PyPI's wheel is for another CUDA; else empty."""
        wheel = next(row for row in WHEELS if row.torch == self.torch)
        cuda = self.choice.cuda
        name = cuda if cuda == "cpu" else f"cu{cuda.replace('.', '')}"
        return "" if cuda == wheel.pypi else f"https://download.pytorch.org/whl/{name}"

    @property
    def source_pins(self) -> dict[str, str]:
        """Packages without a wheel that fits; empty where there are none."""
        pins = {"flash-attn": self.flash_attn} if self.flash_attn else {}
        pins.update(self.choice.stack.megatron if self.megatron else {})
        return pins

    @property
    def build_pins(self) -> dict[str, str]:
        """What those need to build."""
        return {name: version for name, version in BUILD_PINS.items() if self.source_pins and name not in self.pins}

    @property
    def requirements(self) -> list[str]:
        """Every pin that a RUN line installs, as a resolver takes them."""
        pins = {**self.pins, **self.build_pins, **self.source_pins, **self.extras}
        return [f"{name}=={version}" for name, version in pins.items()]

    @property
    def name(self) -> str:
        """The name and tag of the image."""
        facts = self.choice.facts
        engine = "".join(f"{name}{facts[name]}-" for name in ("vllm", "sglang") if facts[name])
        cuda = self.choice.cuda if self.choice.cuda == "cpu" else f"cu{self.choice.cuda.replace('.', '')}"
        return f"rl-{self.style}:{engine}torch{self.torch}-{cuda}"

    @property
    def context(self) -> Path:
        """The folder that the build may copy from."""
        return BUNDLE if self.style == "base" else Path(self.output).absolute().parent


def make_plan(config: Config) -> ImagePlan:
    """Settle every setting.

    Raises:
        UserError: A combination outside the table, or a setting of the wrong form.
    """
    match = re.fullmatch(r"([a-z_][a-z0-9_-]{0,30})(?::(\d{1,6}))?", config.user, re.ASCII)
    need(match, f"got --user {config.user!r}; expected NAME or NAME:UID in lower case; try --user trainer:1000")
    user, uid = match[1], int(match[2] or (0 if match[1] == "root" else 1000))
    need((user == "root") == (uid == 0), f"got --user {config.user}; expected 0 for root only; try --user trainer:1000")
    wanted = {name: getattr(config, name) for name in WEIGHTS if getattr(config, name) not in (None, "")}
    if not config.megatron:
        del wanted["megatron"]
    if config.from_env:
        wanted = env_settings(wanted)
    by_setting = "verl" if {"verl", "sglang", "verl_base", "megatron"} & set(wanted) else "base"
    style = "trl" if "vllm" in wanted and by_setting == "base" else by_setting
    choice = choose({"style": style, **wanted})
    stack = choice.stack
    asked = stack.flash_attn_on if config.flash_attn is None else config.flash_attn
    flash_attn = stack.flash_attn if (asked or config.megatron) and stack.flash_attn else ""
    need(
        not (config.megatron and config.flash_attn is False),
        "got --megatron --no_flash_attn; expected flash-attn, which verl's extra `megatron` asks for; try one of them",
    )
    pins, local = dict(stack.pins), []
    if config.from_env:
        pins, local = installed_pins(list(pins))
        pins.pop("flash-attn", None)
    extras = read_extras(config.extra, {**stack.held, **pins, **({"flash-attn": flash_attn} if flash_attn else {})})
    megatron = config.megatron and stack.base != "image"
    return ImagePlan(choice, pins, extras, flash_attn, megatron, user, uid, config.output, tuple(local))
