"""A run's folder: whether the saved model loads and moved, its held-out accuracy, its KL to the start."""

import contextlib
import json
import math
import random
import re
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

from parts.data.chat import as_turns, template_settings
from parts.data.held_out import drawn_tasks, of_swapped, task_of
from parts.data.prompts import encode_prompt, prompt_row, read_prompts
from parts.foundation.bundle import BUNDLE, held_out_source, specs_for
from parts.foundation.messages import UserError, need
from parts.foundation.processes import CpuThreads, torch, transformers
from parts.networks.tokenizers import ending_ids
from parts.reading.logged_run import names_correctness
from parts.reading.run_folder import function_of, json_beside, named_functions
from parts.reading.run_settings import common_settings, settings_of
from parts.rewards.rewards import Reward
from parts.running.output_folder import saved_settings
from parts.sampling.saved_models import answer_texts, answered, dtype_of, load_plainly, reverse_kl, weight_change
from programs.prove.exact_figures import paired_figures, unpaired_p
from programs.prove.proof import Proof, shown

FALL_P = 0.01  # a held-out accuracy that falls with a p below this is a finding
MOST_ROWS = 256  # held-out rows that are measured
BATCH = 32  # rows measured at once; the time for earlier batches says whether another fits
TRAILING = re.compile(r"[.,;:?=]+$")  # ignored at the end of a question
PLAIN = str.maketrans("\u2018\u2019\u201c\u201d\u2013\u2014\u2212", "''\"\"---", "\u200b\u200c\u200d\ufeff\xad")
DEFAULTS = {  # settings that not every program has
    **{"teacher": [], "reward": [], "eval_data": "", "environment": "", "prompt_column": "prompt", "chat": False},
    **{"hold_out": 0, "steps": 0, "reward_source": "", "is_best": False},
    **{"chat_template_kwargs": "", "max_prompt_tokens": 512, "max_new_tokens": 256, "temperature": 1.0},
}
MODEL_NAMES = ("model", "model_name_or_path", "pretrain", "model_name", "base_model", "model_path", "model_id")
NAMES_OF_TRL = {"max_prompt_length": "max_prompt_tokens", "max_completion_length": "max_new_tokens"}


def values_of(folder: Path) -> dict:
    """The settings saved in a run's folder, by our scripts or a page; {} if it is no run's folder."""
    with contextlib.suppress(UserError, OSError, ValueError):  # a model's config.json
        values = json_beside(folder, "settings.json")
        values = values if {"model", "data"} <= values.keys() else saved_settings(folder)
        return values if {"model", "data"} <= values.keys() else {}
    return {}


def other_settings(folder: Path) -> dict:
    """What the folder of another trainer says of its run, such as TRL's; {} without a saved model.

    The start is the base that a file of settings, the adapter or the model's card names; "" if none does.
    """
    checkpoints = sorted(folder.glob("checkpoint-*[0-9]"), key=lambda path: int(path.name.rpartition("-")[2]))
    named = [x for x in sorted(folder.glob("*")) if re.search("final|model|merged|adapter|best|policy", x.name)]
    places = [folder, *named, *reversed(checkpoints)]
    saved = next((x for x in places if (x / "adapter_config.json").is_file() or [*x.glob("*.safetensors")]), None)
    if not saved:
        return {}
    script, flat = settings_of(folder) or (folder, {})
    known, bases = common_settings(flat), [flat.get(name) for name in MODEL_NAMES]
    # a merged model lies in its adapter's folder, or beside its run's checkpoints; other neighbours are other runs'
    adapters = [saved, saved.parent, *sorted(saved.parent.glob("checkpoint-*[0-9]"))]
    bases += [json_beside(x, "adapter_config.json").get("base_model_name_or_path") for x in adapters]
    cards = [x.read_text(encoding="utf-8", errors="replace") for x in folder.glob("README.md")]
    bases += re.findall(r"^base_model: *(\S+)$", "".join(cards), re.MULTILINE)
    values = {name: known[name] for name in ("data", "eval_data") if isinstance(known.get(name), str)}
    numbers = {"max_new_tokens": known.get("max_length"), "temperature": known.get("temperature")}
    values |= {name: x for name, x in numbers.items() if isinstance(x, int | float)}  # no expression of a script
    given = str(known.get("reward", ""))
    names = named_functions(script, re.findall(r"\w+", given))[1] if script.suffix == ".py" else []
    correct = [name for name in names if names_correctness(name)] or names
    if re.search(r"\.py:\w+$", given):
        values["reward"] = given
    elif len(correct) == 1:
        values |= {"reward": f"{script}:{correct[0]}", "reward_source": function_of(script, correct)[1]}
    bases = [x for x in bases if isinstance(x, str) and (script.suffix != ".py" or re.fullmatch(r"[\w./~-]+", x))]
    model = max(bases, key=lambda x: "/" in x or Path(x).exists(), default="")  # one word may be a script's variable
    is_best = str(flat.get("load_best_model_at_end")).lower() == "true" or "best" in saved.name
    return {"data": "", **values, "model": model, "saved": str(saved), "is_best": is_best}


