"""diagnose.py: every cause is told on its material and on no healthy run; all formats; bad input.

tests/data/diagnose holds excerpts of real runs of ppo_train.py, grpo_train.py, the pages of templates/ and TRL on the
embedded model, faults provoked (learning rate x 100, constant reward, temperature 0.01, a reward for length, scores of
100 under a value clip of 0.2, …; ppo_bare_form is of Qwen2.5-Coder-0.5B on GSM8K; ppo_mismatch and ppo_ratio are of
copies with a wrong temperature in the sampler), and logs that verl 0.9.1's own metric and logger functions wrote.
"""

import dataclasses
import inspect
import itertools
import json
import math
import random
import re

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import ROOT, load_module, load_script, read_lines, run_script, write_lines

DATA = ROOT / "tests" / "data" / "diagnose"
diagnose = load_script("diagnose")

LOGS = {  # verdict, causes: logs
    ("learned",): "ppo_healthy ppo_one_update ppo_demo ppo_train_grpo page_ppo grpo_healthy verl_healthy.log",
    ("learned", "part_bought"): "ppo_long",
    ("too short",): "page_grpo page_distillation grpo_two_iterations trl_healthy trl_bar.log trl_printer.log",
    ("too short", "critic_useless"): "ppo_critic ppo_value_clip",
    ("did not learn", "critic_useless"): "verl_critic.log",
    ("did not learn", "nothing_moves"): "ppo_lr_low",
    ("did not learn", "constant_reward"): "ppo_constant",
    ("did not learn", "near_greedy_sampling"): "ppo_cold grpo_cold",
    ("did not learn", "limit_too_short"): "grpo_truncated verl_truncated.jsonl",
    ("broken", "updates_too_large"): "ppo_lr_high ppo_entropy grpo_lr_high",
    ("broken", "overflow"): "ppo_nan",
    ("broken", "part_bought"): "ppo_format grpo_hack ppo_bare_form",
    ("broken", "sampler_mismatch"): "ppo_mismatch ppo_ratio verl_mismatch.jsonl verl_ratio.log",
}
MATERIAL = {name: said for said, names in LOGS.items() for name in names.split()}
PAGES = ("ppo", "grpo", "distillation", "multi_turn")


def judged(source, **options) -> dict:
    """What diagnose.py says of a log."""
    return diagnose.diagnose(diagnose.load_run(str(source), **options))


def names(source, **options) -> list[str]:
    """The causes of a log, the first one first."""
    return [cause["cause"] for cause in judged(source, **options)["causes"]]


def rows_of(name: str) -> list[dict]:
    """The rows of a metrics.jsonl of the material."""
    return read_lines(DATA / name / "metrics.jsonl")


def write_run(folder, rows: list[dict], config: dict | None = None):
    """A run's folder with these rows; returns it."""
    folder.mkdir(exist_ok=True)
    write_lines(folder / "metrics.jsonl", rows)
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


def config_of(name: str) -> dict:
    """The settings of a run of the material."""
    return json.loads((DATA / name / "config.json").read_text(encoding="utf-8"))


# ------------------------------------------------------------------------------------------------ material
@pytest.mark.parametrize("name", MATERIAL)
def test_real_log_gives_its_verdict_and_cause(name):
    data = judged(DATA / name)
    assert (data["verdict"], *(cause["cause"] for cause in data["causes"])) == MATERIAL[name]


# ------------------------------------------------------------------------------------------------ one fault at a time
def write_sampled(folder, pay, source="", form="<answer>{}</answer>", gold=str, steps=12):
    """A run of sums of which every second completion is right, paid by `pay(text, gold, right, place)`."""
    numbers, samples, rows = random.Random(1), [], []
    for step in range(1, steps + 1):
        scores = []
        for group in range(3):
            a, b = 10 + 7 * step + group, 20 + 3 * step
            for place in range(4):
                text = form.format(a + b + (place % 2) * numbers.choice((-1, 1, 10)))
                scores.append(pay(text, gold(a + b), place % 2 == 0, len(scores)))
                row = {"step": step, "kind": "train", "prompt": f"{a}+{b}=", "completion": text, "score": scores[-1]}
                samples.append(row | {"columns": {"answer": gold(a + b)}})
        spread = max(scores) - min(scores)
        mean = sum(scores) / len(scores) + 0.001 * numbers.random() * (spread > 0)
        alike = sum(len({*scores[i : i + 4]}) == 1 for i in (0, 4, 8)) / 3
        rows.append({"step": step, "reward/mean": mean, "reward/std": spread / 2, "reward/zero_std_frac": alike})
        rows[-1] |= {"policy/entropy": 0.5, "rollout/length_mean": 20.0, "optim/lr": 1e-6, "optim/grad_norm": 0.1}
    run = write_run(folder, rows, {"num_generations": 4, "temperature": 1.0, "reward": ["reward.py:correct"]})
    write_lines(run / "samples.jsonl", samples)
    (run / "reward.py").write_text(source)
    return run


HEAD = "def correct(completions, answer):\n"


def source(mark: str) -> str:
    """A reward's source that reads an answer behind a mark."""
    return f"{HEAD}    return [{mark!r} in c and a in c for c, a in zip(completions, answer)]\n"


def chance(*seed) -> float:
    """A number that a text decides."""
    return random.Random("".join(map(str, seed))).random()


EMPTY = f"{HEAD}    return [0.5] * len(completions)\n"
CAUGHT = f"{HEAD}    try:\n        return [x['a'] for x in completions]\n    except KeyError:\n        return [0.0]\n"
FIRST = f"{HEAD}    return [answer[0] in c for c in completions]\n"
PAYS = {  # cause: (pay of a text, its gold, whether it is right, its place; the reward's source, more)
    "healthy": (lambda text, gold, right, place: float(right), source("<answer>"), {}),
    "answer_form": (lambda *_: 0.0, source("####"), {}),
    "answer_form, no mark": (lambda *_: 0.0, source("\\boxed{"), {"form": "It is {}"}),
    "gold_mismatch": (lambda *_: 0.0, source("<answer>"), {"gold": int}),
    "gold_mismatch, of the batch": (lambda text, gold, right, place: float(place == 0), FIRST, {}),
    "constant_reward, placeholder": (lambda *_: 0.5, EMPTY, {}),
    "constant_reward, exception": (lambda *_: 0.0, CAUGHT, {}),
    "inverted_reward": (lambda text, gold, right, place: -float(right), "", {}),
    "inverted_reward, of few": (lambda text, gold, right, _: -float(right and chance(text) < 0.54), "", {"steps": 3}),
    "reward_ignores_answer": (lambda text, *_: float(chance(text) < 0.5), "", {}),
    "healthy, a part beside it": (lambda text, gold, right, _: 0.3 * right + 0.9 * (chance(text) < 0.07), "", {}),
    "healthy, a judge that scatters": (lambda text, gold, right, at: 0.8 * right + 0.1 * chance(text, at), "", {}),
    "noisy_reward": (lambda text, gold, right, place: chance(text, place), "", {}),
    "no_group_variance": (lambda text, gold, *_: int(gold) / 100, "", {}),
    "too_hard": (lambda *_: 0.0, source("<answer>"), {"gold": lambda value: value * 1000 + 7}),
}


@pytest.mark.parametrize("case", PAYS)
def test_cause_that_samples_show(case, tmp_path):
    pay, text, more = PAYS[case]
    run = judged(write_sampled(tmp_path / "run", pay, text, **more))
    first, healthy = [cause["cause"] for cause in run["causes"]][:1], case.startswith("healthy")
    assert first == ([] if healthy else [case.partition(",")[0]]) and len(run["causes"]) <= 2
    assert run["verdict"] in (("too short",) if healthy else ("did not learn", "broken"))


def test_without_gold_and_source_two_causes_remain_with_the_command_that_decides(tmp_path):
    rows = [{"step": n, "reward/mean": 0.0, "reward/std": 0.0, "optim/grad_norm": 0.0} for n in range(1, 13)]
    causes = judged(write_run(tmp_path / "run", rows))["causes"]
    assert [c["certainty"] for c in causes] == ["likely"] * len(causes) and 1 <= len(causes) <= 2
    assert all(c["decide_with"].startswith("python scripts/") for c in causes)


def changed(name: str, figures: dict, flat: bool = False) -> list[dict]:
    """Rows of a healthy run with other figures: {name: value, or function of the step that gives it or None}.

    `flat` takes held-out figures and the gain in score away first.
    """
    rows = rows_of(name)
    for row in rows:
        step = row["step"]
        for key in [key for key in row if flat and key.startswith(("eval/", "reward/"))]:
            del row[key]
        if flat and step:
            noise = random.Random(step).uniform(-0.05, 0.05)
            row |= {"reward/mean": 0.5 + noise, "reward/std": 0.5, "value/explained_variance": 0.5}
        for key, value in figures.items():
            value = value(step) if callable(value) else value if step or key.startswith("eval/") else None
            row |= {} if value is None else {key: value}
    return rows


def back(n: int) -> bool:
    """Whether a run is where it began: at the start, and after a restart at step 26."""
    return n in (1, 2, 3) or n > 25


def learns(first: float, last: float) -> dict:
    """A 0/1 score that goes from one mean to another in 40 steps."""

    def mean(n: int) -> float:
        return first + (last - first) * n / 40

    return {
        "reward/mean": lambda n: mean(n) if n else None,
        "reward/std": lambda n: math.sqrt(mean(n) * (1 - mean(n))) if n else None,
    }


