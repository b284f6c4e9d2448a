"""Trainers of TRL, and names that are gone with what takes their place."""

CONFIGS = {
    "GRPOTrainer": "GRPOConfig",
    "RLOOTrainer": "RLOOConfig",
    "SFTTrainer": "SFTConfig",
    "DPOTrainer": "DPOConfig",
    "RewardTrainer": "RewardConfig",
    "KTOTrainer": "KTOConfig",
    "GKDTrainer": "GKDConfig",
    "OnlineDPOTrainer": "OnlineDPOConfig",
    "ORPOTrainer": "ORPOConfig",
    "CPOTrainer": "CPOConfig",
    "PPOTrainer": "PPOConfig",
    "PPOv2Trainer": "PPOv2Config",
}
SAMPLING = ("GRPOConfig", "RLOOConfig")
PLACES = {  # the first arguments of a trainer by their places, as far as they are those of all versions
    "GRPOTrainer": ("model", "reward_funcs", "args", "train_dataset", "eval_dataset", "processing_class"),
    "RLOOTrainer": ("model", "reward_funcs", "args", "train_dataset", "eval_dataset", "processing_class"),
    "SFTTrainer": ("model", "args", "data_collator", "train_dataset", "eval_dataset"),
    "DPOTrainer": ("model", "ref_model", "args", "data_collator", "train_dataset", "eval_dataset"),
    "KTOTrainer": ("model", "ref_model", "args"),
    "OnlineDPOTrainer": ("model", "ref_model", "reward_funcs"),
    "RewardTrainer": ("model", "args", "data_collator", "train_dataset", "eval_dataset"),
}
# Of the machine, the log or a format: gone, and the run is the same without them.
LOSSLESS = set(
    "chars_per_token dataset_batch_size num_of_sequences use_logits_to_keep use_num_logits_to_keep vllm_device "
    "vllm_dtype vllm_enable_prefix_caching overwrite_output_dir logging_dir save_safetensors fp16_backend "
    "half_precision_backend fp16_opt_level use_mps_device jit_mode_eval use_ipex tpu_num_cores tpu_metrics_debug "
    "past_index ray_scope torchdynamo include_tokens_per_second push_to_hub_organization xpu_backend "
    "use_legacy_prediction_loop predict_with_generate padding_value label_pad_token_id is_encoder_decoder "
    "generate_during_eval base_model_attribute_name dataset_num_proc ds3_gather_for_generation infinite "
    "mp_parameters fsdp_min_num_params sharded_ddp eval_use_gather_object include_inputs_for_metrics "
    "exp_name vllm_max_model_len local_rank average_tokens_across_devices".split()
)
# Defaults that changed and say nothing of the objective, the sampling, the batch, the prompts or the schedule.
BESIDE_THE_RUN = LOSSLESS | set(
    "report_to disable_tqdm debug fsdp fsdp_config fsdp_transformer_layer_cls_to_wrap deepspeed accelerator_config "
    "hub_private_repo hub_token hub_revision hub_always_push ddp_backend ddp_timeout ddp_broadcast_buffers tf32 "
    "parallelism_config project trackio_space_id trackio_bucket_id trackio_static_space_id liger_kernel_config "
    "include_for_metrics include_num_input_tokens_seen log_level log_level_replica evaluation_strategy eval_strategy "
    "do_train do_eval do_predict use_cpu no_cuda dispatch_batches split_batches torch_compile torch_compile_backend "
    "torch_compile_mode dataloader_pin_memory dataloader_prefetch_factor dataloader_persistent_workers push_to_hub "
    "enable_jit_checkpoint restore_callback_states_from_checkpoint save_only_model save_on_each_node "
    "torch_empty_cache_steps use_liger_kernel use_liger_loss use_liger log_completions_hub_repo model_init_kwargs "
    "activation_checkpointing activation_checkpointing_kwargs gradient_checkpointing_kwargs vllm_server_timeout "
    "vllm_gpu_memory_utilization pad_to_multiple_of lr_scheduler_kwargs router_aux_loss_coef trust_remote_code "
    "f_divergence_type logging_first_step length_column_name output_dir run_name batch_eval_metrics "
    "dataloader_multiprocessing_context dataloader_in_order eval_on_start vllm_group_port resume_from_checkpoint "
    "skip_memory_metrics label_names optim_target_modules world_size push_to_hub_token push_to_hub_model_id "
    "bf16_full_eval fp16_full_eval save_total_limit tokenizer eval_delay warmup_ratio num_completions_to_print".split()
)
# Arguments of a trainer that moved into no config, with what to use.
WITHOUT_EQUAL = {"judge": "a reward function that asks the judge", "model_init": "model="}
# Names that `trl` no longer has, with what to use.
GONE_NAMES = {
    "DataCollatorForCompletionOnlyLM": "rows with the columns prompt and completion, and completion_only_loss=True",
    "setup_chat_format": "clone_chat_template, or chat_template_path in SFTConfig",
    "AutoModelForCausalLMWithValueHead": "scripts/ppo_train.py, which has its own value head",
    "AutoModelForSeq2SeqLMWithValueHead": "scripts/ppo_train.py, for models without an encoder",
    "DPODataCollatorWithPadding": "leaving data_collator out",
    "RewardDataCollatorWithPadding": "leaving data_collator out",
    "ConstantLengthDataset": "packing=True with packing_strategy='wrapped'",
    "DDPOTrainer": "the package diffusers",
    "AlignPropTrainer": "the package diffusers",
    "IterativeSFTTrainer": "SFTTrainer",
    "BestOfNSampler": "generate with num_return_sequences",
    "LengthSampler": "random.randint",
    "SFTScriptArguments": "ScriptArguments",
    "DPOScriptArguments": "ScriptArguments",
    "get_kbit_device_map": "accelerate's PartialState().local_process_index",
}
# Settings of scripts/ppo_train.py -> what a trainer that is gone called them.
CARRIED = {
    "lr": ("learning_rate",),
    "kl_coef": ("kl_coef", "init_kl_coef"),
    "ppo_epochs": ("num_ppo_epochs", "ppo_epochs"),
    "minibatches": ("num_mini_batches",),
    "clip_eps_low": ("cliprange",),
    "clip_eps_high": ("cliprange",),
    "vf_coef": ("vf_coef",),
    "gamma": ("gamma",),
    "gae_lambda": ("lam",),
    "max_new_tokens": ("response_length",),
    "temperature": ("temperature",),
    "seed": ("seed",),
    "batch_size": ("batch_size", "per_device_train_batch_size"),
}
