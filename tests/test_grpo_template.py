"""templates/basic_grpo_training.py runs as it stands, and reads a table."""

import json
import re
import subprocess
import sys

import pytest
import torch
from conftest import ROOT, TINY_LM, load_module, run_script

TEMPLATE = ROOT / "templates" / "basic_grpo_training.py"


@pytest.mark.long
def test_runs_unchanged_and_learns(tmp_path):
    """In an empty folder."""
    done = run_script(TEMPLATE, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    said = re.findall(r"'([\d+]+=)', expected '(\d+)': '(.*)'", done.stdout)
    assert len(said) == 4
    rewards = [float(r) for r in re.findall(r"'rewards/correct/mean': '([\d.e-]+)'", done.stdout + done.stderr)]
    assert len(rewards) == 8 and rewards[-1] > rewards[0] + 0.1
    from transformers import AutoModelForCausalLM

    made = tmp_path / "runs" / "basic_grpo"
    assert json.loads((made / "adapter" / "adapter_config.json").read_text())["r"] == 16
    merged, base = (AutoModelForCausalLM.from_pretrained(f) for f in (made / "merged", TINY_LM))
    assert any(not torch.equal(a, b) for a, b in zip(merged.parameters(), base.parameters(), strict=True))


def test_a_flag_is_refused_before_anything_is_trained(tmp_path):
    command = [sys.executable, str(ROOT / "templates" / "basic_grpo_training.py"), "--help"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and "try editing the constants" in done.stderr and list(tmp_path.iterdir()) == []


def test_the_data_may_be_a_table(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    (tmp_path / "rows.csv").write_text("prompt,gold\n1+1=,two\n")
    template = load_module(TEMPLATE, "script_template")
    template.DATA = str(tmp_path / "rows.csv")
    assert template.make_dataset().to_list() == [{"prompt": "1+1=", "gold": "two"}]
