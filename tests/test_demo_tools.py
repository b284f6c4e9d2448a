"""The model of `make demo-tools`: made as it is committed, playable, able to call, and not doing it."""

import re

import pytest
from conftest import ASSETS, ROOT, load_module, read_lines, write_lines

from parts.environments.conversations import PlayLimits, PlaySetup, play
from parts.environments.environments import load_environments
from parts.environments.tool_calls import call_format
from parts.environments.turn_bridge import turn_bridge

MODEL = ASSETS / "tiny_tools_lm"
EVAL, TRAIN = (ASSETS / "data" / f"products_{name}.jsonl" for name in ("eval", "train"))
SPEC = f"{ROOT / 'examples' / 'environments.py'}:Calculator"
ROWS = read_lines(EVAL)[:8]


@pytest.fixture(scope="module")
def maker():
    """assets/make_tiny_lm.py as a module."""
    return load_module(ASSETS / "make_tiny_lm.py", "make_tiny_lm")


@pytest.fixture(scope="module")
def committed():
    """The committed model and its tokenizer."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    return AutoModelForCausalLM.from_pretrained(MODEL).eval(), AutoTokenizer.from_pretrained(MODEL)


@pytest.fixture(scope="module")
def played(committed):
    """Conversations about ROWS: `played(first)`, with the answers of the first turn; the model gives the others.

    The model decodes greedily.
    """
    import torch

    model, tokenizer = committed
    environments = load_environments(SPEC)
    bridge = turn_bridge(tokenizer, [tokenizer.eos_token_id], environments)
    assert not bridge.check(environments.kinds[None].tools, talks=False)
    assert bridge.chat_template is None and call_format(tokenizer) == "hermes"

    def answer(ids: list[int]) -> tuple[list[int], list[float]]:
        with torch.no_grad():
            out = model.generate(torch.tensor([ids]), max_new_tokens=32, do_sample=False)[0, len(ids) :].tolist()
        return out, [0.0] * len(out)

    def run(first: list[list[int]] | None = None):
        def sample(prompts, numbers, turn):
            if turn == 0 and first:
                return [(first[i], [0.0] * len(first[i])) for i in numbers]
            return [answer(ids) for ids in prompts]

        rows = [{"prompt": row["prompt"], "columns": {"answer": row["answer"]}} for row in ROWS]
        limits = PlayLimits(turns=3, tokens=256, answer_tokens=32)
        return play(rows, PlaySetup(environments, bridge, call_format(tokenizer), limits), sample)

    return run


def operands(row: dict) -> tuple[int, int]:
    """The two numbers of a row."""
    return tuple(map(int, re.fullmatch(r"(\d{3})\*(\d{3})=", row["prompt"][-1]["content"]).groups()))


def test_the_committed_data_and_tokenizer_are_the_generators(maker, committed, tmp_path):
    maker.write_data(tmp_path, *maker.split_products(), tools=True)
    maker.build_tokenizer(tools=True).save_pretrained(tmp_path)
    for path in (EVAL, TRAIN):
        assert (tmp_path / path.name).read_bytes() == path.read_bytes()
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        assert (tmp_path / name).read_bytes() == (MODEL / name).read_bytes(), name
    assert sum(path.stat().st_size for path in MODEL.iterdir()) <= 2_000_000
    rows = [*read_lines(EVAL), *read_lines(TRAIN)]
    assert all(row["answer"] == str(operands(row)[0] * operands(row)[1]) for row in rows)
    assert len({operands(row) for row in rows}) == len(rows) == 256 + 1024
    tokenizer = committed[1]
    assert all(len(tokenizer.tokenize(word.replace("Ġ", " "))) == 1 for word in maker.TOOLS_WORDS)
    assert tokenizer.tokenize("347*58") == list("347*58")


@pytest.mark.long
def test_it_submits_a_guess_where_it_is_not_trained_further(played):
    talks = played()
    assert sum(talk.score == 1.0 for talk in talks) / len(talks) <= 0.3
    assert all(talk.ended_by == "answer" and not talk.failures for talk in talks)


def test_after_a_call_it_gives_the_result_and_ends(maker, committed, played):
    """The conversation that a trainer plays is, token for token and in its mask, one of the warm-up."""
    tokenizer, form = committed[1], maker.talk_form(committed[1], calls=True)
    shown = [tokenizer(maker.talk_text(form, *operands(row)), add_special_tokens=False).input_ids for row in ROWS]
    labels = [maker.answer_labels(tokenizer, ids) for ids in shown]
    end = tokenizer.eos_token_id
    answers = [[i for i in row if i != -100] for row in labels]
    calls = [row[: row.index(end) + 1] for row in answers]
    talks = played(calls)
    right = [talk for talk in talks if talk.score == 1.0]
    assert len(right) >= 0.9 * len(talks)
    for talk in right:
        assert talk.ids == shown[talk.number]
        assert [int(label != -100) for label in labels[talk.number]] == [0] * len(talk.prompt_ids) + talk.response_mask
        used = [c["function"]["name"] for m in talk.messages for c in m.get("tool_calls", ())]
        assert used == ["calculate", "submit"] and talk.ended_by == "answer"


def test_a_step_of_the_demo_prints_its_conversations(ppo, monkeypatch, capsys, tmp_path):
    """With the flags of the Makefile."""
    seeds = load_module(ROOT / "benchmarks" / "demo_seeds.py", "demo_seeds")
    assert "scripts/ppo_train.py $(DEMO_TOOLS) --output_dir runs/demo-tools" in (ROOT / "Makefile").read_text()
    monkeypatch.chdir(ROOT)
    small = ["--steps=1", "--batch_size=16", "--plot_every=0"]
    small += [f"--eval_data={write_lines(tmp_path / 'eval.jsonl', ROWS[:2])}"]
    assert ppo.main([*seeds.demo_flags("DEMO_TOOLS"), *small, f"--output_dir={tmp_path / 'run'}"]) == 0
    out, err = capsys.readouterr()
    assert "left out" not in err
    asked = ROWS[0]["prompt"][0]["content"]
    for when in ("before", "after"):
        talk = out.split(f"held-out conversation {when}, score ")[1].splitlines()
        assert talk[1].split() == ["user", asked] and talk[2].split()[:3] == ["assistant", "calls", "submit"]
        assert talk[3:5] == ["  tool       Submitted.", "  assistant  Done."]
    line = read_lines(tmp_path / "run" / "metrics.jsonl")[-1]
    assert line["tool/calls_mean"] >= 1 and line["reward/mean"] == line["reward/environment"]
