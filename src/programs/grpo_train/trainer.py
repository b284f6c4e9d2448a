"""TRL's trainer with exact resume and our logs."""

import json
import math
import time
from pathlib import Path

from parts.data.pass_band import band_metrics
from parts.environments.play_setup import PlaySetup
from parts.foundation.messages import DivergedError, RewardError, UserError, need, say
from parts.foundation.processes import (
    THREADS,
    forget_peak,
    gather_rows,
    memory_metrics,
    note_long_step,
    room_for,
    world,
)
from parts.networks.models import (
    adapter_settings,
    base_of,
    keep_differentiable,
    leave_out_cudnn_attention,
    nf4_config,
    sample_plainly,
    with_adapter,
)
from parts.running.progress import is_sampled
from parts.running.summary import EXAMPLES
from programs.grpo_train.batch_plan import BatchPlan
from programs.grpo_train.checkpoints import tidy_checkpoint
from programs.grpo_train.colocated import engine_arguments, judge_logprobs, sample_tokens_only, watch_copies
from programs.grpo_train.conversations_for_trl import (
    brief,
    check_conversation_length,
    check_sampling_apart,
    conversation_entry,
    conversation_metrics,
    rollout_function,
)
from programs.grpo_train.evaluation import evaluate
from programs.grpo_train.prompt_stream import BandedPrompts, check_loader, trl_data
from programs.grpo_train.rewards import Scorer, Stage, signal_free
from programs.grpo_train.run_log import our_metrics
from programs.grpo_train.settings import Config
from programs.grpo_train.stages import stage_at


