"""Tables of images and versions."""

from dataclasses import dataclass, field

BUNDLE_FOLDERS = ("assets", "examples", "references", "scripts", "templates")


@dataclass(frozen=True)
class Image:
    """A tag that exists. `use`: uv, cpu, base (CUDA's driver interface only), devel (with nvcc), or verl's."""

    use: str
    cuda: str
    tag: str
    date: str
    source: str


@dataclass(frozen=True)
class Wheel:
    """The CUDA versions of one release of torch: that of the wheel on PyPI, and those of torch's own index."""

    torch: str
    pypi: str
    others: tuple[str, ...]
    flash_attn: str  # the release that others have built for it, or empty
    date: str
    source: str


@dataclass(frozen=True)
class Stack:
    """Versions that fit together. `pins` are installed, `held` are in the image already."""

    style: str
    base: str  # cuda, or image: verl's own
    cudas: tuple[str, ...]
    pythons: tuple[str, ...]  # the first is the default
    pins: dict[str, str]
    date: str
    source: str
    held: dict[str, str] = field(default_factory=dict)
    flash_attn: str = ""
    flash_attn_on: bool = False
    megatron: dict[str, str] = field(default_factory=dict)  # with Python 3.12 only
    note: str = ""

    @property
    def versions(self) -> dict[str, str]:
        """Every version that the row names."""
        return {**self.held, **self.pins}


# what this bundle was tested with
BUNDLE_PINS = {
    "transformers": "5.23.0",
    "tokenizers": "0.23.3",
    "safetensors": "0.8.0",
    "peft": "0.21.2",
    "trl": "1.16.0",
    "accelerate": "1.15.0",
    "datasets": "5.2.0",
    "math-verify": "0.9.0",
    "jsonschema": "4.26.0",
    "referencing": "0.37.0",
    "numpy": "2.4.6",
    "pyarrow": "26.0.1",
    "pyyaml": "6.0.3",
    "tqdm": "4.70.1",
    "matplotlib": "3.11.2",
    "plotly": "7.1.0",
    "jinja2": "3.1.6",
    "tensorboard": "2.21.0",
    "wandb": "0.31.0",
    "trackio": "0.43.0",
}
TRL_PINS = {
    "peft": "0.21.2",
    "accelerate": "1.15.0",
    "datasets": "5.2.0",
    "math-verify": "0.9.0",
    "pyyaml": "6.0.3",
    "tqdm": "4.70.1",
    "matplotlib": "3.11.2",
    "tensorboard": "2.21.0",
    "wandb": "0.31.0",
}
# verl 0.9.1 names these in its extra `verl-core` or imports them unasked
VERL_PINS = {
    "verl": "0.9.1",
    "TransferQueue": "0.1.11",
    "tensordict": "0.10.0",
    "ray[default]": "2.60.0",
    "torchdata": "0.11.0",
    "cachetools": "8.0.1",
    "uvicorn": "0.54.0",
    "msgspec": "0.22.0",
    "pyzmq": "27.3.0",
}
MEGATRON_PINS = {"megatron-core": "0.18.0", "mbridge": "0.15.1", "transformer-engine[pytorch]": "2.16.1"}
# what the source packages of flash-attn and Transformer Engine import while they build
BUILD_PINS = {"setuptools": "80.10.2", "wheel": "0.48.0", "ninja": "1.13.2", "psutil": "7.2.2", "pybind11": "3.1.0"}
# Ubuntu 24.04 keeps these versions for its whole life, but for security fixes
APT_PINS = {"build-essential": "12.10*", "ca-certificates": "20*", "git": "1:2.43.*", "libnuma1": "2.0.18*"}
NANOCHAT_COMMIT = "92d63d4e8bb4df75c3b71618f31ddde2378b2bcd"
PYTHONS = ("3.12", "3.11", "3.13")
ROOT_HOME = "/root"  # in the image
