"""From our settings to verl's, without verl: the table, data, rewards, scripts, and clusters that are none."""

import asyncio
import dataclasses
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import types
from pathlib import Path

import numpy as np
import pytest
from conftest import ROOT, TINY_LM, TRAIN_DATA, load_module, load_script, write_lines
from verl_scripts import layout_of, rows_of, words_of

verl = load_script("verl_train")
ppo = load_script("ppo_train")
loader = load_script("data_loader")


def config_of(*flags: str):
    """The settings of a command line that prints."""
    return verl.parse_config(["--print", *flags])


def layout(**changes):
    return layout_of(verl, **changes)


def written(*flags: str, **changes) -> dict:
    """Key -> value of the overrides that a command line gives."""
    config = config_of(*flags)
    verl.check_expressible(config)
    return {o.key: o.value for o in verl.make_overrides(config, layout(**changes))}


def test_scores_are_so_coarse_that_equal_ones_add_up_exactly():
    for size, score in itertools.product((1, 3, 8, 256), (0.0, 1.0, -0.5, 0.1, 1.2, -0.7, 123.456, 1e-8)):
        rounded = verl.exact_in_means(score, size)
        assert abs(rounded - score) <= abs(score) * 2.0**-15
        assert [*np.cumsum([np.float32(rounded)] * size)] == [n * rounded for n in range(1, size + 1)]


@pytest.fixture
def told(capsys):
    """Calls the launcher's main with flags, in this process: a process of its own takes a second to import."""

    def call(*flags, code=None):
        returncode = verl.main([*map(str, flags)])
        captured = capsys.readouterr()
        assert code in (None, returncode), captured.err
        return types.SimpleNamespace(returncode=returncode, stdout=captured.out, stderr=captured.err)

    return call


# ------------------------------------------------------------------------------------------------ the table
def test_settings_that_both_programs_have_are_alike():
    """A few are declared in both, with words of their own."""
    ours = {f.name: (f.type, f.default, f.metadata["positive"]) for f in dataclasses.fields(verl.Config)}
    for f in dataclasses.fields(ppo.Config):
        assert ours[f.name] == (f.type, f.default, f.metadata["positive"]), f.name


VARIANTS = "--lora_rank=8 --sample_every=0|--mismatch=icepop --offload=all --resume|--mismatch=tis --dynamic_sampling"
VARIANTS += "|--kl_coef=0.1 --kl_in=loss --kl_estimator=k2|--aggregation=fixed_length --norm_length=64"
VARIANTS = [flags.split() for flags in VARIANTS.split("|")]
VARIANTS.append(["--environment", "own.py:Game", "--chat_template_kwargs", '{"enable_thinking": false}'])
# settings that decide an override of another one, with a value that shows it; two act through the job's chat template
BESIDE = {"minibatches": 2, "kl_in": "loss", "mismatch_low": 0.25, "critic_model": "other"}
THROUGH_TEMPLATE = {"chat", "chat_template"}
ELSEWHERE = set(  # in the job's files, in what is computed before it, or what to do with it
    "algorithm hardware eval_rows hold_out reward_timeout reward_concurrency reward_retries max_turns tool_timeout "
    "tool_characters tool_format kl_horizon sample_every allow_overlap override overrides "
    "from_trl trl_processes data_source ship print check run export".split()
)


def test_every_setting_becomes_an_override_or_is_refused_or_explained():
    lines = [[f"--algorithm={preset}"] for preset in verl.PRESETS] + VARIANTS
    made = [verl.make_overrides(config_of(*flags), layout()) for flags in lines]
    assert [finding for overrides in made for finding in verl.name_findings(overrides)] == []
    sources = {o.source for overrides in made for o in overrides}
    rows = [*sources, *verl.FIXED, *verl.IDLE_IN_VERL, *ELSEWHERE]
    fields = {f.name for f in dataclasses.fields(verl.Config)}
    assert len({*rows}) == len(rows) and fields - {*rows} <= {*BESIDE} | THROUGH_TEMPLATE
    for name, value in BESIDE.items():
        flags = ["--mismatch=icepop", "--kl_coef=0.1", "--kl_in=reward", f"--{name}={value}"]
        assert written(*flags) != written(*flags[:3]), name


