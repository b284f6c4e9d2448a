"""scripts/selfcheck.py: clean trainers pass, and each check fails, by name, on one with that fault; the contract."""

import functools
import json
import re
import sys
from pathlib import Path

import pytest
from conftest import (
    FEW_TRAIN,
    ROOT,
    SCRIPTS,
    SECOND_ATTEMPT,
    TINY_LM,
    edited,
    load_module,
    load_script,
    run_script,
    save_random_model,
)
from test_multi_turn_template import ADDER, changed

from programs.selfcheck.conversation_checks import TURN_CHECKS
from programs.selfcheck.input_checks import template_ends_at_generation
from programs.selfcheck.run import load_trainer

PPO, TEMPLATES = SCRIPTS / "ppo_train.py", ROOT / "templates"
LIBRARY = ROOT / "examples" / "reward_functions_library.py"
REWARD, FORMAT = f"{LIBRARY}:correctness_reward", f"{LIBRARY}:format_reward*0.2"
selfcheck = load_script("selfcheck")
CHECKS = selfcheck.CHECKS


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
def run_checks(capsys, monkeypatch):
    """run_checks(trainer, *flags) -> (exit code, {check: row}), on the embedded model; `only`: names of checks."""

    def run(trainer, *flags, rewards=(REWARD,), only=""):
        inputs = ["--model", TINY_LM, "--data", FEW_TRAIN, "--max_new_tokens", "12"]
        source = trainer.read_text(encoding="utf-8")
        if "HFEngine" in source:
            inputs += ["--eval_data", FEW_TRAIN, "--device", "cpu", "--allow_overlap"]
        pays = [part for reward in rewards for part in ("--reward", reward)]
        pays = ["--environment", SECOND_ATTEMPT] if trainer.name == "multi_turn.py" else pays
        wanted = [check for check in CHECKS if not only or check.__name__ in only.split()]
        monkeypatch.setattr(selfcheck, "CHECKS", wanted)
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


TURNS = {"turn_mask", "turn_state"}
GROUPS, REFERENCE = {"group_advantages"}, {"reference_is_initial"}
FORMULA, CLIP = {"experience_formula"}, {"policy_clip"}
CRITIC = {"value_loss_gradient"} | FORMULA
PAGES = {
    "ppo": TURNS | GROUPS,
    "grpo": TURNS | CRITIC | REFERENCE | {"gae_formula"},
    "distillation": TURNS | CRITIC | GROUPS | REFERENCE | {"gae_formula", "first_update_ratio", "update_steps"} | CLIP,
}

OF_ACTORS = TURNS | GROUPS | FORMULA
SETTINGS = {  # flags, those of ppo.py and distillation.py after the page's name: checks that are not applicable
    "ppo --micro_batch 1 --minibatches 2 --critic_warmup_steps 3 --gamma 0.9": PAGES["ppo"],
    "distillation --temperature 0.7 --micro_batch 2": PAGES["distillation"],
    "--critic shared --temperature 0.7 --entropy_coef 0.05 --value_clip 0": OF_ACTORS,
    "--algorithm clip_cov --precision fp16": TURNS | REFERENCE | CRITIC | CLIP | {"advantages_detached"},  # in fp32
    "--algorithm dapo --missing_eos_penalty 0.3": TURNS | REFERENCE | CRITIC,
    "--algorithm dr_grpo --loss gspo --lora_rank 4": TURNS | REFERENCE | CRITIC,
    "--algorithm rloo --loss gmpo --aggregation seq_mean_token_mean": TURNS | CRITIC | GROUPS | CLIP,  # KL in reward
}


@pytest.mark.long
@pytest.mark.parametrize("settings", SETTINGS)
def test_settings_of_a_trainer(run_checks, settings):
    page, *flags = settings.split() if settings[:1].isalpha() else ["", *settings.split()]
    file, rewards = (TEMPLATES / f"{page}.py", (REWARD,)) if page else (PPO, (REWARD, FORMAT))
    code, rows = run_checks(file, *flags, rewards=rewards)
    assert code == 0, rows
    assert with_status(rows, "n/a") == SETTINGS[settings]


