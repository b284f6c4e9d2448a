"""Runs of TRL moved to verl by --from_trl: what is read off their files, what it becomes, and what is refused."""

import dataclasses
import re

import pytest
from conftest import ROOT, load_script

from parts.rewards.extracts import extract, imports_trainer

verl = load_script("verl_train")
RUN = (ROOT / "evals" / "files" / "trl_run.py").read_text(encoding="utf-8")
SHORT = """
from trl import GRPOConfig, GRPOTrainer


def reward(completions, **kwargs):
    return [0.0] * len(completions)


trainer = GRPOTrainer({model}reward_funcs=reward, args=GRPOConfig({settings}), train_dataset=load_dataset({data}))
"""


def short(settings="max_steps=5", data='"json", data_files="rows.jsonl"', model="'m', ") -> str:
    return SHORT.format(settings=settings, data=data, model=model)


def read(tmp_path, settings="max_steps=10", flags=(), text=None, **changes):
    """Settings of ours for a file."""
    (tmp_path / "rows.jsonl").write_text('{"prompt": "1+1=", "answer": "2"}\n' * 96)
    (tmp_path / "run.py").write_text(text or short(settings, **changes))
    argv = [f"--from_trl={tmp_path}/run.py", f"--output_dir={tmp_path}/out", *flags]
    return verl.parse_config([*verl.trl_run(argv).flags, *argv])


LOADED = {
    "AutoModelForCausalLM.from_pretrained(NAME, dtype='bfloat16', device_map=None)": "",
    "AutoModelForCausalLM.from_pretrained(NAME).to('cuda')": "",
    "transformers.LlamaForCausalLM.from_pretrained(pretrained_model_name_or_path=NAME).cuda()": "",
    "AutoModelForCausalLM.from_pretrained(NAME, revision='v2')": "model_init_kwargs {'revision': ",
}


@pytest.mark.parametrize("load", LOADED)
def test_a_model_that_from_pretrained_loads_by_name_is_read(tmp_path, capsys, load):
    config = read(tmp_path, text="NAME = 'org/m'\n" + short(model=f"{load}, "))
    err = capsys.readouterr().err
    assert config.model == "org/m" and LOADED[load] in err and ("model_init_kwargs" in err) == bool(LOADED[load])


def test_a_trainer_derived_from_grpo_trainer_is_read_and_its_methods_are_named(tmp_path, capsys):
    own = "class Base(GRPOTrainer):\n    def _compute_loss(self, model, inputs): ...\n\n\nclass Mine(Base): ...\n"
    text = short("max_steps=10, temperature=0.9", model="'org/m', ")
    config = read(tmp_path, text=text.replace("trainer = GRPOTrainer", f"{own}trainer = Mine"))
    assert (config.model, config.temperature) == ("org/m", 0.9)
    assert "line 10: Base has its own `_compute_loss`, which has no equivalent here" in capsys.readouterr().err


def test_defaults_are_those_of_trl():
    from peft import LoraConfig
    from trl import GRPOConfig

    theirs = {f.name: f.default for f in dataclasses.fields(GRPOConfig) if f.default is not dataclasses.MISSING}
    ours = verl.trl_defaults("GRPOConfig")
    assert {name: ours[name] for name in theirs} == theirs
    assert {*ours} >= {name for name in verl.OF_THE_MACHINE if "." not in name} | verl.ONLY_GIVEN
    assert {name: getattr(LoraConfig(), name) for name in verl.PEFT_DEFAULTS} == verl.PEFT_DEFAULTS


# what may change nothing and be named in no note: the log, the hub, files, and the machine
QUIET = re.compile(
    r"(log|report|run_name|num_completions_to_print|disable_tqdm|push_to_hub|save_|eval_strategy|output_dir|resume_from|"
    r"dataloader_(num_workers|pin_memory)|per_device_eval|remove_unused|ddp_|fsdp|deepspeed|gradient_checkpointing|"
    r"tf32|use_cpu|vllm_(mode|enable_sleep|max_model))"
)
OTHER = {  # values that are not the default, where the default's kind does not say one
    "bf16": False,
    "lr_scheduler_type": "constant",
    "importance_sampling_level": "sequence",
    "scale_rewards": "none",
    "loss_type": "dr_grpo",
    "vllm_importance_sampling_mode": "token_mask",
    "vllm_importance_sampling_clip_min": 0.5,
    "vllm_importance_sampling_cap": 5.0,
    "generation_batch_size": 32,
    "steps_per_generation": 4,
    "reward_weights": [2.0],
    "model_init_kwargs": {"revision": "v1"},
    "chat_template_kwargs": {"enable_thinking": False},
    "max_steps": 10,
    "save_steps": 1,
    "eval_steps": 1,
}


