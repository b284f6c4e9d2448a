"""Student and teacher, the latter a local network or a server; the inputs of a run, and their checks."""

import dataclasses
import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from parts.data.prompts import load_splits
from parts.foundation.bundle import EMBEDDED_SPECS, has_embedded_data
from parts.foundation.messages import RewardError, UserError, need, say
from parts.foundation.processes import torch, transformers
from parts.learning.optimizer import adamw, default_learning_rate
from parts.networks.cache_probe import check_pads, share_prompts
from parts.networks.forward import lm_logits, predicting_states, settle_logits, tempered
from parts.networks.loading import load_network, load_policy
from parts.networks.models import Models, add_sparsely, autocast, unwrapped
from parts.networks.tokenizers import end_and_pad_ids, load_tokenizer
from parts.rewards.rewards import Reward, call_limits
from parts.rewards.text_servers import is_server, server_json
from parts.sampling.rollouts import shared_out
from programs.on_policy_distillation.objective import COMPARED
from programs.on_policy_distillation.settings import Config


@dataclass
class DistillationModels(Models):
    """The student as `policy`, no critic, no reference, and the teacher."""

    teacher: object  # a LocalTeacher or a ServerTeacher

    @property
    def networks(self) -> list:
        return [self.policy, self.teacher.model] if isinstance(self.teacher, LocalTeacher) else [self.policy]


def check_same_tokenizer(tokenizer, other, spec: str, rows: list[dict]) -> None:
    """Raise UserError where vocabulary or segmentation of a teacher's tokenizer differ; say which tokens do."""
    ours, theirs = tokenizer.get_vocab(), other.get_vocab()
    wrong = sorted((t for t in ours.keys() | theirs.keys() if ours.get(t) != theirs.get(t)), key=lambda t: (len(t), t))
    shown = "; ".join(f"{t!r} {ours.get(t, 'absent')} / {theirs.get(t, 'absent')}" for t in wrong[:8])
    remedy = "try a teacher of the same family, or one that teaches by its texts: warm_start.py --teacher"
    got = f"got teacher {spec!r}, whose vocabulary differs from the student's in {len(wrong)} tokens"
    need(not wrong, f"{got} (student's id / teacher's id): {shown}; expected one vocabulary; {remedy}")
    for row in rows[:64]:
        text = tokenizer.decode(row["prompt_ids"])
        student, teacher = (t.tokenize(text, add_special_tokens=False) for t in (tokenizer, other))
        got = f"got teacher {spec!r}, which splits {text[:60]!r} differently"
        need(student == teacher, f"{got}: student {student[:8]}, teacher {teacher[:8]}; {remedy}")
    if tokenizer.chat_template != other.chat_template:
        say(f"warning: the chat template of teacher {spec!r} differs; it reads prompts in the student's")


def check_server_objective(config: Config) -> None:
    """Raise UserError for settings that need more than a server returns."""
    full = config.objective != "policy_gradient" and not config.kl_top_k
    got = f"got objective {config.objective} over the whole vocabulary with a server"
    need(not full, f"{got}, which returns its likeliest tokens only; try --kl_top_k 20 or --objective policy_gradient")
    for name in ("teacher_in_4bit", "teacher_precision"):
        need(not getattr(config, name), f"got --{name} with a server; expected a teacher that is loaded here")
    need(config.temperature == 1.0, f"got temperature {config.temperature} with a server; expected 1, its own")


class LocalTeacher:
    """A frozen network on this device. It is only ever run forward on given tokens."""

    def __init__(self, source: str, config: Config, models: Models):
        settings = {"precision": config.teacher_precision or config.precision, "load_in_4bit": config.teacher_in_4bit}
        self.config = dataclasses.replace(config, model=source, lora_rank=0, **settings)
        self.model = load_network(transformers.AutoModelForCausalLM, source, self.config, models.device, frozen=True)
        settle_logits(self.config, dataclasses.replace(models, policy=self.model))
        check_pads(self.config, models, self.model, "teacher")
        share_prompts(self.config, models, [self.model])
        known, used = (m.get_input_embeddings().weight.shape[0] for m in (self.model, unwrapped(models.policy)))
        self.width = min(known, used)  # rows beyond the tokenizer's are padding, and models of one family differ there
        got = f"got teacher {source!r} of {known} tokens, student of {used}"
        need(self.width >= len(models.tokenizer), f"{got}; expected {len(models.tokenizer)} at least")

    def states(self, piece: dict):
        """Hidden states [B, T, H] that predict each token of a piece; the student's padding rows read as the last."""
        piece = piece | {"input_ids": piece["input_ids"].clamp(max=self.width - 1)}
        with torch.no_grad(), autocast(self.config, piece["input_ids"].device):
            return predicting_states(self.model, piece)

    def logprobs(self, hidden):
        """Log-probs [n, width] of the next token, of states [n, H]."""
        with torch.no_grad():
            logits = lm_logits(self.model, hidden)[:, : self.width]
            return torch.log_softmax(tempered(logits, self.config.temperature), -1)