def run_settings(folder: Path, held_out: str = "") -> SimpleNamespace:
    """A run's settings under our names, with paths as seen from here.

    `saved` is the folder of the trained model; `reward` and `teacher` are lists. `held_out` replaces its eval_data.
    """
    values, remarks = values_of(folder) or other_settings(folder), []
    is_page = {"model", "data"} <= json_beside(folder, "settings.json", remarks).keys()
    got = f"got {folder / 'settings.json'}, which is no JSON object"
    need(values["model"] or not remarks, f"{got}; expected a run's settings; try the run's copy of that file")
    values = {**DEFAULTS, **{NAMES_OF_TRL.get(name, name): value for name, value in values.items()}}
    values |= {"eval_data": held_out, "hold_out": 0, "is_best": False} if held_out else {}

    def place(name: str) -> str:
        """A path as seen from here, found in the run's folder, its parents or the bundle; other names unchanged."""
        places = (Path(name), folder / name, *(parent / name for parent in folder.resolve().parents), BUNDLE / name)
        return str(next((path for path in places if name and path.exists()), name))

    saved = Path(values.pop("saved", folder if is_page else folder / "final"))
    run = SimpleNamespace(**values, folder=folder, saved=saved, is_page=is_page, held_out_rows=math.inf)
    run.remarks = remarks
    for name in ("model", "data"):
        setattr(run, name, place(values[name]))
    run.eval_data, run.template = place(held_out_source(run)), template_settings(run)
    rewards, teachers = ([x] if isinstance(x, str) else x for x in (run.reward or [], run.teacher or []))
    if not rewards and not teachers and not run.environment and run.data and values_of(folder):
        with contextlib.suppress(UserError):  # the rows fit no reward of ours
            rewards = specs_for(run.data, [])
    run.reward = ["".join((place(file), *rest)) for file, *rest in (spec.rpartition(":") for spec in rewards)]
    run.score_with = run.reward
    if run.reward_source:  # to import a script would train
        run.temporary = tempfile.TemporaryDirectory()
        copy = Path(run.temporary.name, "rewards.py")
        copy.write_text(run.reward_source, encoding="utf-8")
        run.score_with = [f"{copy}:{spec.rpartition(':')[2]}" for spec in run.reward]
    run.teacher = [place(name.partition("=")[2] or name) for name in teachers]
    return run


def rows_of(source: str, run) -> list[dict]:
    """Rows {"prompt", "columns"} of a file."""
    return [prompt_row(row, run.prompt_column, place) for place, row in read_prompts(source, run.prompt_column)]


