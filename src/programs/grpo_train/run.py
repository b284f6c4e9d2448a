"""Loading and checks before the first step, --dry_run, the run, and the command line."""

import contextlib
import dataclasses
import math
import os
import sys
import warnings
from pathlib import Path
from unittest import mock

from parts.data.prompts import load_splits
from parts.environments.environments import EnvironmentFault, load_environments
from parts.environments.play_setup import (
    check_chat_template,
    check_environment_rows,
    make_play_setup,
    playable_rows,
)
from parts.foundation.exit_codes import exit_code, quiet_environment
from parts.foundation.messages import DivergedError, RewardError, say
from parts.foundation.processes import StopRequest, room_for, transformers, world
from parts.learning.idle_settings import say_idle
from parts.networks.adapters import base_of, settle_model
from parts.networks.loading import generation_settings, shaped_network
from parts.networks.tokenizers import ending_ids
from parts.running.fit import (
    LOADING,
    SAMPLING,
    UPDATE,
    Sizes,
    batch_plan,
    environment_plan,
    ladder,
    lighter_settings,
    settle_or_refuse,
    show_plan,
)
from parts.running.memory import (
    PassShape,
    adapter_weights,
    attention_kind,
    frozen_bytes,
    memory_of_run,
    shape_of,
    trl_head,
)
from parts.running.output_folder import make_folder, write_settings
from parts.running.progress import RunLog, seed_generators
from parts.running.run_check import check_stop_when, say_stopped
from parts.running.run_end import report, run_summary
from programs.grpo_train.callback import GrpoRun, Prepared, export_final, resume_point
from programs.grpo_train.data import left_tokenizer, plan_batches, trl_config, trl_settings
from programs.grpo_train.evaluation import let_environments_score
from programs.grpo_train.rewards import load_scorer
from programs.grpo_train.settings import PROFILES, Config, check_machine, check_settings, fill_in, parse_config
from programs.grpo_train.trainer import make_trainer


@contextlib.contextmanager
def quiet_libraries(config: Config):
    """Set what must stand in the environment when TRL is imported and used; what the user has set stays."""
    defaults = {"TENSORBOARD_LOGGING_DIR": f"{config.output_dir}/tensorboard", "WANDB_DIR": config.output_dir}
    defaults |= {"WANDB_PROJECT": "rl-training", "HF_HUB_DISABLE_TELEMETRY": "1"}
    defaults |= {"TRL_EXPERIMENTAL_SILENCE": "1"}  # of rollout_func: TRL is pinned
    quiet_environment(bool(config.use_vllm))
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    warnings.filterwarnings("ignore", message=".*gradient_checkpointing.*deprecated.*")  # inside TRL and peft
    with mock.patch.dict(os.environ, {name: value for name, value in defaults.items() if name not in os.environ}):
        yield


def prepare_run(config: Config) -> Prepared:
    """Check everything that does not need the weights."""
    settle_model(config)
    check_settings(config)
    seed_generators(config)  # for the user's rewards
    tokenizer, setup = left_tokenizer(config), None
    environments = load_environments(config.environment) if config.environment else None
    if environments:
        check_chat_template(config, tokenizer)
    rows, held_out = load_splits(config, tokenizer)
    scorer = load_scorer(config, rows)
    for row in (rows + held_out)[:: max(1, len(rows))]:
        scorer.check_columns(row)
    if environments:
        let_environments_score(config, environments, scorer)
        check_environment_rows(environments, rows + held_out)
        ends = ending_ids(generation_settings(base_of(config.model)).eos_token_id, tokenizer)
        setup = make_play_setup(config, tokenizer, ends, environments)
        sources = ((rows, config.data), (held_out, "held-out prompts"))
        rows, held_out = (playable_rows(config, setup, of, name, "max_prompt_length") for of, name in sources)
        scorer.rows = rows
    parameters = sum(p.numel() for p in shaped_network(config, config.model).parameters())
    resolved = fill_in(config, parameters)
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    plan = plan_batches(resolved, processes, len(rows))
    at_once = plan.completions_per_rollout // processes  # what training has memory for
    resolved.per_device_eval_batch_size = resolved.per_device_eval_batch_size or at_once
    whole = math.ceil(resolved.save_steps / plan.steps_per_rollout) * plan.steps_per_rollout
    if whole != resolved.save_steps:
        say(f"checkpoints every {whole} steps: a rollout lasts {plan.steps_per_rollout}; TRL cannot resume inside one")
        resolved.save_steps = whole
    check_machine(resolved)
    resolved.given = config.given
    if processes == 1 or "RANK" in os.environ:
        trl_config(resolved, plan.steps)  # making it joins the processes, which then choose as one
    say_idle(resolved, plan.steps_per_rollout)
    return Prepared(resolved, plan, tokenizer, rows, held_out, scorer, parameters, setup)


