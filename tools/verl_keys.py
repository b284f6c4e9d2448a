"""Write assets/verl_keys.txt, the names in verl's configuration, from the verl of this Python (`.venv-verl`).

    .venv-verl/bin/python tools/verl_keys.py            # --check compares

Each line has a section and its names; the first word is the `model_engine` that has them, * for both.
"""

import sys
from pathlib import Path

TARGET = Path(__file__).resolve().parents[1] / "assets" / "verl_keys.txt"
ENGINES = ("dp", "megatron")
HEAD = """# Names in the configuration of verl {version}, by tools/verl_keys.py: engine (*: both), section, names.
"""


def names_of(engine: str) -> dict[str, None]:
    """All keys of verl's configuration with an engine, sections included, in order."""
    import verl
    from hydra import compose, initialize_config_dir
    from omegaconf import OmegaConf

    def below(node, prefix: str) -> list[str]:
        if not isinstance(node, dict):
            return []
        return [key for name, value in node.items() for key in (f"{prefix}{name}", *below(value, f"{prefix}{name}."))]

    with initialize_config_dir(config_dir=str(Path(verl.__file__).parent / "trainer" / "config"), version_base=None):
        configuration = compose("ppo_trainer", overrides=[f"model_engine={engine}"])
    return dict.fromkeys(below(OmegaConf.to_container(configuration, resolve=False), ""))


def table() -> str:
    """The file's text."""
    from importlib.metadata import version

    by_engine, lines = {engine: names_of(engine) for engine in ENGINES}, {}
    for key in dict.fromkeys(key for names in by_engine.values() for key in names):
        present = [engine for engine in ENGINES if key in by_engine[engine]]
        section, _, name = key.rpartition(".")
        lines.setdefault(("*" if len(present) == len(ENGINES) else present[0], section or "."), []).append(name)
    return HEAD.format(version=version("verl")) + "".join(f"{e} {s} {' '.join(x)}\n" for (e, s), x in lines.items())


def main(argv: list[str]) -> int:
    """Write the file, or compare it."""
    text = table()
    if argv == ["--check"]:
        return int(TARGET.read_text(encoding="utf-8") != text)
    TARGET.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
