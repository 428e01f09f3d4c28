"""Who holds a tensor: the variable, key, attribute or index by which it can still be reached.

Looks from the frames that are running, through containers, objects, closures and generators, as a
reader of the code would; only if that shows nothing it asks the garbage collector.
"""

from __future__ import annotations

import gc
import sys
import threading
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import islice
from types import (
    BuiltinMethodType,
    CodeType,
    FrameType,
    FunctionType,
    GeneratorType,
    MethodType,
    ModuleType,
)
from typing import Any, NamedTuple

import numpy as np
import torch

from casestudy.guard.loops import GENERATOR, variables

MOST_OBJECTS = 8_000  # as many are looked at in one search
MOST_OBJECTS_A_ROOT = 2_000
MOST_FRAMES = 16  # as many of a thread's frames, from the innermost
ASKED_AT_ONCE = 4  # so many objects the garbage collector is asked about in one go
NOT_CONTAINERS = (str, bytes, bytearray, int, float, complex, bool, type(None), CodeType, FrameType)


class Holder(NamedTuple):
    """path: as code would spell it, such as `pending['layers.0.scale']`; `function` has it, which
    is at `line` of `file` at that moment.
    """

    path: str
    function: str
    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.path} in {self.function} ({self.file}:{self.line})"


@dataclass(frozen=True)
class Wanted:
    """Tensors that someone holds.

    storages: their keys by the `_cdata` of their storages. addresses: start, stop and key, sorted,
    for views by way of DLPack, which have storages of their own. others: the storages of other
    tensors, which may lie at the same addresses. taken: where those lie.
    """

    storages: dict[int, int]
    addresses: list[tuple[int, int, int]]
    others: set[int]
    taken: list[tuple[int, int]]

    def key(self, thing: object) -> int | None:
        """Whose storage `thing` looks into; None if none of the wanted."""
        if isinstance(thing, torch.Tensor):
            return self._key_of_storage(_storage_of(thing))
        if isinstance(thing, torch.UntypedStorage):
            return self._key_of_storage(thing)
        if isinstance(thing, memoryview):
            return self.key(thing.obj)
        return self._key_of_array(thing) if isinstance(thing, np.ndarray) else None

    def _key_of_array(self, array: np.ndarray[Any, Any]) -> int | None:
        base: object = array
        while isinstance(base, np.ndarray) and base.base is not None:
            base = base.base
        if isinstance(base, torch.Tensor | memoryview):
            return self.key(base)
        return self._key_of_address(array.__array_interface__["data"][0])

    def _key_of_storage(self, storage: torch.UntypedStorage | None) -> int | None:
        if storage is None or storage._cdata in self.others:
            return None
        if storage._cdata in self.storages:
            return self.storages[storage._cdata]
        return self._key_of_address(storage.data_ptr()) if storage.device.type == "cpu" else None

    def _key_of_address(self, start: int) -> int | None:
        if any(low <= start < high for low, high in self.taken):
            return None  # it may be another's
        at = bisect_right(self.addresses, (start, sys.maxsize, 0)) - 1
        if at >= 0 and start < self.addresses[at][1]:
            return self.addresses[at][2]
        return None


class Root(NamedTuple):
    """Where a search begins: variables, and whose they are."""

    names: Mapping[str, Any]
    function: str
    file: str
    line: int


def roots(
    frame: FrameType | None, visible: Callable[[FrameType], Mapping[str, Any]] = variables
) -> list[Root]:
    """Where to look, nearest first: the waiting loops, their module, their callers, other threads.

    visible: what counts among the variables of the waiting frames.
    """
    waiting = list(islice(callers(frame), MOST_FRAMES))
    others = [
        each
        for thread, top in sys._current_frames().items()
        if thread != threading.get_ident()
        for each in islice(callers(top), MOST_FRAMES)
    ]
    ordinary = (n for n, each in enumerate(waiting, 1) if not each.f_code.co_flags & GENERATOR)
    near = next(ordinary, len(waiting))
    modules = {id(each.f_globals): each for each in reversed(waiting + others)}
    for each in waiting:  # a loop in a module has these as its own variables
        if each.f_locals is each.f_globals:
            modules.pop(id(each.f_globals), None)
    first = [modules.pop(id(each.f_globals), None) for each in waiting[:near]]
    return [
        *(_root(each, visible(each)) for each in waiting[:near]),
        *(_module_root(each) for each in first if each is not None),
        *(_root(each, visible(each)) for each in waiting[near:]),
        *(_root(each, variables(each)) for each in others),
        *(_module_root(each) for each in modules.values()),
    ]