# cause, words: "log" is without settings, "none" may name none | whether the run is flat | figures at step n
FIGURES = """
limit_too_short, none ends though cut ones are paid, log | flat | rollout/truncated_frac = 1.0
none, few answers are right, log | flat | reward/mean = 0.016 * (n in (12, 13, 15, 16, 20, 30)) if n else None;
    reward/std = 0.1 * (10 < n < 21); reward/zero_std_frac = 0.5
none, harder prompts from step 20 on | flat | reward/mean = (0.6 if n < 20 else 0.2) + 0.003 * (n % 3) if n else
    None; eval/accuracy = None if n % 10 else 0.3 + n / 100; eval/rows = None if n % 10 else 128
none, a critic that begins far below 0 | flat | value/explained_variance = -3 * 0.94 ** n
part_dies, within the first steps | learns | reward/second = 0.8 if n < 3 else 0.02
none, entropy alone stays | flat | policy/entropy = 0.4 + 0.01 * (n % 3); kl/ref = '-'
memorised_prompts, cut and paid in training only, log | flat | score = 0.4 to 0.85; eval/correct = None if n % 10
    else 0.4 - n / 100; eval/accuracy = None if n % 10 else 0.4 - n / 100; rollout/truncated_frac = float(n > 4);
    reward/correct = learns(0.4, 0.85)['reward/mean'](n)
none, KL that scatters, log | flat | kl/ref = (0.0, 0.6, 0.3, 0.5, 0.4, 0.35, 0.45)[n % 7 - 1] if n < 26 else 0.4
sampler_mismatch, exact sampling | learns | mismatch/kl = 0.004
none, a score that rises while entropy falls, log | flat | score = 0.3 to 0.9; policy/entropy = 0.4 - 0.005 * n;
    rollout/length_mean = 20 - 0.3 * n + 0.1 * (n % 3); rollout/truncated_frac = 0.0
part_bought, answers are lost at once | flat | score = 0.4 to 0.9; reward/correct = {1: 0.3, 2: 0.1}.get(n, 0.0);
    reward/brevity = min(1.0, 0.4 + n / 9)
memorised_prompts, within two steps, log | flat | reward/mean = min(0.95, 0.52 + 0.04 * n) - 0.02 * (n % 3) if n
    else None; reward/std = 0.2; eval/accuracy = {0: 0.5, 20: 0.2, 40: 0.16}.get(n); eval/rows = 128.0
jump_at_restart | learns | policy/entropy = (0.5 if back(n) else 0.2) + 0.001 * (n % 3); reward/mean = (0.3 if
    back(n) else 0.7) + 0.003 * (n % 3)
jump_at_restart, a small jump of two figures, log | learns | policy/entropy = 0.09 + 0.01 * chance(n) - 0.045 * (not
    back(n)); rollout/length_mean = 17 + chance('length', n) + 3.5 * (not back(n))
none, figures that go back to the start by and by, log | learns | policy/entropy = 0.05 + 0.01 * chance(n) + abs(n -
    20) / 500; rollout/length_mean = 20 + chance('length', n) - abs(n - 20) / 6
kl_holds_policy, by the slope of the loss, log | flat | kl/coef = '-'; kl/ref = 0.002 + 0.001 * (n % 5); policy/loss
    = 0.1 * (n % 5) - 0.05
nothing_moves, a rate that still rises at the last step | flat | optim/lr = 2e-06 * n
critic_useless, its loss is huge in three steps, log | flat | value/loss = {1: 126.0, 2: 1520.0, 3: 47.0}.get(n,
    0.3)
none, a critic near 0 in a run that learns, log | flat | score = 0.3 to 0.6; value/explained_variance = 0.001 * (n %
    3)
none, single updates that round in bf16 | learns | optim/updates = 1.0; policy/ratio_max = 1.0; policy/clip_frac =
    0.002 * (n == 9)
limit_too_short, a quarter at every step, log | flat | rollout/truncated_frac = 0.25
stale_weights | flat | mismatch/kl = 0.0003 * n
none, a critic that still learns | flat | value/explained_variance = 0.008 * n - 0.3
critic_useless, log | learns | value/explained_variance = 1e-07 * n
none, a schedule with restarts | learns | optim/lr = 0.0001 * (1.1 - n % 10 / 10)
updates_too_large, log | flat | reward/mean = {1: 0.4, 21: 0.0}.get(n, '-'); eval/accuracy = {0: 0.5, 40:
    0.0}.get(n); eval/rows = {0: 128, 40: 128}.get(n)
nothing_moves, rate of 0 from step 8 on | flat | optim/lr = 0.0001 * (n < 8)
too_easy, log | learns | reward/correctness_reward = 0.98; eval/accuracy = 0.99; policy/entropy = 0.01
part_dies | learns | reward/second = 0.5 if n < 12 else 0.01
conversation_fails | learns | tool/calls_mean = 0.0; tool/seconds = 0.0
none, a form that is still being learnt | flat | score = 0.3 to 0.6; reward/correct = 0.3 + 0.01 * (n % 3);
    reward/tags = 0.3 + n / 60
nothing_moves, entropy is frozen | flat | policy/entropy = 0.4; kl/ref = '-'
other_eval_task, log | flat | score = 0.45 to 0.8; eval/accuracy = None if n % 10 else 0.0
gold_mismatch, the form is paid | flat | score = 0.3 to 0.9; reward/correct = 0.0; reward/tags = 0.3 + n / 50
answer_form, no form is paid | flat | score = 0.3 to 0.4; reward/correct = 0.0; reward/tags = 0.3 + n / 200
constant_reward | flat | score = 0.3 to 0.9; reward/correct = 0.5; reward/tags = 0.3 + n / 70
other_eval_task, evaluation prompts train | learns | eval/trained_rows = None if n % 10 else 5.0; eval/rows = None if
    n % 10 else 60.0
inverted_reward, shorter and more random is better, log | flat | score = 0.3 to 0.9; policy/entropy = 0.1 + 0.005 *
    n + 0.002 * (n % 3); rollout/length_mean = 20 - 0.3 * n + 0.1 * (n % 3); rollout/truncated_frac = 0.0
noisy_reward, the policy moves for nothing, log | flat | reward/mean = 0.5 + 0.1 * chance(n) if n else None; kl/ref
    = 0.005 * n * (0.5 + chance('kl', n))
noisy_reward, groups are alike by chance, log | flat | reward/mean = (30, 34, 32, 31, 33)[n % 5] / 64 if n else
    None; kl/ref = '-'; reward/zero_std_frac = (0, 1, 2, 3, 4)[n % 5] / 16
none, groups that are alike by their prompts, log | flat | reward/mean = (30, 34, 32, 31, 33)[n % 5] / 64 if n else
    None; kl/ref = '-'; reward/zero_std_frac = (3, 4, 5, 6, 7)[n % 5] / 16
none, a model that learns to end, log | flat | score = 0.3 to 0.9; policy/entropy = 0.1 + 0.005 * n + 0.002 * (n %
    3); rollout/length_mean = 20 - 0.3 * n + 0.1 * (n % 3); rollout/truncated_frac = max(0.0, 0.5 - n / 20)
jump_at_restart, the KL is 0 again | learns | kl/ref = 0.0 if n in (0, 1, 26) else 0.02 + 0.001 * n; policy/entropy
    = (0.5 if back(n) else 0.4) + 0.03 * (n % 3)
none, a warm-up to a usual rate without a KL, log | flat | optim/lr = 1e-06 * n; kl/ref = '-'
part_bought, the held-out figure falls from its best | flat | score = 0.4 to 0.9; eval/accuracy = {0: 0.5, 20: 0.85,
    40: 0.65}.get(n); eval/rows = 128.0; reward/correct = 0.45 + 0.03 * (n % 3) + n / 1000; reward/detail = n / 80
"""
FIGURES = dict(case.split(" | ", 1) for case in " ".join(FIGURES.split("\n    ")).strip().splitlines())


def figures_of(text: str) -> dict:
    """{name: value, or function of the step} of `name = expression; …`; `score = a to b` is `learns(a, b)`."""
    figures = {}
    for name, value in (figure.split(" = ") for figure in text.split("; ")):
        if name == "score":
            figures |= learns(*map(float, value.split(" to ")))
        else:
            figures[name] = eval(f"lambda n: {value}" if re.search(r"\bn\b", value) else value)
    return figures


@pytest.mark.parametrize("case", FIGURES)
def test_cause_that_figures_show(case, tmp_path):
    kind, figures = FIGURES[case].split(" | ")
    alone = case.endswith(", log")
    rows = changed("ppo_healthy", figures_of(figures), kind == "flat")
    run = judged(write_run(tmp_path / "run", rows, None if alone else config_of("ppo_healthy")))
    assert next((cause["cause"] for cause in run["causes"]), "none") == case.partition(",")[0]
    assert any("--settings" in text for text in run["lacked"]) == alone


# who logs it | its form, steps, settings | causes ("?": likely, "!": certain, "+": maybe another), verdict | figures
LOGGED = """
equal scores in float32 | console 1 20 - | constant_reward + | reward = 0.1; reward_std = 7e-9;
    frac_reward_zero_std = 1.0; rewards/f/std = 7e-9
length is paid until the held-out figure falls from its best | json 1 60 - | part_bought broken |
    reward = 0.5 + n / 20 + 0.01 * (n % 3); completion_length = 30 + 3 * n; kl = 0.001 * n;
    val_acc = 0.4 + 0.01 * min(n, 30) - 0.02 * max(0, n - 30) + 0.01 * (n % 3)
a base model that rambles past its answer | console 1 200 - | learned | completions/clipped_ratio = 0.85; kl = n * 1e-5;
    reward = 0.2 + 0.003 * n + 0.02 * (n % 5); reward_std = 0.4; rewards/correct/mean = 0.25 + 0.003 * n
the KL's weight | verl 1 30 - | kl_holds_policy | critic/score/mean = 0.5; actor/kl_loss = 4e-4; actor/kl_coef = 5.0;
    actor/entropy = 0.4 + 0.01 * (n % 3)
one step differs more | json 1 40 {"beta":0.2} | kl_holds_policy | reward = 0.3 + 0.01 * (n % 3); kl = 0.001;
    reward_std = 0.5 if n == 1 else 0.04
a reward of ten times its scale from step 31 on | json 1 60 - | jump_at_restart! broken |
    reward = (0.4 + 0.01 * (n % 5)) * (1 + 9 * (n > 30)); reward_std = 0.4 * (1 + 9 * (n > 30))
the same without its spread | json 1 60 - | jump_at_restart! broken |
    reward = (0.4 + 0.01 * (n % 5)) * (1 + 9 * (n > 30))
rare answers that become frequent at once | json 1 60 - | learned | reward = (0.01 + 0.05 * (n > 30)) * (1 + n % 3 / 9);
    reward_std = 0.03 + 0.14 * (n > 30)
a log without a score | json 1 12 - | too short | kl = 0.1; loss = 0.1
an entropy that is lost in a run that learns | json 1 200 - | learned seen | entropy = math.exp(-n / 20);
    reward = 0.4 + 0.01 * (n % 5) + 0.001 * n
a penalty | json 1 200 - | - | reward_std = 0.4; reward = 0.2 + 0.003 * n + 0.02 * (n % 5) - 0.15 * math.exp(-n / 30);
    rewards/correct/mean = 0.2 + 0.003 * n + 0.02 * (n % 5); rewards/repetition_penalty/mean = 0.15 * math.exp(-n / 30)
a short run that goes on from another | json 1001 1020 - | + too short |
    reward = 0.5 + 0.1 * math.sin(n) + (n - 1001) / 600
fifty steps | json 1 60 - | + no verdict | reward = 0.5 + 0.1 * math.sin(n) + n / 600; kl = 0.01 * n
single tokens of the sampler differ | json 1 100 - | learned | reward = 0.4 + 0.01 * (n % 5) + 0.003 * n;
    reward_std = 0.4; sampling/sampling_logp_difference/mean = 0.02;
    sampling/sampling_logp_difference/max = 3.0 + 0.1 * (n % 3)
a sampler differs in a run that learns | json 1 100 - | sampler_mismatch? learned |
    reward = 0.4 + 0.01 * (n % 5) + 0.003 * n; reward_std = 0.4; sampling/sampling_logp_difference/mean = 0.08
a sampler differs in a run that stands | json 1 100 - | sampler_mismatch! broken | reward = 0.4 + 0.01 * (n % 5);
    reward_std = 0.4; sampling/sampling_logp_difference/mean = 0.08
lengths padded to those of the batch, verl's V1 trainer | verl 1 6 - | - | response_length/clip_ratio = 0.6;
    critic/score/mean = 0.5; response_length/max = 51 - n
lengths at the limit | verl 1 6 - | limit_too_short | response_length/clip_ratio = 0.6; critic/score/mean = 0.5;
    response_length/max = 50
copies, or prompts always or never solved, verl | verl 1 40 - | near_greedy_sampling? no_group_variance? |
    critic/score/mean = 0.5 + 0.01 * (n % 7); critic/advantages/max = 0.0; critic/advantages/min = 0.0;
    actor/grad_norm = 0.0; actor/kl_loss = 0.0
the same, TRL | json 1 40 - | near_greedy_sampling? no_group_variance? | reward = 0.5 + 0.01 * (n % 7);
    frac_reward_zero_std = 1.0; reward_std = 0.0; rewards/f/mean = 0.5; rewards/f/std = 0.5; grad_norm = 0.0
"""
LOGGED = dict(case.split(" | ", 1) for case in " ".join(LOGGED.split("\n    ")).strip().splitlines())


@pytest.mark.parametrize("case", LOGGED)
def test_cause_and_verdict_of_figures_as_people_post_them(case, tmp_path):
    where, expected, figures = (part.strip() for part in LOGGED[case].split(" | "))
    form, first, last, settings = where.split()
    rows = []
    for n in range(int(first), int(last) + 1):
        row = {name: value(n) if callable(value) else value for name, value in figures_of(figures).items()}
        row = {name: value for name, value in row.items() if value is not None}
        rows.append({"step": n, "data": row} if form == "verl" else row if form == "console" else {"step": n} | row)
    log = tmp_path / "posted.log"
    log.write_text("\n".join(map(str if form == "console" else json.dumps, rows)) + "\n")
    (tmp_path / "settings.json").write_text(settings)
    said = judged(log, settings="" if settings == "-" else str(tmp_path / "settings.json"))
    marks = {"likely": "?", "certain": "!"}
    causes = [(cause["cause"], marks[cause["certainty"]]) for cause in said["causes"]]
    causes = [name + mark * (mark in expected) for name, mark in causes]
    wanted = [word for word in expected.split() if "_" in word]
    assert causes[: len(wanted)] == wanted and ("+" in expected or len(causes) == len(wanted))
    verdicts = [verdict for verdict in ("learned", "broken", "too short", "no verdict") if verdict in expected]
    assert (not verdicts or said["verdict"] == verdicts[0]) and ("seen" in expected) <= bool(said["unexplained"])
    assert said["verdict"] != "no verdict" or "chance explains that" in said["remarks"][-1]
    assert all(cause["decide_with"] for cause in said["causes"][: 2 * ("greedy" in expected)])