def prove_run(folder: Path, seconds: float, held_out: str = "") -> Proof:
    """Measure a run within `seconds`, on the rows `held_out` or its own; the first batch is measured in any case."""
    started, run = time.perf_counter(), run_settings(folder, held_out)
    proof = Proof("run", str(folder), not_measured=run.remarks)
    need(run.saved.is_dir(), f"got {folder} without {run.saved}; expected a run that has ended; try it then")
    device = torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
    if device.type == "cpu":
        CpuThreads().begin(SimpleNamespace(threads="auto"), device)
    source = run.model if run.model and not any(run.saved.glob("*token*")) else run.saved
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(source)
        networks = {"after": load_plainly(run.saved)}
    except Exception as error:  # transformers raises many kinds for a damaged folder
        proof.find(f"the saved model {run.saved} with {source}'s tokenizer does not load: {error!r:.300}")
        return proof
    run.start = f"its start {run.model} does not load here" if run.model else "no file or script names its start"
    for name, source in ([("before", run.model)] if run.model else []) + [("teacher", x) for x in run.teacher[:1]]:
        try:
            networks[name] = load_plainly(source)
        except Exception as error:  # the start may be deleted, the teacher behind a server
            proof.not_measured.append(f"the {name} model {source} does not load here: {str(error)[:200]}")
    prove_weights(run, proof, networks, tokenizer)
    with contextlib.suppress(Exception):  # the start may have no tokenizer
        prove_tokenizer(run, proof, networks["after"], transformers.AutoTokenizer.from_pretrained(run.model), tokenizer)
    networks = {name: network.to(device).eval() for name, network in networks.items()}
    held_out = prove_overlap(run, proof, tokenizer)
    obstacles = {
        "the run played conversations; try evaluation.py --environment": run.environment,
        "the run names no held-out data that can be read; try --data FILE": not held_out,
        f"{run.start}; try {run.saved / 'settings.json'} with model, data and reward": "before" not in networks,
        "the saved weights are not finite": not proof.figures["weights_are_finite"],
    }
    reasons = [text for text, holds in obstacles.items() if holds]
    if reasons:
        proof.is_open = True
        for figure in ("Held-out accuracy", "KL"):
            proof.skip(figure, reasons[0])
        return proof
    rows = [held_out[i] for i in random.Random(0).sample(range(len(held_out)), len(held_out))]
    chat = run.chat and (bool(tokenizer.chat_template) or not run.is_page)
    for row in rows:
        row["prompt_ids"] = encode_prompt(tokenizer, as_turns(row["prompt"], chat), **run.template)
    rows = [row for row in rows if 0 < len(row["prompt_ids"]) <= run.max_prompt_tokens][:MOST_ROWS]
    got = f"got {folder}, whose held-out rows of {run.eval_data} are all longer than {run.max_prompt_tokens} tokens"
    need(rows, f"{got}; expected rows that fit")
    measured = None
    try:
        measured = Measurement(run, networks, tokenizer)
        measured.go_through(rows, seconds - (time.perf_counter() - started))
    except UserError as error:
        need(measured or run.reward_source, str(error))
        if not run.reward_source:
            proof.find(f"the run's reward fails on what the models answer: {error}")
            return proof
        proof.is_open = True  # the script may give its rows other columns
        fails = f"{run.reward[0]} fails on {run.eval_data}; try the columns that the script gives its rows: {error}"
        proof.skip("Held-out accuracy", fails)
        return proof
    describe_accuracy(run, proof, measured)
    describe_kl(proof, measured, device)
    return proof


def prove_tokenizer(run, proof: Proof, network, before, after) -> None:
    """Add findings where the saved tokenizer does not fit the saved model or the start."""
    old, new, start = before.get_vocab(), after.get_vocab(), f"its start {run.model}"
    if not any(run.saved.glob("*token*")) and not (run.saved / "adapter_config.json").is_file():  # it takes its base's
        advice = "try saving the start's beside the model; measured with the start's"
        proof.find(f"{run.saved} has no tokenizer; {advice}")
    if count := sum(new.get(token) != number for token, number in old.items()):
        proof.find(f"the saved tokenizer has other ids for {count} of {len(old)} tokens of {start}")
    if before.chat_template and not after.chat_template:
        proof.find(f"the saved tokenizer has no chat template, that of {start} has one")
    rows = network.get_input_embeddings().weight.shape[0]
    if len(new) > max(rows, len(old)):
        proof.find(f"the saved model has embeddings of {rows} tokens, the saved tokenizer has {len(new)}")


