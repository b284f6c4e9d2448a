#!/usr/bin/env python3
# /// script
# requires-python = ">=3.11"
# dependencies = ["jinja2>=3.1", "plotly>=6,<8", "numpy>=1.26", "pyarrow", "pyyaml"]
# ///
"""Make one HTML page of a run, or of several side by side: outcome, curves, samples, settings.

A RUN is what diagnose.py reads (a run's folder, metrics.jsonl, TRL's trainer_state.json, verl's console output or file
log), or a folder or results.json of evaluation.py. The page is one file and needs no network: mail it or
open it from disk.

    top          without JavaScript: held-out figure before and after with its interval, best step, seconds,
                 what diagnose.py finds with cause and remedy, and what differs between the runs
    curves       of all runs, overlaid: hover, zoom, smoothing, log scale
    samples      a table with filters; a group's completions side by side; held-out prompts before and after; turns
    settings     those that differ, versions, the command to repeat a run
    evaluations  tables with intervals, and the paired test against the first one

The page names non-finite values, torn lines and missing steps of a log. Text from models is data: the page compresses
it and shows it as text only, and a content security policy lets no script run but the page's own. The curves are
plotly's (MIT), 2 MB of the page.

Deliberately left out: a server, trackers' own formats (wandb, tensorboard), and figures that no log has.

    python scripts/report.py runs/first
    python scripts/report.py runs/a runs/b ev/before ev/after --output report.html

Exit codes: 0 the page is written, 2 bad input; if only some runs are readable, the page shows those.
"""

ROOMS = ("sources", "run_facts", "curves", "samples", "page", "command")
