"""Two steps of the PPO trainer on tiny random models of each family, built from their configurations."""

import json
from pathlib import Path
from types import SimpleNamespace

import peft
import pytest
import torch
import transformers
from conftest import FEW, load_script, read_lines, save_random_model, write_lines

from parts.data.rows import is_hub_id
from parts.foundation.messages import UserError
from parts.networks.adapters import adapter_settings, add_lora, load_pretrained
from parts.networks.tokenizers import read_tokenizer
from parts.sampling.saved_models import load_plainly

# peft says that it handles GPT-2's transposed layers
pytestmark = pytest.mark.filterwarnings("ignore:fan_in_fan_out")

REWARD = """
def vowels(prompts, completions, **kwargs):
    texts = [c if isinstance(c, str) else c[0]["content"] for c in completions]
    return [float(sum(text.count(v) for v in "aeiou")) - 0.1 * len(text) for text in texts]
"""
QUESTIONS = ["1+1=", "34+71=", "What is 12+5? Be brief.", "7", "Add 19 and 23, then say it.", "90+9="]
CHATS = [[{"role": "system", "content": "Sums."}, {"role": "user", "content": text}] for text in QUESTIONS]


@pytest.fixture
def two_steps(ppo, tmp_path):
    """Train for two steps and return (metrics lines, run folder); also checks what must hold for every model."""
    (tmp_path / "rewards.py").write_text(REWARD)

    def run(model: str, *flags, prompts=CHATS, name="run"):
        data, folder = tmp_path / f"{name}.jsonl", tmp_path / name
        write_lines(data, [{"prompt": prompt} for prompt in prompts])
        sizes = ["--steps=2", "--batch_size=4", "--max_new_tokens=8", "--lr=1e-3", "--minibatches=2"]
        sizes += ["--plot_every=0", "--temperature=0.7"]
        files = [f"--data={data}", f"--reward={tmp_path / 'rewards.py'}:vowels", f"--output_dir={folder}"]
        assert ppo.main([f"--model={model}", *files, *sizes, *flags]) == 0
        lines = read_lines(folder / "metrics.jsonl")
        assert [line["step"] for line in lines] == [1, 2]
        for line in lines:
            assert line["rollout/logprob_gap_max"] < 1e-4, "sampler and trainer see the same positions and logits"
            assert line["optim/skipped_updates"] == 0 and line["optim/grad_norm"] > 0
        assert lines[0]["kl/ref"] == pytest.approx(0, abs=1e-5) and abs(lines[1]["kl/ref"]) > 1e-5
        return lines, folder

    return run


def load(folder):
    return transformers.AutoModelForCausalLM.from_pretrained(folder).eval()


def logits(folder):
    with torch.no_grad():
        return load(folder)(input_ids=torch.tensor([[4, 22, 16, 22, 34, 2, 5]])).logits


@pytest.mark.parametrize("family", ["qwen2", "gemma2", "gemma3", "gpt2", "gpt_neox", "mistral", "phi3"])
def test_two_steps(two_steps, tmp_path, family):
    source = save_random_model(family, tmp_path / family)
    lines, folder = two_steps(source)
    assert lines[0]["rollout/length_mean"] < 8, "some completions ended by themselves"
    before, after = load(source), load(folder / "final")
    assert type(after) is type(before)
    start = before.state_dict()
    still = [name for name, weight in after.state_dict().items() if torch.equal(weight, start[name])]
    assert not still, "every weight is trained"


def test_lora(two_steps, tmp_path):
    """The adapters in final/ load with transformers alone; merged into the weights they give the same logits."""
    source = save_random_model("gpt2", tmp_path / "gpt2")
    _, adapters = two_steps(source, "--lora_rank=2", name="adapters")
    _, merged = two_steps(source, "--lora_rank=2", "--merge_lora", name="merged")
    assert (adapters / "final" / "adapter_config.json").exists()
    assert not (merged / "final" / "adapter_config.json").exists()
    torch.testing.assert_close(logits(adapters / "final"), logits(merged / "final"), rtol=0, atol=1e-4)
    assert (logits(source) - logits(merged / "final")).abs().max() > 1e-3
    critic = torch.load(merged / "checkpoints" / "step-000002" / "critic.pt", weights_only=True)
    assert {name.split(".")[0] for name in critic} == {"backbone", "head"}
    assert all("lora_" in name for name in critic if name.startswith("backbone"))
    assert all(x.abs().max() > 0 for x in critic.values()), "LoRA's B and the head start at 0"


