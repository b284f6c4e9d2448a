"""scripts/migrate.py: old TRL scripts and verl jobs, edited in place so that the run stays the same."""

import ast
import json
import re
import shutil

import pytest
from conftest import ROOT, TINY_LM, load_script, run_script

migrate = load_script("migrate")
FILES = ROOT / "tests" / "files" / "migrate"


def version_of(name: str) -> str:
    package = "verl" if name.startswith("verl") else "trl"
    return f"{package}==" + re.search(r"_(\d+[.]\d+)", name)[1]


def migrated(tmp_path, capsys, file, *flags: str) -> tuple[int, dict, str]:
    """(Exit code, the table, the new text)."""
    out = tmp_path / f"new{file.suffix}"
    code = migrate.main([str(file), "--out", str(out), "--json", *flags])
    said = capsys.readouterr()
    assert said.out, said.err
    return code, json.loads(said.out), out.read_text(encoding="utf-8")


def settings_of(text: str, call: str) -> dict[str, str]:
    """Arguments of a call as source."""
    (node,) = [n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Call) and ast.unparse(n.func) == call]
    return {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}


# Written by hand from the old packages' sources: what the new script has to say. None: no longer there.
GRPO_014 = {
    "beta": "0.04",
    "bf16": "False",
    "generation_kwargs": "{'temperature': 0.9}",
    "gradient_accumulation_steps": "8",
    "gradient_checkpointing": "False",
    "loss_type": "'grpo'",
    "max_completion_length": "256",
    "per_device_train_batch_size": "8",
    "temperature": "1.0",
    "top_k": "50",
    "use_bias_correction_kl": "False",
}
EXPECTED = {
    "grpo_0.14_tldr.py": ("GRPOConfig", GRPO_014),
    "grpo_0.14_gsm8k.py": (
        "GRPOConfig",
        {"per_device_train_batch_size": "1 * GENERATIONS", "warmup_steps": "0.1", "warmup_ratio": None, "bf16": "True"}
        | {"max_prompt_length": None, "gradient_accumulation_steps": "4", "max_completion_length": "786"},
    ),
    "grpo_0.15_countdown.py": (
        "GRPOConfig",
        {"temperature": "1.0", "generation_kwargs": None, "loss_type": "'grpo'", "per_device_train_batch_size": "8"}
        | {"model_init_kwargs": "{'dtype': 'bfloat16', 'attn_implementation': 'sdpa'}"},
    ),
    "grpo_0.16_server.py": (
        "GRPOConfig",
        {"loss_type": "'bnpo'", "temperature": "0.9", "vllm_importance_sampling_correction": "False"}
        | {"vllm_mode": "'server'", "top_k": "50", "generation_kwargs": None, "max_completion_length": "1024"},
    ),
    "grpo_0.17_dr_grpo.py": ("GRPOConfig", {"loss_type": "'dr_grpo'", "beta": "0.0", "use_bias_correction_kl": None}),
    "grpo_0.17_attributes.py": ("GRPOConfig", {"loss_type": "'bnpo'", "temperature": "0.9", "beta": None}),
    "grpo_0.20_sequence.py": ("GRPOConfig", {"top_k": "0", "loss_type": "'bnpo'", "use_bias_correction_kl": None}),
    "grpo_0.22_liger.py": ("GRPOConfig", {"use_liger_kernel": "True", "train_sampling_strategy": "'random'"}),
    "grpo_0.24_default.py": ("GRPOConfig", {"loss_type": None, "use_bias_correction_kl": "False", "top_k": None}),
    "grpo_0.27_plain.py": ("GRPOConfig", {"warmup_steps": "0.05", "max_prompt_length": None}),
    "sft_0.11_imdb.py": (
        "SFTConfig",
        {"packing": "True", "packing_strategy": "'wrapped'", "max_length": "512", "dataset_text_field": "'question'"}
        | {"learning_rate": "5e-05", "eval_strategy": "'no'"},
    ),
    "sft_0.16_chat.py": ("SFTConfig", {"max_length": "2048", "packing_strategy": "'wrapped'", "max_seq_length": None}),
    "dpo_0.11_arguments.py": ("DPOConfig", {"beta": "0.2", "max_length": "128", "truncation_mode": "'keep_end'"}),
    "dpo_0.19_rpo.py": ("DPOConfig", {"loss_type": "['sigmoid', 'sft']", "loss_weights": "[1.0, 0.5]"}),
    "reward_0.15.py": ("RewardConfig", {"bf16": "False", "learning_rate": "1e-05"}),
    "rloo_0.23.py": ("RLOOConfig", {"beta": "0.1", "kl_coef": None, "num_generations": "4"}),
}


