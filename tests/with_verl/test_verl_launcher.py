"""scripts/verl_train.py with the installed verl: what composes, loads and is found, runs on CPU, and a Ray cluster."""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import EVAL_DATA, ROOT, SCRIPTS, TINY_LM, TRAIN_DATA, load_module, load_script, read_lines, run_script
from omegaconf import OmegaConf
from verl_helpers import CPU_OVERRIDES, LIMIT, cpu_env, forked_workers, run_command
from verl_scripts import words_of

launcher = load_script("verl_train")
ppo = load_script("ppo_train")

# the launcher's own settings decide these, or it refuses them
OWN = ("trainer.n", "transfer_queue", "ray_kwargs.ray_init.num_cpus", "critic.fsdp", "critic.strategy")
OWN += tuple(f"actor_rollout_ref.{name}" for name in ("actor.use_torch", "ref.use_torch", "actor.strategy"))
CPU = [f"--override={t}" for t in CPU_OVERRIDES if not t.startswith(OWN) and "mixed_precision" not in t]
CPU += ["--precision=fp32"]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Flags of a small set of prompts."""
    folder = tmp_path_factory.mktemp("data")
    for name, source, count in (("train", TRAIN_DATA, 32), ("eval", EVAL_DATA, 4)):
        (folder / f"{name}.jsonl").write_text("".join(source.read_text().splitlines(keepends=True)[:count]))
    sizes = ["--batch_size=16", "--max_prompt_tokens=32", "--max_new_tokens=24", "--lr=1e-3"]
    return [f"--data={folder}/train.jsonl", f"--eval_data={folder}/eval.jsonl", *sizes]


def layout(**changes):
    """A job whose files lie in /job."""
    given = {"folder": "/job", "output": "/out", "template": None, "held_out": True, "cpus": 16, "columns": []}
    return launcher.Layout(**(given | {"parameters": 7e9} | changes))


def composed(*flags, **changes):
    """verl's configuration of a command line, which has to compose."""
    config = launcher.parse_config(["--print", *flags])
    launcher.check_expressible(config)
    found, refused = launcher.compose_config(launcher.make_overrides(config, layout(**changes)))
    assert not refused
    return found


# ------------------------------------------------------------------------------------------------ composing

VARIANTS = [
    [],
    ["--mismatch=icepop", "--lora_rank=8", "--lr_schedule=cosine", "--sequence_parallel=2", "--offload=all"],
    ["--kl_coef=0.02", "--kl_in=loss", "--kl_estimator=k3_ratio", "--minibatches=1", "--ppo_epochs=1"],
]
PRESETS = [name for name in launcher.PRESETS if name not in ("gdpo", "remax")]


@pytest.mark.parametrize("number", range(len(PRESETS)), ids=PRESETS)
def test_every_preset_composes_and_passes_verls_validation(number):
    found = composed("--algorithm", PRESETS[number], *VARIANTS[number % len(VARIANTS)])
    assert launcher.config_findings(found) == []


def test_values_arrive_as_they_were_meant():
    texts = ["it's", "{{ bos_token }}{% for m in x %}{{ m['content'] }}{{ '\\n' }}{% endfor %}", "a b", "null", "1", ""]
    texts += ["back\\slash", "end\\", "quo\\'te", 'dou"ble', "[a]", "{a: b}", "a,b", "ü=1", "/gärtner/x", "$x", "#"]
    config = launcher.parse_config(["--print"])
    extra = [
        launcher.Override(f"+trainer.text_{i}", launcher.hydra_value(text), "override", True)
        for i, text in enumerate(texts)
    ]
    found, refused = launcher.compose_config([*launcher.make_overrides(config, layout()), *extra])
    assert not refused and [found.trainer[f"text_{i}"] for i in range(len(texts))] == texts
    found = composed("--mismatch=icepop")
    assert found.algorithm.rollout_correction.rollout_is_threshold == "0.5_2.0"
    assert found.actor_rollout_ref.actor.optim.override_optimizer_config == {"eps": 1e-8}


def test_adam_and_precision_reach_what_verl_builds():
    from verl.utils.config import omega_conf_to_dataclass
    from verl.workers.config.optimizer import build_optimizer

    adam = ["--adam_beta2=0.95", "--adam_eps=1e-6", "--lr=3e-6", "--critic_lr=1e-5", "--weight_decay=0.125"]
    found = composed("--precision=fp16", *adam)
    actor, ref = found.actor_rollout_ref.actor, found.actor_rollout_ref.ref
    for optim, lr in ((actor.optim, 3e-6), (found.critic.optim, 1e-5)):
        built = build_optimizer([torch.nn.Parameter(torch.zeros(1))], omega_conf_to_dataclass(optim))
        (group,) = built.param_groups
        assert (group["lr"], tuple(group["betas"]), group["eps"]) == (lr, (0.9, 0.95), 1e-6)
        assert group["weight_decay"] == 0.125
    for part, weights in ((actor.fsdp_config, "fp32"), (ref.fsdp_config, "fp16"), (found.critic.fsdp, "fp32")):
        engine = omega_conf_to_dataclass(part)
        assert (engine.mixed_precision["param_dtype"], engine.model_dtype) == ("fp16", weights)


@pytest.mark.parametrize("weights", [[], ["--override=actor_rollout_ref.actor.fsdp_config.model_dtype=bf16"]])
@pytest.mark.parametrize("lora", [[], ["--lora_rank=16", "--kl_coef=0.1"]])
def test_the_memory_plan_counts_the_weights_that_the_job_trains(lora, weights):
    """Weights of a size without a config.json; verl casts adapters to the dtype of the base."""
    flags = ["--algorithm=grpo", "--model=nobody/m-7B", *lora, *weights]
    actor = composed(*flags).actor_rollout_ref.actor.fsdp_config
    width = {"fp32": 4, "bf16": 2}[actor.model_dtype]
    plan = launcher.memory_plan(launcher.parse_config(["--print", *flags]), 7e9)
    assert plan["weights"] == pytest.approx(7e9 * width / 2**30, abs=1e-3)
    assert width == (2 if weights else 4) and actor.mixed_precision.param_dtype == "bf16"
    text = "".join(o.text() for o in launcher.make_overrides(launcher.parse_config(["--print", *flags]), layout()))
    assert "actor_rollout_ref.ref." not in text  # there is none, or the actor without its adapter