LISTED = {  # changes that `new_trainer.py` offers, of those that a check can see: all that fit together at once
    "ppo cispo monte_carlo lora": set(),
    "grpo gspo rloo length_cost": set(),
    "grpo kl token_mean lora": set(),
    "distillation forward_kl lora": set(),
    "distillation where_they_differ": {"advantages_detached"},  # another loss: the definition is not of it
}
changes_of = load_script("new_trainer").changes_of


@pytest.mark.parametrize("names", LISTED)
def test_an_edited_page_passes(run_checks, adapted, names):
    page, *names_of_changes = names.split()
    pairs = [pair for change in names_of_changes for pair in changes_of(page)[change]["edits"]]
    code, rows = run_checks(adapted(TEMPLATES / f"{page}.py", pairs), "--leave_out", "padding")
    assert code == bool(LISTED[names]) and with_status(rows) == LISTED[names], rows


CLIPPED = "ratio.clamp(1 - clip_eps_low, 1 + clip_eps_high)"
OLD = "policy_loss(logprobs, old, advantages"
CLIP_FAULTS = {
    "the smaller term": ("torch.maximum(plain, bounded)", "torch.minimum(plain, bounded)"),
    "no clip": (CLIPPED, "ratio"),
    "low and high exchanged": (CLIPPED, "ratio.clamp(1 - clip_eps_high, 1 + clip_eps_low)"),
    "a bounded log-ratio": (".clamp(-20, 20).exp()", ".clamp(-20, 0).exp()"),
    "old log-probs ignored": (OLD, OLD.replace("old", "logprobs.detach()")),
}


@pytest.mark.parametrize("fault", CLIP_FAULTS)
def test_a_broken_clip_is_named(run_checks, adapted, fault):
    copy = adapted(TEMPLATES / "grpo.py", [CLIP_FAULTS[fault]])
    code, rows = run_checks(copy, only="advantages_detached policy_clip")
    assert code == 1 and with_status(rows) == {"policy_clip"}, rows


@pytest.mark.long
def test_no_flags_at_all():
    """The embedded model, data and reward stand in, as for the scripts; the teacher is the student untouched."""
    done = run_script("selfcheck", TEMPLATES / "distillation.py")
    assert done.returncode == 0, (done.stdout, done.stderr)
    assert re.match(r"\d+ pass, 0 FAIL, \d+ n/a in ", done.stdout.splitlines()[-1])


def test_absolute_positions(run_checks, adapted, tmp_path):
    """A model with absolute positions sees wrong ones, which one with relative positions does not."""
    model = save_random_model("gpt2", tmp_path / "gpt2")
    checks = "logprob_shift padding sampler_agreement"
    code, rows = run_checks(TEMPLATES / "grpo.py", "--model", model, only=checks)
    assert code == 0, rows
    fault = """
right = token_logprobs
def token_logprobs(config, network, batch):
    def wrong(**known):
        columns = torch.arange(known["input_ids"].shape[1])[None].expand_as(known["input_ids"])
        return network(**known | {"position_ids": columns})
    return right(config, wrong, batch)
"""
    code, rows = run_checks(adapted(TEMPLATES / "grpo.py", end=fault), "--model", model, only=checks)
    assert "padding" in with_status(rows)