@pytest.mark.parametrize("name", EXPECTED)
def test_an_old_script_says_its_old_defaults(name, tmp_path, capsys):
    before = (FILES / name).read_bytes()
    code, table, text = migrated(tmp_path, capsys, FILES / name, "--from", version_of(name))
    call, expected = EXPECTED[name]
    settings = settings_of(text, call)
    assert {key: settings.get(key) for key in expected} == expected
    assert code == 0 and not table["not_expressible"]
    assert (FILES / name).read_bytes() == before


def test_what_was_migrated_does_not_change_again(tmp_path, capsys):
    for file in [p for p in FILES.iterdir() if p.suffix in (".py", ".sh", ".yaml")]:
        out = tmp_path / f"new_{file.name}"
        migrate.main([str(file), "--from", version_of(file.name), "--out", str(out)])
        capsys.readouterr()
        code = migrate.main([str(out), "--from", version_of(file.name)])
        is_as_it_was = out.read_bytes() == file.read_bytes()
        assert is_as_it_was or ("was migrated before" in capsys.readouterr().out and code == 0), file.name


def test_names_comments_and_order_stay(tmp_path, capsys):
    """Without the lines of the table, the new script is the old one."""
    _, table, text = migrated(tmp_path, capsys, FILES / "grpo_0.18_dict.py", "--from", "trl==0.18")
    assert '    output_dir="runs/dict",  # where it goes\n    use_cpu=False,\n' in text
    assert "    **settings,\n" in text and "def reward(completions, **kwargs):" in text
    assert {row["since"] for row in table["changes"]} >= {"0.19", "0.22", "1.10"}


def test_rewards_take_what_the_trainer_passes(tmp_path, capsys):
    """Once, where two trainers have one reward; also what a function makes; one of another file is named."""
    text = (FILES / "grpo_0.15_countdown.py").read_text()
    (tmp_path / "old.py").write_text(
        "from mine import score\n" + text + "rewards = [score]\n" + text[text.index("trainer = ") :]
    )
    text = (tmp_path / "old.py").read_text().replace("reward_funcs=[", "reward_funcs=[score, ", 1)
    (tmp_path / "old.py").write_text(text)
    _, table, text = migrated(tmp_path, capsys, tmp_path / "old.py", "--from", "trl==0.15")
    assert text.count("**kwargs") == 2 and "score is imported from mine" in "".join(table["notes"])
    assert "def format_reward(completions, answer, **kwargs):" in text
    assert "def length_reward(prompts, completions, **kwargs):" in text
    (tmp_path / "new.py").unlink()
    _, _, text = migrated(tmp_path, capsys, FILES / "grpo_0.19_factory.py", "--from", "trl==0.19")
    assert "def cosine(completions, answer, **kwargs):" in text and "lambda completions, **kwargs:" in text
    assert "def cosine_reward(max_length):" in text


ACTOR = "actor_rollout_ref.actor"
JOBS = {  # {job: what the new one says, and what it no longer says}
    "verl_0.2_gsm8k_ppo.sh": (
        f"algorithm.use_kl_in_reward=True {ACTOR}.entropy_coeff=0.001 data.seed=1 {ACTOR}.clip_ratio_c=1000000000.0 "
        f"{ACTOR}.ppo_micro_batch_size_per_gpu=2 critic.ppo_micro_batch_size_per_gpu=4 trainer.val_before_train=False "
        "critic.fsdp.param_offload=True data.filter_overlong_prompts=True",
        "grad_offload +trainer critic.model.fsdp_config",
    ),
    "verl_0.2_grpo.sh": (
        f"{ACTOR}.clip_ratio_low=0.1 {ACTOR}.clip_ratio_high=0.1",
        "use_kl_in_reward clip_ratio=",
    ),
    "verl_0.3_reward_file.sh": (
        "reward.custom_reward_function.path=my_reward.py reward.custom_reward_function.name=score "
        f"trainer.log_val_generations=5 {ACTOR}.checkpoint.save_contents=[model]",
        "filter_overlong_prompts",
    ),
    "verl_0.4_dapo_like.sh": (
        f"{ACTOR}.optim.clip_grad=0.5 reward.reward_manager.name=naive data.seed=1",
        "clip_ratio_c entropy_coeff reward_model.",
    ),
    "verl_0.4_arrays.sh": (
        f"{ACTOR}.optim.lr_scheduler_type=cosine actor_rollout_ref.rollout.name=vllm data.seed=7 "
        'actor_rollout_ref.model.path="${MODEL_PATH}"',
        "rollout.mode",
    ),
    "verl_0.5_ray_submit.sh": (
        "ray_kwargs.ray_init.num_cpus=32 \"trainer.logger=['console','wandb']\" --no-wait",
        "+ray_init.",
    ),
    "verl_0.7_sandbox.sh": ("reward.sandbox_fusion.url=http://localhost:8080/run_code", "reward_model"),
}