def test_an_engine_reads_each_key_that_we_give_it():
    """verl's configuration has keys that no engine reads, such as FSDP's `dtype`."""
    import verl

    code = "".join(path.read_text() for path in Path(verl.__file__).parent.joinpath("workers/engine/fsdp").glob("*.py"))
    overrides = launcher.make_overrides(launcher.parse_config(["--print", "--sequence_parallel=2"]), layout())
    names = [match[1] for o in overrides if (match := re.search(r"\.fsdp(?:_config)?\.(\w+)", o.key))]
    assert len(names) > 10 and [name for name in names if f"engine_config.{name}" not in code] == []


def test_a_value_that_hydra_refuses_is_named():
    for text, got in (("data.x=[1", "got data.x=[1 (from override)"), ("nothing.at.all=2", "nothing.at.all")):
        config = launcher.parse_config(["--print", f"--override={text}"])
        found, [refused] = launcher.compose_config(launcher.make_overrides(config, layout()))
        assert found is None and got in refused and "which verl refuses" in refused


def test_verl_takes_every_trap_without_a_word():
    leaves = {
        "custom_reward_function": "custom_reward_function.path=x.py",
        "reward_model": "reward_model.reward_manager=dapo",
        "reward.custom_reward_function": "reward.custom_reward_function.path=x.py",
        "reward.reward_manager": "reward.reward_manager.name=dapo",
        launcher.SAMPLER: f"{launcher.SAMPLER}.path=null",
        launcher.KWARGS: f"+{launcher.KWARGS}.x=1",
        "trainer.v1.sampler.sync_refill_failed_groups": "trainer.v1.sampler.sync_refill_failed_groups=True",
        "trainer.v1.trainer_mode": "trainer.v1.trainer_mode=colocate_async",
        "trainer.use_v1": "trainer.use_v1=False",
    }
    texts = [leaves.get(trap, f"{trap}=1") for trap in launcher.TRAPS]
    users = [launcher.Override(*text.split("=", 1), "override", True) for text in texts]
    keys = {user.key.lstrip("+") for user in users}
    ours = launcher.make_overrides(launcher.parse_config(["--print"]), layout())
    found, refused = launcher.compose_config([*(o for o in ours if o.key not in keys), *users])
    assert not refused and found.custom_reward_function.path == "x.py"


def test_each_old_key_is_where_todays_table_says():
    """What verl no longer has, its files lack; what it ignores composes; each key to write instead is there."""
    base, _ = launcher.compose_config([])
    tree = OmegaConf.to_container(base, resolve=False)

    def there(key: str) -> bool:
        node = tree
        for name in key.split("."):
            if not isinstance(node, dict) or name not in node:
                return False
            node = node[name]
        return True

    sections = "actor_rollout_ref|algorithm|critic|data|ray_kwargs|reward"
    for trap, (what, instead) in launcher.TODAY.items():
        assert there(trap.partition("=")[0]) == (what != launcher.GONE), trap
        for plus, key in re.findall(rf"(\+?)\b((?:{sections})\.[\w.]+)", instead):
            assert there(key) == (not plus), (trap, key)


def test_names_are_those_of_the_installed_verl():
    """assets/verl_keys.txt, which stands in where verl is not installed, and what Hydra says of the same overrides."""
    done = subprocess.run([sys.executable, ROOT / "tools" / "verl_keys.py", "--check"], capture_output=True)
    assert done.returncode == 0, "try .venv-verl/bin/python tools/verl_keys.py"
    words = "data.train_batch_size=64 data.train_batchsize=64 +data.train_batch_size=64 ++data.anything=1 +data.new=1"
    words += " +data.apply_chat_template_kwargs={enable_thinking:false} ++data.seed=1"
    words += " +actor_rollout_ref.actor.optim.lr=1"
    words += " ~actor_rollout_ref.actor.optim.lr ~actor_rollout_ref.actor.optim.lrr actor_rollout_ref.actor.optim.lrr=1"
    words += " actor_rollout_ref.actor.megatron.seed=1 trainer.logger=[console] +reward.reward_kwargs.x=1"
    verdicts = {}
    for word in words.split():
        key, _, value = word.partition("=")
        override = launcher.Override(key, value if "=" in word else None, "here", True)
        verdicts[word] = (bool(launcher.name_findings([override])), bool(launcher.compose_config([override])[1]))
    assert {word: v for word, v in verdicts.items() if v[0] != v[1]} == {}
    assert 5 <= sum(v[0] for v in verdicts.values()) < len(verdicts)


def test_an_exported_command_is_composed_and_validated(tmp_path, capsys):
    """run.sh of --export, with and without flash_attn: each of its keys is verl's own, none needs our hooks."""
    shutil.copy(ROOT / "evals" / "files" / "trl_run.py", tmp_path)
    row = {"prompt": [{"role": "user", "content": "1 + 1"}], "answer": "#### 2"}
    (tmp_path / "word_problems.jsonl").write_text(f"{json.dumps(row)}\n" * 40)
    argv = [f"--from_trl={tmp_path}/trl_run.py", "--hardware=8x80GB", f"--export={tmp_path}/port", f"--model={TINY_LM}"]
    assert launcher.main(argv) == 0
    for no_flash in (0, 1):
        words, _ = words_of(tmp_path / "port" / "run.sh", tmp_path / "bin", no_flash=no_flash)
        lines = "\n".join(words[3:])
        assert lines.count("attn_implementation=sdpa") == no_flash
        capsys.readouterr()
        assert checked(tmp_path, capsys, lines)[:2] == (0, "")
    many = lines + "\nray_kwargs.ray_init.num_cpus=many\n"
    assert "num_cpus=many; expected an integer" in checked(tmp_path, capsys, many)[1]


