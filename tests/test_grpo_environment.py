"""Conversations through TRL: the same as TRL's own loop of tools gives, only what was sampled trains, runs go on."""

import copy
import json
import sys
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch
from chat_tokenizers import call, chat_tokenizer
from conftest import EVAL_DATA, SHAPE, load_script, read_lines, without_clock, write_lines
from small_runs import same, weights

grpo = load_script("grpo_train")

OWN = '''
BROKEN = False
SEEN = []


class Adder:
    """Counts in `get_reward` what was noted; the bug is switched on by a test."""

    def reset(self, answer: str, **row):
        SEEN.append({"answer": answer, **row})
        self.answer, self.total = answer, 0.0
        return " Use add."

    def add(self, a: int, b: int) -> int:
        """Add.

        Args:
            a: A number.
            b: Another.
        """
        self.total += 1.0
        return a + b

    def fail(self) -> str:
        """Raise."""
        raise ValueError("no such luck")

    async def later(self) -> str:
        """Come later."""
        self.total += 10.0
        return "late"

    def get_reward(self) -> float:
        return self.total


class Talk:
    def reset(self, answer, **row):
        self.heard = 0

    def reply(self, text):
        self.heard += 1
        return "Again." if self.heard < 2 and not (BROKEN and self.nothing) else None

    def get_reward(self):
        return float(self.heard)


class Silent:
    def reset(self, **row):
        pass

    def reply(self, text):
        return None


MIXED = {"adder": Adder, "silent": Silent}


def length(prompts, completions, **kwargs):
    return [float(len(c)) for c in completions]


def totals(prompts, completions, environments, answer, **kwargs):
    assert [p[-1]["content"].endswith("Use add.") for p in prompts] == [True] * len(prompts)
    for messages in completions:
        messages.clear()  # the next function gets its own
    return [environment.total for environment in environments]


def environment(prompts, completions, **kwargs):
    return [0.0] * len(completions)
'''


def own_module(place):
    """The user's file as the script has imported it; other tests have files of this name, too."""
    own = str(place / "own.py")
    modules = [m for m in [*sys.modules.values()] if str(getattr(m, "__file__", "")).endswith("/own.py")]
    return next(m for m in modules if m.__file__ == own)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with the user's file, data, and a random model with Qwen2.5's chat template, which TRL can parse."""
    import transformers

    folder = tmp_path_factory.mktemp("place")
    (folder / "own.py").write_text(OWN)
    rows = read_lines(EVAL_DATA)[:4]
    rows = [{**row, "level": i, "environment": ["adder", "silent"][i % 2]} for i, row in enumerate(rows)]
    rows[3]["prompt"] = rows[3]["prompt"][0]["content"]
    long = {**rows[0], "prompt": "2+" * 550 + "2="}  # too long with the tools
    write_lines(folder / "mixed.jsonl", [long, *rows])
    for row in rows:
        del row["environment"]
    write_lines(folder / "rows.jsonl", rows)
    tokenizer = chat_tokenizer("qwen2_5", "<|im_end|>")
    end = tokenizer.eos_token_id
    torch.manual_seed(0)
    shape = {**SHAPE, "vocab_size": len(tokenizer), "eos_token_id": end, "max_position_embeddings": 2048}
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**shape))
    model.save_pretrained(folder / "model")
    tokenizer.pad_token = "<s>"
    tokenizer.save_pretrained(folder / "model")
    tokenizer.chat_template = None
    tokenizer.save_pretrained(folder / "bare")
    return folder


@pytest.fixture
def ours(capsys):
    """Run the command line in this process; return (exit code, stdout, stderr)."""
    return lambda *flags: (grpo.main([*map(str, flags)]), *capsys.readouterr())


def flags_of(place, name="Adder", *more) -> list[str]:
    """Flags of a small run with one of the user's environments."""
    files = [f"--data={place / 'rows.jsonl'}", f"--eval_data={place / 'rows.jsonl'}", f"--model={place / 'model'}"]
    sizes = ["--per_device_train_batch_size=4", "--num_generations=4", "--max_completion_length=96", "--plot_every=0"]
    sizes += ["--allow_overlap", "--eval_every=0", "--sample_every=1", "--max_turns=3", "--max_prompt_length=1300"]
    return [*files, *sizes, "--max_conversation_tokens=2048", f"--environment={place / 'own.py'}:{name}", *more]


def tiny_flags(place, name="Talk", *more) -> list[str]:
    """Flags of a run of the embedded model, which talks and calls nothing."""
    kept = [flag for flag in flags_of(place, name) if not flag.startswith(("--model", "--max_"))]
    return [*kept, "--max_turns=2", "--max_completion_length=12", "--max_prompt_length=32", *more]


END = "<|im_end|>"
SCRIPTS = [  # the answers of four conversations
    ["I add." + call("add", a=2, b=3) + END, "5" + END],
    [call("add", a=1, b=1) + "\n" + call("fail") + END, call("later") + END, "Done" + END],
    ["Nothing" + END],
    [call("add", a=7, b=7) + END, call("nosuch", x=1) + END, call("add", a=1, b=0) + END],  # the last is not made
]