def test_the_error_that_ended_a_log_is_named(tmp_path, capsys):
    prefix = "\x1b[36m(Runner pid=1)\x1b[0m "
    trace = 'Traceback (most recent call last):\n  File "a.py", line 8\ntorch.OutOfMemoryError: CUDA out of memory.'
    trace = trace.splitlines()
    log = tmp_path / "a.log"
    log.write_text("\n".join([*(printed(n) for n in range(1, 13)), *(prefix + line for line in trace)]))
    assert "the log has an error: torch.OutOfMemoryError: CUDA out of memory." in judged(log)["remarks"]
    log.write_text("\n".join(trace))
    assert diagnose.main([str(log)]) == 2 and "ending in torch.OutOfMemoryError: CUDA" in capsys.readouterr().err


@pytest.mark.parametrize(("rate", "found"), [(0.0, "answer_form"), (0.01, "too_sparse"), (0.5, ""), (0.98, "too_easy")])
def test_scores_of_minus_one_and_one(rate, found, tmp_path):  # DAPO's
    def row(n):
        mean, top = 2 * rate - 1 + 0.002 * (n % 3) * (rate > 0), 1.0 if rate else -1.0
        return {"critic/score/mean": mean, "critic/score/min": -1.0, "critic/score/max": top}

    rows = [{"step": n, "data": row(n)} for n in range(1, 13)]
    causes = judged(write_lines(tmp_path / "log.jsonl", rows), group_size=4)["causes"]
    assert [cause["cause"] for cause in causes][:1] == [found] * bool(found)
    assert all(cause["certainty"] == "likely" for cause in causes)


def test_gold_that_the_prompt_has_is_no_sign_that_it_was_found():
    def texts(form, gold, count):
        said = [{"completion": form.format(n, "AB"[n % 2]), "answer": gold(n), "score": 0.0} for n in range(count)]
        return diagnose.sample_texts([row | {"prompt": f"{n}+7= (A) (B)"} for n, row in enumerate(said)], {})

    assert not diagnose.unpaid_with_gold(texts("{0} and 7, so 3", str, 9))  # the gold is an operand
    assert not diagnose.unpaid_with_gold(texts("A or B? Answer: {1}", lambda n: "AABB"[n % 4], 82))  # half, by chance
    assert len(diagnose.unpaid_with_gold(texts("A or B? Answer: {1}", lambda n: "AB"[n % 2], 80))) == 80


def test_a_reward_that_gives_none_for_every_completion(tmp_path):
    run = write_run(tmp_path / "run", changed("ppo_healthy", {}, True), config_of("ppo_healthy"))
    same = {"kind": "train", "prompt": "1+1=", "score": 0, "rewards": {"mine": None}}
    write_lines(run / "samples.jsonl", [same | {"step": n, "completion": f"so {n}"} for n in range(1, 11)])
    cause = judged(run)["causes"][0]
    assert cause["cause"] == "constant_reward" and "None for all 10" in json.dumps(cause)


SETTINGS = [  # (cause, settings that show it, whatever the figures do)
    *(
        ("near_greedy_sampling", {x: y})
        for x, y in (("temperature", 0.05), ("top_k", 1), ("top_p", 0.1), ("min_p", 0.95))
    ),
    ("kl_holds_policy", {"kl_coef": 5.0}),
    *(("nothing_moves", change) for change in ({"warmup_steps": 5000}, {"max_grad_norm": 1e-12})),
    ("sampler_mismatch", {"repetition_penalty": 1.5}),
    ("no_group_variance", {"advantage": "grpo", "group_size": 1}),
]


def test_cause_that_settings_show(tmp_path):
    rows, usual = changed("ppo_healthy", {}, True), config_of("ppo_healthy") | {"kl_coef": 0.01, "temperature": 1.0}
    usual |= {"ppo_epochs": 4, "minibatches": 4}
    assert names(write_run(tmp_path / "run", rows, usual)) == []
    for cause, settings in SETTINGS:
        assert names(write_run(tmp_path / "run", rows, usual | settings)) == [cause], settings


@pytest.mark.parametrize("setting", [{"temperature": 0.25}, {"repetition_penalty": 1.05}])
def test_a_run_that_learns_is_not_ill_by_its_settings_alone(setting, tmp_path):
    run = judged(write_run(tmp_path / "run", rows_of("ppo_healthy"), config_of("ppo_healthy") | setting))
    assert run["verdict"] == "learned" and not any(cause["certainty"] == "certain" for cause in run["causes"])


@pytest.mark.parametrize(("score", "better"), [(0.9, True), (0.88, True), (0.7, False), (0.55, False)])
def test_learned_takes_a_held_out_gain_beyond_its_interval_and_most_of_it_kept(score, better, tmp_path):
    rows = [{"step": n, "reward/mean": 0.5 + 0.01 * n, "reward/std": 0.5} for n in range(1, 9)]
    rows = [{"step": 0, "eval/accuracy": 0.5, "eval/rows": 100.0}, *rows]
    rows[5] |= {"eval/accuracy": 0.97 if score > 0.6 else 0.5}  # of 0.47 a quarter, 0.12, may be lost again
    rows[-1] |= {"eval/accuracy": score, "eval/rows": 100.0}
    # Newcombe 1998 by hand, 0.5 to 0.9 of 100: 0.4 - sqrt((0.9 - 0.826)^2 + (0.596 - 0.5)^2) = 0.28
    assert judged(write_run(tmp_path / "run", rows))["verdict"] == ("learned" if better else "too short")
    assert diagnose.share_gain((0.5, 100), (0.9, 100))[1] == pytest.approx(0.279, abs=0.002)


@pytest.mark.long
def test_trainers_name_a_certain_cause_and_stop_a_broken_run(tmp_path):
    flags = ["--steps=12", "--lr=0.02", "--batch_size=64", "--max_new_tokens=32", "--stop_when=broken"]
    done = run_script("ppo_train", *flags, "--algorithm=grpo", "--output_dir=out", cwd=tmp_path)
    assert done.returncode == 1 and "broken, updates_too_large" in done.stderr
    assert "calls the run broken; continue with --resume" in done.stderr
    assert list((tmp_path / "out").glob("checkpoints/step-*")) and not (tmp_path / "out" / "final").exists()


@pytest.mark.long
@pytest.mark.parametrize(("log", "ends"), [("grpo_lr_high", True), ("grpo_healthy", False)])
def test_callback_of_the_trl_page_ends_a_broken_run(log, ends, tmp_path, capsys, monkeypatch):
    from transformers import TrainerControl, TrainerState, TrainingArguments

    page = (ROOT / "references" / "grpo_trl.md").read_text(encoding="utf-8")
    names = {}
    exec(next(text for text in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "TrainerCallback" in text), names)
    monkeypatch.chdir(ROOT)
    theirs = {common: key for key, common in diagnose.TRL.items()}
    shared = {ours: theirs[common] for ours, common in diagnose.OURS.items() if common in theirs}
    names_of = [(row, shared.keys() & row.keys()) for row in rows_of(log)]
    rows = [{"step": row["step"]} | {shared[key]: row[key] for key in keys} for row, keys in names_of]
    control, args = TrainerControl(), TrainingArguments(output_dir=str(tmp_path), use_cpu=True)
    for step in (2, 3, 9, 10):
        state = TrainerState(global_step=step, log_history=[row for row in rows if 0 < row["step"] <= step])
        names["Diagnosis"]().on_log(args, state, control)
        assert (tmp_path / "trainer_state.json").exists() == (step > 2)
    assert (control.should_training_stop, control.should_save) == (ends, ends)
    assert ("updates are too large" in capsys.readouterr().out) == ends


# ------------------------------------------------------------------------------------------------ settings, samples
FILES = {  # how settings are written: they say the same
    "config.yaml": "temperature: 0.05\nlearning_rate: 5e-6\nnum_generations: 8\n",
    "train.py": "LR = 5e-6\nx = GRPOConfig(temperature=0.05, learning_rate=LR, num_generations=8)\n1 / 0\n"
    "SFTConfig(learning_rate=2e-4)\nSamplingParams(temperature=1.0, top_k=1)\n",
    "own.yaml": "eval: {temperature: 1}\nrollout: {temperature: 0.05, n: 8}\njudge: {temperature: 1}\nlr: 5e-6\n",
    "run.sh": 'LR=5e-6\nswift rlhf --temperature 0.05 \\\n  --learning_rate $LR --num_generations "8"\n',
    "verl.sh": "python -m verl.trainer.main_ppo actor_rollout_ref.rollout.temperature=0.05 "
    "actor_rollout_ref.actor.optim.lr=5e-6 actor_rollout_ref.rollout.n=8\n",
    "defaults.py": "p.add_argument('--temperature', type=float, default=0.05)\np.add_argument('--lr', default=5e-6)\n"
    "a = p.parse_args()\nGRPOConfig(temperature=a.temperature, learning_rate=a.lr, num_generations=8)\n",
    "spread.py": "c = dict(temperature=0.05, learning_rate=5e-6)\nGRPOConfig(num_generations=8, **c)\n",
    "sampler.py": "s = SamplingParams(temperature=0.05)\nSamplingParams(temperature=1.0)\n"
    "GRPOConfig(learning_rate=5e-6, num_generations=8, vllm_sampling_params=s)\n",
    "fields.py": "class C:\n    lr: float = 5e-6\n    group_size: int = 8\n    temperature: float = 0.05\n",
    "names.py": "LR, TEMPERATURE = 1, 1\nLEARNING_RATE = 5e-6\nGROUP_SIZE = 8\nm.generate(**x, temperature=0.05)\n",
    "own_evaluation.py": "lr = 5e-6\nnum_generations = 8\ndef roll(m):\n    return m.generate(temperature=0.05)\n"
    "def ev(m):\n    return m.generate(temperature=0.0, top_k=1)\nclass Judge:\n    temperature = 1.0\n",
    "refs.yaml": "t: 0.05\ngrpo: {lr: 5e-6, num_generations: 8, temperature: '${t}'}\n",
    "prime.toml": "[trainer.optim]\nlr = 5e-6\n[orchestrator]\ngroup_size = 8\nsampling = {temperature = 0.05}\n",
    "defaults.sh": 'LR=${LR:-5e-6}\npython a.py --learning_rate "${LR}" --num_generations ${N:-8} --temperature .05\n',
    "of_a_notebook.ipynb": '{"cells": [{"cell_type": "code", "source": ["!pip install trl\\n", "LR = 5e-6\\n"]}, '
    '{"cell_type": "code", "source": "GRPOConfig(temperature=0.05, learning_rate=LR, num_generations=8)"}]}',
    "wandb-metadata.json": '{"args": ["--temperature", "0.05", "--learning_rate=5e-6", "--num_generations", "8"]}',
}


@pytest.mark.parametrize("name", FILES)
def test_settings_beside_a_log_and_elsewhere(name, tmp_path):
    log = [{"step": n, "reward": 0.5 + 0.01 * (n % 3), "completion_length": 9.0} for n in range(1, 13)]
    folder, other = tmp_path / "run", tmp_path / "other"
    folder.mkdir(), other.mkdir()
    write_lines(folder / "logging.jsonl", log)
    (other / name).write_text(FILES[name])
    alone = diagnose.load_run(str(folder))
    assert "temperature" not in alone.settings and names(folder) == []
    run = diagnose.load_run(str(folder), settings=str(other / name))
    assert (run.settings["temperature"], run.settings["lr"], run.settings["group_size"]) == (0.05, 5e-6, 8)
    (folder / name).write_text(FILES[name])
    assert names(folder) == ["near_greedy_sampling"]


def test_settings_of_a_verl_job_are_in_its_folder(tmp_path):
    """verl_train.py writes them to OUTPUT_DIR/job; without the group's size a pass rate of 1 % is no finding."""
    figures = {n: {"critic/score/mean": 0.008 + 0.004 * (n % 3), "actor/entropy": 1 - n / 99} for n in range(1, 31)}
    log = [{"step": n, "data": row} for n, row in figures.items()]
    (tmp_path / "job").mkdir()
    write_lines(tmp_path / "metrics.jsonl", log)
    assert names(tmp_path) == []
    overrides = ["actor_rollout_ref.rollout.n=8", "actor_rollout_ref.actor.optim.lr=1e-06", "data.train_batch_size=64"]
    settings = {"settings": {"group_size": 8, "lr": 0.0}, "overrides": [*overrides, "algorithm.adv_estimator=grpo"]}
    (tmp_path / "job" / "settings.json").write_text(json.dumps(settings))
    assert names(tmp_path) == ["too_sparse"]
    assert diagnose.load_run(str(tmp_path)).settings["lr"] == 1e-6