def prove_weights(run, proof: Proof, networks: dict, tokenizer) -> None:
    """Report how far the weights moved; none, or values that are not finite, are findings."""
    loads, after = f"{run.saved} loads in transformers {transformers.__version__}", networks["after"]
    proof.figures["weights_are_finite"] = all(bool(x.isfinite().all()) for x in after.state_dict().values())
    if not proof.figures["weights_are_finite"]:
        proof.find("the saved model has weights that are not finite")
    if "before" not in networks:
        proof.say(f"{loads}; {run.start}, so that its weights cannot be compared.")
        return
    try:
        change = weight_change(networks["before"], networks["after"], dtype_of(run.saved))
    except (KeyError, RuntimeError) as error:
        proof.find(f"the saved model has other tensors than its start {run.model}: {str(error)[:200]}")
        proof.figures["largest_weight_change"] = None
        return
    start, saved = (networks[name].generation_config.eos_token_id for name in ("before", "after"))
    usual, ends = ending_ids(start, tokenizer), {*(saved if isinstance(saved, list) else [saved])}
    if start is not None and not ends & {*usual, *tokenizer.added_tokens_decoder}:  # such as a template's <|im_end|>
        text = f"the saved model has {'no end token' if saved is None else f'end token {saved}'}"
        proof.find(f"{text}, its start and tokenizer have {usual}: its answers run to the token limit")
    largest, share = change["largest_weight_change"], change["tensors_changed"]
    proof.figures |= {key: value if math.isfinite(value) else str(value) for key, value in change.items()}
    if not largest:
        proof.find(f"the saved model is the unchanged start {run.model}: every weight is the same")
    proof.say(f"{loads}; {share:.0%} of its tensors differ from those of {run.model}, by at most {largest:.3g}.")


def asked_by(row: dict, with_columns: bool) -> tuple[str, str]:
    """`task_of` a row, also without punctuation at its end, typographic quotes and dashes, and invisible characters."""
    asked, columns = task_of(row, with_columns)
    return TRAILING.sub("", asked.translate(PLAIN)) or asked, columns


def split_rows(run, tokenizer) -> tuple[list[dict], list[dict]]:
    """(Training rows, held-out rows), as the run's --hold_out draws them or from its two files."""
    if run.eval_data:
        return rows_of(run.data, run), rows_of(run.eval_data, run)
    rows, with_columns = rows_of(run.data, run), bool(run.environment)
    ids = [encode_prompt(tokenizer, as_turns(row["prompt"], run.chat), **run.template) for row in rows]
    rows = [row for row, prompt in zip(rows, ids, strict=True) if len(prompt) <= run.max_prompt_tokens]
    drawn = drawn_tasks([task_of(row, with_columns) for row in rows], run.hold_out)
    parts = [[row for row in rows if (task_of(row, with_columns) in drawn) == side] for side in (False, True)]
    run.eval_data = f"{run.data} (--hold_out {run.hold_out})"
    return parts[0], parts[1]


def prove_overlap(run, proof: Proof, tokenizer) -> list[dict]:
    """The distinct held-out rows; prompts of theirs that also occur in training are a finding."""
    if not run.eval_data and not run.hold_out:
        proof.skip("Overlap of training and held-out prompts", "the run names no held-out data")
        return []
    held_out, with_columns = [], bool(run.environment)
    try:
        held_out = rows_of(run.eval_data, run) if run.eval_data else []
        training, held_out = split_rows(run, tokenizer)
    except UserError as error:
        proof.skip("Overlap of training and held-out prompts", str(error)[:200])
        return held_out
    trained, run.held_out_rows = {asked_by(row, with_columns) for row in training}, len(held_out)
    once = {json.dumps(row, sort_keys=True, default=str): row for row in held_out}
    repeated = f"; {len(held_out) - len(once)} of {len(held_out)} held-out rows repeat another one and are left out"
    repeated *= len(once) < len(held_out)
    held_out = [*once.values()]
    tasks = [asked_by(row, with_columns) for row in held_out]
    count, new = sum(task in trained for task in tasks), [asked for asked, _ in {*tasks} - trained]
    proof.figures |= {"held_out_rows": len(held_out), "held_out_rows_that_train": count}
    text = f"{count} of {len(held_out)} held-out prompts of {run.eval_data} also occur in {run.data}"
    also = of_swapped(new, {asked for asked, _ in trained}).replace("of them", "others")
    proof.say(f"{text}, compared without case, white space, final punctuation and system prompt{also}{repeated}.")
    if count:
        proof.find(f"{text}: the accuracy is inflated")
    return held_out


