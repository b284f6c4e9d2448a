"""scripts/migrate.py on scripts of other authors: their forms, with the names of their settings, told in few lines.

What is expected is written by hand from the sources of the old versions; what exists today is asked of installed TRL.
"""

import ast
import dataclasses
import importlib
import inspect
import json
import re

import pytest
from conftest import ROOT, load_script

migrate = load_script("migrate")
PUBLIC = ROOT / "tests" / "files" / "migrate" / "public"
KEYS = (ROOT / "assets" / "verl_keys.txt").read_text(encoding="utf-8").splitlines()[1:]

# {script: (exit code, what the new one says, what is said to have no equal)}; "-x": the new script has no x.
TRL = {
    "grpo_0.14_foreign_trainer.py": (3, 'BitsAndBytesConfig(load_in_4bit=True, loss_type="grpo" -vllm_device', "1024"),
    "grpo_0.15_module_rewards.py": (
        0,
        "vllm_max_model_length limit=max_prompt_length",
        "",
    ),
    "grpo_0.19_unsloth_cells.py": (
        3,
        'loss_type="bnpo" warmup_steps=0.1',
        "unsloth vllm_sampling_params no GRPOConfig",
    ),
    "grpo_0.24_built_dict.py": (0, "limit=3072 trainer_clsWithCutPrompts(trainer_cls) -max_prompt_length", ""),
    "grpo_1.0_argparse.py": (0, "use_bias_correction_kl=False -**kwargs,", ""),
    "grpo_1.1_sleep.py": (0, "warmup_steps=0.05 vllm_importance_sampling_cap=3.0", ""),
    "sft_0.10_chat_format.py": (3, 'SFTConfig( packing_strategy="wrapped" max_length=3072', "setup_chat_format"),
    "sft_0.11_wrapper.py": (
        3,
        "formatting_func=lambda dtype=compute_dtype",
        "DataCollatorForCompletionOnlyLM max_length=args.max_seq_length",
    ),
    "sft_0.12_plain_arguments.py": (0, "WithoutEndToken( completion_only_loss=False dtype=torch.float16", ""),
    "sft_0.13_inline_config.py": (3, "4096 formatting_func=lambda", "DataCollatorForCompletionOnlyLM"),
    "reward_0.11_attributes.py": (3, "disable_dropout=False learning_rate=5e-05 max_length=None", "input_ids_chosen"),
    "kto_0.12_vision.py": (0, "max_length=512 gradient_checkpointing=False", ""),
    "orpo_0.11_yaml_section.py": (
        3,
        '**config["train_config"]',
        "no name in it is renamed bf16=False, learning_rate=5e-05,",
    ),
    "rloo_0.22_reward_model.py": (
        3,
        "num_generations=4 beta=0.1 reward_funcs=reward_len limit=512",
        "missing_eos_penalty",
    ),
    "ppo_0.13_four_models.py": (3, 'dtype="float16"', "PPOTrainer --ppo_epochs 5 --lr 5e-06"),
    "ppo_0.15_adapters.py": (3, 'dtype="bfloat16"', "--value_clip 0.5 --batch_size 8 total_episodes=1000"),
    "trl_0.9_handbook.yaml": (
        0,
        "max_length: 2048 eval_strategy: warmup_steps: 0.1 -max_seq_length dtype: bfloat16",
        "",
    ),
    "trl_0.17_hydra.yaml": (3, "top_k: 0 vllm_mode: -vllm_dtype", "max_prompt_length: 8192"),
    "grpo_0.15_magics.ipynb": (0, "%%capture !ls #@title beta=0.04 limit=max_prompt_length top_k=50 **kwargs):", ""),
    "grpo_0.15_subclass_parser.py": (3, "model_args.dtype dtype=torch_dtype limit=512", "args=training_args beta=0.04"),
    "grpo_0.16_config_function.py": (
        3,
        'warmup_steps=train["warmup_ratio"] top_k=50 -logging_dir',
        "config grpo_config.max_prompt_length",
    ),
    "grpo_0.19_dead_api.py": (3, 'dtype="float16" limit=MAX_PROMPT_LEN top_k=0 -wandb_log', "compute_loss"),
    "online_dpo_0.12_reward.py": (0, "trl.experimental.online_dpo reward_funcs=reward_model -reward_model=", ""),
    "online_dpo_0.17_judge_class.py": (
        3,
        "trl.experimental.online_dpo top_k=50 -judge=",
        "judge=HammingJudge() BasePairwiseJudge training_step",
    ),
    "reward_0.12_flags.py": (
        0,
        'disable_dropout=False max_length=script_args.seq_length eval_strategy="steps" -tokenizer=tokenizer,\n',
        "",
    ),
    "sft_0.11_streams.py": (3, "SFTConfig( BitsAndBytesConfig(load_in_8bit=True)", "ConstantLengthDataset"),
    "dpo_0.9_keywords.py": (3, "longest=1536 answer=1536 DPOConfig( -max_target", "DPODataCollatorWithPadding"),
    "dpo_0.20_losses.py": (3, "answer=512 limit=1024 use_liger_kernel=False -reference_free", "running mean"),
    "gkd_0.12_flags.py": (3, "trl.experimental.gkd args.use_4bit else", "beta=args.beta"),
}
ACTOR = "actor_rollout_ref.actor"
VERL = {
    "verl_0.2_fork_keys.sh": (3, "algorithm.use_kl_in_reward=True data.seed=1", "agent_grpo.n max_turns search_engine"),
    "verl_0.2_reward_model.sh": (0, "size_per_gpu=$((16 / ($N_GPUS * 1 / 1))) reward.reward_model.model_path=$RM", ""),
    "verl_0.3_two_nodes.sh": (
        3,
        f"{ACTOR}.loss_agg_mode=token-mean reward_manager.name=naive",
        "val_generations_to_log_to_txt",
    ),
    "verl_0.3_generation.sh": (3, "", "main_generation_server main_eval"),
    "verl_0.4_slurm.sh": (3, "reward.custom_reward_function.path=$REWARD_PATH -grad_offload", "a function of one row"),
    "verl_0.4_two_tokenizers.sh": (3, "reward.reward_model.enable=True -fsdp_config.param_offload", "input_tokenizer"),
    "verl_0.4_own_names.yaml": (3, "seed: 1", "less than one row algorithm.gigpo"),
    "verl_0.5_lora_dapo.sh": (0, "+reward.reward_kwargs.overlong_buffer_cfg.len=4096 -critic.model -reward_model.", ""),
    "verl_0.7_tools.sh": (0, "clip_ratio=", ""),
    "verl_0.2_search_agent.sh": (
        3,
        "use_kl_in_reward=True critic.ppo_micro_batch_size_per_gpu=2 -+trainer",
        "retriever.url max_turns n_agent",
    ),
    "verl_0.5_easyr1.yaml": (3, "-actor_rollout_ref", "EasyR1's"),
    "verl_0.5_vision_array.sh": (0, "+actor_rollout_ref.rollout.engine_kwargs.vllm. data.seed=1 -data.truncation", ""),
    "verl_0.7_docker.sh": (0, "reward.custom_reward_function.name=score -mode=sync", ""),
}


