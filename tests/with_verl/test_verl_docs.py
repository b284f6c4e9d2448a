"""The five verl pages against the installed verl: keys, defaults, values, paths, commands, code, claims.

Conventions that make the check complete: code stands in backticks or fences; a Hydra key is written in full, from its
top-level name, `+` where verl's files lack it, `{a,b}` for several; files of verl start with `verl/`; shell fences are
`shell`.
"""

import ast
import asyncio
import copy
import dataclasses
import functools
import importlib
import importlib.metadata
import importlib.util
import itertools
import pkgutil
import re
import shlex
from pathlib import Path

import numpy as np
import pytest
import torch
import verl
from conftest import ROOT, load_script
from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.utils import get_class
from omegaconf import DictConfig, ListConfig, OmegaConf
from verl import DataProto
from verl.experimental.reward_loop.reward_manager.registry import REWARD_MANAGER
from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY, POLICY_LOSS_REGISTRY, get_policy_loss_fn
from verl.utils.config import omega_conf_to_dataclass
from verl_scripts import layout_of

PACKAGE = Path(verl.__file__).parent
PAGES = sorted((ROOT / "references").glob("verl_*.md"))
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
SPAN = re.compile(r"`([^`\n]+)`")
BASE = ["actor_rollout_ref.rollout.name=vllm"]  # the one key without a default
# free-form mappings: what stands below them belongs to the user or to another package
FREE = ("reward.custom_reward_function.reward_kwargs", "custom_reward_function.reward_kwargs", "algorithm.my_value")
FREE += ("actor_rollout_ref.rollout.engine_kwargs", "actor_rollout_ref.model.override_config")
FREE += ("data.apply_chat_template_kwargs",)
OUR_ESTIMATORS = {"gpg_ours", "maxrl_ours", "my_maxrl"}  # registered by the launcher or by the page's block
OUR_LOSSES = {"my_reinforce"}


@functools.cache
def composed(*overrides: str) -> DictConfig:
    """verl's configuration by Hydra itself."""
    with initialize_config_dir(config_dir=str(PACKAGE / "trainer" / "config"), version_base=None):
        return compose("ppo_trainer", overrides=[*BASE, *overrides])


def defaults(engine: str = "dp") -> DictConfig:
    """The configuration of one engine without further overrides."""
    return composed(f"model_engine={engine}")


TOP = sorted(set(defaults()) | {"model_engine"})
NAMES = rf"(?:{'|'.join(TOP)})"
KEY = re.compile(rf"(\+{{0,2}})({NAMES}(?:\.[\w{{}},]+)+|model_engine)(?:=(.*))?")


def braces(text: str) -> list[str]:
    """a.{b,c} as a.b and a.c."""
    parts = [part.split(",") if i % 2 else [part] for i, part in enumerate(re.split(r"\{([^}]*)\}", text))]
    return ["".join(choice) for choice in itertools.product(*parts)]


@functools.cache
def tree(engine: str = "dp") -> dict:
    """The same as plain dictionaries, interpolations unresolved."""
    return OmegaConf.to_container(defaults(engine), resolve=False)


def node(key: str, engine: str = "dp"):
    """(there, value) of a key in verl's own files."""
    raw = tree(engine)
    for name in key.split("."):
        if not isinstance(raw, dict) or name not in raw:
            return False, None
        raw = raw[name]
    return True, OmegaConf.select(defaults(engine), key) if raw != "???" else raw


def engine_of(key: str) -> str:
    """The engine whose files hold a key."""
    megatron = (".megatron", "lr_decay_style", "optim.min_lr=", "optim.min_lr ")
    return "megatron" if any(mark in f"{key} " for mark in megatron) else "dp"


@functools.cache
def verl_source() -> str:
    """All of verl's Python."""
    return "\n".join(path.read_text(encoding="utf-8") for path in sorted(PACKAGE.rglob("*.py")))


