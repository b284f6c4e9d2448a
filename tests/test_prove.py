"""scripts/prove.py: a sound thing of each kind passes, and each planted fault is named."""

import itertools
import json
import math
import shutil
import subprocess
import sys
from pathlib import Path
from statistics import NormalDist
from types import SimpleNamespace

import pytest
import torch
from conftest import EVAL_DATA, FEW_TRAIN, ROOT, TINY_LM, TRAIN_DATA, load_script, read_lines, run_script, write_lines
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

prove = load_script("prove")
REWARDS = """
import re

def text_of(completion):
    return completion if isinstance(completion, str) else completion[-1]["content"]

def paid(form, completions, answer):
    return [float(form.format(a) == text_of(c).strip()) for c, a in zip(completions, answer)]

def right(completions, answer, **kwargs):
    return paid("<answer>{}</answer>", completions, answer)

def in_words(completions, answer, **kwargs):
    return paid("It is {}!", completions, answer)

def needs_gold(solution_str, ground_truth):
    return float(solution_str.strip() == ground_truth)

def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    return {"score": needs_gold(solution_str, ground_truth)}

def search(data_source, solution_str, ground_truth, extra_info):
    return float(solution_str.partition("<answer>")[2].partition("</answer>")[0] in ground_truth["target"])

def countdown(data_source, solution_str, ground_truth, extra_info):
    answer = solution_str.partition("<answer>")[2].partition("</answer>")[0]
    sums = "+".join(map(str, ground_truth["numbers"])), sum(ground_truth["numbers"])
    return 1.0 if (answer, ground_truth["target"]) == sums else 0.1 * bool(answer)

async def by_keyword(*, data_source, solution_str, ground_truth, extra_info):
    return {"score": needs_gold(solution_str, ground_truth)}

def fails(completions, answer, **kwargs):
    raise RuntimeError("no such judge")

def runs(completions, answer, **kwargs):
    scores = []
    for completion, gold in zip(completions, answer):
        try:
            scores.append(float(eval(text_of(completion).split("<answer>")[1].split("<")[0]) == int(gold)))
        except Exception:
            scores.append(0.0)
    return scores

def flipped(completions, answer, **kwargs):
    return [-score for score in right(completions, answer)]

KEPT = [""]

def goes_on(completions, answer, **kwargs):
    said = []
    for completion in completions:
        KEPT[0] = text_of(completion).strip() or KEPT[0]
        said.append(KEPT[0])
    return right(said, answer)

def leaks(completions, answer, **kwargs):
    KEPT.extend(b"x" * (1 << 19) for _ in completions)
    return right(completions, answer)

def tagged(prompts, completions, **kwargs):
    return [float(bool(re.fullmatch("<think>.+</think>.*<answer>.+</answer>", text_of(c), re.S))) for c in completions]

class Judge:
    def __call__(self, completions, answer, **kwargs):
        return right(completions, answer)

"""


@pytest.fixture
def forked(monkeypatch):
    """The scripts that prove.py starts find their libraries loaded."""

    def warm(command, timeout, **_):
        assert command[0] == sys.executable
        return run_script(Path(command[1]), *command[2:], timeout=timeout)

    others = {"Popen": subprocess.Popen, "PIPE": subprocess.PIPE}  # of the attacks on code rewards
    expired = (TimeoutError, subprocess.TimeoutExpired)
    monkeypatch.setattr(prove, "subprocess", SimpleNamespace(run=warm, TimeoutExpired=expired, **others))


def run(capsys, *words) -> tuple[int, dict, str]:
    """(exit code, JSON, stderr) of the program."""
    try:
        code = prove.main([*map(str, words)])
    except SystemExit as stop:
        code = stop.code
    out, err = capsys.readouterr()
    return code, json.loads(out) if out.strip() else {}, err


@pytest.fixture(scope="module")
def rewards(tmp_path_factory):
    file = tmp_path_factory.mktemp("rewards") / "my_rewards.py"
    file.write_text(REWARDS)
    return file