def other_value(name: str, default):
    """A value of a GRPOConfig's field that is not its default."""
    if name in OTHER:
        return OTHER[name]
    if isinstance(default, bool):
        return not default
    if isinstance(default, int | float):
        return default * 2 or 1
    return 3 if default is None else f"{default}_2"


@pytest.mark.long
def test_no_setting_of_trl_is_lost_in_silence(tmp_path, capsys):
    """Each field, set to another value: an override differs, a note names it, or it is refused by its name."""
    from trl import GRPOConfig

    fixed = {"max_steps": -1, "beta": 0.1, "num_iterations": 2, "use_vllm": True, "bf16": True}
    layout = verl.Layout("/job", "/out", template=None, held_out=True, parameters=1e9, columns=[])

    def moved(**changes):
        settings = ", ".join(f"{name}={value!r}" for name, value in (fixed | changes).items())
        config = read(tmp_path, settings)
        overrides = [o.text() for o in verl.make_overrides(config, layout)]
        return (overrides, config.reward, config.mask_truncated), capsys.readouterr().err

    usual, _ = moved()
    defaults = {f.name: f.default for f in dataclasses.fields(GRPOConfig)} | fixed
    silent = []
    for name, default in defaults.items():
        try:
            job, notes = moved(**{name: other_value(name, None if default is dataclasses.MISSING else default)})
        except verl.UserError as error:
            job, notes = usual, str(error)
        if job == usual and not re.search(rf"\b{name}\b", notes):
            silent.append(name)
    assert [name for name in silent if not QUIET.match(name)] == []
    assert {"output_dir", "logging_steps", "vllm_mode"} <= {*silent}


def test_a_run_becomes_settings_of_ours(tmp_path, capsys):
    config = read(tmp_path, text=RUN, flags=["--gpus_per_node=8", f"--data={tmp_path}/rows.jsonl"])
    expected = {"algorithm": "grpo", "model": "Qwen/Qwen2.5-1.5B-Instruct", "group_size": 8, "minibatches": 1}
    expected |= {"batch_size": 16 * 2 * 8, "max_new_tokens": 512, "lr": 2e-6, "lr_schedule": "cosine"}
    expected |= {"kl_coef": 0.02, "kl_in": "loss", "kl_estimator": "k3_ratio", "loss": "clip", "advantage": "grpo"}
    expected |= {"clip_eps_low": 0.2, "clip_eps_high": 0.28, "dual_clip": 0.0, "aggregation": "token_mean"}
    expected |= {"temperature": 0.9, "steps": 200, "seed": 42, "missing_eos_penalty": 0.0}
    expected["reward"] = [f"{tmp_path}/out/trl_rewards.py:{name}" for name in ("correct*1.0", "brief*0.2")]
    assert {name: getattr(config, name) for name in expected} == expected
    said = capsys.readouterr().err
    assert "lr_scheduler_type linear: verl's FSDP has constant and cosine" in said and "TRL 1e-4" in said


