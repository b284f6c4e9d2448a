"""scripts/verl_train.py with the installed verl: what composes, loads and is found, and runs on CPU."""

import copy
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from conftest import EVAL_DATA, ROOT, SCRIPTS, TINY_LM, TRAIN_DATA, load_module, load_script, read_lines, write_lines
from omegaconf import OmegaConf
from verl_helpers import CPU_OVERRIDES, cpu_env, forked_workers, run_command
from verl_scripts import layout_of, words_of

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


def overrides_of(*flags: str, **changes) -> list:
    """The overrides of a command line that prints."""
    config = launcher.parse_config(["--print", *flags])
    launcher.check_expressible(config)
    return launcher.make_overrides(config, layout_of(launcher, **changes))


def composed(*flags, **changes):
    """verl's configuration of a command line, which has to compose."""
    found, refused = launcher.compose_config(overrides_of(*flags, **changes))
    assert not refused
    return found


# ------------------------------------------------------------------------------------------------ composing
@pytest.mark.parametrize(
    "flags",
    [
        ["--algorithm=ppo", "--precision=fp16"],
        ["--algorithm=grpo", "--kl_coef=0.02", "--kl_in=loss", "--kl_estimator=k3_ratio", "--lr_schedule=cosine"],
        ["--algorithm=dapo", "--mismatch=icepop", "--lora_rank=8", "--sequence_parallel=2", "--offload=all"],
        ["--algorithm=gmpo"],
    ],
    ids=lambda flags: flags[0],
)
def test_presets_compose_and_pass_verls_validation(flags):
    assert launcher.config_findings(composed(*flags)) == []


def test_values_arrive_as_they_were_meant():
    texts = ["it's", "{{ bos_token }}{% for m in x %}{{ m['content'] }}{{ '\\n' }}{% endfor %}", "a b", "null", "1", ""]
    texts += ["back\\slash", "end\\", "quo\\'te", 'dou"ble', "[a]", "{a: b}", "a,b", "ü=1", "/gärtner/x", "$x", "#"]
    values = map(launcher.hydra_value, texts)
    extra = [launcher.Override(f"+trainer.text_{i}", value, "override", True) for i, value in enumerate(values)]
    found, refused = launcher.compose_config([*overrides_of("--mismatch=icepop"), *extra])
    assert not refused and [found.trainer[f"text_{i}"] for i in range(len(texts))] == texts
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
    keys = load_module(ROOT / "tools" / "verl_keys.py", "verl_keys_of_the_tools")
    assert keys.main(["--check"]) == 0, "try .venv-verl/bin/python tools/verl_keys.py"
    both = ("data.train_batchsize=64", "+data.train_batch_size=64", "~actor_rollout_ref.actor.optim.lrr")
    neither = ("++data.anything=1", "+data.apply_chat_template_kwargs={enable_thinking:false}")
    neither += ("~actor_rollout_ref.actor.optim.lr",)
    for word, refused in (dict.fromkeys(both, True) | dict.fromkeys(neither, False)).items():
        key, _, value = word.partition("=")
        override = launcher.Override(key, value if "=" in word else None, "here", True)
        verdicts = bool(launcher.name_findings([override])), bool(launcher.compose_config([override])[1])
        assert verdicts == (refused, refused), word


def test_an_exported_command_is_composed_and_validated(tmp_path, capsys):
    """run.sh of --export, with and without flash_attn: each of its keys is verl's own, none needs our hooks."""
    shutil.copy(ROOT / "evals" / "files" / "trl_run.py", tmp_path)
    row = {"prompt": [{"role": "user", "content": "1 + 1"}], "answer": "#### 2"}
    write_lines(tmp_path / "word_problems.jsonl", [row] * 40)
    argv = [f"--from_trl={tmp_path}/trl_run.py", "--hardware=8x80GB", f"--export={tmp_path}/port", f"--model={TINY_LM}"]
    assert launcher.main(argv) == 0
    with_flash, without = (words_of(tmp_path / "port" / "run.sh", tmp_path / "bin", no_flash=n)[0][3:] for n in (0, 1))
    assert [word for word in without if word not in with_flash] == [
        "+actor_rollout_ref.model.override_config.attn_implementation=sdpa",
        "actor_rollout_ref.model.use_remove_padding=False",
    ]
    capsys.readouterr()
    assert checked(tmp_path, capsys, "\n".join(without))[:2] == (0, "")
    many = "\n".join([*without, "ray_kwargs.ray_init.num_cpus=many"])
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
    findings = check(text.replace("actor_rollout_ref.rollout.name=vllm", "+actor_rollout_ref.rollout.name=vllm"))[1]
    assert "+actor_rollout_ref.rollout.name=vllm" in findings and "\n" not in findings  # told once
    findings = check(text.replace("rollout.name=vllm", "rollout.name='???'"))[1]
    assert findings == "missing: got no actor_rollout_ref.rollout.name; expected it, as verl has no default"


