"""Our trainers with the real vLLM as sampler: they learn, resume exactly, and correct for a sampler that differs."""

import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request

import pytest
import torch
import transformers
from conftest import ASSETS, SCRIPTS, TINY_LM, free_port, load_script, read_lines, torchrun, without_clock
from safetensors.torch import load_file
from vllm_helpers import SAMPLED, metrics

REWARDS = '''
import random

import numpy as np


def noisy(prompts, completions, **kwargs):
    """Draws from the global generators."""
    return [random.random() + np.random.random() - len(str(c)) / 100 for c in completions]
'''


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with 64 held-out rows, 200 training rows and a reward that draws."""
    folder = tmp_path_factory.mktemp("data")
    for name, count in (("train", 200), ("eval", 64)):
        lines = (ASSETS / "data" / f"arithmetic_{name}.jsonl").read_text().splitlines(keepends=True)
        (folder / f"{name}.jsonl").write_text("".join(lines[:count]))
    (folder / "rewards.py").write_text(REWARDS)
    return folder


@pytest.fixture(scope="module")
def run(folder):
    """Run ppo_train.py's command line in this process, which shares an engine; return the output folder."""

    def start(name: str, *flags, code=0):
        out = folder / name
        data = [f"--data={folder / 'train.jsonl'}", f"--output_dir={out}", "--eval_every=0", "--save_every=0"]
        assert load_script("ppo_train").main([*SAMPLED, *data, *flags]) == code
        return out

    return start


@pytest.fixture(scope="module")
def learned(folder, run):
    """A run that learns, with all weights."""
    return run("learned", "--steps=6", "--batch_size=64", f"--eval_data={folder / 'eval.jsonl'}")


def test_ppo_learns_with_logprobs_that_are_the_trainers(learned):
    lines = metrics(learned)
    assert lines[-1]["eval/accuracy"] > lines[0]["eval/accuracy"] + 0.25
    steps = [line for line in lines if "reward/mean" in line]
    assert len(steps) == 6 and all(line["rollout/logprob_gap_max"] < 1e-4 for line in steps)
    assert all(abs(line["mismatch/weight_mean"] - 1) < 1e-4 for line in steps)


@pytest.mark.filterwarnings("ignore:fan_in_fan_out")  # peft says that it handles GPT-2's transposed layers
def test_another_architecture_gets_its_adapters_under_its_own_names(run, tmp_path, capfd):
    """GPT-2: its matrices lie transposed, its positions are learnt, and its names are not Llama's."""
    shape = {"n_embd": 64, "n_layer": 2, "n_head": 2, "n_positions": 256, "vocab_size": 262, "initializer_range": 0.2}
    torch.manual_seed(0)
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**shape, bos_token_id=None, eos_token_id=2))
    model.save_pretrained(tmp_path / "gpt2")
    transformers.AutoTokenizer.from_pretrained(TINY_LM).save_pretrained(tmp_path / "gpt2")
    flags = ["--lora_rank=2", "--steps=3", "--lr=3e-3", "--missing_eos_penalty=1"]  # it earns nothing else
    lines = metrics(run("gpt2", f"--model={tmp_path / 'gpt2'}", "--max_prompt_tokens=100", *flags))
    assert all(line["rollout/logprob_gap_max"] < 1e-4 for line in lines)
    assert "a form of its own" not in capfd.readouterr().err, "every tensor has been compared"
    assert abs(lines[-1]["kl/ref"]) > 1e-3, "the policy has moved, so stale weights would show"


def test_a_resumed_run_is_the_uninterrupted_one(folder, run):
    """With a reward that draws from the generators which vLLM seeds anew as it starts."""
    drawn = ["--algorithm=rloo", "--group_size=4", f"--reward={folder / 'rewards.py'}:noisy", "--save_every=2"]
    drawn += ["--lora_rank=4", "--lr=1e-2"]
    whole = run("whole", "--steps=4", *drawn)
    run("parts", "--steps=2", *drawn)
    parts = run("parts", "--steps=4", *drawn, "--resume")
    assert without_clock(parts) == without_clock(whole)
    one, other = (load_file(out / "final" / "adapter_model.safetensors") for out in (whole, parts))
    assert all((one[name] == other[name]).all() for name in one)


def test_two_processes_have_an_engine_each_and_draw_apart(folder):
    """Of each pair of completions of a prompt, either process samples one; equal ones would have equal scores."""
    out = folder / "two"
    flags = [*SAMPLED, f"--data={folder / 'train.jsonl'}", f"--output_dir={out}", "--steps=2", "--eval_every=0"]
    done = torchrun(SCRIPTS / "ppo_train.py", *flags, "--save_every=0", "--algorithm=grpo", "--group_size=2")
    assert done.returncode == 0, done.stderr[-3000:]
    lines = metrics(out)
    assert len(lines) == 2 and all(line["mismatch/kl"] < 1e-9 for line in lines)
    assert all(line["reward/zero_std_frac"] < 1 for line in lines)


class Server:
    """vLLM's OpenAI-compatible server as a process of its own."""

    def __init__(self, model, log):
        self.port, self.log = free_port(), log
        flags = {"--model": model, "--port": self.port, "--host": "127.0.0.1", "--dtype": "float32"}
        flags |= {"--max-model-len": 96, "--served-model-name": "teacher", "--max-logprobs": 20}
        self.command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--enforce-eager"]
        self.command += [str(word) for pair in flags.items() for word in pair]
        self.start()

    def start(self) -> None:
        with self.log.open("a") as out:
            self.process = subprocess.Popen(self.command, stdout=out, stderr=out, start_new_session=True)

    def wait(self) -> str:
        """Wait until it answers; return its URL."""
        while True:
            assert self.process.poll() is None, self.log.read_text()[-3000:]
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=60).close()
                return f"http://127.0.0.1:{self.port}/v1"
            except OSError:
                time.sleep(0.2)

    def send(self, signum: int) -> None:
        """To the server and the processes that it has made."""
        os.killpg(self.process.pid, signum)

    def stop(self) -> None:
        self.send(signal.SIGKILL)
        self.process.wait()


