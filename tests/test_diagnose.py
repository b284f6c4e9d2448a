"""diagnose.py: every finding fires on its material and on no healthy run; all formats; bad input; the plot.

tests/data/diagnose holds excerpts of real runs of ppo_train.py, grpo_train.py, the pages of templates/ and TRL on the
embedded model, faults provoked (learning rate x 100, constant reward, temperature 0.01, a reward for length, scores of
100 under a value clip of 0.2, …; ppo_mismatch and ppo_ratio are of copies with a wrong temperature in the sampler), and
logs that verl 0.9.1's own metric and logger functions wrote.
"""

import copy
import dataclasses
import inspect
import itertools
import json
import math
import pathlib
import random
import re

import pytest
from conftest import ROOT, load_module, load_script, run_script

DATA = ROOT / "tests" / "data" / "diagnose"
diagnose = load_script("diagnose")

MATERIAL = {
    "ppo_healthy": set(),
    "ppo_one_update": set(),
    "ppo_demo": set(),
    "page_ppo": set(),
    "page_grpo": set(),
    "page_distillation": set(),
    "ppo_train_grpo": set(),
    "grpo_healthy": set(),
    "grpo_two_iterations": set(),
    "trl_healthy": set(),
    "trl_bar.log": set(),
    "trl_printer.log": set(),
    "verl_healthy.log": set(),
    "ppo_lr_high": {"lr-high", "score-collapse", "length-collapse", "entropy-collapse"},
    "ppo_lr_low": {"lr-low"},
    "ppo_constant": {"constant-reward"},
    "ppo_long": {"truncation", "gradient-spikes"},
    "ppo_cold": {"cold-sampling", "kl-runaway"},
    "ppo_critic": {"critic-useless"},
    "ppo_value_clip": {"critic-useless"},
    "ppo_nan": {"not-finite"},
    "ppo_format": {"length-collapse", "entropy-explosion", "kl-runaway", "reward-hacking", "format-only"},
    "ppo_entropy": {"score-collapse", "entropy-explosion", "kl-runaway", "gradient-spikes", "critic-useless"},
    "ppo_mismatch": {"sampler-mismatch"},
    "ppo_ratio": {"ratio-first-update", "sampler-mismatch"},
    "grpo_never": {"constant-reward"},
    "grpo_cold": {"cold-sampling", "no-signal"},
    "grpo_lr_high": {"lr-high", "score-collapse", "truncation", "repetition"},
    "grpo_truncated": {"constant-reward", "truncation"},
    "grpo_hack": {"paid-unfinished", "length-runaway", "reward-hacking"},
    "verl_constant.log": {"constant-reward"},
    "verl_critic.log": {"critic-useless"},
    "verl_group_one.log": {"group-size-1"},
    "verl_mismatch.jsonl": {"sampler-mismatch"},
    "verl_ratio.log": {"ratio-first-update"},
    "verl_truncated.jsonl": {"truncation"},
}
PAGES = ("ppo", "grpo", "distillation", "multi_turn")
HEALTHY = [name for name, found in MATERIAL.items() if not found]


def findings_of(source, **options) -> list:
    """Findings and notes of a log."""
    return diagnose.diagnose(diagnose.load_run(str(source), **options))[0]


def ids(source, severity="finding", **options) -> set[str]:
    """Ids of the findings (or notes) of a log."""
    return {f.id for f in findings_of(source, **options) if f.severity == severity}