ROLLOUT, ACTOR = "actor_rollout_ref.rollout", "actor_rollout_ref.actor"
BY_HAND = [f"actor_rollout_ref.model.path={TINY_LM}", f"{ROLLOUT}.name=vllm", f"{ACTOR}.ppo_mini_batch_size=8"]
BY_HAND += ["algorithm.adv_estimator=grpo", "critic.enable=False"]  # else verl warns that it does so
BY_HAND += ["data.train_batch_size=8", "trainer.save_freq=5", f"{ROLLOUT}.n=2", f"data.val_files={EVAL_DATA}"]
DYNAMIC = f"{ACTOR}.use_dynamic_bsz=True"
ROW = {"data_source": "mine", "prompt": [{"role": "user", "content": "1+1="}]}
ROW |= {"reward_model": {"style": "rule", "ground_truth": "2"}, "extra_info": {"index": 0}}
SCORE = "def compute_score(data_source, solution_str, ground_truth, extra_info=None):\n    return "
PAYS = SCORE + "float(ground_truth in solution_str)"


MISTAKES = [
    ([f"{ROLLOUT}.n=1"], "n=1 with grpo, which compares the samples of a prompt"),
    (["algorithm.adv_estimator=grop"], "got algorithm.adv_estimator=grop; expected one of gae, grpo"),
    ([f"{ACTOR}.policy_loss.loss_mode=gpso"], "loss_mode=gpso; expected one of vanilla"),
]


def test_overrides_by_hand_are_composed_and_validated(tmp_path, capsys):
    pq.write_table(pa.table({"prompt": ["?"] * 16}), tmp_path / "t.parquet")
    many = [DYNAMIC, f"{ROLLOUT}.mode=sync", f"{ROLLOUT}.calculate_log_prob=True", "ray_kwargs.ray_init.num_cpus=4"]
    many += [f"{ROLLOUT}.temperature=0", f"{ROLLOUT}.val_kwargs.do_sample=True", "trainer.total_epochs=1"]
    many += [f"data.train_files={tmp_path}/t.parquet"]
    told = ["try leaving it out: all rollout is asynchronous", f"try {ROLLOUT}.calculate_log_probs", "expected 34"]
    told += ["temperature should be greater than 0", "1 epochs of 2 steps"]
    twice = ["+ray_kwargs.ray_init.address=local"] * 2  # and neither sizes nor a bound on tokens
    cases = [([*many, "trainer.total_training_steps=99"], told), *(([DYNAMIC, *more], [x]) for more, x in MISTAKES)]
    for more, expected in [*cases, (twice, ["expected it once", "ppo_micro_batch_size_per_gpu"])]:
        code, findings, _ = checked(tmp_path, capsys, "\n".join([*BY_HAND, *more]))
        assert code == 1 and [words for words in expected if findings.count(words) != 1] == [], findings


def test_rows_and_reward_of_a_job_by_hand(tmp_path, capsys):
    pq.write_table(pa.Table.from_pylist([ROW] * 16), tmp_path / "t.parquet")
    (tmp_path / "r.py").write_text(PAYS)
    lines = [f"data.train_files={tmp_path}/t.parquet", f"reward.custom_reward_function.path={tmp_path}/r.py", DYNAMIC]
    assert checked(tmp_path, capsys, "\n".join([*BY_HAND, *lines]))[:2] == (0, "")
    away = "\n".join([*BY_HAND, *lines]).replace(str(EVAL_DATA), "/gone")
    assert "val_files /gone, which is" in checked(tmp_path, capsys, away)[1]
    for wrong in ({"question": ROW["prompt"]}, {"prompt": "1+1="}):
        rest = {name: x for name, x in ROW.items() if name != "prompt"}
        pq.write_table(pa.Table.from_pylist([rest | wrong] * 16), tmp_path / "t.parquet")
        filtered = "\n".join([*BY_HAND, *lines, "data.filter_overlong_prompts=True"])  # verl leaves out all rows then
        assert "with chat messages in prompt; its columns are" in checked(tmp_path, capsys, filtered)[1]
    pq.write_table(pa.Table.from_pylist([ROW] * 16), tmp_path / "t.parquet")
    (tmp_path / "r.py").write_text(SCORE + "None")
    code, findings, _ = checked(tmp_path, capsys, "\n".join([*BY_HAND, *lines]))
    assert code == 1 and "call raises TypeError" in findings


