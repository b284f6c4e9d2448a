"""What a prompt becomes: no second BOS, tool arguments written once, an assistant's turn gone on with."""

import functools
import json
from types import SimpleNamespace

import pytest
from chat_tokenizers import chat_tokenizer
from conftest import ROOT, load_module, load_script
from tokenizers.processors import TemplateProcessing

from parts.data.chat import chat_text, check_template, warn_of_turn_end
from parts.data.prompts import encode_prompt
from parts.foundation.messages import UserError, say_once
from programs.evaluation.requests import make_requests
from programs.evaluation.settings import Config
from programs.warm_start.solutions import solution_ids

QUESTION = {"role": "user", "content": "What is 2 + 3?"}


@functools.cache
def page():
    return load_module(ROOT / "templates" / "ppo.py", "page_ppo")


def encode_by_page(tokenizer, prompt, chat=False):
    return page().encode(SimpleNamespace(chat=chat), tokenizer, prompt)


ENCODERS = {"scripts": encode_prompt, "page": encode_by_page}


@pytest.fixture(params=ENCODERS)
def encode(request):
    """Token ids of a prompt by a program."""
    return ENCODERS[request.param]


def check(tokenizer, prompts: list, chat=False, settings="") -> None:
    """What the trainers check of a file's prompts before a run."""
    config = SimpleNamespace(chat=chat, model="m", chat_template_kwargs=settings)
    check_template(config, tokenizer, "d.jsonl", prompts)


def beginning(tokenizer, *tokens: str, end: str = ""):
    """A tokenizer that puts tokens before a text, as Llama's and Gemma's put BOS, and one behind it."""
    tokenizer.add_tokens([*tokens], special_tokens=True)
    form = [*tokens, "$A", *filter(None, [end])]
    names = [(token, tokenizer.convert_tokens_to_ids(token)) for token in {*form} - {"$A"}]
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single=form, special_tokens=names)
    return tokenizer


@pytest.mark.parametrize("name", ["llama3", "tiny"])
def test_bos_is_never_doubled(encode, name):
    tokenizer = beginning(chat_tokenizer(name, "<|end|>"), "<s>")
    for text in ("<s>2+3=", "<s><|user|>2+3=<|end|>", "2+3=", "<s>", "1 <s> 2"):
        expected = [tokenizer.bos_token_id, *tokenizer.encode(text.removeprefix("<s>"), add_special_tokens=False)]
        assert encode(tokenizer, text) == expected, text


@pytest.mark.parametrize("text", ["[gMASK]<sop>2+3=", "2+3="])
@pytest.mark.parametrize("end", ["", "<|end|>"])
def test_several_tokens_before_a_text_are_not_doubled(text, end):
    tokenizer = beginning(chat_tokenizer("tiny", "<|end|>"), "[gMASK]", "<sop>", end=end)
    assert encode_prompt(tokenizer, text) == tokenizer.encode("[gMASK]<sop>2+3=", add_special_tokens=False)


@pytest.mark.parametrize("starts", [(), ("<s>",)])
def test_an_end_token_that_the_tokenizer_appends_is_left_out(encode, starts):
    tokenizer = beginning(chat_tokenizer("tiny", "<|end|>"), *starts, end="<|end|>")
    expected, eos = tokenizer.encode("".join([*starts, "2+3="]), add_special_tokens=False), tokenizer.eos_token_id
    assert tokenizer.encode("2+3=")[-1] == eos
    assert encode(tokenizer, "2+3=") == expected
    assert encode(tokenizer, "2+3=<|end|>")[: len(expected) + 1] == [*expected, eos], "the text's own stays"


def test_a_template_that_writes_bos_gets_no_second_one():
    tokenizer = beginning(chat_tokenizer("llama3", "<|eot_id|>"), "<s>")
    ids = encode_prompt(tokenizer, [QUESTION])
    assert ids.count(tokenizer.bos_token_id) == 1 and ids[0] == tokenizer.bos_token_id


@pytest.mark.parametrize("name", ["llama3_1", "deepseekv3", "gptoss", "qwen3"])
def test_an_empty_list_of_calls_is_no_call(name):
    tokenizer = chat_tokenizer(name, "<|end|>")
    talk = [QUESTION, {"role": "assistant", "content": "5"}, QUESTION, {"role": "assistant", "content": "So"}]
    for turns in (talk, talk[:-1]):
        empty = [turn | {"tool_calls": []} for turn in turns]
        assert encode_prompt(tokenizer, empty) == encode_prompt(tokenizer, turns)