@pytest.fixture(scope="module")
def teacher(learned, folder):
    """A server of the model that learned; it starts while other things go on."""
    server = Server(learned / "final", folder / "server.log")
    yield server
    server.stop()


def distill(folder, out, *flags) -> int:
    data = [f"--data={folder / 'train.jsonl'}", f"--eval_data={folder / 'eval.jsonl'}", f"--output_dir={out}"]
    same = [flag for flag in SAMPLED if not flag.startswith("--temperature")]
    return load_script("on_policy_distillation").main([*same, *data, "--eval_every=0", "--save_every=0", *flags])


def test_a_server_teaches_a_student_that_vllm_samples(folder, teacher, tmp_path, capsys):
    """It answers late once, and is gone while the student trains: what is trained is saved, and goes on."""
    url, out, seen = teacher.wait(), tmp_path / "run", []

    def disturb() -> None:
        for at, act in ((1, "slow"), (2, "gone")):
            while not (out / "metrics.jsonl").is_file() or len(metrics(out)) <= at:
                time.sleep(0.05)
            if act == "slow":
                teacher.send(signal.SIGSTOP)
                time.sleep(1)
                teacher.send(signal.SIGCONT)
            else:
                teacher.stop()
            seen.append(act)

    thread = threading.Thread(target=disturb, daemon=True)
    thread.start()
    flags = ["--objective=reverse_kl", "--kl_top_k=20", "--steps=6", "--batch_size=64", "--lr=2e-4"]
    assert distill(folder, out, f"--teacher={url}", *flags) == 3
    assert "vllm serve" in capsys.readouterr().err and seen == ["slow", "gone"]
    teacher.start()
    url = teacher.wait()
    assert distill(folder, out, f"--teacher={url}", *flags, "--resume") == 0, capsys.readouterr().err
    lines = metrics(out)
    assert len(lines) == 7
    assert lines[-1]["eval/reverse_kl"] < 0.5 * lines[0]["eval/reverse_kl"]


@pytest.mark.parametrize("more", [["--objective=policy_gradient"], ["--objective=jsd", "--kl_top_k=6"]])
def test_a_server_teaches_what_the_same_local_model_does(folder, learned, teacher, tmp_path, more):
    (tmp_path / "few.jsonl").write_text("".join((folder / "eval.jsonl").read_text().splitlines(keepends=True)[:8]))
    flags = [*more, "--rollout_engine=hf", "--steps=2", "--batch_size=16", f"--eval_data={tmp_path / 'few.jsonl'}"]
    flags += ["--adam_eps=1e-5"]  # with less, AdamW makes whole steps of gradients that are rounding
    for name, who in (("served", teacher.wait()), ("local", learned / "final")):
        assert distill(folder, tmp_path / name, f"--teacher={who}", *flags) == 0
    served, local = (load_file(tmp_path / name / "final" / "model.safetensors") for name in ("served", "local"))
    assert max((served[name] - local[name]).abs().max().item() for name in local) < 1e-5
    lines = zip(metrics(tmp_path / "served"), metrics(tmp_path / "local"), strict=True)
    losses = [(a["policy/loss"], b["policy/loss"]) for a, b in lines if "policy/loss" in a]
    assert len(losses) == 2 and all(a == pytest.approx(b, rel=1e-3, abs=1e-5) for a, b in losses)


def test_a_warm_start_samples_with_vllm_and_its_weights_follow(folder, tmp_path):
    """Round 1 trains on vLLM's samples of the start; the held-out log-probs after it are the new policy's, not its."""
    flags = "--self --samples=4 --prompts_per_round=16 --max_draws=1 --rounds=1 --min_rounds=1 --max_prompt_tokens=40"
    flags += " --max_new_tokens=24 --eval_prompts=4 --eval_samples=4 --pass_low=0"
    files = [f"--data={folder / 'train.jsonl'}", f"--eval_data={folder / 'eval.jsonl'}", f"--output_dir={tmp_path}/run"]
    assert load_script("warm_start").main([*flags.split(), "--rollout_engine=vllm", "--check_sync=1", *files]) == 0
    first = tmp_path / "run" / "rounds" / "round-001"
    sampled = [one for part in (first / "samples").iterdir() for one in read_lines(part)]
    passed = {(one["row"], one["text"]) for one in sampled if one["passed"]}
    assert {(one["row"], one["text"]) for one in read_lines(first / "supervised.jsonl")} <= passed
    assert len(sampled) == 64
    after = [one for part in (first / "held_out").iterdir() for one in read_lines(part)]
    tokenizer = transformers.AutoTokenizer.from_pretrained(TINY_LM)
    for source, same in ((tmp_path / "run" / "final", True), (TINY_LM, False)):
        model, gaps = transformers.AutoModelForCausalLM.from_pretrained(source).eval(), []
        for one in after:
            ids = tokenizer.apply_chat_template(one["prompt"], add_generation_prompt=True)["input_ids"]
            with torch.no_grad():
                logprobs = model(torch.tensor([ids + one["ids"]])).logits[0, len(ids) - 1 : -1].log_softmax(-1)
            said = logprobs.gather(1, torch.tensor(one["ids"])[:, None]).sum().item()
            gaps.append(abs(said - one["logprob"]))
        assert (max(gaps) < 1e-3) == same, gaps
