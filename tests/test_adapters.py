"""Adapters as --model: they are trained on, each program reads them, and what is no plain LoRA adapter is refused."""

import json
import shutil
from types import SimpleNamespace

import pytest
import torch
from conftest import EVAL_DATA, FEW_EVAL, ROOT, TINY_LM, TRAIN_DATA, load_module, load_script, read_lines, write_lines
from peft import IA3Config, LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer, BitsAndBytesConfig, MambaConfig, T5Config

from parts.networks.adapters import base_of, load_pretrained, merged, tokenizer_of
from parts.networks.loading import load_error
from parts.networks.models import as_reference, keep_as_reference

TOKENS = torch.arange(3, 40)[None]
TARGETS = {"q_proj", "v_proj", "up_proj"}


def tiny():
    return AutoModelForCausalLM.from_pretrained(TINY_LM, dtype=torch.float32)


def logits(model):
    with torch.no_grad():
        return model.eval()(input_ids=TOKENS).logits


def make_adapter(folder, settings=None, base=None, std: float = 0.1, **saved):
    """Save an adapter of rank 4 that is trained by noise; the logits of base and adapter."""
    torch.manual_seed(1)
    usual = {"r": 4, "lora_alpha": 12, "target_modules": sorted(TARGETS), "task_type": "CAUSAL_LM"}
    model = get_peft_model(base or tiny(), LoraConfig(**usual | (settings or {}))).eval()
    with torch.no_grad():
        for x in model.parameters():
            x.add_(std * torch.randn_like(x) * x.requires_grad)
    model.save_pretrained(folder, **saved)
    return logits(model)


@pytest.fixture(scope="module")
def adapter(tmp_path_factory):
    """An adapter without a tokenizer, and the same model merged by peft."""
    folder = tmp_path_factory.mktemp("lora")
    make_adapter(folder / "adapter", {"lora_dropout": 0.3})
    PeftModel.from_pretrained(tiny(), folder / "adapter").merge_and_unload().save_pretrained(folder / "merged")
    AutoTokenizer.from_pretrained(TINY_LM).save_pretrained(folder / "merged")
    return folder / "adapter"


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("rows")
    for name, source, count in (("train", TRAIN_DATA, 8), ("eval", EVAL_DATA, 6)):
        write_lines(folder / f"{name}.jsonl", read_lines(source)[:count])
    (folder / "digits.py").write_text(
        "def digits(prompts, completions, **columns):\n"
        "    return [sum(map(str.isdigit, c if isinstance(c, str) else c[0]['content'])) for c in completions]\n"
    )
    return folder


COMMON = ["--reward={0}/digits.py:digits", "--data={0}/train.jsonl", "--eval_data={0}/eval.jsonl"]
OURS = ["--batch_size=8", "--max_new_tokens=14", "--save_every=1", "--eval_every=0", "--plot_every=0", "--lr=1e-2"]
DISTILLATION = "on_policy_distillation"
PROGRAMS = {
    "ppo_train": ["--algorithm=grpo", "--kl_coef=0.1", "--group_size=4", *OURS],
    "grpo_train": [
        *("--beta=0.1", "--num_generations=4", "--per_device_train_batch_size=8", "--max_completion_length=14"),
        *("--learning_rate=1e-2", "--lr_scheduler_type=constant", "--save_steps=1", "--use_cpu"),
    ],
    DISTILLATION: [f"--teacher={TINY_LM}", *OURS],
}


@pytest.fixture
def run(capsys, files):
    """Run a program in this process; return its output on stderr, and what it says if it fails."""

    def call(program: str, *flags, code: int = 0):
        flags = [*(flag.format(files) for flag in COMMON), *PROGRAMS[program], *map(str, flags)]
        try:
            found = load_script(program).main(flags)
        except SystemExit as stop:
            found = stop.code
        error = capsys.readouterr().err
        assert found == code, error
        return error

    return call


def held_out(folder) -> list:
    """The completions of a run before its first step."""
    return [s["completion"] for s in read_lines(folder / "samples.jsonl") if s["step"] == 0]


