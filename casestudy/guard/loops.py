"""Which references to the last tensor are only loops' own variables, about to be written anew.

While the next tensor is being made, `for name, tensor in weights` still holds the last one, and so
does every generator between. That is not keeping: the variable is written before it is read again.
A variable that will be read first, such as `previous`, keeps. The difference lies in the code of
the waiting frames, so it is looked up there: liveness, as compilers know it.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Collection
from types import FrameType
from typing import Any

from casestudy.guard.liveness import flow

FURTHEST = 8  # how many frames without a reference are passed on the way up
KEEPS_THE_DICT = sys.version_info < (3, 13)
GENERATOR = (
    inspect.CO_GENERATOR
    | inspect.CO_COROUTINE
    | inspect.CO_ASYNC_GENERATOR
    | inspect.CO_ITERABLE_COROUTINE
)


def are_loop_references(
    frame: FrameType | None, item: object, tensor: object, to_item: int, to_tensor: int
) -> bool:
    """Whether so many references to a yielded tuple, and to the tensor in it, are idle variables.

    That is, variables that are written before they are read again, and tuples that nothing else
    holds.

    frame: who waits for the next tensor; its callers are looked at as well, as far as generators
        hand the tensor on or functions return it.
    """
    tuples: list[tuple[object, ...]] = []  # one for each variable that holds one
    passed = 0
    while frame is not None and passed < FURTHEST:
        before = to_item, to_tensor, len(tuples)
        for value in idle_variables(frame, ended=False).values():
            if value is item:
                to_item -= 1
            elif value is tensor:
                to_tensor -= 1
            elif type(value) is tuple and any(each is item or each is tensor for each in value):
                tuples.append(value)
        value = None  # no reference of our own but those in `tuples`
        if to_item <= 0 and to_tensor <= 0:
            return True
        if not frame.f_code.co_flags & GENERATOR:
            if (to_item, to_tensor, len(tuples)) != before:
                break
            passed += 1
        frame = frame.f_back
    inside = [each for one in _only_held_by(tuples) for each in one]
    to_item -= sum(each is item for each in inside)
    to_tensor -= sum(each is tensor for each in inside)
    return to_item <= 0 and to_tensor <= 0


def idle_variables(frame: FrameType, *, ended: bool) -> dict[str, Any]:
    """The variables of a waiting frame that are written before they are read again.

    ended: whether there is no next tensor, so that loops go on behind their bodies.
    """
    return variables(frame, flow(frame.f_code).idle(frame.f_lasti, ended=ended))


def is_handing_on(frame: FrameType, position: int) -> bool:
    """Whether `frame` has done nothing since it waited at `position` but take what came.

    That is: it is still inside the iterator's own code, or stores what it was given.
    """
    return frame.f_lasti in flow(frame.f_code).taking(position)


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


def _only_held_by(variables: list[tuple[object, ...]]) -> list[tuple[object, ...]]:
    """Those tuples, once each, that are held by the variables and nothing else.

    variables: the tuple of each variable. One of our own tells how many references the counting
        has itself.
    """
    ours = (object(),)
    variables.append(ours)
    distinct = {id(each): each for each in variables}
    beyond = {
        key: sys.getrefcount(each) - 2 * sum(one is each for one in variables)
        for key, each in distinct.items()
    }
    variables.pop()
    return [
        each
        for key, each in distinct.items()
        if each is not ours and beyond[key] <= beyond[id(ours)]
    ]