def test_a_project_is_read_with_its_console_its_script_and_the_folder_that_the_script_names(tmp_path):
    """The console and the run's state have the same figures; a console of another run is read itself."""
    entries = [{"step": n, "reward": 0.5 + 0.01 * (n % 3), "reward_std": 0.2, "lr": 1e-6} for n in range(1, 13)]
    folder = tmp_path / "outputs" / "run" / "checkpoint-12"
    folder.mkdir(parents=True)
    (folder / "trainer_state.json").write_text(json.dumps({"log_history": entries}))
    script = "GRPOConfig(output_dir='outputs/run', temperature=0.05, learning_rate=5e-6, num_generations=8)\n"
    (tmp_path / "train.py").write_text(script)
    for shift, read in ((0.0, "trainer_state.json"), (0.3, "train.log")):
        lines = [str({**entry, "reward": f"{entry['reward'] + shift:.4g}"}) for entry in entries]
        (tmp_path / "train.log").write_text("\n".join(lines))
        run = diagnose.load_run(str(tmp_path))
        assert run.path.endswith(f"/{read}") and run.settings["temperature"] == 0.05
    assert diagnose.load_run(str(tmp_path / "outputs" / "run")).settings_file == "train.py"
    (tmp_path / "train.py").write_text(script.replace("outputs/run", "outputs/other"))
    assert "temperature" not in diagnose.load_run(str(tmp_path / "outputs" / "run")).settings


LOADED = {  # {what a script does to get its rows: what is known of them}
    "rows = load('train.jsonl')['train']\nrows = rows.map(f)\nrows = rows.shuffle(seed=1)": "train.jsonl",
    "rows = load('train.jsonl', split='train').map(f)": "train.jsonl",
    # parts of a file, which prove.py would take for all of it
    "rows = load('train.jsonl', split='train[:90%]')": "",
    "rows = load('train.jsonl', split='train').select(range(9))": "",
    "rows = load('train.jsonl')['train'].train_test_split(0.1)['train']": "",
    "rows = load('train.jsonl', split='train')\nrows = rows.filter(f)": "",
    "def f(rows):\n    rows = load(rows)\n    return rows": "",  # from its own former value
}


@pytest.mark.parametrize("rows", LOADED)
def test_a_script_names_what_it_loads(rows):
    loads = rows.replace("load(", "load_dataset('json', data_files=")
    script = "from datasets import load_dataset\nNAME = 'org/model'\n"
    script += f"model = AutoModelForCausalLM.from_pretrained(NAME, dtype='auto').to('cuda')\n{loads}\n"
    script += "lr = 1e-6\nlr = lr * 10\nargs = GRPOConfig(learning_rate=lr, num_generations=8, temperature=1.0)\n"
    script += "GRPOTrainer(model=model, args=args, train_dataset=rows)\n"
    flat = diagnose.script_settings(script)
    assert (flat["model"], flat["learning_rate"]) == ("org/model", "lr")
    assert flat["train_dataset"] == LOADED[rows] or (not LOADED[rows] and not flat["train_dataset"].endswith(".jsonl"))
    other = script.replace("model = Auto", "model = PeftModel.from_pretrained(Auto").replace(".to(", ", 'sft').to(")
    assert diagnose.script_settings(other)["model"] != "org/model"


OTHERS = {  # files beside a run or above it that do not set its training
    "eval.sh": "python eval.py --temperature 0 --top_k 1 --lr 0 --num_generations 1\n",
    "generation_config.json": '{"temperature": 0.01, "top_k": 1, "top_p": 0.1, "repetition_penalty": 1.05}',
    "chat.py": "LR = 1\nm.generate(temperature=0.0, top_k=1)\nm.generate(temperature=1.0, top_k=0)\n",
    "../sample.sh": "python sample.py --temperature 0 --top_k 1 --max_tokens 64\n",
    "bench.json": '{"learning_rate": 5e-5, "num_generations": 8, "temperature": 0.01, "max_tokens": 8}',
    "big.json": '{"lr": 1e-6, "num_generations": 8, "temperature": 0.01, "text": "%s"}' % ("a" * 200_000),
    "a.yaml": "lr: 1e-6\nnum_generations: 8\ntemperature: 0.01\nbatch_size: 4\n",
    "b.yaml": "lr: 1e-6\nnum_generations: 4\ntemperature: 0.01\nbatch_size: 4\n",
    "../other.py": "def correct(completions):\n    return [0.0 for _ in completions]\n",
    "eval_samples.jsonl": '{"prompt": "1+1=", "completion": "2", "score": 0.0, "gold": 2}\n' * 16,
}


def test_files_that_do_not_set_a_training_are_not_its_settings(tmp_path):
    rows = [{"step": n, "reward": 0.0, "reward_std": 0.0, "learning_rate": 1e-6} for n in range(1, 13)]
    folder = tmp_path / "run"
    folder.mkdir()
    log = write_lines(folder / "logging.jsonl", rows)
    alone = judged(log)
    for name, text in OTHERS.items():
        (folder / name).write_text(text)
    said = judged(folder)
    assert (said["causes"], said["had"]) == (alone["causes"], alone["had"])
    assert "a.yaml and b.yaml hold different settings" in said["remarks"][0]
    for name in ("a.yaml", "b.yaml"):
        (folder / name).unlink()
    script = "GRPOTrainer(reward_funcs=[correct], learning_rate=1e-6, num_generations=8, beta=0)"
    (folder / "train.py").write_text(script)
    assert "the reward's source (other.py)" in judged(folder)["had"]  # settings name its function


REWARD = "def parse({0}):\n    return {0}\n\ndef mine({0}, answer):\n    return 0.0 if parse({0}) else 0.0\n"


@pytest.mark.parametrize("takes", ["completions", "solution_str"])
@pytest.mark.parametrize("place", ["reward.py", "../reward.py"])
def test_without_names_the_only_reward_in_the_folder_of_a_run_is_its_own(takes, place, tmp_path):
    folder = write_run(tmp_path / "run", [{"step": n, "reward/mean": 0.0} for n in range(1, 13)])
    (folder / place).write_text(REWARD.format(takes))
    assert bool(diagnose.load_run(str(folder)).reward_source) == (place == "reward.py")
    (folder / "other.py").write_text(REWARD.format(takes))
    assert not diagnose.load_run(str(folder)).reward_source or place != "reward.py", "one of two"


HELPERS = {  # what a function that a verl reward calls returns: the reward's name and score, the cause, its evidence
    "1.0": ("compute_score", 1.0, "constant_reward", "every completion scored 1 at every step"),
    "float(text.partition('####')[2] == gold)": ("mine", 0.0, "answer_form", "the reward reads ####"),
}


@pytest.mark.parametrize("returns", HELPERS)
def test_the_reward_of_a_verl_job_is_read_with_the_functions_that_it_calls(returns, tmp_path):
    name, score, cause, evidence = HELPERS[returns]
    means = ("critic/score/mean", "critic/score/max", "critic/score/min", "val-core/a/acc/mean@1")
    figures = dict.fromkeys(means, score)
    write_lines(tmp_path / "metrics.jsonl", [{"step": n, "data": figures} for n in range(1, 13)])
    row = {"step": 1, "score": score}
    rows = [row | {"input": f"{n}+7=", "output": f"<answer>{n + 7 + n % 2}</answer>", "gts": n + 7} for n in range(40)]
    (tmp_path / "rollouts").mkdir()
    write_lines(tmp_path / "rollouts" / "1.jsonl", rows)
    unused = "def answer_of(solution_str):\n    return solution_str.partition('<answer>')[2]\n"
    graded = f"def graded(text, gold):\n    return {returns}\n"
    reward = f"def {name}(data_source, solution_str, ground_truth):\n    return graded(solution_str, ground_truth)\n"
    (tmp_path / "reward.py").write_text("\n\n".join((unused, graded, reward)))
    words = ["custom_reward_function.path=reward.py", "rollout.n=4", "optim.lr=1e-6", "data.train_batch_size=10"]
    words += [f"reward.custom_reward_function.name={name}"] * (name != "compute_score")  # verl's default
    (tmp_path / "run.sh").write_text(f"python -m verl.trainer.main_ppo {' '.join(words)}")
    first = judged(tmp_path)["causes"][0]
    assert first["cause"] == cause and evidence in str(first)


def test_the_command_of_a_script_overrides_its_defaults(tmp_path):
    write_lines(tmp_path / "train.jsonl", [{"question": "1+1=", "answer": "2"}])  # data, so not the log
    write_lines(tmp_path / "log.jsonl", [{"step": n, "reward": 0.5, "kl": 0.1} for n in range(1, 13)])
    (tmp_path / "train.py").write_text(FILES["defaults.py"])
    (tmp_path / "run.sh").write_text("python train.py --temperature 0.9\n")
    assert diagnose.load_run(str(tmp_path)).settings["temperature"] == 0.9


def test_the_weight_of_verls_kl_is_that_of_the_term_that_is_on():
    usual = {"actor_rollout_ref.actor.kl_loss_coef": 5.0, "algorithm.kl_ctrl.kl_coef": 0.001}
    for switch, weight in (("actor_rollout_ref.actor.use_kl_loss", 5.0), ("algorithm.use_kl_in_reward", 0.001)):
        assert diagnose.verl_settings(usual | {switch: True})["kl"] == weight
    assert diagnose.verl_settings(usual)["kl"] == 0.0  # verl's default is neither


