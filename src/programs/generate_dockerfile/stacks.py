"""What fits together."""

from programs.generate_dockerfile.tables import (
    BUNDLE_PINS,
    MEGATRON_PINS,
    NANOCHAT_COMMIT,
    PYTHONS,
    TRL_PINS,
    VERL_PINS,
    Image,
    Stack,
    Wheel,
)

COG = "compatibility tables of replicate/cog at 6110c91"
USED = "Dockerfiles in public repositories build on it"
IMAGES = (
    Image("uv", "", "ghcr.io/astral-sh/uv:0.12.20", "2026-11-21", USED),
    Image("cpu", "cpu", "ubuntu:24.04", "2026-11-21", "Docker's official image of the release"),
    Image("base", "12.6", "nvidia/cuda:12.6.3-base-ubuntu24.04", "2026-11-21", USED),
    Image("base", "12.8", "nvidia/cuda:12.8.1-base-ubuntu24.04", "2026-11-21", USED),
    Image("base", "13.0", "nvidia/cuda:13.0.2-base-ubuntu24.04", "2026-11-21", USED),
    Image("base", "13.2", "nvidia/cuda:13.2.1-base-ubuntu24.04", "2026-11-21", USED),
    Image("devel", "12.6", "nvidia/cuda:12.6.3-devel-ubuntu24.04", "2026-11-21", f"{USED}; {COG}"),
    Image("devel", "12.8", "nvidia/cuda:12.8.1-devel-ubuntu24.04", "2026-11-21", f"{USED}; {COG}"),
    Image("devel", "13.0", "nvidia/cuda:13.0.2-devel-ubuntu24.04", "2026-08-22", "verl docker/Dockerfile.stable.vllm"),
    Image("devel", "13.2", "nvidia/cuda:13.2.1-devel-ubuntu24.04", "2026-11-21", f"{USED}; {COG}"),
    Image(
        "verl-vllm",
        "13.0",
        "verlai/verl:vllm024.dev2@sha256:b867883b0dd011363e69ab2ab344922a28c5bd0409e2a324e3ee70fb27ca7543",
        "2026-08-22",
        "target of verl docker/Dockerfile.stable.vllm, image of its CI at 1dda039; the digest as two users pin it",
    ),
    Image("verl-sglang", "13.0", "verlai/verl:sgl0512.dev4", "2026-08-22", "verl docker/Dockerfile.stable.sglang"),
)

PYPI = "Requires-Dist of the wheels on PyPI"
BUILT = "flash-attn as built by mjun0812/flash-attention-prebuild-wheels at 2614dc8"
INDEX_USED = "other CUDA versions as installed in public repositories"
WHEELS = (
    Wheel("2.13.0", "13.0", ("12.6", "cpu"), "2.8.3", "2026-11-21", f"{PYPI}; {INDEX_USED}; {BUILT}"),
    Wheel("2.15.0", "13.2", (), "", "2026-11-21", PYPI),
    Wheel("2.14.1", "13.0", (), "", "2026-11-21", PYPI),
    Wheel("2.12.1", "13.0", (), "2.8.3", "2026-11-21", f"{PYPI}; {BUILT}"),
    Wheel("2.11.0", "13.0", ("12.8", "12.6", "cpu"), "2.8.3", "2026-11-21", f"{PYPI}; {COG}; {BUILT}"),
    Wheel("2.10.0", "12.8", ("13.0", "12.6", "cpu"), "2.8.3", "2026-11-21", f"{PYPI}; {COG}; {BUILT}"),
    Wheel("2.9.1", "12.8", ("cpu",), "", "2026-11-21", f"{PYPI}; pyproject.toml of nanochat"),
)


def trl_stack(torch: str, vllm: str, transformers: str, trl: str, cuda: str, note: str = "") -> Stack:
    """A row of the style trl; the extra makes a resolver check TRL's range of vLLM."""
    pins = {"torch": torch, "vllm": vllm, "trl[vllm]": trl, "transformers": transformers, **TRL_PINS}
    source = f"{PYPI}: vllm names torch exactly, trl[vllm] a range of vllm; {BUILT}"
    return Stack("trl", "cuda", (cuda,), PYTHONS, pins, "2026-11-21", source, flash_attn="2.8.3", note=note)


