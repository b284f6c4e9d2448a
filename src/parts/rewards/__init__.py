"""Rewards: loading and calling a user's functions, and the answers that texts state."""

ROOMS = (
    "attacks",
    "extracts",
    "stated_answers",
    "text_servers",
    "user_code",
    "schema_examples",
    "reward_forms",
    "rewards",
)
