"""Sampling completions with the policy, here or in vLLM, and scoring them."""

ROOMS = ("room_steps", "sampling", "sync_check", "sampling_vllm", "rollouts", "saved_models")