def migrated(tmp_path, capsys, name: str) -> tuple[int, dict, str]:
    package, version = ("verl" if name.startswith("verl") else "trl"), re.search(r"_(\d+[.]\d+)", name)[1]
    code = migrate.main(
        [str(PUBLIC / name), "--from", f"{package}=={version}", "--out", str(tmp_path / name), "--json"]
    )
    said = capsys.readouterr()
    assert said.out, said.err
    return code, json.loads(said.out), (tmp_path / name).read_text(encoding="utf-8")


def names_today(module: str, name: str) -> set[str]:
    """Names that a config or a trainer of installed TRL takes."""
    made = getattr(importlib.import_module(module), name)
    is_config = dataclasses.is_dataclass(made)
    return {f.name for f in dataclasses.fields(made)} if is_config else {*inspect.signature(made.__init__).parameters}


def check_names(text: str, said: str) -> None:
    """Every name of TRL, and every argument of its classes, is there today, or is said not to be."""
    tree, classes = ast.parse(text), {}
    for node in [
        n for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) and (n.module or "").split(".")[0] == "trl"
    ]:
        for alias in [alias for alias in node.names if alias.name not in said + "PPOConfig"]:
            assert hasattr(importlib.import_module(node.module), alias.name), (node.module, alias.name)
            if alias.name.endswith(("Config", "Trainer")):
                classes[alias.name] = node.module
    for call in [n for n in ast.walk(tree) if isinstance(n, ast.Call)]:
        name = re.sub("With(CutPrompts|CutRows|PlainPrompts|outEndToken)$", "", ast.unparse(call.func))
        given = {keyword.arg for keyword in call.keywords if keyword.arg}
        if name in classes and name != "ModelConfig":
            unknown = {argument for argument in given - names_today(classes[name], name) if argument not in said}
            assert not unknown, (name, unknown)


@pytest.mark.parametrize("name", [*TRL, *VERL])
def test_a_public_script_is_the_same_run_or_says_why_not(name, tmp_path, capsys):
    expected, there, said = (TRL | VERL)[name]
    code, table, text = migrated(tmp_path, capsys, name)
    assert code == (3 if table["not_expressible"] else 0)
    entries = [x for x in table["not_expressible"] if not x["setting"].endswith("token-mean")]  # verl's loss before 0.8
    lost = " ".join(f"{x['setting']} {x['why']} {x['nearest']}" for x in entries)
    words = [word for word in there.split(" ") if word]
    assert (3 if entries else 0) == expected, lost
    assert [w for w in words if not w.startswith("-") and w not in text] == []
    plain = "\n".join(line.partition("#")[0] for line in text.splitlines())
    assert [w for w in words if w.startswith("-") and w[1:] in plain] == []
    assert [w for w in said.split(" ") if w not in lost] == []
    if name.endswith(".py") and "scripts/ppo_train.py --advantage" not in lost:
        check_names(text, lost)