def find(
    wanted: Wanted, begin: list[Root], ignored: Iterable[object], most: int = MOST_OBJECTS
) -> dict[int, Holder]:
    """The first holder found of each wanted storage, nearest first.

    ignored: objects that are not looked into. most: so many objects are looked at.
    """
    packages = {str(root.names.get("__name__", "")).partition(".")[0] for root in begin} - {
        "torch",
        "numpy",
        "",
    }
    seen = {id(each) for each in ignored} | {id(root.names) for root in begin} | {id(begin)}
    found: dict[int, Holder] = {}
    for root in begin:
        for key, holder in _reached(wanted, root, seen, packages):
            found.setdefault(key, holder)
            if len(found) == len(wanted.storages):
                return found
        if len(seen) > most:
            break
    return found


def _reached(
    wanted: Wanted, root: Root, seen: set[int], packages: set[str]
) -> Iterator[tuple[int, Holder]]:
    """The keys of what can be reached from one root, and by which path, nearest first."""
    enough = len(seen) + MOST_OBJECTS_A_ROOT
    todo = deque(
        (value, name, root)
        for name, value in list(root.names.items())
        if not name.startswith(".")  # what a comprehension runs over has no name in the code
    )
    while todo and len(seen) < enough:
        thing, path, whose = todo.popleft()
        if isinstance(thing, NOT_CONTAINERS) or id(thing) in seen:
            continue
        seen.add(id(thing))
        key = wanted.key(thing)
        if key is not None:
            yield key, Holder(path, *whose[1:])
        elif isinstance(thing, GeneratorType):
            if thing.gi_frame is not None and not thing.gi_running:
                inner = _root(thing.gi_frame, variables(thing.gi_frame))
                todo.extend((value, name, inner) for name, value in inner.names.items())
        else:
            try:
                children = list(_children(thing, path, packages))
            except Exception:  # an object that does not like to be looked at hides no fault
                continue
            todo.extend((child, spelt, whose) for child, spelt in children)


def letting_go(frame: FrameType) -> Holder:
    """Stands for a holder that is only known by where it let go."""
    return Holder("something that was let go", *_root(frame, {})[1:])


def containers(things: Mapping[int, object], frame: FrameType) -> dict[int, Holder | None]:
    """What the garbage collector knows to contain each of `things`, by their keys.

    Lists, dicts, deques and sets, such as a list that is being built by `frame` and is in no
    variable yet; None for `enumerate` and `zip`, which keep what they returned last and hand it to
    nobody. Reads the whole heap, for the first few of `things`: whoever contains them is looked
    through for the others.
    """
    found: dict[int, Holder | None] = {}
    wanted = {id(thing): key for key, thing in things.items()}
    targets = list(islice(things.values(), ASKED_AT_ONCE))
    for _ in range(3):  # directly, in a pair, or in what `enumerate` makes of a pair
        referrers: list[object] = []  # ours of the round before must not be found
        referrers = [each for each in gc.get_referrers(*targets) if each is not targets]
        for each in referrers:
            if each is things:
                continue
            for child, path in _members(each, f"a {type(each).__name__} in no variable, at "):
                for key in _keys_inside(child, wanted):
                    found.setdefault(key, Holder(path, *_root(frame, {})[1:]))
            if isinstance(each, enumerate | zip):
                for part in gc.get_referents(each):
                    found |= {key: None for key in _keys_inside(part, wanted) if key not in found}
        targets = [each for each in referrers if type(each) is tuple]
        if not targets:
            break
    return found