@pytest.mark.parametrize(("kind", "experts"), [("GptOss", False), ("Qwen3Moe", True)])
def test_experts_without_adapters_are_said(capsys, kind, experts):
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "vocab_size": 8, "head_dim": 4}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "num_experts_per_tok": 1}
    config = getattr(transformers, f"{kind}Config")(**sizes, **heads)
    config.num_local_experts = config.num_experts = 2
    model = transformers.AutoModelForCausalLM.from_config(config)
    network = add_lora(model, SimpleNamespace(lora_rank=2, lora_alpha=0))
    assert experts == any(p.requires_grad and ".experts." in name for name, p in network.named_parameters())
    assert experts != ("LoRA does not adapt the experts of GptOssForCausalLM" in capsys.readouterr().err)


def test_a_model_without_a_chat_template_and_without_a_pad_token(two_steps, tmp_path, capsys):
    _, folder = two_steps(save_random_model("gpt2", tmp_path / "gpt2", chat_template=False, pad=False))
    assert "no chat template" in capsys.readouterr().err
    assert load(folder / "final").config.pad_token_id is None


def test_other_critics(two_steps, tmp_path):
    shared = ("--critic=shared", "--gradient_checkpointing", "--lora_rank=2")
    two_steps(save_random_model("qwen3", tmp_path / "qwen3"), *shared, name="shared")
    critic = save_random_model("olmo2", tmp_path / "olmo2", seed=1)
    two_steps(save_random_model("llama", tmp_path / "llama"), f"--critic_model={critic}", name="other")


def with_token(folder: Path, **added) -> str:
    """A random model whose tokenizer alone knows one more token."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(save_random_model("llama", folder))
    tokenizer.add_special_tokens(added)
    tokenizer.save_pretrained(folder)
    return str(folder)


def test_a_pad_token_without_embedding_is_not_used(two_steps, tmp_path):
    two_steps(with_token(tmp_path / "llama", pad_token="<padding>"))


def test_a_token_without_embedding_is_told_before_sampling(ppo, tmp_path, capsys):
    model = with_token(tmp_path / "llama", additional_special_tokens=["<sum>"])
    (tmp_path / "data.jsonl").write_text('{"prompt": "<sum>1+1="}\n' * 4)
    (tmp_path / "rewards.py").write_text(REWARD)
    flags = [f"--model={model}", f"--data={tmp_path / 'data.jsonl'}", f"--reward={tmp_path / 'rewards.py'}:vowels"]
    assert ppo.main([*flags, f"--output_dir={tmp_path / 'run'}", "--batch_size=4"]) == 2
    said = capsys.readouterr().err
    assert "one was added to the tokenizer alone" in said and "resize_token_embeddings" in said


def renamed(w: dict) -> dict:
    return {f"_orig_mod.{name}": x for name, x in w.items()}


BROKEN = {  # what is wrong with a model's files -> (edit of the tensors, words of the message)
    "torch.compile": (renamed, ("21 of 21 tensors are missing", "21 others, such as _orig_mod.")),
    "no head": (
        lambda w: {name.removeprefix("model."): x for name, x in w.items() if name != "lm_head.weight"},
        ("1 of 21 tensors are missing, such as lm_head.weight", "tie_word_embeddings"),
    ),
    "reward model": (
        lambda w: {name.replace("lm_head", "score"): x[:1] if "lm_head" in name else x for name, x in w.items()},
        ("1 of 21", "1 others, such as score.weight"),
    ),
}


@pytest.fixture
def damaged(tmp_path):
    """damaged(edit) -> a random Llama whose file has the tensors that the edit makes of its own."""
    from safetensors.torch import load_file, save_file

    def make(edit) -> str:
        folder = save_random_model("llama", tmp_path / "damaged")
        file = tmp_path / "damaged" / "model.safetensors"
        save_file({name: x.contiguous() for name, x in edit(load_file(file)).items()}, file, metadata={"format": "pt"})
        return folder

    return make


@pytest.mark.parametrize("kind", BROKEN)
def test_missing_weights_are_refused(damaged, kind):
    edit, words = BROKEN[kind]
    with pytest.raises(UserError) as error:
        load_pretrained(transformers.AutoModelForCausalLM, damaged(edit))
    assert all(word in str(error.value) for word in ("damaged'", "; expected ", "; try ", *words)), error.value


def test_a_critic_needs_no_head(damaged):
    model = damaged(BROKEN["reward model"][0])
    assert load_pretrained(transformers.AutoModel, model).get_output_embeddings() is None


def test_ignored_parts_are_no_fault(damaged):
    parts = {"mtp.0.weight": torch.ones(2), "visual.patch.weight": torch.ones(2)}
    load_pretrained(transformers.AutoModelForCausalLM, damaged(lambda w: w | parts))


def test_tied_heads_and_buffers_need_not_be_in_the_files(tmp_path):
    """Bart's final_logits_bias is a buffer; its head and three embeddings are one tensor."""
    sizes = {"d_model": 16, "vocab_size": 32, "encoder_layers": 1, "decoder_layers": 1, "decoder_ffn_dim": 16}
    config = transformers.BartConfig(**sizes, encoder_ffn_dim=16, decoder_attention_heads=2, encoder_attention_heads=2)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    load_pretrained(transformers.AutoModelForCausalLM, str(tmp_path))


