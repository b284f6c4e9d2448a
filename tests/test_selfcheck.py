"""scripts/selfcheck.py on the scripts: clean ones pass, and each check fails, by name, on one with that fault."""

import json
import sys

import pytest
from conftest import EVAL_DATA, ROOT, SCRIPTS, TINY_LM, TRAIN_DATA, load_script, run_script

PPO = SCRIPTS / "ppo_train.py"
LIBRARY = ROOT / "examples" / "reward_functions_library.py"
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
    empty = tmp_path / "cwd"
    empty.mkdir()
    monkeypatch.chdir(empty)


@pytest.fixture
def run_checks(capsys, few_prompts):
    """run_checks(trainer, *flags) -> (exit code, {check: row}), on the embedded model and 40 of its prompts."""

    def run(trainer, *flags, rewards=(f"{LIBRARY}:correctness_reward", f"{LIBRARY}:format_reward*0.2")):
        inputs = [
            "--model",
            TINY_LM,
            "--data",
            few_prompts,
            "--eval_data",
            few_prompts,
            "--device",
            "cpu",
            "--allow_overlap",
        ]
        inputs += ["--max_new_tokens", "12"]
        inputs += [part for reward in rewards for part in ("--reward", reward)]
        code = selfcheck.main([str(x) for x in (trainer, *inputs, *flags, "--json")])
        report = json.loads(capsys.readouterr().out)
        assert report["passed"] == (code == 0)
        return code, {row["name"]: row for row in report["checks"]}

    return run


@pytest.fixture
def planted(tmp_path):
    """planted(snippet, fault) -> a copy of ppo_train.py with its only `snippet` replaced."""

    def plant(snippet: str, fault: str):
        text = PPO.read_text(encoding="utf-8")
        assert text.count(snippet) == 1, f"ppo_train.py no longer holds once: {snippet}"
        assert snippet != fault
        copy = tmp_path / "adapted.py"
        copy.write_text(text.replace(snippet, fault), encoding="utf-8")
        return copy

    return plant


NAMES = {
    *("special_tokens", "template_ends_at_generation", "reward_answers", "value_head_zero", "reference_is_initial"),
    *("first_update_ratio", "sampler_agreement", "logprob_shift", "padding", "accumulation", "chunking"),
    *("advantages_detached", "prompt_gradient", "gae_formula", "value_loss_gradient", "group_advantages"),
    *("turn_template", "turn_ids", "turn_mask", "turn_rewards", "turn_state"),
}
NO_TURNS = {name for name in NAMES if name.startswith("turn_")}


NO_GROUPS, NO_CRITIC = {"group_advantages"}, {"value_head_zero", "gae_formula", "value_loss_gradient"}
NO_REFERENCE = {"reference_is_initial"}


@pytest.mark.long
@pytest.mark.parametrize(
    ("flags", "not_applicable"),
    [
        ("", NO_GROUPS),
        ("--critic shared --temperature 0.7 --entropy_coef 0.05 --value_clip 0", NO_GROUPS),
        ("--precision bf16 --gradient_checkpointing", NO_GROUPS),
        ("--algorithm grpo --kl_coef 0", NO_REFERENCE | NO_CRITIC),
        ("--algorithm dr_grpo --loss gspo --lora_rank 4", NO_REFERENCE | NO_CRITIC),
        ("--algorithm rloo --loss gmpo --aggregation seq_mean_token_mean", NO_CRITIC | NO_GROUPS),  # KL in the reward
        ("--algorithm maxrl --loss kl_cov", NO_REFERENCE | NO_CRITIC),
        ("--algorithm gdpo --loss cispo", NO_REFERENCE | NO_CRITIC | NO_GROUPS),
        ("--algorithm clip_cov", NO_REFERENCE | NO_CRITIC | {"advantages_detached"}),
    ],
)
def test_clean_trainer_passes(run_checks, flags, not_applicable):
    code, rows = run_checks(PPO, *flags.split())
    assert code == 0, rows
    assert set(rows) == NAMES
    assert {name for name, row in rows.items() if row["status"] == "n/a"} == not_applicable | NO_TURNS
    assert not any(row["try"] for row in rows.values())


@pytest.mark.long
def test_plain_prompts(run_checks, tmp_path):
    data = tmp_path / "plain.csv"
    data.write_text("prompt,answer\n" + "".join(f"{i}+1=,{i + 1}\n" for i in range(1, 30)))
    code, rows = run_checks(PPO, "--data", data, "--eval_data", data)
    assert code == 0, rows
    assert rows["template_ends_at_generation"]["status"] == "n/a"


# the check that has to name it, the text of ppo_train.py, what stands there instead
FAULTS = {
    "reference taken for the old policy": (
        "first_update_ratio",
        "    return batch if early else batch | agreed_advantages(config, batch, samples, kl_coef)\n",
        "    made = batch | agreed_advantages(config, batch, samples, kl_coef)\n"
        '    return made | {"old_logprobs": batch.get("ref_logprobs", batch["old_logprobs"])}\n',
    ),
    "un-detached KL in the advantage": (
        "advantages_detached",
        '    known = {name: piece[name] for name in ("advantages", "chosen") if name in piece}\n',
        '    known = {"advantages": piece["advantages"] - config.kl_coef * (logprobs - piece["ref_logprobs"])}\n',
    ),
    "right padding": (
        "padding",
        '    prompt_ids, prompt_mask = left_pad([s["prompt_ids"] for s in samples], pad_id, device)\n',
        '    turned = left_pad([s["prompt_ids"][::-1] for s in samples], pad_id, device)\n'
        "    prompt_ids, prompt_mask = (x.flip(1) for x in turned)\n",
    ),
}


