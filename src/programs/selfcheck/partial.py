"""Loading a trainer by its path; with --partial, plain stand-ins for what a page does not have."""

import dataclasses
import importlib.util
import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace

from parts.foundation.bundle import EMBEDDED_DATA, EMBEDDED_MODEL, EMBEDDED_REWARDS
from parts.foundation.messages import UserError, need
from parts.networks.batches import collate
from parts.networks.models import load_pretrained, merged, tokenizer_of
from programs.selfcheck.contract import ONE_PAGE, SCRIPT, called_otherwise
from programs.selfcheck.one_page import OnePage
from programs.selfcheck.scripts_trainer import ScriptsTrainer
from programs.selfcheck.subject import NEW_TOKENS

# What each check is about: without it, there is nothing to check. Checks that are not here need all of a page.
ABOUT = {
    "special_tokens": ("load_models",),
    "template_ends_at_generation": ("load_rows",),
    "reward_answers": ("load_reward",),
    "value_head_zero": ("make_experience", "load_models"),
    "gae_formula": ("gae",),
    "group_advantages": ("make_experience",),
    "reference_is_initial": ("make_experience", "load_models"),
    "first_update_ratio": ("update", "make_experience", "policy_loss"),
    "sampler_agreement": ("generate",),
    "logprob_shift": ("token_logprobs",),
    "padding": ("token_logprobs",),
    "accumulation": ("accumulate_gradients", "Config.micro_batch"),
    "chunking": ("token_logprobs", "accumulate_gradients"),
    "advantages_detached": ("accumulate_gradients",),
    "prompt_gradient": ("accumulate_gradients",),
    "value_loss_gradient": ("accumulate_gradients", "load_models"),
    **dict.fromkeys(("turn_template", "turn_ids", "turn_mask", "turn_rewards", "turn_state"), ("rollout",)),
}
# What else some look at, which is a stand-in's where the page has none.
BESIDE = {
    **dict.fromkeys(("padding", "prompt_gradient", "reward_answers"), "generate"),
    "advantages_detached": "make_experience",
}
COMPUTING = ("token_logprobs", "response_logits", "generate", "accumulate_gradients", "make_experience", "gae")
DEFAULTS = {
    "model": EMBEDDED_MODEL,
    "data": EMBEDDED_DATA,
    "reward": f"{EMBEDDED_REWARDS}:correctness_reward",
    "temperature": 1.0,
    "max_new_tokens": NEW_TOKENS,
    "micro_batch": 2,
    "vf_coef": 0.5,
}


def load_trainer(file: str):
    """The trainer of a file, as the checks see it; raise UserError where it cannot be loaded or lacks a name."""
    trainer, names = nearest_kind(file)
    need_names(file, names, called_otherwise(trainer.module, trainer.needed, names))
    return trainer


def nearest_kind(file: str) -> tuple:
    """(The trainer of a file as the kind that it lacks less of, what it lacks); raise UserError for no trainer."""
    path = Path(file)
    need(
        path.suffix == ".py" and path.is_file(),
        f"got trainer {file!r}, which is no Python file; expected TRAINER.py first, then its flags; "
        "try scripts/ppo_train.py",
    )
    module = import_file(path)
    # a page samples with `generate`, a script with an engine; a copy that has neither is what it lacks less of
    kinds = [OnePage(module, ONE_PAGE), ScriptsTrainer(module, SCRIPT)]
    trainer = min(kinds, key=lambda kind: len(kind.lacking()) / len(kind.needed))
    names = trainer.lacking()
    need(
        not names or not re.search(r"^\s*from trl\b.*Trainer\b", path.read_text(encoding="utf-8"), re.MULTILINE),
        f"got trainer {file!r}, which leaves the training to TRL; expected one in plain PyTorch, whose own functions "
        "can be called; try templates/grpo.py",
    )
    return trainer, names


def need_names(file: str, names: list[str], otherwise: list[str] = ()) -> None:
    """Raise UserError if a trainer lacks names; `otherwise` has those that are something else there."""
    need(
        not names,
        f"got trainer {file!r} without {', '.join([*names, *otherwise])}; expected all that the checks call; "
        "try selfcheck.py --contract, or --partial to check what a page has of it",
    )


