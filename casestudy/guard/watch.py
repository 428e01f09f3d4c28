"""`guard`: iterates as before, and finds every tensor that someone kept while its bytes changed."""

from __future__ import annotations

import sys
import warnings
import weakref
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from threading import RLock
from types import FrameType, TracebackType
from typing import Any, Literal, Self, TypeVar

import torch

from casestudy.aliasing import ByteSpan, first_overwriters
from casestudy.errors import CaseStudyError
from casestudy.guard import holders
from casestudy.guard.holders import Holder, Wanted
from casestudy.guard.loops import idle_variables, variables
from casestudy.guard.memory import Region
from casestudy.guard.rewrap import region, rewrap

OnStale = Literal["raise", "warn", "record"]
Why = Literal["overwritten", "freed", "kept"]
Item = TypeVar("Item", bound=Sequence[Any])

PAIRS = (tuple, list)
NOWHERE: Region = ("", 0, 0, None)
SEARCHES = 64  # so many are made for holders while the iterator runs; the rest at its end
FRUITLESS = 32  # one that finds nobody takes longest, and counts for so many
NEAR_ROOTS, NEAR_OBJECTS = 4, 400  # looked at when patience is gone
HEAP_READINGS = 8  # so many times the garbage collector is asked as well


@dataclass
class Stale:
    """A tensor that was kept.

    victim: its name. nbytes: its size in bytes.
    steps: how many times the iterator has advanced so far while it was held.
    why: "overwritten", "freed", or "kept" in the mode that looks at no bytes.
    overwriter: the first tensor yielded later whose bytes lie on the victim's, if there is one.
    held_by: who held it, as far as the interpreter can tell.
    """

    victim: str
    nbytes: int
    steps: int
    why: Why
    overwriter: str | None = None
    held_by: Holder | None = None

    def __str__(self) -> str:
        steps = f"{self.steps} step{'' if self.steps == 1 else 's'}"
        holder = self.held_by or "something the interpreter does not show"
        text = f"{self.victim} ({self.nbytes} bytes), kept for {steps} by {holder}"
        if self.why == "kept":
            return f"{text}; nothing has overwritten it so far"
        if self.why == "freed":
            return f"{text}, lies in memory that is freed"
        return f"{text}, was overwritten" + (f" by {self.overwriter}" if self.overwriter else "")


class StaleTensorError(CaseStudyError):
    """Tensors were kept while their bytes changed. `stale` holds a `Stale` for each."""

    def __init__(self, stale: list[Stale]) -> None:
        self.stale = stale
        more = f"; and {len(stale) - 1} more" if len(stale) > 1 else ""
        super().__init__(
            f"{stale[0]}{more}. Copy a tensor (`tensor.clone()`) before keeping it, or have the "
            f"iterator own what it yields."
        )


class StaleTensorWarning(UserWarning):
    """What `StaleTensorError` says, as a warning."""


class Lent(weakref.ref[torch.UntypedStorage]):
    """A yielded tensor, known by its storage, which lives as long as any view of it.

    mark: stands for its bytes. tensor: as it was handed out. storage: `_cdata` of its storage.
    finding: set once it is known to be stale.
    """

    __slots__ = ("finding", "index", "mark", "name", "region", "storage", "tensor")

    index: int
    name: str
    region: Region
    mark: int | None
    tensor: weakref.ref[torch.Tensor]
    storage: int
    finding: Stale | None

    @property
    def nbytes(self) -> int:
        """From the first byte to the last."""
        return self.region[2] - self.region[1]


