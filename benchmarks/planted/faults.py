"""The planted faults: what each changes in a healthy run, with a strength that the run's seed draws."""

import json
import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

DATA = Path(__file__).resolve().parents[2] / "assets" / "data"
OURS, TRL = ("ppo", "grpo"), ("grpo_train", "trl")
ALL, GROUPS, EVALUATED = OURS + TRL, ("grpo", *TRL), ("ppo", "grpo", "grpo_train")
SLOW = {"noisy_reward", "nothing_moves", "kl_holds_policy", "critic_useless", "stale_weights"}  # need 20 steps
PARTS = {"right": ("correct", "accuracy_reward", "answer_reward"), "tagged": ("tagged", "format_reward", "layout")}


@dataclass
class Plan:
    """A run: settings by common names, parts of the reward {function: [public name, weight]}, data."""

    cause: str
    variant: str
    trainer: str
    seed: int
    settings: dict = field(default_factory=dict)
    parts: dict = field(default_factory=dict)
    level: float | str = 0.0  # LEVEL in the reward
    train: list = field(default_factory=list)
    held_out: list = field(default_factory=list)
    model: str = "embedded"  # or able: trained until it solves the task
    sampler: dict = field(default_factory=dict)  # of sampler.py
    restarts: bool = False  # from the first weights, while the log continues
    strength: dict = field(default_factory=dict)


@dataclass(frozen=True)
class Fault:
    """A cause, how it is planted, and the trainers that can have it."""

    cause: str
    variant: str
    plant: Callable[[Plan, random.Random], None]
    trainers: tuple = ALL


