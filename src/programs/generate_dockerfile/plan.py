"""Plan an image: a row of the table of compatible versions."""

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
    name: str

    @property
    def requirements(self) -> list[str]:
        """All pins that the image installs, as NAME==VERSION."""
        return [f"{name}=={version}" for name, version in {"torch": self.torch, **self.pins}.items()]

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
        text = VERL if self.style == "verl" else UBUNTU
        text = re.sub(r"(?m)^#: (.*)\n((?:.+\n)*\n)", lambda mark: mark[2] * (self.style in mark[1].split()), text)
        values = {
            "NAME": self.name,
            "PURPOSE": STYLES[self.style],
            "SYSTEM": ' \\\n        "libnuma1=2.0.18*"' if self.style == "trl" else "",
            "FOLDERS": " ".join([*self.caches.values(), *["/opt/nanochat"] * (self.style == "nanochat")]),
            "VOLUMES": json.dumps([*self.caches.values()]),
            "UV": tomllib.loads(PINS)["images"]["uv"],
            "IMAGE": self.image,
            "TORCH": self.torch,
            "INDEX": f" --index-url {self.index}" if self.index else "",
            "PINS": " \\\n        ".join(f'"{name}=={version}"' for name, version in self.pins.items()),
            "DEVICE": "cpu" if self.cuda == "cpu" else "gpu",
        }
        return re.sub("@([A-Z]+)@", lambda mark: values[mark[1]], text)


def make_plan(style: str, cuda: str, sglang: bool) -> ImagePlan:
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
    else:
        kind = "devel" if style == "trl" else "base"  # vLLM compiles kernels while it runs
        image, part = table["images"][cuda].format(kind=kind), f"vllm{pins['vllm']}-" if "vllm" in pins else ""
    name = f"rl-{style}:{part}torch{torch}-{wheel}"
    return ImagePlan(style, cuda, torch, index, image, pins, name)
