"""--dry_run: settings, batch arithmetic, memory."""

import dataclasses
import json
import os

from parts.chat import strings_past_template
from parts.memory import in_gib
from parts.messages import tell
from programs.grpo_train.memory import trl_memory
from programs.grpo_train.prepare import prepare_run
from programs.grpo_train.settings import PROFILES, Config
from programs.grpo_train.trl_arguments import trl_config, trl_settings


def print_plan(config: Config) -> int:
    """Print resolved settings, batch arithmetic, what TRL is given, and a memory estimate per process, as JSON."""
    ready = prepare_run(config)
    resolved, plan, size = ready.config, ready.plan, int(os.environ.get("WORLD_SIZE", "1"))
    args = trl_settings(resolved, plan.steps)
    trl_config(resolved, plan.steps)
    longest = max(len(row["prompt_ids"]) for row in ready.rows)
    prompts = [row["prompt"] for row in ready.rows + ready.held_out]
    turns = resolved.max_turns if resolved.converses else 1
    tokens = plan.rollouts * plan.completions_per_rollout * turns * resolved.max_completion_length
    passes = plan.rollouts * plan.prompts_per_rollout / len(ready.rows)
    shown = {
        "settings": {**dataclasses.asdict(resolved), "profile_sets": PROFILES.get(config.profile, {})},
        "batch": {
            "processes": size,
            "prompts": len(ready.rows),
            "held_out_prompts": len(ready.held_out),
            "longest_prompt_tokens": longest,
            "prompts_past_the_chat_template": strings_past_template(config, ready.tokenizer, prompts),
            "prompts_per_step": plan.completions_per_step / resolved.num_generations / resolved.num_iterations,
            "completions_per_step": plan.completions_per_step,
            "prompts_per_rollout": plan.prompts_per_rollout,
            "completions_per_rollout": plan.completions_per_rollout,
            "rollouts": plan.rollouts,
            "optimizer_steps": plan.steps,
            "optimizer_steps_per_rollout": plan.steps_per_rollout,
            "passes_over_the_data": round(passes, 2),
            "completion_tokens_at_most": tokens,
        },
        "must_divide": [
            f"num_generations {resolved.num_generations} divides completions_per_rollout {plan.completions_per_rollout}"
            " = per_device_train_batch_size x processes x steps_per_generation",
            "per_device_train_batch_size x processes divides generation_batch_size, where that is given",
            "gradient_accumulation_steps divides steps_per_generation x num_iterations, or is a multiple of it",
        ],
        "stages": [dataclasses.asdict(stage) for stage in ready.stages],
        "trl": args,
        "parameters": ready.parameters,
        "memory_estimate": in_gib(trl_memory(ready, args, longest, size)),
    }
    if ready.setup:
        shown["environment"] = {
            "tools": {kind.name: kind.tool_names for kind in ready.setup.environments.kinds.values()},
            "tool_format": ready.setup.form if isinstance(ready.setup.form, str) else "response template",
            "conversation_tokens": resolved.conversation_tokens,
        }
    tell(json.dumps(shown, indent=1))
    return 0
