"""scripts/migrate.py: old TRL scripts and verl jobs, edited in place so that the run stays the same.

What is expected is written by hand from the sources of the old versions; what exists today is asked of installed TRL.
"""

# The tables below write what a new file, and the report on it, must say as words:
#   x y   both are there; in SCRIPTS and ONE_SETTING blanks separate words
#   x|y   both are there; in FORMS, JOBS and YAMLS a word may have blanks, and bars separate them
#   -x    x is not there; --x is a flag, and must be
#   !x    x is among what the report says to have no equal today (FORMS, YAMLS)
#   @.x   actor_rollout_ref.actor.x (SCRIPTS)
# In SCRIPTS a word may also be there without the blanks of the new file, and one in a comment counts only if a word has
# a #. CLEAR_LINES has regular expressions.

import ast
import dataclasses
import importlib
import inspect
import json
import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from conftest import ROOT, TINY_LM, load_script, run_script
from datasets import Dataset

migrate = load_script("migrate")
FILES = ROOT / "tests" / "files" / "migrate"
PUBLIC = FILES / "public"
KEYS = (ROOT / "assets" / "verl_keys.txt").read_text(encoding="utf-8").splitlines()[1:]


def version_of(name: str) -> str:
    package = "verl" if name.startswith("verl") else "trl"
    return f"{package}==" + re.search(r"_(\d+[.]\d+)", name)[1]


def migrated(tmp_path, capsys, file, *flags: str) -> tuple[int, dict, str]:
    """(Exit code, the table, the new text)."""
    out = tmp_path / f"new{file.suffix}"
    out.unlink(missing_ok=True)
    code = migrate.main([str(file), "--out", str(out), "--json", *flags])
    said = capsys.readouterr()
    assert said.out, said.err
    return code, json.loads(said.out), out.read_text(encoding="utf-8")


def written(tmp_path, capsys, name: str, text: str, version: str) -> tuple[int, dict, str]:
    """The same for a file of a text."""
    (tmp_path / name).write_text(text)
    return migrated(tmp_path, capsys, tmp_path / name, "--from", version)


def missing(words: list[str], text: str) -> list[str]:
    """The words that a text has not, and "-x" of those that it has and should not."""
    return [word for word in words if (word[1:] in text if is_not(word) else word not in text)]


def is_not(word: str) -> bool:
    return word[0] == "-" != word[1]


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


ACTOR = "actor_rollout_ref.actor"
# {script: (exit code, what the new one says, what is said to have no equal)}
SCRIPTS = {
    "grpo_0.14_tldr.py": (0, 'beta=0.04, bf16=False, generation_kwargs={"temperature":0.9}, '
     'gradient_accumulation_steps=8, gradient_checkpointing=False, loss_type="grpo", max_completion_length=256, '
     "per_device_train_batch_size=8, temperature=1.0, top_k=50, use_bias_correction_kl=False,", ""),
    "grpo_0.14_gsm8k.py": (0, "per_device_train_batch_size=1*GENERATIONS, warmup_steps=0.1, -warmup_ratio bf16=True, "
     "-max_prompt_length gradient_accumulation_steps=4, max_completion_length=786,", ""),
    "grpo_0.15_countdown.py": (0, 'temperature=1.0, -generation_kwargs loss_type="grpo", '
     'per_device_train_batch_size=8, model_init_kwargs={"dtype":"bfloat16","attn_implementation":"sdpa"},', ""),
    "grpo_0.16_server.py": (0, 'loss_type="bnpo", temperature=0.9, vllm_importance_sampling_correction=False, '
     'vllm_mode="server", top_k=50, -generation_kwargs max_completion_length=1024,', ""),
    "grpo_0.17_dr_grpo.py": (0, 'loss_type="dr_grpo", beta=0.0, -use_bias_correction_kl', ""),
    "grpo_0.17_attributes.py": (0, 'loss_type="bnpo", temperature=0.9, beta=0.04,', ""),
    "grpo_0.20_sequence.py": (0, 'top_k=0, loss_type="bnpo", -use_bias_correction_kl', ""),
    "sft_0.11_imdb.py": (0, 'packing=True, packing_strategy="wrapped", max_length=512, dataset_text_field="question", '
     'learning_rate=5e-05, eval_strategy="no",', ""),
    "sft_0.16_chat.py": (0, 'max_length=2048, packing_strategy="wrapped", -max_seq_length', ""),
    "dpo_0.11_arguments.py": (0, 'beta=0.2, max_length=128, truncation_mode="keep_end",', ""),
    "reward_0.15.py": (0, "bf16=False, learning_rate=1e-5", ""),
    "rloo_0.23.py": (0, "beta=0.1) -kl_coef num_generations=4,", ""),
    "verl_0.2_gsm8k_ppo.sh": (0, "algorithm.use_kl_in_reward=True @.entropy_coeff=0.001 "
     "data.seed=1 @.clip_ratio_c=1000000000.0 "
     "@.ppo_micro_batch_size_per_gpu=2 critic.ppo_micro_batch_size_per_gpu=4 "
     "trainer.val_before_train=False critic.fsdp.param_offload=True data.filter_overlong_prompts=True -grad_offload "
     "-+trainer -critic.model.fsdp_config", ""),
    "verl_0.2_grpo.sh": (0, "@.clip_ratio_low=0.1 @.clip_ratio_high=0.1 "
     "-use_kl_in_reward -clip_ratio=", ""),
    "verl_0.3_reward_file.sh": (0, "reward.custom_reward_function.path=my_reward.py "
     "reward.custom_reward_function.name=score trainer.log_val_generations=5 "
     "@.checkpoint.save_contents=[model] -filter_overlong_prompts", ""),
    "verl_0.4_dapo_like.sh": (0, "@.optim.clip_grad=0.5 reward.reward_manager.name=naive "
     "data.seed=1 -clip_ratio_c -entropy_coeff -reward_model.", ""),
    "verl_0.4_arrays.sh": (0, "@.optim.lr_scheduler_type=cosine "
     'actor_rollout_ref.rollout.name=vllm #data.seed=7 actor_rollout_ref.model.path="${MODEL_PATH}" -rollout.mode', ""),
    "verl_0.5_ray_submit.sh": (0, 'ray_kwargs.ray_init.num_cpus=32 "trainer.logger=[\'console\',\'wandb\']" --no-wait '
     "-+ray_init.", ""),
    "verl_0.7_sandbox.sh": (0, "reward.sandbox_fusion.url=http://localhost:8080/run_code -reward_model", ""),
    "ppo_0.11.py": (3, "", "PPOTrainer scripts/ppo_train.py --lr 1.41e-05 --kl_coef 0.1"),
    "verl_0.3_variables.sh": (3, "", "use_kl_loss=$USE_KL"),
    "verl_0.4_recipe.sh": (3, "", "recipe.dapo.main_dapo which reads algorithm.filter_groups"),
    "trl_0.14_recipe.yaml": (3, "", "max_prompt_length"),
    "grpo_0.18_dict.py": (0, "**settings, defreward(completions,**kwargs): "
     'output_dir="runs/dict",#whereitgoesuse_cpu=False,', ""),
    "grpo_0.19_factory.py": (0, "defcosine(completions,answer,**kwargs): lambdacompletions,**kwargs: "
     "defcosine_reward(max_length):", ""),
    # below: scripts of other authors
    "grpo_0.14_foreign_trainer.py": (3, 'BitsAndBytesConfig(load_in_4bit=True, loss_type="grpo" -vllm_device', "1024"),
    "grpo_0.15_module_rewards.py": (0, "vllm_max_model_length limit=max_prompt_length", ""),
    "grpo_0.19_unsloth_cells.py": (3, 'loss_type="bnpo" warmup_steps=0.1',
     "unsloth vllm_sampling_params no GRPOConfig"),
    "grpo_0.24_built_dict.py": (0, "limit=3072 trainer_clsWithCutPrompts(trainer_cls) -max_prompt_length", ""),
    "grpo_1.0_argparse.py": (0, "use_bias_correction_kl=False -**kwargs,", ""),
    "grpo_1.1_sleep.py": (0, "warmup_steps=0.05 vllm_importance_sampling_cap=3.0", ""),
    "sft_0.10_chat_format.py": (3, 'SFTConfig( packing_strategy="wrapped" max_length=3072', "setup_chat_format"),
    "sft_0.11_wrapper.py": (3, "formatting_func=lambda dtype=compute_dtype",
     "DataCollatorForCompletionOnlyLM max_length=args.max_seq_length"),
    "sft_0.12_plain_arguments.py": (0, "WithoutEndToken( completion_only_loss=False dtype=torch.float16", ""),
    "sft_0.13_inline_config.py": (3, "4096 formatting_func=lambda", "DataCollatorForCompletionOnlyLM"),
    "reward_0.11_attributes.py": (3, "disable_dropout=False learning_rate=5e-05 max_length=None", "input_ids_chosen"),
    "kto_0.12_vision.py": (0, "max_length=512 gradient_checkpointing=False", ""),
    "orpo_0.11_yaml_section.py": (3, '**config["train_config"]',
     "no name in it is renamed bf16=False, learning_rate=5e-05,"),
    "rloo_0.22_reward_model.py": (3, "num_generations=4 beta=0.1 reward_funcs=reward_len limit=512",
     "missing_eos_penalty"),
    "ppo_0.13_four_models.py": (3, 'dtype="float16"', "PPOTrainer --ppo_epochs 5 --lr 5e-06"),
    "ppo_0.15_adapters.py": (3, 'dtype="bfloat16"', "--value_clip 0.5 --batch_size 8 total_episodes=1000"),
    "trl_0.9_handbook.yaml": (0, "max_length: 2048 eval_strategy: warmup_steps: 0.1 -max_seq_length dtype: bfloat16",
     ""),
    "trl_0.17_hydra.yaml": (3, "top_k: 0 vllm_mode: -vllm_dtype", "max_prompt_length: 8192"),
    "grpo_0.15_magics.ipynb": (0, "%%capture !ls #@title beta=0.04 limit=max_prompt_length top_k=50 **kwargs):", ""),
    "grpo_0.15_subclass_parser.py": (3, "model_args.dtype dtype=torch_dtype limit=512", "args=training_args beta=0.04"),
    "grpo_0.16_config_function.py": (3, 'warmup_steps=train["warmup_ratio"] top_k=50 -logging_dir',
     "config grpo_config.max_prompt_length"),
    "grpo_0.19_dead_api.py": (3, 'dtype="float16" limit=MAX_PROMPT_LEN top_k=0 -wandb_log', "compute_loss"),
    "online_dpo_0.12_reward.py": (0, "trl.experimental.online_dpo reward_funcs=reward_model -reward_model=", ""),
    "online_dpo_0.17_judge_class.py": (3, "trl.experimental.online_dpo top_k=50 -judge=",
     "judge=HammingJudge() BasePairwiseJudge training_step"),
    "reward_0.12_flags.py": (0, 'disable_dropout=False max_length=script_args.seq_length eval_strategy="steps" '
     "-tokenizer=tokenizer,\n", ""),
    "sft_0.11_streams.py": (3, "SFTConfig( BitsAndBytesConfig(load_in_8bit=True)", "ConstantLengthDataset"),
    "dpo_0.9_keywords.py": (3, "longest=1536 answer=1536 DPOConfig( -max_target", "DPODataCollatorWithPadding"),
    "dpo_0.20_losses.py": (3, "answer=512 limit=1024 use_liger_kernel=False -reference_free", "running mean"),
    "gkd_0.12_flags.py": (3, "trl.experimental.gkd args.use_4bit else", "beta=args.beta"),
    "verl_0.2_fork_keys.sh": (3, "algorithm.use_kl_in_reward=True data.seed=1", "agent_grpo.n max_turns search_engine"),
    "verl_0.2_reward_model.sh": (0, "size_per_gpu=$((16 / ($N_GPUS * 1 / 1))) reward.reward_model.model_path=$RM", ""),
    "verl_0.3_two_nodes.sh": (3, "@.loss_agg_mode=token-mean reward_manager.name=naive",
     "val_generations_to_log_to_txt"),
    "verl_0.3_generation.sh": (3, "", "main_generation_server main_eval"),
    "verl_0.4_slurm.sh": (3, "reward.custom_reward_function.path=$REWARD_PATH -grad_offload", "a function of one row"),
    "verl_0.4_two_tokenizers.sh": (3, "reward.reward_model.enable=True -fsdp_config.param_offload", "input_tokenizer"),
    "verl_0.4_own_names.yaml": (3, "seed: 1", "less than one row algorithm.gigpo"),
    "verl_0.5_lora_dapo.sh": (0, "+reward.reward_kwargs.overlong_buffer_cfg.len=4096 -critic.model -reward_model.", ""),
    "verl_0.7_tools.sh": (0, "clip_ratio=", ""),
    "verl_0.2_search_agent.sh": (3, "use_kl_in_reward=True critic.ppo_micro_batch_size_per_gpu=2 -+trainer",
     "retriever.url max_turns n_agent"),
    "verl_0.5_easyr1.yaml": (3, "-actor_rollout_ref", "EasyR1's"),
    "verl_0.5_vision_array.sh": (0, "+actor_rollout_ref.rollout.engine_kwargs.vllm. data.seed=1 -data.truncation", ""),
    "verl_0.7_docker.sh": (0, "reward.custom_reward_function.name=score -mode=sync", ""),
}  # fmt: skip


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_is_the_same_run_or_says_why_not(name, tmp_path, capsys):
    expected, there, said = SCRIPTS[name]
    file = next(folder / name for folder in (FILES, PUBLIC) if (folder / name).exists())
    before = file.read_bytes()
    code, table, text = migrated(tmp_path, capsys, file, "--from", version_of(name))
    assert code == (3 if table["not_expressible"] else 0) and file.read_bytes() == before
    entries = [x for x in table["not_expressible"] if not x["setting"].endswith("token-mean")]  # verl's loss before 0.8
    lost = " ".join(f"{x['setting']} {x['why']} {x['nearest']}" for x in entries)
    assert (3 if entries else 0) == expected, lost
    plain = "\n".join(line.partition("#")[0] for line in text.splitlines())
    words = there.replace("@.", f"{ACTOR}.").split()
    shown = text if "#" in there else plain  # a comment sets nothing
    assert missing([w for w in words if not is_not(w)], shown + "".join(shown.split())) == []
    assert missing([w for w in words if is_not(w)], plain) == [] == missing(said.split(), lost)
    if name.endswith(".py") and "scripts/ppo_train.py --advantage" not in lost:
        check_names(text, lost)