@pytest.mark.parametrize("name", JOBS)
def test_a_job_says_its_old_defaults(name, tmp_path, capsys):
    code, table, text = migrated(tmp_path, capsys, FILES / name, "--from", version_of(name))
    there, gone = (words.split() for words in JOBS[name])
    assert [words for words in there if words not in text] == [] == [words for words in gone if words in text]
    assert code == 0 and not table["not_expressible"]


def test_a_yaml_of_verl_keeps_its_sections(tmp_path, capsys):
    import yaml

    _, _, text = migrated(tmp_path, capsys, FILES / "verl_0.3_job.yaml", "--from", "verl==0.3")
    settings = yaml.safe_load(text)
    assert settings["reward"] == {"custom_reward_function": {"path": "my_reward.py", "name": "score"}}
    actor = settings["actor_rollout_ref"]["actor"]
    assert (actor["ppo_micro_batch_size_per_gpu"], actor["clip_ratio_low"], actor["clip_ratio_high"]) == (4, 0.1, 0.1)
    assert "custom_reward_function" not in settings and "  # prompts" in text


IMPOSSIBLE = {
    "ppo_0.11.py": ["PPOTrainer", "scripts/ppo_train.py --lr 1.41e-05 --kl_coef 0.1"],
    "verl_0.3_variables.sh": ["use_kl_loss=$USE_KL"],
    "verl_0.4_recipe.sh": ["recipe.dapo.main_dapo"],
    "trl_0.14_recipe.yaml": ["max_prompt_length"],
}


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_what_has_no_equal_is_said(name, tmp_path, capsys):
    code, table, _ = migrated(tmp_path, capsys, FILES / name, "--from", version_of(name))
    said = json.dumps(table["not_expressible"])
    assert code == 3 and [words for words in IMPOSSIBLE[name] if words not in said] == []


SCRIPT = "from trl import GRPOConfig, GRPOTrainer\n"
UNSEEN = SCRIPT + 'cfg = load(open("cfg.yaml"))\nGRPOTrainer("m", print, args=GRPOConfig(**cfg))\n'


@pytest.mark.parametrize(
    ("text", "flags", "code", "said"),
    [
        (SCRIPT, ["--from", "trl==0.1"], 2, r"got --from trl==0.1; expected a version of trl==0.9 to 1.16"),
        (SCRIPT, ["--from", "torch==2"], 2, r"got --from 'torch==2'; expected trl==VERSION"),
        (SCRIPT + "x = (", [], 2, r"old.py, line 2: got '\(' was never closed; expected Python"),
        ("import torch\n", [], 2, "which imports nothing of TRL"),
        (SCRIPT + "GRPOConfig(loss_type='grpo')\n", ["--from", "trl==0.14"], 2, "which TRL|there since 0.17"),
        (SCRIPT + "GRPOConfig(beta=0.1, num_iterations=2, vllm_device='x')\n", [], 0, "trl 0.16 to 0.17 fit"),
        (
            UNSEEN,
            ["--from", "trl==0.14"],
            3,
            r"\*\*cfg: made at run time.*migrate.py FILE.yaml --config_class GRPOConfig",
        ),
        (
            UNSEEN,
            ["--from", "trl==0.14"],
            3,
            r"(?s)note: per_device_train_.*note: temperature: .*by hand",
        ),
        ("from trl.rewards import accuracy_reward\n", ["--from", "trl==1.2"], 0, "needs no change"),
        (SCRIPT + "GRPOConfig(use_adaptive_entropy=True, beta=0)\n", ["--from", "trl==1.16"], 0, "needs no change"),
    ],
)
def test_one_clear_line(text, flags, code, said, tmp_path, capsys):
    (tmp_path / "old.py").write_text(text)
    assert migrate.main([str(tmp_path / "old.py"), *flags]) == code
    captured = capsys.readouterr()
    assert re.search(said, captured.out + captured.err)