class Guard(Iterator[Item]):
    """The wrapped iterator. See `guard`.

    stale: what was found so far, in the order of the yields. yielded: how many items there were.
    unwatched: names of yielded tensors that cannot be looked after, such as sparse ones.
    """

    def __init__(
        self, iterator: Iterable[Item], on_stale: OnStale, *, looks_for_holders: bool = True
    ) -> None:
        try:
            self._iterator = iter(iterator)
        except TypeError:
            raise CaseStudyError(
                f"guard takes an iterator of (name, tensor), not a {type(iterator).__name__}."
            ) from None
        self._lock = RLock()  # tensors may be let go by any thread
        self._on_stale = on_stale
        self._yields: list[tuple[str, Region, int | None]] = []
        self._found: list[Lent] = []
        self._told = 0
        self._looks_for_holders = looks_for_holders
        self._patience = dict.fromkeys((True, False), SEARCHES)
        self._heap_readings = HEAP_READINGS if looks_for_holders else 0
        self._finished = False
        self._on_death = _weakly(self)
        self.unwatched: list[str] = []

    @property
    def stale(self) -> list[Stale]:
        return self._findings(self._found)

    @property
    def yielded(self) -> int:
        return len(self._yields)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Item:
        if self._finished:
            raise StopIteration
        frame = sys._getframe(1)
        with self._lock:
            self._before(frame)
            if self._told < len(self._found):
                self._tell(frame)
        try:
            item = next(self._iterator)
        except StopIteration:
            self._finish(frame)
            raise
        except BaseException:
            self._finished = True
            raise
        with self._lock:
            item = self._lend(item)
            self._after(frame)
            if self._told < len(self._found):
                self._tell(frame)
        return item

    def close(self) -> None:
        """Ends the iterator, as leaving a `with` block does, and looks at what is still held.

        Raises or warns as `on_stale` says.
        """
        if not self._finished:
            with self._lock:
                self._before(sys._getframe(1))
            if hasattr(self._iterator, "close"):
                self._iterator.close()
            self._finish(sys._getframe(1))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is not None and self._on_stale == "raise":
            self._on_stale = "warn"  # the error that is on its way comes first
        self.close()

    def __del__(self) -> None:
        if not getattr(self, "_finished", True):
            if self._on_stale == "raise":
                self._on_stale = "warn"  # nothing can be raised from here
            self.close()

    def _finish(self, frame: FrameType) -> None:
        self._finished = True
        with self._lock:
            self._ended(frame)
            self._name(self._found, frame)
            for lent in self._found:
                self._count_steps(lent)
            self._tell(frame)

    def _findings(self, lents: list[Lent]) -> list[Stale]:
        """What was found of `lents`, in the order of the yields, with overwriters as of now."""
        overwriters = first_overwriters(
            [(ByteSpan(*region[:3]), seen) for _, region, seen in self._yields]
        )
        found = []
        for lent in sorted(lents, key=attrgetter("index")):
            assert lent.finding
            by = overwriters[lent.index]
            if lent.finding.why == "overwritten" and by is not None:
                lent.finding.overwriter = self._yields[by][0]
            found.append(lent.finding)
        return found

    def _tell(self, frame: FrameType) -> None:
        fresh = self._found[self._told :]
        if not fresh or self._on_stale == "record":
            return
        self._told += len(fresh)
        self._name(fresh, frame)
        error = StaleTensorError(self._findings(fresh))
        if self._on_stale == "raise":
            self._finished = True
            raise error
        where = frame.f_code.co_filename, frame.f_lineno
        warnings.warn_explicit(StaleTensorWarning(str(error)), None, *where)

    def _lend(self, item: Item) -> Item:
        """Notes the pair, and hands it on with its tensor rewrapped."""
        if not isinstance(item, PAIRS) or len(item) < 2:
            raise CaseStudyError(
                f"the iterator yielded a {type(item).__name__}; guard takes (name, tensor) pairs."
            )
        name, tensor, *extra = item
        index = len(self._yields)
        rewrapped = rewrap(tensor) if isinstance(tensor, torch.Tensor) else None
        if rewrapped is None:
            self._yields.append((name, NOWHERE, None))
            if not isinstance(tensor, torch.Tensor) or tensor.numel():
                self._pass_unwatched(name, tensor)
            return item
        storage = rewrapped.untyped_storage()
        lent = Lent(storage, self._on_death)
        lent.finding = None
        lent.index, lent.name, lent.region = index, name, region(rewrapped)
        lent.mark = self._mark(lent.region)
        lent.tensor = weakref.ref(rewrapped)
        lent.storage = storage._cdata
        self._yields.append((name, lent.region, lent.mark))
        pair = _like(item, (name, rewrapped, *extra))
        self._handed_out(lent, pair)
        return pair

    def _pass_unwatched(self, name: str, thing: object) -> None:
        self.unwatched.append(name)
        if len(self.unwatched) == 1 and self._on_stale != "record":
            kind = type(thing).__name__
            warnings.warn(f"guard cannot watch {name}, a {kind}; see `unwatched`.", stacklevel=4)

    def _note(self, lent: Lent, why: Why, held_by: Holder | None) -> None:
        lent.finding = Stale(lent.name, lent.nbytes, 0, why, None, held_by)
        self._count_steps(lent, dying=True)
        self._found.append(lent)

    def _count_steps(self, lent: Lent, dying: bool = False) -> None:
        if lent.finding and (dying or lent() is not None):
            lent.finding.steps = len(self._yields) - 1 - lent.index

    def _search(
        self, lents: list[Lent], frame: FrameType, *, besides_loops: bool
    ) -> dict[int, Holder]:
        """Who holds each of `lents`, by index; when patience is gone only near the loop.

        besides_loops: variables of waiting loops that are about to be written anew do not count.
        """
        if not lents or not self._looks_for_holders:
            return {}
        ended = False if besides_loops else None
        if self._patience[besides_loops] <= 0:
            return self._holders(lents, frame, ended=ended, near=True)
        found = self._holders(lents, frame, ended=ended)
        self._patience[besides_loops] -= 1 if found else FRUITLESS
        return found

    def _holders(
        self, lents: list[Lent], frame: FrameType, *, ended: bool | None, near: bool = False
    ) -> dict[int, Holder]:
        """As `_search`; if `ended` is None, loops' own variables count (see `idle_variables`)."""

        def visible(each: FrameType) -> Mapping[str, Any]:
            if ended is None:
                return variables(each)
            idle = idle_variables(each, ended=ended)
            return {name: value for name, value in variables(each).items() if name not in idle}

        wanted_storages = {lent.storage for lent in lents}
        # what was not handed out yet cannot have been passed on
        fresh = self._yields[-1][1] if ended is False and self._yields else NOWHERE
        others = [
            each
            for each in self._held()
            if each.storage not in wanted_storages and each() is not None
        ]
        wanted = Wanted(
            {lent.storage: lent.index for lent in lents},
            sorted((*lent.region[1:3], lent.index) for lent in lents),
            {each.storage for each in others},
            [each.region[1:3] for each in others if each.region is not fresh],
        )
        begin = holders.roots(frame, visible)
        ignored = [self, self._iterator, lents, others]
        if near:
            return holders.find(wanted, begin[:NEAR_ROOTS], ignored, NEAR_OBJECTS)
        return holders.find(wanted, begin, ignored)

    def _name(self, found: list[Lent], frame: FrameType) -> None:
        """Looks once more for the holders of those that have none and are still held."""
        findings = {
            lent.index: lent.finding
            for lent in found
            if lent.finding and not lent.finding.held_by and lent() is not None
        }
        lents = [lent for lent in found if lent.index in findings]
        if not lents or self._heap_readings <= 0:
            return
        named: dict[int, Holder | None] = {**self._holders(lents, frame, ended=None)}
        hidden = {lent.index: lent.tensor() for lent in lents if lent.index not in named}
        if hidden:
            self._heap_readings -= 1
            named |= holders.containers(hidden, frame)
        for index, finding in findings.items():
            finding.held_by = named.get(index)

    @abstractmethod
    def _held(self) -> list[Lent]:
        """Those that somebody may hold."""

    @abstractmethod
    def _mark(self, region: Region) -> int | None:
        """Stands for the bytes of `region` as they are now."""

    @abstractmethod
    def _handed_out(self, lent: Lent, pair: Item) -> None:
        """`pair` is what the consumer gets."""

    @abstractmethod
    def _before(self, frame: FrameType) -> None:
        """The consumer asks for the next; nothing has been overwritten since its last step."""

    @abstractmethod
    def _after(self, frame: FrameType) -> None:
        """The next is there, and not yet handed out."""

    @abstractmethod
    def _ended(self, frame: FrameType) -> None:
        """There is no next."""

    def _died(self, lent: Lent, frame: FrameType) -> None:
        """The last view of `lent` is gone, let go by `frame`; its memory is still there."""
        if lent.finding:
            self._count_steps(lent, dying=True)


def _weakly(guard: Guard[Any]) -> Callable[[Lent], None]:
    """Tells the guard of deaths, unless it is gone itself: it must not be kept by what it lends."""
    known = weakref.ref(guard)

    def died(lent: Lent) -> None:
        guard = known()
        if guard is not None:
            with guard._lock:
                guard._died(lent, sys._getframe(1))

    return died


def _like(item: Item, parts: tuple[Any, ...]) -> Item:
    """`parts` as the kind of tuple or list that `item` is."""
    kind: Any = type(item)
    if kind is tuple:
        return parts  # type: ignore[return-value]
    try:
        fresh: Item = kind._make(parts) if hasattr(kind, "_make") else kind(parts)
    except TypeError:  # a kind that wants its parts in another way
        return parts  # type: ignore[return-value]
    return fresh