def is_read(key: str) -> bool:
    """Whether a key that verl's files lack is a field of its dataclass, or is read by name somewhere in verl."""
    if key.startswith(FREE):
        return True
    parent, _, leaf = key.rpartition(".")
    there, config = node(parent)
    target = config.get("_target_") if there and isinstance(config, DictConfig) else None
    if target and leaf in {f.name for f in dataclasses.fields(get_class(target))}:
        return True
    return bool(re.search(rf"[\"']{leaf}[\"']|cfg\.{leaf}\b", verl_source()))


def key_problem(plus: str, key: str) -> str | None:
    """What is wrong with a key, or None."""
    if key == "model_engine":
        return None
    there, _ = node(key, engine_of(key))
    if there:
        return f"{key} is in verl's files; write it without +" if plus else None
    if not plus:
        return f"verl has no key {key}"
    return None if is_read(key) else f"nothing in verl reads {key}"


def with_overrides(overrides: list[str]) -> DictConfig:
    """A copy of the configuration with overrides, faster than a new composition."""
    engine = "megatron" if any(engine_of(o) == "megatron" or o == "model_engine=megatron" for o in overrides) else "dp"
    config = copy.deepcopy(defaults(engine))
    OmegaConf.set_struct(config, False)
    for override in OverridesParser.create().parse_overrides(overrides):
        if override.key_or_group != "model_engine":
            OmegaConf.update(config, override.key_or_group, override.value(), force_add=override.is_add())
    return config


def fences(text: str, *languages: str) -> list[str]:
    """Fenced blocks in these languages."""
    return [body for language, body in FENCE.findall(text) if language in languages]


def shell_lines(body: str) -> list[list[str]]:
    """Words of each line of a shell fence; continued lines joined, comments dropped."""
    body = body.replace("\\\n", " ").replace("$PWD", "/pwd")
    return [words for line in body.splitlines() if (words := shlex.split(line, comments=True))]


def shell_overrides(body: str) -> list[str]:
    """The Hydra overrides among the words of a shell fence."""
    return [word for words in shell_lines(body) for word in words if KEY.fullmatch(word) and "=" in word]


def rows(text: str) -> list[tuple[list[str], list[str]]]:
    """(header, cells) of each table row, outside fences."""
    found, header = [], None
    for line in FENCE.sub("", text).splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")] if line.startswith("|") else None
        if cells is None:
            header = None
        elif header is None:
            header = cells
        elif set("".join(cells)) - set("-: "):
            found.append((header, cells))
    return found


def is_old(header: list[str]) -> bool:
    """Whether a table's first column holds names that are gone."""
    return header[0] in ("old", "old file or class")


def spans(text: str) -> list[str]:
    """Words of inline code, without the first column of tables of gone names."""
    text = FENCE.sub("", text)
    for header, cells in rows(text):
        if is_old(header):
            text = text.replace(cells[0], "", 1)
    return [word for span in SPAN.findall(text) for word in span.split()]


def resolves(name: str) -> bool:
    """Whether a dotted name of verl can be imported."""
    try:
        pkgutil.resolve_name(name)
    except (ImportError, AttributeError):
        return False
    return True


def word_problem(word: str) -> str | None:
    """What is wrong with a word of inline code, or None."""
    word = word.rstrip(".,;")
    match = KEY.fullmatch(word)
    if match and match[3] == "…":
        word, match = match[1] + match[2], KEY.fullmatch(match[1] + match[2])
    if word.endswith(".…"):  # a place, not a key
        return None if node(word.lstrip("+").rstrip(".…"))[0] else f"verl has no {word}"
    if match:
        return next((p for key in braces(match[2]) if (p := key_problem(match[1], key))), None)
    if word.startswith("verl."):
        return None if resolves(word) else f"cannot import {word}"
    return None