@pytest.mark.long
@pytest.mark.parametrize("fault", FAULTS)
def test_planted_bug_is_named(run_checks, planted, fault):
    check, snippet, replacement = FAULTS[fault]
    code, rows = run_checks(planted(snippet, replacement))
    assert code == 1
    assert rows[check]["status"] == "FAIL", rows
    assert rows[check]["try"]


# faults that only the named check sees
ALONE = {
    "sequence means in each micro-batch": (
        "accumulation",
        "piece, _ = trimmed(batch, piece_rows)\n",
        "piece, _ = trimmed(batch, piece_rows)\n"
        '        tokens = batch["response_mask"].sum() / len(rows) * len(piece_rows)\n',
    ),
    "sampler without the temperature": (
        "sampler_agreement",
        "dist = torch.log_softmax(logits / self.config.temperature, dim=-1)",
        "dist = torch.log_softmax(logits, dim=-1)",
    ),
    "reference is the policy": (
        "reference_is_initial",
        "reference = load_network(AutoModelForCausalLM, config.model, config, device, frozen=True)",
        "reference = policy",
    ),
    "random value head": ("value_head_zero", "    torch.nn.init.zeros_(critic.head.weight)\n", ""),
    "value loss without 1/2": ("value_loss_gradient", "    return 0.5 * loss\n", "    return loss\n"),
    "entropy of the first chunk only": (
        "chunking",
        "    return torch.cat(logprobs), torch.cat(entropy)\n",
        "    return torch.cat(logprobs), torch.cat(entropy) * 0 + entropy[0].mean()\n",
    ),
}


@pytest.mark.long
@pytest.mark.parametrize("fault", ALONE)
def test_fault_shows_in_one_check(run_checks, planted, fault):
    check, snippet, replacement = ALONE[fault]
    code, rows = run_checks(planted(snippet, replacement), "--temperature", "0.8")
    assert code == 1
    assert {name for name, row in rows.items() if row["status"] == "FAIL"} == {check}, rows


@pytest.mark.long
def test_reward_that_raises_fails_its_check_without_a_trace(run_checks, tmp_path, capsys):
    rewards = tmp_path / "rewards.py"
    rewards.write_text("def broken(completions, **kwargs):\n    print('noise on stdout')\n    return [1 / 0]\n")
    code, rows = run_checks(PPO, rewards=[f"{LIBRARY}:format_reward", f"{rewards}:broken"])
    assert code == 1
    assert {name for name, row in rows.items() if row["status"] == "FAIL"} == {"reward_answers"}
    assert "broken, row 0" in rows["reward_answers"]["measured"]
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.long
def test_equal_rewards_are_pointed_out(run_checks, tmp_path):
    rewards = tmp_path / "rewards.py"
    rewards.write_text("def always(completions, **kwargs):\n    return [1.0] * len(completions)\n")
    code, rows = run_checks(PPO, rewards=[f"{rewards}:always"])
    assert code == 0
    assert "warning: all equal" in rows["reward_answers"]["measured"]


def test_a_check_that_raises_fails(run_checks, planted):
    code, rows = run_checks(planted("(batch: dict, rows) -> tuple[dict, slice]:\n", "(batch, rows):\n    1 / 0\n"))
    assert code == 1
    assert rows["accumulation"]["measured"] == "ZeroDivisionError: division by zero"
    assert rows["logprob_shift"]["status"] == "pass"


@pytest.mark.long
def test_nothing_is_written(run_checks, planted, tmp_path):
    copy = planted("def main(", "# adapted\ndef main(")
    code, _ = run_checks(copy, "--output_dir", tmp_path / "out")
    assert code == 0
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["adapted.py", "cwd"]


@pytest.mark.parametrize(
    ("trainer", "flags", "message"),
    [
        ("absent.py", [], "'absent.py', which is no Python file"),
        (str(LIBRARY), [], "without Config, load_models, load_rows"),
        (str(PPO), ["--data", "absent.jsonl"], "'absent.jsonl', which is not a file"),
        (str(PPO), ["--batch_size", "7", "--minibatches", "2"], "try --batch_size 8"),
        (str(PPO), ["--model", "./absent"], "'./absent', which is not a folder"),
    ],
)
def test_bad_input(capsys, trainer, flags, message):
    assert selfcheck.main([trainer, *flags]) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert not captured.out


def test_trainer_that_runs_at_import(tmp_path, capsys):
    script = tmp_path / "script.py"
    script.write_text("import sys\nsys.exit('usage')\n")
    assert selfcheck.main([str(script)]) == 2
    assert "SystemExit: usage" in capsys.readouterr().err


def test_unknown_flag_fails_through_the_trainers_parser(capsys):
    with pytest.raises(SystemExit) as stop:
        selfcheck.main([str(PPO), "--temperatur", "0.5"])
    assert stop.value.code == 2
    assert "try --temperature" in capsys.readouterr().err


@pytest.mark.long
def test_command_line_prints_a_table():
    done = run_script("selfcheck", PPO, "--data", EVAL_DATA, "--device", "cpu")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert {line.split()[0]: line.split()[1] for line in lines[:-1]} == dict.fromkeys(NAMES, "pass") | dict.fromkeys(
        NO_TURNS | NO_GROUPS, "n/a"
    )
    assert lines[-1].startswith("15 pass, 0 FAIL, 6 n/a in ")
