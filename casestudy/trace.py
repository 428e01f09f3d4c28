"""What an iterator yielded: name, place, fingerprint, and for how long someone held on to it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from casestudy.aliasing import ByteSpan, byte_span


@dataclass
class Step:
    """One yield. `last_held` is the last step during which anyone held the tensor's storage."""

    index: int
    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    span: ByteSpan
    digest: str
    last_held: int


@dataclass
class Trace:
    """The yields of one iterator in order."""

    steps: list[Step] = field(default_factory=list)

    def overwriters(self, step: Step) -> list[Step]:
        """The later yields that lie on `step`'s bytes, in order, whether or not anyone looks.

        Found by address. The streamer refills its buffer a request at a time, so the bytes may
        have changed up to a request before the first of these steps.
        """
        return [later for later in self.steps[step.index + 1 :] if later.span.overlap(step.span)]

    def stale(self) -> list[Step]:
        """The yields that were still held when their bytes were handed to another tensor."""
        return [
            step
            for step in self.steps
            if any(later.index <= step.last_held for later in self.overwriters(step))
        ]


def record(
    iterator: Iterable[tuple[str, torch.Tensor]],
) -> tuple[Iterator[tuple[str, torch.Tensor]], Trace]:
    """Wraps an iterator of (name, tensor); the trace fills while the wrapper is consumed.

    Holding is seen through the tensor's storage, so slices, `.numpy()` and `nn.Parameter` count.
    The consumer's own loop variable holds a tensor until the next one has arrived: that is not
    counted as holding it longer than its own step.
    """
    trace = Trace()
    return _recorded(iter(iterator), trace), trace


def digest(tensor: torch.Tensor) -> str:
    """16 hex digits that stand for the values of `tensor`, byte for byte (any dtype and strides).

    Raises `ValueError` for tensors without addresses: sparse ones and the meta device.
    """
    byte_span(tensor)
    flat = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous().view(-1)
    octets = flat.view(torch.uint8).numpy().data if flat.numel() else b""
    return hashlib.blake2b(octets, digest_size=8).hexdigest()


def _recorded(
    iterator: Iterator[tuple[str, torch.Tensor]], trace: Trace
) -> Iterator[tuple[str, torch.Tensor]]:
    alive: list[tuple[Step, StorageWeakRef]] = []
    while True:
        alive = _still_held(alive, len(trace.steps) - 1)
        try:
            name, tensor = next(iterator)
        except StopIteration:
            return
        step = _step(len(trace.steps), name, tensor)
        trace.steps.append(step)
        alive.append((step, StorageWeakRef(tensor.untyped_storage())))
        yield name, tensor
        del tensor


def _step(index: int, name: str, tensor: torch.Tensor) -> Step:
    return Step(
        index,
        name,
        tensor.dtype,
        tuple(tensor.shape),
        byte_span(tensor),
        digest(tensor),
        last_held=index,
    )


def _still_held(
    alive: list[tuple[Step, StorageWeakRef]], now: int
) -> list[tuple[Step, StorageWeakRef]]:
    """Drops the dead and notes, for the living, that step `now` has seen them."""
    living = [(step, storage) for step, storage in alive if not storage.expired()]
    for step, _ in living:
        step.last_held = now
    return living
