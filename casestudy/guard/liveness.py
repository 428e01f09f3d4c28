"""Which variables of a code object will be read before they are written, from any point on.

The textbook's backward analysis, over bytecode: reading a variable makes it live before, writing it
ends that. `dis` tells one from the other in every release of CPython from 3.11 to 3.13.
"""

from __future__ import annotations

import dis
import re
import weakref
from bisect import bisect_right
from functools import cached_property
from types import CodeType
from typing import NamedTuple

ACCESS = re.compile(r"(LOAD|STORE|DELETE)_(?:FROM_DICT_OR_|CLASS)?(FAST|DEREF|NAME|GLOBAL|CLOSURE)")
ENDS = ("RETURN_", "RERAISE", "RAISE_VARARGS")
ALWAYS_JUMPS = ("JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_ABSOLUTE")
TAKES = ("UNPACK_", "NOP", "EXTENDED_ARG", "COPY", "SWAP")
LETS_OTHERS_RUN = ("CALL", "FOR_ITER", "SEND", "YIELD_VALUE")


class _Step(NamedTuple):
    """One instruction. following: the numbers of those that may come next; jumps come last."""

    offset: int
    operation: str
    accesses: list[tuple[str, str]]  # LOAD, STORE or DELETE, and the variable, in order
    following: list[int]


class Flow:
    """The paths through a code object, and what each instruction does to variables."""

    def __init__(self, code: CodeType) -> None:
        instructions = list(dis.get_instructions(code))
        self._steps = _steps(instructions)
        self._offsets = [step.offset for step in self._steps]
        self._shared = {*code.co_cellvars, *code.co_freevars}  # others may read these
        self._shared |= {
            name
            for step in self._steps
            for _, name in step.accesses
            if "FAST" not in step.operation
        }
        self._written = {
            name for step in self._steps for action, name in step.accesses if action == "STORE"
        }
        self._idle: dict[tuple[int, bool], frozenset[str]] = {}

    def idle(self, position: int, *, ended: bool) -> frozenset[str]:
        """The variables that are written, or left alone, before anything reads them.

        position: `f_lasti` of a frame that waits for a next item; ended: whether there is none, so
        that a loop goes on behind its body. Only variables that this code writes are looked at.
        """
        key = (position, ended)
        if key not in self._idle:
            live: set[str] = set()
            live.update(*(self._live[number] for number in self._after(position, ended)))
            self._idle[key] = frozenset(self._written - live)
        return self._idle[key]

    def taking(self, position: int) -> set[int]:
        """Where a frame that waited at `position` can be before it has read anything it had."""
        offsets, fresh = {position}, set[str]()
        numbers = self._after(position, ended=False)
        while len(numbers) == 1:
            step = self._steps[numbers[0]]
            known = all(action == "STORE" or name in fresh for action, name in step.accesses)
            if not step.operation.startswith(TAKES) and not (step.accesses and known):
                break
            fresh |= {name for action, name in step.accesses if action == "STORE"}
            offsets.add(step.offset)
            numbers = step.following
        return offsets

    def written_at(self, position: int) -> set[str]:
        """The variables that the instruction at `position` writes or deletes."""
        step = self._steps[bisect_right(self._offsets, position) - 1]
        return {name for action, name in step.accesses if action != "LOAD"}

    def _after(self, position: int, ended: bool) -> list[int]:
        """The instructions that may follow once a waiting one has its answer."""
        step = self._steps[bisect_right(self._offsets, position) - 1]
        if step.operation != "FOR_ITER":
            return step.following
        return step.following[1:] if ended else step.following[:1]

    @cached_property
    def _live(self) -> list[set[str]]:
        """For each instruction the variables that may be read, from it on, before a write."""
        live: list[set[str]] = [set() for _ in self._steps]
        changed = True
        while changed:
            changed = False
            for number in range(len(self._steps) - 1, -1, -1):
                before = self._live_before(self._steps[number], live)
                changed = changed or before != live[number]
                live[number] = before
        return live

    def _live_before(self, step: _Step, live: list[set[str]]) -> set[str]:
        before: set[str] = set().union(*(live[number] for number in step.following))
        if step.operation.startswith(LETS_OTHERS_RUN):
            before |= self._shared
        for action, name in reversed(step.accesses):
            if action == "LOAD":
                before.add(name)
            else:
                before.discard(name)
        return before


_flows: dict[int, tuple[weakref.ref[CodeType], Flow]] = {}


def flow(code: CodeType) -> Flow:
    """The flow of a code object, read once in its life."""
    key = id(code)  # by identity: the hash of a code object reads all of it
    if key not in _flows:
        _flows[key] = weakref.ref(code, lambda _: _flows.pop(key, None)), Flow(code)
    return _flows[key][1]


def _steps(instructions: list[dis.Instruction]) -> list[_Step]:
    numbers = {each.offset: number for number, each in enumerate(instructions)}
    steps = []
    for number, each in enumerate(instructions):
        ends = each.opname.startswith(ENDS) or number + 1 == len(instructions)
        following = [] if ends or each.opname.startswith(ALWAYS_JUMPS) else [number + 1]
        if each.opcode in dis.hasjrel or each.opcode in dis.hasjabs:
            following.append(numbers[each.argval])
        steps.append(_Step(each.offset, each.opname, _accesses(each), following))
    return steps


def _accesses(instruction: dis.Instruction) -> list[tuple[str, str]]:
    actions = [action for action, _ in ACCESS.findall(instruction.opname)]
    names = instruction.argval
    return list(zip(actions, names if isinstance(names, tuple) else [names], strict=False))