def test_what_was_migrated_does_not_change_again(tmp_path, capsys):
    for file in [p for p in FILES.iterdir() if p.suffix in (".py", ".sh", ".yaml")]:
        out = tmp_path / f"new_{file.name}"
        migrate.main([str(file), "--from", version_of(file.name), "--out", str(out)])
        capsys.readouterr()
        code = migrate.main([str(out), "--from", version_of(file.name)])
        is_as_it_was = out.read_bytes() == file.read_bytes()
        assert is_as_it_was or ("was migrated before" in capsys.readouterr().out and code == 0), file.name


def test_without_a_version_each_says_one_or_what_differs(capsys):
    """No version given: the script's own, or a range with the settings that differ; a version between two is named."""
    for name in ("grpo_0.24_built_dict.py", "dpo_0.20_losses.py", "verl_0.4_slurm.sh"):
        assert migrate.main([str(PUBLIC / name)]) == 2, name
        assert re.search(r"fit by the names used, and make different runs:\n  .*: .*\d", capsys.readouterr().err)
    assert migrate.main([str(PUBLIC / "rloo_0.22_reward_model.py")]) == 3
    assert "trl==0.24 (trl 0.22 to 0.24 fit by the names used, and make the same run)" in capsys.readouterr().out


def test_keys_of_new_jobs_are_of_today(tmp_path, capsys):
    """Every key of a new job is in verl's configuration, stands below a free dictionary with a +, or is said."""
    names = {f"{where[1]}.{leaf}" for where in map(str.split, KEYS) for leaf in where[2:]}
    for file in [file for file in PUBLIC.glob("verl_*.sh") if SCRIPTS[file.name][1]]:
        _, table, text = migrated(tmp_path, capsys, file, "--from", version_of(file.name))
        said = " ".join(x["setting"] for x in table["not_expressible"]) + " ".join(table["notes"])
        for sign, key in re.findall(
            r"(?<=\s)['\"]?(\+{0,2})((?:actor_rollout_ref|critic|data|reward|algorithm)\.[\w.]+)=", text
        ):
            assert sign or key in names or key in said, (file.name, key)


# ------------------------------------------------------------------------------------------------ TRL scripts