@pytest.mark.long
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_run_goes_on_from_an_adapter(run, adapter, tmp_path, program):
    """It starts as the merged model does, trains the same adapter, resumes bit for bit, and its final/ loads."""
    run(program, f"--model={adapter}", "--steps=2", f"--output_dir={tmp_path}/plain")
    run(program, f"--model={adapter.parent / 'merged'}", "--steps=1", f"--output_dir={tmp_path}/whole")
    assert held_out(tmp_path / "plain") == held_out(tmp_path / "whole")
    if program != DISTILLATION:
        kl = [line["kl/ref"] for line in read_lines(tmp_path / "plain" / "metrics.jsonl") if "kl/ref" in line]
        assert kl[0] == 0 < kl[1]
    run(program, f"--model={adapter}", "--lora_rank=4", "--steps=1", f"--output_dir={tmp_path}/parts")
    run(program, f"--model={adapter}", "--steps=2", "--resume", f"--output_dir={tmp_path}/parts")
    start = load_file(adapter / "adapter_model.safetensors")
    plain, parts = (load_file(tmp_path / name / "final/adapter_model.safetensors") for name in ("plain", "parts"))
    assert plain.keys() == parts.keys() == start.keys()
    assert all(torch.equal(x, parts[name]) for name, x in plain.items())
    assert all(0 < (x - start[name]).abs().max() < 0.1 for name, x in plain.items())
    final = tmp_path / "plain/final"
    assert not [path for path in final.iterdir() if path.is_dir()]  # no copy of the reference
    settings = json.loads((final / "adapter_config.json").read_text())
    assert (settings["r"], settings["lora_alpha"], {*settings["target_modules"]}) == (4, 12, TARGETS)
    by_peft = logits(PeftModel.from_pretrained(tiny(), final))
    by_transformers = logits(AutoModelForCausalLM.from_pretrained(final, dtype=torch.float32))
    by_evaluation = merged(load_pretrained(AutoModelForCausalLM, str(final), dtype=torch.float32))
    torch.testing.assert_close(by_transformers, by_peft, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(logits(by_evaluation), by_peft, atol=1e-4, rtol=1e-4)


def test_another_rank_or_alpha_is_refused(run, adapter, tmp_path):
    others = (("ppo_train", "--lora_rank=8", "4"), ("grpo_train", "--lora_alpha=8", "12"))
    for program, flag, right in (*others, (DISTILLATION, "--lora_rank=8", "4")):
        name, given = flag.split("=")
        said = run(program, f"--model={adapter}", flag, "--dry_run", f"--output_dir={tmp_path}/x", code=2)
        assert f"got {name} {given}" in said and f"try {name} {right}" in said and f"merge_adapter.py {adapter}" in said
        run(program, f"--model={adapter}", f"{name}={right}", "--dry_run", f"--output_dir={tmp_path}/x")


KINDS = {"rslora": {"use_rslora": True}, "dora": {"use_dora": True}, "a module": {"modules_to_save": ["lm_head"]}}
KINDS |= {"ranks by layer": {"rank_pattern": {"q_proj": 2}, "alpha_pattern": {"q_proj": 3}}}
KINDS |= {"embedding": {"target_modules": ["embed_tokens", "q_proj"]}}


@pytest.mark.filterwarnings("ignore::UserWarning")  # peft's, of tied weights
@pytest.mark.parametrize("kind", KINDS)
def test_the_reference_is_the_adapter_as_it_came(tmp_path, kind):
    expected = make_adapter(tmp_path / "a", KINDS[kind])
    policy = load_pretrained(AutoModelForCausalLM, str(tmp_path / "a"), trainable=True, dtype=torch.float32)
    trained = [name for name, x in policy.named_parameters() if x.requires_grad]
    torch.testing.assert_close(logits(policy), expected, atol=1e-5, rtol=1e-5)
    keep_as_reference(policy, str(tmp_path / "a"))
    with torch.no_grad():
        for x in policy.parameters():
            x.add_(0.05 * torch.randn_like(x) * x.requires_grad)
    with as_reference(policy):
        torch.testing.assert_close(logits(policy), expected, atol=1e-5, rtol=1e-5)
    assert (logits(policy) - expected).abs().max() > 0.01
    assert trained and trained == [name for name, x in policy.named_parameters() if x.requires_grad]


def with_added_tokens(folder, **saved):
    """An adapter trained with three added tokens, beside its tokenizer."""
    tokenizer = AutoTokenizer.from_pretrained(TINY_LM)
    tokenizer.add_tokens(["<a>", "<b>", "<c>"])
    base = tiny()
    base.resize_token_embeddings(len(tokenizer))
    expected = make_adapter(folder, base=base, **saved)
    tokenizer.save_pretrained(folder)
    return expected


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_added_tokens_are_merged_and_read_where_their_rows_were_saved(tmp_path, capsys):
    expected, merge = with_added_tokens(tmp_path / "a"), load_script("merge_adapter")
    read = load_pretrained(AutoModelForCausalLM, str(tmp_path / "a"), dtype=torch.float32)
    torch.testing.assert_close(logits(read), expected, atol=1e-5, rtol=1e-5)
    code = merge.main([str(tmp_path / "a"), "--output", str(tmp_path / "m"), "--dtype", "fp32"])
    assert code == 0, capsys.readouterr().err
    whole = AutoModelForCausalLM.from_pretrained(tmp_path / "m")
    assert whole.config.vocab_size == len(AutoTokenizer.from_pretrained(tmp_path / "m")) == 265
    torch.testing.assert_close(logits(whole), expected, atol=1e-4, rtol=1e-4)
    with_added_tokens(tmp_path / "b", save_embedding_layers=False)
    assert merge.main([str(tmp_path / "b"), "--output", str(tmp_path / "n")]) == 2
    said = capsys.readouterr().err
    assert "'<a>', '<b>', '<c>'" in said and "save_embedding_layers=True" in said and not (tmp_path / "n").exists()


def broken(adapter, folder, **settings):
    """A copy of an adapter with other settings."""
    shutil.copytree(adapter, folder)
    file = folder / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | settings))
    return folder


