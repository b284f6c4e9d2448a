"""scripts/selfcheck.py on one-page trainers: clean ones pass, each fault is found by its check, the contract holds."""

import json
import re
import sys

import pytest
from conftest import ROOT, SCRIPTS, TINY_LM, TRAIN_DATA, load_script, run_script, save_random_model

TEMPLATES = ROOT / "templates"
PAGES = ("ppo", "grpo", "distillation")
SECOND_ATTEMPT = f"{ROOT / 'examples' / 'environments.py'}:SecondAttempt"
REWARD = f"{ROOT / 'examples' / 'reward_functions_library.py'}:correctness_reward"
selfcheck = load_script("selfcheck")


@pytest.fixture(scope="module")
def few_prompts(tmp_path_factory):
    """The first rows of the embedded data."""
    path = tmp_path_factory.mktemp("data") / "few.jsonl"
    path.write_text("".join(TRAIN_DATA.read_text().splitlines(keepends=True)[:40]))
    return path


@pytest.fixture(autouse=True)
def _as_it_was(monkeypatch):
    """A check is a process of its own otherwise: restore what it changes in this one."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", sys.dont_write_bytecode)


@pytest.fixture
def run_checks(capsys, few_prompts):
    """run_checks(trainer, *flags) -> (exit code, {check: row}), on the embedded model and 40 of its prompts."""

    def run(trainer, *flags):
        pays = ["--environment", SECOND_ATTEMPT] if "multi_turn" in str(trainer) else ["--reward", REWARD]
        inputs = ["--model", TINY_LM, "--data", few_prompts, *pays, "--max_new_tokens", "12"]
        code = selfcheck.main([str(x) for x in (trainer, *inputs, *flags, "--json")])
        said = capsys.readouterr()
        report = json.loads(said.out or '{"passed": null, "checks": []}')
        assert report["passed"] == (code == 0), said.err
        return code, {row["name"]: row for row in report["checks"]}

    return run


def failed(rows: dict) -> set[str]:
    """Names of the checks that fail."""
    return {name for name, row in rows.items() if row["status"] == "FAIL"}


def with_fault(folder, page: str, fault: str):
    """A copy of a template in which definitions at its end take the place of earlier ones."""
    copy = folder / "adapted.py"
    copy.write_text((TEMPLATES / f"{page}.py").read_text(encoding="utf-8") + f"\nimport dataclasses\n{fault}")
    return copy


# ------------------------------------------------------------------------------------------------ clean trainers

NO_CRITIC = {"value_head_zero", "gae_formula", "value_loss_gradient"}
NO_TURNS = {"turn_template", "turn_ids", "turn_mask", "turn_rewards", "turn_state"}
NOT_APPLICABLE = {
    "ppo": {*NO_TURNS, "group_advantages", "chunking"},
    "grpo": {*NO_TURNS, *NO_CRITIC, "chunking", "reference_is_initial"},
    "distillation": {*NO_TURNS, *NO_CRITIC, "group_advantages", "reference_is_initial", "first_update_ratio"},
}


@pytest.mark.parametrize("page", PAGES)
def test_clean_page_passes(run_checks, page):
    code, rows = run_checks(TEMPLATES / f"{page}.py")
    assert code == 0, rows
    assert len(rows) == 21
    assert rows["turn_mask"]["measured"] == "one answer a prompt: no environment"
    assert {name for name, row in rows.items() if row["status"] == "n/a"} == NOT_APPLICABLE[page]


@pytest.mark.long
@pytest.mark.parametrize(
    ("page", "flags", "absent"),
    [
        ("ppo", "--kl_coef 0 --temperature 0.7 --value_clip 0", {"reference_is_initial"}),
        ("ppo", "--micro_batch 1 --minibatches 2 --critic_warmup_steps 3 --gamma 0.9 --gae_lambda 0.5", set()),
        ("grpo", "--group_size 4 --minibatches 2 --micro_batch 3", set()),
        ("distillation", "--temperature 0.7 --micro_batch 2", set()),
    ],
)
def test_settings_of_a_page(run_checks, page, flags, absent):
    code, rows = run_checks(TEMPLATES / f"{page}.py", *flags.split())
    assert code == 0, rows
    assert {name for name, row in rows.items() if row["status"] == "n/a"} == NOT_APPLICABLE[page] | absent


changes_of = load_script("new_trainer").changes_of
CHANGES = [(page, name, change["edits"]) for page in PAGES for name, change in changes_of(page).items()]
CHANGES = [change for change in CHANGES if change[1] != "stop_rule"]


@pytest.mark.parametrize(("page", "change", "pairs"), CHANGES, ids=[f"{page}: {change}" for page, change, _ in CHANGES])
def test_an_edited_page_passes(run_checks, tmp_path, page, change, pairs):
    source = (TEMPLATES / f"{page}.py").read_text(encoding="utf-8")
    for old, new in pairs:
        assert source.count(old) == 1, old
        source = source.replace(old, new)
    (tmp_path / "mine.py").write_text(source)
    code, rows = run_checks(tmp_path / "mine.py")
    if change == "where_they_differ":  # that is another loss: the definition is not of it
        assert failed(rows) == {"advantages_detached"}
    else:
        assert code == 0, rows


@pytest.mark.long
def test_no_flags_at_all():
    """The embedded model, data and reward stand in, as for the scripts; the teacher is the student untouched."""
    done = run_script("selfcheck", TEMPLATES / "distillation.py", "--json")
    assert done.returncode == 0, (done.stdout, done.stderr)
    assert json.loads(done.stdout)["passed"]


def test_absolute_positions(run_checks, tmp_path):
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
    code, rows = run_checks(with_fault(tmp_path, "grpo", fault), "--model", model)
    assert "padding" in failed(rows)


# ------------------------------------------------------------------------------------------------ planted faults

ACTORS, ALL = ("ppo", "grpo"), PAGES
EXPERIENCE = (
    "right = make_experience\ndef make_experience(config, models, batch):\n    made = right(config, models, batch)\n"
)
LOGPROBS = "right = token_logprobs\ndef token_logprobs(config, network, batch):\n    "
GRADIENTS = "right = accumulate_gradients\ndef accumulate_gradients(config, models, batch, rows, *more):\n    "
GAE = "right = gae\ndef gae(rewards, values, response_mask, gamma, gae_lambda):\n    "
VALUE = "right = value_loss\ndef value_loss(values, old_values, returns, value_clip):\n    "
SAMPLER = "right = generate\ndef generate(config, models, prompts, greedy=False):\n    "
REPLACE = "dataclasses.replace(config, "

# what is wrong: (pages, the check that has to name it, whether no other check may fail, what stands at the page's end)
FAULTS = {
    "log-probs without the shift": (
        ACTORS,
        "logprob_shift",
        False,
        LOGPROBS + "logits = network(input_ids=batch['input_ids'], attention_mask=batch['attention_mask']).logits\n"
        "    dist = torch.log_softmax(logits / config.temperature, -1)\n"
        "    found = dist.gather(-1, batch['input_ids'][..., None]).squeeze(-1), -(dist.exp() * dist).sum(-1)\n"
        "    return tuple(x * batch['response_mask'] for x in found)\n",
    ),
    "pads that are attended to": (
        ACTORS,
        "padding",
        False,
        LOGPROBS + "return right(config, network, batch | {'attention_mask': batch['attention_mask'] * 0 + 1})\n",
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
    "GAE of the wrong sign": (("ppo",), "gae_formula", True, GAE + "a, r = right(**locals())\n    return -a, r\n"),
    "values lost in holes": (
        ("ppo",),
        "gae_formula",
        True,
        GAE + "everywhere = torch.ones_like(response_mask)\n"
        "    return [x * response_mask for x in right(rewards, values, everywhere, gamma, gae_lambda)]\n",
    ),
    "value loss without 1/2": (
        ("ppo",),
        "value_loss_gradient",
        True,
        VALUE + "return 2 * right(values, old_values, returns, value_clip)\n",
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
        "chunking",
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
PLANTED = [(fault, page) for fault, (pages, *_) in FAULTS.items() for page in pages]


@pytest.mark.parametrize(("fault", "page"), PLANTED, ids=[f"{page}: {fault}" for fault, page in PLANTED])
def test_planted_fault_is_named(run_checks, tmp_path, fault, page):
    _, check, alone, text = FAULTS[fault]
    code, rows = run_checks(with_fault(tmp_path, page, text), "--temperature", "0.8")
    assert code == 1
    assert check in failed(rows), rows
    assert rows[check]["try"]
    assert not alone or failed(rows) == {check}, rows


def test_a_reward_that_raises(run_checks, tmp_path):
    (tmp_path / "raises.py").write_text("def broken(prompt, completion):\n    print('noise')\n    return 1 / 0\n")
    code, rows = run_checks(TEMPLATES / "grpo.py", "--reward", f"{tmp_path / 'raises.py'}:broken")
    assert code == 1 and failed(rows) == {"reward_answers"}
    said = rows["reward_answers"]["measured"]
    assert "raises.py" in said and "few.jsonl:" in said and "ZeroDivisionError" in said


# ------------------------------------------------------------------------------------------------ the contract


def asked_of(page: str) -> list[str]:
    """Names that the contract has for a page: of its functions, and of the fields of its Config."""
    printed = selfcheck.contract().split("A script:")[0]
    fields = {"ppo": {"gae_lambda"}, "grpo": set(), "distillation": {"teacher"}, "multi_turn": {"environment"}}[page]
    names = []
    for name, about in re.findall(r"^  (\w+)(?:\(.*)?\n      (.*)$", printed, re.MULTILINE):
        condition = re.match(r"where Config has (no )?(\w+):", about)
        if not condition or (condition[2] in fields) != bool(condition[1]):
            names.append(name)
    text = " ".join(printed.partition("Fields of its Config: ")[2].split()).partition(".")[0]
    always, reward, critic = (part.split(" where ")[0].split(", ") for part in text.split("; "))
    of_page = always + reward * (page != "multi_turn") + critic * (page == "ppo")
    return names + [f"Config.{name}" for name in of_page]


WITHOUT_FIELD = """
kept = [f for f in dataclasses.fields(Config) if f.name != {name!r}]
Config = dataclasses.make_dataclass("Config", [(f.name, f.type, dataclasses.field(default=f.default)) for f in kept],
                                    kw_only=True)