EXPECTED = [  # flags; overrides that they give, where @ is actor_rollout_ref and ! is trainer.v1.sampler.sampler_kwargs
    # of 128 completions in groups of 8, 16 prompts; a minibatch is counted in prompts too
    ("--algorithm grpo", "data.train_batch_size=16 @.actor.ppo_mini_batch_size=16 @.rollout.n=8 critic.enable=False "
     "@.actor.use_kl_loss=False algorithm.use_kl_in_reward=False @.actor.clip_ratio_c=1000000000.0"),
    ("--algorithm ppo", "algorithm.adv_estimator=gae critic.enable=True @.actor.clip_ratio_c=3.0 algorithm.lam=0.95 "
     "algorithm.use_kl_in_reward=True algorithm.kl_penalty=k1 algorithm.kl_ctrl.kl_coef=0.01 "
     "@.actor.use_kl_loss=False critic.loss_agg_mode=token-mean critic.cliprange_value=0.2"),
    ("--missing_eos_penalty 1", "+reward.reward_kwargs.missing_eos_penalty=1.0"),
    ("--precision bf16", "+@.actor.fsdp_config.mixed_precision.param_dtype=bf16 @.rollout.dtype=bfloat16 "
     "@.ref.fsdp_config.model_dtype=bf16 +@.ref.fsdp_config.mixed_precision.param_dtype=bf16"),
    ("--algorithm grpo --kl_coef 0.04", "@.actor.kl_loss_type=k3 @.actor.kl_loss_coef=0.04"),
    ("--algorithm grpo --kl_coef 0.04 --kl_estimator k3_ratio", "@.actor.kl_loss_type='k3+'"),  # one update: the same
    ("--algorithm dr_grpo --max_new_tokens 99", "algorithm.norm_adv_by_std_in_grpo=False @.actor.loss_scale_factor=99"),
    ("--algorithm dapo", "@.actor.clip_ratio_low=0.2 @.actor.clip_ratio_high=0.28 algorithm.filter_groups.enable=True "
     "+!.max_refills=3 +!.train_batch_size=16 +reward.reward_kwargs.overlong_share=0.2"),
    ("--aggregation fixed_length --norm_length 7", "@.actor.loss_agg_mode=seq-mean-token-sum-norm "
     "@.actor.loss_scale_factor=7"),
    # verl's actor trains from the step of this number on, counted from 1
    ("--critic_warmup_steps 3", "trainer.critic_warmup=4"),
    ("--vf_coef 0.5 --max_grad_norm 2", "critic.optim.clip_grad=4.0 @.actor.optim.clip_grad=2.0"),
    ("--value_clip 0", "critic.cliprange_value=1000000000.0"),
    ("--save_every 0 --eval_every 0 --steps 30", "trainer.save_freq=30 trainer.total_epochs=30 trainer.test_freq=30"),
    ("--mismatch auto --mismatch_high 3", "algorithm.rollout_correction.rollout_is=token "
     "algorithm.rollout_correction.rollout_is_threshold=3.0"),
    ("--mismatch seq_mask", "algorithm.rollout_correction.rollout_is=sequence"),
    ("--mismatch none", "algorithm.rollout_correction.rollout_is=null"),
    ("--lora_rank 8", "@.model.lora_rank=8 @.model.lora_alpha=16 @.rollout.load_format=safetensors"),
    ("--environment own.py:Game --max_turns 3", f"data.max_response_length={512 + 3 * 256}"),
    ("--environment own.py:Game --max_conversation_tokens 999", "data.max_response_length=999"),
    ("--offload optimizer", "@.actor.fsdp_config.optimizer_offload=True @.actor.fsdp_config.param_offload=False"),
]  # fmt: skip


def test_settings_become():
    for flags, expected in EXPECTED:
        texts = {o.text() for o in verl.make_overrides(config_of(*flags.split()), layout())}
        expected = expected.replace("@", "actor_rollout_ref").replace("!", "trainer.v1.sampler.sampler_kwargs")
        assert {*expected.split()} <= texts, flags


def test_ray_is_promised_the_cpus_that_it_waits_for():
    # task runner 1, controller 1, a storage unit 1 each, and 3 for the GPU
    for cpus, units, given in ((2, 1, 6), (8, 1, 8), (13, 8, 13), (12, 1, 12), (64, 8, 64)):
        found = written(cpus=cpus)
        assert found["transfer_queue.backend.SimpleStorage.num_data_storage_units"] == units, cpus
        assert found["ray_kwargs.ray_init.num_cpus"] == given >= 2 + units + 3


# ------------------------------------------------------------------------------------------------ what is refused
REFUSED = [
    ("--kl_target 0.1", "kl_target 0.1"),
    ("--mask_truncated", "mask_truncated True"),
    ("--advantage_std biased --algorithm grpo", "advantage_std biased"),
    ("--algorithm ppo --vf_coef 0", "vf_coef 0"),
    ("--lora_rank 8 --lora_alpha 0.5", "lora_alpha 0.5"),
    ("--algorithm grpo --kl_coef 0.04 --kl_estimator k3_ratio --ppo_epochs 2", "k3_ratio"),
    ("--algorithm sapo --aggregation token_mean", "seq_mean_token_mean"),
    ("--lr_schedule linear", "lr_schedule linear"),
    ("--algorithm grpo --precision fp32 --sequence_parallel 2", "fp32 with sequence_parallel 2"),
    ("--algorithm gdpo", "advantage gdpo"),
    ("--algorithm remax", "advantage remax"),
    ("--algorithm gspo --batch_size 16", "batch_size 16"),
    ("--check", "print, check"),
    ("--print false", "nothing to do"),
    ("--algorithm dr_grpo --advantage_eps 1e-4", "with advantage mean; expected advantage gdpo or grpo"),
]


def test_what_verl_cannot_express_is_an_error():
    for flags, part in REFUSED:
        with pytest.raises(verl.UserError, match=r"got .*expected") as caught:
            verl.check_expressible(config_of(*flags.split()))
        assert part in str(caught.value), flags


def test_an_override_that_verl_ignores_is_refused():
    for trap in (*verl.TRAPS, *verl.TODAY):
        name, _, value = trap.partition("=")
        for key in (name, f"{name}.x", f"+{name}.x"):
            with pytest.raises(verl.UserError, match="expected a key that verl"):
                verl.split_override(f"{key}={value or 1}")
    for text in ("trainer.save_freq_other=1", "trainer.balance_batch=True", "actor_rollout_ref.rollout.name=sglang"):
        assert verl.split_override(text) == ("", *text.split("="))