GRPO = "from trl import GRPOConfig, GRPOTrainer\n"
SFT = "from trl import SFTConfig, SFTTrainer\n"
TRAINED = "GRPOTrainer('m', print, args, rows).train()\n"
UNSLOTH = """from unsloth import FastLanguageModel
model, tokenizer = FastLanguageModel.from_pretrained("Q", max_seq_length=9, load_in_4bit=True)
model = FastLanguageModel.get_peft_model(model, r=8, lora_alpha=16)
"""
LATER = "args = GRPOConfig('o', per_device_train_batch_size=2, num_generations=4)\n"
SFT_ARGS = "args = SFTConfig('o', max_seq_length=8)\n"
DPO = "from trl import DPOConfig, DPOTrainer\nDPOTrainer(m, args=DPOConfig('o', rpo_alpha=None))\n"
JS = DPO.replace("rpo", "f_divergence_type='js_divergence', rpo")
MEMBER = "from trl import FDivergenceType\n" + DPO.replace(
    "rpo", "f_divergence_type=FDivergenceType.{}_DIVERGENCE, f_alpha_divergence_coef=0.3, rpo"
)
PARSED_AT_ONCE = "HfArgumentParser(GRPOConfig).parse_args_into_dataclasses()"
CHAIN = "d0 = {'beta': 0.1}\n" + "".join(
    f"d{n} = d{n - 1} | {{'seed': {n}}}\nd{n}.update(d{n - 1})\n" for n in range(1, 9)
)
DERIVED = (
    "from trl import ModelConfig, TrlParser\nclass Own(GRPOConfig):\n    beta: float = 0.5\n"
    "def main(args, model_args):\n    args.model_init_kwargs = dict(torch_dtype=model_args.torch_dtype)\n    "
    + TRAINED
    + "parser = TrlParser((Own, ModelConfig))\nmain(*parser.parse_args_and_config())\n"
)
OWN = "beta=args.beta, max_length=args.max_length, max_prompt_length=args.max_prompt_length"
CONFIG = "args = DPOConfig('o', beta=0.2, max_length=64, max_prompt_length=32)\n"
READS = f"from trl import DPOConfig, DPOTrainer\n{CONFIG}DPOTrainer(m, args=args, {OWN}, train_dataset=d)\n"
NONE = READS.replace("max_prompt_length=32", "max_prompt_length=a.n").replace(
    ", max_prompt_length=args.", ", beta=args."
)
GKD = "from trl import GKDConfig\n"
TRAINING = (
    SFT + "from transformers import TrainingArguments\nargs = TrainingArguments('o', evaluation_strategy='no'{})\n"
)
MODEL = SFT + "from transformers import AutoModelForCausalLM\nAutoModelForCausalLM.from_pretrained('m', {})\n"
OF_PARAMETER = (
    "def make(a):\n    return GRPOConfig('o', max_prompt_length=a.n)\n"
    "def main():\n    a = parse()\n    args = make(a)\n    GRPOTrainer('m', print, args, rows)\n"
)
BETA = "d = dict(output_dir='o')\n{}:\n    d['beta'] = 0.1\n{}args = GRPOConfig(**d)\n" + TRAINED
BOTH = "from trl import GRPOConfig, GRPOTrainer, SFTConfig, SFTTrainer\n"
FORMS = [  # (version, script, exit code, what the new one says, what is said)
    ("1.0", "from trl.scripts.grpo import GRPOScriptArguments\n", 0, "trl.scripts.grpo import GRPOScript", ""),
    # dictionaries that are copied, updated, chosen, or made of themselves
    ("0.17", GRPO + "b = {'output_dir': 'o', 'max_prompt_length': 9}\nc = b.copy()\nd = dict(c, warmup_ratio=0.1)\n"
     "d.update(logging_dir='x', seed=1)\nd.update({'evaluation_strategy': 'no'})\nargs = GRPOConfig(**d)\n" + TRAINED,
     0, "limit=9|dict(c, warmup_steps=0.1)|d.update(seed=1)|{'eval_strategy': 'no'}|-max_prompt_length'|-logging_dir",
     ""),
    ("0.17", GRPO + "args = GRPOConfig('o', max_prompt_length=None if x else 9, **({'seed': 1} if x else "
     "{'logging_dir': 'd'}))\n" + TRAINED, 0, "limit=(None if x else 9) or 0|**({'seed': 1} if x else "
     "{})|beta=0.04|-logging_dir", ""),
    ("0.17", GRPO + "d = dict(d, seed=1)\nd.update(d)\nargs = GRPOConfig(**d)\n" + TRAINED, 3, "", '"**d'),
    # settings made where they are used; a parameter that gets the variable of its own name
    ("0.17", GRPO + "GRPOTrainer('m', print, (args := GRPOConfig('o', max_prompt_length=9)), rows)\n", 0,
     "limit=9|beta=0.04|-max_prompt", ""),
    ("0.17", GRPO + "if (args := GRPOConfig('o', max_prompt_length=9)).seed:\n    pass\n" + TRAINED, 0,
     "limit=9|beta=0.04|-max_prompt", ""),
    ("0.17", GRPO + OF_PARAMETER, 0, "limit=a.n or 0|beta=0.04|-max_prompt", ""),
    ("0.17", GRPO + OF_PARAMETER.replace("make(a):", "make(b):").replace("=a.n", "=b.n"), 3, "", "b may be"),
    ("0.20", "from trl import GRPOTrainer\nGRPOTrainer('m', print)\n", 0, "args=GRPOConfig(", "as none were given"),
    # the old default of a setting that only a branch gives
    ("0.17", GRPO + "args = GRPOConfig('o')\nif x:\n    args.beta = 0.1\n" + TRAINED, 0, "beta=0.04|.beta = 0.1", ""),
    ("0.17", GRPO + BETA.format("if x", ""), 3, "-beta=0.04", "its default was 0.04 then"),
    ("0.17", GRPO + BETA.format("for x in y", "    ").replace("\nGRPO", "\n    GRPO"), 0, "-beta=0.04", "top_k=50"),
    # kto_trainer.py:211 of 1.2.0 adds both; 1.3.0:615 to plain texts alone
    ("1.2", "from trl import KTOConfig\nKTOConfig('o')\n", 0, "", "of a chat too, an end token"),
    # the property is not in transformers 5
    ("0.17", SFT + "t = SFTTrainer('m', args=SFTConfig('o'))\nt.tokenizer.save_pretrained('o')\n"
     "print(other.tokenizer)\n", 0, "\nt.processing_class.save_pretrained('o')\nprint(other.tokenizer)\n",
     "t.tokenizer is gone"),
    # what stands inside an argument that goes
    ("0.22", DPO.replace("rpo", "ref_model_init_kwargs={'torch_dtype': 'auto'}, rpo"), 3, "DPOConfig(|-dtype",
     "ref_model_init_kwargs={'torch_dtype'"),
    # an assignment to parsed settings, and what reads them; the default of an own class stands
    ("0.17", "from trl import GRPOConfig, GRPOTrainer, TrlParser\nclass Own(GRPOConfig):\n    beta: float = 0.5\n"
     "parser = TrlParser((GRPOConfig,))\n(args,) = parser.parse_args_and_config()\nargs.max_prompt_length = 300\n"
     "args.evaluation_strategy = 'no'\nrows = rows.filter(lambda row: len(row) < args.max_prompt_length)\n"
     "print(args.logging_dir)\nGRPOTrainer('m', print, args=args, train_dataset=rows)\n", 3,
     "\nargs.eval_strategy = 'no'|< 300)|limit=300|-set_defaults|-_strategy =  '",
     "where nothing sets them, the old version had beta=0.04, bf16=False"),
    ("0.20", GRPO + "args = GRPOConfig('o', max_prompt_length=9, use_liger_loss=x, logging_dir='d')\n"
     "print(args.max_prompt_length, args.use_liger_loss, args.logging_dir, args.warmup_ratio)\n" + TRAINED, 0,
     'print(9, args.use_liger_kernel, "d", 0.0)|-args.logging_dir', "args.max_prompt_length is gone"),
    ("0.20", "import trl\nargs = trl.GKDConfig('o')\ntrl.setup_chat_format(m, t)\n", 3, "args = trl.GKDConfig(",
     "from trl.experimental.gkd import GKDConfig"),
    # sft_trainer.py:242 of 0.14.0: min(the model's, 1024) for None; :287 of 0.9.6 throws that away
    ("0.14", SFT + "SFTTrainer('m', SFTConfig('o', max_seq_length=None))\n", 0, "SFTConfig(|-max_", "at most 1024"),
    ("0.15", SFT + "SFTTrainer('m', SFTConfig('o', max_seq_length=None))\n", 0, "max_length=None|-max_seq",
     "max_length"),
    ("0.9", SFT + "SFTTrainer('m', args=SFTConfig('o'), max_seq_length=None)\n", 0, "max_length=None|-max_seq",
     "no text is longer than the tokenizer's model_max_length"),
    # False in transformers 4.51; True in the SFTConfig of TRL 0.19
    ("0.17", SFT + "SFTConfig('o')\n", 0, "average_tokens_across_devices=False", ""),
    ("0.17", GRPO + "GRPOConfig('o')\n", 0, "beta|-average_tokens", ""),
    # grpo_trainer.py of 1.8.0 and 1.9.2: num_items_in_batch; of 1.5.1 and 1.6.0: unscorable_mask
    ("1.8", GRPO + "GRPOConfig('o', steps_per_generation=x)\n", 0, "", "all steps_per_generation micro-batches"),
    ("1.8", GRPO + "GRPOConfig('o', steps_per_generation=4)\n", 3, "", "all steps_per_generation micro-batches"),
    ("1.8", GRPO + "GRPOConfig('o', mask_truncated_completions=True)\n", 0, "", "truncated completions, too"),
    ("1.5", GRPO + "f = lambda completions: [None for _ in completions]\nGRPOConfig('o')\n", 0, "",
     "every reward is None"),
    ("0.14", SFT + "SFTConfig('o', dataset_kwargs={'add_special_tokens': False})\n", 0, "", "skip_prepare_dataset"),
    ("0.23", "from trl import RewardConfig\nRewardConfig('o')\n", 0, "", "plain texts got no end token"),
    ("0.28", DPO, 0, "limit=512|-rpo_alpha", "tokenized apart"),
    # dpo_trainer.py:1117-1195 of 0.28.0 against :1360-1465 of 1.16.0
    ("0.28", DPO.replace("rpo", "label_smoothing=0.1, rpo"), 3, "", "conservative DPO"),
    ("0.28", DPO.replace("rpo", "loss_type='robust', label_smoothing=0.1, rpo"), 0, "", "apart"),
    ("0.28", DPO.replace("rpo", "loss_type=['bco_pair'], rpo"), 3, "", "running mean"),
    ("0.28", DPO.replace("rpo", "loss_type='exo_pair', rpo"), 0, "label_smoothing=1e-3", "took 0.001"),
    ("0.28", DPO.replace("rpo", "loss_type='exo_pair', label_smoothing=0.0, rpo"), 0, "label_smoothing=1e-3|-0.0",
     "0.001"),
    ("0.28", DPO.replace("rpo", "loss_type=a.aot_pair, rpo"), 0, "=a.aot_pair", "if it is aot_pair: the name is gone"),
    ("0.28", DPO.replace("rpo", "loss_type=x, rpo"), 0, "DPOConfig(|-1e-3", "if it is bco_pair: bco_pair subtracted"),
    ("0.24", DPO.replace("rpo", "loss_type='aot_pair', rpo"), 0, "loss_type='aot_unpaired'", "its new name"),
    ("0.20", DPO.replace("rpo", "f_divergence_type='alpha_divergence', rpo"), 0, "coef=0.0", "exponent"),
    ("0.20", DPO.replace("rpo", "f_divergence_type=x, rpo"), 0, "=x|-coef", "if it is alpha_divergence: the coeff"),
    # dpo_trainer.py:1049 of 0.23.1: member == its text is False; dpo_config.py:499 of 0.24.0 makes both a member;
    # :748 of 0.28.0 makes both the text, which dpo_trainer.py:1118 compares with a member
    ("0.23", MEMBER.format("ALPHA"), 0, 'import DPOConfig, DPOTrainer\n|="reverse_kl"|-FDiv', "never equalled"),
    ("0.24", MEMBER.format("ALPHA"), 0, '="alpha_divergence"|coef=0.7|-FDiv', "the exponent -a; now a - 1"),
    ("0.27", MEMBER.format("JS"), 0, '="js_divergence"|coef=0.3|-FDiv', "the text of a member"),
    ("0.28", MEMBER.format("JS"), 0, '="reverse_kl"|coef=0.3|-FDiv', "never matched"),
    ("0.28", DPO.replace("rpo", "f_divergence_type='js_divergence', rpo"), 0, '="reverse_kl"|-js_', "never matched"),
    ("0.20", MEMBER.format("JS") + "print(FDivergenceType)\n", 3, "import FDivergenceType", "text of its member"),
    # dpo_trainer.py:810 of 1.16.0 refuses it
    ("0.27", DPO.replace("rpo", "f_divergence_type='js_divergence', loss_type='apo_zero', rpo"), 3, "",
     "apo now refuse it"),
    ("0.20", JS, 0, "='js_divergence'", "apart"),
    # a class of constants, which are no texts: trl/trainer/dpo_config.py:49 of 0.27.2
    ("0.27", "from trl import FDivergenceConstants\n" + DPO.replace("rpo", "f_alpha_divergence_coef=FDivergenceConsta"
     "nts.ALPHA_DIVERGENCE_COEF_DEFAULT, rpo"), 3, 'f_alpha_divergence_coef=FDivergenceConstants.|-coef="',
     "a copy of it in the script"),
    # dpo_trainer.py:208 of 0.11.4 cuts rows that are longer than max_length; :1255 of 0.12.2 keeps their start
    ("0.11", DPO, 0, "DPOTrainerWithCutRows(m|longest=512|limit=128|-CutPrompts", "then the answers"),
    ("0.12", DPO.replace("rpo", "max_length=9, rpo"), 0, 'truncation_mode="keep_start"|-Cut', "was not read"),
    # gkd_trainer.py:199 of 0.15.2 against 0.16.1: KL(S||T) was beta 0, is beta 1
    ("0.15", GKD + "GKDConfig('o', beta=0.0)\n", 0, "beta=1.0|-beta=0", "other way round"),
    ("0.15", GKD + "GKDConfig('o', beta=0.3)\n", 3, "beta=0.3", "other way round"),
    ("0.16", GKD + "GKDConfig('o', gradient_accumulation_steps=x)\n", 0, "across_devices=False", "step's micro"),
    ("0.16", GKD + "GKDConfig('o', gradient_accumulation_steps=4)\n", 3, "", "step's micro"),
    # online_dpo_trainer.py:303 of 0.22.2; :563 of 0.23.1, whose None is left out: the 50 of transformers
    ("0.22", "from trl import OnlineDPOConfig\nOnlineDPOConfig('o', use_vllm=x)\n", 0, "top_k=50", "50 tokens"),
    ("0.23", "from trl import OnlineDPOConfig\nOnlineDPOConfig('o', use_vllm=x)\n", 0, "top_k=0 if x", "50 tokens"),
    ("0.11", SFT + "SFTConfig('o', max_seq_length=8)\n", 0, "across_devices=False", "over its own tokens"),
    # of each process; rloo_trainer.py:113 of 0.11.4: local_batch_size
    ("0.13", "from trl import RLOOConfig, RLOOTrainer\n"
     "args = RLOOConfig('o', rloo_k=4, num_mini_batches=3, per_device_train_batch_size=2, "
     "gradient_accumulation_steps=4)\nRLOOTrainer(config=args, policy=m)\n", 3, "", "--group_size 4 --batch_size 24"),
    ("0.13", f"from trl import RLOOConfig, RLOOTrainer\nargs = {PARSED_AT_ONCE}\n"
     f"RLOOTrainer(config=args[0], policy=m)\n", 3, "", "defaults of RLOOConfig, whose settings cannot be seen"),
    # prompts that are not cut, but tokenized without BOS
    ("0.21", GRPO + "args = GRPOConfig('o', max_prompt_length=None)\n" + TRAINED, 0, "WithPlainPrompts(|-Cut", "BOS"),
    # what a trainer takes from its own config; what is known at run time only
    ("0.11", READS, 0, "args = DPOConfig(|beta=0.2, max_length=64)|args=args, train_dataset=d|limit=32|-=args.", ""),
    ("0.11", NONE.replace("beta=args.max", "x=args.max"), 3, "limit=a.n or 128", "no DPOTrainer of TRL has it"),
    ("0.13", SFT + "SFTTrainer('m', args=SFTConfig('o', packing=a.packing, dataset_text_field='text'))\n", 0,
     "WithoutEndToken(|        if packing:", "texts got no end token"),
    ("0.16", SFT + "SFTTrainer('m', args=SFTConfig('o'), formatting_func=lambda b: [x for x in b['t']])\n", 0,
     "lambda row: (lambda b: [x for x in b['t']])({", "took a batch"),
    ("0.28", DPO, 0, "", "no token spans prompt and answer"),
    ("0.12", SFT + SFT_ARGS + "n = 16\nSFTTrainer('m', args=args, max_seq_length=n)\n", 0,
     "max_length=16|'m', args=args)", ""),
    # dictionaries made of each other, too many to follow
    ("0.17", GRPO + CHAIN + "args = GRPOConfig(**d8)\n" + TRAINED, 3, "", "**d8.update(d7)"),
    # settings that cannot be seen: a class derived from the config, a dictionary made at run time
    ("0.20", GRPO + DERIVED, 3, "dtype=model_args.dtype)|-torch_dtype", "the 512 of the class"),
    ("0.20", GRPO + f"(args,) = {PARSED_AT_ONCE}\n" + TRAINED, 3, "()\n|-set_defaults", "version had gradient_"),
    ("0.20", GRPO + f"args = {PARSED_AT_ONCE}[0]\n" + TRAINED, 3, "()[0]\n|-set_defaults", "version had gradient_"),
    ("0.20", GRPO + "args = GRPOConfig(**f())\n" + TRAINED, 3, "limit=512", "the 512 of the class"),
    # fields of the script's own config; the class stays, so that its limit is read when the run starts
    ("0.20", GRPO + DERIVED.replace("beta: float = 0.5", "max_prompt_length: int = 9\n    warmup_ratio: float = 0.1"),
     3, "limit=args.max_prompt_length or 0|max_prompt_length: int = 9|warmup_steps: float = 0.1|-warmup_ratio",
     "gradient_checkpointing=False"),
    # another trainer of the same name
    ("1.2", "from trl.experimental.gspo_token import GRPOTrainer\n", 3, "gspo_token", "in trl.experimental.gspo_"),
    # sft_trainer.py of 0.15.2 puts no end token behind texts, of a column `text` too
    ("0.15", SFT + "SFTTrainer('m', args=SFTConfig('o'), train_dataset=d)\n", 0, "-Without", '"rows are chats"'),
    # both are there, at other places
    ("0.18", "from trl.commands.cli_utils import TrlParser\nfrom trl.trainer.grpo_trainer import nanstd\n", 0,
     "from trl import TrlParser\nfrom trl.trainer.utils import nanstd\n", "its new place"),
    # the trainer is in another file
    ("0.20", GRPO + "hasattr(GRPOTrainer, 'log')\nGRPOConfig('o')\n", 0, "-Cut",
     '"same_if": ["the model has one end token", "the trainer of GRPO'),
    # a call without a name: rules whose `unless` is missing found it
    ("0.17", GRPO + "REWARDS[name]()\nGRPOConfig('o')\n", 0, "use_bias_correction_kl=False", "the KL was k3"),
    ("0.17", "from trl import *\nfrom os import *\nGRPOConfig('o')\n", 0, "beta=0.04", ""),
    ("0.26", "from trl import RLOOConfig\nRLOOConfig('o', top_k=None)\n", 0, "top_k=0|-None", "None was all tokens"),
    ("0.17", MODEL.format("").replace("AutoModelForCausalLM", "GPT2LMHeadModel"), 0, 'dtype="float32"',
     "loaded as float32"),
    # no value of a reward is another thing than None elsewhere
    ("1.5", GRPO + "f = lambda completions: [None if c else 1.0 for c in completions]\nGRPOConfig('o')\n", 0, "",
     "every reward is None"),
    # dpo_trainer.py:1245 of 0.15.2: no term where rpo_alpha is None
    ("0.15", DPO.replace("=None", "=a.alpha"), 0, "loss_weights=[1.0, a.alpha or 0.0]|-rpo", ""),
    # both switches False: transformers 5 would load 4 bits (quantizers/auto.py:219)
    ("0.15", MODEL.format("load_in_4bit=a.x"), 0, "=BitsAndBytesConfig(load_in_4bit=a.x) if a.x else None",
     "the new form of load_in_4bit"),
    ("0.15", MODEL.format("load_in_4bit=a.x"), 0, 'dtype="float16" if a.x else "float32"', "quantised ones"),
    ("0.15", MODEL.format("quantization_config=q"), 0, 'dtype="float16" if q else "float32"', "quantised ones"),
    ("0.15", MODEL.format("quantization_config=BitsAndBytesConfig()"), 0, 'dtype="float16", q', "quantised ones"),
    # names that are gone, without a trainer; arguments for a trainer that takes what cannot be seen
    ("0.18", "from trl import PPOConfig\nPPOConfig('o')\n", 3, "", "scripts/ppo_train.py"),
    ("0.12", TRAINING.format("") + "SFTTrainer(**f(args))\n", 3, "eval_strategy='no'|-evaluation", "made at run time"),
    ("0.12", TRAINING.format(", **k") + "SFTTrainer('m', args=args, max_seq_length=7)\n", 3, "max_length=7|-max_seq",
     "**k"),
    ("0.17", GRPO + "class C(TrainerCallback):\n    def on_log(self, args):\n"
     "        print(args.max_prompt_length, other.max_prompt_length)\nargs = GRPOConfig('o', max_prompt_length=9)\n"
     + TRAINED, 0, "print(9, other.max_prompt_length)", "args.max_prompt_length is gone"),
    ("0.17", GRPO + "class Ours(GRPOTrainer):\n    pass\nclass Mine(Ours):\n    pass\n"
     "Mine('m', print, GRPOConfig('o', max_prompt_length=300), rows).train()\n", 0,
     "\nclass MineWithCutPrompts(Mine):|limit=300|\nMineWithCutPrompts('m'|-max_prompt_length", ""),
    ("0.17", "def main(a):\n    " + GRPO.strip() + "\n    args = GRPOConfig('o', max_prompt_length=a.n)\n    if a: "
     + TRAINED, 0, "    class GRPOTrainerWithCutPrompts(GRPOTrainer):|limit=a.n or 0|    if a: "
     "GRPOTrainerWithCutPrompts(|-max_prompt_length=", ""),
    # shared dictionary
    ("0.17", GRPO + "d = dict(output_dir='o', max_prompt_length=64, evaluation_strategy='no')\n"
     "for args in (GRPOConfig(beta=0.1, **d), GRPOConfig(beta=0.2, **d)):\n    pass\nargs = GRPOConfig(**d)\n", 3,
     "d = dict(output_dir='o', eval_strategy='no')\n|\n    beta=0.1, **d)|-max_prompt", ""),
    # merged dictionaries
    ("0.17", GRPO + "d = {'output_dir': 'o', 'max_prompt_length': 64}\nargs = GRPOConfig(**{**(d | {'beta': 0.1})})\n"
     "GRPOTrainer('m', print, args, rows)\n", 0, "d = {'output_dir': 'o'}\n|limit=64|-beta=0.04", ""),
    # text without packing
    ("0.12", "from trl import SFTConfig, SFTTrainer\n"
     "SFTTrainer(model='m', args=SFTConfig('o'), packing=False, dataset_text_field='text', max_seq_length=9)\n", 0,
     "class SFTTrainerWithoutEndToken|max_length=9|completion_only_loss=False|-max_seq_length", ""),
    ("0.17", GRPO + "args = GRPOConfig('o', adafactor=False)\n" + TRAINED, 0, 'optim="adamw_torch"|-adafactor', ""),
    ("0.17", "from trl import ModelConfig\nmodel_args = ModelConfig(torch_dtype='auto')\n"
     "print(model_args.torch_dtype)\n", 0, "ModelConfig(dtype='auto')|print(model_args.dtype)|-torch_dtype", ""),
    # no warmup steps
    ("0.17", GRPO + "args = GRPOConfig('o', warmup_steps=0, warmup_ratio=0.1)\n" + TRAINED, 0,
     "warmup_steps=0.1|-warmup_steps=0,|-ratio", ""),
    # two statements on a line
    ("0.17", GRPO + "args = GRPOConfig('o')\nargs.group_by_length = False; args.logging_dir = 'x'; args.seed = 7\n"
     + TRAINED, 0, "; pass; args.seed = 7|-logging_dir", ""),
    ("0.17", GRPO + "from transformers import AutoModelForCausalLM as A\n"
     "m = A.from_pretrained('m', dtype='auto', use_flash_attention_2=True)\nargs = GRPOConfig('o')\n" + TRAINED, 0,
     'attn_implementation="flash_attention_2"|-use_flash', ""),
    # set in a branch
    ("0.14", GRPO + "args = GRPOConfig('o', num_generations=8, per_device_train_batch_size=4, max_prompt_length=512, "
     "temperature=0.9)\nif x:\n    args.num_generations = 2\n    args.max_prompt_length = 64\n"
     "    args.temperature = 0.1\n" + TRAINED, 3, "", "!per_device_train_batch_size=4 * num_generations|!it sampled at "
     "the temperature|!no trainer has max_prompt"),
    # set in a branch of a dictionary
    ("0.14", GRPO + "d = {'output_dir': 'o', 'num_generations': 4}\nif x:\n    d['num_generations'] = 8\n"
     "args = GRPOConfig(**d)\n" + TRAINED, 3, "", "!=1 * num_generations"),
    # changed in place
    ("0.14", GRPO + LATER + "args.num_generations += 4\nargs.beta = args.seed = 1\nargs.seed, args.beta = 1, 2\n"
     + TRAINED, 3, "", "!args.num_generations += 4|!args.beta = args.seed = 1|!args.seed, args.beta|!2 * "
     "num_generations"),
    # read with another unit
    ("0.14", GRPO + LATER + "steps = 9 // args.per_device_train_batch_size\n" + TRAINED, 3, "",
     "!args.per_device_train_batch_size|!reads per_device_train_batch_size=8 now"),
    # bound below the config
    ("0.12", SFT + SFT_ARGS.replace("max_seq_length=8", "") + "n = f()\nSFTTrainer('m', args=args, max_seq_length=n)\n",
     3, "", "!max_seq_length=n|!n may be another value at line 2, or none"),
    # two trainers with one config
    ("0.12", SFT + SFT_ARGS + "SFTTrainer('m', args=args, max_seq_length=1)\n"
     "SFTTrainer('m', args=args, max_seq_length=2)\n", 3, "", "!max_seq_length=2|!another trainer takes too"),
    # a model that is gone
    ("0.17", SFT + "from transformers import AutoModelForVision2Seq\nSFTConfig('o')\n", 3, "",
     "!AutoModelForImageTextToText"),
    ("0.11", "from trl import PPOConfig, PPOTrainer\n"
     "c = PPOConfig(batch_size=64, mini_batch_size=16, target=6, seed=s, gradient_accumulation_steps=2)\n"
     "PPOTrainer(c, m, None, t)\n", 3, "", "!--ppo_epochs 4 --clip_eps_low 0.2 --clip_eps_high 0.2 --vf_coef "
     "0.1|!--gae_lambda 0.95|!--batch_size 64|!--minibatches 2|!no flag was found for target=6, seed=s"),
    ("0.14", UNSLOTH + GRPO + "args = GRPOConfig('o')\n" + TRAINED, 3, "",
     "!unsloth replaces code of TRL|!BitsAndBytesConfig(load_in_4bit=True)|!peft_config=LoraConfig"),
    ("0.17", "from trl import GRPOConfig, PairRMJudge\nGRPOConfig('o')\n", 3, "", "!that asks the judge"),
    # a trainer without a successor
    ("0.17", "from trl import NashMDConfig\nNashMDConfig('o')\n", 3, "", "!with trl==0.17: no"),
    ("0.17", GRPO + "import dataclasses\nargs = dataclasses.replace(GRPOConfig('o'), beta=1)\n" + TRAINED, 3, "",
     "!one call GRPOConfig|!prompts are cut to 512"),
    ("0.17", GRPO + "if x:\n    args = GRPOConfig('o')\nelse:\n    args = GRPOConfig('o', max_prompt_length=9)\n"
     + TRAINED, 3, "", "!one call GRPOConfig|!max_prompt_length=9"),
    ("0.17", GRPO + "args = GRPOConfig('o')\nfor k, v in x.items():\n    setattr(args, k, v)\n" + TRAINED, 3, "",
     "!setattr(args, k, v)"),
    ("0.17", GRPO + "d = dict(output_dir='o')\nd.update(x)\nargs = GRPOConfig(**d)\n" + TRAINED, 3, "", "!one call"),
    ("0.17", GRPO + "class Mine(GRPOTrainer):\n    def compute_loss(self): ...\n"
     "Mine('m', print, GRPOConfig('o'), rows).train()\n", 3, "", "!Mine.compute_loss"),
    # overridden in a class that another file calls
    ("0.17", GRPO + "class Ours(GRPOTrainer): ...\nclass Mine(Ours):\n    async def log(self): ...\n"
     "def f(x): return isinstance(x, GRPOTrainer)\n", 3, "", "!Mine.log"),
    # arguments out of sight
    ("0.17", SFT + "k = dict(model='m', args=SFTConfig('o'))\nk[name] = t\nSFTTrainer(**k)\n"
     "SFTTrainer('m', args=SFTConfig('p'), **f())\n", 3, "", '!k[name]|!"f()", "why": "arguments of SFTTrainer'),
    ("0.17", "import trl\ngetattr(trl, 'GRPOTrainer')('m', tokenizer=t)\n", 3, "", "!getattr(trl, 'GRPOTrainer')"),
    ("0.17", GRPO + "GRPOTrainer._get_train_sampler = f\nargs = GRPOConfig('o')\n" + TRAINED, 3, "",
     "!GRPOTrainer._get_train_sampler"),
    # the second of two classes
    ("0.17", "from trl import DPOConfig, DPOTrainer, KTOTrainer\nT = DPOTrainer if x else KTOTrainer\n"
     "T('m', args=DPOConfig('o'))\n", 3, "", '!"KTOTrainer"'),
    # items of a dictionary
    ("0.17", "import trl\nT, C = {'a': trl.DPOTrainer}, dict(a=trl.DPOConfig)\nT[k]('m', args=C[k]('o', seed=1))\n", 3,
     "", '!"trl.DPOTrainer", "why": "called where it cannot be seen|!"trl.DPOConfig"'),
    ("0.17", GRPO + "partial(GRPOTrainer, 'm', args=partial(GRPOConfig, 'o')(beta=1), tokenizer=t)(reward_funcs=[])\n",
     3, "", '!"GRPOTrainer"|!"GRPOConfig"'),
    # parsed for another file
    ("0.17", GRPO + "run(*TrlParser((GRPOConfig, ModelConfig)).parse_args_and_config())\n", 3, "", '!"GRPOConfig"'),
    ("0.17", "from trl import KTOConfig, KTOTrainer\nKTOTrainer(m, r, KTOConfig('o'), rows)\n", 3, "", "!NAME=VALUE"),
    ("0.17", GRPO + "class Own(GRPOConfig):\n    beta: float = 0.5\nGRPOTrainer('m', print, Own('o'), rows).train()\n",
     3, "", "!Own('o')|!one call GRPOConfig"),
    # prompts of distillation
    ("1.5", "from trl.experimental.distillation import DistillationConfig as C, DistillationTrainer\n"
     "DistillationTrainer('m', 't', C('o', lmbda=1.0, loss_top_k=1, max_prompt_length=9))\n", 3, "",
     "!max_prompt_length=9|!loss_top_k=1"),
    # a module that is gone
    ("1.0", "from trl.experimental.judges import HfPairwiseJudge\n", 3, "", "!trl.experimental.judges"),
    # a new name of other configs
    ("0.24", "from trl import OnlineDPOConfig\nOnlineDPOConfig('o', use_transformers_paged=True)\n", 3, "",
     "!use_transformers_paged=True"),
    ("0.17", "from trl import OnlineDPOConfig as C, OnlineDPOTrainer\n"
     "OnlineDPOTrainer(model='m', judge=j, args=C('o'))\n", 3, "-judge=", "!a reward function that asks the judge"),
    # a config in each function
    ("0.17", BOTH + "def a():\n    args = SFTConfig('o', max_seq_length=5)\n    SFTTrainer('m', args=args)\ndef b():\n"
     "    args = GRPOConfig('o', max_prompt_length=7)\n    GRPOTrainer('m', print, args=args)\n", 0,
     "max_length=5|limit=7", ""),
    # an attribute of self
    ("0.17", BOTH + "class T:\n    def __init__(self):\n        self.args = GRPOConfig('o')\n    def run(self):\n"
     "        GRPOTrainer('m', print, args=self.args)\n", 0, "GRPOConfig('o',|beta=0.04", ""),
    # what a class is made with
    ("0.17", BOTH + "class T:\n    def __init__(self, args):\n        self.args = args\n    def run(self):\n"
     "        GRPOTrainer('m', print, args=self.args)\nT(args=GRPOConfig('o')).run()\n", 0, "GRPOConfig('o',|beta=0.04",
     ""),
    # a dictionary that grows
    ("0.17", BOTH + "d = {'output_dir': 'o', 'warmup_ratio': 0.2}\nif x:\n    d['logging_dir'] = 9\n"
     "d['evaluation_strategy'] = 'no'\nGRPOTrainer('m', print, args=GRPOConfig(**d))\n", 0,
     "'warmup_steps':|0.2|d['eval_strategy']|=|'no'|pass", ""),
    ("0.17", BOTH + "for b in (1, 2):\n    args = GRPOConfig('o', beta=b)\n    GRPOTrainer('m', print, args=args)\n", 0,
     'loss_type="bnpo"|limit=512', ""),
    # arguments of the trainer in a dictionary
    ("0.17", BOTH + "k = dict(model='m', tokenizer=t)\nSFTTrainer(args=SFTConfig('o'), **k)\n", 0,
     "dict(model='m',|processing_class=t)", ""),
    # a name that depends on what runs before is not guessed
    ("0.17", GRPO + "if x:\n    args = GRPOConfig('a')\nelse:\n    args = GRPOConfig('b')\n" + TRAINED, 3, "",
     '!"args=args", "why": "made at run time'),
    ("0.17", GRPO + "args = GRPOConfig('a')\nfor i in x:\n    " + TRAINED + "    args = change(args)\n", 3, "",
     '!"args=args", "why": "made at run time'),
    # calls that are edited need no hand
    ("0.14", GRPO + "args = GRPOConfig('a') if x else GRPOConfig('b')\n" + TRAINED, 3, "",
     "!is edited at line 2|-by hand"),
    # sft_trainer.py:307 of 0.12.2: 1024 at most only where it is None
    ("0.12", SFT + "SFTTrainer('m', args=SFTConfig('o'), max_seq_length=7)\n", 0, "max_length=7", "-1024 positions"),
    ("0.12", "n = None\n" + SFT + "SFTTrainer('m', args=SFTConfig('o'), max_seq_length=n)\n", 0, "-max_length",
     "1024 positions"),
    # what a version alone decides: 0.16.1 puts the end token behind each text
    ("0.14", GRPO + "args = GRPOConfig('o', use_vllm=x)\n" + TRAINED, 0, "top_k=0 if x else 50", ""),
    ("0.15", SFT + "SFTTrainer('m', SFTConfig('o', dataset_text_field='text'))\n", 0, "WithoutEndToken", ""),
    ("0.16", SFT + "SFTTrainer('m', SFTConfig('o', dataset_text_field='text'))\n", 0, "-WithoutEndToken", ""),
    # shuffled micro-batches, further end tokens, a model split over GPUs: what no setting brings back
    ("0.17", GRPO + "GRPOConfig(beta=0.0)\n", 0, "", "completions are shuffled|generation_config.eos|device_map"),
    ("0.25", GRPO + "GRPOConfig(beta=0.0)\n", 0, "", "-completions are shuffled|generation_config.eos|device_map"),
    ("1.14", GRPO + "GRPOConfig(beta=0.0)\n", 0, "", "-completions are shuffled|generation_config.eos|-device_map"),
    ("1.15", GRPO + "GRPOConfig(beta=0.0)\n", 0, "", "-completions are shuffled|-generation_config.eos|-device_map"),
]  # fmt: skip


