"""The memory and the plan, the rounds, the handover to RL, and the command line."""

import copy
import dataclasses
import math
import shlex
import shutil
import sys
from pathlib import Path

from parts.foundation.bundle import BUNDLE, HERE
from parts.foundation.exit_codes import exit_code, quiet_environment
from parts.foundation.messages import need, say, tell
from parts.foundation.processes import StopRequested, device_name, start_processes, torch
from parts.networks.adapters import settle_model
from parts.networks.loading import shaped_network
from parts.networks.models import check_context, settle_precision
from parts.rewards.text_servers import is_server
from parts.running.checkpoints import export
from parts.running.fit import (
    SAMPLING,
    UPDATE,
    Sizes,
    batch_plan,
    is_chosen_here,
    ladder,
    lighter_settings,
    settle_or_refuse,
    show_plan,
)
from parts.running.memory import (
    backward_peak,
    folded_bytes,
    network_bytes,
    pass_of_rows,
    sampling_bytes,
    shape_of,
    trl_head,
)
from parts.running.output_folder import check_folder, make_folder, write_settings
from parts.running.progress import seed_generators
from programs.warm_start.samples import MOST_PER_PROMPT, measure, obstacles, sampled_solutions, widens
from programs.warm_start.settings import Config, check_warm_start, parse_config, settled_training
from programs.warm_start.solutions import given_solutions, load_prompts_and_reward, without_solutions
from programs.warm_start.supervise import enough_epochs, supervise
from programs.warm_start.workshop import Workshop, read_lines, write_json, write_lines


def warm_start_memory(config: Config, model, teacher, prompt: int) -> dict[str, float]:
    """Bytes: what stays, and the peaks of training and sampling, with a longest prompt of `prompt` tokens.

    `model` and a local `teacher` are networks on the meta device; the model is not in memory while the teacher samples.
    """
    parameters, shape = sum(p.numel() for p in model.parameters()), shape_of(model)
    if not shape:
        return {}
    run = pass_of_rows(config, model, settled_training(config, parameters)[1], prompt + config.max_new_tokens)
    trained = sum(network_bytes(config, shape, parameters))
    rows = 0 if config.rollout_engine == "vllm" else config.rollout_batch_size
    prompts = dataclasses.replace(run, rows=rows, length=prompt)
    weights = parameters * run.stream + folded_bytes(config, shape, run)
    peaks = [weights + sampling_bytes(shape, prompts, config.max_new_tokens)]
    if teacher and (other := shape_of(teacher)):
        weights = sum(p.numel() for p in teacher.parameters()) * run.compute
        peaks.append(weights + sampling_bytes(other, prompts, config.max_new_tokens))
    return {
        "weights, gradients and optimizer": trained,
        UPDATE: trained + backward_peak(shape, run, trl_head(shape, run, fused=False)),
        SAMPLING: max(peaks),
    }


def sizes_of_run(config: Config, rows: list[dict]) -> Sizes:
    """What may be chosen by the memory that is free: how many completions are sampled at once."""
    model, prompt = shaped_network(config, config.model), max(len(row["prompt_ids"]) for row in rows)
    local = config.teacher and not is_server(config.teacher)
    teacher = shaped_network(config, config.teacher) if local else None
    recompute = {} if config.gradient_checkpointing else {"gradient_checkpointing": True}

    def choices(changed: Config, heed: bool) -> dict[str, list[dict]]:
        open_here = not heed or is_chosen_here(changed, "rollout_batch_size")
        counts = ladder(changed.rollout_batch_size, 1) if open_here else [changed.rollout_batch_size]
        return {UPDATE: [{}], SAMPLING: [{"rollout_batch_size": count} for count in counts]}

    return Sizes(
        estimate=lambda changed: warm_start_memory(changed, model, teacher, prompt),
        choices=choices,
        text=lambda changed: f"{changed.rollout_batch_size} completions sampled at once",
        lighter=lighter_settings(config, "max_new_tokens", recompute, bits=False),
        aside=config.vllm_memory if config.rollout_engine == "vllm" else 0.0,
    )