def trl_memory(ready: Prepared, config: Config, model, longest: int, processes: int) -> dict[str, float]:
    """Bytes per process, see `memory_of_run`; what vLLM takes is left out.

    {} where weights are sharded, which this does not count.
    """
    args, parameters, shape = trl_settings(config, ready.plan.steps), ready.parameters, shape_of(model)
    sharded = any(os.environ.get(f"ACCELERATE_USE_{name}") for name in ("DEEPSPEED", "FSDP", "MEGATRON_LM"))
    if not shape or sharded or args.get("deepspeed") or args.get("fsdp"):
        return {}
    whole = config.conversation_tokens if config.environment else longest + config.max_completion_length
    loading = args["model_init_kwargs"]
    stream = 4 if loading["dtype"] == "float32" else 2
    run = PassShape(
        rows=config.per_device_train_batch_size,
        length=whole,
        compute=2 if args["bf16"] or args["fp16"] else stream,
        stream=stream,
        attention=attention_kind(loading.get("attn_implementation") or model.config._attn_implementation),
        checkpointing=args["activation_checkpointing"],
        lora_rank=config.lora_rank,
    )
    if config.lora_rank:
        each, adapters = 0.516 if config.load_in_4bit else run.stream, adapter_weights(shape, config.lora_rank)
        kept, gradients = frozen_bytes(shape, parameters, each, run.stream) + 12 * adapters, 4 * adapters
    else:
        plain = config.optim.startswith(("sgd", "adafactor"))
        moments = 0 if plain else 0.5 if "8bit" in config.optim else 2  # of a weight, in its width
        kept, gradients = (1 + moments) * parameters * run.stream, parameters * run.stream
    reference = parameters * run.stream if config.beta and not config.lora_rank else 0
    at_once = 0 if config.use_vllm else ready.plan.completions_per_rollout // processes
    head = trl_head(shape, run, not args["use_cpu"])
    frozen = {"reference": reference}
    return memory_of_run(shape, run, (kept, gradients), frozen, head, at_once, config.max_completion_length)