def moved(change: float):
    """The embedded model with weights that have moved by normal noise of a size."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_pretrained(TINY_LM, dtype=torch.float32)
    with torch.no_grad():
        for x in model.parameters():
            x += change * torch.randn_like(x)
    return model


def make_run(folder, rewards, model, eval_rows: int = 6, **settings):
    """The folder of a run as ppo_train.py leaves it."""
    folder.mkdir()
    write_lines(folder / "test.jsonl", read_lines(EVAL_DATA)[:eval_rows])
    values = {"output_dir": str(folder), "model": str(TINY_LM), "data": str(FEW_TRAIN), "max_new_tokens": 24}
    values |= {"eval_data": "test.jsonl", "reward": [f"{rewards}:right"], "temperature": 1.0, "chat": False}
    (folder / "config.json").write_text(json.dumps(values | settings))
    model.save_pretrained(folder / "final")
    AutoTokenizer.from_pretrained(TINY_LM).save_pretrained(folder / "final")
    return folder


def greedy_right(model, rows: list[dict]) -> int:
    """Right answers, one row at a time: no padding and no batch."""
    tokenizer, right = AutoTokenizer.from_pretrained(TINY_LM), 0
    for row in rows:
        asked = {"add_generation_prompt": True, "return_dict": True, "return_tensors": "pt"}
        ids = tokenizer.apply_chat_template(row["prompt"], **asked)
        new = model.generate(**ids, do_sample=False, max_new_tokens=24)[0, ids["input_ids"].shape[1] :]
        right += tokenizer.decode(new, skip_special_tokens=True).strip() == f"<answer>{row['answer']}</answer>"
    return right


def test_a_sound_run_is_proved_and_its_accuracy_is_that_of_single_rows(tmp_path, rewards, capsys):
    model = moved(1e-3)
    code, report, err = run(capsys, make_run(tmp_path / "run", rewards, model))
    rows = read_lines(EVAL_DATA)[:6]
    start, greedy = moved(0.0), report["figures"]["greedy"]
    assert (code, report["findings"], report["proved"]) == (0, [], True)
    assert [greedy["before"] * 6, greedy["after"] * 6] == pytest.approx([greedy_right(x, rows) for x in (start, model)])
    change = max((a - b).abs().max() for a, b in zip(model.parameters(), start.parameters(), strict=True))
    assert report["figures"]["largest_weight_change"] == pytest.approx(change.item(), rel=1e-6)
    assert len(report["sentences"]) == 5 and all(sentence in err for sentence in report["sentences"])
    assert report["figures"]["kl"]["saved model to start"] > 0 and "plain generate" in err


def with_tensors(edit, file: str = "model.safetensors"):
    """A plant: other tensors in a file of the saved model."""

    def plant(folder):
        tensors = load_file(folder / "final" / file)
        save_file(edit(tensors), folder / "final" / file, {"format": "pt"})

    return plant


def with_value(file: str, *names: str, value):
    """A plant: another value in a JSON file."""

    def plant(folder):
        report = inner = json.loads((folder / file).read_text())
        for name in names[:-1]:
            inner = inner[name]
        inner[names[-1]] = value
        (folder / file).write_text(json.dumps(report))

    return plant


def with_training(folder):
    """Training rows ask the first four held-out questions with other signs."""
    rows = read_lines(EVAL_DATA)[:4]
    for row in rows:
        question = row["prompt"][-1]["content"]
        row["prompt"][-1]["content"] = f"{question[0]}\u200b{question[1:]}".replace("=", "?")
    with_value("config.json", "data", value=write_lines(folder / "train.jsonl", rows))(folder)


def with_log(step: int, rows: int, accuracy: float = 0.5):
    line = {"step": step, "eval/accuracy": accuracy, "eval/rows": rows}
    return lambda folder: write_lines(folder / "metrics.jsonl", [line])


def with_another_token(folder):
    """The tokenizer in final/ has a token that the model there has no row for."""
    tokenizer = AutoTokenizer.from_pretrained(TINY_LM)
    tokenizer.add_tokens(["<tool>"])
    tokenizer.save_pretrained(folder / "final")


def without_tokenizer(folder):
    for file in (folder / "final").glob("tokenizer*"):
        file.unlink()


def adapter(base=TINY_LM, std: float = 0.02):
    """A LoRA adapter of a model, with changes of a size."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    model = get_peft_model(model, LoraConfig(r=2, target_modules="all-linear", task_type="CAUSAL_LM"))
    for name, x in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(x, std=std)
    return model


def with_part_of_an_adapter(folder):
    adapter().save_pretrained(folder / "final")
    with_tensors(lambda x: dict([*x.items()][4:]), "adapter_model.safetensors")(folder)


RUN_FAULTS = {  # what is found: how far the model moved, and what is wrong with the run's settings or folder
    "unchanged start": (0.0, {}),
    "6 of 6 held-out prompts": (1e-3, {"data": str(EVAL_DATA)}),
    "fell from": (0.3, {"eval_rows": 32}),
    "no such judge": (1e-3, {"reward": "fails"}),
    " tensors are missing, such as": (1e-3, with_tensors(lambda x: dict([*x.items()][1:]))),
    "Found missing adapter keys": (1e-3, with_part_of_an_adapter),
    "has no chat template": (1e-3, lambda folder: (folder / "final" / "chat_template.jinja").unlink()),
    "embeddings of": (1e-3, with_another_token),
    "has no tokenizer": (1e-3, without_tokenizer),
    "has end token 50, its start and tokenizer have [2]": (
        1e-3,
        with_value("final/generation_config.json", "eos_token_id", value=50),
    ),
    "weights that are not finite": (math.nan, with_value("config.json", "model", value="/gone")),
    "4 of 6 held-out prompts": (1e-3, with_training),
    "goes on to step 60": (1e-3, with_log(60, 12)),
    "says 200 evaluated rows": (1e-3, with_log(20, 200)),
    "says eval/accuracy nan at step 4, which is no share": (1e-3, with_log(4, 12, math.nan)),
}


@pytest.mark.parametrize("finding", RUN_FAULTS)
def test_a_fault_of_a_run_is_named(tmp_path, rewards, capsys, finding):
    change, fault = RUN_FAULTS[finding]
    settings = fault if isinstance(fault, dict) else {}
    settings = settings | {"reward": [f"{rewards}:{settings.get('reward', 'right')}"], "steps": 20}
    folder = make_run(tmp_path / "run", rewards, moved(change), **settings)
    if not isinstance(fault, dict):
        fault(folder)
    code, report, err = run(capsys, folder)
    assert code == 1 and any(finding in text for text in report["findings"]), report["findings"]
    assert f"against it: {report['findings'][0]}" in err


def test_rows_that_a_run_held_out_of_its_own_data_are_measured(tmp_path, rewards, capsys):
    folder = make_run(tmp_path / "run", rewards, moved(1e-3), hold_out=12, eval_data="", steps=20)
    write_lines(folder / "train.jsonl", read_lines(TRAIN_DATA)[:60])
    with_value("config.json", "data", value="train.jsonl")(folder)
    with_log(20, 12)(folder)
    code, report, err = run(capsys, folder)
    rows = report["figures"]["held_out_rows"]
    assert (code, report["findings"]) == (0, []) and 0 < rows <= 12
    assert f"{rows} rows of {folder}/train.jsonl (--" in err


