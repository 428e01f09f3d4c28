"""The cheap guard: it looks at no bytes, and reports what is still held a full step later."""

from __future__ import annotations

from types import FrameType

from casestudy.guard.memory import Region
from casestudy.guard.watch import Guard, Item, Lent


class KeepGuard(Guard[Item]):
    """See `guard`. While one tensor is used the one before it must be gone."""

    _previous: Lent | None = None
    _current: Lent | None = None

    def _held(self) -> list[Lent]:
        return [*(each for each in (self._previous, self._current) if each), *self._found]

    def _mark(self, region: Region) -> int | None:
        return None

    def _handed_out(self, lent: Lent, pair: Item) -> None:
        self._previous, self._current = self._current, lent

    def _before(self, frame: FrameType) -> None:
        lent = self._previous
        if lent is None or lent() is None:
            return
        self._note(lent, "kept", self._search([lent], frame, besides_loops=False).get(lent.index))

    def _after(self, frame: FrameType) -> None:
        pass

    def _ended(self, frame: FrameType) -> None:
        pass
