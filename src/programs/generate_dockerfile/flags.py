"""Settings."""

from dataclasses import dataclass, field

from parts.foundation.settings import BaseConfig


def flag_field(default, help, choices=None):
    """A dataclass field that carries what its flag shows."""
    return field(default=default, metadata={"help": help, "choices": choices})


@dataclass
class Config(BaseConfig):
    """All settings and their defaults; every field is a flag."""

    style: str = flag_field(
        "", "what the image is for (default: base, or what the others ask for)", ("base", "trl", "verl", "nanochat")
    )
    cuda: str = flag_field("", "CUDA version, as 13.0, or cpu (default: the row's first)")
    python: str = flag_field("", "Python version, as 3.12 (default: the row's first)")
    torch: str = flag_field("", "version of torch")
    vllm: str = flag_field("", "version of vLLM; without a value, any")
    sglang: str = flag_field("", "version of SGLang, for verl; without a value, any")
    verl: str = flag_field("", "version of verl")
    verl_base: str = flag_field("", "verl on its own image, or from CUDA up (default: image)", ("image", "cuda"))
    flash_attn: bool = flag_field(None, "compile flash-attn into the image (default: with verl from CUDA up)")
    megatron: bool = flag_field(False, "with Megatron-LM, for verl; verl's image has it")
    extra: tuple = flag_field((), "further exact pin, as liger-kernel==0.8.2; may be repeated")
    from_env: bool = flag_field(False, "pin what is installed in the environment that runs this script")
    user: str = flag_field("trainer:1000", "user of the container, as NAME or NAME:UID")
    output: str = flag_field("Dockerfile", "file to write, or - for stdout and no other file")
    force: bool = flag_field(False, "overwrite existing files")
    compose: bool = flag_field(False, "also write compose.yaml")
    devcontainer: bool = flag_field(False, "also write .devcontainer/devcontainer.json")
    print_build: bool = flag_field(False, "also print the commands that build, run and push")
    list: bool = flag_field(False, "print the tables and end")
    json: bool = flag_field(False, "with --list: as JSON")
