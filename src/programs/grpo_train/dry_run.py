"""--dry_run: settings, batch arithmetic, memory."""

import dataclasses
import os

from parts.data.chat import strings_past_template
from parts.running.fit import settle_sizes
from parts.running.plan import changed_settings, print_plan
from programs.grpo_train.memory import sizes_of_run, trl_device
from programs.grpo_train.prepare import prepare_run
from programs.grpo_train.settings import PROFILES, Config
from programs.grpo_train.trl_arguments import trl_config, trl_settings


def show_plan(config: Config) -> int:
    """Print batch arithmetic, memory per process, what TRL is given, and the settings that are no defaults, as JSON."""
    ready = prepare_run(config)
    resolved, plan, size = ready.config, ready.plan, int(os.environ.get("WORLD_SIZE", "1"))
    sizes, device = sizes_of_run(ready, config, size), trl_device(resolved)
    fit = settle_sizes(resolved, device, sizes)
    args = trl_settings(resolved, plan.steps)
    defaults = {f.name: f.default for f in dataclasses.fields(trl_config(resolved, plan.steps))}
    longest = max(len(row["prompt_ids"]) for row in ready.rows)
    prompts = [row["prompt"] for row in ready.rows + ready.held_out]
    turns = resolved.max_turns if resolved.converses else 1
    tokens = plan.rollouts * plan.completions_per_rollout * turns * resolved.max_completion_length
    passes = plan.rollouts * plan.prompts_per_rollout / len(ready.rows)
    shown = {
        "batch": {
            "processes": size,
            "steps": plan.steps,
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
        "trl": {name: value for name, value in args.items() if value != defaults.get(name)},
        "parameters": ready.parameters,
    }
    if ready.setup:
        shown["environment"] = {
            "tools": {kind.name: kind.tool_names for kind in ready.setup.environments.kinds.values()},
            "tool_format": ready.setup.form if isinstance(ready.setup.form, str) else "response template",
            "conversation_tokens": resolved.conversation_tokens,
        }
    settings = changed_settings(resolved) | ({"profile_sets": PROFILES[config.profile]} if config.profile else {})
    print_plan(device, shown, sizes.estimate(resolved), settings, fit.line)
    return 0