class Measurement:
    """Answers of the start and the saved model to the same rows: whether they are right, and the KL of sampled ones."""

    def __init__(self, run, networks: dict, tokenizer):
        self.run, self.networks, self.tokenizer = run, networks, tokenizer
        self.reward = Reward(run.score_with) if run.reward else None
        sampled = {"do_sample": True, "temperature": run.temperature, "top_k": 0, "top_p": 1.0}
        self.ways = ({"greedy": {"do_sample": False}} if self.reward else {}) | {"sampled": sampled}
        self.right = {way: {"before": [], "after": []} for way in self.ways}
        self.kl, self.rows = {}, 0  # {pair of networks: (sum, tokens)}

    def go_through(self, rows: list[dict], seconds: float) -> None:
        """Measure batches while the next one should fit into `seconds`, by the mean time so far."""
        begin, spent = time.perf_counter(), 0.0
        for start in range(0, len(rows), BATCH):
            if start and spent * (1 + BATCH / start) > seconds:
                break
            self.measure(rows[start : start + BATCH])
            self.rows, spent = min(start + BATCH, len(rows)), time.perf_counter() - begin

    def measure(self, batch: list[dict]) -> None:
        """Measure one batch; the sampling seed depends only on the batch's place.

        The KL on sampled answers is that of the saved model to its start, and of either model to a teacher.
        """
        prompts = [row["prompt_ids"] for row in batch]
        for way, how in self.ways.items():
            for name in ("before", "after"):
                model = self.networks[name]
                torch.manual_seed(self.rows)
                answers = answered(model, self.tokenizer, prompts, max_new_tokens=self.run.max_new_tokens, **how)
                if self.reward:
                    texts = answer_texts(model, self.tokenizer, answers)
                    first = next(iter(self.reward(batch, texts, answers)[1].values()))
                    self.right[way][name] += [score is not None and score >= 1 for score in first]
                tokens = sum(map(len, answers)) if way == "sampled" else 0
                for other in {"before": ["teacher"], "after": ["teacher", "before"]}[name]:
                    if tokens and other in self.networks:
                        mean = reverse_kl(model, self.networks[other], prompts, answers, self.run.temperature)
                        total, count = self.kl.get((name, other), (0.0, 0))
                        self.kl[name, other] = total + mean * tokens, count + tokens


def nearest_count(share: float, rows: int) -> int:
    """The count of rows nearest to a share of them; 0 for nan."""
    return min(range(rows + 1), key=lambda count: abs(share * rows - count))


