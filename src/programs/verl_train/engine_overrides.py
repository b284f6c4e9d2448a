"""Our settings as verl's overrides: engines, optimizer, adapters, trainer."""

from pathlib import Path

from parts.data.verl_keys import ACTOR, FSDP, MODEL, OFF, REF, ROLLOUT
from parts.learning.optimizer import learning_rates
from programs.verl_train.hydra import Override
from programs.verl_train.names import COMPUTE, DTYPES, MEGATRON, OPTIM
from programs.verl_train.overrides import (
    Layout,
    algorithm_overrides,
    data_overrides,
    loss_overrides,
    reward_overrides,
    rollout_overrides,
)
from programs.verl_train.refusals import split_override
from programs.verl_train.settings import Config


def make_overrides(config: Config, job: Layout) -> list[Override]:
    """Every override of the run, the user's own last; each key once."""
    parts = (data_overrides, rollout_overrides, algorithm_overrides, loss_overrides, reward_overrides)
    parts += (critic_overrides, optimizer_overrides, engine_overrides, trainer_overrides)
    overrides: dict[str, Override] = {}
    for part in parts:
        for source, settings in part(config, job).items():
            for key, value in settings.items():
                overrides[key] = Override(key, value, source)
    for text in config.override:
        sign, key, value = split_override(text)
        overrides.pop(key, None)
        overrides[key] = Override(sign + key, value, "override")
    return list(overrides.values())


def critic_overrides(config: Config, job: Layout) -> dict:
    if config.advantage != "gae":
        return {}
    c = config
    return {
        "critic_model": {"critic.model.path": model_path(c.critic_model or c.model)},
        "model": {"critic.model.tokenizer_path": model_path(c.model)},
        # verl's actor trains from the step of this number on, and its first step is 1
        "critic_warmup_steps": {"trainer.critic_warmup": c.critic_warmup_steps + 1 if c.critic_warmup_steps else 0},
        "value_clip": {"critic.cliprange_value": c.value_clip or OFF},
        # Adam does not see the scale of a loss of its own, gradient clipping does
        "vf_coef": {"critic.optim.clip_grad": c.max_grad_norm / c.vf_coef},
        "gradient_checkpointing": {"critic.model.enable_gradient_checkpointing": c.gradient_checkpointing},
        "micro_batch_tokens": {
            "critic.ppo_max_token_len_per_gpu": c.micro_batch_tokens,
            "critic.ppo_infer_max_token_len_per_gpu": c.micro_batch_tokens,
        },
        **lora_overrides(config, "critic.model"),
    }


def lora_overrides(config: Config, model: str) -> dict:
    """Adapters on all linear layers."""
    rank, alpha = config.lora_rank, config.lora_alpha or 2 * config.lora_rank
    if not rank:
        return {}
    if config.backend == "megatron":  # its default targets are all linear layers of a block, by Megatron's names
        return {"lora_rank": {f"{model}.lora.rank": rank}, "lora_alpha": {f"{model}.lora.alpha": int(alpha)}}
    return {
        "lora_rank": {f"{model}.lora_rank": rank, f"{model}.target_modules": "all-linear"},
        "lora_alpha": {f"{model}.lora_alpha": int(alpha)},
    }


def optimizer_overrides(config: Config, job: Layout) -> dict:
    lr, critic_lr = learning_rates(config, job.parameters or 1e9)
    prefixes = [OPTIM] + ["critic.optim"] * (config.advantage == "gae")
    shape = "lr_decay_style" if config.backend == "megatron" else "lr_scheduler_type"
    betas, adam = {f"{p}.betas": [0.9, config.adam_beta2] for p in prefixes}, {"eps": config.adam_eps}
    if config.backend == "megatron":  # reads no betas, and has its own names
        betas, adam = {}, {"adam_eps": config.adam_eps, "adam_beta2": config.adam_beta2}
    return {
        "lr": {f"{OPTIM}.lr": lr},
        "critic_lr": {"critic.optim.lr": critic_lr} if config.advantage == "gae" else {},
        "lr_schedule": {f"{p}.{shape}": config.lr_schedule for p in prefixes},
        "warmup_steps": {f"{p}.lr_warmup_steps": config.warmup_steps for p in prefixes},
        "weight_decay": {f"{p}.weight_decay": config.weight_decay for p in prefixes},
        "max_grad_norm": {f"{OPTIM}.clip_grad": config.max_grad_norm},
        "adam_beta2": betas,
        "adam_eps": {f"{p}.override_optimizer_config": adam for p in prefixes},
    }