# ------------------------------------------------------------------------------------------------ written by hand
BY_NAME = [  # lines, and what is found
    ("data.train_batch_size=64\n+data.apply_chat_template_kwargs={enable_thinking:false}\n++data.anything=1", None),
    ("data.train_batchsize=64", "does not have; try data.train_batch_size"),
    ("+data.train_batch_size=64", "expected it without the +"),
    ("~actor_rollout_ref.actor.optim.lrr", "does not have; try actor_rollout_ref.actor.optim.lr"),
    ("actor_rollout_ref.actor.megatron.seed=1", "does not have; try model_engine=megatron"),
    ("model_engine=megatron\nactor_rollout_ref.actor.megatron.seed=1", None),
    ("data.val_files=['a b','c#d']  # a comment\ndata.train_file=['c#d']", "(…/o.txt, line 5)"),
    ("data.shuffle=True\n\ndata.seed=2", "data.seed in …/o.txt, line 2 and …/o.txt, line 6; expected it once"),
]


@pytest.mark.parametrize(("lines", "told"), BY_NAME)
def test_overrides_are_held_against_names_without_verl(tmp_path, capsys, lines, told):
    (tmp_path / "o.txt").write_text(f"# by hand\n  data.seed=1   # indented\n\n{lines}\n")
    code = verl.main(["--check", "--overrides", str(tmp_path / "o.txt")])
    said = capsys.readouterr()
    report = json.loads(said.out)
    findings = "".join(report["findings"]).replace(str(tmp_path), "…")
    assert code == (told is not None) == len(report["findings"]) and (told or "") in findings
    assert report["overrides"] == 1 + len([line for line in lines.split("\n") if line])
    assert "no values, as verl is not installed here" in report["checked"] and "setup-verl" in said.err


ASK_BASH = "printf '%s\\n' in place of `python3 -m verl.trainer.main_ppo`"
WRONG_FILES = [
    ("#!/bin/sh\npython3 -m verl.trainer.main_ppo data.seed=1", f"line 2: got 'python3 -m .*{re.escape(ASK_BASH)}"),
    ("--config-path=c\n--config-name=ppo_megatron_trainer.yaml\ndata.seed=1", "no flags; try model_engine=megatron"),
    ("data.seed=1 data.shuffle=False", "line 1: got 'data.seed=1 data.shuffle=False'; expected one KEY=VALUE per line"),
    ("# nothing", "without overrides; expected KEY=VALUE"),
    ("model_engine=veomni\ndata.seed=1", "got a Python without verl"),  # names of another engine
    (None, r"got --overrides o\.txt: "),
]


@pytest.mark.parametrize(("text", "message"), WRONG_FILES)
def test_files_that_hold_no_overrides(tmp_path, monkeypatch, capsys, text, message):
    monkeypatch.chdir(tmp_path)
    if text:
        Path("o.txt").write_text(text)
    assert verl.main(["--check", "--overrides", "o.txt"]) == 2
    assert re.search(message, capsys.readouterr().err)


def test_the_way_from_a_script_to_its_overrides_works(tmp_path, capsys):
    """The page's commands on a script of its kind: bash has arrays, arithmetic and quotes, and starts nothing."""
    script = """#!/usr/bin/env bash
SHORT=1024
ARGS=(algorithm.adv_estimator=grpo trainer.logger='["console"]' "trainer.project_name='a run'")
python3 -m verl.trainer.main_ppo "${ARGS[@]}" \\
  actor_rollout_ref.rollout.max_model_len=$((SHORT + 1)) "$@"
"""
    (tmp_path / "run.sh").write_text(script)
    page = (ROOT / "references" / "verl_quickstart.md").read_text(encoding="utf-8")
    commands = "\n".join(re.search(r"^(sed .*)\n(bash .*)$", page, re.MULTILINE).groups())
    subprocess.run(["bash", "-ec", commands], cwd=tmp_path, check=True)
    assert verl.main(["--check", "--overrides", str(tmp_path / "overrides.txt")]) == 0
    assert json.loads(capsys.readouterr().out)["overrides"] == 4
    assert "max_model_len=1025\n" in (tmp_path / "overrides.txt").read_text()


def findings_of(*texts: str) -> tuple[list[str], list[str]]:
    """(Overrides that are left for Hydra, findings) of lines."""
    keys = (text.partition("=") for text in texts)
    rest, found = verl.trap_findings([verl.Override(k, v, "o.txt", is_written=True) for k, _, v in keys])
    return [o.text() for o in rest], found


def test_old_and_silent_keys_are_named_with_todays():
    buffer = "reward_kwargs.overlong_buffer_cfg.enable"
    old = {"custom_reward_function.path=x.py": "reward.custom_reward_function.path"}
    old[f"+reward_model.{buffer}=True"] = f"+reward.{buffer}"
    rest, found = findings_of("data.seed=1", *old)
    assert rest == ["data.seed=1"] and [line.rpartition("try ")[2] for line in found] == [*old.values()]
    actor, bypass = "actor_rollout_ref.actor", "algorithm.rollout_correction.bypass_mode=True"
    one, low, high = f"{actor}.clip_ratio=0.2", f"{actor}.clip_ratio_low=0.1", f"{actor}.clip_ratio_high=0.2"
    for count, *texts in (  # beside both sides, clip_ratio may stand; the old trainer reads its keys
        (0, "actor_rollout_ref.rollout.mode=async", "actor_rollout_ref.rollout.name=vllm", "data.seed=1"),
        (1, one),
        (1, one, low),
        (0, one, low, high),
        (1, bypass),
        (0, bypass, "trainer.use_v1=False"),
        (0, "data.reward_fn_key=data_source"),  # which verl does
        (1, "data.reward_fn_key=source"),
    ):
        assert len(findings_of(*texts)[1]) == count, texts


