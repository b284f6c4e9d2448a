"""scripts/selfcheck.py: clean trainers pass, and each check fails, by name, on one with that fault; the contract."""

import json
import re
import sys
from pathlib import Path

import pytest
from conftest import (
    ROOT,
    SCRIPTS,
    SECOND_ATTEMPT,
    TINY_LM,
    TRAIN_DATA,
    edited,
    load_script,
    run_script,
    save_random_model,
)

PPO, TEMPLATES = SCRIPTS / "ppo_train.py", ROOT / "templates"
LIBRARY = ROOT / "examples" / "reward_functions_library.py"
REWARD, FORMAT = f"{LIBRARY}:correctness_reward", f"{LIBRARY}:format_reward*0.2"
selfcheck = load_script("selfcheck")


@pytest.fixture(scope="module")
def few_prompts(tmp_path_factory):
    """The first rows of the embedded data: the whole file takes longer to encode than to check."""
    path = tmp_path_factory.mktemp("data") / "few.jsonl"
    path.write_text("".join(TRAIN_DATA.read_text().splitlines(keepends=True)[:40]))
    return path


@pytest.fixture(autouse=True)
def _as_it_was(monkeypatch, tmp_path):
    """A check is a process of its own otherwise: restore what it changes in this one, and run it in an empty folder."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", sys.dont_write_bytecode)
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")
    known = {*sys.modules}
    yield
    forget({*sys.modules} - known)


def forget(names):
    """Forget modules of these names that are trainers: their next import runs them anew."""
    for name in names:
        file = Path(getattr(sys.modules[name], "__file__", None) or "/")
        if file.parent in (TEMPLATES, SCRIPTS) or file.name in ("adapted.py", "grpo.py", "mine.py"):
            del sys.modules[name]


@pytest.fixture
def run_checks(capsys, few_prompts):
    """run_checks(trainer, *flags) -> (exit code, {check: row}), on the embedded model and 40 of its prompts."""

    def run(trainer, *flags, rewards=(REWARD,)):
        inputs = ["--model", TINY_LM, "--data", few_prompts, "--max_new_tokens", "12"]
        source = trainer.read_text(encoding="utf-8")
        if "HFEngine" in source:
            inputs += ["--eval_data", few_prompts, "--device", "cpu", "--allow_overlap"]
        pays = [part for reward in rewards for part in ("--reward", reward)]
        pays = ["--environment", SECOND_ATTEMPT] if trainer.name == "multi_turn.py" else pays
        code = selfcheck.main([str(x) for x in (trainer, *inputs, *pays, *flags, "--json")])
        said = capsys.readouterr()
        report = json.loads(said.out or '{"passed": null, "checks": []}')
        assert report["passed"] == (code == 0), said.err
        return code, {row["name"]: row for row in report["checks"]}

    return run


@pytest.fixture
def adapted(tmp_path):
    """adapted(trainer, pairs, end) -> an edited copy with further definitions at its end."""

    def adapt(trainer, pairs=(), end=""):
        forget([name for name in sys.modules if name.startswith("adapted")])
        text = edited(trainer.read_text(encoding="utf-8"), pairs)
        (tmp_path / "adapted.py").write_text(f"{text}{end}", encoding="utf-8")
        return tmp_path / "adapted.py"

    return adapt


def with_status(rows: dict, status: str = "FAIL") -> set[str]:
    """Names of the checks with a status."""
    return {name for name, row in rows.items() if row["status"] == status}


# ------------------------------------------------------------------------------------------------ clean trainers

TURNS = {"turn_ids", "turn_mask", "turn_rewards", "turn_state"}
GROUPS, REFERENCE = {"group_advantages"}, {"reference_is_initial"}
FORMULA, CLIP = {"experience_formula"}, {"policy_clip"}
CRITIC = {"value_loss_gradient"} | FORMULA
PAGES = {
    "ppo": TURNS | GROUPS,
    "grpo": TURNS | CRITIC | REFERENCE | {"gae_formula"},
    "distillation": TURNS | CRITIC | GROUPS | REFERENCE | {"gae_formula", "first_update_ratio", "update_steps"} | CLIP,
}


@pytest.mark.long
@pytest.mark.parametrize(
    ("trainer", "flags", "not_applicable"),
    [
        ("ppo", "--kl_coef 0 --temperature 0.7 --value_clip 0", PAGES["ppo"] | REFERENCE),
        ("ppo", "--micro_batch 1 --minibatches 2 --critic_warmup_steps 3 --gamma 0.9", PAGES["ppo"]),
        ("distillation", "--temperature 0.7 --micro_batch 2", PAGES["distillation"]),
        ("", "", TURNS | GROUPS | FORMULA),
        ("", "--critic shared --temperature 0.7 --entropy_coef 0.05 --value_clip 0", TURNS | GROUPS | FORMULA),
        ("", "--precision bf16 --gradient_checkpointing", TURNS | GROUPS | FORMULA),
        ("", "--precision fp16", TURNS | GROUPS | FORMULA),  # checked in fp32
        ("", "--algorithm maxrl --loss kl_cov", TURNS | REFERENCE | CRITIC | CLIP),
        ("", "--algorithm dr_grpo --loss gspo --lora_rank 4", TURNS | REFERENCE | CRITIC),
        (
            "",
            "--algorithm rloo --loss gmpo --aggregation seq_mean_token_mean",
            TURNS | CRITIC | GROUPS | CLIP,
        ),  # KL in reward
        ("", "--algorithm gdpo --loss cispo", TURNS | REFERENCE | CRITIC | GROUPS),
        ("", "--algorithm clip_cov", TURNS | REFERENCE | CRITIC | CLIP | {"advantages_detached"}),
    ],
)
def test_settings_of_a_trainer(run_checks, trainer, flags, not_applicable):
    file, rewards = (TEMPLATES / f"{trainer}.py", (REWARD,)) if trainer else (PPO, (REWARD, FORMAT))
    code, rows = run_checks(file, *flags.split(), rewards=rewards)
    assert code == 0, rows
    assert with_status(rows, "n/a") == not_applicable


changes_of = load_script("new_trainer").changes_of
CHANGES = [(page, name, change["edits"]) for page in PAGES for name, change in changes_of(page).items()]
CHANGES = [change for change in CHANGES if change[1] not in ("stop_rule", "metrics_file", "prompt_column")]


@pytest.mark.parametrize(("page", "change", "pairs"), CHANGES, ids=[f"{page}: {change}" for page, change, _ in CHANGES])
def test_an_edited_page_passes(run_checks, adapted, page, change, pairs):
    code, rows = run_checks(adapted(TEMPLATES / f"{page}.py", pairs))
    if change == "where_they_differ":  # that is another loss: the definition is not of it
        assert with_status(rows) == {"advantages_detached"}
    else:
        assert code == 0, rows


CLIPPED = "ratio.clamp(1 - clip_eps_low, 1 + clip_eps_high)"
CLIP_FAULTS = {
    "the smaller term": ("torch.maximum(plain, bounded)", "torch.minimum(plain, bounded)"),
    "no clip": (CLIPPED, "ratio"),
    "low and high exchanged": (CLIPPED, "ratio.clamp(1 - clip_eps_high, 1 + clip_eps_low)"),
    "a bounded log-ratio": (".clamp(-20, 20).exp()", ".clamp(-20, 0).exp()"),
    "old log-probs ignored": (
        "policy_loss(logprobs, old, advantages",
        "policy_loss(logprobs, logprobs.detach(), advantages",
    ),
    "the inverse ratio": ("(logprobs - old_logprobs).clamp", "(old_logprobs - logprobs).clamp"),
}


@pytest.mark.parametrize("fault", CLIP_FAULTS)
def test_a_broken_clip_is_named(run_checks, adapted, fault):
    code, rows = run_checks(adapted(TEMPLATES / "grpo.py", [CLIP_FAULTS[fault]]))
    failed = with_status(rows)
    assert code == 1 and failed == ({"advantages_detached"} if fault == "the inverse ratio" else {"policy_clip"}), rows


def test_a_reward_may_not_apply(run_checks, tmp_path):
    (tmp_path / "rewards.py").write_text(
        "def some(completions, **kwargs):\n    return [None if i % 2 else i for i, _ in enumerate(completions)]\n"
    )
    code, rows = run_checks(TEMPLATES / "grpo.py", rewards=[f"{tmp_path / 'rewards.py'}:some"])
    assert code == 0 and "4 scores, mean 3, std 2.24; 4 None" in rows["reward_answers"]["measured"], rows


@pytest.mark.long
def test_no_flags_at_all():
    """The embedded model, data and reward stand in, as for the scripts; the teacher is the student untouched."""
    done = run_script("selfcheck", TEMPLATES / "distillation.py")
    assert done.returncode == 0, (done.stdout, done.stderr)
    assert re.match(r"\d+ pass, 0 FAIL, \d+ n/a in ", done.stdout.splitlines()[-1])


def test_absolute_positions(run_checks, adapted, tmp_path):
    """A model with absolute positions sees wrong ones, which one with relative positions does not."""
    model = save_random_model("gpt2", tmp_path / "gpt2")
    code, rows = run_checks(TEMPLATES / "grpo.py", "--model", model)
    assert code == 0, rows
    fault = """