def checked(folder: Path, capsys, text: str) -> tuple[int, str, str]:
    """(Exit code, findings, what is said) of --check --overrides on a file of that text."""
    (folder / "o.txt").write_text(text)
    code = launcher.main(["--check", "--overrides", str(folder / "o.txt")])
    out, err = capsys.readouterr()
    return code, "\n".join(json.loads(out)["findings"]), err


def test_the_script_of_the_quickstart_and_an_old_one(tmp_path, capsys):
    """The page's run.sh is all that verl needs; in the same with keys of older guides each is named."""
    page = (ROOT / "references" / "verl_quickstart.md").read_text(encoding="utf-8")
    (text,) = re.findall(r"```shell\n(#!.*?)```", page, re.DOTALL)

    def check(script: str) -> tuple[int, str, str]:
        copy = ["bash", "-c", script.replace("python3 -m verl.trainer.main_ppo", r"printf '%s\n'")]
        return checked(tmp_path, capsys, subprocess.run(copy, capture_output=True, text=True, check=True).stdout)

    code, findings, said = check(text)
    assert (findings, code) == ("", 0) and "no clip acts" not in said
    old = text.replace("reward.custom_reward_function.", "custom_reward_function.")
    old = old.replace("clip_ratio_low=0.2", "clip_ratio=0.2").replace("mini_batch_size=32", "mini_batch_size=128")
    code, findings, said = check(old.replace("actor_rollout_ref.actor.clip_ratio_high=0.28 ", ""))
    assert code == 1 and "no clip acts" in said
    for key in ("custom_reward_function.path", "custom_reward_function.name", "actor_rollout_ref.actor.clip_ratio=0.2"):
        assert re.search(rf"got {re.escape(key)}.*o\.txt, line \d", findings), (key, findings)
    code, findings, _ = check(text.replace("trainer.nnodes=1", "trainer.nnodes=$NODES_OF_NOBODY"))
    assert code == 1 and "got trainer.nnodes=; expected an integer" in findings
    for name in ("+actor_rollout_ref.rollout.name=vllm", "actor_rollout_ref.rollout.name=hf"):  # told once
        findings = check(text.replace("actor_rollout_ref.rollout.name=vllm", name))[1]
        assert name in findings and "missing" not in findings and "\n" not in findings
    findings = check(text.replace("rollout.name=vllm", "rollout.name='???'"))[1]
    assert findings == "missing: got no actor_rollout_ref.rollout.name; expected it, as verl has no default"


REWARD = "def compute_score(data_source, solution_str, ground_truth, extra_info=None):\n    return "
PAYS = REWARD + "float(ground_truth in solution_str)"
JOBS = {  # what a job by hand has instead: its reward, columns of its rows, overrides; and what is found
    "dictionary": ({"reward": REWARD + "{'score': 0.5}"}, ""),
    "coroutine": ({"reward": f"async {PAYS}"}, ""),
    "default": ({"reward": "", "data_source": "openai/gsm8k"}, ""),
    "key": ({"lines": ["data.reward_fn_key=data_source"]}, ""),
    "away": ({"lines": ["data.train_files=/cluster/t.parquet"], "reward": ""}, ""),
    "other key": ({"lines": ["data.reward_fn_key=source"]}, "verl 0.9.1 ignores it; try the column data_source"),
    "signature": ({"reward": "def compute_score(text, truth):\n    return 1.0"}, "call raises TypeError"),
    "none": ({"reward": REWARD + "None"}, "call raises TypeError"),
    "nan": ({"reward": REWARD + "float('nan')"}, "a score that is not finite"),
    "import": ({"reward": "import nothing_at_all"}, "No module named 'nothing_at_all'"),
    "no reward": ({"reward": ""}, "NotImplementedError"),
    "source": ({"data_source": None}, "expected data_source and reward_model.ground_truth"),
    "truth": ({"reward_model": {"style": "rule"}}, "expected data_source and reward_model.ground_truth"),
    "text": ({"prompt": "1+1="}, "expected prompt with chat messages"),
    "schema": ({"prompt": None}, "KeyError: 'prompt'; expected prompt with chat messages"),
    "few": ({"lines": ["data.train_batch_size=64", "actor_rollout_ref.actor.ppo_mini_batch_size=64"]}, "got 16 of 16"),
    "long": ({"lines": ["data.max_prompt_length=2"]}, "got a prompt of 7 tokens with data.max_prompt_length=2"),
}


@pytest.mark.parametrize("name", JOBS)
def test_rows_and_reward_of_a_job_by_hand(tmp_path, capsys, name):
    import pyarrow
    import pyarrow.parquet

    (changes, finding), rollout, actor = JOBS[name], "actor_rollout_ref.rollout", "actor_rollout_ref.actor"
    row = {"data_source": "mine", "prompt": [{"role": "user", "content": "1+1="}]}
    row |= {"reward_model": {"style": "rule", "ground_truth": "2"}, "extra_info": {"index": 0}}
    row = {key: x for key in row if (x := changes.get(key, row[key])) is not None}
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([row] * 16), tmp_path / "t.parquet")
    lines = [f"data.train_files={tmp_path}/t.parquet", "data.train_batch_size=8", f"{actor}.ppo_mini_batch_size=8"]
    lines += [f"actor_rollout_ref.model.path={TINY_LM}", f"{rollout}.name=vllm", f"{actor}.use_dynamic_bsz=True"]
    lines += ["algorithm.adv_estimator=grpo", "trainer.save_freq=5", "critic.enable=False"]
    if reward := changes.get("reward", PAYS):
        (tmp_path / "r.py").write_text(reward + "\n")
        lines.append(f"reward.custom_reward_function.path={tmp_path}/r.py")
    given = [line.partition("=")[0] for line in changes.get("lines", [])]
    lines = [line for line in lines if line.partition("=")[0] not in given] + changes.get("lines", [])
    code, findings, _ = checked(tmp_path, capsys, "\n".join(lines))
    assert (code, bool(findings)) == (bool(finding), bool(finding)) and finding in findings, findings