@pytest.mark.parametrize(("held_out", "figures"), [(["1+1=", "5+5="], (2, 1)), ([], (0, None))])
def test_held_out_prompts_that_train_are_counted_in_the_jobs_settings(held_out, figures, tmp_path, capsys):
    for name, prompts in (("train", ["1+1=", "2+2="] * 4), ("eval", held_out)):
        write_lines(tmp_path / f"{name}.jsonl", [{"prompt": p, "answer": "2", "source": "sums"} for p in prompts])
    (tmp_path / "base").symlink_to(TINY_LM)
    flags = [f"--data={tmp_path}/train.jsonl", f"--output_dir={tmp_path}/o", f"--model={tmp_path}/base"]
    flags += [f"--eval_data={tmp_path}/eval.jsonl", "--data_source=openai/gsm8k"] if held_out else []
    verl.prepare_job(config_of(*flags, "--batch_size=8", "--reward", verl.EMBEDDED_SPECS[0]))
    errors, settings = capsys.readouterr().err, json.loads((tmp_path / "o" / "job" / "settings.json").read_text())
    assert (settings["held_out_rows"], settings.get("eval/trained_rows")) == figures
    assert ("1 of 2 evaluation prompts also occur in training" in errors) == (figures[1] == 1)
    assert f"warning: {8 + len(held_out)} prompts are strings" in errors  # none is counted twice
    for name in ("train", "val"):
        rows = rows_of(tmp_path / "o" / "job" / f"{name}.parquet")
        assert {row["data_source"] for row in rows} == {"openai/gsm8k" if held_out else "sums"}
        assert rows[0]["extra_info"]["source"] == "sums"


def test_an_override_of_the_user_takes_the_place_of_ours():
    found = written("--override", "data.seed=7", "--override", "+trainer.x=[a,b]", "--override", "data.shuffle=False")
    assert (found["data.seed"], found["+trainer.x"], found["data.shuffle"]) == ("7", "[a,b]", "False")
    config = config_of("--override", "reward.reward_kwargs.missing_eos_penalty=2")
    texts = [o.text() for o in verl.make_overrides(config, layout())]
    assert not [text for text in texts if text.startswith("+reward.reward_kwargs.missing")]
    with pytest.raises(verl.UserError, match="KEY=VALUE"):
        written("--override", "data.seed")


def test_hardware_stands_for_flags_and_others_win(tmp_path):
    file = f"--config={tmp_path}/a.yaml"
    (tmp_path / "a.yaml").write_text("hardware: 1x24GB\nprecision: fp16\n")
    for flags, expected in (
        (["--hardware=2x8x80GB"], (2, 8, "bf16", "none")),
        (["--hardware=8x80GB", "--precision=fp16"], (1, 8, "fp16", "none")),
        ([file], (1, 1, "fp16", "all")),
        ([file, "--hardware=8x80GB"], (1, 8, "bf16", "none")),
    ):
        config = verl.parse_config([*verl.hardware_flags(flags), *flags])
        found = (config.nodes, config.gpus_per_node, config.precision, config.offload)
        assert found == expected, flags
    for name in verl.HARDWARE:
        flags = ["--hardware", name, "--print", "--lr", "1e-6"]
        config = verl.parse_config([*verl.hardware_flags(flags), *flags])
        verl.check_expressible(config)
        assert verl.batch_findings(config) == []


# ------------------------------------------------------------------------------------------------ the script
@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Flags of a file of 128 prompts, the batch of a step."""
    path = tmp_path_factory.mktemp("data") / "prompts.jsonl"
    path.write_text("".join(TRAIN_DATA.read_text().splitlines(keepends=True)[:128]))
    return [f"--data={path}", f"--eval_data={path}", "--allow_overlap"]


def test_a_script_gives_verl_its_overrides_and_keeps_earlier_logs(told, tmp_path, data):
    out = tmp_path / "o'x y"
    flags = ["--hardware=8x80GB", "--algorithm=grpo", *data, f"--output_dir={out}", "--override=trainer.tota_epochs=1"]
    done = told("--print", *flags, code=0)
    assert "warning: key: got trainer.tota_epochs=1 (override), a key that" in done.stderr
    assert "verl" not in sys.modules or not hasattr(sys.modules["verl"], "trainer")
    job = layout(folder=f"{out}/job", output=str(out), cpus=os.cpu_count(), parameters=4e5)
    config = verl.parse_config(["--print", *verl.hardware_flags(flags), *flags])
    ours = [o.text() for o in verl.make_overrides(config, job)]
    text = (out / "job" / "run.sh").read_text()
    assert done.stdout == text
    lines = text[text.index("overrides=(") :].splitlines()
    names = [line.rpartition("  # ")[2].split(":")[0] for line in lines if "  # " in line]
    assert len(names) == len(set(names)) and "group_size" in names
    attention = ["+actor_rollout_ref.model.override_config.attn_implementation=sdpa"]
    attention.append("actor_rollout_ref.model.use_remove_padding=False")
    for name in ("metrics.jsonl", "metrics.2.jsonl", "metrics.3.jsonl"):
        words, metrics = words_of(out / "job" / "run.sh", tmp_path / "bin")
        assert words[:3] == ["-u", "-m", "verl.trainer.main_ppo"] and metrics == str(out / name)
        assert sorted(words[3:]) == sorted([*ours, *attention])
    assert "trainer.resume_mode=auto" in words  # a job that is requeued goes on


EAGER = "+actor_rollout_ref.model.override_config.attn_implementation=eager"


@pytest.mark.parametrize("flag", ["--precision=bf16", "--precision=fp32", f"--override={EAGER}"])
def test_attention_without_flash_attn_in_fp32_and_the_users(flag, tmp_path):
    """The actor gets an attention that works; fp32, which flash attention refuses, is decided before the run."""
    config, script = config_of("--algorithm=grpo", flag), tmp_path / "run.sh"
    job = layout(output=str(tmp_path / "o"))
    text = verl.script(config, job, verl.make_overrides(config, job))
    script.write_text(text)
    words, _ = words_of(script, tmp_path / "bin")
    sdpa = EAGER.replace("eager", "sdpa")
    expected = [EAGER] if "eager" in flag else [sdpa]
    assert [word for word in words if "attn_implementation" in word] == expected
    assert ("actor_rollout_ref.model.use_remove_padding=False" in words) == ("eager" not in flag)
    assert (f"\n  {sdpa}" in text) == ("fp32" in flag)


def test_without_verl_it_says_how_to_install_it(told, tmp_path):
    for action in ("--check", "--run"):
        done = told(action, "--output_dir", tmp_path / "out", code=2)
        assert "expected verl 0.9.1; try `make setup-verl`" in done.stderr
    assert not (tmp_path / "out").exists()


# ------------------------------------------------------------------------------------------------ data
ROWS = [
    {"prompt": [{"role": "user", "content": "1+1="}], "answer": "2", "n": 1, "tags": ["a", "b"], "split": "x"},
    {"prompt": [{"role": "user", "content": "1+2="}], "answer": "3", "n": 2.5, "source": "sums"},
    {"prompt": [{"role": "user", "content": "2+2="}], "answer": None, "big": 2**70, "meta": {"k": None}},
    {"prompt": [{"role": "user", "content": "code"}], "tests": {"inputs": ["1"], "outputs": ["2"]}, "index": 9},
]


def through_parquet(rows, tmp_path, column="prompt"):
    """Rows as verl's data set reads them back, and the columns of rewards."""
    made, columns = verl.verl_rows(rows, column)
    verl.write_parquet_file(made, tmp_path / "x.parquet")
    return rows_of(tmp_path / "x.parquet"), columns