def test_the_version_is_found_by_a_pin_or_by_names(tmp_path, capsys):
    (tmp_path / "old.py").write_text("# pip install trl==0.14.0\n" + (FILES / "grpo_0.14_tldr.py").read_text())
    _, table, text = migrated(tmp_path, capsys, tmp_path / "old.py")
    assert (table["version"], table["found"]) == ("0.14", "pinned in old.py: trl==0.14")
    assert "trl==1.16" in text
    assert migrate.main([str(FILES / "grpo_0.14_tldr.py")]) == 2
    assert re.search(r"trl 0.14 to 1.16 fit.*\n.*loss_type: .*0.14-0.15: \"grpo\"", capsys.readouterr().err, re.S)


def test_a_notebook_keeps_its_magics(tmp_path, capsys):
    """Only lines of code change: outputs, metadata, magics, shell and help stay; a second time nothing changes."""
    script = (FILES / "grpo_0.14_tldr.py").read_text()
    cells = ["%%capture\n!pip install trl==0.14.0 \\\n  peft", "%cd /content\nrows = !ls\nn = %time 1 + 1\nn?\n?print"]
    cells += [script + "print('%d'\n      % 3)", "%%bash\necho $HOME"]
    output = {"output_type": "stream", "name": "stdout", "text": ["é\n"]}
    cell = {"cell_type": "code", "metadata": {"id": "a"}, "outputs": [output], "execution_count": 1}
    notebook = {"cells": [cell | {"source": c.splitlines(keepends=True)} for c in cells], "nbformat": 4}
    (tmp_path / "old.ipynb").write_text(json.dumps(notebook, indent=1, ensure_ascii=False), encoding="utf-8")
    code, table, text = migrated(tmp_path, capsys, tmp_path / "old.ipynb")
    changed = {row["line"].split(",")[0] for row in table["changes"]}
    assert (code, changed, table["found"]) == (0, {"cell 1", "cell 3"}, "pinned in old.ipynb: trl==0.14")
    new = json.loads(text)["cells"]
    assert [c | {"source": 0} for c in new] == [c | {"source": 0} for c in notebook["cells"]] and "é" in text
    sources = ["".join(c["source"]) for c in new]
    assert re.fullmatch(r"%%capture\n# Migrated .*\n!pip install trl==1.16.\* \\\n  peft", sources[0])
    assert sources[1::2] == cells[1::2] and "per_device_train_batch_size=8" in sources[2]
    assert migrate.main([str(tmp_path / "new.ipynb")]) == 0 and "was migrated before" in capsys.readouterr().out


def reported(tmp_path, capsys, text: str, version: str, code: int) -> tuple[str, str]:
    """(What has no equal, the new text) of a script."""
    (tmp_path / "old.py").write_text(text)
    got, table, new = migrated(tmp_path, capsys, tmp_path / "old.py", "--from", f"trl=={version}")
    assert got == code, table["not_expressible"]
    compile(new, "new.py", "exec")
    return json.dumps(table["not_expressible"]), new