@pytest.fixture(scope="module")
def by_hand():
    """verl's configuration of a job by hand, composed once."""
    written = [launcher.Override(*line.split("=", 1), "o.txt", is_written=True) for line in [*BY_HAND, DYNAMIC]]
    return launcher.compose_config(written)[0]


REWARDS = [  # the code of a reward, the data_source; what is found
    (SCORE + "{'score': 0.5}", "mine", ""),
    (f"async {PAYS}", "mine", ""),
    ("", "openai/gsm8k", ""),  # verl's own
    ("", "mine", "NotImplementedError"),
    ("def compute_score(text, truth):\n    return 1.0", "mine", "call raises TypeError"),
    (SCORE + "float('nan')", "mine", "a score that is not finite"),
    ("import nothing_at_all", "mine", "No module named 'nothing_at_all'"),
]


def test_rewards_by_hand_are_called_as_verl_calls_them(by_hand, tmp_path):
    for i, (code, source, finding) in enumerate(REWARDS):
        (tmp_path / f"r{i}.py").write_text(code)
        config = copy.deepcopy(by_hand)
        config.reward.custom_reward_function.path = f"{tmp_path}/r{i}.py" if code else None
        _, findings = launcher.tried_reward(config, [ROW | {"data_source": source}])
        assert len(findings) == bool(finding) and finding in "".join(findings), (code, findings)


DATA = [  # changes of a row, and of the configuration; what is found
    ({}, {"train_files": "/cluster/t.parquet"}, ""),
    ({"data_source": None}, {}, "expected data_source and reward_model.ground_truth"),
    ({"prompt": "1+1="}, {}, "expected prompt with chat messages"),
    ({"prompt": None}, {}, "KeyError: 'prompt'; expected prompt with chat messages"),
    ({}, {"train_batch_size": 64}, "got 16 of 16"),
    ({}, {"max_prompt_length": 2}, "got a prompt of 7 tokens with data.max_prompt_length=2"),
]


def test_rows_by_hand_are_read_by_verls_data_set(by_hand, tmp_path):
    for i, (changes, settings, finding) in enumerate(DATA):
        row = {key: value for key, value in (ROW | changes).items() if value is not None}
        pq.write_table(pa.Table.from_pylist([row] * 16), tmp_path / f"{i}.parquet")
        config = copy.deepcopy(by_hand)
        config.data.update({"train_files": f"{tmp_path}/{i}.parquet"} | settings)
        *_, findings = launcher.written_rows(config)
        assert len(findings) == bool(finding) and finding in "".join(findings), (changes, settings, findings)


def test_our_estimators_are_registered_once_and_are_ours():
    from verl.trainer.ppo.core_algos import get_adv_estimator_fn

    launcher.register_estimators(Path())
    launcher.register_estimators(Path())
    scores = torch.tensor([1.0, 0.0, 2.0, 0.0, 0.0, 3.0])
    index, groups = np.array(list("ababac"), dtype=object), torch.tensor([0, 1, 0, 1, 0, 2])
    mask, rewards = torch.ones(6, 3), torch.zeros(6, 3)
    rewards[:, -1] = scores
    for preset in ("gpg", "maxrl"):
        name = next(o.value for o in overrides_of(f"--algorithm={preset}") if o.key == "algorithm.adv_estimator")
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
def own(tmp_path):
    """An estimator and losses of one's own, in a file which imports another beside it."""
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "idea.py").write_text(MEDIAN)
    (tmp_path / "own" / "middle.py").write_text(MIDDLE)
    return tmp_path / "own" / "idea.py"


def job_by(own: Path, tmp_path: Path, *flags: str) -> tuple[Path, list[str]]:
    """(Folder, overrides) of a job, which is left without the file that it has a copy of."""
    config = launcher.parse_config(["--print", *flags, f"--output_dir={tmp_path}/out"])
    job, overrides = launcher.prepare_job(config)
    own.unlink()
    return Path(job.folder), [o.text() for o in overrides]


