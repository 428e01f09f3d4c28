"""A lending iterator in plain Python, with the streamer's contract and without its files.

Each yielded tensor has a storage object of its own over memory that is used again: it is valid
until the iterator advances `slots` times, and nothing raises when it is read later. For tests of
consumers, for machines without the streamer, and for exercises. Needs torch alone; the same inputs
give the same bytes at the same moments.
"""

from __future__ import annotations

import random
from collections.abc import Generator, Iterable, Mapping
from typing import Literal, get_args

import torch

from casestudy.checkpoint import DTYPES
from casestudy.errors import CaseStudyError

Order = Literal["file", "shuffled"]
OnRecycle = Literal["overwrite", "quarantine"]
NamedTensor = tuple[str, torch.Tensor]

POISON = 0xFF  # all bits set: a NaN in every float dtype but float8_e4m3fnuz, -1 in signed integers
_RANK = {dtype: rank for rank, dtype in enumerate(DTYPES.values())}


def lend(
    named_tensors: Mapping[str, torch.Tensor] | Iterable[NamedTensor],
    *,
    slots: int = 1,
    order: Order = "file",
    on_recycle: OnRecycle = "overwrite",
    seed: int = 0,
) -> Generator[NamedTensor, None, None]:
    """Yields (name, tensor) on the CPU; each tensor is lent until `slots` more have been yielded.

    named_tensors: strided, of any dtype and shape; read once, at the first `next()`, never written.
    slots: how many buffers take turns, each as large as the largest tensor.
    order: "file" as safetensors would write them, wide dtypes first and then by name, so that a
        scale and its weight are far apart; "shuffled" as the streamer may deliver, by `seed`.
    on_recycle: "overwrite" fills the buffer anew, as the streamer does; "quarantine" takes a fresh
        buffer and sets every bit of the old one, which is never filled again: stale floats turn
        NaN and stale signed integers -1, also for a consumer that waits for a pair, whose bytes
        would have been other plausible ones by then.

    Raises `CaseStudyError` for settings that make no sense.
    """
    if slots < 1:
        raise CaseStudyError(f"{slots} slots hold no tensor; use at least one.")
    for setting, allowed in ((order, Order), (on_recycle, OnRecycle)):
        if setting not in get_args(allowed):
            choices = " or ".join(get_args(allowed))
            raise CaseStudyError(f"{setting!r} is not a setting of lend; use {choices}.")
    return _lent(named_tensors, slots, order, on_recycle, seed)


def _lent(
    named_tensors: Mapping[str, torch.Tensor] | Iterable[NamedTensor],
    slots: int,
    order: Order,
    on_recycle: OnRecycle,
    seed: int,
) -> Generator[NamedTensor, None, None]:
    pairs = _ordered(named_tensors, order, seed)
    size = max((tensor.nbytes for _, tensor in pairs), default=0)
    buffers = [bytearray(size) for _ in range(slots)]
    for turn, (name, tensor) in enumerate(pairs):
        slot = turn % slots
        if on_recycle == "quarantine" and turn >= slots and size:
            torch.frombuffer(buffers[slot], dtype=torch.uint8).fill_(POISON)
            buffers[slot] = bytearray(size)
        yield name, _placed(tensor, buffers[slot])


def _ordered(
    named_tensors: Mapping[str, torch.Tensor] | Iterable[NamedTensor], order: Order, seed: int
) -> list[NamedTensor]:
    pairs = list(named_tensors.items() if isinstance(named_tensors, Mapping) else named_tensors)
    pairs.sort(key=lambda pair: (_RANK.get(pair[1].dtype, -1), pair[0]))
    if order == "shuffled":
        random.Random(seed).shuffle(pairs)
    return pairs


def _placed(tensor: torch.Tensor, buffer: bytearray) -> torch.Tensor:
    """Copies `tensor` to the front of `buffer`; returns a tensor that lies there."""
    if not tensor.numel():
        return torch.empty(tensor.shape, dtype=tensor.dtype)
    flat = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous().view(-1)
    placed = torch.frombuffer(buffer, dtype=torch.uint8, count=tensor.nbytes)
    placed.copy_(flat.view(torch.uint8))
    return placed.view(tensor.dtype).view(tensor.shape)
