"""TRL's trainer with this bundle's weights, prompts and sampler."""

import functools
from types import SimpleNamespace
from unittest import mock

from parts.environments.play_setup import check_fits
from parts.foundation.messages import UserError, say
from parts.foundation.processes import room_for, torch, transformers, world
from parts.networks.adapters import adapter_settings, base_of, with_adapter
from parts.networks.loading import keep_differentiable, nf4_config, sample_plainly
from parts.networks.models import check_context, leave_out_cudnn_attention
from parts.networks.whole_models import load_whole
from programs.grpo_train.callback import GrpoRun, Prepared, make_callback
from programs.grpo_train.colocated import engine_arguments, sample_tokens_only, watch_copies
from programs.grpo_train.data import prompt_order
from programs.grpo_train.evaluation import check_sampling_apart, rollout_function
from programs.grpo_train.settings import Config


def model_and_adapter(config: Config, args) -> tuple[object, dict]:
    """(the model's source, arguments of TRL's trainer for LoRA and 4-bit weights, where these are asked for).

    Of an adapter's folder it is the network: TRL goes on training that adapter, and keeps a copy as reference.
    """
    extra = {}
    if config.load_in_4bit:
        compute = torch.bfloat16 if args.bf16 else torch.float16 if args.fp16 else torch.float32
        extra["quantization_config"] = nf4_config(compute)
    if adapter_settings(config.model):
        from trl.trainer.utils import create_model_from_path

        options = args.model_init_kwargs | extra | ({"device_map": None} if world()[1] > 1 else {})
        base = load_whole(create_model_from_path, base_of(config.model), **options)
        return with_adapter(base, config.model, trainable=True), {}
    if config.lora_rank:
        from peft import LoraConfig

        alpha = config.lora_alpha or 2 * config.lora_rank
        lora = LoraConfig(r=config.lora_rank, lora_alpha=alpha, target_modules="all-linear", task_type="CAUSAL_LM")
        extra["peft_config"] = lora
    return config.model, extra


def trained_tensors(model) -> dict:
    return {name: p.data for name, p in model.named_parameters() if p.requires_grad}


def make_trainer(ready: Prepared, args, run: GrpoRun):
    """TRL's GRPOTrainer for this run; what it refuses is told as a UserError."""
    from datasets import Dataset
    from safetensors import SafetensorError
    from trl import GRPOTrainer
    from trl.trainer import grpo_trainer

    config, rows, tokenizer = ready.config, ready.rows, ready.tokenizer
    args.reward_weights = [run.scorer.weights[name] for name in run.scorer.functions]
    leave_out_cudnn_attention()
    # TRL has the text of a prompt, and its ids from here; a rollout function needs the number of its row
    decoded = [tokenizer.decode(row["prompt_ids"]) for row in rows]
    texts = {text: row["prompt_ids"] for text, row in zip(decoded, rows, strict=True)}
    sent = [*map(str, range(len(rows)))] if run.setup else decoded
    order = prompt_order(config, len(rows), ready.plan.rollouts * ready.plan.prompts_per_rollout)
    data = Dataset.from_dict({"prompt": sent, "row": list(range(len(sent)))}).select(order)
    given = {"reward_funcs": run.scorer.for_trl(), "processing_class": tokenizer, "args": args, "train_dataset": data}
    given |= {"rollout_func": rollout_function(run.setup, run.scorer)} if run.setup else {}
    whole = functools.partial(load_whole, grpo_trainer.create_model_from_path)  # TRL loads policy and reference
    try:
        with engine_arguments(config, args), mock.patch.object(grpo_trainer, "create_model_from_path", whole):
            model, extra = model_and_adapter(config, args)
            exact, loading = {}, args.model_init_kwargs
            if not isinstance(model, str):
                exact, args.model_init_kwargs = trained_tensors(model), None  # of a loaded one TRL warns
            trainer = GRPOTrainer(model=model, **given, **extra)
            args.model_init_kwargs = loading
    except ConnectionError as error:
        got = f"got --use_vllm server, but no server answers: {error}"
        flags = """--weight-transfer-config '{"backend": "nccl"}' --logprobs-mode processed_logprobs"""
        serve = f"VLLM_SERVER_DEV_MODE=1 vllm serve {config.model} {flags}"
        raise UserError(f"{got}; try `{serve}` on other GPUs, and --vllm_server_base_url") from error
    except (OSError, ValueError, TypeError, AttributeError, ImportError, NotImplementedError, SafetensorError) as error:
        raise UserError(f"got model {config.model!r} and these settings, which TRL refuses: {error}") from error
    sample_plainly(trainer.model, trainer.eos_token_ids, tokenizer.pad_token_id)
    sample_tokens_only(config, trainer)
    advice = "a new run with a lower --max_completion_length, fewer completions a step, or --use_vllm colocate"
    trainer._generate = room_for("while sampling", advice)(trainer._generate)
    trainer._tokenize_prompts = lambda prompts: ([list(texts[prompt]) for prompt in prompts], None, {})
    run.watch = watch_copies(config, trainer)
    keep_differentiable(trainer.model)
    for name, x in trained_tensors(trainer.model).items() if config.load_in_4bit else ():
        # TRL rounds adapters on 4-bit weights to bf16, where small steps are lost
        trainer.model.get_parameter(name).data = exact.get(name, x).to(x.device).float()
    trainer.remove_callback(transformers.PrinterCallback)
    run.scorer.tokenizer, run.scorer.eos_ids = trainer.processing_class, trainer.eos_token_ids
    run.trainer, handler = trainer, trainer.callback_handler
    handler.callbacks.insert(0, make_callback(run))  # before the trackers, which then see held-out figures too
    check_padding(trainer)
    if run.setup:
        limit = getattr(trainer.model.config.get_text_config(), "max_position_embeddings", None)
        check_fits(config, limit, "max_completion_length")
        check_sampling_apart(trainer)
    else:
        models = {"policy": trainer.model, "networks": [trainer.model], "tokenizer": tokenizer}
        check_context(config, SimpleNamespace(**models, eos_ids=trainer.eos_token_ids), [*rows, *run.held_out])
    return trainer


def check_padding(trainer) -> None:
    """Warn where padding on the left changes log-probs, as TRL passes no positions (GPT-2 has absolute ones)."""
    if trainer.is_deepspeed_enabled or trainer.is_fsdp_enabled:
        return
    model, pad = trainer.model, torch.nn.functional.pad
    ids = torch.tensor([[1, 2, 3, 4]], device=trainer.accelerator.device)
    training = model.training
    model.eval()
    with torch.no_grad(), trainer.accelerator.autocast():
        alone = model(input_ids=ids).logits[0, -1].float()
        beside = model(input_ids=pad(ids, (4, 0)), attention_mask=pad(ids > 0, (4, 0)).long()).logits[0, -1].float()
    model.train(training)
    gap = (alone.log_softmax(-1) - beside.log_softmax(-1)).abs().max().item()
    if gap > 0.5:
        warning = f"warning: padding moves this model's log-probs by {gap:.1f} nats, as TRL passes no positions"
        say(f"{warning}; train on prompts of one length, or take a model with rotary positions")