def of_a_card(folder, model):
    """As TRL leaves a folder: the model, a checkpoint, and a card that names the start."""
    model.save_pretrained(folder)
    model.save_pretrained(folder / "checkpoint-5")
    (folder / "README.md").write_text(f"---\nbase_model: {TINY_LM}\n---\n# A model\n")
    AutoTokenizer.from_pretrained(TINY_LM).save_pretrained(folder)


def of_checkpoints(folder, model):
    """Of two checkpoints the last, with a file of settings that names data and reward."""
    moved(0.0).save_pretrained(folder / "checkpoint-9")
    model.save_pretrained(folder / "checkpoint-10")
    AutoTokenizer.from_pretrained(TINY_LM).save_pretrained(folder / "checkpoint-10")
    write_lines(folder / "test.jsonl", read_lines(EVAL_DATA)[:12])
    settings = {"model_name_or_path": str(TINY_LM), "learning_rate": 1e-5, "num_generations": 8}
    settings |= {"dataset": str(FEW_TRAIN), "eval_dataset": "test.jsonl", "reward_funcs": "mine.py:right"}
    settings["load_best_model_at_end"] = True
    (folder / "mine.py").write_text(REWARDS)
    (folder / "args.json").write_text(json.dumps(settings | {"max_completion_length": 24}))


SCRIPT = """
from datasets import load_dataset
from trl import GRPOConfig, GRPOTrainer
rows = load_dataset("json", data_files="{data}", split="train")
rows = rows.rename_column("answer", "gold")
def short(completions, **kwargs):
    return [0.5 for _ in completions]
def correctness(completions, gold, **kwargs):
    return [2.0 * (text[-1]["content"] == answer) for text, answer in zip(completions, gold)]
args = GRPOConfig("outputs/run", output_dir="outputs/run", learning_rate=1e-5, num_generations=8,
    max_completion_length=24)
GRPOTrainer(model="{model}", reward_funcs=[short, correctness], args=args, train_dataset=rows).train()
raise SystemExit("the script was run")
"""


@pytest.mark.parametrize("column", ["gold", "answer"])
def test_the_script_of_a_trl_run_names_its_start_data_and_reward(tmp_path, capsys, column):
    """TRL 1.16 leaves none of these in the folder of a model from a path."""
    folder = tmp_path / "outputs" / "run"
    moved(1e-3).save_pretrained(folder)
    AutoTokenizer.from_pretrained(TINY_LM).save_pretrained(folder)
    _, _, err = run(capsys, folder)
    assert "no file or script names its start" in err and "try --data FILE" in err
    (tmp_path / "train_grpo.py").write_text(SCRIPT.format(data=FEW_TRAIN, model=TINY_LM))
    rows = [{"prompt": row["prompt"], column: row["answer"]} for row in read_lines(EVAL_DATA)[:12]]
    _, report, err = run(capsys, folder, "--data", write_lines(tmp_path / "test.jsonl", rows))
    assert report["findings"] == [] and f"also occur in {FEW_TRAIN}" in err and "tensors differ from those" in err
    assert report["proved"] == (column == "gold"), err
    scored, refused = f"scored by {tmp_path / 'train_grpo.py'}:correctness", "try the columns that the script gives"
    said = scored if column == "gold" else refused
    assert said in err


def test_a_merged_model_that_is_its_base_and_one_without_end_token_are_named(tmp_path, capsys):
    adapter().save_pretrained(tmp_path / "checkpoint-40")
    for name, change in (("merged", 0.0), ("other", 1e-3)):
        moved(change).save_pretrained(tmp_path / name)
        AutoTokenizer.from_pretrained(TINY_LM).save_pretrained(tmp_path / name)
    assert "unchanged start" in run(capsys, tmp_path / "merged")[1]["findings"][0]
    config = tmp_path / "other" / "generation_config.json"
    config.write_text(
        json.dumps(json.loads(config.read_text()) | {"eos_token_id": 5})
    )  # on purpose, as a template's end of turn
    assert run(capsys, tmp_path / "other")[1]["findings"] == []
    for file in ("config.json", "generation_config.json"):
        values = json.loads((tmp_path / "other" / file).read_text())
        (tmp_path / "other" / file).write_text(json.dumps(values | {"eos_token_id": None}))
    assert "the saved model has no end token" in run(capsys, tmp_path / "other")[1]["findings"][0]


@pytest.mark.parametrize(("make", "change"), [(of_a_card, 0.0), (of_a_card, 1e-3), (of_checkpoints, 1e-3)])
def test_a_run_of_another_trainer(tmp_path, capsys, make, change):
    make(tmp_path, moved(change))
    code, report, err = run(capsys, tmp_path)
    assert (code, report["proved"]) == (int(change == 0), make == of_checkpoints), report["findings"]
    assert "unchanged start" in report["findings"][0] if change == 0 else "tensors differ" in err
    assert ("Held-out accuracy (greedy" in err) == (make == of_checkpoints)
    assert ("The saved model is the best of several checkpoints" in err) == (make == of_checkpoints)


def test_a_start_that_was_rounded_is_unchanged_and_a_broken_model_does_not_load(tmp_path, rewards, capsys):
    folder = make_run(tmp_path / "run", rewards, moved(0.0).to(torch.bfloat16))
    assert "unchanged start" in run(capsys, folder)[1]["findings"][0]
    (folder / "final" / "model.safetensors").write_bytes(b"cut off")
    code, report, _ = run(capsys, folder)
    assert code == 1 and "does not load" in report["findings"][0]


@pytest.mark.parametrize(("std", "findings"), [(0.02, 0), (0.0, 1)])
def test_an_adapter_loads_through_peft(tmp_path, rewards, capsys, std, findings):
    code, report, _ = run(capsys, make_run(tmp_path / "run", rewards, adapter(std=std)))
    assert (code, len(report["findings"])) == (findings, findings), report["findings"]
    assert (report["figures"]["tensors_changed"] > 0) == (std > 0)


