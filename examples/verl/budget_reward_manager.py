"""A custom reward manager for verl 0.9: a score minus a price for tokens beyond a budget; nothing for a cut answer.

    reward.reward_manager.source=importlib
    reward.reward_manager.name=BudgetRewardManager
    reward.reward_manager.module.path=examples/verl/budget_reward_manager.py
    reward.custom_reward_function.path=my_reward.py
    +reward.reward_kwargs.budget=512        # tokens that cost nothing
    +reward.reward_kwargs.token_cost=1e-3   # score lost per token beyond them; 1e-3 without this

A reward function sees text; a manager also sees token ids: lengths are exact, and a completion without an end token is
known as cut off. verl asks for one sample at a time. The parts of the score appear as metrics of validation.
"""

from verl.experimental.reward_loop.reward_manager.naive import NaiveRewardManager


def budgeted(score, tokens, ended, budget, token_cost):
    """Return score - token_cost · (tokens beyond the budget); at most 0 if the completion was cut off."""
    score = score - token_cost * max(0, tokens - budget)
    return score if ended else min(0.0, score)


class BudgetRewardManager(NaiveRewardManager):
    """Calls the run's reward function as verl does, then charges for length."""

    def __init__(self, config, tokenizer, compute_score, **kwargs):
        super().__init__(config, tokenizer, compute_score, **kwargs)
        options = config.reward.get("reward_kwargs") or {}
        if "budget" not in options:
            raise ValueError(
                "got no reward.reward_kwargs.budget; expected tokens; try +reward.reward_kwargs.budget=512"
            )
        self.budget, self.token_cost = int(options.budget), float(options.get("token_cost", 1e-3))

    async def run_single(self, data):
        """Return {"reward_score": float, "reward_extra_info": {name: number}}."""
        result = await super().run_single(data)
        sample = data[-1].batch
        responses = sample["responses"]
        tokens = int(sample["attention_mask"][-responses.shape[-1] :].sum())
        ended = tokens > 0 and int(responses[tokens - 1]) == self.tokenizer.eos_token_id
        score = budgeted(result["reward_score"], tokens, ended, self.budget, self.token_cost)
        extra = {**result["reward_extra_info"], "tokens": tokens, "cut_off": float(not ended)}
        return {"reward_score": score, "reward_extra_info": extra}