right = token_logprobs
def token_logprobs(config, network, batch):
    def wrong(**known):
        columns = torch.arange(known["input_ids"].shape[1])[None].expand_as(known["input_ids"])
        return network(**known | {"position_ids": columns})
    return right(config, wrong, batch)
"""
    code, rows = run_checks(adapted(TEMPLATES / "grpo.py", end=fault), "--model", model)
    assert "padding" in with_status(rows)


# ------------------------------------------------------------------------------------------------ planted faults

ACTORS, ALL = ("grpo",), ("grpo", "distillation")  # what pages share is broken in one, and in the one without ratios
EXPERIENCE = (
    "right = make_experience\ndef make_experience(config, models, batch):\n    made = right(config, models, batch)\n"
)
LOGPROBS = "right = token_logprobs\ndef token_logprobs(config, network, batch):\n    "
GRADIENTS = "right = accumulate_gradients\ndef accumulate_gradients(config, models, batch, rows, *more):\n    "
GAE = "right = gae\ndef gae(rewards, values, response_mask, gamma, gae_lambda):\n    "
VALUE = "right = value_loss\ndef value_loss(values, old_values, returns, value_clip):\n    "
SAMPLER = "right = generate\ndef generate(config, models, prompts, greedy=False):\n    "

# what is wrong: (pages, the check that has to name it, whether no other check may fail, what stands at the page's end)
PAGE_FAULTS = {
    "log-probs without the shift": (
        ACTORS,
        "logprob_shift",
        False,
        LOGPROBS + "logits = network(input_ids=batch['input_ids'], attention_mask=batch['attention_mask']).logits\n"
        "    dist = torch.log_softmax(logits / config.temperature, -1)\n"
        "    found = dist.gather(-1, batch['input_ids'][..., None]).squeeze(-1), -(dist.exp() * dist).sum(-1)\n"
        "    return tuple(x * batch['response_mask'] for x in found)\n",
    ),
    "prompts padded on the right": (
        ALL,
        "padding",
        False,
        SAMPLER + "batch, width = right(config, models, prompts, greedy), max(map(len, prompts))\n"
        "    for i, prompt in enumerate(prompts):\n"
        "        for x in batch.values():\n"
        "            x[i, :width] = x[i, :width].roll(len(prompt) - width)\n"
        "    return batch\n",
    ),
    "prompt in the loss": (
        ALL,
        "prompt_gradient",
        True,
        SAMPLER + "batch = right(config, models, prompts, greedy)\n"
        "    return batch | {'response_mask': batch['attention_mask']}\n",
    ),
    "reference taken for the old policy": (
        ("ppo",),
        "first_update_ratio",
        True,
        EXPERIENCE + "    return made | {'old_logprobs': made['ref_logprobs']}\n",
    ),
    "update with other old log-probs than those of the batch": (
        ACTORS,
        "first_update_ratio",
        True,
        "right = update\ndef update(config, models, optimizer, batch, step):\n"
        "    other = {'old_logprobs': batch['old_logprobs'] - 0.1}\n"
        "    return right(config, models, optimizer, batch | other, step)\n",
    ),
    "reference is the policy": (
        ("ppo",),
        "reference_is_initial",
        False,
        "right = load_models\ndef load_models(config):\n"
        "    made = right(config)\n    made.reference = made.policy\n    return made\n",
    ),
    "advantages with a graph": (
        ACTORS,
        "advantages_detached",
        True,
        EXPERIENCE + "    with torch.enable_grad():\n"
        "        now = token_logprobs(config, models.policy, batch)[0]\n"
        "    return made | {'advantages': made['advantages'] - 0.05 * (now - now.detach())}\n",
    ),
    "loss of the wrong sign": (
        ACTORS,
        "advantages_detached",
        True,
        "right = policy_loss\ndef policy_loss(logprobs, old, advantages, *more):\n"
        "    return right(logprobs, old, -advantages, *more)\n",
    ),
    "gradients kept from step to step": (
        ACTORS,
        "update_steps",
        True,
        "right = update\ndef update(config, models, optimizer, batch, step):\n"
        "    optimizer.zero_grad = lambda *given, **known: None\n"
        "    return right(config, models, optimizer, batch, step)\n",
    ),
    "micro-batches divided by their own tokens": (
        ALL,
        "accumulation",
        True,
        GRADIENTS
        + "return sum(right(config, models, batch, part, *more) for part in rows.split(config.micro_batch))\n",
    ),
    "scores less the mean of the batch": (
        ("grpo",),
        "group_advantages",
        True,
        "right = group_advantages\ndef group_advantages(scores, group_size):\n    return right(scores, len(scores))\n",
    ),
    "advantages in another order than the scores": (
        ("grpo",),
        "group_advantages",
        True,
        "right = group_advantages\ndef group_advantages(scores, size):\n"
        "    return right(scores.view(size, -1).T.flatten(), size)\n",
    ),
    "values lost in holes": (
        ("ppo",),
        "gae_formula",
        True,
        GAE + "everywhere = torch.ones_like(response_mask)\n"
        "    return [x * response_mask for x in right(rewards, values, everywhere, gamma, gae_lambda)]\n",
    ),
    "KL of the wrong sign in the reward": (
        ("ppo",),
        "experience_formula",
        True,
        EXPERIENCE.replace("right(config,", "right(dataclasses.replace(config, kl_coef=-config.kl_coef),")
        + "    return made\n",
    ),
    "score at the first token": (
        ("ppo",),
        "experience_formula",
        False,
        "right = gae\ndef gae(rewards, values, mask, *more):\n    score = rewards.sum(1, keepdim=True)\n"
        "    first = mask.int().argmax(1, keepdim=True)\n"
        "    return right(torch.zeros_like(rewards).scatter(1, first, score), values, mask, *more)\n",
    ),
    "whitened over the padding": (
        ("ppo",),
        "experience_formula",
        True,
        EXPERIENCE + "    plain = (made['returns'] - made['values']) * made['response_mask']\n"
        "    return made | {'advantages': (plain - plain.mean()) / plain.std() * made['response_mask']}\n",
    ),
    "value loss that takes the smaller term": (
        ("ppo",),
        "value_loss_gradient",
        True,
        VALUE + "near = old_values + (values - old_values).clamp(-value_clip, value_clip)\n"
        "    return torch.minimum(right(values, old_values, returns, 0.0), right(near, old_values, returns, 0.0))\n",
    ),
    "values of the text with the token": (
        ("ppo",),
        "value_loss_gradient",
        True,
        "right = token_values\ndef token_values(*known):\n    return right(*known).roll(-1, 1)\n",
    ),
    "teacher without the temperature": (
        ("distillation",),
        "advantages_detached",
        True,
        "right = reverse_kl\ndef reverse_kl(student, teacher, *more):\n"
        "    return right(student, teacher * 0.8, *more)\n",
    ),
    "chunks divided by their own tokens": (
        ("distillation",),
        "accumulation",
        False,
        "right = reverse_kl\ndef reverse_kl(student, teacher, *more):\n"
        "    kl, entropy = right(student, teacher, *more)\n    return kl / len(kl), entropy\n",
    ),
    "no generation prompt": (
        ("grpo",),
        "template_ends_at_generation",
        True,
        "right = load_rows\ndef load_rows(config, tokenizer, file):\n"
        "    return [r | {'prompt_ids': r['prompt_ids'][:-1]} for r in right(config, tokenizer, file)]\n",
    ),
}
PLANTED = [(fault, page) for fault, (pages, *_) in PAGE_FAULTS.items() for page in pages]


@pytest.mark.parametrize(("fault", "page"), PLANTED, ids=[f"{page}: {fault}" for fault, page in PLANTED])
def test_planted_fault_is_named(run_checks, adapted, fault, page):
    _, check, alone, text = PAGE_FAULTS[fault]
    copy = adapted(TEMPLATES / f"{page}.py", end=f"\nimport dataclasses\n{text}")
    code, rows = run_checks(copy, "--temperature", "0.8")
    assert code == 1 and check in with_status(rows), rows
    assert rows[check]["try"]
    assert not alone or with_status(rows) == {check}, rows


# the check that has to name it, the text of ppo_train.py, what stands there instead
SCRIPT_FAULTS = {
    "un-detached KL in the advantage": (
        "advantages_detached",
        '    known = {name: piece[name] for name in ("advantages", "chosen") if name in piece}\n',
        '    known = {"advantages": piece["advantages"] - config.kl_coef * (logprobs - piece["ref_logprobs"])}\n',
    ),
}
# faults that only the named check sees
ALONE = {
    "loss with the reference as the old policy": (
        "first_update_ratio",
        "    per_token, measured = policy_terms(config, piece, logprobs)\n",
        '    other = {"old_logprobs": piece["ref_logprobs"]} if "ref_logprobs" in piece else {}\n'
        "    per_token, measured = policy_terms(config, piece | other, logprobs)\n",
    ),
    "sequence means in each micro-batch": (
        "accumulation",
        "for _, _, piece in pieces_of_batch(config, models, batch, rows):\n",
        "for piece_rows, _, piece in pieces_of_batch(config, models, batch, rows):\n"
        '        tokens = batch["response_mask"].sum() / len(rows) * len(piece_rows)\n',
    ),
    "sampler without the temperature": (
        "sampler_agreement",
        "logits = tempered(lm_logits(models.policy, states), self.config.temperature)",
        "logits = tempered(lm_logits(models.policy, states), 1.0)",
    ),
    "value loss without 1/2": ("value_loss_gradient", "    return 0.5 * loss\n", "    return loss\n"),
    "entropy of the first chunk only": (
        "accumulation",
        "    return torch.cat(logprobs), torch.cat(entropy)\n",
        "    return torch.cat(logprobs), torch.cat(entropy) * 0 + entropy[0].mean()\n",
    ),
}


@pytest.mark.long
@pytest.mark.parametrize("fault", [*SCRIPT_FAULTS, *ALONE])
def test_planted_fault_of_a_script_is_named(run_checks, adapted, fault):
    check, *pair = (SCRIPT_FAULTS | ALONE)[fault]
    code, rows = run_checks(adapted(PPO, [pair]), "--temperature", "0.8")
    assert code == 1 and check in with_status(rows), rows
    assert fault not in ALONE or with_status(rows) - {"policy_clip"} == {check}, rows


REWARDS = {
    "batch": "def broken(completions, **kwargs):\n    print('noise')\n    return [1 / 0]\n",
    "sample": "def broken(prompt, completion):\n    print('noise')\n    return 1 / 0\n",
}


@pytest.mark.parametrize(
    ("trainer", "form", "where"),
    [
        pytest.param(PPO, "batch", "jsonl:", marks=pytest.mark.long),
        (TEMPLATES / "grpo.py", "sample", "few.jsonl:"),
    ],
    ids=["script", "page"],
)
def test_a_reward_that_raises_fails_its_check_alone(run_checks, tmp_path, trainer, form, where):
    (tmp_path / "raises.py").write_text(REWARDS[form])
    code, rows = run_checks(trainer, rewards=[f"{tmp_path / 'raises.py'}:broken"])
    assert code == 1 and with_status(rows) == {"reward_answers"}
    assert where in rows["reward_answers"]["measured"] and "ZeroDivisionError" in rows["reward_answers"]["measured"]


@pytest.mark.long
def test_plain_prompts_and_equal_rewards(run_checks, tmp_path):
    data = tmp_path / "plain.csv"
    data.write_text("prompt,answer\n" + "".join(f"{i}+1=,{i + 1}\n" for i in range(1, 30)))
    (tmp_path / "rewards.py").write_text("def always(completions, **kwargs):\n    return [1.0] * len(completions)\n")
    rewards = [f"{tmp_path / 'rewards.py'}:always"]
    code, rows = run_checks(PPO, "--data", data, "--eval_data", data, rewards=rewards)
    assert code == 0, rows
    assert rows["template_ends_at_generation"]["status"] == "n/a"
    assert "warning: all equal" in rows["reward_answers"]["measured"]


def test_distillation_is_checked_without_a_reward(run_checks):
    code, rows = run_checks(TEMPLATES / "distillation.py", rewards=[""])
    assert code == 0 and rows["reward_answers"]["measured"] == "no reward: nothing is scored", rows


def test_a_check_that_raises_fails_and_nothing_is_written(run_checks, adapted, tmp_path):
    copy = adapted(PPO, [("(batch: dict, rows) -> tuple[dict, slice]:\n", "(batch, rows):\n    1 / 0\n")])
    code, rows = run_checks(copy, "--output_dir", tmp_path / "out", "--leave_out", "padding")
    assert code == 1
    assert rows["accumulation"]["measured"] == "ZeroDivisionError: division by zero"
    assert rows["logprob_shift"]["status"] == "pass" and "--leave_out" in rows["padding"]["measured"]
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["adapted.py", "cwd"]


# ------------------------------------------------------------------------------------------------ bad input

CORRECT = ["--reward", REWARD]


@pytest.mark.parametrize(
    ("trainer", "flags", "message"),
    [
        ("absent.py", [], "'absent.py', which is not a Python file"),
        (LIBRARY, [], "without Config, load_models, load_rows"),
        (SCRIPTS / "evaluation.py", [], "try selfcheck.py --contract"),
        (PPO, ["--data", "absent.jsonl"], "'absent.jsonl', which is not a file"),
        (PPO, ["--batch_size", "7", "--minibatches", "2"], "try --batch_size 8"),
        (PPO, ["--model", "./absent"], "'./absent', which is not a folder"),
        (PPO, ["--temperatur", "0.5"], "try --temperature"),
        (TEMPLATES / "basic_grpo_training.py", [], "leaves the training to TRL"),
        (TEMPLATES / "grpo.py", ["--partial"], "try `from grpo import *`"),
        (TEMPLATES / "grpo.py", ["--data", "absent.jsonl", *CORRECT], "absent.jsonl"),
        (TEMPLATES / "grpo.py", ["--data", "../bad.jsonl", *CORRECT], "bad.jsonl:1: "),
        (TEMPLATES / "grpo.py", ["--leave_out", "paddin"], "try padding"),
        ("../at_import.py", [], "SystemExit: usage"),
        ("", [], "got no TRAINER.py"),
    ],
)
def test_bad_input(capsys, tmp_path, trainer, flags, message):
    (tmp_path / "bad.jsonl").write_text("{\n")
    (tmp_path / "at_import.py").write_text("import sys\nsys.exit('usage')\n")
    try:
        code = selfcheck.main([str(trainer), *flags] if trainer else [])
    except SystemExit as stop:
        code = stop.code
    captured = capsys.readouterr()
    assert code == 2 and message in captured.err and not captured.out


def test_a_copy_of_selfcheck_alone_asks_for_the_model(tmp_path):
    (tmp_path / "selfcheck.py").write_text((SCRIPTS / "selfcheck.py").read_text(encoding="utf-8"))
    done = run_script(tmp_path / "selfcheck.py", TEMPLATES / "grpo.py")
    assert done.returncode == 2 and "got no --model" in done.stderr and "Traceback" not in done.stderr


# ------------------------------------------------------------------------------------------------ the contract

# names of the contract, without those of all pages
ASKED = {
    "ppo": "load_reward token_logprobs make_experience gae Config.reward Config.vf_coef",
    "grpo": "load_reward token_logprobs make_experience Config.reward",
    "distillation": "load_reward response_logits Config.reward",
    "multi_turn": "load_environment rollout token_logprobs make_experience",
}
OF_ALL = "Config load_models load_rows generate accumulate_gradients"
FIELDS = "Config.model Config.data Config.temperature Config.max_new_tokens Config.micro_batch"
WITHOUT_FIELD = """
import dataclasses
kept = [f for f in dataclasses.fields(Config) if f.name != {name!r}]
Config = dataclasses.make_dataclass("Config", [(f.name, f.type, dataclasses.field(default=f.default)) for f in kept],
                                    kw_only=True)