def path_problems(text: str) -> list[str]:
    """Files of verl that are named and do not exist, or are named as gone and do."""
    gone = [p for header, cells in rows(text) if is_old(header) for p in re.findall(r"\bverl/[\w./*-]+", cells[0])]
    named = re.findall(r"(?<![\w/.-])verl/[\w./*-]+", text)
    here = [path for path in named if list(PACKAGE.parent.glob(path.rstrip("./")))]
    missing = [f"{path} does not exist" for path in named if path not in here and path not in gone]
    return missing + [f"{path} is still there" for path in gone if path in here]


def old_problems(text: str) -> list[str]:
    """Keys of the table of old ones of which its second column says something else than verl does."""
    problems = []
    for cells in (cells for header, cells in rows(text) if header[0] == "old"):
        for plus, key, _ in KEY.findall(" ".join(SPAN.findall(cells[0]))):
            is_there = node(key)[0] or (plus and node(key.partition(".")[0])[0])
            problems += [f"{key} is said to be: {cells[1]}"] if bool(is_there) == (cells[1] == "error") else []
    return problems


def rendered(value) -> str:
    """A default as the pages write it."""
    if isinstance(value, ListConfig):
        return f"[{','.join(map(rendered, value))}]"
    return "null" if value is None else str(value)


def same(cell: str, value) -> bool:
    """Whether a cell begins with a default."""
    cell = cell.replace("`", "")
    if isinstance(value, int | float) and not isinstance(value, bool):
        number = re.match(r"-?[\d.]+(e-?\d+)?", cell)
        return bool(number) and float(number[0]) == float(value)
    return value == {} and cell == "{}" if isinstance(value, DictConfig) else cell.startswith(rendered(value))


NOT_LITERAL = ("–", "as actor", "all", "checkpoints/", "bf16", "")  # described, not quoted


def default_problems(text: str) -> list[str]:
    """Cells of columns named "default" that are not verl's."""
    problems = []
    for header, cells in rows(text):
        if "default" not in header or is_old(header):
            continue
        words = [word for span in SPAN.findall(cells[0]) for word in span.split()]
        keys = [key for word in words if (m := KEY.fullmatch(word)) and not m[1] for key in braces(m[2])]
        cell = cells[header.index("default")].split(";")[0]
        values = cell.split(", ") if len(keys) > 1 and ", " in cell else [cell] * len(keys)
        for key, quoted in zip(keys, values, strict=True):
            value = node(key, engine_of(key))[1]
            if quoted.replace("`", "").split(" + ")[0] not in NOT_LITERAL and not same(quoted, value):
                problems.append(f"{key} is {rendered(value)}, not {quoted}")
    return problems


@functools.cache
def names_of_block(code: str) -> dict:
    """The names of a Python block, which is executed once, as it may register things."""
    names = {"__name__": "page_block"}
    exec(compile(code, "page", "exec"), names)
    return names


def page_problems(text: str) -> list[str]:
    """All that is wrong with a page, its Python apart."""
    problems = [problem for word in spans(text) if (problem := word_problem(word))]
    words = [word for body in fences(text, "shell") for line in shell_lines(body) for word in line]
    for match in filter(None, map(KEY.fullmatch, words)):
        problems += [problem for key in braces(match[2]) if (problem := key_problem(match[1], key))]
    return [*problems, *path_problems(text), *old_problems(text), *default_problems(text)]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_everything_a_page_names_is_in_the_installed_verl(path):
    assert page_problems(path.read_text(encoding="utf-8")) == []


