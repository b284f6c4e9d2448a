"""assets/make_tiny_lm.py gives the same bytes again, and the committed data are what it writes."""

import pytest
from conftest import ASSETS, EVAL_DATA, TRAIN_DATA, WIDE_DATA, run_script

TOKENIZER = {"tokenizer.json", "tokenizer_config.json", "chat_template.jinja"}
FILES = TOKENIZER | {"config.json", "generation_config.json", "model.safetensors"}
SMALL = ("--steps", 3, "--batch", 16, "--hidden", 32, "--layers", 1)  # the report at the end takes most of the time


def generate(*flags, **more) -> None:
    """Run the generator."""
    run_script(ASSETS / "make_tiny_lm.py", *flags, **more).check_returncode()


def contents(folder) -> dict[str, bytes]:
    """Every file of a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def twins(tmp_path_factory):
    """Two outputs of the same seed."""
    folders = [tmp_path_factory.mktemp(name) for name in ("a", "b")]
    for folder in folders:  # processes of different hashes
        generate(*SMALL, "--out", folder / "lm", "--data_out", folder / "data", fresh=folder is folders[0])
    return [contents(folder) for folder in folders]


@pytest.mark.long
def test_the_same_seed_gives_the_same_bytes_and_the_committed_tokenizer(twins):
    assert {f"lm/{name}" for name in FILES} <= set(twins[0])
    assert twins[0] == twins[1]
    for name in TOKENIZER:
        assert twins[0][f"lm/{name}"] == (ASSETS / "tiny_lm" / name).read_bytes(), name


def test_the_committed_data_are_the_generators(tmp_path):
    generate("--data_only", "--out", tmp_path / "lm", "--data_out", tmp_path)
    for path in (EVAL_DATA, TRAIN_DATA, WIDE_DATA):
        assert (tmp_path / path.name).read_bytes() == path.read_bytes(), path
    assert not (tmp_path / "lm").exists()