def test_without_a_version_each_says_one_or_what_differs(capsys):
    """No version given: the script's own, or a range with the settings that differ; a version between two is named."""
    for name in ("grpo_0.24_built_dict.py", "dpo_0.20_losses.py", "verl_0.4_slurm.sh"):
        assert migrate.main([str(PUBLIC / name)]) == 2, name
        assert re.search(r"fit by the names used, and make different runs:\n  .*: .*\d", capsys.readouterr().err)
    assert migrate.main([str(PUBLIC / "rloo_0.22_reward_model.py")]) == 3
    assert "trl==0.24 (trl 0.22 to 0.24 fit by the names used, and make the same run)" in capsys.readouterr().out


SAME_FORMS = {
    "a config in each function": (
        "def a():\n    args = SFTConfig('o', max_seq_length=5)\n    SFTTrainer('m', args=args)\n"
        "def b():\n    args = GRPOConfig('o', max_prompt_length=7)\n    GRPOTrainer('m', print, args=args)\n",
        "max_length=5 limit=7",
    ),
    "an attribute of self": (
        "class T:\n    def __init__(self):\n        self.args = GRPOConfig('o')\n"
        "    def run(self):\n        GRPOTrainer('m', print, args=self.args)\n",
        "GRPOConfig('o', beta=0.04",
    ),
    "what a class is made with": (
        "class T:\n    def __init__(self, args):\n        self.args = args\n"
        "    def run(self):\n        GRPOTrainer('m', print, args=self.args)\nT(args=GRPOConfig('o')).run()\n",
        "GRPOConfig('o', beta=0.04",
    ),
    "a dictionary that grows": (
        "d = {'output_dir': 'o', 'warmup_ratio': 0.2}\nif x:\n    d['logging_dir'] = 9\n"
        "d['evaluation_strategy'] = 'no'\nGRPOTrainer('m', print, args=GRPOConfig(**d))\n",
        "'warmup_steps': 0.2 d['eval_strategy'] = 'no' pass",
    ),
    "a loop": (
        "for b in (1, 2):\n    args = GRPOConfig('o', beta=b)\n    GRPOTrainer('m', print, args=args)\n",
        'loss_type="bnpo" limit=512',
    ),
    "arguments of the trainer in a dictionary": (
        "k = dict(model='m', tokenizer=t)\nSFTTrainer(args=SFTConfig('o'), **k)\n",
        "dict(model='m', processing_class=t)",
    ),
}


@pytest.mark.parametrize("name", SAME_FORMS)
def test_settings_are_found_where_they_are_made(name, tmp_path, capsys):
    text, words = SAME_FORMS[name]
    (tmp_path / "old.py").write_text("from trl import GRPOConfig, GRPOTrainer, SFTConfig, SFTTrainer\n" + text)
    code = migrate.main([str(tmp_path / "old.py"), "--from", "trl==0.17", "--out", str(tmp_path / "new.py")])
    new = (tmp_path / "new.py").read_text()
    ast.parse(new)
    assert code == 0 and words.split(" ")[0] in new, capsys.readouterr().out
    assert [w for w in words.split(" ") if w not in new] == [], new


def test_a_name_that_depends_on_what_runs_before_is_not_guessed(tmp_path, capsys):
    head = "from trl import GRPOConfig, GRPOTrainer\n"
    two = "if x:\n    args = GRPOConfig('a')\nelse:\n    args = GRPOConfig('b')\n"
    later = "args = GRPOConfig('a')\nfor i in x:\n    GRPOTrainer('m', print, args=args)\n    args = change(args)\n"
    for text in (two + "GRPOTrainer('m', print, args=args)\n", later):
        (tmp_path / "old.py").write_text(head + text)
        assert migrate.main([str(tmp_path / "old.py"), "--from", "trl==0.17"]) == 3
        assert "args=args: made at run time" in capsys.readouterr().out


def test_keys_of_new_jobs_are_of_today(tmp_path, capsys):
    """Every key of a new job is in verl's configuration, stands below a free dictionary with a +, or is said."""
    names = {f"{where[1]}.{leaf}" for where in map(str.split, KEYS) for leaf in where[2:]}
    for name in [name for name in VERL if name.endswith(".sh") and VERL[name][1]]:
        _, table, text = migrated(tmp_path, capsys, name)
        said = " ".join(x["setting"] for x in table["not_expressible"]) + " ".join(table["notes"])
        for sign, key in re.findall(
            r"(?<=\s)['\"]?(\+{0,2})((?:actor_rollout_ref|critic|data|reward|algorithm)\.[\w.]+)=", text
        ):
            assert sign or key in names or key in said, (name, key)
