"""--model: how often a model's samples pass, and whether RL, a warm start or other prompts are due."""

import time
from collections import Counter

from parts.data.pass_rates import describe_pass_rates
from parts.data.prompts import load_prompts
from parts.foundation.exit_codes import quiet_environment
from parts.foundation.messages import say, tell
from parts.foundation.processes import start_processes
from parts.foundation.settings import BaseConfig
from parts.networks.cache_probe import load_sampler
from parts.networks.models import check_context, settle_precision
from parts.networks.tokenizers import load_tokenizer
from parts.rewards.rewards import Reward
from parts.rewards.user_code import user_text
from parts.sampling.rollouts import collect
from parts.sampling.sampling import HFEngine
from programs.reward_preflight.report import print_json
from programs.reward_preflight.rows_and_gold import pick

SAMPLES = 16  # completions of a prompt
PASS_RATES = (0.1, 0.9)  # mean pass rates between which RL has enough to reinforce and to learn


class ModelSettings(BaseConfig):
    """The command line's settings, and the further settings of a run that the parts read."""

    device, rollout_engine, rollout_batch_size = "auto", "hf", 64
    lora_rank, load_in_4bit = 0, False

    def __init__(self, args):
        vars(self).update(vars(args))


def model_samples(config: ModelSettings, reward: Reward, most: int) -> list[dict]:
    """Sample and score SAMPLES completions for each of at most `most` prompts, grouped by prompt."""
    import numpy as np

    device = start_processes(config)
    settle_precision(config, device)
    tokenizer = load_tokenizer(config)
    rows = pick(load_prompts(config, tokenizer, config.data), most, config.seed)
    reward.check_columns(rows[0])
    models = load_sampler(config, tokenizer, device, "model")
    check_context(config, models, rows)
    asked = [row for row in rows for _ in range(SAMPLES)]
    noise = np.random.default_rng([config.seed, 7]).random((len(asked), config.max_new_tokens))
    return collect(config, models, HFEngine(config, models), reward, asked, noise, {})


def pass_report(args, samples: list[dict]) -> dict:
    """Figures of samples grouped by prompt; one passes if the first reward gives full marks, as in eval/accuracy."""
    full, count = 1.0 if args.full_score is None else args.full_score, SAMPLES
    first = next(iter(samples[0]["rewards"]))
    passed = [one["rewards"][first] is not None and one["rewards"][first] >= full for one in samples]
    counts = [(count, sum(passed[start : start + count])) for start in range(0, len(samples), count)]
    scores = Counter(round(one["score"], 4) for one in samples)
    spread = [len({one["score"] for one in samples[i : i + count]}) > 1 for i in range(0, len(samples), count)]
    return {
        "model": args.model,
        "reward": args.reward,
        "data": args.data,
        "seed": args.seed,
        "temperature": args.temperature,
        "max_new_tokens": args.max_new_tokens,
        **describe_pass_rates(counts, args.group_size, *PASS_RATES),
        "prompts_with_different_scores": sum(spread) / len(spread),
        "ends": sum(one["finished"] for one in samples) / len(samples),
        "scores": {f"{score:g}": n for score, n in scores.most_common(8)},
        "examples": [{key: one[key] for key in ("prompt", "completion", "score")} for one in samples[:: 8 * count][:4]],
    }


def print_pass_report(report: dict) -> None:
    tell(f"model    {report['model']}, temperature {report['temperature']:g}, seed {report['seed']}")
    tell(f"data     {report['data']}, {report['prompts']} prompts, {report['samples']} samples")
    shares = "  ".join(f"pass@{k} {value:.3f}" for k, value in report["pass_at_k"].items())
    tell(f"passed   {shares}; {report['ends']:.3f} end within {report['max_new_tokens']} tokens")
    tell("prompts  by pass rate   " + "  ".join(f"{name}: {n}" for name, n in report["prompts_by_pass_rate"].items()))
    tell(
        f"groups   of {report['group_size']}: {report['groups_with_signal']:.3f} have both right and wrong answers; "
        f"{report['prompts_with_different_scores']:.3f} of the prompts have samples with different scores"
    )
    for example in report["examples"][:3]:
        prompt = user_text(example["prompt"])
        tell(f"         {prompt[-60:]!r} -> {example['completion'][-80:]!r}, score {example['score']:g}")
    tell(f"verdict  {report['fits']}: {report['why']} ({report['seconds']:.1f} s)")


def model_preflight(args) -> int:
    """--model: sample, score and print the verdict; returns the exit code."""
    started = time.perf_counter()
    quiet_environment()
    args.max_new_tokens = args.max_new_tokens or 256
    samples = model_samples(ModelSettings(args), Reward(args.reward), args.limit or 32)
    report = pass_report(args, samples)
    if report["prompts"] * SAMPLES < 200:
        say(f"note: {report['samples']} samples are few; to tell a pass rate of 1 % from 0 takes a few hundred")
    report["seconds"] = round(time.perf_counter() - started, 1)
    (print_json if args.json else print_pass_report)(report)
    return 0 if report["fits"] == "RL now" else 1