def registered_by(module: Path, registry: str, monkeypatch) -> dict:
    """verl's registry after a file of the job; other tests find it as it was."""
    from verl.trainer.ppo import core_algos

    monkeypatch.setattr(core_algos, registry, dict(getattr(core_algos, registry)))
    load_module(module, f"{module.stem}_of_a_test")
    return getattr(core_algos, registry)


def test_a_loss_of_ones_own_is_that_of_verl_in_value_gradient_and_metrics(own, tmp_path, monkeypatch):
    """A plain clip from a user's file, against verl's `vanilla` without its third bound."""
    from verl.workers.config import ActorConfig

    flags = ["--algorithm=grpo", f"--loss={own}:clipped", "--clip_eps_high=0.3"]
    folder, overrides = job_by(own, tmp_path, *flags)
    assert "actor_rollout_ref.actor.policy_loss.loss_mode=own_ours" in overrides
    assert "actor_rollout_ref.model.external_lib=verl_own_loss" in overrides
    losses = registered_by(folder / "verl_own_loss.py", "POLICY_LOSS_REGISTRY", monkeypatch)
    generator = torch.Generator().manual_seed(0)
    old = -torch.rand(4, 6, generator=generator)
    new = old + 0.5 * torch.randn(4, 6, generator=generator)
    given = {"old_log_prob": old, "advantages": torch.tensor([1.5, -1.0, -2.0, 0.5])[:, None].expand(4, 6)}
    given |= {"response_mask": torch.arange(6) < torch.tensor([[6], [2], [4], [1]])}
    batch = {"dp_size": 2, "batch_num_tokens": 40, "global_batch_size": 8, "loss_scale_factor": 9}
    bounds = {"clip_ratio": 0.2, "clip_ratio_low": 0.2, "clip_ratio_high": 0.3, "clip_ratio_c": 1e9}
    sizes = {"rollout_n": 4, "ppo_micro_batch_size_per_gpu": 1, "global_batch_info": batch}
    config = ActorConfig(strategy="fsdp2", **bounds, **sizes)

    def value_gradient_and_metrics(name, mode, weights):
        leaf = new.clone().requires_grad_()
        known = {"loss_agg_mode": mode, "rollout_is_weights": weights, "config": config}
        loss, metrics = losses[name](log_prob=leaf, **given, **known)
        loss.backward()
        return loss.detach(), leaf.grad, metrics

    for case in (("token-mean", torch.rand(4, 6, generator=generator)), ("seq-mean-token-sum-norm", None)):
        mine, theirs = (value_gradient_and_metrics(name, *case) for name in ("own_ours", "vanilla"))
        torch.testing.assert_close(mine[:2], theirs[:2])
        assert mine[1].abs().sum() > 0 and 0 < mine[2]["actor/pg_clipfrac"] < 1
        assert mine[2] == {name: pytest.approx(theirs[2][name], abs=1e-6) for name in mine[2]}


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
    arrays = {"data_source": "d", "raw_prompt": [{"role": "user", "content": "12345"}], "extra_info": {"index": 0}}
    columns = {name: np.empty(1, dtype=object) for name in (*arrays, "reward_model")}
    for name, value in (arrays | {"reward_model": {"ground_truth": "x"}}).items():
        columns[name][0] = value
    for length, ended in ((3, True), (7, True), (10, False)):
        ids = [40] * (length - ended) + [tokenizer.eos_token_id] * ended
        mask = torch.tensor([[1] * (4 + length) + [0, 0]])
        batch = TensorDict({"responses": torch.tensor([[*ids, 0, 0]]), "attention_mask": mask}, batch_size=1)
        data = DataProto(batch=batch, non_tensor_batch=columns)
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
        usual = {"trainer_mode": "sync", "trainer_config": {}, "max_off_policy_threshold": 8, "poll_interval": 0.01}
        usual |= {"max_off_policy_strategy": "drop", "sampler_kwargs": OmegaConf.create(own)}
        return kind(**usual, refill_fn=refill)

    return store, put, make


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
@pytest.fixture
def checking(data, tmp_path, monkeypatch, capsys):
    """Calls --check in this process; (exit code, report)."""
    for name, value in cpu_env().items():
        monkeypatch.setenv(name, value)

    def check(*flags) -> tuple[int, dict]:
        code = launcher.main(["--check", *data, f"--output_dir={tmp_path}/out", *flags])
        said = capsys.readouterr()
        assert said.out.startswith("{"), said.err
        return code, json.loads(said.out)

    return check


