"""Rewards: signs, scales and denials beside an answer; loading and calling a user's functions."""

ROOMS = ("attacks", "extracts", "contexts", "text_servers", "user_code", "schema_examples", "reward_forms", "rewards")
