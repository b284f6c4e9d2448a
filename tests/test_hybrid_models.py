"""Random models with recurrent layers, Llama 4 and Mamba in the three scripts that sample, all in this process.

What is expected comes from the model alone: `model(input_ids=one text without pads)`.
"""

import pytest
import torch
from conftest import HYBRIDS, SHAPE, load_script, read_lines, write_lines
from transformers import AutoConfig, AutoModelForCausalLM

ppo, od, ev = (load_script(name) for name in ("ppo_train", "on_policy_distillation", "evaluation"))
CPU = torch.device("cpu")
TRAINED = sorted(HYBRIDS.keys() - {"rwkv"})
PROMPTS = ["1+1=", "34+71=", "What is 12+5? Be brief.", "7", "Add 19 and 23, then say it.", "90+9=", "3+4="]
IDS = [[40 + (7 * i + j) % 150 for j in range(2 + 3 * (i % 4))] for i in range(7)]  # of 2, 5, 8 and 11 tokens
REWARD = """
def vowels(prompts, completions, **kwargs):
    return [float(sum(text.count(v) for v in "aeiou")) - 0.1 * len(text) for text in completions]
"""


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Flags of a small task: prompts of several lengths and a reward."""
    folder = tmp_path_factory.mktemp("task")
    (folder / "rewards.py").write_text(REWARD)
    write_lines(folder / "data.jsonl", [{"prompt": text} for text in PROMPTS])
    return [f"--data={folder / 'data.jsonl'}", f"--reward={folder / 'rewards.py'}:vowels"]


SIZES = ["--steps=2", "--batch_size=4", "--max_new_tokens=8", "--lr=1e-3", "--minibatches=2", "--plot_every=0"]


def two_lines(folder):
    """The metrics of a run of two steps, which are checked for what holds for every model."""
    lines = [line for line in read_lines(folder / "metrics.jsonl") if line["step"]]
    assert [line["step"] for line in lines] == [1, 2]
    for line in lines:
        assert line["rollout/logprob_gap_max"] < 1e-3, "sampler and trainer agree"
        assert line["optim/grad_norm"] > 0
    return lines


def text_logprobs(model, prompt, response):
    """Log-probs of a response by one forward of the text, alone and without a cache."""
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([prompt + response]), use_cache=False).logits[0].float()
    dist = torch.log_softmax(logits[len(prompt) - 1 : -1], -1)
    return dist.gather(-1, torch.tensor(response)[:, None]).squeeze(-1)


TRIED = {("mamba", 0), ("qwen3_next", 0)}  # in the short tests


# states beside attention, chunks, states alone, a cache whose rows cannot leave, delta rules
@pytest.mark.parametrize(
    ("family", "rank"),
    [
        pytest.param(family, rank, marks=[] if (family, rank) in TRIED else pytest.mark.long)
        for family in ("falcon_h1", "llama4", "mamba", "minimax", "qwen3_next")
        for rank in (0, 2)
    ],
)
def test_ppo_trains_two_steps(saved, files, tmp_path, family, rank):
    """No adapters on Llama 4's router, which returns two tensors, nor on Mamba's out_proj, which fused kernels read."""
    flags = [f"--model={saved(family)}", *files, *SIZES, f"--lora_rank={rank}"]
    assert ppo.main([*flags, f"--output_dir={tmp_path}"]) == 0
    lines = two_lines(tmp_path)
    if rank:
        return
    assert lines[0]["kl/ref"] == pytest.approx(0, abs=1e-5) and abs(lines[1]["kl/ref"]) > 1e-5
    before, after = (AutoModelForCausalLM.from_pretrained(x) for x in (saved(family), tmp_path / "final"))
    assert type(before) is type(after)
    moved = [not torch.equal(a, b) for a, b in zip(before.parameters(), after.parameters(), strict=True)]
    assert sum(moved) > 0.8 * len(moved)


@pytest.mark.parametrize("family", TRAINED)
def test_sampled_and_trained_logprobs_are_those_of_the_texts(saved, family):
    """Rows end at different times and prompts have different lengths: batches are padded, and rows leave them."""
    config = ppo.Config(model=saved(family), max_new_tokens=12, batch_size=7, kl_coef=0.0, advantage="grpo")
    models = ppo.load_models(config, CPU)
    noise = torch.rand(7, 12, generator=torch.Generator().manual_seed(1)).numpy()
    outputs = ppo.HFEngine(config, models).generate(IDS, noise)
    assert len({len(ids) for ids, _ in outputs}) > 2
    keys = ("prompt_ids", "response_ids", "rollout_logprobs")
    samples = [dict(zip(keys, (prompt, *output), strict=True)) for prompt, output in zip(IDS, outputs, strict=True)]
    batch = ppo.collate(samples, models.pad_id, CPU)
    with torch.no_grad():
        trained = ppo.token_logprobs(config, models.policy, ppo.predicting_states(models.policy, batch), batch)[0]
    model = AutoModelForCausalLM.from_pretrained(saved(family)).eval()
    for row, (prompt, (ids, logprobs)) in enumerate(zip(IDS, outputs, strict=True)):
        expected = text_logprobs(model, prompt, ids)
        torch.testing.assert_close(torch.tensor(logprobs), expected, rtol=0, atol=5e-4)
        torch.testing.assert_close(trained[row][batch["response_mask"][row].bool()], expected, rtol=0, atol=5e-4)


def test_evaluation_gives_the_completions_and_logprobs_of_the_texts(saved):
    config = ev.Config(task=["math"], cache=False, max_new_tokens=12)
    model = ev.LocalModel(config, saved("minimax"), CPU)
    requests = [ev.Request(ids=ids, limit=12 - i, sample=0, stops=[]) for i, ids in enumerate([*IDS, IDS[1]])]
    found, scored = {}, {}
    model.generate(requests, found.__setitem__)
    for i, request in enumerate(requests):
        out, prompt = found[i]["ids"], list(request.ids)
        with torch.no_grad():
            best = model.model(input_ids=torch.tensor([prompt + out]), use_cache=False).logits[0].argmax(-1).tolist()
        assert out == best[len(prompt) - 1 : -1] and not {*out} & {*model.eos_ids}
        assert len(out) == request.limit or best[-1] in model.eos_ids
    requests = [
        ev.Request(ids=ids, limit=0, sample=0, stops=[], scored=[60, 61, 62][: 1 + i % 3]) for i, ids in enumerate(IDS)
    ]
    model.logprob(requests, scored.__setitem__)
    for i, request in enumerate(requests):
        expected = float(text_logprobs(model.model, list(request.ids), list(request.scored)).sum())
        assert scored[i]["logprob"] == pytest.approx(expected, abs=5e-4)


@pytest.mark.parametrize("scale", [("granite", "logits_scaling"), ("cohere", "logit_scale")])
def test_scaled_logits_are_those_of_the_model(scale):
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(scale[0], **SHAPE | {scale[1]: 0.5})).eval()
    ids = torch.tensor(IDS[:1])
    with torch.no_grad():
        found = ppo.all_logits(model, ppo.plain_states(model, ids, torch.ones_like(ids)))
        torch.testing.assert_close(found, model(input_ids=ids).logits, rtol=1e-5, atol=1e-5)


def refused(main, flags, folder, capsys, told):
    """Asserts that a command is refused before it trains, with these words."""
    assert main([*flags, f"--output_dir={folder}"]) == 2
    text = capsys.readouterr().err
    assert told in text and "Traceback" not in text and not (folder / "metrics.jsonl").exists()


def test_a_network_that_reads_pads_is_refused(saved, files, tmp_path, capsys):
    """RWKV has no attention mask: a text padded on the left is another one for it."""
    refused(ppo.main, [f"--model={saved('rwkv')}", *files, *SIZES], tmp_path / "ppo", capsys, "padded on the left")
    flags = [f"--model={saved('mamba')}", *files, *SIZES, f"--teacher={saved('rwkv', 1)}"]
    refused(od.main, flags, tmp_path / "teacher", capsys, "got teacher Rwkv")


def test_a_cache_that_forgets_is_refused(saved, files, tmp_path, capsys, monkeypatch):
    """A step that sees its own token alone gives other states than the whole text."""
    for script in (ppo, ev):
        real = script.cached_states

        def forgetful(model, ids, mask, cache, real=real):
            return real(model, ids, mask[:, -ids.shape[1] :], None)

        monkeypatch.setattr(script, "cached_states", forgetful)
    flags = [f"--model={saved('lfm2')}", *files, *SIZES]
    refused(ppo.main, flags, tmp_path / "ppo", capsys, "one token at a time")
    model = ev.LocalModel(ev.Config(task=["math"], cache=False), saved("lfm2"), CPU)
    with pytest.raises(ev.UserError, match="one token at a time"):
        model.generate([ev.Request(ids=IDS[1], limit=4, sample=0, stops=[])], print)


@pytest.mark.long
def test_bf16_is_not_refused(saved, files, tmp_path):
    """What rounding does to states is far below what faults of caches do."""
    for family, rank in [*((family, 0) for family in TRAINED), ("falcon_h1", 2), ("mamba", 2), ("qwen3_next", 2)]:
        config = ppo.Config(model=saved(family), precision="bf16", lora_rank=rank, kl_coef=0.0, advantage="grpo")
        found = ppo.HFEngine(config, ppo.load_models(config, CPU)).decoding
        assert found == ppo.Decoding(pads=family != "minimax", leaving=family != "minimax")