@pytest.fixture
def untried(monkeypatch):
    """No trial of the rewards in a process of its own, which takes seconds."""
    monkeypatch.setattr(launcher, "try_job", lambda *_: ([], {}))


def test_check_loads_everything_and_leaves_nothing(checking, tmp_path):
    code, report = checking("--algorithm=grpo", *CPU)
    assert (code, report["findings"]) == (0, [])
    assert report["data"] == {"rows": 32, "rows that fit": 32, "steps in an epoch": 16}
    assert report["reward"]["rows"] > 0 and report["reward"]["unlike"] == {}
    assert not list(tmp_path.iterdir())


REWARD_FILE = """
def pays(completions, answer, **kwargs):
    return [float(a in c[0]["content"]) for a, c in zip(answer, completions)]
"""


def test_check_finds_data_sizes_and_what_verl_refuses(checking, untried):
    code, report = checking("--max_prompt_tokens=5", "--override=actor_rollout_ref.actor.loss_agg_mode=mean")
    text = "\n".join(report["findings"])
    assert code == 1 and "rows within 5 tokens" in text and "Invalid loss_agg_mode" in text
    code, report = checking("--micro_batch_tokens=9", "--override=trainer.save_every=3")
    text = "\n".join(report["findings"])
    assert code == 1 and "got micro_batch_tokens 9" in text and "save_every=3 (override), a key that verl" in text


def test_check_compares_token_ids_with_ours(checking, untried, tmp_path):
    texts = tmp_path / "texts.jsonl"
    write_lines(texts, [{"prompt": f" {i}+1=", "answer": str(i + 1)} for i in range(16)])
    (tmp_path / "t.jinja").write_text("{% if brief %}Brief: {% endif %}{{ messages[0].content }}")
    flags = [f"--data={texts}", f"--eval_data={texts}", "--allow_overlap"]
    flags += [f"--reward={ROOT}/examples/reward_functions_library.py:correctness_reward"]
    # verl is told the switch, or its token ids were others
    chat = [f"--chat_template={tmp_path}/t.jinja", "--chat", '--chat_template_kwargs={"brief": true}']
    for more, is_other in (
        ([], False),
        (["--override=actor_rollout_ref.model.custom_chat_template='x{{ messages[0].content }}'"], True),
        (chat, False),
        ([*chat, "--override=++data.apply_chat_template_kwargs.brief=False"], True),
    ):
        code, report = checking(*flags, *more)
        assert code == is_other == len(report["findings"]), more
        assert all("other token ids" in finding for finding in report["findings"])


TALKS = f"--environment={ROOT}/examples/environments.py:SecondAttempt"


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
    return run_command([sys.executable, str(SCRIPTS / "verl_train.py"), *flags, *CPU], cpu_env(), folder)


def weights_of(folder: Path) -> dict:
    """A model's weights by name, as transformers loads them; they are fp32."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder)
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    return {name: p.detach().clone() for name, p in model.named_parameters()}


NOISE = """
import random


def noise(completions, **kwargs):
    return [random.random() for _ in completions]