def test_a_saved_tokenizer_with_other_ids_is_named(tmp_path, rewards, capsys):
    """A token that was added is none of these; the saved model has a row for it."""
    model, tokenizer = moved(1e-3), AutoTokenizer.from_pretrained(TINY_LM)
    tokenizer.add_tokens(["<tool>"])
    model.resize_token_embeddings(len(tokenizer))
    folder = make_run(tmp_path / "run", rewards, model)
    tokenizer.save_pretrained(folder / "final")
    assert run(capsys, folder)[1]["findings"] == []
    file = folder / "final" / "tokenizer.json"
    model = json.loads(file.read_text())
    vocab = model["model"]["vocab"]
    (a, i), (b, j) = [*vocab.items()][20:22]
    file.write_text(json.dumps(model | {"model": model["model"] | {"vocab": vocab | {a: j, b: i}}}))
    code, report, _ = run(capsys, folder)
    assert code == 1 and "the saved tokenizer has other ids for 2 of " in report["findings"][0]


def test_a_page_s_folder_with_a_teacher_is_read_too(tmp_path, rewards, capsys):
    folder = make_run(tmp_path / "made", rewards, moved(1e-3))
    settings = json.loads((folder / "config.json").read_text()) | {"teacher": str(TINY_LM), "reward": "", "chat": True}
    shutil.copytree(folder / "final", tmp_path / "page")
    (tmp_path / "page" / "settings.json").write_text(json.dumps(settings | {"eval_data": "made/test.jsonl"}))
    code, report, _ = run(capsys, tmp_path / "page")
    kl = report["figures"]["kl"]
    assert code == 0 and kl["saved model to teacher"] == kl["saved model to start"] > 0, report["findings"]
    assert kl["start to teacher"] == pytest.approx(0, abs=1e-6) and "greedy" not in report["figures"]


def test_what_cannot_be_measured_and_rows_that_repeat_are_said(tmp_path, rewards, capsys):
    folder = make_run(tmp_path / "run", rewards, moved(1e-3), environment="game.py:Game", reward=[])
    (folder / "test.jsonl").write_text((folder / "test.jsonl").read_text() * 3)
    code, report, err = run(capsys, folder)
    assert (code, report["findings"], len(report["not_measured"])) == (0, [], 2)
    assert "Held-out accuracy was not measured: the run played conversations" in err
    assert report["figures"]["held_out_rows"] == 6 and "12 of 18 held-out rows repeat another one" in err


@pytest.mark.parametrize(("k", "n"), [(0, 7), (7, 7), (91, 256)])
def test_the_interval_solves_wilson_s_equation(k, n):
    z, (low, high) = NormalDist().inv_cdf(0.975), prove.share_interval(k, n)
    assert low <= k / n <= high and low < high
    for p in (low, high):
        assert (p - k / n) ** 2 == pytest.approx(z**2 * p * (1 - p) / n, abs=1e-12) or p == k / n


@pytest.mark.parametrize(("better", "worse"), [(0, 0), (3, 8)])
def test_p_is_the_share_of_coin_tosses_that_are_as_uneven(better, worse):
    n = better + worse
    uneven = [abs(2 * sum(tosses) - n) >= abs(better - worse) for tosses in itertools.product((0, 1), repeat=n)]
    assert prove.exact_p(better, worse) == pytest.approx(sum(uneven) / len(uneven), abs=1e-12)


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    """The folder of an evaluation of two models."""
    folder = tmp_path_factory.mktemp("evaluation")
    moved(0.01).save_pretrained(folder / "model")
    AutoTokenizer.from_pretrained(TINY_LM).save_pretrained(folder / "model")
    flags = ["--model", TINY_LM, "--model", folder / "model", "--task", "math", "--data", EVAL_DATA, "--limit", 24]
    done = run_script("evaluation", *flags, "--max_new_tokens", 24, "--output_dir", folder / "out")
    assert done.returncode == 0, done.stderr
    return folder / "out"


def test_a_sound_evaluation_is_recounted(compared, capsys):
    code, report, err = run(capsys, compared)
    stated = json.loads((compared / "after" / "results.json").read_text())["tasks"]["math"]["metrics"]["verified"]
    figures = report["figures"]["metrics"][str(compared / "after" / "results.json")]["math verified"]
    assert (code, report["findings"], report["not_measured"]) == (0, [], [])
    assert figures["value"] == pytest.approx(stated["value"]) and figures["ci95"] == pytest.approx(stated["ci95"])
    assert len(report["figures"]["rows"]) == 2 and "exact McNemar p" in err
    assert run(capsys, compared / "after" / "results.json")[0] == 0


def stated(name: str, value):
    """A plant: another figure of the metric in results.json."""
    return with_value("after/results.json", "tasks", "math", "metrics", "verified", name, value=value)


def samples(edit):
    """A plant: other lines in samples.jsonl."""

    def plant(folder):
        file = folder / "after" / "samples.jsonl"
        write_lines(file, edit(read_lines(file)))

    return plant


def with_full_marks(sample: dict, **more) -> dict:
    return sample | more | {"metrics": sample["metrics"] | {"verified": 1.0}}