def rows_of(name: str) -> list[dict]:
    """The rows of a metrics.jsonl of the material."""
    return [json.loads(line) for line in (DATA / name / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]


def write_rows(path, rows: list[dict]):
    """A log with these rows; returns its path."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def write_run(folder, rows: list[dict], config: dict | None = None):
    """A run's folder with these rows; returns it."""
    folder.mkdir(exist_ok=True)
    write_rows(folder / "metrics.jsonl", rows)
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


def config_of(name: str) -> dict:
    """The settings of a run of the material."""
    return json.loads((DATA / name / "config.json").read_text(encoding="utf-8"))


# ------------------------------------------------------------------------------------------------ material


@pytest.mark.parametrize("name", MATERIAL)
def test_real_log_gives_its_findings_and_no_others(name):
    assert ids(DATA / name) == MATERIAL[name]


def test_equal_scores_are_told_from_a_learning_rate_that_is_too_low(tmp_path):
    def saw(name, **changed):
        rows = [row | {k: v for k, v in changed.items() if row["step"]} for row in rows_of(name)]
        findings = findings_of(write_run(tmp_path / "run", rows, config_of(name)))
        return next(found.saw for found in findings if found.id == "constant-reward")

    constant = {"reward/mean": 0.0, "reward/std": 0.0}
    told = saw("grpo_never", **constant, **{"optim/grad_norm": 0.0, "optim/lr": 1e-6, "rollout/truncated_frac": 0.0})
    assert (
        "none was cut. So advantages and gradients are 0" in told
        and "learning rate (it was up to 1e-06; the 0 in the settings means by size)" in told
    )
    assert "learning rate" not in saw("grpo_never", **constant, **{"optim/grad_norm": 1e-3}), "a KL has a gradient"
    assert "none was cut" not in saw("grpo_never", **constant, **{"rollout/truncated_frac": 0.1})


@pytest.mark.parametrize(
    ("shares", "advised"),
    [([0.0], False), ([0.005], False), ([0.02], True), ([0.25], True), ([0.0, 0.0, 0.0, 0.5], True), ([None], True)],
)
def test_a_longer_limit_is_advised_for_equal_scores_unless_the_log_shows_that_none_were_cut(shares, advised, tmp_path):
    rows = rows_of("grpo_never")
    for row in rows:
        row.pop("rollout/truncated_frac", None)
        if row["step"] and shares != [None]:
            row["rollout/truncated_frac"] = shares[row["step"] % len(shares)]
    found = findings_of(write_run(tmp_path / "run", rows, config_of("grpo_never")))
    finding = next(found for found in found if found.id == "constant-reward")
    assert ("raise --max_completion_length if completions are cut" in finding.change) is advised
    assert ("none was cut" in finding.saw) is (not any(shares) and shares != [None])
    assert len(finding.change) == 4 + advised


# ------------------------------------------------------------------------------------------------ one fault at a time


def edit(key, change, start=1):
    """A function that applies `change(value, step)` to one key of every row from a step on."""

    def apply(rows):
        for row in rows:
            if row["step"] >= start and (key in row or change(None, row["step"]) is not None):
                row[key] = change(row.get(key), row["step"])

    return apply


def calm(rows):
    """Take held-out figures and the gain in score away, so that the run is neither solved nor rising."""
    for row in rows:
        for key in [key for key in row if key.startswith(("eval/", "reward/"))]:
            del row[key]
        noise = random.Random(row["step"]).uniform(-0.05, 0.05)
        if row["step"]:
            row |= {"reward/mean": 0.5 + noise, "reward/std": 0.5, "value/explained_variance": 0.5}


SINGLE = {
    "not-finite": [edit("policy/loss", lambda v, step: math.nan if step == 7 else v)],
    "constant-reward": [calm, edit("reward/std", lambda v, step: 0.0)],
    "no-signal": [calm, edit("reward/zero_std_frac", lambda v, step: 0.9)],
    "truncation": [calm, edit("rollout/truncated_frac", lambda v, step: 0.25)],
    "paid-unfinished": [edit("rollout/truncated_frac", lambda v, step: 0.25)],
    "length-runaway": [calm, edit("rollout/length_mean", lambda v, step: 20.0 + 2 * step)],
    "length-collapse": [calm, edit("rollout/length_mean", lambda v, step: 40.0 - 0.8 * step)],
    "entropy-collapse": [calm, edit("policy/entropy", lambda v, step: 0.5 * math.exp(-step / 8))],
    "entropy-explosion": [calm, edit("policy/entropy", lambda v, step: 0.1 * step)],
    "reference-differs": [edit("kl/ref", lambda v, step: 0.05)],
    "kl-runaway": [calm, edit("kl/ref", lambda v, step: 0.03 * step if step > 1 else 0.0)],
    "sampler-mismatch": [edit("rollout/logprob_gap_max", lambda v, step: 0.4)],
    "stale-sampler": [calm, edit("mismatch/kl", lambda v, step: 3e-4 * step)],
    "critic-useless": [calm, edit("value/explained_variance", lambda v, step: -0.1)],
    "gradient-spikes": [edit("optim/grad_norm", lambda v, step: 40.0 if step == 25 else v)],
    "lr-high": [edit("policy/clip_frac", lambda v, step: 0.5)],
    "lr-zero": [edit("optim/lr", lambda v, step: 0.0)],
    "lr-low": [calm, edit("kl/ref", lambda v, step: 1e-6)],
    "score-collapse": [calm, edit("reward/mean", lambda v, step: 0.02, 20)],
    "reward-hacking": [edit("eval/accuracy", lambda v, step: v and 0.43, 0)],
    "format-only": [
        calm,
        edit("reward/format_reward", lambda v, step: 0.97),
        edit("reward/correctness_reward", lambda v, step: 0.1 + 0.01 * (step % 3)),
    ],
    "slow-reward": [edit("time/reward", lambda v, step: 9.0)],
    "memory-grows": [
        edit("memory/process_gib", lambda v, step: 2 + 0.02 * step),
        edit("rollout/length_mean", lambda v, step: 18.0),
    ],
    "no-tool-calls": [edit("tool/calls_mean", lambda v, step: 0.0), edit("tool/seconds", lambda v, step: 0.0)],
    "tool-failures": [edit("tool/calls_mean", lambda v, step: 1.5), edit("tool/failure_frac", lambda v, step: 0.6)],
    "turn-limit": [calm, edit("rollout/limit_frac", lambda v, step: 0.7)],
    "slow-tools": [edit("time/step", lambda v, step: 10.0), edit("tool/seconds", lambda v, step: 4.0)],
}


@pytest.mark.parametrize("fault", SINGLE)
def test_one_changed_series_gives_its_finding(fault, tmp_path):
    rows, calmed, config = rows_of("ppo_healthy"), rows_of("ppo_healthy"), config_of("ppo_healthy")
    for change in SINGLE[fault]:
        change(rows)
    run = write_run(tmp_path / "run", rows, config)
    assert fault in ids(run) | ids(run, "note")
    if calm in SINGLE[fault]:
        calm(calmed)
    assert fault not in ids(write_run(tmp_path / "healthy", calmed, config))


NOTED = {  # what is a note, or none, in these circumstances
    "a solved task": (
        {"policy/entropy": 1e-4, "reward/zero_std_frac": 0.97, "value/explained_variance": -0.3},
        {"solved", "critic-useless"},
    ),
    "a solved task at its limit": ({"rollout/limit_frac": 1.0}, {"turn-limit"}),
}


@pytest.mark.parametrize("case", NOTED)
def test_what_is_no_fault_is_no_finding(case, tmp_path):
    changes, notes = NOTED[case]
    rows = [row | (changes if row["step"] >= 20 else {}) for row in rows_of("ppo_healthy")]
    run = write_run(tmp_path / "run", rows, config_of("ppo_healthy"))
    assert ids(run) == set() and notes <= ids(run, "note")


def test_ratio_above_1_is_a_fault_with_one_update(tmp_path):
    rows = [row | {"optim/updates": 1.0} for row in rows_of("ppo_healthy")]  # which has several
    assert "ratio-first-update" in ids(write_run(tmp_path / "run", rows))


def test_rare_spikes_and_skips_of_a_long_run_are_notes(tmp_path):
    usual = {"reward/std": 0.4, "optim/grad_norm": 0.5, "optim/skipped_updates": 0.0}
    rows = [{"step": step, "reward/mean": 0.5 + 0.001 * step} | usual for step in range(1, 301)]
    rows[200] |= {"optim/grad_norm": 30.0, "optim/skipped_updates": 1.0}
    run = write_run(tmp_path / "run", rows)
    assert ids(run) == set() and ids(run, "note") == {"gradient-spikes", "not-finite"}


MEMORY = {  # of 60 steps: series in GiB, mean length, whether it is a leak
    "a little at every step": (lambda i: 8 + 0.03 * i, 200, True),
    "at every seventh step": (lambda i: 8 + 0.03 * (i // 7 * 7), 200, True),
    "with noise": (lambda i: 8 + 0.03 * i + random.Random(i).gauss(0, 0.1), 200, True),
    "with longer completions": (lambda i: 8 + 0.03 * i, 2, False),  # times the step
    "by less than a tenth": (lambda i: 8 + 0.01 * i, 200, False),
    "settles": (lambda i: 8 - 4 * math.exp(-i / 12), 200, False),
    "once, where a library is loaded": (lambda i: 8 + 2 * (i > 25), 200, False),
    "the highest so far": (lambda i: 8 + math.log(1 + i), 200, False),
    "noise": (lambda i: 8 + random.Random(i).gauss(0, 1), 200, False),
    "falls": (lambda i: 8 - 0.03 * i, 200, False),
}


@pytest.mark.parametrize("case", MEMORY)
@pytest.mark.parametrize("key", ["memory/gpu_peak_gib", "memory/process_gib"])
def test_memory_that_grows_without_end(case, key, tmp_path):
    series, length, leaks = MEMORY[case]
    rows = rows_of("ppo_healthy")
    rows = [rows[1 + i % 40] | {"step": i + 1, key: series(i)} for i in range(60)]
    for i, row in enumerate(rows):
        row["rollout/length_mean"] = 200.0 if length == 200 else 200.0 + length * i
    run = write_run(tmp_path / "run", rows, config_of("ppo_healthy"))
    assert ("memory-grows" in ids(run)) is leaks
    assert "memory-grows" not in ids(write_run(tmp_path / "short", rows[:30], config_of("ppo_healthy")))


def test_conversations_as_they_should_be_give_no_finding(tmp_path):
    """An environment that replies, has no tools, and ends a third of its conversations at the limit."""
    usual = {"rollout/turns_mean": 1.6, "rollout/limit_frac": 0.3, "tool/calls_mean": 0.0, "tool/failure_frac": 0.0}
    rows = [row | (usual | {"tool/seconds": 2e-5} if row["step"] else {}) for row in rows_of("ppo_healthy")]
    assert ids(write_run(tmp_path / "talks", rows, config_of("ppo_healthy"))) == set()
    told = config_of("ppo_healthy") | {"tool_format": "hermes"}  # the run says that there are tools
    assert ids(write_run(tmp_path / "tools", rows, told)) == {"no-tool-calls"}
    some = [row | ({"tool/calls_mean": 0.01 * (row["step"] > 20)} if row["step"] else {}) for row in rows]
    assert ids(write_run(tmp_path / "later", some, told)) == set()


@pytest.mark.parametrize("score", ["reward", "critic/score/mean"])  # TRL, verl
@pytest.mark.parametrize(("rise", "growth", "found"), [(0.0, 1e-4, True), (0.01, 1e-4, False), (0.0, 0.0, False)])
def test_a_sampler_that_falls_behind_shows_in_every_trainers_log(score, rise, growth, found, tmp_path):
    distance = {"reward": "sampling/sampling_logp_difference/mean"}.get(score, "rollout_corr/k3_kl")
    steps = range(1, 41)
    rows = [{score: 0.4 + 0.02 * (n % 2) + rise * n, distance: 1e-4 + growth * n, "step": n} for n in steps]
    assert ("stale-sampler" in ids(write_rows(tmp_path / "log.jsonl", rows))) is found


def test_every_finding_is_provoked_somewhere():
    noted = {f for name in MATERIAL for f in ids(DATA / name, "note")}
    reached = (
        set(itertools.chain(*MATERIAL.values())) | set(SINGLE) | noted | {"partial-log", "held-out-trains"}
    )  # these two have tests of their own
    assert reached == set(diagnose.ADVICE)


def test_skipped_updates_are_normal_while_fp16_settles(tmp_path):
    rows = rows_of("ppo_healthy")
    edit("optim/skipped_updates", lambda v, step: float(step <= 3))(rows)
    for precision, expected in (("fp32", {"not-finite"}), ("fp16", set())):
        assert (
            ids(write_run(tmp_path / precision, rows, config_of("ppo_healthy") | {"precision": precision})) == expected
        )


def critic_run(folder, variances: list[float], config: dict | None = None, rise: float = 0.0, std=0.45, size=1.0):
    """A run with these explained variances from step 1 on, and a score that may rise and differs by `std`."""
    rows = []
    for step, variance in enumerate(variances, start=1):
        mean = size * (0.3 + rise * step + 0.01 * (step % 2))
        rows.append({"step": step, "reward/mean": mean, "reward/std": std, "value/explained_variance": variance})
    return write_run(folder, rows, config)


def critic_finding(run):
    """The finding or note about the critic, or None."""
    return next((f for f in findings_of(run) if f.id == "critic-useless"), None)


CRITICS = {  # explained variances by step, and whether they are a finding
    "below 0, then at it": ([-0.4] * 5 + [0.0] * 5, True),
    "for long": ([-0.4] * 20 + [0.0] * 20, True),
    "near 0": ([0.02, 0.01, 0.03, 0.02, 0.0, 0.01] * 5, True),
    "near 0 in each of the few steps there are": ([0.0] * 6 + [0.02, 0.01, 0.02, 0.02, 0.01], True),
    "below 0 for long, after a good start": ([0.3] * 20 + [-0.2] * 30, True),
    "below 0 until lately": ([-0.2] * 40 + [0.1] * 5, True),
    "small now and then": ([0.3, 0.05, 0.4, 0.04, 0.2, 0.06] * 5, False),
    "it learnt within the first steps": ([0.0, -0.4, -0.3, -0.1, 0.0, 0.1, 0.2, 0.3, 0.3, 0.4], False),
    "it learnt later": ([-0.4] * 20 + [0.3] * 20, False),
    "too short": ([-0.4] * 9, False),
}


@pytest.mark.parametrize("rise", [0.0, 0.02])  # a score that rises does so in spite of the critic
@pytest.mark.parametrize("case", CRITICS)
def test_critic_without_use_is_a_finding_while_scores_differ(case, rise, tmp_path):
    variances, useless = CRITICS[case]
    finding = critic_finding(critic_run(tmp_path / "a", variances, rise=rise))
    assert (finding is not None and finding.severity == "finding") is useless
    assert critic_finding(critic_run(tmp_path / "b", variances, std=0.01)) is None  # nothing is left to explain


def test_scores_that_hardly_differ_any_more_leave_a_critic_nothing_to_explain(tmp_path):
    rows = [json.loads(row) for row in (critic_run(tmp_path, [0.0] * 30) / "metrics.jsonl").read_text().splitlines()]
    rows = [row | {"reward/std": 0.45 if row["step"] <= 15 else 0.05} for row in rows]
    assert critic_finding(write_run(tmp_path, rows)) is None


def test_a_useless_critic_is_described(tmp_path):
    finding = critic_finding(critic_run(tmp_path, [-0.4] * 20 + [0.0] * 20))
    assert "explained variance 0" in finding.saw and "-0.4 at step 1" in finding.saw
    assert "definition of explained variance" in finding.source
    assert all(any(flag in change for change in finding.change) for flag in ("critic_warmup_steps", "critic_lr"))
    solved = critic_finding(DATA / "ppo_one_update")
    assert solved.severity == "note" and "solved all the same" in solved.saw


@pytest.mark.parametrize("settings", [{}, {"epochs": 1}, {"minibatches": 2}, {"updates": 2}, {"num_iterations": 3}])
def test_a_page_that_updates_several_times_may_clip_at_the_first_step(settings, tmp_path):
    rows = [{"step": n, "policy/clip_frac": 0.1, "reward/mean": 0.1 * n, "kl/approx": 0.01} for n in range(1, 12)]
    write_rows(tmp_path / "metrics.jsonl", rows)
    (tmp_path / "settings.json").write_text(json.dumps({"group_size": 8, **settings}))
    assert ("ratio-first-update" in ids(tmp_path)) is (max(settings.values(), default=1) == 1)


@pytest.mark.parametrize("taught", [True, False])
def test_entropy_that_a_teacher_lowers_is_no_collapse(taught, tmp_path):
    rows = [{"step": n, "policy/entropy": 1.0 / n, "reward/mean": 0.5, "time/rollout": 1.0} for n in range(1, 31)]
    rows = [row | {"kl/teacher": 0.5 / row["step"]} for row in rows] if taught else rows
    write_rows(tmp_path / "metrics.jsonl", rows)
    assert ("entropy-collapse" in ids(tmp_path)) is not taught


def test_settings_of_a_page_are_read_beside_its_log(tmp_path):
    import shutil

    shutil.copy(DATA / "page_ppo" / "metrics.jsonl", tmp_path)
    given = {"epochs": 2, "minibatches": 4, "critic_warmup_steps": 5, "value_clip": 0.2, "temperature": 0.7}
    (tmp_path / "settings.json").write_text(json.dumps(given | {"minutes": float("inf"), "max_new_tokens": 24}))
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')  # the model's own
    run = diagnose.load_run(str(tmp_path))
    assert run.trainer == "one_page" and run.settings["updates"] == 8 and run.settings["max_length"] == 24
    assert run.settings["critic_warmup"] == 5 and run.settings["value_clip"] == 0.2 and not run.settings["grouped"]


def test_value_clip_small_beside_the_scores_is_named(tmp_path):
    for clip, size, named in ((0.2, 100.0, True), (0.2, 1.0, False), (0.0, 100.0, False), (20.0, 100.0, False)):
        config = {"ppo_epochs": 2, "value_clip": clip}
        run = critic_run(tmp_path / f"{clip}{size}", [0.0] * 30, config, std=45.0 * size, size=size)
        assert ("moves a value" in critic_finding(run).saw) is named
    found = critic_finding(DATA / "ppo_value_clip")
    assert "by 0.2 at most, and scores reach 48.4" in found.saw and any("value_clip" in c for c in found.change)


def test_pages_are_told_from_the_programs_and_their_warm_up_is_seen():
    run = diagnose.load_run(str(DATA / "page_ppo"))
    assert min(run.series["entropy"]) == 6 and min(run.series["explained_variance"]) == 1  # 5 steps of the critic alone
    found = critic_finding(DATA / "page_ppo")
    assert found.severity == "note" and any("--minibatches 4" in change for change in found.change)
    assert "loss-is-no-measure" not in ids(DATA / "page_distillation", "note")  # its loss is a divergence


def test_steps_of_the_warm_up_are_not_held_against_the_critic(tmp_path):
    variances = [-0.4] * 20 + [0.3] * 5
    assert critic_finding(critic_run(tmp_path / "a", variances)).severity == "finding"  # of 20 after the 5th, half
    assert critic_finding(critic_run(tmp_path / "b", variances, {"ppo_epochs": 1, "critic_warmup_steps": 20})) is None
    text = (DATA / "verl_critic.log").read_text(encoding="utf-8")  # 21 steps below -3
    log = tmp_path / "verl.log"
    for warmup, expected in ((0, True), (16, True), (17, False)):
        config = {"actor_rollout_ref": {"rollout": {"n": 1}}, "trainer": {"critic_warmup": warmup}}
        log.write_text(f"{config}\n{text}", encoding="utf-8")
        assert diagnose.load_run(str(log)).settings.get("critic_warmup", 0) == warmup
        assert (critic_finding(log) is not None) is expected


@pytest.mark.parametrize(
    ("key", "fine", "wrong"),
    [
        ("rollout_corr/k3_kl", 0.009, 0.011),
        ("rollout_corr/rollout_is_mean", 0.51, 0.49),
        ("rollout_corr/rollout_is_mean", 1.9, 2.1),
        ("rollout_corr/rollout_is_std", 0.9, 1.1),
        ("rollout_corr/rollout_is_eff_sample_size", 0.31, 0.29),
        ("training/rollout_actor_probs_pearson_corr", 0.95, 0.85),
        ("sampling/sampling_logp_difference/mean", 0.048, 0.05),  # log 1.05 = 0.0488
        ("sampling/importance_sampling_ratio/mean", 1.9, 2.1),
    ],
)
def test_each_limit_of_the_mismatch(key, fine, wrong, tmp_path):
    for value, expected in ((fine, set()), (wrong, {"sampler-mismatch"})):
        rows = [{"step": n, key: value, "critic/score/mean": 0.5, "reward": 0.5, "loss": 0.1} for n in range(1, 5)]
        wrapped = [{"step": row.pop("step"), "data": row} for row in rows] if "/" in key and key[0] in "rt" else rows
        log = tmp_path / "log.jsonl"
        log.write_text("".join(json.dumps(row) + "\n" for row in wrapped))
        assert ids(log) == expected


def test_group_of_one_and_cold_sampling_come_from_the_settings(tmp_path):
    rows = rows_of("ppo_healthy")
    config = config_of("ppo_healthy")
    assert ids(write_run(tmp_path / "a", rows, config | {"advantage": "grpo", "group_size": 1})) == {"group-size-1"}
    assert ids(write_run(tmp_path / "b", rows, config | {"advantage": "remax", "group_size": 1})) == set()
    assert ids(write_run(tmp_path / "c", rows, config | {"temperature": 0.1})) == {"cold-sampling"}


# ------------------------------------------------------------------------------------------------ numbers


@pytest.mark.parametrize(("p", "group"), [(0.5, 2), (0.3, 4), (0.9, 8), (0.0, 8), (1.0, 3)])
def test_forecast_is_the_enumerated_probability_of_equal_scores(p, group):
    exact = sum(
        math.prod(p if score else 1 - p for score in scores)
        for scores in itertools.product((0, 1), repeat=group)
        if len(set(scores)) == 1
    )
    assert diagnose.forecast(p, group) == pytest.approx(exact, abs=1e-15)


def test_forecast_stands_in_the_finding(tmp_path):
    rows = [
        {"step": step, "reward/mean": 0.9, "reward/std": 0.3, "reward/zero_std_frac": 0.85, "reward/correct": 0.9}
        for step in range(1, 13)
    ]
    run = write_run(tmp_path / "run", rows)
    saw = {f.id: f.saw for f in findings_of(run, group_size=2)}["no-signal"]
    assert "82% at pass rate 0.9" in saw and "groups of 2" in saw  # 0.81 + 0.01
    assert "groups of 8 would bring it to 43%" in saw  # 0.9^8 = 0.430; groups of 4: 66 %
    saw = {f.id: f.saw for f in findings_of(run, group_size=16)}["no-signal"]
    assert "19%" in saw and "more than chance" in saw  # 0.9^16 = 0.185


def test_trend_by_hand():
    # medians of 3 of 12: 2 and 11; neighbours differ by 1
    rising = [float(i) for i in range(1, 13)]
    assert diagnose.ends(rising) == (2.0, 11.0)
    assert diagnose.trend(rising) == 1 and diagnose.trend(rising[::-1]) == -1
    assert diagnose.trend(rising[:9]) == 0  # too few
    assert diagnose.standard_error(rising) == pytest.approx(1.25 * 1.4826 / math.sqrt(3))  # sqrt(2 / 3) / sqrt 2
    saw_tooth = [0.0, 1.0] * 6
    assert diagnose.trend(saw_tooth) == 0
    outlier = [1.0, 1.1, 0.9, 1.0, 1.1, 0.9, 50.0, 1.0, 1.1, 0.9, 1.0, 1.1]
    assert diagnose.trend(outlier) == 0


@pytest.mark.parametrize(("kind", "steps"), [("binomial", 150), ("persistent", 40), ("heavy", 150)])
def test_no_trend_is_found_in_flat_noise(kind, steps):
    """Once in 300 logs at most, at a true rate of 0.5 %; the best stretch against the last gave it in 40 of 100."""
    simulation, numbers = load_module(ROOT / "benchmarks" / "false_alarms.py", "false_alarms"), random.Random(5)
    runs = [{f.id for f in simulation.diagnose(simulation.noise_log(kind, steps, numbers))[0]} for _ in range(60)]
    for name in simulation.TRENDS:
        assert sum(name in found for found in runs) <= 2, name


@pytest.mark.parametrize("rho", [0.0, 0.5])
def test_persistence_is_that_of_the_noise_whatever_its_trend(rho):
    numbers, state, values = random.Random(3), 0.0, []
    for step in range(4000):
        state = rho * state + math.sqrt(1 - rho**2) * numbers.gauss(0, 1)
        values.append(state + 0.01 * step)
    assert diagnose.persistence(values) == pytest.approx(rho, abs=0.06)
    assert diagnose.noise(values) == pytest.approx(math.sqrt((1 + rho) / (1 - rho)), rel=0.1)  # of means of AR(1)


def test_no_signal_stands_above_what_follows_from_it(tmp_path):
    rows = rows_of("ppo_healthy")
    calm(rows)
    for key, value in (("reward/zero_std_frac", 0.95), ("policy/clip_frac", 0.5)):
        edit(key, lambda v, step, value=value: value)(rows)
    findings = findings_of(write_run(tmp_path / "run", rows, config_of("ppo_healthy")))
    assert [f.id for f in findings[:2]] == ["no-signal", "lr-high"]


def test_repeats():
    assert diagnose.repeats("abcdef" * 10) == pytest.approx(1 - 6 / 55)  # 60 characters: 55 pieces, 6 of them different
    assert diagnose.repeats("abcdef" * 4) == 0  # 24 characters: too short to say
    assert diagnose.repeats((ROOT / "README.md").read_text(encoding="utf-8")) < 0.35


# ------------------------------------------------------------------------------------------------ formats


def test_formats_and_steps():
    expected = {
        "ppo_healthy": ("metrics.jsonl", "ppo_train", 1, 40),
        "grpo_healthy": ("metrics.jsonl", "grpo_train", 1, 30),
        "page_ppo": ("metrics.jsonl", "one_page", 1, 25),
        "page_grpo": ("metrics.jsonl", "one_page", 1, 11),
        "page_distillation": ("metrics.jsonl", "one_page", 1, 12),
        "trl_healthy": ("trainer_state.json", "trl", 1, 12),
        "trl_bar.log": ("TRL console", "trl", 1, 10),
        "trl_printer.log": ("TRL console", "trl", 1, 6),
        "verl_healthy.log": ("verl console", "verl", 1, 20),
        "verl_mismatch.jsonl": ("verl file log", "verl", 1, 8),
    }
    for name, (kind, trainer, first, last) in expected.items():
        run = diagnose.load_run(str(DATA / name))
        assert (run.format, run.trainer, run.steps()[0], run.steps()[-1]) == (kind, trainer, first, last)


def test_console_and_state_of_one_trl_run_agree():
    state = diagnose.load_run(str(DATA / "trl_healthy"))
    console = diagnose.load_run(str(DATA / "trl_bar.log"))
    for name in ("score", "score_std", "loss", "entropy", "length", "lr", "part:correctness_reward"):
        assert console.values(name) == pytest.approx(state.values(name)[:10], rel=2e-3, abs=1e-6), name  # 4 digits
    assert state.series["held_out"].keys() == {6, 12}


VERL_ROW = {
    "actor/entropy": 0.25,
    "critic/score/mean": 0.5,
    "val-core/a/acc/mean@4": 0.25,
    "val-core/b/acc/mean@4": 0.75,
}


def test_verl_formats_agree(tmp_path):
    lines = [f"step:{n} - " + " - ".join(f"{key}:{value!r}" for key, value in VERL_ROW.items()) for n in (1, 2)]
    (tmp_path / "console.log").write_text("noise\n" + "\n".join(f"\x1b[36m(T pid=1)\x1b[0m {line}" for line in lines))
    rows = [json.dumps({"step": n, "data": VERL_ROW}) for n in (1, 2)]
    (tmp_path / "file.jsonl").write_text("\n".join(rows) + "\n")
    runs = [diagnose.load_run(str(tmp_path / name)) for name in ("console.log", "file.jsonl")]
    assert runs[0].series == runs[1].series
    assert runs[0].series["held_out"] == {1: 0.5, 2: 0.5}  # mean over the data sources
    assert diagnose.as_number("np.float64(1.5)") == 1.5 and diagnose.as_number("np.int32(-2)") == -2
    assert diagnose.as_number("True") is None and diagnose.as_number(True) is None


def test_all_starts_of_a_run_that_verl_resumed_are_read(tmp_path):
    def start(name, steps, score, torn=""):
        rows = [json.dumps({"step": n, "data": VERL_ROW | {"critic/score/mean": score}}) for n in steps]
        (tmp_path / name).write_text("\n".join(rows) + torn)

    start("metrics.jsonl", range(1, 8), 0.1, '\n{"step": 8, "da')  # killed; its checkpoint was that of step 5
    start("metrics.2.jsonl", range(6, 10), 0.2)
    start("metrics.10.jsonl", range(10, 12), 0.4)
    start("metrics.3.jsonl", range(10, 11), 0.3)
    (tmp_path / "metrics.4.jsonl").touch()  # one that failed at once
    (tmp_path / "metrics.old.jsonl").write_text("not of the run")
    run = diagnose.load_run(str(tmp_path))
    expected = {**dict.fromkeys(range(1, 6), 0.1), **dict.fromkeys(range(6, 10), 0.2), 10: 0.4, 11: 0.4}
    assert run.series["score"] == expected
    assert any("4 starts, to metrics.10.jsonl" in remark for remark in run.remarks)
    assert diagnose.load_run(str(tmp_path / "metrics.2.jsonl")).series["score"] == dict.fromkeys(range(6, 10), 0.2)
    (tmp_path / "metrics.jsonl").write_text("")
    assert set(diagnose.load_run(str(tmp_path)).series["score"]) == set(range(6, 12))


def test_verl_settings_come_from_the_printed_config():
    run = diagnose.load_run(str(DATA / "verl_healthy.log"))
    assert run.settings == {"group_size": 8, "temperature": 1.0, "max_length": 64, "updates": 1, "grouped": True}


@pytest.mark.parametrize(("longest", "found"), [(lambda n: 50 - n, set()), (lambda n: 50, {"truncation"})])
def test_verl_clip_ratio_below_the_limit_is_padding(longest, found, tmp_path):
    # verl's V1 trainer pads to the longest completion of the batch, and counts completions of that length
    usual = {"response_length/clip_ratio": 0.6, "critic/score/mean": 0.5}
    rows = [{"step": n + 1, "data": usual | {"response_length/max": longest(n)}} for n in range(6)]
    assert ids(write_rows(tmp_path / "log.jsonl", rows)) == found


def test_trl_names_are_those_of_the_installed_trainer():
    import transformers
    import trl

    source = inspect.getsource(trl.GRPOTrainer) + inspect.getsource(transformers.Trainer)
    names = set(diagnose.TRL) - {"eval_reward"}  # the prefix is added in evaluation
    # in _maybe_log_save_evaluate and the profiler: plain keys of a dict
    missing = {name for name in names if f'"{name}"' not in source}
    assert missing <= {"step_time"} and 'f"rewards/{' in source


def test_our_names_are_those_of_the_glossary():
    text = (ROOT / "references" / "metrics.md").read_text(encoding="utf-8")
    known = set(re.findall(r"^\| `([^`]+)` \|", text, re.MULTILINE))
    assert set(diagnose.OURS) <= known


# ------------------------------------------------------------------------------------------------ remedies


@pytest.mark.parametrize("trainer", ["ppo_train", "grpo_train", "one_page"])
def test_remedies_name_flags_that_exist(trainer):
    paths = [ROOT / "templates" / f"{name}.py" for name in PAGES] if trainer == "one_page" else []
    modules = [load_module(path, f"page_{path.stem}") for path in paths] or [load_script(trainer)]
    known = {field.name for module in modules for field in dataclasses.fields(module.Config)} | {"reward", "mismatch"}
    assert set(re.findall(r"--([a-z_0-9]+)", " ".join(diagnose.SETTINGS[trainer].values()))) <= known


def test_remedies_name_settings_of_the_installed_trl():
    from trl import GRPOConfig, rewards

    known = {f.name for f in dataclasses.fields(GRPOConfig)} | {"trl.rewards.get_soft_overlong_punishment"}
    assert hasattr(rewards, "get_soft_overlong_punishment")
    named = {
        word
        for text in diagnose.SETTINGS["trl"].values()
        for word in re.findall(r"[a-z_]+(?:\.[a-z_]+)*_[a-z_]+|fp16|bf16", text)
    }
    assert named <= known and len(named) > 12


def test_remedies_name_keys_of_verl():
    yaml = pytest.importorskip("yaml")
    trainer = pytest.importorskip("verl.trainer", reason="verl is not installed")  # examples/verl is no verl
    path = pathlib.Path(trainer.__file__).parent / "config" / "_generated_ppo_trainer.yaml"
    for text in diagnose.SETTINGS["verl"].values():
        for key in re.findall(r"\b(?:actor_rollout_ref|critic|data|algorithm|trainer|reward)\.[\w.]+", text):
            tree = yaml.safe_load(path.read_text(encoding="utf-8"))
            for part in key.split("."):
                assert part in tree, key
                tree = tree[part]


# ------------------------------------------------------------------------------------------------ command


def test_exit_codes_and_text(tmp_path):
    healthy = run_script("diagnose", DATA / "ppo_healthy", cwd=tmp_path)
    assert healthy.returncode == 0 and "healthy" in healthy.stdout and healthy.stderr == ""
    faulty = run_script("diagnose", DATA / "grpo_hack", DATA / "verl_healthy.log", cwd=tmp_path)
    assert faulty.returncode == 1
    assert "FINDING reward-hacking" in faulty.stdout and "held-out figure went from 0.586 to 0.598" in faulty.stdout
    missing = run_script("diagnose", tmp_path / "none", DATA / "ppo_constant", cwd=tmp_path)
    assert missing.returncode == 2 and "expected" in missing.stderr and "constant-reward" in missing.stdout
    assert list(tmp_path.iterdir()) == []


def test_json_schema():
    done = run_script("diagnose", "--json", DATA / "ppo_lr_high", DATA / "no_such_run")
    data = json.loads(done.stdout)
    assert done.returncode == 2 and set(data) == {"runs", "exit_code"} and data["exit_code"] == 2
    run, failed = data["runs"]
    assert set(failed) == {"path", "verdict", "error"} and failed["verdict"] == "unreadable"
    assert set(run) == {"path", "format", "trainer", "steps", "verdict", "findings", "not_judged"}
    assert run["verdict"] == "findings" and run["steps"] == [1, 25] and run["not_judged"] == ["signal", "memory"]
    for finding in run["findings"]:
        kinds = {"id": str, "severity": str, "metric": str, "step": int, "value": float, "saw": str, "cause": str}
        kinds |= {"change": list, "source": str}
        assert {key: type(value) for key, value in finding.items()} == kinds
        assert finding["severity"] in ("finding", "note") and finding["id"] in diagnose.ADVICE
    first = run["findings"][0]
    assert (first["id"], first["metric"], first["step"], first["value"]) == ("lr-high", "kl/approx", 5, 3.959)


@pytest.mark.long
def test_plot_is_a_readable_picture_and_is_not_replaced(tmp_path, capsys):
    from matplotlib import image

    target = tmp_path / "curves.png"
    assert diagnose.main([str(DATA / "grpo_hack"), "--plot", str(target)]) == 1
    pixels = image.imread(target)
    assert pixels.shape[0] >= 600 and pixels.shape[1] >= 1200 and pixels[..., :3].std() > 0.02
    before = target.read_bytes()
    assert diagnose.main([str(DATA / "grpo_hack"), "--plot", str(target)]) == 2
    assert "--overwrite" in capsys.readouterr().err and target.read_bytes() == before
    assert (
        diagnose.main([str(DATA / "ppo_healthy"), str(DATA / "verl_healthy.log"), "--plot", str(target), "--overwrite"])
        == 0
    )
    assert target.read_bytes() != before
    assert diagnose.main([str(DATA / "ppo_healthy"), "--plot", str(tmp_path / "curves.nonsense")]) == 2


# ------------------------------------------------------------------------------------------------ bad input


BAD_FILES = {
    "empty.jsonl": (b"", "empty"),
    "blank.jsonl": (b"\n  \n", "empty"),
    "model.safetensors": (bytes(range(256)) * 40, "binary"),
    "prose.txt": (b"Training went well.\nThen it did not.\n", "none of the formats"),
    "rows.jsonl": (b'{"prompt": "1+1=", "answer": "2"}\n' * 3, "expected"),
    "list.json": (b"[1, 2, 3]", "expected"),
    "state.json": (b'{"log_history": []}', "expected"),
    "only_eval.jsonl": (b'{"step": 0, "eval/accuracy": 0.5}\n', "expected"),
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_bad_files_are_refused_with_a_reason(name, tmp_path, capsys):
    (tmp_path / name).write_bytes(BAD_FILES[name][0])
    assert diagnose.main([str(tmp_path / name)]) == 2
    message = capsys.readouterr().err
    assert (
        message.startswith(f"error: got {tmp_path / name}") and "expected" in message and BAD_FILES[name][1] in message
    )


def test_a_folder_without_a_log_is_refused(tmp_path, capsys):
    assert diagnose.main([str(tmp_path)]) == 2 and "no log" in capsys.readouterr().err


def test_torn_last_line_is_left_out_and_said(tmp_path):
    text = (DATA / "ppo_healthy" / "metrics.jsonl").read_text(encoding="utf-8")
    (tmp_path / "metrics.jsonl").write_text(text[:-300], encoding="utf-8")
    run = diagnose.load_run(str(tmp_path))
    assert run.steps()[-1] == 39 and ids(tmp_path) == set()
    notes = [f.saw for f in diagnose.diagnose(run)[0] if f.id == "partial-log"]
    assert len(notes) == 1 and "last line is torn (line 41)" in notes[0]


def test_broken_neighbours_and_missing_keys_are_survived(tmp_path):
    rows = rows_of("ppo_healthy")
    run = write_run(tmp_path / "run", rows)
    (run / "config.json").write_text('{"ppo_epochs": 2', encoding="utf-8")
    (run / "samples.jsonl").write_bytes(b"\0" * 50)
    assert ids(run) == set()
    bare = [{"step": row["step"], "reward/mean": row["reward/mean"]} for row in rows if "reward/mean" in row]
    found, left_out = diagnose.diagnose(diagnose.load_run(str(write_run(tmp_path / "bare", bare))))
    assert [f for f in found if f.severity == "finding"] == []
    assert {"ratio", "mismatch", "constant", "signal", "length", "entropy", "kl", "critic", "gradients"} <= set(
        left_out
    )
    odd = copy.deepcopy(rows)
    for row in odd:
        row |= {"policy/entropy": "much", "kl/ref": None, "optim/grad_norm": [1], "reward/std": True}
    assert ids(write_run(tmp_path / "odd", odd)) == set()


@pytest.mark.parametrize("key", ["policy/loss", "optim/grad_norm", "kl/ref", "policy/entropy", "reward/mean"])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_is_not_finite_is_found_where_it_stands(key, value, tmp_path):
    rows = rows_of("ppo_healthy")
    rows[12][key] = value
    run = diagnose.load_run(str(write_run(tmp_path / "run", rows)))
    found = [f for f in diagnose.diagnose(run)[0] if f.severity == "finding"]
    assert [(f.id, f.metric, f.step) for f in found] == [("not-finite", key, 12)]


def test_resumed_console_repeats_steps_and_the_later_value_wins(tmp_path):
    steps = [(1, 0.1), (2, 0.2), (3, 0.3), (2, 0.25), (3, 0.35), (4, 0.4)]
    (tmp_path / "log").write_text("".join(f"step:{n} - critic/score/mean:{v}\n" for n, v in steps))
    assert diagnose.load_run(str(tmp_path / "log")).series["score"] == {1: 0.1, 2: 0.25, 3: 0.35, 4: 0.4}


def test_findings_stand_in_the_troubleshooting_page():
    text = (ROOT / "references" / "troubleshooting.md").read_text(encoding="utf-8")
    assert set(re.findall(r"\*\*([a-z]+(?:-[a-z0-9]+)*)\*\*", text)) == set(diagnose.ADVICE)


def test_too_short_to_judge_has_its_own_exit_code(tmp_path, capsys):
    rows = [{"step": n, "reward/mean": 0.5, "reward/std": 0.3, "rollout/length_mean": 9.0} for n in range(1, 11)]
    for steps, code, verdict in ((9, 3, "too short to judge"), (10, 0, "healthy")):
        run = write_run(tmp_path / str(steps), rows[:steps])
        assert diagnose.main([str(run), "--json"]) == code
        report = json.loads(capsys.readouterr().out)
        assert report["runs"][0]["verdict"] == verdict and report["exit_code"] == code
    short = str(tmp_path / "9")
    assert diagnose.main([str(DATA / "ppo_healthy"), short]) == 3
    assert diagnose.main([short, str(DATA / "ppo_constant")]) == 1
    assert diagnose.main([short, str(tmp_path / "none")]) == 2
    nothing = write_run(tmp_path / "fault", [row | {"policy/loss": math.nan} for row in rows[:2]])
    assert diagnose.main([str(nothing)]) == 1  # what is plain in two steps is said of two steps


# ----------------------------------------------------------------------------- names of the last two years

NAMED = {  # who logs it: (step's name for the score, for the length, more)
    "TRL 0.15 GRPO": ("reward", "completion_length", "rewards/accuracy_reward"),
    "TRL 0.17 GRPO": ("reward", "completions/mean_length", "rewards/accuracy_reward/mean"),
    "TRL in a tracker": ("train/reward", "train/completions/mean_length", "train/rewards/accuracy_reward/mean"),
    "OpenRLHF 0.8": ("train/reward", "train/response_length", "train/return"),
    "verl 0.2": ("critic/rewards/mean", "response_length/mean", "val/test_score/gsm8k"),
    "verl 0.9": ("critic/score/mean", "response_length/mean", "val-core/gsm8k/acc/mean@1"),
}


@pytest.mark.parametrize("name", NAMED)
def test_a_run_that_falls_to_nothing_is_found_under_every_name(name, tmp_path):
    score, length, accuracy = NAMED[name]
    rows = [
        {"step": n + 1, score: 0.16 * (1 - n / 20), accuracy: 0.16 * (1 - n / 20), length: 380 - 16.5 * n}
        for n in range(21)
    ]
    assert {"score-collapse", "length-collapse"} <= ids(write_rows(tmp_path / "log.jsonl", rows))


def test_the_logs_of_trls_ppo_are_read(tmp_path):
    row = {"objective/kl": 20.0, "objective/entropy": 90.0, "objective/scores": 0.4, "policy/approxkl_avg": 0.01}
    row |= {"policy/clipfrac_avg": 0.1, "policy/entropy_avg": 0.5, "loss/policy_avg": 0.0, "loss/value_avg": 0.2}
    row |= {"objective/rlhf_reward": 0.1, "val/ratio": 1.0, "val/num_eos_tokens": 3, "lr": 1e-6, "episode": 64}
    (tmp_path / "log").write_text("".join(f"{ {**row, 'episode': 64 * n} }\n".replace("{ {", "{") for n in range(12)))
    run = diagnose.load_run(str(tmp_path / "log"))
    read = {name: run.values(name)[0] for name in ("score", "kl_step", "clip_frac", "entropy", "value_loss", "lr")}
    assert read == {"score": 0.4, "kl_step": 0.01, "clip_frac": 0.1, "entropy": 0.5, "value_loss": 0.2, "lr": 1e-6}
    assert "kl" not in run.series, "a sum over the tokens of a completion"


def judged(capsys, *arguments) -> tuple[int, dict]:
    """Exit code and report of one log."""
    code = diagnose.main([*map(str, arguments), "--json"])
    return code, json.loads(capsys.readouterr().out)["runs"][0]


@pytest.mark.parametrize(
    ("row", "missing", "named"),
    [
        ({"reward": 0.5, "reward_std": 0.3}, "completion length", "reward"),
        ({"reward": 0.5, "answer_len": 50.0}, "completion length", "answer_len"),
        ({"mean_score": 0.5, "completion_length": 50.0}, "reward", "mean_score"),
        ({"reward": 0.5, "completion_length": 50.0, "accuracy": 0.1}, "accuracy", "accuracy"),
        ({"reward": 0.5, "completion_length": 50.0, "kl_divergence": 0.1}, "KL", "kl_divergence"),
        ({"critic/score/mean": 0.5, "tokens/mean": 0.1}, "completion length", "tokens/mean"),
    ],
)
def test_a_log_with_a_part_that_cannot_be_read_is_not_called_healthy(row, missing, named, tmp_path, capsys):
    log = write_rows(tmp_path / "log.jsonl", [row | {"step": n, "grad_norm": 0.1} for n in range(1, 13)])
    code, report = judged(capsys, log)
    assert report["verdict"].startswith(f"not judged: {missing} (the log has") and named in report["verdict"]
    assert code == 3 and missing in report["not_judged"]


LEVEL = {  # rows of n, arguments, what the verdict needs; with a spread that shows a signal it is healthy
    "TRL": (lambda n: {"reward": 0.5, "completion_length": 9.0}, (), "reward_std", {"reward_std": 0.4}),
    "verl": (
        lambda n: {"critic/score/mean": 1.0, "response_length/mean": 9.0},
        *((), "critic/score/max", {"critic/score/max": 1.0, "critic/score/min": 0.0}),
    ),
    "verl, half of the spread": (
        lambda n: {"critic/score/mean": 0.0, "response_length/mean": 9.0, "critic/score/max": 1.0},
        *((), "critic/score/max and", {"critic/score/min": 0.0}),
    ),
    "named columns": (lambda n: {"ret": -2.5}, ("--columns", "reward=ret"), "reward_std", {"reward_std": 0.4}),
    "from the third step on": (
        lambda n: {"ret": 0.25 if n > 2 else 0.1 * n},
        *(("--columns", "reward=ret"), "reward_std", {"frac_reward_zero_std": 0.2}),
    ),
}


@pytest.mark.parametrize("case", LEVEL)
def test_a_reward_that_stays_at_one_level_needs_its_spread(case, tmp_path, capsys):
    row, arguments, needed, spread = LEVEL[case]
    rows = [row(n) | {"step": n} for n in range(1, 31)]
    code, report = judged(capsys, write_rows(tmp_path / "log.jsonl", rows), *arguments)
    assert code == 3 and report["verdict"].startswith(f"not judged: needs {needed}")
    code, report = judged(capsys, write_rows(tmp_path / "log.jsonl", [r | spread for r in rows]), *arguments)
    assert (code, report["verdict"]) == (0, "healthy")
    moving = [{key: v + 0.01 * (r["step"] % 3) * (key != "step") for key, v in r.items()} for r in rows]
    assert judged(capsys, write_rows(tmp_path / "log.jsonl", moving), *arguments)[0] == 0


def test_a_log_of_zeros_and_a_flat_one_are_told(tmp_path):
    zeros = [{"reward": 0.0, "kl": 0.001 * (n % 7), "step": n} for n in range(1, 61)]
    assert ids(write_rows(tmp_path / "zeros.jsonl", zeros)) == {"constant-reward"}
    noise = random.Random(0)
    flat = [{"reward": 0.3 + noise.gauss(0, 0.03), "kl": 0.01, "step": n} for n in range(1, 101)]
    run = diagnose.load_run(str(write_rows(tmp_path / "flat.jsonl", flat)))
    (note,) = [f for f in diagnose.diagnose(run)[0] if f.id == "flat-reward"]
    assert note.severity == "note" and "flat over 100 steps" in note.saw


@pytest.mark.parametrize(
    ("row", "advice"),
    [
        ({"reward": 0.5, "grad_norm": 0.1}, "--columns reward=reward"),  # no length is asked for that it lacks
        ({"avg_return": 0.5, "answer_len": 9.0, "grad_norm": 0.1}, "--columns reward=avg_return length=answer_len"),
        ({"reward": 0.5, "std_of_scores": 0.1}, "--columns reward=reward reward_std=std_of_scores"),
    ],
)
def test_the_advice_for_a_log_that_is_not_judged_works(row, advice, tmp_path, capsys):
    log = write_rows(tmp_path / "log.jsonl", [row | {"step": n} for n in range(1, 31)])
    diagnose.main([str(log)])
    line = next(line for line in capsys.readouterr().out.splitlines() if "try --columns" in line)
    assert line == f"  try {advice}; what the log does not have is then left out"
    assert "needs" in judged(capsys, log, *advice.split())[1]["verdict"] or judged(capsys, log, *advice.split())[0] == 0


OWN_LOGS = {
    "lines of name=value": ("[{0}] it={0} avg_return: {1:.3f} kl_x={2:.4f}\n", ""),
    "dicts": ("{{'it': {0}, 'avg_return': {1:.3f}, 'kl_x': {2:.4f}}}\n", ""),
    "JSONL": ('{{"it": {0}, "avg_return": {1:.3f}, "kl_x": {2:.4f}}}\n', ""),
    "CSV": ("{0};{1:.3f};{2:.4f}\n", "it;avg_return;kl_x\n"),
    "wandb's CSV": ('"{0}","{1:.3f}","{2:.4f}"\n', '"Step","sunny-1 - avg_return","sunny-1 - kl_x"\n'),
}


@pytest.mark.parametrize("kind", OWN_LOGS)
def test_logs_of_other_names_are_read_by_their_columns(kind, tmp_path, capsys):
    line, header = OWN_LOGS[kind]
    log = tmp_path / "own.log"
    log.write_text(header + "".join(line.format(5 * n, 0.02 * (25 - n), 0.001 * n) for n in range(1, 26)))
    step = "Step" if "Step" in header else "it"
    run = diagnose.load_run(str(log), columns={"reward": "avg_return", "kl": "kl_x", "step": step})
    assert run.series["score"] == {5 * n: pytest.approx(0.02 * (25 - n)) for n in range(1, 26)}
    assert run.values("kl")[1] == 0.002
    assert (
        diagnose.main([str(log), "--columns", "reward=avg_return"]) == 1 and "score-collapse" in capsys.readouterr().out
    )
    assert diagnose.main([str(log), "--columns", "reward=avg_retur"]) == 2
    assert "try reward=avg_return" in capsys.readouterr().err
    assert diagnose.main([str(log)]) in (2, 3) and "--columns reward=NAME" in "".join(capsys.readouterr())