# what is wrong: page, the check that has to name it ("alone": no other check fails); what takes the place of the page's
# function, which is called `right`
PAGE_FAULTS = """
# log-probs without the shift: grpo, logprob_shift
def token_logprobs(config, network, batch):
    logits = network(input_ids=batch['input_ids'], attention_mask=batch['attention_mask']).logits
    dist = torch.log_softmax(logits / config.temperature, -1)
    found = dist.gather(-1, batch['input_ids'][..., None]).squeeze(-1), -(dist.exp() * dist).sum(-1)
    return tuple(x * batch['response_mask'] for x in found)

# prompts padded on the right: grpo, padding
def generate(config, models, prompts, greedy=False):
    batch, width = right(config, models, prompts, greedy), max(map(len, prompts))
    for i, prompt in enumerate(prompts):
        for x in batch.values():
            x[i, :width] = x[i, :width].roll(len(prompt) - width)
    return batch

# answers that go on after an end token: grpo, sampler_agreement
def generate(config, models, *more):
    return right(config, SimpleNamespace(**vars(models) | {'eos_ids': [-1]}), *more)

# prompt in the loss: distillation, prompt_gradient
def generate(config, models, prompts, greedy=False):
    batch = right(config, models, prompts, greedy)
    return batch | {'response_mask': batch['attention_mask']}

# update with other old log-probs than those of the batch: grpo, first_update_ratio
def update(config, models, optimizer, batch, step):
    return right(config, models, optimizer, batch | {'old_logprobs': batch['old_logprobs'] - 0.1}, step)

# reference is the policy: ppo, reference_is_initial
def load_models(config):
    made = right(config)
    made.reference = made.policy
    return made

# advantages with a graph: grpo, advantages_detached
def make_experience(config, models, batch):
    made = right(config, models, batch)
    with torch.enable_grad():
        now = token_logprobs(config, models.policy, batch)[0]
    return made | {'advantages': made['advantages'] - 0.05 * (now - now.detach())}

# loss of the wrong sign: grpo, advantages_detached alone
def policy_loss(logprobs, old, advantages, *more):
    return right(logprobs, old, -advantages, *more)

# gradients kept from step to step: grpo, update_steps
def update(config, models, optimizer, batch, step):
    optimizer.zero_grad = lambda *given, **known: None
    return right(config, models, optimizer, batch, step)

# micro-batches divided by their own tokens: grpo, accumulation
def accumulate_gradients(config, models, batch, rows, *more):
    return sum(right(config, models, batch, part, *more) for part in rows.split(config.micro_batch))

# advantages in another order than the scores: grpo, group_advantages
def group_advantages(scores, size):
    return right(scores.view(size, -1).T.flatten(), size)

# values lost in holes: ppo, gae_formula
def gae(rewards, values, response_mask, gamma, gae_lambda):
    everywhere = torch.ones_like(response_mask)
    return [x * response_mask for x in right(rewards, values, everywhere, gamma, gae_lambda)]

# KL of the wrong sign in the reward: ppo, experience_formula alone
def make_experience(config, models, batch):
    return right(dataclasses.replace(config, kl_coef=-config.kl_coef), models, batch)

# score at the first token: ppo, experience_formula
def gae(rewards, values, mask, *more):
    score, first = rewards.sum(1, keepdim=True), mask.int().argmax(1, keepdim=True)
    return right(torch.zeros_like(rewards).scatter(1, first, score), values, mask, *more)

# whitened over the padding: ppo, experience_formula
def make_experience(config, models, batch):
    made = right(config, models, batch)
    plain = (made['returns'] - made['values']) * made['response_mask']
    return made | {'advantages': (plain - plain.mean()) / plain.std() * made['response_mask']}

# value loss that takes the smaller term: ppo, value_loss_gradient
def value_loss(values, old_values, returns, value_clip):
    near = old_values + (values - old_values).clamp(-value_clip, value_clip)
    return torch.minimum(right(values, old_values, returns, 0.0), right(near, old_values, returns, 0.0))

# teacher without the temperature: distillation, advantages_detached alone
def reverse_kl(student, teacher, *more):
    return right(student, teacher * 0.8, *more)

# no generation prompt: grpo, template_ends_at_generation
def load_rows(config, tokenizer, file):
    return [r | {'prompt_ids': r['prompt_ids'][:-1]} for r in right(config, tokenizer, file)]
"""
PLANTED = {
    fault: (page, check, bool(alone), text)
    for fault, page, check, alone, text in re.findall(
        r"^# (.*): (\w+), (\w+)( alone)?\n((?:(?!# ).*\n)+)", PAGE_FAULTS, re.MULTILINE
    )
}


@pytest.mark.parametrize("fault", PLANTED)
def test_planted_fault_is_named(run_checks, adapted, fault):
    page, check, alone, text = PLANTED[fault]
    name = re.match(r"def (\w+)", text)[1]
    copy = adapted(TEMPLATES / f"{page}.py", end=f"\nimport dataclasses\nright = {name}\n{text}")
    code, rows = run_checks(copy, "--temperature", "0.8", only="" if alone else check)
    assert code == 1 and with_status(rows) == {check}, rows
    assert rows[check]["try"]