def test_overrides_by_hand_are_composed_and_validated(tmp_path, capsys):
    import pyarrow
    import pyarrow.parquet

    rollout, dynamic = "actor_rollout_ref.rollout", "actor_rollout_ref.actor.use_dynamic_bsz=True"
    lines = ["algorithm.adv_estimator=grpo", f"{rollout}.name=vllm", "data.train_batch_size=64", f"{rollout}.n=8"]
    lines += ["actor_rollout_ref.actor.ppo_mini_batch_size=64", "trainer.save_freq=5"]
    lines += ["critic.enable=False"]  # else verl warns that it does so
    pyarrow.parquet.write_table(pyarrow.table({"prompt": ["?"] * 130}), tmp_path / "t.parquet")
    many = [dynamic, f"{rollout}.mode=sync", f"{rollout}.calculate_log_prob=True", "ray_kwargs.ray_init.num_cpus=4"]
    many += ["actor_rollout_ref.actor.clip_ratio=0.1", f"{rollout}.temperature=0"]
    many += [f"{rollout}.val_kwargs.do_sample=True", f"data.train_files={tmp_path}/t.parquet"]
    many += ["trainer.total_epochs=1", "trainer.total_training_steps=99"]
    told = ["try leaving it out: all rollout is asynchronous", f"try {rollout}.calculate_log_probs", "expected 34"]
    told += ["try actor_rollout_ref.actor.clip_ratio_low", "temperature should be greater than 0"]
    cases = [
        ([dynamic], []),
        ([], ["ppo_micro_batch_size_per_gpu"]),  # neither sizes nor a bound on tokens
        ([dynamic, f"{rollout}.name=???"], [f"got no {rollout}.name", "o.txt, line 9; expected it once"]),
        (many, [*told, "1 epochs of 2 steps"]),
        (["+ray_kwargs.ray_init.address=local"] * 2, ["expected it once", "ppo_micro_batch_size_per_gpu"]),
    ]
    for more, expected in cases:
        code, findings, _ = checked(tmp_path, capsys, "\n".join([*lines, *more]))
        assert code == bool(expected) and bool(findings) == bool(expected), findings
        assert [words for words in expected if findings.count(words) != 1] == [], findings


def test_our_estimators_are_registered_once_and_are_ours():
    from verl.trainer.ppo.core_algos import get_adv_estimator_fn

    launcher.register_estimators(Path())
    launcher.register_estimators(Path())
    scores = torch.tensor([1.0, 0.0, 2.0, 0.0, 0.0, 3.0])
    index = np.array(["a", "b", "a", "b", "a", "c"], dtype=object)
    groups = torch.tensor([0, 1, 0, 1, 0, 2])
    mask = torch.ones(6, 3)
    rewards = torch.zeros(6, 3)
    rewards[:, -1] = scores
    for preset in ("gpg", "maxrl"):
        name = composed("--algorithm", preset).algorithm.adv_estimator
        got, _ = get_adv_estimator_fn(name)(token_level_rewards=rewards, response_mask=mask, index=index, config=None)
        torch.testing.assert_close(got, ppo.ADVANTAGES[preset](scores=scores, groups=groups)[:, None] * mask)


MEDIAN = """from middle import middle_of


def median(scores, groups, config, mask=None, **_):
    assert mask.shape == (len(scores), mask.shape[1]) and mask.dtype == scores.dtype
    return (scores - middle_of(scores, groups)) * config.group_size / 8


def clipped(logprobs, old_logprobs, advantages, config):
    ratio = (logprobs - old_logprobs).exp()
    bound = ratio.clamp(1 - config.clip_eps_low, 1 + config.clip_eps_high)
    loss, bounded = -advantages * ratio, -advantages * bound
    return loss.maximum(bounded), bounded > loss


def marked(logprobs, advantages, mask):
    return -advantages * logprobs, 0.25 * mask
"""
MIDDLE = """import torch


def middle_of(scores, groups):
    return torch.stack([scores[groups == group].median() for group in groups])
"""


@pytest.fixture
def median(tmp_path):
    """An estimator of one's own, which imports a file beside it."""
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "idea.py").write_text(MEDIAN)
    (tmp_path / "own" / "middle.py").write_text(MIDDLE)
    return f"{tmp_path}/own/idea.py:median"


def test_an_estimator_of_ones_own_is_registered(median, tmp_path, monkeypatch, capsys):
    from verl.trainer.ppo import core_algos

    monkeypatch.setattr(core_algos, "ADV_ESTIMATOR_REGISTRY", dict(core_algos.ADV_ESTIMATOR_REGISTRY))
    flags = ["--print", "--algorithm=dr_grpo", f"--advantage={median}", f"--output_dir={tmp_path}/out"]
    config = launcher.parse_config(flags)
    job, overrides = launcher.prepare_job(config)
    assert "algorithm.adv_estimator=own_ours" in [o.text() for o in overrides]
    (tmp_path / "own" / "idea.py").unlink()
    load_module(Path(job.folder) / "verl_hooks.py", "hooks_with_own_estimator")
    rewards, mask = torch.zeros(6, 3), torch.ones(6, 3, dtype=torch.int64)
    rewards[:, -1], mask[2, 1:] = torch.tensor([3.0, 0.0, 1.0, 5.0, 2.0, 0.0]), 0
    given = {"index": np.array(["a", "b", "a", "b", "a", "c"], dtype=object), "config": None, "reward_baselines": None}
    estimate = core_algos.get_adv_estimator_fn("own_ours")
    got, returns = estimate(token_level_rewards=rewards, response_mask=mask, **given)
    assert got.tolist() == [[1.0] * 3, [0.0] * 3, [-1.0, 0.0, 0.0], [5.0] * 3, [0.0] * 3, [0.0] * 3]
    assert torch.equal(got, returns)
    (tmp_path / "own" / "idea.py").write_text(MEDIAN)
    for flag, message in ((f"--advantage={median}", "try --print"), (f"--loss={median[:-6]}clipped", "with loss")):
        flags = ["--algorithm=dr_grpo", flag, "--export=port", f"--output_dir={tmp_path}/no"]
        assert launcher.main(flags) == 2 and message in capsys.readouterr().err