"""


@pytest.mark.parametrize("page", [*PAGES, "multi_turn"])
def test_a_page_that_lacks_a_name_is_refused(tmp_path, capsys, page):
    names = asked_of(page)
    assert len(names) == {"ppo": 18, "grpo": 16, "distillation": 13, "multi_turn": 16}[page], names
    for name in names:
        kind, _, field = name.partition(".")
        copy = with_fault(tmp_path, page, WITHOUT_FIELD.format(name=field) if field else f"del {kind}\n")
        assert selfcheck.main([str(copy)]) == 2, name
        said = capsys.readouterr().err
        assert re.search(rf"adapted.py' without ([\w., ]+, )?{re.escape(name)}[,;]", said), (name, said)
        assert "try selfcheck.py --contract" in said


@pytest.mark.long
def test_a_script_that_lacks_a_name_is_refused(tmp_path, capsys):
    parts = selfcheck.contract().split("A script:")[1].split("With --environment, too:")
    always, talks = (re.findall(r"^  (\w+)(?:\(.*)?\n", printed, re.MULTILINE) for printed in parts)
    assert len(always) == 23 and len(talks) == 4
    source = (SCRIPTS / "ppo_train.py").read_text(encoding="utf-8")
    for name in always + talks:
        (tmp_path / "adapted.py").write_text(f"{source}\ndel {name}\n")
        flags = ["--environment", SECOND_ATTEMPT] * (name in talks)
        assert selfcheck.main([str(tmp_path / "adapted.py"), *flags]) == 2, name
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


@pytest.mark.parametrize("page", [*PAGES, "multi_turn"])
def test_no_other_name_of_a_page_is_used(run_checks, monkeypatch, page):
    seen = watch(monkeypatch)
    assert run_checks(TEMPLATES / f"{page}.py")[0] == 0
    asked = {name for name in asked_of(page) if "." not in name}
    instead = {"parse_config", "token_logprobs", "check_template"}
    assert asked <= seen() <= asked | instead and all(name in selfcheck.contract() for name in instead)


def watch(monkeypatch):
    """Names that the next check uses of its trainer, once it has run."""
    load, modules = selfcheck.load_trainer, []

    def watched(file):
        trainer = load(file)
        trainer.module = Watched(trainer.module)
        modules.append(trainer.module)
        return trainer

    monkeypatch.setattr(selfcheck, "load_trainer", watched)
    monkeypatch.setattr(selfcheck, "lacking", lambda *_: [])  # asks for all of them
    return lambda: modules[0].seen


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
OF_FOUR = {"gae_formula", "logprob_shift", "padding", "accumulation", "advantages_detached", "prompt_gradient"}
FAULTS_OF_FOUR = {
    "gae_formula": ("gamma * gae_lambda * later", "gae_lambda * later"),
    "logprob_shift": ('batch["input_ids"][:, 1:, None]', 'batch["input_ids"][:, :-1, None]'),
    "accumulation": ("mask[rows].sum()", 'part["response_mask"].sum()'),
    "prompt_gradient": ('(loss * part["response_mask"]).sum()', '(loss * part["attention_mask"]).sum()'),
}


@pytest.fixture
def check_part(tmp_path, run_checks):
    """check_part(source) -> (exit code, {check: row}) of a script that has a part of the contract."""

    def check(source: str, *flags):
        (tmp_path / "mine.py").write_text(source)
        return run_checks(tmp_path / "mine.py", "--partial", *flags)

    return check


def test_a_script_with_four_functions_is_checked_and_the_rest_told(check_part, tmp_path, capsys):
    code, rows = check_part(FOUR)
    assert code == 0 and {name for name, row in rows.items() if row["status"] == "pass"} == OF_FOUR, rows
    assert rows["sampler_agreement"]["measured"] == "not checked: it has no generate"
    assert rows["first_update_ratio"]["measured"] == "not checked: it has no update and no make_experience"
    assert rows["padding"]["measured"].endswith("; generate not checked: it has none")
    assert selfcheck.main([str(tmp_path / "mine.py")]) == 2
    said = capsys.readouterr().err
    assert "without Config, load_models, load_rows, generate; " in said and "or --partial" in said


@pytest.mark.parametrize("fault", FAULTS_OF_FOUR)
def test_a_fault_in_one_of_four_functions_is_named(check_part, fault):
    right, wrong = FAULTS_OF_FOUR[fault]
    assert right in FOUR
    code, rows = check_part(FOUR.replace(right, wrong))
    assert code == 1 and fault in failed(rows), rows


OTHERS = """

