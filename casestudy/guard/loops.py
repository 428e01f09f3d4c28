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

    def is_nothing(self) -> bool:
        return max(self) <= 0


def are_loop_references(
    frame: FrameType | None, item: Sequence[object], references: References
) -> bool:
    """Whether all those references to a yielded tuple and its tensor are idle variables.

    That is, variables that are written before they are read again; with tuples, lists, views and
    arrays that nothing else holds.

    frame: who waits for the next tensor; its callers are looked at as well, as far as generators
        hand the tensor on or functions return it.
    """
    tensor = item[1]
    assert isinstance(tensor, torch.Tensor)
    left = references
    values: list[object] = []  # the only references of our own
    for value in _idle_values(frame, item, tensor, left):
        if value is item:
            left = left._replace(to_item=left.to_item - 1)
        elif value is tensor:
            left = left._replace(to_tensor=left.to_tensor - 1)
        else:
            values.append(value)
    value = None
    if left.is_nothing():
        return True
    return bool(values) and _without(left, Exclusive(values), item, tensor).is_nothing()


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


def _idle_values(
    frame: FrameType | None, item: object, tensor: object, left: References
) -> Iterator[object]:
    """The values of idle variables that may have to do with it, nearest first."""
    to_item, to_tensor = left.to_item, left.to_tensor
    only_names = max(left[2:]) <= 0  # no views: a loop's variables are the first to be found
    passed = 0
    while frame is not None and passed < FURTHEST:
        found = False
        for value in idle_variables(frame, ended=False).values():
            if isinstance(value, LOOKED_INTO):
                found = found or value is item or value is tensor or type(value) is tuple
                to_item -= value is item
                to_tensor -= value is tensor
                yield value
        value = None
        if only_names and to_item <= 0 and to_tensor <= 0:
            return
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


def is_handing_on(frame: FrameType, position: int) -> bool:
    """Whether `frame` has not read what it had since it waited at `position`, and lets it go now.

    That is: it is still inside the iterator's own code, or stores what it was given, or writes a
    variable that was idle while it waited.
    """
    paths = flow(frame.f_code)
    written = paths.written_at(frame.f_lasti)
    return frame.f_lasti in paths.taking(position) or bool(
        written & paths.idle(position, ended=False)
    )


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
