"""Rows dealt out to processes, and their gradients summed in buckets while the last backward pass goes on."""

import pytest
import torch
from conftest import patch_rooms, side_by_side

import parts.learning.optimizer
from parts.foundation.processes import dealt
from parts.learning.optimizer import sum_gradients
from parts.networks.batches import collate, own_rows
from parts.sampling.rollouts import shared_out


def loads(sizes: list[int], shares: list[list[int]]) -> list[int]:
    """Sum of sizes of each share."""
    return [sum(sizes[row] for row in share) for share in shares]


def test_the_longest_goes_first_to_whom_has_least_and_rows_of_one_kind_stay_together():
    assert dealt([7, 5, 4, 3, 1], [0, 1, 2, 3, 4], 2) == [[0, 3], [1, 2, 4]]  # 7; 5, 4; 7 + 3; 9 + 1
    assert sorted(dealt([2, 2, 2], [0, 0, 0], 4)) == [[], [0], [1], [2]]
    assert dealt([], [], 3) == [[], [], []]
    assert dealt([5, 5, 5, 5, 5, 5, 5, 5], [0, 1, 0, 1, 2, 2, 3, 3], 2) == [[0, 2, 4, 5], [1, 3, 6, 7]]
    shares = dealt([5] * 12, [0] * 4 + [1] * 4 + [2] * 4, 2)  # three of a size: one of them is split
    assert loads([5] * 12, shares) == [30, 30]
    assert sum(len({row // 4 for row in share}) for share in shares) == 4, "two kinds on each process, one on both"


@pytest.mark.parametrize("processes", [1, 2, 3, 8])
def test_every_row_is_dealt_once_and_evenly(processes):
    draw = torch.Generator().manual_seed(processes)
    for _ in range(20):
        sizes = torch.randint(1, 400, (96,), generator=draw).tolist()
        shares = dealt(sizes, [row // 8 for row in range(96)], processes)
        assert sorted(row for share in shares for row in share) == list(range(96))
        assert max(loads(sizes, shares)) <= 1.05 * max(sum(sizes) / processes + 1, *sizes)
        assert max(map(len, dealt([1] * 96, [row // 8 for row in range(96)], processes, slack=0))) == 96 // processes


def test_rows_of_a_batch_go_by_their_tokens(monkeypatch):
    """Two prompts of two rows each, one of them long: 3 + 40 and 3 + 38 tokens, 4 + 1 and 4 + 2."""
    sizes = [([5, 6, 7], 40), ([5, 6, 7], 38), ([5, 6, 7, 8], 1), ([5, 6, 7, 8], 2)]
    rows = [{"prompt_ids": p, "response_ids": [9] * n, "rollout_logprobs": [0.0] * n} for p, n in sizes]
    batch, found = collate(rows, 0, "cpu"), {}
    for rank in range(2):
        patch_rooms(monkeypatch, "world", lambda rank=rank: (rank, 2))
        found[rank] = own_rows(batch, torch.tensor([0, 1, 2, 3])), own_rows(batch, [2, 3]), own_rows(batch, [])
    assert found == {0: ([0, 2], [3], []), 1: ([1, 3], [2], [])}  # 43 + 5, 41 + 6: 43 beside 41 + 11 is too much


class Network(torch.nn.Module):
    """Three layers, one of which only some rows reach, one that none does, and an output layer."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        sizes = {"first": (6, 6), "some": (6, 6), "never": (6, 6), "head": (6, 40)}
        for name, size in sizes.items():
            setattr(self, name, torch.nn.Linear(*size))

    def forward(self, x):
        x = torch.tanh(self.first(x))
        return torch.tanh(self.some(x)) if x.sum() > 0 else x


def backward(network: Network, x) -> None:
    network.head(network(x)).square().sum().backward()


@pytest.mark.parametrize("pieces", [(3, 3), (1, 2), (2, 0), (0, 0)], ids=str)
def test_sums_are_those_of_one_process(monkeypatch, pieces):
    """Also where a process has fewer micro-batches or none, does not reach a layer, and no one reaches one."""
    monkeypatch.setattr(parts.learning.optimizer, "BUCKET_BYTES", 100)  # each layer's weight a bucket of its own
    draw = torch.Generator().manual_seed(1)
    xs = [[torch.randn(4, 6, generator=draw) - rank for _ in range(count)] for rank, count in enumerate(pieces)]
    whole, networks = Network(), [Network(), Network()]
    for x in xs[0] + xs[1]:
        backward(whole, x)

    def work(rank: int) -> None:
        for x in xs[rank]:
            backward(networks[rank], x)
        sum_gradients([networks[rank]])

    side_by_side(monkeypatch, work)
    for name, p in whole.named_parameters():
        for network in networks:
            own = network.get_parameter(name).grad
            assert (own is None) == (p.grad is None), name
            assert p.grad is None or torch.allclose(own, p.grad, rtol=1e-6, atol=1e-6), name
    assert whole.never.weight.grad is None


def test_a_rollout_keeps_prompts_together_and_the_order_of_rows(monkeypatch):
    """Six prompts of 4 rows for two processes: three prompts each, with their noise, and the batch in its order."""
    rows, noise, asked = [{"prompt": str(i // 4), "row": i} for i in range(24)], torch.arange(24.0)[:, None].numpy(), {}

    def work(rank: int) -> list:
        def make(mine, draws):
            asked[rank] = [row["prompt"] for row in mine]
            return [(row["row"], float(own[0])) for row, own in zip(mine, draws, strict=True)]

        return shared_out(make, rows, noise)

    first, second = side_by_side(monkeypatch, work)
    assert first == second == [(i, float(i)) for i in range(24)]
    assert [len(asked[rank]) for rank in range(2)] == [12, 12] and not {*asked[0]} & {*asked[1]}