@pytest.mark.parametrize(("version", "text", "code", "words", "said"), FORMS)
def test_one_form_of_a_script(version, text, code, words, said, tmp_path, capsys):
    """Unix and DOS lines give the same new script."""
    news = []
    for newline in ("\n", "\r\n"):
        (tmp_path / "old.py").write_text(text, newline=newline)
        got, table, _ = migrated(tmp_path, capsys, tmp_path / "old.py", "--from", f"trl=={version}")
        news.append((tmp_path / "new.py").read_bytes().decode())
    assert news[1] == news[0].replace("\n", "\r\n") and got == code, table["not_expressible"]
    said, refused = filter(None, said.split("|")), json.dumps(table["not_expressible"])
    wrong = [x for x in said if missing([x.removeprefix("!")], refused if x[0] == "!" else json.dumps(table))]
    assert wrong == [], table
    assert missing([word for word in words.split("|") if word], news[0]) == [], news[0]
    compile(news[0], "new.py", "exec")


@pytest.mark.parametrize(
    ("version", "mode", "rows"),
    [
        # max_length 6, max_prompt_length 2: a row of 6 stays, a longer prompt is cut, then answers to 6 - 2
        ("0.11", "keep_end", [([1, 2, 3], [4], [5, 6, 7]), ([3, 4], [5], [6, 7, 8, 9]), ([2, 3], [4], [5, 6, 7, 8])]),
        ("0.11", "keep_start", [([1, 2, 3], [4], [5, 6, 7]), ([1, 2], [5], [6, 7, 8, 9]), ([1, 2], [4], [5, 6, 7, 8])]),
        ("0.20", "keep_end", [([2, 3], [4], [5, 6, 7]), ([3, 4], [5], [6, 7, 8, 9]), ([2, 3], [4], [5, 6, 7, 8, 9])]),
    ],
)
def test_rows_of_dpo_are_cut_as_by_the_old_version(version, mode, rows, tmp_path, capsys):
    """Written by hand from _truncate_tokens of 0.11.4 and tokenize_row of 0.20.0."""
    settings = f"'o', max_length=6, max_prompt_length=2, truncation_mode='{mode}'"
    text = f"from trl import DPOConfig, DPOTrainer\nDPOTrainer(m, args=DPOConfig({settings}))\n"
    _, _, new = written(tmp_path, capsys, "old.py", text, f"trl=={version}")
    keys = ("prompt_ids", "chosen_ids", "rejected_ids")
    whole = [([1, 2, 3], [4], [5, 6, 7]), ([1, 2, 3, 4], [5], [6, 7, 8, 9]), ([1, 2, 3], [4], [5, 6, 7, 8, 9])]

    class DPOTrainer:
        def _prepare_dataset(self, rows, tokenizer, args):
            assert args.max_length is None  # TRL leaves out rows whose prompt is longer
            return Dataset.from_list([dict(zip(keys, row, strict=True)) for row in rows])

    (definition,) = [node for node in ast.parse(new).body if isinstance(node, ast.ClassDef)]
    names, args = {"DPOTrainer": DPOTrainer}, SimpleNamespace(max_length=6)
    exec(ast.unparse(definition), names)
    cut = names[definition.name]()._prepare_dataset(whole, None, args)
    assert [tuple(row[key] for key in keys) for row in cut] == rows and args.max_length == 6