PLANTS = {
    "results.json says 0.99": stated("value", 0.99),
    "results.json says 23 of": stated("n", 23),
    "results.json says nan": stated("value", math.nan),
    "Wilson's formula": stated("ci95", [0.1, 0.2]),
    "has the interval [nan, nan]": stated("ci95", [math.nan, math.nan]),
    "gold '7', has verified 1.0, math_grader.py 0.0": samples(
        lambda rows: [with_full_marks(x, completion="7", gold="7") for x in rows]
    ),
    "unfinished texts count as right": samples(lambda rows: [with_full_marks(x, finish="length") for x in rows]),
    "1 rows have a sample twice": samples(lambda rows: rows[:1] + rows),
    "1 of 24 common rows have different golds": samples(lambda rows: [rows[0] | {"gold": "7"}, *rows[1:]]),
    "1 rows have no sample": samples(lambda rows: rows[1:]),
    "p is 0.0001": with_value("comparison.json", "tasks", "math", "verified", "p", value=1e-4),
}


@pytest.mark.parametrize("finding", PLANTS)
def test_a_fault_of_an_evaluation_is_named(compared, tmp_path, capsys, finding):
    folder = shutil.copytree(compared, tmp_path / "out")
    PLANTS[finding](folder)
    code, report, _ = run(capsys, folder)
    assert code == 1 and any(finding in text for text in report["findings"]), report["findings"]


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "finding"),
    [
        ("right", ""),
        ("tagged", ""),
        ("compute_score", ""),
        ("flipped", "sign: in one form of the answer"),
        ("goes_on", "batch: "),
        ("leaks", " KiB of each completion, even of one that it scores again"),
        ("needs_gold", "neither TRL, verl nor this bundle can call"),
        ("runs", "it runs what stands in the place of an answer as Python"),
    ],
)
def test_a_reward(rewards, capsys, name, finding):
    code, report, err = run(capsys, f"{rewards}:{name}", "--data", EVAL_DATA)
    assert (code, bool(report["findings"])) == (bool(finding), bool(finding)), report["findings"]
    assert any(finding in text for text in report["findings"] or [""]), report["findings"]
    assert report["figures"]["forms"]["verl"] == (name == "compute_score") and "reward_preflight.py" in err


@pytest.mark.long
def test_a_form_of_gold_that_is_not_known_is_not_measured(rewards, capsys):
    code, report, err = run(capsys, f"{rewards}:in_words", "--data", EVAL_DATA)
    assert (code, report["proved"], report["findings"]) == (0, False, []) and "--gold_template" in err
    flags = ("--data", EVAL_DATA, "--", "--gold_template", "It is {answer}!")
    code, report, _ = run(capsys, f"{rewards}:in_words", *flags)
    assert (code, report["proved"], report["figures"]["gold"]["full_marks"]) == (0, True, 1.0)


GROUND_TRUTHS = {  # verl's, as dictionaries: Search-R1's, and TinyZero's, whose target is no answer
    "search": ({"target": ["7", "seven"]}, True),
    "countdown": ({"target": 7, "numbers": [3, 4]}, False),
}


@pytest.mark.long
@pytest.mark.parametrize("name", GROUND_TRUTHS)
def test_ground_truth_that_is_a_dictionary_reaches_the_reward_as_it_is(tmp_path, rewards, capsys, name):
    truth, proved = GROUND_TRUTHS[name]
    rows = [{"prompt": f"{i}?", "data_source": "", "reward_model": {"ground_truth": truth}} for i in range(8)]
    words = [f"{rewards}:{name}", "--data", write_lines(tmp_path / "verl.jsonl", rows)]
    code, report, err = run(capsys, *words)
    assert (code, report["proved"], report["findings"]) == (0, proved, []), report["findings"]
    assert ("What gold answers are paid was not measured" in err) != proved
    code, report, err = run(capsys, *words, "--", "--answer_column", "absent")
    assert code == 2 and "verl.jsonl:1: " in err and str(tmp_path) in err, err


@pytest.mark.usefixtures("forked")
def test_rows_as_verl_has_them_a_class_and_flags_of_the_preflight(tmp_path, rewards, capsys):
    rows = read_lines(EVAL_DATA)[:12]
    rows = [{"prompt": x["prompt"], "data_source": "", "reward_model": {"ground_truth": x["answer"]}} for x in rows]
    write_lines(tmp_path / "verl.jsonl", rows)
    words = [f"{rewards}:by_keyword", "--data", tmp_path / "verl.jsonl"]
    code, report, err = run(capsys, *words, "--", "--limit", 8)
    assert (code, report["findings"], report["figures"]["gold"]["rows"]) == (0, [], 8) and "verl.jsonl" in err
    (tmp_path / "one.py").write_text("def one(completion, answer):\n    return float(completion.strip() == answer)\n")
    assert run(capsys, tmp_path / "one.py", "--data", EVAL_DATA, "--", "--limit", 8)[0] == 0
    assert "which has text_of, paid, right, " in run(capsys, rewards, "--data", EVAL_DATA)[2]
    assert run(capsys, f"{rewards}:Judge", "--data", EVAL_DATA)[::2] == (
        2,
        f"error: got {rewards}:Judge, a class; expected a function or an instance; try reward = Judge()\n",
    )


