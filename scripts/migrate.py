#!/usr/bin/env python3
# Built from src/programs/migrate/ by tools/build.py: a change belongs there, then `make build`.
# A copy is yours to edit: this file needs no other of this bundle's scripts.
# /// script
# requires-python = ">=3.11"
# dependencies = ["pyyaml", "transformers>=5.23,<6", "datasets", "trl==1.16.0"]  # all but pyyaml for --check
# ///
"""Make an old TRL script or verl job run on today's packages, as the same run.

The new file is the old one, edited in place; nothing of it is run but by --check. Each changed line is a line of the
table: what it says, the version that changed it, why, and what today's package would do without it. Defaults that
changed are written out, so that objective, sampling, batch, prompts and schedule stay. What has no equal today stands
at the top. Without --from the version is found by a pin, or by the names that the file uses.

Deliberately left out: main modules of verl's recipes, which are named; values that bash computes.

    python scripts/migrate.py train.py --from trl==0.14 --out new.py            # a script, or a notebook
    python scripts/migrate.py train.py --from trl==0.14 --check --data rows.jsonl  # one step of it, on the CPU
    python scripts/migrate.py run.sh --from verl==0.3 --out new.sh              # a job, or its YAML
    python scripts/migrate.py grpo.yaml --from trl==0.14 --out new.yaml         # settings of TRL's command line

Exit codes: 0 the same run; 2 bad input; 3 something has no equal today.
"""

# Contents
#        71-102  messages       Errors that a user can mend, each with its exit code, and what is said on stderr
#       105-109  bundle         Where this bundle and its embedded model, data and rewards lie
#       112-152  user scripts   A user's Python script: the names that it binds, and a run of it in a process of its own
#       155-233  verl keys      Keys of verl's configuration: all of today's, and what older guides have
#      236-2121  tables         What changed between the versions of TRL and verl: tables read from their packages, …
#     2124-2217  versions       Which version of a package a file was written for, by what it uses
#     2220-2353  edits          Edits of a text at its places, each with the line of the table that says why
#     2356-2660  python source  A Python script or notebook: its calls, its constants, and the places of their …
#     2663-2759  trl names      Names of TRL and transformers that are gone, and what takes their place
#     2762-2886  trl run        A TRL run as one version of it reads a script: given arguments, and that version's …
#     2889-3059  trl meanings   What no default shows: how an old TRL counted, sampled and summed, said in today's …
#     3062-3230  trl arguments  The arguments of a TRL config, as the new script has them
#     3233-3315  trl prompts    Prompts that an old TRL cut: a class in the new script that does it, as today's …
#     3318-3403  trl rewards    Reward functions take what today's trainers pass beside prompts, completions and columns
#     3406-3519  trl models     Loading models: names and defaults of transformers that changed, and Unsloth's loader
#     3522-3892  trl calls      Trainers, imports and names of a script that trains with TRL
#     3895-3950  trl version    What a script uses of TRL, and what a version makes of it where it says nothing
#     3953-4083  effective      What a run comes to: its settings under the old version and under the newest, side by …
#     4086-4289  job files      Jobs of verl as files: the words KEY=VALUE of a shell script, or the keys of a YAML …
#     4292-4346  trl yaml       YAML files of TRL's command line, of open-r1 and of scripts that read their config …
#     4349-4621  verl run       A verl job of an old version as a job of the newest: keys, values, and defaults that …
#     4624-4831  trial          --check: one step of the new script on a two-layer cut of its model with four rows, …
#     4834-5075  command        The command line: what is read, what is written, what is said

import argparse
import ast
import contextlib
import difflib
import functools
import importlib.util
import itertools
import json
import os
import re
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path

# ------------------------------------------------------------------------- messages (src/parts/foundation/messages.py)


class UserError(Exception):
    """Something the user can mend; printed without a traceback. `code` is the exit code."""

    code = 2


def need(condition, message: str) -> None:
    """Raise UserError with a message of the form got / expected / try unless the condition holds."""
    if not condition:
        raise UserError(message)


def say(text: str) -> None:
    """Print a diagnostic line on stderr, once in a torchrun launch."""
    if os.environ.get("RANK", "0") == "0":
        print(text, file=sys.stderr, flush=True)


def tell(*words: str, end: str = "\n") -> None:
    """Print a result on stdout; where its reader has gone, as `| head` has, this and what follows is told to nobody."""
    try:
        print(*words, end=end, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def suggest(word: str, names: list[str]) -> str:
    """Return '; try NAME' for the nearest name, if one is near."""
    return "".join(f"; try {name}" for name in difflib.get_close_matches(word, names, n=1))


# ----------------------------------------------------------------------------- bundle (src/parts/foundation/bundle.py)

HERE = Path(__file__).resolve()
BUNDLE = next((folder for folder in HERE.parents if (folder / "assets" / "tiny_lm").is_dir()), HERE.parent.parent)
EMBEDDED_MODEL = str(BUNDLE / "assets" / "tiny_lm")


# ----------------------------------------------------------------- user scripts (src/parts/foundation/user_scripts.py)

CHANGING = {"append", "extend", "insert", "pop", "remove", "setdefault", "update"}  # methods
QUIET = {"WANDB_MODE": "disabled", "TOKENIZERS_PARALLELISM": "false"}


def names_bound_by(node: ast.AST) -> list[str]:
    """The names that a node binds, or changes by an attribute, an item or a method."""
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store | ast.Del):
        return [node.id]
    if isinstance(node, ast.arg):
        return [node.arg]
    if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
        return [node.target.id]
    place = node
    if isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) in CHANGING:
        place = node.func
    elif not isinstance(node, ast.Attribute | ast.Subscript) or isinstance(node.ctx, ast.Load):
        return []
    while isinstance(place, ast.Attribute | ast.Subscript):
        place = place.value
    return [place.id] if isinstance(place, ast.Name) else []


def script_end(command: list[str], folder: Path, seconds: float, **environment: str) -> str:
    """Run a command in a folder, with all that it starts; returns why it failed, or "" where it did not."""
    with tempfile.TemporaryFile("w+") as said:
        env = os.environ | QUIET | environment
        options = {"cwd": folder, "env": env, "stdin": subprocess.DEVNULL, "start_new_session": True}
        with subprocess.Popen(command, stdout=said, stderr=said, **options) as process:
            try:
                process.wait(seconds)
            except BaseException as error:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                if not isinstance(error, subprocess.TimeoutExpired):
                    raise
                return f"it takes more than {seconds} s"
        said.seek(0)
        lines = [line.strip() for line in said.read().splitlines() if line.strip()]
    return lines[-1] if lines and process.returncode else ""


# ----------------------------------------------------------------------------- verl keys (src/parts/data/verl_keys.py)

ACTOR, REF, ROLLOUT, MODEL = (f"actor_rollout_ref.{part}" for part in ("actor", "ref", "rollout", "model"))
FSDP, CORRECTION = f"{ACTOR}.fsdp_config", "algorithm.rollout_correction"
OFF = 1e9  # a bound that no ratio reaches: verl, like us, bounds the log-ratio to +-20, and exp(20) is 4.9e8
NAMES_FILE = BUNDLE / "assets" / "verl_keys.txt"

# What older guides have, or what looks right: key, or key=value -> (what verl 0.9.1 does with it, what to write). Where
# that is a whole section, the keys of the old one stand below it.
IGNORED, GONE = "ignores it", "no longer has it"
TODAY = {
    f"{ACTOR}.clip_ratio": (IGNORED, f"{ACTOR}.clip_ratio_low and {ACTOR}.clip_ratio_high"),
    f"{ACTOR}.grad_clip": (IGNORED, f"{ACTOR}.optim.clip_grad"),
    "critic.grad_clip": (IGNORED, "critic.optim.clip_grad"),
    f"{ACTOR}.use_torch_compile": (IGNORED, f"{FSDP}.use_torch_compile"),
    f"{FSDP}.dtype": (IGNORED, f"+{FSDP}.mixed_precision.param_dtype"),
    f"{REF}.fsdp_config.dtype": (IGNORED, f"+{REF}.fsdp_config.mixed_precision.param_dtype"),
    "critic.fsdp.dtype": (IGNORED, "+critic.fsdp.mixed_precision.param_dtype"),
    f"{REF}.fsdp_config.param_offload": (IGNORED, "leaving it out: the reference always waits in CPU memory"),
    "custom_reward_function": (IGNORED, "reward.custom_reward_function"),
    "reward_model.custom_reward_function": (GONE, "reward.custom_reward_function"),
    "reward_model": (IGNORED, "the section reward"),
    "reward_model.reward_manager": (IGNORED, "reward.reward_manager.name"),
    "reward_model.enable": (IGNORED, "reward.reward_model.enable"),
    "reward_model.model.path": (IGNORED, "reward.reward_model.model_path"),
    "reward_model.num_workers": (IGNORED, "reward.num_workers"),
    "reward_model.reward_kwargs": (GONE, "+reward.reward_kwargs"),
    "reward_model.use_reward_loop": (GONE, "leaving it out: it is always on"),
    "reward_model.launch_reward_fn_async": (GONE, "leaving it out: it is always on"),
    "sandbox_fusion": (IGNORED, "reward.sandbox_fusion"),
    "algorithm.filter_groups.max_num_gen_batches": (IGNORED, "algorithm.filter_groups.max_inflight_gen_batches"),
    f"{CORRECTION}.loss_type": (IGNORED, f"{ACTOR}.policy_loss.loss_mode"),
    f"{CORRECTION}.bypass_mode=true": ("leaves out the correction with it", "leaving it out"),
    "algorithm.policy_loss_fn": (GONE, f"{ACTOR}.policy_loss.loss_mode"),
    f"{ACTOR}.tis_imp_ratio_cap": (GONE, f"{CORRECTION}.rollout_is=token and {CORRECTION}.rollout_is_threshold"),
    "algorithm.rollout_is": (GONE, f"{CORRECTION}.rollout_is"),
    "data.chat_template": (GONE, f"{MODEL}.custom_chat_template, the template's text"),
    "data.sampler": (GONE, "data.shuffle=False, and a data set that orders its rows"),
    "data.datagen": (GONE, "data.custom_cls"),
    **dict.fromkeys(("data.return_raw_input_ids", "data.return_raw_chat"), (IGNORED, "leaving it out")),
    "data.reward_fn_key": (IGNORED, "the column data_source"),
    "data.truncation": (IGNORED, "data.filter_overlong_prompts=True"),
    f"{ROLLOUT}.multi_turn.max_turns": (GONE, f"{ROLLOUT}.multi_turn.max_assistant_turns"),
    f"{ROLLOUT}.multi_turn.interaction_config_path": (GONE, "an agent loop of your own"),
    f"{ROLLOUT}.multi_turn.enable": (IGNORED, f"{ROLLOUT}.agent.default_agent_loop=tool_agent"),
    f"{ROLLOUT}.mode=sync": ("refuses it at the start", "leaving it out: all rollout is asynchronous"),
    f"{ROLLOUT}.name=hf": ("refuses it at the start", f"{ROLLOUT}.name=vllm"),
    f"{ACTOR}.ppo_micro_batch_size": ("deprecates it", f"{ACTOR}.ppo_micro_batch_size_per_gpu"),
    f"{ACTOR}.optim.warmup_style": ("deprecates it", f"{ACTOR}.optim.lr_scheduler_type"),
    f"{ACTOR}.ulysses_sequence_parallel_size": ("deprecates it", f"{FSDP}.ulysses_sequence_parallel_size"),
    "critic.model.fsdp_config": (GONE, "critic.fsdp"),
    "trainer.use_legacy_worker_impl": (GONE, "leaving it out: there is one engine"),
    "trainer.balance_batch=false": (IGNORED, "leaving it out"),
    "trainer.esi_redundant_time": (IGNORED, "leaving it out"),
    "ray_init": (GONE, "ray_kwargs.ray_init"),
}


def known_names(engine: str) -> set[str]:
    """Every key of verl's configuration with a model_engine; none for an engine that the file does not have."""
    names, has_engine = set(), False
    for line in NAMES_FILE.read_text(encoding="utf-8").splitlines()[1:]:
        where, section, *leaves = line.split()
        has_engine = has_engine or where == engine
        if where in ("*", engine):
            names |= {f"{section}.{leaf}".lstrip(".") for leaf in leaves}
    return names if has_engine else set()


def advice_today(key: str, value: str) -> tuple[str, str] | None:
    """(What verl does with a key of TODAY, what to write), by the most exact entry."""
    value = value.strip().lower()
    for trap in sorted(TODAY, key=len, reverse=True):
        name, _, only = trap.partition("=")
        if (key == name or key.startswith(f"{name}.")) and only in ("", value):
            effect, instead = TODAY[trap]
            is_section = re.fullmatch(r"\+?[\w.]+", instead)
            return effect, instead + key.removeprefix(name) if is_section else instead
    return None


# ----------------------------------------------------------------------------- tables (src/programs/migrate/tables.py)