def generate(model, tokenizer, text):
    raise AssertionError("not the generate of the contract")


def make_experience(rows):
    return generate(None, None, rows)
"""


def test_a_function_of_another_meaning_is_told_and_not_called(check_part, tmp_path, capsys):
    code, rows = check_part(FOUR + OTHERS)
    assert code == 0 and {name for name, row in rows.items() if row["status"] == "pass"} == OF_FOUR, rows
    told = "not checked: it has no generate that is called as --contract says"
    assert rows["sampler_agreement"]["measured"] == told
    code, rows = check_part(FOUR.replace("def gae(rewards, values,", "def gae(values, done, rewards, more, "))
    assert code == 0 and rows["gae_formula"]["measured"].startswith("not checked: it has no gae that is called")
    page = (TEMPLATES / "grpo.py").read_text(encoding="utf-8")
    (tmp_path / "mine.py").write_text(page + OTHERS)
    assert selfcheck.main([str(tmp_path / "mine.py")]) == 2
    said = capsys.readouterr().err
    assert (
        "generate(model, tokenizer, text) is another one than generate(config, models, prompts, greedy=False)" in said
    )


def test_distillation_is_checked_without_a_reward(run_checks):
    code, rows = run_checks(TEMPLATES / "distillation.py", "--reward", "")
    assert code == 0 and rows["reward_answers"]["measured"] == "no reward: nothing is scored", rows


def test_a_part_of_a_page_uses_what_the_page_has(check_part):
    """Its own Config without some fields, its own networks and sampler, whose temperature is another."""
    source = (TEMPLATES / "grpo.py").read_text(encoding="utf-8")
    code, rows = check_part(source + "\ndel update, make_experience, load_rows\n")
    names = ("first_update_ratio", "group_advantages", "template_ends_at_generation")
    assert code == 0 and all(rows[name]["measured"].startswith("not checked: it has no ") for name in names)
    ran = {"special_tokens", "reward_answers", "sampler_agreement", "logprob_shift", "padding", "accumulation"}
    assert {name for name in ran if rows[name]["status"] == "pass"} == ran
    config = FOUR + "\nimport dataclasses\n\n\n@dataclasses.dataclass\nclass Config:\n    micro_batch: int = 3\n"
    code, rows = check_part(config.replace("config.micro_batch", "4"))
    assert code == 0 and rows["logprob_shift"]["status"] == "pass"


OWN_REWARD = ["--reward", f"{ROOT}/examples/reward_functions_library.py:correctness_reward"]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("x = 1\n", "expected a page that has token_logprobs or"),
        ("from trl import GRPOTrainer\n", "leaves the training to TRL"),
        ((SCRIPTS / "ppo_train.py").read_text(encoding="utf-8") + "\ndel collate\n", "expected a page that has"),
    ],
    ids=["nothing", "trl", "script"],
)
def test_no_part_of_a_page(tmp_path, capsys, source, message):
    (tmp_path / "mine.py").write_text(source)
    assert selfcheck.main([str(tmp_path / "mine.py"), "--partial"]) == 2
    assert message in capsys.readouterr().err


def test_every_check_says_what_it_is_about():
    names = {function.__name__ for function in selfcheck.CHECKS}
    assert {*selfcheck.ABOUT} == names and {*selfcheck.BESIDE} <= names
    assert {name.strip() for name in re.findall(r"^  (\w+)", selfcheck.contract(), re.MULTILINE)} >= {
        name for about in selfcheck.ABOUT.values() for name in about if "." not in name
    }


def test_contract_is_printed_without_a_trainer():
    done = run_script("selfcheck", "--contract")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == selfcheck.contract().splitlines()
    assert all(len(line) <= 120 for line in done.stdout.splitlines())


@pytest.mark.parametrize(
    ("trainer", "flags", "message"),
    [
        (TEMPLATES / "basic_grpo_training.py", [], "leaves the training to TRL"),
        (SCRIPTS / "grpo_train.py", [], "leaves the training to TRL"),
        (SCRIPTS / "evaluation.py", [], "try selfcheck.py --contract"),
        (TEMPLATES / "grpo.py", ["--data", "absent.jsonl", *OWN_REWARD], "absent.jsonl"),
        (TEMPLATES / "grpo.py", ["--data", "{folder}/bad.jsonl", *OWN_REWARD], "bad.jsonl:1: "),
    ],
)
def test_bad_input(capsys, tmp_path, trainer, flags, message):
    (tmp_path / "bad.jsonl").write_text("{\n")
    assert selfcheck.main([str(trainer), *(flag.format(folder=tmp_path) for flag in flags)]) == 2
    captured = capsys.readouterr()
    assert message in captured.err and not captured.out


def test_no_trainer_is_a_usage_error(capsys):
    with pytest.raises(SystemExit) as stop:
        selfcheck.main([])
    assert stop.value.code == 2 and "got no TRAINER.py" in capsys.readouterr().err


def test_a_copy_of_selfcheck_alone_asks_for_the_model(tmp_path):
    (tmp_path / "selfcheck.py").write_text((SCRIPTS / "selfcheck.py").read_text(encoding="utf-8"))
    done = run_script(tmp_path / "selfcheck.py", TEMPLATES / "grpo.py")
    assert done.returncode == 2 and "got no --model" in done.stderr and "Traceback" not in done.stderr