MICRO = "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1"  # without one its dataclass takes nothing


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_overrides_of_a_page_compose_and_have_values_that_verl_takes(path):
    groups = {"dp": [], "megatron": []}
    for body in fences(path.read_text(encoding="utf-8"), "shell"):
        overrides = shell_overrides(body)
        groups["megatron" if "model_engine=megatron" in overrides else "dp"] += overrides
        config = with_overrides([MICRO, *overrides])
        for part in ("actor_rollout_ref.actor", "actor_rollout_ref.rollout"):
            if any(part in override for override in overrides):
                omega_conf_to_dataclass(OmegaConf.select(config, part))
        manager = config.reward.reward_manager
        assert manager.source != "register" or manager.name in REWARD_MANAGER
        assert config.algorithm.adv_estimator in {*ADV_ESTIMATOR_REGISTRY} | OUR_ESTIMATORS
        assert config.actor_rollout_ref.actor.policy_loss.loss_mode in {*POLICY_LOSS_REGISTRY} | OUR_LOSSES
    for engine, overrides in groups.items():
        composed(f"model_engine={engine}", *(o for o in overrides if not o.startswith("model_engine")))


BLOCKS = [(path, fences(path.read_text(encoding="utf-8"), "python")) for path in PAGES]
BLOCKS = [(path, i, code) for path, codes in BLOCKS for i, code in enumerate(codes)]


def run_block_with(name: str) -> None:
    """Run the block that defines a name."""
    defines = re.compile(rf"^(?:async )?(?:def|class) {name}\b", re.MULTILINE)
    names_of_block(next(code for _, _, code in BLOCKS if defines.search(code)))


@pytest.mark.parametrize(("path", "number", "code"), BLOCKS, ids=[f"{p.name}-{i}" for p, i, _ in BLOCKS])
def test_python_blocks_run(path, number, code):
    names_of_block(code)


def page(name: str) -> str:
    """The text of references/verl_NAME.md."""
    return (ROOT / "references" / f"verl_{name}.md").read_text(encoding="utf-8")


def test_install_lines_pin_what_is_installed():
    cpu, gpu = fences(page("patterns"), "shell")[:2]
    pins = dict(re.findall(r"([\w-]+)==([\d.]+)", cpu))
    assert {"verl", "torch", "transformers", "TransferQueue", "cachetools"} <= set(pins)
    for name, version in pins.items():
        assert importlib.metadata.version(name).partition("+")[0] == version, name
    tested = dict(re.findall(r"^([\w-]+)(?:\[\w+\])?==([\d.]+)", (ROOT / "requirements-verl.txt").read_text(), re.M))
    assert pins.items() <= tested.items()
    needs = importlib.metadata.requires("verl")
    assert set(re.findall(r'"verl\[(\w+)\]', gpu)) == {"vllm", "sglang"}
    for name, version in re.findall(r"(vllm|sglang) (0[\d.]+\d)", gpu):
        assert f'{name}=={version}; extra == "{name}"' in needs
    assert 'torch==2.11.0; extra == "vllm"' in needs and 'transformers==5.9.0; extra == "vllm"' in needs
    assert {"transformers!=5.6.0,<5.11,>=5.5.3"} <= set(needs)


def table(text: str, first: str) -> dict[str, str]:
    """Rows of the table whose header begins with `first`: first cell to second."""
    return {cells[0]: cells[1] for header, cells in rows(text) if header[0] == first}


def test_preset_overrides_are_those_of_the_launcher():
    launcher, table_ = load_script("verl_train"), table(page("algorithms"), "preset")
    assert [*table_] == [name for name in launcher.PRESETS if name not in ("gdpo", "remax")]
    for preset, cell in table_.items():
        config = launcher.parse_config(["--algorithm", preset, "--print"])
        ours = {o.key: o.value for o in launcher.make_overrides(config, layout_of(launcher))}
        written = [w for span in SPAN.findall(cell) for w in span.split() if KEY.fullmatch(w) and "=" in w]
        assert any(w.startswith("algorithm.adv_estimator=") for w in written)
        values, keys = with_overrides(written), {w.partition("=")[0] for w in written}
        # what the row leaves out must be verl's default
        acts = ("adv_estimator", "loss_mode", "norm_adv_by_std_in_grpo", "use_kl_in_reward", "filter_groups.enable")
        sections = ("algorithm.", "actor_rollout_ref.actor.policy_loss")
        keys |= {key for key in ours if key.startswith(sections) and key.endswith(acts)}
        if "geo_mean" not in cell:  # which ignores it
            keys.add("actor_rollout_ref.actor.loss_agg_mode")
        for key in keys:
            assert OmegaConf.select(values, key) == ours[key], (preset, key)
        quarter = ours["data.train_batch_size"] == 4 * ours["actor_rollout_ref.actor.ppo_mini_batch_size"]
        assert quarter == ("mini 1/4" in cell), preset