@pytest.mark.parametrize("name", ["llama3", "gemma", "qwen3", "deepseek_r1_distill", "mistral", "tiny"])
def test_a_string_in_the_templates_form_is_not_wrapped_again(capsys, name):
    tokenizer = chat_tokenizer(name, "<|im_end|>")
    text = tokenizer.apply_chat_template([QUESTION], tokenize=False, add_generation_prompt=True)
    with pytest.raises(UserError, match=r"already have the form of the chat template.*try without --chat"):
        check(tokenizer, ["plain", text], chat=True)
    check(tokenizer, [text])
    assert "try --chat" not in capsys.readouterr().err
    assert encode_by_page(tokenizer, text, chat=True) == tokenizer.encode(text, add_special_tokens=False)


@pytest.mark.parametrize(("name", "token"), [("llama3", "<|eot_id|>"), ("qwen3", "<|im_end|>"), ("mistral", "[/INST]")])
def test_a_control_token_inside_of_a_text_is_counted_and_no_sign_of_the_templates_form(capsys, name, token):
    prompts = [f"What does {token} mean?", "What is 2 + 3?", f"{token}s: when?"]
    check(chat_tokenizer(name, "<|im_end|>"), prompts, chat=True)
    check(chat_tokenizer(name, "<|im_end|>"), ["Write in <think> and </think> tags: 2+3?"])  # plain: the advice
    said = capsys.readouterr().err
    assert "1 of 1 prompts are strings" in said
    assert f"2 of 3 prompts have control tokens such as {token!r}" in said


SYSTEM = {"role": "system", "content": "Be brief. "}
TURN = "{% for m in messages if m.role != 'system' %}<|{{ m.role }}|>{{ m.content }}{% endfor %}"
DATED = "{{ date_string or strftime_now('%Y') }}" + TURN


@pytest.mark.parametrize(
    ("template", "settings", "says"),
    [
        (TURN, "", "of m leaves out system messages; try --chat_template FILE"),
        (DATED, "", "may write today's date, so another day gives other prompts"),
        (DATED, '{"date_string": "1 May"}', ""),
    ],
)
def test_what_a_template_leaves_out_or_takes_from_the_clock_is_said(capsys, template, settings, says):
    tokenizer = chat_tokenizer("tiny", "<|end|>")
    tokenizer.chat_template = template
    check(tokenizer, [[QUESTION], [SYSTEM, QUESTION], [{"role": "assistant", "content": "So"}]], settings=settings)
    told = capsys.readouterr().err
    assert says in told and ("today's date" in told) == ("today's date" in says)


@pytest.mark.parametrize("name", ["llama3_1", "qwen3", "tiny"])
def test_templates_that_write_all_are_not_warned_of(capsys, name):
    check(chat_tokenizer(name, "<|end|>"), [[SYSTEM, QUESTION]])
    assert "leaves out" not in capsys.readouterr().err


ENDS = {"llama3_1": "<|eot_id|>", "gemma": "<end_of_turn>", "mistral": "</s>", "tiny": "<|end|>"}
ENDS |= {"qwen3": "<|im_end|>", "deepseekv3": "<｜end▁of▁sentence｜>"}


@pytest.mark.parametrize("name", ENDS)
def test_a_template_whose_turns_end_otherwise_than_completions_is_told(capsys, name):
    """As of a base model with a chat template, whose end token is the document's; once."""
    say_once.cache_clear()
    tokenizer = chat_tokenizer(name, ENDS[name])
    tokenizer.add_special_tokens({"additional_special_tokens": [ENDS[name], "<document>"]})
    end, other = tokenizer.convert_tokens_to_ids([ENDS[name], "<document>"])
    warn_of_turn_end(tokenizer, [end, other])
    assert not capsys.readouterr().err
    warn_of_turn_end(tokenizer, [other])
    warn_of_turn_end(tokenizer, [other])
    said = capsys.readouterr().err
    assert f"eos_token_id {sorted([end, other])} in" in said
    assert said.count(f"ends an answer with {ENDS[name]!r}") == 1
    tokenizer.chat_template = None
    warn_of_turn_end(tokenizer, [other])
    assert not capsys.readouterr().err