def registered_by(module: Path, name: str, registry: str, monkeypatch) -> dict:
    """verl's registry after a file of the job; other tests find it as it was."""
    from verl.trainer.ppo import core_algos

    monkeypatch.setattr(core_algos, registry, dict(getattr(core_algos, registry)))
    load_module(module, name)
    return getattr(core_algos, registry)


@pytest.mark.parametrize(("mode", "weighted"), [("token-mean", True), ("seq-mean-token-sum-norm", False)])
def test_a_loss_of_ones_own_is_that_of_verl_in_value_gradient_and_metrics(
    mode, weighted, median, tmp_path, monkeypatch
):
    """A plain clip from a user's file, against verl's `vanilla` without its third bound."""
    from verl.workers.config import ActorConfig

    flags = ["--print", "--algorithm=grpo", f"--loss={median.replace(':median', ':clipped')}", "--clip_eps_high=0.3"]
    job, overrides = launcher.prepare_job(launcher.parse_config([*flags, f"--output_dir={tmp_path}/out"]))
    texts = [o.text() for o in overrides]
    assert "actor_rollout_ref.actor.policy_loss.loss_mode=own_ours" in texts
    assert "actor_rollout_ref.model.external_lib=verl_own_loss" in texts
    (tmp_path / "own" / "idea.py").unlink()  # the job has its copy
    module = Path(job.folder) / "verl_own_loss.py"
    losses = registered_by(module, "verl_own_loss_of_a_test", "POLICY_LOSS_REGISTRY", monkeypatch)
    generator = torch.Generator().manual_seed(0)
    old = -torch.rand(4, 6, generator=generator)
    new = old + 0.5 * torch.randn(4, 6, generator=generator)
    mask = torch.arange(6) < torch.tensor([[6], [2], [4], [1]])
    given = {"old_log_prob": old, "advantages": torch.tensor([1.5, -1.0, -2.0, 0.5])[:, None].expand(4, 6)}
    given |= {"response_mask": mask, "loss_agg_mode": mode}
    given |= {"rollout_is_weights": torch.rand(4, 6, generator=generator)} if weighted else {}
    batch = {"dp_size": 2, "batch_num_tokens": 40, "global_batch_size": 8, "loss_scale_factor": 9}
    bounds = {"clip_ratio": 0.2, "clip_ratio_low": 0.2, "clip_ratio_high": 0.3, "clip_ratio_c": 1e9}
    config = ActorConfig(
        strategy="fsdp2", rollout_n=4, ppo_micro_batch_size_per_gpu=1, **bounds, global_batch_info=batch
    )
    found = {}
    for name in ("own_ours", "vanilla"):
        leaf = new.clone().requires_grad_()
        loss, metrics = losses[name](log_prob=leaf, **given, config=config)
        loss.backward()
        found[name] = (loss.detach(), leaf.grad, metrics)
    own, theirs = found.values()
    torch.testing.assert_close(own[:2], theirs[:2])
    assert own[1].abs().sum() > 0 and 0 < own[2]["actor/pg_clipfrac"] < 1
    assert own[2] == {name: pytest.approx(theirs[2][name], abs=1e-6) for name in own[2]}


# ------------------------------------------------------------------------------------------------ manager and buffer


def test_manager_tells_ids_and_prompt_and_takes_penalties(tmp_path):
    from tensordict import TensorDict
    from transformers import AutoTokenizer
    from verl import DataProto
    from verl.trainer.ppo.reward import load_reward_manager

    (tmp_path / "r.py").write_text(
        "def count(prompts, completions, completion_ids, **k):\n"
        "    return [100 * len(i) + len(p[-1]['content']) for i, p in zip(completion_ids, prompts)]\n"
    )
    launcher.write_modules(tmp_path / "job", [f"{tmp_path}/r.py:count"], ["answer"])
    flags = ["--max_new_tokens=10", "--overlong_share=0.5", "--missing_eos_penalty=7"]
    found = composed(*flags, folder=str(tmp_path / "job"))
    tokenizer = AutoTokenizer.from_pretrained(TINY_LM)
    manager = load_reward_manager(found, tokenizer)
    for length, ended in ((3, True), (7, True), (10, False)):
        ids = [40] * (length - ended) + [tokenizer.eos_token_id] * ended
        batch = {
            "responses": torch.tensor([[*ids, 0, 0]]),
            "attention_mask": torch.tensor([[1] * (4 + length) + [0, 0]]),
        }
        arrays = {"data_source": "d", "raw_prompt": [{"role": "user", "content": "12345"}], "extra_info": {"index": 0}}
        arrays |= {"reward_model": {"ground_truth": "x"}}
        columns = {name: np.empty(1, dtype=object) for name in arrays}
        for name, value in arrays.items():
            columns[name][0] = value
        data = DataProto(batch=TensorDict(batch, batch_size=1), non_tensor_batch=columns)
        result = manager.loop.run_until_complete(manager.run_single(data))
        assert result["reward_extra_info"]["score"] == 100 * length + 5  # before penalties
        # 0 up to 5 tokens, then in five steps to 1
        expected = 100 * length + 5 - max(0, length - 5) / 5 - (0 if ended else 7)
        assert result["reward_score"] == pytest.approx(expected)