def test_rows_keep_their_columns_through_parquet(tmp_path):
    rows, columns = through_parquet(ROWS, tmp_path)
    assert columns == ["answer", "n", "tags", "split", "source", "big", "meta", "tests", "index"]
    for row, before in zip(rows, ROWS, strict=True):
        assert set(row) == {"data_source", "prompt", "ability", "reward_model", "extra_info"}
        assert row["prompt"] == before["prompt"]
        found = {name: value for name, value in verl.row_columns(row).items() if value is not None}
        assert found == {name: value for name, value in before.items() if name != "prompt" and value is not None}
    assert [row["extra_info"]["index"] for row in rows] == [0, 1, 2, 3]
    assert [row["data_source"] for row in rows] == ["data", "sums", "data", "data"]
    assert [row["reward_model"]["ground_truth"] for row in rows[:3]] == ["2", "3", ""]


def test_a_file_of_the_data_loader_gives_the_same_columns(tmp_path):
    clashes = {"index": 9, "split": "x", "prompt_is_text": "p", "absent_columns": "a", "none": "n", "column:x": "c"}
    rows = [{**ROWS[0], **clashes}, {**ROWS[1], **clashes}]
    loader.write_rows(rows, tmp_path / "theirs.parquet", "verl")
    again, _ = verl.verl_rows(rows_of(tmp_path / "theirs.parquet"), "prompt")
    for row, before in zip(again, rows, strict=True):
        columns = {name: value for name, value in verl.row_columns(row).items() if value is not None}
        assert columns == {name: value for name, value in before.items() if name != "prompt"}


def test_a_foreign_file_in_verls_schema_gives_its_ground_truth_as_answer():
    foreign = {"data_source": "gsm8k", "prompt": ROWS[0]["prompt"], "ability": "math"}
    foreign |= {"extra_info": {"index": 3, "x": "y"}, "reward_model": {"style": "rule", "ground_truth": "72"}}
    rows, columns = verl.verl_rows([foreign], "prompt")
    assert rows[0]["reward_model"]["ground_truth"] == "72" and rows[0]["data_source"] == "gsm8k"
    assert verl.row_columns(rows[0]) == {"source": "gsm8k", "answer": "72", "ground_truth": "72", "x": "y"}
    assert set(columns) == {"source", "answer", "ground_truth", "x"}


def test_templates_give_our_token_ids(tmp_path):
    from transformers import AutoTokenizer

    tokenizer, plain = (AutoTokenizer.from_pretrained(TINY_LM) for _ in range(2))
    plain.chat_template = None
    plain.save_pretrained(tmp_path / "plain")
    turns = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
    text, chat = (verl.verl_rows([{"prompt": prompt}], "prompt")[0] for prompt in (" 1+1=\n", turns))
    assert verl.chat_template(str(TINY_LM), chat) is None
    assert verl.chat_template("Qwen/Qwen2.5-0.5B", chat) is None
    with pytest.raises(verl.UserError, match="both text prompts"):
        verl.chat_template(str(TINY_LM), text + chat)
    for model, rows, prompt in ((TINY_LM, text, " 1+1=\n"), (tmp_path / "plain", chat, turns)):
        template = verl.chat_template(str(model), rows)
        ids = tokenizer.apply_chat_template(rows[0]["prompt"], chat_template=template, add_generation_prompt=True)
        assert ids["input_ids"] == ppo.encode_prompt(plain, prompt)


