"""Which references to the last tensor are only loops' own variables, about to be written anew.

While the next tensor is being made, `for name, tensor in weights` still holds the last one, and so
does every generator between. That is not keeping: the variable is written before it is read again.
A variable that will be read first, such as `previous`, keeps. The difference lies in the code of
the waiting frames, so it is looked up there: liveness, as compilers know it.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator, Mapping
from types import FrameType
from typing import Any, NamedTuple

from casestudy.guard.liveness import flow

FURTHEST = 8  # how many frames without a reference are passed on the way up
GENERATOR = (
    inspect.CO_GENERATOR
    | inspect.CO_COROUTINE
    | inspect.CO_ASYNC_GENERATOR
    | inspect.CO_ITERABLE_COROUTINE
)


class References(NamedTuple):
    """How many references there are to a yielded tuple and to the tensor in it."""

    to_item: int
    to_tensor: int


def loop_references(frame: FrameType | None, item: object, tensor: object) -> References:
    """The references from variables that are written before they are read again.

    frame: who waits for the next tensor; its callers are looked at as well, as far as generators
        hand the tensor on or functions return it.
    """
    values: list[object] = []  # the only references of our own while they are counted
    passed = 0
    while frame is not None and passed < FURTHEST:
        before = len(values)
        values += _values(frame, item, tensor)
        if not frame.f_code.co_flags & GENERATOR:
            if len(values) > before:
                break
            passed += 1
        frame = frame.f_back
    found = values + [each for value in _only_held_by(values) for each in value]
    return References(
        sum(value is item for value in found), sum(value is tensor for value in found)
    )


def idle_variables(frame: FrameType, *, ended: bool) -> dict[str, Any]:
    """The variables of a waiting frame that are written before they are read again.

    ended: whether there is no next tensor, so that loops go on behind their bodies.
    """
    names = flow(frame.f_code).idle(frame.f_lasti, ended=ended)
    seen = variables(frame) if names else {}
    return {name: seen[name] for name in names if name in seen}


def is_handing_on(frame: FrameType, position: int) -> bool:
    """Whether `frame` has done nothing since it waited at `position` but take what came.

    That is: it is still inside the iterator's own code, or stores what it was given.
    """
    return frame.f_lasti in flow(frame.f_code).taking(position)


def variables(frame: FrameType) -> Mapping[str, Any]:
    """The variables of a frame, without leaving references to their values behind.

    Up to Python 3.12 a function's frame keeps the dict that it makes for the asking.
    """
    seen = frame.f_locals
    if not frame.f_code.co_flags & inspect.CO_OPTIMIZED:
        return seen
    copy = dict(seen)
    if sys.version_info < (3, 13) and sys.getrefcount(seen) == 3:  # nobody else has asked
        seen.clear()
    return copy


def _values(frame: FrameType, item: object, tensor: object) -> Iterator[object]:
    for value in idle_variables(frame, ended=False).values():
        if value is item or value is tensor or _holds(value, item, tensor):
            yield value


def _holds(value: object, item: object, tensor: object) -> bool:
    return type(value) is tuple and any(each is item or each is tensor for each in value)


def _only_held_by(values: list[object]) -> list[tuple[object, ...]]:
    """The tuples among `values`, once each, that nothing but the variables holds.

    values: one for each variable. A tuple of our own tells how many references the counting has.
    """
    ours = (object(),)
    values.append(ours)
    tuples = {id(value): value for value in values if type(value) is tuple}
    beyond = {
        key: sys.getrefcount(each) - 2 * sum(value is each for value in values)
        for key, each in tuples.items()
    }
    values.pop()
    return [
        each for key, each in tuples.items() if each is not ours and beyond[key] <= beyond[id(ours)]
    ]
