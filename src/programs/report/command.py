"""The command line."""

import argparse
import sys
from pathlib import Path

from parts.foundation.messages import Help, UserError, need, tell
from parts.foundation.settings import parse_flags
from parts.running.output_folder import write_text
from programs.report.page import MARK, make_page
from programs.report.sources import read_sources


def command_line() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=Help, allow_abbrev=False)
    text = "run folder, log, or output of evaluation.py, see above; several appear side by side"
    parser.add_argument("runs", nargs="+", metavar="RUN", type=Path, help=text)
    text = "the page (default: report.html in a single run's folder, here with several)"
    parser.add_argument("--output", type=Path, metavar="FILE.html", help=text)
    text = "size of the page; samples are thinned for it, evenly and by groups (default: 5)"
    parser.add_argument("--max_mb", "--max-mb", type=float, default=5.0, metavar="MB", help=text)
    return parser


def output_of(args: argparse.Namespace) -> Path:
    """Where the page goes; a file that is no page of ours is not replaced."""
    only = args.runs[0] if len(args.runs) == 1 else None
    folder = (only if only.is_dir() else only.parent) if only else Path()
    path = args.output or folder / "report.html"
    need(path.parent.is_dir(), f"got --output {path}; expected a file in a folder that exists; try mkdir {path.parent}")
    need(not path.is_dir(), f"got --output {path}, a folder; expected a file; try {path / 'report.html'}")
    if path.exists():
        with path.open("rb") as file:
            ours = MARK.encode() in file.read(400)
        need(ours, f"got --output {path}, which exists and is not a page of this program; expected a new name")
    return path


def run(argv: list[str]) -> int:
    args = parse_flags(command_line(), argv)
    need(args.max_mb > 0, f"got --max_mb {args.max_mb:g}; expected a size above 0; try 5")
    path = output_of(args)
    sources, failed = read_sources(args.runs)
    for bad in failed:
        print(f"error: {bad['error']}", file=sys.stderr)
    need(sources, f"got nothing that can be read; {path} is not written")
    write_text(path, make_page(sources, failed, args.max_mb))
    tell(f"page {path} ({path.stat().st_size / 1e6:.1f} MB)")
    return 2 if failed else 0


def main(argv: list[str] | None = None) -> int:
    try:
        return run(sys.argv[1:] if argv is None else argv)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.code
    except ImportError as error:
        print(f"error: got no {error.name}; expected it installed; try `pip install {error.name}`", file=sys.stderr)
        return 2
    except OSError as error:
        text = "expected to read the logs and to write the page; try another --output"
        print(f"error: got {error}; {text}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
