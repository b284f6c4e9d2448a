"""The command line."""

import argparse
import sys
import time
from pathlib import Path

from parts.foundation.messages import UserError, need, say, tell
from parts.foundation.settings import parse_flags
from parts.running.output_folder import write_text
from programs.report.page import MARK, make_page, plot_library
from programs.report.sources import Source, last_changes, read_sources


def command_line() -> argparse.ArgumentParser:
    """The command line."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw, allow_abbrev=False)
    text = "run folder, log, or what evaluation.py wrote, see above; several stand side by side"
    parser.add_argument("runs", nargs="+", metavar="RUN", type=Path, help=text)
    text = "the page (default: report.html in a single run's folder, here with several)"
    parser.add_argument("--output", type=Path, metavar="FILE.html", help=text)
    text = "renew the page every so many seconds until all runs have ended, or Ctrl-C (default: 0, write it once)"
    parser.add_argument("--watch", type=float, default=0.0, metavar="SECONDS", help=text)
    text = "size of the page; samples are thinned for it, evenly and by groups (default: 5)"
    parser.add_argument("--max_mb", "--max-mb", type=float, default=5.0, metavar="MB", help=text)
    return parser


def output_of(args: argparse.Namespace) -> Path:
    """Where the page goes; a file that is no page of ours is not replaced."""
    only = args.runs[0] if len(args.runs) == 1 else None
    folder = (only if only.is_dir() else only.parent) if only else Path()
    name = "report.html"
    if only and (folder / "results.json").is_file():
        name = "page.html"  # evaluation.py's own page has the other name
    path = args.output or folder / name
    need(path.parent.is_dir(), f"got --output {path}; expected a file in a folder that exists; try mkdir {path.parent}")
    need(not path.is_dir(), f"got --output {path}, a folder; expected a file; try {path / 'report.html'}")
    if path.exists():
        with path.open("rb") as file:
            ours = MARK.encode() in file.read(400)
        need(ours, f"got --output {path}, which exists and is no page of this program; expected a new name")
    return path


def write_page(args: argparse.Namespace, path: Path, library: bytes) -> tuple[list[Source], list[dict]]:
    """Write the page once; returns what it shows and what could not be read."""
    sources, failed = read_sources(args.runs)
    if sources:
        write_text(path, make_page(sources, failed, library, args.max_mb, args.watch))
    return sources, failed


def watch(args: argparse.Namespace, path: Path, library: bytes) -> None:
    """Renew the page whenever a log has changed, until all runs have ended."""
    for source in args.runs:
        need(source.exists(), f"got {source}, which does not exist; expected a run; try again once it has begun")
    say(f"watching {len(args.runs)} logs; Ctrl-C ends it, the page stays")
    before = None
    while True:
        changes = last_changes(args.runs)
        if changes != before:
            sources, failed = write_page(args, path, library)
            before = changes
            for bad in failed:
                say(f"waiting: {bad['error']}")
            if sources and not failed and all((source.folder / "summary.json").is_file() for source in sources):
                write_text(path, make_page(sources, failed, library, args.max_mb))
                return
        time.sleep(args.watch)


def run(argv: list[str]) -> int:
    """Do what a command line says and return the exit code."""
    args = parse_flags(command_line(), argv)
    need(args.watch == 0 or args.watch >= 1, f"got --watch {args.watch:g}; expected seconds, 1 or more, or 0 for once")
    need(args.max_mb > 0, f"got --max_mb {args.max_mb:g}; expected a size above 0; try 5")
    path, library = output_of(args), plot_library()
    if args.watch:
        watch(args, path, library)
        tell(f"page {path}")
        return 0
    sources, failed = write_page(args, path, library)
    for bad in failed:
        print(f"error: {bad['error']}", file=sys.stderr)
    if not sources:
        raise UserError(f"got nothing that can be read; {path} is not written")
    tell(f"page {path} ({path.stat().st_size / 1e6:.1f} MB)")
    return 2 if failed else 0


def main(argv: list[str] | None = None) -> int:
    """Command line entry; returns the exit code."""
    try:
        return run(sys.argv[1:] if argv is None else argv)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.code
    except OSError as error:
        print(
            f"error: got {error}; expected to read the logs and to write the page; mend it and try again",
            file=sys.stderr,
        )
        return 2
    except KeyboardInterrupt:
        say("stopped; the page is as it was last written")
        return 130


if __name__ == "__main__":
    sys.exit(main())