class Scripted:
    """The place of TRL's sampling: each conversation, known by its tokens so far, has answers of its own."""

    def __init__(self, tokenizer, scripts):
        self.encode = lambda text: tokenizer(text, add_special_tokens=False).input_ids
        self.scripts, self.talks = scripts, []

    def __call__(self, prompt_ids, images, fields, num_generations, has_tool_images=False):
        if not self.talks:
            self.talks = [([*ids], iter(script)) for ids, script in zip(prompt_ids, self.scripts, strict=True)]
        left, answers = [*range(len(self.talks))], []
        for ids in prompt_ids:
            i = next(i for i in left if ids[: len(self.talks[i][0])] == self.talks[i][0])
            left.remove(i)
            answers.append(self.encode(next(self.talks[i][1])))
            self.talks[i] = ([*ids, *answers[-1]], self.talks[i][1])
        return answers, None


@pytest.fixture(scope="module")
def both(place):
    """Our trainer, and what it and TRL's own loop with the same class, unchanged, make of the same answers."""
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    caught = []
    with pytest.MonkeyPatch.context() as patch, pytest.raises(ZeroDivisionError):
        patch.setattr(grpo, "run_steps", lambda trainer, checkpoint: caught.append(trainer) or 1 / 0)
        grpo.main([*flags_of(place, "Adder"), f"--output_dir={place / 'mine'}"])
    row = json.loads((place / "rows.jsonl").read_text().splitlines()[2])
    sizes = {"per_device_train_batch_size": 4, "num_generations": 4, "max_completion_length": 800}
    args = GRPOConfig(output_dir=str(place / "trl"), use_cpu=True, bf16=False, report_to="none", **sizes)
    args.max_tool_calling_iterations = 2
    rows = [copy.deepcopy(row) for _ in range(4)]
    theirs = {"args": args, "train_dataset": Dataset.from_list(rows), "reward_funcs": []}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
        plain = GRPOTrainer(model=str(place / "model"), environment_factory=own_module(place).Adder, **theirs)

    found = []
    for trainer, given in ((caught[0], [{"prompt": "2", "row": 2}] * 4), (plain, rows)):
        trainer._generate_single_turn = Scripted(trainer._tokenizer, SCRIPTS)
        trainer.model.train()
        found.append(trainer._generate_and_score_completions(given))
    return caught[0], *found


def test_conversations_are_those_of_trls_own_loop(both):
    """Same tokens, mask and rewards, from the class that TRL gets as environment_factory; what was sampled trains."""
    trainer, mine, theirs = both
    for name in ("prompt_ids", "prompt_mask", "completion_mask", "tool_mask", "advantages"):
        assert torch.equal(mine[name], theirs[name]), name
    kept = mine["completion_mask"].bool()
    assert torch.equal(mine["completion_ids"][kept], theirs["completion_ids"][kept])
    text = [trainer._tokenizer.decode(ids[m]) for ids, m in zip(mine["completion_ids"], kept, strict=True)]
    assert [t.count("<tool_response>") for t in text] == [1, 3, 0, 2] and "no such luck" in text[1]
    assert len({*mine["advantages"].tolist()}) == 3  # totals 1, 11, 0, 1
    for i, script in enumerate(SCRIPTS):
        sampled = (mine["tool_mask"][i] * mine["completion_mask"][i]).bool()
        assert trainer._tokenizer.decode(mine["completion_ids"][i][sampled]) == "".join(script)
    saved = grpo.generation_settings(trainer.model.config.name_or_path)
    assert grpo.ending_ids(saved.eos_token_id, trainer._tokenizer) == sorted(trainer.eos_token_ids)


def played(ready, numbers: list[int], scripts=SCRIPTS):
    """A rollout of prepared rows with scripted answers and log-probs, as TRL calls for it with vLLM."""
    sampling = Scripted(ready.tokenizer, scripts)

    def sample(*given):
        ids, _ = sampling(*given)
        return ids, [[-1.0] * len(answer) for answer in ids]

    trainer = SimpleNamespace(use_vllm=True, _generate_single_turn=sample)
    return grpo.rollout_function(ready.setup, ready.scorer)([str(n) for n in numbers], trainer)


def scores_of(ready, out: dict, numbers: list[int]) -> dict[str, list]:
    """What each function says to TRL."""
    extras = {"trainer_state": None, "log_extra": None, "log_metric": None}
    given = {"prompts": [""] * 4, "completions": [""] * 4, "completion_ids": out["completion_ids"], "row": numbers}
    return {reward.__name__: reward(**given, **extras) for reward in ready.scorer.for_trl()}