def test_names_of_a_class_do_not_hide_those_of_the_script(tmp_path, capsys):
    """`args` of the script, and of TRL's method that the class replaces."""
    text = "from trl import DPOConfig, DPOTrainer\nargs = parse()\nc = DPOConfig('o', max_prompt_length=args.prompt)\n"
    _, _, new = written(tmp_path, capsys, "old.py", text + "DPOTrainer(m, args=c)\n", "trl==0.20")
    (definition,) = [node for node in ast.parse(new).body if isinstance(node, ast.ClassDef)]
    base = SimpleNamespace(_prepare_dataset=lambda self, rows, *_: Dataset.from_list(rows))
    names = {"DPOTrainer": type("DPOTrainer", (), vars(base)), "args": SimpleNamespace(prompt=2)}
    exec(ast.unparse(definition), names)
    rows = [{"prompt_ids": [1, 2, 3], "chosen_ids": [4], "rejected_ids": [5]}]
    (row,) = names[definition.name]()._prepare_dataset(rows, None, SimpleNamespace(max_length=6))
    assert row == {"prompt_ids": [2, 3], "chosen_ids": [4], "rejected_ids": [5]}


def test_rewards_take_what_the_trainer_passes(tmp_path, capsys):
    """Once, where two trainers have one reward; one of another file is named."""
    text = (FILES / "grpo_0.15_countdown.py").read_text()
    text = f"from mine import score\n{text}rewards = [score]\n{text[text.index('trainer = ') :]}"
    text = text.replace("reward_funcs=[", "reward_funcs=[score, ", 1)
    _, table, new = written(tmp_path, capsys, "old.py", text, "trl==0.15")
    assert new.count("**kwargs") == 2 and "score is imported from mine" in "".join(table["notes"])
    assert "def format_reward(completions, answer, **kwargs):" in new
    assert "def length_reward(prompts, completions, **kwargs):" in new