"""


def test_grpo_runs_saves_and_resumes_with_an_environment(data, own, tmp_path):
    # a little noise, so that scores of a group differ and teach, whatever was sampled
    (tmp_path / "noise.py").write_text(NOISE)
    noise, out = f"--reward={tmp_path}/noise.py:noise*0.01", tmp_path / "out"
    flags = ["--run", "--algorithm=grpo", "--group_size=4", "--eval_every=0", *data, f"--override={forked_workers()}"]
    flags += [noise, f"--output_dir={out}"]
    functions = [f"--advantage={own}:median", f"--loss={own}:marked"]
    done = run(tmp_path, *flags, *functions, *(f"--reward={spec}" for spec in launcher.EMBEDDED_SPECS), "--steps=1")
    assert done.returncode == 0, done.stdout[-6000:]
    zero, first = read_lines(out / "metrics.jsonl")
    assert (zero["step"], first["step"]) == (0, 1) and "val-core/eval/acc/mean@1" in zero["data"]
    assert first["data"]["actor/lr"] == pytest.approx(1e-3)
    assert first["data"]["actor/pg_clipfrac"] == pytest.approx(0.25)  # the loss is that of the file
    samples = read_lines(out / "samples" / "1.jsonl")
    groups = torch.tensor([row["score"] for row in samples]).view(4, 4)
    expected = (groups - groups.median(1, keepdim=True).values) * 4 / 8  # by the group size, as the file has it
    for name in ("max", "min"):
        largest = getattr(expected, name)().item()
        assert first["data"][f"critic/advantages/{name}"] == pytest.approx(largest, abs=1e-4)
    assert all(min(abs(row["score"] - value) for value in (0.005, 0.205, 1.005, 1.205)) <= 0.0051 for row in samples)
    start, one = weights_of(TINY_LM), weights_of(out / "final")
    # it goes on with conversations: the loop that the job folder has plays them
    done = run(tmp_path, *flags, TALKS, "--max_turns=2", "--steps=2", "--resume")
    assert done.returncode == 0, done.stdout[-6000:]
    steps = read_lines(out / "metrics.2.jsonl")
    assert [row["step"] for row in steps] == [1, 2]
    assert (out / "checkpoints" / "latest_checkpointed_iteration.txt").read_text() == "2"
    # Adam moves a weight by the learning rate, 1e-3, at most, and one with a gradient of its own by nearly that
    for before, after in ((start, one), (one, weights_of(out / "final"))):
        assert set(before) == set(after)
        assert 5e-4 < max((before[k] - after[k]).abs().max().item() for k in before) < 2e-3
    files = [out / f"checkpoints/global_step_{n}/actor/optim_world_size_1_rank_0.pt" for n in (1, 2)]
    adam = [{int(s["step"]) for s in torch.load(file, weights_only=False)["state"].values()} for file in files]
    assert adam == [{1}, {2}]
    talks = read_lines(out / "samples" / "2.jsonl")
    assert len(talks) == 16 and not {row["input"] for row in talks} & {row["input"] for row in samples}
    for row in talks:
        answer, again, _ = row["output"].partition("Wrong. Try again.")
        right = row["gts"] in re.findall(r"<answer>([^<]*)</answer>", answer)[-1:]
        assert bool(again) != right, row  # the checker speaks where an answer is wrong, and only there
        assert row["score"] == pytest.approx(0.005 + right, abs=0.0051) or (again and row["score"] >= 0.5)
    turns = [2 + 2 * ("Wrong. Try again." in row["output"]) for row in talks]
    assert steps[-1]["data"]["training/num_turns/mean"] == pytest.approx(sum(turns) / 16)
    # what verl trains on is what was sampled: its own log-probs of those tokens are the sampler's, but for bf16 weights
    assert steps[-1]["data"]["training/rollout_probs_diff_max"] < 0.02


def test_ppo_runs_with_an_environment(data, tmp_path):
    (tmp_path / "r.py").write_text(REWARD_FILE)
    flags = [f"--reward={tmp_path}/r.py:pays*0", TALKS, "--max_turns=2", "--eval_every=0"]
    flags += ["--run", "--steps=2", *data, f"--output_dir={tmp_path}/out", f"--override={forked_workers()}"]
    done = run(tmp_path, *flags)
    assert done.returncode == 0, done.stdout[-6000:]
    metrics = [row for row in read_lines(tmp_path / "out" / "metrics.jsonl") if "critic/vf_loss" in row["data"]]
    assert [row["step"] for row in metrics] == [1, 2] and all(row["data"]["critic/grad_norm"] > 0 for row in metrics)
    first, second = (row["data"]["actor/reward_kl_penalty"] for row in metrics)
    assert abs(first) < 1e-5 < abs(second), "the policy is its own reference until the first update"
    assert (tmp_path / "out" / "checkpoints" / "global_step_2" / "critic").is_dir()


def test_a_reward_that_raises_ends_a_run(data, tmp_path):
    (tmp_path / "r.py").write_text(
        REWARD_FILE.replace("return [", 'raise ValueError("the judge is down")\n    return [')
    )
    flags = ["--run", "--algorithm=grpo", "--group_size=4", *data, f"--reward={tmp_path}/r.py:pays"]
    done = run(tmp_path, *flags, f"--output_dir={tmp_path}/out", f"--override={forked_workers()}")
    assert done.returncode == 3, done.stdout[-6000:]
    assert "error: REWARD FAILED" in done.stdout and "the judge is down" in done.stdout
    assert "the judge is down" in (tmp_path / "out" / "reward_error.txt").read_text()