def test_environments_have_the_columns_of_their_rows_and_rewards_see_what_was_said(place):
    rewards = [f"--reward={place / 'own.py'}:{name}" for name in ("totals*0.5", "length")]
    ready = grpo.prepare_run(grpo.parse_config(flags_of(place, "Adder", *rewards)))
    seen = own_module(place).SEEN
    seen.clear()
    numbers = [0, 0, 3, 3]
    out = played(ready, numbers)
    rows = read_lines(place / "rows.jsonl")
    rows[3]["prompt"] = [{"role": "user", "content": rows[3]["prompt"]}]
    assert seen == [rows[n] for n in numbers]
    for ids, mask, logprobs in zip(out["completion_ids"], out["env_mask"], out["logprobs"], strict=True):
        assert logprobs == [-1.0 * m for m in mask] and len(ids) == len(mask)
    totals, lengths = [1.0, 11.0, 0.0, 1.0], [3.0, 6.0, 1.0, 5.0]
    assert scores_of(ready, out, numbers) == {"environment": totals, "totals": totals, "length": lengths}
    assert [sample["score"] for sample in ready.scorer.samples()] == [1.5 + 3, 16.5 + 6, 0 + 1, 1.5 + 5]
    entry = grpo.conversation_entry(ready.setup, ready.scorer.latest["rows"][3]["talk"])
    assert (entry["ended_by"], entry["finished"], entry["length"]) == ("turns", True, sum(out["env_mask"][3]))
    assert [p["sampled"] for p in entry["pieces"]] == [True, False, True, False, True]


def test_a_dictionary_mixes_environments_and_what_pays_nothing_is_left_to_the_rewards(place):
    more = [f"--reward={place / 'own.py'}:length*0.1", f"--data={place / 'mixed.jsonl'}"]
    ready = grpo.prepare_run(grpo.parse_config([*flags_of(place, "MIXED", *more), f"--eval_data={place}/mixed.jsonl"]))
    assert [row["columns"]["level"] for row in ready.rows] == [0, 1, 2, 3] and ready.scorer.rows is ready.rows
    out = played(ready, [0, 1], [SCRIPTS[0], ["Hm" + END]])
    assert scores_of(ready, out, [0, 1]) == {"environment": [1.0, None], "length": [3.0, 1.0]}
    assert [sample["score"] for sample in ready.scorer.samples()] == [pytest.approx(1.3), pytest.approx(0.1)]


def test_processes_that_sample_together_are_refused(monkeypatch):
    trainer, plugin = Mock(is_fsdp_enabled=False, vllm_mode="server", vllm_tensor_parallel_size=1), Mock(zero_stage=3)
    trainer.accelerator.state.deepspeed_plugin = plugin
    grpo.check_sampling_apart(trainer)
    monkeypatch.setattr(grpo, "world", lambda: (0, 2))
    with pytest.raises(grpo.UserError, match="DeepSpeed ZeRO-3, --use_vllm server and 2 processes"):
        grpo.check_sampling_apart(trainer)
    trainer.vllm_mode, plugin.zero_stage = "colocate", 2
    grpo.check_sampling_apart(trainer)


@pytest.mark.long
def test_a_bug_of_the_environment_stops_the_run_and_it_goes_on_bit_for_bit(place, ours, tmp_path):
    flags = [*tiny_flags(place), "--lr_scheduler_type=constant", "--save_steps=1"]
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert ours(*flags, "--steps=3", f"--output_dir={whole}")[0] == 0
    assert ours(*flags, "--steps=1", f"--output_dir={parts}")[0] == 0
    metrics = without_clock(whole)
    assert [line["rollout/turns_mean"] for line in metrics[1:]] == [2.0] * 3 and metrics[0]["eval/turns_mean"] == 2
    assert {"rollout/limit_frac", "tool/calls_mean", "tool/failure_frac"} <= {*metrics[1]}
    entries = read_lines(whole / "samples.jsonl")
    assert {e["kind"] for e in entries} == {"eval", "train"} and all(e["messages"] for e in entries)
    own_module(place).BROKEN = True
    code, _, error = ours(*flags, "--steps=3", f"--output_dir={parts}", "--resume")
    own_module(place).BROKEN = False
    line = 1 + OWN.split("self.nothing")[0].count("\n")
    assert code == 3 and f"own.py:{line}" in error and "AttributeError" in error and ".jsonl:" in error
    assert "Traceback" not in error
    assert ours(*flags, "--steps=3", f"--output_dir={parts}", "--resume")[0] == 0
    assert without_clock(parts)[2:] == metrics[2:]
    assert same(weights(whole), weights(parts))


REFUSED = [
    (["--reward={own}:environment"], "the name of the environment's own score"),
    (["--model={place}/bare"], "got --environment, but the tokenizer"),
    (["--trainer_args", "max_tool_calling_iterations=3"], "try --max_turns"),
]


@pytest.mark.parametrize(("flags", "part"), REFUSED, ids=[part for _, part in REFUSED])
def test_what_cannot_be_is_refused_before_the_first_step(place, ours, tmp_path, flags, part):
    folder = tmp_path / "run"
    given = [flag.format(own=place / "own.py", place=place) for flag in flags]
    code, _, error = ours(*tiny_flags(place, "Talk", *given), f"--output_dir={folder}")
    assert code == 2 and any(text in error for text in part.split("|")), error
    assert "Traceback" not in error and not (folder / "metrics.jsonl").exists()
