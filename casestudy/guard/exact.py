"""The exact guard: it reads the bytes at the yield, and again when the last view dies.

A tensor that is still held when the next one is asked for, by more than the loops' own variables,
is *kept*. A kept one whose bytes have changed is a *suspect*: as a rule its holder is found, and
that settles it. Iterators written in C, such as `enumerate`, hold on to what they returned last
for a moment, invisibly; a suspect that dies before anyone can have read it is let off.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from itertools import islice
from types import FrameType
from typing import Any, NamedTuple

import torch

from casestudy.guard import holders
from casestudy.guard.holders import Holder
from casestudy.guard.loops import NONE, References, beyond_loops, is_handing_on
from casestudy.guard.memory import Digest, Region, check_access, mark
from casestudy.guard.rewrap import rewrap
from casestudy.guard.watch import Guard, Item, Lent, OnStale

NEAREST = 16  # so many of the waiting frames can be the one that lets go


class _Kept(NamedTuple):
    """A tensor that somebody keeps.

    version: how often torch has written into it so far. witness: shares that count, no memory.
    as_view: whether by a view, which cannot be the passing hold of an iterator written in C.
    """

    lent: Lent
    as_view: bool
    version: int | None
    witness: torch.Tensor | None


class _Suspect(NamedTuple):
    """yields: how many there were when its bytes were seen to have changed."""

    lent: Lent
    as_view: bool
    yields: int


class ExactGuard(Guard[Item]):
    """See `guard`."""

    def __init__(
        self,
        iterator: Iterable[Item],
        on_stale: OnStale,
        digest: Digest,
        *,
        looks_for_holders: bool = True,
    ) -> None:
        check_access()
        super().__init__(iterator, on_stale, looks_for_holders=looks_for_holders)
        self._digest = digest
        self._current: Lent | None = None
        self._kept: dict[int, _Kept] = {}
        self._suspects: dict[int, _Suspect] = {}
        self._waiting: dict[int, int] = {}  # where the waiting frames are, by their ids
        self._pair: Any = ("", rewrap(torch.empty(1)))
        self._unheld = self._references()  # as many there are when nobody else has any

    def _held(self) -> list[Lent]:
        current = [self._current] if self._current else []
        kept = [each.lent for each in list(self._kept.values())]
        suspects = [each.lent for each in list(self._suspects.values())]
        return [*current, *kept, *suspects, *self._found]

    def _mark(self, region: Region) -> int | None:
        return mark(region, self._digest)

    def _handed_out(self, lent: Lent, pair: Item) -> None:
        self._current = lent
        self._pair = pair

    def _before(self, frame: FrameType) -> None:
        self._settle(frame)
        for suspect in list(self._suspects.values()):
            lent = suspect.lent
            holder = self._search([lent], frame, besides_loops=False).get(lent.index)
            if holder or len(self._yields) > suspect.yields:
                self._convict(lent, holder)

    def _settle(self, frame: FrameType) -> None:
        """The current tensor's own step is over: it is kept, or nobody will read it again."""
        lent = self._current
        if lent is None or self._pair is None:  # what came last could not be watched
            return
        references = self._beyond_loops(frame)
        if references.are_any:
            kept = _kept(lent, self._pair[1], references.are_views)
            if kept.version:  # the consumer has written into it, as it may
                lent.mark = self._mark(lent.region)
            self._kept[lent.index] = kept
        self._pair = None

    def _beyond_loops(self, frame: FrameType) -> References:
        found = self._references()
        if found == self._unheld:
            return NONE
        beyond = References(*(now - idle for now, idle in zip(found, self._unheld, strict=True)))
        return beyond_loops(frame, self._pair, beyond)

    def _references(self) -> tuple[int, int, int, int, int]:
        storage = self._pair[1].untyped_storage()
        return (
            sys.getrefcount(self._pair),
            sys.getrefcount(self._pair[1]),
            sys.getrefcount(storage),
            torch._C._storage_Use_Count(storage._cdata),
            self._pair[1]._use_count(),
        )

    def _after(self, frame: FrameType) -> None:
        if not self._kept and not self._suspects:
            return
        # the newest is read next, the oldest lies where a buffer is filled first
        kept = self._kept
        ends = [kept[next(iter(kept))], kept[next(reversed(kept))]] if kept else []
        if any(self._has_changed(each) for each in ends):
            self._suspect(self._changed())
            self._look_for_holders(frame)
        self._waiting = {id(each): each.f_lasti for each in islice(holders.callers(frame), NEAREST)}

    def _changed(self) -> list[Lent]:
        kept = list(self._kept.values())  # others may let go meanwhile
        return [each.lent for each in kept if self._has_changed(each)]

    def _has_changed(self, kept: _Kept) -> bool:
        lent = kept.lent
        storage = lent()
        if storage is not None and _has_moved(lent, storage):
            return False  # as `share_memory_` does; it is nobody else's any more
        seen = self._mark(lent.region)
        if seen == lent.mark:
            return False
        version = kept.witness._version if kept.witness is not None else None
        if version == kept.version or self._is_written_over(lent):
            return True
        lent.mark = seen  # its holder has written into it
        if lent.index in self._kept:
            self._kept[lent.index] = kept._replace(version=version)
        return False

    def _is_written_over(self, lent: Lent) -> bool:
        device, start, stop, _ = lent.region
        later = (region for _, region, _ in islice(self._yields, lent.index + 1, None))
        return any(on == device and low < stop and start < high for on, low, high, _ in later)

    def _suspect(self, lents: list[Lent]) -> None:
        for lent in lents:
            kept = self._kept.pop(lent.index, None)
            if kept:
                self._suspects[lent.index] = _Suspect(lent, kept.as_view, len(self._yields))

    def _look_for_holders(self, frame: FrameType) -> None:
        now = len(self._yields)
        fresh = [each.lent for each in self._suspects.values() if each.yields == now]
        for index, holder in self._search(fresh, frame, besides_loops=True).items():
            self._convict(self._suspects[index].lent, holder)

    def _convict(self, lent: Lent, holder: Holder | None) -> None:
        self._suspects.pop(lent.index, None)
        seen = self._mark(lent.region)
        self._note(lent, "freed" if seen is None else "overwritten", holder)

    def _died(self, lent: Lent, frame: FrameType) -> None:
        super()._died(lent, frame)
        kept = self._kept.pop(lent.index, None)
        suspect = self._suspects.pop(lent.index, None)
        is_held = suspect and not self._took_it_only(suspect, frame)
        if is_held or (kept and self._has_changed(kept)):
            self._convict(lent, holders.letting_go(frame))

    def _took_it_only(self, suspect: _Suspect, frame: FrameType) -> bool:
        position = self._waiting.get(id(frame))
        return position is not None and is_handing_on(
            frame, position, or_writes_anew=not suspect.as_view
        )

    def _ended(self, frame: FrameType) -> None:
        self._suspect(self._changed())
        now = len(self._yields)
        open_cases = [each.lent for each in self._suspects.values() if each.yields == now]
        last = self._current
        if last is not None and last.index not in self._suspects and self._outlived_its_bytes(last):
            open_cases.append(last)
        found: dict[int, Holder | None] = {}
        if open_cases:
            found |= self._holders(open_cases, frame, ended=True)
        hidden = {each.index: each.tensor() for each in open_cases if each.index not in found}
        if hidden:
            found |= holders.containers(hidden, frame)
        for index, suspect in list(self._suspects.items()):
            if suspect.as_view or index not in found or found[index]:
                self._convict(suspect.lent, found.get(index))
        if last is not None and found.get(last.index) and not last.finding:
            self._convict(last, found[last.index])
        self._kept.clear()
        self._suspects.clear()

    def _outlived_its_bytes(self, lent: Lent) -> bool:
        storage = lent()
        if storage is None or _has_moved(lent, storage):
            return False
        return self._mark(lent.region) != lent.mark


class KeepingGuard(ExactGuard[Item]):
    """Keeps everything that it yields: whatever is overwritten was not the consumer's to keep."""

    def __init__(self, iterator: Iterable[Item], on_stale: OnStale, digest: Digest) -> None:
        super().__init__(iterator, on_stale, digest, looks_for_holders=False)
        self.kept: list[Item] = []

    def __next__(self) -> Item:
        item = super().__next__()
        self.kept.append(item)
        return item


def _has_moved(lent: Lent, storage: torch.UntypedStorage) -> bool:
    return storage.data_ptr() != lent.region[1]


def _kept(lent: Lent, tensor: torch.Tensor, as_view: bool) -> _Kept:
    if tensor.is_inference():  # torch does not count the writes into these
        return _Kept(lent, as_view, None, None)
    witness = tensor.detach()
    witness.data = torch.empty(0, dtype=tensor.dtype)
    return _Kept(lent, as_view, witness._version, witness)
