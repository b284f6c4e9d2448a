"""The command line."""

import argparse
import json
import sys
from dataclasses import fields
from pathlib import Path

from parts.foundation.bundle import BUNDLE
from parts.foundation.messages import UserError, need, tell
from parts.foundation.settings import parse_flags
from programs.generate_dockerfile.dockerfile import dockerfile
from programs.generate_dockerfile.flags import Config
from programs.generate_dockerfile.outputs import commands, outputs, write
from programs.generate_dockerfile.pins import ImagePlan, make_plan
from programs.generate_dockerfile.stacks import IMAGES, STACKS, WHEELS
from programs.generate_dockerfile.tables import APT_PINS, BUNDLE_FOLDERS


def read_flags(argv: "list[str] | None") -> Config:
    """Read the command line; flags work with `_` and `-`."""
    parser = argparse.ArgumentParser(
        usage="%(prog)s [--flag value ...]    (--help has all flags)",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    for entry in fields(Config):
        name, help = entry.name, entry.metadata["help"]
        if entry.default and isinstance(entry.default, str):
            help = f"{help} (default: {entry.default})"
        flags = list(dict.fromkeys([f"--{name}", f"--{name.replace('_', '-')}"]))
        if entry.type is bool:
            parser.add_argument(*flags, dest=name, action="store_true", default=entry.default, help=help)
        elif name == "extra":
            parser.add_argument(*flags, action="append", default=[], metavar="NAME==V", help=help)
        else:
            optional = {"nargs": "?", "const": True} if name in ("vllm", "sglang") else {}
            shown = {"metavar": name.upper()} if entry.metadata["choices"] is None else {}
            more = {"choices": entry.metadata["choices"], **shown, **optional}
            parser.add_argument(*flags, dest=name, default=entry.default, help=help, **more)
    off = {"dest": "flash_attn", "action": "store_false", "default": None, "help": "without flash-attn"}
    parser.add_argument("--no_flash_attn", "--no-flash-attn", **off)
    return Config(**vars(parse_flags(parser, argv)))


def table() -> dict[str, list[dict]]:
    """The tables, as JSON takes them."""
    return {
        "images": [vars(row) for row in IMAGES],
        "wheels": [vars(row) for row in WHEELS],
        "stacks": [{name: value for name, value in vars(row).items() if value} for row in STACKS],
        "ubuntu": [{"package": name, "version": version} for name, version in APT_PINS.items()],
    }


def table_text() -> str:
    """The tables for a reader."""
    lines = ["IMAGES"]
    lines += [f"  {row.use:<12}{row.cuda:<6}{row.tag}  [{row.date}, {row.source}]" for row in IMAGES]
    lines += ["", "TORCH: CUDA of the wheel on PyPI, and of torch's own index"]
    lines += [f"  {row.torch:<8}{row.pypi:<6}{' '.join(row.others):<16}[{row.date}, {row.source}]" for row in WHEELS]
    lines += ["", "STACKS: what fits together; each line is a choice of --style and versions"]
    for row in STACKS:
        base = f" --verl_base {row.base}" if row.style == "verl" else ""
        lines.append(f"  --style {row.style}{base}  cuda {' '.join(row.cudas)}  python {' '.join(row.pythons)}")
        options = {"flash-attn": row.flash_attn} if row.flash_attn else {}
        for title, pins in (("pins", row.pins), ("held", row.held), ("option", {**options, **row.megatron})):
            lines += [f"      {title}: " + " ".join(f"{n}=={v}" for n, v in pins.items())] if pins else []
        lines += [f"      note: {row.note}"] if row.note else []
        lines.append(f"      [{row.date}, {row.source}]")
    return "\n".join(lines)


def generate(config: Config) -> None:
    """Write the files and report them.

    Raises:
        UserError: Bad input.
    """
    if Path(config.output).is_dir():
        config.output = str(Path(config.output) / "Dockerfile")
    plan = make_plan(config)
    missing = [name for name in BUNDLE_FOLDERS if plan.style == "base" and not (BUNDLE / name).is_dir()]
    need(not missing, f"got no {', '.join(missing)} beside this script; expected the whole bundle; try --style trl")
    if plan.local:
        print(f"left out, installed from no index: {', '.join(plan.local)}", file=sys.stderr)
    if not plan.uid:
        print("the container runs as root; try --user trainer:1000", file=sys.stderr)
    if config.output == "-":
        need(not config.compose and not config.devcontainer, "got --output -; expected a file beside; try --output F")
        plan = ImagePlan(**{**vars(plan), "output": "Dockerfile"})
        tell(dockerfile(plan), end="")
        return
    files = outputs(plan, config)
    write(files, config.force)
    report = {"files": [str(path) for path in files], "image": plan.name, "from": plan.image}
    report |= {"requirements": plan.requirements, "note": plan.choice.stack.note}
    if config.print_build:
        report["commands"] = commands(plan)
        print("\n".join(report["commands"].values()), file=sys.stderr)
    tell(json.dumps(report, indent=2))


def main(argv: "list[str] | None" = None) -> int:
    """Command line entry; returns the exit code."""
    config = read_flags(argv)
    try:
        if config.list:
            tell(json.dumps(table(), indent=2) if config.json else table_text())
        else:
            generate(config)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.code
    return 0


if __name__ == "__main__":
    sys.exit(main())
