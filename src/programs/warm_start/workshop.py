"""What a run works with: the policy of a round, who samples with it, where its files are, and the signal to stop."""

import dataclasses
import gc
from pathlib import Path

from parts.cache_probe import check_pads
from parts.chat import as_turns, template_settings
from parts.forward import check_logits
from parts.messages import UserError
from parts.models import Models, end_and_pad_ids, load_policy
from parts.processes import StopRequest
from parts.prompts import encode_prompt
from parts.rewards import Reward
from parts.sampling import HFEngine
from parts.sampling_vllm import VllmEngine
from parts.tokenizers import load_tokenizer
from programs.warm_start.settings import Config


class Stopped(Exception):
    """A signal asked for the end; what is done is on disk."""


class Workshop:
    """Loads policies as they are needed, and none that is not.

    Args:
        rows: training prompts without solutions.
        held_out: prompts that the pass rate is taken on.
    """

    def __init__(self, config: Config, device, tokenizer, reward: Reward, rows: list[dict], held_out: list[dict]):
        self.config, self.device, self.tokenizer, self.reward = config, device, tokenizer, reward
        self.rows, self.held_out, self.stop = rows, held_out, StopRequest()
        self.models, self.source, self.vllm = None, None, None
        self.folder = Path(config.output_dir)

    def round_folder(self, number: int) -> Path:
        """Where a round's files are; round 0 is the model as it came."""
        return self.folder / "rounds" / f"round-{number:03d}"

    def policy_folder(self, number: int) -> Path | None:
        """The newest policy up to a round; None for the model as it came."""
        found = [self.round_folder(n) / "policy" for n in range(number, 0, -1)]
        return next((folder for folder in found if folder.exists()), None)

    def check_stop(self) -> None:
        """Raise Stopped once a signal has come."""
        if self.stop.signum:
            raise Stopped

    def release(self) -> None:
        """Let go of the policy's memory."""
        import torch

        if self.models:
            self.models.policy = None
        self.source = None
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def load(self, number: int) -> Models:
        """The networks with the policy after a round."""
        folder = self.policy_folder(number)
        if self.models and self.models.policy is not None and self.source == (folder,):
            return self.models
        self.release()
        policy = load_policy(self.config, self.device, folder)
        ends, pad = end_and_pad_ids(self.config, policy, self.tokenizer)
        if self.models is None:
            self.models = Models(policy, None, None, self.tokenizer, ends, pad, self.device)
            check_logits(self.models)
            check_pads(self.config, self.models, policy, "model")
        self.models.policy, self.source = policy, (folder,)
        return self.models

    def engine(self, number: int, temperature: float):
        """Who samples with the policy after a round, at a temperature."""
        config, models = dataclasses.replace(self.config, temperature=temperature), self.load(number)
        if config.rollout_engine == "hf":
            return HFEngine(config, models)
        self.vllm = self.vllm or VllmEngine(config, models)
        self.vllm.config = config
        self.vllm.sync(number)
        return self.vllm


class Teacher:
    """Another model that samples through its own tokenizer and chat template; the policy is let go of before."""

    def __init__(self, shop: Workshop):
        config = shop.config
        shop.release()
        self.config = dataclasses.replace(
            config, model=config.teacher, chat_template="", lora_rank=0, temperature=config.sample_temperature
        )
        tokenizer = load_tokenizer(self.config)
        policy = load_policy(self.config, shop.device, None)
        ends, pad = end_and_pad_ids(self.config, policy, tokenizer)
        self.models = Models(policy, None, None, tokenizer, ends, pad, shop.device)
        check_logits(self.models)
        check_pads(self.config, self.models, policy, "teacher")
        self.engine = HFEngine(self.config, self.models)

    def row(self, row: dict) -> dict:
        """A row with the prompt as the teacher reads it."""
        sent, tokenizer = as_turns(row["prompt"], self.config.chat), self.models.tokenizer
        try:
            return row | {"prompt_ids": list(encode_prompt(tokenizer, sent, **template_settings(self.config)))}
        except Exception as error:
            what = f"got prompt {str(row['prompt'])[:80]!r}, which the teacher's template refuses ({error})"
            raise UserError(f"{what}; expected roles that it knows; try another --teacher") from error