SCRIPT_FAULTS = {  # the check that has to name it, the text of ppo_train.py, what stands there instead
    "un-detached KL in the advantage": (
        "advantages_detached",
        '    known = {name: piece[name] for name in ("advantages", "chosen") if name in piece}\n',
        '    known = {"advantages": piece["advantages"] - config.kl_coef * (logprobs - piece["ref_logprobs"])}\n',
    ),
    "loss with the reference as the old policy": (
        "first_update_ratio",
        "policy_terms(config, piece, logprobs)\n",
        'policy_terms(config, piece | {"old_logprobs": piece.get("ref_logprobs", piece["old_logprobs"])}, logprobs)\n',
    ),
    "sequence means in each micro-batch": (
        "accumulation",
        "for _, _, piece in pieces_of_batch(config, models, batch, rows):\n",
        "for piece_rows, _, piece in pieces_of_batch(config, models, batch, rows):\n"
        '        tokens = batch["response_mask"].sum() / len(rows) * len(piece_rows)\n',
    ),
    "sampler without the temperature": (
        "sampler_agreement",
        "tempered(lm_logits(models.policy, states), self.config.temperature)",
        "tempered(lm_logits(models.policy, states), 1.0)",
    ),
}


@pytest.mark.long
@pytest.mark.parametrize("fault", SCRIPT_FAULTS)
def test_planted_fault_of_a_script_is_named(run_checks, adapted, fault):
    check, *pair = SCRIPT_FAULTS[fault]
    code, rows = run_checks(adapted(PPO, [pair]), "--temperature", "0.8", only=check)
    assert code == 1 and with_status(rows) == {check}, rows


def test_a_check_that_raises_fails_and_nothing_is_written(run_checks, adapted, tmp_path):
    copy = adapted(PPO, [("(batch: dict, rows) -> tuple[dict, slice]:\n", "(batch, rows):\n    1 / 0\n")])
    flags = ["--output_dir", tmp_path / "out", "--leave_out", "padding"]
    code, rows = run_checks(copy, *flags, only="accumulation logprob_shift padding")
    assert code == 1
    assert rows["accumulation"]["measured"] == "ZeroDivisionError: division by zero"
    assert rows["logprob_shift"]["status"] == "pass" and "--leave_out" in rows["padding"]["measured"]
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["adapted.py", "cwd"]


CORRECT = ["--reward", REWARD]


@pytest.mark.parametrize(
    ("trainer", "flags", "message"),
    [
        ("absent.py", [], "'absent.py', which is not a Python file"),
        (LIBRARY, [], "without Config, load_models, load_rows"),
        (TEMPLATES / "basic_grpo_training.py", [], "leaves the training to TRL"),
        (TEMPLATES / "grpo.py", ["--partial"], "try `from grpo import *`"),
        (TEMPLATES / "grpo.py", ["--data", "absent.jsonl", *CORRECT], "absent.jsonl"),
        (TEMPLATES / "grpo.py", ["--leave_out", "paddin"], "try padding"),
        ("../at_import.py", [], "SystemExit: usage"),
        ("", [], "got no TRAINER.py"),
    ],
)
def test_bad_input(capsys, tmp_path, trainer, flags, message):
    (tmp_path / "at_import.py").write_text("import sys\nsys.exit('usage')\n")
    try:
        code = selfcheck.main([str(trainer), *flags] if trainer else [])
    except SystemExit as stop:
        code = stop.code
    captured = capsys.readouterr()
    assert code == 2 and message in captured.err and not captured.out


# names of the contract, without those of all pages
ASKED = {
    "ppo": "token_logprobs make_experience gae Config.vf_coef",
    "grpo": "token_logprobs make_experience",
    "distillation": "response_logits",
    "multi_turn": "load_environment rollout token_logprobs make_experience",
}
OF_ALL = "Config load_models load_rows generate accumulate_gradients"