def read(name: str) -> list[dict]:
    """Rows of a file of assets/data."""
    return [json.loads(line) for line in (DATA / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()]


def between(low, high, draw: random.Random):
    """A log-uniform number from low to high; an integer if both are."""
    value = math.exp(draw.uniform(math.log(low), math.log(high)))
    return round(value) if isinstance(low, int) and isinstance(high, int) else float(f"{value:.3g}")


def healthy(plan: Plan, draw: random.Random) -> None:
    """Vary settings, data and reward of a healthy run as people do."""
    steps = draw.randint(20, 22) if plan.cause in SLOW else draw.randint(10, 13)
    plan.settings = {"steps": steps, "batch": 32 if plan.trainer == "ppo" else 48, "group": draw.choice((4, 8))}
    plan.settings |= {"max_tokens": draw.choice((32, 48, 64)), "sample_every": draw.choice((1, 2, 4)), "eval_every": 8}
    plan.settings["lr"] = between(2e-4, 5e-4, draw)
    if draw.random() < 0.5:
        plan.settings["kl"] = between(0.005, 0.1, draw)
    plan.parts = {"right": [draw.choice(PARTS["right"]), 1.0]}
    if draw.random() < 0.5:
        plan.parts["tagged"] = [draw.choice(PARTS["tagged"]), draw.choice((0.1, 0.2, 0.5))]
    plan.train = draw.sample(read(draw.choice(("arithmetic_train", "arithmetic_train", "arithmetic_wide"))), 512)
    plan.held_out = read("arithmetic_eval")[:128]


def varied(plan: Plan, draw: random.Random) -> None:
    """A healthy run of any length, rate, temperature, group and batch."""
    plan.settings |= {"steps": draw.choice((6, 8, 10, 12, 14, 16, 30)), "batch": draw.choice((32, 32, 48, 64))}
    plan.settings["group"] = draw.choice((4, 8, 16))
    plan.settings["lr"] = between(1e-4, 6e-4, draw)
    plan.settings["temperature"] = draw.choice((0.8, 1.0, 1.0, 1.2))
    if plan.trainer in OURS and draw.random() < 0.3:
        plan.settings["minibatches"] = draw.choice((2, 4))
    plan.strength = {key: plan.settings[key] for key in ("steps", "batch", "group", "lr", "temperature")}


def drawn(**ranges) -> Callable:
    """Settings drawn between two numbers, or of a list."""

    def plant(plan: Plan, draw: random.Random) -> None:
        for name, values in ranges.items():
            value = between(*values, draw) if isinstance(values, tuple) else draw.choice(values)
            plan.settings[name] = plan.strength[name] = value

    return plant


def paid(function: str, low: float = 1.0, high: float = 1.0, level=None, alone: bool = False) -> Callable:
    """Replace the right function by another under its name; LEVEL is drawn from a range or a list."""

    def plant(plan: Plan, draw: random.Random) -> None:
        public, weight = plan.parts.pop("right")
        plan.parts = {function: [public, weight]} | ({} if alone else plan.parts)
        plan.level = draw.choice(level) if level else round(draw.uniform(low, high), 4)
        plan.strength = {"level": plan.level}

    return plant


def bought(function: str, names: tuple, low: float = 0.5, high: float = 3.0, first: str = "right") -> Callable:
    """Add a part with `low` to `high` times the weight of the answer's reward."""

    def plant(plan: Plan, draw: random.Random) -> None:
        plan.parts = {first: plan.parts["right"], function: [draw.choice(names), between(low, high, draw)]}
        plan.settings |= {"steps": draw.randint(30, 38), "batch": 64, "max_tokens": 48, "lr": between(5e-4, 1e-3, draw)}
        plan.settings.pop("kl", None)
        plan.strength = {"weight": plan.parts[function][1]}

    return plant


def changed(change: Callable) -> Callable:
    """Golds that are changed: `change(golds, prompts, draw)` returns the new ones."""

    def plant(plan: Plan, draw: random.Random) -> None:
        for rows in (plan.train, plan.held_out):
            golds = change([row["answer"] for row in rows], [row["prompt"][0]["content"] for row in rows], draw)
            rows[:] = [row | {"answer": gold} for row, gold in zip(rows, golds, strict=True)]
        plan.strength = {"example": plan.train[0]["answer"]}

    return plant


def shifted(golds: list, prompts: list, draw: random.Random) -> list:
    """Golds of rows some places on."""
    places = draw.randint(1, 50)
    return golds[places:] + golds[:places]


def written(golds: list, prompts: list, draw: random.Random) -> list:
    """The right numbers in another writing."""
    form = draw.choice(("{}.0", "${}", "{} apples", "#### {}", "0{}"))
    return [form.format(gold) for gold in golds]


def operand(plan: Plan, draw: random.Random) -> None:
    """The reward reads a column that is not the answer."""
    plan.parts = {"target_column": plan.parts.pop("right")} | plan.parts
    place = draw.choice((0, 1))
    for rows in (plan.train, plan.held_out):
        numbers = [row["prompt"][0]["content"].rstrip("=").split("+") for row in rows]
        rows[:] = [row | {"target": number[place]} for row, number in zip(rows, numbers, strict=True)]
    plan.strength = {"operand": place}


def too_hard(plan: Plan, draw: random.Random) -> None:
    """Products or long sums, which the model never gets right."""
    kind = draw.choice(("products", "long sums"))
    for rows, count in ((plan.train, 512), (plan.held_out, 128)):
        numbers = [(draw.randint(100, 999), draw.randint(100, 999)) for _ in range(count)]
        if kind == "products":
            pairs = [(f"{a}*{b}=", a * b) for a, b in numbers]
        else:
            pairs = [(f"{a * 7}+{b * 7}=", (a + b) * 7) for a, b in numbers]
        rows[:] = [{"prompt": [{"role": "user", "content": text}], "answer": str(value)} for text, value in pairs]
    plan.parts = {"right": plan.parts["right"]}
    plan.strength = {"task": kind}


def too_easy(plan: Plan, draw: random.Random) -> None:
    """A policy that solves the task before it trains."""
    plan.model, plan.train = "able", draw.sample(read("arithmetic_train"), 512)
    plan.settings["temperature"] = draw.choice((0.7, 0.8, 0.9))
    plan.settings |= {"steps": 20, "lr": 1e-4}
    plan.strength = {"temperature": plan.settings["temperature"]}


def too_sparse(plan: Plan, draw: random.Random) -> None:
    """A few prompts within reach among many that are not, and small groups."""
    share = draw.uniform(0.02, 0.08)
    for rows, name in ((plan.train, "products_train"), (plan.held_out, "products_eval")):
        hard = read(name)
        rows[:] = [row if draw.random() < share else draw.choice(hard) for row in rows]
    plan.settings["group"], plan.parts = draw.choice((2, 4)), {"right": plan.parts["right"]}
    plan.strength = {"within_reach": round(share, 3), "group": plan.settings["group"]}


def few_prompts(plan: Plan, draw: random.Random) -> None:
    """A few prompts, repeated at a learning rate that memorises them."""
    plan.train = draw.sample(plan.train, draw.choice((4, 8))) * 16
    plan.settings |= {"steps": draw.randint(40, 50), "batch": 64, "lr": between(6e-4, 1e-3, draw)}
    plan.settings.pop("kl", None)
    plan.strength = {"prompts": len(plan.train) // 16, "lr": plan.settings["lr"]}


def many_passes(plan: Plan, draw: random.Random) -> None:
    """Passes over one rollout far beyond what its clip can hold."""
    if plan.trainer in OURS:
        drawn(passes=(8, 16), minibatches=[4, 8], lr=(2e-3, 1e-2))(plan, draw)
    else:
        drawn(passes=(16, 30), lr=(4e-3, 2e-2))(plan, draw)
        plan.settings["steps"] = max(40, 2 * plan.settings["passes"])


def far_evaluation(plan: Plan, draw: random.Random) -> None:
    """Held-out rows of another task."""
    plan.held_out, plan.strength = read("products_eval")[:128], {"held_out": "products"}


def dying_part(plan: Plan, draw: random.Random) -> None:
    """A small part that a larger one drives out, while the answers get better."""
    weight = between(0.4, 1.5, draw)
    plan.parts = {
        "last_number": plan.parts["right"],
        "tagged": ["tagged", between(0.05, 0.2, draw)],
        "bare": [draw.choice(("concise", "short_reward", "style")), weight],
    }
    plan.settings |= {"steps": draw.randint(28, 36), "batch": 64}
    plan.strength = {"weight": weight}


def with_sampler(**ranges) -> Callable:
    """A sampler that holds its own weights."""

    def plant(plan: Plan, draw: random.Random) -> None:
        plan.sampler = plan.strength = {name: between(*values, draw) for name, values in ranges.items()}

    return plant


def restarted(plan: Plan, draw: random.Random) -> None:
    """A restart that loads the first weights but continues the log."""
    plan.restarts = True
    plan.settings |= {"steps": draw.randint(12, 14), "batch": 64}  # fewer samples hide the fall
    plan.strength = {"at": plan.settings["steps"]}


OTHER_FORMS = (r"[Ff]inal answer: *(\S+)", r"<final_answer>(.*?)</final_answer>")
LENGTHS, TAGS, DIGITS = ("thoroughness", "detail", "reasoning_length"), ("structure", "tags"), ("numeracy", "digits")
SHORT, REPEATED, AFTER = ("brevity", "concise", "efficiency"), ("fluency", "style"), ("explanation", "follow_up")
FAULTS = (
    Fault("near_greedy_sampling", "temperature", drawn(temperature=(0.01, 0.15))),
    Fault("near_greedy_sampling", "top_k", drawn(top_k=[1]), TRL),
    Fault("near_greedy_sampling", "top_p", drawn(top_p=(0.01, 0.2)), TRL),
    Fault("near_greedy_sampling", "min_p", drawn(min_p=(0.9, 0.99)), TRL),
    Fault("answer_form", "boxed", paid("other_form", level=(r"\\boxed\{([^}]*)\}",))),
    Fault("answer_form", "hashes", paid("other_form", level=(r"#### *(\S+)",))),
    Fault("answer_form", "other", paid("other_form", level=OTHER_FORMS)),
    Fault("gold_mismatch", "shifted", changed(shifted)),
    Fault("gold_mismatch", "number", changed(lambda golds, *_: [int(gold) for gold in golds])),
    Fault("gold_mismatch", "written", changed(written)),
    Fault("gold_mismatch", "column", operand),
    Fault("gold_mismatch", "batch", paid("reversed_golds")),
    Fault("constant_reward", "placeholder", paid("placeholder", level=(0.0, 0.5, 1.0), alone=True)),
    Fault("constant_reward", "exception", paid("guarded", level=(0.0, -1.0, 0.1))),
    Fault("inverted_reward", "negated", paid("negated", alone=True)),
    Fault("inverted_reward", "unequal", paid("unequal", alone=True)),
    Fault("inverted_reward", "distance", paid("distance", alone=True)),
    Fault("reward_ignores_answer", "format", paid("tagged", alone=True)),
    Fault("reward_ignores_answer", "self_compared", paid("self_compared", alone=True)),
    Fault("reward_ignores_answer", "plausible", paid("plausible", alone=True)),
    Fault("noisy_reward", "random", paid("random_score", low=0.5, high=2.0, alone=True)),
    Fault("noisy_reward", "judge", paid("judged", low=0.4, high=0.5, alone=True)),
    Fault("too_hard", "task", too_hard),
    Fault("too_easy", "able", too_easy),
    Fault("too_sparse", "mixture", too_sparse, GROUPS),
    Fault("memorised_prompts", "few", few_prompts),
    Fault("part_bought", "length", bought("length", LENGTHS, 1.0, 4.0)),
    Fault("part_bought", "tags", bought("tag_count", TAGS)),
    Fault("part_bought", "digits", bought("digit_count", DIGITS)),
    Fault("part_bought", "brevity", bought("brevity", SHORT, 1.0, 3.0)),
    Fault("part_bought", "repetition", bought("repetition", REPEATED)),
    Fault("part_bought", "after", bought("text_after", AFTER)),
    Fault("part_bought", "many_answers", bought("digit_count", DIGITS, 0.3, 1.0, first="anywhere")),
    Fault("limit_too_short", "limit", drawn(max_tokens=(6, 16))),
    Fault("updates_too_large", "rate", drawn(lr=(6e-3, 0.2))),
    Fault("updates_too_large", "passes", many_passes),
    Fault("nothing_moves", "rate", drawn(lr=(1e-12, 1e-8))),
    Fault("nothing_moves", "warmup", drawn(warmup=(3000, 100000))),
    Fault("nothing_moves", "clipped", drawn(grad_norm=(1e-13, 1e-10))),
    Fault("nothing_moves", "rounding", drawn(lr=(1e-7, 2e-6), dtype=["bfloat16"]), TRL),
    Fault("kl_holds_policy", "weight", drawn(kl=(3.0, 100.0))),
    Fault("no_group_variance", "prompt", paid("by_prompt", alone=True), GROUPS),
    Fault("part_dies", "driven_out", dying_part),
    Fault("critic_useless", "frozen", drawn(critic_lr=(1e-10, 1e-8)), ("ppo",)),
    Fault("critic_useless", "wild", drawn(critic_lr=(0.1, 3.0)), ("ppo",)),
    Fault("sampler_mismatch", "other_weights", with_sampler(SHIFT=(0.1, 0.4)), OURS),
    Fault("sampler_mismatch", "penalty", drawn(repetition_penalty=(1.3, 2.5)), TRL),
    Fault("stale_weights", "sync", with_sampler(EVERY=(8, 20)), OURS),
    Fault("overflow", "enormous", paid("enormous", low=22.0, high=37.0, alone=True)),
    Fault("overflow", "logarithm", paid("logarithm", low=0.02, high=0.3, alone=True), ("trl",)),
    Fault("jump_at_restart", "first_weights", restarted),
    Fault("other_eval_task", "products", far_evaluation, EVALUATED),
)
HEALTHY = Fault("healthy", "varied", varied)


def plan_of(fault: Fault, trainer: str, seed: int) -> Plan:
    """The run of a fault, a trainer and a seed."""
    draw = random.Random(f"{fault.cause} {fault.variant} {trainer} {seed}")
    plan = Plan(fault.cause, fault.variant, trainer, seed)
    healthy(plan, draw)
    fault.plant(plan, draw)
    return plan