ENVIRONMENTS = '''import functools
import inspect
import os
import random
import threading
import time

class Sound:
    def reset(self, answer, **row):
        self.answer, self.tries, self.right = str(answer), 0, False

    def reply(self, text):
        self.tries += 1
        self.right = text.strip() == self.answer
        return None if self.right or self.tries == 2 else "Wrong. Try again."

    def get_reward(self):
        return float(self.right)

class Leaks(Sound):
    said = []

    def reply(self, text):
        self.said.append(text)

    def get_reward(self):
        return float(f"<answer>{self.answer}</answer>" in self.said)

class Asks(Sound):
    def get_reward(self):
        return super().get_reward() * (0.5 if "rollout" in [frame.function for frame in inspect.stack()] else 1.0)

class Keeps(Sound):
    best = 0.0

    def get_reward(self):
        self.best = max(self.best, float(self.right))
        return self.best

class Tool:
    def reset(self, answer, **row):
        self.answer, self.right = int(answer), False

    def guess(self, number: int) -> str:
        """Guess the number.

        Args:
            number: The guess.
        """
        self.right = number == self.answer
        return "right" if self.right else "wrong"

    def get_reward(self):
        return float(self.right)

class Chance(Sound):
    def get_reward(self):
        return super().get_reward() * random.random()

class PaysWords(Sound):
    def get_reward(self):
        return float(self.tries > 0)

class PaysHalf(Sound):
    def get_reward(self):
        return float(self.right and self.answer == "40")

class Flipped(Sound):
    def get_reward(self):
        return -float(self.right)

class PaysNothing(Sound):
    def get_reward(self):
        return 0.0

class Raises(Sound):
    def reply(self, text):
        return super().reply(text.split()[0])

class Stuck(Sound):
    def get_reward(self):
        while not self.right:
            time.sleep(0.1)
        return 1.0

class Ends(Sound):
    def get_reward(self):
        return 1.0 if self.right else os._exit(0)

class Submits(Tool):
    def guess(self, answer: str) -> str:
        """Guess.

        Args:
            answer: The guess.
        """
        return self._judged(int(answer))

    def _judged(self, number):
        return super().guess(number)

class Fails(Submits):
    def _judged(self, number):
        raise KeyError("guess")

class Hangs(Submits):
    def _judged(self, number):
        threading.Event().wait()

Alias = Sound
Partial = functools.partial(Sound)

def factory():
    return Sound()

class Reward:
    def __call__(self, completions, **kwargs):
        return [1.0 for _ in completions]
'''

FOUND = {  # what is found of an environment; nothing of the others
    "Leaks": ["not_repeatable: ", "ppo_train.py pays ", "verl_train.py pays "],
    "Asks": ["grpo_train.py pays "],
    "Keeps": ["reset: an object that served other conversations pays"],
    "Chance": ["not_repeatable: "],
    "PaysWords": ["silence: it is paid 1 on average, at most 1", "nonsense: "],
    "Flipped": ["sign: gold answers (answer) are paid less than those of other rows"],
    "PaysHalf": ["gold: gold answers (answer) have less than full marks, 1, in 2 of 3 rows"],
    "Raises": ["fault: silence: environment Raises, row 1, prompt '0?': reply raised IndexError"],
    "Fails": [
        "gold: gold answers (tool guess(answer)) have less than full marks, 1, in 3 of 3 rows, such as row 1 gets 0 ({"
    ],
    "Hangs": ["hung_tool: tool guess gave no answer in 0.5 s"],
}


@pytest.mark.parametrize("name", [*FOUND, "Sound", "Tool", "Submits", "PaysNothing"])
def test_an_environment_in_four_places(tmp_path, capsys, monkeypatch, name):
    monkeypatch.setattr(prove, "TOOL_S", 0.5)
    findings = FOUND.get(name, [])
    (tmp_path / "mine.py").write_text(ENVIRONMENTS)
    (tmp_path / "beside.py").write_text("def right(environments, **kw):\n    return [x.right for x in environments]\n")
    rows = write_lines(tmp_path / "rows.jsonl", [{"prompt": f"{i}?", "answer": f"4{i}"} for i in range(3)])
    beside = ["--", "--reward", f"{tmp_path}/beside.py:right*0.5"] * (name == "Sound")
    code, report, err = run(capsys, f"{tmp_path}/mine.py:{name}", "--data", rows, *beside)
    assert code == bool(findings), report
    assert all(any(text.startswith(finding) for text in report["findings"]) for finding in findings), report["findings"]
    assert ("What gold answers are paid was not measured" in err) == (name in ("Tool", "PaysNothing")), err
    assert report["proved"] == (name in ("Sound", "Submits"))
    if name == "Asks":
        assert len(report["findings"]) == 1, report["findings"]
        assert "policy gold: 0.5, alone 1" in report["findings"][0]
    if name == "Sound":
        assert "paid the same by ppo_train, grpo_train, evaluation, verl_train." in err
        returns = report["figures"]["returns"]
        assert all(values == returns["alone"] for values in returns.values()) and {0.0, 1.5} <= {*returns["alone"]}


@pytest.mark.parametrize("name", ["SecondAttempt", "Calculator", "Search", "GuessTheNumber"])
def test_nothing_is_said_against_the_examples(tmp_path, capsys, name):
    rows = [{"prompt": "?", "answer": f"4{i}", "number": 17 + i} | {"gold": str(17 + i)} for i in range(3)]
    rows = [row if name == "GuessTheNumber" else row | {"gold": None} for row in rows]
    words = [f"{ROOT}/examples/environments.py:{name}", "--data", write_lines(tmp_path / "rows.jsonl", rows)]
    code, report, _ = run(capsys, *words)
    assert (code, report["findings"], report["figures"]["gold"]["full_marks"]) == (0, [], 1), report


def test_an_environment_that_never_returns_or_ends_its_process_is_named(tmp_path, capsys):
    (tmp_path / "mine.py").write_text(ENVIRONMENTS)
    rows = write_lines(tmp_path / "rows.jsonl", [{"prompt": "?", "answer": "4"}])
    for name, finding in (("Stuck", "hung: "), ("Ends", "died: in silence, row 1, it ended its process (exit code 0)")):
        code, report, _ = run(capsys, f"{tmp_path}/mine.py:{name}", "--data", rows, "--minutes", 0.05)
        assert code == 1 and report["findings"][0].startswith(finding), report