class GrpoRun:
    """What happens around TRL's steps: stages, evaluation, logs, stopping, and the state that a resume needs.

    `make_callback` gives it to the trainer as a callback whose state TRL writes into every trainer_state.json.
    """

    def __init__(
        self,
        config: Config,
        plan: BatchPlan,
        scorer: Scorer,
        stages: list[Stage],
        held_out: list[dict],
        setup: PlaySetup | None = None,
        band: BandedPrompts | None = None,
    ):
        self.config, self.plan, self.scorer, self.stages, self.held_out = config, plan, scorer, stages, held_out
        self.setup = setup  # what conversations are played with
        self.band = band
        self.trainer = self.log = self.stop = self.watch = None
        self.kept = {"eval_before": None, "eval_after": None, "seconds": 0.0}
        self.memory, self.pending = {}, {}
        self.stage, self.signum, self.bad, self.started = -1, 0, 0, time.perf_counter()
        self.step_started, self.noted = self.started, False

    def state(self) -> dict:
        """What goes into trainer_state.json; TRL asks for it when it saves."""
        seconds = self.kept["seconds"] + time.perf_counter() - self.started
        rewards, saved = self.scorer.state_dict(), {"prompts": self.band.state_dict()} if self.band else {}
        saved["sizes"] = [self.plan.completions_per_step, self.plan.completions_per_rollout]
        return {"args": {}, "attributes": {**self.kept, "seconds": seconds, "rewards": rewards, **saved}}

    def restore(self, checkpoint: Path) -> None:
        """Take back the state of a checkpoint."""
        saved = json.loads((checkpoint / "trainer_state.json").read_text())["stateful_callbacks"]["RunCallback"]
        self.kept = {key: saved["attributes"][key] for key in self.kept}
        ours = [self.plan.completions_per_step, self.plan.completions_per_rollout]
        theirs = saved["attributes"].get("sizes", ours)  # older runs do not say
        need(
            ours == theirs,
            f"got --resume with {ours[0]} completions per step and {ours[1]} per rollout; expected {theirs[0]} and "
            f"{theirs[1]}, as the run has; try as many --gradient_accumulation_steps more as "
            "--per_device_train_batch_size is smaller, without --steps_per_generation, or a new --output_dir",
        )
        self.scorer.load_state_dict(saved["attributes"]["rewards"])
        if self.band:
            self.band.load_state_dict(saved["attributes"]["prompts"])

    def held_out_evaluation(self, step: int) -> dict:
        """Evaluate, write samples, and return metrics and a few examples."""
        goal = self.stages[-1]
        half = max(1, self.config.per_device_eval_batch_size // 2)
        with room_for("in the evaluation", f"--resume --per_device_eval_batch_size {half}"):
            metrics, samples = evaluate(self.config, self.trainer, self.scorer, goal, self.held_out, self.setup)
        self.log.samples(step, "eval", samples)
        examples = [{k: s[k] for k in ("prompt", "completion", "score")} for s in samples[:EXAMPLES]]
        return {"metrics": metrics, "examples": examples}

    def on_train_begin(self, args, state, control, lr_scheduler=None, **_):
        """Evaluate before the first step; let the stages' learning rates scale the schedule."""
        THREADS.begin(self.config, args.device)
        schedule = getattr(lr_scheduler, "scheduler", lr_scheduler)  # accelerate wraps it under DeepSpeed
        if len({stage.learning_rate for stage in self.stages}) > 1:
            need(
                hasattr(schedule, "lr_lambdas"),
                f"got stages with learning rates and lr_scheduler_type {self.config.lr_scheduler_type!r}; expected a "
                "schedule that can be scaled; try linear, cosine or constant_with_warmup",
            )
            plain = list(schedule.lr_lambdas)
            schedule.lr_lambdas = [lambda step, f=f: f(step) * self.rate_factor(step) for f in plain]
        if self.held_out and self.kept["eval_before"] is None:
            self.kept["eval_before"] = self.held_out_evaluation(0)
            self.log.metrics(0, self.kept["eval_before"]["metrics"])

    def rate_factor(self, step: int) -> float:
        """Learning rate of the stage over that of the first, which is the run's."""
        return self.stages[stage_at(self.stages, step)].learning_rate / self.stages[0].learning_rate

    def on_step_begin(self, args, state, control, **_):
        """Enter the stage of the coming step."""
        forget_peak()
        self.step_started = time.perf_counter()
        now = stage_at(self.stages, state.global_step)
        if now == self.stage:
            return
        import torch

        self.stage, stage = now, self.stages[now]
        self.scorer.enter(stage)
        weights = [stage.weights.get(name, 0.0) for name in self.scorer.functions]
        self.trainer.reward_weights = torch.tensor(weights, dtype=torch.float32)
        if len(self.stages) > 1:
            names = ", ".join(f"{name} x {weight:g}" for name, weight in stage.weights.items())
            say(f"stage {now + 1} of {len(self.stages)} from step {state.global_step + 1}: {names}")

    def on_step_end(self, args, state, control, **_):
        """Evaluate, write samples and curves, and stop where a signal asked for it."""
        seconds = time.perf_counter() - self.step_started
        THREADS.after(seconds)
        step, config, self.memory = state.global_step, self.config, memory_metrics()
        self.noted = self.noted or note_long_step(seconds)
        self.share_reward_state()
        if self.band:
            self.band.learn(self.scorer.seen)
        self.scorer.seen = []
        last = step >= self.plan.steps
        if self.held_out and (last or (config.eval_every and step % config.eval_every == 0)):
            self.kept["eval_after"] = self.held_out_evaluation(step)
            self.pending = self.kept["eval_after"]["metrics"]
        if is_sampled(step, config.sample_every) and self.scorer.latest:
            self.log.samples(step, "train", self.latest_samples())
        self.log.advance(step)
        whole = step % self.plan.steps_per_rollout == 0  # TRL cannot resume inside a rollout
        self.signum = self.signum or self.stop.agreed()
        if self.signum and whole and not last:
            control.should_save = control.should_training_stop = True
        if self.pending and step % config.logging_steps:
            self.write(step, {})
        return control

    def latest_samples(self) -> list[dict]:
        """The latest rollout of this process, on the first one with TRL's advantages, which it keeps for its table."""
        samples = self.scorer.samples(self.trainer.eos_token_ids)
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
            tidy_checkpoint(self.config, Path(args.output_dir) / f"checkpoint-{state.global_step}")

    def share_reward_state(self) -> None:
        """Give every process the first one's state of adaptive rewards, as each has seen its own completions only."""
        states = self.scorer.state_dict()
        if states and world()[1] > 1:
            self.scorer.load_state_dict(gather_rows([states])[0])

    def write(self, step: int, metrics: dict) -> None:
        """One line of metrics.jsonl, with an evaluation that waits for it."""
        self.log.metrics(step, metrics | self.pending)
        self.pending = {}
        if self.config.plot_every and step % self.config.plot_every == 0:
            self.log.plot()

    def on_log(self, args, state, control, logs=None, **_):
        """Write TRL's figures under our names; stop where they are not finite, or no reward applies."""
        if not logs or "loss" not in logs:
            return
        from accelerate.utils import gather_object  # in the order of the processes, as the groups lie

        step, norm = state.global_step, logs.get("grad_norm", 0.0)
        metrics = our_metrics(logs) | {"time/reward": self.scorer.seconds} | self.memory
        self.scorer.seconds, group = 0.0, self.config.num_generations
        if "reward" in logs:  # absent where the step trained on an earlier step's rollout
            scores = gather_object(self.scorer.scores())
            metrics |= {"reward/zero_std_frac": signal_free(scores, group), "rollout/samples": len(scores)}
            if self.setup:
                entries = [brief(self.setup, row["talk"]) for row in self.scorer.latest["rows"]]
                metrics |= conversation_metrics(gather_object(entries))
            if self.band:
                metrics |= band_metrics(self.config, self.band.rates, self.band.count)
            self.scorer.none_in_a_row = self.scorer.none_in_a_row + 1 if logs["reward"] is None else 0
        logs |= {key.replace("eval/", "eval_"): value for key, value in self.pending.items()}  # for the trackers
        self.bad = 0 if math.isfinite(norm) else self.bad + 1
        if self.bad >= (5 if args.fp16 else 1):  # fp16's scaler leaves such updates out while it settles
            raise DivergedError(
                f"step {step}: got a gradient norm of {norm}; expected a finite one; try a lower --learning_rate, "
                "or a higher --beta"
            )
        self.write(step, {name: value for name, value in metrics.items() if math.isfinite(value)})
        judge_logprobs(self.config, args, self.watch, step, logs)
        self.log.judge(step, self.plan.steps, self.stop)
        if self.scorer.none_in_a_row >= min(3, self.plan.rollouts):
            names, count = ", ".join(self.scorer.active), self.scorer.none_in_a_row
            raise RewardError(
                f"reward {names}: got None for every completion of {count} rollouts; expected numbers where it applies;"
                " try to look at the columns it reads, which may be empty or named otherwise"
            )


def make_callback(run: GrpoRun):
    """A transformers callback that hands its events to a GrpoRun; its class is made here, as imports take seconds."""
    from transformers import TrainerCallback
    from transformers.trainer_callback import ExportableState

    methods = {name: getattr(run, name) for name in dir(run) if name.startswith("on_") or name == "state"}
    static = {name: staticmethod(method) for name, method in methods.items()}
    return type("RunCallback", (TrainerCallback, ExportableState), static)()


def adapters_and_rounding(config: Config, args) -> dict:
    """Arguments of TRL's trainer for LoRA and 4-bit weights, where these are asked for."""
    extra = {}
    if config.lora_rank and not adapter_settings(config.model):
        from peft import LoraConfig

        alpha = config.lora_alpha or 2 * config.lora_rank
        lora = {"r": config.lora_rank, "lora_alpha": alpha, "lora_dropout": config.lora_dropout}
        extra["peft_config"] = LoraConfig(**lora, target_modules="all-linear", task_type="CAUSAL_LM")
    if config.load_in_4bit:
        import torch

        compute = torch.bfloat16 if args.bf16 else torch.float16 if args.fp16 else torch.float32
        extra["quantization_config"] = nf4_config(compute)
    return extra


def started_adapter(config: Config, args, extra: dict):
    """The network of an adapter's folder: TRL goes on training that adapter, and keeps a copy as reference."""
    from trl.trainer.utils import create_model_from_path

    options = dict(args.model_init_kwargs)
    if "quantization_config" in extra:
        options["quantization_config"] = extra.pop("quantization_config")
    if world()[1] > 1:
        options["device_map"] = None
    base = create_model_from_path(base_of(config.model), **options)
    return with_adapter(base, config.model, trainable=True, dropout=config.lora_dropout)


def trained_tensors(model) -> dict:
    """The tensors of a network that are trained; of a model that is not loaded yet, none."""
    return {} if isinstance(model, str) else {name: p.data for name, p in model.named_parameters() if p.requires_grad}


def check_length(config: Config, model, rows: list[dict]) -> None:
    """Raise UserError if the longest prompt and completion do not fit the model's positions."""
    limit = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    longest = max(len(row["prompt_ids"]) for row in rows)
    need(
        not limit or longest + config.max_completion_length <= limit,
        f"got a prompt of {longest} and completions of {config.max_completion_length} tokens; expected at most {limit} "
        "together; try a lower --max_completion_length or --max_prompt_length",
    )


def make_trainer(config: Config, args, rows: list[dict], plan: BatchPlan, run: GrpoRun, tokenizer):
    """TRL's GRPOTrainer for this run; what it refuses is told as a UserError."""
    from transformers import PrinterCallback
    from trl import GRPOTrainer

    leave_out_cudnn_attention()
    if run.band:
        check_loader(args)
    # TRL has the text of a prompt, and its ids from here; a rollout function needs the number of its row
    texts = {tokenizer.decode(row["prompt_ids"]): row["prompt_ids"] for row in rows}
    sent = [*map(str, range(len(rows)))] if run.setup else [tokenizer.decode(row["prompt_ids"]) for row in rows]
    data = trl_data(config, sent, plan, run.band)
    extra = adapters_and_rounding(config, args)
    extra |= {"rollout_func": rollout_function(run.setup, run.scorer)} if run.setup else {}
    rewards = {"reward_funcs": run.scorer.for_trl(), "processing_class": tokenizer}
    try:
        with engine_arguments(config, args):
            model = started_adapter(config, args, extra) if adapter_settings(config.model) else config.model
            exact = trained_tensors(model) if config.load_in_4bit else {}
            loading = args.model_init_kwargs
            args.model_init_kwargs = loading if isinstance(model, str) else None  # of a loaded one TRL warns
            trainer = GRPOTrainer(model=model, args=args, train_dataset=data, **rewards, **extra)
            args.model_init_kwargs = loading
    except ConnectionError as error:
        got = f"got --use_vllm server, but no server answers: {error}"
        flags = """--weight-transfer-config '{"backend": "nccl"}' --logprobs-mode processed_logprobs"""
        serve = f"VLLM_SERVER_DEV_MODE=1 vllm serve {config.model} {flags}"
        raise UserError(f"{got}; try `{serve}` on other GPUs, and --vllm_server_base_url") from error
    except (OSError, ValueError, TypeError, ImportError, NotImplementedError) as error:
        raise UserError(f"got model {config.model!r} and these settings, which TRL refuses: {error}") from error
    sample_plainly(trainer.model, trainer.eos_token_ids, tokenizer.pad_token_id)
    sample_tokens_only(config, trainer)
    trainer._generate = generate_with_advice(trainer._generate)
    trainer._tokenize_prompts = lambda prompts: ([list(texts[prompt]) for prompt in prompts], None, {})
    run.watch = watch_copies(config, trainer)
    keep_differentiable(trainer.model)
    for name, x in trained_tensors(trainer.model).items() if config.load_in_4bit else ():
        # TRL rounds adapters on 4-bit weights to bf16, where small steps are lost
        trainer.model.get_parameter(name).data = exact.get(name, x).to(x.device).float()
    trainer.remove_callback(PrinterCallback)
    run.scorer.tokenizer, run.scorer.eos_ids = trainer.processing_class, trainer.eos_token_ids
    run.trainer, handler = trainer, trainer.callback_handler
    handler.callbacks.insert(0, make_callback(run))  # before the trackers, which then see held-out figures too
    check_padding(trainer)
    if run.setup:
        check_conversation_length(config, trainer.model)
        check_sampling_apart(trainer)
    else:
        check_length(config, trainer.model, [*rows, *run.held_out])
    return trainer


def generate_with_advice(generate):
    """TRL's function that samples a rollout, which says what to try where memory runs out."""
    advice = "a new run with a lower --max_completion_length, fewer completions a step, or --use_vllm colocate"

    def sample(*args, **kwargs):
        with room_for("while sampling", advice):
            return generate(*args, **kwargs)

    return sample


def check_padding(trainer) -> None:
    """Warn where padding on the left changes log-probs, as TRL passes no positions (GPT-2 has absolute ones)."""
    import torch

    if trainer.is_deepspeed_enabled or trainer.is_fsdp_enabled:
        return
    model, device = trainer.model, trainer.accelerator.device
    ids = torch.tensor([[1, 2, 3, 4]], device=device)
    padded = torch.cat([torch.zeros_like(ids), ids], dim=1)
    mask = torch.cat([torch.zeros_like(ids), torch.ones_like(ids)], dim=1)
    training = model.training
    model.eval()
    with torch.no_grad(), trainer.accelerator.autocast():
        alone = model(input_ids=ids).logits[0, -1].float()
        beside = model(input_ids=padded, attention_mask=mask).logits[0, -1].float()
    model.train(training)
    gap = (alone.log_softmax(-1) - beside.log_softmax(-1)).abs().max().item()
    if gap > 0.5:
        say(
            f"warning: padding moves this model's log-probs by {gap:.1f} nats, as it counts positions from the pads on "
            "and TRL passes none; train on prompts of one length, or take a model with rotary positions"
        )