"""


@pytest.mark.parametrize("page", ASKED)
def test_a_page_that_lacks_a_name_is_refused(adapted, capsys, page):
    for name in f"{OF_ALL} {FIELDS} {ASKED[page]}".split():
        kind, _, field = name.partition(".")
        end = WITHOUT_FIELD.format(name=field) if field else f"\ndel {kind}\n"
        assert selfcheck.main([str(adapted(TEMPLATES / f"{page}.py", end=end))]) == 2, name
        said = capsys.readouterr().err
        assert re.search(rf"adapted.py' without ([\w., ]+, )?{re.escape(name)}[,;]", said), (name, said)
        assert "try selfcheck.py --contract" in said


@pytest.mark.long
def test_a_script_that_lacks_a_name_is_refused(adapted, capsys):
    for name in ("collate", "token_logprobs", "settle_precision", "HFEngine", "converse", "playable_rows"):
        flags = ["--environment", SECOND_ATTEMPT] * (name in ("converse", "playable_rows"))
        assert selfcheck.main([str(adapted(PPO, end=f"\ndel {name}\n")), *flags]) == 2, name
        assert f"adapted.py' without {name};" in capsys.readouterr().err


class Watched:
    """A module that tells which of its names are asked for."""

    def __init__(self, module):
        self.__dict__.update(_module=module, seen=set())

    def __getattr__(self, name):
        self.seen.add(name)
        return getattr(self._module, name)

    def __setattr__(self, name, value):
        setattr(self._module, name, value)


@pytest.mark.parametrize("page", ASKED)
def test_a_clean_page_passes_and_no_other_name_of_it_is_used(run_checks, monkeypatch, page):
    load, modules = selfcheck.load_trainer, []

    def watched(*given):
        trainer = load(*given)
        trainer.module = Watched(trainer.module)
        modules.append(trainer.module)
        return trainer

    monkeypatch.setattr(selfcheck, "load_trainer", watched)
    code, rows = run_checks(TEMPLATES / f"{page}.py")
    assert code == 0, rows
    assert list(rows) == [function.__name__ for function in selfcheck.CHECKS]
    assert with_status(rows, "n/a") == (PAGES | {"multi_turn": PAGES["grpo"] - TURNS})[page]
    assert not any(row["try"] for row in rows.values())
    asked = {name for name in f"{OF_ALL} {ASKED[page]}".split() if "." not in name}
    instead = {"parse_config", "token_logprobs", "check_template", "gae", "update", "policy_loss"}
    of_scripts = {"LOSSES", "TOOLS"}  # asked of every module
    assert asked <= modules[0].seen <= asked | instead | of_scripts and all(
        name in selfcheck.CONTRACT for name in instead
    )


def test_contract_is_printed_without_a_trainer():
    done = run_script("selfcheck", "--contract")
    assert done.returncode == 0 and done.stdout.splitlines() == selfcheck.CONTRACT.splitlines()


# ------------------------------------------------------------------------------------------------ a part of a page

FOUR = """
import torch