def engine_overrides(config: Config, job: Layout) -> dict:
    """Who trains: sharding, precision, micro-batches, offload."""
    megatron, critic = config.backend == "megatron", config.advantage == "gae"
    actor, ref, value = (
        (MEGATRON, f"{REF}.megatron", "critic.megatron") if megatron else (FSDP, f"{REF}.fsdp_config", "critic.fsdp")
    )
    trained = [actor, value] if critic else [actor]
    shard = "context_parallel_size" if megatron else "ulysses_sequence_parallel_size"
    sharded = trained if megatron else [*trained, ref]  # megatron's reference follows the actor
    strategy = {"model_engine": "megatron"} if megatron else {f"{ACTOR}.strategy": "fsdp2", "critic.strategy": "fsdp2"}
    if megatron:
        precision = {f"{part}.dtype": DTYPES[config.precision] for part in [*trained, ref]}
    else:  # FSDP does not read its `dtype`; frozen weights need no master copy
        precision = {f"{part}.{COMPUTE}": config.precision for part in [*trained, ref]}
        precision[f"{ref}.model_dtype"] = config.precision
    recompute = {f"{MODEL}.enable_gradient_checkpointing": config.gradient_checkpointing}
    if megatron and config.gradient_checkpointing:
        prefix = f"{MEGATRON}.override_transformer_config.recompute"
        recompute = {f"{prefix}_granularity": "full", f"{prefix}_method": "uniform", f"{prefix}_num_layers": 1}
    parallel = {}
    if megatron:
        parallel = {
            "tensor_parallel": {f"{part}.tensor_model_parallel_size": config.tensor_parallel for part in trained},
            "pipeline_parallel": {f"{part}.pipeline_model_parallel_size": config.pipeline_parallel for part in trained},
        }
    return {
        "model": {f"{MODEL}.path": model_path(config.model)},
        "backend": strategy,
        "precision": precision,
        "micro_batch_tokens": {
            f"{ACTOR}.use_dynamic_bsz": True,
            f"{ACTOR}.ppo_max_token_len_per_gpu": config.micro_batch_tokens,
            f"{ROLLOUT}.log_prob_max_token_len_per_gpu": config.micro_batch_tokens,
            f"{REF}.log_prob_max_token_len_per_gpu": config.micro_batch_tokens,
        },
        "gradient_checkpointing": recompute,
        "sequence_parallel": {f"{part}.{shard}": config.sequence_parallel for part in sharded},
        **parallel,
        "offload": {
            **{f"{part}.param_offload": config.offload == "all" for part in trained},
            **{f"{part}.optimizer_offload": config.offload != "none" for part in trained},
        },
        **lora_overrides(config, MODEL),
    }


def trainer_overrides(config: Config, job: Layout) -> dict:
    """Steps, evaluation, checkpoints, logs, machines."""
    c, output, gpus = config, Path(job.output), config.nodes * config.gpus_per_node
    samples = {"trainer.rollout_data_dir": str(output / "samples")} if c.sample_every else {}
    samples |= {"trainer.validation_data_dir": str(output / "held_out")} if c.sample_every and job.held_out else {}
    contents = ["model", "optimizer", "extra"] + ["hf_model"] * (not c.lora_rank)  # with adapters it writes wrong names
    ray = {}
    if job.cpus is not None:  # a Ray of its own, also where one runs already, or RAY_ADDRESS names one
        ray = {
            "ray_kwargs.ray_init.num_cpus": max(job.cpus, cpus_needed(gpus, 1)),
            "ray_kwargs.ray_init.address": "local",
        }
    units = 8 if (job.cpus or c.cpus) >= cpus_needed(gpus, 8) else 1
    return {
        # an epoch has a step at least, so epochs never end before the steps do; verl saves at the last step only
        "steps": {"trainer.total_training_steps": c.steps, "trainer.total_epochs": c.steps},
        "eval_every": {
            "trainer.test_freq": (c.eval_every or c.steps) if job.held_out else -1,
            "trainer.val_before_train": job.held_out,
        },
        "save_every": {"trainer.save_freq": c.save_every or c.steps, f"{ACTOR}.checkpoint.save_contents": contents},
        "keep_checkpoints": {
            "trainer.max_actor_ckpt_to_keep": c.keep_checkpoints,
            "trainer.max_critic_ckpt_to_keep": c.keep_checkpoints,
        },
        # a script that is written may be started again; else the folder is new, or the user resumes
        "resume": {"trainer.resume_mode": "auto" if c.resume or c.print or c.slurm else "disable"},
        "report_to": {"trainer.logger": ["console", "file", *c.report_to]},
        "output_dir": {
            "trainer.default_local_dir": str(output / "checkpoints"),
            "trainer.project_name": "verl_train",
            "trainer.experiment_name": output.name,
            "hydra.run.dir": job.hydra,
            **samples,
        },
        "nodes": {"trainer.nnodes": c.nodes},
        "gpus_per_node": {"trainer.n_gpus_per_node": c.gpus_per_node},
        "cpus": {**ray, "transfer_queue.backend.SimpleStorage.num_data_storage_units": units},
    }


def cpus_needed(gpus: int, storage_units: int) -> int:
    """CPUs that Ray has to promise before a run begins: with fewer it waits for ever, without a word.

    The task runner and the queue's controller take one each, a storage unit one, and the place of a GPU three.
    """
    return 2 + storage_units + 3 * gpus


def model_path(model: str) -> str:
    """A model as any folder's process finds it."""
    return str(Path(model).resolve()) if Path(model).is_dir() else model