BEGUN = json.dumps({"prompt": [{"role": "user", "content": "1+1="}, {"role": "assistant", "content": "So"}]})
COLUMN = "def f(completions, difficulty):\n    return [0.0] * len(completions)\n"
GROUPS = "def f(completions, **kwargs):\n    return [None] * len(completions)\n\n\nf.needs_group = True\n"
FAULTS = [  # lines of data, or None for a whole batch; a reward; flags; exit code; what is said
    # a command may be written before its data is there
    (['{"prompt": "a", "answer": "b"}'] * 3, "", "--print", 0, "got 3 rows; expected at least the 128 prompts"),
    (['{"prompt": "a", "answer": "b"}', "", BEGUN], "", "--print", 2, "d.jsonl:3: got a prompt that ends in an assist"),
    (None, COLUMN, "--print", 2, "reward f takes 'difficulty'"),
    (None, GROUPS, "--print --algorithm=grpo", 2, "got reward f, which compares the completions of a prompt"),
    (None, "", "--print --model=x/none", 2, "unknown size"),
    (None, "", "--print --model=x/none --lr=1e-6 --critic_lr=1e-5", 0, ""),
]


@pytest.mark.parametrize(("rows", "reward", "flags", "code", "said"), FAULTS)
def test_faults_of_rows_rewards_and_models_are_named(told, tmp_path, data, rows, reward, flags, code, said):
    (tmp_path / "d.jsonl").write_text("\n".join(rows or []))
    (tmp_path / "r.py").write_text(reward)
    spec = f"{tmp_path}/r.py:f" if reward else verl.EMBEDDED_SPECS[0]
    source = [f"--data={tmp_path}/d.jsonl"] if rows else data
    done = told(*flags.split(), *source, "--reward", spec, "--output_dir", tmp_path / "o", code=code)
    assert said in done.stderr


# ------------------------------------------------------------------------------------------------ rewards
REWARDS = """
import asyncio

from helper import SHARE


def right(prompts, completions, answer, **kwargs):
    return [None if a is None else float(a in c[0]["content"]) for a, c in zip(answer, completions)]


async def slow(prompts, completions, completion_ids, **kwargs):
    await asyncio.sleep(0.01)
    return [SHARE * len(ids) for ids in completion_ids]


def acc(prompts, completions, **kwargs):
    return [0.25] * len(completions)


def bad(prompts, completions, answer, **kwargs):
    if "boom" in [c[0]["content"] for c in completions]:
        raise ValueError("the judge is down")
    return [0.0] * len(completions)


def nan(prompts, completions, **kwargs):
    return [float("nan")] * len(completions)


def texts(prompts, completions, **kwargs):
    return [len(p + c) for p, c in zip(prompts, completions)]


class Both(list):
    weights = [1.0, 0.5]


both = Both([right, slow])
"""


@pytest.fixture
def rewards(tmp_path):
    """A folder with a reward file that needs another beside it."""
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "r.py").write_text(REWARDS)
    (tmp_path / "src" / "helper.py").write_text("SHARE = 0.125\n")
    return tmp_path / "src"


@pytest.fixture
def make_batcher(rewards, tmp_path, monkeypatch):
    """Writes the module of some reward specs, and loads its batcher."""
    monkeypatch.syspath_prepend(str(rewards))

    def make(*names, error_file=""):
        specs = [f"{rewards}/r.py:{name}" for name in names]
        path = verl.write_modules(tmp_path / "job", specs, ["answer"], error_file=error_file)
        for name in [n for n in sys.modules if n.startswith("verl_train_job")]:
            monkeypatch.delitem(sys.modules, name)
        return load_module(path, "verl_train_reward_under_test").batcher

    return make


def row_of(answer, text=False):
    """A row as verl hands it to a reward manager."""
    prompt = "1+1=" if text else [{"role": "user", "content": "1+1="}]
    row = verl.verl_rows([{"prompt": prompt, "answer": answer}], "prompt")[0][0]
    return row | {"raw_prompt": row["prompt"]}


def test_scores_are_the_weighted_sum_and_none_counts_nothing(make_batcher):
    batcher = make_batcher("right*2", "slow")
    for answer, expected in (
        ("2", {"score": 2 + 3 * 0.125, "acc": 1.0, "right": 1.0, "slow": 0.375}),
        ("9", {"score": 0.375, "acc": 0.0, "right": 0.0, "slow": 0.375}),
        (None, {"score": 0.375, "acc": 0.0, "right": 0.0, "slow": 0.375}),
    ):
        assert asyncio.run(batcher.score(row_of(answer), "it is 2", [5, 6, 7])) == expected
    expected = {"score": 2.625, "acc": 1.0, "right": 1.0, "slow": 0.375, "acc_2": 0.25}
    assert asyncio.run(make_batcher("both*2", "acc").score(row_of("2"), "it is 2", [5, 6, 7])) == expected


def test_text_prompts_come_as_text(make_batcher):
    assert asyncio.run(make_batcher("texts").score(row_of("2", text=True), "abc", []))["score"] == 7


@pytest.mark.parametrize(("name", "part"), [("bad", "raised ValueError: the judge is down"), ("nan", "got nan")])
def test_a_reward_that_fails_is_told_and_written_down(make_batcher, tmp_path, name, part, capsys):
    batcher = make_batcher(name, error_file=str(tmp_path / "error.txt"))
    with pytest.raises(RuntimeError, match="REWARD FAILED") as caught:
        asyncio.run(batcher.score(row_of("2"), "boom", []))
    assert type(caught.value) is RuntimeError and part in str(caught.value) and "'boom'" in str(caught.value)
    assert part in (tmp_path / "error.txt").read_text() and part in capsys.readouterr().err