@pytest.mark.parametrize("page", ASKED)
def test_a_page_that_lacks_names_is_refused(adapted, capsys, page):
    names = {name for name in f"{OF_ALL} {ASKED[page]}".split() if "." not in name} - {"Config"}
    copy = adapted(TEMPLATES / f"{page}.py", end=f"\ndel {', '.join(sorted(names))}\n")
    assert selfcheck.main([str(copy)]) == 2
    listed, advice = re.search(r"adapted.py' without (.+?);(.*)", capsys.readouterr().err).groups()
    assert names <= {*re.split(", ", listed)} and "try selfcheck.py --contract" in advice, listed


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
    assert list(rows) == [function.__name__ for function in CHECKS]
    assert with_status(rows, "n/a") == (PAGES | {"multi_turn": PAGES["grpo"] - TURNS})[page]
    assert not any(row["try"] for row in rows.values())
    asked = {name for name in f"{OF_ALL} {ASKED[page]}".split() if "." not in name}
    instead = {"token_logprobs", "check_template", "gae", "update", "policy_loss"}
    of_scripts = {"LOSSES", "TOOLS"}  # asked of every module
    assert asked <= modules[0].seen <= asked | instead | of_scripts
    assert all(name in selfcheck.CONTRACT for name in instead)


OWN = """
from grpo import *

def policy_loss(logprobs, old_logprobs, advantages):
    return -(logprobs - old_logprobs).exp() * advantages

def accumulate_gradients(config, models, batch, rows):
    mask = batch["response_mask"]
    for piece in rows.split(config.micro_batch):
        part = {name: x[piece] for name, x in batch.items()}
        logprobs, _ = token_logprobs(config, models.policy, part)
        loss = policy_loss(logprobs, part["old_logprobs"], part["advantages"])
        ((loss * part["response_mask"]).sum() / mask[rows].sum()).backward()
"""


def test_a_page_with_functions_of_its_own_takes_the_rest_from_a_template(run_checks, tmp_path):
    (tmp_path / "grpo.py").write_text((TEMPLATES / "grpo.py").read_text(encoding="utf-8"))
    (tmp_path / "mine.py").write_text(OWN)
    code, rows = run_checks(tmp_path / "mine.py")
    assert code == 0, rows
    (tmp_path / "other.py").write_text(OWN.replace("mask[rows].sum()", 'part["response_mask"].sum()'))
    code, rows = run_checks(tmp_path / "other.py", only="accumulation")
    assert code == 1 and with_status(rows) == {"accumulation"}, rows


PAGE = ROOT / "templates" / "multi_turn.py"


@pytest.fixture(scope="module")
def inputs():
    """Flags of a run on the first rows of the embedded data."""
    return [str(x) for x in ("--model", TINY_LM, "--data", FEW_TRAIN, "--environment", SECOND_ATTEMPT)]


@functools.cache
def page_models():
    """The embedded model as the page loads it, once for all copies: no check of conversations changes it."""
    page = load_module(PAGE, "multi_turn_of_the_bundle")
    return page.load_models(page.Config(model=str(TINY_LM), data="", environment=""))


def results(trainer, *flags) -> dict[str, tuple]:
    """What the checks of conversations say of a trainer, by name; one that raises fails."""
    found, trainer = {}, load_trainer(str(trainer))
    trainer.module.load_models = lambda config: page_models()
    assert not trainer.parse([*flags])
    trainer.load()
    for check in TURN_CHECKS:
        try:
            found[check.__name__] = check(trainer)
        except (Exception, SystemExit) as error:
            found[check.__name__] = False, f"{type(error).__name__}: {error}"
    return found


def failed(found: dict) -> dict[str, str]:
    """The checks that fail, and what they say."""
    return {name: text for name, (passed, text) in found.items() if passed is False}


def test_the_page_passes_and_says_what_it_saw(inputs):
    found = results(PAGE, *inputs)
    assert all(passed for passed, _ in found.values()), found
    assert "tokens of 9 answers in 4 conversations" in found["turn_mask"][1]


