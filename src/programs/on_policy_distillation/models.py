"""Student and teacher; the inputs of a run, and their checks."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path

from parts.data.prompts import load_splits
from parts.foundation.bundle import EMBEDDED_SPECS, has_embedded_data
from parts.foundation.messages import need, say
from parts.foundation.processes import torch, transformers
from parts.learning.optimizer import adamw, default_learning_rate
from parts.networks.cache_probe import check_pads, share_prompts
from parts.networks.forward import lm_logits, predicting_states, settle_logits, tempered
from parts.networks.loading import load_network, load_policy
from parts.networks.models import Models, add_sparsely, autocast, unwrapped
from parts.networks.tokenizers import end_and_pad_ids, load_tokenizer
from parts.rewards.rewards import Reward, call_limits
from programs.on_policy_distillation.objective import COMPARED
from programs.on_policy_distillation.settings import Config


@dataclass
class DistillationModels(Models):
    """The student as `policy`, no critic, no reference, and the teacher."""

    teacher: "Teacher"

    @property
    def networks(self) -> list:
        return [self.policy, self.teacher.model]


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


class Teacher:
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


def check_teacher(config: Config, tokenizer, rows: list[dict]) -> None:
    """Raise UserError unless the teacher reads the student's tokens as the student does; no weights are loaded."""
    spec = config.teacher
    if Path(spec).resolve() != Path(config.model).resolve():
        check_same_tokenizer(tokenizer, load_tokenizer(dataclasses.replace(config, model=spec)), spec, rows)


def pieces_of(config: Config, model, count: int) -> list[slice]:
    """Slices over `count` tokens, each of at most `logits_chunk` logits."""
    chunk = max(1, config.logits_chunk // unwrapped(model).config.get_text_config().vocab_size)
    return [slice(start, start + chunk) for start in range(0, count, chunk)]


def teacher_figures(config: Config, teacher: Teacher, hidden, targets) -> dict:
    """The teacher's log-probs [N] of given tokens, entropies [N] and likeliest tokens [N, COMPARED]."""
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
    check_teacher(config, tokenizer, rows)
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
    models.teacher = Teacher(config.teacher, config, models)
    return models


def student_learning_rate(config: Config, parameters: int) -> float:
    """The learning rate, by model size where the setting is 0."""
    return config.lr or default_learning_rate("student", parameters, bool(config.lora_rank))


def make_optimizer(config: Config, models):
    """AdamW over the student's trained weights."""
    size = sum(p.numel() for p in models.policy.parameters())
    return adamw(config, [(models.policy, student_learning_rate(config, size))])