VLLM = "max_steps=5, use_vllm=True, vllm_importance_sampling_mode='"


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ("max_steps=5, loss_type='grpo'", {"aggregation": "seq_mean_token_mean", "kl_coef": 0.0}),
        ("max_steps=5, loss_type='dr_grpo', scale_rewards=False", {"aggregation": "seq_mean_token_sum_norm"}),
        ("max_steps=5, scale_rewards='none'", {"advantage": "mean"}),
        ("max_steps=5, importance_sampling_level='sequence', epsilon=3e-4", {"loss": "gspo", "clip_eps_high": 3e-4}),
        ("max_steps=5, loss_type='cispo', epsilon_high=5.0", {"loss": "cispo", "clip_eps_low": 1, "clip_eps_high": 4}),
        ("max_steps=5, beta=0.1, num_iterations=2", {"kl_estimator": "k2", "ppo_epochs": 2}),
        ("max_steps=5, beta=0.1, use_bias_correction_kl=False", {"kl_estimator": "k3"}),
        ("max_steps=5, beta=0.1, steps_per_generation=4", {"kl_estimator": "k2", "minibatches": 4, "batch_size": 32}),
        ("max_steps=40, steps_per_generation=4, save_steps=8, warmup_steps=5", {"steps": 10, "save_every": 2}),
        ("max_steps=40, num_iterations=2, warmup_steps=4", {"steps": 20, "warmup_steps": 2}),  # optimizer steps there
        ("max_steps=5, delta=4.0, mask_truncated_completions=True", {"dual_clip": 4.0, "mask_truncated": True}),
        ("max_steps=50, warmup_steps=0.1", {"warmup_steps": 5}),
        ("max_steps=50, warmup_steps=7, lr_scheduler_type='constant'", {"warmup_steps": 7, "lr_schedule": "constant"}),
        ("num_train_epochs=2", {"steps": 192}),  # 96 rows, one prompt of 8 completions a step
        ("max_steps=5, use_vllm=True, vllm_mode='colocate'",
         {"mismatch": "seq_mask", "mismatch_low": 1e-9, "mismatch_high": 3.0}),
        (f"{VLLM}token_truncate', vllm_importance_sampling_clip_max=2.5", {"mismatch": "tis", "mismatch_high": 2.5}),
        (f"{VLLM}token_mask', vllm_importance_sampling_clip_min=0.5, vllm_importance_sampling_clip_max=None",
         {"mismatch": "icepop", "mismatch_low": 0.5, "mismatch_high": 1e9}),
        (f"{VLLM}sequence_truncate'", {"mismatch": "tis", "override": ["algorithm.rollout_correction.rollout_is=seque"
         "nce"]}),
        ("max_steps=5, use_vllm=True, vllm_importance_sampling_correction=False", {"mismatch": "none"}),
        ("max_steps=5, entropy_coef=0.01, bf16=False, save_total_limit=3",
         {"entropy_coef": 0.01, "precision": "fp32", "keep_checkpoints": 3}),
        ("max_steps=5, vllm_gpu_memory_utilization=0.45, vllm_tensor_parallel_size=2, bf16=False, fp16=True",
         {"vllm_memory": 0.45, "rollout_tensor_parallel": 2, "precision": "fp16"}),
        ("max_steps=5, shuffle_dataset=False, chat_template_kwargs={'enable_thinking': False}",
         {"override": ["data.shuffle=False"], "chat_template_kwargs": '{"enable_thinking": false}'}),
        ("max_steps=40, steps_per_generation=4, eval_steps=0.5", {"eval_every": 5, "gradient_checkpointing": False}),
    ],
)  # fmt: skip
def test_settings_by_what_they_mean(settings, expected, tmp_path):
    config = read(tmp_path, settings)
    assert {name: getattr(config, name) for name in expected} == expected
    assert config.data == str(tmp_path / "rows.jsonl") and config.lr == 1e-6