TRL_CHANGES = """\
{"versions":["0.9", "0.10", "0.11", "0.12", "0.13", "0.14", "0.15", "0.16", "0.17", "0.18", "0.19", "0.20", "0.21",
"0.22", "0.23", "0.24", "0.25", "0.26", "0.27", "0.28", "0.29", "1.0", "1.1", "1.2", "1.3", "1.4", "1.5", "1.6", "1.7",
"1.8", "1.9", "1.10", "1.11", "1.12", "1.13", "1.14", "1.15", "1.16"], "transformers":{"0.9":["4.31", "4.41"],
"0.10":["4.31", "4.44"], "0.11":["4.40", "4.45"], "0.12":["4.31", "4.46"], "0.13":["4.46", "4.46"], "0.14":["4.46",
"4.47"], "0.15":["4.46", "4.49"], "0.16":["4.46", "4.50"], "0.17":["4.46", "4.51"], "0.18":["4.50", "4.52"],
"0.19":["4.51", "4.52"], "0.20":["4.53", "4.53"], "0.21":["4.55", "4.55"], "0.22":["4.55", "4.55"], "0.23":["4.56",
"4.56"], "0.24":["4.56", "4.56"], "0.25":["4.56", "4.56"], "0.26":["4.56", "4.56"], "0.27":["4.56", "5.0"],
"0.28":["4.56", "5.1"], "0.29":["4.56", "5.3"], "1.0":["4.56", "5.4"], "1.1":["4.56", "5.4"], "1.2":["4.56", "5.5"],
"1.3":["4.56", "5.6"], "1.4":["4.56", "5.7"], "1.5":["4.56", "5.9"], "1.6":["4.56", "5.11"], "1.7":["4.56", "5.12"],
"1.8":["4.56", "5.12"], "1.9":["4.56", "5.14"], "1.10":["4.56", "5.14"], "1.11":["4.56", "5.16"], "1.12":["4.56",
"5.16"], "1.13":["4.56", "5.17"], "1.14":["4.56", "5.19"], "1.15":["4.56", "5.19"], "1.16":["4.56", "5.19"]},
"modules":{"AutoModelForCausalLMWithValueHead":[{"since":"0.9", "at":"trl"},
{"since":"0.29",
"at":"trl.experimental.ppo"},
{"since":"1.13", "gone":true}], "CPOConfig":[{"since":"0.9", "at":"trl"},
{"since":"0.29",
"at":"trl.experimental.cpo"}], "CPOTrainer":[{"since":"0.9", "at":"trl"},
{"since":"0.29",
"at":"trl.experimental.cpo"}], "DataCollatorForCompletionOnlyLM":[{"since":"0.9", "at":"trl"},
{"since":"0.20",
"gone":true}], "DistillationConfig":[{"since":"1.1", "at":"trl.experimental.distillation"},
{"since":"1.10",
"at":"trl"}], "DistillationTrainer":[{"since":"1.1", "at":"trl.experimental.distillation"},
{"since":"1.10",
"at":"trl"}], "GKDConfig":[{"since":"0.11", "at":"trl"},
{"since":"0.29", "at":"trl.experimental.gkd"}],
"GKDTrainer":[{"since":"0.11", "at":"trl"},
{"since":"0.29", "at":"trl.experimental.gkd"}],
"GRPOConfig":[{"since":"0.14", "at":"trl"}], "GRPOTrainer":[{"since":"0.14", "at":"trl"}], "ORPOConfig":[{"since":"0.9",
"at":"trl"},
{"since":"0.29", "at":"trl.experimental.orpo"}], "ORPOTrainer":[{"since":"0.9", "at":"trl"},
{"since":"0.29", "at":"trl.experimental.orpo"}], "OnlineDPOConfig":[{"since":"0.10", "at":"trl"},
{"since":"0.29",
"at":"trl.experimental.online_dpo"}], "OnlineDPOTrainer":[{"since":"0.10", "at":"trl"},
{"since":"0.29",
"at":"trl.experimental.online_dpo"}], "PPOConfig":[{"since":"0.9", "at":"trl"},
{"since":"0.29",
"at":"trl.experimental.ppo"},
{"since":"1.13", "gone":true}], "PPOTrainer":[{"since":"0.9", "at":"trl"},
{"since":"0.29", "at":"trl.experimental.ppo"},
{"since":"1.13", "gone":true}], "PPOv2Config":[{"since":"0.11",
"at":"trl"},
{"since":"0.13", "gone":true}], "PPOv2Trainer":[{"since":"0.11", "at":"trl"},
{"since":"0.13",
"gone":true}], "RLOOConfig":[{"since":"0.11", "at":"trl"}], "RLOOTrainer":[{"since":"0.11", "at":"trl"}],
"ScriptArguments":[{"since":"0.12", "at":"trl"}], "get_kbit_device_map":[{"since":"0.9", "at":"trl"},
{"since":"1.8",
"gone":true}], "setup_chat_format":[{"since":"0.9", "at":"trl"},
{"since":"0.26", "gone":true}]},
"trainers":{"GRPOTrainer":{"environment_factory":[{"since":"0.29", "default":null}],
"quantization_config":[{"since":"1.8", "default":null}], "reward_funcs":[{"since":"0.14", "default":"<required>"},
{"since":"1.8", "default":null}], "rollout_func":[{"since":"0.25", "default":null}], "tools":[{"since":"0.26",
"default":null}]}, "RLOOTrainer":{"args":[{"since":"0.22", "default":null}], "config":[{"since":"0.9",
"default":"<required>"},
{"since":"0.22", "default":null},
{"since":"0.25", "gone":true, "renamed":"args"}],
"data_collator":[{"since":"0.9", "default":null},
{"since":"0.25", "gone":true}], "model":[{"since":"0.22",
"default":null},
{"since":"0.27", "default":"<required>"}], "peft_config":[{"since":"0.22", "default":null}],
"policy":[{"since":"0.9", "default":"<required>"},
{"since":"0.22", "default":null},
{"since":"0.25", "gone":true,
"renamed":"model"}], "processing_class":[{"since":"0.12", "default":"<required>"},
{"since":"0.22", "default":null}],
"quantization_config":[{"since":"1.8", "default":null}], "ref_policy":[{"since":"0.9", "default":"<required>"},
{"since":"0.22", "default":null},
{"since":"0.25", "gone":true}], "reward_funcs":[{"since":"0.22", "default":null},
{"since":"0.27", "default":"<required>"}], "reward_model":[{"since":"0.9", "default":"<required>"},
{"since":"0.22",
"default":null},
{"since":"0.25", "gone":true, "renamed":"reward_funcs"}], "reward_processing_classes":[{"since":"0.22",
"default":null}], "tokenizer":[{"since":"0.9", "default":"<required>"},
{"since":"0.12", "gone":true,
"renamed":"processing_class"}], "train_dataset":[{"since":"0.9", "default":"<required>"},
{"since":"0.22",
"default":null}]}, "SFTTrainer":{"chars_per_token":[{"since":"0.9", "default":3.6},
{"since":"0.10", "default":null},
{"since":"0.13", "gone":true}], "compute_loss_func":[{"since":"0.15", "default":null}],
"dataset_batch_size":[{"since":"0.9", "default":1000},
{"since":"0.10", "default":null},
{"since":"0.13", "gone":true}],
"dataset_kwargs":[{"since":"0.9", "default":null},
{"since":"0.13", "gone":true, "renamed":"args.dataset_kwargs"}],
"dataset_num_proc":[{"since":"0.9", "default":null},
{"since":"0.13", "gone":true, "renamed":"args.dataset_num_proc"}],
"dataset_text_field":[{"since":"0.9", "default":null},
{"since":"0.13", "gone":true,
"renamed":"args.dataset_text_field"}], "eval_packing":[{"since":"0.9", "default":null},
{"since":"0.13", "gone":true,
"renamed":"args.eval_packing"}], "infinite":[{"since":"0.9", "default":null},
{"since":"0.13", "gone":true}],
"max_seq_length":[{"since":"0.9", "default":null},
{"since":"0.13", "gone":true, "renamed":"args.max_length"}],
"model":[{"since":"0.9", "default":null},
{"since":"0.15", "default":"<required>"}], "model_init":[{"since":"0.9",
"default":null},
{"since":"0.15", "gone":true}], "model_init_kwargs":[{"since":"0.9", "default":null},
{"since":"0.13",
"gone":true, "renamed":"args.model_init_kwargs"}], "neftune_noise_alpha":[{"since":"0.9", "default":null},
{"since":"0.13", "gone":true}], "num_of_sequences":[{"since":"0.9", "default":1024},
{"since":"0.10", "default":null},
{"since":"0.13", "gone":true}], "optimizer_cls_and_kwargs":[{"since":"0.15", "default":null}],
"packing":[{"since":"0.9", "default":false},
{"since":"0.13", "gone":true, "renamed":"args.packing"}],
"processing_class":[{"since":"0.12", "default":null}], "quantization_config":[{"since":"1.8", "default":null}],
"tokenizer":[{"since":"0.9", "default":null},
{"since":"0.12", "gone":true, "renamed":"processing_class"}]},
"DPOTrainer":{"beta":[{"since":"0.9", "default":0.1},
{"since":"0.13", "gone":true, "renamed":"args.beta"}],
"dataset_num_proc":[{"since":"0.9", "default":null},
{"since":"0.13", "gone":true, "renamed":"args.dataset_num_proc"}],
"disable_dropout":[{"since":"0.9", "default":true},
{"since":"0.13", "gone":true, "renamed":"args.disable_dropout"}],
"force_use_ref_model":[{"since":"0.9", "default":false},
{"since":"0.13", "gone":true}],
"generate_during_eval":[{"since":"0.9", "default":false},
{"since":"0.13", "gone":true}],
"is_encoder_decoder":[{"since":"0.9", "default":null},
{"since":"0.13", "gone":true}],
"label_pad_token_id":[{"since":"0.9", "default":-100},
{"since":"0.13", "gone":true}],
"label_smoothing":[{"since":"0.9", "default":0},
{"since":"0.13", "gone":true, "renamed":"args.label_smoothing"}],
"loss_type":[{"since":"0.9", "default":"sigmoid"},
{"since":"0.10", "default":null},
{"since":"0.13", "gone":true,
"renamed":"args.loss_type"}], "max_length":[{"since":"0.9", "default":null},
{"since":"0.13", "gone":true,
"renamed":"args.max_length"}], "max_prompt_length":[{"since":"0.9", "default":null},
{"since":"0.13", "gone":true}],
"max_target_length":[{"since":"0.9", "default":null},
{"since":"0.13", "gone":true}], "model":[{"since":"0.9",
"default":null},
{"since":"0.19", "default":"<required>"}], "model_adapter_name":[{"since":"0.9", "default":null},
{"since":"0.13", "gone":true}], "model_init":[{"since":"0.9", "default":null},
{"since":"0.19", "gone":true}],
"model_init_kwargs":[{"since":"0.9", "default":null},
{"since":"0.13", "gone":true,
"renamed":"args.model_init_kwargs"}], "optimizer_cls_and_kwargs":[{"since":"0.19", "default":null},
{"since":"0.29",
"gone":true}], "padding_value":[{"since":"0.9", "default":null},
{"since":"0.13", "gone":true}],
"precompute_ref_log_probs":[{"since":"0.9", "default":false},
{"since":"0.13", "gone":true,
"renamed":"args.precompute_ref_log_probs"}], "preprocess_logits_for_metrics":[{"since":"0.9", "default":null},
{"since":"0.29", "gone":true}], "processing_class":[{"since":"0.12", "default":null}],
"quantization_config":[{"since":"1.8", "default":null}], "ref_adapter_name":[{"since":"0.9", "default":null},
{"since":"0.13", "gone":true}], "ref_model_init_kwargs":[{"since":"0.9", "default":null},
{"since":"0.13",
"gone":true}], "reference_free":[{"since":"0.9", "default":false},
{"since":"0.13", "gone":true}],
"tokenizer":[{"since":"0.9", "default":null},
{"since":"0.12", "gone":true, "renamed":"processing_class"}],
"truncation_mode":[{"since":"0.9", "default":"keep_end"},
{"since":"0.13", "gone":true,
"renamed":"args.truncation_mode"}]}, "RewardTrainer":{"max_length":[{"since":"0.9", "default":null},
{"since":"0.14",
"gone":true, "renamed":"args.max_length"}], "model":[{"since":"0.9", "default":null},
{"since":"0.24",
"default":"<required>"}], "model_init":[{"since":"0.9", "default":null},
{"since":"0.24", "gone":true}],
"optimizer_cls_and_kwargs":[{"since":"0.24", "default":null}], "processing_class":[{"since":"0.12", "default":null}],
"quantization_config":[{"since":"1.8", "default":null}], "tokenizer":[{"since":"0.9", "default":null},
{"since":"0.12",
"gone":true, "renamed":"processing_class"}]}, "GKDTrainer":{"callbacks":[{"since":"0.12", "default":null}],
"compute_metrics":[{"since":"0.12", "default":null}], "data_collator":[{"since":"0.12", "default":null}],
"eval_dataset":[{"since":"0.12", "default":null}], "formatting_func":[{"since":"0.12", "default":null}],
"model":[{"since":"0.12", "default":null}], "model_init":[{"since":"0.12", "default":null},
{"since":"0.15",
"gone":true}], "optimizers":[{"since":"0.12", "default":[null, null]}], "peft_config":[{"since":"0.12",
"default":null}], "preprocess_logits_for_metrics":[{"since":"0.12", "default":null}],
"processing_class":[{"since":"0.12", "default":null}], "teacher_model":[{"since":"0.11", "default":"<required>"},
{"since":"0.12", "default":null}], "train_dataset":[{"since":"0.12", "default":null}]},
"DistillationTrainer":{"compute_metrics":[{"since":"1.1", "default":null},
{"since":"1.10", "gone":true}],
"data_collator":[{"since":"1.1", "default":null},
{"since":"1.10", "gone":true}], "model":[{"since":"1.1",
"default":null},
{"since":"1.10", "default":"<required>"}], "preprocess_logits_for_metrics":[{"since":"1.1",
"default":null},
{"since":"1.10", "gone":true}], "quantization_config":[{"since":"1.10", "default":null}],
"tools":[{"since":"1.11", "default":null}]}, "OnlineDPOTrainer":{"judge":[{"since":"0.10", "default":null},
{"since":"1.1", "gone":true}], "model":[{"since":"0.10", "default":null},
{"since":"0.11", "default":"<required>"}],
"model_init":[{"since":"0.10", "default":null},
{"since":"0.11", "gone":true}], "peft_config":[{"since":"0.11",
"default":null}], "processing_class":[{"since":"0.12", "default":null}], "reward_funcs":[{"since":"0.23",
"default":null}], "reward_model":[{"since":"0.10", "default":null},
{"since":"0.25", "gone":true,
"renamed":"reward_funcs"}], "reward_processing_class":[{"since":"0.12", "default":null},
{"since":"0.25", "gone":true,
"renamed":"reward_processing_classes"}], "reward_processing_classes":[{"since":"0.23", "default":null}],
"tokenizer":[{"since":"0.10", "default":null},
{"since":"0.12", "gone":true, "renamed":"processing_class"}]},
"PPOTrainer":{"args":[{"since":"0.13", "default":"<required>"}], "callbacks":[{"since":"0.12", "default":null}],
"config":[{"since":"0.9", "default":null},
{"since":"0.12", "default":"<required>"},
{"since":"0.13", "gone":true,
"renamed":"args"}], "dataset":[{"since":"0.9", "default":null},
{"since":"0.12", "gone":true}],
"eval_dataset":[{"since":"0.12", "default":null}], "lr_scheduler":[{"since":"0.9", "default":null},
{"since":"0.12",
"gone":true}], "model":[{"since":"0.9", "default":null},
{"since":"0.12", "gone":true},
{"since":"0.13",
"default":"<required>"}], "num_shared_layers":[{"since":"0.9", "default":null},
{"since":"0.12", "gone":true}],
"optimizer":[{"since":"0.9", "default":null},
{"since":"0.12", "gone":true}], "optimizers":[{"since":"0.12",
"default":[null, null]}], "peft_config":[{"since":"0.13", "default":null}], "policy":[{"since":"0.12",
"default":"<required>"},
{"since":"0.13", "gone":true, "renamed":"model"}], "processing_class":[{"since":"0.12",
"default":"<required>"}], "ref_model":[{"since":"0.9", "default":null},
{"since":"0.12", "gone":true},
{"since":"0.13",
"default":"<required>"}], "ref_policy":[{"since":"0.12", "default":"<required>"},
{"since":"0.13", "gone":true}],
"reward_model":[{"since":"0.12", "default":"<required>"}], "tokenizer":[{"since":"0.9", "default":null},
{"since":"0.12", "gone":true, "renamed":"processing_class"}], "train_dataset":[{"since":"0.12",
"default":"<required>"}], "training_data_collator":[{"since":"0.9", "default":null},
{"since":"0.12", "gone":true}],
"value_model":[{"since":"0.12", "default":null},
{"since":"0.18", "default":"<required>"}]},
"KTOTrainer":{"embedding_func":[{"since":"0.9", "default":null},
{"since":"0.10", "gone":true}],
"embedding_tokenizer":[{"since":"0.9", "default":null},
{"since":"0.10", "gone":true}], "model":[{"since":"0.9",
"default":null},
{"since":"1.2", "default":"<required>"}], "model_adapter_name":[{"since":"0.9", "default":null},
{"since":"1.2", "gone":true}], "model_init":[{"since":"0.9", "default":null},
{"since":"1.4", "gone":true}],
"preprocess_logits_for_metrics":[{"since":"0.9", "default":null},
{"since":"1.4", "gone":true}],
"processing_class":[{"since":"0.12", "default":null}], "quantization_config":[{"since":"1.8", "default":null}],
"ref_adapter_name":[{"since":"0.9", "default":null},
{"since":"1.2", "gone":true}], "tokenizer":[{"since":"0.9",
"default":null},
{"since":"0.12", "gone":true, "renamed":"processing_class"}]},
"ORPOTrainer":{"processing_class":[{"since":"0.12", "default":null}], "tokenizer":[{"since":"0.9", "default":null},
{"since":"0.12", "gone":true, "renamed":"processing_class"}]}, "CPOTrainer":{"processing_class":[{"since":"0.12",
"default":null}], "tokenizer":[{"since":"0.9", "default":null},
{"since":"0.12", "gone":true,
"renamed":"processing_class"}]}}, "configs":{"TrainingArguments":{"accelerator_config":[{"since":"4.38",
"default":null}], "activation_checkpointing":[{"since":"5.23", "default":null}],
"activation_checkpointing_kwargs":[{"since":"5.23", "default":null}], "adafactor":[{"since":"4.31", "default":false},
{"since":"5.0", "gone":true}], "average_tokens_across_devices":[{"since":"4.46", "default":false},
{"since":"4.54",
"default":true}], "batch_eval_metrics":[{"since":"4.41", "default":false}], "dataloader_in_order":[{"since":"5.15",
"default":true}], "dataloader_multiprocessing_context":[{"since":"5.15", "default":null}],
"dataloader_persistent_workers":[{"since":"4.36", "default":false}], "dataloader_prefetch_factor":[{"since":"4.38",
"default":null},
{"since":"4.39",
"default":{"expr":"None if not is_torch_available() or is_torch_greater_or_equal_than_2_0 else 2"}},
{"since":"4.48",
"default":null}], "ddp_static_graph":[{"since":"5.6", "default":null}], "dispatch_batches":[{"since":"4.32",
"default":null},
{"since":"4.51", "gone":true}], "enable_jit_checkpoint":[{"since":"5.0", "default":false}],
"eval_do_concat_batches":[{"since":"4.40", "default":true}], "eval_on_start":[{"since":"4.42", "default":false}],
"eval_strategy":[{"since":"4.41", "default":"no"}], "eval_use_gather_object":[{"since":"4.43", "default":false}],
"evaluation_strategy":[{"since":"4.31", "default":"no"},
{"since":"4.41", "default":null},
{"since":"4.51", "gone":true,
"renamed":"eval_strategy"}], "fp16_backend":[{"since":"4.31", "default":"auto"},
{"since":"5.0", "gone":true,
"renamed":"half_precision_backend"}], "fp16_opt_level":[{"since":"4.31", "default":"O1"},
{"since":"5.0", "gone":true}],
"fsdp":[{"since":"4.31", "default":""},
{"since":"4.57", "default":null}], "fsdp_min_num_params":[{"since":"4.31",
"default":0},
{"since":"5.0", "gone":true}], "fsdp_transformer_layer_cls_to_wrap":[{"since":"4.31", "default":null},
{"since":"5.0", "gone":true}], "gradient_checkpointing":[{"since":"4.31", "default":false},
{"since":"5.23",
"default":null, "renamed":"activation_checkpointing"}], "gradient_checkpointing_kwargs":[{"since":"4.35",
"default":null, "renamed":"activation_checkpointing_kwargs"}], "group_by_length":[{"since":"4.31", "default":false},
{"since":"5.2", "gone":true}], "half_precision_backend":[{"since":"4.31", "default":"auto"},
{"since":"5.0",
"gone":true}], "hub_always_push":[{"since":"4.32", "default":false}], "hub_private_repo":[{"since":"4.31",
"default":false},
{"since":"4.47", "default":null}], "hub_revision":[{"since":"4.53", "default":null}],
"include_for_metrics":[{"since":"4.46", "default":[]}], "include_inputs_for_metrics":[{"since":"4.31", "default":false},
{"since":"5.0", "gone":true}], "include_num_input_tokens_seen":[{"since":"4.36", "default":false},
{"since":"5.0",
"default":"no"}], "include_tokens_per_second":[{"since":"4.34", "default":false},
{"since":"5.0", "gone":true}],
"jit_mode_eval":[{"since":"4.31", "default":false},
{"since":"5.0", "gone":true}],
"liger_kernel_config":[{"since":"4.53", "default":null}], "logging_dir":[{"since":"4.31", "default":null},
{"since":"5.15", "gone":true}], "lr_scheduler_kwargs":[{"since":"4.36", "default":{}},
{"since":"4.57",
"default":null}], "mp_parameters":[{"since":"4.31", "default":""},
{"since":"5.0", "gone":true}],
"neftune_noise_alpha":[{"since":"4.35", "default":null}], "no_cuda":[{"since":"4.31", "default":false},
{"since":"5.0",
"gone":true, "renamed":"use_cpu"}], "optim":[{"since":"4.31", "default":"adamw_hf"},
{"since":"4.32",
"default":"adamw_torch"},
{"since":"4.54", "default":"adamw_torch_fused"}], "optim_target_modules":[{"since":"4.39",
"default":null}], "output_dir":[{"since":"4.31", "default":"<required>"},
{"since":"4.49", "default":null}],
"overwrite_output_dir":[{"since":"4.31", "default":false},
{"since":"5.0", "gone":true}],
"parallelism_config":[{"since":"4.56", "default":null}], "past_index":[{"since":"4.31", "default":-1},
{"since":"5.0",
"gone":true}], "per_gpu_eval_batch_size":[{"since":"4.31", "default":null},
{"since":"5.0", "gone":true,
"renamed":"per_device_eval_batch_size"}], "per_gpu_train_batch_size":[{"since":"4.31", "default":null},
{"since":"5.0",
"gone":true, "renamed":"per_device_train_batch_size"}], "project":[{"since":"4.57", "default":"huggingface"}],
"push_to_hub_model_id":[{"since":"4.31", "default":null},
{"since":"5.0", "gone":true, "renamed":"hub_model_id"}],
"push_to_hub_organization":[{"since":"4.31", "default":null},
{"since":"5.0", "gone":true}],
"push_to_hub_token":[{"since":"4.31", "default":null},
{"since":"5.0", "gone":true, "renamed":"hub_token"}],
"ray_scope":[{"since":"4.31", "default":"last"},
{"since":"5.0", "gone":true}], "report_to":[{"since":"4.31",
"default":null},
{"since":"5.0", "default":"none"}], "restore_callback_states_from_checkpoint":[{"since":"4.41",
"default":false}], "save_only_model":[{"since":"4.36", "default":false}], "save_safetensors":[{"since":"4.31",
"default":false},
{"since":"4.35", "default":true},
{"since":"5.0", "gone":true}], "sharded_ddp":[{"since":"4.31",
"default":""},
{"since":"4.35", "gone":true}], "split_batches":[{"since":"4.35", "default":false},
{"since":"4.38",
"default":null},
{"since":"4.51", "gone":true}], "torch_empty_cache_steps":[{"since":"4.43", "default":null}],
"torchdynamo":[{"since":"4.31", "default":null},
{"since":"5.0", "gone":true, "renamed":"torch_compile_backend"}],
"tp_size":[{"since":"4.50", "default":0},
{"since":"4.52", "gone":true}], "tpu_metrics_debug":[{"since":"4.31",
"default":false},
{"since":"5.0", "gone":true}], "tpu_num_cores":[{"since":"4.31", "default":null},
{"since":"5.0",
"gone":true}], "trackio_bucket_id":[{"since":"5.6", "default":null}], "trackio_space_id":[{"since":"4.57",
"default":"trackio"},
{"since":"5.6", "default":null}], "trackio_static_space_id":[{"since":"5.6", "default":null}],
"train_sampling_strategy":[{"since":"5.2", "default":"random"}], "use_cache":[{"since":"5.0", "default":false}],
"use_cpu":[{"since":"4.32", "default":false}], "use_ipex":[{"since":"4.31", "default":false},
{"since":"4.57",
"gone":true}], "use_legacy_prediction_loop":[{"since":"4.31", "default":false},
{"since":"5.0", "gone":true}],
"use_liger_kernel":[{"since":"4.45", "default":false}], "use_mps_device":[{"since":"4.31", "default":false},
{"since":"5.0", "gone":true}], "warmup_ratio":[{"since":"4.31", "default":0.0},
{"since":"5.0", "default":null},
{"since":"5.15", "gone":true, "renamed":"warmup_steps"}], "xpu_backend":[{"since":"4.31", "default":null},
{"since":"4.32", "gone":true, "renamed":"ddp_backend"}]}, "GRPOConfig":{"beta":[{"since":"0.14", "default":0.04},
{"since":"0.19", "default":0.0}], "bf16":[{"since":"0.14", "default":false},
{"since":"0.19", "default":null}],
"cache_implementation":[{"since":"0.16", "default":null}], "cast_lm_head_to_fp32":[{"since":"0.25", "default":false}],
"chat_template_kwargs":[{"since":"0.25", "default":null}], "delta":[{"since":"0.18", "default":null}],
"disable_dropout":[{"since":"0.17", "default":false}], "ds3_gather_for_generation":[{"since":"0.15", "default":true}],
"entropy_coef":[{"since":"1.8", "default":0.0}], "entropy_coef_delta":[{"since":"1.8", "default":0.005}],
"entropy_coef_max":[{"since":"1.8", "default":1.0}], "entropy_coef_min":[{"since":"1.8", "default":0.0}],
"entropy_target":[{"since":"1.8", "default":0.2}], "epsilon":[{"since":"0.16", "default":0.2}],
"epsilon_high":[{"since":"0.16", "default":null}], "generation_batch_size":[{"since":"0.18", "default":null}],
"generation_kwargs":[{"since":"0.19", "default":null}], "gradient_accumulation_steps":[{"since":"0.14", "default":8},
{"since":"0.15", "default":1}], "gradient_checkpointing":[{"since":"0.14", "default":false},
{"since":"0.22",
"default":true}], "importance_sampling_level":[{"since":"0.20", "default":"token"}], "learning_rate":[{"since":"0.14",
"default":1e-06}], "log_completions":[{"since":"0.15", "default":false}], "log_completions_hub_repo":[{"since":"0.28",
"default":null}], "log_multimodal":[{"since":"1.9", "default":true}], "log_unique_prompts":[{"since":"0.26",
"default":false}], "logging_steps":[{"since":"0.14", "default":500},
{"since":"0.19", "default":10}],
"loss_type":[{"since":"0.17", "default":"bnpo"},
{"since":"0.22", "default":"dapo"}],
"lr_scheduler_kwargs":[{"since":"0.14", "default":{}},
{"since":"0.25", "default":null}],
"mask_truncated_completions":[{"since":"0.17", "default":false}], "max_completion_length":[{"since":"0.14",
"default":256},
{"since":"1.10", "default":512}], "max_prompt_length":[{"since":"0.14", "default":512},
{"since":"0.26",
"default":null},
{"since":"0.28", "gone":true}], "max_tool_calling_iterations":[{"since":"0.27", "default":null}],
"min_p":[{"since":"0.16", "default":null}], "multi_objective_aggregation":[{"since":"0.27",
"default":"sum_then_normalize"}], "num_completions_to_print":[{"since":"0.17", "default":null}],
"num_generations_eval":[{"since":"0.26", "default":null}], "num_iterations":[{"since":"0.16", "default":1}],
"off_policy_mask_threshold":[{"since":"0.27", "default":null}], "pad_to_multiple_of":[{"since":"1.0", "default":null},
{"since":"1.16", "default":"auto"}], "per_device_train_batch_size":[{"since":"0.14", "default":1},
{"since":"0.15",
"default":8}], "ref_model_mixup_alpha":[{"since":"0.15", "default":0.9},
{"since":"0.16", "default":0.6}],
"ref_model_sync_steps":[{"since":"0.15", "default":64},
{"since":"0.16", "default":512}],
"remove_unused_columns":[{"since":"0.14", "default":false}], "repetition_penalty":[{"since":"0.16", "default":1.0}],
"reward_weights":[{"since":"0.15", "default":null}], "router_aux_loss_coef":[{"since":"1.7", "default":0.001},
{"since":"1.14", "default":null}], "sapo_temperature_neg":[{"since":"0.26", "default":1.05}],
"sapo_temperature_pos":[{"since":"0.26", "default":1.0}], "scale_rewards":[{"since":"0.16", "default":true},
{"since":"0.22", "default":"group"}], "shuffle_dataset":[{"since":"0.17", "default":true}],
"steps_per_generation":[{"since":"0.18", "default":null}], "sync_ref_model":[{"since":"0.15", "default":false}],
"temperature":[{"since":"0.14", "default":0.9},
{"since":"0.18", "default":1.0}],
"top_entropy_quantile":[{"since":"0.20", "default":1.0}], "top_k":[{"since":"0.16", "default":50},
{"since":"0.18",
"default":null},
{"since":"0.27", "default":0}], "top_p":[{"since":"0.16", "default":1.0}],
"torch_empty_cache_steps":[{"since":"0.14", "default":null}], "transformers_continuous_batching_config":[{"since":"1.7",
"default":null}], "trust_remote_code":[{"since":"1.7", "default":false}], "use_adaptive_entropy":[{"since":"1.8",
"default":false}], "use_bias_correction_kl":[{"since":"0.26", "default":false},
{"since":"1.10", "default":true}],
"use_liger_kernel":[{"since":"0.14", "default":false}], "use_liger_loss":[{"since":"0.17", "default":false},
{"since":"0.25", "default":null},
{"since":"0.28", "gone":true, "renamed":"use_liger_kernel"}],
"use_transformers_continuous_batching":[{"since":"1.7", "default":false}], "use_transformers_paged":[{"since":"0.20",
"default":false, "renamed":"use_transformers_continuous_batching"}], "vespo_k_neg":[{"since":"1.0", "default":3.0}],
"vespo_k_pos":[{"since":"1.0", "default":2.0}], "vespo_lambda_neg":[{"since":"1.0", "default":2.0}],
"vespo_lambda_pos":[{"since":"1.0", "default":3.0}], "vllm_device":[{"since":"0.14", "default":"auto"},
{"since":"0.16",
"default":null},
{"since":"0.18", "gone":true}], "vllm_dtype":[{"since":"0.15", "default":"auto"},
{"since":"0.16",
"default":null},
{"since":"0.18", "gone":true}], "vllm_enable_prefix_caching":[{"since":"0.16", "default":null},
{"since":"0.18", "gone":true}], "vllm_enable_sleep_mode":[{"since":"0.23", "default":false}],
"vllm_gpu_memory_utilization":[{"since":"0.14", "default":0.9},
{"since":"0.16", "default":null},
{"since":"0.18",
"default":0.3}], "vllm_group_port":[{"since":"0.27", "default":51216}], "vllm_guided_decoding_regex":[{"since":"0.16",
"default":null},
{"since":"0.28", "gone":true, "renamed":"vllm_structured_outputs_regex"}],
"vllm_importance_sampling_cap":[{"since":"0.23", "default":2.0},
{"since":"0.26", "default":3.0},
{"since":"1.6",
"default":null, "renamed":"vllm_importance_sampling_clip_max"}], "vllm_importance_sampling_clip_max":[{"since":"1.6",
"default":3.0}], "vllm_importance_sampling_clip_min":[{"since":"1.6", "default":null}],
"vllm_importance_sampling_correction":[{"since":"0.23", "default":true}],
"vllm_importance_sampling_mode":[{"since":"0.26", "default":"sequence_mask"}], "vllm_max_model_len":[{"since":"0.15",
"default":null},
{"since":"0.18", "gone":true, "renamed":"vllm_max_model_length"}],
"vllm_max_model_length":[{"since":"0.26", "default":null}], "vllm_mode":[{"since":"0.18", "default":"server"},
{"since":"1.0", "default":"colocate"}], "vllm_model_impl":[{"since":"0.21", "default":"vllm"}],
"vllm_server_base_url":[{"since":"0.18", "default":null}], "vllm_server_host":[{"since":"0.16", "default":"0.0.0.0"}],
"vllm_server_port":[{"since":"0.16", "default":8000}], "vllm_server_timeout":[{"since":"0.16", "default":120.0},
{"since":"0.17", "default":240.0}], "vllm_structured_outputs_regex":[{"since":"0.27", "default":null}],
"vllm_tensor_parallel_size":[{"since":"0.18", "default":1}], "wandb_log_unique_prompts":[{"since":"0.17",
"default":false},
{"since":"0.26", "default":null},
{"since":"0.27", "gone":true, "renamed":"log_unique_prompts"}]},
"RLOOConfig":{"base_model":[{"since":"0.9", "default":"EleutherAI/pythia-160m"},
{"since":"0.10", "gone":true}],
"batch_size":[{"since":"0.9", "default":null},
{"since":"0.22", "gone":true}], "beta":[{"since":"0.22",
"default":0.05}], "bf16":[{"since":"0.9", "default":false},
{"since":"0.19", "default":null}],
"cache_implementation":[{"since":"0.22", "default":null}], "chat_template_kwargs":[{"since":"0.25", "default":null}],
"cliprange":[{"since":"0.9", "default":0.2},
{"since":"0.22", "default":null},
{"since":"0.25", "gone":true,
"renamed":"epsilon"}], "cliprange_value":[{"since":"0.9", "default":0.2},
{"since":"0.10", "gone":true}],
"dataset_num_proc":[{"since":"0.10", "default":null},
{"since":"0.25", "gone":true}],
"disable_dropout":[{"since":"0.22", "default":false}], "ds3_gather_for_generation":[{"since":"0.14", "default":true}],
"epsilon":[{"since":"0.22", "default":0.2}], "epsilon_high":[{"since":"0.22", "default":null}],
"exp_name":[{"since":"0.9", "default":{"expr":"os.path.basename(__file__)[:-len('.py')]"}},
{"since":"0.14",
"default":{"expr":"os.path.basename(__file__)[:-3]"}},
{"since":"0.22", "default":null},
{"since":"0.25", "gone":true,
"renamed":"run_name"}], "gamma":[{"since":"0.9", "default":1},
{"since":"0.10", "gone":true}],
"generation_batch_size":[{"since":"0.22", "default":null}], "generation_kwargs":[{"since":"0.22", "default":null}],
"gradient_checkpointing":[{"since":"0.9", "default":false},
{"since":"0.22", "default":true}],
"kl_coef":[{"since":"0.9", "default":0.05},
{"since":"0.22", "default":null},
{"since":"0.25", "gone":true,
"renamed":"beta"}], "lam":[{"since":"0.9", "default":0.95},
{"since":"0.10", "gone":true}],
"learning_rate":[{"since":"0.9", "default":5e-05},
{"since":"0.22", "default":1e-06}],
"local_batch_size":[{"since":"0.9", "default":null},
{"since":"0.22", "gone":true}],
"local_mini_batch_size":[{"since":"0.9", "default":null},
{"since":"0.22", "gone":true}],
"local_rollout_forward_batch_size":[{"since":"0.9", "default":64},
{"since":"0.22", "default":null},
{"since":"0.25",
"gone":true}], "log_completions":[{"since":"0.22", "default":false}], "log_multimodal":[{"since":"1.9",
"default":true}], "log_unique_prompts":[{"since":"0.26", "default":false}], "logging_steps":[{"since":"0.9",
"default":500},
{"since":"0.19", "default":10}], "lr_scheduler_kwargs":[{"since":"0.9", "default":{}},
{"since":"0.25",
"default":null}], "mask_truncated_completions":[{"since":"0.22", "default":false}],
"max_completion_length":[{"since":"0.22", "default":256},
{"since":"1.10", "default":512}],
"max_prompt_length":[{"since":"0.22", "default":512},
{"since":"0.27", "default":null},
{"since":"0.29", "gone":true}],
"micro_batch_size":[{"since":"0.9", "default":null},
{"since":"0.22", "gone":true}], "min_p":[{"since":"0.22",
"default":null}], "mini_batch_size":[{"since":"0.9", "default":null},
{"since":"0.22", "gone":true}],
"missing_eos_penalty":[{"since":"0.11", "default":null},
{"since":"0.25", "gone":true}],
"model_init_kwargs":[{"since":"0.22", "default":null}], "non_eos_penalty":[{"since":"0.9", "default":false},
{"since":"0.11", "gone":true}], "normalize_advantage":[{"since":"0.14", "default":false},
{"since":"0.22", "gone":true,
"renamed":"normalize_advantages"}], "normalize_advantages":[{"since":"0.22", "default":false}],
"normalize_reward":[{"since":"0.14", "default":false},
{"since":"0.22", "default":null},
{"since":"0.25", "gone":true}],
"num_completions_to_print":[{"since":"0.22", "default":null}], "num_generations":[{"since":"0.22", "default":2}],
"num_generations_eval":[{"since":"0.26", "default":null}], "num_iterations":[{"since":"0.22", "default":1}],
"num_mini_batches":[{"since":"0.9", "default":1},
{"since":"0.22", "default":null},
{"since":"0.25", "gone":true,
"renamed":"steps_per_generation"}], "num_ppo_epochs":[{"since":"0.9", "default":4},
{"since":"0.22", "default":null},
{"since":"0.25", "gone":true, "renamed":"num_iterations"}], "num_sample_generations":[{"since":"0.9", "default":10},
{"since":"0.22", "default":null},
{"since":"0.25", "gone":true}], "num_total_batches":[{"since":"0.10", "default":null},
{"since":"0.22", "gone":true}], "num_updates":[{"since":"0.9", "default":null},
{"since":"0.10", "gone":true}],
"pad_to_multiple_of":[{"since":"1.0", "default":null},
{"since":"1.16", "default":"auto"}],
"penalty_reward_value":[{"since":"0.9", "default":-1},
{"since":"0.11", "gone":true}], "push_to_hub":[{"since":"0.9",
"default":false}], "ref_model_mixup_alpha":[{"since":"0.22", "default":0.6}], "ref_model_sync_steps":[{"since":"0.22",
"default":512}], "remove_unused_columns":[{"since":"0.9", "default":true},
{"since":"0.22", "default":false}],
"repetition_penalty":[{"since":"0.22", "default":1.0}], "response_length":[{"since":"0.9", "default":53},
{"since":"0.22", "default":null},
{"since":"0.25", "gone":true, "renamed":"max_completion_length"}],
"reward_clip_range":[{"since":"0.14", "default":10.0},
{"since":"0.22", "default":null}],
"reward_model_path":[{"since":"0.9", "default":"EleutherAI/pythia-160m"},
{"since":"0.22", "gone":true}],
"reward_weights":[{"since":"0.22", "default":null}], "rloo_k":[{"since":"0.9", "default":2},
{"since":"0.22",
"default":null},
{"since":"0.25", "gone":true, "renamed":"num_generations"}], "router_aux_loss_coef":[{"since":"1.7",
"default":0.001},
{"since":"1.14", "default":null}], "run_name":[{"since":"0.9", "default":null}],
"sanity_check":[{"since":"0.9", "default":false},
{"since":"0.11", "gone":true}], "sft_model_path":[{"since":"0.9",
"default":"EleutherAI/pythia-160m"},
{"since":"0.22", "gone":true}], "shuffle_dataset":[{"since":"0.22",
"default":true}], "steps_per_generation":[{"since":"0.22", "default":null}], "stop_token":[{"since":"0.9",
"default":null},
{"since":"0.25", "gone":true}], "stop_token_id":[{"since":"0.9", "default":null},
{"since":"0.25",
"gone":true}], "sync_ref_model":[{"since":"0.22", "default":false}], "temperature":[{"since":"0.9", "default":0.7},
{"since":"0.22", "default":1.0}], "token_level_kl":[{"since":"0.14", "default":false},
{"since":"0.22", "default":null},
{"since":"0.25", "gone":true}], "top_k":[{"since":"0.22", "default":null},
{"since":"0.27", "default":0}],
"top_p":[{"since":"0.22", "default":1.0}], "torch_empty_cache_steps":[{"since":"0.10", "default":null}],
"total_episodes":[{"since":"0.9", "default":null},
{"since":"0.25", "gone":true}],
"transformers_continuous_batching_config":[{"since":"1.7", "default":null}], "trust_remote_code":[{"since":"1.7",
"default":false}], "use_liger_kernel":[{"since":"0.11", "default":false}],
"use_transformers_continuous_batching":[{"since":"1.7", "default":false}], "use_transformers_paged":[{"since":"0.22",
"default":false, "renamed":"use_transformers_continuous_batching"}], "use_vllm":[{"since":"0.22", "default":false}],
"vf_coef":[{"since":"0.9", "default":0.1},
{"since":"0.10", "gone":true}], "vllm_enable_sleep_mode":[{"since":"0.24",
"default":false}], "vllm_gpu_memory_utilization":[{"since":"0.22", "default":0.3}], "vllm_group_port":[{"since":"0.27",
"default":51216}], "vllm_guided_decoding_regex":[{"since":"0.22", "default":null},
{"since":"0.28", "gone":true,
"renamed":"vllm_structured_outputs_regex"}], "vllm_max_model_length":[{"since":"0.27", "default":null}],
"vllm_mode":[{"since":"0.22", "default":"server"},
{"since":"1.0", "default":"colocate"}],
"vllm_model_impl":[{"since":"0.22", "default":"vllm"}], "vllm_server_base_url":[{"since":"0.22", "default":null}],
"vllm_server_host":[{"since":"0.22", "default":"0.0.0.0"}], "vllm_server_port":[{"since":"0.22", "default":8000}],
"vllm_server_timeout":[{"since":"0.22", "default":240.0}], "vllm_structured_outputs_regex":[{"since":"0.27",
"default":null}], "vllm_tensor_parallel_size":[{"since":"0.22", "default":1}],
"wandb_log_unique_prompts":[{"since":"0.22", "default":false},
{"since":"0.26", "default":null},
{"since":"0.27",
"gone":true, "renamed":"log_unique_prompts"}], "whiten_rewards":[{"since":"0.9", "default":false},
{"since":"0.22",
"gone":true}], "world_size":[{"since":"0.9", "default":null},
{"since":"0.22", "gone":true}]},
"SFTConfig":{"activation_offloading":[{"since":"0.18", "default":false}], "assistant_only_loss":[{"since":"0.19",
"default":false}], "average_tokens_across_devices":[{"since":"0.12", "default":false},
{"since":"0.19",
"default":true}], "bf16":[{"since":"0.9", "default":false},
{"since":"0.19", "default":null}],
"chars_per_token":[{"since":"0.9", "default":3.6},
{"since":"0.15", "default":null},
{"since":"0.18", "gone":true}],
"chat_template_path":[{"since":"0.19", "default":null}], "completion_only_loss":[{"since":"0.17", "default":null}],
"dataset_batch_size":[{"since":"0.9", "default":1000},
{"since":"0.15", "default":null},
{"since":"0.18", "gone":true}],
"dataset_text_field":[{"since":"0.9", "default":null},
{"since":"0.12", "default":"text"}],
"eos_token":[{"since":"0.17", "default":null}], "gradient_checkpointing":[{"since":"0.9", "default":false},
{"since":"0.22", "default":true}], "learning_rate":[{"since":"0.9", "default":5e-05},
{"since":"0.12",
"default":2e-05}], "logging_steps":[{"since":"0.9", "default":500},
{"since":"0.19", "default":10}],
"loss_type":[{"since":"0.23", "default":"nll"},
{"since":"1.6", "default":null},
{"since":"1.15", "default":"nll"}],
"lr_scheduler_kwargs":[{"since":"0.9", "default":{}},
{"since":"0.25", "default":null}], "max_length":[{"since":"0.16",
"default":1024}], "max_seq_length":[{"since":"0.9", "default":null},
{"since":"0.15", "default":1024},
{"since":"0.16",
"default":null},
{"since":"0.20", "gone":true, "renamed":"max_length"}], "neftune_noise_alpha":[{"since":"0.9",
"default":null}], "num_of_sequences":[{"since":"0.9", "default":1024},
{"since":"0.15", "default":null},
{"since":"0.18", "gone":true}], "packing_strategy":[{"since":"0.19", "default":"ffd"},
{"since":"0.20",
"default":"bfd"}], "pad_to_multiple_of":[{"since":"0.18", "default":null},
{"since":"1.16", "default":"auto"}],
"pad_token":[{"since":"0.16", "default":null}], "padding_free":[{"since":"0.16", "default":false}],
"router_aux_loss_coef":[{"since":"1.7", "default":0.001},
{"since":"1.14", "default":null}],
"shuffle_dataset":[{"since":"0.26", "default":false}], "torch_empty_cache_steps":[{"since":"0.10", "default":null}],
"truncation_mode":[{"since":"1.0", "default":"keep_start"}], "trust_remote_code":[{"since":"1.7", "default":false}],
"use_liger":[{"since":"0.10", "default":false},
{"since":"0.16", "default":null},
{"since":"0.18", "gone":true,
"renamed":"use_liger_kernel"}], "use_liger_kernel":[{"since":"0.11", "default":false}]},
"DPOConfig":{"activation_offloading":[{"since":"0.29", "default":false}], "base_model_attribute_name":[{"since":"0.19",
"default":"model"},
{"since":"0.28", "default":null},
{"since":"0.29", "gone":true}], "bf16":[{"since":"0.9",
"default":false},
{"since":"0.19", "default":null}], "discopop_tau":[{"since":"0.13", "default":0.05}],
"f_alpha_divergence_coef":[{"since":"0.9", "default":1.0},
{"since":"0.29", "default":0.5}],
"f_divergence_type":[{"since":"0.9", "default":{"expr":"FDivergenceType.REVERSE_KL"}},
{"since":"0.28",
"default":"reverse_kl"}], "force_use_ref_model":[{"since":"0.9", "default":false},
{"since":"0.28", "default":null},
{"since":"0.29", "gone":true}], "generate_during_eval":[{"since":"0.9", "default":false},
{"since":"0.28",
"default":null},
{"since":"0.29", "gone":true}], "gradient_checkpointing":[{"since":"0.9", "default":false},
{"since":"0.22", "default":true}], "is_encoder_decoder":[{"since":"0.9", "default":null},
{"since":"0.15",
"gone":true}], "label_pad_token_id":[{"since":"0.9", "default":-100},
{"since":"0.28", "default":null},
{"since":"0.29",
"gone":true}], "label_smoothing":[{"since":"0.9", "default":0},
{"since":"0.11", "default":0.0}],
"ld_alpha":[{"since":"0.18", "default":null}], "learning_rate":[{"since":"0.9", "default":5e-05},
{"since":"0.12",
"default":1e-06}], "logging_steps":[{"since":"0.9", "default":500},
{"since":"0.19", "default":10}],
"loss_type":[{"since":"0.9", "default":"sigmoid"},
{"since":"0.20", "default":["sigmoid"]}],
"loss_weights":[{"since":"0.20", "default":null}], "lr_scheduler_kwargs":[{"since":"0.9", "default":{}},
{"since":"0.25", "default":null}], "max_completion_length":[{"since":"0.11", "default":null},
{"since":"0.28",
"default":-1},
{"since":"0.29", "gone":true}], "max_length":[{"since":"0.9", "default":null},
{"since":"0.14",
"default":1024}], "max_prompt_length":[{"since":"0.9", "default":null},
{"since":"0.14", "default":512},
{"since":"0.28", "default":-1},
{"since":"0.29", "gone":true}], "max_target_length":[{"since":"0.9", "default":null},
{"since":"0.14", "gone":true, "renamed":"max_completion_length"}], "model_adapter_name":[{"since":"0.9",
"default":null},
{"since":"0.29", "gone":true}], "pad_to_multiple_of":[{"since":"0.29", "default":null},
{"since":"1.16", "default":"auto"}], "pad_token":[{"since":"0.24", "default":null}], "padding_free":[{"since":"0.14",
"default":false}], "padding_value":[{"since":"0.9", "default":null},
{"since":"0.26", "gone":true}],
"precompute_ref_batch_size":[{"since":"0.13", "default":null}], "ref_adapter_name":[{"since":"0.9", "default":null},
{"since":"0.29", "gone":true}], "ref_model_init_kwargs":[{"since":"0.9", "default":null},
{"since":"0.29",
"gone":true}], "ref_model_mixup_alpha":[{"since":"0.9", "default":0.9},
{"since":"0.16", "default":0.6}],
"ref_model_sync_steps":[{"since":"0.9", "default":64},
{"since":"0.16", "default":512}],
"reference_free":[{"since":"0.9", "default":false},
{"since":"0.28", "default":null},
{"since":"0.29", "gone":true}],
"router_aux_loss_coef":[{"since":"1.8", "default":0.001},
{"since":"1.14", "default":null}],
"rpo_alpha":[{"since":"0.9", "default":null},
{"since":"0.29", "gone":true}], "tools":[{"since":"0.14", "default":null},
{"since":"0.29", "gone":true}], "torch_empty_cache_steps":[{"since":"0.10", "default":null}],
"truncation_mode":[{"since":"0.9", "default":"keep_end"},
{"since":"0.29", "default":"keep_start"}],
"trust_remote_code":[{"since":"1.7", "default":false}], "use_liger_kernel":[{"since":"0.11", "default":false}],
"use_liger_loss":[{"since":"0.19", "default":false},
{"since":"0.25", "default":null},
{"since":"0.28", "gone":true,
"renamed":"use_liger_kernel"}], "use_logits_to_keep":[{"since":"0.15", "default":false},
{"since":"0.28",
"default":null},
{"since":"0.29", "gone":true}], "use_num_logits_to_keep":[{"since":"0.13", "default":false},
{"since":"0.16", "default":null},
{"since":"0.17", "gone":true}], "use_weighting":[{"since":"0.12", "default":false}]},
"RewardConfig":{"activation_offloading":[{"since":"0.24", "default":false}],
"average_tokens_across_devices":[{"since":"0.12", "default":false},
{"since":"0.19", "default":true}],
"bf16":[{"since":"0.9", "default":false},
{"since":"0.19", "default":null}],
"center_rewards_coefficient":[{"since":"0.10", "default":null}], "chat_template_path":[{"since":"0.24",
"default":null}], "dataset_num_proc":[{"since":"0.10", "default":null}], "disable_dropout":[{"since":"0.14",
"default":true}], "eos_token":[{"since":"0.24", "default":null}], "gradient_checkpointing":[{"since":"0.9",
"default":false},
{"since":"0.22", "default":true}], "learning_rate":[{"since":"0.9", "default":5e-05},
{"since":"0.24",
"default":0.0001}], "logging_steps":[{"since":"0.9", "default":500},
{"since":"0.19", "default":10}],
"lr_scheduler_kwargs":[{"since":"0.9", "default":{}},
{"since":"0.25", "default":null}], "max_length":[{"since":"0.9",
"default":null},
{"since":"0.14", "default":1024}], "model_init_kwargs":[{"since":"0.24", "default":null}],
"pad_to_multiple_of":[{"since":"0.24", "default":null},
{"since":"1.16", "default":"auto"}],
"pad_token":[{"since":"0.24", "default":null}], "remove_unused_columns":[{"since":"0.9", "default":true},
{"since":"0.12", "default":false},
{"since":"0.24", "default":true}], "torch_empty_cache_steps":[{"since":"0.10",
"default":null}], "trust_remote_code":[{"since":"1.7", "default":false}], "use_liger_kernel":[{"since":"0.11",
"default":false}]}, "GKDConfig":{"activation_offloading":[{"since":"0.18", "default":false}],
"assistant_only_loss":[{"since":"0.19", "default":false}], "average_tokens_across_devices":[{"since":"0.12",
"default":false},
{"since":"0.19", "default":true}], "bf16":[{"since":"0.11", "default":false},
{"since":"0.19",
"default":null}], "chars_per_token":[{"since":"0.11", "default":3.6},
{"since":"0.15", "default":null},
{"since":"0.18",
"gone":true}], "chat_template_path":[{"since":"0.19", "default":null}], "completion_only_loss":[{"since":"0.17",
"default":null}], "dataset_batch_size":[{"since":"0.11", "default":1000},
{"since":"0.15", "default":null},
{"since":"0.18", "gone":true}], "dataset_text_field":[{"since":"0.11", "default":null},
{"since":"0.12",
"default":"text"}], "eos_token":[{"since":"0.17", "default":null}], "gradient_checkpointing":[{"since":"0.11",
"default":false},
{"since":"0.22", "default":true}], "learning_rate":[{"since":"0.11", "default":5e-05},
{"since":"0.12", "default":2e-05}], "logging_steps":[{"since":"0.11", "default":500},
{"since":"0.19", "default":10}],
"loss_type":[{"since":"0.23", "default":"nll"},
{"since":"1.6", "default":null},
{"since":"1.15", "default":"nll"}],
"lr_scheduler_kwargs":[{"since":"0.11", "default":{}},
{"since":"0.25", "default":null}], "max_length":[{"since":"0.16",
"default":1024}], "max_seq_length":[{"since":"0.11", "default":null},
{"since":"0.15", "default":1024},
{"since":"0.16",
"default":null},
{"since":"0.20", "gone":true, "renamed":"max_length"}], "neftune_noise_alpha":[{"since":"0.11",
"default":null}], "num_of_sequences":[{"since":"0.11", "default":1024},
{"since":"0.15", "default":null},
{"since":"0.18", "gone":true}], "packing_strategy":[{"since":"0.19", "default":"ffd"},
{"since":"0.20",
"default":"bfd"}], "pad_to_multiple_of":[{"since":"0.18", "default":null},
{"since":"1.16", "default":"auto"}],
"pad_token":[{"since":"0.16", "default":null}], "padding_free":[{"since":"0.16", "default":false}],
"router_aux_loss_coef":[{"since":"1.7", "default":0.001},
{"since":"1.14", "default":null}], "seq_kd":[{"since":"0.12",
"default":false}], "shuffle_dataset":[{"since":"0.26", "default":false}], "torch_empty_cache_steps":[{"since":"0.11",
"default":null}], "truncation_mode":[{"since":"1.0", "default":"keep_start"}], "trust_remote_code":[{"since":"1.7",
"default":false}], "use_liger":[{"since":"0.11", "default":false},
{"since":"0.16", "default":null},
{"since":"0.18",
"gone":true, "renamed":"use_liger_kernel"}], "use_liger_kernel":[{"since":"0.11", "default":false}]},
"DistillationConfig":{"bf16":[{"since":"1.1", "default":null}], "cache_implementation":[{"since":"1.10",
"default":null}], "chat_template_kwargs":[{"since":"1.10", "default":null}], "disable_dropout":[{"since":"1.1",
"default":true},
{"since":"1.10", "default":false}], "ds3_gather_for_generation":[{"since":"1.10", "default":true}],
"generation_batch_size":[{"since":"1.1", "default":null},
{"since":"1.10", "gone":true}],
"generation_kwargs":[{"since":"1.10", "default":null}], "gradient_checkpointing":[{"since":"1.1", "default":true}],
"learning_rate":[{"since":"1.1", "default":1e-06}], "lmbda":[{"since":"1.1", "default":1.0},
{"since":"1.9",
"gone":true}], "log_completions_steps":[{"since":"1.1", "default":100},
{"since":"1.10", "gone":true}],
"log_unique_prompts":[{"since":"1.10", "default":false}], "logging_steps":[{"since":"1.1", "default":10}],
"loss_add_tail":[{"since":"1.1", "default":true},
{"since":"1.9", "gone":true}], "loss_top_k":[{"since":"1.1",
"default":1},
{"since":"1.9", "gone":true}], "lr_scheduler_kwargs":[{"since":"1.1", "default":null}],
"max_length":[{"since":"1.1", "default":1024},
{"since":"1.10", "gone":true}], "max_prompt_length":[{"since":"1.1",
"default":null},
{"since":"1.10", "gone":true}], "max_tool_calling_iterations":[{"since":"1.11", "default":null}],
"min_p":[{"since":"1.10", "default":null}], "num_generations":[{"since":"1.1", "default":1},
{"since":"1.10",
"gone":true}], "pad_to_multiple_of":[{"since":"1.10", "default":null},
{"since":"1.16", "default":"auto"}],
"remove_unused_columns":[{"since":"1.1", "default":true},
{"since":"1.10", "default":false}],
"repetition_penalty":[{"since":"1.10", "default":1.0}], "reverse_kl_top_1_mode":[{"since":"1.1", "default":"sampled"},
{"since":"1.9", "gone":true}], "shuffle_dataset":[{"since":"1.10", "default":true}],
"teacher_model_server_url":[{"since":"1.1", "default":null},
{"since":"1.9", "gone":true}], "top_p":[{"since":"1.1",
"default":0.95},
{"since":"1.10", "default":1.0}], "torch_empty_cache_steps":[{"since":"1.1", "default":null}],
"trust_remote_code":[{"since":"1.7", "default":false}], "use_liger_kernel":[{"since":"1.1", "default":false}],
"use_teacher_server":[{"since":"1.1", "default":false},
{"since":"1.9", "gone":true}],
"vllm_server_port":[{"since":"1.1", "default":8001},
{"since":"1.10", "default":8000}],
"vllm_sync_frequency":[{"since":"1.1", "default":1},
{"since":"1.10", "gone":true}], "wandb_entity":[{"since":"1.1",
"default":null},
{"since":"1.7", "gone":true}], "wandb_project":[{"since":"1.1", "default":null},
{"since":"1.7",
"gone":true}], "wandb_run_group":[{"since":"1.1", "default":null},
{"since":"1.7", "gone":true}]},
"OnlineDPOConfig":{"beta":[{"since":"0.10", "default":0.1},
{"since":"0.11", "default":[0.1]}], "bf16":[{"since":"0.10",
"default":false},
{"since":"0.19", "default":null}], "cache_implementation":[{"since":"0.23", "default":null}],
"dataset_num_proc":[{"since":"0.10", "default":null},
{"since":"0.25", "gone":true}],
"disable_dropout":[{"since":"0.11", "default":true}], "ds3_gather_for_generation":[{"since":"0.14", "default":true}],
"generation_kwargs":[{"since":"0.23", "default":null}], "gpu_memory_utilization":[{"since":"0.17", "default":0.55},
{"since":"0.23", "default":null},
{"since":"0.25", "gone":true}], "gradient_checkpointing":[{"since":"0.10",
"default":false},
{"since":"0.22", "default":true}], "judge":[{"since":"0.12", "default":null},
{"since":"1.1",
"gone":true}], "learning_rate":[{"since":"0.10", "default":5e-05},
{"since":"0.11", "default":5e-07}],
"logging_steps":[{"since":"0.10", "default":500},
{"since":"0.19", "default":10}],
"lr_scheduler_kwargs":[{"since":"0.10", "default":{}},
{"since":"0.25", "default":null}], "max_length":[{"since":"0.14",
"default":512}], "max_new_tokens":[{"since":"0.10", "default":53},
{"since":"0.11", "default":64,
"renamed":"max_completion_length"}], "min_p":[{"since":"0.23", "default":null}], "model_init_kwargs":[{"since":"0.20",
"default":null}], "remove_unused_columns":[{"since":"0.10", "default":true},
{"since":"1.0", "default":false}],
"repetition_penalty":[{"since":"0.23", "default":1.0}], "reward_weights":[{"since":"0.23", "default":null}],
"top_k":[{"since":"0.23", "default":null},
{"since":"0.27", "default":0}], "top_p":[{"since":"0.23", "default":1.0}],
"torch_empty_cache_steps":[{"since":"0.10", "default":null}], "trust_remote_code":[{"since":"1.7", "default":false}],
"use_liger_kernel":[{"since":"0.11", "default":false}], "use_transformers_paged":[{"since":"0.23", "default":false},
{"since":"1.2", "gone":true, "renamed":"use_transformers_continuous_batching"}], "use_vllm":[{"since":"0.14",
"default":false}], "vllm_enable_sleep_mode":[{"since":"0.28", "default":false}],
"vllm_gpu_memory_utilization":[{"since":"0.23", "default":0.55}], "vllm_group_port":[{"since":"0.27", "default":51216}],
"vllm_guided_decoding_regex":[{"since":"0.23", "default":null},
{"since":"0.27", "gone":true,
"renamed":"vllm_structured_outputs_regex"}], "vllm_mode":[{"since":"0.23", "default":"server"},
{"since":"1.0",
"default":"colocate"}], "vllm_model_impl":[{"since":"0.21", "default":"vllm"}], "vllm_server_base_url":[{"since":"0.23",
"default":null}], "vllm_server_host":[{"since":"0.23", "default":"0.0.0.0"}], "vllm_server_port":[{"since":"0.23",
"default":8000}], "vllm_server_timeout":[{"since":"0.23", "default":240.0}],
"vllm_structured_outputs_regex":[{"since":"0.27", "default":null}], "vllm_tensor_parallel_size":[{"since":"0.23",
"default":1}]}, "PPOConfig":{"accelerator_kwargs":[{"since":"0.9", "default":{}},
{"since":"0.12", "gone":true}],
"adap_kl_ctrl":[{"since":"0.9", "default":true},
{"since":"0.12", "gone":true}], "backward_batch_size":[{"since":"0.9",
"default":null},
{"since":"0.12", "gone":true}], "batch_size":[{"since":"0.9", "default":128},
{"since":"0.12",
"default":null}], "bf16":[{"since":"0.12", "default":false},
{"since":"0.19", "default":null}],
"compare_steps":[{"since":"0.9", "default":1},
{"since":"0.12", "gone":true}], "dataset_num_proc":[{"since":"0.10",
"default":null}], "ds3_gather_for_generation":[{"since":"0.14", "default":true}], "early_stopping":[{"since":"0.9",
"default":false},
{"since":"0.12", "gone":true}], "exp_name":[{"since":"0.9",
"default":{"expr":"os.path.basename(sys.argv[0])[:-len('.py')]"}},
{"since":"0.12",
"default":{"expr":"os.path.basename(__file__)[:-len('.py')]"}},
{"since":"0.14",
"default":{"expr":"os.path.basename(__file__)[:-3]"}},
{"since":"0.28", "gone":true}],
"forward_batch_size":[{"since":"0.9", "default":null},
{"since":"0.12", "gone":true}], "gamma":[{"since":"0.9",
"default":1},
{"since":"0.11", "default":1.0}], "global_backward_batch_size":[{"since":"0.9", "default":null},
{"since":"0.12", "gone":true}], "global_batch_size":[{"since":"0.9", "default":null},
{"since":"0.12", "gone":true}],
"gradient_accumulation_steps":[{"since":"0.9", "default":1}], "gradient_checkpointing":[{"since":"0.9",
"default":false},
{"since":"0.22", "default":true}], "horizon":[{"since":"0.9", "default":10000},
{"since":"0.11",
"default":10000.0},
{"since":"0.12", "gone":true}], "init_kl_coef":[{"since":"0.9", "default":0.2},
{"since":"0.12",
"gone":true}], "is_encoder_decoder":[{"since":"0.9", "default":null},
{"since":"0.12", "gone":true}],
"is_peft_model":[{"since":"0.9", "default":null},
{"since":"0.12", "gone":true}], "kl_coef":[{"since":"0.12",
"default":0.05}], "kl_estimator":[{"since":"0.17", "default":"k1"}], "kl_penalty":[{"since":"0.9", "default":"kl"},
{"since":"0.12", "gone":true}], "learning_rate":[{"since":"0.9", "default":1.41e-05},
{"since":"0.12", "default":5e-05},
{"since":"0.29", "default":3e-06}], "local_batch_size":[{"since":"0.12", "default":null}],
"local_mini_batch_size":[{"since":"0.12", "default":null}], "local_rollout_forward_batch_size":[{"since":"0.12",
"default":64}], "log_with":[{"since":"0.9", "default":null},
{"since":"0.12", "gone":true}],
"logging_steps":[{"since":"0.12", "default":500},
{"since":"0.19", "default":10}],
"lr_scheduler_kwargs":[{"since":"0.12", "default":{}},
{"since":"0.25", "default":null}],
"max_grad_norm":[{"since":"0.9", "default":null},
{"since":"0.12", "default":1.0}], "micro_batch_size":[{"since":"0.12",
"default":null}], "mini_batch_size":[{"since":"0.9", "default":128},
{"since":"0.12", "default":null}],
"missing_eos_penalty":[{"since":"0.12", "default":null}], "model_adapter_name":[{"since":"0.13", "default":null}],
"model_name":[{"since":"0.9", "default":"gpt2"},
{"since":"0.12", "gone":true}], "num_mini_batches":[{"since":"0.12",
"default":1}], "num_ppo_epochs":[{"since":"0.12", "default":4}], "num_sample_generations":[{"since":"0.12",
"default":10}], "num_total_batches":[{"since":"0.12", "default":null}], "optimize_cuda_cache":[{"since":"0.9",
"default":null},
{"since":"0.12", "gone":true}], "optimize_device_cache":[{"since":"0.9", "default":false},
{"since":"0.12", "gone":true}], "ppo_epochs":[{"since":"0.9", "default":4},
{"since":"0.12", "gone":true}],
"project_kwargs":[{"since":"0.9", "default":{}},
{"since":"0.12", "gone":true}], "push_to_hub":[{"since":"0.12",
"default":false}], "push_to_hub_if_best_kwargs":[{"since":"0.9", "default":{}},
{"since":"0.12", "gone":true}],
"query_dataset":[{"since":"0.9", "default":"imdb"},
{"since":"0.11", "default":"stanfordnlp/imdb"},
{"since":"0.12",
"gone":true}], "ratio_threshold":[{"since":"0.9", "default":10.0},
{"since":"0.12", "gone":true}],
"ref_adapter_name":[{"since":"0.13", "default":null}], "remove_unused_columns":[{"since":"0.9", "default":true}],
"response_length":[{"since":"0.12", "default":53}], "reward_model":[{"since":"0.9",
"default":"sentiment-analysis:lvwerra/distilbert-imdb"},
{"since":"0.12", "gone":true}],
"reward_model_path":[{"since":"0.12", "default":"EleutherAI/pythia-160m"}], "run_name":[{"since":"0.12",
"default":null}], "score_clip":[{"since":"0.9", "default":null},
{"since":"0.12", "gone":true}], "seed":[{"since":"0.9",
"default":0},
{"since":"0.12", "default":42}], "sft_model_path":[{"since":"0.12", "default":"EleutherAI/pythia-160m"}],
"steps":[{"since":"0.9", "default":20000},
{"since":"0.12", "gone":true}], "stop_token":[{"since":"0.12",
"default":null}], "stop_token_id":[{"since":"0.12", "default":null}], "target":[{"since":"0.9", "default":6},
{"since":"0.11", "default":6.0},
{"since":"0.12", "gone":true}], "target_kl":[{"since":"0.9", "default":1},
{"since":"0.11", "default":1.0},
{"since":"0.12", "gone":true}], "task_name":[{"since":"0.9", "default":null},
{"since":"0.12", "gone":true}], "temperature":[{"since":"0.12", "default":0.7}],
"torch_empty_cache_steps":[{"since":"0.12", "default":null}], "total_episodes":[{"since":"0.12", "default":null}],
"tracker_kwargs":[{"since":"0.9", "default":{}},
{"since":"0.12", "gone":true}], "tracker_project_name":[{"since":"0.9",
"default":"trl"},
{"since":"0.12", "gone":true}], "use_liger_kernel":[{"since":"0.12", "default":false}],
"use_score_norm":[{"since":"0.9", "default":false},
{"since":"0.12", "gone":true}], "use_score_scaling":[{"since":"0.9",
"default":false},
{"since":"0.12", "gone":true}]}, "PPOv2Config":{"base_model":[{"since":"0.9",
"default":"EleutherAI/pythia-160m"},
{"since":"0.10", "gone":true}], "dataset_num_proc":[{"since":"0.10",
"default":null}], "gamma":[{"since":"0.9", "default":1},
{"since":"0.11", "default":1.0}],
"missing_eos_penalty":[{"since":"0.11", "default":null}], "non_eos_penalty":[{"since":"0.9", "default":false},
{"since":"0.11", "gone":true}], "num_total_batches":[{"since":"0.10", "default":null}], "num_updates":[{"since":"0.9",
"default":null},
{"since":"0.10", "gone":true}], "penalty_reward_value":[{"since":"0.9", "default":-1},
{"since":"0.11",
"gone":true}], "push_to_hub":[{"since":"0.9", "default":false}], "run_name":[{"since":"0.9", "default":null}],
"sanity_check":[{"since":"0.9", "default":false},
{"since":"0.11", "gone":true}]},
"KTOConfig":{"activation_offloading":[{"since":"1.6", "default":false}], "base_model_attribute_name":[{"since":"0.17",
"default":"model"},
{"since":"0.28", "gone":true}], "bf16":[{"since":"0.9", "default":false},
{"since":"0.19",
"default":null}], "disable_dropout":[{"since":"0.12", "default":true}], "generate_during_eval":[{"since":"0.9",
"default":false},
{"since":"1.2", "gone":true}], "gradient_checkpointing":[{"since":"0.9", "default":false},
{"since":"0.22", "default":true}], "is_encoder_decoder":[{"since":"0.9", "default":null},
{"since":"0.27",
"gone":true}], "label_pad_token_id":[{"since":"0.9", "default":-100},
{"since":"0.28", "gone":true}],
"learning_rate":[{"since":"0.9", "default":5e-05},
{"since":"0.11", "default":5e-07},
{"since":"0.12",
"default":1e-06}], "logging_steps":[{"since":"0.9", "default":500},
{"since":"0.19", "default":10}],
"loss_type":[{"since":"0.9", "default":"kto"},
{"since":"0.10", "gone":true},
{"since":"0.11", "default":"kto"}],
"lr_scheduler_kwargs":[{"since":"0.9", "default":{}},
{"since":"0.25", "default":null}],
"max_completion_length":[{"since":"0.9", "default":null},
{"since":"0.27", "gone":true}],
"max_density_ratio":[{"since":"0.9", "default":10.0},
{"since":"0.10", "gone":true}], "max_length":[{"since":"0.9",
"default":null},
{"since":"0.14", "default":1024}], "max_prompt_length":[{"since":"0.9", "default":null},
{"since":"0.14", "default":512},
{"since":"0.27", "gone":true}], "min_density_ratio":[{"since":"0.9", "default":0.5},
{"since":"0.10", "gone":true}], "pad_to_multiple_of":[{"since":"1.7", "default":null},
{"since":"1.16",
"default":"auto"}], "padding_value":[{"since":"0.9", "default":null},
{"since":"0.28", "gone":true}],
"precompute_ref_batch_size":[{"since":"1.2", "default":null}], "prompt_sample_size":[{"since":"0.9", "default":1024},
{"since":"0.10", "gone":true}], "ref_model_init_kwargs":[{"since":"0.9", "default":null},
{"since":"0.28",
"gone":true}], "ref_model_mixup_alpha":[{"since":"1.7", "default":0.6}], "ref_model_sync_steps":[{"since":"1.7",
"default":512}], "router_aux_loss_coef":[{"since":"1.8", "default":0.001},
{"since":"1.14", "default":null}],
"sync_ref_model":[{"since":"1.7", "default":false}], "torch_empty_cache_steps":[{"since":"0.10", "default":null}],
"train_sampling_strategy":[{"since":"0.29", "default":"random"},
{"since":"1.6", "default":"sequential"}],
"truncation_mode":[{"since":"0.9", "default":"keep_end"},
{"since":"0.27", "gone":true}],
"trust_remote_code":[{"since":"1.7", "default":false}], "use_liger_kernel":[{"since":"0.11", "default":false}],
"use_liger_loss":[{"since":"0.17", "default":false},
{"since":"0.25", "default":null},
{"since":"0.28", "gone":true,
"renamed":"use_liger_kernel"}]}, "ORPOConfig":{"bf16":[{"since":"0.9", "default":false},
{"since":"0.19",
"default":null}], "gradient_checkpointing":[{"since":"0.9", "default":false},
{"since":"0.22", "default":true}],
"label_pad_token_id":[{"since":"0.9", "default":-100},
{"since":"0.28", "gone":true}], "learning_rate":[{"since":"0.9",
"default":5e-05},
{"since":"0.12", "default":1e-06}], "logging_steps":[{"since":"0.9", "default":500},
{"since":"0.19",
"default":10}], "lr_scheduler_kwargs":[{"since":"0.9", "default":{}},
{"since":"0.25", "default":null}],
"max_length":[{"since":"0.9", "default":null},
{"since":"0.14", "default":1024}], "max_prompt_length":[{"since":"0.9",
"default":null},
{"since":"0.14", "default":512},
{"since":"0.28", "gone":true}],
"torch_empty_cache_steps":[{"since":"0.10", "default":null}], "truncation_mode":[{"since":"0.9", "default":"keep_end"},
{"since":"1.0", "gone":true}], "trust_remote_code":[{"since":"1.7", "default":false}],
"use_liger_kernel":[{"since":"0.11", "default":false}]}, "CPOConfig":{"alpha":[{"since":"0.22", "default":0.0}],
"bf16":[{"since":"0.9", "default":false},
{"since":"0.19", "default":null}], "gradient_checkpointing":[{"since":"0.9",
"default":false},
{"since":"0.22", "default":true}], "label_pad_token_id":[{"since":"0.9", "default":-100},
{"since":"0.28", "gone":true}], "label_smoothing":[{"since":"0.9", "default":0},
{"since":"0.11", "default":0.0}],
"learning_rate":[{"since":"0.9", "default":5e-05},
{"since":"0.12", "default":1e-06}], "logging_steps":[{"since":"0.9",
"default":500},
{"since":"0.19", "default":10}], "lr_scheduler_kwargs":[{"since":"0.9", "default":{}},
{"since":"0.25",
"default":null}], "max_length":[{"since":"0.9", "default":null},
{"since":"0.14", "default":1024}],
"max_prompt_length":[{"since":"0.9", "default":null},
{"since":"0.14", "default":512},
{"since":"0.28", "gone":true}],
"max_target_length":[{"since":"0.9", "default":null},
{"since":"0.11", "gone":true, "renamed":"max_completion_length"}],
"padding_value":[{"since":"0.9", "default":null},
{"since":"0.28", "gone":true}],
"torch_empty_cache_steps":[{"since":"0.10", "default":null}], "truncation_mode":[{"since":"0.9", "default":"keep_end"},
{"since":"1.0", "gone":true}], "trust_remote_code":[{"since":"1.7", "default":false}],
"use_liger_kernel":[{"since":"0.11", "default":false}]}, "ModelConfig":{"bnb_4bit_quant_storage":[{"since":"0.26",
"default":null}], "dtype":[{"since":"0.23", "default":null},
{"since":"0.27", "default":"float32"}],
"lora_target_parameters":[{"since":"0.21", "default":null}], "torch_dtype":[{"since":"0.9", "default":null},
{"since":"0.27", "gone":true, "renamed":"dtype"}], "trust_remote_code":[{"since":"0.9", "default":false},
{"since":"1.7", "gone":true}], "use_dora":[{"since":"0.16", "default":false}], "use_rslora":[{"since":"0.10",
"default":false}]}, "ScriptArguments":{"config":[{"since":"0.12", "default":null},
{"since":"0.13", "gone":true}],
"dataset_config":[{"since":"0.13", "default":null}], "dataset_name":[{"since":"0.12", "default":"<required>"},
{"since":"0.18", "default":null}], "dataset_streaming":[{"since":"0.19", "default":false}],
"gradient_checkpointing_use_reentrant":[{"since":"0.12", "default":false},
{"since":"0.27", "gone":true}]}}}
"""
VERL_CHANGES = """\
{"versions":["0.2", "0.3", "0.4", "0.5", "0.6", "0.7", "0.8", "0.9"],
"keys":{"actor_rollout_ref.actor.calculate_entropy":[{"since":"0.7", "default":false}],
"actor_rollout_ref.actor.calculate_sum_pi_squared":[{"since":"0.7", "default":false}],
"actor_rollout_ref.actor.checkpoint.async_save":[{"since":"0.6", "default":false}],
"actor_rollout_ref.actor.checkpoint.contents":[{"since":"0.3", "default":["model", "hf_model", "optimizer", "extra"]},
{"since":"0.4", "gone":true, "renamed":"actor_rollout_ref.actor.checkpoint.save_contents"}],
"actor_rollout_ref.actor.checkpoint.load_contents":[{"since":"0.4",
"default":"${actor_rollout_ref.actor.checkpoint.save_contents}"}],
"actor_rollout_ref.actor.checkpoint.mbridge_config":[{"since":"0.7", "default":{}},
{"since":"0.9", "gone":true}],
"actor_rollout_ref.actor.checkpoint.save_contents":[{"since":"0.4", "default":["model", "optimizer", "extra"]}],
"actor_rollout_ref.actor.checkpoint.strict":[{"since":"0.8", "default":true}],
"actor_rollout_ref.actor.clip_ratio_c":[{"since":"0.4", "default":3.0}],
"actor_rollout_ref.actor.clip_ratio_high":[{"since":"0.4", "default":0.2}],
"actor_rollout_ref.actor.clip_ratio_low":[{"since":"0.4", "default":0.2}],
"actor_rollout_ref.actor.data_loader_seed":[{"since":"0.7", "default":42}],
"actor_rollout_ref.actor.entropy_checkpointing":[{"since":"0.4", "default":false}],
"actor_rollout_ref.actor.entropy_coeff":[{"since":"0.2", "default":0.001},
{"since":"0.4", "default":0}],
"actor_rollout_ref.actor.entropy_from_logits_chunk_size":[{"since":"0.9", "default":2048}],
"actor_rollout_ref.actor.entropy_from_logits_with_chunking":[{"since":"0.4", "default":false}],
"actor_rollout_ref.actor.freeze_vision_tower":[{"since":"0.6", "default":false}],
"actor_rollout_ref.actor.fsdp_config.dtype":[{"since":"0.6", "default":"bfloat16"}],
"actor_rollout_ref.actor.fsdp_config.entropy_checkpointing":[{"since":"0.6", "default":false},
{"since":"0.9",
"default":"${actor_rollout_ref.actor.entropy_checkpointing}"}],
"actor_rollout_ref.actor.fsdp_config.entropy_from_logits_chunk_size":[{"since":"0.9",
"default":"${actor_rollout_ref.actor.entropy_from_logits_chunk_size}"}],
"actor_rollout_ref.actor.fsdp_config.entropy_from_logits_with_chunking":[{"since":"0.6", "default":false},
{"since":"0.9", "default":"${actor_rollout_ref.actor.entropy_from_logits_with_chunking}"}],
"actor_rollout_ref.actor.fsdp_config.forward_only":[{"since":"0.6", "default":false}],
"actor_rollout_ref.actor.fsdp_config.forward_prefetch":[{"since":"0.4", "default":false}],
"actor_rollout_ref.actor.fsdp_config.full_determinism":[{"since":"0.7", "default":false}],
"actor_rollout_ref.actor.fsdp_config.grad_offload":[{"since":"0.2", "default":false},
{"since":"0.3", "gone":true}],
"actor_rollout_ref.actor.fsdp_config.model_dtype":[{"since":"0.6", "default":"fp32"}],
"actor_rollout_ref.actor.fsdp_config.offload_policy":[{"since":"0.4", "default":false}],
"actor_rollout_ref.actor.fsdp_config.pad_to_length":[{"since":"0.9",
"default":"${actor_rollout_ref.actor.pad_to_length}"}],
"actor_rollout_ref.actor.fsdp_config.pad_to_length_bucket":[{"since":"0.9", "default":1024}],
"actor_rollout_ref.actor.fsdp_config.qat.activation_observer":[{"since":"0.7", "default":"static_minmax"}],
"actor_rollout_ref.actor.fsdp_config.qat.enable":[{"since":"0.7", "default":false}],
"actor_rollout_ref.actor.fsdp_config.qat.group_size":[{"since":"0.7", "default":16}],
"actor_rollout_ref.actor.fsdp_config.qat.ignore_patterns":[{"since":"0.7", "default":["lm_head", "embed_tokens",
"re:.*mlp.gate$"]}], "actor_rollout_ref.actor.fsdp_config.qat.mode":[{"since":"0.7", "default":"w4a16"}],
"actor_rollout_ref.actor.fsdp_config.qat.quantization_config_path":[{"since":"0.7", "default":null}],
"actor_rollout_ref.actor.fsdp_config.reshard_after_forward":[{"since":"0.4", "default":true}],
"actor_rollout_ref.actor.fsdp_config.seed":[{"since":"0.7", "default":42}],
"actor_rollout_ref.actor.fsdp_config.strategy":[{"since":"0.6", "default":"fsdp"}],
"actor_rollout_ref.actor.fsdp_config.turbo_config.distributed.expert_fully_shard_parallel_size":[{"since":"0.9",
"default":1}], "actor_rollout_ref.actor.fsdp_config.turbo_config.distributed.expert_parallel_size":[{"since":"0.9",
"default":1}],
"actor_rollout_ref.actor.fsdp_config.turbo_config.distributed.fsdp_plan.fsdp_implementation":[{"since":"0.9",
"default":"native"}],
"actor_rollout_ref.actor.fsdp_config.turbo_config.distributed.fsdp_plan.num_to_backward_prefetch":[{"since":"0.9",
"default":1}],
"actor_rollout_ref.actor.fsdp_config.turbo_config.distributed.fsdp_plan.num_to_forward_prefetch":[{"since":"0.9",
"default":1}], "actor_rollout_ref.actor.fsdp_config.turbo_config.distributed.fsdp_plan.output_dtype":[{"since":"0.9",
"default":"bf16"}],
"actor_rollout_ref.actor.fsdp_config.turbo_config.distributed.fsdp_plan.param_dtype":[{"since":"0.9",
"default":"bf16"}],
"actor_rollout_ref.actor.fsdp_config.turbo_config.distributed.fsdp_plan.reduce_dtype":[{"since":"0.9",
"default":"fp32"}],
"actor_rollout_ref.actor.fsdp_config.turbo_config.distributed.fully_shard_parallel_size":[{"since":"0.9",
"default":16}], "actor_rollout_ref.actor.fsdp_config.turbo_config.distributed.tensor_parallel_size":[{"since":"0.9",
"default":1}], "actor_rollout_ref.actor.fsdp_config.turbo_config.distributed.ulysses_parallel_size":[{"since":"0.9",
"default":1}], "actor_rollout_ref.actor.fsdp_config.ulysses_sequence_parallel_size":[{"since":"0.6", "default":1}],
"actor_rollout_ref.actor.fsdp_config.use_no_sync_for_gradient_accumulation":[{"since":"0.9", "default":false}],
"actor_rollout_ref.actor.fsdp_config.use_orig_params":[{"since":"0.6", "default":false}],
"actor_rollout_ref.actor.fsdp_config.use_torch_compile":[{"since":"0.6", "default":true}],
"actor_rollout_ref.actor.loss_agg_mode":[{"since":"0.4", "default":"token-mean"}],
"actor_rollout_ref.actor.loss_scale_factor":[{"since":"0.7", "default":null}],
"actor_rollout_ref.actor.optim.betas":[{"since":"0.6", "default":[0.9, 0.999]}],
"actor_rollout_ref.actor.optim.clip_grad":[{"since":"0.6", "default":1.0}],
"actor_rollout_ref.actor.optim.lr_scheduler_type":[{"since":"0.6", "default":"constant"}],
"actor_rollout_ref.actor.optim.lr_warmup_steps":[{"since":"0.3", "default":-1}],
"actor_rollout_ref.actor.optim.min_lr_ratio":[{"since":"0.2", "default":null},
{"since":"0.4", "default":0.0}],
"actor_rollout_ref.actor.optim.num_cycles":[{"since":"0.4", "default":0.5}],
"actor_rollout_ref.actor.optim.optimizer":[{"since":"0.6", "default":"AdamW"}],
"actor_rollout_ref.actor.optim.optimizer_impl":[{"since":"0.6", "default":"torch.optim"}],
"actor_rollout_ref.actor.optim.override_optimizer_config":[{"since":"0.6", "default":null}],
"actor_rollout_ref.actor.optim.warmup_style":[{"since":"0.2", "default":"constant"},
{"since":"0.6", "default":null,
"renamed":"actor_rollout_ref.actor.optim.lr_scheduler_type"}],
"actor_rollout_ref.actor.optim.weight_decay":[{"since":"0.4", "default":0.01}],
"actor_rollout_ref.actor.optim.zero_indexed_step":[{"since":"0.7", "default":true}],
"actor_rollout_ref.actor.pad_to_length":[{"since":"0.9", "default":false}],
"actor_rollout_ref.actor.policy_loss.clip_cov_lb":[{"since":"0.4", "default":1.0}],
"actor_rollout_ref.actor.policy_loss.clip_cov_ratio":[{"since":"0.4", "default":0.0002}],
"actor_rollout_ref.actor.policy_loss.clip_cov_ub":[{"since":"0.4", "default":5.0}],
"actor_rollout_ref.actor.policy_loss.dro_beta":[{"since":"0.9", "default":null}],
"actor_rollout_ref.actor.policy_loss.kl_cov_ratio":[{"since":"0.4", "default":0.0002}],
"actor_rollout_ref.actor.policy_loss.loss_mode":[{"since":"0.4", "default":"vanilla"}],
"actor_rollout_ref.actor.policy_loss.ppo_kl_coef":[{"since":"0.4", "default":0.1}],
"actor_rollout_ref.actor.qat.activation_observer":[{"since":"0.7", "default":"static_minmax"}],
"actor_rollout_ref.actor.qat.enable":[{"since":"0.7", "default":false}],
"actor_rollout_ref.actor.qat.group_size":[{"since":"0.7", "default":16}],
"actor_rollout_ref.actor.qat.ignore_patterns":[{"since":"0.7", "default":["lm_head", "embed_tokens",
"re:.*mlp.gate$"]}], "actor_rollout_ref.actor.qat.mode":[{"since":"0.7", "default":"w4a16"}],
"actor_rollout_ref.actor.qat.quantization_config_path":[{"since":"0.7", "default":null}],
"actor_rollout_ref.actor.rollout_n":[{"since":"0.7", "default":"${actor_rollout_ref.rollout.n}"}],
"actor_rollout_ref.actor.router_replay.mode":[{"since":"0.7", "default":"disabled"},
{"since":"0.9", "gone":true}],
"actor_rollout_ref.actor.router_replay.record_file":[{"since":"0.7", "default":null},
{"since":"0.9", "gone":true}],
"actor_rollout_ref.actor.router_replay.replay_file":[{"since":"0.7", "default":null},
{"since":"0.9", "gone":true}],
"actor_rollout_ref.actor.sum_pi_squared_checkpointing":[{"since":"0.7", "default":false},
{"since":"0.8", "gone":true}],
"actor_rollout_ref.actor.tau_neg":[{"since":"0.7", "default":1.05}], "actor_rollout_ref.actor.tau_pos":[{"since":"0.7",
"default":1.0}], "actor_rollout_ref.actor.use_fused_kernels":[{"since":"0.6",
"default":"${actor_rollout_ref.model.use_fused_kernels}"}],
"actor_rollout_ref.actor.use_prefix_grouper":[{"since":"0.7", "default":false}],
"actor_rollout_ref.actor.use_remove_padding":[{"since":"0.6",
"default":"${actor_rollout_ref.model.use_remove_padding}"}],
"actor_rollout_ref.actor.use_torch_compile":[{"since":"0.3", "default":true}],
"actor_rollout_ref.model.custom_chat_template":[{"since":"0.4", "default":null}],
"actor_rollout_ref.model.enable_activation_offload":[{"since":"0.4", "default":false}],
"actor_rollout_ref.model.exclude_modules":[{"since":"0.5", "default":null}],
"actor_rollout_ref.model.fused_kernel_options.impl_backend":[{"since":"0.4", "default":"torch"}],
"actor_rollout_ref.model.hf_config_path":[{"since":"0.6", "default":null}],
"actor_rollout_ref.model.lora.a2a_experimental":[{"since":"0.8", "default":false}],
"actor_rollout_ref.model.lora.adapter_path":[{"since":"0.8", "default":null}],
"actor_rollout_ref.model.lora.alpha":[{"since":"0.8", "default":32}],
"actor_rollout_ref.model.lora.dropout":[{"since":"0.8", "default":0.0}],
"actor_rollout_ref.model.lora.dropout_position":[{"since":"0.8", "default":"pre"}],
"actor_rollout_ref.model.lora.dtype":[{"since":"0.8", "default":null}],
"actor_rollout_ref.model.lora.exclude_modules":[{"since":"0.8", "default":[]}],
"actor_rollout_ref.model.lora.freeze_language_model":[{"since":"0.8", "default":true}],
"actor_rollout_ref.model.lora.freeze_vision_model":[{"since":"0.8", "default":true}],
"actor_rollout_ref.model.lora.freeze_vision_projection":[{"since":"0.8", "default":true}],
"actor_rollout_ref.model.lora.lora_A_init_method":[{"since":"0.8", "default":"xavier"}],
"actor_rollout_ref.model.lora.lora_B_init_method":[{"since":"0.8", "default":"zero"}],
"actor_rollout_ref.model.lora.merge":[{"since":"0.8", "default":false}],
"actor_rollout_ref.model.lora.rank":[{"since":"0.8", "default":0}],
"actor_rollout_ref.model.lora.target_modules":[{"since":"0.8", "default":["linear_qkv", "linear_proj", "linear_fc1",
"linear_fc2"]}], "actor_rollout_ref.model.lora.type":[{"since":"0.8", "default":"lora"}],
"actor_rollout_ref.model.lora_adapter_path":[{"since":"0.6", "default":null}],
"actor_rollout_ref.model.lora_alpha":[{"since":"0.4", "default":16}],
"actor_rollout_ref.model.lora_rank":[{"since":"0.4", "default":0}],
"actor_rollout_ref.model.mtp.detach_encoder":[{"since":"0.7", "default":false}],
"actor_rollout_ref.model.mtp.enable":[{"since":"0.7", "default":false}],
"actor_rollout_ref.model.mtp.enable_rollout":[{"since":"0.7", "default":false}],
"actor_rollout_ref.model.mtp.enable_train":[{"since":"0.7", "default":false}],
"actor_rollout_ref.model.mtp.method":[{"since":"0.7", "default":"mtp"}],
"actor_rollout_ref.model.mtp.mtp_loss_scaling_factor":[{"since":"0.7", "default":0.1}],
"actor_rollout_ref.model.mtp.num_speculative_tokens":[{"since":"0.7", "default":1}],
"actor_rollout_ref.model.mtp.speculative_algorithm":[{"since":"0.7", "default":"EAGLE"}],
"actor_rollout_ref.model.mtp.speculative_eagle_topk":[{"since":"0.7", "default":1}],
"actor_rollout_ref.model.mtp.speculative_num_draft_tokens":[{"since":"0.7", "default":4}],
"actor_rollout_ref.model.mtp.speculative_num_steps":[{"since":"0.7", "default":3}],
"actor_rollout_ref.model.target_modules":[{"since":"0.4", "default":"all-linear"}],
"actor_rollout_ref.model.tiled_mlp.enabled":[{"since":"0.7", "default":false}],
"actor_rollout_ref.model.tiled_mlp.num_shards":[{"since":"0.7", "default":4}],
"actor_rollout_ref.model.tokenizer_path":[{"since":"0.6", "default":null}],
"actor_rollout_ref.model.trust_remote_code":[{"since":"0.4", "default":false}],
"actor_rollout_ref.model.use_fused_kernels":[{"since":"0.4", "default":false}],
"actor_rollout_ref.model.use_liger":[{"since":"0.4", "default":false}],
"actor_rollout_ref.model.use_remove_padding":[{"since":"0.2", "default":false},
{"since":"0.7", "default":true}],
"actor_rollout_ref.model.use_shm":[{"since":"0.4", "default":false}], "actor_rollout_ref.nccl_timeout":[{"since":"0.6",
"default":600}], "actor_rollout_ref.ref.entropy_checkpointing":[{"since":"0.4", "default":false}],
"actor_rollout_ref.ref.entropy_from_logits_chunk_size":[{"since":"0.9", "default":2048}],
"actor_rollout_ref.ref.entropy_from_logits_with_chunking":[{"since":"0.4", "default":false}],
"actor_rollout_ref.ref.fsdp_config.dtype":[{"since":"0.6", "default":"bfloat16"}],
"actor_rollout_ref.ref.fsdp_config.entropy_checkpointing":[{"since":"0.6", "default":false},
{"since":"0.9",
"default":"${actor_rollout_ref.ref.entropy_checkpointing}"}],
"actor_rollout_ref.ref.fsdp_config.entropy_from_logits_chunk_size":[{"since":"0.9",
"default":"${actor_rollout_ref.ref.entropy_from_logits_chunk_size}"}],
"actor_rollout_ref.ref.fsdp_config.entropy_from_logits_with_chunking":[{"since":"0.6", "default":false},
{"since":"0.9",
"default":"${actor_rollout_ref.ref.entropy_from_logits_with_chunking}"}],
"actor_rollout_ref.ref.fsdp_config.forward_only":[{"since":"0.6", "default":false},
{"since":"0.7", "default":true}],
"actor_rollout_ref.ref.fsdp_config.forward_prefetch":[{"since":"0.4", "default":false}],
"actor_rollout_ref.ref.fsdp_config.fsdp_size":[{"since":"0.6", "default":-1}],
"actor_rollout_ref.ref.fsdp_config.full_determinism":[{"since":"0.7", "default":false}],
"actor_rollout_ref.ref.fsdp_config.model_dtype":[{"since":"0.6", "default":"fp32"}],
"actor_rollout_ref.ref.fsdp_config.offload_policy":[{"since":"0.6", "default":false}],
"actor_rollout_ref.ref.fsdp_config.optimizer_offload":[{"since":"0.6", "default":false}],
"actor_rollout_ref.ref.fsdp_config.pad_to_length":[{"since":"0.9", "default":"${actor_rollout_ref.ref.pad_to_length}"}],
"actor_rollout_ref.ref.fsdp_config.pad_to_length_bucket":[{"since":"0.9",
"default":"${actor_rollout_ref.actor.fsdp_config.pad_to_length_bucket}"}],
"actor_rollout_ref.ref.fsdp_config.qat.activation_observer":[{"since":"0.7", "default":"static_minmax"}],
"actor_rollout_ref.ref.fsdp_config.qat.enable":[{"since":"0.7", "default":false}],
"actor_rollout_ref.ref.fsdp_config.qat.group_size":[{"since":"0.7", "default":16}],
"actor_rollout_ref.ref.fsdp_config.qat.ignore_patterns":[{"since":"0.7", "default":["lm_head", "embed_tokens",
"re:.*mlp.gate$"]}], "actor_rollout_ref.ref.fsdp_config.qat.mode":[{"since":"0.7", "default":"w4a16"}],
"actor_rollout_ref.ref.fsdp_config.qat.quantization_config_path":[{"since":"0.7", "default":null}],
"actor_rollout_ref.ref.fsdp_config.reshard_after_forward":[{"since":"0.4", "default":true}],
"actor_rollout_ref.ref.fsdp_config.seed":[{"since":"0.7", "default":42}],
"actor_rollout_ref.ref.fsdp_config.strategy":[{"since":"0.6", "default":"fsdp"}],
"actor_rollout_ref.ref.fsdp_config.turbo_config.distributed.expert_fully_shard_parallel_size":[{"since":"0.9",
"default":1}], "actor_rollout_ref.ref.fsdp_config.turbo_config.distributed.expert_parallel_size":[{"since":"0.9",
"default":1}],
"actor_rollout_ref.ref.fsdp_config.turbo_config.distributed.fsdp_plan.fsdp_implementation":[{"since":"0.9",
"default":"native"}],
"actor_rollout_ref.ref.fsdp_config.turbo_config.distributed.fsdp_plan.num_to_backward_prefetch":[{"since":"0.9",
"default":1}],
"actor_rollout_ref.ref.fsdp_config.turbo_config.distributed.fsdp_plan.num_to_forward_prefetch":[{"since":"0.9",
"default":1}], "actor_rollout_ref.ref.fsdp_config.turbo_config.distributed.fsdp_plan.output_dtype":[{"since":"0.9",
"default":"bf16"}], "actor_rollout_ref.ref.fsdp_config.turbo_config.distributed.fsdp_plan.param_dtype":[{"since":"0.9",
"default":"bf16"}], "actor_rollout_ref.ref.fsdp_config.turbo_config.distributed.fsdp_plan.reduce_dtype":[{"since":"0.9",
"default":"fp32"}],
"actor_rollout_ref.ref.fsdp_config.turbo_config.distributed.fully_shard_parallel_size":[{"since":"0.9", "default":16}],
"actor_rollout_ref.ref.fsdp_config.turbo_config.distributed.tensor_parallel_size":[{"since":"0.9", "default":1}],
"actor_rollout_ref.ref.fsdp_config.turbo_config.distributed.ulysses_parallel_size":[{"since":"0.9", "default":1}],
"actor_rollout_ref.ref.fsdp_config.ulysses_sequence_parallel_size":[{"since":"0.6", "default":1}],
"actor_rollout_ref.ref.fsdp_config.use_no_sync_for_gradient_accumulation":[{"since":"0.9", "default":false}],
"actor_rollout_ref.ref.fsdp_config.use_orig_params":[{"since":"0.6", "default":false}],
"actor_rollout_ref.ref.fsdp_config.use_torch_compile":[{"since":"0.6", "default":true}],
"actor_rollout_ref.ref.model":[{"since":"0.6", "default":null},
{"since":"0.7", "gone":true}],
"actor_rollout_ref.ref.pad_to_length":[{"since":"0.9", "default":"${actor_rollout_ref.actor.pad_to_length}"}],
"actor_rollout_ref.ref.rollout_n":[{"since":"0.7", "default":"${actor_rollout_ref.rollout.n}"}],
"actor_rollout_ref.ref.router_replay.mode":[{"since":"0.7", "default":"disabled"},
{"since":"0.9", "gone":true}],
"actor_rollout_ref.ref.router_replay.record_file":[{"since":"0.7", "default":null},
{"since":"0.9", "gone":true}],
"actor_rollout_ref.ref.router_replay.replay_file":[{"since":"0.7", "default":null},
{"since":"0.9", "gone":true}],
"actor_rollout_ref.ref.strategy":[{"since":"0.4", "default":"${actor_rollout_ref.actor.strategy}"}],
"actor_rollout_ref.ref.use_torch_compile":[{"since":"0.4", "default":"${actor_rollout_ref.actor.use_torch_compile}"}],
"actor_rollout_ref.rollout.agent.agent_loop_config_path":[{"since":"0.5", "default":null}],
"actor_rollout_ref.rollout.agent.custom_async_server.name":[{"since":"0.5", "default":null}],
"actor_rollout_ref.rollout.agent.custom_async_server.path":[{"since":"0.5", "default":null}],
"actor_rollout_ref.rollout.agent.default_agent_loop":[{"since":"0.6", "default":"single_turn_agent"}],
"actor_rollout_ref.rollout.agent.num_workers":[{"since":"0.5", "default":8}],
"actor_rollout_ref.rollout.calculate_log_probs":[{"since":"0.4", "default":false},
{"since":"0.9", "default":true}],
"actor_rollout_ref.rollout.checkpoint_engine.backend":[{"since":"0.7", "default":"naive"}],
"actor_rollout_ref.rollout.checkpoint_engine.custom_backend_module":[{"since":"0.8", "default":null}],
"actor_rollout_ref.rollout.checkpoint_engine.engine_kwargs":[{"since":"0.7", "default":{}}],
"actor_rollout_ref.rollout.checkpoint_engine.update_weights_bucket_megabytes":[{"since":"0.7", "default":2048}],
"actor_rollout_ref.rollout.cudagraph_capture_sizes":[{"since":"0.6", "default":null}],
"actor_rollout_ref.rollout.data_parallel_size":[{"since":"0.6", "default":1}],
"actor_rollout_ref.rollout.disaggregation.bootstrap_port":[{"since":"0.8", "default":null}],
"actor_rollout_ref.rollout.disaggregation.decode_replicas":[{"since":"0.8", "default":1}],
"actor_rollout_ref.rollout.disaggregation.decode_tensor_model_parallel_size":[{"since":"0.8", "default":null}],
"actor_rollout_ref.rollout.disaggregation.enabled":[{"since":"0.8", "default":false}],
"actor_rollout_ref.rollout.disaggregation.ib_device":[{"since":"0.8", "default":null}],
"actor_rollout_ref.rollout.disaggregation.prefill_replicas":[{"since":"0.8", "default":1}],
"actor_rollout_ref.rollout.disaggregation.transfer_backend":[{"since":"0.8", "default":"nixl"}],
"actor_rollout_ref.rollout.enable_prefix_caching":[{"since":"0.6", "default":true}],
"actor_rollout_ref.rollout.enable_rollout_routing_replay":[{"since":"0.7", "default":false}],
"actor_rollout_ref.rollout.enforce_eager":[{"since":"0.2", "default":true},
{"since":"0.6", "default":false}],
"actor_rollout_ref.rollout.engine_kwargs.sglang":[{"since":"0.6", "default":{}}],
"actor_rollout_ref.rollout.engine_kwargs.sglang.attention_backend":[{"since":"0.4", "default":null},
{"since":"0.6",
"gone":true}], "actor_rollout_ref.rollout.engine_kwargs.trtllm":[{"since":"0.7", "default":{}}],
"actor_rollout_ref.rollout.engine_kwargs.vllm":[{"since":"0.6", "default":{}}],
"actor_rollout_ref.rollout.engine_kwargs.vllm.disable_mm_preprocessor_cache":[{"since":"0.4", "default":false},
{"since":"0.6", "gone":true}], "actor_rollout_ref.rollout.engine_kwargs.vllm.swap_space":[{"since":"0.4",
"default":null},
{"since":"0.6", "gone":true}], "actor_rollout_ref.rollout.expert_parallel_size":[{"since":"0.6",
"default":1}], "actor_rollout_ref.rollout.full_determinism":[{"since":"0.9", "default":false}],
"actor_rollout_ref.rollout.layered_summon":[{"since":"0.4", "default":false}],
"actor_rollout_ref.rollout.load_format":[{"since":"0.2", "default":"dummy_dtensor"},
{"since":"0.6",
"default":"dummy"}], "actor_rollout_ref.rollout.logprobs_mode":[{"since":"0.7", "default":"processed_logprobs"}],
"actor_rollout_ref.rollout.max_model_len":[{"since":"0.3", "default":null}],
"actor_rollout_ref.rollout.max_num_seqs":[{"since":"0.2", "default":1024},
{"since":"0.9", "default":256}],
"actor_rollout_ref.rollout.mode":[{"since":"0.4", "default":"sync"},
{"since":"0.7", "default":"async"}],
"actor_rollout_ref.rollout.moe_load_balance_metrics_interval":[{"since":"0.9", "default":0}],
"actor_rollout_ref.rollout.mtp":[{"since":"0.7", "default":"${actor_rollout_ref.model.mtp}"}],
"actor_rollout_ref.rollout.multi_stage_wake_up":[{"since":"0.4", "default":false}],
"actor_rollout_ref.rollout.multi_turn.completion_callback":[{"since":"0.4", "default":null},
{"since":"0.6",
"gone":true}], "actor_rollout_ref.rollout.multi_turn.enable":[{"since":"0.4", "default":false}],
"actor_rollout_ref.rollout.multi_turn.format":[{"since":"0.4", "default":"hermes"}],
"actor_rollout_ref.rollout.multi_turn.function_tool_path":[{"since":"0.8", "default":null}],
"actor_rollout_ref.rollout.multi_turn.interaction_config_path":[{"since":"0.4", "default":null},
{"since":"0.8",
"gone":true}], "actor_rollout_ref.rollout.multi_turn.max_assistant_turns":[{"since":"0.4", "default":null}],
"actor_rollout_ref.rollout.multi_turn.max_parallel_calls":[{"since":"0.5", "default":1}],
"actor_rollout_ref.rollout.multi_turn.max_tool_response_length":[{"since":"0.5", "default":256}],
"actor_rollout_ref.rollout.multi_turn.max_user_turns":[{"since":"0.4", "default":null}],
"actor_rollout_ref.rollout.multi_turn.num_repeat_rollouts":[{"since":"0.6", "default":null}],
"actor_rollout_ref.rollout.multi_turn.tokenization_sanity_check_mode":[{"since":"0.4", "default":"strict"}],
"actor_rollout_ref.rollout.multi_turn.tool_config_path":[{"since":"0.4", "default":null}],
"actor_rollout_ref.rollout.multi_turn.tool_response_truncate_side":[{"since":"0.5", "default":"middle"}],
"actor_rollout_ref.rollout.multi_turn.use_inference_chat_template":[{"since":"0.4", "default":false}],
"actor_rollout_ref.rollout.n_gpus_per_node":[{"since":"0.7", "default":"${trainer.n_gpus_per_node}"}],
"actor_rollout_ref.rollout.name":[{"since":"0.2", "default":"vllm"},
{"since":"0.6", "default":"???"}],
"actor_rollout_ref.rollout.nnodes":[{"since":"0.7", "default":0}],
"actor_rollout_ref.rollout.over_sample_rate":[{"since":"0.6", "default":0}],
"actor_rollout_ref.rollout.pipeline_model_parallel_size":[{"since":"0.6", "default":1}],
"actor_rollout_ref.rollout.prometheus.enable":[{"since":"0.6", "default":false}],
"actor_rollout_ref.rollout.prometheus.file":[{"since":"0.6",
"default":"/tmp/ray/session_latest/metrics/prometheus/prometheus.yml"}],
"actor_rollout_ref.rollout.prometheus.port":[{"since":"0.6", "default":9090}],
"actor_rollout_ref.rollout.prometheus.served_model_name":[{"since":"0.6", "default":"${actor_rollout_ref.model.path}"}],
"actor_rollout_ref.rollout.qat":[{"since":"0.7", "default":"${actor_rollout_ref.actor.fsdp_config.qat}"}],
"actor_rollout_ref.rollout.quantization":[{"since":"0.7", "default":null}],
"actor_rollout_ref.rollout.quantization_config_file":[{"since":"0.7", "default":null}],
"actor_rollout_ref.rollout.router_config_path":[{"since":"0.9", "default":null}],
"actor_rollout_ref.rollout.scheduling_policy":[{"since":"0.7", "default":"fcfs"}],
"actor_rollout_ref.rollout.seed":[{"since":"0.9", "default":42}],
"actor_rollout_ref.rollout.skip.action":[{"since":"0.8", "default":"cache"},
{"since":"0.9", "gone":true}],
"actor_rollout_ref.rollout.skip.dump_dir":[{"since":"0.8", "default":"~/.verl/rollout_dump"},
{"since":"0.9",
"gone":true}], "actor_rollout_ref.rollout.skip.enable":[{"since":"0.8", "default":false},
{"since":"0.9", "gone":true}],
"actor_rollout_ref.rollout.skip.max_dump_step":[{"since":"0.8", "default":1},
{"since":"0.9", "gone":true}],
"actor_rollout_ref.rollout.skip_dump_dir":[{"since":"0.6", "default":"/tmp/rollout_dump"},
{"since":"0.8",
"gone":true}], "actor_rollout_ref.rollout.skip_rollout":[{"since":"0.6", "default":false},
{"since":"0.8",
"gone":true}], "actor_rollout_ref.rollout.skip_tokenizer_init":[{"since":"0.6", "default":true}],
"actor_rollout_ref.rollout.trace.backend":[{"since":"0.5", "default":null}],
"actor_rollout_ref.rollout.trace.experiment_name":[{"since":"0.7", "default":"${trainer.experiment_name}"}],
"actor_rollout_ref.rollout.trace.max_samples_per_step_per_worker":[{"since":"0.7", "default":null}],
"actor_rollout_ref.rollout.trace.project_name":[{"since":"0.7", "default":"${trainer.project_name}"}],
"actor_rollout_ref.rollout.trace.token2text":[{"since":"0.5", "default":false}],
"actor_rollout_ref.rollout.update_weights_bucket_megabytes":[{"since":"0.5", "default":512},
{"since":"0.7",
"gone":true, "renamed":"actor_rollout_ref.rollout.checkpoint_engine.update_weights_bucket_megabytes"}],
"actor_rollout_ref.rollout.use_fire_sampling":[{"since":"0.3", "default":false},
{"since":"0.5", "gone":true}],
"actor_rollout_ref.rollout.val_kwargs.do_sample":[{"since":"0.3", "default":false}],
"actor_rollout_ref.rollout.val_kwargs.n":[{"since":"0.3", "default":1}],
"actor_rollout_ref.rollout.val_kwargs.temperature":[{"since":"0.3", "default":0}],
"actor_rollout_ref.rollout.val_kwargs.top_k":[{"since":"0.3", "default":-1}],
"actor_rollout_ref.rollout.val_kwargs.top_p":[{"since":"0.3", "default":1.0}],
"algorithm.filter_groups.enable":[{"since":"0.9", "default":false}],
"algorithm.filter_groups.max_inflight_gen_batches":[{"since":"0.9", "default":1}],
"algorithm.filter_groups.max_num_gen_batches":[{"since":"0.9", "default":0}],
"algorithm.filter_groups.metric":[{"since":"0.9", "default":"reward"}], "algorithm.kl_ctrl.horizon":[{"since":"0.4",
"default":10000}], "algorithm.kl_ctrl.target_kl":[{"since":"0.4", "default":0.1}],
"algorithm.norm_adv_by_std_in_grpo":[{"since":"0.4", "default":true}],
"algorithm.pf_ppo.reweight_method":[{"since":"0.4", "default":"pow"}], "algorithm.pf_ppo.weight_pow":[{"since":"0.4",
"default":2.0}], "algorithm.rollout_correction.bypass_mode":[{"since":"0.6", "default":false}],
"algorithm.rollout_correction.loss_type":[{"since":"0.7", "default":"ppo_clip"}],
"algorithm.rollout_correction.rollout_is":[{"since":"0.6", "default":null}],
"algorithm.rollout_correction.rollout_is_batch_normalize":[{"since":"0.6", "default":false}],
"algorithm.rollout_correction.rollout_is_threshold":[{"since":"0.6", "default":2.0}],
"algorithm.rollout_correction.rollout_rs":[{"since":"0.6", "default":null}],
"algorithm.rollout_correction.rollout_rs_threshold":[{"since":"0.6", "default":null}],
"algorithm.rollout_correction.rollout_rs_threshold_lower":[{"since":"0.6", "default":null},
{"since":"0.7",
"gone":true}], "algorithm.rollout_correction.rollout_token_veto_threshold":[{"since":"0.6", "default":null},
{"since":"0.7", "gone":true}], "algorithm.rollout_correction.use_policy_gradient":[{"since":"0.6", "default":false},
{"since":"0.7", "gone":true}], "algorithm.use_kl_in_reward":[{"since":"0.4", "default":false}],
"algorithm.use_pf_ppo":[{"since":"0.4", "default":false}], "critic.checkpoint.async_save":[{"since":"0.6",
"default":false}], "critic.checkpoint.contents":[{"since":"0.3", "default":["model", "hf_model", "optimizer", "extra"]},
{"since":"0.4", "gone":true, "renamed":"critic.checkpoint.save_contents"}],
"critic.checkpoint.load_contents":[{"since":"0.4", "default":"${critic.checkpoint.save_contents}"}],
"critic.checkpoint.mbridge_config":[{"since":"0.7", "default":{}},
{"since":"0.9", "gone":true}],
"critic.checkpoint.save_contents":[{"since":"0.4", "default":["model", "optimizer", "extra"]}],
"critic.data_loader_seed":[{"since":"0.7", "default":42}], "critic.enable":[{"since":"0.6", "default":null}],
"critic.fsdp.dtype":[{"since":"0.8", "default":"bfloat16"}], "critic.fsdp.entropy_checkpointing":[{"since":"0.8",
"default":false}], "critic.fsdp.entropy_from_logits_chunk_size":[{"since":"0.9", "default":2048}],
"critic.fsdp.entropy_from_logits_with_chunking":[{"since":"0.8", "default":false}],
"critic.fsdp.forward_only":[{"since":"0.8", "default":false}], "critic.fsdp.forward_prefetch":[{"since":"0.8",
"default":false}], "critic.fsdp.fsdp_size":[{"since":"0.8", "default":-1}],
"critic.fsdp.full_determinism":[{"since":"0.8", "default":false}], "critic.fsdp.model_dtype":[{"since":"0.8",
"default":"fp32"}], "critic.fsdp.offload_policy":[{"since":"0.8", "default":false}],
"critic.fsdp.optimizer_offload":[{"since":"0.8", "default":false}], "critic.fsdp.pad_to_length":[{"since":"0.9",
"default":false}], "critic.fsdp.pad_to_length_bucket":[{"since":"0.9", "default":1024}],
"critic.fsdp.param_offload":[{"since":"0.8", "default":false}], "critic.fsdp.qat.activation_observer":[{"since":"0.8",
"default":"static_minmax"}], "critic.fsdp.qat.enable":[{"since":"0.8", "default":false}],
"critic.fsdp.qat.group_size":[{"since":"0.8", "default":16}], "critic.fsdp.qat.ignore_patterns":[{"since":"0.8",
"default":["lm_head", "embed_tokens", "re:.*mlp.gate$"]}], "critic.fsdp.qat.mode":[{"since":"0.8", "default":"w4a16"}],
"critic.fsdp.qat.quantization_config_path":[{"since":"0.8", "default":null}],
"critic.fsdp.reshard_after_forward":[{"since":"0.8", "default":true}], "critic.fsdp.seed":[{"since":"0.8",
"default":42}], "critic.fsdp.strategy":[{"since":"0.8", "default":"fsdp"}],
"critic.fsdp.turbo_config.distributed.expert_fully_shard_parallel_size":[{"since":"0.9", "default":1}],
"critic.fsdp.turbo_config.distributed.expert_parallel_size":[{"since":"0.9", "default":1}],
"critic.fsdp.turbo_config.distributed.fsdp_plan.fsdp_implementation":[{"since":"0.9", "default":"native"}],
"critic.fsdp.turbo_config.distributed.fsdp_plan.num_to_backward_prefetch":[{"since":"0.9", "default":1}],
"critic.fsdp.turbo_config.distributed.fsdp_plan.num_to_forward_prefetch":[{"since":"0.9", "default":1}],
"critic.fsdp.turbo_config.distributed.fsdp_plan.output_dtype":[{"since":"0.9", "default":"bf16"}],
"critic.fsdp.turbo_config.distributed.fsdp_plan.param_dtype":[{"since":"0.9", "default":"bf16"}],
"critic.fsdp.turbo_config.distributed.fsdp_plan.reduce_dtype":[{"since":"0.9", "default":"fp32"}],
"critic.fsdp.turbo_config.distributed.fully_shard_parallel_size":[{"since":"0.9", "default":16}],
"critic.fsdp.turbo_config.distributed.tensor_parallel_size":[{"since":"0.9", "default":1}],
"critic.fsdp.turbo_config.distributed.ulysses_parallel_size":[{"since":"0.9", "default":1}],
"critic.fsdp.ulysses_sequence_parallel_size":[{"since":"0.8", "default":1}],
"critic.fsdp.use_no_sync_for_gradient_accumulation":[{"since":"0.9", "default":false}],
"critic.fsdp.use_orig_params":[{"since":"0.8", "default":false}], "critic.fsdp.use_torch_compile":[{"since":"0.8",
"default":true}], "critic.fsdp.wrap_policy.min_num_params":[{"since":"0.8", "default":0}],
"critic.loss_agg_mode":[{"since":"0.4", "default":"${actor_rollout_ref.actor.loss_agg_mode}"}],
"critic.loss_scale_factor":[{"since":"0.9", "default":"${actor_rollout_ref.actor.loss_scale_factor}"}],
"critic.model.custom_chat_template":[{"since":"0.8", "default":null}],
"critic.model.enable_activation_offload":[{"since":"0.4", "default":false}],
"critic.model.exclude_modules":[{"since":"0.8", "default":null}], "critic.model.external_lib":[{"since":"0.2",
"default":"${actor_rollout_ref.model.external_lib}"},
{"since":"0.8", "default":null}],
"critic.model.fsdp_config.dtype":[{"since":"0.6", "default":"bfloat16"},
{"since":"0.8", "gone":true,
"renamed":"critic.fsdp.dtype"}], "critic.model.fsdp_config.entropy_checkpointing":[{"since":"0.6", "default":false},
{"since":"0.8", "gone":true, "renamed":"critic.fsdp.entropy_checkpointing"}],
"critic.model.fsdp_config.entropy_from_logits_with_chunking":[{"since":"0.6", "default":false},
{"since":"0.8",
"gone":true, "renamed":"critic.fsdp.entropy_from_logits_with_chunking"}],
"critic.model.fsdp_config.forward_only":[{"since":"0.6", "default":false},
{"since":"0.8", "gone":true,
"renamed":"critic.fsdp.forward_only"}], "critic.model.fsdp_config.forward_prefetch":[{"since":"0.4", "default":false},
{"since":"0.8", "gone":true, "renamed":"critic.fsdp.forward_prefetch"}],
"critic.model.fsdp_config.fsdp_size":[{"since":"0.2", "default":-1},
{"since":"0.8", "gone":true,
"renamed":"critic.fsdp.fsdp_size"}], "critic.model.fsdp_config.full_determinism":[{"since":"0.7", "default":false},
{"since":"0.8", "gone":true, "renamed":"critic.fsdp.full_determinism"}],
"critic.model.fsdp_config.grad_offload":[{"since":"0.2", "default":false},
{"since":"0.3", "gone":true,
"renamed":"critic.fsdp.grad_offload"}], "critic.model.fsdp_config.model_dtype":[{"since":"0.6", "default":"fp32"},
{"since":"0.8", "gone":true, "renamed":"critic.fsdp.model_dtype"}],
"critic.model.fsdp_config.offload_policy":[{"since":"0.4", "default":false},
{"since":"0.8", "gone":true,
"renamed":"critic.fsdp.offload_policy"}], "critic.model.fsdp_config.optimizer_offload":[{"since":"0.2",
"default":false},
{"since":"0.8", "gone":true, "renamed":"critic.fsdp.optimizer_offload"}],
"critic.model.fsdp_config.param_offload":[{"since":"0.2", "default":false},
{"since":"0.8", "gone":true,
"renamed":"critic.fsdp.param_offload"}], "critic.model.fsdp_config.qat.activation_observer":[{"since":"0.7",
"default":"static_minmax"},
{"since":"0.8", "gone":true, "renamed":"critic.fsdp.qat.activation_observer"}],
"critic.model.fsdp_config.qat.enable":[{"since":"0.7", "default":false},
{"since":"0.8", "gone":true,
"renamed":"critic.fsdp.qat.enable"}], "critic.model.fsdp_config.qat.group_size":[{"since":"0.7", "default":16},
{"since":"0.8", "gone":true, "renamed":"critic.fsdp.qat.group_size"}],
"critic.model.fsdp_config.qat.ignore_patterns":[{"since":"0.7", "default":["lm_head", "embed_tokens",
"re:.*mlp.gate$"]},
{"since":"0.8", "gone":true, "renamed":"critic.fsdp.qat.ignore_patterns"}],
"critic.model.fsdp_config.qat.mode":[{"since":"0.7", "default":"w4a16"},
{"since":"0.8", "gone":true,
"renamed":"critic.fsdp.qat.mode"}], "critic.model.fsdp_config.qat.quantization_config_path":[{"since":"0.7",
"default":null},
{"since":"0.8", "gone":true, "renamed":"critic.fsdp.qat.quantization_config_path"}],
"critic.model.fsdp_config.reshard_after_forward":[{"since":"0.4", "default":true},
{"since":"0.8", "gone":true,
"renamed":"critic.fsdp.reshard_after_forward"}], "critic.model.fsdp_config.seed":[{"since":"0.7", "default":42},
{"since":"0.8", "gone":true, "renamed":"critic.fsdp.seed"}], "critic.model.fsdp_config.strategy":[{"since":"0.6",
"default":"fsdp"},
{"since":"0.8", "gone":true, "renamed":"critic.fsdp.strategy"}],
"critic.model.fsdp_config.ulysses_sequence_parallel_size":[{"since":"0.6", "default":1},
{"since":"0.8", "gone":true,
"renamed":"critic.fsdp.ulysses_sequence_parallel_size"}], "critic.model.fsdp_config.use_orig_params":[{"since":"0.6",
"default":false},
{"since":"0.8", "gone":true, "renamed":"critic.fsdp.use_orig_params"}],
"critic.model.fsdp_config.use_torch_compile":[{"since":"0.6", "default":true},
{"since":"0.8", "gone":true,
"renamed":"critic.fsdp.use_torch_compile"}], "critic.model.fsdp_config.wrap_policy.min_num_params":[{"since":"0.2",
"default":0},
{"since":"0.8", "gone":true, "renamed":"critic.fsdp.wrap_policy.min_num_params"}],
"critic.model.fused_kernel_options.impl_backend":[{"since":"0.8", "default":"torch"}],
"critic.model.hf_config_path":[{"since":"0.8", "default":null}], "critic.model.lora.a2a_experimental":[{"since":"0.8",
"default":false}], "critic.model.lora.adapter_path":[{"since":"0.8", "default":null}],
"critic.model.lora.alpha":[{"since":"0.8", "default":32}], "critic.model.lora.dropout":[{"since":"0.8", "default":0.0}],
"critic.model.lora.dropout_position":[{"since":"0.8", "default":"pre"}], "critic.model.lora.dtype":[{"since":"0.8",
"default":null}], "critic.model.lora.exclude_modules":[{"since":"0.8", "default":[]}],
"critic.model.lora.freeze_language_model":[{"since":"0.8", "default":true}],
"critic.model.lora.freeze_vision_model":[{"since":"0.8", "default":true}],
"critic.model.lora.freeze_vision_projection":[{"since":"0.8", "default":true}],
"critic.model.lora.lora_A_init_method":[{"since":"0.8", "default":"xavier"}],
"critic.model.lora.lora_B_init_method":[{"since":"0.8", "default":"zero"}], "critic.model.lora.merge":[{"since":"0.8",
"default":false}], "critic.model.lora.rank":[{"since":"0.8", "default":0}],
"critic.model.lora.target_modules":[{"since":"0.8", "default":["linear_qkv", "linear_proj", "linear_fc1",
"linear_fc2"]}], "critic.model.lora.type":[{"since":"0.8", "default":"lora"}],
"critic.model.lora_adapter_path":[{"since":"0.8", "default":null}], "critic.model.lora_alpha":[{"since":"0.4",
"default":16}], "critic.model.lora_rank":[{"since":"0.4", "default":0}],
"critic.model.mtp.detach_encoder":[{"since":"0.8", "default":false}], "critic.model.mtp.enable":[{"since":"0.8",
"default":false}], "critic.model.mtp.enable_rollout":[{"since":"0.8", "default":false}],
"critic.model.mtp.enable_train":[{"since":"0.8", "default":false}], "critic.model.mtp.method":[{"since":"0.8",
"default":"mtp"}], "critic.model.mtp.mtp_loss_scaling_factor":[{"since":"0.8", "default":0.1}],
"critic.model.mtp.num_speculative_tokens":[{"since":"0.8", "default":1}],
"critic.model.mtp.speculative_algorithm":[{"since":"0.8", "default":"EAGLE"}],
"critic.model.mtp.speculative_eagle_topk":[{"since":"0.8", "default":1}],
"critic.model.mtp.speculative_num_draft_tokens":[{"since":"0.8", "default":4}],
"critic.model.mtp.speculative_num_steps":[{"since":"0.8", "default":3}], "critic.model.target_modules":[{"since":"0.4",
"default":"all-linear"}], "critic.model.tiled_mlp.enabled":[{"since":"0.7", "default":false}],
"critic.model.tiled_mlp.num_shards":[{"since":"0.7", "default":4}], "critic.model.tokenizer_path":[{"since":"0.2",
"default":"${actor_rollout_ref.model.path}"},
{"since":"0.8", "default":null}],
"critic.model.trust_remote_code":[{"since":"0.4", "default":"${actor_rollout_ref.model.trust_remote_code}"},
{"since":"0.8", "default":false}], "critic.model.use_fused_kernels":[{"since":"0.8", "default":false}],
"critic.model.use_liger":[{"since":"0.8", "default":false}], "critic.model.use_remove_padding":[{"since":"0.2",
"default":false},
{"since":"0.8", "default":true}], "critic.model.use_shm":[{"since":"0.4", "default":false}],
"critic.optim.betas":[{"since":"0.6", "default":[0.9, 0.999]}], "critic.optim.clip_grad":[{"since":"0.6",
"default":1.0}], "critic.optim.lr_scheduler_type":[{"since":"0.6", "default":"constant"}],
"critic.optim.lr_warmup_steps":[{"since":"0.6", "default":-1}], "critic.optim.min_lr_ratio":[{"since":"0.2",
"default":null},
{"since":"0.6", "default":0.0}], "critic.optim.num_cycles":[{"since":"0.6", "default":0.5}],
"critic.optim.optimizer":[{"since":"0.6", "default":"AdamW"}], "critic.optim.optimizer_impl":[{"since":"0.6",
"default":"torch.optim"}], "critic.optim.override_optimizer_config":[{"since":"0.6", "default":null}],
"critic.optim.warmup_style":[{"since":"0.2", "default":"constant"},
{"since":"0.6", "default":null,
"renamed":"critic.optim.lr_scheduler_type"}], "critic.optim.weight_decay":[{"since":"0.4", "default":0.01}],
"critic.optim.zero_indexed_step":[{"since":"0.7", "default":true}],
"critic.ppo_micro_batch_size_per_gpu":[{"since":"0.2", "default":null},
{"since":"0.5",
"default":"${critic.ppo_micro_batch_size}"}], "critic.rollout_n":[{"since":"0.4",
"default":"${actor_rollout_ref.rollout.n}"}], "critic.strategy":[{"since":"0.2", "default":"fsdp"},
{"since":"0.4",
"default":"${actor_rollout_ref.actor.strategy}"},
{"since":"0.5", "default":"fsdp"}],
"custom_reward_function.name":[{"since":"0.3", "default":"compute_score"},
{"since":"0.7", "default":null,
"renamed":"reward.custom_reward_function.name"}], "custom_reward_function.path":[{"since":"0.3", "default":null,
"renamed":"reward.custom_reward_function.path"}], "data.apply_chat_template_kwargs":[{"since":"0.6", "default":{}}],
"data.audio_key":[{"since":"0.8", "default":"audios"}], "data.custom_cls.name":[{"since":"0.4", "default":null}],
"data.custom_cls.path":[{"since":"0.4", "default":null}], "data.datagen.name":[{"since":"0.5", "default":null},
{"since":"0.8", "gone":true}], "data.datagen.path":[{"since":"0.5", "default":null},
{"since":"0.8", "gone":true}],
"data.dataloader_num_workers":[{"since":"0.5", "default":8}], "data.filter_overlong_prompts":[{"since":"0.3",
"default":false}], "data.filter_overlong_prompts_workers":[{"since":"0.4", "default":1}],
"data.function_tool_path":[{"since":"0.8", "default":"${actor_rollout_ref.rollout.multi_turn.function_tool_path}"}],
"data.gen_batch_size":[{"since":"0.9", "default":null}], "data.image_key":[{"since":"0.3", "default":"images"}],
"data.image_patch_size":[{"since":"0.6", "default":14}], "data.mm_processor_kwargs":[{"since":"0.8", "default":{}}],
"data.return_full_prompt":[{"since":"0.4", "default":false}], "data.return_multi_modal_inputs":[{"since":"0.5",
"default":true}], "data.return_raw_chat":[{"since":"0.2", "default":false},
{"since":"0.7", "default":true}],
"data.reward_fn_key":[{"since":"0.4", "default":"data_source"}], "data.sampler.class_name":[{"since":"0.5",
"default":null},
{"since":"0.8", "gone":true}], "data.sampler.class_path":[{"since":"0.5", "default":null},
{"since":"0.8", "gone":true}], "data.seed":[{"since":"0.6", "default":null}], "data.tool_config_path":[{"since":"0.6",
"default":"${actor_rollout_ref.rollout.multi_turn.tool_config_path}"}], "data.train_max_samples":[{"since":"0.6",
"default":-1}], "data.truncation":[{"since":"0.3", "default":"error"}], "data.trust_remote_code":[{"since":"0.4",
"default":false}], "data.use_shm":[{"since":"0.4", "default":false}], "data.val_batch_size":[{"since":"0.2",
"default":1312},
{"since":"0.3", "default":null}], "data.val_max_samples":[{"since":"0.6", "default":-1}],
"data.validation_shuffle":[{"since":"0.4", "default":false}], "data.video_key":[{"since":"0.4", "default":"videos"}],
"distillation.distillation_loss.clip_ratio":[{"since":"0.8", "default":0.2}],
"distillation.distillation_loss.clip_ratio_high":[{"since":"0.8", "default":0.2}],
"distillation.distillation_loss.clip_ratio_low":[{"since":"0.8", "default":0.2}],
"distillation.distillation_loss.distillation_loss_coef":[{"since":"0.8", "default":1.0}],
"distillation.distillation_loss.log_prob_min_clamp":[{"since":"0.8", "default":null}],
"distillation.distillation_loss.loss_max_clamp":[{"since":"0.8", "default":null}],
"distillation.distillation_loss.loss_mode":[{"since":"0.8", "default":"k3"}],
"distillation.distillation_loss.policy_loss_mode":[{"since":"0.8", "default":"vanilla"}],
"distillation.distillation_loss.topk":[{"since":"0.8", "default":32}],
"distillation.distillation_loss.use_policy_gradient":[{"since":"0.8", "default":false}],
"distillation.distillation_loss.use_task_rewards":[{"since":"0.8", "default":true}],
"distillation.enabled":[{"since":"0.8", "default":false}], "distillation.n_gpus_per_node":[{"since":"0.8",
"default":8}], "distillation.nnodes":[{"since":"0.8", "default":0}], "distillation.teacher_key":[{"since":"0.8",
"default":"data_source"}],
"distillation.teacher_models.teacher_model.inference.cudagraph_capture_sizes":[{"since":"0.8", "default":null}],
"distillation.teacher_models.teacher_model.inference.data_parallel_size":[{"since":"0.8", "default":1}],
"distillation.teacher_models.teacher_model.inference.disable_log_stats":[{"since":"0.8", "default":true}],
"distillation.teacher_models.teacher_model.inference.dtype":[{"since":"0.8",
"default":"${actor_rollout_ref.rollout.dtype}"}],
"distillation.teacher_models.teacher_model.inference.enable_chunked_prefill":[{"since":"0.8", "default":true}],
"distillation.teacher_models.teacher_model.inference.enable_prefix_caching":[{"since":"0.8", "default":true}],
"distillation.teacher_models.teacher_model.inference.enforce_eager":[{"since":"0.8", "default":true}],
"distillation.teacher_models.teacher_model.inference.engine_kwargs":[{"since":"0.8", "default":{}}],
"distillation.teacher_models.teacher_model.inference.expert_parallel_size":[{"since":"0.8", "default":1}],
"distillation.teacher_models.teacher_model.inference.free_cache_engine":[{"since":"0.8", "default":true}],
"distillation.teacher_models.teacher_model.inference.gpu_memory_utilization":[{"since":"0.8", "default":0.5}],
"distillation.teacher_models.teacher_model.inference.limit_images":[{"since":"0.8", "default":null}],
"distillation.teacher_models.teacher_model.inference.load_format":[{"since":"0.8", "default":"auto"}],
"distillation.teacher_models.teacher_model.inference.max_model_len":[{"since":"0.8", "default":null}],
"distillation.teacher_models.teacher_model.inference.max_num_batched_tokens":[{"since":"0.8", "default":8192}],
"distillation.teacher_models.teacher_model.inference.max_num_seqs":[{"since":"0.8", "default":1024}],
"distillation.teacher_models.teacher_model.inference.name":[{"since":"0.8",
"default":"${actor_rollout_ref.rollout.name}"}],
"distillation.teacher_models.teacher_model.inference.prompt_length":[{"since":"0.8",
"default":"${actor_rollout_ref.rollout.prompt_length}"}],
"distillation.teacher_models.teacher_model.inference.response_length":[{"since":"0.8",
"default":"${actor_rollout_ref.rollout.response_length}"}],
"distillation.teacher_models.teacher_model.inference.skip_tokenizer_init":[{"since":"0.8", "default":true}],
"distillation.teacher_models.teacher_model.inference.temperature":[{"since":"0.8",
"default":"${actor_rollout_ref.rollout.temperature}"}],
"distillation.teacher_models.teacher_model.inference.tensor_model_parallel_size":[{"since":"0.8", "default":2}],
"distillation.teacher_models.teacher_model.key":[{"since":"0.8", "default":null}],
"distillation.teacher_models.teacher_model.model_path":[{"since":"0.8", "default":null}],
"distillation.teacher_models.teacher_model.num_replicas":[{"since":"0.8", "default":0}],
"ray_init.num_cpus":[{"since":"0.4", "default":null},
{"since":"0.6", "gone":true,
"renamed":"ray_kwargs.ray_init.num_cpus"}], "ray_init.timeline_json_file":[{"since":"0.4", "default":null},
{"since":"0.6", "gone":true, "renamed":"ray_kwargs.timeline_json_file"}],
"ray_kwargs.ray_init.num_cpus":[{"since":"0.6", "default":null}],
"ray_kwargs.ray_init.runtime_env.py_executable":[{"since":"0.9", "default":null}],
"ray_kwargs.timeline_json_file":[{"since":"0.6", "default":null}], "reward.custom_reward_function.name":[{"since":"0.7",
"default":"compute_score"}], "reward.custom_reward_function.path":[{"since":"0.7", "default":null}],
"reward.num_workers":[{"since":"0.7", "default":8}], "reward.reward_manager.module.name":[{"since":"0.7",
"default":"custom_reward_manager"}], "reward.reward_manager.module.path":[{"since":"0.7", "default":null}],
"reward.reward_manager.name":[{"since":"0.7", "default":"naive"}], "reward.reward_manager.source":[{"since":"0.7",
"default":"register"}], "reward.reward_model.enable":[{"since":"0.7", "default":false}],
"reward.reward_model.enable_resource_pool":[{"since":"0.7", "default":false}],
"reward.reward_model.model_path":[{"since":"0.7", "default":null}],
"reward.reward_model.n_gpus_per_node":[{"since":"0.7", "default":8}], "reward.reward_model.nnodes":[{"since":"0.7",
"default":0}], "reward.reward_model.rollout.cudagraph_capture_sizes":[{"since":"0.7", "default":null}],
"reward.reward_model.rollout.data_parallel_size":[{"since":"0.7", "default":1}],
"reward.reward_model.rollout.disable_log_stats":[{"since":"0.7", "default":true}],
"reward.reward_model.rollout.disaggregation.bootstrap_port":[{"since":"0.8", "default":null}],
"reward.reward_model.rollout.disaggregation.decode_replicas":[{"since":"0.8", "default":1}],
"reward.reward_model.rollout.disaggregation.decode_tensor_model_parallel_size":[{"since":"0.8", "default":null}],
"reward.reward_model.rollout.disaggregation.enabled":[{"since":"0.8", "default":false}],
"reward.reward_model.rollout.disaggregation.ib_device":[{"since":"0.8", "default":null}],
"reward.reward_model.rollout.disaggregation.prefill_replicas":[{"since":"0.8", "default":1}],
"reward.reward_model.rollout.disaggregation.transfer_backend":[{"since":"0.8", "default":"nixl"}],
"reward.reward_model.rollout.do_sample":[{"since":"0.8", "default":true}],
"reward.reward_model.rollout.dtype":[{"since":"0.7", "default":"bfloat16"}],
"reward.reward_model.rollout.enable_chunked_prefill":[{"since":"0.7", "default":true}],
"reward.reward_model.rollout.enable_prefix_caching":[{"since":"0.7", "default":true}],
"reward.reward_model.rollout.enforce_eager":[{"since":"0.7", "default":true}],
"reward.reward_model.rollout.engine_kwargs":[{"since":"0.7", "default":{}}],
"reward.reward_model.rollout.expert_parallel_size":[{"since":"0.7", "default":1}],
"reward.reward_model.rollout.free_cache_engine":[{"since":"0.7", "default":true}],
"reward.reward_model.rollout.full_determinism":[{"since":"0.9", "default":false}],
"reward.reward_model.rollout.gpu_memory_utilization":[{"since":"0.7", "default":0.5}],
"reward.reward_model.rollout.ignore_eos":[{"since":"0.8", "default":false}],
"reward.reward_model.rollout.layered_summon":[{"since":"0.8", "default":false}],
"reward.reward_model.rollout.limit_images":[{"since":"0.7", "default":null}],
"reward.reward_model.rollout.load_format":[{"since":"0.7", "default":"auto"}],
"reward.reward_model.rollout.max_model_len":[{"since":"0.7", "default":null}],
"reward.reward_model.rollout.max_num_batched_tokens":[{"since":"0.7", "default":8192}],
"reward.reward_model.rollout.max_num_seqs":[{"since":"0.7", "default":1024}],
"reward.reward_model.rollout.mtp":[{"since":"0.8", "default":null}],
"reward.reward_model.rollout.multi_stage_wake_up":[{"since":"0.8", "default":false}],
"reward.reward_model.rollout.n":[{"since":"0.8", "default":1}], "reward.reward_model.rollout.name":[{"since":"0.7",
"default":"???"}], "reward.reward_model.rollout.pipeline_model_parallel_size":[{"since":"0.8", "default":1}],
"reward.reward_model.rollout.prompt_length":[{"since":"0.7", "default":2048}],
"reward.reward_model.rollout.quantization":[{"since":"0.8", "default":null}],
"reward.reward_model.rollout.quantization_config_file":[{"since":"0.8", "default":null}],
"reward.reward_model.rollout.response_length":[{"since":"0.7", "default":2048}],
"reward.reward_model.rollout.scheduling_policy":[{"since":"0.8", "default":"fcfs"}],
"reward.reward_model.rollout.seed":[{"since":"0.9", "default":42}],
"reward.reward_model.rollout.skip_tokenizer_init":[{"since":"0.7", "default":false}],
"reward.reward_model.rollout.temperature":[{"since":"0.8", "default":1.0}],
"reward.reward_model.rollout.tensor_model_parallel_size":[{"since":"0.7", "default":2}],
"reward.reward_model.rollout.top_k":[{"since":"0.8", "default":-1}],
"reward.reward_model.rollout.top_p":[{"since":"0.8", "default":1}],
"reward.sandbox_fusion.max_concurrent":[{"since":"0.7", "default":64}],
"reward.sandbox_fusion.memory_limit_mb":[{"since":"0.7", "default":1024}], "reward.sandbox_fusion.url":[{"since":"0.7",
"default":null}], "reward_model.enable":[{"since":"0.2", "default":false},
{"since":"0.7", "default":null,
"renamed":"reward.reward_model.enable"}], "reward_model.enable_resource_pool":[{"since":"0.6", "default":false},
{"since":"0.7", "default":null, "renamed":"reward.reward_model.enable_resource_pool"}],
"reward_model.forward_max_token_len_per_gpu":[{"since":"0.2", "default":"${critic.forward_max_token_len_per_gpu}"},
{"since":"0.7", "gone":true}], "reward_model.launch_reward_fn_async":[{"since":"0.4", "default":false},
{"since":"0.7",
"gone":true}], "reward_model.max_length":[{"since":"0.2", "default":null},
{"since":"0.7", "gone":true}],
"reward_model.micro_batch_size":[{"since":"0.2", "default":null},
{"since":"0.7", "gone":true}],
"reward_model.micro_batch_size_per_gpu":[{"since":"0.2", "default":null},
{"since":"0.7", "gone":true}],
"reward_model.model.external_lib":[{"since":"0.2", "default":"${actor_rollout_ref.model.external_lib}"},
{"since":"0.7",
"default":null}], "reward_model.model.fsdp_config.forward_prefetch":[{"since":"0.4", "default":false},
{"since":"0.7",
"gone":true}], "reward_model.model.fsdp_config.fsdp_size":[{"since":"0.2", "default":-1},
{"since":"0.7", "gone":true}],
"reward_model.model.fsdp_config.min_num_params":[{"since":"0.2", "default":0},
{"since":"0.3", "gone":true}],
"reward_model.model.fsdp_config.param_offload":[{"since":"0.2", "default":false},
{"since":"0.7", "gone":true}],
"reward_model.model.fsdp_config.reshard_after_forward":[{"since":"0.4", "default":true},
{"since":"0.7", "gone":true}],
"reward_model.model.fsdp_config.wrap_policy.min_num_params":[{"since":"0.3", "default":0},
{"since":"0.7",
"gone":true}], "reward_model.model.input_tokenizer":[{"since":"0.2", "default":"${actor_rollout_ref.model.path}"},
{"since":"0.7", "gone":true}], "reward_model.model.path":[{"since":"0.2", "default":"~/models/FsfairX-LLaMA3-RM-v0.1"},
{"since":"0.7", "default":null, "renamed":"reward.reward_model.model_path"}],
"reward_model.model.trust_remote_code":[{"since":"0.4", "default":false},
{"since":"0.7", "default":null}],
"reward_model.model.use_fused_kernels":[{"since":"0.4", "default":"${actor_rollout_ref.model.use_fused_kernels}"},
{"since":"0.7", "gone":true}], "reward_model.model.use_remove_padding":[{"since":"0.2", "default":false},
{"since":"0.7", "gone":true}], "reward_model.model.use_shm":[{"since":"0.4", "default":false},
{"since":"0.7",
"gone":true}], "reward_model.n_gpus_per_node":[{"since":"0.6", "default":0},
{"since":"0.7", "default":null,
"renamed":"reward.reward_model.n_gpus_per_node"}], "reward_model.nnodes":[{"since":"0.6", "default":0},
{"since":"0.7",
"default":null, "renamed":"reward.reward_model.nnodes"}], "reward_model.num_workers":[{"since":"0.7", "default":null,
"renamed":"reward.num_workers"}], "reward_model.reward_loop_class_name":[{"since":"0.7", "default":null,
"renamed":"reward.reward_manager.module.name"}], "reward_model.reward_loop_module_path":[{"since":"0.7", "default":null,
"renamed":"reward.reward_manager.module.path"}], "reward_model.reward_loop_source":[{"since":"0.7", "default":null,
"renamed":"reward.reward_manager.source"}], "reward_model.reward_manager":[{"since":"0.2", "default":"naive"},
{"since":"0.7", "default":null, "renamed":"reward.reward_manager.name"}],
"reward_model.rollout.cudagraph_capture_sizes":[{"since":"0.7", "default":null,
"renamed":"reward.reward_model.rollout.cudagraph_capture_sizes"}],
"reward_model.rollout.data_parallel_size":[{"since":"0.7", "default":null,
"renamed":"reward.reward_model.rollout.data_parallel_size"}], "reward_model.rollout.disable_log_stats":[{"since":"0.7",
"default":null, "renamed":"reward.reward_model.rollout.disable_log_stats"}],
"reward_model.rollout.dtype":[{"since":"0.7", "default":null, "renamed":"reward.reward_model.rollout.dtype"}],
"reward_model.rollout.enable_chunked_prefill":[{"since":"0.7", "default":null,
"renamed":"reward.reward_model.rollout.enable_chunked_prefill"}],
"reward_model.rollout.enable_prefix_caching":[{"since":"0.7", "default":null,
"renamed":"reward.reward_model.rollout.enable_prefix_caching"}], "reward_model.rollout.enforce_eager":[{"since":"0.7",
"default":null, "renamed":"reward.reward_model.rollout.enforce_eager"}],
"reward_model.rollout.engine_kwargs":[{"since":"0.7", "default":null,
"renamed":"reward.reward_model.rollout.engine_kwargs"}], "reward_model.rollout.expert_parallel_size":[{"since":"0.7",
"default":null, "renamed":"reward.reward_model.rollout.expert_parallel_size"}],
"reward_model.rollout.free_cache_engine":[{"since":"0.7", "default":null,
"renamed":"reward.reward_model.rollout.free_cache_engine"}],
"reward_model.rollout.gpu_memory_utilization":[{"since":"0.7", "default":null,
"renamed":"reward.reward_model.rollout.gpu_memory_utilization"}], "reward_model.rollout.limit_images":[{"since":"0.7",
"default":null, "renamed":"reward.reward_model.rollout.limit_images"}],
"reward_model.rollout.load_format":[{"since":"0.7", "default":null,
"renamed":"reward.reward_model.rollout.load_format"}], "reward_model.rollout.max_model_len":[{"since":"0.7",
"default":null, "renamed":"reward.reward_model.rollout.max_model_len"}],
"reward_model.rollout.max_num_batched_tokens":[{"since":"0.7", "default":null,
"renamed":"reward.reward_model.rollout.max_num_batched_tokens"}], "reward_model.rollout.max_num_seqs":[{"since":"0.7",
"default":null, "renamed":"reward.reward_model.rollout.max_num_seqs"}], "reward_model.rollout.name":[{"since":"0.7",
"default":null, "renamed":"reward.reward_model.rollout.name"}], "reward_model.rollout.prompt_length":[{"since":"0.7",
"default":null, "renamed":"reward.reward_model.rollout.prompt_length"}],
"reward_model.rollout.response_length":[{"since":"0.7", "default":null,
"renamed":"reward.reward_model.rollout.response_length"}], "reward_model.rollout.skip_tokenizer_init":[{"since":"0.7",
"default":null, "renamed":"reward.reward_model.rollout.skip_tokenizer_init"}],
"reward_model.rollout.tensor_model_parallel_size":[{"since":"0.7", "default":null,
"renamed":"reward.reward_model.rollout.tensor_model_parallel_size"}],
"reward_model.sandbox_fusion.max_concurrent":[{"since":"0.4", "default":64},
{"since":"0.7", "gone":true,
"renamed":"reward.sandbox_fusion.max_concurrent"}], "reward_model.sandbox_fusion.memory_limit_mb":[{"since":"0.4",
"default":1024},
{"since":"0.7", "gone":true, "renamed":"reward.sandbox_fusion.memory_limit_mb"}],
"reward_model.sandbox_fusion.url":[{"since":"0.4", "default":null},
{"since":"0.7", "gone":true,
"renamed":"reward.sandbox_fusion.url"}], "reward_model.strategy":[{"since":"0.2", "default":"fsdp"},
{"since":"0.4",
"default":"${actor_rollout_ref.actor.strategy}"},
{"since":"0.5", "default":"fsdp"},
{"since":"0.7", "gone":true}],
"reward_model.ulysses_sequence_parallel_size":[{"since":"0.2", "default":1},
{"since":"0.7", "gone":true}],
"reward_model.use_dynamic_bsz":[{"since":"0.2", "default":"${critic.use_dynamic_bsz}"},
{"since":"0.7", "gone":true}],
"sandbox_fusion.max_concurrent":[{"since":"0.7", "default":null, "renamed":"reward.sandbox_fusion.max_concurrent"}],
"sandbox_fusion.memory_limit_mb":[{"since":"0.7", "default":null, "renamed":"reward.sandbox_fusion.memory_limit_mb"}],
"sandbox_fusion.url":[{"since":"0.7", "default":null, "renamed":"reward.sandbox_fusion.url"}],
"skip.async_rollout.action":[{"since":"0.9", "default":"cache"}], "skip.async_rollout.dump_dir":[{"since":"0.9",
"default":"~/.verl/rollout_dump"}], "skip.async_rollout.enable":[{"since":"0.9", "default":false}],
"skip.async_rollout.steps":[{"since":"0.9", "default":[]}], "skip.rollout.action":[{"since":"0.9", "default":"cache"}],
"skip.rollout.dump_dir":[{"since":"0.9", "default":"~/.verl/rollout_dump"}], "skip.rollout.enable":[{"since":"0.9",
"default":false}], "skip.rollout.steps":[{"since":"0.9", "default":[]}], "skip.rollout_tq.action":[{"since":"0.9",
"default":"cache"}], "skip.rollout_tq.dump_dir":[{"since":"0.9", "default":"~/.verl/rollout_dump"}],
"skip.rollout_tq.enable":[{"since":"0.9", "default":false}], "skip.rollout_tq.steps":[{"since":"0.9", "default":[]}],
"trainer.balance_batch":[{"since":"0.3", "default":true}], "trainer.checkpoint_callback_class":[{"since":"0.9",
"default":null}], "trainer.device":[{"since":"0.4", "default":"cuda"}], "trainer.esi_redundant_time":[{"since":"0.5",
"default":0}], "trainer.log_val_generations":[{"since":"0.4", "default":0}],
"trainer.max_actor_ckpt_to_keep":[{"since":"0.3", "default":null}], "trainer.max_critic_ckpt_to_keep":[{"since":"0.3",
"default":null}], "trainer.ray_wait_register_center_timeout":[{"since":"0.4", "default":300}],
"trainer.remove_previous_ckpt_in_save":[{"since":"0.2", "default":false},
{"since":"0.3", "gone":true}],
"trainer.resume_from_path":[{"since":"0.2", "default":false},
{"since":"0.3", "default":null}],
"trainer.rollout_data_dir":[{"since":"0.4", "default":null}], "trainer.use_legacy_worker_impl":[{"since":"0.5",
"default":"auto"},
{"since":"0.8", "gone":true}], "trainer.use_v1":[{"since":"0.9", "default":true}],
"trainer.v1.colocate_async.num_warmup_batches":[{"since":"0.9", "default":1}],
"trainer.v1.sampler.custom_sampler.name":[{"since":"0.9", "default":null}],
"trainer.v1.sampler.custom_sampler.path":[{"since":"0.9", "default":null}],
"trainer.v1.sampler.max_off_policy_strategy":[{"since":"0.9", "default":"drop"}],
"trainer.v1.sampler.max_off_policy_threshold":[{"since":"0.9", "default":8}],
"trainer.v1.sampler.sampler_kwargs":[{"since":"0.9", "default":{}}],
"trainer.v1.sampler.sync_refill_failed_groups":[{"since":"0.9", "default":false}],
"trainer.v1.separate_async.hybrid_rollout.adaptive_switch_threshold":[{"since":"0.9", "default":true}],
"trainer.v1.separate_async.hybrid_rollout.enable_switch":[{"since":"0.9", "default":false}],
"trainer.v1.separate_async.hybrid_rollout.switch_cost_window_size":[{"since":"0.9", "default":3}],
"trainer.v1.separate_async.hybrid_rollout.switch_threshold_ratio":[{"since":"0.9", "default":0.4}],
"trainer.v1.separate_async.hybrid_rollout.switch_threshold_release_steps":[{"since":"0.9", "default":2}],
"trainer.v1.separate_async.hybrid_rollout.switch_threshold_step_down":[{"since":"0.9", "default":0.03}],
"trainer.v1.separate_async.hybrid_rollout.switch_threshold_step_up":[{"since":"0.9", "default":0.05}],
"trainer.v1.separate_async.num_warmup_batches":[{"since":"0.9", "default":1}],
"trainer.v1.separate_async.parameter_sync_step":[{"since":"0.9", "default":4}], "trainer.v1.sync":[{"since":"0.9",
"default":{}}], "trainer.v1.trainer_mode":[{"since":"0.9", "default":"sync"}],
"trainer.val_before_train":[{"since":"0.4", "default":true}], "trainer.val_generations_to_log_to_wandb":[{"since":"0.2",
"default":0},
{"since":"0.4", "gone":true, "renamed":"trainer.log_val_generations"}],
"trainer.val_only":[{"since":"0.4", "default":false}], "trainer.validation_data_dir":[{"since":"0.4", "default":null}],
"transfer_queue.backend.MooncakeStore.auto_init":[{"since":"0.8", "default":false}],
"transfer_queue.backend.MooncakeStore.device_name":[{"since":"0.8", "default":""}],
"transfer_queue.backend.MooncakeStore.global_segment_size":[{"since":"0.8", "default":4294967296}],
"transfer_queue.backend.MooncakeStore.local_buffer_size":[{"since":"0.8", "default":1073741824}],
"transfer_queue.backend.MooncakeStore.local_hostname":[{"since":"0.8", "default":"localhost"}],
"transfer_queue.backend.MooncakeStore.master_server_address":[{"since":"0.8", "default":"localhost:50124"}],
"transfer_queue.backend.MooncakeStore.metadata_server":[{"since":"0.8", "default":"localhost:50123"}],
"transfer_queue.backend.MooncakeStore.protocol":[{"since":"0.8", "default":"tcp"}],
"transfer_queue.backend.SimpleStorage.num_data_storage_units":[{"since":"0.8", "default":8}],
"transfer_queue.backend.SimpleStorage.total_storage_size":[{"since":"0.8", "default":100000}],
"transfer_queue.backend.storage_backend":[{"since":"0.8", "default":"SimpleStorage"}],
"transfer_queue.enable":[{"since":"0.6", "default":false}], "transfer_queue.metrics.enabled":[{"since":"0.8",
"default":false}], "transfer_queue.metrics.port":[{"since":"0.8", "default":0}]}}
"""
# What a TRL config inherits where its table begins later: defaults of transformers that never changed.
INHERITED = {
    "bf16": False,
    "gradient_accumulation_steps": 1,
    "gradient_checkpointing": False,
    "learning_rate": 5e-5,
    "logging_steps": 500,
    "per_device_train_batch_size": 8,
    "remove_unused_columns": True,
    "use_liger_kernel": False,
}
ABSENT = object()  # the default of a setting that a version does not have


