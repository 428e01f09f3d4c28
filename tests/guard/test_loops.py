"""Which variables of a waiting frame will be read again, and which references are only those."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest
import torch

from casestudy.guard.loops import References, beyond_loops, idle_variables, variables

SOMETHING = [1]


class Waiting:
    """An iterator of two items that notes what is idle in the frame that waits for the next."""

    def __init__(self, *, ended: bool = False) -> None:
        self.left = 2
        self.ended = ended
        self.idle: list[set[str]] = []

    def __iter__(self) -> Waiting:
        return self

    def __next__(self) -> Any:  # noqa: ANN401
        frame = sys._getframe(1)
        if bool(self.left) != self.ended:
            self.idle.append(set(idle_variables(frame, ended=self.ended)))
        if not self.left:
            raise StopIteration
        self.left -= 1
        return "name", SOMETHING


def unpacks(it: Waiting) -> None:
    for _name, tensor in it:
        len(tensor)


def takes_apart(it: Waiting) -> None:
    for pair in it:
        _name, tensor = pair
        len(tensor)


def remembers(it: Waiting) -> None:
    before = None
    for _name, tensor in it:
        if before:
            len(before)
        before = tensor


def reads_afterwards(it: Waiting) -> None:
    tensor = None
    for _name, tensor in it:  # noqa: B007
        pass
    print(tensor)


def by_hand(it: Waiting) -> None:
    while (pair := next(it, None)) is not None:
        len(pair)


def in_a_closure(it: Waiting) -> Callable[[], Any]:
    for _name, tensor in it:  # noqa: B007
        pass
    return lambda: tensor


def lets_a_helper_read(it: Waiting) -> None:
    tensor = None

    def read() -> None:
        len(tensor or ())

    for pair in it:
        read()
        _name, tensor = pair


def drops(it: Waiting) -> None:
    for _name, tensor in it:
        len(tensor)
        del tensor


@pytest.mark.parametrize(
    ("consume", "idle", "not_idle"),
    [
        (unpacks, {"_name", "tensor"}, {"it"}),
        (takes_apart, {"pair", "_name", "tensor"}, set()),
        (remembers, {"tensor"}, {"before"}),
        (reads_afterwards, {"tensor"}, set()),
        (by_hand, {"pair"}, set()),
        (in_a_closure, {"_name"}, set()),
        (lets_a_helper_read, {"pair", "_name"}, {"tensor"}),
        (drops, {"_name"}, {"tensor"}),
    ],
)
def test_a_variable_is_idle_if_it_is_written_before_it_is_read(
    consume: Callable[[Waiting], Any], idle: set[str], not_idle: set[str]
) -> None:
    waiting = Waiting()
    consume(waiting)
    assert idle <= waiting.idle[-1]
    assert not not_idle & waiting.idle[-1]


def test_at_the_end_what_is_read_behind_the_loop_is_not_idle() -> None:
    waiting = Waiting(ended=True)
    reads_afterwards(waiting)
    assert "tensor" not in waiting.idle[-1]
    waiting = Waiting(ended=True)
    unpacks(waiting)
    assert "tensor" in waiting.idle[-1]


def test_asking_for_variables_leaves_no_reference_behind() -> None:
    here = sys._getframe()
    thing = object()
    before = sys.getrefcount(thing)
    for _ in range(3):
        assert variables(here)["thing"] is thing
        assert variables(here, {"thing", "missing"}) == {"thing": thing}
    assert sys.getrefcount(thing) == before


def test_the_namespace_of_a_module_is_left_as_it_is() -> None:
    namespace: dict[str, Any] = {"look": lambda: dict(variables(sys._getframe(1)))}
    exec("a = 1\nseen = look()\nb = a", namespace)
    assert namespace["b"] == 1
    assert namespace["seen"]["a"] == 1


class Counting(Waiting):
    """Asks whether all the references to what it returned last are loops' own."""

    def __init__(self) -> None:
        super().__init__()
        self.answers: list[bool] = []
        self.pair: Any = None

    def __next__(self) -> Any:  # noqa: ANN401
        if self.pair is not None:
            self.answers.append(self.ask(sys._getframe(1)))
        if not self.left:
            raise StopIteration
        self.left -= 1
        self.pair = ("name", torch.ones(1))
        return self.pair

    def ask(self, frame: FrameType) -> bool:
        to_pair = sys.getrefcount(self.pair) - 2
        to_tensor = sys.getrefcount(self.pair[1]) - 2
        beyond = References(to_pair, to_tensor, 0, 0, 0)
        return not beyond_loops(frame, self.pair, beyond).are_any


def layer(it: Iterator[Any]) -> Iterator[Any]:
    for name, tensor in it:  # noqa: UP028, the variables are what this is about
        yield name, tensor


def keeps_the_pair(it: Iterator[Any]) -> None:
    kept = []
    for pair in it:
        kept.append(pair)


@pytest.mark.parametrize("count", range(4))
@pytest.mark.parametrize(
    ("consume", "expected"),
    [
        (unpacks, True),
        (takes_apart, True),
        (by_hand, True),
        (remembers, False),
        (keeps_the_pair, False),
    ],
)
def test_references_are_counted_through_layers(
    consume: Callable[[Any], Any], expected: bool, count: int
) -> None:
    counting = Counting()
    stream: Iterator[Any] = counting
    for _ in range(count):
        stream = layer(stream)
    consume(stream)
    assert counting.answers[0] is expected