class ServerTeacher:
    """A model behind an OpenAI-compatible server that returns vLLM's `prompt_logprobs`; asked for no text."""

    hint = (
        "try `vllm serve MODEL`, with --max-logprobs at least --kl_top_k and --max-model-len above the longest prompt "
        "and completion"
    )

    def __init__(self, url: str, config: Config):
        self.url, _, self.name = url.partition("#")
        self.url, self.top_k = self.url.rstrip("/"), config.kl_top_k
        served = server_json(f"{self.url}/models", None, self.hint).get("data") or []
        if not self.name:
            self.name = served[0]["id"] if served else ""
            need(self.name, f"got teacher {url!r}, which serves no model; expected one; try {url}#MODEL")
        lengths = [entry.get("max_model_len") for entry in served if entry.get("id") == self.name]
        self.max_length = next(filter(None, lengths), math.inf)  # vLLM says it

    def ask(self, ids: list[int]) -> list[dict]:
        """For each token but the first: {token id: {"logprob", …}} of itself and the likeliest tokens there."""
        body = {"model": self.name, "prompt": ids, "max_tokens": 1, "temperature": 1.0, "prompt_logprobs": self.top_k}
        choices = server_json(f"{self.url}/completions", body, self.hint).get("choices") or [{}]
        scored = choices[0].get("prompt_logprobs")
        need(
            isinstance(scored, list) and len(scored) == len(ids) and all(map(self.is_scored, scored[1:], ids[1:])),
            f"got from {self.url} an answer without prompt_logprobs of all {len(ids)} tokens; expected vLLM's "
            "`prompt_logprobs`, which other servers do not have; try `vllm serve MODEL`, or a local teacher",
        )
        return scored[1:]

    def is_scored(self, entry, token: int) -> bool:
        """Whether an entry holds the log-probs asked for."""
        if not isinstance(entry, dict) or str(token) not in entry or len(entry) < self.top_k:
            return False
        return all(isinstance(e, dict) and math.isfinite(e.get("logprob", math.nan)) for e in entry.values())

    def check(self, tokenizer, rows: list[dict], longest: int) -> None:
        """Raise UserError where the server reads token ids otherwise, or texts of the `longest` length do not fit."""
        need(
            longest < self.max_length,  # it counts the token that it makes
            f"got prompts and completions of up to {longest} tokens, and teacher {self.url} with a length of "
            f"{self.max_length}; expected one above; try --max-model-len {longest + 1} there, or a lower "
            "--max_new_tokens or --max_prompt_tokens",
        )
        size, wrong = len(tokenizer), []
        ids = (rows[0]["prompt_ids"][:64] + list(range(0, size, max(1, size // 192))))[:longest]
        for token, entry in zip(ids[1:], self.ask(ids), strict=True):
            theirs, ours = entry[str(token)].get("decoded_token"), tokenizer.decode([token])
            if theirs and "\ufffd" not in theirs + ours and theirs.strip() != ours.strip():
                wrong.append(f"{token} {ours!r} / {theirs!r}")
        need(
            not wrong,
            f"got teacher {self.url}, whose vocabulary differs from the student's in {len(wrong)} of {len(ids)} tokens "
            f"tried (id, student's / teacher's): {'; '.join(wrong[:8])}; expected one vocabulary",
        )

    def score(self, samples: list[dict]) -> list[dict]:
        """Of each sample: log-probs of its response tokens, and ids and log-probs of the likeliest there."""
        with ThreadPoolExecutor(16) as pool:
            answers = list(pool.map(self.ask, [s["prompt_ids"] + s["response_ids"] for s in samples]))
        scored = []
        for sample, entries in zip(samples, answers, strict=True):
            entries, ids = entries[len(sample["prompt_ids"]) - 1 :], sample["response_ids"]
            result = {"logprobs": [e[str(i)]["logprob"] for e, i in zip(entries, ids, strict=True)]}
            if self.top_k:  # the token itself is returned besides, where it is not among them
                best = [sorted(e.items(), key=lambda x: -x[1]["logprob"])[: self.top_k] for e in entries]
                result["ids"] = [[int(i) for i, _ in top] for top in best]
                result["top"] = [[entry["logprob"] for _, entry in top] for top in best]
            scored.append(result)
        return scored


def check_teacher(config: Config, tokenizer, rows: list[dict], held_out: list[dict]) -> None:
    """Raise UserError unless the teacher reads the student's tokens as the student does; no weights are loaded."""
    spec = config.teacher
    if is_server(spec):
        check_server_objective(config)
        longest = max(len(row["prompt_ids"]) for row in rows + held_out) + config.max_new_tokens
        ServerTeacher(spec, config).check(tokenizer, rows, longest)
    elif Path(spec).resolve() != Path(config.model).resolve():
        check_same_tokenizer(tokenizer, load_tokenizer(dataclasses.replace(config, model=spec)), spec, rows)


def ask_server(models: DistillationModels, samples: list[dict]) -> None:
    """Add to samples what a server says of their tokens, each process asking for its share."""
    if isinstance(models.teacher, LocalTeacher):
        return
    try:
        answers = shared_out(lambda local, _: models.teacher.score(local), samples, None)
    except UserError as error:  # a fault of scoring: the steps so far are saved
        raise RewardError(str(error)) from None
    for sample, answer in zip(samples, answers, strict=True):
        sample["scored"] = answer


def server_tensors(samples: list[dict], batch: dict) -> dict:
    """teacher_logprobs [B, T], teacher_ids and teacher_top [B, T, k] where a server has scored the samples."""
    if "scored" not in samples[0]:
        return {}
    mask = batch["response_mask"].bool()
    names = {"logprobs": "teacher_logprobs", "ids": "teacher_ids", "top": "teacher_top"}
    made = {}
    for key in samples[0]["scored"]:
        flat = torch.tensor([x for s in samples for x in s["scored"][key]], device=mask.device)  # [N] or [N, k]
        made[names[key]] = flat.new_zeros(*mask.shape, *flat.shape[1:])
        made[names[key]][mask] = flat
    return made


def pieces_of(config: Config, model, count: int) -> list[slice]:
    """Slices over `count` tokens, each of at most `logits_chunk` logits."""
    chunk = max(1, config.logits_chunk // unwrapped(model).config.get_text_config().vocab_size)
    return [slice(start, start + chunk) for start in range(0, count, chunk)]


def teacher_figures(config: Config, teacher: LocalTeacher, hidden, targets) -> dict:
    """A local teacher's log-probs [N] of given tokens, entropies [N] and likeliest tokens [N, COMPARED]."""
    figures = {"teacher_logprobs": [], "teacher_entropy": [], "teacher_ids": []}
    for part in pieces_of(config, teacher.model, len(targets)):
        dist = teacher.logprobs(hidden[part])
        figures["teacher_logprobs"].append(dist.gather(-1, targets[part, None]).squeeze(-1))
        figures["teacher_ids"].append(dist.topk(min(COMPARED, teacher.width)).indices)
        figures["teacher_entropy"].append(-(dist.exp() * dist).sum(-1))
    return {name: torch.cat(parts) for name, parts in figures.items()}


def load_reward(config: Config) -> Reward:
    """The configured reward functions, those of the embedded task with its data, or none."""
    specs = config.reward or (EMBEDDED_SPECS if has_embedded_data(config.data) else [])
    reward = Reward(specs, call_limits(config))
    need(reward.functions or not config.reward_coef, "got --reward_coef without reward; try --reward FILE.py:function")
    reward.silent = not reward.functions  # no warning that none applies
    return reward


def load_inputs(config: Config) -> tuple[object, Reward, list[dict], list[dict]]:
    reward, tokenizer = load_reward(config), load_tokenizer(config)
    rows, held_out = load_splits(config, tokenizer)
    for row in (rows + held_out)[:: max(1, len(rows))]:
        reward.check_columns(row)
    check_teacher(config, tokenizer, rows, held_out)
    return tokenizer, reward, rows, held_out


def load_models(config: Config, device, checkpoint: Path | None = None, tokenizer=None) -> DistillationModels:
    """Load tokenizer, student (from a checkpoint where there is one) and teacher."""
    tokenizer = tokenizer or load_tokenizer(config)
    policy = load_policy(config, device, checkpoint and checkpoint / "policy")
    add_sparsely(policy, device)
    if config.gradient_checkpointing:
        policy.activation_checkpointing_enable({"use_reentrant": False})
    eos_ids, pad_id = end_and_pad_ids(config, policy, tokenizer)
    models = DistillationModels(policy, None, None, tokenizer, eos_ids, pad_id, device, None)
    settle_logits(config, models)
    check_pads(config, models, policy, "model")
    share_prompts(config, models, [policy])
    spec = config.teacher
    models.teacher = ServerTeacher(spec, config) if is_server(spec) else LocalTeacher(spec, config, models)
    return models


def student_learning_rate(config: Config, parameters: int) -> float:
    """The learning rate, by model size where the setting is 0."""
    return config.lr or default_learning_rate("student", parameters, bool(config.lora_rank))


def make_optimizer(config: Config, models):
    """AdamW over the student's trained weights."""
    size = sum(p.numel() for p in models.policy.parameters())
    return adamw(config, [(models.policy, student_learning_rate(config, size))])