@functools.cache
def changes(package: str) -> dict:
    return json.loads(TRL_CHANGES if package == "trl" else VERL_CHANGES)


def numbers(version: str) -> tuple[int, ...]:
    """A version up to its minor number, for comparison."""
    return tuple(int(part) for part in version.split(".")[:2])


def known_version(package: str, text: str) -> str:
    """The minor version of the table for `0.14`, `0.14.2` or `v0.14`; UserError for one that it does not have."""
    versions = changes(package)["versions"]
    try:
        wanted = numbers(text.removeprefix("v"))
    except ValueError:
        wanted = ()
    for version in versions:
        if numbers(version) == wanted:
            return version
    known = f"{package}=={versions[0]} to {versions[-1]}"
    raise UserError(f"got --from {package}=={text}; expected a version of {known}; try `pip index versions {package}`")


def newest(package: str) -> str:
    return changes(package)["versions"][-1]


def entry_at(entries: list[dict], version: str) -> dict | None:
    """The entry that holds in a version; None before the first."""
    held = [entry for entry in entries if numbers(entry["since"]) <= numbers(version)]
    return held[-1] if held else None


# ------------------------------------------------------------------------- versions (src/programs/migrate/versions.py)

Use = tuple[str, str, list[dict]]  # what the file uses, where, its entries in the table