UNSEEN = GRPO + 'cfg = load(open("cfg.yaml"))\nGRPOTrainer("m", print, args=GRPOConfig(**cfg))\n'


PPO = "from trl import PPOConfig, PPOTrainer\nPPOTrainer(PPOConfig(model_name='gpt2-imdb'), m, None, t)\n"
CLEAR_LINES = [
    (GRPO, "trl==0.1", 2, r"got --from trl==0.9 and .* there since 0.14"),
    (GRPO, "torch==2", 2, r"got --from 'torch==2'; expected trl==VERSION"),
    (GRPO + "x = (", None, 2, r"old.py, line 2: got '\(' was never closed; expected Python"),
    (GRPO + "args = GRPOConfig('o', seed=1, seed=2)\n", "trl==0.17", 2,
     r"repeated: seed \(.*old.py, line \d+\).*expected Python.*try"),
    ("import torch\n", None, 2, "which imports nothing from TRL.*try a verl job as a file .sh"),
    ("import torch\n", "verl==0.5", 2, "with --from verl; try a verl job as a file .sh"),
    (GRPO + "GRPOConfig(loss_type='grpo')\n", "trl==0.14", 2, "which TRL|there since 0.17"),
    (GRPO + "GRPOConfig(beta=0.1, num_iterations=2, vllm_device='x')\n", None, 0, "trl 0.16 to 0.17 fit"),
    (UNSEEN, "trl==0.14", 3, r"\*\*cfg: made at run time.*migrate.py FILE.yaml --config_class GRPOConfig"),
    (UNSEEN, "trl==0.14", 3, r"(?s)note: per_device_train_.*note: temperature: .*by hand"),
    ("from trl.rewards import accuracy_reward\n", "trl==1.2", 0, "needs no change"),
    (GRPO + "GRPOConfig(use_adaptive_entropy=True, beta=0)\n", "trl==1.16", 0, "needs no change"),
    # older than the tables
    ("# pip install trl==0.7.4\n" + PPO, None, 3, r"note: read as trl 0.9, with which"),
    (PPO, "trl==0.4.7", 3, "note: read as trl 0.9, with which the tables of changes begin"),
    # a module of TRL has a name as long as TRL itself
    ("from trl.trainer.ppov2_trainer import PPOv2Config, PPOv2Trainer\nPPOv2Trainer(PPOv2Config('o'), t)\n", None, 3,
     "trl 0.11 to 0.12 fit by the names used, and make the same run|trl 0.9 to 0.12 fit"),
    (GRPO + "GRPOConfig('o', learning_rate=1e-6)\n" + TRAINED, None, 2, "try --from trl==0.14, the oldest that fits"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "version", "code", "said"), CLEAR_LINES)
def test_one_clear_line(text, version, code, said, tmp_path, capsys):
    (tmp_path / "old.py").write_text(text)
    out = [f"--out={tmp_path}/new.py"] if code == 2 else []
    assert migrate.main([str(tmp_path / "old.py"), *out, *([f"--from={version}"] if version else [])]) == code
    captured = capsys.readouterr()
    assert re.search(said, captured.out + captured.err) and not (tmp_path / "new.py").exists()


def test_the_nearest_version_has_names_that_are_gone_not_names_to_come(tmp_path, capsys):
    """A job of verl's main branch between 0.2 and 0.3: --from 0.2 would refuse what came with 0.3."""
    words = "actor_rollout_ref.actor.fsdp_config.grad_offload=False custom_reward_function.name=f"
    (tmp_path / "run.sh").write_text(f"python3 -m verl.trainer.main_ppo {words} custom_reward_function.path=r.py\n")
    assert migrate.main([str(tmp_path / "run.sh")]) == 2 and "try --from verl==0.3" in capsys.readouterr().err
    assert migrate.main([str(tmp_path / "run.sh"), "--from", "verl==0.3"]) in (0, 3)


def test_the_version_is_found_by_a_pin_or_by_names(tmp_path, capsys):
    (tmp_path / "old.py").write_text("# pip install trl==0.14.0\n" + (FILES / "grpo_0.14_tldr.py").read_text())
    _, table, text = migrated(tmp_path, capsys, tmp_path / "old.py")
    assert (table["version"], table["found"]) == ("0.14", "pinned in old.py: trl==0.14")
    assert "trl==1.16" in text
    assert migrate.main([str(FILES / "trl_0.14_recipe.yaml")]) == 2
    assert re.search("without a setting of verl; .* try --from trl==", capsys.readouterr().err)
    assert migrate.main([str(FILES / "grpo_0.14_tldr.py")]) == 2
    assert re.search(r"trl 0.14 to 1.16 fit.*\n.*loss_type: .*0.14-0.15: \"grpo\"", capsys.readouterr().err, re.S)


@pytest.mark.parametrize("order", [1, -1])
def test_a_section_that_a_setting_refers_to_moves_to_its_place(tmp_path, order):
    reference = "  reward_kwargs:\n    overlong_buffer_cfg: ${reward_model.overlong_buffer}\n"
    parts = [reference, "  overlong_buffer: {enable: True, len: 4}\n"][::order]
    (tmp_path / "old.yaml").write_text("".join(["reward_model:\n  reward_manager: dapo\n", *parts]))
    migrate.main([str(tmp_path / "old.yaml"), "--from=verl==0.5", f"--out={tmp_path}/new.yaml"])
    new = yaml.safe_load((tmp_path / "new.yaml").read_text())
    assert new["reward"]["reward_kwargs"]["overlong_buffer_cfg"] == {"enable": True, "len": 4}


def test_a_notebook_keeps_its_magics(tmp_path, capsys):
    """Only lines of code change: outputs, metadata, magics, shell and help stay; a second time nothing changes."""
    script = (FILES / "grpo_0.14_tldr.py").read_text()
    cells = [
        "%%capture\n!pip install trl==0.14.0 \\\n  peft\nif x:\n  !ls \\\na\n  !ls",
        "%cd /content\nrows = !ls\nn = %time 1 + 1\nn?\n?print",
    ]
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
    assert re.match(r"%%capture\n# Migrated .*\n!pip install trl==1.16.\* \\\n  peft\nif x:\n  !ls", sources[0])
    assert sources[1::2] == cells[1::2] and "per_device_train_batch_size=8" in sources[2]
    assert migrate.main([str(tmp_path / "new.ipynb")]) == 0 and "was migrated before" in capsys.readouterr().out


def test_a_changed_line_names_the_old_packages_source(tmp_path, capsys):
    _, table, _ = migrated(tmp_path, capsys, FILES / "grpo_0.14_tldr.py", "--from", "trl==0.14")
    sources = {row["setting"].split("=")[0]: row["source"] for row in table["changes"]}
    assert sources["loss_type"] == "TRL 0.14.0 trl/trainer/grpo_trainer.py:512, and 0.15"
    assert sources["gradient_checkpointing"] == ""  # a default, which the signature shows
    assert any("left pads" in note for note in table["notes"])