def test_the_folder_of_an_ms_swift_run(tmp_path):
    rows = [{"reward": n / 60, "reward_std": 0.4, "rewards/Format/mean": n / 60} for n in range(1, 41)]
    rows = [row | {"global_step/max_steps": f"{n}/40", "loss": 0.0} for n, row in enumerate(rows, 1)]
    write_lines(tmp_path / "logging.jsonl", rows), write_lines(tmp_path / "val_dataset.jsonl", [{"messages": []}])
    golds = [str(10 + n % 7) for n in range(160)]
    form = "<think>I say {}</think>"
    texts = [form.format(gold if n % 3 else 9) if n < 80 + n % 80 else gold for n, gold in enumerate(golds)]
    table = {"step": [str(1 + n // 4) for n in range(160)], "prompt": [f"p{n}" for n in range(160)]}
    table |= {"completion": texts, "Format": [float("<" in text) for text in texts], "solution": golds}
    batches = [{key: cells[i : i + 4] for key, cells in table.items()} for i in range(0, 160, 4)]
    write_lines(tmp_path / "completions.jsonl", batches)
    run = diagnose.load_run(str(tmp_path))
    (tmp_path / "checkpoint-40").mkdir()
    (tmp_path / "checkpoint-40" / "trainer_state.json").write_text(json.dumps({"log_history": rows}))
    assert diagnose.load_run(str(tmp_path)).path == run.path
    assert [t.score for t in run.texts] == table["Format"] and [t.step for t in run.texts][::40] == [1, 11, 21, 31]
    assert names(tmp_path) == ["reward_ignores_answer"]


@pytest.mark.parametrize(
    ("name", "found"),
    [("completions.jsonl", True), ("rollouts_0.csv", True), ("baseline.jsonl", False), ("scored.jsonl", False)],
)
def test_the_only_table_beside_a_log_with_a_name_of_samples_is_read(name, found, tmp_path):
    write_lines(tmp_path / "train.log", [{"step": n, "reward": 0.0, "reward_std": 0.0} for n in range(1, 13)])
    rows = [{"step": 1, "prompt": f"{n}+1=", "completion": f"so {n + 1}", "score": 0.0, "gold": n} for n in range(9)]
    lines = [",".join(map(str, row)) for row in (rows[0], *(row.values() for row in rows))]
    text = "\n".join(lines if name.endswith("csv") else map(json.dumps, rows))
    (tmp_path / name).write_text(text + "\n")
    run = diagnose.load_run(str(tmp_path))
    assert [(t.score, t.gold) for t in run.texts] == [(0.0, str(n)) for n in range(9)] * found
    assert found == ("--samples FILE" not in str(run.remarks))
    (tmp_path / "samples_2.jsonl").write_text(json.dumps(rows[0]) + "\n")
    run = diagnose.load_run(str(tmp_path))
    assert bool(run.texts) != found == ("--samples FILE" in str(run.remarks))  # with both, neither is read


def printed(n, count=200, **figures):
    """A step as transformers' Trainer prints it, of a score that rises."""
    row = {"reward": round(0.2 + 0.6 * n / count + 0.02 * (n % 5), 4), "reward_std": 0.4, "kl": n * 1e-5} | figures
    return str(row | {"epoch": n / count})


def test_ranks_that_print_the_same_and_numbers_in_wrappers(tmp_path):
    log, rows = tmp_path / "train.log", [printed(n) for n in range(1, 41)]
    log.write_text("".join(f"[rank0]: {row}\n[rank1]: {row}\n" for row in rows))
    assert diagnose.load_run(str(log)).steps() == [*range(1, 41)]
    loss = "{'loss': tensor(0.1, device='cuda:0'), "
    wrapped = [row.replace("0.4,", "np.float64(0.4),").replace("{", loss) for row in rows]
    log.write_text("\n".join(wrapped) + "\n{'loss': <object>, 'reward': 1}\n")
    run = diagnose.load_run(str(log))
    assert set(run.values("loss")) == {0.1} and set(run.values("score_std")) == {0.4}
    assert any(remark.startswith("1 printed dicts") for remark in run.remarks)


@pytest.mark.parametrize(
    ("form", "found"),
    [
        ("{}\n\nQ: 7+8=\nA: 15", ["never_ends"]),  # a base model writes the next question
        ("First the tens.\nThen the ones.\nThat makes {}, and to be su", ["limit_too_short"]),
    ],
)
def test_a_model_that_does_not_end_is_no_short_limit(form, found, tmp_path):
    run = write_sampled(tmp_path / "run", lambda *_: 0.0, source("\\boxed"), form)
    for name, more in (("metrics.jsonl", {"rollout/truncated_frac": 1.0}), ("samples.jsonl", {"finished": False})):
        write_lines(run / name, [row | more for row in read_lines(run / name)])
    assert names(run)[:1] == found


def test_an_answer_tried_many_times_is_bought(tmp_path):
    (tmp_path / "train.log").write_text("\n".join(printed(n) for n in range(1, 201)))
    texts = [(n, step) for step in (1, 2, 198, 199) for n in range(20)]
    wrong = " The answer is \\boxed{{{}}}."
    rows = []
    for n, step in texts:
        text = wrong.format(700 + n) * (n % 2 or step > 2) + wrong.format(5) * (n % 2 == 0 or step > 2)
        row = {"step": step, "prompt": f"p{n}", "gold": 700 + n, "score": float(n % 2 or step > 2)}
        rows.append(row | {"completion": text})
    write_lines(tmp_path / "samples.jsonl", rows)
    said = judged(tmp_path)
    assert said["verdict"] == "broken" and said["causes"][0]["cause"] == "part_bought"


def test_samples_of_any_table_and_gold_from_the_data(tmp_path):
    log = write_lines(tmp_path / "log.jsonl", [{"step": n, "reward": 0.0, "reward_std": 0.0} for n in range(1, 13)])
    with (tmp_path / "table.csv").open("w", encoding="utf-8") as file:
        file.write("question,response,reward\n" + "".join(f"{n}+1=,#### {n + 1},0\n" for n in range(10, 30)))
    write_lines(tmp_path / "data.jsonl", [{"question": f"{n}+1=", "answer": str(n + 1)} for n in range(10, 30)])
    (tmp_path / "reward.py").write_text(source("\\boxed"))
    given = {"samples": "table.csv", "data": "data.jsonl", "reward": "reward.py:correct"}
    given = {flag: str(tmp_path / name) for flag, name in given.items()}
    assert names(log, **given) == ["answer_form"] and "gold answers" in judged(log, **given)["had"]


# ------------------------------------------------------------------------------------------------ numbers
def test_forecast_is_the_enumerated_probability_of_equal_scores():
    for p, group in ((0.5, 2), (0.3, 4), (0.9, 8), (0.0, 8), (1.0, 3)):
        alike = [scores for scores in itertools.product((0, 1), repeat=group) if len(set(scores)) == 1]
        exact = sum(math.prod(p if score else 1 - p for score in scores) for scores in alike)
        assert diagnose.forecast(p, group) == pytest.approx(exact, abs=1e-15)


def test_trend_by_hand():
    # medians of 3 of 12: 2 and 11; neighbours differ by 1
    rising = [float(i) for i in range(1, 13)]
    assert diagnose.ends(rising) == (2.0, 11.0)
    assert diagnose.trend(rising) == 1 and diagnose.trend(rising[::-1]) == -1
    assert diagnose.trend(rising[:9]) == 0  # too few
    outlier = [1.0, 1.1, 0.9, 1.0, 1.1, 0.9, 50.0, 1.0, 1.1, 0.9, 1.0, 1.1]
    assert diagnose.trend([0.0, 1.0] * 6) == diagnose.trend(outlier) == 0
    # of 14 distances two are 1: their median and quartile are 0, their mean 1/7; sqrt(pi / 2) / sqrt 2 = 0.8862
    assert diagnose.noise([0.0] * 7 + [1.0] + [0.0] * 7) == pytest.approx(0.8862 / 7, rel=1e-3)
    assert diagnose.repeats("abcdef" * 10) == pytest.approx(1 - 6 / 55)  # 55 pieces, 6 of them different


@pytest.mark.parametrize(("kind", "steps"), [("persistent", 40), ("heavy", 100)])
def test_no_trend_is_found_in_flat_noise(kind, steps):
    """Once in 300 logs at most, at a true rate of 0.5 %; the best stretch against the last gave it in 40 of 100."""
    simulation, numbers = load_module(ROOT / "benchmarks" / "false_alarms.py", "false_alarms"), random.Random(5)
    runs = [simulation.diagnose(simulation.noise_log(kind, steps, numbers)) for _ in range(40)]
    assert sum(bool(run["causes"]) for run in runs) <= 2


@pytest.mark.parametrize("rho", [0.0, 0.5])
def test_persistence_is_that_of_the_noise_whatever_its_trend(rho):
    numbers, state, values = random.Random(3), 0.0, []
    for step in range(4000):
        state = rho * state + math.sqrt(1 - rho**2) * numbers.gauss(0, 1)
        values.append(state + 0.01 * step)
    assert diagnose.persistence(values) == pytest.approx(rho, abs=0.06)
    assert diagnose.noise(values) == pytest.approx(math.sqrt((1 + rho) / (1 - rho)), rel=0.1)  # of means of AR(1)


# ------------------------------------------------------------------------------------------------ formats
def long_rows(steps: int):
    """Rows of a log that is longer than what is kept of it."""
    for step in range(1, steps + 1):
        yield {"step": step, "reward": math.sin(step), "reward_std": 0.3, "kl": math.nan if step == 777 else 0.1}


def test_long_logs_are_read_with_flat_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(diagnose, "MOST_STEPS", 200)
    steps = 4 * diagnose.MOST_STEPS
    write_lines(tmp_path / "log.jsonl", long_rows(steps))
    history = ",\n".join(json.dumps(row, indent=4) for row in long_rows(steps))
    state = f'{{"epoch": 1.0,\n"log_history": [{history}],\n"max_steps": {steps}}}'
    (tmp_path / "trainer_state.json").write_text(state)
    runs = [diagnose.load_run(str(tmp_path / name)) for name in ("log.jsonl", "trainer_state.json")]
    for run in runs:
        kept = run.series["score"]
        assert diagnose.MOST_STEPS <= len(kept) <= 2 * diagnose.MOST_STEPS and run.bad[0][:2] == ("kl", 777)
        assert [*kept][:100] == [*range(1, 101)] and max(kept) == steps and kept[steps] == math.sin(steps)
        assert any("the log is long" in remark for remark in run.remarks)
    assert runs[0].columns == runs[1].columns and runs[1].config == {"max_steps": steps}


VERL_ROW = {"actor/entropy": 0.25, "critic/score/mean": 0.5}
VERL_ROW |= {"val-core/a/acc/mean@4": 0.25, "val-core/b/acc/mean@4": 0.75}


def test_verl_formats_agree(tmp_path):
    pairs = " - ".join(f"{key}:np.float64({value!r})" for key, value in VERL_ROW.items())
    lines = [f"\x1b[36m(T pid=1)\x1b[0m step:{n} - {pairs}\n" for n in (1, 2)]
    (tmp_path / "console.log").write_text("noise, {'a': 1}\n" + "".join(lines))
    write_lines(tmp_path / "file.jsonl", [{"step": n, "data": VERL_ROW} for n in (1, 2)])
    runs = [diagnose.load_run(str(tmp_path / name)) for name in ("console.log", "file.jsonl")]
    assert runs[0].series == runs[1].series
    assert runs[0].series["held_out"] == {1: 0.5, 2: 0.5}  # mean over the data sources
    assert diagnose.as_number("True") is None and diagnose.as_number(True) is None


def test_all_starts_of_a_run_that_verl_resumed_are_read(tmp_path):
    def start(name, steps, score, torn=""):
        rows = [json.dumps({"step": n, "data": VERL_ROW | {"critic/score/mean": score}}) for n in steps]
        (tmp_path / name).write_text("\n".join(rows) + torn)

    start("metrics.jsonl", range(1, 8), 0.1, '\n{"step": 8, "da')  # killed; its checkpoint was that of step 5
    start("metrics.2.jsonl", range(6, 10), 0.2)
    start("metrics.10.jsonl", range(10, 12), 0.4)
    (tmp_path / "metrics.4.jsonl").touch()  # one that failed at once
    run = diagnose.load_run(str(tmp_path))
    expected = {**dict.fromkeys(range(1, 6), 0.1), **dict.fromkeys(range(6, 10), 0.2), 10: 0.4, 11: 0.4}
    assert run.series["score"] == expected
    assert any("3 starts, to metrics.10.jsonl" in remark for remark in run.remarks)
    assert diagnose.load_run(str(tmp_path / "metrics.2.jsonl")).series["score"] == dict.fromkeys(range(6, 10), 0.2)
    (tmp_path / "metrics.jsonl").write_text("")
    assert set(diagnose.load_run(str(tmp_path)).series["score"]) == set(range(6, 12))


def test_verl_settings_come_from_the_printed_config():
    settings = diagnose.load_run(str(DATA / "verl_healthy.log")).settings
    expected = {"group_size": 8, "temperature": 1.0, "max_length": 64, "updates": 1, "grouped": True}
    assert {name: settings[name] for name in expected} == expected


def test_trl_names_are_those_of_the_installed_trainer():
    import transformers
    import trl

    source = inspect.getsource(trl.GRPOTrainer) + inspect.getsource(transformers.Trainer)
    names = set(diagnose.TRL) - {"eval_reward"}  # the prefix is added in evaluation
    # in _maybe_log_save_evaluate and the profiler: plain keys of a dict
    missing = {name for name in names if f'"{name}"' not in source}
    assert missing <= {"step_time"} and 'f"rewards/{' in source


# ------------------------------------------------------------------------------------------------ remedies
def test_remedies_name_settings_that_exist():
    """test_verl_launcher.py compares the table of verl's keys with the installed verl."""
    from trl import GRPOConfig

    named = set(re.findall(r"[a-z_]+_[a-z_]+|fp16|bf16", " ".join(diagnose.WORDS["trl"].values())))
    assert named <= {field.name for field in dataclasses.fields(GRPOConfig)}
    table = (ROOT / "assets" / "verl_keys.txt").read_text(encoding="utf-8").splitlines()[1:]
    known = {f"{section}.{name}" for _, section, *names in map(str.split, table) for name in names}
    assert {*diagnose.WORDS["verl"].values()} <= known
    for trainer in ("ppo_train", "grpo_train", "one_page"):
        paths = [ROOT / "templates" / f"{name}.py" for name in PAGES] if trainer == "one_page" else []
        modules = [load_module(path, f"page_{path.stem}") for path in paths] or [load_script(trainer)]
        known = {field.name for module in modules for field in dataclasses.fields(module.Config)} | {"mismatch"}
        assert set(re.findall(r"--([a-z_0-9]+)", " ".join(diagnose.WORDS[trainer].values()))) <= known


# ------------------------------------------------------------------------------------------------ command
def test_exit_codes_and_text(tmp_path):
    healthy = run_script("diagnose", DATA / "ppo_healthy", cwd=tmp_path)
    assert healthy.returncode == 0 and "learned" in healthy.stdout and healthy.stderr == ""
    faulty = run_script("diagnose", DATA / "grpo_hack", DATA / "verl_healthy.log", cwd=tmp_path)
    assert faulty.returncode == 1 and "broken since step" in faulty.stdout
    assert "CERTAIN part_bought" in faulty.stdout and "the held-out figure went from 0.586 to 0.598" in faulty.stdout
    missing = run_script("diagnose", tmp_path / "none", DATA / "ppo_constant", cwd=tmp_path)
    assert missing.returncode == 2 and "expected" in missing.stderr and "constant_reward" in missing.stdout
    assert list(tmp_path.iterdir()) == []
    assert run_script("diagnose", write_run(tmp_path / "short", rows_of("ppo_healthy")[:5])).returncode == 3


def test_json_schema(capsys):
    assert diagnose.main(["--json", str(DATA / "ppo_lr_high"), str(DATA / "no_such_run")]) == 2
    run, failed = json.loads(capsys.readouterr().out)["runs"]
    assert set(failed) == {"path", "verdict", "error"} and failed["verdict"] == "unreadable"
    assert (run["verdict"], run["since_step"], run["steps"]) == ("broken", 1, [1, 25])
    assert {"had", "lacked", "unexplained", "remarks"} <= set(run) and "--lr" in run["causes"][0]["change"]
    words = dict.fromkeys(("cause", "certainty", "says", "source"), str)
    assert all(type(run["causes"][0][key]) is kind for key, kind in {**words, "explains": list}.items())
    assert all(set(item) == {"text", "figure", "step", "samples"} for item in run["causes"][0]["evidence"])
    diagnose.main([str(DATA / "ppo_lr_high"), "--json", "-"])
    alone = json.loads(capsys.readouterr().out)  # a single run's fields are at the top too
    assert alone["causes"] == run["causes"] and alone["runs"] == [run]


# ------------------------------------------------------------------------------------------------ bad input
BAD_FILES = {
    "empty.jsonl": (b"", "empty"),
    "model.safetensors": (bytes(range(256)) * 40, "binary"),
    "prose.txt": (b"Training went well.\nThen it did not.\n", "none of the known formats"),
    "rows.jsonl": (b'{"prompt": "1+1=", "answer": "2"}\n' * 3, "expected"),
    "unscored.jsonl": (b'{"step": 1, "prompt": "1+1=", "completion": "2"}\n' * 3, "samples without scores"),
    "state.json": (b'{"log_history": []}', "expected"),
    "sft.jsonl": (b'{"step": 1, "loss": 2.0, "learning_rate": 1e-5, "mean_token_accuracy": 0.5}\n' * 9, "such as SFT"),
    "mlflow.csv": (b"run_id,key,value,step\na,reward,0.1,1\nb,reward,0.1,1\n", "one run"),
    "scalar.csv": (b"Wall time,Step,Value\n17.5,1,0.1\n17.6,2,0.2\n", "--columns reward=Value"),
    "reward_model.log": (b"{'loss': 0.7, 'mean_reward': 0.1, 'max_reward': 1.0, 'margin': 0.2}\n" * 9, "or DPO"),
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_bad_files_are_refused_with_a_reason(name, tmp_path, capsys):
    (tmp_path / name).write_bytes(BAD_FILES[name][0])
    assert diagnose.main([str(tmp_path / name)]) == 2
    message = capsys.readouterr().err
    assert message.startswith(f"error: got {tmp_path / name}") and "expected" in message
    assert BAD_FILES[name][1] in message


def test_a_folder_without_a_log_is_refused(tmp_path, capsys):
    assert diagnose.main([str(tmp_path)]) == 2 and "no log" in capsys.readouterr().err
    runs = [write_run(tmp_path / name, rows_of("ppo_healthy")) for name in ("a", "b")]
    assert diagnose.main([str(tmp_path)]) == 2
    message = capsys.readouterr().err
    assert "holds 2 runs" in message and f"try diagnose.py {runs[0]} {runs[1]}" in message
    assert diagnose.main([str(run) for run in runs]) == 0
    (tmp_path / "job").mkdir()
    write_run(tmp_path / "job" / "out", rows_of("ppo_healthy"))
    assert diagnose.main([str(tmp_path / "job")]) == 0 and "job/out/metrics.jsonl" in capsys.readouterr().out
    assert diagnose.main([str(tmp_path)]) == 2 and "holds 3 runs" in capsys.readouterr().err


@pytest.mark.parametrize("place", ["logs/train.log", "wandb/run-1-abc/files/output.log"])
def test_the_only_log_in_the_folders_of_a_run_is_read(place, tmp_path, capsys):
    log = tmp_path / place
    log.parent.mkdir(parents=True)
    log.write_text("".join(f"{{'loss': 0.1, 'reward': 0.{n}, 'kl': 0.01, 'step': {n}}}\n" for n in range(10, 60)))
    settings = {"temperature": 1.0, "learning_rate": 1e-6, "num_generations": 8}
    (log.parent / "config.yaml").write_text(json.dumps({name: {"value": x} for name, x in settings.items()}))  # wandb's
    (log.parent / "debug.log").write_text("INFO setup\n")
    (log.parent / "loop.log").symlink_to("loop.log")
    (tmp_path / "requirements.txt").write_text("trl==1.16\n")
    write_lines(tmp_path / "train.jsonl", [{"prompt": "1+1=", "answer": "2"}] * 3)
    if place.startswith("wandb"):
        (tmp_path / "wandb" / "latest-run").symlink_to("run-1-abc")
    assert diagnose.main([str(tmp_path)]) in (0, 1)
    text = capsys.readouterr().out
    assert log.name in text and "50 steps" in text and "settings (config.yaml)" in text
    log.with_name("second.log").write_text(log.read_text())
    assert diagnose.main([str(tmp_path)]) == 2 and "second.log" in capsys.readouterr().err


def test_files_named_beside_a_log_must_have_what_they_are_named_for(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_lines(tmp_path / "odd.jsonl", [{"question": 1, "rating": 2}])
    run = str(write_run(tmp_path / "run", rows_of("ppo_healthy")))
    missing = ("--settings no.py", "--data no.jsonl", "--reward no.py:f")
    for words in (*missing, "--samples odd.jsonl"):
        assert diagnose.main([run, *words.split()]) == 2
        message = capsys.readouterr().err
        assert f"got {words.split()[0]}" in message and ("does not exist" in message) == (words in missing)


SAMPLES = {  # files of samples: the texts and scores in them
    "numbers.csv": ("prompt,completion,score\n1+1=,2,1.0\n1+2=,04,0\n", [("2", 1.0), ("04", 0.0)]),
    "capitals.csv": ("Prompt,Response,Reward\na,so 2,1.0\n", [("so 2", 1.0)]),
    "commas.csv": ("prompt;completion;score\na;so 2;0,5\n", [("so 2", 0.5)]),
    "groups.jsonl": ('{"prompt": "a", "completions": ["x", "y"], "rewards": [1.0, 0.0]}\n', [("x", 1.0), ("y", 0.0)]),
    "wandb.json": ('{"columns": ["prompt", "completion", "reward"], "data": [["a", "x", 1.0]]}', [("x", 1.0)]),
}


@pytest.mark.parametrize("name", SAMPLES)
def test_samples_in_tables_of_other_forms(name, tmp_path):
    log = write_lines(tmp_path / "log.jsonl", [{"step": n, "reward": 0.0, "reward_std": 0.0} for n in range(1, 13)])
    (tmp_path / name).write_text(SAMPLES[name][0], encoding="utf-8")
    run = diagnose.load_run(str(log), samples=str(tmp_path / name))
    assert [(text.completion, text.score) for text in run.texts] == SAMPLES[name][1]


def test_broken_neighbours_and_missing_keys_are_survived(tmp_path):
    rows = rows_of("ppo_healthy")
    run = write_run(tmp_path / "run", rows)
    (run / "config.json").write_text('{"ppo_epochs": 2', encoding="utf-8")
    (run / "samples.jsonl").write_bytes(b"\0" * 50)
    assert names(run) == []
    bare = [{"step": row["step"], "reward/mean": row["reward/mean"]} for row in rows if "reward/mean" in row]
    odd = {"policy/entropy": "much", "kl/ref": None, "optim/grad_norm": [1], "reward/std": True}
    for name, given in (("bare", bare), ("odd", [row | odd for row in rows])):
        assert names(write_run(tmp_path / name, given)) == []


@pytest.mark.parametrize("text", ["", "[1, 2]", '{"prompt": "1+1=", "answer": "2"}\n{"prompt": "to'])
def test_data_that_cannot_be_read_is_said_and_does_not_end_the_diagnosis(text, tmp_path):
    (tmp_path / "data.jsonl").write_text(text)
    run = write_run(tmp_path / "run", rows_of("ppo_healthy"), config_of("ppo_healthy") | {"data": "data.jsonl"})
    said = judged(run)
    assert said["verdict"] == "learned" and any("data.jsonl beside it" in remark for remark in said["remarks"])
    assert diagnose.main([str(run), "--data", str(tmp_path / "data.jsonl")]) == 2


def test_the_newest_checkpoint_is_that_of_the_highest_step_even_in_a_copied_folder(tmp_path):
    for step in (1000, 200):  # in the order in which a copy wrote them
        rows = [{"step": n, "reward": 0.3 + n / 4000} for n in range(10, step + 1, 10)]
        (tmp_path / f"checkpoint-{step}").mkdir()
        text = json.dumps({"log_history": rows, "max_steps": 1000})
        (tmp_path / f"checkpoint-{step}" / "trainer_state.json").write_text(text)
    assert judged(tmp_path)["steps"] == [10, 1000]


@pytest.mark.parametrize("value", [math.nan, math.inf, 1e308])
def test_what_is_not_finite_is_found_where_it_stands(value, tmp_path):
    for key in ("policy/loss", "optim/grad_norm", "kl/ref", "policy/entropy", "reward/mean"):
        rows = rows_of("ppo_healthy")
        rows[12][key] = value
        run = judged(write_run(tmp_path / "run", rows))
        item = run["causes"][0]["evidence"][0]
        assert (run["causes"][0]["cause"], item["figure"], item["step"], run["since_step"]) == ("overflow", key, 12, 12)


def test_causes_stand_in_the_troubleshooting_page():
    text = (ROOT / "references" / "troubleshooting.md").read_text(encoding="utf-8")
    for cause in diagnose.CAUSES:
        assert f"| `{cause.name}` | {cause.says} |" in text


# ----------------------------------------------------------------------------- names of the last two years
def lines(form: str, first: int = 1, last: int = 30) -> str:
    """Lines of steps: {n} is the step, {r} a score that rises ({c}: with a comma, {p}: in per cent), {k} a KL."""
    steps = [(n, f"{0.1 + 0.02 * n:.3f}", 0.001 * n) for n in range(first, last + 1)]
    form = form.replace("\\n", "\n").replace("\\r", "\r").replace("\\e", "\x1b")
    text = ""
    for n, r, k in steps:
        figures = {"r": r, "k": f"{k:.3f}", "c": r.replace(".", ","), "p": 100 * float(r)}
        text += form.format(n=n, m=10 * n, f=5 * n, e=n // 10, s=n % 10, **figures)
    return text


def curve(base: float = 0.1, slope: float = 0.02, every: int = 1) -> dict:
    return {every * n: base + slope * n for n in range(1, 31)}


# who writes it | file | what stands above => a line of each step | "x10": steps; what else than the score is read
READINGS = r"""
OpenRLHF | log | INFO Global step {m}: {{'policy_loss': 0.1, 'actor_lr': 5e-07, 'reward': {r}, 'kl': {k}}}\n | x10 kl
OpenRLHF's bar | log | 1%| | {n}/30 [00:01, pg=0.01, rm={r}, glen=210, kl={k}, act_lr=5e-7]\n |
SkyRL | jsonl | {{"trainer/global_step": {n}, "reward/avg_raw_reward": {r}, "policy/policy_kl": {k}, \
"policy/policy_entropy": 0.5, "eval/all/avg_score": 0.25}}\n | kl entropy=0.5 held_out=0.25
torchtune, whose KL is a sum | log | Step {n} | scores:{r} rlhf_reward:{r} kl:12.{n} clipfrac:0.02 \
approx_policy_kl:{k}\n | kl=- clip_frac=0.02
TRL 0.15 | jsonl | {{"step": {n}, "reward": {r}, "completion_length": 99.0}}\n | length=99
verl 0.2 | jsonl | {{"step": {n}, "critic/rewards/mean": {r}, "response_length/mean": 99.0, \
"val/test_score/gsm8k": 0.25}}\n | length=99 held_out=0.25
TRL's PPO | jsonl | {{"step": {n}, "objective/scores": {r}, "objective/kl": 5.0, "policy/approxkl_avg": 0.1}}\n | kl=-
a tracker's calls beside the steps | csv | _step,train/global_step,train/reward\n => {n},{m},{r}\n | x10
steps of each epoch | jsonl | {{"epoch": {e}, "step": {s}, "reward": {r}}}\n |
decimal commas | csv | step;reward\n => {n};{c}\n |
per cent | log | step {n}: reward: {p:.1f}%, truncated: 30%\n | truncated=0.3
a count under the name of a share | log | step {n}: reward: {r}, truncated: 30\n | truncated=-
thousands | log | step={n} reward={r} response_length=1,210.5\n | length=1210.5
a comment above the columns | csv | # mine\nstep,reward\n => {n},{r}\n |
completions in between | log | Step 1: add 3.\nThe final reward: 9 points\nstep={n} reward={r} kl={k}\n | kl
entropy as a term of the loss | log | step={n} reward={r} entropy_loss=-0.5\n | entropy=0.5
a word before the name | log | step={n} reward={r} eval reward: 0.9\n | held_out=0.9
a text of figures | log | Step {n}\nreward: {r} | kl: {k}\nAt step 7 the loss 5 and reward 9\n | kl
a sentence of an evaluation | log | Step {n} | reward: {r} | kl: {k}\nValidation at step {n}: reward: 0.9, x: 1\n | kl
a column of the split | jsonl | {{"step": {n}, "split": "train", "reward": {r}}}\n{{"step": {n}, "split": "eval", \
"reward": 0.9}}\n | held_out=0.9
no sign before a figure | log | Step 1: sum 3\nstep {n}: loss 0.5, reward {r} kl {k}, val reward 0.9\n | kl held_out=0.9
a list of the steps | log | {n}:\n  step: {n}\n  reward: {r}\n |
two names of the step, of equal rank | jsonl | {{"rollout/step": {n}, "train/step": {m}, "reward": {r}}}\n |
objects over several lines | log | {{\n "step": {n},\n "train": {{\n  "reward": {r}\n }}\n}}\n |
CSV, with commas in its texts | csv | step,reward,kl,text\n => {m},{r},{k},well, then\n | x10
pandas, with an index that has no name | txt |     step  reward      kl\n => {m}  {n}   {r}  {k}\n | kl
Docker | log | {{"log": "step={n} reward={r} kl={k}\u000a", "stream": "stderr", "time": "2026-01-02T10:00:00Z"}}\n | kl
figures beside a message | jsonl | {{}}\n => {{"message": "step 1 of 9: done=1", "step": {n}, "reward": {r}}}\n |
events with their step among the figures | jsonl | {{"event": "train", "data": {{"step": {m}, "reward": {r}}}}}\n | x10
a wrapped dict | log | {{'loss': 0.1, 'reward': {r}, 'completion_len\ngth': 99.5, 'kl': {k}}}\n | kl
a notebook's table | txt | Step | Training Loss | reward | kl\n-- | -- | --\n => {n} | 0.000000 | {r} | {k}\n | kl
a progress bar | log | \e[32m{n}/30\e[0m [00:12<00:09, ppo_kl=0.01, reward={r}, kl={k}]\r | kl
a dumped log_history | txt | [ => {{\n "step": {n},\n "reward": {r},\n "kl": {k}\n}},\n | kl
Windows | log | Started\r\n => step={n:04d} | reward={r} | kl={k}\r\n | kl
NeMo-RL | log | === Step {n}/30 ===\n  • Avg Reward: {r}\n  • KL: {k}\n  • generation: 51.1s (55%)\n | kl
prime-rl | log | \e[32mStep {n} | Reward: {r} | Val. Reward: {r} | Mismatch KL: 0.0009 | KL: {k}\e[0m\n | kl
AReaL | log | ╭──╮\n => Step {n}/30\n│ ppo_actor/task_reward/avg │ {r} │ kl │ {k}E+00 │\n│ a │ 1 │\n | kl
EasyR1 | log | (Runner pid=1) Step {n}\n(Runner pid=1) actor:\n(Runner pid=1)   kl_loss: {k}\n\
(Runner pid=1) critic:\n(Runner pid=1)   score:\n(Runner pid=1)     mean: {r}\n | kl
"""
READINGS = [case.split(" | ", 2) for case in READINGS.replace("\\\n", "").strip().splitlines()]
READINGS = {who: (file, *rest.rpartition(" |")[::2]) for who, file, rest in READINGS}


@pytest.mark.parametrize("who", READINGS)
def test_figures_of_other_writers(who, tmp_path):
    kind, form, read = READINGS[who]
    above, _, line = form.rpartition(" => ")
    log = tmp_path / f"a.{kind}"
    log.write_bytes((lines(above, 30) + lines(line)).encode())
    words = read.split()
    every = int(words.pop(0)[1:]) if words[:1] and words[0].startswith("x") else 1
    expected = {"score": curve(every=every)}
    for name, _, value in (word.partition("=") for word in words):
        steady = None if value == "-" else dict.fromkeys(expected["score"], float(value or 0))
        expected[name] = steady if value else curve(0.0, 0.001, every)
    run = diagnose.load_run(str(log))
    agrees_with(run, expected)
    stands = len({*run.series.get("held_out", {}).values()}) == 1  # what is held out does not rise with the score
    assert judged(log)["verdict"] == ("too short" if stands else "learned")


def agrees_with(run, expected: dict) -> None:
    """Whether the figures of a run are these; None: not read."""
    assert {key: run.series.get(key) for key in expected} == {
        key: figures and pytest.approx(figures, abs=6e-4) for key, figures in expected.items()
    }
    assert not run.bad


EVERY = curve()
STEP, PRINTED = "step={n} reward={r} kl={k}\n", "{{'reward': {r}, 'kl': {k}, 'epoch': 0.{n:02d}}}\n"
JOINED = {  # files of several parts: (file, text), of a run whose score is EVERY)
    "MLflow": ("a.csv", "run_id,key,value,step\n" + lines("ab,reward,{r},{n}\n") + lines("ab,kl,{k},{n}\n")),
    "a history by columns": ("a.json", json.dumps({"step": [*EVERY], "reward": [*EVERY.values()]}, indent=1)),
    "tensorboard": ("run-a-tag-train_reward.csv", "Wall time,Step,Value\n" + lines("17.5,{n},{r}\n")),
    "newest first": ("a.csv", "step,reward\n" + "".join(lines("{n},{r}\n").splitlines(True)[::-1])),
    "a second run": ("a.log", lines("step={n} reward=0.9 kl=0.5\n", 1, 40) + lines(STEP)),
    "a second run of one row": ("a.log", lines(STEP) + "Before: step=1 reward=0.1 kl=0.0\n"),
    "a second run without steps": ("a.log", "".join(f"{printed(n, 40)}\n" for n in range(1, 41)) + lines(PRINTED)),
    "a run that goes on from a checkpoint": ("a.log", lines(PRINTED, 1, 20) + lines(PRINTED, 16)),
    "a printed log_history": (
        "a.txt",
        str([{"loss": 0.0, "reward": r, "grad_norm": None, "step": n} for n, r in EVERY.items()]),
    ),
}


@pytest.mark.parametrize("who", JOINED)
def test_figures_of_joined_parts(who, tmp_path):
    name, text = JOINED[who]
    (tmp_path / name).write_text(text, encoding="utf-8")
    run = diagnose.load_run(str(tmp_path / name))
    agrees_with(run, {"score": EVERY})
    assert any("runs" in remark for remark in run.remarks) == who.startswith("a second run")


def test_empty_cells_and_torn_objects_are_left_out(tmp_path):
    (tmp_path / "a.csv").write_text("step,reward,eval_reward\n" + lines("{n},{r},NaN\n", 1, 29) + "30,0.7,0.9\n")
    agrees_with(diagnose.load_run(str(tmp_path / "a.csv")), {"score": EVERY, "held_out": {30: 0.9}})
    torn = lines('{{\n  "step": {n},\n  "train": {{"reward": {r}}}\n}}\n') + '{\n  "step": 99,\n  "train": {'
    (tmp_path / "a.log").write_text(torn)
    agrees_with(diagnose.load_run(str(tmp_path / "a.log")), {"score": EVERY})


@pytest.mark.parametrize("name", ["log.txt", "utf-16.log", "table.ipynb", "dicts.ipynb"])
def test_files_of_other_kinds_hold_the_same_figures(name, tmp_path):
    rows = [json.loads(printed(n).replace("'", '"')) for n in range(1, 41)]
    text = "".join(f"{row}\n" for row in rows)
    cells = "".join(f"<tr>\n <td>{n}</td>\n <td>{row['reward']}</td></tr>\n" for n, row in enumerate(rows, 1))
    page = {"data": {"text/html": f"<p>Step</p><table><tr><th>Step</th><th>reward</th></tr>{cells}</table>"}}
    outputs = [page, {"text": ["no figures\n"]}] if "table" in name else [{"text": text.splitlines(True)}]
    notebook = json.dumps({"cells": [{"source": ["train()"]}, {"outputs": outputs}]})
    encoding = "utf-16" if "16" in name else "utf-8"
    (tmp_path / name).write_text(notebook if name.endswith("ipynb") else text, encoding=encoding)
    run = diagnose.load_run(str(tmp_path))
    assert run.series["score"] == {n: row["reward"] for n, row in enumerate(rows, 1)}
    (tmp_path / name).write_text(notebook[:-9])
    assert not name.endswith("ipynb") or diagnose.main([str(tmp_path)]) == 2


@pytest.mark.parametrize(("count", "kl", "found"), [(4, 0.0, 0), (40, 0.0, 1), (1, math.nan, 1)])
def test_a_loss_scale_that_settles_is_no_overflow(count, kl, found, tmp_path):
    bad = {"grad_norm": math.nan, "kl": kl}
    lines = [printed(n, 100, **(bad if n < count else {"grad_norm": 0.3})) for n in range(100)]
    (tmp_path / "fp16.log").write_text("\n".join(lines))
    assert names(tmp_path) == ["overflow"] * found


@pytest.mark.parametrize("name", ["eval/accuracy", "val_acc", "val/acc", "eval_score"])
def test_held_out_figures_beside_trls_names(name, tmp_path):
    rows = [{"step": n, "reward": 0.4 + 0.01 * min(n, 50)} for n in range(1, 92)]
    rows = [row | ({name: 0.38} if row["step"] % 30 == 1 else {}) for row in rows]
    run = diagnose.load_run(str(write_lines(tmp_path / "log.jsonl", rows)))
    assert run.series["held_out"] == dict.fromkeys((1, 31, 61, 91), 0.38) and len(run.series["score"]) == 91
    assert names(tmp_path) == ["memorised_prompts"]


@pytest.mark.parametrize("prompts", [8, 64])
def test_eight_prompts_have_no_pass_rate_like_the_held_out_one(prompts, tmp_path):
    write_lines(tmp_path / "train.jsonl", [{"prompt": f"{n} + 1 =", "answer": f"{n + 1}"} for n in range(prompts)])
    (tmp_path / "config.json").write_text(json.dumps({"data": "train.jsonl"}))
    rows = [{"step": n, "reward/mean": 0.66 + 0.29 * n / 50, "reward/std": 0.4} for n in range(1, 51)]
    held_out = [{"step": n, "eval/accuracy": 0.42 + n / 700, "eval/rows": 128} for n in range(0, 51, 10)]
    write_lines(tmp_path / "metrics.jsonl", sorted(rows + held_out, key=lambda row: row["step"]))
    assert names(tmp_path) == ["memorised_prompts"] * (prompts == 8)


OWN_LOGS = {
    "lines of name=value": ("[{0}] it={0} avg_return: {1:.3f} kl_x={2:.4f}\n", ""),
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
    assert diagnose.main([str(log), "--columns", "reward=avg_return"]) == 1 and "broken" in capsys.readouterr().out
    assert diagnose.main([str(log), "--columns", "reward=avg_retur"]) == 2
    assert "try reward=avg_return" in capsys.readouterr().err
    assert diagnose.main([str(log)]) == 1 and "avg_return as reward" in capsys.readouterr().out


def own_figures(n: int, kind: str) -> tuple[float, ...]:
    """Score, held-out accuracy, length and KL at step n of 60."""
    noise = 0.01 * (n % 3)
    figures = {
        "part_bought": (0.5 + n / 20 + noise, 0.4 + 0.01 * min(n, 30) - 0.02 * max(0, n - 30) + noise, 30 + 3 * n),
        "learned": (0.3 + n / 150 + noise, 0.3 + n / 160 + noise, 80 + noise),
        "memorised_prompts": (0.3 + n / 100 + noise, 0.3 + noise, 80 + noise),
    }
    return *figures[kind], 0.001 * n


# names of step, score, held-out accuracy, length, KL ("-": none) | what its figures show
OWN_NAMES = """
updateNr avgPoints devAcc answerLength klRef | part_bought
it R evalScore tok KL | part_bought
epoch payoff_mean unseen_pass - - | learned
cycle train.points heldout.solved train.tokens train.kl | memorised_prompts
upd score_mean dev_solved_pct lenMean - | part_bought
"""


@pytest.mark.parametrize("case", OWN_NAMES.strip().splitlines())
def test_names_of_a_self_written_log_are_read_by_their_words(case, tmp_path):
    names, kind = case.split(" | ")
    columns = {name: [(n, *own_figures(n, kind))[i] for n in range(60)] for i, name in enumerate(names.split())}
    columns = {name: [100 * x for x in figures] if "pct" in name else figures for name, figures in columns.items()}
    rows = [{name: figures[n] for name, figures in columns.items() if name != "-"} for n in range(60)]
    write_lines(tmp_path / "log.jsonl", rows)
    run = diagnose.load_run(str(tmp_path))
    agrees_with(run, {x: {n: own_figures(n, kind)[i] for n in range(60)} for i, x in enumerate(("score", "held_out"))})
    length = names.split()[3]
    assert run.series.get("length") == (None if length == "-" else run.columns[length])
    assert f"{names.split()[1]} as reward" in run.remarks[0]
    assert ("was read as per cent" in run.remarks[0]) == ("pct" in names)
    data = judged(tmp_path)
    assert [data["verdict"], *(cause["cause"] for cause in data["causes"])][-1] == kind


def table(**columns) -> str:
    """A CSV of 40 rows; each column is a function of the row's number."""
    return "\n".join([",".join(columns), *(",".join(str(x(n)) for x in columns.values()) for n in range(40))])


def objects(**columns) -> str:
    """JSON lines of 40 rows; each column is a function of the row's number."""
    return "\n".join(json.dumps({name: column(n) for name, column in columns.items()}) for n in range(40))


def scatter(n: int) -> float:
    return round(math.sin(n) ** 2, 3)


NO_LOGS = {  # file: its text
    "returns.csv": table(iteration=int, volatility=scatter, **{"return": scatter}),
    "sft.jsonl": objects(it=int, trainLoss=scatter, valLoss=scatter, lr=scatter),
    "sweep.csv": table(trial=int, lr=scatter, loss=scatter, reward=scatter),
    "boosting.csv": table(iteration=int, train_score=scatter, valid_score=scatter, learning_rate=lambda n: 0.1),
    "pairs.jsonl": objects(upd=int, chosenReward=scatter, rejectedReward=scatter, loss=scatter),
    "parts.jsonl": objects(upd=int, payForm=scatter, payAnswer=scatter, devAcc=scatter),
    "rollouts.jsonl": objects(upd=lambda n: n // 8, q=lambda n: f"{n}+2?", a=str, pay=scatter),
    "two.jsonl": objects(seed=lambda n: n % 2, upd=lambda n: n // 2, pay=scatter, devAcc=scatter),
}


@pytest.mark.parametrize("name", NO_LOGS)
def test_what_is_no_log_of_one_training_is_refused(name, tmp_path, capsys):
    (tmp_path / name).write_text(NO_LOGS[name])
    for source in (tmp_path / name, tmp_path):
        assert diagnose.main([str(source)]) == 2
        message = capsys.readouterr().err
        assert len(message.splitlines()) == 1 and "expected" in message


def test_a_reward_that_only_counts_its_completions_is_a_placeholder():
    head = 'def pay(completions, **kwargs):\n    """Pay completions."""\n    '
    assert "pay never reads its completions" in diagnose.placeholder(head + "return [1.0] * len(completions)")
    assert not diagnose.placeholder(head + "return [float(c == '4') for c in completions]")


MAY_BE_RL = {  # logs that resemble the ones above
    "cyclic.jsonl": objects(step=int, reward=scatter, lr=lambda n: 1e-6 * (1 + abs(n % 4 - 2))),
    "adaptive.csv": table(iteration=int, mean_reward=scatter, learning_rate=lambda n: 1e-4 * 1.5 ** (n % 3)),
    "scores.csv": table(iteration=int, train_score=scatter, test_score=scatter),
    "loss.csv": table(iteration=int, score=scatter, loss=scatter),
    "points.csv": table(it=int, points=scatter, lr=lambda n: 1e-6),
}


@pytest.mark.parametrize("name", MAY_BE_RL)
def test_what_may_be_a_log_of_rl_is_read(name, tmp_path):
    (tmp_path / name).write_text(MAY_BE_RL[name])
    for source in (tmp_path / name, tmp_path):
        run = diagnose.load_run(str(source))
        assert len(run.values("score")) > 5 and ("reward" not in run.guessed or "try --columns" in run.remarks[0])


def test_columns_that_fit_equally_are_named_and_those_of_a_known_log_are_not_guessed(tmp_path):
    rows = [{"upd": n, "pay": 0.3 + n / 100, "devAcc": 0.3, "testAcc": 0.4} for n in range(40)]
    run = diagnose.load_run(str(write_lines(tmp_path / "a.jsonl", rows)))
    assert "devAcc and testAcc fit accuracy equally" in run.remarks[1] and "held_out" not in run.series
    rows = [{"step": n, "reward": 0.3 + n / 100, "devAcc": 0.3, "avgPay": 0.4} for n in range(40)]
    run = diagnose.load_run(str(write_lines(tmp_path / "b.jsonl", rows)))
    assert (run.guessed, run.remarks, run.series.keys()) == ({}, [], {"score"})


def test_samples_and_reward_of_a_self_written_loop_are_read_by_words_and_contents(tmp_path):
    logged = [{"upd": n, "avgPay": x, "devAcc": y} for n in range(60) for x, y, *_ in [own_figures(n, "part_bought")]]
    write_lines(tmp_path / "log.jsonl", logged)
    numbers, samples = random.Random(0), []
    for n, i in itertools.product(range(0, 60, 2), range(8)):
        a, count, right = 20 + 7 * i + n, 5 + 2 * n + numbers.randrange(5), numbers.random() < 0.7 - n / 90
        row = {"upd": n, "query": f"{a} + 3", "truth": f"{a + 3}", "prose": "so " * count + f"{a + 3 + (not right)}"}
        samples.append(row | {"pay": right + count / 50})
    write_lines(tmp_path / "texts.jsonl", samples)
    source = "return float(prose.split()[-1] == truth) + len(prose.split()) / 50"
    (tmp_path / "pay.py").write_text(f"def pay(prose, truth):\n    {source}\n")
    data = judged(tmp_path)
    assert data["verdict"] == "broken" and [cause["cause"] for cause in data["causes"]] == ["part_bought"]
    assert data["remarks"][1] == "of texts.jsonl, read prose as completion, pay as score, upd as step, truth as gold"
    assert {"240 samples", "gold answers", "the reward's source (pay.py)"} <= {*data["had"]}
    assert any("while the score went from" in text for text in data["causes"][0]["explains"])


REWARDS = {  # what --rescore shows of a reward that the log cannot tell
    "constant_reward": "return [1.0 if c else 1.0 for c in completions]",
    "inverted_reward": "return [float(c != f'<answer>{a}</answer>') for c, a in zip(completions, answer)]",
    "noisy_reward": "import random\n    return [random.random() for c in completions]",
    "gold_mismatch": "return [float(len(completions) > 1) for c in completions]",
}


@pytest.mark.long
@pytest.mark.parametrize("cause", REWARDS)
def test_rescore_runs_the_reward_in_the_sandbox(cause, tmp_path, capsys):
    text = f"def correct(completions, answer):\n    print(completions * 20)\n    {REWARDS[cause]}\n"
    run = write_sampled(tmp_path / "run", lambda *_: 0.0, text)
    diagnose.main([str(run), "--json", "--rescore"])
    first = json.loads(capsys.readouterr().out)["causes"][0]
    assert first["cause"] == cause and any(item["figure"] == "rescore" for item in first["evidence"])
    assert diagnose.main([str(run), "--rescore", "--reward", f"{run / 'reward.py'}:other"]) == 2
    assert "expected a function of" in capsys.readouterr().err


@pytest.mark.long
def test_rescore_finds_the_reward_and_the_rows_of_a_trl_script(tmp_path, capsys):
    """The log lies below the script, whose reward wants a column of the data, which TRL does not log."""
    asked = [[{"role": "user", "content": f"{n} + 1 ="}] for n in range(8)]
    rows = [{"prompt": asked[n % 8], "answer": f"{n % 8 + 1}"} for n in range(8)]
    write_lines(tmp_path / "train.jsonl", rows)
    code = "return [float(a not in c[0]['content']) for c, a in zip(completions, answer)]"
    (tmp_path / "my_rewards.py").write_text(f"def paid(completions, answer, **kwargs):\n    {code}\n")
    (tmp_path / "train.py").write_text(
        "from my_rewards import paid\nfrom trl import GRPOConfig, GRPOTrainer\n\n"
        "args = GRPOConfig(output_dir='out', max_steps=6)\nGRPOTrainer(model='m', reward_funcs=paid, args=args)\n"
    )
    out = tmp_path / "out"
    (out / "completions").mkdir(parents=True)
    logged = [{"step": n + 1, "reward": 0.5, "reward_std": 0.5, "rewards/paid/mean": 0.5} for n in range(6)]
    (out / "checkpoint-6").mkdir()
    state = {"max_steps": 6, "log_history": logged}
    (out / "checkpoint-6" / "trainer_state.json").write_text(json.dumps(state))
    rows = [{"step": n % 6 + 1, "prompt": asked[n % 8][0]["content"], "paid": float(n % 2)} for n in range(48)]
    rows = [row | {"completion": f"{n % 8 + 1 + n % 2}"} for n, row in enumerate(rows)]
    pq.write_table(pa.Table.from_pylist(rows), out / "completions" / "completions_00001.parquet")
    diagnose.main([str(tmp_path), "--json", "--rescore"])
    first = json.loads(capsys.readouterr().out)["causes"][0]
    assert first["cause"] == "inverted_reward" and any(item["figure"] == "rescore" for item in first["evidence"])


def test_a_turn_that_dies_while_the_score_rises_is_told(tmp_path):
    rows = [{"step": n, "reward/mean": 0.3 + 0.01 * n, "reward/std": 0.3, "policy/loss": 0.0} for n in range(1, 31)]
    run = write_run(tmp_path / "run", rows, {"batch_size": 8, "group_size": 4})
    second = [1.0 if step < 15 else 0.0 for step in range(1, 31)]
    talks = [{"step": n + 1, "prompt": f"p{n}", "completion": f"c{n}", "score": 0.5} for n in range(30)]
    talks = [talk | {"turn_rewards": [0.5, paid]} for talk, paid in zip(talks, second, strict=True)]
    write_lines(run / "samples.jsonl", talks)
    (told,) = [cause for cause in judged(run)["causes"] if cause["cause"] == "part_dies"]
    assert "turn 2 paid 0.933 in the first half and 0 in the second" in told["evidence"][0]["text"]