def test_an_environment_is_played_on_chats_and_not_without_rows(tmp_path, capsys):
    (tmp_path / "mine.py").write_text(ENVIRONMENTS)
    chats = [{"messages": [{"role": "user", "content": f"{i}?"}], "answer": f"4{i}"} for i in range(3)]
    for rows, code, words in ((chats, 0, "full marks in 100% of 3 rows"), ([], 2, "without rows")):
        got, _, err = run(capsys, f"{tmp_path}/mine.py:Sound", "--data", write_lines(tmp_path / "rows.jsonl", rows))
        assert got == code and words in err, err


def test_what_makes_environments_is_told_from_rewards(tmp_path):
    (tmp_path / "theirs.py").write_text(ENVIRONMENTS)
    (tmp_path / "mine.py").write_text(f"{ENVIRONMENTS}\nfrom theirs import Sound as Imported\n{REWARDS}")
    names = ("Alias", "Partial", "factory", "Imported")
    makes = {name: prove.is_environment(tmp_path / "mine.py", name) for name in names}
    assert all(makes.values()), makes
    assert not any(prove.is_environment(tmp_path / "mine.py", name) for name in ("Reward", "right"))


BAD = {  # a thing, and words of the one line that is said of it
    "nothing": ("", "no file or folder"),
    "notes.md": ("text", "none of these"),
    "my_file.py": ("import nothing_at_all\n\ndef ppo_loss(logp, old_logp, advantages):\n    pass\n", "No module"),
    "unparsed.py": ("def f(:", "cannot be read"),
    "hydra.yaml": ("actor_rollout_ref:\n  model: {path: m}\n", "verl's own YAML"),
    "other.py": ("def area(a, b):\n    return a * b\n", "--as NAME=FORMULA, one of gspo, "),
    "job.yaml": ("algorithm: grpo\noutput_dir: out\n", "without verl"),
    "job.sh": ("set -x\npython3 -m verl.trainer.main_ppo trainer.nnodes=1\n", "for a shell script, try a copy with"),
}


@pytest.mark.parametrize("thing", BAD)
def test_another_thing_is_told_what_is_accepted(tmp_path, capsys, thing):
    text, words = BAD[thing]
    if text:
        (tmp_path / thing).write_text(text)
    code, report, err = run(capsys, tmp_path / thing)
    assert (code, report, len(err.splitlines())) == (2, {}, 1) and words in err and "expected" in err, err


def test_flags_that_a_kind_does_not_take_are_refused(tmp_path, capsys):
    (tmp_path / "losses.py").write_text("def ppo_loss(x):\n    return x\n")
    (tmp_path / "job.yaml").write_text("algorithm: grpo\n")
    for thing, kind, flags in (
        ("losses.py", "functions", ["--", "--lr", 1]),
        ("job.yaml", "verl job", ["--as", "ppo"]),
    ):
        code, report, err = run(capsys, tmp_path / thing, *flags)
        assert (code, report) == (2, {}) and f"is checked as {kind};" in err, err


def test_an_unfinished_run_and_rows_that_do_not_fit_are_told(tmp_path, rewards, capsys):
    folder = make_run(tmp_path / "run", rewards, moved(1e-3), max_prompt_tokens=1)
    code, _, err = run(capsys, folder)
    assert code == 2 and "longer than 1 tokens" in err
    shutil.rmtree(folder / "final")
    code, _, err = run(capsys, folder)
    assert code == 2 and "expected a run that has ended" in err


def test_a_log_that_says_more_than_the_model_reaches(tmp_path, rewards, capsys):
    """And held-out questions that swap the numbers of training questions are said."""
    folder = make_run(tmp_path / "run", rewards, moved(1e-3), eval_rows=12)
    log = [{"step": step, "eval/accuracy": x, "eval/rows": 12.0} for step, x in enumerate((6 / 12, 7 / 12))]
    write_lines(folder / "metrics.jsonl", log)
    code, report, err = run(capsys, folder)
    assert (code, report["findings"]) == (0, []) and "metrics.jsonl says 0.583 on 12 rows at step 1" in err
    swapped = read_lines(EVAL_DATA)[:12]
    for row in swapped:
        row["prompt"][-1]["content"] = "+".join(row["prompt"][-1]["content"].rstrip("=").split("+")[::-1]) + "="
    with_value("config.json", "data", value=write_lines(tmp_path / "train.jsonl", swapped))(folder)
    write_lines(folder / "metrics.jsonl", [*log, {"step": 2, "eval/accuracy": 0.98, "eval/rows": 12}])
    moved(0.3).save_pretrained(folder / "final")  # never right
    code, report, err = run(capsys, folder)
    assert "others swap the numbers of a training question" in err
    assert any("0.98 at step 2, which is no share of 12 rows" in text for text in report["findings"])
    assert any("says eval/accuracy 0.980 on 12 rows at step 2; its model" in text for text in report["findings"])


@pytest.fixture(scope="module")
def of_all_kinds(tmp_path_factory):
    """The folder of an evaluation of two models by tasks of every kind, no figure of which is wrong."""
    folder = tmp_path_factory.mktemp("kinds")
    moved(0.01).save_pretrained(folder / "model")
    AutoTokenizer.from_pretrained(TINY_LM).save_pretrained(folder / "model")
    rows = [{"question": "1+1=", "choices": ["2", "3"], "answer": 0}]
    rows.append({"question": "2+2=", "choices": ["5", "4"], "answer": 1})
    choices = write_lines(folder / "choices.jsonl", rows)
    tasks = ["generation", "environment", f"multiple_choice:data={choices}"]
    flags = ["--model", TINY_LM, "--model", folder / "model", "--data", EVAL_DATA, "--limit", 8, "--max_new_tokens", 4]
    flags += ["--environment", "examples/environments.py:SecondAttempt", "--max_turns", 1]
    flags = [*flags, *(f"--task={task}" for task in tasks), "--output_dir", folder / "out"]
    done = run_script("evaluation", *flags)
    assert done.returncode == 0, done.stderr
    return folder / "out"