@pytest.mark.parametrize("shots", [0, 1])
def test_evaluation_takes_a_string_in_the_templates_form_as_it_is(shots):
    tokenizer = chat_tokenizer("qwen2_5", "<|im_end|>")
    text = tokenizer.apply_chat_template([QUESTION], tokenize=False, add_generation_prompt=True)
    known = {"max_new_tokens": 4, "asks": True, "logprobs": False, "stops": lambda chat: []}
    task = SimpleNamespace(**known, question=lambda row: row["prompt"], target=lambda row: "5")
    model = SimpleNamespace(tokenizer=tokenizer, max_length=None, source="m")
    asked = (Config(task=["math"]), task, model, [{"prompt": text}], [{"prompt": "1 + 1"}] * shots)
    if shots:
        with pytest.raises(UserError, match="already has the form of the chat template; try without --fewshot"):
            make_requests(*asked)
    else:
        _, [[request]], _ = make_requests(*asked)
        assert tokenizer.decode(request.ids) == text


ARGUMENTS = {"city": 'Pa"ris', "days": [1, None]}
JSON_ONCE = '{"city": "Pa\\"ris", "days": [1, null]}'


def called(arguments, **more) -> list[dict]:
    """A prompt with a tool call and its result."""
    call = {"id": "call12345", "type": "function", "function": {"name": "weather", "arguments": arguments}}
    answer = {"role": "assistant", "content": "", "tool_calls": [call]}
    return [QUESTION, answer, {"role": "tool", "name": "weather", "tool_call_id": "call12345", "content": "Rain"}]


@pytest.mark.parametrize("name", ["qwen2_5", "llama3_1", "gptoss", "mistral", "tiny_tools", "deepseekv3", "prints"])
def test_tool_arguments_are_written_once(name):
    tokenizer = chat_tokenizer(name if name != "prints" else "tiny_tools", "<|im_end|>")
    if name == "prints":
        tokenizer.chat_template = tokenizer.chat_template.replace(".arguments | tojson", ".arguments")
    for arguments in (ARGUMENTS, json.dumps(ARGUMENTS)):
        assert JSON_ONCE in chat_text(tokenizer, called(arguments))
        assert JSON_ONCE in tokenizer.decode(encode_prompt(tokenizer, called(arguments)))


def test_arguments_that_are_no_object_are_refused():
    with pytest.raises(ValueError, match="arguments of a tool call are 'city=Paris', not a JSON object"):
        encode_prompt(chat_tokenizer("qwen2_5", "<|im_end|>"), called("city=Paris"))


def going_on(text: str) -> list[dict]:
    """A prompt that ends in an assistant's turn."""
    return [QUESTION, {"role": "assistant", "content": text}]


@pytest.mark.parametrize("name", ["qwen2_5", "phi3", "qwen3_instruct_2507", "tiny", "smollm3"])
def test_an_assistants_turn_is_gone_on_with(encode, name):
    tokenizer = chat_tokenizer(name, "<|im_end|>")
    new = tokenizer.apply_chat_template([QUESTION], tokenize=False, add_generation_prompt=True)
    for text in ("Let me solve this", "<think>\n", "Step 1: "):
        assert encode(tokenizer, going_on(text)) == tokenizer.encode(new + text, add_special_tokens=False)


@pytest.mark.parametrize(
    ("name", "text", "end"),
    [
        ("llama3", "<think>\n", "assistant<|end_header_id|>\n\n<think>\n"),  # it strips what it gets
        ("gemma", " 2 + 3 \n", "<start_of_turn>model\n 2 + 3 \n"),
        ("qwen3", "<think>\n", "<|im_start|>assistant\n<think>\n"),  # it puts an empty thought before text without one
        # its new turns begin in a thought
        ("qwen3_5_think", "<think>\nFirst", "<|im_start|>assistant\n<think>\nFirst"),
        ("deepseek_r1_distill", "<think>\nFirst", "<｜Assistant｜><think>\nFirst"),
        ("gptoss", "So", "<|start|>assistant<|channel|>final<|message|>So"),
        ("qwen2_5", "", "<|im_start|>assistant\n"),  # an empty place for the answer
    ],
)
def test_templates_that_change_a_turn(name, text, end):
    tokenizer = chat_tokenizer(name, "<|im_end|>")
    whole = chat_text(tokenizer, going_on(text))
    assert whole.endswith(end) and "</think>" not in whole.removesuffix(end)
    assert tokenizer.decode(encode_prompt(tokenizer, going_on(text))) == whole