def splits(config: Config, given: frozenset[str], heed: bool) -> list[dict]:
    """Completions of a forward pass and forward passes of a step, whose product stays; one pair where they matter.

    Args:
        given: names of the settings in flags and YAML; those of a profile are not among them.
    """
    batch, passes = config.per_device_train_batch_size, config.gradient_accumulation_steps
    names = ("per_device_train_batch_size", "gradient_accumulation_steps", "steps_per_generation")
    left_open = given.isdisjoint(names)
    quantile = any(pair.startswith("top_entropy_quantile") for pair in config.trainer_args)
    exact = config.loss_type != "bnpo" and not quantile  # these look at a forward pass
    sizes = [size for size in ladder(batch, 1) if batch % size == 0] if exact and (left_open or not heed) else [batch]
    return [{names[0]: size, names[1]: passes * batch // size} for size in sizes]


def sizes_of_run(ready: Prepared, processes: int) -> Sizes:
    """What may be chosen by the memory that is free."""
    config, longest = ready.config, max(len(row["prompt_ids"]) for row in ready.rows)
    model, checkpointing = shaped_network(config, config.model), {"gradient_checkpointing": "true"}
    recompute = {} if trl_settings(config, 1)["activation_checkpointing"] else checkpointing
    beside = config.use_vllm == "colocate" and not config.vllm_enable_sleep_mode
    return Sizes(
        estimate=lambda changed: trl_memory(ready, changed, model, longest, processes),
        choices=lambda changed, heed: {UPDATE: splits(changed, config.given, heed), SAMPLING: [{}]},
        text=lambda changed: f"micro-batches of {changed.per_device_train_batch_size} completions",
        lighter=lighter_settings(config, "max_completion_length", recompute, bits=not config.merge_lora),
        aside=config.vllm_gpu_memory_utilization if beside else 0.0,
    )


def trl_device(config: Config) -> str:
    if trl_settings(config, 1)["use_cpu"]:
        return "cpu"
    return f"cuda:{os.environ.get('LOCAL_RANK', '0')}"


def show_trl_plan(config: Config) -> int:
    """Print batch arithmetic, memory per process, and the settings that are no defaults, as JSON."""
    ready = prepare_run(config)
    resolved, plan = ready.config, ready.plan
    turns = resolved.max_turns if resolved.environment else 1
    completions = plan.rollouts * plan.completions_per_rollout
    passes = plan.rollouts * plan.prompts_per_rollout / len(ready.rows)
    batch = batch_plan(config, ready.tokenizer, ready.rows, ready.held_out) | dataclasses.asdict(plan)
    batch |= {
        "prompts_per_step": plan.completions_per_step / resolved.num_generations / resolved.num_iterations,
        "optimizer_steps": plan.steps,
        "passes_over_the_data": round(passes, 2),
        "completion_tokens_at_most": completions * turns * resolved.max_completion_length,
    }
    shown = {"batch": batch, "rewards": ready.scorer.weights, "parameters": ready.parameters}
    shown |= environment_plan(resolved, ready.setup)
    sizes = sizes_of_run(ready, int(os.environ.get("WORLD_SIZE", "1")))
    show_plan(resolved, trl_device(resolved), sizes, shown)
    return 0


def train(config: Config) -> int:
    if config.profile:
        say(f"profile {config.profile}: " + ", ".join(f"{k}={getattr(config, k)}" for k in PROFILES[config.profile]))
    ready = prepare_run(config)
    resolved, plan = ready.config, ready.plan
    checkpoint = resume_point(config)
    check_stop_when(config.stop_when)
    settle_or_refuse(resolved, trl_device(resolved), sizes_of_run(ready, world()[1]))
    args = trl_config(resolved, plan.steps)
    make_folder(config)
    run = GrpoRun(ready)
    with room_for(*LOADING):
        trainer = make_trainer(ready, args, run)
    start = -1
    if checkpoint:
        run.restore(checkpoint)
        start = int(checkpoint.name.rpartition("-")[2])
    run.log, run.stop = RunLog(config, start, plan.steps, report_to=[]), StopRequest()
    write_settings(config)
    try:
        if start >= plan.steps:
            trainer._load_from_checkpoint(str(checkpoint))  # trained to the end, and stopped before final/ was written
            trainer.state.global_step = start
        else:
            run_steps(trainer, checkpoint)
        run.log.plot()
        step = trainer.state.global_step
        if run.signum and step < plan.steps:
            return say_stopped(run.signum, step)
        summary = run_summary(config, {**run.kept, "step": step})
        export_final(config, trainer)
    finally:
        run.log.close()
        run.stop.restore()
    report(config, summary | {"seconds": round(run.state()["attributes"]["seconds"], 1)})
    return 0


def run_steps(trainer, checkpoint: Path | None) -> None:
    """Call TRL's train(), and say in the user's words what ends it early."""
    half = "--resume with half --per_device_train_batch_size and twice --gradient_accumulation_steps"
    less = f"{half}, or a new run with --profile memory"
    try:
        with room_for("in the update", less):
            trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    except (RewardError, EnvironmentFault):
        step = trainer.state.global_step
        done = Path(trainer.args.output_dir) / f"checkpoint-{step}"
        if step and world()[1] == 1 and not done.exists():
            trainer._save_checkpoint(trainer.model, None)  # scoring changes no weights: these are the last step's
            trainer.callback_handler.on_save(trainer.args, trainer.state, trainer.control)
            say(f"saved step {step}; fix the fault and continue with --resume")
        raise
    except RuntimeError as error:
        if "inf" in str(error) and "nan" in str(error):  # torch.multinomial on a model that is lost
            got = f"got probabilities that are not finite after step {trainer.state.global_step}"
            raise DivergedError(f"{got} ({error}); expected finite ones; try a lower --learning_rate") from error
        raise


def run(argv: list[str]) -> int:
    config = parse_config(argv)
    with quiet_libraries(config):
        return show_trl_plan(config) if config.dry_run else train(config)


def main(argv: list[str] | None = None) -> int:
    return exit_code(lambda: run(sys.argv[1:] if argv is None else argv))


if __name__ == "__main__":
    sys.exit(main())
