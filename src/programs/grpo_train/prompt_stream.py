"""The data as TRL sees it, one long pass: in an order fixed at the start, or drawn by pass rates rollout by rollout."""

from parts.data.pass_band import draw_in_band, next_rates
from parts.foundation.messages import need
from parts.foundation.processes import gather_rows
from programs.grpo_train.batch_plan import BatchPlan, prompt_order
from programs.grpo_train.settings import Config


class BandedPrompts:
    """Which row stands at a position of the data, with --keep_between.

    TRL's loader fetches positions in order, up to a rollout ahead of the step. So a rollout's rows are drawn by the
    pass rates from before the rollout that precedes it, whether they have been fetched by then or not; every process
    draws the same.
    """

    def __init__(self, config: Config, count: int, per_rollout: int):
        self.config, self.count, self.per_rollout = config, count, per_rollout
        self.rates, self.drawn, self.begin = {}, [], 0  # drawn: the rows at positions from `begin` on
        self.next, self.done = 0, 0  # of the stream of passes; positions whose completions are scored

    def row(self, position: int) -> int:
        """The row at a position."""
        while position >= self.begin + len(self.drawn):
            shuffled = self.config.shuffle_dataset
            rows, self.next = draw_in_band(self.config, self.count, self.next, self.per_rollout, self.rates, shuffled)
            self.drawn += rows
        return self.drawn[position - self.begin]

    def learn(self, seen: list[tuple[int, bool | None]]) -> None:
        """Move the rates by what the processes saw of a step's completions."""
        seen = gather_rows(seen)
        self.done += len(seen) // self.config.num_generations
        self.row(self.done + self.per_rollout - 1)  # the next rollout's, by the rates so far
        self.rates = next_rates(self.rates, seen)

    def state_dict(self) -> dict:
        """All of it; of the rows those of the last two rollouts, with which a resume begins."""
        kept = self.drawn[-2 * self.per_rollout :]
        where = {"next": self.next, "done": self.done, "begin": self.begin + len(self.drawn) - len(kept)}
        return {"rates": self.rates, "drawn": kept, **where}

    def load_state_dict(self, saved: dict) -> None:
        """Go on from a saved state."""
        for name, value in saved.items():
            setattr(self, name, value)


def trl_data(config: Config, sent: list[str], plan: BatchPlan, band: BandedPrompts | None):
    """All positions of a run as a data set for TRL, which keeps its order: a prompt and the number of its row.

    Args:
        sent: what TRL has for the prompt of each row.
    """
    from datasets import Dataset

    length = plan.rollouts * plan.prompts_per_rollout
    if not band:
        data = Dataset.from_dict({"prompt": sent, "row": list(range(len(sent)))})
        return data.select(prompt_order(config, len(sent), length))
    data = Dataset.from_dict({"position": list(range(length))})

    def drawn(batch: dict) -> dict:
        chosen = [band.row(position) for position in batch["position"]]
        return {"prompt": [sent[i] for i in chosen], "row": chosen}

    data.set_transform(drawn)
    return data


def check_loader(args) -> None:
    """Raise UserError where rows would be fetched by other processes, or long before they are due."""
    need(
        not args.dataloader_num_workers and not args.accelerator_config.dispatch_batches,
        f"got --keep_between with dataloader_num_workers {args.dataloader_num_workers}, dispatch_batches "
        f"{args.accelerator_config.dispatch_batches}; expected prompts that are drawn when they are due; try without",
    )