def import_file(path: Path):
    """The module of a file, which is not run."""
    sys.dont_write_bytecode = True  # no __pycache__ beside the trainer or the reward file
    sys.path.insert(0, str(path.resolve().parent))  # as if it were run
    spec = importlib.util.spec_from_file_location("checked_trainer", path)
    sys.modules["checked_trainer"] = trainer = importlib.util.module_from_spec(spec)  # dataclasses look here
    try:
        spec.loader.exec_module(trainer)
    except (Exception, SystemExit) as error:
        raise UserError(
            f"got trainer {str(path)!r}: importing it raises {type(error).__name__}: {error}; expected a module that "
            "runs nothing at import; try `if __name__ == '__main__': main()` at its end"
        ) from error
    return trainer


def load_partial(file: str):
    """The page of a file with stand-ins for what it lacks, whose names are its `absent`.

    Raises:
        UserError: it has no function that a check is about, or is a copy of a script.
    """
    trainer, names = nearest_kind(file)
    if not names:
        return trainer
    got = f"got trainer {file!r} without {', '.join(names)}"
    has = [name for name in COMPUTING if callable(getattr(trainer.module, name, None)) and name not in names]
    some = isinstance(trainer, OnePage) and has
    need(some, f"{got}; expected a page that has {' or '.join(COMPUTING)} for --partial; try selfcheck.py --contract")
    fill(trainer, names)
    return trainer


def fill(trainer: OnePage, names: list[str]) -> None:
    """Give a page that lacks `names` stand-ins for them, and note what is not its own."""
    module, own = trainer.module, getattr(trainer.module, "Config", None)
    fields = [name.partition(".")[2] for name in names if name.startswith("Config.")]
    if not dataclasses.is_dataclass(own):
        own, fields = None, [name for name in DEFAULTS if name != "vf_coef"]
    module.Config = with_fields(own, fields)
    of_contract = {needed.name: needed for needed in trainer.needed}
    there = {name: getattr(module, name) for name in of_contract if callable(getattr(module, name, None))}
    trainer.otherwise = {name for name, function in there.items() if not of_contract[name].is_called_so(function)}
    missing = {name for name in STAND_INS if name not in there} | trainer.otherwise & {*STAND_INS}
    missing -= {"token_logprobs"} if "response_logits" in there else set()
    trainer.absent = missing | trainer.otherwise | {*trainer.lacking()}  # of the contract for these settings
    if "micro_batch" not in Path(module.__file__).read_text(encoding="utf-8"):
        trainer.absent.add("Config.micro_batch")
    trainer.module = WithStandIns(module, {name: STAND_INS[name] for name in missing})
    trainer.bare_gae = "gae" in there


class WithStandIns:
    """A module with stand-ins, which its own functions do not see: they may call others of the same names."""

    def __init__(self, module, stand_ins: dict):
        vars(self).update(wrapped=module, stand_ins=stand_ins)

    def __getattr__(self, name: str):
        return self.stand_ins[name] if name in self.stand_ins else getattr(self.wrapped, name)

    def __setattr__(self, name: str, value) -> None:
        if name in self.stand_ins:
            self.stand_ins[name] = value
        else:
            setattr(self.wrapped, name, value)


def with_fields(config, names: list[str]):
    """A dataclass with further fields, which have their usual values."""
    added = [(name, type(DEFAULTS[name]), dataclasses.field(default=DEFAULTS[name])) for name in names]
    return dataclasses.make_dataclass("Config", added, bases=(config,) if config else ())


def unchecked(trainer, check: str) -> str:
    """Why a check has nothing to look at, or nothing."""
    absent = getattr(trainer, "absent", ())
    lacking = [name for name in ABOUT.get(check, absent) if name in absent]
    lacking = [name + " that is called as --contract says" * (name in trainer.otherwise) for name in lacking]
    return f"not checked: it has no {' and no '.join(lacking)}" if lacking else ""