def token_logprobs(config, network, batch):
    places = (batch["attention_mask"].cumsum(-1) - 1).clamp(min=0)
    given = {"input_ids": batch["input_ids"], "attention_mask": batch["attention_mask"], "position_ids": places}
    dist = network(**given).logits[:, :-1].float().log_softmax(-1)
    logprobs = dist.gather(-1, batch["input_ids"][:, 1:, None]).squeeze(-1)
    entropy = -(dist.exp() * dist).sum(-1)
    return tuple(torch.nn.functional.pad(x, (1, 0)) for x in (logprobs, entropy))


def policy_loss(logprobs, old_logprobs, advantages):
    return -(logprobs - old_logprobs).exp() * advantages


def accumulate_gradients(config, models, batch, rows):
    mask = batch["response_mask"]
    for piece in rows.split(config.micro_batch):
        part = {name: x[piece] for name, x in batch.items()}
        logprobs, _ = token_logprobs(config, models.policy, part)
        loss = policy_loss(logprobs, part["old_logprobs"], part["advantages"])
        ((loss * part["response_mask"]).sum() / mask[rows].sum()).backward()


def gae(rewards, values, response_mask, gamma, gae_lambda):
    advantages = torch.zeros_like(values)
    for b, row in enumerate(response_mask):
        later, following = 0.0, 0.0
        for t in reversed(row.nonzero().flatten().tolist()):
            later = rewards[b, t] + gamma * following - values[b, t] + gamma * gae_lambda * later
            following, advantages[b, t] = values[b, t], later
    return advantages, advantages + values
"""


def test_a_page_with_four_functions_of_its_own_takes_the_rest_from_a_template(run_checks, tmp_path):
    (tmp_path / "grpo.py").write_text((TEMPLATES / "grpo.py").read_text(encoding="utf-8"))
    source = FOUR.replace("import torch\n", "import torch\nfrom grpo import *\n", 1)
    (tmp_path / "mine.py").write_text(source)
    code, rows = run_checks(tmp_path / "mine.py")
    assert code == 0 and rows["gae_formula"]["status"] == "pass", rows
    (tmp_path / "other.py").write_text(source.replace("mask[rows].sum()", 'part["response_mask"].sum()'))
    code, rows = run_checks(tmp_path / "other.py")
    assert code == 1 and with_status(rows) == {"accumulation"}, rows