def pinned(package: str, file: str, text: str) -> tuple[str, str] | None:
    """(Version, where) of a pin PACKAGE==… in a file, or in a requirements.txt beside it."""
    pattern = re.compile(rf"\b{package}(?:\[[\w,]+\])?(?:\s*==\s*|(?:\.git)?@)v?(\d+\.\d+)")
    texts, near = {file: text}, Path(file).parent / "requirements.txt"
    if near.is_file():
        texts[str(near)] = near.read_text(encoding="utf-8", errors="replace")
    for name, content in texts.items():
        match = pattern.search(content)
        if match:
            return known_version(package, match[1]), f"{Path(name).name}: {match[0]}"
    return None


def is_there(entries: list[dict], version: str) -> bool:
    entry = entry_at(entries, version)
    return entry is not None and not entry.get("gone")


def fitting(package: str, file: str, named: list[Use]) -> list[str]:
    """The versions that have all that a file uses.

    Raises:
        UserError: there are none.
    """
    versions = changes(package)["versions"]
    lacking = {v: [use for use, _, entries in named if not is_there(entries, v)] for v in versions}
    chosen = [v for v in versions if not lacking[v]]
    if chosen:
        return chosen
    best = min(versions, key=lambda v: len(lacking[v]))
    missing = f"{best} is nearest and has no {', '.join(lacking[best])}"
    got = f"got {file}, which fits no version of {package}: {missing}"
    raise UserError(f"{got}; expected one that has all names; try --from {package}=={best}")