GRPO = "from trl import GRPOConfig, GRPOTrainer\n"
TRAINED = "GRPOTrainer('m', print, args, rows).train()\n"
UNSLOTH = """from unsloth import FastLanguageModel
model, tokenizer = FastLanguageModel.from_pretrained("Q", max_seq_length=9, load_in_4bit=True)
model = FastLanguageModel.get_peft_model(model, r=8, lora_alpha=16)
"""
WITHOUT_EQUAL = {
    "unsloth": (
        UNSLOTH + GRPO + "args = GRPOConfig('o')\n" + TRAINED,
        ["unsloth replaces code of TRL", "BitsAndBytesConfig(load_in_4bit=True)", "peft_config=LoraConfig"],
    ),
    "name": ("from trl import GRPOConfig, PairRMJudge\nGRPOConfig('o')\n", ["PairRMJudge"]),
    "replace": (
        GRPO + "import dataclasses\nargs = dataclasses.replace(GRPOConfig('o'), beta=1)\n" + TRAINED,
        ["one call GRPOConfig", "prompts are cut to 512"],
    ),
    "branches": (
        GRPO + "if x:\n    args = GRPOConfig('o')\nelse:\n    args = GRPOConfig('o', max_prompt_length=9)\n" + TRAINED,
        ["one call GRPOConfig", "max_prompt_length=9"],
    ),
    "setattr": (
        GRPO + "args = GRPOConfig('o')\nfor k, v in x.items():\n    setattr(args, k, v)\n" + TRAINED,
        ["setattr(args, k, v)"],
    ),
    "item": (
        GRPO + "d = dict(output_dir='o')\nd.update(x)\nargs = GRPOConfig(**d)\n" + TRAINED,
        ["one dictionary with all settings"],
    ),
    "overridden": (
        GRPO + "class Mine(GRPOTrainer):\n    def compute_loss(self): ...\n"
        "Mine('m', print, GRPOConfig('o'), rows).train()\n",
        ["Mine.compute_loss"],
    ),
    "places": ("from trl import KTOConfig, KTOTrainer\nKTOTrainer(m, r, KTOConfig('o'), rows)\n", ["NAME=VALUE"]),
    "kto_pair": (
        "from trl import DPOConfig, DPOTrainer\nDPOTrainer(m, r, DPOConfig('o', loss_type='kto_pair'))\n",
        ["KTOTrainer, on unpaired rows"],
    ),
    "own config": (
        GRPO + "class Own(GRPOConfig):\n    beta: float = 0.5\nGRPOTrainer('m', print, Own('o'), rows).train()\n",
        ["Own('o')", "one call GRPOConfig"],
    ),
    "prompts of distillation": (
        "from trl.experimental.distillation import DistillationConfig as C, DistillationTrainer\n"
        "DistillationTrainer('m', 't', C('o', lmbda=1.0, loss_top_k=1, max_prompt_length=9))\n",
        ["max_prompt_length=9", "loss_top_k=1"],
    ),
    "a module that is gone": ("from trl.experimental.judges import HfPairwiseJudge\n", ["trl.experimental.judges"]),
    "a new name of other configs": (
        "from trl import OnlineDPOConfig\nOnlineDPOConfig('o', use_transformers_paged=True)\n",
        ["use_transformers_paged=True"],
    ),
    "judge": (
        "from trl import OnlineDPOConfig as C, OnlineDPOTrainer\nOnlineDPOTrainer(model='m', judge=j, args=C('o'))\n",
        ["a reward function that asks the judge"],
    ),
}


VERSIONS = {"unsloth": "0.14", "prompts of distillation": "1.5", "a module that is gone": "1.0"} | {
    "a new name of other configs": "0.24"
}


@pytest.mark.parametrize("name", WITHOUT_EQUAL)
def test_a_script_with_something_that_has_no_equal(name, tmp_path, capsys):
    text, words = WITHOUT_EQUAL[name]
    said, new = reported(tmp_path, capsys, text, VERSIONS.get(name, "0.17"), 3)
    assert [word for word in words if word not in said] == [] and "judge=" not in new


