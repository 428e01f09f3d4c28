"""The cheap guard: it looks at no bytes, and reports what is still held a full step later."""

from __future__ import annotations

from collections.abc import Iterable
from types import FrameType

from casestudy.guard.memory import Region
from casestudy.guard.watch import Guard, Item, Lent, OnStale


class KeepGuard(Guard[Item]):
    """See `guard`. While one tensor is used the one before it must be gone."""

    def __init__(self, iterator: Iterable[Item], on_stale: OnStale) -> None:
        super().__init__(iterator, on_stale)
        self._recent: dict[int, Lent] = {}  # the last two yields at most

    def _held(self) -> list[Lent]:
        return [*self._recent.values(), *self._found]

    def _mark(self, region: Region) -> int | None:
        return None

    def _handed_out(self, lent: Lent, pair: Item) -> None:
        self._recent[lent.index] = lent

    def _before(self, frame: FrameType) -> None:
        lent = self._recent.pop(len(self._yields) - 2, None)
        if lent is None or lent() is None:
            return
        holder = self._search([lent], frame, besides_loops=True).get(lent.index)
        if holder or not self._is_in_a_loop(lent, frame):
            self._note(lent, "kept", holder)

    def _is_in_a_loop(self, lent: Lent, frame: FrameType) -> bool:
        """Whether a loop that skips some tensors still waits with it in a variable of its own."""
        return lent.index in self._holders([lent], frame, ended=None)

    def _after(self, frame: FrameType) -> None:
        pass

    def _ended(self, frame: FrameType) -> None:
        pass
