"""The tables of scripts/migrate.py against the installed packages, and old scripts against their own version."""

import json

import pytest
from conftest import ROOT, run_script

OLD = ROOT / "tests" / "files" / "old_trl"
STEPS = json.loads((OLD / "steps.json").read_text(encoding="utf-8"))


def test_the_tables_end_with_the_installed_packages():
    result = run_script(ROOT / "tools" / "version_tables.py", "--check", cwd=ROOT)
    assert result.returncode == 0, result.stdout + result.stderr


def test_tables_hold_changes_that_the_old_packages_documented():
    folder = ROOT / "src" / "programs" / "migrate"
    trl, verl = (json.loads((folder / f"{name}_changes.json").read_text()) for name in ("trl", "verl"))
    grpo = trl["configs"]["GRPOConfig"]
    assert grpo["beta"] == {"0.14": 0.04, "0.19": 0.0}
    assert grpo["temperature"] == {"0.14": 0.9, "0.18": 1.0}
    assert grpo["max_prompt_length"]["0.28"] == {"gone": ""}
    assert [*grpo["per_device_train_batch_size"].values()] == [1, 8]
    assert trl["modules"]["PPOTrainer"]["1.13"] == {"gone": ""}
    assert trl["trainers"]["GRPOTrainer"].get("tokenizer") is None
    assert trl["trainers"]["SFTTrainer"]["max_seq_length"]["0.13"] == {"gone": "args.max_length"}
    assert verl["keys"]["actor_rollout_ref.actor.entropy_coeff"] == {"0.2": 0.001, "0.4": 0}
    assert verl["keys"]["ray_init.num_cpus"]["0.6"] == {"gone": "ray_kwargs.ray_init.num_cpus"}


@pytest.mark.long
@pytest.mark.parametrize("old", STEPS, ids=[f"{step['from']}-{step['script']}" for step in STEPS])
def test_a_migrated_script_takes_the_step_of_its_old_version(old, tmp_path):
    """`steps.json` was measured in environments of the old versions by tools/old_versions.py."""
    new = tmp_path / old["script"]
    result = run_script("migrate", OLD / old["script"], "--from", f"trl=={old['from']}", "--out", new)
    assert result.returncode == 0, result.stdout + result.stderr
    result = run_script(ROOT / "tools" / "old_versions.py", "--run", new, "--prompts", old["rows"], cwd=ROOT)
    assert result.returncode == 0, result.stderr
    step = json.loads(result.stdout.splitlines()[-1])
    assert step["loss"] == pytest.approx(old["loss"], abs=1e-5)
    for name, values in old["gradient"].items():  # its norm, and its product with fixed numbers
        assert step["gradient"][name] == pytest.approx(values, rel=1e-4, abs=1e-5), name
    assert step["sampling"] == old["sampling"] | {"top_k": old["sampling"]["top_k"] or 0}  # None and 0: all tokens
    for name in ("optimizer", "prompts", "completions"):
        assert step[name] == old[name]