def test_flags_win_and_a_constant_or_dictionary_is_read(tmp_path, capsys):
    text = "STEPS = 30\nMORE = {'max_steps': STEPS, 'beta': 0.5}\n"
    text += short("**MORE, learning_rate=1e-5", model="MODEL, ") + "MODEL = 'm'\n"
    assert read(tmp_path, text=text).model == "m" and read(tmp_path, text=text).lora_rank == 0
    more = "r=4, lora_alpha=16, use_dora=True, rank_pattern={}, layers_to_transform=None"
    text = text.replace("reward_funcs=", f"peft_config=LoraConfig({more}), reward_funcs=")
    config = read(tmp_path, text=text, flags=["--lr=1e-3", "--model=n"])
    said = capsys.readouterr().err
    assert "LoraConfig(use_dora=True): has no equivalent" in said and said.count("LoraConfig(") == 1
    found = (config.steps, config.kl_coef, config.lr, config.model, config.lora_rank, config.lora_alpha)
    assert found == (30, 0.5, 1e-3, "n", 4, 16)
    assert read(tmp_path, text=text, flags=["--steps=3"]).steps == 3
    given = read(tmp_path, text=text, flags=[f"--reward={tmp_path}/mine.py:other"])
    assert given.reward == [f"{tmp_path}/mine.py:other"]


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"settings": "max_steps=5, learning_rate=args.lr"}, "got learning_rate=args.lr"),
        ({"settings": "max_steps=5, loss_type='luspo'"}, "got loss_type 'luspo'; expected one of grpo, dr_grpo"),
        ({"settings": "max_steps=5, top_p=0.9"}, "got top_p 0.9; expected none"),
        ({"model": "model=load(), "}, "whose name cannot be read; expected a text; try --model M"),
        ({"data": '"json", data_files="rows.jsonl").map(f'}, "line 9: `load_dataset('json', data_files='rows.jsonl')"),
        ({"settings": "max_steps=5, **more()"}, "got **more() in line 9"),
        ({"settings": "max_steps=5, reward_weights=[1.0, 2.0]"}, "got 2 reward_weights for 1 reward_funcs"),
        ({"text": "TrlParser((GRPOConfig, ModelConfig))\n"}, "try a copy with GRPOConfig(…) of what a parser gives it"),
        ({"model": "get_peft_model(AutoModelForCausalLM.from_pretrained('m')), "}, "whose name cannot be read"),
        ({"text": "x = (\n"}, "expected Python"),
        ({"text": "GRPOConfig(max_steps=1)\nGRPOTrainer('m', reward_funcs=[print, 'x'])\n", "flags": ["--data=x"]},
         "print"),
    ],
)  # fmt: skip
def test_what_cannot_be_moved_is_told(changes, told, tmp_path):
    with pytest.raises(verl.UserError) as caught:
        read(tmp_path, **changes)
    assert told in str(caught.value) and "expected" in str(caught.value)


@pytest.mark.parametrize(
    ("adapters", "rank"),
    [
        ("peft_config=None", 0),
        ("peft_config=LORA", 16),  # made and changed before
        ("peft_config=LoraConfig(r=16) if False else None", None),
        ("peft_config=get_peft_config(ModelConfig(use_peft=True, lora_r=16))", None),
        ("**more()", None),
    ],
)
def test_adapters_are_those_of_the_trainer_or_refused(adapters, rank, tmp_path, capsys):
    text = "LORA = LoraConfig(r=8)\nLORA.r = 16\n" + short(model=f"'m', {adapters}, ")
    if "*" in adapters:
        text = text.replace("'m', ", "").replace("reward_funcs=reward, ", "")
    if rank is None:
        with pytest.raises(verl.UserError, match=r"got (peft_config=|GRPOTrainer\(…\) of)"):
            read(tmp_path, text=text)
    else:
        assert read(tmp_path, text=text).lora_rank == rank
        assert ("LoraConfig in line 1 is not GRPOTrainer's peft_config" in capsys.readouterr().err) == (rank == 0)
    if "get_peft" in adapters:
        assert read(tmp_path, text=text, flags=["--lora_rank=4"]).lora_rank == 4


def test_a_setting_without_equal_is_said_and_a_missing_file_refused(tmp_path, capsys):
    read(tmp_path, "max_steps=5, top_entropy_quantile=0.2, warmup_ratio=0.1")
    said = capsys.readouterr().err
    assert "note: top_entropy_quantile 0.2: has no equivalent here\n" in said
    assert "note: warmup_ratio 0.1: has no equivalent here; warmup_steps = warmup_ratio x steps\n" in said
    assert verl.main([f"--from_trl={tmp_path}/no.py", "--print"]) == 2
    assert "expected the Python file of a run with GRPOTrainer" in capsys.readouterr().err