def verl_stack(engine: dict[str, str], transformers: str, source: str, note: str) -> Stack:
    """A row of verl from CUDA up."""
    pins = {"torch": "2.11.0", **engine, "transformers": transformers, **VERL_PINS}
    row = Stack("verl", "cuda", ("13.0",), ("3.12", "3.11"), pins, "2026-11-21", source, note=note)
    return Stack(**{**vars(row), "flash_attn": "2.8.3", "flash_attn_on": True, "megatron": MEGATRON_PINS})


def verl_image_stack(engine: dict[str, str], note: str) -> Stack:
    """A row of verl on its own image, which lacks only verl and what verl 0.9.1 wants newer."""
    pins = {"verl": "0.9.1", "transformers": "5.9.0", "TransferQueue": "0.1.11", "tensordict": "0.10.0"}
    held = {"torch": "2.11.0", **engine, "flash-attn": "2.8.3", "megatron-core": "0.18.0"}
    source = f"verl docker/ at 1dda039; {PYPI}"
    return Stack("verl", "image", ("13.0",), ("3.12",), pins, "2026-08-22", source, held=held, note=note)


NOT_BUILT = "flash-attn and Megatron's packages resolve, but compile at build time: not built here."
STACKS = (
    *(
        Stack(
            style="base",
            base="cuda",
            cudas=(wheel.pypi, *wheel.others),
            pythons=PYTHONS,
            pins={"torch": wheel.torch, **BUNDLE_PINS},
            date=wheel.date,
            flash_attn=wheel.flash_attn,
            source=f"requirements.txt; {wheel.source}",
            note="" if wheel.torch == "2.13.0" else "this bundle's tests run with torch 2.13.0",
        )
        for wheel in WHEELS
        if wheel.torch != "2.9.1"
    ),
    trl_stack("2.13.0", "0.30.0", "5.23.0", "1.16.0", "13.0", "the newest vLLM that takes this bundle's transformers"),
    trl_stack("2.13.0", "0.31.0", "5.17.0", "1.16.0", "13.0", "vLLM takes transformers < 5.18: not our scripts'"),
    trl_stack("2.13.0", "0.29.0", "5.23.0", "1.16.0", "13.0"),
    trl_stack("2.13.0", "0.27.1", "5.23.0", "1.16.0", "13.0"),
    trl_stack("2.11.0", "0.24.0", "5.23.0", "1.16.0", "13.0"),
    trl_stack("2.10.0", "0.19.1", "5.23.0", "1.13.0", "12.8", "for drivers before 580; TRL older than our scripts'"),
    verl_image_stack({"vllm": "0.24.0"}, "the image has transformers 5.3.0, which verl 0.9.1 and vllm 0.24.0 refuse"),
    verl_stack({"vllm": "0.24.0", "fastapi": "0.136.3"}, "5.9.0", f"{PYPI}: verl[vllm] names them exactly", NOT_BUILT),
    verl_image_stack({"sglang": "0.5.12"}, "verl[sglang] overrides sglang's transformers 5.6.0, which verl excludes"),
    verl_stack(
        {"sglang": "0.5.13", "fastapi": "0.165.0"},
        "5.8.1",
        f"{PYPI}: 0.5.12 wants transformers 5.6.0, which verl 0.9.1 excludes; 0.5.13 wants 5.8.1",
        NOT_BUILT,
    ),
    Stack(
        style="nanochat",
        base="cuda",
        cudas=("12.8", "cpu"),
        pythons=("3.10", "3.11", "3.12"),
        pins={"torch": "2.9.1"},
        date="2026-07-03",
        source=f"pyproject.toml, uv.lock and .python-version of karpathy/nanochat at {NANOCHAT_COMMIT[:7]}",
        note="the rest by its lock file; numpy 1.26.4 has no wheel for Python 3.13",
    ),
)
