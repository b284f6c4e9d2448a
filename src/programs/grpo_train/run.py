"""The run and the command line."""

import sys
from pathlib import Path

from parts.environments.environments import EnvironmentFault
from parts.foundation.exit_codes import exit_code
from parts.foundation.messages import DivergedError, RewardError, say
from parts.foundation.processes import StopRequest, room_for, world
from parts.running.fit import LOADING
from parts.running.output_folder import make_folder, write_settings
from parts.running.run_check import check_stop_when
from parts.running.summary import report, run_summary
from programs.grpo_train.callback import GrpoRun, TrlLog
from programs.grpo_train.checkpoints import export_final, resume_point
from programs.grpo_train.plan import settle_batch, show_trl_plan
from programs.grpo_train.prepare import prepare_run, quiet_libraries
from programs.grpo_train.settings import PROFILES, Config, parse_config
from programs.grpo_train.trainer import make_trainer
from programs.grpo_train.trl_arguments import trl_config


def train(config: Config) -> int:
    """Train as configured and return the exit code."""
    if config.profile:
        say(f"profile {config.profile}: " + ", ".join(f"{k}={getattr(config, k)}" for k in PROFILES[config.profile]))
    ready = prepare_run(config)
    resolved, plan = ready.config, ready.plan
    checkpoint = resume_point(config)
    check_stop_when(config.stop_when)
    trl_config(resolved, plan.steps)  # its making joins the processes, who choose as one
    settle_batch(ready, config)
    args = trl_config(resolved, plan.steps)
    make_folder(config)
    run = GrpoRun(resolved, plan, ready.scorer, ready.stages, ready.held_out, ready.setup)
    with room_for(*LOADING):
        trainer = make_trainer(resolved, args, ready.rows, plan, run, ready.tokenizer)
    start = -1
    if checkpoint:
        run.restore(checkpoint)
        start = int(checkpoint.name.rpartition("-")[2])
    run.log, run.stop = TrlLog(config, plan.steps, start), StopRequest()
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
            say(f"stopped by signal {run.signum} after step {step}; go on with --resume")
            return 128 + run.signum
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
    except (RewardError, EnvironmentFault) as fault:
        step = trainer.state.global_step
        done = Path(trainer.args.output_dir) / f"checkpoint-{step}"
        if step and world()[1] == 1 and not done.exists():
            trainer._save_checkpoint(trainer.model, None)  # scoring changes no weights: these are the last step's
            trainer.callback_handler.on_save(trainer.args, trainer.state, trainer.control)
            culprit = "environment" if isinstance(fault, EnvironmentFault) else "reward"
            say(f"saved step {step}; mend the {culprit} and go on with --resume")
        raise
    except RuntimeError as error:
        if "inf" in str(error) and "nan" in str(error):  # torch.multinomial on a model that is lost
            got = f"got probabilities that are not finite after step {trainer.state.global_step}"
            raise DivergedError(f"{got} ({error}); expected finite ones; try a lower --learning_rate") from error
        raise


def run(argv: list[str]) -> int:
    """Do what a command line says and return the exit code."""
    config = parse_config(argv)
    with quiet_libraries(config):
        return show_trl_plan(config) if config.dry_run else train(config)


def main(argv: list[str] | None = None) -> int:
    """Command line entry; returns the exit code."""
    return exit_code(lambda: run(sys.argv[1:] if argv is None else argv))


if __name__ == "__main__":
    sys.exit(main())