@pytest.fixture
def queue(monkeypatch):
    """verl's replay buffer of ours over a TransferQueue in memory."""
    from verl.trainer.ppo.v1 import replay_buffer

    store = {"train": {}}

    class Fake:
        def kv_list(self):
            return {name: {k: dict(tag) for k, (tag, _) in items.items()} for name, items in store.items()}

        def kv_clear(self, partition_id, keys):
            for key in keys:
                store[partition_id].pop(key, None)

        def kv_batch_get(self, keys, partition_id, select_fields):
            return {name: [store[partition_id][key][1][name] for key in keys] for name in select_fields}

    monkeypatch.setattr(replay_buffer, "tq", Fake())

    def put(uid, scores, status="finished"):
        store["train"][uid] = ({"is_prompt": True, "status": status, "global_steps": 1}, None)
        for i, score in enumerate(scores):
            fields = {"extra_fields": {"reward_extra_info": {"score": score, "acc": float(score >= 1)}}}
            store["train"][f"{uid}_{i}_0"] = ({"status": "success"}, fields)

    def make(refill, **own):
        kind = launcher.strict_replay_buffer()
        return kind(
            trainer_mode="sync",
            trainer_config={},
            max_off_policy_threshold=8,
            max_off_policy_strategy="drop",
            sampler_kwargs=OmegaConf.create(own),
            refill_fn=refill,
            poll_interval=0.01,
        )

    return store, put, make


def test_verls_own_buffer_trains_on_the_survivors(queue):
    """The trap itself: what StrictReplayBuffer is there for."""
    from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer

    _, put, _ = queue
    put("a", [1.0, 0.0])
    put("b", [1.0], status="failure")
    batch, _ = ReplayBuffer("sync", {}, 8, "drop", {}, poll_interval=0.01).sample(1, "train", 2)
    assert sorted(batch.keys) == ["a_0_0", "a_1_0", "b_0_0"]


def test_a_failed_prompt_ends_the_run_with_the_rewards_own_words(queue, tmp_path):
    _, put, make = queue
    put("a", [1.0, 0.0])
    put("b", [1.0], status="failure")
    buffer = make(None, error_file=str(tmp_path / "error.txt"))
    with pytest.raises(RuntimeError, match=r"got 1 prompts whose rollout or reward failed.*log stands above"):
        buffer.sample(1, "train", 2)
    (tmp_path / "error.txt").write_text("REWARD FAILED: the judge is down")
    with pytest.raises(RuntimeError, match="the judge is down"):
        buffer.sample(1, "train", 2)


@pytest.mark.parametrize("max_refills", [0, 3])
def test_groups_of_equal_score_are_replaced_in_so_many_rounds(queue, max_refills):
    _, put, make = queue
    asked = []

    def refill(count):
        for _ in range(count):
            asked.append(f"r{len(asked)}")
            put(asked[-1], [1.0, 1.0])  # never a signal
        return count

    put("a", [1.0, 0.0])
    put("b", [0.0, 0.0])
    buffer = make(refill, filter_groups_metric="score", train_batch_size=2, max_refills=max_refills)
    batch, _ = buffer.sample(1, "train", 2)
    picked = {key.split("_")[0] for key in batch.keys}
    assert "a" in picked and len(picked) == 2  # the group with a signal has its place
    assert len(asked) >= 2 * max_refills and len(asked) <= 2 * max_refills + 4
    assert ("b" in picked) == (max_refills == 0)


# ------------------------------------------------------------------------------------------------ --check


def test_check_loads_everything_and_leaves_nothing(data, tmp_path):
    flags = ["--check", "--algorithm=grpo", *data, f"--output_dir={tmp_path}/out"]
    done = run_script("verl_train", *flags, *CPU, env=cpu_env(), timeout=LIMIT)
    assert done.stdout.startswith("{"), done.stderr[-3000:]
    report = json.loads(done.stdout)
    assert (done.returncode, report["findings"]) == (0, [])
    assert report["data"] == {"rows": 32, "rows that fit": 32, "steps in an epoch": 16}
    assert report["reward"]["rows"] > 0 and report["reward"]["unlike"] == {}
    assert report["memory_sums_GiB"] and not list((tmp_path).iterdir())


REWARD_FILE = """
import os


def wobbly(prompts, completions, answer, **kwargs):
    if os.environ.get("FAIL"):
        raise ValueError("the judge is down")
    return [float(a in c[0]["content"]) for a, c in zip(answer, completions)]
"""


def test_check_finds_a_reward_that_raises(data, tmp_path, monkeypatch, capsys):
    (tmp_path / "r.py").write_text(REWARD_FILE)
    flags = ["--check", "--reward", f"{tmp_path}/r.py:wobbly", *data, f"--output_dir={tmp_path}/out", *CPU]
    monkeypatch.setenv("FAIL", "1")
    assert launcher.main(flags) == 1
    findings = json.loads(capsys.readouterr().out)["findings"]
    assert len(findings) == 1 and "the judge is down" in findings[0]
    monkeypatch.delenv("FAIL")
    assert launcher.main(flags) == 0
    assert json.loads(capsys.readouterr().out)["reward"]["scores"] == [0.0, 1.0]


def test_check_in_process_finds_data_and_batches(data, tmp_path, monkeypatch, capsys):
    for name, value in cpu_env().items():
        monkeypatch.setenv(name, value)
    base = ["--check", *data, f"--output_dir={tmp_path}/out"]
    cases = [
        (["--max_prompt_tokens=5"], "rows within 5 tokens"),
        (["--gpus_per_node=3", "--algorithm=grpo"], "16 completions in a minibatch for 3 replicas"),
        (["--vllm_memory=0.99"], "memory: sampling needs"),
        (["--override=trainer.save_every=3"], "trainer.save_every=3 (override), a key that verl"),
        (["--override=actor_rollout_ref.actor.loss_agg_mode=mean"], "Invalid loss_agg_mode"),
    ]
    for flags, part in cases:
        assert launcher.main([*base, *flags]) == 1, flags
        assert any(part in f for f in json.loads(capsys.readouterr().out)["findings"]), flags