def aside(trainer, check: str) -> str:
    """What a check that ran has not looked at, or nothing."""
    beside = BESIDE.get(check)
    return f"; {beside} not checked: it has none" if beside in getattr(trainer, "absent", ()) else ""


def plain_models(config):
    """The policy, and the teacher where there is one, as transformers loads them, in float32."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    def network(name: str):
        return merged(load_pretrained(AutoModelForCausalLM, name, dtype=torch.float32)).to(device).eval()

    device = "cuda" if torch.cuda.is_available() else "cpu"
    tokenizer = AutoTokenizer.from_pretrained(tokenizer_of(config.model))
    policy = network(config.model)
    ends = policy.generation_config.eos_token_id
    ends = ends if isinstance(ends, list) else [tokenizer.eos_token_id if ends is None else ends]
    pad = ends[0] if tokenizer.pad_token_id is None else tokenizer.pad_token_id
    teacher = network(config.teacher) if getattr(config, "teacher", None) else None
    found = SimpleNamespace(policy=policy, tokenizer=tokenizer, device=device, eos_ids=ends, pad_id=pad)
    return SimpleNamespace(**vars(found), teacher=teacher, reference=None, critic=None)


def plain_rows(config, tokenizer, file: str) -> list[dict]:
    """Rows of a JSONL file, their prompts through the chat template where there is one."""
    rows = []
    with Path(file).open(encoding="utf-8") as lines:
        columns = [json.loads(line) for line in lines if line.strip()]
    for row in columns:
        chat = [{"role": "user", "content": row["prompt"]}] if isinstance(row["prompt"], str) else row["prompt"]
        if tokenizer.chat_template:
            ids = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=True)["input_ids"]
        else:
            ids = tokenizer(chat[-1]["content"]).input_ids
        rows.append({"prompt_ids": list(ids), "columns": row})
    return rows


def echo(config, models, prompts: list[list[int]], greedy: bool = False) -> dict:
    """A batch whose completions repeat their prompts: nothing is said of a sampler that is not there."""
    samples = []
    for ids in prompts:
        answer = list(ids)[: config.max_new_tokens]
        samples.append({"prompt_ids": list(ids), "response_ids": answer, "rollout_logprobs": [0.0] * len(answer)})
    return collate(samples, models.pad_id, models.device)


def plain_logprobs(config, network, batch: dict):
    """Log-probs and entropies [B, T] of the sampled tokens."""
    import torch

    ids, mask = batch["input_ids"], batch["attention_mask"]
    places = (mask.cumsum(-1) - 1).clamp(min=0)  # over real tokens only
    logits = network(input_ids=ids, attention_mask=mask, position_ids=places).logits.float() / config.temperature
    dist = torch.log_softmax(logits[:, :-1], dim=-1)
    pair = dist.gather(-1, ids[:, 1:, None]).squeeze(-1), -(dist.exp() * dist).sum(-1)
    return tuple(torch.nn.functional.pad(x, (1, 0)) * batch["response_mask"] for x in pair)


def plain_experience(config, models, batch: dict) -> dict:
    """The batch with log-probs, and the scores about their mean as advantages."""
    import torch

    mask = batch["response_mask"]
    with torch.no_grad():
        old = plain_logprobs(config, models.policy, batch)[0]
        made = {"old_logprobs": old, "advantages": (batch["scores"] - batch["scores"].mean())[:, None] * mask}
        if models.reference is not None:
            made["ref_logprobs"] = plain_logprobs(config, models.reference, batch)[0]
    if models.critic is not None:
        made |= {"values": old * 0.0, "returns": old * 0.0}
    return batch | made


STAND_INS = {
    "load_models": plain_models,
    "load_rows": plain_rows,
    "load_reward": lambda spec: lambda rows, completions: [0.0] * len(completions),
    "load_environment": lambda spec: None,
    "generate": echo,
    "token_logprobs": plain_logprobs,
    "make_experience": plain_experience,
    "policy_loss": lambda *given, **named: None,  # never called: a loss of another name is compared by its gradient
}