SAME = {  # {name: (script, what the new one says, what it no longer says)}
    "own trainer": (
        GRPO + "class Mine(GRPOTrainer):\n    pass\n"
        "Mine('m', print, GRPOConfig('o', max_prompt_length=300), rows).train()\n",
        ["\nclass MineWithCutPrompts(Mine):", "row[-300:]", "\nMineWithCutPrompts('m'"],
        ["max_prompt_length"],
    ),
    "inside a function": (
        "def main(a):\n    "
        + GRPO.strip()
        + "\n    args = GRPOConfig('o', max_prompt_length=a.n)\n    if a: "
        + TRAINED,
        [
            "    class GRPOTrainerWithCutPrompts(GRPOTrainer):",
            "row[-(a.n or 0):]",
            "    if a: GRPOTrainerWithCutPrompts(",
        ],
        ["max_prompt_length="],
    ),
    "shared dictionary": (
        GRPO + "d = dict(output_dir='o', max_prompt_length=64, evaluation_strategy='no')\n"
        "for args in (GRPOConfig(beta=0.1, **d), GRPOConfig(beta=0.2, **d)):\n    pass\nargs = GRPOConfig(**d)\n",
        ["d = dict(output_dir='o', eval_strategy='no')\n", "\n    beta=0.1, **d)"],
        ["max_prompt"],
    ),
    "merged dictionaries": (
        GRPO + "d = {'output_dir': 'o', 'max_prompt_length': 64}\nargs = GRPOConfig(**{**(d | {'beta': 0.1})})\n"
        "GRPOTrainer('m', print, args, rows)\n",
        ["d = {'output_dir': 'o'}\n", "row[-64:]"],
        ["beta=0.04"],
    ),
    "text without packing": (
        "from trl import SFTConfig, SFTTrainer\n"
        "SFTTrainer(model='m', args=SFTConfig('o'), packing=False, dataset_text_field='text', max_seq_length=9)\n",
        ["class SFTTrainerWithoutEndToken", "max_length=9", "completion_only_loss=False"],
        ["max_seq_length"],
    ),
    "adafactor off": (
        GRPO + "args = GRPOConfig(optim='adamw_8bit', output_dir='o', adafactor=False)\n" + TRAINED,
        ["optim='adamw_8bit'"],
        ["adafactor"],
    ),
    "adafactor off alone": (
        GRPO + "args = GRPOConfig('o', adafactor=False)\n" + TRAINED,
        ['optim="adamw_torch"'],
        ["adafactor"],
    ),
    "adafactor on": (GRPO + "args = GRPOConfig('o', adafactor=True)\n" + TRAINED, ['optim="adafactor"'], ["=True"]),
    "adafactor on beside optim": (
        GRPO + "args = GRPOConfig(optim='adamw_8bit', output_dir='o', adafactor=True)\n" + TRAINED,
        ['optim="adafactor"'],
        ["adamw", "adafactor=True"],
    ),
    "adafactor by a branch": (
        GRPO + "args = GRPOConfig('o', optim='sgd')\nif x:\n    args.adafactor = True\n" + TRAINED,
        ["optim='sgd'", '    args.optim = "adafactor"'],
        [],
    ),
    "model config": (
        "from trl import ModelConfig\nmodel_args = ModelConfig(torch_dtype='auto')\nprint(model_args.torch_dtype)\n",
        ["ModelConfig(dtype='auto')", "print(model_args.dtype)"],
        ["torch_dtype"],
    ),
    "no warmup steps": (
        GRPO + "args = GRPOConfig('o', warmup_steps=0, warmup_ratio=0.1)\n" + TRAINED,
        ["warmup_steps=0.1"],
        ["warmup_steps=0,", "ratio"],
    ),
    "two statements on a line": (
        GRPO
        + "args = GRPOConfig('o')\nargs.group_by_length = False; args.logging_dir = 'x'; args.seed = 7\n"
        + TRAINED,
        ["; pass; args.seed = 7"],
        ["logging_dir"],
    ),
    "flash": (
        GRPO + "from transformers import AutoModelForCausalLM as A\n"
        "m = A.from_pretrained('m', dtype='auto', use_flash_attention_2=True)\nargs = GRPOConfig('o')\n" + TRAINED,
        ['attn_implementation="flash_attention_2"'],
        ["use_flash"],
    ),
}


@pytest.mark.parametrize("name", SAME)
def test_a_script_of_another_form_is_the_same_run(name, tmp_path, capsys):
    text, there, gone = SAME[name]
    version = "0.12" if "packing" in name else "0.17"
    # settings of a dictionary without a trainer: nobody cuts the prompts
    _, new = reported(tmp_path, capsys, text, version, 3 if name == "shared dictionary" else 0)
    assert [words for words in there if words not in new] == [], new
    assert [words for words in gone if words in new] == [], new


def test_what_is_no_python_is_not_written(tmp_path, capsys):
    """A setting that the old file gives twice stays so."""
    (tmp_path / "old.py").write_text(GRPO + "args = GRPOConfig('o', seed=1, seed=2)\n" + TRAINED)
    code = migrate.main([str(tmp_path / "old.py"), "--from", "trl==0.17", "--out", str(tmp_path / "new.py")])
    said = capsys.readouterr().err
    assert code == 2 and re.search(r"repeated: seed \(.*old.py, line \d+\).*expected Python.*try", said)
    assert not (tmp_path / "new.py").exists()