def test_check_compares_token_ids_with_ours(data, tmp_path, capsys):
    texts = tmp_path / "texts.jsonl"
    texts.write_text("".join(json.dumps({"prompt": f" {i}+1=", "answer": str(i + 1)}) + "\n" for i in range(16)))
    flags = ["--check", *data, f"--data={texts}", f"--eval_data={texts}", "--allow_overlap"]
    flags += [f"--reward={ROOT}/examples/reward_functions_library.py:correctness_reward"]
    flags += [f"--output_dir={tmp_path}/out"]
    assert launcher.main(flags) == 0, capsys.readouterr().err
    capsys.readouterr()
    template = "actor_rollout_ref.model.custom_chat_template='x{{ messages[0].content }}'"
    assert launcher.main([*flags, f"--override={template}"]) == 1
    assert any("other token ids" in f for f in json.loads(capsys.readouterr().out)["findings"])
    (tmp_path / "t.jinja").write_text("{% if brief %}Brief: {% endif %}{{ messages[0].content }}")
    chat = [f"--chat_template={tmp_path}/t.jinja", "--chat", '--chat_template_kwargs={"brief": true}']
    assert launcher.main([*flags, *chat]) == 0  # verl is told the switch, or its token ids were others
    capsys.readouterr()
    assert launcher.main([*flags, *chat, "--override=++data.apply_chat_template_kwargs.brief=False"]) == 1
    assert any("other token ids" in f for f in json.loads(capsys.readouterr().out)["findings"])


TALKS = f"--environment={ROOT}/examples/environments.py:SecondAttempt"


def test_check_loads_an_environments_loop(data, tmp_path, capsys):
    flags = ["--check", "--algorithm=grpo", TALKS, "--max_turns=2", *data, *CPU, f"--output_dir={tmp_path}/out"]
    assert launcher.main(flags) == 0, capsys.readouterr().err
    assert json.loads(capsys.readouterr().out)["findings"] == []


def test_what_a_tool_returns_is_no_control_token_in_verls_transformers():
    """They take no notice of sanitize_control_tokens: `<|end|>` in a result would end the turn."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(TINY_LM)
    bridge = launcher.TurnBridge(tokenizer, [tokenizer.eos_token_id])
    assert not bridge.sanitizes
    text = "a<|end|>b<|user|>"
    ids = bridge.between(tokenizer.eos_token_id, [{"role": "user", "content": text}], [])
    plain = bridge.between(tokenizer.eos_token_id, [{"role": "user", "content": "ab"}], [])
    special = {*tokenizer.added_tokens_decoder}
    assert [i for i in ids if i in special] == [i for i in plain if i in special]
    assert text in tokenizer.decode(ids) and len(ids) > len(plain) + 10


# ------------------------------------------------------------------------------------------------ runs


def run(folder: Path, *flags):
    """The launcher's command line as a process of its own; all of its Ray ends with it."""
    folder.mkdir(exist_ok=True)
    command = [sys.executable, str(SCRIPTS / "verl_train.py"), *flags, *CPU]
    return run_command(command, cpu_env(), folder)