def _keys_inside(thing: object, wanted: Mapping[int, int], depth: int = 2) -> list[int]:
    """The keys of the wanted ids of `thing` and, if it is a tuple, of what is in it."""
    keys = [wanted[id(thing)]] if id(thing) in wanted else []
    if depth and type(thing) is tuple:
        keys += [key for part in thing for key in _keys_inside(part, wanted, depth - 1)]
    return keys


def _root(frame: FrameType, names: Mapping[str, Any]) -> Root:
    return Root(names, frame.f_code.co_qualname, frame.f_code.co_filename, frame.f_lineno)


def _module_root(frame: FrameType) -> Root:
    name = frame.f_globals.get("__name__", "?")
    return _root(frame, frame.f_globals)._replace(function=f"module {name}")


def callers(frame: FrameType | None) -> Iterator[FrameType]:
    """`frame`, who called it, and so on."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def _storage_of(tensor: torch.Tensor) -> torch.UntypedStorage | None:
    try:
        return tensor.untyped_storage()
    except (NotImplementedError, RuntimeError):  # sparse tensors and wrappers have none
        return None


def _members(thing: object, path: str) -> Iterator[tuple[object, str]]:
    """What the built-in containers contain."""
    if isinstance(thing, dict):
        yield from ((value, f"{path}[{key!r}]") for key, value in list(thing.items()))
    elif isinstance(thing, list | deque):
        yield from ((each, f"{path}[{index}]") for index, each in enumerate(list(thing)))
    elif isinstance(thing, set | frozenset):
        yield from ((each, f"{path}{{…}}") for each in list(thing))


def _children(thing: object, path: str, packages: set[str]) -> Iterator[tuple[object, str]]:
    """What can be reached from `thing` in one step, and how it is spelt."""
    if isinstance(thing, dict | list | deque | set | frozenset):
        yield from _members(thing, path)
    elif isinstance(thing, tuple):
        names = getattr(thing, "_fields", None) or [f"[{index}]" for index in range(len(thing))]
        for each, name in zip(thing, names, strict=False):
            yield each, path + (name if name.startswith("[") else f".{name}")
    elif isinstance(thing, torch.nn.Module):
        yield from _attributes({**vars(thing), **thing._parameters, **thing._buffers}, path)
        yield from _attributes(dict(thing._modules), path)
    elif isinstance(thing, partial):
        yield from _attributes({"args": thing.args, "keywords": thing.keywords}, path)
        yield thing.func, f"{path}.func"
    elif isinstance(thing, MethodType | BuiltinMethodType):
        yield thing.__self__, f"{path}.__self__"
        yield getattr(thing, "__func__", None), path
    elif isinstance(thing, FunctionType):
        yield from _of_function(thing, path)
    elif isinstance(thing, ModuleType | type):
        name = thing.__name__ if isinstance(thing, ModuleType) else thing.__module__
        if name.partition(".")[0] in packages:
            yield from _attributes(dict(vars(thing)), path)
    else:
        yield from _attributes(getattr(thing, "__dict__", {}), path)
        yield from _slots(thing, path)
        kind = type(thing).__name__
        yield from ((each, f"{path} (inside a {kind})") for each in gc.get_referents(thing))


def _attributes(attributes: Mapping[str, Any], path: str) -> Iterator[tuple[object, str]]:
    yield from ((value, f"{path}.{name}") for name, value in list(attributes.items()))


def _slots(thing: object, path: str) -> Iterator[tuple[object, str]]:
    for kind in type(thing).__mro__:
        slots = vars(kind).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if hasattr(thing, name):
                yield getattr(thing, name), f"{path}.{name}"


def _of_function(function: FunctionType, path: str) -> Iterator[tuple[object, str]]:
    cells = function.__closure__ or ()
    for name, cell in zip(function.__code__.co_freevars, cells, strict=True):
        try:
            yield cell.cell_contents, f"{name} in the closure of {path}"
        except ValueError:  # still empty
            continue
    for index, value in enumerate(function.__defaults__ or ()):
        yield value, f"{path}.__defaults__[{index}]"
    yield from _attributes(vars(function), path)