def test_what_a_version_alone_decides(tmp_path, capsys):
    _, new = reported(tmp_path, capsys, GRPO + "args = GRPOConfig('o', use_vllm=x)\n" + TRAINED, "0.14", 0)
    assert settings_of(new, "GRPOConfig")["top_k"] == "0 if x else 50"
    text = "from trl import SFTConfig, SFTTrainer\nSFTTrainer('m', SFTConfig('o', dataset_text_field='text'))\n"
    for version, has_class in (("0.15", True), ("0.16", False)):  # 0.16.1 puts the end token behind each text
        (tmp_path / "new.py").unlink()
        assert ("WithoutEndToken" in reported(tmp_path, capsys, text, version, 0)[1]) is has_class
    (tmp_path / "old.yaml").write_text("output_dir: o\ndataset_text_field: text\nmax_seq_length: 9\n")
    code, table, text = migrated(tmp_path, capsys, tmp_path / "old.yaml", "--from", "trl==0.12")
    assert code == 3 and "texts got no end token" in json.dumps(table["not_expressible"])
    assert [entry["line"] for entry in table["not_expressible"]] == ["line 2"]
    assert "completion_only_loss: false\n" in text and "max_length: 9\n" in text
    (tmp_path / "new.yaml").unlink()
    (tmp_path / "old.yaml").write_text("temperature: 0.5\ngeneration_kwargs: {min_p: 0.1}\nnum_generations: many\n")
    code, table, text = migrated(tmp_path, capsys, tmp_path / "old.yaml", "--from", "trl==0.14")
    assert code == 3 and 'generation_kwargs: {"temperature": 0.5, "min_p": 0.1}\n' in text
    assert "per_device_train_batch_size" in json.dumps(table["not_expressible"])


def test_a_changed_line_names_the_old_packages_source(tmp_path, capsys):
    _, table, _ = migrated(tmp_path, capsys, FILES / "grpo_0.14_tldr.py", "--from", "trl==0.14")
    sources = {row["setting"].split("=")[0]: row["source"] for row in table["changes"]}
    assert sources["loss_type"] == "TRL 0.14.0 trl/trainer/grpo_trainer.py:512, and 0.15"
    assert sources["gradient_checkpointing"] == ""  # a default, which the signature shows
    assert any("left pads" in note for note in table["notes"])


def test_a_file_of_accelerate_is_named(tmp_path, capsys):
    (tmp_path / "zero3.yaml").write_text("distributed_type: DEEPSPEED\nnum_processes: 8\n")
    assert migrate.main([str(tmp_path / "zero3.yaml"), "--from", "trl==0.16"]) == 0
    assert "is accelerate's" in capsys.readouterr().out


@pytest.mark.long
@pytest.mark.parametrize(
    "name",
    ["grpo_0.14_gsm8k.py", "grpo_0.19_factory.py", "sft_0.13_formatting.py", "dpo_0.11_arguments.py", "gkd_0.15.py"],
)
def test_the_new_script_trains_one_step(name, tmp_path):
    shutil.copy(FILES / name, tmp_path)
    data = FILES / ("rows.jsonl" if name.startswith(("grpo", "dpo")) else "texts.jsonl")
    flags = ["--from", version_of(name), "--check", "--model", str(TINY_LM), "--data", str(data), "--json"]
    result = run_script("migrate", str(tmp_path / name), *flags)
    assert result.returncode == 0, result.stderr
    trial = json.loads(result.stdout)["trial"]
    read = {row["setting"]: row["read"] for row in trial["settings"]}
    assert trial["loss"] == trial["loss"] and read["gradient_checkpointing"] is False


@pytest.mark.parametrize(("version", "notes"), [("0.17", 3), ("0.25", 2), ("1.14", 1), ("1.15", 0)])
def test_what_no_setting_brings_back_is_noted(tmp_path, capsys, version, notes):
    """Shuffled micro-batches, a model split over GPUs, further end tokens: read in the releases' own files."""
    (tmp_path / "train.py").write_text(SCRIPT + "GRPOConfig(beta=0.0)\n")
    said = str(migrated(tmp_path, capsys, tmp_path / "train.py", "--from", f"trl=={version}")[1]["notes"])
    words = ("shuffles completions", "generation_config.eos_token_id", 'device_map "auto"')
    assert sum(word in said for word in words) == notes