def test_a_file_of_settings_is_not_mixed_with_it(tmp_path, capsys):
    (tmp_path / "run.py").write_text(RUN)
    (tmp_path / "a.yaml").write_text("lr: 1.0e-5\n")
    (tmp_path / "b.yaml").write_text(f"from_trl: {tmp_path}/run.py\n")
    cases = {"expected one of the two": [f"--from_trl={tmp_path}/run.py", f"--config={tmp_path}/a.yaml"]}
    for message, flags in (cases | {"expected it as a flag": [f"--config={tmp_path}/b.yaml"]}).items():
        assert verl.main([*flags, "--print"]) == 2 and message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("before", "data", "expected"),
    [
        ("", "'openai/gsm8k', 'main', split='test'", "openai/gsm8k:main@test"),
        ("rows = load_dataset('me/sums')\n", "rows", ""),  # a name for what is no name of a data set
        ("", "'me/sums', revision='v1'", ""),
        ("", "'me/sums', split='train+test'", ""),
    ],
)
def test_what_a_data_set_is_called_here(before, data, expected, tmp_path):
    (tmp_path / "run.py").write_text(before + short(data=data))
    assert verl.TrlFile(str(tmp_path / "run.py")).data("train_dataset") == expected


@pytest.mark.parametrize(
    ("extra", "told"),
    [
        ("rows = load_dataset('a/b')\nrows = rows.map(f)\n", "without a data set that can be read off"),
        ("config = GRPOConfig(max_steps=5)\nif x:\n    config.beta = 1\nrows = load_dataset('a/b')\n",
         "beta=1 in line 3"),
        ("A = {}\nA.update({'beta': 1} if x else B)\nconfig = GRPOConfig(**A)\nB = {'beta': 2}\n", "beta=1 in line 2"),
        ("B = {'beta': 1}\nif x:\n    B['beta'] = 2\nA = {}\nA.update(B)\nconfig = GRPOConfig(**A)\n",
         "beta=2 in line 3"),
        ("lr = 1\nlr *= 2\nconfig = GRPOConfig(learning_rate=lr)\nrows = load_dataset('a/b')\n", "learning_rate=lr"),
        ("config = GRPOConfig(max_steps=5)\nother = GRPOConfig()\nrows = load_dataset('a/b')\n", "several GRPOConfig"),
    ],
)  # fmt: skip
def test_what_changes_in_the_file_is_not_taken_as_it_was_first(extra, told, tmp_path):
    text = extra if "GRPOConfig" in extra else extra + "config = GRPOConfig(max_steps=5)\n"
    text += "def r(completions): ...\nGRPOTrainer('m', reward_funcs=r, args=config, train_dataset=rows)\n"
    test_what_cannot_be_moved_is_told({"text": text}, told, tmp_path)


def test_processes_are_said_and_can_be_given(tmp_path, capsys):
    settings = "max_steps=5, per_device_train_batch_size=16, gradient_accumulation_steps=2"
    assert read(tmp_path, settings, flags=["--gpus_per_node=4"]).batch_size == 128
    said = capsys.readouterr().err
    assert "batch_size 128 = per_device_train_batch_size 16 x gradient_accumulation_steps 2 x processes 4" in said
    assert "--trl_processes N if it had others" in said
    assert read(tmp_path, settings, flags=["--gpus_per_node=4", "--trl_processes=1"]).batch_size == 32
    assert "x processes 1 of the TRL run\n" in capsys.readouterr().err
    assert verl.main(["--trl_processes=2", "--print"]) == 2


FILE = '''"""What it is."""
from __future__ import annotations

import functools, json
try:
    import numpy as np
except ImportError:
    np = None
from trl import GRPOTrainer

# what is paid
FULL = 1.0
UNUSED = 2.0
class Base:
    limit = FULL
def helper(text):
    return np.sum([len(text)])
@functools.cache
def reward(text):
    return Base.limit * helper(text)
def other():
    return json, GRPOTrainer
reward("at import")
if __name__ == "__main__":
    other()
'''


def test_an_extract_has_what_its_names_need():
    source = extract(FILE, ["reward"])
    parts = ["What it is", "annotations", "import functools, json", "np = None", "# what is paid\nFULL", "@functools"]
    assert [part for part in parts if part not in source] == []
    assert [part for part in ("UNUSED", "GRPOTrainer", "def other", "at import", "__main__") if part in source] == []
    scope = {}
    exec(compile(source, "extract", "exec"), scope)
    assert scope["reward"]("abc") == 3.0
    assert imports_trainer(FILE) == ["trl"] and imports_trainer(source) == []
