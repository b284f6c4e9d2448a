"""Checkpoints, final/, and the work around TRL's steps: evaluation, logs under our names, stopping."""

import functools
import json
import math
import re
import shutil
import statistics
import time
from dataclasses import dataclass
from pathlib import Path

from parts.environments.conversations import PlaySetup, play_metrics
from parts.foundation.messages import DivergedError, need, say
from parts.foundation.processes import (
    THREADS,
    forget_peak,
    gather_rows,
    memory_metrics,
    room_for,
    torch,
    transformers,
    world,
)
from parts.networks.adapters import base_of, load_pretrained, merged, tokenizer_of
from parts.networks.loading import generation_settings
from parts.rewards.rewards import refuse_unscored
from parts.running.checkpoints import note_schedule, trainer_checkpoints
from parts.running.output_folder import check_folder, follow_umask, write_folder
from parts.running.progress import is_due, is_sampled
from parts.running.run_end import EXAMPLES
from programs.grpo_train.colocated import judge_logprobs
from programs.grpo_train.data import BatchPlan
from programs.grpo_train.evaluation import brief, conversation_entry, evaluate
from programs.grpo_train.rewards import Scorer, signal_free
from programs.grpo_train.settings import Config


def resume_point(config: Config) -> Path | None:
    """The checkpoint to resume from, if any; refuses another run's folder and a resume with other settings."""
    saved = trainer_checkpoints(Path(config.output_dir) / "checkpoints") if check_folder(config) else {}
    if config.resume and not saved:
        say(f"warning: got --resume, but {config.output_dir} holds no complete checkpoint; starting at step 0")
    return saved[max(saved)] if saved else None


def save_as_it_came(config: Config, folder: Path) -> None:
    """Save the start's tokenizer and generation settings: TRL's tokenizer pads on the left, rollouts obey no settings.

    An adapter has no generation settings of its own.
    """
    transformers.AutoTokenizer.from_pretrained(tokenizer_of(config.model)).save_pretrained(folder)
    if (folder / "generation_config.json").exists():
        generation_settings(base_of(config.model)).to_json_file(folder / "generation_config.json")


def export_final(config: Config, trainer) -> None:
    """Write final/: the model in --save_dtype, or its adapters, or both merged; it loads with transformers."""
    raw = Path(config.output_dir) / ".final.raw"
    trainer.save_model(str(raw))  # every process: sharded weights are gathered
    trainer.accelerator.wait_for_everyone()
    if world()[0] != 0:
        return
    whole = "fsdp_state_dict_type: FULL_STATE_DICT, or DeepSpeed's stage3_gather_16bit_weights_on_model_save: true"
    need(list(raw.glob("*.safetensors")), f"got no weights from the sharded model; expected whole ones; try {whole}")

    def write(folder: Path) -> None:
        auto = transformers.AutoModelForCausalLM
        start = transformers.AutoConfig.from_pretrained(base_of(config.model))
        declared = getattr(start, "dtype", None) or trainer.model.dtype
        dtype = torch.float32 if config.save_dtype == "fp32" else declared
        if config.lora_rank:
            adapter = folder / "adapter" if config.merge_lora else folder
            adapter.mkdir(exist_ok=True)
            for file in raw.glob("adapter_*"):
                shutil.copy(file, adapter)
        if config.merge_lora or not config.lora_rank:
            merged(load_pretrained(auto, str(raw), dtype=dtype)).save_pretrained(folder)
        save_as_it_came(config, folder)

    write_folder(Path(config.output_dir) / "final", write)
    shutil.rmtree(raw)


# TRL's names of what metrics.jsonl calls otherwise; what is not here has no place there
METRICS = {
    "reward": "reward/mean",
    "reward_std": "reward/std",
    "kl": "kl/ref",
    "loss": "policy/loss",
    "entropy": "policy/entropy",
    "clip_ratio/region_mean": "policy/clip_frac",
    "cispo_clip_ratio": "policy/clip_frac",
    "completions/mean_length": "rollout/length_mean",
    "completions/clipped_ratio": "rollout/truncated_frac",
    "sampling/sampling_logp_difference/max": "rollout/logprob_gap_max",
    "learning_rate": "optim/lr",
    "grad_norm": "optim/grad_norm",
    "step_time": "time/step",
}