def test_only_what_a_reward_imports_is_copied_and_what_it_lacks_is_a_finding(rewards, tmp_path):
    main = "import json\nfrom pkg import part\nfrom pkg.inner import deep\n\n\ndef pay(completions, **kwargs):\n"
    main += "    import lazy\n    return [part.ONE * deep.ONE * lazy.ONE] * len(completions)\n"
    needed = {"main.py": main, "lazy.py": "import second\n\nONE = second.ONE\n", "second.py": "ONE = 1.0\n"}
    needed |= {"pkg/__init__.py": "", "pkg/part.py": "from .sibling import ONE\n", "pkg/sibling.py": "ONE = 1.0\n"}
    needed |= {"pkg/inner/__init__.py": "", "pkg/inner/deep.py": "from ..sibling import ONE\n"}
    others = {"secrets_of_mine.py": "KEY = 'abc'\n", "pkg/unused.py": "x = 1\n", "json.py": "raise SystemExit\n"}
    (rewards / "pkg" / "inner").mkdir(parents=True)
    for name, text in (needed | others).items():
        (rewards / name).write_text(text)
    job, place = tmp_path / "job", tmp_path / "job" / "rewards_0"
    verl.write_modules(job, [f"{rewards}/main.py:pay"], [])
    assert {str(path.relative_to(place)) for path in place.rglob("*.py")} == {*needed}
    assert verl.try_job(job)[0] == []
    shutil.rmtree(place / "pkg")
    [finding] = verl.try_job(job)[0]
    assert "No module named 'pkg'" in finding and "try --ship" in finding
    both = [f"{rewards}/main.py:pay", f"{rewards}/r.py:right*2"]  # a second file of the same folder adds its own
    (tmp_path / "extra.bin").write_text("x")
    verl.write_modules(job, both, [], [str(tmp_path / "extra.bin")])
    assert {path.name for path in place.glob("*.*")} == {*"main.py lazy.py second.py r.py helper.py extra.bin".split()}
    with pytest.raises(verl.UserError, match="--ship"):
        verl.write_modules(job, both, [], [str(tmp_path / "none")])
    (rewards / "worse.py").write_text("def (\n")
    (rewards / "lazy.py").write_text("import worse\n")
    with pytest.raises(verl.UserError, match=r"worse\.py"):
        verl.write_modules(job, both, [])


WHOLE = """
import random


def lengths(completions):
    return [len(c[0]["content"]) for c in completions]


def shortest(completions, **kwargs):
    return [float(n == min(lengths(completions))) for n in lengths(completions)]


def noisy(completions, **kwargs):
    return [random.random() for _ in completions]


def rounding(completions, **kwargs):
    return [1.0 + 1e-5 * len(completions) for _ in completions]
"""


def test_rewards_that_need_the_whole_batch_are_found(tmp_path):
    names = "shortest noisy rounding".split()
    (tmp_path / "whole.py").write_text(WHOLE)
    verl.write_modules(tmp_path / "job", [f"{tmp_path}/whole.py:{name}" for name in names], ["answer"])
    prompts = [{"prompt": [{"role": "user", "content": f"{i}+1="}], "answer": str(i + 1)} for i in (1, 2)]
    verl.write_parquet_file(verl.verl_rows(prompts, "prompt")[0], tmp_path / "job" / "train.parquet")
    texts, found = verl.try_job(tmp_path / "job")
    assert [text.partition(":")[0] for text in texts] == ["reward shortest"]
    assert all("8 processes" in text and "grpo_train.py" in text for text in texts)
    assert (found["rows"], found["raised"]) == (2, "")


# ------------------------------------------------------------------------------------------------ sizes
def test_size_of_a_model():
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(TINY_LM)
    assert verl.count_parameters(config_of()) == sum(p.numel() for p in model.parameters())
    for name, size in (("Qwen/Qwen2.5-0.5B-Instruct", 0.5e9), ("x/y-500M", 5e8), ("x/none", None), ("a/Phi-3.5", None)):
        assert verl.count_parameters(config_of("--model", name)) == size


BATCHES = [
    ("--micro_batch_tokens 100", "expected 768, a sequence"),
    ("--gpus_per_node 8 --batch_size 12 --group_size 1", "12 completions in a minibatch for 8 replicas"),
    ("--algorithm gmpo", "loss gmpo, micro_batch_tokens 8192; expected 24576"),
    ("--gpus_per_node 4 --sequence_parallel 3", "sequence_parallel 3 for 4 GPUs; expected a divisor"),
    ("--gpus_per_node 2 --rollout_tensor_parallel 4", "rollout_tensor_parallel 4 for 2 GPUs; expected a divisor"),
    ("--gpus_per_node 4 --rollout_tensor_parallel 4 --sequence_parallel 2", ""),
]


def test_what_does_not_divide_is_found():
    for flags, part in BATCHES:
        findings = verl.batch_findings(config_of(*flags.split()))
        assert any(part in finding for finding in findings) if part else findings == [], flags


