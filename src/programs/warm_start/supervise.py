"""A round's training: TRL's SFTTrainer on token ids that are made here."""

import copy
import math
import shutil
import time
from pathlib import Path

from parts.foundation.messages import DivergedError, UserError, say
from parts.foundation.processes import StopRequest, StopRequested, room_for, torch, transformers
from parts.networks.models import unwrapped
from parts.networks.tokenizers import load_tokenizer, save_tokenizer
from parts.running.checkpoints import trainer_checkpoints
from parts.running.output_folder import write_folder
from programs.warm_start.settings import Config, settled_training
from programs.warm_start.workshop import Workshop, write_json

FEWEST_STEPS = 32  # optimizer steps of a round on samples; more passes if needed


def training_rows(shop: Workshop, solutions: list[dict]) -> list[dict]:
    """input_ids and labels: the prompt as the RL trainers have it, and the solution, which alone has labels."""
    rows = []
    for one in solutions:
        prompt = list(shop.rows[one["row"]]["prompt_ids"])
        rows.append({"input_ids": prompt + one["ids"], "labels": [-100] * len(prompt) + one["ids"]})
    return rows


def sft_settings(config: Config, folder: Path, parameters: int) -> dict:
    lr, micro = settled_training(config, parameters)
    return {
        "output_dir": str(folder),
        "num_train_epochs": config.epochs,
        "per_device_train_batch_size": micro,
        "gradient_accumulation_steps": config.batch_size // micro,
        "learning_rate": lr,
        "lr_scheduler_type": config.lr_schedule,
        "warmup_steps": config.warmup_steps,
        "weight_decay": config.weight_decay,
        "max_grad_norm": config.max_grad_norm,
        "seed": config.seed,
        "bf16": config.precision == "bf16",
        "fp16": config.precision == "fp16",
        "use_cpu": config.device == "cpu" or not torch.cuda.is_available(),
        "dataloader_pin_memory": config.device != "cpu" and torch.cuda.is_available(),
        "activation_checkpointing": config.gradient_checkpointing,
        "max_length": None,
        "router_aux_loss_coef": 0.0,  # by default a mixture of experts adds its own to the loss
        "completion_only_loss": False,  # the labels say it; True asks for a mask's column
        "dataset_kwargs": {"skip_prepare_dataset": True},
        "save_strategy": "steps" if config.save_every else "no",
        "save_steps": config.save_every or 500,
        "save_total_limit": 1,
        "logging_steps": 1,
        "report_to": "none",
        "disable_tqdm": True,
    }


def enough_epochs(config: Config, rows: int) -> float:
    """Passes over so many rows with which a round on sampled solutions has FEWEST_STEPS steps.

    Trained anew, the model has only this round's steps: four of them on one batch teach it nothing.
    """
    steps = math.ceil(rows / config.batch_size)
    return max(config.epochs, FEWEST_STEPS / steps)


def make_callback(stop: StopRequest):
    """A transformers callback that stops at a signal, and where gradients are not finite; it reports progress."""
    said = time.monotonic()

    def on_step_end(self, args, state, control, **_):
        if stop.signum:
            control.should_save = control.should_training_stop = True
        return control

    def on_log(self, args, state, control, logs=None, **_):
        nonlocal said
        step, of, norm = state.global_step, state.max_steps, (logs or {}).get("grad_norm", 0.0)
        due = (of >= 100 and step % (of // 10) == 0) or time.monotonic() - said > 60
        if logs and "loss" in logs and due:
            said = time.monotonic()
            say(f"step {step} of {of}, loss {logs['loss']:.3f}")
        if not math.isfinite(norm) and not args.fp16:  # fp16's scaler leaves such updates out while it settles
            raise DivergedError(f"step {step}: got a gradient norm of {norm}; expected a finite one; try a lower --lr")

    return type("StopCallback", (transformers.TrainerCallback,), {"on_step_end": on_step_end, "on_log": on_log})()


def make_sft_trainer(shop: Workshop, folder: Path, rows: list[dict], policy):
    """TRL's SFTTrainer for a round; what it refuses is told as a UserError."""
    import datasets
    from trl import SFTConfig, SFTTrainer

    datasets.disable_progress_bars()
    settings = sft_settings(shop.config, folder, sum(p.numel() for p in policy.parameters()))
    try:
        trainer = SFTTrainer(
            model=policy,
            args=SFTConfig(**settings),
            train_dataset=datasets.Dataset.from_list(rows),
            processing_class=load_tokenizer(shop.config),  # TRL gives it a pad token; ours is saved as it was
            callbacks=[make_callback(shop.stop)],
        )
    except (ValueError, TypeError, ImportError) as error:
        raise UserError(f"got these settings, which TRL refuses: {error}") from error
    trainer.remove_callback(transformers.PrinterCallback)
    if shop.config.samples_solutions:
        trainer.args.num_train_epochs = enough_epochs(shop.config, len(rows))
    return trainer


def supervise(shop: Workshop, number: int, solutions: list[dict]) -> None:
    """Train on solutions and write the round's policy/ and training.json.

    Sampled solutions are those of all rounds and train the original model, so that a round with few of them
    leaves no trace (as in STaR). The data's own solutions train the policy of the round before.
    """
    start = 0 if shop.config.samples_solutions else number - 1
    folder, rows, models = shop.round_folder(number), training_rows(shop, solutions), shop.load(start)
    policy = unwrapped(models.policy)
    settings = copy.deepcopy((policy.config, policy.generation_config))  # TRL writes into them
    trainer = make_sft_trainer(shop, folder / "training", rows, models.policy)
    advice = "--resume --gradient_checkpointing, --resume --micro_batch_size 1, or a new run with --lora_rank 16"
    checkpoints = trainer_checkpoints(folder / "training")
    with room_for("in training", advice):
        trainer.train(resume_from_checkpoint=str(checkpoints[max(checkpoints)]) if checkpoints else None)
    steps = trainer.state.global_step
    if shop.stop.signum and steps < trainer.state.max_steps:
        raise StopRequested(shop.stop.signum)
    policy.config, policy.generation_config = settings
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    record = {"solutions": len(rows), "steps": steps, "loss_first": losses[0], "loss_last": losses[-1]}
    write_json(folder / "training.json", record)
    say(f"round {number}: solutions {len(rows)}, steps {steps}, loss {losses[0]:.3f} -> {losses[-1]:.3f}")

    def write(target: Path) -> None:
        models.policy.save_pretrained(target)
        save_tokenizer(models.tokenizer, target)

    write_folder(folder / "policy", write)
    shutil.rmtree(folder / "training", ignore_errors=True)
    del trainer
    shop.release()  # TRL has patched the policy's forward pass: it is loaded anew