@pytest.mark.long
@pytest.mark.parametrize("name", "grpo_0.14_gsm8k sft_0.13_formatting dpo_0.11_arguments gkd_0.15".split())
def test_the_new_script_trains_one_step(name, tmp_path, capsys, monkeypatch):
    """GRPO's in a process of its own, as users have it; the others in forks of one that has TRL loaded."""

    def forked(command, folder, environment) -> str:
        done = run_script(Path(command[1]), *command[2:], cwd=folder, env=migrate.QUIET)
        return done.stderr if done.returncode else ""

    if not name.startswith("grpo"):
        monkeypatch.setattr(migrate, "failure_of", forked)
    shutil.copy(FILES / f"{name}.py", tmp_path)
    data = FILES / ("rows.jsonl" if name.startswith(("grpo", "dpo")) else "texts.jsonl")
    flags = ["--from", version_of(name), "--check", "--model", str(TINY_LM), "--data", str(data), "--json"]
    code = migrate.main([str(tmp_path / f"{name}.py"), *flags])
    said = capsys.readouterr()
    assert code == 0, said.err
    trial = json.loads(said.out)["trial"]
    read = {row["setting"]: row["read"] for row in trial["settings"]}
    assert trial["loss"] == trial["loss"] and read["gradient_checkpointing"] is False


# ------------------------------------------------------------------------------------------------ verl jobs

TRAIN = "python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo "
CRITIC = "critic.ppo_micro_batch_size_per_gpu"
PER_GPU, SUM = f"{ACTOR}.ppo_micro_batch_size_per_gpu", f"{ACTOR}.loss_agg_mode=seq-mean-token-sum-norm"
LOSS, NULL = f"{ACTOR}.policy_loss.loss_mode", f"{ACTOR}.clip_ratio=0.3 {ACTOR}.clip_ratio_low=null"
BYPASS = "algorithm.rollout_correction.bypass_mode=True"
KEEP_ONE = "trainer.max_actor_ckpt_to_keep=1 trainer.max_critic_ckpt_to_keep=1"
ENGINE, GEN = "actor_rollout_ref.rollout.engine_kwargs", "data.gen_batch_size"
ONE_SETTING = [  # (version, setting, exit code, what the new job says, what is said)
    # verl 0.3.0.post1 ray_trainer.py:653: one checkpoint of each; 0.8.0: the defaults of rollout.skip
    ("0.2", f"{PER_GPU}=1 trainer.remove_previous_ckpt_in_save=True", 0, KEEP_ONE, "its new form"),
    ("0.2", f"{PER_GPU}=1 trainer.remove_previous_ckpt_in_save=False", 0, "", "the run is the same"),
    ("0.8", "actor_rollout_ref.rollout.skip.max_dump_step=1", 0, "", "the run is the same"),
    ("0.8", "actor_rollout_ref.rollout.skip.max_dump_step=4", 3, "", "skip.rollout, whose steps are a list"),
    ("0.5", f"{PER_GPU}=1 +x.y=1 actor_rollout_ref.rollout.engine_kwargs.vllm.swap_space=4", 0, "+actor", "no key"),
    ("0.5", f"{PER_GPU}=1 data.datagen.path=a.py", 3, "", "a data set class of your own"),
    # core_algos.agg_loss: 0.5 sums a micro-batch / 3000; 0.8 divides by max_response_length, 0.9.1 by the longest
    ("0.5", f"{PER_GPU}=4 {SUM} data.max_response_length=3000", 0, f"{ACTOR}.loss_scale_factor=750", "its rows"),
    ("0.8", f"{SUM} data.max_response_length=$N", 0, f"{ACTOR}.loss_scale_factor=$N", "max_response_length"),
    ("0.5", f"{SUM} {ACTOR}.use_dynamic_bsz=True", 3, "", "max_response_length / ppo_micro_batch_size_per_gpu"),
    ("0.7", f"{PER_GPU}=2", 3, "", "averaged the tokens of a micro-batch"),
    ("0.7", f"{PER_GPU}=1 {ACTOR}.loss_agg_mode=token-mean", 0, f"{ACTOR}.loss_agg_mode=seq-mean-token-mean", "rows"),
    ("0.8", f"{PER_GPU}=2", 0, "", "max_num_seqs (1024)"),
    # verl 0.3 reads clip_ratio; 0.4.1 dp_actor.py:459 reads it only if a side is null
    ("0.3", f"{PER_GPU}=1 {ACTOR}.clip_ratio=0.3", 0, f"{ACTOR}.clip_ratio_high=0.3", "0.4"),
    ("0.5", f"{PER_GPU}=1 {ACTOR}.clip_ratio=0.3", 0, f"{ACTOR}.clip_ratio=0.3", "read only if clip_ratio_low"),
    ("0.5", f"{PER_GPU}=1 {NULL}", 0, NULL, "read only if clip_ratio_low"),
    # compute_policy_loss_gspo of 0.6.1 to 0.8.0 passes its own mean; 0.9.1 passes loss_agg_mode
    ("0.7", f"{PER_GPU}=4 {LOSS}=gspo", 0, f"{ACTOR}.loss_agg_mode=seq-mean-token-mean", "whatever loss_agg_mode said"),
    ("0.8", f"{LOSS}=gspo {ACTOR}.use_kl_loss=True", 3, "", "whatever loss_agg_mode said"),
    ("0.7", f"{LOSS}=gspo {ACTOR}.use_kl_loss=True", 3, "", "whatever loss_agg_mode said"),
    ("0.8", f"{LOSS}=gspo {ACTOR}.entropy_coeff=0.00", 0, f"{ACTOR}.loss_agg_mode=seq-mean-token-mean", "whatever"),
    ("0.8", f"{LOSS}=$LOSS", 3, "", "for gspo: gspo's loss"),
    # compute_policy_loss_geo_mean: torch.mean; dp_actor.py:585 of 0.7.1 divides by the micro-batches, 0.9.1 does not
    ("0.6", f"{PER_GPU}=4 {LOSS}=geo_mean", 3, "", "now it is their sum"),
    ("0.6", f"{PER_GPU}=32 {LOSS}=geo_mean", 0, "", "max_num_seqs"),
    ("0.8", "+algorithm.filter_groups.enable=True", 0, "", "main_ppo did not read it"),
    ("0.8", "+custom_reward_function.reward_kwargs.a=1", 0, "+reward.custom_reward_function.reward_kwargs.a=1", "name"),
    ("0.7", f"{PER_GPU}=2 {ACTOR}.loss_agg_mode=$AGG", 3, "", "known at run time only; for token-mean"),
    ("0.5", f"{PER_GPU}=8 {ACTOR}.ppo_mini_batch_size=8 trainer.n_gpus_per_node=1", 0, "", "only names of keys"),
    ("0.7", f"{PER_GPU}=1 reward_model.enable=True reward_model.rollout.name=sglang", 0, "rollout.name=sglang", "name"),
    ("0.5", f"{PER_GPU}=1 {ACTOR}.use_kl_loss=True", 0, "ref.fsdp_config.model_dtype=bf16", "cut on the left"),
    ("0.2", f"{PER_GPU}=1", 0, "", "a reward saw prompt and response"),
    ("0.6", f"{PER_GPU}=1 reward_model.enable=True", 0, "reward.reward_model.rollout.name=vllm", "FSDP ran"),
    ("0.4", f"{PER_GPU}=1 actor_rollout_ref.rollout.name=hf", 3, "rollout.name=hf", "rollout.name=vllm"),
    ("0.4", f"{PER_GPU}=1 actor_rollout_ref.rollout.name=sglang_async", 3, "name=sglang_async", "rollout.name=sglang"),
    ("0.4", f"{PER_GPU}=1 actor_rollout_ref.rollout.chat_scheduler=a", 3, "", '"nearest": "leaving it out"'),
    # ray_trainer.py:1575 of 0.9.1 corrects in bypass mode, trainer_base.py:1641, the default, does not
    ("0.8", f"{PER_GPU}=1 {BYPASS}", 3, BYPASS, "trainer.use_v1=False, which corrects"),
    # a folder of settings that is not verl's: its values are not known, so none is written over them
    ("0.5", f"{PER_GPU}=1 --config-path=conf --config-name=ppo_trainer", 3, "",
     "defaults that changed are not written"),
    ("0.5", f"{PER_GPU}=1 --config-path=./config --config-name='ppo_trainer.yaml'", 0, "data.seed=1", "another order"),
    # ray_trainer.py of 0.4.1 (line 505) to 0.8.0 (410): the data loader's batch
    ("0.8", f"data.train_batch_size=8 +{GEN}=$((4 * 4))", 0, "data.train_batch_size=$((4", "prompts of a step"),
    ("0.8", f"+{GEN}=16", 0, "data.train_batch_size=16", "prompts of a step"),
    ("0.8", f"n=8\ndata.train_batch_size=8 +{GEN}=$n", 0, f"data.train_batch_size=8 {GEN}=$n", "no +"),
    ("0.8", "~critic.model.fsdp_config ~data.shuffle", 0, "~data.shuffle", "nothing to delete"),
    ("0.5", f"{PER_GPU}=1 ~reward_model.model", 0, "~reward_model.model", "data.seed"),
    # Megatron packs the tokens: its ppo_megatron_trainer.yaml of 0.5 has no use_remove_padding
    ("0.5", f"{PER_GPU}=1 --config-name=ppo_megatron_trainer", 0, "data.seed=1", "and model_engine=megatron"),
    # a variable is its value if one line of its own gives it
    ("0.7", f"m=1 # rows\n{PER_GPU}=$m", 0, f"{PER_GPU}=$m {ACTOR}.loss_agg_mode=seq-mean-token-mean", "one row"),
    ("0.7", f"export m='1'\n{PER_GPU}=\"${{m}}\"", 0, f"{ACTOR}.loss_agg_mode=seq-mean-token-mean", "one row"),
    ("0.7", f"m=1\n[ $x ] && m=2\n{PER_GPU}=$m", 3, "", "averaged the tokens of a micro-batch"),
    ("0.7", f"m=1\nsource my.sh\n{PER_GPU}=$m", 3, "", "averaged the tokens of a micro-batch"),
    ("0.7", f"if x; then\nm=1\nfi\n{PER_GPU}=$m", 3, "", "averaged the tokens of a micro-batch"),
    ("0.3", f"kl=True\n{PER_GPU}=1 {ACTOR}.use_kl_loss=$kl", 0, "use_kl_loss=$kl", "cut on the left"),
    # a key of a section that verl does not have is near one whose last two names are the same
    ("0.4", f"{PER_GPU}=1 retriever.url=a", 3, "", '"nearest": "leaving it out"'),
    ("0.4", f"{PER_GPU}=1 worker.rollout.n=4", 3, "", '"nearest": "actor_rollout_ref.rollout.n"'),
]  # fmt: skip


@pytest.mark.parametrize(("version", "words", "code", "there", "said"), ONE_SETTING)
def test_one_setting_of_a_job(version, words, code, there, said, tmp_path, capsys):
    before, line, words = words.rpartition("\n")
    got, table, text = written(tmp_path, capsys, "old.sh", f"{before}{line}{TRAIN}{words}\n", f"verl=={version}")
    assert missing(there.split(), text) == [] and said in json.dumps(table)
    refused = [x["setting"] for x in table["not_expressible"]]
    assert got == code and len(refused) == len({*refused}), table["not_expressible"]
    assert not any(word.startswith(("trainer.remove", "+algorithm")) for word in text.split())
    assert "megatron" not in words or "use_remove_padding" not in text


