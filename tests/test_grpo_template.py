"""templates/basic_grpo_training.py runs as it stands, with two lines edited, and with its Unsloth block let in."""

import ast
import json
import re
import subprocess
import sys

import pytest
import torch
from conftest import ROOT, TINY_LM, load_module, run_script, save_random_model

TEMPLATE = ROOT / "templates" / "basic_grpo_training.py"
SOURCE = TEMPLATE.read_text(encoding="utf-8")
GSM8K = ROOT.parent / "shared" / "data" / "gsm8k_train.jsonl"


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


@pytest.mark.long
@pytest.mark.skipif(not GSM8K.exists(), reason="needs GSM8K at ../shared/data/gsm8k_train.jsonl")
def test_two_edited_lines_train_on_gsm8k(tmp_path, monkeypatch, capsys):
    """The lines MODEL and DATA name what to write there; here a local Qwen2 and GSM8K's file, and a run cut short."""
    edits = dict(re.findall(r'^(MODEL|DATA) = .*  # ("[^"]+")$', SOURCE, re.MULTILINE))
    assert edits == {"MODEL": '"Qwen/Qwen2.5-0.5B-Instruct"', "DATA": '"openai/gsm8k"'}
    head = tmp_path / "gsm8k.jsonl"
    head.write_text("".join(GSM8K.read_text(encoding="utf-8").splitlines(keepends=True)[:64]))
    model = save_random_model("qwen2", tmp_path / "qwen")
    config = json.loads((tmp_path / "qwen" / "config.json").read_text())
    (tmp_path / "qwen" / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 2048}))
    edited = re.sub(r"^MODEL = .*$", f"MODEL = {model!r}", SOURCE, flags=re.MULTILINE)
    edited = re.sub(r"^DATA = .*$", f"DATA = {str(head)!r}", edited, flags=re.MULTILINE)
    (tmp_path / "edited.py").write_text(edited)
    template = load_module(tmp_path / "edited.py", "script_edited_template")
    assert (template.PER_PASS, template.MAX_TOKENS, template.LEARNING_RATE) == (8, 512, 1e-5)
    template.STEPS, template.BATCH, template.MAX_TOKENS = 2, 16, 12  # what a CPU does in seconds
    template.OUTPUT = str(tmp_path / "out")
    torch.backends.cuda.enable_cudnn_sdp(True)
    rows = template.make_dataset()
    assert rows[0]["answer"] == "72" and [m["role"] for m in rows[0]["prompt"]] == ["system", "user"]
    assert "1,200" not in {row["answer"] for row in rows} and rows.column_names == ["answer", "prompt"]
    template.main()
    assert capsys.readouterr().out.count("expected") == 4 and not torch.backends.cuda.cudnn_sdp_enabled()


def test_the_data_may_be_a_table(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    (tmp_path / "rows.csv").write_text("prompt,gold\n1+1=,two\n")
    template = load_module(TEMPLATE, "script_template")
    template.DATA = str(tmp_path / "rows.csv")
    assert template.make_dataset().to_list() == [{"prompt": "1+1=", "gold": "two"}]


def test_rewards():
    template = load_module(TEMPLATE, "script_template")
    texts = ["<answer>1,200</answer>", "<answer>3</answer> or <answer>1200</answer>", "1200", "<answer>1200"]
    said = [[{"role": "assistant", "content": text}] for text in texts]
    assert template.correct(completions=said, answer=["1200"] * 4) == [1.0, 1.0, 0.0, 0.0]
    assert template.well_formed(completions=said) == [1.0, 0.0, 0.0, 0.0]
    brief = template.brief(completions=said, answer=["1200"] * 4, completion_ids=[[0] * 12] * 4)
    assert brief == [pytest.approx(0.75)] * 2 + [0.0, 0.0]


def test_the_unsloth_block_is_python_where_it_stands():
    """At most ten lines that load a model and give it adapters."""
    block = re.search(r"(?m)^    # Unsloth:.*\n((?:    # .*\n)+)", SOURCE)[0].splitlines()
    code = [re.sub(r"^    # ", "    ", line) for line in block[1:]]
    tree = ast.parse(SOURCE.replace("\n".join(block[1:]), "\n".join(code)))
    calls = {ast.unparse(n.func): {k.arg for k in n.keywords} for n in ast.walk(tree) if isinstance(n, ast.Call)}
    loads = "model_name max_seq_length dtype load_in_4bit fast_inference max_lora_rank gpu_memory_utilization"
    adapts = "r target_modules lora_alpha lora_dropout bias use_gradient_checkpointing random_state use_rslora"
    assert len(block) <= 10 and calls["FastLanguageModel.get_peft_model"] <= {*adapts.split()}  # Unsloth's GRPO guide
    assert calls["FastLanguageModel.from_pretrained"] <= {*loads.split()}
