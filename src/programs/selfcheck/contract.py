"""What a trainer must offer to be checked: names, signatures, shapes; `--contract` prints it."""

import dataclasses
import inspect
import textwrap


@dataclasses.dataclass(frozen=True)
class Needed:
    """A function, class or table that the checks take from a trainer."""

    signature: str  # as it is called; what is not a function has its name alone
    meaning: str
    field: str = ""  # asked for where Config has this field
    without: str = ""  # and has not that one
    instead: str = ""  # what does as well

    @property
    def name(self) -> str:
        """What the trainer calls it."""
        return self.signature.partition("(")[0]

    def offered_by(self, module) -> bool:
        """Whether a module has it, or what does as well; a function of this name that is called otherwise is not it."""
        return self.is_called_so(getattr(module, self.name, None)) or callable(getattr(module, self.instead, None))

    def is_called_so(self, function) -> bool:
        """Whether something can be called with the arguments of the signature."""
        named = self.signature.partition("(")[2].partition(")")[0].split(", ")
        given = [name for name in named if name and name != "..." and "=" not in name]
        by_name = {name.partition("=")[0]: None for name in named if "=" in name}
        try:
            called = inspect.signature(function)
            (called.bind_partial if "..." in named else called.bind)(*given, **by_name)
        except ValueError:  # of a builtin, unknown
            return True
        except TypeError:  # nothing that is called, or otherwise
            return not given and callable(function)
        return True

    def asked_of(self, fields) -> bool:
        """Whether a trainer whose Config has these fields needs it."""
        return (not self.field or self.field in fields) and self.without not in fields


ONE_PAGE = (
    Needed("Config", "dataclass of all settings; parse_config(argv) -> Config reads them, if the page has that"),
    Needed(
        "load_models(config) -> models",
        "models.policy, .tokenizer, .device, .eos_ids, .pad_id; .teacher where Config has that; .reference where it "
        "has kl_coef, None for 0; .critic where it has gae_lambda: its forward gives logits [B, T, 1], the value of "
        "the text up to t",
    ),
    Needed(
        "load_rows(config, tokenizer, file) -> rows", 'row["prompt_ids"] [int], row["columns"] the line, with "prompt"'
    ),
    Needed("load_reward(spec) -> reward", "reward(rows, completions) -> a float for each", without="environment"),
    Needed(
        "load_environment(spec) -> environment",
        "what rollout takes; checked with a class that has reset, reply and get_reward",
        field="environment",
    ),
    Needed(
        "rollout(config, models, environment, rows) -> (batch, samples, metrics)",
        "a conversation for each row, in their order; an object for each is made by the class of the environment, and "
        "answers are sampled by `generate` of the page; batch as of generate, with scores [B]",
        field="environment",
    ),
    Needed(
        "generate(config, models, prompts, greedy=False) -> batch",
        "prompts: lists of ids; batch: input_ids, attention_mask, response_mask, rollout_logprobs, [B, T] each; "
        "prompts end, and completions start, in one column; response_mask is 1 on sampled tokens",
    ),
    Needed(
        "token_logprobs(config, network, batch) -> (logprobs, entropy)",
        "of logits / temperature, [B, T], with gradient",
        without="teacher",
    ),
    Needed(
        "response_logits(config, network, batch) -> [N, V]",
        "logits / temperature that predict the N tokens of response_mask; token_logprobs as above will do",
        field="teacher",
        instead="token_logprobs",
    ),
    Needed(
        "accumulate_gradients(config, models, batch, rows)",
        "adds the gradients of the loss of one minibatch; rows [n] are its indices, config.micro_batch of them a pass",
    ),
    Needed(
        "make_experience(config, models, batch) -> batch",
        "batch with scores [B] as well; adds old_logprobs, advantages, with a reference ref_logprobs, with a critic "
        "values and returns, [B, T]",
        without="teacher",
    ),
    Needed(
        "update(config, models, optimizer, batch, step)",
        "all optimizer steps of one training step, of which the first is 1",
        without="teacher",
    ),
    Needed(
        "policy_loss(logprobs, old_logprobs, advantages, ...)",
        "called by accumulate_gradients under this name, with these first",
        without="teacher",
    ),
    Needed(
        "gae(rewards, values, response_mask, gamma, gae_lambda) -> (advantages, returns)",
        "[B, T] each; past tokens outside the mask V and A are carried",
        field="gae_lambda",
    ),
)

# fields of a one-page trainer's Config: (fields, the field with which they are asked for)
FIELDS = (
    ("model data temperature max_new_tokens micro_batch", ""),
    ("vf_coef", "gae_lambda"),
)
OPTIONAL_FIELDS = (
    "seed chat chunk batch_size prompts group_size epochs minibatches kl_coef value_clip critic_warmup_steps "
    "max_turns max_tokens"
)

# what the checks take of a page where it is there
PAGE_OPTIONAL = (
    "check_template(models), which ends the program where the chat template writes earlier turns anew; without it, "
    "rollout does"
)