def test_estimators_and_losses_are_all_listed():
    text = page("algorithms")
    named = {name for cell in table(text, "name") for name in SPAN.findall(cell)}
    assert named == {*ADV_ESTIMATOR_REGISTRY, *POLICY_LOSS_REGISTRY} - OUR_ESTIMATORS - OUR_LOSSES
    assert set(table(page("environment"), "`reward.reward_manager.name`")) == set(REWARD_MANAGER)


LEGACY = ("main_ppo_v0.py", "ray_trainer.py", "/separation/", "/one_step_off_policy/", "/fully_async_policy/")
OTHER = ("/config/", "/sft_", "sft_trainer", "hf_rollout", "naive_rollout", "/veomni/", "/torchtitan/", "/automodel/")
UNREAD = """
actor_rollout_ref.actor.grad_clip critic.grad_clip critic.forward_micro_batch_size_per_gpu
critic.forward_max_token_len_per_gpu actor_rollout_ref.rollout.over_sample_rate data.return_raw_input_ids
actor_rollout_ref.rollout.multi_turn.num_repeat_rollouts actor_rollout_ref.rollout.multi_stage_wake_up
trainer.balance_batch trainer.esi_redundant_time
""".split()


@functools.cache
def code_in_use() -> tuple[str, ...]:
    """The files of verl that the default trainer may use: none of its configuration, none of the legacy trainers."""
    paths = [path for path in PACKAGE.rglob("*.py") if not any(part in str(path) for part in LEGACY + OTHER)]
    return tuple(path.read_text(encoding="utf-8") for path in paths)


@functools.cache
def named() -> set:
    """All attributes and strings in the code in use."""
    nodes = itertools.chain.from_iterable(ast.walk(ast.parse(code)) for code in code_in_use())
    return {name for n in nodes if isinstance(name := getattr(n, "attr", getattr(n, "value", None)), str)}


def test_keys_said_to_be_unread_are_unread():
    text = "".join(path.read_text(encoding="utf-8") for path in PAGES)
    for key in UNREAD:
        assert node(key)[0] and key in text and key.rpartition(".")[2] not in named(), key
    assert "clip_grad" in named()


def test_old_reward_keys_and_sampling_switches_are_unread():
    main = (PACKAGE / "trainer" / "main_ppo.py").read_text(encoding="utf-8")
    assert "migrate_legacy_reward_impl" not in main  # the only reader of reward_model.* and custom_reward_function.*
    assert node("custom_reward_function.path")[0] and node("reward_model.reward_manager")[0]
    read = {name for code in code_in_use() for name in re.findall(r"([\w.]+)\.do_sample\b", code)}
    assert read == {"config.actor_rollout_ref.rollout.val_kwargs"}  # of the check at the start, for its own sake


def estimate(name: str):
    """Advantages of two groups of two from what the default trainer hands to an estimator."""
    from verl.trainer.ppo.v1.utils import compute_advantage_for_multi_trajectories

    rewards = torch.zeros(4, 3)
    rewards[:, -1] = torch.tensor([1.0, 0, 1, 1])
    names = ("token_level_rewards", "token_level_scores", "rm_scores", "values", "old_log_probs", "rollout_log_probs")
    tensors = dict.fromkeys(names, rewards) | {"response_mask": torch.ones(4, 3)}
    data = DataProto.from_dict(tensors=tensors, non_tensors={"uid": np.array(list("aabb"), dtype=object)})
    config = composed("+algorithm.gdpo_reward_keys=[a]").algorithm
    keys = ["a_0_0", "a_1_0", "b_0_0", "b_1_0"]
    return compute_advantage_for_multi_trajectories(data, keys, name, 1.0, 1.0, 2, True, config).batch["advantages"]