@pytest.mark.parametrize("change", ["tools", "turn_cost"])
def test_a_listed_change_of_the_page_passes(inputs, adapted, change):
    found = results(adapted(PAGE, changes_of("multi_turn")[change]["edits"]), *inputs)
    assert all(passed for passed, _ in found.values()), found


def test_tools_are_expected_in_a_prompt(inputs, tmp_path):
    """With the tools of the environment, the prompt begins with more than its messages."""
    (tmp_path / "adder.py").write_text(ADDER)
    trainer = load_trainer(str(changed("tools", tmp_path)))
    flags = ["--model", str(ROOT / "assets" / "tiny_tools_lm"), "--environment", f"{tmp_path}/adder.py:Adder"]
    assert not trainer.parse([*inputs, *flags, "--max_turns", "2"])
    trainer.load()
    assert template_ends_at_generation(trainer)[0] is True


def test_a_trainer_that_plays_one_conversation_after_another_passes(inputs, adapted):
    """One object may serve many conversations, as long as one has ended before the next one begins."""
    old = """    talks = play(config, models, make, rows, greedy)
    scores = [ask(config, talk, "get_reward") for talk in talks]
"""
    new = """    talks, scores, one = [], [], make()
    for row in rows:
        talks += play(config, models, lambda: one, [row], greedy)
        scores.append(ask(config, talks[-1], "get_reward"))
"""
    assert not failed(results(adapted(PAGE, [(old, new)]), *inputs))


TURN_FAULTS = {  # (checks that fail, old => new, ...)
    "leaked words of the environment": (
        "turn_mask",
        "[(i, 1, 0, 0.0) for i in added] => [(i, 1, 1, 0.0) for i in added]",
    ),
    "log-probs of the next token": (
        "turn_mask",
        "zip(ids, logprobs, strict=True)] => zip(ids, logprobs[1:] + logprobs[:1], strict=True)]",
    ),
    "re-tokenized turn": (
        "turn_mask",
        "(ids[: len(ids) - talk.ended]) => (ids[: len(ids) - talk.ended]); "
        "ids = models.tokenizer.encode(text, add_special_tokens=False) + ids[len(ids) - talk.ended :]; "
        "logprobs = (logprobs + [0.0] * len(ids))[: len(ids)]",
    ),
    "conversation rendered anew": (
        "turn_mask",
        "+ said * talk.goes_on => + said * talk.goes_on; talk.tokens = [(i, 1, 0, 0.0) for i in "
        "render(models.tokenizer, talk.messages)] if talk.goes_on else talk.tokens",
    ),
    "rewards of the conversations in reverse": (
        "turn_state",
        '"get_reward") for talk in talks] => "get_reward") for talk in talks[::-1]]',
    ),
    "the reward asked for too soon": (
        "turn_state",
        'talk.turns, talk.ended = => talk.score = ask(config, talk, "get_reward") if turn == 1 else talk.score'
        "; talk.turns, talk.ended =",
        'scores = [ask(config, talk, "get_reward") for talk in talks] => scores = [talk.score for talk in talks]',
    ),
    "an environment for all": (
        "turn_state",
        "talks = [SimpleNamespace(row=row, environment=make() => one = make(); talks = [SimpleNamespace(row=row, "
        "environment=one",
    ),
    "columns shared by a group": (
        "turn_state",
        'ask(config, talk, "reset", **copy.deepcopy(row)) => ask(config, talk, "reset", **row)',
    ),
    "messages shared by a group": ("turn_mask turn_state", "messages=copy.deepcopy(row[ => messages=(row["),
    "answers heard by a neighbour": (
        "turn_state",
        'reply = ask(config, talk, "reply", text) => reply = ask(config, talk, "reply", text); '
        'reply = ask(config, now[row - 1], "reply", text) if row == 1 and turn == 1 else reply',
    ),
}


@pytest.mark.parametrize("fault", TURN_FAULTS)
def test_planted_fault_of_conversations_is_named(inputs, adapted, fault):
    checks, *edits = TURN_FAULTS[fault]
    copy = adapted(PAGE, [edit.split(" => ") for edit in edits])
    found = failed(results(copy, *inputs))
    assert set(found) == {*checks.split()}, found
