"""Answers of a model of transformers in conversations: what was read and said up to a turn is not read again."""

import functools

from parts.networks.batches import left_pad
from parts.networks.key_cache import KeptTexts, continued
from programs.evaluation.tasks import Request


class TurnAnswers:
    """`generate` of a LocalModel for the turns of conversations.

    A turn that is no single batch, or does not fit memory as one, is read whole, and nothing is kept of it.
    """

    def __init__(self, model):
        self.model, self.kept = model, KeptTexts()

    def generate(self, requests: list[Request], done, numbers: list[int]) -> None:
        """As LocalModel.generate; `numbers` say which conversation each request is of, the same in each turn."""
        import torch

        begun = self.kept.begins({number: r.ids for number, r in zip(numbers, requests, strict=True)})

        def run(rows: list[int]) -> None:
            kept, self.kept = self.kept, KeptTexts()
            picked, of_talks = [requests[row] for row in rows], [numbers[row] for row in rows]
            if len(rows) == len(requests):
                outputs = self.whole_batch(kept if begun else None, picked, of_talks, prefix)
            else:
                outputs = self.model.generate_batch(picked, prefix)
            for row, output in zip(rows, outputs, strict=True):
                done(row, output)

        with torch.inference_mode():
            prefix = ([], None) if begun else self.model.shared_prefix([r.ids for r in requests])
            self.model.in_batches([len(r.ids) + r.limit for r in requests], run)

    def whole_batch(self, kept: KeptTexts | None, requests: list[Request], numbers: list[int], prefix) -> list[dict]:
        """Outputs of a turn in one batch, of which keys and values are kept; `kept` are those to go on with."""
        asked = dict(zip(numbers, requests, strict=True))
        if kept:
            order, *after = continued(kept, {number: r.ids for number, r in asked.items()}, self.read)
        else:
            order, after = numbers, self.model.prefill(requests, prefix)
        logits, mask, cache = after
        del after
        keep = functools.partial(self.kept.take, order, mask)
        sampled = self.model.sample([asked[number] for number in order], logits, mask, cache, keep)
        found = dict(zip(order, sampled, strict=True))
        self.kept.ids = {number: asked[number].ids + ids[:-1] for number, ids in found.items()}
        return [self.model.finished(asked[number], found[number]) for number in numbers]

    def read(self, new: list[list[int]], mask, cache) -> tuple:
        """(logits [B, V] after new tokens of each row, mask [B, T] of all, cache)."""
        import torch

        ids, new_mask = left_pad(new, self.model.pad_id, self.model.device)
        mask = torch.cat([mask, new_mask], dim=1)
        logits, cache = self.model.forward(ids, mask, cache)
        return logits[:, -1], mask, cache