def check_fits(package: str, file: str, version: str, named: list[Use]) -> None:
    """Raise UserError for a version before the one that brought what the file uses."""
    for use, place, entries in named:
        if entries and entry_at(entries, version) is None:
            got = f"{file}, {place}: got --from {package}=={version} and {use}, there since {entries[0]['since']}"
            expected = f"expected a version from {entries[0]['since']} on"
            raise UserError(f"{got}; {expected}; try without --from, which says what fits")


def groups_of(versions: list[str], outcome: Callable) -> list[tuple[list[str], dict]]:
    """Versions that make the same run of a file, with what each makes of it."""
    groups: list[tuple[list[str], dict]] = []
    for version in versions:
        result = outcome(version)
        if groups and groups[-1][1] == result:
            groups[-1][0].append(version)
        else:
            groups.append(([version], result))
    return groups


def chosen_version(package: str, file: str, text: str, given: str, named: list[Use], outcome: Callable) -> tuple:
    """(Version, how it was found).

    Raises:
        UserError: several versions fit, and make different runs of the file.
    """
    if given:
        check_fits(package, file, given, named)
        return given, "given"
    pin = pinned(package, file, text)
    if pin:
        return pin[0], f"pinned in {pin[1]}"
    versions = fitting(package, file, named)
    groups = groups_of(versions, outcome)
    span = f"{package} {versions[0]}" + f" to {versions[-1]}" * (len(versions) > 1)
    if len(groups) == 1:
        return versions[-1], f"{span} fit by the names used, and make the same run"
    lines = []
    for name in dict.fromkeys(name for _, settings in groups for name in settings):
        parts: list[list] = []  # [first version, last version, value]
        for fit, settings in groups:
            value = settings.get(name, "as today")
            if parts and parts[-1][2] == value:
                parts[-1][1] = fit[-1]
            else:
                parts.append([fit[0], fit[-1], value])
        if len(parts) > 1:
            spans = ("-".join(dict.fromkeys(part[:2])) + f": {part[2]}" for part in parts)
            lines.append(f"  {name}: " + ", ".join(spans))
    likely = max((v for v in versions), key=numbers)
    got = f"got {file} without --from; {span} fit by the names used, and make different runs:"
    expected = f"expected one version; try --from {package}=={likely}, or that of the environment that ran it"
    raise UserError("\n".join([got, *lines, expected]))


# ------------------------------------------------------------------------------- edits (src/programs/migrate/edits.py)

BY_HAND = """\
{
"batch": {"since": "0.15", "why": "{size} counted prompts, each with {group} completions",
  "otherwise": "counts completions", "source": "TRL 0.14.0 trl/trainer/grpo_trainer.py:335"},
"temperature": {"since": "0.16",
  "why": "it sampled at the temperature; the loss's log-probs were not divided by it",
  "otherwise": "log-probs divided by {old}", "source": "TRL 0.14.0 trl/trainer/grpo_trainer.py:438, and 0.15"},
"top_k": {"since": "0.16", "why": "transformers, not vLLM, samples from 50 tokens where nothing is said",
  "otherwise": "all tokens", "source": "TRL 0.14.0 trl/trainer/grpo_trainer.py:331"},
"top_k_none": {"since": "0.27", "why": "None was all tokens", "otherwise": "that of the model's generation config",
  "source": "TRL 0.26.2 trl/trainer/grpo_trainer.py:1273"},
"mean_of_completions": {"since": "0.17", "why": "the loss was the mean over each completion", "otherwise": "dapo",
  "source": "TRL 0.14.0 trl/trainer/grpo_trainer.py:512, and 0.15"},
"mean_of_tokens": {"since": "0.17", "why": "the loss was the mean over the tokens of the micro-batch",
  "otherwise": "dapo", "source": "TRL 0.16.1 trl/trainer/grpo_trainer.py:932"},
"kl": {"since": "1.10", "why": "the KL was k3 alone", "otherwise": "k3 times the importance ratio",
  "source": "TRL 0.14.0 trl/trainer/grpo_trainer.py:454"},
"vllm_correction": {"since": "0.23", "why": "nothing corrected for the sampler",
  "otherwise": "weights of sequences outside the bound are 0",
  "source": "TRL 0.22.2 trl/trainer/grpo_trainer.py, which has no such setting"},
"vllm_correction_mode": {"since": "0.26", "why": "weights were bounded token by token",
  "otherwise": "sequence_mask", "source": "TRL 0.25.1 trl/trainer/grpo_trainer.py:1541"},
"vllm_server": {"since": "0.18", "why": "vLLM was a server", "otherwise": "colocate",
  "source": "TRL 0.17.0 trl/trainer/grpo_trainer.py:627"},
"padding": {"since": "0.15",
  "why": "left pads were tokens to the loss's model: the same only where a batch's prompts have one length",
  "otherwise": "masked", "source": "TRL 0.14.0 trl/trainer/grpo_trainer.py:432"},
"reference": {"since": "0.18",
  "why": "the reference was a copy of the model object: another one if it changed after loading",
  "otherwise": "loaded from the model's path", "source": "TRL 0.17.0 trl/trainer/grpo_trainer.py:430"},
"prompts": {"since": "0.28", "why": "prompts were cut on the left", "otherwise": "whole prompts",
  "source": "TRL 0.14.0 trl/trainer/grpo_trainer.py:383"},
"rloo": {"since": "0.22", "why": "{trainer} of {version} had the KL in the reward and PPO epochs over minibatches",
  "otherwise": "the loop of GRPO", "source": "TRL 0.21.0 trl/trainer/rloo_trainer.py:414"},
"dpo_length": {"since": "0.12", "why": "the length where nothing was said", "otherwise": "1024",
  "source": "TRL 0.11.4 trl/trainer/dpo_trainer.py:665"},
"wrapped": {"since": "0.19", "why": "packing cut one long text into pieces", "otherwise": "bfd",
  "source": "TRL 0.18.2 trl/data_utils.py:475"},
"end_token": {"since": "0.16", "why": "texts got no end token", "otherwise": "another text",
  "source": "TRL 0.15.2 trl/trainer/sft_trainer.py, which adds none"},
"dropout": {"since": "{since}", "why": "dropout was on", "otherwise": "True",
  "source": "the config of that version, which has no disable_dropout"},
"precision": {"since": "transformers 5.0", "why": "the default then", "otherwise": "that of the checkpoint",
  "source": "transformers 4.57.6 transformers/modeling_utils.py:2445"},
"kl_in_reward": {"since": "0.4", "why": "the KL was in the reward unless a KL loss was used", "otherwise": "no KL",
  "source": "verl 0.2.0.post2 verl/trainer/ppo/ray_trainer.py:917; 0.3: line 882"},
"dual_clip": {"since": "0.4", "why": "there was no second bound for negative advantages", "otherwise": "3.0",
  "source": "verl 0.3.0.post1 verl/trainer/ppo/core_algos.py:272"},
"data_seed": {"since": "0.6", "why": "the order of the rows had the seed 1",
  "otherwise": "another order in each run",
  "source": "verl 0.2.0.post2 verl/trainer/ppo/ray_trainer.py:475; 0.5: verl/trainer/main_ppo.py:327"},
"overlong": {"since": "0.3", "why": "overlong prompts were left out", "otherwise": "an error",
  "source": "verl 0.2.0.post2 verl/trainer/ppo/ray_trainer.py:469"},
"micro_batch": {"since": "0.4", "why": "it counted all GPUs of the job, divided by their number",
  "otherwise": "deprecated", "source": "verl 0.2.0.post2 verl/workers/fsdp_workers.py:125"},
"token_mean": {"since": "0.7",
  "why": "token-mean was over a micro-batch: the same only where a mini-batch is one of them, on one GPU",
  "otherwise": "over the mini-batch", "source": "verl 0.6.1 verl/trainer/ppo/core_algos.py"},
"sft_length": {"since": "0.13",
  "why": "the length was the model's longest, at most 1024: the same where the model has 1024 positions",
  "otherwise": "1024", "source": "TRL 0.12.2 trl/trainer/sft_trainer.py:307"},
"end_token_of_chat": {"since": "0.17",
  "why": "messages got an end token behind a chat template that ends with another one, as with a line break",
  "otherwise": "none", "source": "TRL 0.16.1 trl/trainer/sft_trainer.py:521"},
"whole_text": {"since": "0.17", "why": "the loss was over prompt and completion",
  "otherwise": "over the completion, for rows with both columns",
  "source": "TRL 0.16.1 trl/trainer/sft_trainer.py:488"}
}
"""


@dataclass(frozen=True)
class Row:
    """One line of the table of changes."""

    setting: str  # what the new file says
    since: str  # the version that changed it
    why: str
    otherwise: str = ""  # what today's package would do without the change
    source: str = ""  # file and line of the old package, where no signature shows it


def by_hand(setting: str, rule: str, **values) -> Row:
    """The line of the table for a rule of by_hand.json, with values in the place of its {names}."""
    return Row(setting, **{name: text.format(**values) for name, text in json.loads(BY_HAND)[rule].items()})


@dataclass(frozen=True)
class Edit:
    """`text` in the place of [start, end) of a file; an insertion where both are the same."""

    start: int
    end: int
    text: str
    row: Row | None = None  # None belongs to the edit before it


@dataclass
class Report:
    """What a migration changes, cannot express, and cannot see."""

    edits: list[Edit] = field(default_factory=list)
    impossible: list[dict] = field(default_factory=list)  # line, setting, why, nearest
    notes: list[str] = field(default_factory=list)

    def edit(self, start: int, end: int, text: str, row: Row | None = None) -> None:
        edit = Edit(start, end, text, row)
        if start == end or edit not in self.edits:  # two configs may share a dictionary
            self.edits.append(edit)

    def refuse(self, line, setting: str, why: str, nearest: str) -> None:
        entry = {"line": line, "setting": setting, "why": why, "nearest": nearest}
        if entry not in self.impossible:
            self.impossible.append(entry)

    def note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def rows(self, place) -> list[dict]:
        """The table, in the order of the file; `place` gives the line of an offset."""
        ordered = sorted((e for e in self.edits if e.row), key=lambda e: e.start)
        return [{"line": place(e.start), **asdict(e.row)} for e in ordered]


def edited(text: str, edits: list[Edit]) -> str:
    """The text with the edits; those at one place follow one another."""
    parts, at = [], 0
    for edit in sorted(edits, key=lambda e: (e.start, e.end)):
        parts += [text[at : edit.start], edit.text]
        at = max(at, edit.end)
    return "".join(parts) + text[at:]


# --------------------------------------------------------------- python source (src/programs/migrate/python_source.py)

MAGIC = re.compile(r"(\s*)[%!](.*)")
FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


@dataclass(frozen=True)
class Argument:
    """An argument of a call as it stands in the file: `name=value`, or an item of a dictionary that is spread."""

    name: str
    value: ast.expr
    start: int  # of the name, or of the value where it has none
    name_end: int
    end: int
    quoted: bool = False  # an item "name": value


def without_magics(cell: str) -> str:
    """A cell of a notebook as Python of the same length: lines of its shell and its magics do nothing."""
    lines, goes_on = cell.split("\n"), False
    whole = bool(re.match(r"\s*%%(bash|sh|html|writefile|script|javascript|markdown)", cell))
    for number, line in enumerate(lines):
        match = MAGIC.fullmatch(line)
        if whole or match or goes_on:
            goes_on = line.endswith("\\")
            indent = match[1] if match else ""
            lines[number] = (indent + "0#" + line[len(indent) + 2 :])[: len(line)]
    return "\n".join(lines)


class PythonSource:
    """The calls of a file and what their arguments are; a name that is bound twice is no constant."""

    def __init__(self, name: str, text: str):
        self.name, self.raw, self.notebook = name, text, None
        self.text, shown = text, text
        if name.endswith(".ipynb"):
            try:
                self.notebook = json.loads(text)
                self.cells = [c for c in self.notebook["cells"] if c["cell_type"] == "code"]
            except (ValueError, LookupError, TypeError) as error:
                raise UserError(
                    f"got {name}, which is no notebook ({error}); expected one; try it in Jupyter"
                ) from None
            sources = ["".join(cell["source"]) for cell in self.cells]
            self.text, shown = "\n".join(sources), "\n".join(map(without_magics, sources))
            self.starts = [*itertools.accumulate((len(s) + 1 for s in sources), initial=0)]
        try:
            self.tree = ast.parse(shown)
        except (SyntaxError, ValueError) as error:
            line = getattr(error, "lineno", None) or 1
            where = f"{name}, {self.place(self.offset(line, 0))}"
            raise UserError(f"{where}: got {error.args[0]}; expected Python; try python -m py_compile first") from None

    @cached_property
    def _lines(self) -> list[str]:
        return self.text.split("\n")

    @cached_property
    def _offsets(self) -> list[int]:
        return [*itertools.accumulate((len(line) + 1 for line in self._lines), initial=0)]

    def offset(self, line: int, column: int) -> int:
        """The place in the text of what ast gives: a line from 1, and a column in bytes."""
        return self._offsets[line - 1] + len(self._lines[line - 1].encode()[:column].decode(errors="ignore"))

    def span(self, node) -> tuple[int, int]:
        return self.offset(node.lineno, node.col_offset), self.offset(node.end_lineno, node.end_col_offset)

    def code(self, node) -> str:
        start, end = self.span(node)
        return self.text[start:end]

    def place(self, offset: int) -> str:
        """`line 3`, or `cell 2, line 3`."""
        start, prefix = 0, ""
        if self.notebook:
            number = max(i for i, start in enumerate(self.starts[:-1] or [0]) if start <= offset)
            start, prefix = self.starts[number], f"cell {number + 1}, "
        return f"{prefix}line {self.text.count(chr(10), start, offset) + 1}"

    def edited(self, edits: list[Edit]) -> str:
        """The file with the edits; a notebook without the outputs of the cells that changed."""
        if not self.notebook:
            return edited(self.text, edits)
        for cell, start, end in zip(self.cells, self.starts, self.starts[1:], strict=False):
            inside = [Edit(e.start - start, e.end - start, e.text) for e in edits if start <= e.start < end]
            if inside:
                cell["source"] = edited(self.text[start : end - 1], inside).splitlines(keepends=True)
                cell["outputs"], cell["execution_count"] = [], None
        indent = re.match(r"\{\s*\n( *)", self.raw)
        ending = "\n" if self.raw.endswith("\n") else ""
        return json.dumps(self.notebook, ensure_ascii=False, indent=len(indent[1]) if indent else None) + ending

    @cached_property
    def imports(self) -> dict[str, tuple[str, str, ast.AST]]:
        """Name in the file -> (module, name there, statement)."""
        names = {}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.ImportFrom):
                names |= {x.asname or x.name: (node.module or "", x.name, node) for x in node.names}
            elif isinstance(node, ast.Import):
                names |= {(x.asname or x.name).partition(".")[0]: (x.name, "", node) for x in node.names}
        return names

    def name_of(self, call: ast.expr) -> str:
        """The name of what is called, as its module calls it."""
        function = call.func if isinstance(call, ast.Call) else call
        if isinstance(function, ast.Attribute):
            return function.attr
        name = getattr(function, "id", "")
        return self.imports.get(name, ("", name))[1] or name

    @cached_property
    def calls(self) -> dict[str, list[ast.Call]]:
        calls = {}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Call):
                calls.setdefault(self.name_of(node), []).append(node)
        return calls

    @cached_property
    def definitions(self) -> dict[str, ast.AST]:
        kinds = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
        return {node.name: node for node in ast.walk(self.tree) if isinstance(node, kinds)}

    def fields(self, name: str) -> dict[str, ast.expr]:
        """Defaults of the fields that a class of the file declares, as of a dataclass."""
        values = {}
        for item in getattr(self.definitions.get(name), "body", []):
            if isinstance(item, ast.AnnAssign) and item.value and isinstance(item.target, ast.Name):
                made = isinstance(item.value, ast.Call) and self.name_of(item.value) == "field"
                default = [k.value for k in item.value.keywords if k.arg == "default"] if made else [item.value]
                values[item.target.id] = (default or [item.value])[0]
        return values

    @cached_property
    def constants(self) -> dict[str, ast.expr]:
        """Names that are bound once, and not changed by an item, an attribute or a method."""
        values, bound = {}, []
        for node in ast.walk(self.tree):
            bound += names_bound_by(node)
            if isinstance(node, ast.Assign | ast.AnnAssign) and node.value:
                target = node.targets[0] if isinstance(node, ast.Assign) else node.target
                if isinstance(target, ast.Name):
                    values[target.id] = node.value
        return {name: value for name, value in values.items() if bound.count(name) == 1}

    def is_global(self, node: ast.expr) -> bool:
        """Whether all names of an expression are the module's."""
        local = [n for f in ast.walk(self.tree) if isinstance(f, FUNCTIONS) for n in ast.walk(f)]
        inside = {name for n in local for name in names_bound_by(n)}
        return not any(isinstance(n, ast.Name) and n.id in inside for n in ast.walk(node))

    def statement_of(self, node: ast.expr) -> ast.stmt:
        """The innermost statement around an expression."""
        start, _ = self.span(node)
        around = [
            n for n in ast.walk(self.tree) if isinstance(n, ast.stmt) and self.span(n)[0] <= start < self.span(n)[1]
        ]
        return max(around, key=lambda n: self.span(n)[0])

    def function_of(self, node: ast.expr) -> ast.AST | None:
        """The innermost function around an expression."""
        start, _ = self.span(node)
        functions = [f for f in ast.walk(self.tree) if isinstance(f, FUNCTIONS)]
        around = [f for f in functions if self.span(f)[0] <= start < self.span(f)[1]]
        return max(around, key=lambda f: self.span(f)[0], default=None)

    def attributes(self, call: ast.Call) -> dict[str, ast.Assign]:
        """Assignments `config.name = value` to the object that a call makes."""
        names = {name for name in self.assigned_names if call in self.bound_to(name)}
        return {
            target.attr: node
            for node in ast.walk(self.tree)
            if isinstance(node, ast.Assign) and isinstance(target := node.targets[0], ast.Attribute)
            if isinstance(target.value, ast.Name) and target.value.id in names
        }

    @cached_property
    def assigned_names(self) -> dict[str, list[ast.expr]]:
        values = {}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                values.setdefault(node.targets[0].id, []).append(node.value)
        return values

    def bound_to(self, name: str) -> list[ast.expr]:
        """All that is assigned to a name."""
        return self.assigned_names.get(name, [])

    def hidden_changes(self, call: ast.Call) -> list[ast.Call]:
        """Calls `setattr(config, …)` and `vars(config).update(…)` on the object that a call makes."""
        names = {name for name in self.assigned_names if call in self.bound_to(name)}
        objects = [(change, change.args[0]) for change in self.calls.get("setattr", []) if change.args]
        objects += [(change, change.func) for change in self.calls.get("update", [])]
        return [c for c, node in objects if any(getattr(n, "id", "") in names for n in ast.walk(node))]

    def resolved(self, node):
        """An expression, or that which the name of a constant stands for."""
        for _ in range(4):
            if isinstance(node, ast.Name) and node.id in self.constants:
                node = self.constants[node.id]
        return node

    def value(self, node):
        """The literal of an expression or of sums and products of constants; ValueError for another thing."""
        node = self.resolved(node)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult | ast.Add | ast.Sub | ast.FloorDiv):
            left, right = self.value(node.left), self.value(node.right)
            if isinstance(left, int | float) and isinstance(right, int | float):
                operations = {ast.Mult: left * right, ast.Add: left + right, ast.Sub: left - right}
                return operations[type(node.op)] if type(node.op) in operations else left // right
        return ast.literal_eval(node)

    def arguments(self, call: ast.Call) -> tuple[dict[str, Argument], list[ast.expr]]:
        """(Arguments by keyword, those of a dictionary `**name` of this file too; what is spread and not seen)."""
        arguments, unseen = {}, []
        for keyword in call.keywords:
            start, end = self.span(keyword)
            if keyword.arg:
                arguments[keyword.arg] = Argument(keyword.arg, keyword.value, start, start + len(keyword.arg), end)
            else:
                inside, hidden = self.items(keyword.value)
                arguments, unseen = arguments | inside, unseen + hidden
        return arguments, unseen

    def items(self, node: ast.expr) -> tuple[dict[str, Argument], list[ast.expr]]:
        """(Items of a dictionary: literal, dict(…), merged with | or **; what of it is not seen)."""
        spread = self.resolved(node)
        if isinstance(spread, ast.Call) and self.name_of(spread) == "dict" and not spread.args:
            return self.arguments(spread)
        parts = [(None, spread.left), (None, spread.right)] if is_merge(spread) else []
        if isinstance(spread, ast.Dict) and all(key is None or isinstance(key, ast.Constant) for key in spread.keys):
            parts = [*zip(spread.keys, spread.values, strict=True)]
        elif not parts:
            return {}, [node]
        items, unseen = {}, []
        for key, value in parts:
            if key is None:
                inside, hidden = self.items(value)
                items, unseen = items | inside, unseen + hidden
            else:
                (first, name_end), (_, last) = self.span(key), self.span(value)
                items[str(key.value)] = Argument(str(key.value), value, first, name_end, last, quoted=True)
        return items, unseen

    def removal(self, argument: Argument) -> tuple[int, int]:
        """What to cut with an argument: its comma, and its line where it stands alone on it."""
        start, end = argument.start, argument.end
        after = re.compile(r"\s*,").match(self.text, end)
        if not after:  # the last one: the comma before it goes
            before = re.search(r",\s*$", self.text[:start])
            return (before.start(), end) if before else (start, end)
        end = after.end()
        line = self.text.rfind("\n", 0, start) + 1
        rest = re.compile(r"[ \t]*(#[^\n]*)?\n").match(self.text, end)
        if not self.text[line:start].strip() and rest:
            return line, rest.end()
        return start, re.compile(r"[ \t]*").match(self.text, end).end()

    def additions(self, call: ast.Call, items: list) -> list[Edit]:
        """Edits that put (text, row) behind the last argument of a call, in the form of its arguments."""
        _, end = self.span(call)
        given = [*call.args, *call.keywords]
        if not given:
            texts = [text for text, _ in items]
            return [Edit(end - 1, end - 1, ", " * bool(i) + t, items[i][1]) for i, t in enumerate(texts)]
        start, last = self.span(max(given, key=lambda x: self.span(x)[1]))
        line = self.text.rfind("\n", 0, start) + 1
        is_alone = not self.text[line:start].replace("*", "").strip()
        indent = re.match(r"[ \t]*", self.text[line:])[0]
        length = end - line + sum(len(text) + 2 for text, _ in items)
        before = (
            f"\n{indent}"
            if is_alone
            else f"\n{indent}    "
            if length > 120 and self.text[line:end].count("\n") == 0
            else " "
        )
        comma = re.compile(r"\s*,").match(self.text, last)
        behind = comma.end() if comma else last
        comment = re.compile(r"[ \t]*#[^\n]*").match(self.text, behind)
        place = comment.end() if comment else behind
        edits = [Edit(place, place, f"{before}{text},", row) for text, row in items]
        if not comma:  # the last one had none: it gets one, and the new last one none
            edits = [
                Edit(place, place, f"{before}{text}" + "," * (i < len(items) - 1), r)
                for i, (text, r) in enumerate(items)
            ]
            edits.insert(0, Edit(last, last, ","))
        return edits


