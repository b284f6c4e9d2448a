"""The page."""

import datetime
import secrets
import unicodedata

from parts.foundation.file_text import file_text
from programs.report.curves import LOGGED, PLACES, curves_of
from programs.report.run_facts import run_facts
from programs.report.samples import packed, packed_json, packed_samples
from programs.report.sources import Source, evaluation_tables

TEMPLATE = file_text("page.html")
STYLE = file_text("page.css")
CURVES_SCRIPT = file_text("curves.js")
SAMPLES_SCRIPT = file_text("samples.js")
DETAIL_SCRIPT = file_text("sample_detail.js")
PAGE_SCRIPT = file_text("page.js")
MARK = "<!-- a page of scripts/report.py -->"
UNSEEN = ("Cc", "Cf", "Cs", "Zl", "Zp")  # control and format characters, lone surrogates, line separators


def text_as_seen(value):
    """Text whose unseen characters are shown by their number; the template's own parts, and what is no text, stay."""
    if type(value) is not str or value.isprintable():
        return value
    unseen = {c for c in {*value} - {*"\t\n"} if unicodedata.category(c) in UNSEEN}
    return value.translate({ord(c): f"⟦U+{ord(c):04X}⟧" for c in unseen})


def differing_settings(sources: list[Source]) -> list[tuple[str, list[str]]]:
    """The settings that not all runs share, with each run's value; what one lacks, or only writes logs, is last."""
    configs = [source.run.config for source in sources]
    names = [name for name in dict.fromkeys(name for config in configs for name in config) if name not in PLACES]
    settings = [(name, ["–" if name not in config else str(config[name]) for config in configs]) for name in names]
    settings = [(name, values) for name, values in settings if len({*values}) > 1] if len(sources) > 1 else []
    return sorted(settings, key=lambda pair: (pair[0] in LOGGED, len({*pair[1]} - {"–"}) < 2))


def make_page(sources: list[Source], failed: list[dict], max_mb: float) -> str:
    """The page of runs and evaluations.

    Args:
        failed: {"name", "error"} of what could not be read.
        max_mb: what the page may be large; samples are thinned for it.
    """
    from jinja2 import Environment, StrictUndefined
    from plotly.offline import get_plotlyjs

    runs, evaluations = ([s for s in sources if bool(s.run) is is_run] for is_run in (True, False))
    curve_data, tables = packed_json(curves_of(runs)), evaluation_tables(evaluations)
    library = packed([get_plotlyjs().encode()]) if runs else b""
    ordered = runs + evaluations  # colours of the samples are those of the runs
    sample_data, kept = packed_samples(ordered, 1e6 * max_mb - len(library) - len(curve_data) - len(STYLE) - 200_000)
    more = f" and {len(ordered) - 3} more" if len(ordered) > 3 else ""
    contents = dict.fromkeys(("runs", "curves", "settings"), runs) | {"evaluations": tables, "samples": kept}
    order = ("runs", "evaluations", "curves", "samples", "settings")
    sections = [name for name in order if contents[name]]
    # all that is put in is escaped, and unseen characters are shown
    page = Environment(autoescape=True, undefined=StrictUndefined, finalize=text_as_seen).from_string(TEMPLATE)
    return page.render(
        title=f"Report: {', '.join(source.name for source in ordered[:3])}{more}",
        nonce=secrets.token_urlsafe(16),
        written=f"{datetime.datetime.now():%Y-%m-%d %H:%M:%S}",
        sections=[(name, name.capitalize()) for name in sections],
        failed=failed,
        runs=[run_facts(source) for source in runs],
        differing=differing_settings(runs),
        has_settings=all(source.run.config and source.run.trainer != "trl" for source in runs),
        evaluations=tables,
        samples_kept=kept,
        samples_of=sum(len(source.samples) for source in ordered),
        max_mb=f"{max_mb:g}",
        style=STYLE,
        script=CURVES_SCRIPT + SAMPLES_SCRIPT + DETAIL_SCRIPT + PAGE_SCRIPT,
        curve_data=curve_data.decode(),
        sample_data=sample_data.decode(),
        sample_names=packed_json([source.name for source in ordered]).decode(),
        library=library.decode(),
    )
