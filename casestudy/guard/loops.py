"""Which references to the last tensor are only loops' own variables, about to be written anew.

While the next tensor is being made, `for name, tensor in weights` still holds the last one, and so
does every generator between. That is not keeping: the variable is written before it is read again.
A variable that will be read first, such as `previous`, keeps. The difference lies in the code of
the waiting frames, so it is looked up there: liveness, as compilers know it.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Collection, Iterator, Sequence
from types import FrameType
from typing import Any, NamedTuple

import torch

from casestudy.guard.exclusive import LOOKED_INTO, Exclusive
from casestudy.guard.liveness import flow

FURTHEST = 8  # how many frames without a reference are passed on the way up
KEEPS_THE_DICT = sys.version_info < (3, 13)
GENERATOR = (
    inspect.CO_GENERATOR
    | inspect.CO_COROUTINE
    | inspect.CO_ASYNC_GENERATOR
    | inspect.CO_ITERABLE_COROUTINE
)


class References(NamedTuple):
    """How many there are, beyond those that are always there.

    in_torch: to the storage, by tensors that are views. from_views: to the tensor as their base;
    Python counts all of these as one.
    """

    to_item: int
    to_tensor: int
    to_storage: int
    in_torch: int
    from_views: int

    @property
    def are_any(self) -> bool:
        return max(self) > 0

    @property
    def are_views(self) -> bool:
        """Whether there are views, which no iterator makes that only hands on."""
        return max(self[2:]) > 0


NONE = References(0, 0, 0, 0, 0)


def beyond_loops(
    frame: FrameType | None, item: Sequence[object], references: References
) -> References:
    """The references to a yielded tuple and its tensor that are not from idle variables.

    That is, from variables that are written before they are read again; with tuples, lists, views
    and arrays that nothing else holds.

    frame: who waits for the next tensor; its callers are looked at as well, as far as generators
        hand the tensor on or functions return it.
    """
    if max(references[2:]) <= 0 and _are_names(frame, item, references):
        return NONE
    tensor = item[1]
    assert isinstance(tensor, torch.Tensor)
    names, values = 0, list[object]()  # `values` holds the only references of our own
    to_item, to_tensor = references[:2]
    for value in _idle_values(frame, item):
        if value is item:
            to_item -= 1
        elif value is tensor:
            to_tensor -= 1
        else:
            values.append(value)
        names += 1
    value = None
    left = references._replace(to_item=to_item, to_tensor=to_tensor)
    return _without(left, Exclusive(values), item, tensor) if names else references


def _are_names(frame: FrameType | None, item: Sequence[object], references: References) -> bool:
    """The usual case, and quick: the variables of a loop and of the generators that hand on."""
    tensor = item[1]
    to_item, to_tensor = references[:2]
    while frame is not None:
        for value in idle_variables(frame, ended=False).values():
            if value is item:
                to_item -= 1
            elif value is tensor:
                to_tensor -= 1
        if to_item <= 0 and to_tensor <= 0:
            return True
        if not frame.f_code.co_flags & GENERATOR:
            return False
        frame = frame.f_back
    return False


def _without(
    left: References, exclusive: Exclusive, item: object, tensor: torch.Tensor
) -> References:
    """What remains if everything that the variables alone hold is gone."""
    storage = tensor.untyped_storage()._cdata
    views = [
        each
        for each in exclusive.objects
        if isinstance(each, torch.Tensor) and each.untyped_storage()._cdata == storage
    ]
    from_views = left.from_views - sum(each._base is tensor for each in views)
    counted_once = 1 if left.from_views and not from_views else 0
    return References(
        left.to_item - exclusive.references(item),
        left.to_tensor - exclusive.references(tensor) - counted_once,
        left.to_storage,
        left.in_torch - len(views),
        from_views,
    )


def _idle_values(frame: FrameType | None, item: Sequence[object]) -> Iterator[object]:
    """The values of idle variables that may have to do with it, nearest first.

    Up to the first ordinary frame that has some of it, but not further than a few that have none.
    """
    passed = 0
    while frame is not None and passed < FURTHEST:
        found = False
        for value in idle_variables(frame, ended=False).values():
            if isinstance(value, LOOKED_INTO):
                found = found or value is item or value is item[1] or type(value) is tuple
                yield value
        value = None
        if not frame.f_code.co_flags & GENERATOR:
            if found:
                return
            passed += 1
        frame = frame.f_back


def idle_variables(frame: FrameType, *, ended: bool) -> dict[str, Any]:
    """The variables of a waiting frame that are written before they are read again.

    ended: whether there is no next tensor, so that loops go on behind their bodies.
    """
    return variables(frame, flow(frame.f_code).idle(frame.f_lasti, ended=ended))


def is_handing_on(frame: FrameType, position: int, *, or_writes_anew: bool) -> bool:
    """Whether `frame` has not read what it had since it waited at `position`, and lets it go now.

    That is: it is still inside the iterator's own code, or stores what it was given.

    or_writes_anew: or writes a variable that was idle while it waited.
    """
    paths = flow(frame.f_code)
    written = paths.written_at(frame.f_lasti)
    is_taking = frame.f_lasti in paths.taking(position)
    return is_taking or (or_writes_anew and bool(written & paths.idle(position, ended=False)))


def variables(frame: FrameType, names: Collection[str] | None = None) -> dict[str, Any]:
    """The variables of a frame, or those in `names`, without leaving references behind.

    Up to Python 3.12 a function's frame keeps the dict that it makes for the asking.
    """
    if names is not None and not names:
        return {}
    seen = frame.f_locals
    if names is None:
        chosen = dict(seen)
    else:
        chosen = {}
        for name in names:
            if name in seen:
                chosen[name] = seen[name]
    if (
        KEEPS_THE_DICT
        and frame.f_code.co_flags & inspect.CO_OPTIMIZED
        and sys.getrefcount(seen) == 3  # nobody else has asked
    ):
        seen.clear()
    return chosen
