"""A multi-turn agent loop with a tool for verl 0.9: the model answers, a tool compares, the model may try again.

    VERL_USE_EXTERNAL_MODULES=feedback_agent   (with PYTHONPATH=examples/verl)
    actor_rollout_ref.rollout.agent.default_agent_loop=feedback_agent
    actor_rollout_ref.rollout.multi_turn.max_assistant_turns=3   # 3 too where this is not set

Or per row, by a column `agent_name` with the value "feedback_agent". The tool's messages stand in the response with
mask 0: the model is not trained on them. Each further attempt costs TURN_COST of the score, which the loop sets itself:
the run's reward function is not called. data.max_response_length holds all turns together.
"""

import re
from uuid import uuid4

from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopOutput, register

TURN_COST = 0.25
NUMBER = re.compile(r"-?\d{1,15}")


def judge_number(text, answer):
    """The tool: say whether the last number in the text is too small, too large or right."""
    numbers = NUMBER.findall(text)
    if not numbers:
        return "no number"
    difference = int(numbers[-1]) - int(answer)
    return "right" if difference == 0 else "too small" if difference < 0 else "too large"


def visible_text(tokenizer, ids: list[int]) -> str:
    """The text of sampled ids without the end token; other special tokens stay visible, as a `<|user|>` it wrote."""
    ended = bool(ids) and ids[-1] == tokenizer.eos_token_id
    return tokenizer.decode(ids[: len(ids) - ended], skip_special_tokens=False)


@register("feedback_agent")
class FeedbackAgentLoop(AgentLoopBase):
    """One conversation: answer, comparison, answer, ... until it is right, turns run out or the response is full."""

    async def run(self, sampling_params, **row):
        """Return the tokens of all turns with their mask (1 = sampled by the model) and the score."""
        messages, room = list(row["raw_prompt"]), self.rollout_config.response_length
        turns = self.rollout_config.multi_turn.max_assistant_turns or 3
        prompt = tokens = await self.ct_build_initial_tokens(messages)
        mask, logprobs, score, verdict, turn, fields = [], [], 0.0, "", 0, {}
        name = uuid4().hex  # one for all turns: their server has the conversation in its cache
        while True:
            params = {**sampling_params, "max_tokens": room - len(mask)}
            out = await self.server_manager.generate(request_id=name, prompt_ids=tokens, sampling_params=params)
            turn, fields = turn + 1, {**out.extra_fields, **fields}  # the step of the first turn
            merged, mask, logprobs = await self.ct_merge_assistant_token(
                tokens, out.token_ids, mask, logprobs, assistant_logprobs=out.log_probs or [0.0] * len(out.token_ids)
            )
            tokens = merged.token_ids
            text = visible_text(self.tokenizer, out.token_ids)
            verdict = judge_number(text, row["reward_model"]["ground_truth"])
            if verdict == "right":
                score = max(0.0, 1.0 - TURN_COST * (turn - 1))
            if verdict == "right" or turn == turns:
                break
            said = [*messages, {"role": "assistant", "content": text}]
            messages = [*said, {"role": "user", "content": verdict}]
            merged, longer, padded = await self.ct_merge_context_msg(said, messages, tokens, mask, logprobs)
            if len(longer) >= room:
                break
            tokens, mask, logprobs = merged.token_ids, longer, padded
        return AgentLoopOutput(
            prompt_ids=prompt,
            response_ids=tokens[len(prompt) :][:room],
            response_mask=mask[:room],
            response_logprobs=logprobs[:room],
            reward_score=score,
            num_turns=2 * turn,
            metrics={},
            extra_fields={**fields, "turn_scores": [], "tool_rewards": [], "reward_extra_info": {"turns": turn}},
        )
