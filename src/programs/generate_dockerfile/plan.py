"""Plan an image: a row of the table of compatible versions, and further packages."""

import json
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path

from parts.foundation.bundle import BUNDLE
from parts.foundation.file_text import file_text
from parts.foundation.messages import need

UBUNTU = file_text("ubuntu.Dockerfile")  # a paragraph that begins with `#: base trl` is for these styles only
VERL = file_text("verl.Dockerfile")
PINS = file_text("pins.toml")

STYLES = {"base": "this bundle", "trl": "GRPO with TRL and vLLM", "verl": "verl", "nanochat": "nanochat"}


@dataclass(frozen=True)
class ImagePlan:
    """All that a Dockerfile is made from."""

    style: str
    cuda: str
    torch: str
    index: str  # torch's own package index if PyPI's wheel is for another CUDA version, else ""
    image: str  # image to start from
    pins: dict[str, str]
    extras: dict[str, str]
    name: str

    @property
    def requirements(self) -> list[str]:
        """All pins that the image installs, as NAME==VERSION."""
        pins = {"torch": self.torch, **self.pins, **self.extras}
        return [f"{name}=={version}" for name, version in pins.items()]

    def context(self, output: Path) -> Path:
        """The folder that the build may copy from."""
        return BUNDLE if self.style == "base" else output.absolute().parent

    @property
    def caches(self) -> dict[str, str]:
        """{named volume: where it is mounted}."""
        volumes = {"hf-cache": "/cache/huggingface"}
        return volumes | ({"nanochat-cache": "/cache/nanochat"} if self.style == "nanochat" else {})

    @property
    def dockerfile(self) -> str:
        """The text, without the paragraphs of other styles."""
        marks = {self.style} | ({"extras"} if self.extras else set())
        paragraphs = (VERL if self.style == "verl" else UBUNTU).split("\n\n")
        kept = [part for part in paragraphs if not part.startswith("#: ") or marks & {*part.partition("\n")[0].split()}]
        text = re.sub("(?m)^#: .*\n", "", "\n\n".join(kept))
        folders = [*self.caches.values(), *(["/opt/nanochat"] if self.style == "nanochat" else [])]
        values = {
            "NAME": self.name,
            "PURPOSE": STYLES[self.style],
            "SYSTEM": ' \\\n        "libnuma1=2.0.18*"' if self.style == "trl" else "",
            "FOLDERS": " ".join(folders),
            "VOLUMES": json.dumps([*self.caches.values()]),
            "UV": tomllib.loads(PINS)["images"]["uv"],
            "IMAGE": self.image,
            "TORCH": self.torch,
            "INDEX": f" --index-url {self.index}" if self.index else "",
            "PINS": quoted(self.pins),
            "EXTRAS": quoted(self.extras),
            "DEVICE": "cpu" if self.cuda == "cpu" else "gpu",
        }
        return re.sub("@([A-Z]+)@", lambda mark: values[mark[1]], text)


def quoted(pins: dict[str, str]) -> str:
    """Pins, one per line, in double quotes, which hide `[` from the shell."""
    return " \\\n        ".join(f'"{name}=={version}"' for name, version in pins.items())


def plain_name(name: str) -> str:
    """Normalized name of a distribution, without its extras."""
    return re.sub(r"[-_.]+", "-", name.split("[")[0]).lower()


def read_extras(texts: list[str], pins: dict[str, str]) -> dict[str, str]:
    """{name: version} of --extra NAME==VERSION; UserError unless it is an exact pin of a package not pinned yet."""
    extras = {}
    for text in texts:
        match = re.fullmatch(r"([A-Za-z0-9][\w.-]*(?:\[[\w,.-]+\])?)==([A-Za-z0-9][\w.!+-]*)", text, re.ASCII)
        need(match, f"got --extra {text!r}; expected NAME==VERSION, an exact pin; try --extra liger-kernel==0.8.2")
        name, version = match.groups()
        pinned = {plain_name(key): f"{key}=={value}" for key, value in {**pins, **extras}.items()}
        need(
            plain_name(name) not in pinned,
            f"got --extra {text}; expected a package that is not pinned yet ({pinned.get(plain_name(name))}); "
            "try without it, and edit the written file for another version",
        )
        extras[name] = version
    return extras


def make_plan(style: str, cuda: str, sglang: bool, extra: list[str]) -> ImagePlan:
    """Plan an image from the table; UserError if it has no such CUDA version, or for SGLang without verl."""
    table = tomllib.loads(PINS)
    rows = table[style]
    cuda = cuda or next(iter(rows["torch"]))
    need(not sglang or style == "verl", f"got --sglang with --style {style}; expected --style verl")
    known, got = list(rows["torch"]), f"got --cuda {cuda} with --style {style}"
    need(cuda in known, f"{got}; expected one of {', '.join(known)} (--list); try --style {style} --cuda {known[0]}")
    torch, on_pypi = rows["torch"][cuda]
    pins = rows.get(cuda, {}) | {name: table["base"]["pins"][name] for name in rows.get("as_in_base", ())}
    pins, engine = pins | rows.get("pins", {}), "sglang" if sglang else "vllm"
    wheel = cuda if cuda == "cpu" else f"cu{cuda.replace('.', '')}"
    index = "" if cuda == on_pypi else f"https://download.pytorch.org/whl/{wheel}"
    if style == "verl":
        image, part = rows["images"][engine], f"{engine}-"
        fixed = {"torch": torch, **pins, "vllm": "", "sglang": "", "flash-attn": ""}
    else:
        kind = "devel" if style == "trl" else "base"  # vLLM compiles kernels while it runs
        image, part = table["images"][cuda].format(kind=kind), f"vllm{pins['vllm']}-" if "vllm" in pins else ""
        fixed = {"torch": torch, **pins}
    name = f"rl-{style}:{part}torch{torch}-{wheel}"
    return ImagePlan(style, cuda, torch, index, image, pins, read_extras(extra, fixed), name)