IA3 = IA3Config(task_type="CAUSAL_LM", target_modules=["k_proj"], feedforward_modules=[])
REFUSED = {  # how a folder is made from an adapter, and what is said of it
    "base gone": (lambda a, f: broken(a, f, base_model_name_or_path="/no/such"), "whose base '/no/such' is not there"),
    "base is an adapter": (lambda a, f: broken(a, f, base_model_name_or_path=str(a)), "is an adapter itself"),
    "rank of another": (lambda a, f: broken(a, f, r=8, rank_pattern={}), "which does not load on its base"),
    "IA3": (lambda a, f: get_peft_model(tiny(), IA3).save_pretrained(f), "of type IA3; expected LORA"),
    "head": (lambda a, f: broken(a, f, task_type="SEQ_CLS"), "of task type SEQ_CLS"),
    "whole model too": (
        lambda a, f: shutil.copy(TINY_LM / "model.safetensors", broken(a, f)),
        "beside the weights of a whole model (model.safetensors)",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_no_adapter_to_go_on_from_is_refused(run, adapter, tmp_path, case):
    make, expected = REFUSED[case]
    make(adapter, tmp_path / "a")
    said = run("ppo_train", f"--model={tmp_path / 'a'}", "--steps=1", f"--output_dir={tmp_path}/x", code=2)
    assert expected in said and "Traceback" not in said and not (tmp_path / "x/final").exists(), said


def test_a_relative_base_is_found_from_here_and_the_adapters_own_tokenizer_goes_first(adapter, tmp_path, monkeypatch):
    monkeypatch.chdir(TINY_LM.parent)
    folder = broken(adapter, tmp_path / "a", base_model_name_or_path=TINY_LM.name)
    assert base_of(str(folder)) == tokenizer_of(str(adapter)) == str(TINY_LM)
    load_pretrained(AutoModelForCausalLM, str(folder)).save_pretrained(tmp_path / "again")
    saved = json.loads((tmp_path / "again/adapter_config.json").read_text())
    assert saved["base_model_name_or_path"] == str(TINY_LM)
    AutoTokenizer.from_pretrained(TINY_LM).save_pretrained(folder)
    assert tokenizer_of(str(folder)) == str(folder)


def page(name: str):
    """templates/NAME.py as a module."""
    return load_module(ROOT / "templates" / f"{name}.py", f"page_{name}")


def load_models(module, model):
    """The networks of a page for a model, which is the teacher of a distillation."""
    names = (TINY_LM, model) if "distillation" in module.__name__ else (model, "")
    return module.load_models(SimpleNamespace(model=str(names[0]), teacher=str(names[1])))


@pytest.mark.parametrize("name", ["grpo", "distillation", "basic_grpo_training"])
def test_pages_refuse_an_adapter_with_the_command(adapter, name, monkeypatch):
    module = page(name)
    with pytest.raises(SystemExit, match=f"expected a whole model; try `python scripts/merge_adapter.py {adapter} "):
        if name == "basic_grpo_training":
            monkeypatch.setattr(module, "MODEL", str(adapter))
            module.main()
        load_models(module, adapter)


@pytest.mark.parametrize("name", ["ppo", "grpo"])
def test_pages_refuse_models_that_their_sampler_cannot_run(name, tmp_path):
    module = page(name)
    mamba = MambaConfig(vocab_size=262, hidden_size=16, num_hidden_layers=1, state_size=4)
    AutoModelForCausalLM.from_config(mamba).save_pretrained(tmp_path / "mamba")
    T5Config().save_pretrained(tmp_path / "t5")
    for model, told in (("mamba", "without a key-value cache"), ("t5", "T5Config.*a causal language model")):
        with pytest.raises(SystemExit, match=f"error: got model '{tmp_path / model}'.*{told}"):
            load_models(module, tmp_path / model)
    AutoTokenizer.from_pretrained(TINY_LM).save_pretrained(tmp_path / "mamba")
    assert module.load_whole(str(tmp_path / "mamba"), trained=False)  # as a teacher, which samples nothing


@pytest.mark.parametrize("name", ["grpo", "distillation"])
def test_pages_refuse_weights_that_are_missing_or_quantised(name, tmp_path):
    """transformers fills what is missing with random numbers. Quantised layers do not train; a teacher's need not."""
    module, folder = page(name), tmp_path / "m"
    model = AutoModelForCausalLM.from_pretrained(TINY_LM)
    packed = AutoModelForCausalLM.from_pretrained(TINY_LM, quantization_config=BitsAndBytesConfig(load_in_4bit=True))
    lost = {name: x for name, x in model.state_dict().items() if "layers.1.mlp" not in name and "lm_head" not in name}
    shutil.copytree(TINY_LM, folder)
    packed.save_pretrained(folder)
    with pytest.raises(SystemExit, match=f"error: got model '{folder}', which is quantised and does not train"):
        module.load_models(SimpleNamespace(model=str(folder), teacher=TINY_LM))
    if name == "distillation":
        assert load_models(module, folder).teacher.hf_quantizer
    model.save_pretrained(folder)
    save_file(lost, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(SystemExit, match=f"error: got model '{folder}' without 3 tensors, such as model"):
        load_models(module, folder)


@pytest.mark.parametrize("rank", [0, 2])
def test_a_critic_starts_from_an_adapter_and_trains_it(ppo, adapter, rank):
    names = {"model": str(TINY_LM), "critic_model": str(adapter)}
    config = ppo.Config(**names, critic="separate", advantage="gae", lora_rank=rank)
    backbone = ppo.load_models(config, torch.device("cpu")).critic.backbone
    whole = AutoModelForCausalLM.from_pretrained(adapter.parent / "merged", dtype=torch.float32)
    with torch.no_grad():
        own, expected = (m(input_ids=TOKENS, output_hidden_states=True).hidden_states[-1] for m in (backbone, whole))
    torch.testing.assert_close(own, expected, atol=1e-4, rtol=1e-4)
    assert {name.split(".")[-3] for name, x in backbone.named_parameters() if x.requires_grad} == {"lora_A", "lora_B"}


def test_verl_and_vllm_evaluation_refuse_with_the_command(adapter, capsys, monkeypatch):
    assert load_script("verl_train").main(["--print", f"--model={adapter}", f"--data={TRAIN_DATA}"]) == 2
    said = capsys.readouterr().err
    assert f"got --model '{adapter}', a LoRA adapter" in said and f"merge_adapter.py {adapter} --output" in said
    room = load_script("evaluation")
    monkeypatch.setattr(room, "import_vllm", lambda *_: None)
    with pytest.raises(room.UserError, match="a LoRA adapter, with --engine vllm"):
        room.VllmModel.load(SimpleNamespace(), str(adapter))


@pytest.mark.long
def test_a_warm_start_goes_on_from_an_adapter(adapter, tmp_path, capsys):
    rows = [row | {"completion": f"<answer>{row['answer']}</answer>"} for row in read_lines(TRAIN_DATA)[:6]]
    flags = [f"--model={adapter}", f"--data={write_lines(tmp_path / 'data.jsonl', rows)}", f"--eval_data={FEW_EVAL}"]
    flags += "--epochs=1 --eval_prompts=2 --eval_samples=2 --rounds=1 --min_rounds=1 --max_new_tokens=24".split()
    load_script("warm_start").main([*flags, "--lr=1e-9", f"--output_dir={tmp_path / 'out'}"])
    policy = tmp_path / "out/rounds/round-001/policy"
    assert policy.is_dir(), capsys.readouterr().err
    start, after = (load_file(folder / "adapter_model.safetensors") for folder in (adapter, policy))
    assert start.keys() == after.keys() and all((x - start[name]).abs().max() < 1e-5 for name, x in after.items())


def test_a_base_that_does_not_load_is_named(tmp_path):
    adapter = {"peft_type": "LORA", "base_model_name_or_path": "someone/absent"}
    (tmp_path / "adapter_config.json").write_text(json.dumps(adapter))
    (tmp_path / "adapter_model.safetensors").touch()
    error = load_error(SimpleNamespace(attn_implementation="auto"), str(tmp_path), OSError("no connection"))
    assert "whose base 'someone/absent' does not load: no connection; expected" in str(error)