def compare_with_log(run, proof: Proof, measured: Measurement) -> str:
    """Add findings if the logged accuracies are not those of the models; returns the last one as a clause."""
    by_step = {}
    with contextlib.suppress(OSError, ValueError):
        for line in (run.folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines():
            entry = json.loads(line or "{}")
            value, rows = entry.get("eval/accuracy"), entry.get("eval/rows")
            if isinstance(value, float | int) and isinstance(rows, float | int) and rows > 0:
                by_step[entry.get("step", 0)] = (value, int(rows))
    logged = [(step, *by_step[step]) for step in sorted(by_step)]
    if not logged:
        return ""
    if 0 < run.steps < logged[-1][0]:
        proof.find(f"metrics.jsonl goes on to step {logged[-1][0]}, but the run's settings say {run.steps} steps")
    if (most := max(rows for _, _, rows in logged)) > run.held_out_rows:
        proof.find(f"metrics.jsonl says {most} evaluated rows, {run.eval_data} has {run.held_out_rows}")
    for step, value, rows in logged:
        gap = abs(value * rows - nearest_count(value, rows))
        if not gap <= 0.02 + 1e-4 * rows:  # logs may be rounded to four digits
            proof.find(f"metrics.jsonl says eval/accuracy {value:g} at step {step}, which is no share of {rows} rows")
            break
    ends = [("after", logged[-1])] + ([("before", logged[0])] if logged[0][0] == 0 and len(logged) > 1 else [])
    for name, (step, value, rows) in ends:
        right = nearest_count(value, rows)
        reached = [measured.right[way][name] for way in measured.ways]
        chance = max(unpaired_p(right, rows, sum(x), len(x)) for x in reached)
        if chance < FALL_P:
            shares = ", ".join(f"{way} {sum(x) / len(x):.3f}" for way, x in zip(measured.ways, reached, strict=True))
            shares = f"its model reaches {shares} on {len(reached[0])} rows (Fisher's exact p = {chance:.2g} at best)"
            proof.find(f"metrics.jsonl says eval/accuracy {value:.3f} on {rows} rows at step {step}; {shares}")
    step, value, rows = logged[-1]
    return f"; metrics.jsonl says {value:.3f} on {rows} rows at step {step}"


def describe_accuracy(run, proof: Proof, measured: Measurement) -> None:
    """Add the sentences on held-out accuracy; a significant fall is a finding."""
    if not run.reward:
        proof.is_open |= not run.teacher
        names = f"no file names its reward; try {run.saved / 'settings.json'} with model, data and reward"
        proof.skip("Held-out accuracy", "the run has no reward" if run.teacher else names)
        return
    if run.is_best:
        proof.say(
            "The saved model is the best of several checkpoints: if these rows chose it, its accuracy is inflated."
        )
    log = compare_with_log(run, proof, measured)
    for way in measured.ways:
        figures = paired_figures(measured.right[way]["before"], measured.right[way]["after"])
        proof.figures[way] = figures
        how = "greedy" if way == "greedy" else f"one sample a prompt at temperature {run.temperature:g}"
        before, after = (f"{shown(figures[x])} ({shown(figures[f'ci95_{x}'])})" for x in ("before", "after"))
        test = f"{figures['better']} rows better, {figures['worse']} worse, exact McNemar p = {figures['p']:.2g}"
        proof.say(
            f"Held-out accuracy ({how}, transformers' plain generate, scored by {run.reward[0]}) goes from {before} to "
            f"{after} on {figures['rows']} rows of {run.eval_data}, 95 % Wilson intervals; {test}{log}."
        )
        log = ""
        if figures["after"] < figures["before"] and figures["p"] < FALL_P:
            proof.find(f"held-out accuracy ({how}) fell from {before} to {after}; {test}")


def describe_kl(proof: Proof, measured: Measurement, device) -> None:
    """Add the sentence on the KL and the device that measured it."""
    means = {pair: total / count for pair, (total, count) in measured.kl.items()}
    names = {"before": "start", "after": "saved model", "teacher": "teacher"}
    proof.figures["kl"] = {f"{names[p]} to {names[q]}": value for (p, q), value in means.items()}
    tokens = measured.kl.get(("after", "before"), (0, 0))[1]
    parts = "; ".join(f"of the {names[p]} to the {names[q]} {value:.3g}" for (p, q), value in means.items())
    where = f"a CPU ({torch.get_num_threads()} threads)" if device.type == "cpu" else str(device)
    proof.figures |= {"kl_tokens": tokens, "measured_rows": measured.rows, "device": where}
    proof.say(
        f"KL in nats a token, {parts or 'none sampled'}: exact over the vocabulary, on {tokens} tokens sampled "
        f"for {measured.rows} held-out prompts; measured in fp32 on {where}."
    )
