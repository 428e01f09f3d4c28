"""What an iterator yielded: name, place, fingerprint, and what became of it while it was held."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from ctypes import string_at
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from casestudy.aliasing import ByteSpan, byte_span, first_overwriters

SNAPSHOT_NBYTES = 64


@dataclass
class Step:
    """One yield, and what became of its memory while anyone held it.

    last_held: the last step during which anyone held the tensor's storage.
    snapshots: the first bytes of the tensor's memory, as they were at each step from `index` to
        `last_held`; at most `snapshot_nbytes` of `record`.
    """

    index: int
    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    span: ByteSpan
    digest: str
    last_held: int
    snapshots: list[bytes]

    @property
    def changed_at(self) -> int | None:
        """The first step whose snapshot differs from the one at the yield."""
        ages = range(len(self.snapshots))
        changed = (age for age in ages if self.snapshots[age] != self.snapshots[0])
        return next((self.index + age for age in changed), None)


class Fate(NamedTuple):
    """What became of a yield's bytes.

    overwriter: the first later yield that lies on them, whether or not anyone looks.
    stale_from: the first step at which they were held and no longer its own, if there is one.
    """

    step: Step
    overwriter: Step | None
    stale_from: int | None


@dataclass
class Trace:
    """The yields of one iterator in order."""

    steps: list[Step] = field(default_factory=list)

    def overwriters(self, step: Step) -> list[Step]:
        """The later yields that lie on `step`'s bytes, in order, whether or not anyone looks.

        The same tensor yielded again, as tied weights are, overwrites nothing.
        """
        return [
            later
            for later in self.steps[step.index + 1 :]
            if later.span.overlap(step.span) and not _is_the_same(later, step)
        ]

    def fates(self) -> list[Fate]:
        """What became of each yield, in order.

        A yield is stale once a later one lies on its bytes, or once a snapshot shows other bytes,
        whichever comes first: the streamer refills its buffer a request at a time, so bytes can
        change up to a request before the yield that they now belong to.
        """
        first = first_overwriters([(step.span, step.digest) for step in self.steps])
        overwriters = [None if index is None else self.steps[index] for index in first]
        return [
            Fate(step, overwriter, _stale_from(step, overwriter))
            for step, overwriter in zip(self.steps, overwriters, strict=True)
        ]

    def stale(self) -> list[Step]:
        """The yields that were still held when their bytes became another tensor's."""
        return [fate.step for fate in self.fates() if fate.stale_from is not None]


def record(
    iterator: Iterable[tuple[str, torch.Tensor]], *, snapshot_nbytes: int = SNAPSHOT_NBYTES
) -> tuple[Iterator[tuple[str, torch.Tensor]], Trace]:
    """Wraps an iterator of (name, tensor); the trace fills while the wrapper is consumed.

    Holding is seen through the tensor's storage, so slices, `.numpy()` and `nn.Parameter` count.
    The consumer's own loop variable holds a tensor until the next one has arrived: that is not
    counted as holding it longer than its own step. So a tensor that is used in the very next step,
    and let go in it, is not seen to be held. Whoever holds the storage counts: a generator that
    yields slices of a buffer of its own holds them all.

    snapshot_nbytes: how many bytes of every held tensor are noted at every step.
    """
    trace = Trace()
    return _recorded(iter(iterator), trace, snapshot_nbytes), trace


def digest(tensor: torch.Tensor) -> str:
    """16 hex digits that stand for the values of `tensor`, byte for byte (any dtype and strides).

    Raises `ValueError` for tensors without addresses: sparse ones and the meta device.
    """
    byte_span(tensor)
    flat = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous().view(-1)
    octets = flat.view(torch.uint8).numpy().data if flat.numel() else b""
    return hashlib.blake2b(octets, digest_size=8).hexdigest()


class _Held(NamedTuple):
    """A yield and its storage, held weakly."""

    step: Step
    storage: StorageWeakRef
    offset: int
    nbytes: int

    def look(self, now: int) -> bool:
        """Notes that step `now` has seen it, and its bytes; False if nobody holds it."""
        if self.storage.expired():
            return False
        if now == self.step.index + len(self.step.snapshots):
            self.step.snapshots.append(self._read())
            self.step.last_held = now
        return True

    def _read(self) -> bytes:
        """The first bytes as they are now; the storage is held while they are read."""
        storage = torch.UntypedStorage._new_with_weak_ptr(self.storage.cdata)
        if storage.device.type == "cpu":
            return string_at(storage.data_ptr() + self.offset, self.nbytes)
        memory = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
        seen = memory[self.offset : self.offset + self.nbytes]
        return seen.cpu().numpy().tobytes()


def _recorded(
    iterator: Iterator[tuple[str, torch.Tensor]], trace: Trace, snapshot_nbytes: int
) -> Iterator[tuple[str, torch.Tensor]]:
    alive: list[_Held] = []
    while True:
        now = len(trace.steps)
        try:
            name, tensor = next(iterator)
        except StopIteration:
            return
        # the one before may be held by the consumer's loop variable only
        alive = [held for held in alive if held.step.index == now - 1 or held.look(now)]
        step = _step(now, name, tensor)
        trace.steps.append(step)
        alive.append(_held(step, tensor, snapshot_nbytes))
        yield name, tensor
        del tensor
        alive = [held for held in alive if held.look(now)]


def _step(index: int, name: str, tensor: torch.Tensor) -> Step:
    return Step(
        index,
        name,
        tensor.dtype,
        tuple(tensor.shape),
        byte_span(tensor),
        digest(tensor),
        last_held=index,
        snapshots=[],
    )


def _held(step: Step, tensor: torch.Tensor, snapshot_nbytes: int) -> _Held:
    storage = tensor.untyped_storage()
    offset = step.span.start - storage.data_ptr() if step.span.nbytes else 0
    held = _Held(step, StorageWeakRef(storage), offset, min(snapshot_nbytes, step.span.nbytes))
    held.look(step.index)
    return held


def _is_the_same(later: Step, step: Step) -> bool:
    return later.span == step.span and later.digest == step.digest


def _stale_from(step: Step, overwriter: Step | None) -> int | None:
    times = [step.changed_at, overwriter.index if overwriter else None]
    return min(
        (time for time in times if time is not None and time <= step.last_held), default=None
    )
