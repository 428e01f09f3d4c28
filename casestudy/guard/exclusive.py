"""What is held by some variables and by nothing else: trial deletion, as a garbage collector does.

Looks through containers, small functions, and NumPy arrays to what they are views of.
"""

from __future__ import annotations

import gc
import sys
from collections import Counter
from collections.abc import Iterator
from functools import partial
from types import CellType, FunctionType

import numpy as np
import torch

CONTAINERS = (tuple, list, dict, FunctionType, CellType, partial)
LOOKED_INTO = (*CONTAINERS, np.ndarray, torch.Tensor)
LONGEST = 64  # elements of a container that is looked into


class Exclusive:
    """variables: the value of each variable.

    objects: those, and what is in them, that the variables alone keep alive; once each.
    """

    def __init__(self, variables: list[object]) -> None:
        ours: list[object] = []  # tells how many references the counting has itself
        variables.append(ours)
        self._found: dict[int, object] = {}
        self._in_variables = Counter(map(id, variables))
        self._in_others: Counter[int] = Counter()
        for value in variables:
            self._visit(value)
        value = None
        surplus = {key: self._surplus(each) for key, each in self._found.items()}
        held = [key for key in surplus if surplus[key] > surplus[id(ours)]]
        variables.pop()
        self._drop(held)
        self._found.pop(id(ours), None)

    @property
    def objects(self) -> list[object]:
        return list(self._found.values())

    def references(self, thing: object) -> int:
        """How many there are to `thing`, which may be held by others too, from `objects`."""
        return sum(part is thing for each in self._found.values() for part in _parts(each))

    def _visit(self, thing: object) -> None:
        if id(thing) in self._found:
            return
        self._found[id(thing)] = thing
        for part in _parts(thing):
            self._in_others[id(part)] += 1
            self._visit(part)

    def _surplus(self, thing: object) -> int:
        key = id(thing)
        return sys.getrefcount(thing) - 2 * self._in_variables[key] - self._in_others[key]

    def _drop(self, held: list[int]) -> None:
        """Takes out what others hold, and everything in it."""
        while held:
            thing = self._found.pop(held.pop(), None)
            held += [id(part) for part in _parts(thing) if id(part) in self._found]


def _parts(thing: object) -> Iterator[object]:
    if isinstance(thing, CONTAINERS):
        parts = gc.get_referents(thing)
        if len(parts) <= LONGEST:
            yield from (each for each in parts if isinstance(each, LOOKED_INTO))
    elif isinstance(thing, np.ndarray) and isinstance(thing.base, LOOKED_INTO):
        yield thing.base
