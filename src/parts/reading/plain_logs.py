"""Logs of no framework: CSV files, lines of name=value, and the columns that stand for known figures."""

import csv
import difflib
import io
import re

from parts.reading.logged_run import UnreadableError

# what --columns calls a figure, and TRL's name for it, under which it is read
FIGURES = {
    "step": "step",
    "reward": "reward",
    "reward_std": "reward_std",
    "accuracy": "eval_reward",
    "length": "completions/mean_length",
    "truncated": "completions/clipped_ratio",
    "zero_std": "frac_reward_zero_std",
    "kl": "kl",
    "entropy": "entropy",
    "loss": "loss",
    "clip_frac": "clip_ratio/region_mean",
    "lr": "learning_rate",
    "grad_norm": "grad_norm",
}
NAMED_COLUMNS = "named columns"
PAIR = re.compile(r"([A-Za-z_][\w/.@-]*)['\"]?\s*[=:]\s*(?=[-+.\d]|nan|inf)([-+\w.]+)", re.IGNORECASE)


def number_or_text(text):
    """A word of a command or a YAML value as a number, truth value or text."""
    if not isinstance(text, str):
        return text
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return {"true": True, "false": False, "null": None, "none": None}.get(text.strip().lower(), text.strip("'\""))


def plain_rows(text: str) -> list[dict]:
    """The rows of a CSV file (wandb's export is one) or of lines with two or more name=value; [] of other texts."""
    text = text.lstrip("\ufeff\n")
    header = text.partition("\n")[0]
    separator = max(",;\t", key=header.count)
    if separator in header and header[0] not in "{[" and not PAIR.search(header):
        rows = list(csv.DictReader(io.StringIO(text), delimiter=separator))
        if any(re.fullmatch(r"[-+]?[.\d]+(e[-+]?\d+)?", str(cell)) for row in rows[:9] for cell in row.values()):
            return [{short_name(name): cell for name, cell in row.items() if name} for row in rows]
    pairs = [dict(PAIR.findall(line)) for line in text.splitlines()]
    return [{short_name(name): value for name, value in row.items()} for row in pairs if len(row) > 1]


def short_name(name: str) -> str:
    """A column's name without the run before it, as wandb writes it: "run - train/reward", whose step is "Step"."""
    name = name.strip().rpartition(" - ")[2]
    return "step" if name.lower() in ("step", "steps", "iter", "iteration", "global_step", "_step") else name


def renamed(rows: list[dict], columns: dict[str, str], path) -> list[dict]:
    """Rows with the columns that were named under TRL's names, in place of what the log has under these."""
    names = {str(name) for row in rows for name in row}
    if not rows:
        raise UnreadableError(f"got {path} without a column; expected JSONL, CSV, or lines of name=value")
    for figure, column in columns.items():
        column = short_name(column)
        if column not in names:
            near = difflib.get_close_matches(column, names, n=1)
            raise UnreadableError(
                f"got --columns {figure}={column}, which {path} does not have; expected one of its columns: "
                f"{', '.join(sorted(names)[:20])}" + (f"; try {figure}={near[0]}" if near else "")
            )
    sources = {FIGURES[figure]: short_name(column) for figure, column in columns.items()}
    kept = [{name: value for name, value in row.items() if name not in sources} for row in rows]
    return [
        old | {name: row[column] for name, column in sources.items() if column in row}
        for old, row in zip(kept, rows, strict=True)
    ]