def is_merge(node: ast.AST) -> bool:
    return isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr)


def runnable(name: str, text: str) -> str:
    """A file as Python: the code cells of a notebook without its magics."""
    if not name.endswith(".ipynb"):
        return text
    cells = [c for c in json.loads(text)["cells"] if c["cell_type"] == "code"]
    return "\n".join(without_magics("".join(cell["source"])) for cell in cells)


# ----------------------------------------------------------------------- trl names (src/programs/migrate/trl_names.py)

# old name -> (new name, "" for the same value or the expression of it); tables give those that they know
RENAMED = {
    "eval_packing": "eval_packing",
    "evaluation_strategy": "eval_strategy",
    "max_seq_length": "max_length",
    "no_cuda": "use_cpu",
    "per_gpu_train_batch_size": "per_device_train_batch_size",
    "per_gpu_eval_batch_size": "per_device_eval_batch_size",
    "push_to_hub_model_id": "hub_model_id",
    "push_to_hub_token": "hub_token",
    "use_liger": "use_liger_kernel",
    "use_liger_loss": "use_liger_kernel",
    "use_num_logits_to_keep": None,
    "vllm_guided_decoding_regex": "vllm_structured_outputs_regex",
    "vllm_importance_sampling_cap": "vllm_importance_sampling_clip_max",
    "vllm_max_model_len": "vllm_max_model_length",
    "wandb_log_unique_prompts": "log_unique_prompts",
}
# Of the machine, the log or a format: gone, and the run is the same without them.
LOSSLESS = set(
    "chars_per_token dataset_batch_size num_of_sequences use_logits_to_keep use_num_logits_to_keep vllm_device "
    "vllm_dtype vllm_enable_prefix_caching overwrite_output_dir logging_dir save_safetensors fp16_backend "
    "half_precision_backend fp16_opt_level use_mps_device jit_mode_eval use_ipex tpu_num_cores tpu_metrics_debug "
    "past_index ray_scope torchdynamo include_tokens_per_second push_to_hub_organization xpu_backend "
    "use_legacy_prediction_loop predict_with_generate padding_value label_pad_token_id is_encoder_decoder "
    "generate_during_eval base_model_attribute_name dataset_num_proc ds3_gather_for_generation infinite "
    "mp_parameters fsdp_min_num_params sharded_ddp eval_use_gather_object include_inputs_for_metrics "
    "exp_name vllm_max_model_len local_rank average_tokens_across_devices".split()
)
# Defaults that changed and say nothing of the objective, the sampling, the batch, the prompts or the schedule.
BESIDE_THE_RUN = LOSSLESS | set(
    "report_to disable_tqdm debug fsdp fsdp_config fsdp_transformer_layer_cls_to_wrap deepspeed accelerator_config "
    "hub_private_repo hub_token hub_revision hub_always_push ddp_backend ddp_timeout ddp_broadcast_buffers tf32 "
    "parallelism_config project trackio_space_id trackio_bucket_id trackio_static_space_id liger_kernel_config "
    "include_for_metrics include_num_input_tokens_seen log_level log_level_replica evaluation_strategy eval_strategy "
    "do_train do_eval do_predict use_cpu no_cuda dispatch_batches split_batches torch_compile torch_compile_backend "
    "torch_compile_mode dataloader_pin_memory dataloader_prefetch_factor dataloader_persistent_workers push_to_hub "
    "enable_jit_checkpoint restore_callback_states_from_checkpoint save_only_model save_on_each_node "
    "torch_empty_cache_steps use_liger_kernel use_liger_loss use_liger log_completions_hub_repo model_init_kwargs "
    "activation_checkpointing activation_checkpointing_kwargs gradient_checkpointing_kwargs vllm_server_timeout "
    "vllm_gpu_memory_utilization pad_to_multiple_of lr_scheduler_kwargs router_aux_loss_coef trust_remote_code "
    "f_divergence_type logging_first_step length_column_name output_dir run_name batch_eval_metrics "
    "dataloader_multiprocessing_context dataloader_in_order eval_on_start vllm_group_port resume_from_checkpoint "
    "skip_memory_metrics label_names optim_target_modules world_size push_to_hub_token push_to_hub_model_id "
    "bf16_full_eval fp16_full_eval save_total_limit tokenizer eval_delay warmup_ratio num_completions_to_print".split()
)
# Names that `trl` no longer has, with what to use.
GONE_NAMES = {
    "DataCollatorForCompletionOnlyLM": "rows with the columns prompt and completion, and completion_only_loss=True",
    "setup_chat_format": "clone_chat_template, or chat_template_path in SFTConfig",
    "AutoModelForCausalLMWithValueHead": "scripts/ppo_train.py, which has its own value head",
    "AutoModelForSeq2SeqLMWithValueHead": "scripts/ppo_train.py, for models without an encoder",
    "DPODataCollatorWithPadding": "leaving data_collator out",
    "RewardDataCollatorWithPadding": "leaving data_collator out",
    "ConstantLengthDataset": "packing=True with packing_strategy='wrapped'",
    "DDPOTrainer": "the package diffusers",
    "AlignPropTrainer": "the package diffusers",
    "IterativeSFTTrainer": "SFTTrainer",
    "BestOfNSampler": "generate with num_return_sequences",
    "LengthSampler": "random.randint",
    "SFTScriptArguments": "ScriptArguments",
    "DPOScriptArguments": "ScriptArguments",
    "get_kbit_device_map": "accelerate's PartialState().local_process_index",
}
# What `from trl import` finds today beside what the tables have.
TRL_TODAY = set(
    "BEMACallback DPOConfig DPOTrainer DatasetMixtureConfig DistillationConfig DistillationTrainer GRPOConfig "
    "GRPOTrainer KTOConfig KTOTrainer LogCompletionsCallback ModelConfig RLOOConfig RLOOTrainer RewardConfig "
    "RewardTrainer RichProgressCallback SFTConfig SFTTrainer ScriptArguments SyncRefModelCallback TrlParser "
    "WeaveCallback add_response_schema apply_chat_template chat_template_utils clone_chat_template "
    "create_reference_model data_utils extract_prompt get_dataset get_peft_config get_quantization_config "
    "get_training_chat_template init_zero_verbose is_conversational is_conversational_from_value "
    "maybe_apply_chat_template maybe_convert_to_chatml maybe_extract_prompt maybe_unpair_preference_dataset models "
    "pack_dataset prepare_multimodal_messages scripts supports_tool_calling trainer unpair_preference_dataset".split()
)
# Trainers that are gone -> (where to go, {setting of that script: TRL's names})
GONE_TRAINERS = {
    "PPOTrainer": "scripts/ppo_train.py",
    "PPOv2Trainer": "scripts/ppo_train.py",
}
CARRIED = {
    "lr": ("learning_rate",),
    "kl_coef": ("kl_coef", "init_kl_coef"),
    "ppo_epochs": ("num_ppo_epochs", "ppo_epochs"),
    "minibatches": ("num_mini_batches",),
    "clip_eps_low": ("cliprange",),
    "clip_eps_high": ("cliprange",),
    "vf_coef": ("vf_coef",),
    "gamma": ("gamma",),
    "gae_lambda": ("lam",),
    "max_new_tokens": ("response_length",),
    "temperature": ("temperature",),
    "seed": ("seed",),
    "batch_size": ("batch_size", "per_device_train_batch_size"),
}


# --------------------------------------------------------------------------- trl run (src/programs/migrate/trl_run.py)

CONFIGS = {
    "GRPOTrainer": "GRPOConfig",
    "RLOOTrainer": "RLOOConfig",
    "SFTTrainer": "SFTConfig",
    "DPOTrainer": "DPOConfig",
    "RewardTrainer": "RewardConfig",
    "KTOTrainer": "KTOConfig",
    "GKDTrainer": "GKDConfig",
    "OnlineDPOTrainer": "OnlineDPOConfig",
    "ORPOTrainer": "ORPOConfig",
    "CPOTrainer": "CPOConfig",
    "PPOTrainer": "PPOConfig",
    "PPOv2Trainer": "PPOv2Config",
}
SAMPLING = ("GRPOConfig", "RLOOConfig")
# Defaults that no version changed and that the arithmetic needs.
CONSTANT = {"num_generations": 8, "per_device_eval_batch_size": 8, "num_train_epochs": 3.0, "max_steps": -1} | {
    "weight_decay": 0.0,
    "max_grad_norm": 1.0,
    "seed": 42,
    "lr_scheduler_type": "linear",
    "fp16": False,
}
LATEST = "99.0"
ELSEWHERE = {"warmup_ratio", "group_by_length", "adafactor", "rpo_alpha", "max_prompt_length", "max_target_length"}
UNKNOWN = object()  # the value of an argument that is not a literal


def transformers_of(version: str) -> str:
    """The newest transformers that a version of TRL was published with; for the newest TRL, the newest of all."""
    return LATEST if version == newest("trl") else changes("trl")["transformers"][version][1]


def default_at(config: str, name: str, version: str):
    """The default of a setting in a version of TRL, its own or that of transformers; ABSENT where it has none."""
    tables = changes("trl")["configs"]
    own = entry_at(tables.get(config, {}).get(name, []), version)
    if own and not own.get("gone"):
        return own["default"]
    base = tables["TrainingArguments"].get(name)
    if base:
        entry = entry_at(base, transformers_of(version))
        return ABSENT if entry is None or entry.get("gone") else entry["default"]
    if config == "RLOOConfig" and name == "num_generations":
        return 2 if numbers(version) >= (0, 22) else ABSENT
    if config == "GRPOConfig" and name == "learning_rate":
        return 1e-6
    return INHERITED.get(name, CONSTANT.get(name, ABSENT))


def is_gone(config: str, name: str, version: str | None = None) -> dict | None:
    """The entry that says since when a setting is gone; None for one that is there, or was never known."""
    tables, version = changes("trl")["configs"], version or newest("trl")
    own = entry_at(tables.get(config, {}).get(name, []), version)
    base = entry_at(tables["TrainingArguments"].get(name, []), transformers_of(version))
    if base and base.get("gone") and not (own and not own.get("gone")):
        return base
    inherited = base or name in INHERITED or name in CONSTANT
    return own if own and own.get("gone") and not inherited else None


def changed_names(config: str) -> list[str]:
    tables = changes("trl")["configs"]
    return list(dict.fromkeys([*tables.get(config, {}), *tables["TrainingArguments"]]))


@dataclass
class TrlRun:
    """One config call of a script under one version: `values` has what was read off it."""

    source: PythonSource
    config: str  # the class that the trainer takes
    version: str
    call: ast.Call | None
    arguments: dict[str, Argument] = field(default_factory=dict)
    unseen: list[ast.expr] = field(default_factory=list)
    of_trainer: dict[str, Argument] = field(default_factory=dict)  # settings that old trainers took themselves

    def __post_init__(self):
        if self.call is not None and not self.arguments:
            self.arguments, self.unseen = self.source.arguments(self.call)
            self.attributes = self.source.attributes(self.call)
        else:
            self.attributes = {}
        self.of_class = self.source.fields(self.source.name_of(self.call)) if self.call is not None else {}
        self.aliases = {}  # today's name -> the one that the script gives
        for name in (*self.arguments, *self.attributes, *self.of_class):
            gone = is_gone(self.config, name)
            if gone and gone.get("renamed") and name not in ELSEWHERE:
                self.aliases[gone["renamed"]] = name

    def node(self, name: str) -> ast.expr | None:
        if name in self.attributes:
            return self.attributes[name].value
        argument = self.of_trainer.get(name) or self.arguments.get(name)
        if argument is None and name in self.aliases:
            return self.node(self.aliases[name])
        return argument.value if argument else self.of_class.get(name)

    def in_config(self, name: str) -> bool:
        return name in self.arguments or name in self.attributes

    def has(self, name: str) -> bool:
        return self.node(name) is not None

    def value(self, name: str):
        """A literal, the version's default, or UNKNOWN for an expression."""
        node = self.node(name)
        if node is None:
            default = default_at(self.config, name, self.version)
            return None if default is ABSENT else default
        try:
            return self.source.value(node)
        except (ValueError, TypeError):
            return UNKNOWN

    def text(self, name: str) -> str:
        """The source of an argument, or its default as Python."""
        node = self.node(name)
        return self.source.code(node) if node is not None else repr(self.value(name))

    def before(self, version: str) -> bool:
        return numbers(self.version) < numbers(version)


# ----------------------------------------------------------------- trl meanings (src/programs/migrate/trl_meanings.py)


@dataclass(frozen=True)
class Change:
    """A setting of the new script; `text` is None where it goes."""

    name: str
    text: str | None
    row: Row
    new_name: str = ""


def factor(text: str) -> str:
    """An expression as a factor of a product."""
    return text if re.fullmatch(r"[\w.]+|\([^()]*\)", text) else f"({text})"


def product(run: TrlRun, first: str, second: str) -> str:
    values = run.value(first), run.value(second)
    if UNKNOWN in values or any(run.has(n) and not isinstance(run.node(n), ast.Constant) for n in (first, second)):
        return f"{factor(run.text(first))} * {factor(run.text(second))}"
    return str(values[0] * values[1])


def changed(name: str, text: str, rule: str, **values) -> Change:
    return Change(name, text, by_hand(f"{name}={text}", rule, **values))


def batch(run: TrlRun, report: Report) -> Iterator[Change]:
    """GRPO before 0.15: sizes of batches count prompts, each with `num_generations` completions."""
    if run.config != "GRPOConfig" or not run.before("0.15"):
        return
    report.note(by_hand("", "padding").why)
    sizes = ["per_device_train_batch_size"]
    if any(run.has(n) and run.value(n) != "no" for n in ("eval_strategy", "evaluation_strategy")):
        sizes.append("per_device_eval_batch_size")
    for name in sizes:
        text = product(run, name, "num_generations")
        yield changed(name, text, "batch", size=run.text(name), group=run.text("num_generations"))


def sampling(run: TrlRun, report: Report) -> Iterator[Change]:
    """Sampling by default, and log-probs that the temperature did not divide."""
    if run.config != "GRPOConfig":
        return
    vllm = run.value("use_vllm")
    if run.before("0.16"):
        if run.value("temperature") != 1.0:
            old = run.text("temperature")
            yield changed("temperature", "1.0", "temperature", old=old)
            yield changed("generation_kwargs", f'{{"temperature": {old}}}', "temperature", old=old)
        if vllm is not True:
            yield changed("top_k", f"0 if {run.text('use_vllm')} else 50" if vllm is UNKNOWN else "50", "top_k")
    elif run.before("0.27") and run.has("top_k") and run.value("top_k") is None:
        yield changed("top_k", "0", "top_k_none")


def loss(run: TrlRun, report: Report) -> Iterator[Change]:
    """Aggregation before it had a name, the KL without the importance ratio, no correction for vLLM."""
    if run.config != "GRPOConfig":
        return
    if run.before("0.16"):
        yield changed("loss_type", '"grpo"', "mean_of_completions")
    elif run.before("0.17"):
        yield changed("loss_type", '"bnpo"', "mean_of_tokens")
    if run.before("0.26") and run.value("beta") != 0:
        yield changed("use_bias_correction_kl", "False", "kl")
    if run.value("use_vllm") in (False, None):
        return
    if run.before("0.23"):
        yield changed("vllm_importance_sampling_correction", "False", "vllm_correction")
    elif run.before("0.26"):
        yield changed("vllm_importance_sampling_mode", '"token_truncate"', "vllm_correction_mode")


def engine(run: TrlRun, report: Report) -> Iterator[Change]:
    """Where vLLM runs."""
    if run.config not in SAMPLING or run.value("use_vllm") in (False, None):
        return
    if run.before("0.16"):
        report.note(
            "vLLM had a device of its own; today it shares those of the training (vllm_mode colocate) or is a server"
        )
    elif run.before("0.18"):
        yield changed("vllm_mode", '"server"', "vllm_server")
    if run.value("vllm_mode") == "server" or (
        not run.before("0.16") and run.before("1.0") and not run.has("vllm_mode")
    ):
        report.note("the server: `vllm serve MODEL --logprobs-mode processed_logprobs` (references/grpo_trl.md)")


def schedule(run: TrlRun, report: Report) -> Iterator[Change]:
    """The share of warmup steps; fewer names for the same."""
    if run.has("warmup_ratio"):
        steps, ratio = run.value("warmup_steps") if run.has("warmup_steps") else 0, run.value("warmup_ratio")
        row = Row(
            f"warmup_steps={run.text('warmup_ratio')}",
            "transformers 5.0",
            "warmup_steps below 1 is the share",
            "TypeError",
        )
        if steps not in (0, UNKNOWN):
            yield Change("warmup_ratio", None, Row("", "transformers 5.0", "warmup_steps won over it", "TypeError"))
        elif ratio is not UNKNOWN and ratio >= 1:
            report.refuse("", f"warmup_ratio={ratio}", "warmup_steps counts steps from 1 on", "the number of all steps")
        else:
            yield Change("warmup_ratio", run.text("warmup_ratio"), row, "warmup_steps")
    if run.has("group_by_length"):
        text = run.text("group_by_length")
        chosen = {"True": '"group_by_length"', "False": '"random"'}.get(
            text, f'"group_by_length" if {text} else "random"'
        )
        row = Row(f"train_sampling_strategy={chosen}", "transformers 5.0", "its new name", "TypeError")
        yield Change("group_by_length", chosen, row, "train_sampling_strategy")
    if run.has("adafactor"):
        row = Row('optim="adafactor"', "transformers 5.0", "its new name", "TypeError")
        yield Change("adafactor", '"adafactor"' if run.value("adafactor") is True else None, row, "optim")


def preferences(run: TrlRun, report: Report) -> Iterator[Change]:
    """DPO: the SFT term by its new name."""
    if run.config != "DPOConfig":
        return
    if run.before("0.12") and run.value("max_length") is None:
        yield changed("max_length", "512", "dpo_length")
    if run.has("rpo_alpha") and run.value("rpo_alpha") is not None:
        kinds, alpha = run.text("loss_type") if run.has("loss_type") else '"sigmoid"', run.text("rpo_alpha")
        row = Row(f'loss_type=[{kinds}, "sft"]', "0.29", "rpo_alpha weighed the SFT term", "TypeError")
        yield Change("rpo_alpha", f"[1.0, {alpha}]", row, "loss_weights")
        yield Change("loss_type", f'[{kinds}, "sft"]', row)
    if "kto_pair" in str(run.value("loss_type")):
        report.refuse("", 'loss_type="kto_pair"', "DPOTrainer no longer has it", "KTOTrainer, on unpaired rows")
    for name in ("reference_free", "force_use_ref_model", "model_adapter_name", "ref_adapter_name"):
        if run.value(name) not in (None, False) and run.has(name):
            near = {"reference_free": "a ref_model of equal log-probs"}.get(name, "peft's own adapter names")
            report.refuse("", name, "DPOConfig no longer has it (0.29)", near)


def packing(run: TrlRun, report: Report) -> Iterator[Change]:
    """SFT: packing cut one long text; the average over micro-batches."""
    if run.config not in ("SFTConfig", "GKDConfig"):
        return
    if run.config == "SFTConfig" and run.before("0.17"):
        if "DataCollatorForCompletionOnlyLM" not in run.source.imports:
            yield changed("completion_only_loss", "False", "whole_text")
        if not run.before("0.16"):
            report.note(by_hand("", "end_token_of_chat").why)
    if run.config == "SFTConfig" and run.before("0.13") and run.value("max_seq_length") is None:
        report.note(by_hand("", "sft_length").why)
    if run.value("packing") not in (False, None):
        if run.before("0.19"):
            yield changed("packing_strategy", '"wrapped"', "wrapped")
        elif run.value("packing_strategy") == "ffd":
            yield Change(
                "packing_strategy", '"bfd"', Row('packing_strategy="bfd"', "0.20", "ffd is gone", "ValueError")
            )
            report.refuse("", 'packing_strategy="ffd"', "gone since 0.20", 'packing_strategy="bfd", other neighbours')
    if run.before("0.12") and run.value("gradient_accumulation_steps") not in (1, None):
        why = "the loss was the mean over micro-batches; since transformers 4.46 over the tokens of the step"
        report.refuse("", f"gradient_accumulation_steps={run.text('gradient_accumulation_steps')}", why, "as it is")


def dropout(run: TrlRun, report: Report) -> Iterator[Change]:
    """Dropout that no setting switched off yet."""
    first = {"RewardConfig": "0.14", "KTOConfig": "0.12"}.get(run.config)
    if first and run.before(first) and not run.has("disable_dropout"):
        yield changed("disable_dropout", "False", "dropout", since=first)


MEANINGS = (dropout, batch, sampling, loss, engine, schedule, preferences, packing)


# --------------------------------------------------------------- trl arguments (src/programs/migrate/trl_arguments.py)

SAME = ({None, 0, -1}, {"sigmoid"}, {True, "group"}, {False, "none"})  # values that are one setting


def python(value) -> str:
    if isinstance(value, dict) and set(value) == {"expr"}:
        return value["expr"]
    return f'"{value}"' if isinstance(value, str) and '"' not in value else repr(value)


def is_same(name: str, old, new) -> bool:
    """Whether two defaults mean the same."""
    if type(old) is type(new) and old == new:
        return True
    if isinstance(new, list) and new == [old]:
        return True
    neutral = name in ("top_k", "scale_rewards")
    return neutral and any(old in group and new in group for group in map(list, SAME))


def since_of(config: str, name: str, version: str) -> str:
    """The first version after this one that changed a setting."""
    tables = changes("trl")["configs"]
    for entry in tables.get(config, {}).get(name, []):
        if numbers(entry["since"]) > numbers(version):
            return entry["since"]
    base = tables["TrainingArguments"].get(name, [])
    from_version = changes("trl")["transformers"][version][1]
    return next(
        (f"transformers {e['since']}" for e in base if numbers(e["since"]) > numbers(from_version)), newest("trl")
    )


def given_changes(run: TrlRun, report: Report) -> dict[str, Change]:
    """What becomes of the arguments that the script gives and that are gone."""
    plan = {}
    for name in dict.fromkeys((*run.arguments, *run.attributes, *run.of_class)):
        gone = is_gone(run.config, name)
        if not gone:
            continue
        since = since_of(run.config, name, run.version)
        new = gone.get("renamed") or RENAMED.get(name)
        value, text = run.value(name), run.text(name)
        if name in ELSEWHERE:
            continue
        if new and new not in run.arguments:
            plan[name] = Change(name, text, Row(f"{new}={text}", since, f"the new name of {name}", "TypeError"), new)
        elif name in LOSSLESS or new or value in (None, False, ""):
            plan[name] = Change(name, None, Row("", since, f"{name} is gone, and the run is the same", "TypeError"))
        else:
            plan[name] = Change(name, None, Row("", since, f"{name} is gone", "TypeError"))
            place = run.source.place((run.arguments.get(name) or PLACELESS).start)
            report.refuse(place, f"{name}={text}", f"gone since {since}", "leaving it out")
    return plan


PLACELESS = Argument("", ast.Constant(None), 0, 0, 0)


def default_changes(run: TrlRun) -> dict[str, Change]:
    """Defaults that changed and that the script does not give, with their old values."""
    plan = {}
    for name in changed_names(run.config):
        if run.has(name) or name in BESIDE_THE_RUN:
            continue
        old, new = default_at(run.config, name, run.version), default_at(run.config, name, newest("trl"))
        if old is ABSENT or new is ABSENT or is_same(name, old, new) or is_idle(run, name):
            continue
        since = since_of(run.config, name, run.version)
        row = Row(f"{name}={python(old)}", since, "its default then", python(new))
        plan[name] = Change(name, python(old), row)
    return plan


def is_idle(run: TrlRun, name: str) -> bool:
    """Whether a setting cannot act beside what the script gives."""
    if name == "use_bias_correction_kl":
        return run.value("beta") == 0
    if name == "bf16":
        return run.has("fp16") and run.value("fp16") is not False
    if name.startswith("vllm_"):
        return run.value("use_vllm") in (False, None)
    if name.startswith("ref_model_"):
        return run.value("sync_ref_model") in (False, None)
    if name == "packing_strategy":
        return run.value("packing") in (False, None)
    if name == "f_alpha_divergence_coef":
        return "alpha" not in str(run.value("f_divergence_type")).lower()
    if name == "logging_steps":
        return run.value("logging_strategy") in ("epoch", "no")
    return name == "average_tokens_across_devices"


def planned(run: TrlRun, report: Report) -> dict[str, Change]:
    plan = given_changes(run, report) | default_changes(run)
    for meaning in MEANINGS:
        for change in meaning(run, report):
            plan[change.name] = change
    if run.has("generation_kwargs") and "generation_kwargs" in plan:
        merged = f"{{**{plan['generation_kwargs'].text}, **{run.text('generation_kwargs')}}}"
        plan["generation_kwargs"] = Change("generation_kwargs", merged, plan["generation_kwargs"].row)
    return plan


def write_arguments(run: TrlRun, plan: dict[str, Change], report: Report) -> list[Change]:
    """Edit the given arguments; the additions that found no place of a removed one come back."""
    additions = [change for name, change in plan.items() if not run.in_config(name) and change.text is not None]
    start, end = run.source.span(run.call)
    own = [a for a in run.arguments.values() if start <= a.start < end]  # others may stand in a shared dictionary
    for name, change in plan.items():
        argument = run.arguments.get(name)
        if argument is None:
            if name in run.attributes:
                edit_attribute(run, name, change, report)
            continue
        is_shared = argument not in own
        if change.text is None and additions and not is_shared:
            report.edit(argument.end, argument.end, "", change.row)
            change = additions.pop(0)
        if change.text is None:
            report.edit(*run.source.removal(argument), "", change.row)
            continue
        new = change.new_name or change.name
        text = f'"{new}": {change.text}' if argument.quoted else f"{new}={change.text}"
        report.edit(argument.start, argument.end, text, change.row)
    return additions


def edit_attribute(run: TrlRun, name: str, change: Change, report: Report) -> None:
    """`config.name = value` behind the call."""
    statement = run.attributes[name]
    start, end = run.source.span(statement)
    if change.text is None:
        report.edit(start, end, f"pass  # {name} is gone", change.row)
        return
    target = run.source.code(statement.targets[0].value)
    report.edit(start, end, f"{target}.{change.new_name or name} = {change.text}", change.row)


def add_to_call(run: TrlRun, call: ast.Call, additions: list[Change], report: Report) -> None:
    """Put new arguments behind the last one of a call."""
    if not additions:
        return
    if run.unseen:
        shown = ", ".join(run.source.code(node) for node in run.unseen)
        place = run.source.place(run.source.span(call)[0])
        names = ", ".join(change.name for change in additions)
        why = f"made at run time: nothing says whether it has {names}, whose defaults changed"
        report.refuse(place, f"**{shown}", why, offer_to_read(run, shown))
        return
    for edit in run.source.additions(call, [(f"{c.new_name or c.name}={c.text}", c.row) for c in additions]):
        report.edits.append(edit)


def offer_to_read(run: TrlRun, name: str) -> str:
    """The command that migrates the file that a dictionary is read from."""
    node = run.source.resolved(run.unseen[0])
    if any(isinstance(n, ast.Dict) or n in run.source.calls.get("dict", []) for n in run.source.bound_to(name)):
        return f"one dictionary {name} with all settings, which nothing changes later"
    files = [
        n.value
        for n in ast.walk(node)
        if isinstance(n, ast.Constant) and str(n.value).endswith((".yaml", ".yml", ".json"))
    ]
    file = files[0] if files else f"{name}.yaml" if name.isidentifier() else "FILE.yaml"
    return (
        f"migrate.py {file} --config_class {run.config} --from trl=={run.version} --out NEW.yaml, with what {name} has"
    )


# ------------------------------------------------------------------- trl prompts (src/programs/migrate/trl_prompts.py)

SAMPLED = '''

class {name}({trainer}):
    """Prompts as TRL {version} made them."""

    def _tokenize_prompts(self, prompts):
        if isinstance(prompts[0], str):  # plain text{plain}
            ids, images, fields = self.processing_class(text=prompts{special})["input_ids"], None, {}
        else:
            ids, images, fields = super()._tokenize_prompts(prompts)
        return [row[-{limit}:] for row in ids], images, fields
'''
PAIRED = '''

class {name}({trainer}):
    """Prompts cut on the left, as in TRL {version}."""

    def _prepare_dataset(self, *args, **kwargs):
        rows = super()._prepare_dataset(*args, **kwargs)
        return rows.map(lambda row: {body})
'''

TEXTS = '''

class {name}({trainer}):
    """Texts without an end token behind them, as in TRL {version}."""

    def _prepare_dataset(self, rows, tokenizer, args, packing, formatting_func, *rest):
        text = formatting_func or (lambda row: row[args.dataset_text_field])
        rows = rows.map(lambda row: {"input_ids": tokenizer(text(row))["input_ids"]}, remove_columns=rows.column_names)
        return super()._prepare_dataset(rows, tokenizer, args, packing, None, *rest)
'''


def cut_prompts(run: TrlRun, trainer: str, plan: dict[str, Change], report: Report) -> str | None:
    """A class under the expression `trainer` that cuts prompts as the old version did; None where it cut none.

    Takes the settings that are gone out of the plan's way.
    """
    names = [n for n in ("max_prompt_length", "max_target_length") if run.in_config(n)]
    for name in names:
        plan[name] = Change(name, None, Row("", "0.28", f"no trainer has {name}", "TypeError"))
    limit, version = run.value("max_prompt_length"), run.version
    shown = run.text("max_prompt_length")
    if limit is UNKNOWN and not run.source.is_global(run.node("max_prompt_length")):
        shown = "self.longest_prompt"  # the class stands outside the function: the migration sets it there
    if run.config in SAMPLING:
        has_bos = not run.before("0.26")
        if (limit is None and has_bos) or not run.before("0.29"):
            return None
        special = "" if has_bos else ", add_special_tokens=False"
        keep = "0" if limit is None else f"({shown} or 0)" if limit is UNKNOWN else shown
        text = SAMPLED.replace("[row[-{limit}:] for row in ids]", "ids") if limit is None else SAMPLED
        values = {"special": special, "plain": "" if has_bos else ": no BOS token", "limit": keep}
    elif run.config == "DPOConfig" and run.before("0.29"):
        if limit is None and run.before("0.12"):
            limit, shown = 128, "128"
        if limit in (None, -1):
            return None
        answer = run.text("max_completion_length") if run.value("max_completion_length") not in (None, -1) else ""
        body = f'{{"prompt_ids": row["prompt_ids"][-{shown}:]}}'
        if answer:
            cuts = "".join(f', "{key}": row["{key}"][:{answer}]' for key in ("chosen_ids", "rejected_ids"))
            body = body[:-1] + cuts + "}"
        text, values = PAIRED, {"body": body}
    else:
        if names and limit not in (None, -1):
            report.refuse("", f"max_prompt_length={shown}", "prompts are no longer cut", "rows that are short enough")
        return None
    for key, value in (values | {"trainer": trainer, "version": version}).items():
        text = text.replace(f"{{{key}}}", value)
    return text


def text_as_it_is(run: TrlRun, trainer: str, moved: dict, arguments: dict) -> str | None:
    """A class that tokenizes plain texts as SFT did before 0.16; None where it makes no difference."""
    has_text = run.has("dataset_text_field") or "dataset_text_field" in moved or "formatting_func" in arguments
    packs = run.value("packing") not in (False, None)
    if run.config != "SFTConfig" or not run.before("0.16") or packs or not has_text:
        return None
    return TEXTS.replace("{trainer}", trainer).replace("{version}", run.version)


# ------------------------------------------------------------------- trl rewards (src/programs/migrate/trl_rewards.py)

WHY = "the trainer also passes completion_ids, trainer_state and more by keyword"


def add_keywords(source: PythonSource, function: ast.AST, report: Report) -> None:
    """Put **kwargs behind the parameters of a function that has none."""
    given = function.args
    if given.kwarg:
        return
    row = Row("**kwargs", "0.18", WHY, "TypeError")
    nodes = [*given.posonlyargs, *given.args, *given.kwonlyargs, *given.defaults, *filter(None, given.kw_defaults)]
    nodes += [given.vararg] if given.vararg else []
    if nodes:
        end = max(source.span(node)[1] for node in nodes)
        if any(edit.start == end and edit.text == ", **kwargs" for edit in report.edits):
            return  # another trainer has the same reward
        report.edit(end, end, ", **kwargs", row)
        return
    start = source.span(function)[0]
    end = start + len("lambda") if isinstance(function, ast.Lambda) else source.text.index("(", start) + 1
    report.edit(end, end, " **kwargs" if isinstance(function, ast.Lambda) else "**kwargs", row)


def reward_functions(source: PythonSource, node: ast.expr) -> tuple[list[ast.AST], list[str]]:
    """(Functions of the file that an expression names, names that it imports)."""
    functions, imported, waiting, seen = [], [], [node], set()
    while waiting:
        for part in ast.walk(waiting.pop()):
            if isinstance(part, ast.Lambda):
                functions.append(part)
            if not isinstance(part, ast.Name) or part.id in seen:
                continue
            seen.add(part.id)
            if part.id in source.definitions:
                functions += contract(source.definitions[part.id])
            elif part.id in source.imports:
                imported.append(part.id)
            elif part.id in source.constants:
                waiting.append(source.constants[part.id])
    return functions, imported


def contract(definition: ast.AST) -> list[ast.AST]:
    """What a trainer calls of a definition: a function, what it returns, or the method of a class."""
    if isinstance(definition, ast.ClassDef):
        return [x for x in definition.body if isinstance(x, FUNCTIONS) and x.name == "__call__"]
    inner = [x for x in ast.walk(definition) if isinstance(x, FUNCTIONS) and x is not definition]
    names = {x.arg for x in [*definition.args.args, *definition.args.kwonlyargs]}
    returned = [x for x in inner if {"completions"} & {a.arg for a in x.args.args}]
    return [definition] if "completions" in names or not returned else returned


def mend_rewards(source: PythonSource, node: ast.expr | None, report: Report) -> None:
    """Give every reward function of a trainer **kwargs; say which ones lie in other files."""
    functions, imported = reward_functions(source, node) if node is not None else ([], [])
    if not functions and not imported:
        named = [x for x in source.definitions.values() if not isinstance(x, ast.ClassDef)]
        functions = [x for x in named if "completions" in {a.arg for a in x.args.args}]
    done = set()
    for function in functions:
        if id(function) not in done:
            done.add(id(function))
            add_keywords(source, function, report)
    for name in imported:
        check_imported(source, name, report)


def check_imported(source: PythonSource, name: str, report: Report) -> None:
    """Say where an imported reward function needs **kwargs; a file that is not here cannot be seen."""
    module, original, _ = source.imports[name]
    file = Path(source.name).parent / (module.lstrip(".").replace(".", "/") + ".py")
    if module.split(".")[0] in ("functools", "trl", "transformers", "torch", "math", "re"):
        return
    if not file.is_file():
        report.note(f"{name} is imported from {module}: it needs **kwargs, which cannot be seen here")
        return
    try:
        other = PythonSource(str(file), file.read_text(encoding="utf-8"))
    except UserError:
        return
    lacking = list(contract(other.definitions[original])) if original in other.definitions else []
    for function in lacking:
        if not function.args.kwarg:
            place = other.place(other.span(function)[0])
            report.refuse(place, f"{file.name}:{original}", WHY, f"**kwargs in {file.name}, {place}")


# --------------------------------------------------------------------- trl models (src/programs/migrate/trl_models.py)

NEW_NAMES = {"torch_dtype": "dtype", "use_auth_token": "token"}
QUANTISED = ("load_in_4bit", "load_in_8bit")
SINCE = "transformers 5.0"


def is_model(source: PythonSource, call: ast.Call) -> bool:
    owner = call.func.value if isinstance(call.func, ast.Attribute) else None
    name = source.name_of(owner) if owner is not None else ""
    return name.startswith("AutoModel") or name.endswith(("ForCausalLM", "ForSequenceClassification"))


def rename_arguments(source: PythonSource, arguments: dict, report: Report) -> None:
    for old, new in NEW_NAMES.items():
        if old in arguments and new not in arguments:
            argument = arguments[old]
            text = f'"{new}"' if argument.quoted else new
            row = Row(f"{new}={source.code(argument.value)}", SINCE, f"the new name of {old}", "ignored: fp32")
            report.edit(argument.start, argument.name_end, text, row)


