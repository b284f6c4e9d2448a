"""Trainers of TRL, and names that are gone with what takes their place."""

METHODS = "GRPO RLOO SFT DPO Reward KTO GKD OnlineDPO ORPO CPO PPO PPOv2".split()
CONFIGS = {f"{method}Trainer": f"{method}Config" for method in METHODS}
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
    "base_model_attribute_name chars_per_token dataset_batch_size dataset_num_proc exp_name fp16_backend "
    "fp16_opt_level fsdp_min_num_params generate_during_eval half_precision_backend include_inputs_for_metrics "
    "include_tokens_per_second infinite is_encoder_decoder jit_mode_eval label_pad_token_id local_rank logging_dir "
    "mp_parameters num_of_sequences overwrite_output_dir padding_value past_index push_to_hub_organization ray_scope "
    "save_safetensors sharded_ddp tpu_metrics_debug tpu_num_cores use_ipex use_legacy_prediction_loop "
    "use_logits_to_keep use_mps_device use_num_logits_to_keep vllm_device vllm_dtype vllm_enable_prefix_caching".split()
)
# Defaults that changed and say nothing of the objective, the sampling, the batch, the prompts or the schedule.
BESIDE_THE_RUN = set(
    "average_tokens_across_devices dataloader_prefetch_factor f_divergence_type fsdp hub_private_repo "
    "include_num_input_tokens_seen lr_scheduler_kwargs output_dir pad_to_multiple_of report_to router_aux_loss_coef "
    "trackio_space_id vllm_gpu_memory_utilization vllm_server_timeout".split()
)
# Arguments of a trainer that moved into no config, with what to use.
WITHOUT_EQUAL = {"judge": "a reward function that asks the judge", "model_init": "model="}
# Names that `trl` no longer has, with what to use.
GONE_NAMES = {
    "DataCollatorForCompletionOnlyLM": "rows with the columns prompt and completion, and completion_only_loss=True",
    "setup_chat_format": "clone_chat_template, or chat_template_path in SFTConfig",
    "AutoModelForCausalLMWithValueHead": "scripts/ppo_train.py, which has its own value head",
    "ConstantLengthDataset": "packing=True with packing_strategy='wrapped'",
    "SFTScriptArguments": "ScriptArguments",
    "DPOScriptArguments": "ScriptArguments",
    "get_kbit_device_map": "accelerate's PartialState().local_process_index",
}
# Settings of scripts/ppo_train.py -> what a trainer that is gone called them.
CARRIED = (
    {"lr": ["learning_rate"], "kl_coef": ["kl_coef", "init_kl_coef"], "ppo_epochs": ["num_ppo_epochs", "ppo_epochs"]}
    | {"minibatches": ["num_mini_batches"], "clip_eps_low": ["cliprange"], "clip_eps_high": ["cliprange"]}
    | {"vf_coef": ["vf_coef"], "gamma": ["gamma"], "gae_lambda": ["lam"], "max_new_tokens": ["response_length"]}
    | {"temperature": ["temperature"], "seed": ["seed"], "batch_size": ["batch_size", "per_device_train_batch_size"]}
)