LEGACY_ONLY = {"remax", "gdpo", "optimal_token_baseline", "tir_optimal_token_baseline"}


def test_which_estimators_the_default_trainer_can_run():
    cells = [c for h, c in rows(page("algorithms")) if h[0] == "name" and "advantage" in h[1]]
    for name in {*ADV_ESTIMATOR_REGISTRY} - OUR_ESTIMATORS:
        row = next(c for c in cells if f"`{name}`" in c[0])
        assert ("legacy trainer" in row[2]) == (name in LEGACY_ONLY), name
        if name in LEGACY_ONLY:
            with pytest.raises((KeyError, TypeError, AssertionError)):
                estimate(name)
        else:
            assert estimate(name).shape == (4, 3)


def actor(*overrides: str):
    """verl's actor settings as the loss gets them."""
    config = with_overrides([MICRO, *overrides])
    return omega_conf_to_dataclass(config.actor_rollout_ref.actor)


def loss_of(mode: str, *overrides: str) -> float:
    """A loss on fixed numbers, one completion of two tokens per row, token mean."""
    config = actor(f"actor_rollout_ref.actor.policy_loss.loss_mode={mode}", *overrides)
    old, new = torch.tensor([[-1.0, -2.0], [-0.5, -1.5]]), torch.tensor([[-0.4, -2.2], [-0.2, -0.1]])
    advantages, mask = torch.tensor([[1.0, 1.0], [-2.0, -2.0]]), torch.ones(2, 2)
    return get_policy_loss_fn(mode)(old, new, advantages, mask, "token-mean", config, None)[0].item()


def test_clip_ratio_does_nothing_beside_the_defaults_of_both_sides():
    assert loss_of("vanilla", "actor_rollout_ref.actor.clip_ratio=0.01") == loss_of("vanilla")


def test_bypass_mode_reaches_the_loss_only_through_the_loss():
    asked = "algorithm.rollout_correction.bypass_mode=True", "algorithm.rollout_correction.loss_type=reinforce"
    assert actor(*asked).policy_loss.loss_mode == "vanilla"
    base = (PACKAGE / "trainer" / "ppo" / "v1" / "trainer_base.py").read_text(encoding="utf-8")
    assert "bypass_mode" in base and "apply_bypass_mode" not in base
    fence = next(body for body in fences(page("inference"), "shell") if "loss_mode=bypass_mode" in body)
    config = actor(*shell_overrides(fence))
    old, new, advantages = -torch.rand(3, 4), -torch.rand(3, 4), torch.randn(3, 4)
    loss, _ = get_policy_loss_fn("bypass_mode")(old, new, advantages, torch.ones(3, 4), "token-mean", config, None)
    weights = (new - old).exp().clamp(max=2)
    assert loss.item() == pytest.approx((-advantages * new * weights).mean().item(), abs=1e-6)


def test_tool_of_the_page():
    from verl.tools.function_tool import FUNCTION_TOOL_REGISTRY

    run_block_with("multiply")
    tool = FUNCTION_TOOL_REGISTRY["multiply"]
    assert asyncio.run(tool.call({"a": 6, "b": 7})) == "42"
    assert set(tool.tool_schema.function.parameters.properties) == {"a", "b"}


def test_estimator_and_loss_of_the_page():
    run_block_with("my_maxrl")
    assert estimate("my_maxrl")[:, 0].tolist() == pytest.approx([1, -1, 0, 0], abs=1e-5)
    assert loss_of("my_reinforce") == pytest.approx(loss_of("gpg"), abs=1e-7)
