"""Samples of a round: written in parts, filtered, and judged: can RL take over?"""

import contextlib
import json
import statistics
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

from parts.data.pass_rates import describe_pass_rates
from parts.foundation.messages import UserError, need, say
from parts.foundation.processes import np
from parts.rewards.text_servers import is_server
from parts.sampling.rollouts import batch_rows
from programs.warm_start.settings import PASS_HIGH, Config
from programs.warm_start.solutions import solution_ids
from programs.warm_start.workshop import ServerTeacher, Teacher, Workshop, read_lines, write_json, write_lines

HELD_OUT, TRAINING = 1, 2  # which draws: of the noise
FEWEST_PROMPTS = 16  # a round samples again while fewer prompts have a solution
MOST_PER_PROMPT = 4  # solutions kept per prompt in a round
FORMAT_LOW = 0.8  # least share of completions that end, and that have full marks from a reward named …format…
ENTROPY_LOW = 0.005  # least entropy of held-out samples, in nats per token
COVERAGE = 0.8  # rounds go on while a smaller share of held-out prompts was ever solved …
LEAST_GAIN = 0.05  # … and a round widens that share by this


class Sampler:
    """Draws samples of prompts into a folder; finished parts are read from it, and no model is loaded for them.

    `source` returns, when asked, a function of rows and noise that samples and scores a completion of each; `kind` and
    `number` choose the noise.
    """

    def __init__(self, shop: Workshop, folder: Path, source, kind: int, number: int, count: int):
        self.shop, self.folder, self.source, self.count = shop, folder, source, count
        self.seed, self.ready, self.next = [shop.config.seed, 5, kind, number], None, 0
        self.title = "held-out samples" if kind == HELD_OUT else f"samples of round {number}"

    def parts(self, rows: list[dict], numbers: list[int]) -> list[dict]:
        """Samples of rows[numbers], `count` of each, in this order; a further call has further parts."""
        from tqdm import tqdm

        size, wait = max(1, self.shop.config.rollout_batch_size // self.count), 0.5 if sys.stderr.isatty() else 20
        starts, samples = range(0, len(numbers), size), []
        bar = tqdm(starts, self.title, mininterval=wait, delay=wait, dynamic_ncols=True)
        for part, start in enumerate(bar, self.next):
            path = self.folder / f"part-{part:05d}.jsonl"
            if not path.exists():
                self.shop.check_stop()
                write_lines(path, self.draw(rows, numbers[start : start + size], part))
            samples += read_lines(path)
        self.next += len(starts)
        return samples

    def draw(self, rows: list[dict], numbers: list[int], part: int) -> list[dict]:
        self.ready = self.ready or self.source()
        config, asked = self.shop.config, [rows[i] for i in numbers for _ in range(self.count)]
        width = config.max_new_tokens if config.rollout_engine == "hf" else 1  # vLLM seeds a row by its first draw
        noise = np.random.default_rng([*self.seed, part]).random((len(asked), width))
        made = self.ready(asked, noise)
        samples = []
        for i, one in enumerate(made):
            first = next(iter(one["rewards"].values()))
            passed = bool(one["finished"] and first is not None and first >= config.pass_score)
            sample = {"row": numbers[i // self.count], "prompt": one["prompt"], "text": one["completion"]}
            sample |= {"ids": one["response_ids"], "passed": passed, "logprob": sum(one["rollout_logprobs"])}
            samples.append(sample | {name: one[name] for name in ("score", "rewards", "finished")})
        return samples


def well_formed(sample: dict) -> bool:
    """Whether a sample has full marks from the first reward that is named …format…, if there is one.

    RL begins only where most samples have them: right answers in a wrong form must not train.
    """
    value = next((value for name, value in sample["rewards"].items() if "format" in name), 1)
    return value is not None and value >= 1


def draws_of_round(shop: Workshop, number: int) -> Iterator[list[dict]]:
    """Samples of a round, by the policy before it or by the teacher: `prompts_per_round` prompts at a time."""
    config, folder = shop.config, shop.round_folder(number)
    count = min(config.prompts_per_round, len(shop.rows))
    earlier, start = [shop.round_folder(n) / "sampled.json" for n in range(1, number)], 0  # prompts that they used
    for path in earlier:
        need(path.exists(), f"got no {path}; expected the file of an earlier round; try a new --output_dir")
        start += json.loads(path.read_text())["prompts"]

    def source():
        if config.teacher:
            return (ServerTeacher if is_server(config.teacher) else Teacher)(shop).sample
        return shop.sampler(number - 1, config.sample_temperature)

    sampler = Sampler(shop, folder / "samples", source, TRAINING, number, config.samples)
    for draw in range(config.max_draws):
        picked = batch_rows(range(len(shop.rows)), config, start + draw * count, count)
        yield sampler.parts(shop.rows, picked)


def chosen_samples(samples: list[dict]) -> list[dict]:
    """Different, well-formed samples that pass: of a prompt as many as it had failures, 1 to MOST_PER_PROMPT."""
    groups = defaultdict(list)
    for one in samples:
        groups[one["row"]].append(one)
    kept = []
    for group in groups.values():
        different = [*{one["text"]: one for one in group if one["passed"] and well_formed(one)}.values()]
        failures = sum(not one["passed"] for one in group)
        kept += different[: min(MOST_PER_PROMPT, max(1, failures))]
    return kept


def in_policys_ids(shop: Workshop, number: int, kept: list[dict]) -> list[dict]:
    """A teacher's solutions as the policy's tokens; those that it cannot say within max_new_tokens are left out."""
    config, models, encoded = shop.config, shop.load(number - 1), []
    for one in kept:
        with contextlib.suppress(UserError):  # an end token inside the text
            ids = solution_ids(config, models, shop.rows[one["row"]], one["text"])
            if len(ids) <= config.max_new_tokens:
                encoded.append(one | {"ids": ids})
    if len(encoded) < len(kept):
        long = f"over {config.max_new_tokens} of the policy's tokens"
        say(f"left out {len(kept) - len(encoded)} of them: {long}, or with an end token inside")
    return encoded


def sampled_solutions(shop: Workshop, number: int) -> list[dict]:
    """Solutions of this round and of those before it, each text of a prompt once; a teacher's in the policy's ids.

    Samples are drawn until enough prompts have a solution: a policy trained on a few answers goes on to sample those,
    and the next round then solves only prompts with these answers.
    """
    config, earlier = shop.config, read_lines(shop.round_folder(number - 1) / "supervised.jsonl")
    solved, kept, counts = {one["row"] for one in earlier}, [], {"prompts": 0, "samples": 0, "passed": 0}
    least = min(FEWEST_PROMPTS, len(shop.rows))
    for draw, samples in enumerate(draws_of_round(shop, number), 1):
        kept += chosen_samples(samples)
        counts["prompts"] += len(samples) // config.samples
        counts["samples"] += len(samples)
        counts["passed"] += sum(one["passed"] for one in samples)
        solved |= {one["row"] for one in kept}
        share = f"{counts['passed']} of {counts['samples']} samples pass, {len(kept)} are kept"
        say(f"round {number}: {share}; {len(solved)} prompts have a solution")
        if len(solved) >= least:
            break
        few = "so few solutions teach little; " if solved else ""
        more = "sampling more" if draw < config.max_draws else f"{few}--max_draws allows more"
        say(f"that is below {FEWEST_PROMPTS} prompts: {more}")
    if config.teacher and kept:
        kept = in_policys_ids(shop, number, kept)
    solutions = {}
    for one in [*earlier, *kept]:
        solutions[json.dumps(one["prompt"]), one["text"]] = {key: one[key] for key in ("row", "text", "ids", "prompt")}
    counts |= {"solved": len(solved), "solutions": len(solutions)}
    write_json(shop.round_folder(number) / "sampled.json", counts)
    return [*solutions.values()]


def measured(config: Config, samples: list[dict], number: int) -> dict:
    """Figures of held-out samples after a round.

    `entropy` is minus the mean log-prob of the sampled tokens, an unbiased estimate at the sampler's temperature.
    `format` is the share with full marks from the first reward that is named …format…; None where there is none.
    """
    tried = Counter(one["row"] for one in samples)
    passed = Counter(one["row"] for one in samples if one["passed"])
    counts = [(n, passed[row]) for row, n in tried.items()]
    shape = next((name for name in samples[0]["rewards"] if "format" in name), None)
    shaped = [one["rewards"][shape] for one in samples if shape and one["rewards"][shape] is not None]
    rates = describe_pass_rates(counts, config.group_size, config.pass_low, PASS_HIGH)
    return {
        "round": number,
        **rates,
        "ends": statistics.fmean(one["finished"] for one in samples),
        "format": statistics.fmean(value >= 1 for value in shaped) if shaped else None,
        "entropy": -sum(one["logprob"] for one in samples) / sum(len(one["ids"]) for one in samples),
        "different": len({(one["row"], one["text"]) for one in samples}) / len(samples),
        "tokens_mean": statistics.fmean(len(one["ids"]) for one in samples),
    }


def measure(shop: Workshop, number: int) -> dict:
    """Figures of held-out samples by the policy after a round, from measure.json where it is there."""
    config, folder = shop.config, shop.round_folder(number)
    if (folder / "measure.json").exists():
        return json.loads((folder / "measure.json").read_text())
    order = np.random.default_rng([config.seed, 6]).permutation(len(shop.held_out)).tolist()
    picked = sorted(order[: config.eval_prompts or None])

    def source():
        return shop.sampler(number, config.temperature)

    # one noise for all rounds: what differs between them is the policy
    sampler = Sampler(shop, folder / "held_out", source, HELD_OUT, 0, config.eval_samples)
    figures = measured(config, sampler.parts(shop.held_out, picked), number)
    write_json(folder / "measure.json", figures)
    return figures


def coverage(figures: dict) -> float:
    """Share of held-out prompts with a sample that passes: those that RL can reinforce."""
    return 1 - figures["prompts_by_pass_rate"]["0"] / figures["prompts"]


def widens(config: Config, measures: list[dict]) -> bool:
    """Whether a further round pays though RL could begin: few prompts are solved, and more after each round."""
    if not config.samples_solutions or len(measures) < 2 or coverage(measures[-1]) >= COVERAGE:
        return False
    return coverage(measures[-1]) - coverage(measures[-2]) >= LEAST_GAIN


def obstacles(config: Config, figures: dict) -> dict[str, str]:
    """What keeps RL from taking over, by name: too low a pass rate, the format, a collapsed entropy."""
    wrong = {}
    if figures["pass_rate"] < config.pass_low:
        wrong["pass rate"] = f"pass rate {figures['pass_rate']:.3f}, below {config.pass_low:g}"
    for name, kind in (("ends", "completions that end"), ("format", "completions of the right format")):
        if figures[name] is not None and figures[name] < FORMAT_LOW:
            wrong[name] = f"{figures[name]:.3f} {kind}, below {FORMAT_LOW:g}"
    if figures["entropy"] < ENTROPY_LOW:
        wrong["entropy"] = f"entropy {figures['entropy']:.4f} nats per token, below {ENTROPY_LOW:g}"
    return wrong