def mend_loading(source: PythonSource, version: str, report: Report) -> set[str]:
    """Edit calls of from_pretrained; names that the script has to import from transformers."""
    wanted = set()
    for call in source.calls.get("from_pretrained", []):
        if not is_model(source, call):
            continue
        arguments, unseen = source.arguments(call)
        rename_arguments(source, arguments, report)
        if flash := arguments.get("use_flash_attention_2"):
            text = 'attn_implementation="flash_attention_2"'
            if source.code(flash.value) != "True":
                text = f'attn_implementation="flash_attention_2" if {source.code(flash.value)} else "sdpa"'
            report.edit(flash.start, flash.end, text, Row(text, SINCE, "its new name", "TypeError"))
        bits = [n for n in QUANTISED if n in arguments]
        for name in bits:
            argument = arguments[name]
            text = f"quantization_config=BitsAndBytesConfig({name}={source.code(argument.value)})"
            row = Row(text, SINCE, f"{name} is no longer an argument", "TypeError")
            if argument.quoted or len(bits) > 1 or "quantization_config" in arguments:
                place = source.place(argument.start)
                report.refuse(place, name, "no longer an argument", "quantization_config=BitsAndBytesConfig(…)")
                continue
            report.edit(argument.start, argument.end, text, row)
            wanted.add("BitsAndBytesConfig")
        is_old = numbers(transformers_of(version)) < (5, 0)
        if is_old and not unseen and not {"torch_dtype", "dtype"} & {*arguments}:
            kind = "float16" if bits or "quantization_config" in arguments else "float32"
            row = by_hand(f'dtype="{kind}"', "precision")
            report.edits += source.additions(call, [(f'dtype="{kind}"', row)])
    for argument in model_kwargs(source):
        rename_arguments(source, argument, report)
    return wanted


LORA = ("r", "lora_alpha", "lora_dropout", "target_modules", "bias", "use_rslora", "modules_to_save")


def name_unsloth(source: PythonSource, report: Report) -> None:
    """Say that Unsloth replaces code of TRL, and what each of its calls is without it."""
    names = {n: x for n, x in source.imports.items() if x[0].split(".")[0] in ("unsloth", "unsloth_zoo")}
    for module, _, statement in names.values():
        why = f"{module} replaces code of TRL and of the model: its run is not that of TRL alone"
        nearest = "leaving its imports out, with what stands below for its calls"
        report.refuse(source.place(source.span(statement)[0]), module, why, nearest)
    for method, calls in source.calls.items():
        for call in calls:
            function = call.func.value if isinstance(call.func, ast.Attribute) else call.func
            if getattr(function, "id", "") in names:
                place = source.place(source.span(call)[0])
                report.refuse(place, source.code(call.func), "Unsloth's", plain(source, call, method))


def plain(source: PythonSource, call: ast.Call, method: str) -> str:
    """What a call of Unsloth is with transformers and peft."""
    given = {name: source.code(argument.value) for name, argument in source.arguments(call)[0].items()}
    if method == "from_pretrained":
        model = given.get("model_name") or (source.code(call.args[0]) if call.args else "NAME")
        bits = next(
            (n for n in QUANTISED if given.get(n) == "True"), "load_in_4bit" if not {*QUANTISED} & {*given} else ""
        )
        quantised = f", quantization_config=BitsAndBytesConfig({bits}=True)" if bits else ""
        kind = given.get("dtype", '"auto"')
        loader = f"AutoModelForCausalLM.from_pretrained({model}, dtype={kind}{quantised})"
        return f"{loader} and AutoTokenizer.from_pretrained({model})"
    if method == "get_peft_model":
        settings = ", ".join(f"{name}={given[name]}" for name in LORA if name in given)
        return f"peft_config=LoraConfig({settings}) as an argument of the trainer"
    if "bfloat16" in method:
        return "torch.cuda.is_bf16_supported()"
    return "leaving it out"


def model_kwargs(source: PythonSource) -> list[dict]:
    """Dictionaries that are given as model_init_kwargs, as arguments."""
    nodes = [k.value for calls in source.calls.values() for call in calls for k in call.keywords]
    keys = [k.arg for calls in source.calls.values() for call in calls for k in call.keywords]
    named = [n for n, key in zip(nodes, keys, strict=True) if key and key.endswith("model_init_kwargs")]
    named += [
        node.value
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "attr", "").endswith("model_init_kwargs")
    ]
    found = []
    for node in {id(source.resolved(n)): source.resolved(n) for n in named}.values():
        spread = ast.Call(func=ast.Name("dict"), args=[], keywords=[])
        if isinstance(node, ast.Dict):
            spread.keywords = [ast.keyword(arg=None, value=node)]
            ast.copy_location(spread.keywords[0], node)
            found.append(source.arguments(spread)[0])
        elif isinstance(node, ast.Call):
            found.append(source.arguments(node)[0])
    return found


# ----------------------------------------------------------------------- trl calls (src/programs/migrate/trl_calls.py)

PLACES = {  # the first arguments of a trainer by their places, as far as they are those of all versions
    "GRPOTrainer": ("model", "reward_funcs", "args", "train_dataset", "eval_dataset", "processing_class"),
    "RLOOTrainer": ("model", "reward_funcs", "args", "train_dataset", "eval_dataset", "processing_class"),
    "SFTTrainer": ("model", "args", "data_collator", "train_dataset", "eval_dataset"),
    "DPOTrainer": ("model", "ref_model", "args", "data_collator", "train_dataset", "eval_dataset"),
    "KTOTrainer": ("model", "ref_model", "args"),
    "OnlineDPOTrainer": ("model", "ref_model", "reward_funcs"),
    "RewardTrainer": ("model", "args", "data_collator", "train_dataset", "eval_dataset"),
}
NEW_ARGUMENTS = {"tokenizer": "processing_class", "reward_model": "reward_funcs", "config": "args"} | {
    "reward_processing_class": "reward_processing_classes"
}
ARGUMENTS_WITHOUT_EQUAL = {"judge": "a reward function that asks the judge", "model_init": "model="}
COPYING = {"replace", "deepcopy", "copy", "make", "partial"}  # calls that make a config of another one


def trainer_calls(source: PythonSource) -> list[tuple[str, ast.Call]]:
    """Calls of TRL's trainers, and of the script's own classes that are made of one."""
    calls = [(name, call) for name in CONFIGS for call in source.calls.get(name, [])]
    for name, definition in source.definitions.items():
        for base in getattr(definition, "bases", []):
            if source.name_of(base) in CONFIGS:
                calls += [(source.name_of(base), call) for call in source.calls.get(name, [])]
    return sorted(calls, key=lambda pair: source.span(pair[1]))


def config_call(source: PythonSource, trainer: str, call: ast.Call) -> tuple[ast.Call | None, ast.expr | None]:
    """(The call that makes the trainer's args, what stands there)."""
    arguments, _ = source.arguments(call)
    places = PLACES.get(trainer, ())
    node = next((arguments[n].value for n in ("args", "config") if n in arguments), None)
    if node is None and "args" in places and len(call.args) > places.index("args"):
        node = call.args[places.index("args")]
    made = source.resolved(node)
    if isinstance(made, ast.Name):  # bound more than once, or changed behind its call
        makers = [
            n.value
            for n in ast.walk(source.tree)
            if isinstance(n, ast.Assign)
            and isinstance(n.value, ast.Call)
            and getattr(n.targets[0], "id", "") == made.id
        ]
        made = makers[0] if len(makers) == 1 else made
    return (made if isinstance(made, ast.Call) and is_config(source, made) else None), node


def is_config(source: PythonSource, call: ast.Call) -> bool:
    name = source.name_of(call)
    return name in CONFIGS.values() or name == "TrainingArguments" or config_base(source, name) is not None


def config_base(source: PythonSource, name: str) -> str | None:
    """TRL's config under a class of the script."""
    bases = getattr(source.definitions.get(name), "bases", [])
    return next((source.name_of(b) for b in bases if source.name_of(b) in CONFIGS.values()), None)


class TrlMigration:
    """One script from one version of TRL to the newest."""

    def __init__(self, source: PythonSource, version: str):
        self.source, self.version, self.report = source, version, Report()
        self.runs: list[TrlRun] = []
        self.imports: dict[str, set[str]] = {"trl": set(), "transformers": set()}
        self.done: set[int] = set()

    def migrate(self) -> Report:
        for trainer, call in trainer_calls(self.source):
            if trainer in GONE_TRAINERS or (trainer == "RLOOTrainer" and numbers(self.version) < (0, 22)):
                self.carry_over(trainer, call)
            else:
                self.trainer(trainer, call)
        self.lone_configs()
        self.imports["transformers"] |= mend_loading(self.source, self.version, self.report)
        name_unsloth(self.source, self.report)
        self.names()
        self.add_imports()
        return self.report

    def lone_configs(self) -> None:
        """Configs that no trainer of this file takes, as those that a function returns."""
        for config in CONFIGS.values():
            for call in self.source.calls.get(config, []):
                if id(call) in self.done or config in ("PPOConfig", "PPOv2Config"):
                    continue
                run = TrlRun(self.source, config, self.version, call)
                plan = planned(run, self.report)
                if cut_prompts(run, "", plan, Report()) and run.has("max_prompt_length"):
                    place, shown = self.source.place(self.source.span(call)[0]), run.text("max_prompt_length")
                    why = "prompts are no longer cut, and the trainer of this config cannot be seen"
                    nearest = "rows that are short enough, or this number in the class that cuts prompts"
                    self.report.refuse(place, f"max_prompt_length={shown}", why, nearest)
                self.config(run, call, plan)

    def trainer(self, trainer: str, call: ast.Call) -> None:
        source, report = self.source, self.report
        config = CONFIGS[trainer]
        made, node = config_call(source, trainer, call)
        arguments, unseen = source.arguments(call)
        run = TrlRun(source, config, self.version, made)
        moved = self.moved_arguments(trainer, arguments, run)
        plan = planned(run, report)
        base = source.code(call.func)
        new_class = cut_prompts(run, base, plan, report) or text_as_it_is(run, base, moved, arguments)
        plan |= moved
        place = source.place(source.span(call)[0])
        model = arguments["model"].value if "model" in arguments else next(iter(call.args), None)
        is_path = isinstance(source.resolved(model), ast.Constant)
        if config == "GRPOConfig" and run.before("0.18") and run.value("beta") != 0 and not is_path:
            report.note(by_hand("", "reference").why)
        first = PLACES.get(trainer, ())[: 2 if trainer == "DPOTrainer" and run.before("0.13") else None]
        if len(call.args) > len(first):
            shown, why = source.code(call.args[len(first)]), f"{trainer}'s arguments have other places today"
            report.refuse(place, shown, why, "NAME=VALUE for each argument")
        if made is not None and id(made) not in self.done:
            self.config(run, made, plan)
        elif made is None and node is None and not unseen:
            self.add_config(run, trainer, call, plan)
        elif made is None:
            self.unseen_config(run, place, node, unseen, new_class)
        self.edit_trainer(trainer, call, arguments, new_class)
        if new_class and "self.longest_prompt" in new_class:
            self.set_longest_prompt(run, call)
        methods = [x.name for x in getattr(source.definitions.get(base), "body", []) if isinstance(x, ast.FunctionDef)]
        if overridden := [name for name in methods if name != "__init__"]:
            why = f"written for the {trainer} of {self.version}, whose methods it replaces"
            report.refuse(place, f"{base}.{', '.join(overridden)}", why, "a comparison with the methods of today's")
        if trainer == "RewardTrainer" and "input_ids_chosen" in source.text:
            nearest = "columns chosen and rejected of text or messages; or token ids as chosen_ids and rejected_ids"
            report.refuse(place, "input_ids_chosen", "RewardTrainer tokenizes, or takes other columns", nearest)
        if config in ("GRPOConfig", "RLOOConfig", "OnlineDPOConfig"):
            rewards = arguments["reward_funcs"].value if "reward_funcs" in arguments else None
            if rewards is None and "reward_funcs" in PLACES.get(trainer, ()) and len(call.args) > 1:
                rewards = call.args[1]
            mend_rewards(source, rewards, report)

    def set_longest_prompt(self, run: TrlRun, call: ast.Call) -> None:
        """Give the class that cuts prompts a limit that only the function of the trainer knows."""
        source, node, statement = self.source, run.node("max_prompt_length"), self.source.statement_of(call)
        start = source.span(statement)[0]
        if source.function_of(node) is not source.function_of(call) or source.text[:start].split("\n")[-1].strip():
            shown = f"max_prompt_length={source.code(node)}"
            nearest = "longest_prompt = NUMBER in the class that cuts prompts"
            self.report.refuse(source.place(start), shown, "known inside a function only", nearest)
            return
        name = next(edit.text for edit in reversed(self.report.edits) if edit.start == source.span(call.func)[0])
        text = f"{name}.longest_prompt = {source.code(node)}\n{' ' * statement.col_offset}"
        self.report.edit(start, start, text)

    def unseen_config(self, run: TrlRun, place: str, node, unseen: list, new_class: str | None) -> None:
        """Say that the settings of a trainer cannot be seen, and where to look for them."""
        shown = self.source.code(node) if node is not None else f"**{self.source.code(unseen[0])}"
        makers = self.source.bound_to(getattr(node, "id", "")) or [node]
        nearest = (
            f"the YAML file or command line that it is read from: migrate.py FILE.yaml --config_class {run.config}"
        )
        calls = [maker for maker in makers if isinstance(maker, ast.Call)]
        if any(self.source.name_of(call) in COPYING or is_config(self.source, call) for call in calls):
            nearest = f"one call {run.config}(…) with all settings"
        self.report.refuse(place, f"args={shown}", "made at run time: its settings cannot be seen", nearest)
        limit = run.value("max_prompt_length")
        if new_class and isinstance(limit, int):
            why = f"prompts are cut to {limit}, the default then, as the settings cannot be seen"
            self.report.refuse(
                place, "max_prompt_length", why, f"the number of the settings for the {limit} of the class"
            )

    def config(self, run: TrlRun, call: ast.Call, plan: dict[str, Change]) -> None:
        """Edit the call of a config, once."""
        self.done.add(id(call))
        plan = plan or planned(run, self.report)
        add_to_call(run, call, write_arguments(run, plan, self.report), self.report)
        self.runs.append(run)
        for change in self.source.hidden_changes(call):
            place, shown = self.source.place(self.source.span(change)[0]), self.source.code(change)
            self.report.refuse(place, shown, "settings that cannot be seen here", f"arguments of {run.config}(…)")
        if self.source.name_of(call) == "TrainingArguments":
            start, end = self.source.span(call.func)
            row = Row(f"{run.config}(…)", "0.13", "the trainer's own class, which has its settings", "other defaults")
            self.report.edit(start, end, run.config, row)
            self.imports["trl"].add(run.config)

    def add_config(self, run: TrlRun, trainer: str, call: ast.Call, plan: dict[str, Change]) -> None:
        """Give a trainer without args a config with the old defaults."""
        self.runs.append(run)
        additions = [change for change in plan.values() if change.text is not None]
        if not additions:
            return
        model = self.source.arguments(call)[0].get("model")
        try:
            name = str(self.source.value(model.value)).split("/")[-1] if model else "trainer"
        except ValueError:
            name = "trainer"
        folder = f'"{name}-{trainer.removesuffix("Trainer")}"'
        inside = ", ".join(f"{c.new_name or c.name}={c.text}" for c in additions)
        start = Row(
            f"args={run.config}(output_dir={folder}, …)", newest("trl"), "defaults then, as none were given", ""
        )
        rows = [(f"args={run.config}(output_dir={folder}, {inside})", start)]
        self.report.edits += self.source.additions(call, rows)
        end = self.source.span(call)[1]
        for change in additions:
            self.report.edit(end, end, "", change.row)
        self.imports["trl"].add(run.config)

    def moved_arguments(self, trainer: str, arguments: dict, run: TrlRun) -> dict[str, Change]:
        """Arguments of the trainer that are the config's today; the trainer's won over it."""
        table, moved = changes("trl")["trainers"].get(trainer, {}), {}
        for name, argument in arguments.items():
            entry = entry_at(table.get(name, []), newest("trl"))
            if not entry or not entry.get("gone") or name in (*NEW_ARGUMENTS, *LOSSLESS, *ARGUMENTS_WITHOUT_EQUAL):
                continue
            new, text = RENAMED.get(name) or name, self.source.code(argument.value)
            run.of_trainer[name] = argument
            row = Row(f"{new}={text}", entry["since"], "an argument of the config now", "TypeError")
            if name != "max_prompt_length" and new not in run.arguments:  # cut_prompts has that one
                moved[new] = Change(new, text, row)
        return moved

    def edit_trainer(self, trainer: str, call: ast.Call, arguments: dict, new_class: tuple[str, str] | None) -> None:
        source, report = self.source, self.report
        table = changes("trl")["trainers"].get(trainer, {})
        for name, argument in arguments.items():
            entry = entry_at(table.get(name, []), newest("trl"))
            if name == "tokenizer":
                entry = {"since": "0.12", "gone": True}
            if not entry or not entry.get("gone"):
                continue
            since, new = entry["since"], NEW_ARGUMENTS.get(name)
            if new and new not in arguments:
                text = f'"{new}"' if argument.quoted else new
                row = Row(f"{new}={source.code(argument.value)}", since, f"the new name of {name}", "TypeError")
                report.edit(argument.start, argument.name_end, text, row)
                continue
            if name in ARGUMENTS_WITHOUT_EQUAL:
                report.refuse(source.place(argument.start), name, f"gone since {since}", ARGUMENTS_WITHOUT_EQUAL[name])
            row = Row("", since, f"{name} is no argument of {trainer}", "TypeError")
            report.edit(*source.removal(argument), "", row)
        if trainer == "SFTTrainer" and "formatting_func" in arguments and numbers(self.version) < (0, 17):
            self.format_rows(arguments)
        if new_class:
            name = self.insert_class(trainer, call, new_class)
            start, end = source.span(call.func)
            row = by_hand(f"{name}(…)", "end_token" if trainer == "SFTTrainer" else "prompts")
            report.edit(start, end, name, row)

    def format_rows(self, arguments: dict) -> None:
        """A formatting_func that took a batch and returned its texts, for one row."""
        argument, source = arguments["formatting_func"], self.source
        function = source.definitions.get(source.code(argument.value))
        nodes = ast.walk(function) if function else []
        returned = [source.resolved(n.value) for n in nodes if isinstance(n, ast.Return)]
        lists = any(isinstance(n, ast.List | ast.ListComp) for n in returned) or any(
            isinstance(n, ast.Call) and getattr(n.func, "attr", "") == "append"
            for n in ast.walk(function or ast.Pass())
        )
        packs = any(run.value("packing") not in (False, None) for run in self.runs)
        if lists or (numbers(self.version) < (0, 15) and not packs):
            text = f"lambda row: {source.code(argument.value)}({{key: [value] for key, value in row.items()}})[0]"
            row = Row("formatting_func=lambda row: …[0]", "0.17", "it took a batch; now it takes a row", "an error")
            self.report.edit(*source.span(argument.value), text, row)

    def insert_class(self, trainer: str, call: ast.Call, text: str) -> str:
        """Put a class behind the imports at the top of the file, or behind the script's own trainer; returns its name.

        A class of the same text serves several trainers.
        """
        source, base = self.source, self.source.code(call.func)
        stem = base.split(".")[-1] + ("WithoutEndToken" if trainer == "SFTTrainer" else "WithCutPrompts")
        definition, (_, _, statement) = (
            source.definitions.get(base),
            source.imports.get(base.split(".")[0], ("", "", None)),
        )
        if definition is None and statement not in source.tree.body:  # imported inside a function
            text = f"\nfrom trl import {trainer}{f' as {base}' if base != trainer else ''}{text}"
        for name in (stem, *(f"{stem}{number}" for number in range(2, 10))):
            written = text.rstrip("\n").replace("{name}", name)
            others = [edit.text for edit in self.report.edits if f"class {name}(" in edit.text]
            if any(written.strip() in text for text in others):
                return name
            if not others:
                break
        before = [n for n in source.tree.body if isinstance(n, ast.Import | ast.ImportFrom) and n.lineno < call.lineno]
        before += [n for n in source.tree.body if n is definition]
        if before:
            line_end = source.text.find("\n", max(source.span(node)[1] for node in before))
            place = len(source.text) if line_end < 0 else line_end
        else:  # before the first statement behind a docstring
            place = source.span(source.tree.body[ast.get_docstring(source.tree) is not None])[0]
            written = written.strip("\n") + "\n\n\n"
        self.report.edit(place, place, written, None)
        return name

    def carry_over(self, trainer: str, call: ast.Call) -> None:
        """A trainer that is gone: the command of this bundle with its settings."""
        source, config = self.source, CONFIGS[trainer]
        calls = source.calls.get(config, [])
        run = TrlRun(source, config, self.version, calls[0] if calls else None)
        flags = {}
        for flag, names in CARRIED.items():
            name = next((n for n in names if run.has(n)), None)
            if name and run.value(name) is not UNKNOWN:
                flags[flag] = run.value(name)
        target = GONE_TRAINERS.get(trainer, "scripts/ppo_train.py --advantage rloo")
        nearest = " ".join([f"python {target}", *(f"--{flag} {value}" for flag, value in flags.items())])
        carried = {name for names in CARRIED.values() for name in names}
        beside = [
            name for name in run.arguments if name not in (carried | BESIDE_THE_RUN) or run.value(name) is UNKNOWN
        ]
        if beside:
            nearest += f" (see --help for {', '.join(beside)})"
        why = f"{trainer} of {self.version} has no successor in TRL"
        if trainer == "RLOOTrainer":
            why = by_hand("", "rloo", trainer=trainer, version=self.version).why
        self.report.refuse(source.place(source.span(call)[0]), trainer, why, nearest)
        self.done |= {id(c) for c in calls}

    def names(self) -> None:
        """Imports from TRL that moved or are gone."""
        for node in ast.walk(self.source.tree):
            if not isinstance(node, ast.ImportFrom) or not (node.module or "").split(".")[0] == "trl":
                continue
            moved = {}
            for alias in node.names:
                entry = entry_at(changes("trl")["modules"].get(alias.name, []), newest("trl"))
                is_gone_today = not entry or entry.get("gone")
                known = {*TRL_TODAY, *CONFIGS, *CONFIGS.values()}  # a trainer that is gone is said at its call
                is_known = alias.name in known or node.module not in ("trl", "trl.trainer")
                if is_gone_today and alias.name != "*" and (GONE_NAMES.get(alias.name) or not is_known):
                    place = self.source.place(self.source.span(node)[0])
                    nearest = (
                        GONE_NAMES.get(alias.name) or "its copy in the script, or trl.experimental, which has some"
                    )
                    self.report.refuse(place, alias.name, "no longer in trl", nearest)
                elif not is_gone_today and ("experimental" in entry["at"] or "experimental" in node.module):
                    if entry["at"] != node.module:
                        moved.setdefault(entry["at"], []).append((alias, entry["since"]))
            if moved:
                self.move_imports(node, moved)

    def move_imports(self, node: ast.ImportFrom, moved: dict[str, list]) -> None:
        """Write a statement again: what stays, and a line for each new module."""
        gone = [alias for pairs in moved.values() for alias, _ in pairs]
        kept = [self.source.code(alias) for alias in node.names if alias not in gone]
        lines = [f"from {node.module} import {', '.join(kept)}"] if kept else []
        lines += [f"from {at} import {', '.join(self.source.code(a) for a, _ in pairs)}" for at, pairs in moved.items()]
        start, end = self.source.span(node)
        indent = " " * node.col_offset
        since = next(iter(moved.values()))[0][1]
        row = Row("; ".join(lines[bool(kept) :]), since, "its new place", "ImportError")
        self.report.edit(start, end, f"\n{indent}".join(lines), row)

    def add_imports(self) -> None:
        """Import the names that the edits use."""
        for module, names in self.imports.items():
            for name in sorted(names - {*self.source.imports}):
                nodes = [
                    n
                    for n in ast.walk(self.source.tree)
                    if isinstance(n, ast.ImportFrom) and n.module == module and n.level == 0
                ]
                row = Row(f"from {module} import {name}", newest("trl"), "used by the lines below", "NameError")
                if nodes:
                    end = self.source.span(nodes[0].names[-1])[1]
                    self.report.edits.insert(0, Edit(end, end, f", {name}", row))  # before a class at that place
                    continue
                first = next((n for n in self.source.tree.body if isinstance(n, ast.Import | ast.ImportFrom)), None)
                start = self.source.span(first)[0] if first else 0
                self.report.edit(start, start, f"from {module} import {name}\n", row)


# ------------------------------------------------------------------- trl version (src/programs/migrate/trl_version.py)


def uses(source: PythonSource) -> list[Use]:
    """(What the script uses, line, its entries) for names whose presence depends on the version."""
    tables, named = changes("trl"), []
    for trainer, call in trainer_calls(source):
        place = source.place(source.span(call)[0])
        for name in source.arguments(call)[0]:
            if name in tables["trainers"].get(trainer, {}):
                named.append((f"{trainer}({name}=…)", place, tables["trainers"][trainer][name]))
        made, _ = config_call(source, trainer, call)
        named += config_uses(source, CONFIGS[trainer], made)
    for config in CONFIGS.values():
        for call in source.calls.get(config, []):
            named += config_uses(source, config, call)
    for name, (module, original, node) in source.imports.items():
        if module.split(".")[0] == "trl" and original in tables["modules"]:
            entries = [
                e
                for e in tables["modules"][original]
                if e.get("gone") or e.get("at") == module or module.count(".") > 1
            ]
            named.append((f"from {module} import {name}", source.place(source.span(node)[0]), entries))
    return named


def config_uses(source: PythonSource, config: str, call: ast.Call | None) -> list[Use]:
    if call is None:
        return []
    run, table = TrlRun(source, config, newest("trl"), call), changes("trl")["configs"].get(config, {})
    base = changes("trl")["configs"]["TrainingArguments"]
    place = source.place(source.span(call)[0])
    names = [n for n in (*run.arguments, *run.attributes) if n in table and n not in base and n not in INHERITABLE]
    return [(f"{config}({name}=…)", place, table[name]) for name in names]


INHERITABLE = (
    {"per_device_train_batch_size", "gradient_accumulation_steps", "learning_rate", "bf16", "logging_steps"}
    | {"gradient_checkpointing", "remove_unused_columns", "push_to_hub", "run_name", "use_liger_kernel"}
    | {"lr_scheduler_kwargs", "seed", "max_grad_norm", "dataloader_drop_last", "neftune_noise_alpha"}
)


def outcome(source: PythonSource, version: str) -> dict[str, str]:
    """What a version makes of a script where it says nothing: {setting: value}, by what would be written out."""
    settings, report = {}, Report()
    for trainer, call in trainer_calls(source):
        run = TrlRun(source, CONFIGS[trainer], version, config_call(source, trainer, call)[0])
        for name, change in default_changes(run).items():
            settings[name] = change.text
        for meaning in MEANINGS:
            settings |= {change.name: change.text or "" for change in meaning(run, report)}
        if run.value("max_prompt_length"):
            settings["prompts"] = f"cut to {run.text('max_prompt_length')}"
    return settings


# ----------------------------------------------------------------------- effective (src/programs/migrate/effective.py)

# Settings that have one name in all versions.
PLAIN = tuple(
    "learning_rate lr_scheduler_type num_train_epochs max_steps weight_decay adam_beta1 adam_beta2 adam_epsilon "
    "max_grad_norm optim seed data_seed bf16 fp16 gradient_checkpointing max_completion_length num_iterations epsilon "
    "epsilon_high delta reward_weights sync_ref_model mask_truncated_completions top_p min_p repetition_penalty "
    "num_generations beta label_smoothing packing truncation_mode lmbda max_new_tokens disable_dropout "
    "center_rewards_coefficient importance_sampling_level dataset_text_field completion_only_loss "
    "assistant_only_loss neftune_noise_alpha".split()
)
# What a version without the setting did.
NEUTRAL = {
    "assistant_only_loss": False,
    "completion_only_loss": False,
    "disable_dropout": False,
    "epsilon": 0.2,
    "importance_sampling_level": "token",
    "label_smoothing": 0.0,
    "mask_truncated_completions": False,
    "num_iterations": 1,
    "repetition_penalty": 1.0,
    "sync_ref_model": False,
    "top_p": 1.0,
    "truncation_mode": "keep_start",
}


def number(run: TrlRun, *names: str):
    """The product of settings; their source where one is known at run time only."""
    result = 1
    for name in names:
        value = run.value(name)
        if value is UNKNOWN:
            return " x ".join(run.text(n) for n in names)
        result *= 1 if value is None else value
    return result


def shown(run: TrlRun, name: str):
    value = run.value(name)
    return run.text(name) if value is UNKNOWN else value


def warmup(run: TrlRun):
    has_ratio = run.value("warmup_steps") in (None, 0, 0.0) and run.has("warmup_ratio")
    return shown(run, "warmup_ratio") if has_ratio else shown(run, "warmup_steps") or 0


def sampling_temperature(run: TrlRun):
    """That of generation_kwargs, which wins over the setting."""
    items, _ = run.source.items(run.node("generation_kwargs") or ast.Constant(None))
    if "temperature" not in items:
        return shown(run, "temperature")
    node = items["temperature"].value
    try:
        return run.source.value(node)
    except (ValueError, TypeError):
        return run.source.code(node)


def of_sampling(run: TrlRun) -> dict:
    """The settings of GRPO and RLOO that the versions name differently."""
    prompts_counted = run.config == "GRPOConfig" and run.before("0.15")
    completions = ["per_device_train_batch_size", "gradient_accumulation_steps"]
    size = number(run, *completions, *(["num_generations"] if prompts_counted else []))
    group = run.value("num_generations")
    is_number = isinstance(size, int | float) and isinstance(group, int)
    no_division = run.config == "GRPOConfig" and run.before("0.16")
    temperature = shown(run, "temperature")
    top_k = shown(run, "top_k")
    if no_division:
        vllm = run.value("use_vllm")
        top_k = f"0 if {run.text('use_vllm')} else 50" if vllm is UNKNOWN else 0 if vllm else 50
    kl = "none" if run.value("beta") == 0 else "k3"
    if kl == "k3" and run.value("use_bias_correction_kl"):
        kl = "k3 x ratio"
    kinds = "grpo" if no_division else "bnpo" if run.before("0.17") else shown(run, "loss_type")
    scale = {True: "group", False: "none", None: "group"}.get(run.value("scale_rewards"), shown(run, "scale_rewards"))
    settings = {
        "completions a step and process": size,
        "prompts a step and process": size // group if is_number else f"{size} / {shown(run, 'num_generations')}",
        "sampling temperature": sampling_temperature(run),
        "temperature in the log-probs": 1.0 if no_division else temperature,
        "top_k": top_k or 0,
        "KL": kl,
    }
    if run.config == "GRPOConfig":
        settings |= {"loss": kinds, "reward scale": scale}
    return settings


def effective(run: TrlRun) -> dict:
    """{Setting: value} of one run."""
    settings = (
        of_sampling(run)
        if run.config in SAMPLING
        else {"batch a step and process": number(run, "per_device_train_batch_size", "gradient_accumulation_steps")}
    )
    settings["warmup"] = warmup(run)
    if run.config not in SAMPLING:
        length = shown(run, "max_length")
        if run.config in ("SFTConfig", "GKDConfig") and run.before("0.16"):
            length = shown(run, "max_seq_length") or length or 1024
        elif run.config == "DPOConfig" and run.before("0.12"):
            length = length or 512
        settings["max_length"] = length
    for name in PLAIN:
        value = shown(run, name)
        if value is not None and value is not UNKNOWN:
            settings[name] = value
    if settings.get("bf16") is None and run.value("fp16"):
        settings["bf16"] = False
    return settings


def side_by_side(old: TrlRun, new: TrlRun) -> list[dict]:
    """Settings under both versions; `same` is None where one is known at run time only."""
    first, second = effective(old), effective(new)
    rows = []
    for name in dict.fromkeys([*first, *second]):
        before, after = first.get(name, NEUTRAL.get(name)), second.get(name, NEUTRAL.get(name))
        rows.append({"setting": name, "old": before, "new": after, "same": is_equal(before, after)})
    return rows


def is_equal(before, after) -> bool | None:
    """None where a value is known at run time only."""
    if any(isinstance(value, str) and re.search(r" [x/*] ", value) for value in (before, after)):
        return None
    return before == after


# ----------------------------------------------------------------------- job files (src/programs/migrate/job_files.py)

SECTIONS = (
    *("data", "actor_rollout_ref", "critic", "reward_model", "reward", "algorithm", "trainer", "sandbox_fusion"),
    *("custom_reward_function", "ray_init", "ray_kwargs", "global_profiler", "transfer_queue", "distillation"),
)
PART = r"""\\.|\$\(\([^\n]*?\)\)|\$\([^)\n]*\)|\$\{[^}\n]*\}|"(?:\\.|[^"\\])*"|'[^']*'|[^\s"'\\;|&()]"""
WORD = re.compile(
    rf"(?<![^\s(\"'=])(?P<sign>\+\+|\+|~)?(?P<key>(?:{'|'.join(SECTIONS)})(?:\.[\w@/-]+)+)(?:=(?P<value>(?:{PART})*))?"
)
MAIN = re.compile(r"-m\s+([\w.]+)|(\S*/?\w*main_\w+\.py)\b")


@dataclass(frozen=True)
class Word:
    """A setting of a job as it stands in its file."""

    sign: str
    key: str
    value: str | None
    start: int
    key_start: int
    key_end: int
    end: int

    @property
    def plain(self) -> str:
        """The value without the quotes of the shell or of YAML."""
        return (self.value or "").strip().strip("'\"")

    @property
    def is_fixed(self) -> bool:
        """Whether nothing of the value is known at run time only."""
        return "$" not in (self.value or "") and "`" not in (self.value or "")


class JobFile:
    """A text with settings at places."""

    text: str

    def place(self, offset: int) -> str:
        return f"line {self.text.count(chr(10), 0, offset) + 1}"

    def edited(self, edits: list[Edit]) -> str:
        return edited(self.text, edits)


class ShellJob(JobFile):
    """A shell script; only its words KEY=VALUE are edited."""

    def __init__(self, name: str, text: str):
        self.name, self.text = name, text
        self.words = [word for word in map(self.word, WORD.finditer(text)) if word and not self.in_comment(word.start)]
        self.mains = [
            m for m in MAIN.finditer(text) if not self.in_comment(m.start()) and "main" in (m[1] or m[2]) + "sft"
        ]

    def word(self, match: re.Match) -> Word | None:
        if match["value"] is None and match["sign"] != "~":
            return None
        value, end = match["value"], match.end()
        before = self.text[match.start() - 1 : match.start()]
        if before in ("'", '"') and value is not None:  # the quotes are around the whole word
            end = self.text.find(before, match.start("value"))
            value = self.text[match.start("value") : end]
        start = match.start()
        return Word(match["sign"] or "", match["key"], value, start, match.start("key"), match.end("key"), end)

    def in_comment(self, place: int) -> bool:
        line = self.text[self.text.rfind("\n", 0, place) + 1 : place]
        return any(
            line[: mark.start()].count('"') % 2 == 0 and line[: mark.start()].count("'") % 2 == 0
            for mark in re.finditer(r"(?:^|(?<=\s))#", line)
        )

    def rename(self, word: Word, key: str, value: str | None, row: Row, report: Report) -> None:
        text = key if word.value is None else f"{key}={word.value if value is None else value}"
        report.edit(word.start, word.end, text, row)

    def remove(self, word: Word, row: Row, report: Report) -> None:
        text, start, end = self.text, word.start, word.end
        quote = text[start - 1 : start]
        if quote in ("'", '"') and text[end : end + 1] == quote:
            start, end = start - 1, end + 1
        line = text.rfind("\n", 0, start) + 1
        rest = re.compile(r"[ \t]*(\\)?[ \t]*(\n|$)").match(text, end)
        if text[line:start].strip() or not rest:
            report.edit(start, re.compile(r"[ \t]*").match(text, end).end(), "", row)
        elif rest[1] or not re.search(r"\\\s*\n$", text[:line]):
            report.edit(line, rest.end(), "", row)
        else:  # the last line of a command: the one before no longer goes on
            before = re.search(r"[ \t]*\\[ \t]*\n$", text[:line])
            report.edit(before.start(), end, "", row)

    def add(self, settings: list[tuple[str, str, Row]], report: Report) -> None:
        """Put words behind the main module of each command, so that all that the job says wins over them."""
        places = [m.end() for m in self.mains]
        for place in places or [max((word.end for word in self.words), default=len(self.text))]:
            statement = self.text[self.text.rfind("\n", 0, place) + 1 : place]
            break_ = " " if statement.count("'") % 2 else " \\\n    " if places else "\n"
            for key, value, row in settings:
                report.edit(place, place, f"{break_}{key}={value}", row if place == (places or [place])[0] else None)


