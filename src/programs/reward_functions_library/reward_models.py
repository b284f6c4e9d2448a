"""Models that score."""

import math
import os
import threading
from dataclasses import dataclass, replace

from programs.reward_functions_library.contract import completion_text

_LOCK = threading.RLock()


# ---- models that score
@dataclass(eq=False)
class RewardModel:
    """Logit 0 of a Hugging Face sequence classifier on prompt + completion, in its chat template if it has one: ℝ.
    w: the inverse of its spread on your data. Loaded at the first call; overlong text keeps its end; NaN gives None.
    >>> reward_model.configure(model="my/reward-model", batch_size=4)([], [])
    []"""

    model: str | None = None
    device: str = "auto"
    batch_size: int = 8
    max_length: int = 4096
    name: str = "reward_model"
    configure = replace  # a variant with other settings

    def __post_init__(self):
        self.__name__, self._state = self.name, None

    def __getstate__(self) -> dict:
        return {**self.__dict__, "_state": None}  # pickles leave out what was loaded

    def __call__(self, prompts, completions, **kwargs) -> list[float | None]:
        scores, prompts = [], prompts or [None] * len(completions)
        with _LOCK:
            tokenizer, model = self._state = self._state or (self._load() if completions else (None, None))
            texts = [self._text(tokenizer, p, completion_text(c)) for p, c in zip(prompts, completions, strict=True)]
            for i in range(0, len(texts), self.batch_size):
                form = {"padding": True, "truncation": True, "return_tensors": "pt"}
                form["add_special_tokens"] = not tokenizer.chat_template  # a template writes its own
                batch = tokenizer(texts[i : i + self.batch_size], **form)
                scores += model(**batch.to(model.device)).logits[:, 0].float().tolist()
        return [score if math.isfinite(score) else None for score in scores]

    def _load(self):
        import torch
        from transformers import AutoModelForSequenceClassification, AutoTokenizer

        if not self.model:
            raise ValueError('got no model; expected a name or folder; try reward_model.configure(model="...")')
        sides = {"truncation_side": "left", "padding_side": "right", "model_max_length": self.max_length}
        tokenizer = AutoTokenizer.from_pretrained(self.model, **sides)
        rank = os.environ.get("LOCAL_RANK") if torch.cuda.is_available() else None  # of a process with its own GPU
        device = f"cuda:{rank}" if rank and self.device == "auto" else self.device
        options = {"device_map": device, "trust_remote_code": False, "output_loading_info": True}
        model, report = AutoModelForSequenceClassification.from_pretrained(self.model, **options)
        if missing := sorted(report["missing_keys"]):
            raise ValueError(f"got {self.model}, which lacks {missing[0]}; expected a reward model with a trained head")
        tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
        model.config.pad_token_id = tokenizer.pad_token_id  # it scores the last token that is not padding
        return tokenizer, model.eval().requires_grad_(False)

    def _text(self, tokenizer, prompt, text: str) -> str:
        turns = [{"role": "user", "content": prompt or ""}] if isinstance(prompt, str | None) else list(prompt)
        turns.append({"role": "assistant", "content": text})
        whole = tokenizer.chat_template and tokenizer.apply_chat_template(turns, tokenize=False)
        return (whole or completion_text(turns, ())).encode("utf-8", "replace").decode()


reward_model = RewardModel()