def print_warm_start_plan(config: Config, tokenizer, reward, rows: list[dict], held_out: list[dict]) -> int:
    """Print what a run would do as JSON; returns the exit code."""
    device = device_name(config)
    settle_precision(config, torch.device(device))
    parameters = sum(p.numel() for p in shaped_network(config, config.model).parameters())
    lr, micro = settled_training(config, parameters)
    round_prompts = min(config.prompts_per_round, len(rows))
    sampled = config.samples_solutions
    if sampled:
        most = round_prompts * min(MOST_PER_PROMPT, config.samples)
    else:
        most = len(given_solutions(config, tokenizer, reward, rows))
    epochs = enough_epochs(config, most) if sampled else config.epochs
    batch = batch_plan(config, tokenizer, rows, held_out) | {
        "rounds": config.rounds,
        "held_out_samples": min(config.eval_prompts or len(held_out), len(held_out)) * config.eval_samples,
        "samples_of_a_draw": round_prompts * config.samples * sampled,
        "draws_at_most": config.max_draws * sampled,
        "solutions_of_a_draw_at_most": most,
        "completions_per_optimizer_step": config.batch_size,
        "optimizer_steps_on_these": math.ceil(epochs * math.ceil(most / config.batch_size)),
    }
    source = config.teacher or ("the model's samples" if config.self else f"column {config.completion_column}")
    plan = {"batch": batch, "solutions": source, "parameters": parameters}
    show_plan(config, device, sizes_of_run(config, rows + held_out), plan, lr=lr, micro_batch_size=micro)
    return 0


def solutions_of_round(shop: Workshop, given: list[dict], number: int) -> list[dict]:
    """A round's solutions, from supervised.jsonl where they are there; `given` are those of the data."""
    config, path = shop.config, shop.round_folder(number) / "supervised.jsonl"
    if not path.exists():
        earlier = read_lines(shop.round_folder(number - 1) / "supervised.jsonl")
        write_lines(path, sampled_solutions(shop, number) if config.samples_solutions else earlier or given)
    solutions = read_lines(path)
    for one in solutions:
        same = one["row"] < len(shop.rows) and shop.rows[one["row"]]["prompt"] == one["prompt"]
        need(same, f"{path}: got a solution to another prompt than {config.data} has there; expected the run's data")
    return solutions


def play_round(shop: Workshop, given: list[dict], number: int, before: dict) -> dict:
    """Solutions, training and measure of a round; what is on disk is not done again."""
    folder = shop.round_folder(number)
    if not (folder / "measure.json").exists() and not (folder / "policy").exists():
        solutions = solutions_of_round(shop, given, number)
        if not solutions:  # the policy is what it was
            write_json(folder / "measure.json", before | {"round": number})
        else:
            supervise(shop, number, solutions)
    for earlier in range(1, number) if (folder / "policy").exists() else ():  # their samples and solutions stay
        shutil.rmtree(shop.round_folder(earlier) / "policy", ignore_errors=True)
    return measure(shop, number)


def tell_round(figures: dict) -> None:
    k, best = list(figures["pass_at_k"].items())[-1]
    shape = "" if figures["format"] is None else f", format {figures['format']:.3f}"
    rates = f"held-out pass rate {figures['pass_rate']:.3f}, pass@{k} {best:.3f}"
    signal = f"groups with signal {figures['groups_with_signal']:.3f}, ends {figures['ends']:.3f}{shape}"
    say(f"round {figures['round']}: {rates}, {signal}, entropy {figures['entropy']:.4f}")


def run_rounds(shop: Workshop, given: list[dict]) -> list[dict]:
    """Rounds until RL can take over, or no further one would help, as none does that finds nothing; their measures."""
    config = shop.config
    measures = [measure(shop, 0)]
    tell_round(measures[-1])
    while True:
        number, wrong = measures[-1]["round"], obstacles(config, measures[-1])
        goes_on = widens(config, measures) if not wrong else set(wrong) != {"entropy"}
        if number >= config.rounds or (number >= config.min_rounds and not goes_on):
            return measures
        folder = shop.round_folder(number + 1)
        is_new = not (folder / "measure.json").exists()
        measures.append(play_round(shop, given, number + 1, measures[-1]))
        tell_round(measures[-1])
        if is_new and not read_lines(folder / "supervised.jsonl"):  # another round would sample the same model
            return measures


# settings that the RL trainers have by the same names; grpo_train takes those of ppo_train for TRL's
SHARED = (
    "data eval_data hold_out prompt_column chat chat_template chat_template_kwargs reward temperature "
    "max_prompt_tokens max_new_tokens group_size"
).split()


def rl_command(config: Config, model: str, trainer: str) -> str:
    """The command that goes on with a model: the same data, rewards, template and lengths."""
    siblings = [place / f"{trainer}.py" for place in (HERE.parent, BUNDLE / "scripts")]  # beside a copy, in the bundle
    path = next((str(sibling) for sibling in siblings if sibling.is_file()), f"{trainer}.py")
    usual, words = type(config)(), ["python", path]
    words += ["--algorithm", "grpo"] if trainer == "ppo_train" else []
    words += ["--model", model]
    for name in SHARED:
        value = getattr(config, name)
        if value != getattr(usual, name) or name == "max_new_tokens":
            for one in value if isinstance(value, list) else [value]:
                words += [f"--{name}"] if one is True else [f"--{name}", str(one)]
    return shlex.join([*words, "--output_dir", f"{Path(config.output_dir)}_rl"])