class YamlJob(JobFile):
    """A YAML file of settings; lines are edited where they stand."""

    mains = ()

    def __init__(self, name: str, text: str):
        import yaml

        self.name, self.text = name, text
        try:
            self.root = yaml.compose(text)
        except yaml.YAMLError as error:
            mark = getattr(error, "problem_mark", None)
            where = f"{name}, line {mark.line + 1}" if mark else name
            problem = getattr(error, "problem", error)
            raise UserError(f"{where}: got {problem}; expected YAML; try a YAML checker") from None
        if not isinstance(self.root, yaml.MappingNode):
            raise UserError(f"got {name} without 'key: value' lines; expected settings; try the file of a run")
        self.maps = {"": self.root}
        self.starts: dict[str, int] = {}  # of the key of a section
        self.moved: list[tuple[str, str, None]] = []  # settings of another section, written by add
        self.removed: list[str] = []
        self.words = [*self.below(self.root, "")]

    def below(self, node, prefix: str):
        import yaml

        for key, value in node.value:
            name = f"{prefix}{key.value}"
            if name in ("defaults", "hydra"):  # Hydra's own
                continue
            if isinstance(value, yaml.MappingNode) and value.value:
                self.maps[name], self.starts[name] = value, key.start_mark.index
                yield from self.below(value, f"{name}.")
                continue
            start, end = key.start_mark.index, value.end_mark.index
            end = len(self.text[:end].rstrip()) if "\n" in self.text[start:end] else end
            text = self.text[value.start_mark.index : end]
            yield Word("", name, text, start, start, key.end_mark.index, end)

    def rename(self, word: Word, key: str, value: str | None, row: Row, report: Report) -> None:
        old, new = word.key.rpartition("."), key.lstrip("+").rpartition(".")
        value = (word.value or "") if value is None else value
        if old[0] == new[0]:
            report.edit(word.start, word.end, f"{new[2]}: {value}", row)
            return
        self.remove(word, row, report)
        self.moved.append((key, value, None))

    def remove(self, word: Word, row: Row, report: Report) -> None:
        self.removed.append(word.key)
        parent = self.maps[word.key.rpartition(".")[0]]
        if parent.flow_style:
            report.refuse(self.place(word.start), word.key, "stands inside { }", "the form of one key a line")
        else:
            self.cut(word.start, word.end, row, report)

    def cut(self, start: int, end: int, row: Row | None, report: Report) -> None:
        """Cut whole lines."""
        after = self.text.find("\n", end)
        report.edit(self.text.rfind("\n", 0, start) + 1, len(self.text) if after < 0 else after + 1, "", row)

    def add(self, settings: list[tuple[str, str, Row | None]], report: Report) -> None:
        """Put settings at the end of the deepest section that is there."""
        trees: dict[str, dict] = {}
        emptied = [
            name
            for name in self.starts
            if all(word.key in self.removed for word in self.words if word.key.startswith(f"{name}."))
        ]
        for name in emptied:
            self.cut(self.starts[name], self.starts[name], None, report)
            del self.maps[name]
        for key, value, row in [*self.moved, *settings]:
            parts = key.lstrip("+").split(".")
            depth = max(i for i in range(len(parts)) if ".".join(parts[:i]) in self.maps)
            node = trees.setdefault(".".join(parts[:depth]), {})
            for part in parts[depth:-1]:
                node = node.setdefault(part, {})
            node[parts[-1]] = (value, row)
        for name, tree in trees.items():
            section = self.maps[name]
            indent = " " * section.value[0][0].start_mark.column
            last = section.value[-1][1].end_mark.index
            end = len(self.text[:last].rstrip())
            line_end = self.text.find("\n", end)
            place = len(self.text) if line_end < 0 else line_end
            for text, row in lines_of(tree, indent):
                report.edit(place, place, f"\n{text}", row)


def lines_of(tree: dict, indent: str):
    """(Line, row) of nested settings."""
    for key, value in tree.items():
        if isinstance(value, dict):
            yield f"{indent}{key}:", None
            yield from lines_of(value, f"{indent}  ")
        else:
            yield f"{indent}{key}: {value[0]}", value[1]


# ------------------------------------------------------------------------- trl yaml (src/programs/migrate/trl_yaml.py)

SIGNS = {"num_generations": "GRPOConfig", "max_completion_length": "GRPOConfig", "max_seq_length": "SFTConfig"} | {
    "packing": "SFTConfig",
    "precompute_ref_log_probs": "DPOConfig",
    "rpo_alpha": "DPOConfig",
}


def config_of(job: YamlJob) -> str:
    """The config class that the keys of a file belong to; "" for none."""
    return next((config for key, config in SIGNS.items() if any(w.key == key for w in job.words)), "")


def run_of(job: YamlJob, config: str, version: str) -> TrlRun:
    """The settings of a file as a call of a config."""
    import yaml

    given = {key: value for key, value in (yaml.safe_load(job.text) or {}).items() if str(key).isidentifier()}
    source = PythonSource(job.name, f"{config}({', '.join(f'{key}={value!r}' for key, value in given.items())})")
    return TrlRun(source, config, version, source.calls[config][0])


def migrate_yaml(job: YamlJob, run: TrlRun, report: Report) -> None:
    words = {word.key: word for word in job.words}
    limit = run.value("max_prompt_length")
    added = []
    for name, change in planned(run, report).items():
        text = None if change.text is None else json.dumps(ast.literal_eval(str(eval_product(change.text))))
        if name in words and text is None:
            job.remove(words[name], change.row, report)
        elif name in words:
            job.rename(words[name], change.new_name or name, text, change.row, report)
        elif text is not None:
            added.append((change.new_name or name, text, change.row))
    job.add(added, report)
    if "max_prompt_length" in words:
        job.remove(words["max_prompt_length"], Row("", "0.28", "max_prompt_length is gone", "an error"), report)
    if limit:
        nearest = "the class that migrate.py puts into a script, or rows that are short enough"
        report.refuse("", f"max_prompt_length: {limit}", "prompts are no longer cut", nearest)
    if text_as_it_is(run, "", {}, {}):
        nearest = "the class that migrate.py puts into a script"
        report.refuse("", "dataset_text_field", by_hand("", "end_token").why, nearest)
    for word in job.words:
        if word.key.endswith("torch_dtype"):
            key = word.key.removesuffix("torch_dtype") + "dtype"
            row = Row(f"{key}: {word.value}", "transformers 5.0", "its new name", "fp32")
            job.rename(word, key, None, row, report)


def eval_product(text: str) -> str:
    """A product of two numbers as its value."""
    first, times, second = text.partition(" * ")
    return str(int(first) * int(second)) if times and first.isdigit() and second.isdigit() else text


# ------------------------------------------------------------------------- verl run (src/programs/migrate/verl_run.py)

PER_JOB = {  # sizes that counted the whole job, with the sequence parallelism that shares them
    f"{ACTOR}.ppo_micro_batch_size": f"{ACTOR}.ulysses_sequence_parallel_size",
    f"{REF}.log_prob_micro_batch_size": f"{REF}.ulysses_sequence_parallel_size",
    f"{ROLLOUT}.log_prob_micro_batch_size": f"{ACTOR}.ulysses_sequence_parallel_size",
    "critic.ppo_micro_batch_size": "critic.ulysses_sequence_parallel_size",
    "critic.forward_micro_batch_size": "critic.ulysses_sequence_parallel_size",
}
# Defaults that changed and say nothing of the run: the engine's room, names of old keys, validation.
NOT_WRITTEN = {
    f"{ACTOR}.optim.warmup_style",
    f"{ACTOR}.optim.min_lr_ratio",
    f"{ROLLOUT}.enforce_eager",
    f"{ROLLOUT}.load_format",
    f"{ROLLOUT}.max_num_seqs",
    f"{ROLLOUT}.mode",
    f"{ROLLOUT}.calculate_log_probs",
    f"{REF}.fsdp_config.forward_only",
    *("critic.model.external_lib", "critic.model.tokenizer_path", "critic.model.trust_remote_code", "critic.strategy"),
    *("critic.optim.min_lr_ratio", "critic.optim.warmup_style", "data.return_raw_chat", "data.val_batch_size"),
    "trainer.resume_from_path",
}
VALUES = {f"{ROLLOUT}.load_format": {"dummy_dtensor": "dummy", "dummy_megatron": "dummy", "dummy_hf": "dummy"}}
SHOWN = (
    *(f"{ACTOR}.{name}" for name in ("entropy_coeff", "use_kl_loss", "kl_loss_coef", "kl_loss_type", "clip_ratio_low")),
    *(
        f"{ACTOR}.{name}"
        for name in ("clip_ratio_high", "clip_ratio_c", "ppo_mini_batch_size", "optim.lr", "ppo_epochs")
    ),
    *("algorithm.adv_estimator", "algorithm.use_kl_in_reward", "algorithm.kl_ctrl.kl_coef", "data.seed"),
    *("data.filter_overlong_prompts", "data.train_batch_size", "data.max_prompt_length", "data.max_response_length"),
    *(f"{ROLLOUT}.{name}" for name in ("name", "n", "temperature", "top_p", "top_k")),
    *("trainer.total_epochs", "trainer.total_training_steps", f"{MODEL}.use_remove_padding"),
)


class VerlMigration:
    """One job from one version of verl to the newest."""

    def __init__(self, job: ShellJob | YamlJob, version: str):
        self.job, self.version, self.report = job, version, Report()
        self.given: dict[str, Word] = {word.key: word for word in job.words}
        self.known = known_names("dp") | known_names("megatron")
        self.added: list[tuple[str, str, Row]] = []

    def before(self, version: str) -> bool:
        return numbers(self.version) < numbers(version)

    def migrate(self) -> Report:
        report, job = self.report, self.job
        others = [m for m in job.mains if (m[1] or m[2]).split("/")[-1] not in ("verl.trainer.main_ppo", "main_ppo.py")]
        for main in others:
            nearest = "its authors' newest version; this script migrates jobs of verl.trainer.main_ppo"
            report.refuse(job.place(main.start()), main[1] or main[2], "a main module of its own", nearest)
        if others:
            return report
        for word in job.words:
            self.word(word)
        own = re.search(r"--config-name[= ]+(\S+)", job.text)
        if own and own[1].strip("'\"").removesuffix(".yaml") not in ("ppo_trainer", "ppo_megatron_trainer"):
            why = "settings of that file cannot be seen here: defaults that changed are not written"
            nearest = f"migrate.py FILE/{own[1]}.yaml --from verl=={self.version} --out NEW.yaml"
            report.refuse(job.place(own.start()), own[0], why, nearest)
        else:
            self.added += self.silent()
        job.add(self.added, report)
        self.rewards()
        if "VLLM_ATTENTION_BACKEND" in job.text:
            report.note("VLLM_ATTENTION_BACKEND=XFORMERS was for vLLM 0.6; leave it out with today's")
        return report

    def word(self, word: Word) -> None:
        """Edit one setting that is given."""
        key, job, report = word.key, self.job, self.report
        if key in PER_JOB and word.plain not in ("null", "None"):
            self.per_gpu(word)
        elif key == f"{ACTOR}.clip_ratio":
            self.both_sides(word)
        elif word.plain in VALUES.get(key, {}):
            new = VALUES[key][word.plain]
            job.rename(word, key, new, Row(f"{key}={new}", self.since(key), "the value's new name", "an error"), report)
        elif entry := self.moved(word):
            target, why, otherwise = entry
            if target is None:
                job.remove(word, Row("", self.since(key), f"{key}: {why}", otherwise), report)
            elif target.lstrip("+") in self.given:
                job.remove(word, Row("", self.since(key), f"{key}: {target} is given too", otherwise), report)
            else:
                job.rename(word, target, None, Row(f"{target}={word.value}", self.since(key), why, otherwise), report)
        elif word.sign == "+" and key in self.known and not word.plain.startswith("{"):
            row = Row(f"{key}={word.value}", newest("verl"), "a key of its own today: no +", "an error of Hydra")
            job.rename(word, key, None, row, report)
        elif not word.sign and self.known and key not in self.known and not key.startswith("hydra"):
            near = suggest(key, sorted(self.known)).removeprefix("; try ") or "leaving it out"
            report.refuse(job.place(word.start), key, f"verl {newest('verl')} does not have it", near)

    def since(self, key: str) -> str:
        entries = changes("verl")["keys"].get(key, [])
        later = [e["since"] for e in entries if numbers(e["since"]) > numbers(self.version)]
        return later[-1] if later else newest("verl")

    def moved(self, word: Word) -> tuple[str | None, str, str] | None:
        """(New key or None to leave it out, why, what verl does with the old one)."""
        key = word.key
        entry = entry_at(changes("verl")["keys"].get(key, []), newest("verl"))
        advice = advice_today(key, word.plain)
        new = entry.get("renamed") if entry and entry.get("gone") else None
        if new:
            return new, "its new name", "an error of Hydra"
        if advice:
            effect, instead = advice
            target = instead if re.fullmatch(r"\+?[\w.]+", instead) else None
            if target and target.startswith("+") and target[1:] in self.known:
                target = target[1:]
            lost = target is None and not instead.startswith(("leaving it out", "data.filter_overlong"))
            if lost and word.plain not in ("False", "false", "null", "None", "0"):
                self.report.refuse(self.job.place(word.start), f"{key}={word.value}", f"verl {effect}", instead)
            return target, "its new name" if target else "gone, and the run is the same", f"verl {effect}"
        if entry and entry.get("gone"):
            if word.plain not in ("False", "false", "null", "None", "0") and not key.startswith(
                ("reward_model", "trainer")
            ):
                self.report.refuse(self.job.place(word.start), key, f"gone since {entry['since']}", "leaving it out")
            return None, "gone", "an error of Hydra"
        return None

    def number(self, key: str, default: int) -> int | None:
        """A whole number that the job gives, or the default; None for a variable."""
        word = self.given.get(key)
        if word is None:
            return default
        return int(word.plain) if word.is_fixed and word.plain.lstrip("-").isdigit() else None

    def per_gpu(self, word: Word) -> None:
        """A micro batch of the whole job as one of each GPU."""
        new, place = f"{word.key}_per_gpu", self.job.place(word.start)
        gpus, nodes = self.number("trainer.n_gpus_per_node", 8), self.number("trainer.nnodes", 1)
        parallel, size = self.number(PER_JOB[word.key], 1), self.number(word.key, 0)
        why = by_hand("", "micro_batch").why
        if new in self.given:
            self.job.remove(word, Row("", "0.2", f"{new} is given too", "an error"), self.report)
        elif None in (gpus, nodes, parallel, size) or not size // max(1, gpus * nodes // parallel):
            nearest = f"{new}={word.value} / (nnodes x n_gpus_per_node)"
            self.report.refuse(place, f"{word.key}={word.value}", f"{why}; a number is a variable here", nearest)
        else:
            value = str(size // max(1, gpus * nodes // parallel))
            self.job.rename(word, new, value, by_hand(f"{new}={value}", "micro_batch"), self.report)

    def both_sides(self, word: Word) -> None:
        """clip_ratio is no longer read: both sides of the bound."""
        sides = [s for s in ("low", "high") if f"{ACTOR}.clip_ratio_{s}" not in self.given]
        row = Row(f"{ACTOR}.clip_ratio_…={word.value}", "0.4", "each side has its own key", "0.2")
        if not sides:
            self.job.remove(word, row, self.report)
            return
        self.job.rename(word, f"{ACTOR}.clip_ratio_{sides[0]}", None, row, self.report)
        for side in sides[1:]:
            key = f"{ACTOR}.clip_ratio_{side}"
            self.added.append((key, word.value, Row(f"{key}={word.value}", "0.4", "the other side", "0.2")))

    def silent(self) -> Iterator[tuple[str, str, Row]]:
        """Settings that the old version had by default, or by its code, and that the job does not give."""
        for key, entries in changes("verl")["keys"].items():
            old, new = entry_at(entries, self.version), entries[-1]
            if not old or old.get("gone") or new.get("gone") or key in self.given or key in NOT_WRITTEN:
                continue
            if old["default"] == new["default"] or "$" in f"{old['default']}{new['default']}" or is_old_section(key):
                continue
            if (
                is_number(old["default"])
                and is_number(new["default"])
                and float(old["default"]) == float(new["default"])
            ):
                continue
            value = "null" if old["default"] is None else str(old["default"])
            shown = "none: it has to be given" if new["default"] == "???" else str(new["default"])
            yield key, value, Row(f"{key}={value}", self.since(key), "its default then", shown)
        yield from (change for change in self.by_code() if change[0] not in self.given)

    def by_code(self) -> Iterator[tuple[str, str, Row]]:
        def line(key: str, value: str, rule: str) -> tuple[str, str, Row]:
            return key, value, by_hand(f"{key}={value}", rule)

        if self.before("0.4"):
            kl_loss = self.given.get(f"{ACTOR}.use_kl_loss")
            key = "algorithm.use_kl_in_reward"
            if kl_loss and not kl_loss.is_fixed:
                why = f"{by_hand('', 'kl_in_reward').why}; it is a variable here"
                nearest = f"{key}=True where use_kl_loss is False"
                self.report.refuse(self.job.place(kl_loss.start), f"{kl_loss.key}={kl_loss.value}", why, nearest)
            elif not kl_loss or kl_loss.plain.lower() != "true":
                yield line(key, "True", "kl_in_reward")
            yield line(f"{ACTOR}.clip_ratio_c", str(OFF), "dual_clip")
        if self.before("0.3"):
            yield line("data.filter_overlong_prompts", "True", "overlong")
        if self.before("0.6"):
            yield line("data.seed", "1", "data_seed")
        if self.before("0.7"):
            self.report.note(by_hand("", "token_mean").why)

    def rewards(self) -> None:
        """A reward file beside the job whose function does not take what verl passes."""
        word = self.given.get("custom_reward_function.path") or self.given.get("reward.custom_reward_function.path")
        file = Path(self.job.name).parent / word.plain if word and word.is_fixed else None
        if not file or not file.is_file():
            return
        name = self.given.get("custom_reward_function.name")
        source = PythonSource(str(file), file.read_text(encoding="utf-8"))
        function = source.definitions.get(name.plain if name else "compute_score")
        if function is None or not hasattr(function, "args") or function.args.kwarg:
            return
        names = {a.arg for a in [*function.args.args, *function.args.kwonlyargs]}
        missing = {"data_source", "solution_str", "ground_truth", "extra_info"} - names
        if missing:
            place = source.place(source.span(function)[0])
            why = f"verl calls it with {', '.join(sorted(missing))} too, by keyword"
            self.report.refuse(place, f"{file.name}:{function.name}", why, "**kwargs behind its parameters")


def is_number(value) -> bool:
    return not isinstance(value, bool) and bool(re.fullmatch(r"-?[\d.]+(e-?\d+)?", str(value), re.I))


def is_old_section(key: str) -> bool:
    return key.startswith(("reward_model.", "custom_reward_function.", "sandbox_fusion.", "ray_init."))


def default_of(key: str, version: str):
    entry = entry_at(changes("verl")["keys"].get(key, []), version)
    return entry["default"] if entry and not entry.get("gone") else None


def verl_side_by_side(migration: VerlMigration, job: ShellJob | YamlJob) -> list[dict]:
    """Settings of the old job under its version, and of the new one under the newest."""
    after = {word.key: word.plain for word in job.words}
    before = {word.key: word.plain for word in migration.given.values()}
    by_code = {key: value for key, value, _ in migration.by_code()}
    clip = before.get(f"{ACTOR}.clip_ratio")
    rows = []
    for key in SHOWN:
        old = before.get(key, by_code.get(key, default_of(key, migration.version)))
        if clip and key in (f"{ACTOR}.clip_ratio_low", f"{ACTOR}.clip_ratio_high"):
            old = before.get(key, clip)
        new = after.get(key, default_of(key, newest("verl")))
        if old is not None or new is not None:
            rows.append({"config": "verl", "setting": key, "old": old, "new": new, "same": same_value(old, new)})
    return rows


def same_value(old, new) -> bool:
    if is_number(old) and is_number(new):
        return float(old) == float(new)
    return str(old).lower() == str(new).lower() or None in (old, new)


def composed(job: ShellJob | YamlJob, report: Report) -> str:
    """Compose a new job with the verl of this Python; says what was checked."""
    if not importlib.util.find_spec("verl"):
        return "names of keys, as verl is not installed here"
    from hydra import compose, initialize_config_dir

    folder = Path(importlib.util.find_spec("verl").origin).parent / "trainer" / "config"
    words = [w for w in job.words if w.is_fixed]
    texts = [f"{w.sign}{w.key}" + f"={w.value.strip()}" * (w.value is not None) for w in words]
    try:
        with initialize_config_dir(config_dir=str(folder), version_base=None):
            compose("ppo_trainer", overrides=texts)
    except Exception as error:
        line = str(error).strip().splitlines()[0]
        report.refuse("", "the new job", f"verl's configuration refuses it: {line}", "the key that it names")
    variables = len(job.words) - len(words)
    return f"composed with verl's own configuration, without the {variables} settings whose values are variables"


# ------------------------------------------------------------------------------- trial (src/programs/migrate/trial.py)

TRIAL_SECONDS = 600
ONE_STEP = "--one_step"  # the first argument of the process
ROWS = 4
# On the CPU, alone, one step: what the settings of the run are replaced by.
SMALL = {"use_cpu": True, "bf16": False, "fp16": False, "tf32": None, "report_to": "none", "save_strategy": "no"} | {
    "eval_strategy": "no",
    "load_best_model_at_end": False,
    "push_to_hub": False,
    "max_steps": 1,
    "use_vllm": False,
    "gradient_accumulation_steps": 1,
    "deepspeed": None,
    "fsdp": None,
    "torch_compile": False,
    "use_liger_kernel": False,
    "resume_from_checkpoint": None,
    "dataloader_num_workers": 0,
    "steps_per_generation": None,
    "generation_batch_size": None,
}
LIMITS = {"max_completion_length": 8, "max_new_tokens": 8, "response_length": 8}


class Place:
    """Models by their names, cut to two layers, in a folder of the trial."""

    def __init__(self, folder: Path, model: str):
        self.folder, self.model, self.folders, self.said = folder, model, {}, []
        self.cutting = False

    def of(self, name) -> str:
        """The folder with the cut of a model."""
        name = str(name)
        if name.startswith(str(self.folder)) or self.cutting:
            return name
        if name not in self.folders:
            self.cutting = True
            self.folders[name] = self.cut(self.model or name)
            self.cutting = False
        return self.folders[name]

    def cut(self, name: str) -> str:
        from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

        try:
            there = {"local_files_only": not is_online()}
            config, tokenizer = AutoConfig.from_pretrained(name, **there), AutoTokenizer.from_pretrained(name, **there)
        except (OSError, ValueError):
            self.said.append(f"{name} is not here: the embedded model stands for it; --model takes another")
            config, tokenizer = (x.from_pretrained(EMBEDDED_MODEL) for x in (AutoConfig, AutoTokenizer))
        text = config.get_text_config()
        layers, text.num_hidden_layers = text.num_hidden_layers, min(2, text.num_hidden_layers)
        for key, value in vars(text).items():
            if isinstance(value, list) and len(value) == layers:
                setattr(text, key, value[: text.num_hidden_layers])
        target = str(self.folder / f"cut{len(self.folders)}")
        model = AutoModelForCausalLM.from_config(config)
        model.save_pretrained(target)
        tokenizer.save_pretrained(target)
        return target


def is_online() -> bool:
    """Whether the hub answers; transformers itself asks for minutes where none does."""
    host = os.environ.get("HF_ENDPOINT", "https://huggingface.co").split("//")[-1].split("/")[0]
    name, _, port = host.partition(":")
    with contextlib.suppress(OSError), socket.create_connection((name, int(port or 443)), timeout=3):
        return not os.environ.get("HF_HUB_OFFLINE")
    return False


def replace_loading(place: Place) -> None:
    """Every from_pretrained loads the cut."""
    import transformers
    from transformers.models.auto.auto_factory import _BaseAutoModelClass

    autos = (transformers.AutoConfig, transformers.AutoTokenizer, transformers.AutoProcessor, _BaseAutoModelClass)
    for owner in (*autos, transformers.PreTrainedModel, transformers.GenerationConfig):
        function = owner.__dict__["from_pretrained"].__func__

        def load(cls, name, *args, function=function, **kwargs):
            for key in ("quantization_config", "device_map", "attn_implementation", "revision", "token"):
                kwargs.pop(key, None)
            return function(cls, place.of(name), *args, **kwargs)

        owner.from_pretrained = classmethod(load)


def replace_data(data: str, said: list[str]) -> None:
    """load_dataset gives the first rows of the set, or of --data."""
    import datasets

    original = datasets.load_dataset

    def load(path, *args, split=None, **kwargs):
        try:
            rows = datasets.load_dataset_from_file(data) if data else original(path, *args, split=split, **kwargs)
        except Exception as error:
            line = (str(error).splitlines() or [""])[0]
            raise UserError(
                f"got the data set {path!r}, which does not load here ({line}); try --check --data FILE"
            ) from None
        if data and split is None:
            rows = datasets.DatasetDict({"train": rows, "test": rows})
        return rows

    datasets.load_dataset_from_file = lambda file: datasets.Dataset.from_list(rows_of(file))
    datasets.load_dataset = load


def rows_of(file: str) -> list[dict]:
    return [json.loads(line) for line in Path(file).read_text(encoding="utf-8").splitlines() if line.strip()]


def replace_config(record: dict, folder: Path) -> None:
    """Every TRL config is made as the script says, noted, and made again for one step."""
    import transformers

    original = transformers.TrainingArguments.__post_init__

    def small(self):
        record.setdefault(type(self).__name__, {k: v for k, v in vars(self).items() if is_plain(v)})
        values = SMALL | {"output_dir": str(folder / "run")}
        values |= {name: min(getattr(self, name), high) for name, high in LIMITS.items() if getattr(self, name, None)}
        if hasattr(self, "num_generations"):
            values["per_device_train_batch_size"] = self.num_generations
        elif self.per_device_train_batch_size > ROWS:
            values["per_device_train_batch_size"] = ROWS
        if "8bit" in str(self.optim) or "paged" in str(self.optim):
            values["optim"] = "adamw_torch"
        for name, value in values.items():
            if hasattr(self, name):
                setattr(self, name, value)
        original(self)

    transformers.TrainingArguments.__post_init__ = small


def is_plain(value) -> bool:
    return value is None or isinstance(value, str | int | float | bool | list | dict)


def replace_trainer(record: dict, folder: Path) -> None:
    """Trainers get four rows, and end the script behind one step."""
    import transformers

    start, train = transformers.Trainer.__init__, transformers.Trainer.train

    def few(rows):
        return rows.select(range(min(ROWS, len(rows)))) if hasattr(rows, "select") else rows

    def first(self, *args, **kwargs):
        for name in ("train_dataset", "eval_dataset"):
            kwargs[name] = few(kwargs.get(name))
        start(self, *args, **kwargs)

    def one_step(self, *_, **__):
        answer = train(self)
        record["loss"], record["trainer"] = answer.training_loss, type(self).__mro__[0].__name__
        (folder / "trial.json").write_text(json.dumps(record, default=str), encoding="utf-8")
        sys.stdout.flush()
        os._exit(0)

    transformers.Trainer.__init__, transformers.Trainer.train = first, one_step


def one_step(file: str, folder: str, model: str, data: str) -> int:
    """The process: run the script with a small model and few rows up to the end of its first step."""
    import transformers

    record: dict = {"said": []}
    place = Place(Path(folder), model)
    place.said = record["said"]
    replace_loading(place)
    replace_data(data, record["said"])
    replace_config(record, Path(folder))
    replace_trainer(record, Path(folder))
    transformers.utils.logging.disable_progress_bar()
    sys.argv = [file]
    sys.path.insert(0, str(Path(file).parent))
    try:
        runpy.run_path(file, run_name="__main__")
    except UserError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def trial(text: str, near: Path, model: str, data: str) -> dict:
    """One step of a new script: its loss, and its settings as TRL read them.

    Raises:
        UserError: it fails, ends without training, or takes too long.
    """
    say(f"note: --check runs the new script in {near}, for one step on the CPU and {TRIAL_SECONDS} s at most")
    with tempfile.TemporaryDirectory() as folder:
        script, answer = Path(folder) / "migrated.py", Path(folder) / "trial.json"
        script.write_text(text, encoding="utf-8")
        data = str(Path(data).resolve()) if data else ""
        model = str(Path(model).resolve()) if model and Path(model).is_dir() else model or ""
        command = [sys.executable, __file__, ONE_STEP, str(script), folder, model, data]
        modules = os.pathsep.join(filter(None, [str(near.resolve()), os.environ.get("PYTHONPATH")]))
        end = script_end(command, near, TRIAL_SECONDS, CUDA_VISIBLE_DEVICES="", PYTHONPATH=modules)
        end = end or "it ended without a training step"
        need(answer.is_file(), f"--check: got {end}; expected one step; try the new script by hand")
        return json.loads(answer.read_text(encoding="utf-8"))


# --------------------------------------------------------------------------- command (src/programs/migrate/command.py)

MARK = re.compile(r"^# Migrated from (trl|verl)==([\d.]+) to \1==([\d.]+) by migrate\.py\.?$", re.M)
NOT_SAME = 3


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("file", help="script (.py), notebook (.ipynb), job (.sh) or YAML")
    parser.add_argument("--from", dest="version", metavar="PACKAGE==VERSION", help="trl==0.14, verl==0.3")
    parser.add_argument("--out", help="the new file; without it only the table is shown")
    parser.add_argument("--config_class", "--config-class", help="of a YAML file: GRPOConfig, SFTConfig, …")
    parser.add_argument("--json", action="store_true", help="the table as JSON")
    parser.add_argument("--check", action="store_true", help="run one step of the new script, on a cut of its model")
    parser.add_argument("--model", help="--check: a folder or hub id instead of the script's model")
    parser.add_argument("--data", help="--check: a file of rows instead of the script's data set")
    return parser.parse_args(argv)


def split_version(text: str | None) -> tuple[str, str]:
    """(Package, version) of PACKAGE==VERSION."""
    match = re.fullmatch(r"(trl|verl)\s*==\s*v?([\w.]+)", text or "")
    need(match or not text, f"got --from {text!r}; expected trl==VERSION or verl==VERSION; try --from trl==0.14")
    return (match[1], known_version(match[1], match[2])) if match else ("", "")


def marked(text: str) -> tuple[str, str] | None:
    """(Package==version, newest) of a file that was migrated before."""
    match = MARK.search(text)
    return (f"{match[1]}=={match[2]}", match[3]) if match else None


def mark_edit(text: str, package: str, version: str) -> Edit:
    """The line that says that a file was migrated, behind a shebang and an encoding."""
    match = re.match(r"(#![^\n]*\n)?(#.*coding[:=][^\n]*\n)?", text)
    line = f"# Migrated from {package}=={version} to {package}=={newest(package)} by migrate.py.\n"
    return Edit(match.end(), match.end(), line)


def pin_edits(source: PythonSource, report: Report) -> None:
    """Pins of TRL and transformers in the script: its dependencies, or `pip install`."""
    newer = {"trl": f"trl=={newest('trl')}.*", "transformers": "transformers>=5.19,<6"}
    for match in re.finditer(r"\b(trl|transformers)\s*(==|<=|~=|<)\s*[\d.*]+", source.text):
        row = Row(newer[match[1]], newest("trl"), "the version that the new script is for", match[0])
        report.edit(match.start(), match.end(), newer[match[1]], row)


def result_of(package: str, version: str, how: str, report: Report, source, text: str) -> dict:
    """The new text and what is said of it; a file that changes gets the line that says so."""
    if report.edits:
        report.edits.insert(0, mark_edit(text, package, version))
    new = source.edited(report.edits)
    return {"package": package, "version": version, "found": how, "report": report, "place": source.place, "text": new}


def migrate_python(file: str, text: str, version: str) -> dict:
    """A script or notebook that uses TRL."""
    source = PythonSource(file, text)
    uses_trl = any(module.split(".")[0] in ("trl", "unsloth") for module, _, _ in source.imports.values())
    need(
        uses_trl, f"got {file}, which imports nothing of TRL; expected a script with one of its trainers, or a verl job"
    )
    version, how = chosen_version("trl", file, source.text, version, uses(source), lambda v: outcome(source, v))
    migration = TrlMigration(source, version)
    report = migration.migrate()
    pin_edits(source, report)
    result = result_of("trl", version, how, report, source, source.text)
    return result | {"effective": compared(migration.runs, file, result["text"], report)}


def migrate_job(file: str, text: str, version: str) -> dict:
    """A verl job."""
    kind = YamlJob if Path(file).suffix in (".yaml", ".yml") else ShellJob
    job = kind(file, text)
    need(job.words or job.mains, f"got {file} without a setting of verl; expected a job or its YAML; try its path")
    table = changes("verl")["keys"]
    named = [(w.key, job.place(w.start), table[w.key]) for w in job.words if w.key in table and w.sign != "+"]

    def outcome_of(version: str) -> dict:
        return {key: value for key, value, _ in VerlMigration(job, version).silent()}

    version, how = chosen_version("verl", file, text, version, named, outcome_of)
    migration = VerlMigration(job, version)
    report = migration.migrate()
    result = result_of("verl", version, how, report, job, text)
    new = kind(file, result["text"])
    if kind is ShellJob:
        report.note(f"checked: {composed(new, report)}")
    return result | {"effective": verl_side_by_side(migration, new)}


ACCELERATE = {"compute_environment", "distributed_type", "num_processes", "num_machines"}  # keys of its files


def migrate_settings(file: str, text: str, version: str, config: str | None) -> dict:
    """A YAML file with the settings of a TRL config."""
    job = YamlJob(file, text)
    config = config or config_of(job)
    need(config, f"got {file} without --config_class; expected that of its run; try --config_class GRPOConfig")
    need(version, f"got {file} without --from; expected trl==VERSION; try that of the environment that ran it")
    run, report = run_of(job, config, version), Report()
    migrate_yaml(job, run, report)
    result = result_of("trl", version, "given", report, job, text)
    rows = side_by_side(run, run_of(YamlJob(file, result["text"]), config, newest("trl")))
    return result | {"effective": [{"config": config} | row for row in rows]}


def compared(runs: list[TrlRun], file: str, text: str, report: Report) -> list[dict]:
    """Settings side by side; one that differs is reported, as it was not meant to."""
    new, rows = PythonSource(file, text), []
    calls = [c for name in list(new.calls) for c in new.calls[name] if is_config(new, c)]
    calls.sort(key=lambda call: new.span(call))
    old_calls = sorted((run for run in runs if run.call), key=lambda run: run.source.span(run.call))
    if len(calls) < len(old_calls):
        return rows
    for run in runs:
        place = old_calls.index(run) if run.call else len(calls) - 1
        if not calls or run.unseen:
            continue
        after = TrlRun(new, run.config, newest("trl"), calls[place])
        for row in side_by_side(run, after):
            rows.append({"config": run.config} | row)
            if row["same"] is False:
                why = f"{row['old']} then, {row['new']} in the new file"
                report.refuse("", row["setting"], why, "setting it by hand")
    return rows


def shown_rows(rows: list[dict], names: list[str]) -> str:
    """Rows as a table of text."""
    lines = [names, *([str(row.get(name, "")) for name in names] for row in rows)]
    widths = [min(60, max(len(line[i]) for line in lines)) for i in range(len(names))]
    return "\n".join("  ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)).rstrip() for line in lines)


def say_result(file: str, result: dict, out: str | None) -> None:
    report, rows = result["report"], result["rows"]
    package, version = result["package"], result["version"]
    if report.impossible:
        tell("NOT THE SAME RUN: today's package has no equal for")
        for entry in report.impossible:
            where = f"{entry['line']}: " if entry["line"] else ""
            tell(f"  {where}{entry['setting']}: {entry['why']}; nearest: {entry['nearest']}")
        tell("")
    tell(f"{file}: {package}=={version} ({result['found']}) to {package}=={newest(package)}, {len(rows)} changes")
    for note in report.notes:
        tell(f"note: {note}")
    if rows:
        tell("\n" + shown_rows(rows, ["line", "setting", "since", "why", "otherwise"]))
    if result["effective"]:
        tell("\n" + shown_rows(result["effective"], ["setting", "old", "new"] + ["read"] * ("trial" in result)))
    if "trial" in result:
        for note in result["trial"]["said"]:
            tell(f"note: {note}")
        tell(f"--check: one step of {result['trial']['trainer']}, loss {result['trial']['loss']:.4g}")
    tell(f"\n{out} written" if out else "\nnothing written; try --out NEW")


def main(argv: list[str] | None = None) -> int:
    """Command line entry; returns the exit code."""
    words = sys.argv[1:] if argv is None else argv
    if words[:1] == [ONE_STEP]:
        return one_step(*words[1:])
    try:
        return run(parse(argv))
    except UserError as error:
        print(error, file=sys.stderr)
        return error.code


def check_step(args: argparse.Namespace, result: dict, path: Path) -> dict:
    """Run one step, and put what TRL read into the table of settings."""
    answer = trial(runnable(path.name, result["text"]), path.parent, args.model, args.data)
    for row in result["effective"]:
        settings = answer.get(row["config"], {})
        if row["setting"] in settings:
            row["read"] = settings[row["setting"]]
    return {name: answer[name] for name in ("loss", "trainer", "said")}


def run(args: argparse.Namespace) -> int:
    package, version = split_version(args.version)
    path = Path(args.file)
    try:
        with path.open(encoding="utf-8", newline="") as f:
            text = f.read()
    except (OSError, ValueError) as error:
        raise UserError(f"got {args.file} ({error}); expected a readable text file; try its path") from None
    out = Path(args.out) if args.out else None
    need(not out or not out.exists(), f"got --out {args.out}, which exists; expected a new file; try another name")
    before = marked(text)
    if before:
        tell(f"{args.file} was migrated before, from {before[0]} to {before[1]}: nothing changes")
        return 0
    if path.suffix in (".yaml", ".yml") and ACCELERATE & {word.key for word in YamlJob(args.file, text).words}:
        tell(f"{args.file} is accelerate's, without a setting of TRL: nothing changes; `accelerate test` tries it")
        return 0
    is_python = path.suffix in (".py", ".ipynb")
    need(not (is_python and package == "verl"), f"got {args.file} with --from verl; expected a job (.sh) or its YAML")
    is_trl = package == "trl" or args.config_class or is_python
    need(
        not is_trl or is_python or path.suffix in (".yaml", ".yml"),
        f"got {args.file} with --from trl; expected .py, .ipynb or .yaml; try its flags as a YAML file, KEY: VALUE",
    )
    if is_python:
        result = migrate_python(args.file, text, version)
    elif is_trl:
        result = migrate_settings(args.file, text, version, args.config_class)
    else:
        result = migrate_job(args.file, text, version)
    report = result["report"]
    result["rows"] = report.rows(result["place"])
    if out:
        with out.open("w", encoding="utf-8", newline="") as f:
            f.write(result["text"])
    if args.check:
        need(
            path.suffix in (".py", ".ipynb"),
            "got --check with a job; expected a script; verl_train.py --check tries jobs",
        )
        result["trial"] = check_step(args, result, path)
    code = NOT_SAME if report.impossible else 0
    if args.json:
        names = ("package", "version", "found", "effective", "trial")
        shown = {name: result[name] for name in names if name in result} | {
            "to": newest(result["package"]),
            "changes": result["rows"],
        }
        tell(
            json.dumps(shown | {"not_expressible": report.impossible, "notes": report.notes, "out": args.out}, indent=1)
        )
    elif not report.edits and not report.impossible:
        tell(f"{args.file} needs no change: {result['package']} {newest(result['package'])} makes the same run of it")
    else:
        say_result(args.file, result, args.out)
    return code


if __name__ == "__main__":
    sys.exit(main())
