"""Keys of verl's configuration: all current ones, and what replaces those of older guides."""

import re

from parts.foundation.bundle import BUNDLE

ACTOR, REF, ROLLOUT, MODEL = (f"actor_rollout_ref.{part}" for part in ("actor", "ref", "rollout", "model"))
FSDP, CORRECTION = f"{ACTOR}.fsdp_config", "algorithm.rollout_correction"
OFF = 1e9  # a bound that no ratio reaches: verl, like us, bounds the log-ratio to +-20, and exp(20) is 4.9e8
NAMES_FILE = BUNDLE / "assets" / "verl_keys.txt"


# Key, or key=value, from older guides or by a plausible guess -> (what verl 0.9.1 does with it, what to write instead).
# If the replacement is a section, the old section's keys follow below it.
IGNORED, GONE = "ignores it", "no longer has it"
TODAY = {
    f"{ACTOR}.clip_ratio": (IGNORED, f"{ACTOR}.clip_ratio_low and {ACTOR}.clip_ratio_high"),
    f"{ACTOR}.grad_clip": (IGNORED, f"{ACTOR}.optim.clip_grad"),
    "critic.grad_clip": (IGNORED, "critic.optim.clip_grad"),
    f"{ACTOR}.use_torch_compile": (IGNORED, f"{FSDP}.use_torch_compile"),
    f"{FSDP}.dtype": (IGNORED, f"+{FSDP}.mixed_precision.param_dtype"),
    f"{REF}.fsdp_config.dtype": (IGNORED, f"+{REF}.fsdp_config.mixed_precision.param_dtype"),
    "critic.fsdp.dtype": (IGNORED, "+critic.fsdp.mixed_precision.param_dtype"),
    f"{REF}.fsdp_config.param_offload": (IGNORED, "leaving it out: the reference always waits in CPU memory"),
    "custom_reward_function": (IGNORED, "reward.custom_reward_function"),
    "reward_model.custom_reward_function": (GONE, "reward.custom_reward_function"),
    "custom_reward_function.overlong_buffer": (GONE, "+reward.reward_kwargs.overlong_buffer_cfg"),
    "reward_model.overlong_buffer": (GONE, "+reward.reward_kwargs.overlong_buffer_cfg"),
    **{f"{part}.megatron.grad_offload": (GONE, "leaving it out") for part in (ACTOR, REF, "critic")},
    f"{ACTOR}.use_token_level_loss=true": (GONE, f"{ACTOR}.loss_agg_mode=token-mean"),
    "reward_model": (IGNORED, "the section reward, whose model vLLM or SGLang serves"),
    "reward_model.reward_manager": (IGNORED, "reward.reward_manager.name"),
    "reward_model.enable": (IGNORED, "reward.reward_model.enable"),
    "reward_model.model.path": (IGNORED, "reward.reward_model.model_path"),
    "reward_model.num_workers": (IGNORED, "reward.num_workers"),
    **{
        f"reward_model.{name}": (IGNORED, f"reward.reward_model.{name}")
        for name in ("rollout", "enable_resource_pool", "n_gpus_per_node", "nnodes")
    },
    "reward_model.reward_kwargs": (GONE, "+reward.reward_kwargs"),
    "reward_model.use_reward_loop": (GONE, "leaving it out: it is always on"),
    "reward_model.launch_reward_fn_async": (GONE, "leaving it out: it is always on"),
    "sandbox_fusion": (IGNORED, "reward.sandbox_fusion"),
    "algorithm.filter_groups.max_num_gen_batches": (IGNORED, "algorithm.filter_groups.max_inflight_gen_batches"),
    f"{CORRECTION}.loss_type": (IGNORED, f"{ACTOR}.policy_loss.loss_mode"),
    f"{CORRECTION}.bypass_mode=true": (
        "leaves out the correction with it",
        "False, or trainer.use_v1=False, which corrects",
    ),
    "algorithm.policy_loss_fn": (GONE, f"{ACTOR}.policy_loss.loss_mode"),
    f"{ACTOR}.tis_imp_ratio_cap": (GONE, f"{CORRECTION}.rollout_is=token and {CORRECTION}.rollout_is_threshold"),
    "algorithm.rollout_is": (GONE, f"{CORRECTION}.rollout_is"),
    "data.chat_template": (GONE, f"{MODEL}.custom_chat_template, the template's text"),
    "data.sampler": (GONE, "data.shuffle=False, and a data set that orders its rows"),
    "data.datagen": (GONE, "a data set class of your own: data.custom_cls.path and name"),
    **dict.fromkeys(("data.return_raw_input_ids", "data.return_raw_chat"), (IGNORED, "leaving it out")),
    "data.reward_fn_key": (IGNORED, "the column data_source"),
    "data.truncation": (IGNORED, "data.filter_overlong_prompts=True"),
    f"{ROLLOUT}.multi_turn.max_turns": (GONE, f"{ROLLOUT}.multi_turn.max_assistant_turns"),
    f"{ROLLOUT}.multi_turn.interaction_config_path": (GONE, "an agent loop of your own"),
    f"{ROLLOUT}.multi_turn.enable": (IGNORED, f"{ROLLOUT}.agent.default_agent_loop=tool_agent"),
    f"{ROLLOUT}.multi_turn.completion_callback": (GONE, "an agent loop of your own"),
    f"{ROLLOUT}.skip": (GONE, "the section skip.rollout, whose steps are a list"),
    f"{ROLLOUT}.skip_rollout": (GONE, "the section skip.rollout, whose steps are a list"),
    f"{ROLLOUT}.skip_dump_dir": (GONE, "the section skip.rollout, whose steps are a list"),
    f"{ROLLOUT}.mode=sync": ("refuses it at the start", "leaving it out: all rollout is asynchronous"),
    f"{ROLLOUT}.name=hf": ("refuses it at the start", f"{ROLLOUT}.name=vllm"),
    f"{ROLLOUT}.name=sglang_async": ("refuses it at the start", f"{ROLLOUT}.name=sglang"),
    f"{ACTOR}.ppo_micro_batch_size": ("deprecates it", f"{ACTOR}.ppo_micro_batch_size_per_gpu"),
    f"{ACTOR}.optim.warmup_style": ("deprecates it", f"{ACTOR}.optim.lr_scheduler_type"),
    f"{ACTOR}.ulysses_sequence_parallel_size": ("deprecates it", f"{FSDP}.ulysses_sequence_parallel_size"),
    "critic.model.fsdp_config": (GONE, "critic.fsdp"),
    "trainer.use_legacy_worker_impl": (GONE, "leaving it out: there is one engine"),
    "trainer.remove_previous_ckpt_in_save=true": (
        GONE,
        "trainer.max_actor_ckpt_to_keep=1 and trainer.max_critic_ckpt_to_keep=1",
    ),
    "trainer.balance_batch=false": (IGNORED, "leaving it out"),
    "trainer.esi_redundant_time": (IGNORED, "leaving it out"),
    "ray_init": (GONE, "ray_kwargs.ray_init"),
}


def known_names(engine: str) -> set[str]:
    """Every key of verl's configuration with a model engine; an empty set for an engine that is not in the file."""
    names, has_engine = set(), False
    for line in NAMES_FILE.read_text(encoding="utf-8").splitlines()[1:]:
        where, section, *leaves = line.split()
        has_engine = has_engine or where == engine
        if where in ("*", engine):
            names |= {f"{section}.{leaf}".lstrip(".") for leaf in leaves}
    return names if has_engine else set()


def advice_today(key: str, value: str) -> tuple[str, str] | None:
    """(what verl does with a key, what to write instead) by its longest match in TODAY; None if it has none."""
    value = value.strip().lower()
    for entry in sorted(TODAY, key=len, reverse=True):
        name, _, only = entry.partition("=")
        if (key == name or key.startswith(f"{name}.")) and only in ("", value):
            effect, instead = TODAY[entry]
            is_section = re.fullmatch(r"\+?[\w.]+", instead)
            return effect, instead + key.removeprefix(name) if is_section else instead
    return None