# ------------------------------------------------------------------------------------------------ a run
FAKE_VERL = """
import os, signal, sys, time
from pathlib import Path

print("address", os.environ.get("RAY_ADDRESS"), [a for a in sys.argv if "ray_init.address" in a])

out = Path(next(a for a in sys.argv if a.startswith("trainer.default_local_dir=")).partition("=")[2]).parent
what = os.environ["FAKE"]
print("hello from verl")
if what == "sleep":
    (out / "ready").touch()
    time.sleep(3600)  # the signal ends it
if what == "reward":
    (out / "reward_error.txt").write_text("REWARD FAILED: row 0")
    sys.exit(1)
if what == "fail":
    sys.exit(7)
if what == "done":
    folder = out / "checkpoints" / "global_step_3" / "actor" / "huggingface"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
"""


@pytest.fixture
def fake_verl(tmp_path, monkeypatch):
    """A verl that does as it is told, in place of the real one."""
    package = tmp_path / "lib" / "verl" / "trainer"
    package.mkdir(parents=True)
    for folder in (package, package.parent):
        (folder / "__init__.py").touch()
    (package / "main_ppo.py").write_text(FAKE_VERL)
    monkeypatch.setattr(verl, "need_verl", lambda: None)
    monkeypatch.setattr(verl, "missing_engine", lambda name: False)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "lib"))
    return tmp_path / "out"


ENDS = [  # what verl does, what the job's files are found to lack; exit code, what is said
    ("done", [], 0, ""),
    ("fail", [], 1, "code 7"),
    ("reward", [], 3, "REWARD FAILED: row 0"),
    ("early", [], 1, "without the check"),
    ("done", ["reward shortest: got scores that depend on the others"], 2, "error: reward shortest: got scores"),
]


@pytest.mark.parametrize(("what", "findings", "code", "part"), ENDS)
def test_exit_code_of_a_run_that_has_a_ray_of_its_own(fake_verl, monkeypatch, data, what, findings, code, part, capsys):
    monkeypatch.setattr(verl, "job_findings", lambda *_: findings)
    monkeypatch.setenv("FAKE", what)
    monkeypatch.setenv("RAY_ADDRESS", "10.9.9.9:6379")
    flags = ["--run", "--algorithm=grpo", "--steps=3", *data, "--micro_batch_tokens=99", f"--override={EAGER}"]
    assert verl.main([*flags, f"--output_dir={fake_verl}"]) == code
    captured, log = capsys.readouterr(), fake_verl / "verl.log"
    assert part in captured.err and log.exists() == (not findings)
    assert "warning: batch: got micro_batch_tokens 99" in captured.err  # as --print says it
    assert (fake_verl / "final" / "config.json").exists() == (code == 0)
    if not findings:
        assert "hello from verl" in log.read_text()
        assert "address None ['+ray_kwargs.ray_init.address=local']" in log.read_text()
        assert "note: RAY_ADDRESS 10.9.9.9:6379 is ignored for" in captured.err
    if code == 0:
        assert json.loads(captured.out)["final"] == str(fake_verl / "final")


def test_final_names_the_dtype_of_its_weights(tmp_path):
    import torch
    from safetensors.torch import save_file

    for dtype, name in ((torch.float32, "float32"), (torch.bfloat16, "bfloat16")):
        save_file({"w": torch.ones(2, dtype=dtype)}, tmp_path / "model.safetensors")
        (tmp_path / "config.json").write_text('{"dtype": "bfloat16", "hidden_size": 3}')
        verl.name_dtype(tmp_path)
        assert json.loads((tmp_path / "config.json").read_text()) == {"dtype": name, "hidden_size": 3}


def test_a_signal_ends_the_run_and_its_children(fake_verl, monkeypatch, data, capsys):
    monkeypatch.setattr(verl, "job_findings", lambda *_: [])
    monkeypatch.setenv("FAKE", "sleep")
    ready = fake_verl / "ready"

    def send():
        while not ready.exists():
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=send).start()
    flags = ["--run", "--algorithm=grpo", "--steps=3", *data, f"--override={EAGER}", f"--output_dir={fake_verl}"]
    assert verl.main(flags) == 128 + signal.SIGTERM
    assert "--resume" in capsys.readouterr().err


# ------------------------------------------------------------------------------------------------ clusters
NO_RAY = ["ray_kwargs.ray_init.num_cpus=null", "++ray_kwargs.ray_init.address=null"]  # RAY_ADDRESS names it


def test_a_folder_as_working_directory_of_a_submitted_job_joins_its_ray(tmp_path, data, monkeypatch):
    assert verl.main(["--print", "--algorithm=grpo", *data, f"--output_dir={tmp_path}/out"]) == 0
    job = (tmp_path / "out" / "job").rename(tmp_path / "copy")
    monkeypatch.setenv("RAY_JOB_CONFIG_JSON_ENV_VAR", "{}")
    for here, place, joins in ((job, ".", True), (tmp_path, job, False)):
        monkeypatch.chdir(here)
        words, _ = words_of(job / "run.sh", tmp_path / "bin")
        assert {f"data.train_files={place}/train.parquet", f"data.val_files={place}/val.parquet"} <= {*words}
        assert (words[-5:-3] == NO_RAY) == joins, words[-5:]


def test_another_runs_folder_is_refused(tmp_path):
    (tmp_path / "checkpoints" / "global_step_5").mkdir(parents=True)
    with pytest.raises(verl.UserError, match="holds a run"):
        verl.check_output(config_of("--output_dir", str(tmp_path)))
    verl.check_output(config_of("--output_dir", str(tmp_path), "--resume"))


def test_config_line_in_the_script_holds_no_newline():
    override = verl.Override("data.prompt_key", "prompt", "prompt_column")
    text = verl.script(config_of("--prompt_column", "a\nb"), layout(), [override])
    assert "  data.prompt_key=prompt  # prompt_column: a b\n" in text
