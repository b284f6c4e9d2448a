"""The tools of a run: the policy of a round, its sampler, its files, and the signal to stop."""

import dataclasses
import gc
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from parts.data.chat import as_turns, template_settings
from parts.data.prompts import checked_ids
from parts.data.rows import placed_json_lines
from parts.foundation.messages import MemoryShortage, need, say
from parts.foundation.processes import StopRequest, StopRequested, room_for, torch
from parts.networks.cache_probe import check_pads, load_sampler
from parts.networks.forward import settle_logits
from parts.networks.loading import load_policy
from parts.networks.models import Models, check_context
from parts.networks.tokenizers import end_and_pad_ids, load_tokenizer
from parts.rewards.rewards import Reward
from parts.rewards.text_servers import server_json, server_text
from parts.running.output_folder import write_text
from parts.sampling.rollouts import collect
from parts.sampling.sampling import HFEngine
from parts.sampling.sampling_vllm import VllmEngine
from programs.warm_start.settings import Config


def write_json(path: Path, value) -> None:
    write_text(path, json.dumps(value, indent=1, ensure_ascii=False) + "\n")


def write_lines(path: Path, rows: list[dict]) -> None:
    write_text(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


def read_lines(path: Path) -> list[dict]:
    """Read JSONL; no rows where there is no file."""
    return [row for _, row in placed_json_lines(path)] if path.exists() else []


class Workshop:
    """Loads policies when they are needed; `rows` are prompts without solutions, `held_out` those that are measured.

    `at_once` completions are sampled together, half as many whenever memory runs out.
    """

    def __init__(self, config: Config, device, tokenizer, reward: Reward, rows, held_out, at_once: int = 0):
        self.config, self.device, self.tokenizer, self.reward = config, device, tokenizer, reward
        self.rows, self.held_out, self.stop = rows, held_out, StopRequest()
        self.models, self.source, self.vllm = None, None, None
        self.folder, self.at_once = Path(config.output_dir), at_once or config.rollout_batch_size

    def round_folder(self, number: int) -> Path:
        """Where a round's files are; round 0 is the model as it came."""
        return self.folder / "rounds" / f"round-{number:03d}"

    def policy_folder(self, number: int) -> Path | None:
        """The newest policy up to a round; None for the model as it came."""
        folders = [self.round_folder(n) / "policy" for n in range(number, 0, -1)]
        return next((folder for folder in folders if folder.exists()), None)

    def check_stop(self) -> None:
        if self.stop.signum:
            raise StopRequested(self.stop.signum)

    def release(self) -> None:
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
        if not folder:
            torch.manual_seed(self.config.seed)  # new adapters are the same in each round
        policy = load_policy(self.config, self.device, folder)
        ends, pad = end_and_pad_ids(self.config, policy, self.tokenizer)
        if self.models is None:
            self.models = Models(policy, None, None, self.tokenizer, ends, pad, self.device)
            check_pads(self.config, self.models, policy, "model")
        self.models.policy, self.source = policy, (folder,)
        settle_logits(self.config, self.models)
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

    def sampler(self, number: int, temperature: float):
        """A function that samples and scores one completion of each row with the policy after a round."""
        engine = self.engine(number, temperature)
        return lambda rows, noise: self.samples(self.models, engine, rows, noise)

    def samples(self, models: Models, engine, rows: list[dict], noise) -> list[dict]:
        """One scored completion of each row, in smaller batches where memory runs out."""
        while True:
            engine.config = dataclasses.replace(engine.config, rollout_batch_size=self.at_once)
            advice = f"a new run with a lower --max_new_tokens than {engine.config.max_new_tokens}"
            try:
                with room_for("while sampling", advice):
                    return collect(engine.config, models, engine, self.reward, rows, noise, {})
            except MemoryShortage:
                if self.at_once == 1 or engine is self.vllm:
                    raise
            self.at_once //= 2
            say(f"out of memory while sampling; going on with {self.at_once} completions at once")


class Teacher:
    """Another model that samples through its own tokenizer and chat template; the policy is let go of before."""

    def __init__(self, shop: Workshop):
        config = shop.config
        shop.release()
        self.config = dataclasses.replace(
            config, model=config.teacher, chat_template="", lora_rank=0, temperature=config.sample_temperature
        )
        with room_for("while the teacher was loaded", "a smaller --teacher, or one behind a server"):
            self.models = load_sampler(self.config, load_tokenizer(self.config), shop.device, "teacher")
        self.engine, self.shop = HFEngine(self.config, self.models), shop
        check_context(self.config, self.models, [*map(self.row, shop.rows)])

    def sample(self, rows: list[dict], noise) -> list[dict]:
        """One scored completion of each row."""
        return self.shop.samples(self.models, self.engine, [*map(self.row, rows)], noise)

    def row(self, row: dict) -> dict:
        sent, template = as_turns(row["prompt"], self.config.chat), template_settings(self.config)
        return row | {
            "prompt_ids": checked_ids(self.models.tokenizer, sent, f"--teacher {self.config.model}", **template)
        }


class ServerTeacher:
    """A model behind an OpenAI-compatible server: it gets prompts as they stand in the data, and gives texts."""

    at_once = 32  # requests that are under way
    hint = "try another --teacher http://HOST:PORT/v1#MODEL, or start it again and --resume"

    def __init__(self, shop: Workshop):
        self.shop, config = shop, shop.config
        self.url, _, self.name = config.teacher.partition("#")
        self.limits = {"max_tokens": config.max_new_tokens, "temperature": config.sample_temperature}
        self.template = template_settings(config)
        if not self.name:
            served = server_json(self.url.rstrip("/") + "/models", None, self.hint).get("data") or [{}]
            self.name = served[0].get("id", "")
            need(self.name, f"got --teacher {config.teacher}, which serves no model; expected one; {self.hint}")

    def ask(self, row: dict, draw: float) -> tuple[str, bool]:
        """(text, whether it ended by itself) for a row; the first draw of its noise is the seed."""
        prompt = as_turns(row["prompt"], self.shop.config.chat)
        body = {"model": self.name, **self.limits, "seed": int(draw * 2**31)}
        if self.template and not isinstance(prompt, str):
            body["chat_template_kwargs"] = self.template
        text, reason, _ = server_text(self.url, prompt, body, self.hint)
        return text, reason != "length"

    def sample(self, rows: list[dict], noise) -> list[dict]:
        """One scored completion of each row; its ids are those that the student's tokenizer has for the text."""
        with ThreadPoolExecutor(self.at_once) as pool:
            texts, ended = zip(*pool.map(self.ask, rows, noise[:, 0].tolist()), strict=True)
        ids = [self.shop.tokenizer(text, add_special_tokens=False).input_ids for text in texts]
        scores, parts = self.shop.reward(rows, list(texts), ids)
        made = zip(rows, texts, ids, ended, scores, strict=True)
        return [
            {"prompt": row["prompt"], "completion": text, "response_ids": response, "rollout_logprobs": []}
            | {"rewards": {name: values[i] for name, values in parts.items()}, "finished": end, "score": score}
            for i, (row, text, response, end, score) in enumerate(made)
        ]