SCRIPT = (
    Needed("UserError", "what it raises for bad input"),
    Needed("parse_config(argv) -> config", "settings of a command line, a dataclass with the fields of ppo_train.py"),
    Needed("check_config(config)", "raises where settings contradict each other"),
    Needed("start_processes(config) -> device", "the torch device of this process"),
    Needed("load_tokenizer(config) -> tokenizer", "that of the model"),
    Needed("load_splits(config, tokenizer) -> (rows, held_out)", 'row["prompt"], row["prompt_ids"] and its columns'),
    Needed("load_reward(config) -> reward", "reward(rows, completions, ids) -> (scores, {function: values})"),
    Needed("load_models(config, device) -> models", ".policy .critic .reference .tokenizer .eos_ids .pad_id .device"),
    Needed("check_context(config, models, rows)", "raises where prompt and completion are too long for the model"),
    Needed("batch_rows(rows, config, start, count) -> rows", "prompts of the shuffled stream"),
    Needed("HFEngine(config, models)", ".generate(prompts, noise) -> [(ids, logprobs)], greedy for None; .sync()"),
    Needed("collect(config, models, engine, reward, rows, noise, timer) -> samples", "one scored completion a row"),
    Needed("collate(samples, pad_id, device) -> batch", "input_ids, attention_mask, response_mask, rollout_logprobs"),
    Needed("make_experience(config, models, samples, kl_coef) -> batch", "adds log-probs, values and advantages"),
    Needed("autocast(config, device)", "context of mixed precision"),
    Needed("predicting_states(model, batch) -> [B, T, H]", "entry t is the state after token t - 1"),
    Needed("token_logprobs(config, model, hidden, batch) -> (logprobs, entropy)", "[B, T] each"),
    Needed("switch_checkpointing(models, on)", "recomputation of layers on or off"),
    Needed("accumulate_gradients(config, models, batch, rows, scaler)", "adds the gradients of one minibatch"),
    Needed("make_optimizer(config, models) -> optimizer", "as the run has it"),
    Needed("update(config, models, optimizer, scaler, batch, step, ...)", "all optimizer steps of one step"),
    Needed("policy_loss(logprobs, old_logprobs, advantages, ...)", "or, for other losses, the entry of LOSSES"),
    Needed("gae(rewards, values, response_mask, gamma, gae_lambda) -> (advantages, returns)", "[B, T]", "gae_lambda"),
)
# with --environment, too
SCRIPT_TALKS = (
    Needed("load_with_reward(config, tokenizer) -> (environments, reward)", "those of the settings"),
    Needed(
        "make_play_setup(config, tokenizer, end_ids, environments) -> setup",
        "raises for a template that cannot be continued; setup.environments.kinds, setup.bridge.settings",
    ),
    Needed("playable_rows(config, setup, rows, source) -> rows", "those that fit, as conversations begin"),
    Needed(
        "converse(setup, config, models, engine, reward, rows, noise, timer) -> samples",
        "a conversation for each row, in their order, sampled by engine.generate; a sample has what collate takes, "
        "score, and rewards by name",
    ),
)
# what the checks take of a script where it is there: other engines and losses, and what copies of older ones lack
SCRIPT_OPTIONAL = ("VllmEngine", "LOSSES", "settle_precision")


def lacking(module, needed, fields) -> list[str]:
    """What a trainer does not have of what its settings ask for; fields is None where they are not known yet."""
    asked = [n for n in needed if (n.asked_of(fields) if fields is not None else not n.field + n.without)]
    return [n.name for n in asked if not n.offered_by(module)]


def called_otherwise(module, needed, names: list[str]) -> list[str]:
    """Of the names that a trainer lacks, how those that it has are called there, and how they would be called."""
    found = []
    for n in needed:
        function = getattr(module, n.name, None)
        if n.name in names and callable(function):
            found.append(f"{n.name}{inspect.signature(function)} is another one than {n.signature}")
    return found


def lacking_fields(fields) -> list[str]:
    """Fields that the Config of a one-page trainer has not."""
    asked = [names for names, field in FIELDS if not field or field in fields]
    names = " ".join(asked).split() + ["reward"] * ("environment" not in fields)
    return [f"Config.{name}" for name in names if name not in fields]


def wrapped(text: str, first: str = "      ") -> str:
    """Lines of at most 116 characters."""
    return textwrap.fill(text, 116, initial_indent=first, subsequent_indent="      ")


def entry(needed: Needed) -> str:
    """The lines about a name."""
    when = f"where Config has {needed.field}: " * bool(needed.field)
    when += f"where Config has no {needed.without}: " * bool(needed.without)
    return f"  {needed.signature}\n{wrapped(when + needed.meaning)}"


def contract() -> str:
    """The printed list."""
    always, critic = (names.replace(" ", ", ") for names, _ in FIELDS)
    fields = f"{always}; reward where it has no environment; {critic} where it has gae_lambda (a critic)"
    lines = [
        "What selfcheck.py takes from a trainer; all else in it is yours. Tensors [B, T] are over prompt and response:",
        "x[b, t] is about token t. Masks are 1 = keep.",
        "",
        "A page: templates/ppo.py, grpo.py, distillation.py, multi_turn.py, or a copy",
        *map(entry, ONE_PAGE),
        wrapped(f"Fields of its Config: {fields}.", "  "),
        wrapped(f"Used where it has them: {OPTIONAL_FIELDS.replace(' ', ', ')}.", "  "),
        wrapped(f"Used where it has it: {PAGE_OPTIONAL}.", "  "),
        "",
        "A script: scripts/ppo_train.py, on_policy_distillation.py, or a copy",
        *map(entry, SCRIPT),
        "  With --environment, too:",
        *map(entry, SCRIPT_TALKS),
        wrapped(f"Used where it has them: {', '.join(SCRIPT_OPTIONAL)}.", "  "),
    ]
    return "\n".join(lines)
