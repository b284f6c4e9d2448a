"""The check of held-out prompts that also train."""

from parts.reading.log_reading import as_number, step_of
from parts.reading.logged_run import LoggedRun

DATA_FILES = (("data", "eval_data"), ("data.train_files", "data.val_files"))  # settings of ours and of verl


def check_held_out(run: LoggedRun):
    """Held-out prompts that also train, as the run counted them or by the names of its files."""
    counts = [row for row in run.rows if as_number(row.get("eval/trained_rows"))]
    files = [(run.config.get(a), run.config.get(b)) for a, b in DATA_FILES]
    if counts:
        of = as_number(counts[0].get("eval/rows"))
        saw = f"{counts[0]['eval/trained_rows']:.0f}" + (f" of {of:.0f}" if of else "")
        saw += " evaluation prompts also occur in training; the accuracy is inflated"
        yield run.find("held-out-trains", "held_out", saw, step_of(counts[0]))
    elif run.values("held_out") and any(train and train == held_out for train, held_out in files):
        yield run.find("held-out-trains", "held_out", "the training file is the evaluation file too")