def trl_factor(args, step: int, steps: int) -> float:
    """The multiplier of TRL's learning rate after `step` of `steps` steps; 1 for schedules that look at the loss."""
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=1.0)
    given = args.lr_scheduler_type, optimizer, args.get_warmup_steps(steps), steps, args.lr_scheduler_kwargs
    schedule = transformers.get_scheduler(*given)
    return schedule.lr_lambdas[0](step) if hasattr(schedule, "lr_lambdas") else 1.0


@dataclass
class Prepared:
    """A run with all that can be known before the weights are loaded."""

    config: Config  # resolved
    plan: BatchPlan
    tokenizer: object
    rows: list[dict]
    held_out: list[dict]
    scorer: Scorer
    parameters: int
    setup: PlaySetup | None  # what conversations are played with


class GrpoRun:
    """What happens around TRL's steps: evaluation, logs, stopping, and the state that a resume needs.

    `make_callback` gives it to the trainer as a callback whose state TRL writes into every trainer_state.json.
    """

    def __init__(self, ready: Prepared):
        self.config, self.plan, self.scorer = ready.config, ready.plan, ready.scorer
        self.held_out, self.setup = ready.held_out, ready.setup
        self.trainer = self.log = self.stop = self.watch = None
        self.kept = {"eval_before": None, "eval_after": None, "seconds": 0.0}
        sizes = [self.plan.completions_per_step, self.plan.completions_per_rollout]
        self.memory, self.pending, self.sizes = {}, {}, sizes
        self.signum, self.bad, self.started = 0, 0, time.perf_counter()
        self.step_started = self.started

    def state(self) -> dict:
        """What goes into trainer_state.json; TRL asks for it when it saves."""
        seconds = self.kept["seconds"] + time.perf_counter() - self.started
        saved = {"rewards": self.scorer.state_dict(), "sizes": self.sizes}
        return {"args": {}, "attributes": {**self.kept, "seconds": seconds, **saved}}

    def restore(self, checkpoint: Path) -> None:
        state = json.loads((checkpoint / "trainer_state.json").read_text())
        saved = state["stateful_callbacks"]["RunCallback"]["attributes"]
        self.kept = {key: saved[key] for key in self.kept}
        need(
            self.sizes == saved["sizes"],
            f"got --resume with {self.sizes} completions a step and a rollout; expected {saved['sizes']}, as the run "
            "has; try as many --gradient_accumulation_steps more as --per_device_train_batch_size is smaller",
        )
        self.scorer.load_state_dict(saved["rewards"])
        kind, factor = self.config.lr_scheduler_type, functools.partial(trl_factor, self.trainer.args)
        after = state["global_step"] + 1  # the next step's rate is in the checkpoint
        note_schedule(f"lr_scheduler_type {kind}", factor, after, state["max_steps"], self.plan.steps)

    def held_out_evaluation(self, step: int) -> dict:
        """Evaluate, write samples, and return metrics and a few examples."""
        half, given = max(1, self.config.per_device_eval_batch_size // 2), (self.config, self.trainer, self.scorer)
        with room_for("in the evaluation", f"--resume --per_device_eval_batch_size {half}"):
            metrics, samples = evaluate(*given, self.held_out, self.setup)
        self.log.samples(step, "eval", samples)
        examples = [{k: s[k] for k in ("prompt", "completion", "score")} for s in samples[:EXAMPLES]]
        return {"metrics": metrics, "examples": examples}

    def on_train_begin(self, args, state, control, **_):
        THREADS.begin(self.config, args.device)
        if self.held_out and self.kept["eval_before"] is None:
            self.kept["eval_before"] = self.held_out_evaluation(0)
            self.log.metrics(0, self.kept["eval_before"]["metrics"])

    def on_step_begin(self, args, state, control, **_):
        forget_peak()
        self.step_started = time.perf_counter()

    def on_step_end(self, args, state, control, **_):
        """Evaluate, write samples and curves, and stop where a signal asked for it."""
        seconds = time.perf_counter() - self.step_started
        THREADS.after(seconds)
        step, config, self.memory = state.global_step, self.config, memory_metrics()
        states = self.scorer.state_dict()
        if states and world()[1] > 1:  # each process has seen its own completions only: the first one's counts
            self.scorer.load_state_dict(gather_rows([states])[0])
        last = step >= self.plan.steps
        if self.held_out and (last or is_due(step, config.eval_every)):
            self.kept["eval_after"] = self.held_out_evaluation(step)
            self.pending = self.kept["eval_after"]["metrics"]
        if is_sampled(step, config.sample_every) and self.scorer.latest:
            self.log.samples(step, "train", self.latest_samples())
        whole = step % self.plan.steps_per_rollout == 0  # TRL cannot resume inside a rollout
        self.signum = self.signum or self.stop.agreed()
        if self.signum and whole and not last:
            control.should_save = control.should_training_stop = True
        if self.pending and step % config.logging_steps:
            self.write(step, {})
        return control

    def latest_samples(self) -> list[dict]:
        """The latest rollout of this process, on the first one with TRL's advantages, which it keeps for its table."""
        samples = self.scorer.samples()
        if world()[0] == 0:
            advantages = self.trainer._logs["advantages"]  # of all processes, in their order
            rounded = (float(f"{value:.3g}") for value in advantages)
            samples = [s | {"advantage": value} for s, value in zip(samples, rounded, strict=False)]
        if self.setup:
            conversations = [row["talk"] for row in self.scorer.latest["rows"]]
            samples = [s | conversation_entry(self.setup, x) for s, x in zip(samples, conversations, strict=True)]
        return samples

    def on_save(self, args, state, control, **_):
        """Leave a checkpoint as others can read it, with the start's tokenizer."""
        if world()[0] == 0:
            folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
            save_as_it_came(self.config, folder)
            follow_umask(folder)

    def write(self, step: int, metrics: dict) -> None:
        """One line of metrics.jsonl, with an evaluation that waits for it."""
        self.log.metrics(step, metrics | self.pending)
        self.pending = {}
        if is_due(step, self.config.plot_every):
            self.log.plot()

    def on_log(self, args, state, control, logs=None, **_):
        """Write TRL's figures under our names; stop where they are not finite, or no reward applies."""
        if not logs or "loss" not in logs:
            return
        from accelerate.utils import gather_object  # in the order of the processes, as the groups lie

        step, norm = state.global_step, logs.get("grad_norm", 0.0)
        names = {key: re.sub("^rewards/(.+)/mean$", r"reward/\1", METRICS.get(key, key)) for key in logs}
        metrics = {name: logs[key] for key, name in names.items() if name != key and logs[key] is not None}
        metrics |= {"time/reward": self.scorer.seconds} | self.memory
        self.scorer.seconds, group = 0.0, self.config.num_generations
        if "reward" in logs:  # absent where the step trained on an earlier step's rollout
            scores = gather_object([sample["score"] for sample in self.scorer.samples()])
            metrics |= {"reward/zero_std_frac": signal_free(scores, group), "rollout/samples": len(scores)}
            if self.setup:
                talks = gather_object([brief(self.setup, row["talk"]) for row in self.scorer.latest["rows"]])
                cut = statistics.fmean(not talk.finished for talk in talks)  # TRL counts those whose last answer is
                metrics |= play_metrics(talks) | {"rollout/truncated_frac": cut}
            self.scorer.none_in_a_row = self.scorer.none_in_a_row + 1 if logs["reward"] is None else 0
        logs |= {key.replace("eval/", "eval_"): value for key, value in self.pending.items()}  # for the trackers
        self.bad = 0 if math.isfinite(norm) else self.bad + 1
        if self.bad >= (5 if args.fp16 else 1):  # fp16's scaler leaves such updates out while it settles
            got = f"step {step}: got a gradient norm of {norm}"
            raise DivergedError(f"{got}; expected a finite one; try a lower --learning_rate, or a higher --beta")
        self.write(step, {name: value for name, value in metrics.items() if math.isfinite(value)})
        judge_logprobs(self.config, args, self.watch, step, logs)
        self.log.judge(step, self.plan.steps, self.stop)
        refuse_unscored(self.scorer.none_in_a_row, self.plan.rollouts, {*self.scorer.functions})


def make_callback(run: GrpoRun):
    """A transformers callback that hands its events to a GrpoRun; its class is made here, as imports take seconds."""
    kinds = transformers.TrainerCallback, transformers.trainer_callback.ExportableState
    methods = {name: getattr(run, name) for name in dir(run) if name.startswith("on_") or name == "state"}
    static = {name: staticmethod(method) for name, method in methods.items()}
    return type("RunCallback", kinds, static)()