def advice(shop: Workshop, measures: list[dict], wrong: dict) -> str:
    config = shop.config
    if "entropy" in wrong:
        return "try fewer --epochs, a lower --lr, or more different solutions, in a new --output_dir"
    last = measures[-1]["round"]
    if last and not read_lines(shop.round_folder(last) / "supervised.jsonl"):
        return "no solution was found: try --data with a column completion, in the form that the reward pays"
    rising = f"--resume --rounds {config.rounds + 5}" if measures[-1]["pass_rate"] > measures[0]["pass_rate"] else ""
    return f"try {rising or 'solutions in the form that the reward pays, more --epochs, a --teacher or easier prompts'}"


def conclude(shop: Workshop, measures: list[dict]) -> int:
    """Write summary.json, and final/ where RL can begin; say what comes next. Returns the exit code."""
    config, last = shop.config, measures[-1]
    wrong = obstacles(config, last)
    summary = {"ready": not wrong, "obstacles": [*wrong.values()], "seed": config.seed, "rounds": measures}
    if wrong:
        summary["try"] = advice(shop, measures, wrong)
        say(f"RL cannot begin yet: {'; '.join(wrong.values())}; {summary['try']}")
    else:
        trained, final = shop.policy_folder(last["round"]), shop.folder / "final"
        if trained and not (final.exists() and final.stat().st_mtime >= trained.stat().st_mtime):  # of an earlier round
            export(config, shop.load(last["round"]), final)
        summary["model"] = str(final) if trained else config.model
        summary["commands"] = [rl_command(config, summary["model"], name) for name in ("ppo_train", "grpo_train")]
    write_json(shop.folder / "summary.json", summary)
    if wrong:
        return 1
    rates = " -> ".join(f"{one['pass_rate']:.3f}" for one in (measures if len(measures) < 3 else (measures[0], last)))
    few = "few groups have both right and wrong answers: other prompts would teach more"
    why = last["why"] if last["fits"] in ("RL now", "harder prompts") else few
    tell(f"held-out pass rate {rates} after {last['round']} round{'s' if last['round'] != 1 else ''}: {why}")
    if not last["round"]:
        say("the model needs no warm start on these prompts; --min_rounds 1 trains anyway")
    tell("continue with one of\n" + "\n".join(f"  {command}" for command in summary["commands"]))
    return 0


def train(config: Config) -> int:
    device = start_processes(config)
    many = torch.cuda.device_count() if device.type == "cuda" else 1
    need(many == 1, f"got {many} GPUs; expected one, as TRL would use all; try CUDA_VISIBLE_DEVICES=0 before python")
    settle_precision(config, device)
    seed_generators(config)  # for new adapters and the user's rewards
    tokenizer, reward, rows, held_out = load_prompts_and_reward(config)
    resumed = check_folder(config) and any(Path(config.output_dir).glob("rounds/*/supervised.jsonl"))
    given = [] if config.samples_solutions or resumed else given_solutions(config, tokenizer, reward, rows)
    chosen = copy.copy(config)  # the parts of samples on disk stay as large as the setting says
    settle_or_refuse(chosen, str(device), sizes_of_run(chosen, rows + held_out))
    make_folder(config)
    write_settings(config)
    bare = without_solutions(rows)
    shop = Workshop(config, device, tokenizer, reward, bare, held_out, at_once=chosen.rollout_batch_size)
    try:
        check_context(config, shop.load(config.rounds), rows + held_out)
        return conclude(shop, run_rounds(shop, given))
    except StopRequested as stop:
        say(f"stopped by signal {stop.signum}; --resume continues")
        return 128 + stop.signum
    finally:
        shop.stop.restore()


def run(argv: list[str]) -> int:
    config = parse_config(argv)
    check_warm_start(config)
    quiet_environment(config.rollout_engine == "vllm")
    settle_model(config)
    if config.dry_run:
        return print_warm_start_plan(config, *load_prompts_and_reward(config))
    return train(config)


def main(argv: list[str] | None = None) -> int:
    return exit_code(lambda: run(sys.argv[1:] if argv is None else argv))


if __name__ == "__main__":
    sys.exit(main())
