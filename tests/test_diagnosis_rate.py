"""benchmarks/diagnosis.py: the plants, the score by hand, and a part of the measurement itself."""

import json
import sys

import pytest
from conftest import ROOT, load_module, warm_process

from parts.reading.causes.ranking import CAUSES
from parts.reading.dialects import WORDS

sys.path.insert(0, str(ROOT / "benchmarks"))
diagnosis = load_module(ROOT / "benchmarks" / "diagnosis.py", "diagnosis_benchmark")
import posted_logs  # noqa: E402
from planted import faults, rewards, runs, score  # noqa: E402

ONE_OF_EACH = {fault.cause: fault for fault in faults.FAULTS}


@pytest.mark.parametrize("cause", ONE_OF_EACH)
def test_files_of_a_run_do_not_name_its_fault(cause, tmp_path):
    fault = ONE_OF_EACH[cause]
    names = {name for name in vars(rewards) if callable(getattr(rewards, name))} - set(rewards.READERS) - {"right"}
    plan = faults.plan_of(fault, fault.trainers[-1], 0)
    assert plan == faults.plan_of(fault, fault.trainers[-1], 0), "the seed draws everything"
    folder = tmp_path / "run"
    folder.mkdir()
    runs.write_files(plan, folder, "model")
    texts = [path.read_text() for path in folder.iterdir() if path.suffix in (".py", ".sh")]
    compile((folder / "reward.py").read_text(), "reward.py", "exec")
    assert not [other.cause for other in faults.FAULTS for text in texts if other.cause in text]
    publics = {public for public, _ in plan.parts.values()}
    assert not [name for name in names - publics for text in texts if f"def {name}(" in text]


def test_advice_that_feeds_a_fault_is_told_from_what_helps_and_no_remedy_feeds_its_own():
    def feeds(cause: str, change: str) -> bool:
        return bool(score.harmful(cause, {"causes": [{"cause": "any", "change": change, "decide_with": None}]}))

    assert feeds("part_bought", "Raise --max_new_tokens to 512.") and feeds("kl_holds_policy", "increase beta")
    assert not feeds("part_bought", "Pay length only beside a right answer; do not raise the limit.")
    assert not feeds("limit_too_short", "a limit of 64 tokens: raise --max_new_tokens")
    for cause in CAUSES:
        for words in WORDS.values():
            assert not feeds(cause.name, cause.change.format(**words, reward="correct"))


def test_tallies_by_hand():
    def answer(cause, full, alone=()):
        said = [{"causes": [{"cause": name} for name in names], "lacked": ["samples"]} for names in (full, alone)]
        return score.Answer({"cause": cause, "variant": "v", "trainer": "ppo", "seed": 0}, "", *said)

    answers = [answer("too_hard", ["too_hard"], ["too_hard"]), answer("too_hard", ["too_sparse", "too_hard"])]
    # named third: no hit, and one cause too many
    answers.append(answer("part_bought", ["too_easy", "too_hard", "part_bought"]))
    answers += [answer("healthy", []), answer("healthy", [], ["nothing_moves"]), answer("noise", [])]
    figures = score.tallies(answers)
    assert figures["first"] == (1, 3) and figures["first two"] == (2, 3) and figures["more than two"] == (1, 6)
    assert figures["blamed healthy runs"] == (1, 2) and figures["blamed noise"] == (0, 1)
    assert figures["first, log alone"] == (1, 3) and figures["says what it lacks, log alone"] == (3, 3)
    assert {"first", "first two", "more than two", "blamed healthy runs"} <= set(score.missed(figures))


def test_table_of_posted_logs_is_what_diagnose_says_today():
    page = (ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8")
    assert "\n".join(posted_logs.table()) in page


FEW = {"near_greedy_sampling", "gold_mismatch", "too_hard", "limit_too_short"}  # each of another trainer


@pytest.mark.long
def test_a_part_of_the_measurement(tmp_path, capsys, monkeypatch):
    """A cause of every trainer and a healthy run, trained for 8 or 12 steps, asked about by scripts/diagnose.py."""
    part, write_noise = diagnosis.chosen, diagnosis.write_noise
    healthy = {(faults.HEALTHY, "grpo", 0)}

    def shorter(*run):
        plan = faults.plan_of(*run)
        plan.settings["steps"] = 12 if plan.cause == "healthy" else 8
        return plan

    monkeypatch.setattr(diagnosis, "warm_process", warm_process)
    monkeypatch.setattr(diagnosis, "plan_of", shorter)
    few = lambda args: [run for run in part(args) if run[0].cause in FEW or run in healthy]  # noqa: E731
    monkeypatch.setattr(diagnosis, "chosen", few)
    monkeypatch.setattr(diagnosis, "write_noise", lambda folder, seed: seed % 10 or write_noise(folder, seed))
    monkeypatch.setattr(sys, "argv", ["diagnosis.py", "--part", "--workers", "1", "--runs", str(tmp_path)])
    diagnosis.main()
    labels = [json.loads(path.read_text()) for path in tmp_path.glob("*/*/label.json")]
    assert {label["cause"] for label in labels} == FEW | set(score.NONE)
    assert len({label["trainer"] for label in labels if label["cause"] in FEW}) == len(faults.ALL)
    assert {x["exit_code"] for x in labels if x["cause"] == "healthy"} == {0}
    wrong = capsys.readouterr().out.partition("beyond their limits: ")[2].strip().split("; ")
    assert not {"first", "more than two", "harmful advice", "blamed healthy runs", "blamed noise"} & set(wrong)