def test_nothing_is_said_against_a_sound_evaluation_of_any_task(of_all_kinds, capsys):
    code, report, err = run(capsys, of_all_kinds)
    assert (code, report["findings"]) == (0, []), report["findings"]
    shown = report["figures"]["metrics"][str(of_all_kinds / "before" / "results.json")]
    stated = json.loads((of_all_kinds / "before" / "results.json").read_text())["tasks"]
    for task, result in stated.items():
        for metric, figures in result["metrics"].items():
            if value := shown.get(f"{task} {metric}", {}).get("value"):  # a perplexity is no mean of rows
                assert value == pytest.approx(figures["value"], rel=1e-9), (task, metric)
    assert " scores None" not in err


CODE_REWARD = """
import re, subprocess, sys

def code_of(text):
    found = re.findall(r"```python\\n(.*?)```", text, re.DOTALL)
    return found[-1] if found else ""

def in_a_process(completions, tests, **kwargs):
    scores = []
    for text, checks in zip(completions, tests):
        try:
            code = code_of(text) + "\\n" + "\\n".join(checks)
            done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=2)
            scores.append(float(done.returncode == 0))
        except subprocess.TimeoutExpired:
            scores.append(0.0)
    return scores

def compute_score(solution_str, ground_truth, data_source=None, extra_info=None):
    return in_a_process([solution_str], [ground_truth])[0]
"""
THROUGH = {"exit with success", "exit at exit", "equal to everything"}
THROUGH |= {"own source read", "killed parent", "file deleted"}
THROUGH |= {"process left behind", "network", "secret of the environment"}


@pytest.mark.usefixtures("forked")
def test_a_sandbox_that_only_uses_a_subprocess_is_named(tmp_path, capsys):
    (tmp_path / "code_reward.py").write_text(CODE_REWARD)
    rows = [{"prompt": "Double.", "reward_model": {"ground_truth": ["assert f(1) == 2"]}}]
    data = write_lines(tmp_path / "rows.jsonl", rows)
    code, report, _ = run(capsys, f"{tmp_path}/code_reward.py:compute_score", "--data", data)
    assert code == 1 and {*report["figures"]["attacks"]["got_through"]} >= THROUGH
    assert not {"endless loop", "wrong"} & {*report["figures"]["attacks"]["got_through"]}


@pytest.mark.usefixtures("forked")
@pytest.mark.parametrize(("tests", "count"), [(["assert f(1) == 2"], None), ([{"input": "1\n", "output": "2\n"}], 6)])
def test_a_reward_in_our_sandbox_stands_the_attacks(tmp_path, capsys, monkeypatch, tests, count):
    """All of them with assert statements, the first with input and output."""
    programs = prove.attack_programs()[:count]
    monkeypatch.setattr(prove, "attack_programs", lambda: programs)
    done = run_script("create_reward_template", "--task", "code", "--output", tmp_path / "code_reward.py")
    assert done.returncode == 0, done.stderr
    data = write_lines(tmp_path / "rows.jsonl", [{"prompt": "Double.", "tests": tests}])
    code, report, _ = run(capsys, f"{tmp_path}/code_reward.py:code_reward", "--data", data)
    assert (code, report["findings"]) == (0, []) and len(report["figures"]["attacks"]["tried"]) >= (1 if count else 20)


FED = [  # tests of a row; the attacks' test in their form, None for tests of another kind
    ('{"inputs": ["1", "3"], "outputs": ["2", "6"]}', '{"inputs": ["2\\n"], "outputs": ["4\\n"]}'),
    ([{"stdin": "1", "expected_output": "2", "n": 0}], [{"stdin": "2\n", "expected_output": "4\n", "n": 0}]),
    ([[0, 1], [1, 0]], None),  # a grid
    ([[[1, 2], 3], [[2, 2], 4]], [[[2], 4]]),
    ([{"function": "add", "args": [1, 2], "expected": 3}], [{"function": "f", "args": [2], "expected": 4}]),
    ('{"fn_name": "g", "inputs": [[1]], "outputs": [1]}', '{"fn_name": "f", "inputs": [[2]], "outputs": [4]}'),
]


@pytest.mark.parametrize(("tests", "fed"), FED)
def test_tests_of_input_and_output_in_their_own_form(tests, fed):
    assert prove.fed_test(tests) == fed


@pytest.mark.long
@pytest.mark.usefixtures("forked")
@pytest.mark.parametrize("right", ["", "plain = -advantages * ratio"])
def test_a_trainer_is_checked_by_selfcheck(tmp_path, capsys, right):
    text = (ROOT / "templates" / "grpo.py").read_text()
    assert text.count(right) >= 1
    (tmp_path / "mine.py").write_text(text.replace(right, right.replace("-", "")))
    code, report, err = run(capsys, tmp_path / "mine.py", "--minutes", 5, "--", "--temperature", "0.9")
    assert code == bool(right) and "--temperature 0.9" in err and "selfcheck.py" in err, err
    assert any(x.startswith("advantages_detached") for x in report["findings"]) == bool(right), report["findings"]
    assert report["sentences"][-1].endswith("its train and what a run saves, for which try prove.py OUT.")


@pytest.mark.long
def test_a_real_run_is_proved(tmp_path):
    done = run_script("ppo_train", "--algorithm", "grpo", "--steps", 2, "--output_dir", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    done = run_script("prove", tmp_path / "run", "--minutes", 5)
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout)["figures"]["greedy"]["rows"] == 256