@pytest.mark.parametrize("program", ["ppo_train", "evaluation", "merge_adapter"])
def test_every_program_refuses_missing_weights(damaged, tmp_path, capsys, program):
    model = damaged(renamed)
    with pytest.raises(UserError, match="21 of 21 tensors are missing"):
        load_plainly(model)  # as prove.py does
    flags = [f"--model={model}", FEW[0], f"--output_dir={tmp_path / 'out'}"]
    flags += ["--task=math"] if program == "evaluation" else []
    if program == "merge_adapter":
        base = load(save_random_model("llama", tmp_path / "base"))
        peft.get_peft_model(base, peft.LoraConfig(target_modules="all-linear")).save_pretrained(tmp_path / "adapter")
        flags = [str(tmp_path / "adapter"), f"--base={model}", f"--output={tmp_path / 'merged'}"]
    assert load_script(program).main(flags) == 2
    assert "21 of 21 tensors are missing" in capsys.readouterr().err


def test_logits_that_are_not_finite_are_told(damaged, ppo, tmp_path, capsys):
    model = damaged(lambda w: w | {"model.norm.weight": w["model.norm.weight"] * float("nan")})
    assert ppo.main([f"--model={model}", *FEW, f"--output_dir={tmp_path / 'run'}"]) == 2
    assert "logits are not finite" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("files", "model"),
    [
        (("checkpoints/step-000001/policy", "checkpoints/step-000002/policy"), "checkpoints/step-000002/policy"),
        (("checkpoints/step-000001/policy", "final"), "final"),
        (("checkpoint-9", "checkpoint-10"), "checkpoint-10"),
        (("snapshots/0c1d",), "snapshots/0c1d"),  # the hub's cache
    ],
)
def test_the_folder_of_a_run_is_told(tmp_path, files, model):
    for file in files:
        (tmp_path / file).mkdir(parents=True)
        (tmp_path / file / "config.json").write_text('{"model_type": "llama"}')
    if files[0].startswith("checkpoints"):
        (tmp_path / "config.json").write_text('{"output_dir": "x"}')  # a run's own settings
    with pytest.raises(UserError) as error:
        adapter_settings(str(tmp_path))
    assert str(error.value).endswith(f"try {tmp_path / model}")


def test_code_of_a_model_is_refused_without_a_question(tmp_path):
    folder = Path(save_random_model("llama", tmp_path / "own"))
    settings = json.loads((folder / "config.json").read_text())
    settings |= {"model_type": "own", "auto_map": {"AutoConfig": "own.OwnConfig"}}
    (folder / "config.json").write_text(json.dumps(settings))
    with pytest.raises(UserError, match="'own' is code in its folder, which is never run"):
        adapter_settings(str(folder))


@pytest.mark.parametrize("file", ["model.safetensors", "tokenizer.json", "adapter_model.safetensors"])
def test_a_pointer_of_git_lfs_is_told(tmp_path, file):
    folder = Path(save_random_model("llama", tmp_path / "cloned"))
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 988097824\n"
    (folder / "pytorch_model.bin").write_text(pointer)  # never read beside safetensors
    assert adapter_settings(str(folder)) is None
    (folder / file).write_text(pointer)
    says = f"whose {file} is a pointer of Git LFS.*try `git lfs install` and `git lfs pull`"
    with pytest.raises(UserError, match=says):
        adapter_settings(str(folder))


def test_an_architecture_that_is_no_causal_model_is_told_in_a_line(ppo, tmp_path, capsys):
    save_random_model("llama", tmp_path / "t5")
    transformers.T5Config(d_model=8, num_layers=1).save_pretrained(tmp_path / "t5")
    assert ppo.main([f"--model={tmp_path / 't5'}", *FEW, f"--output_dir={tmp_path / 'run'}"]) == 2
    said = capsys.readouterr().err
    assert "T5Config'> for this kind of AutoModel: AutoModelForCausalLM" in said and len(said) < 500


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_a_folder_without_a_tokenizer_is_told(tmp_path, family):
    """transformers builds an empty tokenizer of some families, and raises an error for others."""
    folder = Path(save_random_model(family, tmp_path / family))
    assert len(read_tokenizer(str(folder)).get_vocab()) > 100
    for file in (*folder.glob("tokenizer*"), *folder.glob("*.jinja")):
        file.unlink()
    with pytest.raises(UserError, match="a folder without a tokenizer"):
        read_tokenizer(str(folder))


@pytest.mark.parametrize("name", ["my models/Qwen 4", "qwen3,", "a/b/c", "a--b", "a/", "http://h/v1", "C:/a/b"])
def test_names_that_could_not(name):
    assert not is_hub_id(name)
