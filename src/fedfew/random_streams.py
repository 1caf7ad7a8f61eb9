"""Counted randomness: every draw is a pure function of the numbers that name it, not of what was drawn before.

The order in which client 7 sees its samples for model 2 in epoch 0 of round 31 is a hash of (seed, 31, 7, 2, 0). So any engine,
any chunking of the clients, a resumed run and a run on Flower all see the same batches, on the CPU and on a GPU.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

# What a draw is for: keeps the streams apart that would otherwise share their numbers.
INIT, PARTICIPATION, BATCH_ORDER, DROPOUT, AUGMENT, TIES, MIXUP, ATTACK, ATTACKERS, DP_NOISE, UNSEEN = range(11)

_GOLDEN = 0x9E3779B97F4A7C15 - (1 << 64)  # the constants of splitmix64, as signed 64-bit numbers
_MIX_1 = 0xBF58476D1CE4E5B9 - (1 << 64)
_MIX_2 = 0x94D049BB133111EB - (1 << 64)
_ALL_BITS = (1 << 64) - 1
_POSITION_BITS = 24  # of 63; where two samples draw the same in the other 39, the first comes first


def count(*numbers: int | Tensor) -> Tensor:
    """A 64-bit hash of the numbers (ints or int64 tensors, broadcast against each other)."""
    state: int | Tensor = 0
    for number in numbers:
        mixed = state + number
        state = _splitmix(mixed) if isinstance(mixed, Tensor) else _splitmix_of_one(mixed)
    return state if isinstance(state, Tensor) else torch.tensor(state)


def uniform(*numbers: int | Tensor) -> Tensor:
    """Numbers in [0, 1), float32, with 24 random bits each."""
    return _shift(count(*numbers), 40).to(torch.float32) * 2.0**-24


def normal(*numbers: int | Tensor) -> Tensor:
    """Standard normal numbers, float64, by Box and Muller."""
    key = count(*numbers)
    return box_muller(*(_shift(count(key, part), 11).double() for part in (0, 1)))


def box_muller(first: Tensor, second: Tensor) -> Tensor:
    """A standard normal number from two whole numbers of 53 random bits, as float64."""
    return (-2 * ((first + 1) * 2.0**-53).log()).sqrt() * (2 * torch.pi * second * 2.0**-53).cos()


def order(seed: int, round: int, clients: Tensor, models: int, epoch: int, counts: Tensor, longest: int) -> Tensor:
    """``[C, K, longest]``: for each client and model a permutation of ``range(counts[i])``, then the left-over indices."""
    return permutations(order_keys(seed, round, clients, models, epoch), counts, longest)


def order_keys(seed: int, round: int, clients: Tensor, models: int, epoch: int) -> Tensor:
    """``[C, K]``: what the permutations of an epoch are drawn from."""
    epochs = int(count(BATCH_ORDER, seed, round, epoch))
    if clients.device.type == "cpu":
        identities: NDArray[Any] = clients.numpy().view(np.uint64)
        of_clients = _splitmix_in_numpy(identities[:, None] + np.uint64(_splitmix_of_one(epochs) & _ALL_BITS))
        return torch.from_numpy(_splitmix_in_numpy(of_clients + np.arange(models, dtype=np.uint64)).view(np.int64))
    return count(epochs, clients[:, None], torch.arange(models, device=clients.device))


def permutations(keys: Tensor, counts: Tensor, longest: int) -> Tensor:
    """``[C, K, longest]``: for each key ``[C, K]`` a permutation of ``range(counts[i])``, then the left-over indices.

    The last bits of each number drawn are replaced by its position, so that sorted numbers hold the order: numpy sorts ten times
    as fast as it sorts by a key (argsort). These are 24 bits however many samples there are (up to 16 million), or an order would
    depend on which other clients are in the same call.
    """
    last_bits = (1 << max(_POSITION_BITS, (longest - 1).bit_length())) - 1
    if keys.device.type == "cpu":
        return torch.from_numpy(_permutations_in_numpy(keys.numpy().view(np.uint64), counts.numpy(), longest, last_bits))
    position = torch.arange(longest, device=counts.device)
    drawn = _shift(count(keys[..., None], position), 1)
    drawn = drawn.masked_fill(position >= counts[:, None, None], torch.iinfo(torch.int64).max)
    return drawn.bitwise_and_(~last_bits).bitwise_or_(position).sort(dim=-1).values.bitwise_and_(last_bits)


def _permutations_in_numpy(
    keys: NDArray[np.uint64], counts: NDArray[np.int64], longest: int, last_bits: int
) -> NDArray[np.int64]:
    """The same; for so few numbers numpy takes a fraction of the time."""
    position = np.arange(longest, dtype=np.uint64)
    drawn = _splitmix_in_numpy(_splitmix_in_numpy(keys[..., None]) + position)
    drawn >>= np.uint64(1)
    if counts.min() < longest:
        np.copyto(drawn, np.uint64(np.iinfo(np.int64).max), where=position >= counts[:, None, None].view(np.uint64))
    drawn &= np.uint64(_ALL_BITS - last_bits)
    drawn |= position
    drawn.sort(-1)
    drawn &= np.uint64(last_bits)
    return drawn.view(np.int64)


def participants(seed: int, round: int, clients: Tensor, share: float) -> Tensor:
    """Positions of the ``share`` of clients (at least one) that take part in a round, ascending."""
    if share >= 1:
        return torch.arange(len(clients))
    drawn = max(1, round_half_up(share * len(clients)))
    keys = _shift(count(count(PARTICIPATION, seed, round), clients.cpu()), 1)
    return keys.argsort(stable=True)[:drawn].sort().values


def round_half_up(x: float) -> int:
    return int(x + 0.5)


def _splitmix(x: Tensor) -> Tensor:
    x = x + _GOLDEN
    x.bitwise_xor_(_shift(x, 30)).mul_(_MIX_1)  # in place: many samples' numbers are read and written fewer times
    x.bitwise_xor_(_shift(x, 27)).mul_(_MIX_2)
    return x.bitwise_xor_(_shift(x, 31))


def _splitmix_in_numpy(x: NDArray[Any]) -> NDArray[Any]:
    """The same of numpy's unsigned numbers, of which a shift takes one operation."""
    x = x + np.uint64(_GOLDEN & _ALL_BITS)
    x ^= x >> np.uint64(30)
    x *= np.uint64(_MIX_1 & _ALL_BITS)
    x ^= x >> np.uint64(27)
    x *= np.uint64(_MIX_2 & _ALL_BITS)
    x ^= x >> np.uint64(31)
    return x


def _splitmix_of_one(x: int) -> int:
    """The same of a plain number: a tensor of one costs fifty times as much."""
    x = (x + _GOLDEN) & _ALL_BITS
    x = ((x ^ (x >> 30)) * _MIX_1) & _ALL_BITS
    x = ((x ^ (x >> 27)) * _MIX_2) & _ALL_BITS
    x ^= x >> 31
    return x - (x >> 63 << 64)


def _shift(x: Tensor, bits: int) -> Tensor:
    """Logical shift to the right (torch's own keeps the sign)."""
    return (x >> bits).bitwise_and_((1 << (64 - bits)) - 1)