def test_a_turn_that_the_template_drops_is_refused_with_its_row(tmp_path):
    tokenizer = chat_tokenizer("deepseek_r1_distill", "<|im_end|>")
    (tmp_path / "d.jsonl").write_text(json.dumps({"prompt": going_on("<think>\nEasy\n</think>\n\nSo")}))
    grpo = load_script("grpo_train")
    config = grpo.Config(data=str(tmp_path / "d.jsonl"))
    with pytest.raises(grpo.UserError, match=r"d.jsonl:1: got .*does not keep the assistant's turn.*So"):
        grpo.load_prompts(config, tokenizer, config.data)


def test_a_tool_call_without_its_result_is_refused():
    with pytest.raises(ValueError, match="ends in a tool call"):
        encode_prompt(chat_tokenizer("qwen2_5", "<|im_end|>"), called({})[:-1])


def test_solutions_go_on_with_it():
    tokenizer, prompt = chat_tokenizer("qwen2_5", "<|im_end|>"), going_on("Let me see: ")
    row = {"prompt": prompt, "prompt_ids": encode_prompt(tokenizer, prompt)}
    models = SimpleNamespace(tokenizer=tokenizer, eos_ids=[tokenizer.eos_token_id])
    ids = solution_ids(SimpleNamespace(chat=False, chat_template_kwargs=""), models, row, "it is 5")
    assert ids == tokenizer.encode("it is 5<|im_end|>", add_special_tokens=False)


def test_servers_go_on_with_it(monkeypatch):
    sent, evaluation = [], load_script("evaluation")
    answer = {"choices": [{"message": {"content": " 5"}}]}
    monkeypatch.setattr(evaluation, "server_json", lambda url, body, hint: sent.append(body) or answer)
    for prompt in (going_on("So"), [QUESTION]):
        evaluation.server_text("http://h/v1", prompt, {"model": "m"}, "")
    assert [body.get("continue_final_message") for body in sent] == [True, None]
    assert sent[0]["add_generation_prompt"] is False


@pytest.mark.long
def test_trl_gets_the_ids_that_the_trainers_have(tmp_path, monkeypatch):
    """TRL's own tokenization would begin a second turn, and its table would give all calls the same arguments."""
    grpo = load_script("grpo_train")
    rows = [{"prompt": called(a)} for a in ({"city": "Rome"}, json.dumps({"day": 3}))]
    rows.append({"prompt": going_on("So")})
    (tmp_path / "d.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "r.py").write_text("def one(completions, **_):\n    return [1.0] * len(completions)\n")

    class Seen(Exception):
        pass

    def catch(trainer, checkpoint):
        raise Seen(trainer)

    monkeypatch.setattr(grpo, "run_steps", catch)
    sizes = ["--per_device_train_batch_size=4", "--num_generations=4", "--steps=3", "--eval_every=0"]
    flags = [f"--data={tmp_path / 'd.jsonl'}", f"--reward={tmp_path / 'r.py'}:one", f"--output_dir={tmp_path / 'run'}"]
    template = chat_tokenizer("tiny_tools", "<|end|>").chat_template
    (tmp_path / "t.jinja").write_text(template)
    with pytest.raises(Seen) as seen:
        grpo.main([*flags, *sizes, f"--chat_template={tmp_path / 't.jinja'}"])
    trainer = seen.value.args[0]
    tokenizer = trainer.processing_class
    texts = [tokenizer.decode(ids) for ids in trainer._tokenize_prompts(trainer.train_dataset[:]["prompt"])[0]]
    call = '<tool_call>\n{"name": "weather", "arguments": %s}\n</tool_call>'
    result = "<|end|><|user|>Rain<|end|><|assistant|>"
    ends = {call % arguments + result for arguments in ('{"city": "Rome"}', '{"day": 3}')} | {"So"}
    assert {text.partition("?<|end|><|assistant|>")[2] for text in texts} == ends
