"""Prompts drawn by their running pass rate: what is drawn, what is remembered, and that a resume is exact."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
from conftest import TRAIN_DATA, load_script, read_lines, write_lines
from safetensors.torch import load_file

from parts.foundation.messages import UserError
from parts.sampling.rollouts import batch_rows
from programs.ppo_train.pass_band import RARE, band_metrics, check_band, draw_in_band, next_rates, passes_fully

BAND = SimpleNamespace(seed=3, keep_between=["0.1", "0.9"])
ROWS = [{"id": i} for i in range(50)]


def test_without_rates_the_same_rows_come_as_without_a_band():
    picked, after = draw_in_band(BAND, 50, 30, 90, {})
    assert [ROWS[i] for i in picked] == batch_rows(ROWS, BAND, 30, 90) and after == 120


def test_prompts_outside_come_at_a_tenth_of_their_turns_and_all_come_again():
    """Bounds belong to the band; 60 % of the rows are outside it, and each of 400 passes holds every row once."""
    rates = {str(i): [0.0, 0.0999, 0.1, 0.9, 0.9001][i % 5] for i in range(45)}  # rows 45 to 49 are unseen
    picked, after = draw_in_band(BAND, 50, 0, 10_000, rates)
    passes, counts = after / 50, np.bincount(picked, minlength=50)
    outside = np.array([i < 45 and i % 5 in (0, 1, 4) for i in range(50)])
    assert set(counts[~outside]) <= {int(passes), int(passes) + 1}, "once in each pass"
    shares = counts[outside] / passes
    assert 0.05 < shares.min() and shares.max() < 0.16 and shares.mean() == pytest.approx(RARE, abs=0.01)


def test_a_stream_that_is_cut_goes_on_as_if_it_were_not():
    rates = {str(i): 0.0 for i in range(0, 50, 2)}
    whole, end = draw_in_band(BAND, 50, 7, 200, rates)
    first, middle = draw_in_band(BAND, 50, 7, 83, rates)
    rest, last = draw_in_band(BAND, 50, middle, 117, json.loads(json.dumps(rates)))
    assert first + rest == whole and last == end
    assert draw_in_band(SimpleNamespace(seed=4, keep_between=["0.1", "0.9"]), 50, 7, 200, rates)[0] != whole
    assert draw_in_band(BAND, 3, 0, 5, dict.fromkeys("012", 0.0))[1] > 5, "all outside: it goes on until some come"


def test_running_rates_and_their_shares():
    rates = next_rates({"3": 0.5, "4": 1.0}, [(3, True), (3, True), (8, False), (8, True), (9, None)])
    assert rates == {"3": 0.75, "4": 1.0, "8": 0.5}
    assert next_rates(rates, [(4, False), (4, True)])["4"] == 0.75
    shares = band_metrics(BAND, {"0": 0.0, "1": 0.1, "2": 0.9, "3": 0.95, "4": 1.0}, 10)
    expected = {"seen": 0.5, "below": 0.1, "within": 0.2, "above": 0.2}
    assert shares == {f"prompts/{name}_frac": value for name, value in expected.items()}
    found = [passes_fully(r) for r in ({"a": 1.0, "b": 0.0}, {"a": 0.99, "b": 1.0}, {"a": None, "b": 1.0}, {})]
    assert found == [True, False, None, None]


@pytest.mark.parametrize(
    ("bounds", "group", "message"),
    [
        (["0.1"], 8, "expected two numbers"),
        (["0.9", "0.1"], 8, "0 <= LOW <= HIGH"),
        (["nan", "0.9"], 8, "expected two numbers"),
        (["0", "1"], 8, "includes every pass rate"),
        (["0.1", "0.9"], 1, "expected groups"),
    ],
)
def test_bounds_that_are_none_are_refused(bounds, group, message):
    with pytest.raises(UserError, match=message) as error:
        check_band(SimpleNamespace(keep_between=bounds), group)
    assert all(word in str(error.value) for word in ("got", "expected", "try"))


REWARD = """
def even(prompts, completions, **kwargs):
    return [float(sum(map(ord, str(p))) % 3 == 0 or (sum(map(ord, str(p))) % 3 == 1 and len(str(c)) % 2)) for p, c in
            zip(prompts, completions)]
"""


OURS = ["--algorithm=grpo", "--batch_size=16", "--group_size=4", "--max_new_tokens=4", "--save_every=1", "--lr=1e-3"]


def state_of(run):
    """(running pass rates, next position of the stream) after the last step."""
    saved = json.loads((run / "checkpoints" / "step-000006" / "state.json").read_text())
    return saved["pass_rates"], saved["prompts"]


@pytest.mark.long
def test_a_resumed_run_draws_and_trains_the_same_and_tells_where_the_prompts_are(tmp_path):
    """One run of six steps and one that was stopped after four, on 12 prompts."""
    write_lines(tmp_path / "data.jsonl", read_lines(TRAIN_DATA)[:12])
    (tmp_path / "own.py").write_text(REWARD)
    flags = [*OURS, "--plot_every=0", f"--data={tmp_path / 'data.jsonl'}"]
    flags += [f"--reward={tmp_path / 'own.py'}:even", "--keep_between", "0.1", "0.9"]
    for name, *more in (("whole", "--steps=6"), ("cut", "--steps=4"), ("cut", "--steps=6", "--resume")):
        assert load_script("ppo_train").main([*flags, f"--output_dir={tmp_path / name}", *more]) == 0
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    assert state_of(whole) == state_of(cut)
    assert state_of(cut)[1] > 6 * 4, "prompts outside the band were passed over"
    one, two = (load_file(run / "final" / "model.safetensors") for run in (whole, cut))
    assert all((one[name] == two[name]).all() for name in one)
    lines = read_lines(cut / "metrics.jsonl")
    shares = [{k[8:-5]: v for k, v in line.items() if k.startswith("prompts/")} for line in lines]
    shares = [one for one in shares if one]
    assert len(shares) == 6 and shares[0]["seen"] == pytest.approx(4 / 12) and shares[-1]["seen"] == 1.0
    for one in shares:
        assert one["below"] + one["within"] + one["above"] == pytest.approx(one["seen"])
    assert shares[-1]["above"] > 0 and shares[-1]["below"] > 0