def weights_of(folder: Path) -> dict:
    """A model's weights by name, as transformers loads them; they are fp32."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder)
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def test_grpo_runs_saves_and_resumes_with_an_environment(data, median, tmp_path, capsys):
    fork = f"--override={forked_workers()}"
    # a little noise, so that scores of a group differ and teach, whatever was sampled
    noise = "import random\n\n\ndef noise(completions, **kwargs):\n    return [random.random() for _ in completions]\n"
    (tmp_path / "noise.py").write_text(noise)
    noise = f"--reward={tmp_path}/noise.py:noise*0.01"
    alone = [*(f"--reward={spec}" for spec in launcher.EMBEDDED_SPECS), noise, "--steps=1"]
    flags = ["--run", "--algorithm=grpo", "--group_size=4", "--eval_every=0", *data, fork]
    flags += [f"--output_dir={tmp_path}/out"]
    own = [f"--advantage={median}", f"--loss={median.replace(':median', ':marked')}"]
    done = run(tmp_path, *flags, *alone, *own)
    assert done.returncode == 0, done.stdout[-6000:]
    first = read_lines(tmp_path / "out" / "metrics.jsonl")
    assert [row["step"] for row in first] == [0, 1] and "val-core/eval/acc/mean@1" in first[0]["data"]
    assert first[1]["data"]["actor/lr"] == pytest.approx(1e-3)
    assert first[1]["data"]["actor/pg_clipfrac"] == pytest.approx(0.25)  # the loss is that of the file
    assert launcher.main([*flags, *alone, *CPU]) == 2 and "holds a run" in capsys.readouterr().err
    start, one = (weights_of(path) for path in (TINY_LM, tmp_path / "out" / "final"))
    samples = read_lines(tmp_path / "out" / "samples" / "1.jsonl")
    assert len(samples) == 16
    groups = torch.tensor([row["score"] for row in samples]).view(4, 4)
    expected = (groups - groups.median(1, keepdim=True).values) * 4 / 8  # by the group size, as the file has it
    for name in ("max", "min"):
        largest = getattr(expected, name)().item()
        assert first[1]["data"][f"critic/advantages/{name}"] == pytest.approx(largest, abs=1e-4)
    assert all(min(abs(row["score"] - value) for value in (0.005, 0.205, 1.005, 1.205)) <= 0.0051 for row in samples)
    # it goes on with conversations: the loop that the job folder has plays them
    done = run(tmp_path, *flags, TALKS, "--max_turns=2", noise, "--steps=2", "--resume")
    assert done.returncode == 0, done.stdout[-6000:]
    assert [row["step"] for row in read_lines(tmp_path / "out" / "metrics.2.jsonl")] == [1, 2]
    assert (tmp_path / "out" / "checkpoints" / "latest_checkpointed_iteration.txt").read_text() == "2"
    two = weights_of(tmp_path / "out" / "final")
    # Adam moves a weight by the learning rate, 1e-3, at most, and one with a gradient of its own by nearly that
    for before, after in ((start, one), (one, two)):
        assert set(before) == set(after)
        assert 5e-4 < max((before[k] - after[k]).abs().max().item() for k in before) < 2e-3
    talks = read_lines(tmp_path / "out" / "samples" / "2.jsonl")
    assert len(talks) == 16
    for row in talks:
        first, again, _ = row["output"].partition("Wrong. Try again.")
        right = row["gts"] in re.findall(r"<answer>([^<]*)</answer>", first)[-1:]
        assert bool(again) != right, row  # the checker speaks where an answer is wrong, and only there
        assert row["score"] == pytest.approx(0.005 + right, abs=0.0051) or (again and row["score"] >= 0.5)
    last = read_lines(tmp_path / "out" / "metrics.2.jsonl")[-1]["data"]
    turns = [2 + 2 * ("Wrong. Try again." in row["output"]) for row in talks]
    assert last["training/num_turns/mean"] == pytest.approx(sum(turns) / 16)
    # what verl trains on is what was sampled: its own log-probs of those tokens are the sampler's, but for bf16 weights
    assert last["training/rollout_probs_diff_max"] < 0.02


def free_ports(count: int) -> list[int]:
    """Ports on which nothing listens."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """A Ray cluster of one node on ports of its own, begun elsewhere; the address of its dashboard, for --submit."""
    folder = Path(tempfile.mkdtemp(prefix="vr"))  # sockets' paths must be short
    port, dashboard, client, agent = free_ports(4)
    ray = str(Path(sys.executable).with_name("ray"))
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"  # jobs run `python3`
    env = cpu_env() | {"RAY_AUTH_MODE": "disabled", "PATH": path}
    command = [ray, "start", "--head", f"--port={port}", f"--dashboard-port={dashboard}", "--dashboard-host=127.0.0.1"]
    command += ["--num-cpus=8", "--num-gpus=1", f"--temp-dir={folder}", "--disable-usage-stats", "--block"]
    command += [f"--ray-client-server-port={client}", f"--dashboard-agent-listen-port={agent}"]  # jobs go to the agent
    log = (tmp_path_factory.mktemp("ray") / "log").open("w")
    process = subprocess.Popen(command, env=env, stdout=log, stderr=log, start_new_session=True, cwd=folder)
    address = f"http://127.0.0.1:{dashboard}"
    for _ in range(120):
        try:
            launcher.fetch(address, "/api/version")
            break
        except OSError:
            assert process.poll() is None
            time.sleep(0.5)
    yield address
    process.terminate()
    process.wait(30)
    shutil.rmtree(folder, ignore_errors=True)


# what an existing cluster decides itself
SUBMIT = [flag for flag in CPU if "ray_kwargs" not in flag]


def test_ppo_is_submitted_with_an_environment_and_a_loss_of_ones_own(data, tmp_path, cluster):
    (tmp_path / "r.py").write_text(REWARD_FILE)
    loss = "def marked(logprobs, advantages, mask):\n    return -advantages * logprobs, mask\n"
    (tmp_path / "loss.py").write_text(loss)
    flags = ["--submit", cluster, "--steps=2", "--eval_every=0", *data, "--reward", f"{tmp_path}/r.py:wobbly*0"]
    flags += [f"--loss={tmp_path}/loss.py:marked"]
    flags += [TALKS, "--max_turns=2"]
    env = cpu_env() | {"RAY_AUTH_MODE": "disabled"}
    done = run_script("verl_train", *flags, f"--output_dir={tmp_path}/out", *SUBMIT, env=env, timeout=LIMIT)
    assert done.returncode == 0, done.stderr[-6000:]
    assert json.loads(done.stdout)["status"] == "SUCCEEDED"
    metrics = [row for row in read_lines(tmp_path / "out" / "metrics.jsonl") if "critic/vf_loss" in row["data"]]
    assert [row["step"] for row in metrics] == [1, 2] and all(row["data"]["critic/grad_norm"] > 0 for row in metrics)
    assert [row["data"]["actor/pg_clipfrac"] for row in metrics] == [pytest.approx(1.0)] * 2  # by the loss of the file
    first, second = (row["data"]["actor/reward_kl_penalty"] for row in metrics)
    assert abs(first) < 1e-5 < abs(second), "the policy is its own reference until the first update"
    assert (tmp_path / "out" / "checkpoints" / "global_step_2" / "critic").is_dir()


def test_a_reward_that_raises_ends_a_submitted_job(data, tmp_path, cluster):
    (tmp_path / "r.py").write_text(REWARD_FILE.replace("os.environ.get", "'FAIL' or os.environ.get"))
    flags = ["--submit", cluster, "--algorithm=grpo", "--group_size=4", "--steps=2", *data]
    flags += ["--reward", f"{tmp_path}/r.py:wobbly"]
    env = cpu_env() | {"RAY_AUTH_MODE": "disabled"}
    done = run_script("verl_train", *flags, f"--output_dir={tmp_path}/out", *SUBMIT, env=env, timeout=LIMIT)
    assert done.returncode == 3, done.stderr[-6000:]
    assert "REWARD FAILED" in done.stderr and "the judge is down" in done.stderr
    assert "the judge is down" in (tmp_path / "out" / "reward_error.txt").read_text()