def test_each_command_of_a_job_has_its_own_settings(tmp_path, capsys):
    """Of verl 0.3: the KL was in the reward unless a KL loss was used, which one command and one branch do."""
    loss, two = f"{ACTOR}.use_kl_loss=True", TRAIN.replace("grpo", "gae")
    job = f"{TRAIN}{loss} data.seed=7 {PER_GPU}=1\n{two}{PER_GPU}=1 critic.{PER_GPU[24:]}=1\n"
    code, _, text = written(tmp_path, capsys, "old.sh", job, "verl==0.3")
    first, second = text.split("adv_estimator=grpo")[:2]
    assert code == 0 and "use_kl_in_reward" not in first and "data.seed=1" not in first
    assert "algorithm.use_kl_in_reward=True" in second and "data.seed=1" in second
    branch = f'if [ "$A" ]; then\n  EXTRA="{loss} data.seed=7"\nfi\n{TRAIN}{PER_GPU}=1 $EXTRA\n'
    code, table, text = written(tmp_path, capsys, "old.sh", branch, "verl==0.3")
    (refused,) = table["not_expressible"]
    assert code == 3 and "set in a branch" in refused["setting"] and refused["line"] == "line 2"
    assert "data.seed=1 " in text and 'data.seed=7"' in text and "use_kl_in_reward" not in text
    words = [f"{ACTOR}.grad_clip=0.5 {ACTOR}.clip_ratio=0.1", f"{ACTOR}.grad_clip=2.0"]
    both = branch.replace(f"{loss} data.seed=7", f'{words[0]}"; else E="{words[1]}')
    code, table, text = written(tmp_path, capsys, "old.sh", both, "verl==0.3")
    assert "optim.clip_grad=0.5" in text and "optim.clip_grad=2.0" in text  # each its own value
    assert code == 3 and "clip_ratio_high there" in json.dumps(table["not_expressible"])
    # one call of a function is not all of them
    call = f"run {ACTOR}.entropy_coeff=0 \\\n  data.seed=7"
    job = f'run() {{\n  {TRAIN}{PER_GPU}=1 "$@"\n}}\nrun\n{call}\n'
    code, _, text = written(tmp_path, capsys, "old.sh", job, "verl==0.3")
    assert code == 0 and "entropy_coeff=0.001" in text and "data.seed=1 " in text and call in text


def test_pins_change_where_packages_are_installed(tmp_path, capsys):
    text = "# pip install trl==0.17.0 my-trl==0.17 'transformers>=4.48,<4.50' vllm==0.7.2\n# seen with trl==0.17.0\n"
    text += "# /// script\n# dependencies = ['trl~=0.17']\n# ///\n" + GRPO
    _, table, new = written(tmp_path, capsys, "old.py", text, "trl==0.17")
    assert "# pip install trl==1.16.* my-trl==0.17 'transformers==5.23.*' vllm==0.7.2\n# seen with trl==0.17.0\n" in new
    assert "['trl==1.16.*']" in new and any("vllm==0.7.2" in note for note in table["notes"])
    ray = """ray job submit --runtime-env-json '{"pip": ["verl==0.8.0"]}' -- """
    job = f"pip install verl==0.8.0 'torch<2.7'\n{ray}{TRAIN}{PER_GPU}=1\n"
    _, table, new = written(tmp_path, capsys, "old.sh", job, "verl==0.8")
    assert "pip install verl==0.9.* 'torch<2.7'" in new and '"pip": ["verl==0.9.*"]' in new
    assert any("torch<2.7" in note for note in table["notes"])


def test_quotes_stay(tmp_path, capsys):
    """Around several settings, inside a word ('a'b'c'); an apostrophe in a text behind << opens nothing."""
    text = "A=\"critic.grad_clip=1 data.truncation='error' data.seed=$S\"  # don't data.truncation=error\n"
    text += f'{TRAIN}$A {PER_GPU}=1 "+reward_model.reward_kwargs.x={{a: 1, b: 2}}"\n'
    _, _, new = written(tmp_path, capsys, "old.sh", text, "verl==0.8")
    expected = 'A="critic.optim.clip_grad=1 data.seed=$S"  # don\'t data.truncation=error\n'
    expected += f'{TRAIN}$A {PER_GPU}=1 "+reward.reward_kwargs.x={{a: 1, b: 2}}"\n'
    assert new.split("\n", 1)[1] == expected
    head = "V='['a.parquet', 'b.parquet']'\ncat > x.py << EOF\n# don't\nEOF\n"
    text = f"{head}{TRAIN}{PER_GPU}=1 {ACTOR}.checkpoint.contents=['model', 'extra'] +{ENGINE}.vllm.a=True\n"
    _, table, new = written(tmp_path, capsys, "old.sh", text, "verl==0.3")
    assert f" {ACTOR}.checkpoint.save_contents=['model', 'extra'] +{ENGINE}.vllm.a=True\n" in new and head in new
    assert not any("engine_kwargs" in row["setting"] for row in table["changes"])  # it stays as it is


# ------------------------------------------------------------------------------------------------ YAML

ONE_ROW = "actor_rollout_ref:\n  rollout:\n    name: vllm\n  actor:\n    ppo_micro_batch_size_per_gpu: 1\n"
BRACES = "data: {max_prompt_length: 9, truncation: error}\n" + ONE_ROW
NEW_ACTOR = {"ppo_micro_batch_size_per_gpu": 1, "optim": {"clip_grad": 0.5}}
OPTIM = "    optim: {warmup_style: cosine,\n      lr: 1.0}\n    grad_clip: 0.5\n"
JOBS = [  # (job of verl 0.5, a section of the new one, its settings, what is said)
    # names that other values use are no settings
    ("size: 1\nrows: &rows 1\nother: 2\nactor_rollout_ref:\n  actor:\n    ppo_micro_batch_size_per_gpu: *rows\n"
     "  rollout:\n    n: ${size}\nalgorithm: {adv_estimator: grpo}\n", "other", 2,
     '"setting": "other"|-"setting": "rows'),
    # in braces, and without a last line's end
    (BRACES + "    grad_clip: 0.5", "actor_rollout_ref.actor", NEW_ACTOR, ""),
    (BRACES + "    grad_clip: 0.5\n", "data", {"max_prompt_length": 9, "seed": 1}, ""),
    (BRACES + "    grad_clip: 0.5\ntrainer:\n  nnodes: 1\n", "actor_rollout_ref.actor", NEW_ACTOR, ""),
    # a section in braces moves as a whole
    ("reward_model: {reward_manager: naive}\n" + ONE_ROW + OPTIM, "reward", {"reward_manager": {"name": "naive"}},
     '"line": "line 1", "setting": "reward.reward_manager.name=naive"'),
    (ONE_ROW + OPTIM, "actor_rollout_ref.actor.optim",
     {"lr_scheduler_type": "cosine", "lr": 1.0, "clip_grad": 0.5}, ""),
    ("reward_model:\n  sandbox_fusion: {url: x, max_concurrent: 3}\n" + ONE_ROW, "reward.sandbox_fusion",
     {"url": "x", "max_concurrent": 3}, '"line": "line 2", "setting": "reward.sandbox_fusion.max_concurrent=3"'),
    ((FILES / "verl_0.3_job.yaml").read_text(), "reward.custom_reward_function",
     {"path": "my_reward.py", "name": "score"}, ""),
]  # fmt: skip


@pytest.mark.parametrize(("text", "section", "settings", "said"), JOBS)
def test_a_job_in_yaml_keeps_its_sections_and_comments(text, section, settings, said, tmp_path, capsys):
    import yaml

    _, table, new = written(tmp_path, capsys, "old.yaml", text, "verl==0.5")
    tree = yaml.safe_load(new)
    for name in section.split("."):
        tree = tree[name]
    assert tree == settings and not {"reward_model", "custom_reward_function"} & {*yaml.safe_load(new)}
    assert missing([word for word in said.split("|") if word], json.dumps(table)) == []
    assert re.findall("#.*", text) == re.findall("#.*", new.partition("\n")[2])


YAMLS = [  # (version, settings, exit code, what the new file says)
    ("0.17", "m: {n: x}\ntrain:\n  num_generations: 8\n  warmup_ratio: 0.1\n", 3,
     "  warmup_steps: 0.1\n  beta: 0.04|-\nbeta"),
    ("0.17", "beta: 0.1\nseed: 1\ngeneration_kwargs: {top_p: 1.0, top_k: 0, min_p: 0}\n", 3,
     "\nbf16: false|-, bf16"),
    ("0.17", "x: &n 9\nnum_generations: 8\nmax_prompt_length: *n\n", 3,
     "x: &n 9\nnum_generations: 8\nbeta|-max_prompt"),
    ("0.17", "x: &x {evaluation_strategy: no}\n<<: *x\nseed: 1\n", 3,
     "x: &x {eval_strategy: false}\n<<: *x\nseed: 1\nbeta|-evaluation"),
    ("0.17", "max_prompt_length: &n 9\nmax_completion_length: *n\n", 2, "undefined alias 'n'"),
    # a few settings of an evaluation beside those of the run
    ("0.17", "a: {temperature: 0.1, top_p: 0.9, top_k: 5}\nb:\n  seed: 2\n  beta: 0.2\n  num_generations: 2\n"
     "  epsilon: 0.2\n  learning_rate: 0.1\n  output_dir: o\n", 3, "  output_dir: o\n  bf16: false"),
    ("0.17", "a: {seed: 1, beta: 0.1, epsilon: 0.1}\nb: {seed: 2, beta: 0.2, num_generations: 2, epsilon: 0.2}\n", 2,
     "in b and in a"),
    ("0.14", "temperature: 0.5\nnum_generations: many\n", 3,
     "generation_kwargs:\n  temperature: 0.5\n|!per_device_train_batch_size"),
    ("0.12", "output_dir: o\ndataset_text_field: text\nmax_seq_length: 9\n", 3, "completion_only_loss: false\n"
     '|max_length: 9\n|!texts got no end token|!"line": "line 2"|-max_seq'),
    ("0.16", "distributed_type: DEEPSPEED\nnum_processes: 8\n", 0, "is accelerate's"),
]  # fmt: skip


@pytest.mark.parametrize(("version", "text", "code", "words"), YAMLS)
def test_one_form_of_a_yaml(version, text, code, words, tmp_path, capsys):
    old, new = tmp_path / "old.yaml", tmp_path / "new.yaml"
    old.write_text(text)
    kind = "SFTConfig" if "dataset_text_field" in text else "GRPOConfig"
    got = migrate.main([str(old), "--from", f"trl=={version}", "--config_class", kind, "--out", str(new), "--json"])
    said = capsys.readouterr()
    lost = json.dumps(json.loads(said.out)["not_expressible"]) if new.exists() else ""
    text = new.read_text() if new.exists() else said.out + said.err
    wrong = [w for w in words.split("|") if missing([w.removeprefix("!")], lost if w[0] == "!" else text)]
    assert got == code and wrong == [], text
